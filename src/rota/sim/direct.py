"""A direct job in the simulator.

It runs by itself, and leaves a report that the manager finds when the provider says that it is over.
"""

from typing import TYPE_CHECKING

from rota.core.stimuli import Ended
from rota.model.allocation import Allocation, Outcome
from rota.model.slot import Slot
from rota.sim.witness import Execution

if TYPE_CHECKING:
    from rota.sim.cluster import SimAllocation
    from rota.sim.world import World

__all__ = ["DirectJob"]


class DirectJob:
    """The one job of a direct allocation, as its lease file says."""

    def __init__(
        self, world: "World", allocation: "SimAllocation", runner: str, job: tuple[int, int, int], slot: Slot
    ) -> None:
        self.world = world
        self.allocation = allocation
        self.runner = runner
        self.job = job
        self.slot = slot
        self.outcome = Outcome()
        self.row: Ended | None = None
        """Its report, once it has left one."""
        self.execution: Execution | None = None
        self.dying = False
        self.restarted = False
        """Whether it was started a second time, which ran nothing and said so."""

    @classmethod
    def leased(cls, world: "World", allocation: "SimAllocation", known: Allocation) -> "DirectJob | None":
        """The job that the lease file names at the time of the submission; None: it was called back meanwhile."""
        state = world.shell.core.state
        for runner in state.direct_runners(known):
            for number, pos in runner.jobs:
                batch = state.batches[number]
                live = batch.live[pos]
                return cls(world, allocation, runner.id, (number, batch.index(pos), live.attempt), live.slot)
        return None

    def start(self) -> None:
        """The provider starts it."""
        world = self.world
        site, cores, memory = self.allocation.site, self.slot.amounts.cores, self.slot.amounts.memory
        execution = Execution(*self.job, self.runner, site, cores, world.now, memory=memory)
        self.execution = execution
        world.witness.executions.append(execution)
        world.started(execution)
        seconds, code, signal = world.workload.behaviour(execution)
        world.after(seconds, self._over, code, signal)
        if world.faults.strikes("node-fails"):
            world.after(seconds * world.rng.random(), self.die)
        if world.faults.strikes("requeue"):
            world.after(seconds * world.rng.random(), self.requeue)

    def _over(self, code: int | None, signal: int | None) -> None:
        execution = self.execution
        if execution is None or execution.end is not None:
            return
        world = self.world
        execution.end, execution.exit_code, execution.signal = world.now, code, signal
        execution.stopped = self.dying and code != 0
        reason = None if code == 0 else "runner-stopped" if self.dying else "exit" if signal is None else "signal"
        wall = world.clock.at(world.now).wall
        started, peak = wall - (world.now - execution.start), world.workload.peak_memory(execution)
        self.row = Ended(*self.job, code, signal, reason, started, wall, 0.1, peak, None, None)
        self.outcome = Outcome(code, signal, "cancelled" if self.dying else None)
        self.allocation.ended("complete" if code == 0 else "fail", "its job ended")

    def kill(self) -> None:
        """The provider was told to end it."""
        self.dying = True
        self.world.after(0.02, self._over, None, 15)

    def die(self) -> None:
        """Its node fails: the job is gone, and leaves no report."""
        execution = self.execution
        if execution is not None and execution.end is None:
            execution.end, execution.stopped = self.world.now, True
            self.outcome = Outcome(why="node-fail")
            self.allocation.ended("abort", "its node failed")

    def requeue(self) -> None:
        """The provider takes it back, and would start it again: its runner would see that it ran, and do nothing.

        It may have told the first start to end, which then leaves a report, and may tell nobody that it did.
        """
        execution = self.execution
        if execution is not None and execution.end is None:
            execution.end, execution.stopped = self.world.now, True
            quiet = self.allocation.cluster.quiet.random() < 0.5
            if quiet:
                wall = self.world.clock.at(self.world.now).wall
                started = wall - (self.world.now - execution.start)
                self.row = Ended(*self.job, None, 15, "runner-stopped", started, wall, 0.1, 1 << 20, None, None)
            self.allocation.state, self.allocation.verb, self.allocation.reason = "queued", "pend", "requeued"
            if not quiet:
                self.allocation.cluster.tell(self.allocation, poll=True)
            self.world.after(self.world.rng.choice((0.5, 10.0)), self._again, quiet)

    def _again(self, quiet: bool) -> None:
        if self.allocation.state == "queued":
            self.restarted = True
            if quiet:
                self.outcome = Outcome(None, 15)
                self.allocation.ended("fail", "by its own words it was killed by signal 15, though it is DONE")
            else:
                self.outcome = Outcome(0, None, "requeue")
                self.allocation.ended("complete", "it was started a second time, and did nothing")
