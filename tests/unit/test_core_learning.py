"""Learning in the core: samples, what is asked for next, and more for those that exceeded what they had."""

import pytest

from core_world import GIB, NODE, FakeRunner, Job, World, cores, lease_all
from rota.core.plan.asked import asked_now
from rota.core.state import Settings
from rota.core.stimuli import Ended
from rota.model.needs import Amounts
from rota.schedule.estimate import LEAST

MIB = 1 << 20


def over(
    world: World,
    runner: FakeRunner,
    job: Job,
    *,
    peak: int,
    code: int | None = 0,
    reason: str | None = None,
    wall_s: float = 10.0,
    signal: int | None = None,
) -> None:
    row = Ended(*job, code, signal, reason, world.wall - wall_s, world.wall, 0.5, peak, None, None)
    world.report(runner, ended=[row])


def slot_of(world: World, batch: int, pos: int = 0) -> str:
    return world.state.batches[batch].live[pos].slot


def learned(world: World, group: str, *peaks: int, **more: float) -> FakeRunner:
    """A world in which jobs of a group have used so much, each as often as it takes to go by it."""
    peaks *= LEAST if len(peaks) < LEAST else 1
    batch = world.submit(len(peaks), cores(1, group=group))
    runner = world.runners.get("r1") or world.start_runner()
    done = 0
    while done < len(peaks):
        for job in lease_all(world, runner):
            over(world, runner, job, peak=peaks[job[1] - 1], **more)
            done += 1
    assert world.counts(batch) == {"COMPLETED": len(peaks)}
    return runner


def test_what_was_not_given_is_learned() -> None:
    world = World()
    runner = learned(world, "align", 150 * MIB)
    batch = world.submit(1, cores(1, group="align"))
    lease_all(world, runner)
    assert slot_of(world, batch).amounts.memory == 200 * MIB
    assert world.state.ledger.used[runner_location(world)].memory == 200 * MIB
    world.checkpoint()
    world.check_restart()


def runner_location(world: World) -> str:
    return world.state.runners["r1"].location


@pytest.mark.parametrize(
    ("override", "given", "asked"),
    [("never", 500, 200), ("higher", 500, 500), ("higher", 100, 200), ("always", 500, 500), ("always", 100, 100)],
)
def test_whose_figure_counts(override: str, given: int, asked: int) -> None:
    world = World()
    runner = learned(world, "align", 150 * MIB)
    batch = world.submit(1, cores(1, group="align", override=override, memory=given * MIB))
    lease_all(world, runner)
    assert slot_of(world, batch).amounts.memory == asked * MIB


def test_what_was_said_is_not_lowered_and_nothing_goes_by_two_jobs() -> None:
    world = World()
    learned(world, "light", 150 * MIB)
    assert world.submitted(1, cores(1, group="light", memory=1500 * MIB, override="higher")).reply["learned"] == [
        "light: memory: asked 1500M, learned 200M from 3 jobs, gets 1500M",
    ]
    runner = world.runners["r1"]
    world.submit(2, cores(1, group="two"))
    for job in [job for job in lease_all(world, runner) if job[0] == world.state.next_batch - 1]:
        over(world, runner, job, peak=150 * MIB)
    batch = world.submit(1, cores(1, group="two"))
    lease_all(world, runner)
    assert slot_of(world, batch).amounts.memory == 0, "two samples are too few"


@pytest.mark.parametrize("override", ["never", "higher"])
def test_an_enforced_time_is_planned_as_it_was_given(override: str) -> None:
    world = World()
    learned(world, "slow", 150 * MIB, wall_s=26.0)
    asked = {}
    for enforce in (("time",), ()):
        batch = world.submit(1, cores(1, group="slow", override=override, time_s=2, enforce=enforce))
        shape = world.state.shapes[world.state.batches[batch].shapes[0]]
        asked[enforce] = asked_now(world.state, shape).asked.needs.time_s
    assert asked == {("time",): 2, (): 26}


def test_groups_that_share_a_prefix_do_not_mix() -> None:
    world = World()
    runner = learned(world, "foobar", 5000 * MIB)
    learned(world, "foo", 150 * MIB)
    batch = world.submit(1, cores(1, group="foo"))
    lease_all(world, runner)
    assert slot_of(world, batch).amounts.memory == 200 * MIB


def test_no_group_learns_nothing() -> None:
    world = World()
    runner = learned(world, "", 150 * MIB)
    assert world.state.groups == {}
    batch = world.submit(1, cores(1))
    lease_all(world, runner)
    assert slot_of(world, batch).amounts.memory == 0


def test_an_absurd_figure_counts_as_the_whole_node() -> None:
    world = World()
    runner = learned(world, "align", 1 << 60)
    batch = world.submit(1, cores(1, group="align"))
    lease_all(world, runner)
    assert world.counts(batch) == {"STARTING": 1}, "it must still fit somewhere"
    assert slot_of(world, batch).amounts.memory == NODE.memory


def test_slots_give_back_what_they_took_though_more_is_asked_for_now() -> None:
    world = World()
    world.submit(LEAST + 2, cores(0.5, group="align"))
    runner = world.start_runner()
    *first, second, third = lease_all(world, runner)
    for job in first:
        over(world, runner, job, peak=1000 * MIB)
    more = world.submit(1, cores(1, group="align"))
    lease_all(world, runner)
    assert slot_of(world, more).amounts.memory == 1000 * MIB
    over(world, runner, second, peak=10 * MIB)
    over(world, runner, third, peak=10 * MIB)
    over(world, runner, (more, 1, 1), peak=10 * MIB)
    assert world.state.ledger.used[runner_location(world)] == Amounts()


def failed_once(world: World, *, had: int | None, peak: int, reason: str | None, **more: object) -> tuple[int, Job]:
    batch = world.submit(1, cores(1, retries=3, memory=had, group="align", **more))
    runner = world.runners.get("r1") or world.start_runner()
    (job,) = lease_all(world, runner)
    code, signal = (None, 9) if reason in ("oom", "memory", "killed") else (1, None)
    over(world, runner, job, peak=peak, code=code, signal=signal, reason=reason)
    return batch, job


@pytest.mark.parametrize(
    ("had", "peak", "reason", "next_"),
    [
        (200, 500, "exit", 1500),  # used more than it had, and failed: that may be why
        (200, 3000, "exit", 6000),
        (200, 100, "exit", 200),  # did not use more: memory is not why
        (200, 150, "oom", 1200),  # the kernel's word counts, whatever was sampled
        (200, 500, "memory", 1500),
        (None, 500, "exit", None),  # nothing was asked for, so nothing was exceeded
        (None, 500, "oom", 1500),
        (200, 500, "time", 200),  # killed for another reason is not out of memory
        (200, 500, "not-found", 200),
        (200, 7000, "oom", 8192),  # no more than the largest node has
    ],
)
def test_after_a_failure(had: int | None, peak: int, reason: str, next_: int | None) -> None:
    world = World()
    batch, _ = failed_once(world, had=had and had * MIB, peak=peak * MIB, reason=reason)
    memory = world.state.batches[batch].template(0).needs.memory
    assert memory == (None if next_ is None else next_ * MIB)
    world.checkpoint()
    world.check_restart()


def test_a_user_who_says_always_is_not_overruled() -> None:
    world = World()
    batch, _ = failed_once(world, had=200 * MIB, peak=500 * MIB, reason="oom", override="always")
    assert world.state.batches[batch].template(0).needs.memory == 200 * MIB


def test_the_next_try_gets_more_and_the_record_says_so() -> None:
    world = World(Settings(missing_s=1e9))
    batch, _ = failed_once(world, had=200 * MIB, peak=500 * MIB, reason="exit")
    note = world.results[-1].note or ""
    assert "used 500M, had 200M" in note and "1500M" in note
    assert world.results[-1].reason == "exit", "an exceeded estimate is not called out of memory"
    world.tick(100)
    lease_all(world, world.runners["r1"])
    assert slot_of(world, batch).amounts.memory == 1500 * MIB


def test_what_was_learned_does_not_lower_an_escalated_job() -> None:
    world = World(Settings(missing_s=1e9))
    learned(world, "align", *[100 * MIB] * 10)
    batch, _ = failed_once(world, had=200 * MIB, peak=500 * MIB, reason="oom")
    world.tick(100)
    lease_all(world, world.runners["r1"])
    assert slot_of(world, batch).amounts.memory == 1500 * MIB


def test_too_long_gets_an_hour_more() -> None:
    world = World()
    batch = world.submit(1, cores(1, retries=1, time_s=60, group="align"))
    runner = world.start_runner()
    (job,) = lease_all(world, runner)
    over(world, runner, job, peak=1, code=None, signal=15, reason="time", wall_s=61)
    assert world.state.batches[batch].template(0).needs.time_s == 3720  # 61 s and an hour, in whole minutes
    assert "took more than 1m" in (world.results[-1].note or "")


@pytest.mark.parametrize(
    ("longest", "next_"), [(None, 3900), (1800, 1800), (300, None)], ids=["no end", "bounded", "no more is given"]
)
def test_a_job_that_asked_for_no_time_and_ran_out_of_it_asks_for_more(longest, next_) -> None:
    world = World()
    world.site(time_most_s=longest)
    batch = world.submit(1, cores(1, retries=1))
    runner = world.start_runner()
    (job,) = lease_all(world, runner)
    over(world, runner, job, peak=1, code=None, signal=15, reason="time", wall_s=300)
    assert world.state.batches[batch].template(0).needs.time_s == next_
    assert ("it asked for no time: the next try" in (world.results[-1].note or "")) == (next_ is not None)


def test_a_killed_job_is_not_escalated() -> None:
    world = World()
    batch = world.submit(1, cores(1, retries=1, memory=100 * MIB, group="align"))
    runner = world.start_runner()
    (job,) = lease_all(world, runner)
    world.report(runner, started=[job])
    world.change("kill", str(batch))
    over(world, runner, job, peak=5 * GIB, code=None, signal=15, reason="killed")
    assert world.counts(batch) == {"ABORTED": 1}
    assert len(world.state.batches[batch].templates) == 1


def test_a_million_samples_stay_small() -> None:
    world = World(check=False)
    learned(world, "align", *[(number % 700 + 1) * MIB for number in range(3000)])
    group = world.state.groups["align"]
    assert group.memory.seen == 3000
    assert len(group.memory.values) <= 1000
