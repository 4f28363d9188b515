"""Sites, runners and allocations as clients see them."""

from collections.abc import Callable
from typing import Any

from rota.core.decide.hosts import told
from rota.core.plan.asked import asked_now
from rota.core.soft import SiteWeather
from rota.core.state import State
from rota.core.stimuli import At
from rota.drivers.gate import Health
from rota.manager.sites.api import Site
from rota.model.allocation import Allocation, Waiting
from rota.schedule.demand import reservation_group

__all__ = ["allocation_rows", "runner_rows", "site_row"]

LIVE = "ING"
"""How the names of live states end."""


def site_row(state: State, site: Site, at: At) -> dict[str, Any]:
    """One site: what it offers, how it is doing, which allocations and jobs it has."""
    name = site.name
    facts, weather, used = state.soft.sites[name], state.soft.weather.of(name), state.ledger.used.get(name)
    live = [a for a in state.allocations.values() if a.site == name and a.state.endswith(LIVE)]
    conditions = [state.soft.conditions[a.id].kind for a in live if a.id in state.soft.conditions]
    row = {
        "name": name,
        "driver": site.config.driver,
        "mode": facts.mode,
        **_condition(weather, site.health(), at),
        "partition": None,
        "pending": sum(a.state not in ("RUNNING", "KILLING") for a in live),
        "running": sum(a.state in ("RUNNING", "KILLING") for a in live),
        "held": conditions.count("held"),
        "suspended": conditions.count("suspended"),
        "jobs": sum(len(runner.jobs) for runner in state.runners.values() if runner.site == name),
        "allocations": len(live),
        "most": facts.most if weather.takes is None else min(facts.most, weather.takes),
        "cores": _known_cores(facts.node.cores),
        "memory": _known_size(facts.node.memory),
        "gpus": facts.node.gpus if facts.node.gpus < 10**6 else None,
        "cores_used": used.cores / 1000 if used is not None else 0,
        "memory_used": used.memory if used is not None else 0,
        "tags": list(facts.tags),
        "resources": dict(facts.shared),
        "node_resources": dict(facts.node.named),
        "whole_nodes": facts.whole,
        "array_most": facts.array_most,
        "allocation_time_s": facts.allocation_s,
        "job_time_s": facts.job_s,
        "longest_s": facts.time_most_s,
        "linger_s": facts.linger_s,
        "directory": facts.directory or None,
        "refused": _refused(state, name, at),
    } | site.shown(at.wall)
    if weather.takes_why is not None:
        row["notes"] = [weather.takes_why, *row.get("notes", ())]
    return row


def _condition(weather: SiteWeather, health: Health, at: At) -> dict[str, Any]:
    """The state of a site in a word, why, and when the site is tried again."""
    wait = weather.closed_until - at.mono if weather.closed_until > at.mono else None
    if health.state in ("silent", "failing", "needs login"):
        retry = None if health.retry_at is None else max(0.0, health.retry_at - at.wall)
        return {"state": health.state, "why": health.why, "retry_s": _rounded(retry)}
    if weather.why is not None:
        return {"state": "failing" if wait is None else "closed", "why": weather.why, "retry_s": _rounded(wait)}
    return {"state": health.state, "why": None, "retry_s": None}


def _refused(state: State, name: str, at: At) -> list[dict[str, Any]]:
    """Shapes that the provider does not want at the moment, and that somebody still wants."""
    return [
        {"shape": _group(state, shape), "why": no.why, "retry_s": _rounded(max(0.0, no.until - at.mono))}
        for (site, shape), no in state.soft.weather.refused.items()
        if site == name and (no.until > at.mono or state.shapes[shape].ready)
    ]


def runner_rows(state: State, at: At) -> list[dict[str, Any]]:
    """The processes that run jobs."""
    return [
        {
            "id": runner.id,
            "state": runner.state,
            "site": runner.site,
            "host": runner.host,
            "pid": runner.pid,
            "allocation": runner.allocation,
            "connected": state.soft.contacts[runner.id].connected,
            "cores": runner.capacity.cores / 1000,
            "memory": runner.capacity.memory,
            "gpus": runner.capacity.gpus,
            "resources": dict(runner.capacity.named),
            "jobs": len(runner.jobs) + len(runner.parts),
            "slots": sum(runner.slots.values()),
            "silent_s": round(at.mono - state.soft.contacts[runner.id].heard, 3),
            "reason": runner.why if runner.state != "SERVING" else told(state, (runner.site, runner.host)),
        }
        for runner in state.runners.values()
    ]


def allocation_rows(state: State, waits: Callable[[Allocation], Waiting | None], at: At) -> list[dict[str, Any]]:
    """All allocations, and why each still waits: live ones first, then those that are over, each newest first."""
    hosts: dict[str | None, str] = {}
    jobs: dict[str | None, int] = {}
    for runner in state.runners.values():
        if runner.host:
            hosts[runner.allocation] = runner.host
        jobs[runner.allocation] = jobs.get(runner.allocation, 0) + len(runner.jobs)
    newest_first = reversed(state.allocations.values())
    return [
        {
            "id": a.id,
            "state": a.state,
            "site": a.site,
            "native_id": a.native_id,
            "tag": a.tag,
            "element": a.element,
            "name": a.name or None,
            "mode": "direct" if a.direct else "runners",
            "shape": None if a.shape is None else _group(state, a.shape),
            "cores": _known_cores(a.capacity.cores),
            "memory": _known_size(a.capacity.memory),
            "time_s": a.time_s,
            "queue": a.queue,
            "nodes": a.nodes,
            "host": a.host or hosts.get(a.id),
            "jobs": jobs.get(a.id, 0),
            "submitted": a.submitted,
            "ended": a.ended,
            "age_s": None if a.submitted is None else _rounded(max(0.0, (a.ended or at.wall) - a.submitted)),
            "unsure": a.unsure,
            "options": dict(a.options),
            "condition": condition.kind if (condition := state.soft.conditions.get(a.id)) is not None else None,
            "reason": a.reason or (said.words if (said := condition or waits(a)) is not None else None),
        }
        for a in sorted(newest_first, key=lambda a: not a.state.endswith(LIVE))
    ]


def _group(state: State, shape: int) -> str:
    asked = asked_now(state, state.shapes[shape]).asked
    return reservation_group(asked.needs, asked.limits)


def _known_cores(millicores: int) -> float | None:
    """None for a node of which nobody has said how large it is."""
    return None if millicores >= 10**9 else millicores / 1000


def _known_size(size: int) -> int | None:
    return None if size >= 1 << 60 else size


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 1)
