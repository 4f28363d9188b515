"""The context of one brokerage: task, world and thresholds, with all that follows from the task worked out once."""

from collections.abc import Callable
from itertools import accumulate

from msgspec import Struct

from rota.schedule.broker.config import Thresholds
from rota.schedule.broker.decision import Skip
from rota.schedule.broker.queue import Queue, resource_type
from rota.schedule.broker.task import File, Task
from rota.schedule.broker.world import Jobs, World

__all__ = ["MB", "Bind", "Check", "Context", "Portion", "portion_of"]

MB = 1024 * 1024
GB = 1024 * MB

Bind = Callable[["Context"], Callable[[Queue], Skip | None] | None]
"""Makes the check of one task for many queues; None: nothing is to be checked."""


class Check(Struct, frozen=True):
    """One filter of a flow."""

    name: str
    """As the funnel shows it."""
    bind: Bind
    lasting: bool = True
    """Whether it is about lasting problems: these hide temporary ones."""


class Portion(Struct, frozen=True):
    """The largest part of the input that one job must take: maxima over the groups that cannot be divided."""

    bytes: int = 0
    """Of distinct files."""
    effective_mb: float = 1.0
    """Of the events that are used; a file of unknown size counts as 1 MB."""
    events: int = 1
    jobs: int = 1
    """How many jobs the input makes."""


def portion_of(files: tuple[File, ...], per_job: int | None, events_per_job: int | None) -> Portion:
    """What one job takes: so many files, or so many events, or one file."""
    if not files:
        return Portion(events=events_per_job or 1)
    groups: list[tuple[int, float, int]] = []
    jobs = 0
    if per_job is None and events_per_job:
        size, effective, events = 0, 0.0, 0
        for each in files:
            count = each.events or 1
            share = min(1.0, events_per_job / count)
            size, effective, events = size + each.bytes, effective + _mb(each) * share, events + count
            if events >= events_per_job:
                groups.append((size, effective, min(events, events_per_job)))
                jobs += -(-events // events_per_job)
                size, effective, events = 0, 0.0, 0
        if events:
            groups.append((size, effective, events))
            jobs += 1
    else:
        step = max(1, per_job or 1)
        for at in range(0, len(files), step):
            part = files[at : at + step]
            size = sum(each.bytes for each in part)
            groups.append((size, sum(map(_mb, part)), sum(each.events or 1 for each in part)))
        jobs = len(groups)
    sizes, effectives, counts = zip(*groups, strict=True)
    return Portion(max(sizes), max(effectives), max(counts), jobs)


def _mb(each: File) -> float:
    return each.bytes / MB if each.bytes > 0 else 1.0


class Context:
    """What the checks of one brokerage look at."""

    def __init__(self, flow: str, task: Task, world: World, thresholds: Thresholds) -> None:
        self.flow, self.task, self.world, self.values = flow, task, world, thresholds
        self.profile = thresholds.profile
        self.modern = thresholds.profile == "modern"
        self.code = thresholds.profile == "code"
        self.rules, chunk = task.rules, task.chunk
        self.priority = task.current_priority
        self.merging = chunk.is_merging
        more = chunk.n_files_to_be_used is not None and chunk.n_files > chunk.n_files_to_be_used
        self.scout = more if chunk.scouting is None else chunk.scouting
        line = thresholds.number("EXPRESS_PRIORITY")
        high = self.priority >= line if thresholds.on("EXPRESS_INCLUSIVE") else self.priority > line
        self.express = task.processing_type == "urgent" or high
        self.activity = "Express" if self.express else "Production Output"
        self.event_service = task.event_service
        self.es_high = task.event_service and not self.rules.job_cloning and (self.priority >= 900 or self.scout)
        merge_cores = self.merging and task.merge_core_count is not None
        self.cores = task.merge_core_count if merge_cores else task.core_count
        self.multicore = self._multicore()
        self.share = task.gshare or "Undefined"
        self.type = task.resource_type or resource_type(
            task.core_count, task.ram_count, task.ram_unit, task.base_ram_count
        )
        self.site_pre = self.list_pre = False
        """Whether one queue, or several, were preassigned: set with the candidates."""
        self.portion = portion_of(task.files, self.rules.n_files_per_job, self.rules.n_events_per_job)
        self.sizes = list(accumulate((each.bytes for each in task.files), initial=0))
        """Bytes of the first so many files."""
        self.total_bytes, self.n_files = self.sizes[-1], len(task.files)
        self.nucleus_queues = frozenset(
            name for name, queue in world.queues.items() if task.nucleus and queue.site == task.nucleus
        )
        self.sharing = self._sharing()
        self.warnings: list[str] = []

    @property
    def pre(self) -> bool:
        """Whether any queue was preassigned."""
        return self.site_pre or self.list_pre

    def _multicore(self) -> str:
        """`only` queues of several cores, `any`, or `no` such queue."""
        if self.cores is not None and self.cores > 1:
            return "only"
        if self.cores == 0:
            urgent = self.flow == "production" and (self.priority >= 900 or self.scout)
            return "only" if urgent else "any"
        return "no"

    def _sharing(self) -> frozenset[str]:
        """Online queues that share the storage of the nucleus."""
        world = self.world
        first = next((world.queues[name] for name in sorted(self.nucleus_queues)), None)
        if first is None:
            return frozenset()
        online = [queue for queue in world.queues.values() if queue.status == "online"]
        if self.code:
            out = first.endpoint_out
            return frozenset(queue.name for queue in online if out is not None and out in queue.endpoints_in)
        return frozenset(queue.name for queue in online if queue.endpoint_out in first.endpoints_in)

    def at_nucleus(self, queue: Queue) -> bool:
        """Whether a queue writes to the nucleus itself."""
        return self.task.nucleus is not None and queue.site == self.task.nucleus

    def near_nucleus(self, queue: Queue) -> bool:
        """Whether a queue is one of the nucleus, or shares its storage."""
        return queue.unified in self.nucleus_queues or queue.unified in self.sharing

    def jobs(self, queue: Queue) -> Jobs:
        """Jobs of the task's share at a queue."""
        return self.world.of_share(queue.unified, self.share)

    def files_on_disk(self, queue: Queue) -> int:
        """How many files of the input are on disk there."""
        count = self.world.files_local.get(queue.unified, self.world.files_local_default)
        return self.n_files if count is None else min(count, self.n_files)

    def files_anywhere(self, queue: Queue) -> int:
        """… on disk or on tape."""
        return min(self.n_files, self.files_on_disk(queue) + self.world.files_tape.get(queue.unified, 0))

    def slots(self, queue: Queue) -> int | None:
        """Slots that are set aside there for the task's share and type; None: nobody said."""
        by_share = queue.num_slots
        if not by_share:
            return None
        by_type = by_share.get(self.share)
        if by_type is None:
            by_type = by_share.get(None)
        if by_type is None:
            return None
        count = by_type.get(self.type)
        if count is None:
            count = by_type.get(None)
        return count if count is not None and count >= 0 else None
