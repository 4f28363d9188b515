"""The exam of policies passes what rota has, and finds each thing that it says it finds."""

from typing import Any

import pytest

from rota.model.verdict import Wake
from rota.schedule import filters, orders, picks, scorers
from rota.schedule.filters import Filter, No
from rota.schedule.orders import Order
from rota.schedule.policy import Policy
from rota.schedule.scorers import Scorer
from rota.testing.check_policy import check_policy

EVERY = (
    [Policy(order=name) for name in orders.BUILT_IN]
    + [Policy(scorers={name: 1.0}) for name in scorers.BUILT_IN]
    + [Policy(pick=name) for name in picks.BUILT_IN]
    + [Policy(filters=tuple(filters.BUILT_IN), relax=("tags", "until"), scorers={"spread": 2.0, "snug": 0.5})]
)


@pytest.mark.parametrize("policy", ["default", *EVERY], ids=str)
def test_what_rota_has_passes(policy: str | Policy) -> None:
    check_policy(policy, worlds=10)


def no(shape: Any, place: Any, view: Any) -> Any:
    return No("never", "nothing runs here", True, (Wake.STATUS,)) if shape.needs.tags else None


def test_parts_of_others_pass() -> None:
    check_policy(Filter("mine", no), worlds=10)
    check_policy(Scorer(lambda shape, place, view: 1.5), worlds=10)
    check_policy(Order(lambda want, view: (want.ready, want.shape_id)), worlds=10)

    def near(shape: Any, place: Any, view: Any) -> Any:
        at = view.facts["replicas"].get("/data/x")
        return None if at == place.location.site else No("far", f"the data is at {at}", False, (Wake.FACT,))

    told = {"replicas": lambda chance, places: {"/data/x": chance.choice(places).location.site}}
    check_policy(Filter("near", near, ("node", "queue"), ("replicas",)), facts=told, worlds=10)


calls: list[int] = []


def counts(shape: Any, place: Any, view: Any) -> float:
    calls.append(1)
    return float(len(calls))


def beside(shape: Any, place: Any, view: Any) -> float:
    return 1.0 if view.places[0].location.id == place.location.id else 2.0


def takes(shape: Any, place: Any, view: Any) -> float:
    place.location = view.places[0].location
    return 1.0


def charges(shape: Any, place: Any, view: Any) -> None:
    view.limits.clear()


BAD: list[tuple[Any, str]] = [
    (Filter("x", lambda shape, place, view: 1 / 0), "raised ZeroDivisionError"),
    (Filter("x", lambda shape, place, view: True), "neither None, a time nor a No"),
    (Filter("x", lambda shape, place, view: No("", "", False, ())), "said no without a code"),
    (
        Filter("x", lambda shape, place, view: view.facts["stats"].get("x")),
        "read the fact stats, and says that it reads none",
    ),
    (Filter("x", lambda shape, place, view: [*view.facts] and None, reads=("stats",)), "read the fact shares"),
    (Filter("x", charges), "raised AttributeError"),
    (Scorer(lambda shape, place, view: 0.0), "not a number above 0"),
    (Scorer(counts), "asked again, in another order"),
    (Scorer(beside), "asked again, in another order"),
    (Scorer(takes), "scorer 'under-test'"),
    (Order(lambda want, view: (0,)), "one key for two shapes"),
    (Order(lambda want, view: (want.shape_id if want.shape_id else "x",)), "cannot be compared"),
    (Order(lambda want, view: (view.wall * want.priority, want.shape_id)), "looks at the clock"),
    (Order(lambda want, view: (view.facts["shares"].get(1, 0), want.shape_id)), "read the fact shares"),
]


@pytest.mark.parametrize(("part", "says"), BAD, ids=[says for _, says in BAD])
def test_misdeeds_are_found(part: Any, says: str) -> None:
    with pytest.raises(AssertionError) as caught:
        check_policy(part, worlds=30)
    assert says in str(caught.value)
    assert "under-test" not in {*filters.BUILT_IN, *scorers.BUILT_IN, *orders.BUILT_IN}
