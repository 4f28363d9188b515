"""Dependencies job by job where it is the value that pairs (`--each=value`), not the number.

The values are in the store, so this is worked out before the core hears of the batch: each job gets a link to the one
job that has its value. Where jobs are paired by number though their values are the same in another order, it warns.
"""

from array import array
from collections.abc import Iterator
from typing import Any

import msgspec

from rota.core.dependencies.meaning import positions_of
from rota.core.state import BatchState, State
from rota.core.stimuli import Submit
from rota.model.batch import BatchSpec, Dependency, index_at
from rota.model.errors import UsageError
from rota.model.graph import CONDITIONS, Graph, pack_links
from rota.model.job import format_job
from rota.model.selector import parse_selector
from rota.store.api import Store

__all__ = ["pair"]

PAGE = 4096


def pair(state: State, store: Store, new: Submit) -> list[str]:
    """Link each job of a submission with the job of its value, where that is asked for; warnings. In a thread."""
    warnings: list[str] = []
    links: list[tuple[int, int, list[int]]] = []
    """(batch, condition, the position there of each job here)."""
    for dependency in new.spec.after:
        if not dependency.each:
            continue
        other, low, high = _target(state, dependency)
        if other is None:
            continue  # the core says what is wrong
        if dependency.by_value:
            _check_columns(dependency, new.spec, other)
            positions = _positions(store, new, dependency, other, low, high)
            links.append((other.id, CONDITIONS.index(dependency.condition), positions))
        elif new.stage is not None and new.spec.columns and len(new.spec.columns) == len(other.spec.columns):
            warnings += _other_order(store, new, dependency, other, low, high)
    if links:
        new.graph = _linked(new.graph, new.spec.count, links)
        new.spec = msgspec.structs.replace(new.spec, after=tuple(d for d in new.spec.after if not d.by_value))
    return warnings


def _target(state: State, dependency: Dependency) -> tuple[BatchState | None, int, int]:
    selector = parse_selector([dependency.target])
    if selector.states:
        return None, 0, 0
    if selector.spans:
        number, low, high = positions_of(state, dependency.target)
        if dependency.by_value and number not in state.batches:
            raise UsageError(f"--after {dependency.target} --each=value: {state.absent(number)}")
        return state.batches.look(number), low, high
    (name,) = selector.names
    known = state.names.get(name, [])
    if len(known) != 1:
        if dependency.by_value:
            what = "nothing has" if not known else f"{len(known)} batches have"
            raise UsageError(f"--after @{name} --each=value: {what} this name; give the number of one batch")
        return None, 0, 0
    other = state.batches.look(known[0])
    return other, 0, other.count if other is not None else 0


def _check_columns(dependency: Dependency, spec: BatchSpec, other: BatchState) -> None:
    what = f"--after {dependency.target} --each=value"
    if not spec.columns or not other.spec.columns:
        who = "the new jobs have" if not spec.columns else f"batch {other.id} has"
        raise UsageError(f"{what}: {who} no values; without =value jobs are paired by number")
    if len(spec.columns) != len(other.spec.columns):
        mine, theirs = len(spec.columns), len(other.spec.columns)
        raise UsageError(f"{what}: the new jobs have {mine} values each, those of batch {other.id} {theirs}")


def _positions(store: Store, new: Submit, dependency: Dependency, other: BatchState, low: int, high: int) -> list[int]:
    """The position in the other batch of each new job's value."""
    what = f"--after {dependency.target} --each=value"
    theirs: dict[Any, int] = {}
    for pos, value in enumerate(_values(store, other, low, high), low):
        if theirs.setdefault(value, pos) != pos:
            jobs = [format_job(other.id, other.index(at)) for at in (theirs[value], pos)]
            raise UsageError(f"{what}: both {jobs[0]} and {jobs[1]} have the value '{_word(value)}'")
    out = []
    for pos, value in enumerate(_staged(store, new)):
        at = theirs.get(value)
        if at is None:
            index = index_at(new.spec.ranges, pos)
            raise UsageError(f"{what}: no job of it has the value '{_word(value)}' of the new job {index}")
        out.append(at)
    return out


def _other_order(
    store: Store, new: Submit, dependency: Dependency, other: BatchState, low: int, high: int
) -> list[str]:
    """A warning if jobs are paired by number, and the values are there in another order."""
    pairs = zip(_staged(store, new), _values(store, other, low, high), strict=False)
    first = next(((at, mine, theirs) for at, (mine, theirs) in enumerate(pairs) if mine != theirs), None)
    if first is None or first[1] not in set(_values(store, other, low, high)):
        return []
    at, mine, theirs = first
    job = format_job(other.id, other.index(low + at))
    ours = f"job {index_at(new.spec.ranges, at)} ({_word(mine)})"
    return [
        f"--after {dependency.target} --each pairs by number: {ours} waits for {job} ({_word(theirs)}); "
        "--each=value pairs by value"
    ]


def _linked(graph: Graph | None, count: int, more: list[tuple[int, int, list[int]]]) -> Graph:
    """The graph with these links too."""
    graph = graph or Graph(bytes(4 * count), b"")
    offsets, links = graph.columns()
    node = count + len(graph.names) + len(graph.after) + sum(len(column) // 4 for _, column in graph.jobs)
    rows = [links[offsets[pos] : offsets[pos + 1]].tolist() for pos in range(count)]
    jobs = list(graph.jobs)
    for number, condition, positions in more:
        column = array("I", sorted(set(positions)))
        ranks = {pos: node + at for at, pos in enumerate(column)}
        for row, pos in zip(rows, positions, strict=True):
            row.append(ranks[pos] << 2 | condition)
        jobs.append((number, column.tobytes()))
        node += len(column)
    degrees, flat = pack_links(rows)
    return msgspec.structs.replace(graph, degrees=degrees, links=flat, jobs=tuple(jobs))


def _staged(store: Store, new: Submit) -> Iterator[Any]:
    at = 0
    while new.stage is not None and at < new.spec.count:
        values, _ = store.staged_values(new.stage, at)
        if not values:
            raise UsageError("the values of this submission are gone (was the manager restarted?): add it again")
        yield from map(_key, values)
        at += len(values)


def _values(store: Store, batch: BatchState, low: int, high: int) -> Iterator[Any]:
    for start in range(low, high, PAGE):
        yield from map(_key, store.values(batch.id, start, min(PAGE, high - start)))


def _key(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _word(value: Any) -> str:
    return " ".join(value)[:60] if isinstance(value, tuple) else str(value)[:60]
