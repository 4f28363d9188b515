"""Evolve: apply one event to the state.

Total: every guard has been passed in `decide`, so a breach here is a bug and raises.
"""

import heapq
import re
from array import array
from typing import Any

from rota.core.ready import ReadyQueue
from rota.core.slots import shape_of, slot_amounts
from rota.core.state import COLUMN_CHUNK, BatchState, Live, RunnerState, State
from rota.core.tables import ALLOCATION, JOB_MOVES, PENDING, RUNNER, STARTING, WAITING, move
from rota.model import events as ev
from rota.model.allocation import Allocation
from rota.model.batch import Template
from rota.model.location import Kind, Location
from rota.model.shape import Shape
from rota.schedule.estimate import Group
from rota.schedule.view import Limit

__all__ = ["evolve"]

_MEAN_WEIGHT = 0.1
_PENDING_RUN = re.compile(bytes((PENDING,)) + b"+")


def evolve(state: State, event: ev.Event) -> None:
    """Apply one event."""
    _APPLY[type(event)](state, event)  # type: ignore[operator]
    state.seq += 1


def _submitted(state: State, event: ev.Submitted) -> None:
    batch = BatchState(event.batch, event.spec, event.key, event.at, event.env, event.runs)
    state.batches[batch.id] = batch
    state.keys[event.key] = batch.id
    if event.spec.name:
        state.names.setdefault(event.spec.name, []).append(batch.id)
    state.next_batch = max(state.next_batch, batch.id + 1)
    bind(state, batch)
    batch.dirty.update(range((batch.count - 1) // COLUMN_CHUNK + 1))
    state.dirty_batches.add(batch.id)


def bind(state: State, batch: BatchState) -> None:
    """Connect a new or restored batch with shapes, limits, dependencies and timers."""
    own_limit = f"#{batch.id}"
    if batch.spec.at_once is not None:
        state.limits[own_limit] = Limit(batch.spec.at_once, state.limits.get(own_limit, Limit(None, 0)).used)
    batch.shapes = [
        state.shape_number(_shape(template, own_limit if batch.spec.at_once is not None else None))
        for template in batch.kinds
    ]
    for dependency in batch.spec.after:
        target = dependency.target
        if not target.startswith("@"):
            target = str(int(target.partition(".")[0]))
        state.waiters.setdefault(target, set()).add(batch.id)
    if batch.spec.not_before is not None:
        heapq.heappush(state.timers, (batch.spec.not_before, batch.id, -1))


def _shape(template: Template, own_limit: str | None) -> Shape:
    limits = {*template.limits, own_limit} if own_limit else set(template.limits)
    return Shape(
        template.needs, tuple(sorted(limits)), group=template.group, override=template.override, level=template.level
    )


def template_number(state: State, batch: BatchState, template: Template) -> int:
    """The number of a template of a batch, which is added if it is new."""
    if template in batch.kinds:
        return batch.kinds.index(template)
    own_limit = f"#{batch.id}" if batch.spec.at_once is not None else None
    batch.kinds.append(template)
    batch.queues.append(ReadyQueue())
    batch.shapes.append(state.shape_number(_shape(template, own_limit)))
    return len(batch.kinds) - 1


def _retemplated(state: State, event: ev.Retemplated) -> None:
    batch = state.batches[event.batch]
    number = template_number(state, batch, event.template)
    if batch.templates is None:
        batch.templates = array("H", bytes(2 * batch.count))
    for low, high in zip(event.spans[::2], event.spans[1::2], strict=True):
        pending = [match.span() for match in _PENDING_RUN.finditer(batch.states, low, high)]
        if pending:
            _unready(state, batch, low, high)
        batch.templates[low:high] = array("H", [number]) * (high - low)
        for start, end in pending:
            push_ready(state, batch, start, end)
    state.dirty_batches.add(batch.id)
    state.replan = True


def _learned(state: State, event: ev.Learned) -> None:
    group = state.groups.setdefault(event.group, Group())
    for samples, values in ((group.memory, event.memory), (group.disk, event.disk), (group.time_s, event.time_s)):
        for value, count in zip(values[::2], values[1::2], strict=True):
            samples.add(value, count)


def _moved(state: State, event: ev.Moved) -> None:
    batch = state.batches[event.batch]
    moves = JOB_MOVES[event.verb]
    for low, high in zip(event.spans[::2], event.spans[1::2], strict=True):
        _shift(state, batch, low, high, moves)
        if event.verb == "ready":
            push_ready(state, batch, low, high)
            _forget(batch.until, low, high)
        elif event.verb == "reopen":
            _forget(batch.failures, low, high)
            _forget(batch.losses, low, high)
            _forget(batch.until, low, high)
        elif event.verb == "hold":
            _forget(batch.hold_wanted, low, high)
    if event.verb == "ready":
        batch.blocked = False
    elif event.verb in ("reopen", "block"):
        batch.blocked = bool(batch.spec.after)
    elif event.verb == "omit":
        batch.omitted_why = event.reason
    elif event.verb == "hold" and event.reason is not None:
        batch.held_why = event.reason
    if event.verb in ("abort", "hold", "block"):
        state.replan = True  # what is on its way for them may be too much now
    state.dirty_batches.add(batch.id)


def _forget(overlay: dict[int, Any], low: int, high: int) -> None:
    if overlay:
        for pos in [pos for pos in overlay if low <= pos < high] if high - low > len(overlay) else range(low, high):
            overlay.pop(pos, None)


def _shift(state: State, batch: BatchState, low: int, high: int, moves: dict[int, int]) -> None:
    """Move a range of jobs, whatever legal states they are in, and keep every count exact."""
    states, counts = batch.states, batch.counts
    if high - low == 1:
        old = states[low]
        if old == PENDING:
            _unready(state, batch, low, high)
        states[low] = new = moves[old]
        counts[old] -= 1
        counts[new] += 1
    else:
        left = high - low
        if states.find(PENDING, low, high) >= 0:
            _unready(state, batch, low, high)
        table = bytearray(range(256))
        for old, new in moves.items():
            found = states.count(old, low, high)
            counts[old] -= found
            counts[new] += found
            left -= found
            table[old] = new
        assert left == 0, f"batch {batch.id}: an illegal move in positions {low}-{high - 1}"
        states[low:high] = states[low:high].translate(table)
    batch.dirty.update(range(low // COLUMN_CHUNK, (high - 1) // COLUMN_CHUNK + 1))


def push_ready(state: State, batch: BatchState, low: int, high: int) -> None:
    """Positions that are PENDING now join the queues of their templates."""
    for template, start, end in batch.runs(low, high):
        queue = batch.queues[template]
        queue.push(start, end)
        queue.count += end - start
        shape = state.shapes[batch.shapes[template]]
        shape.ready += end - start
        if not queue.listed:
            queue.listed = True
            heapq.heappush(shape.heads, (-batch.kinds[template].priority, batch.id, template))
    state.replan = True


def _unready(state: State, batch: BatchState, low: int, high: int) -> None:
    for template, start, end in batch.runs(low, high):
        found = batch.states.count(PENDING, start, end)
        batch.queues[template].count -= found
        state.shapes[batch.shapes[template]].ready -= found


def _leased(state: State, event: ev.Leased) -> None:
    batch = state.batches[event.batch]
    runner = state.runners[event.runner]
    states, attempts, live, jobs = batch.states, batch.attempts, batch.live, runner.jobs
    number, total = batch.id, 0
    for low, high in zip(event.spans[::2], event.spans[1::2], strict=True):
        assert states.count(PENDING, low, high) == high - low, f"batch {number}: leased twice in {low}-{high - 1}"
        _unready(state, batch, low, high)
        states[low:high] = bytes((STARTING,)) * (high - low)
        batch.dirty.update(range(low // COLUMN_CHUNK, (high - 1) // COLUMN_CHUNK + 1))
        for pos in range(low, high):
            attempt = attempts[pos] + 1
            attempts[pos] = attempt
            live[pos] = Live(event.runner, event.slot, attempt)
            jobs[number, pos] = None
        total += high - low
    batch.counts[PENDING] -= total
    batch.counts[STARTING] += total
    runner.held[event.slot] = runner.held.get(event.slot, 0) + total
    _set_slots(state, runner, event.slot, event.slots)
    state.dirty_batches.add(number)


def _set_slots(state: State, runner: RunnerState, slot: str, count: int, restoring: bool = False) -> None:
    """Change how many of a slot a runner has, and charge ledger and limits for the difference."""
    more = count - runner.slots.get(slot, 0)
    if more == 0:
        return
    shape = state.shapes[shape_of(slot)].shape
    amounts = slot_amounts(slot, shape)
    if restoring:
        state.ledger.restore(runner.location, amounts, more)
    else:
        state.ledger.charge(runner.location, amounts, more)
    for name in shape.limits:
        limit = state.limits.get(name, Limit(None, 0))
        state.limits[name] = Limit(limit.count, limit.used + more)
    if count:
        runner.slots[slot] = count
    else:
        runner.slots.pop(slot, None)
    if more < 0:
        state.replan = True


def restore_slots(state: State, runner: RunnerState, slot: str, count: int) -> None:
    """Charge a slot that a checkpoint recorded."""
    _set_slots(state, runner, slot, count, restoring=True)


def _started(state: State, event: ev.Started) -> None:
    moves = JOB_MOVES["start"]
    for number, pos in event.rows:
        batch = state.batches[number]
        _shift(state, batch, pos, pos + 1, moves)
        state.dirty_batches.add(number)
    _seen(state, event.runner, event.seq)


def _seen(state: State, runner_id: str, seq: int) -> None:
    if seq:
        state.runners[runner_id].seq = seq


def _ended(state: State, event: ev.Ended) -> None:
    runner = state.runners[event.runner]
    number, batch = -1, None
    for number_, pos, verb, until, wall_ms in event.rows:
        if number_ != number or batch is None:
            number = number_
            batch = state.batches[number]
            state.dirty_batches.add(number)
        states = batch.states
        old = states[pos]
        states[pos] = new = JOB_MOVES[verb][old]
        batch.counts[old] -= 1
        batch.counts[new] += 1
        batch.dirty.add(pos // COLUMN_CHUNK)
        slot = batch.live.pop(pos).slot
        del runner.jobs[number, pos]
        held = runner.held[slot] = runner.held[slot] - 1
        if held < runner.slots[slot]:
            _set_slots(state, runner, slot, held)
        if not held:
            del runner.held[slot]
        if new == PENDING:
            push_ready(state, batch, pos, pos + 1)
        elif new == WAITING:
            _count_requeue(batch, pos, event.counts_as)
            if until is not None:
                batch.until[pos] = until
                heapq.heappush(state.timers, (until, number, pos))
        else:
            if pos in batch.hold_wanted:
                del batch.hold_wanted[pos]
            if event.counts_as == "loss":
                batch.losses[pos] = batch.losses.get(pos, 0) + 1
            if wall_ms:
                shape = state.shapes[batch.shapes[batch.template_of(pos)]]
                wall = wall_ms / 1000
                shape.mean_s = wall if shape.mean_s is None else shape.mean_s + _MEAN_WEIGHT * (wall - shape.mean_s)
    state.replan = True
    _seen(state, event.runner, event.seq)


def _count_requeue(batch: BatchState, pos: int, counts_as: str) -> None:
    if counts_as == "failure":
        batch.failures[pos] = batch.failures.get(pos, 0) + 1
    elif counts_as == "loss":
        batch.losses[pos] = batch.losses.get(pos, 0) + 1


def _hold_wanted(state: State, event: ev.HoldWanted) -> None:
    batch = state.batches[event.batch]
    if event.reason is not None:
        batch.held_why = event.reason
    for low, high in zip(event.spans[::2], event.spans[1::2], strict=True):
        if event.wanted:
            batch.hold_wanted.update(dict.fromkeys(range(low, high), event.stop))
        else:
            _forget(batch.hold_wanted, low, high)
    state.dirty_batches.add(batch.id)


def _removed(state: State, event: ev.Removed) -> None:
    batch = state.batches[event.batch]
    for low, high in zip(event.spans[::2], event.spans[1::2], strict=True):
        _shift(state, batch, low, high, JOB_MOVES["remove"])
        for overlay in (batch.failures, batch.losses):
            _forget(overlay, low, high)
        _forget(batch.until, low, high)
    state.dirty_batches.add(batch.id)


def _runner_greeted(state: State, event: ev.RunnerGreeted) -> None:
    runner = state.runners.get(event.runner)
    if runner is None:
        runner = state.runners[event.runner] = RunnerState(event.runner)
        runner.state = "SERVING"
    runner.allocation = event.allocation
    runner.connect = event.connect
    runner.session = event.session
    runner.host = event.host
    runner.pid = event.pid
    runner.capacity = event.capacity
    runner.tags = event.tags
    runner.until = event.until
    runner.output = event.output
    runner.site = event.site
    runner.direct = event.direct
    runner.lease_n = runner.got = 0
    runner.unacked.clear()
    runner.given_up.clear()
    place_runner(state, runner)
    state.replan = True


def place_runner(state: State, runner: RunnerState) -> None:
    """Put a runner's node (and what is above it) into the ledger."""
    state.ensure_site_location(runner.site)
    parent = runner.site
    if runner.allocation is not None:
        parent = f"{runner.site}/{runner.allocation}"
        if parent not in state.ledger.locations:
            state.ledger.add(Location(parent, Kind.ALLOCATION, runner.site, None, True, (), None, runner.site))
    runner.location = f"{parent}/{runner.id}" if runner.direct else f"{parent}/{runner.host}:{runner.id[:8]}"
    allocation = state.allocations.get(runner.allocation or "")
    options = None if allocation is None or allocation.shape is None else allocation.options
    state.ledger.add(
        Location(
            runner.location, Kind.NODE, parent, runner.capacity, True, runner.tags, runner.until, runner.site, options
        )
    )


def _runner_moved(state: State, event: ev.RunnerMoved) -> None:
    runner = state.runners[event.runner]
    new = move(RUNNER, runner.state, event.verb)
    assert new is not None, f"runner {event.runner}: {event.verb} in {runner.state}"
    if event.verb == "drain":
        runner.drain_wanted = True
    runner.state = new
    runner.why = event.reason
    if new in ("CLOSED", "EXPIRED"):
        assert not runner.jobs, f"runner {event.runner} is {new} and holds jobs"
        runner.unacked.clear()
        state.ledger.drop(runner.location)
    state.replan = True


def _allocation_planned(state: State, event: ev.AllocationPlanned) -> None:
    state.allocations[event.id] = Allocation(
        event.id,
        event.site,
        event.tag,
        "SUBMITTING" if event.submit else "WAITING",
        event.capacity,
        submitted=event.at,
        queue=event.queue,
        shape=event.shape,
        element=event.element,
        time_s=event.time_s,
        name=event.name,
        direct=event.direct,
        options=event.options,
    )
    state.next_allocation = max(state.next_allocation, int(event.id[1:]) + 1)


def _allocation_moved(state: State, event: ev.AllocationMoved) -> None:
    allocation = state.allocations[event.id]
    new = allocation.state if event.verb == "unsure" else move(ALLOCATION, allocation.state, event.verb)
    assert new is not None, f"allocation {event.id}: {event.verb} in {allocation.state}"
    allocation.state = new
    allocation.unsure = event.unsure
    if event.native_id is not None:
        allocation.native_id = event.native_id
    if event.reason is not None:
        allocation.reason = event.reason
    if event.host is not None:
        allocation.host = event.host
        for runner in state.direct_runners(allocation):
            runner.host = event.host
    if new.endswith("ED"):
        location = f"{allocation.site}/{allocation.id}"
        if location in state.ledger.locations:
            state.ledger.drop(location)
    state.replan = True


def _manager_moved(state: State, event: ev.ManagerMoved) -> None:
    state.mode = event.mode
    state.replan = True


def _limit_set(state: State, event: ev.LimitSet) -> None:
    used = state.limits.get(event.name, Limit(None, 0)).used
    state.limits[event.name] = Limit(event.count, used)
    state.replan = True


def _noted(state: State, event: ev.Noted) -> None:
    """Evidence only."""


_APPLY = {
    ev.Submitted: _submitted,
    ev.Moved: _moved,
    ev.Leased: _leased,
    ev.Started: _started,
    ev.Ended: _ended,
    ev.HoldWanted: _hold_wanted,
    ev.Removed: _removed,
    ev.RunnerGreeted: _runner_greeted,
    ev.RunnerMoved: _runner_moved,
    ev.AllocationPlanned: _allocation_planned,
    ev.AllocationMoved: _allocation_moved,
    ev.ManagerMoved: _manager_moved,
    ev.LimitSet: _limit_set,
    ev.Noted: _noted,
    ev.Retemplated: _retemplated,
    ev.Learned: _learned,
}
