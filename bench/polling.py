"""What it costs to look at many allocations at once: real dialects, on simulated clusters that speak their words.

`python -m bench.polling [slurm lsf pbs torque sge]`; the cluster's own time is not counted.
"""

import asyncio
import sys
import time
from collections.abc import Sequence
from typing import NamedTuple

from rota.drivers.api import Ask, Known
from rota.drivers.command import CommandDriver
from rota.drivers.dialect import Answer, Options
from rota.drivers.dialects import load_dialect
from rota.drivers.gate import Times
from rota.drivers.settings import Settings
from rota.model.needs import Amounts
from rota.model.site import SiteFacts
from rota.testing.fake_cluster import SimulatedCluster

SYSTEMS = ("slurm", "lsf", "pbs", "torque", "sge")
ARRAY = 100


class Figures(NamedTuple):
    """One cycle, when nothing has changed since the one before."""

    cpu_ms: float
    commands: int
    size: int
    """Bytes of the answers."""


class Simulated:
    """A transport to a simulated cluster."""

    name = "a simulated cluster"

    def __init__(self, system: str, jobs: int) -> None:
        settings = {"personality": system, "nodes": jobs // 50, "cores": 64, "purge_s": 1e9}
        self._cluster = SimulatedCluster(settings, lambda submission, job: (1e9, 0, None), user="tester")
        self.now = 1.0e9
        self.away = 0.0
        """CPU seconds of the cluster itself."""
        self.commands = self.size = 0

    async def which(self, programs: Sequence[str]) -> dict[str, str | None]:
        """All are there."""
        return {program: f"/fake/{program}" for program in programs}

    async def run(self, argv: Sequence[str], stdin: str | None = None, timeout_s: float = 60.0) -> Answer:
        """The cluster's answer."""
        if argv[0] == "id":
            return Answer(0, "tester\n", "")
        begin = time.process_time()
        code, out, err = self._cluster.run((argv[0].rpartition("/")[2], *argv[1:]), stdin, self.now, timeout_s)
        self.commands += 1
        self.size += len(out)
        self.away += time.process_time() - begin
        return Answer(code, out, err)


async def cycle(system: str, jobs: int) -> Figures:
    """Submit so many, look at them until nothing is new, then measure; the best of three."""
    transport = Simulated(system, jobs)

    async def sleep(seconds: float) -> None:
        transport.now += seconds

    times = Times(lambda: transport.now, lambda: transport.now, sleep, lambda: 0.5)
    facts = SiteFacts(Amounts(64_000, 1 << 36), (), jobs, 120)
    options = Options(parallel_environment="smp")
    settings = Settings(commands_per_minute=10_000)
    driver = CommandDriver("bench", load_dialect(system), transport, facts, options, settings, times=times)
    known = []
    for number in range(jobs // ARRAY):
        tag, ids = f"{number:012x}", tuple(f"a{number}.{element}" for element in range(ARRAY))
        ask = Ask(tag, "bench", ids, Amounts(1000, 1 << 30), "#!/bin/sh\ntrue\n", "/home/tester/work", time_s=3600)
        native = await driver.submit(ask)
        known += [Known(ids[at], tag, native[at], at, transport.now, ARRAY) for at in range(ARRAY)]
    found = []
    while len(found) < 3:
        transport.now += 30  # why something waits is asked once a minute, beside this
        transport.away = 0.0
        transport.commands = transport.size = 0
        begin = time.process_time()
        news = await driver.poll(known)
        spent = time.process_time() - begin - transport.away
        if not news and transport.commands:
            found.append(Figures(spent * 1000, transport.commands, transport.size))
    return min(found)


def polling(system: str, jobs: int) -> Figures:
    """Figures of one system."""
    return asyncio.run(cycle(system, jobs))


if __name__ == "__main__":
    for name in sys.argv[1:] or SYSTEMS:
        for count in (1_000, 10_000):
            print(f"{name:7}{count:7,} allocations:", polling(name, count))
