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
from rota.model.shape import Shape
from rota.model.verdict import Verdict, Wake
from rota.schedule.view import Place, Want

__all__ = ["Reservation", "Soonest", "ahead_of", "free_from", "reserve"]


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
    added: float
    """Wall-clock time at which the batch of the job was added."""
    asks: str

    def words(self, at: At) -> str:
        """For whom the place is kept."""
        return f"kept for batch {self.key[1]} ({self.asks}, added {format_duration(int(at.wall - self.added))} ago)"

    def verdict(self, at: At) -> Verdict:
        """The verdict on jobs that may not use the place."""
        return Verdict(self.location, "backfill", "reserved", self.words(at), False, (Wake.CAPACITY,))


class Soonest(Struct):
    """When a shape that waits for room could start on each runner, kept until something happens there."""

    shape_id: int
    asked: Shape
    starts: dict[str, float]


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
    key, asks = (-want.priority, batch.id), want.shape.needs.words()
    return Reservation(want.shape_id, key, place.location.id, place.runner, start, spare, batch.submitted, asks)


def _start(state: State, runner: RunnerState, amounts: Amounts, at: At) -> tuple[float, Amounts]:
    """(when these amounts are free on a runner at the latest, what is free beside them then).

    Of jobs whose end nobody knows no more are taken to have ended than must have.
    """
    free, start = state.ledger.free(runner.location), at.mono
    for end, held in _ends(state, runner):
        if amounts.fits(free) and (end > start or math.isinf(end)):
            break
        free, start = free.plus(held), max(start, end)
    return start, free.plus(amounts, -1)


def _ends(state: State, runner: RunnerState) -> list[tuple[float, Amounts]]:
    """When the jobs of a runner, and its parts of jobs, end at the latest, soonest first, and what each gives back."""
    facts = state.soft.sites.get(runner.site)
    ends = []
    here = [(number, pos, state.batches[number].live[pos].slot) for number, pos in runner.jobs]
    here += [(number, pos, slot) for (number, pos, _), slot in runner.parts.items()]
    for number, pos, slot in here:
        live = state.batches[number].live.get(pos)
        if live is None:  # a part that is being released
            ends.append((-math.inf, number, pos, slot.amounts))
            continue
        shape = state.shapes[slot.shape]
        memo = state.soft.planning.shapes.get(shape.id)
        asked = shape.shape if memo is None else memo.asked
        time_s = asked.needs.time_s or (facts.job_s if facts is not None else None)
        end = state.soft.contacts[live.runner].since[number, pos] + time_s if time_s else math.inf
        ends.append((end, number, pos, slot.amounts))
    return [(end, held) for end, _, _, held in sorted(ends, key=lambda row: row[:3])]


def free_from(state: State, runner: RunnerState, amounts: Amounts) -> float:
    """When these amounts are free on a runner at the latest, by the jobs that it has; -inf: now."""
    free, start = state.ledger.free(runner.location), -math.inf
    for end, held in _ends(state, runner):
        if amounts.fits(free):
            break
        free, start = free.plus(held), end
    return start


def ahead_of(state: State, shape: ShapeState, key: tuple[int, int]) -> int:
    """How many ready jobs of a shape come before a key, or have it."""
    return sum(
        state.batches[batch].queues[template].count
        for priority, batch, template in shape.heads
        if (priority, batch) <= key
    )
