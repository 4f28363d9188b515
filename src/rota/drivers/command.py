"""The driver of a batch system: runs a dialect's commands over a transport, patiently, and never twice by mistake."""

import asyncio
import logging
import random
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from rota.drivers.api import Ask, Known, Observation, Outcome
from rota.drivers.arrays import ArrayLimit
from rota.drivers.dialect import Answer, Command, Dialect, Listing, Options, Submitted
from rota.drivers.gate import Gate, Health, Times, shown
from rota.drivers.judging import Judge, LastWords
from rota.drivers.killing import Killer, Kills
from rota.drivers.native import Room
from rota.drivers.outcome import OVER, Verdict
from rota.drivers.settings import Settings
from rota.drivers.submitting import ArrayError, Submitter
from rota.drivers.tracking import LOST, Sight, Tracker
from rota.drivers.transport import Transport, UnreachableError
from rota.model.allocation import Waiting
from rota.model.errors import BusyError, RotaError
from rota.model.site import SiteFacts

__all__ = ["CommandDriver"]

log = logging.getLogger("rota")
T = TypeVar("T")


UNKNOWN_LOOKS = 2
"""Tags that are looked up in one cycle."""
WHY_S = 60.0
"""Why allocations wait is asked no more often …"""
WAITS_S = 3.0
"""… and of those that have waited for so long."""
BASE = re.compile(r"[\[._]\d+\]?\Z")
"""What an element's native id has behind that of its array."""
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
        self.options = options or Options()
        self._settings = settings = settings or Settings()
        self.arrays = ArrayLimit(min(dialect.array_most, array_most or dialect.array_most))
        self._user = user
        self._times = times or real_times()
        self.gate = Gate(site, transport, settings, self._times)
        self._tracker = Tracker(settings, dialect.history_lag_s, getattr(dialect, "deletes_by_kill", False))
        self._kills = Kills(settings)
        self._submitter = Submitter(self, settings, self._times)
        self._killer = Killer(self, self._tracker, self._kills, settings, self._times)
        self._judge = Judge(self, self._tracker, self._kills, settings, self._times, last_words)
        self._starting = asyncio.Lock()
        self._ready = False
        self._busy = False
        self._next_poll = float("-inf")
        self._last_start = float("-inf")
        self._quick_s = settings.poll_min_s
        self._failed_polls = 0
        self._counts: dict[str, int] = {}
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
        command = self.dialect.submit(ask, self.options)
        if self.gate.is_shut:
            raise BusyError(
                f"site {self.site} is left alone for a while after "
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
        words, unreadable = await self._judge.read_words(known)
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
        self.look_within(self._quick_s)

    def look_within(self, seconds: float) -> None:
        """Look in about so many seconds, if not before."""
        self._next_poll = min(self._next_poll, self._times.mono() + self._times.jittered(seconds))

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
        await self._judge.judge(sight, now)
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
        listing, whole = await self.read(lambda: self.dialect.read_listing(answer, self.options), unread, answer)
        if listing.result not in ("ok", "partial", "not-found"):
            self.gate.bad(command, listing.detail or answer.stderr or answer.stdout)
            return None
        self.gate.good()
        if answer.cut or listing.result != "ok" or not whole:
            self.gate.doubt(command, listing.detail or "the output was cut, or stands for more than anybody asked for")
            return listing._replace(result="partial")
        self.gate.last_poll = self._times.wall()
        return listing

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
