"""The ledger: what is in use at every Location, never more than there is.

A reservation is charged at the location and, while it is `stacked`, at each parent above. A charge that would make
anything negative is a bug of the caller and raises: over-commit must be impossible, not unlikely.
"""

from collections.abc import Iterator

from rota.model.location import Location
from rota.model.needs import Amounts

__all__ = ["Ledger"]

_NOTHING = Amounts()


class Ledger:
    """Capacity and use along the one tree of locations."""

    def __init__(self) -> None:
        self.locations: dict[str, Location] = {}
        self.used: dict[str, Amounts] = {}
        self.changed: set[str] = set()
        """Locations where another amount is free than when the scheduler last looked, which empties this."""
        self._free: dict[str, Amounts] = {}
        self._chains: dict[str, tuple[str, ...]] = {}

    def add(self, location: Location) -> None:
        """Add a location, or change it; what is in use stays so (if capacity shrinks below it, nothing more fits)."""
        self.locations[location.id] = location
        self._chains.clear()
        self.used.setdefault(location.id, _NOTHING)
        self._refresh(location.id)

    def drop(self, location_id: str) -> None:
        """Take a location away; nothing may be in use there."""
        assert self.used.get(location_id, _NOTHING) == _NOTHING, f"{location_id} is dropped while in use"
        self._chains.clear()
        self.locations.pop(location_id, None)
        self.used.pop(location_id, None)
        self._free.pop(location_id, None)

    def path(self, location_id: str) -> Iterator[Location]:
        """The location and every parent that its use is charged to."""
        current: str | None = location_id
        while current is not None:
            location = self.locations[current]
            yield location
            current = location.parent if location.stacked else None

    def chain(self, location_id: str) -> tuple[str, ...]:
        """Ids of the locations on the path that have a capacity."""
        chain = self._chains.get(location_id)
        if chain is None:
            chain = tuple(location.id for location in self.path(location_id) if location.capacity is not None)
            self._chains[location_id] = chain
        return chain

    def free(self, location_id: str) -> Amounts:
        """What is free at this location itself."""
        return self._free.get(location_id, _NOTHING)

    def room(self, location_id: str, amounts: Amounts) -> int:
        """How many of `amounts` can still be reserved at a location, parents included."""
        most = 1 << 30
        for counted in self.chain(location_id):
            most = min(most, amounts.times_in(self._free[counted]))
            if most <= 0:
                return 0
        return most

    def shortage(self, location_id: str, amounts: Amounts) -> Amounts | None:
        """What is free at the first location of the path that has not enough for one of `amounts`; None: it fits."""
        chain = self._chains.get(location_id)
        for counted in self.chain(location_id) if chain is None else chain:
            free = self._free[counted]
            if not amounts.fits(free):
                return free
        return None

    def charge(self, location_id: str, amounts: Amounts, count: int) -> None:
        """Reserve (`count` > 0) or give back (< 0) so many of `amounts` at a location."""
        for location in self.path(location_id):
            used = self.used[location.id].plus(amounts, count)
            assert not used.negative(), f"more is given back at {location.id} than was reserved"
            if count > 0 and location.capacity is not None:
                fits = amounts.times_in(self._free[location.id]) >= count
                assert fits, f"{location.id} is over-committed: {used} of {location.capacity}"
            self.used[location.id] = used
            self._refresh(location.id)

    def restore(self, location_id: str, amounts: Amounts, count: int) -> None:
        """Charge what a restart found in use, even where capacity has shrunk meanwhile."""
        for location in self.path(location_id):
            self.used[location.id] = self.used[location.id].plus(amounts, count)
            self._refresh(location.id)

    def _refresh(self, location_id: str) -> None:
        capacity = self.locations[location_id].capacity
        if capacity is not None:
            self._free[location_id] = capacity.plus(self.used[location_id], -1)
            self.changed.add(location_id)
