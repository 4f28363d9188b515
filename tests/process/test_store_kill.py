"""SIGKILL at any moment: what a writer acknowledged over a pipe is there (D1 with real processes)."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from rota.store.sqlite import SqliteStore

KILLS = 25
WRITER = """
import sys
from rota.model.events import Noted
from rota.model.job import Result
from rota.store.api import Column
from rota.store import database
from rota.store.sqlite import SqliteStore
from rota.testing.check_store import entries_of

database.CHECKPOINT_PAGES = 100
store = SqliteStore(sys.argv[1], reserve_bytes=1 << 20)
seq = store.load().seq
seq = max([seq] + [entry.seq for entry in store.entries(seq, 1 << 30)])
print("ready", flush=True)
while True:
    rows = [Result(1, seq * 10 + at, 1, "COMPLETED", note="x" * 100) for at in range(10)]
    store.commit(entries_of([Noted("a", "b", "c")] * 3, seq + 1), rows)
    seq += 3
    print(seq, flush=True)
    if seq % 60 == 0:
        store.checkpoint(seq, b"x" * 5000, [Column(1, 0, bytes(60000), bytes(120000))])
"""


def test_killed_writers(tmp_path: Path) -> None:
    path = tmp_path / "rota.db"
    rng = random.Random(3)
    acknowledged = 0
    for _ in range(KILLS):
        child = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True)
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == "ready\n"
            time.sleep(rng.random() * 0.05)
            os.kill(child.pid, signal.SIGKILL)
            lines = child.stdout.read().splitlines()
        finally:
            child.kill()
            child.wait()
        acknowledged = max([acknowledged, *(int(line) for line in lines if line.isdigit() and lines[-1] != line)])
        store = SqliteStore(path, reserve_bytes=1 << 20)
        found = store.load()
        last = found.seq + sum(1 for _ in found.tail)
        assert last >= acknowledged
        assert last % 3 == 0, "half a commit"
        assert len(store.results(1, 0, 1 << 40, False)) == last // 3 * 10
        store.close()
    assert acknowledged > KILLS
