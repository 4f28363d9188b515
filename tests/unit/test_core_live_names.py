"""Live names, names that nothing has, and circles."""

import pytest

from core_world import World, lease_all, run_jobs
from rota.core.explain import standing
from rota.model.batch import MAX_AFTER, BatchSpec, Dependency, Template
from rota.model.errors import RefusedError, UsageError
from support_steps import counting, lines_of


def live(name: str, condition: str = "success", rerun: bool = False) -> Dependency:
    return Dependency(f"@{name}", condition, live=True, rerun=rerun)  # type: ignore[arg-type]


def test_a_new_batch_makes_what_waits_or_is_ready_wait_for_it() -> None:
    world = World()
    one = world.submit(name="align")
    merge = world.submit(2, after=[live("align")])
    usual = world.submit(after=["@align"])
    run_jobs(world, one, 0)
    assert world.states(merge) == ["PENDING"] * 2
    two = world.submit(name="align")
    assert world.states(merge) == ["WAITING"] * 2
    assert world.states(usual) == ["PENDING"], "a name that is not live means what was there before"
    says = standing(world.state, live("align"), world.state.batches[merge])
    assert says == ("open", "waits for @align (and for any other that is given this name): 1 of 2 jobs not settled")
    world.check_restart()
    three = world.submit(name="align")
    run_jobs(world, two, 0)
    assert world.states(merge) == ["WAITING"] * 2
    run_jobs(world, three, 0)
    assert world.states(merge) == ["PENDING"] * 2


def test_what_runs_is_left_to_finish_and_what_completed_stays() -> None:
    world = World()
    one = world.submit(name="x")
    merge = world.submit(2, after=[live("x")])
    run_jobs(world, one, 0)
    run_jobs(world, merge, 0)
    runner = world.runners["r1"]
    (job,) = lease_all(world, runner)
    world.report(runner, started=[job])
    world.submit(name="x")
    assert world.states(merge) == ["COMPLETED", "RUNNING"]
    world.end(runner, job)
    assert world.states(merge) == ["COMPLETED", "COMPLETED"]


def test_a_completed_one_runs_again_and_so_do_its_own_dependents() -> None:
    world = World()
    a = world.submit(name="g")
    b = world.submit(name="b", after=[live("g", rerun=True)])
    c = world.submit(name="c", after=[live("b", rerun=True)])
    d = world.submit(after=[live("c")])
    for batch in (a, b, c, d):
        run_jobs(world, batch, 0)
    new = world.submit(name="g")
    assert world.states(b) + world.states(c) == ["WAITING", "WAITING"]
    assert world.states(d) == ["COMPLETED"], "it did not ask for it"
    world.check_restart()
    run_jobs(world, new, 0)
    assert world.states(b) + world.states(c) == ["PENDING", "WAITING"]
    run_jobs(world, b, 0)
    run_jobs(world, c, 0)
    assert world.states(c) == ["COMPLETED"]
    assert list(world.state.batches[c].attempts) == [2]


@pytest.mark.parametrize("again", [False, True], ids=["at once", "after a restart"])
def test_a_running_one_finishes_and_runs_again(again: bool) -> None:
    world = World()
    one = world.submit(name="x")
    merge = world.submit(2, name="m", after=[live("x", rerun=True)])
    last = world.submit(after=[live("m", rerun=True)])
    run_jobs(world, one, 0)
    runner = world.runners["r1"]
    jobs = lease_all(world, runner)
    world.report(runner, started=jobs)
    two = world.submit(name="x")
    assert world.states(merge) == ["RUNNING"] * 2
    world.check_restart()
    if again:
        world.restart()
        world.greet(runner)
    world.report(runner, ended=[world.row(jobs[0]), world.row(jobs[1], 1)])
    assert world.states(merge) == ["WAITING", "FAILED"], "a failure is not tried again for it"
    assert world.states(last) == ["WAITING"]
    run_jobs(world, two, 0)
    run_jobs(world, merge, 0)
    assert world.states(merge) == ["COMPLETED", "FAILED"]
    assert world.states(last) == ["OMITTED"]
    assert not world.state.batches[merge].rerun_wanted
    world.check_restart()


def test_what_was_omitted_gets_another_chance_where_a_new_batch_can_help() -> None:
    world = World()
    one = world.submit(name="x")
    alarm = world.submit(after=[live("x", "failure")])
    merge = world.submit(after=[live("x")])
    run_jobs(world, one, 0)
    assert world.states(alarm) == ["OMITTED"]
    two = world.submit(name="x")
    assert world.states(alarm) == ["WAITING"]
    run_jobs(world, two, 1)
    assert (world.states(alarm), world.states(merge)) == (["PENDING"], ["OMITTED"])


def test_a_held_one_stays_held_and_waits_when_it_is_released() -> None:
    world = World()
    one = world.submit(name="x")
    merge = world.submit(after=[live("x")])
    run_jobs(world, one, 0)
    world.change("hold", str(merge))
    two = world.submit(name="x")
    world.change("release", str(merge))
    assert world.states(merge) == ["WAITING"]
    world.change("hold", str(merge))
    run_jobs(world, two, 1)
    assert world.states(merge) == ["OMITTED"]


def test_a_name_that_nothing_had_means_what_came_until_it_was_ready() -> None:
    world = World()
    batch = world.submit(2, after=["@later"])
    one, two = world.submit(name="later"), world.submit(name="later")
    run_jobs(world, one, 0)
    assert world.states(batch) == ["WAITING"] * 2, "both were there before it could run"
    run_jobs(world, two, 0)
    assert world.states(batch) == ["PENDING"] * 2
    world.check_restart()
    world.submit(name="later", after=[str(batch)])
    assert world.states(batch) == ["PENDING"] * 2
    world.change("kill", str(batch))
    world.change("retry", str(batch))
    assert world.states(batch) == ["PENDING"] * 2, "it does not begin to wait for what waits for it"
    world.restart()
    assert "later" not in {name for name, waiting in world.state.open_names.items() if waiting}


def test_an_unknown_name_can_be_refused() -> None:
    world = World()
    with pytest.raises(UsageError, match="--after @later: nothing is named 'later'"):
        world.submit(after=["@later"], require_known=True)
    first = world.submit(name="later")
    second = world.submit(after=["@later"], require_known=True)
    assert (first, second) == (1, 2)


@pytest.mark.parametrize("kind", ["", "live"])
def test_circles_are_refused_in_words(kind: str) -> None:
    world = World()
    make = live if kind else lambda name: Dependency(f"@{name}")
    world.submit(name="x", after=[make("y")])
    middle = world.submit(after=["@x"])
    with pytest.raises(UsageError, match="wait for itself and never run: y → x → y"):
        world.submit(name="y", after=[make("x")])
    with pytest.raises(UsageError, match=f"never run: y → batch {middle} → x → y"):
        world.submit(name="y", after=[f"{middle}.1"])
    assert world.submit(name="y") == 3, "nothing was added"
    world.check_restart()


def test_a_circle_through_a_live_group() -> None:
    world = World()
    world.submit(name="x")
    world.submit(name="merge", after=[live("x", rerun=True)])
    with pytest.raises(UsageError, match="never run: x → merge → x"):
        world.submit(name="x", after=["@merge"])


def test_self_dependencies() -> None:
    world = World()
    for dependency in ("@x", live("x")):
        with pytest.raises(UsageError, match="the batch would wait for itself"):
            world.submit(name="x", after=[dependency])
    with pytest.raises(UsageError, match="there is no batch 1: that will be this one"):
        world.submit(after=["1"])
    world.submit(name="x")
    with pytest.raises(UsageError, match=r"wait for itself \(x → x\): it is itself a new batch of that name"):
        world.submit(name="x", after=[live("x")])
    assert world.submit(name="x", after=["@x"]) == 2, "those before it can be meant by its own name"


def test_a_long_circle_is_found_without_recursion_and_shown_in_part() -> None:
    def cost(count: int) -> float:
        world = World(check=False)
        world.submit(name="a", after=["@z"])
        for number in range(1, count):
            world.submit(after=[str(number)])
        with (
            counting() as steps,
            pytest.raises(UsageError, match=rf"never run: z → batch {count} → .* → … → .* → a → z"),
        ):
            world.submit(name="z", after=[str(count)])
        return steps() / count

    assert cost(3000) <= 1.1 * cost(500)


def test_a_chain_under_a_live_name_is_built_without_looking_at_all_of_it() -> None:
    world = World(check=False)
    world.submit(name="report", after=[live("step")])
    world.submit(name="step")
    costs = []
    for number in range(2, 1000):
        costs.append(lines_of(lambda last=number: world.submit(name="step", after=[str(last)])))
    assert max(costs[-100:]) <= 1.1 * min(costs[:100])


def test_too_many_dependencies() -> None:
    def cost(count: int) -> int:
        spec = BatchSpec(1, (Template(argv=("true",)),), after=(Dependency("1"),) * count)
        with counting() as steps, pytest.raises(UsageError, match=f"{count:,} dependencies: .* at most 10,000;"):
            spec.check()
        return steps()

    assert cost(1_000_000) == cost(MAX_AFTER + 1), "they are counted, not looked at"
    world = World(check=False)
    world.submit()
    assert world.submit(after=["1"] * MAX_AFTER) == 2


@pytest.mark.parametrize(
    ("dependency", "says"),
    [
        (Dependency("7", live=True), "--after 7 --live: only a name"),
        (Dependency("@x", rerun=True), "rerun goes with live"),
        (Dependency("@x", live=True, each=True), "--each and --live cannot be given for the same"),
    ],
)
def test_what_does_not_go_together(dependency: Dependency, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        dependency.check()


def test_parent_and_child_are_removed_together() -> None:
    world = World()
    parent = world.submit(name="x")
    child = world.submit(after=[live("x")])
    with pytest.raises(RefusedError, match=f"batch {child} depends on batch {parent}"):
        world.change("remove", str(parent))
    assert world.change("remove", str(child), str(parent))["jobs"] == 2


def test_batches_of_one_name_that_wait_for_each_other_in_turn_are_cheap() -> None:
    def cost(count: int) -> float:
        world = World(check=False)
        with counting() as steps:
            world.submit(name="x")
            for _ in range(count):
                world.submit(name="x", after=["@x"])
            for number in range(1, count + 1):
                run_jobs(world, number, 0)
        world.change("retry", "1", ":completed")
        assert world.states(count + 1) == ["WAITING"]
        world.check_restart()
        return steps() / count

    assert cost(300) <= 1.1 * cost(60)


END = BatchSpec(1, (Template(shell="echo over"),))


@pytest.mark.parametrize("codes", [(0, 0), (1, 0), (1, 1)])
def test_what_runs_at_the_end_of_a_batch(codes: tuple[int, int]) -> None:
    world = World()
    step = world.submitted(2, name="align", then=END)
    assert (step.reply["batch"], step.reply["end"]) == (1, 2)
    end = world.state.batches[2]
    assert (end.spec.name, end.spec.ends, end.spec.after) == ("align-end", 1, (Dependency("1", "any"),))
    again = world.submitted(2, name="align", then=END, key="k1")
    assert again.reply == {"batch": 1, "jobs": 2, "duplicates": 0, "warnings": [], "end": 2}
    run_jobs(world, 1, codes[0])
    assert world.states(2) == ["WAITING"]
    world.check_restart()
    world.restart()
    world.greet(world.runners["r1"])
    run_jobs(world, 1, codes[1])
    run_jobs(world, 2, 0)
    world.change("retry", "1", ":settled")
    assert world.states(2) == ["COMPLETED"], "once"


def test_a_circle_through_the_end_of_a_batch() -> None:
    world = World()
    world.submit(name="y", after=["@x-end"])
    with pytest.raises(UsageError, match="never run: x-end → y → x-end"):
        world.submitted(name="x", after=["@y"], then=END)
    with pytest.raises(UsageError, match="one job, without values"):
        world.submitted(name="x", then=BatchSpec(2, (Template(argv=("true",)),)))
    assert world.submit() == 2


def test_a_circle_through_what_was_omitted() -> None:
    """It is opened again as soon as what it depends on is, and would then wait for itself."""
    world = World()
    gone = world.submit()
    second = world.submit(after=[live("merge")])
    third = world.submit(after=[str(gone), str(second)])
    world.change("kill", str(gone))
    assert world.states(third) == ["OMITTED"]
    with pytest.raises(UsageError, match=f"merge → batch {third} → batch {second} → merge"):
        world.submit(name="merge", after=[str(third)])


@pytest.mark.parametrize("live", [True, False])
def test_a_new_batch_of_a_name_that_was_met_counts_while_another_name_is_waited_for(live: bool) -> None:
    """It waits for a name that nothing has, and is omitted all the same when the first name can never be met."""
    world = World()
    waiter = world.submit(1, after=(Dependency("@call", live=live), Dependency("@align")))
    first = world.submit(1, name="call")
    run_jobs(world, first, 0)
    second = world.submit(1, name="call")
    run_jobs(world, second, 1)
    assert world.states(waiter) == ["OMITTED"]
    world.check_restart()


def test_what_was_omitted_after_something_that_runs_again_does_too_though_both_wait_for_the_name() -> None:
    world = World()
    one = world.submit(name="x")
    mend = world.submit(after=[live("x", "failure")])
    both = world.submit(after=[str(mend), live("x", "any")])
    run_jobs(world, one, 0)
    assert world.states(mend) == world.states(both) == ["OMITTED"]
    two = world.submit(name="x")
    assert world.states(mend) == world.states(both) == ["WAITING"]
    run_jobs(world, two, 1)
    run_jobs(world, mend, 0)
    assert world.states(both) == ["PENDING"]
