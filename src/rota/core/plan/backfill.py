"""Backfill: a large job that has waited for long gets a place kept for it; smaller ones run there only meanwhile.

Without it, small jobs that come later could take every core that becomes free, and the large one would never start.
"""

import math
from collections.abc import Sequence

from msgspec import Struct

from rota.core.state import RunnerState, ShapeState, State
from rota.core.stimuli import At
from rota.model.amounts import format_duration
from rota.model.needs import Amounts, Needs
from rota.model.shape import Shape
from rota.model.verdict import Verdict, Wake
from rota.schedule.view import Place, Want

__all__ = ["Reservation", "Soonest", "ahead_of", "free_from", "reserve", "reserve_together"]


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
    others: tuple[tuple[str, Amounts], ...] = ()
    """Of a job on several nodes, its further nodes: (runner, what will be free there beside it)."""

    @property
    def runners(self) -> frozenset[str]:
        """All runners whose nodes are kept."""
        return frozenset((self.runner, *(runner for runner, _ in self.others)))

    def words(self, at: At) -> str:
        """For whom the place is kept."""
        return f"kept for batch {self.key[1]} ({self.asks}, added {format_duration(int(at.wall - self.added))} ago)"

    def verdict(self, at: At, location: str) -> Verdict:
        """The verdict on jobs that may not use a place of it."""
        return Verdict(location, "backfill", "reserved", self.words(at), False, (Wake.CAPACITY,))


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


def reserve_together(state: State, want: Want, places: Sequence[Place], at: At) -> Reservation | None:
    """Keep, of nodes that are large enough, those of one allocation where a job on several can start soonest."""
    batch = state.batches[want.first]
    groups: dict[str, list[Place]] = {}
    for place in places:
        groups.setdefault(place.location.parent or "", []).append(place)
    best: tuple[float, list[tuple[Place, Amounts]]] | None = None
    for needs in want.shape.needs.alternatives():
        for group in groups.values():
            found = _soonest(state, needs, group, at)
            if found is not None and (best is None or found[0] < best[0]):
                best = found
    if best is None:
        return None
    start, ((first, spare), *others) = best
    return Reservation(
        want.shape_id,
        (-want.priority, batch.id),
        first.location.id,
        first.runner,
        start,
        spare,
        batch.submitted,
        want.shape.needs.words(),
        tuple((place.runner, free) for place, free in others),
    )


def _soonest(
    state: State, needs: Needs, group: Sequence[Place], at: At
) -> tuple[float, list[tuple[Place, Amounts]]] | None:
    """(when a job can start on nodes of a group, these nodes with what is free beside it then); None: never."""
    rows = []
    for place in group:
        size = place.location.capacity
        if size is None:
            continue
        cores = (
            size.cores if needs.whole else min(needs.cores, size.cores // 1000 * 1000) if needs.span else needs.cores
        )
        amounts = needs.amounts(cores)
        if cores and amounts.fits(size):
            rows.append((*_start(state, state.runners[place.runner], amounts, at), place, cores))
    rows.sort(key=lambda row: row[0])
    asked, kept = needs.cores if needs.span else needs.nodes, []
    for start, spare, place, cores in rows:
        kept.append((place, spare))
        asked -= cores if needs.span else 1
        if asked <= 0:
            return start, kept
    return None


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
    """How many ready jobs of a shape come before a key, or have it.

    Below a head that comes after the key all do, so of the many batches of a shape only those before are looked at.
    """
    heads, found, look = shape.heads, 0, [0] if shape.heads else []
    while look:
        at = look.pop()
        priority, batch, template = heads[at]
        if (priority, batch) <= key:
            found += state.batches[batch].queues[template].count
            look.extend(range(2 * at + 1, min(2 * at + 3, len(heads))))
    return found
