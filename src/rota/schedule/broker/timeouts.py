"""Timeouts: how long a job may stay in a state, what is done then, and when a queue gives back what it cannot start.

The rules are data, one row for each sentence of the reference, with the profiles that have it. The first row that is
due decides. Times are seconds; thresholds are given in hours, under the reference's names.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from rota.model.amounts import format_duration
from rota.model.errors import UsageError

__all__ = [
    "RULES", "Excess", "JobClock", "QueueClock", "Rule", "Timeout", "due", "fast_rebrokerage", "limit_of", "rules_of",
]  # fmt: skip

HOUR_S, DAY_S = 3600, 86_400
URGENT = 800
"""The priority from which a job counts as urgent."""
QUIET_S = 2 * HOUR_S
"""A queue where no job has started for so long is inactive."""
HEARTBEAT_H = 2.0
ANALYSIS_QUIET_S = 3 * HOUR_S
TRANSFER_DAYS = {"doc": (1, 2), "code": (1, 2), "modern": (2, 6)}
"""Profile → days for transfers of urgent and of other jobs, where the queue says nothing."""

REASSIGN = 51
"""Codes of the reference for how a job was closed."""
EXPIRED, PENDING_EXPIRED, FAST = 2, 4, 10


class JobClock(Struct, frozen=True):
    """What the rules look at in a job. Times are those of one clock, in seconds; None: never."""

    state: str
    created: float
    modified: float | None = None
    """When it was last heard of."""
    changed: float | None = None
    """When it came into its state."""
    activated: float | None = None
    ended: float | None = None
    started: float | None = None
    priority: int = 0
    label: str = "production"
    """production, analysis or test."""
    workflow: str = ""
    sub_status: str | None = None
    """Set by jobs that bring their output away themselves."""
    merging: bool = False
    reassignable: bool = True
    co_jumbo: bool = False
    group: str = ""
    """The working group of an analysis job."""
    report_queued: bool = False


class QueueClock(Struct, frozen=True):
    """What the rules look at in a queue."""

    name: str = ""
    status: str = "online"
    disable_reassign: bool = False
    last_start: float | None = None
    """When a job last started there; None: never."""
    group_start: float | None = None
    """When a job of the same job group last started there."""
    transtimehi: float | None = None
    transtimelo: float | None = None
    """Days for transfers of urgent and of other jobs."""


class Rule(Struct, frozen=True):
    """How long jobs of some states may stay so, and what is done then."""

    name: str
    states: tuple[str, ...]
    action: str
    """close, reassign, fail or kill."""
    clock: str
    """What of `JobClock` is counted from; one that is not known is `created`."""
    limit_s: int = 0
    key: str = ""
    """The threshold that says otherwise, in hours; <workflow> and <group> stand for the job's own."""
    special: str = ""
    """heartbeat, transfer, own-stage-out or analysis: the limit is worked out."""
    labels: tuple[str, ...] = ()
    """Empty: all."""
    least: int | None = None
    most: int | None = None
    """Bounds of the priority, both included."""
    inactive: bool = False
    """Only where no job has started for two hours."""
    reassignable: bool = False
    """Only for jobs that may be reassigned."""
    unmerged: bool = False
    """Not for merge jobs."""
    code: int | None = None
    profiles: tuple[str, ...] = ("doc", "code", "modern")
    unless_paused: bool = False
    """In profiles `code` and `modern`: not at a paused queue."""
    unless_disabled: bool = False
    """In profiles `code` and `modern`: not where `disableReassign` is set."""


_PANDA = ("code", "modern")
_PRODUCTION = ("production",)
_ANALYSIS = ("analysis",)
_LIVE = ("starting", "running", "stagein", "stageout")
_ACTIVE = ("activated", "sent", "starting", "running", "stagein", "stageout", "holding", "transferring")

RULES: tuple[Rule, ...] = (
    Rule("pending", ("pending",), "close", "created", HOUR_S, code=PENDING_EXPIRED),
    Rule("waiting", ("waiting",), "close", "created", HOUR_S, code=PENDING_EXPIRED, profiles=_PANDA),
    Rule("defined", ("defined",), "reassign", "modified", 4 * HOUR_S, "TIMEOUT_defined", code=REASSIGN,
         labels=("production", "test")),
    Rule("assigned", ("assigned",), "reassign", "modified", 12 * HOUR_S, labels=_PRODUCTION, code=REASSIGN),
    Rule("not activated", ("defined", "assigned", "waiting", "pending"), "close", "created", 7 * DAY_S, code=EXPIRED,
         profiles=_PANDA),
    Rule("throttled", ("throttled",), "close", "created", 7 * DAY_S, code=EXPIRED),
    Rule("urgent activated", ("activated",), "reassign", "modified", 4 * HOUR_S, labels=_PRODUCTION, least=URGENT,
         inactive=True, unmerged=True, code=REASSIGN, unless_disabled=True),
    Rule("urgent starting", ("starting",), "reassign", "changed", 4 * HOUR_S, labels=_PRODUCTION, least=URGENT,
         inactive=True, unmerged=True, code=REASSIGN, unless_disabled=True),
    Rule("activated", ("activated",), "reassign", "modified", 2 * DAY_S, labels=_PRODUCTION, reassignable=True,
         code=REASSIGN, unless_disabled=True),
    Rule("starting", ("starting",), "reassign", "changed", 2 * DAY_S, labels=_PRODUCTION, reassignable=True,
         code=REASSIGN, unless_disabled=True),
    Rule("analysis queued", ("activated", "starting", "assigned", "defined"), "reassign", "activated", 12 * HOUR_S,
         "ANALY_TIMEOUT_<group>|ANALY_TIMEOUT", "analysis", _ANALYSIS, reassignable=True, code=REASSIGN,
         profiles=_PANDA),
    Rule("activated for long", ("activated",), "close", "created", 7 * DAY_S, code=EXPIRED, profiles=_PANDA),
    Rule("sent", ("sent",), "fail", "modified", HOUR_S // 2),
    Rule("heartbeat", ("running", "starting"), "fail", "modified", special="heartbeat", profiles=("doc",)),
    Rule("heartbeat", _LIVE, "fail", "modified", special="heartbeat", unless_paused=True, profiles=_PANDA),
    Rule("own stage-out", ("transferring",), "fail", "modified", special="own-stage-out"),
    Rule("urgent holding", ("holding",), "fail", "modified", 3 * HOUR_S, least=URGENT, profiles=("doc",)),
    Rule("urgent holding", ("holding",), "fail", "modified", 3 * HOUR_S, least=URGENT + 1, profiles=_PANDA),
    Rule("analysis holding", ("holding",), "fail", "modified", 3 * HOUR_S, labels=_ANALYSIS, profiles=_PANDA),
    Rule("holding", ("holding",), "fail", "modified", 48 * HOUR_S, "TIMEOUT_holding"),
    Rule("transferring", ("transferring",), "fail", "ended", special="transfer"),
    Rule("running", ("running",), "kill", "created", 21 * DAY_S, profiles=("doc",)),
    Rule("active", _ACTIVE, "kill", "created", 21 * DAY_S, profiles=_PANDA),
    Rule("analysis active", _ACTIVE, "close", "modified", 7 * DAY_S, labels=_ANALYSIS, code=EXPIRED, profiles=_PANDA),
)  # fmt: skip
"""Every rule of every profile. Of those that are due the first one decides."""


class Timeout(Struct, frozen=True):
    """A job has been in a state for too long."""

    rule: str
    action: str
    code: int | None
    waited_s: float
    limit_s: float
    why: str


def rules_of(profile: str) -> list[Rule]:
    """The rules of a profile, in order."""
    return [rule for rule in RULES if profile in rule.profiles]


def due(
    job: JobClock,
    queue: QueueClock,
    now: float,
    thresholds: Mapping[str, Any] | None = None,
    profile: str = "doc",
    rules: Sequence[Rule] | None = None,
) -> Timeout | None:
    """The first rule that says that a job has waited for too long; None: none does."""
    thresholds = {} if thresholds is None else thresholds
    if profile == "doc" and (queue.status == "paused" or queue.disable_reassign):
        return None
    for rule in rules_of(profile) if rules is None else rules:
        if job.state not in rule.states or not _concerns(rule, job, queue, now, profile):
            continue
        limit_s = limit_of(rule, job, queue, thresholds, profile)
        since = getattr(job, rule.clock)
        if since is None and rule.clock == "ended":
            since = job.started
        waited = now - (job.created if since is None else since)
        if limit_s is not None and waited > limit_s:
            return Timeout(
                rule.name, rule.action, rule.code, waited, limit_s, _words(rule, job, queue, waited, limit_s)
            )
    return None


def _concerns(rule: Rule, job: JobClock, queue: QueueClock, now: float, profile: str) -> bool:
    """Whether a rule is for such a job at such a queue."""
    if rule.labels and job.label not in rule.labels:
        return False
    if (rule.least is not None and job.priority < rule.least) or (rule.most is not None and job.priority > rule.most):
        return False
    if (rule.reassignable and not job.reassignable) or (rule.unmerged and job.merging):
        return False
    if profile != "doc":
        if (rule.unless_paused and queue.status == "paused") or (rule.unless_disabled and queue.disable_reassign):
            return False
        if rule.name == "waiting" and job.co_jumbo:
            return False
        if rule.name == "analysis holding" and job.report_queued:
            return False
        if rule.special == "own-stage-out" and profile == "code" and job.label == "test":
            return False
    if rule.special == "own-stage-out" and job.sub_status is None:
        return False
    if rule.inactive:
        closed = profile == "modern" and queue.status in ("offline", "test")
        return closed or queue.last_start is None or now - queue.last_start > QUIET_S
    if rule.special == "analysis":
        return queue.group_start is None or now - queue.group_start > ANALYSIS_QUIET_S
    return True


def limit_of(
    rule: Rule, job: JobClock, queue: QueueClock, thresholds: Mapping[str, Any], profile: str = "doc"
) -> float | None:
    """Seconds that a rule leaves a job."""
    if rule.special in ("heartbeat", "own-stage-out"):
        own = _hours(thresholds, f"HEARTBEAT_TIMEOUT_{job.workflow}") if job.workflow else None
        if own is None:
            own = _hours(thresholds, f"HEARTBEAT_TIMEOUT_{job.label}")
        return (HEARTBEAT_H if own is None else own) * HOUR_S
    if rule.special == "transfer":
        high = job.priority >= URGENT and job.label != "analysis"
        days = queue.transtimehi if high else queue.transtimelo
        if days is None or days <= 0 or profile == "modern":
            days = TRANSFER_DAYS[profile][0 if high else 1]
        return max(1.0, days) * DAY_S if profile == "code" else days * DAY_S
    if rule.special == "analysis" and queue.status in ("offline", "test"):
        return 0.0
    for key in rule.key.split("|") if rule.key else ():
        if "<group>" in key and not job.group:
            continue
        if (own := _hours(thresholds, key.replace("<group>", job.group))) is not None:
            return own * HOUR_S
    return float(rule.limit_s)


def _hours(thresholds: Mapping[str, Any], key: str) -> float | None:
    """A threshold in hours; None: it is not set."""
    value = thresholds.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        raise UsageError(f"{key} is {value!r}: give hours, 0 or more")
    return float(value)


def _words(rule: Rule, job: JobClock, queue: QueueClock, waited: float, limit_s: float) -> str:
    what = "was not heard of" if rule.special in ("heartbeat", "own-stage-out") else f"was {job.state}"
    at = f" at {queue.name}" if queue.name else ""
    words = f"{what}{at} for {format_duration(int(waited))}, at most {format_duration(int(limit_s))} are allowed"
    if rule.inactive:
        words += f" for priority {URGENT} and more where no job has started for {format_duration(QUIET_S)}"
    return words


class Excess(Struct, frozen=True):
    """Whether a queue has so many queued jobs of a share that some are brokered again, and how many."""

    trigger: bool
    excess: int
    closes: int
    """How many of the oldest are given back."""
    dry_run: bool
    why: str


DRY_LIMIT = 10


def fast_rebrokerage(
    nq: int,
    nr: int,
    nq_total: int,
    *,
    limit: float | None,
    ratio: float = 3.0,
    frac: float = 0.3,
    slots: bool = False,
    profile: str = "doc",
) -> Excess:
    """Judge one queue and share: `nq` queued and `nr` running there, `nq_total` queued in the share everywhere.

    `limit` is FAST_REBRO_THRESHOLD_NQUEUE_<gshare>: a share that has none gives nothing back. `slots`: the queue has a
    number of slots set, which makes it long on purpose.
    """
    if slots:
        return Excess(False, 0, 0, False, "the number of its slots is set: a long queue is meant")
    least = DRY_LIMIT if limit is None else limit
    missing = [
        words
        for holds, words in (
            (nq > ratio * nr, f"{nq} queued are not more than {ratio:g} times the {nr} that run"),
            (nq > least, f"{nq} queued are not more than {least:g}"),
            (nq > frac * nq_total, f"{nq} queued are not more than {frac:g} of the {nq_total} of its share"),
        )
        if not holds
    ]
    if missing:
        return Excess(False, 0, 0, limit is None, missing[0])
    excess = math.ceil(min(nq - ratio * nr, nq - least, nq - frac * nq_total))
    if limit is None:
        return Excess(False, excess, 0, True, "FAST_REBRO_THRESHOLD_NQUEUE of its share is not set: nothing is done")
    closes = excess if profile == "doc" else excess - 1
    return Excess(
        True, excess, closes, False, f"{nq} queued, {nr} run, {nq_total} queued in its share: {excess} too many"
    )
