"""A job that runs: its lease, its process, what was measured."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, List, Optional, Tuple

from rota.runner.kill import TreeKill
from rota.runner.lease import Lease
from rota.runner.plan import Plan
from rota.runner.segments import Lane

if TYPE_CHECKING:
    from rota.runner.workdir import Workdir

__all__ = ["Result", "Running", "result_of"]

WHOLE = 0.9  # a job that could have had this part of its allocation had all of it: it does not start at once

Result = Tuple[int, float, int, float]
"""How the first process of an attempt ended: wait status, CPU seconds, most bytes of memory, when."""


def result_of(status: int, usage: Any, wall: float) -> Result:
    """The same from what wait4 says."""
    return status, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024, wall


class Running:
    """One running attempt."""

    __slots__ = (
        "bound",
        "cpu_s",
        "elsewhere",
        "ending",
        "lane",
        "lease",
        "note",
        "output",
        "peak",
        "pid",
        "place",
        "plan",
        "result",
        "rss",
        "since",
        "wall",
        "warned",
        "why",
    )

    def __init__(self, lease: Lease, plan: Plan, lane: Lane, pid: int, wall: float, since: float) -> None:
        self.lease = lease
        self.plan = plan
        self.lane = lane
        self.pid = pid
        self.place: Optional[Workdir] = None
        self.wall = wall
        self.warned = False
        self.since = since
        self.ending: Optional[TreeKill] = None
        self.why: Optional[str] = None  # why we end it
        self.note: Optional[str] = None
        self.peak = 0
        self.rss = 0  # of its largest process, as far as we have looked
        self.bound = False  # to cores of its own
        self.cpu_s = 0.0
        self.elsewhere: Optional[Tuple[float, int]] = None  # of a gang: CPU seconds and memory on its other nodes
        self.output: Optional[List[Any]] = None
        self.result: Optional[Result] = None  # set once it has ended, until that is told

    @property
    def mark(self) -> Tuple[bytes, bytes]:
        """Job and attempt, as the environment of every process of this job has them."""
        lease = self.lease
        return (b"%d.%d" % (lease.batch, lease.index), b"%d" % lease.attempt)

    def had_all(self, began: float, until: float) -> bool:
        """Whether a job had as good as a whole allocation, and its own time, if it has one, is longer than that was."""
        own = self.plan.time_s
        return until - self.since >= WHOLE * (until - began) and (own is None or self.since + own > until)
