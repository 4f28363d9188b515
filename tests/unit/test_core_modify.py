"""Changing jobs that do not run: a patch merges, and moves jobs between templates without losing their places."""

import pytest

from core_world import GIB, World, cores, lease_all
from rota.model.errors import UsageError
from rota.model.patch import Change, Patch


def needs(world: World, batch: int, index: int = 1) -> object:
    book = world.state.batches[batch]
    return book.template(book.position(index) or 0).needs


def test_only_what_is_named_changes() -> None:
    world = World()
    batch = world.submit(3, cores(1, memory=GIB, time_s=60, priority=4, set={"A": "1", "B": "2"}, limits=("x", "y")))
    patch = Patch(memory=2 * GIB, set={"B": None, "C": "3"}, limits_add=("z",), limits_drop=("x",))
    reply = world.change("modify", str(batch), patch=patch)
    assert reply["jobs"] == 3
    template = world.state.batches[batch].template(0)
    assert (template.needs.memory, template.needs.time_s, template.priority) == (2 * GIB, 60, 4)
    assert template.set == {"A": "1", "C": "3"}
    assert template.limits == ("y", "z")
    world.checkpoint()
    world.check_restart()


def test_relative_amounts() -> None:
    world = World()
    batch = world.submit(1, cores(1, memory=GIB, time_s=3600))
    world.change("modify", str(batch), patch=Patch(memory=Change(times=2.0), time_s=Change(plus=3600)))
    assert needs(world, batch).memory == 2 * GIB  # type: ignore[attr-defined]
    assert needs(world, batch).time_s == 7200  # type: ignore[attr-defined]
    with pytest.raises(UsageError, match="disk: these jobs ask for none"):
        world.change("modify", str(batch), patch=Patch(disk=Change(times=2.0)))


def test_pending_jobs_keep_their_order_under_the_new_priority() -> None:
    world = World()
    first = world.submit(4, cores(4))
    second = world.submit(4, cores(4))
    runner = world.start_runner()
    world.change("modify", f"{second}.2-3", patch=Patch(priority=9))
    order = []
    for _ in range(8):
        (job,) = lease_all(world, runner)
        order.append(job[:2])
        world.end(runner, job)
    assert order == [(second, 2), (second, 3), *((first, index) for index in (1, 2, 3, 4)), (second, 1), (second, 4)]


def test_what_runs_or_succeeded_is_left_alone() -> None:
    world = World()
    batch = world.submit(6, cores(1))
    runner = world.start_runner()
    jobs = lease_all(world, runner)
    world.report(runner, started=jobs)
    world.end(runner, jobs[0])
    reply = world.change("modify", str(batch), patch=Patch(priority=9))
    assert reply["jobs"] == 2
    assert {row["reason"].split(":")[0]: row["jobs"] for row in reply["skipped"]} == {"runs": 3, "has succeeded": 1}


def test_the_impossible_is_refused_and_nothing_changes() -> None:
    world = World()
    batch = world.submit(2, cores(1))
    before = len(world.log)
    with pytest.raises(UsageError, match="could then never run: local has 8G memory"):
        world.change("modify", str(batch), patch=Patch(memory=1 << 50))
    with pytest.raises(UsageError, match="priority 256"):
        world.change("modify", str(batch), patch=Patch(priority=256))
    with pytest.raises(UsageError, match="modify what"):
        world.change("modify", str(batch), patch=Patch())
    assert len(world.log) == before


def test_retry_with_changes() -> None:
    world = World()
    batch = world.submit(2, cores(1, memory=GIB))
    runner = world.start_runner()
    for job in lease_all(world, runner):
        world.end(runner, job, 1)
    reply = world.change("retry", f"{batch}.1", patch=Patch(memory=Change(times=2.0)))
    assert reply["jobs"] == 1
    assert world.states(batch) == ["PENDING", "FAILED"]
    assert (needs(world, batch, 1).memory, needs(world, batch, 2).memory) == (2 * GIB, GIB)  # type: ignore[attr-defined]
    world.check_restart()


def test_equal_changes_make_one_template() -> None:
    world = World()
    batch = world.submit(100, cores(1))
    for index in range(1, 101):
        world.change("modify", f"{batch}.{index}", patch=Patch(priority=7))
    assert len(world.state.batches[batch].templates) == 2


def test_a_modified_command_is_another_template() -> None:
    world = World()
    batch = world.submit(2, cores(1))
    world.change("modify", f"{batch}.2", patch=Patch(shell="echo {index}"))
    book = world.state.batches[batch]
    assert (book.template(0).argv, book.template(1).argv, book.template(1).shell) == (("true",), None, "echo {index}")
