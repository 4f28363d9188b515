"""Killing allocations: many in one command, stronger each time, until the cluster shows that they are gone."""

import asyncio
import logging
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, TypeVar

from rota.drivers.api import Observation, Outcome
from rota.drivers.dialect import Class, Seen
from rota.drivers.gate import Times
from rota.drivers.outcome import Verdict
from rota.drivers.settings import Settings
from rota.drivers.tracking import LOST, WAITS, Entry, Tracker

if TYPE_CHECKING:
    from rota.drivers.command import CommandDriver

__all__ = ["Killer", "Kills", "Wish", "chunks"]

log = logging.getLogger("rota")
T = TypeVar("T")

FORCE_MOST = 2
STRAY_S = 60.0
STRAY_TRIES = 10


class Wish:
    """The wish that one allocation ends, and what was done about it."""

    __slots__ = ("delivered", "due", "failures", "first", "force", "sent")

    def __init__(self, due: float) -> None:
        self.due = due
        self.sent = 0
        """Times that the cluster took the message."""
        self.first: float | None = None
        """When the cluster first took one."""
        self.failures = 0
        self.force = 0
        self.delivered = False


class Kills:
    """Kills of one site that are not confirmed: what to send next, and when to stop. No I/O, no clock.

    TERM, the native kill, the last means: each only if the one before did not do.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.wishes: dict[str, Wish] = {}
        self._due = float("inf")

    def want(self, id: str, now: float) -> Wish:
        """Wish that an allocation ends. Wished again, nothing changes."""
        wish = self.wishes.get(id)
        if wish is None:
            wish = self.wishes[id] = Wish(now + self._settings.kill_window_s / 2)
            self._due = min(self._due, wish.due)
        return wish

    def hasten(self, id: str, now: float) -> None:
        """Send the kill of an allocation now, if there is a wish for it: its native id has become known."""
        wish = self.wishes.get(id)
        if wish is not None:
            wish.due = min(wish.due, now)
            self._due = min(self._due, now)

    def done(self, id: str) -> None:
        """Drop the wish: the allocation has ended, or there is no hope."""
        self.wishes.pop(id, None)

    def any_due(self, now: float) -> bool:
        """Whether there is something to send; cheap."""
        return bool(self.wishes) and now >= self._due

    def take_due(self, now: float) -> list[tuple[str, Wish]]:
        """The wishes whose next message is due, by allocation."""
        due = [(id, wish) for id, wish in self.wishes.items() if wish.due <= now]
        for _, wish in due:
            wish.due = now + self._settings.kill_grace_s  # in case that nobody says how it went
        self._due = min((wish.due for wish in self.wishes.values()), default=float("inf"))
        return due

    def is_hopeless(self, wish: Wish, now: float) -> bool:
        """Whether the cluster took the message often enough, or long ago, and the allocation is still there.

        What could not be delivered does not count: a cluster that cannot be reached has not refused to end anything.
        """
        if wish.first is None:
            return False
        return wish.sent >= self._settings.kill_tries or now - wish.first >= self._settings.kill_most_s

    def went(self, wish: Wish, delivered: bool, now: float) -> None:
        """Note that a message was sent, and whether the cluster took it; sets when the next one is due."""
        settings = self._settings
        wish.delivered = wish.delivered or delivered
        if delivered:
            wish.first = now if wish.first is None else wish.first
            wish.sent += 1
            wish.failures = 0
            wish.force = min(FORCE_MOST, wish.force + 1)
            wish.due = now + settings.kill_grace_s * min(2, wish.sent)
        else:
            wish.failures += 1
            wish.due = now + min(settings.retry_most_s, settings.retry_first_s * 2.0 ** min(wish.failures - 1, 10))
        self._due = min(self._due, wish.due)


class Killer:
    """Sends the kills of one site."""

    def __init__(
        self, driver: "CommandDriver", tracker: Tracker, kills: Kills, settings: Settings, times: Times
    ) -> None:
        self._driver = driver
        self._tracker = tracker
        self._kills = kills
        self._settings = settings
        self._times = times
        self._chunk: int = getattr(driver.dialect, "kill_chunk", driver.dialect.chunk)
        self._gathering: dict[str, asyncio.Future[bool]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._strays: dict[str, tuple[float, int]] = {}

    async def terminate(self, entry: Entry, now: float) -> bool:
        """Wish that an allocation ends, and send that with other kills that are wished for within a moment."""
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
        """Send the kills that are due, many in one command; returns the end of those that are given up."""
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
            elif wish.delivered and entry.misses and entry.said in WAITS and not self._kills.is_hopeless(wish, now):
                self._driver.hurry()  # it waited, was killed, and is listed no more: look again, but do not tell again
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
            wanted = {entry.native or "": (entry, wish) for entry, wish in group}
            for natives in self._parts(list(wanted), force):
                delivered = await self._kill(natives, force)
                for entry, wish in map(wanted.__getitem__, natives):
                    if delivered and not wish.delivered:
                        entry.misses = 0
                    self._kills.went(wish, delivered, self._times.mono())
        if by_force:
            self._driver.hurry()
        return out

    def _parts(self, natives: list[str], force: int) -> Iterator[list[str]]:
        """What goes into one command each."""
        apart = getattr(self._driver.dialect, "kill_apart", None)
        for group in [natives] if apart is None else apart(natives, force):
            yield from chunks(group, self._chunk)

    async def _kill(self, natives: list[str], force: int) -> bool:
        command = self._driver.dialect.kill(natives, force)
        answer = await self._driver.ask(command)
        if answer.code is None:
            return False
        unread: tuple[Class, str] = ("transient", "it cannot be read")
        (result, detail), _ = await self._driver.read(lambda: self._driver.dialect.read_kill(answer), unread, answer)
        if result in ("ok", "partial", "not-found"):
            return True
        self._driver.gate.doubt(command, detail or answer.stderr)
        return False

    async def end_strays(self, seen: list[Seen], now: float) -> None:
        """End native jobs that carry our tags and are not ours: submitted twice by mistake, or thought to be over.

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
        for part in self._parts(due, 1):
            await self._kill(part, 1)
        if due or any(not count for _, count in strays.values()):
            self._driver.hurry()

    async def end(self, natives: list[str]) -> None:
        """End native jobs, once and without confirmation."""
        for part in self._parts(natives, 1):
            await self._kill(part, 1)

    async def close(self) -> None:
        """Wait for kills that are being sent."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=self._settings.timeout_s)


def chunks(items: list[T], size: int) -> Iterable[list[T]]:
    """The items in pieces of at most this size."""
    for start in range(0, len(items), max(1, size)):
        yield items[start : start + max(1, size)]
