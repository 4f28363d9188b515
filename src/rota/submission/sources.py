"""Where the jobs of a batch come from: an array, values, parameters, lines of a file.

A file of a million lines is read twice, once to check and once to send, so that one bad line adds nothing and little
memory is needed. The common case is checked by a few passes in C over whole blocks, not line by line.
"""

import itertools
import math
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import IO, Any, Protocol

from rota.model.batch import MAX_COMMAND, MAX_JOBS, Template, Value, check_text, count_of
from rota.model.errors import UsageError
from rota.submission.jsonline import LineReader
from rota.submission.weaving import Weaver

__all__ = ["ArrayNumbers", "Chunk", "GivenLines", "LineFile", "One", "Rows", "Source"]

Chunk = tuple[list[Any], list[int] | None]
"""Values, and the number of each one's template (None: all have the first)."""

CHUNK_VALUES = 20_000
CHUNK_CHARACTERS = 262_144
"""JSON makes at most 12 bytes of a character, and a frame takes 4 MiB."""
BLOCK = 1 << 19
MAX_LINE = 1 << 20
"""Bytes of a JSON line."""
SPOOL = 8 << 20
"""Bytes of standard input kept in memory; what is longer goes to a temporary file."""

Ranges = tuple[tuple[int, int, int], ...]


class Source(Protocol):
    """A source of jobs: what makes the jobs of one batch different from each other."""

    count: int
    columns: tuple[str, ...]
    ranges: Ranges | None
    templates: tuple[Template, ...]
    """Empty: the batch's one template."""
    longest: int
    """Characters of the longest value."""
    weaver: Weaver | None
    """What lines say of each other; None: nothing."""
    limits: Mapping[str, int | str]
    """Limits that lines set."""

    def chunks(self) -> Iterator[Chunk]:
        """The values in order, in pieces that fit into a request."""


class _Source:
    count = 1
    columns: tuple[str, ...] = ()
    ranges: Ranges | None = None
    templates: tuple[Template, ...] = ()
    longest = 0
    weaver: Weaver | None = None
    limits: Mapping[str, int | str] = {}

    def take(self, reader: LineReader) -> None:
        """Take from the reader of all lines what they say besides their values."""
        self.templates = reader.templates
        self.limits = reader.limits
        if reader.weaver.woven:
            self.weaver = reader.weaver
            self.weaver.weave(self.count)

    def chunks(self) -> Iterator[Chunk]:
        return iter(())


class One(_Source):
    """A single job."""


class ArrayNumbers(_Source):
    """An array: only its ranges are sent."""

    def __init__(self, ranges: Ranges) -> None:
        self.ranges = ranges
        self.count = count_of(ranges)


class Rows(_Source):
    """Values of one or several columns: every combination, or the first with the first and so on (`zipped`)."""

    def __init__(self, columns: tuple[str, ...], lists: Sequence[Sequence[str]], zipped: bool) -> None:
        self.columns = columns
        lists = self._lists = [[_as_text(value) for value in values] for values in lists]
        self._zipped = zipped
        for name, values in zip(columns, lists, strict=True):
            what = f"a value of parameter '{name}'" if name else "a value"
            if not values:
                raise UsageError(f"parameter '{name}' has no values" if name else "there are no values")
            for value in values:
                check_text(what, value)
        sizes = [len(values) for values in lists]
        if zipped and len(set(sizes)) > 1:
            counts = ", ".join(f"{name} has {size}" for name, size in zip(columns, sizes, strict=True))
            raise UsageError(f"parameters that are paired need equally many values: {counts}")
        self.count = sizes[0] if zipped else math.prod(sizes)
        if self.count > MAX_JOBS:
            raise UsageError(f"these parameters make {self.count:,} jobs; one batch has at most {MAX_JOBS:,}")
        self.longest = max(max(map(len, values)) for values in lists)

    def chunks(self) -> Iterator[Chunk]:
        """Single strings for one column, lists of strings for several."""
        if len(self._lists) == 1:
            return pieces((value, len(value)) for value in self._lists[0])
        rows = zip(*self._lists, strict=True) if self._zipped else itertools.product(*self._lists)
        return pieces((list(row), sum(map(len, row)) + 4 * len(row)) for row in rows)


def _as_text(value: object) -> str:
    """A value as text: a number is what it prints as."""
    if isinstance(value, str):
        return value
    if isinstance(value, int | float | os.PathLike) and not isinstance(value, bool):
        return os.fspath(value) if isinstance(value, os.PathLike) else str(value)
    raise UsageError(f"a value is neither text nor a number: {value!r}")


class GivenLines(_Source):
    """Command lines from Python: strings, or mappings with the fields of a JSON line."""

    def __init__(self, lines: Iterable[str | Mapping[str, Any]], template: Template, by_program: bool) -> None:
        reader = LineReader(template, by_program)
        self._values: list[Value] = []
        self._templates: list[int] = []
        for number, line in enumerate(lines, 1):
            try:
                if isinstance(line, str):
                    check_command(line)
                    value: Value = line
                    which = reader.plain(line)
                else:
                    value, which = reader.mapping(line, number - 1)
            except UsageError as error:
                raise UsageError(f"line {number}: {error}") from None
            self._values.append(value)
            self._templates.append(which)
        self.count = len(self._values)
        self.take(reader)

    def chunks(self) -> Iterator[Chunk]:
        """The lines, in the order given."""
        rows = ((value, size_of(value)) for value in self._values)
        return pieces(rows, self._templates if len(self.templates) > 1 else None)


class LineFile(_Source):
    """A file, or standard input, with one command (or one value) per line.

    Commands: blank lines and lines that begin with `#` are skipped, lines that begin with `{` are JSON. Values: blank
    lines are skipped.
    """

    def __init__(self, path: str, stdin: Callable[[], IO[bytes]]) -> None:
        self.name = "standard input" if path == "-" else path
        self._commands = True
        self._reader: LineReader | None = None
        self._checksum = 0
        self._done = 0
        """Values that were read so far, this time."""
        try:
            self._file = _seekable(stdin() if path == "-" else open(path, "rb"))  # noqa: SIM115
        except OSError as error:
            raise UsageError(f"cannot read '{path}': {error.strerror}") from None

    def as_commands(self, template: Template, by_program: bool) -> "LineFile":
        """Check the whole file as command lines."""
        self._reader = LineReader(template, by_program, f"{self.name}: ")
        self._check()
        self.take(self._reader)
        self._reader.checked = True
        return self

    def as_values(self, column: str) -> "LineFile":
        """Check the whole file as values of one column."""
        self._commands = False
        self.columns = (column,)
        self._check()
        return self

    def values(self) -> list[str]:
        """All values at once."""
        return [value for values, _ in self.chunks() for value in values]

    def _check(self) -> None:
        self.count = 0
        for values, _, _ in self._read(None):
            self.count += len(values)
        if not self.count:
            raise UsageError(f"{self.name}: there are no {'commands' if self._commands else 'values'} in it")

    def chunks(self) -> Iterator[Chunk]:
        """The values, read again; a file that has changed since it was checked is refused."""
        for values, templates, size in self._read(self._checksum):
            if len(values) <= CHUNK_VALUES and size <= MAX_LINE:
                yield values, templates
            else:
                yield from pieces(((value, size_of(value)) for value in values), templates)

    def _read(self, expected: int | None) -> Iterator[tuple[list[Any], list[int] | None, int]]:
        """Blocks of values, checked. The sum over the bytes is kept the first time and compared after that."""
        self._file.seek(0)
        number, checksum, rest = 0, 0, b""
        self._done = 0
        while True:
            read = self._file.read(BLOCK)
            checksum = zlib.crc32(read, checksum)
            block, newline, tail = read.rpartition(b"\n") if read else (b"", b"", b"")
            if read and not newline:
                rest += read
                if len(rest) > MAX_LINE + BLOCK:
                    raise self._too_long(number + 1, f"more than {MAX_LINE:,}")
                continue
            block, rest = rest + block, tail
            if block:
                values, templates, size = self._block(block, number, first=number == 0)
                self._done += len(values)
                yield values, templates, size
            elif not read:
                break
            number += block.count(b"\n") + (1 if newline else 0)
        if expected is None:
            self._checksum = checksum
        elif expected != checksum:
            raise UsageError(f"{self.name} changed while it was read: nothing was added")

    def _block(self, block: bytes, number: int, first: bool) -> tuple[list[Any], list[int] | None, int]:
        """The values of whole lines; `number` lines came before."""
        if first and block.startswith(b"\xef\xbb\xbf"):
            block = block[3:]
        if b"\0" in block:
            line = number + block.count(b"\n", 0, block.index(b"\0")) + 1
            raise UsageError(f"{self.name}, line {line}: contains a NUL byte, which no program can be given")
        try:
            text = block.decode()
        except UnicodeDecodeError as error:
            line = number + block.count(b"\n", 0, error.start) + 1
            raise UsageError(f"{self.name}, line {line}: is not valid UTF-8") from None
        if "\r" in text:
            text = text.replace("\r\n", "\n").removesuffix("\r")
        lines = text.split("\n")
        longest = max(map(len, lines))
        self.longest = max(self.longest, longest)
        odd = {line[:1] for line in lines} & _ODD
        if not odd and longest <= MAX_COMMAND // 4 and not (self._commands and "\t{" in text):
            plain = self._reader.plain if self._reader is not None else None
            templates = [plain(line) for line in lines] if plain is not None else None
            return lines, templates if templates is not None and any(templates) else None, len(block)
        return self._slowly(lines, number, len(block))

    def _slowly(self, lines: list[str], number: int, size: int) -> tuple[list[Any], list[int] | None, int]:
        """Line by line: some are blank, comments, JSON or very long."""
        values: list[Any] = []
        templates: list[int] = []
        what = "the command" if self._commands else "the value"
        grown = self._reader.grown if self._reader is not None else 0
        for at, line in enumerate(lines, number + 1):
            start = line.lstrip(" \t\v\f\r")[:1]
            which = 0
            value: Any = line
            if not start or (self._commands and start == "#"):
                continue
            try:
                if self._commands and start == "{":
                    if len(line) > MAX_LINE:
                        raise UsageError(f"is {len(line):,} bytes long; the most is {MAX_LINE:,}")
                    assert self._reader is not None
                    value, which = self._reader.text(line, self._done + len(values), at)
                else:
                    check_text(what, line)
                    if self._commands and "\t{" in line:
                        _check_tail(line)
                    which = self._reader.plain(line) if self._reader is not None else 0
            except UsageError as error:
                raise UsageError(f"{self.name}, line {at}: {error}") from None
            values.append(value)
            templates.append(which)
        if self._reader is not None:
            size += self._reader.grown - grown
        return values, templates if any(templates) else None, size

    def _too_long(self, line: int, size: str) -> UsageError:
        return UsageError(
            f"{self.name}, line {line}: is {size} bytes long; a command has at most {MAX_COMMAND:,}, "
            "put it into a script file and run that"
        )


_ODD = frozenset(("", " ", "\t", "\v", "\f", "\r", "#", "{"))
"""First characters that need a closer look. Other kinds of blank begin no line that is meant to be skipped."""


def _check_tail(line: str) -> None:
    """Refuse a command with a tab and JSON behind it, as in files for wr: it would be taken for arguments."""
    command, _, tail = line.partition("\t{")
    if tail.rstrip().endswith("}"):
        raise UsageError(
            f"has JSON behind a command and a tab, which is wr's form; ours is one JSON object: "
            f'{{"command": "{command[:40].strip()}", "memory": "1G", "cores": 2, "time": "1h"}}'
        )


def check_command(line: str) -> None:
    """Raise UsageError for a command line that cannot be run."""
    if not line.strip():
        raise UsageError("the command is empty")
    check_text("the command", line)


def size_of(value: Value) -> int:
    """Characters that a value takes in a request, roughly and not too few."""
    if value is None:
        return 4
    if isinstance(value, str):
        return len(value)
    if isinstance(value, list):
        return sum(map(len, value)) + 4 * len(value)
    return sum(
        len(name) + 6 + (len(part) if isinstance(part, str) else sum(len(str(word)) + 4 for word in _words(part)))
        for name, part in value.items()
    )


def _words(part: Any) -> Iterable[Any]:
    return itertools.chain(part, part.values()) if isinstance(part, dict) else part or ()


def pieces(rows: Iterable[tuple[Any, int]], templates: Sequence[int] | None = None) -> Iterator[Chunk]:
    """Cut (value, characters) into chunks that a request can carry."""
    values: list[Any] = []
    size = start = 0
    for value, length in rows:
        if values and (size + length > CHUNK_CHARACTERS or len(values) >= CHUNK_VALUES):
            yield values, list(templates[start : start + len(values)]) if templates is not None else None
            start += len(values)
            values, size = [], 0
        values.append(value)
        size += length + 4
    if values:
        yield values, list(templates[start:]) if templates is not None else None


def _seekable(file: IO[bytes]) -> IO[bytes]:
    """The file itself, or what can be read from it in a place where it can be read twice."""
    if os.path.isdir(file.name) if isinstance(file.name, str) else False:
        raise IsADirectoryError(21, "Is a directory")
    if file.seekable():
        return file
    import tempfile

    spool = tempfile.SpooledTemporaryFile(SPOOL)  # noqa: SIM115
    while block := file.read(BLOCK):
        spool.write(block)
    return spool
