"""A small world for the tests of placement: connectors that offer what they are told, and a context that has them."""

import asyncio
import functools
from collections.abc import Mapping
from typing import Any

from rota.model.needs import Amounts
from rota.placement import AvailableLocation, DeploymentConfig, Hardware, Job, Status, Storage, Target

__all__ = ["Connector", "Context", "File", "Plain", "Waits", "a_job", "a_target", "asynchronous", "host", "settle"]


class Connector:
    """Offers what it is told to; may be slow, or fail."""

    def __init__(self, name: str, *locations: AvailableLocation) -> None:
        self.deployment_name = name
        self.locations = list(locations)
        self.asked = 0
        self.error: Exception | None = None
        self.gate: asyncio.Event | None = None
        """If it is there, answers wait for it."""
        self.left: dict[str, int] = {}
        """Path → KiB that are there."""

    async def get_available_locations(self, service: str | None = None) -> dict[str, AvailableLocation]:
        self.asked += 1
        if self.gate is not None:
            await self.gate.wait()
        if self.error is not None:
            raise self.error
        return {each.name: each for each in self.locations}

    async def run(
        self, location: Any, command: list[str], capture_output: bool = False, **more: Any
    ) -> tuple[str, int]:
        if self.error is not None:
            raise self.error
        assert command[:2] == ["du", "-sk"]
        return f"{self.left.get(command[2], 0)}\t{command[2]}\n", 0


class Manager:
    """Finds connectors."""

    def __init__(self, connectors: Mapping[str, Connector]) -> None:
        self.connectors = connectors

    def get_connector(self, name: str) -> Connector | None:
        return self.connectors.get(name)


class Replica:
    """A file at a location."""

    def __init__(self, location: AvailableLocation) -> None:
        self.location = location.location


class Data:
    """Where files are."""

    def __init__(self) -> None:
        self.replicas: dict[str, list[AvailableLocation]] = {}

    def get_data_locations(self, path: str, deployment: str | None = None, **more: Any) -> list[Replica]:
        return [Replica(each) for each in self.replicas.get(path, []) if deployment in (None, each.deployment)]


class Context:
    """What schedulers and policies are given."""

    def __init__(self, *connectors: Connector) -> None:
        self.connectors = {each.deployment_name: each for each in connectors}
        self.deployment_manager = Manager(self.connectors)
        self.data_manager = Data()


class Plain:
    """An input that is no file."""

    def __init__(self, value: Any) -> None:
        self.value = value

    async def get_weight(self, context: Any) -> int:
        return 1


class File(Plain):
    """An input that is a file of so many bytes."""

    def __init__(self, path: str, size: int) -> None:
        super().__init__(path)
        self.size = size

    async def get_weight(self, context: Any) -> int:
        return self.size

    async def get_paths(self, context: Any) -> list[str]:
        return [str(self.value)]


def host(
    name: str = "h1", deployment: str = "farm", cores: float = 4, memory: float = 8000, disk: float = 0, **more: Any
) -> AvailableLocation:
    storage = {"/": Storage("/", disk)}
    hardware = more.pop("hardware", Hardware(cores, memory, storage, more.pop("resources", None)))
    return AvailableLocation(name, deployment, name, hardware=hardware, **more)


def a_job(name: str = "/step/0", inputs: dict[str, Any] | None = None, directory: str | None = None) -> Job:
    return Job(name, 1, inputs or {}, directory, directory, directory)


def a_target(name: str = "farm", policy: Any = None, **more: Any) -> Target:
    return Target(DeploymentConfig(name, "test", scheduling_policy=policy), **more)


async def settle() -> None:
    """Let everything go on that can."""
    for _ in range(50):
        await asyncio.sleep(0)


def asynchronous(body: Any) -> Any:
    """A test that is a coroutine."""

    @functools.wraps(body)
    def test(*given: Any, **more: Any) -> None:
        asyncio.run(body(*given, **more))

    return test


class Waits:
    """Requests that were made of a scheduler."""

    def __init__(self, scheduler: Any) -> None:
        self.scheduler = scheduler
        self.tasks: dict[str, asyncio.Task[None]] = {}

    async def add(self, name: str, binding: Any, hardware: Any, **more: Any) -> bool:
        """Ask for a place; returns whether it was given at once."""
        self.tasks[name] = asyncio.ensure_future(self.scheduler.schedule(a_job(name, **more), binding, hardware))
        await settle()
        return self.placed(name)

    def placed(self, name: str) -> bool:
        """Whether a job has its place; raises what scheduling it raised."""
        task = self.tasks[name]
        if task.done():
            task.result()
        return task.done()

    def where(self, name: str) -> str:
        return " ".join(str(each) for each in self.scheduler.get_locations(name))

    async def end(self, name: str, status: Any = Status.COMPLETED) -> None:
        await self.scheduler.notify_status(name, Status.RUNNING)
        await self.scheduler.notify_status(name, status)
        await settle()

    def is_empty(self) -> bool:
        """Whether nothing is booked anywhere."""
        usage = self.scheduler.usage
        return not usage.booked and all(used == Amounts() for used in usage.ledger.used.values())
