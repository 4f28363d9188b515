"""Homes whose queue has a long past, made without running anything."""

import json
import os
from collections.abc import Sequence

from rota.model.batch import BatchSpec, Template
from rota.model.events import Entry, Event, Moved, Submitted
from rota.model.job import Result
from rota.store.sqlite import SqliteStore


def fill(home: str, batches: int, jobs: int, lines: bool = False, ended: float = 1.7e9) -> None:
    """A database with so many batches of so many jobs that have all been killed after one failed attempt."""
    os.makedirs(home, 0o700, exist_ok=True)
    store = SqliteStore(os.path.join(home, "rota.db"))
    store.load()
    seq = 0

    def commit(events: Sequence[Event], results: Sequence[Result] = ()) -> None:
        nonlocal seq
        store.commit([Entry(seq + at, 1.0, "test", event) for at, event in enumerate(events, 1)], results)
        seq += len(events)

    template = Template(cwd="/tmp") if lines else Template(argv=("echo", "{index}"), cwd="/tmp")
    for batch in range(1, batches + 1):
        stage = None
        if lines:
            stage = f"s{batch}"
            for first in range(0, jobs, 50_000):
                many = [f"work --batch {batch} --item {at}" for at in range(first, min(first + 50_000, jobs))]
                store.stage(stage, first, many, None)
        spec = BatchSpec(jobs, (template,), name=f"b{batch}", ranges=None if lines else ((1, jobs, 1),))
        commit([Submitted(batch, spec, f"key{batch}", ended - 100, stage), Moved(batch, "abort", [0, jobs])])
        for first in range(0, jobs, 10_000):
            rows = [_result(batch, pos, ended) for pos in range(first, min(first + 10_000, jobs))]
            commit([], rows)
    store.close()


def _result(batch: int, pos: int, ended: float) -> Result:
    output = json.dumps(["/nowhere", f"{pos // 1000}.seg", pos, 10, 0, None, 0, 0, 0])
    at = ended + batch + pos / 1e6
    return Result(
        batch, pos, 1, "RETRIED", 1 if pos % 1000 else 77, None, "exit", f"r{batch}", f"node{pos % 50}", at - 1, at,
        0.5, 1 << 20, output,
    )  # fmt: skip
