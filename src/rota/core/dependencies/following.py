"""What follows for jobs that wait: they become ready or are omitted, and why."""

import re
from collections.abc import Iterable, Iterator

from rota.core.batch import BatchState
from rota.core.dependencies.looking import MET, NEVER, UNMET, look, look_at_gates
from rota.core.scouting import FAILED_SCOUTS, judged, scouts_of
from rota.core.spans import spans_of, without
from rota.core.state import State
from rota.model import events as ev
from rota.model.job import format_job
from rota.model.tables import COMPLETED, HOLDING, JOB_STATES, REMOVED, WAITING

__all__ = ["consequences", "element_reason", "follow_up", "longest_backoff", "parents_of"]

_HELD, _NO = 8, 4
_LIKEWISE = ", and others likewise"
_WAITING_RUN = re.compile(bytes((WAITING,)) + b"+")
_OMITTABLE_RUN = re.compile(b"[" + bytes((WAITING, HOLDING)) + b"]+")
_READY_RUN = re.compile(b"\x00+")
_OMIT_RUN = re.compile(b"[" + bytes((NEVER, NEVER | UNMET, _HELD | NEVER, _HELD | NEVER | UNMET)) + b"]+")


def _table(met: Iterable[int], never: Iterable[int]) -> bytes:
    table = bytearray([UNMET]) * 256
    for number in met:
        table[number] = MET
    for number in never:
        table[number] = NEVER
    return bytes(table)


_BAD = tuple(range(COMPLETED + 1, REMOVED))
_CODES = {
    "success": _table((COMPLETED, REMOVED), _BAD),
    "any": _table((COMPLETED, *_BAD, REMOVED), ()),
    "failure": _table(_BAD, (COMPLETED, REMOVED)),
}
"""Condition → for each state byte of the job waited for: met, open or never. Nobody waits for a removed job."""
_OWN = bytearray([_NO]) * 256
_OWN[WAITING], _OWN[HOLDING] = 0, _HELD
"""For each state byte of the job that waits: whether it can become ready, be omitted only, or neither."""


def follow_up(state: State, freed: list[tuple[int, int, int]], wall: float) -> Iterator[ev.Moved]:
    """Events that follow for these jobs (batch, low, high); where there is a graph, one for all that make a move."""
    graphs: dict[int, list[tuple[int, int]]] = {}
    for number, low, high in freed:
        batch = state.batches[number]
        if batch.counts[WAITING] or batch.counts[HOLDING]:
            if batch.graph is None:
                yield from consequences(state, batch, low, high, wall)
            else:
                graphs.setdefault(number, []).append((low, high))
    for number, rows in graphs.items():
        made: dict[str, ev.Moved] = {}
        end = 0
        for low, high in sorted(rows):
            if high > end:
                for event in consequences(state, state.batches[number], max(low, end), high, wall):
                    known = made.setdefault(event.verb, event)
                    if known is not event:
                        known.spans.extend(event.spans)
                        if event.verb == "omit" and not (known.reason or "").endswith(_LIKEWISE):
                            known.reason = (known.reason or "") + _LIKEWISE
                end = high
        yield from made.values()


def consequences(state: State, batch: BatchState, low: int, high: int, wall: float) -> Iterator[ev.Moved]:
    """Events that follow for the WAITING and HOLDING jobs among these positions: they become ready, or are omitted."""
    if batch.graph is not None and (batch.graph.todo or batch.graph.epoch != state.epoch):
        look_at_gates(state, batch)
    whole, why = look(state, batch)
    if whole == MET and batch.spec.not_before is not None and batch.spec.not_before > wall:
        whole = UNMET
    if (batch.elements or batch.graph is not None) and whole != NEVER:
        ready, omitted, why = _elements(state, batch, low, high, whole)
    elif whole == UNMET:
        return
    else:
        ready = spans_of(batch, _WAITING_RUN, low, high) if whole == MET else []
        omitted = spans_of(batch, _OMITTABLE_RUN, low, high) if whole == NEVER else []
    if omitted:
        yield ev.Moved(batch.id, "omit", omitted, why)
    if ready and batch.until:
        last = wall + longest_backoff(state)
        if high - low == 1:
            holes = {low} if wall < batch.until.get(low, wall) <= last else set()
        else:
            holes = {pos for pos, until in batch.until.items() if wall < until <= last}
        ready = without(ready, holes)
    if ready and batch.closing:
        ready = without(ready, set(batch.closing))
    if ready and batch.scouting and ready[-1] > scouts_of(batch):
        told = judged(batch)
        if told.what != "go":
            ready = [min(edge, scouts_of(batch)) for edge in ready]
            ready = [edge for at in range(0, len(ready), 2) if ready[at] < ready[at + 1] for edge in ready[at : at + 2]]
        if told.what == "broken":
            rest = spans_of(batch, _WAITING_RUN, scouts_of(batch), batch.count)
            yield ev.Moved(batch.id, "hold", rest, f"{FAILED_SCOUTS}: {told.why}")
    if ready:
        yield ev.Moved(batch.id, "ready", ready)


def _elements(state: State, batch: BatchState, low: int, high: int, whole: int) -> tuple[list[int], list[int], str]:
    """(spans that are ready, spans to omit, why) among these positions of a batch that depends on others job by job.

    Each condition makes a byte of each state: met 0, open 1, never 2; all are put together by a bitwise or.
    """
    codes = int.from_bytes(batch.states[low:high].translate(_OWN), "little")
    if whole:
        codes |= int.from_bytes(bytes((whole,)) * (high - low), "little")
    for at in batch.elements:
        dependency, (number, start, _) = batch.spec.after[at], batch.edges[at]
        other = state.batches.get(number)
        if other is not None:
            part = other.states[start + low : start + high].translate(_CODES[dependency.condition])
            codes |= int.from_bytes(part, "little")
    if batch.graph is not None:
        codes |= int.from_bytes(batch.graph.codes(low, high), "little")
    stands = codes.to_bytes(high - low, "little")
    ready = [low + edge for match in _READY_RUN.finditer(stands) for edge in match.span()]
    omitted = [low + edge for match in _OMIT_RUN.finditer(stands) for edge in match.span()]
    why = ""
    if omitted:
        why = element_reason(state, batch, omitted[0]) or ""
        if omitted[1] - omitted[0] > 1 or len(omitted) > 2:
            why += _LIKEWISE
    return ready, omitted, why


def element_reason(state: State, batch: BatchState, pos: int) -> str | None:
    """Which job a job waits for, or can never run after, by its dependencies job by job; None: by none of these."""
    open_ = None
    for at in batch.elements:
        dependency, (number, start, _) = batch.spec.after[at], batch.edges[at]
        other = state.batches.get(number)
        if other is None:
            continue
        byte = other.states[start + pos]
        code = _CODES[dependency.condition][byte]
        job = format_job(number, other.index(start + pos))
        if code == NEVER:
            if dependency.condition == "failure":
                how = "was removed" if byte == REMOVED else "succeeded"
                return f"was to run if {job} failed, but it {how}"
            return f"depends on {job}, which is {JOB_STATES[byte]}"
        if code == UNMET and open_ is None:
            open_ = f"waits for {job}, which is {JOB_STATES[byte]}"
    for found, is_never in _graph_reasons(state, batch, pos):
        if is_never:
            return found
        open_ = open_ or found
    return open_


def parents_of(state: State, batch: BatchState, pos: int) -> Iterator[tuple[BatchState | None, int, str, str, int]]:
    """(batch, position, what, condition, code) of all that a job waits for by the graph of its batch.

    A single job has a batch and a position; a name or something else outside has None, and `what` names it. The code is
    0 if it is met, 1 if it is open, 2 if it can never be met.
    """
    if batch.graph is None:
        return
    for what, condition, code in batch.graph.links_of(pos):
        number, sharp, at = what.partition("#")
        if not sharp:
            yield None, -1, what, condition, code
            continue
        other = state.batches.get(int(number)) if number else batch
        if other is not None:
            yield other, int(at), format_job(other.id, other.index(int(at))), condition, code


def _graph_reasons(state: State, batch: BatchState, pos: int) -> Iterator[tuple[str, bool]]:
    """(what a job waits for or can never run after by the graph of its batch, whether it is the latter)."""
    for other, at, what, condition, code in parents_of(state, batch, pos):
        if code == MET:
            continue
        now = f"is {JOB_STATES[other.states[at]]}" if other is not None else "is not settled"
        if code == UNMET:
            yield f"waits for {what}, which {now}", False
        elif condition == "failure":
            gone = other is not None and other.states[at] == REMOVED
            yield f"was to run if {what} failed, but it {'was removed' if gone else 'succeeded'}", True
        else:
            yield f"depends on {what}, which {now if other is not None else 'did not succeed'}", True


def longest_backoff(state: State) -> float:
    """The most seconds that the next try of a job can be off. If it is further off, the wall clock was set back."""
    return state.settings.backoff_most_s + state.settings.backoff_jitter_s
