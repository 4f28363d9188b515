"""S7: every interleaving of a few jobs on two runners with lost, repeated and reordered messages and crashes."""

import pytest

from rota.sim.model_check import CONFIGURATIONS, explore
from sim import mutations

LEAST = {
    "messages": 5_000,
    "any": 3_000,
    "breaks": 1_000,
    "ahead": 1_500,
    "ahead-messages": 3_000,
    "crashes": 3_000,
    "kill": 5_000,
    "late": 10_000,
}
"""Fewer states than this, and the model has lost something."""


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name == "late" else ()) for name in CONFIGURATIONS]
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
    ],
)
def test_a_broken_one_is_caught(name: str, mutation, monkeypatch: pytest.MonkeyPatch) -> None:
    mutation(monkeypatch)
    found = explore(CONFIGURATIONS[name]())
    assert found.problem is not None
    assert found.path
