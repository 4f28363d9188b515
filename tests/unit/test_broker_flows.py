"""The flows of the brokerage: figures that the reference gave, edges of each rule, and input that is wrong."""

import json
from pathlib import Path
from typing import Any

import pytest

from rota.model.errors import UsageError
from rota.schedule.broker.architecture import ArchitectureError, parse_architecture
from rota.schedule.broker.config import PROFILES, Profile, Thresholds
from rota.schedule.broker.decision import Decision
from rota.schedule.broker.fairshare import group_of, rejects
from rota.schedule.broker.flows import FLOWS, Flow, broker
from rota.schedule.broker.kinds import KINDS
from rota.schedule.broker.kinds_flows import decision_rows
from rota.schedule.broker.memo import Broker
from rota.schedule.broker.reading import read_task, read_world
from rota.schedule.broker.task import Task
from rota.schedule.broker.verify import changed

INPUTS = json.loads((Path(__file__).parents[1] / "data" / "brokerage-vectors.json").read_text())["inputs"]
NO_NETWORK = ["extra.config.NW_ACTIVE", False]


def decide(name: str, profile: Profile, *changes: list[Any], **values: Any) -> Decision:
    data = changed(INPUTS[name], list(changes))
    thresholds = Thresholds(profile, {**data["extra"]["config"], "CANDIDATES_MOST": 100, **values})
    return broker(read_task(data), read_world(data), thresholds, name.partition("/")[0])


def rows(name: str, profile: Profile, *changes: list[Any], **values: Any) -> dict[str, dict[str, Any]]:
    said = decision_rows(decide(name, profile, *changes, **values))
    return dict(said["queues"])


# -- weights


@pytest.mark.parametrize("profile", ["code", "modern"])
def test_weights_of_the_reference(profile: Profile) -> None:
    found = rows("production/slots", profile)
    for queue, weight in {
        "Q_MANY": 0.611380, "Q_MANYX": 2.914863, "Q_MANY1": 1.222760, "Q_W": 2.8, "Q_W_NOUPS": 0.8,
        "Q_W_HALF": 1.333333, "Q_S80": 0.916667, "Q_S0": 0.416667, "Q_S8": 0.166667,
    }.items():  # fmt: skip
        assert found[queue]["weight"] == pytest.approx(weight, abs=1e-6), queue
    found = rows("production/slots", profile, ["task.currentPriority", 200])
    assert found["Q_W"]["weight"] == pytest.approx(0.8) and found["Q_S80"]["weight"] == pytest.approx(
        0.083333, abs=1e-6
    )


@pytest.mark.parametrize("profile", ["code", "modern"])
def test_an_idle_queue_is_bootstrapped_first_at_low_priority(profile: Profile) -> None:
    decision = decide("production/base", profile, ["task.currentPriority", 100])
    assert decision.candidates[0].queue == "Q_EMPTY"
    assert decision.candidates[0].bootstrap and decision.candidates[0].weight == 0
    assert not decide("production/base", profile, ["task.currentPriority", 151]).candidates[0].bootstrap
    merging = decide("production/base", profile, ["task.currentPriority", 100], ["chunk.isMerging", True])
    assert not any(one.bootstrap for one in merging.candidates)


def test_many_idle_queues_bootstrap_in_the_order_of_their_names_and_the_rest_wait() -> None:
    data = changed(INPUTS["production/base"], [["task.currentPriority", 100], ["job_stats", {}]])
    for profile, tag in (("code", "-loweigh"), ("modern", "-others_bootstrap")):
        decision = broker(read_task(data), read_world(data), Thresholds(profile, data["extra"]["config"]))
        names = [one.queue for one in decision.candidates]
        assert names == sorted(names) and len(names) == 10 and all(one.bootstrap for one in decision.candidates)
        assert tag in {skip.tag for skip in decision.skipped.values()}


@pytest.mark.parametrize("profile", ["code", "modern"])
def test_express_tasks_need_a_good_network(profile: Profile) -> None:
    change = ["task.currentPriority", 1001]
    near = ["extra.network_to_nucleus.SITE_Q_GOOD", {"AGIS_closeness": 0, "Express_queued": 0, "dashb_mbps_1w": 60}]
    found = rows("production/base", profile, change, near)
    assert found["Q_NODATA"]["tag"] == "-lowNetworkWeight" and found["Q_GOOD"]["tag"] == "+use"
    slow = rows("production/base", profile, change, near, NW_WEIGHT_MULTIPLIER=1.1)
    assert slow["Q_GOOD"]["tag"] == "-lowNetworkWeight" and slow["NUC_Q"]["tag"] == "+use"
    off = rows("production/base", profile, change, NO_NETWORK)
    assert off["Q_NODATA"]["tag"] == "+use"


def test_modern_express_is_not_capped() -> None:
    change = [["task.processingType", "urgent"], NO_NETWORK]
    assert rows("production/base", "modern", *change)["Q_CAPPED"]["tag"] == "+use"
    assert rows("production/base", "code", *change)["Q_CAPPED"]["tag"] == "-cap"


def test_the_last_chain_of_rules_and_its_order() -> None:
    name = "production/base"
    found = rows(name, "code", ["extra.locked", ["Q_GOOD"]], ["queues.Q_NODATA.catchall", "use_only_local_data"])
    assert found["Q_GOOD"]["tag"] == "-lock" and found["Q_NODATA"]["tag"] == "-non_local"
    assert rows(name, "modern", MIN_WEIGHT_managed=3)["Q_BUSY"]["tag"] == "-below_min_weight"
    assert rows(name, "code", MIN_WEIGHT_managed=3)["Q_BUSY"]["tag"] == "+use"
    only = [["task.splitRule", "NF=1,TW=-1"], ["job_stats.NUC_Q.MC.running", 500]]
    assert rows(name, "modern", *only)["NUC_Q"]["tag"] == "+use"
    assert rows(name, "modern", *only)["Q_GOOD"]["tag"] == "-t1weight"


# -- filters of production


@pytest.mark.parametrize(
    ("tag", "changes", "profile"),
    [
        ("-status", [["queues.Q_GOOD.status", "paused"]], "code"),
        ("-inactive", [["extra.hours_since_start", {"Q_GOOD": 2.1}], ["task.splitRule", "NF=1,MO=1"]], "code"),
        ("+use", [["extra.hours_since_start", {"Q_GOOD": 2.0}], ["task.splitRule", "NF=1,MO=1"]], "code"),
        ("+use", [["extra.hours_since_start", {"Q_GOOD": 9}]], "code"),
        ("-jumbo", [["queues.Q_GOOD.catchall", "x,useJumboJobs"]], "code"),
        ("-fewevents", [["queues.Q_GOOD.catchall", "useJumboJobs,minEventsForJumbo=9"], ["task.nJumboJobs", 1],
                        ["chunk.readyEvents", 8]], "code"),
        ("-diskIO", [["extra.avg_diskio.Q_GOOD", 501]], "code"),
        ("+use", [["extra.avg_diskio.Q_GOOD", 501], ["queues.Q_GOOD.maxDiskio", 501]], "code"),
        ("+use", [["extra.avg_diskio.Q_GOOD", 501], ["task.diskIO", 4007]], "code"),  # 500 per core, rounded down
        ("-cpucore", [["task.coreCount", 1]], "code"),
        ("+use", [["task.coreCount", 0], ["queues.Q_GOOD.maxwdir", 0]], "code"),
        ("-max_cpucore", [["task.maxCoreCount", 7]], "modern"),
        ("+use", [["task.maxCoreCount", 7]], "code"),
        ("-remoteio", [["task.allowInputLAN", "only"]], "code"),
        ("+use", [["task.allowInputLAN", "only"], ["queues.Q_GOOD.direct_access_lan", True]], "code"),
        ("+use", [["task.splitRule", "NF=1,IL=2"], ["queues.Q_GOOD.maxinputsize", -1]], "code"),
        ("-disk", [["queues.Q_GOOD.maxwdir", 4323]], "code"),
        ("+use", [["queues.Q_GOOD.maxwdir", 4324]], "code"),
        ("+use", [["queues.Q_GOOD.maxwdir", 3300], ["queues.Q_GOOD.maxinputsize", -1]], "code"),
        ("+use", [["queues.Q_GOOD.maxwdir", 0]], "code"),
        ("+use", [["queues.Q_GOOD.storage_free_gb", 150], ["queues.Q_GOOD.storage_expired_gb", 50]], "code"),
        ("+use", [["queues.Q_GOOD.storage_free_gb", 1], ["queues.Q_GOOD.catchall", "skip_RSE_check"]], "code"),
        ("-disk", [["queues.Q_GOOD.storage_free_gb", 1], ["queues.Q_GOOD.catchall", "skip_RSE_check"]], "modern"),
        ("-disk", [["queues.Q_GOOD.storage_min_free_gb", 801]], "modern"),
        ("-write_lan_blacklist", [["queues.Q_GOOD.activity", {"write_lan": "TEST"}]], "modern"),
        ("-read_wan_blacklist", [["queues.Q_GOOD.activity", {"read_wan": "OFF"}]], "modern"),
        ("-source_blacklist", [["extra.source_readable", False], ["extra.local_files.Q_GOOD", 5]], "modern"),
        ("-longwalltime", [["queues.Q_GOOD.mintime", 1989]], "code"),
        ("+use", [["queues.Q_GOOD.mintime", 1988]], "code"),
        ("-shortwalltime", [["queues.Q_GOOD.maxtime", 1988]], "doc"),
        ("-network", [["task.splitRule", "NF=1,IP=1,IK=6"]], "code"),
        ("-es", [["task.eventService", True]], "code"),
        ("-eshigh", [["task.eventService", True], ["queues.Q_GOOD.jobseed", "eshigh"]], "code"),
        ("+use", [["task.eventService", True], ["queues.Q_GOOD.jobseed", "all"]], "code"),
        ("-dyn", [["task.splitRule", "NF=1,DY=50"]], "code"),
        ("-dyn", [["task.splitRule", "NF=1,DY=50"], ["queues.Q_GOOD.catchall", "nSimEvents=49"]], "code"),
        ("+use", [["task.splitRule", "NF=1,DY=50"], ["queues.Q_GOOD.catchall", "nSimEvents=50"]], "code"),
        ("-t1weight", [["task.splitRule", "NF=1,TW=-1"]], "code"),
        ("-max_io_intensity", [["queues.Q_GOOD.max_io_intensity", 99]], "modern"),
        ("+use", [["queues.Q_GOOD.max_io_intensity", 99]], "code"),
        ("-not_full_chain", [["queues.Q_GOOD.catchall", "bareNucleus=only"]], "modern"),
        ("-full_chain", [["task.splitRule", "FU=1"], ["queues.NUC_Q.catchall", "bareNucleus=only"]], "modern"),
        ("+use", [["extra.queues_without_pilot", ["Q_GOOD"]], ["queues.Q_GOOD.num_slots", {"MC": {"MCORE": 5}}]],
         "code"),
        ("+use", [["extra.queues_without_pilot", ["Q_GOOD"]], ["task.prodSourceLabel", "ptest"]], "code"),
        ("-dest_blacklisted", [["extra.nucleus_writable", False]], "modern"),
        ("-link_unusable", [["extra.network_to_nucleus.SITE_Q_GOOD.AGIS_closeness", -1]], "doc"),
    ],
)  # fmt: skip
def test_filters_of_production(tag: str, changes: list[Any], profile: Profile) -> None:
    assert rows("production/base", profile, *changes)["Q_GOOD"]["tag"] == tag


def test_work_shortage_keeps_to_pledges() -> None:
    used = ["extra.cores_used", {"Q_GOOD": 101, "Q_T1989": 100}]
    found = rows("production/base", "modern", used, WORK_SHORTAGE=True)
    assert (found["Q_OPP"]["tag"], found["Q_GOOD"]["tag"]) == ("-non_pledged", "-over_pledged")
    assert found["Q_T1989"]["tag"] == "+use"
    assert rows("production/base", "modern", used)["Q_OPP"]["tag"] == "+use"


def test_input_on_tape_comes_second() -> None:
    much = [["task.ioIntensity", 1000], ["files[*].bytes", 2**31], ["extra.local_files", {"default": 0}]]
    tape = ["extra.tape_files", {"Q_GOOD": 10}]
    found = rows("production/base", "code", *much, tape)
    assert found["Q_GOOD"]["tag"] == "+use" and found["NUC_Q"]["tag"] == "-io"
    both = rows("production/base", "code", *much, tape, ["extra.local_files", {"default": 0, "NUC_Q": 10}])
    assert both["Q_GOOD"]["tag"] == "-io" and both["NUC_Q"]["tag"] == "+use"


def test_lasting_reasons_hide_temporary_ones_and_later_temporary_ones_hide_earlier() -> None:
    changes = [["extra.queues_without_pilot", ["Q_GOOD"]], ["queues.Q_GOOD.storage_free_gb", 1]]
    assert rows("production/base", "code", *changes)["Q_GOOD"]["tag"] == "-nopilot"
    assert rows("production/base", "code", *changes, ["queues.Q_GOOD.maxrss", 1])["Q_GOOD"]["tag"] == "-lowmemory"


# -- analysis


@pytest.mark.parametrize(
    ("counts", "config", "throttled"),
    [
        ({"nRunJobs": 10}, {"CAP_RUNNING_USER_JOBS": 10}, False),
        ({"nRunJobs": 11}, {"CAP_RUNNING_USER_JOBS": 10}, True),
        ({"nQueuedJobs": 200}, {"CAP_RUNNING_USER_JOBS": 100}, False),
        ({"nQueuedJobs": 201}, {"CAP_RUNNING_USER_JOBS": 100}, True),
        ({"nRunCores": 11}, {"CAP_RUNNING_USER_CORES": 10}, True),
        ({"nQueuedCores": 21}, {"CAP_RUNNING_USER_CORES": 10}, True),
        ({"nRunJobs": 99_999}, {}, False),
        ({"nRunJobs": 99_999}, {"CAP_RUNNING_GROUP_JOBS": 1}, False),
    ],
)
@pytest.mark.parametrize("profile", PROFILES)
def test_throttle(counts: dict[str, int], config: dict[str, int], throttled: bool, profile: Profile) -> None:
    decision = decide("analysis/base", profile, ["extra.user_counts", counts], **config)
    assert decision.throttled is throttled and (decision.status == "FAILED") is throttled
    assert decision.pending_minutes == (20 if throttled else 0)
    if throttled:
        assert "CAP_RUNNING" in decision.reason


def test_groups_have_caps_of_their_own_and_quotas_count() -> None:
    group = ["task.workingGroup", "AP"]
    many = ["extra.user_counts", {"nRunJobs": 11}]
    assert decide("analysis/base", "doc", group, many, CAP_RUNNING_GROUP_JOBS=10).throttled
    assert not decide("analysis/base", "doc", group, many, CAP_RUNNING_USER_JOBS=10).throttled
    assert decide("analysis/base", "doc", ["extra.quota_percent", 101]).throttled
    assert not decide("analysis/base", "doc", ["extra.quota_percent", 95]).throttled
    assert decide("analysis/base", "modern", ["extra.quota_percent", 91]).throttled
    merge = ["chunk.isMerging", True]
    assert not decide("analysis/base", "modern", ["extra.quota_percent", 91], merge).throttled


@pytest.mark.parametrize(
    ("tag", "queue", "changes", "profile"),
    [
        ("-excluded", "A_GOOD", [["extra.excludedSite", "A_GOOD, A_MC"]], "doc"),
        ("-excluded", "A_GOOD", [["extra.excludedSite", ["A_GO*"]]], "doc"),
        ("-notincluded", "A_MEM1800", [["extra.includedSite", ["A_GOOD"]]], "doc"),
        ("+use", "A_GOOD", [["extra.includedSite", ["A_GOOD"]]], "doc"),
        ("+use", "A_MEM1800", [["extra.includedSite", ["A_MC", "AUTO"]]], "doc"),
        ("-nonpreassigned", "A_MEM1800", [["task.site", "A_GOOD"]], "doc"),
        ("-cloudmismatch", "A_GOOD", [["task.cloud", "US"]], "code"),
        ("+use", "A_CLOUD", [["task.cloud", "US"]], "code"),
        ("-limitedaccess", "A_GOOD", [["queues.A_GOOD.access", ["you"]]], "code"),
        ("+use", "A_GOOD", [["queues.A_GOOD.access", ["you"]], ["task.userName", "you"]], "code"),
        ("-input", "A_NODATA", [], "doc"),
        ("-overloaded", "A_OVER", [], "doc"),
        ("-overloaded_vp", "A_VP", [["job_stats.A_VP.User Analysis.activated", 500]], "code"),
        (None, "A_VP", [["task.splitRule", "NF=1,AV=1"]], "code"),
        ("-hospital", "A_Q_HOSPITAL", [], "doc"),
        ("-badsite", "A_USERQ", [], "code"),
        ("-gpu", "A_GOOD", [["queues.A_GOOD.catchall", "gpu"]], "doc"),
        ("+use", "A_BAD", [["extra.job_outcomes_last_6h.A_BAD", {"failed": 5}]], "doc"),
        ("-badsite", "A_BAD", [["extra.job_outcomes_last_6h.A_BAD", {"failed": 6}]], "doc"),
        ("-zeroshare", "A_GOOD", [["queues.A_GOOD.fairsharePolicy", "type=any:0%"]], "modern"),
        ("+use", "A_GOOD", [["queues.A_GOOD.fairsharePolicy", "type=any:0%"]], "code"),
    ],
)
def test_filters_of_analysis(tag: str | None, queue: str, changes: list[Any], profile: Profile) -> None:
    assert rows("analysis/base", profile, *changes)[queue]["tag"] == tag


def test_overloaded_queues_are_used_if_nobody_else_has_the_input() -> None:
    others = [name for name in INPUTS["analysis/base"]["queues"] if name != "A_OVER"]
    found = rows("analysis/base", "code", ["extra.queues_without_data", others])
    assert found["A_OVER"]["tag"] == "+use"


def test_queues_that_the_task_has_used_come_first() -> None:
    for profile in PROFILES:
        decision = decide("analysis/base", profile, ["job_stats.A_USED.User Analysis.running", 48])
        assert decision.candidates[0].queue == "A_USED"


def test_input_counts_by_gigabytes_where_it_need_not_be_local() -> None:
    decision = decide("analysis/base", "code", ["task.taskPriority", 2000], ["extra.local_files", {"A_GOOD": 5}])
    weights = {one.queue: one.weight for one in decision.candidates}
    assert decision.locality is False
    assert weights["A_GOOD"] == pytest.approx(1.02 * 1.5) and weights["A_NODATA"] == pytest.approx(1.02)
    low = decide("analysis/base", "doc", ["task.ioIntensity", 50], IO_INTENSITY_CUTOFF_USER=50)
    assert low.locality is False


# -- parts


ZERO = [
    ("type=evgensimul:100%", {}, "reprocessing", False),
    ("type=evgen:100%,type=simul:100%,type=any:0%", {}, "reprocessing", True),
    ("type=evgen:100%,type=simul:100%,type=any:0%", {}, "prod_test", False),
    ("priority>500:0,type=simul:100%,type=any:0%", {"current_priority": 501}, "simul", True),
    ("type=evgen:100%,gshare=Express:100%,type=any:0%,gshare=any:100%", {"gshare": "MC"}, "reprocessing", True),
    ("group=AP_*:0%", {"working_group": "AP_Exot"}, "simul", True),
    ("gshare=Express*:100%,gshare=any:0%", {"gshare": "Express Analysis"}, "simul", False),
    ("type=others:0", {}, "totally_unknown", True),
    ("priority!=500:0", {}, "simul", False), ("priority==500:0", {}, "simul", True),
    ("priority<=499:0", {}, "simul", False), ("priority>=500:0%", {}, "simul", True),
    ("type=deriv:0%", {}, "deriv", True), ("type=any:1", {}, "simul", False),
]  # fmt: skip


@pytest.mark.parametrize(("policy", "task", "kind", "reject"), ZERO)
def test_zero_shares(policy: str, task: dict[str, Any], kind: str, reject: bool) -> None:
    asked = Task(**{"current_priority": 500, "processing_type": kind, **task})
    assert rejects(policy, asked, False, Thresholds("modern")) is reject


def test_zero_shares_of_the_older_reference() -> None:
    code, task = Thresholds("code"), Task(processing_type="simul")
    assert rejects("group=(AP_Higgs|AP_Susy):0%", task, False, code)  # no group: not looked at
    assert group_of("deriv", modern=False) == "others" and group_of("deriv") == "deriv"


CPU = {
    "Q_HW": (0, 0, 1, 0, 1, 0), "Q_HW_NOEXCL": (1, 1, 1, 0, 1, 0), "Q_HW_ANY": (1, 1, 1, 1, 1, 1),
    "Q_HW_EMPTY": (1, 0, 0, 0, 0, 0), "Q_HW_ARM": (1, 0, 0, 0, 0, 0), "Q_HW_ARCH_EXCL": (0, 1, 0, 0, 0, 0),
    "Q_NOHW": (1, 0, 0, 0, 0, 0),
}  # fmt: skip
ASKED = ("", "#x86_64", "#x86_64-intel", "#x86_64-amd", "#x86_64-intel-avx2", "#x86_64-intel-avx512")


@pytest.mark.parametrize("profile", ["code", "modern"])
def test_hardware(profile: Profile) -> None:
    for column, text in enumerate(ASKED):
        ask = {"architecture": text} if text else {"cvmfs_tag": "atlas", "project": "A", "version": "1"}
        found = KINDS["software"]({"ask": ask, "input": INPUTS["software/queues"]}, profile)["ok"]
        for queue, accepts in CPU.items():
            assert (queue in found) is bool(accepts[column]), (queue, text)
    gpu = KINDS["software"]({"ask": {"architecture": "&amd"}, "input": INPUTS["software/queues"]}, profile)["ok"]
    assert "Q_GPU" not in gpu


def test_software_by_release_platform_and_container() -> None:
    entries = INPUTS["software/queues"]

    def ok(profile: Profile = "code", **ask: Any) -> list[str]:
        return list(KINDS["software"]({"ask": ask, "input": entries}, profile)["ok"])

    release = {"cvmfs_tag": "atlas", "project": "Athena", "version": "21.0.38"}
    old = ok(**release, platform="x86_64-slc6-gcc62-opt")
    assert {"Q_CVMFS_ANYCONT", "Q_CVMFS_NOCONT_OTHERCMT", "Q_TAGS_ONLY", "Q_TAGS_NOCONT"} <= set(old)
    assert "Q_CVMFS_NOCONT" not in old
    nightly = ok(cvmfs_tag="nightlies", need_cvmfs=True, platform="x86_64-centos7-gcc8-opt")
    assert "Q_CVMFS_ANYCONT" in nightly and not {"Q_CVMFS_NOCONT", "Q_TAGS_ONLY", "Q_TAGS_NOCONT"} & set(nightly)
    assert "Q_FC_PREFIX" not in ok(container_name="logical:1", only_tags=True)
    resolved = ok("modern", **release, platform="x86_64-centos7-gcc(8|11)-opt")
    assert "Q_CVMFS_NOCONT" in resolved and "Q_CVMFS_NOCONT_OTHERCMT" not in resolved


def test_releases_of_production_tasks() -> None:
    base = [["task.transHome", "Athena-21.0.38"], ["task.architecture", "x86_64-centos7-gcc8-opt"]]
    published = ["extra.software", {"Q_GOOD": INPUTS["software/queues"]["Q_CVMFS_NOCONT"]}]
    auto = ["queues.Q_GOOD.releases", ["AUTO"]]
    assert rows("production/base", "code", *base, published, auto)["Q_GOOD"]["tag"] == "+use"
    other = ["task.architecture", "x86_64-slc6-gcc62-opt"]
    assert rows("production/base", "code", *base, published, auto, other)["Q_GOOD"]["tag"] == "-cache"
    assert rows("production/base", "code", *base, auto)["Q_GOOD"]["tag"] == "-cache"  # it publishes nothing
    night = ["task.transHome", "Athena-2022-01-31T2100"]
    assert rows("production/base", "code", *base, published, auto, night)["Q_GOOD"]["tag"] == "-cache"
    assert rows("production/base", "code", *base)["Q_GOOD"]["tag"] == "+use"  # ANY
    assert rows("production/base", "modern", *base)["Q_GOOD"]["tag"] == "-cache"  # a CPU is asked for, by its platform


def test_an_unknown_architecture_is_said_of_every_queue_that_would_be_asked() -> None:
    found = decide("production/base", "doc", ["task.transHome", "A-1"], ["task.architecture", "x@a@b"])
    assert found.status == "FAILED" and "two parts after '@'" in found.skipped["Q_GOOD"].words
    for text in ("#(x86_64", '{"sw_platform": 3, "cpu_specs": 7}', "{", "&nvidia:colour=red"):
        with pytest.raises(ArchitectureError):
            parse_architecture(text, "modern")


# -- wrong input


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (["task.ramCount", -1], "task.ramCount is -1"),
        (["task.ramCount", "x"], "ramCount"),
        (["files[3].bytes", -5], "files[3] (f3): its size is negative"),
        (["task", 7], "task: an object"),
        (["queues", {}], "queues: an object"),
        (["extra", 7], "extra: an object"),
        (["task.splitRule", "NF=x"], "splitRule: NF=x"),
    ],
)
def test_a_task_that_cannot_be_read_is_named(changes: list[Any], words: str) -> None:
    data = changed(INPUTS["production/base"], [changes])
    with pytest.raises(UsageError) as caught:
        read_world(data)
        read_task(data)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (["queues.Q_GOOD", 7], "an object is expected"),
        (["queues.Q_GOOD.maxrss", "much"], "maxrss"),
        (["queues.Q_GOOD.maxrss", -1], "maxrss is -1: it cannot be negative"),
        (["queues.Q_GOOD.num_slots", {"MC": {"MCORE": "x"}}], "cannot be read"),
        (["job_stats.Q_GOOD.MC.running", -3], "running is -3"),
        (["job_stats.Q_GOOD", 3], "job_stats"),
        (["extra.workers", {"Q_GOOD": {"h": {"l": {"M": {"running": "x"}}}}}], "workers"),
    ],
)
@pytest.mark.parametrize("profile", PROFILES)
def test_a_queue_that_cannot_be_read_says_why_and_no_other_suffers(
    change: list[Any], words: str, profile: Profile
) -> None:
    decision = decide("production/base", profile, change)
    assert decision.skipped["Q_GOOD"].tag == "-malformed" and words in decision.skipped["Q_GOOD"].words
    assert decision.status == "SUCCEEDED"


@pytest.mark.parametrize("profile", PROFILES)
def test_queues_without_limits_and_worlds_without_statistics_are_brokered(profile: Profile) -> None:
    data = changed(INPUTS["production/base"], [["queues", {"A": {}, "B": {"coreCount": 8}}], ["job_stats", None]])
    data["extra"] = {}
    decision = broker(read_task(data), read_world(data), Thresholds(profile), "production")
    assert decision.skipped["A"].tag == "-cpucore"
    network = {"doc": "-network", "code": "-network", "modern": "-network"}[profile]
    assert decision.skipped["B"].tag == network
    data["task"]["splitRule"] = "NF=1"
    decision = broker(read_task(data), read_world(data), Thresholds(profile), "production")
    assert [one.queue for one in decision.candidates] == ["B"]


def test_unknown_queues_in_lists_are_told() -> None:
    decision = decide("production/base", "doc", ["task.site", "Q_GOOD,NOWHERE"])
    assert decision.skipped["NOWHERE"].tag == "-unknown" and decision.candidates[0].queue == "Q_GOOD"
    nothing = decide("production/base", "doc", ["task.site", "NOWHERE"])
    assert nothing.status == "FAILED" and nothing.initial == 1
    words = decide("analysis/base", "doc", ["extra.includedSite", ["NOWHERE", "A_GOOD"]]).warnings
    assert words == ("includedSite names NOWHERE, and there is no such queue",)
    assert "no queue" in decide("analysis/base", "doc", ["task.site", "NOWHERE"]).warnings[0]


def test_a_fair_share_policy_that_cannot_be_read_rejects_nothing_and_is_told() -> None:
    for policy in ("type=[:0", "0%", "colour=red:0", "type=(:0%"):
        decision = decide("production/base", "doc", ["queues.Q_GOOD.fairsharePolicy", policy])
        assert any(one.queue == "Q_GOOD" for one in decision.candidates)
        assert "Q_GOOD" in decision.warnings[0] and "cannot be read" in decision.warnings[0]


def test_whole_flows_can_be_added_and_unknown_ones_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    data = INPUTS["production/base"]
    task, world = read_task(data), read_world(data)
    monkeypatch.setitem(FLOWS, "mine", Flow(lambda task, world, values: decide("analysis/base", "doc")))
    assert broker(task, world, Thresholds(), "mine").flow == "analysis"
    with pytest.raises(UsageError, match="there are analysis, mine, production"):
        broker(task, world, Thresholds(), "other")


def test_a_broker_remembers_and_forgets_the_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    data = INPUTS["production/base"]
    task, known = read_task(data), Broker(read_world(data), Thresholds())
    first = known.decide(task)
    assert known.decide(read_task(data)) is first
    monkeypatch.setattr("rota.schedule.broker.memo.MOST", 2)
    known.decide(Task(task_id=1)), known.decide(Task(task_id=2))
    assert known.decide(task) is not first and known.decide(task) == first


# -- unified queues


def test_parts_of_a_unified_queue_are_brokered_and_counted_under_its_name() -> None:
    unified = ["queues.Q_GOOD.capability", "ucore"]
    decision = decide("production/base", "code", unified)
    assert (
        "Q_GOOD/MCORE" in [one.queue for one in decision.candidates]
        and decision.skipped["Q_GOOD/SCORE"].tag == "-cpucore"
    )
    single = decide("production/base", "code", unified, ["task.coreCount", 1], ["task.ramCount", 1000])
    assert {"Q_GOOD/SCORE", "Q_GOOD/SCORE_HIMEM"} & {one.queue for one in single.candidates} == {"Q_GOOD/SCORE"}
    named = decide("production/base", "code", unified, ["task.site", "Q_GOOD"])
    assert named.initial == 4
