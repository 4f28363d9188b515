"""Running jobs, as `rota jobs --live` shows them."""

import asyncio
from typing import Any

from rota.core.selection import wanted_states
from rota.core.state import BatchState, State
from rota.manager.answers.jobs import selected
from rota.manager.answers.output import LINE, Output, last_line
from rota.manager.answers.running import Running, told_by_file
from rota.manager.jobbook import JobBook
from rota.model.job import format_job
from rota.model.selector import parse_selector
from rota.model.tables import JOB_STATES

__all__ = ["Live"]

TAILS_AT_ONCE = 100
"""Jobs on other hosts whose last lines are asked for."""


class Live:
    """Rows of running jobs."""

    def __init__(self, book: JobBook, running: Running, output: Output) -> None:
        self._book = book
        self._running = running
        self._output = output

    async def rows(self, state: State, words: list[str], limit: int, wall: float) -> dict[str, Any]:
        """The rows of running jobs: memory, CPU, and the last line of output, as far as their runners have told."""
        running: list[tuple[BatchState, int]] = []
        total = 0
        allowed = wanted_states(parse_selector(words))
        for batch, low, high in selected(state, words):
            if not isinstance(batch, BatchState):
                continue  # it was put away, since nothing of it lives
            chosen = sorted(pos for pos in batch.live if low <= pos < high and batch.states[pos] in allowed)
            total += len(chosen)
            running += [(batch, pos) for pos in chosen[: limit - len(running)]]
        rows = [self._row(state, batch, pos, wall) for batch, pos in running]
        there = [(row, self._output.elsewhere(state, row["id"], row["attempt"], "stdout")) for row in rows]
        asked = [(row, where) for row, where in there if where is not None][:TAILS_AT_ONCE]
        ends = await asyncio.gather(*(self._output.ask(state, *where, "stdout", -LINE, LINE) for _, where in asked))
        for (row, _), (data, _) in zip(asked, ends, strict=True):
            row["last_line"] = last_line(data)
        return {"jobs": rows, "more": total - len(rows)}

    def _row(self, state: State, batch: BatchState, pos: int, wall: float) -> dict[str, Any]:
        job = (batch.id, batch.index(pos), batch.attempts[pos])
        runner = state.runners[batch.live[pos].runner]
        known = told_by_file(runner.output, job) if runner.direct else self._running.now(job)
        elapsed = max(0.0, wall - known.started) if known is not None and known.started is not None else None
        return {
            "id": format_job(batch.id, job[1]),
            "state": JOB_STATES[batch.states[pos]],
            "attempt": job[2],
            "host": ",".join(state.hosts(batch.live[pos])),
            "pid": known.pid if known is not None else None,
            "elapsed_s": round(elapsed, 3) if elapsed is not None else None,
            "cpu_s": known.cpu_s if known is not None else None,
            "cpu_percent": known.cpu_percent if known is not None else None,
            "memory_bytes": known.memory if known is not None else None,
            "last_line": self._output.last_line(state, batch, pos),
            "command": self._book.command(batch, pos, job[2]),
            "name": batch.spec.name,
        }
