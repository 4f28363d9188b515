"""What keeps the ready jobs of a shape from starting: every filter's answer, worked out when somebody asks."""

from rota.core.plan.limits import limits_now
from rota.core.plan.policies import out_of_order
from rota.core.plan.watching import place_of, times
from rota.core.state import ShapeState, State
from rota.core.stimuli import At
from rota.model.shape import Shape
from rota.model.verdict import Verdict
from rota.schedule import filters, limits
from rota.schedule.filters import No
from rota.schedule.gangs import gang_verdicts
from rota.schedule.policy import DEFAULT, Policy
from rota.schedule.view import NODE, Place, View, Want

__all__ = ["refusals"]


def refusals(state: State, shape: ShapeState, at: At) -> list[Verdict]:
    """The first no at each place where no job of a shape can start now."""
    if not shape.ready:
        return []
    if (no := out_of_order(state, shape.shape.policy)) is not None:
        return [no]
    memo, kept = state.soft.planning.shapes.get(shape.id), state.soft.planning.reserved
    asked = shape.shape if memo is None else memo.asked
    places = [place for runner in state.runners.values() if (place := place_of(state, runner)) is not None]
    now, facts = limits_now(state, at), state.soft.facts
    view = View(at.wall, at.mono, state.mode, places, state.ledger.view, now, *times(state), facts)
    policy = state.settings.policies.get(shape.shape.policy, DEFAULT)
    if asked.needs.nodes > 1:
        return gang_verdicts(Want(shape.id, asked, shape.ready, 0, 0), view, policy)
    if kept is not None and (shape.id == kept.shape_id or shape.heads[0][:2] <= kept.key):
        kept = None  # it is kept for this one, or for one that comes later
    if kept is not None:
        places = [place for place in places if place.runner != kept.runner]
    found = [no for place in places if (no := _refusal(asked, place, view, policy)) is not None]
    if kept is not None:
        found.append(kept.verdict())
    if asked.limits and not any(verdict.filter == "limits" for verdict in found):
        blocked = limits.blocked(asked, view.limits)
        if blocked is not None:
            found.append(Verdict("everywhere", "limits", blocked[0], blocked[1], False, (blocked[2],)))
    return found


def _refusal(shape: Shape, place: Place, view: View, policy: Policy) -> Verdict | None:
    for name in policy.filters:
        one = filters.BUILT_IN[name]
        no = one.check(shape, place, view) if NODE in one.levels else None
        if isinstance(no, No):
            return Verdict(place.location.id, name, no.code, no.detail, no.lasting, no.wake_on)
    return None
