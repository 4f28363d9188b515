"""Leases: what the scheduling pass grants becomes events, as the jobs are taken out of their queues."""

from collections.abc import Iterator

from msgspec import Struct

from rota.core.evolve import evolve
from rota.core.ready import ReadyQueue
from rota.core.state import State
from rota.model.events import Leased
from rota.model.slot import Slot

__all__ = ["Grant", "lease_jobs"]


class Grant(Struct, frozen=True):
    """Leave to lease `jobs` of a shape to a runner, for which `slots` are added; to a gang of several, one job."""

    runner: str
    slot: Slot
    slots: int
    jobs: int
    steady: float
    """The time by which starts are counted, for limits with a rate."""
    parts: tuple[tuple[str, Slot], ...] = ()
    """(runner, slot) of the further parts of a gang."""


def lease_jobs(state: State, grant: Grant) -> Iterator[Leased]:
    """Take the next jobs of the shape and lease them. Yields the events, already applied."""
    shape = state.shapes[grant.slot.shape]
    counted = any(state.limits[name].rate is not None for name in shape.shape.limits if name in state.timed)
    slots, jobs = grant.slots, grant.jobs
    while jobs > 0:
        head = shape.head(state.batches)
        if head is None:
            return
        number, _, queue = head
        spans = _take(state, grant, number, queue, jobs)
        if not spans:
            raise AssertionError(f"batch {number} says {queue.count} are ready and has none")
        taken = sum(spans[1::2]) - sum(spans[::2])
        added = min(slots, taken)
        total = state.runners[grant.runner].slots.get(grant.slot, 0) + added
        at = grant.steady if counted else None
        event = Leased(number, spans, grant.runner, grant.slot, total, at, grant.parts)
        evolve(state, event)
        yield event
        slots -= added
        jobs -= taken


def _take(state: State, grant: Grant, number: int, queue: ReadyQueue, jobs: int) -> list[int]:
    """The next jobs of a queue; where one is tried at a time, one that has not failed there, if there is any."""
    states, runner = state.batches[number].states, state.runners[grant.runner]
    record = (
        state.soft.weather.hosts.get((runner.site, runner.host)) if runner.location in state.ledger.single else None
    )
    known = set() if record is None else {pos for batch, pos, _ in record.jobs if batch == number}
    if not known:
        return queue.take(jobs, states)
    passed = []
    spans = queue.take(1, states)
    while spans and spans[0] in known:
        passed.append(spans[0])
        spans = queue.take(1, states)
    for pos in passed:
        queue.push(pos, pos + 1)
    return spans or queue.take(1, states)
