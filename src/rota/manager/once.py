"""Recognising jobs that are there already (`rota add --once`).

A job's identity is what it would do: its command after placeholders, its working directory, its standard input, the
file that its standard output goes to, and the number of an array job (which it sees as `$ROTA_INDEX`). Name, needs,
environment and priority are not part of it. A command (or directory, or input) with `{batch}` or `{job}` in it is never
there already: the number is always a new one.

Eight bytes of hash are kept per job, from the first use of `--once` on; what they find is compared as text.
"""

import asyncio
from array import array
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import msgspec
from msgspec import Struct

from rota.core.settled import AnyBatch, whole
from rota.manager.writer import Writer
from rota.model.batch import BatchSpec, Template, Value, index_at
from rota.model.command import CommandMaker, needs_shell
from rota.model.errors import UsageError
from rota.model.job import format_job
from rota.model.tables import COMPLETED, JOB_STATES, SETTLED
from rota.store.api import Store
from rota.store.rows import templates_of

__all__ = ["Duplicates"]

PAGE = 4_096
MOST_RANGES = 2_000
_COUNTS = frozenset((*range(SETTLED), COMPLETED))
"""The states of jobs that need not be run again: queued, running or completed."""


class Found(Struct):
    """The jobs of a submission that are there already."""

    flags: bytearray
    """A byte for each job: 1 if another job is the same, 2 if one before it in this submission is."""
    example: str | None = None
    """The id of a job that is there already, and below it its state."""
    state: str | None = None
    keeps_numbers: bool = False
    """Whether what remains keeps its numbers, because they are part of what the jobs do."""
    templates: list[int] | None = None
    duplicates: int = 0
    there: dict[int, tuple[int, int]] = msgspec.field(default_factory=dict)
    """Position of a job of the submission that is there already → the batch and position that it has."""
    repeated: int = 0
    """How many of the duplicates are there only because this submission has them twice."""

    def by_batch(self) -> dict[int, list[int]]:
        """Batch → positions of jobs that are those of the submission."""
        out: dict[int, list[int]] = {}
        for batch, pos in dict.fromkeys(self.there.values()):
            out.setdefault(batch, []).append(pos)
        return out

    def words(self) -> dict[str, Any]:
        """The fields of the answer to the submission."""
        example = {"id": self.example, "state": self.state} if self.example is not None else None
        return {"duplicates": self.duplicates, "repeated": self.repeated, "example": example}


class _Identities:
    """The identities of the jobs of one batch."""

    def __init__(self, spec: BatchSpec, templates: Sequence[Template], batch: int, with_cwd: bool) -> None:
        self._spec = spec
        paths = ("cwd", "stdin") if with_cwd else ("stdin",)
        self.makers = [_Maker(template, spec.columns, batch, paths) for template in templates]
        self.by_number = spec.ranges is not None or any("index" in maker.used for maker in self.makers)

    def of(self, template: int, value: Value, index: int) -> str | None:
        """The identity of one job; None: it can have no twin."""
        maker = self.makers[template]
        if maker.alone:
            return None
        places = maker.places if maker.places is not None and type(value) is not dict else maker.place(value, index)
        if maker.made.lines and type(value) is str:  # the quick way of a million lines
            command = "s\0" + value if needs_shell(value) else "a\0" + "\0".join(value.split())
        else:
            made = maker.made.command(value, index, 1)
            command = f"s\0{made}" if isinstance(made, str) else "\0".join(["a", *made])
        return f"{places}{index}\0{command}" if self._spec.ranges is not None else f"{places}\0{command}"


class _Maker:
    def __init__(self, template: Template, columns: Sequence[str], batch: int, paths: Sequence[str]) -> None:
        self.made = CommandMaker(template, columns, batch)
        self._neutral = CommandMaker(template, columns, 0)
        self._with_cwd = "cwd" in paths
        self.used = self.made.names(*paths)
        self.alone = bool(self.used & {"batch", "job"})
        self.places: str | None = None
        """Directory, input and output, if they are the same for all that have this template."""
        if not self.made.paths:
            self.places = self.place(None, 0)

    def place(self, value: Value, index: int) -> str:
        """Directory, input and output of one job."""
        cwd = self.made.path("cwd", value, index, 1) if self._with_cwd else ""
        stdin = self.made.path("stdin", value, index, 1)
        return "\0".join((cwd or "", stdin or "", self._neutral.path("stdout", value, 0, 0) or "", ""))


class Duplicates:
    """Hashes of all jobs' identities, made when they are first wanted."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.lock = asyncio.Lock()
        """Held from the comparison until what is new is added."""
        self._known: dict[str, dict[int, tuple[int, array[int]]]] = {"cwd": {}, "command": {}}

    def compare(
        self, batches: Sequence[AnyBatch], spec: BatchSpec, stage: str | None, runs: list[int] | None, mode: str
    ) -> Found:
        """Which jobs of a submission are there already. In a thread; one at a time."""
        found = Found(bytearray(spec.count))
        found.templates = templates_of(runs) if runs is not None and len(spec.templates) > 1 else None
        new = _Identities(spec, spec.templates, 0, mode == "cwd")
        found.keeps_numbers = new.by_number
        texts: dict[str, int] = {}
        repeats: list[tuple[int, int]] = []
        for pos, value in enumerate(self._staged(spec, stage)):
            template = found.templates[pos] if found.templates is not None else 0
            text = new.of(template, value, index_at(spec.ranges, pos) if spec.ranges is not None else pos + 1)
            if text is not None and (first := texts.setdefault(text, pos)) != pos:
                found.flags[pos] = 2
                repeats.append((pos, first))
        self._forget(batches, mode)
        hashes = set(map(hash, texts))
        for batch in batches:
            shared = hashes.intersection(self._hashes(batch, mode))
            if shared:
                self._confirm(found, batch, mode, shared, texts)
        for pos, first in repeats:
            if found.flags[first]:
                found.flags[pos] = 1
                found.there[pos] = found.there[first]
        found.repeated = found.flags.count(2)
        found.duplicates = found.repeated + found.flags.count(1)
        return found

    def _staged(self, spec: BatchSpec, stage: str | None) -> Iterator[Value]:
        if stage is None:
            for _ in range(spec.count):
                yield None
            return
        at = 0
        while at < spec.count:
            values, _ = self._store.staged_values(stage, at)
            if not values:
                raise UsageError("the values of this submission are gone (was the manager restarted?): add it again")
            yield from values
            at += len(values)

    def _forget(self, batches: Sequence[AnyBatch], mode: str) -> None:
        there = {batch.id for batch in batches}
        known = self._known[mode]
        for number in [number for number in known if number not in there]:
            del known[number]

    def _hashes(self, batch: AnyBatch, mode: str) -> "array[int]":
        known = self._known[mode].get(batch.id)
        if known is not None and known[0] == batch.changes:
            return known[1]
        changes = batch.changes
        hashes = array("q", (hash(text) for text in self._texts(batch, mode, range((batch.count - 1) // PAGE + 1))))
        self._known[mode][batch.id] = (changes, hashes)
        return hashes

    def _texts(self, kept: AnyBatch, mode: str, pages: Sequence[int]) -> Iterator[str | None]:
        """Identities of all jobs of these pages."""
        batch = whole(kept)
        identities = _Identities(batch.spec, tuple(batch.templates), batch.id, mode == "cwd")
        valued = bool(batch.spec.columns) or any(maker.made.lines for maker in identities.makers)
        for page in pages:
            low = page * PAGE
            count = min(PAGE, batch.count - low)
            values = self._store.values(batch.id, low, count) if valued else [None] * count
            for pos, value in enumerate(values, low):
                yield identities.of(batch.template_of(pos), value, batch.index(pos))

    def _confirm(self, found: Found, batch: AnyBatch, mode: str, shared: set[int], texts: dict[str, int]) -> None:
        """Compare as text what has an equal hash, and look whether it counts: queued, running or completed."""
        hashes = self._known[mode][batch.id][1]
        states = batch.states
        pages = sorted({pos // PAGE for pos, at in enumerate(hashes) if at in shared and states[pos] in _COUNTS})
        positions = (pos for page in pages for pos in range(page * PAGE, min((page + 1) * PAGE, batch.count)))
        for pos, text in zip(positions, self._texts(batch, mode, pages), strict=True):
            byte = states[pos]
            if text is None or byte not in _COUNTS:
                continue
            at = texts.get(text)
            if at is not None and not found.flags[at]:
                found.flags[at] = 1
                found.there[at] = (batch.id, pos)
                if found.example is None:
                    found.example = format_job(batch.id, whole(batch).index(pos))
                    found.state = JOB_STATES[byte]

    async def keep_new(
        self, writer: Writer, spec: BatchSpec, stage: str | None, found: Found
    ) -> tuple[BatchSpec, str | None, list[int] | None]:
        """The submission without the jobs that are there already, its values staged anew."""
        flags = found.flags
        ranges = None
        if found.keeps_numbers:
            ranges = _ranges([index_at(spec.ranges, pos) for pos in range(spec.count) if not flags[pos]])
        count = spec.count - found.duplicates
        less = msgspec.structs.replace(spec, count=count, ranges=ranges)
        if stage is None:
            return less, None, None
        fresh, runs = f"{stage}-new", None
        await writer.run(lambda: self._restage(spec, stage, fresh, found))
        if found.templates is not None:
            runs = self._store.staged(fresh).runs
        return less, fresh, runs

    def _restage(self, spec: BatchSpec, stage: str, fresh: str, found: Found) -> None:
        values: list[Value] = []
        templates: list[int] = []
        written = 0

        def write() -> None:
            nonlocal written
            self._store.stage(fresh, written, values, templates if found.templates is not None else None)
            written += len(values)
            values.clear()
            templates.clear()

        self._store.unstage(fresh)
        for pos, value in enumerate(self._staged(spec, stage)):
            if not found.flags[pos]:
                values.append(value)
                if found.templates is not None:
                    templates.append(found.templates[pos])
                if len(values) == PAGE:
                    write()
        if values:
            write()
        self._store.unstage(stage)


def _ranges(numbers: list[int]) -> tuple[tuple[int, int, int], ...]:
    """Ascending numbers as (first, last, step)."""
    out: list[tuple[int, int, int]] = []
    steps = [second - first for first, second in pairwise(numbers)] + [0]
    at = 0
    while at < len(numbers):
        end = at
        while end + 1 < len(numbers) and steps[end] == steps[at]:
            end += 1
        if end == at + 1 and steps[at] > 1 and end + 1 < len(numbers):
            end = at  # two that happen to be near each other are not a pattern
        out.append((numbers[at], numbers[end], steps[at] if end > at else 1))
        at = end + 1
    if len(out) > MOST_RANGES:
        raise UsageError(
            f"what is not there yet of these numbers are {len(out):,} separate pieces; the most is {MOST_RANGES:,}: "
            "add them in smaller parts, or all of them with --rerun"
        )
    return tuple(out)
