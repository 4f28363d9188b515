"""Stimuli: everything that can happen. Each carries `at` (wall and monotonic clock) and `by` (who)."""

from typing import NamedTuple

from msgspec import Struct

from rota.model.allocation import Outcome
from rota.model.batch import BatchSpec
from rota.model.needs import Amounts
from rota.model.patch import Patch
from rota.model.selector import Selector
from rota.model.site import SiteFacts

__all__ = [
    "AllocationSeen",
    "At",
    "ChangeJobs",
    "Disconnected",
    "Ended",
    "Greet",
    "LastWords",
    "Prune",
    "Report",
    "RunnerBye",
    "SetLimits",
    "SetMode",
    "SiteFull",
    "SiteSeen",
    "Started",
    "Stimulus",
    "Submit",
    "Tick",
    "Touch",
    "Used",
    "Written",
]


class At(NamedTuple):
    """A moment on both clocks. Deadlines between machines and people use `wall`, lapses use `mono`."""

    wall: float
    mono: float
    utc_offset_s: int = 0
    """Of the manager's local time, at this moment."""


class Stimulus(Struct, kw_only=True):
    """Anything that happens."""

    at: At
    by: str = "rota"


class Submit(Stimulus, kw_only=True):
    """A client adds a batch."""

    spec: BatchSpec
    key: str
    stage: str | None = None
    env: str | None = None
    runs: list[int] | None = None
    limits: dict[str, int | str] | None = None
    """Limits to set: a count, or what is written after the colon."""
    then: BatchSpec | None = None
    """One job to run when all of the batch is settled."""


class ChangeJobs(Stimulus, kw_only=True):
    """A client's kill, hold, release, retry or remove."""

    what: str
    selector: Selector
    everything: bool = False
    """An empty selector means all jobs, not none."""
    dry_run: bool = False
    stop: bool = False
    """hold: running ones too."""
    confirm_dead: bool = False
    """kill: what is MISSING is dead, the user knows it."""
    patch: Patch | None = None
    """modify, retry: what changes about them."""


class SetMode(Stimulus, kw_only=True):
    """pause, resume, drain."""

    mode: str
    holder: str = "user"
    """Whose pause it is; empty (resume): nobody's, only a drain ends."""
    reason: str = ""
    everyone: bool = False
    """resume: end everybody's pauses."""


class Prune(Stimulus, kw_only=True):
    """Settled batches are to be forgotten."""

    selector: Selector
    older_than_s: float = 0
    keep: int = 0
    """The newest so many batches that could be pruned stay."""
    dry_run: bool = False
    young: frozenset[int] = frozenset()
    """Batches of which something ended less than `older_than_s` ago."""


class SetLimits(Stimulus, kw_only=True):
    """Named limits are set (a count, or what is written after the colon), or taken away with None."""

    counts: dict[str, int | str | None]


class Greet(Stimulus, kw_only=True):
    """A runner opened a connection."""

    runner: str
    allocation: str | None
    connect: int
    clock: float
    host: str
    pid: int
    capacity: Amounts
    tags: tuple[str, ...] = ()
    until: float | None = None
    output: str = ""
    held: list[tuple[int, int, int]]
    """(batch, index, attempt)."""


class Ended(NamedTuple):
    """One row of a runner's report."""

    batch: int
    index: int  # type: ignore[assignment]  # a tuple has a method of that name, which nobody wants here
    attempt: int
    exit_code: int | None
    signal: int | None
    reason: str | None
    started: float | None
    ended: float | None
    cpu_s: float | None
    peak_memory: int | None
    output: str | None
    note: str | None
    peak_disk: int | None = None


class Started(NamedTuple):
    """One attempt that a runner says has started."""

    batch: int
    index: int  # type: ignore[assignment]
    attempt: int
    wall: float | None = None
    """When, by the runner's wall clock."""


class Used(NamedTuple):
    """What a running attempt has used so far, as its runner tells."""

    batch: int
    index: int  # type: ignore[assignment]
    attempt: int
    started: float | None
    cpu_s: float | None
    memory: int | None


class Report(Stimulus, kw_only=True):
    """A runner tells what started, ended, or will not be started."""

    runner: str
    session: int
    seq: int
    got: int
    clock: float
    started: list[Started] = []
    ended: list[Ended] = []
    disclaimed: list[tuple[int, int, int, str]] = []
    host: str | None = None
    """Where, if that is not known of the runner."""


class Touch(Stimulus, kw_only=True):
    """A runner lives, and holds these: (batch, index, attempt)."""

    runner: str
    session: int
    got: int
    clock: float
    held: list[tuple[int, int, int]] = []
    used: list[Used] = []


class RunnerBye(Stimulus, kw_only=True):
    """A runner leaves with nothing held."""

    runner: str
    session: int
    reason: str


class Disconnected(Stimulus, kw_only=True):
    """A runner's connection is gone. That says nothing about the runner."""

    runner: str
    session: int


class SiteSeen(Stimulus, kw_only=True):
    """A site is there, and offers this."""

    site: str
    facts: SiteFacts


class AllocationSeen(Stimulus, kw_only=True):
    """A driver's word on an allocation: a verb of the allocation table, or `unsure`."""

    id: str
    verb: str
    asked: float | None = None
    """Monotonic time at which the provider was asked: what it said may be older than it looks. None: just now."""
    identity: bool = False
    """The answer to a submission or a search: it tells the native id, and of the state only that it got there."""
    native_id: str | None = None
    reason: str | None = None
    outcome: Outcome | None = None
    host: str | None = None


class Written(Struct):
    """What a runner that could not report wrote down: rows as in a Report."""

    runner: str
    ended: list[Ended] = []
    disclaimed: list[tuple[int, int, int, str]] = []
    host: str | None = None


class LastWords(Stimulus, kw_only=True):
    """What was left behind by an allocation that its driver says is over."""

    id: str
    written: list[Written] = []
    restarted: bool = False
    """The cluster started a direct job a second time, which then did nothing."""
    output: str | None = None
    """The last line of the cluster job's own output."""
    unread: str | None = None
    """Why what it may have left could not be read."""


class SiteFull(Stimulus, kw_only=True):
    """A provider takes no more allocations of ours for now: it did not take so many more."""

    site: str
    count: int


class Tick(Stimulus, kw_only=True):
    """Time has passed."""
