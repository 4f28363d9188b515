"""Deadlines that are kept as things change are those that going over everything would find, to the last digit."""

import math
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from core_world import NODE, FakeRunner, World, cores
from rota.core import step
from rota.core.decide import deadlines
from rota.core.earliest import Earliest
from rota.core.passing import SWEEP_S
from rota.core.state import State
from rota.core.step import Core
from rota.core.stimuli import At, SiteSeen, Tick
from rota.model.site import SiteFacts
from rota.schedule.demand import ANY
from rota.sim.world import run_seed

NAMES = st.sampled_from("abcdef")
TIMES = st.one_of(st.integers(0, 9).map(float), st.just(math.inf))


# ---- by going over everything ---------------------------------------------------------------------------------------


def plain_busy(state: State) -> bool:
    return (
        any(runner.jobs or runner.parts or runner.state in ("DRAINING", "MISSING") for runner in state.runners.values())
        or any(shape.ready for shape in state.shapes)
        or bool(state.soft.ending)
        or any(a.state.endswith("ING") and a.state != "RUNNING" for a in state.allocations.values())
    )


def plain_deadline(state: State, at: At, last: At | None) -> float:
    soft, planning = state.soft, state.soft.planning
    live = any(allocation.state.endswith("ING") for allocation in state.allocations.values())
    if plain_busy(state):
        period = SWEEP_S
    elif live or any(runner.state == "SERVING" for runner in state.runners.values()):
        period = max(SWEEP_S, min(deadlines.RESTING_SWEEP_S, state.settings.missing_s / 4))
    else:
        period = deadlines.IDLE_SWEEP_S
    deadline = (at if last is None else last).mono + period
    for runner in state.runners.values():
        if (
            runner.state == "SERVING"
            and not runner.jobs
            and not runner.parts
            and runner.site in soft.sites
            and not runner.direct
        ):
            idle_since = soft.contacts[runner.id].idle_since
            deadline = min(deadline, idle_since + soft.sites[runner.site].linger_s + deadlines.LINGER_SLACK_S)
    if state.timers:
        deadline = min(deadline, at.mono + state.timers[0][0] - at.wall)
    return max(min(deadline, planning.rate_at, at.mono + planning.window_at - at.wall), at.mono)


def plain_due(state: State, at: At) -> list[str]:
    """The runners that a Tick does something about."""
    out = []
    for runner in state.runners.values():
        if runner.state not in ("SERVING", "DRAINING", "MISSING") or runner.direct:
            continue
        contact, facts = state.soft.contacts[runner.id], state.soft.sites.get(runner.site)
        silent = runner.state == "MISSING" or at.mono - contact.heard > state.settings.missing_s
        idle = runner.state == "SERVING" and not runner.jobs and not runner.parts and facts is not None
        if silent or (idle and facts is not None and at.mono - contact.idle_since > facts.linger_s):
            out.append(runner.id)
    return out


def plain_views(state: State) -> dict[str, tuple[int, dict[tuple[str, int], int]]]:
    """Site → allocations that are not over, and those on their way by queue and shape."""
    out: dict[str, tuple[int, dict[tuple[str, int], int]]] = {name: (0, {}) for name in state.soft.sites}
    serving = Counter(runner.allocation for runner in state.runners.values())
    for allocation in state.allocations.values():
        if allocation.site in out and allocation.state.endswith("ING"):
            live, coming = out[allocation.site]
            if serving[allocation.id] < allocation.nodes and allocation.state != "KILLING":
                key = (allocation.queue or "", ANY if allocation.shape is None else allocation.shape)
                coming[key] = coming.get(key, 0) + 1
            out[allocation.site] = live + 1, coming
    return out


def plain_idle(state: State) -> dict[str, float]:
    """Runner that has nothing to do → when it has lingered for long enough."""
    out, sites = {}, state.soft.sites
    for runner in state.runners.values():
        if runner.state == "SERVING" and not runner.jobs and not runner.parts:
            known = runner.site in sites and not runner.direct
            since = state.soft.contacts[runner.id].idle_since
            out[runner.id] = since + sites[runner.site].linger_s if known else math.inf
    return out


def compare(state: State, at: At, last: At | None) -> None:
    assert deadlines.is_busy(state) == plain_busy(state)
    assert deadlines.next_deadline(state, at, last) == plain_deadline(state, at, last)
    assert state.soft.idle.times == plain_idle(state)
    spoken = [r for r in state.runners.values() if r.state in ("SERVING", "DRAINING") and not r.direct]
    assert state.soft.quiet.times.keys() == {runner.id for runner in spoken}
    assert all(state.soft.quiet.times[runner.id] <= state.soft.contacts[runner.id].heard for runner in spoken)
    live, coming = state.census.live, state.census.coming
    assert {name: (live.get(name, 0), coming.get(name, {})) for name in state.soft.sites} == plain_views(state)


class Watched:
    """Compares at every Tick and every question for the next one."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.ticks = self.due = self.asked = 0
        tick, next_deadline = step.tick, step.next_deadline

        def watched_tick(state: State, at: At, last: At | None, due: Any) -> Any:
            found = plain_due(state, at)
            given = [runner.id for runner in due.runners]
            assert [name for name in given if name in found] == found, f"{found} are due, {given} were looked at"
            self.ticks += 1
            self.due += bool(found)
            return tick(state, at, last, due)

        def watched_deadline(state: State, at: At, last: At | None) -> float:
            compare(state, at, last)
            self.asked += 1
            return next_deadline(state, at, last)

        patch.setattr(step, "tick", watched_tick)
        patch.setattr(step, "next_deadline", watched_deadline)


# ---- in worlds of all kinds -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [3, 7, 1003, 1010, 2005])
def test_in_simulated_worlds(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(monkeypatch)
    outcome, _ = run_seed(seed)
    assert not outcome.problems
    assert watched.ticks and watched.asked


class Machine(RuleBasedStateMachine):
    """Runners that work, rest, fall silent and come back; clocks that are set, managers that sleep and start again."""

    @initialize()
    def begin(self) -> None:
        self.patch = pytest.MonkeyPatch()
        Watched(self.patch)
        self.world = World(site=False)
        self.world.site(most=3)
        self.world.tick()

    def pick(self, data: st.DataObject) -> FakeRunner:
        return data.draw(st.sampled_from(list(self.world.runners.values())))

    @rule(count=st.integers(1, 4))
    def submit(self, count: int) -> None:
        self.world.submit(count, cores(3))
        self.world.schedule()

    @precondition(lambda self: len(self.world.runners) < 3)
    @rule()
    def start(self) -> None:
        self.world.submit(1, cores(3))
        self.world.schedule()
        self.world.start_runner(f"r{len(self.world.runners)}")
        self.world.schedule()

    @precondition(lambda self: self.world.runners)
    @rule(data=st.data())
    def touch(self, data: st.DataObject) -> None:
        self.world.touch(self.pick(data))

    @precondition(lambda self: self.world.runners)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        runner = self.pick(data)
        for job in list(runner.held) if not runner.expired else []:
            self.world.end(runner, job)
        if data.draw(st.booleans()):
            self.world.schedule()

    @precondition(lambda self: self.world.runners)
    @rule(data=st.data())
    def greet_again(self, data: st.DataObject) -> None:
        runner = self.pick(data)
        if not runner.expired:
            self.world.greet(runner)

    @rule(seconds=st.sampled_from((0.1, 1.0, 14.0, 16.0, 31.0, 60.0, 61.0, 700.0)))
    def time(self, seconds: float) -> None:
        self.world.tick(seconds)

    @rule(seconds=st.sampled_from((-3600.0, -1.0, 3600.0)))
    def set_clock(self, seconds: float) -> None:
        self.world.wall += seconds

    @rule(linger_s=st.sampled_from((0.5, 30.0, 60.0, 1e9)), name=st.sampled_from(("local", "other")))
    def site_says(self, linger_s: float, name: str) -> None:
        facts = SiteFacts(NODE, most=3, linger_s=linger_s)
        self.world.step(SiteSeen(at=self.world.at, site=name, facts=facts))

    @rule(seconds=st.sampled_from((17.0, 61.0, 700.0)))
    def sleep(self, seconds: float) -> None:
        """The manager itself does not run for so long."""
        self.world.wall, self.world.mono = self.world.wall + seconds, self.world.mono + seconds
        self.world.step(Tick(at=self.world.at))

    @rule(from_start=st.booleans(), booted=st.booleans(), linger_s=st.sampled_from((0.5, 60.0)))
    def restart(self, from_start: bool, booted: bool, linger_s: float) -> None:
        """The monotonic clock begins anew if the machine was booted; sites may be known before anything else."""
        if not from_start:
            self.world.checkpoint()
        self.world.mono = 0.0 if booted else self.world.mono
        self.world.restart(from_start)
        self.world.core = Core(self.world.settings, state=self.world.rebuilt(from_start))
        self.site_says(linger_s, "local")
        self.world.core.restart(self.world.at)

    @invariant()
    def nothing_differs(self) -> None:
        if hasattr(self, "world"):
            compare(self.world.state, self.world.at, self.world.core.last_tick)

    def teardown(self) -> None:
        if hasattr(self, "patch"):
            self.patch.undo()


TestDeadlines = Machine.TestCase
TestDeadlines.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


# ---- Earliest -------------------------------------------------------------------------------------------------------


@given(st.lists(st.one_of(st.tuples(NAMES, TIMES), NAMES, st.integers(0, 9)), max_size=200))
def test_the_earliest_of_many(changes: list[tuple[str, float] | str | int]) -> None:
    plain: dict[str, float] = {}
    kept = Earliest()
    for change in changes:
        if isinstance(change, tuple):
            kept.set(*change)
            plain[change[0]] = change[1]
        elif isinstance(change, str):
            kept.drop(change)
            plain.pop(change, None)
        else:
            assert sorted(kept.due(change)) == sorted(name for name, time in plain.items() if time <= change)
        assert kept.times == plain
        assert kept.first == min(plain.values(), default=math.inf)
        assert len(kept._heap) <= 2 * len(plain) + 8


def test_a_manager_that_slept_leaves_idle_runners_the_rest_of_their_time() -> None:
    world = World(site=False)
    world.site(linger_s=30.0)
    world.tick()
    world.submit(1, cores(3))
    runner = world.start_runner()
    world.schedule()
    (job,) = runner.held
    world.end(runner, job)
    world.tick(1.0)
    world.wall, world.mono = world.wall + 700.0, world.mono + 700.0
    world.step(Tick(at=world.at))
    compare(world.state, world.at, world.core.last_tick)
    assert world.state.runners["r1"].state == "SERVING"
    assert world.state.soft.idle.first == world.mono + 29.0
