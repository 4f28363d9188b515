"""What became of the core-seconds that nodes had: which jobs used them, and why the others were not used.

Time that no job used is put down to one of four causes, core by core: `idle`, nothing waited to be started; `tail`,
nothing waited any more, and the last ones still ran; `room`, what waited asked for more cores than were free there;
`startup`, something waited that would have fitted, so this is what it took to start it.
"""

import heapq
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from typing import Any

__all__ = ["Attempt", "Node", "Usage", "read_usage"]

CAUSES = ("room", "startup", "tail", "idle")
GANG_NODES = 64
"""Up to so many nodes it is worked out whether a job of several nodes would fit."""


class Attempt:
    """One attempt of a job, on one host or several."""

    __slots__ = ("cores", "ended", "hosts", "job", "number", "ready", "started", "state")

    def __init__(self, row: "Mapping[str, Any]", now: float) -> None:
        self.job: str = row["id"]
        self.number: int = row["attempt"]
        self.state: str = row["state"]
        self.hosts: list[str] = (row["host"] or "").split(",")
        self.cores: list[float] = row.get("cores") or [row.get("asked_cores") or 1.0] * len(self.hosts)
        self.started: float = row["started"]
        ended = row["ended"] if row["ended"] is not None else now
        self.ended: float = max(ended, self.started)
        self.ready = self.started

    @property
    def core_s(self) -> float:
        """Core-seconds that it had."""
        return sum(self.cores) * (self.ended - self.started)


class Node:
    """A host, and how many cores it gave: (from when, until when, cores)."""

    def __init__(self, host: str) -> None:
        self.host = host
        self.spans: list[tuple[float, float, float]] = []
        self.busy_s = 0.0

    @property
    def cores(self) -> float:
        """The most cores that it gave at one time."""
        changes = sorted([(since, cores) for since, _, cores in self.spans] + [(u, -c) for _, u, c in self.spans])
        most = now = 0.0
        for _, change in changes:
            now += change
            most = max(most, now)
        return most

    @property
    def available_s(self) -> float:
        """Core-seconds that it gave."""
        return sum(cores * (until - since) for since, until, cores in self.spans)


class Usage:
    """All attempts and nodes, and where the time went."""

    def __init__(self, nodes: "Sequence[Node]", attempts: "Sequence[Attempt]", waiting: "Sequence[Waiting]") -> None:
        self.nodes = [node for node in nodes if node.available_s > 0]
        self.attempts = sorted(attempts, key=lambda attempt: attempt.started)
        self.waiting = waiting
        self.manager_cpu_s: float | None = None
        self.began = min((span[0] for node in self.nodes for span in node.spans), default=0.0)
        self.until = max((span[1] for node in self.nodes for span in node.spans), default=0.0)
        by_host = {node.host: node for node in self.nodes}
        for attempt in self.attempts:
            for host, cores in zip(attempt.hosts, attempt.cores, strict=False):
                if (node := by_host.get(host)) is not None:
                    node.busy_s += cores * _within(attempt, node)
        self.lost = _causes(self)

    @property
    def cores(self) -> float:
        """Cores of all nodes."""
        return sum(node.cores for node in self.nodes)

    @property
    def available_s(self) -> float:
        """Core-seconds that there were."""
        return sum(node.available_s for node in self.nodes)

    @property
    def busy_s(self) -> float:
        """Core-seconds that jobs had."""
        return sum(node.busy_s for node in self.nodes)

    def summary(self) -> "dict[str, Any]":
        """The figures, as `--json` prints them."""
        attempts, available_s = self.attempts, self.available_s
        first = min((attempt.ready for attempt in attempts), default=None)
        began = min((attempt.started for attempt in attempts), default=None)
        ended = max((attempt.ended for attempt in attempts), default=None)
        each = self.lost["startup"] / len(attempts) if attempts else None
        return {
            "cores": self.cores,
            "available_s": round(available_s, 3),
            "busy_s": round(self.busy_s, 3),
            "utilisation": round(self.busy_s / available_s, 6) if available_s else None,
            "lost": {cause: round(self.lost[cause], 3) for cause in CAUSES},
            "jobs": len({attempt.job for attempt in attempts}),
            "attempts": len(attempts),
            "began": began,
            "ended": ended,
            "overhead": {
                "first_start_s": None if began is None or first is None else round(began - first, 3),
                "startup_per_job_s": None if each is None else round(each, 6),
                "manager_cpu_s": self.manager_cpu_s,
            },
            "nodes": [
                {
                    "host": node.host,
                    "cores": node.cores,
                    "available_s": round(node.available_s, 3),
                    "busy_s": round(node.busy_s, 3),
                }
                for node in self.nodes
            ],
        }


Need = tuple[float, int]
"""Cores on a node, and how many nodes."""
Waiting = tuple[float, float, "Need"]
"""From when until when something waited to be started, and what it asked for."""


def _within(attempt: Attempt, node: Node) -> float:
    """Seconds of an attempt while its node was there."""
    spans = node.spans
    if len(spans) == 1:
        return max(0.0, min(attempt.ended, spans[0][1]) - max(attempt.started, spans[0][0]))
    total = sum(max(0.0, min(attempt.ended, until) - max(attempt.started, since)) for since, until, _ in spans)
    return min(attempt.ended - attempt.started, total)


# ---- why cores were not used -----------------------------------------------------------------------------------------


class _Sweep:
    """Goes through time once: what is free on each node, and what waits."""

    def __init__(self, last_start: float, last_end: float) -> None:
        self.last_start = last_start
        self.last_end = last_end
        self.free: dict[str, float] = defaultdict(float)
        self.at: dict[str, float] = {}
        self.needs: Counter[Need] = Counter()
        self.lost = dict.fromkeys(CAUSES, 0.0)

    def settle(self, host: str, now: float) -> None:
        """Put what was free on a node since the last time down to its cause."""
        free, since = self.free[host], self.at.get(host, now)
        self.at[host] = now
        if free <= 0 or now <= since:
            return
        if self.needs:
            cause = "startup" if self._fits(free) else "room"
            self.lost[cause] += free * (now - since)
            return
        if since >= self.last_start:  # nothing is started any more
            tail = max(0.0, min(now, self.last_end) - since)
            self.lost["tail"] += free * tail
            self.lost["idle"] += free * (now - since - tail)
            return
        self.lost["idle"] += free * (now - since)

    def _fits(self, free: float) -> bool:
        for cores, nodes in self.needs:
            if cores > free:
                continue
            if nodes == 1 or len(self.free) > GANG_NODES:
                return True
            if sum(1 for other in self.free.values() if other >= cores) >= nodes:
                return True
        return False


def _causes(usage: Usage) -> "dict[str, float]":
    attempts = usage.attempts
    last_start = max((attempt.started for attempt in attempts), default=0.0)
    last_end = max((attempt.ended for attempt in attempts), default=0.0)
    sweep = _Sweep(last_start, last_end)
    for now, kind, host, cores, need in _moments(usage):
        if need is not None:
            if need not in sweep.needs or (kind < 0 and sweep.needs[need] == 1):  # other needs wait from now on
                for each in list(sweep.free):
                    sweep.settle(each, now)
            sweep.needs[need] += kind
            if not sweep.needs[need]:
                del sweep.needs[need]
        else:
            if any(nodes > 1 for _, nodes in sweep.needs):
                for each in list(sweep.free):
                    sweep.settle(each, now)
            sweep.settle(host, now)
            sweep.free[host] += cores
    return sweep.lost


def _moments(usage: Usage) -> "Iterator[tuple[float, int, str, float, Need | None]]":
    """(time, what, host, change of what is free, need of what begins or ends to wait), in order.

    At one moment: nodes come, jobs end, jobs wait, jobs have waited, jobs start, nodes go.
    """
    rows: list[tuple[float, int, int, str, float, Need | None]] = []
    known = {node.host for node in usage.nodes}
    for node in usage.nodes:
        for since, until, cores in node.spans:
            rows.append((since, 0, 0, node.host, cores, None))
            rows.append((until, 5, 0, node.host, -cores, None))
    for attempt in usage.attempts:
        for host, cores in zip(attempt.hosts, attempt.cores, strict=False):
            if host in known:
                rows.append((attempt.ended, 1, 0, host, cores, None))
                rows.append((attempt.started, 4, 0, host, -cores, None))
    for since, until, need in usage.waiting:
        if until > since:
            rows.append((since, 2, 1, "", 0.0, need))
            rows.append((until, 3, -1, "", 0.0, need))
    rows.sort(key=lambda row: (row[0], row[1]))
    for now, _, kind, host, change, waits in rows:
        yield now, kind, host, change, waits


# ---- from what a manager says ----------------------------------------------------------------------------------------


def read_usage(pages: "Iterable[Mapping[str, Any]]", rows: "Iterable[Mapping[str, Any]]", now: float) -> Usage:
    """The usage, from the pages of `usage` and the rows of attempts: `history`, and `jobs` for those that run."""
    greeted: dict[str, tuple[float, str, float]] = {}
    nodes: dict[str, Node] = {}
    ready: dict[int, list[tuple[float, int, int]]] = {}
    cpu_s = None
    last = 0.0
    for page in pages:
        for at, runner, host, cores in page["runners"]:
            if runner in greeted:
                since, before, gave = greeted.pop(runner)
                nodes.setdefault(before, Node(before)).spans.append((since, at, gave))
            if host is not None:
                greeted[runner] = (at, host, cores)
        for at, batch, low, high in page["ready"]:
            ready.setdefault(batch, []).append((at, low, high))
        last = max(last, page["at"] or 0.0)
        cpu_s = page["manager_cpu_s"]
    attempts = [Attempt(row, now) for row in rows if row["started"] is not None]
    last = max([last, *(attempt.ended for attempt in attempts)])
    for since, host, cores in greeted.values():
        nodes.setdefault(host, Node(host)).spans.append((since, max(since, last if cpu_s is None else now), cores))
    usage = Usage(list(nodes.values()), attempts, list(_waits(attempts, ready, now)))
    usage.manager_cpu_s = cpu_s
    return usage


def _waits(
    attempts: "Sequence[Attempt]", ready: "Mapping[int, list[tuple[float, int, int]]]", now: float
) -> "Iterator[Waiting]":
    """When something waited to be started: each attempt since it was ready, and what was never started until now."""
    needs: dict[int, Need] = {}
    begun: dict[int, set[int]] = defaultdict(set)
    times = {batch: _Ready(spans) for batch, spans in ready.items()}
    for attempt in attempts:
        batch, _, index = attempt.job.partition(".")
        number = int(batch)
        need = needs[number] = (max(attempt.cores, default=1.0), len(attempt.cores))
        begun[number].add(int(index))
        if number in times:
            attempt.ready = times[number].before(int(index), attempt.started)
        yield attempt.ready, attempt.started, need
    for number, spans in ready.items():
        need = needs.get(number, (1.0, 1))
        started = sorted(begun[number])
        for at, low, high in spans:
            if high - low + 1 > bisect_right(started, high) - bisect_left(started, low):
                yield at, now, need


class _Ready:
    """When jobs of a batch were ready."""

    def __init__(self, spans: "Sequence[tuple[float, int, int]]") -> None:
        self._single: dict[int, list[float]] = defaultdict(list)
        self._wide = []
        for at, low, high in spans:
            if low == high:
                self._single[low].append(at)
            else:
                self._wide.append((at, low, high))

    def before(self, index: int, started: float) -> float:
        """When a job was last ready before it started; then, if that is not known."""
        found = [at for at in self._single.get(index, ()) if at <= started]
        found += [at for at, low, high in self._wide if low <= index <= high and at <= started]
        return max(found, default=started)


def lanes(usage: Usage) -> "dict[str, list[tuple[Attempt, list[int]]]]":
    """Host → its attempts in order, each with the places on that host, from 0, where it is drawn."""
    out: dict[str, list[tuple[Attempt, list[int]]]] = {node.host: [] for node in usage.nodes}
    free: dict[str, list[int]] = {}
    running: dict[str, list[tuple[float, list[int]]]] = {}
    for node in usage.nodes:
        free[node.host] = list(range(max(1, round(node.cores))))
        running[node.host] = []
    for attempt in usage.attempts:
        for host, cores in zip(attempt.hosts, attempt.cores, strict=False):
            if host not in out:
                continue
            wanted, places = max(1, round(cores)), free[host]
            while running[host] and (running[host][0][0] <= attempt.started or len(places) < wanted):
                for place in heapq.heappop(running[host])[1]:
                    heapq.heappush(places, place)
            taken = [heapq.heappop(places) for _ in range(min(wanted, len(places)))]
            heapq.heappush(running[host], (attempt.ended, taken))
            out[host].append((attempt, taken))
    return out
