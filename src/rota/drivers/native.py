"""What the dialects have in common: native names and states, the script on stdin, how answers are read and worded."""

import re
import shlex
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import get_args

from rota.drivers.api import Ask
from rota.drivers.dialect import Answer, Class, Kind, Options

__all__ = [
    "WARNED", "element", "enter", "keep_output", "kinds", "native_name", "ranges", "script", "share", "tag_of",
    "words", "worth",
]  # fmt: skip

KINDS: tuple[Kind, ...] = get_args(Kind)
ODD = re.compile(r"[^A-Za-z0-9_.+-]+")
TAG = re.compile(r"-([0-9a-f]{12})(?:\[[\d,:-]+\](?:%\d+)?)?\Z")
SPAN = re.compile(r"(\d{1,9})(?:-(\d{1,9})(?::(\d{1,9}))?)?")
SPAN_MOST = 100_000
EXPANDED_MOST = 200_000
"""Elements of arrays that one answer may stand for."""


def native_name(ask: Ask, most: int, *, letter_first: bool = False) -> str:
    """`NAME-TAG`, of characters that no batch system minds; where it is too long the NAME is cut, never the tag."""
    name = ODD.sub("_", ask.name).strip("_-") or "rota"
    if letter_first and not name[0].isalpha():
        name = f"r{name}"
    return f"{name[: max(1, most - len(ask.tag) - 1)]}-{ask.tag}"


def tag_of(name: str) -> str | None:
    """The tag in a native name, with or without an index or the indices of the whole array behind it.

    With anything else behind it, it is a job that one of ours has named after itself, and not ours to end.
    """
    found = TAG.search(name)
    return found.group(1) if found else None


WARNED = ("unset TZ LC_ALL", "trap : USR1")
"""Shell lines where the environment goes along with a job, and a warning comes before its end.

TZ and LC_ALL were for the submit command. The warning must not end the script that is warned.
"""


def script(text: str, lines: Sequence[str]) -> str:
    """A script with our own lines first: below its `#!`, before any line that a submit command would read."""
    first, rest = "#!/bin/sh", text
    if text.startswith("#!"):
        first, _, rest = text.partition("\n")
    return "\n".join([first, *lines, rest if rest.endswith("\n") else f"{rest}\n"])


def element(number: str) -> list[str]:
    """Shell lines that put the element's number, an arithmetic expression, where scripts look for it."""
    return [f"ROTA_ELEMENT=$(({number}))", "export ROTA_ELEMENT"]


def enter(directory: str) -> list[str]:
    """Shell lines that go to a directory; a shared file system may show it late."""
    where = shlex.quote(directory)
    return [
        "rota_tries=0",
        f"until cd -- {where} 2>/dev/null; do",
        "    rota_tries=$((rota_tries + 1))",
        f'    if [ "$rota_tries" -ge 30 ]; then echo "rota: cannot enter" {where} "on $(hostname)" >&2; exit 71; fi',
        "    sleep 1",
        "done",
    ]


def keep_output(tag: str) -> list[str]:
    """A shell line after which all output goes to `TAG.ELEMENT.out` here, where it is looked for.

    Not left to the batch system where it copies such files only at the end, and not at all if the copying fails.
    """
    return [f'exec >>"{tag}.$ROTA_ELEMENT.out" 2>&1']


def share(amount: int, parts: int) -> int:
    """One part of an amount, rounded up, and at least 1."""
    return max(1, -(-amount // parts))


def kinds(
    states: Mapping[str, Kind], strict: Mapping[str, Kind], options: Options, other: Mapping[str, str] | None = None
) -> dict[str, Kind]:
    """The table of states that a site wants; `other` has the other form of a state that has two."""
    table = {**states, **strict} if options.strict else dict(states)
    for state, wanted in options.state_map:
        for kind in KINDS:
            if kind == wanted:
                table[state] = table[(other or {}).get(state, state)] = kind
    return table


class Room:
    """How many numbers the answer that is read inside a `with` may become: a few bytes can stand for millions."""

    def __init__(self, most: int = EXPANDED_MOST) -> None:
        self._left = min(most, EXPANDED_MOST)
        self.exceeded = False
        """Whether the answer stood for more, so that some of it was left out."""

    def __enter__(self) -> "Room":
        _rooms.room = self
        return self

    def __exit__(self, *_: object) -> None:
        _rooms.room = None

    def take(self, count: int) -> bool:
        """Whether so many more are allowed."""
        self._left -= count
        self.exceeded = self.exceeded or self._left < 0
        return self._left >= 0


_rooms = threading.local()
"""Of the answer that is being read in each thread."""


def ranges(text: str, most: int = SPAN_MOST) -> list[int] | None:
    """The numbers in `3-4,6,9` or `0-8:2`; None if that is not what it is, or absurdly many."""
    out: list[int] = []
    room: Room | None = getattr(_rooms, "room", None)
    for part in text.split(","):
        found = SPAN.fullmatch(part.strip())
        if found is None:
            return None
        low, high, step = int(found[1]), int(found[2] or found[1]), int(found[3] or 1)
        if high < low or step < 1 or len(out) + (high - low) // step >= most:
            return None
        if room is not None and not room.take((high - low) // step + 1):
            return None
        out.extend(range(low, high + 1, step))
    return out


def worth(text: str, table: Iterable[tuple[Class, tuple[str, ...]]]) -> Class | None:
    """The first class that one of whose phrases (lower case) is in the text."""
    lower = text.lower()
    for result, phrases in table:
        if any(phrase in lower for phrase in phrases):
            return result
    return None


def words(answer: Answer) -> str:
    """An answer that is no use, for people: its exit and what it said, on one line."""
    how = "took too long and was ended" if answer.code is None else f"exit {answer.code}"
    return f"{how}: {answer.words}" if answer.stderr.strip() or answer.stdout.strip() else f"{how}, without a word"
