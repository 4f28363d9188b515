"""The driver of a batch system: runs a dialect's commands over a transport, patiently, and never twice by mistake."""

import asyncio
import logging
import random
import re
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from rota.drivers.api import Ask, Known, Observation, Outcome
from rota.drivers.arrays import ArrayLimit
from rota.drivers.dialect import Answer, Command, Dialect, Listing, Options, Seen, Submitted
from rota.drivers.gate import Gate, Health, Times, shown
from rota.drivers.killing import Killer, Kills, chunks
from rota.drivers.native import Room
from rota.drivers.outcome import OVER, Evidence, Verdict
from rota.drivers.settings import Settings
from rota.drivers.submitting import ArrayError, Submitter
from rota.drivers.tracking import LOST, WAITS, Entry, Sight, Tracker
from rota.drivers.transport import Transport, UnreachableError
from rota.model.allocation import Waiting
from rota.model.errors import BusyError, RotaError
from rota.model.site import SiteFacts

__all__ = ["CommandDriver", "LastWords", "UnreadableError"]

log = logging.getLogger("rota")
T = TypeVar("T")


class UnreadableError(UnreachableError):
    """The last words of some allocations (`ids`) cannot be read; those of the others were (`found`)."""

    def __init__(self, words: str, found: Mapping[str, Outcome], ids: set[str]) -> None:
        super().__init__(words, ran=True)
        self.found = found
        self.ids = ids


LastWords = Callable[[Sequence[Known]], Awaitable[Mapping[str, Outcome]]]
"""Reads what jobs wrote when they ended: allocation → outcome; those that wrote nothing are left out."""
LINGER_LOOKS = 64
"""Running allocations whose last words are looked for in one cycle."""
UNKNOWN_LOOKS = 2
"""Tags that are looked up in one cycle."""
WHY_S = 60.0
"""Why allocations wait is asked no more often …"""
WAITS_S = 3.0
"""… and of those that have waited for so long."""
BASE = re.compile(r"[\[._]\d+\]?\Z")
"""What an element's native id has behind that of its array."""
OPEN_S = 10.0
"""When to look again for the last words of what is over."""
STRANGE = re.compile(r"usage|option|argument|not found", re.IGNORECASE)
"""In the words of a program that does not know what it is asked."""
COUNTS_MOST = 100_000
SMALL = 100_000
"""Characters of an answer that are read at once, within a few milliseconds; more are read in a thread."""
ROOM_LEAST = 20_000
ROOM_EACH = 4
"""Numbers that the ranges of an answer may become: so many, and so many more for each allocation that is asked for."""


def real_times() -> Times:
    """The clocks of this machine."""
    return Times(time.monotonic, time.time, asyncio.sleep, random.random)


class CommandDriver:
    """The driver of one site with a batch system."""

    def __init__(  # the parts of a site: only who builds it names them, and all after the facts have defaults
        self,
        site: str,
        dialect: Dialect,
        transport: Transport,
        facts: SiteFacts,
        options: Options | None = None,
        settings: Settings | None = None,
        *,
        array_most: int | None = None,
        user: str | None = None,
        last_words: LastWords | None = None,
        times: Times | None = None,
    ) -> None:
        self.site = site
        self.dialect = dialect
        self._transport = transport
        self._facts = facts
        self._options = options or Options()
        self._settings = settings = settings or Settings()
        self.arrays = ArrayLimit(min(dialect.array_most, array_most or dialect.array_most))
        self._user = user
        self._last_words = last_words
        self._times = times or real_times()
        self.gate = Gate(site, transport, settings, self._times)
        self._tracker = Tracker(settings, dialect.history_lag_s, getattr(dialect, "deletes_by_kill", False))
        self._kills = Kills(settings)
        self._submitter = Submitter(self, settings, self._times)
        self._killer = Killer(self, self._tracker, self._kills, settings, self._times)
        self._starting = asyncio.Lock()
        self._ready = False
        self._busy = False
        self._next_poll = float("-inf")
        self._last_start = float("-inf")
        self._quick_s = settings.poll_min_s
        self._failed_polls = 0
        self._counts: dict[str, int] = {}
        self._turn = 0
        self._why_waiting: Mapping[str, str] = {}
        """Native id, of one or of a whole array → why it waits."""
        self._why_asked = float("-inf")
        self._looked: dict[str, float] = {}
        """Tags that were looked up of late, and when."""

    def facts(self) -> SiteFacts:
        """What the site offers, as configured."""
        return self._facts

    def health(self) -> Health:
        """How the site is doing, for `rota sites`."""
        return self.gate.health()

    # ---- commands ----------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Find the programs and ask who they are. Repeated until it has worked; raises RotaError if it does not."""
        async with self._starting:
            if not self._ready:
                await self._start()

    async def _start(self) -> None:
        command = self.dialect.version()
        try:
            self.gate.programs = await self._transport.which(self.dialect.programs)
            absent = self.gate.missing()
            if absent is not None:
                raise absent
            if self._user is None:
                answer = await self._transport.run(("id", "-un"), None, self._settings.timeout_s)
                self._user = answer.stdout.strip() or None
            answer = await self.gate.run(command, self._settings.timeout_s)
        except UnreachableError as error:
            self.gate.bad(command, str(error), error)
            raise BusyError(f"site {self.site}: {error}") from error
        words = (answer.stdout.strip() or answer.stderr.strip()).splitlines()
        if answer.code is None or not self._user:
            self.gate.bad(command, "no answer" if answer.code is None else "it is not known which user this is")
            raise BusyError(f"site {self.site}: {self.gate.why}")
        is_mine, _ = await self.read(lambda: self.dialect.is_mine(answer), True, answer)
        if not is_mine:
            said = words[0] if words else "nothing"
            self.gate.bad(command, f"this is not {self.dialect.name}: {said}")
            if not words or (answer.code and not STRANGE.search(answer.stdout + answer.stderr)):
                # It has failed: that tells nothing of whose programs they are.
                raise BusyError(f"site {self.site}: {shown(command)} ended with {answer.code} and says {said!r}")
            raise BusyError(
                f"site {self.site}: its programs are not those of {self.dialect.name}: {shown(command)} says {said!r}. "
                "Set `driver` of this site to the batch system that it has"
            )
        self.gate.version = words[0] if words else None
        self._ready = True

    async def ask(self, command: Command, timeout_s: float | None = None) -> Answer:
        """Run a command of the site, as one that does no harm when repeated: no answer is an answer with no code."""
        timeout_s = timeout_s or self._settings.timeout_s
        try:
            answer = await self.gate.run(command, timeout_s)
        except UnreachableError as error:
            self.gate.bad(command, str(error), error)
            return Answer(None, "", str(error))
        if answer.code is None and not answer.cut:
            self.gate.bad(command, f"no answer within {timeout_s:.0f} s; {answer.stderr}".rstrip("; "))
        return answer

    async def read(self, reader: Callable[[], T], instead: T, *answers: Answer) -> tuple[T, bool]:
        """Let a dialect read answers; one that raises has not understood them. And whether all was expanded.

        Large ones are read in a thread: no answer of a batch system holds up the loop.
        """
        room = Room(ROOM_LEAST + ROOM_EACH * self._tracker.live)

        def work() -> T:
            with room:
                return reader()

        try:
            large = sum(len(answer.stdout) + len(answer.stderr) for answer in answers) > SMALL
            return (await self._times.aside(work) if large else work()), not room.exceeded
        except Exception as error:
            log.exception("site %s: the dialect %s cannot read an answer", self.site, self.dialect.name)
            self.gate.note(f"the dialect {self.dialect.name} cannot read an answer: {error!r}")
            return instead, True

    @property
    def user(self) -> str:
        """The user whose jobs ours are at the site."""
        return self._user or ""

    # ---- submitting --------------------------------------------------------------------------------------------------

    async def submit(self, ask: Ask) -> list[str]:
        """Submit allocations; see `Submitter`."""
        if ask.count > (most := self.arrays.most):  # it was planned before the limit was known, or was smaller
            raise ArrayError(f"site {self.site}: {ask.count} allocations in one submission; it takes {most}", most)
        command = self.dialect.submit(ask, self._options)
        if self.gate.is_shut:
            raise BusyError(
                f"site {self.site} is left alone for another {self.gate.reopens_in:.0f} s after "
                f"{self._settings.breaker_failures} failed commands: {self.gate.why}"
            )
        await self.start()
        self._counts[ask.tag] = ask.count
        try:
            natives = await self._submitter.submit(ask, command)
        except Exception:
            self._tracker.give_up(ask.tag, self._times.mono())
            raise
        for id, native in zip(ask.ids, natives, strict=True):
            self._tracker.own(ask.tag, native)
            entry = self._tracker.entries.get(id)
            if entry is not None and entry.native is None:  # it is to be killed already
                self._tracker.bind(entry, native)
                self._kills.hasten(id, self._times.mono())
        self.hurry()
        return natives

    async def find(self, tag: str, count: int) -> list[str] | None:
        """Look a tag up, until it is found or certainly nowhere. A site that cannot be asked is asked again."""
        failures = 0
        while not self._ready:
            try:
                await self.start()
            except RotaError as error:
                log.info("looking for the tag %s: %s", tag, error)
                await self._times.sleep(self._submitter.pause(failures))
                failures += 1
        elements = [str(element) for element in range(count)]  # nobody knows better names for them here
        base = await self._submitter.settle(tag, elements, self._settings.restart_settle_s)
        if base is None:
            return None
        natives = self.elements(base, count)
        for native in natives:
            self._tracker.own(tag, native)
        self.hurry()
        return natives

    def elements(self, base: str, count: int) -> list[str]:
        """The native ids of the elements of a submission."""
        if base.startswith(LOST):
            return [f"{base}.{element}" for element in range(count)]
        return [self.dialect.element_id(base, element, count) for element in range(count)]

    def is_unwanted(self, ids: Iterable[str]) -> bool:
        """Whether all of these allocations are to be killed."""
        return all(id in self._kills.wishes for id in ids)

    async def left_words(self, ids: Sequence[str], tag: str) -> bool | None:
        """Whether one of these allocations has left words: then it was submitted, wherever it is now.

        None: that cannot be seen.
        """
        known = [Known(id, tag, None, element) for element, id in enumerate(ids)]
        words, unreadable = await self._read_words(known)
        return None if unreadable and not words else bool(words)

    # ---- killing -----------------------------------------------------------------------------------------------------

    async def terminate(self, known: Known) -> bool:
        """Ask an allocation to end; see `Killer`. Polling goes on until it has."""
        now = self._times.mono()
        self._tracker.enter([known], now)
        entry = self._tracker.entries[known.id]
        if entry.over is not None:
            return True
        self._kills.want(known.id, now)
        if entry.native is None and known.tag not in self._submitter.tags and self._may_look(known.tag, now):
            await self._resolve(known.tag)
        return await self._killer.terminate(entry, now)

    async def end(self, natives: list[str]) -> None:
        """End native jobs that are nobody's."""
        await self._killer.end(natives)

    # ---- polling -----------------------------------------------------------------------------------------------------

    async def poll(self, known: Sequence[Known]) -> list[Observation]:
        """What is new of the allocations. Called often; whether it is time to ask the cluster is decided here."""
        now = self._times.mono()
        if len(known) < self._tracker.live:  # somebody wants to know about a few of them, now
            self._next_poll = min(self._next_poll, self._last_start + self._settings.poll_min_s)
        listing_due = now >= self._next_poll and not self.gate.is_shut
        kills_due = self._kills.any_due(now) and not self.gate.is_shut
        if self._busy or not (listing_due or kills_due):
            return []
        self._busy = True
        try:
            self._tracker.enter(known, now)
            out: list[Observation] = []
            if kills_due:
                out += await self._killer.send(now)
            if listing_due:
                out += await self._cycle()
            return out
        finally:
            self._busy = False

    def waits(self, native: str) -> Waiting | None:
        """Why a native job does not run, in the cluster's words of late; None: it runs, or there is no word."""
        seen = self._tracker.listed.get(native)
        if seen is not None and seen.kind in OVER:
            return Waiting(seen.native_state, over=True)
        if seen is None or seen.kind not in ("pending", "held", "suspended", "unsure"):
            return None
        asked = self._why_waiting.get(native) or self._why_waiting.get(BASE.sub("", native))
        words = seen.reason or asked or (seen.native_state if seen.kind == "unsure" else None)
        return None if not words else Waiting(words, words.startswith(getattr(self.dialect, "hopeless", ())))

    def hurry(self) -> None:
        """Look in 2, 4, 8 … seconds: something was done whose effect is to be seen soon."""
        self._quick_s = self._settings.poll_min_s
        self._next_poll = min(self._next_poll, self._times.mono() + self._times.jittered(self._quick_s))

    def _schedule(self, failed: bool) -> None:
        settings, now = self._settings, self._times.mono()
        if failed:
            self._failed_polls += 1
            wait = min(settings.poll_most_s, settings.poll_min_s * 2.0 ** min(self._failed_polls, 20))
        else:
            self._failed_polls = 0
            self._quick_s = min(settings.poll_s, self._quick_s * 2)
            wait = self._quick_s
        self._next_poll = now + max(settings.poll_min_s, self._times.jittered(wait))

    async def _cycle(self) -> list[Observation]:
        self._last_start = now = self._times.mono()
        listing = await self._list()
        if listing is None:
            self._schedule(failed=True)
            return []
        self._schedule(failed=False)
        sight = self._tracker.look(listing, self._submitter.tags, now, self._times.wall())
        await self._decide(sight, now)
        await self._killer.end_strays(sight.strays, now)
        await self._find_unknown(sight, now)
        await self._ask_why_waiting(now)
        self._tracker.forget(now)
        if len(self._counts) > COUNTS_MOST:
            self._counts.clear()
        return sight.out

    async def _list(self) -> Listing | None:
        """The listing: one command, however many jobs there are. None: it says nothing."""
        try:
            await self.start()
        except RotaError as error:
            log.info("polling: %s", error)
            return None
        command = self.dialect.listing(self.user)
        answer = await self.ask(command)
        if answer.code is None and not answer.cut:
            return None
        unread = Listing((), "transient", "it cannot be read")
        listing, whole = await self.read(lambda: self.dialect.read_listing(answer, self._options), unread, answer)
        if listing.result not in ("ok", "partial", "not-found"):
            self.gate.bad(command, listing.detail or answer.stderr or answer.stdout)
            return None
        self.gate.good()
        if answer.cut or listing.result != "ok" or not whole:
            self.gate.doubt(command, listing.detail or "the output was cut, or stands for more than anybody asked for")
            return listing._replace(result="partial")
        self.gate.last_poll = self._times.wall()
        return listing

    async def _decide(self, sight: Sight, now: float) -> None:
        """Judge the allocations that ended or are missing, by the history and by the jobs' own last words."""
        tracker = self._tracker
        ended = [(entry, tracker.keep(entry, seen) or seen) for entry, seen in sight.ended]
        thin = [entry for entry, seen in ended if not seen.outcome or seen.outcome.exit_code is None]
        told = await self._history([entry for entry in (*thin, *sight.missing) if entry.ended is None], now)
        open_cases: list[tuple[Entry, Seen | None]] = []
        for entry, seen in ended:
            better = told.get(entry.id)
            open_cases.append((entry, tracker.keep(entry, better if better and better.kind in OVER else seen)))
        for entry in sight.missing:
            past = told.get(entry.id)
            if past is not None and past.kind not in OVER:
                # The history says that it lives and the listing does not have it: doubtful, and counted as such.
                reason = f"not listed, though the history says {past.native_state}"
                doubt = past._replace(kind="unsure", reason=reason)
                tracker.live_seen(entry, doubt, now, self._times.wall(), sight.out)
            else:
                open_cases.append((entry, tracker.keep(entry, past)))
        writes = self._last_words is not None
        own, unreadable = await self._read_words([entry.known for entry, _ in open_cases])
        for entry, last_seen in open_cases:
            killed = (wish := self._kills.wishes.get(entry.id)) is not None and wish.delivered
            evidence = Evidence(last_seen, own.get(entry.id), writes)
            readable = entry.id not in unreadable
            over = tracker.conclude(entry, evidence, now, readable=readable, killed=killed)
            if over is not None:
                self._kills.done(entry.id)
                sight.out.append(over)
            elif last_seen is not None:  # it is over, and only its last words are waited for
                self._next_poll = min(self._next_poll, self._times.mono() + self._times.jittered(OPEN_S))
        await self._look_for_lingering(sight, now)

    async def _history(self, entries: list[Entry], now: float) -> dict[str, Seen]:
        """What the history knows of allocations: of so many per cycle, those first that have waited longest."""
        settings = self._settings
        due = [entry for entry in entries if entry.native is not None and self._may_ask(entry, now)]
        due.sort(key=lambda entry: entry.asked or 0.0)
        found: dict[str, Seen] = {}
        answers: dict[Command, tuple[bool, dict[str, Seen]]] = {}  # one that tells of a whole array is sent once
        for part in chunks(due, self.dialect.chunk):
            natives = [entry.native for entry in part if entry.native and not entry.native.startswith(LOST)]
            asked = self.dialect.history(natives) if natives else ()
            new = [command for command in asked if command not in answers]
            if answers and len(answers) + len(new) > settings.history_commands:
                self.hurry()
                break
            for command in new:
                answers[command] = await self._ask_history(command)
            silent = all(answers[command][0] for command in asked)
            rows = {native: seen for command in asked for native, seen in answers[command][1].items()}
            for entry in part:
                entry.asked, entry.asks = now, entry.asks + 1
                row = rows.get(entry.native or "")
                if row is not None and row.tag in (None, entry.tag):
                    found[entry.id] = row
                    entry.silent = False
                else:
                    entry.silent = silent
        return found

    def _may_ask(self, entry: Entry, now: float) -> bool:
        """Whether it is time to ask the history about it.

        What was killed while it waited is hardly in there: asked once at first, where such are kept at all, and once
        before it is called gone.
        """
        settings = self._settings
        since = float("inf") if entry.asked is None else now - entry.asked
        wish = self._kills.wishes.get(entry.id)
        killed = wish is not None and wish.delivered and entry.said in WAITS
        if killed and (entry.asks or getattr(self.dialect, "forgets_waiting", False)):
            pause = min(settings.poll_s, 4.0 ** min(entry.asks + 1, 10))
            return entry.misses >= settings.gone_polls - 1 and since >= pause
        return since >= min(settings.poll_s, 2.0 ** min(entry.asks, 10))

    async def _ask_history(self, command: Command) -> tuple[bool, dict[str, Seen]]:
        """Whether silence of the history means something, and its rows. A site that keeps no history is silent."""
        answer = await self.ask(command)
        if answer.code is None:
            return False, {}
        unread = Listing((), "transient", "it cannot be read")
        piece, whole = await self.read(partial(self.dialect.read_history, answer, self._options), unread, answer)
        rows = {seen.native_id: seen for seen in piece.seen}
        if piece.result not in ("ok", "not-found", "fatal") or answer.cut or not whole:
            self.gate.doubt(command, piece.detail or answer.stderr)
            return False, rows
        return True, rows

    async def _read_words(self, known: Sequence[Known]) -> tuple[Mapping[str, Outcome], set[str]]:
        """The last words of allocations, and the ids of those whose words cannot be read."""
        if self._last_words is None or not known:
            return {}, set()
        try:
            return await self._last_words(known), set()
        except (OSError, UnreachableError, ValueError) as error:
            words = f"the last words of jobs cannot be read: {error}"
            log.warning("site %s: %s", self.site, words)
            self.gate.note(words)
            if isinstance(error, UnreadableError):
                return error.found, error.ids
            return {}, {each.id for each in known}

    async def _ask_why_waiting(self, now: float) -> None:
        """Ask now and then, in one command, why allocations wait, where the listing does not say it."""
        if not hasattr(self.dialect, "why_waiting") or now - self._why_asked < WHY_S:
            return
        dialect: Any = self.dialect
        rows = self._tracker.waiting(now - WAITS_S)
        natives = [row.native_id for row in rows if row.reason is None]
        if natives:
            self._why_asked = now
            answer = await self.ask(dialect.why_waiting(self.user, natives))
            if answer.code is not None:
                none: Mapping[str, str] = {}
                self._why_waiting, _ = await self.read(lambda: dialect.read_why_waiting(answer), none, answer)

    async def _look_for_lingering(self, sight: Sight, now: float) -> None:
        """Look, a few per cycle, for allocations that have written their last words and are listed as running."""
        if self._last_words is None:
            return
        running = [entry for entry in self._tracker.entries.values() if entry.said == "run" and entry.native]
        if not running:
            return
        self._turn %= len(running)
        some = (running[self._turn :] + running[: self._turn])[:LINGER_LOOKS]
        self._turn += LINGER_LOOKS
        found, _ = await self._read_words([entry.known for entry in some])
        for entry in some:
            if entry.id in found:
                over = self._tracker.lingers(entry, found[entry.id], now)
                if over is not None:
                    self._kills.done(entry.id)
                    sight.out.append(over)
                    await self.end([entry.native or ""])

    async def _find_unknown(self, sight: Sight, now: float) -> None:
        """Look for allocations without a native id: a kill came before the answer to their submission."""
        tags = dict.fromkeys(entry.tag for entry in self._tracker.unknown() if entry.tag not in self._submitter.tags)
        for tag in list(tags)[:UNKNOWN_LOOKS]:
            found = await self._resolve(tag)
            if found is None or found.native_id is not None:
                continue
            for entry in self._tracker.unknown(tag):
                entry.missed = entry.missed if entry.looks else now
                entry.looks += 1
                if entry.looks > self._settings.settle_looks and now - entry.missed >= self._settings.restart_settle_s:
                    self._kills.done(entry.id)
                    why = "nothing with its tag is on the cluster: it was never submitted"
                    verdict = Verdict("abort", why, Outcome())
                    sight.out.append(self._tracker.finish(entry, verdict, now, vanished=True))

    def _may_look(self, tag: str, now: float) -> bool:
        """Whether a tag is looked up at once: once for all its elements, and not too many at a time.

        Those that are not, are so when the next listing was read.
        """
        recent = {each: at for each, at in self._looked.items() if now - at < self._settings.settle_every_s}
        self._looked = recent
        if tag in recent or len(recent) >= UNKNOWN_LOOKS:
            return False
        recent[tag] = now
        return True

    async def _resolve(self, tag: str) -> Submitted | None:
        """Find the native jobs of a tag. Where the size of its array is not known, the listing shows it."""
        found = await self._submitter.look_up(tag)
        if found is None or found.native_id is None:
            return found
        for entry in self._tracker.unknown(tag):
            element, count = entry.known.element, entry.known.elements or self._counts.get(tag, 0)
            natives = [self.dialect.element_id(found.native_id, element, n) for n in ((count,) if count else (1, 2))]
            listed = [native for native in natives if native in self._tracker.listed]
            entry.looks += 1
            if count or listed or entry.looks > self._settings.settle_looks:
                self._tracker.bind(entry, (listed or natives[-1:])[0])
        return found

    async def close(self) -> None:
        """Wait for kills that are being sent."""
        await self._killer.close()
