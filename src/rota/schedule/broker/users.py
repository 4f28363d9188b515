"""Users: when a user or group gets no more jobs at all, and where a user has too many queued."""

from msgspec import Struct

from rota.schedule.broker.config import Thresholds
from rota.schedule.broker.context import Context
from rota.schedule.broker.queue import Queue

__all__ = ["Stabilized", "allowance", "stabilize", "throttle"]

TOTAL = "_total"
BY_CLASS = ("User Analysis", "Express Analysis")


def throttle(context: Context) -> str | None:
    """Why the user, or the working group, gets no more jobs now; None: it does."""
    task, world, values = context.task, context.world, context.values
    if context.modern and context.merging:
        return None
    who, of = ("group", "GROUP") if task.working_group else ("user", "USER")
    name = task.working_group or task.user_name or world.user
    for what, running, queued in (
        ("JOBS", world.user_running, world.user_queued),
        ("CORES", world.user_running_cores, world.user_queued_cores),
    ):
        key = f"CAP_RUNNING_{of}_{what}"
        cap = values[key]
        if not cap:
            continue
        if running > cap:
            return f"{who} {name} has {running} running {what.lower()}, {key} is {cap:g}"
        if queued > 2 * cap:
            return f"{who} {name} has {queued} queued {what.lower()}, twice {key} is {2 * cap:g}"
    used = world.quota_percent
    if used is not None and used > (90 if context.modern else 100):
        return f"{who} {name} uses {used:g} % of the global disk quota"
    return _over_share(context) if context.modern else None


def _over_share(context: Context) -> str | None:
    """Whether the share is used up for users of this class (modern)."""
    usage, world = context.world.share_usage_percent, context.world
    if usage is None or context.share != "User Analysis":
        return None
    grade = context.task.user_class
    if grade == "C" and usage > 90:
        return f"the share {context.share} uses {usage:g} % of its target, tasks of class C start below 90 %"
    if grade == "B" and usage > 95:
        return f"the share {context.share} uses {usage:g} % of its target, tasks of class B start below 95 %"
    if grade == "A":
        line = context.values.number("USER_USAGE_THRESHOLD_A")
        part = 0.5 if world.slots_left is None else world.slots_left / line
        if usage * (1 - part) > 100:
            return f"the share {context.share} uses {usage:g} % of its target, and its user has few slots left"
    return None


class Stabilized(Struct, frozen=True):
    """Whether a user has too many jobs queued at a queue."""

    bad: bool
    limit: float | None
    """Queued jobs that the user may have there; None: as many as it likes."""
    words: str = ""


def allowance(running: int, rate: float, users: int, user_running: int, thresholds: Thresholds) -> float:
    """Queued jobs that a user may have at a queue that runs so many and starts so many an hour."""
    most = max(
        thresholds.number("BASE_QUEUE_LENGTH_PER_PQ"),
        thresholds.number("STATIC_MAX_QUEUE_RUNNING_RATIO") * running,
        thresholds.number("MAX_EXPECTED_WAIT_HOUR") * rate,
    )
    part = max(1 / max(users, 1), user_running / running if running > 0 else 0)
    return max(
        thresholds.number("BASE_DEFAULT_QUEUE_LENGTH_PER_PQ_USER"),
        thresholds.number("BASE_QUEUE_RATIO_ON_PQ") * running,
        most * part,
    )


def stabilize(
    queued: int,
    running: int,
    rate: float,
    users: int,
    user_queued: int | None,
    user_running: int,
    thresholds: Thresholds,
) -> Stabilized:
    """Judge a user at a queue. `rate`: jobs of the share that start per hour; `user_queued` None: it has none there."""
    if queued < thresholds.number("BASE_QUEUE_LENGTH_PER_PQ"):
        return Stabilized(False, None)
    if queued < thresholds.number("BASE_EXPECTED_WAIT_HOUR_ON_PQ") * rate or user_queued is None:
        return Stabilized(False, None)
    limit = allowance(running, rate, users, user_running, thresholds)
    bad = user_queued > limit
    words = f"the user has {user_queued} jobs queued there, {limit:g} are allowed" if bad else ""
    return Stabilized(bad, limit, words)


def start_rate(context: Context, queue: Queue) -> float:
    """Jobs of the share that start per hour there."""
    world = context.world
    own, every = context.jobs(queue).running, world.of_share(queue.unified, None).running
    rate = world.start_rate.get(queue.unified, world.start_rate_default)
    return own * rate / every if every > 0 else 0.0


def at_queue(context: Context, queue: Queue) -> tuple[Stabilized, float]:
    """(whether the user has too many jobs there, how many more it may queue)."""
    world, values = context.world, context.values
    jobs, rate = context.jobs(queue), start_rate(context, queue)
    rows = world.user_jobs.get(queue.unified, {}).get(context.share, {})
    mine = rows.get(context.task.user_name or world.user) or rows.get(world.user)
    total = rows.get(TOTAL)
    users = len(rows) if values.on("USERS_COUNT_TOTAL") else sum(name != TOTAL for name in rows)
    running = total.running if total is not None else jobs.running
    user_queued, user_running = (None, 0) if mine is None else (mine.queued, mine.running)
    # the length of the queue is the share's, and the user's part that of the users' own count
    found = stabilize(jobs.queued, running, rate, users, user_queued, user_running, values)
    allowed = allowance(running, rate, users, user_running, values)
    return found, max(allowed - (user_queued or 0), 0.0)
