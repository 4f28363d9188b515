"""Global shares: a tree of shares with targets, whose turn it is, and when no more jobs of a share are made.

A share is a name, a value beside its siblings, and either children or what its jobs look like. What is not used of a
share goes to its siblings first, because the order is worked out level by level.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from rota.model.errors import UsageError

__all__ = [
    "UNDEFINED", "Generation", "Share", "Throttle", "leaf_of", "leaves", "may_generate", "order_of", "percents",
    "rank", "share_tree",
]  # fmt: skip

UNDEFINED = "Undefined"
NO_TARGET = 1e6
"""The ratio of a share whose target is nothing: it goes last."""
VALUE = "value"
MATCH = "match"


class Share(Struct, frozen=True):
    """A share in the tree."""

    name: str
    value: float
    children: tuple["Share", ...] = ()
    match: tuple[tuple[str, str], ...] = ()
    """(attribute, regular expression) that jobs of a leaf match from the start of the text."""


# ---- the tree --------------------------------------------------------------------------------------------------------


def share_tree(table: Mapping[str, Any], where: str = "shares") -> tuple[Share, ...]:
    """The shares of a table: name → a value, or a table with `value`, perhaps `match`, and children."""
    found = tuple(_share(name, value, f"{where}.{name}") for name, value in table.items())
    seen: set[str] = set()
    for share in _all(found):
        if share.name in seen:
            raise UsageError(f"{where}: the share '{share.name}' is there twice")
        seen.add(share.name)
    return found


def _share(name: str, given: Any, where: str) -> Share:
    if not isinstance(given, Mapping):
        return Share(name, _value(given, where))
    if VALUE not in given:
        raise UsageError(f"{where}: its value is missing, such as value = 20")
    match = given.get(MATCH, {})
    children = {key: value for key, value in given.items() if key not in (VALUE, MATCH)}
    if not isinstance(match, Mapping) or not all(isinstance(text, str) for text in match.values()):
        raise UsageError(f"{where}.{MATCH}: give attributes and regular expressions")
    if match and children:
        raise UsageError(f"{where}: a share has children or a match, not both: jobs belong to leaves")
    for attribute, text in match.items():
        try:
            re.compile(text)
        except re.error as error:
            raise UsageError(f"{where}.{MATCH}.{attribute}: {text!r} is no regular expression: {error}") from None
    below = tuple(_share(key, value, f"{where}.{key}") for key, value in children.items())
    return Share(name, _value(given[VALUE], f"{where}.{VALUE}"), below, tuple(match.items()))


def _value(given: Any, where: str) -> float:
    if isinstance(given, bool) or not isinstance(given, int | float) or not math.isfinite(given) or given < 0:
        raise UsageError(f"{where} is {given!r}: give a number, 0 or more")
    return float(given)


def _all(shares: Sequence[Share]) -> Iterator[Share]:
    for share in shares:
        yield share
        yield from _all(share.children)


def leaves(shares: Sequence[Share]) -> list[Share]:
    """The shares that jobs belong to, in the order of the table."""
    return [share for share in _all(shares) if not share.children]


def percents(shares: Sequence[Share], whole: float = 100.0) -> dict[str, float]:
    """Leaf → its part of the whole; that of a share is divided among its children by their values."""
    total = sum(share.value for share in shares)
    out: dict[str, float] = {}
    for share in shares:
        part = whole * share.value / total if total else 0.0
        if share.children:
            out.update(percents(share.children, part))
        else:
            out[share.name] = part
    return out


def leaf_of(shares: Sequence[Share], attributes: Mapping[str, str | None]) -> str:
    """The first leaf that a job matches; one without a match takes none. What a job does not say matches anything.

    Only the working group must be said to be matched, as in the reference.
    """
    for share in leaves(shares):
        if share.match and all(_matches(pattern, name, attributes.get(name)) for name, pattern in share.match):
            return share.name
    return UNDEFINED


def _matches(pattern: str, name: str, value: str | None) -> bool:
    if value is None and name == "workingGroup":
        value = " "
    return value is None or re.match(pattern, value) is not None


# ---- whose turn it is ------------------------------------------------------------------------------------------------


def order_of(shares: Sequence[Share], executing: Mapping[str, float]) -> list[str]:
    """The leaves, those first that have least of what they should have, level by level.

    Of equal ones that comes first whose name is last: some order must be, and it is that of the reference's own tree.
    """
    parts = percents(shares)
    total = sum(max(0.0, executing.get(name, 0.0)) for name in parts)

    def load(share: Share) -> tuple[float, float]:
        """(what runs, what should)."""
        if not share.children:
            return max(0.0, executing.get(share.name, 0.0)), total * parts[share.name] / 100
        below = [load(child) for child in share.children]
        return sum(row[0] for row in below), sum(row[1] for row in below)

    def ratio(share: Share) -> float:
        runs, target = load(share)
        return runs / target if target > 0 else NO_TARGET if runs or not share.value else 0.0

    def walk(level: Sequence[Share]) -> Iterator[str]:
        by_name = sorted(level, key=lambda share: share.name, reverse=True)
        for share in sorted(by_name, key=lambda share: round(ratio(share), 9)):
            if share.children:
                yield from walk(share.children)
            else:
                yield share.name

    return list(walk(shares))


def rank(shares: Sequence[Share], executing: Mapping[str, float]) -> dict[str, int]:
    """Leaf → its place in the order, from 0; jobs of no leaf come after all of them."""
    names = order_of(shares, executing)
    return {**{name: number for number, name in enumerate(names)}, UNDEFINED: len(names)}


# ---- making jobs -----------------------------------------------------------------------------------------------------


class Generation(Struct, frozen=True):
    """The jobs of a share and a kind of resources."""

    running: int = 0
    queued: int = 0
    """activated and starting"""
    defined: int = 0
    waiting: int = 0
    remaining_walltime_s: float | None = None
    """What the queued ones will still need; None: not known, which counts as much."""
    higher_waits: int | None = None
    """The priority of a waiting task that is more urgent than those that run."""


class Throttle(Struct, frozen=True):
    """Whether more jobs of a share are made."""

    stop: bool
    why: str
    only_priority: int | None = None
    """Only of tasks with this priority."""
    merging: bool = True
    """Whether merge jobs are made nevertheless."""


BUNCH = 500
LONG_S = 50_000_000


def may_generate(
    now: Generation, thresholds: Mapping[str, Any], share: str, resource_type: str = "", bunch: int = BUNCH
) -> Throttle:
    """Whether more jobs of a share may be made, and if not why, with the numbers."""
    factor = _threshold(thresholds, "THROTTLE_THRESHOLD") or 2.0
    limit = _of(thresholds, "NQUEUELIMIT", share, resource_type)
    limit = 4 * bunch if limit is None else limit
    running_cap = _of(thresholds, "NRUNNINGCAP", share, resource_type)
    queue_cap = _of(thresholds, "NQUEUECAP", share, resource_type)
    long = now.remaining_walltime_s is None or now.remaining_walltime_s > LONG_S
    ratio = now.queued / now.running if now.running else math.inf
    rules = (
        (not now.running and now.queued > limit, f"none runs and {now.queued} are queued, more than {limit:g}"),
        (bool(now.running) and ratio > factor and now.queued > limit and long,
         f"{now.queued} are queued beside {now.running} that run: more than {factor:g} times, and more than {limit:g}"),
        (now.defined > limit, f"{now.defined} are made and not yet sent, more than {limit:g}"),
        (now.waiting > max(4 * now.running, 2 * bunch),
         f"{now.waiting} wait for their data, more than {max(4 * now.running, 2 * bunch)}"),
        (running_cap is not None and now.running > running_cap, f"{now.running} run, at most {running_cap} may"),
        (queue_cap is not None and now.queued > queue_cap, f"{now.queued} are queued, at most {queue_cap} may be"),
    )  # fmt: skip
    why = next((words for holds, words in rules if holds), None)
    if why is None:
        return Throttle(False, "")
    if now.higher_waits is not None:
        return Throttle(False, f"{why}; only for priority {now.higher_waits}, which waits", now.higher_waits)
    return Throttle(True, why)


def _of(thresholds: Mapping[str, Any], name: str, share: str, resource_type: str) -> float | None:
    """A threshold of share and type, else of the share with types of its cores, else of the share."""
    keys = [f"{name}_{share}"]
    if resource_type:
        kind = resource_type.partition("_")[0]
        keys = [f"{name}_{share}_{resource_type}", f"{name}_{share}_{kind}*", *keys]
    return next((value for key in keys if (value := _threshold(thresholds, key)) is not None), None)


def _threshold(thresholds: Mapping[str, Any], key: str) -> float | None:
    value = thresholds.get(key)
    return None if value is None else _value(value, key)
