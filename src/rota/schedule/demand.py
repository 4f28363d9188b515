"""Demand: which allocations a site should have, given the jobs that are ready.

Counted per shape: the ready jobs of a shape less the allocations of its size that are on their way are asked for, or
taken back. A site that gives whole nodes is asked for nodes, whatever the shapes.
"""

from collections.abc import Mapping, Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from rota.model.amounts import format_duration
from rota.model.needs import Amounts, Needs, show_amount
from rota.model.site import SiteFacts
from rota.schedule.view import Want

__all__ = ["Asked", "SiteView", "allocation_time", "grouped", "impossible", "reservation_group", "surplus", "wanted"]

MIB = 1 << 20
PAD = 100 * MIB
PAD_BELOW = 924 * MIB
TIME_STEP_S = 1800
ANY = -1
"""Stands for any shape: whole nodes are for all shapes."""


class SiteView(Struct):
    """A site as the demand sees it."""

    name: str
    facts: SiteFacts
    closed_until: float = 0
    """Monotonic time before which nothing is asked of it (after a failure)."""
    live: int = 0
    """How many allocations are not yet settled."""
    coming: Mapping[int, int] = field(default_factory=dict)
    """Shape → how many allocations were asked for and do not serve yet."""
    refused: frozenset[int] = frozenset()
    """Shapes that the provider has just refused an allocation for."""


class Asked(Struct):
    """A number of further allocations to ask of a site."""

    site: str
    shape_id: int
    """ANY: whole nodes."""
    count: int
    amounts: Amounts
    time_s: int | None


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


def allocation_time(needs: Needs, facts: SiteFacts) -> int | None:
    """Seconds that an allocation for jobs with these needs is asked for; None: it does not end.

    A job starts some time after its allocation, and is told of the end before it comes: the time between must do.
    """
    asked, needed, most = grouped(needs).time_s or facts.job_s, needs.time_s or facts.job_s, facts.longest_s(needs)
    if asked is not None and needed is not None:
        asked = max(asked, needed + facts.spare_s)
    if facts.mode == "direct":
        time_s = asked
    elif facts.allocation_s is None:
        time_s = asked if most is not None else None
    else:
        time_s = max(facts.allocation_s, asked or 0)
    return time_s if most is None or time_s is None else min(time_s, most)


def wanted(sites: Sequence[SiteView], wants: Sequence[Want], mono: float) -> list[Asked]:
    """The allocations to ask for now, for jobs that are ready and have no place; most urgent first."""
    out: list[Asked] = []
    room = {site.name: site.facts.most - site.live for site in sites if site.closed_until <= mono}
    coming = {site.name: dict(site.coming) for site in sites}
    for want in wants:
        needs, left = want.shape.needs, want.ready
        for site in sites:
            if left <= 0:
                break
            if site.name not in room or want.shape_id in site.refused or unsuited(needs, site) is not None:
                continue
            amounts = site.facts.node if site.facts.whole else grouped(needs).amounts()
            per = max(1, needs.amounts().times_in(site.facts.node)) if site.facts.whole else 1
            key = ANY if site.facts.whole else want.shape_id
            on_its_way = min(-(-left // per), coming[site.name].get(key, 0))
            coming[site.name][key] = coming[site.name].get(key, 0) - on_its_way
            left -= on_its_way * per
            count = min(-(-left // per), room[site.name]) if left > 0 else 0
            if count > 0:
                room[site.name] -= count
                left -= count * per
                out.append(Asked(site.name, key, count, amounts, allocation_time(needs, site.facts)))
    return out


def surplus(sites: Sequence[SiteView], wants: Sequence[Want]) -> list[tuple[str, int, int]]:
    """(site, shape, count) of allocations on their way for which no jobs are ready any more."""
    ready = {want.shape_id: want.ready for want in wants}
    out = []
    for site in sites:
        if site.facts.whole or site.facts.mode == "direct":
            continue
        for shape_id, coming in site.coming.items():
            if coming > ready.get(shape_id, 0):
                out.append((site.name, shape_id, coming - ready.get(shape_id, 0)))
    return out


def unsuited(needs: Needs, site: SiteView) -> str | None:
    """Why a site can never run a job with these needs; None if it can."""
    if needs.site not in (None, site.name):
        return "asked to run elsewhere only"
    lacking = needs.amounts().lacking(site.facts.node)
    missing = [tag for tag in needs.tags if tag not in site.facts.tags]
    if needs.nodes > 1 and site.facts.mode != "direct":
        return f"{site.name} gives 1 node, {needs.nodes} are asked for"
    if lacking:
        return "; ".join(
            f"{site.name} has {show_amount(what, has)}, {show_amount(what, asked)} are asked for"
            for what, asked, has in lacking
        )
    if missing:
        return f"{site.name} has no tag {', '.join(missing)}"
    most = site.facts.longest_s(needs)
    if most is not None and (needs.time_s or 0) > most:
        where = f"{site.name} gives" if needs.queue is None else f"the queue {needs.queue} of {site.name} gives"
        return f"{where} {format_duration(most)} at most, {format_duration(needs.time_s or 0)} are asked for"
    return None


def impossible(needs: Needs, sites: Sequence[SiteView]) -> str | None:
    """Why no site could ever run a job with these needs, with what the sites have; None if one could."""
    reasons = []
    for site in sites:
        if needs.site not in (None, site.name):
            continue
        why = unsuited(needs, site)
        if why is None:
            return None
        reasons.append(why)
    if not reasons:
        known = ", ".join(site.name for site in sites) or "none"
        return f"there is no site '{needs.site}'; the sites are: {known}" if needs.site else "no site is configured"
    return "; ".join(reasons)
