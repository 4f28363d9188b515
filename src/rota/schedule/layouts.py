"""Layouts: on which of some nodes a job is, and with how many cores on each.

Pure arithmetic over what is free, in the order in which nodes are to be used. A range gets the most that is there now,
if that is at least its lower end; it never waits for more.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from rota.model.needs import Needs

__all__ = ["Room", "lay_out", "spread_out"]


class Room(NamedTuple):
    """One node, as far as a job that needs at least something of it is concerned."""

    free: int
    """Millicores that it could have now; 0: none, for whatever reason."""
    size: int
    """Millicores that it could ever have."""


Laid = list[tuple[int, int]]
"""(number of a node, millicores there), the root first."""


def lay_out(needs: Needs, rooms: Sequence[Room]) -> Laid | None:
    """Where a job goes; None: there is not enough for it now. `needs` has no variants."""
    if needs.span:
        return _spanning(needs, rooms)
    found: Laid = []
    most = max(needs.nodes, needs.nodes_most)
    for number, room in enumerate(rooms):
        if needs.whole:
            cores = room.size if room.free == room.size >= needs.cores else 0
        else:
            cores = min(max(needs.cores, needs.cores_most), room.free)
            if needs.cores_most:
                cores = max(cores // 1000 * 1000, needs.cores if room.free >= needs.cores else 0)
        if cores >= needs.cores:
            found.append((number, cores))
            if len(found) == most:
                break
    return found if len(found) >= needs.nodes else None


def _spanning(needs: Needs, rooms: Sequence[Room]) -> Laid | None:
    free = [room.free // 1000 for room in rooms]
    count = min(max(needs.cores, needs.cores_most) // 1000, sum(free))
    if count * 1000 < needs.cores:
        return None
    how = needs.span.rstrip("!")
    found = spread_out(how, free, count)
    if how != needs.span:
        best = len(spread_out(how, [room.size // 1000 for room in rooms], count))
        if (len(found) < best) if how == "scatter" else (len(found) > best):
            return None
    return [(number, cores * 1000) for number, cores in found]


def spread_out(how: str, free: Sequence[int], count: int) -> list[tuple[int, int]]:
    """(number of a node, cores there) for so many cores, of which that many must be free."""
    return HOW[how](free, count)


def _pack(free: Sequence[int], count: int) -> list[tuple[int, int]]:
    """As many as possible of each node in turn."""
    found = []
    for number, room in enumerate(free):
        if room > 0 and count > 0:
            found.append((number, min(room, count)))
            count -= min(room, count)
    return found


def _by_room(free: Sequence[int]) -> list[int]:
    return sorted(range(len(free)), key=lambda number: -free[number])


def _tight(free: Sequence[int], count: int) -> list[tuple[int, int]]:
    """As few nodes as possible, those with the most room filled first."""
    order = _by_room(free)
    return [(order[at], cores) for at, cores in _pack([free[number] for number in order], count)]


def _compact(free: Sequence[int], count: int) -> list[tuple[int, int]]:
    """As few nodes as possible, with as even parts as they have room for."""
    return _even(sorted(number for number, _ in _tight(free, count)), free, count)


def _scatter(free: Sequence[int], count: int) -> list[tuple[int, int]]:
    """As many nodes as possible, in even parts."""
    used = sorted([number for number in _by_room(free) if free[number] > 0][:count])
    return _even(used, free, count)


def _even(numbers: Sequence[int], free: Sequence[int], count: int) -> list[tuple[int, int]]:
    """Even parts of so many cores on these nodes; one with less room has all of it, and the others more."""
    parts: dict[int, int] = {}
    for at, number in enumerate(sorted(numbers, key=lambda number: free[number])):
        parts[number] = min(free[number], count // (len(numbers) - at))
        count -= parts[number]
    return [(number, parts[number]) for number in numbers]


HOW: dict[str, Callable[[Sequence[int], int], list[tuple[int, int]]]] = {
    "pack": _pack,
    "compact": _compact,
    "tight": _tight,
    "scatter": _scatter,
}
