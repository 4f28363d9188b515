"""Shares: what was used by whom, for policies whose order is fair.

Kept are core-milliseconds by hour (`State.shares`, written from `Spent` events), which depend on no setting; what they
are worth under the half-life of each policy is soft, and worked out again after a start. That worth is the binary
logarithm of the use, each hour of it weighed by when it was; so it stays the same while nothing is used.
"""

from collections.abc import Sequence
from math import inf, log2

from msgspec.structs import replace

from rota.core.state import ShapeState, State
from rota.model import events as ev
from rota.model.batch import Template
from rota.schedule.broker.shares import Share, leaf_of, rank
from rota.schedule.policy import Policy

__all__ = ["Spending", "apply_spent", "as_policy_sees", "recall", "worth_now"]

HOUR_S = 3600
UNCOUNTED = "#"
"""Shares that begin so only tell shapes apart: their use is nobody's."""
KEPT_HOURS = 30 * 24
"""Use that is older is forgotten."""
STEPS = 8
"""A worth is told in steps of an eighth of a doubling: it changes seldom, and nobody is put into order for a trifle."""


def as_policy_sees(
    policy: Policy | None, template: Template, by: str, name: str, tree: Sequence[Share] = ()
) -> Template:
    """A template with what tells its jobs apart under their policy: whose use they are, and which files they read."""
    near = template.inputs if template.inputs and policy is not None and "replicas" in policy.reads else ()
    share = _share_of(policy, template, by, name, tree)
    return template if (share, near) == (template.share, template.near) else replace(template, share=share, near=near)


def _share_of(policy: Policy | None, template: Template, by: str, name: str, tree: Sequence[Share]) -> str:
    """Whose use jobs of a template are counted as, or what else tells their shapes apart; empty: nothing does."""
    unit = "shape" if policy is None else policy.unit
    if policy is None or unit not in ("priority", "share"):
        return ""
    if unit == "priority":
        return f"{UNCOUNTED}{template.priority}"
    if policy.order == "shares":
        account = dict(template.needs.options).get("account")
        return leaf_of(tree, {"submitter": by.partition(" via ")[0], "name": name, "account": account or ""})
    if policy.share_by == "name":
        return f"@{name}" if name else "no name"
    if policy.share_by == "account":
        account = dict(template.needs.options).get("account")
        return f"account {account}" if account else "no account"
    return by.partition(" via ")[0] or "nobody"


class Spending:
    """The use of attempts that end together."""

    def __init__(self) -> None:
        self.rows: dict[str, int] = {}

    def add(self, template: Template, cores: int, wall_ms: int) -> None:
        """Count an attempt on so many millicores of each of its nodes."""
        if template.share.startswith(UNCOUNTED):
            return
        used = cores * template.needs.nodes * wall_ms // 1000
        if used:
            self.rows[template.share] = self.rows.get(template.share, 0) + used

    def events(self, wall: float) -> list[ev.Event]:
        """What there is to keep."""
        return [ev.Spent(int(wall // HOUR_S), sorted(self.rows.items()))] if self.rows else []


def apply_spent(state: State, event: ev.Spent) -> None:
    """Keep what was used."""
    for share, used in event.rows:
        hours = state.shares.setdefault(share, {})
        if event.hour not in hours:
            for old in [hour for hour in hours if hour < event.hour - KEPT_HOURS]:
                del hours[old]
        hours[event.hour] = hours.get(event.hour, 0) + used


def count(state: State, event: ev.Spent) -> None:
    """Add what was just used to its worth under each policy."""
    for name, policy in state.settings.policies.items():
        if policy.shares:
            for share, used in event.rows:
                _add(state, (name, share), used, event.hour * HOUR_S / policy.half_life_s)


def recall(state: State) -> None:
    """Work out every worth anew from what is kept."""
    state.soft.worth.clear()
    for name, policy in state.settings.policies.items():
        for share, hours in state.shares.items() if policy.shares else ():
            for hour, used in hours.items():
                _add(state, (name, share), used, hour * HOUR_S / policy.half_life_s)


def _add(state: State, key: tuple[str, str], used: int, half_lives: float) -> None:
    before, more = state.soft.worth.get(key, -inf), log2(used) + half_lives
    high, low = max(before, more), min(before, more)
    state.soft.worth[key] = high + log2(1 + 2 ** max(low - high, -1000.0))


def worth_now(state: State, wall: float) -> dict[tuple[str, str], float]:
    """(policy, share) → what was used, and what is in use: each core held counts as if for an hour."""
    policies = {name: policy for name, policy in state.settings.policies.items() if policy.shares}
    if not policies:
        return {}
    held: dict[tuple[str, str], int] = {}
    for shape in state.shapes:
        if shape.slots and shape.shape.policy in policies:
            key = (shape.shape.policy, shape.shape.share)
            held[key] = held.get(key, 0) + _held(shape)
    out = {}
    for key in state.soft.worth.keys() | held.keys():
        worth, half_lives = state.soft.worth.get(key, -inf), wall / policies[key[0]].half_life_s
        if held.get(key):
            more = log2(held[key] * HOUR_S) + half_lives
            high, low = max(worth, more), min(worth, more)
            worth = high + log2(1 + 2 ** max(low - high, -1000.0))
        out[key] = round(worth * STEPS) / STEPS if policies[key[0]].order != "shares" else worth
    for name, policy in policies.items():
        if policy.order == "shares":
            out.update(_ranks(state, name, {share: out.pop((of, share)) for of, share in list(out) if of == name}))
    return out


def _ranks(state: State, policy: str, worth: dict[str, float]) -> dict[tuple[str, str], float]:
    """(policy, leaf) → its rank, by what was used and is in use (logarithms), beside what it should be."""
    most = max(worth.values(), default=0.0)
    used = {share: 2.0 ** max(value - most, -1000.0) for share, value in worth.items()}
    ranks = rank(state.settings.shares, used)
    return {(policy, leaf): float(at) for leaf, at in ranks.items()}


def _held(shape: ShapeState) -> int:
    return shape.slots * shape.shape.needs.cores * shape.shape.needs.nodes
