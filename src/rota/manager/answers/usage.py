"""What the log tells of nodes and of waiting: when runners came and went, and when jobs could have started."""

import time
from collections.abc import Sequence
from typing import Any

from rota.core.state import State
from rota.model.events import Entry, Moved, RunnerGreeted, RunnerMoved, Submitted

__all__ = ["ENTRIES", "usage_page"]

ENTRIES = 20_000
"""Entries of the log that one page looks at."""
ROWS = 40_000
"""Rows of one page, about: a message takes 4 MiB."""
_GONE = ("close", "lose")


def usage_page(state: State, entries: Sequence[Entry], up: bool) -> dict[str, Any]:
    """One page, of these entries of the log. `up`: this is the manager, which can tell what it has used itself."""
    runners: list[list[Any]] = []
    ready: list[list[Any]] = []
    more = len(entries) == ENTRIES
    for number, entry in enumerate(entries):
        event = entry.event
        if isinstance(event, RunnerGreeted):
            runners.append([entry.at, event.runner, event.host, event.capacity.cores / 1000])
        elif isinstance(event, RunnerMoved) and event.verb in _GONE:
            runners.append([entry.at, event.runner, None, 0])
        elif isinstance(event, Submitted) and event.ready:
            ready += _rows(state, entry.at, event.batch, [0, event.spec.count])
        elif isinstance(event, Moved) and event.verb == "ready":
            ready += _rows(state, entry.at, event.batch, event.spans)
        if len(ready) + len(runners) > ROWS and number + 1 < len(entries):
            entries, more = entries[: number + 1], True
            break
    return {
        "runners": runners,
        "ready": ready,
        "at": entries[-1].at if entries else None,
        "next": entries[-1].seq if more else None,
        "manager_cpu_s": round(time.process_time(), 3) if up else None,
    }


def _rows(state: State, at: float, number: int, spans: list[int]) -> list[list[Any]]:
    """[time, batch, first index, last index] of jobs that are ready from then on; of very many, what lies between."""
    batch = state.batches.look(number)
    if batch is None or not spans:
        return []
    if len(spans) > ROWS:
        spans = [spans[0], spans[-1]]
    pairs = zip(spans[::2], spans[1::2], strict=True)
    return [[at, number, batch.index(low), batch.index(high - 1)] for low, high in pairs]
