"""What time brings: jobs whose time has come, runners that have fallen silent, runners that have nothing to do."""

import heapq

from rota.core.decide.decision import Decision
from rota.core.decide.losses import lost
from rota.core.dependencies import longest_backoff
from rota.core.effects import Allocate
from rota.core.state import RunnerState, State
from rota.core.stimuli import At, Tick
from rota.model import events as ev
from rota.model.tables import MISSING, RUNNING, STARTING

__all__ = ["is_busy", "next_deadline", "tick", "was_set_back"]

SWEEP_S = 1.0
RESTING_SWEEP_S = 5.0
LINGER_SLACK_S = 0.01
IDLE_SWEEP_S = 60.0
CLOCK_SET_BACK_S = 0.5
RECOUNT_S = 60.0
"""The scheduler looks again after this long even if nothing happened, in case something silently went wrong."""


def is_busy(state: State) -> bool:
    """True while anything runs, is ready, or changes: then time is looked at every second."""
    return (
        any(runner.jobs or runner.state in ("DRAINING", "MISSING") for runner in state.runners.values())
        or any(shape.ready for shape in state.shapes)
        or any(a.state.endswith("ING") and a.state != "RUNNING" for a in state.allocations.values())
    )


def _has_places(state: State) -> bool:
    return any(allocation.state.endswith("ING") for allocation in state.allocations.values()) or any(
        runner.state == "SERVING" for runner in state.runners.values()
    )


def next_deadline(state: State, at: At, last: At | None) -> float:
    """Monotonic time of the next Tick, counted from the last one: however much happens, time is looked at."""
    if is_busy(state):
        period = SWEEP_S
    elif _has_places(state):  # not so seldom that `_grace` would take it for a standstill
        period = max(SWEEP_S, min(RESTING_SWEEP_S, state.settings.missing_s / 4))
    else:
        period = IDLE_SWEEP_S
    deadline = (at if last is None else last).mono + period
    for runner in state.runners.values():
        if runner.state == "SERVING" and not runner.jobs and runner.site in state.sites and not runner.direct:
            deadline = min(deadline, runner.idle_since + state.sites[runner.site].facts.linger_s + LINGER_SLACK_S)
    if state.timers:
        deadline = min(deadline, at.mono + state.timers[0][0] - at.wall)
    return max(min(deadline, state.rate_at, at.mono + state.window_at - at.wall), at.mono)


def was_set_back(before: At, now: At) -> bool:
    """True if the wall clock lost time against the monotonic one."""
    return now.wall - before.wall < now.mono - before.mono - CLOCK_SET_BACK_S


def tick(state: State, stimulus: Tick, last: At | None, set_back: bool = False) -> Decision:
    """Everything that is due; `last` is when this was last asked, None after a start.

    `set_back`: the wall clock was set back since then, by what other stimuli have seen of it.
    """
    decision = Decision()
    at = stimulus.at
    if last is None or set_back or was_set_back(last, at):
        _set_timers(state, at.wall)
    if last is not None:
        _grace(state, at, at.mono - last.mono)
    while state.timers and state.timers[0][0] <= at.wall:
        _, number, pos = heapq.heappop(state.timers)
        if pos < 0:
            decision.reconsider.add(number)
            continue
        state.freed.append((number, pos, pos + 1))
        until = state.batches[number].until.get(pos)
        if until is not None and until > at.wall:  # due only because the clock is behind: it may be set again
            heapq.heappush(state.timers, (until, number, pos))
    for runner in list(state.runners.values()):
        if runner.state in ("SERVING", "DRAINING", "MISSING") and not runner.direct:
            _watch(state, decision, runner, at)
    for site in state.sites.values():
        if 0 < site.closed_until <= at.mono:
            site.closed_until = 0
            state.replan = True
    if state.refused and any(row[0] <= at.mono for row in state.refused.values()):
        state.replan = True
    moved = last is not None and at.utc_offset_s != last.utc_offset_s
    if at.wall >= state.window_at or at.mono >= state.rate_at or moved:
        state.replan = True
    if any(at.mono - since >= state.settings.shrink_s for since in state.surplus_since.values()):
        state.replan = True
    if at.mono >= state.safety_at:
        state.safety_at = at.mono + RECOUNT_S
        state.replan = True
    return decision


def _set_timers(state: State, wall: float) -> None:
    """The wall clock may have been set back.

    What had come due may have to wait again, and no back-off may last longer than one can.
    """
    last = wall + longest_backoff(state)
    state.timers = []
    for batch in state.batches.values():
        if batch.spec.not_before is not None:
            state.timers.append((batch.spec.not_before, batch.id, -1))
        for pos, until in batch.until.items():
            state.timers.append((until if until <= last else wall, batch.id, pos))
    heapq.heapify(state.timers)


def _grace(state: State, at: At, gap: float) -> None:
    """If the manager itself was stopped for long, silence proves nothing: every deadline gets that time on top."""
    if gap > SWEEP_S + max(SWEEP_S, state.settings.missing_s / 4):
        for runner in state.runners.values():
            runner.contact = min(at.mono, runner.contact + gap)
            runner.idle_since = min(at.mono, runner.idle_since + gap)


def _watch(state: State, decision: Decision, runner: RunnerState, at: At) -> None:
    silence = at.mono - runner.contact
    if runner.state != "MISSING" and silence > state.settings.missing_s:
        decision.events.append(ev.RunnerMoved(runner.id, "lapse", f"not heard of for {silence:.0f} s"))
        by_batch: dict[int, list[int]] = {}
        for number, pos in runner.jobs:
            if state.batches[number].states[pos] in (STARTING, RUNNING):
                by_batch.setdefault(number, []).extend((pos, pos + 1))
        decision.events.extend(
            ev.Moved(number, "lapse", spans, "its runner is silent") for number, spans in by_batch.items()
        )
        _ask_driver(state, decision, runner)
    elif runner.state == "MISSING":
        if silence > state.settings.rerun_s:
            _give_up_rerunnable(state, decision, runner, silence, at)
        _ask_driver(state, decision, runner)
    elif runner.state == "SERVING" and not runner.jobs:
        site = state.sites.get(runner.site)
        if site is not None and at.mono - runner.idle_since > site.facts.linger_s:
            decision.events.append(ev.RunnerMoved(runner.id, "drain", f"nothing to do for {site.facts.linger_s:.0f} s"))


def _ask_driver(state: State, decision: Decision, runner: RunnerState) -> None:
    """The second witness."""
    allocation = state.allocations.get(runner.allocation or "")
    if allocation is not None and allocation.state.endswith("ING"):
        decision.effects.append(Allocate("check", allocation.id, allocation.site, allocation.tag))


def _give_up_rerunnable(state: State, decision: Decision, runner: RunnerState, silence: float, at: At) -> None:
    jobs = []
    for number, pos in runner.jobs:
        batch = state.batches[number]
        if batch.states[pos] == MISSING and batch.template(pos).rerunnable:
            jobs.append((number, pos))
    events, results = lost(
        state,
        runner.id,
        jobs,
        f"rerunnable, and its runner was silent for {silence:.0f} s: the first copy may still run",
        at,
    )
    decision.events.extend(events)
    decision.results.extend(results)
