"""React: from applied events to effects."""

from rota.core.decide.runners import standing_orders
from rota.core.effects import Allocate, Effect, Hold, Lease, Order, Welcome
from rota.core.notes import GIVEN_UP
from rota.core.soft import LeasedJob
from rota.core.state import State
from rota.model import events as ev
from rota.model.allocation import Allocation
from rota.model.slot import Slot

__all__ = ["react", "restart_effects"]


def react(state: State, events: list[ev.Event]) -> list[Effect]:
    """The effects to carry out once these events are durable."""
    effects: list[Effect] = []
    leases: dict[str, list[LeasedJob]] = {}
    submissions: dict[str, list[ev.AllocationPlanned]] = {}
    slots: dict[str, dict[Slot, int]] = {}
    for event in events:
        kind = type(event)
        if kind is ev.Leased:
            assert isinstance(event, ev.Leased) and isinstance(event.slot, Slot)
            attempts, number, slot = state.batches[event.batch].attempts, event.batch, event.slot
            if event.parts:  # its root is sent its lease when all have confirmed
                effects.extend(_holds(state, event))
                continue
            jobs = leases.setdefault(event.runner, [])
            for low, high in zip(event.spans[::2], event.spans[1::2], strict=True):
                jobs.extend([(number, pos, attempts[pos], slot) for pos in range(low, high)])
            slots.setdefault(event.runner, {})[slot] = event.slots
        elif kind is ev.Submitted:
            continue
        elif kind is ev.Moved or kind is ev.HoldWanted:
            assert isinstance(event, ev.Moved | ev.HoldWanted)
            effects.extend(_orders(state, event))
        elif isinstance(event, ev.AllocationPlanned):
            if event.submit:
                submissions.setdefault(event.tag, []).append(event)
        elif isinstance(event, ev.RunnerGreeted):
            if not event.direct and event.connect:  # else it was entered only to be turned away
                effects.append(Welcome(event.runner, event.connect, event.session))
                effects.extend(standing_orders(state, state.runners[event.runner]))
        elif isinstance(event, ev.RunnerMoved):
            if event.verb == "drain":
                effects.append(Order(event.runner, state.runners[event.runner].session, "close", [], event.reason))
        elif isinstance(event, ev.AllocationMoved):
            effects.extend(_allocation(state, event))
        elif isinstance(event, ev.Ended):
            if event.counts_as == "loss" and not event.seq:
                effects.extend(_end_given_up(state, event))
            if state.parts:
                effects.extend(_releases(state, event))
        elif isinstance(event, ev.GangBroken):
            effects.extend(_end_broken(state, event))
    for tag, planned in submissions.items():
        first = planned[0]
        effects.append(Allocate("submit", first.id, first.site, tag, tuple(event.id for event in planned)))
    for runner_id, jobs in leases.items():
        runner, contact = state.runners[runner_id], state.soft.contacts[runner_id]
        if not runner.direct:  # there the lease goes with the submission
            number = contact.lease_n + 1
            effects.append(Lease(runner_id, runner.session, number, contact.clock, jobs, slots[runner_id]))
    return effects


def _holds(state: State, event: ev.Leased) -> list[Effect]:
    """Have the parts of a gang held, each by its runner."""
    pos = event.spans[0]
    attempt = state.batches[event.batch].attempts[pos]
    return [Hold(name, state.runners[name].session, [(event.batch, pos, attempt, slot)]) for name, slot in event.parts]


def _releases(state: State, event: ev.Ended) -> list[Effect]:
    """Have the parts of gangs released whose roots are over."""
    out: list[Effect] = []
    for number, pos, _, _, _ in event.rows:
        batch = state.batches[number]
        for name in batch.closing.get(pos, ()):
            job = (number, batch.index(pos), batch.attempts[pos])
            out.append(Order(name, state.runners[name].session, "release", [job]))
    return out


def _end_broken(state: State, event: ev.GangBroken) -> list[Effect]:
    """Have the root of a gang end that has lost a part."""
    batch = state.batches[event.batch]
    live = batch.live.get(event.pos)
    if live is None:
        return []
    job = (batch.id, batch.index(event.pos), live.attempt)
    return [Order(live.runner, state.runners[live.runner].session, "kill", [job], event.reason)]


def _orders(state: State, event: ev.Moved | ev.HoldWanted) -> list[Effect]:
    """Orders to kill or to give back leased jobs, one for each runner."""
    if isinstance(event, ev.Moved):
        if event.verb != "kill":
            return []
        what = "kill"
    elif not event.wanted:
        return []
    else:
        what = "kill" if event.stop else "recall"
    batch = state.batches[event.batch]
    jobs: dict[str, list[tuple[int, int, int]]] = {}
    for low, high in zip(event.spans[::2], event.spans[1::2], strict=True):
        for pos in range(low, high):
            live = batch.live.get(pos)
            if live is not None and not state.runners[live.runner].direct:
                jobs.setdefault(live.runner, []).append((batch.id, batch.index(pos), live.attempt))
    return [Order(runner, state.runners[runner].session, what, rows) for runner, rows in jobs.items()]


def _end_given_up(state: State, event: ev.Ended) -> list[Effect]:
    """Order a silent runner to end attempts that were given up: it may live, and hear this when it is back."""
    runner = state.runners[event.runner]
    if runner.state in ("CLOSED", "EXPIRED"):
        return []
    jobs = []
    for number, pos, _, _, _ in event.rows:
        batch = state.batches[number]
        jobs.append((number, batch.index(pos), batch.attempts[pos]))
    return [Order(runner.id, runner.session, "kill", jobs, GIVEN_UP)]


def _allocation(state: State, event: ev.AllocationMoved) -> list[Effect]:
    allocation = state.allocations[event.id]
    if event.verb == "submit":
        return [Allocate("submit", allocation.id, allocation.site, allocation.tag, (allocation.id,))]
    if allocation.state == "KILLING" or allocation.state.endswith("ED"):
        what = "terminate" if allocation.state == "KILLING" else "shut"
        return [Allocate(what, allocation.id, allocation.site, allocation.tag)]
    return []


def restart_effects(state: State) -> list[Effect]:
    """Effects for a manager that has just loaded its state: ask for allocations whose fate it does not know."""
    effects: list[Effect] = []
    arrays: dict[str, list[Allocation]] = {}
    doubtful = set()
    for allocation in state.allocations.values():
        arrays.setdefault(allocation.tag, []).append(allocation)
        if allocation.state in ("WAITING", "SUBMITTING"):
            doubtful.add(allocation.tag)
    for tag in sorted(doubtful):
        array = sorted(arrays[tag], key=lambda allocation: allocation.element)
        ids = tuple(allocation.id for allocation in array)
        effects.append(Allocate("find", ids[0], array[0].site, tag, ids))
    for allocation in state.allocations.values():
        if allocation.tag not in doubtful:
            live = "terminate" if allocation.state == "KILLING" else "check"
            what = live if allocation.state.endswith("ING") else "shut"
            effects.append(Allocate(what, allocation.id, allocation.site, allocation.tag))
    return effects
