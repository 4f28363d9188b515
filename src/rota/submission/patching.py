"""What `modify`, and `retry` with changes, say of jobs: from a user's words to a Patch."""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypedDict

import msgspec

from rota.model.amounts import parse_cores, parse_duration, parse_size
from rota.model.batch import Dependency
from rota.model.errors import UsageError
from rota.model.needs import named_resources
from rota.model.patch import BatchPatch, Change, Patch
from rota.submission.options import (
    ENFORCE,
    OPTIONS,
    Options,
    dependencies,
    dependency_word,
    lines,
    moment,
    warning,
    working_directory,
)

__all__ = ["Changes", "make_patch"]

_RELATIVE = re.compile(r"([x*+-])(.+)")
Relative = str | int | float | None


class Changes(TypedDict, total=False):
    """What can be changed. Sizes and times may be relative: `"x2"`, `"+1G"`, `"-30m"`.

    From `name` on it is about whole batches. What is given in `after` is waited for too; `"none"`, or as the first of
    several, takes away what there is. None takes the others away.
    """

    memory: Relative
    disk: Relative
    time: Relative
    cores: Relative
    gpus: int
    resources: Mapping[str, int]
    tags: Sequence[str]
    on: str | None
    command: str | Sequence[str]
    priority: int
    retries: int
    retry_on: Sequence[str | int]
    never_retry_on: Sequence[str | int]
    no_retry_after: str | int | None
    limits: Sequence[str]
    drop_limits: Sequence[str]
    cwd: str
    env: Mapping[str, str | None]
    env_from: Literal["submit", "site", "none"]
    stdin: str | None
    stdout: str | None
    stderr: str | None
    modules: Sequence[str]
    setup: str | None
    enforce: Literal["none", "time", "memory", "both"]
    grace: str | int
    output_cap: str | int
    rerunnable: bool
    group: str
    override: Literal["never", "higher", "always"]
    workdir: Literal["shared", "unique"]
    cleanup: Literal["success", "failure", "always", "never"]
    change_home: bool
    on_success: str | Sequence[str]
    on_failure: str | Sequence[str]
    on_exit: str | Sequence[str]
    behaviour_time: str | int
    remove_on: Literal["success", "failure", "exit"] | None
    signal: str | None
    account: str | None
    partition: str | None
    qos: str | None
    reservation: str | None
    constraint: str | None
    native: Mapping[str, str | None]
    exclusive: bool
    nodes: int
    tasks_per_node: int
    name: str | None
    after: Sequence[str | int | Dependency] | Literal["none"] | None
    after_any: Sequence[str | int]
    after_failure: Sequence[str | int]
    each: bool
    live: bool | Literal["rerun"]
    require_known: bool
    drop_after: Sequence[str | int]
    not_before: str | float | None
    at_once: int | None
    max_failures: str | int | None
    on_batch_end: str | None


def make_patch(changes: Changes) -> dict[str, Any]:
    """The Patch for these changes, as it is sent."""
    given: dict[str, Any] = {}
    for name, value in changes.items():
        if name in _BATCH:
            continue
        maker = _MAKERS.get(name)
        if maker is None:
            raise UsageError(f"'{name}' cannot be changed; what can is: {', '.join(sorted((*_MAKERS, *_BATCH)))}")
        for field, made in maker(value).items():
            given[field] = (*given.get(field, ()), *made) if field.startswith("options_") else made
    batch = _batch_patch(changes)
    if batch != BatchPatch():
        given["batch"] = batch
    sent: dict[str, Any] = msgspec.to_builtins(Patch(**given))
    return sent


_BATCH = ("name", "after", "after_any", "after_failure", "each", "live", "require_known", "drop_after", "not_before",
          "at_once", "max_failures", "on_batch_end")  # fmt: skip


def _batch_patch(changes: Changes) -> BatchPatch:
    given: dict[str, Any] = {}
    for name in ("name", "on_batch_end"):
        if name in changes:
            given[name] = changes[name] or ""
    for name in ("at_once", "max_failures"):
        if name in changes:
            given[name] = changes[name]  # type: ignore[literal-required]
    if "not_before" in changes:
        when = changes["not_before"]
        given["not_before"] = None if when == "now" else moment(when)
    after = changes.get("after", ())
    after = ("none",) if after is None or after == "none" else tuple(after)
    options = Options(
        after=after[1:] if after[:1] == ("none",) else after,
        after_any=changes.get("after_any", ()),
        after_failure=changes.get("after_failure", ()),
        each=changes.get("each", False),
        live=changes.get("live", False),
    )
    return BatchPatch(
        after=tuple(dependencies(options)),
        after_drop=tuple(dependency_word(target) for target in changes.get("drop_after", ())),
        after_none=after[:1] == ("none",),
        require_known=changes.get("require_known", False),
        **given,
    )


def _amount(name: str, parse: Callable[[str], int]) -> Callable[[Any], dict[str, Any]]:
    def make(value: Any) -> dict[str, Any]:
        if isinstance(value, str):
            match = _RELATIVE.fullmatch(value.strip())
            return {name: parse(value) if match is None else _change(value, match[1], match[2], parse)}
        return {name: value}

    return make


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


def _cores(value: Any) -> dict[str, Any]:
    if isinstance(value, str) and _RELATIVE.fullmatch(value.strip()) is None:
        cores, most = parse_cores(value)
        return {"cores": cores, "cores_most": most if most != cores else 0}
    if isinstance(value, str):
        return _amount("cores", lambda text: parse_cores(text)[0])(value)
    return {"cores": round(value * 1000), "cores_most": 0}


def _seconds(name: str) -> Callable[[Any], dict[str, Any]]:
    return lambda value: {name: parse_duration(value) if isinstance(value, str) else value}


def _words(name: str) -> Callable[[Any], dict[str, Any]]:
    return lambda value: {name: tuple(str(word) for word in _several(value))}


def _several(value: Any) -> Sequence[Any]:
    """One word may stand where several can: a string must not be taken for its letters."""
    return (value,) if isinstance(value, str | int) else value


def _enforce(value: str) -> dict[str, Any]:
    if value not in ENFORCE:
        raise UsageError(f"enforce '{value}': give time, memory, both or none")
    return {"enforce": ENFORCE[value]}


def _plain(name: str) -> Callable[[Any], dict[str, Any]]:
    return lambda value: {name: value}


def _path(name: str) -> Callable[[Any], dict[str, Any]]:
    return lambda value: {name: None if value is None else os.path.abspath(os.path.expanduser(value))}


def _option(name: str) -> Callable[[Any], dict[str, Any]]:
    return lambda value: {"options_drop": (name,)} if value is None else {"options_add": ((name, value),)}


def _command(value: Any) -> dict[str, Any]:
    return {"shell": value} if isinstance(value, str) else {"argv": tuple(value)}


def _native(value: Mapping[str, str | None]) -> dict[str, Any]:
    for key in value:
        if not key.startswith("-"):
            raise UsageError(f"native option '{key}': write it as the batch system does, as in --licenses=matlab")
    return {
        "options_add": tuple(sorted((key, text) for key, text in value.items() if text is not None)),
        "options_drop": tuple(sorted(key for key, text in value.items() if text is None)),
    }


def _tasks(value: int) -> str:
    if not 1 <= value <= 100_000:
        raise UsageError(f"tasks per node {value}: give 1 or more")
    return str(value)


_MAKERS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "memory": _amount("memory", parse_size),
    "disk": _amount("disk", parse_size),
    "time": _amount("time_s", parse_duration),
    "cores": _cores,
    "gpus": _plain("gpus"),
    "resources": lambda value: {"named": named_resources(value)},
    "tags": lambda value: {"tags": tuple(sorted(set(_several(value))))},
    "on": _plain("site"),
    "command": _command,
    "priority": _plain("priority"),
    "retries": _plain("retries"),
    "retry_on": _words("retry_on"),
    "never_retry_on": _words("never_retry_on"),
    "no_retry_after": _seconds("no_retry_after_s"),
    "limits": _words("limits_add"),
    "drop_limits": _words("limits_drop"),
    "cwd": lambda value: {"cwd": working_directory(value)},
    "env": lambda value: {"set": dict(value)},
    "env_from": _plain("env_from"),
    "stdin": _path("stdin"),
    "stdout": _path("stdout"),
    "stderr": _path("stderr"),
    "modules": _words("modules"),
    "setup": _path("setup"),
    "enforce": _enforce,
    "grace": _seconds("grace_s"),
    "output_cap": lambda value: {"cap": parse_size(value) if isinstance(value, str) else value},
    "rerunnable": _plain("rerunnable"),
    "group": _plain("group"),
    "override": _plain("override"),
    "workdir": _plain("workdir"),
    "cleanup": _plain("cleanup"),
    "change_home": _plain("change_home"),
    "on_success": lambda value: {"on_success": lines(value)},
    "on_failure": lambda value: {"on_failure": lines(value)},
    "on_exit": lambda value: {"on_exit": lines(value)},
    "behaviour_time": _seconds("behaviour_s"),
    "remove_on": _plain("remove_on"),
    "signal": lambda value: {"warn": warning(value)},
    **{name: _option(name) for name in OPTIONS},
    "native": _native,
    "exclusive": lambda value: _option("exclusive")("yes" if value else None),
    "nodes": _plain("nodes"),
    "tasks_per_node": lambda value: _option("tasks-per-node")(None if value == 1 else _tasks(value)),
}
