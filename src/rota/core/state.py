"""The state: everything the core knows.

Changed only by `evolve`, from events; what is not kept (contact, weather, memos) lies apart, in `rota.core.soft`.
"""

import heapq
from bisect import bisect
from collections import deque
from collections.abc import Mapping

from msgspec import Struct, field

from rota.core.batch import BatchState, Live
from rota.core.census import Census
from rota.core.graph import Token
from rota.core.ready import ReadyQueue
from rota.core.settled import Batches
from rota.core.soft import Soft
from rota.model.allocation import Allocation
from rota.model.amounts import format_day
from rota.model.location import Kind, Location
from rota.model.needs import Amounts
from rota.model.shape import Shape
from rota.model.slot import Slot
from rota.schedule.broker.shares import Share
from rota.schedule.broker.sites import Waited
from rota.schedule.estimate import Group
from rota.schedule.ledger import Ledger
from rota.schedule.limits import Starts
from rota.schedule.policy import POLICIES, Policy
from rota.schedule.queues import queue_id
from rota.schedule.servers import most_servers
from rota.schedule.view import Limit

__all__ = ["BatchState", "Live", "RunnerState", "Settings", "ShapeState", "State"]


class Settings(Struct, frozen=True):
    """Numbers that the core goes by; times in seconds."""

    touch_s: float = 15
    missing_s: float = 60
    start_by_s: float = 45
    """A leased job starts within this time or never. Less than `missing_s`: after a silence nothing starts any more."""
    rerun_s: float = 600
    losses: int = 5
    backoff_first_s: float = 30
    backoff_most_s: float = 1800
    backoff_jitter_s: float = 30
    ahead_s: float = 0.15
    """How many seconds of work a runner is leased ahead of its slots."""
    ahead_below_s: float = 1.0
    """The longest that jobs may take to be leased ahead: others could wait for long behind one that takes longer."""
    lease_most: int = 512
    """Jobs in one lease message."""
    site_retry_s: float = 5
    """How long a site that failed is left alone, doubling to `site_retry_most_s`."""
    site_retry_most_s: float = 300
    backfill_after_s: float | None = 600
    """A job that found no room for so long gets a place kept for it; None: never."""
    shrink_s: float = 10
    """Allocations that nothing is ready for any more are taken back after this long."""
    resend_s: float = 5
    sample: int = 5
    """How many job ids an answer shows as examples."""
    suspect_failures: int = 2
    """After this many jobs in a row that fail alike on a host …"""
    bad_host_fast_s: float = 5
    """… each within so long of its start, the host is suspected: it gets one job at a time …"""
    bad_host_pause_most_s: float = 60
    """… after a pause that doubles to this with each that fails."""
    bad_host_doubt_s: float = 60
    """A suspicion ends after so long if there is no other host."""
    bad_host_failures: int = 5
    """After this many failures …"""
    bad_host_window_s: float = 300
    """… while such jobs run elsewhere, or succeeded there not longer ago than this: the host gets no more jobs …"""
    bad_host_s: float = 3600
    """… for so long."""
    rebroker_s: float | None = 600
    """What has waited at a site for so long may go to another where it would start sooner; None: never."""
    thresholds: Mapping[str, float] = field(default_factory=dict)
    """Thresholds of the brokerage that are set, by name."""
    shares: tuple[Share, ...] = ()
    """The tree of shares, for policies whose order is `shares`."""
    policies: Mapping[str, Policy] = field(default_factory=lambda: POLICIES)
    """Name → policy, as configured."""


class ShapeState:
    """A shape, with the queues of its ready jobs and its slots."""

    __slots__ = ("heads", "id", "ready", "shape", "slots")

    def __init__(self, number: int, shape: Shape) -> None:
        self.id = number
        self.shape = shape
        self.ready = 0
        self.heads: list[tuple[int, int, int]] = []
        """A heap of (-priority, batch, template) of its queues; the first is never empty, others may be."""
        self.slots = 0
        """How many slots it has, on all runners."""

    def head(self, batches: Batches) -> tuple[int, int, ReadyQueue] | None:
        """(batch, template, queue) whose jobs come next, or None."""
        if not self.heads:
            return None
        _, batch, template = self.heads[0]
        return batch, template, batches[batch].queues[template]

    def trim(self, batches: Batches) -> None:
        """Drop empty queues from the head of the heap."""
        while self.heads:
            _, batch, template = self.heads[0]
            queue = batches[batch].queues[template]
            if queue.count > 0:
                return
            heapq.heappop(self.heads)
            queue.listed = False


class RunnerState:
    """A runner. What is known of the connection to it is in `Soft.contacts`."""

    __slots__ = (
        "allocation", "capacity", "connect", "direct", "drain_wanted", "gangs", "held", "host", "id", "jobs",
        "location", "lost", "output", "parts", "pid", "seq", "session", "site", "slots", "state", "tags", "until",
        "why",
    )  # fmt: skip

    def __init__(self, runner: str) -> None:
        self.id = runner
        self.state = ""
        self.allocation: str | None = None
        self.connect = 0
        self.session = 0
        self.host = ""
        self.pid = 0
        self.capacity = Amounts()
        self.tags: tuple[str, ...] = ()
        self.until: float | None = None
        self.output = ""
        self.site = ""
        self.location = ""
        self.seq = 0
        """Number of the last report that was taken."""
        self.slots: dict[Slot, int] = {}
        """How many it has of each."""
        self.held: dict[Slot, int] = {}
        """Leases of each."""
        self.jobs: dict[tuple[int, int], None] = {}
        """(batch, position) of the live attempts here, in order of lease."""
        self.parts: dict[tuple[int, int, int], Slot] = {}
        """(batch, position, attempt) of gangs whose root is elsewhere → what is reserved here, until it is released."""
        self.lost: dict[tuple[int, int, int], None] = {}
        """(batch, position, attempt) of attempts that were given up here, the newest: their late ends are shown."""
        self.drain_wanted = False
        self.direct = False
        self.gangs = False
        """Whether it can hold parts of gangs."""
        self.why: str | None = None
        """Why it made its last move."""


class State:
    """The whole durable state, with its indices: written by `evolve` only.

    What is not durable is in `soft`. Two indices have writers of their own: who is told of what
    (`rota.core.dependencies`), and `timers` (`rota.core.notes`).
    """

    def __init__(self, settings: Settings, seed: int = 1) -> None:
        self.settings = settings
        self.soft = Soft(seed)
        self.seq = 0
        """Number of the last event."""
        self.mode = "serving"
        self.batches = Batches()
        self.keys: dict[str, int] = {}
        self.names: dict[str, list[int]] = {}
        self.next_batch = 1
        self.next_allocation = 1
        self.shapes: list[ShapeState] = []
        self.shape_numbers: dict[Shape, int] = {}
        self.runners: dict[str, RunnerState] = {}
        self.allocations: dict[str, Allocation] = {}
        self.limits: dict[str, Limit] = {}
        self.over: deque[str] = deque()
        """Allocations that are over, oldest first."""
        self.ledger = Ledger()
        self.parts = 0
        """How many parts of gangs are reserved, on all runners."""
        self.groups: dict[str, Group] = {}
        """What was learned, by group."""
        self.waited: dict[tuple[str, str], Waited] = {}
        """(site, queue; "": its own) → how long allocations waited there."""
        self.shares: dict[str, dict[int, int]] = {}
        """Share (who jobs' use is counted for) → hour since 1970 → core-milliseconds that were used."""
        self.waiters: dict[str, set[int]] = {}
        """Dependency target (batch number or @name) → batches that depend on it."""
        self.timers: list[tuple[float, int, int]] = []
        """A heap of (wall clock, batch, position or -1: all) of what waits for its time."""
        self.pauses: dict[str, tuple[float, str, str]] = {}
        """Who keeps the manager paused: holder → (since, why, who asked)."""
        self.pruned: list[tuple[int, int, float]] = []
        """(first, last, when) of batches that were pruned, ascending."""
        self.attempt_floor = 0
        """After a restored backup, the least number of a new attempt: greater than any given since the backup …"""
        self.floor_below = 0
        """… in batches with smaller numbers than this."""
        # indices
        self.census = Census()
        self.ready = 0
        """How many jobs are ready, of all shapes."""
        self.dirty_batches: set[int] = set()
        self.starts: dict[str, Starts] = {}
        """Limit with a rate → the starts that it counts."""
        self.timed: set[str] = set()
        """Limits with a rate or a window."""
        self.open_names: dict[str, set[int]] = {}
        """Name → batches for which every new batch of that name counts."""
        self.unnamed: dict[str, list[Token]] = {}
        """Name that nothing has → whom to tell when something has it."""
        self.epoch = 0
        """Grows whenever what batches know of their names may have changed."""
        self.tallies: dict[str, tuple[list[int], list[int]]] = {}
        """Name → how many jobs of its first 0, 1, 2 … batches, all settled, succeeded and did not."""
        self.settled: list[tuple[int, int, int]] = []
        """(batch, low, high) of jobs that were settled in this step, where another batch waits for them."""
        self.freed: list[tuple[int, int, int]] = []
        """(batch, low, high) of jobs that may have become ready in this step."""
        self.again: list[tuple[int, int, str]] = []
        """(batch, position, why) of jobs that completed in this step and are to run once more."""
        self.forgotten: list[str] = []
        """Runners that were forgotten in this step, whose contacts are to go."""

    def steady(self, wall: float, mono: float) -> float:
        """A clock that follows the wall's, but is never set while we live nor goes back when we start again."""
        return self.steady_less_mono(wall, mono) + mono

    def steady_less_mono(self, wall: float, mono: float) -> float:
        """How many seconds the steady clock is ahead of the monotonic one."""
        known = self.soft.planning.steady_less_mono
        if known is not None:
            return known
        newest = max((starts.rows[-1][1] for starts in self.starts.values() if starts.rows), default=wall)
        return max(wall, newest) - mono

    def shape_number(self, shape: Shape) -> int:
        """The number of a shape, which gets one if it is new."""
        number = self.shape_numbers.get(shape)
        if number is None:
            number = self.shape_numbers[shape] = len(self.shapes)
            self.shapes.append(ShapeState(number, shape))
        return number

    def absent(self, number: int) -> str:
        """Why there is no batch of this number, in words."""
        when = self.pruned_at(number)
        if when is None:
            return f"there is no batch {number}"
        return f"batch {number} was pruned on {format_day(when)}: its jobs, results and output are no longer kept"

    def pruned_at(self, number: int) -> float | None:
        """When a batch was pruned; None: it was not."""
        at = bisect(self.pruned, number, key=lambda row: row[0]) - 1
        return self.pruned[at][2] if at >= 0 and number <= self.pruned[at][1] else None

    def rooms(self, mono: float) -> dict[str, int]:
        """Site, or queue with a limit of its own → how many more allocations it may be asked for now."""
        weather, live = self.soft.weather, self.census.live
        rooms = {}
        for name, facts in self.soft.sites.items():
            site = weather.of(name)
            most = facts.most if site.takes is None else min(facts.most, site.takes)
            rooms[name] = most - live.get(name, 0) if site.closed_until <= mono else 0
            if facts.cloud:
                rooms[name] = min(rooms[name], most_servers(facts, self.budget(name)))
            if facts.hosts:
                left = 0
                for queue in facts.queues:
                    room = (queue.most or 1) - self.census.in_queue.get((name, queue.name), 0) if queue.up else 0
                    rooms[queue_id(name, queue.name)] = room
                    left += max(0, room)
                rooms[name] = min(rooms[name], left)
        return rooms

    def budget(self, name: str) -> list[int]:
        """How much is left of each bound of a site whose allocations are servers."""
        facts = self.soft.sites[name]
        prices = {queue.name: queue.price for queue in facts.queues}
        left = [bound.most - bound.others for bound in facts.bounds]
        for (queue, node, time_s), count in self.census.asked.get(name, {}).items():
            for at, bound in enumerate(facts.bounds):
                left[at] -= count * bound.use(node, prices.get(queue, 0.0), time_s + facts.paid_s)
        return left

    def budgets(self) -> dict[str, list[int]]:
        """Site whose allocations are servers → how much is left of each of its bounds."""
        return {name: self.budget(name) for name, facts in self.soft.sites.items() if facts.cloud}

    def runners_of(self, allocation: str) -> list[RunnerState]:
        """The runners of an allocation, also those that are over."""
        return [self.runners[name] for name in self.census.of.get(allocation, ())]

    def hosts(self, live: Live) -> list[str]:
        """The hosts of an attempt, its root first."""
        names = (live.runner, *(name for name, _ in live.parts))
        return [self.runners[name].host for name in names if name in self.runners]

    def direct_runners(self, allocation: Allocation) -> list[RunnerState]:
        """The runner that stands for a direct allocation; empty if there is none."""
        runner = self.runners.get(f"{allocation.tag}.{allocation.element}") if allocation.direct else None
        return [] if runner is None else [runner]

    def ensure_site_location(self, site: str) -> None:
        """Put a site into the ledger, as the root of its tree; its capacity is known once the driver has told it."""
        facts = self.soft.sites.get(site)
        capacity = None
        shared = facts.shared if facts is not None else ()
        only = bool(shared) and facts is not None and facts.most * facts.nodes_most != 1
        if facts is not None and facts.most == facts.nodes_most == 1:
            capacity = facts.node.plus(Amounts(named=shared))
        elif shared:
            capacity = Amounts(named=shared)
        have = self.ledger.locations.get(site)
        if have is None or have.capacity != capacity:
            tags = facts.tags if facts is not None else ()
            names = tuple(name for name, _ in shared)
            self.ledger.add(
                Location(
                    site,
                    Kind.SITE,
                    None,
                    capacity,
                    True,
                    tags,
                    None,
                    site,
                    shared=names,
                    shared_only=only,
                )
            )
