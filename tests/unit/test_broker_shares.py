"""Global shares: the tree, whose turn it is, and when no more jobs are made."""

import random

import pytest

from rota.model.errors import UsageError
from rota.schedule.broker.shares import (
    UNDEFINED,
    Generation,
    leaf_of,
    leaves,
    may_generate,
    order_of,
    percents,
    rank,
    share_tree,
)  # fmt: skip

TREE = share_tree({
    "Analysis": {"Group": 3, "User": 1, "value": 20},
    "Prod": {"Data": 25, "MC": 75, "value": 80},
})  # fmt: skip


def test_the_reference_tree() -> None:
    assert percents(TREE) == {"Group": 15, "User": 5, "Data": 20, "MC": 60}
    running = {"Data": 100, "Group": 150, "MC": 700, "User": 50}
    assert order_of(TREE, running) == ["Data", "MC", "User", "Group"]
    assert rank(TREE, running) == {"Data": 0, "MC": 1, "User": 2, "Group": 3, UNDEFINED: 4}


def test_what_a_share_does_not_use_goes_to_its_sibling_first() -> None:
    """Data has no jobs: MC may have all of Prod before Analysis gets more than its part."""
    assert order_of(TREE, {"MC": 700, "User": 50, "Group": 250}) == ["Data", "MC", "User", "Group"]
    assert order_of(TREE, {"MC": 900, "User": 25, "Group": 75})[:2] == ["User", "Group"]


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ({"A": -1}, "shares.A is -1: give a number, 0 or more"),
        ({"A": {"B": 1}}, "shares.A: its value is missing"),
        ({"A": {"value": 1, "B": {"value": "x"}}}, "shares.A.B.value is 'x'"),
        ({"A": {"value": 1, "B": 2}, "B": 1}, "the share 'B' is there twice"),
        ({"A": {"value": 1, "match": {"name": "("}}}, "shares.A.match.name: '(' is no regular expression"),
        ({"A": {"value": 1, "match": {"name": "x"}, "B": 2}}, "children or a match, not both"),
        ({"A": True}, "shares.A is True"),
        ({"A": float("nan")}, "shares.A is nan"),
    ],
)
def test_bad_trees_are_named(table, says) -> None:
    with pytest.raises(UsageError) as caught:
        share_tree(table)
    assert says in str(caught.value)


def test_the_first_leaf_that_matches() -> None:
    tree = share_tree({
        "P": {"value": 1, "Val": {"value": 1, "match": {"processingType": "val.*", "workingGroup": "AP_"}},
              "MC": {"value": 1, "match": {"processingType": "(simul|evgen)$"}}},
        "Rest": {"value": 1, "match": {"label": "user"}}, "None": 3,
    })  # fmt: skip
    assert [share.name for share in leaves(tree)] == ["Val", "MC", "Rest", "None"]
    assert leaf_of(tree, {"processingType": "validation", "workingGroup": "AP_X", "label": "managed"}) == "Val"
    assert leaf_of(tree, {"processingType": "validation", "label": "managed"}) == UNDEFINED, "a group must be said"
    assert leaf_of(tree, {"processingType": "simul"}) == "MC"
    assert leaf_of(tree, {}) == "MC", "what is not said matches"
    assert leaf_of(tree, {"processingType": "x", "label": "user"}) == "Rest"


def test_the_order_converges_to_the_targets() -> None:
    """Jobs end at random; each free slot goes to whoever's turn it is: shares come to their targets and stay there."""
    chance, slots = random.Random(5), 2000
    executing = {"MC": slots, "Data": 0, "User": 0, "Group": 0}
    target = percents(TREE)
    for _ in range(12 * slots):
        at = chance.random() * slots
        for name, count in executing.items():
            at -= count
            if at < 0:
                executing[name] -= 1
                break
        executing[order_of(TREE, executing)[0]] += 1
    assert sum(executing.values()) == slots
    assert all(abs(100 * count / slots - target[name]) < 2 for name, count in executing.items()), executing


def test_no_crash_and_all_there_whatever_runs() -> None:
    chance = random.Random(7)
    for _ in range(300):
        running = {name: chance.choice((0, -5, 1, 1e12)) for name in ("Data", "MC", "User", "stranger")}
        assert sorted(order_of(TREE, running)) == ["Data", "Group", "MC", "User"]
    assert percents(share_tree({"A": 0, "B": {"value": 0, "C": 0}})) == {"A": 0, "C": 0}
    assert order_of(share_tree({"A": 0, "B": 1}), {}) == ["B", "A"]


@pytest.mark.parametrize(
    ("now", "thresholds", "says"),
    [
        (Generation(0, 2000), {}, None),
        (Generation(0, 2001), {}, "none runs and 2001 are queued, more than 2000"),
        (Generation(1000, 2000), {}, None),
        (Generation(1000, 2001), {}, "2001 are queued beside 1000 that run"),
        (Generation(1000, 2001, remaining_walltime_s=1e6), {}, None),
        (Generation(1001, 2002), {}, None),
        (Generation(1000, 2001), {"THROTTLE_THRESHOLD": 3}, None),
        (Generation(10, 100), {"NQUEUELIMIT_MC": 99}, "more than 99"),
        (Generation(10, 100), {"NQUEUELIMIT_MC_SCORE": 99, "NQUEUELIMIT_MC": 1000}, "more than 99"),
        (Generation(10, 100), {"NQUEUELIMIT_MC_SCORE*": 99, "NQUEUELIMIT_MC": 1000}, "more than 99"),
        (Generation(10, 0, 2001), {}, "2001 are made and not yet sent"),
        (Generation(10, 0, 0, 1001), {}, "1001 wait for their data, more than 1000"),
        (Generation(11), {"NRUNNINGCAP_MC": 10}, "11 run, at most 10"),
        (Generation(50, 11), {"NQUEUECAP_MC": 10}, "11 are queued, at most 10"),
    ],
)
def test_throttle(now, thresholds, says) -> None:
    found = may_generate(now, thresholds, "MC", "SCORE")
    assert found.stop == (says is not None) and (says or "") in found.why
    if says is not None:
        assert found.merging
        urgent = Generation(now.running, now.queued, now.defined, now.waiting, None, 900)
        higher = may_generate(urgent, thresholds, "MC", "SCORE")
        assert not higher.stop and higher.only_priority == 900


def test_a_bad_threshold_is_named() -> None:
    with pytest.raises(UsageError, match="NQUEUELIMIT_MC is 'many'"):
        may_generate(Generation(), {"NQUEUELIMIT_MC": "many"}, "MC")
