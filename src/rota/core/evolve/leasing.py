"""Leases: what the scheduling pass grants becomes events, as the jobs are taken out of their queues."""

from collections.abc import Iterator

from msgspec import Struct

from rota.core.evolve import evolve
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
        spans = queue.take(jobs, state.batches[number].states)
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
