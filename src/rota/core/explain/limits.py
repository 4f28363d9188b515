"""Limits in words: which keep a shape from starting now, and until when."""

from rota.core.explain.account import Blocker, wait_words
from rota.core.state import State
from rota.core.stimuli import At
from rota.model.limits import rate_words
from rota.model.shape import Shape
from rota.schedule.limits import at_time
from rota.schedule.view import Limit

__all__ = ["limit_blockers", "limit_now", "rate_wait", "window_wait"]


def limit_blockers(state: State, shape: Shape, at: At) -> list[Blocker]:
    """Every limit that keeps a shape from starting now."""
    found = [blocker for name in shape.limits if name in state.limits for blocker in _of(state, name, at)]
    return sorted(found, key=lambda blocker: not blocker.lasting)


def _of(state: State, name: str, at: At) -> list[Blocker]:
    """What of one limit keeps jobs from starting: its window, its count, its rate."""
    limit = limit_now(state, name, at)
    if name.startswith("#"):
        if limit.count is None or limit.used < limit.count:
            return []
        number = name[1:]
        words = f"at most {limit.count:,} jobs of batch {number} run at a time (%{limit.count}), and {limit.used:,} do"
        if limit.count == 1:
            words = f"only one job of batch {number} runs at a time (%1), and {limit.used:,} does"
        return [Blocker("limit", words, command=f"rota modify {number} --at-once N")]
    command, found = f"rota limit {name}:N", []
    if limit.closed is not None:
        wait = window_wait(limit, at)
        words = f"limit {name} is closed {limit.closed}"
        words += f" (in {wait_words(wait)})" if wait is not None else ": set another, or remove it (rota limit)"
        until = None if wait is None else at.wall + wait
        found.append(Blocker("limit", words, wait is None, until, f"rota limit {name}:…"))
    if limit.count == 0:
        words = f"limit {name} is 0: no job that has it may start, and waiting does not help ({command} sets another)"
        found.append(Blocker("limit", words, True, None, command))
    elif limit.count is not None and limit.used >= limit.count:
        words = f"limit {name} is full: {limit.used:,} of {limit.count:,} in use"
        found.append(Blocker("limit", words, command=command))
    if limit.rate == 0:
        words = f"limit {name} lets no job start at all (its rate is 0), and waiting does not help"
        found.append(Blocker("limit", words, True, None, command))
    elif limit.left is not None and limit.left <= 0:
        wait = rate_wait(state, name, limit, at)
        words = f"limit {name}: {rate_words(limit.rate or 0, limit.per_s)} used up"
        words += "" if wait is None else f"; next start in {wait_words(wait)}"
        rate = f"rota limit {name}:N/{rate_words(limit.rate or 0, limit.per_s).rpartition(' ')[2]}"
        found.append(Blocker("limit", words, False, None if wait is None else at.wall + wait, rate))
    return found


def limit_now(state: State, name: str, at: At) -> Limit:
    """A limit with what its window and its rate say at a moment."""
    steady = state.steady(at.wall, at.mono)
    return at_time(state.limits[name], state.starts.get(name), at.wall + at.utc_offset_s, steady)


def window_wait(limit: Limit, at: At) -> float | None:
    """Seconds until the window of a limit opens; None: it is open, or never opens."""
    if limit.window is None or limit.closed is None:
        return None
    local = at.wall + at.utc_offset_s
    opens = limit.window.opens(local)
    return None if opens is None else opens - local


def rate_wait(state: State, name: str, limit: Limit, at: At) -> float | None:
    """Seconds until the rate of a limit lets the next job start; None: it lets one start now."""
    if limit.rate is None or name not in state.starts:
        return None
    steady = state.steady(at.wall, at.mono)
    frees = state.starts[name].frees(steady, limit.per_s, limit.rate)
    return None if frees is None else max(0.0, frees - steady)
