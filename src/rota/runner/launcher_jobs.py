"""The jobs that the C launcher starts: hand them over, take in what became of them, go on if the launcher dies."""

from __future__ import annotations

import os
import select
import time
from typing import Dict, List, Optional

from rota.runner import launcher as wire
from rota.runner import measure
from rota.runner.handed import SPARE_LANES, STUCK_S, Handed, HandedOver
from rota.runner.jobs import Jobs
from rota.runner.launcher import Builder, Launcher, Record
from rota.runner.lease import Lease
from rota.runner.plan import Plan, StartError
from rota.runner.spawn import cannot_enter, cannot_read, cannot_write, enter, problem

__all__ = ["LauncherJobs"]

LOST = (None, None, "start", "the launcher died: whether this job ran to its end is not known")


class Launched(Handed):
    """A job that the launcher has."""

    __slots__ = ("path",)

    def __init__(self, lease: Lease, plan: Plan, when: float, path: str) -> None:
        super().__init__(lease, plan, when)
        self.path = path


class LauncherJobs(HandedOver[Launched]):
    """The runner's dealings with its launcher."""

    def __init__(self, jobs: Jobs, epoll: select.epoll, choice: str) -> None:
        super().__init__(jobs)
        self._greeted = False
        self._epoll = epoll
        self._launcher: Optional[Launcher] = None
        self._registered = 0
        self._asked_back = False
        self._seen_slots: Dict[str, int] = {}
        self._seen_own = 0
        self._running: Dict[int, int] = {}  # pid -> lane number
        self._builder = Builder(choice, jobs.segments.directory)
        if self._builder.begin():
            self._open()
        elif self._builder.pid:
            jobs.helpers[self._builder.pid] = None

    def _open(self) -> None:
        assert self._builder.path is not None
        try:
            self._launcher = Launcher(self._builder.path, self.jobs.runner.runner_id)
        except OSError:
            return
        self.jobs.helpers[self._launcher.pid] = None
        self._registered = select.EPOLLIN
        self._epoll.register(self._launcher.fd, self._registered)

    def helper_ended(self, pid: int, status: int, now: float) -> None:
        """The compiler or the launcher has ended."""
        if pid == self._builder.pid:
            if self._builder.compiled(status):
                self._open()
        elif self._launcher is not None and pid == self._launcher.pid:
            self._died(now)

    @property
    def possible(self) -> bool:
        """Whether there is a launcher, or one is being made."""
        return self._launcher is not None or bool(self._builder.pid)

    @property
    def ready(self) -> bool:
        """Whether the launcher has said that it is there, and has not gone."""
        return self._greeted

    @property
    def busy(self) -> bool:
        """Whether the launcher has any job."""
        return bool(self.pending or self._running)

    # -- handing over --------------------------------------------------------------------------------------------

    def _expect(self, count: int) -> None:
        assert self._launcher is not None
        self._limits(self._launcher)
        self._lanes(self._launcher, count)

    def _hand_over(self, lease: Lease, plan: Plan, now: float) -> Launched:
        argv = plan.argv(lease.command)
        path = argv[0]
        if "/" not in path:
            if not plan.env.absolute:
                enter(plan)  # it is looked up from the job's directory
            path = self.jobs.spawner.find(path, plan.env.path)
        assert self._launcher is not None
        self._launcher.start(self._number, lease, plan, path, argv)
        self._asked_back = False  # not this one: it can be asked for again
        return Launched(lease, plan, now, path)

    def _limits(self, launcher: Launcher) -> None:
        slots = self.jobs.runner.slots
        for slot, limit in slots.items():
            launcher.limit(slot, limit - self.jobs.own_count(slot))
        self._seen_slots = dict(slots)
        self._seen_own = self.jobs.own_total

    def _lanes(self, launcher: Launcher, more: int) -> None:
        width = sum(self.jobs.runner.slots.values())
        wanted = min(width, len(self._running) + len(self.pending) + more) + SPARE_LANES
        while len(launcher.lanes) < wanted:
            try:
                launcher.open_lane(self.jobs.segments.lane())
            except OSError:
                return  # no more descriptors: fewer spare ones will do

    def give_back(self) -> None:
        """Ask the launcher for every job that it has not started."""
        if self._launcher is not None and self.pending and not self._asked_back:
            self._asked_back = True
            self._launcher.give_back()

    def flush(self, now: float) -> None:
        """Send the launcher what waits for it, and ask back jobs that it could not start for a while."""
        launcher = self._launcher
        if launcher is None:
            return
        if self.pending:
            if self.jobs.runner.slots != self._seen_slots or self.jobs.own_total != self._seen_own:
                self._limits(launcher)
            oldest = next(iter(self.pending.values())).when
            if now >= oldest + STUCK_S:
                self.jobs.typical_s = 1.0
                self.give_back()
            else:
                self.jobs.next_tick = min(self.jobs.next_tick, oldest + STUCK_S)
        if not self.ready or not launcher.flush():
            return
        events = select.EPOLLIN | select.EPOLLOUT if launcher.waiting else select.EPOLLIN
        if events != self._registered:
            self._registered = events
            self._epoll.modify(launcher.fd, events)

    # -- what became of them -------------------------------------------------------------------------------------

    def exchange(self, now: float) -> None:
        """Take in what the launcher tells: starts, ends, failures, jobs that it gives back."""
        launcher = self._launcher
        if launcher is None:
            return
        records = launcher.receive()
        if records is None:  # it is about to die: its jobs become ours when it is dead, see helper_ended
            self._greeted = False
            self._epoll.unregister(launcher.fd)
            self._registered = 0
            return
        back: List[Lease] = []
        for record in records:
            kind = record[0]
            if kind == wire.STARTED:
                self._started(launcher, record, now)
            elif kind == wire.ENDED:
                self._ended(launcher, record, now)
            elif kind == wire.FAILED:
                self._failed(record)
            elif kind == wire.RETURNED:
                lease = self.pending.pop(record[1]).lease
                if record[7] & wire.LATE:
                    self.jobs.runner.unstarted(lease, "start-by passed")
                else:
                    back.append(lease)
            elif kind == wire.HELLO:
                self._greeted = record[1] == wire.VERSION
        for lease in reversed(back):
            self.jobs.runner.requeue(lease)
        if not self.pending:
            self._asked_back = False
            launcher.forget_envs()

    def _started(self, launcher: Launcher, record: Record, now: float) -> None:
        _, number, pid, _, _, _, lane, _, _, _, _, _, _, began, _ = record
        self._running[pid] = lane
        self._begun(self.pending.pop(number), launcher.lanes[lane], pid, began, now, now)

    def _ended(self, launcher: Launcher, record: Record, now: float) -> None:
        jobs = self.jobs
        _, number, pid, status, _, _, lane_number, flags, user_us, system_us, max_kb, _, _, began, wall = record
        result = (status, (user_us + system_us) / 1e6, max_kb * 1024, wall)
        pending = self.pending.pop(number, None)
        if pending is None:
            running = jobs.by_pid.pop(pid)
            del self._running[pid]
        elif not status and not flags:
            self._succeeded(pending, pid, began, result)
            return
        else:
            running = self._unseen(pending, launcher.lanes[lane_number], pid, began, now)
        plan, lane = running.plan, running.lane
        if flags & wire.WROTE:
            out, err = lane.out, lane.err
            jobs.collect(running)
            if flags & wire.SURVIVORS:
                launcher.close_lane(lane_number)
                jobs.segments.release(lane, True)
            elif lane.out != out or lane.err != err:
                launcher.open_lane(lane)
            else:
                launcher.clean_lane(lane_number)
        else:
            running.output = jobs.segments.nothing(plan.stdout is None, plan.stderr is None)
        jobs.lasted(wall - running.wall)
        jobs.over(running, result, now, bool(flags & wire.SURVIVORS))

    def _failed(self, record: Record) -> None:
        _, number, _, _, errno, stage, _, _, _, _, _, _, _, _, wall = record
        handed = self.pending.pop(number)
        lease, plan, path = handed.lease, handed.plan, handed.path
        error = OSError(errno, os.strerror(errno))
        try:
            if stage == wire.STAGE_CWD:
                raise cannot_enter(plan.cwd, error)
            if stage == wire.STAGE_IN:
                raise cannot_read(plan.stdin, error)
            if stage in (wire.STAGE_OUT, wire.STAGE_ERR):
                raise cannot_write(plan.stdout if stage == wire.STAGE_OUT else plan.stderr, error)
            enter(plan)
            name = plan.argv(lease.command)[0]
            if self.jobs.spawner.again(name, path, plan.env.path) is None:
                raise problem(path, errno, plan.cwd)
            self.jobs.runner.requeue(lease)  # the program has moved: it did not start, so it may be tried once more
        except StartError as why:
            self.jobs.not_started(lease, None, wall, why)

    def disown(self, pid: int) -> None:
        """Forget that this process is a job of the launcher's."""
        self._running.pop(pid, None)

    # -- the launcher's death ------------------------------------------------------------------------------------

    def _died(self, now: float) -> None:
        """Go on without it. Its jobs have become our children; what it did not tell us is in its book.

        All but what was started and did not end there, or is not known to have: that we cannot know, and say so.
        """
        launcher, jobs = self._launcher, self.jobs
        if launcher is None:
            return
        if self._registered:
            self.exchange(now)  # its last words
        for record in launcher.book.ended():
            if record[1] in self.pending or record[2] in self._running:
                self._ended(launcher, record, now)
        self._launcher = None
        self._greeted = False
        if self._registered:
            self._epoll.unregister(launcher.fd)
        wall = time.time()
        for pid in list(self._running):
            running = jobs.by_pid[pid]
            process = measure.read_process(pid)
            if process is not None and process.parent == os.getpid():
                jobs.adopt(running)
            else:
                del jobs.by_pid[pid]
                jobs.runner.ended(running.lease, LOST, running.wall, wall)
        pending, self.pending = self.pending, {}
        back = []
        for number, handed in pending.items():
            lease = handed.lease
            if launcher.book.has_started(number):
                jobs.forsake(lease, now)
                jobs.runner.ended(lease, LOST, wall, wall)
            else:
                back.append(lease)
        for lease in reversed(back):
            jobs.runner.requeue(lease)
        self._running.clear()
        launcher.close()
