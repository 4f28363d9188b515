"""What was last said of each allocation, and what a listing means in the light of that. No I/O, no clock."""

import re
from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from rota.drivers.api import Known, Observation, Outcome
from rota.drivers.dialect import Listing, Seen
from rota.drivers.outcome import OVER, VERBS, Evidence, Verdict, judge
from rota.drivers.settings import Settings

__all__ = ["Entry", "Tracker"]

LOST = "lost:"
"""Stands before the native id of an allocation that ran, by its own words, though none was ever learned."""
DELETED = (
    "it waited when it was last seen, its provider knows nothing of it any more, and it left no words: "
    "it seems that it was deleted from the queue"
)
DELETED_BY_KILL = "what looks after it was killed with it, so it seems that it was deleted"
REPEAT_S = 5.0
LATELY_S = 120.0
NODE_WORDS_S = 10.0
"""How long last words are waited for if the provider says that the node is lost: hardly any will come."""
WAITS = ("pend", "held")
"""Verbs of what has not started."""
NUMBER = re.compile(r"\D*(\d+)")
RANK = {"running": 5, "suspended": 4, "pending": 3, "held": 2, "unsure": 1}


class Entry:
    """One allocation as its driver knows it."""

    __slots__ = (
        *(
            "asked",
            "ran",
            "asks",
            "ended",
            "id",
            "known",
            "looks",
            "mentioned",
            "missed",
            "misses",
            "native",
            "over",
            "over_at",
        ),
        *("own_at", "requeued", "requeued_at", "said", "silent", "tag", "told", "unsure_at", "vanished", "waited_at"),
        "waits_since",
    )

    def __init__(self, known: Known) -> None:
        self.known = known
        self.id = known.id
        self.tag = known.tag
        self.native = known.native_id
        self.mentioned = 0.0
        """When the manager last asked about it."""
        self.said: str | None = None
        """The verb last reported."""
        self.unsure_at: float | None = None
        self.requeued: int | None = None
        self.requeued_at: float | None = None
        """Wall-clock time: last words from before belong to an earlier run."""
        self.misses = 0
        self.missed = 0.0
        """Good listings in a row that do not have it, and when the first was."""
        self.asked: float | None = None
        self.asks = 0
        self.silent = False
        """The history was asked, since it is missing, and knows nothing."""
        self.looks = 0
        self.ended: Seen | None = None
        """How it ended, by its provider's word: said once, that stays said, whatever is forgotten later."""
        self.over_at: float | None = None
        """When its provider first said that it ended."""
        self.own_at: float | None = None
        """When its last words were first seen while it was still listed."""
        self.over: Observation | None = None
        self.told = 0.0
        """When its end was last told."""
        self.vanished = False
        """It was called over without the provider's word: should it turn up, it is a stray."""
        self.waited_at: float | None = None
        """When it was last listed as waiting."""
        self.ran = False
        """Whether it was ever listed as running."""
        self.waits_since: float | None = None
        """When it was first."""

    def is_told(self, verb: str) -> bool:
        """Whether this was said, and the manager believes it."""
        return self.said == verb and self.known.believed in (None, verb)


class Sight:
    """What one listing showed: news to tell, and what is still open."""

    __slots__ = ("ended", "missing", "out", "strays")

    def __init__(self) -> None:
        self.out: list[Observation] = []
        self.ended: list[tuple[Entry, Seen]] = []
        self.missing: list[Entry] = []
        self.strays: list[Seen] = []


class Tracker:
    """The allocations of one site, and what was last said of each."""

    def __init__(self, settings: Settings, history_lag_s: float, deletes_by_kill: bool = False) -> None:
        self._settings = settings
        self._deletes_by_kill = deletes_by_kill
        self._history_lag_s = history_lag_s
        self._unsure_s = dict(settings.unsure_states)
        self.entries: dict[str, Entry] = {}
        self.live = 0
        """How many allocations that the manager asks about are not over."""
        self.listed: dict[str, Seen] = {}
        """The last listing that was whole."""
        self._natives: dict[str, Entry] = {}
        self._numbers: dict[str, set[str]] = {}
        """Tag → numbers of the submissions that are truly ours."""
        self._given_up: dict[str, float] = {}
        """Tags of submissions that were called failed: nothing with them may run."""

    # ---- who is known ------------------------------------------------------------------------------------------------

    def enter(self, known: Iterable[Known], now: float) -> None:
        """Take in what the manager asks about. What it still asks about though it is over is looked at again."""
        entries = self.entries
        for item in known:
            entry = entries.get(item.id)
            if entry is None:
                entry = entries[item.id] = Entry(item)
                self.live += 1
                if item.native_id is not None:
                    self.bind(entry, item.native_id)
            elif entry.native is None and item.native_id is not None:
                self.bind(entry, item.native_id)
            entry.known, entry.mentioned = item, now
            if entry.over is not None and now - entry.told >= REPEAT_S:
                entry.over = None
                self.live += 1

    def bind(self, entry: Entry, native: str) -> None:
        """Note the native id of an allocation."""
        entry.native = native
        self._natives[native] = entry
        self.own(entry.tag, native)

    def own(self, tag: str, native: str) -> None:
        """Note that jobs with this tag and the number of this native id are ours."""
        found = NUMBER.match(native)
        if found and not native.startswith(LOST):
            self._numbers.setdefault(tag, set()).add(found[1])
        self._given_up.pop(tag, None)

    def give_up(self, tag: str, now: float) -> None:
        """Note that nothing was submitted with this tag: should a job with it turn up, it is a stray."""
        self._given_up[tag] = now

    def forget(self, now: float) -> None:
        """Forget the allocations that nobody has asked about for long."""
        limit = now - self._settings.remember_s
        old = [entry for entry in self.entries.values() if entry.mentioned < limit]
        for entry in old:
            del self.entries[entry.id]
            if entry.native is not None:
                self._natives.pop(entry.native, None)
            self._numbers.pop(entry.tag, None)
        for tag in [tag for tag, at in self._given_up.items() if at < limit]:
            del self._given_up[tag]
        lately = now - LATELY_S
        self.live = sum(1 for entry in self.entries.values() if entry.over is None and entry.mentioned >= lately)

    # ---- what a listing says -----------------------------------------------------------------------------------------

    def look(self, listing: Listing, submitting: set[str], now: float, wall: float) -> Sight:
        """Compare a listing with what was said before. Absence means something only in a listing that is whole."""
        sight = Sight()
        rows = _index(listing.seen)
        whole = listing.result == "ok"
        if whole:
            self.listed = rows
        for entry in self.entries.values():
            if entry.over is not None or entry.native is None:
                continue
            seen = rows.get(entry.native)
            if seen is None or (seen.tag is not None and seen.tag != entry.tag):  # the number has been used again
                if whole:
                    if not entry.misses:
                        entry.missed, entry.silent, entry.asks = now, False, 0
                    entry.misses += 1
                    sight.missing.append(entry)
                continue
            entry.misses = 0
            entry.ran = entry.ran or seen.kind in ("running", "suspended")
            if seen.kind == "running" and entry.is_told("run") and seen.requeued == entry.requeued:
                continue
            if seen.kind in ("pending", "held"):
                entry.waited_at = now
                entry.waits_since = now if entry.waits_since is None else entry.waits_since
            if seen.kind in OVER:
                sight.ended.append((entry, seen))
            else:
                self.live_seen(entry, seen, now, wall, sight.out)
        self._strays(rows, submitting, sight)
        return sight

    def live_seen(self, entry: Entry, seen: Seen, now: float, wall: float, out: list[Observation]) -> None:
        """Tell of an allocation that waits, runs, or is in a state that tells nothing, if that is news."""
        entry.over_at = None
        if seen.kind != "unsure":
            entry.ended = None
        ran = entry.said == "run"
        again = entry.requeued is not None and seen.requeued > entry.requeued
        entry.requeued = seen.requeued
        if seen.kind == "unsure":
            spacing = self._unsure_s.get(seen.native_state, self._settings.unsure_s) / self._settings.unsure_polls
            if entry.said != "unsure" or entry.unsure_at is None or now - entry.unsure_at >= spacing:
                entry.said, entry.unsure_at = "unsure", now
                verdict = judge(Evidence(seen))
                out.append(Observation(entry.id, "unsure", entry.native, verdict.reason))
            return
        verb = VERBS[seen.kind]
        if ran and (again or verb == "pend"):
            entry.requeued_at, entry.own_at = wall, None
            reason = f"the cluster put it back into its queue (native state {seen.native_state})"
            reason = f"{reason}: {seen.reason}" if seen.reason else reason
            out.append(Observation(entry.id, "pend", entry.native, reason))
            entry.said = "pend"
        if not entry.is_told(verb):
            entry.said = verb
            out.append(Observation(entry.id, verb, entry.native, seen.reason, seen.outcome))

    def _strays(self, rows: dict[str, Seen], submitting: set[str], sight: Sight) -> None:
        for native, seen in rows.items():
            entry = self._natives.get(native)
            if (seen.kind in OVER and not seen.held) or seen.tag is None or seen.tag in submitting:
                continue
            if entry is not None and entry.tag == seen.tag:
                if entry.vanished or (seen.held and entry.told):
                    sight.strays.append(seen)
                continue
            ours = self._numbers.get(seen.tag)
            number = NUMBER.match(native)
            if seen.tag in self._given_up or (ours and number and number[1] not in ours):
                sight.strays.append(seen)

    def unknown(self, tag: str | None = None) -> list[Entry]:
        """Allocations whose native ids are not known, of one tag or all."""
        entries = self.entries.values()
        return [e for e in entries if e.native is None and e.over is None and tag in (None, e.tag)]

    def waiting(self, since: float) -> list[Seen]:
        """The rows, in the last whole listing, of allocations that wait and have done so since then."""
        return [
            self.listed[entry.native]
            for entry in self.entries.values()
            if entry.over is None and entry.native in self.listed and entry.said in WAITS
            if entry.waits_since is not None and entry.waits_since <= since
        ]

    # ---- how it ended ------------------------------------------------------------------------------------------------

    def keep(self, entry: Entry, seen: Seen | None) -> Seen | None:
        """Keep what a provider says of an end, if that says how; else what it said before."""
        if seen is not None and seen.kind in OVER and _status(seen):
            entry.ended = seen
        return entry.ended or seen

    def conclude(
        self, entry: Entry, evidence: Evidence, now: float, *, readable: bool, killed: bool
    ) -> Observation | None:
        """Judge an allocation that its provider calls ended, or knows nothing of. None: not yet.

        Whether enough time has passed (`waited`, `gone`) is added to the evidence here.
        """
        settings = self._settings
        seen, own = evidence.seen, evidence.own
        if own is not None and (own.ended or 0.0) < (entry.requeued_at or 0.0):
            own = None
        if seen is not None and entry.over_at is None:
            entry.over_at = now
        wait = settings.own_words_s * (1 if readable else 10)
        if killed:  # what it says itself makes little difference now
            wait = min(wait, settings.gone_waiting_s)
        if readable and seen is not None and seen.outcome is not None and seen.outcome.why == "node-fail":
            wait = min(wait, NODE_WORDS_S)
        waited = _never_ran(entry, seen) or (entry.over_at is not None and now - entry.over_at >= wait)
        over_s = 0.0 if entry.over_at is None else now - entry.over_at
        unclear = seen is not None and seen.kind == "exited" and own is None and not _status(seen)
        if unclear and over_s < max(wait, self._history_lag_s):
            return None
        polls, seconds = settings.vanish_polls, settings.vanish_s
        if _waited_just_before(entry):  # nothing of it can run unlisted: it would be accounted for by now
            seconds = min(seconds, max(settings.vanish_waiting_s, self._history_lag_s + settings.poll_s))
        if killed:
            waited_only = entry.said in WAITS and entry.requeued_at is None
            polls, seconds = settings.gone_polls, settings.gone_waiting_s if waited_only else settings.gone_s
        gone = entry.silent and readable and entry.misses >= polls and now - entry.missed >= seconds
        verdict = judge(evidence._replace(own=own, waited=waited, gone=gone), settings.trust_scheduler)
        if verdict.verb is None:
            return None
        if killed and seen is None and own is None:
            verdict = Verdict("abort", "it was killed, and the cluster lists it no more", Outcome(why="cancelled"))
        elif gone and seen is None and own is None and _waited_just_before(entry):
            verdict = Verdict("abort", DELETED, Outcome(why="cancelled"))
        elif self._deletes_by_kill and evidence.writes and own is None and _killed_whole(seen):
            words = f"{verdict.reason}; {DELETED_BY_KILL}"
            verdict = Verdict("abort", words, replace(verdict.outcome or Outcome(), why="cancelled"))
        return self.finish(entry, verdict, now, vanished=seen is None)

    def lingers(self, entry: Entry, own: Outcome, now: float) -> Observation | None:
        """Call an allocation over that wrote its last words long ago and is still listed as running. None: not yet."""
        if entry.own_at is None:
            entry.own_at = now
        if now - entry.own_at < self._settings.linger_s:
            return None
        seen = Seen(entry.native or "", "running", "running", entry.tag)
        return self.finish(entry, judge(Evidence(seen, own, True, True, True)), now, vanished=True)

    def finish(self, entry: Entry, verdict: Verdict, now: float, *, vanished: bool) -> Observation:
        """Call an allocation over: told now, and again should the manager still ask."""
        assert verdict.verb is not None
        entry.over = Observation(entry.id, verdict.verb, entry.native, verdict.reason, verdict.outcome)
        entry.said, entry.told, entry.vanished = verdict.verb, now, vanished
        self.live -= 1
        return entry.over


def _never_ran(entry: Entry, seen: Seen | None) -> bool:
    """Whether it was ended while it waited, and has no host: then there are no last words to wait for."""
    if seen is None or seen.outcome is None or entry.requeued_at is not None:
        return False
    return entry.said in WAITS and seen.outcome.why == "cancelled" and seen.outcome.host is None


def _waited_just_before(entry: Entry) -> bool:
    """Whether it waited, for the first time, shortly before it was listed no more."""
    if entry.ran or entry.requeued_at is not None or entry.waited_at is None:
        return False
    return entry.missed - entry.waited_at <= LATELY_S


def _killed_whole(seen: Seen | None) -> bool:
    """Whether all that the provider knows is a KILL."""
    outcome = None if seen is None else seen.outcome
    return outcome is not None and outcome.signal == 9 and outcome.why is None


def _status(seen: Seen) -> bool:
    outcome = seen.outcome
    return outcome is not None and (outcome.exit_code is not None or bool(outcome.signal or outcome.why))


def _index(seen: Sequence[Seen]) -> dict[str, Seen]:
    """The rows by native id; of two with the same id the live one: no job is over while a row says otherwise."""
    rows = {row.native_id: row for row in seen}
    if len(rows) != len(seen):
        for row in seen:
            if RANK.get(row.kind, 0) > RANK.get(rows[row.native_id].kind, 0):
                rows[row.native_id] = row
    return rows
