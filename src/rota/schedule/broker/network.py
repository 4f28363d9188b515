"""Network: links to the nucleus that cannot be used, and the weight of a link.

    networkWeight = ½ queuedWeight + ½ throughputWeight

Throughput is that of the last hour, else of the last day, else of the last week; without any, closeness counts (0 best,
11 worst).
"""

from bisect import bisect_left
from collections.abc import Callable

from msgspec import Struct

from rota.schedule.broker.config import Thresholds
from rota.schedule.broker.context import Context
from rota.schedule.broker.decision import Skip
from rota.schedule.broker.queue import Queue
from rota.schedule.broker.world import Link

__all__ = ["NetworkWeight", "check_link_blocked", "check_links_full", "link_weight", "network_weight", "throughput"]

CLOSENESS_MOST = 11
CLOSENESS_UNKNOWN = 0.7 * CLOSENESS_MOST
AT_NUCLEUS = 2.5
STEPS = (1, 2, 10, 20, 50, 75, 100, 200)
"""MB/s up to which each weight holds."""
WEIGHTS = (1.0, 1.1, 1.2, 1.3, 1.5, None, 1.8, 1.9, 2.0)
"""None: NW_THROUGHPUT_75, on which document and code disagree."""


class NetworkWeight(Struct, frozen=True):
    """The weight of a link, and what it is made of."""

    weight: float
    """By the formula, which a long queue drives to 0 and below."""
    queued: float
    throughput: float
    files: int = 0
    mbytes_per_s: float | None = None
    closeness: float | None = None


def throughput(link: Link, thresholds: Thresholds) -> float | None:
    """The MB/s to go by; None: not known."""
    if link.age_minutes > thresholds.number("NW_METRICS_AGE"):
        return None
    if not thresholds.on("NW_NEEDS_ALL_WINDOWS"):
        return next((speed for speed in (link.hour, link.day, link.week) if speed is not None), None)
    found = None
    for speed in (link.week, link.day, link.hour):
        if speed is None:
            break
        found = speed
    return found


def link_weight(
    files: int | None, speed: float | None, closeness: float | None, at_nucleus: bool, thresholds: Thresholds
) -> NetworkWeight:
    """The weight of a link with so many files queued, MB/s and closeness."""
    if at_nucleus:
        return NetworkWeight(AT_NUCLEUS, AT_NUCLEUS, AT_NUCLEUS)
    cap = thresholds["NQUEUED_WEIGHT_CAP"] or thresholds.number("NQUEUED_SAT_CAP")
    count = files or 0
    queued = 2 - count / cap
    if speed is not None:
        step = WEIGHTS[bisect_left(STEPS, speed)]
        through = thresholds.number("NW_THROUGHPUT_75") if step is None else step
    else:
        near = CLOSENESS_UNKNOWN if closeness is None else closeness
        through = 1 + (CLOSENESS_MOST - near) / CLOSENESS_MOST
    part = thresholds.number("NW_QUEUE_IMPORTANCE")
    return NetworkWeight(part * queued + (1 - part) * through, queued, through, count, speed, closeness)


def network_weight(context: Context, queue: Queue) -> NetworkWeight:
    """The weight of a queue's link to the nucleus."""
    if context.at_nucleus(queue):
        return link_weight(None, None, None, True, context.values)
    link = context.world.links.get(queue.site or "")
    if link is None:
        return link_weight(None, None, None, False, context.values)
    speed = throughput(link, context.values)
    return link_weight(link.queued.get(context.activity), speed, link.closeness, False, context.values)


def _full(count: int, cap: float, inclusive: bool) -> bool:
    return count >= cap if inclusive else count > cap


def _far(context: Context) -> Callable[[Queue], bool]:
    """Whether a queue's output has to go to the nucleus over a link."""
    nucleus = context.task.nucleus
    return lambda queue: queue.site is not None and queue.site != nucleus


def check_link_blocked(context: Context) -> Callable[[Queue], Skip | None] | None:
    """A link that is blocked cannot be used."""
    if context.task.nucleus is None or (context.pre and not context.modern):
        return None
    if _total_full(context) is not None or (context.modern and not context.world.nucleus_writable):
        return None
    links, far = context.world.links, _far(context)

    def check(queue: Queue) -> Skip | None:
        link = links.get(queue.site or "")
        if link is None or link.closeness != -1 or not far(queue):
            return None
        words = f"the link from {queue.site} to the nucleus {context.task.nucleus} is blocked"
        return Skip("-link_unusable", words, numbers={"closeness": -1})

    return check


def _total_full(context: Context) -> int | None:
    """The files queued to the nucleus, if they are too many."""
    total = context.world.queued_to_nucleus.get(context.activity, 0)
    cap = context.values.number("NQUEUED_NUC_CAP_FOR_JOBS")
    return total if _full(total, cap, context.values.on("LINK_CAP_INCLUSIVE")) else None


def check_links_full(context: Context) -> Callable[[Queue], Skip | None] | None:
    """Too many files are queued to the nucleus, or on the queue's link to it."""
    nucleus, values = context.task.nucleus, context.values
    if nucleus is None or (context.pre and not context.modern):
        return None
    far, links, activity = _far(context), context.world.links, context.activity
    if context.modern and not context.world.nucleus_writable:
        no = Skip("-dest_blacklisted", f"the storage of the nucleus {nucleus} takes nothing over the wide area", False)
        return lambda queue: no if far(queue) else None
    total = _total_full(context)
    if total is not None:
        cap = values.number("NQUEUED_NUC_CAP_FOR_JOBS")
        words = f"{total} files are queued to the nucleus {nucleus}, the limit is {cap:g}"
        full = Skip("-links_full", words, False, {"queued": total, "NQUEUED_NUC_CAP_FOR_JOBS": cap})
        return lambda queue: full if far(queue) else None
    cap, inclusive = values.number("NQUEUED_SAT_CAP"), values.on("LINK_CAP_INCLUSIVE")

    def check(queue: Queue) -> Skip | None:
        link = links.get(queue.site or "")
        count = None if link is None else link.queued.get(activity)
        if count is None or not _full(count, cap, inclusive) or not far(queue):
            return None
        words = f"{count} files are queued on the link from {queue.site} to {nucleus}, the limit is {cap:g}"
        return Skip("-link_unusable", words, False, {"queued": count, "NQUEUED_SAT_CAP": cap})

    return check
