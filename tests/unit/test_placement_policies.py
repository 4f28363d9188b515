"""Policies and binding filters by the seed's interface."""

import asyncio
import logging
from collections import Counter
from typing import Any

import pytest

from placement_world import Connector, Context, File, Plain, Waits, a_job, a_target, asynchronous, host, settle
from rota.placement import (
    BindingConfig,
    Config,
    DefaultScheduler,
    DefinitionError,
    Hardware,
    JobAllocation,
    MatchingFilter,
    PlacementError,
    ShuffleFilter,
    Status,
)
from rota.placement.policies import POLICIES

HOSTS = {f"h{number}": host(f"h{number}", cores=8) for number in range(5)}


def context(**replicas: str) -> Context:
    """A context that knows of these files: name → hosts."""
    made = Context(Connector("farm", *HOSTS.values()))
    made.data_manager.replicas = {f"/{name}": [HOSTS[each] for each in text.split()] for name, text in replicas.items()}
    return made


async def chosen(
    policy: Any, at: Any, inputs: dict[str, Any], offered: str = "h0 h1 h2 h3 h4", jobs: Any = None
) -> Any:
    offer = {name: HOSTS[name] for name in offered.split()}
    found = await policy.get_location(at, a_job(inputs=inputs), Hardware(1), offer, jobs or {}, {})
    return found.name if found is not None else None


@asynchronous
async def test_data_locality_as_the_seed_says() -> None:
    policy = POLICIES["data_locality"](seed=1)
    at = context(big="h3", small="h1 h2", other="h1")
    inputs = {"a": File("/small", 5), "b": File("/big", 10), "c": File("/other", 9), "d": Plain("x" * 1000)}
    assert await chosen(policy, at, inputs) == "h3", "the heaviest decides, however much of the rest is elsewhere"
    assert await chosen(policy, at, inputs, "h0 h1 h2") == "h1", "then the next heaviest"
    assert await chosen(policy, at, {"a": inputs["a"]}, "h0 h2 h4") == "h2", "one of those that have it"
    assert await chosen(policy, at, inputs, "") is None


@asynchronous
async def test_11_files_in_lists_and_objects_count() -> None:
    policy = POLICIES["data_locality"](seed=1)
    at = context(big="h3", small="h1")
    inside = Plain([Plain("x"), Plain({"k": File("/big", 10)})])
    assert await chosen(policy, at, {"a": File("/small", 5), "list": inside}) == "h3"


@asynchronous
async def test_11_where_no_data_is_it_goes_by_chance() -> None:
    at = context(away="")
    draws = [
        [await chosen(policy, at, {"a": File("/away", 5)}) for _ in range(60)]
        for policy in (POLICIES["data_locality"](seed=7), POLICIES["data_locality"](seed=7))
    ]
    assert set(draws[0]) == set(HOSTS) and draws[0] == draws[1], "and by the same chance from the same seed"


@asynchronous
async def test_a_heavy_file_that_is_nowhere_does_not_hide_a_light_one() -> None:
    at = context(small="h1")
    assert await chosen(POLICIES["data_locality"](), at, {"a": File("/away", 50), "b": File("/small", 5)}) == "h1"


@asynchronous
async def test_locations_of_several_deployments_are_an_error() -> None:
    offer = {"a": host("a", "one"), "b": host("b", "two")}
    with pytest.raises(PlacementError, match="several deployments"):
        await POLICIES["data_locality"]().get_location(context(), a_job(), Hardware(1), offer, {}, {})


@asynchronous
async def test_most_bytes_counts_all_of_them() -> None:
    at = context(big="h3", one="h1", two="h1")
    inputs = {"a": File("/one", 6), "b": File("/big", 10), "c": File("/two", 6)}
    assert await chosen(POLICIES["most_bytes"](), at, inputs) == "h1"
    assert await chosen(POLICIES["cheapest_transfer"](), at, inputs) == "h1"


def held(name: str, where: str, cores: float, status: Status = Status.RUNNING) -> JobAllocation:
    return JobAllocation(name, a_target(), [HOSTS[where].location], status, Hardware(cores))


@asynchronous
async def test_by_load_also_under_another_scheduler() -> None:
    jobs = {"a": held("a", "h0", 6), "b": held("b", "h1", 2), "done": held("done", "h2", 8, Status.COMPLETED)}
    assert await chosen(POLICIES["pack"](), context(), {}, "h0 h1 h2", jobs) == "h0"
    assert await chosen(POLICIES["spread"](), context(), {}, "h0 h1 h2", jobs) == "h2"
    assert await chosen(POLICIES["least_loaded"](), context(), {}, "h0 h1", jobs) == "h1"


@pytest.mark.parametrize(
    ("policy", "counts"),
    [("pack", [8]), ("spread", [2, 2, 2, 2]), ("least_loaded", [2, 2, 2, 2]), ("round_robin", [2, 2, 2, 2])],
)
@asynchronous
async def test_eight_jobs_on_four_hosts(policy: str, counts: list[int]) -> None:
    hosts = [host(f"h{number}", cores=8) for number in range(4)]
    scheduler = DefaultScheduler(Context(Connector("farm", *hosts)))
    waits = Waits(scheduler)
    for number in range(8):
        assert await waits.add(f"j{number}", BindingConfig([a_target(policy=policy)]), Hardware(1))
    where = Counter(waits.where(f"j{number}") for number in range(8))
    assert sorted(where.values()) == counts


@asynchronous
async def test_round_robin_goes_on_where_it_was() -> None:
    policy = POLICIES["round_robin"]()
    assert [await chosen(policy, context(), {}, "h0 h1 h2") for _ in range(7)] == ["h0", "h1", "h2"] * 2 + ["h0"]


@asynchronous
async def test_one_policy_for_each_name() -> None:
    scheduler = DefaultScheduler(Context())
    view = scheduler.usage.ledger.view
    one, same = (scheduler.parts.policy(Config("p", "random"), view) for _ in range(2))
    assert one is same is not scheduler.parts.policy(Config("q", "random"), view)


# ---- binding filters ------------------------------------------------------------------------------------------------

TARGETS = [
    a_target("locally"),
    a_target("lumi"),
    a_target("lumi", service="fast"),
    a_target("leonardo", service="boost"),
]
JOB = a_job(
    "/build/0",
    {
        "file": Plain("Hello.java"),
        "tool": Plain("javac"),
        "n": Plain(100),
        "data": File("/x", 1),
        "list": Plain([Plain("d")]),
    },
)


def rule(target: Any, **texts: str) -> dict[str, Any]:
    return {"target": target, "job": [{"port": port, "match": text} for port, text in texts.items()]}


async def left(*rules: dict[str, Any]) -> list[tuple[str, str | None]]:
    found = await MatchingFilter("m", list(rules)).get_targets(JOB, list(TARGETS))
    return [(target.deployment.name, target.service) for target in found]


FAST = {"deployment": "lumi", "service": "fast"}


@asynchronous
async def test_matching() -> None:
    assert await left(rule("locally", file="Hello.java")) == [("locally", None)]
    assert await left(rule(FAST, file="Hello.java", tool="javac")) == [("lumi", "fast")]
    either = [rule("leonardo", n="100"), rule("lumi", tool="gcc"), rule("locally", tool="javac")]
    assert await left(*either) == [("locally", None), ("leonardo", "boost")], "in the order of the targets"
    assert await left(rule("lumi", file="x"), rule("lumi", file="Hello.java")) == [("lumi", None), ("lumi", "fast")]


@asynchronous
async def test_matching_that_cannot_be() -> None:
    for rules in (
        [rule("locally", file="x")],
        [rule(FAST, file="Hello.java", tool="x")],
        [rule({"deployment": "lumi", "service": "no"}, file="Hello.java")],
    ):
        with pytest.raises(
            PlacementError, match="filter m did not find any matching targets for the inputs of job /build/0"
        ):
            await left(*rules)
    with pytest.raises(ValueError, match="job /build/0 has no input 'other', only file, tool"):
        await left(rule("locally", other="x"))
    for port in ("data", "list"):
        with pytest.raises(DefinitionError, match="cannot be of type 'file', 'list', or 'object'"):
            await left(rule("locally", **{port: "x"}))
    with pytest.raises(DefinitionError, match=r"filter m, rule 2: .*'target' is missing"):
        MatchingFilter("m", [rule("x", a="b"), {"job": []}])


@asynchronous
async def test_matching_warns_once_for_a_step(caplog: pytest.LogCaptureFixture) -> None:
    made = MatchingFilter("m", [rule("locally", n="100"), rule("typo", n="1")])
    with caplog.at_level(logging.WARNING, "rota.placement"):
        await made.get_targets(JOB, list(TARGETS))
        await made.get_targets(JOB, list(TARGETS))
    assert caplog.text.count("no rule is for leonardo, lumi") == caplog.text.count("no target is typo") == 1
    assert "input 'n' of job /build/0 is not text" in caplog.text


@asynchronous
async def test_shuffle_keeps_all_and_changes_nothing_that_was_given() -> None:
    given = list(TARGETS)
    made = ShuffleFilter("s", seed=3)
    seen = {tuple(map(id, await made.get_targets(JOB, given))) for _ in range(200)}
    assert len(seen) == 24 and given == TARGETS and all(len(set(each)) == 4 for each in seen)


@asynchronous
async def test_filters_are_applied_in_order() -> None:
    scheduler = DefaultScheduler(Context(Connector("b", host(deployment="b")), Connector("a", host(deployment="a"))))
    keep = Config("keep", "matching", {"filters": [rule("a", x="1"), rule("b", x="1")]})
    drop = Config("drop", "matching", {"filters": [rule("b", x="1")]})
    targets = [a_target("a"), a_target("b")]
    await scheduler.schedule(a_job("j", {"x": Plain("1")}), BindingConfig(targets, [keep, drop, "shuffle"]), None)
    await settle()
    assert str(scheduler.get_locations("j")[0]) == "b/h1"
    await scheduler.close()
    assert asyncio.all_tasks() == {asyncio.current_task()}
