"""What is left to do when a job's command has ended: measure its directory, run its behaviours, clean up, report.

Until then the job counts as running. Behaviours run here, on the job's host, in its environment and its directory; what
they do changes nothing about how the job ended, but is told with it.
"""

from __future__ import annotations

import os
import shlex
import time
from typing import TYPE_CHECKING, Dict, Iterator, List, Optional, Sequence, Tuple

from rota.runner.contained import last_word
from rota.runner.kill import TreeKill
from rota.runner.lease import Lease
from rota.runner.plan import StartError
from rota.runner.spawn import cannot_enter
from rota.runner.workdir import Workdir, slice_of

if TYPE_CHECKING:
    from rota.runner.jobs import Jobs
    from rota.runner.lease import Key, Outcome
    from rota.runner.running import Running

__all__ = ["Closings", "make_place"]

SLICE_S = 0.01
LAST_MEASURE_S = 1.0
TRIM_S = 1.0
REMOVE_S = 120.0
NEVER = float("inf")


def make_place(cwd: str, key: Key, runner_id: str, links: Sequence[Tuple[str, str]] = ()) -> Workdir:
    """A directory for a job, with links to what it reads; or StartError."""
    try:
        return Workdir(cwd, key, runner_id, links)
    except (OSError, ValueError) as error:
        raise cannot_enter(cwd, error) from None


class Closing:
    """One job whose command has ended."""

    __slots__ = ("course", "cut", "deadline", "ending", "outcome", "pid", "problems", "running", "status", "title")

    def __init__(self, running: Running, outcome: Outcome) -> None:
        self.running = running
        self.outcome = outcome
        self.pid = 0  # of the behaviour that runs
        self.title = ""
        self.status: Optional[int] = None
        self.deadline = NEVER
        self.ending: Optional[TreeKill] = None
        self.cut: Optional[str] = None  # why no more behaviours are run
        self.problems: List[str] = []
        self.course: Iterator[bool] = iter(())


class Closings:
    """All jobs of a runner that are being closed."""

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs
        self._open: Dict[Key, Closing] = {}
        self._by_pid: Dict[int, Closing] = {}

    def __len__(self) -> int:
        return len(self._open)

    def count(self, slot: str) -> int:
        """How many jobs of a slot are being closed."""
        return sum(closing.running.lease.slot == slot for closing in self._open.values())

    def begin(self, running: Running, outcome: Outcome, now: float) -> None:
        """Begin to close a job: its command has this outcome, and nothing is left of it that has to be ended."""
        closing = self._open[running.lease.key] = Closing(running, outcome)
        closing.course = self._course(closing)
        if self._jobs.runner.leaving in ("runner-stopped", "expired") and running.why is None:
            closing.cut = "the runner was told to stop"
        self._go_on(closing, now)

    def kill(self, lease: Lease, grace_s: float, why: str, now: float) -> bool:
        """End the behaviour that runs, and run no more; False if this job is not here."""
        closing = self._open.get(lease.key)
        if closing is None:
            return False
        closing.cut = why
        if closing.pid:
            self._end(closing, grace_s, now)
        self._jobs.next_tick = now
        return True

    def kill_all(self, grace_s: float, why: str, now: float) -> None:
        """End the behaviours of all jobs that are being closed, and run no more."""
        for closing in list(self._open.values()):
            self.kill(closing.running.lease, grace_s, why, now)

    def ended(self, pid: int, status: int, now: float) -> bool:
        """Take note that a process has ended; False if it was no behaviour."""
        closing = self._by_pid.pop(pid, None)
        if closing is None:
            return False
        closing.status = status
        if closing.ending is not None:
            closing.ending.next_at = now
        self._go_on(closing, now)
        return True

    def tick(self, now: float) -> float:
        """Do what is due; returns when to come back."""
        due = NEVER
        for closing in list(self._open.values()):
            if closing.pid and closing.ending is None and now >= closing.deadline:
                closing.deadline = NEVER
                closing.problems.append("%s was ended: over its time limit" % closing.title)
                self._end(closing, self._jobs.grace(closing.running), now)
            if closing.ending is not None and closing.ending.next_at <= now:
                running = closing.running
                alive = self._jobs.table.members({closing.pid: running.mark})[closing.pid]
                if closing.ending.step(now, alive) and closing.status is not None:
                    closing.ending = None
            if closing.pid:
                self._trim(closing)
            self._go_on(closing, now)
            if closing.running.lease.key in self._open:
                due = min(due, self._next(closing, now))
        return due

    def _next(self, closing: Closing, now: float) -> float:
        if closing.ending is not None:
            return max(closing.ending.next_at, now + 0.02)
        return min(closing.deadline, now + TRIM_S) if closing.pid else now

    def _trim(self, closing: Closing) -> None:
        try:
            self._jobs.segments.trim(closing.running.lane, closing.running.plan.cap)
        except OSError:
            pass  # told at the end, when what it wrote is collected

    def _end(self, closing: Closing, grace_s: float, now: float) -> None:
        if closing.ending is None:
            closing.ending = TreeKill(now, grace_s)
        else:
            closing.ending.hurry(now, grace_s)

    def _go_on(self, closing: Closing, now: float) -> None:
        """Take the next steps, for a short while; the rest comes with the next tick."""
        until = time.monotonic() + SLICE_S
        for waits in closing.course:
            if waits or time.monotonic() >= until:
                self._jobs.next_tick = min(self._jobs.next_tick, self._next(closing, now))
                return

    # -- the closing of one job ---------------------------------------------------------------------------------------

    def _course(self, closing: Closing) -> Iterator[bool]:
        """The steps of closing one job; yields True to wait for a process, False to let others go on."""
        running = closing.running
        place = running.place
        if running.plan.container is not None:
            yield from self._out_of_container(closing)
        if place is not None:
            until = time.monotonic() + LAST_MEASURE_S
            place.walk = None
            while not place.measure(SLICE_S) and time.monotonic() < until:
                yield False
        for title, command in self._behaviours(closing):
            if closing.cut is not None:
                closing.problems.append("%s was not run: %s" % (title, closing.cut))
                continue
            if self._start(closing, title, command):
                while closing.status is None or closing.ending is not None:
                    yield True
                self._over(closing)
        if place is not None:
            problems: List[str] = []
            removing = place.clear(self._removes(closing), problems)
            while not slice_of(removing, SLICE_S):
                yield False
            closing.problems.extend(problems)
            if not self._removes(closing) and closing.outcome[2] is not None:
                closing.problems.append("its directory is kept: %s" % place.path)
            place.close()
        self._finish(closing)

    def _out_of_container(self, closing: Closing) -> Iterator[bool]:
        """Remove the container of a job that was killed, and say why a command was not run in one."""
        told, remove = last_word(closing.running.lane)
        if told is not None and closing.running.why is None:
            closing.outcome = (closing.outcome[0], closing.outcome[1], *told)
        if remove is not None and self._start(closing, "its container", " ".join(map(shlex.quote, remove))):
            closing.deadline = time.monotonic() + REMOVE_S
            while closing.status is None or closing.ending is not None:
                yield True
            self._over(closing)

    def _behaviours(self, closing: Closing) -> List[Tuple[str, str]]:
        found = closing.running.plan.behaviours
        first = "on_success" if closing.outcome[2] is None else "on_failure"
        return [(name.replace("_", "-"), text) for name in (first, "on_exit") for text in found.get(name, ())]

    def _removes(self, closing: Closing) -> bool:
        when = closing.running.plan.cleanup
        return when == "always" or when == ("success" if closing.outcome[2] is None else "failure")

    def _start(self, closing: Closing, title: str, command: str) -> bool:
        running, jobs = closing.running, self._jobs
        plan = running.plan
        code, number, reason, _ = closing.outcome
        env = jobs.environment(running.lease, plan, running.place)
        env[b"ROTA_EXIT_CODE"] = b"" if code is None else b"%d" % code
        env[b"ROTA_SIGNAL"] = b"" if number is None else b"%d" % number
        env[b"ROTA_REASON"] = os.fsencode(reason or "")
        err = -1
        try:
            jobs.spawner.use_umask(plan.umask)
            cwd = jobs.enter(plan, running.place)
            err = self._stderr(running)
            os.write(err, os.fsencode("rota: %s: %s\n" % (title, command)))
            closing.pid = jobs.spawner.behave(command, plan, err, env, cwd)
        except (StartError, OSError, ValueError) as error:
            closing.problems.append("%s could not be run: %s" % (title, error))
            return False
        finally:
            if err >= 0 and err != running.lane.err:
                os.close(err)
            jobs.leave_directory()
        closing.title = title
        closing.status = None
        limit = plan.behaviour_s
        if running.why in ("killed", "runner-stopped"):
            limit = min(limit, jobs.grace(running))  # who ended the job does not want to wait much longer
        closing.deadline = time.monotonic() + limit
        self._by_pid[closing.pid] = closing
        jobs.helpers[closing.pid] = None
        running.lease.pid = closing.pid
        return True

    def _stderr(self, running: Running) -> int:
        path = running.plan.stderr
        if path is None:
            return running.lane.err
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK
        fd = os.open(path, flags, 0o666)
        os.set_blocking(fd, True)
        return fd

    def _over(self, closing: Closing) -> None:
        status = closing.status or 0
        closing.pid = 0
        closing.deadline = NEVER
        if any(problem.startswith(closing.title + " was ended") for problem in closing.problems):
            return
        if closing.cut is not None:
            closing.problems.append("%s was ended: %s" % (closing.title, closing.cut))
        elif os.WIFSIGNALED(status):
            closing.problems.append("%s was ended by signal %d" % (closing.title, os.WTERMSIG(status)))
        elif status:
            closing.problems.append("%s exited %d" % (closing.title, os.WEXITSTATUS(status)))

    def _finish(self, closing: Closing) -> None:
        running, jobs = closing.running, self._jobs
        del self._open[running.lease.key]
        jobs.collect(running)
        jobs.segments.release(running.lane, True)  # a behaviour may have left something that still writes
        code, number, reason, note = closing.outcome
        notes = [text for text in (note or running.note, *closing.problems) if text]
        jobs.tell(running, (code, number, reason, "; ".join(notes) or None))
