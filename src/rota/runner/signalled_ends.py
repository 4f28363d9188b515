"""Ends of jobs by a signal that may have been meant for the whole allocation.

A batch system that ends an allocation often signals every process in it. Then a job dies a moment before its runner
hears of the end, or is killed, and would be taken for one that failed. So such an end is told only after a short while:
if the runner is told to stop meanwhile, that is the reason, and if it is killed, nothing is told.
"""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, List, Tuple

if TYPE_CHECKING:
    from rota.runner.lease import Outcome
    from rota.runner.running import Running

__all__ = ["SignalledEnds"]

WAIT_S = 0.4
SIGNALS = (
    *(signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU),
    signal.SIGKILL,
)
CODES = tuple(128 + int(number) for number in SIGNALS)


class SignalledEnds:
    """Ends by such a signal that are not told to the manager yet."""

    def __init__(self) -> None:
        self._waiting: List[Tuple[float, Running, Outcome]] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def concerns(self, running: Running, outcome: Outcome) -> bool:
        """Whether a job ended by such a signal, and neither the runner nor the kernel's want of memory ended it."""
        code, number, reason, _ = outcome
        return running.why is None and reason != "oom" and (number in SIGNALS or code in CODES)

    def add(self, running: Running, outcome: Outcome, now: float) -> float:
        """Keep back the end of this job; returns until when."""
        self._waiting.append((now + WAIT_S, running, outcome))
        return now + WAIT_S

    def take(self, now: float) -> List[Tuple[Running, Outcome]]:
        """Take out the ends that have waited long enough."""
        due = [(running, outcome) for at, running, outcome in self._waiting if at <= now]
        self._waiting = [item for item in self._waiting if item[0] > now]
        return due

    def next_at(self) -> float:
        """When the next end has waited long enough."""
        return min((at for at, _, _ in self._waiting), default=float("inf"))

    def settle(self, note: str) -> List[Tuple[Running, Outcome]]:
        """Take out all ends: the runner is told to stop, so that is why these jobs ended."""
        found: List[Tuple[Running, Outcome]] = [
            (running, (code, number, "runner-stopped", note if old is None else "%s; %s" % (note, old)))
            for _, running, (code, number, _, old) in self._waiting
        ]
        self._waiting = []
        return found
