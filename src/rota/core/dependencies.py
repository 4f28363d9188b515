"""Dependencies: when the jobs of a batch may run, and when they never can.

Whole batches are compared by their counts, so a dependency between two batches of any size costs one comparison when
one of them settles.
"""

import re
from collections.abc import Iterator

from rota.core.state import BatchState, State
from rota.core.tables import COMPLETED, HOLDING, SETTLED, WAITING
from rota.model import events as ev
from rota.model.batch import Dependency
from rota.model.errors import UsageError
from rota.model.job import format_job
from rota.model.selector import parse_selector

__all__ = ["check_targets", "consequences", "longest_backoff", "standing", "waiting_for", "watching"]

_MET, _OPEN, _NEVER = "met", "open", "never"
_WAITING_RUN = re.compile(bytes((WAITING,)) + b"+")
_OMITTABLE_RUN = re.compile(b"[" + bytes((WAITING, HOLDING)) + b"]+")


def check_targets(state: State, after: tuple[Dependency, ...]) -> list[str]:
    """Refuse a dependency on what does not exist; warnings for names that nothing has yet."""
    warnings = []
    for dependency in after:
        selector = parse_selector([dependency.target])
        if selector.states:
            raise UsageError(f"--after {dependency.target}: name batches or jobs, not states")
        for name in selector.names:
            if name not in state.names:
                warnings.append(f"nothing is named '{name}' yet: these jobs wait until something is")
        for number, first, last in selector.spans:
            batch = state.batches.get(number)
            if batch is None:
                raise UsageError(f"--after {dependency.target}: {state.absent(number)}")
            for index in {first, last} - {None}:
                if index is not None and batch.position(index) is None:
                    raise UsageError(f"--after {dependency.target}: there is no job {format_job(number, index)}")
    return warnings


def targets(
    state: State, dependency: Dependency, dependent: int | None = None
) -> list[tuple[BatchState, int, int]] | None:
    """(batch, low, high) positions that are waited for; None: the name is not known yet.

    A name means the batches of that name that were there before the one that depends on them, and only if there were
    none those that came later: so batches of one name can be chained by it, and none waits for itself.
    """
    selector = parse_selector([dependency.target])
    if selector.names:
        named = [number for number in state.names.get(selector.names[0], ()) if number != dependent]
        numbers = [number for number in named if dependent is None or number < dependent] or named
        return [(state.batches[number], 0, state.batches[number].count) for number in numbers] or None
    out = []
    for number, first, last in selector.spans:
        batch = state.batches[number]
        low = 0 if first is None else batch.position(first)
        end = batch.count - 1 if last is None else batch.position(last)
        if low is not None and end is not None:
            out.append((batch, low, end + 1))
    return out


def standing(state: State, dependency: Dependency, dependent: int | None = None) -> tuple[str, str]:
    """(met, open or never; a sentence that says so), for the batch `dependent`."""
    found = targets(state, dependency, dependent)
    if found is None:
        return _OPEN, f"waits for something named '{dependency.target[1:]}' to be added"
    live = good = bad = 0
    for batch, low, high in found:
        if low == 0 and high == batch.count:
            counts = batch.counts
        else:
            part = batch.states[low:high]
            counts = [part.count(number) for number in range(len(batch.counts))]
        live += sum(counts[:SETTLED])
        good += counts[COMPLETED]
        bad += sum(counts[SETTLED:]) - counts[COMPLETED]
    what = dependency.target
    if live:
        extra = f", {bad} did not succeed" if bad else ""
        return _OPEN, f"waits for {what}: {live} of {live + good + bad} jobs not settled{extra}"
    if dependency.condition == "any":
        return _MET, ""
    if dependency.condition == "failure":
        return (_MET, "") if bad else (_NEVER, f"was to run if {what} failed, but all {good} jobs succeeded")
    return (
        (_MET, "") if not bad else (_NEVER, f"depends on {what}, of which {bad} of {good + bad} jobs did not succeed")
    )


def waiting_for(state: State, batch: BatchState, wall: float) -> str | None:
    """Why the WAITING jobs of a batch wait, or None if nothing blocks the batch."""
    for dependency in batch.spec.after:
        kind, text = standing(state, dependency, batch.id)
        if kind != _MET:
            return text
    if batch.spec.not_before is not None and batch.spec.not_before > wall:
        return f"waits for its time ({batch.spec.not_before - wall:.0f} s from now)"
    return None


def consequences(state: State, batch: BatchState, wall: float) -> Iterator[ev.Event]:
    """Events that follow for the WAITING jobs of a batch: they become ready, or are omitted."""
    for dependency in batch.spec.after:
        kind, text = standing(state, dependency, batch.id)
        if kind == _NEVER:
            spans = spans_of(batch, _OMITTABLE_RUN)
            if spans:
                yield ev.Moved(batch.id, "omit", spans, text)
            return
        if kind == _OPEN:
            return
    if batch.spec.not_before is not None and batch.spec.not_before > wall:
        return
    spans = spans_of(batch, _WAITING_RUN)
    if batch.until:
        last = wall + longest_backoff(state)
        spans = without(spans, {pos for pos, until in batch.until.items() if wall < until <= last})
    if spans:
        yield ev.Moved(batch.id, "ready", spans)


def longest_backoff(state: State) -> float:
    """Seconds that the next try can be off.

    Who would have to wait longer does not: the wall clock was set back meanwhile.
    """
    return state.settings.backoff_most_s + state.settings.backoff_jitter_s


def watching(state: State, batch: BatchState) -> set[int]:
    """Batches that wait, or waited, for this one or a part of it."""
    out = state.waiters.get(str(batch.id), set())
    return out | state.waiters.get(f"@{batch.spec.name}", set()) if batch.spec.name else set(out)


def spans_of(batch: BatchState, pattern: re.Pattern[bytes], low: int = 0, high: int | None = None) -> list[int]:
    """Ranges of positions whose state bytes match."""
    out: list[int] = []
    for match in pattern.finditer(batch.states, low, batch.count if high is None else high):
        out += match.span()
    return out


def without(spans: list[int], holes: set[int]) -> list[int]:
    """Ranges less single positions."""
    out: list[int] = []
    for low, high in zip(spans[::2], spans[1::2], strict=True):
        start = low
        for hole in sorted(hole for hole in holes if low <= hole < high):
            if start < hole:
                out += (start, hole)
            start = hole + 1
        if start < high:
            out += (start, high)
    return out
