"""Power cuts: whatever was acknowledged is there afterwards, whatever was not is there whole or not at all (D1)."""

import os
import random
from pathlib import Path

import pytest

from rota.model.errors import RotaError, StoreError
from rota.model.events import Ended, Entry
from rota.model.job import Result
from rota.store import database
from rota.store.api import Column
from rota.store.sqlite import SqliteStore
from rota.testing.check_store import array, entries_of
from store_faults import Disk

CUTS = int(os.environ.get("STORE_CUTS", "500"))
LIFE = 25
"""Cuts that one store lives through before a new one begins."""


class Witness:
    """What was acknowledged, and what was on its way when the power failed."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.results: dict[tuple[int, int, int], Result] = {}
        self.values: dict[int, list[str]] = {}
        self.checkpoint = 0
        self.flying: tuple[list[Entry], list[Result], list[str]] = ([], [], [])

    def work(self, store: SqliteStore, rng: random.Random) -> None:
        """One random thing; it is noted once it is acknowledged."""
        seq = len(self.entries) + 1
        chance = rng.random()
        if chance < 0.15:
            values = [f"{seq} {'x' * rng.randrange(200)} {at}" for at in range(rng.randrange(1, 80))]
            half = len(values) // 2
            store.stage(f"s{seq}", 0, values[:half], None)
            store.stage(f"s{seq}", half, values[half:], None)
            self._commit(store, entries_of([array(seq, len(values), f"s{seq}")], seq), [], values)
        elif chance < 0.25 and self.entries:
            at = rng.randint(self.checkpoint, len(self.entries))
            store.checkpoint(at, str(at).encode(), [Column(1, 0, bytes([at % 256]) * 2000, bytes(4000))])
            self.checkpoint = at
        else:
            events = [Ended("r", [(1, 2, "complete", None, 1)] * rng.randrange(9)) for _ in range(rng.randrange(1, 5))]
            places = range(seq * 100, seq * 100 + rng.randrange(30))
            rows = [Result(1, pos, 1, "COMPLETED", note="n" * rng.randrange(300)) for pos in places]
            self._commit(store, entries_of(events, seq), rows, [])

    def _commit(self, store: SqliteStore, entries: list[Entry], results: list[Result], values: list[str]) -> None:
        self.flying = (entries, results, values)
        store.commit(entries, results)
        self._acknowledge()

    def _acknowledge(self) -> None:
        entries, results, values = self.flying
        self.entries += entries
        self.results.update({(row.batch, row.pos, row.attempt): row for row in results})
        if values:
            self.values[entries[0].event.batch] = values
        self.flying = ([], [], [])

    def compare(self, store: SqliteStore) -> None:
        """Everything acknowledged is there; take note of what flew and landed."""
        found = store.load()
        assert found.seq >= self.checkpoint
        self.checkpoint = found.seq
        assert found.snapshot == (str(found.seq).encode() if found.snapshot is not None else None)
        assert all(column.states == bytes([found.seq % 256]) * 2000 for column in found.columns)
        tail = list(found.tail)
        entries = store.entries(0, 1 << 30)
        assert tail == entries[found.seq :]
        if self.flying[0] and len(entries) > len(self.entries):
            self._acknowledge()
        self.flying = ([], [], [])
        assert entries == self.entries, f"{len(entries)} entries where {len(self.entries)} were acknowledged"
        rows = store.results(1, 0, 1 << 40, False)
        assert {(row.batch, row.pos, row.attempt): row for row in rows} == self.results
        for batch, values in self.values.items():
            assert store.values(batch, 0, len(values)) == values


def cut_often(tmp_path: Path, cuts: int, synchronous: str, seed: int, keep_mark: bool = True) -> tuple[int, int]:
    """Live through power cuts. (Cuts, stores that had lost something acknowledged.)"""
    rng = random.Random(seed)
    lost = done = number = 0
    while done < cuts:
        witness = Witness()
        home = tmp_path / f"{number}"
        home.mkdir()
        for _ in range(LIFE):
            disk = Disk()
            disk.synchronous = synchronous
            store = SqliteStore(home / "rota.db", reserve_bytes=0, connect=disk.connect)
            disk.cut_at(rng.choice([rng.randrange(1, 60), rng.randrange(1, 600)]))
            try:
                store.load()
                while True:
                    witness.work(store, rng)
            except StoreError as error:
                assert "on purpose" in str(error), error
            number += 1
            done += 1
            after = tmp_path / f"{number}"
            disk.after_cut(home, after, rng)
            store.close()
            home = after
            if not keep_mark:
                (home / "rota.reserve").unlink(missing_ok=True)
            fresh = SqliteStore(home / "rota.db", reserve_bytes=0)
            try:
                witness.compare(fresh)
            except (AssertionError, RotaError):
                if synchronous == "FULL":
                    raise
                lost += 1
                break
            finally:
                fresh.close()
        number += 1
    return done, lost


@pytest.fixture(autouse=True)
def _small_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "CHECKPOINT_PAGES", 60)


@pytest.mark.parametrize("seed", range(5))
def test_nothing_acknowledged_is_lost(tmp_path: Path, seed: int) -> None:
    done, lost = cut_often(tmp_path, CUTS // 5, "FULL", seed)
    assert done >= CUTS // 5
    assert lost == 0


@pytest.mark.parametrize("keep_mark", [True, False])
def test_the_harness_has_teeth(tmp_path: Path, keep_mark: bool) -> None:
    """Without a sync at each commit it finds losses: by the mark in the side file, and by comparing."""
    _, lost = cut_often(tmp_path, 40, "NORMAL", 7, keep_mark)
    assert lost > 0
