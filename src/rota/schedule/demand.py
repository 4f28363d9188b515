"""Demand: which allocations a site should have, given what is ready."""

from collections.abc import Sequence

from msgspec import Struct

from rota.model.needs import Amounts, Needs, show_amount
from rota.schedule.view import Want

__all__ = ["SiteView", "impossible", "wanted"]


class SiteView(Struct):
    """A site as the demand sees it."""

    name: str
    node: Amounts
    """The largest node that it can give."""
    tags: tuple[str, ...]
    live: int
    """Allocations not yet settled."""
    most: int
    """Allocations that it takes at once."""
    closed_until: float
    """Monotonic time before which nothing is asked of it (after a failure)."""


def wanted(sites: Sequence[SiteView], wants: Sequence[Want], mono: float) -> list[str]:
    """Names of the sites at which one more allocation is wanted now."""
    out = []
    for site in sites:
        open_now = site.live < site.most and site.closed_until <= mono
        if open_now and any(_suits(want.shape.needs, site) for want in wants):
            out.append(site.name)
    return out


def _suits(needs: Needs, site: SiteView) -> bool:
    return (
        needs.site in (None, site.name)
        and needs.nodes == 1
        and not needs.amounts().lacking(site.node)
        and all(tag in site.tags for tag in needs.tags)
    )


def impossible(needs: Needs, sites: Sequence[SiteView]) -> str | None:
    """Why no site could ever run this, with what there is; None if one could."""
    reasons = []
    for site in sites:
        if needs.site not in (None, site.name):
            continue
        lacking = needs.amounts().lacking(site.node)
        missing = [tag for tag in needs.tags if tag not in site.tags]
        if needs.nodes > 1:
            reasons.append(f"{site.name} gives 1 node, {needs.nodes} are asked for")
        elif lacking:
            reasons.extend(
                f"{site.name} has {show_amount(what, has)}, {show_amount(what, asked)} are asked for"
                for what, asked, has in lacking
            )
        elif missing:
            reasons.append(f"{site.name} has no tag {', '.join(missing)}")
        else:
            return None
    if not reasons:
        known = ", ".join(site.name for site in sites) or "none"
        return f"there is no site '{needs.site}'; the sites are: {known}" if needs.site else "no site is configured"
    return "; ".join(reasons)
