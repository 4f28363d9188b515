"""Limits as clients are told of them: how each stands, and why it lets nothing start."""

import math
from typing import Any

from rota.core.state import State
from rota.core.stimuli import At
from rota.model.amounts import format_duration
from rota.model.limits import Rule
from rota.model.shape import Shape
from rota.schedule.limits import at_time, blocked
from rota.schedule.view import Limit

__all__ = ["limit_reason", "limit_rows"]


def limit_rows(state: State, at: At) -> list[dict[str, Any]]:
    """Every limit that is set or in use."""
    rows = []
    for name in sorted(state.limits):
        limit = _now(state, name, at)
        timed = limit.rate is not None or limit.window is not None
        if name.startswith("#") or not (limit.count is not None or limit.used or timed):
            continue
        row: dict[str, Any] = {"name": name, "count": limit.count, "used": limit.used}
        row["rate"] = Rule(rate=limit.rate, per_s=limit.per_s).rate_text
        row["started"] = None if limit.rate is None or limit.left is None else limit.rate - limit.left
        row["next_in_s"] = _seconds(_rate_wait(state, name, limit, at))
        row["window"] = None if limit.window is None else limit.window.words
        row["open"] = None if limit.window is None else limit.closed is None
        row["opens_in_s"] = _seconds(_window_wait(limit, at))
        rows.append(row)
    return rows


def limit_reason(state: State, shape: Shape, at: At) -> str | None:
    """Which limit keeps a shape from starting now, and until when."""
    limits = {name: _now(state, name, at) for name in shape.limits if name in state.limits}
    for name in shape.limits:
        no = blocked(Shape(shape.needs, (name,)), limits)
        if no is None:
            continue
        code, words, _ = no
        wait = None
        if code == "closed":
            wait = _window_wait(limits[name], at)
            more = f" (in {_duration(wait)})" if wait is not None else ": set another, or remove it (rota limit)"
            return words + more
        if code == "rate":
            wait = _rate_wait(state, name, limits[name], at)
        return words if wait is None else f"{words}; next start in {_duration(wait, spaced=True)}"
    return None


def _now(state: State, name: str, at: At) -> Limit:
    steady = state.steady(at.wall, at.mono)
    return at_time(state.limits[name], state.starts.get(name), at.wall + at.utc_offset_s, steady)


def _window_wait(limit: Limit, at: At) -> float | None:
    if limit.window is None or limit.closed is None:
        return None
    local = at.wall + at.utc_offset_s
    opens = limit.window.opens(local)
    return None if opens is None else opens - local


def _rate_wait(state: State, name: str, limit: Limit, at: At) -> float | None:
    if limit.rate is None or name not in state.starts:
        return None
    steady = state.steady(at.wall, at.mono)
    frees = state.starts[name].frees(steady, limit.per_s, limit.rate)
    return None if frees is None else max(0.0, frees - steady)


def _seconds(wait: float | None) -> float | None:
    return None if wait is None else round(wait, 3)


def _duration(wait: float, spaced: bool = False) -> str:
    """Seconds below two minutes, else minutes: nobody needs the seconds of an hour."""
    seconds = math.ceil(wait)
    if seconds < 120:
        return f"{seconds} s" if spaced else f"{seconds}s"
    return format_duration(-(-seconds // 60) * 60)
