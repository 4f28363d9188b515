"""The flow of several sites, by its functions: what is expected, who is flooded, how a batch is split, who moves."""

import random

import pytest

from rota.model.location import Kind, Location
from rota.model.needs import Amounts, Needs
from rota.model.shape import Shape
from rota.model.site import SiteFacts
from rota.schedule import filters, scorers
from rota.schedule.broker.sites import (
    FORGET_S,
    RETURNED_S,
    Fare,
    Move,
    expected_wait_s,
    is_bad,
    may_wait,
    moves,
    size_of,
    span_of,
    split_of,
    told,
)  # fmt: skip
from rota.schedule.facts import Facts, Stats
from rota.schedule.filters import No
from rota.schedule.ledger import Ledger
from rota.schedule.policy import DEFAULT, POLICIES, SITES, check_policy_names
from rota.schedule.view import Place, View

NOW = 1e6


def place(name: str = "a", **more: object) -> Place:
    facts = SiteFacts(Amounts(4000, 1 << 33), most=100, **more)
    return Place(Location(name, Kind.SITE, None, None, True, (), None, name), "", "UP", 0, facts)


def view(**facts: dict) -> View:
    known = Facts()
    for name, rows in facts.items():
        for key, value in rows.items():
            known.tell(name, key, value)
    return View(NOW, 0.0, "serving", (), Ledger().view, {}, facts=known, number=0, batch=7)


def test_classes_of_sizes_and_times() -> None:
    assert [size_of(cores) for cores in (1, 1000, 1001, 2000, 4000, 128_000)] == [0, 0, 1, 1, 2, 7]
    assert size_of(4000, 4) == 4 and size_of(0, 0) == 0
    assert [span_of(time_s) for time_s in (None, 0, 900, 901, 1800, 1801, 3600, 86_400)] == [-1, 0, 0, 1, 1, 2, 2, 7]


def test_what_is_expected_goes_by_size_and_time() -> None:
    stats = Stats(500.0, 0, 0.0, 3, ((0, 0, 10.0), (5, 4, 9000.0)))
    assert expected_wait_s(stats, 0, 0, NOW) == 10 and expected_wait_s(stats, 1, 1, NOW) == 10
    assert expected_wait_s(stats, 6, 4, NOW) == 9000
    assert expected_wait_s(Stats(500.0), 0, 0, NOW) == 500
    assert expected_wait_s(Stats(10.0, 1, NOW - 3000), 0, 0, NOW) == 3000, "the oldest waits longer already"
    assert expected_wait_s(None, 0, 0, NOW) is None and expected_wait_s(Stats(), 0, 0, NOW) is None


def test_nobody_is_flooded() -> None:
    assert may_wait(None) == 20 and may_wait(Stats(waiting=20)) == 0 and may_wait(Stats(waiting=20, running=50)) == 80
    crowd = view(stats={("a", ""): Stats(1.0, 20, NOW)})
    no = filters.BUILT_IN["flood"].check(Shape(Needs()), place(), crowd)
    assert isinstance(no, No) and "20 allocations wait there and 0 run" in no.detail and not no.lasting
    assert filters.BUILT_IN["flood"].check(Shape(Needs(site="a")), place(), crowd) is None, "who names it wants it"
    assert filters.BUILT_IN["flood"].check(Shape(Needs()), place("b"), crowd) is None


def test_a_site_that_keeps_failing_gets_probes() -> None:
    """The reference's boundary: 20 bad of 10 good pass, 21 do not."""
    assert not is_bad(Fare(10, 20)) and is_bad(Fare(10, 21)) and not is_bad(Fare(0, 5)) and is_bad(Fare(0, 3, 3))
    bad = {("a", ""): Stats(1.0, 1, NOW)}
    fares = {(7, "a"): told(Fare(0, 9, since=NOW))}
    check = filters.BUILT_IN["probe"].check
    no = check(Shape(Needs()), place(), view(stats=bad, fares=fares))
    assert isinstance(no, No) and "9 failed" in no.detail
    assert check(Shape(Needs()), place(), view(fares=fares)) is None, "nothing is there: one may go and see"
    assert check(Shape(Needs()), place(), view(stats=bad, fares={(8, "a"): told(Fare(0, 9))})) is None, "another batch"


def test_what_was_long_ago_is_forgotten() -> None:
    old = Fare(0, 50, since=NOW)
    assert old.plus(1, 0, 0, NOW + 60) == Fare(1, 50, since=NOW)
    assert old.plus(1, 0, 0, NOW + 7 * 3600) == Fare(1, 0, since=NOW + 7 * 3600)


def test_a_site_that_gave_jobs_back_is_left_alone_for_a_while() -> None:
    check = filters.BUILT_IN["returned"].check
    for batch in (7, -1):
        no = check(Shape(Needs()), place(), view(fares={(batch, "a"): told(Fare(returned=1, until=NOW + 90))}))
        assert isinstance(no, No) and "next try in 1m30s" in no.detail and no.stands == NOW + 90
    assert check(Shape(Needs()), place(), view(fares={(7, "a"): told(Fare(returned=1, until=NOW))})) is None


def score(where: Place, seen: View) -> float:
    out = 1.0
    for name, weight in SITES.scorers.items():
        if "queue" in scorers.BUILT_IN[name].levels:
            out *= scorers.BUILT_IN[name].score(Shape(Needs()), where, seen) ** weight
    return out


def test_a_site_that_gives_back_again_and_again_is_left_alone_for_longer_each_time() -> None:
    fare = Fare().back(40, NOW).back(41, NOW + 1)
    assert (fare.returned, fare.pause_s, fare.until) == (2, 41, NOW + 42), "both were asked of it at one time"
    fare = fare.back(40, NOW + 100)
    assert (fare.pause_s, fare.until) == (82, NOW + 182)
    assert Fare(1, 0, 1, NOW, NOW, RETURNED_S - 1).back(40, NOW + 1).pause_s == RETURNED_S, "and no longer than that"
    long_after = fare.plus(1, 0, 0, fare.since + FORGET_S + 1)
    assert (long_after.returned, long_after.pause_s) == (0, 0), "what was long ago is forgotten"


def test_scores_are_positive_and_finite_whatever_is_known() -> None:
    chance = random.Random(3)
    odd = (0.0, 1.0, 1e9, 1e300)
    for _ in range(500):
        stats = Stats(
            chance.choice((None, *odd)), chance.choice((0, 10**9)), chance.choice(odd), chance.choice((0, 10**9)),
            ((0, -1, chance.choice(odd)),),
        )  # fmt: skip
        fare = told(Fare(chance.choice((0, 10**9)), chance.choice((0, 10**9)), chance.choice((0, 10**9)), NOW))
        found = score(place(cost=chance.choice(odd)), view(stats={("a", ""): stats}, fares={(7, "a"): fare}))
        assert 0 < found < float("inf")


def test_the_better_site_has_the_better_score() -> None:
    plain = score(place(), view())
    assert score(place(cost=1.0), view()) == plain / 2
    assert score(place(), view(stats={("a", ""): Stats(660.0)})) == plain / 2, "ten minutes more"
    assert score(place(), view(fares={(7, "a"): told(Fare(0, 7, since=NOW))})) == plain / 8


def test_a_batch_is_split_in_proportion_and_ties_are_defined() -> None:
    assert split_of(90, [2.0, 1.0], [0, 0]) == [60, 30]
    assert split_of(90, [2.0, 1.0], [60, 0]) == [40, 50], "what waits already counts"
    assert split_of(3, [1.0, 1.0], [0, 0]) == [2, 1], "of equal ones the first"
    assert split_of(10, [1e-300, 1.0], [0, 0]) == [0, 10]
    for seed in range(200):
        chance = random.Random(seed)
        scores = [chance.random() + 1e-3 for _ in range(chance.randint(1, 20))]
        count = chance.randint(0, 300)
        parts = split_of(count, scores, [0] * len(scores))
        assert sum(parts) == count
        ideal = [count * each / sum(scores) for each in scores]
        assert all(abs(part - should) <= len(scores) for part, should in zip(parts, ideal, strict=True))


def test_who_moves() -> None:
    waits = Move(3600.0, 0, -1)
    assert moves(waits, {"b": (None, 5)}, NOW, 600) == ("b", 0.0)
    assert moves(waits, {"b": (None, 0)}, NOW, 600) is None, "it has no room"
    assert moves(waits, {"b": (Stats(1700.0), 5)}, NOW, 600) == ("b", 1700.0)
    assert moves(waits, {"b": (Stats(1900.0), 5)}, NOW, 600) is None, "it would wait as long there"
    assert moves(waits, {"b": (Stats(10.0, 20, NOW), 5)}, NOW, 600) is None, "as many wait there as may"
    assert moves(waits, {"b": (Stats(900.0), 5), "c": (Stats(800.0), 5)}, NOW, 600) == ("c", 800.0)
    assert moves(Move(599.0, 0, -1), {"b": (None, 5)}, NOW, 600) is None, "not long enough"


def test_the_policy() -> None:
    check_policy_names(SITES)
    assert POLICIES["sites"] is SITES and SITES.filters[-1] == "room" and set(DEFAULT.filters) < set(SITES.filters)


@pytest.mark.parametrize("name", ["flood", "probe", "returned"])
def test_filters_are_pure(name) -> None:
    seen = view(stats={("a", ""): Stats(1.0, 30, NOW)}, fares={(7, "a"): told(Fare(0, 9, 3, NOW, NOW + 60))})
    check = filters.BUILT_IN[name].check
    assert check(Shape(Needs()), place(), seen) == check(Shape(Needs()), place(), seen) is not None
