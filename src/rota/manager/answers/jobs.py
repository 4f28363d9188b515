"""Jobs as clients see them: which a selector names, and rows of them."""

import json
import os
import time
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from typing import Any

from rota.core.explain import omitted_reason
from rota.core.plan.asked import asked_now
from rota.core.selection import select, states_pattern, wanted_states
from rota.core.settled import AnyBatch, whole
from rota.core.spans import spans_of
from rota.core.state import BatchState, State
from rota.manager.answers.running import Running
from rota.manager.jobbook import JobBook
from rota.model.errors import NotFoundError, UsageError
from rota.model.job import Result, format_job, parse_job
from rota.model.needs import Needs
from rota.model.selector import parse_selector
from rota.model.tables import COMPLETED, JOB_STATES, PENDING, REMOVED, WAITING
from rota.store.api import Store

__all__ = ["Jobs", "find_job", "find_jobs", "job_cursor", "selected", "span_after"]

PAGE_SIZE = 1 << 20
"""Characters of commands and values in one message."""
PLACES = 10_000
"""Runners that are gone and whose places are remembered."""


# ---- which jobs -----------------------------------------------------------------------------------------------------


def selected(state: State, words: list[str]) -> list[tuple[AnyBatch, int, int]]:
    """(batch, low, high) of what a selector names, by batch and position."""
    return sorted(select(state, parse_selector(words)), key=lambda span: (span[0].id, span[1]))


def find_jobs(
    state: State, words: list[str], after: tuple[int, int] | None, limit: int, newest: bool
) -> list[tuple[BatchState, int]]:
    """One page of selected jobs, in order (or against it)."""
    selector = parse_selector(words)
    pattern = states_pattern(wanted_states(selector))
    spans: Iterable[tuple[AnyBatch, int, int]]
    if selector.spans or selector.names:
        spans = selected(state, words)
        spans = reversed(spans) if newest else spans
    else:  # one page of many should not look at every batch
        numbers = sorted(state.batches, reverse=newest)
        if after is not None:
            numbers = numbers[
                bisect_left(numbers, -after[0] if newest else after[0], key=_falling if newest else None) :
            ]
        kept = (batch for batch in map(state.batches.peek, numbers) if batch is not None)
        spans = ((batch, 0, batch.count) for batch in kept)
    out: list[tuple[BatchState, int]] = []
    for found, low, high in spans:
        low, high = span_after(found.id, low, high, after, newest)
        if low >= high:
            continue
        runs = spans_of(found, pattern, low, high)
        pairs = list(zip(runs[::2], runs[1::2], strict=True))
        if not pairs:
            continue
        batch = whole(found)
        for start, end in reversed(pairs) if newest else pairs:
            for pos in range(end - 1, start - 1, -1) if newest else range(start, end):
                out.append((batch, pos))
                if len(out) == limit:
                    return out
    return out


def _falling(number: int) -> int:
    return -number


def span_after(number: int, low: int, high: int, after: tuple[int, int] | None, newest: bool) -> tuple[int, int]:
    """(low, high) of what a span has beyond a cursor, in the order of the pages."""
    if after is None:
        return low, high
    if number == after[0]:
        return (low, min(high, after[1])) if newest else (max(low, after[1] + 1), high)
    return (low, high) if (number < after[0]) == newest else (low, low)


def find_job(state: State, job: str) -> tuple[BatchState, int]:
    """A job by its id."""
    number, index = parse_job(job)
    batch = state.batches.look(number)
    pos = batch.position(index) if batch is not None else None
    if batch is None and number < state.next_batch:
        raise NotFoundError(state.absent(number))
    if batch is None or pos is None or batch.states[pos] == REMOVED:
        raise NotFoundError(f"there is no job {job}")
    return batch, pos


def job_cursor(after: Any) -> tuple[int, int] | None:
    """Where a page of jobs goes on: (batch, position)."""
    if after is None:
        return None
    batch, _, pos = str(after).partition(".")
    if not batch.isdigit() or not pos.isdigit():
        raise UsageError(f"'{after}' is not a cursor")
    return int(batch), int(pos)


# ---- rows -----------------------------------------------------------------------------------------------------------


class Jobs:
    """Rows of jobs, from the state, the store, and what runners tell of what runs."""

    def __init__(self, store: Store, book: JobBook, running: Running) -> None:
        self._store = store
        self._book = book
        self._running = running
        self._places: dict[str, tuple[str | None, str | None]] = {}

    def page(self, state: State, words: list[str], after: Any, limit: int, newest: bool) -> dict[str, Any]:
        """One page of job rows."""
        found = find_jobs(state, words, job_cursor(after), limit, newest)
        rows = self.first_rows(state, found)
        last = found[len(rows) - 1] if len(found) == limit or len(rows) < len(found) else None
        return {"jobs": rows, "next": f"{last[0].id}.{last[1]}" if last is not None else None}

    def first_rows(self, state: State, found: list[tuple[BatchState, int]]) -> list[dict[str, Any]]:
        """Rows of the first of these jobs, as many as fit well into one message (at least one)."""
        rows, size = self.rows(state, found), 0
        for number, row in enumerate(rows):
            size += len(row["command"]) + sum(map(len, row["values"] or ()))
            if size > PAGE_SIZE and number:
                return rows[:number]
        return rows

    def rows(self, state: State, found: list[tuple[BatchState, int]]) -> list[dict[str, Any]]:
        """Job rows; results are read in stretches, not one by one."""
        results: dict[tuple[int, int], Result] = {}
        for batch, low, high in _stretches(found):
            for result in self._store.results(batch.id, low, high, True):
                results[batch.id, result.pos] = result
        asked: dict[int, Needs] = {}
        return [self._row(state, batch, pos, results.get((batch.id, pos)), asked) for batch, pos in found]

    def _row(
        self, state: State, batch: BatchState, pos: int, result: Result | None, known: dict[int, Needs]
    ) -> dict[str, Any]:
        """One job as `rota jobs --json` shows it; what shapes ask for is worked out once, and then `known`."""
        attempt, live = batch.attempts[pos], batch.live.get(pos)
        if live is not None:
            result = None  # it is that of an earlier attempt
        running = self._running.now((batch.id, batch.index(pos), attempt)) if live else None
        started = result.started if result else running.started if running else None
        ended = result.ended if result else None
        value = self._book.value(batch, pos)
        place = json.loads(result.output) if result is not None and result.output else None
        runner = state.runners.get((live.runner if live else result.runner if result else None) or "")
        allocation = state.allocations.get(runner.allocation or "") if runner else None
        site, native = (runner.site, allocation.native_id if allocation else None) if runner else self._place(result)
        shown = max(attempt, 1)
        shape = batch.shapes[batch.template_of(pos)]
        asked = known.get(shape)
        if asked is None:
            asked = known[shape] = asked_now(state, state.shapes[shape]).asked.needs
        return {
            "id": format_job(batch.id, batch.index(pos)),
            "state": JOB_STATES[batch.states[pos]],
            "attempt": attempt,
            "exit_code": result.exit_code if result else None,
            "signal": result.signal if result else None,
            "reason": _job_reason(state, batch, pos, result),
            "site": site,
            "host": ",".join(state.hosts(live)) or None if live else result.host if result else None,
            "native_id": native,
            "command": self._book.command(batch, pos, shown),
            "values": _values(batch, value),
            "cwd": self._book.path(batch, pos, shown, "cwd"),
            "stdout": self._book.path(batch, pos, shown, "stdout") or _segment(place, 0),
            "stderr": self._book.path(batch, pos, shown, "stderr") or _segment(place, 4),
            "wall_s": _wall(started, ended, running is not None),
            "cpu_s": result.cpu_s if result else running.cpu_s if running else None,
            "peak_memory_bytes": result.peak_memory if result else running.memory if running else None,
            "started": started,
            "ended": ended,
            "batch": batch.id,
            "name": batch.spec.name,
            "priority": batch.template(pos).priority,
            "peak_disk_bytes": result.peak_disk if result else running.disk if running else None,
            "asked_cores": asked.cores / 1000,
            "asked_memory_bytes": asked.memory,
            "asked_time_s": asked.time_s,
            "cores": [cores / 1000 for cores in (live.node_cores if live else result.cores if result else ())],
        }

    def _place(self, result: Result | None) -> tuple[str | None, str | None]:
        """Site and native id of an attempt whose runner is long gone."""
        if result is None or result.runner is None:
            return None, None
        found = self._places.get(result.runner)
        if found is None:
            found = self._places[result.runner] = self._store.place_of(result.runner) or (None, None)
            if len(self._places) > PLACES:
                self._places.clear()
        return found


def _job_reason(state: State, batch: BatchState, pos: int, result: Result | None) -> str | None:
    byte = batch.states[pos]
    if byte in (WAITING, PENDING):
        return None  # `explain` has it; a page of a thousand jobs should not work it out a thousand times
    if byte == JOB_STATES.index("OMITTED"):
        return omitted_reason(state, batch, pos)
    return result.reason if result is not None and byte >= COMPLETED else None


def _wall(started: float | None, ended: float | None, running: bool) -> float | None:
    """Seconds that an attempt took, or has taken so far."""
    if running:
        ended = time.time()
    return round(max(0.0, ended - started), 6) if started is not None and ended is not None else None


def _stretches(found: list[tuple[BatchState, int]]) -> Iterator[tuple[BatchState, int, int]]:
    """(batch, first, last) of neighbours, so that one query serves many jobs."""
    by_batch: dict[int, list[int]] = {}
    batches = {batch.id: batch for batch, _ in found}
    for batch, pos in found:
        if batch.attempts[pos]:
            by_batch.setdefault(batch.id, []).append(pos)
    for number, positions in by_batch.items():
        positions.sort()
        start = previous = positions[0]
        for pos in positions[1:]:
            if pos - previous > 16:
                yield batches[number], start, previous
                start = pos
            previous = pos
        yield batches[number], start, previous


def _segment(place: list[Any] | None, at: int) -> str | None:
    return os.path.join(place[0], place[1 + at]) if place is not None and place[1 + at] else None


def _values(batch: BatchState, value: Any) -> list[str] | None:
    if value is None or not batch.spec.columns:
        return None
    return [value] if isinstance(value, str) else list(value)
