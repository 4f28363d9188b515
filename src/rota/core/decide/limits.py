"""Setting named limits, and refusing windows that can never open."""

from collections.abc import Iterable

from rota.core.decide.decision import Decision
from rota.core.state import State
from rota.core.stimuli import At, SetLimits
from rota.model import events as ev
from rota.model.errors import NotFoundError, UsageError
from rota.model.limits import NAME, Rule, Window, parse_rule, parse_window

__all__ = ["check_window", "is_changed", "limit_set", "no_rule", "set_limits"]


def set_limits(state: State, stimulus: SetLimits) -> Decision:
    """Set limits, or take some away that are there."""
    for name, setting in stimulus.counts.items():
        if setting is None and (not _is_set(state, name) or "<" in name):
            raise NotFoundError(f"there is no limit '{name}' that could be removed: see rota limit")
    return Decision(events=[limit_set(name, setting, stimulus.at) for name, setting in stimulus.counts.items()])


def limit_set(name: str, setting: int | str | None, at: At) -> ev.LimitSet:
    """The event that sets a limit to what is written after its name; None: takes it away."""
    if not NAME.fullmatch(name):
        raise UsageError(f"limit '{name}': a name of letters, digits, '_', '.', '-', as in irods:10")
    rule = Rule() if setting is None else parse_rule(name, str(setting))
    if rule.window is not None:
        check_window(f"{name}:{setting}", at, rule.window)
    return ev.LimitSet(name, rule.count, rule.rate, rule.per_s, rule.window.name if rule.window is not None else None)


def _is_set(state: State, name: str) -> bool:
    limit = state.limits.get(name)
    return limit is not None and (limit.count is not None or name in state.timed)


def no_rule(state: State, names: Iterable[str]) -> list[str]:
    """A warning about the limits of these names that limit nothing: no rule was given for them, or not yet."""
    missing = sorted(name for name in names if "<" not in name and not _is_set(state, name))
    if not missing:
        return []
    which = ", ".join(f"'{name}'" for name in missing)
    return [f"there is no rule for limit {which}: nothing is limited until one is set, as in rota limit {missing[0]}:4"]


def is_changed(state: State, event: ev.LimitSet) -> bool:
    """Whether a limit is set already, and to something else."""
    if not _is_set(state, event.name):
        return False
    old = state.limits[event.name]
    window = old.window.name if old.window is not None else None
    return (old.count, old.rate, old.per_s, window) != (event.count, event.rate, event.per_s, event.window)


def check_window(text: str, at: At, window: Window | None = None) -> None:
    """Refuse a limit whose window (None: the one that its name stands for, if any) can never open."""
    if window is None and "<" in text:
        window = parse_window(text)
    if window is not None and window.never(at.wall + at.utc_offset_s):
        raise UsageError(f"limit '{text}': this window can never open: it is over (times are the manager's local time)")
