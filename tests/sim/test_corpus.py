"""Seeds that once showed a bug. A failing seed joins seeds.txt for ever."""

from pathlib import Path

import pytest

from rota.sim.world import World, run_seed

SEEDS = [
    int(line.split()[0])
    for line in (Path(__file__).parent / "seeds.txt").read_text().splitlines()
    if line[:1].isdigit()
]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_seed_that_once_failed(seed: int) -> None:
    outcome, _ = run_seed(seed)
    assert not outcome.problems, f"seed {seed}: {outcome.problems}\nreplay: python -m rota.sim --seed {seed}"


@pytest.mark.parametrize("seed", range(1, 21))
def test_without_faults_no_lease_is_wasted(seed: int) -> None:
    """With no fault at all nothing is disclaimed, lost or missing."""
    world = World(seed, tracing=True, calm=True)
    outcome = world.run()
    assert not outcome.problems
    wasted = [line for line in world.story if "start-by passed" in line or "never reached" in line or "lapse" in line]
    assert not wasted, wasted[:5]
