"""Dependencies: on batches, jobs, ranges and names; for success, for any end, for failure."""

import pytest

from core_world import World, cores, lease_all, run_jobs
from rota.core.explain import standing, waiting_for
from rota.model.batch import Dependency
from rota.model.errors import UsageError
from rota.model.tables import JOB_STATES
from support_steps import lines_of


@pytest.mark.parametrize(
    ("condition", "codes", "state"),
    [
        ("success", (0, 0), "PENDING"),
        ("success", (0, 1), "OMITTED"),
        ("success", (1, 1), "OMITTED"),
        ("any", (0, 0), "PENDING"),
        ("any", (1, 0), "PENDING"),
        ("failure", (0, 0), "OMITTED"),
        ("failure", (0, 1), "PENDING"),
    ],
)
@pytest.mark.parametrize("how", ["batch", "range", "name"])
def test_conditions(how: str, condition: str, codes: tuple[int, int], state: str) -> None:
    world = World()
    first = world.submit(2, name="first")
    target = {"batch": str(first), "range": f"{first}.1-2", "name": "@first"}[how]
    second = world.submit(3, after=[(target, condition)])
    assert world.states(second) == ["WAITING"] * 3
    run_jobs(world, first, *codes)
    assert world.states(second) == [state] * 3
    world.check_restart()


def test_one_job_is_enough_for_who_waits_for_it() -> None:
    world = World()
    first = world.submit(2)
    one = world.submit(after=[f"{first}.1"])
    two = world.submit(after=[f"{first}.2"])
    run_jobs(world, first, 0)
    assert (world.states(one), world.states(two)) == (["PENDING"], ["WAITING"])


def test_a_killed_job_tells_who_waited_for_it_at_once() -> None:
    world = World()
    first = world.submit(3)
    success = world.submit(after=[f"{first}.1-2"])
    other = world.submit(after=[(f"{first}.1", "any")])
    world.change("kill", f"{first}.1-2")
    assert world.counts(first) == {"ABORTED": 2, "PENDING": 1}
    assert world.states(success) == ["OMITTED"]
    assert world.states(other) == ["PENDING"]


def test_a_lost_job_tells_who_waited_for_it_at_once() -> None:
    world = World()
    first = world.submit(2, cores(2))
    second = world.submit(after=[f"{first}.1"])
    runner = world.start_runner()
    lease_all(world, runner)
    world.state.batches[first].losses[0] = world.settings.losses
    world.change("hold", f"{first}.2")
    world.allocation("a1", "fail", "node died")
    assert world.job(first, 1) == "FAILED"
    assert world.states(second) == ["OMITTED"]


def test_several_dependencies_must_all_hold() -> None:
    world = World()
    one, two = world.submit(), world.submit()
    third = world.submit(after=[str(one), (str(two), "any")])
    run_jobs(world, one, 0)
    assert world.states(third) == ["WAITING"]
    run_jobs(world, two, 1)
    assert world.states(third) == ["PENDING"]


def test_an_unknown_name_is_waited_for() -> None:
    world = World()
    step = world.submitted(after=["@later"])
    batch = step.reply["batch"]
    assert step.reply["warnings"] == ["nothing is named 'later' yet: these jobs wait until something is"]
    assert (
        waiting_for(world.state, world.state.batches[batch], world.wall)
        == "waits for something named 'later' to be added"
    )
    later = world.submit(name="later")
    assert "1 of 1 jobs not settled" in str(waiting_for(world.state, world.state.batches[batch], world.wall))
    run_jobs(world, later, 0)
    assert world.states(batch) == ["PENDING"]


def test_a_name_means_all_that_have_it() -> None:
    world = World()
    one, two = world.submit(name="x"), world.submit(name="x")
    batch = world.submit(after=["@x"])
    run_jobs(world, one, 0)
    assert world.states(batch) == ["WAITING"]
    run_jobs(world, two, 0)
    assert world.states(batch) == ["PENDING"]


def test_a_batch_that_waits_for_its_own_name_waits_for_the_others_of_it() -> None:
    world = World()
    first = world.submit(name="x")
    second = world.submit(name="x", after=["@x"])
    run_jobs(world, first, 0)
    assert world.states(second) == ["PENDING"], "a batch cannot wait for itself"


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ("9", "--after 9: there is no batch 9"),
        ("1.7", "--after 1.7: there is no job 1.7"),
        ("1.1-7", "--after 1.1-7: there is no job 1.7"),
        (":failed", "--after :failed: name batches or jobs, not states"),
    ],
)
def test_targets_refused(target: str, says: str) -> None:
    world = World()
    world.submit(2)
    with pytest.raises(UsageError) as caught:
        world.submit(after=[target])
    assert says in str(caught.value)
    assert world.submit() == 2, "a refusal uses up no number"


def test_a_number_with_leading_zeros_is_the_same_batch() -> None:
    world = World()
    first = world.submit()
    second = world.submit(after=[f"00{first}"])
    run_jobs(world, first, 0)
    assert world.states(second) == ["PENDING"]


def test_words_for_those_who_ask() -> None:
    world = World()
    first = world.submit(3)
    says = lambda condition: standing(world.state, Dependency(str(first), condition))  # noqa: E731
    assert says("success") == ("open", f"waits for {first}: 3 of 3 jobs not settled")
    run_jobs(world, first, 0, 1)
    assert says("success") == ("open", f"waits for {first}: 1 of 3 jobs not settled, 1 did not succeed")
    run_jobs(world, first, 0)
    assert says("success") == ("never", f"depends on {first}, of which 1 of 3 jobs did not succeed")
    assert says("any") == says("failure") == ("met", "")
    good = world.submit()
    run_jobs(world, good, 0)
    assert standing(world.state, Dependency(str(good), "failure")) == (
        "never",
        f"was to run if {good} failed, but it succeeded",
    )


def test_held_jobs_are_omitted_too_and_their_wait_is_known() -> None:
    world = World()
    first = world.submit()
    second = world.submit(2, after=[str(first)])
    world.change("hold", f"{second}.1")
    world.change("kill", str(first))
    assert world.states(second) == ["OMITTED", "OMITTED"]
    assert "1 of 1 jobs did not succeed" in str(world.state.batches[second].omitted_why)


def test_not_before() -> None:
    world = World()
    batch = world.submit(2, not_before=world.wall + 100)
    assert str(waiting_for(world.state, world.state.batches[batch], world.wall)).startswith("waits for its time (")
    world.tick(99)
    assert world.states(batch) == ["WAITING"] * 2
    assert world.core.next_deadline(world.at) - world.mono <= 1.0
    world.tick(1)
    assert world.states(batch) == ["PENDING"] * 2


def long_chain(depth: int) -> World:
    """Batch 1, and so many more, each after the one before it."""
    world = World(check=False)
    world.submit()
    for number in range(1, depth + 1):
        world.submit(after=[str(number)])
    return world


def test_a_long_chain_falls_without_recursion() -> None:
    def cost(depth: int) -> float:
        world = long_chain(depth)
        lines = lines_of(lambda: world.change("kill", "1"))
        assert all(world.states(number) == ["OMITTED"] for number in range(2, depth + 2))
        return lines / depth

    assert cost(3000) <= 1.1 * cost(300)


def test_a_long_chain_is_opened_again_by_a_retry() -> None:
    def cost(depth: int) -> float:
        world = long_chain(depth)
        world.change("kill", "1")
        lines = lines_of(lambda: world.change("retry", "1"))
        assert world.states(1) == ["PENDING"]
        assert all(world.states(number) == ["WAITING"] for number in range(2, depth + 2))
        return lines / depth

    assert cost(3000) <= 1.1 * cost(300)


def test_a_wide_fan_falls_at_a_flat_cost() -> None:
    def cost(width: int) -> float:
        world = World(check=False)
        first = world.submit()
        fan = [world.submit(after=[str(first)]) for _ in range(width)]
        last = world.submit(after=[str(number) for number in fan])
        lines = lines_of(lambda: world.change("kill", str(first)))
        assert world.states(last) == ["OMITTED"]
        return lines / width

    assert cost(3000) <= 1.1 * cost(300)


def test_a_retry_opens_what_was_omitted_for_it() -> None:
    world = World()
    first = world.submit(2)
    second = world.submit(after=[str(first)])
    third = world.submit(2, after=[str(second)])
    run_jobs(world, first, 0, 1)
    assert world.states(third) == ["OMITTED"] * 2
    reply = world.change("retry", str(first))
    assert reply["jobs"] == 1
    assert world.states(first) == ["COMPLETED", "PENDING"]
    assert world.states(second) + world.states(third) == ["WAITING"] * 3
    run_jobs(world, first, 0)
    assert world.states(second) == ["PENDING"]
    run_jobs(world, second, 0)
    assert world.states(third) == ["PENDING"] * 2
    world.check_restart()


def test_a_retry_that_fails_again_omits_again() -> None:
    world = World()
    first = world.submit()
    second = world.submit(after=[str(first)])
    run_jobs(world, first, 1)
    world.change("retry", str(first))
    run_jobs(world, first, 1)
    assert world.states(second) == ["OMITTED"]


def test_what_is_ready_waits_again_when_its_dependency_is_retried() -> None:
    world = World()
    first = world.submit()
    second = world.submit(2, after=[str(first)])
    run_jobs(world, first, 0)
    assert world.states(second) == ["PENDING"] * 2
    world.change("retry", str(first), ":completed")
    assert world.states(second) == ["WAITING"] * 2
    run_jobs(world, first, 0)
    assert world.states(second) == ["PENDING"] * 2
    world.check_restart()


def test_all_of_one_batch_for_all_of_another_costs_one_edge() -> None:
    """10,000 jobs that each wait for 10,000: nothing of it is written out, in memory or in the log."""
    world = World()
    first = world.submit(10_000, cores(1))
    before = sum(map(len, world.log))
    second = world.submit(10_000, cores(1), after=[str(first)])
    assert world.state.batches[second].edges == ((first, 0, 10_000),)
    assert sum(map(len, world.log)) - before < 1000
    world.change("kill", str(first))
    assert world.state.batches[second].counts[JOB_STATES.index("OMITTED")] == 10_000
    assert len(world.log) < 10
    world.check_restart()


def test_a_batch_of_a_name_that_was_settled_and_runs_again_is_waited_for() -> None:
    world = World()
    first, second = world.submit(name="align"), world.submit(name="align")
    waiter = world.submit(after=["@align"])
    run_jobs(world, second, 0)
    world.change("retry", f"{second}", ":completed")
    run_jobs(world, first, 0)
    assert world.states(second) == ["PENDING"]
    assert world.states(waiter) == ["WAITING"], "the second was settled when the waiter looked, and is not any more"
    world.check_restart()
    run_jobs(world, second, 0)
    assert world.states(waiter) == ["PENDING"]
