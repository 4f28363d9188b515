"""Time: cpuTime × nEvents / (cores × corepower × cpuEfficiency) + baseTime, within a queue's maxtime and mintime."""

from collections.abc import Callable

from rota.schedule.broker.context import Context
from rota.schedule.broker.decision import Skip
from rota.schedule.broker.queue import Queue

__all__ = ["capacity", "check_walltime", "check_walltime_raw", "estimate_s", "least_maxtime"]

HS06 = ("HS06sPerEvent", "HS06sPerEventFixed", "mHS06sPerEvent", "mHS06sPerEventFixed")


def capacity(seconds: float, base: float, cores: float | None, corepower: float | None, efficiency: float) -> int:
    """HS06 seconds that a slot gives in so many seconds."""
    value = seconds - base
    for factor in (cores, corepower):
        if value and factor:
            value *= factor
    return int(value * efficiency / 100 + 1e-9)


def estimate_s(need: float, base: float, cores: float | None, corepower: float | None, efficiency: float) -> float:
    """The time that a job takes, in seconds."""
    return need / ((cores or 1) * (corepower or 1) * efficiency / 100) + base


def least_maxtime(need: float, base: float, cores: float | None, corepower: float | None, efficiency: float) -> int:
    """The shortest maxtime, in whole seconds, with which a queue passes."""
    seconds = int(estimate_s(need, base, cores, corepower, efficiency))
    while need > capacity(seconds, base, cores, corepower, efficiency):
        seconds += 1
    return seconds


def needed(context: Context) -> tuple[float | None, bool]:
    """(what one job takes, None: not known; whether that is in HS06 seconds)."""
    task, portion = context.task, context.portion
    by_cpu = task.cpu_time_unit in HS06
    if by_cpu:
        time = task.cpu_time
        if time is not None and (task.cpu_time_unit or "").startswith("m"):
            time /= 1000
        need = None if time is None else time * portion.events
    else:
        need = None if task.walltime is None else task.walltime * portion.effective_mb
    if need is not None and context.event_service:
        tries = 3 if context.rules.max_attempt_es is None else context.rules.max_attempt_es + 1
        need /= max(1, (context.rules.n_es_consumers or 1) * tries)
    return need, by_cpu


def check_walltime(context: Context) -> Callable[[Queue], Skip | None] | None:
    """The time of a job must be within what the queue gives."""
    task, values = context.task, context.values
    need, by_cpu = needed(context)
    scout = context.scout and not context.site_pre
    unknown = need is None or (context.modern and by_cpu and not task.cpu_time)
    if context.code and need is None and not scout and not context.merging:
        return None
    base, efficiency = task.base_walltime or 0, task.cpu_efficiency or 90
    hours, by_capacity = values.number("SCOUT_MIN_TIME"), values.on("SCOUT_TIME_BY_CAPACITY")
    tag = ("-scoutwalltime" if context.code else "-scout_walltime") if scout else (
        "-zerowalltime" if context.code else "-min_walltime")  # fmt: skip
    long_queues = scout or context.merging or (unknown and by_capacity)

    def gives(queue: Queue, seconds: int) -> float:
        if by_cpu:
            return capacity(seconds, base, queue.core_count, queue.corepower, efficiency)
        return seconds * queue.cores

    def check(queue: Queue) -> Skip | None:
        most, least = queue.maxtime, queue.mintime
        unit = "HS06 s" if by_cpu else "s"
        if most and need is not None and need > (cap := gives(queue, most)):
            took = (
                estimate_s(need, base, queue.core_count, queue.corepower, efficiency) if by_cpu else need / queue.cores
            )
            words = f"a job takes {took:.0f} s ({need:g} {unit}), its maxtime is {most} s ({cap:g} {unit})"
            return Skip("-shortwalltime", words, numbers={"need": need, "capacity": cap, "maxtime": most})
        if most and long_queues:
            if not by_capacity:
                enough, has, asked = most >= hours * 3600, f"{most} s", f"{hours * 3600:g} s"
            else:
                line = hours * 3600 * 10 * (queue.cores if context.modern else 1)
                enough, has, asked = gives(queue, most) >= line, f"{gives(queue, most):g} {unit}", f"{line:g}"
            if not enough:
                who = "scouts" if scout else "merge jobs" if context.merging else "tasks without a time"
                words = f"its maxtime gives {has}, {who} ask for {asked}"
                return Skip(tag, words, numbers={"maxtime": most, "asked": asked})
        if least and (need is None or need < (cap := gives(queue, least))):
            if need is None:
                words = f"its jobs last {least} s at least, and the task says no time"
            else:
                words = f"a job takes {need:g} {unit}, jobs of its mintime of {least} s take {cap:g}"
            return Skip("-longwalltime", words, numbers={"need": need, "mintime": least})
        return None

    return check


def check_walltime_raw(context: Context) -> Callable[[Queue], Skip | None] | None:
    """The task's walltime must be between mintime and maxtime (analysis)."""
    task = context.task
    if not task.walltime or context.merging:
        return None
    need = task.walltime * context.portion.effective_mb

    def check(queue: Queue) -> Skip | None:
        if queue.maxtime and need > queue.maxtime:
            words = f"a job takes {need:g} s, its maxtime is {queue.maxtime} s"
            return Skip("-shortwalltime", words, numbers={"need": need, "maxtime": queue.maxtime})
        if queue.mintime and need < queue.mintime:
            words = f"a job takes {need:g} s, its mintime is {queue.mintime} s"
            return Skip("-longwalltime", words, numbers={"need": need, "mintime": queue.mintime})
        return None

    return check
