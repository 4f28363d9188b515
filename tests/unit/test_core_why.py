"""Situations, staged one by one, and the exact truth that `rota explain` tells of each."""

import random
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from core_world import GIB, NODE, FakeRunner, World, cores, lease_all
from rota.core.explain import Account, Records, account, batch_reasons, line, verdicts
from rota.core.explain.line import Line, in_front
from rota.core.state import Settings
from rota.core.stimuli import AllocationSeen, Disconnected, Left, SetMode
from rota.model.allocation import Outcome, Waiting
from rota.model.batch import REASONS, Dependency, Template
from rota.model.errors import UsageError
from rota.model.graph import Graph, pack_links
from rota.model.needs import Amounts
from rota.model.site import Bound, QueueFacts
from rota.model.tables import PENDING

Stage = Callable[[], tuple[World, int, int]]
"""Sets a scene: the world, and the batch and index of the job that is asked about."""
SITUATIONS: list[tuple[str, Stage, str]] = []


def truth(words: str) -> Callable[[Stage], Stage]:
    """Enter a situation with what must be said of it."""

    def enter(stage: Stage) -> Stage:
        SITUATIONS.append((stage.__name__, stage, words))
        return stage

    return enter


def told(world: World, batch: int, index: int = 1, **more: Any) -> Account:
    """What is said of a job, with the results that there are and `boom` as last line of whatever failed."""
    book = world.state.batches[batch]
    pos = book.position(index)
    assert pos is not None

    def last(number: int, at: int) -> Any:
        found = [result for result in world.results if (result.batch, result.pos) == (number, at)]
        return found[-1] if found else None

    def line(of: Any, at: int) -> str:
        result = last(of.id, at)
        return "disk quota exceeded" if result is not None and result.exit_code == 3 else ""

    return account(world.state, book, pos, world.at, Records(last, line, **more))


def busy(cores_used: int = 4, **more: Any) -> tuple[World, FakeRunner]:
    """A node of four cores, with batch 1 of one-core jobs running on it."""
    world = World(**more)
    world.submit(cores_used, cores(1), name="prep")
    runner = world.start_runner()
    jobs = lease_all(world, runner)
    world.report(runner, started=jobs)
    return world, runner


def ended(code: int | None = 1, signal: int | None = None, reason: str | None = None, **more: Any) -> Any:
    """One job that ended so."""
    world = World()
    batch = world.submit(1, cores(1, **more))
    runner = world.start_runner()
    (job,) = lease_all(world, runner)
    world.report(runner, started=[job])
    world.end(runner, job, code, signal, reason)
    return world, batch, 1


# ---- PENDING: room, and who has it ----


@truth("asks for 4 cores, 1 core free now (at local/a1/host:r1); in use by 3 jobs of batch 1 (prep) (3 cores)")
def cores_are_short() -> tuple[World, int, int]:
    world, _ = busy(3)
    batch = world.submit(1, cores(4))
    world.schedule()
    return world, batch, 1


@truth("asks for 6G memory, 4G memory free now (at local/a1/host:r1); in use by 1.1 (4G memory)")
def memory_is_short() -> tuple[World, int, int]:
    world = World()
    world.submit(1, cores(1, memory=4 * GIB))
    runner = world.start_runner()
    world.report(runner, started=lease_all(world, runner))
    batch = world.submit(1, cores(1, memory=6 * GIB))
    world.schedule()
    return world, batch, 1


@truth("asks for 1 gpu, 0 gpus free now (at local/a1/host:r1); in use by 1.1 (1 gpu)")
def a_gpu_is_short() -> tuple[World, int, int]:
    world = World()
    world.submit(1, cores(1, gpus=1))
    runner = world.start_runner()
    world.report(runner, started=lease_all(world, runner))
    batch = world.submit(1, cores(1, gpus=1, time_s=60))
    world.schedule()
    return world, batch, 1


@truth("asks for 2 lic, 1 lic free now (at local/a1/host:r1); in use by 1.1 (1 lic)")
def a_named_resource_is_short() -> tuple[World, int, int]:
    world = World()
    world.submit(1, cores(1, named=(("lic", 1),)))
    runner = world.start_runner()
    world.report(runner, started=lease_all(world, runner))
    batch = world.submit(1, cores(1, named=(("lic", 2),)))
    world.schedule()
    return world, batch, 1


@truth(
    "asks for 4 cores, 0 cores free now (at local/a1/host:r1); in use by 4 jobs of batch 1 (4 cores); "
    "it can start in 17m at the latest"
)
def when_it_can_start_is_known() -> tuple[World, int, int]:
    world = World()
    world.submit(4, cores(1, time_s=1000))
    runner = world.start_runner()
    world.report(runner, started=lease_all(world, runner))
    batch = world.submit(1, cores(4))
    world.schedule()
    return world, batch, 1


@truth(
    "asks for 1 core, 0 cores free now (at local/a1/host:r1); in use by 4 jobs of batch 1 (prep) (4 cores); "
    "6 jobs ahead of it: 6 of its own batch"
)
def its_own_batch_is_ahead() -> tuple[World, int, int]:
    world, _ = busy()
    batch = world.submit(9, cores(1, time_s=60))
    world.schedule()
    return world, batch, 7


@truth(
    "asks for 1 core, 0 cores free now (at local/a1/host:r1); in use by 4 jobs of batch 1 (prep) (4 cores); "
    "996 jobs ahead of it: 996 of batch 2 of priority 9"
)
def a_higher_priority_of_another_shape_is_ahead() -> tuple[World, int, int]:
    world, _ = busy()
    world.submit(996, cores(2, priority=9))
    batch = world.submit(1, cores(1, time_s=60))
    world.schedule()
    return world, batch, 1


@truth(
    "asks for 1 core, 0 cores free now (at local/a1/host:r1); in use by 4 jobs of batch 1 (prep) (4 cores); "
    "7 jobs ahead of it: 7 of batch 2 (early)"
)
def an_earlier_batch_of_another_shape_is_ahead() -> tuple[World, int, int]:
    world, _ = busy()
    world.submit(7, cores(2), name="early")
    batch = world.submit(1, cores(1, time_s=60))
    world.schedule()
    return world, batch, 1


@truth("asks for 1 core, 0 cores free now (at local/a1/host:r1); in use by 4 jobs of batch 1 (prep) (4 cores)")
def what_waits_for_a_limit_is_not_ahead() -> tuple[World, int, int]:
    world, _ = busy()
    world.limit("db", 0)
    world.submit(7, cores(2, limits=("db",)), name="early")
    batch = world.submit(1, cores(1, time_s=60))
    world.schedule()
    return world, batch, 1


@truth("asks for 1 core, 0 cores free now (at local/a1/host:r1); in use by 4 jobs of batch 1 (prep) (4 cores)")
def what_waits_for_a_window_is_not_ahead() -> tuple[World, int, int]:
    world, _ = busy()
    world.wall = 12 * 3600.0
    world.limit("night", "22:00-06:00")
    world.submit(7, cores(2, limits=("night",)), name="early")
    batch = world.submit(1, cores(1, time_s=60))
    world.schedule()
    return world, batch, 1


@truth("is about to start: a place is free")
def a_place_is_free() -> tuple[World, int, int]:
    world, _ = busy(1)
    return world, world.submit(1, cores(2)), 1


@truth("allocation a1 is SUBMITTING (at local), asked for 0 s ago")
def its_allocation_is_asked_for() -> tuple[World, int, int]:
    world = World()
    batch = world.submit(1, cores(1))
    world.schedule()
    return world, batch, 1


@truth("allocation a1 is PENDING (at local), asked for 5m ago; the cluster says of job 77: Priority")
def its_allocation_waits_in_the_cluster() -> tuple[World, int, int]:
    world = World(site=False)
    world.site("local", most=5, whole=False)
    batch = world.submit(1, cores(1))
    world.schedule()
    world.step(AllocationSeen(at=world.at, id="a1", verb="pend", native_id="77"))
    world.tick(300)
    return world, batch, 1


@truth("allocation a1 gave no runner: no such partition; next try in 5 s (at local)")
def its_site_fails() -> tuple[World, int, int]:
    world = World()
    batch = world.submit(1, cores(1))
    world.schedule()
    world.allocation("a1", "fail", "no such partition")
    world.schedule()
    return world, batch, 1


@truth("Invalid account; next try in 5 s (at local)")
def its_site_refuses_it() -> tuple[World, int, int]:
    world = World(site=False)
    world.site("local", most=5, whole=False)
    batch = world.submit(1, cores(1))
    world.schedule()
    refused = AllocationSeen(
        at=world.at, id="a1", verb="fail", reason="Invalid account", outcome=Outcome(why="refused")
    )
    world.step(refused)
    world.schedule()
    return world, batch, 1


@truth("its runner is DRAINING (at local/a1/host:r1)")
def its_only_runner_drains() -> tuple[World, int, int]:
    world = World(site=False)
    world.site(linger_s=5)
    world.submit(1, cores(1))
    runner = world.start_runner()
    world.end(runner, lease_all(world, runner)[0])
    world.tick(6)
    batch = world.submit(1, cores(1))
    world.schedule()
    return world, batch, 1


@truth("its runner is not connected, silent for 40 s (at local/a1/host:r1)")
def its_only_runner_is_silent() -> tuple[World, int, int]:
    world, runner = busy()
    world.step(Disconnected(at=world.at, runner="r1", session=runner.session))
    world.tick(40)
    batch = world.submit(1, cores(1))
    world.schedule()
    return world, batch, 1


@truth("its runner is MISSING, silent for 5m (at local/a1/host:r1)")
def its_only_runner_is_missing() -> tuple[World, int, int]:
    world, _ = busy()
    world.tick(301)
    batch = world.submit(1, cores(1))
    world.schedule()
    return world, batch, 1


# ---- PENDING: what is gone from the configuration ----


def gone(template: Template, **facts: Any) -> tuple[World, int, int]:
    """A job that was accepted, and a site that offers less since."""
    world = World(site=False)
    world.site("local", NODE, tags=("big",))
    world.site("hpc", NODE)
    batch = world.submit(1, template)
    world.state.soft.sites.pop("hpc")
    world.state.soft.queues.pop("hpc")
    world.site("local", **{"node": Amounts(2000, 4 * GIB), **facts})
    world.schedule()
    return world, batch, 1


NEVER = "no site has what it asks for, as they are configured now: {}; waiting does not help"


@truth(NEVER.format("local has no tag big"))
def a_tag_is_gone() -> tuple[World, int, int]:
    return gone(cores(1, tags=("big",)))


@truth(NEVER.format("local has 0 gpus, 1 gpu is asked for"))
def a_gpu_is_gone() -> tuple[World, int, int]:
    return gone(cores(1, gpus=1))


@truth(NEVER.format("local has 4G memory, 6G memory is asked for"))
def memory_is_gone() -> tuple[World, int, int]:
    return gone(cores(1, memory=6 * GIB))


@truth(NEVER.format("local has 2 cores, 4 cores are asked for"))
def cores_are_gone() -> tuple[World, int, int]:
    return gone(cores(4))


@truth(NEVER.format("there is no site 'hpc'; the sites are: local"))
def a_site_is_gone() -> tuple[World, int, int]:
    return gone(cores(1, site="hpc"))


@truth(
    NEVER.format(
        "no site offers the resource lic; offered are: none (see rota sites; a site offers what it has in config.toml "
        "as resources, node_resources, or native_resources)"
    )
)
def a_resource_is_gone() -> tuple[World, int, int]:
    return gone(cores(1, named=(("lic", 1),)))


@truth(NEVER.format("local gives 1h at most, 2h are asked for"))
def long_times_are_gone() -> tuple[World, int, int]:
    return gone(cores(1, time_s=7200), time_most_s=3600)


@truth("the policy 'fair' is no longer configured: rota modify --policy, or [policy.fair] in config.toml")
def a_policy_is_gone() -> tuple[World, int, int]:
    world = World()
    batch = world.submit(1, cores(1))
    shape = world.state.shapes[0]
    shape.shape = replace(shape.shape, policy="fair")
    return world, batch, 1


# ---- PENDING: limits ----


def limited(count: int | str, live: int = 0, **more: Any) -> tuple[World, int, int]:
    """A job with the limit db, of which so many are in use."""
    world = World()
    world.limit("db", count)
    world.submit(max(live, 1), cores(1, limits=("db",) if live else ()), name="users")
    runner = world.start_runner()
    world.report(runner, started=lease_all(world, runner))
    batch = world.submit(1, cores(1, limits=("db",), time_s=60, **more))
    world.schedule()
    return world, batch, 1


@truth("limit db is full: 2 of 2 in use; in use by 2 jobs of batch 1 (users) (2 of limit db)")
def a_limit_is_full() -> tuple[World, int, int]:
    return limited(2, live=2)


@truth("limit db is 0: no job that has it may start, and waiting does not help (rota limit db:N sets another)")
def a_limit_is_zero() -> tuple[World, int, int]:
    return limited(0)


@truth("limit db: 2 per minute used up; next start in 60 s")
def a_rate_is_used_up() -> tuple[World, int, int]:
    return limited("2/min", live=2)


@truth("limit db is closed until 22:00 (in 10h)")
def a_window_is_closed() -> tuple[World, int, int]:
    world = World()
    world.wall = 12 * 3600.0
    return in_window(world, "22:00-06:00")


@truth(
    "limit db is closed for good: set another, or remove it (rota limit); also: asks for 4 cores, 0 cores free now "
    "(at local/a1/host:r1); in use by 1.1 (4 cores); 1 job ahead of it: 1 of its own batch"
)
def a_window_never_opens_again() -> tuple[World, int, int]:
    world, batch, _ = in_window(World(), "1970-01-01..1970-01-02", 3)
    world.wall = 1_800_000_000.0
    world.schedule()
    return world, batch, 3


def in_window(world: World, rule: str, jobs: int = 1) -> tuple[World, int, int]:
    """Jobs of four cores with the limit db that has this window."""
    world.limit("db", rule)
    batch = world.submit(jobs, cores(4, limits=("db",)))
    world.start_runner()
    world.schedule()
    return world, batch, 1


@truth(
    "limit a is full: 1 of 1 in use; also: limit b is full: 1 of 1 in use; in use by 1.1 (1 of limit a, 1 of limit b)"
)
def two_limits_are_full() -> tuple[World, int, int]:
    world = World()
    world.limit("a", 1)
    world.limit("b", 1)
    world.submit(1, cores(1, limits=("a", "b")))
    runner = world.start_runner()
    world.report(runner, started=lease_all(world, runner))
    batch = world.submit(1, cores(1, limits=("a", "b"), time_s=60))
    world.schedule()
    return world, batch, 1


@truth(
    "limit db is full: 4 of 4 in use; also: asks for 1 core, 0 cores free now (at local/a1/host:r1); "
    "in use by 4 jobs of batch 1 (users) (4 cores, 4 of limit db)"
)
def a_limit_and_cores_are_short() -> tuple[World, int, int]:
    return limited(4, live=4)


@truth(
    "limit db is full: 1 of 1 in use; also: asks for 4 cores, 0 cores free now (at local/a1/host:r1); in use by "
    "4.1 (1 core), 1.1 (1 core, 1 of limit db), 3.1 (1 core) and 1 other"
)
def whoever_has_what_is_short_is_named() -> tuple[World, int, int]:
    world = World()
    world.limit("db", 1)
    for number in range(1, 5):
        world.submit(1, cores(1, limits=("db",) if number == 1 else ()))
    runner = world.start_runner()
    world.report(runner, started=lease_all(world, runner))
    batch = world.submit(1, cores(4, limits=("db",)))
    world.schedule()
    return world, batch, 1


@truth("at most 3 jobs of batch 1 run at a time (%3), and 3 do; in use by 3 jobs of batch 1 (3 of %3)")
def so_many_of_the_batch_at_a_time() -> tuple[World, int, int]:
    world = World()
    batch = world.submit(9, cores(1), at_once=3)
    runner = world.start_runner()
    world.report(runner, started=lease_all(world, runner))
    world.schedule()
    return world, batch, 4


# ---- PENDING: the manager ----


@truth("the manager is paused: rota resume lets jobs start again")
def the_manager_is_paused() -> tuple[World, int, int]:
    world, _ = busy(1)
    world.mode("paused")
    return world, world.submit(1, cores(1)), 1


@truth("the manager is paused: rota resume lets jobs start again")
def the_manager_is_paused_and_nothing_runs() -> tuple[World, int, int]:
    world = World()
    world.mode("paused")
    batch = world.submit(1, cores(1))
    world.schedule()
    return world, batch, 1


@truth(
    "the manager is paused by user since 1970-01-01 00:16, backup since 1970-01-01 00:16 (a copy): "
    "rota resume --all lets jobs start again"
)
def two_have_paused_the_manager() -> tuple[World, int, int]:
    world, _ = busy(1)
    world.mode("paused")
    world.step(SetMode(at=world.at, mode="paused", holder="backup", reason="a copy"))
    return world, world.submit(1, cores(1)), 1


@truth(
    "the manager is draining: rota resume lets jobs start again; also: asks for 1 core, 0 cores free now "
    "(at local/a1/host:r1); in use by 4 jobs of batch 1 (prep) (4 cores)"
)
def the_manager_drains() -> tuple[World, int, int]:
    world, _ = busy()
    batch = world.submit(1, cores(1, time_s=60))
    world.schedule()
    world.mode("draining")
    return world, batch, 1


@truth(
    "the manager is paused: rota resume lets jobs start again; also: limit db is 0: no job that has it may start, "
    "and waiting does not help (rota limit db:N sets another)"
)
def it_is_paused_and_a_limit_is_zero() -> tuple[World, int, int]:
    world, _ = busy(1)
    world.limit("db", 0)
    world.mode("paused")
    return world, world.submit(1, cores(1, limits=("db",))), 1


# ---- PENDING: a place is kept ----


def kept(**more: Any) -> tuple[World, int]:
    """A node of four cores of which three are in use, and kept for a large job that has waited for long."""
    world = World(Settings(missing_s=1e9, backfill_after_s=600))
    world.submit(4, cores(1, time_s=100_000))
    runner = world.start_runner()
    jobs = lease_all(world, runner)
    world.report(runner, started=jobs)
    large = world.submit(1, cores(4, **more))
    world.tick(700)
    world.schedule()
    world.end(runner, jobs[0])
    return world, large


@truth(
    "the only place that is free is kept for batch 2 (4 cores, added 11m40s ago) (at local/a1/host:r1); "
    "1 job ahead of it: 1 of batch 2"
)
def the_place_is_kept_for_another() -> tuple[World, int, int]:
    world, _ = kept()
    batch = world.submit(1, cores(1))
    world.schedule()
    return world, batch, 1


@truth(
    "the only place that is free is kept for batch 2 (4 cores, added 28m20s ago) (at local/a1/host:r1); "
    "1 job ahead of it: 1 of batch 2"
)
def the_place_has_been_kept_for_long() -> tuple[World, int, int]:
    world, batch, index = the_place_is_kept_for_another()
    world.tick(1000)
    return world, batch, index


@truth(
    "asks for 2 cores, 1 core free now, and what becomes free is kept for batch 2 (4 cores, added 11m40s ago) "
    "(at local/a1/host:r1); in use by 3 jobs of batch 1 (3 cores); 1 job ahead of it: 1 of batch 2"
)
def the_place_is_kept_and_too_small_now() -> tuple[World, int, int]:
    world, _ = kept()
    batch = world.submit(1, cores(2))
    world.schedule()
    return world, batch, 1


@truth(NEVER.format("local has 4 cores, 6 cores are asked for"))
def a_kept_place_is_no_reason_for_one_that_does_not_fit() -> tuple[World, int, int]:
    world = World(Settings(missing_s=1e9, backfill_after_s=600), site=False)
    world.site("local", Amounts(8000, 8 * GIB))
    batch = world.submit(1, cores(6, priority=0))
    world.site("local", NODE)
    return world, batch, 1


# ---- WAITING: dependencies ----


@truth("waits for 1, which RUNS since 12m on host")
def it_waits_for_a_running_job() -> tuple[World, int, int]:
    world, runner = busy(1)
    batch = world.submit(1, cores(1), after=["1"])
    for _ in range(72):
        world.tick(10)
        world.touch(runner)
    return world, batch, 1


@truth("waits for 3 → 2 → 1, which RUNS since 0 s on host")
def a_chain_of_three() -> tuple[World, int, int]:
    world, _ = busy(1)
    world.submit(1, cores(1), after=["1"])
    world.submit(1, cores(1), after=["2"])
    return world, world.submit(1, cores(1), after=["3"]), 1


@truth("waits for 2 → 1.4, which RUNS since 0 s on host")
def a_chain_to_one_job_of_many() -> tuple[World, int, int]:
    world, _ = busy(4)
    world.submit(1, cores(1), after=["1.4"])
    return world, world.submit(1, cores(1), after=["2"]), 1


@truth("waits for 1 (3 of 4 jobs not settled) → 1.2, which RUNS since 0 s on host")
def some_of_a_batch_are_left() -> tuple[World, int, int]:
    world, runner = busy(4)
    world.end(runner, (1, 1, 1))
    return world, world.submit(1, cores(1), after=["1"]), 1


@truth("waits for @prep (4 of 4 jobs not settled) → 1.1, which RUNS since 0 s on host")
def it_waits_for_a_name() -> tuple[World, int, int]:
    world, _ = busy(4)
    return world, world.submit(1, cores(1), after=["@prep"]), 1


@truth("waits for something named 'ghost' to be added")
def it_waits_for_a_name_that_nobody_has() -> tuple[World, int, int]:
    world = World()
    return world, world.submit(1, cores(1), after=["@ghost"]), 1


@truth("waits for 1.2, which RUNS since 0 s on host")
def it_waits_for_the_one_of_its_number() -> tuple[World, int, int]:
    world, _ = busy(4)
    return world, world.submit(4, cores(1), after=[Dependency("1", each=True)]), 2


@truth("waits for 1, which is held (held by ann): rota release 1.1 lets it go on")
def it_waits_for_a_held_job() -> tuple[World, int, int]:
    world = World()
    world.submit(1, cores(1))
    world.change("hold", "1")
    return world, world.submit(1, cores(1), after=["1"]), 1


@truth(
    "waits for 1, which is PENDING: limit db is 0: no job that has it may start, and waiting does not help "
    "(rota limit db:N sets another)"
)
def it_waits_for_a_job_that_never_starts() -> tuple[World, int, int]:
    world = World()
    world.limit("db", 0)
    world.submit(1, cores(1, limits=("db",)))
    world.start_runner()
    world.schedule()
    return world, world.submit(1, cores(1), after=["1"]), 1


@truth("waits for 1, which is MISSING on host: its runner has been silent for 70 s")
def it_waits_for_a_missing_job() -> tuple[World, int, int]:
    world, _ = busy(1)
    world.tick(70)
    return world, world.submit(1, cores(1), after=["1"]), 1


@truth("waits for its time, 1970-01-01 01:16 (1h from now)")
def it_waits_for_its_time() -> tuple[World, int, int]:
    world = World()
    return world, world.submit(1, cores(1), not_before=world.wall + 3600), 1


@truth("waits for 1, which RUNS since 0 s on host; also: waits for its time, 1970-01-01 01:16 (1h from now)")
def it_waits_for_a_job_and_its_time() -> tuple[World, int, int]:
    world, _ = busy(1)
    return world, world.submit(1, cores(1), after=["1"], not_before=world.wall + 3600), 1


@truth(
    "waits for 1, which RUNS since 0 s on host; also: waits for its time, 1970-01-01 01:16 (1h from now); also: "
    "limit b is 0: no job that has it may start, and waiting does not help (rota limit b:N sets another); "
    "also: limit a is full: 1 of 1 in use"
)
def a_job_a_time_and_two_limits() -> tuple[World, int, int]:
    world = World()
    world.limit("a", 1)
    world.limit("b", 0)
    world.submit(1, cores(1, limits=("a",)))
    runner = world.start_runner()
    world.report(runner, started=lease_all(world, runner))
    needs = cores(1, limits=("a", "b"))
    return world, world.submit(1, needs, after=["1"], not_before=world.wall + 3600), 1


@truth(
    "waits for its time, 1970-01-01 01:16 (1h from now); also: "
    "no site has what it asks for, as they are configured now: local has no tag big; waiting does not help"
)
def what_it_will_need_is_gone() -> tuple[World, int, int]:
    world = World(site=False)
    world.site("local", NODE, tags=("big",))
    batch = world.submit(1, cores(1, tags=("big",)), not_before=world.wall + 3600)
    world.site("local", NODE)
    return world, batch, 1


@truth("waits for 1, which RUNS since 0 s on host; also: the manager is paused: rota resume lets jobs start again")
def a_job_and_a_pause() -> tuple[World, int, int]:
    world, _ = busy(1)
    batch = world.submit(1, cores(1), after=["1"])
    world.mode("paused")
    return world, batch, 1


@truth("waits for 1, which RUNS since 0 s on host; also: waits for something named 'ghost' to be added")
def it_waits_for_two_things() -> tuple[World, int, int]:
    world, _ = busy(1)
    return world, world.submit(1, cores(1), after=["1", "@ghost"]), 1


@truth("waits for 2, which waits for its time, 1970-01-01 01:16 (1h from now)")
def the_root_waits_for_its_time() -> tuple[World, int, int]:
    world, _ = busy(1)
    world.submit(1, cores(1), not_before=world.wall + 3600)
    return world, world.submit(1, cores(1), after=["2"]), 1


@truth("failed (try 1 of 3: exit 1) and is tried again in 53 s")
def it_backs_off() -> tuple[World, int, int]:
    world, batch, index = ended(1, retries=2)
    return world, batch, index


@truth("waits for 1 to fail, which RUNS since 0 s on host")
def it_waits_for_a_failure() -> tuple[World, int, int]:
    world, _ = busy(1)
    return world, world.submit(1, cores(1), after=[Dependency("1", condition="failure")]), 1


def in_line(count: int) -> tuple[World, FakeRunner]:
    """A batch in which each job waits for the one before it; the first runs."""
    world = World()
    links = Graph(*pack_links([[(pos - 1) << 2] if pos else [] for pos in range(count)]))
    world.submit(count, cores(1), graph=links)
    runner = world.start_runner()
    world.report(runner, started=lease_all(world, runner))
    return world, runner


@truth("waits for 1.3 → 1.2 → 1.1, which RUNS since 0 s on host")
def it_waits_for_others_of_its_batch() -> tuple[World, int, int]:
    world, _ = in_line(4)
    return world, 1, 4


@truth("omitted because 1.2 → 1.1 failed: exit 3, disk quota exceeded (depends on 1.2, which is OMITTED)")
def another_of_its_batch_failed() -> tuple[World, int, int]:
    world, runner = in_line(4)
    world.end(runner, (1, 1, 1), 3)
    return world, 1, 3


# ---- HOLDING ----


@truth("is held (held by ann): rota release 1.1 lets it go on")
def it_is_held() -> tuple[World, int, int]:
    world = World()
    batch = world.submit(1, cores(1))
    world.change("hold", str(batch))
    return world, batch, 1


@truth("is held (held by ann): rota release 2.1 lets it go on; and then it waits for 1, which RUNS since 0 s on host")
def it_is_held_and_waits() -> tuple[World, int, int]:
    world, _ = busy(1)
    batch = world.submit(1, cores(1), after=["1"])
    world.change("hold", str(batch))
    return world, batch, 1


@truth(
    "is held (held by ann): rota release 2.1 lets it go on; and then it waits for 1, which RUNS since 0 s on host; "
    "also: limit db is 0: no job that has it may start, and waiting does not help (rota limit db:N sets another)"
)
def held_with_a_job_and_a_limit() -> tuple[World, int, int]:
    world, _ = busy(1)
    world.limit("db", 0)
    batch = world.submit(1, cores(1, limits=("db",)), after=["1"])
    world.change("hold", str(batch))
    return world, batch, 1


@truth(
    "is held (held by ann): rota release 1.1 lets it go on; and then: limit db is 0: no job that has it may start, and "
    "waiting does not help (rota limit db:N sets another)"
)
def held_with_a_limit() -> tuple[World, int, int]:
    world = World()
    world.limit("db", 0)
    batch = world.submit(1, cores(1, limits=("db",)))
    world.change("hold", str(batch))
    return world, batch, 1


@truth("is held (1 of its jobs failed and none succeeded): rota release 1.6 lets it go on")
def the_brake_holds_it() -> tuple[World, int, int]:
    world = World()
    batch = world.submit(6, cores(4), max_failures=1)
    runner = world.start_runner()
    (job,) = lease_all(world, runner)
    world.end(runner, job, 1)
    return world, batch, 6


# ---- OMITTED ----


@truth("omitted because 1.1 failed: exit 3, disk quota exceeded (depends on 1, of which 1 of 1 jobs did not succeed)")
def its_dependency_failed() -> tuple[World, int, int]:
    world, batch, _ = ended(3)
    return world, world.submit(1, cores(1), after=[str(batch)]), 1


@truth(
    "omitted because 2.1 → 1.1 failed: exit 3, disk quota exceeded (depends on 2, of which 1 of 1 jobs did not succeed)"
)
def the_root_failed() -> tuple[World, int, int]:
    world, _, _ = ended(3)
    world.submit(1, cores(1), after=["1"])
    return world, world.submit(1, cores(1), after=["2"]), 1


@truth("omitted because 1.1 was aborted: killed by ann (depends on 1, of which 1 of 1 jobs did not succeed)")
def its_dependency_was_killed() -> tuple[World, int, int]:
    world = World()
    world.submit(1, cores(1))
    world.change("kill", "1")
    return world, world.submit(1, cores(1), after=["1"]), 1


@truth("was to run if 1 failed, but it succeeded")
def its_dependency_succeeded() -> tuple[World, int, int]:
    world, _, _ = ended(0)
    return world, world.submit(1, cores(1), after=[Dependency("1", condition="failure")]), 1


@truth("omitted because 1.1 failed: exit 3, disk quota exceeded (depends on 1.1, which is FAILED)")
def the_one_of_its_number_failed() -> tuple[World, int, int]:
    world, _, _ = ended(3)
    return world, world.submit(1, cores(1), after=[Dependency("1", each=True)]), 1


# ---- STARTING, RUNNING, MISSING, KILLING ----


@truth("was given to a runner 7 s ago on host (attempt 1, runner r1), which has not confirmed that yet")
def it_was_leased() -> tuple[World, int, int]:
    world = World()
    batch = world.submit(1, cores(1))
    lease_all(world, world.start_runner())
    world.tick(7)
    return world, batch, 1


@truth("was given to a runner 7 s ago on host (attempt 1, runner r1), and starts or waits its turn there")
def its_runner_has_it() -> tuple[World, int, int]:
    world = World()
    batch = world.submit(1, cores(1))
    runner = world.start_runner()
    lease_all(world, runner)
    world.tick(7)
    world.touch(runner)
    return world, batch, 1


def leased_ahead() -> tuple[World, int]:
    """Four short jobs run, and their runner has more of them already; the number of their batch."""
    world = World()
    world.submit(1, cores(1))
    runner = world.start_runner()
    (job,) = lease_all(world, runner)
    world.report(runner, started=[job])
    world.report(runner, ended=[world.row(job)._replace(started=world.wall - 0.05)])
    batch = world.submit(9, cores(1))
    jobs = lease_all(world, runner)
    assert len(jobs) > 4
    world.report(runner, started=jobs[:4])
    return world, batch


@truth(
    "was given to a runner 0 s ago on host (attempt 1, runner r1), and starts when one of the 4 jobs that run in its "
    "place there has ended"
)
def its_runner_has_it_ahead() -> tuple[World, int, int]:
    world, batch = leased_ahead()
    return world, batch, 5


@truth("asks for 4 cores, 0 cores free now (at local/a1/host:r1); in use by 4 jobs of batch 2 (4 cores)")
def what_a_runner_has_ahead_uses_nothing() -> tuple[World, int, int]:
    world, _ = leased_ahead()
    batch = world.submit(1, cores(4, priority=9))
    world.schedule()
    return world, batch, 1


@truth("runs on host (attempt 1, runner r1) since 7 s")
def it_runs() -> tuple[World, int, int]:
    world, runner = busy(1)
    world.tick(7)
    world.touch(runner)
    return world, 1, 1


@truth(
    "runs on host (attempt 1, runner r1) since 15 s; its command ended 12 s ago with exit 0; waits for 3 processes "
    "that it left: sleep (pid 77), tee (pid 78), …"
)
def only_what_it_left_runs() -> tuple[World, int, int]:
    world, runner = busy(1)
    left = Left(1, 1, 1, world.wall + 3, 3, [(77, "sleep"), (78, "tee")])
    world.tick(15)
    world.touch(runner, left=[left])
    return world, 1, 1


@truth(
    "runs on host (attempt 1, runner r1) since 7 s; its time of 5s is over: TERM was sent 2 s ago, KILL follows in 8 s"
)
def its_time_is_over_and_it_does_not_end() -> tuple[World, int, int]:
    world = World()
    batch = world.submit(1, cores(1, time_s=5))
    runner = world.start_runner()
    world.report(runner, started=lease_all(world, runner))
    world.tick(7)
    world.touch(runner)
    return world, batch, 1


@truth(
    "runs on host (attempt 1, runner r1) since 40 s; its runner is not connected, and has not been heard of for 40 s: "
    "it counts as missing in 20 s"
)
def it_runs_and_its_runner_is_not_connected() -> tuple[World, int, int]:
    world, runner = busy(1)
    world.step(Disconnected(at=world.at, runner="r1", session=runner.session))
    world.tick(40)
    return world, 1, 1


@truth(
    "is missing: nothing has been heard of its runner on host for 70 s; it was on host (attempt 1, runner r1); it "
    "counts again when the runner is back, or is given up when the driver or you (rota kill 1.1 --confirm-dead) say so"
)
def its_runner_is_silent() -> tuple[World, int, int]:
    world, _ = busy(1)
    world.tick(70)
    return world, 1, 1


@truth(
    "is missing: nothing has been heard of its runner on host for 70 s; it was on host (attempt 1, runner r1); it "
    "counts again when the runner is back, or is given up when the driver or you (rota kill 1.1 --confirm-dead) say "
    "so; it is rerunnable, so that it is tried again elsewhere in 9m"
)
def its_runner_is_silent_and_it_is_rerunnable() -> tuple[World, int, int]:
    world = World()
    batch = world.submit(1, cores(1, rerunnable=True))
    runner = world.start_runner()
    world.report(runner, started=lease_all(world, runner))
    world.tick(70)
    return world, batch, 1


@truth("is being killed on host (attempt 1, runner r1), killed by ann; TERM was sent 4 s ago, KILL follows in 6 s")
def it_is_being_killed() -> tuple[World, int, int]:
    world, runner = busy(1)
    world.change("kill", "1")
    world.tick(4)
    world.touch(runner)
    return world, 1, 1


@truth("is being killed on host (attempt 1, runner r1), killed by ann; TERM was sent 15 s ago, and KILL 5 s ago")
def it_does_not_die() -> tuple[World, int, int]:
    world, runner = busy(1)
    world.change("kill", "1")
    world.tick(15)
    world.touch(runner)
    return world, 1, 1


@truth(
    "is being killed on host (attempt 1, runner r1), killed by ann; its runner has not been heard of for 70 s: it is "
    "told when it is back, or say that it is dead (rota kill 1.1 --confirm-dead)"
)
def it_is_killed_on_a_silent_runner() -> tuple[World, int, int]:
    world, _ = busy(1)
    world.tick(70)
    world.change("kill", "1")
    return world, 1, 1


# ---- settled ----


@truth("succeeded in attempt 1 on host after 10s")
def it_succeeded() -> tuple[World, int, int]:
    return ended(0)


@truth("ended with exit code 3; its last line: disk quota exceeded")
def it_failed() -> tuple[World, int, int]:
    return ended(3)


@truth("was ended by signal 11 (SIGSEGV), which rota did not send")
def it_crashed() -> tuple[World, int, int]:
    return ended(None, 11, "signal")


@truth("took longer than its time and was ended after 10s: took more than 5s: the next try gets 1h1m")
def its_time_was_over() -> tuple[World, int, int]:
    return ended(None, 15, "time", time_s=5)


@truth("was ended with its allocation, whose time was over after 10s (the job itself may take 1h)")
def the_time_of_its_allocation_was_over() -> tuple[World, int, int]:
    return ended(None, 15, "time", time_s=3600)


@truth("was ended with its allocation, whose time was over after 10s: it asked for no time: the next try asks for 1h1m")
def the_time_of_its_allocation_was_over_and_it_has_none() -> tuple[World, int, int]:
    return ended(None, 15, "time")


@truth(
    "ran out of memory and was ended by the kernel (1000B when it was last measured): "
    "ran out of memory, had 1G: the next try asks for 2100M"
)
def it_ran_out_of_memory() -> tuple[World, int, int]:
    return ended(None, 9, "oom", memory=GIB)


@truth(
    "ran out of memory and was ended by the kernel (1000B when it was last measured): "
    "used 1000B: the next try asks for 1100M"
)
def it_ran_out_of_memory_and_asked_for_none() -> tuple[World, int, int]:
    return ended(None, 9, "oom")


@truth("was killed by ann")
def it_was_killed() -> tuple[World, int, int]:
    world, runner = busy(1)
    world.change("kill", "1")
    world.end(runner, (1, 1, 1), None, 15, "killed")
    return world, 1, 1


@truth("was killed before it ran (killed by ann)")
def it_was_killed_before_it_ran() -> tuple[World, int, int]:
    world = World()
    batch = world.submit(1, cores(1))
    world.change("kill", str(batch))
    return world, batch, 1


@truth("was cancelled at the cluster, not by rota")
def it_was_cancelled_elsewhere() -> tuple[World, int, int]:
    return ended(None, 15, "cancelled")


@truth("found no space left to write to")
def its_disk_was_full() -> tuple[World, int, int]:
    return ended(1, None, "disk-full")


@truth("ended with exit code 127; it is not tried again (that could not help; --retry-on says otherwise)")
def a_retry_is_of_no_use() -> tuple[World, int, int]:
    return ended(127, retries=3)


@pytest.mark.parametrize(("stage", "words"), [row[1:] for row in SITUATIONS], ids=[row[0] for row in SITUATIONS])
def test_the_truth_is_told(stage: Stage, words: str) -> None:
    world, batch, index = stage()
    assert told(world, batch, index, waits=lambda allocation: Waiting("Priority")).reason == words


def test_what_a_cluster_can_never_run_is_said_so() -> None:
    world, batch, index = its_allocation_waits_in_the_cluster()
    never = Waiting("Can Never Run: Insufficient amount of resource: ncpus", True)
    said = told(world, batch, index, waits=lambda allocation: never)
    assert said.reason == (
        "allocation a1 is PENDING (at local), asked for 5m ago; the cluster says of job 77: Can Never Run: "
        "Insufficient amount of resource: ncpus: it can never run as it was asked for, waiting does not help"
    )
    assert [(each.kind, each.lasting) for each in said.blockers] == [("never", True)]
    assert said.commands == [f"rota modify {batch} --help"]
    (shape,) = world.state.shapes
    for words, lasting in ((never, True), (Waiting("Priority"), False)):
        (verdict,) = verdicts(world.state, shape, world.at, Records(waits=lambda allocation, words=words: words))
        assert (verdict.code, verdict.lasting) == ("starting", lasting)


def test_what_is_over_at_the_cluster_does_not_run() -> None:
    world = World(site=False)
    world.site("hpc", NODE, most=1, mode="direct", whole=False)
    batch = world.submit(2, cores(1))
    world.schedule()
    world.step(AllocationSeen(at=world.at, id="a1", verb="run", native_id="77", host="n1"))
    assert told(world, batch).reason == "runs on n1 as job 77 of the site hpc (attempt 1, allocation a1)"
    over = told(world, batch, waits=lambda allocation: Waiting("OUT_OF_MEMORY", over=True))
    assert over.reason == (
        "was on n1 as job 77 of the site hpc (attempt 1, allocation a1); the cluster says of job 77 that it is over "
        "(OUT_OF_MEMORY): its report is waited for"
    )
    assert told(world, batch, 2).reason == "the site has all the allocations that it may have (1) (at hpc)"


@pytest.mark.parametrize("many", [0, 300])
def test_what_is_in_front_in_short_is_what_is_ahead(many: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line, "MANY", many)
    chance = random.Random(7)
    world = World(check=False)
    for number in range(80):
        templates = tuple(
            cores(chance.choice((1, 2, 3)), priority=chance.choice((0, 0, 5)), limits=chance.choice(((), ("shut",))))
            for _ in range(chance.choice((1, 1, 3)))
        )
        counts = [chance.randrange(1, 5) for _ in templates]
        runs = [part for pair in enumerate(counts) for part in pair]
        world.submit(sum(counts), templates=templates, runs=runs, name=f"n{number % 7}")
    world.limit("shut", 0)
    world.change("kill", "5", "9.1", "30")
    asked = Line(world.state, world.at)
    for batch in world.state.batches.open():
        pos = batch.states.find(PENDING)
        if pos >= 0:
            assert asked.in_front(batch, pos) == in_front(asked.before(batch, pos), batch.id), batch.id


def test_there_are_many_situations() -> None:
    assert len(SITUATIONS) >= 64
    assert len({name for name, _, _ in SITUATIONS}) == len(SITUATIONS)


def test_a_store_that_cannot_be_written_is_the_first_reason() -> None:
    world, _ = busy()
    batch = world.submit(1, cores(1, time_s=60))
    world.schedule()
    said = told(world, batch, trouble="only 15 MiB are left", stuck=True)
    assert said.reason.startswith("nothing starts: the disk of the queue is full, and what was set aside there for ")
    said = told(world, batch, trouble="only 15 MiB are left")
    assert said.reason.startswith("asks for 1 core, 0 cores free now "), "what was accepted goes on"
    assert "; also: only 15 MiB are left; in use by " in said.reason


def test_without_a_manager_that_is_the_reason() -> None:
    world, _ = busy(1)
    batch = world.submit(1, cores(1))
    assert told(world, batch, down=True).reason == "no manager is up: rota up starts one"
    assert told(world, 1, down=True).reason == (
        "runs on host (attempt 1, runner r1); no manager is up, so this is how it was when one was: it goes on without"
    )


def test_the_parts_are_there_for_machines() -> None:
    world, batch, _ = limited(4, live=4)
    said = told(world, batch)
    assert [(blocker.kind, blocker.lasting) for blocker in said.blockers] == [("limit", False), ("room", False)]
    assert [(row.what, row.batch, row.jobs, row.example) for row in said.holders] == [
        ("cores", 1, 4, "1.1"),
        ("limit db", 1, 4, "1.1"),
    ]
    world.submit(1, cores(1), after=["1"])
    chain = told(world, world.submit(1, cores(1), after=["3"])).chain
    assert [(link.what, link.state) for link in chain] == [("3", "WAITING"), ("1.1", "RUNNING")]
    ahead = told(world, world.submit(2, cores(2)), 2).ahead
    assert [(row.batch, row.jobs) for row in ahead] == [(5, 1)], "batch 2 waits for a limit"


@pytest.mark.parametrize(
    ("stage", "words"),
    [
        (its_runner_is_silent, "is missing: nothing has been heard of its runner on host for 70 s; "),
        (it_is_being_killed, "is being killed on host (attempt 1, runner r1), killed by ann; "),
        (it_was_leased, "was given to a runner 7 s ago on host "),
        (its_dependency_failed, "omitted because 1.1 failed: exit 3, disk quota exceeded"),
        (a_limit_is_zero, "limit db is 0: "),
        (memory_is_gone, "local has 4G memory, 6G memory is asked for; waiting does not help"),
        (it_is_held, "is held (held by ann): rota release 1 lets it go on"),
    ],
)
def test_the_column_begins_with_the_reason(stage: Stage, words: str) -> None:
    world, batch, _ = stage()
    records = Records(lambda number, at: next(r for r in world.results if r.batch == number), lambda of, at: LINE)
    said = dict(batch_reasons(world.state, world.state.batches.values(), world.at, records))
    assert said[batch].startswith(words)


LINE = "disk quota exceeded"


def test_a_batch_that_failed_says_how_in_its_row() -> None:
    world, batch, _ = ended(3)
    records = Records(lambda number, at: world.results[-1], lambda of, at: LINE)
    assert dict(batch_reasons(world.state, world.state.batches.values(), world.at, records)) == {
        batch: "ended with exit code 3: disk quota exceeded"
    }


def test_a_retry_of_what_would_be_omitted_again_says_so() -> None:
    world, _, _ = ended(3)
    world.submit(2, cores(1), after=["1"])
    answer = world.change("retry", "2")
    assert answer["jobs"] == 0 and world.states(2) == ["OMITTED", "OMITTED"]
    assert answer["skipped"] == [
        {
            "reason": "stays OMITTED, as it depends on 1.1, which is FAILED: rota retry 1 2 runs both, "
            "rota modify 2 --after none runs it without",
            "jobs": 2,
        }
    ]
    assert world.change("retry", "1", "2")["jobs"] == 3
    assert world.states(1) == ["PENDING"] and world.states(2) == ["WAITING", "WAITING"]


def test_a_retry_follows_the_chain_to_what_still_fails() -> None:
    world, _, _ = ended(3)
    world.submit(1, cores(1), after=["1"])
    world.submit(1, cores(1), after=["2"])
    answer = world.change("retry", "2", "3")
    assert answer["jobs"] == 0, "what is omitted stays so, and so does what waits for it"
    assert [row["reason"].partition(":")[0] for row in answer["skipped"]] == [
        "stays OMITTED, as it depends on 1.1, which is FAILED"
    ] * 2
    assert world.change("retry", "1", "3")["jobs"] == 2
    assert [world.states(number) for number in (1, 2, 3)] == [["PENDING"], ["WAITING"], ["WAITING"]]


def test_a_retry_of_what_was_to_run_after_a_failure_names_what_helps() -> None:
    world, batch, _ = its_dependency_succeeded()
    (row,) = world.change("retry", str(batch))["skipped"]
    assert row["reason"].startswith(
        "stays OMITTED, as it depends on 1.1, which is COMPLETED: rota retry 1 :completed runs both, "
    )
    assert world.change("retry", "1", ":completed")["jobs"] == 1
    assert world.states(batch) == ["WAITING"]
    world, batch, _ = its_dependency_succeeded()
    assert told(world, batch).commands == [f"rota modify {batch} --drop-after 1"]


def test_what_helps_is_there_for_what_waits() -> None:
    world, batch, _ = it_backs_off()
    assert told(world, batch).commands == [f"rota retry {batch}.1"]
    world, batch, _ = it_waits_for_a_job_and_its_time()
    assert told(world, batch).commands == [f"rota modify {batch} --not-before now"]


def test_what_was_given_more_needs_no_more() -> None:
    world, batch, _ = its_time_was_over()
    assert told(world, batch).commands == [f"rota retry {batch}.1"], "it gets 1h1m already"
    world, batch, _ = the_time_of_its_allocation_was_over()
    assert told(world, batch).commands == [f"rota retry {batch}.1 --time x2"]


@pytest.mark.parametrize(
    ("stage", "options"),
    [
        (a_tag_is_gone, "--tag ''"),
        (a_gpu_is_gone, "--gpus 0"),
        (memory_is_gone, "--memory 4G"),
        (cores_are_gone, "--cores 2"),
        (a_site_is_gone, "--on local"),
        (a_resource_is_gone, "--resource lic=0"),
        (long_times_are_gone, "--time 1h"),
    ],
)
def test_what_helps_where_something_is_gone(stage: Stage, options: str) -> None:
    world, batch, _ = stage()
    assert told(world, batch).commands == [f"rota modify {batch} {options}"]


def noted(note: str, reason: str | None, code: int | None = 1, line: str = "") -> Account:
    """What is said of a job of which its runner noted something."""
    world = World()
    batch = world.submit(1, cores(1, memory=GIB))
    runner = world.start_runner()
    (job,) = lease_all(world, runner)
    world.report(runner, started=[job])
    world.report(runner, ended=[world.row(job, code, None, reason)._replace(note=note)])
    records = Records(lambda *_: world.results[-1], lambda *_: line)
    return account(world.state, world.state.batches[batch], 0, world.at, records)


def test_every_way_to_fail_has_words() -> None:
    for reason in REASONS:
        assert "failed (" not in noted("", reason).reason, reason


def test_a_figure_is_told_once() -> None:
    over = "used 1100M of memory, over its limit of 1G"
    assert noted(f"{over}; used 1200M, had 1G: no more is asked for", "memory").reason == (
        "used more than its memory and was ended: used 1200M, had 1G: no more is asked for; "
        "ran out of memory, had 1G: the next try asks for 2100M"
    )
    assert f"was ended: {over}; ran out of memory, had 1G: " in noted(over, "memory").reason, "it has no other figure"


def test_what_was_noted_is_not_said_again_by_the_last_line() -> None:
    told = noted("there is no image x.sif", "container", 125, "rota: there is no image x.sif")
    assert told.reason == "could not be started in its container: there is no image x.sif"
    assert noted("there is no image", "container", 125, "boom").reason.endswith("; its last line: boom")


def test_what_was_noted_of_a_success_is_said() -> None:
    told = noted("ended 1 process that it left running", None, 0)
    assert told.reason == "succeeded in attempt 1 on host after 10s: ended 1 process that it left running"


@pytest.mark.parametrize(
    ("reason", "command"),
    [
        ("not-found", "rota retry 1.1 --command TEXT"),
        ("cwd", "rota retry 1.1 --cwd DIR"),
        ("output", "rota retry 1.1 -o FILE"),
        ("input", "rota retry 1.1"),
    ],
)
def test_what_helps_where_nothing_ran(reason: str, command: str) -> None:
    assert noted("", reason).commands == [command]


def at_a_cluster(template: Template, **facts: Any) -> tuple[World, int]:
    """A job for which there is no room on the node of a cluster, which says this of itself now."""
    world = World(site=False)
    world.site("local", most=1, whole=False)
    world.submit(4, cores(1), name="prep")
    world.schedule()
    runner = world.start_runner()
    world.report(runner, started=lease_all(world, runner))
    batch = world.submit(1, template)
    world.site("local", **{"most": 1, "whole": False, **facts})
    world.schedule()
    return world, batch


def test_why_no_more_is_asked_for_is_said() -> None:
    world, batch = at_a_cluster(cores(1))
    assert "; also: no more is asked for, as the site has all the allocations that it may have (1) (at local)" in (
        told(world, batch).reason
    )
    world, batch = at_a_cluster(cores(1), most=2, paused=True)
    (room, site) = told(world, batch).blockers
    assert (room.kind, site.kind) == ("room", "site")
    assert site.words == "no more is asked for, as the site local is paused: [site] paused in config.toml"


def test_what_a_cloud_lacks_for_more_servers_is_said() -> None:
    def told_at(*queues: QueueFacts) -> str:
        bounds = (Bound("quota", "cores", 4000, 1000),)
        world, batch = at_a_cluster(cores(1), most=9, cloud=True, queues=queues, bounds=bounds)
        return told(world, batch).reason

    medium = QueueFacts("c4", NODE, nodes_most=1)
    small, large = (replace(medium, name=f"c{n}", node=replace(NODE, cores=n * 1000)) for n in (1, 8))
    words = "; also: no more is asked for, as quota: 3 of 4 cores left, 4 asked (at local:c4)"
    assert words in told_at(medium)
    assert words in told_at(medium, large)
    assert "quota" not in told_at(medium, small)  # that one is asked for


def test_what_is_for_another_queue_is_not_ahead() -> None:
    queues = (QueueFacts("short", NODE, default=True), QueueFacts("gone", NODE, up=False))
    world = World(site=False)
    world.site("local", queues=queues)
    world.mode("paused")
    world.submit(7, cores(2, options=(("partition", "gone"),)), name="early")
    batch = world.submit(1, cores(1))
    world.schedule()
    assert told(world, batch).ahead == []


def test_a_queue_that_is_shut_and_too_small_is_no_hope() -> None:
    queues = (QueueFacts("short", NODE, default=True), QueueFacts("gone", NODE, up=False))
    world = World(site=False)
    world.site("local", queues=queues)
    with pytest.raises(UsageError, match="the queue gone of local has 4 cores, 64 cores are asked for"):
        world.submit(1, cores(64, options=(("partition", "gone"),)))


def test_alternatives_are_told_with_their_site() -> None:
    world, batch, _ = gone(cores(4, gpus=1, variants=((("cores", 8000),),)))
    assert "; or local has 2 cores, 8 cores are asked for" in told(world, batch).reason


def test_what_starts_waits_for_something() -> None:
    world = World()
    batch = world.submit(1, cores(1))
    lease_all(world, world.start_runner())
    (blocker,) = told(world, batch).blockers
    assert blocker.kind == "runner" and blocker.words == told(world, batch).reason


def test_a_code_is_a_word() -> None:
    world, batch, _ = its_only_runner_is_missing()
    shape = world.state.shapes[world.state.batches[batch].shapes[0]]
    said = verdicts(world.state, shape, world.at, Records())
    assert "missing" in [row.code for row in said]
    assert told(world, batch).commands == ["rota runners"]


def test_a_verdict_says_whether_waiting_helps() -> None:
    world, batch, _ = a_limit_is_zero()
    shape = world.state.shapes[world.state.batches[batch].shapes[0]]
    said = verdicts(world.state, shape, world.at, Records())
    assert [(row.filter, row.lasting) for row in said if row.filter == "limits"] == [("limits", True)]


def test_the_column_claims_no_more_than_it_knows() -> None:
    world = World()
    batch = world.submit(2, cores(1))
    runner = world.start_runner()
    for code, job in enumerate(lease_all(world, runner), 3):
        world.report(runner, started=[job])
        world.end(runner, job, code)
    records = Records(lambda number, at: next(r for r in world.results if r.pos == at), lambda of, at: "")
    assert dict(batch_reasons(world.state, world.state.batches.values(), world.at, records)) == {
        batch: "ended with exit code 3 (1.1, the first of 2)"
    }


def test_a_full_disk_stops_what_would_fail_there() -> None:
    world = World()
    batch = world.submit(6, cores(4))
    runner = world.start_runner()
    (job,) = lease_all(world, runner)
    world.report(runner, started=[job])
    world.report(runner, ended=[world.row(job, 1, None, "disk-full")._replace(note="the disk of /full is full")])
    assert world.counts(batch) == {"FAILED": 1, "HOLDING": 5}
    assert told(world, batch, 2).reason == (
        f"is held ({batch}.1 found no space left to write to: the disk of /full is full): "
        f"rota release {batch}.2 lets it go on"
    )
    assert world.change("release", str(batch))["jobs"] == 5


def test_what_failed_for_want_of_its_own_directory_does_not_hold_others() -> None:
    world = World()
    batch = world.submit(6, cores(4))
    runner = world.start_runner()
    (job,) = lease_all(world, runner)
    world.report(runner, ended=[world.row(job, 1, None, "disk-full")._replace(peak_disk=GIB)])
    assert world.counts(batch) == {"FAILED": 1, "PENDING": 5}
