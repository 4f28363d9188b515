"""Bringing a queue back whose log cannot be folded, while no manager runs (`rota doctor --repair`).

All that can be folded is kept: the last checkpoint and the entries after it, up to the one that fails. That one and
what came after it are written to `quarantine`, the whole database is moved aside, and the queue begins again, paused.
"""

import os
import shutil
import sqlite3
from typing import Any

import msgspec

from rota.core.state import Settings
from rota.manager.checkpoints import FoldError, state_of
from rota.manager.lock import AlreadyRunningError, Lock
from rota.manager.offline.restoring import adopt, swap, sync
from rota.manager.paths import Paths, prepare
from rota.model.errors import NotFoundError, RefusedError, StoreError
from rota.store.sqlite import SqliteStore
from rota.wire.home import private_directory, write_private

__all__ = ["repair"]


def repair(home: str | None = None) -> dict[str, Any]:
    """Repair the queue of this home; what was done: `from` is None if nothing was wrong."""
    paths = prepare(home)
    if not os.path.exists(paths.database):
        raise NotFoundError(f"{paths.database}: there is no queue to repair")
    try:
        with Lock(paths):
            return _repair(paths)
    except AlreadyRunningError as error:
        raise RefusedError(f"{error}: stop it first (rota down); its jobs go on without it") from None


def _repair(paths: Paths) -> dict[str, Any]:
    place = os.path.join(paths.home, f"repairing-{os.getpid()}")
    os.mkdir(place, 0o700)
    try:
        copy = os.path.join(place, "rota.db")
        present = sqlite3.connect(paths.database)
        into = sqlite3.connect(copy)
        try:
            present.backup(into)
        finally:
            into.close()
            present.close()
        os.chmod(copy, 0o600)
        first = _first_bad(copy)
        if first is None:
            return {"from": None, "dropped": 0}
        dropped, kept = _cut(copy, first, paths)
        if (still := _first_bad(copy)) is not None:
            raise StoreError(f"the checkpoint itself cannot be used (entry {still}): restore a backup; nothing changed")
        told = adopt(copy, paths.database, paths, pause=True, why=f"repaired from entry {first} on")
        sync(copy)
        told["replaced"] = swap(copy, paths)
    finally:
        shutil.rmtree(place, ignore_errors=True)
    return {"from": first, "dropped": dropped, "kept": kept, **told}


def _first_bad(copy: str) -> int | None:
    """The first entry that cannot be folded."""
    store = SqliteStore(copy, reserve_bytes=0)
    try:
        state_of(store.load(), Settings(), 1)
    except FoldError as error:
        return error.seq
    finally:
        store.close()
    return None


def _cut(copy: str, first: int, paths: Paths) -> tuple[int, str]:
    """Take the entries from `first` on out of the copy, and keep them in a file: their number, and where."""
    store = SqliteStore(copy, reserve_bytes=0)
    try:
        store.load()
        bad, after = [], first - 1
        while found := store.entries(after, 1000):
            bad += [msgspec.json.encode(entry) for entry in found]
            after = found[-1].seq
    finally:
        store.close()
    private_directory(paths.quarantine)
    kept = os.path.join(paths.quarantine, f"log-{first}.jsonl")
    write_private(kept, b"\n".join(bad) + b"\n")
    con = sqlite3.connect(copy)
    try:
        con.execute("DELETE FROM entries WHERE seq >= ?", (first,))
        con.commit()
    finally:
        con.close()
    return len(bad), kept
