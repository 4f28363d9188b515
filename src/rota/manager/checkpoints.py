"""Checkpoints: the core's state brought to the disk now and then, and back at a start."""

import os
import time
from collections.abc import Callable

from rota.core import invariants
from rota.core.snapshot import restore, take_columns, take_snapshot
from rota.core.state import Settings, State
from rota.store.api import Column, Loaded, Store

__all__ = ["Checkpoints", "state_of"]

MOST_ENTRIES = 20_000
MOST_S = 120.0


def state_of(loaded: Loaded, settings: Settings, seed: int) -> State:
    """The state that a store holds: its last checkpoint, and the events after that."""
    columns = [(column.batch, column.chunk, column.states, column.attempts) for column in loaded.columns]
    return restore(settings, seed, loaded.snapshot, loaded.seq, columns, loaded.tail)


class Checkpoints:
    """Knows when a checkpoint is due, and takes it."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.entries = 0
        """How many were committed since the last checkpoint."""
        self._due_at = time.monotonic() + MOST_S

    @property
    def due(self) -> bool:
        """Whether there are many new entries, or some and the last checkpoint is old."""
        return self.entries >= MOST_ENTRIES or (self.entries > 0 and time.monotonic() >= self._due_at)

    def take(self, state: State) -> Callable[[], None]:
        """Copy the state; what is returned writes the copy, in the writer's thread."""
        if os.environ.get("ROTA_DEBUG"):
            invariants.check(state)
        seq, snapshot = state.seq, take_snapshot(state)
        columns = [Column(*row) for row in take_columns(state)]
        self.entries, self._due_at = 0, time.monotonic() + MOST_S
        return lambda: self._store.checkpoint(seq, snapshot, columns)
