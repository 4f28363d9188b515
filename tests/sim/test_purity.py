"""Decisions write nothing: neither the durable state, which is evolve's, nor the soft one, which is the notes'."""

from collections.abc import Iterator
from typing import Any

import pytest

from rota.core import step
from rota.core.decide import _DECIDE
from rota.core.evolve import jobs as evolve_jobs
from rota.core.notes import Heard
from rota.core.state import State
from rota.schedule import filters, orders, scorers
from rota.sim.world import run_seed
from state_print import durable_print, whole_print

SEEDS = (3, 1003, 1010)


def _unchanged(state: State, before: str, what: object) -> None:
    assert whole_print(state) == before, f"{what} changed the state"


def watch_decisions(patch: pytest.MonkeyPatch, seen: set[str]) -> None:
    """Compare the whole state before and after every decision."""
    decide, tick, react = step.decide, step.tick, step.react

    def watched_decide(state: State, stimulus: Any) -> Any:
        seen.add(type(stimulus).__name__)
        before = whole_print(state)
        try:
            return decide(state, stimulus)
        finally:
            _unchanged(state, before, stimulus)

    def watched_tick(state: State, *more: Any) -> Any:
        seen.add("Tick")
        before = whole_print(state)
        decision = tick(state, *more)
        _unchanged(state, before, "tick")
        return decision

    def watched_react(state: State, events: Any) -> Any:
        before = whole_print(state)
        effects = react(state, events)
        _unchanged(state, before, "react")
        return effects

    patch.setattr(step, "decide", watched_decide)
    patch.setattr(step, "tick", watched_tick)
    patch.setattr(step, "react", watched_react)


def watch_plan(patch: pytest.MonkeyPatch) -> None:
    """Compare the durable state whenever the scheduling pass was at work."""
    plan = step.plan

    def watched(state: State, at: Any) -> Iterator[Any]:
        made = plan(state, at)
        while True:
            before = durable_print(state)
            item = next(made, None)
            assert durable_print(state) == before, f"the pass changed the state before it gave {item}"
            if item is None:
                return
            yield item

    patch.setattr(step, "plan", watched)


@pytest.mark.slow
def test_decisions_leave_the_state_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: set[str] = set()
    watch_decisions(monkeypatch, seen)
    watch_plan(monkeypatch)
    for seed in SEEDS:
        outcome, _ = run_seed(seed)
        assert not outcome.problems
    assert {"Submit", "ChangeJobs", "Greet", "Report", "Touch", "AllocationSeen", "SiteSeen", "Tick"} <= seen


def test_a_policy_leaves_the_state_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    worlds: list[Any] = []

    def watched(ask: Any) -> Any:
        def asked(*arguments: Any) -> Any:
            state = worlds[-1].state
            before = whole_print(state)
            answer = ask(*arguments)
            _unchanged(state, before, ask)
            return answer

        return asked

    original = step.Core.schedule

    def schedule(self: Any, at: Any) -> Any:
        worlds.append(self)
        return original(self, at)

    monkeypatch.setattr(step.Core, "schedule", schedule)
    for name, one in filters.BUILT_IN.items():
        monkeypatch.setitem(filters.BUILT_IN, name, one._replace(check=watched(one.check), bind=None))
    for name, scorer in scorers.BUILT_IN.items():
        monkeypatch.setitem(scorers.BUILT_IN, name, scorer._replace(score=watched(scorer.score)))
    for name, order in orders.BUILT_IN.items():
        monkeypatch.setitem(orders.BUILT_IN, name, watched(order))
    outcome, _ = run_seed(3)
    assert worlds and not outcome.problems


def test_a_decision_that_writes_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    watch_decisions(monkeypatch, set())
    note = step.take_note
    for kind, function in list(_DECIDE.items()):

        def early(state: State, stimulus: Any, function: Any = function) -> Any:
            decision = function(state, stimulus)
            for each in decision.notes:
                if isinstance(each, Heard):
                    note(state, each)
            return decision

        monkeypatch.setitem(_DECIDE, kind, early)
    outcome, _ = run_seed(3)
    assert any("changed the state" in problem for problem in outcome.problems)


def test_a_pass_that_writes_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = step.plan

    def writes(state: State, at: Any) -> Iterator[Any]:
        for item in plan(state, at):
            evolve_jobs.push_ready(state, *next((batch, 0, 1) for batch in state.batches.values()))
            yield item

    monkeypatch.setattr(step, "plan", writes)
    watch_plan(monkeypatch)
    outcome, _ = run_seed(3)
    assert any("the pass changed the state" in problem for problem in outcome.problems)
