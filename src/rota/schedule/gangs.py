"""Gangs: jobs on several nodes at one time, all of one allocation (or of a site whose runners have none)."""

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from rota.model.needs import Amounts
from rota.model.verdict import Verdict, Wake
from rota.schedule import filters, scorers
from rota.schedule.filters import No
from rota.schedule.policy import Policy
from rota.schedule.view import NODE, Place, View, Want

__all__ = ["KEPT", "gang_verdicts", "place_gang"]

KEPT = "KEPT"
"""The status of a node of a gang's allocation while jobs of several nodes wait for it: others do not run there."""


def place_gang(want: Want, view: View, policy: Policy, kept: frozenset[str] = frozenset()) -> list[Place]:
    """The nodes for one job, its root first; empty if there are not enough at one time. `kept`: not to be used."""
    needs = want.shape.needs
    best: tuple[float, list[Place]] | None = None
    for parent, places in _groups(view.places).items():
        if len(places) < needs.nodes or parent in kept:
            continue
        able = [place for place in places if _no(want, place, view, policy) is None]
        if len(able) < needs.nodes or _above(able[0], view, needs.amounts()) < needs.nodes:
            continue
        scored = sorted([(-_score(want, place, view, policy), at) for at, place in enumerate(able)])[: needs.nodes]
        score = -sum([each for each, _ in scored])
        if best is None or score > best[0]:
            best = (score, [able[at] for _, at in scored])
    return best[1] if best is not None else []


def gang_verdicts(want: Want, view: View, policy: Policy) -> list[Verdict]:
    """Why each allocation has not enough nodes for a job: the first no of its nodes, and how many have none."""
    out, asked = [], want.shape.needs.nodes
    for parent, places in _groups(view.places).items():
        nos = [no for place in places if (no := _no(want, place, view, policy)) is not None]
        free, ever = len(places) - len(nos), len(places) - sum([no.lasting for _, no in nos])
        words = f"asks for {asked} nodes at one time, {free} of {len(places)} could take it now"
        name, why = next(((name, no) for name, no in nos if no.lasting == (ever < asked)), ("nodes", None))
        if free >= asked:
            name, why = "room", No("busy", "what they have in common is in use", False, ())
        code = "nodes" if why is None else why.code
        detail = words if why is None else f"{words}: {why.detail}"
        out.append(Verdict(parent, name, code, detail, ever < asked, (Wake.CAPACITY,)))
    return out


def _groups(places: Sequence[Place]) -> Mapping[str, list[Place]]:
    """Nodes by what they are of: an allocation, or a site."""
    groups: dict[str, list[Place]] = {}
    for place in places:
        groups.setdefault(place.location.parent or "", []).append(place)
    return groups


def _no(want: Want, place: Place, view: View, policy: Policy) -> tuple[str, No] | None:
    """(filter, its no) to one part of a job at a node; None: none says no."""
    shape = replace(want.shape, needs=replace(want.shape.needs, nodes=1))
    if not place.gangs:
        return "nodes", No("old-runner", "its runner is of a version that runs jobs of one node only", True, ())
    if place.status == KEPT:
        place = replace(place, status="SERVING")
    for name in policy.filters:
        one = filters.BUILT_IN[name]
        if NODE in one.levels and isinstance(no := one.check(shape, place, view), No):
            return name, no
    return None


def _above(place: Place, view: View, amounts: Amounts) -> int:
    """How many parts fit into what all nodes of a group have in common."""
    ledger = view.ledger
    fits = [ledger.part(name, amounts).times_in(ledger.free(name)) for name in ledger.chain(place.location.id)]
    return min(fits[1:] if place.location.capacity is not None else fits, default=1 << 30)


def _score(want: Want, place: Place, view: View, policy: Policy) -> float:
    score = 1.0
    for name, weight in policy.scorers.items():
        scorer = scorers.BUILT_IN[name]
        if NODE in scorer.levels:
            score *= scorer.score(want.shape, place, view) ** weight
    return score
