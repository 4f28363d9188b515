"""Allocations that their provider holds or has suspended: that moves nothing, and is shown."""

import pytest

from core_world import GIB, World, cores
from rota.core.effects import Allocate
from rota.core.explain import cluster_words, reason
from rota.core.state import Settings
from rota.core.stimuli import AllocationSeen
from rota.manager.answers.places import allocation_rows
from rota.manager.answers.status import status
from rota.model.allocation import Waiting
from rota.model.needs import Amounts
from rota.wire.messages import Status


def cluster(mode: str) -> World:
    world = World(Settings(missing_s=60, shrink_s=10), site=False)
    world.site("hpc", Amounts(8000, 16 * GIB), most=9, mode=mode, whole=False, array_most=10, directory="/shared")
    return world


def seen(world: World, verb: str, words: str | None = None) -> None:
    (name,) = world.state.allocations
    world.step(AllocationSeen(at=world.at, id=name, verb=verb, native_id="77", reason=words, asked=world.at.mono))


def said(world: World, batch: int, trouble: str | None = None) -> str:
    book = world.state.batches[batch]
    more = cluster_words(world.state, book, 0, lambda _: Waiting("Priority"), lambda _: trouble)
    return reason(world.state, book, 0, None, world.at) + more


def shown(world: World) -> tuple[str, str | None, str | None]:
    (row,) = allocation_rows(world.state, lambda _: Waiting("Priority"), world.at)
    return row["state"], row["condition"], row["reason"]


def test_a_direct_job_that_is_held_waits_and_is_not_taken_for_requeued() -> None:
    world = cluster("direct")
    batch = world.submit(1, cores(1))
    world.schedule()
    seen(world, "pend")
    assert shown(world) == ("PENDING", None, "Priority")
    seen(world, "held", "JobHeldUser")
    assert shown(world) == ("PENDING", "held", "JobHeldUser")
    held = "the cluster holds job 77 (JobHeldUser): it starts when somebody releases it there"
    assert said(world, batch).endswith(f"allocation a1); {held}") and "node not yet known" not in said(world, batch)
    assert [row["reason"] for row in status(world.state, Status(), world.at)["why"]] == [held]
    seen(world, "pend")
    assert world.counts(batch) == {"STARTING": 1} and shown(world) == ("PENDING", None, "Priority")
    assert list(world.state.batches[batch].attempts) == [1]


@pytest.mark.parametrize("mode", ["direct", "runners"])
def test_a_suspended_one_stays_where_it_is(mode: str) -> None:
    world = cluster(mode)
    batch = world.submit(1, cores(1))
    world.schedule()
    seen(world, "pend")
    if mode == "direct":
        seen(world, "run")
    else:
        world.start_runner("r1")
        world.schedule()
    before = world.counts(batch)
    world.effects.clear()
    seen(world, "suspended", "by its owner")
    assert world.counts(batch) == before and shown(world) == ("RUNNING", "suspended", "by its owner")
    assert "the cluster has suspended job 77 (by its owner)" in said(world, batch)
    assert not [effect for effect in world.effects if isinstance(effect, Allocate)]
    seen(world, "run")
    assert shown(world)[:2] == ("RUNNING", None) and "suspended" not in said(world, batch)


def test_what_is_held_for_jobs_that_wait_is_said() -> None:
    world = cluster("runners")
    batch = world.submit(1, cores(1))
    world.schedule()
    seen(world, "held", "admin")
    seen(world, "held", "BadConstraints")
    assert "the cluster holds job 77 (BadConstraints)" in said(world, batch)
    seen(world, "abort")
    assert not world.state.soft.conditions


@pytest.mark.parametrize("mode", ["direct", "runners"])
def test_a_site_that_does_not_answer_is_said_before_and_after_the_submission(mode: str) -> None:
    world = cluster(mode)
    batch = world.submit(1, cores(1))
    world.schedule()
    failing = "the site hpc is failing for 40s: squeue: Unable to contact slurm controller"
    assert said(world, batch).endswith(f"; {failing}") is False
    assert said(world, batch, failing).endswith(f"; {failing}")
    seen(world, "pend")
    assert said(world, batch).endswith("; the cluster says of job 77: Priority")
    assert said(world, batch, failing).endswith(f"; {failing}")
