"""Evolve, the part of runners and allocations: who serves, where, and with how many slots."""

import msgspec

from rota.core.evolve.gangs import move_parts
from rota.core.state import RunnerState, State
from rota.model import events as ev
from rota.model.allocation import Allocation
from rota.model.location import Kind, Location
from rota.model.slot import Slot
from rota.model.tables import ALLOCATION, RUNNER, move
from rota.schedule.broker.sites import Waited, size_of, span_of
from rota.schedule.queues import queue_id
from rota.schedule.view import Limit

__all__ = [
    "allocation_moved",
    "allocation_planned",
    "join_allocation",
    "place_runner",
    "runner_greeted",
    "runner_moved",
    "set_slots",
]

OVER_MOST = 1000
"""How many allocations that are over stay in the state, with their runners."""


def set_slots(state: State, runner: RunnerState, slot: Slot, count: int, restoring: bool = False) -> None:
    """Change how many such slots a runner has, and charge ledger and limits for the difference.

    `restoring`: a checkpoint had them, so they are charged even if the capacity has shrunk.
    """
    more = count - runner.slots.get(slot, 0)
    if more == 0:
        return
    shape = state.shapes[slot.shape]
    charge = state.ledger.restore if restoring else state.ledger.charge
    charge(runner.location, slot.amounts, more, slot.gpus)
    for name in shape.shape.limits:
        limit = state.limits.get(name)
        state.limits[name] = (
            Limit(None, more) if limit is None else msgspec.structs.replace(limit, used=limit.used + more)
        )
        state.soft.planning.changed.limits.add(name)
    shape.slots += more
    if count:
        runner.slots[slot] = count
    else:
        runner.slots.pop(slot, None)


def runner_greeted(state: State, event: ev.RunnerGreeted) -> None:
    """A runner has come, or come back, perhaps under another name of its host: then its slots move along."""
    runner = state.runners.get(event.runner)
    if runner is None:
        runner = state.runners[event.runner] = RunnerState(event.runner)
        runner.state = "SERVING"
        state.census.runner(event.runner, "", "SERVING")
    before, allocation = runner.location, runner.allocation
    for name in ev.RunnerGreeted.__struct_fields__[1:]:  # all but its id
        setattr(runner, name, getattr(event, name))
    if allocation != event.allocation:
        if allocation is not None:
            state.census.leave(runner.id, state.allocations.get(allocation), allocation)
        join_allocation(state, runner)
    place_runner(state, runner)
    if before and before != runner.location:
        for slot, count in runner.slots.items():
            state.ledger.charge(before, slot.amounts, -count, slot.gpus)
            state.ledger.restore(runner.location, slot.amounts, count, slot.gpus)
        move_parts(state, runner, before)
        state.ledger.drop(before)


def join_allocation(state: State, runner: RunnerState) -> None:
    """Enter a runner with its allocation, if it has one."""
    if runner.allocation is not None:
        state.census.join(runner.id, state.allocations.get(runner.allocation), runner.allocation)


def place_runner(state: State, runner: RunnerState) -> None:
    """Put a runner's node, and the site and the allocation above it, into the ledger."""
    state.ensure_site_location(runner.site)
    parent = runner.site
    allocation = state.allocations.get(runner.allocation or "")
    queue = (allocation.queue or "") if allocation is not None else ""
    if queue:
        parent = queue_id(runner.site, queue)
        if parent not in state.ledger.locations:
            state.ledger.add(Location(parent, Kind.QUEUE, runner.site, None, True, (), None, runner.site, None, queue))
    if runner.allocation is not None:
        above, parent = parent, f"{runner.site}/{runner.allocation}"
        if parent not in state.ledger.locations:
            state.ledger.add(Location(parent, Kind.ALLOCATION, above, None, True, (), None, runner.site, None, queue))
    runner.location = f"{parent}/{runner.id}" if runner.direct else f"{parent}/{runner.host}:{runner.id}"
    options = None if allocation is None or allocation.shape is None else allocation.options
    state.ledger.add(
        Location(
            runner.location,
            Kind.NODE,
            parent,
            runner.capacity,
            True,
            runner.tags,
            runner.until,
            runner.site,
            options,
            queue,
            host=runner.host,
        )
    )


def runner_moved(state: State, event: ev.RunnerMoved) -> None:
    """A runner's state changes."""
    runner = state.runners[event.runner]
    new = move(RUNNER, runner.state, event.verb)
    assert new is not None, f"runner {event.runner}: {event.verb} in {runner.state}"
    if event.verb == "drain":
        runner.drain_wanted = True
    state.census.runner(runner.id, runner.state, new)
    runner.state = new
    runner.why = event.reason
    if new in ("CLOSED", "EXPIRED"):
        assert not runner.jobs and not runner.parts, f"runner {event.runner} is {new} and holds jobs"
        state.ledger.drop(runner.location)


def allocation_planned(state: State, event: ev.AllocationPlanned) -> None:
    """An allocation is to be asked for."""
    fields = msgspec.structs.asdict(event)
    submit, at = fields.pop("submit"), fields.pop("at")
    allocation = Allocation(**fields, state="SUBMITTING" if submit else "WAITING", submitted=at)
    state.allocations[event.id] = allocation
    state.census.count(allocation, 1)
    state.next_allocation = max(state.next_allocation, int(event.id[1:]) + 1)


def allocation_moved(state: State, event: ev.AllocationMoved) -> None:
    """An allocation's state changes."""
    allocation = state.allocations[event.id]
    new = allocation.state if event.verb == "unsure" else move(ALLOCATION, allocation.state, event.verb)
    assert new is not None, f"allocation {event.id}: {event.verb} in {allocation.state}"
    starts = new == "RUNNING" and allocation.state != new
    if starts and event.at is not None and allocation.submitted is not None:
        key = (allocation.site, allocation.queue or "")
        kind = (size_of(allocation.capacity.cores, allocation.nodes), span_of(allocation.time_s))
        waited = max(0.0, event.at - allocation.submitted)
        state.waited[key] = state.waited.get(key, Waited()).plus(kind, waited, event.at)
    state.census.count(allocation, -1)
    allocation.state = new
    state.census.count(allocation, 1)
    allocation.unsure = event.unsure
    if event.native_id is not None:
        allocation.native_id = event.native_id
    if event.reason is not None:
        allocation.reason = event.reason
    if event.outcome is not None:
        allocation.outcome = event.outcome
    if event.host is not None:
        allocation.host = event.host
        for runner in state.direct_runners(allocation):
            runner.host = event.host
    if new.endswith("ED"):
        allocation.ended = event.at
        location = f"{allocation.site}/{allocation.id}"
        if location in state.ledger.locations:
            state.ledger.drop(location)
        state.over.append(allocation.id)
        if len(state.over) > OVER_MOST:
            _forget_allocation(state, state.over.popleft())


def _forget_allocation(state: State, name: str) -> None:
    """Forget an allocation that is long over, and its runners. The store still has them."""
    allocation = state.allocations.pop(name, None)
    if allocation is None:
        return
    for runner in state.runners_of(name):
        if runner.state in ("CLOSED", "EXPIRED") and not runner.jobs:
            del state.runners[runner.id]
            state.forgotten.append(runner.id)
            state.soft.planning.changed.runners[runner.id] = None
            state.census.leave(runner.id, None, name)
