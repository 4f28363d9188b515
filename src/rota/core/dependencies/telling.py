"""Who is told of what has happened to the jobs that it waits for; the graphs of batches follow."""

from bisect import bisect_left
from collections.abc import Iterator

from rota.core.batch import BatchState
from rota.core.dependencies.meaning import open_to, told_of, waiter_of, waits_of
from rota.core.graph import CLASSES, GONE, Gate, Token
from rota.core.state import State
from rota.model.batch import MAX_JOBS
from rota.model.tables import HOLDING, WAITING

__all__ = ["grown", "look_anew", "note_settled", "recounted", "refresh", "refresh_jobs", "reopened", "woken"]


def _to_look(state: State, waits: BatchState | Gate) -> None:
    """Note that a gate is to be looked at; a batch is when any of its jobs is."""
    if isinstance(waits, Gate):
        graph = state.batches[waits.id].graph
        assert graph is not None
        graph.todo.add(waits.number)


def _start_over(state: State, waits: BatchState | Gate) -> None:
    waits.waits, waits.met, waits.seen = None, 0, -1
    _to_look(state, waits)


def look_anew(state: State, waits: BatchState | Gate) -> None:
    """Have a batch or gate look at its dependencies from the first again, and have nobody tell it before."""
    told: set[Token] | list[Token] = []
    if isinstance(waits.waits, str):
        told = state.unnamed.get(waits.waits, [])
    elif waits.waits is not None:
        told = told_of(state.batches[waits.waits[0]], waits.waits[1])
    if waits.token in told:
        told.remove(waits.token)
    _start_over(state, waits)


def _forget_tally(state: State, batch: BatchState, name: str) -> None:
    if name in state.tallies:
        at = bisect_left(state.names[name], batch.id)
        if len(state.tallies[name][0]) > at + 1:
            for sums in state.tallies[name]:
                del sums[at + 1 :]
            state.epoch += 1


def _tell(state: State, tokens: list[Token]) -> Iterator[tuple[int, int, int]]:
    for token in tokens:
        waits = waiter_of(state, token)
        if isinstance(waits, Gate):
            waits.waits = None
            _to_look(state, waits)
            yield waits.id, 0, 1  # the gate is looked at with any job; those that it holds back follow
        elif waits is not None:
            waits.waits = None
            yield waits.id, 0, waits.count


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


def note_settled(state: State, batch: BatchState, spans: list[int]) -> None:
    """Take note that these jobs of a batch were settled: those that wait for them are told at the end of the step."""
    if len(spans) > 16:
        spans = [spans[0], spans[-1]]
    for low, high in zip(spans[::2], spans[1::2], strict=True):
        state.settled.append((batch.id, low, high))


def reopened(state: State, batch: BatchState) -> None:
    """Forget what is known about a batch whose jobs run again."""
    by_name = [number for name in batch.names for number in state.waiters.get(f"@{name}", ())]
    if by_name:
        state.epoch += 1  # who waits for another batch of that name may have passed this one as settled
    recounted(state, batch)
    for number in sorted(set(by_name)):
        _free(state, state.batches.get(number))


def recounted(state: State, batch: BatchState) -> None:
    """Forget what was counted of a batch whose jobs run again, or were removed."""
    _forget_tally(state, batch, batch.spec.name)
    if batch.graph is not None:
        refresh(state, batch, 0, batch.count)
    for twin, offset in batch.twins:
        if offset < 0 and twin in state.batches:
            refresh_jobs(state, state.batches[twin], batch.id)
    for number in sorted(state.waiters.get(str(batch.id), ())):
        waiter = state.batches.get(number)
        for waits in waits_of(waiter) if waiter is not None else ():
            if any(edge[0] == batch.id for edge in waits.edges):
                waits.met, waits.seen = 0, -1
                _to_look(state, waits)
        _free(state, waiter)


def _free(state: State, waiter: BatchState | None) -> None:
    """Have a batch looked at that waits for nothing now: what it had found met may be open again, or never be met."""
    if waiter is None or not (waiter.counts[WAITING] or waiter.counts[HOLDING]):
        return
    if waiter.waits is None or (waiter.graph is not None and waiter.graph.todo):
        state.freed.append((waiter.id, 0, waiter.count))


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
                look_anew(state, waits)  # a met dependency is open again, whatever the batch waits for now
        _free(state, waiter)


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
