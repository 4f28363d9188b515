"""Earliest: names with a time each, of which the first in time is always known."""

import heapq
import math
from typing import Any, Generic, TypeVar

__all__ = ["Earliest"]

Name = TypeVar("Name", bound=Any)
"""What can be compared and hashed."""


class Earliest(Generic[Name]):
    """Names and their times. A name whose time is infinite is kept, and never due."""

    __slots__ = ("_heap", "times")

    def __init__(self) -> None:
        self.times: dict[Name, float] = {}
        self._heap: list[tuple[float, Name]] = []
        """(time, name); what `times` does not say any more is left until it comes first, but never more than half."""

    def set(self, name: Name, time: float) -> None:
        """Give a name its time."""
        if self.times.get(name) != time:
            self.times[name] = time
            if time < math.inf:
                heapq.heappush(self._heap, (time, name))
            self._trim()

    def drop(self, name: Name) -> None:
        """Forget a name, if it is there."""
        if self.times.pop(name, None) is not None:
            self._trim()

    def clear(self) -> None:
        """Forget all names."""
        self.times.clear()
        self._heap.clear()

    def copy(self) -> "Earliest[Name]":
        """One that can go another way."""
        new = Earliest[Name]()
        new.times, new._heap = self.times.copy(), self._heap.copy()
        return new

    @property
    def first(self) -> float:
        """The earliest time; infinite if there is none."""
        return self._heap[0][0] if self._heap else math.inf

    def due(self, time: float) -> list[Name]:
        """The names whose time is not later than this, earliest first."""
        found: list[tuple[float, Name]] = []
        heap, times = self._heap, self.times
        while heap and heap[0][0] <= time:
            entry = heapq.heappop(heap)
            if times.get(entry[1]) == entry[0] and (not found or found[-1] != entry):
                found.append(entry)
        for entry in found:
            heapq.heappush(heap, entry)
        return [name for _, name in found]

    def _trim(self) -> None:
        """Keep the first entry of the heap a true one, and the heap small."""
        heap, times = self._heap, self.times
        if len(heap) > 2 * len(times) + 8:
            heap[:] = [(time, name) for name, time in times.items() if time < math.inf]
            heapq.heapify(heap)
        while heap and times.get(heap[0][1]) != heap[0][0]:
            heapq.heappop(heap)
