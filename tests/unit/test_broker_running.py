"""Flows as policies: jobs that name `production` or `analysis` are brokered in the one loop over queues."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from core_world import World
from rota import plugins
from rota.core.explain import Records, verdicts
from rota.core.explain.brokerage import brokerage
from rota.core.stimuli import FactSeen
from rota.model.batch import Template
from rota.model.needs import Amounts, Needs
from rota.model.site import QueueFacts
from rota.schedule import filters, scorers
from rota.schedule.broker import placing
from rota.schedule.broker.config import Thresholds
from rota.schedule.broker.flows import FLOWS
from rota.schedule.broker.queue import Queue
from rota.schedule.broker.task import File, Task
from rota.schedule.broker.world import World as Known
from rota.schedule.filters import Filter, No
from rota.schedule.policy import POLICIES, check_policy_names
from rota.schedule.view import QUEUE

NODE = Amounts(8000, 16 << 30)
SMALL = Amounts(8000, 2 << 30)


def jobs(policy: str = "production", group: str = "simul", memory: int | None = None) -> Template:
    return Template(shell="true", needs=Needs(cores=8000, memory=memory), policy=policy, group=group)


def world_of(*queues: QueueFacts, most: int = 50) -> World:
    world = World()
    world.site("grid", NODE, most=most, whole=False, queues=queues)
    return world


def tell(world: World, name: str, key: str, value: object) -> None:
    world.step(FactSeen(at=world.at, name=name, key=key, value=value))


def planned(world: World) -> dict[str | None, int]:
    found: dict[str | None, int] = {}
    for each in world.state.allocations.values():
        if each.site == "grid":
            found[each.queue] = found.get(each.queue, 0) + 1
    return found


def said(world: World) -> dict[str, tuple[str, str, str]]:
    """Location → filter, code and detail of what keeps the first job waiting."""
    rows = verdicts(world.state, world.state.shapes[-1], world.at, Records())
    return {row.location: (row.filter, row.code, row.detail) for row in rows}


def described(**queues: Queue) -> Known:
    return Known(queues=queues)


def queue(name: str, **said: object) -> Queue:
    base = {"core_count": 8, "maxrss": 16000, "wnconnectivity": "full", "releases": ("ANY",), "site": name}
    return Queue(name=name, **{**base, **said})  # type: ignore[arg-type]


def test_the_policies_are_sound() -> None:
    for name in ("production", "analysis"):
        check_policy_names(POLICIES[name])


def test_a_queue_that_the_flow_rejects_gets_nothing_and_says_why() -> None:
    world = world_of(QueueFacts("a", NODE), QueueFacts("b", NODE))
    tell(
        world, "broker", "world", described(a=queue("a"), b=queue("b", fairshare_policy="type=evgen:100%,type=any:0%"))
    )
    tell(world, "tasks", "simul", Task(processing_type="simul", gshare="MC", current_priority=500))
    world.submit(3, jobs())
    world.schedule()
    assert planned(world) == {"a": 3}
    filter_name, code, detail = said(world)["grid:b"]
    assert (filter_name, code) == ("production: zero share", "zeroshare") and "gives simul no share" in detail
    world.check_restart()
    first, *others = [each.why for each in world.state.allocations.values() if each.site == "grid"]
    assert first.startswith("production (doc): 1. of ") and first.endswith("weight 0.1 = running/queued 0.1")
    assert len(others) == 2 and all("and with this full (" in why for why in others)
    told = brokerage(world.state, world.state.shapes[-1], world.at, True)["brokerage"]
    assert told["now"][0].startswith("flow production, profile doc: ")
    assert any(line.endswith("% cut: zero share") for line in told["now"])
    assert [row["queue"] for row in told["chosen"]] == ["a", "a", "a"]


def test_what_drivers_know_is_enough() -> None:
    world = world_of(QueueFacts("small", SMALL), QueueFacts("large", NODE))
    world.submit(2, jobs(memory=12 << 30))
    world.schedule()
    assert planned(world) == {"large": 2}


def test_jobs_are_spread_by_weight() -> None:
    world = world_of(QueueFacts("a", NODE), QueueFacts("b", NODE), most=400)
    tell(world, "broker", "world", described(a=queue("a"), b=queue("b")))
    tell(world, "tasks", "simul", Task(gshare="MC", current_priority=500))
    world.submit(200, jobs())
    world.schedule()
    counts = planned(world)
    assert set(counts) == {"a", "b"} and min(counts.values()) > 40


def test_a_change_of_thresholds_or_of_what_is_known_is_seen_at_once() -> None:
    world = world_of(QueueFacts("a", NODE))
    tell(world, "broker", "world", described(a=queue("a", status="standby")))
    world.submit(1, jobs())
    world.schedule()
    assert planned(world) == {} and said(world)["grid:a"][1] == "status"
    tell(world, "broker", "thresholds", Thresholds("code"))  # where standby will do
    world.schedule()
    assert planned(world) == {"a": 1}


def test_priority_of_a_task_makes_it_stay_at_its_nucleus() -> None:
    world = world_of(QueueFacts("a", NODE), QueueFacts("nuc", NODE))
    tell(world, "broker", "world", described(a=queue("a"), nuc=queue("nuc", site="NUC")))
    tell(world, "tasks", "simul", Task(current_priority=900, nucleus="NUC"))
    world.submit(2, jobs())
    world.schedule()
    assert planned(world) == {"nuc": 2}
    assert "only queues of the nucleus NUC" in said(world).get("grid:a", ("", "", "only queues of the nucleus NUC"))[2]


def test_analysis_is_throttled_with_its_reason() -> None:
    world = world_of(QueueFacts("a", NODE))
    known = Known(queues={"a": queue("a", type="analysis", core_count=8)}, user_running=11)
    tell(world, "broker", "world", known)
    tell(world, "broker", "thresholds", Thresholds("doc", {"CAP_RUNNING_USER_JOBS": 10}))
    world.submit(1, jobs("analysis"))
    world.schedule()
    assert planned(world) == {}
    filter_name, code, detail = said(world)["grid:a"]
    assert (filter_name, code) == ("analysis", "throttled") and "CAP_RUNNING_USER_JOBS is 10" in detail


def test_plain_jobs_are_as_before() -> None:
    world = world_of(QueueFacts("a", NODE))
    tell(world, "broker", "world", described(a=queue("a", status="offline")))
    world.submit(1, Template(shell="true", needs=Needs(cores=8000)))
    world.schedule()
    assert sum(planned(world).values()) == 1


@pytest.mark.parametrize("gone", ["a", "b"])
def test_a_queue_that_is_gone_is_brokered_no_more(gone: str) -> None:
    world = world_of(QueueFacts("a", NODE), QueueFacts("b", NODE))
    left = "b" if gone == "a" else "a"
    world.site("grid", NODE, most=50, whole=False, queues=(QueueFacts(left, NODE),))
    world.submit(2, jobs())
    world.schedule()
    assert planned(world) == {left: 2}


@pytest.fixture
def flows_of_others(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Flows that another package brings, for as long as a test lasts."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "data" / "plugins"))
    from rota_plugins_for_tests.flows import FAILING, STRICT

    for name, flow in (("strict", STRICT), ("failing", FAILING)):
        plugins._enter_flow(name, flow)
    yield
    for name in ("strict", "failing"):
        placing.BROKERED.remove(name)
        for registry in (FLOWS, POLICIES, filters.BUILT_IN, scorers.BUILT_IN):
            del registry[name]


@pytest.mark.usefixtures("flows_of_others")
def test_a_flow_of_others_is_a_policy_with_checks_and_factors_of_its_own() -> None:
    world = world_of(QueueFacts("a", NODE), QueueFacts("b", NODE), QueueFacts("c", NODE))
    catch = {"b": {"small": None}, "c": {"green": None}}
    tell(world, "broker", "world", described(**{name: queue(name, catchall=catch.get(name, {})) for name in "abc"}))
    files = tuple(File(f"f{number}", 1000) for number in range(10))
    tell(world, "tasks", "simul", Task(current_priority=500, files=files))
    tell(world, "broker", "thresholds", Thresholds("doc", {"NQUEUELIMITSITE": 20}))
    world.submit(4, jobs("strict"))
    world.schedule()
    assert "b" not in planned(world) and said(world)["grid:b"] == (
        "strict: small queues", "small", "10 files are too many for it",
    )  # fmt: skip
    told = brokerage(world.state, world.state.shapes[-1], world.at, True)["brokerage"]
    assert any(line.startswith("grid:c: weight") and line.endswith("× green 2") for line in told["now"]), told
    assert {row["why"].split(" (")[0] for row in told["chosen"]} == {"strict"}


@pytest.mark.usefixtures("flows_of_others")
def test_a_flow_of_others_that_fails_stops_only_its_own_jobs() -> None:
    world = world_of(QueueFacts("a", NODE))
    world.submit(1, jobs("failing"))
    other = world.submit(1, jobs())
    world.schedule()
    assert planned(world) == {"a": 1} and world.counts(other) == {"PENDING": 1}
    rows = verdicts(world.state, world.state.shapes[0], world.at, Records())
    assert any("'failing'" in row.detail and "raised RuntimeError: no idea" in row.detail for row in rows), rows


def test_a_policy_made_of_a_flow_and_a_filter_beside_it_tells_both(monkeypatch: pytest.MonkeyPatch) -> None:
    beside = Filter("beside", lambda shape, place, view: No("odd", "not here", True, ()), (QUEUE,))
    monkeypatch.setitem(filters.BUILT_IN, "beside", beside)
    policy = replace(POLICIES["production"], filters=(*POLICIES["production"].filters[:-1], "beside", "room"))
    monkeypatch.setitem(POLICIES, "ours", policy)
    world = world_of(QueueFacts("a", NODE), QueueFacts("b", NODE))
    tell(world, "broker", "world", described(a=queue("a"), b=queue("b", status="offline")))
    world.submit(1, jobs("ours"))
    world.schedule()
    assert planned(world) == {}
    found = said(world)
    assert found["grid:a"][:2] == ("beside", "odd") and found["grid:b"][:2] == ("production: status", "status")
    assert brokerage(world.state, world.state.shapes[-1], world.at, True)["brokerage"]["now"]
