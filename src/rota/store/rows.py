"""How facts become rows and back: packing, checksums, and the rules for staged values that all stores share."""

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import groupby
from typing import Any, Final
from zlib import compress, crc32, decompress
from zlib import error as ZlibError  # noqa: N812

import msgspec

from rota.model.errors import NotFoundError, StoreError, UsageError
from rota.model.events import Entry, Event
from rota.model.job import Result
from rota.store.api import Column

__all__ = [
    "Checked",
    "column_row",
    "columns_of",
    "entry_of",
    "entry_row",
    "merged_runs",
    "pieces",
    "result_of",
    "result_row",
    "runs_of",
    "templates_of",
]

pack: Final = msgspec.msgpack.Encoder().encode
_event: Final = msgspec.msgpack.Decoder(Event)
_result: Final = msgspec.json.Decoder(Result)
to_json: Final = msgspec.json.Encoder().encode
from_json: Final = msgspec.json.Decoder().decode

PIECE = 4096
"""Values a row: a lease of a few jobs decodes so many."""
PIECE_BYTES = 4 << 20
FEW_BYTES = 8
"""Columns of batches of one job or two are mostly alike, and to begin to deflate takes longer than all the rest."""


class DamagedError(StoreError):
    """A row does not fit its checksum."""


def entry_row(entry: Entry) -> tuple[Any, ...]:
    """(seq, at, by, kind, crc, body)."""
    event = entry.event
    body = pack(event)
    seq, at, by = entry.seq, entry.at, entry.by
    return seq, at, by, type(event).__name__, crc32(body, crc32(pack((seq, at, by)))), body


def entry_of(row: tuple[Any, ...]) -> Entry:
    """An Entry from (seq, at, by, crc, body)."""
    seq, at, by, crc, body = row
    if type(body) is not bytes or crc32(body, crc32(pack((seq, at, by)))) != crc:
        raise DamagedError(f"entry {seq} of the log does not fit its checksum")
    try:
        return Entry(seq, at, by, _event.decode(body))
    except msgspec.DecodeError as error:
        raise DamagedError(f"entry {seq} of the log cannot be read ({error})") from None


def result_row(result: Result) -> tuple[Any, ...]:
    """(batch, pos, attempt, state, started, ended, crc, body). One body takes half the time of 15 columns."""
    body = to_json(result)
    key = (result.batch, result.pos, result.attempt)
    return *key, result.state, result.started, result.ended, crc32(body), body


def result_of(row: tuple[Any, ...]) -> Result:
    """A Result from (batch, pos, attempt, crc, body)."""
    batch, pos, attempt, crc, body = row
    if type(body) is bytes and crc32(body) == crc:
        result = _result.decode(body)
        if (result.batch, result.pos, result.attempt) == (batch, pos, attempt):
            return result
    raise DamagedError(f"the result of batch {batch} position {pos} attempt {attempt} does not fit its checksum")


def column_row(column: Column) -> tuple[Any, ...]:
    """(batch, chunk, crc, states, attempts), the last two deflated."""
    crc = crc32(column.attempts, crc32(column.states, crc32(pack((column.batch, column.chunk)))))
    return column.batch, column.chunk, crc, _deflated(column.states), _deflated(column.attempts)


def _deflated(column: bytes) -> bytes:
    return _few_deflated(column) if len(column) <= FEW_BYTES else compress(column, 1)


@lru_cache(1024)
def _few_deflated(column: bytes) -> bytes:
    return compress(column, 1)


def columns_of(rows: Iterable[tuple[Any, ...]]) -> list[Column]:
    """Columns from rows."""
    columns = []
    for batch, chunk, crc, states, attempts in rows:
        try:
            column = Column(batch, chunk, decompress(states), decompress(attempts))
        except (ZlibError, TypeError):
            raise DamagedError(f"the checkpoint of batch {batch} chunk {chunk} cannot be read") from None
        if crc32(column.attempts, crc32(column.states, crc32(pack((batch, chunk))))) != crc:
            raise DamagedError(f"the checkpoint of batch {batch} chunk {chunk} does not fit its checksum")
        columns.append(column)
    return columns


class Checked:
    """Checksums for bodies whose place is part of what they mean."""

    @staticmethod
    def make(body: bytes, *place: object) -> int:
        """The checksum of a body in its place."""
        return crc32(body, crc32(pack(place)))

    @staticmethod
    def check(what: str, crc: int, body: bytes, *place: object) -> bytes:
        """The body, if it fits its checksum; else DamagedError."""
        if type(body) is not bytes or crc32(body, crc32(pack(place))) != crc:
            raise DamagedError(f"{what} does not fit its checksum")
        return body


# ---- staged values --------------------------------------------------------------------------------------------------


def pieces(first: int, values: Sequence[Any]) -> Iterator[tuple[int, int, bytes]]:
    """(first, count, JSON) of rows that are neither long nor large."""
    for at in range(0, len(values), PIECE):
        yield from _halved(first + at, values[at : at + PIECE])


def _halved(first: int, values: Sequence[Any]) -> Iterator[tuple[int, int, bytes]]:
    try:
        body = to_json(values)
    except (UnicodeError, TypeError, OverflowError, RecursionError) as error:
        raise UsageError(f"the values from position {first} on cannot be stored: {error}") from None
    if len(body) <= PIECE_BYTES or len(values) == 1:
        yield first, len(values), body
        return
    half = len(values) // 2
    yield from _halved(first, values[:half])
    yield from _halved(first + half, values[half:])


def check_stage(stage: str, first: int, values: Sequence[Any], templates: Sequence[int] | None) -> None:
    """Raise UsageError for a chunk that cannot be meant."""
    if not stage or first < 0:
        raise UsageError(f"staged values need a name and a position of 0 or more, not '{stage}' and {first}")
    if templates is not None and len(templates) != len(values):
        raise UsageError(f"{len(values)} values came with {len(templates)} templates")


def check_overlap(stage: str, first: int, count: int, held: Iterable[tuple[int, int]]) -> None:
    """Raise UsageError if a chunk covers a part of one that is held: (first, count) each. It may cover all of it."""
    for other, size in held:
        if other < first + count and first < other + size and not (first <= other and other + size <= first + count):
            raise UsageError(
                f"chunk {first}+{count} of '{stage}' covers a part of chunk {other}+{size}: send the same chunks again"
            )


def check_range(batch: int, size: int, first: int, count: int) -> None:
    """Raise NotFoundError for positions that a batch of this size has not."""
    if first < 0 or count < 0 or first + count > size:
        raise NotFoundError(f"batch {batch} has positions 0 to {size - 1}, not {first} to {first + count - 1}")


def runs_of(templates: Sequence[int]) -> list[int]:
    """[template, count, …] of neighbours that are alike."""
    runs: list[int] = []
    for template, group in groupby(templates):
        runs += (template, sum(1 for _ in group))
    return runs


def templates_of(runs: Sequence[int]) -> list[int]:
    """The template of each value, from [template, count, …]."""
    return [template for template, count in zip(runs[::2], runs[1::2], strict=True) for _ in range(count)]


def merged_runs(chunks: Iterable[tuple[int, list[int] | None]]) -> list[int] | None:
    """The runs of (count, runs) chunks in a row; a chunk without any has the first template. None if none has any."""
    merged: list[int] = []
    named = False
    for count, runs in chunks:
        named = named or runs is not None
        pairs = [0, count] if runs is None else runs
        for template, size in zip(pairs[::2], pairs[1::2], strict=True):
            if merged and merged[-2] == template:
                merged[-1] += size
            else:
                merged += (template, size)
    return merged if named else None
