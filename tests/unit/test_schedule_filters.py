"""Each filter says why, with the numbers; demand and refusals at submission too."""

import pytest

from rota.model.errors import UsageError
from rota.model.location import Kind, Location
from rota.model.needs import Amounts, Needs
from rota.model.shape import Shape
from rota.model.site import QueueFacts, SiteFacts
from rota.model.verdict import Wake
from rota.schedule import filters
from rota.schedule.demand import (
    ANY,
    SiteView,
    allocation_time,
    grouped,
    impossible,
    reservation_group,
    surplus,
    wanted,
)
from rota.schedule.filters import No
from rota.schedule.ledger import Ledger
from rota.schedule.policy import Policy, check_policy_names
from rota.schedule.scorers import BUILT_IN as SCORERS
from rota.schedule.view import Limit, Place, View, Want

GIB = 1 << 30
NODE = Amounts(8000, 16 * GIB, 100 * GIB, 2, (("lic", 3),))
SHORT = (QueueFacts("short", NODE, time_most_s=1234),)


def world(
    until: float | None = None, status: str = "SERVING", mode: str = "serving", limits: dict[str, Limit] | None = None
) -> tuple[Place, View]:
    ledger = Ledger()
    ledger.add(Location("hpc", Kind.SITE, None, None, True, (), None, "hpc"))
    node = Location("hpc/n1", Kind.NODE, "hpc", NODE, True, ("ssd", "ib"), until, "hpc")
    ledger.add(node)
    place = Place(node, "r1", status, 0)
    return place, View(1000.0, 5.0, mode, [place], ledger, limits or {})


def ask(name: str, shape: Shape, place: Place, view: View) -> No | None:
    answer = filters.BUILT_IN[name].check(shape, place, view)
    bind = filters.BUILT_IN[name].bind
    if bind is not None:
        check = bind(shape, view)
        assert (None if check is None else check(place)) == answer
    return answer if isinstance(answer, No) else None


def test_site() -> None:
    place, view = world()
    assert ask("site", Shape(Needs()), place, view) is None
    assert ask("site", Shape(Needs(site="hpc")), place, view) is None
    no = ask("site", Shape(Needs(site="cloud")), place, view)
    assert no == No("other-site", "asked to run on cloud only", True, (Wake.STATUS,))


def test_tags() -> None:
    place, view = world()
    assert ask("tags", Shape(Needs(tags=("ib", "ssd"))), place, view) is None
    no = ask("tags", Shape(Needs(tags=("ib", "gpu", "big"))), place, view)
    assert no == No("tag", "asks for gpu, big; the tags here are ssd, ib", True, (Wake.STATUS,))
    bare = Place(Location("x", Kind.NODE), "r", "SERVING", 1)
    no = ask("tags", Shape(Needs(tags=("ib",))), bare, view)
    assert no is not None and no.detail == "asks for ib; the tags here are none"


def test_fits() -> None:
    place, view = world()
    assert ask("fits", Shape(Needs(8000, memory=16 * GIB, gpus=2, named=(("lic", 3),))), place, view) is None
    no = ask("fits", Shape(Needs(9500, memory=32 * GIB, disk=GIB, gpus=3, named=(("lic", 4), ("x", 1)))), place, view)
    assert no is not None and no.lasting and no.code == "too-small"
    assert no.detail == (
        "asks for 9.5 cores, has 8 cores; asks for 32G memory, has 16G memory; asks for 3 gpus, has 2 gpus; "
        "asks for 4 lic, has 3 lic; asks for 1 x, has 0 x"
    )
    no = ask("fits", Shape(Needs(nodes=2)), place, view)
    assert no == No("nodes", "asks for 2 nodes; this is one", True, (Wake.STATUS,))
    assert ask("fits", Shape(Needs(10**9)), Place(Location("x", Kind.NODE), "r", "SERVING", 1), view) is None


@pytest.mark.parametrize(
    ("mode", "status", "code", "detail"),
    [
        ("paused", "SERVING", "paused", "the manager is paused"),
        ("draining", "MISSING", "draining", "the manager is draining"),
        ("serving", "MISSING", "missing", "its runner is MISSING"),
        ("serving", "DRAINING", "draining", "its runner is DRAINING"),
        ("serving", "not connected", "not connected", "its runner is not connected"),
    ],
)
def test_status(mode: str, status: str, code: str, detail: str) -> None:
    place, view = world(status=status, mode=mode)
    assert ask("status", Shape(Needs()), place, view) == No(code, detail, False, (Wake.STATUS,))


def test_status_yes() -> None:
    assert ask("status", Shape(Needs()), *world()) is None


@pytest.mark.parametrize(
    ("until", "time_s", "detail"),
    [
        (None, 10**6, None),
        (1060.0, 60, None),
        (1060.0, None, None),
        (1000.5, None, "its allocation has ended"),
        (900.0, 1, "its allocation has ended"),
        (1060.0, 61, "asks for 1m1s, its allocation ends in 1m"),
        (1119.9, 7200, "asks for 2h, its allocation ends in 1m59s"),
        (1000.0 + 5430, 7200, "asks for 2h, its allocation ends in 1h30m"),
    ],
)
def test_until(until: float | None, time_s: int | None, detail: str | None) -> None:
    place, view = world(until=until)
    no = ask("until", Shape(Needs(time_s=time_s)), place, view)
    assert (no.detail if no else None) == detail
    if no is not None:
        assert no.lasting and no.wake_on == (Wake.CAPACITY,)


@pytest.mark.parametrize(("left", "fits"), [(3595, True), (3301, True), (3299, False), (1800, False)])
def test_who_asks_for_the_longest_time_gets_a_runner_of_just_that(left: float, fits: bool) -> None:
    """It can have no more than that, and the runner has used some of it when it says that it is there."""
    place, view = world(until=1000.0 + left)
    view.longest = {("hpc", None): 3300, ("hpc", "long"): 7200}
    no = ask("until", Shape(Needs(time_s=3600)), place, view)
    assert (no is None) == fits
    if no is not None:
        assert no.detail.startswith("asks for 1h, its allocation ends in ")
    needs = Needs(time_s=3600, options=(("partition", "long"),))
    assert ask("until", Shape(needs), place, view) is not None, "a longer one can be had"


@pytest.mark.parametrize("time_s", [None, 30, 60, 3000])
@pytest.mark.parametrize("until", [1001.0, 1060.0, 1200.0, 4000.25])
def test_until_stands_exactly_as_long_as_it_says(until: float, time_s: int | None) -> None:
    place, view = world(until=until)
    shape = Shape(Needs(time_s=time_s))
    check = filters.BUILT_IN["until"].check
    answer = check(shape, place, view)
    stands = answer.stands if isinstance(answer, No) else answer
    assert isinstance(stands, float)
    for wall in (1000.0, *(1000.0 + step * 0.25 for step in range(1, 400))):
        if wall <= stands:
            now = check(shape, place, View(wall, 0.0, "serving", [place], view.ledger, {}))
            assert isinstance(now, No) == isinstance(answer, No)
            if isinstance(now, No) and isinstance(answer, No):
                assert now.detail == answer.detail


def test_limits() -> None:
    place, view = world(limits={"a": Limit(3, 2), "b": Limit(2, 5), "free": Limit(None, 99), "zero": Limit(0, 0)})
    assert ask("limits", Shape(Needs()), place, view) is None
    assert ask("limits", Shape(Needs(), ("a", "free", "unknown")), place, view) is None
    no = ask("limits", Shape(Needs(), ("a", "b")), place, view)
    assert no == No("limit", "limit b is full: 5 of 2 in use", False, (Wake.LIMIT,))
    no = ask("limits", Shape(Needs(), ("zero",)), place, view)
    assert no is not None and no.detail == "limit zero is full: 0 of 0 in use"


def test_room() -> None:
    place, view = world()
    big = Shape(Needs(5000, memory=8 * GIB, gpus=1, named=(("lic", 2),)))
    assert ask("room", big, place, view) is None
    view.ledger.charge("hpc/n1", Amounts(3500, 9 * GIB, 0, 2, (("lic", 3),)), 1)
    no = ask("room", big, place, view)
    assert no is not None and not no.lasting and no.wake_on == (Wake.CAPACITY,)
    assert no.detail == (
        "asks for 5 cores, 4.5 cores free now; asks for 8G memory, 7G memory free now; "
        "asks for 1 gpu, 0 gpus free now; asks for 2 lic, 0 lic free now"
    )


def test_room_of_a_parent_and_of_one_that_shrank() -> None:
    place, view = world()
    view.ledger.add(Location("hpc", Kind.SITE, None, Amounts(2000), True, (), None, "hpc"))
    no = ask("room", Shape(Needs(3000)), place, view)
    assert no is not None and no.detail == "asks for 3 cores, 2 cores free now"
    view.ledger.charge("hpc/n1", Amounts(2000), 1)
    view.ledger.add(Location("hpc", Kind.SITE, None, Amounts(1000), True, (), None, "hpc"))
    no = ask("room", Shape(Needs(1000)), place, view)
    assert no is not None and no.detail == "asks for 1 core, 0 cores free now"


def test_scorers() -> None:
    place, view = world()
    view.ledger.charge("hpc/n1", Amounts(2000), 1)
    assert SCORERS["pack"].score(Shape(Needs()), place, view) == 1.25
    assert SCORERS["spread"].score(Shape(Needs()), place, view) == 1.75
    for capacity in (None, Amounts()):
        bare = Place(Location("x", Kind.NODE, None, capacity), "r", "SERVING", 1)
        assert {scorer.score(Shape(Needs()), bare, view) for scorer in SCORERS.values()} == {1.0}


# ---- policies -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "says"),
    [
        (Policy(order="x"), "policy: there is no order 'x'; there are ageing, fair_share, priority"),
        (
            Policy(filters=("room", "x")),
            "policy: there is no filter 'x'; there are fits, limits, ",
        ),
        (Policy(relax=("x",)), "policy: there is no filter 'x'"),
        (Policy(scorers={"x": 1}), "policy: there is no scorer 'x'; there are expected_wait, pack, snug, spread"),
        (Policy(pick="x"), "policy: there is no pick 'x'; there are best, random, round_robin, weighted"),
        (
            Policy(filters=("room",), relax=("tags",)),
            "policy: relax names 'tags', which is not (or no longer) one of its filters",
        ),
        (Policy(relax=("tags", "tags")), "policy: relax names 'tags'"),
        (Policy(relax=("room",)), "policy: 'room' cannot be relaxed"),
        (Policy(filters=("limits", "status")), "policy: the filter 'room' cannot be left out"),
        (Policy(filters=("room", "tags", "tags")), "policy: the filter 'tags' is named twice"),
        (Policy(scorers={"pack": 1e9}), "policy: the scorer 'pack' has the weight 1e+09"),
        (Policy(half_life_s=1), "policy: half_life 1s: give 1h to 30d"),
    ],
)
def test_policies_refused(policy: Policy, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        check_policy_names(policy)
    assert says in str(caught.value)


def test_good_policies() -> None:
    check_policy_names(Policy())
    check_policy_names(Policy(relax=("tags", "until"), scorers={}))


# ---- demand ---------------------------------------------------------------------------------------------------------

HPC = SiteView("hpc", SiteFacts(NODE, ("ssd",), 2), 0.0)
TINY = SiteView("tiny", SiteFacts(Amounts(1000, GIB), (), 1), 0.0)


def want(needs: Needs) -> Want:
    return Want(0, Shape(needs), 5, 0, 1)


def asked(sites: list[SiteView], wants: list[Want]) -> list[tuple[str, int]]:
    return [(each.site, each.count) for each in wanted(sites, wants, 10.0)]


def test_demand() -> None:
    one = [want(Needs())]
    assert asked([HPC, TINY], one) == [("hpc", 1)]
    assert asked([HPC, TINY], []) == []
    assert asked([HPC, TINY], [want(Needs(2000))]) == [("hpc", 2)]
    assert asked([HPC, TINY], [want(Needs(site="tiny"))]) == [("tiny", 1)]
    assert asked([HPC, TINY], [want(Needs(tags=("ssd",)))]) == [("hpc", 1)]
    assert asked([HPC, TINY], [want(Needs(nodes=2))]) == []
    assert asked([HPC], [want(Needs(10**7))]) == []


def test_demand_has_bounds() -> None:
    one = [want(Needs())]
    assert asked([SiteView("s", SiteFacts(NODE, (), 2), 0.0, live=1)], one) == [("s", 1)]
    assert asked([SiteView("s", SiteFacts(NODE, (), 2), 0.0, live=2)], one) == []
    assert asked([SiteView("s", SiteFacts(NODE, (), 2), 10.5)], one) == []
    assert asked([SiteView("s", SiteFacts(NODE, (), 2), 10.0)], one) == [("s", 1)]


def per_job(**more: object) -> SiteView:
    seen = {name: more.pop(name) for name in ("live", "coming") if name in more}
    return SiteView("s", SiteFacts(NODE, most=100, whole=False, **more), **seen)  # type: ignore[arg-type]


def test_demand_counts_what_is_ready_and_what_is_on_its_way() -> None:
    lots = [Want(7, Shape(Needs()), 30, 0, 1), Want(8, Shape(Needs(2000)), 5, 0, 1)]
    assert [(each.shape_id, each.count) for each in wanted([per_job()], lots, 10.0)] == [(7, 30), (8, 5)]
    some = per_job(live=12, coming={7: 10, 8: 2})
    assert [(each.shape_id, each.count) for each in wanted([some], lots, 10.0)] == [(7, 20), (8, 3)]
    full = per_job(live=90, coming={7: 10})
    assert [(each.shape_id, each.count) for each in wanted([full], lots, 10.0)] == [(7, 10)], "100 at most"
    enough = per_job(live=40, coming={7: 35, 8: 5})
    assert wanted([enough], lots, 10.0) == []


def test_demand_in_whole_nodes() -> None:
    site = SiteView("s", SiteFacts(Amounts(8000, 16 * GIB), (), 100), 0.0)
    assert asked([site], [Want(7, Shape(Needs()), 30, 0, 1)]) == [("s", 4)]
    site.coming, site.live = {ANY: 3}, 3
    assert asked([site], [Want(7, Shape(Needs()), 30, 0, 1)]) == [("s", 1)]


def test_what_one_site_cannot_take_goes_to_the_next() -> None:
    small, large = per_job(live=98), SiteView("t", SiteFacts(NODE, (), 1000, whole=False), 0.0)
    assert asked([small, large], [Want(7, Shape(Needs()), 30, 0, 1)]) == [("s", 2), ("t", 28)]


def test_surplus_is_what_nothing_is_ready_for() -> None:
    site = per_job(live=12, coming={7: 10, 8: 2})
    assert surplus([site], [Want(7, Shape(Needs()), 4, 0, 1), Want(8, Shape(Needs(2000)), 5, 0, 1)]) == [("s", 7, 6)]
    assert surplus([site], []) == [("s", 7, 10), ("s", 8, 2)]
    site = per_job(mode="direct", live=12, coming={7: 10, 8: 2})
    assert surplus([site], []) == [], "a direct allocation belongs to its job"


@pytest.mark.parametrize(("given", "padded"), [(10, 110), (300, 400), (923, 1023), (924, 924), (5000, 5000)])
def test_small_memory_is_padded(given: int, padded: int) -> None:
    assert grouped(Needs(memory=given << 20)).memory == padded << 20


@pytest.mark.parametrize(("given", "rounded"), [(1, 1800), (1800, 1800), (1801, 3600), (7200, 7200)])
def test_times_are_rounded_up(given: int, rounded: int) -> None:
    assert grouped(Needs(time_s=given)).time_s == rounded


def test_what_is_not_given_stays_so() -> None:
    assert grouped(Needs()) == Needs()


def test_reservation_groups() -> None:
    assert reservation_group(Needs(memory=10 << 20, time_s=1), ("b", "a")) == "110:30:1:0~a,b"
    assert reservation_group(Needs(2500, memory=2000 << 20, time_s=7200, disk=20 << 30)) == "2000:120:2.5:20"
    equal = Needs(memory=300 << 20, time_s=1700), Needs(memory=300 << 20, time_s=60)
    assert reservation_group(equal[0]) == reservation_group(equal[1]) == "400:30:1:0"


@pytest.mark.parametrize(
    ("time_s", "site", "expected"),
    [
        (None, {}, None),
        (100, {}, None),
        (None, {"allocation_s": 7200}, 7200),
        (7200, {"allocation_s": 7200}, 7500),  # what is left once the runner is there must do
        (None, {"allocation_s": 3600, "job_s": 3600}, 3900),
        (9000, {"allocation_s": 7200}, 9300),
        (8000, {"allocation_s": 7200}, 9000),
        (9000, {"allocation_s": 7200, "time_most_s": 8000}, 8000),
        (100, {"mode": "direct"}, 1800),
        (1800, {"mode": "direct"}, 2100),  # it starts after its allocation, and is warned before its end
        (1500, {"mode": "direct", "time_most_s": 1600}, 1600),  # though 30 minutes are asked for otherwise
        (None, {"mode": "direct", "job_s": 600}, 900),
        (None, {"mode": "direct"}, None),
    ],
)
def test_how_long_an_allocation_is_asked_for(time_s: int | None, site: dict[str, object], expected: int | None) -> None:
    site = {"spare_s": 300, **site}
    assert allocation_time(Needs(time_s=time_s), per_job(**site).facts) == expected
    named = Needs(time_s=time_s, options=(("partition", "short"),))
    most = allocation_time(named, per_job(**{**site, "time_most_s": 10**6, "queues": SHORT}).facts)
    assert (most or 0) <= 1234, "what a job names is stronger"
    if (time_s or 0) > 1234:
        why = impossible(named, [per_job(queues=SHORT)])
        assert why and why.startswith("the queue short of s gives 20m34s at most")


@pytest.mark.parametrize(
    ("needs", "why"),
    [
        (Needs(), None),
        (Needs(2000), None),
        (Needs(site="cloud"), "there is no site 'cloud'; the sites are: hpc, tiny"),
        (Needs(2000, site="tiny"), "tiny has 1 core, 2 cores are asked for"),
        (
            Needs(9000, memory=20 * GIB),
            "hpc has 8 cores, 9 cores are asked for; hpc has 16G memory, 20G memory are asked for; "
            "tiny has 1 core, 9 cores are asked for; tiny has 1G memory, 20G memory are asked for",
        ),
        (Needs(tags=("gpu",)), "hpc has no tag gpu; tiny has no tag gpu"),
        (Needs(nodes=3, site="hpc"), "hpc gives 1 node, 3 are asked for"),
    ],
)
def test_impossible(needs: Needs, why: str | None) -> None:
    assert impossible(needs, [HPC, TINY]) == why


def test_impossible_without_sites() -> None:
    assert impossible(Needs(), []) == "no site is configured"
    assert impossible(Needs(site="x"), []) == "there is no site 'x'; the sites are: none"
