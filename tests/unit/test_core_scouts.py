"""Scouts in the core: the first jobs of a batch run first, what they use decides what the rest asks for."""

import pytest

from core_world import World, cores, lease_all, run_jobs
from rota.core.explain import account
from rota.core.plan.asked import asked_now, what_was_learned
from rota.core.stimuli import Ended
from rota.model.batch import Template
from rota.model.errors import UsageError
from rota.model.events import Moved, Retemplated
from rota.model.graph import Graph, pack_links
from rota.model.needs import Needs
from rota.model.patch import BatchPatch, Patch
from rota.schedule.estimate import MIB, Group, Samples


def scouting(world: World, count: int = 30, scouts: int = 4, **more: object) -> int:
    return world.submit(count, cores(1, group="align", **more), scouts=scouts)


def said(world: World, batch: int, pos: int) -> str:
    return account(world.state, world.state.batches[batch], pos, world.at).reason


def test_the_rest_waits_until_half_of_the_scouts_have_succeeded() -> None:
    world = World()
    batch = scouting(world)
    world.schedule()
    assert world.counts(batch) == {"PENDING": 4, "WAITING": 26}
    assert "waits for the scouts of its batch (0 of 4 scouts finished, half are waited for)" in said(world, batch, 9)
    run_jobs(world, batch, 0)
    assert world.counts(batch)["WAITING"] == 26
    world.check_restart()
    run_jobs(world, batch, 0)
    assert "WAITING" not in world.counts(batch), "half of them finished"
    world.check_restart()
    run_jobs(world, batch, *[0] * 28)
    assert world.counts(batch) == {"COMPLETED": 30}


def test_scouts_come_before_others_of_their_priority_and_are_few_events() -> None:
    world = World()
    other = world.submit(3, cores(1))
    batch = scouting(world, count=1_000_000, scouts=2)
    runner = world.start_runner()
    assert [job[0] for job in lease_all(world, runner)][:2] == [batch, batch] != [other, other]
    of_batch = [event for event in world.events() if isinstance(event, Moved | Retemplated) and event.batch == batch]
    assert len(of_batch) == 2, "a template for the scouts, and that they are ready"


def test_what_scouts_used_decides_what_the_rest_asks_for() -> None:
    world = World()
    batch = scouting(world, scouts=4)
    runner = world.start_runner()
    world.schedule()
    for number, job in enumerate(lease_all(world, runner)):
        used = Ended(*job, 0, None, None, world.wall - 100, world.wall, 0.5, (number + 1) * 100 * MIB, None, None)
        world.report(runner, ended=[used])
    state = world.state
    shape = state.shapes[state.batches[batch].shapes[0]]
    assert shape.shape.scout == "rest"
    needs = asked_now(state, shape).asked.needs
    assert needs.memory == 400 * MIB, "the third quarter of 100 to 400M is 325M, and a tenth more is 357.5M"
    assert needs.time_s == 150, "half as long again as they took"
    told = what_was_learned(state, shape.shape)
    assert any("memory: asked nothing, learned 400M from 4 jobs, gets 400M" in line for line in told), told


def test_the_rules_for_scouts_go_by_their_thresholds() -> None:
    group = Group(Samples([100 * MIB, 200 * MIB], 2), Samples([5 * MIB], 1), Samples([10, 20], 2))
    assert group.scouted({}) == (200 * MIB, 100 * MIB, 30)
    changed = {"SCOUT_RAMCOUNT_RANK": 100, "SCOUT_RAMCOUNT_MARGIN": 0, "SCOUT_CPUTIME_RANK": 0}
    assert group.scouted({**changed, "SCOUT_RAMCOUNT_MARGIN": 1}) == (300 * MIB, 100 * MIB, 15)
    assert group.scouted(changed) == (200 * MIB, 100 * MIB, 15)
    assert group.scouted({"SCOUT_RAMCOUNT_MIN": 450})[0] == 500 * MIB
    assert Group().scouted({}) == (None, None, None)


def test_what_has_no_group_learns_from_its_own_scouts() -> None:
    world = World()
    batch = world.submit(9, Template(argv=("bash", "-c", "x"), needs=Needs()), scouts=2)
    run_jobs(world, batch, 0, 0)
    assert world.state.groups[f"scouts of {batch}"].memory.seen == 2


@pytest.mark.parametrize("codes", [(1, 1, 1, 1), (0, 1, 1, 1)])
def test_if_too_few_succeed_the_rest_is_held_once(codes: tuple[int, ...]) -> None:
    world = World()
    batch = scouting(world)
    run_jobs(world, batch, *codes)
    assert world.counts(batch)["HOLDING"] == 26
    assert "its scouts have not shown that it can run" in said(world, batch, 9)
    world.check_restart()
    world.change("release", str(batch))
    world.schedule()
    assert "HOLDING" not in world.counts(batch) and "WAITING" not in world.counts(batch), "whoever released it knows"


def test_scouts_that_are_killed_or_removed_are_waited_for_no_longer() -> None:
    world = World()
    batch = scouting(world)
    world.change("kill", f"{batch}.1-4")
    assert world.counts(batch) == {"ABORTED": 4, "HOLDING": 26}
    batch = scouting(world)
    world.change("remove", f"{batch}.1-4")
    world.schedule()
    assert world.counts(batch)["PENDING"] == 26, "there are no scouts"


def test_the_rest_may_be_let_go() -> None:
    world = World()
    batch = scouting(world)
    assert "rota modify" in str(account(world.state, world.state.batches[batch], 9, world.at).commands)
    world.change("modify", str(batch), patch=Patch(batch=BatchPatch(scouts="off")))
    world.schedule()
    assert world.counts(batch) == {"PENDING": 30}
    world.check_restart()
    with pytest.raises(UsageError, match="give a number of jobs from 1 to 1000, or off"):
        world.change("modify", str(batch), patch=Patch(batch=BatchPatch(scouts="some")))


def test_scouts_are_for_jobs_that_do_not_wait_for_each_other_and_for_new_batches() -> None:
    world = World()
    graph = Graph(*pack_links([[], [0]]))
    with pytest.raises(UsageError, match="the jobs of this batch wait for each other"):
        world.submit(2, cores(1), scouts=1, graph=graph)
    batch = world.submit(9, cores(1))
    with pytest.raises(UsageError, match="wait for none any more"):
        world.change("modify", str(batch), patch=Patch(batch=BatchPatch(scouts=3)))


def test_a_hold_of_the_user_stands() -> None:
    world = World()
    batch = scouting(world)
    world.change("hold", f"{batch}.10-30")
    run_jobs(world, batch, 0, 0)
    assert world.counts(batch)["HOLDING"] == 21
    world.change("release", f"{batch}.10-30")
    world.schedule()
    assert "WAITING" not in world.counts(batch) and "HOLDING" not in world.counts(batch)


def test_scouts_wait_for_what_their_batch_waits_for() -> None:
    world = World()
    first = world.submit(1, cores(1))
    batch = world.submit(10, cores(1, group="g"), scouts=2, after=[str(first)])
    assert world.counts(batch) == {"WAITING": 10}
    run_jobs(world, first, 0)
    assert world.counts(batch) == {"PENDING": 2, "WAITING": 8}
    run_jobs(world, batch, 0)
    assert "WAITING" not in world.counts(batch)


@pytest.mark.parametrize("count", [1, 4])
def test_a_batch_of_no_more_than_its_scouts_has_none(count: int) -> None:
    world = World()
    batch = scouting(world, count=count)
    assert world.counts(batch) == {"PENDING": count}


def test_templates_of_their_own_keep_them() -> None:
    world = World()
    batch = world.submit(6, templates=(cores(1), cores(2)), runs=[0, 2, 1, 4], scouts=3)
    state = world.state.batches[batch]
    assert [state.template(pos).needs.cores for pos in range(6)] == [1000, 1000, 2000, 2000, 2000, 2000]
    assert [state.template(pos).scout for pos in range(6)] == ["scout"] * 3 + ["rest"] * 3
    world.check_restart()
