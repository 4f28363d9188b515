"""Allocations for what is ready and has no place: arrays of runners, or a direct allocation for each job."""

from collections.abc import Iterator

from rota.core.evolve import evolve
from rota.core.slots import slot_name
from rota.core.state import ShapeState, State
from rota.core.stimuli import At
from rota.model import events as ev
from rota.schedule import demand, limits
from rota.schedule.demand import Asked
from rota.schedule.view import Want

__all__ = ["lease_jobs", "provide", "take_back"]


def provide(state: State, wants: list[Want], at: At, steady: float) -> Iterator[ev.Event]:
    """Ask for what is wanted. Yields the events, already applied."""
    views = state.site_views()
    for view in views:
        closed = (shape for (site, shape), row in state.refused.items() if site == view.name and row[0] > at.mono)
        view.refused = frozenset(closed)
    for asked in demand.wanted(views, wants, at.mono):
        facts = state.sites[asked.site].facts
        left = asked.count
        while left > 0:
            count = min(left, max(1, facts.array_most))
            left -= count
            tag = f"{int(state.random() * 2**48):012x}"
            if facts.mode == "direct":
                made = list(_direct(state, asked, count, tag, at, steady))
            else:
                made = list(_runners(state, asked, count, tag, at))
            planned = [event for event in made if isinstance(event, ev.AllocationPlanned)]
            for event in planned:  # how many there are is known only now
                event.elements = state.allocations[event.id].elements = len(planned)
            yield from made


def _runners(state: State, asked: Asked, count: int, tag: str, at: At) -> Iterator[ev.Event]:
    shape = None if asked.shape_id == demand.ANY else asked.shape_id
    options = () if shape is None else state.shapes[shape].shape.needs.options
    for element in range(count):
        yield _planned(state, asked, shape, element, "rota", tag, at, False, options)


def _planned(
    state: State,
    asked: Asked,
    shape: int | None,
    element: int,
    name: str,
    tag: str,
    at: At,
    direct: bool,
    options: tuple[tuple[str, str], ...],
) -> ev.AllocationPlanned:
    event = ev.AllocationPlanned(
        f"a{state.next_allocation}",
        asked.site,
        tag,
        asked.amounts,
        at.wall,
        None,
        shape,
        element,
        asked.time_s,
        name,
        direct,
        True,
        options,
    )
    evolve(state, event)
    return event


def _direct(state: State, asked: Asked, count: int, tag: str, at: At, steady: float) -> Iterator[ev.Event]:
    """One allocation per job. A runner stands for it, that holds the lease and never speaks."""
    shape, facts = state.shapes[asked.shape_id], state.sites[asked.site].facts
    slot = slot_name(shape.id, shape.asked.needs.cores, shape.asked.needs)
    for element in range(count):
        head = shape.head(state.batches)
        if head is None or not limits.fits(shape.shape, state.limits, 1):
            return
        name = state.batches[head[0]].spec.name or "rota"
        planned = _planned(state, asked, shape.id, element, name, tag, at, True, shape.shape.needs.asked_options())
        yield planned
        runner = f"{tag}.{element}"
        greeted = ev.RunnerGreeted(
            runner,
            planned.id,
            1,
            1,
            "",
            0,
            asked.amounts,
            facts.tags,
            None,
            f"{facts.directory}/{tag}/{element}",
            asked.site,
            True,
        )
        evolve(state, greeted)
        yield greeted
        yield from lease_jobs(state, runner, shape, slot, 1, 1, steady)


def lease_jobs(
    state: State, runner: str, shape: ShapeState, slot: str, slots: int, jobs: int, steady: float
) -> Iterator[ev.Event]:
    """Lease so many jobs to a runner and add so many slots for them."""
    timed = [name for name in shape.shape.limits if name in state.timed]
    counted = any(state.limits[name].rate is not None for name in timed)
    while jobs > 0:
        head = shape.head(state.batches)
        if head is None:
            return
        number, _, queue = head
        spans = queue.take(jobs, state.batches[number].states)
        if not spans:
            raise AssertionError(f"batch {number} says {queue.count} are ready and has none")
        taken = sum(spans[1::2]) - sum(spans[::2])
        more = min(slots, taken)
        now = state.runners[runner].slots.get(slot, 0) + more
        event = ev.Leased(number, spans, runner, slot, now, steady if counted else None)
        evolve(state, event)
        yield event
        slots -= more
        jobs -= taken


def take_back(state: State, wants: list[Want], at: At) -> Iterator[ev.Event]:
    """Give up allocations that are on their way and that nothing is ready for: the newest, once that has lasted."""
    found = {(site, shape): count for site, shape, count in demand.surplus(state.site_views(), wants)}
    state.surplus_since = {key: state.surplus_since.get(key, at.mono) for key in found}
    serving = {runner.allocation for runner in state.runners.values()} if found else set()
    for (site, shape), count in found.items():
        if at.mono - state.surplus_since[site, shape] < state.settings.shrink_s:
            continue
        coming = [
            allocation.id
            for allocation in state.allocations.values()
            if allocation.site == site
            and allocation.shape == shape
            and allocation.state == "PENDING"
            and allocation.id not in serving
        ]
        for name in coming[-count:] if count < len(coming) else coming:
            event = ev.AllocationMoved(name, "kill", None, "nothing is ready for it any more")
            evolve(state, event)
            yield event
