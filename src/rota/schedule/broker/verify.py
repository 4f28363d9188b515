"""Vectors: cases with what is expected of them, by profile; we say what we would say, and how that differs.

{"format": 2, "inputs": {name: {…}}, "cases": [{"id", "kind", "input" | "values" | "text" | "ask",
 "change": [[path, value]], "only": {profile: [[path, value]]}, "expect": {profile: {…}}}]}
"""

import copy
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from rota.model.errors import UsageError
from rota.schedule.broker import kinds_flows, kinds_rules
from rota.schedule.broker.config import PROFILES, Profile
from rota.schedule.broker.kinds import KINDS

__all__ = ["Verdict", "changed", "check_format", "verify"]

ANSWERING = (kinds_flows, kinds_rules)
"""Modules that enter the kinds that they answer."""
TOLERANCE = 1e-6
OUTSIDE = "software/outside the map"
PATH = re.compile(r"([^.\[\]]+)|\[(\*|\d+)\]")
TIES = ("decision", "tag", "note")


class Verdict(Struct, frozen=True):
    """How one expectation of one case fared."""

    id: str
    profile: str
    differences: tuple[str, ...]
    """Empty: it passed."""


def check_format(document: Any) -> None:
    """Raise UsageError if a document is no file of vectors."""
    if not isinstance(document, Mapping) or document.get("format") != 2:
        has = document.get("format") if isinstance(document, Mapping) else type(document).__name__
        raise UsageError(f"not a file of vectors of format 2: its format is {has!r}")
    if not isinstance(document.get("cases"), list):
        raise UsageError("not a file of vectors: cases is no list")


def verify(document: Mapping[str, Any], profiles: Sequence[Profile] = PROFILES) -> Iterator[Verdict]:
    """Judge every expectation of every case, for these profiles. One that cannot be judged differs."""
    check_format(document)
    inputs = document.get("inputs") or {}
    for number, case in enumerate(document["cases"]):
        name = str(case.get("id", f"case {number}")) if isinstance(case, Mapping) else f"case {number}"
        expect = case.get("expect") if isinstance(case, Mapping) else None
        if not isinstance(expect, Mapping) or not expect:
            yield Verdict(name, "?", ("it expects nothing of any profile",))
            continue
        for profile, wanted in expect.items():
            if profile not in PROFILES:
                yield Verdict(name, str(profile), (f"there is no profile {profile}",))
            elif profile in profiles:
                yield Verdict(name, profile, tuple(_judge(case, profile, wanted, inputs)))


def _judge(case: Mapping[str, Any], profile: Profile, wanted: Any, inputs: Mapping[str, Any]) -> list[str]:
    ask = KINDS.get(str(case.get("kind")))
    if ask is None:
        return [f"there is no kind '{case.get('kind')}', only {', '.join(sorted(KINDS))}"]
    try:
        said = ask(_prepared(case, profile, inputs), profile)
    except UsageError as error:
        return [f"it cannot be understood: {error}"]
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, ArithmeticError) as error:
        return [f"it cannot be understood: {type(error).__name__}: {error}"]
    if isinstance(wanted, Mapping) and isinstance(wanted.get("queues"), Mapping):
        return list(_compare_queues(wanted, said))
    return list(_compare("", wanted, said))


def _prepared(case: Mapping[str, Any], profile: Profile, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """A case with its input in place, and all changes of this profile made."""
    found = {key: value for key, value in case.items() if key not in ("expect", "input", "change", "only")}
    name = case.get("input")
    changes = [*(case.get("change") or ()), *((case.get("only") or {}).get(profile) or ())]
    if name is None:
        for key in ("values", "ask", "text"):
            if key in found and changes:
                found[key] = changed(found[key], changes)
        return found
    if name not in inputs:
        raise UsageError(f"there is no input '{name}'")
    found["input"] = changed(inputs[name], changes)
    found["outside"] = inputs.get(OUTSIDE)
    return found


def changed(document: Any, changes: Sequence[Any]) -> Any:
    """A copy of a document with paths set: `task.site`, `files[*].bytes`, `files[2].events`."""
    if not changes:
        return document
    new = copy.deepcopy(document)
    for change in changes:
        if not isinstance(change, Sequence) or isinstance(change, str) or len(change) != 2:
            raise UsageError(f"a change is [path, value], not {change!r}")
        path, value = change
        _set(new, _steps(str(path), new), value, str(path))
    return new


def _steps(path: str, document: Any) -> list[str | int]:
    """The steps of a path. A name with dots of its own is found if the document has it."""
    steps: list[str | int] = []
    for match in PATH.finditer(path):
        steps.append(match[1] if match[1] is not None else "*" if match[2] == "*" else int(match[2]))
    return steps


def _set(at: Any, steps: list[str | int], value: Any, path: str) -> None:
    step, rest = steps[0], steps[1:]
    if isinstance(at, list):
        if step != "*" and (not isinstance(step, int) or step >= len(at)):
            raise UsageError(f"{path}: there is no element {step}")
        for number in range(len(at)) if step == "*" else [int(step)]:
            if rest:
                _set(at[number], rest, value, path)
            else:
                at[number] = copy.deepcopy(value)
        return
    if not isinstance(at, dict):
        raise UsageError(f"{path}: '{step}' is looked for in {at!r}")
    if step == "*":
        for key in at:
            _set(at, [key, *rest], value, path)
        return
    for length in range(len(rest), 0, -1):  # names with dots
        joined = ".".join(map(str, [step, *rest[:length]]))
        if joined in at:
            step, rest = joined, rest[length:]
            break
    if not rest:
        at[step] = copy.deepcopy(value)
    else:
        if at.get(step) is None:
            at[step] = {}
        _set(at[step], rest, value, path)


def _compare(at: str, wanted: Any, said: Any) -> Iterator[str]:
    """How what we said differs from what was wanted; of an object, in the keys that are wanted."""
    if isinstance(wanted, Mapping):
        if not isinstance(said, Mapping):
            yield f"{at or 'it'}: {_show(said)}, not {_show(wanted)}"
            return
        for key, value in wanted.items():
            name = f"{at}.{key}" if at else str(key)
            if key == "note":
                continue
            if key not in said:
                yield f"{name}: nothing is known of it; expected {_show(value)}"
            else:
                yield from _compare(name, value, said[key])
    elif not _same(wanted, said):
        yield f"{at or 'it'}: {_show(said)}, not {_show(wanted)}"


def _same(wanted: Any, said: Any) -> bool:
    if isinstance(wanted, bool) or isinstance(said, bool) or wanted is None or said is None:
        return wanted is said
    if isinstance(wanted, int | float) and isinstance(said, int | float):
        return abs(wanted - said) <= TOLERANCE * max(1.0, abs(wanted))
    if isinstance(wanted, list | tuple) and isinstance(said, list | tuple):
        return len(wanted) == len(said) and all(
            _same(one, other) if not isinstance(one, Mapping) else not list(_compare("", one, other))
            for one, other in zip(wanted, said, strict=True)
        )
    return bool(wanted == said)


def _show(value: Any) -> str:
    return "none" if value is None else f"{value:.10g}" if isinstance(value, float) else str(value)


def _compare_queues(wanted: Mapping[str, Any], said: Mapping[str, Any]) -> Iterator[str]:
    """Compare decisions queue by queue. Among queues of equal weight at the limit, any may be cut."""
    rest = {key: value for key, value in wanted.items() if key != "queues"}
    yield from _compare("", rest, said)
    rows = said.get("queues", {})
    ties = {round(row["weight"], 6) for row in wanted["queues"].values() if row.get("decision") == "tie"}
    for name, row in wanted["queues"].items():
        ours = rows.get(name)
        if ours is None:
            yield f"{name}: it is no candidate; expected {row.get('decision')} {row.get('tag')}"
            continue
        tied = row.get("decision") == "tie" or (row.get("weight") is not None and round(row["weight"], 6) in ties)
        cut = ours["decision"] == "use" or str(ours["tag"]).startswith("-low")
        if tied and cut:
            row = {key: value for key, value in row.items() if key not in TIES}
        yield from _compare(name, row, ours)
