"""Worlds: all that is known when a task is brokered, beside the task: queues, counts of jobs, links, files, users.

A world is a snapshot and never changed. Counts go by the unified name of a queue.
"""

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from rota.schedule.broker.queue import Queue, pseudo_queues

__all__ = ["NO_JOBS", "Jobs", "Link", "Outcomes", "UserJobs", "World"]


class Jobs(Struct, frozen=True):
    """Jobs of one share, or of one resource type, at a queue."""

    running: int = 0
    defined: int = 0
    assigned: int = 0
    activated: int = 0
    starting: int = 0
    transferring: int = 0
    throttled: int = 0

    @property
    def queued(self) -> int:
        """Those that wait there."""
        return self.defined + self.assigned + self.activated + self.starting


NO_JOBS = Jobs()


class Link(Struct, frozen=True):
    """What is known of a link to the nucleus."""

    closeness: float | None = None
    """0 best to 11 worst; -1: blocked."""
    queued: Mapping[str, int] = {}
    """Activity (`Production Output`, `Express`) → files queued."""
    hour: float | None = None
    day: float | None = None
    week: float | None = None
    """MB/s over the last hour, day and week."""
    age_minutes: float = 0
    """How old these are."""


class Outcomes(Struct, frozen=True):
    """How jobs of the task ended at a queue, over the last TW_DONE_JOB_STAT hours."""

    finished: int = 0
    failed: int = 0
    closed: int = 0


class UserJobs(Struct, frozen=True):
    """Jobs of a user at a queue, in one share."""

    queued: int = 0
    running: int = 0


class World(Struct, frozen=True, kw_only=True):
    """What is known beside the task."""

    queues: Mapping[str, Queue]
    jobs: Mapping[str, Mapping[str, Jobs]] = {}
    """Queue → share → jobs."""
    jobs_by_type: Mapping[str, Mapping[str, Jobs]] = {}
    """Queue → resource type → jobs of the task's share."""
    live: Mapping[str, int] = {}
    """Jobs sent there in this cycle, which the counts do not have yet."""
    workers: Mapping[str, int] = {}
    """Batch workers that run or are submitted."""
    streaming: frozenset[str] = frozenset()
    """Queues in unified pilot streaming."""
    pilots: Mapping[str, int] = {}
    """Pilots' calls in the last PILOT_HOURS; a queue that is not named: `pilots_default`."""
    pilots_default: int = 1
    hours_since_start: Mapping[str, float] = {}
    """Since a job last started there."""
    diskio: Mapping[str, float] = {}
    """Mean diskIO per core of running jobs."""
    links: Mapping[str, Link] = {}
    """Site → its link to the task's nucleus."""
    queued_to_nucleus: Mapping[str, int] = {}
    """Activity → files queued to the nucleus, over all links."""
    nucleus_writable: bool = True
    files_local: Mapping[str, int] = {}
    """Files of the input on disk (or in a cache) there; a queue that is not named: `files_local_default`."""
    files_local_default: int | None = None
    """None: all of them."""
    files_tape: Mapping[str, int] = {}
    """Files that are there on tape only."""
    source_readable: bool = True
    """Whether the input can be read over the wide area."""
    incomplete: tuple[str, ...] = ()
    """Datasets with no complete replica at a storage that can be used."""
    locked: frozenset[str] = frozenset()
    cores_used: Mapping[str, int] = {}
    """Cores of jobs that run or start."""
    software: Mapping[str, Any] = {}
    """Queue → what it publishes of its software; `ALL`: of containers by name."""
    # -- analysis
    user_jobs: Mapping[str, Mapping[str, Mapping[str, UserJobs]]] = {}
    """Queue → share → user → jobs."""
    user: str = "me"
    start_rate: Mapping[str, float] = {}
    """Jobs started per hour, over six hours."""
    start_rate_default: float = 0.0
    outcomes: Mapping[str, Outcomes] = {}
    used: frozenset[str] = frozenset()
    """Queues that the task has used already."""
    user_running: int = 0
    user_queued: int = 0
    user_running_cores: int = 0
    user_queued_cores: int = 0
    quota_percent: float | None = None
    """How much of the global disk quota is used."""
    share_usage_percent: float | None = None
    """How much of its target the share uses (modern)."""
    slots_left: float | None = None
    """Slots that the user has left in its class (modern)."""
    problems: Mapping[str, str] = {}
    """Queue → what is wrong with what is known of it."""
    known: dict[str, Any] = {}
    """What follows from the rest, once it was asked for."""

    def of_share(self, queue: str, share: str | None) -> Jobs:
        """Jobs of a share at a queue; None: of all shares."""
        by_share = self.jobs.get(queue)
        if not by_share:
            return NO_JOBS
        if share is not None:
            return by_share.get(share, NO_JOBS)
        total: Jobs | None = self.known.get(queue)
        if total is None:
            rows = list(by_share.values())
            total = Jobs(*(sum(getattr(row, name) for row in rows) for name in Jobs.__struct_fields__))
            self.known[queue] = total
        return total

    def in_order(self) -> list[Queue]:
        """All queues by name."""
        found: list[Queue] | None = self.known.get("/order")
        if found is None:
            found = self.known["/order"] = [queue for _, queue in sorted(self.queues.items())]
        return found

    def parts(self, queue: Queue) -> list[Queue]:
        """A unified queue as its parts, another as itself."""
        if queue.capability != "ucore":
            return [queue]
        found: list[Queue] | None = self.known.get(f"/{queue.name}")
        if found is None:
            found = self.known[f"/{queue.name}"] = pseudo_queues(queue)
        return found

    def pilot_calls(self, queue: str) -> int:
        """Pilots' calls in the last PILOT_HOURS."""
        return self.pilots.get(queue, self.pilots_default)
