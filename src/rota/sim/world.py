"""A world: one virtual time, one seed, one manager, some nodes, some users and a great deal of bad luck."""

import gc
import hashlib
import heapq
from collections.abc import Callable
from random import Random
from typing import Any

from rota.core.state import Settings
from rota.core.stimuli import At
from rota.model import events as ev
from rota.model.needs import Amounts
from rota.model.tables import JOB_STATES
from rota.sim.checks import check_history, check_world
from rota.sim.clock import JUMPS, ManagerClock
from rota.sim.cluster import Cluster, Site
from rota.sim.faults import Faults
from rota.sim.network import Network
from rota.sim.node import SimRunner
from rota.sim.shell import Shell
from rota.sim.witness import Execution, Witness
from rota.sim.workload import Workload

__all__ = ["SETTINGS", "Outcome", "World", "run_seed"]

SETTINGS = Settings(
    touch_s=3,
    missing_s=7,
    start_by_s=5,
    rerun_s=25,
    losses=5,
    backoff_first_s=1,
    backoff_most_s=20,
    backoff_jitter_s=1,
    site_retry_s=1,
    site_retry_most_s=10,
)
"""Shorter than in life, in the same proportions but for `start_by_s`, so that more happens in a virtual minute."""

FAULTS_S = 50.0
SETTLE_S = 1500.0
CLOSE_S = 200.0
EVENTS_MOST = 400_000
NEW_KINDS = 1000
"""From this seed on, sites are also sized for their jobs, or direct."""
GANGS = 2000
"""From this seed on, some sites give several nodes at once, and some jobs need that."""


class Outcome:
    """The result of running one world."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.problems: list[str] = []
        self.hits: dict[str, int] = {}
        self.jobs = 0
        self.executions = 0
        self.hash = ""
        self.settled_s = 0.0
        """Virtual seconds from the end of the faults until everything was settled."""


class World:
    """One simulated world: manager, sites, users, faults, and the queue of what happens next."""

    def __init__(self, seed: int, tracing: bool = False, calm: bool = False) -> None:
        self.seed = seed
        self.tracing = tracing
        self.story: list[str] = []
        self.now = 0.0
        self._queue: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0
        self.rng = rng = Random(seed)
        self.linger_s = rng.choice((5.0, 20.0))
        self.check_every = rng.choice((1, 20, 20, 20, 20))
        self.checkpoint_chance = rng.choice((0.0, 0.02, 0.3))
        self.witness = Witness()
        self.clock = ManagerClock()
        self.faults = Faults(rng, calm)
        self.holes = Random(f"black holes {seed}")  # of its own: the schedules of known seeds stay what they are
        self.hole_chance = 0.0 if calm else self.holes.choice((0.0, 0.0, 0.0, 0.3))
        self.network = Network(self)
        self.runners: list[SimRunner] = []
        self.cluster = self._make_cluster()
        self.workload = Workload(self)
        self.shell = Shell(self, SETTINGS)

    def _make_cluster(self) -> Cluster:
        return Cluster(self, self._sites())

    def _sites(self) -> list[Site]:
        rng = self.rng
        kinds = Random(f"kinds of sites {self.seed}")  # of its own: the schedules of known seeds stay what they are
        sites: list[Site] = []
        left = rng.randint(2, 5)
        while left > 0:
            most = min(left, rng.choice((1, 1, 2, 3)))
            node = Amounts(rng.choice((2000, 4000, 8000)), rng.choice((1 << 31, 1 << 33)))
            kind = "whole" if self.seed < NEW_KINDS else kinds.choice(("whole", "sized", "direct"))
            if self.seed >= GANGS and (not sites or kinds.random() < 0.3):
                kind = "nodes"
            many = most if kind in ("whole", "nodes") else 4 * most
            sites.append(Site(f"s{len(sites) + 1}", node, many, kind))
            left -= most
        return sites

    # -- time

    def when(self, time: float, call: Callable[..., None], *args: Any) -> None:
        """Have a function called at a true time."""
        self._count += 1
        heapq.heappush(self._queue, (time, self._count, call, args))

    def after(self, seconds: float, call: Callable[..., None], *args: Any) -> None:
        """Have a function called so many seconds from now."""
        self.when(self.now + seconds, call, *args)

    def _run_until(self, until: float, done: Callable[[], bool] | None = None) -> bool:
        """Let things happen until a true time, or until `done` comes true; True if it did."""
        queue = self._queue
        look = 0
        while queue and queue[0][0] <= until:
            time, _, call, args = heapq.heappop(queue)
            if time > self.now:
                self.now = time
            call(*args)
            if done is not None:
                look += 1
                if look % 8 == 0 and done():
                    return True
            if self._count > EVENTS_MOST:
                raise AssertionError(f"{EVENTS_MOST} events: something goes round in circles")
        self.now = max(self.now, until)
        return done is not None and done()

    # -- accounts

    def say(self, *words: object) -> None:
        """Add a line to the story."""
        if self.tracing:
            self.story.append(f"{self.now:10.4f} " + " ".join(str(word) for word in words))

    def durable(self, entries: list[ev.Entry], at: At) -> None:
        """Events have become facts."""
        facts, now = self.witness.facts, self.now
        for entry in entries:
            event = entry.event
            facts.append((now, event))
            self.witness.local.append(at.wall + at.utc_offset_s)
            if self.tracing:
                self.say("EVENT", event)
            if isinstance(event, ev.Submitted):
                self.workload.committed(event.key, event.batch)
            elif isinstance(event, ev.Respecified):
                self.workload.respecified(event)
            elif isinstance(event, ev.LimitSet):
                self.workload.limit_set(event.name, event.count)

    def started(self, execution: Execution) -> None:
        """A process starts."""
        self.say("START", f"{execution.batch}.{execution.index}/{execution.attempt} on {execution.runner}")

    # -- the run

    def run(self) -> Outcome:
        """Run the world from beginning to end, and check the accounts."""
        outcome = Outcome(self.seed)
        try:
            settled = self._live()
        except AssertionError as problem:
            settled = True
            self.witness.problems.append(f"assertion: {problem}")
        outcome.settled_s = self.now - FAULTS_S
        final = self.final_states()
        if not self.witness.problems:
            if settled is False and self.shell.core.state.parts:
                outcome.problems.append(f"{self.shell.core.state.parts} parts of gangs were not given back")
            outcome.problems += check_world(self.witness, self.workload, self.cluster.sites, final, settled)
            outcome.problems += check_history(self.witness, self.shell.disk.results, self._position)
            if not outcome.problems:
                self._close(outcome)
        outcome.problems = self.witness.problems + outcome.problems
        outcome.hits = self.faults.hits
        outcome.jobs = sum(plan.spec.count for plan in self.workload.plans)
        outcome.executions = len(self.witness.executions)
        digest = hashlib.sha256(self.shell.disk.hash.digest())
        for execution in self.witness.executions:
            digest.update(repr(execution).encode())
        outcome.hash = digest.hexdigest()
        return outcome

    def _live(self) -> bool:
        self.shell.start()
        self.cluster.poll()
        self.workload.begin(FAULTS_S)
        for time, offset_s in self.workload.offsets:
            self.when(time, setattr, self.clock, "utc_offset_s", offset_s)
        if self.workload.has_gangs:
            for _ in range(self.workload.gangs.choice((0, 3, 10))):
                self.when(self.workload.gangs.uniform(5.0, FAULTS_S), self._kill_member)
        self.cluster.requeue_some(FAULTS_S)
        for time, kind in self.faults.moments(FAULTS_S):
            self.when(time, self._strike, kind)
        self._run_until(FAULTS_S)
        self.faults.active = False
        self.network.heal()
        self.clock.correct()
        self.shell.slow_until = 0.0
        for runner in self.runners:
            runner.go_on()
        self.say("calm", "faults end")
        self.workload.settle_down()
        return self._run_until(FAULTS_S + SETTLE_S, self._settled)

    def _settled(self) -> bool:
        shell = self.shell
        if not shell.up or self.workload.open_questions:
            return False
        if shell.core.state.seq != len(shell.disk.log):
            return False
        return not shell.core.state.parts and all(batch.unsettled == 0 for batch in shell.core.state.batches.open())

    def _close(self, outcome: Outcome) -> None:
        """Check that with nothing to do every runner leaves, and no allocation is left behind."""
        if self.seed % 4:
            return
        try:
            gone = self._run_until(
                self.now + CLOSE_S,
                lambda: (
                    all(a.state == "over" for a in self.cluster.allocations.values())
                    and not any(a.state.endswith("ING") for a in self.shell.core.state.allocations.values())
                ),
            )
        except AssertionError as problem:
            outcome.problems.append(f"assertion: {problem}")
            return
        if not gone:
            left = [(a.id, a.state) for a in self.cluster.allocations.values() if a.state != "over"]
            known = [(a.id, a.state) for a in self.shell.core.state.allocations.values() if a.state.endswith("ING")]
            outcome.problems.append(f"P6: allocations are left: {left}; the manager knows of {known}")

    def _position(self, batch: int, index: int) -> int:
        return self.workload.by_batch[batch].indices().index(index)

    def final_states(self) -> dict[tuple[int, int], str]:
        """(batch, index) → state, as a client would be told."""
        return {
            (batch.id, batch.index(pos)): JOB_STATES[byte]
            for batch in self.shell.core.state.batches.values()
            for pos, byte in enumerate(batch.states)
        }

    # -- timed faults

    def _strike(self, kind: str) -> None:
        rng, faults = self.rng, self.faults
        self.say("fault", kind)
        alive = [runner for runner in self.runners if runner.state == "alive"]
        if kind == "manager-crash":
            self.shell.crash(kind, rng.choice((0.05, 1.0, 10.0, 30.0)))
        elif kind == "manager-reboot":
            self.shell.crash(kind, rng.choice((1.0, 20.0)))
            self.clock.reboot(self.now)
        elif kind == "manager-suspended":
            self.shell.freeze(rng.choice((0.5, 5.0, 20.0, 60.0)))
        elif kind == "wall-jump":
            self.clock.jump(rng.choice(tuple(JUMPS)), self.now)
        elif kind == "slow-disk":
            self.shell.slow_until = self.now + rng.choice((1.0, 10.0))
        elif kind == "clog":
            for runner in alive:
                self.network.block(runner.id, ("up", "down"), self.now + rng.uniform(0.1, 20.0), True)
        elif not alive:
            return
        else:
            self._strike_runner(kind, rng.choice(alive))
        faults.hit(kind)

    def _kill_member(self) -> None:
        """Kill a runner that has a part of a gang or its root."""
        alive = [runner for runner in self.runners if runner.state == "alive" and runner.allocation.nodes > 1]
        members = [runner for runner in alive if runner.runner.occupied]
        if members and self.faults.active:
            self.faults.hit("member-killed")
            self.workload.gangs.choice(members).kill("SIGKILL")

    def _strike_runner(self, kind: str, runner: SimRunner) -> None:
        rng = self.rng
        if kind == "partition":
            self.network.block(
                runner.id, ("up", "down"), self.now + rng.choice((1.0, 10.0, 30.0, 90.0)), rng.random() < 0.5
            )
        elif kind == "partition-one-way":
            way = rng.choice(("up", "down"))
            self.network.block(runner.id, (way,), self.now + rng.choice((1.0, 10.0, 30.0, 90.0)), rng.random() < 0.5)
        elif kind in ("break", "half-open"):
            if runner.connection is not None:
                runner.connection.cut(kind == "break")
        elif kind == "runner-killed":
            runner.kill("SIGKILL")
        elif kind == "runner-stopped":
            runner.stop(rng.choice((0.5, 5.0, 20.0, 60.0)))
        elif kind == "job-killed":
            runner.kill_a_job()


def run_seed(seed: int, tracing: bool = False) -> tuple[Outcome, World]:
    """Run one world."""
    before = gc.get_threshold()
    gc.set_threshold(50_000, 20, 20)  # a world makes much and drops little: looking for cycles costs a tenth
    try:
        world = World(seed, tracing)
        return world.run(), world
    finally:
        gc.set_threshold(*before)
