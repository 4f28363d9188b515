"""A host that fails everything at once while others do well is suspected, then avoided; its jobs run elsewhere."""

import pytest

from core_world import GIB, FakeRunner, World, cores, lease_all
from rota.core.state import Settings
from rota.core.stimuli import Ended, Greet
from rota.model.needs import Amounts
from rota.model.tables import FAILED


def world_of(*hosts: str, jobs: int = 100, size: int = 1, **settings: float) -> tuple[World, list[FakeRunner]]:
    """A world with a runner on each of these hosts."""
    world = World(Settings(**settings), site=False)  # type: ignore[arg-type]
    world.site("hpc", Amounts(size * 1000, size * GIB), most=len(hosts), whole=True, array_most=10)
    world.submit(jobs, cores(1))
    world.schedule()
    return world, [come(world, f"r{number}", host, size) for number, host in enumerate(hosts)]


def come(world: World, name: str, host: str, size: int = 1) -> FakeRunner:
    taken = {runner.allocation for runner in world.runners.values()}
    free = next(a.id for a in world.state.allocations.values() if a.state.endswith("ING") and a.id not in taken)
    runner = world.runners[name] = FakeRunner(name, free)
    runner.connect = 1
    greet = Greet(at=world.at, by=name, runner=name, allocation=free, connect=1, clock=world.mono, host=host, pid=1,
                  capacity=Amounts(size * 1000, size * GIB), tags=(), until=None, output="/o", held=[])  # fmt: skip
    world.step(greet)
    return runner


def pass_time(world: World, seconds: float) -> None:
    """Time passes, everybody is heard, and the scheduler looks."""
    for _ in range(int(seconds * 2)):
        world.tick(0.5)
        for runner in world.runners.values():
            if world.state.runners[runner.name].state in ("SERVING", "DRAINING"):
                world.touch(runner)
        world.schedule()


def start(world: World, runner: FakeRunner) -> list[tuple[int, int, int]]:
    """All that a runner is leased starts."""
    new = [job for job in lease_all(world, runner) if runner.held[job] != "running"]
    world.report(runner, started=new)
    return new


def end(world: World, runner: FakeRunner, jobs: list[tuple[int, int, int]], code: int, took_s: float = 0.1) -> None:
    reason = None if code == 0 else "exit"
    rows = [Ended(*job, code, None, reason, 0.0, took_s, 0.1, 1 << 20, None, None) for job in jobs]
    world.report(runner, ended=rows)


def run(world: World, runner: FakeRunner, code: int, took_s: float = 0.1) -> int:
    """What a runner is given starts and ends; returns how many jobs that were."""
    jobs = start(world, runner)
    world.tick(took_s)
    if jobs:
        end(world, runner, jobs, code, took_s)
    return len(jobs)


def test_what_nobody_has_is_no_hosts_fault() -> None:
    world, (first, _other) = world_of("n0", "n1", jobs=6, size=2)
    count = 0
    for _ in range(3):
        rows = [
            Ended(*job, None, None, "input", 0.0, 0.0, 0.1, 0, None, "no replica of /x can be had")
            for job in start(world, first)
        ]
        count += len(rows)
        world.report(first, ended=rows)
        pass_time(world, 1)
    assert count >= 4 and not is_suspected(world, "n0")
    assert world.state.batches[1].counts[FAILED] == count, "each counts, and none is tried elsewhere in vain"


def leave(world: World, runner: FakeRunner) -> None:
    world.bye(runner)
    assert runner.allocation is not None
    world.allocation(runner.allocation, "complete")
    world.schedule()


def state_of(world: World, name: str) -> tuple[str, str | None]:
    runner = world.state.runners[name]
    return runner.state, runner.why


def is_suspected(world: World, host: str) -> bool:
    record = world.state.soft.weather.hosts.get(("hpc", host))
    return record is not None and record.suspected is not None


def eat(world: World, bad: FakeRunner, seconds: float) -> int:
    """Everything fails on a host at once for so long; returns how many attempts did."""
    eaten = 0
    for _ in range(int(seconds * 2)):
        eaten += run(world, bad, 1)
        pass_time(world, 0.5)
    return eaten


def test_a_black_hole_eats_few_and_fails_none() -> None:
    world, (bad, *good) = world_of("n0", "n1", "n2", "n3", jobs=120, size=8)
    running = {runner.name: start(world, runner) for runner in good}
    eaten = eat(world, bad, 30)
    assert eaten <= 8 + 3, "what it was given at first, and a few trials"
    assert state_of(world, "r0")[0] == "DRAINING"
    assert "while such jobs do well elsewhere" in (state_of(world, "r0")[1] or "")
    assert world.state.batches[1].counts[FAILED] == 0
    assert not world.state.batches[1].failures, "none of it counts"
    for runner in good:
        assert state_of(world, runner.name)[0] == "SERVING"
        end(world, runner, running[runner.name], 0, 30.0)
    for _ in range(20):
        for runner in good:
            run(world, runner, 0)
    assert world.counts(1) == {"COMPLETED": 120}
    told = [note for result in world.results if (note := result.note)]
    assert "does not count: n0 is suspected" in told
    assert any("suspected" in note for note in world.notes())


def test_what_failed_before_the_suspicion_runs_again() -> None:
    world, (bad, good) = world_of("n0", "n1", size=1)
    start(world, good)
    run(world, bad, 1)
    assert world.counts(1)["FAILED"] == 1
    run(world, bad, 1)
    assert is_suspected(world, "n0")
    assert "FAILED" not in world.counts(1)


def test_a_suspected_host_gets_one_job_at_a_time_after_a_pause() -> None:
    world, (bad, good) = world_of("n0", "n1", size=4)
    start(world, good)
    assert run(world, bad, 1) == 4
    assert not lease_all(world, bad), "a pause"
    codes = {verdict.code: verdict.detail for verdict in world.refusals(0)}
    assert "one at a time" in codes["suspected"]
    pass_time(world, 1.5)
    assert len(start(world, bad)) == 1
    assert not [job for job in lease_all(world, bad) if bad.held[job] != "running"]
    assert any("gets one job at a time" in verdict.detail for verdict in world.refusals(0))


@pytest.mark.parametrize("how", ["succeeds", "runs"])
def test_a_job_that_does_well_there_ends_the_suspicion(how: str) -> None:
    world, (bad, good) = world_of("n0", "n1", size=4)
    start(world, good)
    run(world, bad, 1)
    assert is_suspected(world, "n0")
    pass_time(world, 1.5)
    if how == "succeeds":
        run(world, bad, 0)
    else:
        start(world, bad)
        pass_time(world, 7)
    assert not is_suspected(world, "n0")
    assert len(lease_all(world, bad)) > 1, "as many as fit"
    assert any("suspected no more" in note for note in world.notes())


def test_a_job_that_only_fails_there_counts_in_the_end() -> None:
    world, (bad, good) = world_of("n0", "n1", jobs=4, size=2)
    start(world, good)
    assert run(world, bad, 1) == 2
    assert is_suspected(world, "n0")
    for _ in range(30):
        pass_time(world, 0.5)
        run(world, bad, 1)
    assert world.counts(1)["FAILED"] == 1
    assert [result.state for result in world.results] == ["RETRIED"] * 4 + ["FAILED"]


def test_a_trial_is_of_a_job_that_has_not_failed_there() -> None:
    world, (bad, good) = world_of("n0", "n1", jobs=20, size=4)
    start(world, good)
    failed = start(world, bad)
    end(world, bad, failed, 1)
    pass_time(world, 1.5)
    (job,) = start(world, bad)
    assert job[:2] not in {each[:2] for each in failed}


def test_who_may_not_be_tried_again_is_not() -> None:
    world, (bad, good) = world_of("n0", "n1", size=2)
    start(world, good)
    world.submit(4, cores(1, never_retry_on=("exit",), priority=1))
    for job in lease_all(world, bad):
        world.report(bad, disclaimed=[job])
    world.schedule()
    run(world, bad, 1)
    assert is_suspected(world, "n0")
    assert world.counts(2)["FAILED"] == 2


@pytest.mark.parametrize("what", ["all fail", "slow", "now and then", "not alike", "others run there", "alone"])
def test_not_the_host_s_fault(what: str) -> None:
    hosts = ("n1",) if what == "alone" else ("n1", "n2")
    world, (*others, bad) = world_of(*hosts, jobs=40, size=2 if what == "others run there" else 1)
    if what == "others run there":
        first, *_ = start(world, bad)
        pass_time(world, 6)
        end(world, bad, [job for job in list(bad.held) if job != first], 1)
    elif what not in ("all fail", "alone"):
        for other in others:
            run(world, other, 0)
    for number in range(9):
        took = 6.0 if what == "slow" else 0.1
        if what == "all fail":
            run(world, others[0], 1)
        code = 0 if what == "now and then" and number % 2 else number + 1 if what == "not alike" else 1
        job = next(job for job in lease_all(world, bad) if what != "others run there" or job != first)
        world.report(bad, started=[job])
        world.tick(took)
        end(world, bad, [job], code, took)
    assert state_of(world, bad.name)[0] == "SERVING"
    assert not is_suspected(world, bad.name) and not is_suspected(world, "n1") and not is_suspected(world, "n2")


def test_a_lone_host_is_not_suspected_for_ever() -> None:
    world, (first, second) = world_of("n1", "n2")
    start(world, second)
    run(world, first, 1)
    run(world, first, 1)
    assert is_suspected(world, "n1")
    world.change("kill", "1", ":running")
    leave(world, second)
    for allocation in list(world.state.allocations.values()):
        if allocation.state in ("SUBMITTING", "PENDING"):
            world.allocation(allocation.id, "abort")
    world.state.soft.sites.pop("hpc")
    pass_time(world, 70)
    assert not is_suspected(world, "n1")


def test_an_avoided_host_gets_nothing_and_its_site_stays_open() -> None:
    world, (good, bad) = world_of("n1", "n2", bad_host_s=600.0)
    run(world, good, 0)
    eat(world, bad, 20)
    assert state_of(world, "r1")[0] == "DRAINING"
    leave(world, bad)
    again = come(world, "r9", "n2")
    pass_time(world, 2)
    assert state_of(world, "r9")[0] == "SERVING"
    assert not lease_all(world, again)
    assert any(verdict.code == "avoided" for verdict in world.refusals(0))
    assert world.state.soft.weather.of("hpc").closed_until == 0
    leave(world, again)
    assert any(a.state == "SUBMITTING" for a in world.state.allocations.values()), "another one is asked for"
    for _ in range(60):
        world.tick(10)
        world.touch(good)
        world.schedule()
    back = come(world, "r10", "n2")
    assert lease_all(world, back)


def test_a_runner_is_drained_once_for_two_reasons_in_one_report() -> None:
    """Its host is found to be bad by a report that also says that it is being stopped."""
    world, (bad, good) = world_of("n0", "n1", size=8)
    end(world, good, start(world, good), 0)
    *failed, last = start(world, bad)
    world.tick(0.1)
    rows = [Ended(*job, 1, None, "exit", 0.0, 0.1, 0.1, 1 << 20, None, None) for job in failed]
    world.report(bad, ended=[*rows, world.row(last, None, 15, "runner-stopped")])
    state, why = state_of(world, "r0")
    assert state == "DRAINING" and "while such jobs do well elsewhere" in (why or "")


def test_a_runner_is_drained_once_that_is_idle_when_its_host_is_found_to_be_bad() -> None:
    world, (bad, good) = world_of("n0", "n1", size=8, bad_host_fast_s=5)
    running = start(world, good)
    run(world, bad, 1)
    assert is_suspected(world, "n0") and state_of(world, "r0")[0] == "SERVING"
    world.site("hpc", Amounts(8000, 8 * GIB), most=2, whole=True, array_most=10, linger_s=4)
    world.tick(6)
    assert state_of(world, "r0")[0] == "DRAINING"
    assert ("hpc", "n0") in world.state.soft.weather.bad_hosts, "both at one moment"
    end(world, good, running, 0, 6.0)
