"""Limits by name: how many at once, how many per time, or at which times.

`irods:10` at most ten at once; `mail:100/min` at most a hundred started per minute; `09:00:00<time<17:00:00` only in
that window (one that crosses midnight means what it says); `datetime<2026-12-24 12:00:00` only before that moment. A
plain name refers to whatever is set for it.
"""

import re
from typing import Literal

from msgspec import Struct

from rota.model.errors import UsageError

__all__ = ["LimitRule", "Window", "parse_limit"]

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")
_COUNT = re.compile(r"(?P<name>[^:/<>\s]+):(?P<count>-?[0-9]+)(?:/(?P<per>[A-Za-z0-9]+))?")
_CLOCK = r"[0-9]{2}:[0-9]{2}:[0-9]{2}"
_DATE = r"[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2}"
_WINDOW = re.compile(
    rf"(?:(?P<low>{_CLOCK}|{_DATE})\s*<\s*)?(?P<kind>time|datetime)(?:\s*<\s*(?P<high>{_CLOCK}|{_DATE}))?"
)
_PERIODS = {
    **dict.fromkeys(("s", "sec", "second"), 1),
    **dict.fromkeys(("m", "min", "minute"), 60),
    **dict.fromkeys(("h", "hour"), 3600),
    **dict.fromkeys(("d", "day"), 86_400),
}
_MONTH_DAYS = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


class LimitRule(Struct, frozen=True):
    """A named limit as it was written: `count` at once, or `count` starts per `per_s` seconds; None: only a name."""

    name: str
    count: int | None = None
    per_s: int | None = None


class Window(Struct, frozen=True):
    """Times at which jobs may start. Its text is its name; its bounds are comparable texts of local time."""

    name: str
    kind: Literal["time", "datetime"]
    low: str | None = None
    high: str | None = None

    def is_open(self, local: str) -> bool:
        """True if jobs may start at this local time, `YYYY-MM-DD HH:MM:SS`."""
        now = local[11:] if self.kind == "time" else local
        after = self.low is None or now >= self.low
        before = self.high is None or now < self.high
        if self.kind == "time" and self.low is not None and self.high is not None and self.low > self.high:
            return after or before  # over midnight
        return after and before

    def never(self, local: str) -> bool:
        """True if it is closed at this local time and will not open again."""
        if self.kind == "time":
            return self.low is not None and self.low == self.high
        return (self.high is not None and local >= self.high) or (
            self.low is not None and self.high is not None and self.low >= self.high
        )


def parse_limit(text: str) -> LimitRule | Window:
    """A limit as written after `--limit`."""
    word = text.strip()
    window = _WINDOW.fullmatch(word)
    if window is not None:
        return _window(window, word)
    match = _COUNT.fullmatch(word)
    if match is not None:
        return _rule(match, text)
    if NAME.fullmatch(word):
        return LimitRule(word)
    raise UsageError(
        f"limit '{text}': write a name (irods), a count (irods:10), a rate (mail:100/min) "
        "or a window (22:00:00<time<06:00:00)"
    )


def _rule(match: re.Match[str], text: str) -> LimitRule:
    name, count, per = match["name"], int(match["count"]), match["per"]
    if not NAME.fullmatch(name):
        raise UsageError(
            f"limit '{text}': the name may have letters, digits, '_', '.', '-' and begins with a letter or '_'"
        )
    if count < 0:
        raise UsageError(f"limit '{text}': give 0 or more (to take a limit away: rota limit --remove {name})")
    if per is None:
        return LimitRule(name, count)
    if per not in _PERIODS:
        raise UsageError(f"limit '{text}': a rate is per s, min, h or day, as in {name}:100/min")
    if count == 0:
        raise UsageError(f"limit '{text}': a rate of 0 lets nothing start; use {name}:0 to stop it")
    return LimitRule(name, count, _PERIODS[per])


def _window(match: re.Match[str], text: str) -> Window:
    kind, low, high = match["kind"], match["low"], match["high"]
    if low is None and high is None:
        bound = "17:00:00" if kind == "time" else "2026-12-24 12:00:00"
        raise UsageError(f"limit '{text}': give a bound, as in {kind}<{bound}")
    for bound in (low, high):
        if bound is None:
            continue
        if (len(bound) == 8) != (kind == "time"):
            form = "HH:MM:SS" if kind == "time" else "YYYY-MM-DD HH:MM:SS"
            raise UsageError(f"limit '{text}': '{kind}' is compared with {form}")
        _check_moment(bound, text)
    rule = Window(_name(kind, low, high), "time" if kind == "time" else "datetime", low, high)
    if low is not None and low == high:
        raise UsageError(f"limit '{text}': this window never opens")
    if kind == "datetime" and low is not None and high is not None and low > high:
        raise UsageError(f"limit '{text}': this window ends before it begins, so it never opens")
    return rule


def _name(kind: str, low: str | None, high: str | None) -> str:
    return f"{low + '<' if low else ''}{kind}{'<' + high if high else ''}"


def _check_moment(bound: str, text: str) -> None:
    hours, minutes, seconds = (int(part) for part in bound[-8:].split(":"))
    if hours > 23 or minutes > 59 or seconds > 59:
        raise UsageError(f"limit '{text}': '{bound[-8:]}' is not a time of day")
    if len(bound) > 8:
        month, day = int(bound[5:7]), int(bound[8:10])
        if not 1 <= month <= 12 or not 1 <= day <= _MONTH_DAYS[month - 1]:
            raise UsageError(f"limit '{text}': '{bound[:10]}' is not a date")
