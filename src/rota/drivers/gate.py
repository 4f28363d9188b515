"""The one way to a site's commands: counted, limited, and shut for a while when nothing works."""

import asyncio
import shlex
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

from msgspec import Struct

from rota.drivers.dialect import Answer, Command
from rota.drivers.settings import Settings
from rota.drivers.transport import Transport, UnreachableError
from rota.model.errors import BusyError

__all__ = ["Gate", "Health", "Times", "shown", "tail"]

MINUTE_S = 60.0
SILENT_S = 10.0
"""Commands that take longer are shown."""
DOUBT_S = 300.0
"""How long it is said that an answer was not all that was asked for, though others are good."""


class Health(Struct, frozen=True):
    """How a site is doing, for people."""

    state: str
    """new, ok, silent (a command has not answered for some time), failing (the last one failed), or needs login."""
    why: str | None = None
    """Of a state that is not ok: the command, and what it said."""
    since: float | None = None
    """Wall-clock time of the first of the commands that failed in a row."""
    retry_at: float | None = None
    """Wall-clock time at which a site that fails is tried again."""
    last_poll: float | None = None
    """Wall-clock time of the last listing that was good."""
    last_error: str | None = None
    """The last command that failed, and what it said; none once the site is well again."""
    last_error_at: float | None = None
    """Wall-clock time of that."""
    failures: int = 0
    """Commands that failed in a row."""
    commands_last_minute: int = 0
    commands_per_minute: int = 0
    """The most commands that are sent in a minute."""
    commands: int = 0
    """Commands sent in all."""
    programs: dict[str, str | None] = {}
    version: str | None = None
    where: str = ""
    notes: tuple[str, ...] = ()
    """Other things that somebody should know, newest last."""


class Times(Struct, frozen=True):
    """Clocks, sleep, chance and a thread, so that a test can have its own."""

    mono: Callable[[], float]
    wall: Callable[[], float]
    sleep: Callable[[float], Awaitable[None]]
    chance: Callable[[], float]
    """From 0 to 1."""
    aside: Callable[[Callable[[], Any]], Awaitable[Any]] = asyncio.to_thread
    """Does what takes long beside the loop."""

    def jittered(self, seconds: float) -> float:
        """Up to a tenth more or less, so that sites and managers do not fall into step."""
        return seconds * (0.9 + 0.2 * self.chance())


class Gate:
    """Runs commands over a transport, and keeps the site's health."""

    def __init__(self, site: str, transport: Transport, settings: Settings, times: Times) -> None:
        self.site = site
        self._transport = transport
        self._settings = settings
        self._times = times
        self._sent: deque[float] = deque()
        self._count = 0
        self.programs: dict[str, str | None] = {}
        self.version: str | None = None
        self._under_way: dict[int, tuple[Command, float]] = {}
        """Commands that have not answered yet, and when they were sent."""
        self._failures = 0
        self._shut_until: float | None = None
        self._shuts = 0
        self._login = False
        self._why: str | None = None
        self._since: float | None = None
        self._last_error: str | None = None
        self._last_error_at = 0.0
        self.last_poll: float | None = None
        self._notes: deque[str] = deque(maxlen=20)

    @property
    def is_shut(self) -> bool:
        """Whether no commands are sent: after too many failures, for a while."""
        return self._shut_until is not None and self._times.mono() < self._shut_until

    @property
    def reopens_in(self) -> float:
        """Seconds until a shut gate may be tried."""
        return 0.0 if self._shut_until is None else max(0.0, self._shut_until - self._times.mono())

    @property
    def why(self) -> str:
        """What is wrong with the site."""
        return self._why or "nothing is known to be wrong"

    async def run(self, command: Command, timeout_s: float) -> Answer:
        """Send a command, as soon as the site's limit allows. Raises UnreachableError; the caller judges the answer."""
        await self.turn()
        return await self.send(command, timeout_s)

    async def send(self, command: Command, timeout_s: float) -> Answer:
        """Send a command now; `turn` was waited for."""
        self._count += 1
        path = self.programs.get(command.argv[0]) or command.argv[0]
        number = self._count
        self._under_way[number] = (command, self._times.mono())
        try:
            return await self._transport.run((path, *command.argv[1:]), command.stdin, timeout_s)
        finally:
            del self._under_way[number]

    async def turn(self) -> None:
        """Wait until one more command is within the site's limit."""
        sent, most = self._sent, self._settings.commands_per_minute
        while True:
            now = self._times.mono()
            while sent and sent[0] <= now - MINUTE_S:
                sent.popleft()
            if len(sent) < most:
                sent.append(now)
                return
            await self._times.sleep(sent[0] + MINUTE_S - now + 0.01)

    def good(self) -> None:
        """Note that the site answered sensibly: whatever was wrong is over."""
        if self._failures:
            self._last_error = None
        self._failures = self._shuts = 0
        self._shut_until = self._why = self._since = None
        self._login = False

    def bad(self, command: Command, words: str, error: UnreachableError | None = None) -> None:
        """Note that a command failed. The fifth in a row shuts the gate, and the first after it opened for a try."""
        self._failures += 1
        self.doubt(command, words)
        self._why = self._last_error
        self._since = self._since or self._last_error_at
        self._login = error is not None and error.login
        settings = self._settings
        if self._failures >= settings.breaker_failures:
            wait = min(settings.breaker_most_s, settings.breaker_first_s * 2.0 ** min(self._shuts, 20))
            self._shuts += 1
            self._shut_until = self._times.mono() + self._times.jittered(wait)

    def doubt(self, command: Command, words: str) -> None:
        """Note that the site answered, but not with all that was asked for."""
        self._last_error, self._last_error_at = f"{shown(command)}: {tail(words)}", self._times.wall()

    def note(self, words: str) -> None:
        """Keep a remark for people."""
        if words in self._notes:  # said again, it is new again
            self._notes.remove(words)
        self._notes.append(words)

    def missing(self) -> BusyError | None:
        """An error if programs are not there."""
        lacking = sorted(name for name, path in self.programs.items() if path is None)
        if not lacking:
            return None
        return BusyError(
            f"site {self.site}: {', '.join(lacking)} cannot be found on {self._transport.name}: install the batch "
            "system's client programs there, or put their directory on the PATH that rota is started with"
        )

    def health(self) -> Health:
        """How the site is doing now."""
        now, wall = self._times.mono(), self._times.wall()
        state = "ok" if self.last_poll is not None or self._count else "new"
        absent = self.missing()
        if self._login:
            state = "needs login"
        elif self._failures or absent:
            state = "failing"
        why, since = self._why, self._since
        if state in ("ok", "new") and (silent := self._silent(now)) is not None:
            state, (command, began) = "silent", silent
            why, since = f"{shown(command)}: no answer yet", wall - (now - began)
        if not self._failures and wall - self._last_error_at > DOUBT_S:
            self._last_error = None
        return Health(
            state,
            why or (str(absent) if absent else None),
            since,
            None if self._shut_until is None else wall + self._shut_until - now,
            self.last_poll,
            self._last_error,
            None if self._last_error is None else self._last_error_at,
            self._failures,
            sum(1 for at in self._sent if at > now - MINUTE_S),
            self._settings.commands_per_minute,
            self._count,
            dict(self.programs),
            self.version,
            self._transport.name,
            tuple(self._notes),
        )

    def _silent(self, now: float) -> tuple[Command, float] | None:
        """The command that has not answered for longest, if that is long, and when it was sent."""
        oldest = min(self._under_way.values(), key=lambda each: each[1], default=None)
        return oldest if oldest is not None and now - oldest[1] > SILENT_S else None


def shown(command: Command) -> str:
    """A command as a person would type it, not longer than a few lines."""
    text = shlex.join(command.argv)
    return text if len(text) <= 500 else text[:240] + " … " + text[-240:]


def tail(words: str, most: int = 500) -> str:
    """The end of what a program said."""
    words = words.strip()
    return words if len(words) <= most else "…" + words[-most:]
