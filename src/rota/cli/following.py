"""Following a batch to its end: quietly, with a progress bar, or with the jobs' output."""

import argparse
import heapq
import sys
import time
from collections.abc import Mapping

from rota.cli.log import Output, write_all
from rota.cli.show import SETTLED
from rota.model.batch import BatchSpec, position_of
from rota.model.errors import BusyError
from rota.wire.client import Connection, LostError, NoManagerError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["Follower"]

QUICK_S = 0.2
"""A run that is over by then shows no progress bar: to load it takes as long."""
STUCK_S = 5.0
"""When nothing has run for so long, it is said why."""
AWAY_S = 30.0
"""How long a manager that went away may take to come back."""


class Follower:
    """Follows one batch of `rota run`."""

    def __init__(self, args: argparse.Namespace, home: "str | None", batch: int, spec: BatchSpec | None) -> None:
        self._args = args
        self._home = home
        self._batch = batch
        self._spec = spec
        self._shown: set[str] = set()
        self._said = ""
        self._order = _Order(spec) if args.show == "ordered" and spec is not None else None

    def follow(self, connection: Connection) -> dict[str, int]:
        """Wait until all jobs are settled or held, also for a manager that went away; returns the counts."""
        while True:
            try:
                if self._args.show:
                    return self._show(connection)
                return self._wait(connection)
            except LostError:
                connection = self._reconnect()

    def _reconnect(self) -> Connection:
        deadline = time.monotonic() + AWAY_S
        while True:
            try:
                return Connection.connect(self._home)
            except (NoManagerError, BusyError):
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.2)

    def _wait(self, connection: Connection) -> dict[str, int]:
        words = [str(self._batch)]
        if self._args.quiet or not sys.stderr.isatty():
            while not (answer := connection.ask("wait", sel=words, held=True, timeout_s=STUCK_S))["settled"]:
                why = self._why(connection, answer["counts"])
                if why and why != self._said:
                    self._said = why
                    print(f"rota: nothing of batch {self._batch} runs: {why}", file=sys.stderr)
            return dict(answer["counts"])
        answer = connection.ask("wait", sel=words, held=True, timeout_s=QUICK_S)
        if not answer["settled"]:
            from rota.cli.progress import Bar

            with Bar(answer["counts"]) as bar:
                while not answer["settled"]:
                    answer = connection.ask("wait", sel=words, held=True, timeout_s=bar.interval_s)
                    bar.update(answer["counts"], self._why(connection, answer["counts"]))
        return dict(answer["counts"])

    def _why(self, connection: Connection, counts: Mapping[str, int]) -> str:
        """What the batch waits for, if nothing of it runs."""
        if any(counts.get(state) for state in ("RUNNING", "STARTING", "KILLING")):
            return ""
        rows = connection.ask("status", sel=[str(self._batch)]).get("why") or [{"reason": ""}]
        return str(rows[0]["reason"])

    # --show

    def _show(self, connection: Connection) -> dict[str, int]:
        sys.stdout.flush()
        for note in connection.notes("follow", sel=[str(self._batch)], held=True):
            for row in note.get("ended", ()):
                self._take(connection, row)
            if note.get("t") == "answer":
                for job in self._order.rest() if self._order else ():
                    self._print(connection, job)
                return dict(note["counts"])
        raise LostError("the manager stopped telling what ended")

    def _take(self, connection: Connection, row: "Mapping[str, Any]") -> None:
        job = str(row["id"])
        if job in self._shown or row["state"] not in SETTLED:
            return
        self._shown.add(job)
        for ready in [job] if self._order is None else self._order.put(job):
            self._print(connection, ready)

    def _print(self, connection: Connection, job: str) -> None:
        for stream, target in (("stdout", 1), ("stderr", 2)):
            for data in Output(connection, job, stream).pieces():
                write_all(target, data)


class _Order:
    """Gives jobs out in the order of the batch, whatever the order in which they come."""

    def __init__(self, spec: BatchSpec) -> None:
        self._spec = spec
        self._next = 0
        self._waiting: list[tuple[int, str]] = []

    def put(self, job: str) -> list[str]:
        """Take in a job that ended; returns the jobs whose turn has come."""
        position = position_of(self._spec.ranges, self._spec.count, int(job.partition(".")[2]))
        heapq.heappush(self._waiting, (-1 if position is None else position, job))
        out = []
        while self._waiting and self._waiting[0][0] <= self._next:
            position, job = heapq.heappop(self._waiting)
            self._next = max(self._next, position + 1)
            out.append(job)
        return out

    def rest(self) -> list[str]:
        """The jobs that still wait for their turn."""
        out = [job for _, job in sorted(self._waiting)]
        self._waiting.clear()
        return out
