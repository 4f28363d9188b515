"""The state: everything the core knows.

Changed only by `evolve`, from events; what is not kept (contact, weather, memos) lies apart, in `rota.core.soft`.

A batch of a million jobs is a few arrays, not a million objects; only what differs from its neighbours gets an entry
in a dict.
"""

import heapq
from array import array
from bisect import bisect
from collections import deque
from collections.abc import Iterator, Mapping

from msgspec import Struct, field

from rota.core.census import Census
from rota.core.graph import GraphState, Token
from rota.core.ready import ReadyQueue
from rota.core.soft import Soft
from rota.model.allocation import Allocation
from rota.model.amounts import format_day
from rota.model.batch import BatchSpec, Dependency, Template, index_at, position_of
from rota.model.graph import Graph
from rota.model.location import Kind, Location
from rota.model.needs import Amounts
from rota.model.shape import Shape
from rota.model.slot import Slot
from rota.model.tables import JOB_STATES, SETTLED, WAITING
from rota.schedule.estimate import Group
from rota.schedule.ledger import Ledger
from rota.schedule.limits import Starts
from rota.schedule.policy import POLICIES, Policy
from rota.schedule.view import Limit

__all__ = ["BatchState", "Live", "RunnerState", "Settings", "ShapeState", "State"]

COLUMN_CHUNK = 65_536
GRAPH = -2
"""The number of the chunk that is the graph of a batch."""


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
    ahead_s: float = 0.05
    """How many seconds of work a runner is leased ahead of its slots."""
    ahead_below_s: float = 1.0
    """The longest that jobs may take to be leased ahead."""
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
    policies: Mapping[str, Policy] = field(default_factory=lambda: POLICIES)
    """Name → policy, as configured."""


class Live:
    """The live attempt of one job."""

    __slots__ = ("attempt", "parts", "runner", "slot")

    def __init__(self, runner: str, slot: Slot, attempt: int, parts: tuple[tuple[str, Slot], ...] = ()) -> None:
        self.runner = runner
        self.slot = slot
        self.attempt = attempt
        self.parts = parts
        """(runner, slot) of the further parts of a gang; `runner` is its root."""

    @property
    def cores(self) -> int:
        """Its millicores, on all its nodes."""
        return self.slot.amounts.cores + sum([slot.amounts.cores for _, slot in self.parts])


class BatchState:
    """One batch: columns for all its jobs, and an overlay for what differs."""

    __slots__ = (
        "attempts", "blocked", "broken", "by", "changes", "closing", "count", "counts", "dirty", "edges", "elements",
        "env", "epoch",
        "failures", "followed", "graph", "held_why", "hold_wanted", "id", "key", "killed_why", "known_until", "live",
        "loose",
        "losses", "marks", "met", "omitted_why", "queues", "ranges", "removes", "rerun_wanted", "seen", "shapes",
        "spec", "states", "submitted", "template_numbers", "templates", "twins", "until", "waits", "watchers",
    )  # fmt: skip

    def __init__(
        self,
        batch: int,
        spec: BatchSpec,
        key: str,
        submitted: float,
        env: str | None,
        runs: list[int] | None,
        graph: Graph | None = None,
    ) -> None:
        self.id = batch
        self.spec = spec
        self.key = key
        self.submitted = submitted
        self.env = env
        self.by = ""
        """Who submitted it."""
        self.count = spec.count
        self.ranges = spec.ranges
        self.states = bytearray(spec.count)
        self.attempts = array("I", bytes(4 * spec.count))
        self.counts = [0] * len(JOB_STATES)
        self.counts[WAITING] = spec.count
        self.changes = 0
        """How often its jobs were given other templates since the manager started."""
        self.templates = list(spec.templates)
        """The templates that were submitted, then those that jobs were changed to."""
        self.template_numbers = _column(runs) if runs is not None else None
        """Template number of each job; None: all have the first."""
        self.shapes: list[int] = []
        """Shape number of each template."""
        self.queues = [ReadyQueue() for _ in spec.templates]
        self.live: dict[int, Live] = {}
        self.failures: dict[int, int] = {}
        """Failed attempts that count against `retries`, since the job was last (re)opened."""
        self.losses: dict[int, int] = {}
        """Attempts that were lost."""
        self.until: dict[int, float] = {}
        """Wall-clock time of the next try of a job that failed."""
        self.hold_wanted: dict[int, bool] = {}
        """Leased jobs that are to be held once their leases are back; True: they are stopped for that."""
        self.closing: dict[int, tuple[str, ...]] = {}
        """Runners that still hold parts of the last attempt, which is over: until they are released it is not ready."""
        self.broken: dict[int, str] = {}
        """Live gangs that have lost a part, and how: they are to end, which counts as a loss."""
        self.graph = GraphState(batch, spec.count, graph) if graph is not None else None
        """Which of its jobs wait for which, if they do."""
        self.blocked = bool(spec.after) or spec.not_before is not None or graph is not None
        """True until its dependencies are met and its time has come."""
        self.omitted_why: str | None = None
        self.held_why: str | None = None
        """Why its jobs were last held."""
        self.killed_why: str | None = None
        """Who last killed jobs of it, in words."""
        self.dirty: set[int] = set()
        """Chunks of the columns that changed since the last checkpoint."""
        self.removes = any(template.remove_on is not None for template in spec.templates)
        """Whether some of its jobs are removed once they have settled."""
        self.rerun_wanted: dict[int, str] = {}
        """Live jobs that run once more when they have completed, and why."""
        self.known_until = 0
        """The newest batch that counts for a name which none had when this one was added; 0: that is still open."""
        self.loose = 0
        """How many live jobs count against its own limit though they were leased before it had one."""
        # indices, see `rota.core.dependencies`
        self.edges: tuple[tuple[int, int, int], ...] = ()
        """For each dependency the positions (batch, low, high) that it waits for; (0, 0, 0): it is on a name."""
        self.elements: tuple[int, ...] = ()
        """Numbers of the dependencies that are job by job."""
        self.met = 0
        """How many dependencies, from the first, are known to be met."""
        self.seen = -1
        """How much of the next dependency is known to be settled: a position, or for a name a place in its list."""
        self.epoch = 0
        """The `State.epoch` as of which `met` and `seen` hold; -1: always, as no dependency is on a name."""
        self.waits: tuple[int, int] | tuple[int, str] | str | None = None
        """What this batch is to be told of: the end of (batch, position), of all of (batch, -1), of those of a name in
        (batch, name), or a new name."""
        self.followed = self.graph is not None
        """Whether another batch waits, or waited, for this one or a part of it; or jobs of its own do."""
        self.watchers: set[Token] = set()
        """Whom to tell when all of this one is settled."""
        self.marks: dict[int, list[Token]] = {}
        """Position → whom to tell when the job there is settled."""
        self.twins: list[tuple[int, int]] = []
        """(batch, offset) of each batch that depends on this one job by job: its position 0 is `offset` here; an offset
        of -1: its graph knows which position is which."""

    @property
    def after(self) -> tuple[Dependency, ...]:
        """What all its jobs wait for."""
        return self.spec.after

    @property
    def token(self) -> Token:
        """By what it is known to those that tell it as a whole."""
        return self.id, -1

    @property
    def needed(self) -> tuple[Dependency, ...]:
        """All that it or some of its jobs wait for outside of it."""
        if self.graph is None:
            return self.spec.after
        jobs = (Dependency(str(number)) for number, _ in self.graph.given.jobs)
        return (*self.spec.after, *self.graph.given.after, *jobs)

    @property
    def names(self) -> tuple[str, ...]:
        """Its name, and those that some of its jobs have."""
        own = (self.spec.name,) if self.spec.name else ()
        return own if self.graph is None else (*own, *(name for name in self.graph.groups if name != self.spec.name))

    def template_of(self, pos: int) -> int:
        """Number of the template of the job at a position."""
        return self.template_numbers[pos] if self.template_numbers is not None else 0

    def template(self, pos: int) -> Template:
        """Template of the job at a position."""
        return self.templates[self.template_numbers[pos] if self.template_numbers is not None else 0]

    def index(self, pos: int) -> int:
        """Index of the job at a position: the number that people see."""
        return pos + 1 if self.ranges is None else index_at(self.ranges, pos)

    def position(self, index: int) -> int | None:
        """Position of the job with an index, or None if there is none."""
        return position_of(self.ranges, self.count, index)

    def runs(self, low: int, high: int) -> Iterator[tuple[int, int, int]]:
        """(template, low, high) for each stretch of equal templates."""
        templates = self.template_numbers
        if templates is None:
            yield 0, low, high
            return
        start = low
        for pos in range(low + 1, high + 1):
            if pos == high or templates[pos] != templates[start]:
                yield templates[start], start, pos
                start = pos

    @property
    def unsettled(self) -> int:
        """How many jobs are not settled."""
        return sum(self.counts[:SETTLED])


def _column(runs: list[int]) -> "array[int]":
    column = array("H")
    for template, count in zip(runs[::2], runs[1::2], strict=True):
        column.extend(array("H", [template]) * count)
    return column


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

    def head(self, batches: dict[int, BatchState]) -> tuple[int, int, ReadyQueue] | None:
        """(batch, template, queue) whose jobs come next, or None."""
        if not self.heads:
            return None
        _, batch, template = self.heads[0]
        return batch, template, batches[batch].queues[template]

    def trim(self, batches: dict[int, BatchState]) -> None:
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
        self.batches: dict[int, BatchState] = {}
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
        """Site → how many more allocations it may be asked for now."""
        weather, live = self.soft.weather, self.census.live
        rooms = {}
        for name, facts in self.soft.sites.items():
            site = weather.of(name)
            most = facts.most if site.takes is None else min(facts.most, site.takes)
            rooms[name] = most - live.get(name, 0) if site.closed_until <= mono else 0
        return rooms

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
