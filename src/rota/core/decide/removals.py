"""Jobs that are taken off the books by themselves, once they have settled in a certain way."""

from collections.abc import Iterator, Sequence

from rota.core.dependencies import dependents
from rota.core.state import State
from rota.model import events as ev

__all__ = ["removals"]

_ENDS = {"success": ("complete",), "failure": ("fail", "abort"), "exit": ("complete", "fail", "abort")}


def removals(state: State, rows: Sequence[tuple[int, int, str, float | None, int]]) -> Iterator[ev.Removed]:
    """What follows from attempts that ended so, for jobs with `remove_on` on which nothing waits."""
    by_batch: dict[int, list[int]] = {}
    for number, pos, verb, _, _ in rows:
        batch = state.batches[number]
        if batch.removes:
            when = batch.template(pos).remove_on
            if when is not None and verb in _ENDS[when] and pos not in batch.rerun_wanted:
                by_batch.setdefault(number, []).append(pos)
    for number, positions in by_batch.items():
        if not any(waiter.unsettled for waiter in dependents(state, state.batches[number])):
            yield ev.Removed(number, [edge for pos in sorted(positions) for edge in (pos, pos + 1)])
