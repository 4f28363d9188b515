"""Learning: what jobs of a group really use, and what to ask for next time.

A group's samples are a multiset, so a thousand equal runs weigh a thousand times; the largest five (or five in a
hundred) are left out, so that one outlier does not set the size of all. Asking for more after a job exceeded what it
had is escalation. All figures are integers: bytes, seconds.
"""

from bisect import insort
from collections.abc import Sequence

from msgspec import Struct, field

__all__ = ["MEMORY_UNIT", "TIME_UNIT", "Samples", "escalate_disk", "escalate_memory", "escalate_time", "recommend"]

MIB = 1 << 20
MEMORY_UNIT = 100 * MIB
"""Memory and disk are asked for in steps of this."""
TIME_UNIT = 1
KEPT = 1000
"""Samples kept per group and resource; beyond that the distribution is thinned evenly."""


def recommend(values: Sequence[int], unit: int) -> int | None:
    """What to ask for, given the sorted samples; None if nothing is known."""
    count = len(values)
    if count == 0:
        return None
    largest = values[-1]
    left_out = 5 if count <= 100 else count // 20
    chosen = values[count - 1 - left_out] if count > left_out else largest
    if chosen == 0:
        chosen = largest
    if chosen == 0:
        return None
    if largest - chosen < unit:
        chosen = largest
    return max(unit, -(-chosen // unit) * unit)


class Samples(Struct):
    """What was seen of one resource in one group."""

    values: list[int] = field(default_factory=list)
    """Sorted."""
    seen: int = 0

    def add(self, value: int, most: int | None = None) -> None:
        """Take a sample; one beyond `most` (what the node has) is taken as that much."""
        value = max(0, value if most is None else min(value, most))
        insort(self.values, value)
        self.seen += 1
        if len(self.values) > KEPT:
            self.values = self.values[::-2][::-1]  # every other one from the top, so that the largest stays


def escalate_memory(peak: int, current: int) -> int:
    """After a job used more memory than it had: twice its peak (1.3 times if large), 1000 MiB more at least."""
    grown = peak * 2 if peak <= 8192 * MIB else peak * 13 // 10
    grown = max(grown, peak + 1000 * MIB)
    return max(current, -(-grown // MEMORY_UNIT) * MEMORY_UNIT)


def escalate_time(wall_s: int, current_s: int) -> int:
    """After a job took longer than it had: an hour more than it took."""
    return max(current_s, wall_s + 3600)


def escalate_disk(peak: int, current: int) -> int:
    """After a job used more disk than it had: 1.3 times its peak."""
    return max(current, -(-(peak * 13 // 10) // MEMORY_UNIT) * MEMORY_UNIT)
