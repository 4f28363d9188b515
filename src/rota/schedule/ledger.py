"""The ledger: what is in use at every Location, never more than there is.

A reservation is charged at the location and, while it is `stacked`, at each parent above. A charge that would make
anything negative is a bug of the caller and raises: over-commit must be impossible, not unlikely.
"""

from collections.abc import Callable, Iterable, Iterator

from msgspec.structs import replace

from rota.model.location import Kind, Location
from rota.model.needs import Amounts

__all__ = ["Free", "Ledger", "Row"]

_NOTHING = Amounts()
Row = tuple[str, Amounts]
"""(location, what is asked of it alone): one level of a booking."""


class Ledger:
    """Capacity and use along the one tree of locations."""

    def __init__(self) -> None:
        self.locations: dict[str, Location] = {}
        self.used: dict[str, Amounts] = {}
        self.changed: set[str] = set()
        """Locations where another amount is free than when the scheduler last looked, which empties this."""
        self.gpus: dict[str, list[int]] = {}
        """Node → how many thousandths of each of its gpus are in use."""
        self.single: set[str] = set()
        """Nodes that are given one reservation at a time. Not kept: whoever says so says it anew after a start."""
        self._free: dict[str, Amounts] = {}
        self._shared: dict[str, tuple[str, ...]] = {}
        """Site → the named resources that it has once for all of it."""
        self._chains: dict[str, tuple[str, ...]] = {}
        self.view = Free(self)
        """What policies may see of it."""

    def add(self, location: Location) -> None:
        """Add a location, or change it; what is in use stays so (if capacity shrinks below it, nothing more fits)."""
        self.locations[location.id] = location
        self._chains.clear()
        self.used.setdefault(location.id, _NOTHING)
        if location.kind == Kind.SITE and location.shared != self._shared.get(location.id, ()):
            self._shared[location.id] = location.shared
            for each in self.locations.values():
                if each.site == location.site:
                    self._refresh(each.id)
        self._refresh(location.id)

    def drop(self, location_id: str) -> None:
        """Take a location away; nothing may be in use there."""
        assert self.used.get(location_id, _NOTHING) == _NOTHING, f"{location_id} is dropped while in use"
        self._chains.clear()
        self.locations.pop(location_id, None)
        self.single.discard(location_id)
        self.used.pop(location_id, None)
        self.gpus.pop(location_id, None)
        self._free.pop(location_id, None)

    def set_single(self, location_id: str, single: bool) -> None:
        """Give a node one reservation at a time, or as many as fit again."""
        if single != (location_id in self.single):
            (self.single.add if single else self.single.discard)(location_id)
            self._refresh(location_id)

    def takes_one(self, location_id: str) -> bool:
        """Whether a node is given one reservation at a time."""
        return location_id in self.single

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

    def shared_along(self, location_id: str) -> list[str]:
        """Named resources that are counted once for all that is below a location of the path."""
        if not self._shared:
            return []
        return [name for location in self.path(location_id) for name in location.shared]

    def free(self, location_id: str) -> Amounts:
        """What is free at this location itself."""
        return self._free.get(location_id, _NOTHING)

    def free_cores(self, location_id: str, most: int) -> int:
        """Millicores that are free at a location and above it, up to `most`: where only licences are counted, any."""
        for name in self.chain(location_id):
            if not self.locations[name].shared_only:
                most = min(most, self._free[name].cores)
        return most

    def part(self, location_id: str, amounts: Amounts) -> Amounts:
        """What of `amounts` is counted at a location: named resources that a site has once are counted there only."""
        location = self.locations[location_id]
        if location.shared_only:
            return Amounts(named=tuple([pair for pair in amounts.named if pair[0] in location.shared]))
        shared = self._shared.get(location.site) if self._shared and amounts.named else None
        if not shared or location.shared:
            return amounts
        return replace(amounts, named=tuple([pair for pair in amounts.named if pair[0] not in shared]))

    def room(self, location_id: str, amounts: Amounts) -> int:
        """How many of `amounts` can still be reserved at a location, parents included."""
        most = 1 << 30
        for counted in self.chain(location_id):
            most = min(most, self.part(counted, amounts).times_in(self._free[counted]))
            if most <= 0:
                return 0
        return min(most, 1) if location_id in self.single else most

    def shortage(self, location_id: str, amounts: Amounts) -> Amounts | None:
        """What is free at the first location of the path that has not enough for one of `amounts`; None: it fits.

        Of what is not counted there, enough is free.
        """
        chain, plain = self._chains.get(location_id), not self._shared
        for counted in self.chain(location_id) if chain is None else chain:
            free = self._free[counted]
            if plain:
                if not amounts.fits(free):
                    return free
            elif not (part := self.part(counted, amounts)).fits(free):
                return free.plus(amounts).plus(part, -1)
        return None

    def pick_gpus(self, location_id: str, amounts: Amounts) -> tuple[int, ...]:
        """The gpus of a node that a slot of `amounts`, for which there is room, should have.

        Whole ones lowest first; a part of that which has the least left, so that whole ones stay free.
        """
        if not amounts.gpus and not amounts.gpu_share:
            return ()
        used = self.gpus.get(location_id, [])
        if amounts.gpus:
            return tuple([number for number, share in enumerate(used) if not share][: amounts.gpus])
        fits = [(-share, number) for number, share in enumerate(used) if share + amounts.gpu_share <= 1000]
        return (min(fits)[1],) if fits else ()

    def charge(self, location_id: str, amounts: Amounts, count: int, gpus: tuple[int, ...] = ()) -> None:
        """Reserve (`count` > 0) or give back (< 0) so many of `amounts`, with these gpus, at a location."""
        if gpus:
            self._charge_gpus(location_id, amounts, count, gpus)
        plain = not self._shared
        current: str | None = location_id
        while current is not None:
            location = self.locations[current]
            used = self.used[current].plus(amounts, count)
            if count < 0:
                assert not used.negative(), f"more is given back at {current} than was reserved"
            elif location.capacity is not None:
                part = amounts if plain else self.part(current, amounts)
                fits = part.times_in(self._free[current]) >= count or self._untold(location, part, count)
                assert fits, f"{current} is over-committed: {used} of {location.capacity}"
            self.used[current] = used
            if location.capacity is not None:
                self._refresh(current)
            current = location.parent if location.stacked else None

    def lacks(self, rows: Iterable[Row]) -> tuple[str, Amounts, Amounts] | None:
        """The first location that has too little for what is asked of it: (id, asked, free); None: all have enough."""
        for location_id, amounts in _added(rows).items():
            if location_id in self._free and not amounts.fits(self._free[location_id]):
                return location_id, amounts, self._free[location_id]
        return None

    def book(self, rows: Iterable[Row]) -> None:
        """Reserve at each location its own amounts: what is charged to a container and to its host may differ."""
        added = _added(rows)
        lacking = self.lacks(added.items())
        assert lacking is None, f"{lacking} is over-committed"
        self.occupy(added.items())

    def unbook(self, rows: Iterable[Row]) -> None:
        """Give back what was reserved so."""
        for location_id, amounts in _added(rows).items():
            used = self.used[location_id].plus(amounts, -1)
            assert not used.negative(), f"more is given back at {location_id} than was reserved"
            self.used[location_id] = used
            self._refresh(location_id)

    def occupy(self, rows: Iterable[Row]) -> None:
        """Count what is in use whether or not there was room for it; where there was not, nothing more fits."""
        for location_id, amounts in _added(rows).items():
            self.used[location_id] = self.used[location_id].plus(amounts, 1)
            self._refresh(location_id)

    def _untold(self, location: Location, amounts: Amounts, count: int) -> bool:
        """Whether all that a location lacks are names that it has none of: after a start, sites have not said yet what
        they have once for all.
        """
        have = dict(location.capacity.named) if location.capacity is not None else {}
        known = replace(amounts, named=tuple([pair for pair in amounts.named if pair[0] in have]))
        return known != amounts and known.times_in(self._free[location.id]) >= count

    def _charge_gpus(
        self, location_id: str, amounts: Amounts, count: int, gpus: tuple[int, ...], restoring: bool = False
    ) -> None:
        used = self.gpus.setdefault(location_id, [])
        used.extend([0] * (max(gpus) + 1 - len(used)))
        for number in gpus:
            used[number] += count * (amounts.gpu_share or 1000)
            assert used[number] >= 0, f"more of gpu {number} is given back at {location_id} than was reserved"
            assert used[number] <= 1000 or restoring, f"gpu {number} of {location_id} is given out twice"

    def restore(self, location_id: str, amounts: Amounts, count: int, gpus: tuple[int, ...] = ()) -> None:
        """Charge what a restart found in use, even where capacity has shrunk meanwhile."""
        if gpus:
            self._charge_gpus(location_id, amounts, count, gpus, restoring=True)
        for location in self.path(location_id):
            self.used[location.id] = self.used[location.id].plus(amounts, count)
            self._refresh(location.id)

    def _refresh(self, location_id: str) -> None:
        location = self.locations[location_id]
        if location.capacity is None:
            return
        free = location.capacity.plus(self.used[location_id], -1)
        if self._shared:
            free = self.part(location_id, free)
        if location.capacity.gpus:
            free = self._with_gpus(location, free)
        if location_id in self.single and self.used[location_id] != _NOTHING:
            free = _NOTHING
        self._free[location_id] = free
        self.changed.add(location_id)

    def _with_gpus(self, location: Location, free: Amounts) -> Amounts:
        """What is free, with whole gpus and the largest part of one: of a node by its gpus, above it by the sum."""
        assert location.capacity is not None
        if location.kind == Kind.NODE:
            known = self.gpus.setdefault(location.id, [])
            known.extend([0] * (location.capacity.gpus - len(known)))
            shares = known[: location.capacity.gpus]
            whole = min(free.gpus, sum([not share for share in shares]))  # slots of older versions do not say which
            part = max([1000 - share for share in shares if share], default=0)
        else:
            whole, part = divmod(1000 * free.gpus + free.gpu_share, 1000)
        return replace(free, gpus=whole, gpu_share=part)


def _added(rows: Iterable[Row]) -> dict[str, Amounts]:
    """Location → the sum of what is asked of it."""
    out: dict[str, Amounts] = {}
    for location_id, amounts in rows:
        known = out.get(location_id)
        out[location_id] = amounts if known is None else known.plus(amounts, 1)
    return out


class Free:
    """The ledger for reading: what is free where. Policies see only this."""

    __slots__ = ("chain", "free", "free_cores", "part", "path", "room", "shared_along", "shortage", "takes_one")
    chain: Callable[[str], tuple[str, ...]]
    free: Callable[[str], Amounts]
    free_cores: Callable[[str, int], int]
    part: Callable[[str, Amounts], Amounts]
    path: Callable[[str], Iterator[Location]]
    room: Callable[[str, Amounts], int]
    shared_along: Callable[[str], list[str]]
    shortage: Callable[[str, Amounts], Amounts | None]
    takes_one: Callable[[str], bool]

    def __init__(self, ledger: Ledger) -> None:
        put = object.__setattr__
        for name in self.__slots__:
            put(self, name, getattr(ledger, name))

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{name}: this is for reading only")
