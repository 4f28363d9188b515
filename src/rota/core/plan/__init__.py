"""The scheduling pass: leases for the runners that are there, allocations where more is wanted."""

import math
from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from rota.core.decide.learning import refresh
from rota.core.decide.retries import until_brake
from rota.core.plan.allocations import lease_jobs, provide, take_back
from rota.core.plan.backfill import behind, fill, reserve
from rota.core.slots import shape_of, slot_cores, slot_name
from rota.core.state import RunnerState, ShapeState, State
from rota.core.stimuli import At
from rota.model import events as ev
from rota.model.tables import STARTING
from rota.model.verdict import Verdict
from rota.schedule import limits
from rota.schedule.pipeline import Parked, Placement, place
from rota.schedule.policy import DEFAULT
from rota.schedule.view import Place, View, Want

__all__ = ["plan"]

_SLACK_S = 0.00001
"""So much after a window opens or a rate frees, whatever is rounded."""


def plan(state: State, at: At) -> list[ev.Event]:
    """Decide and apply everything that can start now. Returns the events, already applied."""
    state.replan = False
    wants = _wants(state)
    events: list[ev.Event] = []
    steady = _set_time(state, wants, at)
    if not wants:
        return list(take_back(state, wants, at)) if state.allocations else events
    over = _share(state, wants)
    view = View(at.wall, at.mono, state.mode, _places(state), state.ledger, state.limits, *_times(state))
    parked: dict[int, Parked] = {}
    blocked = False
    for item in _placements(state, view, wants, at):
        shape = state.shapes[item.want.shape_id]
        if isinstance(item, Parked):
            parked[shape.id] = item
            continue
        runner = state.runners[item.place.runner]
        slot = slot_name(shape.id, item.cores, item.want.shape.needs)
        events.extend(lease_jobs(state, runner.id, shape, slot, item.count, item.count, steady))
    for want in wants:
        shape = state.shapes[want.shape_id]
        most = _ahead_most(state, shape, wants) if shape.id not in over else 0
        if not blocked and shape.ready and most and state.mode == "serving":
            events.extend(_ahead(state, shape, most, steady))
        if shape.ready and shape.id in parked and _waits_for_room(parked[shape.id].verdicts):
            blocked = True  # nothing behind it may queue ahead in slots that it could use
        shape.verdicts = _at_limit(state, shape, parked[shape.id].verdicts if shape.id in parked else [])
    _set_wake(state, wants, at)
    if state.mode == "serving":
        left = _within_limits(state, wants)
        events.extend(provide(state, left, at, steady))
        events.extend(take_back(state, left, at))
    return events


def _placements(state: State, view: View, wants: list[Want], at: At) -> Iterator[Placement | Parked]:
    """Place in order; from the first that has waited too long for room on, only what does not delay it.

    Then another pass over what is left of a limit when somebody could not use his part of it.
    """
    yield from _in_order(state, view, wants, at)
    again = [
        replace(want, ready=ready, most=None)
        for want in wants
        if want.most is not None and (ready := state.shapes[want.shape_id].ready)
        if limits.fits(want.shape, state.limits, 1)
    ]
    if again and state.reserved is None:
        yield from place(view, again, DEFAULT, state.memo)


def _in_order(state: State, view: View, wants: list[Want], at: At) -> Iterator[Placement | Parked]:
    last, state.reserved = state.reserved, None
    first, later = behind(state, wants, last) if last is not None else (wants, [])
    rest: list[Want] = []
    for item in place(view, first, DEFAULT, state.memo):
        yield item
        if isinstance(item, Parked) and _waits_for_room(item.verdicts):
            state.reserved = reserve(state, view, item, at)
            if state.reserved is not None:
                rest = first[first.index(item.want) + 1 :]
                break
    if rest or later:
        together: dict[int, Want] = {want.shape_id: want for want in rest}
        for want in later:
            more = together.get(want.shape_id)
            together[want.shape_id] = want if more is None else replace(want, ready=want.ready + more.ready)
        if state.reserved is None:
            yield from place(view, list(together.values()), DEFAULT, state.memo)
        else:
            yield from fill(state, view, list(together.values()), state.reserved, DEFAULT, at)


def _set_time(state: State, wants: Sequence[Want], at: At) -> float:
    """Bring windows and rates up to now; returns the time by which starts are counted."""
    steady = state.steady(at.wall, at.mono)
    if state.timed:
        for name in {name for want in wants for name in want.shape.limits} & state.timed:
            state.limits[name] = limits.at_time(
                state.limits[name], state.starts.get(name), at.wall + at.utc_offset_s, steady
            )
    return steady


def _set_wake(state: State, wants: Sequence[Want], at: At) -> None:
    """When the clock will let something start that waits."""
    state.window_at = state.rate_at = math.inf
    if not state.timed:
        return
    steady, local = state.steady(at.wall, at.mono), at.wall + at.utc_offset_s
    waiting = {name for want in wants if state.shapes[want.shape_id].ready for name in want.shape.limits}
    for name in waiting & state.timed:
        limit = state.limits[name]
        if limit.window is not None and limit.closed is not None:
            opens = limit.window.opens(local)
            if opens is not None:
                state.window_at = min(state.window_at, opens - at.utc_offset_s + _SLACK_S)
        if limit.rate is not None and name in state.starts:
            frees = state.starts[name].frees(steady, limit.per_s, limit.rate)
            if frees is not None:
                state.rate_at = min(state.rate_at, at.mono + frees - steady + _SLACK_S)


def _share(state: State, wants: Sequence[Want]) -> set[int]:
    """Give each want its part of the limits that it shares; returns the shapes that hold more than theirs."""
    if not any(want.shape.limits for want in wants):
        return set()
    most, over = limits.share(wants, state.limits, state.starts)
    for want, count in zip(wants, most, strict=True):
        if count < want.ready:
            want.most = count
    return over


def _within_limits(state: State, wants: Sequence[Want]) -> list[Want]:
    """What is still wanted, cut down to what the limits leave for all shapes together."""
    still = [
        replace(want, ready=shape.ready, slots=shape.slots, most=None)
        for want in wants
        if (shape := state.shapes[want.shape_id]).ready
    ]
    if any(want.shape.limits for want in still):
        most, _ = limits.share(still, state.limits, state.starts)
        still = [replace(want, ready=count) for want, count in zip(still, most, strict=True) if count]
    return still


def _at_limit(state: State, shape: ShapeState, verdicts: list[Verdict]) -> list[Verdict]:
    """The reasons why not all started: also a limit that has become full while others had their part."""
    if not shape.ready or not shape.shape.limits or any(verdict.filter == "limits" for verdict in verdicts):
        return verdicts
    no = limits.blocked(shape.shape, state.limits)
    return verdicts if no is None else [*verdicts, Verdict("everywhere", "limits", no[0], no[1], False, (no[2],))]


def _wants(state: State) -> list[Want]:
    wants = []
    for shape in state.shapes:
        if shape.ready > 0:
            head = shape.head(state.batches)
            assert head is not None, f"shape {shape.id} has {shape.ready} ready jobs and no head"
            batch, template, _ = head
            refresh(state, shape)
            wants.append(
                Want(
                    shape.id,
                    shape.asked,
                    shape.ready,
                    state.batches[batch].templates[template].priority,
                    batch,
                    shape.slots,
                )
            )
    wants.sort(key=lambda want: (-want.priority, want.first, want.shape_id))
    return wants


def _times(state: State) -> tuple[dict[str, int], dict[tuple[str, str | None], int]]:
    """By site: what a job needs of which nothing is known, and what is left of the longest time, by queue."""
    jobs, longest = {}, {}
    for site in state.sites.values():
        if site.job_s is not None:
            jobs[site.name] = site.job_s
        for queue, most_s in ((None, site.time_most_s), *site.queue_times):
            if most_s is not None:
                longest[site.name, queue] = most_s - min(site.spare_s, most_s // 2)
    return jobs, longest


def _places(state: State) -> list[Place]:
    places = []
    for runner in state.runners.values():
        if runner.state in ("SERVING", "DRAINING", "MISSING") and not runner.direct:
            location = state.ledger.locations[runner.location]
            key = (location.site, location.tags, location.capacity, location.options)
            class_number = state.place_classes.setdefault(key, len(state.place_classes))
            places.append(Place(location, runner.id, _status(runner), class_number))
    return places


def _status(runner: RunnerState) -> str:
    """What the filter on status sees: only SERVING takes jobs."""
    if not runner.connected:
        return "not connected"
    return "ending attempts that were given up" if runner.given_up else runner.state


def _ahead_most(state: State, shape: ShapeState, wants: Sequence[Want]) -> int:
    """How many of a shape its limits let queue ahead, in slots that are charged already.

    None while a limit is overdrawn (it was lowered) or closed; and what a rate leaves only if nobody else wants it.
    """
    most = shape.ready
    head = shape.head(state.batches)
    if head is not None:
        batch = state.batches[head[0]]
        spare = until_brake(batch)
        if spare is not None:  # all that is leased may fail before the rest is held
            most = min(most, max(0, spare - batch.counts[STARTING]))
    for name in shape.shape.limits:
        limit = state.limits.get(name)
        if limit is None:
            continue
        if limit.closed is not None or (limit.count is not None and limit.used > limit.count):
            return 0
        if limit.left is not None:
            alone = sum([name in want.shape.limits for want in wants]) == 1
            most = min(most, limit.left if alone else 0)
    return most


def _ahead(state: State, shape: ShapeState, most: int, steady: float) -> Iterator[ev.Event]:
    """Leases beyond the slots, for short jobs, so that a runner never waits for us."""
    settings = state.settings
    mean = shape.mean_s
    if mean is None or mean > settings.ahead_below_s:
        return
    for runner in list(state.runners.values()):
        if _status(runner) != "SERVING" or runner.direct:
            continue
        for slot, slots in list(runner.slots.items()):
            if shape_of(slot) != shape.id or slot != slot_name(shape.id, slot_cores(slot), shape.asked.needs):
                continue  # for another shape, or of a size that is not asked for any more
            depth = min(settings.lease_most, int(slots * settings.ahead_s / mean) + 1)
            missing = slots + depth - runner.held.get(slot, 0)
            if missing * 2 >= depth and shape.ready and most > 0:
                count = min(missing, shape.ready, settings.lease_most, most)
                most -= count
                yield from lease_jobs(state, runner.id, shape, slot, 0, count, steady)


def _waits_for_room(verdicts: list[Verdict]) -> bool:
    return any(verdict.code == "busy" for verdict in verdicts)
