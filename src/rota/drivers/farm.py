"""Hosts that are reached by ssh, each a place of its own: an allocation is a runner process on one of them.

Nothing has to be set up there but a Python and our key. The runner's files are sent once, and every request is one
command: the runner package itself, as an outpost (`runner/outpost.py`), reads it and answers. So what is asked of a
host is the same whatever its shell, and a process is known by pid, start and boot of the host, not by pid alone.
"""

import asyncio
import base64
import io
import json
import os
import posixpath
import tarfile
import time
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from rota.drivers.api import Ask, Known, Observation
from rota.drivers.script import NO_PYTHON, build_script
from rota.drivers.ssh import SshTransport
from rota.drivers.transport import UnreachableError
from rota.model.allocation import Outcome
from rota.model.errors import BusyError, RotaError
from rota.model.needs import Amounts
from rota.model.site import SiteFacts

__all__ = ["FarmDriver", "Hardware", "Host", "HostError", "NoPythonError", "Runner"]

PROBE_S = 60.0
START_S = 60.0
LOOK_S = 90.0
"""How long a look may take: what a runner left is ended in it."""
SEND_S = 300.0
FIND_AGAIN_S = 10.0
FAILED_S = 30.0
FAILED_MOST_S = 1800.0
AT_ONCE = 64
"""Hosts that are spoken to at one time."""
BEGIN = (
    'umask 077; d=${1:-$HOME/.rota/farm}; mkdir -p "$d/lib" && cd "$d" && pwd -P && '
    'if [ -d "lib/$2" ]; then echo there; else echo missing; fi'
)
INSTALL = (
    'umask 077; cd "$1/lib" && t=".$2.$$" && mkdir "$t" && base64 -d | tar -xzf - -C "$t" && '
    '{ mv -T "$t" "$2" 2>/dev/null || { [ -d "$2" ] && rm -rf "$t"; }; } || { s=$?; rm -rf "$t"; exit $s; }'
)


class HostError(BusyError):
    """A host of a farm cannot be used now; the others can."""

    def __init__(self, words: str, host: str) -> None:
        super().__init__(words)
        self.host = host


class NoPythonError(HostError):
    """A host has no Python that will do."""


class Hardware(Struct, frozen=True):
    """What a host says that it has."""

    cores: int
    memory: int
    disk: int
    gpus: int
    host: str
    """What it calls itself."""
    boot: str
    caller: str = ""
    """The address that we come from, as the host sees it: there its runner finds us."""

    @property
    def amounts(self) -> Amounts:
        """As a node."""
        return Amounts(self.cores, self.memory, self.disk, self.gpus)


class Runner(Struct, frozen=True):
    """A runner that was started on a host: what is kept of it in a file, so that it is found again."""

    host: str
    directory: str
    pid: int = 0
    start: int = 0
    boot: str = ""
    target: str = ""
    """What ssh is told, also when the host is in the configuration no more."""

    @property
    def native(self) -> str:
        """As people see it."""
        return f"{self.host}:{self.pid}"


class Host:
    """One host: how it is reached, what it has, and whether it is there."""

    def __init__(
        self, name: str, transport: SshTransport, directory: str | None = None, python: str | None = None
    ) -> None:
        self.name = name
        self.transport = transport
        self.directory = directory
        """Absolute, once it is known."""
        self.hardware: Hardware | None = None
        """What it had when it was last asked."""
        self.why: str | None = "it was not asked yet"
        """Why it is not up; None: it is."""
        self.since = 0.0
        """Wall-clock time since when."""
        self.failures = 0
        """Runners in a row that did not come up."""
        self.left_alone_until = 0.0
        """Monotonic time before which it is not to be used."""
        self._asked = directory
        self._python = python
        self._script: str | None = None

    def is_up(self) -> bool:
        """Whether a runner can be started there."""
        return self.why is None and time.monotonic() >= self.left_alone_until

    def sees(self, why: str | None) -> None:
        """Take note that it is there, or why not."""
        if (why is None) != (self.why is None):
            self.since = time.time()
        self.why = why

    async def prepare(self, package: "Package") -> None:
        """See to it that the runner's files are there."""
        answer = await self.transport.run(
            ("sh", "-c", BEGIN, "rota", self._asked or "", package.name), timeout_s=PROBE_S
        )
        lines = answer.stdout.split("\n")
        if answer.code == 255 or "mux_client" in answer.words:  # ssh's own words: the connection broke under it
            raise UnreachableError(f"{self.name} cannot be reached: {answer.words}", ran=False)
        if answer.code != 0 or len(lines) < 2 or not lines[0].startswith("/"):
            raise HostError(f"{self.name}: no directory for rota can be made there: {answer.words}", self.name)
        self.directory = lines[0]
        if lines[1] != "there":
            done = await self.transport.run(
                ("sh", "-c", INSTALL, "rota", self.directory, package.name), package.text, SEND_S
            )
            if done.code != 0:
                raise HostError(f"{self.name}: the runner cannot be put there: {done.words}", self.name)
        words = [self.program(package), "--outpost"]
        exports = {"ROTA_ELEMENT": "0"}
        self._script = build_script(words, python=self._python, digest=package.digest, exports=exports)

    def program(self, package: "Package") -> str:
        """The path of the runner there."""
        return posixpath.join(self.directory or "", "lib", package.name, "rota", "runner", "__main__.py")

    async def argv(self, package: "Package", request: dict[str, Any]) -> tuple[str, ...]:
        """A command on this host that makes a request with files on its standard input or output."""
        if self._script is None:
            await self.prepare(package)
        words = [self.program(package), "--outpost", json.dumps(request)]
        exports = {"ROTA_ELEMENT": "0"}
        script = build_script(words, python=self._python, digest=package.digest, exports=exports)
        return self.transport.argv(("sh", "-c", script, "rota"))

    async def ask(self, package: "Package", what: str, timeout_s: float, **more: Any) -> dict[str, Any]:
        """Ask the outpost. Raises UnreachableError if the host cannot be reached, HostError if it cannot do it."""
        if self._script is None:
            await self.prepare(package)
        assert self._script is not None
        request = json.dumps({"what": what, **more})
        answer = await self.transport.run(("sh", "-c", self._script, "rota"), request, timeout_s)
        if answer.code != 0:
            self._script = None  # its files may be gone: they are looked at before the next request
            kind = NoPythonError if answer.code == NO_PYTHON else HostError
            raise kind(f"{self.name}: {what}: {answer.words}", self.name)
        try:
            found: dict[str, Any] = json.loads(answer.stdout.strip().rpartition("\n")[2])
            return found
        except ValueError:
            raise HostError(f"{self.name}: {what}: not an answer: {answer.stdout[-200:]!r}", self.name) from None


class Package(Struct, frozen=True):
    """The runner's files, to be sent to hosts."""

    name: str
    digest: str
    text: str
    """As base64 of a compressed tar."""


def pack(files: Iterable[tuple[str, bytes]], digest: str) -> Package:
    """The runner's files as a package."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        for directory in ("rota", "rota/runner"):
            entry = tarfile.TarInfo(directory)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o700
            tar.addfile(entry)
        for name, content in [("rota/__init__.py", b""), *((f"rota/runner/{name}", data) for name, data in files)]:
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), 0o600
            tar.addfile(entry, io.BytesIO(content))
    return Package(f"runner-{digest[:16]}", digest, base64.encodebytes(out.getvalue()).decode())


class FarmDriver:
    """Runner processes on hosts. What was started is written down here, in a file for each tag, before it is."""

    def __init__(
        self,
        hosts: Mapping[str, Host],
        package: Package,
        facts: Callable[[], SiteFacts],
        directory: str,
        *,
        poll_s: float = 30.0,
    ) -> None:
        self.hosts = hosts
        self.former: dict[str, Host] = {}
        """Hosts that are in the configuration no more, and of which something is written down: they get no runners."""
        self.package = package
        self._facts = facts
        self._directory = directory
        self._poll_s = poll_s
        self._looked: dict[str, float] = {}
        """Host → when its runners were last looked at."""
        self._looking: set[str] = set()
        self._slots = asyncio.Semaphore(AT_ONCE)
        self.files: dict[str, dict[str, str]] = {}
        """Tag → the files that its runner is to find."""
        self.unsent: dict[str, str] = {}
        """Directory of a runner that is over → the reports that it could not send."""
        self.last: dict[str, str] = {}
        """Tag → the last line that its runner wrote."""

    def facts(self) -> SiteFacts:
        """What the hosts offer."""
        return self._facts()

    # ---- hosts ------------------------------------------------------------------------------------------------------

    async def probe(self) -> None:
        """Ask every host what it has."""
        await asyncio.gather(*(self._probe(host) for host in self.hosts.values()))

    async def _probe(self, host: Host) -> None:
        async with self._slots:
            try:
                await host.prepare(self.package)
                found = await host.ask(self.package, "probe", PROBE_S, directory=host.directory)
                host.hardware = msgspec.convert(found, Hardware)
                host.sees(None)
            except (RotaError, msgspec.ValidationError) as error:
                host.sees(_words(host, error))

    async def ask(self, host: Host, what: str, timeout_s: float, **more: Any) -> dict[str, Any]:
        """Ask a host; that it cannot be reached is noted."""
        async with self._slots:
            try:
                return await host.ask(self.package, what, timeout_s, **more)
            except UnreachableError as error:
                host.sees(_words(host, error))
                raise

    # ---- allocations ------------------------------------------------------------------------------------------------

    async def submit(self, ask: Ask) -> list[str]:
        """Start a runner on the host that the options name."""
        name = dict(ask.options).get("partition", "")
        host = self.hosts.get(name)
        if host is None:
            raise HostError(f"there is no host {name} any more", name)
        files = self.files.pop(ask.tag, {})
        place = posixpath.join(host.directory or "", ask.tag)
        kept = self._keep(ask.tag, Runner(name, place, target=host.transport.host))
        try:
            found = await self.ask(
                host, "start", START_S, tag=ask.tag, directory=place, files={**files, "script.sh": ask.script},
                script="script.sh",
            )  # fmt: skip
        except UnreachableError as error:
            if error.ran:  # it may have been started: that is known once the host is there again
                return await self._settle(ask.tag, host)
            self._forget(ask.tag)
            raise HostError(str(error), name) from None
        except HostError as error:
            host.sees(str(error))
            self._forget(ask.tag)
            raise
        return [self._keep(ask.tag, _started(kept, found)).native]

    async def _settle(self, tag: str, host: Host) -> list[str]:
        found = await self.find(tag, 1)
        if found is None:
            raise HostError(f"{host.name}: the connection was lost before a runner was started", host.name)
        return found

    async def find(self, tag: str, count: int) -> list[str] | None:
        """Ask the host where it was to be started, for as long as that takes."""
        kept = self.kept(tag)
        host = self._host_of(kept)
        if kept is None or host is None:
            return None
        while True:
            try:
                known = _known(kept) if kept.pid else None
                found = (await self.ask(host, "look", LOOK_S, directory=host.directory, tags={tag: known}))[tag]
                break
            except RotaError:
                await asyncio.sleep(FIND_AGAIN_S)
        if found["state"] != "run":
            self._forget(tag)
            return None
        if "pid" in found:
            kept = self._keep(tag, _started(kept, found))
        return [kept.native]

    async def terminate(self, known: Known) -> bool:
        """TERM to the runner: it ends its jobs, reports, and leaves."""
        kept = self.kept(known.tag)
        host = self._host_of(kept)
        if kept is None or host is None:
            return True
        self.doubt(known)
        try:
            await self.ask(host, "end", START_S, **_known(kept))
        except RotaError:
            return False
        return True

    def doubt(self, known: Known) -> None:
        """Look at the host of an allocation at the next poll."""
        kept = self.kept(known.tag)
        if kept is not None:
            self._looked.pop(kept.host, None)

    async def poll(self, known: Sequence[Known]) -> list[Observation]:
        """Look at runners, all of a host at once, every now and then. Of a host that is not there nothing is told."""
        by_host: dict[str, list[tuple[Known, Runner]]] = {}
        out: list[Observation] = []
        for each in known:
            kept = self.kept(each.tag)
            if kept is None or self._host_of(kept) is None:
                words = "nothing is written down of it here" if kept is None else f"{kept.host} is no host any more"
                out.append(Observation(each.id, "unsure", each.native_id, words))
            else:
                by_host.setdefault(kept.host, []).append((each, kept))
        now = time.monotonic()
        due = [
            name
            for name in by_host
            if name not in self._looking and now - self._looked.get(name, -self._poll_s) >= self._poll_s
        ]
        looks = [(self._host_of(by_host[name][0][1]), by_host[name]) for name in due]
        for found in await asyncio.gather(*(self._look(host, rows) for host, rows in looks if host is not None)):
            out += found
        return out

    async def _look(self, host: Host, rows: list[tuple[Known, Runner]]) -> list[Observation]:
        self._looked[host.name] = time.monotonic()
        self._looking.add(host.name)
        try:
            tags = {each.tag: _known(kept) for each, kept in rows}
            told = await self.ask(host, "look", LOOK_S, directory=host.directory, tags=tags)
        except RotaError:
            return []
        finally:
            self._looking.discard(host.name)
        return [self._observe(each, kept, told[each.tag]) for each, kept in rows if each.tag in told]

    def _observe(self, each: Known, kept: Runner, told: dict[str, Any]) -> Observation:
        state = told["state"]
        if state == "run":
            return Observation(each.id, "run", kept.native)
        if state == "stuck":
            return Observation(each.id, "unsure", kept.native, f"{kept.host}: processes of it cannot be ended")
        self.unsent.update(told.get("unsent") or {})
        if told.get("last"):
            self.last[each.tag] = told["last"]
        if state == "rebooted":
            words, why = f"{kept.host} was started anew, and its runner is gone", "node-fail"
            return Observation(each.id, "fail", kept.native, words, Outcome(why=why))
        return Observation(each.id, "complete", kept.native, f"its runner on {kept.host} is gone", Outcome(why="host"))

    def came_to_nothing(self, known: Known) -> str | None:
        """A runner was started and never called: leave its host alone for a while; the last line that it wrote."""
        host = self._host_of(self.kept(known.tag))
        last = self.last.pop(known.tag, None)
        if host is not None:
            host.failures += 1
            wait = min(FAILED_MOST_S, FAILED_S * 2.0 ** (host.failures - 1))
            host.left_alone_until = time.monotonic() + wait
            host.sees(f"its runner did not come up: {last or 'it wrote nothing'}; next try in {wait:.0f} s")
        return last

    # ---- files ------------------------------------------------------------------------------------------------------

    def named(self, name: str) -> Host | None:
        """The host of a name, or that calls itself so."""
        if (host := self.hosts.get(name)) is not None:
            return host
        for host in (*self.hosts.values(), *self.former.values()):
            if host.name == name or (host.hardware is not None and host.hardware.host == name):
                return host
        return None

    async def read(self, name: str, path: str, offset: int, limit: int) -> bytes | None:
        """A stretch of a file of ours on a host; None: it is none of these."""
        host = self.named(name)
        if host is None:
            return None
        out = b""
        while len(out) < limit:
            more = {"path": path, "offset": offset + len(out), "limit": limit - len(out)}
            data = base64.b64decode((await self.ask(host, "read", START_S, **more))["data"])
            out += data
            if not data:
                break
        return out

    def over(self, live: Container[str]) -> list[str]:
        """The tags of runners that are over: those that are written down and are none of these."""
        return [tag for tag in self.all_kept() if tag not in live]

    async def clean(self, tags: Iterable[str], named: Iterable[str]) -> int:
        """Remove from hosts what runners with these tags have left, unless one of the named directories is in it.

        Returns how many; what is on a host that does not answer stays until the next time.
        """
        used = {word for path in named for word in path.split("/")}
        rows: dict[str, list[tuple[str, Runner]]] = {}
        for tag in tags:
            if tag not in used and (kept := self.kept(tag)) is not None:
                rows.setdefault(kept.host, []).append((tag, kept))
        return sum(await asyncio.gather(*(self._clean(each) for each in rows.values())))

    async def _clean(self, rows: list[tuple[str, Runner]]) -> int:
        host = self._host_of(rows[0][1])
        if host is None or (host.name in self.hosts and host.why is not None):
            return 0
        try:
            found = await self.ask(host, "clean", SEND_S, places=[runner.directory for _, runner in rows])
        except RotaError:
            return 0
        gone = [tag for tag, runner in rows if runner.directory in found["gone"]]
        for tag in gone:
            self._forget(tag)
        return len(gone)

    def _host_of(self, kept: Runner | None) -> Host | None:
        """The host of a runner, also one that is in the configuration no more."""
        if kept is None:
            return None
        return self.hosts.get(kept.host) or self.former.get(kept.host)

    def all_kept(self) -> dict[str, Runner]:
        """Tag → what is written down of it."""
        names = sorted(name.removesuffix(".json") for name in os.listdir(self._directory) if name.endswith(".json"))
        return {tag: kept for tag in names if (kept := self.kept(tag)) is not None}

    def _path(self, tag: str) -> str:
        return os.path.join(self._directory, f"{tag}.json")

    def _keep(self, tag: str, runner: Runner) -> Runner:
        path = self._path(tag)
        with open(f"{path}.new", "wb") as file:
            file.write(msgspec.json.encode(runner))
            file.flush()
            os.fsync(file.fileno())
        os.replace(f"{path}.new", path)
        return runner

    def kept(self, tag: str) -> Runner | None:
        """What is written down of a tag."""
        if len(tag) != 12 or not tag.isalnum():
            return None
        try:
            with open(self._path(tag), "rb") as file:
                return msgspec.json.decode(file.read(), type=Runner)
        except FileNotFoundError:
            return None

    def _forget(self, tag: str) -> None:
        try:
            os.unlink(self._path(tag))
        except FileNotFoundError:
            return


def _started(kept: Runner, found: Mapping[str, Any]) -> Runner:
    return replace(kept, pid=found["pid"], start=found["start"], boot=found["boot"])


def _known(runner: Runner) -> dict[str, Any]:
    return {"pid": runner.pid, "start": runner.start, "boot": runner.boot}


def _words(host: Host, error: Exception) -> str:
    """What an error says, on one line."""
    return " ".join(str(error).split())[:300] or type(error).__name__
