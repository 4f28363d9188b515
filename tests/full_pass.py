"""The full pass beside the one that costs by what changed: both must do the same, event by event."""

import copy
from collections.abc import Iterator
from typing import Any

from msgspec.structs import replace

from rota.core.evolve.leasing import Grant, lease_jobs
from rota.core.notes import follow
from rota.core.plan.allocations import Provider, surplus
from rota.core.plan.full import FullPass, all_wants
from rota.core.plan.limits import limits_now
from rota.core.plan.watching import times
from rota.core.shares import worth_now
from rota.core.soft import chance_after
from rota.core.state import State
from rota.core.step import Core
from rota.core.stimuli import At
from rota.model import events as ev
from rota.schedule import limits
from rota.schedule.policy import in_order
from rota.schedule.view import View
from rota.sim.copying import copy_core


def full_plan(state: State, at: At) -> Iterator[ev.Event | Grant]:
    """What `rota.core.plan.plan` yields, worked out from the state alone."""
    planning = state.soft.planning
    planning.steady_less_mono = state.steady_less_mono(at.wall, at.mono)
    for share, worth in worth_now(state, at.wall).items():
        state.soft.facts.tell("shares", share, worth)
    now = limits_now(state, at)
    view = View(
        at.wall,
        at.mono,
        state.mode,
        (),
        state.ledger.view,
        now,
        *times(state),
        state.soft.facts,
        elsewhere=planning.queues.takes,
    )
    changed = list(state.soft.facts.versions)  # whatever the core says has changed
    planning.changed.everything = True
    planning.memo, planning.backfill_memo = {}, {}
    if state.mode != "serving":
        return
    wants = all_wants(state)
    if wants:
        yield from FullPass(state, at, view).run()
    left = [replace(want, ready=ready) for want in wants if (ready := state.shapes[want.shape_id].ready)]
    left = [replace(want, slots=state.shapes[want.shape_id].slots, most=None) for want in left]
    left = in_order(left, view, state.settings.policies)
    most, _ = limits.share(left, now, state.starts)
    left = [replace(want, ready=count) for want, count in zip(left, most, strict=True) if count]
    provider = Provider(state, at, state.steady(at.wall, at.mono), now)
    yield from provider.provide(left, None, view, changed)
    state.soft.chance = chance_after(state.soft.chance, provider.drawn)
    planning.surplus_since, events = surplus(state, at)
    yield from events


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
        now = self.state.soft.planning.reserved
        assert now == kept or self.state.mode != "serving", (
            f"the pass keeps {now}, a full one does {kept}; before {before}"
        )
        return step
