"""What vectors ask about timeouts, rebrokerage, shares and scouts."""

from collections.abc import Mapping
from typing import Any

import msgspec

from rota.model.errors import UsageError
from rota.schedule.broker.config import Profile
from rota.schedule.broker.kinds import Case, kind
from rota.schedule.broker.scouts import SUCCESS, Preset, Used, checks, evaluate, learn, percentile
from rota.schedule.broker.shares import Generation, may_generate, order_of, percents, share_tree
from rota.schedule.broker.timeouts import JobClock, QueueClock, due, fast_rebrokerage

__all__: list[str] = []


@kind("fast_rebrokerage")
def _fast_rebrokerage(case: Case, profile: Profile) -> Mapping[str, Any]:
    values = case["values"]
    found = fast_rebrokerage(
        _number(values, "nq"),
        _number(values, "nr"),
        _number(values, "nq_total"),
        limit=values.get("limit"),
        ratio=values.get("ratio", 3.0),
        frac=values.get("frac", 0.3),
        slots=bool(values.get("slots", False)),
        profile=profile,
    )
    if not found.trigger:
        return {"trigger": False, "dry_run": found.dry_run}
    return {"trigger": True, "excess": found.excess, "closes": found.closes}


def _number(values: Mapping[str, Any], name: str) -> int:
    value = values.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise UsageError(f"values.{name} is {value!r}: give how many, 0 or more")
    return value


@kind("gshare")
def _gshare(case: Case, profile: Profile) -> Mapping[str, Any]:
    tree = share_tree(case["values"]["tree"], "values.tree")
    return {"order": order_of(tree, case["values"].get("executing", {})), "percent": percents(tree)}


@kind("timeout")
def _timeout(case: Case, profile: Profile) -> Mapping[str, Any]:
    values = case["values"]
    try:
        job = msgspec.convert(values["job"], JobClock)
        queue = msgspec.convert(values.get("queue", {}), QueueClock)
    except msgspec.ValidationError as error:
        raise UsageError(f"values: {error}") from None
    found = due(job, queue, float(values["now"]), values.get("thresholds", {}), profile)
    if found is None:
        return {"due": False}
    return {"due": True, "action": found.action, "limit_s": found.limit_s, "rule": found.rule}


@kind("throttle")
def _throttle(case: Case, profile: Profile) -> Mapping[str, Any]:
    values = case["values"]
    try:
        now = msgspec.convert(values["now"], Generation)
    except msgspec.ValidationError as error:
        raise UsageError(f"values.now: {error}") from None
    share, resource_type = values.get("share", ""), values.get("resource_type", "")
    found = may_generate(now, values.get("thresholds", {}), share, resource_type)
    return {"stop": found.stop, "only_priority": found.only_priority}


@kind("scouts")
def _scouts(case: Case, profile: Profile) -> Mapping[str, Any]:
    """What is learned from scouts, and whether the rest may go."""
    values = case["values"]
    try:
        jobs = msgspec.convert(values.get("jobs", []), list[Used])
        preset = msgspec.convert(values.get("preset", {}), Preset)
    except msgspec.ValidationError as error:
        raise UsageError(f"values: {error}") from None
    thresholds = values.get("thresholds", {})
    learned = learn(jobs, preset, thresholds)
    out = {name: getattr(learned, name) for name in learned.__struct_fields__ if name != "why"}
    scouts = _number(values, "scouts") if "scouts" in values else len(jobs)
    failed = _number(values, "failed") if "failed" in values else 0
    out["what"] = evaluate(scouts, len(jobs), failed, values.get("success", SUCCESS)).what
    out["checks"] = checks(learned, preset, values.get("expected", 0), values.get("wall_s"), thresholds)
    return out


@kind("percentile")
def _percentile(case: Case, profile: Profile) -> Mapping[str, Any]:
    values = case["values"]
    if not values.get("values"):
        raise UsageError("values.values: give some numbers")
    return {"value": percentile(values["values"], values["rank"])}
