"""The only scheduling loop: order → filter → score → pick → reserve.

It is a generator: each Placement is charged by the caller before the next is computed, so the ledger and the limits that the filters
read are always the present ones, and nothing can be given out twice.
"""

import math
from collections.abc import Iterator, Sequence

from msgspec import Struct

from rota.model.shape import Shape
from rota.model.verdict import Verdict
from rota.schedule import filters, orders, scorers
from rota.schedule.filters import No
from rota.schedule.policy import Policy
from rota.schedule.view import Place, View, Want

__all__ = ["Memo", "Parked", "Placement", "place"]

Memo = dict[tuple[int, int, str], No | None]
"""Verdicts of static filters, by shape, class of place and filter."""


class Placement(Struct):
    """So many slots of a shape at a place, each `cores` wide."""

    want: Want
    place: Place
    count: int
    cores: int


class Parked(Struct):
    """A shape that has ready jobs left after its turn, and why."""

    want: Want
    left: int
    verdicts: list[Verdict]


def place(view: View, wants: Sequence[Want], policy: Policy, memo: Memo) -> Iterator[Placement | Parked]:
    """Go once through the shapes; yields what to reserve, and for each shape with jobs left over the reasons."""
    for want in orders.BUILT_IN[policy.order](wants):
        left = want.ready
        names = list(policy.filters)
        relax = list(policy.relax)
        while True:
            verdicts: list[Verdict] = []
            candidates = []
            for candidate in view.places:
                no = _first_no(want, candidate, view, names, memo)
                if no is None:
                    candidates.append(candidate)
                else:
                    verdicts.append(_verdict(candidate, no))
            if candidates or not relax:
                break
            names.remove(relax.pop(0))
        for candidate in _ranked(want.shape, candidates, view, policy):
            while left > 0:
                cores = _width(want.shape, candidate, view)
                count = _room(want.shape, candidate, view, left, cores)
                if count <= 0:
                    break
                yield Placement(want, candidate, count, cores)
                left -= count
            if left <= 0:
                break
            no = _first_no(want, candidate, view, names, memo)
            if no is not None:
                verdicts.append(_verdict(candidate, no))
        if left > 0:
            yield Parked(want, left, verdicts)


def _first_no(want: Want, candidate: Place, view: View, names: Sequence[str], memo: Memo) -> tuple[str, No] | None:
    for name in names:
        check = filters.BUILT_IN[name]
        if check.static:
            key = (want.shape_id, candidate.kind, name)
            if key in memo:
                no = memo[key]
            else:
                no = memo[key] = check.check(want.shape, candidate, view)
        else:
            no = check.check(want.shape, candidate, view)
        if no is not None:
            return name, no
    return None


def _verdict(candidate: Place, no: tuple[str, No]) -> Verdict:
    name, reason = no
    return Verdict(candidate.location.id, name, reason.code, reason.detail, reason.lasting, reason.wake_on)


def _ranked(shape: Shape, candidates: list[Place], view: View, policy: Policy) -> list[Place]:
    """Best first. Equal scores keep the order of the view, so that a pass is the same every time."""
    if len(candidates) < 2 or not policy.scorers:
        return candidates
    weights = [(scorers.BUILT_IN[name], weight) for name, weight in policy.scorers.items()]

    def score(candidate: Place) -> float:
        return math.prod(scorer(shape, candidate, view) ** weight for scorer, weight in weights)

    return sorted(candidates, key=score, reverse=True)


def _width(shape: Shape, candidate: Place, view: View) -> int:
    """Millicores of one slot: as many of a range as are free now, in whole cores."""
    needs = shape.needs
    if needs.cores_most <= needs.cores:
        return needs.cores
    free = min(
        (view.ledger.free(location.id).cores for location in view.ledger.path(candidate.location.id) if location.capacity is not None),
        default=needs.cores_most,
    )
    return max(needs.cores, min(needs.cores_most, free // 1000 * 1000))


def _room(shape: Shape, candidate: Place, view: View, left: int, cores: int) -> int:
    """How many slots may be reserved now. A range of cores is given out one by one, so that each gets what is left."""
    count = min(left, view.ledger.room(candidate.location.id, shape.needs.amounts(cores)))
    for name in shape.limits:
        limit = view.limits.get(name)
        if limit is not None and limit.count is not None:
            count = min(count, limit.count - limit.used)
    return min(count, 1) if shape.needs.cores_most > shape.needs.cores else count
