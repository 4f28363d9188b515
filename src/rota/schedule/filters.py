"""Filters: each may say no to a shape at a place, and then says why, with the numbers.

Cheap and lasting reasons come first, because the first no is the one that people read. Answers are kept from pass to
pass, so a filter may look only at the shape, the place with its path in the ledger, the limits that the shape names,
and the manager's mode; one that reads the clock says how long its answer stands.
"""

from collections.abc import Callable
from functools import lru_cache
from math import inf
from typing import NamedTuple

from msgspec import Struct

from rota.model.amounts import format_duration
from rota.model.needs import Amounts, show_amount
from rota.model.shape import Shape
from rota.model.verdict import Wake
from rota.schedule.limits import blocked
from rota.schedule.view import NODE, Place, View

__all__ = ["BUILT_IN", "Answer", "Filter", "No"]


class No(Struct, frozen=True, gc=False):
    """A filter's no to a shape at a place, with its reason."""

    code: str
    detail: str
    lasting: bool
    wake_on: tuple[str, ...]
    stands: float = inf
    """Wall-clock time up to which the answer stands, words included, if nothing but the clock changes."""


Answer = No | float | None
"""A filter's answer. None: yes. A number: yes, up to that wall-clock time. Or a No."""
Check = Callable[[Shape, Place, View], Answer]
Bind = Callable[[Shape, View], Callable[[Place], Answer] | None]


class Filter(NamedTuple):
    """A named check of a shape at a place."""

    name: str
    check: Check
    levels: tuple[str, ...] = (NODE,)
    """The levels at which it is asked."""
    reads: tuple[str, ...] = ()
    """The facts that it looks at: it is asked again once a key of them changes that it has looked up."""
    static: bool = False
    """Whether it looks only at the shape, its facts, and what the places of a class share: asked once per class."""
    bind: Bind | None = None
    """Makes a check of one shape for many places (or None: yes, everywhere), if the filter is asked about most pairs.

    What it makes serves until the limits or the mode change, or the pass is over.
    """


def site(shape: Shape, place: Place, view: View) -> Answer:
    """The site must be the one that the job names, and the allocation one with the same options."""
    if shape.needs.site is not None and shape.needs.site != place.location.site:
        return No("other-site", f"asked to run on {shape.needs.site} only", True, (Wake.STATUS,))
    options = place.location.options
    if options is None or options == shape.needs.options:
        return None
    asked, has = (" ".join(map(" ".join, pairs)) or "none" for pairs in (shape.needs.options, options))
    return No("options", f"asks for options {asked}; this allocation has {has}", True, (Wake.CAPACITY,))


def tags(shape: Shape, place: Place, view: View) -> Answer:
    """Every tag asked for must be there."""
    missing = [tag for tag in shape.needs.tags if tag not in place.location.tags]
    if not missing:
        return None
    have = ", ".join(place.location.tags) or "none"
    return No("tag", f"asks for {', '.join(missing)}; the tags here are {have}", True, (Wake.STATUS,))


def fits(shape: Shape, place: Place, view: View) -> Answer:
    """The place, when empty, must be large enough."""
    capacity = place.location.capacity
    if shape.needs.nodes > 1:
        return No("nodes", f"asks for {shape.needs.nodes} nodes; this is one", True, (Wake.STATUS,))
    if capacity is None:
        return None
    lacking = shape.needs.amounts().lacking(capacity)
    if not lacking:
        return None
    parts = [f"asks for {show_amount(what, asked)}, has {show_amount(what, has)}" for what, asked, has in lacking]
    return No("too-small", "; ".join(parts), True, (Wake.STATUS,))


def status(shape: Shape, place: Place, view: View) -> Answer:
    """The manager must serve, and so must the runner."""
    return bind_status(shape, view)(place)


def bind_status(shape: Shape, view: View) -> Callable[[Place], Answer]:
    """The check of `status`, which is the same for every shape."""
    if view.mode != "serving":
        closed = No(view.mode, f"the manager is {view.mode}", False, (Wake.STATUS,))
        return lambda place: closed

    def check(place: Place) -> Answer:
        if place.status == "SERVING":
            return None
        return No(place.status.lower(), f"its runner is {place.status}", False, (Wake.STATUS,))

    return check


def until(shape: Shape, place: Place, view: View) -> Answer:
    """A job starts only where its time fits before the allocation ends."""
    return bind_until(shape, view)(place)


def bind_until(shape: Shape, view: View) -> Callable[[Place], Answer]:
    """The check of `until` for a shape, with all that does not differ from place to place worked out."""
    wall, asked_s, job_times, longest = view.wall, shape.needs.time_s, view.job_times, view.longest
    wake_on, queue = (Wake.CAPACITY,), shape.needs.queue

    def check(place: Place) -> Answer:
        end = place.location.until
        if end is None:
            return None
        left = int(end - wall)
        time_s = asked_s if asked_s is not None else job_times.get(place.location.site)
        if left <= 0:
            return No("ended", "its allocation has ended", True, wake_on)
        # No allocation is longer than the longest: its runner has used some of it, and the rest must do.
        must_s = time_s or 1
        must_s = min(must_s, longest.get((place.location.site, queue), must_s))
        if must_s <= left:
            return end - must_s - _LEEWAY_S
        assert time_s is not None  # else a second, which is left, would do
        # Nobody needs the seconds of an hour, and without them the words stand for a minute.
        shown = left if left < 120 else left // 60 * 60
        what = "asks for" if asked_s is not None else "says no time, so it is taken to need"
        words = f"{what} {_duration(time_s)}, its allocation ends in {_duration(shown)}"
        return No("too-short", words, True, wake_on, end - shown - _LEEWAY_S)

    return check


def limits(shape: Shape, place: Place, view: View) -> Answer:
    """Named limits must have something left."""
    return of_limits(shape, view)


def of_limits(shape: Shape, view: View) -> No | None:
    """The answer of the limits to a shape, which is the same everywhere."""
    no = blocked(shape, view.limits) if shape.limits else None
    return None if no is None else No(no[0], no[1], False, (no[2],))


def bind_limits(shape: Shape, view: View) -> Callable[[Place], Answer] | None:
    """The check of `limits` for a shape; None: they let it start, everywhere."""
    no = of_limits(shape, view)
    return None if no is None else lambda place: no


def room(shape: Shape, place: Place, view: View) -> Answer:
    """Enough must be free now, at the place and above it."""
    return bind_room(shape, view)(place)


def bind_room(shape: Shape, view: View) -> Callable[[Place], Answer]:
    """The check of `room` for a shape, with all that does not differ from place to place worked out."""
    ledger, amounts = view.ledger, shape.needs.amounts()
    cores, memory, disk, gpus = amounts.cores, amounts.memory, amounts.disk, amounts.gpus
    asks = {what: f"asks for {show_amount(what, asked)}, " for what, asked, _ in amounts.lacking(Amounts())}
    wake_on = (Wake.CAPACITY,)

    def check(place: Place) -> Answer:
        free = ledger.shortage(place.location.id, amounts)
        if free is None:
            return None
        parts = []
        if 0 < cores > free.cores:
            parts.append(asks["cores"] + _free("cores", free.cores))
        if 0 < memory > free.memory:
            parts.append(asks["memory"] + _free("memory", free.memory))
        if 0 < disk > free.disk:
            parts.append(asks["disk"] + _free("disk", free.disk))
        if 0 < gpus > free.gpus:
            parts.append(asks["gpus"] + _free("gpus", free.gpus))
        if amounts.named:
            have = dict(free.named)
            parts += [
                asks[name] + _free(name, have.get(name, 0))
                for name, count in amounts.named
                if 0 < count > have.get(name, 0)
            ]
        return No("busy", "; ".join(parts), False, wake_on)

    return check


_LEEWAY_S = 0.001
"""An answer is given up this much before the clock would change it, whatever is rounded."""


@lru_cache(4096)
def _free(what: str, free: int) -> str:
    return f"{show_amount(what, max(free, 0))} free now"


_duration = lru_cache(4096)(format_duration)


BUILT_IN: dict[str, Filter] = {
    "site": Filter("site", site, static=True),
    "tags": Filter("tags", tags, static=True),
    "fits": Filter("fits", fits, static=True),
    "status": Filter("status", status, bind=bind_status),
    "until": Filter("until", until, bind=bind_until),
    "limits": Filter("limits", limits, bind=bind_limits),
    "room": Filter("room", room, bind=bind_room),
}
"""Name → filter; those of others are entered here too."""
