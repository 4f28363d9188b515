"""Decide: from the state and a stimulus to events. Every guard lives on this side; nothing is changed here."""

from collections.abc import Callable, Iterator
from typing import Any

from rota.core.decide import allocations, jobs, limits, modes, pruning, runners, submissions
from rota.core.decide.decision import Decision
from rota.core.state import State
from rota.core.stimuli import (
    AllocationSeen,
    ChangeJobs,
    Disconnected,
    Greet,
    LastWords,
    Prune,
    Report,
    RunnerBye,
    SetLimits,
    SetMode,
    SiteFull,
    SiteSeen,
    Stimulus,
    Submit,
    Touch,
)

__all__ = ["decide", "preludes"]


def preludes(state: State, stimulus: Stimulus) -> Iterator[Decision]:
    """Decisions that come before the one proper, each applied by the caller before the next is made."""
    if isinstance(stimulus, Report | Touch):
        yield runners.back(state, stimulus.runner, stimulus.session)
    elif isinstance(stimulus, LastWords):
        yield from allocations.written_reports(state, stimulus)


def decide(state: State, stimulus: Stimulus) -> Decision:
    """The decision on any stimulus but Tick (which also needs the time of the last one)."""
    return _DECIDE[type(stimulus)](state, stimulus)


_DECIDE: dict[type[Stimulus], Callable[[State, Any], Decision]] = {
    Submit: submissions.submit,
    ChangeJobs: jobs.change,
    SetMode: modes.set_mode,
    Prune: pruning.prune,
    SetLimits: limits.set_limits,
    Greet: runners.greet,
    Report: runners.report,
    Touch: runners.touch,
    RunnerBye: runners.bye,
    Disconnected: runners.disconnected,
    SiteSeen: allocations.site_seen,
    SiteFull: allocations.site_full,
    AllocationSeen: allocations.allocation_seen,
    LastWords: allocations.last_words,
}
