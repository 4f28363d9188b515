"""Seeded worlds with a cloud: no server is left or made twice, no job is lost, and no more is spent than may be."""

import os

import pytest

from rota.sim.cloud import run_cloud_seed

FIRST = int(os.environ.get("ROTA_CLOUD_FIRST", "0"))
SEEDS = int(os.environ.get("ROTA_CLOUD_SEEDS", "200"))
"""More by hand: `ROTA_CLOUD_SEEDS=2000 pytest tests/sim/test_cloud.py -n 2`."""
PARTS = 10


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_schedules(part):
    bad, hits = {}, {}
    for seed in range(FIRST + part, FIRST + SEEDS, PARTS):
        outcome, _ = run_cloud_seed(seed)
        if outcome.problems:
            bad[seed] = outcome.problems[:3]
        for kind, count in outcome.hits.items():
            hits[kind] = hits.get(kind, 0) + count
    assert not bad
    assert sum(count for kind, count in hits.items() if kind.startswith("cloud-"))


def test_a_world_is_the_same_again():
    (one, _), (other, _) = run_cloud_seed(3), run_cloud_seed(3)
    assert one.hash == other.hash and one.hits == other.hits
