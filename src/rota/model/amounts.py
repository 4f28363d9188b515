"""Sizes, durations and core counts: text to integers and back, exactly.

Inside rota every amount is an integer (millicores, bytes, seconds), so sums never drift. Text that schedulers disagree
on (a bare number, `1:30`) is refused, with the choices. Digits and units are ASCII: a Kelvin sign is not a K.
"""

import re

from rota.model.errors import UsageError

__all__ = [
    "format_cores",
    "format_day",
    "format_duration",
    "format_size",
    "parse_cores",
    "parse_count",
    "parse_duration",
    "parse_size",
]

MAX_BYTES = 1 << 60
MAX_SECONDS = 100 * 366 * 86_400
MAX_MILLICORES = 1_000_000_000
MAX_COUNT = 1_000_000_000

_MOST_DIGITS = 30
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)[ \t]*(?:([KMGTPE])(i?B?)|(B?))", re.IGNORECASE | re.ASCII)
_SIZE_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40, "P": 1 << 50, "E": 1 << 60}


def _short(text: str) -> str:
    """Text that was not understood, short enough for a message."""
    return text if len(text) <= 40 else f"{text[:40]}…"


def parse_size(text: str) -> int:
    """Bytes from `4G`, `500M`, `1.5T`, `64KiB`, `0`. Units are binary, as batch systems mean them."""
    match = _SIZE.fullmatch(text.strip())
    if match is None or len(match[1]) > _MOST_DIGITS:
        raise UsageError(f"'{_short(text)}' is not a size: write a number and a unit, as in 500M or 4G")
    number, unit = match[1], (match[2] or "").upper()
    if not unit and not match[4] and number.strip("0."):
        in_bytes = "" if "." in number else f" or {number}B for bytes"
        raise UsageError(f"'{text}' has no unit: write {number}M for MiB, {number}G for GiB{in_bytes}")
    whole, _, fraction = number.partition(".")
    scale: int = _SIZE_UNITS[unit]
    value = int(whole) * scale + (int(fraction) * scale // 10 ** len(fraction) if fraction else 0)
    if value > MAX_BYTES:
        raise UsageError(f"'{text}' is more than {format_size(MAX_BYTES)}")
    return value


def format_size(count: int) -> str:
    """The shortest exact text: `parse_size(format_size(n)) == n`."""
    for unit in "EPTGMK":
        scale = _SIZE_UNITS[unit]
        if count >= scale and count % scale == 0:
            return f"{count // scale}{unit}"
    return f"{count}B" if count else "0"


def show_size(count: int) -> str:
    """Text for people: `1.95G`, `15.6G`. Rounded down, so that what is less does not look the same; but for a byte."""
    for unit in "EPTGM":
        scale = _SIZE_UNITS[unit]
        if count % scale == 0 and scale <= count < 10_000 * scale:
            return f"{count // scale}{unit}"
    for unit in "EPTGMK":
        scale = _SIZE_UNITS[unit]
        if count >= scale:
            places = 100 if count < 10 * scale else 10 if count < 100 * scale else 1
            return f"{(count + 1) * places // scale / places:g}{unit}"
    return f"{count}B" if count else "0"


_PARTS = re.compile(r"(?:([0-9]+)w)?(?:([0-9]+)d)?(?:([0-9]+)h)?(?:([0-9]+)m)?(?:([0-9]+)s)?", re.IGNORECASE | re.ASCII)
_CLOCK = re.compile(r"(?:([0-9]+)-)?([0-9]+):([0-9]{2}):([0-9]{2})")
_COUNTS = re.compile(r"([0-9]{1,9})?(\.\.([0-9]{1,9})?)?", re.ASCII)
_TWO_WAYS = re.compile(r"([0-9]+):([0-5][0-9])")


def parse_duration(text: str) -> int:
    """Seconds from `90m`, `1h30m`, `2d`, `HH:MM:SS` or `D-HH:MM:SS`."""
    word = text.strip()
    if len(word) > _MOST_DIGITS:
        raise UsageError(f"'{_short(text)}' is not a duration: write 90m, 1h30m, 2d, HH:MM:SS or D-HH:MM:SS")
    clock = _CLOCK.fullmatch(word)
    parts = _PARTS.fullmatch(word)
    if clock is not None:
        days, hours, minutes, seconds = (int(part or 0) for part in clock.groups())
        if minutes > 59 or seconds > 59:
            raise UsageError(f"'{text}': minutes and seconds go up to 59 in HH:MM:SS")
        value = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    elif word and parts is not None:
        weeks, days, hours, minutes, seconds = (int(part or 0) for part in parts.groups())
        value = (((weeks * 7 + days) * 24 + hours) * 60 + minutes) * 60 + seconds
    elif word.isascii() and word.isdigit():
        raise UsageError(f"'{text}' has no unit (schedulers disagree on it): write {word}s, {word}m or {word}h")
    elif two := _TWO_WAYS.fullmatch(word):
        hours, minutes = divmod(int(two[1]), 60)
        raise UsageError(
            f"'{text}' can be read two ways: write {word}:00 for hours and minutes, "
            f"{hours}:{minutes:02}:{two[2]} for minutes and seconds"
        )
    else:
        raise UsageError(f"'{text}' is not a duration: write 90m, 1h30m, 2d, HH:MM:SS or D-HH:MM:SS")
    if value > MAX_SECONDS:
        raise UsageError(f"'{text}' is more than a hundred years")
    return value


def format_duration(seconds: int) -> str:
    """The shortest exact text: `parse_duration(format_duration(n)) == n`."""
    if seconds <= 0:
        return "0s"
    out, rest = [], seconds
    for unit, scale in (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1)):
        count, rest = divmod(rest, scale)
        if count:
            out.append(f"{count}{unit}")
    return "".join(out)


def parse_cores(text: str) -> tuple[int, int]:
    """Millicores (least, most) from `4`, `0.5` or a range `2..8`; `2..` has no upper end, `..8` begins with 1."""
    least_text, dots, most_text = text.strip().partition("..")
    if dots and not (least_text or most_text):
        least_text = ".."
    least = _millicores(least_text, text) if least_text or not dots else 1000
    most = least if not dots else _millicores(most_text, text) if most_text else MAX_MILLICORES
    if most < least:
        raise UsageError(f"'{text}': the range of cores ends below where it begins")
    return least, most


def _millicores(word: str, whole: str) -> int:
    if len(word) > _MOST_DIGITS or not re.fullmatch(r"[0-9]+(\.[0-9]{1,3})?", word):
        raise UsageError(f"'{_short(whole)}' is not a number of cores: write 4, 0.5 or a range as in 2..8")
    units, _, fraction = word.partition(".")
    value = int(units) * 1000 + int((fraction + "000")[:3])
    if value > MAX_MILLICORES:
        raise UsageError(f"'{whole}' is more than a million cores")
    return value


def format_cores(least: int, most: int | None = None) -> str:
    """`4`, `0.5` or `2..8`; `2..` if there is no upper end."""
    text = f"{least // 1000}" if least % 1000 == 0 else f"{least / 1000:.3f}".rstrip("0")
    if most == MAX_MILLICORES != least:
        return f"{text}.."
    return text if most is None or most == least else f"{text}..{format_cores(most)}"


def parse_count(text: str, what: str) -> tuple[int, int]:
    """(least, most) of `4` or a range `2..8`; `2..` has no upper end, `..8` begins with 1."""
    match = _COUNTS.fullmatch(text.strip())
    if match is None or not (match[1] or match[3]):
        raise UsageError(f"'{_short(text)}' is not a number of {what}: write 4, or a range as in 2..8, 2.. or ..8")
    least = int(match[1] or 1)
    most = least if match[2] is None else int(match[3]) if match[3] else MAX_COUNT
    if most < least:
        raise UsageError(f"'{text}': the range of {what} ends below where it begins")
    return least, most


def format_day(wall: float) -> str:
    """The day (UTC) of a time, as `2030-01-31`. By hand: the pure packages have no clock, and `datetime` has one."""
    days = int(wall // 86_400) + 719_468  # since the first of March of the year 0
    era, day = divmod(days, 146_097)
    year = (day - day // 1_460 + day // 36_524 - day // 146_096) // 365
    day -= 365 * year + year // 4 - year // 100
    month = (5 * day + 2) // 153
    day = day - (153 * month + 2) // 5 + 1
    return f"{year + 400 * era + (month >= 10):04d}-{month + 3 if month < 10 else month - 9:02d}-{day:02d}"
