"""The line of jobs that are ready: who goes before whom, and who has what they wait for."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from rota.core.explain.account import Ahead, Holder
from rota.core.plan.asked import asked_now
from rota.core.plan.limits import limits_now
from rota.core.state import BatchState, RunnerState, ShapeState, State
from rota.core.stimuli import At
from rota.model.job import format_job
from rota.model.needs import Amounts, show_amount
from rota.model.tables import PENDING, STARTING
from rota.schedule import queues
from rota.schedule.limits import blocked
from rota.schedule.policy import in_order
from rota.schedule.view import View, Want

__all__ = ["SHOWN", "InFront", "Line", "holders_of", "in_front", "limit_holders", "running_before"]

MANY = 300
"""With more shapes than these that wait, it is not looked at whether each may use the same places …"""
MANY_BATCHES = 3_000
"""… nor with more batches."""
SHOWN = 3
"""Holders, batches ahead and places that a sentence names."""
Head = tuple[int, int, int]
"""(-priority, batch, template), as a shape has them."""


class InFront(NamedTuple):
    """What is before a job, in short."""

    jobs: int
    own: int
    """How many of them are of its own batch."""
    batches: int
    """How many batches they are of, by priority."""
    most: tuple[Ahead, ...]
    """Those with most jobs."""


def in_front(ahead: list[Ahead], batch: int) -> InFront:
    """All of it, in short."""
    own = sum(row.jobs for row in ahead if row.batch == batch)
    return InFront(sum(row.jobs for row in ahead), own, len(ahead), tuple(sorted(ahead, key=_most_first)[:SHOWN]))


def _most_first(row: Ahead) -> tuple[int, int, int]:
    return -row.jobs, -row.priority, row.batch


class _Tally:
    """What has been gone past on the way along a line. Figures only grow, so those with most are known at each step."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._rows: dict[tuple[int, int], int] = {}
        self._of: dict[int, int] = {}
        self._total = 0
        self.most: tuple[Ahead, ...] = ()
        """Those with most jobs."""

    def past(self, head: Head) -> None:
        priority, number, template = -head[0], head[1], head[2]
        batch = self._state.batches[number]
        count = batch.queues[template].count
        jobs = self._rows[number, priority] = self._rows.get((number, priority), 0) + count
        self._of[number] = self._of.get(number, 0) + count
        self._total += count
        if len(self.most) == SHOWN and (-jobs, -priority, number) > _most_first(self.most[-1]):
            return
        others = [row for row in self.most if (row.batch, row.priority) != (number, priority)]
        found = [*others, Ahead(number, batch.spec.name, priority, jobs)]
        self.most = tuple(sorted(found, key=_most_first)[:SHOWN])

    def back(self, heads: Iterable[Head], most: tuple[Ahead, ...]) -> None:
        """Go back to where `most` was so, and these heads had not been gone past."""
        for head in heads:
            priority, number = -head[0], head[1]
            count = self._state.batches[number].queues[head[2]].count
            self._rows[number, priority] -= count
            if not self._rows[number, priority]:
                del self._rows[number, priority]
            self._of[number] -= count
            self._total -= count
        self.most = most

    def so_far(self, batch: int) -> InFront:
        return InFront(self._total, self._of.get(batch, 0), len(self._rows), self.most)


class Line:
    """Shapes with ready jobs, in the order of their turns; made once for a question, which may be about many jobs."""

    def __init__(self, state: State, at: At) -> None:
        self._state = state
        view = View(at.wall, at.mono, state.mode, (), state.ledger.view, {}, facts=state.soft.facts)
        wants = [_want(state, shape) for shape in state.shapes if shape.ready and shape.heads]
        try:
            self._wants = in_order(wants, view, state.settings.policies)
        except Exception:  # an order that another package brings may fail: then by priority
            self._wants = sorted(wants, key=lambda want: (-want.priority, want.first, want.shape_id))
        self._limits = limits_now(state, at)
        self._known: dict[int, list[ShapeState]] = {}
        self._few = len(wants) <= MANY and sum(len(state.shapes[want.shape_id].heads) for want in wants) <= MANY_BATCHES
        self._in_front: dict[int, dict[Head, InFront]] = {}
        """Shape → what is before the first job of each of its heads."""

    def before(self, batch: BatchState, pos: int) -> list[Ahead]:
        """Ready jobs that get their turns before a PENDING one and may use the same places, by batch."""
        state, template = self._state, batch.template_of(pos)
        shape = state.shapes[batch.shapes[template]]
        rows: dict[tuple[int, int], int] = {}
        for other in self._shapes_before(shape):
            for priority, number, of in set(other.heads):
                count = state.batches[number].queues[of].count
                if count:
                    rows[number, -priority] = rows.get((number, -priority), 0) + count
        own = (-batch.templates[template].priority, batch.id, template)
        for head in set(shape.heads):
            if head < own and (count := state.batches[head[1]].queues[head[2]].count):
                rows[head[1], -head[0]] = rows.get((head[1], -head[0]), 0) + count
        mine = sum(
            batch.states.count(PENDING, low, high)
            for number, low, high in (batch.runs(0, pos) if pos else ())
            if number == template
        )
        if mine:
            rows[batch.id, -own[0]] = rows.get((batch.id, -own[0]), 0) + mine
        found = [Ahead(number, state.batches[number].spec.name, prio, jobs) for (number, prio), jobs in rows.items()]
        return sorted(found, key=lambda row: (-row.priority, row.batch))

    def in_front(self, batch: BatchState, pos: int) -> InFront:
        """What is before the first PENDING job of a batch, in short: for many it costs little more than for one."""
        template = batch.template_of(pos)
        number = batch.shapes[template]
        if number not in self._in_front:
            if self._few:
                tally, shape = _Tally(self._state), self._state.shapes[number]
                for other in self._shapes_before(shape):
                    for head in self._heads(other):
                        tally.past(head)
                self._walk(shape, tally)
            else:
                tally = _Tally(self._state)
                for want in self._wants:
                    self._walk(self._state.shapes[want.shape_id], tally, blocked(want.shape, self._limits) is None)
        head = (-batch.templates[template].priority, batch.id, template)
        found = self._in_front.get(number, {}).get(head)
        return in_front(self.before(batch, pos), batch.id) if found is None else found

    def _walk(self, shape: ShapeState, tally: _Tally, free: bool = True) -> None:
        """Go along the heads of a shape; those of one that may not start are not before those of others."""
        found: dict[Head, InFront] = {}
        self._in_front[shape.id] = found
        most = tally.most
        for head in self._heads(shape):
            found[head] = tally.so_far(head[1])
            tally.past(head)
        if not free:
            tally.back(found, most)

    def _heads(self, shape: ShapeState) -> list[Head]:
        batches = self._state.batches
        return [head for head in sorted(set(shape.heads)) if batches[head[1]].queues[head[2]].count]

    def _shapes_before(self, shape: ShapeState) -> list[ShapeState]:
        known = self._known.get(shape.id)
        if known is None:
            known = self._known[shape.id] = []
            own = asked_now(self._state, shape).asked.needs
            sites = self._state.soft.queues
            for want in self._wants:
                if want.shape_id == shape.id:
                    break
                if blocked(want.shape, self._limits) is not None:
                    continue
                if not self._few or queues.compete(want.shape.needs, own, sites):
                    known.append(self._state.shapes[want.shape_id])
        return known


def _want(state: State, shape: ShapeState) -> Want:
    """A shape as `in_order` takes it; nothing is kept of it."""
    head = min(row for row in shape.heads if state.batches[row[1]].queues[row[2]].count)
    batch = state.batches[head[1]]
    asked = asked_now(state, shape).asked
    return Want(
        shape.id, asked, shape.ready, -head[0], batch.id, shape.slots, None, batch.by, batch.spec.name, batch.submitted
    )


def holders_of(state: State, runners: Iterable[RunnerState], short: Iterable[str]) -> list[Holder]:
    """Whose jobs have, on these runners, what is short there: those with most of it first."""
    found: list[Holder] = []
    here = list(runners)
    for what in short:
        used: dict[int, list[int]] = {}
        for runner in here:
            for number, pos in _in_slots(state, runner):
                _add(used, number, pos, _part(state.batches[number].live[pos].slot.amounts, what))
            for (number, pos, _), slot in runner.parts.items():
                _add(used, number, pos, _part(slot.amounts, what))
        rows = sorted(((total, number, jobs, pos) for number, (total, jobs, pos) in used.items()), reverse=True)
        found += [_holder(state, what, show_amount(what, total), *rest) for total, *rest in rows]
    return found


def _in_slots(state: State, runner: RunnerState) -> Iterator[tuple[int, int]]:
    """The jobs that have the slots of a runner: not those that it has ahead of them."""
    left = dict(runner.slots)
    jobs = sorted(runner.jobs, key=lambda job: state.batches[job[0]].states[job[1]] == STARTING)
    for number, pos in jobs:
        slot = state.batches[number].live[pos].slot
        left[slot] = left.get(slot, 0) - 1
        if left[slot] >= 0:
            yield number, pos


def running_before(state: State, runner: RunnerState, number: int, pos: int) -> int:
    """How many jobs run in the slots that a STARTING one waits for; 0: one of them is free."""
    slot = state.batches[number].live[pos].slot
    here = [(of, at) for of, at in runner.jobs if state.batches[of].live[at].slot == slot]
    run = sum(state.batches[of].states[at] != STARTING for of, at in here)
    return run if run >= runner.slots.get(slot, 0) else 0


def limit_holders(state: State, name: str) -> list[Holder]:
    """Whose live jobs count against a limit."""
    used: dict[int, list[int]] = {}
    for runner in state.runners.values():
        for number, pos in runner.jobs:
            batch = state.batches[number]
            if name in state.shapes[batch.live[pos].slot.shape].shape.limits or name == f"#{number}":
                _add(used, number, pos, 1)
    rows = sorted(((total, number, jobs, pos) for number, (total, jobs, pos) in used.items()), reverse=True)
    what = f"limit {name}" if not name.startswith("#") else f"%{state.limits[name].count}"
    return [_holder(state, what, f"{total:,}", *rest) for total, *rest in rows]


def _add(used: dict[int, list[int]], number: int, pos: int, amount: int) -> None:
    if amount:
        row = used.setdefault(number, [0, 0, pos])
        row[0] += amount
        row[1] += 1
        row[2] = min(row[2], pos)


def _holder(state: State, what: str, has: str, number: int, jobs: int, pos: int) -> Holder:
    batch = state.batches[number]
    return Holder(what, has, number, batch.spec.name, jobs, format_job(number, batch.index(pos)))


def _part(amounts: Amounts, what: str) -> int:
    """How much there is of one kind."""
    if what in ("cores", "memory", "disk"):
        return int(getattr(amounts, what))
    if what in ("gpus", "gpu_share"):
        return amounts.gpus * (1000 if what == "gpu_share" else 1) + (amounts.gpu_share if what == "gpu_share" else 0)
    return dict(amounts.named).get(what, 0)
