"""What a site and a user ask for beyond amounts: merged, and checked before it becomes a native command line."""

import re
from collections.abc import Mapping
from typing import NamedTuple

from rota.drivers.api import Ask
from rota.drivers.dialect import Options
from rota.model.errors import UsageError

__all__ = ["NAMED", "Rules", "Wants", "check_directory", "merge"]

NAMED = ("account", "partition", "qos", "reservation", "constraint")
CONTROL = re.compile(r"[\x00-\x1f\x7f]")


class Wants(NamedTuple):
    """A site's options with a submission's own on top."""

    account: str | None = None
    partition: str | None = None
    qos: str | None = None
    reservation: str | None = None
    constraint: str | None = None
    raw: tuple[tuple[str, str], ...] = ()
    """As the program wants them: `-key` or `--key`, value; an empty value: the option stands alone."""

    def values(self, key: str) -> list[str]:
        """What was given with a raw option."""
        return [value for given, value in self.raw if given == key]

    def argv(self, but: str = "") -> list[str]:
        """The raw options as arguments, but for the one that the dialect has dealt with."""
        out: list[str] = []
        for key, value in self.raw:
            if key != but:
                out += [key] if not value else [f"{key}={value}"] if key.startswith("--") else [key, value]
        return out


class Rules(NamedTuple):
    """What a batch system takes as options, and what it is called."""

    system: str
    allowed: frozenset[str]
    """Raw options that may be given."""
    repeat: frozenset[str] = frozenset()
    """Raw options that add up; of the others the last counts."""
    owned: Mapping[str, frozenset[str]] = {}
    """Parts of raw options (`name=value,…`) that rota itself sets."""
    phrases: frozenset[str] = frozenset()
    """Named options (account, constraint …) that may have blanks in them."""


def merge(rules: Rules, ask: Ask, options: Options) -> Wants:
    """Join what the site and the user want; the user is stronger. An empty account … is none, not even the site's.

    Raises UsageError for what the rules do not allow, and for what could be read as something else: control characters,
    a name that begins with a dash, or has blanks.
    """
    system = rules.system
    named: dict[str, str | None] = {name: getattr(options, name) or None for name in NAMED}
    raw: list[tuple[str, str]] = []
    for key, value in (*options.raw, *ask.options):
        if CONTROL.search(key) or CONTROL.search(value):
            raise UsageError(
                f"{system}: option {key!r} has a line break or another control character in its value {value!r}: "
                "leave it out"
            )
        if key.removeprefix("--") in named:
            named[key.removeprefix("--")] = value or None
            continue
        native = _native(system, key, rules.allowed)
        names = {part.partition("=")[0].strip() for part in value.split(",")}
        if bad := names & rules.owned.get(native, frozenset()):
            raise UsageError(f"{system}: option '{native} {value}': rota itself sets {', '.join(sorted(bad))}")
        if native not in rules.repeat:
            raw = [pair for pair in raw if pair[0] != native]
        raw.append((native, value))
    for name, said in named.items():
        if said and (
            said.startswith("-") or CONTROL.search(said) or (name not in rules.phrases and re.search(r"\s", said))
        ):
            blanks = "" if name in rules.phrases else "blanks, or "
            raise UsageError(f"{system}: {name} {said!r} is no name: no '-' first, no {blanks}control characters in it")
    return Wants(**named, raw=tuple(raw))


def _native(system: str, key: str, allowed: frozenset[str]) -> str:
    """A raw option with as many dashes as its program wants."""
    dashes = "--" if any(each.startswith("--") for each in allowed) else "-"
    native = dashes + key.lstrip("-")
    if not key.startswith("-") or native not in allowed:
        known = ", ".join([*NAMED, *sorted(allowed)])
        raise UsageError(f"{system}: option '{key}' is set by rota itself, or not known: give one of {known}")
    return native


def check_directory(system: str, path: str, forbidden: str = "") -> str:
    """The path, unless the system would read something else in it."""
    bad = sorted({char for char in path if char in forbidden or CONTROL.match(char)})
    if bad or not path.startswith("/"):
        what = f"has {' '.join(map(repr, bad))} in it" if bad else "is not absolute"
        raise UsageError(f"directory {path!r} {what}: {system} cannot write its output files there; use another")
    return path
