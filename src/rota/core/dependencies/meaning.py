"""What a dependency means: which batches and jobs, who waits for whom, and how far they have come."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator

import msgspec

from rota.core.batch import BatchState
from rota.core.graph import Gate, Token
from rota.core.graph import spans as spans_at
from rota.core.settled import AnyBatch, whole
from rota.core.state import State
from rota.model.batch import Dependency
from rota.model.selector import parse_selector
from rota.model.tables import COMPLETED, REMOVED

__all__ = [
    "dependents",
    "freezable",
    "is_open",
    "named",
    "open_to",
    "positions_of",
    "tally",
    "told_of",
    "touched",
    "waiter_of",
    "waits_of",
]


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


def waiter_of(state: State, token: Token) -> BatchState | Gate | None:
    batch = state.batches.get(token[0])
    if batch is None or token[1] < 0:
        return batch
    return batch.graph.gates[token[1]] if batch.graph is not None else None


def told_of(batch: BatchState, what: int | str) -> set[Token] | list[Token]:
    """Those who are told when a job, all of a batch (-1) or all of a name in it is settled."""
    if isinstance(what, str):
        return batch.graph.told.get(what, set()) if batch.graph is not None else set()
    return batch.watchers if what < 0 else batch.marks.get(what, [])


def is_open(state: State, waits: BatchState | Gate, dependency: Dependency) -> bool:
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
