"""Starters: threads that start short jobs where there is no C launcher, one for each core.

posix_spawn waits until the job has become its program. Were all jobs started by one thread, the other cores would
stand empty meanwhile, and that thread would have to be woken for each end. A starter waits for its own job, is woken
on the core that has become free, and starts the next one without asking. The main thread takes all ends at once, every
so often; it alone speaks to the manager, keeps output, and judges what jobs have left behind. A place whose job left
something behind, or may have, is not free before it has done so.

Each starter has a directory and a umask of its own. Its jobs are its children, not the main thread's; orphans of jobs
come to the main thread.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections import deque
from typing import Deque, Dict, List, Optional, Sequence, Tuple

from rota.runner.handed import SHORT_S, SPARE_LANES, STUCK_S, Handed, HandedOver
from rota.runner.jobs import Jobs, why_not
from rota.runner.lease import Lease
from rota.runner.plan import Plan, StartError
from rota.runner.running import Result, Running, result_of
from rota.runner.segments import Lane
from rota.runner.spawn import Spawner

__all__ = ["Starters"]

MOST = 16
LOOK_S = 0.02  # between looks of the main thread while anything is handed over
SWITCH_S = 0.001  # a starter whose job has ended should not wait long for the interpreter
WNOTHREAD = 0x20000000  # the children of this thread, not those of others
CHILD = bytes([signal.SIGCHLD])
clock = time.monotonic


def make_spawner() -> Optional[Spawner]:
    """What starts jobs from this thread; None if that cannot be here."""
    try:
        from rota.runner.thread_spawn import ThreadSpawner, own_directory

        return ThreadSpawner() if own_directory() else None
    except (ImportError, OSError, AttributeError):
        return None


class Place:
    """What starters have of one slot."""

    __slots__ = ("inside", "limit", "running", "waiting")

    def __init__(self) -> None:
        self.limit = 0  # how many may run here: what is left of the slot's limit by those that run elsewhere
        self.running = 0
        self.waiting: Deque[Job] = deque()
        self.inside = 0  # handed over, and their end not taken; the main thread's


class Job(Handed):
    """A job that starters have; of its starter from when it is taken until it is among the ends."""

    __slots__ = ("env", "lane", "left", "number", "pid", "place", "problem", "result", "since", "told", "wall")

    def __init__(self, lease: Lease, plan: Plan, when: float, number: int, place: Place) -> None:
        super().__init__(lease, plan, when)
        self.number = number
        self.place = place
        self.env = (plan.env, plan.env.own(lease))
        self.lane: Optional[Lane] = None  # None at the end: nothing is to be done for it, and another has it
        self.pid = 0
        self.wall = self.since = 0.0
        self.told = False  # the main thread knows that it runs
        self.result: Optional[Result] = None
        self.left = False  # something may have been left behind: its place is not free yet
        self.problem: Optional[StartError] = None


class Starters(HandedOver[Job]):
    """The starters, and the main thread's dealings with them. Everything under "shared" is used with the lock held."""

    def __init__(self, jobs: Jobs, wake: int) -> None:
        super().__init__(jobs)
        self._wake = wake  # where signals are told to the loop
        self._count = 0  # of starters
        self._possible = jobs.children.complete and len(os.sched_getaffinity(0)) > 1
        self._inside = 0
        self._quiet = False  # SIGCHLD is blocked
        # -- shared
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        self._places: Dict[str, Place] = {}
        self._lanes: List[Lane] = []
        self._current: Dict[int, Job] = {}
        self._ends: List[Job] = []
        self._idle = 0
        self._rung = False
        self._trouble: Optional[BaseException] = None

    @property
    def ready(self) -> bool:
        """Whether jobs are short, and there are starters for them; made when they are first wanted."""
        if self.jobs.typical_s >= SHORT_S or not self._possible:
            return False
        if not self._count:
            self._open()
        return self._possible

    @property
    def busy(self) -> bool:
        """Whether starters have any job."""
        return self._inside > 0

    def _open(self) -> None:
        """Make the starters; all signals are for the main thread."""
        wanted = min(MOST, len(os.sched_getaffinity(0)))
        answers: List[bool] = []
        said = threading.Semaphore(0)
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            for _ in range(wanted):
                threading.Thread(target=self._serve, args=(answers, said), daemon=True).start()
                said.acquire()
        except RuntimeError:
            pass  # no more threads: fewer will do
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        self._count = sum(answers)
        self._possible = self._count > 1
        if self._possible:
            self.jobs.wait_options = os.WNOHANG | WNOTHREAD
            sys.setswitchinterval(SWITCH_S)

    # -- a starter -----------------------------------------------------------------------------------------------

    def _serve(self, answers: List[bool], said: threading.Semaphore) -> None:
        spawner = make_spawner()
        answers.append(spawner is not None)
        said.release()
        if spawner is None:
            return
        try:
            job = self._wait()
            while True:
                self._run(spawner, job)
                job = self._next(job) or self._wait()
        except BaseException as error:  # what cannot happen: the main thread ends as it would have itself
            self._trouble = error
            self._ring()

    def _run(self, spawner: Spawner, job: Job) -> None:
        lease, lane = job.lease, job.lane
        assert lane is not None
        job.since, job.wall = clock(), time.time()
        if lease.start_by < job.since:
            return
        try:
            job.pid = pid = spawner.start(lease, job.plan, lane, job.env)
        except (StartError, OSError, TypeError, ValueError, KeyError) as error:
            job.problem = why_not(error)
            return
        _, status, usage = os.wait4(pid, 0)
        job.result = result_of(status, usage, time.time())
        job.left = not self.jobs.children.unchanged()

    def _next(self, ended: Job) -> Optional[Job]:
        """Leave the end of a job to the main thread and take the next one."""
        lane = ended.lane
        assert lane is not None
        failed = ended.result is not None and ended.result[0]
        clean = not ended.left and not failed and lane.is_empty()
        with self._lock:
            del self._current[ended.number]
            self._ends.append(ended)
            if not ended.left:
                ended.place.running -= 1
            if clean and not ended.told:
                ended.lane = None
                self._lanes.append(lane)
            job = self._take()
            if ended.left or not self._lanes:
                self._ring()
        return job

    def _take(self) -> Optional[Job]:
        place = self._startable() if self._lanes else None
        if place is None:
            return None
        job = place.waiting.popleft()
        job.lane = self._lanes.pop()
        place.running += 1
        self._current[job.number] = job
        return job

    def _startable(self) -> Optional[Place]:
        for place in self._places.values():
            if place.waiting and place.running < place.limit:
                return place
        return None

    def _wait(self) -> Job:
        """The next job, when there is one."""
        os.chdir("/")  # do not sit in a job's directory
        with self._lock:
            self._idle += 1
            while True:
                job = self._take()
                if job is not None:
                    self._idle -= 1
                    return job
                self._ring()
                self._work.wait()

    def _ring(self) -> None:
        """Wake the main thread, as the end of a child of its own would."""
        if not self._rung:
            self._rung = True
            try:
                os.write(self._wake, CHILD)
            except BlockingIOError:
                pass  # it has much to read already

    # -- handing over --------------------------------------------------------------------------------------------

    def _hand_over(self, lease: Lease, plan: Plan, now: float) -> Job:
        place = self._places.get(lease.slot)
        if place is None:
            with self._lock:
                place = self._places[lease.slot] = Place()
        job = Job(lease, plan, now, self._number, place)
        place.inside += 1
        self._inside += 1
        with self._lock:
            place.waiting.append(job)
        return job

    def _forget(self, job: Job) -> None:
        """A job is not with the starters any more."""
        self.pending.pop(job.number, None)
        job.place.inside -= 1
        self._inside -= 1

    def give_back(self) -> None:
        """Take back every job that has not started; those that have are looked after from now on as any other."""
        with self._lock:
            back = [job for place in self._places.values() for job in place.waiting]
            for place in self._places.values():
                place.waiting.clear()
            started = list(self._current.values())
        for job in reversed(back):
            self._forget(job)
            self.jobs.runner.requeue(job.lease)
        for job in started:
            self._tell(job, clock())

    recall = give_back

    def flush(self, now: float) -> None:
        """Let starters start what they may, and see that we come back in time."""
        if not self._count:
            return
        if self._inside:
            self._allow()
            self._start_rest(now)
            self._come_back(now)
        quiet = bool(self.pending) and not self.jobs.own and not self.jobs.helpers
        if quiet != self._quiet:  # who waits for its own job needs nobody to be told of its end
            self._quiet = quiet
            signal.pthread_sigmask(signal.SIG_BLOCK if quiet else signal.SIG_UNBLOCK, (signal.SIGCHLD,))

    def _allow(self, freed: Sequence[Place] = ()) -> None:
        """Say how many jobs may run, have enough lanes, and wake who is needed."""
        slots, running = self.jobs.runner.slots, self.jobs.runner.running
        lanes = self._more_lanes()
        with self._lock:
            for place in freed:
                place.running -= 1
            self._lanes.extend(lanes)
            free = 0
            for slot, place in self._places.items():
                place.limit = slots.get(slot, 0) - (running.get(slot, 0) - place.inside)
                free += max(0, min(len(place.waiting), place.limit - place.running))
            if free and self._idle:
                self._work.notify(free)

    def _more_lanes(self) -> List[Lane]:
        lanes: List[Lane] = []
        try:
            for _ in range(SPARE_LANES + self._count - len(self._current) - len(self._lanes)):
                lanes.append(self.jobs.segments.lane())
        except OSError:
            pass  # no more descriptors: fewer will do, and what does not start comes back
        return lanes

    def _start_rest(self, now: float) -> None:
        """Start those jobs ourselves that may run and for which there is no starter."""
        while True:
            with self._lock:
                place = None if self._idle else self._startable()
                if place is None:
                    return
                job = place.waiting.popleft()
                place.limit -= 1  # before it starts: a starter may be about to take the next
            self._forget(job)
            if not self.jobs.start_own(job.lease, now):
                self.jobs.next_tick = now  # its place is free: more may be handed over
            self.jobs.leave_directory()
            self._allow()

    def _come_back(self, now: float) -> None:
        waiting = [place.waiting[0].when for place in self._places.values() if place.waiting]
        if waiting and now >= min(waiting) + STUCK_S:
            self.jobs.typical_s = 1.0
            self.give_back()
            self.jobs.next_tick = now  # there may be places for them elsewhere
        elif self.pending:
            self.jobs.next_tick = min(self.jobs.next_tick, now + LOOK_S)

    # -- what became of them -------------------------------------------------------------------------------------

    def look(self, now: float) -> None:
        """Take all ends, and look after jobs that turn out to be longer."""
        if not self._count:
            return
        if self._quiet:
            self.jobs.reap(now)
        with self._lock:
            self._rung = False
            ends, self._ends = self._ends, []
            current = list(self._current.values())
        if self._trouble is not None:
            raise self._trouble
        leaving = self.jobs.runner.leaving is not None
        for job in current:
            if leaving or job.lease.kill_asked or now >= job.since + LOOK_S:
                self._tell(job, now)
        if ends:
            self._take_ends(ends, now)
            if not self._inside:
                self._rest()

    def _tell(self, job: Job, now: float) -> None:
        """Look after a job that runs, unless it has just ended or is just being started."""
        with self._lock:
            lane = job.lane if job.pid and not job.told and job.number in self._current else None
            job.told = job.told or lane is not None
        if lane is not None:
            del self.pending[job.number]
            self._begun(job, lane, job.pid, job.wall, job.since, now)

    def _take_ends(self, ends: List[Job], now: float) -> None:
        over: List[Tuple[Running, Result]] = []
        for job in ends:
            self._forget(job)
            result = job.result
            if result is None:
                self._not_started(job)
            elif job.lane is None:
                self._succeeded(job, job.pid, job.wall, result)
            elif job.told:
                over.append((self.jobs.by_pid.pop(job.pid), result))
            else:
                over.append((self._unseen(job, job.lane, job.pid, job.wall, job.since), result))
        if over:
            self.jobs.finish(over, now)
            self._allow([job.place for job in ends if job.left])

    def _not_started(self, job: Job) -> None:
        if job.problem is None:
            self.jobs.runner.unstarted(job.lease, "start-by passed")
        else:
            self.jobs.not_started(job.lease, job.lane, job.wall, job.problem)

    def _rest(self) -> None:
        """Nothing is left to do: give the lanes back."""
        with self._lock:
            lanes, self._lanes = self._lanes, []
        for lane in lanes:
            self.jobs.segments.release(lane, False)
