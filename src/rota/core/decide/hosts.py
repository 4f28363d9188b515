"""Bad hosts: those that fail one job after the other, at once, while such jobs succeed elsewhere. They get no more.

A host with a full disk or a broken mount fails everything it is given, and is free for more sooner than any other: left
alone it eats the queue. This is kept in memory only: after a restart a bad host has to show itself anew.
"""

from msgspec.structs import replace

from rota.core.decide.decision import Decision
from rota.core.notes import WeatherEntry
from rota.core.soft import SiteWeather
from rota.core.state import RunnerState, State
from rota.core.stimuli import At
from rota.model import events as ev
from rota.model.slot import Slot
from rota.model.tables import RUNNER, move

__all__ = ["failed", "is_fast", "judge_host", "turn_away"]


def is_fast(state: State, wall_ms: int) -> bool:
    """Whether a job failed so soon that the host may be to blame."""
    return wall_ms < state.settings.bad_host_fast_s * 1000


def judge_host(state: State, decision: Decision, runner: RunnerState, good: set[Slot], bad: list[Slot], at: At) -> None:
    """Judge a runner's host by jobs that ended: `good` are slots where some succeeded, `bad` those of failures."""
    weather, settings, site, host = state.soft.weather, state.settings, runner.site, runner.host
    if good:
        for shape in {slot.shape for slot in good}:
            decision.notes.append(
                WeatherEntry("good_hosts", shape, _with_host(weather.good_hosts.get(shape), host, at.mono))
            )
        decision.notes.append(WeatherEntry("host_failures", (site, host), None))
        return
    if not bad or runner.direct:
        return
    count, since = weather.host_failures.get((site, host), (0, at.mono))
    count += len(bad)
    if count < settings.bad_host_failures or not any(
        _succeeds_elsewhere(state, slot.shape, host, since - settings.bad_host_window_s) for slot in bad
    ):
        decision.notes.append(WeatherEntry("host_failures", (site, host), (count, since)))
        return
    why = f"{count} jobs failed within seconds on {host} while such jobs succeed elsewhere"
    decision.notes.append(WeatherEntry("bad_hosts", (site, host), (at.mono + settings.bad_host_s, why)))
    decision.notes.append(WeatherEntry("host_failures", (site, host), None))
    for other in state.runners.values():
        if (other.site, other.host) == (site, host) and not other.direct and move(RUNNER, other.state, "drain"):
            decision.events.append(ev.RunnerMoved(other.id, "drain", why))


def turn_away(state: State, decision: Decision, site: str, host: str, at: At) -> str | None:
    """Why a runner from this host gets no work; the site is then left alone for a while, longer each time."""
    verdict = state.soft.weather.bad_hosts.get((site, host))
    if verdict is None:
        return None
    until, why = verdict
    if until <= at.mono:
        decision.notes.append(WeatherEntry("bad_hosts", (site, host), None))
        return None
    if site in state.soft.sites:
        weather = failed(state, site, "", f"an allocation was given on {host}: {why}", at)
        decision.notes.append(WeatherEntry("sites", site, weather))
    return why


def failed(state: State, site: str, tag: str, why: str, at: At) -> SiteWeather:
    """The weather of a site after one more failure; an array, which has one tag, is one failure."""
    weather, settings = state.soft.weather.of(site), state.settings
    failures = weather.failures + (not tag or tag != weather.failed_tag)
    wait = min(settings.site_retry_most_s, settings.site_retry_s * 2.0 ** min(failures - 1, 20))
    failed_tag = tag or weather.failed_tag
    return replace(weather, closed_until=at.mono + wait, failures=failures, why=why, failed_tag=failed_tag)


def _with_host(newest: tuple[tuple[str, float], ...] | None, host: str, mono: float) -> tuple[tuple[str, float], ...]:
    """The last two hosts on which jobs of a shape succeeded: of any two, one is not the host that is judged."""
    if newest is None or newest[0][0] == host:
        return ((host, mono), *(newest[1:] if newest else ()))
    return ((host, mono), newest[0])


def _succeeds_elsewhere(state: State, shape: int, host: str, since: float) -> bool:
    return any(name != host and mono >= since for name, mono in state.soft.weather.good_hosts.get(shape, ()))
