"""S7: every interleaving of a few jobs on two runners with lost, repeated and reordered messages and crashes."""

import pytest

from rota.sim.model_check import CONFIGURATIONS, DEEP, explore
from sim import mutations

SLOW = ("late", "gang-manager-runner")
LEAST = {
    "messages": 5_000,
    "any": 3_000,
    "breaks": 1_000,
    "ahead": 1_500,
    "ahead-messages": 3_000,
    "crashes": 3_000,
    "kill": 5_000,
    "late": 10_000,
    "gang-messages": 500,
    "gang-crashes": 1_500,
    "gang-breaks": 600,
    "gang-manager": 2_000,
    "gang-manager-runner": 20_000,
    "gang-vanishes": 1_200,
    "gang-of-three": 250,
    "requeued-held": 100,
}
"""Fewer states than this, and the model has lost something."""


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in CONFIGURATIONS]
)
def test_no_second_copy_and_nothing_stuck(name: str) -> None:
    found = explore(CONFIGURATIONS[name]())
    assert found.problem is None, f"{found.problem}\n{found.path}"
    assert found.states >= LEAST[name]


@pytest.mark.parametrize(
    ("name", "mutation"),
    [
        ("late", mutations.releases_missing_jobs),
        ("breaks", mutations.ignores_sessions),
        ("any", mutations.forgets_what_is_held),
        ("gang-crashes", mutations.frees_no_parts),
        ("gang-crashes", mutations.frees_parts_with_their_root),
        ("gang-crashes", mutations.releases_parts_with_the_kill),
        ("gang-crashes", mutations.requeues_a_gang_that_lost_a_part),
        ("gang-messages", mutations.sends_the_root_at_once),
    ],
)
def test_a_broken_one_is_caught(name: str, mutation, monkeypatch: pytest.MonkeyPatch) -> None:
    mutation(monkeypatch)
    found = explore(CONFIGURATIONS[name]())
    assert found.problem is not None
    assert found.path or found.problem.startswith("stuck")


REQUEUED = ("requeued", "requeued-cached", "requeued-crash", "requeued-earlier", "requeued-break")
FIRST = 300
"""So many of their states are looked at here; `python -m rota.sim.model_check NAME` goes on."""


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", REQUEUED)
def test_what_is_started_again_is_no_second_copy(name: str) -> None:
    found = explore(DEEP[name](), most=FIRST)
    assert found.problem is None, f"{found.problem}\n{found.path}"
    assert found.states == FIRST


@pytest.mark.parametrize("mutation", [mutations.takes_a_process_for_the_one_before, mutations.replaces_by_arrival])
def test_rules_that_look_simpler_are_caught(mutation, monkeypatch: pytest.MonkeyPatch) -> None:
    mutation(monkeypatch)
    assert explore(DEEP["requeued"](), most=FIRST).problem is not None
