"""Clocks of a simulated world.

True time is the world's `now`; every machine reads it through a clock that may be wrong.
"""

from rota.core.stimuli import At

__all__ = ["JUMPS", "ManagerClock", "RunnerClock"]

EPOCH = 1_760_000_000.0
JUMPS: dict[str, float | None] = {
    "+1s": 1.0,
    "-1s": -1.0,
    "+1h": 3600.0,
    "-1h": -3600.0,
    "+1d": 86400.0,
    "-1d": -86400.0,
    "1970": None,
}


class ManagerClock:
    """The manager's wall clock, which can be set to anything, and its monotonic one: only a reboot starts it anew."""

    def __init__(self) -> None:
        self.wall_offset = EPOCH
        self.mono_offset = 5000.0
        self.utc_offset_s = 0

    def at(self, now: float) -> At:
        """Both clocks at a true time."""
        return At(now + self.wall_offset, now + self.mono_offset, self.utc_offset_s)

    def true_time(self, mono: float) -> float:
        """The true time at which the monotonic clock shows this."""
        return mono - self.mono_offset

    def jump(self, kind: str, now: float) -> None:
        """Somebody sets the wall clock."""
        by = JUMPS[kind]
        self.wall_offset = -now if by is None else self.wall_offset + by

    def correct(self) -> None:
        """Set the wall clock right."""
        self.wall_offset = EPOCH

    def reboot(self, now: float) -> None:
        """The machine started anew: the monotonic clock begins near zero."""
        self.mono_offset = 10.0 - now


class RunnerClock:
    """A node's clocks: its own monotonic origin, and a wall clock that is off by up to an hour."""

    def __init__(self, mono_offset: float, wall_skew: float) -> None:
        self.mono_offset = mono_offset
        self.wall_offset = EPOCH + wall_skew

    def mono(self, now: float) -> float:
        """What time.monotonic() says there."""
        return now + self.mono_offset

    def wall(self, now: float) -> float:
        """What time.time() says there."""
        return now + self.wall_offset
