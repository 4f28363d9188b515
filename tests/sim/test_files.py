"""Jobs that read files, under faults: the manager's own staging in simulated worlds."""

import pytest

from sim.files_world import run_files_seed

BLOCK = 5


@pytest.mark.parametrize("block", range(4))
def test_promises_hold_while_files_are_brought(block: int) -> None:
    brought = 0
    for seed in range(block * BLOCK + 1, (block + 1) * BLOCK + 1):
        outcome, _ = run_files_seed(seed)
        assert not outcome.problems, f"{outcome.problems}\nreplay: python tests/sim/files_world.py {seed} 1"
        brought += outcome.hits.get("brought", 0)
    assert brought


@pytest.mark.parametrize("seed", [3, 26, 53, 92])
def test_seeds_that_found_something(seed: int) -> None:
    """Each broke a promise once: a place that was away when it was asked, an original that was thought to be spoilt, a
    word that a runner did not hear, one that it heard when it was too late."""
    outcome, _ = run_files_seed(seed)
    assert not outcome.problems


def test_a_manager_that_does_not_take_up_what_jobs_owe_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted bug: what has COMPLETED before the manager dies is never sent."""
    monkeypatch.setattr("sim.files_world.VirtualOutputs._read", lambda self: [])
    found = (run_files_seed(seed)[0].problems for seed in (45, 47, 73, *range(1, 120)))
    assert any("was never sent" in words for problems in found for words in problems)
