"""Fares: how jobs of each batch did at each site, where there are several. Soft: written only from `core/notes.py`."""

from rota.core.state import State
from rota.model import events as ev
from rota.model.allocation import Allocation
from rota.schedule.broker.sites import FORGET_S, Fare, Share, told

__all__ = ["ended_at", "sent_back"]

FARES_MOST = 10_000
"""When there are more, those that are old or of batches that are gone are dropped."""


def _fared(state: State, batch: int, site: str, fare: Fare, wall: float) -> None:
    """Keep how jobs of a batch went at a site; what policies see is the fact."""
    fares = state.soft.fares
    if len(fares) > FARES_MOST:
        for old in [key for key, kept in fares.items() if wall - kept.since > FORGET_S or key[0] not in state.batches]:
            del fares[old]
            state.soft.facts.tell("fares", old, None)
    fares[batch, site] = fare
    share = told(fare)
    state.soft.facts.tell("fares", (batch, site), share if share != Share() else None)


def ended_at(state: State, event: ev.Ended, site: str, wall: float) -> None:
    """Count attempts that ended at a site."""
    counts: dict[int, list[int]] = {}
    for row in event.rows:
        if row[2] in ("complete", "fail") or (row[2] == "requeue" and event.counts_as != "nothing"):
            counts.setdefault(row[0], [0, 0])[row[2] != "complete"] += 1
    for batch, (finished, failed) in counts.items():
        _fared(state, batch, site, state.soft.fares.get((batch, site), Fare()).plus(finished, failed, 0, wall), wall)


def sent_back(state: State, allocation: Allocation, wall: float) -> None:
    """Remember that a site did not start jobs for so long that they go elsewhere: those of a batch, or of all (-1)."""
    waited, site = wall - (allocation.submitted or wall), allocation.site
    batches = {number for runner in state.direct_runners(allocation) for number, _ in runner.jobs}
    for batch in batches or {-1}:
        _fared(state, batch, site, state.soft.fares.get((batch, site), Fare()).back(waited, wall), wall)
