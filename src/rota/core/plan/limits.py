"""Limits as they stand in a pass: windows and rates brought up to the moment, and how shapes share what is left."""

import math
from collections.abc import Collection, Iterator, Mapping

from msgspec.structs import replace

from rota.core.state import State
from rota.core.stimuli import At
from rota.schedule import limits
from rota.schedule.policy import in_order
from rota.schedule.tree import Key
from rota.schedule.view import Limit, View, Want

__all__ = ["few_parts", "left_over", "limits_now", "wake_times"]

_SLACK_S = 0.00001
"""Jobs are looked at this long after a window opens or a rate frees, whatever is rounded."""


_FEW = 4
"""A limit lets few shapes start if there are more than so many for each job that may."""


class _LimitsNow(Mapping[str, Limit]):
    """Every limit with what its window and its rate say at a moment. What is leased meanwhile counts at once."""

    def __init__(self, state: State, local: float, steady: float) -> None:
        self._state = state
        self._local = local
        self._steady = steady

    def __getitem__(self, name: str) -> Limit:
        state = self._state
        limit = state.limits[name]
        if name not in state.timed:
            return limit
        return limits.at_time(limit, state.starts.get(name), self._local, self._steady)

    def __iter__(self) -> Iterator[str]:
        return iter(self._state.limits)

    def __len__(self) -> int:
        return len(self._state.limits)


def limits_now(state: State, at: At) -> Mapping[str, Limit]:
    """Every limit with what its window and its rate say now."""
    if not state.timed:
        return state.limits
    return _LimitsNow(state, at.wall + at.utc_offset_s, state.steady(at.wall, at.mono))


def left_over(state: State, view: View) -> tuple[list[Want], list[int] | None]:
    """(what is left over of shapes of which it may be another number, shapes of which nothing is; None: all is told).

    All shapes together get no more than the limits leave.
    """
    planning = state.soft.planning
    waiting = planning.waiting
    unasked, planning.unasked = planning.unasked, set()
    few: dict[int, int] = {}
    if unasked is None:
        numbers: Collection[int] = waiting.entries
        out: set[int] = set()
        planning.told.clear()
    else:
        unasked |= planning.changed.shapes
        names = planning.touched.union(state.timed, *[state.shapes[number].shape.limits for number in unasked])
        few, out, others = _of_few(state, view, names, unasked)
        unasked |= {number for name in others for number in waiting.members.get(name, ())}
        numbers = waiting.sharing(unasked)
    planning.touched = set(planning.changed.limits)
    wants, gone = [], [*out, *[number for number in numbers if number not in waiting.entries]]
    for number in numbers:
        shape, entry = state.shapes[number], waiting.entries.get(number)
        if entry is not None and shape.ready:
            wants.append((entry.key, replace(entry.want, ready=shape.ready, slots=shape.slots)))
        elif entry is not None:
            gone.append(number)
    wants.sort(key=lambda row: row[0])
    still = [want for _, want in wants]
    if waiting.odd:
        still = in_order(still, view, state.settings.policies)
    if any(want.shape.limits for want in still):
        most, _ = limits.share(still, view.limits, state.starts, over_too=False)
        gone += [want.shape_id for want, count in zip(still, most, strict=True) if not count]
        still = [replace(want, ready=count) for want, count in zip(still, most, strict=True) if count]
        for want in still:
            if len(want.shape.limits) == 1 and want.shape.limits[0] in planning.told:
                planning.told[want.shape.limits[0]].add(want.shape_id)
    if few:
        still += [replace(waiting.entries[number].want, ready=count) for number, count in few.items()]
        still.sort(key=lambda want: waiting.entries[want.shape_id].key)
    return still, None if unasked is None else gone


def _of_few(state: State, view: View, names: set[str], unasked: set[int]) -> tuple[dict[int, int], set[int], set[str]]:
    """(shapes with their parts of limits that let few start, shapes of these that have none now, the other limits).

    The shapes are taken out of `unasked`. Which had a part was told before; nothing has changed for all the rest.
    """
    planning = state.soft.planning
    few: dict[int, int] = {}
    out: set[int] = set()
    others = set()
    for name in names:
        parts = None if planning.waiting.odd else few_parts(state, view.limits, name)
        told = planning.told.get(name)
        if parts is None or told is None:
            others.add(name)
            planning.told.pop(name, None)
            if parts is not None:
                planning.told[name] = set()
            continue
        members = planning.waiting.members.get(name, {})
        mine = {number for number in unasked if number in members}
        unasked -= mine
        few.update(parts)
        out |= (told | mine) - parts.keys()
        planning.told[name] = set(parts)
    return few, out, others


def few_parts(state: State, now: Mapping[str, Limit], name: str) -> dict[int, int] | None:
    """Of a limit that lets few of its many shapes start: those, and how many jobs of each; None: it is not like that.

    It is what `limits.share` says, without a look at all shapes.
    """
    waiting, limit = state.soft.planning.waiting, now.get(name)
    if name.startswith("#") or limit is None or limit.count is None or not waiting.is_alone(name):
        return None
    left = limits.room(limit)
    if left is None or left * _FEW >= len(waiting.members.get(name, ())):
        return None

    def look(key: Key) -> tuple[int, int] | None:
        entry, shape = waiting.entries.get(key[-1]), state.shapes[key[-1]]
        return (shape.slots, shape.ready) if entry is not None and entry.key == key else None

    return {key[-1]: count for key, count in waiting.fewest[name].parts(left, look).items()} if left else {}


def wake_times(state: State, now: Mapping[str, Limit], at: At) -> tuple[float, float]:
    """(when a window opens, by the wall clock; when a rate frees, by the monotonic one) that ready jobs wait for."""
    window_at = rate_at = math.inf
    if not state.timed:
        return window_at, rate_at
    steady, local = state.steady(at.wall, at.mono), at.wall + at.utc_offset_s
    members = state.soft.planning.waiting.members
    for name in state.timed & members.keys():
        if not any(state.shapes[number].ready for number in members[name]):
            continue
        limit = now[name]
        if limit.window is not None and limit.closed is not None:
            opens = limit.window.opens(local)
            if opens is not None:
                window_at = min(window_at, opens - at.utc_offset_s + _SLACK_S)
        if limit.rate is not None and name in state.starts:
            frees = state.starts[name].frees(steady, limit.per_s, limit.rate)
            if frees is not None:
                rate_at = min(rate_at, at.mono + frees - steady + _SLACK_S)
    return window_at, rate_at
