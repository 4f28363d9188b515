"""Events: the durable facts. The core's state is a fold of them, so each carries all that the fold needs and no more.

They are batched: one `Leased` for forty jobs. `spans` are flat lists of half-open ranges of positions: [lo, hi, lo, hi,
…]. What people want to know about an attempt beyond its outcome (exit code, usage, output) travels beside them as
`Result` rows.

VERSION grows when a field's meaning changes; new fields get defaults, so that old events stay readable for ever.
"""

from msgspec import Struct

from rota.model.allocation import Outcome
from rota.model.batch import BatchSpec, Dependency, Template
from rota.model.graph import Graph
from rota.model.needs import Amounts
from rota.model.slot import Slot

__all__ = [
    "AllocationMoved", "AllocationPlanned", "Ended", "Entry", "Event", "GangBroken", "Hastened", "HoldWanted",
    "Learned", "Leased", "LimitSet", "ManagerMoved", "Moved", "Named", "Noted", "Pruned", "Released", "Removed",
    "RerunWanted", "Respecified", "Restored", "Retemplated", "RunnerGreeted", "RunnerMoved", "Started", "Submitted",
]  # fmt: skip

VERSION = 4
"""2: slots are structs (they were names), leases may have further parts. 3: batches may have graphs. 4: batches may be
ready at once."""


class Submitted(Struct, array_like=True, tag=True):
    """A batch was accepted."""

    batch: int
    spec: BatchSpec
    key: str
    """The client's key: the same submission sent again is recognised by it."""
    at: float
    stage: str | None = None
    """Name under which its values were staged."""
    env: str | None = None
    """Hash of the submitter's environment."""
    runs: list[int] | None = None
    """The template of each job, as [template, count, template, count …]; None: all have the first."""
    by: str = ""
    graph: Graph | None = None
    """Which of its jobs wait for which."""
    ready: bool = False
    """Whether its jobs wait for nothing but a place, so that they are PENDING at once."""


class Moved(Struct, array_like=True, tag=True):
    """Jobs of one batch made the same move of the job table."""

    batch: int
    verb: str
    spans: list[int]
    reason: str | None = None
    until: float | None = None
    """Not before this wall-clock time (back-off)."""


class Leased(Struct, array_like=True, tag=True):
    """Jobs were given to a runner; each one's attempt number grew by one.

    A gang is one job with several parts, on as many runners, which are charged together.
    """

    batch: int
    spans: list[int]
    runner: str
    slot: Slot | str
    """In version 1 its name, `SHAPE:MILLICORES:MEMORY:DISK`."""
    slots: int
    """How many such slots the runner has from now on: the ledger and the limits are charged for them."""
    at: float | None = None
    """Time of the start, if a limit has a rate: by a clock that follows the wall's and is never set."""
    parts: tuple[tuple[str, Slot], ...] = ()
    """(runner, slot) of the further parts of a gang; its root is `runner`."""


class Started(Struct, array_like=True, tag=True):
    """A runner says that jobs have started: (batch, position)."""

    runner: str
    rows: list[tuple[int, int]]
    seq: int = 0
    """Number of the runner's report that said so."""


class Ended(Struct, array_like=True, tag=True):
    """Attempts on one runner ended: (batch, position, verb, not before, wall milliseconds).

    The verb is complete, fail, requeue, return or abort.
    """

    runner: str
    rows: list[tuple[int, int, str, float | None, int]]
    counts_as: str = "failure"
    """What a requeue counts as: `failure` (against `retries`), `loss` (against its own limit) or `nothing`."""
    reason: str | None = None
    seq: int = 0
    """Number of the runner's report that said so; 0: no report did."""


class Released(Struct, array_like=True, tag=True):
    """A runner's parts of gangs are over: (batch, position, attempt). Nothing of these attempts is left on its node."""

    runner: str
    rows: list[tuple[int, int, int]]
    reason: str | None = None
    """None: the runner says so. Else who does."""


class GangBroken(Struct, array_like=True, tag=True):
    """A live gang has lost a part: its root is to end, and that counts as one loss."""

    batch: int
    pos: int
    reason: str


class HoldWanted(Struct, array_like=True, tag=True):
    """Leased jobs are to be held as soon as their leases are back."""

    batch: int
    spans: list[int]
    stop: bool = False
    """Whether those that run are ended for that."""
    wanted: bool = True
    """False: the jobs were released before they were held."""
    reason: str | None = None


class Removed(Struct, array_like=True, tag=True):
    """Jobs were taken off the books; a tombstone keeps their ids from being used again."""

    batch: int
    spans: list[int]


class RunnerGreeted(Struct, array_like=True, tag=True):
    """A runner opened a session."""

    runner: str
    allocation: str | None
    connect: int
    session: int
    host: str
    pid: int
    capacity: Amounts
    tags: tuple[str, ...] = ()
    until: float | None = None
    """Wall-clock time at which its allocation ends."""
    output: str = ""
    site: str = "local"
    direct: bool = False
    """Whether it only stands for a direct allocation, which runs one job and leaves a report, and never speaks."""
    gangs: bool = False
    """Whether it can hold parts of gangs."""


class RunnerMoved(Struct, array_like=True, tag=True):
    """A runner made a move of the runner table."""

    runner: str
    verb: str
    reason: str | None = None


class AllocationPlanned(Struct, array_like=True, tag=True):
    """An allocation was decided on; it is submitted with this tag."""

    id: str
    site: str
    tag: str
    capacity: Amounts
    at: float
    queue: str | None = None
    shape: int | None = None
    element: int = 0
    time_s: int | None = None
    name: str = ""
    direct: bool = False
    submit: bool = False
    """Whether it is submitted at once, with all allocations of the same tag."""
    options: tuple[tuple[str, str], ...] = ()
    elements: int = 0
    """How many allocations have the tag; 0: not known."""
    nodes: int = 1
    why: str = ""
    """What the brokerage said of the queue, if it chose it."""


class AllocationMoved(Struct, array_like=True, tag=True):
    """An allocation made a move of the allocation table."""

    id: str
    verb: str
    native_id: str | None = None
    reason: str | None = None
    unsure: int = 0
    host: str | None = None
    outcome: Outcome | None = None
    """How it ended, as an answer said that was too old to count as its end."""
    at: float | None = None
    """Wall-clock time, of one that starts (how long it waited is learned of its queue) or ends."""


class ManagerMoved(Struct, array_like=True, tag=True):
    """The manager serves, is paused, or drains."""

    mode: str
    by: str = ""
    pauses: list[tuple[str, float, str, str]] | None = None
    """All pauses from now on: (holder, since when, why, who asked); None: the mode alone says it (older logs)."""


class LimitSet(Struct, array_like=True, tag=True):
    """A named limit is set, all of it; with no count, rate or window it is taken away."""

    name: str
    count: int | None
    rate: int | None = None
    """The most starts in any `per_s` seconds."""
    per_s: int = 0
    window: str | None = None
    """A window as a comparison, as in `22:00:00<time<06:00:00`."""


class Retemplated(Struct, array_like=True, tag=True):
    """Jobs of one batch have this template from now on."""

    batch: int
    spans: list[int]
    template: Template
    reason: str | None = None


class Learned(Struct, array_like=True, tag=True):
    """What jobs of a group used: flat lists of [value, how often, value, how often …]."""

    group: str
    memory: list[int]
    disk: list[int]
    time_s: list[int]


class Spent(Struct, array_like=True, tag=True):
    """What attempts of jobs that share fairly used, in one hour: (share, core-milliseconds)."""

    hour: int
    """Hours since 1970."""
    rows: list[tuple[str, int]]


class Noted(Struct, array_like=True, tag=True):
    """Something from outside that fits no table, kept with its evidence; it changes no state."""

    subject: str
    what: str
    detail: str


class RerunWanted(Struct, array_like=True, tag=True):
    """Live jobs are to run once more when they have completed: a name that they depend on has a new batch."""

    batch: int
    spans: list[int]
    reason: str | None = None


class Pruned(Struct, array_like=True, tag=True):
    """Settled batches were forgotten, with all that was known of their jobs. Their numbers are not used again."""

    batches: list[int]
    at: float


class Restored(Struct, array_like=True, tag=True):
    """The database is a backup that was put back: numbers that may have been used since are skipped."""

    next_batch: int
    next_allocation: int
    attempt_floor: int
    """The least number of a new attempt in the batches of the backup."""


class Respecified(Struct, array_like=True, tag=True):
    """A batch has this name, these dependencies and these bounds from now on."""

    batch: int
    name: str
    after: tuple[Dependency, ...]
    not_before: float | None
    at_once: int | None
    max_failures: int | None
    reason: str | None = None
    scouts: int | None = None
    """None: as before (older logs)."""


class Hastened(Struct, array_like=True, tag=True):
    """Jobs that failed need not wait for the time of their next try any more."""

    batch: int
    spans: list[int]
    reason: str | None = None


class Named(Struct, array_like=True, tag=True):
    """Jobs of a batch have this name too."""

    batch: int
    name: str
    spans: list[int]


Event = (
    Submitted | Moved | Leased | Started | Ended | HoldWanted | Removed | RunnerGreeted | RunnerMoved
    | AllocationPlanned | AllocationMoved | ManagerMoved | LimitSet | Noted | Retemplated | Learned | RerunWanted
    | Pruned | Restored | Respecified | Spent | Released | GangBroken | Hastened | Named
)  # fmt: skip


class Entry(Struct, array_like=True):
    """An event with its place in the log: number, time, and who caused it."""

    seq: int
    at: float
    by: str
    event: Event
