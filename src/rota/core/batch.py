"""A batch as the core knows it: columns for all its jobs, and what differs from its neighbours.

A batch of a million jobs is a few arrays, not a million objects; only what differs gets an entry in a dict.
"""

from array import array
from collections.abc import Iterator

from rota.core.graph import GraphState, Token
from rota.core.ready import ReadyQueue
from rota.model.batch import BatchSpec, Dependency, Template, index_at, position_of
from rota.model.graph import Graph
from rota.model.slot import Slot
from rota.model.tables import JOB_STATES, SETTLED, WAITING

__all__ = ["COLUMN_CHUNK", "GRAPH", "BatchState", "Live", "epoch_of"]

COLUMN_CHUNK = 65_536
GRAPH = -2
"""The number of the chunk that is the graph of a batch."""


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

    @property
    def node_cores(self) -> tuple[int, ...]:
        """Its millicores on each of its nodes, the root first."""
        return (self.slot.amounts.cores, *[slot.amounts.cores for _, slot in self.parts])


class BatchState:
    """One batch: columns for all its jobs, and an overlay for what differs."""

    __slots__ = (
        "attempts", "blocked", "broken", "by", "changes", "closing", "count", "counts", "dirty", "edges", "elements",
        "env", "epoch",
        "failures", "followed", "graph", "held_why", "hold_wanted", "id", "key", "killed_why", "known_until", "live",
        "loose",
        "losses", "marks", "met", "omitted_why", "queues", "ranges", "removes", "rerun_wanted", "scouting",
        "seen", "shapes", "spec", "states", "submitted", "template_numbers", "templates", "twins", "until", "waits",
        "watchers",
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
        self.scouting = False
        """Whether all but its scouts wait for these."""
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
    def name(self) -> str:
        """Its own name; empty: it has none."""
        return self.spec.name

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


def epoch_of(edges: tuple[tuple[int, int, int], ...]) -> int:
    """The first `epoch` of what has these edges: -1 if none of them is on a name."""
    return 0 if not edges or (0, 0, 0) in edges else -1  # 0 if there are none: the value of a new batch
