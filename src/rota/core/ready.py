"""Queues of the jobs that are ready, one for each template of a batch, in order of position."""

import heapq

from rota.model.tables import PENDING

__all__ = ["ReadyQueue"]


class ReadyQueue:
    """Ranges of positions that may be PENDING, least first.

    It is an index, not the truth: an entry may be stale (held, killed, leased since), which `take` sees in the
    state bytes and skips. So leaving PENDING costs nothing here, and a job that comes back finds its old place,
    because positions are the order of submission.
    """

    __slots__ = ("_spans", "count", "listed")

    def __init__(self) -> None:
        self._spans: list[tuple[int, int]] = []
        self.count = 0
        """Jobs of this template that are PENDING: exact."""
        self.listed = False
        """True while the shape's heap of heads names this queue."""

    def push(self, low: int, high: int) -> None:
        """Positions low … high-1 became PENDING."""
        heapq.heappush(self._spans, (low, high))

    def take(self, wanted: int, states: bytearray) -> list[int]:
        """Up to `wanted` PENDING positions, as spans. The caller leases them in the same step."""
        out: list[int] = []
        spans = self._spans
        while wanted > 0 and spans:
            low, high = spans[0]
            if out and low < out[-1]:
                low = out[-1]  # an overlapping entry: what lies below was taken just now
            start = states.find(PENDING, low, high) if low < high else -1
            if start < 0:
                heapq.heappop(spans)
                continue
            end = min(high, start + wanted)
            if states.count(PENDING, start, end) != end - start:
                end = start + 1
                while end < high and states[end] == PENDING:
                    end += 1
            if end < high:
                heapq.heapreplace(spans, (end, high))
            else:
                heapq.heappop(spans)
            if out and out[-1] == start:
                out[-1] = end
            else:
                out += (start, end)
            wanted -= end - start
        return out
