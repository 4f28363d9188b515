"""Dependencies: when the jobs of a batch may run, and when they never can.

Nothing is expanded. A batch that waits is told of one thing at a time: the end of one batch, or of one job, that it
cannot do without; then it looks for the next. So a dependency costs one look, whatever the sizes, and a batch for which
ten thousand others wait is cheap until it is settled. A batch that depends on another job by job is told of just the
positions that were settled, and compares stretches of state bytes.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator

from rota.core.state import BatchState, State
from rota.model import events as ev
from rota.model.batch import BatchSpec, Dependency
from rota.model.job import format_job
from rota.model.selector import parse_selector
from rota.model.tables import COMPLETED, HOLDING, JOB_STATES, REMOVED, SETTLED, WAITING

__all__ = [
    "connect", "consequences", "dependents", "element_reason", "freeze", "grown", "longest_backoff", "named", "never",
    "note_settled", "open_to", "positions_of", "reconnect", "renamed", "reopened", "touched", "watch_all", "woken",
]  # fmt: skip

_MET, _OPEN, _NEVER = 0, 1, 2
_HELD, _NO = 8, 4
_WAITING_RUN = re.compile(bytes((WAITING,)) + b"+")
_OMITTABLE_RUN = re.compile(b"[" + bytes((WAITING, HOLDING)) + b"]+")
_UNSETTLED = re.compile(b"[" + bytes((0,)) + b"-" + bytes((SETTLED - 1,)) + b"]")
_READY_RUN = re.compile(b"\x00+")
_OMIT_RUN = re.compile(b"[" + bytes((_NEVER, _NEVER | _OPEN, _HELD | _NEVER, _HELD | _NEVER | _OPEN)) + b"]+")


def _table(met: Iterable[int], never: Iterable[int]) -> bytes:
    table = bytearray([_OPEN]) * 256
    for number in met:
        table[number] = _MET
    for number in never:
        table[number] = _NEVER
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


# ---- who depends on whom ------------------------------------------------------------------------------------------


def positions_of(state: State, target: str) -> tuple[int, int, int]:
    """(batch, low, high) of a target that is not a name; an empty range if there is no such batch."""
    number, first, last = parse_selector([target]).spans[0]
    batch = state.batches.get(number)
    if batch is None:
        return number, 0, 0
    low = 0 if first is None else batch.position(first)
    end = batch.count - 1 if last is None else batch.position(last)
    return (number, 0, 0) if low is None or end is None else (number, low, end + 1)


def connect(state: State, batch: BatchState) -> None:
    """Enter a new or restored batch into the indices; the batches that it depends on are there already."""
    edges = []
    for dependency in batch.spec.after:
        target = dependency.target
        if target.startswith("@"):
            edges.append((0, 0, 0))
            state.waiters.setdefault(target, set()).add(batch.id)
            if _is_open(state, batch, dependency):
                state.open_names.setdefault(target[1:], set()).add(batch.id)
            continue
        edge = positions_of(state, target)
        edges.append(edge)
        state.waiters.setdefault(str(edge[0]), set()).add(batch.id)
        other = state.batches.get(edge[0])
        if dependency.each and other is not None:
            other.twins.append((batch.id, edge[1]))
            other.followed = True
    batch.edges = tuple(edges)
    batch.epoch = 0 if not edges or (0, 0, 0) in edges else -1  # 0 if there are none: the value of a new batch
    batch.elements = tuple(at for at, dependency in enumerate(batch.spec.after) if dependency.each)


def disconnect(state: State, batch: BatchState) -> None:
    """Take a settled batch that is pruned out of the indices."""
    _sever(state, batch)
    state.waiters.pop(str(batch.id), None)
    if state.tallies.pop(batch.spec.name, None) is not None:
        state.epoch += 1


def _sever(state: State, batch: BatchState) -> None:
    """Take the dependencies of a batch out of the indices."""
    for dependency, edge in zip(batch.spec.after, batch.edges, strict=True):
        key = dependency.target if edge[0] == 0 else str(edge[0])
        waiting = state.waiters.get(key, set())
        waiting.discard(batch.id)
        if not waiting:
            state.waiters.pop(key, None)
        other = state.batches.get(edge[0])
        if dependency.each and other is not None:
            other.twins = [twin for twin in other.twins if twin[0] != batch.id]
        if edge[0] == 0:
            state.open_names.get(key[1:], set()).discard(batch.id)
            if batch.id in state.unnamed.get(key[1:], ()):
                state.unnamed[key[1:]].remove(batch.id)


def reconnect(state: State, batch: BatchState, spec: BatchSpec) -> None:
    """Give a batch other dependencies."""
    _look_anew(state, batch)
    _sever(state, batch)
    batch.spec, batch.known_until = spec, 0
    connect(state, batch)


def renamed(state: State, batch: BatchState, old: str) -> None:
    """Have batches that wait for the old or the new name of a batch look again: it counts as always having had it."""
    for name in (old, batch.spec.name):
        state.tallies.pop(name, None)
        waiters = [state.batches[n] for n in sorted(state.waiters.get(f"@{name}", ())) if n in state.batches]
        for waiter in waiters:
            _look_anew(state, waiter)
            if waiter.known_until and not freezable(state, waiter):
                waiter.known_until = 0
                state.dirty_batches.add(waiter.id)
            for dependency in waiter.spec.after:
                if dependency.target.startswith("@"):
                    state.open_names.setdefault(dependency.target[1:], set()).discard(waiter.id)
            for dependency in waiter.spec.after:
                if dependency.target.startswith("@") and _is_open(state, waiter, dependency):
                    state.open_names[dependency.target[1:]].add(waiter.id)
            if waiter.counts[WAITING] or waiter.counts[HOLDING]:
                state.freed.append((waiter.id, 0, waiter.count))
    state.epoch += 1


def _look_anew(state: State, batch: BatchState) -> None:
    """Have a batch look at its dependencies from the first again, and have nobody tell it before."""
    if isinstance(batch.waits, str):
        told = state.unnamed.get(batch.waits, [])
    elif batch.waits is not None:
        number, pos = batch.waits
        other = state.batches[number]
        other.watchers.discard(batch.id)
        told = other.marks.get(pos, [])
    else:
        told = []
    if batch.id in told:
        told.remove(batch.id)
    batch.waits, batch.met, batch.seen = None, 0, -1


def _is_open(state: State, batch: BatchState, dependency: Dependency) -> bool:
    """Whether every new batch of a name counts for a dependency on it."""
    return dependency.live or (not batch.known_until and not _earlier(state, batch, dependency.target[1:]))


def _earlier(state: State, batch: BatchState, name: str) -> int:
    """How many batches of this name came before the batch."""
    return bisect_left(state.names.get(name, ()), batch.id)


def named(state: State, batch: BatchState, dependency: Dependency) -> tuple[list[int], int, int]:
    """(numbers, from, to): the batches that a name means to a batch, as a part of the list of all that have it.

    These are the earlier ones; if there are none, the later ones, up to when the batch was first ready: so batches of
    one name can be chained by it, and none waits for itself. If the dependency is live, all.
    """
    numbers = state.names.get(dependency.target[1:], [])
    if dependency.live:
        return numbers, 0, len(numbers)
    earlier = bisect_left(numbers, batch.id)
    if earlier:
        return numbers, 0, earlier
    return numbers, 0, bisect_right(numbers, batch.known_until) if batch.known_until else len(numbers)


def freeze(state: State, batch: BatchState) -> None:
    """Fix what the names that a batch depends on mean, now that its jobs are first ready or omitted."""
    if not freezable(state, batch):
        return
    batch.known_until = state.next_batch - 1
    live = {d.target for d in batch.spec.after if d.live}
    for dependency in batch.spec.after:
        if dependency.target.startswith("@") and not dependency.live and dependency.target not in live:
            state.open_names.get(dependency.target[1:], set()).discard(batch.id)


def freezable(state: State, batch: BatchState) -> bool:
    """Whether each name that a batch depends on, but for live ones, means some batch."""
    names = [each for each in batch.spec.after if each.target.startswith("@") and not each.live]
    return all(low < high for _, low, high in (named(state, batch, dependency) for dependency in names))


def dependents(state: State, batch: BatchState, by_name: bool = True) -> Iterator[BatchState]:
    """Batches whose dependencies name this one, or a part of it, or its name."""
    keys = (str(batch.id), f"@{batch.spec.name}") if by_name and batch.spec.name else (str(batch.id),)
    for key in keys:
        for number in sorted(state.waiters.get(key, ())):
            if number in state.batches:
                yield state.batches[number]


def open_to(state: State, name: str) -> list[BatchState]:
    """Batches for which every new batch of this name counts."""
    return [state.batches[number] for number in sorted(state.open_names.get(name, ())) if number in state.batches]


def touched(
    state: State, waiter: BatchState, batch: BatchState, spans: list[int]
) -> Iterator[tuple[Dependency, list[int]]]:
    """(dependency, spans of the waiter) for each dependency of the waiter on one of these positions of a batch."""
    for dependency, (number, low, high) in zip(waiter.spec.after, waiter.edges, strict=True):
        if number == batch.id:
            if dependency.each:
                moved = [min(max(edge - low, 0), waiter.count) for edge in spans]
                pairs = zip(moved[::2], moved[1::2], strict=True)
                mine = [edge for pair in pairs if pair[0] < pair[1] for edge in pair]
                if mine:
                    yield dependency, mine
            elif any(a < high and low < b for a, b in zip(spans[::2], spans[1::2], strict=True)):
                yield dependency, [0, waiter.count]
        elif number == 0 and batch.spec.name and dependency.target[1:] == batch.spec.name:
            numbers, start, end = named(state, waiter, dependency)
            at = bisect_left(numbers, batch.id)
            if start <= at < end and waiter.id != batch.id:
                yield dependency, [0, waiter.count]


# ---- what evolve tells us -----------------------------------------------------------------------------------------


def note_settled(state: State, batch: BatchState, spans: list[int]) -> None:
    """Take note that these jobs of a batch were settled: those that wait for them are told at the end of the step."""
    if len(spans) > 16:
        spans = [spans[0], spans[-1]]
    for low, high in zip(spans[::2], spans[1::2], strict=True):
        state.settled.append((batch.id, low, high))


def reopened(state: State, batch: BatchState) -> None:
    """Forget what is known about a batch whose jobs run again, or were removed."""
    name = batch.spec.name
    if name in state.tallies:
        at = bisect_left(state.names[name], batch.id)
        for sums in state.tallies[name]:
            del sums[at + 1 :]
        state.epoch += 1
    for number in state.waiters.get(str(batch.id), ()):
        waiter = state.batches.get(number)
        if waiter is not None:
            waiter.met, waiter.seen = 0, -1


def grown(state: State, name: str) -> None:
    """Have batches look again for which a new batch of this name counts."""
    waiting = set(state.unnamed.pop(name, ()))
    if name in state.open_names:
        state.epoch += 1
        for waiter in open_to(state, name):
            if waiter.id in waiting:
                waiter.waits = None
            elif any(dependency.target == f"@{name}" for dependency in waiter.spec.after[: waiter.met]):
                _look_anew(state, waiter)  # a met dependency is open again, whatever the batch waits for now
            if waiter.waits is None and (waiter.counts[WAITING] or waiter.counts[HOLDING]):
                state.freed.append((waiter.id, 0, waiter.count))


def woken(state: State, number: int, low: int, high: int) -> Iterator[tuple[int, int, int]]:
    """(batch, low, high) of the jobs to look at because these jobs of a batch were settled."""
    batch = state.batches[number]
    if batch.watchers and not batch.unsettled:
        told, batch.watchers = sorted(batch.watchers), set()
        yield from _tell(state, told)
    if batch.marks:
        positions = [pos for pos in batch.marks if low <= pos < high] if high - low > 1 else [low]
        for pos in positions:
            if pos in batch.marks:
                yield from _tell(state, batch.marks.pop(pos))
    for twin, offset in batch.twins:
        other = state.batches.get(twin)
        if other is not None:
            start, end = max(low - offset, 0), min(high - offset, other.count)
            if start < end:
                yield twin, start, end


def _tell(state: State, numbers: list[int]) -> Iterator[tuple[int, int, int]]:
    for number in numbers:
        waiter = state.batches.get(number)
        if waiter is not None:
            waiter.waits = None
            yield number, 0, waiter.count


def watch_all(state: State) -> None:
    """After a restart, have every batch that waits look for what it is to be told of."""
    state.settled, state.freed, state.again, state.forgotten = [], [], [], []
    for batch in state.batches.values():
        if batch.edges and (batch.counts[WAITING] or batch.counts[HOLDING]):
            _look(state, batch)


# ---- looking ------------------------------------------------------------------------------------------------------


def _look(state: State, batch: BatchState) -> tuple[int, str]:
    """(met, open or never; why, if never) of a batch as a whole. If open, it will be told when to look again."""
    if batch.waits is not None:
        return _OPEN, ""
    after, edges = batch.spec.after, batch.edges
    if 0 <= batch.epoch != state.epoch:
        batch.met, batch.seen, batch.epoch = 0, -1, state.epoch
    while batch.met < len(edges):
        dependency, edge = after[batch.met], edges[batch.met]
        if not dependency.each:
            counts = _look_by_name(state, batch, dependency) if edge[0] == 0 else _look_at(state, batch, edge)
            if counts is None:
                return _OPEN, ""
            if why := never(dependency, *counts):
                return _NEVER, why
        batch.met += 1
        batch.seen = -1
    return _MET, ""


def _look_at(state: State, batch: BatchState, edge: tuple[int, int, int]) -> tuple[int, int] | None:
    """(how many jobs succeeded, how many did not) at these positions; None: not all are settled, and one is watched."""
    number, low, high = edge
    other = state.batches.get(number)
    if other is None:
        return 0, 0
    if low == 0 and high == other.count:
        if other.unsettled:
            other.watchers.add(batch.id)
            other.followed = True
            batch.waits = (number, -1)
            return None
        good = other.counts[COMPLETED]
        return good, other.count - good - other.counts[REMOVED]
    unsettled = _UNSETTLED.search(other.states, max(low, batch.seen), high)
    if unsettled is not None:
        batch.seen = pos = unsettled.start()
        other.marks.setdefault(pos, []).append(batch.id)
        other.followed = True
        batch.waits = (number, pos)
        return None
    good = other.states.count(COMPLETED, low, high)
    return good, high - low - good - other.states.count(REMOVED, low, high)


def _look_by_name(state: State, batch: BatchState, dependency: Dependency) -> tuple[int, int] | None:
    """(how many jobs succeeded, how many did not) of the batches of a name; None: not all are settled.

    The last batch that is not settled is watched: it is likely to be so for the longest time.
    """
    name = dependency.target[1:]
    numbers, low, high = named(state, batch, dependency)
    if low >= high:
        state.unnamed.setdefault(name, []).append(batch.id)
        batch.waits = name
        return None
    good, bad = state.tallies.setdefault(name, ([0], [0]))
    at = high if batch.seen < 0 else min(batch.seen, high)
    while at > low and at > len(good) - 1:
        other = state.batches.get(numbers[at - 1])
        if other is not None and other.unsettled:
            other.watchers.add(batch.id)
            other.followed = True
            batch.seen, batch.waits = at, (other.id, -1)
            return None
        at -= 1
    for number in numbers[len(good) - 1 : high]:  # all of these are settled
        other = state.batches.get(number)
        done = other.counts[COMPLETED] if other is not None else 0
        good.append(good[-1] + done)
        bad.append(bad[-1] + (other.count - done - other.counts[REMOVED] if other is not None else 0))
    return good[high] - good[low], bad[high] - bad[low]


def never(dependency: Dependency, good: int, bad: int) -> str:
    """Why settled jobs (`good` succeeded, `bad` did not) can never meet a condition; empty if they meet it."""
    what = dependency.target
    if dependency.condition == "failure" and not bad:
        rest = f"all {good} jobs succeeded" if good else "none of its jobs is left"
        return f"was to run if {what} failed, but {rest}"
    if dependency.condition == "success" and bad:
        return f"depends on {what}, of which {bad} of {good + bad} jobs did not succeed"
    return ""


def consequences(state: State, batch: BatchState, low: int, high: int, wall: float) -> Iterator[ev.Moved]:
    """Events that follow for the WAITING and HOLDING jobs among these positions: they become ready, or are omitted."""
    whole, why = _look(state, batch)
    if whole == _MET and batch.spec.not_before is not None and batch.spec.not_before > wall:
        whole = _OPEN
    if batch.elements and whole != _NEVER:
        ready, omitted, why = _elements(state, batch, low, high, whole)
    elif whole == _OPEN:
        return
    else:
        ready = spans_of(batch, _WAITING_RUN, low, high) if whole == _MET else []
        omitted = spans_of(batch, _OMITTABLE_RUN, low, high) if whole == _NEVER else []
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
    stands = codes.to_bytes(high - low, "little")
    ready = [low + edge for match in _READY_RUN.finditer(stands) for edge in match.span()]
    omitted = [low + edge for match in _OMIT_RUN.finditer(stands) for edge in match.span()]
    why = ""
    if omitted:
        why = element_reason(state, batch, omitted[0]) or ""
        if omitted[1] - omitted[0] > 1 or len(omitted) > 2:
            why += ", and others likewise"
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
        if code == _NEVER:
            if dependency.condition == "failure":
                how = "was removed" if byte == REMOVED else "succeeded"
                return f"was to run if {job} failed, but it {how}"
            return f"depends on {job}, which is {JOB_STATES[byte]}"
        if code == _OPEN and open_ is None:
            open_ = f"waits for {job}, which is {JOB_STATES[byte]}"
    return open_


def longest_backoff(state: State) -> float:
    """The most seconds that the next try of a job can be off. If it is further off, the wall clock was set back."""
    return state.settings.backoff_most_s + state.settings.backoff_jitter_s


# ---- ranges of positions ------------------------------------------------------------------------------------------


def spans_of(batch: BatchState, pattern: re.Pattern[bytes], low: int = 0, high: int | None = None) -> list[int]:
    """Spans of the positions whose state bytes match a pattern."""
    out: list[int] = []
    for match in pattern.finditer(batch.states, low, batch.count if high is None else high):
        out += match.span()
    return out


def without(spans: list[int], holes: set[int]) -> list[int]:
    """The spans without these positions."""
    out: list[int] = []
    order = sorted(holes)
    for low, high in zip(spans[::2], spans[1::2], strict=True):
        start = low
        for hole in order[bisect_left(order, low) : bisect_left(order, high)]:
            if start < hole:
                out += (start, hole)
            start = hole + 1
        if start < high:
            out += (start, high)
    return out
