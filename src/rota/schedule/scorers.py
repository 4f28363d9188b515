"""Scorers: how good a place is for a shape. Greater is better, 1.0 is neutral; to forbid, use a filter."""

from collections.abc import Callable
from typing import NamedTuple

from rota.model.shape import Shape
from rota.schedule.view import NODE, QUEUE, Place, View

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


def snug(shape: Shape, place: Place, view: View) -> float:
    """Smaller nodes first: a job that needs little leaves the large ones to those that need much."""
    node = place.queue.node if place.queue is not None else place.site.node if place.site is not None else None
    node = node or place.location.capacity
    if node is None or not node.cores or not node.memory:
        return 1.0
    asked = shape.needs.amounts()
    return 1.0 + max(min(1.0, asked.cores / node.cores), min(1.0, asked.memory / node.memory))


def expected_wait(shape: Shape, place: Place, view: View) -> float:
    """Queues first where allocations start sooner, as far as that is known."""
    queue = place.queue.name if place.queue is not None else ""
    stats = view.facts["stats"].get((place.location.site, queue))
    wait_s = None if stats is None else stats.wait_s
    return 1.0 if wait_s is None else 2.0 * HALF_WAIT_S / (HALF_WAIT_S + max(0.0, wait_s))


HALF_WAIT_S = 600
"""A queue where one waits so long is neutral; without any wait it is twice as good."""

BUILT_IN: dict[str, Scorer] = {
    "pack": Scorer(pack, place_only=True),
    "spread": Scorer(spread, place_only=True),
    "snug": Scorer(snug, (NODE, QUEUE)),
    "expected_wait": Scorer(expected_wait, (QUEUE,), ("stats",)),
}
"""Name → scorer; those of others are entered here too."""
