"""The parts of gangs on this node: who may start ranks here, what they use, how all of an attempt is ended.

A gang is a job on several nodes. Its command runs on the first, the root; its ranks elsewhere are started through the
doors of the other runners (door.py), because what ssh starts would be in nobody's hands.
"""

from __future__ import annotations

import os
import shutil
import time
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Tuple

from rota.runner import measure
from rota.runner.door import Door
from rota.runner.environment import gang_variables, style_variables, without_allocation
from rota.runner.inquiry import Alarm, Inquiry
from rota.runner.kill import TreeKill
from rota.runner.parallel import ranks
from rota.runner.part import Part
from rota.runner.plan import DEFAULT_UMASK, StartError
from rota.runner.spawn import Streams, cannot_enter

if TYPE_CHECKING:
    import select
    from resource import struct_rusage

    from rota.runner.jobs import Jobs
    from rota.runner.lease import Hold, Key, Lease, Outcome
    from rota.runner.plan import Plan
    from rota.runner.running import Running

__all__ = ["Gangs"]

ASK_LOOK_S = 0.02
SAMPLE_AFTER_S = 0.3
SAMPLE_S = 1.0
SAMPLE_SHARE = 100.0  # sampling may take a hundredth of one core
LOOK_S = 0.05
AGAIN_S = 1.0
NEVER = float("inf")


class Gangs:
    """All parts of gangs on this node."""

    def __init__(self, jobs: Jobs, epoll: select.epoll) -> None:
        self.parts: Dict[Key, Part] = {}
        self._jobs = jobs
        self._epoll = epoll
        self._door: Optional[Door] = None
        self._inquiries: Dict[Key, Inquiry] = {}
        self._sample_at = NEVER

    @property
    def grace_s(self) -> float:
        """Seconds from TERM to KILL."""
        return self._jobs.runner.grace_s

    def due(self, at: float) -> None:
        """Have tick() called then."""
        self._jobs.next_tick = min(self._jobs.next_tick, at)

    def members(self, leaders: Dict[int, Tuple[bytes, bytes]]) -> Dict[int, List[measure.Process]]:
        """The processes of these leaders."""
        return self._jobs.table.members(leaders)

    # -- parts ---------------------------------------------------------------------------------------------------

    def hold(self, hold: Hold) -> None:
        """Let ranks of an attempt be started here; raises OSError if that cannot be."""
        part = Part(hold.key, hold.secret, hold.spec, self._directory(hold.key), False)
        part.slot = hold.slot
        self._add(part)
        if how := (hold.spec.get("bind") or "").rstrip("!"):  # its root does not wait for better cores here
            self._jobs.open_bindings().take(hold.key, int(hold.spec.get("cores") or 1000), how)

    def root(self, lease: Lease) -> Part:
        """The part of the node where the command of an attempt runs; StartError if it cannot be."""
        gang = lease.gang
        assert gang is not None
        part = Part(lease.key, gang["secret"], {**lease.spec, **(lease.extra or {})}, self._directory(lease.key), True)
        try:
            self._add(part)
            nodes = [dict(node) for node in gang["nodes"]]
            nodes[0]["address"] = self._jobs.runner.address
            part.furnish(nodes)
        except OSError as error:
            self.forget(lease.key)
            raise StartError("start", "cannot open a door for the other nodes of this job: %s" % error) from None
        return part

    def _directory(self, key: Key) -> str:
        return os.path.join(self._jobs.segments.directory, "gang-%d.%d.%d" % key)

    def _add(self, part: Part) -> None:
        if self._door is None:
            self._door = Door(self, self._epoll)
            # Not the batch system's name of this node: other nodes can look up the host's own.
            self._jobs.runner.address = "%s:%d" % (os.uname().nodename, self._door.port)
        self.parts[part.key] = part
        self._jobs.table.gangs[part.id] = part.mark

    def serve(self, fd: int, now: float) -> bool:
        """Do what a descriptor is ready for; False if it is none of the door's."""
        return self._door is not None and self._door.serve(fd, now)

    def secret_of(self, key: Key) -> Optional[str]:
        """The secret of an attempt that is open here."""
        part = self.parts.get(key)
        return None if part is None else part.secret

    def forget(self, key: Key) -> None:
        """Nothing of an attempt is left here: close its connections, remove its files."""
        part = self.parts.pop(key, None)
        if part is None:
            return
        self._jobs.table.gangs.pop(part.id, None)
        if not part.root and self._jobs.bindings is not None:
            self._jobs.bindings.give_back(key)
        shutil.rmtree(part.directory, ignore_errors=True)
        if self._door is not None:
            self._door.drop(key, time.monotonic())
            if not self.parts:
                self._door.close()
                self._door = None

    # -- what is started -----------------------------------------------------------------------------------------

    def environment(self, lease: Lease, env: Dict[bytes, bytes]) -> Dict[bytes, bytes]:
        """The environment of a root: of its gang, and nothing of the allocation's own launcher."""
        part = self.parts.get(lease.key) or self.root(lease)
        own = self._jobs.plans.of(lease).env.own(lease)
        return {**without_allocation(env), **own, **self._variables(part)}

    def _variables(self, part: Part) -> Dict[bytes, bytes]:
        """What all processes of an attempt are told of its nodes."""
        told = gang_variables(part.directory, part.nodes, part.id)
        style = part.spec.get("style")
        return {**told, **style_variables(style, part.nodes)} if style else told

    def ranks(self, lease: Lease, plan: Plan, env: Dict[bytes, bytes]) -> List[str]:
        """The words that start the command of a root as ranks on all its nodes; `env` gets what these need."""
        part = self.parts[lease.key]
        shell = plan.shell_words() if isinstance(lease.command, str) else []
        words, told = ranks(part.spec, lease.command, shell, part.nodes, part.directory, env)
        for name, value in told.items():
            if value is None:
                env.pop(name, None)
            else:
                env[name] = value
        return words

    def start(self, key: Key, request: Dict[str, Any], streams: Streams) -> Tuple[int, List[str]]:
        """Start a process within an attempt; returns its pid, and what its caller should know."""
        part = self.parts.get(key)
        if part is None or part.ending is not None:
            raise StartError("start", "the attempt is being ended on this node")
        if part.alarm is not None:
            raise StartError("memory", part.note)
        argv = [str(word) for word in request["argv"]]
        if not part.nodes:
            part.furnish([dict(node) for node in request["nodes"]])
        env = {os.fsencode(name): os.fsencode(value) for name, value in request["env"].items()}
        env = self._rank_environment(part, env)
        notes: List[str] = []
        cwd = str(request["cwd"])
        spawner = self._jobs.spawner
        umask = part.spec.get("umask")
        spawner.use_umask(DEFAULT_UMASK if umask is None else int(umask) & 0o777)
        try:
            try:
                os.chdir(cwd)
            except OSError as error:
                notes.append("%s: starting in / instead" % cannot_enter(cwd, error).note)
                os.chdir("/")
            search = env.get(b"PATH", b"")
            path = spawner.find(argv[0], search)
            bindings = self._jobs.bindings
            with nullcontext() if bindings is None else bindings.of(key):
                pid = spawner.spawn(path, argv, env, streams, cwd, search)
        finally:
            self._jobs.leave_directory()
        self._jobs.helpers[pid] = None
        part.live[pid] = 0.0
        if self._sample_at == NEVER:
            self._sample_at = time.monotonic() + SAMPLE_AFTER_S
            self.due(self._sample_at)
        return pid, notes

    def _rank_environment(self, part: Part, env: Dict[bytes, bytes]) -> Dict[bytes, bytes]:
        """What the caller has, with this node's own marks, names and devices."""
        batch, index, attempt = (b"%d" % number for number in part.key)
        env = without_allocation(env, keep_element=True)
        own = os.environb.get(b"TMPDIR")
        if own is not None:
            env[b"TMPDIR"] = own
        elif not os.path.isdir(env.get(b"TMPDIR", b"/")):
            del env[b"TMPDIR"]
        env.pop(b"HOSTNAME", None)
        if not part.root:
            env.pop(b"ROTA_CORE_IDS", None)
            env.update(self._jobs.plans.gpu_variables(part.slot))
            if self._jobs.bindings is not None:
                env.update(self._jobs.bindings.variables(part.key))
        env.update(self._variables(part))
        env.update(
            {
                b"ROTA_RUNNER": os.fsencode(self._jobs.runner.runner_id),
                b"ROTA_JOB": batch + b"." + index,
                b"ROTA_BATCH": batch,
                b"ROTA_INDEX": index,
                b"ROTA_ATTEMPT": attempt,
            }
        )
        return env

    # -- what is used --------------------------------------------------------------------------------------------

    def reaped(self, pid: int, status: int, usage: struct_rusage, now: float) -> None:
        """Take note of the end of a child of this runner that is no job: of a rank, or of what it left."""
        part = next((part for part in self.parts.values() if pid in part.live), None)
        if part is None and len(self.parts) == 1 and not self._jobs.by_pid:
            part = next(iter(self.parts.values()))  # it ended before it was seen; whose else can it be?
        if part is not None:
            part.live.pop(pid, None)
            part.cpu_s += usage.ru_utime + usage.ru_stime
            maxrss = usage.ru_maxrss * 1024
            if maxrss > max(part.peak, measure.own_peak()):
                part.peak = maxrss  # it grew after we last looked
        if self._door is not None:
            self._door.ended(pid, status, now)

    def usage(self, key: Key) -> Tuple[float, int]:
        """CPU seconds, and most bytes of memory, of an attempt on this node."""
        part = self.parts[key]
        self._measure([part])
        return round(part.cpu_s + sum(part.live.values()), 3), part.peak

    def _measure(self, parts: List[Part]) -> None:
        found = self.members({-1 - at: part.mark for at, part in enumerate(parts)})
        for at, part in enumerate(parts):
            processes = found[-1 - at]
            part.memory = sum(measure.memory_of(process) for process in processes)
            part.peak = max(part.peak, part.memory)
            part.live = {process.pid: process.cpu_s for process in processes}

    def ask(self, running: Running, outcome: Outcome) -> bool:
        """Ask the other nodes what an ended root used there; False if that is known or nobody can be asked."""
        key = running.lease.key
        part = self.parts.get(key)
        if part is None or running.elsewhere is not None:
            return False
        if key not in self._inquiries:
            self._inquiries[key] = Inquiry(running, outcome, part.nodes[1:], part.secret)
            self.due(time.monotonic() + ASK_LOOK_S)
        return True

    def _answered(self, now: float) -> float:
        for key, inquiry in list(self._inquiries.items()):
            if inquiry.over:
                del self._inquiries[key]
                part = self.parts.get(key)
                running = inquiry.running
                if part is not None and running.result is not None:
                    status, cpu_s, memory, wall = running.result
                    running.result = (status, cpu_s + part.cpu_s, memory, wall)  # with ranks on the root's own node
                running.elsewhere = (inquiry.cpu_s, inquiry.peak)
                self._jobs.report(running, inquiry.outcome)
        return now + ASK_LOOK_S if self._inquiries else NEVER

    # -- limits --------------------------------------------------------------------------------------------------

    def _watch_memory(self, parts: List[Part]) -> None:
        """Have an attempt ended that uses more memory on this node than its job may have on each."""
        for part in parts:
            limit = part.spec.get("memory")
            if limit is not None and part.memory > limit and part.alarm is None:
                host = self._jobs.runner.facts.get("host", "another node")
                used, most = measure.size_words(part.memory), measure.size_words(limit)
                part.note = "used %s of memory on %s, over its limit of %s" % (used, host, most)
                part.alarm = Alarm(str(part.nodes[0]["address"]), part.key, part.secret, part.note)

    def exceeded(self, key: Key, note: str, now: float) -> None:
        """End the root of an attempt that has exceeded its memory on another node."""
        for running in list(self._jobs.by_pid.values()):
            if running.lease.key == key:
                self._jobs.kill(running.lease, self._jobs.grace(running), "memory", now, note)

    def _end_exceeding(self, now: float) -> float:
        """End what was started here of attempts that have exceeded a limit, once their root knows why."""
        parts = [part for part in self.parts.values() if part.alarm is not None and part.ending is None]
        for part in parts:
            if part.exceeding is None and part.alarm is not None and part.alarm.over:
                grace_s = part.spec.get("grace_s")
                part.exceeding = TreeKill(now, self.grace_s if grace_s is None else grace_s)
        due = {
            -1 - at: part
            for at, part in enumerate(parts)
            if part.exceeding is not None and part.exceeding.next_at <= now
        }
        alive = self.members({at: part.mark for at, part in due.items()}) if due else {}
        for at, part in due.items():
            assert part.exceeding is not None
            if part.exceeding.step(now, alive[at]):
                part.exceeding.next_at = now + AGAIN_S
        return min((now + ASK_LOOK_S if p.exceeding is None else p.exceeding.next_at for p in parts), default=NEVER)

    # -- the end -------------------------------------------------------------------------------------------------

    def release(self, key: Key, grace_s: float, now: float) -> None:
        """Begin to end everything of an attempt on this node; the protocol is told when nothing is left."""
        part = self.parts.get(key)
        if part is None:  # its root waited, or is over
            self._jobs.runner.released(key)
        elif part.ending is None:
            part.ending = TreeKill(now, grace_s)
        else:
            part.ending.hurry(now, grace_s)
        self.due(now)

    def end_all(self, grace_s: Optional[float], now: float) -> None:
        """Begin to end everything of all attempts whose root is elsewhere."""
        for part in list(self.parts.values()):
            if not part.root:
                self.release(part.key, self.grace_s if grace_s is None else grace_s, now)

    def tick(self, now: float) -> float:
        """Do what is due; returns when to come back."""
        times = [self._answered(now)]
        due = [part for part in self.parts.values() if part.ending is not None and part.ending.next_at <= now]
        if due:
            alive = self.members({-1 - at: part.mark for at, part in enumerate(due)})
            for at, part in enumerate(due):
                self._end(part, alive[-1 - at], now)
        times.extend(part.ending.next_at for part in self.parts.values() if part.ending is not None)
        if now >= self._sample_at:
            began = time.thread_time()
            seen = [part for part in self.parts.values() if not part.root and part.nodes]
            if seen:
                self._measure(seen)
                self._watch_memory(seen)
            pause_s = max(SAMPLE_S, (time.thread_time() - began) * SAMPLE_SHARE)
            self._sample_at = now + pause_s if seen else NEVER
        times.extend((self._sample_at, self._end_exceeding(now)))
        if self._door is not None:
            times.append(self._door.tick(now))
        return min(times)

    def _end(self, part: Part, alive: List[measure.Process], now: float) -> None:
        ending = part.ending
        assert ending is not None
        if part.root and self._jobs.runner.runs(part.key):
            ending.next_at = now + LOOK_S  # its command is being ended, and its end is told first
            return
        if ending.step(now, alive):
            ending.next_at = now + (AGAIN_S if alive else 0.0)  # what cannot be killed may yet go away
        if alive or not part.empty:  # two looks: one alone can miss what is just being forked
            part.empty = not alive
            return
        self.forget(part.key)
        self._jobs.runner.released(part.key)
