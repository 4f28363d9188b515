"""Weights: running against queued, many assigned, input, the nucleus, the network; and what counts as running."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from rota.schedule.broker.context import MB, Context
from rota.schedule.broker.network import NetworkWeight, network_weight
from rota.schedule.broker.queue import Queue

__all__ = ["Factor", "Factors", "Weighed", "bound_factors", "decay", "nucleus_factor", "running_jobs", "weigh"]


LEAST = 1e-6
"""No factor of a weight is 0 or less, whatever its formula says."""


class Factor(Struct, frozen=True):
    """One more factor of the weights of a flow, which others bring."""

    name: str
    """As `explain` shows it."""
    bind: Callable[[Context], Callable[[Queue], float] | None]
    """Makes the factor of one task for many queues; None: it does not count."""


Factors = Sequence[tuple[str, Callable[[Queue], float]]]


def bound_factors(context: Context, factors: Sequence[Factor]) -> Factors:
    """The factors that count for a task. What is no number above 0 counts as 1, and is told."""
    found = []
    for factor in factors:
        asked = factor.bind(context)
        if asked is not None:
            found.append((factor.name, _sound(context, factor.name, asked)))
    return found


def _sound(context: Context, name: str, asked: Callable[[Queue], float]) -> Callable[[Queue], float]:
    def factor(queue: Queue) -> float:
        value: object = asked(queue)  # of others: whatever it is
        if isinstance(value, int | float) and math.isfinite(value) and value > 0:
            return float(value)
        context.warnings.append(
            f"{queue.name}: the factor '{name}' is {value!r:.40}, no number above 0: it counts as 1"
        )
        return 1.0

    return factor


class Weighed(Struct, frozen=True):
    """A queue's weight, and all that went into it."""

    queue: Queue
    weight: float
    factors: tuple[tuple[str, float], ...]
    running: int
    queued: int
    """Queued jobs that count against it: without assigned ones if the input is there."""
    queued_type: int | None
    """… of the task's resource type; None: not known."""
    running_type: int
    idle: bool
    missing: int
    """Files that would have to be moved."""
    network: NetworkWeight | None
    inputs: Mapping[str, Any]


def running_jobs(context: Context, queue: Queue, running: int, starting: int) -> tuple[int, str]:
    """(the number of running jobs to go by, where it comes from)."""
    values, world = context.values, context.world
    gates = values.on("BOOTSTRAP_GATES")
    gated = gates and context.flow == "production"
    low = not gated or context.priority <= values.number("MAX_PRIO_TO_BOOTSTRAP")
    found, why = running, "running"
    most = int(values.number("BOOTSTRAP_WORKERS"))
    workers = min(most, world.workers.get(queue.unified, 0))
    piloted = not gates or world.pilot_calls(queue.unified) > 0
    if piloted and low and found < most and workers > found and (not gated or queue.unified in world.streaming):
        found, why = workers, f"{workers} workers"
    slots = context.slots(queue)
    if slots is None or not low:
        return found, why
    if slots == 0:
        count = found + starting if gates else starting
    else:
        count = slots // queue.cores if gates else slots
    if count > found:
        return count, f"{slots} slots" if slots else f"{starting} starting"
    return found, why


def nucleus_factor(context: Context) -> float:
    """How much more queues of the nucleus weigh."""
    values, rules = context.values, context.rules
    if not values.on("NUCLEUS_FACTOR"):
        return 1.0
    base: float = rules.t1_weight
    if base == 0:
        base = values.number("NUCLEUS_FACTOR_IO") if (context.task.io_intensity or 0) > 500 else 1
    urgent = not context.pre and not context.event_service and (context.priority >= 900 or context.scout)
    return max(base, values.number("NUCLEUS_FACTOR_HIGH") if urgent else 1, 1)


def weigh(context: Context, queue: Queue, at_nucleus: float, network: bool, more: Factors = ()) -> Weighed:
    """The weight of a queue in production. `at_nucleus`: the factor of the nucleus; `network`: whether that counts."""
    world, values = context.world, context.values
    jobs = context.jobs(queue)
    name = queue.unified
    running, why = running_jobs(context, queue, jobs.running, jobs.starting)
    defined = jobs.defined + world.live.get(name, 0)
    activated, assigned, starting = jobs.activated, jobs.assigned, jobs.starting
    total, count = context.total_bytes, context.files_on_disk(queue)
    local, missing = context.sizes[count], context.n_files - count
    move = total > 0 and local < total
    factors: list[tuple[str, float]] = []
    inputs: dict[str, Any] = {
        "running": running, "running_from": why, "activated": activated, "assigned": assigned, "starting": starting,
        "defined": defined,
    }  # fmt: skip
    if move:
        many = _many_assigned(assigned, activated, values.on("MANY_ASSIGNED_PLUS_ONE"))
        factors.append(("running/queued", (running + 1) / (activated + assigned + starting + defined + 10)))
        factors.append(("1/manyAssigned", 1 / many))
    else:
        factors.append(("running/queued", (running + 1) / (activated + starting + defined + 10)))
    if total > 0:
        factors.append(("data", (total + local) / total / (missing / 100 + 1)))
        inputs.update(total_MB=total // MB, local_MB=local // MB, missing_files=missing)
    if at_nucleus != 1.0 and context.near_nucleus(queue):
        factors.append(("nucleus", at_nucleus))
    link = network_weight(context, queue) if network else None
    if link is not None:
        inputs.update(
            network_weight=link.weight, queued_weight=link.queued, throughput_weight=link.throughput,
            files_queued=link.files, MB_per_s=link.mbytes_per_s, closeness=link.closeness,
        )  # fmt: skip
        if values.on("NW_ACTIVE"):
            factors.append(("network", max(link.weight, LEAST)))
    if context.modern and context.task.cpu_level is not None:
        factors.append(("cpu level", 1 + queue.cpu_levels.get(context.task.cpu_level, 0.0) / 100))
    factors += [(each, asked(queue)) for each, asked in more]
    weight = 1.0
    for _, factor in factors:
        weight *= factor
    by_type = world.jobs_by_type.get(name)
    of_type = None if by_type is None else by_type.get(context.type or "")
    queued_type = None
    if of_type is not None:
        queued_type = of_type.defined + of_type.activated + of_type.starting + (of_type.assigned if move else 0)
        inputs["queued_of_type"] = queued_type
    return Weighed(
        queue,
        weight,
        tuple(factors),
        running,
        activated + starting + (assigned if move else 0),
        queued_type,
        max(running, 0 if of_type is None else of_type.running),
        running + activated + assigned + starting + defined == 0,
        missing,
        link,
        inputs,
    )


def _many_assigned(assigned: int, activated: int, plus_one: bool) -> float:
    """How much those that wait for input count: from 1 to 2."""
    if plus_one:
        ratio = (assigned + 1) / (activated + 1)
    else:
        ratio = assigned / activated if activated else 2.0 if assigned else 1.0
    return max(1.0, min(2.0, ratio))


def decay(weight: float, queued: int, bunch: int) -> tuple[float, int]:
    """(weight, queued jobs) of a candidate after it got a bunch of jobs."""
    return weight * (queued + 1) / (queued + bunch + 1), queued + bunch
