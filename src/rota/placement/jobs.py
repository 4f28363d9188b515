"""Jobs as the seed's interfaces have them, and where they were placed."""

from collections.abc import Mapping, MutableMapping, MutableSequence, Sequence
from enum import IntEnum
from typing import Any, Protocol

from rota.placement.hardware import Hardware
from rota.placement.locations import ExecutionLocation

__all__ = ["Job", "JobAllocation", "LocationAllocation", "Status", "Token", "files_of"]


class Status(IntEnum):
    """The state of a job; the numbers are kept by engines."""

    WAITING = 0
    FIREABLE = 1
    RUNNING = 2
    SKIPPED = 3
    COMPLETED = 4
    FAILED = 5
    CANCELLED = 6
    ROLLBACK = 7
    RECOVERY = 8
    RECOVERED = 9


class Token(Protocol):
    """An input of a job. One that is a file also has `async get_paths(context)`."""

    value: Any

    async def get_weight(self, context: Any) -> int:
        """How heavy it is: of a file its bytes."""


class Job:
    """What is placed: a name, inputs, and three directories that are known once it has a place."""

    __slots__ = ("input_directory", "inputs", "name", "output_directory", "tmp_directory", "workflow_id")

    def __init__(
        self,
        name: str,
        workflow_id: int,
        inputs: MutableMapping[str, Any],
        input_directory: str | None,
        output_directory: str | None,
        tmp_directory: str | None,
    ) -> None:
        self.name = name
        self.workflow_id = workflow_id
        self.inputs = inputs
        self.input_directory = input_directory
        self.output_directory = output_directory
        self.tmp_directory = tmp_directory


def files_of(tokens: Sequence[Any]) -> list[Any]:
    """The tokens that are files, also those inside lists and objects."""
    found: list[Any] = []
    for token in tokens:
        if hasattr(token, "get_paths"):
            found.append(token)
            continue
        value = getattr(token, "value", None)
        inner = value if isinstance(value, list | tuple) else value.values() if isinstance(value, Mapping) else ()
        found += files_of(list(inner))
    return found


class JobAllocation:
    """Where a job was placed, and what of each location it was given."""

    __slots__ = ("hardware_at", "job", "locations", "status", "target")

    def __init__(
        self,
        job: str,
        target: Any,
        locations: MutableSequence[ExecutionLocation],
        status: Status,
        hardware: Any = None,
        hardware_at: Sequence[Any] = (),
    ) -> None:
        self.job = job
        self.target = target
        self.locations = locations
        self.status = status
        self.hardware_at = list(hardware_at) or ([hardware] if hardware is not None else [Hardware()])
        """What it has at each of its locations, in their order."""

    @property
    def hardware(self) -> Any:
        """What it has at the first of its locations."""
        return self.hardware_at[0]


class LocationAllocation:
    """The jobs that a location was given, directly or through locations that wrap it."""

    __slots__ = ("active", "deployment", "jobs", "name")

    def __init__(self, name: str, deployment: str) -> None:
        self.name = name
        self.deployment = deployment
        self.jobs: list[str] = []
        """All that it was ever given."""
        self.active: dict[str, None] = {}
        """Those that it holds now."""
