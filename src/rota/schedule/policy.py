"""Policies: a named bundle of order, filters, scorers, pick and relax."""

from collections.abc import Mapping, Sequence

from msgspec import Struct, field

from rota.model.errors import UsageError
from rota.schedule import filters, orders, picks, scorers

__all__ = ["DEFAULT", "Policy", "check_policy_names"]


class Policy(Struct, frozen=True, forbid_unknown_fields=True):
    """A policy as names only, so that it can be written in a configuration file and compared."""

    order: str = "priority"
    filters: Sequence[str] = ("site", "tags", "fits", "status", "until", "limits", "room")
    scorers: Mapping[str, float] = field(default_factory=lambda: {"pack": 1.0})
    pick: str = "best"
    relax: Sequence[str] = ()
    """Filters that are dropped, in this order, when no place is left."""


DEFAULT = Policy()


def check_policy_names(policy: Policy) -> None:
    """Raise UsageError for a name that does not exist, with those that do, and for relaxing what is not asked."""
    for what, names, known in (
        ("order", [policy.order], orders.BUILT_IN),
        ("filter", [*policy.filters, *policy.relax], filters.BUILT_IN),
        ("scorer", list(policy.scorers), scorers.BUILT_IN),
        ("pick", [policy.pick], picks.BUILT_IN),
    ):
        for name in names:
            if name not in known:
                raise UsageError(f"policy: no {what} '{name}'; there are {', '.join(sorted(known))}")
    for number, name in enumerate(policy.relax):
        if name not in policy.filters or name in policy.relax[:number]:
            raise UsageError(f"policy: relax names '{name}', which is not (or no longer) one of its filters")
