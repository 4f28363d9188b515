"""Bad hosts: those that fail one job after the other, at once and alike, while others do not.

A host with a full disk or a broken mount fails everything it is given, and is free for more sooner than any other: left
alone it eats the queue. So a host is *suspected* from its second such failure on: it gets one job at a time, with a
pause after each that fails, and what failed there is tried again without counting as a failure of the job. Once such
jobs do well on other hosts, and it has failed enough of them, it gets no more for a while. If others fail alike, it is
the jobs. All this is kept in memory only: after a restart a bad host has to show itself anew.
"""

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from msgspec.structs import replace

from rota.core.decide.decision import Decision
from rota.core.decide.reopening import Again
from rota.core.notes import WeatherEntry
from rota.core.soft import HostRecord, SiteWeather
from rota.core.state import RunnerState, State
from rota.core.stimuli import At, Ended
from rota.model import events as ev
from rota.model.job import Result
from rota.model.slot import Slot
from rota.model.tables import FAILED, RUNNING

__all__ = ["Blow", "avoid_host", "failed", "is_fast", "judge_host", "look_at_suspects", "succeeded", "told"]

Host = tuple[str, str]
"""(site, name)."""
Job = tuple[int, int]
"""(batch, position)."""
REMEMBERED = 1024
"""Failures that are remembered of a host."""
UNSTAGED_S = 60.0
"""How long a host gets no jobs to which what one reads could not be brought."""
EXCUSES = 3
"""How often a job may fail on a host that is suspected before that counts."""


class Blow(NamedTuple):
    """A job that failed as soon as it had started."""

    batch: int
    pos: int
    slot: Slot
    row: Ended
    result: Result
    may_again: bool
    """Whether it may be tried again without counting: nobody has asked for its end, or forbidden that."""

    @property
    def how(self) -> str:
        """How it failed, in words: failures with the same words are alike."""
        row = self.row
        if row.signal is not None:
            return f"signal {row.signal}"
        said = row.reason if row.reason not in (None, "exit") else None
        return said or f"exit code {row.exit_code}"


def is_fast(state: State, wall_ms: int) -> bool:
    """Whether a job failed so soon that the host may be to blame."""
    return wall_ms < state.settings.bad_host_fast_s * 1000


def succeeded(state: State, decision: Decision, runner: RunnerState, good: set[Slot], at: At) -> None:
    """Take it that jobs in these slots have succeeded on a runner's host: it is fine."""
    weather, host = state.soft.weather, runner.host
    for shape in {slot.shape for slot in good}:
        newest = _with_host(weather.good_hosts.get(shape), host, at.mono)
        decision.notes.append(WeatherEntry("good_hosts", shape, newest))
    if (runner.site, host) in weather.hosts:
        _acquit(state, decision, (runner.site, host), "a job has succeeded there")


def judge_host(state: State, decision: Decision, runner: RunnerState, blows: list[Blow], at: At) -> set[Job]:
    """Judge a runner's host by jobs that failed there at once. Returns those whose failures do not count."""
    key = (runner.site, runner.host)
    if runner.direct:
        return set()
    if key in state.soft.weather.bad_hosts:
        return _excused(key, blows, (), "is avoided")
    before = state.soft.weather.hosts.get(key)
    record = _with_blows(before, blows, at)
    if record.suspected is None:
        if not _is_suspicious(state, decision, key, record, at):
            decision.notes.append(WeatherEntry("hosts", key, record))
            return set()
        record = replace(record, suspected=at.mono)
        why = f"{_tell(record)}; it gets one job at a time, and what failed is tried elsewhere"
        decision.events.append(ev.Noted(f"host {key[1]}", "suspected", why))
        _reopen(state, decision, key, () if before is None else before.jobs)
    pause = min(state.settings.bad_host_pause_most_s, 2.0 ** min(record.trials, 20))
    record = replace(record, trial="", next_at=at.mono + pause, trials=record.trials + 1)
    excused = _excused(key, blows, record.jobs, "is suspected")
    if not _convict(state, decision, key, record, at):
        decision.notes.append(WeatherEntry("hosts", key, record, look=True))
    return excused


def avoid_host(decision: Decision, key: Host, at: At, why: str) -> None:
    """Give a host no jobs for a while: what they read cannot be brought there."""
    decision.notes.append(WeatherEntry("bad_hosts", key, (at.mono + UNSTAGED_S, why), look=True))


def told(state: State, key: Host) -> str | None:
    """What is held against a host, for people; None: nothing."""
    record, bad = state.soft.weather.hosts.get(key), state.soft.weather.bad_hosts.get(key)
    if bad is not None:
        return f"avoided: {bad[1]}"
    return None if record is None or record.suspected is None else f"suspected: {_tell(record)}; one job at a time"


def look_at_suspects(state: State, decision: Decision, at: At) -> None:
    """Let time do its part: suspects are tried again, acquitted or convicted, and bad hosts get another chance."""
    weather, settings = state.soft.weather, state.settings
    for key, (until, _) in weather.bad_hosts.items():
        if until <= at.mono:
            decision.notes.append(WeatherEntry("bad_hosts", key, None, look=True))
    for key, record in weather.hosts.items():
        if record.suspected is None:
            if at.mono - record.since > settings.bad_host_window_s:
                decision.notes.append(WeatherEntry("hosts", key, None))
            continue
        runners = _runners_at(state, key)
        if _runs_longer(state, runners, None, settings.bad_host_fast_s, at):
            _acquit(state, decision, key, "a job runs there")
        elif _convict(state, decision, key, record, at):
            continue
        elif at.mono - record.suspected > settings.bad_host_doubt_s and not _others(state, key):
            clear = replace(record, jobs=(), suspected=None, trial="", trials=0, acquitted=True)
            _acquit(state, decision, key, "there is no other host to compare it with", clear)
        else:
            _next_trial(state, decision, key, record, runners, at)


def failed(state: State, site: str, tag: str, why: str, at: At) -> SiteWeather:
    """The weather of a site after one more failure; an array, which has one tag, is one failure."""
    weather, settings = state.soft.weather.of(site), state.settings
    failures = weather.failures + (not tag or tag != weather.failed_tag)
    wait = min(settings.site_retry_most_s, settings.site_retry_s * 2.0 ** min(failures - 1, 20))
    failed_tag = tag or weather.failed_tag
    return replace(weather, closed_until=at.mono + wait, failures=failures, why=why, failed_tag=failed_tag)


# ---- what is held against a host ------------------------------------------------------------------------------------


def _with_blows(record: HostRecord | None, blows: list[Blow], at: At) -> HostRecord:
    """The record of a host with these failures; of one that is not suspected only those that are alike count."""
    for blow in blows:
        if record is None or (record.how != blow.how and record.suspected is None):
            acquitted = record is not None and record.acquitted
            record = HostRecord((), (), blow.how, at.mono, acquitted=acquitted)
        new = all(job[:2] != (blow.batch, blow.pos) for job in record.jobs)
        jobs = (*record.jobs[-REMEMBERED:], (blow.batch, blow.pos, blow.row.attempt))
        record = replace(record, jobs=jobs, count=record.count + new)
        if blow.slot.shape not in record.shapes:
            record = replace(record, shapes=(*record.shapes, blow.slot.shape))
    assert record is not None
    return record


def _tell(record: HostRecord) -> str:
    return f"{record.count} jobs failed there within seconds, alike ({record.how})"


def _is_suspicious(state: State, decision: Decision, key: Host, record: HostRecord, at: At) -> bool:
    """Whether the host rather than the jobs may be to blame for so many failures in a row."""
    fast_s = state.settings.bad_host_fast_s
    if record.count < state.settings.suspect_failures or _runs_longer(state, _runners_at(state, key), None, fast_s, at):
        return False
    if _does_well_elsewhere(state, key, record, at):
        return True
    alike = [other for other, known in state.soft.weather.hosts.items() if other != key and _are_alike(known, record)]
    for other in alike:
        if state.soft.weather.hosts[other].suspected is not None:
            _acquit(state, decision, other, f"jobs fail on {key[1]} alike")
    return not alike and not record.acquitted and _others(state, key)


def _are_alike(one: HostRecord, other: HostRecord) -> bool:
    return one.how == other.how and not set(one.shapes).isdisjoint(other.shapes)


def _others(state: State, key: Host) -> bool:
    """Whether there are other hosts, or will be: runners there, or allocations on their way."""
    serving = (state.runners[name] for name in state.census.runners["SERVING"])
    if any((runner.site, runner.host) != key and not runner.direct for runner in serving):
        return True
    return any(one.state in ("SUBMITTING", "PENDING") and not one.direct for one in state.allocations.values())


def _does_well_elsewhere(state: State, key: Host, record: HostRecord, at: At) -> bool:
    """Whether jobs of the same shapes succeed on other hosts, or have been running there for longer."""
    since = record.since - state.settings.bad_host_window_s
    for shape in record.shapes:
        for name, mono in state.soft.weather.good_hosts.get(shape, ()):
            if name != key[1] and mono >= since:
                return True
    others = (runner for runner in state.runners.values() if runner.host != key[1] and not runner.direct)
    return _runs_longer(state, others, set(record.shapes), state.settings.bad_host_fast_s, at)


def _runs_longer(state: State, runners: Iterable[RunnerState], shapes: set[int] | None, seconds: float, at: At) -> bool:
    """Whether a job (of one of these shapes) has been running on one of these runners for longer than that."""
    for runner in runners:
        contact = state.soft.contacts[runner.id]
        for number, pos in runner.jobs:
            batch = state.batches[number]
            longer = batch.states[pos] == RUNNING and at.mono - contact.since.get((number, pos), at.mono) > seconds
            used = contact.usage.get((number, pos)) if longer else None
            if used is not None and used.started is not None:  # by its own clock: it may have been leased long before
                longer = at.wall - used.started > seconds
            if longer and (shapes is None or batch.live[pos].slot.shape in shapes):
                return True
    return False


def _runners_at(state: State, key: Host) -> list[RunnerState]:
    return [each for each in state.runners.values() if (each.site, each.host) == key and not each.direct]


# ---- what becomes of it ---------------------------------------------------------------------------------------------


def _excused(key: Host, blows: list[Blow], jobs: Iterable[tuple[int, int, int]], what: str) -> set[Job]:
    """The failures that do not count: each job's first ones there. Their results say so."""
    out = set()
    times = Counter([job[:2] for job in jobs])
    for blow in blows:
        job = (blow.batch, blow.pos)
        if blow.may_again and times[job] <= EXCUSES:
            out.add(job)
            why = f"does not count: {key[1]} {what}"
            blow.result.note = f"{blow.result.note}; {why}" if blow.result.note else why
            blow.result.state = "RETRIED"
    return out


def _reopen(state: State, decision: Decision, key: Host, jobs: Iterable[tuple[int, int, int]]) -> None:
    """Try jobs again that failed there before the host was suspected."""
    again = Again(state)
    for number, pos, attempt in jobs:
        batch = state.batches.get(number)
        if batch is not None and batch.states[pos] == FAILED and batch.attempts[pos] == attempt:
            why = f"{key[1]}, where it failed, is suspected"
            decision.events.append(ev.Moved(number, "reopen", [pos, pos + 1], why))
            again.runs_again(batch, [pos, pos + 1])
    again.spread()
    decision.events.extend(again.events)
    decision.reconsider |= again.reconsider


def _convict(state: State, decision: Decision, key: Host, record: HostRecord, at: At) -> bool:
    """Give a host no more jobs for a while, if it has failed enough while others do well."""
    settings = state.settings
    if record.count < settings.bad_host_failures or not _does_well_elsewhere(state, key, record, at):
        return False
    why = f"{record.count} jobs failed within seconds on {key[1]} ({record.how}) while such jobs do well elsewhere"
    decision.notes.append(WeatherEntry("hosts", key, None))
    decision.notes.append(WeatherEntry("bad_hosts", key, (at.mono + settings.bad_host_s, why), look=True))
    decision.events.append(ev.Noted(f"host {key[1]}", "avoided", why))
    for other in _runners_at(state, key):
        decision.drain(other, why)
    return True


def _acquit(state: State, decision: Decision, key: Host, why: str, record: HostRecord | None = None) -> None:
    """Suspect a host no more; `record` is what stays known of it."""
    decision.notes.append(WeatherEntry("hosts", key, record, look=True))
    if state.soft.weather.hosts[key].suspected is not None:
        decision.events.append(ev.Noted(f"host {key[1]}", "suspected no more", why))


def _next_trial(
    state: State, decision: Decision, key: Host, record: HostRecord, runners: list[RunnerState], at: At
) -> None:
    """Let one of the host's runners have a job, once the pause is over and nothing runs there."""
    if any(runner.id == record.trial and runner.state == "SERVING" for runner in runners):
        return
    if at.mono < record.next_at or any(runner.jobs or runner.parts for runner in runners):
        return
    first = next((runner.id for runner in runners if runner.state == "SERVING"), "")
    if first != record.trial:
        decision.notes.append(WeatherEntry("hosts", key, replace(record, trial=first), look=True))


def _with_host(newest: tuple[tuple[str, float], ...] | None, host: str, mono: float) -> tuple[tuple[str, float], ...]:
    """The last two hosts on which jobs of a shape succeeded: of any two, one is not the host that is judged."""
    if newest is None or newest[0][0] == host:
        return ((host, mono), *(newest[1:] if newest else ()))
    return ((host, mono), newest[0])
