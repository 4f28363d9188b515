"""The scheduling pass: leases for the runners that are there, allocations where more is wanted.

It decides, and writes nothing but what it remembers itself (`Planning`): each event and each grant of leases that it
yields is applied by its caller before the next is computed, so what it reads is always the present.

It costs by what changed. After a pass every shape that waits is refused everywhere; so in the next one only those get
a turn that have changed themselves, or that have room where something has (`rota.core.plan.watching`).
"""

import math
from collections.abc import Iterator, Mapping
from types import MappingProxyType

from rota.core.evolve.leasing import Grant
from rota.core.plan.ahead import leases_ahead
from rota.core.plan.allocations import Provider, surplus
from rota.core.plan.alone import place_alone
from rota.core.plan.full import FullPass, grant_gang
from rota.core.plan.limits import left_over, limits_now, wake_times
from rota.core.plan.turns import Gang, Turns
from rota.core.plan.watching import enter, look, read_by_nodes, times
from rota.core.shares import worth_now
from rota.core.soft import chance_after
from rota.core.state import State
from rota.core.stimuli import At
from rota.model import events as ev
from rota.model.slot import slot_for
from rota.schedule.facts import Key
from rota.schedule.pipeline import Placement
from rota.schedule.view import View

__all__ = ["plan"]

TOGETHER = 64
"""So many shapes that have changed are left over, at the most, before queues are asked of which none has room."""


def plan(state: State, at: At) -> Iterator[ev.Event | Grant]:
    """Grants of leases for all jobs that can start now, and events for the allocations to ask for or to give up."""
    planning, facts = state.soft.planning, state.soft.facts
    planning.wanted = False
    planning.steady_less_mono = state.steady_less_mono(at.wall, at.mono)
    if planning.changed.everything or planning.times is None:
        planning.times = times(state)
        planning.fair = any(policy.shares for policy in state.settings.policies.values())
    if planning.fair:
        for share, worth in worth_now(state, at.wall).items():
            facts.tell("shares", share, worth)
    view = View(
        at.wall,
        at.mono,
        state.mode,
        (),
        state.ledger.view,
        MappingProxyType(limits_now(state, at)),
        *planning.times,
        facts,
        elsewhere=planning.queues.takes,
    )
    changed = _changed_facts(state)
    planning.window_at = planning.rate_at = math.inf
    news = look(state, view)
    if state.mode != "serving":
        planning.reserved = None if planning.waiting.entries else planning.reserved
        return
    steady = planning.steady_less_mono + at.mono
    if news.alone is not None:
        found = place_alone(state, view, news.alone)
        if found is not None:
            yield _grant(state, found, steady)
        else:
            news = enter(state, view, news.alone)
    if planning.waiting.odd or _is_a_gang_old(state, at):
        planning.changed.everything = True  # nobody watches what this pass does
        yield from FullPass(state, at, view).run()
    elif planning.waiting.entries:
        turns = Turns(state, view, news, at)
        for item in turns.placements():
            yield _grant(state, item, steady)
        yield from leases_ahead(turns, steady)
        turns.settle()
    if planning.waiting.entries:
        planning.window_at, planning.rate_at = wake_times(state, view.limits, at)
    yield from _ask_sites(state, at, view, changed)


def _changed_facts(state: State) -> list[Key]:
    """The facts that are not as they were in the last pass."""
    planning, facts = state.soft.planning, state.soft.facts
    changed = list(facts.changed) if state.mode == "serving" else []
    if changed:
        facts.changed.clear()
        if {name for name, _ in changed} & read_by_nodes(state):
            planning.changed.everything = True
    if planning.changed.everything:
        planning.memo.clear()
        planning.backfill_memo.clear()
    return changed


def _grant(state: State, item: Placement | Gang, steady: float) -> Grant:
    if isinstance(item, Gang):
        return grant_gang(state, item.want, item.laid, steady)
    needs = item.want.shape.needs
    gpus = state.ledger.pick_gpus(item.place.location.id, needs.amounts(item.cores))
    slot = slot_for(item.want.shape_id, item.cores, needs, gpus)
    return Grant(item.place.runner, slot, item.count, item.count, steady)


def _is_a_gang_old(state: State, at: At) -> bool:
    """Whether nodes may have to be kept for a job of several, which only the full pass does."""
    after_s, waiting = state.settings.backfill_after_s, state.soft.planning.waiting
    if after_s is None or not waiting.gangs:
        return False
    return any(at.wall - waiting.entries[number].want.since >= after_s for number in waiting.gangs)


def _ask_sites(state: State, at: At, view: View, changed: list[Key]) -> Iterator[ev.Event | Grant]:
    """Ask for allocations for what found no node, and give up those that nothing is ready for any more."""
    planning = state.soft.planning
    rooms = state.rooms(at.mono)
    if not _can_wait(state, rooms, changed):
        wants, gone = left_over(state, view)
        known = planning.queues.shapes
        news = wants or gone is None or any(number in known for number in gone) or changed or state.census.changed
        if news or not planning.queues.stands(view.wall, state.soft.queues, rooms):
            provider = Provider(state, at, state.steady(at.wall, at.mono), view.limits)
            yield from provider.provide(wants, gone, view, changed)
            state.soft.chance = chance_after(state.soft.chance, provider.drawn)
    planning.surplus_since, events = surplus(state, at)
    yield from events


def _can_wait(state: State, rooms: Mapping[str, int], changed: list[Key]) -> bool:
    """Whether there is nothing to ask sites for yet: none has room, and nobody counts on what is on its way.

    What is left over of the shapes that have changed meanwhile is then looked at for many of them together.
    """
    planning, memo = state.soft.planning, state.soft.planning.queues
    return (
        planning.unasked is not None
        and len(planning.unasked) < TOGETHER
        and not (memo.claimed or memo.spare or changed or state.census.changed)
        and all(room <= 0 for room in rooms.values())
    )
