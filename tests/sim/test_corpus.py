"""Seeds that once showed a bug. A failing seed joins seeds.txt for ever."""

from pathlib import Path

import pytest

from rota.model.events import Ended, Leased
from rota.sim.world import SETTINGS, World, run_seed

SEEDS = [
    int(line.split()[0])
    for line in (Path(__file__).parent / "seeds.txt").read_text().splitlines()
    if line[:1].isdigit()
]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_seed_that_once_failed(seed: int) -> None:
    outcome, _ = run_seed(seed)
    assert not outcome.problems, f"seed {seed}: {outcome.problems}\nreplay: python -m rota.sim --seed {seed}"


def _spans(flat: list[int]) -> list[tuple[int, int]]:
    return list(zip(flat[::2], flat[1::2], strict=True))


@pytest.mark.parametrize("seed", range(1, 21))
def test_without_faults_no_lease_is_wasted(seed: int) -> None:
    """With no fault at all nothing is disclaimed, lost or missing."""
    world = World(seed, tracing=True, calm=True)
    outcome = world.run()
    assert not outcome.problems
    wasted = [line for line in world.story if "never reached" in line or "lapse" in line]
    assert not wasted, wasted[:5]
    leased = {}
    for time, event in world.witness.facts:
        if isinstance(event, Leased):
            leased.update({(event.batch, pos): time for low, high in _spans(event.spans) for pos in range(low, high)})
        elif isinstance(event, Ended) and event.reason == "start-by passed":  # leased ahead, behind a longer job
            for batch, pos, *_ in event.rows:
                assert time - leased[batch, pos] > SETTINGS.start_by_s - SETTINGS.touch_s
