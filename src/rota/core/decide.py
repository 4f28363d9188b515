"""Decide: from the state and a stimulus to events. Every guard lives on this side; nothing is changed here."""

from rota.core import allocating, changes, reports
from rota.core.decision import Decision
from rota.core.dependencies import check_targets
from rota.core.state import State
from rota.core.stimuli import (
    AllocationSeen,
    At,
    ChangeJobs,
    Disconnected,
    Greet,
    Report,
    RunnerBye,
    SetLimits,
    SetMode,
    SiteSeen,
    Stimulus,
    Submit,
    Touch,
)
from rota.model import events as ev
from rota.model.errors import RefusedError, UsageError
from rota.model.limits import NAME, Rule, Window, parse_rule, parse_window
from rota.schedule.demand import impossible

__all__ = ["decide"]


def decide(state: State, stimulus: Stimulus) -> Decision:
    """The decision on any stimulus but Tick (which also needs the time of the last one)."""
    made: Decision = _DECIDE[type(stimulus)](state, stimulus)  # type: ignore[operator]
    return made


def _submit(state: State, stimulus: Submit) -> Decision:
    known = state.keys.get(stimulus.key)
    if known is not None:
        return Decision(reply={"batch": known, "jobs": state.batches[known].count, "duplicates": 0, "warnings": []})
    spec = stimulus.spec
    spec.check()
    if state.mode == "draining":
        raise RefusedError("the manager is draining and takes no new work: wait until it is down, then add again")
    sites = state.site_views()
    for template in spec.templates:
        why = impossible(template.needs, sites)
        if why is not None:
            raise UsageError(f"this can never run: {why}")
    warnings = check_targets(state, spec.after)
    decision = Decision()
    for name, setting in (stimulus.limits or {}).items():
        decision.events.append(_limit(name, setting, stimulus.at))
    for name in {name for template in spec.templates for name in template.limits if "<" in name}:
        _check_window(name, parse_window(name), stimulus.at)
    number = state.next_batch
    decision.events.append(
        ev.Submitted(
            number, spec, stimulus.key, stimulus.at.wall, stimulus.stage, stimulus.env, stimulus.runs, stimulus.by
        )
    )
    decision.reconsider.add(number)
    if spec.name:
        decision.reconsider.update(state.waiters.get(f"@{spec.name}", ()))
    decision.reply = {"batch": number, "jobs": spec.count, "duplicates": 0, "warnings": warnings}
    return decision


def _set_mode(state: State, stimulus: SetMode) -> Decision:
    if stimulus.mode not in ("serving", "paused", "draining"):
        raise UsageError(f"no such mode: {stimulus.mode}")
    decision = Decision(reply={"state": stimulus.mode})
    if stimulus.mode != state.mode:
        decision.events.append(ev.ManagerMoved(stimulus.mode, stimulus.by))
    return decision


def _limit(name: str, setting: int | str | None, at: At) -> ev.LimitSet:
    if not NAME.fullmatch(name):
        raise UsageError(f"limit '{name}': a name of letters, digits, '_', '.', '-', as in irods:10")
    rule = Rule() if setting is None else parse_rule(name, str(setting))
    if rule.window is not None:
        _check_window(f"{name}:{setting}", rule.window, at)
    return ev.LimitSet(
        name, rule.count, rule.rate, rule.per_s, rule.window.name if rule.window is not None else None
    )


def _check_window(text: str, window: Window, at: At) -> None:
    if window.never(at.wall + at.utc_offset_s):
        raise UsageError(f"limit '{text}': this window can never open: it is over (times are the manager's local time)")


def _set_limits(state: State, stimulus: SetLimits) -> Decision:
    return Decision(events=[_limit(name, setting, stimulus.at) for name, setting in stimulus.counts.items()])


_DECIDE = {
    Submit: _submit,
    ChangeJobs: changes.change,
    SetMode: _set_mode,
    SetLimits: _set_limits,
    Greet: reports.greet,
    Report: reports.report,
    Touch: reports.touch,
    RunnerBye: reports.bye,
    Disconnected: reports.disconnected,
    SiteSeen: allocating.site_seen,
    AllocationSeen: allocating.allocation_seen,
}
