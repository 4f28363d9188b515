"""Limits as people write them: how many at once, how many starts per time, and at which times.

    irods             a name: whatever is set for it
    irods:10          at most ten at once
    api:100/min       at most a hundred started in any minute (also /s, /h, /d)
    night:22:00-06:00 starts only in these hours of the manager's local time; over midnight means what it says
    api:5,100/min,08:00-18:00       all of these together

Dates: `fair:2026-12-24 18:00..2026-12-27`, either end may be left out. And a window may stand for itself, without a
name: `22:00:00<time<06:00:00`, `time<17:00:00`, `datetime<2026-12-24 18:00:00`.
"""

import re
from collections.abc import Iterable
from functools import lru_cache

from msgspec import Struct

from rota.model.errors import UsageError

__all__ = ["Rule", "Window", "limit_name", "limit_settings", "parse_limit", "parse_rule", "parse_window"]

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")
DAY_S = 86_400
_PERIODS = {1: ("s", "sec", "second"), 60: ("min", "m", "minute"), 3600: ("h", "hour"), DAY_S: ("d", "day")}
_PER_S = {word: seconds for seconds, words in _PERIODS.items() for word in words}
_PER_WORDS = {1: "second", 60: "minute", 3600: "hour", DAY_S: "day"}
_COUNT = re.compile(r"[0-9]{1,18}")
_RATE = re.compile(r"(?P<count>[0-9]{1,9})\s*/\s*(?P<per>[A-Za-z0-9]+)")
_CLOCK = r"[0-9]{1,2}:[0-9]{2}(?::[0-9]{2})?"
_DATE = r"[0-9]{4}-[0-9]{2}-[0-9]{2}(?:[ T][0-9]{1,2}:[0-9]{2}(?::[0-9]{2})?)?"
_HOURS = re.compile(rf"(?P<low>{_CLOCK})\s*(?:-|\.\.)\s*(?P<high>{_CLOCK})")
_DATES = re.compile(rf"(?P<low>{_DATE})?\s*\.\.\s*(?P<high>{_DATE})?")
_BOUND = r"[0-9][0-9:T -]*[0-9]"
_COMPARED = re.compile(
    rf"(?:(?P<low>{_BOUND})\s*<\s*)?(?P<kind>time|datetime)(?:\s*<\s*(?P<high>{_BOUND}))?", re.IGNORECASE
)
_MONTH_DAYS = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


class Window(Struct, frozen=True):
    """When jobs may start, in local time. Bounds are seconds of the day, or (`dated`) since 1970 by the local clock."""

    dated: bool
    low: int | None
    high: int | None

    def is_open(self, local: float) -> bool:
        """True if jobs may start at this local time, seconds since 1970 by the clock on the wall."""
        now = local if self.dated else local % DAY_S
        after = self.low is None or now >= self.low
        before = self.high is None or now < self.high
        if not self.dated and self.low is not None and self.high is not None and self.low > self.high:
            return after or before  # over midnight
        return after and before

    def opens(self, local: float) -> float | None:
        """The local time at which a closed window opens next; None: never."""
        if self.dated:
            return self.low if self.low is not None and local < self.low and not self.never(local) else None
        start = local // DAY_S * DAY_S + (self.low or 0)
        return start if start > local else start + DAY_S

    def never(self, local: float) -> bool:
        """True if the window is closed from this local time on for ever."""
        if not self.dated:
            return self.low is not None and self.low == self.high
        empty = self.low is not None and self.high is not None and self.low >= self.high
        return empty or (self.high is not None and local >= self.high)

    @property
    def name(self) -> str:
        """Its text as a comparison: also the name of a window that stands for itself."""
        low, high = (None if bound is None else _bound_text(bound, self.dated) for bound in (self.low, self.high))
        return f"{low + '<' if low else ''}{'datetime' if self.dated else 'time'}{'<' + high if high else ''}"

    @property
    def words(self) -> str:
        """Its text for people: `22:00-06:00`, `2026-12-24 18:00..`."""
        low, high = ("" if bound is None else _short(_bound_text(bound, self.dated)) for bound in (self.low, self.high))
        if self.dated:
            return f"{low}..{high}"
        return f"{low or '00:00'}-{high or '24:00'}"


def _bound_text(bound: int, dated: bool) -> str:
    return local_text(bound) if dated else _clock_text(bound)


def _clock_text(second: int) -> str:
    return f"{second // 3600:02}:{second // 60 % 60:02}:{second % 60:02}"


def local_text(local: int) -> str:
    """`YYYY-MM-DD HH:MM:SS` of seconds since 1970 by the local clock. (No library that could read the clock.)"""
    days, second = divmod(local, DAY_S)
    year = 1970 + days // 366
    while _days_before(year + 1) <= days:
        year += 1
    days -= _days_before(year)
    for month in range(1, 13):
        length = _month_days(year, month)
        if days < length:
            break
        days -= length
    return f"{year:04}-{month:02}-{days + 1:02} {_clock_text(second)}"


def _days_before(year: int) -> int:
    """Days from 1970 to the year's first."""
    past = year - 1
    return past * 365 + past // 4 - past // 100 + past // 400 - 719_162


def _month_days(year: int, month: int) -> int:
    leap = month == 2 and year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    return _MONTH_DAYS[month - 1] + leap


def _short(text: str) -> str:
    return text.removesuffix(":00") if text.count(":") == 2 else text


class Rule(Struct, frozen=True):
    """What a limit says: `count` jobs at once, `rate` starts per `per_s` seconds, a window; each may be missing."""

    count: int | None = None
    rate: int | None = None
    per_s: int = 0
    window: Window | None = None

    @property
    def rate_text(self) -> str | None:
        """The rate as it is written, as in `100/min`."""
        return None if self.rate is None else f"{self.rate}/{_PERIODS[self.per_s][0]}"


def rate_words(rate: int, per_s: int) -> str:
    """A rate in words, as in `100 per minute`."""
    return f"{rate} per {_PER_WORDS[per_s]}"


def parse_limit(text: str) -> tuple[str, Rule | None]:
    """(name, rule) of a limit as written after `--limit`; the rule is None for a name, or a window, alone."""
    word = text.strip()
    name, colon, rest = word.partition(":")
    if NAME.fullmatch(name.strip()) and "<" not in name:
        return name.strip(), parse_rule(name.strip(), rest) if colon else None
    if "<" in word:
        return parse_window(word, f"limit '{text}'").name, None
    raise UsageError(
        f"limit '{text}': write a name (irods), a count (irods:10), a rate (api:100/min) or hours (night:22:00-06:00); "
        "a name has letters, digits, '_', '.', '-' and begins with a letter or '_'"
    )


def limit_name(text: str) -> str:
    """The name in a limit as written after `--limit`."""
    return parse_limit(text)[0]


def limit_settings(limits: Iterable[str], *, all_set: bool = False) -> dict[str, int | str]:
    """Limits that are to be set, as the protocol has them: name → a count or a text; `all_set`: refuse a name alone."""
    out: dict[str, int | str] = {}
    for text in limits:
        name, rule = parse_limit(text)
        if rule is None:
            if all_set:
                like = name if "<" not in name else "NAME"
                raise UsageError(f"limit '{text}': what is it to be? {like}:10, {like}:100/min or {like}:8:00-18:00")
            continue
        word = text.partition(":")[2].strip()
        setting = int(word) if _COUNT.fullmatch(word) else word
        if out.setdefault(name, setting) != setting:
            raise UsageError(
                f"limit '{name}' is given as {out[name]} and as {setting}: say it once; what is to hold together is "
                "joined by commas"
            )
    return out


def parse_rule(name: str, text: str) -> Rule:
    """The rule that is written after the colon of a limit."""
    what = f"limit '{name}:{text}'"
    count: int | None = None
    rate: int | None = None
    per_s = 0
    window: Window | None = None
    for part in (part.strip() for part in text.split(",")):
        taken: object = None
        if _COUNT.fullmatch(part):
            taken, count = count, int(part)
        elif "/" in part:
            taken = rate
            rate, per_s = _rate(part, name, what)
        elif "<" in part or ".." in part or ":" in part:
            taken, window = window, parse_window(part, what)
        elif part.startswith("-") and part[1:].isdigit():
            raise UsageError(f"{what}: give 0 or more (rota limit --remove {name} takes a limit away)")
        else:
            raise UsageError(
                f"{what}: '{part}' is none of a count ({name}:10), a rate ({name}:100/min), hours ({name}:22:00-06:00) "
                f"or dates ({name}:2026-12-24..2026-12-27)"
            )
        if taken is not None:
            raise UsageError(f"{what}: '{part}' is given besides another of its kind; one of each will do")
    return Rule(count, rate, per_s, window)


def _rate(part: str, name: str, what: str) -> tuple[int, int]:
    match = _RATE.fullmatch(part)
    if match is None or match["per"].lower() not in _PER_S:
        raise UsageError(f"{what}: a rate is a number per s, min, h or d, as in {name}:100/min")
    if int(match["count"]) == 0:
        raise UsageError(f"{what}: a rate of 0 lets nothing start, ever; {name}:0 stops jobs until you raise it")
    return int(match["count"]), _PER_S[match["per"].lower()]


@lru_cache(1024)
def parse_window(text: str, what: str = "") -> Window:
    """A window from text: hours, dates, or a comparison."""
    what = what or f"limit '{text}'"
    word = text.strip()
    dated = False
    match = _HOURS.fullmatch(word)
    if match is None:
        match = _DATES.fullmatch(word)
        dated = match is not None
    if match is None:
        match = _COMPARED.fullmatch(word)
        dated = match is not None and match["kind"].lower() == "datetime"
    if match is None or (match["low"] is None and match["high"] is None):
        raise UsageError(
            f"{what}: '{word}' is no window: write hours 22:00-06:00, dates 2026-12-24 18:00..2026-12-27, "
            "or 22:00:00<time<06:00:00, datetime<2026-12-24 18:00:00"
        )
    low, high = (None if bound is None else _moment(bound, dated, what) for bound in (match["low"], match["high"]))
    if not dated:
        low, high = 0 if low == DAY_S else low, None if high == DAY_S else high
    if low is None and high is None:
        low = 0  # 00:00-24:00, always
    window = Window(dated, low, high)
    if window.never(float("-inf") if dated else 0.0) or (high == 0 and low is None):
        why = "it ends before it begins" if low is not None and high is not None and low > high else "it is empty"
        raise UsageError(f"{what}: this window can never open: {why}")
    return window


def _moment(text: str, dated: bool, what: str) -> int:
    word = text.strip()
    if not re.fullmatch(_DATE if dated else _CLOCK, word):
        like = "YYYY-MM-DD HH:MM:SS" if dated else "HH:MM:SS"
        raise UsageError(f"{what}: '{word}' is not a {'date' if dated else 'time of day'}: write {like}")
    date, _, clock = word.replace("T", " ").partition(" ") if dated else ("", "", word)
    hours, minutes, seconds = ([int(part) for part in clock.split(":")] + [0, 0])[:3] if clock else (0, 0, 0)
    of_day = hours * 3600 + minutes * 60 + seconds
    if minutes > 59 or seconds > 59 or of_day > (DAY_S - 1 if dated else DAY_S):
        raise UsageError(f"{what}: '{clock}' is not a time of day: write HH:MM or HH:MM:SS from 00:00 to 24:00")
    if not dated:
        return of_day
    year, month, day = (int(part) for part in date.split("-"))
    if year < 1970 or not 1 <= month <= 12 or not 1 <= day <= _month_days(year, month):
        raise UsageError(f"{what}: there is no date '{date}' after 1970: write YYYY-MM-DD")
    days = _days_before(year) + sum(_month_days(year, before) for before in range(1, month)) + day - 1
    return days * DAY_S + of_day
