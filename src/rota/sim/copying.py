"""Cheap copies of a small core, for the model checker.

Everything that can change is copied, everything else is shared.
"""

import copy
from array import array
from collections import deque
from typing import Any

from msgspec.structs import replace

from rota.core.soft import Soft
from rota.core.state import State
from rota.core.step import Core
from rota.schedule.ledger import Free

__all__ = ["copy_core"]

_SHARED = frozenset(("settings", "memo", "place_classes", "queue_classes", "shape_numbers"))
_FLAT = frozenset((dict, list, set, bytearray, deque))


def copy_core(core: Core) -> Core:
    """A copy of a core, which can go another way."""
    new = Core(core.state.settings, state=_copy_state(core.state))
    new.last_tick = core.last_tick
    return new


def _copy_state(state: State) -> State:
    new = State.__new__(State)
    for name, value in state.__dict__.items():
        new.__dict__[name] = value.copy() if type(value) in _FLAT and name not in _SHARED else value
    new.batches = state.batches.copy()
    for old in state.batches.open():
        batch = new.batches[old.id] = _copy_slots(old)
        batch.queues = [_copy_slots(queue) for queue in batch.queues]
        batch.marks = {pos: waiters.copy() for pos, waiters in batch.marks.items()}
        batch.graph = copy.deepcopy(batch.graph)
    for index in ("waiters", "open_names", "unnamed"):
        setattr(new, index, {key: value.copy() for key, value in getattr(state, index).items()})
    new.tallies = {name: (good.copy(), bad.copy()) for name, (good, bad) in state.tallies.items()}
    new.runners = {key: _copy_slots(runner) for key, runner in state.runners.items()}
    new.shapes = [_copy_slots(shape) for shape in state.shapes]
    new.allocations = {key: copy.copy(allocation) for key, allocation in state.allocations.items()}
    new.groups = copy.deepcopy(state.groups)
    new.shares = {share: hours.copy() for share, hours in state.shares.items()}
    new.starts = copy.deepcopy(state.starts)
    new.soft = _copy_soft(state.soft)
    new.ledger = _copy_flat(state.ledger)
    new.ledger.view = Free(new.ledger)
    new.ledger.gpus = {node: shares.copy() for node, shares in state.ledger.gpus.items()}
    new.census = state.census.copy()
    return new


def _copy_soft(soft: Soft) -> Soft:
    new: Soft = _copy_flat(soft)
    new.contacts = {key: _copy_slots(contact) for key, contact in soft.contacts.items()}
    new.idle, new.quiet = soft.idle.copy(), soft.quiet.copy()
    new.weather = _copy_flat(soft.weather)
    new.weather.sites = {key: copy.copy(site) for key, site in soft.weather.sites.items()}
    new.facts = soft.facts.copy()
    new.waits = {key: replace(waits, since=waits.since.copy()) for key, waits in soft.waits.items()}
    new.planning = _copy_flat(soft.planning)
    new.planning.queues = soft.planning.queues.copy()
    new.planning.shapes = {key: copy.copy(memo) for key, memo in soft.planning.shapes.items()}
    new.planning.short = {key: pairs.copy() for key, pairs in soft.planning.short.items()}
    new.planning.enough = {}
    new.planning.places, new.planning.changed = None, copy.copy(soft.planning.changed)
    new.planning.unasked = None
    for part in ("shapes", "runners", "limits", "groups", "quicker", "slots"):
        setattr(new.planning.changed, part, getattr(soft.planning.changed, part).copy())
    return new


def _copy_flat(old: Any) -> Any:
    new = copy.copy(old)
    for name, value in old.__dict__.items():
        if type(value) in _FLAT and name not in _SHARED:
            new.__dict__[name] = value.copy()
    return new


def _copy_slots(old: Any) -> Any:
    kind = type(old)
    new = object.__new__(kind)
    for name in kind.__slots__:
        value = getattr(old, name)
        sort = type(value)
        setattr(new, name, value.copy() if sort in _FLAT else value[:] if sort is array else value)
    return new
