"""Worlds with nodes that fail everything at once, for reasons of their own: little is lost to them."""

import pytest
from msgspec.structs import replace

from rota.model import events as ev
from rota.sim import world as worlds
from rota.sim.witness import Execution
from rota.sim.workload import Workload
from rota.sim.world import World

SEEDS = range(1, 13)


def lost_to_holes(monkeypatch: pytest.MonkeyPatch, suspect_failures: int) -> tuple[int, int]:
    """(jobs that failed, hosts that were suspected) in worlds whose only fault are holes."""
    monkeypatch.setattr(worlds, "SETTINGS", replace(worlds.SETTINGS, suspect_failures=suspect_failures))
    failed = suspected = 0
    for seed in SEEDS:
        world = World(seed)
        world.faults.weights.clear()
        world.hole_chance = 0.3
        outcome = world.run()
        assert not outcome.problems, (seed, outcome.problems)
        failed += list(world.final_states().values()).count("FAILED")
        suspected += sum(isinstance(fact, ev.Noted) and fact.what == "suspected" for _, fact in world.witness.facts)
    return failed, suspected


def test_black_holes_fail_few_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    def good(self: Workload, execution: Execution) -> tuple[float, int | None, int | None]:
        return max(1.0, self.rng.random() * 8), 0, None

    monkeypatch.setattr(Workload, "behaviour", good)
    before, nobody = lost_to_holes(monkeypatch, 10**9)
    after, suspected = lost_to_holes(monkeypatch, 2)
    assert nobody == 0 < suspected
    assert after * 2 < before
