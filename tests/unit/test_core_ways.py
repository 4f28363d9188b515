"""Ways in which other queues went wrong, and this one must not."""

import pytest

from core_world import GIB, World, cores, lease_all
from rota.core.state import Settings
from rota.core.stimuli import Ended
from rota.model.patch import Patch
from support_steps import lines_of


@pytest.mark.parametrize(("failures", "least"), [(-(10**9), 30), (0, 30), (1, 60), (2, 120), (6, 1800), (10**9, 1800)])
def test_the_pause_before_a_retry(failures: int, least: int) -> None:
    from rota.core.decide.retries import backoff
    from rota.core.soft import chance_at

    world = World()
    pauses = [backoff(world.state, failures, chance_at(1, number)) for number in range(1, 201)]
    assert least <= min(pauses) and max(pauses) < least + 30
    assert max(pauses) - min(pauses) > 20, "with chance, so that they do not march in step"


def test_changing_one_behaviour_keeps_the_others_and_all_that_are_given() -> None:
    world = World()
    batch = world.submit(1, cores(1))
    world.change("modify", str(batch), patch=Patch(on_success=("a", "b"), on_failure=("c",)))
    world.change("modify", str(batch), patch=Patch(on_failure=("d", "e")))
    template = world.state.batches[batch].template(0)
    assert (template.on_success, template.on_failure) == (("a", "b"), ("d", "e"))


def test_changing_one_option_keeps_the_others() -> None:
    world = World()
    batch = world.submit(1, cores(1, options=(("account", "a"), ("partition", "p"))))
    world.change("modify", str(batch), patch=Patch(options_add=(("partition", "q"),)))
    assert world.state.batches[batch].template(0).needs.options == (("account", "a"), ("partition", "q"))
    world.change("modify", str(batch), patch=Patch(options_drop=("account",)))
    assert world.state.batches[batch].template(0).needs.options == (("partition", "q"),)


def test_changing_many_jobs_costs_a_decision_not_a_scan_each() -> None:
    def cost(count: int) -> float:
        world = World(check=False)
        batch = world.submit(count, cores(1))
        lines = lines_of(lambda: world.change("modify", str(batch), patch=Patch(priority=9)))
        assert world.state.batches[batch].template(count - 1).priority == 9
        return lines / count

    assert cost(200_000) <= cost(10_000)


def test_a_job_confirmed_dead_ended_when_that_was_said() -> None:
    world = World(Settings(missing_s=60))
    batch = world.submit(1, cores(1))
    runner = world.start_runner()
    (job,) = lease_all(world, runner)
    world.report(runner, started=[job])
    world.tick(70)
    assert world.states(batch) == ["MISSING"]
    world.change("kill", str(batch), confirm_dead=True)
    assert world.results[-1].ended == world.wall
    assert world.state.batches[batch].until == {} or min(world.state.batches[batch].until.values()) >= world.wall


def test_a_report_of_what_is_no_longer_its_own_is_acknowledged_so_that_the_runner_moves_on() -> None:
    world = World(Settings(missing_s=60))
    batch = world.submit(1, cores(1))
    runner = world.start_runner()
    (job,) = lease_all(world, runner)
    world.report(runner, started=[job])
    world.tick(70)
    world.change("kill", str(batch), confirm_dead=True)
    before = runner.acked
    world.end(runner, job)
    assert runner.acked > before
    assert world.states(batch) != ["COMPLETED"], "it had been given up"


def test_a_small_job_fills_the_gap_beside_a_large_one() -> None:
    """Four cores: two jobs of three, one of one. The small one runs beside the first large one."""
    world = World()
    large = world.submit(2, cores(3))
    small = world.submit(1, cores(1))
    runner = world.start_runner()
    lease_all(world, runner)
    assert (world.counts(large), world.counts(small)) == ({"STARTING": 1, "PENDING": 1}, {"STARTING": 1})


def test_the_more_urgent_small_job_goes_before_the_large_one() -> None:
    world = World()
    world.submit(1, cores(3))
    runner = world.start_runner()
    (first,) = lease_all(world, runner)
    large = world.submit(1, cores(4))
    urgent = world.submit(1, cores(1, priority=1))
    world.schedule()
    assert (world.counts(large), world.counts(urgent)) == ({"PENDING": 1}, {"STARTING": 1})
    world.end(runner, first)


def test_memory_that_a_killed_job_used_is_not_its_reason() -> None:
    world = World()
    batch = world.submit(1, cores(1, memory=GIB // 10, retries=3))
    runner = world.start_runner()
    (job,) = lease_all(world, runner)
    world.report(runner, started=[job])
    world.change("kill", str(batch))
    row = Ended(*job, None, 15, "killed", world.wall, world.wall, 0.1, 4 * GIB, None, None)
    world.report(runner, ended=[row])
    assert world.states(batch) == ["ABORTED"]
    assert world.results[-1].reason == "killed"
