"""The scheduling pass in the plainest way: every shape that waits is tried at every place, in order.

The pass that costs by what changed must do the same, event by event. `compare` asks both, on a copy of the core.
"""

import copy
import math
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec.structs import replace

from rota.core.decide.retries import until_brake
from rota.core.evolve.leasing import Grant, lease_jobs
from rota.core.notes import follow
from rota.core.plan.allocations import Provider, surplus
from rota.core.plan.asked import asked_now
from rota.core.plan.backfill import Reservation, ahead_of, reserve
from rota.core.plan.limits import limits_now, within_limits
from rota.core.plan.watching import place_of, status, times
from rota.core.soft import chance_after
from rota.core.state import ShapeState, State
from rota.core.step import Core
from rota.core.stimuli import At
from rota.model import events as ev
from rota.model.slot import slot_for
from rota.model.tables import STARTING
from rota.model.verdict import Verdict
from rota.schedule import limits
from rota.schedule.pipeline import Parked, Placement, place
from rota.schedule.policy import DEFAULT
from rota.schedule.view import View, Want
from rota.sim.copying import copy_core


def full_plan(state: State, at: At) -> Iterator[ev.Event | Grant]:
    """What `rota.core.plan.plan` yields, worked out from the state alone."""
    planning = state.soft.planning
    planning.steady_less_mono = state.steady_less_mono(at.wall, at.mono)
    wants = _wants(state)
    if wants:
        yield from _Pass(state, at, wants).run()
    elif state.allocations:
        planning.surplus_since, events = surplus(state, wants, at)
        yield from events


class _Pass:
    def __init__(self, state: State, at: At, wants: list[Want]) -> None:
        self.state = state
        self.at = at
        self.wants = wants
        self.steady = state.steady(at.wall, at.mono)
        self.limits = limits_now(state, at)
        places = [place for runner in state.runners.values() if (place := place_of(state, runner)) is not None]
        for number, each in enumerate(places):
            each.class_number = number
        self.view = View(at.wall, at.mono, state.mode, places, state.ledger.view, self.limits, *times(state))
        self.memory = state.soft.planning

    def run(self) -> Iterator[ev.Event | Grant]:
        state = self.state
        over = self._share()
        parked: dict[int, Parked] = {}
        for item in self._placements():
            if isinstance(item, Parked):
                parked[item.want.shape_id] = item
                continue
            needs = item.want.shape.needs
            gpus = state.ledger.pick_gpus(item.place.location.id, needs.amounts(item.cores))
            slot = slot_for(item.want.shape_id, item.cores, needs, gpus)
            yield Grant(item.place.runner, slot, item.count, item.count, self.steady)
        yield from self._leases_ahead(parked, over)
        if state.mode == "serving":
            left = within_limits(state, self.wants, self.limits)
            provider = Provider(state, self.at, self.steady, self.limits)
            yield from provider.provide(left)
            state.soft.chance = chance_after(state.soft.chance, provider.drawn)
            self.memory.surplus_since, events = surplus(state, left, self.at)
            yield from events

    def _share(self) -> set[int]:
        most, over = limits.share(self.wants, self.limits, self.state.starts)
        for want, count in zip(self.wants, most, strict=True):
            if count < want.ready:
                want.most = count
        return over

    def _place(self, view: View, wants: list[Want]) -> Iterator[Placement | Parked]:
        return place(view, wants, DEFAULT, {}, self.state.ledger.changed)

    def _placements(self) -> Iterator[Placement | Parked]:
        yield from self._in_order()
        again = [
            replace(want, ready=ready, most=None)
            for want in self.wants
            if want.most is not None and (ready := self.state.shapes[want.shape_id].ready)
            if limits.fits(want.shape, self.limits, 1)
        ]
        if again and self.memory.reserved is None:
            yield from self._place(self.view, again)

    def _in_order(self) -> Iterator[Placement | Parked]:
        state, memory = self.state, self.memory
        last, memory.reserved = memory.reserved, None
        first, later = self._behind(last) if last is not None else (self.wants, [])
        rest: list[Want] = []
        for item in self._place(self.view, first):
            yield item
            if isinstance(item, Parked) and _waits_for_room(item.verdicts):
                memory.reserved = self._reserve(item)
                if memory.reserved is not None:
                    rest = first[first.index(item.want) + 1 :]
                    break
        if rest or later:
            together: dict[int, Want] = {want.shape_id: want for want in rest}
            for want in later:
                same = together.get(want.shape_id)
                together[want.shape_id] = want if same is None else replace(want, ready=want.ready + same.ready)
            if memory.reserved is None:
                yield from self._place(self.view, list(together.values()))
            else:
                yield from self._fill(list(together.values()), memory.reserved)
        assert state is self.state

    def _behind(self, kept: Reservation) -> tuple[list[Want], list[Want]]:
        before, after = [], []
        for want in self.wants:
            ahead = ahead_of(self.state, self.state.shapes[want.shape_id], kept.key)
            if ahead:
                before.append(replace(want, ready=min(want.ready, ahead)))
            if want.ready > ahead:
                after.append(replace(want, ready=want.ready - ahead))
        return before, after

    def _reserve(self, parked: Parked) -> Reservation | None:
        after = self.state.settings.backfill_after_s
        if after is None or self.at.wall - self.state.batches[parked.want.first].submitted < after:
            return None
        busy = {verdict.location for verdict in parked.verdicts if verdict.code == "busy"}
        places = [each for each in self.view.places if each.location.id in busy]
        return reserve(self.state, parked.want, places, self.at)

    def _fill(self, wants: list[Want], kept: Reservation) -> Iterator[Placement | Parked]:
        elsewhere = replace(self.view, places=[each for each in self.view.places if each.runner != kept.runner])
        there = replace(self.view, places=[each for each in self.view.places if each.runner == kept.runner])
        left = {want.shape_id: want.ready for want in wants}
        for item in self._place(elsewhere, wants):
            if isinstance(item, Placement):
                left[item.want.shape_id] -= item.count
            yield item
        spare = kept.spare
        for want in wants:
            needs = want.shape.needs
            site = there.places[0].location.site if there.places else ""
            time_s = needs.time_s or self.view.job_times.get(site)
            in_time = time_s is not None and self.at.mono + time_s <= kept.at
            room = left[want.shape_id] if in_time else min(left[want.shape_id], needs.amounts().times_in(spare))
            if room <= 0:
                continue
            for item in self._place(there, [replace(want, ready=room)]):
                if isinstance(item, Placement):
                    if not in_time:
                        spare = spare.plus(needs.amounts(item.cores), -item.count)
                    yield item

    def _leases_ahead(self, parked: Mapping[int, Parked], over: set[int]) -> Iterator[Grant]:
        blocked = False
        for want in self.wants:
            shape = self.state.shapes[want.shape_id]
            verdicts = parked[shape.id].verdicts if shape.id in parked else []
            most = self._ahead_most(shape) if shape.id not in over else 0
            if not blocked and shape.ready and most and self.state.mode == "serving":
                yield from self._ahead(shape, most)
            if shape.ready and _waits_for_room(verdicts):
                blocked = True

    def _ahead_most(self, shape: ShapeState) -> int:
        most = shape.ready
        head = shape.head(self.state.batches)
        if head is not None:
            batch = self.state.batches[head[0]]
            spare = until_brake(batch)
            if spare is not None:
                most = min(most, max(0, spare - batch.counts[STARTING]))
        for name in shape.shape.limits:
            limit = self.limits.get(name)
            if limit is None:
                continue
            if limit.closed is not None or (limit.count is not None and limit.used > limit.count):
                return 0
            if limit.left is not None:
                alone = sum([name in want.shape.limits for want in self.wants]) == 1
                most = min(most, limit.left if alone else 0)
        return most

    def _ahead(self, shape: ShapeState, most: int) -> Iterator[Grant]:
        state, settings = self.state, self.state.settings
        memo = self.memory.shapes[shape.id]
        mean, needs = memo.mean_s, memo.asked.needs
        if mean is None or mean > settings.ahead_below_s:
            return
        for runner in list(state.runners.values()):
            if status(state, runner) != "SERVING" or runner.direct:
                continue
            for slot, slots in list(runner.slots.items()):
                if slot.shape != shape.id or slot.amounts != needs.amounts(slot.amounts.cores):
                    continue
                depth = min(settings.lease_most, int(slots * settings.ahead_s / mean) + 1)
                missing = slots + depth - runner.held.get(slot, 0)
                if missing * 2 >= depth and shape.ready and most > 0:
                    count = min(missing, shape.ready, settings.lease_most, most)
                    most -= count
                    yield Grant(runner.id, slot, 0, count, self.steady)


def _wants(state: State) -> list[Want]:
    wants = []
    memos = state.soft.planning.shapes
    for shape in state.shapes:
        if shape.ready > 0:
            head = shape.head(state.batches)
            assert head is not None
            batch, template, _ = head
            memo = memos[shape.id] = asked_now(state, shape)
            priority = state.batches[batch].templates[template].priority
            wants.append(Want(shape.id, memo.asked, shape.ready, priority, batch, shape.slots))
    wants.sort(key=lambda want: (-want.priority, want.first, want.shape_id))
    return wants


def _waits_for_room(verdicts: list[Verdict]) -> bool:
    return any(verdict.code == "busy" for verdict in verdicts)


def events_of_full_pass(core: Core, at: At) -> tuple[list[ev.Event], Any]:
    """(what the full pass would do now, the place that it would keep); the core stays as it is."""
    twin = copy_core(core)
    events: list[ev.Event] = []
    for made in full_plan(twin.state, at):
        if isinstance(made, Grant):
            for event in lease_jobs(twin.state, made):
                follow(twin.state, event, at)
                events.append(event)
        else:
            twin._happen(made, events, at)
    return events, twin.state.soft.planning.reserved


class ComparingCore(Core):
    """A core each of whose passes is compared with the full one."""

    exact_ahead = True

    def schedule(self, at: At) -> Any:
        if not self.state.soft.planning.wanted:
            return super().schedule(at)
        before = copy.copy(self.state.soft.planning.reserved)
        expected, kept = events_of_full_pass(self, at)
        step = super().schedule(at)
        assert step.events == expected, f"the pass did {step.events}, a full one does {expected}; kept {before}"
        assert self.state.soft.planning.reserved == kept
        return step


assert math
