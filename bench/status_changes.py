"""What one status change costs the scheduler of `rota.placement`: 1,000 locations, 10,000 queued jobs.

    python -m bench.status_changes [--quick]

Every location is full, each job asks for something else, and half of the locations are containers on the others. A
change is: a job ends, what it held is returned at each level, the next that fits is found, its policy asked, and
booked. CPU time of this process, so that a busy machine does not count.
"""

import argparse
import asyncio
import statistics
import sys
import time
from collections import deque
from typing import Any

from bench import Row
from rota.placement import (
    AvailableLocation,
    BindingConfig,
    DefaultScheduler,
    DeploymentConfig,
    Hardware,
    Job,
    Status,
    Target,
)

BUDGET_MS = 5.0
FLAT = 1.5
"""The most that a change may cost after many times as many jobs have ended."""


class Farm:
    """A connector, a deployment manager and a context in one: what a scheduler asks for."""

    data_manager = None

    def __init__(self, places: int) -> None:
        self.deployment_manager = self
        hosts = [
            AvailableLocation(f"h{number}", "farm", f"h{number}", hardware=Hardware(16, 64_000))
            for number in range(places // 2)
        ]
        boxes = [
            AvailableLocation(f"c{number}", "farm", host.name, hardware=Hardware(8, 32_000), stacked=True, wraps=host)
            for number, host in enumerate(hosts)
        ]
        self.locations = {each.name: each for each in (*hosts, *boxes)}

    def get_connector(self, name: str) -> "Farm":
        return self

    async def get_available_locations(self, service: str | None = None) -> dict[str, AvailableLocation]:
        return self.locations


def a_need(number: int) -> Hardware:
    return Hardware(8, 1000 + number % 997 + number / 100_000)


async def changes(places: int, queued: int, count: int) -> list[float]:
    """Milliseconds of each of so many status changes."""
    farm = Farm(places)
    scheduler = DefaultScheduler(farm, refresh_after=3600)
    binding = BindingConfig([Target(DeploymentConfig("farm", "bench", scheduling_policy="least_loaded"))])
    placed: deque[str] = deque()
    tasks: list[asyncio.Task[None]] = []

    async def ask(number: int) -> None:
        job = Job(f"/step/{number}", 1, {}, None, None, None)
        await scheduler.schedule(job, binding, a_need(number))
        placed.append(job.name)

    number = 0
    while number < places:  # 16 cores a host, 8 a job: as many as there are locations
        tasks.append(asyncio.ensure_future(ask(number)))
        number += 1
    await drained(scheduler, lambda: len(placed) == places)
    for _ in range(queued):
        tasks.append(asyncio.ensure_future(ask(number)))
        number += 1
    await drained(scheduler, lambda: len(scheduler.queue.requests) == queued)
    costs = []
    for _ in range(count):
        tasks.append(asyncio.ensure_future(ask(number)))
        number += 1
        await drained(scheduler, lambda: len(scheduler.queue.requests) == queued + 1)
        ends, before = placed.popleft(), len(placed)
        await scheduler.notify_status(ends, Status.RUNNING)
        await asyncio.sleep(0)
        begin = time.process_time()
        await scheduler.notify_status(ends, Status.COMPLETED)
        await drained(scheduler, lambda before=before: len(placed) > before)  # type: ignore[misc]
        costs.append((time.process_time() - begin) * 1000)
    await scheduler.close()
    await asyncio.gather(*tasks, return_exceptions=True)
    return costs


async def drained(scheduler: DefaultScheduler, reached: Any) -> None:
    """Let the scheduler do what it can, until something is so."""
    while not reached():  # noqa: ASYNC110  it is this loop's own work that is waited for
        await asyncio.sleep(0)


def status_changes(quick: bool = False) -> list[Row]:
    """The rows of the table."""
    places, queued = (100, 1_000) if quick else (1_000, 10_000)
    costs = asyncio.run(changes(places, queued, 200))
    one = statistics.median(costs)
    often = asyncio.run(changes(20, 100, 500 if quick else 5_000))
    begins, ends = statistics.median(often[100:300]), statistics.median(often[-200:])
    return [
        Row(
            f"placement: a status change, {places:,} places × {queued:,} jobs",
            f"{one:.2f} ms (median of 200)",
            f"≤ {BUDGET_MS:g} ms",
            one <= BUDGET_MS,
        ),
        Row(
            f"placement: a status change after {len(often):,} jobs have ended",
            f"{ends:.2f} ms = × {ends / begins:.2f} of that after 200",
            f"≤ × {FLAT:g}",
            ends <= FLAT * begins,
        ),
    ]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    rows = status_changes(parser.parse_args().quick)
    for row in rows:
        print(row)
    sys.exit(not all(row.met for row in rows))
