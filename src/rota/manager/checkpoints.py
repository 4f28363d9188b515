"""Checkpoints: the core's state brought to the disk now and then, and back at a start."""

import os
import time
from collections.abc import Callable, Iterator, Sequence

from rota.core import invariants
from rota.core.settled import put_away
from rota.core.snapshot import restore, take_columns, take_snapshot
from rota.core.state import Settings, State
from rota.model.errors import RotaError, StoreError
from rota.model.events import Ended, Entry
from rota.store.api import Column, Loaded, Store

__all__ = ["Checkpoints", "FoldError", "state_of"]

MOST_ENTRIES = 20_000
MOST_S = 120.0
TOGETHER = 500
"""Batches of which jobs have ended, before those of them that are settled are put away."""


class FoldError(StoreError):
    """The log has an entry that cannot follow from what was before it."""

    def __init__(self, seq: int, error: Exception) -> None:
        self.seq = seq
        super().__init__(
            f"entry {seq} of the log cannot be understood after what was before it ({type(error).__name__}: {error}); "
            "nothing was changed: rota doctor --repair goes on from what is sound, and keeps the rest aside"
        )


def state_of(loaded: Loaded, settings: Settings, seed: int) -> State:
    """The state that a store holds: its last checkpoint, and the events after that."""
    columns = [(column.batch, column.chunk, column.states, column.attempts) for column in loaded.columns]
    last = loaded.seq

    def tail() -> Iterator[Entry]:
        nonlocal last
        for entry in loaded.tail:
            last = entry.seq
            yield entry

    try:
        return restore(settings, seed, loaded.snapshot, loaded.seq, columns, tail())
    except RotaError:
        raise
    except Exception as error:
        raise FoldError(last, error) from error


class Checkpoints:
    """Knows when a checkpoint is due, and takes it."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.entries = 0
        """How many were committed since the last checkpoint."""
        self._ended: set[int] = set()
        self._due_at = time.monotonic() + MOST_S

    def committed(self, state: State, entries: Sequence[Entry]) -> None:
        """Count entries that are durable. A settled batch need not wait for the next checkpoint to take less room."""
        self.entries += len(entries)
        for entry in entries:
            if isinstance(entry.event, Ended):
                self._ended.update([row[0] for row in entry.event.rows])
        if len(self._ended) >= TOGETHER:
            put_away(state.batches, self._ended)
            self._ended.clear()

    @property
    def due(self) -> bool:
        """Whether there are many new entries, or some and the last checkpoint is old."""
        return self.entries >= MOST_ENTRIES or (self.entries > 0 and time.monotonic() >= self._due_at)

    def hurry(self) -> None:
        """Let the next one be due now."""
        self._due_at = time.monotonic()

    def take(self, state: State) -> Callable[[], None]:
        """Copy the state; what is returned writes the copy, in the writer's thread."""
        if os.environ.get("ROTA_DEBUG"):
            invariants.check(state)
        seq, snapshot = state.seq, take_snapshot(state)
        columns = [Column(*row) for row in take_columns(state)]
        self.entries, self._due_at = 0, time.monotonic() + MOST_S
        return lambda: self._store.checkpoint(seq, snapshot, columns)
