"""Passing of time: what it brings, and what it changes in the soft state, at a cost that goes by what is due."""

import heapq
import math

from msgspec import Struct

from rota.core.dependencies.following import longest_backoff
from rota.core.state import RunnerState, State
from rota.core.stimuli import At

__all__ = ["SWEEP_S", "Due", "enter_runner", "enter_runners", "pass_time"]

_ROUNDING_S = 0.001
"""A runner is looked at if it may be due: what is computed in another order may differ in the last digits."""
SWEEP_S = 1.0
"""How often time is looked at while anything goes on."""


class Due(Struct):
    """What time has brought: batches whose `not_before` is past, jobs whose next try is due, runners to look at."""

    batches: set[int]
    jobs: list[tuple[int, int, int]]
    """(batch, low, high)."""
    runners: list[RunnerState]
    """Those that are missing, may have fallen silent or may have had nothing to do for long enough, as they came."""


def pass_time(state: State, at: At, last: At | None, set_back: bool) -> Due:
    """Bring the soft state up to this moment, and say what is due; `last` is the moment before, None after a start.

    `set_back`: the wall clock was set back since then.
    """
    if last is None or set_back:
        _set_timers(state, at.wall)
    if last is not None:
        _grace(state, at, at.mono - last.mono)
    due = Due(set(), [], _due_runners(state, at))
    while state.timers and state.timers[0][0] <= at.wall:
        _, number, pos = heapq.heappop(state.timers)
        if pos < 0:
            due.batches.add(number)
            continue
        due.jobs.append((number, pos, pos + 1))
        until = state.batches[number].until.get(pos)
        if until is not None and until > at.wall:  # due only because the clock is behind: it may be set again
            heapq.heappush(state.timers, (until, number, pos))
    return due


def _due_runners(state: State, at: At) -> list[RunnerState]:
    """Runners that time may have done something to. Their order is that of all runners, so that it tells nothing."""
    soft, until = state.soft, at.mono + _ROUNDING_S
    found = {name for name in state.census.runners["MISSING"] if not state.runners[name].direct}
    found.update(soft.idle.due(until))
    while soft.quiet.first <= until - state.settings.missing_s:
        late = soft.quiet.due(until - state.settings.missing_s)
        heard = [name for name in late if soft.contacts[name].heard > soft.quiet.times[name]]
        for name in heard:
            soft.quiet.set(name, soft.contacts[name].heard)
        if not heard:
            found.update(late)
            break
    return [runner for runner in state.runners.values() if runner.id in found] if found else []


def enter_runner(state: State, runner: RunnerState) -> None:
    """Enter a runner where deadlines are looked for: what it does, or since when it does nothing, has changed."""
    soft, name = state.soft, runner.id
    if runner.state == "SERVING" and not runner.jobs and not runner.parts:
        facts = None if runner.direct else soft.sites.get(runner.site)
        soft.idle.set(name, math.inf if facts is None else soft.contacts[name].idle_since + facts.linger_s)
    else:
        soft.idle.drop(name)
    if runner.state not in ("SERVING", "DRAINING") or runner.direct:
        soft.quiet.drop(name)
    elif name not in soft.quiet.times:
        soft.quiet.set(name, soft.contacts[name].heard)


def enter_runners(state: State) -> None:
    """Enter all runners where deadlines are looked for."""
    state.soft.idle.clear()
    state.soft.quiet.clear()
    for runner in state.runners.values():
        enter_runner(state, runner)


def _set_timers(state: State, wall: float) -> None:
    """Set all timers anew, as the wall clock may have been set back.

    What had come due may have to wait again, and no back-off may last longer than the longest there is.
    """
    last = wall + longest_backoff(state)
    state.timers = []
    for batch in state.batches.open():  # what was put away has neither
        if batch.spec.not_before is not None:
            state.timers.append((batch.spec.not_before, batch.id, -1))
        for pos, until in batch.until.items():
            state.timers.append((until if until <= last else wall, batch.id, pos))
    heapq.heapify(state.timers)


def _grace(state: State, at: At, gap: float) -> None:
    """Add a long gap, in which the manager itself was stopped, to every deadline: silence then proves nothing."""
    if gap > SWEEP_S + max(SWEEP_S, state.settings.missing_s / 4):
        for contact in state.soft.contacts.values():
            contact.heard = min(at.mono, contact.heard + gap)
            contact.idle_since = min(at.mono, contact.idle_since + gap)
        enter_runners(state)
