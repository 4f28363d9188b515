"""Attempts as clients see them: the newest of all, and what became of a batch."""

import json
from typing import Any

import msgspec

from rota.core.state import BatchState, State
from rota.manager.answers.jobs import Jobs, find_jobs
from rota.manager.answers.output import Output
from rota.manager.answers.status import counts_of
from rota.model.errors import NotFoundError, UsageError
from rota.model.job import Result, format_job
from rota.model.tables import REMOVED
from rota.store.api import Store

__all__ = ["Attempts", "attempt_cursor", "attempt_row"]


class Attempts:
    """Answers that need the results of attempts."""

    def __init__(self, store: Store, jobs: Jobs, output: Output) -> None:
        self._store = store
        self._jobs = jobs
        self._output = output

    def history(self, state: State, after: Any, limit: int) -> dict[str, Any]:
        """The attempts of all jobs, newest first."""
        cursor = attempt_cursor(after)
        rows: list[Any] = []
        while True:
            page = self._store.recent_results(None, cursor, limit)
            for result in page:
                cursor = (result.ended or 0.0, result.batch, result.pos, result.attempt)
                batch = state.batches.look(result.batch)
                if batch is None or batch.states[result.pos] == REMOVED:
                    continue
                rows.append(attempt_row(batch, result))
                if len(rows) == limit:
                    return {"attempts": rows, "next": json.dumps(cursor)}
            if len(page) < limit:
                return {"attempts": rows, "next": None}

    def summary(self, state: State, number: int, failures: int, slowest: int, wall: float) -> dict[str, Any]:
        """The summary of a batch that `rota run` prints at the end."""
        batch = state.batches.look(number)
        if batch is None:
            raise NotFoundError(state.absent(number))
        failed = find_jobs(state, [str(number), ":failed", ":aborted"], None, failures, False) if failures else []
        rows = self._jobs.rows(state, failed)
        for row in rows:
            row["stderr_tail"] = self._output.last_words(state, row["id"])
        slow = self._store.slowest(number, slowest) if slowest else []
        return {
            "batch": number,
            "name": batch.spec.name,
            "counts": counts_of(batch),
            "failures": rows,
            "slowest": self._jobs.rows(state, list(dict.fromkeys((batch, result.pos) for result in slow))),
            "wall_s": self._last_end(batch, wall) - batch.submitted,
        }

    def _last_end(self, batch: BatchState, wall: float) -> float:
        """When the last attempt of a batch ended; now, if more may come."""
        last = [] if batch.unsettled else self._store.recent_results([batch.id], None, 1)
        return last[0].ended or wall if last else batch.submitted if not batch.unsettled else wall


def attempt_row(batch: BatchState, result: Result) -> dict[str, Any]:
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
        "cores": [cores / 1000 for cores in result.cores],
    }


def attempt_cursor(after: Any) -> tuple[float, int, int, int] | None:
    """Where a page of attempts goes on: (ended, batch, position, attempt)."""
    if after is None:
        return None
    try:
        return msgspec.json.decode(str(after), type=tuple[float, int, int, int])
    except msgspec.MsgspecError:
        raise UsageError(f"'{after}' is not a cursor") from None
