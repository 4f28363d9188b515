"""What the manager asks of a store. `rota.testing.check_store` is the exam that every implementation passes.

A store keeps facts and decides nothing. `commit` returns only when everything given to it is on disk (fsync), and is
all or nothing. A store that cannot write raises `NoSpaceError` (nothing was written, the store is intact, later commits
may work) or `StoreError` (trust nothing: stop).
"""

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from msgspec import Struct

from rota.model.data import Replica
from rota.model.events import Entry
from rota.model.job import Result

__all__ = ["CHUNK", "Column", "Loaded", "Query", "Staged", "Store", "Sums"]

CHUNK = 65_536
"""Jobs per chunk of a checkpoint."""


class Column(Struct):
    """The states and attempt numbers of up to CHUNK neighbouring jobs of a batch."""

    batch: int
    chunk: int
    states: bytes
    """One byte a job."""
    attempts: bytes
    """Four bytes a job, in the machine's order."""


class Loaded(Struct):
    """What a restart starts from: the last checkpoint, and the entries after it."""

    snapshot: bytes | None
    """The small part of the core's state, as the core wrote it; None: a new store."""
    seq: int
    """Number of the last entry that the snapshot covers."""
    columns: list[Column]
    tail: Iterator[Entry]
    """Entries with greater numbers, ascending without gaps."""


class Staged(Struct):
    """What is known of a staged submission: how many values in a row from 0, and the templates they name."""

    count: int
    runs: list[int] | None
    """[template, count, …] as in `Submitted.runs`; None: no chunk named templates."""


class Query(Struct):
    """Which results are looked for. Empty fields do not restrict."""

    batches: list[int] | None = None
    host: str | None = None
    exit_code: int | None = None
    reason: str | None = None
    since: float | None = None
    until: float | None = None
    states: tuple[str, ...] = ()
    """Of attempts: COMPLETED, FAILED, …"""
    newest_first: bool = True
    """By end time, newest first; else by batch and position, ascending."""
    descending: bool = False
    """By batch and position: the other way round."""
    after: tuple[float, int, int, int] | None = None
    """(ended, batch, pos, attempt) of the last one seen; for an order by position the first figure is not looked at."""

    def fits(self, row: Result) -> bool:
        """Whether a result is one that is searched for, on whatever page."""
        ended = row.ended or 0.0
        return (
            (self.batches is None or row.batch in self.batches)
            and (self.host is None or row.host == self.host)
            and (self.exit_code is None or row.exit_code == self.exit_code)
            and (self.reason is None or row.reason == self.reason)
            and (self.since is None or ended >= self.since)
            and (self.until is None or ended <= self.until)
            and (not self.states or row.state in self.states)
        )


class Sums(Struct):
    """What the attempts of a batch that completed used in all."""

    batch: int
    count: int
    wall_s: float = 0.0
    wall_squares: float = 0.0
    wall_most_s: float = 0.0
    cpu_s: float = 0.0
    memory: float = 0.0
    """Bytes; a sum, and so not an integer of a size that SQLite has."""
    memory_squares: float = 0.0
    memory_most: int = 0


class Store(Protocol):
    """Durable memory. `load` comes first; then one thread commits while another reads."""

    def load(self) -> Loaded:
        """Open, migrate if older, check, and return what a restart needs. Drop staged values that no batch took."""
        ...

    def commit(self, entries: Sequence[Entry], results: Sequence[Result]) -> None:
        """Write entries, the current-state rows that follow from them, and results, in one durable transaction.

        A `Submitted` with a `stage` makes the staged values the batch's. The first result of an attempt stays, but for
        one SUPERSEDED: how an attempt ended that had been given up, by the word of its own runner.
        """
        ...

    def checkpoint(self, seq: int, snapshot: bytes, columns: Sequence[Column]) -> None:
        """Replace the snapshot and these columns: the state after entry `seq`. One transaction."""
        ...

    def stage(self, stage: str, first: int, values: Sequence[Any], templates: Sequence[int] | None) -> None:
        """Keep values for a submission to come. The same chunk again replaces itself."""
        ...

    def staged(self, stage: str) -> Staged:
        """What has been staged under this name."""
        ...

    def unstage(self, stage: str) -> None:
        """Drop what was staged under this name."""
        ...

    def staged_values(self, stage: str, first: int) -> tuple[list[Any], list[int] | None]:
        """Some of the values staged under this name, from this position on, and their templates; none: the end."""
        ...

    def sweep(self, rows: int) -> bool:
        """Delete some of what pruned batches left behind, about so many rows; True if there is more.

        A `Pruned` entry only marks batches: what may be much is deleted by this, in transactions that are short. Until
        then readers may still find it.
        """
        ...

    def prepare(self) -> bool:
        """Have space ready for commits to come, a little more of it; True if there is to be yet more."""
        ...

    def ended_since(self, wall: float) -> list[int]:
        """Batches of which an attempt ended after this time."""
        ...

    def output_files(self) -> list[tuple[str, str]]:
        """(directory, file) of all output that results name. Reads everything: not for the loop."""
        ...

    def search(self, query: Query, limit: int) -> list[Result]:
        """Results that fit, in the query's order. Does not keep other readers waiting."""
        ...

    def keep_environment(self, name: str, variables: dict[str, str]) -> None:
        """Keep an environment under its hash (once)."""
        ...

    def replicas(self) -> list[Replica]:
        """Which files are at which places, by path and place."""
        ...

    def keep_replicas(self, keep: Sequence[Replica], drop: Sequence[tuple[str, str]]) -> None:
        """Write some (one for each path and place), and forget others, in one transaction."""
        ...

    def environment(self, name: str) -> dict[str, str]:
        """An environment by its hash."""
        ...

    def values(self, batch: int, first: int, count: int) -> list[Any]:
        """The values of jobs at positions first … first+count-1 (None for a batch that has none)."""
        ...

    def results(self, batch: int, first: int, last: int, newest_only: bool) -> list[Result]:
        """Results of positions first..last inclusive, by position and attempt, or the last attempt of each."""
        ...

    def place_of(self, runner: str) -> tuple[str, str | None] | None:
        """(site, native id of its allocation) of a runner, also of one that is long gone; None: there was no such."""
        ...

    def recent_results(
        self, batches: Sequence[int] | None, before: tuple[float, int, int, int] | None, limit: int
    ) -> list[Result]:
        """Results by end time, newest first, of these batches (None: all), older than the cursor.

        The cursor is (ended, batch, pos, attempt); one without an end time counts as ended at 0.
        """
        ...

    def slowest(self, batch: int, limit: int) -> list[Result]:
        """The attempts of a batch that took longest (wall time), longest first."""
        ...

    def sums(self, batches: Sequence[int] | None) -> list[Sums]:
        """What the attempts that completed used in all, of each of these batches (None: all) that has any.

        Does not keep other readers waiting.
        """
        ...

    def entries(self, after: int, limit: int) -> list[Entry]:
        """The log, for people and for tests."""
        ...

    def backup(self, path: str) -> None:
        """A consistent copy of the whole store, made while it is in use."""
        ...

    def free_bytes(self) -> int:
        """Space left where the store lives."""
        ...

    def close(self) -> None:
        """Close cleanly."""
        ...
