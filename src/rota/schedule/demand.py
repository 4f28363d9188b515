"""Demand: how large the allocations are that jobs are asked for with, how long, and how many jobs each takes.

Where they are asked for is chosen at the queue level of the loop (`schedule/queues.py`).
"""

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from rota.model.needs import Amounts, Needs
from rota.model.site import SiteFacts
from rota.schedule.view import Place

__all__ = ["ANY", "Asked", "allocation_time", "asked_amounts", "grouped", "jobs_in", "reservation_group"]

MIB = 1 << 20
PAD = 100 * MIB
PAD_BELOW = 924 * MIB
TIME_STEP_S = 1800
ANY = -1
"""Stands for any shape: whole nodes are for all shapes."""


class Asked(Struct):
    """A number of further allocations to ask of a site."""

    site: str
    queue: str | None
    """None: the site's own."""
    shape_id: int
    """ANY: whole nodes, for whatever jobs there are."""
    count: int
    amounts: Amounts
    """Of each node."""
    time_s: int | None
    nodes: int = 1
    """How many nodes each has."""


def grouped(needs: Needs) -> Needs:
    """The needs as a provider is asked for them: small memory padded, time rounded up, so that many jobs ask alike."""
    memory = needs.memory
    if memory is not None and memory < PAD_BELOW:
        memory += PAD
    time_s = needs.time_s
    if time_s is not None:
        time_s = -(-time_s // TIME_STEP_S) * TIME_STEP_S
    return replace(needs, memory=memory, time_s=time_s)


def reservation_group(needs: Needs, limits: Sequence[str] = ()) -> str:
    """The name of a shape in lists: memory in MiB, minutes, cores, disk in GiB, and its limits."""
    asked = grouped(needs)
    memory, minutes = (asked.memory or 0) // MIB, (asked.time_s or 0) // 60
    out = f"{memory}:{minutes}:{asked.cores / 1000:g}:{-(-(asked.disk or 0) // (1 << 30))}"
    return out + (f"~{','.join(sorted(limits))}" if limits else "")


def allocation_time(needs: Needs, facts: SiteFacts, most: int | None, usual: int | None = None) -> int | None:
    """Seconds that an allocation for jobs with these needs is asked for, at the most `most`; None: it does not end.

    One for a job of which no time is known gets what is usual there: asking for that changes nothing, but is known.

    A job starts some time after its allocation, and is told of the end before it comes: the time between must do.
    """
    asked, needed = grouped(needs).time_s or facts.job_s, needs.time_s or facts.job_s
    if asked is not None and needed is not None:
        asked = max(asked, needed + facts.spare_s)
    if facts.mode == "direct":
        time_s = asked if asked is not None else usual
    elif facts.allocation_s is None:
        time_s = asked if most is not None else None
    else:
        time_s = max(facts.allocation_s, asked or 0)
    return time_s if most is None or time_s is None else min(time_s, most)


def jobs_in(needs: Needs, place: Place) -> int:
    """How many jobs with these needs an allocation at a queue takes at once."""
    if place.site is None or not place.site.whole or place.site.mode == "direct" or needs.together:
        return 1
    return max(1, _of_a_node(needs.amounts(), place.site).times_in(_node(place)))


def asked_amounts(needs: Needs, place: Place) -> Amounts:
    """What each node of an allocation for jobs with these needs is asked to have: where nodes are whole, all of one."""
    if place.site is not None and place.site.whole:
        return _node(place)
    asked = grouped(needs).amounts()
    return asked if place.site is None else _of_a_node(asked, place.site)


def _of_a_node(amounts: Amounts, site: SiteFacts) -> Amounts:
    """Amounts without what a site has once for all its nodes."""
    if not amounts.named or not site.shared:
        return amounts
    shared = dict(site.shared)
    return replace(amounts, named=tuple([pair for pair in amounts.named if pair[0] not in shared]))


def _node(place: Place) -> Amounts:
    """The largest node of a queue."""
    assert place.site is not None
    return place.site.node if place.queue is None else place.queue.node
