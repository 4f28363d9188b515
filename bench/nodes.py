"""How far one manager carries: the core with 1,000 to 100,000 nodes, in virtual time, and what it hears of them.

    python -m bench.nodes [NODES …]

Each node has one job. CPU time of the core alone (no sockets, no disk): for a node that comes, for a job that ends and
is replaced, for a sign of life, for a look at the time, and for a node that falls silent. What one core of a CPU then
carries follows from these: nodes by their signs of life, jobs per second by their ends.
"""

import argparse
import gc
import resource
import sys
import time
from typing import NamedTuple

from bench import Row
from bench.place_half import World
from rota.core.state import Settings
from rota.core.stimuli import Tick, Touch
from rota.manager.__main__ import COLLECTED

SIZES = (1_000, 10_000, 100_000)
SHAPES = 100
ENDS, TOGETHER = 20_000, 50
MOST = 2.0
"""The most that an end may cost with the most nodes, by what it costs with the fewest."""


class Carried(NamedTuple):
    """CPU seconds of the core for each of these; and its memory."""

    nodes: int
    comes: float
    ends: float
    """… of which each is a turn of its own."""
    together: float
    """… of which many come in one turn, as they do once there are thousands a second."""
    touch: float
    looks: float
    memory: float

    @property
    def alive(self) -> float:
        """The part of a core that signs of life take."""
        return self.touch * self.nodes / Settings().touch_s


def carried(nodes: int, ends: int) -> Carried:
    """A world of so many nodes, each busy: what things cost there."""
    gc.set_threshold(*COLLECTED)
    gc.collect()
    size = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.process_time()
    world = World(nodes, SHAPES, False)
    comes = (time.process_time() - began) / nodes
    world.most = ends
    cost, _ = world.cost(60.0)
    began, turns = time.process_time(), max(1, min(ends, nodes) // TOGETHER)
    for _ in range(turns):
        world.clock += 0.01
        world.turn(*[world.end_one() for _ in range(TOGETHER)])
    together = (time.process_time() - began) / (turns * TOGETHER)
    held = {node.name: job for node, job in world.held}
    sample = list(world.nodes.values())[:: max(1, nodes // 5_000)]
    signs = [
        Touch(
            at=world.at, runner=node.name, session=node.session, got=node.got, clock=world.clock, held=[held[node.name]]
        )
        for node in sample
    ]
    began = time.process_time()
    for first in range(0, len(signs), TOGETHER):
        world.turn(*signs[first : first + TOGETHER])
    touch = (time.process_time() - began) / len(signs)
    looks = []
    for _ in range(20):
        world.clock += 0.5
        began = time.process_time()
        world.turn(Tick(at=world.at))
        looks.append(time.process_time() - began)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - size) / nodes
    return Carried(nodes, comes, cost, together, touch, sorted(looks)[len(looks) // 2], grown)


def rows(sizes: tuple[int, ...], ends: int = ENDS) -> list[Row]:
    """The table."""
    found = [carried(nodes, ends) for nodes in sizes]
    first, out = found[0], []
    for one in found:
        ratio = one.ends / first.ends
        figure = (
            f"an end {one.ends * 1e6:.0f} µs = {ratio:.2f} × that with {first.nodes:,} "
            f"({1 / one.ends:,.0f}/s of a core), {TOGETHER} together {one.together * 1e6:.0f} µs each "
            f"({1 / one.together:,.0f}/s); a node comes {one.comes * 1e6:.0f} µs; "
            f"a sign of life {one.touch * 1e6:.0f} µs, all {100 * one.alive:.1f} % of a core; "
            f"a look at the time {one.looks * 1e3:.2f} ms; {one.memory:.1f} kB a node"
        )
        out.append(
            Row(f"core: {one.nodes:,} nodes", figure, f"≤ {MOST:g} ×, alive ≤ 50 %", ratio <= MOST and one.alive <= 0.5)
        )
    return out


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("nodes", nargs="*", type=int, default=list(SIZES))
    args = parser.parse_args()
    met = True
    for row in rows(tuple(args.nodes)):
        print(row, flush=True)
        met = met and row.met
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
