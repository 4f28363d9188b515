"""Cases of the flows and their formulas: what we say to each kind of vector that is about choosing queues."""

from collections.abc import Mapping
from typing import Any

from msgspec import to_builtins

from rota.model.errors import UsageError
from rota.schedule.broker.architecture import ArchitectureError, parse_architecture
from rota.schedule.broker.config import Profile, Thresholds
from rota.schedule.broker.connectivity import connected
from rota.schedule.broker.context import MB
from rota.schedule.broker.decision import Decision
from rota.schedule.broker.disk import scratch_bytes
from rota.schedule.broker.fairshare import FairShareError, rejects
from rota.schedule.broker.flows import broker
from rota.schedule.broker.kinds import Case, kind
from rota.schedule.broker.memory import needed_mb
from rota.schedule.broker.network import link_weight, throughput
from rota.schedule.broker.queue import resource_type
from rota.schedule.broker.reading import read_task, read_world
from rota.schedule.broker.software import Asked, accepts, left_to_release_check
from rota.schedule.broker.task import Task
from rota.schedule.broker.users import stabilize
from rota.schedule.broker.walltime import estimate_s, least_maxtime
from rota.schedule.broker.weight import decay
from rota.schedule.broker.world import Link

__all__ = ["decision_rows"]


def decision_rows(decision: Decision) -> dict[str, Any]:
    """A decision in the form of an expectation: status, and decision, tag and weight of each queue.

    Parts of a unified queue are there by their own names and, the one that came furthest, by its name.
    """
    rows: dict[str, dict[str, Any]] = {}
    for name, skip in decision.skipped.items():
        rows[name] = {"decision": "skip", "tag": skip.tag}
        if skip.weight is not None:
            rows[name]["weight"] = skip.weight
    for one in decision.candidates:
        rows[one.queue] = {"decision": "use", "tag": "+use", "weight": one.weight}
        if one.bootstrap:
            rows[one.queue]["bootstrap"] = True
    for name in [name for name in rows if "/" in name]:
        whole, known = name.partition("/")[0], rows.get(name.partition("/")[0])
        if known is None or _far(rows[name]) > _far(known):
            rows[whole] = rows[name]
    found: dict[str, Any] = {"status": decision.status, "queues": rows}
    if decision.throttled:
        found["throttle"] = True
    return found


def _far(row: Mapping[str, Any]) -> tuple[bool, bool, bool]:
    """How far a queue came."""
    tag = row["tag"]
    return (
        row["decision"] == "use",
        tag in ("-cap", "-cap_rt") or "weight" in row,
        tag not in ("-cpucore", "-highmemory"),
    )


def _flow(name: str, case: Case, profile: Profile) -> dict[str, Any]:
    data = case["input"]
    extra = data.get("extra") or {}
    thresholds = Thresholds(profile, extra.get("config") or {})
    return decision_rows(broker(read_task(data), read_world(data, case.get("software")), thresholds, name))


@kind("production")
def ask_production(case: Case, profile: Profile) -> Mapping[str, Any]:
    """The whole production flow."""
    return _flow("production", case, profile)


@kind("analysis")
def ask_analysis(case: Case, profile: Profile) -> Mapping[str, Any]:
    """The whole analysis flow."""
    return _flow("analysis", case, profile)


@kind("architecture")
def ask_architecture(case: Case, profile: Profile) -> Mapping[str, Any]:
    """What an architecture string means."""
    found = parse_architecture(case["text"], profile)
    gpu = None if found.gpu is None else {"vendor": found.gpu.vendor, "model": found.gpu.model}
    if found.gpu is not None and found.gpu.extras and gpu is not None:
        gpu["extras"] = to_builtins(found.gpu.extras)
    cpus = None if found.cpus is None else [to_builtins(one) for one in found.cpus]
    return {"sw_platform": found.sw_platform, "base_platform": found.base_platform, "gpu": gpu, "cpu": cpus}


@kind("software")
def ask_software(case: Case, profile: Profile) -> Mapping[str, Any]:
    """Which queues accept what is asked of their software and hardware."""
    ask, entries, thresholds = case["ask"], case["input"], Thresholds(profile, case.get("config") or {})
    try:
        architecture = parse_architecture(ask.get("architecture"), profile)
    except ArchitectureError as error:
        raise UsageError(str(error)) from None
    asked = Asked(
        architecture,
        ask.get("platform") or architecture.sw_platform or None,
        ask.get("cvmfs_tag"),
        ask.get("project"),
        ask.get("version"),
        ask.get("container_name"),
        bool(ask.get("only_tags")),
        bool(ask.get("need_container")) or architecture.base_platform is not None,
        bool(ask.get("need_cvmfs")),
    )
    every = entries.get("ALL")
    ok = [name for name in entries if name != "ALL" and accepts(entries[name], asked, every, thresholds) is None]
    outside = sorted(name for name in case.get("outside") or {} if name not in entries)
    return {"ok": sorted(ok), "not_auto": outside if left_to_release_check(asked) else []}


@kind("memory")
def ask_memory(case: Case, profile: Profile) -> Mapping[str, Any]:
    """What a job needs in MB, and whether a queue with such limits is skipped."""
    values = case["values"]
    thresholds, flow = Thresholds(profile, values.get("config") or {}), values.get("flow", "production")
    merging = bool(values.get("merging"))
    ram = values.get("ram") or 0
    if merging:
        ram = max(ram, thresholds.number("MERGE_RAM_FLOOR"))
    need = needed_mb(ram, values.get("unit"), values.get("base"), values.get("cores"), merging, flow, thresholds)
    low = bool(need and values.get("maxrss") and need > values["maxrss"])
    high = bool(need and values.get("minrss") and need < values["minrss"])
    return {"need_MB": need, "tag": "-lowmemory" if low else "-highmemory" if high else None}


@kind("network_weight")
def ask_network(case: Case, profile: Profile) -> Mapping[str, Any]:
    """The weight of a link."""
    values = case["values"]
    thresholds = Thresholds(profile, values.get("config") or {})
    speed = values.get("mbytes_per_s")
    hour, day, week = (values.get(f"mbytes_per_s_{window}") for window in ("1h", "1d", "1w"))
    if not hour is day is week is None:
        speed = throughput(Link(None, {}, hour, day, week, values.get("age_minutes") or 0), thresholds)
    files, near = values.get("files_queued"), values.get("closeness")
    found = link_weight(files, speed, near, bool(values.get("at_nucleus")), thresholds)
    return {"weight": found.weight, "queued": found.queued, "throughput": found.throughput}


@kind("scratch")
def ask_scratch(case: Case, profile: Profile) -> Mapping[str, Any]:
    """Scratch space of a job, in MB."""
    values = case["values"]
    thresholds, production = Thresholds(profile, values.get("config") or {}), values.get("flow") != "analysis"
    size = (values.get("input_MB") or 0) * MB
    if values.get("out_kB_per_event") is not None:
        out = max(values["out_kB_per_event"], 0) * 1024 * (values.get("events") or 1)
    else:
        out = max(values.get("out_kB_per_MB") or 0, 0) * 1024 * (values.get("input_MB") or 1)
    work = None if values.get("work_MB") is None else values["work_MB"] * MB
    own = scratch_bytes(out, work, thresholds, production)
    if values.get("merging") and not production:
        size *= 2
    need = int((own + (0 if values.get("direct_io") and not values.get("merging") else size)) // MB)
    return {"need_MB": need}


@kind("stabilizer")
def ask_stabilizer(case: Case, profile: Profile) -> Mapping[str, Any]:
    """Whether a user has too many jobs queued at a queue."""
    values = case["values"]
    thresholds = Thresholds(profile, values.get("config") or {})
    users = values["n_users_incl_total"] - (not thresholds.on("USERS_COUNT_TOTAL"))
    queued, running = values.get("user_queue"), values.get("user_run") or 0
    found = stabilize(values["nQ"], values["nR"], values["trr"], users, queued, running, thresholds)
    return {"bad": found.bad, "limit": found.limit}


@kind("walltime")
def ask_walltime(case: Case, profile: Profile) -> Mapping[str, Any]:
    """How long a job takes, and the shortest maxtime that is enough."""
    values = case["values"]
    need = values["cpuTime"] * values["nEvents"] / (1000 if str(values.get("unit", "")).startswith("m") else 1)
    row = (need, values.get("base") or 0, values.get("cores"), values.get("corepower"), values.get("eff", 90))
    return {"est_seconds": estimate_s(*row), "min_pass_maxtime": least_maxtime(*row)}


@kind("zero_share")
def ask_zero_share(case: Case, profile: Profile) -> Mapping[str, Any]:
    """Whether a fair-share policy rejects a task."""
    values = case["values"]
    task = Task(
        processing_type=values.get("processingType") or "",
        working_group=values.get("workingGroup"),
        gshare=values.get("gshare"),
        current_priority=values.get("priority") or 0,
    )
    thresholds = Thresholds(profile, values.get("config") or {})
    try:
        return {"reject": rejects(values.get("policy"), task, bool(values.get("merging")), thresholds)}
    except FairShareError:
        return {"reject": False}


@kind("connectivity")
def ask_connectivity(case: Case, profile: Profile) -> Mapping[str, Any]:
    """Whether a queue is connected as a task asks."""
    values = case["values"]
    net, _, stack = (values.get("task") or "").partition("#")
    return {"pass": connected(net or None, stack or values.get("stack"), values.get("queue"))}


@kind("resource_type")
def ask_resource_type(case: Case, profile: Profile) -> Mapping[str, Any]:
    """The resource type of a task."""
    values = case["values"]
    found = resource_type(values.get("cores"), values.get("ram"), values.get("unit", "MBPerCore"), values.get("base"))
    return {"resource_type": found}


@kind("split_decay")
def ask_split_decay(case: Case, profile: Profile) -> Mapping[str, Any]:
    """Weight and queued jobs of a candidate, bunch after bunch, until it is full."""
    start = case["values"]["start"]
    weight, queued, bunch, cap = start["weight"], start["queued"], start["bunch"], start.get("cap")
    if not bunch > 0:
        raise UsageError(f"bunch is {bunch}: a positive number is expected")
    weights: list[float] = []
    counts: list[int] = []
    most = case["values"].get("picks", 4 if cap is None else 1_000_000)
    while len(weights) < most and (cap is None or cap > queued):
        weight, queued = decay(weight, queued, bunch)
        weights.append(weight)
        counts.append(queued)
    return {"weights": weights, "queued": counts}
