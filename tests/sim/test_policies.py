"""Whole worlds with faults, in which another policy is the default one: every promise holds."""

import pytest
from msgspec.structs import replace

from rota.schedule.policy import DEFAULT, Policy
from rota.sim import world
from rota.sim.world import run_seed

POLICIES = {
    "fair": replace(DEFAULT, order="fair_share", share_by="name", half_life_s=3600, pick="weighted"),
    "ageing": replace(DEFAULT, order="ageing", pick="round_robin", scorers={"spread": 1.0, "snug": 1.0}),
    "tolerant": replace(DEFAULT, relax=("tags", "until"), pick="random", scorers={}),
}


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("seed", range(1, 5))
def test_worlds_with_other_policies(name: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    policies: dict[str, Policy] = {"default": POLICIES[name]}
    monkeypatch.setattr(world, "SETTINGS", replace(world.SETTINGS, policies=policies))
    outcome, _ = run_seed(seed)
    assert not outcome.problems
    again, _ = run_seed(seed)
    assert again.hash == outcome.hash
