"""The indices of who depends on whom: a batch is entered, gets other dependencies, and the names in them are fixed."""

from collections.abc import Iterator

from rota.core.batch import BatchState, epoch_of
from rota.core.dependencies.meaning import freezable, is_open, positions_of, waits_of
from rota.core.dependencies.telling import look_anew, refresh, refresh_jobs
from rota.core.graph import Gate, GraphState
from rota.core.state import State
from rota.model.batch import BatchSpec, Dependency
from rota.model.graph import Graph
from rota.model.tables import HOLDING, WAITING

__all__ = ["connect", "disconnect", "freeze", "reconnect", "regraph", "renamed"]


def connect(state: State, batch: BatchState) -> None:
    """Enter a new or restored batch into the indices; the batches that it depends on are there already."""
    for waits in waits_of(batch):
        edges = []
        for dependency in waits.after:
            target = dependency.target
            if target.startswith("@"):
                edges.append((0, 0, 0))
                state.waiters.setdefault(target, set()).add(batch.id)
                if is_open(state, waits, dependency):
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
        look_anew(state, waits)
    _sever(state, batch)
    batch.spec, batch.known_until = spec, 0
    connect(state, batch)


def regraph(state: State, batch: BatchState, given: Graph) -> None:
    """Give a batch another graph, with the same gates."""
    for waits in waits_of(batch):
        look_anew(state, waits)
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
                    look_anew(state, waits)
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
        if is_open(state, waits, dependency):
            state.open_names[dependency.target[1:]].add(batch.id)


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
