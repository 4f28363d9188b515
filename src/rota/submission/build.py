"""One submission: checked, then turned into requests."""

import itertools
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from rota.model.batch import MAX_COMMAND, BatchSpec, Template, Value, index_at, most_failures, scout_count
from rota.model.command import CommandMaker, compile_text, numbered, show_command
from rota.model.errors import UsageError
from rota.model.limits import limit_settings
from rota.submission.environment import own_environment
from rota.submission.kinds import working_directory
from rota.submission.options import (
    LASTING,
    JobOptions,
    array_numbers,
    completed,
    dependencies,
    end_spec,
    make_template,
    moment,
    own_umask,
)
from rota.submission.sources import ArrayNumbers, Chunk, GivenLines, LineFile, One, Rows, Source

__all__ = ["Submission", "build"]

MAX_SUBMIT = 4_000_000
"""Bytes of one `submit` request; the protocol's frames take 4 MiB."""
INLINE_VALUES = 2_000
INLINE_BYTES = 262_144
MOST_ALONE = 256
_ALONE: dict[tuple[object, ...], tuple[BatchSpec, bytes]] = {}
"""One job with its options (`_what_it_is`) → its spec, and that in JSON: who submits often submits few kinds."""


class Submission:
    """A checked batch, ready to be sent: `requests()` gives what to ask, in order."""

    def __init__(
        self, spec: BatchSpec, source: Source, options: JobOptions, end: BatchSpec | None = None, encoded: bytes = b""
    ) -> None:
        self.spec = spec
        self._encoded = (spec, encoded)
        """A spec that was encoded before, in JSON; empty: it was not."""
        self.end = end
        """One job to run when all of the batch is settled."""
        self.source = source
        self._sorted = own_environment() if options["env_from"] == "submit" else None
        self.limits = limit_settings(options["limits"])
        for name, setting in source.limits.items():
            if self.limits.setdefault(name, setting) != setting:
                raise UsageError(f"limit '{name}' is {setting} in a line, and {self.limits[name]} for all: say it once")
        self.key = os.urandom(16).hex()
        self.once: str | None = None
        """`cwd`: leave out jobs whose command and directory are queued or done; `command`: whose command is."""
        self.rerun = False

    @property
    def env(self) -> dict[str, str] | None:
        """The variables that are sent; None: that is not asked for."""
        return None if self._sorted is None else {**self._sorted.sent}

    @property
    def left_out(self) -> list[str]:
        """Variables that are not sent."""
        return [] if self._sorted is None else [*self._sorted.left_out]

    @property
    def secrets(self) -> list[str]:
        """Those of them that look secret."""
        return [] if self._sorted is None else [*self._sorted.secrets]

    def encoded(self) -> dict[str, bytes] | None:
        """All but the key of the one request that this is, in JSON, if it was made before; None: see `requests`."""
        spec, batch = self._encoded
        if not batch or spec is not self.spec or self.once is not None:
            return None
        return {"batch": batch, "env": b"null" if self._sorted is None else self._sorted.encoded}

    def requests(self) -> Iterator[dict[str, Any]]:
        """Every request of this submission, `stage` first where the values are many; the last is the `submit`.

        It may be called again after a lost connection: the key is the same, so nothing is added twice.
        """
        chunks = self.source.chunks()
        first = next(chunks, None)
        second = next(chunks, None) if first is not None else None
        submit: dict[str, Any] = {"op": "submit", "key": self.key, "env": self.env}
        submit["batch"] = msgspec.to_builtins(self.spec)
        if self.limits:
            submit["limits"] = self.limits
        if self.end is not None:
            submit["end"] = msgspec.to_builtins(self.end)
        if self.once is not None:
            submit |= {"once": self.once, "rerun": self.rerun}
        weaver = self.source.weaver
        if weaver is not None:
            submit["graph"] = weaver.head()
        if first is not None and second is None and weaver is None and fits(first):
            submit["values"] = first[0]
        elif first is not None:
            submit["stage"] = stage = os.urandom(16).hex()
            at = 0
            for values, templates in itertools.chain([first], [] if second is None else [second], chunks):
                piece = {"op": "stage", "stage": stage, "first": at, "values": values, "templates": templates}
                if weaver is not None:
                    piece["links"] = weaver.rows(at, len(values))
                yield piece
                at += len(values)
            if at != self.spec.count:
                raise UsageError(f"the input changed while it was read ({self.spec.count:,} jobs, then {at:,})")
        check_size(submit)
        yield submit

    def preview(self, most: int) -> list[tuple[int, str]]:
        """The first jobs as (number, command)."""
        makers = [CommandMaker(template, self.spec.columns, 0) for template in self.spec.templates]
        out: list[tuple[int, str]] = []
        for value, which in self._first(most):
            index = index_at(self.spec.ranges, len(out))
            out.append((index, show_command(makers[which].command(value, index, 1))))
        return out

    def _first(self, most: int) -> Iterator[tuple[Value, int]]:
        rows: Iterator[tuple[Value, int]] = (
            (value, templates[at] if templates is not None else 0)
            for values, templates in self.source.chunks()
            for at, value in enumerate(values)
        )
        if isinstance(self.source, One | ArrayNumbers):
            rows = itertools.repeat((None, 0), self.spec.count)
        return itertools.islice(rows, most)


def build(
    command: str | Sequence[str] | None,
    options: JobOptions,
    *,
    lines: LineFile | Iterable[str | Mapping[str, Any]] | None = None,
    values: LineFile | Iterable[str] | None = None,
    params: Mapping[str, Iterable[str]] | None = None,
    zipped: bool = False,
    array: str | range | Iterable[int] | None = None,
) -> Submission:
    """Check everything, and make the Submission. Raises UsageError, naming what is wrong and where."""
    many = any(what is not None for what in (lines, values, params, array))
    alike = None if many else _what_it_is(command, options)
    if alike is not None and (known := _ALONE.get(alike)) is not None:
        spec, encoded = known
        return Submission(spec, One(), {"env_from": spec.templates[0].env_from, "limits": ()}, None, encoded)
    made_by = {"lines of commands": lines, "values": values, "parameters": params, "an array": array}
    given = [name for name, what in made_by.items() if what is not None]
    if len(given) > 1:
        raise UsageError(f"{given[0]} and {given[1]} cannot be given together: only one of them can make the jobs")
    if command is None and lines is None:
        raise UsageError("there is nothing to run: give a command, or lines of commands")
    if command is not None and lines is not None:
        raise UsageError("give either a command or lines of commands, not both (values go into the {} of a command)")
    options = completed(options)
    if callable(command):
        raise UsageError(
            f"{getattr(command, '__name__', 'a function')} is a function: rota runs commands, "
            'as in submit([sys.executable, "script.py", "{}"], values=[1, 2, 3])'
        )
    if isinstance(values, str):
        raise UsageError(f"values={values!r} is one text: give a list of values, as in values=[{values!r}]")
    anything: object = command
    if anything is not None and not isinstance(anything, str | Sequence):
        what = type(anything).__name__
        raise UsageError(f"a {what} is no command: give a string or a list of words, or many jobs as submit(lines=…)")
    template = make_template(command, options)
    at_once = options["at_once"]
    source: Source = One()
    if lines is not None:
        source = (
            lines.as_commands(template, options["group"] is None)
            if isinstance(lines, LineFile)
            else GivenLines(lines, template, options["group"] is None)
        )
    elif values is not None:
        source = values.as_values("") if isinstance(values, LineFile) else Rows(("",), [list(values)], zipped=False)
    elif params is not None:
        if not params:
            raise UsageError("there are no parameters")
        source = Rows(tuple(params), [list(row) for row in params.values()], zipped=zipped)
    elif array is not None:
        ranges, most = array_numbers(array)
        template = numbered(template)
        source = ArrayNumbers(ranges)
        at_once = min((limit for limit in (at_once, most) if limit is not None), default=None)
    written = template
    if template.inputs or template.outputs:
        from rota.submission.data import DataSource, has_places, plain_paths

        if not source.templates and has_places(template, source.columns):
            several = DataSource(source, template)
            source = several if len(several.templates) > 1 else source
            template = several.templates[0]
        else:
            paths = plain_paths(template.inputs), plain_paths(template.outputs)
            template = msgspec.structs.replace(template, inputs=paths[0], outputs=paths[1])
    spec = BatchSpec(
        count=source.count,
        templates=source.templates or (template,),
        name=options["name"],
        columns=source.columns,
        ranges=source.ranges,
        at_once=at_once,
        max_failures=most_failures(options["max_failures"], source.count),
        scouts=scout_count(options["scouts"]),
        after=tuple(dependencies(options)),
        not_before=moment(options["not_before"]),
        require_known=options["require_known"],
    )
    spec.check()
    check_values_used(written, source)
    if alike is not None:
        if len(_ALONE) >= MOST_ALONE:
            _ALONE.clear()
        _ALONE[alike] = (spec, msgspec.json.encode(spec))
    return Submission(spec, source, options, end_spec(options, template))


def _what_it_is(command: str | Sequence[str] | None, options: JobOptions) -> tuple[object, ...] | None:
    """All that decides what one job with these options is; None: that changes with time, or with files."""
    words = command if type(command) is str else tuple(command) if type(command) in (list, tuple) else None  # type: ignore[arg-type]
    if not words or not all(type(word) is str for word in words):
        return None
    for name, given in options.items():
        if name not in LASTING or type(given) not in (str, int, float, bool):
            return None
    here = working_directory(None)
    return (words, here, own_umask(), *[(name, type(given), given) for name, given in options.items()])


def fits(chunk: Chunk) -> bool:
    """True if the values can go into the `submit` itself."""
    values, templates = chunk
    return templates is None and len(values) <= INLINE_VALUES and len(msgspec.json.encode(values)) < INLINE_BYTES


def check_values_used(template: Template, source: Source) -> None:
    """Refuse values that nothing uses, and values that make a command too long."""
    if not source.columns:
        return
    texts = [*(template.argv or ()), template.shell, template.cwd, template.stdin, template.stdout, template.stderr]
    texts += [*template.on_success, *template.on_failure, *template.on_exit, *template.inputs, *template.outputs]
    used = {part for text in texts if text for part in compile_text(text, source.columns)}
    for at, name in enumerate(source.columns):
        if at not in used:
            place = "{" + name + "}"
            what = f"parameter '{name}'" if name else "the values"
            raise UsageError(f"nothing uses {what}: write {place} where it belongs, as in -- echo {place}")
    words = (template.shell,) if template.shell is not None else template.argv or ()
    if any(len(word) + word.count("{") * 5 * source.longest > MAX_COMMAND // 4 for word in words):
        check_lengths(CommandMaker(template, source.columns, 0), source)


def check_lengths(maker: CommandMaker, source: Source) -> None:
    """Refuse a value that makes an argument longer than the system takes."""
    at = 0
    for values, _ in source.chunks():
        for value in values:
            at += 1
            command = maker.command(value, at, 1)
            longest = max(len(word.encode()) for word in ([command] if isinstance(command, str) else command))
            if longest > MAX_COMMAND:
                raise UsageError(
                    f"value {at} makes a command of {longest:,} bytes; the system takes at most {MAX_COMMAND:,}"
                )


def check_size(submit: Mapping[str, Any]) -> None:
    """Refuse a request that no frame can carry, saying what makes it so large."""
    if len(msgspec.json.encode(submit)) <= MAX_SUBMIT // 6:
        return
    size = len(json.dumps(submit))
    if size > MAX_SUBMIT:
        count = len(submit["batch"]["templates"])
        why = f"{count:,} different sets of needs" if count > 1_000 else "the environment or the command is too large"
        raise UsageError(f"this batch needs {size:,} bytes besides its values, more than one request carries: {why}")
