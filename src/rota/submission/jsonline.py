"""One line of JSON as one job: its command, and what differs from the rest of the batch."""

import operator
import os
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from rota.model.batch import MAX_COMMAND, MAX_TEMPLATES, Template, check_environment, check_text, check_value
from rota.model.command import group_of, is_starter
from rota.model.errors import UsageError
from rota.model.fields import JSON_FIELDS
from rota.model.limits import limit_settings
from rota.submission.kinds import json_type, kept, option_words
from rota.submission.weaving import AFTER, Weaver

__all__ = ["LineReader"]

_OWN: list[tuple[str, Any, Any]] = [
    ("cwd", str | UnsetType, UNSET),
    ("env", dict[str, str] | UnsetType, UNSET),
    *((name, str | UnsetType | None, UNSET) for name in ("stdin", "stdout", "stderr")),
]
_Words = str | int | tuple[str | int, ...] | None
_LINKS: list[tuple[str, Any, Any]] = [
    ("id", str | int | None, None),
    *((name, _Words, None) for name in AFTER),
    ("live", bool | Literal["rerun"] | None, None),
    ("name", str | tuple[str, ...] | None, None),
]
JsonLine = msgspec.defstruct(
    "JsonLine",
    [
        ("command", str | list[str]),
        *_OWN,
        *_LINKS,
        *((field.name, json_type(field) | None, None) for field in JSON_FIELDS),
    ],
    forbid_unknown_fields=True,
)
"""The fields that a JSON line may have: its own, what links it with others, and what it says instead of its batch."""

SURE = MAX_COMMAND // 4
"""So many characters are short enough, whatever they are."""
KEPT = 10_000
GROUPS = 200
"""Learning groups of one batch; what runs yet another program is in none."""
_TEMPLATE = [field for field in JSON_FIELDS if field.name != "group"]
"""What may make a line's template another than the batch's, but for its learning group."""
_HASHABLE = operator.attrgetter(*(field.name for field in _TEMPLATE if field.kind != "resources"))
_AMOUNTS = ("cores", "size", "duration")
"""Kinds where a number is read as it is written: most need a unit."""
_PLAIN: Any = JsonLine("")
_SCRIPT = re.compile(r"[A-Za-z0-9_/.][A-Za-z0-9_/.-]*\.[A-Za-z]+")
"""A script by its name: what starts it starts nothing else."""
_FIELDS = ", ".join(JsonLine.__struct_fields__)
_AT = re.compile(r"(.*) - at `\$\.?([^`]*)`")
_UNKNOWN = re.compile(r"Object contains unknown field `([^`]*)`.*")
_MISSING = re.compile(r"Object missing required field `([^`]*)`.*")


class LineReader:
    """Turns JSON lines into values, and keeps one template for every different set of needs."""

    def __init__(self, template: Template, by_program: bool, where: str = "") -> None:
        self._base = template
        self.weaver = Weaver(where)
        self.limits: dict[str, int | str] = {}
        """Limits that lines set."""
        self._by_program = by_program
        """Whether the learning group of each line is the basename of its program."""
        self._groups: set[str] = set()
        self._programs: dict[str, int] = {}
        self._numbers: dict[tuple[Any, ...], int] = {}
        self._templates = [template]
        self._paths: dict[tuple[str, str], str] = {}
        self._chosen: defaultdict[int, int] = defaultdict(int)
        """Position of a JSON line → the number of its template, if it is not the first."""
        self.checked = False
        """Whether all lines were read once, and are sound."""
        self.grown = 0
        """Characters that absolute paths have added so far."""
        self._decode = msgspec.json.Decoder(JsonLine).decode

    @property
    def templates(self) -> tuple[Template, ...]:
        """The templates that were needed so far; the first is the batch's own."""
        return tuple(self._templates)

    def plain(self, line: str) -> int:
        """The number of the template of a plain command line: it has one for each program, up to a number of them."""
        if not self._by_program:
            return 0
        words = line.split(None, 2) or [""]
        first = words[0]
        number = self._programs.get(first)
        if number is None:
            started = is_starter(first)
            if started:  # of `python3 run.py 17` the first two words tell
                first = " ".join(words[:2])
                number = self._programs.get(first)
                if number is not None:
                    return number
            number = self._template(_PLAIN, group_of(line))
            known = not started or (len(words) > 1 and _SCRIPT.fullmatch(words[1]) is not None)
            if known and "=" not in first and len(self._programs) < KEPT:
                self._programs[first] = number
        return number

    def text(self, line: str, pos: int, number: int) -> tuple[Any, int]:
        """The value of a JSON line, the one of this number and job of this position, and its template's number."""
        try:
            return self._job(self._decode(line), pos, number)
        except msgspec.ValidationError as error:
            raise UsageError(explain(str(error))) from None
        except (msgspec.DecodeError, RecursionError, ValueError) as error:
            raise UsageError(f"begins with '{{' but is not JSON: {error}") from None

    def mapping(self, line: Mapping[str, Any], pos: int) -> tuple[Any, int]:
        """The value of a Python mapping, and the number of its template."""
        try:
            job: Any = msgspec.convert(dict(line), JsonLine)
            check_value({"command": job.command}, (), True)
            return self._job(job, pos, pos + 1)
        except msgspec.ValidationError as error:
            raise UsageError(explain(str(error))) from None

    def _job(self, line: Any, pos: int, number: int) -> tuple[Any, int]:
        command = line.command
        if not self.checked:
            self.weaver.add(pos, number, line)
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
        if self.checked:
            which = self._chosen[pos]
        else:
            own = group_of(command) if self._by_program and line.group is None else self._base.group
            which = self._template(line, own if line.group is None else line.group)
            if which:
                self._chosen[pos] = which
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

    def _template(self, line: Any, group: str) -> int:
        if not self._groups and group and self._by_program:
            self._base = self._templates[0] = msgspec.structs.replace(self._base, group=group)
        if len(self._groups) < GROUPS:
            self._groups.add(group)
        elif group not in self._groups:
            group = ""
        resources = line.resources
        key = (group, None if resources is None else tuple(sorted(resources.items())), _HASHABLE(line))
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = self._add(line, group)
        return number

    def _add(self, line: Any, group: str) -> int:
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

    def _changed(self, line: Any) -> Template:
        made: dict[str, dict[str, Any]] = {"template": {}, "needs": {}, "options": {}}
        for field in _TEMPLATE:
            given = getattr(line, field.name)
            if given is None:
                continue
            try:
                if field.place == "options":
                    made["options"] |= option_words(field, given)
                    continue
                made[field.place] |= kept(field, str(given) if field.kind in _AMOUNTS else given)
                if field.kind == "limits":
                    self._set_limits(given)
            except UsageError as error:
                raise UsageError(f"field '{field.name}': {error}") from None
        replace = msgspec.structs.replace
        if made["options"]:
            options = dict(self._base.needs.options) | made["options"]
            made["needs"]["options"] = tuple(sorted(options.items()))
        template = replace(self._base, needs=replace(self._base.needs, **made["needs"]), **made["template"])
        template.check()
        return template

    def _set_limits(self, given: Sequence[str]) -> None:
        """Take the rules of limits that a line sets; all lines must agree on them."""
        for name, setting in limit_settings(given).items():
            if self.limits.setdefault(name, setting) != setting:
                raise UsageError(f"limit '{name}' is {self.limits[name]} in a line before, and here {setting}")


def plainly_sound(command: str | list[str]) -> bool:
    """True for a command that needs no closer look (text that comes out of JSON is valid UTF-8)."""
    return type(command) is str and len(command) <= SURE and "\0" not in command and command.strip() != ""


def explain(text: str) -> str:
    """What is wrong with a line, from msgspec's words."""
    if match := _UNKNOWN.fullmatch(text):
        from difflib import get_close_matches

        near = get_close_matches(match[1], JsonLine.__struct_fields__, 1)
        hint = f": did you mean '{near[0]}'?" if near else ""
        return f"unknown field '{match[1]}'{hint} (the fields are {_FIELDS})"
    if match := _MISSING.fullmatch(text):
        return f"field '{match[1]}' is missing"
    if match := _AT.fullmatch(text):
        return f"field '{match[2]}': {match[1][:1].lower()}{match[1][1:].replace('`', '')}"
    return text.replace("`", "'")
