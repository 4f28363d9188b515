"""Stimuli: everything that can happen. Each carries `at` (wall and monotonic clock) and `by` (who)."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from msgspec import Struct

from rota.model.allocation import Outcome
from rota.model.batch import BatchSpec
from rota.model.graph import Graph
from rota.model.needs import Amounts
from rota.model.patch import Patch
from rota.model.selector import Selector
from rota.model.site import SiteFacts

__all__ = [
    "AllocationSeen", "At", "ChangeJobs", "Cover", "Disconnected", "EndAllocation", "Ended", "FactSeen", "Greet",
    "Held", "HoldRow", "LastWords", "Left", "Prune", "Released", "Report", "RunnerBye", "SetLimits", "SetMode",
    "SiteFull", "SiteSeen", "Started", "Stimulus", "Submit", "TakeDown", "Tick", "Touch", "Unstaged", "Used", "Written",
]  # fmt: skip


class At(NamedTuple):
    """A moment on both clocks. Deadlines between machines and people use `wall`, lapses use `mono`."""

    wall: float
    mono: float
    utc_offset_s: int = 0
    """Seconds that the manager's local time is ahead of UTC at this moment."""


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
    """Limits to set with it: a count, or what is written after the colon."""
    may_limit: bool = True
    """Whether it may change limits that are there already."""
    then: BatchSpec | None = None
    """A batch of one job, to run when all of this one is settled."""
    graph: Graph | None = None
    """Which of its jobs wait for which."""


class Cover(Stimulus, kw_only=True):
    """A client's wish that jobs which are there already have a name too (`--once`)."""

    name: str
    jobs: dict[int, list[int]]
    """Batch → positions."""


class ChangeJobs(Stimulus, kw_only=True):
    """A client's modify, kill, hold, release, retry or remove."""

    what: str
    selector: Selector
    everything: bool = False
    """An empty selector means all jobs, not none."""
    dry_run: bool = False
    stop: bool = False
    """For hold: running jobs too."""
    confirm_dead: bool = False
    """For kill: the user knows that MISSING jobs are dead."""
    patch: Patch | None = None
    """For modify and retry: what changes about the jobs."""


class SetMode(Stimulus, kw_only=True):
    """A client's pause, resume or drain of the manager."""

    mode: str
    holder: str = "user"
    """Whose pause begins or ends; empty (for resume): nobody's, only a drain ends."""
    reason: str = ""
    everyone: bool = False
    """For resume: end everybody's pauses."""


class Prune(Stimulus, kw_only=True):
    """A client's, or the manager's own, request to forget settled batches."""

    selector: Selector
    older_than_s: float = 0
    keep: int = 0
    """How many of the batches that could be pruned stay: the newest."""
    dry_run: bool = False
    young: frozenset[int] = frozenset()
    """Batches of which something ended less than `older_than_s` ago."""


class SetLimits(Stimulus, kw_only=True):
    """A client sets named limits (a count, or what is written after the colon), or takes them away (None)."""

    counts: dict[str, int | str | None]


HoldRow = tuple[int, int, int, str]
"""(batch, index, attempt) of a part of a gang, and HOST:PORT where ranks are started."""


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
    """(batch, index, attempt) of every attempt that the runner holds."""
    holds: list[HoldRow] = []
    gangs: bool = False
    """Whether it can hold parts of gangs."""
    replaces: str | None = None
    """The runner whose end, with that of all it had started on this node, its supervisor has seen to."""
    written: "list[Written]" = []
    """What that one, and those before it on its node, could not send and wrote down."""
    challenged: float | None = None
    """Monotonic time at which its connection was there, and challenged: it lived then. None: just now."""


class Ended(NamedTuple):
    """One attempt that a runner reports as ended, with its outcome and what it used."""

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
    """Its start, by the runner's wall clock."""


class Used(NamedTuple):
    """What a running attempt has used so far, as its runner tells."""

    batch: int
    index: int  # type: ignore[assignment]
    attempt: int
    started: float | None
    cpu_s: float | None
    memory: int | None


class Left(NamedTuple):
    """What a running attempt whose command is over left running, as its runner tells."""

    batch: int
    index: int  # type: ignore[assignment]
    attempt: int
    ended: float
    """By the wall clock of its host."""
    many: int
    processes: Sequence[tuple[int, str]]
    """Pids and names of the first of them."""


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
    """Where the jobs ran, if the runner's host is not known."""


class Touch(Stimulus, kw_only=True):
    """A runner's sign of life, with the attempts that it holds: (batch, index, attempt)."""

    runner: str
    session: int
    got: int
    clock: float
    held: list[tuple[int, int, int]] = []
    used: list[Used] = []
    left: list[Left] = []
    holds: list[HoldRow] = []


class Held(Stimulus, kw_only=True):
    """A runner tells all parts of gangs that it holds."""

    runner: str
    session: int
    holds: list[HoldRow]


class Released(Stimulus, kw_only=True):
    """A runner says that nothing of these attempts, (batch, index, attempt), is left on its node."""

    runner: str
    session: int
    jobs: list[tuple[int, int, int]]


class Unstaged(Stimulus, kw_only=True):
    """What attempts read cannot be brought to a runner that cannot be told so, and was never told to start them."""

    runner: str
    jobs: list[tuple[int, int, int]]
    """(batch, index, attempt) of each."""
    why: str


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
    """A site says what it offers; None: there is no such site any more."""

    site: str
    facts: SiteFacts | None


class AllocationSeen(Stimulus, kw_only=True):
    """A driver's word on an allocation: a verb of the allocation table, or `unsure`, `held`, `suspended`."""

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


class FactSeen(Stimulus, kw_only=True):
    """Somebody tells a fact that policies may look at: the value of a key, or that there is none (None)."""

    name: str
    key: Any
    value: Any


class Written(Struct):
    """A report that a runner could not send, and wrote down: rows as in a Report."""

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
    """Why the files that the allocation may have left could not be read; None: they were."""
    spoilt: str | None = None
    """What to say of a file that is not what its name says, and was moved aside: it is no witness."""
    host: str | None = None
    """Where a direct job that left no report says that it has started."""


class SiteFull(Stimulus, kw_only=True):
    """A provider takes no more allocations of ours for now: it refused `count` of them."""

    site: str
    count: int


class EndAllocation(Stimulus, kw_only=True):
    """Somebody wants an allocation to end, or knows that it is dead."""

    id: str


class TakeDown(Stimulus, kw_only=True):
    """The manager is to end everything that it has asked for: `rota down --kill`."""


class Tick(Stimulus, kw_only=True):
    """Time has passed."""
