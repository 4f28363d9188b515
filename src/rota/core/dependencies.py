"""Dependencies: when the jobs of a batch may run, and when they never can.

Nothing is expanded. A batch that waits is told of one thing at a time: the end of one batch, or of one job, that it
cannot do without; then it looks for the next. So a dependency costs one look, whatever the sizes, and a batch for which
ten thousand others wait is cheap until it is settled. A batch that depends on another job by job is told of just the
positions that were settled, and compares stretches of state bytes. Jobs that wait for others one by one have a graph
(`rota.core.graph`), whose *gates* wait for what is outside of the batch, each in the way of a batch that waits.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from operator import attrgetter

import msgspec

from rota.core.batch import BatchState, epoch_of
from rota.core.graph import BAD, CLASSES, GONE, GOOD, OPEN, Gate, GraphState, Token
from rota.core.graph import spans as spans_at
from rota.core.settled import AnyBatch, whole
from rota.core.state import State
from rota.model import events as ev
from rota.model.batch import MAX_JOBS, BatchSpec, Dependency
from rota.model.graph import Graph
from rota.model.job import format_job
from rota.model.selector import parse_selector
from rota.model.tables import COMPLETED, HOLDING, JOB_STATES, REMOVED, SETTLED, WAITING

__all__ = [
    "connect",
    "consequences",
    "dependents",
    "element_reason",

    "follow_up",
    "freeze",
    "grown",
    "longest_backoff",
    "named",
    "never",
    "note_settled",
    "open_to",
    "parents_of",
    "positions_of",
    "reconnect",
    "recounted",
    "refresh",
    "regraph",
    "renamed",
    "reopened",
    "tally",
    "told_of",
    "touched",
    "waits_of",
    "watch_all",
    "woken",
]  # fmt: skip

_MET, _OPEN, _NEVER = 0, 1, 2
_HELD, _NO = 8, 4
_LIKEWISE = ", and others likewise"
_WAITING_RUN = re.compile(bytes((WAITING,)) + b"+")
_OMITTABLE_RUN = re.compile(b"[" + bytes((WAITING, HOLDING)) + b"]+")
_UNSETTLED = re.compile(b"[" + bytes((0,)) + b"-" + bytes((SETTLED - 1,)) + b"]")
_READY_RUN = re.compile(b"\x00+")
_OMIT_RUN = re.compile(b"[" + bytes((_NEVER, _NEVER | _OPEN, _HELD | _NEVER, _HELD | _NEVER | _OPEN)) + b"]+")


def _table(met: Iterable[int], never: Iterable[int]) -> bytes:
    table = bytearray([_OPEN]) * 256
    for number in met:
        table[number] = _MET
    for number in never:
        table[number] = _NEVER
    return bytes(table)


_BAD = tuple(range(COMPLETED + 1, REMOVED))
_CODES = {
    "success": _table((COMPLETED, REMOVED), _BAD),
    "any": _table((COMPLETED, *_BAD, REMOVED), ()),
    "failure": _table(_BAD, (COMPLETED, REMOVED)),
}
"""Condition → for each state byte of the job waited for: met, open or never. Nobody waits for a removed job."""
_OWN = bytearray([_NO]) * 256
_OWN[WAITING], _OWN[HOLDING] = 0, _HELD
"""For each state byte of the job that waits: whether it can become ready, be omitted only, or neither."""


# ---- who depends on whom ------------------------------------------------------------------------------------------


def positions_of(state: State, target: str) -> tuple[int, int, int]:
    """(batch, low, high) of a target that is not a name; an empty range if there is no such batch."""
    number, first, last = parse_selector([target]).spans[0]
    kept = state.batches.peek(number)
    if kept is None:
        return number, 0, 0
    if first is None and last is None:
        return number, 0, kept.count
    batch = whole(kept)
    low = 0 if first is None else batch.position(first)
    end = batch.count - 1 if last is None else batch.position(last)
    return (number, 0, 0) if low is None or end is None else (number, low, end + 1)


def waits_of(batch: BatchState) -> Iterator[BatchState | Gate]:
    """All that waits of a batch and is told: itself as a whole, and the gates of its graph."""
    yield batch
    if batch.graph is not None:
        yield from batch.graph.gates


def _waiter(state: State, token: Token) -> BatchState | Gate | None:
    batch = state.batches.get(token[0])
    if batch is None or token[1] < 0:
        return batch
    return batch.graph.gates[token[1]] if batch.graph is not None else None


def connect(state: State, batch: BatchState) -> None:
    """Enter a new or restored batch into the indices; the batches that it depends on are there already."""
    for waits in waits_of(batch):
        edges = []
        for dependency in waits.after:
            target = dependency.target
            if target.startswith("@"):
                edges.append((0, 0, 0))
                state.waiters.setdefault(target, set()).add(batch.id)
                if _is_open(state, waits, dependency):
                    state.open_names.setdefault(target[1:], set()).add(batch.id)
                continue
            edge = positions_of(state, target)
            edges.append(edge)
            state.waiters.setdefault(str(edge[0]), set()).add(batch.id)
            other = state.batches.get(edge[0]) if dependency.each else None
            if other is not None:
                other.twins.append((batch.id, edge[1]))
                other.followed = True
        waits.edges = tuple(edges)
        waits.epoch = epoch_of(waits.edges)
    batch.elements = tuple(at for at, dependency in enumerate(batch.spec.after) if dependency.each)
    for _, number, _ in batch.graph.jobs if batch.graph is not None else ():
        state.waiters.setdefault(str(number), set()).add(batch.id)
        other = state.batches.get(number)
        if other is not None:
            other.twins.append((batch.id, -1))
            other.followed = True
        refresh_jobs(state, batch, number)


def disconnect(state: State, batch: BatchState) -> None:
    """Take a settled batch that is pruned out of the indices."""
    _sever(state, batch)
    for twin, offset in batch.twins:
        if offset < 0 and twin in state.batches:
            refresh_jobs(state, state.batches[twin], batch.id)
    state.waiters.pop(str(batch.id), None)
    for name in batch.names:
        if state.tallies.pop(name, None) is not None:
            state.epoch += 1


def _sever(state: State, batch: BatchState) -> None:
    """Take the dependencies of a batch out of the indices."""
    rows = [
        (d, edge, waits.token) for waits in waits_of(batch) for d, edge in zip(waits.after, waits.edges, strict=True)
    ]
    for number, _ in batch.graph.given.jobs if batch.graph is not None else ():
        rows.append((Dependency(str(number), each=True), (number, 0, 0), batch.token))
    for dependency, edge, token in rows:
        key = dependency.target if edge[0] == 0 else str(edge[0])
        waiting = state.waiters.get(key, set())
        waiting.discard(batch.id)
        if not waiting:
            state.waiters.pop(key, None)
        other = state.batches.get(edge[0]) if dependency.each else None
        if other is not None:
            other.twins = [twin for twin in other.twins if twin[0] != batch.id]
        if edge[0] == 0:
            state.open_names.get(key[1:], set()).discard(batch.id)
            if token in state.unnamed.get(key[1:], ()):
                state.unnamed[key[1:]].remove(token)


def reconnect(state: State, batch: BatchState, spec: BatchSpec) -> None:
    """Give a batch other dependencies."""
    for waits in waits_of(batch):
        _look_anew(state, waits)
    _sever(state, batch)
    batch.spec, batch.known_until = spec, 0
    connect(state, batch)


def regraph(state: State, batch: BatchState, given: Graph) -> None:
    """Give a batch another graph, with the same gates."""
    for waits in waits_of(batch):
        _look_anew(state, waits)
    _sever(state, batch)
    graph = GraphState(batch.id, batch.count, given)
    if batch.graph is not None:
        graph.told = batch.graph.told
        for old, new in zip(batch.graph.gates, graph.gates, strict=True):
            new.known_until = old.known_until
    batch.graph, batch.followed = graph, True
    connect(state, batch)
    refresh(state, batch, 0, batch.count)
    state.freed.append((batch.id, 0, batch.count))


def renamed(state: State, batch: BatchState, old: str) -> None:
    """Have batches that wait for the old or the new name of a batch look again: it counts as always having had it."""
    for name in (old, batch.spec.name):
        state.tallies.pop(name, None)
        waiters = [state.batches[n] for n in sorted(state.waiters.get(f"@{name}", ())) if n in state.batches]
        for waiter in waiters:
            for waits in waits_of(waiter):
                if any(dependency.target == f"@{name}" for dependency in waits.after):
                    _look_anew(state, waits)
                    if waits.known_until and not freezable(state, waits):
                        waits.known_until = 0
                        state.dirty_batches.add(waiter.id)
            _enter_open(state, waiter)
            if waiter.counts[WAITING] or waiter.counts[HOLDING]:
                state.freed.append((waiter.id, 0, waiter.count))
    state.epoch += 1


def _enter_open(state: State, batch: BatchState) -> None:
    """Note of every name that a batch depends on whether each new batch of it counts."""
    names = [(waits, d) for waits in waits_of(batch) for d in waits.after if d.target.startswith("@")]
    for _, dependency in names:
        state.open_names.setdefault(dependency.target[1:], set()).discard(batch.id)
    for waits, dependency in names:
        if _is_open(state, waits, dependency):
            state.open_names[dependency.target[1:]].add(batch.id)


def _look_anew(state: State, waits: BatchState | Gate) -> None:
    """Have a batch or gate look at its dependencies from the first again, and have nobody tell it before."""
    told: set[Token] | list[Token] = []
    if isinstance(waits.waits, str):
        told = state.unnamed.get(waits.waits, [])
    elif waits.waits is not None:
        told = told_of(state.batches[waits.waits[0]], waits.waits[1])
    if waits.token in told:
        told.remove(waits.token)
    _start_over(state, waits)


def told_of(batch: BatchState, what: int | str) -> set[Token] | list[Token]:
    """Those who are told when a job, all of a batch (-1) or all of a name in it is settled."""
    if isinstance(what, str):
        return batch.graph.told.get(what, set()) if batch.graph is not None else set()
    return batch.watchers if what < 0 else batch.marks.get(what, [])


def _start_over(state: State, waits: BatchState | Gate) -> None:
    waits.waits, waits.met, waits.seen = None, 0, -1
    _to_look(state, waits)


def _to_look(state: State, waits: BatchState | Gate) -> None:
    """Note that a gate is to be looked at; a batch is when any of its jobs is."""
    if isinstance(waits, Gate):
        graph = state.batches[waits.id].graph
        assert graph is not None
        graph.todo.add(waits.number)


def _is_open(state: State, waits: BatchState | Gate, dependency: Dependency) -> bool:
    """Whether every new batch of a name counts for a dependency on it."""
    return dependency.live or (not waits.known_until and not _earlier(state, waits, dependency.target[1:]))


def _earlier(state: State, batch: BatchState | Gate, name: str) -> int:
    """How many batches of this name came before the batch."""
    return bisect_left(state.names.get(name, ()), batch.id)


def named(state: State, batch: BatchState | Gate, dependency: Dependency) -> tuple[list[int], int, int]:
    """(numbers, from, to): the batches that a name means to a batch, as a part of the list of all that have it.

    These are the earlier ones; if there are none, the later ones, up to when the batch was first ready: so batches of
    one name can be chained by it, and none waits for itself. If the dependency is live, all.
    """
    numbers = state.names.get(dependency.target[1:], [])
    if dependency.live:
        return numbers, 0, len(numbers)
    earlier = bisect_left(numbers, batch.id)
    if earlier:
        return numbers, 0, earlier
    return numbers, 0, bisect_right(numbers, batch.known_until) if batch.known_until else len(numbers)


def freeze(state: State, batch: BatchState, spans: list[int]) -> None:
    """Fix what the names mean that these jobs of a batch depend on, now that they are first ready or omitted."""
    frozen = False
    for waits in _first_waits(batch, spans):
        if freezable(state, waits):
            waits.known_until = state.next_batch - 1
            frozen = True
    if frozen:
        _enter_open(state, batch)


def _first_waits(batch: BatchState, spans: list[int]) -> Iterator[BatchState | Gate]:
    """What these jobs depend on by a name that still means whatever comes."""
    if batch.epoch >= 0 and not batch.known_until:
        yield batch
    if batch.graph is None or all(gate.epoch < 0 or gate.known_until for gate in batch.graph.gates):
        return
    for low, high in zip(spans[::2], spans[1::2], strict=True):
        for pos in range(low, high):
            for link in batch.graph.parents(pos):
                at = (link >> 2) - batch.graph.first
                gate = batch.graph.gates[at] if 0 <= at < len(batch.graph.gates) else None
                if gate is not None and gate.epoch >= 0 and not gate.known_until:
                    yield gate


def freezable(state: State, waits: BatchState | Gate) -> bool:
    """Whether each name that a batch or gate depends on, but for live ones, means some batch."""
    names = [each for each in waits.after if each.target.startswith("@") and not each.live]
    return all(low < high for _, low, high in (named(state, waits, dependency) for dependency in names))


def dependents(state: State, batch: BatchState, by_name: bool = True) -> Iterator[BatchState]:
    """Other batches whose dependencies name this one, or a part of it, or one of its names."""
    keys = [str(batch.id), *(f"@{name}" for name in (batch.names if by_name else ()))]
    for key in keys:
        for number in sorted(state.waiters.get(key, ())):
            if number in state.batches:
                yield state.batches[number]


def open_to(state: State, name: str) -> list[BatchState]:
    """Batches for which every new batch of this name counts."""
    return [state.batches[number] for number in sorted(state.open_names.get(name, ())) if number in state.batches]


def touched(
    state: State, waiter: BatchState, batch: BatchState, spans: list[int]
) -> Iterator[tuple[Dependency, list[int]]]:
    """(dependency, spans of the waiter) for each dependency of the waiter on one of these positions of a batch."""
    for dependency, edge in zip(waiter.spec.after, waiter.edges, strict=True):
        if edge[0] == batch.id and dependency.each:
            moved = [min(max(at - edge[1], 0), waiter.count) for at in spans]
            pairs = zip(moved[::2], moved[1::2], strict=True)
            mine = [at for pair in pairs if pair[0] < pair[1] for at in pair]
            if mine:
                yield dependency, mine
        elif _concerns(state, waiter, dependency, edge, batch, spans):
            yield dependency, [0, waiter.count]
    if waiter.graph is None:
        return
    for gate in waiter.graph.gates:
        if _concerns(state, gate, gate.after[0], gate.edges[0], batch, spans):
            mine = spans_at(sorted(set(waiter.graph.waiting(gate.node))))
            if mine:
                yield msgspec.structs.replace(gate.after[0], each=True), mine
    nodes = [
        node for a, b in zip(spans[::2], spans[1::2], strict=True) for node, _ in waiter.graph.nodes_of(batch.id, a, b)
    ]
    mine = spans_at(sorted({pos for node in nodes for pos in waiter.graph.waiting(node)}))
    if mine:
        yield Dependency(str(batch.id), each=True), mine


def _concerns(
    state: State,
    waits: BatchState | Gate,
    dependency: Dependency,
    edge: tuple[int, int, int],
    batch: BatchState,
    spans: list[int],
) -> bool:
    """Whether a dependency, not job by job, is on one of these positions of a batch."""
    number, low, high = edge
    pairs = list(zip(spans[::2], spans[1::2], strict=True))
    if number:
        return number == batch.id and any(a < high and low < b for a, b in pairs)
    name = dependency.target[1:]
    if waits.id == batch.id or name not in batch.names:
        return False
    numbers, start, end = named(state, waits, dependency)
    if not start <= bisect_left(numbers, batch.id) < end:
        return False
    if name == batch.spec.name or batch.graph is None:
        return True
    return any(a <= pos < b for pos in batch.graph.members(name) for a, b in pairs)


def tally(batch: AnyBatch, name: str) -> tuple[int, int, int]:
    """How many jobs of a batch that have this name are not settled, succeeded, and did not."""
    graph = batch.graph if isinstance(batch, BatchState) else None
    if batch.name != name and graph is not None and name in graph.groups:
        return graph.tally(name)
    counts, left = batch.counts, batch.unsettled
    good = counts[COMPLETED]
    return left, good, batch.count - left - good - counts[REMOVED]


# ---- graphs -------------------------------------------------------------------------------------------------------


def refresh(state: State, batch: BatchState, low: int, high: int) -> None:
    """Bring the graph of a batch up to date with these jobs of it."""
    graph = batch.graph
    assert graph is not None
    now = batch.states[low:high].translate(CLASSES)
    freed: list[int] = []
    names: list[str] = []
    if now != graph.classes[low:high]:
        for pos, new in enumerate(now, low):
            if graph.classes[pos] != new:
                graph.set(pos, new, freed, names)
    state.freed.extend((batch.id, pos, pos + 1) for pos in freed)
    for name in dict.fromkeys(names):
        _forget_tally(state, batch, name)
        if not graph.tally(name)[0] and name in graph.told:
            state.freed.extend(_tell(state, sorted(graph.told.pop(name))))


def refresh_jobs(state: State, batch: BatchState, number: int, low: int = 0, high: int = MAX_JOBS) -> None:
    """Bring the graph of a batch up to date with these jobs of another batch, for which it waits one by one."""
    graph = batch.graph
    assert graph is not None
    other = state.batches.peek(number)
    freed: list[int] = []
    for node, pos in list(graph.nodes_of(number, low, high)):
        graph.set(node, GONE if other is None else CLASSES[other.states[pos]], freed, [])
    state.freed.extend((batch.id, pos, pos + 1) for pos in freed)


def _forget_tally(state: State, batch: BatchState, name: str) -> None:
    if name in state.tallies:
        at = bisect_left(state.names[name], batch.id)
        if len(state.tallies[name][0]) > at + 1:
            for sums in state.tallies[name]:
                del sums[at + 1 :]
            state.epoch += 1


def _look_at_gates(state: State, batch: BatchState) -> None:
    """Look at the gates of a graph of which something may have changed."""
    graph = batch.graph
    assert graph is not None
    if graph.epoch != state.epoch:
        graph.epoch = state.epoch
        graph.todo.update(gate.number for gate in graph.gates if gate.epoch >= 0)
    freed: list[int] = []
    for number in sorted(graph.todo):
        gate = graph.gates[number]
        if gate.waits is None:
            gate.seen = gate.seen if gate.epoch < 0 else -1
            edge = gate.edges[0]
            counts = _look_at(state, gate, edge) if edge[0] else _look_by_name(state, gate, gate.after[0])
            new = OPEN if counts is None else BAD if counts[1] else GOOD if counts[0] else GONE
            graph.set(gate.node, new, freed, [])
    graph.todo.clear()
    state.freed.extend((batch.id, pos, pos + 1) for pos in freed)


# ---- what evolve tells us -----------------------------------------------------------------------------------------


def note_settled(state: State, batch: BatchState, spans: list[int]) -> None:
    """Take note that these jobs of a batch were settled: those that wait for them are told at the end of the step."""
    if len(spans) > 16:
        spans = [spans[0], spans[-1]]
    for low, high in zip(spans[::2], spans[1::2], strict=True):
        state.settled.append((batch.id, low, high))


def reopened(state: State, batch: BatchState) -> None:
    """Forget what is known about a batch whose jobs run again."""
    if any(f"@{name}" in state.waiters for name in batch.names):
        state.epoch += 1  # who waits for another batch of that name may have passed this one as settled
    recounted(state, batch)


def recounted(state: State, batch: BatchState) -> None:
    """Forget what was counted of a batch whose jobs run again, or were removed."""
    _forget_tally(state, batch, batch.spec.name)
    if batch.graph is not None:
        refresh(state, batch, 0, batch.count)
    for twin, offset in batch.twins:
        if offset < 0 and twin in state.batches:
            refresh_jobs(state, state.batches[twin], batch.id)
    for number in state.waiters.get(str(batch.id), ()):
        waiter = state.batches.get(number)
        for waits in waits_of(waiter) if waiter is not None else ():
            if any(edge[0] == batch.id for edge in waits.edges):
                waits.met, waits.seen = 0, -1
                _to_look(state, waits)


def grown(state: State, name: str) -> None:
    """Have batches look again for which a new batch of this name counts."""
    waiting = set(state.unnamed.pop(name, ()))
    if name not in state.open_names:
        return
    state.epoch += 1
    for waiter in open_to(state, name):
        for waits in waits_of(waiter):
            if waits.token in waiting:
                waits.waits = None
                _to_look(state, waits)
                continue
            known = waits.after if isinstance(waits, Gate) else waits.after[: waits.met]
            if any(dependency.target == f"@{name}" for dependency in known):
                _look_anew(state, waits)  # a met dependency is open again, whatever the batch waits for now
        looks = waiter.waits is None or (waiter.graph is not None and waiter.graph.todo)
        if looks and (waiter.counts[WAITING] or waiter.counts[HOLDING]):
            state.freed.append((waiter.id, 0, waiter.count))


def woken(state: State, number: int, low: int, high: int) -> Iterator[tuple[int, int, int]]:
    """(batch, low, high) of the jobs to look at because these jobs of a batch were settled."""
    batch = state.batches[number]
    if batch.graph is not None:
        refresh(state, batch, low, high)
    if batch.watchers and not batch.unsettled:
        told, batch.watchers = sorted(batch.watchers), set()
        yield from _tell(state, told)
    if batch.marks:
        positions = [pos for pos in batch.marks if low <= pos < high] if high - low > 1 else [low]
        for pos in positions:
            if pos in batch.marks:
                yield from _tell(state, batch.marks.pop(pos))
    for twin, offset in batch.twins:
        other = state.batches.get(twin)
        if other is not None and offset < 0:
            refresh_jobs(state, other, number, low, high)
        elif other is not None:
            start, end = max(low - offset, 0), min(high - offset, other.count)
            if start < end:
                yield twin, start, end


def _tell(state: State, tokens: list[Token]) -> Iterator[tuple[int, int, int]]:
    for token in tokens:
        waits = _waiter(state, token)
        if isinstance(waits, Gate):
            waits.waits = None
            _to_look(state, waits)
            yield waits.id, 0, 1  # the gate is looked at with any job; those that it holds back follow
        elif waits is not None:
            waits.waits = None
            yield waits.id, 0, waits.count


def watch_all(state: State) -> None:
    """After a restart, have every batch that waits look for what it is to be told of."""
    state.settled, state.freed, state.again, state.forgotten = [], [], [], []
    batches = sorted(state.batches.open(), key=attrgetter("id"))
    for batch in batches:
        if batch.graph is not None:
            refresh(state, batch, 0, batch.count)
            for number, _ in batch.graph.given.jobs:
                refresh_jobs(state, batch, number)
    for batch in batches:  # once every graph knows what its names have come to
        if batch.graph is not None:
            _look_at_gates(state, batch)
        if batch.edges and (batch.counts[WAITING] or batch.counts[HOLDING]):
            _look(state, batch)
    state.freed = []


# ---- looking ------------------------------------------------------------------------------------------------------


def _look(state: State, batch: BatchState) -> tuple[int, str]:
    """(met, open or never; why, if never) of a batch as a whole. If open, it will be told when to look again."""
    if batch.waits is not None:
        return _OPEN, ""
    after, edges = batch.spec.after, batch.edges
    if 0 <= batch.epoch != state.epoch:
        batch.met, batch.seen, batch.epoch = 0, -1, state.epoch
    while batch.met < len(edges):
        dependency, edge = after[batch.met], edges[batch.met]
        if not dependency.each:
            counts = _look_by_name(state, batch, dependency) if edge[0] == 0 else _look_at(state, batch, edge)
            if counts is None:
                return _OPEN, ""
            if why := never(dependency, *counts):
                return _NEVER, why
        batch.met += 1
        batch.seen = -1
    return _MET, ""


def _look_at(state: State, batch: BatchState | Gate, edge: tuple[int, int, int]) -> tuple[int, int] | None:
    """(how many jobs succeeded, how many did not) at these positions; None: not all are settled, and one is watched."""
    number, low, high = edge
    other = state.batches.peek(number)
    if other is None:
        return 0, 0
    if low == 0 and high == other.count:
        if isinstance(other, BatchState) and other.unsettled:
            other.watchers.add(batch.token)
            other.followed = True
            batch.waits = (number, -1)
            return None
        counts = other.counts
        return counts[COMPLETED], other.count - counts[COMPLETED] - counts[REMOVED]
    unsettled = _UNSETTLED.search(other.states, max(low, batch.seen), high)
    if unsettled is not None and isinstance(other, BatchState):
        batch.seen = pos = unsettled.start()
        other.marks.setdefault(pos, []).append(batch.token)
        other.followed = True
        batch.waits = (number, pos)
        return None
    good = other.states.count(COMPLETED, low, high)
    return good, high - low - good - other.states.count(REMOVED, low, high)


def _look_by_name(state: State, batch: BatchState | Gate, dependency: Dependency) -> tuple[int, int] | None:
    """(how many jobs succeeded, how many did not) of the batches of a name; None: not all are settled.

    The last batch that is not settled is watched: it is likely to be so for the longest time.
    """
    name = dependency.target[1:]
    numbers, low, high = named(state, batch, dependency)
    if low >= high:
        state.unnamed.setdefault(name, []).append(batch.token)
        batch.waits = name
        return None
    good, bad = state.tallies.setdefault(name, ([0], [0]))
    at = high if batch.seen < 0 else min(batch.seen, high)
    while at > low and at > len(good) - 1:
        other = state.batches.peek(numbers[at - 1])
        if isinstance(other, BatchState) and tally(other, name)[0]:
            _watch(other, name, batch)
            batch.seen = at
            return None
        at -= 1
    for number in numbers[len(good) - 1 : high]:  # all of these are settled
        settled = state.batches.peek(number)
        _, done, not_done = tally(settled, name) if settled is not None else (0, 0, 0)
        good.append(good[-1] + done)
        bad.append(bad[-1] + not_done)
    return good[high] - good[low], bad[high] - bad[low]


def _watch(other: BatchState, name: str, waits: BatchState | Gate) -> None:
    """Have a batch or gate told when all jobs of a batch that have this name are settled."""
    other.followed = True
    if other.spec.name == name or other.graph is None:
        other.watchers.add(waits.token)
        waits.waits = (other.id, -1)
    else:
        other.graph.told.setdefault(name, set()).add(waits.token)
        waits.waits = (other.id, name)


def never(dependency: Dependency, good: int, bad: int) -> str:
    """Why settled jobs (`good` succeeded, `bad` did not) can never meet a condition; empty if they meet it."""
    what = dependency.target
    if dependency.condition == "failure" and not bad:
        rest = f"all {good:,} of its jobs succeeded" if good else "none of its jobs is left"
        rest = "it succeeded" if good == 1 else rest
        return f"was to run if {what} failed, but {rest}"
    if dependency.condition == "success" and bad:
        return f"depends on {what}, of which {bad} of {good + bad} jobs did not succeed"
    return ""


def follow_up(state: State, freed: list[tuple[int, int, int]], wall: float) -> Iterator[ev.Moved]:
    """Events that follow for these jobs (batch, low, high); where there is a graph, one for all that make a move."""
    graphs: dict[int, list[tuple[int, int]]] = {}
    for number, low, high in freed:
        batch = state.batches[number]
        if batch.counts[WAITING] or batch.counts[HOLDING]:
            if batch.graph is None:
                yield from consequences(state, batch, low, high, wall)
            else:
                graphs.setdefault(number, []).append((low, high))
    for number, rows in graphs.items():
        made: dict[str, ev.Moved] = {}
        end = 0
        for low, high in sorted(rows):
            if high > end:
                for event in consequences(state, state.batches[number], max(low, end), high, wall):
                    known = made.setdefault(event.verb, event)
                    if known is not event:
                        known.spans.extend(event.spans)
                        if event.verb == "omit" and not (known.reason or "").endswith(_LIKEWISE):
                            known.reason = (known.reason or "") + _LIKEWISE
                end = high
        yield from made.values()


def consequences(state: State, batch: BatchState, low: int, high: int, wall: float) -> Iterator[ev.Moved]:
    """Events that follow for the WAITING and HOLDING jobs among these positions: they become ready, or are omitted."""
    if batch.graph is not None and (batch.graph.todo or batch.graph.epoch != state.epoch):
        _look_at_gates(state, batch)
    whole, why = _look(state, batch)
    if whole == _MET and batch.spec.not_before is not None and batch.spec.not_before > wall:
        whole = _OPEN
    if (batch.elements or batch.graph is not None) and whole != _NEVER:
        ready, omitted, why = _elements(state, batch, low, high, whole)
    elif whole == _OPEN:
        return
    else:
        ready = spans_of(batch, _WAITING_RUN, low, high) if whole == _MET else []
        omitted = spans_of(batch, _OMITTABLE_RUN, low, high) if whole == _NEVER else []
    if omitted:
        yield ev.Moved(batch.id, "omit", omitted, why)
    if ready and batch.until:
        last = wall + longest_backoff(state)
        if high - low == 1:
            holes = {low} if wall < batch.until.get(low, wall) <= last else set()
        else:
            holes = {pos for pos, until in batch.until.items() if wall < until <= last}
        ready = without(ready, holes)
    if ready and batch.closing:
        ready = without(ready, set(batch.closing))
    if ready:
        yield ev.Moved(batch.id, "ready", ready)


def _elements(state: State, batch: BatchState, low: int, high: int, whole: int) -> tuple[list[int], list[int], str]:
    """(spans that are ready, spans to omit, why) among these positions of a batch that depends on others job by job.

    Each condition makes a byte of each state: met 0, open 1, never 2; all are put together by a bitwise or.
    """
    codes = int.from_bytes(batch.states[low:high].translate(_OWN), "little")
    if whole:
        codes |= int.from_bytes(bytes((whole,)) * (high - low), "little")
    for at in batch.elements:
        dependency, (number, start, _) = batch.spec.after[at], batch.edges[at]
        other = state.batches.get(number)
        if other is not None:
            part = other.states[start + low : start + high].translate(_CODES[dependency.condition])
            codes |= int.from_bytes(part, "little")
    if batch.graph is not None:
        codes |= int.from_bytes(batch.graph.codes(low, high), "little")
    stands = codes.to_bytes(high - low, "little")
    ready = [low + edge for match in _READY_RUN.finditer(stands) for edge in match.span()]
    omitted = [low + edge for match in _OMIT_RUN.finditer(stands) for edge in match.span()]
    why = ""
    if omitted:
        why = element_reason(state, batch, omitted[0]) or ""
        if omitted[1] - omitted[0] > 1 or len(omitted) > 2:
            why += _LIKEWISE
    return ready, omitted, why


def element_reason(state: State, batch: BatchState, pos: int) -> str | None:
    """Which job a job waits for, or can never run after, by its dependencies job by job; None: by none of these."""
    open_ = None
    for at in batch.elements:
        dependency, (number, start, _) = batch.spec.after[at], batch.edges[at]
        other = state.batches.get(number)
        if other is None:
            continue
        byte = other.states[start + pos]
        code = _CODES[dependency.condition][byte]
        job = format_job(number, other.index(start + pos))
        if code == _NEVER:
            if dependency.condition == "failure":
                how = "was removed" if byte == REMOVED else "succeeded"
                return f"was to run if {job} failed, but it {how}"
            return f"depends on {job}, which is {JOB_STATES[byte]}"
        if code == _OPEN and open_ is None:
            open_ = f"waits for {job}, which is {JOB_STATES[byte]}"
    for found, is_never in _graph_reasons(state, batch, pos):
        if is_never:
            return found
        open_ = open_ or found
    return open_


def parents_of(state: State, batch: BatchState, pos: int) -> Iterator[tuple[BatchState | None, int, str, str, int]]:
    """(batch, position, what, condition, code) of all that a job waits for by the graph of its batch.

    A single job has a batch and a position; a name or something else outside has None, and `what` names it. The code is
    0 if it is met, 1 if it is open, 2 if it can never be met.
    """
    if batch.graph is None:
        return
    for what, condition, code in batch.graph.links_of(pos):
        number, sharp, at = what.partition("#")
        if not sharp:
            yield None, -1, what, condition, code
            continue
        other = state.batches.get(int(number)) if number else batch
        if other is not None:
            yield other, int(at), format_job(other.id, other.index(int(at))), condition, code


def _graph_reasons(state: State, batch: BatchState, pos: int) -> Iterator[tuple[str, bool]]:
    """(what a job waits for or can never run after by the graph of its batch, whether it is the latter)."""
    for other, at, what, condition, code in parents_of(state, batch, pos):
        if code == _MET:
            continue
        now = f"is {JOB_STATES[other.states[at]]}" if other is not None else "is not settled"
        if code == _OPEN:
            yield f"waits for {what}, which {now}", False
        elif condition == "failure":
            gone = other is not None and other.states[at] == REMOVED
            yield f"was to run if {what} failed, but it {'was removed' if gone else 'succeeded'}", True
        else:
            yield f"depends on {what}, which {now if other is not None else 'did not succeed'}", True


def longest_backoff(state: State) -> float:
    """The most seconds that the next try of a job can be off. If it is further off, the wall clock was set back."""
    return state.settings.backoff_most_s + state.settings.backoff_jitter_s


# ---- ranges of positions ------------------------------------------------------------------------------------------


def spans_of(batch: AnyBatch, pattern: re.Pattern[bytes], low: int = 0, high: int | None = None) -> list[int]:
    """Spans of the positions whose state bytes match a pattern."""
    out: list[int] = []
    for match in pattern.finditer(batch.states, low, batch.count if high is None else high):
        out += match.span()
    return out


def without(spans: list[int], holes: set[int]) -> list[int]:
    """The spans without these positions."""
    out: list[int] = []
    order = sorted(holes)
    for low, high in zip(spans[::2], spans[1::2], strict=True):
        start = low
        for hole in order[bisect_left(order, low) : bisect_left(order, high)]:
            if start < hole:
                out += (start, hole)
            start = hole + 1
        if start < high:
            out += (start, high)
    return out
