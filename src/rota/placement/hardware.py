"""Hardware: cores, memory, storage by mount point, and named resources; and its arithmetic.

Memory and storage are in MiB. The keys of `storage` belong to whoever made the object; in the normalized form a key is
the mount point, and each mount point is there once.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any

from rota.placement.errors import PlacementError

if TYPE_CHECKING:
    from rota.placement.jobs import Job

__all__ = ["Hardware", "HardwareRequirement", "Storage", "normal_storage", "resources_of"]


class Storage:
    """A volume, or a part of one that is asked for."""

    __slots__ = ("bind", "mount_point", "paths", "size", "tmpfs")

    def __init__(
        self,
        mount_point: str,
        size: float,
        paths: Iterable[str] | None = None,
        bind: str | None = None,
        tmpfs: bool = False,
    ) -> None:
        if size < 0:
            raise PlacementError(f"storage {mount_point} has a negative size: {size:g} MiB")
        if math.isnan(size):
            raise PlacementError(f"storage {mount_point} has a size that is no number")
        self.mount_point = mount_point
        self.size = size
        self.paths: set[str] = set(paths or ())
        self.bind = bind
        """The path of the wrapped location that is shown here; None: it is private."""
        self.tmpfs = tmpfs
        """Whether what is written here takes up memory too."""

    def add_path(self, path: str) -> None:
        """Enter a path that lies on this volume."""
        self.paths.add(path)

    def _other(self, other: Any, what: str) -> Any:
        if not hasattr(other, "mount_point"):
            raise TypeError(f"{what}: {type(other).__name__} is no storage")
        if other.mount_point != self.mount_point:
            raise ArithmeticError(f"{what}: {self!r} and {other!r} are not at one mount point")
        return other

    def _made(self, size: float, other: Any) -> "Storage":
        return Storage(self.mount_point, size, self.paths | set(other.paths), self.bind, self.tmpfs)

    def __add__(self, other: Any) -> "Storage":
        return self._made(self.size + self._other(other, "+").size, other)

    def __sub__(self, other: Any) -> "Storage":
        return self._made(self.size - self._other(other, "-").size, other)

    def __or__(self, other: Any) -> "Storage":
        return self._made(max(self.size, self._other(other, "|").size), other)

    def __repr__(self) -> str:
        bind = f", bind={self.bind!r}" if self.bind is not None else ""
        paths = f", paths={sorted(self.paths)}" if self.paths else ""
        return f"Storage({self.mount_point!r}, {self.size:g}{paths}{bind})"


def normal_storage(storages: Iterable[Any]) -> dict[str, Storage]:
    """Mount point → all storages there, added."""
    out: dict[str, Storage] = {}
    for each in storages:
        one = Storage(each.mount_point, each.size, each.paths, each.bind, getattr(each, "tmpfs", False))
        out[one.mount_point] = out[one.mount_point] + one if one.mount_point in out else one
    return out


def resources_of(hardware: Any) -> Mapping[str, float]:
    """Named resources of hardware; that of others has none."""
    return getattr(hardware, "resources", None) or {}


class Hardware:
    """What a location has, or a job asks for."""

    __slots__ = ("cores", "memory", "resources", "storage")

    def __init__(
        self,
        cores: float = 0.0,
        memory: float = 0.0,
        storage: MutableMapping[str, Storage] | None = None,
        resources: Mapping[str, float] | None = None,
    ) -> None:
        self.cores = cores
        self.memory = memory
        self.storage: MutableMapping[str, Storage] = storage or {"/": Storage("/", 0.0)}
        self.resources = dict(resources or {})
        """Whatever else is counted: gpus, licences."""

    def _named(self, other: Any, times: int) -> dict[str, float]:
        theirs = resources_of(other)
        names = {**self.resources, **theirs}
        return {name: self.resources.get(name, 0.0) + times * theirs.get(name, 0.0) for name in names}

    def __add__(self, other: Any) -> "Hardware":
        storage = normal_storage([*self.storage.values(), *_checked(other).storage.values()])
        named = self._named(other, 1)
        return Hardware(self.cores + other.cores, self.memory + other.memory, {**storage}, named)

    def __sub__(self, other: Any) -> "Hardware":
        storage = normal_storage(self.storage.values())
        for mount, less in normal_storage(_checked(other).storage.values()).items():
            if mount in storage:
                storage[mount] = storage[mount] - less
            elif less.size:
                raise PlacementError(f"{self!r} has no storage at {mount} to take {other!r} from")
        named = self._named(other, -1)
        return Hardware(self.cores - other.cores, self.memory - other.memory, {**storage}, named)

    def __or__(self, other: Any) -> "Hardware":
        storage = dict(self.storage)
        for key, each in _checked(other).storage.items():
            storage[key] = storage[key] | each if key in storage else each
        return Hardware(self.cores + other.cores, self.memory + other.memory, storage, self._named(other, 1))

    def satisfies(self, other: Any) -> bool:
        """Whether all that is asked for is there. A mount point that is not there at all is an error."""
        if self.cores < _checked(other).cores or self.memory < other.memory:
            return False
        mine, asked = normal_storage(self.storage.values()), normal_storage(other.storage.values())
        if asked.keys() - mine.keys():
            raise PlacementError(  # in the words that StreamFlow looks for
                f"Invalid `Hardware` comparison: {self} should contain all the storage included in {other}."
            )
        if any(mine[mount].size < each.size for mount, each in asked.items()):
            return False
        return all(self.resources.get(name, 0.0) >= count for name, count in resources_of(other).items())

    def get_storage(self, path: str) -> Storage:
        """The storage at this mount point, or that was told of this path."""
        for each in self.storage.values():
            if path == each.mount_point or path in each.paths:
                return each
        raise KeyError(path)

    def get_mount_point(self, path: str) -> str:
        """The mount point of a path that a storage was told of."""
        return self.get_storage(path).mount_point

    def get_size(self, path: str) -> float:
        """The size of the storage of such a path."""
        return self.get_storage(path).size

    def get_mount_points(self) -> list[str]:
        """Every mount point, once."""
        return list(dict.fromkeys(each.mount_point for each in self.storage.values()))

    def is_normalized(self) -> bool:
        """Whether every key is the mount point."""
        return all(key == each.mount_point for key, each in self.storage.items())

    def normalized(self) -> "Hardware":
        """The same in the normalized form."""
        return Hardware(self.cores, self.memory, {**normal_storage(self.storage.values())}, self.resources)

    def __repr__(self) -> str:
        named = f", resources={self.resources}" if self.resources else ""
        return f"Hardware(cores={self.cores:g}, memory={self.memory:g}, storage={dict(self.storage)}{named})"


def _checked(other: Any) -> Any:
    if not hasattr(other, "cores") or not hasattr(other, "storage"):
        raise TypeError(f"{type(other).__name__} is no hardware")
    return other


class HardwareRequirement(ABC):
    """Says what hardware a job asks for, once its inputs and directories are known."""

    @abstractmethod
    def eval(self, job: "Job") -> Hardware:
        """The hardware that this job asks for."""
