"""Orders: whose jobs go first. One key of the policy, used wherever jobs are put into an order.

Keys do not change as time passes, so that nothing has to be put into order again for it.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from rota.schedule.view import View, Want

__all__ = ["BUILT_IN", "Order"]

POINT_S = 3600
"""Seconds of waiting that are worth one point of priority, where waiting counts."""


class Order(NamedTuple):
    """A key function: the want with the least key goes first."""

    key: Callable[[Want, View], tuple[Any, ...]]
    reads: tuple[str, ...] = ()
    """The facts that it looks at: wants are put into order again once a key of them changes."""
    unit: str = "shape"
    """What of a shape is ordered as a whole: `shape`, all of it (within it, by priority and then what came first);
    `priority`: jobs of the same priority; `share`: jobs of one submitter (or name, or account: `Policy.share_by`)."""


def priority(want: Want, view: View) -> tuple[Any, ...]:
    """Highest priority first, then what was submitted first."""
    return (-want.priority, want.first, want.shape_id)


def fair_share(want: Want, view: View) -> tuple[Any, ...]:
    """Whoever used least so far goes first, then by priority.

    Use is counted per `Shape.share`, so a key that changes moves all shapes of one submitter (or name, or account).
    """
    used = view.facts["shares"].get((want.shape.policy, want.shape.share), NOTHING_USED)
    return (used, -want.priority, want.first, want.shape_id)


def global_shares(want: Want, view: View) -> tuple[Any, ...]:
    """By the tree of shares: that one goes first which has least of what it should have; then ageing.

    The fact is the rank of the share, from 0; jobs of no share come last.
    """
    rank = view.facts["shares"].get((want.shape.policy, want.shape.share), LAST)
    return (rank, want.since - POINT_S * want.priority, want.first, want.shape_id)


def ageing(want: Want, view: View) -> tuple[Any, ...]:
    """Priority grows with waiting: a point for every hour.

    Of two jobs that wait, both grow alike; so the time of submission, less an hour per point, orders them for good.
    """
    return (want.since - POINT_S * want.priority, want.first, want.shape_id)


def arrival(want: Want, view: View) -> tuple[Any, ...]:
    """What was submitted first, whatever its priority."""
    return (want.first, want.shape_id)


NOTHING_USED = float("-inf")
LAST = float("inf")

BUILT_IN: dict[str, Order] = {
    "priority": Order(priority),
    "fair_share": Order(fair_share, ("shares",), "share"),
    "shares": Order(global_shares, ("shares",), "share"),
    "ageing": Order(ageing, (), "priority"),
    "arrival": Order(arrival, (), "priority"),
}
"""Name → order; those of others are entered here too."""
