"""A week of a grid: sites with data, links and outages, tasks of five shares, and the real queue level between them.

Decisions are those of `QueuePass` with a policy, over one place per site, every few minutes of simulated time; jobs are
counted one by one, and those of a task that start at a site at one moment end together. Each site starts what waits
there by the tree of shares, as the reference dispatches. Nothing here is real but the decisions.
"""

import heapq
import math
import random
from collections import deque
from collections.abc import Mapping
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from rota.model.needs import Amounts, Needs
from rota.model.shape import Shape
from rota.model.site import SiteFacts
from rota.schedule import scorers
from rota.schedule.broker.shares import Generation, Share, may_generate, order_of, percents, share_tree
from rota.schedule.facts import Facts, Stats
from rota.schedule.ledger import Ledger
from rota.schedule.policy import SITES, Policy
from rota.schedule.queue_memo import QueueMemo
from rota.schedule.queue_pass import QueuePass
from rota.schedule.queues import queue_places
from rota.schedule.scorers import Scorer
from rota.schedule.view import QUEUE, Place, View, Want

__all__ = ["LEAST_LOADED", "RANDOM", "TREE", "Grid", "Outcome", "run"]

HOUR_S, DAY_S = 3600.0, 86_400.0
GB = 1e9
TREE = share_tree({
    "production": {"value": 75, "simulation": 60, "reconstruction": 25, "merging": 15},
    "analysis": {"value": 25, "users": 70, "groups": 30},
})  # fmt: skip
THROTTLE = {"THROTTLE_THRESHOLD": 1.0}
AHEAD = 0.25
"""Jobs that wait at sites, for each that runs: what else there is waits at the broker, which knows the shares."""
OFFERED = 6
"""Tasks of each share that are looked at in a cycle."""
CLASSES = 3
"""Jobs of a task that start together end at so many different times."""


class Grid(Struct, frozen=True):
    """How large a simulated grid is."""

    sites: int = 200
    slots: int = 600_000
    days: float = 7.0
    mean_h: float = 17.0
    """Mean time of a job."""
    load: float = 1.1
    """Work that arrives, by what could be done."""
    backlog_days: float = 0.5
    """Work that is there at the beginning."""
    cycle_s: float = 600.0
    task_jobs: tuple[int, int] = (500, 30_000)
    outages: float = 1.0
    """Of each site and week."""
    seed: int = 1


class Outcome(Struct):
    """What became of it."""

    started: int = 0
    finished: int = 0
    lost: int = 0
    """Attempts that an outage ended."""
    most_at_once: int = 0
    used: float = 0.0
    """Part of the slots of sites that were up that was in use while work waited."""
    wait_mean_s: float = 0.0
    wait_median_s: float = 0.0
    """From when a task is there to the start of each of its jobs."""
    moved_bytes: float = 0.0
    shares: list[dict[str, float]] = field(default_factory=list)
    """Of each day, the percent of the slots in use that each share had."""
    worst: float = 0.0
    """The most points by which a share was beside its target over a day, but for the first."""
    decisions: int = 0


class _Task(Struct):
    number: int
    leaf: str
    jobs: int
    time_s: float
    size: float
    """Bytes that each job reads."""
    homes: frozenset[str]
    came: float
    shape: Shape
    left: int = 0


class _Batch(Struct):
    """Jobs of a task that wait at a site."""

    task: _Task
    count: int
    ready: float
    since: float


class _Site(Struct):
    name: str
    slots: int
    bandwidth: float
    free: int
    running: int = 0
    waiting: int = 0
    up: bool = True
    epoch: int = 0
    """Counts outages: what started before one never ends."""
    link_free: float = 0.0
    wait_s: float | None = None
    queues: dict[str, deque[_Batch]] = field(default_factory=dict)
    live: dict[int, tuple[_Task, int]] = field(default_factory=dict)
    """What runs, by number."""
    pending: list[float] = field(default_factory=list)
    """Times at which files arrive."""


def _random(shape: Shape, place: Place, view: View) -> float:
    """Anywhere: as good as a number of shape, place and hour says."""
    return random.Random(f"{shape.inputs} {place.location.site} {view.wall // HOUR_S}").random() + 1e-6


def _least_loaded(shape: Shape, place: Place, view: View) -> float:
    """Where least waits and runs, for the slots that there are."""
    stats = view.facts["stats"].get((place.location.site, ""))
    busy = 0 if stats is None else stats.waiting + stats.running
    slots = 1 if place.site is None else place.site.most
    return slots / (busy + 1.0)


_PLAIN: Mapping[str, Scorer] = {
    "week-random": Scorer(_random, (QUEUE,)),
    "week-least-loaded": Scorer(_least_loaded, (QUEUE,), ("stats",)),
}
RANDOM = replace(SITES, scorers={"week-random": 1.0})
LEAST_LOADED = replace(SITES, scorers={"week-least-loaded": 1.0})


class _Week:
    """The state of one simulated week."""

    def __init__(self, grid: Grid, policy: Policy, tree: tuple[Share, ...]) -> None:
        self.grid = grid
        self.tree = tree
        self.percents = percents(tree)
        self.policy = replace(policy, order="shares")
        self.chance = random.Random(grid.seed)
        self.now = 0.0
        self.end = grid.days * DAY_S
        self.events: list[tuple[float, int, str, Any]] = []
        self.count = 0
        self.tasks: dict[str, deque[_Task]] = {leaf: deque() for leaf in self.percents}
        self.by_number: dict[int, _Task] = {}
        self.facts = Facts()
        self.memo = QueueMemo()
        self.out = Outcome()
        self.executing = dict.fromkeys(self.percents, 0)
        self.queued = dict.fromkeys(self.percents, 0)
        self.area = dict.fromkeys(self.percents, 0.0)
        self.last = self.busy = self.able = 0.0
        self.waits: dict[int, int] = {}
        self.wait_sum = 0.0
        self.places: dict[str, tuple[Place, ...]] = {}
        self.sites = self._sites()
        self.up = sum(site.slots for site in self.sites.values())
        self.running = 0
        self._outages()
        self._arrivals()

    # ---- the world --------------------------------------------------------------------------------------------------

    def _sites(self) -> dict[str, _Site]:
        weights = [self.chance.paretovariate(1.2) for _ in range(self.grid.sites)]
        whole = sum(min(weight, 30.0) for weight in weights)
        classes: dict[tuple[object, ...], int] = {}
        out = {}
        for number, weight in enumerate(weights):
            slots = max(4, round(self.grid.slots * min(weight, 30.0) / whole))
            name = f"s{number:03}"
            site = out[name] = _Site(name, slots, slots * self.chance.uniform(0.3, 3.0) * 1e5, slots)
            site.queues = {leaf: deque() for leaf in self.percents}
            facts = SiteFacts(Amounts(1000, 1 << 34), most=slots, mode="direct", whole=False, array_most=10**6)
            self.places[name] = queue_places(name, facts, classes)
            self.facts.tell("bandwidth", ("*", name), site.bandwidth)
        return out

    def _outages(self) -> None:
        for site in self.sites.values():
            for _ in range(int(self.grid.outages * self.grid.days / 7 + self.chance.random())):
                at = self.chance.uniform(0.1, 1.0) * self.end
                self._at(at, "down", site)
                self._at(at + self.chance.uniform(1, 8) * HOUR_S, "up", site)

    def _arrivals(self) -> None:
        """Tasks of every share, somewhat more than can be done."""
        backlog_s = self.grid.backlog_days * DAY_S
        capacity = self.grid.slots * self.end * self.grid.load
        for leaf, percent in self.percents.items():
            work, whole = 0.0, capacity * percent / 100
            while work < whole:
                low, high = self.grid.task_jobs
                jobs = int(math.exp(self.chance.uniform(math.log(low), math.log(high))))
                time_s = self.chance.lognormvariate(-0.18, 0.6) * self.grid.mean_h * HOUR_S
                came = max(0.0, work / whole * (self.end + backlog_s) - backlog_s)
                self._at(came, "task_came", self._task(leaf, jobs, time_s))
                work += jobs * time_s

    def _task(self, leaf: str, jobs: int, time_s: float) -> _Task:
        number = len(self.by_number)
        homes = frozenset(self.chance.sample(sorted(self.sites), self.chance.randint(2, max(2, self.grid.sites // 15))))
        size = math.exp(self.chance.uniform(math.log(0.05), math.log(5.0))) * GB
        shape = Shape(Needs(time_s=int(time_s)), policy="week", share=leaf, inputs=(f"d{number}",))
        task = self.by_number[number] = _Task(number, leaf, jobs, time_s, size, homes, 0.0, shape, jobs)
        return task

    def _at(self, at: float, what: str, thing: Any) -> None:
        self.count += 1
        heapq.heappush(self.events, (at, self.count, what, thing))

    # ---- the loop ---------------------------------------------------------------------------------------------------

    def run(self) -> Outcome:
        """To the end of the week."""
        step, day = 0, 0
        while self.now < self.end:
            until = step * self.grid.cycle_s
            while self.events and self.events[0][0] <= until:
                at, _, what, thing = heapq.heappop(self.events)
                self._pass(at)
                getattr(self, f"_{what}")(thing)
            self._pass(until)
            if until >= (day + 1) * DAY_S:
                self._day()
                day += 1
            self._broker()
            step += 1
        return self._summary()

    def _pass(self, at: float) -> None:
        """Time passes."""
        span = at - self.last
        if span > 0:
            if any(self.queued.values()) or any(self.tasks.values()):
                self.busy += self.running * span
                self.able += self.up * span
            for leaf, count in self.executing.items():
                self.area[leaf] += count * span
        self.last = self.now = at

    def _day(self) -> None:
        whole = sum(self.area.values()) or 1.0
        self.out.shares.append({leaf: 100 * area / whole for leaf, area in self.area.items()})
        self.area = dict.fromkeys(self.percents, 0.0)

    def _task_came(self, task: _Task) -> None:
        task.came = self.now
        self.facts.tell("replicas", task.shape.inputs[0], tuple(sorted((name, int(task.size)) for name in task.homes)))
        self.tasks[task.leaf].append(task)

    # ---- the broker -------------------------------------------------------------------------------------------------

    def _broker(self) -> None:
        """One cycle: the first tasks of each share, as many of their jobs as the share should have of the room."""
        stats = {name: self._stats(site) for name, site in self.sites.items()}
        for name, each in stats.items():
            self.facts.tell("stats", (name, ""), each)
            site = self.sites[name]
            file_s = GB / site.bandwidth + max(0.0, site.link_free - self.now)  # what is on its way comes first
            self.facts.tell("bandwidth", ("*", name), float(f"{GB / file_s:.2g}"))
        assigned = {leaf: self.executing[leaf] + self.queued[leaf] for leaf in self.executing}
        for rank, leaf in enumerate(order_of(self.tree, assigned)):
            self.facts.tell("shares", ("week", leaf), float(rank))
        room = sum(max(20, 2 * each.running) - each.waiting for name, each in stats.items() if self.sites[name].up)
        short = self.up - self.running + int(AHEAD * self.running) - sum(self.queued.values())
        wants = []
        for leaf, most in self._parts(assigned, max(0, min(room, short))).items():
            for task in list(self.tasks[leaf])[:OFFERED]:
                ready = min(task.left, most)
                most -= ready
                if ready > 0:
                    wants.append(Want(task.number, task.shape, ready, 0, task.number, since=task.came))
        rooms = {name: 10**9 if site.up else 0 for name, site in self.sites.items()}
        view = View(self.now, self.now, "serving", (), Ledger().view, {}, facts=self.facts, rooms=rooms)
        level = QueuePass(self.memo, view, self.places, {}, {"week": self.policy}, self.chance.random)
        level.update_all(wants)
        changed = list(self.facts.changed)
        self.facts.changed.clear()
        level.wake((), changed)
        self.memo.ranked.clear()
        for asked in level.run():
            self._assign(self.by_number[asked.shape_id], self.sites[asked.site], asked.count)
        self.out.decisions += len(wants)

    def _parts(self, assigned: Mapping[str, int], room: int) -> dict[str, int]:
        """Share → how many of its jobs are made now: what brings it to its target, and of what is left its part."""
        open_ = [
            leaf
            for leaf, tasks in self.tasks.items()
            if tasks and not may_generate(Generation(self.executing[leaf], self.queued[leaf]), THROTTLE, leaf).stop
        ]
        whole = sum(assigned.values()) + room
        parts = {leaf: max(0.0, whole * self.percents[leaf] / 100 - assigned[leaf]) for leaf in open_}
        asked, among = sum(parts.values()), sum(self.percents[leaf] for leaf in open_)
        if asked > room:
            return {leaf: math.ceil(part * room / asked) for leaf, part in parts.items()}
        return {leaf: math.ceil(part + (room - asked) * self.percents[leaf] / among) for leaf, part in parts.items()}

    def _stats(self, site: _Site) -> Stats:
        return Stats(site.wait_s, site.waiting, self.now, site.running)

    def _assign(self, task: _Task, site: _Site, count: int) -> None:
        task.left -= count
        if not task.left:
            self.tasks[task.leaf].remove(task)
        ready = self.now
        if site.name not in task.homes:
            moved = count * task.size
            self.out.moved_bytes += moved
            site.link_free = max(site.link_free, self.now) + moved / site.bandwidth
            ready = site.link_free
        site.waiting += count
        self.queued[task.leaf] += count
        site.queues[task.leaf].append(_Batch(task, count, ready, self.now))
        if ready > self.now:
            self._at(ready, "start", site)
        else:
            self._start(site)

    # ---- at a site --------------------------------------------------------------------------------------------------

    def _start(self, site: _Site) -> None:
        """Start what waits at a site, by shares, as long as there are slots."""
        while site.free > 0 and site.up and site.waiting:
            leaves = [leaf for leaf, line in site.queues.items() if line]
            if not leaves:
                return
            if len(leaves) > 1:
                order = order_of(self.tree, self.executing)
                leaves.sort(key=order.index)
            batch = next((each for leaf in leaves for each in site.queues[leaf] if each.ready <= self.now), None)
            if batch is None:
                return
            task = batch.task
            share = max(1, site.free // 4) if len(leaves) > 1 else site.free
            count = min(share, batch.count)
            batch.count -= count
            if not batch.count:
                site.queues[task.leaf].remove(batch)
            self._run(site, batch, count)

    def _run(self, site: _Site, batch: _Batch, count: int) -> None:
        task, out = batch.task, self.out
        site.free -= count
        site.running += count
        site.waiting -= count
        self.queued[task.leaf] -= count
        self.executing[task.leaf] += count
        self.running += count
        out.started += count
        out.most_at_once = max(out.most_at_once, self.running)
        waited = self.now - batch.since
        site.wait_s = waited if site.wait_s is None else site.wait_s + 0.05 * (waited - site.wait_s)
        waited = self.now - task.came
        self.wait_sum += waited * count
        self.waits[int(waited // 60)] = self.waits.get(int(waited // 60), 0) + count
        parts = min(CLASSES, count)
        for part in range(parts):
            some = count // parts + (part < count % parts)
            number = self.count
            site.live[number] = (task, some)
            time_s = task.time_s * self.chance.uniform(0.6, 1.4)
            self._at(self.now + time_s, "ended", (site, number, site.epoch))

    def _ended(self, what: tuple[_Site, int, int]) -> None:
        site, number, epoch = what
        if epoch != site.epoch:
            return
        task, count = site.live.pop(number)
        self._freed(site, task, count)
        self.out.finished += count
        self._start(site)

    def _freed(self, site: _Site, task: _Task, count: int) -> None:
        site.free += count
        site.running -= count
        self.running -= count
        self.executing[task.leaf] -= count

    def _down(self, site: _Site) -> None:
        """An outage: what runs there is lost, what waits goes back; all of it is brokered again."""
        if not site.up:
            return
        site.up = False
        site.epoch += 1
        self.up -= site.slots
        for task, count in site.live.values():
            self._freed(site, task, count)
            self.out.lost += count
            self._back(task, count)
        site.live.clear()
        for leaf, line in site.queues.items():
            for batch in line:
                self._back(batch.task, batch.count)
                self.queued[leaf] -= batch.count
                site.waiting -= batch.count
            line.clear()

    def _back(self, task: _Task, count: int) -> None:
        if not task.left:
            self.tasks[task.leaf].appendleft(task)
        task.left += count

    def _up(self, site: _Site) -> None:
        if not site.up:
            site.up = True
            site.link_free = self.now
            self.up += site.slots

    # ---- what it was ------------------------------------------------------------------------------------------------

    def _summary(self) -> Outcome:
        out = self.out
        out.used = self.busy / self.able if self.able else 1.0
        out.wait_mean_s = self.wait_sum / max(1, out.started)
        passed = 0
        for minute, count in sorted(self.waits.items()):
            passed += count
            if passed * 2 >= out.started:
                out.wait_median_s = 60.0 * minute
                break
        beside = [abs(day[leaf] - self.percents[leaf]) for day in out.shares[1:] or out.shares for leaf in day]
        out.worst = max(beside, default=0.0)
        return out


def run(grid: Grid, policy: Policy = SITES, tree: tuple[Share, ...] = TREE) -> Outcome:
    """Simulate a grid under a policy."""
    scorers.BUILT_IN.update(_PLAIN)
    try:
        return _Week(grid, policy, tree).run()
    finally:
        for name in _PLAIN:
            del scorers.BUILT_IN[name]
