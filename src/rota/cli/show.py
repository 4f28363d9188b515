"""Printing for all commands: tables, amounts, times, colours. No library: this is on the quickest path."""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any, TextIO

__all__ = [
    "LONG",
    "STATES",
    "Once",
    "Table",
    "clean",
    "count_words",
    "jobs_word",
    "paragraph",
    "print_json",
    "seconds",
    "size",
    "when",
]

STATES = (
    "WAITING", "PENDING", "HOLDING", "STARTING", "RUNNING", "MISSING", "KILLING", "COMPLETED", "FAILED", "ABORTED",
    "OMITTED",
)  # fmt: skip
SETTLED = frozenset(STATES[7:])
LONG = 80
"""Letters of a reason or a note, from which on it is shown once."""
NARROW = 40
"""Columns that a note needs beside a row; with fewer it goes below."""
_COLOURS = {
    "COMPLETED": "32", "FAILED": "31", "ABORTED": "31", "OMITTED": "33", "MISSING": "33", "KILLING": "33",
    "RUNNING": "36", "STARTING": "36", "HOLDING": "35",
}  # fmt: skip
_TURNING = (0x061C, 0x200B, 0x200E, 0x200F, 0x2028, 0x2029, *range(0x202A, 0x202F), *range(0x2066, 0x206A), 0xFEFF)
"""What turns text round, hides it or breaks lines: a name could look like another."""
_FILLERS = "\u034f\u115f\u1160\u17b4\u17b5\u3164\uffa0"
"""Letters and marks that nothing is seen of."""
_CONTROL = (
    {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160))}
    | {code: f"\\u{code:04x}" for code in _TURNING}
    | {9: " ", 10: "\\n", 13: "\\r"}
)


def colours(stream: "TextIO") -> bool:
    """True if this stream is a terminal that takes colours, and nobody asked for none."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def width_of(stream: "TextIO") -> "int | None":
    """Columns of the terminal; None: not a terminal, so nothing is cut."""
    try:
        return os.get_terminal_size(stream.fileno()).columns or None if stream.isatty() else None
    except (OSError, ValueError):
        return None


def clean(text: object) -> str:
    """Text that cannot do anything to a terminal."""
    shown = str(text).translate(_CONTROL)
    return shown if shown.isascii() else "".join(map(_visible, shown))


def _visible(char: str) -> str:
    """A character, or its number if nothing would be seen of it."""
    if char.isprintable() and char not in _FILLERS and not "\U000e0000" <= char <= "\U000e0fff":
        return char
    import unicodedata

    kept = unicodedata.category(char) in ("Zs", "Co")
    return char if kept else f"\\u{ord(char):04x}" if char <= "\uffff" else f"\\U{ord(char):08x}"


def print_json(what: "Any") -> None:
    """Print one JSON value on one line."""
    import json

    text = json.dumps(what, ensure_ascii=False, separators=(", ", ": "))
    if sys.stdout.encoding.lower() not in ("utf-8", "utf8") or clean(text) != text:
        text = json.dumps(what, separators=(", ", ": "))
    print(text)


def tint(state: str, text: str) -> str:
    """The text in the colour of a state."""
    code = _COLOURS.get(state)
    return f"\x1b[{code}m{text}\x1b[0m" if code else text


class Once:
    """Long words, such as refusals, which are shown in full only where they come first."""

    def __init__(self, said: str = "") -> None:
        self._said = said
        self._first: dict[str, str] = {}

    def show(self, words: str, where: str) -> str:
        """The words, or their beginning and where they are in full."""
        if len(words) <= LONG:
            return words
        first = "above" if words in self._said else self._first.setdefault(words, where)
        return words if first == where else f"{words[: LONG - 20]}… (as {first})"


class Table:
    """Columns of text. Widths are kept from one `print` to the next, so that pages line up."""

    def __init__(self, *titles: str, right: "Iterable[str]" = ()) -> None:
        self.titles = titles
        self._right = [title in right for title in titles]
        self._widths = [len(title) for title in titles]
        self._head = True

    def print(self, rows: "Sequence[Sequence[object]]") -> None:
        """Print rows, the titles before the first. The last column is cut at the edge of a terminal."""
        texts = [[clean("" if cell is None else cell) for cell in row] for row in rows]
        for row in texts:
            for at, cell in enumerate(row[:-1]):
                self._widths[at] = max(self._widths[at], len(cell))
        self._widths[-1] = 0 if not self._right[-1] else max([len(row[-1]) for row in texts] + [len(self.titles[-1])])
        most = width_of(sys.stdout)
        paint = colours(sys.stdout)
        out = []
        if self._head:
            out.append(self._line(self.titles, most, paint=False))
            self._head = False
        out.extend(self._line(row, most, paint) for row in texts)
        print("\n".join(out))

    def print_with(self, title: str, rows: "Sequence[Sequence[object]]", notes: "Sequence[str]") -> None:
        """Print rows with a note each: in a last column, or below its row where a terminal has little room for that."""
        if not any(notes):
            self.print(rows)
            return
        most, texts = width_of(sys.stdout), [[clean(cell) for cell in row] for row in rows]
        widths = [max(map(len, column)) for column in zip(self.titles, *texts, strict=True)]
        if most is None or most - sum(widths) - 2 * len(widths) >= NARROW:
            full = Table(
                *self.titles,
                title,
                right=[name for name, is_right in zip(self.titles, self._right, strict=True) if is_right],
            )
            full.print([[*row, note] for row, note in zip(rows, notes, strict=True)])
            return
        self._widths, paint = widths, colours(sys.stdout)
        print(self._line(self.titles, most, paint=False))
        for row, note in zip(texts, notes, strict=True):
            print(self._line(row, most, paint))
            if note:
                text = f"    {clean(note)}"
                print(text if len(text) <= most else f"{text[: most - 1]}…")

    def _line(self, cells: "Sequence[str]", most: "int | None", paint: bool) -> str:
        parts = [
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(cells, self._widths, self._right, strict=True)
        ]
        line = "  ".join(parts).rstrip()
        if most is not None and len(line) > most:
            line = line[: most - 1] + "…"
        if paint:
            for cell in cells:
                if cell in _COLOURS:
                    return line.replace(cell, tint(cell, cell), 1)
        return line


def paragraph(text: str) -> None:
    """Print text, broken at words where it would reach beyond the edge of a terminal."""
    width = width_of(sys.stdout)
    if width is None or len(text) <= width:
        print(text)
        return
    import textwrap

    for line in textwrap.wrap(text, width, subsequent_indent="  ", break_on_hyphens=False):
        print(line)


def seconds(value: "float | None") -> str:
    """A duration for people: `0.02s`, `12.3s`, `4m05s`, `3h07m`, `2d04h`."""
    if value is None:
        return ""
    if value < 60:
        return f"{value:.2f}s" if value < 10 else f"{value:.1f}s"
    whole = int(value)
    if whole < 3_600:
        return f"{whole // 60}m{whole % 60:02}s"
    if whole < 86_400:
        return f"{whole // 3_600}h{whole % 3_600 // 60:02}m"
    return f"{whole // 86_400}d{whole % 86_400 // 3_600:02}h"


def size(value: "int | None") -> str:
    """Bytes for people: `12M`."""
    if value is None:
        return ""
    from rota.model.amounts import show_size

    return show_size(value)


def when(stamp: "float | None") -> str:
    """A moment in local time: `2030-01-31 22:30:05`."""
    if stamp is None:
        return ""
    import time

    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(stamp))


def jobs_word(count: int) -> str:
    """`1 job`, `1,000 jobs`."""
    return f"{count:,} job{'' if count == 1 else 's'}"


def count_words(counts: "Mapping[str, int]") -> str:
    """`590 COMPLETED, 10 FAILED`."""
    known = [state for state in STATES if counts.get(state)]
    rest = [state for state in counts if state not in STATES and counts[state]]
    return ", ".join(f"{counts[state]:,} {state}" for state in known + rest) or "no jobs"
