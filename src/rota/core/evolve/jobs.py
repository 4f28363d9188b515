"""Evolve, the part of jobs: their moves, leases and ends, and the queues of what is ready."""

import heapq
from typing import Any

import msgspec

from rota.core.batch import COLUMN_CHUNK, BatchState, Live
from rota.core.dependencies.linking import freeze
from rota.core.dependencies.telling import note_settled, recounted, reopened
from rota.core.evolve.gangs import close_root, reserve_part
from rota.core.evolve.runners import set_slots
from rota.core.scouting import FAILED_SCOUTS, scout_ended
from rota.core.state import RunnerState, State
from rota.model import events as ev
from rota.model.slot import Slot, parse_slot
from rota.model.tables import COMPLETED, JOB_MOVES, PENDING, STARTING, WAITING
from rota.schedule.limits import Starts

__all__ = [
    "ended",
    "hastened",
    "hold_wanted",
    "leased",
    "moved",
    "push_ready",
    "removed",
    "rerun_wanted",
    "slot_of",
    "started",
    "uncounted",
    "unready",
]

LOST_MOST = 1000
"""How many attempts that were given up are remembered of a runner."""


def moved(state: State, event: ev.Moved) -> None:
    """Jobs of a batch move."""
    batch = state.batches[event.batch]
    moves = JOB_MOVES[event.verb]
    for low, high in zip(event.spans[::2], event.spans[1::2], strict=True):
        _shift(state, batch, low, high, moves)
        if event.verb == "ready":
            push_ready(state, batch, low, high)
            _forget(batch.until, low, high)
        elif event.verb == "reopen":
            _forget_tries(batch, low, high)
        elif event.verb == "hold":
            _forget(batch.hold_wanted, low, high)
    if event.verb in ("block", "release", "reopen"):
        state.freed.append((batch.id, event.spans[0], event.spans[-1]))
    if event.verb == "ready":
        batch.blocked = False
    elif event.verb in ("reopen", "block"):
        batch.blocked = bool(batch.spec.after) or batch.graph is not None
        if event.verb == "reopen":
            reopened(state, batch)
    elif event.verb == "omit":
        batch.omitted_why = event.reason
    elif event.verb == "hold" and event.reason is not None:
        batch.held_why = event.reason
    elif event.verb in ("kill", "abort") and event.reason is not None:
        batch.killed_why = event.reason
    if event.verb in ("ready", "omit") and ((batch.epoch >= 0 and not batch.known_until) or batch.graph is not None):
        freeze(state, batch, event.spans)
    if batch.followed and event.verb in ("omit", "abort", "fail"):
        note_settled(state, batch, event.spans)
    if batch.scouting:
        _scouted(state, batch, event)
    state.dirty_batches.add(batch.id)


def _scouted(state: State, batch: BatchState, event: ev.Moved) -> None:
    """The rest of a batch is looked at when a scout has settled, and no more once it may go or was held."""
    if event.verb in ("omit", "abort", "fail") and scout_ended(batch, event.spans[0]):
        state.freed.append((batch.id, 0, batch.count))
    failed = event.verb == "hold" and (event.reason or "").startswith(FAILED_SCOUTS)
    if failed or (event.verb == "ready" and event.spans[-1] > batch.spec.scouts):
        batch.scouting = False


def _forget_tries(batch: BatchState, low: int, high: int) -> None:
    for overlay in (batch.failures, batch.losses, batch.until):
        _forget(overlay, low, high)


def _forget(overlay: dict[int, Any], low: int, high: int) -> None:
    """Drop the entries of these positions."""
    if overlay:
        for pos in [pos for pos in overlay if low <= pos < high] if high - low > len(overlay) else range(low, high):
            overlay.pop(pos, None)


def _shift(state: State, batch: BatchState, low: int, high: int, moves: dict[int, int]) -> None:
    """Move a range of jobs, whatever legal states they are in, and keep every count exact."""
    states, counts = batch.states, batch.counts
    if high - low == 1:
        old = states[low]
        if old == PENDING:
            unready(state, batch, low, high)
        states[low] = new = moves[old]
        counts[old] -= 1
        counts[new] += 1
    else:
        left = high - low
        if states.find(PENDING, low, high) >= 0:
            unready(state, batch, low, high)
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
    changed = state.soft.planning.changed.shapes
    for template, start, end in batch.runs(low, high):
        queue = batch.queues[template]
        queue.push(start, end)
        queue.count += end - start
        shape = state.shapes[batch.shapes[template]]
        shape.ready += end - start
        changed.add(shape.id)
        state.ready += end - start
        if not queue.listed:
            queue.listed = True
            heapq.heappush(shape.heads, (-batch.templates[template].priority, batch.id, template))


def unready(state: State, batch: BatchState, low: int, high: int) -> None:
    """Positions that are PENDING leave the queues of their templates."""
    changed = state.soft.planning.changed.shapes
    for template, start, end in batch.runs(low, high):
        found = batch.states.count(PENDING, start, end)
        queue, shape = batch.queues[template], state.shapes[batch.shapes[template]]
        queue.count -= found
        shape.ready -= found
        changed.add(shape.id)
        state.ready -= found
        if not queue.count:
            shape.trim(state.batches)


def leased(state: State, event: ev.Leased) -> None:
    """Jobs are given to a runner, in a slot."""
    batch = state.batches[event.batch]
    runner = state.runners[event.runner]
    slot = slot_of(state, event.slot)
    states, attempts, live, jobs = batch.states, batch.attempts, batch.live, runner.jobs
    number, total = batch.id, 0
    floor = state.attempt_floor if number < state.floor_below else 0
    for low, high in zip(event.spans[::2], event.spans[1::2], strict=True):
        assert states.count(PENDING, low, high) == high - low, f"batch {number}: leased twice in {low}-{high - 1}"
        unready(state, batch, low, high)
        states[low:high] = bytes((STARTING,)) * (high - low)
        batch.dirty.update(range(low // COLUMN_CHUNK, (high - 1) // COLUMN_CHUNK + 1))
        for pos in range(low, high):
            attempt = attempts[pos] + 1
            if attempt < floor:
                attempt = floor
            attempts[pos] = attempt
            live[pos] = Live(event.runner, slot, attempt, event.parts)
            jobs[number, pos] = None
        total += high - low
    batch.counts[PENDING] -= total
    batch.counts[STARTING] += total
    runner.held[slot] = runner.held.get(slot, 0) + total
    state.soft.planning.changed.slots.setdefault(slot, {})[runner.id] = None
    set_slots(state, runner, slot, event.slots)
    if event.parts:
        assert total == 1, f"batch {number}: {total} jobs are leased as one gang"
        for name, part in event.parts:
            reserve_part(state, state.runners[name], (number, event.spans[0], attempts[event.spans[0]]), part)
    if event.at is not None:
        _count_starts(state, slot.shape, total, event.at)
    state.dirty_batches.add(number)


def slot_of(state: State, slot: Slot | str) -> Slot:
    """A slot as events and checkpoints tell it: those of version 1 by its name."""
    if isinstance(slot, Slot):
        return slot
    return parse_slot(slot, state.shapes[int(slot.partition(":")[0])].shape.needs)


def _count_starts(state: State, shape_id: int, count: int, at: float) -> None:
    """Count starts of a shape against its limits with a rate."""
    for name in state.shapes[shape_id].shape.limits:
        limit = state.limits.get(name)
        if limit is not None and limit.rate is not None:
            state.starts.setdefault(name, Starts()).take(shape_id, count, at, limit.per_s)
            state.soft.planning.changed.limits.add(name)


def started(state: State, event: ev.Started) -> None:
    """Jobs have started."""
    moves = JOB_MOVES["start"]
    for number, pos in event.rows:
        batch = state.batches[number]
        _shift(state, batch, pos, pos + 1, moves)
        state.dirty_batches.add(number)
    _seen(state, event.runner, event.seq)


def _seen(state: State, runner_id: str, seq: int) -> None:
    if seq:
        state.runners[runner_id].seq = seq


def ended(state: State, event: ev.Ended) -> None:
    """Attempts have ended."""
    runner = state.runners[event.runner]
    changed = state.soft.planning.changed
    number, batch = -1, None
    for batch_number, pos, verb, until, _ in event.rows:
        if batch_number != number or batch is None:
            number = batch_number
            batch = state.batches[number]
            state.dirty_batches.add(number)
        states = batch.states
        old = states[pos]
        states[pos] = new = JOB_MOVES[verb][old]
        batch.counts[old] -= 1
        batch.counts[new] += 1
        batch.dirty.add(pos // COLUMN_CHUNK)
        live = batch.live.pop(pos)
        slot = live.slot
        if live.parts:
            close_root(state, batch, pos, live)
        if event.counts_as == "loss":
            _note_lost(runner, (number, pos, live.attempt))
        if batch.loose and f"#{number}" not in state.shapes[slot.shape].shape.limits:
            _uncount_loose(state, batch)
        del runner.jobs[number, pos]
        held = runner.held[slot] = runner.held[slot] - 1
        changed.slots.setdefault(slot, {})[runner.id] = None
        if held < runner.slots[slot]:
            set_slots(state, runner, slot, held)
        if not held:
            del runner.held[slot]
        if new == PENDING:
            push_ready(state, batch, pos, pos + 1)
        elif new == WAITING:
            _count_requeue(batch, pos, event.counts_as)
            state.freed.append((number, pos, pos + 1))
            if until is not None:
                batch.until[pos] = until
                heapq.heappush(state.timers, (until, number, pos))
        else:
            if batch.followed:
                state.settled.append((number, pos, pos + 1))
            if batch.scouting and scout_ended(batch, pos):
                state.freed.append((number, 0, batch.count))
            if new == COMPLETED and pos in batch.rerun_wanted:
                state.again.append((number, pos, batch.rerun_wanted[pos]))
            if pos in batch.hold_wanted:
                del batch.hold_wanted[pos]
            if event.counts_as == "loss":
                batch.losses[pos] = batch.losses.get(pos, 0) + 1
        if batch.rerun_wanted:
            batch.rerun_wanted.pop(pos, None)
    _seen(state, event.runner, event.seq)


def _note_lost(runner: RunnerState, attempt: tuple[int, int, int]) -> None:
    runner.lost[attempt] = None
    if len(runner.lost) > LOST_MOST:
        del runner.lost[next(iter(runner.lost))]


def _uncount_loose(state: State, batch: BatchState) -> None:
    """A job has ended that counted against the batch's own limit without a slot that does (`BatchState.loose`)."""
    batch.loose -= 1
    limit = state.limits[f"#{batch.id}"]
    state.limits[f"#{batch.id}"] = msgspec.structs.replace(limit, used=limit.used - 1)
    state.soft.planning.changed.limits.add(f"#{batch.id}")


def _count_requeue(batch: BatchState, pos: int, counts_as: str) -> None:
    if counts_as == "failure":
        batch.failures[pos] = batch.failures.get(pos, 0) + 1
    elif counts_as == "loss":
        batch.losses[pos] = batch.losses.get(pos, 0) + 1


def hold_wanted(state: State, event: ev.HoldWanted) -> None:
    """Leased jobs are to be held once they are back, or not any more."""
    batch = state.batches[event.batch]
    if event.reason is not None:
        batch.held_why = event.reason
    for low, high in zip(event.spans[::2], event.spans[1::2], strict=True):
        if event.wanted:
            batch.hold_wanted.update(dict.fromkeys(range(low, high), event.stop))
        else:
            _forget(batch.hold_wanted, low, high)
    state.dirty_batches.add(batch.id)


def removed(state: State, event: ev.Removed) -> None:
    """Jobs are forgotten: a tombstone stays."""
    batch = state.batches[event.batch]
    for low, high in zip(event.spans[::2], event.spans[1::2], strict=True):
        _shift(state, batch, low, high, JOB_MOVES["remove"])
        _forget_tries(batch, low, high)
    if batch.followed:
        note_settled(state, batch, event.spans)
    recounted(state, batch)
    if scout_ended(batch, event.spans[0]):
        state.freed.append((batch.id, 0, batch.count))
    state.dirty_batches.add(batch.id)


def hastened(state: State, event: ev.Hastened) -> None:
    """Jobs are tried again as soon as they can be."""
    batch = state.batches[event.batch]
    for low, high in zip(event.spans[::2], event.spans[1::2], strict=True):
        _forget(batch.until, low, high)
        state.freed.append((batch.id, low, high))
    state.dirty_batches.add(batch.id)


def rerun_wanted(state: State, event: ev.RerunWanted) -> None:
    """Live jobs are to run once more when they have completed."""
    batch = state.batches[event.batch]
    for low, high in zip(event.spans[::2], event.spans[1::2], strict=True):
        batch.rerun_wanted.update(dict.fromkeys(range(low, high), event.reason or ""))
    state.dirty_batches.add(batch.id)


def uncounted(state: State, batch: BatchState) -> int:
    """How many live jobs of a batch have slots that do not count against its own limit."""
    own_limit = f"#{batch.id}"
    return sum(own_limit not in state.shapes[live.slot.shape].shape.limits for live in batch.live.values())
