"""Servers on demand: how many more of a size may be asked for within what its site may have, and why not."""

from collections.abc import Sequence

from rota.model.needs import Amounts, Needs, show_amount
from rota.model.site import MICRO, Bound, QueueFacts, SiteFacts

__all__ = ["lacking_words", "most_servers", "servers_within", "too_small", "use_of"]

MANY = 1 << 30


def use_of(site: SiteFacts, queue: QueueFacts, time_s: int | None) -> list[int]:
    """What a server of a size takes of each bound of its site, if it is asked for so long (None: as is usual)."""
    seconds = (site.allocation_s or 0 if time_s is None else time_s) + site.paid_s
    return [bound.use(queue.node, queue.price, seconds) for bound in site.bounds]


def servers_within(site: SiteFacts, queue: QueueFacts, left: Sequence[int], time_s: int | None = None) -> int:
    """How many servers of a size fit into what is left."""
    uses = use_of(site, queue, time_s)
    return min((have // use for have, use in zip(left, uses, strict=True) if use > 0), default=MANY)


def most_servers(site: SiteFacts, left: Sequence[int]) -> int:
    """How many servers of whatever size fit into what is left."""
    return max((servers_within(site, queue, left) for queue in site.queues if queue.up), default=0)


def lacking_words(
    site: SiteFacts, queue: QueueFacts, left: Sequence[int], time_s: int | None = None
) -> tuple[str, bool] | None:
    """Which bound has no room for one more server of a size for so long, and whether it never can have.

    With the numbers; None: all have.
    """
    found = None
    for bound, have, use in zip(site.bounds, left, use_of(site, queue, time_s), strict=True):
        if use > bound.most:
            return _words(bound, have, use), True
        if use > have and found is None:
            found = _words(bound, have, use), False
    return found


def _words(bound: Bound, have: int, use: int) -> str:
    have = max(0, have)
    if bound.what == "money":
        shown = f"{have / MICRO:.4g} of {bound.most / MICRO:.4g} left, {use / MICRO:.4g} asked"
    elif bound.what == "servers":
        shown = f"{have} of {bound.most} servers left, {use} asked"
    elif bound.what == "cores":
        shown = f"{have / 1000:g} of {bound.most / 1000:g} cores left, {use / 1000:g} asked"
    else:
        shown = f"{_size(have)} of {_size(bound.most)} memory left, {_size(use)} asked"
    return f"{bound.name}: {shown}"


def _size(count: int) -> str:
    return show_amount("memory", count).removesuffix(" memory")


def too_small(needs: Needs, site: SiteFacts) -> str | None:
    """What no size of a site has, with that of the largest: `no flavor has 512G memory; the largest has 240G`.

    None: one has each of it, or it is not a matter of size.
    """
    nodes = [queue.node for queue in site.queues]
    asked = needs.amounts()
    if not nodes:
        return None
    best = Amounts(*(max(getattr(node, word) for node in nodes) for word in ("cores", "memory", "disk", "gpus")))
    parts = [
        f"no flavor has {show_amount(what, count)}; the largest has {show_amount(what, has)}"
        for what, count, has in asked.lacking(best)
        if what in ("cores", "memory", "disk", "gpus")
    ]
    if parts:
        return "; ".join(parts)
    if any(not asked.lacking(node) for node in nodes):
        return None
    return f"no flavor has all of {needs.words()}: each of the {len(nodes)} lacks something"
