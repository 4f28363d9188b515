"""Whole worlds with faults, in which whatever waits is soon brokered again: every promise holds."""

from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from rota.core.decide import deadlines, rebrokering
from rota.core.state import State
from rota.core.stimuli import At
from rota.model import events as ev
from rota.schedule.policy import POLICIES, SITES
from rota.sim import world
from rota.sim.world import run_seed

SEEDS = (*range(1000, 1006), *range(2100, 2106))
"""Worlds where sites are direct too, and such where batch systems requeue what runs."""


def test_nothing_is_lost_or_runs_twice_when_jobs_change_sites(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[ev.Event] = []

    def counting(state: State, at: At) -> Iterator[ev.Event]:
        for event in rebrokering.rebroker(state, at):
            called.append(event)
            yield event

    settings = replace(world.SETTINGS, policies={**POLICIES, "default": SITES}, rebroker_s=1)
    monkeypatch.setattr(world, "SETTINGS", settings)
    monkeypatch.setattr(rebrokering, "PERIOD_S", 1.0)
    monkeypatch.setattr(deadlines, "rebroker", counting)
    for seed in SEEDS:
        outcome, _ = run_seed(seed)
        assert not outcome.problems, (seed, outcome.problems)
    assert called, "none of these worlds had anything to move"
