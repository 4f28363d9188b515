"""Judging how allocations ended: by the listing, the history, and the jobs' own last words."""

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from msgspec.structs import replace

from rota.drivers.api import Known, Outcome
from rota.drivers.dialect import Command, Listing, Seen
from rota.drivers.gate import Times
from rota.drivers.killing import Kills, chunks
from rota.drivers.outcome import OVER, Evidence
from rota.drivers.settings import Settings
from rota.drivers.tracking import LOST, WAITS, Entry, Sight, Tracker
from rota.drivers.transport import UnreachableError

if TYPE_CHECKING:
    from rota.drivers.command import CommandDriver

__all__ = ["Judge", "LastWords", "UnreadableError"]

log = logging.getLogger("rota")


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
OPEN_S = 10.0
"""When to look again for the last words of what is over."""


class Judge:
    """Judges the allocations of one site."""

    def __init__(
        self,
        driver: "CommandDriver",
        tracker: Tracker,
        kills: Kills,
        settings: Settings,
        times: Times,
        last_words: LastWords | None,
    ) -> None:
        self._driver = driver
        self._tracker = tracker
        self._kills = kills
        self._settings = settings
        self._times = times
        self._last_words = last_words
        self._turn = 0
        """Where to go on looking for last words."""

    async def judge(self, sight: Sight, now: float) -> None:
        """Judge the allocations that ended or are missing, by the history and by the jobs' own last words."""
        tracker = self._tracker
        ended = [(entry, tracker.keep(entry, seen) or seen) for entry, seen in sight.ended]
        thin = [entry for entry, seen in ended if not seen.outcome or seen.outcome.exit_code is None]
        told = await self._history([entry for entry in (*thin, *sight.missing) if entry.ended is None], now)
        open_cases: list[tuple[Entry, Seen | None]] = []
        for entry, seen in ended:
            better = told.get(entry.id)
            if better is not None and better.kind not in OVER and better.requeued > (entry.requeued or 0):
                # It is over for a moment only: it is being put back into the queue.
                why = replace(seen.outcome or Outcome(), why="requeue")
                seen = seen._replace(kind="aborted", outcome=why, requeued=better.requeued)
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
        own, unreadable = await self.read_words([entry.known for entry, _ in open_cases])
        for entry, last_seen in open_cases:
            killed = (wish := self._kills.wishes.get(entry.id)) is not None and wish.delivered
            evidence = Evidence(last_seen, own.get(entry.id), writes)
            readable = entry.id not in unreadable
            over = tracker.conclude(entry, evidence, now, readable=readable, killed=killed)
            if over is not None:
                self._kills.done(entry.id)
                sight.out.append(over)
            elif last_seen is not None:  # it is over, and only its last words are waited for
                self._driver.look_within(OPEN_S)
        await self._look_for_lingering(sight, now)

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
        found, _ = await self.read_words([entry.known for entry in some])
        for entry in some:
            if entry.id in found:
                over = self._tracker.lingers(entry, found[entry.id], now)
                if over is not None:
                    self._kills.done(entry.id)
                    sight.out.append(over)
                    await self._driver.end([entry.native or ""])

    async def _history(self, entries: list[Entry], now: float) -> dict[str, Seen]:
        """What the history knows of allocations: of so many per cycle, those first that have waited longest."""
        settings = self._settings
        due = [entry for entry in entries if entry.native is not None and self._may_ask(entry, now)]
        due.sort(key=lambda entry: entry.asked or 0.0)
        found: dict[str, Seen] = {}
        answers: dict[Command, tuple[bool, dict[str, Seen]]] = {}  # one that tells of a whole array is sent once
        for part in chunks(due, self._driver.dialect.chunk):
            natives = [entry.native for entry in part if entry.native and not entry.native.startswith(LOST)]
            asked = self._driver.dialect.history(natives) if natives else ()
            new = [command for command in asked if command not in answers]
            if answers and len(answers) + len(new) > settings.history_commands:
                self._driver.hurry()
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
        if killed and (entry.asks or getattr(self._driver.dialect, "forgets_waiting", False)):
            pause = min(settings.poll_s, 4.0 ** min(entry.asks + 1, 10))
            return entry.misses >= settings.gone_polls - 1 and since >= pause
        return since >= min(settings.poll_s, 2.0 ** min(entry.asks, 10))

    async def _ask_history(self, command: Command) -> tuple[bool, dict[str, Seen]]:
        """Whether silence of the history means something, and its rows. A site that keeps no history is silent."""
        answer = await self._driver.ask(command)
        if answer.code is None:
            return False, {}
        unread = Listing((), "transient", "it cannot be read")
        piece, whole = await self._driver.read(
            partial(self._driver.dialect.read_history, answer, self._driver.options), unread, answer
        )
        rows = {seen.native_id: seen for seen in piece.seen}
        if piece.result not in ("ok", "not-found", "fatal") or answer.cut or not whole:
            self._driver.gate.doubt(command, piece.detail or answer.stderr)
            return False, rows
        return True, rows

    async def read_words(self, known: Sequence[Known]) -> tuple[Mapping[str, Outcome], set[str]]:
        """The last words of allocations, and the ids of those whose words cannot be read."""
        if self._last_words is None or not known:
            return {}, set()
        try:
            return await self._last_words(known), set()
        except (OSError, UnreachableError, ValueError) as error:
            words = f"the last words of jobs cannot be read: {error}"
            log.warning("site %s: %s", self._driver.site, words)
            self._driver.gate.note(words)
            if isinstance(error, UnreadableError):
                return error.found, error.ids
            return {}, {each.id for each in known}
