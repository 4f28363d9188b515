"""Gangs: jobs on several nodes at one time, all of one allocation (or of a site whose runners have none).

Also whatever else is placed by looking at all nodes together: whole nodes, cores that may be on any number of nodes,
and alternatives, of which the first that has room is taken.
"""

from collections.abc import Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from rota.model.needs import Amounts, Needs, show_amount
from rota.model.shape import Shape
from rota.model.verdict import Verdict, Wake
from rota.schedule import filters, scorers
from rota.schedule.filters import No
from rota.schedule.layouts import Room, lay_out
from rota.schedule.policy import Policy
from rota.schedule.view import NODE, Place, View, Want

__all__ = ["KEPT", "Laid", "gang_verdicts", "one_part", "place_gang"]

KEPT = "KEPT"
"""The status of a node of a gang's allocation while jobs of several nodes wait for it: others do not run there."""


class Laid(Struct):
    """Where one job goes."""

    needs: Needs
    """What it asks for: of alternatives the one that was taken."""
    parts: list[tuple[Place, int]]
    """Its nodes, the root first, with the millicores that it has on each."""


def place_gang(want: Want, view: View, policy: Policy, avoid: frozenset[str] = frozenset()) -> Laid | None:
    """The nodes for one job; None if there are not enough at one time. `avoid`: runners that are not to be used."""
    groups = _groups(view.places)
    for needs in want.shape.needs.alternatives():
        shape = one_part(want.shape, needs)
        best: tuple[int, float, Laid] | None = None
        for places in groups.values():
            if len(places) < needs.nodes:
                continue
            able = [
                place
                for place in places
                if place.runner not in avoid and _no(shape, needs, place, view, policy) is None
            ]
            if len(able) < needs.nodes:
                continue
            scored = sorted([(-_score(shape, place, view, policy), at) for at, place in enumerate(able)])
            able = [able[at] for _, at in scored]
            found = lay_out(needs, [Room(_free(place, view), _size(place)) for place in able])
            if found is None or not _fit_above(needs, [(able[at], cores) for at, cores in found], view):
                continue
            total = sum(cores for _, cores in found)
            score = -sum(scored[at][0] for at, _ in found)
            if best is None or (total, score) > best[:2]:
                best = (total, score, Laid(needs, [(able[at], cores) for at, cores in found]))
        if best is not None:
            return best[2]
    return None


def gang_verdicts(want: Want, view: View, policy: Policy) -> list[Verdict]:
    """Why each allocation has not enough nodes for a job: the first no of its nodes, and how many have none.

    Nothing is said of one that has: then it is not for want of room that the job does not start.
    """
    out = []
    for parent, places in _groups(view.places).items():
        said = [_verdict(want, needs, parent, places, view, policy) for needs in want.shape.needs.alternatives()]
        found = [each for each in said if each is not None]
        if len(found) < len(said):
            continue
        verdict = next((each for each in found if not each.lasting), found[0])
        if len(found) > 1:
            verdict = replace(verdict, detail="; or ".join(each.detail for each in found))
        out.append(verdict)
    return out


def _verdict(want: Want, needs: Needs, parent: str, places: list[Place], view: View, policy: Policy) -> Verdict | None:
    shape = one_part(want.shape, needs)
    nos = [(place, no) for place in places if (no := _no(shape, needs, place, view, policy)) is not None]
    refused, lasting = {place.runner for place, _ in nos}, {place.runner for place, no in nos if no[1].lasting}
    now = [place for place in places if place.runner not in refused]
    later = [Room(_size(place), _size(place)) for place in places if place.runner not in lasting]
    never = lay_out(needs, later) is None
    could = lay_out(needs, [Room(_free(place, view), _size(place)) for place in now])
    if could is not None and _fit_above(needs, [(now[at], cores) for at, cores in could], view):
        return None
    if needs.span:
        free = sum(_free(place, view) // 1000 * 1000 for place in now)
        words = f"asks for {show_amount('cores', needs.cores)} over nodes ({needs.span})"
        words += f", {show_amount('cores', free)} of {len(places)} nodes could be had now"
    else:
        words = f"asks for {needs.nodes} nodes at one time, {len(now)} of {len(places)} could take it now"
    name, why = next(((no[0], no[1]) for _, no in nos if no[1].lasting == never), ("nodes", None))
    if could is not None:
        name, why = "room", No("busy", "what they have in common is in use", False, ())
    elif why is None and not never and needs.span:
        name, why = "room", No("busy", "not as it wants to have them", False, ())
    code = "nodes" if why is None else why.code
    detail = words if why is None else f"{words}: {why.detail}"
    return Verdict(parent, name, code, detail, never, (Wake.CAPACITY,))


def one_part(shape: Shape, needs: Needs) -> Shape:
    """What each node is asked for, as the shape of a job of one node."""
    cores = 1000 if needs.span else needs.cores
    return replace(shape, needs=replace(needs, cores=cores, cores_most=0, nodes=1, nodes_most=0, span="", whole=False))


def _groups(places: Sequence[Place]) -> Mapping[str, list[Place]]:
    """Nodes by what they are of: an allocation, or a site."""
    groups: dict[str, list[Place]] = {}
    for place in places:
        groups.setdefault(place.location.parent or "", []).append(place)
    return groups


def _no(shape: Shape, needs: Needs, place: Place, view: View, policy: Policy) -> tuple[str, No] | None:
    """(filter, its no) to one part of a job at a node; None: none says no."""
    if not place.gangs:
        return "nodes", No("old-runner", "its runner is of a version that runs jobs of one node only", True, ())
    if place.status == KEPT and needs.nodes > 1:
        place = replace(place, status="SERVING")
    for name in policy.filters:
        one = filters.BUILT_IN[name]
        if NODE in one.levels and isinstance(no := one.check(shape, place, view), No):
            return name, no
    if needs.whole and _free(place, view) < _size(place):
        words = f"asks for all its cores, {show_amount('cores', _size(place) - _free(place, view))} are in use"
        return "room", No("busy", words, False, (Wake.CAPACITY,))
    return None


def _free(place: Place, view: View) -> int:
    """Millicores that are free at a node and above it."""
    return view.ledger.free_cores(place.location.id, _size(place))


def _size(place: Place) -> int:
    return place.location.capacity.cores if place.location.capacity is not None else 1 << 40


def _fit_above(needs: Needs, parts: Sequence[tuple[Place, int]], view: View) -> bool:
    """Whether all parts together fit into what their nodes have in common."""
    ledger, asked = view.ledger, dict[str, Amounts]()
    for place, cores in parts:
        names = ledger.chain(place.location.id)
        for name in names[1:] if place.location.capacity is not None else names:
            asked[name] = asked.get(name, Amounts()).plus(ledger.part(name, needs.amounts(cores)))
    return all(amounts.fits(ledger.free(name)) for name, amounts in asked.items())


def _score(shape: Shape, place: Place, view: View, policy: Policy) -> float:
    return scorers.score_of(scorers.at_level(policy.scorers, NODE), shape, place, view)
