"""The state as bytes, and back: what a checkpoint keeps so that a restart need not fold the whole log.

A batch is written only when it changed: one record for what is small (chunk number -1) and one per changed stretch of
jobs. What cannot be derived is kept; indices, queues and counts are rebuilt.
"""

import itertools
from array import array
from collections.abc import Iterable, Iterator
from operator import itemgetter
from typing import Any

import msgspec
from msgspec import Struct, field

from rota.core.batch import COLUMN_CHUNK, GRAPH, BatchState, Live
from rota.core.dependencies.looking import watch_all
from rota.core.evolve import evolve
from rota.core.evolve.batches import bind, set_limit
from rota.core.evolve.gangs import reserve_part
from rota.core.evolve.jobs import push_ready, slot_of, uncounted
from rota.core.evolve.runners import join_allocation, place_runner, set_slots
from rota.core.graph import Gate
from rota.core.notes import took
from rota.core.selection import states_pattern
from rota.core.settled import SMALL, BatchRecord, Settled, batch_of, put_all_away, record_of, rest, settled_of
from rota.core.state import RunnerState, Settings, State
from rota.model.allocation import Allocation
from rota.model.errors import StoreError
from rota.model.events import Ended, Entry
from rota.model.graph import Graph
from rota.model.limits import parse_window
from rota.model.needs import Amounts
from rota.model.shape import Shape
from rota.model.slot import Slot
from rota.model.tables import JOB_STATES, PENDING, SETTLED
from rota.schedule.broker.sites import Waited
from rota.schedule.estimate import Group
from rota.schedule.limits import Starts
from rota.schedule.view import Limit

__all__ = ["ColumnRow", "restore", "take_columns", "take_snapshot"]

ColumnRow = tuple[int, int, bytes, bytes]
"""(batch, chunk, states, attempts); chunk -1: the batch's own record, in `states`; -2: its graph, likewise."""


_Leased = tuple[BatchState, int, str, Slot | str, tuple[tuple[str, Slot], ...]]
"""(batch, position, runner, slot, further parts) of a live attempt."""


class _Runner(Struct, array_like=True):
    id: str
    state: str
    allocation: str | None
    connect: int
    session: int
    host: str
    pid: int
    capacity: Amounts
    tags: tuple[str, ...]
    until: float | None
    output: str
    site: str
    seq: int
    slots: dict[str, int] | list[tuple[Slot, int]]
    """In version 1 by name."""
    drain_wanted: bool
    direct: bool = False
    gangs: bool = False
    parts: list[tuple[int, int, int, Slot]] = field(default_factory=list)
    lost: list[tuple[int, int, int]] = field(default_factory=list)


SNAPSHOT_VERSION = 3
"""Raised when a snapshot is written that an older rota would misread."""


class _Version(Struct):
    version: int = 1


class _Snapshot(Struct):
    mode: str
    next_batch: int
    next_allocation: int
    shapes: list[Shape]
    runners: list[_Runner]
    allocations: list[Allocation]
    limits: dict[str, int | None]
    version: int = SNAPSHOT_VERSION
    groups: dict[str, Group] = field(default_factory=dict)
    timed: dict[str, tuple[int | None, int, str | None]] = field(default_factory=dict)
    """Limits with a rate or a window: (rate, its seconds, window)."""
    starts: dict[str, list[tuple[float, float, int]]] = field(default_factory=dict)
    pauses: dict[str, tuple[float, str, str]] = field(default_factory=dict)
    pruned: list[tuple[int, int, float]] = field(default_factory=list)
    attempt_floor: int = 0
    floor_below: int = 0
    shares: dict[str, dict[int, int]] = field(default_factory=dict)
    waited: list[tuple[str, str, Waited]] = field(default_factory=list)
    """(site, queue, how long allocations waited there)."""


_PLAIN = (
    "mode", "next_batch", "next_allocation", "groups", "pauses", "pruned", "attempt_floor", "floor_below", "shares",
)  # fmt: skip
"""Fields of a snapshot that are attributes of the state."""
_CHARGED = ("slots", "parts", "lost")
"""Fields of a runner's record that are not its attributes as they are."""

_encode = msgspec.msgpack.Encoder().encode
_decode_version = msgspec.msgpack.Decoder(_Version).decode
_decode_snapshot = msgspec.msgpack.Decoder(_Snapshot).decode
_decode_batch = msgspec.msgpack.Decoder(BatchRecord).decode
_decode_graph = msgspec.msgpack.Decoder(Graph).decode


def take_snapshot(state: State) -> bytes:
    """The part of the state that is not in batches. All but the newest allocations that are over are left behind."""
    serving = {runner.allocation for runner in state.runners.values() if runner.state not in ("CLOSED", "EXPIRED")}
    over = [a.id for a in state.allocations.values() if a.state.endswith("ED") and a.id not in serving]
    kept = {*sorted(over, key=lambda name: int(name[1:]))[-100:]}
    kept |= {a.id for a in state.allocations.values() if a.state.endswith("ING")}
    runners = [r for r in state.runners.values() if r.state not in ("CLOSED", "EXPIRED") or r.allocation in kept]
    timed = {name: state.limits[name] for name in state.timed}
    return _encode(
        _Snapshot(
            **{name: getattr(state, name) for name in _PLAIN},
            shapes=[shape.shape for shape in state.shapes],
            runners=[_record(runner) for runner in runners],
            allocations=[a for a in state.allocations.values() if a.id in serving or a.id in kept],
            limits={name: limit.count for name, limit in state.limits.items() if not name.startswith("#")},
            timed={
                name: (limit.rate, limit.per_s, limit.window.name if limit.window is not None else None)
                for name, limit in timed.items()
            },
            starts={name: starts.rows for name, starts in state.starts.items()},
            waited=[(*key, learned) for key, learned in state.waited.items()],
        )
    )


def _record(runner: RunnerState) -> _Runner:
    fields = {name: getattr(runner, name) for name in _Runner.__struct_fields__ if name not in _CHARGED}
    parts = [(*key, slot) for key, slot in runner.parts.items()]
    return _Runner(**fields, slots=list(runner.slots.items()), parts=parts, lost=list(runner.lost))


def take_columns(state: State) -> Iterator[ColumnRow]:
    """The records of batches, and the chunks of their columns, that changed since the last call.

    What is settled is put away then, if it was not before.
    """
    for number in sorted(state.dirty_batches):
        batch = state.batches.peek(number)
        assert batch is not None, f"batch {number} has changed, and is not there"
        if isinstance(batch, Settled):
            yield number, -1, batch.record, b""
            yield number, 0, batch.states, batch.attempts
            continue
        record = record_of(batch)
        packed = _encode(record)
        yield number, -1, packed, b""
        if GRAPH in batch.dirty and batch.graph is not None:
            batch.dirty.discard(GRAPH)
            yield number, GRAPH, _encode(batch.graph.given), b""
        for chunk in sorted(batch.dirty) if batch.count > SMALL else (0,):  # one may be back from where it was put away
            low, high = chunk * COLUMN_CHUNK, (chunk + 1) * COLUMN_CHUNK
            yield number, chunk, bytes(batch.states[low:high]), batch.attempts[low:high].tobytes()
        batch.dirty.clear()
        rest(state.batches, batch, record, packed)
    state.dirty_batches.clear()
    put_all_away(state.batches)


def _gates(batch: BatchState) -> list[Gate]:
    return batch.graph.gates if batch.graph is not None else []


def restore(
    settings: Settings, seed: int, snapshot: bytes | None, seq: int, columns: Iterable[ColumnRow], tail: Iterable[Entry]
) -> State:
    """The state from a snapshot, its columns, and the log after it. Raises StoreError for one of a newer rota."""
    state = State(settings, seed)
    live: list[_Leased] = []
    if snapshot is not None:
        version = _decode_version(snapshot).version
        if version > SNAPSHOT_VERSION:
            raise StoreError(
                f"the checkpoint has version {version}, and this rota knows versions up to {SNAPSHOT_VERSION}: use the "
                "newer rota that wrote it, or a backup made before the upgrade"
            )
        kept = _decode_snapshot(snapshot)
        _restore_small(state, kept)
        _restore_batches(state, columns, live)
        _restore_live(state, kept, live)
        state.seq = seq
    for entry in tail:
        assert entry.seq == state.seq + 1, f"entry {entry.seq} follows {state.seq}"
        evolve(state, entry.event)
        if isinstance(entry.event, Ended):
            took(state, entry.event)
    watch_all(state)
    put_all_away(state.batches)
    return state


def _restore_small(state: State, kept: _Snapshot) -> None:
    """Restore what is not in batches, but for runners."""
    for name in _PLAIN:
        setattr(state, name, getattr(kept, name))
    if state.mode == "paused" and not state.pauses:  # by an older rota
        state.pauses = {"user": (0.0, "", "")}
    state.waited = {(site, queue): learned for site, queue, learned in kept.waited}
    for shape in kept.shapes:
        state.shape_number(shape)
    for name, count in kept.limits.items():
        rate, per_s, window = kept.timed.get(name, (None, 0, None))
        set_limit(state, name, Limit(count, 0, rate, per_s, parse_window(window) if window is not None else None))
    state.starts = {name: Starts(rows) for name, rows in kept.starts.items()}
    for allocation in kept.allocations:
        state.allocations[allocation.id] = allocation
        state.census.count(allocation, 1)
        if allocation.state.endswith("ED"):
            state.over.append(allocation.id)


def _restore_batches(state: State, columns: Iterable[ColumnRow], live: list[_Leased]) -> None:
    pending = states_pattern((PENDING,))
    made: list[BatchState] = []
    for number, rows in itertools.groupby(sorted(columns, key=itemgetter(0, 1)), key=itemgetter(0)):
        if state.pruned and state.pruned_at(number) is not None:
            continue  # the store has not yet swept its rows
        parts = {chunk: (states, attempts) for _, chunk, states, attempts in rows}
        packed = parts.pop(-1)[0]
        record = _decode_batch(packed)
        names: Iterable[str]
        if _rests(state, record, parts):
            state.batches[number] = settled_of(number, record, packed, *parts[0])
            names = (record.spec.name,) if record.spec.name else ()
        else:
            batch = state.batches[number] = _restored(number, record, parts)
            live.extend((batch, pos, runner, slot, record.parts.get(pos, ())) for pos, runner, slot in record.live)
            made.append(batch)
            names = batch.names
        state.keys[record.key] = number
        for name in names:
            state.names.setdefault(name, []).append(number)
    for batch in made:  # a batch may have been made to wait for a newer one
        bind(state, batch)
        for pos, until in batch.until.items():
            state.timers.append((until, batch.id, pos))
        if batch.counts[PENDING]:
            for match in pending.finditer(batch.states):
                push_ready(state, batch, *match.span())
    state.timers.sort()


def _rests(state: State, record: BatchRecord, parts: dict[int, tuple[bytes, bytes]]) -> bool:
    """Whether a batch is settled and in no index but those of names and keys, so that it need not be made whole."""
    spec = record.spec
    if spec.count > SMALL or parts.keys() != {0} or len(parts[0][0]) != spec.count or min(parts[0][0]) < SETTLED:
        return False
    if spec.after or spec.not_before is not None or spec.at_once is not None or record.live or record.until:
        return False
    if record.closing or record.broken or record.hold_wanted or record.rerun_wanted:
        return False
    templates = (*spec.templates, *record.more)
    if any("<" in name for template in templates for name in template.limits):
        return False  # a window that stands for itself is bound with its batch
    return len(record.shapes) == len(templates) and max(record.shapes) < len(state.shapes)


def _restored(number: int, record: BatchRecord, parts: dict[int, tuple[bytes, bytes]]) -> BatchState:
    graph = parts.pop(GRAPH, None)
    batch = batch_of(number, record, _decode_graph(graph[0]) if graph is not None else None)
    for chunk, (states, attempts) in parts.items():
        low = chunk * COLUMN_CHUNK
        batch.states[low : low + len(states)] = states
        batch.attempts[low : low + len(states)] = array("I", attempts)
    batch.counts = [batch.states.count(state) for state in range(len(JOB_STATES))]
    return batch


def _restore_live(state: State, kept: _Snapshot, live: list[_Leased]) -> None:
    for record in kept.runners:
        runner = state.runners[record.id] = RunnerState(record.id)
        for name in _Runner.__struct_fields__:
            if name not in _CHARGED:
                setattr(runner, name, getattr(record, name))
        runner.lost = dict.fromkeys(record.lost)
        state.census.runner(runner.id, "", runner.state)
        join_allocation(state, runner)
        if runner.state not in ("CLOSED", "EXPIRED"):
            place_runner(state, runner)
    for batch, pos, runner_id, known, parts in live:
        runner, slot = state.runners[runner_id], slot_of(state, known)
        batch.live[pos] = Live(runner_id, slot, batch.attempts[pos], parts)
        runner.jobs[batch.id, pos] = None
        runner.held[slot] = runner.held.get(slot, 0) + 1
    for record in kept.runners:
        for known, count in record.slots.items() if isinstance(record.slots, dict) else record.slots:
            set_slots(state, state.runners[record.id], slot_of(state, known), count, restoring=True)
        for number, pos, attempt, slot in record.parts:
            reserve_part(state, state.runners[record.id], (number, pos, attempt), slot, restoring=True)
    for batch in {batch.id: batch for batch, *_ in live}.values():
        if batch.spec.at_once is not None and (loose := uncounted(state, batch)):
            batch.loose = loose
            limit = state.limits[f"#{batch.id}"]
            state.limits[f"#{batch.id}"] = msgspec.structs.replace(limit, used=limit.used + loose)


def _graph_view(batch: BatchState) -> tuple[Any, ...]:
    graph = batch.graph
    return () if graph is None else (graph.given, bytes(graph.classes[: graph.first]), graph.ends, graph.bad)


def durable_view(state: State) -> dict[str, Any]:
    """Everything that must be equal after a restart, for comparison in tests and invariants."""
    return {
        "mode": state.mode,
        "pauses": state.pauses,
        "pruned": state.pruned,
        "floor": (state.attempt_floor, state.floor_below),
        "next": (state.next_batch, state.next_allocation),
        "names": state.names,
        "waiters": {key: waiting for key, waiting in state.waiters.items() if waiting},
        "open": {name: waiting for name, waiting in state.open_names.items() if waiting},
        "batches": {
            batch.id: (
                bytes(batch.states),
                batch.attempts.tobytes(),
                sorted((pos, live.runner, live.slot, live.attempt, live.parts) for pos, live in batch.live.items()),
                batch.closing,
                batch.broken,
                batch.failures,
                batch.losses,
                batch.until,
                batch.hold_wanted,
                batch.counts,
                [queue.count for queue in batch.queues],
                batch.templates,
                None if batch.template_numbers is None else batch.template_numbers.tobytes(),
                batch.rerun_wanted,
                [batch.known_until, *(gate.known_until for gate in _gates(batch))],
                batch.spec,
                batch.loose,
                _graph_view(batch),
            )
            for batch in state.batches.values()
        },
        "runners": {
            runner.id: (
                *(runner.state, runner.session, runner.seq, runner.gangs),
                *(runner.slots, runner.held, sorted(runner.jobs), runner.parts, list(runner.lost)),
            )
            for runner in state.runners.values()
            if runner.state not in ("CLOSED", "EXPIRED")
        },
        "allocations": {a.id: (a.state, a.native_id) for a in state.allocations.values() if a.state.endswith("ING")},
        "groups": state.groups,
        "shares": state.shares,
        "waited": state.waited,
        "limits": {
            name: (limit.count, limit.used, limit.rate, limit.per_s, limit.window)
            for name, limit in state.limits.items()
            if limit.count is not None or limit.used or name in state.timed
        },
        "starts": {name: starts.rows for name, starts in state.starts.items()},
        "used": {name: used for name, used in state.ledger.used.items() if used != Amounts()},
    }
