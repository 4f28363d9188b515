"""Timeouts and rebrokerage: every row of the table, on both sides of its limit, in every profile."""

import pytest
from msgspec.structs import replace

from rota.model.errors import UsageError
from rota.schedule.broker.timeouts import RULES, JobClock, QueueClock, due, fast_rebrokerage, limit_of, rules_of

H, D = 3600, 86_400
NOW = 100 * D
QUIET = QueueClock("Q", last_start=NOW - 3 * H)
BUSY = QueueClock("Q", last_start=NOW - 60)


def job(state: str, age: float, **more: object) -> JobClock:
    """A job that came into its state, and was last heard of, so long ago."""
    since = NOW - age
    return replace(JobClock(state, since, since, since, since, since, since), **more)


def verdict(state: str, age: float, queue: QueueClock = BUSY, profile: str = "doc", thresholds=None, **more):
    found = due(job(state, age, **more), queue, NOW, thresholds, profile)
    return None if found is None else (found.rule, found.action)


DOC = [
    ("pending", H, {}, ("pending", "close")),
    ("defined", 4 * H, {}, ("defined", "reassign")),
    ("assigned", 12 * H, {}, ("assigned", "reassign")),
    ("throttled", 7 * D, {}, ("throttled", "close")),
    ("activated", 2 * D, {}, ("activated", "reassign")),
    ("sent", H // 2, {}, ("sent", "fail")),
    ("running", 2 * H, {}, ("heartbeat", "fail")),
    ("starting", 2 * H, {}, ("heartbeat", "fail")),
    ("transferring", 2 * H, {"sub_status": "out"}, ("own stage-out", "fail")),
    ("holding", 3 * H, {"priority": 800}, ("urgent holding", "fail")),
    ("holding", 48 * H, {"priority": 799}, ("holding", "fail")),
    ("transferring", 1 * D, {"priority": 800}, ("transferring", "fail")),
    ("transferring", 2 * D, {"priority": 799}, ("transferring", "fail")),
]


@pytest.mark.parametrize(("state", "limit", "more", "found"), DOC)
def test_each_rule_of_the_document_on_both_sides(state, limit, more, found) -> None:
    assert verdict(state, limit, **more) is None, "exactly at its limit it is not over it"
    assert verdict(state, limit + 1, **more) == found


def test_urgent_jobs_leave_queues_where_nothing_starts() -> None:
    for state in ("activated", "starting"):
        fresh = {"modified": NOW - 60} if state == "starting" else {}
        assert verdict(state, 4 * H + 1, QUIET, priority=800, **fresh) == (f"urgent {state}", "reassign")
        assert verdict(state, 4 * H, QUIET, priority=800, **fresh) is None
        assert verdict(state, 4 * H + 1, QUIET, priority=799, **fresh) is None
        assert verdict(state, 4 * H + 1, BUSY, priority=800, **fresh) is None
        assert verdict(state, 4 * H + 1, QueueClock("Q"), priority=800, **fresh) is not None, "none ever started"
        assert verdict(state, 4 * H + 1, QUIET, priority=800, merging=True, **fresh) is None


def test_21_days_of_running_that_is_heard_of() -> None:
    alive = {"modified": NOW - 60}
    assert verdict("running", 21 * D, **alive) is None
    assert verdict("running", 21 * D + 1, **alive) == ("running", "kill")


def test_a_workflow_has_its_own_heartbeat() -> None:
    own = {"HEARTBEAT_TIMEOUT_ups": 6}
    assert verdict("running", 5 * H, thresholds=own, workflow="ups") is None
    assert verdict("running", 5 * H, thresholds=own, workflow="other") == ("heartbeat", "fail")
    assert verdict("running", 6 * H + 1, thresholds=own, workflow="ups") == ("heartbeat", "fail")
    assert verdict("transferring", 5 * H, thresholds=own, workflow="ups", sub_status="x") is None
    assert verdict("running", 3 * H, thresholds={"HEARTBEAT_TIMEOUT_production": 4}) is None


@pytest.mark.parametrize("bad", [-1, float("nan"), "2", True])
def test_a_threshold_that_is_none_is_named(bad) -> None:
    with pytest.raises(UsageError, match="HEARTBEAT_TIMEOUT_w is"):
        verdict("running", 3 * H, thresholds={"HEARTBEAT_TIMEOUT_w": bad}, workflow="w")


@pytest.mark.parametrize("state", sorted({state for rule in RULES for state in rule.states}))
def test_paused_and_disable_reassign(state) -> None:
    """D27: by the document no rule holds there; by the code these stop a few only."""
    paused, disabled = QueueClock("Q", "paused"), QueueClock("Q", disable_reassign=True)
    assert verdict(state, 90 * D, paused) is None and verdict(state, 90 * D, disabled) is None
    for profile in ("code", "modern"):
        found = verdict(state, 90 * D, paused, profile)
        assert found is None or found[0] != "heartbeat"
        assert verdict(state, 90 * D, disabled, profile) != ("activated", "reassign")
    assert verdict("activated", 3 * D, paused, "code") == ("activated", "reassign")
    assert verdict("running", 3 * H, disabled, "code") == ("heartbeat", "fail")
    assert verdict("activated", 3 * D, disabled, "code") is None


def test_holding_at_800() -> None:
    """D28."""
    assert verdict("holding", 4 * H, priority=800) == ("urgent holding", "fail")
    assert verdict("holding", 4 * H, profile="code", priority=800) is None
    assert verdict("holding", 4 * H, profile="code", priority=801) == ("urgent holding", "fail")
    assert verdict("holding", 4 * H, profile="code", label="analysis") == ("analysis holding", "fail")
    assert verdict("holding", 4 * H, profile="code", label="analysis", report_queued=True) is None
    assert verdict("holding", 49 * H, thresholds={"TIMEOUT_holding": 100}) is None


def test_analysis_jobs_of_the_code() -> None:
    ask = {"label": "analysis", "profile": "code"}
    assert verdict("activated", 13 * H, **ask) == ("analysis queued", "reassign")
    assert verdict("activated", 11 * H, **ask) is None
    assert verdict("activated", 1, QueueClock("Q", "offline"), **ask) == ("analysis queued", "reassign")
    assert verdict("activated", 13 * H, QueueClock("Q", group_start=NOW - H), **ask) is None
    own = {"ANALY_TIMEOUT": 20, "ANALY_TIMEOUT_higgs": 30}
    assert verdict("activated", 21 * H, thresholds=own, group="susy", **ask) == ("analysis queued", "reassign")
    assert verdict("activated", 21 * H, thresholds=own, group="higgs", **ask) is None


def test_transfers_go_by_the_queue() -> None:
    queue = QueueClock("Q", transtimehi=3, transtimelo=9)
    assert verdict("transferring", 8 * D, queue) is None
    assert verdict("transferring", 4 * D, queue, priority=900) == ("transferring", "fail")
    assert verdict("transferring", 4 * D, queue, "modern") is None, "6 days, whatever the queue says"
    (rule,) = [rule for rule in rules_of("code") if rule.special == "transfer"]
    low = QueueClock("Q", transtimelo=0.1)
    assert limit_of(rule, job("transferring", 0), low, {}, "code") == D, "a day at the least"


def test_the_words_have_the_numbers() -> None:
    found = due(job("activated", 3 * D), BUSY, NOW)
    assert found is not None and found.why == "was activated at Q for 3d, at most 2d are allowed"
    assert found.code == 51 and found.limit_s == 2 * D


@pytest.mark.parametrize("profile", ["doc", "code", "modern"])
def test_fast_rebrokerage(profile) -> None:
    """The vectors, and D31: how many of the oldest go."""
    ask = {"limit": 100, "profile": profile}
    found = fast_rebrokerage(500, 50, 1000, **ask)
    assert (found.trigger, found.excess) == (True, 200)
    assert found.closes == (200 if profile == "doc" else 199)
    assert not fast_rebrokerage(300, 0, 1000, **ask).trigger, "300 is not more than 0.3 of 1000"
    assert not fast_rebrokerage(100, 0, 100, **ask).trigger, "100 is not more than 100"
    assert not fast_rebrokerage(500, 200, 1000, **ask).trigger, "500 is not more than 3 times 200"
    assert not fast_rebrokerage(500, 50, 1000, limit=100, slots=True).trigger
    dry = fast_rebrokerage(500, 50, 1000, limit=None)
    assert not dry.trigger and dry.dry_run and "not set" in dry.why
    assert not fast_rebrokerage(0, 0, 0, **ask).trigger
