"""What the pass watches: places and waiting shapes, brought up to date with what has changed since the last one."""

from collections.abc import Iterator

from msgspec import Struct

from rota.core.plan.asked import asked_now
from rota.core.plan.policies import out_of_order
from rota.core.soft import Changes, Planning, Times
from rota.core.state import RunnerState, ShapeState, State
from rota.model.shape import Shape
from rota.schedule import filters, scorers
from rota.schedule.filters import No
from rota.schedule.gangs import KEPT
from rota.schedule.limits import fits_names
from rota.schedule.places import Places, Spot
from rota.schedule.policy import DEFAULT, Policy
from rota.schedule.tree import Key
from rota.schedule.view import NODE, Place, View, Want
from rota.schedule.waiting import Entry, Forest

__all__ = [
    "News",
    "enter",
    "groups_for",
    "look",
    "place_of",
    "read_by_nodes",
    "runner_status",
    "status_of",
    "times",
    "want_of",
]

MOST_SLOTS = 64
"""So many kinds of slots have changed, at the most, before a pass puts their leases ahead in order."""


class News(Struct):
    """What may let a shape start that could not in the last pass."""

    spots: list[Spot]
    """Places where something has changed."""
    woken: list[Key]
    """Shapes, in order, that may find a place anywhere: they are new, ask for something else, or their limit opened."""
    forests: list[Forest]
    """Those whose limits opened: their shapes may find a place anywhere."""
    alone: ShapeState | None = None
    """The only shape with ready jobs, while nobody waits: it is not among those that wait yet."""


def look(state: State, view: View) -> News:
    """Bring the places and the waiting shapes up to date; `view` gets the places."""
    planning = state.soft.planning
    changed = planning.changed
    if view.wall < planning.wall:
        changed.everything = True  # the end of an allocation is further away again
    planning.wall = view.wall
    if changed.groups:
        _learn(state)
    news = None if changed.everything or planning.places is None else _update(state, view, planning.places)
    if news is None:
        news = _anew(state, view)
    assert planning.places is not None
    view.places = planning.places.view()
    planning.touched |= changed.limits
    if changed.runners or news.spots:
        planning.stale.update(changed.runners, [spot.place.runner for spot in news.spots])
    if changed.groups:
        planning.soonest = None  # what runs is taken to need other times
    if planning.unasked is not None:
        planning.unasked |= changed.shapes
        if changed.groups:
            planning.unasked.update(*[planning.waiting.learners.get(group, ()) for group in changed.groups])
    _forget(changed)
    return news


def _learn(state: State) -> None:
    """Keep of the groups that have learned those from which something else is asked for than before."""
    planning = state.soft.planning
    for name in sorted(planning.changed.groups):
        found = state.groups[name].found()
        if planning.found.get(name) == found:
            planning.changed.groups.discard(name)
        planning.found[name] = found


def _forget(changed: Changes) -> None:
    changed.everything = False
    changed.shapes.clear()
    changed.runners.clear()
    changed.limits.clear()
    changed.groups.clear()


def _anew(state: State, view: View) -> News:
    """Put all places and shapes into new trees."""
    planning = state.soft.planning
    planning.places = Places(DEFAULT.scorers)
    planning.waiting = type(planning.waiting)()
    for runner in state.runners.values():
        place = place_of(state, runner)
        if place is not None:
            planning.places.put(place, view)
    state.ledger.changed.clear()
    planning.again.clear()
    planning.unasked = planning.soonest = None
    entries = [_put(state, shape, view) for shape in state.shapes if shape.ready > 0]
    planning.enough.clear()
    for runner in state.runners.values():
        for slot in runner.slots:
            planning.short.setdefault(slot.shape, {})[runner.id, slot] = None
    return News([], sorted([entry.key for entry in entries if entry is not None]), [])


def _update(state: State, view: View, places: Places) -> News | None:
    """Bring the trees up to date; None: all of it is to be worked out anew."""
    planning, changed, waiting = state.soft.planning, state.soft.planning.changed, state.soft.planning.waiting
    spots: dict[str, Spot] = {}
    kept_for_gangs = _kept_for_gangs(state)
    for name in changed.runners | dict.fromkeys(kept_for_gangs) if kept_for_gangs else changed.runners:
        runner = state.runners.get(name)
        place = None if runner is None else place_of(state, runner)
        if runner is None:
            places.forget(name)
        elif place is None:
            places.drop(name)
        elif not places.put(place, view):
            return None  # which shapes may use places of a new group is not known
        else:
            spots[name] = places.spots[name]
    once: set[str] = set()
    if state.ledger.changed:
        locations = [state.ledger.locations[name] for name in state.ledger.changed if name in state.ledger.locations]
        once.update([name for location in locations if location.shared_only for name in location.shared])
    for spot in places.refresh(state.ledger.changed, view) if state.ledger.changed else ():
        location = state.ledger.locations[spot.place.location.id]
        if location is not spot.place.location:
            place = place_of(state, state.runners[spot.place.runner])
            assert place is not None
            if not places.put(place, view):
                return None
            spot = places.spots[place.runner]
        spots[spot.place.runner] = spot
    kept = planning.reserved
    if kept is not None and kept.runner in places.spots:
        spots[kept.runner] = places.spots[kept.runner]
    if (alone := _alone(state)) is not None:
        return News([spot for spot in spots.values() if spot.key is not None], [], [], alone)
    woken: dict[Key, None] = {}
    for number in _concerned(planning):
        shape, entry = state.shapes[number], waiting.entries.get(number)
        if shape.ready <= 0:
            waiting.drop(number)
            continue
        was = None if entry is None else entry.want.shape
        new = _put(state, shape, view, entry)
        if new is None:
            continue
        back = entry is not None and entry.out and not new.out
        if entry is None or back or new.want.shape != was or number in planning.again:
            woken[new.key] = None
    planning.again.clear()
    for slot in changed.slots:
        entry = waiting.entries.get(slot.shape)
        for name in () if entry is None else entry.forest.limits:
            assert entry is not None
            waiting.held_less(name, entry.key, state.shapes[slot.shape].slots)
    forests: list[Forest] = []
    if changed.limits or state.timed:
        _reopen(state, view, woken)
        named = {id(each): each for each in waiting.naming({*changed.limits, *state.timed})}
        forests = [forest for forest in named.values() if forest.closed and forest.open(view.limits)]
    forests += [forest for forest in waiting.asking(once) if forest not in forests] if once else []
    kept_changed = any(spot.place.status == KEPT for spot in spots.values())
    for number in waiting.gangs if kept_changed or forests else ():  # places that are kept are in no tree
        entry = waiting.entries[number]
        if kept_changed or entry.forest in forests:
            woken[entry.key] = None
    return News([spot for spot in spots.values() if spot.key is not None], sorted(woken), forests)


def _alone(state: State) -> ShapeState | None:
    """The shape with ready jobs, if it is the only one and one place may well be all that it needs."""
    planning = state.soft.planning
    changed = planning.changed
    if planning.waiting.entries or planning.again or state.mode != "serving":
        return None
    if planning.reserved is not None or len(changed.slots) > MOST_SLOTS:
        return None
    found = None
    for number in changed.shapes:
        shape = state.shapes[number]
        if shape.ready > 0:
            if found is not None:
                return None
            found = shape
    if found is None or found.shape.limits or found.shape.needs.nodes > 1 or _is_odd(state, found.shape):
        return None
    return found


def enter(state: State, view: View, shape: ShapeState) -> News:
    """Put a shape that is alone among those that wait after all."""
    entry = _put(state, shape, view)
    return News([], [] if entry is None else [entry.key], [])


def _kept_for_gangs(state: State) -> set[str]:
    """Runners whose nodes are kept for jobs of several nodes, or are so no more, as shapes have ready jobs or none."""
    changed = {number for number in state.soft.planning.changed.shapes if state.shapes[number].shape.needs.nodes > 1}
    if not changed:
        return set()
    mine = [each.id for each in state.allocations.values() if each.nodes > 1 and each.shape in changed]
    return {runner for name in mine for runner in state.census.of.get(name, ())}


def _concerned(planning: Planning) -> Iterator[int]:
    """Shapes that are to be looked at."""
    yield from planning.changed.shapes | planning.again
    for group in planning.changed.groups:
        yield from list(planning.waiting.learners.get(group, ()))


def _reopen(state: State, view: View, woken: dict[Key, None]) -> None:
    """Put shapes back whose batch's own limit is not full any more."""
    waiting = state.soft.planning.waiting
    for name in state.soft.planning.changed.limits:
        if name.startswith("#"):
            for number in list(waiting.members.get(name, ())):
                entry = waiting.entries[number]
                if entry.out and fits_names(entry.own, view.limits, 1):
                    waiting.reopen(entry)
                    woken[entry.key] = None


def _put(state: State, shape: ShapeState, view: View, known: Entry | None = None) -> Entry | None:
    """Put a shape where it belongs among those that wait, if it is not there already; None: its policy is no use."""
    planning = state.soft.planning
    want = want_of(state, shape)
    if out_of_order(state, shape.shape.policy) is not None:
        planning.waiting.drop(shape.id)
        return None
    if _is_odd(state, shape.shape):
        planning.waiting.odd.add(shape.id)
    key = (-want.priority, want.first, shape.id)
    if known is not None and known.key == key and known.want.shape == want.shape and known.want.since == want.since:
        known.want = want
        return known
    assert planning.places is not None
    groups = groups_for(planning.places, want, view)
    examples = [planning.places.examples[group].location for group in groups]
    odd = shape.id in planning.waiting.odd
    entry = planning.waiting.put(want, key, groups, view, {(each.site, each.queue) for each in examples})
    if odd:
        planning.waiting.odd.add(shape.id)
    if known is not None and known.out:
        planning.waiting.shut(entry, view.limits)
    return entry


def want_of(state: State, shape: ShapeState) -> Want:
    """A shape with its ready jobs, of which there must be some."""
    head = shape.head(state.batches)
    assert head is not None, f"shape {shape.id} has {shape.ready} ready jobs and no head"
    number, template, _ = head
    memo = state.soft.planning.shapes[shape.id] = asked_now(state, shape)
    batch = state.batches[number]
    priority, name = batch.templates[template].priority, batch.spec.name or ""
    return Want(shape.id, memo.asked, shape.ready, priority, number, shape.slots, None, batch.by, name, batch.submitted)


def groups_for(places: Places, want: Want, view: View) -> tuple[int, ...]:
    """The groups of places that a shape may use: only their sizes, and what is in use, can be against it."""
    needs = want.shape.needs
    known = places.suited.get((needs.site, needs.tags, needs.options))
    if known is None:
        known = places.suited[needs.site, needs.tags, needs.options] = tuple(
            group for group, example in enumerate(places.examples) if not _unsuited(want, example, view)
        )
    return known


def _unsuited(want: Want, place: Place, view: View) -> bool:
    checks = [filters.BUILT_IN[name].check for name in ("site", "tags")]
    return any(isinstance(check(want.shape, place, view), No) for check in checks)


def place_of(state: State, runner: RunnerState) -> Place | None:
    """A runner's node as a place; None: it is none, or no more."""
    if runner.state not in ("SERVING", "DRAINING", "MISSING") or runner.direct:
        return None
    return Place(state.ledger.locations[runner.location], runner.id, status_of(state, runner), 0, gangs=runner.gangs)


def status_of(state: State, runner: RunnerState) -> str:
    """The status of a runner's node as the filter sees it: only SERVING takes jobs; KEPT those of several nodes."""
    status = runner_status(state, runner)
    allocation = state.allocations.get(runner.allocation or "")
    if status == "SERVING" and allocation is not None and allocation.nodes > 1 and allocation.shape is not None:
        return KEPT if state.shapes[allocation.shape].ready else status
    return status


def runner_status(state: State, runner: RunnerState) -> str:
    """The status of a runner: only SERVING takes jobs."""
    contact = state.soft.contacts[runner.id]
    if not contact.connected:
        return "not connected"
    if contact.given_up or contact.strange:
        return "ending attempts that were given up"
    weather, host = state.soft.weather, (runner.site, runner.host)
    if runner.state == "SERVING" and host in weather.bad_hosts:
        return "AVOIDED"
    record = weather.hosts.get(host)
    if runner.state == "SERVING" and record is not None and record.suspected is not None and record.trial != runner.id:
        return "SUSPECTED"
    return runner.state


def times(state: State) -> Times:
    """By site, the time of a job of which nothing is known; by site and queue, the longest allocation and what a job
    can count on; by site, its own queue.
    """
    jobs, longest, own = {}, {}, {}
    for name, facts in state.soft.sites.items():
        if facts.job_s is not None:
            jobs[name] = facts.job_s
        times = {"": facts.time_most_s}
        for queue in facts.queues:
            times[queue.name] = queue.time_most_s
            if queue.default:
                own[name], times[""] = queue.name, queue.time_most_s
        for queue_name, most_s in times.items():
            if most_s is not None:
                longest[name, queue_name] = (most_s, most_s - min(facts.spare_s, most_s // 2))
    return jobs, longest, own


def read_by_nodes(state: State) -> set[str]:
    """The facts that filters of nodes look at, in any policy."""
    names = {name for policy in state.settings.policies.values() for name in policy.filters}
    return {fact for name in names if NODE in (one := filters.BUILT_IN[name]).levels for fact in one.reads}


def _is_odd(state: State, shape: Shape) -> bool:
    """Whether forests do not know how to place a shape."""
    needs = shape.needs
    if needs.together and (needs.nodes_most or needs.span or needs.whole or needs.variants):
        return True
    return not _is_plain(state.settings.policies.get(shape.policy, DEFAULT))


def _is_plain(policy: Policy) -> bool:
    """Whether forests can follow a policy: at nodes it is like the default one, but for its name."""
    return policy is DEFAULT or policy == DEFAULT or (_at_nodes(policy) == _at_nodes(DEFAULT) and not policy.relax)


def _at_nodes(policy: Policy) -> tuple[object, ...]:
    asked = [name for name in policy.filters if NODE in filters.BUILT_IN[name].levels]
    scored = [row for row in policy.scorers.items() if NODE in scorers.BUILT_IN[row[0]].levels]
    return (policy.order, policy.pick, asked, scored, policy.keep_after_s)
