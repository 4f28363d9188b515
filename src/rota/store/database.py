"""One SQLite file, opened safely: two connections, their locks, and the rule that nothing goes on after a failure.

One connection writes, one reads; each has a lock, so any thread may call, and a reader never waits for a writer's
disk. `exclusive` is for network file systems, where SQLite's shared memory does not work: one connection for both, and
no other process can open the file.

After a StoreError every call raises StoreError: what an I/O error left behind is known only after a fresh start.
"""

import os
import sqlite3
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from rota.model.errors import NoSpaceError, NotFoundError, RefusedError, RotaError, StoreError, UsageError
from rota.store.connection import BUSY_S, Connect, Connection, SqlError
from rota.store.reserve import Reserve
from rota.store.rows import DamagedError
from rota.store.schema import PAGE, check_file, check_own, check_version, prepare
from rota.store.sql_errors import meaning

__all__ = ["Database"]

T = TypeVar("T")
Row = tuple[Any, ...]

CHECKPOINT_PAGES = 4000
"""The write-ahead log is brought into the database after about so many pages (16 MB)."""
SCARCE_PAGES = 250
"""The same while space is scarce, so that the log does not use up what is left."""
LOG_BYTES = 4 << 20
LOG_PIECE = 256 << 10
"""How long the write-ahead log is made ahead of its use, and in which pieces."""
_DAMAGED = "the file is damaged: keep it, look at the disk, and restore the latest backup"


class Database:
    """The file, and whether it can still be trusted."""

    def __init__(
        self, path: str | os.PathLike[str], exclusive: bool, reserve_bytes: int, connect: Connect, migrations: Path
    ) -> None:
        self.path = os.path.abspath(path)
        self.writing = threading.RLock()
        self.reading = self.writing if exclusive else threading.RLock()
        self.looking = self.writing if exclusive else threading.RLock()
        self.failed: str | None = None
        """Why nothing goes on."""
        self._exclusive = exclusive
        self._reserve_bytes = reserve_bytes
        self._connect = connect
        self._migrations = migrations
        self._writer: Connection | None = None
        self._reader: Connection | None = None
        self._looker: Connection | None = None
        self._reserve: Reserve | None = None
        self._dirty_pages = 0

    # ---- opening and closing ----------------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """True between `open` and `close`."""
        return self._writer is not None

    def open(self) -> None:
        """Open the file or make it; bring it to the newest version."""
        self.failed = None
        check_own(self.path)
        check_file(self.path)
        self._reserve = Reserve(os.path.splitext(self.path)[0] + ".reserve", self._reserve_bytes)
        try:
            self._check_presence(self._reserve)
            self._writer = self._connect(self.path)
            self._set_up(self._writer)
            self._reader = self._writer
            if not self._exclusive:
                self._reader = self._connect(self.path)
                self._reader.execute("PRAGMA query_only=ON")
            self._reserve.allocate()
            sync_directory(self.path)
        except BaseException as error:
            self.close()
            if isinstance(error, SqlError):
                raise meaning(self.path, "opening", error) from error
            if isinstance(error, OSError):
                why = f"cannot be opened ({error.strerror}); look at the permissions of the file and its directory"
                raise StoreError(f"{self.path}: {why}") from None
            raise

    def open_to_read(self) -> None:
        """Open the file as it is, for reading only: nothing is made, migrated or brought together."""
        check_file(self.path)
        if not os.path.exists(self.path):
            raise NotFoundError(f"{self.path} is not there: nothing was ever queued in this home")
        try:
            self._writer = self._reader = self._connect(self.path)
            check_version(self._writer, self.path, self._migrations)
        except BaseException as error:
            self.close()
            raise meaning(self.path, "opening", error) if isinstance(error, SqlError) else error from None

    def _check_presence(self, reserve: Reserve) -> None:
        """Make the file if it is new. One that should be there and is not is an error, not a new beginning."""
        exists = os.path.exists(self.path)
        marked = reserve.marked()
        if marked and (not exists or os.path.getsize(self.path) == 0):
            raise StoreError(
                f"{self.path} is {'empty' if exists else 'missing'}, but {reserve.path} says that it held {marked} "
                f"entries: restore a backup; to begin anew on purpose, remove {reserve.path} too"
            )
        if not exists:
            os.close(os.open(self.path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))

    def _set_up(self, con: Connection) -> None:
        con.execute("PRAGMA synchronous=FULL")
        con.execute("PRAGMA temp_store=MEMORY")
        con.execute("PRAGMA secure_delete=ON")  # what is pruned cannot be read in the file any more
        if self._exclusive:
            con.execute("PRAGMA locking_mode=EXCLUSIVE")
        prepare(con, self.path, self._migrations)
        mode = con.execute("PRAGMA journal_mode=WAL")[0][0]
        if mode != "wal":
            why = f"the file system allows no write-ahead log (journal mode {mode}); keep the store on a local disk"
            raise StoreError(f"{self.path}: {why}")
        con.execute("PRAGMA wal_autocheckpoint=0")
        con.execute(f"PRAGMA journal_size_limit={4 * CHECKPOINT_PAGES * PAGE}")
        con.execute("PRAGMA cache_size=-8192")

    def close(self) -> None:
        """Close; the writer last, which brings the write-ahead log into the database."""
        with self.writing, self.reading, self.looking:
            writer, reader, looker = self._writer, self._reader, self._looker
            self._writer = self._reader = self._looker = None
            for con in (looker, *((writer,) if reader is writer else (reader, writer))):
                if con is not None:
                    with suppress(SqlError):
                        con.close()
            if self._reserve is not None:
                self._reserve.close()
                self._reserve = None

    # ---- reading and writing ----------------------------------------------------------------------------------------

    def write(self, what: str, work: Callable[[Connection], None], accepted: bool = True) -> None:
        """Do work in one durable transaction, or not at all. Accepted work may use the reserve."""
        with self.writing:
            con = self.usable(self._writer)
            try:
                con.execute("BEGIN IMMEDIATE")
                work(con)
                con.execute("COMMIT")
            except SqlError as error:
                self._undo(con)
                raise self._failure(what, error, accepted) from error
            except (OverflowError, UnicodeError) as error:
                self._undo(con)
                raise UsageError(f"{what} cannot be stored: {error}") from error
            except BaseException as error:
                self._undo(con)
                if isinstance(error, StoreError):
                    raise self.stop(str(error)) from error
                raise

    def _undo(self, con: Connection) -> None:
        try:
            if con.in_transaction():
                con.execute("ROLLBACK")
        except SqlError as error:
            self.stop(f"an unfinished transaction could not be taken back: {error}; start rota again")

    def read(self, what: str, sql: str, args: Sequence[Any] = ()) -> list[Row]:
        """The rows of a query."""
        with self.reading:
            con = self.usable(self._reader)
            try:
                return con.execute(sql, args)
            except SqlError as error:
                raise self._failure(f"reading {what}", error, False) from error

    def look(self, what: str, sql: str, args: Sequence[Any] = ()) -> list[Row]:
        """The rows of a query that may take seconds: over a connection of its own, so that no reader waits for it."""
        if self._exclusive:
            return self.read(what, sql, args)
        with self.looking:
            self.check_usable()
            try:
                if self._looker is None:
                    self._looker = self._connect(self.path)
                    self._looker.execute("PRAGMA query_only=ON")
                return self._looker.execute(sql, args)
            except SqlError as error:
                raise self._failure(f"reading {what}", error, False) from error

    def wrote(self, pages: int) -> None:
        """Note about how many pages went into the write-ahead log; bring it into the database when it is long.

        SQLite would do this by itself, and would keep a failed sync to itself.
        """
        self._dirty_pages += pages
        if self._dirty_pages < (CHECKPOINT_PAGES if self.reserve().held else SCARCE_PAGES):
            return
        self._dirty_pages = 0
        try:
            self.usable(self._writer).execute("PRAGMA wal_checkpoint(PASSIVE)")
        except SqlError as error:
            found = meaning(self.path, "bringing the write-ahead log into the database", error)
            if isinstance(found, StoreError):
                self.failed = str(found)  # what was committed is durable, so this call succeeds; the next one stops

    def lengthen_log(self) -> bool:
        """Make the write-ahead log a piece longer, with zeros, ahead of its use; True: it is to be longer yet.

        A file that grows takes twice as long to sync. What follows its last whole frame, SQLite does not look at.
        """
        if self._exclusive or not self.reserve().held or self.failed is not None:
            return False
        try:
            fd = os.open(f"{self.path}-wal", os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            with self.writing:  # nobody else writes there
                size = os.fstat(fd).st_size
                if size >= LOG_BYTES:
                    return False
                os.pwrite(fd, bytes(LOG_PIECE), size)
            os.fdatasync(fd)
        except OSError:
            return False
        finally:
            os.close(fd)
        return True

    def empty_log(self) -> bool:
        """Bring the write-ahead log into the database and cut it off; False: somebody reads in it just now."""
        con = self.usable(self._writer)
        try:
            con.execute("PRAGMA busy_timeout=0")
            try:
                busy: int = con.execute("PRAGMA wal_checkpoint(TRUNCATE)")[0][0]
            finally:
                con.execute(f"PRAGMA busy_timeout={int(BUSY_S * 1000)}")
        except SqlError as error:
            raise self._failure("bringing the write-ahead log into the database", error, False) from error
        return not busy

    # ---- trust ------------------------------------------------------------------------------------------------------

    def usable(self, con: Connection | None) -> Connection:
        """The connection, unless something failed before."""
        if self.failed is not None:
            raise StoreError(self.failed)
        if con is None:
            raise StoreError(f"{self.path} is not open")
        return con

    def check_usable(self) -> None:
        """Raise StoreError if something failed before, or if the store is not open."""
        self.usable(self._writer)

    def checked(self, work: Callable[[], T]) -> T:
        """Do work that raises DamagedError for rows that do not fit their checksum."""
        try:
            return work()
        except DamagedError as error:
            raise self.damaged(str(error)) from None

    def damaged(self, what: str) -> StoreError:
        """Stop because the file is not what was written."""
        return self.stop(f"{what}; {_DAMAGED}")

    def stop(self, why: str) -> StoreError:
        """From now on every call raises this error."""
        if self.failed is None:
            self.failed = f"{self.path}: {why}"
        return StoreError(self.failed)

    def _failure(self, what: str, error: SqlError, accepted: bool) -> RotaError:
        found = meaning(self.path, what, error)
        if self.failed is not None:
            return StoreError(self.failed)
        if isinstance(found, StoreError):
            self.failed = str(found)
        elif accepted:
            self.reserve().release()
        return found

    def reserve(self) -> Reserve:
        """The reserve: a file beside the database."""
        if self._reserve is None:
            raise StoreError(self.failed or f"{self.path} is not open")
        return self._reserve

    # ---- copying ----------------------------------------------------------------------------------------------------

    def copy(self, path: str) -> None:
        """Copy the database while it is in use: under another name, synced, then renamed.

        A read transaction is held over the copy, so that commits meanwhile neither wait (except in exclusive mode) nor
        make it start again.
        """
        self.check_usable()
        part = f"{os.path.abspath(path)}.part"
        try:
            remove(part)
            os.close(os.open(part, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600))
            self._copy(part)
            self._check_copy(part)
            with open(part, "rb+") as file:
                os.fsync(file.fileno())
            os.replace(part, path)
            sync_directory(os.path.abspath(path))
        except SqlError as error:
            raise self._copy_failure(path, error) from error
        except OSError as error:
            raise RefusedError(f"the backup {path} cannot be written: {error.strerror}") from None
        finally:
            remove(part)

    def _copy(self, part: str) -> None:
        if self._exclusive:
            with self.writing:
                self.usable(self._writer).copy_to(part)
            return
        con = self._connect(self.path)
        try:
            con.execute("PRAGMA query_only=ON")
            con.execute("BEGIN")
            con.execute("SELECT max(seq) FROM entries")
            con.copy_to(part)
        finally:
            with suppress(SqlError):
                con.close()

    def _check_copy(self, part: str) -> None:
        """Read the copy's structure once: a backup that cannot be read is worse than an error now."""
        con = self._connect(part)
        try:
            found = con.execute("PRAGMA quick_check(1)")
        finally:
            con.close()
        if found != [("ok",)]:
            raise self.damaged(f"its copy is not sound ({found[0][0]})")

    def _copy_failure(self, path: str, error: SqlError) -> RotaError:
        found = meaning(path, "the backup", error)
        if isinstance(found, NoSpaceError):
            return found
        if error.primary in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):  # what was read, not what was written
            return self.damaged(f"damage was found while copying it ({error})")
        return RefusedError(f"the backup {path} failed: {error}")


def remove(path: str) -> None:
    """Remove a database file and what SQLite keeps beside it."""
    for name in (path, path + "-journal", path + "-wal", path + "-shm"):
        with suppress(FileNotFoundError):
            os.remove(name)


def sync_directory(path: str) -> None:
    """Make the name of a file durable."""
    fd = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
