"""Evolve, the part of batches: their specifications and indices, limits, learning, and the manager's mode."""

import heapq
import re
from array import array
from bisect import insort

import msgspec

from rota.core.batch import COLUMN_CHUNK, GRAPH, BatchState
from rota.core.dependencies.linking import connect, disconnect, reconnect, regraph, renamed
from rota.core.dependencies.telling import grown
from rota.core.evolve.jobs import push_ready, uncounted, unready
from rota.core.ready import ReadyQueue
from rota.core.state import State
from rota.model import events as ev
from rota.model.batch import Template
from rota.model.graph import with_name
from rota.model.limits import parse_window
from rota.model.shape import Shape
from rota.model.tables import PENDING, WAITING
from rota.schedule.estimate import Group
from rota.schedule.view import Limit

__all__ = [
    "bind",
    "learned",
    "limit_set",
    "manager_moved",
    "named",
    "pruned",
    "respecified",
    "restored",
    "retemplated",
    "set_limit",
    "submitted",
]

_PENDING = bytes((PENDING,))
_PENDING_RUN = re.compile(_PENDING + b"+")
_DAY_S = 86_400


def submitted(state: State, event: ev.Submitted) -> None:
    """A batch is added."""
    batch = BatchState(event.batch, event.spec, event.key, event.at, event.env, event.runs, event.graph)
    batch.by = event.by
    batch.scouting = 0 < batch.spec.scouts < batch.count
    state.batches[batch.id] = batch
    state.keys[event.key] = batch.id
    for name in batch.names:
        state.names.setdefault(name, []).append(batch.id)
    state.next_batch = max(state.next_batch, batch.id + 1)
    bind(state, batch)
    for name in batch.names:
        grown(state, name)
    if event.ready:
        batch.states[:] = _PENDING * batch.count
        batch.counts[WAITING], batch.counts[PENDING] = 0, batch.count
        batch.known_until = state.next_batch - 1
        push_ready(state, batch, 0, batch.count)
    batch.dirty.update(range((batch.count - 1) // COLUMN_CHUNK + 1))
    if batch.graph is not None:
        batch.dirty.add(GRAPH)
    state.dirty_batches.add(batch.id)


def bind(state: State, batch: BatchState) -> None:
    """Connect a new or restored batch with shapes, limits, dependencies and timers."""
    own_limit = f"#{batch.id}"
    if batch.spec.at_once is not None:
        state.limits[own_limit] = Limit(batch.spec.at_once, state.limits.get(own_limit, Limit(None, 0)).used)
    for template in batch.templates:
        _bind_windows(state, template)
    batch.shapes = [state.shape_number(_shape(batch, template)) for template in batch.templates]
    if batch.spec.after or batch.graph is not None:
        connect(state, batch)
    if batch.spec.not_before is not None:
        heapq.heappush(state.timers, (batch.spec.not_before, batch.id, -1))


def unbind(state: State, batch: BatchState) -> None:
    """Take a settled batch out of limits, shapes, dependencies and timers."""
    state.limits.pop(f"#{batch.id}", None)
    for number, queue in zip(batch.shapes, batch.queues, strict=True):
        if queue.listed:
            shape = state.shapes[number]
            shape.heads = [head for head in shape.heads if head[1] != batch.id]
            heapq.heapify(shape.heads)
            queue.listed = False
            shape.trim(state.batches)
    disconnect(state, batch)
    if batch.spec.not_before is not None or batch.until:
        state.timers = [timer for timer in state.timers if timer[1] != batch.id]
        heapq.heapify(state.timers)


def _shape(batch: BatchState, template: Template) -> Shape:
    own = {f"#{batch.id}"} if batch.spec.at_once is not None else set()
    limits = tuple(sorted({*template.limits, *own}))
    group, override, ends = template.group, template.override, template.time_ends
    share, level, near = template.share, template.level, template.near
    return Shape(template.needs, limits, template.policy, group, override, level, share, ends, near, template.scout)


def _bind_windows(state: State, template: Template) -> None:
    for name in template.limits:
        if "<" in name and name not in state.limits:  # a window that stands for itself
            set_limit(state, name, Limit(None, 0, window=parse_window(name)))


def template_number(state: State, batch: BatchState, template: Template) -> int:
    """The number of a template of a batch, which is added if it is new."""
    if template in batch.templates:
        return batch.templates.index(template)
    _bind_windows(state, template)
    batch.templates.append(template)
    batch.queues.append(ReadyQueue())
    batch.shapes.append(state.shape_number(_shape(batch, template)))
    return len(batch.templates) - 1


def retemplated(state: State, event: ev.Retemplated) -> None:
    """Jobs of a batch get another template."""
    batch = state.batches[event.batch]
    batch.changes += 1
    number = template_number(state, batch, event.template)
    if batch.template_numbers is None:
        batch.template_numbers = array("H", bytes(2 * batch.count))
    for low, high in zip(event.spans[::2], event.spans[1::2], strict=True):
        pending = [match.span() for match in _PENDING_RUN.finditer(batch.states, low, high)]
        if pending:
            unready(state, batch, low, high)
        batch.template_numbers[low:high] = array("H", [number]) * (high - low)
        for start, end in pending:
            push_ready(state, batch, start, end)
    state.dirty_batches.add(batch.id)


def respecified(state: State, event: ev.Respecified) -> None:
    """A batch gets another name, other dependencies, times and bounds."""
    batch = state.batches[event.batch]
    old = batch.spec
    changed = ("name", "after", "not_before", "at_once", "max_failures")
    spec = msgspec.structs.replace(old, **{name: getattr(event, name) for name in changed})
    if event.scouts is not None:
        spec = msgspec.structs.replace(spec, scouts=event.scouts)
        batch.scouting = batch.scouting and spec.scouts > 0
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
        if old.name and old.name not in batch.names:
            forget_name(state, batch.id, old.name)
        if spec.name and batch.id not in state.names.get(spec.name, ()):
            insort(state.names.setdefault(spec.name, []), batch.id)
        renamed(state, batch, old.name)
    state.freed.append((batch.id, 0, batch.count))
    state.dirty_batches.add(batch.id)


def named(state: State, event: ev.Named) -> None:
    """Jobs of a batch get a name of their own."""
    batch = state.batches[event.batch]
    pairs = zip(event.spans[::2], event.spans[1::2], strict=True)
    positions = [pos for low, high in pairs for pos in range(low, high)]
    regraph(state, batch, with_name(batch.graph.given if batch.graph else None, batch.count, event.name, positions))
    if batch.id not in state.names.get(event.name, ()):
        insort(state.names.setdefault(event.name, []), batch.id)
    grown(state, event.name)
    state.tallies.pop(event.name, None)
    batch.dirty.add(GRAPH)
    state.dirty_batches.add(batch.id)


def _rebind(state: State, batch: BatchState) -> None:
    """Give the jobs of a batch whose own limit was changed, set or taken away their new shapes."""
    own_limit = f"#{batch.id}"
    changed = state.soft.planning.changed
    changed.limits.add(own_limit)
    used = state.limits.pop(own_limit, Limit(None, 0)).used - batch.loose
    batch.loose = uncounted(state, batch) if batch.spec.at_once is not None else 0
    if batch.spec.at_once is not None or used:
        state.limits[own_limit] = Limit(batch.spec.at_once, used + batch.loose)
    for template, queue in enumerate(batch.queues):
        shape = _shape(batch, batch.templates[template])
        old, new = state.shapes[batch.shapes[template]], state.shapes[state.shape_number(shape)]
        batch.shapes[template] = new.id
        changed.shapes.update((old.id, new.id))
        old.ready -= queue.count
        new.ready += queue.count
        if queue.listed:
            old.heads = [head for head in old.heads if head[1:] != (batch.id, template)]
            heapq.heapify(old.heads)
            old.trim(state.batches)
            heapq.heappush(new.heads, (-batch.templates[template].priority, batch.id, template))
            new.trim(state.batches)


def forget_name(state: State, number: int, name: str) -> None:
    """Take a batch out of the list of those that have this name."""
    state.names[name].remove(number)
    if not state.names[name]:
        del state.names[name]


def pruned(state: State, event: ev.Pruned) -> None:
    """Settled batches are forgotten."""
    for number in event.batches:
        batch = state.batches.pop(number)
        assert not batch.unsettled and not batch.closing, f"batch {number} is not settled and was pruned"
        unbind(state, batch)
        if state.keys.get(batch.key) == number:
            del state.keys[batch.key]
        for name in batch.names:
            forget_name(state, number, name)
        state.dirty_batches.discard(number)
    state.pruned = _merged([*state.pruned, *((number, number, event.at) for number in event.batches)])


def _merged(rows: list[tuple[int, int, float]]) -> list[tuple[int, int, float]]:
    """The rows, with neighbours that were pruned on the same day as one: years of pruning stay a short list."""
    out: list[tuple[int, int, float]] = []
    for first, last, at in sorted(rows):
        if out and out[-1][1] + 1 == first and out[-1][2] // _DAY_S == at // _DAY_S:
            out[-1] = (out[-1][0], last, at)
        else:
            out.append((first, last, at))
    return out


def restored(state: State, event: ev.Restored) -> None:
    """The state came from a backup: numbers that may have been used since are skipped."""
    state.next_batch = max(state.next_batch, event.next_batch)
    state.next_allocation = max(state.next_allocation, event.next_allocation)
    state.attempt_floor, state.floor_below = event.attempt_floor, state.next_batch
    for runner in state.runners.values():
        runner.seq = -1  # any number will do for its next report: the manager that had those before is no more


def learned(state: State, event: ev.Learned) -> None:
    """Add samples of what jobs of a group used."""
    group = state.groups.setdefault(event.group, Group())
    state.soft.planning.changed.groups.add(event.group)
    for samples, values in ((group.memory, event.memory), (group.disk, event.disk), (group.time_s, event.time_s)):
        for value, count in zip(values[::2], values[1::2], strict=True):
            samples.add(value, count)


def limit_set(state: State, event: ev.LimitSet) -> None:
    """A named limit is set, or taken away."""
    used = state.limits.get(event.name, Limit(None, 0)).used
    window = parse_window(event.window) if event.window is not None else None
    set_limit(state, event.name, Limit(event.count, used, event.rate, event.per_s, window))


def set_limit(state: State, name: str, limit: Limit) -> None:
    """Put a new or restored limit in its place. What a rate has counted so far stays counted."""
    state.soft.planning.changed.limits.add(name)
    state.limits[name] = limit
    if limit.rate is None:
        state.starts.pop(name, None)
    if limit.rate is None and limit.window is None:
        state.timed.discard(name)
        if limit.count is None and not limit.used:
            del state.limits[name]
    else:
        state.timed.add(name)


def manager_moved(state: State, event: ev.ManagerMoved) -> None:
    """The manager serves, is paused, or drains."""
    state.mode = event.mode
    if event.pauses is not None:
        state.pauses = {holder: (since, why, by) for holder, since, why, by in event.pauses}
    elif event.mode != "draining":
        state.pauses = {"user": (0.0, "", event.by)} if event.mode == "paused" else {}
