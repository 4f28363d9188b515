"""Vectors pin the decisions of the brokerage; `verify` says how ours differ."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from rota.model.errors import UsageError
from rota.schedule.broker.verify import changed, verify

FILE = Path(__file__).parents[1] / "data" / "brokerage-vectors.json"


@pytest.fixture(scope="module")
def vectors() -> dict[str, Any]:
    return json.loads(FILE.read_text())


def test_every_vector_passes_under_every_profile_that_it_names(vectors: dict[str, Any]) -> None:
    verdicts = list(verify(vectors))
    assert len(verdicts) == sum(len(case["expect"]) for case in vectors["cases"])
    assert [verdict for verdict in verdicts if verdict.differences] == []


def test_whatever_is_changed_in_an_expectation_is_found(vectors: dict[str, Any]) -> None:
    found = 0
    for case in vectors["cases"]:
        for profile, expect in case["expect"].items():
            for path, value in _leaves(expect):
                if "note" in path or _tied(expect, path):
                    continue
                wrong = copy.deepcopy(case)
                at = wrong["expect"][profile]
                for step in path[:-1]:
                    at = at[step]
                at[path[-1]] = _other(value)
                one = {"format": 2, "inputs": vectors["inputs"], "cases": [wrong]}
                if case["kind"] in ("production", "analysis") and found % 97:
                    found += 1  # one of many: a whole flow each
                    continue
                assert [v for v in verify(one, (profile,)) if v.differences], (case["id"], profile, path)
                found += 1
    assert found > 500


def _leaves(value: Any, path: tuple[Any, ...] = ()) -> Any:
    if isinstance(value, dict) and value:
        for key, one in value.items():
            yield from _leaves(one, (*path, key))
    else:
        yield path, value


def _tied(expect: dict[str, Any], path: tuple[Any, ...]) -> bool:
    """Whether it is about a queue that may be cut or not."""
    if path[0] != "queues" or len(path) < 3:
        return path == ("queues",)
    ties = {row["weight"] for row in expect["queues"].values() if row.get("decision") == "tie"}
    return any(abs((expect["queues"][path[1]].get("weight") or -1) - weight) < 1e-4 for weight in ties)


def _other(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    return [*value, "X"] if isinstance(value, list) else "X"


def test_what_cannot_be_judged_counts_as_failed(vectors: dict[str, Any]) -> None:
    def differences(case: Any) -> list[str]:
        document = {"format": 2, "inputs": vectors["inputs"], "cases": [case]}
        return [words for verdict in verify(document) for words in verdict.differences]

    assert "no kind 'weather'" in differences({"id": "a", "kind": "weather", "expect": {"doc": {}}})[0]
    assert "no input 'x'" in differences({"id": "a", "kind": "production", "input": "x", "expect": {"doc": {}}})[0]
    assert "no profile old" in differences({"id": "a", "kind": "memory", "values": {}, "expect": {"old": {}}})[0]
    assert "expects nothing" in differences({"id": "a", "kind": "memory", "values": {}})[0]
    assert "expects nothing" in differences("a")[0]
    assert "cannot be understood" in differences({"id": "a", "kind": "memory", "expect": {"doc": {"need_MB": 1}}})[0]
    memory = {"id": "a", "kind": "memory", "values": {"ram": 2000, "unit": "MB"}}
    assert "nothing is known of it" in differences({**memory, "expect": {"doc": {"colour": 3}}})[0]
    base = {"id": "a", "kind": "production", "input": "production/base"}
    odd = {**base, "change": [["files[99].bytes", 1]], "expect": {"doc": {"status": "SUCCEEDED"}}}
    assert "there is no element 99" in differences(odd)[0]
    odd = {**base, "change": ["task"], "expect": {"doc": {"status": "SUCCEEDED"}}}
    assert "a change is [path, value]" in differences(odd)[0]
    odd = {**base, "change": [["task.ramCount", "much"]], "expect": {"doc": {"status": "SUCCEEDED"}}}
    assert "ramCount" in differences(odd)[0]


def test_only_files_of_format_2_are_taken() -> None:
    for document, words in [({"format": 1, "cases": []}, "format is 1"), ([], "list"), ({"format": 2}, "cases")]:
        with pytest.raises(UsageError, match=words):
            list(verify(document))  # type: ignore[arg-type]


def test_changes_go_to_copies_and_make_what_is_not_there() -> None:
    document = {"files": [{"bytes": 1}, {"bytes": 2}], "a": {"b.c": {"d": 1}}}
    new = changed(document, [["files[*].bytes", 9], ["chunk.scouting", True], ["a.b.c.d", 2], ["files[0].lfn", "x"]])
    assert new == {
        "files": [{"bytes": 9, "lfn": "x"}, {"bytes": 9}],
        "a": {"b.c": {"d": 2}},
        "chunk": {"scouting": True},
    }
    assert document["files"] == [{"bytes": 1}, {"bytes": 2}]


def test_among_equal_weights_at_the_limit_any_may_be_cut(vectors: dict[str, Any]) -> None:
    case = next(case for case in vectors["cases"] if case["id"] == "production/slotsHi")
    row = case["expect"]["code"]["queues"]["Q_S80"]
    wrong = {**case, "expect": {"code": {"queues": {"Q_S80": row}, "status": "SUCCEEDED"}}}
    document = {"format": 2, "inputs": vectors["inputs"], "cases": [wrong]}
    assert [v.differences for v in verify(document)] != [()]  # without a tie it must be used
    tie = case["expect"]["code"]["queues"]["Q_S0"]
    wrong["expect"]["code"]["queues"]["Q_S0"] = tie
    assert [v.differences for v in verify(document)] == [()]
