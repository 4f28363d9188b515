"""Spans: stretches of positions of a batch, as a flat list of beginnings and ends."""

import re
from bisect import bisect_left

from rota.core.settled import AnyBatch

__all__ = ["spans_of", "without"]


def spans_of(batch: AnyBatch, pattern: re.Pattern[bytes], low: int = 0, high: int | None = None) -> list[int]:
    """Spans of the positions whose state bytes match a pattern."""
    out: list[int] = []
    for match in pattern.finditer(batch.states, low, batch.count if high is None else high):
        out += match.span()
    return out


def without(spans: list[int], holes: set[int]) -> list[int]:
    """The spans without these positions."""
    out: list[int] = []
    order = sorted(holes)
    for low, high in zip(spans[::2], spans[1::2], strict=True):
        start = low
        for hole in order[bisect_left(order, low) : bisect_left(order, high)]:
            if start < hole:
                out += (start, hole)
            start = hole + 1
        if start < high:
            out += (start, high)
    return out
