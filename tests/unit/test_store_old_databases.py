"""Databases that older versions made: all of it is read as it was meant, and goes on."""

import contextlib
import sqlite3
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from core_world import GIB, FakeRunner, Job, World
from old_databases import OLD, unpack
from rota.core import invariants
from rota.core.batch import COLUMN_CHUNK
from rota.core.snapshot import durable_view, restore, take_columns, take_snapshot
from rota.core.state import RunnerState, Settings, State
from rota.core.step import Core
from rota.core.stimuli import AllocationSeen, At, Ended, SetMode, Written
from rota.manager.answers import _learned
from rota.manager.answers.explaining import Explaining
from rota.manager.answers.jobs import Jobs, find_job
from rota.manager.answers.limits import limit_rows
from rota.manager.answers.output import Output
from rota.manager.answers.places import allocation_rows, runner_rows
from rota.manager.answers.running import Running
from rota.manager.answers.status import status
from rota.manager.jobbook import JobBook
from rota.model.events import Entry
from rota.model.needs import Amounts
from rota.model.tables import JOB_STATES
from rota.store.api import Column
from rota.store.sqlite import SqliteStore
from rota.wire.messages import Status

SETTINGS = Settings()
LIVE = ("STARTING", "RUNNING", "MISSING", "KILLING")
LEFT = {
    "early-held": 3, "breaker": 7, "held": 4, "missing": 1, "stuck": 1, "starting": 1,  # held
    "back-off": 3, "not-before": 2, "shut": 2, "often": 2, "unknown-name": 1,  # not yet
}  # fmt: skip
"""Jobs that are not settled when all has run that can, by batch."""


class Old:
    """A copy of an old database, open."""

    def __init__(self, old: str, home: Path) -> None:
        self.expected = unpack(old, home)
        self.store = SqliteStore(home / "rota.db", reserve_bytes=0)
        self.state = self.read()
        last = self.entries()[-1].at
        self.at = At(last + 3600, 50.0)
        Core(SETTINGS, state=self.state)  # knows every runner from now on

    def read(self) -> State:
        """The state that a restart comes to."""
        loaded = self.store.load()
        rows = [(c.batch, c.chunk, c.states, c.attempts) for c in loaded.columns]
        return restore(SETTINGS, 1, loaded.snapshot, loaded.seq, rows, loaded.tail)

    def entries(self) -> list[Entry]:
        """The whole log: it begins with the first event."""
        return self.store.entries(0, 10**6)


@pytest.fixture(params=OLD)
def old(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Old]:
    opened = Old(request.param, tmp_path)
    yield opened
    opened.store.close()


def same(rows: list[dict[str, Any]], expected: list[dict[str, Any]], *without: str) -> None:
    """Each row says what was said before; fields may have been added."""
    assert len(rows) == len(expected)
    for row, before in zip(rows, expected, strict=True):
        wanted = {name: value for name, value in before.items() if name not in without}
        assert {name: row[name] for name in wanted} == wanted


def touch_all(state: State) -> None:
    """Let the next checkpoint write all batches, in today's form."""
    for batch in [state.batches[number] for number in state.batches]:
        state.dirty_batches.add(batch.id)
        batch.dirty.update(range(-(-batch.count // COLUMN_CHUNK)))


def test_there_is_one_of_each_way_to_end() -> None:
    assert {name.partition("/")[2] for name in OLD} == {"checkpointed", "killed"}


def test_nothing_is_missing_in_them(old: Old, tmp_path: Path) -> None:
    with contextlib.closing(sqlite3.connect(tmp_path / "rota.db")) as con:
        assert len(con.execute("SELECT DISTINCT kind FROM entries").fetchall()) >= 20, "not every kind of event"
    assert {byte for batch in old.state.batches.values() for byte in set(batch.states)} == set(range(len(JOB_STATES)))
    found = {allocation.state for allocation in old.state.allocations.values()}
    assert found == {"SUBMITTING", "PENDING", "RUNNING", "KILLING", "COMPLETED", "FAILED", "ABORTED"}
    assert {runner.state for runner in old.state.runners.values()} >= {"SERVING", "MISSING"}


def test_all_of_it_is_sound(old: Old) -> None:
    assert old.store.check() == []
    invariants.check(old.state)


def test_batches_are_shown_as_they_were(old: Old) -> None:
    said, expected = status(old.state, Status(), old.at), old.expected["status"]
    same(said["batches"], expected["batches"])
    assert said["counts"] == expected["counts"]
    assert said["state"] == expected["state"] == "paused"
    same(said["pauses"], expected["pauses"])


def test_jobs_are_shown_as_they_were(old: Old) -> None:
    jobs = Jobs(old.store, JobBook(old.store, {}), Running())
    found = [find_job(old.state, row["id"]) for row in old.expected["jobs"]]
    same(jobs.rows(old.state, found), old.expected["jobs"])
    shown = Counter(row["batch"] for row in old.expected["jobs"])
    (large,) = old.state.names["large"]
    assert shown == {row["id"]: row["jobs"] for row in old.expected["status"]["batches"]} | {large: 3}
    assert not any(old.state.batches[large].attempts)


def test_jobs_are_explained_as_they_were(old: Old) -> None:
    book = JobBook(old.store, {})
    output = Output(old.store, book, Running(), None)
    explaining = Explaining(old.store, book, output, lambda allocation: None, lambda allocation: None)
    for before in old.expected["explain"]:
        before["given"], before["needs"] = (
            before[name].replace("..2 core,", "..2 cores,") for name in ("given", "needs")
        )
        row = explaining.explain(old.state, before["job"], old.at)
        # Three samples are needed before anything learned is asked for; there, one was enough.
        same([row], [before], "attempts", "reason", *(("needs",) if before["needs"] != before["given"] else ()))
        same(row["attempts"], before["attempts"])
        assert row["reason"], "in the words of today"


def test_limits_places_and_what_was_learned_are_as_they_were(old: Old) -> None:
    state = old.state
    same(limit_rows(state, old.at), old.expected["limits"])
    # Why a runner made its last move is not in a checkpoint, and why an allocation waits is the cluster's to say; the
    # shape is shown with what is asked for now.
    same(runner_rows(state, old.at), old.expected["runners"], "reason")
    same(allocation_rows(state, lambda allocation: None, old.at), old.expected["allocations"], "reason", "shape")
    groups = [_learned(name, group) for name, group in sorted(state.groups.items())]
    few = {row["group"] for row in groups if row["samples"]["time"] < 3}  # there, one sample was enough
    for rows in (groups, old.expected["groups"]):
        for row in rows:
            if row["group"] in few:
                row.update(memory_bytes=None, disk_bytes=None, time_s=None)
    assert groups == old.expected["groups"]
    said = [row for row in old.expected["sites"] if row["cores_used"]]
    assert {row["name"]: row["cores_used"] for row in said} == {
        name: used.cores / 1000 for name, used in state.ledger.used.items() if "/" not in name and used.cores
    }
    assert sum(last - first + 1 for first, last, _ in state.pruned) == 2


def test_the_log_and_the_checkpoint_say_the_same(old: Old) -> None:
    folded = restore(SETTINGS, 1, None, 0, [], old.entries())
    assert durable_view(folded) == durable_view(old.state)


def test_a_new_checkpoint_of_it_says_the_same(old: Old) -> None:
    before = durable_view(old.read())
    touch_all(old.state)
    old.store.checkpoint(old.state.seq, take_snapshot(old.state), [Column(*row) for row in take_columns(old.state)])
    old.store.close()
    old.store = SqliteStore(old.store.path, reserve_bytes=0)
    again = old.read()
    invariants.check(again)
    assert durable_view(again) == before
    assert again.seq == old.state.seq


class OldWorld(World):
    """Goes on where an old database ends."""

    def __init__(self, old: Old) -> None:
        super().__init__(SETTINGS, site=False)
        self.core = Core(SETTINGS, state=old.state)
        self.log = [msgspec.msgpack.encode(entry) for entry in old.entries()]
        self.wall, self.mono, _ = old.at
        touch_all(self.state)
        self.checkpoint()
        self.core.restart(self.at)
        for name in ("local", "lost", "stuck"):
            self.site(name, node=Amounts(8000, 4 * GIB, GIB))

    def back(self) -> list[FakeRunner]:
        """All runners greet, and hold what they should."""
        found = []
        for known in [runner for runner in self.state.runners.values() if not runner.direct]:
            if known.state in ("CLOSED", "EXPIRED"):
                continue
            runner = self.runners[known.id] = FakeRunner(known.id, known.allocation)
            runner.connect, runner.seq = known.connect, known.seq
            runner.held = dict.fromkeys(self.jobs_of(known), "running")
            self.greet(runner, capacity=known.capacity, host=known.host, output=known.output)
            found.append(runner)
        return found

    def jobs_of(self, runner: RunnerState) -> list[Job]:
        """What a runner holds, as it names it."""
        batches = self.state.batches
        return [(number, batches[number].index(pos), batches[number].live[pos].attempt) for number, pos in runner.jobs]

    def state_of(self, job: Job) -> tuple[str, bool | None]:
        """A job's state, and whether it is to be held: None, if it can be had back (False), in any case (True)."""
        batch = self.state.batches[job[0]]
        pos = batch.position(job[1])
        assert pos is not None
        return JOB_STATES[batch.states[pos]], batch.hold_wanted.get(pos)

    def end(self, runner: FakeRunner) -> None:  # type: ignore[override]
        """Report the end of all that a runner holds, as it was told."""
        recalled = [job for job in runner.held if self.state_of(job) == ("STARTING", False)]
        ended = [self.ended_as_told(job) for job in runner.held if job not in recalled]
        self.report(runner, ended=ended, disclaimed=recalled)

    def end_direct(self) -> None:
        """Each direct job starts if it has not, ends, and leaves its report."""
        live = [each for each in self.state.allocations.values() if each.direct and each.state.endswith("ING")]
        for allocation in live:
            if allocation.state in ("SUBMITTING", "PENDING"):
                native = allocation.native_id or "99"
                self.step(AllocationSeen(at=self.at, id=allocation.id, verb="run", native_id=native))
            (runner,) = self.state.direct_runners(allocation)
            self.words[allocation.id] = [Written(runner.id, [self.ended_as_told(job) for job in self.jobs_of(runner)])]
            self.allocation(allocation.id, "complete")

    def ended_as_told(self, job: Job) -> Ended:
        """How a job ends: well, or by a signal if it was told to."""
        state, held = self.state_of(job)
        return self.row(job, None, 15) if state == "KILLING" or held else self.row(job)


def test_what_was_live_comes_back_and_ends(old: Old) -> None:
    world = OldWorld(old)
    world.tick()
    live = {job: world.state_of(job) for runner in world.state.runners.values() for job in world.jobs_of(runner)}
    assert Counter(state for state, _ in live.values()) == {
        state: count for state, count in old.expected["status"]["counts"].items() if state in LIVE
    }
    assert Counter(held for _, held in live.values() if held is not None) == {True: 2, False: 1}
    for runner in world.back():
        assert {world.state_of(job)[0] for job in runner.held} <= {"STARTING", "RUNNING", "KILLING"}
        world.end(runner)
    world.end_direct()
    (rerun,) = world.state.names["rerun"]
    for job, (state, held) in live.items():
        wanted = "ABORTED" if state == "KILLING" else "PENDING" if job[0] == rerun else "COMPLETED"
        assert (job, world.state_of(job)) == (job, (wanted if held is None else "HOLDING", None))
    world.check_restart()


def test_what_was_queued_runs_to_the_end(old: Old) -> None:
    world = OldWorld(old)
    runners = world.back()
    (large,) = world.state.names["large"]
    world.change("kill", f"{large}.101-70000")
    for runner in runners:
        world.end(runner)
    world.end_direct()
    assert not any(runner.held for runner in runners), "it is paused"
    world.step(SetMode(at=world.at, by="ann", mode="serving", everyone=True))
    world.schedule()
    while any(runner.held for runner in runners):
        for runner in runners:
            world.end(runner)
        world.schedule()
    left = {batch.spec.name: batch.unsettled for batch in world.state.batches.values() if batch.unsettled}
    assert left == LEFT
    assert world.counts(large) == {"COMPLETED": 100, "ABORTED": 70_000 - 100}
    world.check_restart()
