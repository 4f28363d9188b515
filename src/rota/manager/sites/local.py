"""This machine as a site: one allocation, a runner process that outlives the manager."""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rota.drivers.api import Ask
from rota.drivers.local import Door, LocalDriver
from rota.manager.config import SiteConfig
from rota.manager.paths import Paths
from rota.manager.sites.api import Site
from rota.manager.sites.doors import UnixDoor
from rota.model.allocation import Allocation
from rota.model.errors import UsageError
from rota.model.needs import Amounts, named_resources
from rota.model.site import SiteFacts
from rota.runner import host

__all__ = ["LocalSite"]


class LocalSite(Site):
    """This machine, or what the configuration leaves of it."""

    driver: LocalDriver
    answers_at_once = True
    verb_of_submitted = "run"

    def __init__(self, name: str, config: SiteConfig, paths: Paths, tls: Door) -> None:
        options, where = config.options, f"{paths.config}: [site.{name}.options]"
        if unknown := set(options) - {"gpus", "connect"}:
            raise UsageError(f"{where} {', '.join(sorted(unknown))}: the driver local has gpus, connect")
        if options.get("connect", "unix") not in ("unix", "tls"):
            raise UsageError(f"{where} connect: give unix or tls")
        self.name = name
        self.config = config
        self.door = tls if options.get("connect") == "tls" else UnixDoor(paths)
        free = os.statvfs(paths.home)
        node = Amounts(
            config.cores if config.cores is not None else host.cores(),
            config.memory if config.memory is not None else host.memory(),
            free.f_bavail * free.f_frsize,
            int(options.get("gpus", 0)),
            named_resources(config.node_resources),
        )
        shared = named_resources(config.resources)
        facts = SiteFacts(
            node,
            tuple(config.tags),
            linger_s=config.linger_s,
            shared=shared,
            cost=config.cost,
            paused=config.paused,
            reassign=config.reassign,
        )
        self._output = paths.output
        self.driver = LocalDriver(facts, self.door, paths.output, paths.log, launcher=config.launcher)

    def facts(self) -> SiteFacts:
        """What this machine offers: one allocation, of all of it."""
        return self.driver.facts()

    def take_over(self, earlier: Site) -> None:
        """Keep the runners: they are our children."""
        if isinstance(earlier, LocalSite):
            self.driver.take_over(earlier.driver)

    def output_of(self, tag: str, runner: str) -> str:
        """Each runner has a directory of its own."""
        return os.path.join(self._output, runner)

    def watch(self, wake: Callable[[], None]) -> None:
        """Call `wake` at the end of a runner."""
        self.driver.on_end = wake

    async def submit(
        self, tag: str, allocations: Sequence[Allocation], leases: Mapping[int, dict[str, Any]]
    ) -> list[str]:
        """Start the runner."""
        ids = tuple(allocation.id for allocation in allocations)
        return await self.driver.submit(Ask(tag, "rota", ids, allocations[0].capacity, "", "/"))
