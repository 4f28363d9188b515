"""The simulator sees what it is there to see: each of these broken cores or runners is caught within so many seeds."""

import pytest

from rota.sim.world import run_seed
from sim.mutations import SIMULATED


@pytest.mark.parametrize("name", SIMULATED)
def test_a_broken_one_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mutate, most = SIMULATED[name]
    mutate(monkeypatch)
    for seed in range(1, most + 1):
        if run_seed(seed)[0].problems:
            return
    pytest.fail(f"a core that {name} was not caught in {most} seeds")
