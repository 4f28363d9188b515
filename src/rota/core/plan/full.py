"""The full pass over nodes: every shape that waits is tried at every place, in the order that the policies say.

It is what the pass that costs by what changed is measured by (`rota.core.plan.turns`), and does the work while a shape
waits whose policy that one cannot follow: another order, filters or scorers of its own, picks, relaxing.
"""

from collections.abc import Generator, Iterator, Mapping

from msgspec.structs import replace

from rota.core.decide.retries import until_brake
from rota.core.evolve.leasing import Grant
from rota.core.plan.asked import asked_now
from rota.core.plan.backfill import Reservation, ahead_of, reserve, reserve_together
from rota.core.plan.policies import out_of_order
from rota.core.plan.watching import runner_status, status_of
from rota.core.soft import chance_after, chance_at
from rota.core.state import ShapeState, State
from rota.core.stimuli import At
from rota.model.needs import Amounts
from rota.model.slot import slot_for
from rota.model.tables import STARTING
from rota.model.verdict import Verdict
from rota.schedule import limits
from rota.schedule.gangs import KEPT, Laid, gang_verdicts, place_gang
from rota.schedule.pipeline import Parked, Placement, place
from rota.schedule.policy import DEFAULT, NEVER, in_order
from rota.schedule.view import Place, View, Want

__all__ = ["FullPass", "all_wants"]


class FullPass:
    """One pass over the shapes that have ready jobs."""

    def __init__(self, state: State, at: At, view: View) -> None:
        self.state = state
        self.at = at
        self.steady = state.steady(at.wall, at.mono)
        self.limits = view.limits
        self.view = replace(view, places=_places(state))
        self.wants = in_order(all_wants(state), self.view, state.settings.policies)
        self.memory = state.soft.planning
        self._gangs_left: dict[int, Parked] = {}
        """Shapes placed by looking at all nodes together → what is left of them."""
        self._kept: frozenset[str] = frozenset()
        """Runners of nodes that are kept: gangs behind the one that waits do not use them."""

    def run(self) -> Iterator[Grant]:
        """Yield leases first, then allocations for jobs that found no place."""
        state = self.state
        over = self._share()
        parked: dict[int, Parked] = {}
        for item in self._placements():
            if isinstance(item, Parked):
                if item.want.shape.needs.together:
                    item = self._gangs_left[item.want.shape_id] = yield from self._gangs(item)
                parked[item.want.shape_id] = item
                continue
            needs = item.want.shape.needs
            gpus = state.ledger.pick_gpus(item.place.location.id, needs.amounts(item.cores))
            slot = slot_for(item.want.shape_id, item.cores, needs, gpus)
            yield Grant(item.place.runner, slot, item.count, item.count, self.steady)
        yield from self._leases_ahead(parked, over)

    def _gangs(self, item: Parked) -> Generator[Grant, None, Parked]:
        """Lease jobs of several nodes, each to all its nodes at once; returns what is left of them, and why."""
        want, policy = item.want, self.state.settings.policies.get(item.want.shape.policy, DEFAULT)
        left = item.left
        most = limits.fits(want.shape, self.limits, left if want.most is None else min(left, want.most))
        while most > 0 and (laid := place_gang(want, self.view, policy, self._kept)) is not None:
            yield grant_gang(self.state, want, laid, self.steady)
            most, left = most - 1, left - 1
        return Parked(want, left, gang_verdicts(want, self.view, policy) if left else [])

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
        memory = self.memory
        last, memory.reserved = memory.reserved, None
        first, later = self._behind(last) if last is not None else (self.wants, [])
        rest: list[Want] = []
        for item in self._place(first):
            yield item
            if not isinstance(item, Parked):
                continue
            left = self._gangs_left.get(item.want.shape_id, item) if item.want.shape.needs.together else item
            if _waits_for_room(left.verdicts):
                memory.reserved = self._reserve(left)
                if memory.reserved is not None:
                    self._kept = memory.reserved.runners
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
                yield from self._fill(list(together.values()), memory.reserved)

    def _place(self, wants: list[Want]) -> Iterator[Placement | Parked]:
        state = self.state
        return place(self.view, wants, state.settings.policies, self.memory.memo, state.ledger.changed, self._draw)

    def _draw(self) -> float:
        """The next number of the core's own generator."""
        self.state.soft.chance = chance_after(self.state.soft.chance, 1)
        return chance_at(self.state.soft.chance, 0)

    def _share(self) -> set[int]:
        """Give each want its part of the limits that it shares; returns the shapes that hold more than their part."""
        most, over = limits.share(self.wants, self.limits, self.state.starts)
        for want, count in zip(self.wants, most, strict=True):
            if count < want.ready:
                want.most = count
        return over

    def _behind(self, kept: Reservation) -> tuple[list[Want], list[Want]]:
        """The wants split into jobs before the one that waits, and after it in the order: a shape can have both."""
        before, after = [], []
        policy = self.state.settings.policies.get(self.state.shapes[kept.shape_id].shape.policy, DEFAULT)
        if policy.shares:  # whose turn it is has changed since
            waits = [want.shape_id for want in self.wants]
            last = waits.index(kept.shape_id) + 1 if kept.shape_id in waits else len(waits)
            return self.wants[:last], self.wants[last:]
        for want in self.wants:
            ahead = ahead_of(self.state, self.state.shapes[want.shape_id], kept.key)
            if ahead:
                before.append(replace(want, ready=min(want.ready, ahead)))
            if want.ready > ahead:
                after.append(replace(want, ready=want.ready - ahead))
        return before, after

    def _reserve(self, parked: Parked) -> Reservation | None:
        want, settings = parked.want, self.state.settings
        keep = settings.policies.get(want.shape.policy, DEFAULT).keep_after_s
        after = settings.backfill_after_s if keep is None else None if keep == NEVER else keep
        if after is None or self.at.wall - self.state.batches[want.first].submitted < after:
            return None
        if want.shape.needs.together:
            places = [each for each in self.view.places if each.status in ("SERVING", KEPT)]
            return reserve_together(self.state, want, places, self.at)
        busy = {verdict.location for verdict in parked.verdicts if verdict.code == "busy"}
        return reserve(
            self.state, parked.want, [each for each in self.view.places if each.location.id in busy], self.at
        )

    def _fill(self, wants: list[Want], kept: Reservation) -> Iterator[Placement | Parked]:
        """Place jobs after the one that waits: elsewhere, or there if they end in time or fit beside it."""
        elsewhere = replace(self.view, places=[each for each in self.view.places if each.runner not in self._kept])
        left = {want.shape_id: want.ready for want in wants}
        policies, changed = self.state.settings.policies, self.state.ledger.changed
        for item in place(elsewhere, wants, policies, self.memory.backfill_memo, changed, self._draw):
            if isinstance(item, Placement):
                left[item.want.shape_id] -= item.count
            yield item
        for runner, spare in ((kept.runner, kept.spare), *kept.others):
            yield from self._beside(wants, kept, runner, spare, left)

    def _beside(
        self, wants: list[Want], kept: Reservation, runner: str, spare: Amounts, left: dict[int, int]
    ) -> Iterator[Placement | Parked]:
        """Place jobs of one node at a place that is kept, if they end in time or fit beside."""
        there = replace(self.view, places=[each for each in self.view.places if each.runner == runner])
        policies, changed = self.state.settings.policies, self.state.ledger.changed
        for want in wants:
            needs = want.shape.needs
            if needs.together:
                continue
            site = there.places[0].location.site if there.places else ""
            time_s = needs.time_s or self.view.job_times.get(site)
            in_time = time_s is not None and self.at.mono + time_s <= kept.at
            room = left[want.shape_id] if in_time else min(left[want.shape_id], needs.amounts().times_in(spare))
            if room <= 0:
                continue
            for item in place(there, [replace(want, ready=room)], policies, {}, changed, self._draw):
                if isinstance(item, Placement):
                    left[want.shape_id] -= item.count
                    if not in_time:
                        spare = spare.plus(needs.amounts(item.cores), -item.count)
                    yield item

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
        if mean is None or mean > settings.ahead_below_s or needs.together:
            return
        for runner in list(state.runners.values()):
            single = runner.location in state.ledger.single
            if runner_status(state, runner) != "SERVING" or runner.direct or single:
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


def grant_gang(state: State, want: Want, laid: Laid, steady: float) -> Grant:
    """Leave to lease one job to all its nodes."""
    slots = []
    for each, cores in laid.parts:
        gpus = state.ledger.pick_gpus(each.location.id, laid.needs.amounts(cores))
        slots.append((each.runner, slot_for(want.shape_id, cores, laid.needs, gpus)))
    (root, slot), *parts = slots
    return Grant(root, slot, 1, 1, steady, tuple(parts))


def all_wants(state: State) -> list[Want]:
    wants = []
    memos = state.soft.planning.shapes
    for shape in state.shapes:
        if shape.ready > 0:
            head = shape.head(state.batches)
            assert head is not None, f"shape {shape.id} has {shape.ready} ready jobs and no head"
            batch, template, _ = head
            memo = memos[shape.id] = asked_now(state, shape)
            if out_of_order(state, shape.shape.policy) is not None:
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


def _places(state: State) -> list[Place]:
    places, classes = [], state.soft.planning.place_classes
    for runner in state.runners.values():
        if runner.state in ("SERVING", "DRAINING", "MISSING") and not runner.direct:
            location = state.ledger.locations[runner.location]
            key = (location.site, location.tags, location.capacity, location.options, location.queue)
            class_number = classes.setdefault(key, len(classes))
            status = status_of(state, runner)
            places.append(Place(location, runner.id, status, class_number, gangs=runner.gangs))
    return places


def _waits_for_room(verdicts: list[Verdict]) -> bool:
    return any(verdict.code == "busy" for verdict in verdicts)
