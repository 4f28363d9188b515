"""Slopes: what a job, a restart, an idle minute, a pass and a brokerage cost as there is more of something.

    python -m bench.slopes [queued shapes batches runners watchers restart idle pass broker nodes] [--quick]

Each row says how many times the first of its kind it costs. CPU time of the manager, or of the core where that is said;
runners are light (`bench/light.py`), so that thousands of jobs a second are those of the manager alone.
"""

import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence

import rota
from bench import Row, chosen, light, nodes, print_parts
from bench import home as at
from bench.brokerage import measure
from bench.place_half import GIB, World, per_job, placing
from bench.scheduling_pass import Cluster
from rota.model.needs import Amounts, Needs

QUEUED = (1_000, 100_000, 1_000_000, 5_000_000)
BATCHES = (1, 100, 10_000, 100_000)
WATCHERS = (1, 10, 50)
MOST = 1.5
NODE = Amounts(8000, 64 * GIB)


def _by(what: str, cost: float, first: float, unit: str, most: float | None = MOST) -> Row:
    ratio = cost / first if first else 1.0
    budget = "" if most is None or cost == first else f"≤ {most:g} ×"
    return Row(what, f"{unit} = {ratio:.2f} × the first", budget, not budget or ratio <= (most or ratio))


def queued(quick: bool) -> Iterator[Row]:
    """CPU of the manager per job while many of one shape wait."""
    first = 0.0
    for count in QUEUED[:2] if quick else QUEUED:
        with light.manager(1, NODE) as (home, pid), rota.Client(home=home, start=False) as client:
            client.submit(["true"], array=f"1-{count}")
            runners = light.Runners(home, 1, NODE)
            cost = per_job(pid, runners, 1.5 if quick else 5.0, count // 2)
            runners.close()
        first = first or cost
        yield _by(f"a job, {count:,} queued", cost, first, f"{cost * 1e6:.0f} µs")


def shapes(quick: bool) -> Iterator[Row]:
    """… while shapes wait or take turns."""
    yield from placing(quick, ("core",) if quick else ("core", "shapes"))


class Batches(World):
    """A world in which many batches of one shape wait."""

    def __init__(self, batches: int) -> None:
        super().__init__(10, 1, False)
        for _ in range(batches):
            self.submit(Needs(cores=2000, memory=GIB), 2, priority=2)
        self.most = 2 * max(batches, 2_000)


def batches(quick: bool) -> Iterator[Row]:
    """CPU of the core per job while many batches wait."""
    first = 0.0
    for count in BATCHES[:3] if quick else BATCHES:
        cost, _ = Batches(count).cost(0.4 if quick else 2.0)
        first = first or cost
        yield _by(f"a job, {count:,} batches wait, core", cost, first, f"{cost * 1e6:.0f} µs")


def runners(quick: bool) -> Iterator[Row]:
    """CPU of the manager per job with 10 and with 1,000 runners in session, and when these are idle."""
    yield from placing(quick, ("runners",))


def watchers(quick: bool) -> Iterator[Row]:
    """CPU of the manager for clients that follow a million jobs, more than for those that end meanwhile.

    What is told of a job is made once for all of them, so the first costs by the job. Large selections are looked at
    some times a second, not at each end, so each further one costs a part of a core.
    """
    alone = told = 0.0
    for count in (0, *WATCHERS):
        with light.manager(1, NODE) as (home, pid), rota.Client(home=home, start=False) as client:
            client.submit(["true"], array="1-1000000")
            fleet = light.Runners(home, 1, NODE)
            words = [sys.executable, "-m", "bench.watching", home, str(count)]
            watching = subprocess.Popen(words, stderr=subprocess.DEVNULL)
            cpu, ended, began = at.cpu_s(pid), fleet.ended, time.monotonic()
            cost = per_job(pid, fleet, 10.0 if quick else 20.0, 10_000_000)
            took, cpu, ended = time.monotonic() - began, at.cpu_s(pid) - cpu, fleet.ended - ended
            watching.kill()
            watching.wait()
            fleet.close()
        figure = f"{100 * cpu / took:.0f} % of a core for {ended / took:.0f} jobs/s"
        if not count:
            alone = cost
            yield Row("nobody watches", f"{figure}, {alone * 1e6:.0f} µs a job", "", True)
        elif count == 1:
            told = max(0.0, cpu / ended - alone)
            met = told <= 30e-6
            yield Row("1 client watches", f"{figure}, {told * 1e6:.0f} µs more a job", "≤ 30 µs more a job", met)
        else:
            each = max(0.0, cpu - (alone + told) * ended) / took / (count - 1)
            yield Row(f"{count} clients watch", f"{figure}, {100 * each:.2f} % each", "≤ 2 % each", each <= 0.02)


def restart(quick: bool) -> Iterator[Row]:
    """Seconds until a manager that was stopped answers again."""
    first = 0.0
    for count in QUEUED[:2] if quick else (QUEUED[0], *QUEUED[2:]):
        with at.manager() as home:
            at.rota(home, "pause")
            at.rota(home, "add", "--array", f"1-{count}", "--", "true")
            at.rota(home, "down")
            begin = time.perf_counter()
            at.rota(home, "up")
            took = time.perf_counter() - begin
            size = at.rss(at.manager_pid(home)) / 1e6
        first = first or took
        yield _by(f"a restart with {count:,} queued", took, first, f"{took:.2f} s, {size:.0f} MB", 10.0)


def idle(quick: bool) -> Iterator[Row]:
    """The part of a core that a manager takes which has nothing to do but a queue that is paused."""
    for count in (1, 5_000_000):
        with at.manager() as home:
            at.rota(home, "pause")
            at.rota(home, "add", "--array", f"1-{count}", "--", "true")
            time.sleep(1)
            pid, for_s = at.manager_pid(home), 5 if quick else 20
            before = at.cpu_s(pid)
            time.sleep(for_s)
            share = (at.cpu_s(pid) - before) / for_s * 100
        yield Row(f"idle with {count:,} queued", f"{share:.2f} % of a core", "≤ 0.1 %", share <= 0.1)


def one_pass(quick: bool) -> Iterator[Row]:
    """CPU of a pass over more and more places, when all is new and when two of them changed."""
    firsts: dict[str, float] = {}
    for places in (50, 200) if quick else (50, 200, 800):
        colds, warms = [], []
        for seed in range(3):
            cluster = Cluster("uneven", 200, places, random.Random(seed))
            colds.append(cluster.one_pass(memo := {})[0])
            cluster.one_pass(memo)
            for name in ("n0", "n9"):
                cluster.ledger.charge(name, Amounts(500), -1)
                cluster.ledger.charge(name, Amounts(500), 1)
            warms.append(cluster.one_pass(memo)[0])
        for what, values in (("all new", colds), ("two changed", warms)):
            cost = statistics.median(values)
            first = firsts.setdefault(what, cost)
            yield _by(f"a pass, 200 shapes × {places} places, {what}", cost, first, f"{cost:.1f} ms", None)


def broker(quick: bool) -> Iterator[Row]:
    """A brokerage among more and more queues."""
    for queues in (50, 200) if quick else (50, 200, 800):
        yield measure(queues, 100 if quick else 500)[0]._replace(budget="", met=True)


def many_nodes(quick: bool) -> Iterator[Row]:
    """The core with up to 100,000 nodes."""
    yield from nodes.rows(nodes.SIZES[:1] if quick else nodes.SIZES, 2_000 if quick else nodes.ENDS)


PARTS: dict[str, Callable[[bool], Iterator[Row]]] = {
    "queued": queued, "shapes": shapes, "batches": batches, "runners": runners, "watchers": watchers,
    "restart": restart, "idle": idle, "pass": one_pass, "broker": broker, "nodes": many_nodes,
}  # fmt: skip


def slopes(quick: bool, only: Sequence[str] = ()) -> Iterator[Row]:
    """The rows of some parts, as they come; of all if none is named."""
    return chosen(PARTS, quick, only)


if __name__ == "__main__":
    raise SystemExit(print_parts(PARTS, __doc__))
