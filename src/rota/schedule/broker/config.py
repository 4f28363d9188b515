"""Thresholds of the brokerage: each under its own name, with unit and source, for the profiles doc, code and modern.

`doc` is the literal text of the documentation, `code` the reference as it ran when that was written, `modern` as it
runs now. Where documentation and code disagree (D1 to D32), the choice is a setting here: any mixture can be had.
"""

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any, Literal

from msgspec import Struct

from rota.model.errors import UsageError

__all__ = ["PROFILES", "SETTINGS", "Profile", "Setting", "Thresholds", "check_value"]

Profile = Literal["doc", "code", "modern"]
PROFILES: tuple[Profile, ...] = ("doc", "code", "modern")
Value = bool | int | float | None


class Setting(Struct, frozen=True):
    """One threshold, or one choice between two readings."""

    name: str
    doc: Value
    code: Value
    modern: Value
    unit: str
    source: str
    """Where it comes from: the component of the reference's configuration, or the disagreement (D1 …)."""
    what: str
    suffix: bool = False
    """Whether `NAME_<share>`, or another ending, is a value for that share only."""

    def of(self, profile: Profile) -> Value:
        """Its value in a profile."""
        return self.doc if profile == "doc" else self.code if profile == "code" else self.modern


def _same(name: str, value: Value, unit: str, source: str, what: str, suffix: bool = False) -> Setting:
    return Setting(name, value, value, value, unit, source, what, suffix)


GB = "GB (1024³ bytes)"
_ROWS: tuple[Setting, ...] = (
    # -- links and network weight
    _same("NQUEUED_SAT_CAP", 150, "files", "jobbroker",
          "files queued on a link to the nucleus from which it is unusable"),
    Setting("NQUEUED_WEIGHT_CAP", 300, None, None, "files", "jobbroker, plot of the documentation",
            "files queued on a link at which its queued weight is 1; unset: NQUEUED_SAT_CAP"),
    _same("NQUEUED_NUC_CAP_FOR_JOBS", 10_000, "files", "jobbroker",
          "files queued to the nucleus from which all its links are full"),
    Setting("LINK_CAP_INCLUSIVE", False, True, True, "yes or no", "D4",
            "a link is full when the cap is reached, not only above it"),
    Setting("NW_ACTIVE", True, False, False, "yes or no", "jobbroker, D16", "the network weight counts"),
    _same("NW_QUEUE_IMPORTANCE", 0.5, "0 to 1", "jobbroker", "share of the queued weight in the network weight"),
    _same("NW_THRESHOLD", 1.7, "weight", "jobbroker", "least network weight for express tasks"),
    _same("NW_WEIGHT_MULTIPLIER", 1, "factor", "jobbroker", "multiplies NW_THRESHOLD"),
    _same("NW_METRICS_AGE", 60, "minutes", "jobbroker", "network metrics that are older are not used"),
    Setting("NW_THROUGHPUT_75", 1.7, 1.6, 1.6, "weight", "D17", "throughput weight between 50 and 75 MB/s"),
    Setting("NW_NEEDS_ALL_WINDOWS", False, True, True, "yes or no", "D18",
            "the throughput of an hour counts only if those of a day and a week are known"),
    # -- who is a candidate
    Setting("EXPRESS_PRIORITY", 1000, 1000, 1000, "priority", "D1", "priority of express tasks"),
    Setting("EXPRESS_INCLUSIVE", True, False, False, "yes or no", "D1", "EXPRESS_PRIORITY itself is express"),
    Setting("EXCLUDE_TEST_QUEUES", True, False, False, "yes or no", "D2",
            "queues with 'test' in their name are no candidates"),
    Setting("ONLINE_ONLY", True, False, False, "yes or no", "D3",
            "the status must be online; else standby will do, and more in analysis"),
    Setting("PREASSIGN_TIMEOUT", 24, 24, 24, "hours", "D32",
            "a merge job's preassigned queue is ignored after it was skipped so long"),
    Setting("PREASSIGN_FROZEN", 6, 6, 6, "hours", "D32", "… and the task has been frozen for so long; 0: no matter"),
    Setting("HIGH_PRIORITY", 800, 800, 800, "priority", "documentation",
            "from here opportunistic and inactive queues are avoided"),
    Setting("HIGH_PRIORITY_AT_NUCLEUS", True, False, False, "yes or no", "D5",
            "high priority and scouts run only at the nucleus"),
    Setting("SKIP_OPPORTUNISTIC", False, True, True, "yes or no", "D5",
            "high priority and scouts avoid opportunistic queues"),
    _same("INACTIVE_HOURS", 2, "hours", "documentation",
          "a queue with activated jobs and no start for so long is inactive"),
    Setting("ZERO_SHARE_LISTED_ONLY", False, False, False, "yes or no", "D6",
            "a fair-share policy of only positive entries rejects what it does not list"),
    _same("PILOT_HOURS", 3, "hours", "documentation", "a queue without pilots for so long is skipped"),
    _same("TRANSFERRING_LIMIT_DEFAULT", 2000, "jobs", "documentation",
          "transferring jobs of a queue that says no transferringlimit"),
    # -- input
    _same("IO_INTENSITY_CUTOFF", 200, "kB/s", "jobbroker", "from above it, input must be nearly all there"),
    _same("SIZE_CUTOFF_TO_MOVE_INPUT", 10, GB, "jobbroker", "most input that may be missing then"),
    _same("NUM_CUTOFF_TO_MOVE_INPUT", 100, "files", "jobbroker", "most files that may be missing then"),
    Setting("IO_CUTOFF_STRICT", False, False, False, "yes or no", "D29", "missing exactly the cutoff is too much"),
    _same("IO_AUTO_OFF", True, "yes or no", "D29",
          "the input check is off if nobody would pass; queues with it on tape come second"),
    _same("MAX_DISKIO_DEFAULT", None, "kB/s per core", "jobbroker",
          "diskIO limit of a queue that has none; unset: no limit"),
    Setting("MAX_MISSING_INPUT_FILES", None, None, 10, "files", "jobbroker",
            "a replica that lacks at most these is complete; unset: not checked"),
    Setting("MIN_INPUT_COMPLETENESS", None, None, 90, "%", "jobbroker",
            "a replica with at least this much is complete; unset: not checked"),
    # -- memory, disk, time, connectivity
    _same("RAM_COMPENSATION", 0.9, "factor", "documentation", "multiplies what a job is expected to need"),
    Setting("BASE_RAM_ALWAYS", True, False, False, "yes or no", "D7",
            "baseRamCount is added for every unit; else per core in production only"),
    _same("RAM_LIMITS_PER_CORE", False, "yes or no", "D8", "maxrss and minrss of a queue are per core, not per slot"),
    Setting("MERGE_RAM_FLOOR", 0, 0, 2000, "MB", "reference code", "least memory of merge jobs"),
    Setting("OUT_DISK_MIN", 512, 2500, 1500, "MB", "D9", "least output of a production job"),
    Setting("WORK_DISK_MARGIN", 0, 300, 300, "MB", "D9", "added to workDiskCount"),
    Setting("MAXWDIR_PER_CORE", False, False, False, "yes or no", "D10",
            "maxwdir is divided by the cores always, not only for single-core jobs"),
    _same("STORAGE_MIN_FREE_SIZE", 200, GB, "jobbroker", "least free space of a queue's storage"),
    _same("STORAGE_MIN_FREE_SIZE_OUTPUT", 200, GB, "anal_jobbroker", "the same for output in analysis"),
    Setting("SCOUT_MIN_TIME", 24, 24, 24, "hours", "documentation",
            "queues for scouts and merge jobs give at least so long"),
    Setting("SCOUT_TIME_BY_CAPACITY", False, True, True, "yes or no", "D11",
            "… on a core of 10 HS06, by the queue's capacity; else by its maxtime in seconds"),
    Setting("ANALYSIS_WALLTIME_BY_CPU", False, False, True, "yes or no", "D30",
            "analysis uses the production formula for time"),
    _same("RELEASES_ANY_SKIPS_CHECK", False, "yes or no", "D24",
          "releases ANY pass even with container tags or hardware asked for"),
    Setting("EMPTY_HARDWARE_IS_ANY", True, False, False, "yes or no", "D25",
            "an empty text in a list of hardware accepts everything"),
    _same("TAGS_NEED_ANY_CONTAINER", False, "yes or no", "D26", "a tag is accepted only where containers has any"),
    # -- weight and caps
    Setting("BOOTSTRAP_GATES", False, True, True, "yes or no", "D13",
            "workers and slots count for low priority, workers in pilot streaming only; slots / cores; starting adds"),
    _same("MAX_PRIO_TO_BOOTSTRAP", 150, "priority", "jobbroker", "the highest priority that bootstraps idle queues"),
    _same("BOOTSTRAP_WORKERS", 20, "workers", "documentation", "workers that count as running at most"),
    Setting("MANY_ASSIGNED_PLUS_ONE", True, True, True, "yes or no", "D14",
            "(assigned+1)/(activated+1), which is always a number"),
    Setting("NUCLEUS_FACTOR", False, True, True, "yes or no", "D15",
            "queues of the nucleus weigh 1, 4 or 100 times as much"),
    _same("NUCLEUS_FACTOR_IO", 4, "factor", "D15", "of tasks with ioIntensity above 500"),
    _same("NUCLEUS_FACTOR_HIGH", 100, "factor", "D15", "of priority 900 and scouts"),
    Setting("NQUEUELIMITSITE", 0, 20, 20, "jobs", "jobbroker, D19",
            "queued jobs that are always allowed, beside 2 × running", True),
    _same("MIN_WEIGHT", 0, "weight", "jobbroker",
          "weight below which a queue is left out (modern); by label, and share", True),
    Setting("WORK_SHORTAGE", None, None, None, "yes or no", "core", "only pledged cores are used (modern)"),
    _same("CANDIDATES_MOST", 10, "queues", "documentation", "the best so many are taken"),
    _same("PENDING_PRODUCTION", 60, "minutes", "documentation", "a task without candidates waits so long"),
    _same("PENDING_ANALYSIS", 20, "minutes", "documentation", "the same in analysis"),
    _same("SPLIT_BUNCH", 25, "jobs", "reference code", "jobs that a candidate gets at once"),
    _same("SPLIT_BUNCH_SCOUT", 2, "jobs", "reference code", "… of scouts"),
    # -- analysis
    _same("CAP_RUNNING_USER_JOBS", None, "jobs", "prio_mgr",
          "a user's running jobs; twice as many may be queued; unset: no cap"),
    _same("CAP_RUNNING_USER_CORES", None, "cores", "prio_mgr", "the same in cores"),
    _same("CAP_RUNNING_GROUP_JOBS", None, "jobs", "prio_mgr", "the same for a working group"),
    _same("CAP_RUNNING_GROUP_CORES", None, "cores", "prio_mgr", "the same for a working group, in cores"),
    _same("USER_USAGE_THRESHOLD_A", 1000, "slots", "analy_eval", "remaining slots of class A (modern)"),
    _same("USER_USAGE_THRESHOLD_B", 10_000, "slots", "analy_eval", "remaining slots of class B (modern)"),
    _same("IO_INTENSITY_CUTOFF_USER", None, "kB/s", "anal_jobbroker",
          "up to this, input need not be local; unset: never"),
    _same("LOCALITY_PRIORITY", 2000, "priority", "documentation", "from here input need not be local"),
    _same("DATA_CHECK_TIMEOUT_USER", None, "hours", "anal_jobbroker",
          "without candidates for so long, input need not be local (modern)"),
    Setting("LOCALITY_FALLBACK", True, False, False, "yes or no", "D20",
            "without candidates input need not be local, whatever the task is"),
    _same("TW_DONE_JOB_STAT", 6, "hours", "anal_jobbroker",
          "window in which jobs of the task that failed or were closed count"),
    _same("MIN_BAD_JOBS_TO_SKIP_PQ", 5, "jobs", "anal_jobbroker", "so many bad jobs never skip a queue"),
    Setting("SKIP_CLOSED", False, True, True, "yes or no", "D21", "any closed job of the task skips the queue"),
    Setting("CAP_RT_ANALYSIS", True, False, False, "yes or no", "D22",
            "queued jobs above 2 × max(20, running) skip the queue"),
    Setting("FAILURES_BEHIND_STABILIZER", False, False, True, "yes or no", "D23",
            "failures count only where the user's queue is long"),
    _same("OVERLOAD_MIN_QUEUE", 20, "jobs", "anal_jobbroker", "a shorter queue is not overloaded"),
    _same("OVERLOAD_RATIO_OFFSET", 1.2, "factor", "anal_jobbroker",
          "queued per running, of all queues, above which one is overloaded"),
    _same("BASE_QUEUE_LENGTH_PER_PQ", 100, "jobs", "anal_jobbroker", "a shorter queue limits no user"),
    _same("BASE_EXPECTED_WAIT_HOUR_ON_PQ", 8, "hours", "anal_jobbroker", "a shorter wait limits no user"),
    _same("BASE_DEFAULT_QUEUE_LENGTH_PER_PQ_USER", 5, "jobs", "anal_jobbroker", "queued jobs that any user may have"),
    _same("BASE_QUEUE_RATIO_ON_PQ", 0.05, "fraction", "anal_jobbroker", "… of the running ones"),
    _same("STATIC_MAX_QUEUE_RUNNING_RATIO", 2.0, "factor", "anal_jobbroker", "queue per running"),
    _same("MAX_EXPECTED_WAIT_HOUR", 12, "hours", "anal_jobbroker", "longest wait that a queue is filled for"),
    Setting("USERS_COUNT_TOTAL", False, True, True, "yes or no", "reference code",
            "the row of totals counts as a user"),
    # -- timeouts, rebrokerage, shares, scouts
    _same("HEARTBEAT_TIMEOUT", 2, "hours", "watcher", "silence after which a job is lost; by workflow", True),
    _same("TIMEOUT_defined", 4, "hours", "job_timeout", "of defined jobs"),
    _same("TIMEOUT_holding", 48, "hours", "job_timeout, D28", "of holding jobs below HIGH_PRIORITY"),
    Setting("HOLDING_HIGH_INCLUSIVE", True, False, False, "yes or no", "D28", "HIGH_PRIORITY itself holds 3 h only"),
    Setting("PAUSED_STOPS_TIMEOUTS", True, False, False, "yes or no", "D27",
            "paused and disableReassign stop every timeout"),
    _same("FAST_REBRO_THRESHOLD_NQNR_RATIO", 3, "factor", "rebroker",
          "queued per running, above which a queue is relieved"),
    _same("FAST_REBRO_THRESHOLD_NQUEUE_FRAC", 0.3, "fraction", "rebroker", "… and of the share's queued jobs"),
    _same("FAST_REBRO_THRESHOLD_NQUEUE", None, "jobs", "rebroker",
          "… and queued jobs, by share; unset: nothing is moved", True),
    Setting("FAST_REBRO_KEEPS_ONE", False, True, True, "yes or no", "D31", "one job fewer than the excess is closed"),
    _same("ANALY_TIMEOUT", 12, "hours", "rebroker", "of analysis jobs that wait; by group", True),
    _same("PENDING_TIMEOUT", 168, "hours", "watchdog", "a task without candidates is given up; by label", True),
    _same("SLOPPY_DISPATCH_RATIO", 10, "%", "jobdispatch", "jobs that are given out by age alone"),
    _same("THROTTLE_THRESHOLD", 2.0, "factor", "throttle", "queued per running above which no more jobs are made"),
    _same("NQUEUELIMIT", None, "jobs", "throttle", "queued jobs of a share, and type, that are always allowed", True),
    _same("NRUNNINGCAP", None, "jobs", "throttle", "most running jobs of a share, and type", True),
    _same("NQUEUECAP", None, "jobs", "throttle", "most queued jobs of a share, and type", True),
    _same("SCOUT_RAMCOUNT_RANK", 75, "percentile", "dbproxy", "of the scouts' memory"),
    _same("SCOUT_RAMCOUNT_MARGIN", 10, "%", "dbproxy", "added to it"),
    _same("SCOUT_RAMCOUNT_MIN", 0, "MB", "dbproxy", "least that is learned"),
    _same("SCOUT_CPUTIME_RANK", 95, "percentile", "dbproxy", "of the scouts' CPU time"),
    _same("SCOUT_DISK_IO_CAP", None, "kB/s", "dbproxy", "most diskIO that is learned"),
    _same("RAM_THR_EXAUSTED", 4, "GB per core", "dbproxy", "memory that a task may not cross"),
    _same("SCOUT_WRONG_CPUTIME_THRESHOLD", 2, "factor", "dbproxy", "CPU time over what was said"),
)  # fmt: skip
SETTINGS: dict[str, Setting] = {row.name: row for row in _ROWS}
"""Name → setting."""


def check_value(name: str, value: Any) -> Value:
    """A value for a setting; UsageError if there is no such setting, or it cannot have that value."""
    setting = _setting(name)
    if setting is None:
        near = get_close_matches(name, SETTINGS, 1)
        raise UsageError(f"there is no threshold '{name}'" + (f"; did you mean {near[0]}?" if near else ""))
    if value is None:
        return None
    kinds = {type(one) for one in (setting.doc, setting.code, setting.modern) if one is not None}
    if bool in kinds or setting.unit == "yes or no":
        if not isinstance(value, bool):
            raise UsageError(f"{name} is {value!r}: give true or false")
        return value
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e300:
        raise UsageError(f"{name} is {value!r}: give a number ({setting.unit})")
    if value < 0:
        raise UsageError(f"{name} is {value!r}: give a number that is not negative ({setting.unit})")
    if name in _DIVISORS and value == 0:
        raise UsageError(f"{name} is 0: give a number above it ({setting.unit})")
    return value


_DIVISORS = (
    "NQUEUED_SAT_CAP",
    "NQUEUED_WEIGHT_CAP",
    "CANDIDATES_MOST",
    "USER_USAGE_THRESHOLD_A",
    "USER_USAGE_THRESHOLD_B",
)


def _setting(name: str) -> Setting | None:
    """The setting of a name, or of the part before its ending."""
    found = SETTINGS.get(name)
    if found is not None:
        return found
    while "_" in name:
        name = name.rpartition("_")[0]
        found = SETTINGS.get(name)
        if found is not None:
            return found if found.suffix else None
    return None


class Thresholds(Mapping[str, Value]):
    """The values of a profile, with some of them changed. Never changed in place: `with_values` makes others."""

    __slots__ = ("_values", "changed", "profile")

    def __init__(self, profile: Profile = "doc", changed: Mapping[str, Any] | None = None) -> None:
        if profile not in PROFILES:
            raise UsageError(f"there is no profile '{profile}': {', '.join(PROFILES)}")
        self.profile: Profile = profile
        # None stands for "not said": the profile's own value, as a row that is missing in the reference
        self.changed: dict[str, Value] = {
            name: check_value(name, value) for name, value in (changed or {}).items() if value is not None
        }
        self._values: dict[str, Value] = {name: one.of(profile) for name, one in SETTINGS.items()} | self.changed

    def with_values(self, changed: Mapping[str, Any]) -> "Thresholds":
        """These, with others changed; a value of None takes a change back."""
        merged: dict[str, Any] = {**self.changed, **changed}
        for name in changed:
            check_value(name, changed[name])
        return Thresholds(self.profile, merged)

    def __getitem__(self, name: str) -> Value:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def number(self, name: str) -> float:
        """A threshold that always has a value."""
        value = self._values[name]
        assert value is not None, f"{name} has no value"
        return value

    def limit(self, name: str) -> float:
        """A threshold, infinite if it is unset."""
        value = self._values[name]
        return float("inf") if value is None else value

    def on(self, name: str) -> bool:
        """Whether a choice is yes."""
        return bool(self._values[name])

    def of(self, name: str, *endings: str | None) -> Value:
        """The value for the longest of these endings that has one: of("MIN_WEIGHT", "managed", "MC")."""
        parts = [ending for ending in endings if ending]
        for length in range(len(parts), 0, -1):
            value = self._values.get("_".join([name, *parts[:length]]))
            if value is not None:
                return value
        return self._values[name]
