"""Hosts that fail one job after the other, at once, while others do well with such jobs: they get no more.

A host with a full disk or a broken mount fails everything it is given, and is free for more sooner than any other: left
alone it eats the queue. Kept in memory only: after a restart it has to show itself anew.
"""

from collections.abc import Iterator

from rota.core.slots import shape_of
from rota.core.state import RunnerState, State
from rota.core.stimuli import At
from rota.model import events as ev
from rota.model.tables import RUNNER, move

__all__ = ["is_fast", "judge_host", "turn_away"]


def is_fast(state: State, wall_ms: int) -> bool:
    """Whether a job failed so soon that the host may be to blame."""
    return wall_ms < state.settings.bad_host_fast_s * 1000


def judge_host(
    state: State, runner: RunnerState, good: set[str], bad: set[str], count: int, at: At
) -> Iterator[ev.Event]:
    """Take note of jobs that ended on a runner: slots where they succeeded, and where `count` of them failed fast."""
    key = (runner.site, runner.host)
    for slot in good:
        _succeeded(state, shape_of(slot), runner.host, at.mono)
    if good:
        state.host_failures.pop(key, None)
        return
    if not count or runner.direct:
        return
    failed, since = state.host_failures.get(key, (0, at.mono))
    state.host_failures[key] = (failed + count, since)
    settings = state.settings
    if failed + count < settings.bad_host_failures or not any(
        _others_do_well(state, shape_of(slot), runner.host, since - settings.bad_host_window_s) for slot in bad
    ):
        return
    why = f"{failed + count} jobs failed within seconds on {runner.host} while such jobs succeed elsewhere"
    state.bad_hosts[key] = (at.mono + settings.bad_host_s, why)
    del state.host_failures[key]
    for other in state.runners.values():
        if (other.site, other.host) == key and not other.direct and move(RUNNER, other.state, "drain") is not None:
            yield ev.RunnerMoved(other.id, "drain", why)


def turn_away(state: State, site: str, host: str, at: At) -> str | None:
    """Why a runner from this host gets no work; the site is then left alone for a while, longer each time."""
    found = state.bad_hosts.get((site, host))
    if found is None:
        return None
    if found[0] <= at.mono:
        del state.bad_hosts[site, host]
        return None
    place = state.sites.get(site)
    if place is not None:
        place.failures += 1
        wait = state.settings.site_retry_s * 2.0 ** min(place.failures - 1, 20)
        place.closed_until = at.mono + min(state.settings.site_retry_most_s, wait)
        place.why = f"an allocation was given on {host}: {found[1]}"
    return found[1]


def _succeeded(state: State, shape: int, host: str, mono: float) -> None:
    """The last two hosts on which jobs of a shape succeeded: one of them is another than any that is asked about."""
    newest = state.good_hosts.get(shape)
    if newest is None or newest[0][0] == host:
        state.good_hosts[shape] = ((host, mono), *(newest[1:] if newest else ()))
    else:
        state.good_hosts[shape] = ((host, mono), newest[0])


def _others_do_well(state: State, shape: int, host: str, since: float) -> bool:
    return any(name != host and mono >= since for name, mono in state.good_hosts.get(shape, ()))
