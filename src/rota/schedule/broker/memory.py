"""Memory: (baseRamCount + ramCount × cores) × 0.9 must lie between a queue's minrss and maxrss."""

from collections.abc import Callable
from math import floor

from rota.schedule.broker.config import Thresholds
from rota.schedule.broker.context import Context
from rota.schedule.broker.decision import Skip
from rota.schedule.broker.queue import NO_LIMIT, Queue
from rota.schedule.broker.task import Task

__all__ = ["asked_ram", "check_memory", "needed_mb"]


def asked_ram(task: Task, merging: bool, thresholds: Thresholds) -> int:
    """What the task says, or what was learned of the chunk if that is more, in its unit."""
    said, learned = task.merge_ram_count if merging else task.ram_count, task.chunk.ram_count
    ram = max(said, learned or 0) if said else learned or 0
    return max(ram, int(thresholds.number("MERGE_RAM_FLOOR"))) if merging else ram


def needed_mb(
    ram: float,
    unit: str | None,
    base: float | None,
    cores: int | None,
    merging: bool,
    flow: str,
    thresholds: Thresholds,
) -> int:
    """What a job is expected to need at a queue of so many cores, in MB."""
    per_core = unit in ("MBPerCore", "MBPerCoreFixed") and not merging
    need = ram * cores if per_core and cores else ram
    if thresholds.on("BASE_RAM_ALWAYS") or (per_core and flow == "production"):
        need += base or 0
    # products as 0.9 × 2000 are whole, and must not become less than that
    return floor(need * thresholds.number("RAM_COMPENSATION") + 1e-9)


def check_memory(context: Context) -> Callable[[Queue], Skip | None] | None:
    """What a job needs must be within what a slot gives."""
    task, values = context.task, context.values
    ram = asked_ram(task, context.merging, values)
    if not ram:
        return None
    flow, merging, per_core_limits = context.flow, context.merging, values.on("RAM_LIMITS_PER_CORE")
    known: dict[int | None, int] = {}

    def check(queue: Queue) -> Skip | None:
        cores = queue.core_count
        need = known.get(cores)
        if need is None:
            need = known[cores] = needed_mb(ram, task.ram_unit, task.base_ram_count, cores, merging, flow, values)
        if not need:
            return None
        most, least = queue.maxrss, queue.minrss
        if per_core_limits and (most or least):
            most, least = (most or 0) * queue.cores, (least or 0) * queue.cores
        if most not in NO_LIMIT and need > most:
            words = f"a job needs {need} MB, its maxrss is {most}"
            return Skip("-lowmemory", words, numbers={"need_MB": need, "maxrss": most})
        if least not in NO_LIMIT and need < least:
            words = f"a job needs {need} MB, its minrss is {least}"
            return Skip("-highmemory", words, numbers={"need_MB": need, "minrss": least})
        return None

    return check
