"""Queues and nodes of OpenPBS and TORQUE, from the attributes that both print."""

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from rota.drivers.dialect import Queue
from rota.drivers.pbs_records import Record, seconds, size

__all__ = ["Host", "hosts_of", "queues_of", "read_default", "read_lines", "with_hosts"]


class Host(NamedTuple):
    """A host, with what its virtual nodes have together."""

    cores: int
    memory: int
    gpus: int
    queue: str | None
    """The only queue that it is for."""


def queues_of(found: Mapping[str, Record]) -> tuple[Queue, ...]:
    """Queues from their attributes. Those that only a routing queue may fill are not open to us.

    A routing queue, which has no nodes of its own, is for those only who name it, unless it is the server's default.
    """
    kinds = {name: record.get("queue_type", "").lower()[:1] for name, record in found.items()}
    only = list(kinds.values()).count("e") == 1
    return tuple(
        _queue(name, found[name], only and kind == "e")._replace(hidden=kind == "r")
        for name, kind in kinds.items()
        if kind in ("e", "r")
    )


def _queue(name: str, record: Record, is_default: bool) -> Queue:
    cores, memory = _count(record.get("resources_max.ncpus")), size(record.get("resources_max.mem"))
    flags = {flag: record.get(flag, "False").lower() == "true" for flag in ("enabled", "started", "from_route_only")}
    users = record.get("acl_users", "").replace("+", "").split(",")
    own = record.get("acl_user_enable", "False").lower() == "true" and not any(u.startswith("-") for u in users)
    return Queue(
        name,
        is_default,
        None,
        None if cores is None else cores * 1000,
        memory,
        None,
        seconds(record.get("resources_max.walltime")),
        flags["enabled"] and flags["started"] and not flags["from_route_only"],
        _count(record.get("resources_max.nodect")),
        tuple(user.partition("@")[0].strip() for user in users if user.strip()) if own else None,
        usual_s=seconds(record.get("resources_default.walltime")),
    )


def read_default(text: str) -> str | None:
    """The queue for jobs that name none, from what the server says of itself."""
    found = re.search(r"\bdefault_queue\b\"?\s*[:=]\s*\"?([^\s\",]+)", text)
    return found[1] if found else None


def hosts_of(nodes: Iterable[Record]) -> list[Host]:
    """Hosts from the records of their nodes: OpenPBS may have several of them on one host."""
    out: dict[str, Host] = {}
    for record in nodes:
        have = {key.removeprefix("resources_available."): value for key, value in record.items()}
        if (cores := _count(have.get("ncpus"))) is None:
            continue
        name = have.get("host") or record["name"]
        memory, gpus = size(have.get("mem")) or 0, _count(have.get("ngpus")) or 0
        was = out.get(name, Host(0, 0, 0, record.get("queue") or None))
        out[name] = Host(was.cores + cores * 1000, was.memory + memory, was.gpus + gpus, was.queue)
    return list(out.values())


def with_hosts(queues: tuple[Queue, ...], hosts: list[Host], default: str | None) -> tuple[Queue, ...]:
    """The queues with their hosts (those that are only for them, else all that are for any) and which one is usual.

    What a queue itself says is the most that one job may have there, so a node cannot have more of use.
    """
    out = []
    for queue in queues:
        if default is not None:
            usual = queue.name == default
            queue = queue._replace(is_default=usual, hidden=queue.hidden and not usual)
        mine = [host for host in hosts if host.queue == queue.name] or [host for host in hosts if host.queue is None]
        if mine:
            queue = queue._replace(
                nodes=len(mine),
                cores=_least(queue.cores, max(host.cores for host in mine)),
                memory=_least(queue.memory, max(host.memory for host in mine)),
                gpus=max(host.gpus for host in mine),
            )
        out.append(queue)
    return tuple(out)


def read_lines(text: str) -> list[dict[str, str]]:
    """Records as `pbsnodes -a` prints them: a name, then indented `key = value`."""
    out: list[dict[str, str]] = []
    for line in text.splitlines():
        key, equals, value = line.strip().partition(" = ")
        if line and not line[0].isspace():
            out.append({"name": line.strip()})
        elif equals and out:
            out[-1][key] = value
    return out


def _least(limit: int | None, found: int) -> int | None:
    if not found:
        return limit
    return found if limit is None else min(limit, found)


def _count(text: str | None) -> int | None:
    found = re.fullmatch(r"\s*(\d{1,9})\s*", text or "")
    return int(found[1]) if found else None
