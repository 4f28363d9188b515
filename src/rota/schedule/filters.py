"""Filters: each may say no to a shape at a place, and then says why, with the numbers.

A *static* filter looks only at the shape and at what the places of a class have in common, so its verdicts are kept per shape and class. Cheap
and lasting reasons come first, because the first no is the one that people read.
"""

from collections.abc import Callable
from typing import NamedTuple

from rota.model.amounts import format_duration
from rota.model.needs import show_amount
from rota.model.shape import Shape
from rota.model.verdict import Wake
from rota.schedule.view import Place, View

__all__ = ["BUILT_IN", "Filter", "No"]


class No(NamedTuple):
    """A filter's no."""

    code: str
    detail: str
    lasting: bool
    wake_on: tuple[str, ...]


class Filter(NamedTuple):
    """A named check."""

    name: str
    check: Callable[[Shape, Place, View], No | None]
    static: bool


def site(shape: Shape, place: Place, view: View) -> No | None:
    """The site that the user pinned."""
    if shape.needs.site is None or shape.needs.site == place.location.site:
        return None
    return No("other-site", f"asked to run on {shape.needs.site} only", True, (Wake.STATUS,))


def tags(shape: Shape, place: Place, view: View) -> No | None:
    """Every tag asked for must be there."""
    missing = [tag for tag in shape.needs.tags if tag not in place.location.tags]
    if not missing:
        return None
    have = ", ".join(place.location.tags) or "none"
    return No("tag", f"asks for {', '.join(missing)}; the tags here are {have}", True, (Wake.STATUS,))


def fits(shape: Shape, place: Place, view: View) -> No | None:
    """The place, when empty, must be large enough."""
    capacity = place.location.capacity
    if shape.needs.nodes > 1:
        return No("nodes", f"asks for {shape.needs.nodes} nodes; this is one", True, (Wake.STATUS,))
    if capacity is None:
        return None
    lacking = shape.needs.amounts().lacking(capacity)
    if not lacking:
        return None
    text = "; ".join(f"asks for {show_amount(what, asked)}, has {show_amount(what, has)}" for what, asked, has in lacking)
    return No("too-small", text, True, (Wake.STATUS,))


def status(shape: Shape, place: Place, view: View) -> No | None:
    """The manager must serve, and so must the runner."""
    if view.mode != "serving":
        return No(view.mode, f"the manager is {view.mode}", False, (Wake.STATUS,))
    if place.status != "SERVING":
        return No(place.status.lower(), f"its runner is {place.status}", False, (Wake.STATUS,))
    return None


def until(shape: Shape, place: Place, view: View) -> No | None:
    """A job starts only where its time fits before the allocation ends."""
    end, time_s = place.location.until, shape.needs.time_s
    if end is None:
        return None
    left = int(end - view.wall)
    if left <= 0:
        return No("ended", "its allocation has ended", True, (Wake.CAPACITY,))
    if time_s is not None and time_s > left:
        return No("too-short", f"asks for {format_duration(time_s)}, its allocation ends in {format_duration(left)}", True, (Wake.CAPACITY,))
    return None


def limits(shape: Shape, place: Place, view: View) -> No | None:
    """Named limits must have something left."""
    for name in shape.limits:
        limit = view.limits.get(name)
        if limit is not None and limit.count is not None and limit.used >= limit.count:
            return No("limit", f"limit {name} is full: {limit.used} of {limit.count} in use", False, (Wake.LIMIT,))
    return None


def room(shape: Shape, place: Place, view: View) -> No | None:
    """Enough must be free now, at the place and above it."""
    amounts = shape.needs.amounts()
    if view.ledger.room(place.location.id, amounts) > 0:
        return None
    for location in view.ledger.path(place.location.id):
        if location.capacity is None:
            continue
        lacking = amounts.lacking(view.ledger.free(location.id))
        if lacking:
            text = "; ".join(f"asks for {show_amount(what, asked)}, {show_amount(what, max(free, 0))} free now" for what, asked, free in lacking)
            return No("busy", text, False, (Wake.CAPACITY,))
    return No("busy", "all in use", False, (Wake.CAPACITY,))


BUILT_IN: dict[str, Filter] = {
    "site": Filter("site", site, True),
    "tags": Filter("tags", tags, True),
    "fits": Filter("fits", fits, True),
    "status": Filter("status", status, False),
    "until": Filter("until", until, False),
    "limits": Filter("limits", limits, False),
    "room": Filter("room", room, False),
}
