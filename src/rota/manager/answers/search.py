"""Looking through all jobs and attempts by what they ran, where, when and how they ended.

What takes long runs in a thread and reads the store over a connection of its own. A request looks for a second or so
and then says how far it has come, so that memory and time of one answer stay bounded; whoever asks goes on from there.
"""

import asyncio
import json
import time
from collections.abc import Callable, Iterable, Iterator
from operator import itemgetter
from typing import Any

from rota.core.selection import select, states_pattern, wanted_states
from rota.core.settled import AnyBatch, whole
from rota.core.state import BatchState, State
from rota.manager.answers.attempts import attempt_cursor, attempt_row
from rota.manager.answers.jobs import Jobs, job_cursor, span_after
from rota.model.batch import Value
from rota.model.command import CommandMaker, show_command
from rota.model.errors import UsageError
from rota.model.job import Result
from rota.model.selector import parse_selector
from rota.store.api import Query, Store
from rota.wire import messages

__all__ = ["Search"]

PAGE = 4_096
"""Values that are read at a time."""
ROWS = 2_000
"""Results that are read at a time."""
FEW = 2_000
"""Up to so many jobs with a certain command, their attempts are looked up one by one."""
LOOK_S = 1.0
BREATH_S = 0.001
"""The pause between two pages, for the loop."""
_LAST = 1 << 62
ATTEMPT_STATES = ("COMPLETED", "FAILED", "ABORTED", "RETRIED", "LOST", "SUPERSEDED")

Found = list[tuple[AnyBatch, int]]


class _Spans:
    """The jobs that a selector allows. Made in the loop, used in a thread: it keeps what does not change."""

    def __init__(self, state: State, words: list[str], newest: bool = False) -> None:
        selector = parse_selector(words)
        self.everything = selector.empty
        self._named = bool(selector.spans or selector.names)
        self.allowed = wanted_states(selector)
        self.spans = sorted(select(state, selector), key=lambda span: (span[0].id, span[1]), reverse=newest)
        self.batches: dict[int, AnyBatch] = {}
        self._of: dict[int, list[tuple[int, int]]] = {}
        for batch, low, high in self.spans:
            self.batches[batch.id] = batch
            self._of.setdefault(batch.id, []).append((low, high))

    def numbers(self) -> list[int] | None:
        """The numbers of the batches; None: all, so that no list of thousands goes into a query."""
        return sorted(self.batches) if self._named and len(self.batches) <= 500 else None

    def few(self) -> Found | None:
        """All jobs that the selector allows, unless they are many."""
        if self.everything:
            return None
        count = 0
        for batch, low, high in self.spans:
            count += sum(batch.states.count(byte, low, high) for byte in self.allowed)
            if count > FEW:
                return None
        pattern = states_pattern(self.allowed)
        return [
            (batch, pos)
            for batch, low, high in self.spans
            for match in pattern.finditer(batch.states, low, high)
            for pos in range(*match.span())
        ]

    def holds(self, number: int, pos: int) -> BatchState | None:
        """The batch of a job, if the selector allows the job."""
        batch = self.batches.get(number)
        if batch is None or batch.states[pos] not in self.allowed:
            return None
        return whole(batch) if any(low <= pos < high for low, high in self._of[number]) else None


class Search:
    """Searches over one store."""

    def __init__(self, store: Store, rows: Jobs, state: Callable[[], State]) -> None:
        self._store = store
        self._rows = rows
        self._state = state

    async def jobs(self, args: messages.Jobs) -> dict[str, Any]:
        """Rows of jobs that fit, and where to go on."""
        found, after = await asyncio.to_thread(self._look_for_jobs(args))
        state = self._state()
        now = {batch.id: state.batches.look(batch.id) for batch, _ in found}
        there = [(batch, pos) for of, pos in found if (batch := now[of.id]) is not None]
        return {"jobs": self._rows.rows(state, there), "next": after}

    async def attempts(self, args: messages.History) -> dict[str, Any]:
        """Rows of attempts that fit, newest first, and where to go on."""
        results, after = await asyncio.to_thread(self._look_for_attempts(args))
        batches = self._state().batches
        found = ((batches.look(row.batch), row) for row in results)
        rows = [attempt_row(batch, row) for batch, row in found if batch is not None]
        return {"attempts": rows, "next": after}

    # ---- made in the loop, called in a thread -----------------------------------------------------------------------

    def _look_for_jobs(self, args: messages.Jobs) -> Callable[[], tuple[Found, str | None]]:
        spans = _Spans(self._state(), args.sel, args.newest)
        after = job_cursor(args.after)
        query = self._query(args, spans)
        query.newest_first, query.descending = False, args.newest
        if after is not None:
            query.after = (0.0, *after, 0 if args.newest else _LAST)
        by_results = (args.host, args.exit_code, args.reason, args.since, args.until) != (None,) * 5
        if by_results:
            return lambda: self._jobs_by_results(spans, query, args.command, args.limit)
        return lambda: self._jobs_by_command(spans, args.command or "", after, args.newest, args.limit)

    def _look_for_attempts(self, args: messages.History) -> Callable[[], tuple[list[Result], str | None]]:
        spans = _Spans(self._state(), args.sel)
        query = self._query(args, spans)
        query.states = tuple(word.upper() for word in args.states)
        for word in query.states:
            if word not in ATTEMPT_STATES:
                names = ", ".join(name.lower() for name in ATTEMPT_STATES)
                raise UsageError(f"'{word.lower()}' is no state of an attempt: {names}")
        query.after = attempt_cursor(args.after)
        return lambda: self._attempts(spans, query, args.command, args.limit)

    def _query(self, args: messages.Jobs | messages.History, spans: _Spans) -> Query:
        return Query(spans.numbers(), args.host, args.exit_code, args.reason, args.since, args.until)

    # ---- in a thread ------------------------------------------------------------------------------------------------

    def _attempts(self, spans: _Spans, query: Query, text: str | None, limit: int) -> tuple[list[Result], str | None]:
        deadline = time.monotonic() + LOOK_S
        found: list[Result] = []
        match = _Matching(self._store, text) if text is not None else None
        few = spans.few() if match is None else self._few(spans, match)
        if few is not None:
            return self._attempts_of(few, query, limit)
        size = limit if match is None and spans.everything else max(limit, ROWS)
        while True:
            page = self._store.search(query, size)
            for row in page:
                query.after = (row.ended or 0.0, row.batch, row.pos, row.attempt)
                batch = spans.holds(row.batch, row.pos)
                if batch is not None and (match is None or match.fits(batch, row.pos)):
                    found.append(row)
                    if len(found) == limit:
                        return found, json.dumps(query.after)
            if len(page) < size:
                return found, None
            if time.monotonic() > deadline:
                return found, json.dumps(query.after)
            time.sleep(BREATH_S)

    def _few(self, spans: _Spans, match: "_Matching") -> Found | None:
        """All jobs whose command fits, unless they are many: then attempts are found soon in the order of time."""
        few: Found = []
        for batch, low, high in spans.spans:
            for page in _pages(low, high, False):
                fits = match.page(batch, page)
                if 1 in fits:
                    start, end = max(low, page * PAGE), min(high, (page + 1) * PAGE)
                    chosen = (
                        pos for pos in range(start, end) if fits[pos % PAGE] and batch.states[pos] in spans.allowed
                    )
                    few.extend((batch, pos) for pos in chosen)
                    if len(few) > FEW:
                        return None
                time.sleep(BREATH_S)
        return few

    def _attempts_of(self, jobs: Found, query: Query, limit: int) -> tuple[list[Result], str | None]:
        rows = [row for batch, pos in jobs for row in self._store.results(batch.id, pos, pos, False) if query.fits(row)]
        places = [((row.ended or 0.0, row.batch, row.pos, row.attempt), row) for row in rows]
        chosen = [pair for pair in places if query.after is None or pair[0] < query.after]
        chosen.sort(key=itemgetter(0), reverse=True)
        after = json.dumps(chosen[limit - 1][0]) if len(chosen) > limit else None
        return [row for _, row in chosen[:limit]], after

    def _jobs_by_results(self, spans: _Spans, query: Query, text: str | None, limit: int) -> tuple[Found, str | None]:
        deadline = time.monotonic() + LOOK_S
        found: Found = []
        match = _Matching(self._store, text) if text is not None else None
        while True:
            page = self._store.search(query, ROWS)
            for row in page:
                query.after = (0.0, row.batch, row.pos, row.attempt)
                batch = spans.holds(row.batch, row.pos)
                if batch is None or batch.attempts[row.pos] != row.attempt or row.pos in batch.live:
                    continue  # only how a job ended last is the job's
                if match is None or match.fits(batch, row.pos):
                    found.append((batch, row.pos))
                    if len(found) == limit:
                        return found, f"{row.batch}.{row.pos}"
            if len(page) < ROWS:
                return found, None
            if time.monotonic() > deadline:
                assert query.after is not None
                return found, f"{query.after[1]}.{query.after[2]}"
            time.sleep(BREATH_S)

    def _jobs_by_command(
        self, spans: _Spans, text: str, after: tuple[int, int] | None, newest: bool, limit: int
    ) -> tuple[Found, str | None]:
        deadline = time.monotonic() + LOOK_S
        found: Found = []
        match = _Matching(self._store, text)
        for batch, low, high in spans.spans:
            low, high = span_after(batch.id, low, high, after, newest)
            for page in _pages(low, high, newest):
                fits = match.page(batch, page)
                start, end = max(low, page * PAGE), min(high, (page + 1) * PAGE)
                for pos in range(end - 1, start - 1, -1) if newest else range(start, end):
                    if fits[pos % PAGE] and batch.states[pos] in spans.allowed:
                        found.append((batch, pos))
                        if len(found) == limit:
                            return found, f"{batch.id}.{pos}"
                if time.monotonic() > deadline:
                    return found, f"{batch.id}.{start if newest else end - 1}"
                time.sleep(BREATH_S)
        return found, None


def _pages(low: int, high: int, down: bool) -> Iterable[int]:
    pages = range(low // PAGE, (high - 1) // PAGE + 1) if low < high else range(0)
    return reversed(pages) if down else pages


class _Matching:
    """Which jobs have a text in their command. The last page is kept, since neighbours are asked for one by one."""

    def __init__(self, store: Store, text: str) -> None:
        self._store = store
        self._text = text
        self._place: tuple[int, int] = (-1, -1)
        self._fits = b""
        self._makers: tuple[int, list[CommandMaker]] = (-1, [])

    def fits(self, batch: BatchState, pos: int) -> bool:
        """Whether one job's command has the text."""
        return bool(self.page(batch, pos // PAGE)[pos % PAGE])

    def page(self, kept: AnyBatch, page: int) -> bytes:
        """A byte for each job of a page: does its command have the text?"""
        if self._place != (kept.id, page):
            batch = whole(kept)
            if self._makers[0] != batch.id or len(self._makers[1]) < len(batch.templates):
                columns = batch.spec.columns
                makers = [CommandMaker(template, columns, batch.id) for template in list(batch.templates)]
                self._makers = (batch.id, makers)
            texts = _commands(self._store, batch, self._makers[1], page * PAGE)
            self._fits = bytes([self._text in text for text in texts])
            self._place = (batch.id, page)
        return self._fits


def _commands(store: Store, batch: BatchState, makers: list[CommandMaker], low: int) -> Iterator[str]:
    """The commands of a page of neighbours, as people see them."""
    count = min(PAGE, batch.count - low)
    values: list[Value] = [None] * count
    if batch.spec.columns or any(maker.lines for maker in makers):
        values = store.values(batch.id, low, count)
    for at, value in enumerate(values):
        maker = makers[batch.template_of(low + at)]
        if maker.lines and type(value) is str and "  " not in value and "\t" not in value:
            yield value
        else:
            yield show_command(maker.command(value, batch.index(low + at), max(1, batch.attempts[low + at])))
