"""Light runners: one process that speaks the runner protocol over many connections and runs nothing.

`python -m bench.light HOME NODES CORES MEMORY` is a manager whose only site gives nodes for which nobody starts a
process: `Runners`, in the process that measures, greets for each of them.
"""

import json
import os
import selectors
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rota.drivers.api import Known, Observation
from rota.manager import __main__ as manager_process
from rota.manager.config import SiteConfig
from rota.manager.sites.api import Site
from rota.model.allocation import Allocation
from rota.model.needs import Amounts
from rota.model.site import SiteFacts
from rota.wire.frames import Decoder, encode

TOUCH_S = 15.0
NOWHERE = "/nowhere"
"""Where the output of jobs that are not run would be."""
ASKED = "asked"
"""The file in which the site says which nodes it was asked for."""
WALL_S = 2.0
"""What every job says that it took: too long to be leased ahead, so that each end is a pass of its own."""
Job = list[int]
"""[batch, index, attempt], as runners name it."""


class LightSite(Site):
    """Gives as many nodes as it is asked for, at once."""

    name = "local"
    config = SiteConfig()
    answers_at_once = True
    verb_of_submitted = "run"

    def __init__(self, facts: SiteFacts, home: str) -> None:
        self._facts = facts
        self._home = home

    def facts(self) -> SiteFacts:
        return self._facts

    async def submit(
        self, tag: str, allocations: Sequence[Allocation], leases: Mapping[int, dict[str, Any]]
    ) -> list[str]:
        with open(os.path.join(self._home, ASKED), "a") as file:  # noqa: ASYNC230  a short line, in a measurement
            file.writelines(f"{allocation.id} {tag}.{allocation.element}\n" for allocation in allocations)
        return [allocation.id for allocation in allocations]

    def output_of(self, tag: str, runner: str) -> str:
        return NOWHERE

    async def find(self, tag: str, count: int) -> list[str] | None:
        return None

    async def terminate(self, known: Known) -> bool:
        return True

    async def poll(self, known: Sequence[Known]) -> list[Observation]:
        return []

    def shut(self, allocation: str) -> None:
        return


def _listens(home: str) -> bool:
    """A socket is there a moment before somebody listens."""
    with socket.socket(socket.AF_UNIX) as door:
        return door.connect_ex(os.path.join(home, "manager.sock")) == 0


@contextmanager
def manager(nodes: int, node: Amounts) -> Iterator[tuple[str, int]]:
    """(home, pid) of a manager process with light nodes; it is ended afterwards."""
    home = tempfile.mkdtemp(prefix="rota-bench-")
    with open(os.path.join(home, "log"), "w") as log:
        words = [sys.executable, "-m", "bench.light", home, str(nodes), str(node.cores), str(node.memory)]
        child = subprocess.Popen(words, stderr=log, stdin=subprocess.DEVNULL)
    try:
        until = time.monotonic() + 20
        while not _listens(home):
            if child.poll() is not None or time.monotonic() > until:
                with open(os.path.join(home, "log")) as file:
                    raise SystemExit(file.read())
            time.sleep(0.02)
        yield home, child.pid
    finally:
        child.kill()
        child.wait()
        shutil.rmtree(home, ignore_errors=True)


class _Runner:
    """One connection, and what its runner knows."""

    __slots__ = ("decoder", "got", "name", "seq", "session", "socket", "touched")

    def __init__(self, name: str, connection: socket.socket) -> None:
        self.name = name
        self.socket = connection
        self.decoder = Decoder(128 << 20)
        self.session = self.seq = self.got = 0
        self.touched = time.monotonic()

    def send(self, message: dict[str, Any]) -> None:
        self.socket.sendall(encode(json.dumps(message).encode()))


class Runners:
    """All runners of a manager. Jobs that they hold end, the oldest first, when `end` says so or a lease comes."""

    def __init__(self, home: str, count: int, node: Amounts, staying: Sequence[int] = ()) -> None:
        self._selector = selectors.DefaultSelector()
        self._runners: list[_Runner] = []
        self.held: deque[tuple[_Runner, Job]] = deque()
        self.ended = 0
        self.flowing = False
        """Whether a job ends for each that is leased."""
        self.staying = staying
        """Batches whose jobs never end."""
        names = _asked(home, count)
        for number in range(1, count + 1):
            connection = socket.socket(socket.AF_UNIX)
            connection.connect(os.path.join(home, "manager.sock"))
            runner = _Runner(f"{names[f'a{number}']}.0.light", connection)
            self._selector.register(connection, selectors.EVENT_READ, runner)
            self._runners.append(runner)
            greeting = {
                "t": "greet", "version": 1, "runner": runner.name, "connect": 1, "clock": time.monotonic(),
                "host": f"n{number}", "pid": number, "cores": node.cores, "memory": node.memory, "output": NOWHERE,
                "held": [], "allocation": f"a{number}",
            }  # fmt: skip
            runner.send(greeting)
            if number % 50 == 0:
                self.serve(0.05)
        until = time.monotonic() + 20
        while not all(runner.session for runner in self._runners):
            if time.monotonic() > until:
                raise SystemExit("not all light runners were welcomed")
            self.serve(0.05)

    def serve(self, for_s: float, jobs: int | None = None) -> None:
        """Take what the manager says, for so long or until so many jobs have ended in all."""
        until = time.monotonic() + for_s
        while (now := time.monotonic()) < until and (jobs is None or self.ended < jobs):
            if self._runners and now - self._runners[0].touched >= TOUCH_S:
                self._touch(now)
            for key, _ in self._selector.select(min(0.1, until - now)):
                runner = key.data
                for frame in runner.decoder.feed(runner.socket.recv(1 << 20)):
                    self._take(runner, json.loads(frame))

    def _touch(self, now: float) -> None:
        mine: dict[str, list[Job]] = {}
        for runner, job in self.held:
            mine.setdefault(runner.name, []).append(job)
        for runner in self._runners:
            if now - runner.touched >= TOUCH_S and runner.session:
                runner.touched = now
                held = mine.get(runner.name, [])
                runner.send({"t": "touch", "session": runner.session, "got": runner.got, "clock": now, "held": held})
        self._runners.sort(key=lambda runner: runner.touched)

    def _take(self, runner: _Runner, message: dict[str, Any]) -> None:
        kind = message["t"]
        if kind == "welcome":
            runner.session = message["session"]
        elif kind == "lease":
            runner.got = max(runner.got, message["n"])
            jobs = [row[2:5] for row in message["jobs"]]
            self.held.extend((runner, job) for job in jobs if job[0] not in self.staying)
            if self.flowing:
                self.end(len(jobs))
        elif kind not in ("ack", "drain"):
            raise SystemExit(f"a light runner was sent {message}")

    def end(self, count: int) -> None:
        """The oldest jobs end."""
        reports: dict[str, tuple[_Runner, list[Job]]] = {}
        for _ in range(min(count, len(self.held))):
            runner, job = self.held.popleft()
            reports.setdefault(runner.name, (runner, []))[1].append(job)
        wall, clock = time.time(), time.monotonic()
        for runner, jobs in reports.values():
            runner.seq += 1
            self.ended += len(jobs)
            ended = [[*job, 0, None, None, wall - WALL_S, wall, 0.01, 1 << 20, None, None] for job in jobs]
            started = [[*job, wall - WALL_S, 1, None] for job in jobs]
            runner.send(
                {
                    "t": "report", "session": runner.session, "seq": runner.seq, "got": runner.got, "clock": clock,
                    "started": started, "ended": ended,
                }
            )  # fmt: skip

    def close(self) -> None:
        """Hang up."""
        for runner in self._runners:
            runner.socket.close()
        self._selector.close()


def _asked(home: str, count: int) -> dict[str, str]:
    """Allocation → tag and element, which its runner is named after, once so many have been asked for."""
    until = time.monotonic() + 20
    rows: dict[str, str] = {}
    while len(rows) < count:
        if time.monotonic() > until:
            raise SystemExit(f"{len(rows)} light nodes were asked for, not {count}")
        time.sleep(0.02)
        if os.path.exists(os.path.join(home, ASKED)):
            with open(os.path.join(home, ASKED)) as file:
                rows = dict(line.split() for line in file if line.endswith("\n"))
    return rows


def main() -> int:
    """The manager process."""
    home, nodes, cores, memory = sys.argv[1], *map(int, sys.argv[2:])
    facts = SiteFacts(Amounts(cores, memory), most=nodes, array_most=nodes, linger_s=86_400)
    manager_process.make_site = lambda name, site, paths, tls, pilot: LightSite(facts, home)
    sys.argv = ["rota.manager", "--home", home]
    return manager_process.main()


if __name__ == "__main__":
    raise SystemExit(main())
