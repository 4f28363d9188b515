"""The analysis flow: throttle, candidates, filters with and without locality of input, weights, the best ten.

Without any the task waits 20 minutes.
"""

import re
from collections.abc import Callable, Sequence

from msgspec import Struct

from rota.schedule.broker import activity, disk, fairshare, memory, software, users, walltime
from rota.schedule.broker.config import Thresholds
from rota.schedule.broker.context import Check, Context
from rota.schedule.broker.decision import Candidate, Decision, Skip
from rota.schedule.broker.funnel import Funnel
from rota.schedule.broker.locality import check_input, check_virtual, data_weight, local_gb
from rota.schedule.broker.queue import Queue
from rota.schedule.broker.task import Task
from rota.schedule.broker.weight import Factor, Factors, bound_factors, running_jobs
from rota.schedule.broker.world import Outcomes, World

__all__ = ["CHECKS", "broker_analysis"]


def check_status(context: Context) -> Callable[[Queue], Skip | None] | None:
    """The queue must be online, unless it was preassigned."""
    only, named = context.values.on("ONLINE_ONLY"), context.task.site

    def check(queue: Queue) -> Skip | None:
        status = queue.status
        if status == "online" or queue.unified == named or (context.list_pre and (only or status != "offline")):
            return None
        if only or status in ("offline", "brokeroff", "test"):
            return Skip("-status", f"its status is {status}", numbers={"status": status})
        return None

    return check


def check_share(context: Context) -> Callable[[Queue], Skip | None] | None:
    """Zero shares count in analysis too (modern)."""
    return fairshare.zero_share(context) if context.modern and not context.site_pre else None


def check_direct_access(context: Context) -> Callable[[Queue], Skip | None] | None:
    """A task that reads only directly needs a queue that can (modern)."""
    return disk.check_direct_access(context) if context.modern else None


def check_gpu(context: Context) -> Callable[[Queue], Skip | None] | None:
    """A queue that is for GPUs takes tasks whose platform it publishes."""
    published, platform = context.world.software, context.task.architecture
    text = (platform or "").split("@")[0].split("#")[0].split("&")[0]

    def check(queue: Queue) -> Skip | None:
        if not queue.has("gpu"):
            return None
        entry = published.get(queue.unified) or {}
        if text and text in (entry.get("cmtconfigs") or ()):
            return None
        return Skip("-gpu", f"it is for GPUs, and does not publish the platform {text or 'of the task'}")

    return check


def check_closed(context: Context) -> Callable[[Queue], Skip | None] | None:
    """A queue where jobs of the task were closed lately is left out."""
    outcomes = context.world.outcomes
    if context.site_pre or context.merging or not context.values.on("SKIP_CLOSED") or not outcomes:
        return None
    hours = context.values.number("TW_DONE_JOB_STAT")

    def check(queue: Queue) -> Skip | None:
        closed = outcomes.get(queue.unified, _NONE).closed
        if not closed:
            return None
        words = f"{closed} jobs of the task were closed there in the last {hours:g} h"
        return Skip("-closed", words, numbers={"closed": closed})

    return check


_NONE = Outcomes()


def check_time(context: Context) -> Callable[[Queue], Skip | None] | None:
    """The time of a job must be within what the queue gives."""
    if context.merging:
        return None
    by_cpu = context.values.on("ANALYSIS_WALLTIME_BY_CPU")
    return walltime.check_walltime(context) if by_cpu else walltime.check_walltime_raw(context)


def check_access(context: Context) -> Callable[[Queue], Skip | None] | None:
    """Some queues are for some users."""
    user = context.task.user_name or context.world.user
    no = Skip("-limitedaccess", f"it is only for users among whom {user} is not")
    return lambda queue: no if queue.access is not None and user not in queue.access else None


def check_cloud(context: Context) -> Callable[[Queue], Skip | None] | None:
    """A task may name a cloud."""
    cloud = context.task.cloud
    if not cloud or cloud in ("WORLD", "any"):
        return None

    def check(queue: Queue) -> Skip | None:
        if queue.cloud == cloud:
            return None
        return Skip("-cloudmismatch", f"the task is for the cloud {cloud}, it is of {queue.cloud or 'none'}")

    return check


def check_excluded(context: Context) -> Callable[[Queue], Skip | None] | None:
    """Queues that the task excludes are left out."""
    matches = _matcher(context.task.excluded_site)
    no = Skip("-excluded", "the task excludes it (excludedSite)")
    return None if matches is None else lambda queue: no if matches(queue.unified) or matches(queue.name) else None


CHECKS: tuple[Check, ...] = (
    Check("status", check_status),
    Check("zero share", check_share),
    Check("diskIO", disk.check_diskio),
    Check("ioIntensity", disk.check_io_intensity),
    Check("cores", activity.check_cores),
    Check("gpu queues", check_gpu),
    Check("closed jobs", check_closed),
    Check("software and hardware", software.check_software),
    Check("memory", memory.check_memory),
    Check("direct access", check_direct_access),
    Check("scratch disk", disk.check_scratch),
    Check("storage", disk.check_storage),
    Check("walltime", check_time),
    Check("pilots", activity.check_pilots),
    Check("access", check_access),
    Check("cloud", check_cloud),
    Check("excluded", check_excluded),
)
"""In the order of the reference; before them comes the input, and after them what looks at all queues together."""


class Pass(Struct):
    """What one pass, with or without locality of input, left over."""

    funnel: Funnel
    queues: list[Queue]
    bad: dict[str, Skip]
    """Queues with problems that pass."""
    room: dict[str, float]
    """How many more jobs the user may queue there."""
    union: bool


def broker_analysis(
    task: Task,
    world: World,
    thresholds: Thresholds,
    checks: Sequence[Check] = CHECKS,
    name: str = "analysis",
    factors: Sequence[Factor] = (),
) -> Decision:
    """Broker an analysis task."""
    context = Context("analysis", task, world, thresholds)
    minutes = thresholds.number("PENDING_ANALYSIS")
    why = throttle_first(context)
    if why is not None:
        return Funnel(name, context, minutes).failed(why, throttled=True)
    ways, again = _ways(context)
    done = _pass(name, context, ways[0], checks, minutes)
    all_bad = bool(done.queues) and all(queue.name in done.bad for queue in done.queues)
    if len(ways) > 1 and (not done.queues or (again and all_bad)):
        second = _pass(name, context, ways[1], checks, minutes)
        if second.queues or not done.queues:
            done = second
    if not done.queues:
        return done.funnel.failed()
    return _choose(context, done, bound_factors(context, factors))


def throttle_first(context: Context) -> str | None:
    """Why no queue is looked at; None: they are."""
    return users.throttle(context)


def _ways(context: Context) -> tuple[list[bool], bool]:
    """(whether input must be local, for the passes in order; whether the second is tried also if all have problems)."""
    task, values = context.task, context.values
    cutoff = values["IO_INTENSITY_CUTOFF_USER"]
    little = cutoff is not None and task.io_intensity is not None and task.io_intensity <= cutoff
    free = task.task_priority >= values.number("LOCALITY_PRIORITY") or little
    more = task.task_priority > 1000 or task.chunk.n_datasets > 1
    if not context.n_files:
        return [True], False
    if context.modern:
        hours = values["DATA_CHECK_TIMEOUT_USER"]
        late = hours is not None and task.hours_frozen is not None and task.hours_frozen > hours
        again = context.world.source_readable and (free or late)
        more = context.world.source_readable and (more or context.rules.job_cloning)
        return ([True, False] if again or more else [True]), again
    if free:
        return ([True, False] if context.merging else [False]), False
    return ([True, False] if more or values.on("LOCALITY_FALLBACK") else [True]), False


def _pass(name: str, context: Context, local: bool, checks: Sequence[Check], minutes: float) -> Pass:
    """All filters, with or without locality of input."""
    task, world = context.task, context.world
    funnel = Funnel(name, context, minutes)
    funnel.locality = local
    rows = [
        queue for queue in world.in_order() if queue.type in ("analysis", "unified") or queue.has("grandly_unified")
    ]
    named = _preassigned(context, rows, funnel)
    queues = funnel.begin([one for queue in rows for one in world.parts(queue)])
    union = False
    if local:
        kept, out, union = check_input(context, queues)
        queues = funnel.step("input", queues, kept, out)
    virtual = Check("virtual placement", lambda one: check_virtual(one, local, union))
    queues = funnel.apply([*checks[:4], virtual, *checks[4:]], queues)
    queues = _included(context, funnel, queues)
    if context.site_pre:
        no = Skip("-nonpreassigned", f"the task is for {task.site}")
        kept = [queue for queue in queues if queue.unified in named]
        queues = funnel.step("preassigned", queues, kept, {one.name: no for one in queues if one.unified not in named})
    normal = [queue for queue in queues if not queue.unified.endswith("_HOSPITAL")]
    if normal and len(normal) < len(queues):
        no = Skip("-hospital", "it is for jobs that failed elsewhere, and other queues are left")
        ill = {one.name: no for one in queues if one.unified.endswith("_HOSPITAL")}
        queues = funnel.step("hospital", queues, normal, ill)
    bad: dict[str, Skip] = {}
    queues = _cap_types(context, funnel, queues)
    queues = _overload(context, funnel, queues, local, bad)
    room = _problems(context, queues, bad)
    return Pass(funnel, queues, bad, room, union)


def _preassigned(context: Context, rows: list[Queue], funnel: Funnel) -> frozenset[str]:
    """The queue that the task names, if there is one of that name; it becomes a candidate, whatever its type is."""
    task, queues = context.task, context.world.queues
    context.list_pre = bool(task.included_site)
    context.site_pre = False
    for key, names in (("includedSite", task.included_site), ("excludedSite", task.excluded_site)):
        for name in _names(names):
            if name != "AUTO" and "*" not in name and name.partition("/")[0] not in queues:
                context.warnings.append(f"{key} names {name}, and there is no such queue")
    if not task.site:
        return frozenset()
    if task.site not in queues:
        readers = frozenset(queue.name for queue in rows if task.site in queue.endpoints_in)
        said = f"stands for {', '.join(sorted(readers))}" if readers else "is passed over"
        context.warnings.append(f"site {task.site} is no queue: it {said}")
        return readers
    context.site_pre = True
    if all(queue.name != task.site for queue in rows):
        rows.append(queues[task.site])
    return frozenset((task.site,))


def _names(names: tuple[str, ...] | str | None) -> list[str]:
    parts = names.split(",") if isinstance(names, str) else names or ()
    return [name.strip() for name in parts if name.strip()]


def _matcher(names: tuple[str, ...] | str | None) -> Callable[[str], bool] | None:
    """Whether a name is in a list; entries with a star are patterns."""
    listed = _names(names)
    if not listed:
        return None
    exact = {name for name in listed if "*" not in name}
    patterns = [_pattern(name) for name in listed if "*" in name]
    return lambda name: name in exact or any(pattern.search(name) for pattern in patterns)


def _pattern(name: str) -> re.Pattern[str]:
    try:
        return re.compile(name)
    except re.error:
        return re.compile(".*".join(map(re.escape, name.split("*"))))


def _included(context: Context, funnel: Funnel, queues: list[Queue]) -> list[Queue]:
    """Only queues that the task includes, if it does; AUTO: others too, if none of them is left."""
    listed = _names(context.task.included_site)
    if not listed and context.task.site and not context.site_pre:
        listed = sorted(queue.name for queue in queues if context.task.site in queue.endpoints_in)
    matches = _matcher(tuple(name for name in listed if name != "AUTO"))
    if matches is None:
        return queues
    kept = [queue for queue in queues if matches(queue.unified) or matches(queue.name)]
    if not kept and "AUTO" in listed:
        return queues
    no, names = Skip("-notincluded", "the task does not include it (includedSite)"), {queue.name for queue in kept}
    return funnel.step("included", queues, kept, {one.name: no for one in queues if one.name not in names})


def _cap_types(context: Context, funnel: Funnel, queues: list[Queue]) -> list[Queue]:
    """Queues with many jobs of the task's type queued are left out."""
    if not context.values.on("CAP_RT_ANALYSIS"):
        return queues
    out, kept = {}, []
    for queue in queues:
        jobs = context.world.jobs_by_type.get(queue.unified, {}).get(context.type or "")
        limit = 0 if jobs is None else 2 * max(20, jobs.running)
        if jobs is None or jobs.queued <= limit:
            kept.append(queue)
            continue
        words = f"{jobs.queued} jobs of type {context.type} are queued, with {jobs.running} running {limit} may be"
        out[queue.name] = Skip("-cap_rt", words, False, {"queued": jobs.queued, "limit": limit})
    return funnel.step("queued jobs", queues, kept, out)


def _overload(context: Context, funnel: Funnel, queues: list[Queue], local: bool, bad: dict[str, Skip]) -> list[Queue]:
    """Queues with more queued jobs per running one than most are left out, unless nobody else has the input."""
    if context.merging:
        return queues
    world, values = context.world, context.values
    least, offset = values.number("OVERLOAD_MIN_QUEUE"), values.number("OVERLOAD_RATIO_OFFSET")
    rows = [world.of_share(name, context.share) for name in world.jobs]
    running = sum(row.running for row in rows)
    ratio = sum(row.queued for row in rows) / running if running else 0.0
    kept, spare = [], []
    out: dict[str, Skip] = {}
    for queue in queues:
        jobs = context.jobs(queue)
        if jobs.queued <= least or (jobs.running and jobs.queued / jobs.running <= ratio * offset):
            kept.append(queue)
            continue
        words = f"{jobs.queued} jobs are queued and {jobs.running} run; of all queues {ratio:.3g} per running one"
        tag = "-overloaded_vp" if local and context.n_files and queue.vp_endpoint else "-overloaded"
        if tag == "-overloaded":
            spare.append(queue)
        out[queue.name] = Skip(tag, words, False, {"queued": jobs.queued, "running": jobs.running, "ratio": ratio})
        if not jobs.running:
            bad[queue.name] = Skip("-badsite", f"{jobs.queued} jobs are queued, and none runs", False)
    if not kept and spare:
        out = {name: skip for name, skip in out.items() if skip.tag != "-overloaded"}
        kept = spare
    return funnel.step("overload", queues, kept, out)


def _problems(context: Context, queues: list[Queue], bad: dict[str, Skip]) -> dict[str, float]:
    """Note where jobs of the task fail, or where its user has too many queued; returns how many more it may queue."""
    world, values = context.world, context.values
    room: dict[str, float] = {}
    behind = values.on("FAILURES_BEHIND_STABILIZER")
    least, hours = values.number("MIN_BAD_JOBS_TO_SKIP_PQ"), values.number("TW_DONE_JOB_STAT")
    for queue in queues:
        found, room[queue.name] = users.at_queue(context, queue)
        if context.merging:
            continue
        if found.bad:
            bad[queue.name] = Skip("-badsite", found.words, False, {"limit": found.limit})
        done = world.outcomes.get(queue.unified)
        if done is None or (behind and found.limit is None):
            continue
        ended, limit = done.failed + done.closed, max(2 * done.finished, least)
        if ended > limit:
            words = (
                f"of the task's jobs there {done.failed} failed and {done.closed} were closed in the last {hours:g} h"
            )
            words += f", {done.finished} finished: {limit:g} bad ones may be"
            bad[queue.name] = Skip("-badsite", words, False, {"bad": ended, "limit": limit})
    return room


def _choose(context: Context, done: Pass, more: Factors) -> Decision:
    """Weigh the queues, those that the task has used first; leave out those with problems; take the best."""
    funnel, values, used = done.funnel, context.values, context.world.used
    local = bool(funnel.locality)
    weights = _new_weights(context, done) if context.modern else {}
    rows = [_weigh(context, queue, weights, local and not done.union, more) for queue in done.queues]
    by_name = {queue.name: queue for queue in done.queues}

    def key(row: Candidate) -> tuple[bool, float, bool, str]:
        queue = by_name[row.queue]
        far = context.modern and not context.files_on_disk(queue)
        return (queue.unified not in used, -row.weight, far, row.queue)

    rows.sort(key=key)
    spared = context.task.site if context.site_pre else None
    out = {
        row.queue: Skip("-badsite", done.bad[row.queue].words, False, done.bad[row.queue].numbers, row.weight)
        for row in rows
        if row.queue in done.bad and by_name[row.queue].unified != spared
    }
    kept = [row for row in rows if row.queue not in out]
    left = funnel.step("problems", done.queues, [by_name[row.queue] for row in kept], out)
    most = int(values.number("CANDIDATES_MOST"))
    if context.task.chunk.distributed:
        most = max(most, len(kept))
    elif context.rules.job_cloning:
        having = sum(context.files_on_disk(queue) == context.n_files for queue in left)
        most = max(having, context.rules.n_sites_per_job or 1)
    tag = "-lowweight" if context.code else "-low_weight"
    words = f"{most} queues have more weight than"
    cut = {row.queue: Skip(tag, f"{words} {row.weight:.6g}", False, weight=row.weight) for row in kept[most:]}
    funnel.step("best", left, left[:most], cut)
    return funnel.done(kept[:most])


def _weigh(context: Context, queue: Queue, new: dict[str, float], local: bool, more: Factors) -> Candidate:
    """A queue with its weight, and what that is made of."""
    jobs = context.jobs(queue)
    running, why = running_jobs(context, queue, jobs.running, jobs.starting)
    defined = jobs.defined + context.world.live.get(queue.unified, 0)
    inputs = {
        "running": running, "running_from": why, "activated": jobs.activated, "assigned": jobs.assigned,
        "starting": jobs.starting, "defined": defined,
    }  # fmt: skip
    if new:
        factors = [("user's room", new[queue.name])]
    else:
        queued = jobs.activated + jobs.assigned + jobs.starting + defined
        factors = [("running/queued", (running + 1) / (queued + 1))]
    if context.n_files:
        factors.append(("data", data_weight(context, queue) if local else local_gb(context, queue)))
        if not local and context.files_on_disk(queue) < context.n_files and jobs.throttled:
            factors.append(("1/throttled", 1 / (jobs.throttled + 1)))
    factors += [(each, asked(queue)) for each, asked in more]
    weight = 1.0
    for _, factor in factors:
        weight *= factor
    return Candidate(queue.name, weight, tuple(factors), inputs)


def _new_weights(context: Context, done: Pass) -> dict[str, float]:
    """Weights by how many jobs the user may still queue, site class by site class (modern)."""
    jobs = context.task.chunk.jobs or context.portion.jobs
    room, smallest = done.room, 2.0**-20
    by_class: dict[int, list[Queue]] = {1: [], 0: [], -1: []}
    classed = context.share in users.BY_CLASS
    for queue in done.queues:
        by_class[queue.site_class if classed else 0].append(queue)
    left = {grade: sum(room[queue.name] for queue in rows) for grade, rows in by_class.items()}
    meant = _by_class(context.task.user_class, min(jobs, sum(left.values())), left) if classed else {0: float(jobs)}
    found = {}
    for grade, rows in by_class.items():
        part, total, count = meant.get(grade, 0.001), left[grade], len(rows)
        for queue in rows:
            own = room[queue.name]
            if total - part > 0 and not context.merging:
                ratio = max(own - part / count, 0.001 * part) / (total - part)
            else:
                ratio = own / total if total > 0 else 1 / count
            found[queue.name] = part * ratio + smallest
    return found


def _by_class(user_class: str | None, jobs: float, left: dict[int, float]) -> dict[int, float]:
    """Class of sites → jobs meant for it, by the class of the user."""
    if user_class == "C":
        return {1: 0.001, 0: 0.001, -1: jobs}
    if user_class == "B":
        middle = min(jobs, left[0])
        low = jobs - middle
        return {1: 0.001, 0: max(middle - 0.1, 0.001), -1: low + 0.1} if middle > 0 else {1: 0.001, 0: 0, -1: low}
    high = min(jobs, left[1])
    middle = min(jobs - high, left[0])
    low = jobs - high - middle
    if high > 0:
        return {1: max(high - 0.052, 0.001), 0: middle + 0.05, -1: low + 0.002}
    return {1: high, 0: middle, -1: low}
