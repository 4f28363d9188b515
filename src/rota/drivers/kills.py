"""Kills that were asked for and are not confirmed: what to send next, and when to stop. No I/O, no clock."""

from rota.drivers.settings import Settings

__all__ = ["Kills", "Wish"]

FORCE_MOST = 2


class Wish:
    """One allocation that is to end."""

    __slots__ = ("delivered", "due", "failures", "first", "force", "sent")

    def __init__(self, due: float) -> None:
        self.due = due
        self.sent = 0
        """Times that the cluster took the message."""
        self.first: float | None = None
        """When it first did."""
        self.failures = 0
        self.force = 0
        self.delivered = False


class Kills:
    """All of one site. TERM, the native kill, the last means: each only if the one before did not do."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.wishes: dict[str, Wish] = {}
        self._due = float("inf")

    def want(self, id: str, now: float) -> Wish:
        """It is to end. Asked again, nothing changes."""
        wish = self.wishes.get(id)
        if wish is None:
            wish = self.wishes[id] = Wish(now + self._settings.kill_window_s / 2)
            self._due = min(self._due, wish.due)
        return wish

    def hasten(self, id: str, now: float) -> None:
        """If it is to end, it can now be told."""
        wish = self.wishes.get(id)
        if wish is not None:
            wish.due = min(wish.due, now)
            self._due = min(self._due, now)

    def done(self, id: str) -> None:
        """It has ended."""
        self.wishes.pop(id, None)

    def any_due(self, now: float) -> bool:
        """Whether there is something to send; cheap."""
        return bool(self.wishes) and now >= self._due

    def take_due(self, now: float) -> list[tuple[str, Wish]]:
        """Those whose time has come."""
        due = [(id, wish) for id, wish in self.wishes.items() if wish.due <= now]
        for _, wish in due:
            wish.due = now + self._settings.kill_grace_s  # in case that nobody says how it went
        self._due = min((wish.due for wish in self.wishes.values()), default=float("inf"))
        return due

    def is_hopeless(self, wish: Wish, now: float) -> bool:
        """The cluster took the message often enough, or long ago, and it is still there.

        What could not be delivered does not count: a cluster that cannot be reached has not refused to end anything.
        """
        if wish.first is None:
            return False
        return wish.sent >= self._settings.kill_tries or now - wish.first >= self._settings.kill_most_s

    def went(self, wish: Wish, delivered: bool, now: float) -> None:
        """A message was sent."""
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
