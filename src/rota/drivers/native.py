"""What the dialects have in common: native names, options, the script on stdin, and how an answer is put in words."""

import re
import shlex
from collections.abc import Iterable, Mapping
from typing import NamedTuple, get_args

from rota.drivers.api import Ask
from rota.drivers.dialect import Answer, Class, Kind, Options
from rota.model.errors import UsageError

__all__ = ["Wishes", "kinds", "native_name", "ranges", "script", "share", "tag_of", "wishes", "words", "worth"]

KINDS: tuple[Kind, ...] = get_args(Kind)
NAMED = ("account", "partition", "qos", "reservation", "constraint")
ODD = re.compile(r"[^A-Za-z0-9_.+-]+")
TAG = re.compile(r"-([0-9a-f]{12})(?:\[[\d,:-]+\](?:%\d+)?)?\Z")
CONTROL = re.compile(r"[\x00-\x1f\x7f]")
SPAN = re.compile(r"(\d{1,9})(?:-(\d{1,9})(?::(\d{1,9}))?)?")
NAME_MOST = 60
SPAN_MOST = 100_000


def native_name(ask: Ask) -> str:
    """`NAME-TAG`, of characters that no batch system minds."""
    return f"{ODD.sub('_', ask.name).strip('_-')[:NAME_MOST] or 'rota'}-{ask.tag}"


def tag_of(name: str) -> str | None:
    """The tag in a native name, with or without an index or the indices of the whole array behind it."""
    found = TAG.search(name)
    return found.group(1) if found else None


class Wishes(NamedTuple):
    """A site's options with a submission's own on top."""

    account: str | None
    partition: str | None
    qos: str | None
    reservation: str | None
    constraint: str | None
    raw: tuple[tuple[str, str], ...]


def wishes(system: str, ask: Ask, options: Options, allowed: frozenset[str]) -> Wishes:
    """What was asked for, checked: a raw option must be among those allowed, and no value can smuggle in a line."""
    named: dict[str, str | None] = {name: getattr(options, name) for name in NAMED}
    raw: dict[str, str] = {}
    dashes = "--" if any(key.startswith("--") for key in allowed) else "-"
    for key, value in (*options.raw, *ask.options):
        if CONTROL.search(key) or CONTROL.search(value):
            raise UsageError(f"{system}: option {key!r} has a control character in its value {value!r}: leave it out")
        if key.removeprefix("--") in named:
            named[key.removeprefix("--")] = value or None
            continue
        native = dashes + key.lstrip("-")
        if not key.startswith("-") or native not in allowed:
            known = ", ".join([*NAMED, *sorted(allowed)])
            raise UsageError(f"{system}: option '{key}' is set by rota itself, or not known: give one of {known}")
        raw[native] = value
    for name, said in named.items():
        if said is not None and (said.startswith("-") or CONTROL.search(said)):
            raise UsageError(f"{system}: {name} {said!r} is no name: no '-' at its start, no control characters")
    return Wishes(raw=tuple(raw.items()), **named)


PROLOGUE = """\
unset TZ LC_ALL
trap : USR1
ROTA_ELEMENT=$(({element}))
export ROTA_ELEMENT
rota_tries=0
until cd -- {directory} 2>/dev/null; do
    rota_tries=$((rota_tries + 1))
    if [ "$rota_tries" -ge 7 ]; then echo "rota: cannot enter" {directory} "on $(hostname)" >&2; exit 1; fi
    sleep 5
done
"""
"""TZ and LC_ALL were for the submit command. The warning before the end must not end the script that is warned. A
directory on a shared file system may take a while to be seen."""


def script(ask: Ask, element: str) -> str:
    """The script with our own lines first: below its `#!`, before any line that a submit command would read."""
    if CONTROL.search(ask.directory) or not ask.directory.startswith("/"):
        raise UsageError(f"directory {ask.directory!r}: give an absolute path without control characters")
    first, _, rest = ask.script.partition("\n")
    if not first.startswith("#!"):
        first, rest = "#!/bin/sh", ask.script
    prologue = PROLOGUE.format(element=element, directory=shlex.quote(ask.directory))
    return f"{first}\n{prologue}{rest}" if rest.endswith("\n") else f"{first}\n{prologue}{rest}\n"


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


def ranges(text: str) -> list[int] | None:
    """The numbers in `3-4,6,9` or `0-8:2`; None if that is not what it is, or absurdly many."""
    out: list[int] = []
    for part in text.split(","):
        found = SPAN.fullmatch(part)
        if found is None:
            return None
        low, high, step = int(found[1]), int(found[2] or found[1]), int(found[3] or 1)
        if high < low or step < 1 or len(out) + (high - low) // step >= SPAN_MOST:
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
    said = " ".join((answer.stderr.strip() or answer.stdout.strip()).split())
    said = "".join(c if c.isprintable() else "?" for c in said)
    return f"{how}: {said[:300]}" if said else f"{how}, without a word"
