"""Notes: what a decision changes about the soft state, and the one place that writes it.

A note is to the soft state what an event is to the durable one: `decide` makes it, `take_note` applies it. Other
changes follow from events (`follow`), from effects (`performed`), from a start, and from time (`rota.core.passing`).
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

from msgspec import Struct

from rota.core.effects import Effect, Lease, Order
from rota.core.fares import ended_at, sent_back
from rota.core.passing import enter_runner, enter_runners
from rota.core.shares import UNCOUNTED, count, recall
from rota.core.soft import Condition, Contact, Ending, Key, Sent, ShapeMemo, SiteWeather, Usage, Waits
from rota.core.state import State
from rota.core.stimuli import At
from rota.model import events as ev
from rota.model.allocation import Allocation
from rota.model.batch import BatchSpec
from rota.model.site import SiteFacts
from rota.schedule.broker.shares import Generation
from rota.schedule.broker.sites import BROKERED_AGAIN, Waited
from rota.schedule.facts import Stats
from rota.schedule.queues import queue_places
from rota.schedule.view import Place

__all__ = [
    "Awaited", "ConditionTold", "FactTold", "Forgot", "Greeted", "Heard", "Looked", "Note", "PartsTold",
    "PluginDisabled", "RootTold", "SiteTold", "Told", "Unheard", "WeatherEntry", "follow", "performed",
    "restarted", "take_note", "took",
]  # fmt: skip

GIVEN_UP = "given up"
"""The reason of an order to end attempts that have been given up."""
MOST_POSSIBLE = 10_000
"""Needs of which it is remembered that they can be met; then it is found out anew."""
MOST_ACCEPTED = 64
"""The same for whole submissions."""
_MEAN_WEIGHT = 0.1
_NOBODY, _UNKNOWN = Waits(), Waited()


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


class PartsTold(Struct, frozen=True):
    """A runner told all parts of gangs that it holds, and where ranks are started there; some may be strange."""

    runner: str
    holds: dict[Key, str]
    strange: frozenset[Key]


class RootTold(Struct, frozen=True):
    """After a restart the root of a gang told whether it has its lease."""

    job: tuple[int, int]
    sent: bool


class Awaited(Struct, frozen=True):
    """An allocation is over, and its last words are awaited; None: it is not over after all."""

    id: str
    ending: Ending | None


class ConditionTold(Struct, frozen=True):
    """An allocation is held or suspended by its provider, or is so no more (None)."""

    id: str
    condition: Condition | None


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
    """A site said what it offers; None: it is gone."""

    site: str
    facts: SiteFacts | None


class WeatherEntry(Struct, frozen=True):
    """How a site or a host is doing: sets an entry in a part of `Weather`, or takes it away (None)."""

    part: Literal["sites", "refused", "hosts", "good_hosts", "bad_hosts"]
    key: Any
    value: Any
    look: bool = False
    """The scheduler should look again: more may be asked of the site."""


class FactTold(Struct, frozen=True):
    """A fact that policies may look at: sets the value of a key, or takes it away (None)."""

    name: str
    key: Any
    value: Any


class Looked(Struct, frozen=True):
    """The scheduler should look again, and at `safety_at` even if nothing happens."""

    safety_at: float | None = None


class PluginDisabled(Struct, frozen=True):
    """A part of policies failed when it was asked: nobody asks it again."""

    kind: str
    name: str
    why: str


Note = (
    Heard | Greeted | Told | PartsTold | RootTold | Unheard | Forgot | Awaited | SiteTold | WeatherEntry | FactTold
    | Looked | PluginDisabled | ConditionTold
)  # fmt: skip


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
    runner, usage = state.runners[note.runner], state.soft.contacts[note.runner].usage
    for job, used in note.usage.items():  # what ended in the same report is over already: nothing would drop it again
        if job in runner.jobs or (*job, used.attempt) in runner.parts:
            usage[job] = used


def _parts_told(state: State, note: PartsTold) -> None:
    contact = state.soft.contacts[note.runner]
    if contact.strange and not note.strange:
        state.soft.planning.wanted = True  # it may take jobs again
    if contact.strange != note.strange:
        state.soft.planning.changed.runners[note.runner] = None
    contact.confirmed, contact.strange = note.holds, note.strange


def _root_told(state: State, note: RootTold) -> None:
    (state.soft.sent if note.sent else state.soft.unsent)[note.job] = None


def _awaited(state: State, note: Awaited) -> None:
    if note.ending is None:
        state.soft.ending.pop(note.id, None)
    else:
        state.soft.ending[note.id] = note.ending


def _condition_told(state: State, note: ConditionTold) -> None:
    if note.condition is None:
        state.soft.conditions.pop(note.id, None)
    else:
        state.soft.conditions[note.id] = note.condition


def _unheard(state: State, note: Unheard) -> None:
    state.soft.contacts[note.runner].connected = False
    state.soft.planning.changed.runners[note.runner] = None


def _forgot(state: State, note: Forgot) -> None:
    contact = state.soft.contacts.get(note.runner)
    if contact is not None:
        for job in note.jobs:
            contact.given_up.pop(job, None)
        state.soft.planning.changed.runners[note.runner] = None
    if note.look:
        state.soft.planning.wanted = True


def _site_told(state: State, note: SiteTold) -> None:
    soft = state.soft
    soft.possible.clear()
    soft.accepted.clear()
    if note.facts is None:
        soft.sites.pop(note.site, None)
        _tell_queues(state, soft.queues.pop(note.site, ()), ())
        soft.planning.changed.everything = soft.planning.wanted = True
        return
    soft.sites[note.site] = note.facts
    before = soft.queues.get(note.site, ())
    soft.queues[note.site] = queue_places(note.site, note.facts, soft.queue_classes)
    _tell_queues(state, before, soft.queues[note.site])
    soft.weather.sites.setdefault(note.site, SiteWeather()).failed_tag = ""
    soft.planning.changed.everything = True
    soft.planning.wanted = True
    state.ensure_site_location(note.site)
    for key in dict.fromkeys((*state.waited, *soft.waits)):
        if key[0] in soft.sites:
            _tell_stats(state, key)
    for name in list(soft.idle.times):
        enter_runner(state, state.runners[name])


def _tell_queues(state: State, before: Sequence[Place], now: Sequence[Place]) -> None:
    """Tell policies which queues a site has: the fact `queues`, by location; a site without any is one itself."""
    told = {place.location.id: place for place in (now[1:] or now)}
    for place in before:
        if place.location.id not in told:
            state.soft.facts.tell("queues", place.location.id, None)
    for name, place in told.items():
        state.soft.facts.tell("queues", name, place)


def _weather_entry(state: State, note: WeatherEntry) -> None:
    entries: dict[Any, Any] = getattr(state.soft.weather, note.part)
    if note.value is None:
        entries.pop(note.key, None)
    else:
        entries[note.key] = note.value
    facts = state.soft.facts
    if note.part == "sites":
        facts.tell("weather", ("site", note.key), (note.value.closed_until, note.value.why))
    elif note.part == "refused":
        facts.tell("weather", ("refused", *note.key), note.value)
    elif note.part == "bad_hosts":
        facts.tell("hosts", note.key, note.value)
    if note.part in ("hosts", "bad_hosts"):
        _host_judged(state, note.key)
    if note.look:
        state.soft.planning.wanted = True


def _host_judged(state: State, key: tuple[str, str]) -> None:
    """Let the pass know which runners of a host may have jobs, or one."""
    record = state.soft.weather.hosts.get(key)
    suspected = record is not None and record.suspected is not None
    for runner in state.runners.values():
        if (runner.site, runner.host) == key and runner.location in state.ledger.locations:
            state.ledger.set_single(runner.location, suspected)
            state.soft.planning.changed.runners[runner.id] = None


def _fact_told(state: State, note: FactTold) -> None:
    if state.soft.facts.tell(note.name, note.key, note.value):
        state.soft.planning.wanted = True


def _looked(state: State, note: Looked) -> None:
    planning = state.soft.planning
    planning.wanted = True
    if note.safety_at is not None:
        planning.changed.everything = True
        planning.safety_at = note.safety_at


def _plugin_disabled(state: State, note: PluginDisabled) -> None:
    state.soft.disabled[note.kind, note.name] = note.why
    state.soft.planning.wanted = True


_TAKE: dict[type[Any], Callable[[State, Any], None]] = {
    PluginDisabled: _plugin_disabled,
    Heard: _heard,
    Greeted: _greeted,
    Told: _told,
    PartsTold: _parts_told,
    RootTold: _root_told,
    Awaited: _awaited,
    ConditionTold: _condition_told,
    Unheard: _unheard,
    Forgot: _forgot,
    SiteTold: _site_told,
    WeatherEntry: _weather_entry,
    FactTold: _fact_told,
    Looked: _looked,
}


# ---- what follows from events and effects ---------------------------------------------------------------------------


def follow(state: State, event: ev.Event, at: At) -> None:
    """Change what an event, which was applied just now, means for the soft state."""
    kind = type(event)
    if kind is ev.Leased:
        assert isinstance(event, ev.Leased)
        soft = state.soft
        if event.runner in soft.idle.times:
            soft.idle.drop(event.runner)
        since, number, mono = soft.contacts[event.runner].since, event.batch, at.mono
        for low, high in zip(event.spans[::2], event.spans[1::2], strict=True):
            for pos in range(low, high):
                since[number, pos] = mono
        if event.parts:
            soft.unsent[number, event.spans[0]] = None
            for name, _ in event.parts:
                soft.idle.drop(name)
        return
    if kind is ev.Ended:
        assert isinstance(event, ev.Ended)
        _ended(state, event, at)
    elif kind is ev.Submitted:
        assert isinstance(event, ev.Submitted)
        possible = state.soft.possible
        if len(possible) > MOST_POSSIBLE:
            possible.clear()
        possible.update([template.needs for template in event.spec.templates])
        if event.ready and _is_plain(event.spec):
            _accept(state, event.spec)
        if event.ready:
            state.soft.planning.wanted = True
        return
    elif kind is ev.Moved:
        assert isinstance(event, ev.Moved)
        if event.verb == "kill":
            for low, high in zip(event.spans[::2], event.spans[1::2], strict=True):
                state.soft.killing.update({(event.batch, pos): at.mono for pos in range(low, high)})
    elif isinstance(event, ev.RunnerGreeted):
        contact = state.soft.contacts.setdefault(event.runner, Contact())
        contact.connected = True
        contact.heard = contact.idle_since = at.mono
        contact.greeted = 0.0 if event.direct else at.mono
        contact.lease_n = contact.got = 0
        contact.unacked.clear()
        contact.given_up.clear()
        contact.confirmed, contact.strange = {}, frozenset()
        enter_runner(state, state.runners[event.runner])
        state.soft.planning.changed.runners[event.runner] = None
    elif isinstance(event, ev.Released):
        _released(state, event, at)
    elif isinstance(event, ev.RunnerMoved):
        state.soft.planning.changed.runners[event.runner] = None
        if state.runners[event.runner].state in ("CLOSED", "EXPIRED"):
            contact = state.soft.contacts[event.runner]
            contact.unacked.clear()
            contact.given_up.clear()
        enter_runner(state, state.runners[event.runner])
    elif isinstance(event, ev.Spent):
        count(state, event)
    elif isinstance(event, ev.ManagerMoved):
        state.soft.planning.changed.everything = True
    elif isinstance(event, ev.AllocationPlanned):
        _waits(state, state.allocations[event.id])
    elif isinstance(event, ev.AllocationMoved):
        if event.verb == "run":
            state.soft.conditions.pop(event.id, None)
        allocation = state.allocations[event.id]
        if event.verb == "kill" and (event.reason or "").startswith(BROKERED_AGAIN):
            sent_back(state, allocation, at.wall)
        _allocation_moved(state, allocation)
    if _concerns_the_scheduler(event):
        state.soft.planning.wanted = True


def _is_plain(spec: BatchSpec) -> bool:
    """Whether a batch without values, of which the same may come again, is accepted by its own figures alone."""
    first, needs = spec.templates[0], spec.templates[0].needs
    if len(spec.templates) > 1 or spec.columns or spec.after or spec.scouts or spec.not_before is not None:
        return False
    own = (spec.at_once, needs.memory, needs.disk, needs.time_s)
    return own == (None, None, None, None) and not (first.limits or first.share or first.inputs)


def _accept(state: State, spec: BatchSpec) -> None:
    accepted = state.soft.accepted
    if id(spec) not in accepted:
        if len(accepted) >= MOST_ACCEPTED:
            accepted.clear()
        accepted[id(spec)] = (spec, state.settings)


def _allocation_moved(state: State, allocation: Allocation) -> None:
    _waits(state, allocation)
    if allocation.state.endswith("ED"):
        state.soft.ending.pop(allocation.id, None)
        state.soft.conditions.pop(allocation.id, None)
        while state.forgotten:
            state.soft.contacts.pop(state.forgotten.pop(), None)


def _waits(state: State, allocation: Allocation) -> None:
    """Count an allocation among those that wait at its queue, or run there: the fact `stats`."""
    if allocation.shape is not None:
        _count_share(state, allocation)
    key = (allocation.site, allocation.queue or "")
    waits = state.soft.waits.get(key)
    if waits is None:
        waits = state.soft.waits[key] = Waits()
    if allocation.state in ("SUBMITTING", "PENDING"):
        if allocation.id in waits.since:
            return
        waits.since[allocation.id] = allocation.submitted or 0.0
    else:
        since, ran = waits.since.pop(allocation.id, None), len(waits.running)
        if allocation.state == "RUNNING":
            waits.running.add(allocation.id)
        elif allocation.state.endswith("ED"):
            waits.running.discard(allocation.id)
        if since is None and (ran == len(waits.running) or len(state.soft.sites) < 2):
            return
    _tell_stats(state, key)


def _count_share(state: State, allocation: Allocation) -> None:
    """Count an allocation among those of its share that wait, or run: the fact `made`."""
    assert allocation.shape is not None
    share, made = state.shapes[allocation.shape].shape.share, state.soft.made
    if not share or share.startswith(UNCOUNTED):
        return
    live = {"SUBMITTING": False, "PENDING": False, "RUNNING": True}
    before = made.pop(allocation.id, None)
    if allocation.state in live:
        made[allocation.id] = (share, live[allocation.state])
    if before != made.get(allocation.id):
        now = state.soft.facts["made"].get(share, Generation())
        counts = [now.queued, now.running]
        for row, change in ((before, -1), (made.get(allocation.id), 1)):
            if row is not None:
                counts[row[1]] += change
        told = Generation(counts[1], counts[0])
        state.soft.facts.tell("made", share, told if counts != [0, 0] else None)


def _tell_stats(state: State, key: tuple[str, str]) -> None:
    """Tell how a queue fares; of how many run there, and of kinds, only where there are several sites to compare."""
    waits, learned = state.soft.waits.get(key, _NOBODY), state.waited.get(key, _UNKNOWN)
    oldest = next(iter(waits.since.values()), 0.0)
    stats = Stats(learned.mean_s, len(waits.since), oldest)
    if len(state.soft.sites) > 1:
        stats = Stats(learned.mean_s, len(waits.since), oldest, len(waits.running), learned.kinds)
    state.soft.facts.tell("stats", key, stats)


def _ended(state: State, event: ev.Ended, at: At) -> None:
    contact = state.soft.contacts[event.runner]
    since, usage = contact.since, contact.usage
    killing = state.soft.killing
    for row in event.rows:
        since.pop(row[:2], None)
        if killing:
            killing.pop(row[:2], None)
        if usage:
            usage.pop(row[:2], None)
    runner = state.runners[event.runner]
    if not runner.jobs and not runner.parts:
        contact.idle_since = at.mono
        enter_runner(state, runner)
    if state.parts or state.soft.sent or state.soft.unsent:
        _roots_ended(state, event, at)
    if len(state.soft.sites) > 1:
        ended_at(state, event, runner.site, at.wall)
    took(state, event)


def _roots_ended(state: State, event: ev.Ended, at: At) -> None:
    """The parts of gangs whose roots have ended are to be released."""
    soft = state.soft
    for number, pos, _, _, _ in event.rows:
        soft.sent.pop((number, pos), None)
        soft.unsent.pop((number, pos), None)
        batch = state.batches[number]
        for name in batch.closing.get(pos, ()):
            soft.contacts[name].releasing[number, pos, batch.attempts[pos]] = at.mono


def _released(state: State, event: ev.Released, at: At) -> None:
    contact, runner = state.soft.contacts[event.runner], state.runners[event.runner]
    for row in event.rows:
        contact.releasing.pop(row, None)
        contact.usage.pop(row[:2], None)
    if event.reason is not None:  # not its own word: should it be back, ranks may run there until it says otherwise
        rows = [(number, state.batches[number].index(pos), attempt) for number, pos, attempt in event.rows]
        contact.strange = contact.strange.union(rows)
        state.soft.planning.changed.runners[event.runner] = None
    if not runner.jobs and not runner.parts:
        contact.idle_since = at.mono
        enter_runner(state, runner)


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
            mean = memo.mean_s
            if verb == "abort" and (mean is None or wall < mean):
                continue  # it would have taken longer, nobody knows how much
            memo.mean_s = wall if mean is None else mean + _MEAN_WEIGHT * (wall - mean)
            if mean is not None and wall < mean:
                state.soft.planning.changed.quicker.add(shape)


_CONCERN = (
    ev.Ended, ev.Retemplated, ev.Respecified, ev.ManagerMoved, ev.LimitSet, ev.RunnerGreeted, ev.RunnerMoved,
    ev.AllocationMoved, ev.Released,
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
            contact.unacked[effect.n] = Sent(at.mono, effect.jobs, effect.slots, effect.gangs)
            for job in effect.gangs:
                state.soft.unsent.pop(job, None)
                state.soft.sent[job] = None
        elif isinstance(effect, Order) and effect.reason == GIVEN_UP:
            state.soft.contacts[effect.runner].given_up.update(dict.fromkeys(effect.jobs))
            state.soft.planning.changed.runners[effect.runner] = None


# ---- what follows from a start ---------------------------------------------------------------------------------------


def restarted(state: State, at: At) -> None:
    """After a restart every deadline gets its full grace, and the monotonic clock begins anew."""
    for runner in state.runners.values():
        contact = state.soft.contacts[runner.id] = Contact(at.mono, connected=runner.direct)
        contact.since = dict.fromkeys(runner.jobs, at.mono)
        for number, pos, attempt in runner.parts:
            if pos in state.batches[number].closing:
                contact.releasing[number, pos, attempt] = at.mono
    recall(state)
    enter_runners(state)
    for allocation in state.allocations.values():
        if allocation.state.endswith("ING"):
            _waits(state, allocation)
    planning = state.soft.planning
    planning.steady_less_mono = None
    planning.wanted = planning.changed.everything = True
