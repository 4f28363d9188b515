"""The production flow: candidates, filters, weights, caps, and the best ten. Without any the task waits an hour."""

from collections.abc import Mapping, Sequence

from rota.schedule.broker import activity, connectivity, disk, fairshare, memory, network, software, walltime
from rota.schedule.broker.config import Thresholds
from rota.schedule.broker.context import Check, Context
from rota.schedule.broker.decision import Candidate, Decision, Skip
from rota.schedule.broker.funnel import Funnel
from rota.schedule.broker.locality import io_tiers
from rota.schedule.broker.queue import Queue
from rota.schedule.broker.task import Task
from rota.schedule.broker.weight import Factor, Weighed, bound_factors, nucleus_factor, weigh
from rota.schedule.broker.world import World

__all__ = ["CHECKS", "broker_production"]

CHECKS: tuple[Check, ...] = (
    Check("status", activity.check_status),
    Check("links full", network.check_links_full, False),
    Check("link blocked", network.check_link_blocked),
    Check("high priority", activity.check_high_priority),
    Check("inactive", activity.check_inactive, False),
    Check("zero share", fairshare.zero_share),
    Check("jumbo", activity.check_jumbo),
    Check("diskIO", disk.check_diskio, False),
    Check("cores", activity.check_cores),
    Check("most cores", activity.check_most_cores),
    Check("software and hardware", software.check_software),
    Check("memory", memory.check_memory),
    Check("direct access", disk.check_direct_access),
    Check("scratch disk", disk.check_scratch),
    Check("storage", disk.check_storage, False),
    Check("walltime", walltime.check_walltime),
    Check("connectivity", connectivity.check_connectivity),
    Check("event service", activity.check_event_service),
    Check("dynamic events", activity.check_dynamic),
    Check("transferring", activity.check_transferring, False),
    Check("pledges", activity.check_pledges),
    Check("only at the nucleus", activity.check_chain),
    Check("ioIntensity", disk.check_io_intensity),
    Check("full chain", activity.check_full_chain),
    Check("pilots", activity.check_pilots, False),
)
"""In the order of the reference. Lasting ones are asked first, then the temporary ones, the last of them first."""


def broker_production(
    task: Task,
    world: World,
    thresholds: Thresholds,
    checks: Sequence[Check] = CHECKS,
    name: str = "production",
    factors: Sequence[Factor] = (),
) -> Decision:
    """Broker a production task."""
    context = Context("production", task, world, thresholds)
    funnel = Funnel(name, context, thresholds.number("PENDING_PRODUCTION"))
    queues = _candidates(context, funnel)
    if world.incomplete and context.modern and not context.rules.input_pre_staging:
        return funnel.failed(f"no storage that is in use has all of {', '.join(world.incomplete)}")
    queues = funnel.apply([check for check in checks if check.lasting], queues)
    kept, out = io_tiers(context, queues)
    queues = funnel.step("input to move", queues, kept, out)
    queues = funnel.apply([check for check in reversed(checks) if not check.lasting], queues)
    if not queues:
        return funnel.failed()
    return _choose(context, funnel, queues, factors)


def _candidates(context: Context, funnel: Funnel) -> list[Queue]:
    """The preliminary candidates: those that the task names, those near what is merged, or all."""
    task, world = context.task, context.world
    chunk, values = task.chunk, context.values
    names: list[str]
    if task.site and chunk.preassigned is None:
        names = [name.strip() for name in task.site.split(",") if name.strip()]
        found = funnel.named(names)
        expanded = [one for queue in found for one in world.parts(queue)]
        context.site_pre, context.list_pre = len(expanded) == 1, len(expanded) != 1
        return funnel.begin(expanded)
    if chunk.preassigned is not None and not _released(context):
        context.list_pre = True
        origin = world.queues.get(chunk.preassigned)
        out = origin.endpoint_out if origin is not None else None
        near = [
            name
            for name, queue in sorted(world.queues.items())
            if name != chunk.preassigned and queue.status == "online" and out is not None and out in queue.endpoints_in
        ]
        found = funnel.named([chunk.preassigned, *near])
        return funnel.begin([one for queue in found for one in world.parts(queue)])
    queues = funnel.begin([one for queue in world.in_order() if _produces(queue) for one in world.parts(queue)])
    if not values.on("EXCLUDE_TEST_QUEUES"):
        return queues
    tests = {queue.name: _TEST for queue in queues if "test" in queue.name.lower()}
    return funnel.step("test queues", queues, [queue for queue in queues if queue.name not in tests], tests)


_TEST = Skip("-test", "it is a test queue, by its name")


def _produces(queue: Queue) -> bool:
    return queue.type in ("production", "unified") or queue.has("grandly_unified")


def _released(context: Context) -> bool:
    """Whether a merge chunk may go elsewhere, because nothing came of it where its input is."""
    values, since = context.values, context.task.chunk.hours_since_modification
    if since is None or since <= values.number("PREASSIGN_TIMEOUT"):
        return False
    frozen, least = context.task.hours_frozen, values.number("PREASSIGN_FROZEN")
    return least == 0 or (frozen is not None and frozen > least)


def _choose(context: Context, funnel: Funnel, queues: list[Queue], factors: Sequence[Factor]) -> Decision:
    """Weigh the queues that are left, cap them, and take the best."""
    factor, more = nucleus_factor(context), bound_factors(context, factors)
    weighed = [weigh(context, queue, factor, context.task.nucleus is not None, more) for queue in queues]
    first, second = _capped(context, weighed)
    left = [row.queue for row in weighed if row.queue.name not in second]
    queues = funnel.step("caps", queues, left, second)
    best = sorted(first, key=lambda row: (not row.bootstrap, -row.weight, row.queue))
    most = int(context.values.number("CANDIDATES_MOST"))
    tag = "-loweigh" if context.code else "-low_weight"
    out = {}
    for row in best[most:]:
        many = context.modern and row.bootstrap
        words = f"{most} queues have more weight than {row.weight:.6g}"
        out[row.queue] = Skip("-others_bootstrap" if many else tag, words, False, weight=row.weight)
    kept = {row.queue for row in best[:most]}
    funnel.step("best", queues, [queue for queue in queues if queue.name in kept], out)
    return funnel.done(best[:most])


def _capped(context: Context, weighed: list[Weighed]) -> tuple[list[Candidate], dict[str, Skip]]:
    """(the queues that may be used, why not the others): the decision chain, whose first match wins."""
    values, world, task = context.values, context.world, context.task
    floor = values.of("NQUEUELIMITSITE", task.gshare) or 0
    idle_prio = context.priority <= values.number("MAX_PRIO_TO_BOOTSTRAP") and not context.merging
    line = values.number("NW_THRESHOLD") * values.number("NW_WEIGHT_MULTIPLIER")
    slow = values.on("NW_ACTIVE") and context.express
    spared = context.modern and context.express
    least = values.of("MIN_WEIGHT", task.prod_source_label, task.gshare) or 0
    busiest = None
    if context.modern and context.rules.t1_weight < 0 and weighed:
        busiest = min(weighed, key=lambda row: (-world.of_share(row.queue.unified, None).running, row.queue.name))
    use: list[Candidate] = []
    out: dict[str, Skip] = {}
    for row in weighed:
        name = row.queue.name
        limit, limit_type = max(floor, 2 * row.running), max(floor, 2 * row.running_type)
        numbers: Mapping[str, object] = row.inputs
        bootstrap = False
        why: tuple[str, str] | None = None
        if name in world.locked or row.queue.unified in world.locked:
            why = "-lock", "another brokerage is at it"
        elif row.missing and row.queue.has("use_only_local_data"):
            why = "-non_local", f"it uses only local data, and {row.missing} files are missing"
        elif row.queue.capability != "ucore" and row.queued > limit and not spared:
            why = "-cap", f"{row.queued} jobs are queued, with {row.running} running the limit is {limit:g}"
        elif slow and row.network is not None and row.network.weight < line:
            why = "-lowNetworkWeight", f"express, and its network weight is {row.network.weight:.4g}, below {line:g}"
        elif row.queued_type is not None and row.queued_type > limit_type and not spared:
            words = f"{row.queued_type} jobs of type {context.type} are queued"
            why = "-cap_rt", f"{words}, with {row.running_type} running the limit is {limit_type:g}"
        elif row.idle and idle_prio and not spared:
            bootstrap = True
        elif context.modern and row.weight < least:
            why = "-below_min_weight", f"its weight is {row.weight:.6g}, below {least:g}"
        elif busiest is not None and row is not busiest:
            why = "-t1_weight", f"{busiest.queue.name} runs more jobs"
        if why is None:
            use.append(Candidate(name, 0.0 if bootstrap else row.weight, row.factors, row.inputs, bootstrap))
        else:
            out[name] = Skip(why[0], why[1], False, numbers, row.weight)
    return use, out
