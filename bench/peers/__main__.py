"""`python -m bench.peers`: the same work by rota and by what people would use instead, in one interleaved run.

    python -m bench.peers [--only A,C] [--peers rota,make] [--rounds 5] [--append] [--quick]

A: many `true`, started directly and through a shell. B: submissions of which nothing runs, and the memory that they
take. C: one job at a time on an idle system. D: a graph of layers in which each job waits for two of the layer before.
In each round every peer has its turn, and between two turns the limit is measured: for A and D bare C loops that
spawn and wait, for B writing the same lines to a file, for C a spawn in the same process. Every sample is kept
(`bench/results/peers.json`); with `--append` a run adds to those that are there, so that it can be done in pieces.
`python -m bench.peers.report` writes bench/RESULTS.md and the pictures.
"""

import argparse
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

from bench.peers.environments import ROOT, MissingError, python_of
from bench.peers.programs.drive import line
from bench.peers.roster import Entry, named
from bench.peers.sampling import ready, sample
from bench.spawning import Loops, build, run_loop

RESULTS = os.path.join(ROOT, "bench", "results", "peers.json")
SHELL = "true; true"
"""For a shell: two commands that it has built in, so that it neither starts nor becomes another program."""
MOST_S = 240.0
GRAPH_SLOTS = 20
"""At one time, of jobs that sleep: two cores would need 500 s for a graph of jobs of 0.1 s."""
SLEEP_S = 0.1


class Sizes:
    """How much of everything; `quick` is for trying the harness."""

    def __init__(self, args: argparse.Namespace) -> None:
        quick = args.quick
        self.jobs, self.across = (100, 8) if quick else (args.jobs, args.across)
        self.queued = (2_000,) if quick else tuple(int(word) for word in args.queued.split(","))
        self.latencies = 20 if quick else args.latencies
        self.yardstick = 200 if quick else min(2_000, args.jobs)


def jobs_of(entry: Entry, kind: str, sizes: Sizes, width: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """(what it is called, what is asked) of a kind."""
    count = min(sizes.jobs, entry.most)
    if kind == "A":
        for letter, name, command in (("A", "direct", ["/bin/true"]), ("a", "shell", SHELL)):
            if letter in entry.kinds:
                yield name, {"count": count, "command": command, "width": width}
    elif kind == "B" and "B" in entry.kinds:
        for number in sizes.queued:
            if number <= entry.most_queued or number == sizes.queued[0]:
                for distinct in (False, True):
                    what = f"{number} {'lines' if distinct else 'array'}"
                    yield what, {"count": min(number, entry.most_queued), "distinct": distinct, "width": width}
    elif kind == "C" and "C" in entry.kinds:
        for apart in (True, False):
            name = "apart" if apart else "back to back"
            yield name, {"count": sizes.latencies, "apart": apart, "command": ["/bin/true"], "width": width}
    elif kind == "D" and "D" in entry.kinds:
        across = min(sizes.across, entry.across)
        size = {"layers": across, "across": across}
        yield "0 s", {**size, "command": ["/bin/true"], "width": width}
        yield "0.1 s", {**size, "command": ["/bin/sleep", str(SLEEP_S)], "width": max(width, GRAPH_SLOTS)}


class Limit:
    """What nothing can be faster than, measured now."""

    def __init__(self, loops: Loops, width: int, sizes: Sizes) -> None:
        self.loops, self.width, self.sizes = loops, width, sizes
        self._last: dict[str, tuple[float, float]] = {}

    def now(self, kind: str, name: str, job: dict[str, Any]) -> float | None:
        """Jobs per second of the bare loops; seconds of writing the lines; None where a sample has its own."""
        if kind in "AD":
            words = ("/bin/sh", "-c", SHELL) if name == "shell" else ("/bin/true",)
            return run_loop(self.loops.bare, self.sizes.yardstick, self.width, *words).rate
        if kind == "B":
            return _written(job["count"] if job["distinct"] else 1)
        return None


def _written(count: int) -> float:
    """Seconds to write so many lines to a file, and have it on disk."""
    begin = time.perf_counter()
    with tempfile.TemporaryFile() as file:
        file.writelines(f"{line(number)}\n".encode() for number in range(count))
        file.flush()
        os.fsync(file.fileno())
        return time.perf_counter() - begin


def machine() -> dict[str, str]:
    """What it was measured on."""
    model = ""
    with open("/proc/cpuinfo") as file:
        model = next((row.partition(":")[2].strip() for row in file if row.startswith("model name")), "")
    cores = len(os.sched_getaffinity(0))
    return {
        "machine": f"{cores} cores, {model}",
        "system": f"Linux {platform.release().split('-')[0]}, Python {platform.python_version()}",
        "commit": subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
        ).stdout.strip(),
    }


def version(entry: Entry, python: str) -> str:
    """Of a peer."""
    if entry.environment:
        text = "import importlib.metadata as m, sys; print(m.version(sys.argv[1]))"
        name = {"dask": "distributed", "psij": "psij-python"}.get(entry.environment, entry.environment)
        words = [python, "-c", text, name]
    elif entry.command:
        words = [entry.command, "--version"]
    else:
        words = [python, "-m", "rota", "--version"]
    done = subprocess.run(words, capture_output=True, text=True, check=False).stdout.splitlines()
    return done[0].split()[-1] if done else ""


def samples_of(path: str) -> dict[str, Any]:
    """The samples that are there."""
    if os.path.exists(path):
        with open(path) as file:
            found: dict[str, Any] = json.load(file)
            return found
    return {"runs": [], "versions": {}, "missing": {}, "samples": []}


def keep(path: str, data: dict[str, Any]) -> None:
    """Write all, one sample a line, whole or not at all."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(f"{path}.new", "w") as file:
        head = {name: value for name, value in data.items() if name != "samples"}
        file.write(json.dumps(head, indent=1)[:-2] + ',\n "samples": [\n')
        file.write(",\n".join(json.dumps(one) for one in data["samples"]))
        file.write("\n]}\n")
    os.replace(f"{path}.new", path)


def told(one: dict[str, Any]) -> str:
    """A sample in words."""
    if "failed" in one:
        return f"failed: {one['failed']}"
    if "took" in one:
        took = sorted(one["took"])
        return f"{statistics.median(took) * 1e3:.2f} ms, p99 {took[int(0.99 * len(took))] * 1e3:.2f} ms"
    more = f", {one['bytes'] / one['count']:.0f} B a job" if "bytes" in one else ""
    return f"{one['seconds']:.2f} s, {one['count'] / one['seconds']:.0f}/s{more}"


def measure(args: argparse.Namespace, data: dict[str, Any]) -> int:
    """All rounds; how many samples failed."""
    sizes, width = Sizes(args), len(os.sched_getaffinity(0))
    limit = Limit(build(), width, sizes)
    there = {}
    for entry in named(args.peers):
        try:
            there[entry] = ready(entry)
            data["versions"][entry.name] = version(entry, there[entry])
            data["missing"].pop(entry.name, None)
        except MissingError as error:
            data["missing"][entry.name] = str(error)
            print(error, file=sys.stderr)
    data["runs"].append({**machine(), "at": time.strftime("%Y-%m-%d %H:%M", time.gmtime()), "quick": args.quick})
    run, failed = len(data["runs"]) - 1, 0
    hopeless: set[tuple[str, str, str]] = set()
    until = time.monotonic() + args.minutes * 60
    for number in range(args.rounds):
        for kind in args.only.split(","):
            for entry, python in there.items():
                for name, job in jobs_of(entry, kind, sizes, width):
                    if (kind, entry.name, name) in hopeless or time.monotonic() > until:
                        continue
                    if args.what and args.what not in name:
                        continue
                    load = round(os.getloadavg()[0], 1)
                    before = limit.now(kind, name, job)
                    found = sample(python, entry, {"kind": kind, **job}, args.most)
                    after = limit.now(kind, name, job)
                    one: dict[str, Any] = {
                        "run": run,
                        "load": load,
                        "round": number,
                        "kind": kind,
                        "what": name,
                        "peer": entry.name,
                    }
                    one |= {key: value for key, value in job.items() if key in ("count", "layers", "across", "width")}
                    one.setdefault("count", job.get("layers", 0) * job.get("across", 0))
                    if before is not None and after is not None:
                        one["limit"] = [before, after]
                    for key in ("took", "spawns"):
                        if key in found:
                            found[key] = [round(value, 6) for value in found[key]]
                    one |= found
                    data["samples"].append(one)
                    keep(args.results, data)
                    print(f"{number} {kind} {name:14} {entry.name:20} {told(one)}", flush=True)
                    if "failed" in found:
                        failed += 1
                        hopeless.add((kind, entry.name, name))
    return failed


def main() -> int:
    """Measure what is asked for."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.peers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="A,B,C,D", help="kinds of measurement")
    parser.add_argument("--what", default="", help="only what has this word in its name: direct, shell, lines, apart …")
    parser.add_argument("--peers", default="", help="how their names begin, with commas; default: all")
    parser.add_argument("--rounds", type=int, default=5, help="samples of each, of which the median counts")
    parser.add_argument("--jobs", type=int, default=10_000, help="of A; some peers have fewer")
    parser.add_argument("--queued", default="100000,1000000", help="of B; some peers have fewer")
    parser.add_argument("--latencies", type=int, default=60, help="of C, in each round; the p99 is of all rounds")
    parser.add_argument("--across", type=int, default=100, help="layers of D, and jobs in each; some peers have fewer")
    parser.add_argument("--append", action="store_true", help="add to the samples that are there")
    parser.add_argument("--minutes", type=float, default=600, help="begin nothing after so many")
    parser.add_argument("--most", type=float, default=MOST_S, help="seconds after which a sample is given up")
    parser.add_argument("--quick", action="store_true", help="sizes that say nothing, to try the harness")
    parser.add_argument("--results", default=RESULTS)
    parser.add_argument("--install", action="store_true", help="only install the others")
    args = parser.parse_args()
    if args.install:
        for entry in named(args.peers):
            if entry.environment:
                try:
                    python_of(entry.environment)
                except MissingError as error:
                    print(error, file=sys.stderr)
        return 0
    if args.quick and args.results == RESULTS:
        args.results = os.path.join(tempfile.gettempdir(), "rota-peers-quick.json")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what a sample started is ended
    data = samples_of(args.results if args.append else "")
    return 1 if measure(args, data) else 0


if __name__ == "__main__":
    raise SystemExit(main())
