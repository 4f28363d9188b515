"""Checks of the dependencies of a batch: that their targets exist, fit, and (for a new batch) make no circle."""

import itertools
from bisect import bisect_right
from collections.abc import Iterator, Sequence

import msgspec

from rota.core.dependencies.meaning import dependents, named, open_to, positions_of, touched, waits_of
from rota.core.state import BatchState, State
from rota.model.batch import BatchSpec, Dependency
from rota.model.errors import UsageError
from rota.model.graph import MEMBER, Graph
from rota.model.job import format_job
from rota.model.selector import parse_selector
from rota.model.tables import OMITTED, REMOVED

__all__ = ["check_circle", "check_dependencies", "plain_dependencies"]

SHOWN = 10
"""How many batches of a circle, and how many warnings, are shown."""


def check_dependencies(state: State, spec: BatchSpec, graph: Graph | None) -> tuple[BatchSpec, Graph | None, list[str]]:
    """(a new batch and its graph with plain dependencies, warnings). Refuses targets that cannot be, and circles."""
    names = [spec.name]
    if graph is not None:
        graph.check(spec.count)
        names += [name for name in graph.names if name != spec.name]
    after, warnings = plain_dependencies(state, spec, names)
    needed = [*after]
    if graph is not None:
        plain = _check_gates(state, spec, graph, warnings)
        graph = msgspec.structs.replace(graph, after=plain)
        needed += [*plain, *(Dependency(str(number)) for number, _ in graph.jobs)]
    for name in names:
        check_circle(state, name, needed)
    if len(warnings) > SHOWN:
        warnings[SHOWN:] = [f"and {len(warnings) - SHOWN:,} more names that nothing has yet"]
    return msgspec.structs.replace(spec, after=after) if after else spec, graph, warnings


def _check_gates(state: State, spec: BatchSpec, graph: Graph, warnings: list[str]) -> tuple[Dependency, ...]:
    """What the lines of a new batch wait for outside of it, in plain words; an error names the first such job."""
    for name in graph.names:
        msgspec.structs.replace(spec, name=name).check_name()
    out: list[Dependency] = []
    for at, dependency in enumerate(graph.after):
        try:
            dependency.check()
            if dependency.each:
                raise UsageError(f"{dependency.target}: a line cannot wait job by job")
            one = msgspec.structs.replace(spec, after=(dependency,))
            plain, new = plain_dependencies(state, one, (spec.name, *graph.names))
        except UsageError as error:
            node = spec.count + len(graph.names) + at
            offsets, links = graph.columns()
            first = next((to for to, link in enumerate(links) if link >> 2 == node and link & 3 != MEMBER), None)
            where = f"job {bisect_right(offsets, first)}: " if first is not None else ""
            raise UsageError(f"{where}{error}") from None
        out.extend(plain)
        warnings.extend(warning for warning in new if warning not in warnings)
    return tuple(out)


def plain_dependencies(state: State, spec: BatchSpec, names: Sequence[str]) -> tuple[tuple[Dependency, ...], list[str]]:
    """(the dependencies, job by job on the number of a batch and not on its name; warnings, as for unknown names).

    Refuses targets that cannot be; `names` are those of the batch and of its jobs.
    """
    after: list[Dependency] = []
    warnings: list[str] = []
    for dependency in spec.after:
        selector = parse_selector([dependency.target])
        if selector.states:
            raise UsageError(f"--after {dependency.target}: name batches or jobs, not states")
        if selector.names:
            if dependency.target != f"@{selector.names[0]}":
                dependency = msgspec.structs.replace(dependency, target=f"@{selector.names[0]}")
            dependency = _check_name(state, spec, dependency, selector.names[0], names, warnings)
        else:
            _check_numbers(state, dependency, selector.spans[0])
            _, low, high = positions_of(state, dependency.target)
            if state.batches[selector.spans[0][0]].states.count(REMOVED, low, high) == high - low:
                gone = "all of it has been removed, so there is nothing to wait for"
                warnings.append(f"--after {dependency.target}: {gone}")
        if dependency.by_value:
            raise UsageError(f"--after {dependency.target} --each=value: values pair jobs only when these are added")
        if dependency.each:
            _check_each(state, spec, dependency)
        after.append(dependency)
    return tuple(after), warnings


def _check_name(
    state: State, spec: BatchSpec, dependency: Dependency, name: str, names: Sequence[str], warnings: list[str]
) -> Dependency:
    known = state.names.get(name, [])
    if name in names and (dependency.live or not known):
        why = "it is itself a new batch of that name" if dependency.live else "nothing else has this name"
        raise UsageError(f"--after @{name}: the batch would wait for itself ({name} → {name}): {why}")
    if dependency.each:
        if len(known) != 1:
            what = "nothing has" if not known else f"{len(known)} batches have"
            raise UsageError(f"--after @{name} --each: {what} this name; give the number of one batch, as in --after 7")
        return msgspec.structs.replace(dependency, target=str(known[0]))
    if not known:
        if spec.require_known:
            raise UsageError(f"--after @{name}: nothing is named '{name}'")
        warnings.append(f"nothing is named '{name}' yet: these jobs wait until something is")
    return dependency


def _check_numbers(state: State, dependency: Dependency, span: tuple[int, int | None, int | None]) -> None:
    number, first, last = span
    batch = state.batches.get(number)
    if batch is None:
        own = ": that will be this one, which cannot wait for itself" if number == state.next_batch else ""
        raise UsageError(f"--after {dependency.target}: {state.absent(number)}{own}")
    for index in (first, last):
        if index is not None and batch.position(index) is None:
            raise UsageError(f"--after {dependency.target}: there is no job {format_job(number, index)}")


# ---- job by job -----------------------------------------------------------------------------------------------------


def _check_each(state: State, spec: BatchSpec, dependency: Dependency) -> None:
    """Refuse a dependency job by job if the two batches do not have the same job numbers."""
    number, low, high = positions_of(state, dependency.target)
    other = state.batches[number]
    ours, theirs = _stretches(spec.ranges, 0, spec.count), _stretches(other.ranges, low, high)
    difference = _first_difference(ours, theirs)
    if difference is not None:
        index, is_ours = difference
        job = format_job(number, index)
        what = f"there is no {job} for the new job {index}" if is_ours else f"there is no new job {index} for {job}"
        raise UsageError(f"--after {dependency.target} --each: both must have the same job numbers, but {what}")


def _stretches(ranges: Sequence[tuple[int, int, int]] | None, low: int, high: int) -> Iterator[tuple[int, int, int]]:
    """(first number, step, count) of the jobs at these positions."""
    before = 0
    for first, last, step in ranges if ranges is not None else ((1, high, 1),):
        size = (last - first) // step + 1
        start, end = max(low - before, 0), min(high - before, size)
        if start < end:
            yield first + start * step, step, end - start
        before += size


def _first_difference(
    ours: Iterator[tuple[int, int, int]], theirs: Iterator[tuple[int, int, int]]
) -> tuple[int, bool] | None:
    """(job number, whether it is ours) of the first that only one of the two has; None: both have the same."""
    mine = other = (0, 1, 0)
    while True:
        if not mine[2]:
            mine = next(ours, (0, 1, -1))
        if not other[2]:
            other = next(theirs, (0, 1, -1))
        if mine[2] < 0 or other[2] < 0:
            return None if mine[2] == other[2] else (max(mine, other, key=lambda s: s[2])[0], mine[2] > 0)
        if mine[0] != other[0]:
            return min(mine[0], other[0]), mine[0] < other[0]
        size = min(mine[2], other[2]) if mine[1] == other[1] else 1
        mine = (mine[0] + size * mine[1], mine[1], mine[2] - size)
        other = (other[0] + size * other[1], other[1], other[2] - size)


# ---- circles --------------------------------------------------------------------------------------------------------


def check_circle(state: State, name: str, after: Sequence[Dependency]) -> None:
    """Refuse a new batch that would wait for a batch that waits for it, by its name.

    Only a name can close a circle, as numbers point to batches that are there already. The search goes from both ends,
    a step here and a step there, so it is over as soon as one end has no way on; usually at once.
    """
    ends = [waiter.id for waiter in open_to(state, name)] if after else []
    if not ends:
        return
    numbers = {int(d.target.partition(".")[0]) for d in after if not d.target.startswith("@")}
    names = {d.target[1:] for d in after if d.target.startswith("@")}
    up: dict[int, int] = dict.fromkeys(ends, 0)
    """Batch → the batch for which it waits, on the way to the new batch."""
    down: dict[int, int] = {}
    """Batch → the batch that waits for it, on the way from the new batch."""
    high, low = list(ends), itertools.chain(sorted(numbers), *(state.names.get(each, ()) for each in sorted(names)))
    ways: list[tuple[int, Iterator[int]]] = [(0, low)]
    met = next((n for n in high if n in numbers or not names.isdisjoint(state.batches[n].names)), None)
    while met is None and high and ways:
        number = high.pop()
        for waiter in _awaited_by(state, state.batches[number]):
            if waiter.id not in up:
                up[waiter.id] = number
                high.append(waiter.id)
                if waiter.id in numbers or not names.isdisjoint(waiter.names) or waiter.id in down:
                    met = waiter.id
        before, way = ways[-1]
        further = next(way, None)
        if further is None:
            ways.pop()
        elif further not in down and further in state.batches:
            down[further] = before
            met = further if further in up else met
            ways.append((further, _waits_for(state, state.batches[further])))
    if met is not None:
        raise UsageError(f"this would wait for itself and never run: {_circle(state, name, met, down, up)}")


def _waits_for(state: State, batch: BatchState) -> Iterator[int]:
    """Batches that a batch waits for, or will when it runs again."""
    if _may_wait(batch):
        for waits in waits_of(batch):
            for dependency, edge in zip(waits.after, waits.edges, strict=True):
                if edge[0]:
                    yield edge[0]
                else:
                    numbers, low, high = named(state, waits, dependency)
                    yield from itertools.islice(numbers, low, high)
        for number, _ in batch.graph.given.jobs if batch.graph is not None else ():
            yield number


def _may_wait(batch: BatchState) -> bool:
    """Whether a batch waits, or may wait again unasked: omitted jobs are reopened with those that they waited for."""
    return bool(batch.unsettled or batch.counts[OMITTED]) or any(dependency.live for dependency in batch.needed)


def _awaited_by(state: State, batch: BatchState) -> Iterator[BatchState]:
    """Batches that wait for a batch."""
    for waiter in dependents(state, batch):
        if _may_wait(waiter) and next(touched(state, waiter, batch, [0, batch.count]), None) is not None:
            yield waiter


def _circle(state: State, name: str, met: int, down: dict[int, int], up: dict[int, int]) -> str:
    """The way from the new batch to itself, in words."""
    path = [met]
    while down.get(path[-1]):
        path.append(down[path[-1]])
    path.reverse()
    while up.get(path[-1]):
        path.append(up[path[-1]])
    words = [state.batches[number].spec.name or f"batch {number}" for number in path]
    if len(words) > SHOWN:
        words[SHOWN // 2 : -SHOWN // 2] = ["…"]
    return " → ".join([name, *words, name])
