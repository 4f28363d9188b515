"""A filter that reads a fact: nothing starts until somebody has used something under the policy `fair`."""

from rota.model.verdict import Wake
from rota.schedule.filters import Filter, No
from rota.schedule.orders import Order
from rota.schedule.policy import Policy


def warmed(shape, place, view):
    """Say no until the fact `shares` has something."""
    if any(policy == "fair" for policy, _ in view.facts["shares"]):
        return None
    return No("cold", "nobody has used anything yet", False, (Wake.FACT,))


WARMED = Filter("warmed", warmed, levels=("node", "queue"), reads=("shares",))
LARGEST = Order(lambda want, view: (-want.shape.needs.cores, want.first, want.shape_id))
BIG_FIRST = Policy(order="largest", scorers={"spread": 1.0})
