"""Limits in the core: counts, windows and rates, over changes, restarts, lost runners and clocks that are set."""

import math
from datetime import UTC, datetime

import pytest
from bench import limits

from core_world import FakeRunner, World, cores, lease_all
from rota.core.stimuli import Tick
from rota.model import events as ev
from rota.model.errors import UsageError
from rota.model.needs import Amounts
from rota.model.tables import COMPLETED
from support_steps import counting

BIG = Amounts(1_000_000, 1 << 50)


def world_at(text: str, offset_s: int = 0) -> World:
    """A world at a local time."""
    world = World()
    world.utc_offset_s = offset_s
    world.wall = datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() - offset_s
    world.site(node=BIG)
    return world


def leased(world: World) -> int:
    counts = [world.counts(batch) for batch in world.state.batches]
    return sum(count.get("STARTING", 0) + count.get("RUNNING", 0) for count in counts)


def wait(world: World) -> float:
    """Seconds to the next Tick."""
    return world.core.next_deadline(world.at) - world.mono


def sleep(world: World, runner: FakeRunner, seconds: float) -> None:
    """Time passes; the runner is heard of; passes are made as a manager would. The last hour is checked."""
    end = world.mono + seconds
    while world.mono < end - 1e-9:
        world.checking = end - world.mono < 3600
        step = min(max(wait(world), 0.000_001), end - world.mono)
        world.wall, world.mono = world.wall + step, world.mono + step
        world.touch(runner)
        world.step(Tick(at=world.at))
        world.schedule()


def end_all(world: World, runner: FakeRunner) -> None:
    world.report(runner, ended=[world.row(job) for job in list(runner.held)])


# ---- counts --------------------------------------------------------------------------------------------------------


def test_two_limits_and_the_smaller_binds() -> None:
    world = World()
    world.submit(5, cores(0.1, limits=("a", "b")), limits={"b": 2, "a": 3})
    runner = world.start_runner()
    assert len(lease_all(world, runner)) == 2
    world.limit("b", 4)
    assert len(lease_all(world, runner)) == 3, "a:3 binds"


def test_a_limit_without_a_rule_is_said_to_limit_nothing() -> None:
    world = World()
    said = world.submitted(2, cores(0.1, limits=("db", "api"))).reply["warnings"]
    assert said == [
        "there is no rule for limit 'api', 'db': nothing is limited until one is set, as in rota limit api:4"
    ]
    assert world.submitted(2, cores(0.1, limits=("db",)), limits={"db": 1}).reply["warnings"] == []
    world.limit("api", "5/min")
    assert world.submitted(2, cores(0.1, limits=("db", "api"))).reply["warnings"] == []
    world.limit("api", None)
    assert "'api'" in world.submitted(2, cores(0.1, limits=("db", "api"))).reply["warnings"][0]
    assert world.submitted(2, cores(0.1, limits=("22:00:00<time<06:00:00",))).reply["warnings"] == []


def test_a_limit_set_while_jobs_run_counts_them() -> None:
    world = World()
    batch = world.submit(10, cores(0.5, limits=("db",)))
    runner = world.start_runner()
    assert len(lease_all(world, runner)) == 8
    world.limit("db", 3)
    world.report(runner, ended=[world.row(job) for job in list(runner.held)[:4]])
    world.schedule()
    assert world.counts(batch)["PENDING"] == 2 and leased(world) == 4, "4 run and 3 may: nothing starts"
    world.report(runner, ended=[world.row(job) for job in list(runner.held)[:2]])
    world.schedule()
    assert leased(world) == 3
    world.check_restart()


def test_lowered_it_drains_and_zero_blocks_even_what_would_queue_ahead() -> None:
    world = World()
    batch = world.submit(1000, cores(1, limits=("db",)), limits={"db": 4})
    runner = world.start_runner()
    for job in lease_all(world, runner):
        world.end(runner, job)
        world.shape_memo(0).mean_s = 0.01
    world.schedule()
    assert len(runner.held) > 4, "short jobs queue ahead in their slots"
    world.limit("db", 0)
    held = len(runner.held)
    assert lease_all(world, runner) and len(runner.held) == held, "nothing more from now on"
    while runner.held:
        world.end(runner, next(iter(runner.held)))
        world.schedule()
    assert leased(world) == 0 and world.counts(batch)["PENDING"] > 900
    assert world.state.limits["db"].used == 0
    (verdict,) = world.refusals(0)
    assert verdict.detail == "limit db is full: 0 of 0 in use"
    world.limit("db", 2)
    assert len(lease_all(world, runner)) >= 2


@pytest.mark.parametrize("checkpoint", [False, True])
def test_a_removed_limit_stays_removed(checkpoint: bool) -> None:
    world = World()
    world.limit("db", 1)
    world.limit("api", "2/h,3,22:00-06:00")
    if checkpoint:
        world.checkpoint()
    world.limit("db", None)
    world.limit("api", None)
    world.restart()
    batch = world.submit(3, cores(1, limits=("api", "db")))
    assert len(lease_all(world, world.start_runner())) == 3
    assert world.counts(batch) == {"STARTING": 3}
    assert not world.state.timed and not world.state.starts


def test_a_missing_job_keeps_its_slot_until_it_is_given_up() -> None:
    world = World()
    world.submit(3, cores(1, limits=("db",)), limits={"db": 1})
    runner = world.start_runner()
    (job,) = lease_all(world, runner)
    world.report(runner, started=[job])
    world.tick(70)
    assert world.job(1, 1) == "MISSING"
    other = world.start_runner("r2")
    assert lease_all(world, other) == [] and world.state.limits["db"].used == 1
    world.restart()
    world.greet(other)
    assert lease_all(world, other) == [] and world.state.limits["db"].used == 1
    world.tick(70)
    world.greet(other)
    world.change("kill", "1.1", confirm_dead=True)
    assert len(lease_all(world, other)) == 1


def test_nothing_is_asked_of_a_site_beyond_the_limit() -> None:
    world = World(site=False)
    world.site(node=Amounts(1000, 1 << 40), most=100)
    for _ in range(5):
        world.submit(50, cores(0.25, limits=("db",)))
    world.limit("db", 4)
    runner = world.start_runner(capacity=Amounts(1000, 1 << 40))
    lease_all(world, runner)
    assert leased(world) == 4
    asked = len(world.state.allocations)
    for _ in range(10):
        world.tick()
        world.touch(runner)
        world.schedule()
    assert len(world.state.allocations) == asked, "the limit is full: another node would stand idle"
    world.limit("db", 5)
    world.schedule()
    assert len(world.state.allocations) == asked + 1


# ---- fairness ------------------------------------------------------------------------------------------------------


def test_shapes_of_equal_priority_share_and_a_higher_one_goes_first() -> None:
    world = world_at("2026-11-16 12:00:00")
    batches = [world.submit(500, cores(1, memory=number + 1, limits=("db",))) for number in range(4)]
    high = world.submit(8, cores(1, memory=99, priority=7, limits=("db",)))
    world.limit("db", 40)
    runner = world.start_runner(capacity=BIG)
    world.schedule()
    assert world.counts(high) == {"STARTING": 8}
    assert [world.counts(batch)["STARTING"] for batch in batches] == [8] * 4
    for job in [job for job in runner.held if job[0] in (high, batches[3])]:
        world.end(runner, job)
    world.schedule()
    assert [world.counts(batch)["STARTING"] for batch in batches] == [10] * 4


def test_a_late_shape_gets_its_part_of_slots_that_others_keep_filling() -> None:
    world = world_at("2026-11-16 12:00:00")
    first = world.submit(100_000, cores(1, memory=1, limits=("db",)), limits={"db": 10})
    runner = world.start_runner(capacity=BIG)
    lease_all(world, runner)
    world.shape_memo(0).mean_s = 0.01
    world.schedule()
    second = world.submit(100_000, cores(1, memory=2, limits=("db",)))
    for _ in range(100):
        jobs = [job for job in runner.held if job[0] == first][:5]
        world.report(runner, ended=[world.row(job) for job in jobs])
        world.shape_memo(0).mean_s = 0.01
        world.schedule()
        if world.state.shapes[1].slots >= 4:
            break
    assert 4 <= world.state.shapes[1].slots <= 6, "not all for ever to the first"
    assert world.state.limits["db"].used <= 10
    assert second


def test_what_one_cannot_use_the_others_get() -> None:
    world = World()
    world.submit(50, cores(4, limits=("db",)))
    small = world.submit(50, cores(0.5, memory=1, limits=("db",)))
    world.limit("db", 6)
    runner = world.start_runner(capacity=Amounts(3000, 1 << 40))
    lease_all(world, runner)
    assert world.counts(small)["STARTING"] == 6, "the node is too small for the first"


# ---- windows -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("offset_s", [0, 3600, -18_000, 20_700])
def test_a_window_over_midnight(offset_s: int) -> None:
    world = world_at("2026-11-16 18:50:00", offset_s)
    batch = world.submit(3, cores(1, limits=("night",)), limits={"night": "22:00-06:00"})
    runner = world.start_runner(capacity=BIG)
    assert lease_all(world, runner) == []
    (verdict,) = world.refusals(0)
    assert verdict.code == "closed" and verdict.detail == "limit night is closed until 22:00"
    sleep(world, runner, 3 * 3600 + 600 - 1)
    assert leased(world) == 0
    sleep(world, runner, 1 - 0.001)
    assert leased(world) == 0 and wait(world) <= 0.002, "it wakes at the moment"
    sleep(world, runner, 0.002)
    assert world.counts(batch) == {"STARTING": 3}
    world.check_restart()


def test_nothing_starts_after_it_closes_and_what_runs_goes_on() -> None:
    world = world_at("2026-11-17 05:59:59")
    batch = world.submit(10, cores(1, limits=("night",)), limits={"night": "2,22:00-06:00"})
    runner = world.start_runner(capacity=BIG)
    world.schedule()
    world.shape_memo(0).mean_s = 0.01
    world.end(runner, next(iter(runner.held)))
    world.schedule()
    held = len(runner.held)
    sleep(world, runner, 1.0)
    while runner.held:
        world.end(runner, next(iter(runner.held)))
        world.schedule()
    assert world.counts(batch) == {"COMPLETED": held + 1, "PENDING": 9 - held}
    sleep(world, runner, 16 * 3600)
    assert leased(world) >= 2


def test_a_window_stands_for_itself() -> None:
    world = world_at("2026-11-16 16:59:00")
    world.submit(1, cores(1, limits=("time<17:00:00",)))
    world.submit(1, cores(1, limits=("17:00:00<time",)))
    world.submit(1, cores(1, limits=("datetime<2026-11-16 18:00:00", "irods")))
    runner = world.start_runner(capacity=BIG)
    lease_all(world, runner)
    assert [world.counts(number) for number in (1, 2, 3)] == [{"STARTING": 1}, {"PENDING": 1}, {"STARTING": 1}]
    world.checkpoint()
    world.restart()
    world.greet(runner, capacity=BIG)
    sleep(world, runner, 61)
    assert world.counts(2) == {"STARTING": 1}
    world.check_restart()


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("2026-11-01..2026-11-16", "it is over"),
        ("datetime<2026-11-16 11:00:00", "it is over"),
        ("22:00-22:00", "it is empty"),
        ("2027-01-02..2027-01-01", "it ends before it begins"),
        ("10/fortnight", "a rate is a number per"),
        ("abc", "none of a count"),
    ],
)
def test_what_can_never_open_is_refused_and_nothing_is_added(setting: str, says: str) -> None:
    world = world_at("2026-11-16 12:00:00")
    before = len(world.log)
    with pytest.raises(UsageError, match=says):
        world.limit("x", setting)
    with pytest.raises(UsageError, match=says):
        world.submit(1, cores(1, limits=("x",)), limits={"a": 1, "x": setting})
    if "<" in setting:
        with pytest.raises(UsageError, match=says):
            world.submit(1, cores(1, limits=(setting,)))
    assert len(world.log) == before and not world.state.batches and not world.state.limits


def test_the_offset_of_local_time_may_change() -> None:
    world = world_at("2026-10-25 02:30:00", 7200)
    world.submit(1, cores(1, limits=("w",)), limits={"w": "03:00-04:00"})
    runner = world.start_runner(capacity=BIG)
    sleep(world, runner, 1799)
    assert leased(world) == 0
    world.utc_offset_s = 3600  # summer ends at 03:00: it is 02:00 again
    sleep(world, runner, 3599)
    assert leased(world) == 0
    sleep(world, runner, 3)
    assert leased(world) == 1


def test_a_clock_that_is_set_opens_and_closes() -> None:
    world = world_at("2026-11-16 12:00:00")
    world.submit(20, cores(1, limits=("w",)), limits={"w": "1,13:00-14:00"})
    runner = world.start_runner(capacity=BIG)
    assert lease_all(world, runner) == []
    world.wall += 3600
    sleep(world, runner, 1.1)
    assert leased(world) == 1
    world.wall -= 7200
    end_all(world, runner)
    assert lease_all(world, runner) == []


# ---- rates ---------------------------------------------------------------------------------------------------------


def starts_of(world: World) -> list[tuple[float, int]]:
    return [
        (event.at, sum(event.spans[1::2]) - sum(event.spans[::2]))
        for event in world.events()
        if isinstance(event, ev.Leased) and event.at is not None
    ]


def check_rate(world: World, rate: int, per_s: float) -> None:
    starts = starts_of(world)
    for begin, _ in starts:
        most = sum(count for at, count in starts if begin <= at < begin + per_s - 1e-5)
        assert most <= rate, f"{most} started in {per_s} s from {begin}"


def test_a_rate_is_kept_and_used() -> None:
    world = world_at("2026-11-16 12:00:00")
    world.submit(1000, cores(1, limits=("api",)), limits={"api": "100/min"})
    runner = world.start_runner(capacity=BIG)
    assert len(lease_all(world, runner)) == 100
    (verdict,) = world.refusals(0)
    assert verdict.code == "rate" and verdict.detail == "limit api: 100 per minute used up"
    end_all(world, runner)
    assert lease_all(world, runner) == [], "it is starts that count, not slots"
    sleep(world, runner, 59.9)
    assert leased(world) == 0 and wait(world) < 0.11
    sleep(world, runner, 0.2)
    assert leased(world) == 100
    sleep(world, runner, 200)
    assert sum(count for _, count in starts_of(world)) == 500
    check_rate(world, 100, 60)
    world.check_restart()


@pytest.mark.parametrize("jump_s", [0.0, 5.0, -5.0, -86_400.0])
@pytest.mark.parametrize("checkpoint", [False, True])
def test_a_rate_is_kept_over_a_restart(checkpoint: bool, jump_s: float) -> None:
    world = world_at("2026-11-16 12:00:00")
    world.submit(1000, cores(1, limits=("api",)), limits={"api": "10/min"})
    runner = world.start_runner(capacity=BIG)
    world.schedule()
    sleep(world, runner, 30)
    if checkpoint:
        world.checkpoint()
    world.mono = 3.0  # the machine started anew, and its clock may be off
    world.wall += jump_s
    world.restart()
    world.site(node=BIG)
    world.greet(runner, capacity=BIG)
    assert len(lease_all(world, runner)) == 10
    sleep(world, runner, 30 - jump_s - 0.1 if jump_s > -60 else 59.9)
    assert leased(world) == 10, "not before a minute has passed, as far as anybody can know"
    sleep(world, runner, 0.2)
    assert leased(world) == 20


def test_setting_the_clock_does_not_change_a_rate() -> None:
    world = world_at("2026-11-16 12:00:00")
    world.submit(1000, cores(1, limits=("api",)), limits={"api": "10/min"})
    runner = world.start_runner(capacity=BIG)
    world.schedule()
    for jump in (3600.0, -7200.0, 86_400.0):
        world.wall += jump
        sleep(world, runner, 5)
        assert leased(world) == 10
    sleep(world, runner, 46)
    assert leased(world) == 20


def test_a_rate_that_is_changed_counts_what_it_counted() -> None:
    world = world_at("2026-11-16 12:00:00")
    world.submit(1000, cores(1, limits=("api",)), limits={"api": "10/min"})
    runner = world.start_runner(capacity=BIG)
    world.schedule()
    world.limit("api", "12/min")
    world.schedule()
    assert leased(world) == 12
    world.limit("api", "5/min")
    world.schedule()
    sleep(world, runner, 59)
    assert leased(world) == 12
    sleep(world, runner, 2)
    assert leased(world) == 17
    world.limit("api", "3")
    world.schedule()
    assert leased(world) == 17
    world.limit("api", None)
    world.schedule()
    assert leased(world) == 1000


def test_a_rate_is_shared_in_turn() -> None:
    world = world_at("2026-11-16 12:00:00")
    batches = [world.submit(500, cores(1, memory=number + 1, limits=("api",))) for number in range(3)]
    world.limit("api", "2/s")
    runner = world.start_runner(capacity=BIG)
    sleep(world, runner, 30)
    counts = [world.counts(batch).get("STARTING", 0) for batch in batches]
    assert max(counts) - min(counts) <= 2 and sum(counts) >= 55, counts
    check_rate(world, 2, 1)


def test_leases_ahead_are_starts() -> None:
    world = world_at("2026-11-16 12:00:00")
    world.submit(5000, cores(1, limits=("api",)), limits={"api": "1,50/s"})
    runner = world.start_runner(capacity=BIG)
    for _ in range(300):
        world.schedule()
        if runner.held:
            end_all(world, runner)
        world.shape_memo(0).mean_s = 0.001
        world.wall, world.mono = world.wall + 0.02, world.mono + 0.02
        world.step(Tick(at=world.at))
    assert any(count > 1 for _, count in starts_of(world)), "some were ahead"
    check_rate(world, 50, 1)


def test_an_idle_manager_is_not_woken_by_limits() -> None:
    world = world_at("2026-11-16 12:00:00")
    world.limit("w", "13:00-14:00")
    world.limit("api", "1/min")
    world.schedule()
    assert world.state.soft.planning.window_at == world.state.soft.planning.rate_at == math.inf


# ---- many ----------------------------------------------------------------------------------------------------------


def test_84000_jobs_in_50_shapes_behind_a_limit_of_2000() -> None:
    """Never more than 2,000 run, nor is a node asked for that they would not need."""
    _, cluster = limits.drive(84_000, 2_000, 50, True)
    assert cluster.most == 2_000 and cluster.asked == 0
    assert sum(batch.counts[COMPLETED] for batch in cluster.core.state.batches.values()) == 84_000
    assert cluster.core.state.limits["irods"].used == 0


def test_a_limit_costs_little() -> None:
    rates = []
    for limited in (False, True):
        with counting() as steps:
            rates.append(limits.drive(5_000, 2_000, 50, limited, steps)[0])
    free, behind = rates
    assert behind >= 0.8 * free, "jobs per line"


def test_a_rate_that_nothing_waits_for_any_more_wakes_nobody() -> None:
    world = World()
    world.limit("api", "1/min")
    batch = world.submit(2, cores(1, limits=("api",)))
    runner = world.start_runner()
    (job,) = lease_all(world, runner)
    world.end(runner, job)
    world.schedule()
    assert world.core.next_deadline(world.at) <= world.mono + 60
    world.change("kill", f"{batch}.2")
    for _ in range(3):
        world.tick(30)
        world.touch(runner)
        world.schedule()
    assert world.core.next_deadline(world.at) > world.mono + 0.5
