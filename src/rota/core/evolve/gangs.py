"""Evolve, the part of gangs: what is reserved for their parts, each given back by itself."""

from rota.core.state import BatchState, Live, RunnerState, State
from rota.model import events as ev
from rota.model.slot import Slot
from rota.model.tables import WAITING

__all__ = ["close_root", "gang_broken", "move_parts", "released", "reserve_part"]


def reserve_part(
    state: State, runner: RunnerState, key: tuple[int, int, int], slot: Slot, restoring: bool = False
) -> None:
    """Charge a node for a part. Limits count the root alone.

    `restoring`: a checkpoint had it, so it is charged even if the capacity has shrunk.
    """
    charge = state.ledger.restore if restoring else state.ledger.charge
    charge(runner.location, slot.amounts, 1, slot.gpus)
    runner.parts[key] = slot
    state.parts += 1


def move_parts(state: State, runner: RunnerState, before: str) -> None:
    """A runner's node has another name: what is reserved for parts moves along."""
    for slot in runner.parts.values():
        state.ledger.charge(before, slot.amounts, -1, slot.gpus)
        state.ledger.restore(runner.location, slot.amounts, 1, slot.gpus)


def close_root(state: State, batch: BatchState, pos: int, live: Live) -> None:
    """The root of a gang is over: the job runs again only when the others are released."""
    key = (batch.id, pos, live.attempt)
    left = tuple(name for name, _ in live.parts if name in state.runners and key in state.runners[name].parts)
    if left:
        batch.closing[pos] = left
    batch.broken.pop(pos, None)


def released(state: State, event: ev.Released) -> None:
    """Parts are over; the job of the last one may run again."""
    runner = state.runners[event.runner]
    for number, pos, attempt in event.rows:
        slot = runner.parts.pop((number, pos, attempt), None)
        assert slot is not None, f"runner {runner.id}: its part of {number}/{pos} attempt {attempt} is given back twice"
        state.ledger.charge(runner.location, slot.amounts, -1, slot.gpus)
        state.parts -= 1
        batch = state.batches[number]
        if pos not in batch.closing or attempt != batch.attempts[pos]:
            continue  # the attempt lives: its root is to end first
        left = tuple(name for name in batch.closing[pos] if name != runner.id)
        if left:
            batch.closing[pos] = left
        else:
            del batch.closing[pos]
            if batch.states[pos] == WAITING:
                state.freed.append((number, pos, pos + 1))
        state.dirty_batches.add(number)


def gang_broken(state: State, event: ev.GangBroken) -> None:
    """A live gang has lost a part."""
    batch = state.batches[event.batch]
    batch.broken.setdefault(event.pos, event.reason)
    state.dirty_batches.add(batch.id)
