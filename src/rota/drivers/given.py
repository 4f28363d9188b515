"""An allocation that is given: we are inside it, and only its runners have to be started, by one launcher process.

What was started, where and by whom is kept beside its script. So whoever comes after a manager that died, here or in
another allocation, can tell that it is over: by its launcher, by its batch system, or by a look at every node of it,
where what is left is ended (`sweep`).
"""

import asyncio
import os
import pwd
import signal
import subprocess
from collections.abc import Callable, Sequence

import msgspec
from msgspec import Struct

from rota.drivers.allocation import HERE, Given
from rota.drivers.api import Ask, Known, Observation
from rota.drivers.descriptors import as_before
from rota.drivers.dialect import Options
from rota.drivers.dialects import load_dialect
from rota.drivers.local import end_leftovers, start_ticks
from rota.drivers.transport import LocalTransport, UnreachableError
from rota.model.errors import RefusedError
from rota.model.site import SiteFacts

__all__ = ["RECORD", "SCRIPT", "SWEEP", "GivenDriver", "is_listed"]

RECORD, SCRIPT, SWEEP = "launched.json", "script.sh", "sweep.sh"
SWEEP_S = 120.0
UNTRACKED = ("ssh",)
"""By these no batch system knows what is started: the end of its job is not the end of that."""
LIVE = ("pending", "held", "running", "suspended", "unsure")


class Launched(Struct):
    """A launcher that was started, in its directory before it is."""

    host: str
    boot: str
    given: Given
    pid: int = 0
    ticks: int = 0


class StillRunsError(Exception):
    """The job that an allocation was is not over, and so may its runners be."""


class GivenDriver:
    """The runners of the allocation that we are in."""

    def __init__(self, facts: SiteFacts, given: Given, directory: str, boot: str) -> None:
        self._facts = facts
        self._given = given
        self._directory = directory
        self._boot = boot
        self._host = os.uname().nodename
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._sweeps: dict[str, asyncio.Task[str | None]] = {}
        """Tag → the last sweep of its nodes."""
        self.on_end: Callable[[], None] = lambda: None
        """Called when the launcher has ended."""

    def facts(self) -> SiteFacts:
        """One allocation, with all its nodes."""
        return self._facts

    async def submit(self, ask: Ask) -> list[str]:
        """Start the launcher in a session of its own. Its scripts are there."""
        launched = Launched(self._host, self._boot, self._given)
        self._keep(ask.tag, launched)
        try:
            child = self._children[ask.tag] = self._start(ask)
        except OSError as error:
            raise RefusedError(f"cannot start the runners of this allocation: {error}") from error
        launched.pid, launched.ticks = child.pid, start_ticks(child.pid) or 0
        self._keep(ask.tag, launched)
        self._watch(child.pid)
        return [self._name(launched)]

    def _start(self, ask: Ask) -> "subprocess.Popen[bytes]":
        with open(os.path.join(ask.directory, f"{ask.tag}.out"), "ab") as output:
            return subprocess.Popen(
                ["/bin/sh", os.path.join(ask.directory, SCRIPT)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                cwd="/",
                env={**os.environ, "ROTA_ELEMENT": "0"},
                preexec_fn=as_before(),  # noqa: PLW1509  one system call
            )

    def _watch(self, pid: int) -> None:
        try:
            fd = os.pidfd_open(pid)
        except OSError:  # an old kernel, or it is gone: the next poll sees that
            return
        loop = asyncio.get_running_loop()

        def ended() -> None:
            loop.remove_reader(fd)
            os.close(fd)
            self.on_end()

        loop.add_reader(fd, ended)

    async def find(self, tag: str, count: int) -> list[str] | None:
        """What was begun with this tag: whether it has come to anything, a poll tells."""
        launched = self._kept(tag)
        return None if launched is None else [self._name(launched)]

    async def terminate(self, known: Known) -> bool:
        """TERM to the runners: here at once, elsewhere by a sweep, since launchers kill (srun) or forget (ssh) theirs.

        Told again, the launcher is ended.
        """
        launched = self._kept(known.tag)
        if launched is None or not self._lives(known.tag, launched):
            return True
        if not self._is_here(launched.given) and known.tag not in self._sweeps:
            await self._sweep(known.tag)
            return True
        try:
            os.kill(launched.pid, signal.SIGTERM)
        except ProcessLookupError:
            return True
        return True

    async def poll(self, known: Sequence[Known]) -> list[Observation]:
        """A launcher that is here runs. Of one that is gone it is made sure that it has left nothing."""
        out = []
        for allocation in known:
            launched = self._kept(allocation.tag)
            if launched is None:
                out.append(Observation(allocation.id, "complete", None, "it was never started"))
            elif self._lives(allocation.tag, launched):
                out.append(Observation(allocation.id, "run", self._name(launched)))
            else:
                why = self._how_it_ended(allocation.tag)
                try:
                    doubt = await self._left(allocation.tag, launched)
                except StillRunsError:
                    out.append(Observation(allocation.id, "run", self._name(launched)))
                    continue
                verb, words = ("complete", why) if doubt is None else ("unsure", doubt)
                out.append(Observation(allocation.id, verb, self._name(launched), words))
        return out

    # ---- whether it is over -----------------------------------------------------------------------------------------

    def _lives(self, tag: str, launched: Launched) -> bool:
        if (child := self._children.get(tag)) is not None:
            child.poll()  # reaps it if it has ended
        here = launched.host == self._host and launched.boot == self._boot
        return here and launched.pid > 0 and start_ticks(launched.pid) == launched.ticks

    def _how_it_ended(self, tag: str) -> str:
        child = self._children.get(tag)
        code = None if child is None else child.poll()
        if code is None:
            return "its launcher is gone"
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        return f"its launcher {how}"

    async def _left(self, tag: str, launched: Launched) -> str | None:
        """Why it may still run somewhere; None: it does not."""
        child = self._children.get(tag)
        if child is not None and child.poll() == 0 and not self._is_here(launched.given):
            return None  # the launcher saw the ends of all runners
        job = launched.given.job
        if job is not None and job != self._given.job:
            doubt = await self._job_doubt(launched.given.system, job)
            if doubt is None and launched.given.spread in UNTRACKED:
                doubt = await self._sweep(tag)
            if doubt is not None or launched.host != self._host:
                return doubt
        elif not self._is_here(launched.given):
            return await self._sweep(tag)
        elif launched.host != self._host:
            return f"it was started on {launched.host}: go on there, or see there that nothing of it runs"
        left = await end_leftovers(tag)
        return f"{len(left)} processes of it cannot be ended: {left[:5]}" if left else None

    def _is_here(self, given: Given) -> bool:
        return given.spread == HERE

    async def _job_doubt(self, system: str, job: str) -> str | None:
        """Whether a job is over, by the word of its batch system. An answer that failed is none."""
        transport, dialect = LocalTransport(), load_dialect(system)
        command = dialect.listing(pwd.getpwuid(os.getuid()).pw_name)
        try:
            answer = await transport.run(command.argv, command.stdin)
        except UnreachableError as error:
            return f"nobody says whether job {job} is over: {error}"
        listing = dialect.read_listing(answer, Options())
        if listing.result != "ok":
            return f"nobody says whether job {job} is over: {answer.words}"
        live = [seen.native_id for seen in listing.seen if seen.kind in LIVE]
        own = self._given
        if own.system == system and own.job is not None and not is_listed(own.job, live):
            return (
                f"nobody says whether job {job} is over: the list of jobs does not even have {own.job}, which this is"
            )
        if is_listed(job, live):
            raise StillRunsError
        return None

    async def _sweep(self, tag: str) -> str | None:
        """End what it has left on its nodes; why that is not certain. One after the other."""
        running = self._sweeps.get(tag)
        if running is None or running.done():
            running = self._sweeps[tag] = asyncio.create_task(self._sweep_once(tag))
        return await asyncio.shield(running)

    async def _sweep_once(self, tag: str) -> str | None:
        """Run a sweep on each node, by the same means as its runner was started there."""
        path = os.path.join(self._directory, tag, SWEEP)
        try:
            done = await asyncio.create_subprocess_exec(
                "/bin/sh",
                path,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, "ROTA_ELEMENT": "0"},
            )
        except OSError as error:
            return f"its nodes cannot be looked at: {error}"
        try:
            said, _ = await asyncio.wait_for(done.communicate(), SWEEP_S)
        except TimeoutError:
            done.kill()
            return f"its nodes did not say within {SWEEP_S:g} s that nothing of it is left"
        lines = said.decode(errors="replace").strip().splitlines()
        return None if done.returncode == 0 else f"its nodes cannot be looked at: {lines[-1] if lines else 'no words'}"

    # ---- what is kept -----------------------------------------------------------------------------------------------

    def _name(self, launched: Launched) -> str:
        job = launched.given.job
        return f"{launched.given.system} {job}" if job is not None else f"{launched.host}:{launched.pid}"

    def _keep(self, tag: str, launched: Launched) -> None:
        path = os.path.join(self._directory, tag, RECORD)
        with open(f"{path}.new", "wb") as file:
            file.write(msgspec.json.encode(launched))
            file.flush()
            os.fsync(file.fileno())
        os.replace(f"{path}.new", path)

    def _kept(self, tag: str) -> Launched | None:
        try:
            with open(os.path.join(self._directory, tag, RECORD), "rb") as file:
                return msgspec.json.decode(file.read(), type=Launched)
        except FileNotFoundError:
            return None


def is_listed(job: str, live: Sequence[str]) -> bool:
    """Whether a job, or the array that it is of, is among those that live.

    Listings write elements in their own ways, and elements that wait as one: what has the same number may be it.
    """
    number, _, element = _parts(job)
    for each in live:
        other, _, its = _parts(each)
        if number == other and (not element or not its or element == its):
            return True
    return False


def _parts(job: str) -> tuple[str, str, str]:
    """(number, what is between, element) of `12`, `12_3`, `12[3].server`, `12.3`."""
    number = job[: len(job) - len(job.lstrip("0123456789"))]
    rest = job[len(number) :]
    element = rest[1 : len(rest) - len(rest[1:].lstrip("0123456789"))] if rest[:1] in ("_", "[", ".") else ""
    return number, rest[:1], element
