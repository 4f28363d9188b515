"""One line of JSON as one job: its command, and what differs from the rest of the batch."""

import os
import re
from collections.abc import Mapping
from typing import Any, Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType

from rota.model.amounts import parse_cores, parse_duration, parse_size
from rota.model.batch import MAX_COMMAND, MAX_TEMPLATES, Template, check_environment, check_text, check_value
from rota.model.command import BEHAVIOURS, group_of
from rota.model.errors import UsageError
from rota.model.limits import parse_limit
from rota.model.needs import named_resources
from rota.submission.options import ENFORCE, lines, warning

__all__ = ["LineReader"]


class JsonLine(Struct, forbid_unknown_fields=True):
    """The fields that a JSON line may have."""

    command: str | list[str]
    cwd: str | UnsetType = UNSET
    env: dict[str, str] | UnsetType = UNSET
    stdin: str | UnsetType | None = UNSET
    stdout: str | UnsetType | None = UNSET
    stderr: str | UnsetType | None = UNSET
    cores: int | float | str | None = None
    memory: int | str | None = None
    time: int | str | None = None
    disk: int | str | None = None
    gpus: int | None = None
    resources: dict[str, int] | None = None
    tags: list[str] | None = None
    priority: int | None = None
    retries: int | None = None
    limits: list[str] | None = None
    workdir: Literal["shared", "unique"] | None = None
    cleanup: Literal["success", "failure", "always", "never"] | None = None
    change_home: bool | None = None
    on_success: str | list[str] | None = None
    on_failure: str | list[str] | None = None
    on_exit: str | list[str] | None = None
    remove_on: Literal["success", "failure", "exit"] | None = None
    signal: str | None = None
    group: str | None = None
    override: Literal["never", "higher", "always"] | None = None
    retry_on: list[str | int] | None = None
    never_retry_on: list[str | int] | None = None
    no_retry_after: int | str | None = None
    rerunnable: bool | None = None
    enforce: Literal["none", "time", "memory", "both"] | None = None


SURE = MAX_COMMAND // 4
"""Characters that are short enough whatever they are."""
KEPT = 10_000
GROUPS = 200
"""Learning groups of one batch; what runs yet another program is in none."""
_AMOUNTS = (("memory", "memory", parse_size), ("disk", "disk", parse_size), ("time", "time_s", parse_duration))
_PLAIN = JsonLine("")
_FIELDS = ", ".join(JsonLine.__struct_fields__)
_AT = re.compile(r"(.*) - at `\$\.?([^`]*)`")
_UNKNOWN = re.compile(r"Object contains unknown field `([^`]*)`.*")
_MISSING = re.compile(r"Object missing required field `([^`]*)`.*")


class LineReader:
    """Turns JSON lines into values, and keeps one template for every different set of needs."""

    def __init__(self, template: Template, by_program: bool = False) -> None:
        self._base = template
        self._by_program = by_program
        """Whether the learning group of each line is the basename of its program."""
        self._groups: set[str] = set()
        self._programs: dict[str, int] = {}
        self._numbers: dict[tuple[Any, ...], int] = {}
        self._templates = [template]
        self._paths: dict[tuple[str, str], str] = {}
        self.checked = False
        """All lines were read once, and are sound."""
        self.grown = 0
        """Characters that absolute paths have added so far."""
        self._decode = msgspec.json.Decoder(JsonLine).decode

    @property
    def templates(self) -> tuple[Template, ...]:
        """What was needed so far; the first is the batch's own."""
        return tuple(self._templates)

    def plain(self, line: str) -> int:
        """The number of the template of a plain command line: it has one for each program, up to a number of them."""
        if not self._by_program:
            return 0
        first = (line.split(None, 1) or [""])[0]
        number = self._programs.get(first)
        if number is None:
            number = self._template(_PLAIN, group_of(line))
            if "=" not in first and len(self._programs) < KEPT:
                self._programs[first] = number
        return number

    def text(self, line: str) -> tuple[Any, int]:
        """A value and the number of its template."""
        try:
            return self._job(self._decode(line))
        except msgspec.ValidationError as error:
            raise UsageError(explain(str(error))) from None
        except (msgspec.DecodeError, RecursionError, ValueError) as error:
            raise UsageError(f"begins with '{{' but is not JSON: {error}") from None

    def mapping(self, line: Mapping[str, Any]) -> tuple[Any, int]:
        """The same from a Python mapping."""
        try:
            job = msgspec.convert(dict(line), JsonLine)
            check_value({"command": job.command}, (), True)
            return self._job(job)
        except msgspec.ValidationError as error:
            raise UsageError(explain(str(error))) from None

    def _job(self, line: JsonLine) -> tuple[Any, int]:
        command = line.command
        if not self.checked and not plainly_sound(command):
            check_value({"command": command}, (), True)
        value: dict[str, Any] = {"command": command}
        cwd = self._base.cwd
        if line.cwd is not UNSET:
            value["cwd"] = cwd = self._path(cwd, line.cwd)
        if line.env is not UNSET:
            if not self.checked:
                check_environment(line.env)
            value["env"] = line.env
        if line.stdin is not UNSET:
            value["stdin"] = None if line.stdin is None else self._path(cwd, line.stdin)
        if line.stdout is not UNSET:
            value["stdout"] = None if line.stdout is None else self._path(cwd, line.stdout)
        if line.stderr is not UNSET:
            value["stderr"] = None if line.stderr is None else self._path(cwd, line.stderr)
        group = line.group if line.group is not None else group_of(command) if self._by_program else self._base.group
        which = self._template(line, group)
        return (command if len(value) == 1 and isinstance(command, str) else value), which

    def _path(self, cwd: str, given: str) -> str:
        """An absolute path. Many lines name the same few."""
        path = self._paths.get((cwd, given))
        if path is None:
            check_text("a path", given)
            path = os.path.join(cwd, os.path.expanduser(given))
            if len(self._paths) >= KEPT:
                self._paths.clear()
            self._paths[cwd, given] = path
        self.grown += len(path) - len(given)
        return path

    def _template(self, line: JsonLine, group: str) -> int:
        if not self._groups and group and self._by_program:
            self._base = self._templates[0] = msgspec.structs.replace(self._base, group=group)
        if len(self._groups) < GROUPS:
            self._groups.add(group)
        elif group not in self._groups:
            group = ""
        key = (
            line.cores,
            line.memory,
            line.time,
            line.disk,
            line.gpus,
            line.priority,
            line.retries,
            None if line.resources is None else tuple(sorted(line.resources.items())),
            None if line.tags is None else tuple(line.tags),
            None if line.limits is None else tuple(line.limits),
            group,
            line.workdir,
            line.cleanup,
            line.change_home,
            line.remove_on,
            line.signal,
            line.override,
            line.no_retry_after,
            line.rerunnable,
            line.enforce,
            None if line.retry_on is None else tuple(line.retry_on),
            None if line.never_retry_on is None else tuple(line.never_retry_on),
            *(None if (given := getattr(line, name)) is None else lines(given) for name in BEHAVIOURS),
        )
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = self._add(line, group)
        return number

    def _add(self, line: JsonLine, group: str) -> int:
        template = self._changed(line)
        if self._by_program or line.group is not None:
            template = msgspec.structs.replace(template, group=group)
            template.check()
        if template == self._base:
            return 0
        if len(self._templates) >= MAX_TEMPLATES:
            raise UsageError(f"one batch has at most {MAX_TEMPLATES:,} different sets of needs: make several batches")
        self._templates.append(template)
        return len(self._templates) - 1

    def _changed(self, line: JsonLine) -> Template:
        needs: dict[str, Any] = {}
        other: dict[str, Any] = {}
        name = ""
        try:
            if line.cores is not None:
                name = "cores"
                least, most = parse_cores(str(line.cores))
                needs |= {"cores": least, "cores_most": most if most != least else 0}
            for name, target, parse in _AMOUNTS:
                given = getattr(line, name)
                if given is not None:
                    needs[target] = parse(str(given))
            name = "needs"
            if line.gpus is not None:
                needs["gpus"] = line.gpus
            if line.resources is not None:
                needs["named"] = named_resources(line.resources)
            if line.tags is not None:
                needs["tags"] = tuple(sorted(set(line.tags)))
            for name in ("priority", "retries"):
                if getattr(line, name) is not None:
                    other[name] = getattr(line, name)
            if line.limits is not None:
                name = "limits"
                other["limits"] = tuple(sorted({_limit(limit) for limit in line.limits}))
            for name in ("workdir", "cleanup", "change_home", "remove_on", "override", "rerunnable"):
                if getattr(line, name) is not None:
                    other[name] = getattr(line, name)
            for name in BEHAVIOURS:
                if getattr(line, name) is not None:
                    other[name] = lines(getattr(line, name))
            if line.signal is not None:
                name = "signal"
                other["warn"] = warning(line.signal)
            for name in ("retry_on", "never_retry_on"):
                if getattr(line, name) is not None:
                    other[name] = tuple(str(word) for word in getattr(line, name))
            if line.no_retry_after is not None:
                name = "no_retry_after"
                other["no_retry_after_s"] = parse_duration(str(line.no_retry_after))
            if line.enforce is not None:
                other["enforce"] = ENFORCE[line.enforce]
            replace = msgspec.structs.replace
            template = replace(self._base, needs=replace(self._base.needs, **needs), **other)
            name = ""
            template.check()
        except UsageError as error:
            raise UsageError(f"field '{name}': {error}" if name else str(error)) from None
        return template


def plainly_sound(command: str | list[str]) -> bool:
    """True for what needs no closer look (text that comes out of JSON is valid UTF-8)."""
    return type(command) is str and len(command) <= SURE and "\0" not in command and command.strip() != ""


def explain(text: str) -> str:
    """What is wrong with a line, from what msgspec says."""
    if match := _UNKNOWN.fullmatch(text):
        if match[1] == "name":
            return "unknown field 'name': a name belongs to the whole batch, give --name"
        return f"unknown field '{match[1]}' (the fields are {_FIELDS})"
    if match := _MISSING.fullmatch(text):
        return f"field '{match[1]}' is missing"
    if match := _AT.fullmatch(text):
        return f"field '{match[2]}': {match[1][:1].lower()}{match[1][1:].replace('`', '')}"
    return text.replace("`", "'")


def _limit(text: str) -> str:
    name, rule = parse_limit(text)
    if rule is not None:
        raise UsageError(f"limit '{text}': a line names its limits, as in \"{name}\"; --limit {text} sets one for all")
    return name
