"""Jobs on several nodes in the simulator: seeds in which nodes die, runners are replaced, and messages go astray."""

from collections import Counter

import pytest

from rota.model import events as ev
from rota.sim.world import GANGS, run_seed
from sim import mutations

SEEDS = range(GANGS, GANGS + 40)


@pytest.mark.slow
def test_gangs_keep_every_promise() -> None:
    seen: Counter[str] = Counter()
    for seed in SEEDS:
        outcome, world = run_seed(seed)
        assert not outcome.problems, f"seed {seed}: {outcome.problems[0]}"
        seen["ranks"] += len(world.witness.ranks)
        seen["replaced"] += sum("replaces" in runner.runner.facts for runner in world.runners)
        for _, event in world.witness.facts:
            if isinstance(event, ev.Leased) and event.parts:
                seen["leased"] += 1
            elif isinstance(event, ev.Released):
                seen["released" if event.reason is None else "taken back"] += len(event.rows)
            elif isinstance(event, ev.GangBroken):
                seen["broken"] += 1
    assert all(seen[what] for what in ("leased", "ranks", "replaced", "released", "taken back", "broken")), seen


@pytest.mark.parametrize(
    ("mutation", "most"),
    [
        (mutations.leases_gangs_ahead, 5),
        (mutations.frees_no_parts, 5),
        (mutations.frees_parts_with_their_root, 20),
        (mutations.sends_the_root_at_once, 20),
        (mutations.ends_ranks_with_no_release, 40),
    ],
)
def test_a_broken_one_is_caught(mutation, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    mutation(monkeypatch)
    for seed in range(GANGS, GANGS + most):
        if run_seed(seed)[0].problems:
            return
    pytest.fail(f"not caught in {most} seeds")
