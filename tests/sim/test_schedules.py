"""S1 and S2: seeded fault schedules; nothing lost, nothing twice, nothing over-committed, everything settles."""

import pytest

from rota.sim.world import run_seed

BLOCK = 50
BLOCKS = 40
"""2,000 worlds in all; `python -m rota.sim --seeds N` runs more."""


def explain(seed: int, problems: list[str]) -> str:
    return f"seed {seed}: {problems}\nreplay: python -m rota.sim --seed {seed}"


@pytest.mark.parametrize("block", range(BLOCKS))
def test_promises_hold_under_faults(block: int) -> None:
    for seed in range(block * BLOCK + 1, (block + 1) * BLOCK + 1):
        outcome, _ = run_seed(seed)
        assert not outcome.problems, explain(seed, outcome.problems)


@pytest.mark.parametrize("seed", [400844, 832367])
def test_seeds_that_found_something(seed: int) -> None:
    """Each broke a promise once: a circle of names; jobs that could never run any more and were not omitted."""
    outcome, _ = run_seed(seed)
    assert not outcome.problems, explain(seed, outcome.problems)
