"""What a job asks of each level of a stack: of a container, of its host, and so on down while `stacked`.

Storage goes down only where it is bound: its paths are then those of the wrapped location. What a container keeps to
itself is not charged below it.
"""

import math
import posixpath
from collections.abc import Callable
from typing import Any, NamedTuple

from rota.model.amounts import show_size
from rota.model.needs import Amounts, show_amount
from rota.placement.errors import PlacementError
from rota.placement.hardware import Hardware, Storage, normal_storage, resources_of
from rota.placement.locations import stack

__all__ = ["Level", "amounts_of", "capacity_of", "identity", "levels", "shortage_words", "storage_of"]

MIB = 1 << 20
DISK = "disk:"
"""Storage is counted as a named resource: this, and the mount point."""
SLOT = Amounts(1000)
"""A slot of a location that says no hardware is counted as a core."""
Real = Callable[[Any, str], str]
"""(location, path) → the path there without symbolic links."""


class Level(NamedTuple):
    """What is asked of one location of a stack."""

    id: str
    location: Any
    hardware: Hardware


def identity(location: Any) -> str:
    """What a location is counted as. Equal names in two deployments are two; but the machine that we are on is one."""
    given: str | None = getattr(location, "identity", None)
    if given is not None:
        return given
    return f"local:{location.name}" if location.local else f"{location.deployment}/{location.name}"


def levels(location: Any, asked: Any, real: Real = lambda location, path: path) -> list[Level]:
    """What hardware that is asked for means at a location and at each below that its use is charged to."""
    out: list[Level] = []
    storage = dict(asked.storage)
    for number, each in enumerate(stack(location)):
        if each.hardware is None:
            found = {key: Storage("/", disk.size) for key, disk in storage.items()}
        else:
            found = _on_mounts(each, storage, real)
        if number:
            found = normal_storage(found.values())
        memory = asked.memory + sum(disk.size for disk in found.values() if disk.tmpfs)
        hardware = Hardware(asked.cores, memory, {**found}, resources_of(asked))
        out.append(Level(identity(each), each, hardware))
        storage = {key: _below(each, disk, real) for key, disk in found.items() if disk.bind is not None}
    return out


def _on_mounts(location: Any, storage: dict[str, Any], real: Real) -> dict[str, Storage]:
    """The storage that is asked for, each at the mount point where its paths are."""
    out: dict[str, Storage] = {}
    for key, disk in storage.items():
        by_mount: dict[str, set[str]] = {}
        for path in sorted(disk.paths) or [disk.mount_point]:
            mount = _mount_of(location, path, real)
            if mount is not None:
                by_mount.setdefault(mount, set()).add(path)
            elif disk.size:
                have = ", ".join(sorted(each.mount_point for each in location.hardware.storage.values())) or "none"
                raise PlacementError(f"{path} is on none of the mount points of {location}, which are {have}")
        for number, (mount, paths) in enumerate(by_mount.items()):
            volume = location.hardware.get_storage(mount)
            name = key if not number else f"{key}@{mount}"
            paths = paths if disk.paths else set()
            out[name] = Storage(mount, disk.size, paths, volume.bind, getattr(volume, "tmpfs", False))
    return out


def _mount_of(location: Any, path: str, real: Real) -> str | None:
    """The mount point of a location that a path is on; None: it is on none."""
    mounts = {each.mount_point for each in location.hardware.storage.values()}
    current = posixpath.normpath(real(location, path))
    while current not in mounts:
        above = posixpath.dirname(current)
        if above == current:
            return None
        current = above
    return current


def _below(location: Any, disk: Storage, real: Real) -> Storage:
    """Bound storage as the wrapped location sees it."""
    assert disk.bind is not None
    paths = {
        posixpath.normpath(posixpath.join(disk.bind, posixpath.relpath(real(location, path), disk.mount_point)))
        for path in disk.paths
    }
    return Storage(disk.bind, disk.size, paths)


def amounts_of(level: Level) -> Amounts:
    """What the ledger is charged at a level: of a location that says no hardware, a slot."""
    if level.location.hardware is None:
        return SLOT
    return _amounts(level.hardware, math.ceil)


def capacity_of(location: Any) -> Amounts:
    """What a location has, as the ledger counts it."""
    if location.hardware is None:
        return Amounts(1000 * (1 if location.slots is None else location.slots))
    return _amounts(location.hardware, math.floor)


def _amounts(hardware: Any, whole: Callable[[float], int]) -> Amounts:
    """Millicores, bytes, thousandths of named resources."""
    named = {name: whole(1000 * count) for name, count in resources_of(hardware).items()}
    for disk in hardware.storage.values():
        name = DISK + disk.mount_point
        named[name] = named.get(name, 0) + whole(disk.size * MIB)
    pairs = tuple(sorted((name, count) for name, count in named.items() if count))
    return Amounts(whole(1000 * hardware.cores), whole(hardware.memory * MIB), named=pairs)


def shortage_words(location: Any, asked: Amounts, free: Amounts, now: str = " free") -> str:
    """What of `asked` is more than what is free at a location, with the numbers."""
    if location.hardware is None:
        return f"asks for a slot, has {max(0, free.cores) // 1000}{now}"
    lacking = asked.lacking(free)
    return "; ".join(
        f"asks for {_words(what, count)}, has {_words(what, max(0, left))}{now}" for what, count, left in lacking
    )


def _words(what: str, count: int) -> str:
    if what.startswith(DISK):
        return f"{show_size(count)} at {what.removeprefix(DISK)}"
    if what in ("cores", "memory"):
        return show_amount(what, count)
    return f"{count / 1000:g} {what}"


def storage_of(amounts: Amounts) -> Amounts:
    """Of what is charged, the storage."""
    return Amounts(named=tuple([pair for pair in amounts.named if pair[0].startswith(DISK)]))
