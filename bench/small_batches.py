"""Many small submissions, as workflow engines make them: what each costs, and what it leaves behind once it is settled.

`python -m bench.small_batches [COUNT]` submits so many batches of one job each over one connection to a manager whose
only node is a light one (`bench.light`), so that each settles at once; then it stops that manager and starts it again.
`--core` measures what a settled batch holds in the core alone, without processes; `--named` gives each its own name.
"""

import argparse
import gc
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import tracemalloc
from collections import deque
from collections.abc import Iterator

import rota
from bench import Row, light
from bench import home as at
from rota.core.evolve import evolve
from rota.core.snapshot import take_columns
from rota.core.soft import Changes
from rota.core.state import Settings, State
from rota.model.batch import BatchSpec, Template
from rota.model.errors import RotaError
from rota.model.events import Ended, Leased, Moved, RunnerGreeted, Submitted
from rota.model.needs import Amounts, Needs
from rota.wire.client import Connection

NODE = Amounts(8000, 64 << 30)
FIRST = 1_000
"""Batches before memory is looked at, so that what is there once is not counted."""
MOST_CPU_MS, MOST_BYTES, MOST_RESTART_S, MOST_STATUS_S = 1.0, 1_000, 3.0, 1.0


class _Manager:
    """A manager with one light node, which can be stopped and started again."""

    def __init__(self, home: str) -> None:
        self.home = home
        self._log = open(os.path.join(home, "log"), "a")  # noqa: SIM115  closed by `stop`
        words = [sys.executable, "-m", "bench.light", home, "1", str(NODE.cores), str(NODE.memory)]
        self._child = subprocess.Popen(words, stderr=self._log, stdin=subprocess.DEVNULL)
        self.pid = self._child.pid

    def ready(self, within_s: float = 300) -> None:
        """Wait until it answers a ping."""
        until = time.monotonic() + within_s
        while True:
            try:
                with Connection.connect(self.home) as connection:
                    connection.ask("ping")
                return
            except (RotaError, OSError):
                if self._child.poll() is not None or time.monotonic() > until:
                    raise
            time.sleep(0.01)

    def stop(self) -> None:
        """End it, cleanly."""
        if self._child.poll() is None:
            self._child.send_signal(signal.SIGTERM)
            self._child.wait(120)
        self._log.close()


class _Ending(threading.Thread):
    """The runner of the light node: what it is leased ends at once."""

    def __init__(self, home: str) -> None:
        super().__init__(daemon=True)
        self.runners = light.Runners(home, 1, NODE)
        self.runners.flowing = True
        self.runners.end(len(self.runners.held))
        self.over = False

    def run(self) -> None:
        """Take leases and tell ends until it is told to stop."""
        while not self.over:
            self.runners.serve(0.2)

    def settle(self, batches: int) -> None:
        """Wait until the jobs of so many batches have ended."""
        while self.runners.ended < batches:
            time.sleep(0.02)
        time.sleep(0.5)

    def close(self) -> None:
        """Stop, and hang up."""
        self.over = True
        self.join()
        self.runners.close()


def _submit(client: rota.Client, first: int, last: int, named: bool) -> None:
    for number in range(first, last):
        name = f"align-{number}" if named else "align"
        client.submit(["process", "--input", f"sample-{number:07d}.dat"], name=name)


def _settled_ms(pid: int, began: float, count: int) -> float:
    return (at.cpu_s(pid) - began) / count * 1000


def small_batches(count: int, named: bool = False) -> Iterator[Row]:
    """CPU per submission, memory per settled batch, restart, status."""
    home = tempfile.mkdtemp(prefix="rota-bench-")
    manager = _Manager(home)
    try:
        manager.ready()
        with rota.Client(home=home, start=False) as client:
            _submit(client, 0, 1, named)
            ending = _Ending(home)
            ending.start()
            _submit(client, 1, FIRST, named)
            ending.settle(FIRST)
            size, began = at.rss(manager.pid), at.cpu_s(manager.pid)
            _submit(client, FIRST, FIRST + count, named)
            ending.settle(FIRST + count)
            each = _settled_ms(manager.pid, began, count)
            bytes_each = (at.rss(manager.pid) - size) / count
            ending.close()
        figure = f"{each:.2f} ms of CPU, its lease and end included"
        yield Row(f"{count:,} batches of one job: a submission", figure, f"≤ {MOST_CPU_MS:.0f} ms", each <= MOST_CPU_MS)
        met = bytes_each <= MOST_BYTES
        yield Row("… memory of a settled batch", f"{bytes_each:,.0f} B", f"≤ {MOST_BYTES:,} B", met)
        manager.stop()
        begin = time.perf_counter()
        manager = _Manager(home)
        manager.ready()
        took, cpu = time.perf_counter() - begin, at.cpu_s(manager.pid)
        figure = f"{took:.2f} s, {cpu:.2f} s of CPU, {at.rss(manager.pid) / 1e6:.0f} MB"
        yield Row("… restart", figure, f"≤ {MOST_RESTART_S:.0f} s of CPU", cpu <= MOST_RESTART_S)
        status = at.best(3, lambda: at.rota(home, "status"))
        yield Row("… rota status", f"{status:.2f} s", f"≤ {MOST_STATUS_S:.0f} s", status <= MOST_STATUS_S)
    finally:
        manager.stop()
        shutil.rmtree(home, ignore_errors=True)


def core_memory(count: int) -> Row:
    """What a settled batch holds in the core, after a checkpoint."""
    state = State(Settings())
    evolve(state, RunnerGreeted("r", None, 1, 1, "n1", 1, NODE))
    tracemalloc.start()
    before = 0
    for number in range(1, FIRST + count + 1):
        _run_one(state, number)
        if number % FIRST == 0:  # as often as a busy manager takes a checkpoint
            deque(take_columns(state), maxlen=0)
        if number == FIRST:
            gc.collect()
            before = tracemalloc.get_traced_memory()[0]
    deque(take_columns(state), maxlen=0)
    gc.collect()
    each = (tracemalloc.get_traced_memory()[0] - before) / count
    tracemalloc.stop()
    return Row(f"{count:,} settled batches, in the core", f"{each:,.0f} B", f"≤ {MOST_BYTES:,} B", each <= MOST_BYTES)


def _run_one(state: State, number: int) -> None:
    """A batch is submitted, and its job ready, leased and completed."""
    argv = ("process", "--input", f"sample-{number:07d}.dat")
    template = Template(argv=argv, needs=Needs(cores=1000), cwd="/home/someone/project", group="process")
    evolve(state, Submitted(number, BatchSpec(1, (template,), name="align"), f"{number:032x}", 1e9 + number))
    evolve(state, Moved(number, "ready", [0, 1]))
    evolve(state, Leased(number, [0, 1], "r", "0:1000", slots=1))
    evolve(state, Ended("r", [(number, 0, "complete", None, 1000)]))
    state.settled, state.freed, state.again, state.forgotten = [], [], [], []
    state.soft.planning.changed = Changes()


def main() -> int:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.small_batches", description=__doc__)
    parser.add_argument("count", nargs="?", type=int, default=100_000)
    parser.add_argument("--core", action="store_true", help="only what the core holds")
    parser.add_argument("--named", action="store_true", help="each batch has a name of its own")
    args = parser.parse_args()
    met = True
    for row in [core_memory(args.count)] if args.core else small_batches(args.count, args.named):
        print(row, flush=True)
        met = met and row.met
    return 0 if met else 1


if __name__ == "__main__":
    raise SystemExit(main())
