"""What drivers say of allocations and sites, and what follows for the runners in them."""

from collections.abc import Iterator

from msgspec.structs import replace

from rota.core.decide.decision import Decision
from rota.core.decide.ends import give_back, last_usage, lost, take_ended
from rota.core.decide.gangs import parts_lost
from rota.core.decide.hosts import failed
from rota.core.decide.rebrokering import called_back
from rota.core.decide.runners import take_written
from rota.core.effects import Allocate
from rota.core.notes import Awaited, ConditionTold, FactTold, SiteTold, WeatherEntry
from rota.core.soft import Condition, Ending, Refusal
from rota.core.state import RunnerState, State
from rota.core.stimuli import (
    AllocationSeen,
    At,
    EndAllocation,
    Ended,
    FactSeen,
    LastWords,
    SiteFull,
    SiteSeen,
    TakeDown,
)
from rota.model import events as ev
from rota.model.allocation import Allocation, Outcome
from rota.model.errors import NotFoundError, RefusedError
from rota.model.job import Result
from rota.model.tables import ALLOCATION, KILLING, STARTING, move

__all__ = [
    "allocation_seen", "collect_again", "end_allocation", "end_direct", "last_words", "site_full", "site_seen",
    "take_down", "written_reports",
]  # fmt: skip

_LOST = ("node-fail", "preempt", "requeue", "vanished", "launch")
"""Ends of an allocation that are not its jobs' doing: they are started again, and that counts as a loss."""
_REASONS = (*_LOST, "oom", "time", "cancelled", "deadline", "refused")
_NO_REPORT = (
    "its exit code is 0, but the report that every job leaves is not there, so nobody knows that it succeeded: "
    "is the directory shared with the nodes?"
)
WELL = "the batch system ended it at its limit, though it says itself that it ended well"
_REQUEUED = "the cluster requeued it"
_TAKEN_DOWN = "rota was taken down (down --kill)"
_STOPPED = "runner-stopped"
TIME_SLACK = 0.95
"""The part of its time after which a job that was stopped from outside is taken to have been so for its time."""
COLLECT_AGAIN_S = 30
"""Last words that do not come are asked for again after so long …"""
COLLECT_MOST = 5
"""… and what cannot be read is given up after so many tries."""
FULL_S = 600
"""How long a site that took no more allocations is asked for no more than it has."""
UNSURE_MOST = 100
"""Observations in a row that tell nothing, after which an allocation is killed."""


def site_seen(state: State, stimulus: SiteSeen) -> Decision:
    """Take note of what a site offers. Not an event: sites say it anew at every start."""
    return Decision(notes=[SiteTold(stimulus.site, stimulus.facts)])


def fact_seen(state: State, stimulus: FactSeen) -> Decision:
    """Take note of a fact for policies. Not an event: whoever told it tells it anew."""
    return Decision(notes=[FactTold(stimulus.name, stimulus.key, stimulus.value)])


def site_full(state: State, stimulus: SiteFull) -> Decision:
    """Ask a provider that took no more for no more allocations than it has (fewer, if it has none) for a while."""
    site, count = stimulus.site, stimulus.count
    submitted = [a for a in state.allocations.values() if a.site == site and a.native_id is not None]
    live = sum(a.state.endswith("ING") for a in submitted)
    takes = live or max(1, count // 2)
    why = (
        f"{site} takes no {count} more jobs of yours beside {live}: {takes} at once are asked for in the "
        f"next {FULL_S // 60} minutes"
    )
    weather = replace(state.soft.weather.of(site), takes=takes, takes_until=stimulus.at.mono + FULL_S, takes_why=why)
    return Decision(notes=[WeatherEntry("sites", site, weather)])


def allocation_seen(state: State, stimulus: AllocationSeen) -> Decision:
    """Decide on a driver's observation: a move, a repeat (no-op), or a contradiction (recorded, and ended)."""
    allocation = state.allocations.get(stimulus.id)
    if allocation is None:
        said = f"a driver reports {stimulus.verb}: {stimulus.reason or 'no reason'}"
        return Decision([ev.Noted(stimulus.id, "unknown allocation", said)])
    if stimulus.verb == "unsure":
        return _unsure(allocation, stimulus.reason)
    decision = Decision()
    if (stimulus.identity and allocation.state != "SUBMITTING") or _is_old(state, allocation, stimulus):
        outcome = stimulus.outcome if stimulus.outcome != allocation.outcome else None
        if (_is_news(allocation, stimulus) or outcome is not None) and allocation.state.endswith("ING"):
            native, unsure = stimulus.native_id, allocation.unsure
            decision.events.append(ev.AllocationMoved(allocation.id, "unsure", native, None, unsure, None, outcome))
        return decision
    stimulus = _with_kept(allocation, stimulus)
    _take_condition(state, decision, allocation, stimulus)
    new = move(ALLOCATION, allocation.state, stimulus.verb)
    if new is None and allocation.state.endswith("ING") and (allocation.unsure or _is_news(allocation, stimulus)):
        decision.events.append(ev.AllocationMoved(allocation.id, "unsure", stimulus.native_id, None, 0))
        return decision
    if new is None:
        if allocation.state.endswith("ED") and stimulus.verb in ("run", "pend", "held", "suspended"):
            said = f"its driver says {stimulus.verb} ({stimulus.reason or ''}): it is ended again"
            decision.events.append(ev.Noted(allocation.id, "contradiction", f"is {allocation.state}, and {said}"))
            decision.effects.append(Allocate("terminate", allocation.id, allocation.site, allocation.tag))
        return decision
    if new == allocation.state and stimulus.verb != "retry":
        return decision
    if new.endswith("ED"):
        _over(state, decision, stimulus, allocation)
        return decision
    if stimulus.verb == "run":
        if allocation.site in state.soft.sites and allocation.direct:  # of others that is known when a runner calls
            weather = state.soft.weather.of(allocation.site)
            decision.notes.append(WeatherEntry("sites", allocation.site, replace(weather, why=None)))
        if allocation.shape is not None:
            decision.notes.append(WeatherEntry("refused", (allocation.site, allocation.shape), None))
    decision.events.append(_moved(stimulus))
    if stimulus.verb == "run":
        _start_direct(state, decision, allocation)
    elif stimulus.verb == "pend" and allocation.state == "RUNNING" and _has_started(state, allocation, stimulus):
        _requeued(state, decision, stimulus)
    return decision


def _has_started(state: State, allocation: Allocation, stimulus: AllocationSeen) -> bool:
    """Whether something of an allocation has started, by its own word: else it cannot have been requeued."""
    if allocation.direct:
        return (stimulus.host or allocation.host) is not None
    return any(runner.session for runner in _runners_of(state, allocation.id))


def _with_kept(allocation: Allocation, seen: AllocationSeen) -> AllocationSeen:
    """An observation of an end, with how it was once said to be, if it does not say that itself."""
    told = seen.outcome
    if allocation.outcome is None or seen.verb not in ("complete", "fail", "abort"):
        return seen
    if told is not None and (told.exit_code is not None or told.signal is not None):
        return seen
    if told is not None and told.why not in (None, "vanished"):
        return seen
    return replace(seen, outcome=allocation.outcome)


def _take_condition(state: State, decision: Decision, allocation: Allocation, seen: AllocationSeen) -> None:
    """Take note of an allocation that its provider holds or has suspended, or does so no more. That moves nothing."""
    held = seen.verb in ("held", "suspended") and allocation.state.endswith("ING")
    condition = Condition(seen.verb, seen.reason) if held else None
    if condition != state.soft.conditions.get(allocation.id):
        decision.notes.append(ConditionTold(allocation.id, condition))


def _moved(seen: AllocationSeen) -> ev.AllocationMoved:
    host = seen.host or (seen.outcome.host if seen.outcome is not None else None)
    at = seen.at.wall if seen.verb in ("run", "complete", "fail", "abort") else None
    return ev.AllocationMoved(seen.id, seen.verb, seen.native_id, seen.reason, 0, host, at=at)


# ---- the end --------------------------------------------------------------------------------------------------------


def _over(state: State, decision: Decision, seen: AllocationSeen, allocation: Allocation) -> None:
    """End an allocation that is over by its driver's word, once what it left behind is read: a report counts more."""
    if not _may_have_words(state, seen, allocation):
        _end(state, decision, seen, allocation)
    elif allocation.id not in state.soft.ending:
        asked = seen.at.mono if seen.asked is None else seen.asked
        _collect(decision, allocation, Ending(replace(seen, asked=asked), seen.at.mono))


def _collect(decision: Decision, allocation: Allocation, ending: Ending) -> None:
    decision.notes.append(Awaited(allocation.id, ending))
    decision.effects.append(Allocate("collect", allocation.id, allocation.site, allocation.tag))


def collect_again(state: State, decision: Decision, at: At) -> None:
    """Ask again for last words that did not come: the end of their allocation waits for them."""
    for name, ending in state.soft.ending.items():
        if at.mono - ending.asked >= COLLECT_AGAIN_S and name in state.allocations:
            _collect(decision, state.allocations[name], ending._replace(asked=at.mono, tries=ending.tries + 1))


def _may_have_words(state: State, seen: AllocationSeen, allocation: Allocation) -> bool:
    """Whether an allocation may have left something behind that nobody has heard of yet."""
    if allocation.state in ("WAITING", "SUBMITTING") and seen.native_id is None and allocation.native_id is None:
        return False  # the provider never had it
    runners = _runners_of(state, allocation.id)
    if allocation.direct:
        return any(runner.jobs for runner in runners)
    return not runners or any(runner.state not in ("CLOSED", "EXPIRED") for runner in runners)


def written_reports(state: State, stimulus: LastWords) -> Iterator[Decision]:
    """Take the reports that runners of an ended allocation wrote down; each is applied before the next is decided."""
    ending, allocation = state.soft.ending.get(stimulus.id), state.allocations.get(stimulus.id)
    if ending is None or allocation is None or _is_old(state, allocation, ending.seen):
        return
    outcome = ending.seen.outcome if allocation.direct and allocation.state != "KILLING" else None
    if outcome is not None and outcome.why is None and stimulus.restarted:
        outcome = replace(outcome, why="requeue")  # what its provider tells is the end of the start that ran nothing
    for words in stimulus.written:
        runner = state.runners.get(words.runner)
        if runner is None or runner.allocation != allocation.id or runner.state in ("CLOSED", "EXPIRED"):
            continue
        if outcome is not None:
            words = replace(words, ended=stopped_for(words.ended, outcome, allocation, ending.seen.reason))
        elif allocation.direct and called_back(allocation.reason):  # it started too late to stay: that is our doing
            ended = [row if row.signal is None else row._replace(reason=_STOPPED) for row in words.ended]
            words = replace(words, ended=ended)
        yield take_written(state, stimulus, runner, words)


def stopped_for(rows: list[Ended], outcome: Outcome, allocation: Allocation, words: str | None) -> list[Ended]:
    """The rows of a report, with the reason for which the batch system stopped a job: it alone knows that.

    If it does not say, what the job had used does, or else it is an end like any other: each of them counts. The row
    of a job whose node was taken away is no report of a failure: it is left out, and the job counts as lost. Where
    every process of a job is ended at a limit one by one, its shell may live a moment longer than what it waits for,
    and call that a good end.
    """
    out = []
    for row in rows:
        if row.reason == _STOPPED:
            why = outcome.why or _exceeded(row, allocation)
            if why not in (None, "cancelled", "deadline", "oom", "time"):
                continue
            row = row._replace(reason=why, note="; ".join(filter(None, (row.note, words))) or None)
        elif outcome.why in ("oom", "time") and _ended_well(row):
            row = row._replace(reason=outcome.why, note=row.note or WELL)
        out.append(row)
    return out


def _exceeded(row: Ended, allocation: Allocation) -> str | None:
    """What a job exceeded that its batch system stopped, by its own figures."""
    asked, time_s = allocation.capacity.memory, allocation.time_s
    if asked and (row.peak_memory or 0) >= asked:
        return "oom"
    if time_s and row.started is not None and row.ended is not None and row.ended - row.started >= TIME_SLACK * time_s:
        return "time"
    return None


def _ended_well(row: Ended) -> bool:
    return row.exit_code == 0 and row.signal is None and row.reason is None


def last_words(state: State, stimulus: LastWords) -> Decision:
    """End an allocation: all that it left behind is known, and its reports are taken."""
    decision = Decision()
    ending, allocation = state.soft.ending.get(stimulus.id), state.allocations.get(stimulus.id)
    if ending is None or allocation is None or move(ALLOCATION, allocation.state, ending.seen.verb) is None:
        return decision
    if stimulus.unread is not None and ending.tries < COLLECT_MOST:
        return decision  # that is no evidence that nothing was left: the core asks again
    if _is_old(state, allocation, ending.seen):  # its provider has started it again meanwhile
        decision.notes.append(Awaited(allocation.id, None))
        return decision
    reason, outcome = ending.seen.reason, ending.seen.outcome
    if stimulus.unread is not None:
        reason = f"{reason or 'it is over'}; what it left could not be read: {stimulus.unread}"
    if stimulus.spoilt is not None:
        reason = f"{reason or 'it is over'}; {stimulus.spoilt}"
    runners = _runners_of(state, allocation.id)
    if stimulus.restarted and allocation.direct and any(runner.jobs for runner in runners):
        outcome, reason = Outcome(why="requeue"), f"{reason}; the cluster had started it again"
    if stimulus.output is not None and not runners:
        reason = f"{reason}; its output ends with: {stimulus.output}"
    host = ending.seen.host or stimulus.host
    seen = replace(ending.seen, at=stimulus.at, reason=reason, outcome=outcome, host=host)
    _end(state, decision, seen, allocation)
    return decision


def _end(state: State, decision: Decision, seen: AllocationSeen, allocation: Allocation) -> None:
    _close_runners(state, decision, seen)
    _judge_site(state, decision, seen, allocation)
    decision.events.append(_moved(seen))


def end_allocation(state: State, stimulus: EndAllocation) -> Decision:
    """End an allocation because somebody says so. Its jobs run again, once its provider says that it is over."""
    allocation = state.allocations.get(stimulus.id)
    if allocation is None:
        raise NotFoundError(f"there is no allocation '{stimulus.id}': rota allocations --live lists them")
    if allocation.direct:
        raise RefusedError(f"allocation {allocation.id} is a job: end that (rota kill)")
    decision = Decision()
    if move(ALLOCATION, allocation.state, "kill") is not None and allocation.state != "KILLING":
        why = f"{stimulus.by or 'somebody'} wants it to end"
        decision.events.append(ev.AllocationMoved(allocation.id, "kill", None, why))
    decision.reply = {"id": allocation.id, "state": allocation.state}
    return decision


def take_down(state: State, stimulus: TakeDown) -> Decision:
    """End the allocations of direct jobs, which run again later; runners are told by their sites, and report that."""
    decision = Decision()
    for allocation in state.allocations.values():
        if allocation.direct and allocation.state not in ("WAITING", "KILLING") and allocation.state.endswith("ING"):
            decision.events.append(ev.AllocationMoved(allocation.id, "kill", None, _TAKEN_DOWN))
    return decision


def end_direct(state: State, event: ev.Event) -> Iterator[ev.Event]:
    """End the allocations of direct jobs that are to end: they have no runner that could be told."""
    if isinstance(event, ev.HoldWanted):
        wanted = event.wanted
    else:
        wanted = isinstance(event, ev.Moved) and event.verb == "kill"
    if not wanted or not isinstance(event, ev.HoldWanted | ev.Moved):
        return
    batch = state.batches[event.batch]
    for low, high in zip(event.spans[::2], event.spans[1::2], strict=True):
        for pos in range(low, high):
            live = batch.live.get(pos)
            runner = state.runners[live.runner] if live is not None else None
            if runner is not None and runner.direct:
                allocation = state.allocations[runner.allocation or ""]
                if allocation.state != "KILLING" and move(ALLOCATION, allocation.state, "kill") is not None:
                    yield ev.AllocationMoved(allocation.id, "kill", None, event.reason)


def _start_direct(state: State, decision: Decision, allocation: Allocation) -> None:
    """Start the direct job of an allocation that runs."""
    for runner in state.direct_runners(allocation):
        rows = [(number, pos) for number, pos in runner.jobs if state.batches[number].states[pos] == STARTING]
        if rows:
            decision.events.append(ev.Started(runner.id, rows))


def _is_old(state: State, allocation: Allocation, stimulus: AllocationSeen) -> bool:
    """Whether a runner has greeted from an allocation since the provider was asked: then its answer is out of date."""
    if stimulus.asked is None or allocation.direct:
        return False
    contacts = state.soft.contacts
    return any(contacts[runner.id].greeted > stimulus.asked for runner in _runners_of(state, allocation.id))


def _requeued(state: State, decision: Decision, stimulus: AllocationSeen) -> None:
    """The cluster says that it took the allocation back, to start it again: rota ends it, and asks for another.

    That frees nothing: a listing may say so of what runs. What ran in it is given up when it is over.
    """
    why = f"{_REQUEUED} ({stimulus.reason or 'no reason given'}): rota asks for another instead"
    decision.events.append(ev.AllocationMoved(stimulus.id, "kill", None, why))
    for runner in _runners_of(state, stimulus.id):
        if not runner.direct:
            decision.drain(runner, why)


def _is_news(allocation: Allocation, stimulus: AllocationSeen) -> bool:
    """Whether an observation brings the native id, though the runner greeted before the submission was answered."""
    return stimulus.native_id is not None and allocation.native_id is None


def _unsure(allocation: Allocation, reason: str | None) -> Decision:
    """Count an observation that tells nothing; after too many of them the allocation is killed."""
    if not allocation.state.endswith("ING"):
        return Decision()
    count = allocation.unsure + 1
    if count >= UNSURE_MOST and move(ALLOCATION, allocation.state, "kill"):
        why = f"nothing certain was heard of it {count} times: {reason or ''}"
        return Decision([ev.AllocationMoved(allocation.id, "kill", None, why)])
    told = None if allocation.state == "KILLING" else reason  # why we end it stays known
    return Decision([ev.AllocationMoved(allocation.id, "unsure", None, told, count)])


def _close_runners(state: State, decision: Decision, stimulus: AllocationSeen) -> None:
    """Close the runners of an allocation that is over. The driver is the second witness: what they ran is gone."""
    outcome = stimulus.outcome or Outcome()
    runners = _runners_of(state, stimulus.id)
    gone = {runner.id for runner in runners}
    for runner in runners:
        if runner.state in ("CLOSED", "EXPIRED"):
            continue
        why = stimulus.reason or f"its allocation {stimulus.id} is over"
        if runner.direct and called_back(state.allocations[stimulus.id].reason):
            why = state.allocations[stimulus.id].reason or why
        had_jobs = bool(runner.jobs)
        if had_jobs and _never_wanted(state, runner, stimulus):
            _tell_called_back(state, decision, runner, why)
            give_back(state, decision, runner, list(runner.jobs), 0, why)
        elif had_jobs and (row := _ended_row(state, runner, stimulus, outcome)) is not None:
            take_ended(state, decision, runner, [row], stimulus.at)
        else:
            reason = outcome.why if outcome.why in _REASONS else "lost"
            if _ended_by_us(state, runner, stimulus):
                ours = state.allocations[stimulus.id].reason or ""
                reason = "requeue" if ours.startswith(_REQUEUED) else "lost"
            decision.add(lost(state, runner.id, list(runner.jobs), why, stimulus.at, reason))
        parts_lost(state, decision, runner, why, gone=gone)
        decision.events.append(ev.RunnerMoved(runner.id, "lose" if had_jobs or runner.parts else "close", why))


def _tell_called_back(state: State, decision: Decision, runner: RunnerState, why: str) -> None:
    """Keep for the history that a direct job was called back before it started, to be brokered again."""
    for number, pos in runner.jobs if called_back(why) else ():
        batch = state.batches[number]
        if batch.states[pos] != KILLING:
            attempt = batch.live[pos].attempt
            decision.results.append(
                Result(number, pos, attempt, "RETRIED", None, None, "brokered", runner.id, runner.host, note=why)
            )


def _runners_of(state: State, name: str) -> list[RunnerState]:
    allocation = state.allocations[name]
    if allocation.direct:
        return state.direct_runners(allocation)
    return state.runners_of(name)


def _never_wanted(state: State, runner: RunnerState, stimulus: AllocationSeen) -> bool:
    """Whether a direct job was called back before it started, or its submission failed: there was no attempt."""
    if not runner.direct:
        return False
    allocation = state.allocations[stimulus.id]
    known = stimulus.native_id is not None or allocation.native_id is not None
    if allocation.state == "SUBMITTING" and not known:
        return stimulus.outcome is None or stimulus.outcome.why != "refused"
    held = any(pos in state.batches[number].hold_wanted for number, pos in runner.jobs)
    ours = allocation.reason == _TAKEN_DOWN or called_back(allocation.reason)
    return allocation.state == "KILLING" and (held or ours) and not _has_started(state, allocation, stimulus)


def _ended_row(state: State, runner: RunnerState, stimulus: AllocationSeen, outcome: Outcome) -> Ended | None:
    """How the only job of a runner ended, if the provider knows; None: it is lost.

    A direct job is its allocation. An allocation with a runner that was killed for its memory or its time was so for
    the only job that ran there.
    """
    if len(runner.jobs) != 1 or outcome.why in _LOST or _ended_by_us(state, runner, stimulus):
        return None
    if not runner.direct and (outcome.why not in ("oom", "time") or not _runs(state, runner)):
        return None
    if outcome.why is None and outcome.exit_code is None and outcome.signal is None:
        return None
    ((number, pos),) = runner.jobs
    batch = state.batches[number]
    job = (number, batch.index(pos), batch.live[pos].attempt)
    code, signal, note = outcome.exit_code, outcome.signal, stimulus.reason
    reason = outcome.why or ("no-report" if code == 0 else "signal" if signal is not None else "exit")
    if code == 0:
        code, note = None, f"{note or 'it ended'}; {_NO_REPORT}"
    used = last_usage(state, runner.id, number, pos, job[2])
    started = outcome.started if outcome.started is not None else used.started
    cpu_s = outcome.cpu_s if outcome.cpu_s is not None else used.cpu_s
    memory = outcome.peak_memory if outcome.peak_memory is not None else used.memory
    return Ended(*job, code, signal, reason, started, outcome.ended, cpu_s, memory, None, note)


def _ended_by_us(state: State, runner: RunnerState, stimulus: AllocationSeen) -> bool:
    """Whether rota ended a direct allocation for a reason of its own: nobody wanted its job to end."""
    wanted = any(state.batches[number].states[pos] == KILLING for number, pos in runner.jobs)
    return runner.direct and state.allocations[stimulus.id].state == "KILLING" and not wanted


def _runs(state: State, runner: RunnerState) -> bool:
    """Whether all jobs of a runner have started."""
    return all(state.batches[number].states[pos] != STARTING for number, pos in runner.jobs)


def _served(state: State, allocation: Allocation, outcome: Outcome | None) -> bool:
    """Whether an allocation ran something. A short direct job may be over before it was ever seen to run."""
    if not allocation.direct:
        return bool(_runners_of(state, allocation.id))
    return allocation.state != "SUBMITTING" and (outcome is None or outcome.why != "launch")


def _judge_site(state: State, decision: Decision, stimulus: AllocationSeen, allocation: Allocation) -> None:
    """Leave a site alone for a while, longer each time, if its allocations end without ever having served."""
    site, shape, at = allocation.site, allocation.shape, stimulus.at
    weather, outcome = state.soft.weather.of(site), stimulus.outcome
    if site not in state.soft.sites or (outcome is not None and outcome.why in ("array", "host")):
        return  # what was too large is asked for again in smaller arrays; a host is left alone by its site
    if shape is not None and outcome is not None and outcome.why == "refused":
        known = state.soft.weather.refused.get((site, shape))
        tries = known.tries if known is not None else 0
        tries = max(1, tries if allocation.tag == weather.failed_tag else tries + 1)  # a refused array is one refusal
        wait = min(state.settings.site_retry_most_s, state.settings.site_retry_s * 2.0 ** (tries - 1))
        refusal = Refusal(at.mono + wait, tries, stimulus.reason or "no reason given")
        decision.notes.append(WeatherEntry("sites", site, replace(weather, failed_tag=allocation.tag)))
        decision.notes.append(WeatherEntry("refused", (site, shape), refusal))
    elif allocation.state == "KILLING" or _served(state, allocation, outcome):
        decision.notes.append(WeatherEntry("sites", site, replace(weather, failures=0)))
    else:
        what = "came to nothing" if allocation.direct else "gave no runner"
        why = f"allocation {allocation.id} {what}: {stimulus.reason or 'no reason known'}"
        decision.notes.append(WeatherEntry("sites", site, failed(state, site, allocation.tag, why, at)))
