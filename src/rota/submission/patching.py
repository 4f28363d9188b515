"""Patches: what `modify`, and `retry` with changes, ask for, from a user's words."""

import re
from collections.abc import Callable
from typing import Any

import msgspec

from rota.model.amounts import parse_cores, parse_duration, parse_size
from rota.model.errors import UsageError
from rota.model.fields import BATCH_CHANGES, CHANGES, Field
from rota.model.patch import BatchPatch, Change, Patch
from rota.submission.kinds import kept, option_words, strings
from rota.submission.options import Changes, completed, dependencies, dependency_word, moment

__all__ = ["make_patch"]

_RELATIVE = re.compile(r"([x*+-])(.+)")
_PARSERS: dict[str, Callable[[str], int]] = {
    "size": parse_size,
    "duration": parse_duration,
    "cores": lambda text: parse_cores(text)[0],
}
_OF_JOBS = {field.name: field for fields in CHANGES.values() for field in fields if field.place}
_OF_BATCHES = {field.name for fields in BATCH_CHANGES.values() for field in fields if field.place}


def make_patch(changes: Changes) -> dict[str, Any]:
    """The Patch for these changes, as it is sent."""
    given: dict[str, Any] = {}
    options: dict[str, str | None] = {}
    for name, value in changes.items():
        if name in _OF_BATCHES:
            continue
        field = _OF_JOBS.get(name)
        if field is None:
            known = ", ".join(sorted((*_OF_JOBS, *_OF_BATCHES)))
            raise UsageError(f"'{name}' cannot be changed; what can is: {known}")
        if field.place == "options":
            options |= option_words(field, value)
        else:
            given |= _changed(field, value)
    given["options_add"] = tuple((key, word) for key, word in options.items() if word is not None)
    given["options_drop"] = tuple(key for key, word in options.items() if word is None)
    batch = _batch_patch(changes)
    if batch != BatchPatch():
        given["batch"] = batch
    sent: dict[str, Any] = msgspec.to_builtins(Patch(**given))
    return sent


def _batch_patch(changes: Changes) -> BatchPatch:
    given: dict[str, Any] = {}
    for name in ("name", "on_batch_end"):
        if name in changes:
            given[name] = changes[name] or ""
    for name in ("at_once", "max_failures", "scouts"):
        if name in changes:
            given[name] = changes[name]  # type: ignore[literal-required]
    if "not_before" in changes:
        when = changes["not_before"]
        given["not_before"] = None if when == "now" else moment(when)
    after = changes.get("after", ())
    after = ("none",) if after is None or after == "none" else tuple(after)
    options = completed(
        {
            "after": after[1:] if after[:1] == ("none",) else after,
            "after_any": changes.get("after_any", ()),
            "after_failure": changes.get("after_failure", ()),
            "each": changes.get("each", False),
            "live": changes.get("live", False),
        }
    )
    return BatchPatch(
        after=tuple(dependencies(options)),
        after_drop=tuple(dependency_word(target) for target in changes.get("drop_after", ())),
        after_none=after[:1] == ("none",),
        require_known=changes.get("require_known", False),
        **given,
    )


def _changed(field: Field, value: Any) -> dict[str, Any]:
    if field.relative and isinstance(value, str) and (match := _RELATIVE.fullmatch(value.strip())):
        return {field.target: _change(value, match[1], match[2], _PARSERS[field.kind])}
    if field.kind == "cores" and not isinstance(value, str):
        return {"cores": round(value * 1000), "cores_most": 0, "whole": False}
    if field.kind == "limits":
        return {"limits_add" if field.name == "limits" else field.target: strings(value)}
    if field.kind == "command":
        return {"shell": value} if isinstance(value, str) else {"argv": tuple(value)}
    return kept(field, value)


def _change(text: str, sign: str, rest: str, parse: Callable[[str], int]) -> Change:
    if sign in "x*":
        try:
            times = float(rest)
        except ValueError:
            times = -1.0
        if not 0 < times <= 1000:
            raise UsageError(f"'{text}': after x comes a number, as in x2 or x1.5")
        return Change(times=times)
    return Change(plus=parse(rest) if sign == "+" else -parse(rest))
