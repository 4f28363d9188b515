"""Backfill: a large job that has waited for long gets a place kept for it; smaller ones run there only meanwhile.

Without it, small jobs that come later could take every core that becomes free, and the large one would never start.
"""

import math
from collections.abc import Iterator

from msgspec import Struct
from msgspec.structs import replace

from rota.core.state import RunnerState, ShapeState, State
from rota.core.stimuli import At
from rota.model.amounts import format_duration
from rota.model.needs import Amounts
from rota.model.verdict import Verdict, Wake
from rota.schedule.pipeline import Parked, Placement, place
from rota.schedule.view import View, Want

__all__ = ["Reservation", "behind", "fill", "reserve"]


class Reservation(Struct):
    """A place that is kept for the jobs of a shape."""

    shape_id: int
    key: tuple[int, int]
    """(-priority, batch) of the job that waits: jobs after it in the order must not delay it."""
    location: str
    at: float
    """Monotonic time at which it can start there, by the times that the jobs there asked for; inf: unknown."""
    spare: Amounts
    """What will be free there beside it."""
    why: str

    def verdict(self) -> Verdict:
        """The verdict on jobs that may not use the place."""
        return Verdict(self.location, "backfill", "reserved", self.why, False, (Wake.CAPACITY,))


def reserve(state: State, view: View, parked: Parked, at: At) -> Reservation | None:
    """Keep the place where the shape can start soonest, if its first job has waited for long enough."""
    after = state.settings.backfill_after_s
    batch = state.batches[parked.want.first]
    waited = at.wall - batch.submitted
    if after is None or waited < after:
        return None
    amounts = parked.want.shape.needs.amounts()
    busy = {verdict.location for verdict in parked.verdicts if verdict.code == "busy"}
    best: tuple[float, str, Amounts] | None = None
    for candidate in view.places:
        if candidate.location.id in busy:
            start, spare = _start(state, state.runners[candidate.runner], amounts, at)
            if best is None or start < best[0]:
                best = (start, candidate.location.id, spare)
    if best is None:
        return None
    words = parked.want.shape.needs.words()
    why = f"kept for batch {batch.id}, which has waited {format_duration(int(waited))} for {words}"
    return Reservation(parked.want.shape_id, (-parked.want.priority, batch.id), best[1], best[0], best[2], why)


def _start(state: State, runner: RunnerState, amounts: Amounts, at: At) -> tuple[float, Amounts]:
    """(when these amounts are free on a runner at the latest, what is free beside them then)."""
    free, since = state.ledger.free(runner.location), state.soft.contacts[runner.id].since
    facts = state.soft.sites.get(runner.site)
    ends = []
    for number, pos in runner.jobs:
        live = state.batches[number].live[pos]
        shape = state.shapes[live.slot.shape]
        memo = state.soft.planning.shapes.get(shape.id)
        asked = shape.shape if memo is None else memo.asked
        time_s = asked.needs.time_s or (facts.job_s if facts is not None else None)
        end = since[number, pos] + time_s if time_s else math.inf
        ends.append((end, number, pos, live.slot.amounts))
    start = at.mono
    for end, _, _, held in sorted(ends, key=lambda row: row[:3]):
        if amounts.fits(free) and end > start:
            break
        free, start = free.plus(held), max(start, end)
    return start, free.plus(amounts, -1)


def behind(state: State, wants: list[Want], kept: Reservation) -> tuple[list[Want], list[Want]]:
    """The wants split into jobs before the one that waits, and after it in the order: a shape can have both."""
    before, after = [], []
    for want in wants:
        ahead = _ahead_of(state, state.shapes[want.shape_id], kept.key)
        if ahead:
            before.append(replace(want, ready=min(want.ready, ahead)))
        if want.ready > ahead:
            after.append(replace(want, ready=want.ready - ahead))
    return before, after


def _ahead_of(state: State, shape: ShapeState, key: tuple[int, int]) -> int:
    return sum(
        state.batches[batch].queues[template].count
        for priority, batch, template in shape.heads
        if (priority, batch) <= key
    )


def fill(state: State, view: View, wants: list[Want], kept: Reservation, at: At) -> Iterator[Placement | Parked]:
    """Place jobs after the one that waits: anywhere else, or on the kept place if they end in time or fit beside it."""
    elsewhere = replace(view, places=[each for each in view.places if each.location.id != kept.location])
    there = replace(view, places=[each for each in view.places if each.location.id == kept.location])
    left, policies = {want.shape_id: want.ready for want in wants}, state.settings.policies
    for item in place(elsewhere, wants, policies, state.soft.planning.backfill_memo, state.ledger.changed):
        if isinstance(item, Placement):
            left[item.want.shape_id] -= item.count
            yield item
        else:
            yield Parked(item.want, item.left, [*item.verdicts, kept.verdict()])
    spare = kept.spare
    for want in wants:
        needs = want.shape.needs
        site = there.places[0].location.site if there.places else ""
        time_s = needs.time_s or view.job_times.get(site)
        in_time = time_s is not None and at.mono + time_s <= kept.at
        room = left[want.shape_id] if in_time else min(left[want.shape_id], needs.amounts().times_in(spare))
        if room <= 0:
            continue
        for item in place(there, [replace(want, ready=room)], policies, {}, state.ledger.changed):
            if isinstance(item, Placement):
                if not in_time:
                    spare = spare.plus(needs.amounts(item.cores), -item.count)
                yield item
