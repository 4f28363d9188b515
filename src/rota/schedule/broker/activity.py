"""What a queue is for and how it does: status, cores, event service, pledges, pilots, starts, transfers."""

from collections.abc import Callable

from rota.schedule.broker.context import Context
from rota.schedule.broker.decision import Skip
from rota.schedule.broker.queue import Queue

__all__ = [
    "check_chain", "check_cores", "check_dynamic", "check_event_service", "check_full_chain", "check_high_priority",
    "check_inactive", "check_jumbo", "check_most_cores", "check_pilots", "check_pledges", "check_status",
    "check_transferring",
]  # fmt: skip

Bound = Callable[[Queue], Skip | None] | None


def check_status(context: Context) -> Bound:
    """The queue must be online, unless it was preassigned."""
    if context.pre:
        return None
    allowed = ("online",) if context.values.on("ONLINE_ONLY") else ("online", "standby")

    def check(queue: Queue) -> Skip | None:
        if queue.status in allowed:
            return None
        return Skip("-status", f"its status is {queue.status}", numbers={"status": queue.status})

    return check


def check_high_priority(context: Context) -> Bound:
    """High priority and scouts: only at the nucleus, or not where queues are opportunistic."""
    if context.pre or not (context.priority >= context.values.number("HIGH_PRIORITY") or context.scout):
        return None
    who = "scouts" if context.scout else f"priority {context.priority}"
    nucleus, avoid = context.values.on("HIGH_PRIORITY_AT_NUCLEUS"), context.values.on("SKIP_OPPORTUNISTIC")
    if not nucleus and not avoid:
        return None

    def check(queue: Queue) -> Skip | None:
        if nucleus and context.task.nucleus is not None and not context.near_nucleus(queue):
            return Skip("-opportunistic", f"{who}: only queues of the nucleus {context.task.nucleus}")
        if avoid and queue.pledged_cpu == -1:
            return Skip("-opportunistic", f"{who}: not where queues are opportunistic", numbers={"pledgedCPU": -1})
        return None

    return check


def check_inactive(context: Context) -> Bound:
    """High priority, scouts and merging avoid queues where nothing starts although jobs wait."""
    urgent = context.priority >= context.values.number("HIGH_PRIORITY") or context.scout
    if context.pre or not (urgent or context.merging or context.rules.merge_output):
        return None
    since, world, most = context.world.hours_since_start, context.world, context.values.number("INACTIVE_HOURS")

    def check(queue: Queue) -> Skip | None:
        hours = since.get(queue.unified)
        if hours is None or hours <= most:
            return None
        jobs = world.of_share(queue.unified, None)
        waiting = jobs.activated + jobs.starting
        if waiting <= 0:
            return None
        words = f"no job has started there for {hours:g} h, and {waiting} wait"
        return Skip("-inactive", words, False, {"hours": hours, "waiting": waiting})

    return check


def check_jumbo(context: Context) -> Bound:
    """Queues for jumbo jobs take nothing else, and need enough events."""
    if context.site_pre:
        return None
    if context.rules.n_jumbo_jobs is None:
        no = Skip("-jumbo", "it is only for jumbo jobs")
        return lambda queue: no if queue.has("useJumboJobs") else None
    events = context.task.chunk.ready_events
    if events is None:
        return None

    def check(queue: Queue) -> Skip | None:
        least = _number(queue, "minEventsForJumbo")
        if not queue.has("useJumboJobs") or least is None or events >= least:
            return None
        words = f"{events} events are ready, it asks for {least:g}"
        return Skip("-fewevents", words, numbers={"events": events, "least": least})

    return check


def _number(queue: Queue, key: str) -> float | None:
    """A number in the catch-all; None: there is none."""
    try:
        return float(queue.catchall[key] or "")
    except (KeyError, ValueError):
        return None


def check_cores(context: Context) -> Bound:
    """Tasks of several cores go to such queues, those of one core to others."""
    mode = context.multicore
    if context.site_pre or mode == "any":
        return None
    asked = context.cores or 1

    def check(queue: Queue) -> Skip | None:
        cores = queue.core_count
        if (cores or 0) > 1 if mode == "only" else cores in (None, 0, 1):
            return None
        asks = "several cores" if asked < 2 and mode == "only" else _cores(asked)
        words = f"the task is for {asks}, it has {_cores(cores or 1)}"
        return Skip("-cpucore", words, numbers={"task": asked, "queue": cores})

    return check


def _cores(count: int) -> str:
    return "1 core" if count == 1 else f"{count} cores"


def check_most_cores(context: Context) -> Bound:
    """A task may say how many cores it can use at most (modern)."""
    most = context.rules.max_core_count
    if not context.modern or not most or context.site_pre:
        return None

    def check(queue: Queue) -> Skip | None:
        if (queue.core_count or 0) <= most:
            return None
        words = f"the task uses {most} cores at most, it has {queue.core_count}"
        return Skip("-max_cpucore", words, numbers={"task": most, "queue": queue.core_count})

    return check


def check_event_service(context: Context) -> Bound:
    """Queues say by `jobseed` whether they take event service jobs."""
    if context.site_pre:
        return None
    if not context.event_service:
        no = Skip("-nones", "it takes only event service jobs", numbers={"jobseed": "es"})
        return lambda queue: no if queue.jobseed == "es" else None

    def check(queue: Queue) -> Skip | None:
        seed = queue.jobseed or "std"
        if seed == "std":
            return Skip("-es", "it takes no event service jobs", numbers={"jobseed": seed})
        if seed == "eshigh" and not context.es_high:
            return Skip("-eshigh", "it takes event service jobs of high priority only", numbers={"jobseed": seed})
        if queue.parent is not None and (queue.core_count or 1) <= 1:
            return Skip("-es_ucore", "event service jobs run on several cores of unified queues")
        return None

    return check


def check_dynamic(context: Context) -> Bound:
    """A task whose jobs take as many events as the queue says needs a queue that says it."""
    least = context.rules.dynamic_num_events
    if least is None or context.site_pre or context.modern:
        return None

    def check(queue: Queue) -> Skip | None:
        count = _number(queue, "nSimEvents")
        if count is not None and count >= least:
            return None
        has = "it does not say how many" if count is None else f"it takes {count:g}"
        return Skip("-dyn", f"jobs take at least {least} events, {has}", numbers={"events": count, "least": least})

    return check


def check_transferring(context: Context) -> Bound:
    """A queue with many jobs that wait for their output to be moved gets no more."""
    world, default = context.world, context.values.number("TRANSFERRING_LIMIT_DEFAULT")

    def check(queue: Queue) -> Skip | None:
        if queue.unified not in world.jobs:
            return None
        jobs = world.of_share(queue.unified, None)
        limit = max(queue.transferringlimit or default, 2 * jobs.running)
        if jobs.transferring <= limit or context.near_nucleus(queue) or context.at_nucleus(queue):
            return None
        words = f"{jobs.transferring} jobs are transferring, the limit is {limit:g} (running: {jobs.running})"
        return Skip("-transferring", words, False, {"transferring": jobs.transferring, "limit": limit})

    return check


def check_pledges(context: Context) -> Bound:
    """While work is short only pledged cores are used (modern)."""
    if not context.modern or not context.values.on("WORK_SHORTAGE") or context.site_pre:
        return None
    used = context.world.cores_used

    def check(queue: Queue) -> Skip | None:
        pledged = queue.pledged_cpu
        if pledged == -1:
            return Skip("-non_pledged", "work is short, and it is opportunistic")
        cores = used.get(queue.unified, 0)
        if pledged and pledged > 0 and cores > pledged:
            words = f"work is short, and {cores} cores run there of {pledged} pledged"
            return Skip("-over_pledged", words, numbers={"cores": cores, "pledged": pledged})
        return None

    return check


def check_chain(context: Context) -> Bound:
    """A task with t1Weight below 0 runs only at the nucleus."""
    if context.rules.t1_weight >= 0 or context.merging:
        return None
    no = Skip("-t1weight", f"the task runs only at queues of its nucleus {context.task.nucleus}")
    return lambda queue: None if context.near_nucleus(queue) else no


def check_full_chain(context: Context) -> Bound:
    """A chain that is processed at one nucleus stays there; queues for chains take nothing else (modern)."""
    if not context.modern:
        return None
    bare = any(
        context.world.queues[name].catchall.get("bareNucleus") in ("only", "allow") for name in context.nucleus_queues
    )
    chained = context.rules.full_chain in ("only", "require") and bare

    def check(queue: Queue) -> Skip | None:
        if chained:
            if queue.unified in context.nucleus_queues:
                return None
            return Skip("-full_chain", f"the whole chain runs at the nucleus {context.task.nucleus}")
        if queue.catchall.get("bareNucleus") == "only":
            return Skip("-not_full_chain", "it takes only tasks of whole chains")
        return None

    return check


def check_pilots(context: Context) -> Bound:
    """A queue where no pilot has asked for jobs is skipped, unless slots are set aside there."""
    label = context.task.prod_source_label
    production = context.flow == "production"
    if "test" in label or (production and (context.pre or (context.modern and context.express))):
        return None
    world, hours = context.world, context.values.number("PILOT_HOURS")
    jumbo, lasting = context.rules.n_jumbo_jobs is not None, not production

    def check(queue: Queue) -> Skip | None:
        if world.pilot_calls(queue.unified) > 0 or context.slots(queue) is not None:
            return None
        if jumbo and queue.has("useJumboJobs"):
            return None
        return Skip("-nopilot", f"no pilot has asked for jobs there for {hours:g} h", lasting, {"pilots": 0})

    return check
