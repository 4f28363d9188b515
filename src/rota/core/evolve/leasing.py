"""Leases: what the scheduling pass grants becomes events, as the jobs are taken out of their queues."""

from collections.abc import Iterator

from msgspec import Struct

from rota.core.evolve import evolve
from rota.core.state import State
from rota.model.events import Leased

__all__ = ["Grant", "lease_jobs"]


class Grant(Struct, frozen=True):
    """Leave to lease `jobs` of a shape to a runner, for which `slots` are added."""

    runner: str
    shape: int
    slot: str
    slots: int
    jobs: int
    steady: float
    """The time by which starts are counted, for limits with a rate."""


def lease_jobs(state: State, grant: Grant) -> Iterator[Leased]:
    """Take the next jobs of the shape and lease them. Yields the events, already applied."""
    shape = state.shapes[grant.shape]
    counted = any(state.limits[name].rate is not None for name in shape.shape.limits if name in state.timed)
    slots, jobs = grant.slots, grant.jobs
    while jobs > 0:
        head = shape.head(state.batches)
        if head is None:
            return
        number, _, queue = head
        spans = queue.take(jobs, state.batches[number].states)
        if not spans:
            raise AssertionError(f"batch {number} says {queue.count} are ready and has none")
        taken = sum(spans[1::2]) - sum(spans[::2])
        added = min(slots, taken)
        total = state.runners[grant.runner].slots.get(grant.slot, 0) + added
        event = Leased(number, spans, grant.runner, grant.slot, total, grant.steady if counted else None)
        evolve(state, event)
        yield event
        slots -= added
        jobs -= taken
