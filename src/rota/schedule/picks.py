"""Picks: which of the places that are left, each with its score, gets the next one."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

__all__ = ["BUILT_IN", "Pick"]


class Pick(NamedTuple):
    """A way to choose: (scores, how many each was given just now, a number in [0, 1) to draw) → index."""

    choose: Callable[[Sequence[float], Sequence[int], Callable[[], float]], int]
    singly: bool = True
    """Whether each slot or allocation is chosen anew; else the chosen place is filled first."""
    waiting: bool = False
    """Whether the allocations that wait at a queue already count as given."""


def best(scores: Sequence[float], given: Sequence[int], draw: Callable[[], float]) -> int:
    """The highest score; of equal ones the first."""
    return max(range(len(scores)), key=scores.__getitem__)


def any_best(scores: Sequence[float], given: Sequence[int], draw: Callable[[], float]) -> int:
    """The highest score; of equal ones any, by chance."""
    most = max(scores)
    equal = [number for number, score in enumerate(scores) if score == most]
    return equal[int(draw() * len(equal))] if len(equal) > 1 else equal[0]


def weighted(scores: Sequence[float], given: Sequence[int], draw: Callable[[], float]) -> int:
    """By chance in proportion to the scores, less the more a place was given just now."""
    weights = [max(score, 0.0) / (1 + count) for score, count in zip(scores, given, strict=True)]
    at = draw() * sum(weights)
    for number, weight in enumerate(weights):
        at -= weight
        if at < 0:
            return number
    return best(scores, given, draw)


def round_robin(scores: Sequence[float], given: Sequence[int], draw: Callable[[], float]) -> int:
    """The one that was given least; of equal ones that with the highest score, and then the first."""
    return min(range(len(given)), key=lambda number: (given[number], -scores[number]))


def random(scores: Sequence[float], given: Sequence[int], draw: Callable[[], float]) -> int:
    """Any, by chance."""
    return int(draw() * len(scores))


BUILT_IN: dict[str, Pick] = {
    "best": Pick(best, singly=False),
    "any_best": Pick(any_best),
    "weighted": Pick(weighted),
    "round_robin": Pick(round_robin),
    "random": Pick(random),
}
"""Name → pick; those of others are entered here too."""
