"""A disk that is truly full: accepted work is recorded, new work refused, and all is well when space returns (D4)."""

import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from rota.model.errors import NoSpaceError, StoreError
from rota.model.events import Noted
from rota.model.job import Result
from rota.store.sqlite import SqliteStore
from rota.testing.check_store import array, entries_of

libc = ctypes.CDLL(None, use_errno=True)
REMOUNT_READ_ONLY = 32 | 1


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 MB."""
    target = tmp_path / "small"
    target.mkdir()
    if libc.mount(b"tmpfs", os.fsencode(target), b"tmpfs", 0, b"size=64m") != 0:
        why = os.strerror(ctypes.get_errno())
        pytest.skip(f"no small file system can be mounted here: {why}; test_store_faults does without")
    try:
        yield target
    finally:
        assert libc.umount2(os.fsencode(target), 2) == 0


def fill(path: Path) -> None:
    """Leave nothing."""
    with open(path, "ab", buffering=0) as file:
        for size in (1 << 20, 4096):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                pass


def rows(first: int) -> list[Result]:
    return [Result(1, pos, 1, "COMPLETED", output="x" * 100) for pos in range(first, first + 50)]


def test_a_full_disk(small: Path) -> None:
    store = SqliteStore(small / "rota.db")
    store.load()
    store.commit(entries_of([array(1, 100_000)]), [])
    assert store.reserve_held
    assert os.stat(small / "rota.reserve").st_blocks * 512 >= 16 << 20
    fill(small / "filler")
    assert store.free_bytes() < 4096
    with pytest.raises(NoSpaceError, match="free some space"):
        store.stage("new", 0, ["x" * 100] * 20_000, None)
    assert store.reserve_held, "new work must not use the reserve"

    seq, refused = 2, 0
    for turn in range(400):
        entries = entries_of([Noted("a", "b", "c")], seq)
        try:
            store.commit(entries, rows(turn * 50))
        except NoSpaceError:
            refused += 1
            assert not store.reserve_held
            store.commit(entries, rows(turn * 50))
        seq += 1
    assert refused == 1
    assert not store.restore_reserve()
    with pytest.raises(NoSpaceError):
        store.stage("new", 0, ["x"], None)
    assert len(store.results(1, 0, 100_000, True)) == 20_000

    os.remove(small / "filler")
    assert store.restore_reserve()
    assert store.reserve_held
    store.stage("new", 0, ["x"] * 10, None)
    store.commit(entries_of([array(2, 10, "new")], seq), [])
    store.close()
    store.load()
    assert store.values(2, 0, 10) == ["x"] * 10
    assert store.check() == []
    store.close()


def test_opened_on_a_full_disk(small: Path) -> None:
    """It opens, takes no new work, and says why."""
    store = SqliteStore(small / "rota.db")
    store.load()
    store.commit(entries_of([array(1, 100)]), [])
    store.close()
    os.truncate(small / "rota.reserve", 4096)
    fill(small / "filler")
    with open(small / "filler", "rb+") as file:
        file.truncate(os.path.getsize(small / "filler") - (1 << 20))
    assert len(list(store.load().tail)) == 1
    assert not store.reserve_held
    with pytest.raises(NoSpaceError):
        store.stage("new", 0, ["x"], None)
    store.commit(entries_of([Noted("a", "b", "c")], 2), rows(0))
    store.close()


def test_a_backup_that_does_not_fit(tmp_path: Path, small: Path) -> None:
    """The store goes on; nothing is left behind."""
    store = SqliteStore(tmp_path / "rota.db")
    store.load()
    store.stage("s", 0, ["x" * 1000] * 4000, None)
    store.commit(entries_of([array(1, 4000, "s")]), [])
    fill(small / "filler")
    with pytest.raises(NoSpaceError):
        store.backup(str(small / "copy.db"))
    assert os.listdir(small) == ["filler"]
    store.commit(entries_of([Noted("a", "b", "c")], 2), [])
    store.backup(str(tmp_path / "copy.db"))
    store.close()


def test_a_read_only_file_system(small: Path) -> None:
    """A clear word at the opening, and nothing is touched."""
    store = SqliteStore(small / "rota.db")
    store.load()
    store.commit(entries_of([array(1, 100)]), [])
    store.close()
    before = (small / "rota.db").read_bytes()
    assert libc.mount(b"tmpfs", os.fsencode(small), b"tmpfs", REMOUNT_READ_ONLY, b"size=64m") == 0
    with pytest.raises(StoreError, match="whether the file system is read-only"):
        store.load()
    assert (small / "rota.db").read_bytes() == before
