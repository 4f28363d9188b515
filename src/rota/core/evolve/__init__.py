"""Evolve: apply one event to the durable state. Nothing else writes it.

Total: every guard has been passed in `decide`, so a breach here is a bug and raises.
"""

from rota.core.evolve import batches, gangs, jobs, runners
from rota.core.shares import apply_spent
from rota.core.state import State
from rota.model import events as ev

__all__ = ["evolve"]


def evolve(state: State, event: ev.Event) -> None:
    """Apply one event."""
    _APPLY[type(event)](state, event)  # type: ignore[operator]
    state.seq += 1


def _noted(state: State, event: ev.Noted) -> None:
    """Nothing changes: the event is evidence only."""


_APPLY = {
    ev.Submitted: batches.submitted,
    ev.Moved: jobs.moved,
    ev.Leased: jobs.leased,
    ev.Started: jobs.started,
    ev.Ended: jobs.ended,
    ev.HoldWanted: jobs.hold_wanted,
    ev.Removed: jobs.removed,
    ev.RunnerGreeted: runners.runner_greeted,
    ev.RunnerMoved: runners.runner_moved,
    ev.AllocationPlanned: runners.allocation_planned,
    ev.AllocationMoved: runners.allocation_moved,
    ev.ManagerMoved: batches.manager_moved,
    ev.LimitSet: batches.limit_set,
    ev.Noted: _noted,
    ev.Retemplated: batches.retemplated,
    ev.Learned: batches.learned,
    ev.RerunWanted: jobs.rerun_wanted,
    ev.Pruned: batches.pruned,
    ev.Restored: batches.restored,
    ev.Respecified: batches.respecified,
    ev.Released: gangs.released,
    ev.GangBroken: gangs.gang_broken,
    ev.Spent: apply_spent,
    ev.Hastened: jobs.hastened,
    ev.Named: batches.named,
}
