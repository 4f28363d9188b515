"""The options of a site and of a user: merged, checked, and applied to a native submission."""

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import NamedTuple, get_args

from rota.drivers.api import Ask
from rota.drivers.dialect import Kind, Options
from rota.model.errors import UsageError

__all__ = [
    "Wants",
    "check_owned",
    "check_path",
    "enter",
    "keep_output",
    "merge",
    "name_of",
    "native_kind",
    "prefix_script",
    "tag_in",
    "whole_cores",
]

KINDS: frozenset[str] = frozenset(get_args(Kind))
WORDS = {"account", "partition", "qos", "reservation", "constraint"}
TAG = re.compile(r"-([0-9a-f]{12})(?![0-9A-Za-z])")
CONTROL = re.compile(r"[\x00-\x1f\x7f]")


class Wants(NamedTuple):
    """What a submission is to have beyond amounts."""

    account: str | None = None
    partition: str | None = None
    qos: str | None = None
    reservation: str | None = None
    constraint: str | None = None
    raw: tuple[tuple[str, str], ...] = ()
    """As the program wants them: `-key`, value; an empty value: the option stands alone."""

    def argv(self) -> list[str]:
        """The raw options as arguments."""
        return [word for key, value in self.raw for word in ((key, value) if value else (key,))]

    def has(self, key: str) -> bool:
        """Whether a raw option is among them."""
        return any(given == key for given, _ in self.raw)


def merge(ask: Ask, options: Options, system: str, allowed: frozenset[str], repeat: frozenset[str]) -> Wants:
    """Join what the site and the user want; the user is stronger. Options in `repeat` add up instead.

    Raises UsageError for what is not in `allowed`, and for values that no command line should have.
    """
    words: dict[str, str | None] = {word: getattr(options, word) for word in sorted(WORDS)}
    own: list[tuple[str, str]] = []
    for key, value in ask.options:
        if key.startswith("-"):
            own.append(_raw(key, value, system, allowed))
        elif key in words:
            words[key] = value
        else:
            raise UsageError(f"option '{key}' means nothing to {system}: give {', '.join(sorted(WORDS))}, or a --KEY")
    for word, given in words.items():
        if given is not None and (not given or given.startswith("-") or re.search(r"[\s\x00-\x1f\x7f]", given)):
            raise UsageError(f"{word} '{given}' cannot be given to {system}: one word, without blanks, no '-' first")
    site = [_raw(key, value, system, allowed) for key, value in options.raw]
    mine = {key for key, _ in own}
    raw = [pair for pair in site if pair[0] in repeat or pair[0] not in mine] + own
    return Wants(**words, raw=tuple(raw))


def _raw(key: str, value: str, system: str, allowed: frozenset[str]) -> tuple[str, str]:
    """One native option, with the single dash that these programs want."""
    native = "-" + key.lstrip("-")
    if native not in allowed:
        raise UsageError(f"option '{key}' may not be given to {system}; these may: {', '.join(sorted(allowed))}")
    if CONTROL.search(value):
        raise UsageError(f"option '{key}' of {system}: its value has a line break or another control character")
    return native, value


def check_path(path: str, forbidden: str, system: str) -> str:
    """The path, unless the system would read something else in it."""
    bad = sorted({char for char in path if char in forbidden or CONTROL.match(char)})
    if bad or not path.startswith("/"):
        what = f"has {' '.join(map(repr, bad))} in it" if bad else "is not absolute"
        raise UsageError(f"directory '{path}' {what}: {system} cannot write its output files there; use another")
    return path


def native_kind(state: str, states: Mapping[str, Kind], strict: Mapping[str, Kind], options: Options) -> Kind | None:
    """What a native state means at this site; None: no table has it."""
    for native, kind in options.state_map:
        if native == state and kind in KINDS:
            return kind  # type: ignore[return-value]
    if options.strict and state in strict:
        return strict[state]
    return states.get(state)


def name_of(ask: Ask, most: int) -> str:
    """`NAME-TAG` in letters that every batch system takes; where it is too long the NAME is cut, never the tag."""
    name = re.sub(r"[^A-Za-z0-9_.-]+", "_", ask.name)
    if not name[:1].isalpha():
        name = "r" + name
    return f"{name[: max(1, most - len(ask.tag) - 1)]}-{ask.tag}"


def tag_in(name: str) -> str | None:
    """The tag in a native name, if it has one that was not cut."""
    found = TAG.findall(name)
    return found[-1] if found else None


def whole_cores(millicores: int) -> int:
    """Cores as batch systems count them."""
    return max(1, -(-millicores // 1000))


def prefix_script(script: str, lines: Sequence[str]) -> str:
    """The script with lines that run before it, after its `#!` line."""
    first, rest = "#!/bin/sh", script
    if script.startswith("#!"):
        first, _, rest = script.partition("\n")
    return "\n".join([first, *lines, rest if rest.endswith("\n") else rest + "\n"])


def enter(directory: str) -> list[str]:
    """Shell lines that go to a directory; a shared file system may show it late."""
    return [
        "rota_try=0",
        f"until cd {shlex.quote(directory)}; do",
        "    rota_try=$((rota_try + 1))",
        "    if [ $rota_try -ge 30 ]; then exit 71; fi",
        "    sleep 1",
        "done",
    ]


def keep_output(tag: str) -> list[str]:
    """A shell line after which all output goes to `TAG.ELEMENT.out` here, where it is looked for.

    Not left to the batch system: it copies such files only at the end, and not at all where the copying fails.
    """
    return [f'exec >>"{tag}.$ROTA_ELEMENT.out" 2>&1']


def check_owned(wants: Wants, owned: Mapping[str, frozenset[str]]) -> None:
    """Refuse raw resources (or other `name=value,…` lists) with names that rota sets itself."""
    for key, value in wants.raw:
        names = {part.partition("=")[0].strip() for part in value.split(",")}
        if bad := names & owned.get(key, frozenset()):
            raise UsageError(f"option '{key} {value}': rota itself sets {', '.join(sorted(bad))}")
