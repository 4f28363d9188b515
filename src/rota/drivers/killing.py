"""Ending allocations: many kills in one command, stronger each time, until the cluster shows that they are gone."""

import asyncio
import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, TypeVar

from rota.drivers.api import Observation, Outcome
from rota.drivers.dialect import Class, Seen
from rota.drivers.gate import Times
from rota.drivers.kills import Kills, Wish
from rota.drivers.outcome import Verdict
from rota.drivers.settings import Settings
from rota.drivers.tracking import LOST, Entry, Tracker

if TYPE_CHECKING:
    from rota.drivers.command import CommandDriver

__all__ = ["Ender", "chunks"]

log = logging.getLogger("rota")
T = TypeVar("T")

STRAY_S = 60.0
STRAY_TRIES = 10


class Ender:
    """Kills of one site."""

    def __init__(
        self, driver: "CommandDriver", tracker: Tracker, kills: Kills, settings: Settings, times: Times
    ) -> None:
        self._driver = driver
        self._tracker = tracker
        self._kills = kills
        self._settings = settings
        self._times = times
        self._gathering: dict[str, asyncio.Future[bool]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._strays: dict[str, tuple[float, int]] = {}

    async def terminate(self, entry: Entry, now: float) -> bool:
        """Remember that it is to end, and send that with others that are asked for within a moment."""
        wish = self._kills.want(entry.id, now)
        if entry.native is None or wish.sent or wish.failures:
            return wish.delivered
        loop = asyncio.get_running_loop()
        waiting = self._gathering.get(entry.id)
        if waiting is None:
            waiting = self._gathering[entry.id] = loop.create_future()
            if len(self._gathering) == 1:
                task = loop.create_task(self._flush())
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
        return await asyncio.shield(waiting)

    async def _flush(self) -> None:
        await self._times.sleep(self._settings.kill_window_s)
        gathered, self._gathering = self._gathering, {}
        try:
            await self.send(self._times.mono())
        finally:
            for id, future in gathered.items():
                wish = self._kills.wishes.get(id)
                if not future.done():
                    future.set_result(wish is None or wish.delivered)

    async def send(self, now: float) -> list[Observation]:
        """Send what is due: one command for many, as strong as each needs. Says of which ones it despairs."""
        out: list[Observation] = []
        by_force: dict[int, list[tuple[Entry, Wish]]] = {}
        if self._driver.gate.is_shut:
            return out
        for id, wish in self._kills.take_due(now):
            entry = self._tracker.entries.get(id)
            if entry is None or entry.over is not None:
                self._kills.done(id)
            elif entry.native is None or entry.native.startswith(LOST):
                continue
            elif self._kills.is_hopeless(wish, now):
                self._kills.done(id)
                reason = f"the cluster never confirmed that it ended; look after native job {entry.native} by hand"
                log.warning("site %s: allocation %s: %s", self._driver.site, id, reason)
                self._driver.gate.note(f"allocation {id}: {reason}")
                verdict = Verdict("abort", reason, Outcome(why="cancelled"))
                out.append(self._tracker.finish(entry, verdict, now, vanished=True))
            else:
                force = max(wish.force, 1) if entry.said == "pend" else wish.force
                by_force.setdefault(force, []).append((entry, wish))
        for force, group in by_force.items():
            for part in chunks(group, self._driver.dialect.chunk):
                delivered = await self._kill([entry.native or "" for entry, _ in part], force)
                for entry, wish in part:
                    if delivered and not wish.delivered:
                        entry.misses = 0
                    self._kills.went(wish, delivered, self._times.mono())
        if by_force:
            self._driver.hurry()
        return out

    async def _kill(self, natives: list[str], force: int) -> bool:
        command = self._driver.dialect.kill(natives, force)
        answer = await self._driver.ask(command)
        if answer.code is None:
            return False
        unread: tuple[Class, str] = ("transient", "it cannot be read")
        result, detail = self._driver.read(lambda: self._driver.dialect.read_kill(answer), unread)
        if result in ("ok", "partial", "not-found"):
            return True
        self._driver.gate.doubt(command, detail or answer.stderr)
        return False

    async def end_strays(self, seen: list[Seen], now: float) -> None:
        """End what carries our tags and is not ours: a second submission that was not meant, one thought to be over.

        Only what two listings have shown: the answer to a submission may still be on its way.
        """
        if not seen:
            self._strays.clear()
            return
        strays, due = {}, []
        for row in seen:
            last, count = self._strays.get(row.native_id, (None, 0))
            if last is not None and now - last >= (STRAY_S if count else 0) and count < STRAY_TRIES:
                due.append(row.native_id)
                last, count = now, count + 1
                if count == 1:
                    words = f"native job {row.native_id} has the tag {row.tag} and should not be there: it is ended"
                    log.warning("site %s: %s", self._driver.site, words)
                    self._driver.gate.note(words)
            strays[row.native_id] = (now if last is None else last, count)
        self._strays = strays
        for part in chunks(due, self._driver.dialect.chunk):
            await self._kill(part, 1)
        if due or any(not count for _, count in strays.values()):
            self._driver.hurry()

    async def end(self, natives: list[str]) -> None:
        """End native jobs, once and without confirmation."""
        for part in chunks(natives, self._driver.dialect.chunk):
            await self._kill(part, 1)

    async def close(self) -> None:
        """Let what is on its way go out."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=self._settings.timeout_s)


def chunks(items: list[T], size: int) -> Iterable[list[T]]:
    """Pieces of at most that size."""
    for start in range(0, len(items), max(1, size)):
        yield items[start : start + max(1, size)]
