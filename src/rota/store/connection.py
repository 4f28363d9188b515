"""The few things the store asks of an SQLite library.

Everything goes through this seam, so that the tests can run the same SQL over a file system that fails on purpose
(apsw has one, `sqlite3` has not).
"""

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Protocol

__all__ = ["Connect", "Connection", "Insert", "Row", "SqlError", "connect_read_only", "connect_sqlite3", "statements"]

Row = tuple[Any, ...]
CACHED_STATEMENTS = 256
BUSY_S = 5.0
COPY_PAGES = 2048


class SqlError(Exception):
    """What SQLite said: its extended result code, and its words."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{text} (SQLite code {code})")
        self.code = code

    @property
    def primary(self) -> int:
        """The code without its details."""
        return self.code & 0xFF


class Connection(Protocol):
    """A connection in autocommit mode: transactions are begun and ended by SQL. Raises SqlError."""

    def execute(self, sql: str, args: Sequence[Any] = ()) -> list[Row]:
        """Run one statement to its end and return its rows."""
        ...

    def in_transaction(self) -> bool:
        """True between BEGIN and COMMIT or ROLLBACK."""
        ...

    def changes(self) -> int:
        """How many rows were inserted, changed or deleted since it was opened."""
        ...

    def copy_to(self, path: str) -> None:
        """Copy the whole database to a new file (SQLite's backup interface). The caller syncs it."""
        ...

    def close(self) -> None:
        """Close; the last connection of a database brings the log into it."""
        ...


Connect = Callable[[str], Connection]


class _Sqlite3:
    """A Connection made of the standard library's."""

    def __init__(self, path: str, uri: bool = False) -> None:
        try:
            self._con = sqlite3.connect(
                path,
                uri=uri,
                timeout=BUSY_S,
                isolation_level=None,
                check_same_thread=False,
                cached_statements=CACHED_STATEMENTS,
            )
        except sqlite3.Error as error:
            raise _translated(error) from None
        self._execute = self._con.execute

    def execute(self, sql: str, args: Sequence[Any] = ()) -> list[Row]:
        try:
            return self._execute(sql, args).fetchall()
        except sqlite3.Error as error:
            raise _translated(error) from None
        except UnicodeDecodeError as error:
            raise SqlError(sqlite3.SQLITE_CORRUPT, f"text that is not UTF-8 ({error})") from None

    def in_transaction(self) -> bool:
        return self._con.in_transaction

    def changes(self) -> int:
        return self._con.total_changes

    def copy_to(self, path: str) -> None:
        try:
            into = sqlite3.connect(path, isolation_level=None)
            try:
                into.execute("PRAGMA synchronous=OFF")
                self._con.backup(into, pages=COPY_PAGES)
                into.execute("PRAGMA journal_mode=DELETE").fetchall()
            finally:
                into.close()
        except sqlite3.Error as error:
            raise _translated(error) from None

    def close(self) -> None:
        try:
            self._con.close()
        except sqlite3.Error as error:
            raise _translated(error) from None


def connect_sqlite3(path: str) -> Connection:
    """Open a database with the standard library."""
    return _Sqlite3(path)


def connect_read_only(path: str) -> Connection:
    """Open a database that is there with the standard library, to read it only."""
    return _Sqlite3(f"{Path(path).absolute().as_uri()}?mode=ro", uri=True)


def _translated(error: sqlite3.Error) -> SqlError:
    unknown = sqlite3.SQLITE_CORRUPT if "decode to UTF-8" in str(error) else sqlite3.SQLITE_ERROR
    return SqlError(getattr(error, "sqlite_errorcode", unknown), str(error))


class Insert:
    """Inserts many rows in few statements.

    The library lets go of the interpreter lock at every statement. `executemany` does so once a row, and each time the
    busy thread of the core may keep it for 5 ms; forty rows in one statement wait once. It is also quicker.
    """

    MOST = 100
    """Rows a statement; of nine columns at most, so that they stay below the 999 variables that old libraries allow."""

    def __init__(self, head: str, columns: int, tail: str = "") -> None:
        one = f"({', '.join('?' * columns)})"
        sizes = (*range(1, 10), *range(10, self.MOST + 1, 10))
        self._sql = {size: f"{head} VALUES {', '.join([one] * size)} {tail}" for size in sizes}

    def __call__(self, con: Connection, rows: Sequence[Row]) -> None:
        """Insert the rows in their order."""
        at, left = 0, len(rows)
        while left:
            size = min(left, self.MOST)
            if size > 10:
                size -= size % 10
            con.execute(self._sql[size], list(chain.from_iterable(rows[at : at + size])))
            at += size
            left -= size


def statements(script: str) -> Iterator[str]:
    """The statements of an SQL script, one by one, so that all of them fit into one transaction."""
    text = ""
    for line in script.splitlines(keepends=True):
        text += line
        if line.rstrip().endswith(";") and sqlite3.complete_statement(text):
            yield text
            text = ""
    if any(line.strip() and not line.lstrip().startswith("--") for line in text.splitlines()):
        raise ValueError(f"unfinished SQL: {text.strip()[:80]}")
