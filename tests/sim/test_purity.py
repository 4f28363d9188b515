"""Decisions write nothing: neither the durable state, which is evolve's, nor the soft one, which is the notes'."""

from collections import Counter
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

SEEDS = (3, 1003, 1010, 2003)


class Sample:
    """Which of many are looked at: the first of each kind, then one in twenty."""

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()

    def takes(self, kind: str) -> bool:
        self.seen[kind] += 1
        return self.seen[kind] <= 40 or self.seen[kind] % 20 == 0


def watch_decisions(patch: pytest.MonkeyPatch, sample: Sample) -> None:
    """Compare the whole state before and after decisions."""

    def watch(name: str) -> None:
        original = getattr(step, name)

        def watched(state: State, *more: Any) -> Any:
            what = f"{name} {type(more[0]).__name__}"
            if not sample.takes(what):
                return original(state, *more)
            before = whole_print(state)
            try:
                return original(state, *more)
            finally:
                assert whole_print(state) == before, f"{what} changed the state"

        patch.setattr(step, name, watched)

    for name in ("decide", "tick", "react"):
        watch(name)


def watch_plan(patch: pytest.MonkeyPatch, sample: Sample) -> None:
    """Compare the durable state whenever the scheduling pass was at work."""
    plan = step.plan

    def watched(state: State, at: Any) -> Iterator[Any]:
        made, looks = plan(state, at), sample.takes("plan")
        while True:
            before = durable_print(state) if looks else ""
            item = next(made, None)
            assert not looks or durable_print(state) == before, f"the pass changed the state before it gave {item}"
            if item is None:
                return
            yield item

    patch.setattr(step, "plan", watched)


@pytest.mark.slow
def test_decisions_leave_the_state_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    sample = Sample()
    watch_decisions(monkeypatch, sample)
    watch_plan(monkeypatch, sample)
    for seed in SEEDS:
        outcome, _ = run_seed(seed)
        assert not outcome.problems
    asked = (
        "Submit",
        "ChangeJobs",
        "SetMode",
        "SetLimits",
        "Greet",
        "Report",
        "Touch",
        "AllocationSeen",
        "SiteSeen",
        "Held",
        "Released",
    )
    assert {f"decide {kind}" for kind in asked} | {"tick At", "plan"} <= sample.seen.keys()


def test_a_policy_leaves_the_state_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    worlds: list[Any] = []
    sample = Sample()

    def watched(ask: Any) -> Any:
        def asked(*arguments: Any) -> Any:
            state = worlds[-1].state
            before = whole_print(state) if sample.takes(ask.__name__) else None
            answer = ask(*arguments)
            assert before is None or whole_print(state) == before, f"{ask} changed the state"
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
        monkeypatch.setitem(orders.BUILT_IN, name, order._replace(key=watched(order.key)))
    outcome, _ = run_seed(3)
    assert worlds and not outcome.problems


def test_a_decision_that_writes_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    watch_decisions(monkeypatch, Sample())
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
    watch_plan(monkeypatch, Sample())
    outcome, _ = run_seed(3)
    assert any("the pass changed the state" in problem for problem in outcome.problems)
