"""The scheduling pass: leases for the runners that are there, allocations where more is wanted.

It decides, and writes nothing but what it remembers itself (`Planning`): each event and each grant of leases that it
yields is applied by its caller before the next is computed, so what it reads is always the present.
"""

import math
from collections.abc import Generator, Iterator, Mapping
from types import MappingProxyType

from msgspec.structs import replace

from rota.core.decide.retries import until_brake
from rota.core.evolve.leasing import Grant
from rota.core.plan.allocations import Provider, surplus
from rota.core.plan.asked import asked_now
from rota.core.plan.backfill import behind, fill, reserve
from rota.core.plan.limits import limits_now, share_limits, wake_times, within_limits
from rota.core.plan.policies import out_of_order
from rota.core.shares import worth_now
from rota.core.soft import chance_after, chance_at
from rota.core.state import RunnerState, ShapeState, State
from rota.core.stimuli import At
from rota.model import events as ev
from rota.model.slot import slot_for
from rota.model.tables import STARTING
from rota.model.verdict import Verdict
from rota.schedule import filters, limits
from rota.schedule.gangs import KEPT, gang_verdicts, place_gang
from rota.schedule.pipeline import Parked, Placement, place
from rota.schedule.policy import DEFAULT, in_order
from rota.schedule.view import NODE, Place, View, Want

__all__ = ["plan"]


def plan(state: State, at: At) -> Iterator[ev.Event | Grant]:
    """Grants of leases for all jobs that can start now, and events for the allocations to ask for or to give up."""
    planning = state.soft.planning
    planning.wanted = False
    planning.steady_less_mono = state.steady_less_mono(at.wall, at.mono)
    for key, worth in worth_now(state, at.wall).items():
        state.soft.facts.tell("shares", key, worth)
    wants = _wants(state)
    if wants:
        yield from _Pass(state, at, wants).run()
        return
    planning.window_at = planning.rate_at = math.inf
    if planning.queues.shapes or state.census.changed:
        yield from _Pass(state, at, []).run()
    elif planning.queues.spare:
        planning.surplus_since, events = surplus(state, at)
        yield from events


class _Pass:
    """One pass over the shapes that have ready jobs."""

    def __init__(self, state: State, at: At, wants: list[Want]) -> None:
        self.state = state
        self.at = at
        self.steady = state.steady(at.wall, at.mono)
        self.limits = limits_now(state, at)
        facts = state.soft.facts
        self.view = View(
            at.wall,
            at.mono,
            state.mode,
            _places(state),
            state.ledger.view,
            MappingProxyType(self.limits),
            *_times(state),
            facts,
            elsewhere=state.soft.planning.queues.takes,
        )
        self.wants = in_order(wants, self.view, state.settings.policies)
        self.memory = state.soft.planning
        self.changed = list(facts.changed) if state.mode == "serving" else []
        """Facts that are not as they were in the last pass."""
        if self.changed:
            facts.changed.clear()
            if {name for name, _ in self.changed} & _read_by_nodes(state):
                self.memory.memo.clear()
                self.memory.backfill_memo.clear()

    def run(self) -> Iterator[ev.Event | Grant]:
        """Yield leases first, then allocations for jobs that found no place."""
        state = self.state
        over = share_limits(state, self.wants, self.limits)
        parked: dict[int, Parked] = {}
        for item in self._placements():
            if isinstance(item, Parked):
                if item.want.shape.needs.nodes > 1:
                    item = yield from self._gangs(item)
                parked[item.want.shape_id] = item
                continue
            needs = item.want.shape.needs
            gpus = state.ledger.pick_gpus(item.place.location.id, needs.amounts(item.cores))
            slot = slot_for(item.want.shape_id, item.cores, needs, gpus)
            yield Grant(item.place.runner, slot, item.count, item.count, self.steady)
        yield from self._leases_ahead(parked, over)
        self.memory.window_at, self.memory.rate_at = wake_times(state, self.wants, self.limits, self.at)
        if state.mode == "serving":
            left = within_limits(state, self.wants, self.limits)
            provider = Provider(state, self.at, self.steady, self.limits)
            yield from provider.provide(left, self.view, self.changed)
            state.soft.chance = chance_after(state.soft.chance, provider.drawn)
            self.memory.surplus_since, events = surplus(state, self.at)
            yield from events

    def _gangs(self, item: Parked) -> Generator[Grant, None, Parked]:
        """Lease jobs of several nodes, each to all its nodes at once; returns what is left of them, and why."""
        want, policy = item.want, self.state.settings.policies.get(item.want.shape.policy, DEFAULT)
        needs, left = want.shape.needs, item.left
        most = left if want.most is None else min(left, want.most)
        while most > 0 and (places := place_gang(want, self.view, policy)):
            slots = []
            for each in places:
                gpus = self.state.ledger.pick_gpus(each.location.id, needs.amounts())
                slots.append((each.runner, slot_for(want.shape_id, needs.cores, needs, gpus)))
            (root, slot), *parts = slots
            yield Grant(root, slot, 1, 1, self.steady, tuple(parts))
            most, left = most - 1, left - 1
        return Parked(want, left, gang_verdicts(want, self.view, policy))

    def _placements(self) -> Iterator[Placement | Parked]:
        """Place shapes in order; after one that has waited too long for room, only what does not delay it.

        Then another round gives out what is left of a limit because a shape could not use its part.
        """
        yield from self._in_order()
        again = [
            replace(want, ready=ready, most=None)
            for want in self.wants
            if want.most is not None and (ready := self.state.shapes[want.shape_id].ready)
            if limits.fits(want.shape, self.limits, 1)
        ]
        if again and self.memory.reserved is None:
            yield from self._place(again)

    def _in_order(self) -> Iterator[Placement | Parked]:
        state, memory = self.state, self.memory
        last, memory.reserved = memory.reserved, None
        first, later = behind(state, self.wants, last) if last is not None else (self.wants, [])
        rest: list[Want] = []
        for item in self._place(first):
            yield item
            if isinstance(item, Parked) and _waits_for_room(item.verdicts):
                memory.reserved = reserve(state, self.view, item, self.at)
                if memory.reserved is not None:
                    rest = first[first.index(item.want) + 1 :]
                    break
        if rest or later:
            together: dict[int, Want] = {want.shape_id: want for want in rest}
            for want in later:
                same = together.get(want.shape_id)
                together[want.shape_id] = want if same is None else replace(want, ready=want.ready + same.ready)
            if memory.reserved is None:
                yield from self._place(list(together.values()))
            else:
                yield from fill(state, self.view, list(together.values()), memory.reserved, self.at)

    def _place(self, wants: list[Want]) -> Iterator[Placement | Parked]:
        state = self.state
        return place(self.view, wants, state.settings.policies, self.memory.memo, state.ledger.changed, self._draw)

    def _draw(self) -> float:
        """The next number of the core's own generator."""
        self.state.soft.chance = chance_after(self.state.soft.chance, 1)
        return chance_at(self.state.soft.chance, 0)

    def _leases_ahead(self, parked: Mapping[int, Parked], over: set[int]) -> Iterator[Grant]:
        """Lease ahead of the slots, in order, until a shape waits for room; and keep why jobs of each did not start."""
        blocked = False
        for want in self.wants:
            shape = self.state.shapes[want.shape_id]
            verdicts = parked[shape.id].verdicts if shape.id in parked else []
            most = self._ahead_most(shape) if shape.id not in over else 0
            if not blocked and shape.ready and most and self.state.mode == "serving":
                yield from self._ahead(shape, most)
            if shape.ready and _waits_for_room(verdicts):
                blocked = True  # shapes behind it may not lease ahead in slots that it could use
            self.memory.shapes[shape.id].verdicts = self._at_limit(shape, verdicts)

    def _at_limit(self, shape: ShapeState, verdicts: list[Verdict]) -> list[Verdict]:
        """Why not all jobs of a shape started: also a limit that became full while others had their part of it."""
        if not shape.ready or not shape.shape.limits or any(verdict.filter == "limits" for verdict in verdicts):
            return verdicts
        no = limits.blocked(shape.shape, self.limits)
        return verdicts if no is None else [*verdicts, Verdict("everywhere", "limits", no[0], no[1], False, (no[2],))]

    def _ahead_most(self, shape: ShapeState) -> int:
        """How many jobs of a shape may be leased ahead, in slots that are charged already.

        0 while a limit is overdrawn (it was lowered) or closed. What a rate leaves is given only if no other shape
        wants it.
        """
        most = shape.ready
        head = shape.head(self.state.batches)
        if head is not None:
            batch = self.state.batches[head[0]]
            spare = until_brake(batch)
            if spare is not None:  # all that is leased may fail before the rest is held
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
        """Lease short jobs of a shape ahead of its slots, so that a runner never waits for the manager."""
        state, settings = self.state, self.state.settings
        memo = self.memory.shapes[shape.id]
        mean, needs = memo.mean_s, memo.asked.needs
        if mean is None or mean > settings.ahead_below_s:
            return
        for runner in list(state.runners.values()):
            if _status(state, runner) != "SERVING" or runner.direct:
                continue
            for slot, slots in list(runner.slots.items()):
                if slot.shape != shape.id or slot.amounts != needs.amounts(slot.amounts.cores):
                    continue  # for another shape, or of a size that is not asked for any more
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
            assert head is not None, f"shape {shape.id} has {shape.ready} ready jobs and no head"
            batch, template, _ = head
            memo = memos[shape.id] = asked_now(state, shape)
            if (no := out_of_order(state, shape.shape.policy)) is not None:
                memo.verdicts = [no]
                continue
            of = state.batches[batch]
            wants.append(
                Want(
                    shape.id,
                    memo.asked,
                    shape.ready,
                    of.templates[template].priority,
                    batch,
                    shape.slots,
                    by=of.by,
                    name=of.spec.name,
                    since=of.submitted,
                )
            )
    return wants


def _times(state: State) -> tuple[dict[str, int], dict[tuple[str, str], tuple[int, int]], dict[str, str]]:
    """By site, the time of a job of which nothing is known; by site and queue, the longest allocation and what a job
    can count on; by site, its own queue.
    """
    jobs, longest, own = {}, {}, {}
    for name, facts in state.soft.sites.items():
        if facts.job_s is not None:
            jobs[name] = facts.job_s
        times = {"": facts.time_most_s}
        for queue in facts.queues:
            times[queue.name] = queue.time_most_s
            if queue.default:
                own[name], times[""] = queue.name, queue.time_most_s
        for queue_name, most_s in times.items():
            if most_s is not None:
                longest[name, queue_name] = (most_s, most_s - min(facts.spare_s, most_s // 2))
    return jobs, longest, own


def _read_by_nodes(state: State) -> set[str]:
    """The facts that filters of nodes look at, in any policy."""
    names = {name for policy in state.settings.policies.values() for name in policy.filters}
    return {fact for name in names if NODE in (one := filters.BUILT_IN[name]).levels for fact in one.reads}


def _places(state: State) -> list[Place]:
    places, classes = [], state.soft.planning.place_classes
    for runner in state.runners.values():
        if runner.state in ("SERVING", "DRAINING", "MISSING") and not runner.direct:
            location = state.ledger.locations[runner.location]
            key = (location.site, location.tags, location.capacity, location.options, location.queue)
            class_number = classes.setdefault(key, len(classes))
            status = _status(state, runner)
            allocation = state.allocations.get(runner.allocation or "")
            if status == "SERVING" and allocation is not None and allocation.nodes > 1 and allocation.shape is not None:
                status = KEPT if state.shapes[allocation.shape].ready else status
            places.append(Place(location, runner.id, status, class_number))
    return places


def _status(state: State, runner: RunnerState) -> str:
    """The status of a runner as the filter sees it: only SERVING takes jobs."""
    contact = state.soft.contacts[runner.id]
    if not contact.connected:
        return "not connected"
    return "ending attempts that were given up" if contact.given_up else runner.state


def _waits_for_room(verdicts: list[Verdict]) -> bool:
    return any(verdict.code == "busy" for verdict in verdicts)
