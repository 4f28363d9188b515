"""The allocation that the manager runs in, as a site: it is given and not asked for (`rota pilot`)."""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from rota.drivers.allocation import HERE, Given, Node, short
from rota.drivers.api import Ask, Known
from rota.drivers.given import SCRIPT, SWEEP, GivenDriver
from rota.drivers.local import Door
from rota.drivers.script import ELEMENT, NODE, Spread, build_script
from rota.manager.config import SiteConfig
from rota.manager.lock import boot_id
from rota.manager.paths import Paths
from rota.manager.sites.api import Site
from rota.manager.sites.doors import TlsDoor, UnixDoor
from rota.manager.sites.installing import install_runner, runner_digest
from rota.manager.sites.queues import UNKNOWN
from rota.model.allocation import Allocation
from rota.model.errors import RotaError
from rota.model.needs import Amounts, named_resources
from rota.model.site import SiteFacts
from rota.runner import host
from rota.wire.files import read_bounded
from rota.wire.home import read_own, write_private

__all__ = ["DRIVER", "PILOT", "GivenSite", "Pilot", "read_pilot", "write_pilot"]

DRIVER = "given"
PILOT = "pilot"
"""The name of the site."""
LINGER_S = 600
"""How long a runner with nothing to do stays: nobody else could use its node, but a manager may be gone for good."""


class Pilot(Struct, frozen=True):
    """What `rota pilot` tells its manager (`pilot.json`)."""

    given: Given
    here: str
    """The name of this host in the allocation."""
    margin_s: float = 0.0
    """How long before its end all is ended."""
    env: dict[str, str] = {}
    """Variables that all its jobs have."""
    away: tuple[str, ...] = ()
    """Hosts that were asked for and do not answer, each with why: the pilot goes on without them."""
    node_resources: dict[str, int] = {}
    """Named resources of each node."""
    resources: dict[str, int] = {}
    """Named resources of all nodes together."""

    @property
    def stop_at(self) -> float | None:
        """When all is ended, by the clock of the wall."""
        return None if self.given.until is None else self.given.until - self.margin_s


def write_pilot(paths: Paths, pilot: Pilot) -> None:
    """Tell the next manager of a home which allocation is its own."""
    write_private(paths.pilot, msgspec.json.encode(pilot) + b"\n")


def read_pilot(paths: Paths) -> Pilot | None:
    """Which allocation the manager of a home is for; None: it is an ordinary one."""
    try:
        return msgspec.json.decode(read_own(paths.pilot, 64 << 20), type=Pilot)
    except FileNotFoundError:
        return None
    except msgspec.MsgspecError as error:
        raise RotaError(f"{paths.pilot} is not what rota wrote there: {error}; remove it, and begin again") from None


class GivenSite(Site):
    """One allocation: ours. It is started once there is work, with all its nodes."""

    driver: GivenDriver
    answers_at_once = False
    env_style = ("slurm", "qcg")
    verb_of_submitted = "run"

    def __init__(self, name: str, config: SiteConfig, paths: Paths, tls: TlsDoor, pilot: Pilot) -> None:
        self.name = name
        self.config = config
        self._pilot = pilot
        self.env = pilot.env
        given = pilot.given
        self._is_here = given.spread == HERE
        self.door: Door = UnixDoor(paths) if self._is_here else tls
        self.directory = os.path.join(paths.home, "sites", name)
        os.makedirs(self.directory, 0o700, exist_ok=True)
        self._program = os.path.join(install_runner(paths.home), "__main__.py")
        free = os.statvfs(paths.home)
        self._disk = free.f_bavail * free.f_frsize
        nodes = tuple(self._amounts(node) for node in given.used)
        largest = Amounts(*(max(getattr(node, word) for node in nodes) for word in ("cores", "memory", "disk", "gpus")))
        largest = replace(largest, named=nodes[0].named)
        self._facts = SiteFacts(
            largest,
            tuple(config.tags),
            linger_s=LINGER_S,
            directory=self.directory,
            shared=named_resources(pilot.resources),
            nodes_most=len(nodes),
            given=nodes,
        )
        self.driver = self._make_driver()

    def _make_driver(self) -> GivenDriver:
        return GivenDriver(self._facts, self._pilot.given, self.directory, boot_id())

    def _amounts(self, node: Node) -> Amounts:
        memory = node.memory
        if memory is None:
            memory = host.memory() if self._is_here else UNKNOWN.memory
        return Amounts(node.cores * 1000, memory, self._disk, node.gpus, named_resources(self._pilot.node_resources))

    def facts(self) -> SiteFacts:
        """The nodes of the allocation."""
        return self.driver.facts()

    def watch(self, wake: Callable[[], None]) -> None:
        """Call `wake` at the end of the launcher."""
        self.driver.on_end = wake

    def output_of(self, tag: str, runner: str) -> str:
        """Runners have theirs in the directory of their allocation."""
        return os.path.join(self.directory, tag)

    async def submit(
        self, tag: str, allocations: Sequence[Allocation], leases: Mapping[int, dict[str, Any]]
    ) -> list[str]:
        """Write the scripts, and start the launcher."""
        directory = os.path.join(self.directory, tag)
        os.makedirs(directory, 0o700, exist_ok=True)
        for name, script in self._scripts(tag, directory, allocations[0]).items():
            write_private(os.path.join(directory, name), script.encode())
        ids = tuple(allocation.id for allocation in allocations)
        return await self.driver.submit(Ask(tag, "rota", ids, allocations[0].capacity, "", directory))

    def _scripts(self, tag: str, directory: str, allocation: Allocation) -> dict[str, str]:
        given, digest = self._pilot.given, runner_digest()
        where = os.path.join(directory, ELEMENT)
        if len(given.used) > 1:
            words = [self._program, "--supervise", "--id", f"{tag}.{ELEMENT}.{NODE}"]
            words += ["--output", os.path.join(where, NODE)]
        else:
            words = [self._program, "--nonce", "yes", "--id", f"{tag}.{ELEMENT}.0", "--output", where]
        words += ["--allocation", allocation.id, *self.door.open(allocation.id), "--disk", str(self._disk)]
        if (stop_at := self._pilot.stop_at) is not None:
            words += ["--until", str(int(stop_at))]
        for word in self.config.tags:
            words += ["--tag", word]
        words += ["--goes-on", "yes", "--guard", "yes", "--launcher", "auto"]
        title = "rota: runners of the pilot"
        if self._is_here:
            script = build_script([*words, *_granted(given.used[0])], title=title, python=sys.executable, digest=digest)
            return {SCRIPT: script}
        per_node = {node.name: _granted(node) if node.cores else None for node in given.nodes}
        spreads = {name: self._spread(os.path.join(directory, name)) for name in (SCRIPT, SWEEP)}
        started = spreads[SCRIPT]._replace(once=os.path.join(directory, "started"))
        swept = [self._program, "--sweep", tag]
        return {
            SCRIPT: build_script(
                words, title=title, python=sys.executable, digest=digest, per_node=per_node, spread=started
            ),
            SWEEP: build_script(
                swept,
                title="rota: ends what the pilot has left on a node",
                python=sys.executable,
                digest=digest,
                per_node={name: () if words is not None else None for name, words in per_node.items()},
                spread=spreads[SWEEP],
            ),
        }

    def _spread(self, path: str) -> Spread:
        given = self._pilot.given
        hosts = tuple(node.name for node in given.nodes)
        here = next((name for name in hosts if short(name) == short(self._pilot.here)), "")
        return Spread(given.spread, path, f"{path}.out", len(hosts), hosts, here)

    async def last_output(self, known: Known) -> str | None:
        """The last line that the launcher wrote: why a runner did not come up."""
        data = read_bounded(os.path.join(self.directory, known.tag, f"{known.tag}.out"))
        lines = (data or b"").decode(errors="replace").strip().splitlines()
        return lines[-1][-300:] if lines else None


def _granted(node: Node) -> list[str]:
    """What the runner of a node is told that it has."""
    words = ["--cores", str(node.cores * 1000), "--gpus", str(node.gpus)]
    return words if node.memory is None else [*words, "--memory", str(node.memory)]
