"""What runs right now: its memory, its CPU time, what it wrote so far. Not durable: its runner tells it anew."""

import os
import socket
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from rota.core.state import State

__all__ = ["Now", "Running"]

Ref = tuple[int, int, int]
"""batch, index, attempt"""


class Now(NamedTuple):
    """One running attempt."""

    pid: int
    scratch: str | None
    """Its scratch files, without `.out` and `.err`."""
    started: float | None = None
    """Wall clock; None if it started before this manager did."""
    cpu_s: float | None = None
    memory: int | None = None
    told: float = 0.0
    """Monotonic time at which CPU time and memory were told."""
    cpu_percent: float | None = None
    """Of one core, since the time before."""


class Running:
    """Running attempts as their runners last told of them."""

    def __init__(self) -> None:
        self._host = socket.gethostname()
        self._known: dict[Ref, Now] = {}

    def started(self, rows: Sequence[Any], output: str) -> None:
        """Rows of a report."""
        for batch, index, attempt, wall, pid, scratch in rows:
            self._known[batch, index, attempt] = Now(pid, _below(output, scratch), wall)

    def touched(self, rows: Sequence[Any], output: str) -> None:
        """Rows of a touch."""
        for batch, index, attempt, cpu_s, memory, pid, scratch in rows:
            before = self._known.get((batch, index, attempt))
            started = before.started if before is not None else None
            at = time.monotonic()
            percent = None
            if before is not None and before.cpu_s is not None and at > before.told:
                percent = round(100 * max(0.0, cpu_s - before.cpu_s) / (at - before.told), 1)
            elif started is not None and (wall := time.time() - started) > 0:
                percent = round(100 * cpu_s / wall, 1)
            self._known[batch, index, attempt] = Now(pid, _below(output, scratch), started, cpu_s, memory, at, percent)

    def ended(self, rows: Sequence[Any]) -> None:
        """These run no more."""
        if self._known:
            for row in rows:
                self._known.pop((row[0], row[1], row[2]), None)

    def now(self, job: Ref) -> Now | None:
        """What is known of a running attempt."""
        return self._known.get(job)

    def scratch(self, state: State, job: Ref, runner: str, stream: str) -> str | None:
        """The file that a running job of this host writes a stream to."""
        known = self._known.get(job)
        if known is None or known.scratch is None or state.runners[runner].host != self._host:
            return None
        return f"{known.scratch}.{'out' if stream == 'stdout' else 'err'}"

    def lives(self, job: Ref) -> bool:
        """True if its first process is still there: only then is what was just read from its scratch file its own."""
        known = self._known.get(job)
        return known is not None and os.path.exists(f"/proc/{known.pid}")

    def forget(self) -> None:
        """The state was reloaded."""
        self._known.clear()


def _below(output: str, scratch: str | None) -> str | None:
    return os.path.join(output, scratch) if scratch and output else None
