"""A large job is never starved: a place is kept for it, and smaller ones run there only if they do not delay it."""

from core_world import World, cores, lease_all
from rota.core.plan.backfill import ahead_of
from rota.core.state import Settings
from support_steps import lines_of

PATIENT = 600.0


def world_with(after: float | None = PATIENT) -> World:
    return World(Settings(missing_s=1e9, backfill_after_s=after))


def busy_node(world: World, **more: object) -> tuple[object, list[tuple[int, int, int]]]:
    """Four cores, each with a job of one core that says that it takes 1000 s."""
    world.submit(4, cores(1, time_s=1000, **more))
    runner = world.start_runner()
    jobs = lease_all(world, runner)
    assert len(jobs) == 4
    return runner, jobs


def test_without_a_reservation_small_jobs_starve_the_large_one() -> None:
    world = world_with(None)
    runner, jobs = busy_node(world)
    large = world.submit(1, cores(4))
    world.tick(PATIENT + 1)
    small = world.submit(50, cores(1))
    for job in jobs:
        world.end(runner, job)
        world.schedule()
    assert world.states(large) == ["PENDING"]
    assert world.counts(small)["STARTING"] == 4


def test_the_large_job_starts_when_the_node_has_drained() -> None:
    world = world_with()
    runner, jobs = busy_node(world)
    large = world.submit(1, cores(4))
    world.tick(PATIENT + 1)
    small = world.submit(50, cores(1))
    for job in jobs[:3]:
        world.end(runner, job)
        world.schedule()
        assert world.counts(small) == {"PENDING": 50}
    verdicts = world.refusals(world.state.batches[small].shapes[0])
    assert any(v.code == "reserved" and f"kept for batch {large}" in v.detail for v in verdicts)
    world.end(runner, jobs[3])
    world.schedule()
    assert world.states(large) == ["STARTING"]


def test_before_its_patience_is_over_nothing_is_kept() -> None:
    world = world_with()
    runner, jobs = busy_node(world)
    world.submit(1, cores(4))
    world.tick(PATIENT - 10)
    small = world.submit(50, cores(1))
    world.end(runner, jobs[0])
    world.schedule()
    assert world.counts(small)["STARTING"] == 1


def test_short_jobs_fill_the_gap() -> None:
    world = world_with()
    runner, jobs = busy_node(world)
    large = world.submit(1, cores(4))
    world.tick(PATIENT + 1)  # the others are taken to end in 1000 - 601 s
    short = world.submit(5, cores(1, time_s=300))
    long = world.submit(5, cores(1, time_s=500))
    world.end(runner, jobs[0])
    world.schedule()
    assert world.counts(short) == {"STARTING": 1, "PENDING": 4}
    assert world.counts(long) == {"PENDING": 5}
    assert world.states(large) == ["PENDING"]


def test_what_fits_beside_the_large_job_may_run() -> None:
    world = world_with()
    runner, jobs = busy_node(world)
    world.submit(1, cores(3))
    world.tick(PATIENT + 1)
    small = world.submit(5, cores(1))
    world.end(runner, jobs[0])
    world.schedule()
    assert world.counts(small) == {"STARTING": 1, "PENDING": 4}, "one core will be left over"
    world.end(runner, jobs[1])
    world.schedule()
    assert world.counts(small) == {"STARTING": 1, "PENDING": 4}


def test_jobs_of_unknown_length_do_not_run_beside_it_for_ever() -> None:
    world = world_with()
    world.submit(4, cores(1))
    runner = world.start_runner()
    jobs = lease_all(world, runner)
    large = world.submit(1, cores(2))
    world.tick(PATIENT + 1)
    small = world.submit(50, cores(1))
    world.end(runner, jobs[0])
    world.schedule()
    assert world.counts(small) == {"PENDING": 50}, "nobody knows when the second core is free"
    world.end(runner, jobs[1])
    world.schedule()
    assert world.states(large) == ["STARTING"] and world.counts(small) == {"PENDING": 50}


def test_what_came_before_is_not_held_up() -> None:
    world = world_with()
    runner, jobs = busy_node(world)
    early = world.submit(2, cores(1, priority=1))
    world.submit(1, cores(4, priority=0))
    world.tick(PATIENT + 1)
    late = world.submit(5, cores(1, priority=1))  # of the same shape as the early ones, and of higher priority
    world.end(runner, jobs[0])
    world.schedule()
    assert world.counts(early) == {"STARTING": 1, "PENDING": 1}
    world.end(runner, jobs[1])
    world.end(runner, jobs[2])
    world.schedule()
    assert world.counts(early) == {"STARTING": 2}
    assert world.counts(late)["STARTING"] == 1, "higher priority goes before"


def test_later_jobs_of_an_earlier_shape_do_not_overtake() -> None:
    world = world_with()
    runner, jobs = busy_node(world)
    early = world.submit(1, cores(1))
    large = world.submit(1, cores(4))
    world.tick(PATIENT + 1)
    world.schedule()
    late = world.submit(5, cores(1))
    for job in jobs[:3]:
        world.end(runner, job)
        world.schedule()
    assert world.counts(early) == {"STARTING": 1}
    assert world.counts(late) == {"PENDING": 5}
    world.end(runner, jobs[3])
    world.end(runner, next(job for job in runner.held if job[0] == early))
    world.schedule()
    assert world.states(large) == ["STARTING"]


def test_a_batch_more_costs_the_same_however_many_wait_for_the_kept_place() -> None:
    def cost(waiting: int) -> int:
        world = World(Settings(missing_s=1e9, backfill_after_s=PATIENT), check=False)
        busy_node(world)
        for _ in range(waiting):
            world.submit(1, cores(1))
        world.tick(PATIENT + 1)
        world.schedule()
        kept = world.state.soft.planning.reserved
        assert kept is not None
        shape = world.state.shapes[kept.shape_id]
        every = sorted(shape.heads)
        assert ahead_of(world.state, shape, every[waiting // 2][:2]) == waiting // 2 + 1
        world.submit(1, cores(1))
        return lines_of(world.schedule)

    assert cost(2_000) <= 1.1 * cost(20)
