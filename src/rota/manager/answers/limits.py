"""Limits as clients are told of them."""

from typing import Any

from rota.core.explain import limit_now, rate_wait, window_wait
from rota.core.state import State
from rota.core.stimuli import At
from rota.model.limits import Rule

__all__ = ["limit_rows"]


def limit_rows(state: State, at: At) -> list[dict[str, Any]]:
    """Every limit that is set or in use."""
    rows = []
    for name in sorted(state.limits):
        limit = limit_now(state, name, at)
        timed = limit.rate is not None or limit.window is not None
        if name.startswith("#") or not (limit.count is not None or limit.used or timed):
            continue
        row: dict[str, Any] = {"name": name, "count": limit.count, "used": limit.used}
        row["rate"] = Rule(rate=limit.rate, per_s=limit.per_s).rate_text
        row["started"] = None if limit.rate is None or limit.left is None else limit.rate - limit.left
        row["next_in_s"] = _seconds(rate_wait(state, name, limit, at))
        row["window"] = None if limit.window is None else limit.window.words
        row["open"] = None if limit.window is None else limit.closed is None
        row["opens_in_s"] = _seconds(window_wait(limit, at))
        rows.append(row)
    return rows


def _seconds(wait: float | None) -> float | None:
    return None if wait is None else round(wait, 3)
