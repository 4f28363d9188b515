"""Each filter says why, with the numbers."""

import pytest
from msgspec.structs import replace

from rota.model.errors import UsageError
from rota.model.location import Kind, Location
from rota.model.needs import Amounts, Needs
from rota.model.shape import Shape
from rota.model.verdict import Wake
from rota.schedule import filters
from rota.schedule.filters import No
from rota.schedule.ledger import Ledger
from rota.schedule.policy import Policy, check_policy_names
from rota.schedule.scorers import BUILT_IN as SCORERS
from rota.schedule.view import Limit, Place, View

GIB = 1 << 30
NODE = Amounts(8000, 16 * GIB, 100 * GIB, 2, (("lic", 3),))


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
    view.longest = {("hpc", ""): (3600, 3300), ("hpc", "long"): (7200, 6900)}
    no = ask("until", Shape(Needs(time_s=3600)), place, view)
    assert (no is None) == fits
    if no is not None:
        assert no.detail.startswith("asks for 1h, its allocation ends in ")
    place = replace(place, location=replace(place.location, queue="long"))
    assert ask("until", Shape(Needs(time_s=3600)), place, view) is not None, "a longer one can be had there"
    place = replace(place, location=replace(place.location, queue=""))
    assert ask("until", Shape(Needs(time_s=7200)), place, view) is not None, "this is none that could ever do"


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
        assert {SCORERS[name].score(Shape(Needs()), bare, view) for name in ("pack", "spread")} == {1.0}


# ---- policies -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "says"),
    [
        (Policy(order="x"), "policy: there is no order 'x'; there are ageing, arrival, fair_share, priority, shares"),
        (
            Policy(filters=("room", "x")),
            "policy: there is no filter 'x'; there are analysis, fits, flood, limits, ",
        ),
        (Policy(relax=("x",)), "policy: there is no filter 'x'"),
        (
            Policy(scorers={"x": 1}),
            "policy: there is no scorer 'x'; there are analysis, cheapest_transfer, cost, data_locality, ",
        ),
        (Policy(pick="x"), "policy: there is no pick 'x'; there are any_best, best, random, round_robin, split, "),
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
