"""Evolve: apply one event to the state.

Total: every guard has been passed in `decide`, so a breach here is a bug and raises.
"""

import heapq
import re
from array import array
from bisect import insort
from typing import Any

import msgspec

from rota.core.dependencies import connect, disconnect, freeze, grown, note_settled, reconnect, renamed, reopened
from rota.core.evolve.runners import (
    allocation_moved,
    allocation_planned,
    runner_greeted,
    runner_moved,
    set_slots,
)
from rota.core.ready import ReadyQueue
from rota.core.slots import shape_of
from rota.core.state import COLUMN_CHUNK, BatchState, Live, State
from rota.model import events as ev
from rota.model.batch import Template
from rota.model.limits import parse_window
from rota.model.shape import Shape
from rota.model.tables import COMPLETED, JOB_MOVES, PENDING, STARTING, WAITING
from rota.schedule.estimate import Group
from rota.schedule.limits import Starts
from rota.schedule.view import Limit

__all__ = ["evolve"]

_MEAN_WEIGHT = 0.1
_PENDING_RUN = re.compile(bytes((PENDING,)) + b"+")
_DAY_S = 86_400


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
    if event.spec.name:
        grown(state, event.spec.name)
    batch.dirty.update(range((batch.count - 1) // COLUMN_CHUNK + 1))
    state.dirty_batches.add(batch.id)


def bind(state: State, batch: BatchState) -> None:
    """Connect a new or restored batch with shapes, limits, dependencies and timers."""
    own_limit = f"#{batch.id}"
    if batch.spec.at_once is not None:
        state.limits[own_limit] = Limit(batch.spec.at_once, state.limits.get(own_limit, Limit(None, 0)).used)
    for template in batch.templates:
        _bind_windows(state, template)
    batch.shapes = [
        state.shape_number(_shape(template, own_limit if batch.spec.at_once is not None else None))
        for template in batch.templates
    ]
    if batch.spec.after:
        connect(state, batch)
    if batch.spec.not_before is not None:
        heapq.heappush(state.timers, (batch.spec.not_before, batch.id, -1))


def unbind(state: State, batch: BatchState) -> None:
    """Take a batch, of which nothing is live, out of everything that leads to it."""
    state.limits.pop(f"#{batch.id}", None)
    for number, queue in zip(batch.shapes, batch.queues, strict=True):
        if queue.listed:
            shape = state.shapes[number]
            shape.heads = [head for head in shape.heads if head[1] != batch.id]
            heapq.heapify(shape.heads)
            queue.listed = False
    disconnect(state, batch)
    if batch.spec.not_before is not None or batch.until:
        state.timers = [timer for timer in state.timers if timer[1] != batch.id]
        heapq.heapify(state.timers)


def _shape(template: Template, own_limit: str | None) -> Shape:
    limits = {*template.limits, own_limit} if own_limit else set(template.limits)
    return Shape(
        template.needs, tuple(sorted(limits)), group=template.group, override=template.override, level=template.level
    )


def _bind_windows(state: State, template: Template) -> None:
    for name in template.limits:
        if "<" in name and name not in state.limits:  # a window that stands for itself
            set_limit(state, name, Limit(None, 0, window=parse_window(name)))


def template_number(state: State, batch: BatchState, template: Template) -> int:
    """The number of a template of a batch, which is added if it is new."""
    if template in batch.templates:
        return batch.templates.index(template)
    own_limit = f"#{batch.id}" if batch.spec.at_once is not None else None
    _bind_windows(state, template)
    batch.templates.append(template)
    batch.queues.append(ReadyQueue())
    batch.shapes.append(state.shape_number(_shape(template, own_limit)))
    return len(batch.templates) - 1


def _retemplated(state: State, event: ev.Retemplated) -> None:
    batch = state.batches[event.batch]
    batch.changes += 1
    number = template_number(state, batch, event.template)
    if batch.template_numbers is None:
        batch.template_numbers = array("H", bytes(2 * batch.count))
    for low, high in zip(event.spans[::2], event.spans[1::2], strict=True):
        pending = [match.span() for match in _PENDING_RUN.finditer(batch.states, low, high)]
        if pending:
            _unready(state, batch, low, high)
        batch.template_numbers[low:high] = array("H", [number]) * (high - low)
        for start, end in pending:
            push_ready(state, batch, start, end)
    state.dirty_batches.add(batch.id)
    state.replan = True


def _respecified(state: State, event: ev.Respecified) -> None:
    batch = state.batches[event.batch]
    old = batch.spec
    spec = msgspec.structs.replace(
        old,
        name=event.name,
        after=event.after,
        not_before=event.not_before,
        at_once=event.at_once,
        max_failures=event.max_failures,
    )
    if spec.after != old.after:
        reconnect(state, batch, spec)
    batch.spec = spec
    if spec.not_before != old.not_before:
        state.timers = [timer for timer in state.timers if timer[1:] != (batch.id, -1)]
        heapq.heapify(state.timers)
        if spec.not_before is not None:
            heapq.heappush(state.timers, (spec.not_before, batch.id, -1))
    if spec.at_once != old.at_once:
        _rebind(state, batch)
    if spec.name != old.name:
        if old.name:
            forget_name(state, batch.id, old.name)
        if spec.name:
            insort(state.names.setdefault(spec.name, []), batch.id)
        renamed(state, batch, old.name)
    state.freed.append((batch.id, 0, batch.count))
    state.dirty_batches.add(batch.id)
    state.replan = True


def _rebind(state: State, batch: BatchState) -> None:
    """Its own limit is another one, or came or went, and so its jobs have other shapes from now on."""
    own_limit = f"#{batch.id}"
    used = state.limits.pop(own_limit, Limit(None, 0)).used - batch.loose
    batch.loose = 0
    if batch.spec.at_once is not None:
        batch.loose = uncounted(state, batch)
    if batch.spec.at_once is not None or used:
        state.limits[own_limit] = Limit(batch.spec.at_once, used + batch.loose)
    for template, queue in enumerate(batch.queues):
        shape = _shape(batch.templates[template], own_limit if batch.spec.at_once is not None else None)
        old, new = state.shapes[batch.shapes[template]], state.shapes[state.shape_number(shape)]
        batch.shapes[template] = new.id
        old.ready -= queue.count
        new.ready += queue.count
        if queue.listed:
            old.heads = [head for head in old.heads if head[1:] != (batch.id, template)]
            heapq.heapify(old.heads)
            heapq.heappush(new.heads, (-batch.templates[template].priority, batch.id, template))


def uncounted(state: State, batch: BatchState) -> int:
    """How many of its live jobs have slots that do not count against its own limit."""
    own_limit = f"#{batch.id}"
    return sum(own_limit not in state.shapes[shape_of(live.slot)].shape.limits for live in batch.live.values())


def forget_name(state: State, number: int, name: str) -> None:
    """A batch does not have this name any more."""
    state.names[name].remove(number)
    if not state.names[name]:
        del state.names[name]


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
    if event.verb in ("block", "release", "reopen"):
        state.freed.append((batch.id, event.spans[0], event.spans[-1]))
    if event.verb == "ready":
        batch.blocked = False
    elif event.verb in ("reopen", "block"):
        batch.blocked = bool(batch.spec.after)
        if event.verb == "reopen":
            reopened(state, batch)
    elif event.verb == "omit":
        batch.omitted_why = event.reason
    elif event.verb == "hold" and event.reason is not None:
        batch.held_why = event.reason
    if event.verb in ("ready", "omit") and batch.epoch >= 0 and not batch.known_until:
        freeze(state, batch)
    if batch.followed and event.verb in ("omit", "abort", "fail"):
        note_settled(state, batch, event.spans)
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
            heapq.heappush(shape.heads, (-batch.templates[template].priority, batch.id, template))
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
    floor = state.attempt_floor if number < state.floor_below else 0
    for low, high in zip(event.spans[::2], event.spans[1::2], strict=True):
        assert states.count(PENDING, low, high) == high - low, f"batch {number}: leased twice in {low}-{high - 1}"
        _unready(state, batch, low, high)
        states[low:high] = bytes((STARTING,)) * (high - low)
        batch.dirty.update(range(low // COLUMN_CHUNK, (high - 1) // COLUMN_CHUNK + 1))
        for pos in range(low, high):
            attempt = attempts[pos] + 1
            if attempt < floor:
                attempt = floor
            attempts[pos] = attempt
            live[pos] = Live(event.runner, event.slot, attempt)
            jobs[number, pos] = None
        total += high - low
    batch.counts[PENDING] -= total
    batch.counts[STARTING] += total
    runner.held[event.slot] = runner.held.get(event.slot, 0) + total
    set_slots(state, runner, event.slot, event.slots)
    if event.at is not None:
        _count_starts(state, int(event.slot.partition(":")[0]), total, event.at)
    state.dirty_batches.add(number)


def _count_starts(state: State, shape_id: int, count: int, at: float) -> None:
    for name in state.shapes[shape_id].shape.limits:
        limit = state.limits.get(name)
        if limit is not None and limit.rate is not None:
            state.starts.setdefault(name, Starts()).take(shape_id, count, at, limit.per_s)
            if limit.left is not None:
                state.limits[name] = msgspec.structs.replace(limit, left=limit.left - count)


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
        if batch.loose and f"#{number}" not in state.shapes[shape_of(slot)].shape.limits:
            _tighten(state, batch)
        del runner.jobs[number, pos]
        held = runner.held[slot] = runner.held[slot] - 1
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
            if new == COMPLETED and pos in batch.rerun_wanted:
                state.again.append((number, pos, batch.rerun_wanted[pos]))
            if pos in batch.hold_wanted:
                del batch.hold_wanted[pos]
            if event.counts_as == "loss":
                batch.losses[pos] = batch.losses.get(pos, 0) + 1
            if wall_ms:
                shape = state.shapes[batch.shapes[batch.template_of(pos)]]
                wall = wall_ms / 1000
                shape.mean_s = wall if shape.mean_s is None else shape.mean_s + _MEAN_WEIGHT * (wall - shape.mean_s)
        if batch.rerun_wanted:
            batch.rerun_wanted.pop(pos, None)
    state.replan = True
    _seen(state, event.runner, event.seq)


def _tighten(state: State, batch: BatchState) -> None:
    """One that its own limit did not know of, and that counted, has ended."""
    batch.loose -= 1
    limit = state.limits[f"#{batch.id}"]
    state.limits[f"#{batch.id}"] = msgspec.structs.replace(limit, used=limit.used - 1)


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
    if batch.followed:
        note_settled(state, batch, event.spans)
    reopened(state, batch)
    state.dirty_batches.add(batch.id)


def _rerun_wanted(state: State, event: ev.RerunWanted) -> None:
    batch = state.batches[event.batch]
    for low, high in zip(event.spans[::2], event.spans[1::2], strict=True):
        batch.rerun_wanted.update(dict.fromkeys(range(low, high), event.reason or ""))
    state.dirty_batches.add(batch.id)


def _manager_moved(state: State, event: ev.ManagerMoved) -> None:
    state.mode = event.mode
    if event.pauses is not None:
        state.pauses = {holder: (since, why, by) for holder, since, why, by in event.pauses}
    elif event.mode != "draining":
        state.pauses = {"user": (0.0, "", event.by)} if event.mode == "paused" else {}
    state.replan = True


def _limit_set(state: State, event: ev.LimitSet) -> None:
    used = state.limits.get(event.name, Limit(None, 0)).used
    window = parse_window(event.window) if event.window is not None else None
    set_limit(state, event.name, Limit(event.count, used, event.rate, event.per_s, window))
    state.replan = True


def set_limit(state: State, name: str, limit: Limit) -> None:
    """Put a new or restored limit in its place. What a rate has counted so far stays counted."""
    state.limits[name] = limit
    if limit.rate is None:
        state.starts.pop(name, None)
    if limit.rate is None and limit.window is None:
        state.timed.discard(name)
        if limit.count is None and not limit.used:
            del state.limits[name]
    else:
        state.timed.add(name)


def _pruned(state: State, event: ev.Pruned) -> None:
    for number in event.batches:
        batch = state.batches.pop(number)
        assert not batch.unsettled, f"batch {number} is not settled and was pruned"
        unbind(state, batch)
        if state.keys.get(batch.key) == number:
            del state.keys[batch.key]
        if batch.spec.name:
            forget_name(state, number, batch.spec.name)
        state.dirty_batches.discard(number)
    state.pruned = _merged([*state.pruned, *((number, number, event.at) for number in event.batches)])


def _merged(rows: list[tuple[int, int, float]]) -> list[tuple[int, int, float]]:
    """Neighbours that were pruned on the same day as one row, so that years of pruning stay a short list."""
    out: list[tuple[int, int, float]] = []
    for first, last, at in sorted(rows):
        if out and out[-1][1] + 1 == first and out[-1][2] // _DAY_S == at // _DAY_S:
            out[-1] = (out[-1][0], last, at)
        else:
            out.append((first, last, at))
    return out


def _restored(state: State, event: ev.Restored) -> None:
    state.next_batch = max(state.next_batch, event.next_batch)
    state.next_allocation = max(state.next_allocation, event.next_allocation)
    state.attempt_floor, state.floor_below = event.attempt_floor, state.next_batch
    for runner in state.runners.values():
        runner.seq = -1  # whatever number its next report has: those before it were told to a manager that is no more


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
    ev.RunnerGreeted: runner_greeted,
    ev.RunnerMoved: runner_moved,
    ev.AllocationPlanned: allocation_planned,
    ev.AllocationMoved: allocation_moved,
    ev.ManagerMoved: _manager_moved,
    ev.LimitSet: _limit_set,
    ev.Noted: _noted,
    ev.Retemplated: _retemplated,
    ev.Learned: _learned,
    ev.RerunWanted: _rerun_wanted,
    ev.Pruned: _pruned,
    ev.Restored: _restored,
    ev.Respecified: _respecified,
}
