"""This machine as a site: an allocation is a runner process that outlives the manager.

The runner's id begins with the allocation's tag, and stands in its command line and in the environment of every job
that it starts. So after a restart of the manager it is found again, and when a runner has died, what it left running is
found and ended *before* the allocation is called over: only then may its jobs be started again.
"""

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Protocol

from rota.drivers.api import Ask, Known, Observation
from rota.drivers.descriptors import as_before
from rota.model.errors import RefusedError
from rota.model.site import SiteFacts

__all__ = ["Door", "LocalDriver", "start_ticks"]

KILL_WAIT_S = 5.0
NODE = "0.0"
"""The only element of a submission, and its only node."""
PROGRAM = os.path.join(os.path.dirname(os.path.dirname(__file__)), "runner", "__main__.py")
RUNNER = (sys.executable, "-I", "-S", PROGRAM)
"""By path and without site-packages: it needs nothing but the standard library, and starts in half the time."""


class Door(Protocol):
    """How runners reach the manager."""

    def open(self, allocation: str) -> Sequence[str]:
        """The words of the runner's command line that say where, and with which token file."""
        ...

    def shut(self, allocation: str) -> None:
        """The allocation is over: its token opens nothing any more."""
        ...


class LocalDriver:
    """Runner processes on this host."""

    def __init__(self, facts: SiteFacts, door: Door, output: str, log: str, *, launcher: str = "auto") -> None:
        self._facts = facts
        self._door = door
        self._output = output
        self._log = log
        self._launcher = launcher
        self._children: dict[int, subprocess.Popen[bytes]] = {}
        self._watched: set[int] = set()
        self._started: dict[str, str] = {}
        """Tag → native id of what was started here: a process that is just being made has no command line yet."""
        self.on_end: Callable[[], None] = lambda: None
        """Called when a runner has ended: its place is free at once, not only when somebody looks again."""

    def take_over(self, earlier: "LocalDriver") -> None:
        """Reap the children of an earlier driver of this machine."""
        self._children, self._watched, self._started = earlier._children, earlier._watched, earlier._started
        earlier.on_end = self._woken

    def facts(self) -> SiteFacts:
        """One allocation: the whole machine, or what the configuration leaves of it."""
        return self._facts

    async def submit(self, ask: Ask) -> list[str]:
        """Start a runner in a session of its own, with nothing of ours open."""
        try:
            child = self._start(ask.ids[0], ask.tag)
        except OSError as error:
            raise RefusedError(f"cannot start a runner ({' '.join(RUNNER)}): {error}") from error
        self._children[child.pid] = child
        self._watch(child.pid)
        native = self._started[ask.tag] = f"{child.pid}:{start_ticks(child.pid) or 0}"
        return [native]

    def _start(self, allocation: str, tag: str) -> "subprocess.Popen[bytes]":
        name = f"{tag}.{NODE}.{os.urandom(4).hex()}"
        node, output = self._facts.node, os.path.join(self._output, name)
        command = [*RUNNER, *self._door.open(allocation), "--id", name]
        command += ["--allocation", allocation, "--output", output, "--launcher", self._launcher]
        for name in ("cores", "memory", "disk", "gpus"):
            command += [f"--{name}", str(getattr(node, name))]
        for word in self._facts.tags:
            command += ["--tag", word]
        os.makedirs(output, 0o700, exist_ok=True)
        with open(self._log, "ab") as log:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                cwd="/",
                preexec_fn=as_before(),  # noqa: PLW1509  one system call
            )

    async def find(self, tag: str, count: int) -> list[str] | None:
        """Look for a runner that was started here, or whose command line carries the tag."""
        found = self._started.get(tag) or _find(tag)
        return None if found is None else [found]

    async def terminate(self, known: Known) -> bool:
        """TERM to the runner: it ends its jobs, reports, and exits."""
        pid = self._alive(known.native_id)
        if pid is None:
            return True
        try:
            os.kill(pid, signal.SIGTERM)
        except ProcessLookupError:
            return True
        return True

    async def poll(self, known: Sequence[Known]) -> list[Observation]:
        """A runner that is gone has its leftovers ended first."""
        out = []
        for allocation in known:
            native = allocation.native_id or _find(allocation.tag)
            if (pid := self._alive(native)) is not None:
                self._watch(pid)
                out.append(Observation(allocation.id, "run", native))
                continue
            how = self._how_it_ended(native)
            left = await end_leftovers(allocation.tag)
            if left:
                why = f"{len(left)} processes of it cannot be ended: {left[:5]}"
                out.append(Observation(allocation.id, "unsure", native, why))
            else:
                self._started.pop(allocation.tag, None)
                out.append(Observation(allocation.id, "complete", native, f"its runner {how}"))
        return out

    def _watch(self, pid: int) -> None:
        if pid in self._watched:
            return
        try:
            fd = os.pidfd_open(pid)
        except OSError:  # an old kernel, or it is gone: the next poll sees that
            return
        self._watched.add(pid)
        asyncio.get_running_loop().add_reader(fd, self._ended, pid, fd)

    def _ended(self, pid: int, fd: int) -> None:
        asyncio.get_running_loop().remove_reader(fd)
        os.close(fd)
        self._watched.discard(pid)
        self.on_end()

    def _woken(self) -> None:
        self.on_end()

    def _alive(self, native: str | None) -> int | None:
        if native is None:
            return None
        pid, _, ticks = native.partition(":")
        child = self._children.get(int(pid))
        if child is not None:
            child.poll()  # reaps it if it has ended
        return int(pid) if str(start_ticks(int(pid)) or "") == ticks else None

    def _how_it_ended(self, native: str | None) -> str:
        child = self._children.pop(int(native.partition(":")[0]), None) if native else None
        code = child.poll() if child is not None else None
        if code is None:
            return "is gone"
        return f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"


def _find(tag: str) -> str | None:
    wanted = re.compile(rf"\0--id\0{re.escape(tag)}(\.{re.escape(NODE)}\.[0-9a-f]+)?\0".encode())
    for pid in _own_pids():
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                line = file.read()
            leads = os.getsid(pid) == pid
        except OSError:
            continue
        # Of whatever installation; and not a child of it that is just about to become a job and still looks like it.
        if leads and wanted.search(line) and b"/runner/__main__.py\0" in line:
            return f"{pid}:{start_ticks(pid) or 0}"
    return None


async def end_leftovers(tag: str) -> list[int]:
    """Kill every process that a runner of this tag started and left behind; returns those that are still there."""
    left = _leftovers(tag)
    deadline = asyncio.get_running_loop().time() + KILL_WAIT_S
    while left and asyncio.get_running_loop().time() < deadline:
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        await asyncio.sleep(0.01)
        left = _leftovers(tag)
    return left


def _leftovers(tag: str) -> list[int]:
    marked = re.compile(rf"ROTA_RUNNER={re.escape(tag)}(\..+)?".encode())
    found, sessions = [], set()
    others = []
    for pid in _own_pids():
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                mine = any(marked.fullmatch(word) for word in file.read().split(b"\0"))
            session = os.getsid(pid)
        except OSError:
            continue
        if start_ticks(pid) is None:
            continue
        if mine:
            found.append(pid)
            sessions.add(session)
        else:
            others.append((pid, session))
    # What cleared its environment but stayed in the session of a job that we know is found by that.
    found.extend(pid for pid, session in others if session in sessions and session > 1)
    return found


def _own_pids() -> list[int]:
    uid, own = os.getuid(), os.getpid()
    out = []
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) > 1 and int(name) != own:
            try:
                if os.stat(f"/proc/{name}").st_uid == uid:
                    out.append(int(name))
            except OSError:
                continue
    return out


def start_ticks(pid: int) -> int | None:
    """When a process began, in the kernel's count: with the pid, this names one process. None: it does not run."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if fields[0] in (b"Z", b"X") else int(fields[19])
