"""A disk that loses what was not synced, fails when told to, and can be cut off: an SQLite VFS made with apsw.

Writes go to the real file at once; what stood there before is kept until the next sync, in sectors of 512 bytes. A
power cut makes a copy of the files in which a random part of the unsynced sectors is the old one.
"""

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw

from rota.store.connection import SqlError

SECTOR = 512
_number = iter(range(1 << 30))


class Unsynced:
    """What a file held at its last sync, where it was written since."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.sectors: dict[int, bytes] = {}


class Disk:
    """All files of one store, and what goes wrong with them."""

    def __init__(self) -> None:
        self.operations = 0
        self.fail_at: int | None = None
        """Number of the first operation that fails."""
        self.fail_count = 1
        """So many fail in a row; a power cut is for ever."""
        self.error: Callable[[str], Exception] = full
        self.counted = ("write", "sync", "truncate")
        self.failed: list[str] = []
        self.unsynced: dict[str, Unsynced] = {}
        self.name = f"faults-{next(_number)}"
        self._vfs = FaultVFS(self.name, self)
        self._open: list[ApswConnection] = []
        self.synchronous = "FULL"

    def connect(self, path: str) -> "ApswConnection":
        """A connection on this disk, for `SqliteStore(connect=…)`."""
        con = ApswConnection(path, self.name, self.synchronous)
        self._open.append(con)
        return con

    def operation(self, kind: str, path: str) -> None:
        """Count an operation, and fail if it is its turn."""
        if kind not in self.counted:
            return
        self.operations += 1
        if self.fail_at is not None and self.fail_at <= self.operations < self.fail_at + self.fail_count:
            self.failed.append(f"{kind} {os.path.basename(path)}")
            raise self.error(kind)

    def cut_at(self, operation: int) -> None:
        """Let the power fail at this operation, counted from now."""
        self.fail_at = self.operations + operation
        self.fail_count = 1 << 60
        self.error = broken
        self.counted = ("write", "sync", "truncate", "delete")

    def after_cut(self, home: Path, into: Path, rng: random.Random) -> None:
        """Make `into` what a machine finds in `home` when the power is back."""
        self.fail_at, self.fail_count, self.error = 0, 1 << 60, broken
        keep = rng.choice([0.0, 0.1, 0.5, 0.9, 1.0])
        into.mkdir()
        for path in home.iterdir():
            if path.name.endswith("-shm"):
                continue
            data = bytearray(path.read_bytes())
            lost = self.unsynced.get(str(path))
            if lost is not None:
                self._tear(data, lost, keep, rng)
            (into / path.name).write_bytes(data)
        for con in self._open:
            con.abandon()

    def _tear(self, data: bytearray, lost: Unsynced, keep: float, rng: random.Random) -> None:
        size = rng.choice([len(data), lost.size, rng.randint(min(len(data), lost.size), max(len(data), lost.size))])
        for sector, old in lost.sectors.items():
            if rng.random() >= keep:
                at = sector * SECTOR
                if len(data) < at + len(old):
                    data.extend(bytes(at + len(old) - len(data)))
                data[at : at + SECTOR] = old.ljust(min(SECTOR, max(len(data) - at, len(old))), b"\0")
        del data[size:]


def full(kind: str) -> Exception:
    """No space for a write; anything else of the disk works."""
    error = apsw.FullError("no space (on purpose)")
    error.extendedresult = apsw.SQLITE_FULL
    return error


def broken(kind: str) -> Exception:
    """An I/O error of the fitting kind."""
    codes = {"write": apsw.SQLITE_IOERR_WRITE, "sync": apsw.SQLITE_IOERR_FSYNC, "truncate": apsw.SQLITE_IOERR_TRUNCATE}
    error = apsw.IOError("broken (on purpose)")
    error.extendedresult = codes.get(kind, apsw.SQLITE_IOERR_DELETE)
    return error


class FaultVFS(apsw.VFS):
    """Opens files whose writes are watched."""

    def __init__(self, name: str, disk: Disk) -> None:
        self._disk = disk
        super().__init__(name, "")

    def xOpen(self, name: Any, flags: list[int]) -> "FaultFile":  # noqa: N802
        return FaultFile(name, flags, self._disk)

    def xDelete(self, filename: str, syncdir: bool) -> None:  # noqa: N802
        self._disk.operation("delete", filename)
        super().xDelete(filename, syncdir)
        self._disk.unsynced.pop(filename, None)


class FaultFile(apsw.VFSFile):
    """A file that remembers what it held at its last sync."""

    def __init__(self, name: Any, flags: list[int], disk: Disk) -> None:
        self._disk = disk
        self._path = name.filename() if isinstance(name, apsw.URIFilename) else str(name)
        super().__init__("", name, flags)

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802
        self._disk.operation("write", self._path)
        self._remember(offset, offset + len(data))
        super().xWrite(data, offset)

    def xTruncate(self, size: int) -> None:  # noqa: N802
        self._disk.operation("truncate", self._path)
        self._remember(size, self.xFileSize())
        super().xTruncate(size)

    def xSync(self, flags: int) -> None:  # noqa: N802
        self._disk.operation("sync", self._path)
        self._disk.unsynced.pop(self._path, None)

    def _remember(self, start: int, end: int) -> None:
        size = self.xFileSize()
        lost = self._disk.unsynced.setdefault(self._path, Unsynced(size))
        for sector in range(start // SECTOR, (end + SECTOR - 1) // SECTOR):
            if sector not in lost.sectors:
                at = sector * SECTOR
                length = min(SECTOR, size - at)
                lost.sectors[sector] = self.xRead(length, at) if length > 0 else b""


class ApswConnection:
    """A `rota.store.connection.Connection` made of apsw's."""

    def __init__(self, path: str, vfs: str, synchronous: str) -> None:
        self._synchronous = synchronous
        try:
            self._con = apsw.Connection(path, vfs=vfs)
            self._con.set_busy_timeout(1000)
        except apsw.Error as error:
            raise _translated(error) from None

    def execute(self, sql: str, args: Any = ()) -> list[tuple[Any, ...]]:
        if sql == "PRAGMA synchronous=FULL":
            sql = f"PRAGMA synchronous={self._synchronous}"
        try:
            return list(self._con.execute(sql, tuple(args)))
        except apsw.Error as error:
            raise _translated(error) from None

    def in_transaction(self) -> bool:
        return bool(self._con.in_transaction)

    def changes(self) -> int:
        return int(self._con.total_changes())

    def copy_to(self, path: str) -> None:
        into = apsw.Connection(path)
        try:
            with into.backup("main", self._con, "main") as backup:
                while not backup.done:
                    backup.step(100)
            into.execute("PRAGMA journal_mode=DELETE")
        except apsw.Error as error:
            raise _translated(error) from None
        finally:
            into.close()

    def close(self) -> None:
        try:
            self._con.close()
        except apsw.Error as error:
            raise _translated(error) from None

    def abandon(self) -> None:
        """Close on a disk that is gone."""
        try:
            self._con.close(True)
        except apsw.Error:
            pass


def _translated(error: apsw.Error) -> SqlError:
    return SqlError(getattr(error, "extendedresult", 0) or getattr(error, "result", 1), str(error))
