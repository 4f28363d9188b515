"""A place for a gang: so many nodes of one allocation (or of one site, where runners have none), all free at once."""

from collections.abc import Callable

from rota.core.evolve.leasing import Grant
from rota.core.state import RunnerState, State
from rota.model.slot import slot_for
from rota.schedule.view import Want

__all__ = ["gang"]


def gang(state: State, want: Want, status: Callable[[RunnerState], str], steady: float) -> Grant | None:
    """A grant for one job of a shape that asks for several nodes, root first; None: there is no room now."""
    needs = want.shape.needs
    amounts = needs.amounts(needs.cores)
    groups: dict[str, list[RunnerState]] = {}
    for runner in state.runners.values():
        if runner.direct or not runner.gangs or status(runner) != "SERVING":
            continue
        location = state.ledger.locations[runner.location]
        if needs.site not in (None, runner.site) or not set(needs.tags) <= {*location.tags}:
            continue
        if state.ledger.room(runner.location, amounts):
            group = groups.setdefault(location.parent or "", [])
            group.append(runner)
            if len(group) == needs.nodes:
                slots = [
                    (
                        each.id,
                        slot_for(want.shape_id, needs.cores, needs, state.ledger.pick_gpus(each.location, amounts)),
                    )
                    for each in group
                ]
                return Grant(*slots[0], 1, 1, steady, tuple(slots[1:]))
    return None
