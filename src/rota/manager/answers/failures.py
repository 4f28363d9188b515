"""Failures, those together that look alike: by reason, exit code, host, and the last line that they wrote.

Only jobs that failed are looked at, a page at a time, in a thread; so it costs as much as there is to tell, and the
loop goes on meanwhile.
"""

import asyncio
import re
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from rota.core.explain import never_ran, was_raised
from rota.core.selection import states_pattern, wanted_states
from rota.core.settled import AnyBatch, whole
from rota.core.spans import spans_of
from rota.core.state import BatchState, State
from rota.manager.answers.jobs import selected
from rota.manager.answers.output import Output, last_line
from rota.model.job import Result, format_job
from rota.model.selector import parse_selector
from rota.model.tables import ABORTED, FAILED, OMITTED
from rota.store.api import Store

__all__ = ["Failures", "helping"]

PAGE = 2_000
LOOK_S = 0.5
"""How long one look takes, before the loop has its turn again."""
BREATH_S = 0.001
LINES = 20_000
"""Failed jobs whose last lines are read; of more, only how they ended is told."""
LINE = 500
"""Bytes of output in which the last line is looked for."""
GROUPS = 1_000
"""Different groups; what would be more is put together without its last line."""
EXAMPLES = 5
_NUMBERS = re.compile(r"[0-9]+")


class _Key(NamedTuple):
    """What failures have in common; of the line all but its numbers."""

    state: int
    reason: str
    exit_code: int | None
    signal: int | None
    host: str | None
    line: str | None


class _Group:
    """Failures that look alike."""

    def __init__(self, line: str | None) -> None:
        self.line = line
        self.count = 0
        self.examples: list[str] = []
        self.raised = True
        """Whether all of them ask for more by now of what they had too little of."""
        self.batches: set[int] = set()


class Failures:
    """Looks through the failed jobs of a selection."""

    def __init__(self, store: Store, output: Output, state: Callable[[], State]) -> None:
        self._store = store
        self._output = output
        self._state = state

    async def answer(self, words: list[str]) -> dict[str, Any]:
        """All failures that the words select, in groups, the largest first."""
        state = self._state()
        pages, omitted = _failed(state, words)
        groups: dict[_Key, _Group] = {}
        read = 0
        while pages:
            pages, read = await asyncio.to_thread(self._look, pages, groups, read)
        rows = [_row(key, group, words) for key, group in groups.items()]
        rows.sort(key=lambda row: (-row["count"], row["examples"]))
        return {"groups": rows, "failed": sum(row["count"] for row in rows), "omitted": omitted}

    def _look(
        self, pages: list[tuple[AnyBatch, int, int]], groups: dict[_Key, _Group], read: int
    ) -> tuple[list[tuple[AnyBatch, int, int]], int]:
        """Look at some pages; those that are left, and how many lines were read by now."""
        deadline, left = time.monotonic() + LOOK_S, list(pages)
        while left and time.monotonic() < deadline:
            kept, low, high = left.pop(0)
            batch = whole(kept)
            results = {row.pos: row for row in self._store.results(batch.id, low, high - 1, True)}
            for pos in range(low, high):
                byte = batch.states[pos]
                if byte in (FAILED, ABORTED):
                    result = results.get(pos)
                    line = self._line(batch, pos, result) if read < LINES else None
                    if line == "" and result is not None and result.note:
                        line = result.note[:200]  # it wrote nothing: then what was noted of its end
                    read += 1
                    _count(groups, batch, pos, byte, result, line)
            time.sleep(BREATH_S)
        return left, read

    def _line(self, batch: BatchState, pos: int, result: Result | None) -> str:
        """The last line of a job: of its standard error, or else of its standard output."""
        if result is None or result.reason == "killed":
            return ""
        for stream in ("stderr", "stdout"):
            line = last_line(self._output.tail(batch, pos, result, stream, LINE))
            if line.strip():
                return line.strip()[:200]
        return ""


def _failed(state: State, words: list[str]) -> tuple[list[tuple[AnyBatch, int, int]], int]:
    """(pages of positions with failed jobs, how many jobs were omitted)."""
    allowed = wanted_states(parse_selector(words))
    bytes_ = [byte for byte in (FAILED, ABORTED) if byte in allowed]
    pages: list[tuple[AnyBatch, int, int]] = []
    omitted = 0
    for batch, low, high in selected(state, words):
        omitted += batch.states.count(OMITTED, low, high) if OMITTED in allowed else 0
        counts = batch.counts
        if not any(counts[byte] for byte in bytes_):
            continue
        spans = spans_of(batch, states_pattern(bytes_), low, high)
        pages.extend((batch, *page) for page in _pages(spans))
    return pages, omitted


def _pages(spans: list[int]) -> Iterator[tuple[int, int]]:
    """Spans that lie close together as one, none longer than a page."""
    start = end = -1
    for low, high in zip(spans[::2], spans[1::2], strict=True):
        while low < high:
            if start >= 0 and low - end <= 16 and low - start < PAGE:
                end = min(high, start + PAGE)
            else:
                if start >= 0:
                    yield start, end
                start, end = low, min(high, low + PAGE)
            low = end
    if start >= 0:
        yield start, end


def _count(
    groups: dict[_Key, _Group], batch: BatchState, pos: int, byte: int, result: Result | None, line: str | None
) -> None:
    reason = "killed" if result is None else result.reason or ("signal" if result.signal is not None else "exit")
    code, signal, host = (None, None, None) if result is None else (result.exit_code, result.signal, result.host)
    key = _Key(byte, reason, code, signal, host, None if line is None else _NUMBERS.sub("#", line))
    if key not in groups and len(groups) >= GROUPS:
        key, line = key._replace(line=None), None
    group = groups.get(key)
    if group is None:
        group = groups[key] = _Group(line)
    group.count += 1
    group.raised = group.raised and result is not None and was_raised(result)
    group.batches.add(batch.id)
    if len(group.examples) < EXAMPLES:
        group.examples.append(format_job(batch.id, batch.index(pos)))


def _row(key: _Key, group: _Group, words: list[str]) -> dict[str, Any]:
    return {
        "reason": key.reason,
        "exit_code": key.exit_code,
        "signal": key.signal,
        "host": key.host,
        "last_line": group.line,
        "count": group.count,
        "examples": group.examples,
        "commands": helping(key.state, key.reason, group, words),
    }


def helping(byte: int, reason: str, group: _Group, words: list[str]) -> list[str]:
    """Commands that help with failures of a kind."""
    example, batches = group.examples[0], group.batches
    given = [word for word in words if not word.startswith(":")]
    if not given and len(batches) <= 3:
        given = [str(number) for number in sorted(batches)]
    again = " ".join(["rota retry", *given, ":failed" if byte == FAILED else ":aborted"])
    if group.raised:
        return [again]
    if reason in ("oom", "memory"):
        return [f"{again} --memory x2"]
    if reason == "time":
        return [f"{again} --time x2"]
    if never_ran(reason):
        return [f"rota explain {example}", again]
    if reason in ("killed", "lost", "lost-too-often", "cancelled", "runner-stopped"):
        return [again]
    return [f"rota log {example} --stderr", f"rota explain {example}", again]
