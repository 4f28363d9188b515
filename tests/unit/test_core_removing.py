"""Jobs that are forgotten once they have settled in a certain way."""

from typing import Any

import pytest

from core_world import World, lease_all
from rota.model.batch import Dependency, Template
from rota.model.errors import UsageError
from rota.model.needs import Needs


def cores(count: int, **more: Any) -> Template:
    return Template(argv=("true",), needs=Needs(count * 1000), **more)


@pytest.mark.parametrize(
    ("when", "code", "state"),
    [
        ("success", 0, "REMOVED"), ("success", 1, "FAILED"), ("failure", 0, "COMPLETED"), ("failure", 1, "REMOVED"),
        ("exit", 0, "REMOVED"), ("exit", 1, "REMOVED"), (None, 0, "COMPLETED"),
    ],
)  # fmt: skip
def test_when(when: str | None, code: int, state: str) -> None:
    world = World()
    batch = world.submit(2, cores(1, remove_on=when))
    runner = world.start_runner()
    first, second = lease_all(world, runner)
    world.end(runner, first, code)
    assert world.states(batch)[first[1] - 1] == state
    assert world.states(batch)[second[1] - 1] in ("STARTING", "RUNNING")
    world.check_restart()


def test_a_retried_failure_is_not_settled() -> None:
    world = World()
    batch = world.submit(1, cores(1, remove_on="failure", retries=1))
    runner = world.start_runner()
    (job,) = lease_all(world, runner)
    world.end(runner, job, 1)
    assert world.states(batch) == ["WAITING"]
    for _ in range(100):
        world.tick(1)
        world.touch(runner)
    (job,) = lease_all(world, runner)
    world.end(runner, job, 1)
    assert world.states(batch) == ["REMOVED"]


def test_a_killed_one_counts_as_a_failure() -> None:
    world = World()
    batch = world.submit(1, cores(1, remove_on="failure"))
    runner = world.start_runner()
    (job,) = lease_all(world, runner)
    world.change("kill", str(batch))
    world.end(runner, job, None, 15, "killed")
    assert world.states(batch) == ["REMOVED"]
    world.check_restart()


def test_what_others_wait_for_stays() -> None:
    world = World()
    batch = world.submit(2, cores(1, remove_on="exit"))
    after = world.submit(1, cores(1), after=(str(batch),))
    runner = world.start_runner()
    for job in lease_all(world, runner):
        world.end(runner, job, 0)
    assert world.states(batch) == ["COMPLETED", "COMPLETED"]
    assert world.states(after) != ["OMITTED"]
    (job,) = lease_all(world, runner)
    assert job[0] == after


def test_an_unknown_word_is_refused_with_cleanup_without_a_directory() -> None:
    Template(argv=("true",), workdir="unique", cleanup="never", change_home=True, warn=("USR1", 60)).check()
    for wrong in (
        {"cleanup": "always"}, {"change_home": True}, {"on_exit": ("",)}, {"on_success": ("a\0b",)}, {"behaviour_s": 0},
        {"warn": ("KILL", 10)}, {"warn": ("USR1", 0)},
    ):  # fmt: skip
        with pytest.raises(UsageError):
            Template(argv=("true",), **wrong).check()  # type: ignore[arg-type]


def test_a_removed_job_does_not_count_for_what_depends_on_it() -> None:
    """Not as a failure: neither what is added after it was removed, nor what is retried."""
    world = World()
    first = world.submit(2, cores(1), name="first")
    runner = world.start_runner()
    good, bad = lease_all(world, runner)
    world.end(runner, good)
    world.end(runner, bad, 1)
    again = world.submit(1, cores(1), after=[str(first)])
    assert world.states(again) == ["OMITTED"]
    world.change("remove", str(first), ":failed")
    for after in (str(first), f"{first}.1-2", "@first"):
        assert world.states(world.submit(1, cores(1), after=[after])) != ["OMITTED"], after
    world.change("retry", str(again))
    assert world.states(again) != ["OMITTED"]
    never = world.submit(1, cores(1), after=[Dependency(str(first), "failure")])
    assert world.states(never) == ["OMITTED"]
    world.check_restart()


def test_what_is_removed_by_itself_is_as_good_as_done() -> None:
    world = World()
    first = world.submit(1, cores(1, remove_on="success"), name="first")
    runner = world.start_runner()
    world.end(runner, lease_all(world, runner)[0])
    assert world.states(first) == ["REMOVED"]
    step = world.submitted(1, cores(1), after=[str(first)])
    assert step.reply["warnings"] == [f"--after {first}: all of it has been removed, so there is nothing to wait for"]
    assert world.states(step.reply["batch"]) != ["OMITTED"]
    assert world.states(world.submit(1, cores(1), after=["@first"])) != ["OMITTED"]
    each = world.submit(1, cores(1), after=[Dependency(str(first), each=True)])
    assert world.states(each) != ["OMITTED"]
    world.check_restart()
