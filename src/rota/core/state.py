"""The state: everything the core knows.

Changed only by `evolve`, from events; what is volatile (contact, clocks) is marked so.

A batch of a million jobs is a few arrays, not a million objects; only what differs from its neighbours gets an entry
in a dict.
"""

import heapq
import math
from array import array
from bisect import bisect
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING

from msgspec import Struct

from rota.core.ready import ReadyQueue
from rota.model.allocation import Allocation
from rota.model.amounts import format_day
from rota.model.batch import BatchSpec, Template, index_at, position_of
from rota.model.location import Kind, Location
from rota.model.needs import Amounts
from rota.model.shape import Shape
from rota.model.tables import JOB_STATES, SETTLED, WAITING
from rota.model.verdict import Verdict
from rota.schedule.demand import ANY, SiteView
from rota.schedule.estimate import Group
from rota.schedule.ledger import Ledger
from rota.schedule.limits import Starts
from rota.schedule.pipeline import Memo
from rota.schedule.view import Limit

if TYPE_CHECKING:
    from rota.core.plan.backfill import Reservation

__all__ = ["BatchState", "Live", "RunnerState", "Settings", "ShapeState", "State"]

COLUMN_CHUNK = 65_536


class Settings(Struct, frozen=True):
    """Numbers that the core goes by; times in seconds."""

    touch_s: float = 15
    missing_s: float = 60
    start_by_s: float = 45
    """Less than `missing_s`: what is given up after silence can then not start any more."""
    rerun_s: float = 600
    losses: int = 5
    backoff_first_s: float = 30
    backoff_most_s: float = 1800
    backoff_jitter_s: float = 30
    ahead_s: float = 0.05
    """Depth of leases ahead: so much work."""
    ahead_below_s: float = 1.0
    """No leases ahead for jobs that take longer than this."""
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
    bad_host_failures: int = 5
    """So many jobs in a row that fail on a host …"""
    bad_host_fast_s: float = 5
    """… each within so long of its start …"""
    bad_host_window_s: float = 300
    """… while such jobs succeeded elsewhere, not longer ago than this: the host gets no more jobs …"""
    bad_host_s: float = 3600
    """… for so long."""


class Live:
    """The live attempt of one job."""

    __slots__ = ("attempt", "runner", "since", "slot")

    def __init__(self, runner: str, slot: str, attempt: int) -> None:
        self.runner = runner
        self.slot = slot
        self.attempt = attempt
        self.since = 0.0
        """Monotonic time of the lease, or of the manager's start. Volatile."""


class BatchState:
    """One batch: columns for all its jobs, and an overlay for what differs."""

    __slots__ = (
        "attempts",
        "blocked",
        "changes",
        "count",
        "counts",
        "dirty",
        "edges",
        "elements",
        "env",
        "epoch",
        "failures",
        "followed",
        "held_why",
        "hold_wanted",
        "id",
        "key",
        "known_until",
        "live",
        "loose",
        "losses",
        "marks",
        "met",
        "omitted_why",
        "queues",
        "ranges",
        "removes",
        "rerun_wanted",
        "seen",
        "shapes",
        "spec",
        "states",
        "submitted",
        "template_numbers",
        "templates",
        "twins",
        "until",
        "waits",
        "watchers",
    )

    def __init__(
        self, batch: int, spec: BatchSpec, key: str, submitted: float, env: str | None, runs: list[int] | None
    ) -> None:
        self.id = batch
        self.spec = spec
        self.key = key
        self.submitted = submitted
        self.env = env
        self.count = spec.count
        self.ranges = spec.ranges
        self.states = bytearray(spec.count)
        self.attempts = array("I", bytes(4 * spec.count))
        self.counts = [0] * len(JOB_STATES)
        self.counts[WAITING] = spec.count
        self.changes = 0
        """How often jobs of it were given other templates. Volatile."""
        self.templates = list(spec.templates)
        """The templates: those submitted, then those that jobs were changed to."""
        self.template_numbers = _column(runs) if runs is not None else None
        self.shapes: list[int] = []
        """Shape number of each template."""
        self.queues = [ReadyQueue() for _ in spec.templates]
        self.live: dict[int, Live] = {}
        self.failures: dict[int, int] = {}
        """Failed attempts that count against `retries`, since the job was last (re)opened."""
        self.losses: dict[int, int] = {}
        self.until: dict[int, float] = {}
        """Not before this wall-clock time."""
        self.hold_wanted: dict[int, bool] = {}
        """Leased jobs that are to be held once they are back; True: they are to be stopped for it."""
        self.blocked = bool(spec.after) or spec.not_before is not None
        """True until its dependencies are met and its time has come."""
        self.omitted_why: str | None = None
        self.held_why: str | None = None
        """Why jobs of it were last held."""
        self.dirty: set[int] = set()
        """Chunks changed since the last checkpoint."""
        self.removes = any(template.remove_on is not None for template in spec.templates)
        """Some of its jobs are forgotten once they have settled."""
        self.rerun_wanted: dict[int, str] = {}
        """Live jobs that run once more when they have completed, and why."""
        self.known_until = 0
        """A name that nothing had means the batches up to this number; 0: its meaning is still open."""
        self.loose = 0
        """Live jobs that count against its own limit though it had none when they were leased."""
        # indices, see `rota.core.dependencies`
        self.edges: tuple[tuple[int, int, int], ...] = ()
        """For each dependency (batch, low, high) positions that are waited for; (0, 0, 0): a name."""
        self.elements: tuple[int, ...] = ()
        """Which of them are job by job."""
        self.met = 0
        """So many dependencies, from the first, are known to be met."""
        self.seen = -1
        """Of the next one, so much is known to be settled."""
        self.epoch = 0
        """What it knows of names is as of this `State.epoch`; -1: it names none."""
        self.waits: tuple[int, int] | str | None = None
        """What it will be told of: the end of (batch, position), of all of (batch, -1), or a batch of this name."""
        self.followed = False
        """Somebody waits, or waited, for this batch or a part of it."""
        self.watchers: set[int] = set()
        """Batches to tell when all of this is settled."""
        self.marks: dict[int, list[int]] = {}
        """Batches to tell when the job at a position is settled."""
        self.twins: list[tuple[int, int]] = []
        """(batch, this many positions further down here) of those that depend on this one job by job."""

    def template_of(self, pos: int) -> int:
        """Number of the job's template."""
        return self.template_numbers[pos] if self.template_numbers is not None else 0

    def template(self, pos: int) -> Template:
        """The job's template."""
        return self.templates[self.template_numbers[pos] if self.template_numbers is not None else 0]

    def index(self, pos: int) -> int:
        """The number that people see."""
        return pos + 1 if self.ranges is None else index_at(self.ranges, pos)

    def position(self, index: int) -> int | None:
        """Position of a number that people see."""
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
    """A shape and what waits for it."""

    __slots__ = ("asked", "heads", "id", "learned", "mean_s", "ready", "shape", "slots", "verdicts")

    def __init__(self, number: int, shape: Shape) -> None:
        self.id = number
        self.shape = shape
        self.asked = shape
        """The shape with what was learned in the place of what was not given (or overridden)."""
        self.learned: tuple[object, ...] = ()
        """What `asked` was worked out from."""
        self.ready = 0
        self.heads: list[tuple[int, int, int]] = []
        """(-priority, batch, template) of queues that may have something; stale entries are skipped."""
        self.mean_s: float | None = None
        """Recent mean wall time: a hint for leases ahead, not part of the durable state."""
        self.verdicts: list[Verdict] = []
        """Why its jobs did not all start, as the last pass found; `core.explain` adds what else is known."""
        self.slots = 0
        """How many it holds, on all runners."""

    def head(self, batches: dict[int, BatchState]) -> tuple[int, int, ReadyQueue] | None:
        """(batch, template, queue) that is next, or None."""
        while self.heads:
            _, batch, template = self.heads[0]
            queue = batches[batch].queues[template]
            if queue.count > 0:
                return batch, template, queue
            heapq.heappop(self.heads)
            queue.listed = False
        return None


class RunnerState:
    """A runner: durable part first, volatile part after."""

    __slots__ = (
        "allocation",
        "capacity",
        "clock",
        "connect",
        "connected",
        "contact",
        "direct",
        "drain_wanted",
        "given_up",
        "got",
        "held",
        "host",
        "id",
        "idle_since",
        "jobs",
        "lease_n",
        "location",
        "output",
        "pid",
        "seq",
        "session",
        "site",
        "slots",
        "state",
        "tags",
        "unacked",
        "until",
        "why",
    )

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
        self.slots: dict[str, int] = {}
        self.held: dict[str, int] = {}
        """Leases per slot name."""
        self.jobs: dict[tuple[int, int], None] = {}
        """Live attempts here, by (batch, position), in order of lease."""
        self.drain_wanted = False
        self.direct = False
        # volatile
        self.why: str | None = None
        """Why it made its last move."""
        self.connected = False
        self.contact = 0.0
        self.idle_since = 0.0
        self.clock = 0.0
        self.lease_n = 0
        self.got = 0
        self.given_up: dict[tuple[int, int, int], None] = {}
        """(batch, index, attempt) that were given up in this session.

        Should it be back and hold them, it is to end them.
        """
        self.unacked: dict[int, tuple[float, list[tuple[int, int, int, str]], dict[str, int]]] = {}
        """Lease messages that the runner has not confirmed: number → (sent, jobs, slots)."""


class SiteState(Struct):
    """A site. Not durable: told anew at every start from configuration and driver."""

    name: str
    node: Amounts
    tags: tuple[str, ...] = ()
    most: int = 1
    linger_s: float = 60
    mode: str = "runners"
    whole: bool = True
    array_most: int = 1
    allocation_s: int | None = None
    job_s: int | None = None
    time_most_s: int | None = None
    directory: str = ""
    closed_until: float = 0
    failures: int = 0
    why: str | None = None
    failed_tag: str = ""
    """Of the submission that failed last: an array that fails is one failure."""
    spare_s: int = 0
    queue_times: tuple[tuple[str, int], ...] = ()


class State:
    """The whole."""

    def __init__(self, settings: Settings, seed: int = 1) -> None:
        self.settings = settings
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
        self.sites: dict[str, SiteState] = {}
        self.limits: dict[str, Limit] = {}
        self.over: deque[str] = deque()
        """Allocations that are over, oldest first."""
        self.ledger = Ledger()
        self.groups: dict[str, Group] = {}
        """What was learned, by group."""
        self.waiters: dict[str, set[int]] = {}
        """Dependency target (batch number or @name) → batches that depend on it."""
        self.timers: list[tuple[float, int, int]] = []
        """(wall clock, batch, position or -1) of what waits for its time."""
        self.rng = seed & (2**64 - 1) or 1
        self.pauses: dict[str, tuple[float, str, str]] = {}
        """Who keeps the manager paused: holder → (since, why, who asked)."""
        self.pruned: list[tuple[int, int, float]] = []
        """(first, last, when) of batches that were pruned, ascending."""
        self.attempt_floor = 0
        """The least number of a new attempt: greater than any that a backup does not know of."""
        self.floor_below = 0
        """That is so for batches with smaller numbers than this."""
        # indices and volatile things
        self.dirty_batches: set[int] = set()
        self.memo: Memo = {}
        self.place_classes: dict[tuple[object, ...], int] = {}
        self.replan = True
        """Something changed that the scheduler should look at."""
        self.safety_at = 0.0
        self.refused: dict[tuple[str, int], tuple[float, int, str]] = {}
        """(site, shape) → (monotonic time of the next try, tries, why) where the provider refuses such requests."""
        self.reserved: Reservation | None = None
        """The place that the last pass kept for a job that has waited for long."""
        self.backfill_memo: Memo = {}
        self.surplus_since: dict[tuple[str, int], float] = {}
        """(site, shape) → since when more allocations are on their way than are needed."""
        self.host_failures: dict[tuple[str, str], tuple[int, float]] = {}
        """(site, host) → jobs in a row that failed there at once, and since when."""
        self.good_hosts: dict[int, tuple[tuple[str, float], ...]] = {}
        """Shape → the last two hosts where a job of it succeeded, and when."""
        self.bad_hosts: dict[tuple[str, str], tuple[float, str]] = {}
        """(site, host) → until when it gets no jobs, and why."""
        self.starts: dict[str, Starts] = {}
        """What was started under a limit with a rate."""
        self.timed: set[str] = set()
        """Limits with a rate or a window."""
        self.window_at = math.inf
        """Wall-clock time at which a window opens that something waits for."""
        self.rate_at = math.inf
        """Monotonic time at which a rate lets something start that waits for it."""
        self._steady_less_mono: float | None = None
        self.open_names: dict[str, set[int]] = {}
        """Name → batches for which every new batch of that name counts."""
        self.unnamed: dict[str, list[int]] = {}
        """Name that nothing has → batches to tell when something has."""
        self.epoch = 0
        """Grows whenever what is known of a name may not be so any more."""
        self.tallies: dict[str, tuple[list[int], list[int]]] = {}
        """Name → how many jobs of its first settled batches succeeded, and did not: sums, batch by batch."""
        self.settled: list[tuple[int, int, int]] = []
        """(batch, low, high) where jobs that somebody waits for were settled, in this step."""
        self.freed: list[tuple[int, int, int]] = []
        """(batch, low, high) where jobs may have become ready, in this step."""
        self.again: list[tuple[int, int, str]] = []
        """(batch, position, why) of jobs that have completed and are to run once more, in this step."""

    def steady(self, wall: float, mono: float) -> float:
        """A clock that follows the wall's, but is never set while we live nor goes back when we start again."""
        if self._steady_less_mono is None:
            newest = max((starts.rows[-1][1] for starts in self.starts.values() if starts.rows), default=wall)
            self._steady_less_mono = max(wall, newest) - mono
        return self._steady_less_mono + mono

    def restarted(self) -> None:
        """The monotonic clock may have begun anew."""
        self._steady_less_mono = None
        self.replan = True

    def shape_number(self, shape: Shape) -> int:
        """Intern a shape."""
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
        """When a batch was pruned."""
        at = bisect(self.pruned, number, key=lambda row: row[0]) - 1
        return self.pruned[at][2] if at >= 0 and number <= self.pruned[at][1] else None

    def random(self) -> float:
        """The next number in [0, 1) of the core's own generator (splitmix64): chance is part of the state."""
        self.rng = (self.rng + 0x9E3779B97F4A7C15) & (2**64 - 1)
        mixed = self.rng
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & (2**64 - 1)
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & (2**64 - 1)
        return float((mixed ^ (mixed >> 31)) >> 11) / float(1 << 53)

    def site_views(self) -> list[SiteView]:
        """Sites for the demand and for refusals at submission."""
        views = {
            site.name: SiteView(
                site.name,
                site.node,
                site.tags,
                0,
                site.most,
                site.closed_until,
                site.whole,
                site.mode,
                site.allocation_s,
                site.job_s,
                site.time_most_s,
                spare_s=site.spare_s,
                queue_times=site.queue_times,
            )
            for site in self.sites.values()
        }
        serving = {runner.allocation for runner in self.runners.values()} if self.allocations else set()
        for allocation in self.allocations.values():
            view = views.get(allocation.site)
            if view is None or not allocation.state.endswith("ING"):
                continue
            view.live += 1
            if allocation.id not in serving and allocation.state != "KILLING":
                key = ANY if allocation.shape is None else allocation.shape
                view.coming[key] = view.coming.get(key, 0) + 1
        return list(views.values())

    def direct_runners(self, allocation: Allocation) -> list[RunnerState]:
        """The one that stands for a direct allocation, if it has one."""
        runner = self.runners.get(f"{allocation.tag}.{allocation.element}") if allocation.direct else None
        return [] if runner is None else [runner]

    def ensure_site_location(self, site: str) -> None:
        """The root of a site's tree; its capacity is set when the driver tells it."""
        known = self.sites.get(site)
        capacity = known.node if known is not None and known.most == 1 else None
        have = self.ledger.locations.get(site)
        if have is None or have.capacity != capacity:
            self.ledger.add(Location(site, Kind.SITE, None, capacity, True, known.tags if known else (), None, site))
