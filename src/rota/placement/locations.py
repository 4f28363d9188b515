"""Locations as the seed's interfaces have them: where jobs run, what is offered, and what a step is bound to."""

import os
import posixpath
import tempfile
from collections.abc import Iterator, MutableMapping, Sequence
from typing import Any

from rota.placement.errors import DefinitionError

__all__ = ["AvailableLocation", "BindingConfig", "Config", "DeploymentConfig", "ExecutionLocation", "Target", "stack"]


class ExecutionLocation:
    """A location where commands are run. Two with the same fields are equal."""

    __slots__ = (
        "deployment",
        "environment",
        "hostname",
        "local",
        "mounts",
        "name",
        "service",
        "stacked",
        "wraps",
    )

    def __init__(
        self,
        name: str,
        deployment: str,
        environment: MutableMapping[str, str] | None = None,
        hostname: str | None = None,
        local: bool = False,
        mounts: MutableMapping[str, str] | None = None,
        service: str | None = None,
        stacked: bool = False,
        wraps: "ExecutionLocation | None" = None,
    ) -> None:
        self.name = name
        self.deployment = deployment
        self.environment = environment or {}
        self.hostname = hostname
        self.local = local
        self.mounts = mounts or {}
        """Mount point here → path of the wrapped location."""
        self.service = service
        self.stacked = stacked
        self.wraps = wraps

    def _fields(self) -> tuple[object, ...]:
        environment, mounts = frozenset(self.environment.items()), frozenset(self.mounts.items())
        return (
            *(self.name, self.deployment, environment, self.hostname, self.local, mounts),
            *(self.service, self.stacked, self.wraps),
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ExecutionLocation) and self._fields() == other._fields()

    def __hash__(self) -> int:
        return hash(self._fields())

    def __str__(self) -> str:
        return posixpath.join(*[part for part in (self.deployment, self.service, self.name) if part])


class AvailableLocation:
    """A location that a connector offers: by its hardware, or, if it says none, by a number of slots (one)."""

    __slots__ = ("hardware", "identity", "location", "slots", "stacked", "wraps")

    def __init__(
        self,
        name: str,
        deployment: str,
        hostname: str,
        local: bool = False,
        service: str | None = None,
        slots: int | None = None,
        stacked: bool = False,
        hardware: Any = None,
        wraps: "AvailableLocation | None" = None,
        identity: str | None = None,
    ) -> None:
        if slots is not None and slots < 0:
            raise DefinitionError(f"location {deployment}/{name} has {slots} slots: give 0 or more")
        storages = hardware.storage.values() if hardware is not None else ()
        mounts = {each.mount_point: each.bind for each in storages if each.bind is not None}
        self.hardware = hardware
        self.location: ExecutionLocation = ExecutionLocation(
            name,
            deployment,
            hostname=hostname,
            local=local,
            mounts=mounts,
            service=service,
            stacked=stacked,
            wraps=wraps.location if wraps is not None else None,
        )
        self.slots = slots
        self.stacked = stacked
        """Whether what is used here is used up in the wrapped location too."""
        self.wraps = wraps
        self.identity = identity
        """What it really is, if other deployments offer the same under other names."""

    @property
    def name(self) -> str:
        """Its name in its deployment."""
        return self.location.name

    @property
    def deployment(self) -> str:
        """The deployment that it belongs to."""
        return self.location.deployment

    @property
    def hostname(self) -> str | None:
        """The host that it is on."""
        return self.location.hostname

    @property
    def local(self) -> bool:
        """Whether it is this machine."""
        return self.location.local

    @property
    def service(self) -> str | None:
        """The service that it is an instance of."""
        return self.location.service

    def __str__(self) -> str:
        return str(self.location)


def stack(location: Any) -> Iterator[Any]:
    """A location and all that its use is charged to: down while `stacked`."""
    seen: list[int] = []
    current = location
    while current is not None:
        if id(current) in seen:
            raise DefinitionError(f"location {location}: wraps goes in a circle")
        seen.append(id(current))
        yield current
        current = current.wraps if current.stacked else None


class Config:
    """A part that is named in a configuration, with its type and what it is made with."""

    __slots__ = ("config", "name", "type")

    def __init__(self, name: str, type: str, config: MutableMapping[str, Any] | None = None) -> None:
        self.name = name
        self.type = type
        self.config = config or {}


class DeploymentConfig:
    """An execution environment as it is configured."""

    __slots__ = ("config", "external", "lazy", "name", "scheduling_policy", "type", "workdir", "wraps")

    def __init__(
        self,
        name: str,
        type: str,
        config: MutableMapping[str, Any] | None = None,
        external: bool = False,
        lazy: bool = True,
        scheduling_policy: Any = None,
        workdir: str | None = None,
        wraps: Any = None,
    ) -> None:
        self.name = name
        self.type = type
        self.config = config or {}
        self.external = external
        self.lazy = lazy
        self.scheduling_policy = scheduling_policy or Config("__DEFAULT__", "data_locality")
        """A `Config`, the name of a type, or a policy."""
        self.workdir = workdir
        self.wraps = wraps


class Target:
    """A deployment, or a service of one, that jobs can be placed on, and on how many locations each."""

    def __init__(
        self, deployment: Any, locations: int = 1, service: str | None = None, workdir: str | None = None
    ) -> None:
        if locations < 1:
            raise DefinitionError(f"target {deployment.name}: {locations} locations: give at least 1")
        self.deployment = deployment
        self.locations = locations
        self.service = service
        temporary = os.path.realpath(tempfile.gettempdir()) if deployment.type == "local" else "/tmp"
        self.workdir = workdir or deployment.workdir or posixpath.join(temporary, "streamflow")


class BindingConfig:
    """The targets of a job, and the filters that are applied to them in order."""

    __slots__ = ("filters", "targets")

    def __init__(self, targets: Sequence[Any], filters: Sequence[Any] | None = None) -> None:
        self.targets = targets
        self.filters = filters or []
