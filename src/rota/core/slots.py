"""Slot names: what one slot on a runner is charged for, so that giving it back frees exactly what was taken.

`SHAPE:MILLICORES:MEMORY:DISK`: what is asked for a shape changes as rota learns, what a slot has does not.
"""

from functools import lru_cache

from rota.model.needs import Amounts, Needs
from rota.model.shape import Shape

__all__ = ["shape_of", "slot_amounts", "slot_cores", "slot_memory", "slot_name"]


def slot_name(shape: int, cores: int, needs: Needs) -> str:
    """The name of a slot for a shape, with these cores and needs."""
    return f"{shape}:{cores}:{needs.memory or 0}:{needs.disk or 0}"


def shape_of(slot: str) -> int:
    """The shape that a slot is for."""
    return int(slot.partition(":")[0])


@lru_cache(4096)
def slot_cores(slot: str) -> int:
    """The millicores of a slot."""
    return int(slot.split(":")[1])


def slot_memory(slot: str) -> int:
    """The memory of a slot; 0: none was asked for."""
    parts = slot.split(":")
    return int(parts[2]) if len(parts) > 2 else 0


def slot_amounts(slot: str, shape: Shape) -> Amounts:
    """What a slot is charged for. Slots of older versions have only the shape and the cores in their names."""
    parts = slot.split(":")
    if len(parts) == 2:
        return shape.needs.amounts(int(parts[1]))
    return Amounts(int(parts[1]), int(parts[2]), int(parts[3]), shape.needs.gpus, shape.needs.named)
