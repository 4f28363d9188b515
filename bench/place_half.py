"""What placing costs: by what changed, or by what waits.

    python -m bench.place_half [core shapes submissions runners] [--quick]

`core` is the quick one: the core alone, without processes. The others are a real manager process whose light runners
(`bench/light.py`) run nothing. Jobs say that they took too long to be leased ahead, so each end is a pass of its own.
"""

import gc
import statistics
import time
from collections import deque
from collections.abc import Iterator, Sequence

import rota
from bench import Row, chosen, light, print_parts
from bench import home as at
from rota.core.effects import Allocate, Effect, Lease, Welcome
from rota.core.state import Settings
from rota.core.step import Core
from rota.core.stimuli import AllocationSeen, At, Ended, Greet, Report, SiteSeen, Stimulus, Submit, Tick
from rota.core.turn import Turn
from rota.manager.__main__ import COLLECTED
from rota.model.batch import BatchSpec, Template
from rota.model.needs import Amounts, Needs
from rota.model.site import SiteFacts

GIB = 1 << 30
MIB = 1 << 20
SHAPES = (1, 100, 1_000, 5_000)
RUNNERS = (10, 100, 500, 2_000)
STRETCHES, FEW_JOBS = 5, 100
"""Of each measurement with a real manager, and the jobs that one of them must have at least."""
MOST = {1_000: 1.5, 5_000: 2.0}
"""Waiting shapes → the most that a job may cost, by what it costs with one."""


# ---- the core alone -------------------------------------------------------------------------------------------------


class _Node:
    def __init__(self, name: str) -> None:
        self.name = name
        self.session = self.seq = self.got = 0


class World:
    """A core whose nodes have one slot each, all taken, and shapes that wait."""

    def __init__(self, nodes: int, shapes: int, taking_part: bool, limited: bool = False) -> None:
        self.core = Core(Settings())
        self.limits: dict[str, int | str] = {"lic": nodes} if limited else {}
        self.clock = 1000.0
        self.passes_s = 0.0
        """CPU of the passes."""
        self.nodes: dict[str, _Node] = {}
        self.held: deque[tuple[_Node, tuple[int, int, int]]] = deque()
        facts = SiteFacts(Amounts(2000, 64 * GIB), most=nodes, array_most=nodes, linger_s=1e9)
        self.turn(SiteSeen(at=self.at, site="s", facts=facts))
        each = max(2, 2_000 // shapes) if taking_part else 1
        self.most = each * shapes // 2 if taking_part else 500_000
        if not taking_part:
            self.submit(Needs(cores=2000, memory=GIB), 1_000_000, priority=1)
        for number in range(shapes):  # one fits once something has ended, if it takes part: else another job is first
            self.submit(Needs(cores=1500, memory=GIB + number * MIB), each)
        self.turn(Tick(at=self.at))  # once a minute all is worked out anew: not within what is measured
        assert len(self.held) == nodes, f"{len(self.held)} jobs run on {nodes} nodes"

    @property
    def at(self) -> At:
        """Now."""
        return At(self.clock, self.clock)

    def submit(self, needs: Needs, count: int, priority: int = 0) -> None:
        """A batch of jobs that are alike."""
        template = Template(argv=("true",), needs=needs, priority=priority, limits=tuple(self.limits))
        key = str(len(self.core.state.batches))
        submit = Submit(at=self.at, spec=BatchSpec(count, (template,)), key=key, limits=self.limits)
        self.perform(self.core.step(submit).effects)

    def turn(self, *stimuli: Stimulus) -> None:
        """One turn, as the manager does it."""
        turn = Turn(self.core)
        turn.take([(stimulus, None) for stimulus in stimuli])
        began = time.process_time()
        turn.schedule(self.at)
        self.passes_s += time.process_time() - began
        self.core.next_deadline(self.at)
        self.perform(turn.effects)

    def perform(self, effects: list[Effect]) -> None:
        """Nodes come when they are asked for, and hold what they are sent."""
        batches = self.core.state.batches
        for effect in effects:
            if isinstance(effect, Welcome):
                self.nodes[effect.runner].session = effect.session
            elif isinstance(effect, Lease):
                node = self.nodes[effect.runner]
                node.got = effect.n
                self.held.extend(
                    (node, (batch, batches[batch].index(pos), attempt)) for batch, pos, attempt, _ in effect.jobs
                )
            elif isinstance(effect, Allocate) and effect.what == "submit":
                self.nodes.update((name, _Node(name)) for name in effect.ids)
                seen = [AllocationSeen(at=self.at, id=name, verb="run", native_id=name) for name in effect.ids]
                greetings = [
                    Greet(
                        at=self.at, runner=name, allocation=name, connect=1, clock=0.0, host=name, pid=1,
                        capacity=Amounts(2000, 64 * GIB), held=[],
                    )
                    for name in effect.ids
                ]  # fmt: skip
                self.turn(*seen, *greetings)

    def end_one(self) -> Report:
        """What a node says when the job that has run longest has ended."""
        node, job = self.held.popleft()
        node.seq += 1
        row = Ended(*job, 0, None, None, self.clock - 8, self.clock, 1.0, 1, None, None)
        return Report(
            at=self.at, runner=node.name, session=node.session, seq=node.seq, got=node.got, clock=self.clock,
            ended=[row],
        )  # fmt: skip

    def cost(self, for_s: float) -> tuple[float, float]:
        """CPU seconds per ended job: all, and of the passes. A Tick comes as often as a busy manager has one."""
        began, self.passes_s = time.process_time(), 0.0
        done = 0
        while time.process_time() - began < for_s and done < self.most:
            self.clock += 0.002
            done += 1
            self.turn(self.end_one(), *([Tick(at=self.at)] if done % 500 == 0 else []))
        return (time.process_time() - began) / done, self.passes_s / done


def core(quick: bool) -> Iterator[Row]:
    """The core alone: CPU per ended job, by shapes that wait and by runners."""
    gc.set_threshold(*COLLECTED)
    for taking_part in (False, True):
        what = "take turns" if taking_part else "wait"
        yield from _core([(f"core: {shapes:,} shapes {what}", 10, shapes) for shapes in SHAPES], taking_part, quick)
    rows = [(f"core: {shapes:,} shapes share a limit", 10, shapes) for shapes in SHAPES[1:]]
    yield from _core(rows, True, quick, limited=True)
    yield from _core([(f"core: 100 shapes, {nodes:,} runners", nodes, 100) for nodes in RUNNERS], False, quick)


def _core(worlds: list[tuple[str, int, int]], taking_part: bool, quick: bool, limited: bool = False) -> Iterator[Row]:
    first = beside = 0.0
    for what, nodes, shapes in worlds:
        cost, passes = World(nodes, shapes, taking_part, limited).cost(0.4 if quick else 1.5)
        first, beside = first or cost, beside or cost - passes
        yield _by(what, cost, first, MOST.get(shapes, 1.5 if nodes > 100 else None))
        if nodes > 100:
            yield _by(f"{what}, beside the pass", cost - passes, beside, 1.5)


def _by(what: str, cost: float, first: float, most: float | None) -> Row:
    figure = f"{cost * 1e6:.0f} µs per job = {cost / first:.2f} × the first"
    return Row(what, figure, "" if most is None else f"≤ {most:g} ×", most is None or cost <= most * first)


# ---- a real manager -------------------------------------------------------------------------------------------------


def _lines(shapes: int, each: int, least: int) -> list[dict[str, object]]:
    sizes = [f"{least + number}M" for number in range(shapes)]
    return [{"command": "true", "memory": size} for size in sizes for _ in range(each)]


def per_job(pid: int, runners: light.Runners, for_s: float, most: int) -> float:
    """The manager's CPU per job, while four jobs at a time end and are replaced; the least of some stretches of that.

    A machine that others use too, and takes away a processor for a moment, counts that as CPU of whoever had it.
    """
    runners.serve(0.3)
    runners.flowing = True
    runners.end(4)
    costs = []
    for _ in range(STRETCHES):
        cpu, ended = at.cpu_s(pid), runners.ended
        runners.serve(for_s / STRETCHES, ended + most // STRETCHES)
        if runners.ended - ended >= FEW_JOBS:
            costs.append((at.cpu_s(pid) - cpu) / (runners.ended - ended))
    return min(costs)


def shapes(quick: bool) -> Iterator[Row]:
    """Other shapes: CPU of the manager per job while they wait, and while they take turns."""
    for_s = 2.5 if quick else 6.0
    for taking_part in (False, True):
        first = 0.0
        for count in SHAPES:
            node = Amounts(5000, 1024 * GIB)
            with light.manager(1, node) as (home, pid), rota.Client(home=home, start=False) as client:
                if taking_part:
                    total = max(4_000, 2 * count)  # at 1,000 MB each only the cores are scarce
                    client.submit(lines=_lines(count, total // count, 1000))
                else:  # the first job has all memory but 8 GiB, and never ends
                    client.submit(["true"], memory="1016G", priority=2)
                    total = 10_000_000
                    client.submit(["true"], array="1-1000000", memory="1G", priority=1)
                    client.submit(lines=_lines(count, 1, 16 * 1024))
                runners = light.Runners(home, 1, node, staying=() if taking_part else (1,))
                cost = per_job(pid, runners, for_s, total // 2)
                runners.close()
            first = first or cost
            what = f"{count:,} shapes {'take turns' if taking_part else 'wait'}, manager"
            yield _by(what, cost, first, MOST.get(count))


def submissions(quick: bool) -> Iterator[Row]:
    """One job of a new shape, while 5,000 shapes wait: time and the manager's CPU."""
    node, times, size = Amounts(1000, 1024 * GIB), 30 if quick else 100, 100 * 1024
    with light.manager(1, node) as (home, pid), rota.Client(home=home, start=False) as client:
        client.submit(["true"], memory="1016G", priority=2)
        runners = light.Runners(home, 1, node, staying=(1,))
        runners.serve(0.3)
        for count in (1, SHAPES[-1]):
            for mode in ("serving", "paused"):
                if mode == "paused":
                    client.pause()
                elif count > 1:
                    client.resume()
                    client.submit(lines=_lines(count, 1, 16 * 1024))
                took = []
                cpu = at.cpu_s(pid)
                for _ in range(times):
                    size += 1
                    begin = time.perf_counter()
                    client.submit(["true"], memory=f"{size}M")
                    took.append(time.perf_counter() - begin)
                    runners.serve(0.001)
                each = (at.cpu_s(pid) - cpu) / times * 1000
                figure = f"{statistics.median(took) * 1000:.2f} ms, {each:.2f} ms of CPU"
                yield Row(f"a new shape beside {count:,}, {mode}", figure, "≤ 1 ms of CPU", each <= 1.0)
        runners.close()


def runners(quick: bool) -> Iterator[Row]:
    """1,000 runners in session: CPU of the manager when nothing happens, and per job."""
    first = 0.0
    node = Amounts(1000, 4 * GIB)
    for count in (10, 1_000):
        with light.manager(count, node) as (home, pid), rota.Client(home=home, start=False) as client:
            client.submit(["true"], array=f"1-{count}")
            time.sleep(0.5)
            fleet = light.Runners(home, count, node)
            fleet.serve(2.0 if count > 10 else 0.3)
            fleet.end(count)
            fleet.serve(2.0 if count > 10 else 0.3)
            if count > 10:
                cpu, for_s = at.cpu_s(pid), light.TOUCH_S
                fleet.serve(for_s)
                share = (at.cpu_s(pid) - cpu) / for_s * 100
                yield Row(f"{count:,} runners idle", f"{share:.1f} % of a core", "≤ 3 %", share <= 3)
            client.submit(["true"], array="1-1000000")
            fleet.serve(2.0 if count > 10 else 0.3)
            cost = per_job(pid, fleet, 2.0 if quick else 6.0, 10_000_000)
            fleet.close()
        first = first or cost
        yield _by(f"{count:,} runners work, manager", cost, first, 1.5 if count > 10 else None)


PARTS = {"core": core, "shapes": shapes, "submissions": submissions, "runners": runners}


def placing(quick: bool, only: Sequence[str] = ()) -> Iterator[Row]:
    """The rows of some parts, as they come; of all if none is named."""
    return chosen(PARTS, quick, only)


if __name__ == "__main__":
    raise SystemExit(print_parts(PARTS, __doc__))
