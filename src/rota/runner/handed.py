"""Jobs that are handed over to be started: to the C launcher, or to the starters of this process.

What both have in common: while jobs are short they are given more than may run, and start those without asking; what
they have not started can be had back; most ends need no more than a row in the report.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Dict, Generic, List, TypeVar

from rota.runner.jobs import Jobs
from rota.runner.lease import Lease
from rota.runner.plan import Plan, StartError
from rota.runner.running import Result, Running

if TYPE_CHECKING:
    from rota.runner.segments import Lane

__all__ = ["SHORT_S", "SPARE_LANES", "STUCK_S", "Handed", "HandedOver"]

# Jobs handed over beyond what may run, while jobs are short. So many (or as many as may run), or for so long if that
# is more.
AHEAD, AHEAD_MOST, AHEAD_S = 16, 128, 0.04
SHORT_S = 0.02
STUCK_S = 0.1  # what has not started by then comes back, so that it can be recalled
SPARE_LANES = 8
SUCCESS = (0, None, None, None)


class Handed:
    """A job that was handed over."""

    __slots__ = ("lease", "plan", "when")

    def __init__(self, lease: Lease, plan: Plan, when: float) -> None:
        self.lease = lease
        self.plan = plan
        self.when = when


Kind = TypeVar("Kind", bound=Handed)


class HandedOver(Generic[Kind]):
    """The runner's dealings with who starts jobs for it."""

    def __init__(self, jobs: Jobs) -> None:
        self.jobs = jobs
        self.pending: Dict[int, Kind] = {}  # handed over; neither its start nor its end is known here
        self._number = 0

    @property
    def ready(self) -> bool:
        """Whether jobs can be handed over."""
        raise NotImplementedError

    @property
    def busy(self) -> bool:
        """Whether anything that was handed over has not ended."""
        raise NotImplementedError

    def _expect(self, count: int) -> None:
        """So many jobs are about to be handed over."""

    def _hand_over(self, lease: Lease, plan: Plan, now: float) -> Kind:
        """Hand a job over as that of self._number, or raise StartError."""
        raise NotImplementedError

    def give_back(self) -> None:
        """Have every job back that has not started; at once, or when who has them says so."""
        raise NotImplementedError

    def recall(self) -> None:
        """Have that back at once which can be had at once: some of it is recalled."""

    def exchange(self, now: float) -> None:
        """Take in what is told by messages: starts, ends, failures, jobs that come back."""

    def look(self, now: float) -> None:
        """Take in what can be seen without a message, at each wake-up."""

    def flush(self, now: float) -> None:
        """Say what is to be said after a round of the loop."""
        raise NotImplementedError

    def helper_ended(self, pid: int, status: int, now: float) -> None:
        """A process of ours that is no job has ended."""

    def disown(self, pid: int) -> None:
        """Forget that this process is a job that was handed over."""

    # -- handing over --------------------------------------------------------------------------------------------

    @property
    def ahead(self) -> int:
        """How many jobs of each slot should be handed over beyond those that may run."""
        typical_s = self.jobs.typical_s
        if not self.ready or typical_s >= SHORT_S:
            return 0
        width = max(self.jobs.runner.slots.values(), default=1)
        return max(AHEAD, width, min(AHEAD_MOST, int(width * AHEAD_S / max(typical_s, 1e-4))))

    def start(self, leases: List[Lease], now: float) -> bool:
        """Hand these leases over; False if some cannot be started at all."""
        jobs = self.jobs
        if len(leases) == 1 and self._is_alone(leases[0]):
            return jobs.start_own(leases[0], now)
        started = True
        self._expect(len(leases))
        back: List[Lease] = []
        full: Dict[str, None] = {}
        for lease in leases:
            self._number += 1
            if full and lease.slot in full:
                back.append(lease)  # in its turn, behind the one that waits
                continue
            try:
                plan = jobs.plans.of(lease)
                if plan.special or plan.bind or lease.gang is not None:  # there is more to do than to start it
                    if self._room(lease):
                        started = jobs.start_own(lease, now) and started
                    else:
                        full[lease.slot] = None
                        back.append(lease)
                    continue
                self.pending[self._number] = self._hand_over(lease, plan, now)
            except StartError as error:
                started = jobs.not_started(lease, None, time.time(), error)
            except (TypeError, ValueError, KeyError) as error:
                started = jobs.not_started(lease, None, time.time(), StartError("start", "cannot start: %s" % error))
        for lease in reversed(back):
            jobs.runner.requeue(lease)
        return started

    def _is_alone(self, lease: Lease) -> bool:
        """Whether this is a short job that comes alone: then nobody else has to be woken for it."""
        return self.jobs.typical_s < SHORT_S and not self.busy and self._room(lease)

    def _room(self, lease: Lease) -> bool:
        """Whether the runner itself may start one more job of this slot, whatever of those handed over starts."""
        slot = lease.slot
        busy = sum(running.lease.slot == slot for running in self.jobs.by_pid.values())
        busy += sum(handed.lease.slot == slot for handed in self.pending.values())
        busy += self.jobs.closing_count(slot)
        return busy < self.jobs.runner.slots.get(slot, 0)

    # -- what became of them -------------------------------------------------------------------------------------

    def _begun(self, handed: Handed, lane: Lane, pid: int, wall: float, since: float, now: float) -> None:
        """Look after a job that was handed over some time ago, and has started since; end it if that is too late."""
        lease, runner = handed.lease, self.jobs.runner
        lease.since = now
        self.jobs.begun(lease, handed.plan, lane, pid, wall, since)
        if lease.kill_asked:
            self.jobs.kill(lease, lease.grace_s, "killed", now)
        elif runner.leaving in ("runner-stopped", "expired"):
            self.jobs.kill(lease, runner.grace_s, "killed" if runner.expired else "runner-stopped", now)

    def _succeeded(self, handed: Handed, pid: int, began: float, result: Result) -> None:
        """A job so short that its start was not told succeeded, and left nothing: most of those that are many."""
        lease, plan, jobs = handed.lease, handed.plan, self.jobs
        _, cpu_s, memory, wall = result
        lease.wall, lease.pid = began, pid
        jobs.lasted(wall - began)
        output = jobs.segments.nothing(plan.stdout is None, plan.stderr is None)
        jobs.runner.ended(lease, SUCCESS, began, wall, (cpu_s, memory, None), output)

    def _unseen(self, handed: Handed, lane: Lane, pid: int, wall: float, since: float) -> Running:
        """A job that has ended before it was known that it had started."""
        lease = handed.lease
        lease.wall, lease.pid = wall, pid
        return Running(lease, handed.plan, lane, pid, wall, since)
