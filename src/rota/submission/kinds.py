"""The kinds of fields: how what a user says becomes what is kept. `rota.model.fields` says which field is of which."""

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from rota.model.amounts import parse_cores, parse_count, parse_duration, parse_size
from rota.model.batch import SIGNALS, Dependency
from rota.model.errors import UsageError
from rota.model.fields import Field
from rota.model.limits import limit_name
from rota.model.needs import RESOURCE, named_resources

__all__ = ["KINDS", "Kind", "json_type", "kept", "option_words", "several", "strings", "working_directory"]

ENFORCE: dict[str, tuple[str, ...]] = {
    "none": (),
    "time": ("time",),
    "memory": ("memory",),
    "both": ("time", "memory"),
}


def kept(field: Field, given: Any) -> dict[str, Any]:
    """The fields of a Template, of its Needs or of a Patch that an option sets."""
    if field.kind == "cores":
        return _cores_needs(given)
    if field.kind == "nodes":
        return _nodes_needs(given)
    if field.kind == "gpus":
        whole, share = _gpus(given)
        return {"gpus": whole, "gpu_share": share}
    return {field.target: KINDS[field.kind].read(given)}


def option_words(field: Field, given: Any) -> dict[str, str | None]:
    """The options for a batch system that an option sets; None: this one is not given."""
    if field.name == "native":
        for key in given:
            if not key.startswith("-"):
                raise UsageError(f"native option '{key}': write it as the batch system does, as in --licenses=matlab")
        return dict(given)
    if field.name == "tasks_per_node":
        if not 1 <= given <= 100_000:
            raise UsageError(f"tasks per node {given}: give 1 or more")
        return {field.target: None if given == 1 else str(given)}
    if field.kind == "switch":
        return {field.target: "yes" if given else None}
    return {field.target: given}


def several(given: Any) -> Any:
    """A sequence of words; one word may stand for it, and must not be taken for its letters."""
    return (given,) if isinstance(given, str | int | Dependency | dict) else given


def strings(given: Any) -> tuple[str, ...]:
    """A tuple of words, from one word, several, or numbers."""
    return tuple(str(word) for word in several(given))


def working_directory(given: str | None) -> str:
    """An absolute path; without placeholders it must be a directory."""
    if given is None and (here := _here()):
        return here
    path = os.path.expanduser(given) if given is not None else ""
    if not path.startswith("/"):
        try:
            path = os.path.normpath(os.path.join(os.getcwd(), path))
        except FileNotFoundError:
            raise UsageError("the directory you are in has been removed: cd to another, or give --cwd") from None
    if "{" not in path and not os.path.isdir(path):
        why = "is not a directory" if os.path.exists(path) else "does not exist"
        raise UsageError(f"the working directory '{path}' {why}")
    return path


def _here() -> str:
    """The directory that we are in; empty: it has no path."""
    try:
        here = os.getcwd()
    except FileNotFoundError:
        return ""
    return here if here.startswith("/") else ""


def _as_given(given: Any) -> Any:
    return given


def _cores(given: str | float | None) -> tuple[int, int]:
    if given is None:
        return 1000, 1000
    return parse_cores(given if isinstance(given, str) else f"{given:.3f}".rstrip("0").rstrip("."))


def _cores_needs(given: str | float | None) -> dict[str, Any]:
    """The fields of Needs for `4`, `2..8` or `all`."""
    whole = isinstance(given, str) and given.strip() == "all"
    least, most = _cores(None if whole else given)
    return {"cores": least, "cores_most": most if most != least else 0, "whole": whole}


def _nodes_needs(given: str | int) -> dict[str, Any]:
    """The fields of Needs for `4` or `2..8`."""
    least, most = parse_count(given, "nodes") if isinstance(given, str) else (given, given)
    return {"nodes": least, "nodes_most": most if most != least else 0}


def _variants(given: str | Iterable[str | Mapping[str, Any]]) -> tuple[tuple[tuple[str, int], ...], ...]:
    """What each variant says of its own: from `cores=2,gpus=1`, or a mapping."""
    return tuple(_variant(each) for each in several(given))


def _variant(given: str | Mapping[str, Any]) -> tuple[tuple[str, int], ...]:
    if isinstance(given, str):
        words = [part.partition("=") for part in given.split(",")]
        if not all(equals for _, equals, _ in words):
            raise UsageError(f"variant '{given[:60]}': write NAME=VALUE,…, as in cores=2,gpus=1")
        given = {name.strip(): value.strip() for name, _, value in words}
    out: dict[str, Any] = {}
    for name, value in given.items():
        if name == "cores":
            out |= _cores_needs(value)
        elif name == "nodes":
            out |= _nodes_needs(value)
        elif name == "gpus":
            out["gpus"], out["gpu_share"] = _gpus(value)
        elif name in ("memory", "disk"):
            out[name] = _size(value)
        elif name == "time":
            out["time_s"] = _seconds(value)
        elif name.startswith(RESOURCE) and str(value).isascii() and str(value).isdigit():
            out[name] = int(value)
        else:
            raise UsageError(
                f"variant '{name}={value}': give cores, nodes, memory, disk, time, gpus or resource.NAME=N"
            )
    return tuple(sorted((name, int(value)) for name, value in out.items()))


def _gpus(given: str | float) -> tuple[int, int]:
    """(whole gpus, thousandths of one) of `2` or `0.5`."""
    text = (f"{given:.6f}".rstrip("0").rstrip(".") if isinstance(given, float) else str(given)).strip()
    whole, _, fraction = text.partition(".")
    if not re.fullmatch(r"[0-9]{1,9}(\.[0-9]+)?", text, re.ASCII):
        raise UsageError(f"'{text[:40]}' is not a number of gpus: write 2, or 0.5 for a share of one")
    if not fraction.strip("0"):
        return int(whole), 0
    if int(whole):
        raise UsageError(
            f"{text} gpus: whole ones, as in {int(whole)} or {int(whole) + 1}, or a share of one, as in 0.5"
        )
    if len(fraction.rstrip("0")) > 3:
        raise UsageError(f"{text} of a gpu: give thousandths, 0.001 to 0.999")
    return 0, int((fraction + "000")[:3])


def _bind(given: str | None) -> str:
    return "" if given in (None, "none") else str(given)


def _size(given: str | int | None) -> int | None:
    return parse_size(given) if isinstance(given, str) else given


def _seconds(given: str | int | None) -> int | None:
    return parse_duration(given) if isinstance(given, str) else given


def _path(given: str | None) -> str | None:
    return None if given is None else os.path.abspath(os.path.expanduser(given))


def _image(given: str | None) -> str | None:
    """The name of an image, or its absolute path."""
    return os.path.abspath(os.path.expanduser(given)) if given is not None and given[:1] in (".", "~") else given


def _mounts(given: str | Sequence[str]) -> tuple[str, ...]:
    """Mounts with absolute paths outside: what is relative is of this directory."""
    made = []
    for text in strings(given):
        outside, colon, inside = text.partition(":")
        made.append(os.path.abspath(os.path.expanduser(outside)) + colon + inside if outside else text)
    return tuple(made)


def _data(given: Any, what: str) -> tuple[str, ...]:
    from rota.submission.data import read_paths

    return read_paths(strings(given), what) if given else ()


def _tags(given: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(set(several(given))))


def _limits(given: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted({limit_name(limit) for limit in several(given)}))


def _commands(given: str | Sequence[str]) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)


def _enforce(given: str) -> tuple[str, ...]:
    if given not in ENFORCE:
        raise UsageError(f"enforce '{given}': give time, memory, both or none")
    return ENFORCE[given]


def _signal(given: str | None) -> tuple[str, int] | None:
    """(signal, seconds) of `USR1@120`."""
    if given is None:
        return None
    name, at, time_text = given.partition("@")
    name = name.upper().removeprefix("SIG")
    if not at or name not in SIGNALS:
        raise UsageError(f"signal '{given}': write NAME@TIME, as in USR1@120; the names are {', '.join(SIGNALS)}")
    # A bare number is seconds here, as in every batch system's option of this kind.
    plain = time_text.isascii() and time_text.isdigit() and len(time_text) < 10
    return name, int(time_text) if plain else parse_duration(time_text)


class Kind(NamedTuple):
    """How the fields of one kind are read."""

    read: Callable[[Any], Any] = _as_given
    json: Any = None
    """The type that they have in a JSON line; None: one of their choices."""


KINDS = {
    "bind": Kind(_bind),
    "choice": Kind(),
    "commands": Kind(_commands, str | tuple[str, ...]),
    "cores": Kind(_cores, int | float | str),
    "count": Kind(json=int),
    "directory": Kind(working_directory),
    "duration": Kind(_seconds, int | str),
    "enforce": Kind(_enforce),
    "file": Kind(_path),
    "inputs": Kind(lambda given: _data(given, "input"), str | tuple[str, ...]),
    "outputs": Kind(lambda given: _data(given, "output"), str | tuple[str, ...]),
    "gpus": Kind(json=int | float | str),
    "image": Kind(_image, str),
    "limits": Kind(_limits, tuple[str, ...]),
    "list": Kind(strings, tuple[str | int, ...]),
    "mounts": Kind(_mounts, str | tuple[str, ...]),
    "nodes": Kind(_nodes_needs, int | str),
    "names": Kind(strings, str | tuple[str, ...]),
    "path": Kind(_path),
    "resources": Kind(named_resources, dict[str, int]),
    "signal": Kind(_signal, str),
    "size": Kind(_size, int | str),
    "switch": Kind(json=bool),
    "tags": Kind(_tags, tuple[str, ...]),
    "text": Kind(json=str),
    "variables": Kind(dict),
    "variants": Kind(_variants, str | tuple[str | dict[str, Any], ...]),
}


def json_type(field: Field) -> Any:
    """The type of a field in a JSON line."""
    return Literal[field.choices] if field.choices else KINDS[field.kind].json
