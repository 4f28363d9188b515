"""84,000 ready jobs in 50 shapes behind one limit of 2,000, against the same jobs without it on 2,000 slots.

    python bench/limits.py [JOBS] [LIMIT] [SHAPES]

Only the core's CPU time counts: submissions, reports, passes. Behind the limit the cluster has twice the room, so that
it is the limit that binds. Budget: at least 0.8 of the rate without it.
"""

import sys
import time
from collections.abc import Callable

from rota.core.effects import Ack, Effect, Lease, Welcome
from rota.core.state import Settings
from rota.core.step import Core, Step
from rota.core.stimuli import At, Ended, Greet, Report, SiteSeen, Stimulus, Submit, Tick
from rota.model.batch import BatchSpec, Template
from rota.model.needs import Amounts, Needs
from rota.model.site import SiteFacts

NODES = 20
PART = 8
"""Every turn so many-th of what a node holds ends."""


class Node:
    """A runner that says what it is told to."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.session = self.seq = self.got = 0
        self.held: list[tuple[int, int, int]] = []


class Cluster:
    """A core and its nodes; `cost` is what the clock says of the core alone."""

    def __init__(self, slots: int, clock: Callable[[], float]) -> None:
        self.core = Core(Settings())
        self.meter = clock
        self.nodes: dict[str, Node] = {}
        self.clock = 1000.0
        self.cost = 0.0
        self.most = self.asked = 0
        node = Amounts(slots // NODES * 1000, 1 << 50)
        self.tell(SiteSeen(at=self.at, site="s", facts=SiteFacts(node, most=NODES, linger_s=1e9)))
        for number in range(NODES):
            name = f"r{number}"
            self.nodes[name] = Node(name)
            self.tell(
                Greet(
                    at=self.at, runner=name, allocation=None, connect=1, clock=0.0, host=name, pid=1, capacity=node,
                    held=[],
                )
            )  # fmt: skip

    @property
    def at(self) -> At:
        """Now."""
        return At(self.clock, self.clock)

    def tell(self, stimulus: Stimulus) -> None:
        """One step."""
        begin = self.meter()
        step = self.core.step(stimulus)
        self.cost += self.meter() - begin
        self._perform(step)

    def schedule(self) -> None:
        """One pass, and a look at what runs and is asked for."""
        begin = self.meter()
        step = self.core.schedule(self.at)
        self.cost += self.meter() - begin
        self._perform(step)
        running = sum(sum(runner.slots.values()) for runner in self.core.state.runners.values())
        self.most = max(self.most, running)
        self.asked = len(self.core.state.allocations)

    def _perform(self, step: Step) -> None:
        effects: list[Effect] = step.effects
        batches = self.core.state.batches
        for effect in effects:
            if isinstance(effect, Welcome):
                self.nodes[effect.runner].session = effect.session
            elif isinstance(effect, Lease):
                node = self.nodes[effect.runner]
                node.got = effect.n
                node.held += [(batch, batches[batch].index(pos), attempt) for batch, pos, attempt, _ in effect.jobs]
            else:
                assert isinstance(effect, Ack) or type(effect).__name__ == "Allocate", effect

    def turn(self) -> None:
        """A part of everything ends everywhere, and the manager hears of it at once."""
        self.clock += 1.0
        for node in self.nodes.values():
            count = -(-len(node.held) // PART)
            if not count:
                continue
            over, node.held = node.held[:count], node.held[count:]
            node.seq += 1
            ended = [Ended(*job, 0, None, None, self.clock - 8, self.clock, 1.0, 1, None, None) for job in over]
            self.tell(
                Report(
                    at=self.at, runner=node.name, session=node.session, seq=node.seq, got=node.got, clock=self.clock,
                    ended=ended,
                )
            )  # fmt: skip
        self.tell(Tick(at=self.at))
        self.schedule()


def drive(
    jobs: int, limit: int, shapes: int, limited: bool, clock: Callable[[], float] = time.process_time
) -> tuple[float, Cluster]:
    """(jobs per second of the core's CPU, or of what the clock counts; the cluster afterwards)."""
    cluster = Cluster(limit * 2 if limited else limit, clock)
    for number in range(shapes):
        needs = Needs(memory=(number + 1) << 20)
        template = Template(argv=("true",), needs=needs, limits=("irods",) if limited else ())
        count = jobs // shapes + (number < jobs % shapes)
        settings: dict[str, int | str] | None = {"irods": limit} if limited else None
        cluster.tell(Submit(at=cluster.at, spec=BatchSpec(count, (template,)), key=f"k{number}", limits=settings))
    cluster.schedule()
    while any(batch.unsettled for batch in cluster.core.state.batches.values()):
        cluster.turn()
    return jobs / cluster.cost, cluster


def ratio(jobs: int, limit: int, shapes: int, rounds: int = 3) -> tuple[float, float, float, int]:
    """(the rate behind the limit as a part of the one without, both rates, the most that ran at once)."""
    pairs = []
    most = 0
    for _ in range(rounds):
        free, _ = drive(jobs, limit, shapes, False)
        behind, cluster = drive(jobs, limit, shapes, True)
        most = max(most, cluster.most)
        pairs.append((behind / free, behind, free))
    part, behind, free = sorted(pairs)[rounds // 2]
    return part, behind, free, most


def main() -> None:
    """Print the figures."""
    given = [int(word) for word in sys.argv[1:]]
    jobs, limit, shapes = (*given, *(84_000, 2_000, 50)[len(given) :])
    part, behind, free, most = ratio(jobs, limit, shapes)
    print(f"{jobs:,} jobs in {shapes} shapes behind a limit of {limit:,}: at most {most:,} at once")
    print(f"{behind:,.0f} jobs/s of the core's CPU, {free:,.0f} without the limit: {part:.2f} (budget 0.80)")


if __name__ == "__main__":
    main()
