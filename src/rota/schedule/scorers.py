"""Scorers: how good a place is for a shape. Greater is better, 1.0 is neutral; to forbid, use a filter."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from rota.model.shape import Shape
from rota.schedule import data
from rota.schedule.view import NODE, QUEUE, Place, View

__all__ = ["BUILT_IN", "Scorer", "Weighed", "at_level", "score_of"]


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


def least_loaded(shape: Shape, place: Place, view: View) -> float:
    """By what is scarcest at a place: the greater the free part of it, the better."""
    capacity = place.location.capacity
    if capacity is None:
        return 1.0
    free = view.ledger.free(place.location.id)
    have = dict(free.named)
    pairs = [(free.cores, capacity.cores), (free.memory, capacity.memory), (free.disk, capacity.disk)]
    pairs += [(free.gpus, capacity.gpus), *((have.get(name, 0), count) for name, count in capacity.named)]
    return 1.0 + max(0.0, min([left / most for left, most in pairs if most], default=0.0))


def snug(shape: Shape, place: Place, view: View) -> float:
    """Smaller nodes first: a job that needs little leaves the large ones to those that need much."""
    node = place.queue.node if place.queue is not None else place.site.node if place.site is not None else None
    node = node or place.location.capacity
    if node is None or not node.cores or not node.memory:
        return 1.0
    asked = shape.needs.amounts()
    return 1.0 + max(min(1.0, asked.cores / node.cores), min(1.0, asked.memory / node.memory))


def expected_wait(shape: Shape, place: Place, view: View) -> float:
    """Queues where allocations start soon first; what is not known yet is neutral, and so is a minute.

    Servers are made on demand, whatever their size: the cheapest that will do comes first.
    """
    if place.site is not None and place.site.cloud:
        return 1.0
    return 1.0 / (1.0 + max(0.0, data.expected_wait_s(place, view) - NEUTRAL_S) / WAIT_S)


def own_queue(shape: Shape, place: Place, view: View) -> float:
    """The queue that a site uses by itself before its others, unless it keeps one waiting for very long."""
    return OWN if place.queue is None or place.queue.default else 1.0


NEUTRAL_S = 60.0
WAIT_S = 600.0
"""A queue that keeps one waiting so much longer is half as good."""
OWN = 8.0

BUILT_IN: dict[str, Scorer] = {
    "pack": Scorer(pack, place_only=True),
    "spread": Scorer(spread, place_only=True),
    "least_loaded": Scorer(least_loaded, place_only=True),
    "data_locality": Scorer(data.data_locality, (NODE, QUEUE), ("replicas",)),
    "most_bytes": Scorer(data.most_bytes, (NODE, QUEUE), ("replicas",)),
    "cheapest_transfer": Scorer(data.cheapest_transfer, (NODE, QUEUE), ("replicas", "bandwidth", "stats")),
    "snug": Scorer(snug, (NODE, QUEUE)),
    "expected_wait": Scorer(expected_wait, (QUEUE,), ("stats",), True),
    "own_queue": Scorer(own_queue, (QUEUE,), (), True),
}
"""Name → scorer; those of others are entered here too."""


Weighed = Sequence[tuple[Scorer, float]]
"""Scorers with their weights."""


def at_level(weights: Mapping[str, float], level: str) -> list[tuple[Scorer, float]]:
    """The scorers of a policy, by name, that are asked at a level."""
    found = [(BUILT_IN[name], weight) for name, weight in weights.items()]
    return [(scorer, weight) for scorer, weight in found if level in scorer.levels]


def score_of(weighed: Weighed, shape: Shape, place: Place, view: View) -> float:
    """How good a place is for a shape: the product of its scores, each to the power of its weight."""
    score = 1.0
    for scorer, weight in weighed:
        score *= scorer.score(shape, place, view) ** weight
    return score
