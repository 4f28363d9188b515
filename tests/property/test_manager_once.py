"""The store in memory and the store in a file do the same, whatever is asked of them."""

import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from rota.model.batch import BatchSpec, Template
from rota.model.errors import RotaError
from rota.model.events import Leased, LimitSet, Noted, Submitted
from rota.model.job import Result
from rota.store import database, rows, sqlite
from rota.store.api import Column
from rota.store.memory import MemoryStore
from rota.store.sqlite import SqliteStore
from rota.testing.check_store import entries_of

small = st.integers(0, 12)
text = st.text(max_size=8)
times = st.none() | st.sampled_from([0.0, 1.0, 1.5, 2.0]) | st.floats(0, 1e10, allow_nan=False)
stages = st.sampled_from(["s", "t"])
values = st.lists(text | st.lists(text, max_size=2), max_size=7)
results = st.lists(
    st.builds(
        Result,
        st.integers(1, 3),
        small,
        st.integers(1, 3),
        st.sampled_from(["COMPLETED", "FAILED", "RETRIED"]),
        started=st.none() | st.sampled_from([0.0, 0.5]),
        ended=times,
        note=st.none() | text,
    ),
    max_size=6,
)


class Duplicates(RuleBasedStateMachine):
    """Every call is made to both; answers and errors are compared."""

    def __init__(self) -> None:
        super().__init__()
        self.home = Path(tempfile.mkdtemp(prefix="rota-twins-"))
        self.seq = 0
        self.batch = 0
        self.covered = 0

    @initialize(exclusive=st.booleans())
    def start(self, exclusive: bool) -> None:
        self.memory = MemoryStore()
        self.file = SqliteStore(self.home / "rota.db", exclusive=exclusive, reserve_bytes=0)
        self.load()

    def both(self, name: str, *args: Any) -> Any:
        answers = []
        for store in (self.memory, self.file):
            try:
                answers.append(getattr(store, name)(*args))
            except RotaError as error:
                answers.append(type(error))
        assert answers[0] == answers[1], f"{name}{args}"
        return answers[0]

    def load(self) -> None:
        found = [store.load() for store in (self.memory, self.file)]
        for one in found:
            one.tail = iter(list(one.tail))
        assert [(one.snapshot, one.seq, one.columns) for one in found[:1]] == [
            (one.snapshot, one.seq, one.columns) for one in found[1:]
        ]
        tails = [list(one.tail) for one in found]
        assert tails[0] == tails[1]
        assert len(tails[0]) == self.seq - self.covered

    @rule()
    def reopen(self) -> None:
        self.memory = self.memory.crash_copy()
        self.file.close()
        self.load()

    @rule(stage=stages, first=small, chunk=values, named=st.booleans())
    def stage(self, stage: str, first: int, chunk: list[Any], named: bool) -> None:
        self.both("stage", stage, first, chunk, [at % 2 for at in range(len(chunk))] if named else None)
        self.both("staged", stage)

    @rule(stage=stages)
    def unstage(self, stage: str) -> None:
        self.both("unstage", stage)

    @rule(stage=stages, ended=results)
    def submit(self, stage: str, ended: list[Result]) -> None:
        count = self.both("staged", stage).count
        self.batch += 1
        spec = BatchSpec(count=count or 3, templates=(Template(argv=("x",)),))
        event = Submitted(self.batch, spec, f"k{self.batch}", 1.0, stage if count else None)
        self.both("commit", entries_of([event], self.seq + 1), ended)
        self.seq += 1

    @rule(count=st.integers(0, 4), ended=results, name=text)
    def commit(self, count: int, ended: list[Result], name: str) -> None:
        kinds = [Noted(name, "b", "c"), LimitSet(name, 3), Leased(1, [1, 2], name, "x", slots=1)]
        events = [kinds[at % 3] for at in range(count)]
        self.both("commit", entries_of(events, self.seq + 1), ended)
        self.seq += count

    @rule(more=small, body=st.binary(max_size=20), batch=st.integers(1, 3), chunk=st.integers(0, 2))
    def checkpoint(self, more: int, body: bytes, batch: int, chunk: int) -> None:
        self.covered = min(self.covered + more, self.seq)
        self.both("checkpoint", self.covered, body, [Column(batch, chunk, body, body * 2)])

    @rule(batch=st.integers(1, 4), first=small, count=small)
    def values(self, batch: int, first: int, count: int) -> None:
        self.both("values", batch, first, count)

    @rule(batch=st.integers(1, 4), first=small, last=small, newest=st.booleans())
    def results(self, batch: int, first: int, last: int, newest: bool) -> None:
        self.both("results", batch, first, last, newest)

    @rule(batches=st.none() | st.lists(st.integers(1, 4), max_size=3), size=st.integers(1, 5))
    def recent(self, batches: list[int] | None, size: int) -> None:
        before = None
        while page := self.both("recent_results", batches, before, size):
            last = page[-1]
            before = (last.ended or 0.0, last.batch, last.pos, last.attempt)

    @rule(batch=st.integers(1, 4), limit=small)
    def slowest(self, batch: int, limit: int) -> None:
        self.both("slowest", batch, limit)

    @rule(after=small, limit=small)
    def entries(self, after: int, limit: int) -> None:
        self.both("entries", after, limit)

    @rule(name=st.sampled_from(["h1", "h2"]), variables=st.dictionaries(text, text, max_size=2))
    def environment(self, name: str, variables: dict[str, str]) -> None:
        self.both("environment", name)
        self.both("keep_environment", name, variables)
        self.both("environment", name)

    def teardown(self) -> None:
        if hasattr(self, "file"):
            self.file.close()
        shutil.rmtree(self.home)


@pytest.mark.parametrize("few", [0, sqlite.FEW_JOBS], ids=["by-time", "by-batch"])
def test_twins(monkeypatch: pytest.MonkeyPatch, few: int) -> None:
    monkeypatch.setattr(rows, "PIECE", 3)
    monkeypatch.setattr(sqlite, "PIECE", 3)
    monkeypatch.setattr(sqlite, "TAIL_PAGE", 2)
    monkeypatch.setattr(sqlite, "FEW_JOBS", few)
    monkeypatch.setattr(database, "CHECKPOINT_PAGES", 30)
    from hypothesis.stateful import run_state_machine_as_test

    run_state_machine_as_test(Duplicates, settings=settings(max_examples=40, stateful_step_count=30, deadline=None))
