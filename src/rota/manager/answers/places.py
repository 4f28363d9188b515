"""What there is to see of sites, runners and allocations."""

from collections.abc import Callable
from typing import Any

from rota.core.state import SiteState, State
from rota.core.stimuli import At
from rota.drivers.dialect import Queue
from rota.manager.sites.batch import Cluster, options_of
from rota.model.allocation import Allocation
from rota.schedule.demand import reservation_group

__all__ = ["allocation_rows", "runner_rows", "site_row"]

LIVE = "ING"
"""How the names of live states end."""
OPTION_NAMES = {"raw": "native", "signal_s": "warn_s", "state_map": "states"}
"""As the configuration calls them."""


def site_row(state: State, site: SiteState, cluster: Cluster | None, at: At) -> dict[str, Any]:
    """One site: what it offers, how it is doing, what is there."""
    name = site.name
    used = state.ledger.used.get(name)
    live = [a for a in state.allocations.values() if a.site == name and a.state.endswith(LIVE)]
    row = {
        "name": name,
        "driver": "local" if cluster is None else cluster.config.driver,
        "mode": site.mode,
        **_condition(site, cluster, at),
        "partition": None if cluster is None else cluster.config.partition,
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
        "refused": _refused(state, name, at),
    }
    return row | (_of_cluster(cluster, at) if cluster is not None else {})


def _condition(site: SiteState, cluster: Cluster | None, at: At) -> dict[str, Any]:
    """Its state in a word, why, and when it is tried again."""
    wait = site.closed_until - at.mono if site.closed_until > at.mono else None
    if cluster is not None:
        health = cluster.driver.health()
        if health.state in ("failing", "needs login"):
            retry = None if health.retry_at is None else max(0.0, health.retry_at - at.wall)
            return {"state": health.state, "why": health.why, "retry_s": _rounded(retry)}
    if site.why is not None:
        return {"state": "failing" if wait is None else "closed", "why": site.why, "retry_s": _rounded(wait)}
    return {"state": "ok" if cluster is None else health.state, "why": None, "retry_s": None}


def _refused(state: State, name: str, at: At) -> list[dict[str, Any]]:
    """Shapes that the provider does not want at the moment, and that somebody still wants."""
    return [
        {"shape": _group(state, shape), "why": why, "retry_s": _rounded(max(0.0, until - at.mono))}
        for (site, shape), (until, _, why) in state.refused.items()
        if site == name and (until > at.mono or state.shapes[shape].ready)
    ]


def _of_cluster(cluster: Cluster, at: At) -> dict[str, Any]:
    health = cluster.driver.health()
    options = options_of(cluster.config)
    return {
        "last_poll": health.last_poll,
        "last_poll_s": None if health.last_poll is None else _rounded(max(0.0, at.wall - health.last_poll)),
        "commands_last_minute": health.commands_last_minute,
        "commands_per_minute": health.commands_per_minute,
        "commands": health.commands,
        "failures": health.failures,
        "last_error": health.last_error,
        "version": health.version,
        "where": health.where,
        "programs": health.programs,
        "queues": [queue_row(queue) for queue in cluster.queues],
        "options": {
            OPTION_NAMES.get(field, field): dict(value) if isinstance(value, tuple) else value
            for field in options.__struct_fields__
            if (value := getattr(options, field)) not in (None, (), False)
        },
        "notes": list(health.notes),
    }


def queue_row(queue: Queue) -> dict[str, Any]:
    """A queue or partition with its limits, as far as they are known."""
    return {
        "name": queue.name,
        "default": queue.is_default,
        "up": queue.up,
        "nodes": queue.nodes,
        "cores": None if queue.cores is None else queue.cores / 1000,
        "memory": queue.memory,
        "gpus": queue.gpus,
        "time_s": queue.time_s,
    }


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
            "connected": runner.connected,
            "cores": runner.capacity.cores / 1000,
            "memory": runner.capacity.memory,
            "jobs": len(runner.jobs),
            "slots": sum(runner.slots.values()),
            "silent_s": round(at.mono - runner.contact, 3),
            "reason": runner.why if runner.state != "SERVING" else None,
        }
        for runner in state.runners.values()
    ]


def allocation_rows(state: State, waits: Callable[[Allocation], str | None], at: At) -> list[dict[str, Any]]:
    """What was asked of clusters (which say why each still waits): live ones first, each kind newest first."""
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
            "host": a.host or hosts.get(a.id),
            "jobs": jobs.get(a.id, 0),
            "submitted": a.submitted,
            "ended": a.ended,
            "age_s": None if a.submitted is None else _rounded(max(0.0, (a.ended or at.wall) - a.submitted)),
            "unsure": a.unsure,
            "options": dict(a.options),
            "reason": a.reason or waits(a),
        }
        for a in sorted(newest_first, key=lambda a: not a.state.endswith(LIVE))
    ]


def _group(state: State, shape: int) -> str:
    asked = state.shapes[shape].asked
    return reservation_group(asked.needs, asked.limits)


def _known_cores(millicores: int) -> float | None:
    """None for a node of which nobody has said how large it is."""
    return None if millicores >= 10**9 else millicores / 1000


def _known_size(size: int) -> int | None:
    return None if size >= 1 << 60 else size


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 1)
