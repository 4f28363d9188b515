"""What an SQLite error means: no space (go on without writing), or trust nothing (stop)."""

import errno
import os
import sqlite3
import tempfile

from rota.model.errors import NoSpaceError, RotaError, StoreError
from rota.store.connection import SqlError

__all__ = ["meaning"]

SPACE = (errno.ENOSPC, errno.EDQUOT)
_WRITES = (sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_IOERR_SHMSIZE, sqlite3.SQLITE_IOERR_TRUNCATE)
"""How SQLite reports a quota: it knows ENOSPC only. A failed sync is not among them: nobody knows what it left."""
_PROBE = 256 << 10

_ADVICE = {
    sqlite3.SQLITE_IOERR: "the disk or the network file system failed; look at dmesg, then start rota again",
    sqlite3.SQLITE_CORRUPT: "the file is damaged; keep it, look at the disk, and restore the latest backup",
    sqlite3.SQLITE_NOTADB: "not a database, or its beginning is damaged; keep the file, and restore the latest backup",
    sqlite3.SQLITE_READONLY: "rota must be able to write it: look at its permissions; is the file system read-only?",
    sqlite3.SQLITE_CANTOPEN: "look at the permissions of file and directory, and whether the file system is read-only",
    sqlite3.SQLITE_PERM: "look at the permissions of the file and its directory",
    sqlite3.SQLITE_BUSY: "another process holds a lock on it: end that process (fuser shows it), then start rota again",
    sqlite3.SQLITE_NOMEM: "the machine is out of memory",
    sqlite3.SQLITE_CONSTRAINT: "it contradicts what is there; this is a bug in rota, please report it",
}


def meaning(path: str, what: str, error: SqlError) -> RotaError:
    """NoSpaceError or StoreError for an error met while doing `what`."""
    if error.primary == sqlite3.SQLITE_FULL or (error.code in _WRITES and out_of_space(os.path.dirname(path) or ".")):
        return NoSpaceError(f"no space left for {path}: {what} was not written; free some space, or raise the quota")
    advice = _ADVICE.get(error.primary, "this is a bug in rota, please report it")
    return StoreError(f"{path}: {what} failed: {error}; {advice}")


def out_of_space(directory: str) -> bool:
    """True if a small file cannot be written there for want of space or quota."""
    try:
        with tempfile.TemporaryFile(dir=directory) as probe:
            probe.write(bytes(_PROBE))
            probe.flush()
            os.fsync(probe.fileno())
    except OSError as error:
        return error.errno in SPACE
    return False
