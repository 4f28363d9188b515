"""What jobs read and write: paths as they are said of a job, and one template for each different set of them."""

import glob
import itertools
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from msgspec.structs import replace

from rota.model.batch import MAX_TEMPLATES, Template, index_at
from rota.model.command import compile_text, fill
from rota.model.errors import UsageError
from rota.submission.sources import ArrayNumbers, Chunk, One, Source, pieces, size_of

__all__ = ["DataSource", "has_places", "plain_paths", "read_paths"]

URL = "s3://"
LATER = "//"
"""Between a directory and a placeholder that may stand for a whole path."""


def read_paths(given: Iterable[str], what: str = "input") -> tuple[str, ...]:
    """Absolute paths, and addresses as they are; a pattern stands for the files that it matches here."""
    out: dict[str, None] = {}
    for word in given:
        if not word or "\0" in word or "\n" in word:
            raise UsageError(f"{what} {word!r}: give a path, or {URL}BUCKET/KEY")
        if word.startswith(URL):
            if not word[len(URL) :].partition("/")[2].strip("/"):
                raise UsageError(f"{what} '{word}': give {URL}BUCKET/KEY")
            out[word] = None
            continue
        if word.startswith("{"):  # what is filled in may be absolute, or an address
            out[os.getcwd() + LATER + word] = None
            continue
        path = os.path.abspath(os.path.expanduser(word))
        if word.endswith("/") and path != "/":
            path = path.rstrip("/")
        if what == "input" and "{" not in path and glob.has_magic(path):
            found = sorted(glob.glob(path, recursive=True))
            if not found and not os.path.lexists(path):
                raise UsageError(f"input '{word}': nothing here matches that")
            out.update(dict.fromkeys(found or [path]))
        else:
            out[path] = None
    return tuple(out)


def plain_paths(paths: Iterable[str]) -> tuple[str, ...]:
    """Paths in which there are no placeholders, whatever they look like."""
    return tuple(path if path.startswith(URL) else path.replace(LATER, "/") for path in paths)


def has_places(template: Template, columns: Sequence[str]) -> bool:
    """Whether what a job reads or writes differs from job to job."""
    return any("{" in path and compile_text(path, columns) != [path] for path in (*template.inputs, *template.outputs))


class DataSource:
    """A source of jobs whose inputs or outputs have placeholders: jobs with the same ones share a template."""

    def __init__(self, source: Source, template: Template) -> None:
        self._source = source
        self.count, self.columns, self.ranges = source.count, source.columns, source.ranges
        self.longest, self.weaver, self.limits = source.longest, source.weaver, source.limits
        self._base = template
        self._inputs = [compile_text(path, source.columns) for path in template.inputs]
        self._outputs = [compile_text(path, source.columns) for path in template.outputs]
        self._numbers: dict[tuple[tuple[str, ...], tuple[str, ...]], int] = {}
        made: list[Template] = []
        self._of_each: list[int] = []
        for at, value in enumerate(self._values()):
            key = self._filled(at, value)
            number = self._numbers.get(key)
            if number is None:
                number = self._numbers[key] = len(made)
                made.append(replace(template, inputs=key[0], outputs=key[1]))
                if len(made) > MAX_TEMPLATES:
                    words = f"these jobs have more than {MAX_TEMPLATES:,} different sets of inputs and outputs"
                    raise UsageError(f"{words}: make several batches")
            self._of_each.append(number)
        self.templates = tuple(made)

    def _values(self) -> Iterator[Any]:
        if isinstance(self._source, One | ArrayNumbers):
            yield from itertools.repeat("", self.count)
            return
        for values, _ in self._source.chunks():
            yield from values

    def _filled(self, at: int, value: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
        values = [value] if isinstance(value, str) else value
        index = index_at(self.ranges, at)

        def paths(texts: Sequence[Any], what: str) -> tuple[str, ...]:
            filled = [fill(parts, values, 0, index, 1) for parts in texts]
            words = [path if path.startswith(URL) else path.partition(LATER)[2] or path for path in filled]
            return plain_paths(read_paths([word for word in words if word], what))

        return paths(self._inputs, "input"), paths(self._outputs, "output")

    def chunks(self) -> Iterator[Chunk]:
        """The values, each with the number of its template."""
        return pieces(((value, size_of(value)) for value in self._values()), self._of_each)
