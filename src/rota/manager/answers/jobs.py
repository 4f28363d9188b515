"""Answers to clients' questions: read-only, from the core's state and the store."""

import base64
import contextlib
import heapq
import json
import os
import stat
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from rota.core.decide.learning import asked_now
from rota.core.decide.modes import pause_rows
from rota.core.dependencies import spans_of
from rota.core.explain import (
    cluster_words,
    held_reason,
    omitted_reason,
    pending_reason,
    reason,
    verdicts,
    waiting_reason,
)
from rota.core.selection import select, states_pattern, wanted_states
from rota.core.state import BatchState, State
from rota.core.stimuli import At
from rota.manager.answers.running import Running
from rota.manager.jobbook import JobBook
from rota.manager.outbound import now
from rota.model.allocation import Allocation
from rota.model.errors import NotFoundError, UsageError
from rota.model.job import Result, format_job, parse_job
from rota.model.selector import Selector, parse_selector
from rota.model.tables import (
    COMPLETED,
    HOLDING,
    JOB_STATES,
    PENDING,
    REMOVED,
    WAITING,
)
from rota.store.api import Store

__all__ = ["Queries", "attempt_cursor", "job_cursor", "log_answer", "read_stretch"]

TAIL = 2000
"""Bytes of stderr that a summary shows."""
PAGE_SIZE = 1 << 20
"""Characters of commands and values in one message."""


def counts_of(batch: BatchState) -> dict[str, int]:
    """Counts by state, those that are not zero."""
    return {
        name: batch.counts[number]
        for number, name in enumerate(JOB_STATES)
        if batch.counts[number] and number != REMOVED
    }


PLACES = 10_000
"""Runners that are gone and whose places are remembered."""


AFTER_SHOWN = 100
"""Dependencies of a batch that its row shows."""


class Queries:
    """Everything that can be asked without changing anything."""

    def __init__(self, store: Store, book: JobBook, running: Running) -> None:
        self._store = store
        self._book = book
        self._running = running
        self.waits: Callable[[Allocation], str | None] = lambda _: None
        """Why an allocation does not run yet, in the words of its batch system."""
        self._places: dict[str, tuple[str | None, str | None]] = {}

    def spans(self, state: State, words: list[str]) -> list[tuple[BatchState, int, int]]:
        """(batch, low, high) of what a selector names, by batch and position."""
        return sorted(select(state, parse_selector(words)), key=lambda span: (span[0].id, span[1]))

    def status(self, state: State, words: list[str]) -> dict[str, Any]:
        """Counts per batch."""
        selector = parse_selector(words)
        totals: dict[str, int] = {}
        rows: dict[int, dict[str, Any]] = {}
        for batch, low, high in select(state, selector):
            counts = self._counts(batch, low, high, selector)
            row = rows.get(batch.id)
            if row is None:
                row = rows[batch.id] = {
                    "id": batch.id,
                    "name": batch.spec.name,
                    "jobs": 0,
                    "counts": {},
                    "submitted": batch.submitted,
                    "priority": max(template.priority for template in batch.templates),
                    "ends": batch.spec.ends,
                    "after": [msgspec.to_builtins(dependency) for dependency in batch.spec.after[:AFTER_SHOWN]],
                    "not_before": batch.spec.not_before,
                    "at_once": batch.spec.at_once,
                    "max_failures": batch.spec.max_failures,
                }
            row["jobs"] += sum(counts.values())
            for name, count in counts.items():
                row["counts"][name] = row["counts"].get(name, 0) + count
                totals[name] = totals.get(name, 0) + count
        batches = [row for _, row in sorted(rows.items()) if row["jobs"]]
        return {
            "counts": totals,
            "batches": batches,
            "state": state.mode,
            "why": self._why(state, batches),
            "pauses": pause_rows(state.pauses),
        }

    def _counts(self, batch: BatchState, low: int, high: int, selector: Selector) -> dict[str, int]:
        if low == 0 and high == batch.count and not selector.states:
            return counts_of(batch)
        states = batch.states
        return {
            JOB_STATES[number]: count
            for number in sorted(wanted_states(selector))
            if (count := states.count(number, low, high))
        }

    def _why(self, state: State, batches: list[dict[str, Any]]) -> list[dict[str, Any]]:
        out = []
        for row in batches[-1000:]:
            batch = state.batches[row["id"]]
            why = None
            if batch.counts[PENDING]:
                why = pending_reason(state, batch, batch.states.find(PENDING), now())
            elif batch.counts[WAITING]:
                why = waiting_reason(state, batch, None, time.time())
            elif batch.counts[HOLDING]:
                why = held_reason(batch, str(batch.id))
            if why:
                out.append({"batch": batch.id, "reason": why})
        return out

    def count(self, state: State, words: list[str]) -> dict[str, Any]:
        """How many, by state."""
        selector = parse_selector(words)
        totals: dict[str, int] = {}
        for batch, low, high in select(state, selector):
            for name, count in self._counts(batch, low, high, selector).items():
                totals[name] = totals.get(name, 0) + count
        return {"jobs": sum(totals.values()), "counts": totals}

    # ---- jobs -------------------------------------------------------------------------------------------------------

    def positions(
        self, state: State, words: list[str], after: tuple[int, int] | None, limit: int, newest: bool
    ) -> list[tuple[BatchState, int]]:
        """One page of selected jobs, in order (or against it)."""
        selector = parse_selector(words)
        pattern = states_pattern(wanted_states(selector))
        spans = self.spans(state, words)
        out: list[tuple[BatchState, int]] = []
        seen = after
        for batch, low, high in reversed(spans) if newest else spans:
            if seen is not None and not newest:
                low = max(low, seen[1] + 1) if batch.id == seen[0] else (low if batch.id > seen[0] else high)
            elif seen is not None:
                high = min(high, seen[1]) if batch.id == seen[0] else (high if batch.id < seen[0] else low)
            if low >= high:
                continue
            runs = spans_of(batch, pattern, low, high)
            pairs = list(zip(runs[::2], runs[1::2], strict=True))
            for start, end in reversed(pairs) if newest else pairs:
                positions = range(end - 1, start - 1, -1) if newest else range(start, end)
                for pos in positions:
                    out.append((batch, pos))
                    if len(out) == limit:
                        return out
        return out

    def jobs(self, state: State, words: list[str], after: Any, limit: int, newest: bool) -> dict[str, Any]:
        """One page of job rows."""
        cursor = job_cursor(after)
        found = self.positions(state, words, cursor, limit, newest)
        rows = self.page(state, found)
        last = found[len(rows) - 1] if len(found) == limit or len(rows) < len(found) else None
        return {"jobs": rows, "next": f"{last[0].id}.{last[1]}" if last is not None else None}

    def page(self, state: State, found: list[tuple[BatchState, int]]) -> list[dict[str, Any]]:
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
        return [self.row(state, batch, pos, results.get((batch.id, pos))) for batch, pos in found]

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

    def row(self, state: State, batch: BatchState, pos: int, result: Result | None) -> dict[str, Any]:
        """One job as `rota jobs --json` shows it."""
        attempt = batch.attempts[pos]
        live = self._book.live(state, batch, pos)
        if live or (result is not None and result.attempt != attempt):
            result = None if live else result
        running = self._running.now((batch.id, batch.index(pos), attempt)) if live else None
        started = result.started if result else running.started if running else None
        ended = result.ended if result else None
        value = self._book.value(batch, pos)
        place = json.loads(result.output) if result is not None and result.output else None
        runner = state.runners.get(live.get("runner") or (result.runner if result else None) or "")
        allocation = state.allocations.get(runner.allocation or "") if runner else None
        site, native = (runner.site, allocation.native_id if allocation else None) if runner else self._place(result)
        shown = max(attempt, 1)
        return {
            "id": format_job(batch.id, batch.index(pos)),
            "state": JOB_STATES[batch.states[pos]],
            "attempt": attempt,
            "exit_code": result.exit_code if result else None,
            "signal": result.signal if result else None,
            "reason": self._job_reason(state, batch, pos, result),
            "site": live.get("site") or site,
            "host": live.get("host") or (result.host if result else None),
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
        }

    def _job_reason(self, state: State, batch: BatchState, pos: int, result: Result | None) -> str | None:
        byte = batch.states[pos]
        if byte in (WAITING, PENDING):
            return None  # `explain` has it; a page of a thousand jobs should not work it out a thousand times
        if byte == JOB_STATES.index("OMITTED"):
            return omitted_reason(state, batch, pos)
        return result.reason if result is not None and byte >= COMPLETED else None

    # ---- explain ----------------------------------------------------------------------------------------------------

    def explain(self, state: State, job: str, at: At) -> dict[str, Any]:
        """Why a job is where it is."""
        batch, pos = self.find(state, job)
        byte = batch.states[pos]
        attempts = self._store.results(batch.id, pos, pos, False)
        shape = state.shapes[batch.shapes[batch.template_of(pos)]]
        fields = ("location", "filter", "code", "detail", "lasting")
        found = verdicts(state, shape, at) if byte == PENDING else ()
        return {
            "job": job,
            "state": JOB_STATES[byte],
            "reason": reason(state, batch, pos, attempts[-1] if attempts else None, at)
            + cluster_words(state, batch, pos, self.waits),
            "verdicts": [{field: getattr(verdict, field) for field in fields} for verdict in found],
            "needs": asked_now(state, shape).needs.words(),
            "given": shape.shape.needs.words(),
            "group": shape.shape.group,
            "command": self._book.command(batch, pos, max(batch.attempts[pos], 1)),
            "attempts": [self.attempt_row(batch, result) for result in attempts],
        }

    # ---- attempts, output -------------------------------------------------------------------------------------------

    def history(self, state: State, words: list[str], after: Any, limit: int) -> dict[str, Any]:
        """Attempts, newest first."""
        selector = parse_selector(words)
        cursor = attempt_cursor(after)
        spans = self.spans(state, words)
        batches = sorted({batch.id for batch, _, _ in spans}) if not selector.empty else None
        allowed = wanted_states(selector)
        rows: list[Any] = []
        while len(rows) < limit:
            page = self._store.recent_results(batches, cursor, limit)
            for result in page:
                cursor = (result.ended or 0.0, result.batch, result.pos, result.attempt)
                batch = state.batches.get(result.batch)
                if batch is None or batch.states[result.pos] not in allowed:
                    continue
                if not selector.empty and not any(
                    b.id == result.batch and low <= result.pos < high for b, low, high in spans
                ):
                    continue
                rows.append(self.attempt_row(batch, result))
                if len(rows) == limit:
                    return {"attempts": rows, "next": json.dumps(cursor)}
            if len(page) < limit:
                return {"attempts": rows, "next": None}
        return {"attempts": rows, "next": json.dumps(cursor)}

    def attempt_row(self, batch: BatchState, result: Result) -> dict[str, Any]:
        """One attempt as `rota history --json` shows it."""
        wall = result.ended - result.started if result.started is not None and result.ended is not None else None
        return {
            "id": format_job(batch.id, batch.index(result.pos)),
            "attempt": result.attempt,
            "state": result.state,
            "exit_code": result.exit_code,
            "signal": result.signal,
            "reason": result.reason,
            "host": result.host,
            "runner": result.runner,
            "started": result.started,
            "ended": result.ended,
            "wall_s": round(wall, 6) if wall is not None else None,
            "cpu_s": result.cpu_s,
            "peak_memory_bytes": result.peak_memory,
            "note": result.note,
            "peak_disk_bytes": result.peak_disk,
        }

    def find(self, state: State, job: str) -> tuple[BatchState, int]:
        """A job by its id."""
        number, index = parse_job(job)
        batch = state.batches.get(number)
        pos = batch.position(index) if batch is not None else None
        if batch is None and number < state.next_batch:
            raise NotFoundError(state.absent(number))
        if batch is None or pos is None or batch.states[pos] == REMOVED:
            raise NotFoundError(f"there is no job {job}")
        return batch, pos

    def log(self, state: State, job: str, attempt: int | None, stream: str, offset: int, limit: int) -> dict[str, Any]:
        """A stretch of a job's output."""
        batch, pos = self.find(state, job)
        newest = batch.attempts[pos]
        wanted = newest if attempt is None else attempt
        if wanted > newest or wanted < 0:
            raise NotFoundError(f"job {job} has had {newest} attempts; there is no attempt {wanted}")
        running = pos in batch.live and wanted == newest
        path = self._book.path(batch, pos, max(wanted, 1), stream)
        if path is not None:
            data, size = read_stretch(path, offset, limit)
            return log_answer(data, offset, not running and offset + len(data) >= size, 0, path)
        found = [result for result in self._store.results(batch.id, pos, pos, False) if result.attempt == wanted]
        if running:
            return self._tail_of(state, batch, pos, stream, offset, limit)
        if not found or found[0].output is None:
            return log_answer(b"", offset, True, 0, None)
        place = json.loads(found[0].output)
        at = 1 if stream == "stdout" else 5
        name, start, length, dropped = place[at : at + 4]
        if name is None:
            return log_answer(b"", offset, True, dropped, None)
        path = os.path.join(place[0], name)
        data, _ = read_stretch(path, start + offset, max(0, min(limit, length - offset)))
        return log_answer(data, offset, offset + len(data) >= length or not data, dropped, path)

    def elsewhere(
        self, state: State, job: str, attempt: int | None, stream: str
    ) -> tuple[tuple[int, int, int], str] | None:
        """(the attempt, its runner) if it runs, and only its runner can read what it has written so far."""
        batch, pos = self.find(state, job)
        live = batch.live.get(pos)
        if live is None or attempt not in (None, live.attempt) or not self._running.is_elsewhere(state, live.runner):
            return None
        if self._book.path(batch, pos, live.attempt, stream) is not None:
            return None
        return (batch.id, batch.index(pos), live.attempt), live.runner

    def _tail_of(
        self, state: State, batch: BatchState, pos: int, stream: str, offset: int, limit: int
    ) -> dict[str, Any]:
        """What a running job has written so far, if it runs here."""
        job = (batch.id, batch.index(pos), batch.attempts[pos])
        path = self._running.scratch(state, job, batch.live[pos].runner, stream)
        data = b""
        if path is not None:
            with contextlib.suppress(NotFoundError):
                data, _ = read_stretch(path, offset, limit)
            if not self._running.lives(state, job, batch.live[pos].runner):
                data = b""  # it has just ended, and its file may be another's already
        return log_answer(data, offset, False, 0, None)

    def summary(self, state: State, number: int, failures: int, slowest: int, wall: float) -> dict[str, Any]:
        """What `rota run` says at the end."""
        batch = state.batches.get(number)
        if batch is None:
            raise NotFoundError(state.absent(number))
        failed = self.positions(state, [str(number), ":failed", ":aborted"], None, failures, False) if failures else []
        rows = self.rows(state, failed)
        for row in rows:
            row["stderr_tail"] = self._tail(state, row["id"])
        slow = self._store.slowest(number, slowest) if slowest else []
        positions = list(dict.fromkeys((batch, result.pos) for result in slow))
        return {
            "batch": number,
            "name": batch.spec.name,
            "counts": counts_of(batch),
            "failures": rows,
            "slowest": self.rows(state, positions),
            "wall_s": wall - batch.submitted,
        }

    def _tail(self, state: State, job: str) -> str:
        batch, pos = self.find(state, job)
        attempt = batch.attempts[pos]
        if not attempt:
            return ""
        for stream in ("stderr", "stdout"):
            try:
                size, text = 0, b""
                while True:
                    part = self.log(state, job, attempt, stream, size, 1 << 20)
                    data = base64.b64decode(part["data"])
                    text = (text + data)[-TAIL:]
                    size += len(data)
                    if part["end"] or not data:
                        break
            except (NotFoundError, UsageError):
                continue
            if text.strip():
                return text.decode("utf-8", "replace")
        return ""


def _wall(started: float | None, ended: float | None, running: bool) -> float | None:
    """Seconds that an attempt took, or has taken so far."""
    if running:
        ended = time.time()
    return round(max(0.0, ended - started), 6) if started is not None and ended is not None else None


def log_answer(data: bytes, offset: int, end: bool, dropped: int, path: str | None) -> dict[str, Any]:
    """A stretch of a job's output as clients get it."""
    return {
        "data": base64.b64encode(data).decode(),
        "next": offset + len(data),
        "end": end,
        "truncated": dropped,
        "path": path,
    }


def read_stretch(path: str, offset: int, limit: int) -> tuple[bytes, int]:
    """Bytes of a regular file that is ours, and its size."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise NotFoundError(f"its output cannot be read: {path}: {error.strerror}") from None
    try:
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode):
            return b"", 0
        return os.pread(fd, limit, offset), info.st_size
    finally:
        os.close(fd)


def job_cursor(after: Any) -> tuple[int, int] | None:
    """Where a page of jobs goes on: (batch, position)."""
    if after is None:
        return None
    batch, _, pos = str(after).partition(".")
    if not batch.isdigit() or not pos.isdigit():
        raise UsageError(f"'{after}' is not a cursor")
    return int(batch), int(pos)


def attempt_cursor(after: Any) -> tuple[float, int, int, int] | None:
    """Where a page of attempts goes on: (ended, batch, position, attempt)."""
    if after is None:
        return None
    try:
        return msgspec.json.decode(str(after), type=tuple[float, int, int, int])
    except msgspec.MsgspecError:
        raise UsageError(f"'{after}' is not a cursor") from None


def _stretches(found: list[tuple[BatchState, int]]) -> Iterator[tuple[BatchState, int, int]]:
    """(batch, first, last) of neighbours, so that one query serves many jobs."""
    by_batch: dict[int, list[int]] = {}
    batches = {batch.id: batch for batch, _ in found}
    for batch, pos in found:
        if batch.attempts[pos]:
            heapq.heappush(by_batch.setdefault(batch.id, []), pos)
    for number, heap in by_batch.items():
        positions = sorted(heap)
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
