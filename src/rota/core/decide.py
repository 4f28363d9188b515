"""Decide: from the state and a stimulus to events. Every guard lives on this side; nothing is changed here."""

from rota.core import allocating, changes, pausing, pruning, reports
from rota.core.decision import Decision
from rota.core.dependencies import check_targets
from rota.core.state import State
from rota.core.stimuli import (
    AllocationSeen,
    ChangeJobs,
    Disconnected,
    Greet,
    Prune,
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
from rota.model.batch import LIMIT
from rota.model.errors import RefusedError, UsageError
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
    for name, count in (stimulus.limits or {}).items():
        decision.events.append(_limit(name, count))
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


def _limit(name: str, count: int | None) -> ev.LimitSet:
    if not LIMIT.fullmatch(name):
        raise UsageError(f"limit '{name}': a name of letters, digits, '_', '.', '-', as in irods:10")
    if count is not None and count < 0:
        raise UsageError(f"limit {name}:{count}: give 0 or more")
    return ev.LimitSet(name, count)


def _set_limits(state: State, stimulus: SetLimits) -> Decision:
    return Decision(events=[_limit(name, count) for name, count in stimulus.counts.items()])


_DECIDE = {
    Submit: _submit,
    ChangeJobs: changes.change,
    SetMode: pausing.set_mode,
    Prune: pruning.prune,
    SetLimits: _set_limits,
    Greet: reports.greet,
    Report: reports.report,
    Touch: reports.touch,
    RunnerBye: reports.bye,
    Disconnected: reports.disconnected,
    SiteSeen: allocating.site_seen,
    AllocationSeen: allocating.allocation_seen,
}
