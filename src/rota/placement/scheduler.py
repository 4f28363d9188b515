"""The seed's Scheduler: jobs are placed on locations of their targets, first come first served.

It stands on rota's ledger, its scorers and picks, and the trees in which its own loop finds who may have room.
Connectors are asked outside of every decision, and what they said is kept for a moment; a decision is checked and
booked in one step, whatever has changed while a policy was asked.
"""

import asyncio
import logging
import math
import time
from abc import ABC, abstractmethod
from collections.abc import MutableMapping, Sequence
from typing import Any

from rota.model.verdict import Verdict
from rota.placement.errors import DefinitionError, PlacementError
from rota.placement.hardware import Hardware, resources_of
from rota.placement.jobs import JobAllocation, LocationAllocation, Status
from rota.placement.leftovers import measured
from rota.placement.offers import Key, Offer, Offers
from rota.placement.plugins import Parts
from rota.placement.queue import Queue, Request
from rota.placement.usage import Held, Usage, Way, topmost

__all__ = ["DefaultScheduler", "Scheduler"]

_log = logging.getLogger("rota.placement")
ACTIVE = (Status.FIREABLE, Status.RUNNING)
ASK_AGAIN_S = 5.0
"""How long after a connector failed that somebody waits for it is asked again."""
ENDED = (Status.SKIPPED, Status.COMPLETED, Status.FAILED, Status.CANCELLED)


class Scheduler(ABC):
    """Where jobs are placed: what engines call, and what they look up."""

    def __init__(self, context: Any) -> None:
        self.context = context
        self.job_allocations: MutableMapping[str, JobAllocation] = {}
        self.location_allocations: MutableMapping[str, MutableMapping[str, LocationAllocation]] = {}

    @abstractmethod
    async def schedule(self, job: Any, binding_config: Any, hardware_requirement: Any) -> None:
        """Place a job: returns when it has its locations."""

    @abstractmethod
    async def notify_status(self, job_name: str, status: Status) -> None:
        """A job has another status; what it had is given back if it has ended."""

    @abstractmethod
    async def close(self) -> None:
        """Give up what is not needed any more."""

    def get_allocation(self, job_name: str) -> JobAllocation:
        """Where a job was placed."""
        if job_name not in self.job_allocations:
            raise PlacementError(f"Could not retrieve allocation for job {job_name}")
        return self.job_allocations[job_name]

    def get_hardware(self, job_name: str) -> Any:
        """What it was given at the first of its locations."""
        return self.get_allocation(job_name).hardware

    def get_connector(self, job_name: str) -> Any:
        """The connector of its target's deployment."""
        connector = self.context.deployment_manager.get_connector(self.get_allocation(job_name).target.deployment.name)
        if connector is None:
            raise PlacementError(f"Could not retrieve connector for job {job_name}")
        return connector

    def get_locations(self, job_name: str, statuses: Sequence[Status] | None = None) -> Any:
        """Its locations; none, if it has no status of these."""
        allocation = self.get_allocation(job_name)
        return allocation.locations if statuses is None or allocation.status in statuses else []

    def get_service(self, job_name: str) -> str | None:
        """The service of its target."""
        service: str | None = self.get_allocation(job_name).target.service
        return service


class DefaultScheduler(Scheduler):
    """First come first served, by the policy of each target's deployment.

    `retry_delay`: seconds after which whatever waits is tried again though nothing has happened (0: it is not).
    `reserve_after`: seconds after which the first in line has a location kept free for it (0: never).
    `refresh_after`: seconds for which what a connector offers is taken to be so.
    """

    def __init__(
        self, context: Any, retry_delay: float = 0, reserve_after: float = 60.0, refresh_after: float = 1.0
    ) -> None:
        super().__init__(context)
        if retry_delay < 0 or reserve_after < 0 or refresh_after < 0:
            raise DefinitionError("retry_delay, reserve_after and refresh_after are seconds, of 0 or more")
        self.retry_delay = retry_delay
        self.parts = self._parts()
        self.offers = Offers(context, refresh_after)
        self.usage = Usage(self.location_allocations)
        self.queue = Queue(self.offers, self.usage, reserve_after)
        self._pump: asyncio.Task[None] | None = None
        self._refreshing: dict[Key, asyncio.Task[None]] = {}
        """Connectors that are being asked again."""
        self._again: dict[Key, asyncio.TimerHandle] = {}
        """Connectors that failed, and will be asked again."""
        self._held_back: dict[Key, list[Request]] = {}
        """Requests that have room where a connector said so long ago: it is asked before they are placed."""
        self._fresh: set[Key] = set()
        """Connectors that have answered since the last turn."""
        self._believed: set[Key] = set()
        """Those that had answered just before this turn."""
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    def _parts(self) -> Parts:
        """Where policies and filters are found by name."""
        return Parts()

    # ---- what engines call ----

    async def schedule(self, job: Any, binding_config: Any, hardware_requirement: Any) -> None:
        """Place a job. Raises if it never can be, or if no target can be asked; cancelled, it leaves nothing behind."""
        if self._closed:
            raise PlacementError(f"job {job.name} cannot be scheduled: the scheduler is closed")
        if binding_config is None or not binding_config.targets:
            raise DefinitionError(f"job {job.name} has no targets: give at least one deployment to run on")
        targets = list(binding_config.targets)
        for config in binding_config.filters or ():
            targets = list(await self.parts.binding_filter(config).get_targets(job, targets))
        if not targets:
            raise DefinitionError(f"job {job.name}: its filters leave no target")
        for target in targets:
            self.parts.policy(target.deployment.scheduling_policy, self.usage.ledger.view)
        ways = [self._way(job, target, hardware_requirement) for target in targets]
        request = Request(job, ways, time.monotonic())
        await self._look(request)
        self._fresh.update(way.key for way in ways if way.error is None)
        if self.retry_delay == 0:
            if never := self.queue.never(request):
                raise PlacementError(never)
            if not any(self.offers.known(way.key).locations for way in ways):
                names = ", ".join(dict.fromkeys(way.target.deployment.name for way in ways))
                _log.warning(
                    "job %s waits: %s offers no location; without retry_delay it is asked again when a job has ended",
                    job.name,
                    names,
                )
        self.queue.put(request)
        try:
            self._wake()
            await request.placed
        except BaseException:
            if request.allocated:
                self._undo(job.name)
            raise
        finally:
            self.queue.drop(request)

    async def notify_status(self, job_name: str, status: Status) -> None:
        """A job has another status. When it leaves RUNNING, or FIREABLE other than for RUNNING, what it holds is given
        back: once, and exactly what was booked; of its storage, what is left on disk stays in use."""
        allocation = self.get_allocation(job_name)
        old = allocation.status
        if old in ENDED and status in ACTIVE:
            raise PlacementError(f"job {job_name} is {old.name}, so it cannot be {status.name}: schedule it again")
        if status != old:
            allocation.status = status
            if old in ACTIVE and status != Status.RUNNING:
                await self._free(allocation)
        if status == Status.ROLLBACK:
            self.usage.forget(allocation)
            allocation.locations.clear()
        self._wake()

    async def close(self) -> None:
        """Whatever still waits is refused; nothing runs on."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        for handle in self._again.values():
            handle.cancel()
        for request in list(self.queue.requests.values()):
            if not request.placed.done():
                request.placed.set_exception(PlacementError(f"job {request.job.name}: the scheduler was closed"))
        tasks = [task for task in (self._pump, *self._refreshing.values()) if task is not None and not task.done()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def explain(self, job_name: str) -> list[Verdict]:
        """Why a job still waits: for every location of its targets what is against it, with the numbers."""
        request = next((each for each in self.queue.requests.values() if each.job.name == job_name), None)
        if request is None:
            raise PlacementError(f"job {job_name} does not wait")
        return self.queue.verdicts(request)

    @classmethod
    def get_schema(cls) -> str:
        """A JSON schema of what it is made with."""
        return SCHEMA

    # ---- placing ----

    def _way(self, job: Any, target: Any, requirement: Any) -> Way:
        """A target with what the job asks for there."""
        workdir = target.workdir
        directories = (job.input_directory, job.output_directory, job.tmp_directory)
        seen = type(job)(job.name, job.workflow_id, job.inputs, *[each or workdir for each in directories])
        asked = requirement.eval(seen) if hasattr(requirement, "eval") else requirement
        if asked is None:
            return Way(target, self._nothing())
        _check(job.name, asked)
        return Way(target, asked)

    def _nothing(self) -> Any:
        """What a job asks for that says nothing."""
        return Hardware()

    async def _look(self, request: Request) -> None:
        """Ask the connectors of a request's targets. One that fails is passed over, unless all do."""
        await asyncio.gather(*(self._look_at(way) for way in request.ways))
        failed = [way.error for way in request.ways if way.error is not None]
        if len(failed) == len(request.ways):
            raise failed[0]
        for way in request.ways:
            if way.error is not None:
                name = way.target.deployment.name
                _log.warning("job %s: %s is passed over: %s", request.job.name, name, way.error)

    async def _look_at(self, way: Way) -> None:
        try:
            await self._resolve(way, await self.offers.ask(way.key))
            way.error = None
        except Exception as error:  # whatever a connector raises: the other targets are tried
            way.error = error

    async def _resolve(self, way: Way, offer: Offer) -> None:
        """Find out where the paths of a way really are; here they are where they say."""

    def _wake(self) -> None:
        """See to it that whatever may have room now is tried."""
        if self._closed:
            return
        if self._pump is None or self._pump.done():
            self._pump = asyncio.ensure_future(self._run())
        if self.retry_delay and self._timer is None and self.queue.requests:
            self._timer = asyncio.get_running_loop().call_later(self.retry_delay, self._retry)

    async def _run(self) -> None:
        """Try, in order, the requests that are new or may have room where something was given back."""
        while self.queue.stirred():
            self._believed, self._fresh = self._fresh, set()
            for request in self.queue.turn():
                if not request.placed.done():
                    try:
                        await self._attempt(request)
                    except Exception as error:  # of a policy: it is that job's
                        if not request.placed.done():
                            request.placed.set_exception(error)
            await asyncio.sleep(0)
        if self.queue.requests and (stale := self.offers.stale()):
            awaited = {way.key for request in self.queue.requests.values() for way in request.ways}
            for key in awaited.intersection(stale):
                self._refresh(key)

    def _refresh(self, key: Key, stir: bool = False) -> None:
        """Ask a connector again that somebody waits for; where something is different, those who wait are tried."""
        if key in self._refreshing or self._closed:
            return
        if (handle := self._again.pop(key, None)) is not None:
            handle.cancel()
        task = self._refreshing[key] = asyncio.ensure_future(self._refreshed(key, stir))
        task.add_done_callback(lambda _: self._refreshing.pop(key, None))

    async def _refreshed(self, key: Key, stir: bool) -> None:
        ways = [way for request in self.queue.requests.values() for way in request.ways if way.key == key]
        if not ways:
            return
        had = ways[0].error
        await self._look_at(ways[0])
        error = ways[0].error
        if error is not None:  # what it offered is not there for anybody, until it says so again
            self.offers.drop(key)
            if had is None:
                _log.warning("%s is passed over: %s", ways[0].target.deployment.name, error)
            self._again[key] = asyncio.get_running_loop().call_later(ASK_AGAIN_S, self._refresh, key)
        if (error is None) != (had is None):
            for request in self.queue.requests.values():
                for way in request.ways:
                    way.error = error if way.key == key else way.error
        for request in self._held_back.pop(key, ()):
            self.queue.again(request)
        if stir:
            self.queue.stir_all()
        if self.queue.stirred():
            self._fresh.add(key)
            self._wake()

    def _retry(self) -> None:
        self._timer = None
        if not self._closed and self.queue.requests:
            self.offers.forget()
            for key in {way.key for request in self.queue.requests.values() for way in request.ways}:
                self._refresh(key, stir=True)
            self._wake()

    async def _attempt(self, request: Request) -> None:
        """Try the targets of a request in order, each by its policy: all its locations, or none."""
        failed: Exception | None = None
        for way in request.ways:
            offered = self.queue.with_room(request, way)
            if len(offered) < way.target.locations:
                continue
            if way.key not in self._believed and self.offers.is_old(way.key):
                self._held_back.setdefault(way.key, []).append(request)
                self._refresh(way.key)
                return
            try:
                policy = self.parts.policy(way.target.deployment.scheduling_policy, self.usage.ledger.view)
                chosen = await self._choose(request, way, policy, offered)
            except Exception as error:  # another target may do
                failed = failed or error
                continue
            if chosen and not request.placed.done() and self.usage.fits(way, chosen):
                self._allocate(request, way, chosen)
                return
            if chosen:
                self.queue.again(request)
                return
        if failed is not None:
            raise failed

    async def _choose(self, request: Request, way: Way, policy: Any, offered: dict[str, Any]) -> list[Any]:
        chosen: list[Any] = []
        while len(chosen) < way.target.locations:
            location = await policy.get_location(
                context=self.context,
                job=request.job,
                hardware_requirement=way.hardware,
                available_locations=dict(offered),
                jobs=self.job_allocations,
                locations=self.location_allocations,
            )
            if location is None:
                return []
            name = next((name for name, each in offered.items() if each is location), None)
            if name is None:
                raise PlacementError(f"job {request.job.name}: the policy chose {location}, which it was not offered")
            chosen.append(location)
            del offered[name]
            if way.target.locations > 1:
                offered = {name: each for name, each in offered.items() if self.usage.fits(way, [*chosen, each])}
        return chosen

    def _allocate(self, request: Request, way: Way, chosen: list[Any]) -> None:
        name = request.job.name
        if name in self.job_allocations:  # an engine that recovers schedules a job again
            self._undo(name)
        allocation = JobAllocation(
            name,
            way.target,
            [each.location for each in chosen],
            self._status(Status.FIREABLE),
            hardware_at=[self.usage.given(way, each) for each in chosen],
        )
        self.usage.book(allocation, way, chosen)
        self.job_allocations[name] = allocation
        request.allocated = True
        request.placed.set_result(None)

    def _status(self, status: Status) -> Any:
        """A status as the engine knows it."""
        return status

    def _undo(self, name: str) -> None:
        """Take an allocation back, as if it had never been."""
        allocation = self.job_allocations.pop(name)
        self.usage.forget(allocation)
        held = self.usage.release(allocation)
        if held is not None:
            self.usage.release_storage(held)
        self._wake()

    async def _free(self, allocation: JobAllocation) -> None:
        """Give back what a job held: cores and memory at once, storage when it is known what is left there."""
        held = self.usage.release(allocation)
        if held is None:
            return
        self._wake()
        left: list[dict[str, float]] = []
        try:
            left = await self._left(held)
        except Exception as error:  # it only costs accuracy
            _log.warning("job %s: what it left on disk could not be measured: %s", allocation.job, error)
        finally:
            for name in self.usage.release_storage(held, left):
                _log.warning("job %s: %s has less room on disk than was thought; jobs wait", allocation.job, name)
            self._wake()

    async def _left(self, held: Held) -> list[dict[str, float]]:
        """What a job left in its directories: for each of its locations, path → MiB."""
        out = []
        for location, hardware in zip(held.chosen, held.allocation.hardware_at, strict=True):
            paths = topmost([path for disk in hardware.storage.values() for path in disk.paths])
            counted = paths and location.hardware is not None
            out.append(await self._measure(held.allocation, location.location, paths) if counted else {})
        return out

    async def _measure(self, allocation: JobAllocation, location: Any, paths: Sequence[str]) -> dict[str, float]:
        """MiB below each of these paths of a location."""
        return await measured(self.get_connector(allocation.job), location, paths)


def _check(job: str, asked: Any) -> None:
    """Refuse what nobody can have meant: it would hand out more than there is."""
    if not all(hasattr(asked, name) for name in ("cores", "memory", "storage")):
        words = f"job {job} asks for {asked!r:.100}: give a Hardware, something with eval(job) that makes one, or None"
        raise DefinitionError(words)
    disks = [(f"MiB at {disk.mount_point}", disk.size) for disk in asked.storage.values()]
    for what, count in (("cores", asked.cores), ("MiB of memory", asked.memory), *resources_of(asked).items(), *disks):
        if not 0 <= count < math.inf:
            raise DefinitionError(f"job {job} asks for {count:g} {what}: give a number, 0 or more")


SCHEMA = """{
  "$schema": "https://json-schema.org/draft/2020-12/schema",
  "$id": "https://rota.invalid/schemas/scheduler/rota.json",
  "type": "object",
  "properties": {
    "retry_delay": {
      "type": "number", "minimum": 0, "default": 0,
      "description": "Seconds after which jobs that wait are tried again though nothing has happened (0: never)"
    },
    "reserve_after": {
      "type": "number", "minimum": 0, "default": 60,
      "description": "Seconds after which the first in line has a location kept free for it (0: never)"
    },
    "refresh_after": {
      "type": "number", "minimum": 0, "default": 1,
      "description": "Seconds for which what a connector offers is taken to be so"
    }
  },
  "additionalProperties": false
}"""
