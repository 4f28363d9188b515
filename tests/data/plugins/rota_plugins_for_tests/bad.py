"""Parts that fail when they are asked, each in its own way."""

import sys

from rota.schedule.filters import Filter
from rota.schedule.orders import Order
from rota.schedule.policy import Policy
from rota.schedule.scorers import Scorer


def raises(shape, place, view):
    """Raise."""
    raise RuntimeError("no idea where\nthat is")


def loops(shape, place, view):
    """Never come back, whatever is raised."""
    while True:
        try:
            sum(range(1000))
        except Exception:
            continue


def mutates(shape, place, view):
    """Give the place more than it has."""
    view.limits["stolen"] = 1


BOTH = ("node", "queue")
RAISES = Filter("raises", raises, BOTH)
LOOPS = Filter("loops", loops, BOTH)
EXITS = Filter("exits", lambda shape, place, view: sys.exit(3), BOTH)
MUTATES = Filter("mutates", mutates, BOTH)
WILD = Scorer(lambda shape, place, view: {}["wild"])
ZERO = Scorer(lambda shape, place, view: 0)
SULKING = Order(lambda want, view: None)
UNSOUND = Policy(order="no-such-order")
