"""The jobs that a runner runs: started, watched, ended."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Tuple

from rota.runner import contained, host, measure
from rota.runner.kill import TreeKill
from rota.runner.lease import Lease
from rota.runner.plan import Plan, Plans, StartError
from rota.runner.protocol import Runner
from rota.runner.running import Result, Running, result_of
from rota.runner.segments import Lane, Segments
from rota.runner.signalled_ends import SignalledEnds
from rota.runner.spawn import Spawner, enter, full_disk
from rota.runner.spill import stretch
from rota.runner.watch import Watch, warn

if TYPE_CHECKING:
    import select

    from rota.runner.closing import Closings
    from rota.runner.devices import Bindings
    from rota.runner.gang import Gangs
    from rota.runner.handed import HandedOver
    from rota.runner.lease import Key, Outcome
    from rota.runner.workdir import Workdir

__all__ = ["Jobs", "why_not"]

EXEC_TRIES, EXEC_S = 3, 0.001
NEVER = float("inf")
SOON_S = 180.0  # a warning so shortly before the end of the allocation is about that
NAMED_LEFT = 5  # of the processes that are waited for, so many are named
AT_THE_END_S = 15.0  # a stop so shortly before the end of the allocation is that end: batch systems count from earlier


def why_not(error: Exception) -> StartError:
    """Why a job could not be started, for the person whose job it is."""
    if isinstance(error, StartError):
        return error
    if isinstance(error, OSError):  # no lane: the output directory is full or gone
        return StartError("output", "cannot open the output files: %s" % error)
    return StartError("start", "cannot understand the job: %r" % error)


class Jobs:
    """Starts what the protocol hands out and tells it how it ended."""

    def __init__(self, runner: Runner, segments: Segments, plans: Plans) -> None:
        self.runner = runner
        self.segments = segments
        self.plans = plans
        self.by_pid: Dict[int, Running] = {}
        self.launched: Optional[HandedOver[Any]] = None
        self.helpers: Dict[int, None] = {}  # pids of ours that are no jobs: the compiler, the launcher, behaviours
        self.own: Dict[int, Running] = {}  # those of by_pid that are our children, not the launcher's
        self.epoll: Optional[select.epoll] = None  # of the loop, for the doors of gangs
        self.gangs: Optional[Gangs] = None  # loaded when the first is held or started
        self.bindings: Optional[Bindings] = None  # loaded when the first job is bound
        self.next_tick = NEVER
        self.typical_s = 1.0  # how long jobs took lately
        self.wait_options = os.WNOHANG
        self.began, self.until = 0.0, NEVER  # from when to when the allocation is ours
        self._closings: Optional[Closings] = None  # loaded when the first job needs it
        self._signalled = SignalledEnds()
        self._ending: Dict[int, Running] = {}  # by pid: their tree is being killed; they may be reaped already
        self.spawner = Spawner()
        self.table = measure.ProcessTable(runner.runner_id)
        self.children = measure.Children()
        self._oom = host.OomCounter()
        self._watch = Watch(self)

    @property
    def busy(self) -> bool:
        """Whether any job runs, waits to be told, or has processes that are not yet dead."""
        return bool(
            self.by_pid
            or self._ending
            or self._closings
            or self._signalled
            or (self.gangs is not None and self.gangs.parts)
            or (self.launched is not None and self.launched.busy)
        )

    def open_gangs(self) -> Gangs:
        """The parts of gangs on this node."""
        if self.gangs is None:
            from rota.runner.gang import Gangs

            assert self.epoll is not None
            self.gangs = Gangs(self, self.epoll)
        return self.gangs

    # -- starting ------------------------------------------------------------------------------------------------

    def start(self, leases: List[Lease], now: float) -> bool:
        """Start these leases, each in its lane; False if some could not be started, so that their places are free."""
        if self.launched is not None and self.launched.ready:
            return self.launched.start(leases, now)
        started = True
        for lease in leases:
            started = self.start_own(lease, now) and started
        return started

    def start_own(self, lease: Lease, now: float) -> bool:
        """Start a job as our own child; False if that could not be."""
        wall = time.time()
        lane: Optional[Lane] = None
        place: Optional[Workdir] = None
        try:
            plan = self.plans.of(lease)
            if plan.bind and not self._bind(lease, plan):
                self.runner.requeue(lease)
                return True
            lane = self.segments.lane()
            if plan.workdir or plan.bind or plan.container is not None or lease.gang is not None:
                pid, place = self._start_apart(lease, plan, lane)
            else:
                pid = self.spawner.start(lease, plan, lane, plan.env.of(lease))
        except (StartError, OSError, TypeError, ValueError, KeyError) as error:
            return self.not_started(lease, lane, wall, why_not(error))
        running = self.own[pid] = self.begun(lease, plan, lane, pid, wall, now)
        running.place = place
        if plan.bind:
            running.bound = lease.key in self.open_bindings()
            if not running.bound:
                running.note = "not bound to cores: %g are not free among those of this runner" % (plan.cores / 1000)
        return True

    def _start_apart(self, lease: Lease, plan: Plan, lane: Lane) -> Tuple[int, Optional[Workdir]]:
        """Start a job in a directory of its own, on cores of its own, or as the root of a gang."""
        self.spawner.use_umask(plan.umask)
        place: Optional[Workdir] = None
        if plan.workdir:
            from rota.runner.closing import make_place

            place = make_place(plan.cwd, lease.key, self.runner.runner_id, lease.links)
        try:
            env = self.environment(lease, plan, place)
            if plan.container is not None:
                gpus = env.get(b"ROTA_GPUS")
                env[b"ROTA_CONTAINER"] = contained.request(plan, lease, lane, self.runner.runner_id, gpus)
            command = lease.command
            if plan.ranked and lease.gang is not None:
                command = self.open_gangs().ranks(lease, plan, env)
            cwd = self.enter(plan, place)
            if not plan.bind:
                return self.spawner.start_here(command, plan, lane, env, cwd), place
            with self.open_bindings().of(lease.key):
                return self.spawner.start_here(command, plan, lane, env, cwd), place
        except BaseException:
            if place is not None:
                for step in place.clear(True, []):
                    del step
                place.close()
            raise

    def _bind(self, lease: Lease, plan: Plan) -> bool:
        """Bind a job to cores of its own; False: it is to wait for better ones. One of several nodes does not wait."""
        bindings = self.open_bindings()
        bindings.forget_all_but(self.runner.has)
        return bindings.take(lease.key, plan.cores, plan.bind if lease.gang is None else plan.bind.rstrip("!"))

    def open_bindings(self) -> Bindings:
        """Which attempts are bound to which cores."""
        if self.bindings is None:
            from rota.runner.devices import Bindings

            self.bindings = Bindings()
        return self.bindings

    def environment(self, lease: Lease, plan: Plan, place: Optional[Workdir]) -> Dict[bytes, bytes]:
        """The environment of a job and its behaviours."""
        env = plan.env.of(lease)
        if place is not None:
            env.update(place.environment(plan.home))
        if self.bindings is not None:
            env.update(self.bindings.variables(lease.key))
        if lease.gang is not None:
            env = self.open_gangs().environment(lease, env)
        return env

    def enter(self, plan: Plan, place: Optional[Workdir]) -> str:
        """Change to a job's directory, the very one that was made for it if there is one."""
        if place is None:
            return enter(plan)
        os.fchdir(place.fd)
        return place.path

    def written(self, key: Key, errors: bool, offset: int, limit: int) -> Optional[Tuple[bytes, int]]:
        """A stretch of what a running job has written, and where it ends; None if it does not run here."""
        for running in [*self.by_pid.values(), *self._ending.values()]:
            if running.lease.key == key:
                try:
                    return stretch(running.lane.err if errors else running.lane.out, offset, limit)
                except OSError:
                    return b"", offset
        return None

    def begun(self, lease: Lease, plan: Plan, lane: Lane, pid: int, wall: float, now: float) -> Running:
        """Look after a job that has started."""
        lease.wall = wall
        lease.pid = pid
        lease.scratch = lane.name
        running = self.by_pid[pid] = Running(lease, plan, lane, pid, wall, now)
        self.next_tick = min(self.next_tick, self._watch.begun(running, now))
        return running

    def own_count(self, slot: str) -> int:
        """How many jobs of a slot are our own children."""
        return sum(running.lease.slot == slot for running in self.own.values()) + self.closing_count(slot)

    def closing_count(self, slot: str) -> int:
        """How many jobs of a slot are being closed: their command has ended."""
        return self._closings.count(slot) if self._closings else 0

    @property
    def own_total(self) -> int:
        """How many jobs are our own, not the launcher's."""
        return len(self.own) + (len(self._closings) if self._closings else 0)

    def forsake(self, lease: Lease, now: float) -> None:
        """End whatever there is of a job that the launcher may have started without telling."""
        mark = (b"%d.%d" % (lease.batch, lease.index), b"%d" % lease.attempt)
        alive = self.table.members({-1: mark})[-1]
        TreeKill(now, 0.0).step(now, alive)

    def adopt(self, running: Running) -> None:
        """Look after a job of a launcher that died: it has become our child."""
        self.own[running.pid] = running

    def leave_directory(self) -> None:
        """Do not sit in a job's directory: it would keep a file system from being unmounted."""
        os.chdir("/")

    def not_started(self, lease: Lease, lane: Optional[Lane], wall: float, error: StartError) -> bool:
        """Report a job that could not be started; always False."""
        if lane is not None:
            self.segments.release(lane, False)
        if self.bindings is not None:
            self.bindings.give_back(lease.key)
        if self.gangs is not None:
            self.gangs.forget(lease.key)
        self.runner.ended(lease, (error.exit_code, None, error.reason, error.note), wall, time.time())
        return False

    # -- ending --------------------------------------------------------------------------------------------------

    def reap(self, now: float) -> bool:
        """Collect every process that has ended, ours and orphans alike; whether a job's was among them."""
        over: List[Tuple[Running, Result]] = []
        while True:
            try:
                pid, status, usage = os.wait4(-1, self.wait_options)
            except ChildProcessError:
                break
            if not pid:
                break
            self.children.reaped(pid)
            running = self.own.pop(pid, None)
            if running is None and pid in self.by_pid and self.launched is not None:
                self.launched.disown(pid)  # the launcher died, and this job right after it
                running = self.by_pid[pid]
            if running is None:
                self._helper_ended(pid, status, now)
                if self.gangs is not None:
                    self.gangs.reaped(pid, status, usage, now)
            else:
                del self.by_pid[pid]
                over.append((running, result_of(status, usage, time.time())))
        if over:
            self.finish(over, now)
        return bool(over)

    def finish(self, over: List[Tuple[Running, Result]], now: float) -> None:
        """Keep what these jobs wrote, whose first process has ended, and tell how they ended."""
        surviving = self._survivors([running for running, _ in over])
        for running, result in over:
            self.lasted(result[3] - running.wall)
            if not running.plan.special:
                self.collect(running)
                self.segments.release(running.lane, running.pid in surviving)
            self.over(running, result, now, running.pid in surviving)

    def lasted(self, seconds: float) -> None:
        """Note how long a job took."""
        self.typical_s += (seconds - self.typical_s) * 0.2

    def _helper_ended(self, pid: int, status: int, now: float) -> None:
        if pid not in self.helpers:
            return
        del self.helpers[pid]
        if self._closings and self._closings.ended(pid, status, now):
            return
        if self.launched is not None:
            self.launched.helper_ended(pid, status, now)

    def _survivors(self, over: List[Running]) -> Dict[int, bool]:
        """Which of these jobs left processes behind: in their process group, or as orphans that came to us."""
        found: Dict[int, bool] = {}
        if not self.children.complete:
            for running in over:
                try:
                    os.killpg(running.pid, 0)
                except ProcessLookupError:
                    continue
                except PermissionError:
                    pass
                found[running.pid] = True
        for stray in self.children.strangers([*self.own, *self.helpers], len(self.own) + len(self.helpers)):
            process = measure.read_process(stray)
            if process is None:
                continue
            mark = self._mark_of(process)
            owners = [
                running.pid
                for running in over
                if running.mark == mark or running.pid in (process.session, process.group)
            ]
            found.update((pid, True) for pid in owners)
            if owners or not self._may_be_running(process, mark):
                self.children.know(stray)
        return found

    def _mark_of(self, process: measure.Process) -> Optional[Tuple[bytes, bytes]]:
        mark = self.table.mark(process.pid, process.start)
        for _ in range(EXEC_TRIES if mark is None and not process.zombie else 0):
            time.sleep(EXEC_S)  # between fork and exec a process has no environment for a moment
            mark = mark or self.table.mark(process.pid, process.start)
        return mark

    def _may_be_running(self, process: measure.Process, mark: Optional[Tuple[bytes, bytes]]) -> bool:
        """Whether an orphan may be of a job that has not ended yet: then it is to be looked at again."""
        if process.session in self.by_pid or process.group in self.by_pid:
            return True
        if mark is None:
            return self.launched is not None and self.launched.busy
        key = measure.attempt_of(mark)
        return key is not None and self.runner.runs(key)

    def over(self, running: Running, result: Result, now: float, survivors: bool) -> None:
        """The first process of a job has ended; the job has, too, unless its tree is just being killed.

        What it left running is ended first, or waited for, or kept, as it was asked for. Nothing is kept of what failed
        (it may be tried again, and must not run twice), in a directory that is to be removed, or of a gang, into which
        its secret let it.
        """
        running.result = result
        ways, failed = running.plan.leftovers, bool(result[0])
        ends = running.lease.gang is not None or failed or running.place is not None
        if running.ending is None and (running.lease.gang is not None or (survivors and (ends or ways != "keep"))):
            patient = ways == "wait" and not failed
            running.ending = TreeKill(now, self.grace(running), patient, running.plan.spared)
            self._ending[running.pid] = running
        if running.ending is not None:
            running.ending.next_at = now  # look at once whether anything is left
            self.next_tick = now
            return
        self._close(running, now)

    def _close(self, running: Running, now: float) -> None:
        if not running.plan.special:
            self.tell(running, self._outcome(running))
            return
        if self._closings is None:
            from rota.runner.closing import Closings

            self._closings = Closings(self)
        self._closings.begin(running, self._outcome(running), now)

    def _outcome(self, running: Running) -> Outcome:
        assert running.result is not None
        status = running.result[0]
        code: Optional[int] = None
        number: Optional[int] = None
        reason: Optional[str] = None
        note = running.note
        if status:
            if os.WIFSIGNALED(status):
                number = os.WTERMSIG(status)
            else:
                code = os.WEXITSTATUS(status)
            if running.why is not None:
                reason = running.why
            elif (number == signal.SIGKILL or code == 128 + signal.SIGKILL) and self._was_out_of_memory(running):
                reason, note = "oom", "killed by the kernel: out of memory"
            elif (full := full_disk(running.plan)) is not None:
                reason, note = "disk-full", full if note is None else "%s; %s" % (full, note)
            else:
                reason = "exit" if number is None else "signal"
        elif running.why is not None and running.plan.leftovers == "wait":
            number, reason = int(signal.SIGTERM), running.why  # what it had left, and was waited for, was ended
        else:
            code = 0
        return code, number, reason, note

    def _was_out_of_memory(self, running: Running) -> bool:
        """Whether the kernel killed a job for want of memory: its count rose, and the job was larger than we are."""
        return running.result is not None and running.result[2] > measure.own_peak() and self._oom.rose()

    def tell(self, running: Running, outcome: Outcome) -> None:
        """Report how a job ended; see signalled_ends.py for what waits a moment first."""
        if outcome[0] != 0 and not running.warned and self._signalled.concerns(running, outcome):
            self.next_tick = min(self.next_tick, self._signalled.add(running, outcome, time.monotonic()))
        else:
            self.report(running, outcome)

    def report(self, running: Running, outcome: Outcome) -> None:
        """Report how a job ended, with what it used; of a gang once the other nodes have said what it used there."""
        if self.gangs is not None and running.lease.gang is not None and self.gangs.ask(running, outcome):
            return
        assert running.result is not None
        _, cpu_s, maxrss, wall = running.result
        peak = running.peak or maxrss
        if maxrss > max(peak, running.rss) and maxrss > measure.own_peak():
            peak = maxrss  # it grew after we last looked
        cpu_s = max(cpu_s, running.cpu_s)
        if running.elsewhere is not None:
            cpu_s += running.elsewhere[0]
            peak = max(peak, running.elsewhere[1])
        if running.bound:
            self.open_bindings().give_back(running.lease.key)
        used = (cpu_s, peak, None if running.place is None else running.place.peak)
        self.runner.ended(running.lease, outcome, running.wall, wall, used, running.output)
        if self.gangs is not None:
            self.gangs.forget(running.lease.key)

    def collect(self, running: Running) -> None:
        """Keep what a job wrote."""
        plan, segments = running.plan, self.segments
        try:
            running.output = segments.collect(running.lane, plan.cap, plan.stdout is None, plan.stderr is None)
        except OSError as error:
            segments.problem = "output could not be kept: %s" % error
        if segments.problem is not None:
            running.note, segments.problem = running.note or segments.problem, None

    # -- killing, limits, samples --------------------------------------------------------------------------------

    def kill(self, lease: Lease, grace_s: float, why: str, now: float, note: Optional[str] = None) -> None:
        """Begin to end a job and everything that it started."""
        running = self.by_pid.get(lease.pid) or self._ending.get(lease.pid)
        if running is None or running.lease is not lease:
            if self._closings and self._closings.kill(lease, grace_s, note or why, now):
                return
            if self.launched is not None:
                self.launched.give_back()  # not started yet: it comes back and is then given back to the manager
            return
        if running.ending is None:
            running.ending = TreeKill(now, grace_s, spared=running.plan.spared)
            running.why = why
            running.note = note
            self._ending[running.pid] = running
        else:
            if running.ending.patient:
                running.why, running.note = why, note
            running.ending.hurry(now, grace_s)
        self.next_tick = now

    def kill_all(self, grace_s: Optional[float], why: Optional[str], now: float, note: str) -> None:
        """End everything, each with its own grace if none is given; with the allocation if not said why."""
        if self.launched is not None:
            self.launched.give_back()
        for running, outcome in self._signalled.settle(note):
            self.report(running, outcome)
        for running in [*self.by_pid.values(), *self._waited_for()]:
            grace = self.grace(running) if grace_s is None else grace_s
            self.kill(running.lease, grace, why or self._why(running, self.is_over(now)), now, note)
        if self._closings:
            self._closings.kill_all(self.runner.grace_s if grace_s is None else grace_s, note, now)

    def is_over(self, now: float, soon_s: float = AT_THE_END_S) -> bool:
        """Whether a stop, or a warning, is about the end of the allocation's time."""
        return now >= self.until - soon_s

    def _why(self, running: Running, is_over: bool) -> str:
        """Why a job ends with its allocation: for its time only if no other allocation would give it more."""
        return "time" if is_over and running.had_all(self.began, self.until) else "runner-stopped"

    def _waited_for(self) -> List[Running]:
        """Jobs whose command has ended, and which left something that is waited for."""
        return [running for running in self._ending.values() if running.ending is not None and running.ending.patient]

    def warn_all(self, note: str, now: float) -> None:
        """Warn the jobs that want it that the allocation ends soon, and end the others."""
        if self.launched is not None:
            self.launched.give_back()
        for running, outcome in self._signalled.settle(note):
            self.report(running, outcome)
        for running in [*self.by_pid.values(), *self._waited_for()]:
            if running.plan.warn is None or running.result is not None:
                self.kill(running.lease, self.grace(running), self._why(running, self.is_over(now, SOON_S)), now, note)
            elif not running.warned:
                warn(running)

    def grace(self, running: Running) -> float:
        """Seconds from TERM to KILL."""
        return self.runner.grace_s if running.plan.grace_s is None else running.plan.grace_s

    def tick(self, now: float) -> None:
        """Do what is due: time limits, the next step of kills, samples."""
        if now < self.next_tick:
            return
        times = [self._watch.tick(now)]
        if self._ending:
            self._end_trees(now)
            times.extend(running.ending.next_at for running in self._ending.values() if running.ending)
        if self._closings:
            times.append(self._closings.tick(now))
        if self._signalled:
            for running, outcome in self._signalled.take(now):
                self.report(running, outcome)
            times.append(self._signalled.next_at())
        if self.gangs is not None:
            times.append(self.gangs.tick(now))
        self.next_tick = min(times)

    def _end_trees(self, now: float) -> None:
        due = [running for running in self._ending.values() if running.ending and running.ending.next_at <= now]
        if not due:
            return
        alive = self.table.members({running.pid: running.mark for running in due})
        for running in due:
            ending = running.ending
            if ending is not None and running.result is not None:
                self._left(running, ending, alive[running.pid], now)
            if ending is None or not ending.step(now, alive[running.pid]):
                continue
            if running.result is None:
                ending.next_at = now + 0.02  # a zombie to be reaped in a moment
                continue
            del self._ending[running.pid]
            if alive[running.pid]:
                running.note = "some of its processes could not be killed"
            self._close(running, now)

    def _left(self, running: Running, ending: TreeKill, left: List[measure.Process], now: float) -> None:
        """Say what a job left running that is waited for, or ended now; no more time is waited than the job has."""
        limit, count = running.plan.time_s, len(left)
        if ending.patient and limit is not None and now >= running.since + limit:
            self.kill(running.lease, self.grace(running), "time", now, "over its time limit of %g s" % limit)
        elif ending.patient:
            self._say_left(running, left)
        elif count and running.note is None and running.plan.container is None:
            running.note = "ended %d process%s that it left running" % (count, "" if count == 1 else "es")

    def _say_left(self, running: Running, left: List[measure.Process]) -> None:
        """Tell the manager for whom a job waits, if that has changed; of many only the first are named.

        The name changes as well: one that has just been forked is about to become another program.
        """
        assert running.result is not None
        pids = sorted(process.pid for process in left)
        named = [(pid, measure.name_of(pid).encode("utf-8", "replace").decode()) for pid in pids[:NAMED_LEFT]]
        new = (running.result[3], len(pids), named)
        if pids and new != running.lease.left:
            self.runner.waits_for(running.lease, new)
