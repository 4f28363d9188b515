"""`make bench-guard`: a small, quick subset that tells when something has become slow, in ratios within one run.

No figure is in seconds: a busy machine slows both sides of a ratio, and each is the best of some tries. Budgets are
looser than those of `make bench`, so that what fails here is broken. Nothing here is asserted by `make test`.
"""

import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator

import rota
from bench import Row, dag
from bench import home as at
from bench.nodes import carried
from bench.place_half import World
from bench.slopes import Batches
from bench.spawning import build, python_loop_cpu, run_loop

JOBS, ALONE, TRIES = 1_000, 200, 3
FOR_S = 0.4


def _row(what: str, ratio: float, least: float | None = None, most: float | None = None) -> Row:
    met = (least is None or ratio >= least) and (most is None or ratio <= most)
    return Row(what, f"{ratio:.2f}", f"≥ {least:g}" if least is not None else f"≤ {most:g}", met)


def jobs() -> Iterator[Row]:
    """Through the Python client: many `true` by the bare C loops, and one alone by a spawn."""
    loops, width, ratios = build(), len(os.sched_getaffinity(0)), []
    with rota.local() as client:
        client.submit(["true"], array="1-300").wait()
        time.sleep(1.0)  # the launcher may have to be compiled first
        for _ in range(TRIES):
            before = run_loop(loops.bare, JOBS // 2, width).rate
            begin = time.perf_counter()
            client.submit(["true"], array=f"1-{JOBS}").wait()
            rate = JOBS / (time.perf_counter() - begin)
            ratios.append(rate / statistics.mean((before, run_loop(loops.bare, JOBS // 2, width).rate)))
        pids = [at.manager_pid(client.home), *at.runner_pids(client.home)]
        began = sum(map(at.cpu_s, pids))
        for _ in range(ALONE):
            client.submit(["true"]).wait()
        alone = (sum(map(at.cpu_s, pids)) - began) / ALONE / python_loop_cpu(ALONE, 1)
    yield _row(f"{JOBS:,} `true` by the bare C loops", max(ratios), least=0.5)
    yield _row("CPU of manager and runner for one job alone, by a spawn in Python", alone, most=100)


def _least(cost: Callable[[], float]) -> float:
    return min(cost() for _ in range(TRIES))


def core() -> Iterator[Row]:
    """The core alone: what a job costs with more of something, by what it costs with little."""
    one = _least(lambda: World(10, 1, False).cost(FOR_S)[0])
    yield _row("a job while 1,000 shapes wait", _least(lambda: World(10, 1_000, False).cost(FOR_S)[0]) / one, most=2)
    yield _row("a job with 1,000 runners", _least(lambda: World(1_000, 1, False).cost(FOR_S)[0]) / one, most=2)
    yield _row("a job while 5,000 batches wait", _least(lambda: Batches(5_000).cost(FOR_S)[0]) / one, most=2)
    looks = carried(2_000, 200).looks / carried(200, 200).looks
    yield _row("a look at the time with 2,000 nodes by 200", looks, most=4)
    for name in ("chain", "diamond", "each"):
        yield _row(
            f"a graph, {name}: the last tenth by the first", _least(lambda n=name: dag.drive(n, 4_000).ratio), most=1.6
        )  # type: ignore[misc]


def main() -> int:
    """Print the table; 1 if something is out of its bounds."""
    missed = 0
    for part in (jobs, core):
        for row in part():
            print(row, flush=True)
            missed += not row.met
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
