"""Queues: what a queue says of itself, in the reference's names and units (docs/howto/brokerage.md has the table)."""

from collections.abc import Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

__all__ = ["NO_LIMIT", "RESOURCE_TYPES", "Queue", "ResourceType", "pseudo_queues", "resource_type"]

NO_LIMIT = (None, 0)


class Queue(Struct, frozen=True, kw_only=True):
    """A queue that jobs can be sent to. Limits that are 0 or missing are none."""

    name: str
    parent: str | None = None
    """The unified queue that it is a part of."""
    type: str = "production"
    """production, analysis or unified."""
    status: str = "online"
    """online, standby, brokeroff, test, offline or paused."""
    site: str | None = None
    """The site whose storage it writes to (`pandasite`): the source of its links."""
    cloud: str = ""
    role: str = "satellite"
    capability: str = "score"
    """score, mcore or ucore: a unified queue."""
    workflow: str = ""
    core_count: int | None = None
    corepower: float | None = None
    maxrss: int | None = None
    minrss: int | None = None
    maxtime: int | None = None
    mintime: int | None = None
    maxwdir: int | None = None
    maxinputsize: int | None = None
    """-1: input is always read directly."""
    direct_access_lan: bool = False
    direct_access_wan: bool = False
    releases: tuple[str, ...] = ()
    fairshare_policy: str | None = None
    wnconnectivity: str | None = None
    transferringlimit: int | None = None
    max_diskio: float | None = None
    pledged_cpu: int | None = None
    """-1: opportunistic."""
    jobseed: str | None = None
    catchall: Mapping[str, str | None] = {}
    num_slots: Mapping[str | None, Mapping[str | None, int]] = {}
    """Share (None: any) → resource type (None: any) → slots."""
    blacklisted: bool = False
    storage_free_gb: float | None = None
    """Free and expired space of its storage, without what must stay free; None: not known."""
    input_free_gb: float | None = None
    activity: Mapping[str, str] = {}
    """read_lan, write_lan, read_wan, write_wan → ON, OFF or TEST (modern)."""
    vp_endpoint: bool = False
    """Whether it reads through a cache whatever is somewhere (virtual placement)."""
    endpoints_in: tuple[str, ...] = ()
    endpoint_out: str | None = None
    max_io_intensity: float | None = None
    access: tuple[str, ...] | None = None
    """Users that it is for; None: all."""
    site_class: int = 0
    """1, 0 or -1: how it is rated for analysis (modern)."""
    cpu_levels: Mapping[str, float] = {}
    """CPU level → percent of its nodes that have it (modern)."""
    problem: str | None = None
    """What is wrong with its description: it is no candidate then."""

    @property
    def unified(self) -> str:
        """The name under which its jobs, pilots and files are counted."""
        return self.name if self.parent is None else self.parent

    @property
    def cores(self) -> int:
        """Cores of a slot, at least 1."""
        return self.core_count or 1

    def has(self, key: str) -> bool:
        """Whether its catch-all names a key."""
        return key in self.catchall


class ResourceType(Struct, frozen=True):
    """A class of jobs by cores and memory per core."""

    name: str
    mincore: int
    maxcore: int | None = None
    minrampercore: int | None = None
    maxrampercore: int | None = None


RESOURCE_TYPES = (
    ResourceType("SCORE", 1, 1, None, 2000),
    ResourceType("SCORE_HIMEM", 1, 1, 2001, None),
    ResourceType("MCORE", 2, None, None, 2000),
    ResourceType("MCORE_HIMEM", 2, None, 2001, None),
)


def pseudo_queues(queue: Queue, types: tuple[ResourceType, ...] = RESOURCE_TYPES) -> list[Queue]:
    """A unified queue as one queue for each resource type that it has room for; another as itself."""
    if queue.capability != "ucore" or queue.parent is not None or queue.problem is not None:
        return [queue]
    total, found = queue.cores, []
    for one in types:
        if total < one.mincore:
            continue
        cores = total if one.maxcore is None else max(one.mincore, min(one.maxcore, total))
        most, least = queue.maxrss or 0, queue.minrss or 0
        maxrss = int(min(most * cores / total, most if one.maxrampercore is None else cores * one.maxrampercore))
        if not most:
            maxrss = cores * (one.maxrampercore or 0)
        minrss = int(
            max(least * cores / total, 0 if one.minrampercore is None else cores * one.minrampercore - cores + 1)
        )
        changed: dict[str, Any] = {"core_count": cores, "maxrss": maxrss, "minrss": minrss}
        found.append(replace(queue, name=f"{queue.name}/{one.name}", parent=queue.name, **changed))
    return found


def resource_type(
    cores: int | None,
    ram: int | None,
    unit: str | None,
    base: int | None,
    types: tuple[ResourceType, ...] = RESOURCE_TYPES,
) -> str | None:
    """The first resource type that a task belongs to; None: to none of them."""
    count = 1 if cores is None else cores or 8
    total = (ram or 0) * (count if (unit or "MB").startswith("MBPerCore") else 1) + (base or 0)
    per_core = int(total / count * 0.9)
    for one in types:
        if count < one.mincore or (one.maxcore is not None and count > one.maxcore):
            continue
        if one.minrampercore is not None and per_core < one.minrampercore:
            continue
        if one.maxrampercore is not None and per_core > one.maxrampercore:
            continue
        return one.name
    return None
