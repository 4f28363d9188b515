"""A shape that comes while nobody waits: mostly one place takes all its jobs, and nothing has to be put in order."""

from rota.core.plan.policies import out_of_order
from rota.core.plan.watching import groups_for, want_of
from rota.core.soft import Alone
from rota.core.state import ShapeState, State
from rota.model.shape import Shape
from rota.schedule import filters
from rota.schedule.filters import No
from rota.schedule.pipeline import Placement, room_for, width
from rota.schedule.places import asked_bound
from rota.schedule.policy import DEFAULT
from rota.schedule.view import NODE, Place, View, Want

__all__ = ["place_alone", "refused"]

_CHECKS = [
    one.check
    for name in DEFAULT.filters
    if NODE in (one := filters.BUILT_IN[name]).levels and name not in ("limits", "room")
]


def place_alone(state: State, view: View, shape: ShapeState) -> Placement | None:
    """The place for all ready jobs of a shape while nobody waits, as its turn would find it; None: not one has room."""
    places = state.soft.planning.places
    if places is None or out_of_order(state, shape.shape.policy) is not None:
        return None
    want, planning = want_of(state, shape), state.soft.planning
    last = planning.alone
    if last is not None and last.places is places and last.changes == places.changes and last.want == _kind(want):
        return Placement(want, last.place, 1, last.cores)
    bound = asked_bound(want.shape.needs.amounts(), 0, view.wall)  # the filters know how long it takes
    for spot in places.with_room(groups_for(places, want, view), bound):
        if refused(want.shape, spot.place, view):
            continue
        cores = width(want.shape, spot.place, view)
        if room_for(want.shape, spot.place, view, want.ready, cores) < want.ready:
            return None
        needs = want.shape.needs
        if want.ready == 1 and spot.place.location.until is None and not needs.named and needs.cores_most <= cores:
            planning.alone = Alone(places, places.changes, _kind(want), spot.place, cores)
        return Placement(want, spot.place, want.ready, cores)
    return None


def _kind(want: Want) -> tuple[int, int, Shape]:
    return want.shape_id, want.ready, want.shape


def refused(shape: Shape, place: Place, view: View) -> bool:
    """Whether a filter says no to a place, other than for its room or a limit."""
    for check in _CHECKS:  # noqa: SIM110  asked often, and `any` takes half as long again
        if isinstance(check(shape, place, view), No):
            return True
    return False
