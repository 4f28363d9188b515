"""Changing whole batches: names, dependencies, when they begin, bounds, and what runs at the end."""

from typing import Any

import pytest

from core_world import World, cores, lease_all, run_jobs
from rota.core.explain import waiting_for
from rota.model import events as ev
from rota.model.batch import BatchSpec, Dependency, Template
from rota.model.errors import NotFoundError, RefusedError, UsageError
from rota.model.patch import BatchPatch, Patch, decode_patch
from support_steps import counting


def modify(world: World, *words: object, **batch: Any) -> dict[str, Any]:
    if "after" in batch:
        batch["after"] = tuple(Dependency(d) if isinstance(d, str) else d for d in batch["after"])
    reply = world.change("modify", *map(str, words), patch=Patch(batch=BatchPatch(**batch)))
    world.check_restart()
    world.checkpoint()
    world.check_restart()
    return reply


def live(name: str, rerun: bool = False) -> Dependency:
    return Dependency(f"@{name}", live=True, rerun=rerun)


def refused(world: World, says: str, *words: object, error: type[Exception] = UsageError, **batch: Any) -> None:
    before = len(world.log)
    with pytest.raises(error, match=says):
        modify(world, *words, **batch)
    assert len(world.log) == before
    world.check_restart()


# ---- merging --------------------------------------------------------------------------------------------------------


def test_only_what_is_named_changes() -> None:
    world = World()
    first, other = world.submit(), world.submit()
    batch = world.submit(10, name="a", after=[str(first)], not_before=5000.0, at_once=3, max_failures=4)
    assert modify(world, batch, name="b") == {"jobs": 10, "skipped": [], "sample": world_sample(batch), "batches": 1,
                                              "warnings": []}  # fmt: skip
    modify(world, batch, after=[str(other)])
    modify(world, batch, max_failures="25%")
    spec = world.state.batches[batch].spec
    assert (spec.name, spec.at_once, spec.max_failures, spec.not_before) == ("b", 3, 3, 5000.0)
    assert spec.after == (Dependency(str(first)), Dependency(str(other)))
    modify(world, batch, after=[Dependency(str(first), "any")], not_before=None, at_once=None, max_failures=None)
    spec = world.state.batches[batch].spec
    assert spec.after == (Dependency(str(other)), Dependency(str(first), "any"))
    assert (spec.name, spec.at_once, spec.max_failures, spec.not_before) == ("b", None, None, None)
    modify(world, batch, after_drop=(str(other),))
    assert world.state.batches[batch].spec.after == (Dependency(str(first), "any"),)
    modify(world, batch, after_none=True, name="")
    assert world.state.batches[batch].spec == BatchSpec(10, (Template(argv=("true",)),))
    assert world.counts(batch) == {"PENDING": 10}
    assert "b" not in world.state.names
    (last,) = [event for event in world.events() if isinstance(event, ev.Respecified)][-1:]
    assert (last.batch, last.name, last.after, last.reason) == (batch, "", (), "changed by ann")


def world_sample(batch: int) -> list[str]:
    return [f"{batch}.{index}" for index in range(1, 6)]


def test_jobs_and_their_batch_in_one_command() -> None:
    world = World()
    batch = world.submit(3)
    reply = world.change("modify", str(batch), patch=Patch(priority=9, batch=BatchPatch(name="x", at_once=2)))
    assert (reply["jobs"], reply["batches"]) == (3, 1)
    assert world.state.batches[batch].template(0).priority == 9
    assert world.state.names == {"x": [batch]}
    world.check_restart()


def test_a_dry_run_changes_nothing() -> None:
    world = World()
    batch = world.submit(3)
    before = len(world.log)
    reply = world.change("modify", str(batch), patch=Patch(batch=BatchPatch(name="x")), dry_run=True)
    assert (reply["jobs"], len(world.log)) == (3, before)


def test_nothing_new_is_no_event() -> None:
    world = World()
    batch = world.submit(3, name="x")
    before = len(world.log)
    assert modify(world, batch, name="x")["jobs"] == 3
    assert len(world.log) == before


# ---- dependencies ---------------------------------------------------------------------------------------------------


def test_a_new_dependency_blocks_what_is_ready_and_leaves_what_is_leased() -> None:
    world = World()
    gate, batch = world.submit(template=cores(4)), world.submit(6, cores(1))
    world.change("hold", str(gate))
    runner = world.start_runner()
    jobs = lease_all(world, runner)
    world.report(runner, started=jobs[:2])
    reply = modify(world, batch, after=[str(gate)])
    assert reply["jobs"] == 2
    assert [(row["reason"].split(",")[0], row["jobs"]) for row in reply["skipped"]] == [("runs already", 4)]
    assert world.counts(batch) == {"WAITING": 2, "STARTING": 2, "RUNNING": 2}
    world.report(runner, disclaimed=jobs[2:])
    assert world.counts(batch) == {"WAITING": 4, "RUNNING": 2}
    world.change("release", str(gate))
    world.report(runner, ended=[world.row(job) for job in jobs[:2]])
    run_jobs(world, gate, 0)
    assert world.counts(batch) == {"PENDING": 4, "COMPLETED": 2}


def test_a_dependency_that_is_met_or_gone_makes_jobs_ready_at_once() -> None:
    world = World()
    done, open_ = world.submit(), world.submit()
    run_jobs(world, done, 0)
    batch = world.submit(2, after=[str(open_), "@nothing"])
    modify(world, batch, after_drop=("@nothing",))
    assert world.counts(batch) == {"WAITING": 2}
    modify(world, batch, after_none=True, after=[str(done)])
    assert world.counts(batch) == {"PENDING": 2}
    run_jobs(world, open_, 1)
    assert world.counts(batch) == {"PENDING": 2}


def test_what_was_omitted_gets_another_chance_and_so_do_its_dependents() -> None:
    world = World()
    bad, good = world.submit(), world.submit()
    batch = world.submit(2, after=[str(bad)])
    last = world.submit(after=[str(batch)])
    run_jobs(world, bad, 1)
    assert world.counts(batch) == {"OMITTED": 2}
    assert world.counts(last) == {"OMITTED": 1}
    reply = modify(world, batch, after_drop=(str(bad),), after=[str(good)])
    assert reply["jobs"] == 2
    assert world.counts(batch) == {"WAITING": 2}
    assert world.counts(last) == {"WAITING": 1}
    run_jobs(world, good, 0)
    run_jobs(world, batch, 0, 0)
    assert world.counts(last) == {"PENDING": 1}


def test_a_dependency_that_can_never_be_met_omits() -> None:
    world = World()
    bad = world.submit()
    run_jobs(world, bad, 1)
    batch = world.submit(2)
    world.change("hold", f"{batch}.1")
    modify(world, batch, after=[str(bad)])
    assert world.counts(batch) == {"OMITTED": 2}
    modify(world, batch, after=[Dependency(str(bad), "failure")])
    assert world.counts(batch) == {"PENDING": 2}


def test_job_by_job_and_on_a_newer_batch() -> None:
    world = World()
    batch = world.submit(3)
    newer = world.submit(3)
    modify(world, batch, after=[Dependency(str(newer), each=True)])
    assert world.counts(batch) == {"WAITING": 3}
    world.restart()
    run_jobs(world, newer, 0, 1, 0)
    assert world.states(batch) == ["PENDING", "OMITTED", "PENDING"]
    modify(world, batch, after_none=True)
    assert world.counts(batch) == {"PENDING": 3}
    assert not world.state.batches[newer].twins
    one = world.submit(2)
    refused(world, "--each: both must have the same job numbers", batch, after=[Dependency(str(one), each=True)])


def test_names_live_and_unknown() -> None:
    world = World()
    batch = world.submit(2)
    later = world.submit(name="align")
    assert modify(world, batch, after=["@nothing"])["warnings"] == [
        "nothing is named 'nothing' yet: these jobs wait until something is"
    ]
    refused(world, "nothing is named 'never'", batch, after=["@never"], require_known=True)
    modify(world, batch, after_none=True, after=[live("align")])
    run_jobs(world, later, 0)
    assert world.counts(batch) == {"PENDING": 2}
    another = world.submit(name="align")
    assert world.counts(batch) == {"WAITING": 2}
    modify(world, batch, after=["@align"])
    assert world.counts(batch) == {"WAITING": 2}, "a name that is not live means all that has it, as none came earlier"
    run_jobs(world, another, 0)
    assert world.counts(batch) == {"PENDING": 2}
    world.submit(name="align")
    assert world.counts(batch) == {"PENDING": 2}


def test_a_settled_batch_can_be_renamed_but_not_made_to_wait() -> None:
    world = World()
    batch, other = world.submit(name="a"), world.submit()
    run_jobs(world, batch, 0)
    refused(world, "is settled: it can be renamed", batch, after=[str(other)], error=RefusedError)
    modify(world, batch, name="b")
    assert world.state.names == {"b": [batch]}


# ---- circles --------------------------------------------------------------------------------------------------------


def test_circles_are_refused_in_words() -> None:
    world = World()
    one = world.submit(name="one")
    two = world.submit(after=[str(one)])
    three = world.submit(name="three", after=[f"{two}.1"])
    says = rf"never run: batch {one} \(one\) → batch {three} \(three\) → batch {two} → batch {one} \(one\): nothing"
    refused(world, says, one, after=[str(three)])
    refused(world, f"batch {two} would wait for itself", two, after=[str(two)])
    refused(world, "would wait for itself", one, after=["@one"])
    refused(world, "would wait for itself", one, after=["@three"])
    refused(world, "would wait for itself", one, name="new", after=[live("new")])


def test_a_rename_that_would_close_a_circle() -> None:
    world = World()
    merge = world.submit(after=[live("align")])
    last = world.submit(after=[str(merge)])
    refused(world, "this would wait for itself", last, name="align")
    refused(world, "would wait for itself", merge, name="align")
    first = world.submit(name="chain")
    second = world.submit(name="chain", after=["@chain"])
    refused(world, rf"batch {second} \(chain\) would wait for itself", first, name="other")


def test_a_long_circle_is_found_without_recursion_and_each_batch_is_looked_at_once() -> None:
    def cost(count: int) -> float:
        world = World(check=False)
        first = before = world.submit()
        for _ in range(count):
            before = world.submit(name="x", after=[str(before)])
        for number in range(count):
            world.submit(name="y", after=["@y"] if number else [])
        with counting() as steps:
            with pytest.raises(UsageError, match=f"batch {first} → .*→ … →.* → batch {first}: nothing"):
                world.change("modify", str(first), patch=Patch(batch=BatchPatch(after=(Dependency(str(before)),))))
            world.change("modify", str(first), patch=Patch(batch=BatchPatch(after=(Dependency("@y"),))))
        return steps() / count

    assert cost(2000) <= 1.1 * cost(400)


def test_a_retry_that_would_close_a_circle_is_refused() -> None:
    """It could be added because a part of it was over."""
    world = World()
    merge = world.submit(name="merge", after=["@align"])
    call = world.submit(name="call", after=[str(merge)])
    world.change("kill", str(call))
    align = world.submit(name="align", after=["@call"])
    assert world.counts(align) == world.counts(merge) == {"OMITTED": 1}
    before = len(world.log)
    words = rf"batch {merge} \(merge\) → batch {align} \(align\) → batch {call} \(call\) → .*: nothing was changed"
    with pytest.raises(UsageError, match=words):
        world.change("retry", str(call))
    assert len(world.log) == before
    world.change("retry", str(align))  # what it waits for stays over
    assert world.counts(align) == {"OMITTED": 1}
    modify(world, align, after_drop=("@call",))
    world.change("retry", str(call))
    assert world.counts(call) == world.counts(merge) == {"WAITING": 1}
    run_jobs(world, align, 0)
    run_jobs(world, merge, 0)
    run_jobs(world, call, 0)
    assert world.counts(call) == {"COMPLETED": 1}


# ---- names ----------------------------------------------------------------------------------------------------------


def test_who_waits_for_the_old_name_waits_for_something_else() -> None:
    world = World()
    one, two = world.submit(name="a"), world.submit(name="a")
    batch = world.submit(after=["@a"])
    run_jobs(world, two, 0)
    assert modify(world, one, name="b")["warnings"] == []
    assert world.counts(batch) == {"PENDING": 1}
    assert modify(world, two, name="c")["warnings"] == [
        f"nothing is named 'a' any more: batch {batch} waits until something is"
    ]
    assert world.counts(batch) == {"WAITING": 1}
    assert waiting_for(world.state, world.state.batches[batch], 0.0) == "waits for something named 'a' to be added"
    world.restart()
    world.greet(world.runners["r1"])
    three = world.submit(name="a")
    run_jobs(world, three, 0)
    assert world.counts(batch) == {"PENDING": 1}


def test_who_waits_for_the_new_name_waits_for_it_too() -> None:
    world = World()
    other = world.submit()
    batch, live_one = world.submit(after=["@a"]), world.submit(after=[live("a")])
    third = world.submit(name="a")
    run_jobs(world, third, 0)
    assert world.counts(batch) == world.counts(live_one) == {"PENDING": 1}
    modify(world, other, name="a")
    assert world.counts(batch) == world.counts(live_one) == {"WAITING": 1}, "it counts as if it had always had the name"
    run_jobs(world, other, 1)
    assert world.counts(batch) == world.counts(live_one) == {"OMITTED": 1}
    modify(world, other, name="z")
    assert world.counts(batch) == world.counts(live_one) == {"PENDING": 1}


def test_a_rename_ends_a_wait_for_a_name_that_nothing_had() -> None:
    world = World()
    batch = world.submit(after=["@a"])
    done = world.submit(name="typo")
    run_jobs(world, done, 0)
    modify(world, done, name="a")
    assert world.counts(batch) == {"PENDING": 1}
    assert not world.state.open_names.get("a")


def test_a_live_name_that_gets_a_batch_runs_completed_ones_again() -> None:
    world = World()
    one, other = world.submit(name="a"), world.submit()
    batch = world.submit(after=[live("a", rerun=True)])
    run_jobs(world, one, 0)
    run_jobs(world, batch, 0)
    modify(world, other, name="a")
    assert world.counts(batch) == {"WAITING": 1}
    run_jobs(world, other, 0)
    assert world.counts(batch) == {"PENDING": 1}


def test_several_batches_at_once() -> None:
    world = World()
    batches = [world.submit(2, name="a") for _ in range(3)]
    gate = world.submit()
    reply = modify(world, "@a", name="b", after=[str(gate)])
    assert (reply["batches"], reply["jobs"]) == (3, 6)
    assert world.state.names == {"b": batches}
    run_jobs(world, gate, 0)
    assert [world.counts(batch) for batch in batches] == [{"PENDING": 2}] * 3
    run_jobs(world, batches[1], 0, 0)
    refused(world, f"batch {batches[1]} is settled", "@b", after=[str(gate)], error=RefusedError)


def test_bad_names_and_numbers() -> None:
    world = World()
    batch = world.submit(4)
    refused(world, "name '@x'", batch, name="@x")
    refused(world, "at most 128", batch, name="x" * 200)
    refused(world, "%-3: at least 1", batch, at_once=-3)
    refused(world, "max failures '-1'", batch, max_failures=-1)
    refused(world, "max failures '0%'", batch, max_failures="0%")
    refused(world, "not before inf", batch, not_before=float("inf"))
    refused(world, "there is no batch 99", batch, after=["99"])
    refused(world, f"there is no job {batch}.7", world.submit(), after=[f"{batch}.7"])
    refused(world, "does not wait for that: it waits for nothing", batch, after_drop=("5",))
    refused(world, "only a name, as in @align", batch, after=[Dependency("1", live=True)])
    refused(world, "there is no batch 99", 99, name="x", error=NotFoundError)
    for words in ((f"{batch}.1-3",), (f"{batch}.2",), (str(batch), ":pending"), (":pending",)):
        refused(world, f"only a part of batch {batch} is selected", *words, name="x")
    assert modify(world, f"{batch}.1-4", name="x")["jobs"] == 4
    with pytest.raises(UsageError, match="retry changes jobs, not whole batches"):
        world.change("retry", str(batch), patch=Patch(batch=BatchPatch(name="x")))
    with pytest.raises(UsageError, match="field `nome`"):
        decode_patch(b'{"batch": {"nome": "x"}}')


def test_a_window_that_can_never_open_is_refused() -> None:
    world = World()
    batch = world.submit()
    world.wall = 1.7e9
    with pytest.raises(UsageError, match="can never open"):
        world.change("modify", str(batch), patch=Patch(limits_add=("datetime<2001-01-01 00:00:00",)))


# ---- times and bounds -----------------------------------------------------------------------------------------------


def test_not_before() -> None:
    world = World()
    batch = world.submit(3, cores(2))
    runner = world.start_runner()
    jobs = lease_all(world, runner)
    modify(world, batch, not_before=world.wall + 60)
    assert world.counts(batch) == {"STARTING": 2, "WAITING": 1}
    world.report(runner, disclaimed=jobs[:1])
    assert world.counts(batch) == {"STARTING": 1, "WAITING": 2}
    modify(world, batch, not_before=world.wall + 20)
    world.end(runner, jobs[1])
    world.tick(15)
    assert world.counts(batch) == {"COMPLETED": 1, "WAITING": 2}
    world.tick(6)
    assert world.counts(batch) == {"COMPLETED": 1, "PENDING": 2}
    modify(world, batch, not_before=world.wall + 2000)
    assert world.counts(batch) == {"COMPLETED": 1, "WAITING": 2}
    modify(world, batch, not_before=None)
    assert world.counts(batch) == {"COMPLETED": 1, "PENDING": 2}
    assert not world.state.timers


def test_at_once_counts_what_runs_already() -> None:
    world = World()
    batch = world.submit(10, cores(1))
    runner = world.start_runner()
    jobs = lease_all(world, runner)
    world.report(runner, started=jobs)
    assert len(jobs) == 4
    modify(world, batch, at_once=2)
    for number, job in enumerate(jobs):
        world.end(runner, job)
        leased = lease_all(world, runner)
        assert len(runner.held) == max(3 - number, 2), leased
        world.check_restart()
    modify(world, batch, at_once=3)
    assert len(lease_all(world, runner)) == 3
    modify(world, batch, at_once=None)
    assert len(lease_all(world, runner)) == 4
    modify(world, batch, at_once=1)
    while not all(state == "COMPLETED" for state in world.states(batch)):
        jobs = lease_all(world, runner)
        world.end(runner, jobs[0])
        world.checkpoint()
        world.check_restart()
    assert world.state.limits[f"#{batch}"].used == 0


def test_max_failures_that_are_there_already_hold_the_rest() -> None:
    world = World()
    batch = world.submit(10, max_failures=0)
    run_jobs(world, batch, 1, 1)
    reply = modify(world, batch, max_failures=2)
    assert reply["warnings"] == [f"2 jobs of batch {batch} have failed already: what did not start is held"]
    runner = world.runners["r1"]
    world.report(runner, disclaimed=lease_all(world, runner))
    assert world.counts(batch) == {"FAILED": 2, "HOLDING": 8}


# ---- the end --------------------------------------------------------------------------------------------------------


def test_what_runs_at_the_end() -> None:
    world = World()
    batch = world.submit(2, name="a", template=Template(argv=("true",), cwd="/data/{}/x", set={"A": "1"}))
    modify(world, batch, on_batch_end="mail me")
    end = batch + 1
    spec = world.state.batches[end].spec
    assert (spec.name, spec.ends, spec.after) == ("a-end", batch, (Dependency(str(batch), "any"),))
    assert (spec.templates[0].shell, spec.templates[0].cwd, spec.templates[0].set) == ("mail me", "/data", {"A": "1"})
    modify(world, batch, on_batch_end="mail you")
    assert world.state.next_batch == end + 1
    assert world.state.batches[end].template(0).shell == "mail you"
    modify(world, batch, on_batch_end="")
    assert world.counts(end) == {"REMOVED": 1}
    modify(world, batch, on_batch_end="mail all")
    run_jobs(world, batch, 0, 1)
    assert world.counts(end + 1) == {"PENDING": 1}
    refused(world, "its end is past", batch, on_batch_end="x", error=RefusedError)


def test_an_end_that_somebody_waits_for_stays() -> None:
    world = World()
    batch = world.submit(2, then=BatchSpec(1, (Template(shell="mail"),)))
    waiter = world.submit(after=[str(batch + 1)])
    refused(world, f"batch {waiter} waits for batch {batch + 1}", batch, on_batch_end="", error=RefusedError)
