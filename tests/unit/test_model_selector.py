"""Selectors: every form, every refusal."""

import pytest

from rota.model.errors import UsageError
from rota.model.selector import STATES, Selector, parse_selector
from rota.model.tables import JOB_STATES, SETTLED


def test_the_states_are_those_of_the_core() -> None:
    assert JOB_STATES[:-1] == STATES
    assert JOB_STATES[-1] == "REMOVED"


@pytest.mark.parametrize(
    ("words", "selector"),
    [
        ([], Selector()),
        (["7"], Selector(((7, None, None),))),
        (["7.12"], Selector(((7, 12, 12),))),
        (["7.1-99"], Selector(((7, 1, 99),))),
        (["7.0"], Selector(((7, 0, 0),))),
        (["007.01"], Selector(((7, 1, 1),))),
        (["@align"], Selector(names=("align",))),
        (["@a b@c"], Selector(names=("a b@c",))),
        ([":failed"], Selector(states=frozenset({"FAILED"}))),
        ([":FAILED", ":Running"], Selector(states=frozenset({"FAILED", "RUNNING"}))),
        (["7", "8.1", "@x", ":done"], Selector(((7, None, None), (8, 1, 1)), ("x",), frozenset({"COMPLETED"}))),
    ],
)
def test_forms(words: list[str], selector: Selector) -> None:
    assert parse_selector(words) == selector
    assert selector.empty == (not words)


def test_groups_of_states() -> None:
    def states(word: str) -> frozenset[str]:
        return parse_selector([word]).states

    assert states(":live") == states(":unfinished") == frozenset(JOB_STATES[:SETTLED])
    assert states(":settled") == frozenset(JOB_STATES[SETTLED:-1])
    assert states(":queued") | states(":active") == states(":live")
    assert not states(":queued") & states(":active")
    assert states(":unsuccessful") | states(":done") == states(":settled")
    for state in STATES:
        assert states(f":{state.lower()}") == {state}


@pytest.mark.parametrize(
    "word",
    ["", "x y", "7.", "7.1-", "7-8", "7.1-2-3", ".1", "-7", "7.-1", "@", "٧", "7 8", "7.1\n", "1" * 19, "7.x", "*"],
)
def test_words_refused(word: str) -> None:
    with pytest.raises(UsageError, match=r"selects nothing: write a batch 7, a job 7\.12, a range"):
        parse_selector([word])


def test_a_range_must_ascend() -> None:
    with pytest.raises(UsageError, match=r"'7.9-1': the range ends below where it begins"):
        parse_selector(["7.9-1"])


@pytest.mark.parametrize("word", [":", ":lost", ":removed", ": failed"])
def test_states_refused_with_those_that_there_are(word: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_selector([word])
    assert f"'{word}' is not a state" in str(caught.value)
    for state in STATES:
        assert f":{state.lower()}" in str(caught.value)
    assert ":unsuccessful" in str(caught.value)
