"""Scorers: how good a place is for a shape. Greater is better, 1.0 is neutral; to forbid, use a filter."""

from collections.abc import Callable
from typing import NamedTuple

from rota.model.shape import Shape
from rota.schedule.view import NODE, Place, View

__all__ = ["BUILT_IN", "Scorer"]


class Scorer(NamedTuple):
    """A measure of how good a place is for a shape."""

    score: Callable[[Shape, Place, View], float]
    levels: tuple[str, ...] = (NODE,)
    """The levels at which it is asked."""
    reads: tuple[str, ...] = ()
    """The facts that it looks at."""
    place_only: bool = False
    """Whether the shape does not matter: asked once per place."""


def pack(shape: Shape, place: Place, view: View) -> float:
    """Fuller places first, so that whole nodes stay free for large jobs."""
    capacity = place.location.capacity
    if capacity is None or not capacity.cores:
        return 1.0
    return 2.0 - view.ledger.free(place.location.id).cores / capacity.cores


def spread(shape: Shape, place: Place, view: View) -> float:
    """Emptier places first."""
    capacity = place.location.capacity
    if capacity is None or not capacity.cores:
        return 1.0
    return 1.0 + view.ledger.free(place.location.id).cores / capacity.cores


BUILT_IN: dict[str, Scorer] = {"pack": Scorer(pack, place_only=True), "spread": Scorer(spread, place_only=True)}
"""Name → scorer; those of others are entered here too."""
