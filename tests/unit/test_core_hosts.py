"""A host that fails everything at once while others do well gets no more jobs."""

import pytest

from core_world import GIB, FakeRunner, World, cores, lease_all
from rota.core.state import Settings
from rota.core.stimuli import Ended, Greet
from rota.model.needs import Amounts

NODE = Amounts(1000, GIB)


def world_of(*hosts: str, jobs: int = 100, **settings: float) -> tuple[World, list[FakeRunner]]:
    world = World(Settings(**settings), site=False)  # type: ignore[arg-type]
    world.site("hpc", NODE, most=len(hosts), whole=False, array_most=10)
    world.submit(jobs, cores(1))
    world.schedule()
    return world, [come(world, f"r{number}", host) for number, host in enumerate(hosts)]


def come(world: World, name: str, host: str) -> FakeRunner:
    taken = {runner.allocation for runner in world.runners.values()}
    free = next(a.id for a in world.state.allocations.values() if a.state.endswith("ING") and a.id not in taken)
    runner = world.runners[name] = FakeRunner(name, free)
    runner.connect = 1
    greet = Greet(at=world.at, by=name, runner=name, allocation=free, connect=1, clock=world.mono, host=host, pid=1,
                  capacity=NODE, tags=(), until=None, output="/o", held=[])  # fmt: skip
    world.step(greet)
    return runner


def run(world: World, runner: FakeRunner, code: int, took_s: float = 0.1) -> None:
    """The next job of a runner starts and ends."""
    (job,) = lease_all(world, runner)[:1]
    world.report(runner, started=[job])
    world.tick(took_s)
    row = Ended(*job, code, None, None if code == 0 else "exit", 0.0, took_s, 0.1, 1 << 20, None, None)
    world.report(runner, ended=[row])


def leave(world: World, runner: FakeRunner) -> None:
    world.bye(runner)
    assert runner.allocation is not None
    world.allocation(runner.allocation, "complete")
    world.schedule()


def state_of(world: World, name: str) -> tuple[str, str | None]:
    runner = world.state.runners[name]
    return runner.state, runner.why


def test_five_fast_failures_while_another_host_does_well() -> None:
    world, (good, bad) = world_of("n1", "n2")
    run(world, good, 0)
    for _ in range(4):
        run(world, bad, 1)
    assert state_of(world, "r1")[0] == "SERVING"
    run(world, bad, 1)
    why = "5 jobs failed within seconds on n2 while such jobs succeed elsewhere"
    assert state_of(world, "r1") == ("DRAINING", why)
    ahead = set(bad.held)  # what it was given before, it gives back
    lease_all(world, bad)
    assert set(bad.held) == ahead
    assert state_of(world, "r0")[0] == "SERVING"
    run(world, good, 0)


@pytest.mark.parametrize("what", ["all fail", "slow", "now and then", "other kinds"])
def test_not_the_host_s_fault(what: str) -> None:
    world, (good, bad) = world_of("n1", "n2", jobs=40)
    if what == "other kinds":
        run(world, good, 0)
        world.change("kill", "1", ":pending")
        world.submit(20, cores(1, priority=1, limits=("other",)))
        world.schedule()
    elif what != "all fail":
        run(world, good, 0)
    for number in range(9):
        run(world, bad, 0 if what == "now and then" and number % 4 == 3 else 1, 6.0 if what == "slow" else 0.1)
    assert state_of(world, "r1")[0] == "SERVING"


def test_the_host_is_turned_away_until_its_time_is_over() -> None:
    world, (good, bad) = world_of("n1", "n2", bad_host_s=600.0)
    run(world, good, 0)
    for _ in range(5):
        run(world, bad, 1)
    leave(world, bad)
    again = come(world, "r9", "n2")
    assert state_of(world, "r9")[0] == "DRAINING"
    site = world.state.soft.weather.of("hpc")
    assert site.closed_until > world.mono and "n2" in (site.why or "")
    leave(world, again)
    world.tick(6)
    world.schedule()
    leave(world, come(world, "r8", "n2"))
    site = world.state.soft.weather.of("hpc")
    assert site.closed_until - world.mono == pytest.approx(10), "longer each time"
    for _ in range(20):
        world.tick(30)
        world.touch(good)
        world.schedule()
    world.tick(2)
    back = come(world, "r10", "n2")
    assert state_of(world, "r10")[0] == "SERVING"
    assert lease_all(world, back)
