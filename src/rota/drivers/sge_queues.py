"""Queues of Grid Engine: qhost for the hosts of each, qconf for its limits."""

import html
import re

from rota.drivers.dialect import Queue

__all__ = ["read_qhost", "size_of", "with_limits"]

HOST = re.compile(r"<host name='([^']*)'>(.*?)</host>", re.DOTALL)
HOST_VALUE = re.compile(r"<hostvalue name='(\w+)'>([^<]*)</hostvalue>")
QUEUE = re.compile(r"<queue name='([^']*)'>(.*?)</queue>", re.DOTALL)
QUEUE_VALUE = re.compile(r"name='(\w+)'>([^<]*)</queuevalue>")
BAD = frozenset("auEdDsSc")
"""Letters of an instance that starts nothing: alarm, unknown, error, disabled, suspended, ambiguous."""


def read_qhost(text: str) -> tuple[Queue, ...]:
    """Queues, with the largest of their hosts: as many cores as the queue has slots there."""
    found: dict[str, list[tuple[int, int, bool]]] = {}
    for _, body in HOST.findall(text):
        values = dict(HOST_VALUE.findall(body))
        cores, memory = _count(values.get("num_proc")), size_of(values.get("mem_total"), 1024) or 0
        for name, inside in QUEUE.findall(body):
            said = dict(QUEUE_VALUE.findall(inside))
            up = "state_string" in said and not set(said["state_string"]) & BAD
            slots = _count(said.get("slots")) or cores
            found.setdefault(html.unescape(name), []).append((slots * 1000, memory, up))
    return tuple(
        Queue(
            name,
            len(found) == 1,
            len(hosts),
            max(host[0] for host in hosts) or None,
            max(host[1] for host in hosts) or None,
            None,
            None,
            any(host[2] for host in hosts),
        )
        for name, hosts in found.items()
    )


def with_limits(queues: tuple[Queue, ...], text: str, environment: str | None) -> tuple[Queue, ...]:
    """The queues with what `qconf -sq` says; with hosts of their own limits the longest counts."""
    found: dict[str, dict[str, str]] = {}
    for block in re.split(r"^(?=qname\s)", re.sub(r"\\\n\s*", "", text), flags=re.MULTILINE):
        pairs = [pair for line in block.splitlines() if len(pair := line.split(None, 1)) == 2]
        if pairs and pairs[0][0] == "qname":
            found[pairs[0][1].strip()] = dict(pairs)
    return tuple(_limited(queue, found.get(queue.name, {}), environment) for queue in queues)


def _limited(queue: Queue, said: dict[str, str], environment: str | None) -> Queue:
    times = [_time(value) for value in _values(said.get("h_rt", ""))]
    if times and None not in times:
        queue = queue._replace(time_s=max(time_s for time_s in times if time_s is not None))
    if environment is not None and "pe_list" in said and queue.cores is not None:
        environments = re.split(r"[\s,\[\]=]+", said["pe_list"])
        if environment not in environments:
            queue = queue._replace(cores=1000, nodes_most=1)
    return queue


def _values(text: str) -> list[str]:
    """`INFINITY,[@short=01:00:00]`: the usual value, and those of hosts."""
    return [part.strip(" []").rpartition("=")[2] for part in text.split(",") if part.strip(" []")]


def _time(text: str) -> int | None:
    """Seconds of `24:00:00` or `3600`; None: without end."""
    found = re.fullmatch(r"(?:(?:(\d{1,9}):)?(\d{1,9}):)?(\d{1,9})", text)
    return int(found[1] or 0) * 3600 + int(found[2] or 0) * 60 + int(found[3]) if found else None


def _count(text: str | None) -> int:
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 9 else 0


def size_of(text: str | None, kilo: int) -> int | None:
    """Bytes of `23.5G`, with this many to the next unit."""
    found = re.fullmatch(r"\s*(\d{1,15}(?:\.\d{1,9})?)\s*([KMGTP]?)B?\s*", text or "")
    return int(float(found[1]) * float(kilo) ** (" KMGTP".index(found[2]) if found[2] else 0)) if found else None
