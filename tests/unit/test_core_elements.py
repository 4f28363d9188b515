"""Dependencies job by job: each waits only for the one with its own number."""

import pytest

from core_world import World, lease_all
from rota.core.explain import omitted_reason, waiting_for
from rota.model.batch import Dependency
from rota.model.errors import RefusedError, UsageError
from support_steps import counting, lines_of


def each(target: object, condition: str = "success") -> Dependency:
    return Dependency(str(target), condition, each=True)  # type: ignore[arg-type]


def run(world: World, codes: dict[tuple[int, int], int]) -> None:
    """Run exactly these jobs to these exit codes."""
    runner = world.runners.get("r1") or world.start_runner()
    left = dict(codes)
    while left:
        jobs = [job for job in lease_all(world, runner) if job[:2] in left]
        assert jobs, (left, runner.held)
        world.report(runner, ended=[world.row(job, left.pop((job[0], job[1]))) for job in jobs])


def test_each_job_waits_for_its_own_number_only() -> None:
    world = World()
    first = world.submit(3)
    second = world.submit(3, after=[each(first)])
    assert world.states(second) == ["WAITING"] * 3
    run(world, {(first, 2): 0})
    assert world.states(second) == ["WAITING", "PENDING", "WAITING"]
    world.check_restart()
    run(world, {(first, 1): 1})
    assert world.states(second) == ["OMITTED", "STARTING", "WAITING"]
    assert omitted_reason(world.state, world.state.batches[second], 0) == f"depends on {first}.1, which is FAILED"
    assert waiting_for(world.state, world.state.batches[second], world.wall, 2) == (
        f"waits for {first}.3, which is STARTING"
    )
    world.check_restart()


@pytest.mark.parametrize(
    ("condition", "good", "bad"), [("success", "PENDING", "OMITTED"), ("any", "PENDING", "PENDING"),
                                   ("failure", "OMITTED", "PENDING")],
)  # fmt: skip
def test_conditions_job_by_job(condition: str, good: str, bad: str) -> None:
    world = World()
    first = world.submit(3)
    second = world.submit(3, after=[each(first, condition)])
    run(world, {(first, 1): 0, (first, 2): 1})
    assert world.states(second) == [good, bad, "WAITING"]


def test_numbers_not_positions_are_matched() -> None:
    world = World()
    first = world.submit(6, ranges=((0, 10, 2),))
    second = world.submit(6, ranges=((0, 4, 2), (6, 10, 2)), after=[each(first)])
    third = world.submit(3, ranges=((6, 10, 2),), after=[each(f"{first}.6-10")])
    run(world, {(first, 6): 0})
    assert world.states(second) == ["WAITING"] * 3 + ["PENDING"] + ["WAITING"] * 2
    assert world.states(third) == ["PENDING", "WAITING", "WAITING"]
    says = waiting_for(world.state, world.state.batches[third], world.wall, 2)
    assert says == f"waits for {first}.10, which is PENDING"


@pytest.mark.parametrize(
    ("mine", "says"),
    [
        ({"count": 4}, "there is no new job 5 for 1.5"),
        ({"count": 6}, "there is no 1.6 for the new job 6"),
        ({"count": 5, "ranges": ((0, 4, 1),)}, "there is no 1.0 for the new job 0"),
        ({"count": 5, "ranges": ((1, 3, 1), (5, 6, 1))}, "there is no new job 4 for 1.4"),
        ({"count": 3, "ranges": ((1, 5, 2),)}, "there is no new job 2 for 1.2"),
    ],
)
def test_different_numbers_are_refused(mine: dict[str, object], says: str) -> None:
    world = World()
    world.submit(5)
    with pytest.raises(UsageError, match=f"--after 1 --each: both must have the same job numbers, but {says}"):
        world.submit(after=[each(1)], **mine)  # type: ignore[arg-type]
    assert world.submit() == 2


def test_a_name_of_one_batch_may_be_given_and_of_more_not() -> None:
    world = World()
    with pytest.raises(UsageError, match="--each: nothing has this name"):
        world.submit(2, after=[each("@x")])
    first = world.submit(2, name="x")
    second = world.submit(2, after=[each("@x")])
    assert world.state.batches[second].spec.after == (each(first),)
    world.submit(2, name="x")
    with pytest.raises(UsageError, match="--each: 2 batches have this name"):
        world.submit(2, after=[each("@x")])


def test_both_kinds_together() -> None:
    world = World()
    first, gate = world.submit(3), world.submit()
    second = world.submit(3, after=[str(gate), each(first)])
    run(world, {(first, 1): 0, (first, 2): 1})
    assert world.states(second) == ["WAITING", "OMITTED", "WAITING"]
    run(world, {(gate, 1): 0})
    assert world.states(second) == ["PENDING", "OMITTED", "WAITING"]
    other = world.submit(3, after=[each(second), each(first, "any")])
    assert world.states(other) == ["WAITING", "OMITTED", "WAITING"]
    world.check_restart()
    world.restart()
    run(world, {(first, 3): 0})
    assert world.states(second)[2] == "PENDING"


def test_a_gate_that_fails_omits_all() -> None:
    world = World()
    first, gate = world.submit(2), world.submit()
    second = world.submit(2, after=[str(gate), each(first)])
    run(world, {(first, 1): 0, (gate, 1): 1})
    assert world.states(second) == ["OMITTED"] * 2


def test_a_retry_concerns_only_the_same_number() -> None:
    world = World()
    first = world.submit(3)
    second = world.submit(3, after=[each(first)])
    third = world.submit(3, after=[each(second)])
    run(world, {(first, 1): 1, (first, 2): 1, (first, 3): 0})
    assert world.states(second) == ["OMITTED", "OMITTED", "PENDING"]
    world.change("retry", f"{first}.1")
    assert world.states(second) == ["WAITING", "OMITTED", "PENDING"]
    assert world.states(third) == ["WAITING", "OMITTED", "WAITING"]
    world.change("retry", f"{first}.3", ":completed")
    assert world.states(second) == ["WAITING", "OMITTED", "WAITING"]
    world.check_restart()
    run(world, {(first, 1): 0})
    assert world.states(second) == ["PENDING", "OMITTED", "WAITING"]


def test_held_and_killed_jobs() -> None:
    world = World()
    first = world.submit(3)
    second = world.submit(3, after=[each(first)])
    world.change("hold", f"{second}.1-2")
    world.change("kill", f"{first}.1")
    run(world, {(first, 2): 0})
    assert world.states(second) == ["OMITTED", "HOLDING", "WAITING"]
    world.change("release", str(second))
    assert world.states(second) == ["OMITTED", "PENDING", "WAITING"]


def test_remove_asks_for_the_same_number_only() -> None:
    world = World()
    first = world.submit(2)
    second = world.submit(2, after=[each(first)])
    run(world, {(first, 1): 1, (first, 2): 0})
    assert world.change("remove", f"{first}.1")["jobs"] == 1
    with pytest.raises(RefusedError, match=f"batch {second} depends on batch {first}"):
        world.change("remove", f"{first}.2")


def test_a_million_at_the_cost_of_bytes() -> None:
    def costs(count: int) -> tuple[int, int]:
        world = World(check=False)
        first = world.submit(count)
        second = world.submit(count, after=[each(first)])
        third = world.submit(count, after=[each(second)])
        killed = lines_of(lambda: world.change("kill", f"{first}.1000-{count - 1}"))
        assert world.counts(third) == {"WAITING": 1000, "OMITTED": count - 1000}
        run(world, {(first, 1): 0, (first, 2): 1})
        assert world.states(second)[:3] == ["PENDING", "OMITTED", "WAITING"]
        with counting() as steps:
            for number in range(3, 203):
                run(world, {(first, number): 0})
        assert world.counts(second)["OMITTED"] == count - 999
        return killed, steps()

    of_few, of_million = costs(10_000), costs(1_000_000)
    assert of_million[0] <= 1.5 * of_few[0], "some lines for each chunk of jobs"
    assert of_million[1] <= 1.1 * of_few[1], "what ends is looked at, not the whole"
