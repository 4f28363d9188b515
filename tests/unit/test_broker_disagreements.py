"""Where documentation and reference disagree (docs/howto/brokerage.md has the table): each, under each profile."""

import json
from pathlib import Path
from typing import Any

import pytest

from rota.schedule.broker.config import PROFILES, Profile, Thresholds
from rota.schedule.broker.connectivity import connected
from rota.schedule.broker.context import Context
from rota.schedule.broker.disk import check_scratch
from rota.schedule.broker.fairshare import lint_policy, rejects
from rota.schedule.broker.flows import broker
from rota.schedule.broker.funnel import Funnel
from rota.schedule.broker.kinds import KINDS
from rota.schedule.broker.kinds_flows import decision_rows
from rota.schedule.broker.memory import check_memory
from rota.schedule.broker.network import throughput
from rota.schedule.broker.production import _candidates
from rota.schedule.broker.queue import Queue
from rota.schedule.broker.reading import read_task, read_world
from rota.schedule.broker.software import check_software
from rota.schedule.broker.task import Chunk, Task
from rota.schedule.broker.verify import changed
from rota.schedule.broker.weight import running_jobs, weigh
from rota.schedule.broker.world import Jobs, Link, World

INPUTS = json.loads((Path(__file__).parents[1] / "data" / "brokerage-vectors.json").read_text())["inputs"]
DOC, CODE, MODERN = PROFILES


def rows(flow: str, profile: Profile, changes: list[Any] = [], name: str = "base", **values: Any) -> dict[str, Any]:  # noqa: B006
    """Queue → (decision and tag, weight) in the world of the vectors, changed."""
    data = changed(INPUTS[f"{flow}/{name}"], changes)
    thresholds = Thresholds(profile, {**data["extra"]["config"], **values})
    said = decision_rows(broker(read_task(data), read_world(data), thresholds, flow))
    return {
        "status": said["status"],
        **{key: row["tag"] for key, row in said["queues"].items()},
        "rows": said["queues"],
    }


def by_profile(make: Any) -> dict[str, Any]:
    return {profile: make(profile) for profile in PROFILES}


def context(profile: Profile, flow: str = "production", world: World | None = None, **task: Any) -> Context:
    values = task.pop("values", {})
    return Context(flow, Task(**task), world or World(queues={}), Thresholds(profile, values))


def test_d1_express() -> None:
    assert by_profile(lambda p: context(p, current_priority=1000).express) == {DOC: True, CODE: False, MODERN: False}
    assert all(context(p, current_priority=1001).express for p in PROFILES)
    assert all(context(p, processing_type="urgent").express for p in PROFILES)
    assert not context(DOC, current_priority=1000, values={"EXPRESS_INCLUSIVE": False}).express


def test_d2_test_queues() -> None:
    add = [["queues.Q_Test1", INPUTS["production/base"]["queues"]["Q_GOOD"]]]
    tags = by_profile(lambda p: rows("production", p, add)["Q_Test1"])
    assert tags == {DOC: "-test", CODE: tags[CODE], MODERN: tags[MODERN]}
    assert {tags[CODE], tags[MODERN]} <= {"+use", "-loweigh", "-low_weight"}


def test_d3_status() -> None:
    assert by_profile(lambda p: rows("production", p)["Q_STANDBY"]) == {DOC: "-status", CODE: "+use", MODERN: "+use"}
    assert by_profile(lambda p: rows("analysis", p)["A_STANDBY"]) == {DOC: "-status", CODE: "+use", MODERN: "+use"}
    for status in ("brokeroff", "test", "offline"):
        change = [["queues.A_GOOD.status", status]]
        assert set(by_profile(lambda p, c=change: rows("analysis", p, c)["A_GOOD"]).values()) == {"-status"}
    pre = [["queues.A_GOOD.status", "brokeroff"], ["task.site", "A_GOOD"]]
    assert set(by_profile(lambda p: rows("analysis", p, pre)["A_GOOD"]).values()) == {"+use"}


def test_d4_link_caps() -> None:
    assert by_profile(lambda p: rows("production", p)["Q_LINKFULL"]) == {
        DOC: "+use", CODE: "-link_unusable", MODERN: "-link_unusable",
    }  # fmt: skip
    total = [["extra.network_to_nucleus.total", {"Production Output_queued": 10_000}]]
    tags = by_profile(lambda p: rows("production", p, total)["Q_GOOD"])
    assert tags == {DOC: "+use", CODE: "-links_full", MODERN: "-links_full"}
    total[0][1] = {"Production Output_queued": 10_001}
    assert rows("production", DOC, total)["Q_GOOD"] == "-links_full"


def test_d5_high_priority() -> None:
    change = [["task.currentPriority", 900]]
    assert by_profile(lambda p: rows("production", p, change)["Q_GOOD"]) == {
        DOC: "-opportunistic", CODE: "+use", MODERN: "+use",
    }  # fmt: skip
    assert set(by_profile(lambda p: rows("production", p, change)["Q_OPP"]).values()) == {"-opportunistic"}
    assert set(by_profile(lambda p: rows("production", p, change)["NUC_Q"]).values()) == {"+use"}
    change = [["task.currentPriority", 799]]
    assert rows("production", DOC, change)["Q_GOOD"] == "+use"


def test_d6_zero_share() -> None:
    task = Task(processing_type="reprocessing")
    for profile in PROFILES:
        assert not rejects("type=evgensimul:100%", task, False, Thresholds(profile))
        literal = Thresholds(profile, {"ZERO_SHARE_LISTED_ONLY": True})
        assert rejects("type=evgensimul:100%", task, False, literal)
    assert "rejects nothing" in (lint_policy("type=evgensimul:100%") or "")
    assert "no type evgensimul" in (lint_policy("type=evgensimul:100%,type=any:0%") or "")
    assert lint_policy("type=evgen:100%,type=any:0%") is None


def test_d7_base_memory() -> None:
    values = {"base": 500, "cores": 1, "ram": 4500, "unit": "MB"}
    found = by_profile(lambda p: KINDS["memory"]({"values": values}, p)["need_MB"])
    assert found == {DOC: 4500, CODE: 4050, MODERN: 4050}
    values = {"base": 500, "cores": 2, "ram": 2000, "unit": "MBPerCore", "flow": "analysis"}
    found = by_profile(lambda p: KINDS["memory"]({"values": values}, p)["need_MB"])
    assert found == {DOC: 4050, CODE: 3600, MODERN: 3600}


def test_d8_memory_limits_are_of_the_slot() -> None:
    queue = Queue(name="Q", core_count=8, maxrss=2000)

    def tag(profile: Profile, **values: Any) -> str | None:
        check = check_memory(context(profile, ram_count=2000, ram_unit="MBPerCore", values=values))
        assert check is not None
        no = check(queue)
        return None if no is None else no.tag

    assert set(by_profile(tag).values()) == {"-lowmemory"}
    assert set(by_profile(lambda p: tag(p, RAM_LIMITS_PER_CORE=True)).values()) == {None}


def test_d9_least_output() -> None:
    values = {"direct_io": False, "events": 1000, "input_MB": 1024, "out_kB_per_event": 500, "work_MB": 500}
    found = by_profile(lambda p: KINDS["scratch"]({"values": values}, p)["need_MB"])
    assert found == {DOC: 2036, CODE: 4324, MODERN: 3324}


def test_d10_scratch_is_shared_by_single_core_jobs_only() -> None:
    queue = Queue(name="Q", core_count=8, maxwdir=8000)

    def tag(profile: Profile, cores: int, **values: Any) -> str | None:
        check = check_scratch(context(profile, core_count=cores, work_disk_count=3000, values=values))
        assert check is not None
        no = check(queue)
        return None if no is None else no.tag

    assert set(by_profile(lambda p: tag(p, 0)).values()) == {"-disk"}
    assert set(by_profile(lambda p: tag(p, 8)).values()) == {None}
    assert set(by_profile(lambda p: tag(p, 8, MAXWDIR_PER_CORE=True)).values()) == {"-disk"}


def test_d11_scouts_need_a_day() -> None:
    def tags(seconds: int) -> dict[str, str]:
        change = [["chunk.scouting", True], ["queues.NUC_Q.maxtime", seconds]]
        return by_profile(lambda p: rows("production", p, change)["NUC_Q"])

    assert tags(20_000) == {DOC: "-scout_walltime", CODE: "+use", MODERN: "-scout_walltime"}
    assert tags(86_400) == {DOC: "+use", CODE: "+use", MODERN: "-scout_walltime"}
    assert tags(96_600) == {DOC: "+use", CODE: "+use", MODERN: "+use"}
    assert tags(12_599) == {DOC: "-scout_walltime", CODE: "-scoutwalltime", MODERN: "-scout_walltime"}


@pytest.mark.parametrize("profile", PROFILES)
def test_d12_none_asks_for_nothing(profile: Profile) -> None:
    assert KINDS["connectivity"]({"values": {"task": "none", "queue": "none"}}, profile) == {"pass": True}
    for asked, has, passes in [
        ("full", "full", True), ("full", "http", False), ("full", "none", False), ("http", "http", True),
        ("http", "full", True), ("http", None, False), ("full#IPv6", "full#IPv6", True), ("full#IPv6", "full", False),
        ("none#IPv4", "http#IPv4", True), ("full", "full#IPv4", True), ("full", "odd", False),
    ]:  # fmt: skip
        net, _, stack = asked.partition("#")
        assert connected(net, stack or None, has) is passes, (asked, has)


def test_d13_what_counts_as_running() -> None:
    def count(profile: Profile, priority: int, slots: int | None = None, workers: int = 0, **queue: Any) -> int:
        share: dict[Any, Any] = {} if slots is None else {"MC": {None: slots}}
        one = Queue(name="Q", core_count=8, num_slots=share, **queue)
        world = World(queues={"Q": one}, workers={"Q": workers})
        found = context(profile, world=world, gshare="MC", current_priority=priority, core_count=8)
        return running_jobs(found, one, 3, 4)[0]

    assert by_profile(lambda p: count(p, 100, slots=80)) == {DOC: 80, CODE: 10, MODERN: 10}
    assert by_profile(lambda p: count(p, 200, slots=80)) == {DOC: 80, CODE: 3, MODERN: 3}
    assert by_profile(lambda p: count(p, 100, slots=0)) == {DOC: 4, CODE: 7, MODERN: 7}
    assert by_profile(lambda p: count(p, 100, workers=42)) == {DOC: 20, CODE: 3, MODERN: 3}


def test_d14_many_assigned_is_always_a_number() -> None:
    queue = Queue(name="Q")

    def factor(profile: Profile, activated: int, assigned: int, **values: Any) -> float:
        data = changed(INPUTS["production/slots"], [])
        world = World(
            queues={"Q": queue}, jobs={"Q": {"MC": Jobs(activated=activated, assigned=assigned)}}, files_local={"Q": 0}
        )
        found = Context("production", read_task(data), world, Thresholds(profile, values))
        return 1 / dict(weigh(found, queue, 1.0, False).factors)["1/manyAssigned"]

    assert by_profile(lambda p: factor(p, 9, 14)) == {p: pytest.approx(1.5) for p in PROFILES}
    assert by_profile(lambda p: factor(p, 0, 5)) == {p: pytest.approx(2) for p in PROFILES}
    assert factor(DOC, 9, 14, MANY_ASSIGNED_PLUS_ONE=False) == pytest.approx(14 / 9)
    assert factor(DOC, 0, 5, MANY_ASSIGNED_PLUS_ONE=False) == 2
    assert factor(DOC, 0, 0, MANY_ASSIGNED_PLUS_ONE=False) == 1


def test_d15_the_nucleus() -> None:
    change = [["task.ioIntensity", 1000]]
    weights = by_profile(lambda p: rows("production", p, change)["rows"]["NUC_Q"]["weight"])
    assert weights == {p: pytest.approx(14.428571 * (1 if p == DOC else 4), rel=1e-6) for p in PROFILES}


def test_d16_the_network_counts() -> None:
    change = [["extra.config.NW_ACTIVE", None]]
    weights = by_profile(lambda p: rows("production", p, change)["rows"]["NUC_Q"]["weight"])
    assert weights == {p: pytest.approx(5.771428 * (2.5 if p == DOC else 1), rel=1e-6) for p in PROFILES}


def test_d17_throughput_from_50_to_75() -> None:
    values = {"closeness": 3, "files_queued": 0, "mbytes_per_s": 60}
    found = by_profile(lambda p: KINDS["network_weight"]({"values": values}, p)["weight"])
    assert found == {DOC: pytest.approx(1.85), CODE: pytest.approx(1.8), MODERN: pytest.approx(1.8)}


def test_d18_windows() -> None:
    def speed(profile: Profile, *windows: float | None) -> float | None:
        return throughput(Link(2, {}, *windows), Thresholds(profile))

    assert by_profile(lambda p: speed(p, 30, None, None)) == {DOC: 30, CODE: None, MODERN: None}
    assert by_profile(lambda p: speed(p, 30, None, 120)) == {DOC: 30, CODE: 120, MODERN: 120}
    assert by_profile(lambda p: speed(p, None, 60, 120)) == {DOC: 60, CODE: 60, MODERN: 60}
    assert by_profile(lambda p: speed(p, 30, 60, 120)) == {DOC: 30, CODE: 30, MODERN: 30}
    assert throughput(Link(2, {}, 30, 60, 120, age_minutes=61), Thresholds()) is None


def test_d19_floor_of_the_caps() -> None:
    jobs = {"running": 5, "activated": 12, "assigned": 0, "starting": 0, "defined": 0, "transferring": 0}
    change = [["job_stats.NUC_Q.MC", jobs]]
    tags = by_profile(lambda p: rows("production", p, change, CANDIDATES_MOST=50)["NUC_Q"])
    assert tags == {DOC: "-cap", CODE: "+use", MODERN: "+use"}
    assert rows("production", DOC, change, CANDIDATES_MOST=50, NQUEUELIMITSITE_MC=20)["NUC_Q"] == "+use"


def test_d20_locality_is_given_up() -> None:
    change = [["extra.queues_without_data", list(INPUTS["analysis/base"]["queues"])]]
    found = by_profile(lambda p: rows("analysis", p, change)["status"])
    assert found == {DOC: "SUCCEEDED", CODE: "FAILED", MODERN: "FAILED"}
    change.append(["task.taskPriority", 1001])
    assert set(by_profile(lambda p: rows("analysis", p, change)["status"]).values()) == {"SUCCEEDED"}


def test_d21_closed_jobs() -> None:
    assert by_profile(lambda p: rows("analysis", p)["A_CLOSED"]) == {
        DOC: "+use", CODE: "-closed", MODERN: "-closed",
    }  # fmt: skip


def test_d22_queued_jobs_of_a_type() -> None:
    tags = by_profile(lambda p: rows("analysis", p)["A_CAPRT"])
    assert tags[DOC] == "-cap_rt" and {tags[CODE], tags[MODERN]} <= {"+use", "-lowweight", "-low_weight"}
    change = [["extra.resource_type_stats.A_CAPRT.SCORE", {"activated": 40, "running": 10}]]
    assert rows("analysis", DOC, change)["A_CAPRT"] == "+use"


def test_d23_failures() -> None:
    tags = by_profile(lambda p: rows("analysis", p)["A_BAD"])
    assert tags == {DOC: "-badsite", CODE: "-badsite", MODERN: "+use"}
    assert rows("analysis", CODE)["A_BADEDGE"] in ("+use", "-lowweight")


def test_d24_any_release() -> None:
    queue = Queue(name="Q", releases=("ANY",))

    def tag(profile: Profile, **values: Any) -> str | None:
        check = check_software(context(profile, architecture="x#x86_64", trans_home="Athena-21.0.38", values=values))
        assert check is not None
        no = check(queue)
        return None if no is None else no.tag

    assert set(by_profile(tag).values()) == {"-cache"}
    assert set(by_profile(lambda p: tag(p, RELEASES_ANY_SKIPS_CHECK=True)).values()) == {None}


def software(profile: Profile, ask: dict[str, Any], **config: Any) -> list[str]:
    case = {"ask": ask, "input": INPUTS["software/queues"], "config": config}
    return list(KINDS["software"](case, profile)["ok"])


def test_d25_empty_hardware() -> None:
    found = by_profile(lambda p: "Q_HW_EMPTY" in software(p, {"architecture": "#x86_64"}))
    assert found == {DOC: True, CODE: False, MODERN: False}


def test_d26_tags_without_containers() -> None:
    ask = {"cvmfs_tag": "atlas", "project": "Athena", "version": "21.0.38", "platform": "x86_64-slc6-gcc62-opt"}
    assert all("Q_TAGS_NOCONT" in software(p, ask) for p in PROFILES)
    assert all("Q_TAGS_NOCONT" not in software(p, ask, TAGS_NEED_ANY_CONTAINER=True) for p in PROFILES)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("PAUSED_STOPS_TIMEOUTS", (True, False, False)),  # D27
        ("HOLDING_HIGH_INCLUSIVE", (True, False, False)),  # D28
        ("FAST_REBRO_KEEPS_ONE", (False, True, True)),  # D31
    ],
)
def test_d27_d28_d31_are_choices_of_the_timeouts(name: str, values: tuple[bool, ...]) -> None:
    assert tuple(Thresholds(profile).on(name) for profile in PROFILES) == values


def test_d29_input_to_move() -> None:
    change = [["task.ioIntensity", 1000]]  # ten files of 1 GB: exactly the cutoff
    assert all(rows("production", p, change)["Q_NODATA"] != "-io" for p in PROFILES)
    assert all(rows("production", p, change, IO_CUTOFF_STRICT=True)["Q_NODATA"] == "-io" for p in PROFILES)
    none = [*change, ["extra.local_files", {"default": 0}], ["files[*].bytes", 2**31]]
    assert all(rows("production", p, none)["NUC_Q"] == "+use" for p in PROFILES)  # switched off: nobody would pass
    assert rows("production", DOC, none, IO_AUTO_OFF=False)["NUC_Q"] == "-io"


def test_d30_time_of_analysis() -> None:
    change = [["task.walltime", 4], ["task.cpuTime", 1000]]
    tags = by_profile(lambda p: rows("analysis", p, change)["A_SHORT"])
    assert tags == {DOC: "-shortwalltime", CODE: "-shortwalltime", MODERN: "+use"}


def test_d32_merge_jobs_are_released() -> None:
    queues = {"A": Queue(name="A", endpoint_out="E"), "B": Queue(name="B", endpoints_in=("E",)), "C": Queue(name="C")}

    def names(profile: Profile, since: float | None, frozen: float | None, **values: Any) -> list[str]:
        chunk = Chunk(is_merging=True, preassigned="A", hours_since_modification=since)
        found = context(profile, world=World(queues=queues), chunk=chunk, hours_frozen=frozen, values=values)
        return sorted(queue.name for queue in _candidates(found, Funnel("production", found, 60)))

    for profile in PROFILES:
        assert names(profile, 25, 7) == ["A", "B", "C"]
        assert names(profile, 25, None) == names(profile, 24, 7) == names(profile, None, 7) == ["A", "B"]
        assert names(profile, 25, None, PREASSIGN_FROZEN=0) == ["A", "B", "C"]
