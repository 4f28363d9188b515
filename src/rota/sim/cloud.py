"""Worlds with a cloud: the real driver of clouds over a fake one, in virtual time, with faults of both."""

import asyncio
import gc
import json
import selectors
from collections.abc import Callable, Coroutine
from random import Random
from typing import TYPE_CHECKING, Any

from rota.core.stimuli import AllocationSeen, At, Ended, LastWords, SiteSeen, Written
from rota.drivers.api import Ask, Known, Observation
from rota.drivers.cloud import CloudDriver, Reached
from rota.drivers.cloud_records import CloudSettings, Kept, MemoryRecords
from rota.drivers.farm import Hardware, HostError, Package
from rota.drivers.gate import Times
from rota.drivers.provider import GONE, RESTARTING, RUNNING, STOPPED, Server, Size
from rota.drivers.transport import UnreachableError
from rota.model.allocation import Allocation
from rota.model.allocation import Outcome as AllocationOutcome
from rota.model.errors import RefusedError, RotaError
from rota.model.needs import Amounts
from rota.model.site import QueueFacts, SiteFacts
from rota.sim.cluster import Cluster, SimAllocation, Site
from rota.sim.node import SimRunner
from rota.sim.world import FAULTS_S, Outcome, World
from rota.testing.fake_cloud import FakeCloud

if TYPE_CHECKING:
    from rota.core.state import State

__all__ = ["CloudWorld", "run_cloud_seed"]

GIB = 1 << 30
SIZES = (
    Size("f1", "c2", Amounts(2000, 2 * GIB, GIB)),
    Size("f2", "c4", Amounts(4000, 4 * GIB, GIB)),
    Size("f3", "c8", Amounts(8000, 8 * GIB, GIB)),
)
PRICES = {"c2": 1.0, "c4": 1.8, "c8": 3.4}
DAY_S = 400.0
"""A day of these worlds, over which money is counted."""
POLL_S = 1.0
LEARN_S = 7.0
_NOW = At(0.0, 0.0)


class _Never(selectors.DefaultSelector):
    def select(self, timeout: float | None = None) -> list[Any]:
        return []


class WorldLoop(asyncio.SelectorEventLoop):
    """An event loop that lives in the time of a world, and runs as one of the things that happen there."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._planned = -1.0
        super().__init__(_Never())

    def time(self) -> float:
        """The world's."""
        return self._world.now

    def run(self) -> None:
        """Run what is ready, and come back when something is due."""
        asyncio.events._set_running_loop(self)
        try:
            while self._ready or (self._scheduled and self._scheduled[0]._when <= self._world.now):  # type: ignore[attr-defined]
                self._run_once()  # type: ignore[attr-defined]
        finally:
            asyncio.events._set_running_loop(None)
        scheduled = self._scheduled  # type: ignore[attr-defined]
        if scheduled:
            due = max(scheduled[0]._when, self._world.now + 0.0005)
            if not self._world.now < self._planned <= due:
                self._planned = due
                self._world.when(due, self.run)

    def start(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Begin something."""
        task = self.create_task(work)
        self._world.after(0.0, self.run)
        return task


class CloudAllocation(SimAllocation):
    """A server with its runner, as the simulated runner knows it."""

    def runner_left(self, runner: SimRunner) -> None:
        """The server stays."""

    def runner_swept(self, runner: SimRunner, why: str) -> None:
        """The server stays."""


class SimHost:
    """A server as a host that is reached by ssh."""

    def __init__(self, cluster: "CloudCluster", kept: Kept) -> None:
        self._cluster = cluster
        self._kept = kept
        self.directory: str | None = "/farm"
        self.hardware: Hardware | None = None

    async def _reach(self) -> None:
        cluster, world = self._cluster, self._cluster.world
        await asyncio.sleep(world.rng.choice((0.01, 0.05, 0.4)))
        server = cluster.cloud.all.get(self._kept.server)
        if server is None or server.state not in (RUNNING, "ending") or cluster.is_cut(self._kept.server):
            await asyncio.sleep(1.0)
            raise UnreachableError(f"{self._kept.server} cannot be reached: No route to host", ran=False)

    async def prepare(self, package: Package) -> None:
        """Reach it."""
        await self._reach()

    async def ask(self, package: Package, what: str, timeout_s: float, **more: Any) -> dict[str, Any]:
        """Answer as an outpost."""
        cluster = self._cluster
        await self._reach()
        server = self._kept.server
        runner, boot = cluster.running.get(server), cluster.boots.get(server, "1")
        if what == "probe":
            return {"cores": 1, "memory": 1, "disk": 1, "gpus": 0, "host": server, "boot": boot}
        if what == "start":
            if runner is None or runner.state == "dead":
                runner = cluster.start_runner(server, self._kept)
            answer: dict[str, Any] = {"pid": cluster.pids[runner.id], "start": 1, "boot": boot}
        elif what == "end":
            if runner is not None and runner.state != "dead":
                runner.kill("told to end")
            answer = {}
        else:
            ((tag, known),) = more["tags"].items()
            answer = {tag: self._look(runner, boot, known)}
        await asyncio.sleep(0.01)
        if cluster.answers.random() < cluster.lost_answers and cluster.world.faults.active:
            raise UnreachableError(f"the connection to {server} was lost", ran=True)
        return answer

    def _look(self, runner: SimRunner | None, boot: str, known: dict[str, Any]) -> dict[str, Any]:
        mine = runner is not None and self._cluster.pids[runner.id] == known["pid"]
        if known["boot"] != boot:
            return {"state": "rebooted", "unsent": {}, "there": True}
        if runner is not None and mine and runner.state != "dead":
            return {"state": "run"}
        unsent = {}
        if runner is not None and mine:
            runner.swept_away("its runner was gone")
            if runner.unsent is not None:
                unsent = {f"/out/{runner.id}": json.dumps(runner.unsent)}
        return {"state": "over", "unsent": unsent}

    async def put(self, path: str, data: bytes, mode: int) -> None:
        """Nothing is put there."""

    async def run(self, script: str, timeout_s: float) -> tuple[int | None, str]:
        """Nothing is run there."""
        return 0, ""


class CloudSim(Site):
    """A cloud as the only site of a world."""

    def __init__(self, cluster: "CloudCluster") -> None:
        super().__init__("cloud", SIZES[-1].node, 50)
        self._cluster = cluster

    def seen(self, linger_s: float) -> SiteSeen:
        """What the cloud offers; a driver was made for this life of the manager."""
        self._cluster.begin_life(linger_s)
        return SiteSeen(at=_NOW, site=self.name, facts=self._cluster.facts())


class CloudCluster(Cluster):
    """A fake cloud that outlives managers, and the driver of this life of the manager."""

    def __init__(self, world: World) -> None:
        super().__init__(world, [])
        self.sites = {"cloud": CloudSim(self)}
        self.whims = False
        rng = self.answers = Random(f"cloud {world.seed}")
        self.lost_answers = rng.choice((0.0, 0.0, 0.05, 0.2))
        self.chances = {
            name: rng.choice((0.0, 0.0, 0.05, 0.3))
            for name in ("away", "lost", "undone", "late", "quota", "error", "stuck", "reboot", "stop", "delete", "cut")
        }
        self.outages: list[tuple[float, float]] = []
        if rng.random() < 0.4:
            begin = rng.uniform(0, FAULTS_S)
            self.outages.append((begin, begin + rng.choice((5.0, 20.0, 60.0))))
        self.cloud = FakeCloud(
            lambda: world.now,
            sizes=SIZES,
            servers=rng.choice((None, 3, 6)),
            cores=rng.choice((None, 16_000, 40_000)),
            memory=None,
            build_s=rng.choice((0.0, 1.0, 8.0)),
            destroy_s=rng.choice((0.0, 1.0, 8.0)),
            late_s=rng.choice((0.5, 3.0, 7.0, 30.0)),
        )
        self.cloud.fault = self._fault
        self.cloud.changed = self._changed
        self.money = rng.choice((None, None, 2.5, 8.0))
        self.disk: dict[str, Kept] = {}
        self.boots: dict[str, str] = {}
        self.pids: dict[str, int] = {}
        self.running: dict[str, SimRunner] = {}
        """Server → its last runner."""
        self.cuts: dict[str, float] = {}
        self.package = Package("runner", "0", "")
        self.loop = WorldLoop(world)
        self.driver = self._make_driver()
        self.life = 0
        self.linger_s = 5.0
        self._polling = False
        self._requests: set[asyncio.Task[None]] = set()
        self._told: SiteFacts | None = None
        for kind in ("reboot", "stop", "delete", "cut"):
            for _ in range(rng.choice((1, 3)) if self.chances[kind] else 0):
                world.when(rng.uniform(3.0, FAULTS_S), self._strike, kind)

    # ---- the driver -------------------------------------------------------------------------------------------------

    def _make_driver(self) -> CloudDriver:
        world = self.world
        limits = Random(f"limits of the cloud {world.seed}")
        settings = CloudSettings(
            "owner", "rota", "i1", spawns_most=limits.choice((1, 3, 10)), spawn_delay_s=limits.choice((0.0, 0.5)),
            boot_s=40.0, settle_s=10.0, no_hardware_s=5.0, poll_s=5.0, poll_busy_s=1.0, again_s=1.0,
            servers_most=limits.choice((None, 2, 5)), cores_most=limits.choice((None, 10_000)),
            money_most=self.money, paid_s=240, day_s=DAY_S, last_s=5.0,
        )  # fmt: skip
        times = Times(
            lambda: world.clock.at(world.now).mono, lambda: world.clock.at(world.now).wall, asyncio.sleep,
            self.answers.random, self._aside,
        )  # fmt: skip
        asyncio.events._set_running_loop(self.loop)
        try:
            driver = CloudDriver(self.cloud, self, MemoryRecords(self.disk), settings, self.facts, times)
        finally:
            asyncio.events._set_running_loop(None)
        driver.offer.sizes = {size.name: size for size in SIZES}
        driver.offer.prices = PRICES
        driver.wanted = self._tags
        return driver

    def _tags(self) -> set[str]:
        live = self.world.shell.core.state.allocations.values()
        return {row.tag for row in live if row.state.endswith("ING")}

    async def _aside(self, work: Callable[[], Any]) -> Any:
        """A call of the cloud takes some time until it arrives, and until its answer does."""
        await asyncio.sleep(self.answers.choice((0.005, 0.1, 1.0)) * self.answers.random())
        try:
            found = work()
        finally:
            await asyncio.sleep(self.answers.choice((0.005, 0.1, 1.0)) * self.answers.random())
        return found

    def _fault(self, call: str) -> str | None:
        world, rng = self.world, self.answers
        if any(begin <= world.now < end for begin, end in self.outages):
            world.faults.hit("cloud-down")
            return "away"
        if not world.faults.active:
            return None
        kinds = {"create": ("away", "lost", "undone", "late", "quota", "error"), "destroy": ("away", "stuck")}
        for kind in kinds.get(call, ("away",)):
            if rng.random() < self.chances[kind]:
                world.faults.hit(f"cloud-{kind}")
                return kind
        return None

    def begin_life(self, linger_s: float) -> None:
        """A manager was started: what the driver before it was at is forgotten."""
        self.linger_s = linger_s
        if self.life == self.world.shell.life:
            return
        self.life = self.world.shell.life
        self.driver.retire()
        for task in self._requests:
            task.cancel()
        self._requests.clear()
        self._polling = False
        self._told = None
        self.loop.run()
        self.driver = self._make_driver()
        self._learn(self.life)

    def close(self) -> None:
        """The world ends."""
        self.driver.retire()
        for task in asyncio.all_tasks(self.loop):
            task.cancel()
        self.loop.run()
        self.loop.close()

    def facts(self) -> SiteFacts:
        """What the cloud offers."""
        offer, settings = self.driver.offer, self.driver.settings
        closed = {name: bool(offer.why_closed(name)) for name in offer.sizes}
        queues = tuple(
            QueueFacts(
                size.name, size.node, up=not closed[size.name], auto=not closed[size.name],
                nodes_most=1, why="closed" if closed[size.name] else "", price=PRICES[size.name],
            )
            for size in offer.sizes.values()
        )  # fmt: skip
        return SiteFacts(
            SIZES[-1].node, (), settings.servers_most or 50, self.linger_s,
            allocation_s=60 if self.money is not None else None, directory="/sim", queues=queues, cloud=True,
            bounds=offer.bounds(), paid_s=settings.paid_s if self.money is not None else 0, dead_after_s=20.0,
        )  # fmt: skip

    # ---- hosts ------------------------------------------------------------------------------------------------------

    def reach(self, kept: Kept) -> SimHost:
        """The host of a server."""
        return SimHost(self, kept)

    def command(self, kept: Kept, host: Reached, until_s: float | None) -> tuple[str, dict[str, str]]:
        """Nothing has to be said."""
        return "", {}

    async def bring_home(self, kept: Kept, host: Reached) -> None:
        """Nothing was written."""

    def left(self, kept: Kept) -> None:
        """Nothing is open."""

    def is_cut(self, server: str) -> bool:
        """Whether ssh does not get through."""
        return self.cuts.get(server, 0.0) > self.world.now

    def start_runner(self, server: str, kept: Kept) -> SimRunner:
        """Start the runner of a server."""
        world = self.world
        earlier = self.running.get(server)
        if earlier is not None:
            earlier.swept_away("another is started")
        others = [r for r in self.running.values() if r.allocation.tag == kept.tag and not r.gone]
        if others:
            world.witness.problems.append(f"two servers run for the tag {kept.tag}")
        number = len(world.runners) + 1
        at = CloudAllocation(self, kept.allocation, "cloud", kept.tag, server, kept.node)
        runner = SimRunner(world, f"{kept.tag}.0.{number:x}", at, kept.node)
        self.pids[runner.id] = number
        self.running[server] = runner
        world.runners.append(runner)
        return runner

    def _changed(self, before: Server, after: Server) -> None:
        if after.state in (GONE, STOPPED, RESTARTING) and (runner := self.running.get(after.id)) is not None:
            runner.swept_away(f"its server is {after.state}")

    def _strike(self, kind: str) -> None:
        """Something happens to a server."""
        world, rng = self.world, self.answers
        running = [server for server in self.cloud.there() if server.state == RUNNING]
        if not running or not world.faults.active:
            return
        server = rng.choice(running)
        world.faults.hit(f"cloud-{kind}")
        world.say("cloud", kind, server.id)
        if kind == "cut":
            self.cuts[server.id] = world.now + rng.choice((3.0, 15.0, 60.0))
            if (runner := self.running.get(server.id)) is not None:
                world.network.block(runner.id, ("up", "down"), self.cuts[server.id], rng.random() < 0.5)
        elif kind == "delete":
            self.cloud.become(server.id, GONE, "DELETED")
        elif kind == "stop":
            self.cloud.become(server.id, STOPPED, "SHUTOFF")
            world.after(rng.choice((2.0, 30.0)), self._back, server.id)
        else:
            self.cloud.become(server.id, RESTARTING, "REBOOT")
            world.after(rng.choice((0.5, 5.0)), self._back, server.id)

    def _back(self, id: str) -> None:
        if self.cloud.all[id].state in (STOPPED, RESTARTING):
            self.boots[id] = str(int(self.boots.get(id, "1")) + 1)
            self.cloud.become(id, RUNNING, "ACTIVE")

    # ---- requests ---------------------------------------------------------------------------------------------------

    def poll(self) -> None:
        """Look at all that lives, as the manager does."""
        self.cloud.advance()
        if self.world.shell.up and not self._polling and self.life == self.world.shell.life:
            self._polling = True
            self._start(self._poll(self._live()))
        self.world.after(POLL_S, self.poll)

    def _live(self) -> list[Known]:
        state = self.world.shell.core.state
        return [
            _known(each)
            for each in state.allocations.values()
            if each.state in ("PENDING", "RUNNING", "KILLING") and each.id not in state.soft.ending
        ]

    async def _poll(self, known: list[Known]) -> None:
        try:
            await self._look_at(known)
        finally:
            self._polling = False

    async def _look_at(self, known: list[Known]) -> None:
        asked = self.world.clock.at(self.world.now).mono
        for seen in await self.driver.poll(known):
            self._see(seen, asked)

    def _learn(self, life: int) -> None:
        if life == self.world.shell.life and self.world.shell.up:
            self._start(self._learn_quota())
            self.world.after(LEARN_S, self._learn, life)

    async def _learn_quota(self) -> None:
        try:
            await self.driver.learn_quota()
        except RotaError:
            pass
        self._tell_facts()

    def _tell_facts(self) -> None:
        facts = self.facts()
        if facts != self._told:
            self._told = facts
            self.world.shell.post(SiteSeen(at=_NOW, site="cloud", facts=facts))

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = self.loop.start(work)
        self._requests.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: "asyncio.Task[None]") -> None:
        self._requests.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.world.witness.problems.append(f"a request failed: {error!r}")

    def perform(self, what: str, id: str, site: str, tag: str, ids: tuple[str, ...] = ()) -> None:
        """Do what an Allocate effect says, in the background."""
        self.begin_life(self.linger_s)
        state = self.world.shell.core.state
        if what == "shut" or id not in state.allocations:
            return
        if what in ("submit", "find"):
            self._start(self._submit_one(state, what, state.allocations[id]))
        elif what == "terminate":
            self._start(self._end_one(_known(state.allocations[id])))
        elif what == "collect":
            self._tell_last_words(state, state.allocations[id])
        else:
            known = _known(state.allocations[id])
            self.driver.doubt(known)
            self._start(self._look_at([known]))

    async def _end_one(self, known: Known) -> None:
        await self.driver.terminate(known)

    async def _submit_one(self, state: "State", what: str, allocation: Allocation) -> None:
        driver = self.driver
        try:
            found = await driver.find(allocation.tag, 1) if what == "find" else None
            if found is None:
                ask = Ask(
                    allocation.tag, "rota", (allocation.id,), allocation.capacity, "", "/sim",
                    time_s=allocation.time_s, options=(("partition", allocation.queue or ""),),
                )  # fmt: skip
                found = await driver.submit(ask)
        except RotaError as error:
            refused = AllocationOutcome(why="refused") if isinstance(error, RefusedError) else None
            refused = AllocationOutcome(why="host") if isinstance(error, HostError) else refused
            self._tell_facts()
            self._see(Observation(allocation.id, "fail", None, str(error), refused))
            return
        if allocation.tag not in self.allocations:
            made = CloudAllocation(self, allocation.id, "cloud", allocation.tag, found[0], allocation.capacity)
            self.allocations[allocation.tag] = made
        if allocation.state == "SUBMITTING" or allocation.native_id is None:
            self._see(Observation(allocation.id, "pend", found[0]), identity=True)

    def _tell_last_words(self, state: "State", allocation: Allocation) -> None:
        written = []
        for runner in state.runners_of(allocation.id):
            text = self.driver.unsent.pop(runner.output, None)
            if text is not None:
                unsent = json.loads(text)
                ended = [Ended(*row) for row in unsent["ended"]]
                disclaimed = [(b, i, a, why) for b, i, a, why in unsent["disclaimed"]]
                written.append(Written(runner.id, ended, disclaimed))
        self.world.shell.post(LastWords(at=_NOW, by="file", id=allocation.id, written=written))

    def _see(self, seen: Observation, asked: float | None = None, identity: bool = False) -> None:
        self.world.shell.post(
            AllocationSeen(
                at=_NOW, by="driver", id=seen.id, verb=seen.verb, native_id=seen.native_id, reason=seen.reason,
                outcome=seen.outcome, asked=asked, identity=identity,
            )
        )  # fmt: skip

    def requeue_some(self, until: float) -> None:
        """A cloud requeues nothing."""


def _known(allocation: Allocation) -> Known:
    return Known(allocation.id, allocation.tag, allocation.native_id, 0, allocation.submitted or 0.0, 1)


class CloudWorld(World):
    """A world whose only site is a cloud."""

    cluster: CloudCluster

    def _make_cluster(self) -> Cluster:
        return CloudCluster(self)

    def _close(self, outcome: Outcome) -> None:
        """Check that with nothing to do every server goes, that none was made twice, and what all cost."""
        cloud = self.cluster.cloud
        try:
            gone = self._run_until(
                self.now + 400.0,
                lambda: (
                    not cloud.there()
                    and not any(a.state.endswith("ING") for a in self.shell.core.state.allocations.values())
                ),
            )
        except AssertionError as problem:
            outcome.problems.append(f"assertion: {problem}")
            return
        if not gone:
            left = [(server.id, server.tag, server.native) for server in cloud.there()]
            known = [(a.id, a.state) for a in self.shell.core.state.allocations.values() if a.state.endswith("ING")]
            outcome.problems.append(f"servers are left: {left}; the manager knows of {known}")
        twice = {tag: count for tag, count in cloud.created.items() if count > 1}
        if twice:
            outcome.problems.append(f"servers were made twice: {twice}")
        if self.cluster.money is not None and not self.faults.hits.get("wall-jump"):
            most = most_spent(cloud)
            if most > self.cluster.money + 1e-9:
                outcome.problems.append(f"{most} were spent on a day, {self.cluster.money} were allowed")


def most_spent(cloud: FakeCloud) -> float:
    """The most that all servers have cost in any day."""
    spans = [
        (server.created, cloud.gone_at.get(id, server.created), PRICES[server.size]) for id, server in cloud.all.items()
    ]
    most = 0.0
    for _, end, _ in spans:
        begin = end - DAY_S
        cost = sum(price * max(0.0, min(e, end) - max(b, begin)) / 3600 for b, e, price in spans)
        most = max(most, cost)
    return most


def run_cloud_seed(seed: int, tracing: bool = False) -> tuple[Outcome, CloudWorld]:
    """Run one world with a cloud."""
    before = gc.get_threshold()
    gc.set_threshold(50_000, 20, 20)
    try:
        world = CloudWorld(seed, tracing)
        outcome = world.run()
        world.cluster.close()
        return outcome, world
    finally:
        gc.set_threshold(*before)
