"""Allocations for what is ready and has no place: arrays of runners, or a direct allocation for each job."""

from collections.abc import Iterable, Iterator, Mapping

from msgspec.structs import replace

from rota.core.evolve.leasing import Grant
from rota.core.soft import chance_at
from rota.core.state import State
from rota.core.stimuli import At
from rota.model import events as ev
from rota.model.slot import slot_for
from rota.schedule import limits
from rota.schedule.broker.placing import chosen_words, flow_in
from rota.schedule.demand import ANY, Asked
from rota.schedule.facts import Key
from rota.schedule.policy import DEFAULT
from rota.schedule.queue_memo import QueueMemo
from rota.schedule.queue_pass import QueuePass
from rota.schedule.queues import Claim, queue_id
from rota.schedule.view import Limit, View, Want

__all__ = ["Provider", "surplus"]


class Provider:
    """Asks sites for allocations: one submission after the other, each event applied by the caller before the next."""

    def __init__(self, state: State, at: At, steady: float, now: Mapping[str, Limit]) -> None:
        self._state = state
        self._at = at
        self._steady = steady
        self._limits = now
        self.drawn = 0
        """How often chance was asked."""
        self._view: View | None = None

    def provide(
        self, wants: list[Want], gone: Iterable[int] | None, view: View, changed: Iterable[Key]
    ) -> Iterator[ev.Event | Grant]:
        """Ask for allocations for what is left over: of these wants, of shapes that have not changed, not of `gone`.

        `gone` is None if these wants are all that is left over. `changed`: facts that are not as before.
        """
        state = self._state
        memo, rooms = state.soft.planning.queues, state.rooms(self._at.mono)
        view = self._view = replace(view, rooms=rooms, budgets=state.budgets())
        planning = state.soft.planning
        planning.queues = QueueMemo()  # what is asked below and fails leaves nothing half remembered
        level = QueuePass(memo, view, state.soft.queues, state.census.coming, state.settings.policies, self._draw)
        if gone is None:
            level.update_all(wants)
        else:
            level.update(wants, gone)
        moved = list(state.census.changed)
        state.census.changed.clear()
        level.wake(moved, changed)
        for asked in level.run():
            most, left = max(1, state.soft.sites[asked.site].array_most), asked.count
            while left > 0:
                count = min(left, most)
                left -= count
                tag = f"{int(self._draw() * 2**48):012x}"
                provide = self._direct if state.soft.sites[asked.site].mode == "direct" else self._runners
                yield from provide(asked, count, tag)
        planning.queues = memo
        if level.none_left:  # nodes may be relaxed now
            planning.wanted = True

    def _draw(self) -> float:
        self.drawn += 1
        return chance_at(self._state.soft.chance, self.drawn)

    def _runners(self, asked: Asked, count: int, tag: str) -> Iterator[ev.Event | Grant]:
        planned = self._planned(asked, tag, count)
        if asked.shape_id != ANY:
            needs = self._state.shapes[asked.shape_id].shape.needs
            planned = replace(planned, shape=asked.shape_id, options=needs.options)
        for element in range(count):
            yield replace(planned, id=f"a{self._state.next_allocation}", element=element)

    def _direct(self, asked: Asked, count: int, tag: str) -> Iterator[ev.Event | Grant]:
        """Ask for an allocation for each job. A runner stands for it that holds the lease and never speaks."""
        state = self._state
        shape, facts = state.shapes[asked.shape_id], state.soft.sites[asked.site]
        needs = state.soft.planning.shapes[shape.id].asked.needs
        slot = slot_for(shape.id, needs.cores, needs)
        count = limits.fits(shape.shape, self._limits, min(count, shape.ready))
        planned = self._planned(asked, tag, count)
        planned = replace(planned, shape=shape.id, direct=True, options=shape.shape.needs.asked_options())
        for element in range(count):
            head = shape.head(state.batches)
            assert head is not None, f"shape {shape.id} has {shape.ready} ready jobs and no head"
            name = state.batches[head[0]].spec.name or "rota"
            yield (event := replace(planned, id=f"a{state.next_allocation}", element=element, name=name))
            runner = f"{tag}.{element}"
            yield ev.RunnerGreeted(
                runner=runner,
                allocation=event.id,
                connect=1,
                session=1,
                host="",
                pid=0,
                capacity=asked.amounts,
                tags=facts.tags,
                until=None,
                output=f"{facts.directory}/{tag}/{element}",
                site=asked.site,
                direct=True,
            )
            yield Grant(runner, slot, 1, 1, self._steady)

    def _why(self, asked: Asked) -> str:
        """What the brokerage says of the queue that an allocation for one shape is asked of; empty: it is not asked."""
        if asked.shape_id == ANY or self._view is None:
            return ""
        policies = self._state.settings.policies
        flow = flow_in(policies.get(self._state.shapes[asked.shape_id].shape.policy, DEFAULT).filters)
        if flow is None:
            return ""
        shape = self._state.soft.planning.shapes[asked.shape_id].asked
        own = next((queue.name for queue in self._state.soft.sites[asked.site].queues if queue.default), None)
        queue = asked.queue or own
        place = asked.site if queue is None else queue_id(asked.site, queue)
        return chosen_words(flow, shape, place, self._view)

    def _planned(self, asked: Asked, tag: str, count: int) -> ev.AllocationPlanned:
        """The event for one element of a submission of `count`, without its id and its number."""
        return ev.AllocationPlanned(
            id="",
            site=asked.site,
            tag=tag,
            capacity=asked.amounts,
            at=self._at.wall,
            time_s=asked.time_s,
            name="rota",
            submit=True,
            queue=asked.queue,
            elements=count,
            nodes=asked.nodes,
            why=self._why(asked),
        )


def surplus(state: State, at: At) -> tuple[dict[Claim, float], list[ev.Event]]:
    """(since when too many allocations are on their way, events that give up the newest of these).

    They are given up once there have been too many for `shrink_s`. Whole nodes, and direct jobs, are never too many.
    """
    spare = state.soft.planning.queues.spare
    before = state.soft.planning.surplus_since
    if not spare:
        return {}, []
    found: dict[Claim, int] = {}
    for shape, claims in spare.items():
        if shape != ANY:
            found.update(claims)
    since = {claim: before.get(claim, at.mono) for claim in found}
    events: list[ev.Event] = []
    for claim, count in found.items():
        if at.mono - since[claim] < state.settings.shrink_s:
            continue
        site, queue, shape = claim
        waiting = [a for a in state.allocations.values() if a.state == "PENDING" and a.id not in state.census.of]
        coming = [a.id for a in waiting if (a.site, a.queue or "", a.shape) == (site, queue, shape)]
        for name in coming[-count:] if count < len(coming) else coming:
            events.append(ev.AllocationMoved(name, "kill", None, "nothing is ready for it any more"))
    return since, events
