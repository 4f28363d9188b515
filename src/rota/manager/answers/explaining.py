"""Why jobs are where they are, as clients are told: one job, many of them, or groups of many."""

from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from rota.core.explain import Account, Records, accounts, verdicts
from rota.core.explain.brokerage import brokerage
from rota.core.plan.asked import asked_now, what_was_learned
from rota.core.selection import states_pattern, wanted_states
from rota.core.settled import AnyBatch, whole
from rota.core.spans import spans_of
from rota.core.state import BatchState, State
from rota.core.stimuli import At
from rota.manager.answers.attempts import attempt_row
from rota.manager.answers.jobs import find_job, find_jobs, job_cursor, selected
from rota.manager.answers.output import Output
from rota.manager.data.answers import explain_data
from rota.manager.data.staging import Staging
from rota.manager.jobbook import JobBook
from rota.model.allocation import Allocation, Waiting
from rota.model.job import Result, format_job
from rota.model.selector import parse_selector
from rota.model.tables import (
    ABORTED,
    COMPLETED,
    FAILED,
    JOB_STATES,
    KILLING,
    MISSING,
    OMITTED,
    PENDING,
    RUNNING,
    STARTING,
    WAITING,
)
from rota.store.api import Store

__all__ = ["Explaining"]

Found = tuple[BatchState, int]
EXAMPLES = 5
"""Jobs of a group that are named."""
GROUPS = 200
"""Groups of one answer."""
LOOKED_AT = 200
"""Jobs of a batch and a state of which each is looked at, where they may be so for different reasons."""
_DIFFER = (STARTING, RUNNING, MISSING, KILLING, COMPLETED, FAILED, ABORTED)
"""States in which no two jobs need be for the same reason."""
_VERDICT = ("location", "filter", "code", "detail", "lasting", "level")


class Explaining:
    """Accounts of jobs, with what store and files know of them."""

    def __init__(
        self,
        store: Store,
        book: JobBook,
        output: Output,
        waits: Callable[[Allocation], Waiting | None],
        unanswered: Callable[[Allocation], str | None],
        trouble: Callable[[], tuple[str | None, bool]] = lambda: (None, False),
        down: bool = False,
    ) -> None:
        self._store = store
        self._book = book
        self._output = output
        self._waits = waits
        """Why an allocation does not run yet, in the words of its batch system."""
        self._unanswered = unanswered
        """That the site of an allocation does not answer."""
        self._trouble = trouble
        """Why no new work is taken, and whether nothing at all can be written down."""
        self._down = down
        """Whether no manager is up."""
        self.staging: Staging | None = None
        """Knows of the files of jobs; none, if no manager is up."""

    def records(self, state: State) -> Records:
        """What the core cannot know: results, last lines, the words of batch systems."""

        def line(batch: BatchState, pos: int) -> str:
            lines = self._output.last_words(state, format_job(batch.id, batch.index(pos))).split("\n")
            return next((text.strip()[:200] for text in reversed(lines) if text.strip()), "")

        return Records(self._last, line, self._waits, self._unanswered, *self._trouble(), self._down)

    def _last(self, number: int, pos: int) -> Result | None:
        found = self._store.results(number, pos, pos, True)
        return found[-1] if found else None

    def answer(self, state: State, args: Any, at: At) -> dict[str, Any]:
        """Answer `explain`."""
        if args.job:
            return self.explain(state, args.job, at)
        if args.groups:
            return self.groups(state, args.sel, at)
        return self.page(state, args.sel, args.after, args.limit, at)

    def explain(self, state: State, job: str, at: At) -> dict[str, Any]:
        """Why a job is where it is."""
        found = find_job(state, job)
        row = self._rows(state, [found], at)[0]
        if self.staging is not None and (data := explain_data(self.staging, state, *found)) is not None:
            row["data"] = data
            for words in (data["staging"], data["unwritten"]):
                if words:
                    row["reason"] += f"; {words}"
        return row

    def page(self, state: State, words: list[str], after: Any, limit: int, at: At) -> dict[str, Any]:
        """Why each of the selected jobs is where it is, page by page."""
        found = find_jobs(state, words, job_cursor(after), limit, False)
        last = found[-1] if len(found) == limit else None
        rows = self._rows(state, found, at)
        return {"jobs": rows, "next": f"{last[0].id}.{last[1]}" if last is not None else None}

    def groups(self, state: State, words: list[str], at: At) -> dict[str, Any]:
        """The selected jobs, those together of which the same can be said: by state and reason, each with examples."""
        merged: dict[tuple[str, str, bool], dict[str, Any]] = {}
        records = self.records(state)
        kinds = [
            kind
            for batch, positions, count in _kinds(state, words)
            for kind in self._apart(state, whole(batch), positions, count, at, records)
        ]
        firsts = [(batch, positions[0]) for batch, positions, _, _ in kinds[:GROUPS]]
        found = list(accounts(state, firsts, at, records))
        for (batch, positions, count, alike), account in zip(kinds[:GROUPS], found, strict=True):
            name = JOB_STATES[batch.states[positions[0]]]
            jobs = [format_job(batch.id, batch.index(pos)) for pos in positions[:EXAMPLES]]
            row = merged.get((name, account.short, alike))
            if row is None:
                reason = account.reason
                if count > 1:
                    reason = reason.replace("; its last line: ", f"; the last line of {jobs[0]}: ")
                row = merged[name, account.short, alike] = {
                    "state": name, "jobs": 0, "examples": [], "alike": alike, "reason": reason, **_parts(account)
                }  # fmt: skip
                if count > 1:  # what helps one of them helps all
                    all_of = f"{batch.id} :{name.lower()}"
                    changes = ("rota retry", "rota release", "rota kill")
                    row["commands"] = [
                        text.replace(jobs[0], all_of) if text.startswith(changes) else text for text in row["commands"]
                    ]
            row["jobs"] += count
            row["examples"] = [*row["examples"], *jobs][:EXAMPLES]
        return {"groups": list(merged.values()), "more": sum(count for _, _, count, _ in kinds[GROUPS:])}

    def _apart(
        self, state: State, batch: BatchState, positions: list[int], count: int, at: At, records: Records
    ) -> list[tuple[BatchState, list[int], int, bool]]:
        """Jobs of one state and template (the first of them), those together that are so for the same reason.

        The last says whether that is known: of many it is not.
        """
        if not _may_differ(batch, positions[0]):
            return [(batch, positions, count, True)]
        byte = batch.states[positions[0]]
        if count > len(positions) or byte not in (FAILED, ABORTED, OMITTED, WAITING):
            return [(batch, positions, count, count == 1)]
        found: dict[object, list[int]] = {}
        if byte in (FAILED, ABORTED):
            results = {row.pos: row for row in self._store.results(batch.id, positions[0], positions[-1], True)}
            for pos in positions:
                last = results.get(pos)
                key = None if last is None else (last.reason, last.exit_code, last.signal, last.note)
                found.setdefault(key, []).append(pos)
        else:
            said = accounts(state, [(batch, pos) for pos in positions], at, records)
            for pos, account in zip(positions, said, strict=True):
                found.setdefault(account.short, []).append(pos)
        return [(batch, alike, len(alike), True) for alike in found.values()]

    def _rows(self, state: State, found: list[Found], at: At) -> list[dict[str, Any]]:
        said = accounts(state, found, at, self.records(state))
        return [self._row(state, batch, pos, account, at) for (batch, pos), account in zip(found, said, strict=True)]

    def _row(self, state: State, batch: BatchState, pos: int, account: Account, at: At) -> dict[str, Any]:
        byte, job = batch.states[pos], format_job(batch.id, batch.index(pos))
        shape = state.shapes[batch.shapes[batch.template_of(pos)]]
        found = verdicts(state, shape, at, self.records(state)) if byte == PENDING else ()
        attempts = self._store.results(batch.id, pos, pos, False)
        tail = self._output.last_words(state, job) if byte in (FAILED, ABORTED) else ""
        return {
            "job": job,
            "state": JOB_STATES[byte],
            "reason": account.reason,
            "verdicts": [{field: getattr(verdict, field) for field in _VERDICT} for verdict in found],
            "needs": asked_now(state, shape).asked.needs.words(),
            "given": shape.shape.needs.words(),
            "group": shape.shape.group,
            "learned": what_was_learned(state, shape.shape),
            "command": self._book.command(batch, pos, max(batch.attempts[pos], 1)),
            "attempts": [attempt_row(batch, result) for result in attempts],
            **_parts(account),
            "start": account.start,
            "stderr_tail": tail,
            **brokerage(state, shape, at, byte == PENDING),
        }


def _parts(account: Account) -> dict[str, Any]:
    """What an account is made of."""
    return {
        "blockers": msgspec.to_builtins(account.blockers),
        "chain": msgspec.to_builtins(account.chain),
        "ahead": {"jobs": sum(row.jobs for row in account.ahead), "batches": msgspec.to_builtins(account.ahead)},
        "holders": msgspec.to_builtins(account.holders),
        "commands": account.commands,
    }


def _may_differ(batch: BatchState, pos: int) -> bool:
    """Whether jobs of a batch that are in the state of this one, and of its template, may be so for other reasons."""
    byte = batch.states[pos]
    return byte in _DIFFER or (
        byte != PENDING and (batch.graph is not None or bool(batch.elements) or (byte == WAITING and bool(batch.until)))
    )


def _kinds(state: State, words: list[str]) -> Iterator[tuple[AnyBatch, list[int], int]]:
    """(batch, the first positions, how many) of the selected jobs of each batch, state and template."""
    allowed = sorted(wanted_states(parse_selector(words)))
    for batch, low, high in selected(state, words):
        batch_counts = batch.counts
        for byte in allowed:
            if not batch_counts[byte]:
                continue
            first: dict[int, list[int]] = {}
            counts: dict[int, int] = {}
            spans = spans_of(batch, states_pattern([byte]), low, high)
            for start, end in zip(spans[::2], spans[1::2], strict=True):
                for template, here, there in whole(batch).runs(start, end):
                    counts[template] = counts.get(template, 0) + there - here
                    shown = first.setdefault(template, [])
                    shown.extend(range(here, min(there, here + LOOKED_AT - len(shown))))
            yield from ((batch, first[template], count) for template, count in counts.items())
