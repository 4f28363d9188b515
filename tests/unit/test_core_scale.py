"""What a million jobs cost in the core, and that the same stimuli make the same log."""

import gc
import tracemalloc

from core_world import FakeRunner, World, cores, lease_all
from rota.core.explain import batch_reasons, standing
from rota.core.stimuli import Submit
from rota.model.batch import BatchSpec, Dependency
from support_steps import counting, lines_of

SOME, MILLION = 10_000, 1_000_000


def submission(world: World, count: int) -> Submit:
    """An array."""
    return Submit(at=world.at, spec=BatchSpec(count, (cores(1),), ranges=((1, count, 1),)), key="m")


def submitted(count: int) -> World:
    """A world with an array and nothing else."""
    world = World(check=False)
    world.step(submission(world, count))
    return world


def test_a_million_is_submitted_as_a_few_are() -> None:
    def cost(count: int) -> int:
        world = World(check=False)
        stimulus = submission(world, count)
        return lines_of(lambda: world.step(stimulus))

    assert cost(MILLION) <= 1.1 * cost(SOME)


def test_a_million_takes_little_memory() -> None:
    world = World(check=False)
    gc.collect()
    tracemalloc.start()
    world.step(submission(world, MILLION))
    now, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert world.counts(1) == {"PENDING": MILLION}
    assert now <= 30 << 20 and peak <= 30 << 20


def test_a_million_is_leased_and_changed_as_a_few_are() -> None:
    def cost(count: int) -> int:
        world = submitted(count)
        runner = world.start_runner()
        with counting() as steps:
            assert len(lease_all(world, runner)) == 4
            assert world.change("hold", "1")["jobs"] == count
            assert world.change("release", "1")["jobs"] == count
            assert world.change("kill", f"1.5-{count - 1}")["jobs"] == count - 5
        assert standing(world.state, Dependency(f"1.5-{count - 1}"))[1].startswith("depends on 1.5-")
        return steps()

    assert cost(MILLION) <= 1.3 * cost(SOME), "a few lines for each chunk of jobs"


def test_a_pass_does_not_grow_with_the_jobs() -> None:
    def cost(count: int) -> int:
        world = submitted(count)
        runner = world.start_runner()
        world.schedule()
        world.end(runner, next(iter(runner.held)))
        return lines_of(world.schedule)

    assert cost(MILLION) <= 1.1 * cost(SOME)


def with_a_checkpoint(count: int) -> tuple[World, FakeRunner]:
    """A world of some jobs, one of them ended, and its runner."""
    world = World(check=False)
    world.submit(count, cores(1))
    runner = world.start_runner()
    (first, *_) = lease_all(world, runner)
    world.end(runner, first, 1)
    world.checkpoint()
    return world, runner


def test_a_million_rows_come_back_from_a_checkpoint() -> None:
    world, runner = with_a_checkpoint(MILLION)
    assert sum(len(states) + len(attempts) for states, attempts in world.columns.values()) < 6 << 20
    state = world.rebuilt(from_start=False)
    assert state.batches[1].counts == world.state.batches[1].counts
    world.end(runner, next(iter(runner.held)))
    before = dict(world.columns)
    world.checkpoint()
    assert sum(world.columns[key] is not before[key] for key in before) == 2, "only what changed is written"


def test_a_million_rows_come_back_as_a_few_do() -> None:
    def cost(count: int) -> int:
        world, _ = with_a_checkpoint(count)
        return lines_of(lambda: world.rebuilt(from_start=False))

    assert cost(MILLION) <= 1.3 * cost(SOME), "a few lines for each chunk of rows"


def script(world: World) -> list[bytes]:
    """Some of everything that involves chance."""
    world.site(most=2)
    world.submit(6, cores(1, retries=2))
    world.submit(3, cores(0.5), at_once=1)
    runner = world.start_runner()
    for round_ in range(5):
        jobs = lease_all(world, runner)
        world.report(runner, ended=[world.row(job, number % 2) for number, job in enumerate(jobs)])
        world.tick(30 + round_)
        world.touch(runner)
    return world.log


def test_the_same_stimuli_make_the_same_log() -> None:
    assert script(World(seed=3)) == script(World(seed=3))
    assert script(World(seed=3)) != script(World(seed=4))


def test_attempt_numbers_do_not_run_out_quietly() -> None:
    """A job that is leased more often than two bytes can count must not stop the manager."""
    world = World()
    batch = world.submit(1, cores(1))
    runner = world.start_runner()
    world.state.batches[batch].attempts[0] = 65_535
    world.schedule()
    assert runner.held == {} or next(iter(runner.held))[2] > 65_535


def test_why_many_batches_wait_is_told_as_why_a_few_do() -> None:
    def cost(count: int) -> float:
        world = World(check=False)
        for _ in range(count):
            world.submit(1)
        return lines_of(lambda: list(batch_reasons(world.state, world.state.batches.open(), world.at))) / count

    assert cost(2000) <= 1.5 * cost(100), "each looks at what is before it, not at all"
