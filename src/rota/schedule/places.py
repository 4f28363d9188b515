"""The places of a pass, in trees: the best one with room for a shape is found without looking at all of them."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rota.model.needs import Amounts, Needs
from rota.model.shape import Shape
from rota.schedule import scorers
from rota.schedule.ledger import Free
from rota.schedule.tree import ANY, NONE, Tree, Vector
from rota.schedule.view import NODE, Place, View

__all__ = ["LEEWAY_S", "Places", "Spot", "asked_bound"]

LEEWAY_S = 0.01
"""Trees go by times that are this much too generous, whatever is rounded: the filters know exactly."""
_ANY_SHAPE = Shape(Needs())
"""The scorers that trees go by do not look at the shape."""


class Spot:
    """A place with its keys in the trees."""

    __slots__ = ("free", "group", "key", "place", "rank")

    def __init__(self, place: Place, rank: int, group: int) -> None:
        self.place = place
        self.rank = rank
        """Its place in the order of the view."""
        self.group = group
        """Number of its group: places that differ in size, use and end only."""
        self.key: tuple[float, int] | None = None
        """Its key in the tree of its group, best first; None: its runner takes no jobs."""
        self.free = Amounts()
        """What is free there and above it."""

    def bound(self, wall: float, names: Sequence[str], most_s: float = NONE) -> Vector:
        """The largest vector of a waiting shape that has room here now, and ends here in time."""
        return free_bound(self.free, self.place.location.until, wall, names, most_s)


def free_bound(free: Amounts, until: float | None, wall: float, names: Sequence[str], most_s: float = NONE) -> Vector:
    """The bound of what is free at a place up to a wall-clock time."""
    left_s = NONE if until is None else until - wall + LEEWAY_S
    bound = (free.cores, free.memory, free.disk, free.gpus, _share(free), left_s, most_s, NONE)
    if not names:
        return bound
    have = dict(free.named)
    return (*bound, *[have.get(name, 0) for name in names])


def _share(free: Amounts) -> int:
    return 1000 if free.gpus > 0 else free.gpu_share


def asked_bound(amounts: Amounts, must_s: float, wall: float) -> Vector:
    """What the vector of a place must not exceed: all of it is negative there, so that more is less."""
    return (
        -amounts.cores if amounts.cores else NONE,
        -amounts.memory if amounts.memory else NONE,
        -amounts.disk if amounts.disk else NONE,
        -amounts.gpus if amounts.gpus else NONE,
        -amounts.gpu_share if amounts.gpu_share else NONE,
        LEEWAY_S - wall - must_s,
    )


def _vector(free: Amounts, until: float | None) -> Vector:
    end = ANY if until is None else -until
    return (-free.cores, -free.memory, -free.disk, -free.gpus, -_share(free), end)


class Places:
    """Every place, by the id of its runner; those that take jobs also in trees, one of each kind per group."""

    def __init__(self, weights: Mapping[str, float]) -> None:
        self.spots: dict[str, Spot] = {}
        self._scorers = scorers.at_level(weights, NODE)
        self.groups: dict[tuple[Any, ...], int] = {}
        """What the places of a group have in common → its number."""
        self.examples: list[Place] = []
        """A place of each group."""
        self.suited: dict[tuple[object, ...], tuple[int, ...]] = {}
        """Site, tags and options that are asked for → the groups of places that have them."""
        self._free: list[Tree] = []
        """Per group, places by score: what is free."""
        self._sizes: list[Tree] = []
        """Per group, places by rank: what there is when they are empty."""
        self._at: dict[int, Spot] = {}
        """Rank → place."""
        self._ranks: dict[str, int] = {}
        self._next_rank = 0
        self._members: dict[str, dict[str, None]] = {}
        """Location with a capacity → runners whose use is counted there."""
        self._chains: dict[str, tuple[str, ...]] = {}
        self.nested = False
        """Whether use is counted above places too."""
        self._view: list[Place] | None = None
        self.changes = 0
        """Grows whenever a place comes, goes, or has another amount free."""

    def view(self) -> Sequence[Place]:
        """All places, in order."""
        if self._view is None:
            self._view = [spot.place for spot in sorted(self.spots.values(), key=lambda spot: spot.rank)]
        return self._view

    def put(self, place: Place, view: View) -> bool:
        """Add or change a place; False: it is of a group that was not there before."""
        location = place.location
        group_key = (location.site, location.tags, location.options, location.queue)
        group = self.groups.get(group_key)
        known = group is not None
        if group is None:
            group = self.groups[group_key] = len(self.groups)
            self.examples.append(place)
            self.suited.clear()
            self._free.append(Tree())
            self._sizes.append(Tree())
        self.drop(place.runner)
        rank = self._ranks.get(place.runner)
        if rank is None:
            rank = self._ranks[place.runner] = self._next_rank
            self._next_rank += 1
        spot = self.spots[place.runner] = self._at[rank] = Spot(place, rank, group)
        chain = self._chains[place.runner] = tuple(
            [each.id for each in view.ledger.path(location.id) if each.capacity is not None and not each.shared_only]
        )
        self.nested = self.nested or len(chain) > 1
        for name in (location.id, *chain):
            self._members.setdefault(name, {})[place.runner] = None
        if place.status == "SERVING":
            size = location.capacity if location.capacity is not None else _BOUNDLESS
            self._sizes[group].put((rank,), _vector(size, location.until))
            self._measure(spot, view)
        self._view = None
        self.changes += 1
        return known

    def drop(self, runner: str) -> None:
        """Take away a place, if it is there; its rank stays known."""
        spot = self.spots.pop(runner, None)
        if spot is None:
            return
        if spot.key is not None:
            self._free[spot.group].drop(spot.key)
            self._sizes[spot.group].drop((spot.rank,))
        del self._at[spot.rank]
        for name in {spot.place.location.id, *self._chains.pop(runner)}:
            members = self._members[name]
            del members[runner]
            if not members:
                del self._members[name]
        self._view = None
        self.changes += 1

    def forget(self, runner: str) -> None:
        """Take away a place whose runner is forgotten: should it come again, it is a new one."""
        self.drop(runner)
        self._ranks.pop(runner, None)

    def refresh(self, changed: set[str], view: View) -> list[Spot]:
        """Look again at places where, or above which, another amount is free; empties `changed`."""
        found: dict[str, None] = {}
        for name in changed:
            found.update(self._members.get(name, ()))
        changed.clear()
        spots = [self.spots[runner] for runner in found]
        for spot in spots:
            if spot.key is not None:
                self._measure(spot, view)
        return spots

    def _measure(self, spot: Spot, view: View) -> None:
        free = _free_along(view.ledger, spot.place.location.id, self._chains[spot.place.runner])
        key = (-self._score(spot.place, view), spot.rank)
        if key == spot.key and free == spot.free:
            return  # what was taken has been given back
        tree = self._free[spot.group]
        if spot.key is not None:
            tree.drop(spot.key)
        spot.free, spot.key = free, key
        tree.put(key, _vector(free, spot.place.location.until))
        self.changes += 1

    def _score(self, place: Place, view: View) -> float:
        return scorers.score_of(self._scorers, _ANY_SHAPE, place, view)

    def with_room(self, groups: Sequence[int], bound: Vector) -> Iterator[Spot]:
        """The places of these groups with room, best first, each once; they may be charged meanwhile."""
        if len(groups) == 1:
            for _, rank in self._free[groups[0]].fitting(bound):
                yield self._at[rank]
            return
        nexts = {group: key for group in groups if (key := self._free[group].first(bound)) is not None}
        while nexts:
            group = min(nexts, key=nexts.__getitem__)
            key = nexts[group]
            yield self._at[key[1]]
            after = self._free[group].first(bound, key)
            if after is None:
                del nexts[group]
            else:
                nexts[group] = after

    def large_enough(self, groups: Sequence[int], bound: Vector) -> Iterator[Spot]:
        """The places of these groups that have room when they are empty, by group."""
        for group in groups:
            for (rank,) in self._sizes[group].fitting(bound):
                yield self._at[rank]

    def largest(self, groups: Sequence[int], wall: float, names: Sequence[str], since: float) -> Vector | None:
        """The same for places that are empty, and shapes that wait since then or longer."""
        bound = self._most(self._sizes, groups, wall, names)
        return None if bound is None else (*bound[:7], since, *bound[8:])

    def most_free(self, groups: Sequence[int], wall: float, names: Sequence[str]) -> Vector | None:
        """A bound that no vector exceeds which has room at a place of these groups; None: there is none."""
        return self._most(self._free, groups, wall, names)

    def _most(self, trees: list[Tree], groups: Sequence[int], wall: float, names: Sequence[str]) -> Vector | None:
        rows = [least for group in groups if (least := trees[group].least()) is not None]
        if not rows:
            return None
        cores, memory, disk, gpus, share, end = map(min, *rows) if len(rows) > 1 else rows[0]
        return (-cores, -memory, -disk, -gpus, -share, LEEWAY_S - end - wall, NONE, NONE, *[NONE] * len(names))


_BOUNDLESS = Amounts(1 << 62, 1 << 62, 1 << 62, 1 << 62)


def _free_along(ledger: Free, location_id: str, chain: Sequence[str]) -> Amounts:
    """What is free at every location of a path. Of what a site has once for all of it, any number: others watch it."""
    shared = ledger.shared_along(location_id)
    if not chain:
        return _BOUNDLESS
    if len(chain) == 1 and not shared:
        return ledger.free(chain[0])
    frees = [ledger.free(name) for name in chain]
    least = frees[0]
    cores, memory, disk, gpus, share = least.cores, least.memory, least.disk, least.gpus, _share(least)
    plain = not (shared or least.named)
    for free in frees[1:]:
        cores, memory, disk = min(cores, free.cores), min(memory, free.memory), min(disk, free.disk)
        gpus, share = min(gpus, free.gpus), min(share, _share(free))
        plain = plain and not free.named
    named: tuple[tuple[str, int], ...] = ()
    if not plain:
        have = [dict(free.named) | dict.fromkeys(shared, _BOUNDLESS.cores) for free in frees]
        names = {name for each in have for name in each}
        named = tuple(sorted([(name, min([each.get(name, 0) for each in have])) for name in names]))
    return Amounts(cores, memory, disk, gpus, named, share)
