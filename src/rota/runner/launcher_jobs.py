"""The jobs that the C launcher starts: hand them over, take in what became of them, go on if the launcher dies."""

from __future__ import annotations

import os
import select
import time
from typing import Dict, List, Optional, Tuple

from rota.runner import launcher as wire
from rota.runner import measure
from rota.runner.jobs import Jobs
from rota.runner.launcher import Builder, Launcher, Record
from rota.runner.lease import Lease
from rota.runner.plan import Plan, StartError
from rota.runner.running import Running
from rota.runner.spawn import cannot_enter, cannot_read, cannot_write, enter, problem

__all__ = ["LauncherJobs"]

# Jobs handed over beyond what may run, while jobs are short: they start without asking us. So many (or as many as may
# run), or for so long if that is more.
AHEAD, AHEAD_MOST, AHEAD_S = 16, 128, 0.04
SHORT_S = 0.02
STUCK_S = 0.1  # what has not started by then comes back, so that it can be recalled
SPARE_LANES = 8
SUCCESS = (0, None, None, None)
LOST = (None, None, "start", "the launcher died: whether this job ran to its end is not known")


class LauncherJobs:
    """The runner's dealings with its launcher."""

    def __init__(self, jobs: Jobs, epoll: select.epoll, choice: str) -> None:
        self.jobs = jobs
        self.pending: Dict[int, Tuple[Lease, Plan, str, float]] = {}  # handed over (program, when), start not told
        self.ready = False
        self._epoll = epoll
        self._launcher: Optional[Launcher] = None
        self._registered = 0
        self._number = 0
        self._typical_s = 1.0
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
    def ahead(self) -> int:
        """How many jobs of each slot the launcher should have beyond those that may run."""
        if not self.ready or self._typical_s >= SHORT_S:
            return 0
        width = max(self.jobs.runner.slots.values(), default=1)
        return max(AHEAD, width, min(AHEAD_MOST, int(width * AHEAD_S / max(self._typical_s, 1e-4))))

    # -- handing over --------------------------------------------------------------------------------------------

    def start(self, leases: List[Lease], now: float) -> bool:
        """Hand these leases to the launcher; False if some cannot be started at all."""
        jobs, launcher = self.jobs, self._launcher
        assert launcher is not None
        idle = self._typical_s < SHORT_S and not (self.pending or self._running)
        if idle and len(leases) == 1 and self._room(leases[0]):  # two processes less have to be woken for it
            return jobs.start_own(leases[0], now)
        started = True
        self._limits(launcher)
        self._lanes(launcher, len(leases))
        back: List[Lease] = []
        full: Dict[str, None] = {}
        for lease in leases:
            self._number += 1
            if full and lease.slot in full:
                back.append(lease)  # in its turn, behind the one that waits
                continue
            try:
                plan = jobs.plans.of(lease)
                if plan.special or plan.bind or lease.gang is not None:  # more than this launcher can do
                    if self._room(lease):
                        started = jobs.start_own(lease, now) and started
                    else:
                        full[lease.slot] = None
                        back.append(lease)
                    continue
                argv = plan.argv(lease.command)
                path = argv[0]
                if "/" not in path:
                    if not plan.env.absolute:
                        enter(plan)  # it is looked up from the job's directory
                    path = jobs.spawner.find(path, plan.env.path)
                launcher.start(self._number, lease, plan, path, argv)
            except StartError as error:
                started = jobs.not_started(lease, None, time.time(), error)
            except (TypeError, ValueError, KeyError) as error:
                started = jobs.not_started(lease, None, time.time(), StartError("start", "cannot start: %s" % error))
            else:
                self.pending[self._number] = (lease, plan, path, now)
                self._asked_back = False  # not this one: it can be asked for again
        for lease in reversed(back):
            jobs.runner.requeue(lease)
        return started

    def _room(self, lease: Lease) -> bool:
        """Whether the runner itself may start one more job of this slot, whatever the launcher starts of its own."""
        slot = lease.slot
        busy = sum(running.lease.slot == slot for running in self.jobs.by_pid.values())
        busy += sum(item[0].slot == slot for item in self.pending.values())
        busy += self.jobs.closing_count(slot)
        return busy < self.jobs.runner.slots.get(slot, 0)

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
            oldest = next(iter(self.pending.values()))[3]
            if now >= oldest + STUCK_S:
                self._typical_s = 1.0
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
            self.ready = False
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
                lease = self.pending.pop(record[1])[0]
                if record[7] & wire.LATE:
                    self.jobs.runner.unstarted(lease, "start-by passed")
                else:
                    back.append(lease)
            elif kind == wire.HELLO:
                self.ready = record[1] == wire.VERSION
        for lease in reversed(back):
            self.jobs.runner.requeue(lease)
        if not self.pending:
            self._asked_back = False
            launcher.forget_envs()

    def _started(self, launcher: Launcher, record: Record, now: float) -> None:
        _, number, pid, _, _, _, lane, _, _, _, _, _, _, began, _ = record
        lease, plan, _, _ = self.pending.pop(number)
        self._running[pid] = lane
        lease.since = now  # it was handed over some time ago
        self.jobs.begun(lease, plan, launcher.lanes[lane], pid, began, now)
        if lease.kill_asked:
            self.jobs.kill(lease, lease.grace_s, "killed", now)
        elif self.jobs.runner.leaving in ("runner-stopped", "expired"):
            self.jobs.kill(
                lease, self.jobs.runner.grace_s, "killed" if self.jobs.runner.expired else "runner-stopped", now
            )

    def _ended(self, launcher: Launcher, record: Record, now: float) -> None:
        jobs = self.jobs
        _, number, pid, status, _, _, lane_number, flags, user_us, system_us, max_kb, _, _, began, wall = record
        pending = self.pending.pop(number, None)
        if pending is None:
            running = jobs.by_pid.pop(pid)
            del self._running[pid]
        else:  # so short that its start was not told
            lease, plan = pending[:2]
            lease.wall, lease.pid = began, pid
            if not status and not flags:  # and nothing to be done for it: most jobs of those that are many
                self._typical_s += (wall - began - self._typical_s) * 0.2
                output = jobs.segments.nothing(plan.stdout is None, plan.stderr is None)
                used = ((user_us + system_us) / 1e6, max_kb * 1024, None)
                jobs.runner.ended(lease, SUCCESS, began, wall, used, output)
                return
            running = Running(lease, plan, launcher.lanes[lane_number], pid, began, now)
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
        self._typical_s += (wall - running.wall - self._typical_s) * 0.2
        result = (status, (user_us + system_us) / 1e6, max_kb * 1024, wall)
        jobs.over(running, result, now, bool(flags & wire.SURVIVORS))

    def _failed(self, record: Record) -> None:
        _, number, _, _, errno, stage, _, _, _, _, _, _, _, _, wall = record
        lease, plan, path, _ = self.pending.pop(number)
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
        self.ready = False
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
        for number, (lease, _, _, _) in pending.items():
            if launcher.book.has_started(number):
                jobs.forsake(lease, now)
                jobs.runner.ended(lease, LOST, wall, wall)
            else:
                back.append(lease)
        for lease in reversed(back):
            jobs.runner.requeue(lease)
        self._running.clear()
        launcher.close()
