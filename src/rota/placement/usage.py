"""Usage: what every location holds for whom, in rota's ledger. What was booked is given back once, exactly."""

import posixpath
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any, NamedTuple

from rota.model.location import Kind, Location
from rota.model.needs import Amounts
from rota.placement.errors import PlacementError
from rota.placement.hardware import Hardware, Storage
from rota.placement.jobs import JobAllocation, LocationAllocation
from rota.placement.levels import Level, amounts_of, capacity_of, identity, levels, storage_of
from rota.placement.locations import stack
from rota.placement.offers import Offer
from rota.schedule.ledger import Ledger, Row

__all__ = ["Held", "Usage", "Way"]

MOST_KEPT = 100_000
Asked = tuple[object, ...]


class Way:
    """A target of a job, with what the job asks for there."""

    __slots__ = ("asked", "error", "hardware", "key", "target")

    def __init__(self, target: Any, hardware: Any) -> None:
        self.target = target
        self.hardware = hardware
        self.key = (target.deployment.name, target.service)
        named = getattr(hardware, "resources", None) or {}
        disks = [(key, each.mount_point, each.size, frozenset(each.paths)) for key, each in hardware.storage.items()]
        self.asked: Asked = (hardware.cores, hardware.memory, tuple(disks), tuple(sorted(named.items())))
        """What is asked for, to compare by."""
        self.error: Exception | None = None
        """Why its connector could not be asked."""


class Held(NamedTuple):
    """What a job holds."""

    allocation: JobAllocation
    chosen: list[Any]
    """The locations that it was given."""
    rows: list[Row]
    """All but storage, by level."""
    storage: list[Row]


class Usage:
    """What is in use where."""

    def __init__(self, location_allocations: MutableMapping[str, MutableMapping[str, LocationAllocation]]) -> None:
        self.ledger = Ledger()
        self.known: dict[str, Any] = {}
        """Id → the location, as it was offered last."""
        self.freed: set[str] = set()
        """Locations where more is free than when this was last emptied."""
        self.real: Callable[[Any, str], str] = lambda location, path: path
        """Says what a path of a location is without symbolic links."""
        self._lists = location_allocations
        self._held: dict[str, Held] = {}
        self._versions: dict[str, tuple[int, object]] = {}
        """Id → how often it was another, and what it is now."""
        self._rows: dict[tuple[Asked, str, int], list[Row] | PlacementError] = {}

    def know(self, offer: Offer) -> None:
        """Enter what is offered; what is in use stays so."""
        for location in offer.locations.values():
            for each in stack(location):
                name, capacity = identity(each), capacity_of(each)
                below = identity(each.wraps) if each.stacked and each.wraps is not None else None
                disks = each.hardware.storage.values() if each.hardware is not None else ()
                is_now = (capacity, below, frozenset((disk.mount_point, disk.bind) for disk in disks))
                number, was = self._versions.get(name, (0, None))
                if was != is_now:
                    self._versions[name] = (number + 1, is_now)
                    self.ledger.add(Location(name, Kind.NODE, below, capacity, each.stacked))
                    self.freed.add(name)
                self.known[name] = each
        self.ledger.changed.clear()

    def rows(self, way: Way, location: Any, chain: Sequence[str]) -> list[Row] | PlacementError:
        """What a way asks of each level of a location; or why it can never be there."""
        key = (way.asked, chain[0], sum([self._versions[name][0] for name in chain]))
        rows = self._rows.get(key)
        if rows is None:
            if len(self._rows) >= MOST_KEPT:
                self._rows.clear()
            try:
                rows = [(level.id, amounts_of(level)) for level in levels(location, way.hardware, self.real)]
            except PlacementError as error:
                rows = error
            self._rows[key] = rows
        return rows

    def fits(self, way: Way, chosen: Sequence[Any]) -> bool:
        """Whether there is room for a job at all of these locations together."""
        rows: list[Row] = []
        for location in chosen:
            found = self.rows(way, location, [identity(each) for each in stack(location)])
            if isinstance(found, PlacementError):
                return False
            rows += found
        return self.ledger.lacks(rows) is None

    def given(self, way: Way, location: Any) -> Any:
        """What a job has at a location, as an object of the kind in which it was asked for, with the same keys."""
        asked = way.hardware
        found = levels(location, asked, self.real)[0].hardware.storage
        storage = {}
        for key, disk in asked.storage.items():
            here = found.get(key, disk)
            storage[key] = type(disk)(here.mount_point, disk.size, set(here.paths), here.bind)
        if isinstance(asked, Hardware):
            return Hardware(asked.cores, asked.memory, storage, asked.resources)
        return type(asked)(asked.cores, asked.memory, storage)

    def book(self, allocation: JobAllocation, way: Way, chosen: list[Any]) -> None:
        """Book all levels of the locations that a job was given, in one step."""
        placed = [level for location in chosen for level in levels(location, way.hardware, self.real)]
        rows = [(level.id, amounts_of(level)) for level in placed]
        self.ledger.book(rows)
        storage = [(name, storage_of(amounts)) for name, amounts in rows]
        rest = [(name, amounts.plus(disk, -1)) for (name, amounts), (_, disk) in zip(rows, storage, strict=True)]
        self._held[allocation.job] = Held(allocation, list(chosen), rest, storage)
        for entry in self._entries(chosen):
            entry.jobs.append(allocation.job)
            entry.active[allocation.job] = None

    def _entries(self, chosen: Sequence[Any]) -> list[LocationAllocation]:
        """The lists of jobs of these locations and of all that they are stacked on, each once."""
        out: dict[int, LocationAllocation] = {}
        for location in chosen:
            for each in stack(location):
                names = self._lists.setdefault(each.deployment, {})
                entry = names.get(each.name)
                if entry is None:
                    entry = names[each.name] = LocationAllocation(each.name, each.deployment)
                out[id(entry)] = entry
        return list(out.values())

    def release(self, allocation: JobAllocation) -> Held | None:
        """Give back all that a job holds but its storage; None: it holds nothing (any more)."""
        held = self._held.get(allocation.job)
        if held is None or held.allocation is not allocation:
            return None
        del self._held[allocation.job]
        self.ledger.unbook(held.rows)
        self.freed.update(name for name, _ in held.rows)
        for entry in self._entries(held.chosen):
            entry.active.pop(allocation.job, None)
        return held

    def release_storage(self, held: Held, left: Sequence[Mapping[str, float]] = ()) -> list[str]:
        """Give back its storage, and count what is left: by location, path → MiB. Returns where that is too much."""
        self.ledger.unbook(held.storage)
        for location, sizes in zip(held.chosen, left, strict=False):
            if any(sizes.values()):
                disks = {path: Storage(path, size, {path}) for path, size in sizes.items() if size}
                self.ledger.occupy(
                    [(level.id, storage_of(amounts_of(level))) for level in self._levels(location, disks)]
                )
        self.freed.update(name for name, _ in held.storage)
        names = dict.fromkeys(name for name, _ in held.storage)
        return [name for name in names if any(count < 0 for _, count in self.ledger.free(name).named)]

    def _levels(self, location: Any, disks: dict[str, Storage]) -> list[Level]:
        try:
            return levels(location, Hardware(storage={**disks}), self.real)
        except PlacementError:  # it has written somewhere that is not counted
            return []

    def forget(self, allocation: JobAllocation) -> None:
        """Take a job out of the lists of its locations."""
        held = self._held.get(allocation.job)
        chosen = held.chosen if held is not None else self._chosen(allocation)
        for entry in self._entries(chosen):
            if allocation.job in entry.jobs:
                entry.jobs.remove(allocation.job)

    def _chosen(self, allocation: JobAllocation) -> list[Any]:
        """The locations of a job as they were offered last."""
        found = [self.known.get(identity(each)) for each in allocation.locations]
        return [each for each in found if each is not None]

    @property
    def booked(self) -> dict[str, Amounts]:
        """Location → the sum of what jobs hold there."""
        out: dict[str, Amounts] = {}
        for held in self._held.values():
            for name, amounts in (*held.rows, *held.storage):
                out[name] = out.get(name, Amounts()).plus(amounts, 1)
        return out


def topmost(paths: Sequence[str]) -> list[str]:
    """The paths without those that are below another, each once."""
    every = {posixpath.normpath(path) for path in paths}
    return sorted(path for path in every if not any(above in every for above in _above(path)))


def _above(path: str) -> Iterator[str]:
    while (above := posixpath.dirname(path)) != path:
        yield above
        path = above
