"""What a job waits for, as jobs: those that are not settled yet, and those because of which it never can run."""

from collections.abc import Iterator

from rota.core.dependencies.following import parents_of
from rota.core.dependencies.meaning import named, positions_of
from rota.core.graph import Gate
from rota.core.graph import spans as spans_at
from rota.core.settled import AnyBatch, whole
from rota.core.state import BatchState, State
from rota.model.batch import Dependency
from rota.model.tables import COMPLETED, SETTLED, UNSUCCESSFUL

__all__ = ["Span", "culprit", "open_dependencies", "targets"]

Span = tuple[AnyBatch, int, int]
"""(batch, low, high) of positions."""
_OPEN, _NEVER = 1, 2


def targets(state: State, dependency: Dependency, batch: BatchState | Gate | None) -> list[Span] | None:
    """The jobs that a dependency (of a batch, or of a gate of its graph) means; None: nothing of that name is there."""
    what = dependency.target
    if not what.startswith("@"):
        number, low, high = positions_of(state, what)
        there = state.batches.peek(number)
        return [(there, low, high)] if there is not None else []
    name = what[1:]
    numbers = state.names.get(name, [])
    start, end = 0, len(numbers)
    if batch is not None:
        _, start, end = named(state, batch, dependency)
    if start >= end:
        return None
    others = [other for other in map(state.batches.peek, numbers[start:end]) if other is not None]
    return [span for other in others if batch is None or other.id != batch.id for span in named_spans(other, name)]


def named_spans(batch: AnyBatch, name: str) -> list[Span]:
    """The jobs of a batch that have a name: all, or those whose own it is."""
    graph = batch.graph if isinstance(batch, BatchState) else None
    if graph is None or batch.name == name or name not in graph.groups:
        return [(batch, 0, batch.count)]
    flat = spans_at(graph.members(name))
    return [(batch, low, high) for low, high in zip(flat[::2], flat[1::2], strict=True)]


def open_dependencies(
    state: State, batch: BatchState, pos: int | None
) -> Iterator[tuple[Dependency, list[Span] | None]]:
    """What a job (None: all jobs of a batch) still waits for, with the jobs that each means (None: nothing is there).

    Of what is job by job only the job that this one waits for.
    """
    for number, dependency in enumerate(batch.spec.after):
        spans = _spans(state, batch, number, dependency, pos)
        if spans is None or any(_left(other, low, high) for other, low, high in spans):
            yield dependency, spans
    for dependency, spans, code in _links(state, batch, pos):
        if code == _OPEN:
            yield dependency, spans


def culprit(state: State, batch: BatchState, pos: int) -> tuple[BatchState, int] | None:
    """The first job that did not end as this one needs it to; None: there is none."""
    for number, dependency in enumerate(batch.spec.after):
        if (found := _first_bad(dependency, _spans(state, batch, number, dependency, pos))) is not None:
            return found
    for dependency, spans, code in _links(state, batch, pos):
        if code == _NEVER and (found := _first_bad(dependency, spans)) is not None:
            return found
    return None


def _spans(state: State, batch: BatchState, number: int, dependency: Dependency, pos: int | None) -> list[Span] | None:
    """The jobs that the dependency of this number means to a job."""
    if not dependency.each or pos is None:
        return targets(state, dependency, batch)
    of, start, _ = batch.edges[number]
    other = state.batches.get(of)
    return [] if other is None else [(other, start + pos, start + pos + 1)]


def _links(state: State, batch: BatchState, pos: int | None) -> Iterator[tuple[Dependency, list[Span] | None, int]]:
    """What a job waits for by the graph of its batch; as a whole a batch waits for nothing by it."""
    if pos is None or batch.graph is None:
        return
    for other, at, what, condition, code in parents_of(state, batch, pos):
        dependency = Dependency(what, condition)  # type: ignore[arg-type]
        if other is not None:
            yield dependency, [(other, at, at + 1)], code
        elif what.startswith("@") and what[1:] in batch.graph.groups:
            yield dependency, named_spans(batch, what[1:]), code
        else:
            gate = next(gate for gate in batch.graph.gates if gate.after[0].target == what)
            yield dependency, targets(state, gate.after[0], gate), code


def _left(batch: AnyBatch, low: int, high: int) -> int:
    """How many of these jobs are not settled."""
    if low == 0 and high == batch.count:
        return batch.unsettled
    return sum(batch.states.count(byte, low, high) for byte in range(SETTLED))


def _first_bad(dependency: Dependency, spans: list[Span] | None) -> tuple[BatchState, int] | None:
    """The first of these jobs that did not end as a dependency wants."""
    if dependency.condition == "any" or not spans:
        return None
    wanted = (COMPLETED,) if dependency.condition == "failure" else UNSUCCESSFUL
    for byte in wanted:
        for batch, low, high in spans:
            at = batch.states.find(byte, low, high)
            if at >= 0:
                return whole(batch), at
    return None
