"""The plugin of StreamFlow: rota's scheduler, policies, binding filters, and a connector that runs commands as jobs.

StreamFlow finds it by an entry point of the group `unito.streamflow.plugin`. Its own objects (Job, Hardware,
BindingConfig, locations) are used as they are.
"""

import asyncio
import weakref
from collections.abc import Sequence
from typing import Any

from streamflow.core import scheduling
from streamflow.core.workflow import Status as EngineStatus
from streamflow.data.remotepath import StreamFlowPath
from streamflow.deployment.filter import binding_filter_classes
from streamflow.ext.plugin import StreamFlowPlugin
from streamflow.scheduling.policy import policy_classes

from rota.placement.errors import PlacementError
from rota.placement.filters import BINDING_FILTERS
from rota.placement.jobs import JobAllocation, Status
from rota.placement.leftovers import MIB
from rota.placement.levels import identity, levels
from rota.placement.locations import stack
from rota.placement.offers import Offer
from rota.placement.plugins import Parts
from rota.placement.policies import POLICIES
from rota.placement.scheduler import DefaultScheduler
from rota.placement.streamflow_connector import RotaConnector
from rota.placement.usage import Way

__all__ = ["RotaPlugin", "RotaScheduler"]

DEPTH = 16
"""Levels of a stack whose paths are looked up."""


class EngineParts(Parts):
    """Policies and binding filters: rota's, then those that StreamFlow and its plugins have."""

    def classes(self, what: str) -> dict[str, type]:
        """Type → class."""
        theirs, ours = (policy_classes, POLICIES) if what == "policy" else (binding_filter_classes, BINDING_FILTERS)
        return {**theirs, **ours}


class RotaScheduler(DefaultScheduler, scheduling.Scheduler):
    """rota's scheduler as StreamFlow's."""

    def __init__(
        self, context: Any, retry_delay: float = 0, reserve_after: float = 60.0, refresh_after: float = 1.0
    ) -> None:
        super().__init__(context, retry_delay, reserve_after, refresh_after)
        self._real: dict[tuple[str, str], str] = {}
        """(location, path) → the path without symbolic links."""
        self.usage.real = lambda location, path: self._real.get((identity(location), path), path)
        _schedulers.add(self)

    def _parts(self) -> Parts:
        return EngineParts()

    def _nothing(self) -> Any:
        return scheduling.Hardware()

    def _status(self, status: Status) -> Any:
        return EngineStatus(status.value)

    async def _resolve(self, way: Way, offer: Offer) -> None:
        """Look up where the paths of a way really are, at every level of every location."""
        await asyncio.gather(*(self._resolve_at(way, location) for location in offer.locations.values()))

    async def _resolve_at(self, way: Way, location: Any) -> None:
        known = {identity(each): each for each in stack(location)}
        for _ in range(DEPTH):
            missing: dict[tuple[str, str], None] = {}

            def real(at: Any, path: str, missing: dict[tuple[str, str], None] = missing) -> str:
                key = (identity(at), path)
                if key not in self._real:
                    missing[key] = None
                return self._real.get(key, path)

            try:
                levels(location, way.hardware, real)
            except PlacementError:  # a mount that is not there, unless a link leads to one
                pass
            if not missing:
                return
            for name, path in missing:
                self._real[name, path] = await self._real_path(known[name], path)

    async def _real_path(self, location: Any, path: str) -> str:
        """A path of a location with the links of what exists of it followed."""
        current, rest = StreamFlowPath(path, context=self.context, location=location.location), []
        while (found := await current.resolve()) is None:
            if current.parent == current:
                return path
            rest.append(current.name)
            current = current.parent
        return str(found.joinpath(*reversed(rest)))

    async def _measure(self, allocation: JobAllocation, location: Any, paths: Sequence[str]) -> dict[str, float]:
        sizes = {}
        for path in paths:
            at = StreamFlowPath(path, context=self.context, location=location)
            sizes[path] = (await at.size() if await at.exists() else 0) / MIB
        return sizes


_schedulers: "weakref.WeakSet[RotaScheduler]" = weakref.WeakSet()


def _asked(job_name: str) -> Any:
    """The hardware that a job was given by a scheduler of this process; None: by none of ours."""
    for scheduler in list(_schedulers):
        allocation = scheduler.job_allocations.get(job_name)
        if allocation is not None:
            return allocation.hardware
    return None


RotaConnector.asked = staticmethod(_asked)


class RotaPlugin(StreamFlowPlugin):
    """What StreamFlow gets: scheduler and connector `rota`, policies and binding filters `rota.NAME`."""

    def register(self) -> None:
        """Enter all of it."""
        self.register_scheduler("rota", RotaScheduler)
        self.register_connector("rota", RotaConnector)
        for name, policy in POLICIES.items():
            self.register_policy(f"rota.{name}", policy)
        for name, made in BINDING_FILTERS.items():
            self.register_binding_filter(f"rota.{name}", made)
