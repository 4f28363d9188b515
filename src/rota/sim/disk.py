"""The simulated disk: what was committed survives, as bytes; nothing else does."""

import hashlib
from collections.abc import Iterable, Sequence

import msgspec

from rota.core.snapshot import ColumnRow, restore, take_columns, take_snapshot
from rota.core.state import Settings, State
from rota.model.errors import NoSpaceError
from rota.model.events import Entry
from rota.model.job import Result

__all__ = ["Disk"]

_encode = msgspec.msgpack.Encoder().encode
_entry = msgspec.msgpack.Decoder(Entry)
_result = msgspec.msgpack.Decoder(Result)


class Disk:
    """The log, the results and the last checkpoint."""

    def __init__(self) -> None:
        self.log: list[bytes] = []
        self.results: list[Result] = []
        self.snapshot: bytes | None = None
        self.snapshot_seq = 0
        self.columns: dict[tuple[int, int], ColumnRow] = {}
        self.full = False
        self.hash = hashlib.sha256()

    def commit(self, entries: Sequence[Entry], results: Sequence[Result], wall: float) -> None:
        """Make entries and results durable, all or none."""
        if self.full:
            raise NoSpaceError("no space left on device")
        for entry in entries:
            assert entry.seq == len(self.log) + 1, f"entry {entry.seq} follows {len(self.log)}"
            data = _encode(Entry(entry.seq, wall, "sim", entry.event))
            self.log.append(data)
            self.hash.update(data)
        for result in results:
            self.results.append(_result.decode(_encode(result)))

    def checkpoint(self, state: State) -> None:
        """Keep the state as of the last entry."""
        assert state.seq == len(self.log), f"a checkpoint of {state.seq} entries, {len(self.log)} are durable"
        self.snapshot = take_snapshot(state)
        self.snapshot_seq = state.seq
        for row in take_columns(state):
            self.columns[row[0], row[1]] = row

    def load(self, settings: Settings, seed: int) -> State:
        """The state from the last checkpoint and the entries after it."""
        tail = self._entries(self.snapshot_seq if self.snapshot is not None else 0)
        return restore(settings, seed, self.snapshot, self.snapshot_seq, list(self.columns.values()), tail)

    def fold(self, settings: Settings, seed: int) -> State:
        """The state from the entries alone."""
        return restore(settings, seed, None, 0, (), self._entries(0))

    def _entries(self, after: int) -> Iterable[Entry]:
        return (_entry.decode(data) for data in self.log[after:])
