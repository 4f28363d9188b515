"""The scheduler of the seed's interface: who gets which location, when, and what is given back."""

import asyncio
import logging
import os
import re
from pathlib import Path
from typing import Any

import pytest

from placement_world import Connector, Context, Waits, a_job, a_target, asynchronous, host, settle
from rota.placement import (
    AvailableLocation,
    BindingConfig,
    BindingFilter,
    Config,
    DefaultScheduler,
    DefinitionError,
    Hardware,
    HardwareRequirement,
    Job,
    PlacementError,
    Policy,
    Status,
    Storage,
)

MIB = 1 << 20
FARM = BindingConfig([a_target()])


def made(*connectors: Connector, **more: Any) -> tuple[DefaultScheduler, Waits]:
    scheduler = DefaultScheduler(Context(*connectors), **more)
    return scheduler, Waits(scheduler)


def free(scheduler: DefaultScheduler, name: str) -> tuple[int, int]:
    amounts = scheduler.usage.ledger.free(name)
    return amounts.cores, amounts.memory // MIB


# ---- the checklist of the reference (placement.md §10) ---------------------------------------------------------------


@asynchronous
async def test_a_job_is_fireable_and_may_complete_at_once() -> None:
    scheduler, waits = made(Connector("farm", host()))
    assert await waits.add("/s/0", FARM, Hardware(1, 100))
    assert scheduler.get_allocation("/s/0").status == Status.FIREABLE
    await scheduler.notify_status("/s/0", Status.COMPLETED)
    assert waits.is_empty() and scheduler.get_allocation("/s/0").status == Status.COMPLETED


@pytest.mark.parametrize("kind", ["host", "this machine", "slots", "container", "batch system", "nothing asked"])
@asynchronous
async def test_every_kind_of_location(kind: str) -> None:
    login = host("login", "cluster", cores=1)
    location = {
        "this machine": host(local=True),
        "slots": AvailableLocation("q", "farm", "q", slots=1),
        "container": container("c", "farm", host("node", "cluster")),
        "batch system": AvailableLocation("login/slurmctld", "farm", "login", slots=1, wraps=login),
    }.get(kind, host())
    scheduler, waits = made(Connector("farm", location))
    assert await waits.add("/s/0", FARM, None if kind == "nothing asked" else Hardware(2, 100))
    assert scheduler.get_allocation("/s/0").status == Status.FIREABLE
    assert [each.name for each in scheduler.get_locations("/s/0")] == [location.name]
    await scheduler.notify_status("/s/0", Status.COMPLETED)
    assert waits.is_empty() and scheduler.get_locations("/s/0", [Status.RUNNING]) == []


@asynchronous
async def test_two_jobs_that_fit_together() -> None:
    _scheduler, waits = made(Connector("farm", host(cores=2)))
    assert await waits.add("a", FARM, Hardware(1)) and await waits.add("b", FARM, Hardware(1))


@asynchronous
async def test_the_second_of_two_waits_while_the_first_runs() -> None:
    scheduler, waits = made(Connector("farm", host(cores=2)))
    assert await waits.add("a", FARM, Hardware(2)) and not await waits.add("b", FARM, Hardware(2))
    for look in (scheduler.get_allocation, scheduler.get_locations, scheduler.get_hardware, scheduler.get_connector):
        with pytest.raises(PlacementError, match="Could not retrieve allocation for job b"):
            look("b")
    await scheduler.notify_status("a", Status.RUNNING)
    await settle()
    assert not waits.placed("b")
    (no,) = scheduler.explain("b")
    assert (no.location, no.code, no.detail) == ("farm/h1", "busy", "asks for 2 cores, has 0 cores free")
    await scheduler.notify_status("a", Status.COMPLETED)
    await settle()
    assert waits.placed("b") and scheduler.get_allocation("b").status == Status.FIREABLE


@asynchronous
async def test_targets_are_tried_in_order() -> None:
    _scheduler, waits = made(
        Connector("one", host(deployment="one", cores=1)), Connector("two", host(deployment="two", cores=1))
    )
    both = BindingConfig([a_target("one"), a_target("two")])
    assert await waits.add("a", both, Hardware(1)) and await waits.add("b", both, Hardware(1))
    assert (waits.where("a"), waits.where("b")) == ("one/h1", "two/h1")
    assert not await waits.add("c", both, Hardware(1))
    await waits.end("b")
    assert waits.where("c") == "two/h1"


class Reverse(BindingFilter):
    async def get_targets(self, job: Any, targets: Any) -> Any:
        return targets[::-1]


@asynchronous
async def test_a_filter_of_a_plugin_changes_the_order(monkeypatch: pytest.MonkeyPatch) -> None:
    _scheduler, waits = made(Connector("one", host(deployment="one")), Connector("two", host(deployment="two")))
    targets = [a_target("one"), a_target("two")]
    assert await waits.add("a", BindingConfig(targets, [Reverse("r")]), Hardware(1))
    monkeypatch.setattr("rota.placement.plugins.entry_points", lambda group: [Point()])
    assert await waits.add("b", BindingConfig(targets, [Config("mine", "reverse")]), Hardware(1))
    assert (waits.where("a"), waits.where("b")) == ("two/h1", "two/h1")
    assert targets[0].deployment.name == "one", "what was given stays as it is"


class Point:
    name = "reverse"

    def load(self) -> type:
        return Reverse


def container(name: str, deployment: str, below: AvailableLocation, cores: float = 4) -> AvailableLocation:
    return host(name, deployment, cores=cores, stacked=True, wraps=below)


@asynchronous
async def test_two_deployments_of_containers_on_one_host_exclude_each_other() -> None:
    below = host("node", "cluster", cores=2)
    scheduler, waits = made(Connector("d1", container("c", "d1", below)), Connector("d2", container("c", "d2", below)))
    assert await waits.add("a", BindingConfig([a_target("d1")]), Hardware(2))
    assert not await waits.add("b", BindingConfig([a_target("d2")]), Hardware(2))
    (no,) = scheduler.explain("b")
    assert no.detail == "asks for 2 cores, has 0 cores free (at cluster/node, which it is stacked on)"
    lists = scheduler.location_allocations
    assert lists["d1"]["c"].jobs == lists["cluster"]["node"].jobs == ["a"] and "d2" not in lists
    assert [each.deployment for each in scheduler.get_locations("a")] == ["d1"], "an allocation has direct ones only"
    await waits.end("a")
    assert waits.placed("b") and list(lists["cluster"]["node"].active) == ["b"]
    await waits.end("b")
    assert waits.is_empty() and lists["cluster"]["node"].jobs == ["a", "b"], "the history stays"


class Directories(HardwareRequirement):
    def eval(self, job: Job) -> Hardware:
        out, tmp = Storage("/", 25, {str(job.output_directory)}), Storage("/", 25, {str(job.tmp_directory)})
        return Hardware(1, 100, {"__outdir__": out, "__tmpdir__": tmp})


@asynchronous
async def test_what_is_left_on_disk_stays_in_use(tmp_path: Path) -> None:
    scheduler, waits = made(Connector("farm", host(disk=100, local=True)))
    for name, size in (("a", 30), ("b", 70)):
        (tmp_path / name).mkdir()
        assert await waits.add(name, FARM, Directories(), directory=str(tmp_path / name)), "out and tmp are the same"
        (tmp_path / name / "out.dat").write_bytes(bytes(size * MIB))
        os.symlink(tmp_path / name / "out.dat", tmp_path / name / "link")
        await waits.end(name)
        await asyncio.wait_for(until(lambda: not scheduler.usage.booked), 60)
    assert dict(scheduler.usage.ledger.used["local:h1"].named) == {"disk:/": 100 * MIB}
    assert not await waits.add("c", FARM, Directories(), directory=str(tmp_path))
    assert "asks for 50M at /, has 0 at / free" in scheduler.explain("c")[0].detail


async def until(condition: Any) -> None:
    while not condition():  # noqa: ASYNC110  what is waited for is in another thread
        await asyncio.sleep(0.01)


# ---- what the reference does not test -------------------------------------------------------------------------------


@asynchronous
async def test_slots() -> None:
    scheduler, waits = made(
        Connector("farm", AvailableLocation("q", "farm", "q", slots=2)),
        Connector("one", AvailableLocation("q", "one", "q")),
    )
    assert [await waits.add(f"a{number}", FARM, Hardware(64)) for number in range(3)] == [True, True, False]
    assert [await waits.add(f"b{number}", BindingConfig([a_target("one")]), None) for number in range(2)] == [
        True,
        False,
    ]
    assert scheduler.explain("a2")[0].detail == "asks for a slot, has 0 free"
    await waits.end("a0")
    assert waits.placed("a2") and not waits.placed("b1")


@asynchronous
async def test_several_locations_all_or_nothing() -> None:
    scheduler, waits = made(Connector("farm", *(host(f"h{number}", cores=2) for number in range(3))))
    two = BindingConfig([a_target(locations=2)])
    assert await waits.add("a", two, Hardware(2)) and len(scheduler.get_locations("a")) == 2
    assert len(scheduler.get_allocation("a").hardware_at) == 2
    assert not await waits.add("b", two, Hardware(2))
    assert await waits.add("c", FARM, Hardware(2)), "nothing was taken for b"
    await waits.end("c")
    assert not waits.placed("b")
    await waits.end("a")
    assert waits.placed("b") and len({each.name for each in scheduler.get_locations("b")}) == 2
    await waits.end("b")
    assert waits.is_empty()


@asynchronous
async def test_several_locations_on_one_host_are_charged_one_by_one() -> None:
    below = host("node", "cluster", cores=3)
    scheduler, waits = made(Connector("d", *(container(f"c{number}", "d", below) for number in range(4))))
    two = BindingConfig([a_target("d", locations=2)])
    assert await waits.add("a", two, Hardware(1)) and free(scheduler, "cluster/node")[0] == 1000
    assert not await waits.add("b", two, Hardware(1)), "there is room for each, but not for both"
    await waits.end("a")
    assert waits.placed("b")
    await waits.end("b")
    assert waits.is_empty()


@asynchronous
async def test_first_come_first_served() -> None:
    _scheduler, waits = made(Connector("farm", host(cores=1)))
    for number in range(6):
        await waits.add(f"j{number}", FARM, Hardware(1))
    for number in range(6):
        assert [waits.placed(f"j{other}") for other in range(6)] == [other <= number for other in range(6)]
        await waits.end(f"j{number}")


@pytest.mark.parametrize(
    ("moves", "is_freed"),
    [
        ("RUNNING", False),
        ("FIREABLE", False),
        ("RUNNING RUNNING", False),
        *(
            (f"{first}{word}", True)
            for first in ("", "RUNNING ")
            for word in ("SKIPPED", "COMPLETED", "FAILED", "CANCELLED")
        ),
        *(
            (f"{first}{word}", True)
            for first in ("", "RUNNING ")
            for word in ("ROLLBACK", "RECOVERY", "RECOVERED", "WAITING")
        ),
        ("RUNNING COMPLETED COMPLETED FAILED", True),
        ("RUNNING RECOVERY ROLLBACK", True),
    ],
)
@asynchronous
async def test_when_it_is_freed(moves: str, is_freed: bool) -> None:
    scheduler, waits = made(Connector("farm", host(cores=1)))
    await waits.add("a", FARM, Hardware(1))
    await waits.add("b", FARM, Hardware(1))
    for word in moves.split():
        await scheduler.notify_status("a", Status[word])
    await settle()
    assert waits.placed("b") == is_freed
    booked = scheduler.usage.ledger.used["farm/h1"].cores
    assert booked == 1000, "no more, and no less, than one of them holds"


@asynchronous
async def test_a_rollback_clears_its_locations_at_all_levels() -> None:
    below = host("node", "cluster")
    scheduler, waits = made(Connector("d", container("c", "d", below)))
    binding = BindingConfig([a_target("d")])
    await waits.add("a", binding, Hardware(1))
    await scheduler.notify_status("a", Status.ROLLBACK)
    lists = scheduler.location_allocations
    assert scheduler.get_locations("a") == [] and lists["d"]["c"].jobs == lists["cluster"]["node"].jobs == []
    assert await waits.add("a", binding, Hardware(1)), "it is scheduled again"
    await waits.end("a")
    assert waits.is_empty() and lists["cluster"]["node"].jobs == ["a"]


@asynchronous
async def test_a_job_that_is_scheduled_again_while_it_holds_something() -> None:
    _scheduler, waits = made(Connector("farm", host(cores=4)))
    for _ in range(5):
        assert await waits.add("a", FARM, Hardware(2))
    await waits.end("a")
    assert waits.is_empty()


@asynchronous
async def test_it_tries_again_by_the_clock_and_sees_what_is_new() -> None:
    connector = Connector("farm", host("h1", cores=1))
    scheduler, waits = made(connector, retry_delay=0.01)
    await waits.add("a", FARM, Hardware(1))
    assert not await waits.add("b", FARM, Hardware(1)) and not await waits.add("large", FARM, Hardware(9))
    connector.locations.append(host("h2", cores=9))
    await asyncio.wait_for(waits.tasks["b"], 60)
    await waits.end("b")
    await asyncio.wait_for(waits.tasks["large"], 60)
    assert waits.where("large") == "farm/h2"
    await scheduler.close()


@asynchronous
async def test_without_a_delay_nobody_asks_in_vain() -> None:
    connector = Connector("farm", host(cores=1))
    _scheduler, waits = made(connector)
    await waits.add("a", FARM, Hardware(1))
    await waits.add("b", FARM, Hardware(1))
    await asyncio.sleep(0.1)
    assert connector.asked == 1


@asynchronous
async def test_a_policy_sees_only_what_has_room_and_may_say_none() -> None:
    seen: list[Any] = []

    class Second(Policy):
        async def get_location(
            self, context: Any, job: Any, hardware_requirement: Any, available_locations: Any, jobs: Any, locations: Any
        ) -> Any:
            seen.append((job.name, hardware_requirement.cores, sorted(available_locations), dict(jobs), locations))
            return available_locations.get("h2")

    connector = Connector("farm", host("h1"), host("h2"), host("h3", cores=1))
    scheduler, waits = made(connector)
    binding = BindingConfig([a_target(policy=Second())])
    assert await waits.add("a", binding, Hardware(3)) and waits.where("a") == "farm/h2"
    assert seen[0][:4] == ("a", 3, ["h1", "h2"], {}) and seen[0][4] is scheduler.location_allocations
    assert not await waits.add("b", binding, Hardware(3)) and seen[1][2] == ["h1"]
    await waits.end("a")
    assert waits.placed("b") and set(seen[-1][3]) == {"a"}, "it is asked though there is nothing to choose"


@asynchronous
async def test_a_policy_that_fails_or_invents_a_location_is_that_jobs_error() -> None:
    class Wrong(Policy):
        async def get_location(self, context: Any, job: Any, *given: Any, **more: Any) -> Any:
            if job.name == "raises":
                raise RuntimeError("no idea")
            return host("elsewhere")

    _scheduler, waits = made(Connector("farm", host()))
    binding = BindingConfig([a_target(policy=Wrong())])
    with pytest.raises(RuntimeError, match="no idea"):
        await waits.add("raises", binding, Hardware(1))
    with pytest.raises(PlacementError, match="the policy chose farm/elsewhere, which it was not offered"):
        await waits.add("invents", binding, Hardware(1))
    assert waits.is_empty() and await waits.add("good", FARM, Hardware(1))


@asynchronous
async def test_room_that_goes_while_a_policy_thinks_is_not_given_twice() -> None:
    gate = asyncio.Event()

    class Slow(Policy):
        async def get_location(self, *given: Any, available_locations: Any, **more: Any) -> Any:
            await gate.wait()
            return next(iter(available_locations.values()))

    connector = Connector("farm", host(cores=2))
    scheduler, waits = made(connector)
    assert not await waits.add("slow", BindingConfig([a_target(policy=Slow())]), Hardware(2))
    row = ("farm/h1", scheduler.usage.ledger.free("farm/h1"))
    scheduler.usage.ledger.book([row])
    gate.set()
    await settle()
    assert not waits.placed("slow")
    scheduler.usage.ledger.unbook([row])
    scheduler.usage.freed.add("farm/h1")
    scheduler._wake()
    await settle()
    assert waits.placed("slow")


@asynchronous
async def test_closing_refuses_who_waits_and_leaves_nothing_running() -> None:
    scheduler, waits = made(Connector("farm", host(cores=1)), retry_delay=0.01)
    await waits.add("a", FARM, Hardware(1))
    await waits.add("b", FARM, Hardware(1))
    await scheduler.close()
    with pytest.raises(PlacementError, match="job b: the scheduler was closed"):
        await waits.tasks["b"]
    with pytest.raises(PlacementError, match="the scheduler is closed"):
        await scheduler.schedule(a_job("c"), FARM, None)
    assert asyncio.all_tasks() == {asyncio.current_task()}


# ---- the defects of the reference (placement.md §11) ----------------------------------------------------------------


@asynchronous
async def test_1_candidates_that_share_a_host_charge_it_once() -> None:
    below = host("node", "cluster", cores=8)
    scheduler, waits = made(Connector("d", *(container(f"c{number}", "d", below) for number in range(4))))
    binding = BindingConfig([a_target("d")])
    await waits.add("a", binding, Hardware(1))
    assert free(scheduler, "cluster/node")[0] == 7000
    await waits.end("a")
    assert waits.is_empty()


@asynchronous
async def test_2_a_job_on_two_containers_of_a_host_gives_everything_back() -> None:
    below = host("node", "cluster", hardware=Hardware(8, 8000, {"/data": Storage("/data", 100)}))
    inner = Hardware(4, 4000, {"/w": Storage("/w", 100, bind="/data/w")})
    boxes = [host(f"c{number}", "d", hardware=inner, stacked=True, wraps=below) for number in range(2)]
    scheduler, waits = made(Connector("d", *boxes))
    asked = Hardware(2, 10, {"x": Storage("/", 10, {"/w/x"})})
    await waits.add("a", BindingConfig([a_target("d", locations=2)]), asked)
    assert dict(scheduler.usage.ledger.used["cluster/node"].named) == {"disk:/data": 20 * MIB}
    await waits.end("a")
    assert waits.is_empty()


@asynchronous
async def test_3_nothing_is_given_back_twice() -> None:
    scheduler, waits = made(Connector("farm", host(cores=2)))
    await waits.add("a", FARM, Hardware(1))
    await waits.add("b", FARM, Hardware(1))
    await waits.end("a")
    with pytest.raises(PlacementError, match="job a is COMPLETED, so it cannot be RUNNING: schedule it again"):
        await scheduler.notify_status("a", Status.RUNNING)
    await scheduler.notify_status("a", Status.COMPLETED)
    await scheduler.notify_status("a", Status.FAILED)
    assert free(scheduler, "farm/h1")[0] == 1000


@asynchronous
async def test_4_leftovers_beyond_capacity_make_others_wait_and_fail_none(caplog: pytest.LogCaptureFixture) -> None:
    connector = Connector("farm", host(disk=100, cores=8))
    scheduler, waits = made(connector)
    asked = Hardware(1, 1, {"x": Storage("/", 50, {"/w/a"})})
    await waits.add("a", FARM, asked)
    connector.left["/w/a"] = 300 * 1024
    with caplog.at_level(logging.WARNING, "rota.placement"):
        await waits.end("a")
    assert "farm/h1 has less room on disk than was thought" in caplog.text
    assert not await waits.add("b", FARM, asked)
    assert await waits.add("c", FARM, Hardware(1)), "who asks for no storage is not concerned"
    assert "asks for 50M at /, has 0 at / free" in scheduler.explain("b")[0].detail


@asynchronous
async def test_5_a_broken_target_is_passed_over_and_leaves_no_ghost(caplog: pytest.LogCaptureFixture) -> None:
    broken, good = Connector("broken"), Connector("good", host(deployment="good", cores=1))
    broken.error = OSError("no route to host")
    scheduler, waits = made(broken, good)
    both = BindingConfig([a_target("broken"), a_target("good")])
    with caplog.at_level(logging.WARNING, "rota.placement"):
        assert await waits.add("a", both, Hardware(1)) and waits.where("a") == "good/h1"
    assert "broken is passed over: no route to host" in caplog.text
    assert not await waits.add("b", both, Hardware(1))
    assert [(no.location, no.code) for no in scheduler.explain("b")] == [("broken", "error"), ("good/h1", "busy")]
    good.error = OSError("gone too")
    scheduler.offers.forget()
    with pytest.raises(OSError, match="no route to host"):
        await waits.add("c", both, Hardware(1))
    good.error = None
    await waits.end("a")
    assert set(scheduler.job_allocations) == {"a", "b"}, "nothing was placed of what was refused"


@asynchronous
async def test_6_a_request_that_is_cancelled_leaves_nothing_behind() -> None:
    scheduler, waits = made(Connector("farm", host(cores=1)))
    await waits.add("a", FARM, Hardware(1))
    await waits.add("b", FARM, Hardware(1))
    waits.tasks["b"].cancel()
    await settle()
    await waits.end("a")
    assert "b" not in scheduler.job_allocations and waits.is_empty() and not scheduler.queue.requests
    for steps in range(30):  # at every point on its way
        task = asyncio.ensure_future(scheduler.schedule(a_job("c"), FARM, Hardware(1)))
        for _ in range(steps):
            await asyncio.sleep(0)
        if task.done():
            await scheduler.notify_status("c", Status.COMPLETED)
            break
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await settle()
        assert waits.is_empty() and "c" not in scheduler.job_allocations, f"cancelled after {steps} steps"
    else:
        raise AssertionError("it was never placed")


@asynchronous
async def test_7_a_large_job_is_not_passed_by_for_ever() -> None:
    scheduler, waits = made(Connector("farm", host(cores=4)), reserve_after=0.001)
    for number in range(4):
        await waits.add(f"s{number}", FARM, Hardware(1))
    await waits.add("large", FARM, Hardware(4))
    await asyncio.sleep(0.01)
    await waits.add("t", FARM, Hardware(1))
    for number in range(4):
        assert not waits.placed("large") and not waits.placed("t")
        await waits.end(f"s{number}")
    assert waits.placed("large") and not waits.placed("t")
    assert scheduler.explain("t")[0].code == "busy"
    await waits.end("large")
    assert waits.placed("t")


@asynchronous
async def test_7_without_the_reservation_small_ones_pass() -> None:
    _scheduler, waits = made(Connector("farm", host(cores=4)), reserve_after=0)
    await waits.add("s", FARM, Hardware(1))
    await waits.add("large", FARM, Hardware(4))
    assert await waits.add("t", FARM, Hardware(3))


@asynchronous
async def test_8_a_slow_connector_holds_nobody_else_up() -> None:
    slow, quick = Connector("slow", host(deployment="slow")), Connector("quick", host(deployment="quick", cores=1))
    slow.gate = asyncio.Event()
    _scheduler, waits = made(slow, quick)
    on_quick = BindingConfig([a_target("quick")])
    await waits.add("a", on_quick, Hardware(1))
    assert not await waits.add("s", BindingConfig([a_target("slow")]), Hardware(1))
    assert not await waits.add("b", on_quick, Hardware(1))
    await waits.end("a")
    assert waits.placed("b") and not waits.placed("s")
    slow.gate.set()
    await settle()
    assert waits.placed("s")


@asynchronous
async def test_9_equal_names_in_two_deployments_are_counted_apart() -> None:
    _scheduler, waits = made(Connector("one", host("n1", "one", cores=1)), Connector("two", host("n1", "two", cores=1)))
    assert await waits.add("a", BindingConfig([a_target("one")]), Hardware(1))
    assert await waits.add("b", BindingConfig([a_target("two")]), Hardware(1))


@asynchronous
async def test_10_what_can_never_be_is_said_at_once() -> None:
    scheduler, waits = made(Connector("farm", host(cores=4), host("h2", cores=2, resources={"gpus": 1})))
    for asked, words in (
        (Hardware(8), "farm/h1: asks for 8 cores, has 4 cores; farm/h2: asks for 8 cores, has 2 cores"),
        (Hardware(1, 1 << 20), "asks for 1T memory, has"),
        (Hardware(1, resources={"gpus": 2}), "asks for 2 gpus, has 1 gpus"),
        (Hardware(1, 1, {"x": Storage("/", 5)}), "asks for 5M at /, has 0 at /"),
        (Hardware(1, 1, {"x": Storage("/", 5, {"relative"})}), "relative is on none of the mount points"),
    ):
        with pytest.raises(PlacementError) as caught:
            await scheduler.schedule(a_job("a"), FARM, asked)
        assert "job a can never be placed" in str(caught.value) and words in str(caught.value)
    with pytest.raises(PlacementError, match="asks for 3 locations, 2 are offered"):
        await scheduler.schedule(a_job("a"), BindingConfig([a_target(locations=3)]), Hardware(1))
    assert not scheduler.queue.requests and waits.is_empty()


@asynchronous
async def test_15_a_policy_or_filter_by_the_name_of_its_type() -> None:
    _scheduler, waits = made(Connector("farm", host()))
    binding = BindingConfig([a_target(policy="data_locality")], ["shuffle"])
    assert await waits.add("a", binding, Hardware(1))


@asynchronous
async def test_19_locations_and_deployments_that_go_away_while_jobs_run_and_wait(
    caplog: pytest.LogCaptureFixture,
) -> None:
    below = host("node", "cluster", cores=2, disk=100)
    inside = Hardware(2, 8000, {"/w": Storage("/w", 100, bind="/")})
    box = host("c", "d", hardware=inside, stacked=True, wraps=below)
    connector, other = Connector("d", box), Connector("e", container("c", "e", below))
    scheduler, waits = made(connector, other, refresh_after=0)
    here, there = BindingConfig([a_target("d")]), BindingConfig([a_target("e")])
    asked = Hardware(2, 1, {"x": Storage("/", 10, {"/w/a"})})
    assert await waits.add("a", here, asked) and not await waits.add("b", here, asked)
    assert not await waits.add("c", there, Hardware(2))
    connector.locations.clear()
    scheduler.offers.forget()
    del scheduler.context.connectors["d"]  # undeployed
    with caplog.at_level(logging.WARNING, "rota.placement"):
        await asyncio.gather(  # as an engine that ends everything at once does
            scheduler.notify_status("a", Status.COMPLETED),
            scheduler.notify_status("a", Status.COMPLETED),
            scheduler.notify_status("a", Status.CANCELLED),
        )
    await settle()
    assert "what it left on disk could not be measured" in caplog.text
    assert waits.placed("c"), "the host below is free again for whoever else is on it"
    assert not waits.placed("b")
    with pytest.raises(PlacementError, match="Could not retrieve connector for job a"):
        scheduler.get_connector("a")
    await waits.end("c")
    assert waits.is_empty()
    await asyncio.gather(scheduler.close(), scheduler.close())
    with pytest.raises(PlacementError, match="job b: the scheduler was closed"):
        await waits.tasks["b"]


@asynchronous
async def test_19_a_location_that_comes_back_has_what_its_jobs_do_not_hold() -> None:
    connector = Connector("farm", host("h1", cores=2), host("h2", cores=1))
    _scheduler, waits = made(connector, refresh_after=0)
    assert await waits.add("a", FARM, Hardware(2)) and waits.where("a") == "farm/h1"
    gone = connector.locations.pop(0)
    assert await waits.add("b", FARM, Hardware(1)) and waits.where("b") == "farm/h2"
    assert not await waits.add("c", FARM, Hardware(1))
    connector.locations.append(gone)
    await waits.end("b")
    assert waits.where("c") == "farm/h2", "what is back is still full"
    await waits.end("a")
    assert await waits.add("d", FARM, Hardware(2)) and waits.where("d") == "farm/h1"
    await waits.end("c")
    await waits.end("d")
    assert waits.is_empty()


@asynchronous
async def test_19_what_was_offered_long_ago_is_asked_for_again_before_it_is_given(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("rota.placement.scheduler.ASK_AGAIN_S", 0.01)
    connector = Connector("farm", host("h1", cores=1))
    scheduler, waits = made(connector, refresh_after=0)
    assert await waits.add("a", FARM, Hardware(1)) and not await waits.add("b", FARM, Hardware(1))
    connector.locations = [host("h2", cores=1)]
    await waits.end("a")
    assert waits.where("b") == "farm/h2"
    assert not await waits.add("c", FARM, Hardware(1))
    connector.error = OSError("no route to host")
    with caplog.at_level(logging.WARNING, "rota.placement"):
        await waits.end("b")
        await asyncio.wait_for(until(lambda: "farm is passed over: no route to host" in caplog.text), 60)
    assert not waits.placed("c") and scheduler.explain("c")[0].detail == "no route to host"
    connector.error = None
    await asyncio.wait_for(waits.tasks["c"], 60)
    assert waits.where("c") == "farm/h2" and caplog.text.count("passed over") == 1
    await waits.end("c")
    await scheduler.close()
    assert waits.is_empty() and asyncio.all_tasks() == {asyncio.current_task()}


# ---- bad input ------------------------------------------------------------------------------------------------------


@asynchronous
async def test_bad_input() -> None:
    scheduler, _ = made(Connector("farm", host()))
    for binding, words in (
        (BindingConfig([]), "job a has no targets"),
        (
            BindingConfig([a_target(policy="nearest")]),
            "there is no policy 'nearest'; there are cheapest_transfer, data_",
        ),
        (BindingConfig([a_target()], ["random"]), "there is no binding filter 'random'; there are matching, shuffle"),
        (BindingConfig([a_target()], [Config("m", "matching")]), "binding filter 'matching' cannot be made with {}"),
        (BindingConfig([a_target(policy=Config("p", "pack", {"x": 1}))]), "policy 'pack' cannot be made with"),
    ):
        with pytest.raises(DefinitionError) as caught:
            await scheduler.schedule(a_job("a"), binding, None)
        assert words in str(caught.value)
    with pytest.raises(PlacementError, match="deployment nowhere is not there"):
        await scheduler.schedule(a_job("a"), BindingConfig([a_target("nowhere")]), None)
    with pytest.raises(DefinitionError, match="0 locations: give at least 1"):
        a_target(locations=0)
    with pytest.raises(DefinitionError, match="-1 slots"):
        AvailableLocation("q", "farm", "q", slots=-1)
    with pytest.raises(DefinitionError, match="seconds, of 0 or more"):
        DefaultScheduler(Context(), retry_delay=-1)
    with pytest.raises(PlacementError, match="Could not retrieve allocation for job b"):
        await scheduler.notify_status("b", Status.RUNNING)
    with pytest.raises(PlacementError, match="job b does not wait"):
        scheduler.explain("b")


@asynchronous
async def test_what_would_hand_out_more_than_there_is_is_refused() -> None:
    scheduler, waits = made(Connector("farm", host(disk=100)))
    shrunk = Hardware(1, 1, {"x": Storage("/", 5)})
    shrunk.storage["x"].size = -5
    for asked, words in (
        (Hardware(-1), "asks for -1 cores"),
        (Hardware(1, -5), "asks for -5 MiB of memory"),
        (Hardware(1, resources={"gpus": -2}), "asks for -2 gpus"),
        (Hardware(float("nan")), "asks for nan cores"),
        (Hardware(1, float("inf")), "asks for inf MiB of memory"),
        (shrunk, "asks for -5 MiB at /"),
        ("lots", "asks for 'lots': give a Hardware, something with eval"),
    ):
        with pytest.raises(DefinitionError, match=re.escape(f"job a {words}")):
            await scheduler.schedule(a_job("a"), FARM, asked)
    assert waits.is_empty() and not scheduler.job_allocations
    with pytest.raises(DefinitionError, match="job a has no targets"):
        await scheduler.schedule(a_job("a"), None, None)
    with pytest.raises(PlacementError, match="a size that is no number"):
        Storage("/", float("nan"))


@asynchronous
async def test_wraps_in_a_circle_is_said_to_who_asks() -> None:
    one = host("n1", stacked=True)
    two = host("n2", stacked=True, wraps=one)
    one.wraps = two
    scheduler, waits = made(Connector("farm", two), Connector("good", host(deployment="good")))
    with pytest.raises(DefinitionError, match="location farm/n2: wraps goes in a circle"):
        await scheduler.schedule(a_job("a"), FARM, Hardware(1))
    assert await waits.add("b", BindingConfig([a_target("farm"), a_target("good")]), Hardware(1))
    assert waits.where("b") == "good/h1"


def test_the_page_in_the_manual(capsys: pytest.CaptureFixture[str]) -> None:
    page = Path(__file__).parents[2] / "docs" / "howto" / "placement.md"
    for text in re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
        exec(text, {})
    assert capsys.readouterr().out == "['containers/box']\n"
