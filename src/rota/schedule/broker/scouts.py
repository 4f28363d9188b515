"""Scouts: the first few jobs of a task run first, and what they used sets what the rest asks for.

What is learned, by the reference's rules: a percentile of what was used, with a margin, in its units (MB, HS06 seconds
per event, kB). What a user fixed stays as it is. Nothing is learned from jobs that failed.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

__all__ = [
    "DEFAULTS", "MARGIN", "MOST", "SUCCESS", "Learned", "Preset", "Scouted", "Used", "checks", "evaluate", "learn",
    "percentile", "scout_priority",
]  # fmt: skip

MOST = 10
"""Scouts of a task, at the most."""
PRIORITY = 901
MANY_EVENTS = 10
"""A job with fewer events, per core, says too little of the time per event …"""
LONG_S = 6 * 3600
"""… unless it took this long."""
SHORT_CPU_S = 3600
MARGIN = 1.5
OUT_DISK_MOST_KB = 10_240
SUCCESS = 5
"""Tenths of the scouts that must succeed."""
DEFAULTS = {
    "SCOUT_RAMCOUNT_RANK": 75, "SCOUT_RAMCOUNT_MARGIN": 10, "SCOUT_RAMCOUNT_MIN": 0, "SCOUT_CPUTIME_RANK": 95,
    "SCOUT_DISK_IO_CAP": math.inf, "RAM_THR_EXAUSTED": 4, "SCOUT_WRONG_CPUTIME_THRESHOLD": 2,
}  # fmt: skip


def percentile(values: Sequence[float], rank: float) -> float:
    """The value at a rank from 0 to 100 of what is sorted, between two of them in a straight line."""
    if not values:
        raise ValueError("nothing has no percentile")
    ordered = sorted(values)
    at = (len(ordered) - 1) * min(max(rank, 0.0), 100.0) / 100
    low = math.floor(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


class Used(Struct, frozen=True):
    """What a scout that finished used. None: not known."""

    wall_s: float
    cores: int = 1
    max_pss_kb: float | None = None
    cpu_s: float | None = None
    events: int = 0
    input_mb: float = 0.0
    output_bytes: float | None = None
    work_mb: float | None = None
    corepower: float | None = None
    """HS06 per core of the queue; not known counts as 10."""
    read_kb: float | None = None
    write_kb: float | None = None
    pseudo_input: bool = False


class Preset(Struct, frozen=True):
    """What the task said itself."""

    ram_unit: str = "MBPerCore"
    base_ram_mb: float = 0.0
    ram_mb: float = 0.0
    cores: int = 1
    base_walltime_s: float = 0.0
    cpu_efficiency: float = 90.0
    cpu_time: float = 0.0
    cpu_time_unit: str = "HS06sPerEvent"
    walltime: float = 0.0
    out_disk_unit: str = "kB"
    out_disk: float = 0.0
    work_disk_mb: float = 0.0


class Learned(Struct, frozen=True):
    """What the rest of a task asks for; None: nothing was learned, the preset stays."""

    ram_mb: int | None = None
    cpu_time: int | None = None
    cpu_time_unit: str = "HS06sPerEvent"
    walltime: float | None = None
    out_disk_kb: int | None = None
    work_disk_mb: int | None = None
    io_intensity: float | None = None
    disk_io: float | None = None
    why: tuple[str, ...] = ()
    """What was learned from how many, in words."""


def learn(jobs: Sequence[Used], preset: Preset, thresholds: Mapping[str, Any] | None = None) -> Learned:
    """What is learned from the scouts that finished."""
    get = {**DEFAULTS, **(thresholds or {})}
    why: list[str] = []
    ram = _ram(jobs, preset, get)
    if ram is not None:
        why.append(f"memory {ram} MB from {sum(job.max_pss_kb is not None for job in jobs)} jobs")
    cpu = _cpu_time(jobs, preset, get)
    if cpu is not None:
        why.append(f"{cpu[0]} {cpu[1]}")
    walltime = _walltime(jobs, preset)
    out = _out_disk(jobs, preset)
    work = max((job.work_mb for job in jobs if job.work_mb is not None), default=None)
    return Learned(
        ram,
        None if cpu is None else cpu[0],
        preset.cpu_time_unit if cpu is None else cpu[1],
        walltime,
        out,
        None if work is None or work <= preset.work_disk_mb else math.ceil(work),
        max((_io(job) for job in jobs if job.wall_s > 0), default=None),
        _disk_io(jobs, float(get["SCOUT_DISK_IO_CAP"])),
        tuple(why),
    )


def _ram(jobs: Sequence[Used], preset: Preset, get: Mapping[str, Any]) -> int | None:
    if preset.ram_unit.endswith("Fixed"):
        return None
    per_core = preset.ram_unit.startswith("MBPerCore")
    used = []
    for job in jobs:
        if job.max_pss_kb is not None and job.max_pss_kb > 0:
            rest = max(0.0, job.max_pss_kb - preset.base_ram_mb * 1024)
            used.append(rest / max(1, job.cores) if per_core else rest)
    if not used:
        return None
    rank = percentile(used, float(get["SCOUT_RAMCOUNT_RANK"]))
    found = int(rank * (100 + float(get["SCOUT_RAMCOUNT_MARGIN"])) / 100 / 1024)
    return max(found, int(get["SCOUT_RAMCOUNT_MIN"]))


def _cpu_time(jobs: Sequence[Used], preset: Preset, get: Mapping[str, Any]) -> tuple[int, str] | None:
    """(cpu time per event, unit): small values are kept in thousandths."""
    if preset.cpu_time_unit.endswith("Fixed"):
        return None
    used = []
    for job in jobs:
        long = job.events >= MANY_EVENTS * max(1, job.cores) or job.wall_s > LONG_S or job.pseudo_input
        if job.events > 0 and long:
            wall = max(0.0, job.wall_s - preset.base_walltime_s)
            power = 10.0 if job.corepower is None else job.corepower
            used.append(wall * power * max(1, job.cores) * preset.cpu_efficiency / 100 / job.events)
    if not used:
        return None
    found = percentile(used, float(get["SCOUT_CPUTIME_RANK"])) * MARGIN
    if found < 10:
        return math.ceil(found * 1000), "mHS06sPerEvent"
    return math.ceil(found), "HS06sPerEvent"


def _walltime(jobs: Sequence[Used], preset: Preset) -> float | None:
    """Seconds per MB of input, for tasks that do not count in events."""
    used = max((job.cpu_s for job in jobs if job.cpu_s is not None), default=0.0)
    size = max((job.input_mb for job in jobs), default=0.0)
    found = (used if used >= SHORT_CPU_S else 0.0) * MARGIN / size if size > 0 else 0.0
    return found if found > preset.walltime else None


def _out_disk(jobs: Sequence[Used], preset: Preset) -> int | None:
    """kB per event, or per MB of input."""
    if preset.out_disk_unit.endswith("Fixed"):
        return None
    per_event = "PerEvent" in preset.out_disk_unit
    used = []
    for job in jobs:
        by = job.events if per_event else job.input_mb
        if job.output_bytes is not None and by > 0 and (not job.events or job.events >= MANY_EVENTS):
            used.append(math.ceil(job.output_bytes / 1024 / by))
    if not used:
        return None
    return min(OUT_DISK_MOST_KB, math.ceil(percentile(used, 75)))


def _io(job: Used) -> float:
    """kB per second and core that a job moves in and out."""
    moved = job.input_mb * 1024 + (job.output_bytes or 0.0) / 1024
    return moved / job.wall_s / max(1, job.cores)


def _disk_io(jobs: Sequence[Used], cap: float) -> float | None:
    rates = [
        ((job.read_kb or 0.0) + (job.write_kb or 0.0)) / job.wall_s
        for job in jobs
        if job.wall_s > 0 and (job.read_kb is not None or job.write_kb is not None)
    ]
    return min(cap, sum(rates) / len(rates)) if rates else None


class Scouted(Struct, frozen=True):
    """What becomes of a task with scouts: wait, go (the rest may run) or broken."""

    what: str
    why: str


def evaluate(scouts: int, finished: int, failed: int, success: float = SUCCESS) -> Scouted:
    """Judge the scouts: the rest goes once half of them finished, or all ended and enough of them well."""
    ended = finished + failed
    if scouts <= 0:
        return Scouted("go", "there are no scouts")
    if ended < scouts and finished * 2 < scouts:
        return Scouted("wait", f"{finished} of {scouts} scouts finished, half are waited for")
    if not finished:
        return Scouted("broken", f"all {scouts} scouts failed")
    if ended >= scouts and finished < scouts * success / 10:
        return Scouted("broken", f"{finished} of {scouts} scouts finished, fewer than {success * 10:g} %")
    return Scouted("go", f"{finished} of {scouts} scouts finished")


def checks(
    learned: Learned, preset: Preset, expected: int, wall_s: float | None, thresholds: Mapping[str, Any] | None = None
) -> list[str]:
    """What a user should look at before many more jobs run: what was learned is far from what was said."""
    if expected <= 20:
        return []
    get, out = {**DEFAULTS, **(thresholds or {})}, []
    factor = float(get["SCOUT_WRONG_CPUTIME_THRESHOLD"])
    if learned.cpu_time is not None and preset.cpu_time > 0:
        found = learned.cpu_time / (1000 if learned.cpu_time_unit.startswith("m") else 1)
        if found > factor * preset.cpu_time and (wall_s or 0) > 86_400:
            out.append(f"the time per event is {found:g}, {preset.cpu_time:g} was said, and jobs take more than a day")
    most = float(get["RAM_THR_EXAUSTED"]) * 1000
    if learned.ram_mb is not None and learned.ram_mb > most >= preset.ram_mb:
        out.append(f"memory per core is {learned.ram_mb} MB, more than {most:g} MB; {preset.ram_mb:g} MB was said")
    return out


def scout_priority(priority: int) -> int:
    """The priority of scouts of a task."""
    return max(PRIORITY, priority + 1)
