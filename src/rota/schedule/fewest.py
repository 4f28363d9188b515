"""Who is next at a limit: the shapes that hold the fewest slots of it, the highest priority before.

What is said is what `rota.schedule.limits.share` would say of a limit that is all that its shapes name; but it costs by
what is given out, not by who waits.
"""

from collections.abc import Callable
from heapq import heapify, heappop, heappush

from rota.schedule.tree import Key

__all__ = ["Fewest", "Look"]

Look = Callable[[Key], tuple[int, int] | None]
"""(slots that a shape holds, its ready jobs); None: no shape waits under this key."""

Row = tuple[float, int, Key]
"""(priority, negated; slots, never more than are held now, but perhaps fewer; key of a shape)."""


class Fewest:
    """The keys of shapes, which begin with the priority, negated. A shape may be here several times."""

    __slots__ = ("_heap",)

    def __init__(self) -> None:
        self._heap: list[Row] = []

    def put(self, key: Key, slots: int) -> None:
        """Add a shape, or say that it holds fewer slots; that it holds more is seen by itself."""
        heappush(self._heap, (key[0], slots, key))

    def parts(self, left: int, look: Look) -> dict[Key, int]:
        """How many jobs each shape may start, if so many may in all; those that may start none are not named."""
        ready: dict[Key, int] = {}
        given: dict[Key, int] = {}
        rows: list[Row] = []
        first: list[Row] = []
        """The shapes that have been looked at, with what they were given counted in."""
        while left > 0:
            row = self._next(look, ready, rows)
            if row is not None and (not first or row < first[0]):
                rows.append(row)
            elif first:
                if row is not None:
                    heappush(self._heap, row)
                    del ready[row[2]]
                row = heappop(first)
            else:
                break
            key = row[2]
            given[key] = given.get(key, 0) + 1
            left -= 1
            if given[key] < ready[key]:
                heappush(first, (row[0], row[1] + 1, key))
        for row in rows:
            heappush(self._heap, row)
        return given

    def _next(self, look: Look, ready: dict[Key, int], rows: list[Row]) -> Row | None:
        """Take out the first row that is true and whose shape is not in `ready`, and put it there."""
        while self._heap:
            row = heappop(self._heap)
            now = look(row[2])
            if now is None or row[2] in ready:
                continue
            if not now[1]:
                rows.append(row)
                continue
            if now[0] != row[1]:
                heappush(self._heap, (row[0], now[0], row[2]))
                continue
            ready[row[2]] = now[1]
            return row
        return None

    def trim(self, most: int) -> None:
        """Keep each row once, if there are more than so many."""
        if len(self._heap) > most:
            self._heap = list(dict.fromkeys(self._heap))
            heapify(self._heap)
