"""Leases ahead of the slots, so that runners of short jobs never wait for the manager."""

import math
from collections.abc import Iterator

from rota.core.decide.retries import until_brake
from rota.core.earliest import Earliest
from rota.core.evolve.leasing import Grant
from rota.core.plan.turns import Turns
from rota.core.plan.watching import runner_status
from rota.core.soft import Planning, ShapeMemo
from rota.core.state import RunnerState, Settings, ShapeState, State
from rota.model.slot import Slot
from rota.model.tables import STARTING
from rota.schedule.tree import Key
from rota.schedule.waiting import Entry

__all__ = ["leases_ahead"]

_Missing = tuple[str, Slot, int]
"""(runner, slot, how many leases are missing there)."""


def leases_ahead(turns: Turns, steady: float) -> Iterator[Grant]:
    """Lease ahead, in order, until a shape waits for room.

    Looked at are only slots where leases may be missing: jobs were leased there, or have ended.
    """
    state = turns.state
    planning = state.soft.planning
    short = planning.short
    for slot, runners in planning.changed.slots.items():
        short.setdefault(slot.shape, {}).update(dict.fromkeys([(runner, slot) for runner in runners]))
        planning.stale.update(runners)
    planning.changed.slots = {}
    for number in planning.changed.quicker & planning.enough.keys():
        _look_again(planning, number)
    planning.changed.quicker.clear()
    look: list[tuple[Key, Entry, list[_Missing]]] = []
    for number in list(short):
        entry = turns.waiting.entries.get(number)
        memo = planning.shapes.get(number)
        if not state.shapes[number].slots:
            del short[number]
            planning.enough.pop(number, None)
        elif not short[number]:
            del short[number]
        elif entry is not None and state.shapes[number].ready and memo is not None and _is_short(state, memo):
            missing = _missing(turns, number)
            if missing:
                look.append((entry.key, entry, missing))
    if not look:
        return
    blocked = turns.first_waiting()
    for key, entry, missing in sorted(look, key=lambda row: row[0]):
        if blocked is not None and key > blocked:
            break
        shape = state.shapes[entry.want.shape_id]
        most = 0 if turns.holds_too_much(entry) else _most(turns, shape)
        if most:
            yield from _ahead(state, shape, missing, most, steady)
            if key == blocked and not shape.ready:
                blocked = turns.first_waiting(key)  # all its jobs are leased now


def _look_again(planning: Planning, number: int) -> None:
    """Find the slots of a shape where leases are missing now because its jobs take less time."""
    enough, mean = planning.enough[number], planning.shapes[number].mean_s
    assert mean is not None
    for pair in enough.due(-mean):
        planning.short.setdefault(number, {})[pair] = None
        enough.drop(pair)


def _is_short(state: State, memo: ShapeMemo) -> bool:
    """Whether jobs are leased ahead: not gangs, of which each needs its parts confirmed before it starts."""
    short = memo.mean_s is not None and memo.mean_s <= state.settings.ahead_below_s
    return short and not memo.asked.needs.together


def _most(turns: Turns, shape: ShapeState) -> int:
    """How many jobs of a shape may be leased ahead, in slots that are charged already.

    0 while a limit is overdrawn (it was lowered) or closed. What a rate leaves is given only if no other shape wants
    it.
    """
    state = turns.state
    most = shape.ready
    head = shape.head(state.batches)
    if head is not None:
        batch = state.batches[head[0]]
        spare = until_brake(batch)
        if spare is not None:  # all that is leased may fail before the rest is held
            most = min(most, max(0, spare - batch.counts[STARTING]))
    for name in shape.shape.limits:
        limit = turns.view.limits.get(name)
        if limit is None:
            continue
        if limit.closed is not None or (limit.count is not None and limit.used > limit.count):
            return 0
        if limit.left is not None:
            most = min(most, limit.left if len(turns.waiting.members[name]) == 1 else 0)
    return most


def _missing(turns: Turns, number: int) -> list[_Missing]:
    """The slots of a shape of short jobs where leases are missing; of the others it is noted that none are."""
    state, settings = turns.state, turns.state.settings
    planning = state.soft.planning
    memo, pairs = planning.shapes[number], planning.short[number]
    mean, needs = memo.mean_s, memo.asked.needs
    enough = planning.enough.setdefault(number, Earliest())
    assert mean is not None
    out = []
    for runner_id, slot in _in_order(turns, pairs):
        runner = state.runners.get(runner_id)
        slots = 0 if runner is None else runner.slots.get(slot, 0)
        if runner is None or not slots or runner.direct:
            del pairs[runner_id, slot]
            enough.drop((runner_id, slot))
            continue
        if slot.amounts != needs.amounts(slot.amounts.cores) or not _takes_more(state, runner):
            continue  # of a size that is not asked for, for now
        depth = min(settings.lease_most, int(slots * settings.ahead_s / mean) + 1)
        missing = slots + depth - runner.held.get(slot, 0)
        if missing * 2 < depth:
            del pairs[runner_id, slot]
            enough.set((runner_id, slot), _missing_from(slots, runner.held[slot], settings))
        else:
            out.append((runner_id, slot, missing))
    return out


def _ahead(state: State, shape: ShapeState, missing: list[_Missing], most: int, steady: float) -> Iterator[Grant]:
    """Lease up to `most` jobs of a shape where leases are missing."""
    for runner_id, slot, lacking in missing:
        if not shape.ready or most <= 0:
            return
        count = min(lacking, shape.ready, state.settings.lease_most, most)
        most -= count
        yield Grant(runner_id, slot, 0, count, steady)


def _takes_more(state: State, runner: RunnerState) -> bool:
    """Whether a runner is given jobs ahead of its slots: not where one is tried at a time."""
    return runner_status(state, runner) == "SERVING" and runner.location not in state.ledger.single


def _missing_from(slots: int, held: int, settings: Settings) -> float:
    """The mean time of a job, negated, at which leases will be missing; infinite: never."""
    depth = 2 * (held - slots)
    return math.inf if depth > settings.lease_most else -slots * settings.ahead_s / (depth - 1) * (1 + 1e-9)


def _in_order(turns: Turns, pairs: dict[tuple[str, Slot], None]) -> list[tuple[str, Slot]]:
    """The pairs as their runners, and the slots of each, follow one another."""
    if len(pairs) == 1:
        return list(pairs)
    spots, runners = turns.places.spots, turns.state.runners
    by_runner: dict[str, set[Slot]] = {}
    for runner, slot in pairs:
        by_runner.setdefault(runner, set()).add(slot)
    ordered = []
    for runner in sorted(by_runner, key=lambda runner: spots[runner].rank if runner in spots else -1):
        have = list(runners[runner].slots) if runner in runners else []
        slots = by_runner[runner]
        ordered += [(runner, slot) for slot in have if slot in slots]
        ordered += [(runner, slot) for slot in slots.difference(have)]
    return ordered
