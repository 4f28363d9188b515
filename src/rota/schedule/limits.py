"""Limits in the scheduler: what they leave now, and how the shapes that have one in common share it.

Every limit has one budget for all its shapes, never the sum of what each could take alone; and no job is looked at.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby

import msgspec

from rota.model.limits import DAY_S, local_text, rate_words
from rota.model.shape import Shape
from rota.model.verdict import Wake
from rota.schedule.view import Limit, Want

__all__ = ["Starts", "at_time", "blocked", "fits", "fits_names", "over_at", "room", "share"]

SLICES = 64


class Starts:
    """The starts that a rate still counts, and which shapes had them.

    Starts within a 64th of the period are kept as one, at the time of the last of them: never too few are counted, and
    a rate of a million a day costs no more than one of ten.
    """

    __slots__ = ("rows", "served")

    def __init__(self, rows: Iterable[tuple[float, float, int]] = ()) -> None:
        self.rows = list(rows)
        """(time of the first, time of the last, how many) starts, oldest first."""
        self.served: dict[int, int] = {}
        """Starts per shape, for fairness; not durable."""

    def take(self, shape_id: int, count: int, at: float, per_s: int) -> None:
        """Count starts of a shape, and forget those that are older than the period."""
        rows = self.rows
        if rows and rows[0][1] + per_s <= at:
            rows = self.rows = [row for row in rows if row[1] + per_s > at]
        if rows and at - rows[-1][0] < per_s / SLICES:
            rows[-1] = (rows[-1][0], max(at, rows[-1][1]), rows[-1][2] + count)
        else:
            rows.append((at, at, count))
        self.served[shape_id] = self.served.get(shape_id, 0) + count

    def counted(self, at: float, per_s: int) -> int:
        """How many started in the period that ends now."""
        return sum(count for _, last, count in self.rows if last + per_s > at)

    def frees(self, at: float, per_s: int, rate: int) -> float | None:
        """When the next job may start; None: one may now."""
        over = self.counted(at, per_s) - rate
        for _, last, count in self.rows:
            if over < 0:
                break
            if last + per_s > at:
                over -= count
                if over < 0:
                    return last + per_s
        return None


def at_time(limit: Limit, starts: Starts | None, local: float, steady: float) -> Limit:
    """The limit with what its window says at a local time, and its rate by a clock that nobody sets."""
    closed = left = None
    if limit.window is not None and not limit.window.is_open(local):
        opens = limit.window.opens(local)
        closed = "for good" if opens is None else f"until {_clock(opens, local)}"
    if limit.rate is not None:
        left = max(0, limit.rate - (starts.counted(steady, limit.per_s) if starts is not None else 0))
    if limit.closed == closed and limit.left == left:
        return limit
    return msgspec.structs.replace(limit, closed=closed, left=left)


def _clock(then: float, now: float) -> str:
    """A local time as text, as in `22:00`; with the date if it is more than a day away."""
    text = local_text(int(then))
    text = text[:-3] if text.endswith(":00") else text
    return text[11:] if then - now < DAY_S else text


def room(limit: Limit) -> int | None:
    """How many more jobs a limit lets start now; None: any number."""
    if limit.closed is not None:
        return 0
    if limit.count is None:
        return limit.left
    free = max(0, limit.count - limit.used)
    return free if limit.left is None else min(free, limit.left)


def fits(shape: Shape, limits: Mapping[str, Limit], most: int) -> int:
    """How many of `most` the limits of a shape let start now."""
    return fits_names(shape.limits, limits, most)


def fits_names(names: Sequence[str], limits: Mapping[str, Limit], most: int) -> int:
    """How many of `most` these limits let start now."""
    for name in names:
        limit = limits.get(name)
        left = room(limit) if limit is not None else None
        if left is not None and left < most:
            most = left
    return most


def blocked(shape: Shape, limits: Mapping[str, Limit]) -> tuple[str, str, str] | None:
    """(code, words, what may change it) of the first limit that lets nothing start."""
    for name in shape.limits:
        limit = limits.get(name)
        if limit is None:
            continue
        if limit.closed is not None:
            return "closed", f"limit {name} is closed {limit.closed}", Wake.TIME
        if limit.count is not None and limit.used >= limit.count:
            return "limit", f"limit {name} is full: {limit.used} of {limit.count} in use", Wake.LIMIT
        if limit.left is not None and limit.left <= 0:
            return "rate", f"limit {name}: {rate_words(limit.rate or 0, limit.per_s)} used up", Wake.TIME
    return None


def share(
    wants: Sequence[Want], limits: Mapping[str, Limit], starts: Mapping[str, Starts], over_too: bool = True
) -> tuple[list[int], set[int]]:
    """How many of each want's ready jobs may start now, and (`over_too`) who holds more than their fair part.

    `wants` come highest priority first. Of equal priority, those that share a limit get equal parts of it (what they
    hold counts), and who wants less leaves the rest to the others.
    """
    most = [want.ready for want in wants]
    over: set[int] = set()
    members: dict[str, list[int]] = {}
    for number, want in enumerate(wants):
        for name in want.shape.limits:
            members.setdefault(name, []).append(number)
    rooms = {name: left for name in members if name in limits and (left := room(limits[name])) is not None}
    for name in sorted(rooms, key=lambda name: (rooms[name] - sum([most[number] for number in members[name]]), name)):
        who, left, limit = members[name], rooms[name], limits[name]
        if left == 0 or sum([most[number] for number in who]) > left:
            counted = limit.count is not None
            served = starts[name].served if not counted and name in starts else {}
            for _, group in groupby(who, key=lambda number: wants[number].priority):
                left -= _fill(list(group), wants, most, left, None if counted else served)
        if over_too and limit.count is not None and len(who) > 1:
            over.update(over_at(who, wants, limit))
    return most, over


def _fill(who: list[int], wants: Sequence[Want], most: list[int], left: int, served: Mapping[int, int] | None) -> int:
    """Cut `most` so that these wants together take no more than is left; returns how much they take."""
    total = sum([most[number] for number in who])
    if total <= left:
        return total
    if left == 0:
        for number in who:
            most[number] = 0
        return 0
    if served is None:
        have = [wants[number].slots for number in who]
    else:  # a shape that was served least goes first; a new one does not get all that the others had before
        have = [served.get(wants[number].shape_id, 0) for number in who]
        newest = max(have)
        have = [max(had, newest - left) for had in have]
    spare, wanted = left, [most[number] for number in who]
    level = _level(have, wanted, left)
    for number, had in zip(who, have, strict=True):
        most[number] = min(most[number], max(0, level - had))
        spare -= most[number]
    for number, had, want in zip(who, have, wanted, strict=True):
        if spare and most[number] < want and had <= level:
            most[number] += 1
            spare -= 1
    return left - spare


def _level(have: list[int], want: list[int], left: int) -> int:
    """The highest water level at which all shapes, filled up to it, take no more than is left."""
    low = min(have)
    high = min(max(have) + left, max([had + more for had, more in zip(have, want, strict=True)]))
    while low < high:
        level = (low + high + 1) // 2
        if sum([min(more, max(0, level - had)) for had, more in zip(have, want, strict=True)]) <= left:
            low = level
        else:
            high = level - 1
    return low


def over_at(who: Sequence[int], wants: Sequence[Want], limit: Limit) -> list[int]:
    """Shapes that hold more slots than they would if all slots were given out anew."""
    assert limit.count is not None
    left = max(0, limit.count - limit.used + sum([wants[number].slots for number in who]))
    out = []
    for _, group in groupby(who, key=lambda number: wants[number].priority):
        these = list(group)
        ask = [wants[number].slots + wants[number].ready for number in these]
        if sum(ask) <= left:
            left -= sum(ask)
            continue
        level = _level([0] * len(ask), ask, left)
        out += [wants[number].shape_id for number in these if wants[number].slots > level + 1]
        left = 0
    return out
