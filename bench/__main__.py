"""`python -m bench`: measure every budget, print figure, budget and whether it is met."""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

import rota
from bench import Row, dag
from bench import home as at
from bench.brokerage import brokerage
from bench.flood import flood
from bench.limits import ratio
from bench.place_half import placing
from bench.polling import SYSTEMS, polling
from bench.slopes import PARTS as SLOPES
from bench.slopes import slopes
from bench.small_batches import core_memory, small_batches
from bench.spawning import Loops, build, python_loop_cpu, run_loop
from bench.status_changes import status_changes
from rota.drivers.local import RUNNER


class Round(NamedTuple):
    """One run of `true` jobs, and what the loops did right before and after it."""

    rate: float
    bare: float
    single: float
    cpu: float
    """CPU seconds of manager, runner and launcher, per job."""
    spawn: float
    """… of a loop that only spawns and waits."""
    more: float
    """… of everything, the jobs included, more than with the bare loop."""


def throughput(loops: Loops, jobs: int, launcher: str, rounds: int) -> list[Row]:
    """`true` jobs end to end against the C loops, by turns; the median of several rounds."""
    # The runner lingers, so that what it costs can be read afterwards.
    config = f'[site.local]\nlauncher = "{launcher}"\nlinger = "1m"\n'
    with at.manager(config) as home, rota.Client(home=home) as client:
        client.submit(["true"], array="1-500").wait()
        time.sleep(1.0)  # the launcher may have to be compiled first
        found = [_round(client, home, loops, jobs, launcher) for _ in range(rounds)]
    middle = Round(*[statistics.median(column) for column in zip(*found, strict=True)])
    ratio = statistics.median([one.rate / one.bare for one in found])
    single = statistics.median([one.rate / one.single for one in found])
    own = statistics.median([one.cpu - one.spawn for one in found]) * 1000
    auto = launcher == "auto"
    name, loop_name = ("with the launcher", "C") if auto else ("plain Python", "bare Python")
    least, most = (0.90, 0.10) if auto else (0.70, 0.15)
    share = f"{ratio:.2f} of the bare C loops' {middle.bare:.0f}/s; {single:.2f} of one C loop's {middle.single:.0f}/s"
    figure = (
        f"{own:.3f} ms ({middle.cpu * 1000:.3f} less {middle.spawn * 1000:.3f} of a {loop_name} spawn loop); "
        f"with the jobs {middle.more * 1000:.3f} more than bare"
    )
    return [
        Row(f"`true` jobs/s, {name}", f"{middle.rate:.0f}/s = {share}", f"≥ {least:.2f} of bare", ratio >= least),
        Row(f"CPU per job, {name}", figure, f"≤ {most:.2f} ms", own <= most),
    ]


def _round(client: rota.Client, home: str, loops: Loops, jobs: int, launcher: str) -> Round:
    width = len(os.sched_getaffinity(0))
    yardsticks = [(run_loop(loops.bare, jobs // 2, width), run_loop(loops.single, jobs // 2, width))]
    manager, runners = at.manager_pid(home), at.runner_pids(home)
    spawner = max(runners, key=at.children_s)  # who has started most
    own, children = sum(map(at.cpu_s, [manager, *runners])), at.children_s(spawner)
    begin = time.perf_counter()
    client.submit(["true"], array=f"1-{jobs}").wait()
    took = time.perf_counter() - begin
    own, children = sum(map(at.cpu_s, [manager, *runners])) - own, at.children_s(spawner) - children
    yardsticks.append((run_loop(loops.bare, jobs // 2, width), run_loop(loops.single, jobs // 2, width)))
    bare, single = ([row[number] for row in yardsticks] for number in (0, 1))
    spawn = statistics.mean(one.own_s for one in single)
    if launcher != "auto":
        spawn = python_loop_cpu(jobs // 2, width)
    return Round(
        jobs / took,
        statistics.mean(one.rate for one in bare),
        statistics.mean(one.rate for one in single),
        own / jobs,
        spawn,
        (own + children) / jobs - statistics.mean(one.own_s + one.children_s for one in bare),
    )


def submissions(jobs: int) -> list[Row]:
    """Large submissions: time and memory; then a restart on top of them."""
    rows = []
    with at.manager() as home:
        at.rota(home, "pause")
        pid = at.manager_pid(home)
        size = at.rss(pid)
        begin = time.perf_counter()
        at.rota(home, "add", "--array", f"1-{jobs}", "--", "true")
        took = time.perf_counter() - begin
        more = (at.rss(pid) - size) / 1e6
        rows.append(Row(f"submit an array of {jobs:,}", f"{took:.2f} s", "≤ 0.5 s", took <= 0.5))
        rows.append(Row("… more memory", f"{more:.0f} MB", "≤ 30 MB", more <= 30))
        path = os.path.join(home, "lines.txt")
        with open(path, "w") as file:
            file.writelines(f"process --input sample-{number:07d}.dat --level {number % 7}\n" for number in range(jobs))
        size = at.rss(pid)
        begin = time.perf_counter()
        at.rota(home, "add", "-f", path)
        took = time.perf_counter() - begin
        more = (at.rss(pid) - size) / 1e6
        rows.append(Row(f"submit {jobs:,} distinct lines", f"{took:.2f} s", "≤ 5 s", took <= 5))
        rows.append(Row("… more memory", f"{more:.0f} MB", "≤ 300 MB", more <= 300))
        at.rota(home, "down")
        begin = time.perf_counter()
        at.rota(home, "up")
        took = time.perf_counter() - begin
        rows.append(Row(f"restart with {2 * jobs:,} queued", f"{took:.2f} s", "≤ 5 s", took <= 5))
    return rows


LATENCY = """
import os, statistics, sys, time, rota
with rota.Client(home=sys.argv[1]) as client:
    client.submit(["true"]).wait()
    jobs, spawns = [], []
    for _ in range(300):
        begin = time.perf_counter()
        client.submit(["true"]).wait()
        jobs.append(time.perf_counter() - begin)
        begin = time.perf_counter()
        os.waitpid(os.posix_spawn("/bin/true", ["true"], os.environ, setsid=True), 0)
        spawns.append(time.perf_counter() - begin)
jobs.sort()
print(statistics.median(jobs), jobs[int(0.99 * len(jobs))], statistics.median(spawns))
"""


def latency() -> list[Row]:
    """One job on an idle manager, by the Python client."""
    with at.manager() as home:
        at.rota(home, "run", "--", "true")
        out = subprocess.run([sys.executable, "-c", LATENCY, home], capture_output=True, text=True, check=True).stdout
    job, late, spawn = (float(word) for word in out.split())
    return [
        Row(
            f"one job, submit to known result, {name}",
            f"{took * 1000:.1f} ms = {took / spawn:.1f} × a spawn",
            f"≤ {most} ×",
            took <= most * spawn,
        )
        for name, took, most in (("median", job, 3.5), ("p99", late, 10))
    ]


def starting() -> list[Row]:
    """Start-up of the command line and of the runner, against `python -c pass`."""
    bare = lambda: subprocess.run([sys.executable, "-c", "pass"], check=True)  # noqa: E731
    with at.manager() as home:
        script = os.path.join(os.path.dirname(sys.executable), "rota")
        environment = {**os.environ, "ROTA_HOME": home}
        status = lambda: subprocess.run([script, "status"], env=environment, stdout=subprocess.DEVNULL, check=True)  # noqa: E731
        pass_s, status_s = at.best(15, bare), at.best(15, status)
        at.rota(home, "run", "--", "true")
        starts = runner_starts(home)
    ratio = status_s / pass_s
    start = statistics.median(starts) / pass_s
    return [
        Row(
            "rota status, idle manager", f"{status_s * 1000:.0f} ms = {ratio:.1f} × python -c pass", "≤ 4 ×", ratio <= 4
        ),
        Row(
            "runner start to greeting",
            f"{statistics.median(starts) * 1000:.0f} ms = {start:.1f} ×",
            "≤ 3 ×",
            start <= 3,
        ),
    ]


def runner_starts(home: str) -> list[float]:
    """Seconds from starting a runner to its greeting, on a socket of our own."""
    import socket

    out = []
    for number in range(9):
        path = os.path.join(home, f"s{number}")
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path)
            listener.listen()
            command = [*RUNNER, "--connect", f"unix:{path}", "--output", os.path.join(home, f"o{number}")]
            begin = time.perf_counter()
            child = subprocess.Popen(command, stderr=subprocess.DEVNULL)
            try:
                peer, _ = listener.accept()
                peer.recv(65_536)
                out.append(time.perf_counter() - begin)
                peer.close()
            finally:
                child.kill()
                child.wait()
    return out


def idle() -> list[Row]:
    """What a manager with nothing to do costs."""
    with at.manager() as home:
        at.rota(home, "run", "--", "true")
        pid = at.manager_pid(home)
        time.sleep(1)
        before = at.cpu_s(pid)
        time.sleep(20)
        share = (at.cpu_s(pid) - before) / 20 * 100
    return [Row("idle manager", f"{share:.2f} % of a core", "≤ 0.1 %", share <= 0.1)]


def limits() -> list[Row]:
    """Many jobs behind one limit, in the core."""
    part, behind, free, most = ratio(84_000, 2_000, 50)
    figure = f"{behind:.0f}/s = {part:.2f} of {free:.0f}/s without it; at most {most:,}"
    return [Row("84,000 jobs, 50 shapes, a limit of 2,000", figure, "≥ 0.80", part >= 0.8 and most <= 2_000)]


def dependencies(jobs: int) -> list[Row]:
    """Graphs of many jobs: what a job costs the core in the last tenth, against the first."""
    rows = []
    for name in dag.GRAPHS:
        figures = dag.drive(name, jobs)
        met = figures.ratio <= 1.3 and figures.settled == jobs
        times = f"{figures.last * 1e6:.0f} µs by {figures.first * 1e6:.0f} µs"
        figure = f"{figures.ratio:.2f} = {times}, {figures.settled:,} settled"
        rows.append(Row(f"a graph of {jobs:,} jobs, {name}", figure, "≤ 1.3", met))
    return rows


def polls(jobs: int) -> list[Row]:
    """One look at many allocations, on each batch system."""
    rows = []
    for system in SYSTEMS:
        figures = polling(system, jobs)
        figure = f"{figures.cpu_ms:.0f} ms CPU, {figures.commands} command, {figures.size / 1e6:.1f} MB read"
        met = figures.cpu_ms <= 150 and figures.commands == 1
        rows.append(Row(f"one poll of {jobs:,} allocations, {system}", figure, "≤ 150 ms, 1 command", met))
    return rows


def main() -> int:
    """Run what is asked for, print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    words = "throughput submissions latency starting idle limits dependencies polls placing placement flood small "
    words += "brokerage slopes"
    parser.add_argument("only", nargs="*", help=f"{words}; default: all")
    parser.add_argument("--jobs", type=int, default=10_000, help="jobs in the throughput runs")
    parser.add_argument("--rounds", type=int, default=3, help="throughput runs, of which the median counts")
    parser.add_argument("--million", type=int, default=1_000_000, help="jobs in the large submissions")
    parser.add_argument("--graph", type=int, default=100_000, help="jobs in each graph of dependencies")
    parser.add_argument("--allocations", type=int, default=10_000, help="allocations in each poll")
    parser.add_argument("--quick", action="store_true", help="shorter runs of placing, flood and small, less exact")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    loops = build()
    parts: dict[str, Callable[[], Iterable[Row]]] = {
        "throughput": lambda: [
            row for launcher in ("none", "auto") for row in throughput(loops, args.jobs, launcher, args.rounds)
        ],
        "submissions": lambda: submissions(args.million),
        "latency": latency,
        "starting": starting,
        "idle": idle,
        "limits": limits,
        "dependencies": lambda: dependencies(args.graph),
        "polls": lambda: polls(args.allocations),
        "placing": lambda: placing(args.quick),
        "placement": lambda: status_changes(args.quick),
        "flood": lambda: flood(10 if args.quick else 30),
        "brokerage": lambda: brokerage(args.quick),
        "slopes": lambda: slopes(
            args.quick, [name for name in SLOPES if name not in ("shapes", "runners")]
        ),  # placing's
        "small": lambda: [core_memory(5_000), *small_batches(10_000 if args.quick else 100_000)],
    }
    rows: list[Row] = []
    for name, part in parts.items():
        if not args.only or name in args.only:
            for row in part():
                rows.append(row)
                if not args.json:
                    print(row, flush=True)
    if args.json:
        print(json.dumps([row._asdict() for row in rows], ensure_ascii=False))
    return 0 if all(row.met for row in rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())
