"""Decide: from the state and a stimulus to events. Every guard lives on this side; nothing is changed here."""

from collections.abc import Callable, Iterator
from typing import Any

from rota.core import stimuli
from rota.core.decide import allocations, gangs, greeting, jobs, limits, modes, pruning, runners, submissions
from rota.core.decide.decision import Decision
from rota.core.state import State
from rota.core.stimuli import Stimulus

__all__ = ["decide", "preludes"]


def preludes(state: State, stimulus: Stimulus) -> Iterator[Decision]:
    """Decisions that come before that on the stimulus itself; the caller applies each before the next is made."""
    if isinstance(stimulus, stimuli.Report | stimuli.Touch | stimuli.Held | stimuli.Released):
        yield runners.back(state, stimulus.runner, stimulus.session)
    elif isinstance(stimulus, stimuli.LastWords):
        yield from allocations.written_reports(state, stimulus)
    elif isinstance(stimulus, stimuli.Greet):
        yield from greeting.replaced(state, stimulus)


def decide(state: State, stimulus: Stimulus) -> Decision:
    """The decision on any stimulus but Tick (which also needs the time of the last one)."""
    return _DECIDE[type(stimulus)](state, stimulus)


_DECIDE: dict[type[Stimulus], Callable[[State, Any], Decision]] = {
    stimuli.Submit: submissions.submit,
    stimuli.Cover: submissions.cover,
    stimuli.ChangeJobs: jobs.change,
    stimuli.SetMode: modes.set_mode,
    stimuli.Prune: pruning.prune,
    stimuli.SetLimits: limits.set_limits,
    stimuli.Greet: greeting.greet,
    stimuli.Report: runners.report,
    stimuli.Touch: runners.touch,
    stimuli.Held: gangs.held,
    stimuli.Released: gangs.released,
    stimuli.Unstaged: runners.unstaged,
    stimuli.RunnerBye: runners.bye,
    stimuli.Disconnected: runners.disconnected,
    stimuli.SiteSeen: allocations.site_seen,
    stimuli.SiteFull: allocations.site_full,
    stimuli.FactSeen: allocations.fact_seen,
    stimuli.AllocationSeen: allocations.allocation_seen,
    stimuli.LastWords: allocations.last_words,
    stimuli.EndAllocation: allocations.end_allocation,
    stimuli.TakeDown: allocations.take_down,
}
