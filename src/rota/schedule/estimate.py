"""Learning: what jobs of a group really use, and what to ask for next time.

A group's samples are a multiset, so a thousand equal runs weigh a thousand times; the largest five (or five in a
hundred) are left out, so that one outlier does not set the size of all. Nothing is changed by less than three samples.
To ask for more after a job exceeded its needs is escalation. All figures are integers: bytes, seconds.
"""

import math
from bisect import bisect
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from rota.model.amounts import format_duration, show_size
from rota.model.needs import Amounts, Needs
from rota.schedule.broker.scouts import DEFAULTS, MARGIN, percentile

__all__ = [
    "Found", "Group", "Samples", "asked_for", "escalate_disk", "escalate_memory", "escalate_time", "learned_words",
    "recommend",
]  # fmt: skip

Found = tuple[int | None, int | None, int | None]
"""(memory, disk, seconds) to ask for; None where nothing is known."""

MIB = 1 << 20
SIZE_UNIT = 100 * MIB
"""Memory and disk are asked for in steps of this."""
TIME_UNIT = 1
LEAST = 3
"""Samples of a resource that there must be before anything is asked for by them."""
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


class Samples(Struct, array_like=True):
    """Samples of one resource in one group."""

    values: list[int] = field(default_factory=list)
    """The samples that are kept, sorted."""
    seen: int = 0
    """How many there have been."""

    def add(self, value: int, count: int = 1) -> None:
        """Add a sample that was seen `count` times."""
        at = bisect(self.values, value)
        self.values[at:at] = [value] * min(count, KEPT)
        self.seen += count
        while len(self.values) > KEPT:
            self.values = self.values[::-2][::-1]  # every other one from the top, so that the largest stays


class Group(Struct, array_like=True):
    """Samples of one group; `found` is what to ask for, given these."""

    memory: Samples = field(default_factory=Samples)
    disk: Samples = field(default_factory=Samples)
    time_s: Samples = field(default_factory=Samples)

    def found(self) -> Found:
        """What to ask for; None where too little is known."""
        return (
            recommend(self.memory.values, SIZE_UNIT) if self.memory.seen >= LEAST else None,
            recommend(self.disk.values, SIZE_UNIT) if self.disk.seen >= LEAST else None,
            recommend(self.time_s.values, TIME_UNIT) if self.time_s.seen >= LEAST else None,
        )

    def scouted(self, thresholds: Mapping[str, Any]) -> Found:
        """What jobs ask for that wait for scouts, by the rules for these: a rank of what was used, and a margin."""
        get = {**DEFAULTS, **thresholds}
        memory, disk, time_s = self.memory.values, self.disk.values, self.time_s.values
        margin, least = 1 + float(get["SCOUT_RAMCOUNT_MARGIN"]) / 100, int(get["SCOUT_RAMCOUNT_MIN"]) * MIB
        size = max(least, percentile(memory, float(get["SCOUT_RAMCOUNT_RANK"])) * margin) if memory else 0
        return (
            _up(size, SIZE_UNIT) if memory else None,
            _up(disk[-1], SIZE_UNIT) if disk else None,
            _up(percentile(time_s, float(get["SCOUT_CPUTIME_RANK"])) * MARGIN, TIME_UNIT) if time_s else None,
        )

    def seen(self) -> tuple[int, int, int]:
        """How many samples there have been of memory, disk and time."""
        return self.memory.seen, self.disk.seen, self.time_s.seen


def _up(value: float, unit: int) -> int:
    return max(unit, math.ceil(value / unit) * unit)


def asked_for(needs: Needs, found: Found, override: str, level: int, most: Amounts | None, ends: bool = False) -> Needs:
    """The needs to ask for, given those of the user and what was learned (`found`).

    `override` says when the user's own figure is used instead: `never`, `higher` (if it is the higher one) or
    `always`. After an escalation what was learned may only raise a figure. Nothing learned asks for more than the
    largest node has (`most`), nor for more time than the job gets before it is ended (`ends`: at the time given).
    """
    memory, disk, time_s = found
    if most is not None:
        memory = None if memory is None else min(memory, most.memory) or None
        disk = None if disk is None else min(disk, most.disk) or None
    if ends and time_s is not None and needs.time_s is not None:
        time_s = min(time_s, needs.time_s)
    either = "higher" if level and override == "never" else override
    changes = {}
    for name, learned in (("memory", memory), ("disk", disk), ("time_s", time_s)):
        given = getattr(needs, name)
        if learned is None or learned == given:
            continue
        if given is None or either == "never" or (either == "higher" and learned > given):
            changes[name] = learned
    return replace(needs, **changes) if changes else needs


def learned_words(given: Needs, asked: Needs, found: Found, seen: tuple[int, int, int]) -> list[str]:
    """What was learned beside what the user said, and what the job gets: a line for each figure that is known."""
    rows = zip(("memory", "disk", "time_s"), ("memory", "disk", "time"), found, seen, strict=True)
    out = []
    for name, word, learned, count in rows:
        if learned is not None:
            show = format_duration if name == "time_s" else show_size
            said, gets = getattr(given, name), getattr(asked, name)
            figure = "nothing" if said is None else show(said)
            end = "nothing" if gets is None else show(gets)
            out.append(f"{word}: asked {figure}, learned {show(learned)} from {count:,} jobs, gets {end}")
    return out


def escalate_memory(peak: int, current: int) -> int:
    """The memory for a job that used more than it had.

    Twice its peak (1.3 times if large), a step of 1000 MiB at least, never less than now.
    """
    grown = peak * 2 if peak <= 8192 * MIB else peak * 13 // 10
    grown = max(grown, peak + 1000 * MIB)
    return max(current, -(-grown // SIZE_UNIT) * SIZE_UNIT)


def escalate_time(wall_s: int, current_s: int) -> int:
    """The time for a job that took longer than it had: an hour more than it took."""
    return max(current_s, wall_s + 3600)


def escalate_disk(peak: int, current: int) -> int:
    """The disk for a job that used more than it had: 1.3 times its peak."""
    return max(current, -(-(peak * 13 // 10) // SIZE_UNIT) * SIZE_UNIT)
