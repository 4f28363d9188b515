"""What running attempts use and have written so far. Not durable: their runners tell it anew."""

import asyncio
import os
import socket
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from rota.core.state import State
from rota.runner import measure
from rota.wire.files import BadFileError, decode_started, read_bounded

__all__ = ["Running", "RunningAttempt", "told_by_file"]

SHORT_S = 0.2
"""A shorter time says nothing about the use of CPU."""

Ref = tuple[int, int, int]
"""batch, index, attempt"""


class RunningAttempt(NamedTuple):
    """One running attempt."""

    pid: int
    scratch: str | None
    """The path of its scratch files, without `.out` and `.err`."""
    started: float | None = None
    """Wall clock; None if it started before this manager did, and its runner has not told since."""
    cpu_s: float | None = None
    memory: int | None = None
    disk: int | None = None
    told: float = 0.0
    """Monotonic time at which CPU time and memory were told."""
    cpu_percent: float | None = None
    """The share of one core, since the figures before."""


class Running:
    """Running attempts as their runners last told of them."""

    def __init__(self) -> None:
        self._host = socket.gethostname()
        self._known: dict[Ref, RunningAttempt] = {}

    def __bool__(self) -> bool:
        """Whether any is known."""
        return bool(self._known)

    def started(self, rows: Sequence[Any], output: str) -> None:
        """Take the starts of a report."""
        for batch, index, attempt, wall, pid, scratch in rows:
            self._known[batch, index, attempt] = RunningAttempt(pid, _below(output, scratch), wall)

    def touched(self, rows: Sequence[Any], output: str) -> None:
        """Take the running attempts of a touch."""
        for batch, index, attempt, cpu_s, memory, pid, scratch, disk, told in rows:
            before = self._known.get((batch, index, attempt))
            started = told or (before.started if before is not None else None)
            self._known[batch, index, attempt] = _with_usage(
                RunningAttempt(pid, _below(output, scratch), started, disk=disk), before, cpu_s, memory
            )

    async def measure(self, state: State) -> None:
        """Measure what the attempts on this host use now, without waiting for their runners to tell."""
        here = self._here(state)
        used = await asyncio.to_thread(_measure_sessions, list(here.values()))
        for job, pid in here.items():
            known = self._known.get(job)
            if known is not None and known.pid == pid and pid in used:
                self._known[job] = _with_usage(known, known, *used[pid])

    def _here(self, state: State) -> dict[Ref, int]:
        """The first processes of attempts that run on this host."""
        hosts = {runner.id: runner.host for runner in state.runners.values()}
        found: dict[Ref, int] = {}
        for job, known in self._known.items():
            batch = state.batches.get(job[0])
            pos = batch.position(job[1]) if batch is not None else None
            live = batch.live.get(pos) if batch is not None and pos is not None else None
            if live is not None and live.attempt == job[2] and hosts.get(live.runner) == self._host:
                found[job] = known.pid
        return found

    def ended(self, rows: Sequence[Any]) -> None:
        """Forget attempts that have ended."""
        for row in rows:
            self._known.pop((row[0], row[1], row[2]), None)

    def now(self, job: Ref) -> RunningAttempt | None:
        """What is known of a running attempt."""
        return self._known.get(job)

    def scratch(self, state: State, job: Ref, runner: str, stream: str) -> str | None:
        """The file that a running job writes a stream to: one of this host, or a cluster job in a shared directory."""
        place = state.runners[runner]
        known = told_by_file(place.output, job) if place.direct else self._known.get(job)
        if known is None or known.scratch is None or not (place.direct or place.host == self._host):
            return None
        return f"{known.scratch}.{'out' if stream == 'stdout' else 'err'}"

    def is_elsewhere(self, state: State, runner: str) -> bool:
        """Whether only the runner itself can read what its jobs have written so far."""
        place = state.runners[runner]
        return not place.direct and place.host != self._host

    def lives(self, state: State, job: Ref, runner: str) -> bool:
        """True if a job's first process is still there: only then is what was just read from its scratch file its own.

        A cluster job has files of its own.
        """
        if state.runners[runner].direct:
            return True
        known = self._known.get(job)
        return known is not None and os.path.exists(f"/proc/{known.pid}")

    def forget(self) -> None:
        """Forget all attempts (after the state was reloaded)."""
        self._known.clear()


def told_by_file(output: str, job: Ref) -> RunningAttempt | None:
    """The attempt of a direct job, by the file that it wrote when it started."""
    try:
        data = read_bounded(os.path.join(output, "started.json"), 65_536)
        told = None if data is None else decode_started(data)
    except (OSError, BadFileError):
        return None
    if told is None or told.job != job:
        return None
    return RunningAttempt(told.pid, _below(output, told.scratch), told.started)


def _below(output: str, scratch: str | None) -> str | None:
    return os.path.join(output, scratch) if scratch and output else None


def _with_usage(known: RunningAttempt, before: RunningAttempt | None, cpu_s: float, memory: int) -> RunningAttempt:
    """An attempt with new figures; its share of a core is that since the figures before, if these are not too new."""
    at = time.monotonic()
    percent, told = None, at
    if before is not None and before.cpu_s is not None:
        if at - before.told < SHORT_S:
            percent, told = before.cpu_percent, before.told
        else:
            percent = round(100 * max(0.0, cpu_s - before.cpu_s) / (at - before.told), 1)
    elif known.started is not None and (wall := time.time() - known.started) > SHORT_S:
        percent = round(100 * cpu_s / wall, 1)
    return known._replace(
        cpu_s=cpu_s if told == at or before is None else before.cpu_s, memory=memory, told=told, cpu_percent=percent
    )


def _measure_sessions(pids: Sequence[int]) -> dict[int, tuple[float, int]]:
    """CPU seconds and bytes of sessions of this host, by their leaders. Reads all of /proc: not for the loop."""
    if not pids:
        return {}
    wanted, used = set(pids), dict[int, tuple[float, int]]()
    for process in measure.scan().values():
        if process.session in wanted and not process.zombie:
            cpu, memory = used.get(process.session, (0.0, 0))
            used[process.session] = (cpu + process.cpu_s, memory + measure.memory_of(process))
    return used
