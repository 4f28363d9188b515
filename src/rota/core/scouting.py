"""Scouts of a batch: its first few jobs run first, and the rest waits until these have shown that it can.

Half of them must have succeeded; if too few did, the rest is held, once. What they used is learned as of any job, and
decides by the rules for scouts what the rest asks for (`rota.schedule.estimate`).
"""

from rota.core.batch import BatchState
from rota.model.tables import ABORTED, COMPLETED, FAILED, OMITTED, REMOVED
from rota.schedule.broker.scouts import Scouted, evaluate

__all__ = ["FAILED_SCOUTS", "judged", "scout_ended", "scouts_of"]

FAILED_SCOUTS = "its scouts have not shown that it can run"
"""How the reason begins for which the rest of a batch is held."""


def scouts_of(batch: BatchState) -> int:
    """How many jobs of a batch, from the first, are its scouts."""
    return min(batch.spec.scouts, batch.count)


def judged(batch: BatchState) -> Scouted:
    """What the scouts of a batch say of the rest."""
    states, high = batch.states, scouts_of(batch)
    finished = states.count(COMPLETED, 0, high)
    failed = sum(states.count(state, 0, high) for state in (FAILED, ABORTED, OMITTED))
    return evaluate(high - states.count(REMOVED, 0, high), finished, failed)


def scout_ended(batch: BatchState, pos: int) -> bool:
    """Whether a job at a position that has just settled is a scout that others wait for."""
    return batch.scouting and pos < batch.spec.scouts
