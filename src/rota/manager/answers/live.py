"""What runs right now, for `rota jobs --live`."""

import os
from typing import Any

from rota.core.selection import select, wanted_states
from rota.core.state import BatchState, State
from rota.manager.answers.jobs import read_stretch
from rota.manager.answers.running import Running, told_by_file
from rota.manager.jobbook import JobBook
from rota.model.errors import NotFoundError
from rota.model.job import format_job
from rota.model.selector import parse_selector
from rota.model.tables import JOB_STATES

__all__ = ["LINE", "LiveView", "last_line"]

LINE = 2000
"""Bytes of a running job's output of which the last line is shown."""


class LiveView:
    """Rows of what runs."""

    def __init__(self, book: JobBook, running: Running) -> None:
        self._book = book
        self._running = running

    def rows(self, state: State, words: list[str], limit: int, wall: float) -> dict[str, Any]:
        """What runs: memory, CPU, and the last line of its output, as far as its runner has told."""
        running: list[tuple[BatchState, int]] = []
        total = 0
        selector = parse_selector(words)
        allowed = wanted_states(selector)
        for batch, low, high in sorted(select(state, selector), key=lambda span: (span[0].id, span[1])):
            chosen = sorted(pos for pos in batch.live if low <= pos < high and batch.states[pos] in allowed)
            total += len(chosen)
            running += [(batch, pos) for pos in chosen[: limit - len(running)]]
        rows = [self._live_row(state, batch, pos, wall) for batch, pos in running]
        return {"jobs": rows, "more": total - len(rows)}

    def _live_row(self, state: State, batch: BatchState, pos: int, wall: float) -> dict[str, Any]:
        job = (batch.id, batch.index(pos), batch.attempts[pos])
        runner = state.runners[batch.live[pos].runner]
        known = told_by_file(runner.output, job) if runner.direct else self._running.now(job)
        elapsed = max(0.0, wall - known.started) if known is not None and known.started is not None else None
        return {
            "id": format_job(batch.id, job[1]),
            "state": JOB_STATES[batch.states[pos]],
            "attempt": job[2],
            "host": runner.host,
            "pid": known.pid if known is not None else None,
            "elapsed_s": round(elapsed, 3) if elapsed is not None else None,
            "cpu_s": known.cpu_s if known is not None else None,
            "cpu_percent": known.cpu_percent if known is not None else None,
            "memory_bytes": known.memory if known is not None else None,
            "last_line": self._last_line(state, batch, pos, runner.id),
            "command": self._book.command(batch, pos, job[2]),
            "name": batch.spec.name,
        }

    def _last_line(self, state: State, batch: BatchState, pos: int, runner: str) -> str | None:
        """The end of its standard output, if that can be read here."""
        job = (batch.id, batch.index(pos), batch.attempts[pos])
        path = self._book.path(batch, pos, job[2], "stdout")
        own = path is None
        if path is None:
            path = self._running.scratch(state, job, runner, "stdout")
        if path is None:
            return None
        try:
            size = os.stat(path).st_size
            data, _ = read_stretch(path, max(0, size - LINE), LINE)
        except (NotFoundError, OSError):
            return None
        if own and not self._running.lives(state, job, runner):  # it has just ended: its file may be another's
            return None
        return last_line(data)


def last_line(data: bytes) -> str:
    """The last line of the end of an output."""
    lines = data.rstrip(b"\r\n").splitlines()
    return lines[-1].decode("utf-8", "replace") if lines else ""
