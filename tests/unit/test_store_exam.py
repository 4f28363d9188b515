"""Both stores pass the public exam; the exam notices stores that do not."""

from itertools import count
from pathlib import Path

import pytest

from rota.model.errors import NoSpaceError, StoreError
from rota.model.events import Noted
from rota.store.memory import MemoryStore
from rota.store.sqlite import SqliteStore
from rota.testing.check_store import array, check_store, entries_of


@pytest.mark.parametrize("exclusive", [False, True], ids=["shared", "exclusive"])
def test_sqlite(tmp_path: Path, exclusive: bool) -> None:
    number = count()

    def make() -> SqliteStore:
        home = tmp_path / str(next(number))
        home.mkdir()
        return SqliteStore(home / "rota.db", exclusive=exclusive, reserve_bytes=1 << 16)

    def reopen(store: SqliteStore) -> SqliteStore:
        store.close()
        return SqliteStore(store.path, exclusive=exclusive, reserve_bytes=1 << 16)

    check_store(make, reopen, lambda path: SqliteStore(path, exclusive=exclusive, reserve_bytes=1 << 16))


def test_memory() -> None:
    def reopen(store: MemoryStore) -> MemoryStore:
        return store.crash_copy()

    check_store(MemoryStore, reopen, MemoryStore.restored)


class Forgetful(MemoryStore):
    def commit(self, entries, results):
        super().commit(entries, results[:-1])


class Unsorted(MemoryStore):
    def recent_results(self, batches, before, limit):
        return super().recent_results(batches, before, limit)[::-1]


class Lazy(MemoryStore):
    def commit(self, entries, results):
        try:
            super().commit(entries, results)
        except StoreError:
            pass


class Sticky(MemoryStore):
    def load(self):
        stages = self._stages
        found = super().load()
        self._stages = stages
        return found

    def crash_copy(self):
        other = super().crash_copy()
        other._stages = self._stages
        return other


@pytest.mark.parametrize("bad", [Forgetful, Unsorted, Lazy, Sticky])
def test_the_exam_notices(bad: type[MemoryStore]) -> None:
    with pytest.raises(AssertionError):
        check_store(bad, lambda store: store.crash_copy())


def test_memory_faults() -> None:
    store = MemoryStore({2: NoSpaceError("full"), 4: StoreError("broken")})
    store.load()
    note = Noted("a", "b", "c")
    store.commit(entries_of([note]), [])
    with pytest.raises(NoSpaceError):
        store.commit(entries_of([note], 2), [])
    store.commit(entries_of([note], 2), [])
    with pytest.raises(StoreError):
        store.commit(entries_of([note], 3), [])
    with pytest.raises(StoreError, match="broken"):
        store.entries(0, 1)
    assert len(list(store.crash_copy().load().tail)) == 2


def test_memory_keeps_nothing_alive() -> None:
    store = MemoryStore()
    store.load()
    values = [{"command": ["a"]}]
    store.stage("s", 0, values, None)
    entries = entries_of([array(1, 1, "s")])
    store.commit(entries, [])
    values[0]["command"].append("changed")
    entries[0].event.key = "changed"
    copy = store.crash_copy()
    store.commit(entries_of([Noted("a", "b", "c")], 2), [])
    assert [entry.event.key for entry in copy.load().tail] == ["key-1"]
    assert copy.values(1, 0, 1) == [{"command": ["a"]}]
