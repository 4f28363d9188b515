"""The vectors of rebrokerage and shares, as `rota broker verify` asks them."""

import pytest

import rota.schedule.broker.kinds_rules  # noqa: F401  (enters its kinds)
from rota.model.errors import UsageError
from rota.schedule.broker.kinds import KINDS

REBROKERAGE = {"frac": 0.3, "limit": 100, "nq": 500, "nq_total": 1000, "nr": 50, "ratio": 3}
TREE = {"Analysis": {"Group": 3, "User": 1, "value": 20}, "Prod": {"Data": 25, "MC": 75, "value": 80}}


@pytest.mark.parametrize("profile", ["doc", "code", "modern"])
def test_the_cases_of_the_reference(profile) -> None:
    ask = KINDS["fast_rebrokerage"]
    found = ask({"values": REBROKERAGE}, profile)
    assert (found["trigger"], found["excess"]) == (True, 200)
    assert ask({"values": {**REBROKERAGE, "nq": 300, "nr": 0}}, profile)["trigger"] is False
    executing = {"Data": 100, "Group": 150, "MC": 700, "User": 50}
    found = KINDS["gshare"]({"values": {"tree": TREE, "executing": executing}}, profile)
    assert found["order"] == ["Data", "MC", "User", "Group"]
    assert found["percent"] == {"Data": 20, "Group": 15, "MC": 60, "User": 5}
    values = {"job": {"state": "sent", "created": 0}, "now": 1801}
    assert KINDS["timeout"]({"values": values}, profile)["action"] == "fail"
    assert KINDS["timeout"]({"values": {**values, "now": 1800}}, profile) == {"due": False}
    assert KINDS["percentile"]({"values": {"values": [10, 20, 30, 40], "rank": 95}}, profile)["value"] == 38.5
    scouts = {"jobs": [{"wall_s": 100, "max_pss_kb": 1024000}], "scouts": 2}
    found = KINDS["scouts"]({"values": scouts}, profile)
    assert (found["ram_mb"], found["what"], found["checks"]) == (1100, "go", [])
    full = {"now": {"running": 0, "queued": 2001}, "share": "MC"}
    assert KINDS["throttle"]({"values": full}, profile)["stop"] is True


@pytest.mark.parametrize(
    ("kind", "values", "says"),
    [
        ("fast_rebrokerage", {**REBROKERAGE, "nq": -1}, "values.nq is -1"),
        ("fast_rebrokerage", {"nr": 1}, "values.nq is None"),
        ("gshare", {"tree": {"A": "x"}}, "values.tree.A is 'x'"),
        ("timeout", {"job": {"state": 3}, "now": 0}, "values: "),
        ("throttle", {"now": {"running": "x"}}, "values.now: "),
        ("scouts", {"jobs": [{"cores": 1}]}, "values: "),
        ("scouts", {"scouts": -2}, "values.scouts is -2"),
        ("percentile", {"values": [], "rank": 5}, "give some numbers"),
    ],
)
def test_bad_cases_are_named(kind, values, says) -> None:
    with pytest.raises(UsageError, match=says):
        KINDS[kind]({"values": values}, "doc")
