"""What keeps the ready jobs of a shape from starting: every filter's answer, worked out when somebody asks."""

from msgspec.structs import replace

from rota.core.plan.backfill import Reservation
from rota.core.plan.limits import limits_now
from rota.core.plan.policies import out_of_order
from rota.core.plan.watching import place_of, times
from rota.core.state import RunnerState, ShapeState, State
from rota.core.stimuli import At
from rota.model.amounts import format_duration
from rota.model.shape import Shape
from rota.model.verdict import Verdict
from rota.schedule import filters, limits
from rota.schedule.filters import No
from rota.schedule.gangs import gang_verdicts
from rota.schedule.policy import DEFAULT, Policy
from rota.schedule.view import NODE, Place, View, Want

__all__ = ["no_node_ever", "refusals"]


def refusals(state: State, shape: ShapeState, at: At, places_only: bool = False) -> list[Verdict]:
    """The first no at each place where no job of a shape can start now.

    `places_only`: as if the manager served and no limit were full.
    """
    if not shape.ready:
        return []
    if (no := out_of_order(state, shape.shape.policy)) is not None:
        return [no]
    memo, kept = state.soft.planning.shapes.get(shape.id), state.soft.planning.reserved
    asked = shape.shape if memo is None else memo.asked
    mode = state.mode
    if places_only:
        asked, mode = replace(asked, limits=()), "serving"
    places = [place for runner in state.runners.values() if (place := _place(state, runner, at)) is not None]
    now, facts = limits_now(state, at), state.soft.facts
    view = View(at.wall, at.mono, mode, places, state.ledger.view, now, *times(state), facts)
    policy = state.settings.policies.get(shape.shape.policy, DEFAULT)
    if asked.needs.together:
        return gang_verdicts(Want(shape.id, asked, shape.ready, 0, 0), view, policy)
    if kept is not None and (shape.id == kept.shape_id or shape.heads[0][:2] <= kept.key):
        kept = None  # it is kept for this one, or for one that comes later
    found = []
    for place in places:
        no = _refusal(asked, place, view, policy)
        if kept is not None and place.runner in kept.runners:
            no = kept.verdict(at, place.location.id) if no is None else _kept_besides(no, kept, at)
        if no is not None:
            found.append(no)
    if asked.limits and not any(verdict.filter == "limits" for verdict in found):
        blocked = limits.blocked(asked, view.limits)
        if blocked is not None:
            found.append(Verdict("everywhere", "limits", blocked[0], blocked[1], False, (blocked[2],)))
    return found


def no_node_ever(state: State, shape: ShapeState, at: At) -> bool:
    """Whether no node that is there will ever take jobs of a shape, of which none need be ready."""
    places = [place for runner in state.runners.values() if (place := _place(state, runner, at)) is not None]
    if shape.shape.needs.together:
        return not places
    view = View(at.wall, at.mono, "serving", places, state.ledger.view, {}, *times(state), state.soft.facts)
    policy = state.settings.policies.get(shape.shape.policy, DEFAULT)
    asked = replace(shape.shape, limits=())
    nos = [_refusal(asked, place, view, policy) for place in places]
    return all(no is not None and no.lasting for no in nos)


def _kept_besides(no: Verdict, kept: Reservation, at: At) -> Verdict:
    """What is said of a place that is kept for another job, and has no room now anyway."""
    return replace(no, detail=f"{no.detail}, and what becomes free is {kept.words(at)}") if no.code == "busy" else no


def _place(state: State, runner: RunnerState, at: At) -> Place | None:
    """A runner's node as a place, whose status says for how long nothing was heard of it."""
    place = place_of(state, runner)
    if place is None or place.status not in ("not connected", "MISSING"):
        return place
    silence = max(0, int(at.mono - state.soft.contacts[runner.id].heard))
    words = f"{silence} s" if silence < 120 else format_duration(silence // 60 * 60)
    return replace(place, status=f"{place.status}, silent for {words}")


def _refusal(shape: Shape, place: Place, view: View, policy: Policy) -> Verdict | None:
    for name in policy.filters:
        one = filters.BUILT_IN[name]
        no = one.check(shape, place, view) if NODE in one.levels else None
        if isinstance(no, No):
            return Verdict(place.location.id, name, no.code, no.detail, no.lasting, no.wake_on)
    return None
