"""Slots: reserved places on a node, through which jobs of one shape run.

What is asked for a shape changes as rota learns, what a slot has does not: giving it back frees exactly what was taken.
"""

from functools import lru_cache

from msgspec import Struct

from rota.model.needs import Amounts, Needs

__all__ = ["Slot", "parse_slot", "slot_for"]

_NEEDS = Needs()


class Slot(Struct, frozen=True, order=True, array_like=True, cache_hash=True):
    """What one slot is for, and what it is charged for. Equal slots of a runner are counted, not told apart."""

    shape: int
    """Number of the shape."""
    amounts: Amounts
    gpus: tuple[int, ...] = ()
    """Which gpus of its node it has, by their numbers there."""

    @property
    def text(self) -> str:
        """Its name on the wire: `SHAPE:MILLICORES:MEMORY:DISK`, and `:GPU,GPU` if it has any."""
        return _text(self)


@lru_cache(4096)
def _text(slot: Slot) -> str:
    amounts = slot.amounts
    gpus = ":" + ",".join(map(str, slot.gpus)) if slot.gpus else ""
    return f"{slot.shape}:{amounts.cores}:{amounts.memory}:{amounts.disk}{gpus}"


def slot_for(shape: int, cores: int, needs: Needs, gpus: tuple[int, ...] = ()) -> Slot:
    """A slot for a shape, with these cores and needs."""
    return Slot(shape, needs.amounts(cores), gpus)


@lru_cache(4096)
def parse_slot(text: str, needs: Needs = _NEEDS, gpus: tuple[int, ...] = ()) -> Slot:
    """A slot from its name, which tells neither gpus nor named resources: these are those of the needs.

    Slots of the first versions have only the shape and the cores in their names.
    """
    shape, cores, *rest = text.split(":")
    if not rest:
        return slot_for(int(shape), int(cores), needs, gpus)
    memory, disk = int(rest[0]), int(rest[1])
    if len(rest) > 2:
        gpus = tuple(map(int, rest[2].split(",")))
    return Slot(int(shape), Amounts(int(cores), memory, disk, needs.gpus, needs.named, needs.gpu_share), gpus)
