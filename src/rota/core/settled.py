"""Settled batches: kept as bytes, in the form in which a checkpoint keeps them, until one is wanted as a whole.

Workflow engines make a hundred thousand batches of one job, and nobody asks for most of them again. As a whole a batch
takes some kilobytes, most of which is for what lives: queues, overlays, who is to be told. So a batch that is settled
and that nobody waits for is *put away* now and then. What is often asked of all batches stays at hand (`Settled`); for
anything else it is made whole again, which gives what a restart would give. Nothing is read from anywhere for that.
"""

import sys
from array import array
from collections.abc import Iterable, Iterator, ValuesView
from operator import attrgetter

import msgspec
from msgspec import Struct, field

from rota.core.batch import BatchState, epoch_of
from rota.core.ready import ReadyQueue
from rota.model.batch import BatchSpec, Template
from rota.model.graph import Graph
from rota.model.slot import Slot
from rota.model.tables import JOB_STATES

__all__ = [
    "SMALL",
    "AnyBatch",
    "BatchRecord",
    "Batches",
    "Settled",
    "batch_of",
    "put_all_away",
    "put_away",
    "record_of",
    "settled_of",
    "whole",
]

SMALL = 1_000
"""Jobs of a batch that is put away, at most: of a larger one it is the columns that take the room."""


class BatchRecord(Struct, array_like=True):
    """What is small of a batch, as a checkpoint keeps it."""

    spec: BatchSpec
    key: str
    submitted: float
    env: str | None
    runs: list[int] | None
    live: list[tuple[int, str, Slot | str]] = field(default_factory=list)
    failures: dict[int, int] = field(default_factory=dict)
    losses: dict[int, int] = field(default_factory=dict)
    until: dict[int, float] = field(default_factory=dict)
    hold_wanted: dict[int, bool] = field(default_factory=dict)
    blocked: bool = False
    omitted_why: str | None = None
    shapes: list[int] = field(default_factory=list)
    held_why: str | None = None
    more: list[Template] = field(default_factory=list)
    """Templates that were not submitted: jobs were changed to them."""
    rerun_wanted: dict[int, str] = field(default_factory=dict)
    known_until: int = 0
    by: str = ""
    closing: dict[int, tuple[str, ...]] = field(default_factory=dict)
    broken: dict[int, str] = field(default_factory=dict)
    parts: dict[int, tuple[tuple[str, Slot], ...]] = field(default_factory=dict)
    """Position of a live gang → its further parts."""
    gates: dict[int, int] = field(default_factory=dict)
    """Gate of its graph → the newest batch that counts for its name."""
    killed_why: str | None = None
    scouting: bool = False


class Settled(Struct, frozen=True, gc=False):
    """A settled batch that was put away."""

    id: int
    name: str
    submitted: float
    record: bytes
    """Its BatchRecord."""
    states: bytes
    attempts: bytes
    edges: tuple[tuple[int, int, int], ...] = ()
    """As in `BatchState`."""
    changes: int = 0
    """As in `BatchState`."""

    @property
    def count(self) -> int:
        """How many jobs it has."""
        return len(self.states)

    @property
    def counts(self) -> list[int]:
        """How many of its jobs are in which state."""
        return [self.states.count(number) for number in range(len(JOB_STATES))]

    @property
    def unsettled(self) -> int:
        """How many jobs are not settled."""
        return 0


AnyBatch = BatchState | Settled
"""A batch, put away or not: id, name, submitted, count, states, counts, unsettled, edges, changes."""

_PLAIN = [name for name in BatchRecord.__struct_fields__ if name not in ("runs", "live", "more", "parts", "gates")]
"""Fields of a batch's record that are attributes of its state."""
_of_state = attrgetter(*[name if name in _PLAIN else "id" for name in BatchRecord.__struct_fields__])
"""All fields of a record at once, of a batch; those that are no attributes are filled in afterwards."""
_ATTEMPTS = {one: one for one in (array("I", [number]).tobytes() for number in range(16))}
"""The columns of most batches of one job, so that they share them."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(BatchRecord).decode


class Batches:
    """All batches, by number. A look-up makes a batch whole, and it stays so until it is put away again.

    `peek` and `rows` take what is there, `look` and `values` give a batch of which a change would be lost: these are
    for questions, and `look` may be called in any thread.
    """

    __slots__ = ("_settled", "_whole", "fetched")

    def __init__(self) -> None:
        self._whole: dict[int, BatchState] = {}
        self._settled: dict[int, Settled] = {}
        self.fetched = 0
        """How many were made whole since they were last put away."""

    def __getitem__(self, number: int) -> BatchState:
        batch = self._whole.get(number)
        return batch if batch is not None else self._fetch(number)

    def get(self, number: int) -> BatchState | None:
        """A batch, to be read or changed; None: there is none of this number."""
        batch = self._whole.get(number)
        if batch is None and number in self._settled:
            batch = self._fetch(number)
        return batch

    def _fetch(self, number: int) -> BatchState:
        batch = self._whole[number] = whole(self._settled[number])
        del self._settled[number]
        self.fetched += 1
        return batch

    def __setitem__(self, number: int, batch: AnyBatch) -> None:
        if isinstance(batch, Settled):  # in this order: another thread always finds it in one of them
            self._settled[number] = batch
            self._whole.pop(number, None)
        else:
            self._whole[number] = batch
            self._settled.pop(number, None)

    def pop(self, number: int) -> BatchState:
        """Take a batch out."""
        batch = self[number]
        del self._whole[number]
        return batch

    def __contains__(self, number: object) -> bool:
        return number in self._whole or number in self._settled

    def __len__(self) -> int:
        return len(self._whole) + len(self._settled)

    def __iter__(self) -> Iterator[int]:
        """All numbers, ascending."""
        return iter(sorted([*self._settled, *self._whole]))

    def peek(self, number: int) -> AnyBatch | None:
        """A batch as it is kept, to be read; None: there is none of this number."""
        batch = self._whole.get(number)
        return batch if batch is not None else self._settled.get(number)

    def rows(self) -> Iterator[AnyBatch]:
        """All batches as they are kept, by number, to be read."""
        for number in self:
            batch = self.peek(number)
            if batch is not None:
                yield batch

    def open(self) -> ValuesView[BatchState]:
        """All batches that were not put away: those that are not settled are among them."""
        return self._whole.values()

    def look(self, number: int) -> BatchState | None:
        """A batch, to be read only: a copy if it was put away; None: there is none of this number."""
        batch = self.peek(number)
        return None if batch is None else whole(batch)

    def values(self) -> Iterator[BatchState]:
        """All batches, by number, to be read only."""
        return map(whole, self.rows())

    def items(self) -> Iterator[tuple[int, BatchState]]:
        """(number, batch) of all, to be read only."""
        return ((batch.id, batch) for batch in self.values())

    def copy(self) -> "Batches":
        """Another one with the same batches."""
        new = Batches()
        new._whole, new._settled, new.fetched = self._whole.copy(), self._settled.copy(), self.fetched
        return new


def put_away(batches: Batches, numbers: Iterable[int]) -> None:
    """Put away what is settled of these."""
    for number in numbers:
        batch = batches.peek(number)
        if isinstance(batch, BatchState):
            rest(batches, batch)


def put_all_away(batches: Batches) -> None:
    """Put away what is settled."""
    for batch in list(batches.open()):
        rest(batches, batch)
    batches.fetched = 0


def rest(batches: Batches, batch: BatchState, record: BatchRecord | None = None, packed: bytes | None = None) -> None:
    """Put a batch away if it may be; its record may be at hand, and the bytes of that."""
    if _may_rest(batch):
        columns = bytes(batch.states), batch.attempts.tobytes()
        batches[batch.id] = settled_of(
            batch.id, record or record_of(batch), packed, *columns, batch.edges, batch.changes
        )


def _may_rest(batch: BatchState) -> bool:
    """Whether a batch is small, all of it is in its record and its columns, and nobody looks for it elsewhere."""
    if batch.count > SMALL or batch.unsettled or batch.graph is not None:
        return False
    spec = batch.spec
    if spec.not_before is not None or spec.at_once is not None or batch.waits is not None:
        return False
    return not (
        batch.live or batch.until or batch.hold_wanted or batch.closing or batch.broken or batch.rerun_wanted
        or batch.loose or batch.watchers or batch.marks or batch.twins or any(queue.listed for queue in batch.queues)
    )  # fmt: skip


def settled_of(
    number: int,
    record: BatchRecord,
    packed: bytes | None,
    states: bytes,
    attempts: bytes,
    edges: tuple[tuple[int, int, int], ...] = (),
    changes: int = 0,
) -> Settled:
    """A batch, put away; `packed` is its record as bytes, if these are there already."""
    return Settled(
        number,
        sys.intern(record.spec.name),
        record.submitted,
        bytes(memoryview(packed if packed is not None else _encode(record))),  # as encoded it has a third to spare
        states,
        _ATTEMPTS.get(attempts, attempts),
        edges,
        changes,
    )


def whole(batch: AnyBatch) -> BatchState:
    """A batch as a whole: a copy if it was put away."""
    if isinstance(batch, BatchState):
        return batch
    made = batch_of(batch.id, _decode(batch.record))
    made.states[:] = batch.states
    made.attempts[:] = array("I", batch.attempts)
    made.counts = batch.counts
    made.edges, made.epoch, made.changes = batch.edges, epoch_of(batch.edges), batch.changes
    made.elements = tuple(at for at, dependency in enumerate(made.spec.after) if dependency.each)
    return made


def record_of(batch: BatchState) -> BatchRecord:
    """What is small of a batch, for a checkpoint."""
    record = BatchRecord(*_of_state(batch))
    record.runs, record.more = _runs(batch), batch.templates[len(batch.spec.templates) :]
    record.live, record.parts, record.gates = [], {}, {}
    for pos, live in batch.live.items():
        record.live.append((pos, live.runner, live.slot))
        if live.parts:
            record.parts[pos] = live.parts
    if batch.graph is not None:
        record.gates = {gate.number: gate.known_until for gate in batch.graph.gates if gate.known_until}
    return record


def _runs(batch: BatchState) -> list[int] | None:
    if batch.template_numbers is None:
        return None
    out: list[int] = []
    for template, low, high in batch.runs(0, batch.count):
        out += (template, high - low)
    return out


def batch_of(number: int, record: BatchRecord, graph: Graph | None = None) -> BatchState:
    """A batch from its record: without its columns, its live attempts, and its place in the indices."""
    batch = BatchState(number, record.spec, record.key, record.submitted, record.env, record.runs, graph)
    for name in _PLAIN:
        setattr(batch, name, getattr(record, name))
    if batch.graph is not None:
        for at, known in record.gates.items():
            batch.graph.gates[at].known_until = known
    batch.templates.extend(record.more)
    batch.queues.extend(ReadyQueue() for _ in record.more)
    return batch
