"""Limits as they stand in a pass: windows and rates brought up to the moment, and how shapes share what is left."""

import math
from collections.abc import Iterator, Mapping, Sequence

from msgspec.structs import replace

from rota.core.state import State
from rota.core.stimuli import At
from rota.schedule import limits
from rota.schedule.view import Limit, Want

__all__ = ["limits_now", "wake_times", "within_limits"]

_SLACK_S = 0.00001
"""Jobs are looked at this long after a window opens or a rate frees, whatever is rounded."""


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


def within_limits(state: State, wants: Sequence[Want], now: Mapping[str, Limit]) -> list[Want]:
    """The wants that are left, cut down to what the limits leave for all shapes together."""
    still = [
        replace(want, ready=shape.ready, slots=shape.slots, most=None)
        for want in wants
        if (shape := state.shapes[want.shape_id]).ready
    ]
    if any(want.shape.limits for want in still):
        most, _ = limits.share(still, now, state.starts)
        still = [replace(want, ready=count) for want, count in zip(still, most, strict=True) if count]
    return still


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
