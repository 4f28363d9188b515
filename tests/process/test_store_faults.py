"""Every write, sync and truncation fails once: the right error, nothing acknowledged lost, all intact (D3, D7)."""

import os
import random
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from rota.model.errors import NoSpaceError, StoreError
from rota.model.events import Noted
from rota.model.job import Result
from rota.store import database, sql_errors
from rota.store.api import Column
from rota.store.connection import SqlError
from rota.store.sqlite import SqliteStore
from rota.testing.check_store import array, entries_of
from store_faults import Disk, broken, full


@pytest.fixture(autouse=True)
def _small_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "CHECKPOINT_PAGES", 40)


def day(store: SqliteStore) -> list[tuple[str, Callable[[], object]]]:
    """A short life of a store, call by call."""
    rows = [Result(1, pos, 1, "COMPLETED", note="x" * 200) for pos in range(60)]
    column = Column(1, 0, random.Random(1).randbytes(30_000), bytes(60_000))
    return [
        ("load", store.load),
        ("stage", lambda: store.stage("s", 0, ["v" * 500] * 60, None)),
        ("submit", lambda: store.commit(entries_of([array(1, 60, "s")]), [])),
        ("results", lambda: store.commit(entries_of([Noted("a", "b", "c")] * 3, 2), rows)),
        ("checkpoint", lambda: store.checkpoint(4, b"four", [column])),
        ("environment", lambda: store.keep_environment("h", {"A": "b" * 5000})),
        ("last", lambda: store.commit(entries_of([Noted("a", "b", "c")], 5), [])),
    ]


def check(home: Path, done: list[str]) -> None:
    """What was acknowledged is there."""
    store = SqliteStore(home / "rota.db", reserve_bytes=0)
    found = store.load()
    assert store.check() == []
    list(found.tail)
    least = 5 if "last" in done else 4 if "results" in done else 1 if "submit" in done else 0
    assert len(store.entries(0, 10)) >= least
    if "submit" in done:
        assert store.values(1, 0, 60) == ["v" * 500] * 60
    if "results" in done:
        assert len(store.results(1, 0, 99, True)) == 60
    if "checkpoint" in done:
        assert (found.seq, found.snapshot, len(found.columns)) == (4, b"four", 1)
    if "environment" in done:
        assert store.environment("h") == {"A": "b" * 5000}
    store.close()


def test_no_space_at_every_write(tmp_path: Path) -> None:
    """NoSpaceError, and the same call again succeeds; nothing is lost and nothing is there twice."""
    failures = 0
    for n in range(1, 10_000):
        home = tmp_path / str(n)
        home.mkdir()
        disk = Disk()
        disk.counted, disk.fail_at, disk.error = ("write",), n, full
        store = SqliteStore(home / "rota.db", reserve_bytes=0, connect=disk.connect)
        done = []
        for name, call in day(store):
            try:
                call()
            except NoSpaceError:
                failures += 1
                call()
            done.append(name)
        store.close()
        check(home, done)
        if not disk.failed:
            break
    assert n > 50
    assert failures > 20, f"{failures} of {n}: the faults did not reach the store"


@pytest.mark.parametrize("kind", ["write", "sync", "truncate"])
def test_io_error_at_every_operation(tmp_path: Path, kind: str) -> None:
    """StoreError, then nothing but StoreError; what was acknowledged before is there after a restart."""
    stopped = 0
    for n in range(1, 10_000):
        home = tmp_path / str(n)
        home.mkdir()
        disk = Disk()
        disk.counted, disk.fail_at, disk.error = (kind,), n, broken
        store = SqliteStore(home / "rota.db", reserve_bytes=0, connect=disk.connect)
        done: list[str] = []
        for name, call in day(store):
            try:
                call()
            except StoreError as error:
                assert "on purpose" in str(error)
                assert str(home) in str(error)
                stopped += 1
                break
            done.append(name)
        if stopped and len(done) < 7 and done:
            for _, call in day(store)[1:]:
                with pytest.raises(StoreError):
                    call()
        store.close()
        check(home, done)
        if not disk.failed:
            break
    assert stopped or kind == "truncate"


def test_a_quota_is_no_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite calls EDQUOT an I/O error; a probe tells them apart, but never after a failed sync."""
    error = SqlError(sqlite3.SQLITE_IOERR_WRITE, "disk I/O error")
    assert isinstance(sql_errors.meaning(str(tmp_path / "rota.db"), "x", error), StoreError)
    monkeypatch.setattr(sql_errors, "out_of_space", lambda _: True)
    assert isinstance(sql_errors.meaning(str(tmp_path / "rota.db"), "x", error), NoSpaceError)
    fsync = SqlError(sqlite3.SQLITE_IOERR_FSYNC, "disk I/O error")
    assert isinstance(sql_errors.meaning(str(tmp_path / "rota.db"), "x", fsync), StoreError)


def test_a_failed_sync_of_the_database_stops(tmp_path: Path) -> None:
    """Bringing the log into the database fails after a commit: the commit stands, the next call stops."""
    disk = Disk()
    store = SqliteStore(tmp_path / "rota.db", reserve_bytes=0, connect=disk.connect)
    store.load()
    disk.error = broken
    seq = 0
    with pytest.raises(StoreError):
        while seq < 1000:
            if seq == 3:
                disk.counted, disk.fail_at, disk.fail_count = ("sync",), disk.operations + 1, 1 << 60
                disk.operation = only(disk, "rota.db")  # type: ignore[method-assign]
            store.commit(entries_of([Noted("a", "b", "c" * 3000)], seq + 1), [])
            seq += 1
    assert disk.failed
    assert set(disk.failed) == {"sync rota.db"}
    disk.fail_at = None
    store.close()
    fresh = SqliteStore(tmp_path / "rota.db", reserve_bytes=0)
    assert len(list(fresh.load().tail)) == seq
    fresh.close()


def only(disk: Disk, name: str) -> Callable[[str, str], None]:
    """Let operations on this file alone count."""
    count = disk.operation

    def operation(kind: str, path: str) -> None:
        if os.path.basename(path) == name:
            count(kind, path)

    return operation
