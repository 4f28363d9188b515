"""Looking at what a batch or a gate waits for: it is met, open and watched, or can never be met."""

import re
from operator import attrgetter

from rota.core.batch import BatchState
from rota.core.dependencies.meaning import named, tally
from rota.core.dependencies.telling import refresh, refresh_jobs
from rota.core.graph import BAD, GONE, GOOD, OPEN, Gate
from rota.core.state import State
from rota.model.batch import Dependency
from rota.model.tables import COMPLETED, HOLDING, REMOVED, SETTLED, WAITING

__all__ = ["MET", "NEVER", "UNMET", "look", "look_at_gates", "never", "watch_all"]

MET, UNMET, NEVER = 0, 1, 2
"""How a dependency stands: met, open, or such that it can never be met."""
_UNSETTLED = re.compile(b"[" + bytes((0,)) + b"-" + bytes((SETTLED - 1,)) + b"]")


def look(state: State, batch: BatchState) -> tuple[int, str]:
    """(met, open or never; why, if never) of a batch as a whole. If open, it will be told when to look again."""
    if batch.waits is not None:
        return UNMET, ""
    after, edges = batch.spec.after, batch.edges
    if 0 <= batch.epoch != state.epoch:
        batch.met, batch.seen, batch.epoch = 0, -1, state.epoch
    while batch.met < len(edges):
        dependency, edge = after[batch.met], edges[batch.met]
        if not dependency.each:
            counts = _look_by_name(state, batch, dependency) if edge[0] == 0 else _look_at(state, batch, edge)
            if counts is None:
                return UNMET, ""
            if why := never(dependency, *counts):
                return NEVER, why
        batch.met += 1
        batch.seen = -1
    return MET, ""


def _look_at(state: State, batch: BatchState | Gate, edge: tuple[int, int, int]) -> tuple[int, int] | None:
    """(how many jobs succeeded, how many did not) at these positions; None: not all are settled, and one is watched."""
    number, low, high = edge
    other = state.batches.peek(number)
    if other is None:
        return 0, 0
    if low == 0 and high == other.count:
        if isinstance(other, BatchState) and other.unsettled:
            other.watchers.add(batch.token)
            other.followed = True
            batch.waits = (number, -1)
            return None
        counts = other.counts
        return counts[COMPLETED], other.count - counts[COMPLETED] - counts[REMOVED]
    unsettled = _UNSETTLED.search(other.states, max(low, batch.seen), high)
    if unsettled is not None and isinstance(other, BatchState):
        batch.seen = pos = unsettled.start()
        other.marks.setdefault(pos, []).append(batch.token)
        other.followed = True
        batch.waits = (number, pos)
        return None
    good = other.states.count(COMPLETED, low, high)
    return good, high - low - good - other.states.count(REMOVED, low, high)


def _look_by_name(state: State, batch: BatchState | Gate, dependency: Dependency) -> tuple[int, int] | None:
    """(how many jobs succeeded, how many did not) of the batches of a name; None: not all are settled.

    The last batch that is not settled is watched: it is likely to be so for the longest time.
    """
    name = dependency.target[1:]
    numbers, low, high = named(state, batch, dependency)
    if low >= high:
        state.unnamed.setdefault(name, []).append(batch.token)
        batch.waits = name
        return None
    good, bad = state.tallies.setdefault(name, ([0], [0]))
    at = high if batch.seen < 0 else min(batch.seen, high)
    while at > low and at > len(good) - 1:
        other = state.batches.peek(numbers[at - 1])
        if isinstance(other, BatchState) and tally(other, name)[0]:
            _watch(other, name, batch)
            batch.seen = at
            return None
        at -= 1
    for number in numbers[len(good) - 1 : high]:  # all of these are settled
        settled = state.batches.peek(number)
        _, done, not_done = tally(settled, name) if settled is not None else (0, 0, 0)
        good.append(good[-1] + done)
        bad.append(bad[-1] + not_done)
    return good[high] - good[low], bad[high] - bad[low]


def _watch(other: BatchState, name: str, waits: BatchState | Gate) -> None:
    """Have a batch or gate told when all jobs of a batch that have this name are settled."""
    other.followed = True
    if other.spec.name == name or other.graph is None:
        other.watchers.add(waits.token)
        waits.waits = (other.id, -1)
    else:
        other.graph.told.setdefault(name, set()).add(waits.token)
        waits.waits = (other.id, name)


def look_at_gates(state: State, batch: BatchState) -> None:
    """Look at the gates of a graph of which something may have changed."""
    graph = batch.graph
    assert graph is not None
    if graph.epoch != state.epoch:
        graph.epoch = state.epoch
        graph.todo.update(gate.number for gate in graph.gates if gate.epoch >= 0)
    freed: list[int] = []
    for number in sorted(graph.todo):
        gate = graph.gates[number]
        if gate.waits is None:
            gate.seen = gate.seen if gate.epoch < 0 else -1
            edge = gate.edges[0]
            counts = _look_at(state, gate, edge) if edge[0] else _look_by_name(state, gate, gate.after[0])
            new = OPEN if counts is None else BAD if counts[1] else GOOD if counts[0] else GONE
            graph.set(gate.node, new, freed, [])
    graph.todo.clear()
    state.freed.extend((batch.id, pos, pos + 1) for pos in freed)


def watch_all(state: State) -> None:
    """After a restart, have every batch that waits look for what it is to be told of."""
    state.settled, state.freed, state.again, state.forgotten = [], [], [], []
    batches = sorted(state.batches.open(), key=attrgetter("id"))
    for batch in batches:
        if batch.graph is not None:
            refresh(state, batch, 0, batch.count)
            for number, _ in batch.graph.given.jobs:
                refresh_jobs(state, batch, number)
    for batch in batches:  # once every graph knows what its names have come to
        if batch.graph is not None:
            look_at_gates(state, batch)
        if batch.edges and (batch.counts[WAITING] or batch.counts[HOLDING]):
            look(state, batch)
    state.freed = []


def never(dependency: Dependency, good: int, bad: int) -> str:
    """Why settled jobs (`good` succeeded, `bad` did not) can never meet a condition; empty if they meet it."""
    what = dependency.target
    if dependency.condition == "failure" and not bad:
        rest = f"all {good:,} of its jobs succeeded" if good else "none of its jobs is left"
        rest = "it succeeded" if good == 1 else rest
        return f"was to run if {what} failed, but {rest}"
    if dependency.condition == "success" and bad:
        return f"depends on {what}, of which {bad} of {good + bad} jobs did not succeed"
    return ""
