"""Filters: each may say no to a shape at a place (a node, or a queue), and then says why, with the numbers.

Cheap and lasting reasons come first, because the first no is the one that people read. Answers are kept from pass to
pass, so a filter may look only at the shape, the place with its path in the ledger, the limits that the shape names,
the manager's mode, and the facts that it says it reads; one that reads the clock says how long its answer stands.
"""

import re
from collections.abc import Callable
from functools import lru_cache
from math import inf
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from rota.model.amounts import format_duration
from rota.model.needs import Amounts, Needs, show_amount
from rota.model.shape import Shape
from rota.model.site import QueueFacts, SiteFacts
from rota.model.verdict import Wake
from rota.schedule.data import held_elsewhere
from rota.schedule.demand import allocation_time
from rota.schedule.layouts import Room, lay_out
from rota.schedule.limits import blocked
from rota.schedule.servers import lacking_words, too_small
from rota.schedule.view import NODE, QUEUE, Place, View

__all__ = ["BUILT_IN", "Answer", "Filter", "No", "longest_s"]

BOTH = (NODE, QUEUE)
MANY = 1 << 30
PLAIN = re.compile(r"[\w.+-]+")


class No(Struct, frozen=True, gc=False):
    """A filter's no to a shape at a place, with its reason."""

    code: str
    detail: str
    lasting: bool
    wake_on: tuple[str, ...]
    stands: float = inf
    """Wall-clock time up to which the answer stands, words included, if nothing but the clock changes."""
    part: str = ""
    """Which of its checks says so, if the filter is made of several."""


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
    """Site and queue must be those that the job names, and the allocation one with the same options."""
    if shape.needs.site is not None and shape.needs.site != place.location.site:
        return No("other-site", f"asked to run on {shape.needs.site} only", True, (Wake.STATUS,))
    queue = shape.needs.queue
    if place.site is not None:
        return _unlisted(queue, place.site) if place.queue is None else _queue(queue, place.queue)
    if queue is not None and (here := place.location.queue or view.own_queues.get(place.location.site, queue)) != queue:
        return No("other-queue", f"asked to run in {queue} only, this is of {here}", True, (Wake.CAPACITY,))
    options = place.location.options
    if options is None or options == shape.needs.options:
        return None
    asked, has = (" ".join(map(" ".join, pairs)) or "none" for pairs in (shape.needs.options, options))
    return No("options", f"asks for options {asked}; this allocation has {has}", True, (Wake.CAPACITY,))


def _unlisted(asked: str | None, site: SiteFacts) -> Answer:
    """A queue that the job names must be one that its site has, if the site has said which these are.

    What is no plain name (several, a pattern, one host of a queue) the batch system may understand.
    """
    if asked is None:
        return None
    names = [queue.name for queue in site.queues]
    if not names or asked in names or not PLAIN.fullmatch(asked):
        return None
    return No("no-queue", f"has no queue {asked}, only {', '.join(sorted(names))}", True, (Wake.STATUS,))


def _queue(asked: str | None, queue: QueueFacts) -> Answer:
    """A queue must be the one that the job names; if it names none, one that may be used without being named."""
    if asked is not None:
        if asked == queue.name and queue.denied:
            return No("denied", "is only for users among whom you are not", True, (Wake.STATUS,))
        if asked == queue.name:
            return None
        return No("other-queue", f"asked to run in {asked} only", True, (Wake.STATUS,))
    if queue.auto:
        return None
    if not queue.up:
        return No("down", queue.why or "takes no allocations now", False, (Wake.STATUS,))
    return No("by-name", f"is used only if it is named: --partition {queue.name}", True, (Wake.STATUS,))


def tags(shape: Shape, place: Place, view: View) -> Answer:
    """Every tag asked for must be there."""
    if not shape.needs.tags:
        return None
    missing = [tag for tag in shape.needs.tags if tag not in place.location.tags]
    if not missing:
        return None
    if place.site is not None:
        return No("tag", f"has no tag {', '.join(missing)}", True, (Wake.STATUS,))
    have = ", ".join(place.location.tags) or "none"
    return No("tag", f"asks for {', '.join(missing)}; the tags here are {have}", True, (Wake.STATUS,))


def fits(shape: Shape, place: Place, view: View) -> Answer:
    """The place, when empty, must be large enough."""
    if place.site is not None:
        return _fits_any(shape.needs, place.site, place.queue)
    capacity = place.location.capacity
    if shape.needs.together:  # placed by `rota.schedule.gangs`
        words = f"{shape.needs.nodes} nodes" if shape.needs.nodes > 1 else shape.needs.words()
        return No("nodes", f"asks for {words}; this is one", True, (Wake.STATUS,))
    if capacity is None:
        return None
    part = view.ledger.part(place.location.id, shape.needs.amounts())
    if part.fits(capacity):
        return None
    lacking = part.lacking(capacity)
    parts = [f"asks for {show_amount(what, count)}, has {show_amount(what, has)}" for what, count, has in lacking]
    return No("too-small", "; ".join(parts), True, (Wake.STATUS,))


def _fits_any(needs: Needs, site: SiteFacts, queue: QueueFacts | None) -> Answer:
    """One of the alternatives must fit."""
    nos = []
    for each in needs.alternatives():
        no = _fits_queue(each, site, queue)
        if no is None:
            return None
        nos.append(no)
    if site.cloud and (largest := too_small(needs, site)) is not None:
        return No("no-flavor", largest, True, (Wake.STATUS,))
    words = "; or ".join(no.detail for no in nos)
    return No("too-small", words, True, (Wake.STATUS,))


def _fits_queue(needs: Needs, site: SiteFacts, queue: QueueFacts | None) -> No | None:
    """The largest node must be large enough, there must be enough nodes, and enough of what a site has once."""
    node, parts = site.node if queue is None else queue.node, []
    if site.given and needs.span:
        each = replace(needs, cores=1000, cores_most=0, span="").amounts()
        if lay_out(needs, [Room(size.cores, size.cores) for size in site.given if each.fits(size)]) is None:
            total = sum(size.cores // 1000 * 1000 for size in site.given)
            parts.append(f"has {show_amount('cores', total)}, {_asked_for('cores', needs.cores)}")
        needs = replace(needs, cores=1000, cores_most=0, span="")
    if site.given and needs.nodes > 1:
        large = sum(needs.amounts().fits(each) for each in site.given)
        if large < needs.nodes <= len(site.given):
            has = "1 node that is" if large == 1 else f"{large} nodes that are"
            parts.append(f"has {has} large enough, {needs.nodes} are asked for")
    if needs.nodes > 1:
        most = site.nodes_most if site.mode != "direct" else MANY
        if queue is not None:
            most = min([most, *(each for each in (queue.nodes, queue.nodes_most) if each is not None)])
        if needs.nodes > most:
            gives = "1 node" if most == 1 else f"{most} nodes at most"
            parts.append(f"gives {gives}, {needs.nodes} are asked for")
    amounts = needs.amounts()
    if not parts and not needs.named and amounts.fits(node):
        return None
    lacking, once = amounts.lacking(node), dict(site.shared)
    if once and needs.named:
        lacking = [row for row in lacking if row[0] not in once]
        times = needs.nodes if site.mode != "direct" else 1
        asks = [(name, times * count, once[name]) for name, count in needs.named if name in once]
        lacking += [row for row in asks if row[1] > row[2]]
    parts += [f"has {show_amount(what, has)}, {_asked_for(what, asked)}" for what, asked, has in lacking]
    return No("too-small", "; ".join(parts), True, (Wake.STATUS,)) if parts else None


def _asked_for(what: str, amount: int) -> str:
    """`2 gpus are asked for`, `6G memory is asked for`."""
    words = show_amount(what, amount)
    return f"{words} {'is' if what in ('memory', 'disk') or words.startswith('1 ') else 'are'} asked for"


def time(shape: Shape, place: Place, view: View) -> Answer:
    """An allocation of a queue must be able to last as long as the job."""
    most, asked = longest_s(shape.needs, place), shape.needs.time_s or 0
    if most is None or asked <= most:
        return None
    words = f"gives {_duration(most)} at most, {_duration(asked)} are asked for"
    return No("too-short", words, True, (Wake.STATUS,))


def longest_s(needs: Needs, place: Place) -> int | None:
    """The longest allocation that a queue gives, in seconds; None: no end is known, as of a queue only jobs know of."""
    if place.queue is not None:
        return place.queue.time_most_s
    return place.site.time_most_s if place.site is not None and needs.queue is None else None


def opened(shape: Shape, place: Place, view: View) -> Answer:
    """A site that has just failed is left alone for a while."""
    closed = view.facts["weather"].get(("site", place.location.site))
    if closed is None or closed[0] <= view.mono:
        return None
    left, why = closed[0] - view.mono, closed[1] or "is left alone for a while"
    return No("failing", f"{why}; next try in {left:.0f} s", False, (Wake.TIME,), view.wall + left)


def refused(shape: Shape, place: Place, view: View) -> Answer:
    """A provider that has just refused the shape is not asked for it again at once."""
    no = view.facts["weather"].get(("refused", place.location.site, view.number))
    if no is None or no.until <= view.mono:
        return None
    left = no.until - view.mono
    return No("refused", f"{no.why}; next try in {left:.0f} s", True, (Wake.TIME,), view.wall + left)


def most(shape: Shape, place: Place, view: View) -> Answer:
    """A site has so many allocations at once."""
    if place.site is None:
        return None
    if place.site.cloud and place.queue is not None and (left := view.budgets.get(place.location.site)) is not None:
        time_s = allocation_time(shape.needs, place.site, longest_s(shape.needs, place))
        lacking = lacking_words(place.site, place.queue, left, time_s)
        if lacking is not None:
            return No("quota", lacking[0], lacking[1], (Wake.CAPACITY,))
    elif place.queue is not None and place.queue.most is not None and view.rooms.get(place.location.id, 1) <= 0:
        return No("most", "has its runner already", False, (Wake.CAPACITY,))
    if view.rooms.get(place.location.site, 1) > 0:
        return None
    allowed = place.site.most
    words = (
        f"the site has all the allocations that it may have ({allowed})" if allowed else "the site is asked what it has"
    )
    return No("most", words, False, (Wake.CAPACITY,))


def status(shape: Shape, place: Place, view: View) -> Answer:
    """The manager must serve, and so must the runner or the queue."""
    if view.mode == "serving" and place.status in ("SERVING", "UP"):
        return None
    return bind_status(shape, view)(place)


def bind_status(shape: Shape, view: View) -> Callable[[Place], Answer]:
    """The check of `status`, which is the same for every shape."""
    if view.mode != "serving":
        closed = No(view.mode, f"the manager is {view.mode}", False, (Wake.STATUS,))
        return lambda place: closed

    def check(place: Place) -> Answer:
        if place.status in ("SERVING", "UP"):
            return None
        if place.status == "PAUSED":
            return No("paused", "is paused: [site] paused in config.toml", False, (Wake.STATUS,))
        if place.site is not None:
            why = place.queue.why if place.queue is not None else ""
            return No("down", why or "takes no allocations now", False, (Wake.STATUS,))
        if place.status == "KEPT":
            return No("kept", "is kept for jobs of several nodes, which wait", False, (Wake.CAPACITY,))
        if place.status in _OF_HOSTS:
            return No(place.status.lower(), _OF_HOSTS[place.status], False, (Wake.STATUS,))
        code = place.status.partition(",")[0].lower()  # behind it is since when, for people
        return No(code, f"its runner is {place.status}", False, (Wake.STATUS,))

    return check


_OF_HOSTS = {
    "SUSPECTED": "jobs fail there as soon as they start, alike: it gets one at a time, after a pause",
    "AVOIDED": "is avoided for a while: jobs failed there as soon as they started, and do well elsewhere",
}
"""Status of a node whose host is not trusted → the words for it."""


def until(shape: Shape, place: Place, view: View) -> Answer:
    """A job starts only where its time fits before the allocation ends."""
    return bind_until(shape, view)(place)


def bind_until(shape: Shape, view: View) -> Callable[[Place], Answer]:
    """The check of `until` for a shape, with all that does not differ from place to place worked out."""
    wall, asked_s, job_times, longest = view.wall, shape.needs.time_s, view.job_times, view.longest
    wake_on = (Wake.CAPACITY,)

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
        most = longest.get((place.location.site, place.location.queue))
        if most is not None and most[1] < must_s <= most[0]:
            must_s = most[1]
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
        if ledger.takes_one(place.location.id):
            return No("busy", "gets one job at a time: jobs failed there as soon as they started", False, wake_on)
        parts = []
        if 0 < cores > free.cores:
            parts.append(asks["cores"] + _free("cores", free.cores))
        if 0 < memory > free.memory:
            parts.append(asks["memory"] + _free("memory", free.memory))
        if 0 < disk > free.disk:
            parts.append(asks["disk"] + _free("disk", free.disk))
        if 0 < gpus > free.gpus:
            parts.append(asks["gpus"] + _free("gpus", free.gpus))
        if amounts.gpu_share > free.gpu_share and not free.gpus:
            parts.append(asks["gpu_share"] + _free("gpu_share", free.gpu_share))
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


def near(shape: Shape, place: Place, view: View) -> Answer:
    """A job does not go where its files have to be brought to, if a host that has them is about to start."""
    if not shape.inputs or place.site is not None:
        return None
    words = held_elsewhere(shape, place, view)
    return None if words is None else No("elsewhere", words, False, (Wake.STATUS,))


BUILT_IN: dict[str, Filter] = {
    "site": Filter("site", site, BOTH, static=True),
    "tags": Filter("tags", tags, BOTH, static=True),
    "fits": Filter("fits", fits, BOTH, static=True),
    "time": Filter("time", time, (QUEUE,), static=True),
    "status": Filter("status", status, BOTH, bind=bind_status),
    "until": Filter("until", until, bind=bind_until),
    "limits": Filter("limits", limits, BOTH, bind=bind_limits),
    "open": Filter("open", opened, (QUEUE,), ("weather",)),
    "refused": Filter("refused", refused, (QUEUE,), ("weather",)),
    "most": Filter("most", most, (QUEUE,)),
    "near": Filter("near", near, reads=("replicas", "starting")),
    "room": Filter("room", room, bind=bind_room),
}
"""Name → filter; those of others are entered here too."""
