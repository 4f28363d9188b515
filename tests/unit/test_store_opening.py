"""Versions, second openers, permissions, names of states, and what a person finds in the database."""

import os
import re
import shutil
import sqlite3
import stat
import threading
import zlib
from pathlib import Path

import msgspec
import pytest

from rota.core.snapshot import SNAPSHOT_VERSION, restore, take_snapshot
from rota.core.state import Settings, State
from rota.model import selector, tables
from rota.model.errors import NotFoundError, RefusedError, StoreError, UsageError, VersionError
from rota.model.events import AllocationMoved, AllocationPlanned, Noted, RunnerGreeted, RunnerMoved
from rota.model.job import Result
from rota.model.needs import Amounts
from rota.store import projection, schema, sqlite
from rota.store.connection import connect_sqlite3, statements
from rota.store.database import LOG_BYTES
from rota.store.sqlite import SqliteStore
from rota.testing.check_store import array, entries_of, events_of_every_kind, full_result


def made(path: Path, **options: object) -> SqliteStore:
    store = SqliteStore(path, reserve_bytes=0, **options)  # type: ignore[arg-type]
    store.load()
    return store


def ask(path: Path, sql: str) -> list:
    con = sqlite3.connect(path)
    try:
        return con.execute(sql).fetchall()
    finally:
        con.close()


# ---- versions -------------------------------------------------------------------------------------------------------


def numbered(tmp_path: Path, *steps: str) -> Path:
    """The migrations of a rota to come."""
    folder = tmp_path / "migrations"
    shutil.copytree(schema.MIGRATIONS, folder)
    for at, step in enumerate(steps, schema.latest() + 1):
        (folder / f"{at:04}_step.sql").write_text(step)
    return folder


def test_an_older_version_is_migrated(tmp_path: Path) -> None:
    path = tmp_path / "rota.db"
    store = made(path)
    store.commit(entries_of([array(1, 3)]), [full_result(1, 0, 1, 5.0)])
    store.close()
    old = schema.latest()
    newer = numbered(
        tmp_path,
        "ALTER TABLE batches ADD COLUMN owner TEXT;\nUPDATE batches SET owner = 'ann; bob';",
        "-- a comment with a ;\nCREATE TABLE more (x);\n"
        "CREATE TRIGGER t AFTER INSERT ON more BEGIN\n  DELETE FROM more;\nEND;\n",
    )
    store = made(path, migrations=newer)
    assert store.results(1, 0, 9, True) == [full_result(1, 0, 1, 5.0)]
    assert len(store.entries(0, 9)) == 1
    store.close()
    assert ask(path, "PRAGMA user_version") == [(old + 2,)]
    assert ask(path, "SELECT owner FROM batches") == [("ann; bob",)]


def test_a_database_of_version_1_is_brought_up_to_date(tmp_path: Path) -> None:
    """Its results, a field shorter, are read; what `sqlite3` shows of them has the new column."""
    first = tmp_path / "first"
    first.mkdir()
    shutil.copy(schema.MIGRATIONS / "0001_first.sql", first)
    path = tmp_path / "rota.db"
    con = connect_sqlite3(str(path))
    schema.prepare(con, str(path), first)
    con.close()
    assert ask(path, "PRAGMA user_version") == [(1,)]
    old = msgspec.structs.replace(full_result(1, 1, 1, 6.0), peak_disk=None)
    body = msgspec.json.encode(msgspec.structs.astuple(old)[:15])
    plain = sqlite3.connect(path)
    row = (1, 1, 1, old.state, old.started, old.ended, zlib.crc32(body), body)
    plain.execute("INSERT INTO results VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)
    plain.commit()
    plain.close()
    store = made(path)
    store.commit(entries_of([array(1, 3)]), [full_result(1, 0, 1, 5.0)])
    assert store.results(1, 0, 9, True) == [full_result(1, 0, 1, 5.0), old]
    store.close()
    assert ask(path, "PRAGMA user_version") == [(schema.latest(),)]
    assert ask(path, "SELECT pos, peak_memory, note, peak_disk FROM attempts ORDER BY pos") == [
        (0, 1 << 40, "", 1 << 41), (1, 1 << 40, "", None),
    ]  # fmt: skip


def test_a_failed_migration_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "rota.db"
    store = made(path)
    store.commit(entries_of([array(1, 3)]), [])
    store.close()
    newer = numbered(tmp_path, "ALTER TABLE batches ADD COLUMN owner TEXT;", "SELECT nonsense FROM nowhere;")
    with pytest.raises(StoreError, match="no such table"):
        made(path, migrations=newer)
    assert ask(path, "PRAGMA user_version") == [(schema.latest(),)]
    store = made(path)
    assert len(store.entries(0, 9)) == 1
    store.close()


def test_a_newer_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rota.db"
    made(path, migrations=numbered(tmp_path, "CREATE TABLE more (x);")).close()
    before = path.read_bytes()
    newest = schema.latest()
    with pytest.raises(VersionError, match=rf"version {newest + 1}, and this rota knows versions up to {newest}"):
        made(path)
    assert path.read_bytes() == before


def test_newer_events_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "rota.db"
    made(path).close()
    con = sqlite3.connect(path)
    con.execute("UPDATE meta SET value = 99 WHERE key = 'events'")
    con.commit()
    con.close()
    with pytest.raises(VersionError, match="events of version 99"):
        made(path)


def test_unfinished_sql_is_noticed() -> None:
    assert list(statements("-- nothing\n\n")) == []
    with pytest.raises(ValueError, match="unfinished"):
        list(statements("CREATE TABLE x (y)\n"))


# ---- names of states ------------------------------------------------------------------------------------------------


def states_in(table: str) -> set[str]:
    text = "".join(path.read_text() for path in sorted(schema.MIGRATIONS.glob("*.sql")))
    found = re.search(rf"CREATE TABLE {table} \(.*?state IN \((.*?)\)", text, re.DOTALL)
    assert found is not None
    return set(re.findall(r"'(\w+)'", found[1]))


def test_states_are_those_of_the_tables(tmp_path: Path) -> None:
    assert states_in("runners") == set(tables.states(tables.RUNNER))
    assert states_in("allocations") == set(tables.states(tables.ALLOCATION))
    made(tmp_path / "rota.db").close()
    names = [name for (name,) in ask(tmp_path / "rota.db", "SELECT name FROM job_states ORDER BY code")]
    assert tuple(names) == tables.JOB_STATES
    assert tuple(names)[: len(selector.STATES)] == selector.STATES
    assert states_in("results") - {"RETRIED", "LOST", "SUPERSEDED"} <= set(names)


def test_projections_make_the_moves_of_the_tables(tmp_path: Path) -> None:
    """Every move of the runner and the allocation table, through the database."""
    path = tmp_path / "rota.db"
    store = made(path)
    events, expected = [], {}
    ways: dict[str, list[str]] = {
        "WAITING": [],
        "SUBMITTING": ["submit"],
        "PENDING": ["submit", "pend"],
        "RUNNING": ["submit", "run"],
        "KILLING": ["submit", "kill"],
    }
    for verb, moves in tables.ALLOCATION.items():
        for old, new in moves.items():
            if old:
                name = f"{verb} {old}"
                events.append(AllocationPlanned(name, "hpc", "tag", Amounts(), 1.0))
                events += [AllocationMoved(name, step) for step in (*ways[old], verb)]
                expected[name] = new
    runner_ways: dict[str, list[str]] = {"SERVING": [], "DRAINING": ["drain"], "MISSING": ["lapse"]}
    for verb, moves in tables.RUNNER.items():
        for old, new in moves.items():
            if old:
                name = f"{verb} {old}"
                events.append(RunnerGreeted(f"r {name}", None, 1, 1, "host", 1, Amounts()))
                events += [RunnerMoved(f"r {name}", step) for step in (*runner_ways[old], verb)]
                expected[f"r {name}"] = new
    store.commit(entries_of(events), [])
    store.close()
    found = dict(ask(path, "SELECT id, state FROM allocations UNION ALL SELECT id, state FROM runners"))
    assert found == expected
    assert projection.ALLOCATION is tables.ALLOCATION and projection.RUNNER is tables.RUNNER


def test_an_allocation_that_is_submitted_at_once_is_killed_and_not_aborted(tmp_path: Path) -> None:
    path = tmp_path / "rota.db"
    store = made(path)
    planned = AllocationPlanned("a1", "hpc", "tag", Amounts(), 1.0, submit=True)
    store.commit(entries_of([planned]), [])
    assert ask(path, "SELECT state FROM allocations") == [("SUBMITTING",)]
    store.commit(entries_of([AllocationMoved("a1", "kill")], first=2), [])
    store.close()
    assert ask(path, "SELECT state FROM allocations") == [("KILLING",)]


def test_what_a_person_finds(tmp_path: Path) -> None:
    path = tmp_path / "rota.db"
    store = made(path)
    store.commit(entries_of(events_of_every_kind(7)), [full_result(7, 0, 1, 5.5), Result(7, 1, 1, "FAILED", 3)])
    store.close()
    assert ask(path, "SELECT id, name, count, key, by, env FROM batches") == [(7, "naïve ☃", 9, "key-1", "ann", "e1")]
    assert ask(path, "SELECT id, state, host, reason FROM runners") == [("r1", "MISSING", "node-1", "silent")]
    assert ask(path, "SELECT id, state, native_id, unsure FROM allocations") == [("a1", "RUNNING", "12345[7]", 1)]
    assert ask(path, "SELECT * FROM limits") == []
    assert ask(path, "SELECT value FROM meta WHERE key = 'manager'") == [("paused",)]
    con = sqlite3.connect(path)
    con.row_factory = sqlite3.Row
    rows = [dict(row) for row in con.execute("SELECT * FROM attempts ORDER BY pos")]
    con.close()
    for row, result in zip(rows, (full_result(7, 0, 1, 5.5), Result(7, 1, 1, "FAILED", 3)), strict=True):
        told = {name: getattr(result, name) for name in Result.__struct_fields__}
        assert row == told | {"cores": msgspec.json.encode(result.cores).decode()}


def test_a_checkpoint_of_a_newer_rota_is_refused() -> None:
    snapshot = take_snapshot(State(Settings()))
    assert restore(Settings(), 1, snapshot, 0, (), ()).mode == "serving"
    newer = msgspec.msgpack.decode(snapshot) | {"version": SNAPSHOT_VERSION + 1, "mode": ["in another way"]}
    with pytest.raises(StoreError, match=r"version 4, .* up to 3: use the newer rota that wrote it, or a backup"):
        restore(Settings(), 1, msgspec.msgpack.encode(newer), 0, (), ())


# ---- who may open it ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("exclusive", [False, True])
def test_a_second_opener_is_refused(tmp_path: Path, exclusive: bool) -> None:
    first = made(tmp_path / "rota.db", exclusive=exclusive)
    for _ in range(20):
        with pytest.raises(StoreError, match="another process has this store open"):
            made(tmp_path / "rota.db", exclusive=exclusive)
    first.commit(entries_of([Noted("a", "b", "c")]), [])
    first.close()
    second = made(tmp_path / "rota.db", exclusive=exclusive)
    assert len(second.entries(0, 9)) == 1
    second.close()


def test_exclusive_keeps_other_programs_out(tmp_path: Path) -> None:
    store = made(tmp_path / "rota.db", exclusive=True)
    store.commit(entries_of([Noted("a", "b", "c")]), [])
    assert not (tmp_path / "rota.db-shm").exists()
    con = sqlite3.connect(tmp_path / "rota.db", timeout=0)
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        con.execute("SELECT * FROM meta").fetchall()
    con.close()
    store.close()


def test_files_are_private(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        store = made(tmp_path / "rota.db")
        store.commit(entries_of([Noted("a", "b", "c")]), [])
    finally:
        os.umask(before)
    store.backup(str(tmp_path / "copy.db"))
    for path in tmp_path.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    store.close()


def test_no_directory(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="cannot be opened"):
        made(tmp_path / "nowhere" / "rota.db")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_directory(tmp_path: Path) -> None:
    made(tmp_path / "rota.db").close()
    (tmp_path / "rota.db").chmod(0o400)
    with pytest.raises(StoreError, match="permissions"):
        made(tmp_path / "rota.db")


def test_a_read_only_database(tmp_path: Path) -> None:
    """As SQLite sees it on a read-only file system."""
    made(tmp_path / "rota.db").close()

    def connect(path: str):
        con = connect_sqlite3(path)
        con.execute("PRAGMA query_only=ON")
        return con

    store = SqliteStore(tmp_path / "rota.db", reserve_bytes=0, connect=connect)
    store.load()
    with pytest.raises(StoreError, match="rota must be able to write it"):
        store.commit(entries_of([Noted("a", "b", "c")]), [])
    store.close()


# ---- the rest -------------------------------------------------------------------------------------------------------


def test_the_log_is_pruned_in_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "PRUNED_AT_ONCE", 30)
    store = made(tmp_path / "rota.db", keep_entries=20)
    entries = entries_of([Noted("a", "b", "c")] * 100)
    store.commit(entries, [])
    store.checkpoint(50, b"", [])
    assert store.entries(0, 1)[0].seq == 31
    store.checkpoint(60, b"", [])
    assert store.entries(0, 1)[0].seq == 61, "entries that the checkpoint does not cover stay"
    store.checkpoint(100, b"", [])
    assert store.entries(0, 1)[0].seq == 81
    store.close()
    found = store.load()
    assert (found.seq, list(found.tail)) == (100, [])
    store.commit(entries_of([Noted("a", "b", "c")], 101), [])
    store.close()


def test_a_log_that_was_made_long_ahead_of_its_use_is_read_like_any_other(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "rota.db", reserve_bytes=1 << 20)
    store.load()
    store.commit(entries_of([array(1, 9)]), [])
    while store.prepare():
        pass
    log = tmp_path / "rota.db-wal"
    assert log.stat().st_size >= LOG_BYTES and not store.prepare()
    size, written = log.stat().st_size, 60
    for number in range(2, written + 1):
        store.commit(entries_of([array(number, 9)], number), [full_result(number, 0, 1, 5.0)])
    assert log.stat().st_size == size, "it grew all the same"
    (tmp_path / "crashed").mkdir()
    for name in ("rota.db", "rota.db-wal"):  # as the disk has it while the manager is killed
        shutil.copy(tmp_path / name, tmp_path / "crashed" / name)
    store.close()
    again = SqliteStore(tmp_path / "crashed" / "rota.db", reserve_bytes=0)
    assert [entry.seq for entry in again.load().tail] == list(range(1, written + 1))
    assert again.results(written, 0, 1, True) == [full_result(written, 0, 1, 5.0)]
    again.close()


def test_a_log_is_not_made_long_where_space_is_scarce(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "rota.db", reserve_bytes=1 << 20)
    store.load()
    store._db.reserve().release()
    assert not store.prepare() and (tmp_path / "rota.db-wal").stat().st_size < LOG_BYTES
    store.close()
    with pytest.raises(StoreError):
        store.prepare()


def test_what_cannot_be_stored_is_refused(tmp_path: Path) -> None:
    """A caller's mistake: nothing is written, and the store goes on."""
    store = made(tmp_path / "rota.db")
    bad = [Result(1, 0, 1, "FAILED", reason="\ud800"), Result(1, 1 << 70, 1, "FAILED")]
    for result in bad:
        with pytest.raises(UsageError):
            store.commit(entries_of([Noted("a", "b", "c")]), [result])
    with pytest.raises(UsageError):
        store.commit(entries_of([Noted("a", "\udcff", "c")]), [])
    with pytest.raises(UsageError):
        store.keep_environment("h", {"A": "\udcff"})
    assert store.entries(0, 1) == []
    store.commit(entries_of([Noted("a", "b", "c")]), [Result(1, 0, 1, "FAILED", cpu_s=float("nan"))])
    assert store.results(1, 0, 0, True) == [Result(1, 0, 1, "FAILED")]
    store.close()


def test_an_illegal_state_is_refused(tmp_path: Path) -> None:
    store = made(tmp_path / "rota.db")
    with pytest.raises(StoreError, match="CHECK constraint failed"):
        store.commit(entries_of([Noted("a", "b", "c")]), [Result(1, 0, 1, "PENDING")])
    store.close()
    assert list(store.load().tail) == []
    store.close()


def test_backup_while_writing(tmp_path: Path) -> None:
    """A copy is a consistent point, whatever is committed meanwhile (D9)."""
    store = made(tmp_path / "rota.db")
    store.stage("s", 0, ["x" * 200] * 40_000, None)
    store.commit(entries_of([array(1, 40_000, "s")]), [])
    stop = threading.Event()
    written = [1]

    def write() -> None:
        while not stop.is_set():
            seq = written[0] + 1
            store.commit(entries_of([Noted("a", "b", "c")], seq), [Result(1, seq, 1, "COMPLETED")])
            written[0] = seq

    thread = threading.Thread(target=write)
    thread.start()
    try:
        for at in range(3):
            before = written[0]
            store.backup(str(tmp_path / f"copy{at}.db"))
            copy = made(tmp_path / f"copy{at}.db")
            log = copy.entries(0, 1 << 30)
            assert before <= len(log) <= written[0] + 1
            assert len(copy.results(1, 0, 1 << 40, True)) == len(log) - 1
            assert copy.check() == []
            copy.close()
    finally:
        stop.set()
        thread.join()
    with pytest.raises(RefusedError, match="cannot be written"):
        store.backup(str(tmp_path / "nowhere" / "copy.db"))
    store.close()


def test_reading_while_writing(tmp_path: Path) -> None:
    """Readers see whole commits, and what was acknowledged before they asked."""
    store = made(tmp_path / "rota.db")
    store.commit(entries_of([array(1, 1000)]), [])
    stop = threading.Event()
    wrong: list[str] = []
    done = [1]

    def read() -> None:
        while not stop.is_set():
            least = done[0]
            count = len(store.entries(0, 1 << 30))
            if count < least or count % 3 != 1:
                wrong.append(f"{count} entries after {least}")
            if len(store.results(1, 0, 1 << 40, False)) < least // 3 * 5:
                wrong.append("results")

    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    for turn in range(100):
        rows = [Result(1, turn * 5 + at, 1, "COMPLETED", ended=float(turn)) for at in range(5)]
        store.commit(entries_of([Noted("a", "b", "c")] * 3, done[0] + 1), rows)
        done[0] += 3
    stop.set()
    for thread in threads:
        thread.join()
    assert wrong == []
    store.close()


def test_closed(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "rota.db", reserve_bytes=0)
    for call in (lambda: store.entries(0, 1), lambda: store.commit([], []), store.free_bytes):
        with pytest.raises(StoreError, match="not open"):
            call()
    store.close()
    store.load()
    with pytest.raises(NotFoundError):
        store.values(1, 0, 1)
    store.close()
    store.close()
