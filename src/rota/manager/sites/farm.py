"""A farm: hosts that are reached by ssh, each a place of its own where a runner is started on demand."""

import asyncio
import contextlib
import os
import posixpath
import re
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from rota.drivers.api import Ask, Known
from rota.drivers.farm import FarmDriver, Host, HostError, pack
from rota.drivers.gate import Health
from rota.drivers.script import build_script
from rota.drivers.ssh import SshTransport
from rota.manager.config import Config, SiteConfig
from rota.manager.paths import Paths
from rota.manager.sites.api import Site
from rota.manager.sites.doors import TlsDoor
from rota.manager.sites.installing import runner_digest, runner_files
from rota.manager.sites.queues import UNKNOWN, queue_row
from rota.manager.sites.reaching import way_here
from rota.model.allocation import Allocation
from rota.model.amounts import format_duration, parse_cores, parse_size
from rota.model.errors import UsageError
from rota.model.needs import Amounts, named_resources
from rota.model.site import QueueFacts, SiteFacts
from rota.wire.files import BadFileError, Left, decode_left

__all__ = ["DRIVER", "FarmSite", "HostLine", "check_hosts", "read_hosts"]

DRIVER = "ssh"
NAME = re.compile(r"[A-Za-z0-9][\w.-]*", re.ASCII)
KEYS = ("cores", "memory", "gpus", "tags", "directory", "python")
REFRESH_S = 60.0
"""How often hosts are asked what they have."""
FIRST_S = 30.0
"""How long a submission waits for hosts that nobody has asked yet."""
DOWN_S = 15.0
"""How often, while one of them is not there."""


class HostLine(Struct, frozen=True):
    """What is said of a host: `ann@node3 cores=8 memory=16G tags=big,ssd`."""

    name: str
    target: str
    """What ssh is told."""
    cores: int | None = None
    memory: int | None = None
    gpus: int | None = None
    tags: tuple[str, ...] = ()
    directory: str | None = None
    python: str | None = None


def read_hosts(config: SiteConfig) -> dict[str, HostLine]:
    """The hosts of a site by name, from its list and its file. Raises UsageError, with the line."""
    lines = [(f"hosts: {line!r}", line) for line in config.hosts]
    if config.hosts_file is not None:
        path = os.path.expanduser(config.hosts_file)
        try:
            with open(path, encoding="utf-8") as file:
                text = file.read()
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"hosts_file {path}: {error}") from None
        for number, line in enumerate(text.splitlines(), 1):
            if line := line.partition("#")[0].strip():
                lines.append((f"{path}, line {number}", line))
    found: dict[str, HostLine] = {}
    for where, line in lines:
        host = _read_host(where, line)
        if host.name in found:
            raise UsageError(f"{where}: {host.name} is there twice: its cores would be given out twice")
        found[host.name] = host
    if not found:
        raise UsageError('no hosts: give hosts = ["node1", "ann@node2"], or hosts_file')
    return found


def _read_host(where: str, line: str) -> HostLine:
    target, *pairs = line.split() or [""]
    name = target.rpartition("@")[2]
    if not NAME.fullmatch(name) or target.startswith("-"):
        raise UsageError(f"{where}: '{target}' is no host: write NAME or USER@NAME; ports and keys go to ~/.ssh/config")
    given: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if key not in KEYS or not equals or not value:
            raise UsageError(f"{where}: '{pair}': after the host stand {', '.join(f'{each}=…' for each in KEYS)}")
        try:
            given[key] = _read_value(key, value)
        except (UsageError, ValueError) as error:
            raise UsageError(f"{where}: {key}: {error}") from None
    return HostLine(name, target, **given)


def _read_value(key: str, value: str) -> Any:
    if key == "cores":
        return parse_cores(value)[0]
    if key == "memory":
        return parse_size(value)
    if key == "gpus":
        return int(value)
    if key == "tags":
        return tuple(value.split(","))
    if key == "directory" and not value.startswith("/"):
        raise ValueError(f"'{value}': give an absolute path")
    return value


def check_hosts(config: Config, path: str) -> None:
    """Refuse a host that is in two sites: each would give out all of it."""
    seen: dict[str, str] = {}
    for name, site in config.site.items():
        if site.driver != DRIVER:
            continue
        try:
            hosts = read_hosts(site)
        except UsageError as error:
            raise UsageError(f"{path}: [site.{name}] {error}") from None
        for host in hosts:
            if host in seen:
                words = f"{host} is a host of [site.{seen[host]}] too: both would give out its cores"
                raise UsageError(f"{path}: [site.{name}] {words}")
            seen[host] = name


class FarmSite(Site):
    """Hosts by ssh. Each is a queue of the site, with one allocation at the most: its runner, which has all of it."""

    driver: FarmDriver
    answers_at_once = False
    verb_of_submitted = "run"

    def __init__(self, name: str, config: SiteConfig, paths: Paths, tls: TlsDoor) -> None:
        self.name = name
        self.config = config
        self.door = tls
        self._paths = paths
        self.directory = os.path.join(paths.home, "sites", name)
        os.makedirs(self.directory, 0o700, exist_ok=True)
        self._lines = read_hosts(config)
        hosts = {
            line.name: Host(
                line.name,
                SshTransport(line.target, options=tuple(config.ssh_options)),
                line.directory or config.directory,
                line.python or config.python,
            )
            for line in self._lines.values()
        }
        self._learned = False
        self._asked: asyncio.Event | None = None
        self._notes: list[str] = []
        poll_s = float(config.seconds("poll") or 30)
        self._refresh_s = min(REFRESH_S, poll_s * 2)
        package = pack(runner_files(), runner_digest())
        self.driver = FarmDriver(hosts, package, self.facts, self.directory, poll_s=poll_s)
        for kept in self.driver.all_kept().values():
            if kept.host not in hosts:
                transport = SshTransport(kept.target or kept.host, options=tuple(config.ssh_options))
                directory = posixpath.dirname(kept.directory)
                self.driver.former[kept.host] = Host(kept.host, transport, directory, config.python)

    @property
    def learn_again_s(self) -> float:  # type: ignore[override]
        """Sooner while a host is not there: it may come back any time."""
        well = all(host.why is None for host in self.driver.hosts.values())
        return self._refresh_s if well else min(DOWN_S, self._refresh_s)

    # ---- what it offers ---------------------------------------------------------------------------------------------

    def facts(self) -> SiteFacts:
        """The hosts."""
        queues = tuple(self._queue(host) for host in self.driver.hosts.values())
        nodes = [queue.node for queue in queues]
        largest = Amounts(*(max(getattr(node, word) for node in nodes) for word in ("cores", "memory", "disk", "gpus")))
        return SiteFacts(
            largest,
            tuple(self.config.tags),
            self.config.most or len(queues),
            self.config.linger_s,
            queues=queues,
            shared=named_resources(self.config.resources),
            hosts=True,
        )

    def first_facts(self) -> SiteFacts:
        """All hosts, none of which has answered."""
        return self.facts()

    def _queue(self, host: Host) -> QueueFacts:
        up = host.is_up()
        why = "" if up else host.why or "is left alone for a while: its runner did not come up"
        tags = tuple(dict.fromkeys((*self.config.tags, *self._lines[host.name].tags)))
        return QueueFacts(host.name, self.node_of(host), 1, None, False, up, tags, up, 1, most=1, why=why)

    def node_of(self, host: Host) -> Amounts:
        """What a host has, or what the configuration leaves of it."""
        line, found = self._lines[host.name], host.hardware
        node = found.amounts if found is not None else UNKNOWN
        cores = line.cores if line.cores is not None else self.config.cores
        memory = line.memory if line.memory is not None else self.config.memory
        return Amounts(
            node.cores if cores is None else cores,
            node.memory if memory is None else memory,
            node.disk - node.disk % (1 << 30) if node.disk > 1 << 30 else node.disk,
            node.gpus if line.gpus is None else line.gpus,
            named_resources(self.config.node_resources),
        )

    async def learn(self) -> SiteFacts:
        """Ask all hosts what they have, and whether they are there."""
        await self.driver.probe()
        self._learned = True
        if self._asked is not None:
            self._asked.set()
        return self.facts()

    async def known(self) -> None:
        """Wait until hosts have been asked for the first time, or for a while."""
        if not self._learned:
            self._asked = self._asked or asyncio.Event()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._asked.wait(), FIRST_S)

    def is_other(self, config: SiteConfig) -> bool:
        """Whether its file has other hosts."""
        return read_hosts(config) != self._lines

    def take_over(self, earlier: Site) -> None:
        """Keep what hosts have said."""
        if isinstance(earlier, FarmSite):
            known = {**earlier.driver.former, **earlier.driver.hosts}
            for name, host in [*self.driver.hosts.items(), *self.driver.former.items()]:
                if (before := known.get(name)) is not None:
                    host.hardware, host.why, host.since = before.hardware, before.why, before.since

    # ---- allocations ------------------------------------------------------------------------------------------------

    async def submit(
        self, tag: str, allocations: Sequence[Allocation], leases: Mapping[int, dict[str, Any]]
    ) -> list[str]:
        """Start a runner on each host that was chosen."""
        found = []
        for allocation in allocations:
            found.append(await self._start(tag, allocation))
        return found

    async def _start(self, tag: str, allocation: Allocation) -> str:
        host = self.driver.hosts.get(allocation.queue or "")
        if host is None:
            raise HostError(f"site {self.name} has no host {allocation.queue}", allocation.queue or "")
        if host.directory is None or host.hardware is None:
            await self.driver.probe()
            if host.hardware is None or host.directory is None:
                raise HostError(f"{host.name}: {host.why}", host.name)
        place = posixpath.join(host.directory, tag)
        words = [host.program(self.driver.package), "--nonce", "yes", "--id", f"{tag}.0.0"]
        words += ["--output", posixpath.join(place, "0"), "--allocation", allocation.id]
        words += self._way(host, tag, allocation.id, place)
        node, line = allocation.capacity, self._lines[host.name]
        for word in ("cores", "memory", "disk", "gpus"):
            words += [f"--{word}", str(getattr(node, word))]
        for word in dict.fromkeys((*self.config.tags, *line.tags)):
            words += ["--tag", word]
        words += ["--launcher", "none", "--guard", "yes"]
        script = build_script(
            words,
            title=f"rota: the runner of {self.name} on {host.name}",
            python=line.python or self.config.python,
            digest=self.driver.package.digest,
        )
        ask = Ask(tag, "rota", (allocation.id,), node, script, place, options=(("partition", host.name),))
        return (await self.driver.submit(ask))[0]

    def _way(self, host: Host, tag: str, allocation: str, place: str) -> list[str]:
        """The words that lead the runner to us, and the files that they name.

        Unless the configuration says at which address we listen, it is the one that the host sees us come from.
        """
        caller = host.hardware.caller if host.hardware is not None else ""
        words, self.driver.files[tag] = way_here(self.door, self._paths, allocation, place, caller)
        return words

    def doubt(self, known: Known) -> None:
        """Look at its host at the next poll."""
        self.driver.doubt(known)

    # ---- what allocations leave -------------------------------------------------------------------------------------

    def output_of(self, tag: str, runner: str) -> str:
        """Runners have theirs on their host, in the directory of their allocation."""
        kept = self.driver.kept(tag)
        return posixpath.join(kept.directory, "0") if kept is not None else posixpath.join("/", "nonexistent", tag)

    def unsent(self, output: str) -> Left | None:
        """The reports that its host found when its runner was over."""
        text = self.driver.unsent.pop(output, None)
        try:
            return None if text is None else decode_left(text.encode())
        except BadFileError:
            return None

    async def last_output(self, known: Known) -> str | None:
        """The last line of a runner that never called; its host is left alone for a while."""
        return self.driver.came_to_nothing(known)

    def over(self, live: Container[str]) -> list[str]:
        """The tags of runners that are over."""
        return self.driver.over(live)

    async def clear(self, tags: Sequence[str], named: Iterable[str]) -> int:
        """Remove their directories from their hosts."""
        return await self.driver.clean(tags, named)

    async def read_output(self, host: str, path: str, offset: int, limit: int) -> bytes | None:
        """What a job wrote on its host."""
        return await self.driver.read(host, path, offset, limit)

    # ---- what people see --------------------------------------------------------------------------------------------

    def health(self) -> Health:
        """Well, if any host is there."""
        hosts = self.driver.hosts.values()
        down = [host for host in hosts if host.why is not None]
        if not self._learned:
            return Health("new")
        if len(down) == len(hosts):
            return Health("failing", f"no host is there: {down[0].why}", max(host.since for host in down))
        return Health("ok")

    def trouble(self, wall: float) -> str | None:
        """That no host is there, and since when."""
        health = self.health()
        if health.state != "failing":
            return None
        return f"{self.name}: {health.why} (for {format_duration(max(0, round(wall - (health.since or wall))))})"

    def shown(self, wall: float) -> dict[str, Any]:
        """The hosts, and why some are not there."""
        notes = [
            f"{host.name} is not there since {format_duration(max(0, round(wall - host.since)))}: {host.why}"
            for host in self.driver.hosts.values()
            if host.why is not None and self._learned
        ]
        return {"queues": [queue_row(queue) for queue in self.facts().queues], "notes": [*self._notes, *notes]}

    def note(self, words: str) -> None:
        """Show some words with the site."""
        self._notes = [*self._notes[-4:], words]
