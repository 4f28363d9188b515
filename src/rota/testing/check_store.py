"""The exam that every store passes.

    from rota.testing.check_store import check_store

    def test_my_store(tmp_path):
        check_store(lambda: MyStore(tmp_path / "a"), lambda store: (store.close(), MyStore(store.path))[1])

It says in words what is wrong, so that whoever writes a store needs nothing else.
"""

import os
import tempfile
from collections.abc import Callable, Iterable
from typing import Any

from rota.model.batch import BatchSpec, Template
from rota.model.data import Replica
from rota.model.errors import NotFoundError, StoreError, UsageError
from rota.model.events import (
    AllocationMoved,
    AllocationPlanned,
    Ended,
    Entry,
    Event,
    HoldWanted,
    Leased,
    LimitSet,
    ManagerMoved,
    Moved,
    Noted,
    Pruned,
    Removed,
    Restored,
    RunnerGreeted,
    RunnerMoved,
    Started,
    Submitted,
)
from rota.model.job import Result
from rota.model.needs import Amounts
from rota.store.api import Column, Loaded, Query, Staged, Store, Sums

__all__ = ["check_store"]

Make = Callable[[], Store]
Reopen = Callable[[Store], Store]

TEMPLATE = Template(argv=("echo", "{}"))


def check_store(make_store: Make, reopen: Reopen, open_backup: Callable[[str], Store] | None = None) -> None:
    """Raise AssertionError, with the reason, if the store does not do what `rota.store.api.Store` says.

    `make_store` makes a new, empty store at each call, `reopen` closes one and returns another on the same data;
    neither calls `load`. `open_backup` opens a file that `backup` wrote; without it only the making of one is tried.
    """
    for part in _PARTS:
        store = make_store()
        try:
            part(store, reopen)
        except (AssertionError, NotFoundError, StoreError, UsageError) as error:
            raise AssertionError(f"{part.__name__.strip('_')}: {error}") from error
    _backup(make_store(), open_backup)


# ---- what is written ------------------------------------------------------------------------------------------------


def events_of_every_kind(batch: int = 1) -> list[Event]:
    """One event of each kind and of each shape of field; the batch has no values."""
    spec = BatchSpec(count=9, templates=(TEMPLATE,), name="naïve ☃", ranges=((1, 9, 1),))
    return [
        Submitted(batch, spec, "key-1", 12.5, env="e1", by="ann"),
        Moved(batch, "ready", [0, 9]),
        AllocationPlanned("a1", "hpc", "tag-1", Amounts(4000, 1 << 33, 0, 2, (("licence", 3),)), 13.0, "long", 2),
        AllocationMoved("a1", "submit"),
        AllocationMoved("a1", "run", "12345[7]", "as asked", 1),
        RunnerGreeted("r1", "a1", 1, 7, "node-1", 4711, Amounts(4000, 1 << 33), ("fast",), 99.5, "/out", "hpc"),
        Leased(batch, [0, 2, 5, 6], "r1", "0:1000", slots=2),
        Started("r1", [(batch, 0), (batch, 5)]),
        Ended("r1", [(batch, 0, "complete", None, 17), (batch, 5, "requeue", 31.25, 0)], reason="lost\nand found"),
        HoldWanted(batch, [1, 2]),
        Moved(batch, "requeue", [1, 2], "back-off", 1e9),
        Removed(batch, [8, 9]),
        RunnerMoved("r1", "drain"),
        RunnerMoved("r1", "lapse", "silent"),
        RunnerMoved("unknown", "close"),
        ManagerMoved("paused", "ann"),
        ManagerMoved("paused", "ann", [("user", 12.5, "why ☃", "ann")]),
        Restored(1001, 1001, 1001),
        LimitSet("irods", 7),
        LimitSet("irods", None),
        LimitSet("api", None, 100, 60, "22:00:00<time<06:00:00"),
        Noted("a1", "a strange state", "ZOMBI \x00 ☃"),
    ]


def entries_of(events: Iterable[Event], first: int = 1) -> list[Entry]:
    """Entries numbered from `first`."""
    return [Entry(seq, 1000.0 + seq / 8, "test" if seq % 2 else "", event) for seq, event in enumerate(events, first)]


def array(batch: int, count: int, stage: str | None = None) -> Submitted:
    """A submission."""
    return Submitted(batch, BatchSpec(count=count, templates=(TEMPLATE,)), f"key-{batch}", 1.0, stage)


def full_result(batch: int, pos: int, attempt: int, ended: float | None) -> Result:
    """A result with something in each field."""
    return Result(
        batch, pos, attempt, "COMPLETED", 0, 9, "☃ 'quoted' \n", "r1", "host", 1.5, ended, 0.1, 1 << 40,
        '{"o":[1]}', "", 1 << 41,
    )  # fmt: skip


def loaded(store: Store) -> Loaded:
    """Load and read the tail to its end."""
    found = store.load()
    found.tail = iter(list(found.tail))
    return found


def _same(what: str, found: Any, expected: Any) -> None:
    assert found == expected, f"{what}: expected {expected!r}, found {found!r}"


def _raises(what: str, errors: type[Exception], call: Callable[..., object], *args: Any) -> None:
    try:
        found = call(*args)
    except errors:
        return
    raise AssertionError(f"{what}: should raise {errors.__name__}, but returned {found!r}")


# ---- the parts of the exam ------------------------------------------------------------------------------------------


def _empty(store: Store, reopen: Reopen) -> None:
    for what in ("a new store", "a new store, opened again"):
        found = store.load()
        _same(f"snapshot of {what}", found.snapshot, None)
        _same(f"seq of {what}", found.seq, 0)
        _same(f"columns of {what}", found.columns, [])
        _same(f"tail of {what}", list(found.tail), [])
        _same(f"entries of {what}", store.entries(0, 10), [])
        _same(f"results of {what}", store.results(1, 0, 10, False), [])
        _same(f"recent results of {what}", store.recent_results(None, None, 10), [])
        _same(f"recent results of no batch in {what}", store.recent_results([], None, 10), [])
        _same(f"stage of {what}", store.staged("s"), Staged(0, None))
        _raises(f"values of a batch that {what} has not", NotFoundError, store.values, 1, 0, 1)
        assert store.free_bytes() > 0, f"free_bytes of {what} is not positive"
        store = reopen(store)
    store.load()
    store.commit([], [])
    store.close()


def _log(store: Store, reopen: Reopen) -> None:
    store.load()
    entries = entries_of(events_of_every_kind())
    store.commit(entries[:1], [])
    store.commit(entries[1:4], [])
    store.commit(entries[4:], [])
    for what in ("as written", "opened again"):
        _same(f"the whole log, {what}", store.entries(0, 1000), entries)
        _same(f"the log after 3, two entries, {what}", store.entries(3, 2), entries[3:5])
        _same(f"the log after its end, {what}", store.entries(len(entries), 5), [])
        _same(f"values of an array, {what}", store.values(1, 2, 3), [None] * 3)
        store = reopen(store)
        found = store.load()
        _same("tail of a store without a checkpoint", list(found.tail), entries)
        _same("snapshot of a store without a checkpoint", (found.snapshot, found.seq), (None, 0))
    more = entries_of([Noted("x", "y", "z")], len(entries) + 1)
    store.commit(more, [])
    _same("an entry committed after opening again", store.entries(len(entries), 5), more)
    store.close()


def _staging(store: Store, reopen: Reopen) -> None:
    store.load()
    store.stage("s", 0, ["a", "b"], None)
    store.stage("s", 5, ["f"], None)
    _same("what is staged, with a hole", store.staged("s"), Staged(2, None))
    store.stage("s", 2, ["c", "d", "e"], None)
    _same("what is staged, the hole filled", store.staged("s"), Staged(6, None))
    store.stage("s", 2, ["C", "D", "E"], None)
    _same("what is staged, a chunk sent twice", store.staged("s"), Staged(6, None))
    store.stage("s", 6, [], None)
    _same("what is staged, an empty chunk added", store.staged("s"), Staged(6, None))
    _raises("a chunk that covers half of another", UsageError, store.stage, "s", 1, ["x", "y"], None)
    _raises("values and templates of different number", UsageError, store.stage, "s", 6, ["g"], [1, 2])
    _raises("values that no JSON can hold", UsageError, store.stage, "s", 6, ["\ud800"], None)
    _same("what is staged, after refusals", store.staged("s"), Staged(6, None))
    store.stage("other", 0, ["x"], None)
    store.unstage("other")
    store.unstage("never was")
    _same("what was dropped", store.staged("other"), Staged(0, None))
    store.commit(entries_of([array(1, 6, "s")]), [])
    _same("a stage whose batch was submitted", store.staged("s"), Staged(0, None))
    _same("values of the batch", store.values(1, 0, 6), ["a", "b", "C", "D", "E", "f"])
    store.stage("s", 0, ["new"], None)
    _same("values of the batch, its stage's name used again", store.values(1, 0, 6), ["a", "b", "C", "D", "E", "f"])
    _templates(store)
    store.stage("stale", 0, ["x"], None)
    store = reopen(store)
    store.load()
    _same("a stage that no batch took, after opening again", store.staged("stale"), Staged(0, None))
    _same("values of the batch, after opening again", store.values(1, 1, 3), ["b", "C", "D"])
    store.close()


def _templates(store: Store) -> None:
    store.stage("t", 0, ["a", "b", "c"], [0, 0, 1])
    store.stage("t", 3, ["d", "e"], [1, 2])
    store.stage("t", 5, ["f"], None)
    _same("runs of templates", store.staged("t"), Staged(6, [0, 2, 1, 2, 2, 1, 0, 1]))
    store.stage("t", 3, ["d", "e"], [2, 2])
    _same("runs of templates, a chunk replaced", store.staged("t"), Staged(6, [0, 2, 1, 1, 2, 2, 0, 1]))
    store.unstage("t")


def _values(store: Store, reopen: Reopen) -> None:
    store.load()
    kinds: list[Any] = ["", "plain", "☃ 'x' \"y\" \\ \n\t", ["a", "b ☃"], {"command": ["ls"], "n": 1.5}, None]
    many = [f"line {pos} {'x' * (pos % 50)}" for pos in range(20_000)]
    store.stage("k", 0, kinds, None)
    for first in range(0, len(many), 7000):
        store.stage("m", first, many[first : first + 7000], None)
    store.commit(entries_of([array(1, len(kinds), "k"), array(2, len(many), "m"), array(3, 5)]), [])
    for what in ("as written", "opened again"):
        _same(f"values of every kind, {what}", store.values(1, 0, len(kinds)), kinds)
        _same(f"all values, {what}", store.values(2, 0, len(many)), many)
        for first, count in ((0, 1), (4095, 2), (6998, 5), (19_999, 1), (3, 0), (8191, 9000)):
            _same(f"values {first}+{count}, {what}", store.values(2, first, count), many[first : first + count])
        _same(f"values of an array, {what}", store.values(3, 0, 5), [None] * 5)
        _raises(f"values beyond the end, {what}", NotFoundError, store.values, 3, 4, 2)
        _raises(f"values before the beginning, {what}", NotFoundError, store.values, 2, -1, 2)
        _raises(f"values of a batch that is not there, {what}", NotFoundError, store.values, 9, 0, 1)
        store = reopen(store)
        store.load()
    store.close()


def _results(store: Store, reopen: Reopen) -> None:
    store.load()
    store.commit(entries_of([array(1, 100), array(2, 100)]), [])
    rows = [full_result(1, pos, attempt, 10.0 * pos + attempt) for pos in range(60) for attempt in (1, 2)]
    bare = Result(2, 7, 1, "ABORTED")
    store.commit([], rows[100:])
    store.commit([], [*rows[:100], bare])
    for what in ("as written", "opened again"):
        _same(f"results of a batch, {what}", store.results(1, 0, 99, False), rows)
        _same(f"results of positions 3 to 4, {what}", store.results(1, 3, 4, False), rows[6:10])
        _same(f"newest results of positions 3 to 4, {what}", store.results(1, 3, 4, True), rows[7:10:2])
        _same(f"a result with nothing but its state, {what}", store.results(2, 0, 99, True), [bare])
        _same(f"results beyond the end, {what}", store.results(2, 50, 99, False), [])
        store = reopen(store)
        store.load()
    for number, state in enumerate(("COMPLETED", "FAILED", "ABORTED", "RETRIED", "LOST", "SUPERSEDED"), 1):
        store.commit([], [Result(2, 8, number, state)])
        _same(f"a result {state}", store.results(2, 8, 8, True)[0].state, state)
    _repeated(store)
    store.close()


def _repeated(store: Store) -> None:
    """The first result of an attempt stays; what was given up may be told later, once, by its own runner."""
    told = [Result(2, 20 + n, 1, state, 3, runner="r1") for n, state in enumerate(("COMPLETED", "FAILED", "ABORTED"))]
    given_up = [Result(2, 30 + n, 1, state, runner="r1") for n, state in enumerate(("LOST", "FAILED", "ABORTED"))]
    store.commit([], told + given_up)
    forged = [Result(row.batch, row.pos, 1, "COMPLETED", 0, runner="r1") for row in told + given_up]
    store.commit([], [*forged, *told])
    _same("results that were told twice", store.results(2, 20, 39, False), told + given_up)
    others = [Result(row.batch, row.pos, 1, "SUPERSEDED", 0, runner="r2") for row in told + given_up]
    late = [Result(row.batch, row.pos, 1, "SUPERSEDED", 0, runner="r1") for row in told + given_up]
    store.commit([], others)
    _same("results of which another runner tells", store.results(2, 20, 39, False), told + given_up)
    store.commit([], late)
    _same("what was given up, told late", store.results(2, 20, 39, False), told + late[3:])
    store.commit([], [Result(2, 30, 1, "SUPERSEDED", 7, runner="r1"), Result(2, 40, 1, "SUPERSEDED", 7)])
    _same("late results told again", store.results(2, 30, 30, False), late[3:4])
    _same("a late result without a first", store.results(2, 40, 40, True)[0].exit_code, 7)


def _recent(store: Store, reopen: Reopen) -> None:
    store.load()
    store.commit(entries_of([array(batch, 50) for batch in (1, 2, 3)]), [])
    times = [5.0, 7.0, 7.0, 6.0, None, 7.0, 5.0]
    rows = [full_result(batch, pos, 1, times[(batch + pos) % 7]) for batch in (1, 2, 3) for pos in range(20)]
    rows += [full_result(1, pos, 2, 7.0) for pos in range(5)]
    store.commit([], rows)

    def place(result: Result) -> tuple[float, int, int, int]:
        return (result.ended or 0.0, result.batch, result.pos, result.attempt)

    store = reopen(store)
    store.load()
    for batches in (None, [2], [1, 3], [4], [3, 1, 2]):
        expected = sorted((row for row in rows if batches is None or row.batch in batches), key=place, reverse=True)
        _same(f"recent results of batches {batches}", store.recent_results(batches, None, 1000), expected)
        for size in (1, 7, 64):
            paged: list[Result] = []
            while page := store.recent_results(batches, place(paged[-1]) if paged else None, size):
                assert len(page) <= size, f"recent results: {len(page)} rows where at most {size} were asked for"
                paged += page
                assert len(paged) <= len(expected), "recent results: pages overlap where results end at the same time"
            _same(f"recent results of batches {batches} in pages of {size}", paged, expected)
    store.close()


def _slowest(store: Store, reopen: Reopen) -> None:
    store.load()
    store.commit(entries_of([array(1, 50), array(2, 50)]), [])
    spans = [(1.0, 3.0), (5.0, 5.5), (None, 9.0), (2.0, 9.0), (7.0, None), (6.0, 8.0), (9.0, 8.0), (None, None)]
    rows = [Result(1, pos, 1, "FAILED", started=start, ended=end) for pos, (start, end) in enumerate(spans)]
    rows.append(Result(1, 0, 2, "COMPLETED", started=1.0, ended=3.0))
    store.commit([], [*rows, Result(2, 0, 1, "FAILED", started=0.0, ended=1e6)])
    expected = [rows[3], rows[0], rows[8], rows[5], rows[1], rows[6], rows[2], rows[4], rows[7]]
    for limit in (100, 4):
        _same(f"the {limit} slowest attempts", store.slowest(1, limit), expected[:limit])
    _same("the slowest attempts of a batch without any", store.slowest(3, 5), [])
    store.close()


def _sums(store: Store, reopen: Reopen) -> None:
    store.load()
    store.commit(entries_of([array(1, 50), array(2, 50), array(3, 50)]), [])
    rows = [
        Result(1, 0, 1, "COMPLETED", started=1.0, ended=3.0, cpu_s=0.5, peak_memory=100),
        Result(1, 1, 1, "FAILED", started=1.0, ended=90.0, cpu_s=5.0, peak_memory=1000),
        Result(1, 2, 2, "COMPLETED", started=2.0, ended=6.0, cpu_s=1.5, peak_memory=300),
        Result(2, 0, 1, "COMPLETED"),
        Result(3, 0, 1, "FAILED", started=0.0, ended=1.0),
    ]
    store.commit([], rows)
    first = Sums(1, 2, 6.0, 20.0, 4.0, 2.0, 400.0, 100_000.0, 300)
    _same("what completed attempts used", store.sums(None), [first, Sums(2, 1)])
    _same("the same of one batch", store.sums([1, 3]), [first])
    store.close()


def _checkpoint(store: Store, reopen: Reopen) -> None:
    store.load()
    entries = entries_of(events_of_every_kind())
    store.commit(entries, [])
    one, two = Column(1, 0, bytes([3, 4]) * 4, bytes(16)), Column(2, 1, b"\x0b", b"\xff\xff")
    store.checkpoint(0, b"", [])
    store.checkpoint(5, b"five", [two, one])
    changed = Column(1, 0, bytes(9), bytes([1, 0]) * 9)
    store = reopen(store)
    found = store.load()
    _same("snapshot", (found.snapshot, found.seq), (b"five", 5))
    _same("columns, by batch and chunk", found.columns, [one, two])
    _same("tail: what the snapshot does not cover", list(found.tail), entries[5:])
    store.checkpoint(len(entries), b"\x00all\xff" * 1000, [changed])
    store = reopen(store)
    found = store.load()
    _same("snapshot, replaced", (found.snapshot, found.seq), (b"\x00all\xff" * 1000, len(entries)))
    _same("columns, one of them replaced", found.columns, [changed, two])
    _same("tail when the snapshot covers all", list(found.tail), [])
    more = entries_of([Noted("x", "y", "z")], len(entries) + 1)
    store.commit(more, [])
    store = reopen(store)
    _same("tail after one more commit", list(store.load().tail), more)
    _raises("a checkpoint beyond the log", StoreError, store.checkpoint, len(entries) + 2, b"", [])
    store.close()


def _replicas(store: Store, reopen: Reopen) -> None:
    store.load()
    first = Replica("/data/☃", "farm/a", 7, 5, "ab", cached=True, used=1.5)
    second = Replica("/data/☃", "farm/b", 1 << 40, valid=False, why="gone")
    store.keep_replicas([second, first, Replica("/x", "local", 0)], [])
    changed = Replica("/data/☃", "farm/a", 8)
    store.keep_replicas([changed], [("/x", "local"), ("/none", "local")])
    for what in ("as kept", "opened again"):
        _same(f"the replicas, {what}", store.replicas(), [changed, second])
        store = reopen(store)
        store.load()
    store.close()


def _environment(store: Store, reopen: Reopen) -> None:
    store.load()
    variables = {"PATH": "/bin", "EMPTY": "", "☃": "a=b\nc"}
    store.keep_environment("h1", variables)
    store.keep_environment("h1", {"other": "ignored: the name is a hash"})
    variables["PATH"] = "changed afterwards"
    store.keep_environment("h2", {})
    for what in ("as kept", "opened again"):
        _same(f"an environment, {what}", store.environment("h1"), {"PATH": "/bin", "EMPTY": "", "☃": "a=b\nc"})
        _same(f"an empty environment, {what}", store.environment("h2"), {})
        _raises(f"an environment that is not there, {what}", NotFoundError, store.environment, "h3")
        store = reopen(store)
        store.load()
    store.close()


def _places(store: Store, reopen: Reopen) -> None:
    store.load()
    events: list[Event] = [
        AllocationPlanned("a1", "hpc", "t1", Amounts(1000), 1.0),
        AllocationMoved("a1", "submit"),
        AllocationMoved("a1", "pend", "4711_0"),
        RunnerGreeted("r1", "a1", 1, 1, "n1", 7, Amounts(1000), site="hpc"),
        RunnerGreeted("r2", None, 1, 1, "n2", 8, Amounts(1000), site="local"),
        RunnerMoved("r1", "close"),
    ]
    store.commit(entries_of(events), [])
    for what in ("as kept", "opened again"):
        _same(f"the place of a runner, {what}", store.place_of("r1"), ("hpc", "4711_0"))
        _same(f"the place of one without an allocation, {what}", store.place_of("r2"), ("local", None))
        _same(f"the place of no runner, {what}", store.place_of("r3"), None)
        store = reopen(store)
        store.load()
    store.close()


def _gap(store: Store, reopen: Reopen) -> None:
    for wrong in (3, 1):
        store.load()
        if wrong == 3:
            store.commit(entries_of([array(1, 1)]), [])
        bad = entries_of([Noted("x", "y", "z")], wrong)
        _raises("a gap in the log", StoreError, store.commit, bad, [full_result(1, 0, 1, 1)])
        for name, call in _calls(store).items():
            _raises(f"{name} after a StoreError", StoreError, call)
        store = reopen(store)
        _same("the log after a gap was refused", len(list(store.load().tail)), 1)
        _same("results that came with a gap", store.results(1, 0, 9, False), [])
    store.close()


def _calls(store: Store) -> dict[str, Callable[[], object]]:
    return {
        "commit": lambda: store.commit([], []),
        "checkpoint": lambda: store.checkpoint(1, b"", []),
        "stage": lambda: store.stage("s", 0, ["a"], None),
        "staged": lambda: store.staged("s"),
        "unstage": lambda: store.unstage("s"),
        "keep_environment": lambda: store.keep_environment("h", {}),
        "environment": lambda: store.environment("h"),
        "values": lambda: store.values(1, 0, 1),
        "results": lambda: store.results(1, 0, 1, False),
        "recent_results": lambda: store.recent_results(None, None, 1),
        "place_of": lambda: store.place_of("r"),
        "slowest": lambda: store.slowest(1, 1),
        "sums": lambda: store.sums(None),
        "entries": lambda: store.entries(0, 1),
    }


def _short_stage(store: Store, reopen: Reopen) -> None:
    store.load()
    store.stage("s", 0, ["a", "b"], None)
    store.stage("s", 3, ["d"], None)
    short = entries_of([array(1, 4, "s")])
    _raises("a batch of 4 with 2 staged values in a row", StoreError, store.commit, short, [])
    store = reopen(store)
    _same("the log after a refused submission", list(store.load().tail), [])
    store.commit(entries_of([array(1, 2)]), [])
    again = Submitted(2, BatchSpec(count=1, templates=(TEMPLATE,)), "key-1", 1.0)
    _raises("a key that another batch has", StoreError, store.commit, entries_of([again], 2), [])
    store = reopen(store)
    _same("the log after a key was refused", len(list(store.load().tail)), 1)
    store.close()


def _backup(store: Store, open_backup: Callable[[str], Store] | None) -> None:
    with tempfile.TemporaryDirectory(prefix="rota-check-") as directory:
        path = os.path.join(directory, "copy.db")
        store.load()
        entries = entries_of([*events_of_every_kind(1), array(2, 3, "s")])
        store.stage("s", 0, ["a", "b", "c"], None)
        rows = [full_result(1, pos, 1, float(pos)) for pos in range(9)]
        store.keep_environment("h", {"A": "b"})
        store.commit(entries, rows)
        store.checkpoint(4, b"four", [Column(1, 0, b"\1" * 9, bytes(18))])
        store.backup(path)
        store.backup(path)
        assert os.listdir(directory) == ["copy.db"], f"backup: left other files behind: {os.listdir(directory)}"
        store.commit(entries_of([Noted("x", "y", "z")], len(entries) + 1), [])
        store.close()
        if open_backup is None:
            return
        copy = open_backup(path)
        found = copy.load()
        _same("backup: snapshot", (found.snapshot, found.seq), (b"four", 4))
        _same("backup: columns", found.columns, [Column(1, 0, b"\1" * 9, bytes(18))])
        _same("backup: tail", list(found.tail), entries[4:])
        _same("backup: log", copy.entries(0, 100), entries)
        _same("backup: values", copy.values(2, 0, 3), ["a", "b", "c"])
        _same("backup: results", copy.results(1, 0, 8, False), rows)
        _same("backup: environment", copy.environment("h"), {"A": "b"})
        copy.commit(entries_of([Noted("x", "y", "z")], len(entries) + 1), [])
        copy.close()


def _pruning(store: Store, reopen: Reopen) -> None:
    store.load()
    store.stage("s", 0, [f"v{at}" for at in range(10_000)], None)
    store.commit(entries_of([array(1, 10_000, "s"), array(2, 3)]), [full_result(1, pos, 1, 5.0) for pos in range(3000)])
    store.commit([], [full_result(2, 0, 1, 9.0)])
    columns = [Column(1, 0, b"\1" * 9, bytes(36)), Column(2, 0, b"\1" * 3, bytes(12))]
    store.checkpoint(2, b"two", columns)
    store.commit(entries_of([Pruned([1], 77.0)], 3), [])
    _raises("the values of a batch that was pruned", NotFoundError, store.values, 1, 0, 1)
    for _ in range(3):
        store.sweep(100)  # and then something goes wrong
    store = reopen(store)
    found = loaded(store)
    _same("columns that the tail still needs", [(c.batch, c.chunk) for c in found.columns], [(1, 0), (2, 0)])
    _same("the tail with a pruning", [type(entry.event) for entry in found.tail], [Pruned])
    steps = 0
    while store.sweep(100):
        steps += 1
        assert steps < 1000, "sweeping does not come to an end"
    assert steps >= 25, f"3,000 rows were deleted in {steps} steps of 100"
    _same("results of a batch that was pruned", store.results(1, 0, 9999, False), [])
    _same("results of another", len(store.results(2, 0, 9, False)), 1)
    store.checkpoint(3, b"three", [])
    while store.sweep(100):
        pass
    store = reopen(store)
    found = loaded(store)
    _same("columns after the checkpoint", [(c.batch, c.chunk) for c in found.columns], [(2, 0)])
    store.commit(entries_of([Submitted(3, BatchSpec(count=1, templates=(TEMPLATE,)), "key-1", 1.0)], 4), [])
    _same("sweeping when there is nothing", store.sweep(100), False)
    store.close()


def _search(store: Store, reopen: Reopen) -> None:
    store.load()
    store.commit(entries_of([array(1, 9), array(2, 9)]), [])
    rows = []
    for batch in (1, 2):
        for pos in range(9):
            second = '"9.seg"' if pos == 8 else "null"
            output = f'["/out/r{batch}","{pos // 5}.seg",0,1,0,{second},0,0,0]'
            state = "FAILED" if pos % 2 else "COMPLETED"
            rows.append(
                Result(
                    batch, pos, 1, state, pos % 3, None, "exit" if pos % 2 else None, "r", f"host{pos % 2}", 1.0,
                    100.0 * batch + pos, 0.1, 5, output,
                )
            )  # fmt: skip
    store.commit([], rows)

    def places(query: Query, limit: int = 100) -> list[tuple[int, int]]:
        return [(row.batch, row.pos) for row in store.search(query, limit)]

    _same("search by exit code", places(Query(exit_code=2)), [(2, 8), (2, 5), (2, 2), (1, 8), (1, 5), (1, 2)])
    _same("search by host and batch", places(Query(batches=[1], host="host1")), [(1, 7), (1, 5), (1, 3), (1, 1)])
    _same("search by reason", len(places(Query(reason="exit"))), 8)
    _same("search by time", places(Query(since=107.0, until=201.0)), [(2, 1), (2, 0), (1, 8), (1, 7)])
    _same("search by state", len(places(Query(states=("FAILED", "LOST")))), 8)
    _same("search by position", places(Query(exit_code=0, newest_first=False), 2), [(1, 0), (1, 3)])
    after = (0.0, 1, 3, 1)
    _same("the next page", places(Query(exit_code=0, newest_first=False, after=after), 2), [(1, 6), (2, 0)])
    back = Query(exit_code=0, newest_first=False, descending=True, after=(0.0, 2, 3, 1))
    _same("backwards", places(back, 2), [(2, 0), (1, 6)])
    _same("a page by time", places(Query(after=(200.0, 2, 0, 1)), 2), [(1, 8), (1, 7)])
    _same("batches of late", sorted(store.ended_since(108.0)), [2])
    files = [(f"/out/r{batch}", f"{number}.seg") for batch in (1, 2) for number in (0, 1, 9)]
    _same("files of output", store.output_files(), files)
    store.commit(entries_of([Pruned([1], 77.0)], 3), [])
    _same("files after pruning", [place for place, _ in store.output_files()], ["/out/r2"] * 3)
    store.stage("s", 0, [f"v{at}" for at in range(5_000)], [at % 2 for at in range(5_000)])
    values, templates = store.staged_values("s", 0)
    assert values == [f"v{at}" for at in range(len(values))], "staged values come back in order"
    assert templates == [at % 2 for at in range(len(values))], "and their templates"
    rest, _ = store.staged_values("s", len(values))
    _same("staged values further on", rest[:1], [f"v{len(values)}"] if len(values) < 5_000 else [])
    _same("staged values beyond the end", store.staged_values("s", 5_000), ([], None))
    store.close()


_PARTS = (
    _empty,
    _log,
    _staging,
    _values,
    _results,
    _places,
    _recent,
    _slowest,
    _sums,
    _checkpoint,
    _environment,
    _replicas,
    _gap,
    _short_stage,
    _pruning,
    _search,
)
