"""Policies: a named bundle of order, filters, scorers, pick and relax."""

from collections.abc import Iterable, Mapping, Sequence
from heapq import merge
from typing import Any, Literal

from msgspec import Struct, field

from rota.model.amounts import format_duration
from rota.model.errors import RotaError, UsageError
from rota.schedule import filters, orders, picks, scorers
from rota.schedule.broker import placing, sites
from rota.schedule.view import View, Want

__all__ = [
    "DEFAULT",
    "NEVER",
    "POLICIES",
    "SITES",
    "PluginError",
    "Policy",
    "brokered",
    "check_policy_names",
    "in_order",
    "plugins_of",
]

HALF_LIFE_LEAST_S, HALF_LIFE_MOST_S = 3600, 30 * 86_400


class Policy(Struct, frozen=True, forbid_unknown_fields=True):
    """A policy as names only, so that it can be written in a configuration file and compared."""

    order: str = "priority"
    filters: Sequence[str] = (
        "site", "tags", "fits", "time", "status", "until", "limits", "open", "refused", "most", "room",
    )  # fmt: skip
    scorers: Mapping[str, float] = field(default_factory=lambda: {"pack": 1.0, "expected_wait": 1.0, "own_queue": 1.0})
    pick: str = "best"
    relax: Sequence[str] = ()
    """Filters that are dropped, in this order, when no place is left."""
    share_by: Literal["submitter", "name", "account"] = "submitter"
    """Whose use is counted together, if its order shares fairly."""
    half_life_s: int = 7 * 86_400
    """Seconds after which use counts half."""
    split: str = ""
    """The pick of queues, if it is another than that of nodes."""
    keep_after_s: int | None = None
    """Seconds after which a job that found no room gets a place kept for it; NEVER; None: the manager's setting."""
    home_first: bool = False
    """Whether what is free at a place goes to jobs for which that place is the best, before others get it."""

    @property
    def unit(self) -> str:
        """What of a shape its order looks at as a whole (`Order.unit`)."""
        order = orders.BUILT_IN.get(self.order)
        return "shape" if order is None else order.unit

    @property
    def reads(self) -> set[str]:
        """The facts that its filters and scorers look at."""
        known = [filters.BUILT_IN.get(name) for name in self.filters]
        scored = [scorers.BUILT_IN.get(name) for name in self.scorers]
        return {fact for part in (*known, *scored) if part is not None for fact in part.reads}

    @property
    def shares(self) -> bool:
        """Whether its order is by what was used so far."""
        return self.unit == "share"


DEFAULT = Policy()

SITES = Policy(
    filters=(*DEFAULT.filters[:-1], *sites.FILTERS, "room"),
    scorers={"pack": 1.0, "own_queue": 1.0, **sites.SCORERS},
    split="split",
)
"""What is done where there are several clusters, unless the configuration says otherwise."""


def brokered(flow: str) -> Policy:
    """The policy of a flow: its queues, each with a part by its weight."""
    return Policy(filters=(*DEFAULT.filters[:-1], "throttle", flow, "room"), scorers={flow: 1.0}, pick="weighted")


NEVER = -1
NEAR = (*(name for name in DEFAULT.filters if name != "room"), "near", "room")

POLICIES: dict[str, Policy] = {
    "default": DEFAULT,
    "qcg": Policy("arrival", scorers={}),
    "qcg-greedy": Policy("arrival", scorers={}, keep_after_s=NEVER),
    "qcg-reserve": Policy("arrival", scorers={}, keep_after_s=0),
    "qcg-priority": Policy(scorers={}, keep_after_s=0),
    "data_locality": Policy(filters=NEAR, scorers={"data_locality": 1.0}, pick="any_best", home_first=True),
    "most_bytes": Policy(filters=NEAR, scorers={"most_bytes": 1.0}, pick="any_best", home_first=True),
    "cheapest_transfer": Policy(filters=NEAR, scorers={"cheapest_transfer": 1.0}, pick="any_best", home_first=True),
    "least_loaded": Policy(scorers={"least_loaded": 1.0, "expected_wait": 1.0, "own_queue": 1.0}, pick="any_best"),
    "pack": Policy(),
    "spread": Policy(scorers={"spread": 1.0, "expected_wait": 1.0, "own_queue": 1.0}),
    "round_robin": Policy(scorers={"spread": 1.0, "expected_wait": 1.0, "own_queue": 1.0}, pick="round_robin"),
    "random": Policy(pick="random"),
    "sites": SITES,
    **{name: brokered(name) for name in placing.BROKERED},
}
"""Name → policy, before the configuration changes them; those of others are entered here too."""


def in_order(wants: Iterable[Want], view: View, policies: Mapping[str, Policy]) -> list[Want]:
    """The wants, each policy's in its own order; that policy goes first whose next job has more priority, or is older.

    One that names no policy that there is goes by the default one.
    """
    groups: dict[str, list[Want]] = {}
    for want in wants:
        groups.setdefault(want.shape.policy, []).append(want)
    for name, group in groups.items():
        key = orders.BUILT_IN[policies.get(name, DEFAULT).order].key
        group.sort(key=lambda want, key=key: key(want, view))  # type: ignore[misc]
    return list(merge(*groups.values(), key=_head)) if len(groups) > 1 else next(iter(groups.values()), [])


def _head(want: Want) -> tuple[int, int, int]:
    return (-want.priority, want.first, want.shape_id)


class PluginError(RotaError):
    """A part of a policy that another package brings failed when it was asked, or did not come back."""

    code = "plugin"

    def __init__(self, kind: str, name: str, why: str, lasting: bool = False) -> None:
        super().__init__(f"the {kind} '{name}' {why}")
        self.lasting = lasting
        """Whether it is not to be asked again, about anything."""
        self.kind = kind
        self.name = name
        self.why = why


def registries() -> dict[str, dict[str, Any]]:
    """Kind → what there is of it, by name."""
    return {"filter": filters.BUILT_IN, "scorer": scorers.BUILT_IN, "order": orders.BUILT_IN, "pick": picks.BUILT_IN}


def plugins_of(policy: Policy) -> list[tuple[str, str]]:
    """(kind, name) of all that a policy is made of."""
    named = {"order": [policy.order], "filter": [*policy.filters, *policy.relax], "pick": [policy.pick]}
    named["scorer"] = list(policy.scorers)
    if policy.split:
        named["pick"].append(policy.split)
    return [(kind, name) for kind, names in named.items() for name in names]


def check_policy_names(policy: Policy, what: str = "policy") -> None:
    """Raise UsageError for a name that does not exist, with those that do, and for what cannot be meant.

    `what` is how the policy is called in the words.
    """
    known = registries()
    for kind, name in plugins_of(policy):
        if name not in known[kind]:
            raise UsageError(f"{what}: there is no {kind} '{name}'; there are {', '.join(sorted(known[kind]))}")
    for number, name in enumerate(policy.filters):
        if name in policy.filters[:number]:
            raise UsageError(f"{what}: the filter '{name}' is named twice")
    for number, name in enumerate(policy.relax):
        if name not in policy.filters or name in policy.relax[:number]:
            raise UsageError(f"{what}: relax names '{name}', which is not (or no longer) one of its filters")
        if name in NEVER_RELAXED:
            raise UsageError(
                f"{what}: '{name}' cannot be relaxed: jobs would be placed where there is no room for them"
            )
    for name in NEVER_RELAXED:
        if name not in policy.filters:
            raise UsageError(f"{what}: the filter '{name}' cannot be left out: more would be given out than there is")
    for name, weight in policy.scorers.items():
        if not -100 <= weight <= 100:
            raise UsageError(f"{what}: the scorer '{name}' has the weight {weight:g}: give -100 to 100")
    if not HALF_LIFE_LEAST_S <= policy.half_life_s <= HALF_LIFE_MOST_S:
        least, most = format_duration(HALF_LIFE_LEAST_S), format_duration(HALF_LIFE_MOST_S)
        raise UsageError(f"{what}: half_life {format_duration(policy.half_life_s)}: give {least} to {most}")


NEVER_RELAXED = ("status", "limits", "room")
"""Filters without which promises would be broken: nothing runs where nobody serves, and nothing is given out twice."""
