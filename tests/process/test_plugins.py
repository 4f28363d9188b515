"""Parts of policies that another package brings: found, asked, and fenced in a real manager."""

import json
from pathlib import Path
from typing import Any

import pytest

from process.support_home import Home, home

__all__ = ["home"]

PLUGINS = str(Path(__file__).resolve().parents[1] / "data" / "plugins")
BAD = ("raises", "loops", "exits", "mutates")
CONFIG = """
[policy.fair]
order = "fair_share"

[policy.warm]
filters_add = ["warmed"]
""" + "".join(f'\n[policy.{name}]\nfilters_add = ["{name}"]\n' for name in BAD)


@pytest.fixture
def plugged(home: Home) -> Home:
    home.env["PYTHONPATH"] = PLUGINS
    home.config(CONFIG)
    return home


def explained(home: Home, job: str) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(home.rota("explain", job, "--json").stdout)
    return answer


def test_a_filter_is_asked_again_when_its_fact_changes(plugged: Home) -> None:
    plugged.rota("up")
    plugged.rota("add", "--policy", "warm", "--", "true")
    plugged.rota("add", "--", "true")
    plugged.rota("wait", "2")
    answer = explained(plugged, "1.1")
    assert answer["state"] == "PENDING"
    assert any(row["filter"] == "warmed" and row["code"] == "cold" for row in answer["verdicts"]), answer
    assert "nobody has used anything yet" in plugged.rota("explain", "1.1").stdout
    plugged.rota("add", "--policy", "fair", "--", "sleep 0.01")
    plugged.rota("wait", "1", "3", timeout=60)
    assert explained(plugged, "1.1")["state"] == "COMPLETED"


def test_policies_of_others(plugged: Home) -> None:
    plugged.rota("up")
    plugged.rota("add", "--policy", "big-first", "--", "true")
    plugged.rota("wait", "1")
    plugged.rota("add", "--policy", "strict", "--", "true")  # a flow
    plugged.rota("wait", "2")
    refused = plugged.rota("add", "--policy", "unsound", "--", "true", code=2)
    assert "there is no policy 'unsound'; there are analysis, big-first," in refused.stderr
    words = plugged.rota("__complete", "bash", "rota add --policy fa").stdout
    assert words.split() == ["fair"]


def test_those_that_fail_are_named_and_all_others_go_on(plugged: Home) -> None:
    plugged.rota("up")
    for name in BAD:
        plugged.rota("add", "--name", name, "--policy", name, "--", "true")
    plugged.rota("add", "--array", "1-20", "--", "true")
    plugged.rota("wait", "5", timeout=60)
    says = {
        "raises": "the filter 'raises' raised RuntimeError: no idea where that is",
        "loops": "the filter 'loops' of the policy 'loops' did not answer for",
        "exits": "the filter 'exits' raised SystemExit: 3",
        "mutates": "the filter 'mutates' raised TypeError",
    }
    for number, name in enumerate(BAD, 1):
        answer = explained(plugged, f"{number}.1")
        assert answer["state"] == "PENDING" and says[name] in answer["reason"], answer
    listed = plugged.rota("plugins", "--json", code=1)
    problems = {
        (row["kind"], row["name"]): row["problem"] for row in json.loads(listed.stdout)["plugins"] if row["problem"]
    }
    assert problems["filter", "loops"].startswith("is not asked any more: did not answer for")
    assert problems["filter", "broken"] == "SystemExit: I do not want to be imported"
    assert problems["filter", "room"] == "rota has a filter of that name already"
    assert problems.keys() == {
        ("filter", "loops"),
        ("filter", "broken"),
        ("filter", "room"),
        ("filter", "missing"),
        ("policy", "unsound"),
    }
    plugged.rota("modify", "2", "--policy", "default")
    plugged.rota("wait", "2", timeout=60)
    checked = json.loads(plugged.rota("doctor", "--no-job", "--json").stdout)
    assert checked["ok"] and sum(row["name"] == "plugins" and row["status"] == "warn" for row in checked["checks"]) == 4


def test_without_a_manager(plugged: Home) -> None:
    listed = plugged.rota("plugins", code=1).stdout
    assert "filter  warmed" in listed and "rota-plugins-for-tests  1.2" in listed
    rows = [line.split() for line in listed.splitlines()]
    named = {row[1]: row[2] for row in rows if row[:1] == ["policy"]}
    assert {"default", "exits", "loops", "mutates", "raises", "warm"} <= set(named) and named["fair"] == "configuration"
    plugged.config('[policy.x]\norder = "no-such"\n')
    refused = plugged.rota("up", code=2)
    orders = "ageing, arrival, fair_share, largest, priority, shares, sulking"
    assert f"[policy.x]: there is no order 'no-such'; there are {orders}" in refused.stderr
