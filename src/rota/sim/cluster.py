"""A simulated provider and its driver.

Submit, find, terminate and check allocations: each with a runner on one node, or direct, as one job.
"""

from random import Random
from typing import TYPE_CHECKING

from rota.core.stimuli import AllocationSeen, At, Ended, LastWords, SiteSeen, Written
from rota.model.allocation import Outcome
from rota.model.needs import Amounts
from rota.model.site import SiteFacts
from rota.sim.direct import DirectJob
from rota.sim.node import SimRunner

if TYPE_CHECKING:
    from rota.sim.world import World

__all__ = ["Cluster", "SimAllocation", "Site"]

POLL_S = 5.0
NODES_MOST = 3
REQUEUES = 2100
"""From this seed on, some batch systems requeue what runs, begin with held elements, and answer from caches."""
_NOW = At(0.0, 0.0)


class Site:
    """A site as it is configured."""

    def __init__(self, name: str, node: Amounts, most: int, kind: str = "whole") -> None:
        self.name = name
        self.node = node
        self.most = most
        self.kind = kind
        """whole: a node for any jobs; sized: arrays, each as large as a job; direct: an allocation is a job; nodes: as
        whole, and several nodes for jobs that need them."""

    def seen(self, linger_s: float) -> SiteSeen:
        """The stimulus that tells the manager of the site."""
        return SiteSeen(
            at=_NOW,
            site=self.name,
            facts=SiteFacts(
                node=self.node,
                most=self.most,
                linger_s=linger_s,
                mode="direct" if self.kind == "direct" else "runners",
                whole=self.kind in ("whole", "nodes"),
                array_most=1 if self.kind in ("whole", "nodes") else 4,
                directory="/sim",
                nodes_most=NODES_MOST if self.kind == "nodes" else 1,
            ),
        )


class SimAllocation:
    """One cluster job. The provider knows it by its tag; the driver calls it by the manager's id."""

    def __init__(
        self, cluster: "Cluster", id: str, site: str, tag: str, native_id: str, capacity: Amounts, nodes: int = 1
    ) -> None:
        self.cluster = cluster
        self.nodes = nodes
        self.id = id
        self.site = site
        self.tag = tag
        self.native_id = native_id
        self.capacity = capacity
        self.job: DirectJob | None = None
        self.state = "queued"
        self.verb = "pend"
        self.reason: str | None = None
        self.runners: list[SimRunner] = []
        """All that were started; of several nodes each has one, and another when that was killed."""
        self.terminated = False
        self.runs = 0
        """How often the provider has started it."""
        self.earlier: str | None = None
        """What it was called before its last change: what a listing from a cache may still say."""

    def start(self) -> None:
        """The provider starts it."""
        if self.state != "queued":
            return
        if self.verb == "held":  # it is not released yet
            self.cluster.world.after(0.5, self.start)
            return
        self.runs += 1
        self.earlier = self.verb
        world = self.cluster.world
        self.state, self.verb = "running", "run"
        if world.faults.strikes("runner-dies-young"):
            self.ended("fail", "its runner died at once")
            return
        if self.job is not None:
            self.job.start()
            self.cluster.tell(self, poll=True)
            return
        for node in range(self.nodes):
            self._start_runner(node)
        if world.rng.random() < 0.5:
            self.cluster.tell(self)

    def _start_runner(self, node: int, replaces: str | None = None) -> None:
        world = self.cluster.world
        number = len(world.runners) + 1
        name = f"{self.tag}.{node}.{number:x}"
        runner = SimRunner(world, name, self, self.capacity, node, replaces)
        runner.run = self.runs
        self.runners.append(runner)
        world.runners.append(runner)

    def runner_left(self, runner: SimRunner) -> None:
        """A runner has ended by itself: when all have, the allocation is over.

        Until then the supervisor of a node starts another if the manager did not hear that it left.
        """
        if all(other.gone for other in self.runners):
            self.ended("complete", "its runner is done")
        elif not runner.runner._said_bye or self.cluster.world.faults.active:
            self.cluster.world.after(1.0, self._succeed, runner)

    def _succeed(self, runner: SimRunner) -> None:
        if self.state == "running" and runner.run == self.runs and not self.terminated:
            self._start_runner(runner.node, runner.id)

    def runner_swept(self, runner: SimRunner, why: str) -> None:
        """A runner was killed, and everything that it ran is gone.

        Of several nodes, its supervisor starts another; or the provider ends the allocation, as the node is gone.
        """
        if self.state == "over":
            return
        if self.nodes > 1 and not self.terminated and self.cluster.world.rng.random() < 0.6:
            self._succeed(runner)
            return
        self.terminate(why)
        if all(other.gone for other in self.runners):
            self.ended("fail", why)

    def requeue(self, verb: str, pause_s: float) -> None:
        """The provider takes it back, with all that runs in it, and starts it again: other processes on other nodes."""
        if self.state != "running" or self.job is not None or self.terminated:
            return
        world = self.cluster.world
        world.faults.hit("requeued")
        world.say("requeued", self.id, f"{verb}, again in {pause_s} s")
        for runner in self.runners:
            runner.swept_away("requeued")
        self.state, self.earlier, self.verb = "queued", self.verb, verb
        if verb == "held":
            world.after(pause_s, self.release)
        world.after(pause_s, self.start)

    def release(self) -> None:
        """The provider, or a user, releases it."""
        if self.verb == "held":
            self.verb = "pend"

    def terminate(self, why: str) -> None:
        """The provider ends it."""
        self.terminated = True
        for runner in self.runners:
            runner.kill(why)

    def ended(self, verb: str, reason: str) -> None:
        """The runner and everything it ran are gone, and the provider knows it."""
        if self.state != "over":
            self.state, self.verb, self.reason = "over", verb, reason
            self.cluster.tell(self, poll=True)


class Cluster:
    """Provider and driver. What the driver knows is forgotten when the manager dies; what the provider runs is not."""

    def __init__(self, world: "World", sites: list[Site]) -> None:
        self.world = world
        self.sites = {site.name: site for site in sites}
        self.allocations: dict[str, SimAllocation] = {}
        self.answers = Random(f"answers {world.seed}")  # of its own: the schedules of known seeds stay what they are
        self.old_answers = self.answers.choice((0.0, 0.0, 0.05, 0.3))
        """The chance that an answer is on its way for long, and tells how things were when it was asked for."""
        self.quiet = Random(f"quiet requeues {world.seed}")
        """Which direct jobs are put back and started again without a word."""
        self.requeues = Random(f"requeues {world.seed}")
        self.whims = world.seed >= REQUEUES and self.requeues.random() < 0.7
        """Whether its batch systems requeue, begin with held elements, and answer from caches."""

    def poll(self) -> None:
        """Look, now and then, at all allocations that are not over as far as the manager knows."""
        shell = self.world.shell
        if shell.up:
            for allocation in list(shell.core.state.allocations.values()):
                seen = self.allocations.get(f"{allocation.tag}.{allocation.element}")
                if allocation.state in ("PENDING", "RUNNING", "KILLING") and not (
                    allocation.state == "RUNNING" and seen and seen.verb == "run"
                ):
                    self._check(allocation.id, allocation.site, f"{allocation.tag}.{allocation.element}")
        self.world.after(POLL_S, self.poll)

    def perform(self, what: str, id: str, site: str, tag: str, ids: tuple[str, ...] = ()) -> None:
        """Do what an Allocate effect says, a little later, if the manager still lives then."""
        state = self.world.shell.core.state
        for each in ids or (id,):
            known = state.allocations.get(each)
            self._perform(what, each, site, f"{tag}.{known.element if known is not None else 0}")

    def _perform(self, what: str, id: str, site: str, tag: str) -> None:
        if what == "shut":
            return
        operation = {
            "submit": self._submit,
            "find": self._find,
            "terminate": self._terminate,
            "check": self._check,
            "collect": self._collect,
        }[what]
        self.world.after(0.01 * self.world.rng.random(), self._do, self.world.shell.life, operation, id, site, tag)

    def _do(self, life: int, operation: object, id: str, site: str, tag: str) -> None:
        if self.world.shell.up and self.world.shell.life == life:
            assert callable(operation)
            operation(id, site, tag)

    def _submit(self, id: str, site: str, tag: str) -> None:
        world, faults = self.world, self.world.faults
        if faults.strikes("submit-fails"):
            self._say(id, "fail", None, "the provider refused")
            return
        if tag in self.allocations:
            world.witness.problems.append(f"allocation {id} was submitted twice with tag {tag}")
        known = world.shell.core.state.allocations[id]
        native = str(1000 + len(self.allocations))
        allocation = self.allocations[tag] = SimAllocation(self, id, site, tag, native, known.capacity, known.nodes)
        if known.direct:
            allocation.job = DirectJob.leased(world, allocation, known)
        world.after(world.rng.choice((0.02, 0.1, 2.0)) * world.rng.random(), allocation.start)
        if self.whims and faults.active and self.requeues.random() < 0.3:
            faults.hit("begins-held")
            allocation.verb = "held"
            world.after(self.requeues.choice((0.01, 1.0, 8.0)), allocation.release)
        if faults.strikes("submit-answer-lost"):
            # what the driver must do after a doubtful answer: look, and only then submit again
            world.after(1.0, self._do, world.shell.life, self._find, id, site, tag)
        else:
            self.tell(allocation, identity=True)

    def _find(self, id: str, site: str, tag: str) -> None:
        if self.world.faults.strikes("poll-fails"):
            self._say(id, "unsure", None, "no answer")
            self.world.after(2.0, self._do, self.world.shell.life, self._find, id, site, tag)
        elif tag in self.allocations:
            self.tell(self.allocations[tag], identity=True)
        else:
            self._submit(id, site, tag)

    def _check(self, id: str, site: str, tag: str) -> None:
        allocation = self.allocations.get(tag)
        if self.world.faults.strikes("poll-fails"):
            self._say(id, "unsure", None, "no answer")
        elif allocation is None:
            self._say(id, "fail", None, "there is no such cluster job")
        else:
            self.tell(allocation)

    def _collect(self, id: str, site: str, tag: str) -> None:
        """Tell what an allocation left behind: the report of a direct job, or what its runner could not say."""
        if self.world.faults.strikes("poll-fails"):
            return
        allocation, written = self.allocations.get(tag), []
        if allocation is not None and allocation.job is not None and allocation.job.row is not None:
            written.append(Written(allocation.job.runner, [allocation.job.row]))
        for runner in allocation.runners if allocation is not None else ():
            if runner.unsent is not None:
                ended = [Ended(*row) for row in runner.unsent["ended"]]
                disclaimed = [(b, i, a, why) for b, i, a, why in runner.unsent["disclaimed"]]
                written.append(Written(runner.id, ended, disclaimed))
        host = None if allocation is None or written else _started_on(allocation)
        again = allocation is not None and allocation.job is not None and allocation.job.restarted
        self.world.shell.post(LastWords(at=_NOW, by="file", id=id, written=written, host=host, restarted=again))

    def _terminate(self, id: str, site: str, tag: str) -> None:
        allocation = self.allocations.get(tag)
        if allocation is None:
            self._say(id, "abort", None, "there is no such cluster job")
        elif allocation.state == "over":
            self.tell(allocation)
        elif allocation.state == "queued":
            allocation.ended("abort", "terminated")
        elif allocation.job is not None and allocation.state == "running":
            allocation.job.kill()
        else:
            allocation.terminate("terminated")

    def tell(self, allocation: SimAllocation, poll: bool = False, identity: bool = False) -> None:
        """Have the driver tell what it sees of an allocation: by polling, with some delay, or in answer to us."""
        delay = self.world.rng.choice((0.01, 1.0, 3.0)) if poll else 0.001
        if poll and self.world.faults.strikes("poll-fails"):
            delay += 10.0
        if self.world.faults.active and self.answers.random() < self.old_answers:
            self.world.faults.hit("old-answer")
            seen = self._seen(allocation)
            if identity:
                seen.identity = True
            else:
                seen.asked = self.world.clock.at(self.world.now).mono
            self.world.after(self.answers.choice((0.5, 3.0, 12.0)), self._tell_old, self.world.shell.life, seen)
        else:
            self.world.after(delay, self._tell_now, allocation)

    def _tell_old(self, life: int, seen: AllocationSeen) -> None:
        if life == self.world.shell.life:
            self.world.shell.post(seen)

    def _tell_now(self, allocation: SimAllocation) -> None:
        seen = self._seen(allocation)
        if self.whims and self.world.faults.active and allocation.state != "over":
            self._mislead(allocation, seen)
        seen.asked = self.world.clock.at(self.world.now).mono
        self.world.shell.post(seen)

    def _mislead(self, allocation: SimAllocation, seen: AllocationSeen) -> None:
        """Answer now and then from a cache, or with the end of an earlier run out of the history."""
        chance = self.requeues.random()
        if chance < 0.1 and allocation.earlier is not None:
            self.world.faults.hit("cached-listing")
            seen.verb = allocation.earlier
        elif chance > 0.9 and allocation.state == "queued" and allocation.runs and allocation.job is None:
            self.world.faults.hit("earlier-end")
            seen.verb = "fail"

    def requeue_some(self, until: float) -> None:
        """Requeue what runs at a few moments, fast or slowly."""
        for _ in range(self.requeues.choice((1, 4, 12)) if self.whims else 0):
            self.world.when(self.requeues.uniform(2.0, until), self._requeue_one)

    def _requeue_one(self) -> None:
        running = [each for each in self.allocations.values() if each.state == "running" and each.job is None]
        if running and self.world.faults.active:
            verb = self.requeues.choice(("pend", "pend", "held"))
            self.requeues.choice(running).requeue(verb, self.requeues.choice((0.0, 0.3, 3.0, 20.0)))

    def _seen(self, allocation: SimAllocation) -> AllocationSeen:
        job = allocation.job
        outcome = job.outcome if job is not None and allocation.state == "over" else None
        native, reason = allocation.native_id, allocation.reason
        seen = self._observation(allocation.id, allocation.verb, native, reason, outcome)
        seen.host = _started_on(allocation) if seen.verb in ("run", "pend") else None  # ends are told without
        return seen

    def _say(self, id: str, verb: str, native_id: str | None, reason: str | None) -> None:
        self.world.shell.post(self._observation(id, verb, native_id, reason))

    def _observation(
        self, id: str, verb: str, native_id: str | None, reason: str | None, outcome: Outcome | None = None
    ) -> AllocationSeen:
        return AllocationSeen(
            at=_NOW, by="driver", id=id, verb=verb, native_id=native_id, reason=reason, outcome=outcome
        )


def _started_on(allocation: SimAllocation) -> str | None:
    """Where a direct job has started, as its started.json says."""
    return "node" if allocation.job is not None and allocation.job.execution is not None else None
