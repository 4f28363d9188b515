"""What there is to see of sites, runners and allocations."""

from typing import TYPE_CHECKING, Any

from rota.core.plan.asked import asked_now
from rota.core.stimuli import At
from rota.model.allocation import Allocation
from rota.schedule.demand import reservation_group

if TYPE_CHECKING:
    from rota.manager.service import Manager

__all__ = ["allocation_rows", "runner_rows", "site_row"]

LIVE = "ING"
"""How the names of live states end."""


def site_row(manager: "Manager", name: str, at: At) -> dict[str, Any]:
    """One site: what it offers, how it is doing, what is there."""
    state = manager.state
    site = state.soft.sites[name]
    used = state.ledger.used.get(name)
    live = [a for a in state.allocations.values() if a.site == name and a.state.endswith(LIVE)]
    row = {
        "name": name,
        "driver": manager.sites[name].config.driver,
        "mode": site.mode,
        **_condition(manager, name, at),
        "partition": None,
        "pending": sum(a.state not in ("RUNNING", "KILLING") for a in live),
        "running": sum(a.state in ("RUNNING", "KILLING") for a in live),
        "jobs": sum(len(runner.jobs) for runner in state.runners.values() if runner.site == name),
        "allocations": len(live),
        "most": site.most,
        "cores": _known_cores(site.node.cores),
        "memory": _known_size(site.node.memory),
        "gpus": site.node.gpus if site.node.gpus < 10**6 else None,
        "cores_used": used.cores / 1000 if used is not None else 0,
        "memory_used": used.memory if used is not None else 0,
        "tags": list(site.tags),
        "whole_nodes": site.whole,
        "array_most": site.array_most,
        "allocation_time_s": site.allocation_s,
        "job_time_s": site.job_s,
        "longest_s": site.time_most_s,
        "linger_s": site.linger_s,
        "directory": site.directory or None,
        "refused": _refused(manager, name, at),
    }
    return row | manager.sites[name].shown(at.wall)


def _condition(manager: "Manager", name: str, at: At) -> dict[str, Any]:
    """Its state in a word, why, and when it is tried again."""
    site, seen = manager.state.soft.weather.of(name), manager.sites[name].health()
    wait = site.closed_until - at.mono if site.closed_until > at.mono else None
    if seen.state in ("failing", "needs login"):
        retry = None if seen.retry_at is None else max(0.0, seen.retry_at - at.wall)
        return {"state": seen.state, "why": seen.why, "retry_s": _rounded(retry)}
    if site.why is not None:
        return {"state": "failing" if wait is None else "closed", "why": site.why, "retry_s": _rounded(wait)}
    return {"state": seen.state, "why": None, "retry_s": None}


def _refused(manager: "Manager", name: str, at: At) -> list[dict[str, Any]]:
    """Shapes that the provider does not want at the moment, and that somebody still wants."""
    state = manager.state
    return [
        {"shape": _group(manager, shape), "why": no.why, "retry_s": _rounded(max(0.0, no.until - at.mono))}
        for (site, shape), no in state.soft.weather.refused.items()
        if site == name and (no.until > at.mono or state.shapes[shape].ready)
    ]


def runner_rows(manager: "Manager", at: At) -> list[dict[str, Any]]:
    """The processes that run jobs."""
    contacts = manager.state.soft.contacts
    return [
        {
            "id": runner.id,
            "state": runner.state,
            "site": runner.site,
            "host": runner.host,
            "pid": runner.pid,
            "allocation": runner.allocation,
            "connected": contacts[runner.id].connected,
            "cores": runner.capacity.cores / 1000,
            "memory": runner.capacity.memory,
            "jobs": len(runner.jobs),
            "slots": sum(runner.slots.values()),
            "silent_s": round(at.mono - contacts[runner.id].heard, 3),
            "reason": runner.why if runner.state != "SERVING" else None,
        }
        for runner in manager.state.runners.values()
    ]


def allocation_rows(manager: "Manager", at: At) -> list[dict[str, Any]]:
    """What was asked of clusters: live ones first, each kind newest first."""
    hosts: dict[str | None, str] = {}
    jobs: dict[str | None, int] = {}
    for runner in manager.state.runners.values():
        if runner.host:
            hosts[runner.allocation] = runner.host
        jobs[runner.allocation] = jobs.get(runner.allocation, 0) + len(runner.jobs)
    found = reversed(manager.state.allocations.values())
    ordered = sorted(found, key=lambda a: not a.state.endswith(LIVE))
    return [_allocation(manager, a, at, a.host or hosts.get(a.id), jobs.get(a.id, 0)) for a in ordered]


def _allocation(manager: "Manager", a: Allocation, at: At, host: str | None, jobs: int) -> dict[str, Any]:
    return {
        "id": a.id,
        "state": a.state,
        "site": a.site,
        "native_id": a.native_id,
        "tag": a.tag,
        "element": a.element,
        "name": a.name or None,
        "mode": "direct" if a.direct else "runners",
        "shape": None if a.shape is None else _group(manager, a.shape),
        "cores": _known_cores(a.capacity.cores),
        "memory": _known_size(a.capacity.memory),
        "time_s": a.time_s,
        "host": host,
        "jobs": jobs,
        "submitted": a.submitted,
        "ended": a.ended,
        "age_s": None if a.submitted is None else _rounded(max(0.0, (a.ended or at.wall) - a.submitted)),
        "unsure": a.unsure,
        "options": dict(a.options),
        "reason": a.reason or manager.queries.waits(a),
    }


def _group(manager: "Manager", shape: int) -> str:
    asked = asked_now(manager.state, manager.state.shapes[shape]).asked
    return reservation_group(asked.needs, asked.limits)


def _known_cores(millicores: int) -> float | None:
    """None for a node of which nobody has said how large it is."""
    return None if millicores >= 10**9 else millicores / 1000


def _known_size(size: int) -> int | None:
    return None if size >= 1 << 60 else size


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 1)
