"""Backfill: a large job that has waited for long gets a place kept for it; smaller ones run there only meanwhile.

Without it, small jobs that come later could take every core that becomes free, and the large one would never start.
"""

import math
from collections.abc import Sequence

from msgspec import Struct

from rota.core.state import RunnerState, ShapeState, State
from rota.core.stimuli import At
from rota.model.amounts import format_duration
from rota.model.needs import Amounts
from rota.model.verdict import Verdict, Wake
from rota.schedule.view import Place, Want

__all__ = ["Reservation", "ahead_of", "reserve"]


class Reservation(Struct):
    """A place that is kept for the jobs of a shape."""

    shape_id: int
    key: tuple[int, int]
    """(-priority, batch) of the job that waits: jobs after it in the order must not delay it."""
    location: str
    runner: str
    at: float
    """Monotonic time at which it can start there, by the times that the jobs there asked for; inf: unknown."""
    spare: Amounts
    """What will be free there beside it."""
    why: str

    def verdict(self) -> Verdict:
        """The verdict on jobs that may not use the place."""
        return Verdict(self.location, "backfill", "reserved", self.why, False, (Wake.CAPACITY,))


def reserve(state: State, want: Want, busy: Sequence[Place], at: At) -> Reservation | None:
    """Keep that of the busy places where the shape can start soonest."""
    batch = state.batches[want.first]
    amounts = want.shape.needs.amounts()
    best: tuple[float, Place, Amounts] | None = None
    for candidate in busy:
        start, spare = _start(state, state.runners[candidate.runner], amounts, at)
        if best is None or start < best[0]:
            best = (start, candidate, spare)
    if best is None:
        return None
    start, place, spare = best
    waited, words = format_duration(int(at.wall - batch.submitted)), want.shape.needs.words()
    why = f"kept for batch {batch.id}, which has waited {waited} for {words}"
    key = (-want.priority, batch.id)
    return Reservation(want.shape_id, key, place.location.id, place.runner, start, spare, why)


def _start(state: State, runner: RunnerState, amounts: Amounts, at: At) -> tuple[float, Amounts]:
    """(when these amounts are free on a runner at the latest, what is free beside them then)."""
    free, facts = state.ledger.free(runner.location), state.soft.sites.get(runner.site)
    ends = []
    here = [(number, pos, state.batches[number].live[pos].slot) for number, pos in runner.jobs]
    here += [(number, pos, slot) for (number, pos, _), slot in runner.parts.items()]
    for number, pos, slot in here:
        shape = state.shapes[slot.shape]
        memo = state.soft.planning.shapes.get(shape.id)
        asked = shape.shape if memo is None else memo.asked
        time_s = asked.needs.time_s or (facts.job_s if facts is not None else None)
        live = state.batches[number].live.get(pos)  # None: a part that is being released
        since = at.mono if live is None else state.soft.contacts[live.runner].since[number, pos]
        end = since if live is None else since + time_s if time_s else math.inf
        ends.append((end, number, pos, slot.amounts))
    start = at.mono
    for end, _, _, held in sorted(ends, key=lambda row: row[:3]):
        if amounts.fits(free) and end > start:
            break
        free, start = free.plus(held), max(start, end)
    return start, free.plus(amounts, -1)


def ahead_of(state: State, shape: ShapeState, key: tuple[int, int]) -> int:
    """How many ready jobs of a shape come before a key, or have it."""
    return sum(
        state.batches[batch].queues[template].count
        for priority, batch, template in shape.heads
        if (priority, batch) <= key
    )
