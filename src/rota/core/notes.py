"""Notes: what a decision changes about the soft state, and the one place that writes it.

A note is to the soft state what an event is to the durable one: `decide` makes it, `take_note` applies it. Other
changes follow from events (`follow`), from effects (`performed`), from time (`pass_time`) and from a start.
"""

import heapq
from collections.abc import Callable, Iterable
from typing import Any, Literal

from msgspec import Struct

from rota.core.dependencies import longest_backoff
from rota.core.effects import Effect, Lease, Order
from rota.core.shares import count, recall
from rota.core.soft import Contact, Ending, Key, Sent, ShapeMemo, SiteWeather, Usage
from rota.core.state import State
from rota.core.stimuli import At
from rota.model import events as ev
from rota.model.site import SiteFacts

__all__ = [
    "Awaited", "Due", "Forgot", "Greeted", "Heard", "Looked", "Note", "PluginDisabled", "SiteTold", "Told",
    "Unheard", "WeatherEntry", "follow", "pass_time", "performed", "restarted", "take_note", "took",
]  # fmt: skip

GIVEN_UP = "given up"
"""The reason of an order to end attempts that have been given up."""
_MEAN_WEIGHT = 0.1
SWEEP_S = 1.0
"""How often time is looked at while anything goes on."""


class Heard(Struct, frozen=True):
    """A runner gave a sign of life in its present session."""

    runner: str
    mono: float
    clock: float
    got: int
    """Number of the newest lease message that it has."""


class Greeted(Struct, frozen=True):
    """A runner's greeting was accepted; its clock times leases until it says more."""

    runner: str
    clock: float


class Told(Struct, frozen=True):
    """A runner told what attempts have used so far: (batch, position) → usage."""

    runner: str
    usage: dict[tuple[int, int], Usage]


class Awaited(Struct, frozen=True):
    """An allocation is over, and its last words are awaited."""

    id: str
    ending: Ending


class Unheard(Struct, frozen=True):
    """A runner's connection is gone."""

    runner: str


class Forgot(Struct, frozen=True):
    """Attempts that were given up are certainly over: their runner need not be told to end them any more."""

    runner: str
    jobs: tuple[Key, ...]
    look: bool = True
    """The runner may have become free for other jobs."""


class SiteTold(Struct, frozen=True):
    """A site said what it offers."""

    site: str
    facts: SiteFacts


class WeatherEntry(Struct, frozen=True):
    """How a site or a host is doing: sets an entry in a part of `Weather`, or takes it away (None)."""

    part: Literal["sites", "refused", "host_failures", "good_hosts", "bad_hosts"]
    key: Any
    value: Any
    look: bool = False
    """The scheduler should look again: more may be asked of the site."""


class Looked(Struct, frozen=True):
    """The scheduler should look again, and at `safety_at` even if nothing happens."""

    safety_at: float | None = None


class PluginDisabled(Struct, frozen=True):
    """A part of policies failed when it was asked: nobody asks it again."""

    kind: str
    name: str
    why: str


Note = Heard | Greeted | Told | Unheard | Forgot | Awaited | SiteTold | WeatherEntry | Looked | PluginDisabled


def take_note(state: State, note: Note) -> None:
    """Apply one note."""
    _TAKE[type(note)](state, note)


def _heard(state: State, note: Heard) -> None:
    contact = state.soft.contacts[note.runner]
    contact.heard = note.mono
    contact.clock = max(contact.clock, note.clock)
    if note.got > contact.got:
        contact.got = note.got
        for number in [number for number in contact.unacked if number <= note.got]:
            del contact.unacked[number]


def _greeted(state: State, note: Greeted) -> None:
    contact, runner = state.soft.contacts[note.runner], state.runners[note.runner]
    contact.clock = max(contact.clock, note.clock)
    weather = state.soft.weather.sites.get(runner.site)
    if runner.state == "SERVING" and weather is not None:
        weather.why = None


def _told(state: State, note: Told) -> None:
    state.soft.contacts[note.runner].usage.update(note.usage)


def _awaited(state: State, note: Awaited) -> None:
    state.soft.ending[note.id] = note.ending


def _unheard(state: State, note: Unheard) -> None:
    state.soft.contacts[note.runner].connected = False


def _forgot(state: State, note: Forgot) -> None:
    contact = state.soft.contacts.get(note.runner)
    if contact is not None:
        for job in note.jobs:
            contact.given_up.pop(job, None)
    if note.look:
        state.soft.planning.wanted = True


def _site_told(state: State, note: SiteTold) -> None:
    soft = state.soft
    soft.sites[note.site] = note.facts
    soft.weather.sites.setdefault(note.site, SiteWeather()).failed_tag = ""
    soft.planning.memo.clear()
    soft.planning.wanted = True
    state.ensure_site_location(note.site)


def _weather_entry(state: State, note: WeatherEntry) -> None:
    entries: dict[Any, Any] = getattr(state.soft.weather, note.part)
    if note.value is None:
        entries.pop(note.key, None)
    else:
        entries[note.key] = note.value
    if note.look:
        state.soft.planning.wanted = True


def _looked(state: State, note: Looked) -> None:
    state.soft.planning.wanted = True
    if note.safety_at is not None:
        state.soft.planning.safety_at = note.safety_at


def _plugin_disabled(state: State, note: PluginDisabled) -> None:
    state.soft.disabled[note.kind, note.name] = note.why
    state.soft.planning.wanted = True


_TAKE: dict[type[Any], Callable[[State, Any], None]] = {
    PluginDisabled: _plugin_disabled,
    Heard: _heard,
    Greeted: _greeted,
    Told: _told,
    Awaited: _awaited,
    Unheard: _unheard,
    Forgot: _forgot,
    SiteTold: _site_told,
    WeatherEntry: _weather_entry,
    Looked: _looked,
}


# ---- what follows from events and effects ---------------------------------------------------------------------------


def follow(state: State, event: ev.Event, at: At) -> None:
    """Change what an event, which was applied just now, means for the soft state."""
    kind = type(event)
    if kind is ev.Leased:
        assert isinstance(event, ev.Leased)
        since, number, mono = state.soft.contacts[event.runner].since, event.batch, at.mono
        for low, high in zip(event.spans[::2], event.spans[1::2], strict=True):
            for pos in range(low, high):
                since[number, pos] = mono
        return
    if kind is ev.Ended:
        assert isinstance(event, ev.Ended)
        _ended(state, event, at)
    elif isinstance(event, ev.RunnerGreeted):
        contact = state.soft.contacts.setdefault(event.runner, Contact())
        contact.connected = True
        contact.heard = contact.idle_since = at.mono
        contact.greeted = 0.0 if event.direct else at.mono
        contact.lease_n = contact.got = 0
        contact.unacked.clear()
        contact.given_up.clear()
    elif isinstance(event, ev.RunnerMoved):
        if state.runners[event.runner].state in ("CLOSED", "EXPIRED"):
            state.soft.contacts[event.runner].unacked.clear()
    elif isinstance(event, ev.Spent):
        count(state, event)
    elif isinstance(event, ev.AllocationMoved) and state.allocations[event.id].state.endswith("ED"):
        state.soft.ending.pop(event.id, None)
        if len(state.soft.contacts) > len(state.runners):
            for gone in state.soft.contacts.keys() - state.runners.keys():
                del state.soft.contacts[gone]
    if _concerns_the_scheduler(event):
        state.soft.planning.wanted = True


def _ended(state: State, event: ev.Ended, at: At) -> None:
    contact = state.soft.contacts[event.runner]
    since, usage = contact.since, contact.usage
    for row in event.rows:
        since.pop(row[:2], None)
        if usage:
            usage.pop(row[:2], None)
    if not state.runners[event.runner].jobs:
        contact.idle_since = at.mono
    took(state, event)


def took(state: State, event: ev.Ended) -> None:
    """Follow the mean time that jobs of a shape take."""
    shapes, batch = state.soft.planning.shapes, None
    for number, pos, verb, _, wall_ms in event.rows:
        if wall_ms and verb in ("complete", "fail", "abort"):
            if batch is None or batch.id != number:
                batch = state.batches[number]
            shape = batch.shapes[0 if batch.template_numbers is None else batch.template_numbers[pos]]
            memo = shapes.get(shape)
            if memo is None:
                memo = shapes[shape] = ShapeMemo(state.shapes[shape].shape)
            wall = wall_ms / 1000
            memo.mean_s = wall if memo.mean_s is None else memo.mean_s + _MEAN_WEIGHT * (wall - memo.mean_s)


_CONCERN = (
    ev.Ended, ev.Retemplated, ev.Respecified, ev.ManagerMoved, ev.LimitSet, ev.RunnerGreeted, ev.RunnerMoved,
    ev.AllocationMoved,
)  # fmt: skip


def _concerns_the_scheduler(event: ev.Event) -> bool:
    """Whether jobs may start after an event, or allocations on their way may be too many."""
    if isinstance(event, ev.Moved):
        return event.verb in ("ready", "return", "abort", "hold", "block")
    return isinstance(event, _CONCERN)


def performed(state: State, effects: Iterable[Effect], at: At) -> None:
    """Take note of effects that are about to be carried out: leases wait for a confirmation from now on."""
    for effect in effects:
        if isinstance(effect, Lease):
            contact = state.soft.contacts[effect.runner]
            contact.lease_n = effect.n
            contact.unacked[effect.n] = Sent(at.mono, effect.jobs, effect.slots)
        elif isinstance(effect, Order) and effect.reason == GIVEN_UP:
            state.soft.contacts[effect.runner].given_up.update(dict.fromkeys(effect.jobs))


# ---- what follows from time -----------------------------------------------------------------------------------------


class Due(Struct):
    """What time has brought: batches whose `not_before` is past, and jobs whose next try is due."""

    batches: set[int]
    jobs: list[tuple[int, int, int]]
    """(batch, low, high)."""


def pass_time(state: State, at: At, last: At | None, set_back: bool) -> Due:
    """Bring the soft state up to this moment, and say what is due; `last` is the moment before, None after a start.

    `set_back`: the wall clock was set back since then.
    """
    if last is None or set_back:
        _set_timers(state, at.wall)
    if last is not None:
        _grace(state, at, at.mono - last.mono)
    due = Due(set(), [])
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


def _set_timers(state: State, wall: float) -> None:
    """Set all timers anew, as the wall clock may have been set back.

    What had come due may have to wait again, and no back-off may last longer than the longest there is.
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
    """Add a long gap, in which the manager itself was stopped, to every deadline: silence then proves nothing."""
    if gap > SWEEP_S + max(SWEEP_S, state.settings.missing_s / 4):
        for contact in state.soft.contacts.values():
            contact.heard = min(at.mono, contact.heard + gap)
            contact.idle_since = min(at.mono, contact.idle_since + gap)


def restarted(state: State, at: At) -> None:
    """After a restart every deadline gets its full grace, and the monotonic clock begins anew."""
    for runner in state.runners.values():
        contact = state.soft.contacts[runner.id] = Contact(at.mono, connected=runner.direct)
        contact.since = dict.fromkeys(runner.jobs, at.mono)
    recall(state)
    state.soft.planning.steady_less_mono = None
    state.soft.planning.wanted = True
