"""The default store: one SQLite file, with a write-ahead log that is synced at every commit."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from rota.model.data import Replica
from rota.model.errors import NoSpaceError, NotFoundError, UsageError
from rota.model.events import Entry, Pruned
from rota.model.job import Result
from rota.store.api import Column, Loaded, Query, Staged, Sums
from rota.store.connection import Connect, Connection, Insert, connect_sqlite3
from rota.store.database import Database
from rota.store.keeping import write_results
from rota.store.projection import PROJECTED, project
from rota.store.replicas import read_replicas, write_replicas
from rota.store.rows import (
    PIECE,
    Checked,
    DamagedError,
    check_overlap,
    check_range,
    check_stage,
    column_row,
    columns_of,
    entry_of,
    entry_row,
    from_json,
    merged_runs,
    pieces,
    result_of,
    result_row,
    runs_of,
    templates_of,
    to_json,
)
from rota.store.schema import MIGRATIONS, PAGE
from rota.store.searching import ended_since, output_files, search, sums
from rota.store.sweeping import Sweeper, shrink

__all__ = ["SqliteStore"]

KEEP_ENTRIES = 1_000_000
RESERVE = 16 << 20
PRUNED_AT_ONCE = 20_000
KEPT_S = 300.0
"""An environment that was wanted so recently may be that of a submission which is not yet a batch."""
TAIL_PAGE = 2000
KEPT_PIECES = 8
KEPT_SOURCES = 10_000
FEW_JOBS = 50_000
"""Up to so many jobs, recent results are found by batch and sorted; beyond, by end time and filtered."""
_BUG: Final = "this is a bug in rota, please report it"

_RESULT: Final = "batch, pos, attempt, crc, body"
_ENTRIES: Final = Insert("INSERT INTO entries (seq, at, by, kind, crc, body)", 6)
_COLUMNS: Final = Insert("INSERT OR REPLACE INTO columns (batch, chunk, crc, states, attempts)", 5)
_ENDED: Final = "coalesce(ended, 0.0)"


class SqliteStore:
    """A Store in a file. `load` opens it; after a StoreError only `close` does anything."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        exclusive: bool = False,
        keep_entries: int = KEEP_ENTRIES,
        reserve_bytes: int = RESERVE,
        connect: Connect = connect_sqlite3,
        migrations: Path = MIGRATIONS,
    ) -> None:
        self._db = Database(path, exclusive, reserve_bytes, connect, migrations)
        self._sweeper = Sweeper(self._db)
        self._keep_entries = keep_entries
        self._last = 0
        self._covered = 0
        self._shrinks = True
        """Whether pruning may have freed space that is to be given back, in this life or the one before."""
        self._forgets = False
        """Whether pruning may have left environments that no batch has."""
        self._environments: set[str] = set()
        self._kept: dict[str, float] = {}
        """When an environment was last wanted."""
        self._sources: dict[int, tuple[int, int | None]] = {}
        self._pieces: dict[tuple[int, int], list[Any]] = {}

    @property
    def path(self) -> str:
        """Where the database is."""
        return self._db.path

    # ---- opening ----------------------------------------------------------------------------------------------------

    def load(self) -> Loaded:
        """Open, migrate if older, check, and return what a restart needs. Drop staged values that no batch took."""
        with self._db.writing, self._db.reading:
            fresh = not self._db.is_open
            if fresh:
                self._db.open()
            self._drop_staged()
            if fresh:
                self._drop_environments()
            return self._db.checked(lambda: self._loaded(self._db.reserve().marked()))

    def load_to_read(self) -> Loaded:
        """Open what is there for reading only, and return what a restart would start from; nothing is changed."""
        with self._db.writing, self._db.reading:
            self._db.open_to_read()
            return self._db.checked(lambda: self._loaded(marked=0))

    def _drop_staged(self) -> None:
        stale = self._db.read("staged values", "SELECT id FROM sources WHERE name IS NOT NULL")

        def work(con: Connection) -> None:
            for (source,) in stale:
                con.execute("DELETE FROM chunks WHERE source = ?", (source,))
                con.execute("DELETE FROM sources WHERE id = ?", (source,))

        if stale:
            try:
                self._db.write("dropping staged values", work)
            except NoSpaceError:
                self._db.write("dropping staged values", work)  # now that the reserve has been released

    def _drop_environments(self, young_s: float = 0.0) -> bool:
        """Drop environments that no batch has, but not young ones, which may be meant for a submission under way.

        True: some were young.
        """
        pruned = self._forgets or self._db.read("batches", "SELECT max(id) > count(*) FROM batches")[0][0]
        sql = "SELECT name FROM environments WHERE name NOT IN (SELECT env FROM batches WHERE env IS NOT NULL)"
        unused = [row[0] for row in self._db.read("environments", sql)] if pruned else []
        now = time.monotonic()
        old = [name for name in unused if now - self._kept.get(name, -young_s) >= young_s]
        for name in old:
            with suppress(NoSpaceError):
                self._write_one("dropping an environment", "DELETE FROM environments WHERE name = ?", (name,))
                self._environments.discard(name)
                self._kept.pop(name, None)
                self._sweeper.traces = True
        return len(old) < len(unused)

    def _loaded(self, marked: int) -> Loaded:
        seq, snapshot = 0, None
        for at, crc, body in self._db.read("the snapshot", "SELECT seq, crc, body FROM snapshot"):
            seq, snapshot = at, Checked.check("the snapshot", crc, body, at)
        sql = """SELECT batch, chunk, crc, states, attempts FROM columns
            WHERE batch NOT IN (SELECT batch FROM pruned WHERE seq <= ?) ORDER BY batch, chunk"""
        columns = columns_of(self._db.read("the columns", sql, (seq,)))
        last = max(self._db.read("the log", "SELECT max(seq) FROM entries")[0][0] or 0, seq)
        if last < marked:
            raise DamagedError(f"the log ends at entry {last}, but entry {marked} was acknowledged")
        self._last, self._covered = last, seq
        return Loaded(snapshot, seq, columns, self._tail(seq, last))

    def _tail(self, after: int, last: int) -> Iterator[Entry]:
        while after < last:
            found = self.entries(after, min(TAIL_PAGE, last - after))
            if not found:
                raise self._db.damaged(f"entry {after + 1} of the log is missing")
            for entry in found:
                if entry.seq != after + 1:
                    raise self._db.damaged(f"entry {after + 1} of the log is missing")
                after += 1
                yield entry

    def close(self) -> None:
        """Close cleanly."""
        self._db.close()

    # ---- writing ----------------------------------------------------------------------------------------------------

    def commit(self, entries: Sequence[Entry], results: Sequence[Result]) -> None:
        """Write entries, the current-state rows that follow from them, and results, in one durable transaction.

        A result for an attempt that has one is left out, unless that attempt was given up and its runner tells now.
        """
        try:
            log = [entry_row(entry) for entry in entries]
            ended = [result_row(result) for result in results]
        except (UnicodeError, OverflowError) as error:
            raise UsageError(f"these facts cannot be stored: {error}") from error

        def work(con: Connection) -> None:
            _ENTRIES(con, log)
            for entry in entries:
                if type(entry.event) in PROJECTED:
                    project(con, entry)
            write_results(con, results, ended)

        with self._db.writing:
            self._db.check_usable()
            for due, entry in enumerate(entries, self._last + 1):
                if entry.seq != due:
                    raise self._db.stop(f"entry {entry.seq} came where {due} was due; {_BUG}")
            self._db.write("a commit", work)
            for entry in entries:
                if isinstance(entry.event, Pruned):
                    for number in entry.event.batches:
                        self._sources.pop(number, None)
            if entries:
                self._last = entries[-1].seq
                self._db.reserve().mark(self._last)
            self._db.wrote(8 + (sum([len(row[5]) for row in log]) + 300 * len(ended)) // PAGE)

    def checkpoint(self, seq: int, snapshot: bytes, columns: Sequence[Column]) -> None:
        """Replace the snapshot and these columns: the state after entry `seq`. Then prune the log a little."""
        rows = [column_row(column) for column in columns]
        kept = (seq, Checked.make(snapshot, seq), snapshot)

        def work(con: Connection) -> None:
            con.execute("INSERT OR REPLACE INTO snapshot (id, seq, crc, body) VALUES (1, ?, ?, ?)", kept)
            _COLUMNS(con, rows)

        with self._db.writing:
            self._db.check_usable()
            if not self._covered <= seq <= self._last:
                bounds = f"the last one was at {self._covered} and the log ends at {self._last}"
                raise self._db.stop(f"a checkpoint came for entry {seq}, but {bounds}; {_BUG}")
            self._db.write("a checkpoint", work)
            self._covered = seq
            self._db.wrote(8 + (len(snapshot) + sum(len(row[3]) + len(row[4]) for row in rows)) // PAGE)
            with suppress(NoSpaceError):
                self._prune()
            self._db.reserve().allocate()

    def _prune(self) -> None:
        """Take the oldest entries out of the log if the checkpoint covers them and enough stay; a few at a time."""
        oldest = self._db.read("the log", "SELECT min(seq) FROM entries")[0][0]
        below = min(self._covered, self._last - self._keep_entries) + 1
        if oldest is not None and oldest < below:
            upto = min(below, oldest + PRUNED_AT_ONCE)
            self._write_one("pruning the log", "DELETE FROM entries WHERE seq < ?", (upto,))
            self._db.wrote((upto - oldest) // 32)

    def _write_one(self, what: str, sql: str, args: Sequence[Any], accepted: bool = True) -> None:
        def work(con: Connection) -> None:
            con.execute(sql, args)

        self._db.write(what, work, accepted)

    def stage(self, stage: str, first: int, values: Sequence[Any], templates: Sequence[int] | None) -> None:
        """Keep values for a submission to come. The same chunk again replaces itself."""
        check_stage(stage, first, values, templates)
        end = first + len(values)
        rows = []
        for at, count, body in pieces(first, values):
            runs = None if templates is None else to_json(runs_of(templates[at - first : at - first + count]))
            rows.append((at, count, Checked.make(body, at, count), runs, body))

        def work(con: Connection) -> None:
            con.execute("INSERT OR IGNORE INTO sources (name) VALUES (?)", (stage,))
            source = con.execute("SELECT id FROM sources WHERE name = ?", (stage,))[0][0]
            near = "SELECT first, count FROM chunks WHERE source = ? AND first > ? AND first < ?"
            held = con.execute(near, (source, first - PIECE, end))
            check_overlap(stage, first, end - first, held)
            if held:
                con.execute("DELETE FROM chunks WHERE source = ? AND first >= ? AND first < ?", (source, first, end))
            sql = "INSERT INTO chunks (source, first, count, crc, runs, body) VALUES (?, ?, ?, ?, ?, ?)"
            for row in rows:
                con.execute(sql, (source, *row))

        with self._db.writing:
            self._db.check_usable()
            if not self._db.reserve().held:
                why = "what is left is kept for work that was accepted; free some space"
                raise NoSpaceError(f"no space left for {self.path}: {why}")
            if rows:
                self._db.write("staged values", work, accepted=False)
                self._db.wrote(4 + sum(len(row[4]) for row in rows) // PAGE)

    def unstage(self, stage: str) -> None:
        """Drop what was staged under this name."""

        def work(con: Connection) -> None:
            for (source,) in con.execute("SELECT id FROM sources WHERE name = ?", (stage,)):
                con.execute("DELETE FROM chunks WHERE source = ?", (source,))
                con.execute("DELETE FROM sources WHERE id = ?", (source,))

        self._db.write("dropping staged values", work)

    def sweep(self, rows: int) -> bool:
        """Delete some of what pruned batches left behind, about so many rows; True if there is more."""
        with self._db.writing:
            self._db.check_usable()
            if self._sweeper.sweep(self._covered, rows):
                self._shrinks = self._forgets = True
                return True
            if self._forgets:
                self._forgets = self._drop_environments(KEPT_S)
            self._sweeper.leave_no_traces()
            self._shrinks = self._shrinks and shrink(self._db)
            return self._shrinks

    def prepare(self) -> bool:
        """Have space ready for commits to come, a little more of it; True if there is to be yet more."""
        return self._db.lengthen_log()

    def keep_environment(self, name: str, variables: dict[str, str]) -> None:
        """Keep an environment under its hash (once)."""
        with self._db.writing:
            self._db.check_usable()
            self._kept[name] = time.monotonic()
            if name in self._environments:
                return
            try:
                body = to_json(variables)
            except UnicodeError as error:
                raise UsageError(f"an environment that is not UTF-8 cannot be stored: {error}") from None
            sql = "INSERT OR IGNORE INTO environments (name, crc, body) VALUES (?, ?, ?)"
            self._write_one("an environment", sql, (name, Checked.make(body, name), body), accepted=False)
            self._environments.add(name)
            self._db.wrote(4 + len(body) // PAGE)

    def replicas(self) -> list[Replica]:
        """Which files are at which places."""
        return read_replicas(self._db)

    def keep_replicas(self, keep: Sequence[Replica], drop: Sequence[tuple[str, str]]) -> None:
        """Write some replicas, and forget others."""
        write_replicas(self._db, keep, drop)

    # ---- reading ----------------------------------------------------------------------------------------------------

    def staged(self, stage: str) -> Staged:
        """What has been staged under this name."""
        sql = "SELECT first, count, runs FROM chunks WHERE source = (SELECT id FROM sources WHERE name = ?) ORDER BY 1"
        covered, chunks = 0, []
        for first, count, runs in self._db.read("staged values", sql, (stage,)):
            if first != covered:
                break
            covered += count
            chunks.append((count, None if runs is None else from_json(runs)))
        return Staged(covered, merged_runs(chunks))

    def staged_values(self, stage: str, first: int) -> tuple[list[Any], list[int] | None]:
        """Some of the values staged under this name, from this position on, and their templates; none: the end."""
        sql = """SELECT first, count, crc, body, runs FROM chunks
            WHERE source = (SELECT id FROM sources WHERE name = ?) AND first = ?"""
        rows = self._db.read("staged values", sql, (stage, first))
        if not rows:
            return [], None
        at, count, crc, body, runs = rows[0]
        what = f"chunk {at} of '{stage}'"
        values = from_json(self._db.checked(lambda: Checked.check(what, crc, body, at, count)))
        return values, None if runs is None else templates_of(from_json(runs))

    def environment(self, name: str) -> dict[str, str]:
        """An environment by its hash."""
        rows = self._db.read("an environment", "SELECT crc, body FROM environments WHERE name = ?", (name,))
        if not rows:
            raise NotFoundError(f"no environment is kept as '{name}'")
        body = self._db.checked(lambda: Checked.check(f"environment {name}", *rows[0], name))
        found: dict[str, str] = from_json(body)
        return found

    def values(self, batch: int, first: int, count: int) -> list[Any]:
        """The values of jobs at positions first … first+count-1 (None for a batch that has none).

        Not to be changed: the next caller gets the same objects.
        """
        with self._db.reading:
            size, source = self._source(batch)
            check_range(batch, size, first, count)
            if source is None:
                return [None] * count
            found: list[Any] = []
            while len(found) < count:
                at = first + len(found)
                start, piece = self._piece(source, at)
                found += piece[at - start : at - start + count - len(found)]
            return found

    def _source(self, batch: int) -> tuple[int, int | None]:
        """How many jobs the batch has, and where their values are."""
        known = self._sources.get(batch)
        if known is None:
            rows = self._db.read("a batch", "SELECT count, source, crc, spec FROM batches WHERE id = ?", (batch,))
            if not rows:
                raise NotFoundError(f"there is no batch {batch}")
            count, source, crc, spec = rows[0]
            self._db.checked(lambda: Checked.check(f"batch {batch}", crc, spec, batch, count, source))
            if len(self._sources) >= KEPT_SOURCES:
                self._sources.clear()
            known = self._sources[batch] = (count, source)
        return known

    def _piece(self, source: int, pos: int) -> tuple[int, list[Any]]:
        """The row of values that holds this position, and where it begins. The last few rows stay decoded."""
        for key, piece in self._pieces.items():
            if key[0] == source and key[1] <= pos < key[1] + len(piece):
                return key[1], piece
        sql = "SELECT first, count, crc, body FROM chunks WHERE source = ? AND first <= ? ORDER BY first DESC LIMIT 1"
        rows = self._db.read("values", sql, (source, pos))
        if not rows or not rows[0][0] <= pos < rows[0][0] + rows[0][1]:
            raise self._db.damaged(f"the value at position {pos} of source {source} is missing")
        first, count, crc, body = rows[0]
        what = f"chunk {first} of source {source}"
        piece = from_json(self._db.checked(lambda: Checked.check(what, crc, body, first, count)))
        while len(self._pieces) >= KEPT_PIECES:
            del self._pieces[next(iter(self._pieces))]
        self._pieces[source, first] = piece
        return first, piece

    def results(self, batch: int, first: int, last: int, newest_only: bool) -> list[Result]:
        """Results of positions first..last inclusive, by position and attempt; or the last attempt of each."""
        sql = f"SELECT {_RESULT} FROM results WHERE batch = ? AND pos BETWEEN ? AND ? ORDER BY pos, attempt"
        rows = self._db.read("results", sql, (batch, first, last))
        if newest_only:
            rows = list({row[1]: row for row in rows}.values())
        return self._db.checked(lambda: [result_of(row) for row in rows])

    def place_of(self, runner: str) -> tuple[str, str | None] | None:
        """(site, native id of its allocation) of a runner, also of one that is long gone."""
        sql = "SELECT r.site, a.native_id FROM runners r LEFT JOIN allocations a ON a.id = r.allocation WHERE r.id = ?"
        rows = self._db.read("runners", sql, (runner,))
        return (rows[0][0], rows[0][1]) if rows else None

    def recent_results(
        self, batches: Sequence[int] | None, before: tuple[float, int, int, int] | None, limit: int
    ) -> list[Result]:
        """Results by end time, newest first, of these batches (None: all), older than the cursor.

        One without an end time counts as ended at 0. A `+` keeps SQLite from an index.
        """
        where: list[str] = []
        args: list[Any] = []
        by_batch = ""
        if batches is not None:
            wanted = ", ".join([str(int(batch)) for batch in batches])
            sql = f"SELECT coalesce(sum(count), 0) FROM batches WHERE id IN ({wanted})"
            by_batch = "+" if self._db.read("batches", sql)[0][0] <= FEW_JOBS else ""
            where.append(f"{'' if by_batch else '+'}batch IN ({wanted})")
        if before is not None:
            where += [f"{by_batch}{_ENDED} <= ?", f"({by_batch}{_ENDED}, batch, pos, attempt) < (?, ?, ?, ?)"]
            args += [before[0], *before]
        clause = f"WHERE {' AND '.join(where)}" if where else ""
        order = f"ORDER BY {by_batch}{_ENDED} DESC, batch DESC, pos DESC, attempt DESC LIMIT ?"
        rows = self._db.read("results", f"SELECT {_RESULT} FROM results {clause} {order}", (*args, limit))
        return self._db.checked(lambda: [result_of(row) for row in rows])

    def search(self, query: Query, limit: int) -> list[Result]:
        """Results that fit, in the query's order. Does not keep other readers waiting."""
        rows = search(self._db, query, limit)
        return self._db.checked(lambda: [result_of(row) for row in rows])

    def ended_since(self, wall: float) -> list[int]:
        """Batches of which an attempt ended after this time."""
        return ended_since(self._db, wall)

    def output_files(self) -> list[tuple[str, str]]:
        """(directory, file) of all output that results name."""
        return output_files(self._db)

    def slowest(self, batch: int, limit: int) -> list[Result]:
        """The attempts of a batch that took longest (wall time), longest first; those without times last."""
        sql = f"SELECT {_RESULT} FROM results WHERE batch = ? ORDER BY ended - started DESC, pos, attempt LIMIT ?"
        rows = self._db.read("results", sql, (batch, limit))
        return self._db.checked(lambda: [result_of(row) for row in rows])

    def sums(self, batches: Sequence[int] | None) -> list[Sums]:
        """What the attempts that completed used in all, of each of these batches (None: all) that has any."""
        return sums(self._db, batches)

    def entries(self, after: int, limit: int) -> list[Entry]:
        """The log, for people and for tests."""
        sql = "SELECT seq, at, by, crc, body FROM entries WHERE seq > ? ORDER BY seq LIMIT ?"
        rows = self._db.read("the log", sql, (after, limit))
        return self._db.checked(lambda: [entry_of(row) for row in rows])

    # ---- care -------------------------------------------------------------------------------------------------------

    def backup(self, path: str) -> None:
        """A consistent copy of the whole store, made while it is in use."""
        self._db.copy(path)

    def check(self) -> list[str]:
        """Read everything, compare all checksums, and return what is wrong. Takes seconds for a large store."""
        found = [row[0] for row in self._db.read("everything", "PRAGMA integrity_check(100)") if row[0] != "ok"]
        for table, columns, make in _CHECKS:
            for row in self._db.read(table, f"SELECT {columns} FROM {table}"):
                try:
                    make(row)
                except DamagedError as error:
                    found.append(str(error))
        return found

    @property
    def reserve_held(self) -> bool:
        """False after the reserve was given up: no new work is taken until `restore_reserve` brings it back."""
        return self._db.reserve().held

    def restore_reserve(self) -> bool:
        """Take the reserve again if there is room for it; True if it is held."""
        with self._db.writing:
            return self._db.reserve().allocate()

    def free_bytes(self) -> int:
        """Space left where the store lives."""
        return self._db.reserve().free_bytes()


_CHECKS: Final[list[tuple[str, str, Callable[[tuple[Any, ...]], object]]]] = [
    ("entries", "seq, at, by, crc, body", entry_of),
    ("results", _RESULT, result_of),
    ("columns", "batch, chunk, crc, states, attempts", lambda row: columns_of([row])),
    ("snapshot", "seq, crc, body", lambda row: Checked.check("the snapshot", row[1], row[2], row[0])),
    ("chunks", "first, count, crc, body", lambda row: Checked.check(f"chunk {row[0]}", row[2], row[3], *row[:2])),
    ("environments", "name, crc, body", lambda row: Checked.check(f"environment {row[0]}", row[1], row[2], row[0])),
    ("batches", "id, count, source, crc, spec", lambda row: Checked.check(f"batch {row[0]}", row[3], row[4], *row[:3])),
]
