"""Learning from what jobs used: samples for their group, and larger needs for a job that exceeded its own."""

from collections.abc import Iterator

from msgspec.structs import replace

from rota.core.plan.asked import largest_node, longest_time
from rota.core.state import BatchState, State
from rota.core.stimuli import Ended
from rota.model import events as ev
from rota.model.amounts import format_duration, show_size
from rota.model.batch import MAX_TEMPLATES, Template
from rota.model.needs import Amounts
from rota.model.slot import Slot
from rota.schedule.estimate import MIB, escalate_disk, escalate_memory, escalate_time

__all__ = ["NO_TIME", "Sampling", "escalated"]

_NOT_ITS_SIZE = (
    "killed", "runner-stopped", "time", "disk-full", "cwd", "output", "not-found", "not-executable", "start",
    "container",
)  # fmt: skip
"""Reasons that have nothing to do with how much memory a job used."""
_Counts = dict[tuple[str, int], int]
"""(group, value) → how often."""


class Sampling:
    """The samples of one report, gathered into one event per group."""

    def __init__(self, capacity: Amounts) -> None:
        self._most = capacity.memory or None
        self._memory: _Counts = {}
        self._disk: _Counts = {}
        self._time_s: _Counts = {}

    def add(self, group: str, memory: int | None = None, wall_ms: int = 0, disk: int | None = None) -> None:
        """Add what a job of a group used. More memory than the node has cannot be."""
        if memory:
            if self._most is not None and memory > self._most:
                memory = self._most
            key = (group, -(-memory // MIB) * MIB)
            self._memory[key] = self._memory.get(key, 0) + 1
        if wall_ms:
            key = (group, -(-wall_ms // 1000))
            self._time_s[key] = self._time_s.get(key, 0) + 1
        if disk:
            key = (group, -(-disk // MIB) * MIB)
            self._disk[key] = self._disk.get(key, 0) + 1

    def events(self) -> Iterator[ev.Learned]:
        """An event for each group."""
        events: dict[str, ev.Learned] = {}
        for field, counts in (("memory", self._memory), ("disk", self._disk), ("time_s", self._time_s)):
            for (group, value), count in counts.items():
                event = events.setdefault(group, ev.Learned(group, [], [], []))
                getattr(event, field).extend((value, count))
        yield from events.values()


NO_TIME = "it asked for no time"
SLACK_MS = 1000
"""By so much a job may seem to have ended before its time was over."""


def escalated(
    state: State, batch: BatchState, pos: int, slot: Slot, row: Ended, wall_ms: int
) -> tuple[Template, str] | None:
    """(template for the next try of a job that exceeded its needs, why in words); None: it did not exceed them."""
    template = batch.template(pos)
    if template.override == "always" or len(batch.templates) >= MAX_TEMPLATES:
        return None
    needs = template.needs
    if row.reason == "time" and needs.time_s is not None:
        if wall_ms < needs.time_s * 1000 - SLACK_MS:
            return None  # it was its allocation whose time was over
        time_s = -(-escalate_time(-(-wall_ms // 1000), needs.time_s) // 60) * 60
        why = f"took more than {format_duration(needs.time_s)}: the next try gets {format_duration(time_s)}"
        return _raised(template, "time_s", time_s), why
    if row.reason == "time":
        return _first_time(state, template, wall_ms)
    if row.reason == "disk-full" and row.peak_disk:
        disk = escalate_disk(row.peak_disk, needs.disk or 0)
        why = f"ran out of disk after {show_size(row.peak_disk)}: the next try asks for {show_size(disk)}"
        return (_raised(template, "disk", disk), why) if disk > (needs.disk or 0) else None
    had, peak = slot.amounts.memory, row.peak_memory or 0
    ran_out = row.reason in ("oom", "memory")
    if not ran_out and (not had or peak <= had or row.reason in _NOT_ITS_SIZE):
        return None
    memory = escalate_memory(max(peak, had) if ran_out else peak, had)
    most = largest_node(state, needs)
    if most is not None and most.memory:
        memory = min(memory, most.memory)
    if memory <= had:
        return None
    used = f"used {show_size(peak)}" if peak > had else "ran out of memory"
    used += f", had {show_size(had)}" if had else ""
    return _raised(template, "memory", memory), f"{used}: the next try asks for {show_size(memory)}"


def _first_time(state: State, template: Template, wall_ms: int) -> tuple[Template, str] | None:
    """What `escalated` says of a job that asked for no time and ran out of its allocation's."""
    wall_s = -(-wall_ms // 1000)
    time_s = -(-escalate_time(wall_s, 0) // 60) * 60
    most = longest_time(state, template.needs)
    if most is not None:
        time_s = min(time_s, most)
    if not wall_s or time_s <= wall_s + SLACK_MS // 1000:
        return None
    why = f"{NO_TIME}: the next try asks for {format_duration(time_s)}"
    return _raised(template, "time_s", time_s).with_time_ends(), why


def _raised(template: Template, what: str, value: int) -> Template:
    return replace(template, needs=replace(template.needs, **{what: value}), level=template.level + 1)
