"""Damaged files: noticed, or harmless; never silently something else than what was acknowledged (D5, D6, D21)."""

import os
import random
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from rota.model.errors import StoreError, VersionError
from rota.model.events import Noted
from rota.store.api import Column
from rota.store.sqlite import SqliteStore
from rota.testing.check_store import array, entries_of, events_of_every_kind, full_result

SEEDS = int(os.environ.get("STORE_DAMAGES", "400"))


def build(home: Path, clean: bool) -> Path:
    """A store with something of everything; not clean: as after a kill, with its write-ahead log."""
    work = home / "work"
    work.mkdir()
    store = SqliteStore(work / "rota.db", reserve_bytes=0)
    store.load()
    store.stage("s", 0, [f"value {at} {'x' * 40}" for at in range(600)], None)
    notes = [Noted("n", "o", str(at)) for at in range(80)]
    entries = entries_of([*events_of_every_kind(1), array(2, 600, "s"), *notes])
    store.commit(entries[:30], [full_result(1, pos, 1, float(pos)) for pos in range(100)])
    store.keep_environment("h", {"A": "b" * 300})
    store.checkpoint(20, b"twenty" * 500, [Column(2, 0, bytes(600), bytes(1200))])
    for at in range(30, len(entries)):
        store.commit(entries[at : at + 1], [full_result(2, at, 1, float(at))])
    if clean:
        store.close()
    shutil.copytree(work, home / "built", ignore=shutil.ignore_patterns("*-shm"))
    store.close()
    return home / "built"


def read_all(store: SqliteStore) -> dict[str, Any]:
    """Everything that a store says."""
    found = store.load()
    return {
        "snapshot": (found.snapshot, found.seq),
        "columns": [(c.batch, c.chunk, c.states, c.attempts) for c in found.columns],
        "tail": list(found.tail),
        "entries": store.entries(0, 1000),
        "values": store.values(2, 0, 600),
        "array": store.values(1, 0, 9),
        "results": [store.results(batch, 0, 1000, False) for batch in (1, 2)],
        "recent": store.recent_results(None, None, 1000),
        "recent of one": store.recent_results([2], None, 1000),
        "environment": store.environment("h"),
    }


def damage(home: Path, rng: random.Random) -> str:
    """Do something bad to one of the files."""
    files = sorted(path for path in home.iterdir() if path.name in ("rota.db", "rota.db-wal") and path.stat().st_size)
    path = rng.choice(files)
    data = bytearray(path.read_bytes())
    kind = rng.choice(["bit", "bit", "bit", "byte", "zero", "truncate", "swap"])
    at = rng.randrange(len(data))
    page = at // 4096 * 4096
    if kind == "bit":
        data[at] ^= 1 << rng.randrange(8)
    elif kind == "byte":
        data[at] = rng.randrange(256)
    elif kind == "zero":
        data[page : page + 4096] = bytes(len(data[page : page + 4096]))
    elif kind == "truncate":
        del data[rng.choice([at, page, 0]) :]
    else:
        other = rng.randrange(len(data)) // 4096 * 4096
        data[page : page + 4096], data[other : other + 4096] = data[other : other + 4096], data[page : page + 4096]
    path.write_bytes(data)
    return f"{kind} at {at} of {path.name}"


@pytest.mark.parametrize("clean", [True, False], ids=["clean", "killed"])
def test_damage_is_noticed_or_harmless(tmp_path: Path, clean: bool) -> None:
    built = build(tmp_path, clean)
    (tmp_path / "truth").mkdir()
    truth_home = tmp_path / "truth" / "copy"
    shutil.copytree(built, truth_home)
    store = SqliteStore(truth_home / "rota.db", reserve_bytes=0)
    truth = read_all(store)
    store.close()
    noticed = 0
    for seed in range(SEEDS // 2):
        home = tmp_path / f"damaged-{seed}"
        shutil.copytree(built, home)
        what = damage(home, random.Random(f"{clean} {seed}"))
        store = SqliteStore(home / "rota.db", reserve_bytes=0)
        try:
            found = read_all(store)
        except (StoreError, VersionError) as error:
            assert "rota." in str(error), error
            noticed += 1
        else:
            for key, value in truth.items():
                assert found[key] == value, f"seed {seed}: {what}: silently wrong {key}"
        finally:
            store.close()
        shutil.rmtree(home)
    assert noticed > SEEDS // 8


def test_the_end_of_the_log_torn_at_every_sector(tmp_path: Path) -> None:
    """A process was killed, and its write-ahead log lost its end: what had been acknowledged is missed."""
    built = build(tmp_path, clean=False)
    size = (built / "rota.db-wal").stat().st_size
    for cut in range(size - 3 * 4120, size, 512):
        home = tmp_path / f"torn-{cut}"
        shutil.copytree(built, home)
        with open(home / "rota.db-wal", "rb+") as file:
            file.truncate(cut)
        with pytest.raises(StoreError, match="was acknowledged"):
            SqliteStore(home / "rota.db", reserve_bytes=0).load()
        shutil.rmtree(home)


def test_a_missing_database_is_not_a_new_one(tmp_path: Path) -> None:
    built = build(tmp_path, clean=True)
    (built / "rota.db").rename(built / "gone.db")
    for _ in range(2):
        with pytest.raises(StoreError, match=r"rota\.reserve says"):
            SqliteStore(built / "rota.db", reserve_bytes=0).load()
    assert not (built / "rota.db").exists()
    (built / "rota.reserve").unlink()
    store = SqliteStore(built / "rota.db", reserve_bytes=0)
    assert list(store.load().tail) == []
    store.close()


@pytest.mark.parametrize("content", [b"x", b"not a database\n" * 100, b"SQLite format 3\0" + bytes(50), b"\0" * 8192])
def test_another_file_is_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "rota.db"
    path.write_bytes(content)
    with pytest.raises(StoreError, match="left as it is"):
        SqliteStore(path, reserve_bytes=0).load()
    assert path.read_bytes() == content


def test_another_programs_database_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "rota.db"
    other = sqlite3.connect(path)
    other.execute("CREATE TABLE mine (x)")
    other.commit()
    other.close()
    before = path.read_bytes()
    with pytest.raises(StoreError, match="another program"):
        SqliteStore(path, reserve_bytes=0).load()
    assert path.read_bytes() == before
    assert not (tmp_path / "rota.db-wal").exists()
