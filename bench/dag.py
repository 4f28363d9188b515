"""Dependencies at scale: what a job costs the core, from the first tenth of a graph of 100,000 jobs to the last.

    python -m bench.dag [JOBS]

Each graph is given as batches of one job (a chain, fans of 10,000, diamonds, one at random) or as arrays that depend on
each other job by job. The cost is that of the pass that leases a job plus that of the report that ends it, in
microseconds of CPU time; the budget is a ratio of at most 1.3 between the last tenth and the first.
"""

import gc
import random
import sys
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

from rota.core.effects import Lease, Welcome
from rota.core.state import Settings
from rota.core.step import Core, Step
from rota.core.stimuli import At, Ended, Greet, Report, SiteSeen, Submit
from rota.model.batch import BatchSpec, Dependency, Template
from rota.model.needs import Amounts
from rota.model.site import SiteFacts

NODE = Amounts(16_000, 1 << 36)
TEMPLATES = (Template(argv=("true",)),)
FAN = 10_000
Graph = Iterator[tuple[int, tuple[Dependency, ...]]]
"""(jobs, dependencies) of each batch; batches are numbered from 1."""


def chain(jobs: int) -> Graph:
    """Each after the one before it."""
    for number in range(jobs):
        yield 1, (Dependency(str(number)),) if number else ()


def fan(jobs: int) -> Graph:
    """One, ten thousand after it, one after all of these, and again."""
    number = last = 0
    while number < jobs:
        yield 1, (Dependency(str(last)),) if last else ()
        number += 1
        root, width = number, min(FAN - 1, jobs - number)
        for _ in range(width):
            number += 1
            yield 1, (Dependency(str(root)),)
        if number < jobs:
            number += 1
            yield 1, tuple(Dependency(str(other)) for other in range(root + 1, root + 1 + width))
            last = number


def diamond(jobs: int) -> Graph:
    """One, two after it, one after both, and again."""
    for number in range(1, jobs + 1):
        corner = number % 3
        if corner == 1:
            yield 1, (Dependency(str(number - 1)), Dependency(str(number - 2))) if number > 1 else ()
        else:
            yield 1, (Dependency(str(number - (1 if corner == 2 else 2))),)


def at_random(jobs: int) -> Graph:
    """Up to three, of the thousand before it."""
    chance = random.Random(1)
    for number in range(1, jobs + 1):
        wanted = chance.randrange(4) if number > 1 else 0
        parents = {chance.randrange(max(1, number - 1000), number) for _ in range(wanted)}
        yield 1, tuple(Dependency(str(parent)) for parent in sorted(parents))


def by_name(jobs: int) -> Graph:
    """Each after the one before it and after all arrays of a name: see `drive`."""
    for number in range(jobs):
        yield 1, (Dependency("@step"),) if number else ()


def arrays(jobs: int) -> Graph:
    """Ten arrays, each job after the one of its number in the array before."""
    for number in range(10):
        yield jobs // 10, (Dependency(str(number), each=True),) if number else ()


def gates(jobs: int) -> Graph:
    """Arrays that wait for an array as a whole."""
    for number in range(10):
        yield jobs // 10, (Dependency(str(number)),) if number else ()


GRAPHS: dict[str, Callable[[int], Graph]] = {
    "chain": chain,
    "fan": fan,
    "diamond": diamond,
    "random": at_random,
    "by name": by_name,
    "each": arrays,
    "arrays": gates,
}


class Figures(NamedTuple):
    """What a job costs, in what the clock counts."""

    submit: float
    first: float
    last: float
    settled: int

    @property
    def ratio(self) -> float:
        """The last tenth by the first."""
        return self.last / self.first


class Driver:
    """A shell with one runner that ends at once whatever it is given."""

    def __init__(self) -> None:
        self.core = Core(Settings())
        self.clock = 0.0
        self.session = self.got = self.seq = 0
        self.held: list[tuple[int, int, int]] = []
        self.ended = 0
        self.core.step(SiteSeen(at=self.at, site="local", facts=SiteFacts(NODE, linger_s=1e9)))
        greet = Greet(
            at=self.at, runner="r1", allocation=None, connect=1, clock=0.0, host="h", pid=1, capacity=NODE, held=[]
        )
        self._take(self.core.step(greet))

    @property
    def at(self) -> At:
        """Now."""
        return At(1000.0 + self.clock, self.clock)

    def _take(self, step: Step) -> None:
        for effect in step.effects:
            if isinstance(effect, Welcome):
                self.session = effect.session
            elif isinstance(effect, Lease):
                self.got = effect.n
                batches = self.core.state.batches
                self.held += [(batch, batches[batch].index(pos), attempt) for batch, pos, attempt, _ in effect.jobs]

    def submit(self, number: int, count: int, after: tuple[Dependency, ...], name: str) -> None:
        """Add a batch."""
        spec = BatchSpec(count, TEMPLATES, name=name, after=after)
        self.core.step(Submit(at=self.at, spec=spec, key=str(number)))

    def turn(self) -> int:
        """Lease what is ready, and end it; how many that was."""
        self._take(self.core.schedule(self.at))
        jobs, self.held = self.held, []
        self.seq += 1
        self.clock += 0.001
        wall = self.at.wall
        rows = [Ended(*job, 0, None, None, wall - 0.001, wall, 0.001, 1000, None, None) for job in jobs]
        report = Report(
            at=self.at, runner="r1", session=self.session, seq=self.seq, got=self.got, clock=self.clock, ended=rows
        )
        self._take(self.core.step(report))
        return len(jobs)


def drive(name: str, jobs: int, clock: Callable[[], float] = time.process_time) -> Figures:
    """Submit a graph, run it to its end."""
    driver = Driver()
    total = 0
    gc.collect()
    began = clock()
    for number, (count, after) in enumerate(GRAPHS[name](jobs), 1):
        driver.submit(number, count, after, "step" if name == "by name" else "")
        total += count
    submit = clock() - began
    gc.collect()
    done, times = 0, [(0, clock())]
    while done < total and (more := driver.turn()):
        done += more
        times.append((done, clock()))
    tenth = total // 10
    first = next(at for at in times if at[0] >= tenth)
    before = [at for at in times if at[0] <= total - tenth][-1]
    settled = sum(batch.count - batch.unsettled for batch in driver.core.state.batches.values())
    end = times[-1]
    return Figures(
        submit / total,
        (first[1] - times[0][1]) / first[0],
        (end[1] - before[1]) / max(1, end[0] - before[0]),
        settled,
    )


def main() -> None:
    """Print the table."""
    jobs = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    print(f"{jobs:,} jobs, microseconds per job (budget: last tenth ≤ 1.3 × first)")
    print(f"{'graph':10}{'submit':>9}{'first':>9}{'last':>9}{'ratio':>8}{'settled':>10}")
    for name in GRAPHS:
        figures = drive(name, jobs)
        times = "".join(f"{cost * 1e6:9.1f}" for cost in (figures.submit, figures.first, figures.last))
        print(f"{name:10}{times}{figures.ratio:8.2f}{figures.settled:10,}", flush=True)


if __name__ == "__main__":
    main()
