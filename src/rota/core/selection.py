"""Which jobs a selector means, as ranges of positions."""

import itertools
import re
from collections.abc import Iterable, Iterator

from rota.core.graph import spans as spans_at
from rota.core.settled import AnyBatch, whole
from rota.core.spans import spans_of
from rota.core.state import BatchState, State
from rota.model.errors import NotFoundError
from rota.model.job import format_job
from rota.model.selector import Selector
from rota.model.tables import JOB_STATES, REMOVED

__all__ = ["by_state", "select", "states_pattern"]


def select(state: State, selector: Selector) -> Iterator[tuple[AnyBatch, int, int]]:
    """(batch, low, high) for every stretch of jobs that the batch and name words allow, whatever their states.

    No job is in two of them, however often it is named. Batches that were put away stay so: many may be looked through.
    """
    numbers = _batches(state, selector)
    if not selector.spans:
        for number in numbers:
            if (batch := state.batches.peek(number)) is not None:
                for low, high in _named(batch, selector.names):
                    yield batch, low, high
        return
    named = set(numbers)
    wanted: dict[int, list[tuple[int, int]]] = {}
    for number, first, last in selector.spans:
        batch = state.batches.peek(number) if number in named else None
        if batch is None:
            continue
        low = 0 if first is None else _at_or_after(whole(batch), first)
        high = batch.count if last is None else _at_or_after(whole(batch), last + 1)
        if first is not None and first == last and low == high:
            raise NotFoundError(f"there is no job {format_job(number, first)}")
        if low < high:
            wanted.setdefault(number, []).append((low, high))
    for number, stretches in wanted.items():
        batch = state.batches[number]
        parts = _named(batch, selector.names)
        for low, high in _joined(stretches):
            for start, end in parts:
                if start < high and low < end:
                    yield batch, max(low, start), min(high, end)


def _joined(stretches: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same positions in ascending order, each once."""
    out: list[tuple[int, int]] = []
    for low, high in sorted(stretches):
        if out and low <= out[-1][1]:
            out[-1] = (out[-1][0], max(high, out[-1][1]))
        else:
            out.append((low, high))
    return out


def _named(batch: AnyBatch, names: tuple[str, ...]) -> list[tuple[int, int]]:
    """(low, high) of the jobs of a batch that have one of these names; no names: all."""
    graph = batch.graph if isinstance(batch, BatchState) else None
    if graph is None or not names or batch.name in names:
        return [(0, batch.count)]
    flat = spans_at(sorted({pos for name in names if name in graph.groups for pos in graph.members(name)}))
    return list(zip(flat[::2], flat[1::2], strict=True))


def _batches(state: State, selector: Selector) -> list[int]:
    for number, _, _ in selector.spans:
        if number not in state.batches:
            raise NotFoundError(state.absent(number))
    numbers = sorted({span[0] for span in selector.spans}) if selector.spans else list(state.batches)
    if selector.names:
        named: set[int] = set()
        for name in selector.names:
            if name not in state.names:
                raise NotFoundError(f"nothing is named '{name}'")
            named.update(state.names[name])
        numbers = [number for number in numbers if number in named]
    return numbers


def _at_or_after(batch: BatchState, index: int) -> int:
    """The first position whose number is at least `index`."""
    low, high = 0, batch.count
    while low < high:
        middle = (low + high) // 2
        if batch.index(middle) < index:
            low = middle + 1
        else:
            high = middle
    return low


def states_pattern(states: Iterable[int]) -> re.Pattern[bytes]:
    """A pattern that matches runs of these state bytes."""
    return re.compile(b"[" + b"".join(re.escape(bytes((number,))) for number in sorted(states)) + b"]+")


def wanted_states(selector: Selector) -> frozenset[int]:
    """The state bytes that the selector's state words allow; tombstones never."""
    if not selector.states:
        return frozenset(range(REMOVED))
    return frozenset(JOB_STATES.index(name) for name in selector.states)


def by_state(state: State, selector: Selector, states: Iterable[int]) -> Iterator[tuple[BatchState, list[int]]]:
    """(batch, spans) of the selected jobs that are in one of these states."""
    allowed = frozenset(states) & wanted_states(selector)
    if not allowed:
        return
    pattern = states_pattern(allowed)
    for number, ranges in itertools.groupby(select(state, selector), key=lambda span: span[0].id):
        spans = [edge for batch, low, high in ranges for edge in spans_of(batch, pattern, low, high)]
        if spans:
            yield state.batches[number], spans
