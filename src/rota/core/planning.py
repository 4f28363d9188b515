"""The scheduling pass: leases for the runners that are there, allocations where more is wanted."""

from collections.abc import Iterator

from rota.core.evolve import evolve
from rota.core.learning import refresh
from rota.core.slots import shape_of, slot_cores, slot_name
from rota.core.state import RunnerState, ShapeState, State
from rota.core.stimuli import At
from rota.model import events as ev
from rota.model.verdict import Verdict, Wake
from rota.schedule import demand
from rota.schedule.pipeline import Parked, place
from rota.schedule.policy import DEFAULT
from rota.schedule.view import Place, View, Want

__all__ = ["plan"]


def plan(state: State, at: At) -> list[ev.Event]:
    """Decide and apply everything that can start now. Returns the events, already applied."""
    state.replan = False
    wants = _wants(state)
    events: list[ev.Event] = []
    if not wants:
        return events
    view = View(at.wall, at.mono, state.mode, _places(state), state.ledger, state.limits)
    parked: dict[int, Parked] = {}
    blocked = False
    for item in place(view, wants, DEFAULT, state.memo):
        shape = state.shapes[item.want.shape_id]
        if isinstance(item, Parked):
            parked[shape.id] = item
            continue
        runner = state.runners[item.place.runner]
        slot = slot_name(shape.id, item.cores, item.want.shape.needs)
        events.extend(_lease(state, runner, shape, slot, item.count, item.count))
    for want in wants:
        shape = state.shapes[want.shape_id]
        if not blocked and shape.ready and state.mode == "serving":
            events.extend(_ahead(state, shape))
        if shape.ready and shape.id in parked and _waits_for_room(parked[shape.id].verdicts):
            blocked = True  # nothing behind it may queue ahead in slots that it could use
        shape.verdicts = parked[shape.id].verdicts if shape.id in parked else []
    if state.mode == "serving":
        events.extend(_demand(state, [want for want in wants if state.shapes[want.shape_id].ready], at))
    for want in wants:
        shape = state.shapes[want.shape_id]
        if shape.ready and not shape.verdicts:
            shape.verdicts = _site_verdicts(state, at)
    return events


def _wants(state: State) -> list[Want]:
    wants = []
    for shape in state.shapes:
        if shape.ready > 0:
            head = shape.head(state.batches)
            assert head is not None, f"shape {shape.id} has {shape.ready} ready jobs and no head"
            batch, template, _ = head
            refresh(state, shape)
            wants.append(
                Want(shape.id, shape.asked, shape.ready, state.batches[batch].kinds[template].priority, batch)
            )
    wants.sort(key=lambda want: (-want.priority, want.first, want.shape_id))
    return wants


def _places(state: State) -> list[Place]:
    places = []
    for runner in state.runners.values():
        if runner.state in ("SERVING", "DRAINING", "MISSING"):
            location = state.ledger.locations[runner.location]
            key = (location.site, location.tags, location.capacity)
            kind = state.place_kinds.setdefault(key, len(state.place_kinds))
            places.append(Place(location, runner.id, _status(runner), kind))
    return places


def _status(runner: RunnerState) -> str:
    """What the filter on status sees: only SERVING takes jobs."""
    if not runner.connected:
        return "not connected"
    return "ending attempts that were given up" if runner.given_up else runner.state


def _lease(
    state: State, runner: RunnerState, shape: ShapeState, slot: str, slots: int, jobs: int
) -> Iterator[ev.Event]:
    """Lease so many jobs and add so many slots for them."""
    while jobs > 0:
        head = shape.head(state.batches)
        if head is None:
            return
        number, _, queue = head
        spans = queue.take(jobs, state.batches[number].states)
        if not spans:
            raise AssertionError(f"batch {number} says {queue.count} are ready and has none")
        taken = sum(spans[1::2]) - sum(spans[::2])
        more = min(slots, taken)
        event = ev.Leased(number, spans, runner.id, slot, runner.slots.get(slot, 0) + more)
        evolve(state, event)
        yield event
        slots -= more
        jobs -= taken


def _ahead(state: State, shape: ShapeState) -> Iterator[ev.Event]:
    """Leases beyond the slots, for short jobs, so that a runner never waits for us."""
    settings = state.settings
    mean = shape.mean_s
    if mean is None or mean > settings.ahead_below_s:
        return
    for runner in list(state.runners.values()):
        if _status(runner) != "SERVING":
            continue
        for slot, slots in list(runner.slots.items()):
            if shape_of(slot) != shape.id or slot != slot_name(shape.id, slot_cores(slot), shape.asked.needs):
                continue  # for another shape, or of a size that is not asked for any more
            depth = min(settings.lease_most, int(slots * settings.ahead_s / mean) + 1)
            missing = slots + depth - runner.held.get(slot, 0)
            if missing * 2 >= depth and shape.ready:
                yield from _lease(state, runner, shape, slot, 0, min(missing, shape.ready, settings.lease_most))


def _waits_for_room(verdicts: list[Verdict]) -> bool:
    return any(verdict.code == "busy" for verdict in verdicts)


def _demand(state: State, wants: list[Want], at: At) -> Iterator[ev.Event]:
    for name in demand.wanted(state.site_views(), wants, at.mono):
        site = state.sites[name]
        tag = f"{int(state.random() * 2**48):012x}"
        event = ev.AllocationPlanned(f"a{state.next_allocation}", name, tag, site.node, at.wall)
        evolve(state, event)
        yield event
        submit = ev.AllocationMoved(event.id, "submit")
        evolve(state, submit)
        yield submit


def _site_verdicts(state: State, at: At) -> list[Verdict]:
    """There is no node yet: say what each site is doing about it."""
    out = []
    live = {
        allocation.site: allocation for allocation in state.allocations.values() if allocation.state.endswith("ING")
    }
    for site in state.sites.values():
        if site.why is not None and site.closed_until > at.mono:
            out.append(
                Verdict(
                    site.name,
                    "site",
                    "failing",
                    f"{site.why}; next try in {site.closed_until - at.mono:.0f} s",
                    False,
                    (Wake.TIME,),
                )
            )
        elif site.name in live:
            allocation = live[site.name]
            out.append(
                Verdict(
                    site.name,
                    "site",
                    "starting",
                    f"allocation {allocation.id} is {allocation.state}",
                    False,
                    (Wake.CAPACITY,),
                )
            )
        elif state.mode != "serving":
            out.append(Verdict(site.name, "status", state.mode, f"the manager is {state.mode}", False, (Wake.STATUS,)))
    return out
