"""How quick the store is: commits, results, a million staged lines, a load. `python bench/store.py [DIRECTORY]`."""

import os
import resource
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rota.model.batch import BatchSpec, Template
from rota.model.events import Ended, Entry, Leased, Submitted
from rota.model.job import Result
from rota.store.api import CHUNK, Column
from rota.store.rows import entry_row, result_row
from rota.store.sqlite import SqliteStore

MILLION = 1_000_000


class Clock:
    """Wall and CPU seconds of a block."""

    wall = cpu = 0.0


@contextmanager
def timed() -> Iterator[Clock]:
    clock = Clock()
    wall, cpu = time.perf_counter(), time.process_time()
    yield clock
    clock.wall, clock.cpu = time.perf_counter() - wall, time.process_time() - cpu


def result(batch: int, pos: int) -> Result:
    at = 1.7e9 + pos / 1000
    output = '{"d":"/home/ann/.rota/out/r17","o":["s3",123456,78],"e":["s3",0,0]}'
    return Result(batch, pos, 1, "COMPLETED", 0, None, None, "r17", "node17", at, at + 0.5, 0.01, 4 << 20, output)


def events(seq: int, batch: int, pos: int, count: int) -> list[Entry]:
    """Six entries, as of one turn of the loop with three runners."""
    out = []
    for runner in range(3):
        share = range(pos + runner * count // 3, pos + (runner + 1) * count // 3)
        rows = [(batch, at, "complete", None, 17) for at in share]
        out.append(Entry(seq, 1.7e9, "", Ended(f"r{runner}", rows)))
        out.append(Entry(seq + 1, 1.7e9, "", Leased(batch, [share.start, share.stop], f"r{runner}", "0:1000", slots=2)))
        seq += 2
    return out


def commits(store: SqliteStore, seq: int, batch: int, rounds: int, count: int) -> int:
    turns = [
        (events(seq + at * 6, batch, at * count, count), [result(batch, at * count + row) for row in range(count)])
        for at in range(rounds)
    ]
    with timed() as clock:
        for entries, results in turns:
            store.commit(entries, results)
    with timed() as packing:
        for entries, results in turns:
            for entry in entries:
                entry_row(entry)
            for one in results:
                result_row(one)
    total = rounds * count
    cpu = f"{clock.cpu / total * 1e6:.1f} µs CPU a result, of it {packing.cpu / total * 1e6:.1f} µs packing"
    rates = f"{rounds / clock.wall:8,.0f} commits/s {total / clock.wall:9,.0f} results/s"
    print(f"commit, 6 entries, {count:3} results: {rates}, {cpu}")
    return seq + 6 * rounds


def single(store: SqliteStore, seq: int, rounds: int) -> int:
    with timed() as clock:
        for at in range(rounds):
            store.commit(events(seq + at, 1, 0, 3)[:1], [])
    print(f"commit, 1 entry:                   {rounds / clock.wall:8,.0f} commits/s")
    return seq + rounds


def contended(store: SqliteStore, seq: int, rounds: int) -> int:
    """The same while another thread keeps the interpreter busy, as the core does."""
    stop = threading.Event()

    def spin() -> None:
        while not stop.is_set():
            sum(range(200))

    thread = threading.Thread(target=spin)
    thread.start()
    try:
        turns = [(events(seq + at * 6, 1, 0, 40), [result(1, at * 40 + n) for n in range(40)]) for at in range(rounds)]
        with timed() as clock:
            for entries, results in turns:
                store.commit(entries, results)
    finally:
        stop.set()
        thread.join()
    print(f"commit, 40 results, a busy thread beside it: {clock.wall / rounds * 1e3:.1f} ms each")
    return seq + 6 * rounds


def staging(store: SqliteStore, seq: int, batch: int, chunk: int) -> int:
    def lines() -> Iterator[list[str]]:
        for first in range(0, MILLION, chunk):
            places = range(first, first + chunk)
            yield [f"python train.py --seed {at} --out /scratch/ann/run/{at:07}.npz" for at in places]

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    spent, first, longest = 0.0, 0, 0.0
    for values in lines():
        with timed() as clock:
            store.stage("s", first, values, None)
        first += len(values)
        spent += clock.wall
        longest = max(longest, clock.wall)
    spec = BatchSpec(count=MILLION, templates=(Template(),))
    with timed() as clock:
        assert store.staged("s").count == MILLION
        store.commit([Entry(seq, 1.0, "", Submitted(batch, spec, f"k{batch}", 1.0, "s"))], [])
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    stages = f"{spent:.2f} s (longest {longest * 1e3:.0f} ms), submit {clock.wall * 1e3:.1f} ms"
    print(f"stage {MILLION:,} lines by {chunk:6,}: {stages}, {grown:.0f} MB more memory at the peak")
    return seq + 1


def reading(store: SqliteStore, batch: int) -> None:
    with timed() as clock:
        for first in range(0, 200_000, 40):
            store.values(batch, first, 40)
    print(f"values, 40 at a time: {clock.wall / 5000 * 1e6:.0f} µs a call")
    with timed() as clock:
        got = store.recent_results(None, None, 50)
        store.recent_results(None, (got[-1].ended or 0, got[-1].batch, got[-1].pos, got[-1].attempt), 50)
        store.recent_results([1], None, 50)
    print(f"three pages of recent results: {clock.wall * 1e3:.1f} ms")


def loading(store: SqliteStore, seq: int, batch: int) -> None:
    columns = [Column(batch, at, bytes(CHUNK), bytes(2 * CHUNK)) for at in range(MILLION // CHUNK + 1)]
    with timed() as clock:
        store.checkpoint(seq - 1, bytes(100_000), columns)
    print(f"checkpoint of {MILLION:,} jobs: {clock.wall * 1e3:.0f} ms")
    with timed() as clock:
        store.close()
    size = os.path.getsize(store.path) / 1e6
    print(f"close: {clock.wall * 1e3:.0f} ms; the database has {size:.0f} MB")
    with timed() as clock:
        tail = sum(1 for _ in store.load().tail)
    print(f"load with {MILLION:,} queued: {clock.wall * 1e3:.0f} ms, {tail} entries in the tail")
    with timed() as clock:
        store.backup(store.path + ".copy")
    print(f"backup: {clock.wall:.2f} s")
    with timed() as clock:
        wrong = store.check()
    print(f"check of everything: {clock.wall:.2f} s, {len(wrong)} found")


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="rota-bench-", dir=sys.argv[1] if len(sys.argv) > 1 else None) as home:
        store = SqliteStore(os.path.join(home, "rota.db"))
        with timed() as clock:
            store.load()
        print(f"new store: {clock.wall * 1e3:.0f} ms")
        spec = BatchSpec(count=MILLION, templates=(Template(shell="true"),))
        store.commit([Entry(1, 1.0, "", Submitted(1, spec, "k1", 1.0))], [])
        seq = staging(store, 2, 2, 4000)
        seq = staging(store, seq, 3, 20_000)
        seq = single(store, seq, 1000)
        seq = commits(store, seq, 1, 1000, 40)
        seq = commits(store, seq, 2, 1000, 100)
        seq = contended(store, seq, 200)
        reading(store, 2)
        loading(store, seq, 1)
        store.close()


if __name__ == "__main__":
    main()
