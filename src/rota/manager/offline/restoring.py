"""Putting a backup back, while no manager runs.

The backup is copied, checked to the last row and brought to this version before anything of the home is touched. The
present database is moved aside, never deleted. Stopped at any point, the home has its old queue, the new one, or none
and a mark (`rota.reserve`) for which a manager refuses to begin an empty one.
"""

import os
import shutil
import sqlite3
import stat
import time
from typing import Any

from rota.core.state import Settings, State
from rota.manager.checkpoints import state_of
from rota.manager.filesystem import warning_for
from rota.manager.lock import AlreadyRunningError, Lock
from rota.manager.paths import Paths, prepare
from rota.model.errors import DeniedError, NotFoundError, RefusedError, StoreError, VersionError
from rota.model.events import Entry, Event, ManagerMoved, Noted, Restored
from rota.store.database import sync_directory
from rota.store.schema import check_file
from rota.store.sqlite import SqliteStore

__all__ = ["adopt", "restore", "swap", "sync"]

STEP = 1_000
"""Numbers of batches and attempts go on at the next multiple of this: those in between may have been used."""
UNKNOWN = 10 * STEP
"""How much further the numbers go on where the present database cannot say what was used."""


def restore(path: str, home: str | None = None, pause: bool = True) -> dict[str, Any]:
    """Make the backup at `path` the queue of this home; what was done."""
    source = os.path.abspath(path)
    if not os.path.isfile(source):
        raise NotFoundError(f"{path}: there is no such file")
    if os.path.islink(source):
        raise RefusedError(f"{path} is a symbolic link: name the backup itself ({os.path.realpath(source)})")
    check_file(source)
    if os.path.getsize(source) == 0:
        raise StoreError(f"{path}: the file is empty, not a backup")
    paths = prepare(home)
    try:
        with Lock(paths):
            return _restore(source, paths, pause)
    except AlreadyRunningError as error:
        raise RefusedError(f"{error}: stop it first (rota down); its jobs go on without it") from None


def _restore(source: str, paths: Paths, pause: bool) -> dict[str, Any]:
    present = paths.database
    if os.path.exists(present) and os.path.samefile(source, present):
        raise RefusedError(f"{source} is the present queue itself")
    place = os.path.join(paths.home, f"restoring-{os.getpid()}")
    os.mkdir(place, 0o700)
    try:
        copy = os.path.join(place, "rota.db")
        _copy(source, copy)
        told = adopt(copy, source, paths, pause)
        if os.path.exists(copy + "-wal") and os.path.getsize(copy + "-wal"):
            raise StoreError(f"{copy} could not be closed cleanly; nothing was changed")
        sync(copy)
        told["replaced"] = swap(copy, paths)
    finally:
        shutil.rmtree(place, ignore_errors=True)
    return {"restored": source, "home": paths.home, **told, "paused": pause}


def _copy(source: str, copy: str) -> None:
    """Copy the one file that a backup is. What lies beside it is never taken: anybody may have put it there."""
    for end in ("-wal", "-journal"):
        if os.path.lexists(source + end) and os.lstat(source + end).st_size:
            raise RefusedError(
                f"{source + end} lies beside the backup, and no backup of rota has one: somebody put it there, or "
                f"{source} is a copy of a queue in use, made without rota backup. Look whose it is (uid "
                f"{os.lstat(source + end).st_uid}), and restore a copy of {os.path.basename(source)} alone"
            )
    fd = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(fd, "rb") as file:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
            raise DeniedError(
                f"{source} belongs to uid {found.st_uid}, mode {found.st_mode & 0o7777:04o}: its jobs would run as you."
                " If you trust it, make a copy of your own (cp, chmod 600) and restore that"
            )
        with open(os.open(copy, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as into:
            shutil.copyfileobj(file, into, 1 << 20)


def adopt(copy: str, source: str, paths: Paths, pause: bool, why: str | None = None) -> dict[str, Any]:
    """See that the copy is sound, and write into it that it was restored."""
    store = SqliteStore(copy, exclusive=warning_for(paths.home) is not None, reserve_bytes=0)
    try:
        loaded = store.load()
        wrong = store.check()
        if wrong:
            raise StoreError(f"{source} is damaged: {wrong[0]}")
        state = state_of(loaded, Settings(), 1)
        made = [entry.at for entry in store.entries(max(0, state.seq - 1), 1)]
        skipped = _skipped(state, paths.database)
        now = time.time()
        events: list[Event] = [skipped, Noted("queue", "restored", why or f"from {source}")]
        if pause:
            pauses = [(holder, *row) for holder, row in state.pauses.items() if holder != "restore"]
            why = why or f"restored from {os.path.basename(source)}"
            events.append(ManagerMoved("paused", "rota restore", [*pauses, ("restore", now, why, "rota restore")]))
        store.commit([Entry(state.seq + at, now, "rota restore", event) for at, event in enumerate(events, 1)], [])
    except (StoreError, VersionError) as error:
        raise type(error)(f"{str(error).replace(copy, source)}; nothing was changed") from None
    finally:
        store.close()
    return {
        "made": made[0] if made else None,
        "batches": len(state.batches),
        "jobs": sum(batch.count for batch in state.batches.rows()),
        "running": sum(len(batch.live) for batch in state.batches.open()),
        "next_batch": skipped.next_batch,
    }


def _skipped(state: State, present: str) -> Restored:
    """The numbers to go on with: beyond all that may have been given away since the backup was made."""
    batch, allocation, further = state.next_batch, state.next_allocation, 0
    if os.path.exists(present):
        used = _used(present)
        if used is None:
            further = UNKNOWN
        else:
            batch, allocation = max(batch, used[0] + 1), max(allocation, used[1] + 1)
    return Restored(
        batch - batch % STEP + STEP + further + 1,
        allocation - allocation % STEP + STEP + further + 1,
        state.attempt_floor - state.attempt_floor % STEP + STEP + 1,
    )


def _used(present: str) -> tuple[int, int] | None:
    """The greatest numbers of batches and allocations in a database; None if it cannot be read."""
    try:
        con = sqlite3.connect(f"file:{present.replace('%', '%25').replace('?', '%3f')}?mode=ro", uri=True)
        try:
            batch = con.execute("SELECT coalesce(max(id), 0) FROM batches").fetchone()[0]
            allocations = [int(row[0][1:]) for row in con.execute("SELECT id FROM allocations")]
            return int(batch), max(allocations, default=0)
        finally:
            con.close()
    except (sqlite3.Error, ValueError, TypeError):
        return None


def swap(copy: str, paths: Paths) -> str | None:
    """Move the present database aside and the copy into its place."""
    aside = None
    if os.path.lexists(paths.database):
        aside = paths.database + time.strftime(".replaced-%Y%m%d-%H%M%S")
        while os.path.lexists(aside):
            aside += "x"
        os.rename(paths.database, aside)
    for end in ("-wal", "-shm", "-journal"):
        if os.path.lexists(paths.database + end):
            os.rename(paths.database + end, (aside or paths.database + ".left") + end)
    sync_directory(paths.database)
    os.rename(copy, paths.database)
    sync_directory(paths.database)
    reserve = os.path.splitext(paths.database)[0] + ".reserve"  # its mark is about the old one
    if os.path.lexists(reserve):
        os.unlink(reserve)
    sync_directory(paths.database)
    return aside


def sync(path: str) -> None:
    with open(path, "rb+") as file:
        os.fsync(file.fileno())
