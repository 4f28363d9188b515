"""The scheduling pass: leases for the runners that are there, allocations where more is wanted.

It decides, and writes nothing but what it remembers itself (`Planning`): each event and each grant of leases that it
yields is applied by its caller before the next is computed, so what it reads is always the present.

It costs by what changed. After a pass every shape that waits is refused everywhere; so in the next one only those get
a turn that have changed themselves, or that have room where something has (`rota.core.plan.watching`).
"""

import math
from collections.abc import Iterator

from rota.core.evolve.leasing import Grant
from rota.core.plan.ahead import leases_ahead
from rota.core.plan.allocations import Provider, surplus
from rota.core.plan.limits import limits_now, wake_times, within_limits
from rota.core.plan.turns import Turns
from rota.core.plan.watching import look, times
from rota.core.soft import chance_after
from rota.core.state import State
from rota.core.stimuli import At
from rota.model import events as ev
from rota.model.slot import slot_for
from rota.schedule.view import View

__all__ = ["plan"]


def plan(state: State, at: At) -> Iterator[ev.Event | Grant]:
    """Grants of leases for all jobs that can start now, and events for the allocations to ask for or to give up."""
    planning = state.soft.planning
    planning.wanted = False
    planning.steady_less_mono = state.steady_less_mono(at.wall, at.mono)
    steady, limits = state.steady(at.wall, at.mono), limits_now(state, at)
    view = View(at.wall, at.mono, state.mode, (), state.ledger.view, limits, *times(state))
    news = look(state, view)
    entries = planning.waiting.entries
    if not entries or state.mode != "serving":
        if entries:
            planning.reserved = None
        planning.window_at = planning.rate_at = math.inf
        if not entries and state.allocations:
            planning.surplus_since, events = surplus(state, [], at)
            yield from events
        return
    turns = Turns(state, view, news, at)
    for item in turns.placements():
        needs = item.want.shape.needs
        gpus = state.ledger.pick_gpus(item.place.location.id, needs.amounts(item.cores))
        slot = slot_for(item.want.shape_id, item.cores, needs, gpus)
        yield Grant(item.place.runner, slot, item.count, item.count, steady)
    yield from leases_ahead(turns, steady)
    turns.settle()
    planning.window_at, planning.rate_at = wake_times(state, limits, at)
    if news.demand or planning.coming or at.mono >= planning.ask_at:
        wants = [entries[key[-1]].want for key in sorted([entry.key for entry in entries.values()])]
        left = within_limits(state, wants, limits)
        provider = Provider(state, at, steady, limits)
        yield from provider.provide(left)
        state.soft.chance = chance_after(state.soft.chance, provider.drawn)
        planning.surplus_since, events = surplus(state, left, at)
        yield from events
        planning.coming = any(view.coming for view in state.site_views())
        weather = state.soft.weather
        closed = [site.closed_until for site in weather.sites.values()]
        refused = [refusal.until for refusal in weather.refused.values()]
        planning.ask_at = min([until for until in (*closed, *refused) if until > at.mono], default=math.inf)
