"""End a whole process tree: TERM, a time of grace, KILL, and look again until nothing is left.

A signal goes to a process, never to a number: the pid is held by a pidfd (or checked right before) and its start
time must be the one that was seen, so that a reused pid is not hit. Late forks and processes in other sessions are
found by the next look.
"""

from __future__ import annotations

import os
import signal
from typing import Dict, List, Sequence, Tuple

from rota.runner.measure import Process, name_of, start_of

__all__ = ["TreeKill", "send"]

LOOK_S = 0.25  # between looks during the grace
CHASE_S = 0.02  # between looks once KILL is out
GIVE_UP_S = 10.0  # after KILL: a process in uninterruptible sleep may stay for ever


def send(pid: int, start: int, number: int) -> bool:
    """Signal exactly this process of ours; False if it is gone or not ours to touch."""
    if pid <= 1 or pid == os.getpid():
        return False
    opener = getattr(os, "pidfd_open", None)
    fd = -1
    try:
        if opener is not None:
            try:
                fd = opener(pid)
            except ProcessLookupError:
                return False
            except OSError:
                fd = -1  # an old kernel
        if start_of(pid) != start or os.stat("/proc/%d" % pid).st_uid != os.geteuid():
            return False
        if fd >= 0:
            signal.pidfd_send_signal(fd, number)  # type: ignore[attr-defined,unused-ignore]
        else:
            os.kill(pid, number)
        return True
    except OSError:
        return False
    finally:
        if fd >= 0:
            os.close(fd)


class TreeKill:
    """The ending of one job's processes, driven by step()."""

    __slots__ = ("_spared", "_started", "_termed", "grace_s", "kill_at", "next_at", "patient")

    def __init__(self, now: float, grace_s: float, patient: bool = False, spared: Sequence[str] = ()) -> None:
        self._spared = spared  # names of processes that get no TERM, and end by themselves
        self.patient = patient  # nothing is signalled: it is only seen when nothing is left
        self._started = now
        self._termed: Dict[Tuple[int, int], None] = {}
        self.grace_s = grace_s
        self.kill_at = now + grace_s
        self.next_at = now

    def hurry(self, now: float, grace_s: float) -> None:
        """Shorten the grace, never lengthen it; patience is over."""
        if self.patient:
            self.patient, self.kill_at, self.next_at = False, now + grace_s, now
        self.kill_at = min(self.kill_at, now + grace_s)
        self.next_at = min(self.next_at, self.kill_at)

    def step(self, now: float, alive: List[Process]) -> bool:
        """Signal what is alive; True when nothing is left, or nothing more can be done."""
        if not alive:
            return True
        if self.patient:
            self.next_at = now + LOOK_S
            return False
        for process in alive:
            name = (process.pid, process.start)
            if now >= self.kill_at:
                send(process.pid, process.start, signal.SIGKILL)
            elif name not in self._termed:
                self._termed[name] = None
                if self._spared and name_of(process.pid) in self._spared:
                    continue
                if send(process.pid, process.start, signal.SIGTERM):
                    send(process.pid, process.start, signal.SIGCONT)  # a stopped process would not see the TERM
        if now >= self.kill_at:
            self.next_at = now + CHASE_S
            return now >= self.kill_at + GIVE_UP_S
        self.next_at = min(now + LOOK_S, self.kill_at)
        return False
