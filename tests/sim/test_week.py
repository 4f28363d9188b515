"""The simulated week, small: the real queue level keeps a grid busy, moves less than chance, and holds the shares."""

from functools import cache

import pytest

from rota.schedule.broker.shares import percents
from rota.schedule.policy import SITES
from rota.sim.week import LEAST_LOADED, RANDOM, TREE, Grid, Outcome, run

GRID = Grid(
    sites=12, slots=3000, days=3, mean_h=8.0, task_jobs=(20, 300), load=1.3, backlog_days=1.0, outages=3.0
)  # fmt: skip
POLICIES = {"sites": SITES, "random": RANDOM, "least-loaded": LEAST_LOADED}


@cache
def outcome(name: str) -> Outcome:
    return run(GRID, POLICIES[name])


def test_slots_are_in_use_while_work_waits_whatever_fails() -> None:
    out = outcome("sites")
    assert out.used >= 0.95 and out.lost > 0 and out.most_at_once <= GRID.slots * 1.01
    assert out.finished > 19_000 and out.started >= out.finished + out.lost


def test_shares_come_to_their_targets_over_a_day() -> None:
    out = outcome("sites")
    target = percents(TREE)
    for day in out.shares[1:]:
        assert day == pytest.approx(target, abs=2.0), day


def test_it_waits_and_moves_less_than_chance() -> None:
    out, other = outcome("sites"), outcome("random")
    assert out.wait_mean_s < other.wait_mean_s and out.finished > other.finished
    assert out.moved_bytes / out.started < other.moved_bytes / other.started


def test_the_same_seed_gives_the_same_week() -> None:
    small = Grid(sites=4, slots=200, days=0.5, mean_h=1.0, task_jobs=(5, 20))
    assert run(small) == run(small) and run(small).decisions > 0
