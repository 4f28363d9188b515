"""Servers on demand at the queue level: the cheapest that will do, within what all of them may have."""

import pytest

from rota.model.needs import Amounts, Needs
from rota.model.shape import Shape
from rota.model.site import MICRO, Bound, QueueFacts, SiteFacts
from rota.schedule.filters import No, most
from rota.schedule.ledger import Ledger
from rota.schedule.policy import POLICIES
from rota.schedule.queue_memo import QueueMemo
from rota.schedule.queue_pass import QueuePass
from rota.schedule.queues import impossible, queue_places
from rota.schedule.servers import lacking_words, most_servers, servers_within
from rota.schedule.view import View, Want

GIB = 1 << 30
SMALL = QueueFacts("small", Amounts(2000, 4 * GIB, 10 * GIB), nodes_most=1, price=1.0)
LARGE = QueueFacts("large", Amounts(8000, 240 * GIB, 10 * GIB), nodes_most=1, price=6.0)
CORES = Bound("quota", "cores", 40_000, 25_000)
MONEY = Bound("max_cost_per_day", "money", 24 * MICRO, 10 * MICRO)


def cloud(*bounds, allocation_s=None, paid_s=0, queues=(SMALL, LARGE)):
    return SiteFacts(
        LARGE.node, (), 100, 60, queues=queues, cloud=True, bounds=bounds, allocation_s=allocation_s, paid_s=paid_s
    )


def asked(facts, *wants):
    """(queue, count) of what a pass asks for."""
    left = [bound.most - bound.others for bound in facts.bounds]
    rooms = {"os": min(facts.most, most_servers(facts, left))}
    view = View(0.0, 0.0, "serving", (), Ledger().view, {}, rooms=rooms, budgets={"os": left})
    view.facts = {"weather": {}, "stats": {}}
    level = QueuePass(QueueMemo(), view, {"os": queue_places("os", facts, {})}, {}, POLICIES, lambda: 0.5)
    level.update_all([Want(at, Shape(needs), ready, 0, at) for at, (needs, ready) in enumerate(wants)])
    return [(row.queue, row.count) for row in level.run()]


def test_the_cheapest_that_is_large_enough_is_asked_for():
    one, big = (Needs(cores=1000, memory=GIB), 4), (Needs(cores=1000, memory=100 * GIB), 1)
    assert asked(cloud(), one) == [("small", 2)]
    assert asked(cloud(), big) == [("large", 1)]
    assert asked(cloud(queues=(QueueFacts("small", SMALL.node, up=False, auto=False), LARGE)), one) == [("large", 1)]


def test_what_is_left_is_counted_over_all_sizes():
    wants = (Needs(cores=8000), 1), (Needs(cores=2000), 9)
    assert asked(cloud(CORES), *wants) == [("large", 1), ("small", 3)]  # 15 of 40 cores are left
    assert asked(cloud(Bound("max_servers", "servers", 2)), *wants) == [("large", 1), ("small", 1)]
    hour = cloud(MONEY, allocation_s=3600)
    assert asked(hour, *wants) == [("large", 1), ("small", 8)]  # 14 of 24 are left: 6, and 8 times 1
    assert asked(cloud(MONEY, allocation_s=3600, paid_s=3600), *wants) == [("large", 1), ("small", 1)]
    longer = (Needs(cores=2000, time_s=10 * 3600), 3)
    assert asked(hour, longer) == [("small", 1)]


@pytest.mark.parametrize(
    ("bound", "queue", "words", "never"),
    [
        (Bound("quota", "cores", 40_000, 37_000), LARGE, "quota: 3 of 40 cores left, 8 asked", False),
        (Bound("quota", "cores", 4000, 0), LARGE, "quota: 4 of 4 cores left, 8 asked", True),
        (Bound("max_servers", "servers", 5, 5), SMALL, "max_servers: 0 of 5 servers left, 1 asked", False),
        (Bound("quota", "memory", 8 * GIB, 6 * GIB), SMALL, "quota: 2G of 8G memory left, 4G asked", False),
        (Bound("max_cost_per_day", "money", 2 * MICRO, MICRO), LARGE, "max_cost_per_day: 1 of 2 left, 6 asked", True),
    ],
)
def test_what_is_short_is_said_with_the_numbers(bound, queue, words, never):
    facts = cloud(bound, allocation_s=3600)
    left = [bound.most - bound.others]
    assert lacking_words(facts, queue, left) == (words, never)
    assert servers_within(facts, queue, left) == 0
    view = View(0.0, 0.0, "serving", (), Ledger().view, {}, rooms={"os": 1}, budgets={"os": left})
    place = next(place for place in queue_places("os", facts, {})[1:] if place.queue is queue)
    answer = most(Shape(Needs()), place, view)
    assert isinstance(answer, No) and (answer.detail, answer.lasting) == (words, never)


def test_what_no_flavor_has_is_said_once():
    sites = {"os": queue_places("os", cloud(), {})}
    assert impossible(Needs(memory=4 * GIB), sites) is None
    words = impossible(Needs(memory=512 * GIB), sites)
    assert words == "os: no flavor has 512G memory; the largest has 240G memory"
    both = impossible(Needs(cores=4000, memory=4 * GIB, gpus=1), sites)
    assert "no flavor has 1 gpu; the largest has 0 gpus" in both
    tall = QueueFacts("tall", Amounts(16_000, GIB, GIB), nodes_most=1)
    split = impossible(
        Needs(cores=16_000, memory=100 * GIB), {"os": queue_places("os", cloud(queues=(LARGE, tall)), {})}
    )
    assert "each of the 2 lacks something" in split
