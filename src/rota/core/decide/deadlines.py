"""What time brings: jobs that are due, runners that have fallen silent, runners that have nothing to do."""

from msgspec.structs import replace

from rota.core.decide.allocations import collect_again
from rota.core.decide.decision import Decision
from rota.core.decide.ends import lost
from rota.core.decide.gangs import live_part, parts_lost
from rota.core.decide.hosts import look_at_suspects
from rota.core.decide.rebrokering import is_time, rebroker
from rota.core.decide.runners import ask_driver
from rota.core.notes import Looked, WeatherEntry
from rota.core.passing import SWEEP_S, Due
from rota.core.state import RunnerState, State
from rota.core.stimuli import At
from rota.model import events as ev
from rota.model.amounts import format_duration
from rota.model.tables import MISSING, RUNNING, STARTING

__all__ = ["is_busy", "next_deadline", "tick", "was_set_back"]

RESTING_SWEEP_S = 5.0
LINGER_SLACK_S = 0.01
IDLE_SWEEP_S = 60.0
CLOCK_SET_BACK_S = 0.5
RECOUNT_S = 60.0
"""The scheduler looks again after this long even if nothing happened, in case something silently went wrong."""


def is_busy(state: State) -> bool:
    """True while anything runs, is ready, or changes: then time is looked at every second."""
    runners, soft = state.census.runners, state.soft
    return (
        state.ready > 0
        or len(runners["SERVING"]) > len(soft.idle.times)
        or bool(runners["DRAINING"] or runners["MISSING"] or soft.ending)
        or state.census.changing > 0
    )


def _has_places(state: State) -> bool:
    return bool(state.census.runners["SERVING"]) or any(state.census.live.values())


def next_deadline(state: State, at: At, last: At | None) -> float:
    """Monotonic time of the next Tick, counted from the last one: however much happens, time is looked at."""
    if is_busy(state):
        period = SWEEP_S
    elif _has_places(state):  # often enough that `_grace` does not take the gap for a standstill
        period = max(SWEEP_S, min(RESTING_SWEEP_S, state.settings.missing_s / 4))
    else:
        period = IDLE_SWEEP_S
    planning = state.soft.planning
    deadline = min((at if last is None else last).mono + period, state.soft.idle.first + LINGER_SLACK_S)
    if state.timers:
        deadline = min(deadline, at.mono + state.timers[0][0] - at.wall)
    return max(min(deadline, planning.rate_at, at.mono + planning.window_at - at.wall), at.mono)


def was_set_back(before: At, now: At) -> bool:
    """True if the wall clock lost time against the monotonic one."""
    return now.wall - before.wall < now.mono - before.mono - CLOCK_SET_BACK_S


def tick(state: State, at: At, last: At | None, due: Due) -> Decision:
    """Decide everything that is due; `last` is the moment of the Tick before, None after a start."""
    decision = Decision(reconsider=due.batches)
    lapsed: set[tuple[int, int]] = set()
    for runner in due.runners:
        if runner.state in ("SERVING", "DRAINING", "MISSING") and not runner.direct:
            _watch(state, decision, runner, at, lapsed)
    collect_again(state, decision, at)
    if len(state.soft.sites) > 1 and is_time(at, last):
        decision.events.extend(rebroker(state, at))
    look_at_suspects(state, decision, at)
    weather, planning = state.soft.weather, state.soft.planning
    for name, site in weather.sites.items():
        reopens, takes_more = 0 < site.closed_until <= at.mono, site.takes is not None and site.takes_until <= at.mono
        if reopens:
            site = replace(site, closed_until=0)
        if takes_more:
            site = replace(site, takes=None, takes_why=None)
        if reopens or takes_more:
            decision.notes.append(WeatherEntry("sites", name, site, look=True))
    local_time_changed = last is not None and at.utc_offset_s != last.utc_offset_s
    if (
        any(refusal.until <= at.mono for refusal in weather.refused.values())
        or at.wall >= planning.window_at
        or at.mono >= planning.rate_at
        or local_time_changed
        or any(at.mono - since >= state.settings.shrink_s for since in planning.surplus_since.values())
    ):
        decision.notes.append(Looked())
    if at.mono >= planning.safety_at:
        decision.notes.append(Looked(safety_at=at.mono + RECOUNT_S))
    return decision


def _watch(state: State, decision: Decision, runner: RunnerState, at: At, lapsed: set[tuple[int, int]]) -> None:
    """Let a silent runner lapse, give up jobs of one that stays silent, drain one that has had nothing to do."""
    contact = state.soft.contacts[runner.id]
    silence = at.mono - contact.heard
    if runner.state != "MISSING" and silence > state.settings.missing_s:
        decision.events.append(ev.RunnerMoved(runner.id, "lapse", f"not heard of for {silence:.0f} s"))
        _lapse(state, decision, runner, lapsed)
        ask_driver(state, decision, runner)
    elif runner.state == "MISSING":
        if silence > state.settings.rerun_s:
            _give_up_rerunnable(state, decision, runner, silence, at)
        _end_crippled(state, decision, runner, silence)
        _end_dead(state, decision, runner, silence)
        ask_driver(state, decision, runner)
    elif runner.state == "SERVING" and not runner.jobs and not runner.parts:
        facts = state.soft.sites.get(runner.site)
        if facts is not None and at.mono - contact.idle_since > facts.linger_s:
            decision.drain(runner, f"nothing to do for {facts.linger_s:.0f} s")


def _lapse(state: State, decision: Decision, runner: RunnerState, lapsed: set[tuple[int, int]]) -> None:
    """Jobs of a silent runner are MISSING, and gangs with a part there; `lapsed` are those that are so already."""
    gangs = [key[:2] for key in runner.parts if live_part(state, key) is not None]
    by_batch: dict[int, list[int]] = {}
    for number, pos in [*runner.jobs, *gangs]:
        if state.batches[number].states[pos] in (STARTING, RUNNING) and (number, pos) not in lapsed:
            lapsed.add((number, pos))
            by_batch.setdefault(number, []).extend((pos, pos + 1))
    why = f"its runner on {runner.host} is silent" if gangs else "its runner is silent"
    decision.events.extend(ev.Moved(number, "lapse", spans, why) for number, spans in by_batch.items())


def _end_dead(state: State, decision: Decision, runner: RunnerState, silence: float) -> None:
    """Have a server destroyed that has been silent for so long that it is taken for dead, if its site says so.

    Its jobs are released once it is gone: that the provider says so is the second witness.
    """
    allocation = state.allocations.get(runner.allocation or "")
    facts = state.soft.sites.get(runner.site)
    if allocation is None or facts is None or not facts.cloud or facts.dead_after_s is None:
        return
    if allocation.state == "RUNNING" and silence > facts.dead_after_s:
        why = f"nothing was heard of it for {format_duration(round(silence))}: it is taken for dead, and destroyed"
        decision.events.append(ev.AllocationMoved(allocation.id, "kill", reason=why))


def _end_crippled(state: State, decision: Decision, runner: RunnerState, silence: float) -> None:
    """End an allocation of several nodes of which one is silent, once nothing runs there or it has been so for long.

    Its provider tells of the whole allocation only, so nobody else will ever say what became of one node; once the
    allocation is over it is certain. While all its runners are silent, it is rather we who hear nothing. What runs on
    its other nodes is waited for; they get nothing new. One that is given is not ended for it: there is no other.
    """
    allocation = state.allocations.get(runner.allocation or "")
    if allocation is None or allocation.nodes < 2 or allocation.state != "RUNNING":
        return
    facts = state.soft.sites.get(allocation.site)
    if facts is not None and facts.given:
        return
    if any(isinstance(event, ev.AllocationMoved) and event.id == allocation.id for event in decision.events):
        return
    members = state.runners_of(allocation.id)
    live = {job for member in members for job in member.jobs}
    live |= {key[:2] for member in members for key in member.parts if live_part(state, key) is not None}
    heard = [member for member in members if member.state in ("SERVING", "DRAINING")]
    silent = f"its node {runner.host} has not been heard of for {silence:.0f} s"
    if not live:
        decision.events.append(ev.AllocationMoved(allocation.id, "kill", reason=f"nothing runs there, and {silent}"))
    elif heard and silence > state.settings.rerun_s:
        if all(state.batches[number].states[pos] == MISSING for number, pos in live):
            why = f"{silent}, its others have"
            decision.events.append(ev.AllocationMoved(allocation.id, "kill", reason=why))
        else:
            for member in heard:
                decision.drain(member, f"{silent}, and the allocation ends as a whole")


def _give_up_rerunnable(state: State, decision: Decision, runner: RunnerState, silence: float, at: At) -> None:
    jobs = []
    for number, pos in runner.jobs:
        batch = state.batches[number]
        if batch.states[pos] == MISSING and batch.template(pos).rerunnable:
            jobs.append((number, pos))
    why = f"rerunnable, and its runner was silent for {silence:.0f} s: the first copy may still run"
    decision.add(lost(state, runner.id, jobs, why, at))
    parts = [key for key in runner.parts if state.batches[key[0]].template(key[1]).rerunnable]
    parts_lost(state, decision, runner, why, parts)
