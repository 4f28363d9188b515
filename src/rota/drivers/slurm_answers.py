"""What the answers of Slurm's programs mean: states, errors, lines of squeue, records of sacct."""

import calendar
import re
from collections.abc import Mapping
from functools import lru_cache
from itertools import accumulate, pairwise, starmap

from msgspec.structs import replace

from rota.drivers.api import Outcome
from rota.drivers.dialect import Answer, Class, Kind, Listing, Options, Seen, Submitted
from rota.drivers.native import SPAN_MOST, ranges, tag_of, words, worth

__all__ = [
    "COLUMNS",
    "FIELDS",
    "GONE",
    "HOPELESS",
    "OTHER",
    "SUBMIT",
    "TABLE",
    "find_tag",
    "read_sacct",
    "read_squeue",
    "seconds",
]

TABLE: tuple[tuple[str, str, Kind, Kind | None, str | None], ...] = (
    # long form, compact form, what it means, what `strict` would rather have, why it ended
    ("BOOT_FAIL", "BF", "aborted", None, "launch"),
    ("CANCELLED", "CA", "aborted", None, "cancelled"),
    ("COMPLETED", "CD", "completed", None, None),
    ("CONFIGURING", "CF", "pending", None, None),
    ("COMPLETING", "CG", "running", None, None),
    ("DEADLINE", "DL", "aborted", None, "deadline"),
    ("EXPEDITING", "", "pending", None, None),
    ("FAILED", "F", "failed", None, None),
    ("LAUNCH_FAILED", "", "unsure", None, None),
    ("NODE_FAIL", "NF", "aborted", None, "node-fail"),
    ("OUT_OF_MEMORY", "OOM", "aborted", "failed", "oom"),
    ("PENDING", "PD", "pending", None, None),
    ("POWER_UP_NODE", "", "pending", None, None),
    ("PREEMPTED", "PR", "aborted", None, "preempt"),
    ("RECONFIG_FAIL", "", "unsure", None, None),
    ("REQUEUED", "RQ", "unsure", None, None),
    ("REQUEUE_FED", "RF", "unsure", None, None),
    ("REQUEUE_HOLD", "RH", "unsure", None, None),
    ("RESIZING", "RS", "unsure", "running", None),
    ("RESV_DEL_HOLD", "RD", "unsure", "pending", None),
    ("REVOKED", "RV", "unsure", None, None),
    ("RUNNING", "R", "running", None, None),
    ("SIGNALING", "SI", "unsure", "running", None),
    ("SPECIAL_EXIT", "SE", "failed", None, None),
    ("STAGE_OUT", "SO", "running", None, None),
    ("STOPPED", "ST", "suspended", "running", None),
    ("SUSPENDED", "S", "suspended", "running", None),
    ("TIMEOUT", "TO", "aborted", "failed", "time"),
    ("UPDATE_DB", "", "unsure", None, None),
    ("?", "", "unsure", None, None),
)
LONG = {short: name for name, short, *_ in TABLE if short}
OTHER = {**LONG, **{name: short for short, name in LONG.items()}}
WHY = {name: why for name, _, _, _, why in TABLE if why}
ENDS = ("completed", "failed", "aborted", "exited")
REQUEUABLE = ("NODE_FAIL", "PREEMPTED", "BOOT_FAIL")
"""Where requeueing is allowed these may be followed by PENDING, as long as the job is in the queue."""
OTHERS_MOST = 1_000
"""Elements of an array that is not ours: nobody asks for those of a larger one."""
REQUEUE_HELD = ("requeued held", "requeued in held state")
"""Reasons of a PENDING job that ran, and that nothing but an administrator will start: as good as REQUEUE_HOLD."""
HELD = ("JobHeldUser", "JobHeldAdmin", "JobHoldMaxRequeue")
"""Reasons of a PENDING job that starts when somebody releases it."""
HOPELESS = (
    "AccountNotAllowed",
    "AssocMaxCpuPerJobLimit",
    "AssocMaxNodePerJobLimit",
    "AssocMaxWallDurationPerJobLimit",
    "BadConstraints",
    "InvalidAccount",
    "InvalidQOS",
    "PartitionTimeLimit",
    "QOSMaxCpuPerJobLimit",
    "QOSMaxNodePerJobLimit",
    "QOSMaxWallDurationPerJobLimit",
    "QOSNotAllowed",
)
"""Reasons of a PENDING job that asks for what it will not be given, however long it waits."""

AMBIGUOUS = (
    "socket timed out",
    "zero bytes were transmitted",
    "message send/receive failure",
    "unexpected message received",
    "connection reset",
    "broken pipe",
    "shutdown failure",
    "send failure",
    "receive failure",
    "insane message length",
    "i/o error",
    "unspecified error",
    "header lengths are longer",
)
TRANSIENT = (
    "(connect failure)",
    "communication connection failure",
    "connection refused",
    "connection timed out",
    "standby mode",
    "temporarily unable to accept job",
    "unable to create job record",
    "resource temporarily unavailable",
    "submissions disabled",
    "violates accounting/qos policy",
    "protocol authentication error",
    "invalid authentication credential",
    "name or service not known",
    "no route to host",
    "command not found",
    "could not establish a configuration source",  # the controller is down, where it also gives the configuration
    "temporary failure in name resolution",
    "munge encode failed",
    "required partition not available",
    "presently disabled",
    "incompatible versions of client and server",
)
NEVER = ("perjob", "pernode", "notsatisfied", "qosmin")
"""In the names of limits that a submission itself exceeds (`QOSMaxWallDurationPerJobLimit`): waiting does not help."""
SUBMIT: tuple[tuple[Class, tuple[str, ...]], ...] = (
    ("ambiguous", (*AMBIGUOUS, "unable to contact slurm controller (re", "unable to contact slurm controller (se")),
    ("fatal", NEVER),
    ("transient", TRANSIENT),
    ("ambiguous", ("unable to contact slurm controller",)),
    ("fatal", ("sbatch:", "batch job submission failed")),
)
LOOK: tuple[tuple[Class, tuple[str, ...]], ...] = (
    ("not-found", ("invalid job id specified",)),
    ("transient", (*AMBIGUOUS, *TRANSIENT, "unable to contact", "problem talking to the database")),
    (
        "fatal",
        (
            "accounting storage is disabled",
            "invalid user",
            "invalid field",
            "invalid job id",
            "unrecognized option",
            "invalid option",
            "access/permission denied",
        ),
    ),
)
GONE = ("invalid job id specified", "already completing or completed", "already done")

COLUMNS = (
    ("JobArrayID", 24),
    ("State", 16),
    ("exit_code", 10),
    ("RestartCnt", 8),
    ("StartTime", 20),
    ("EndTime", 20),
    ("BatchHost", 32),
    ("Reason", 64),
    ("Name", 80),
)
EDGES = tuple(accumulate((width for _, width in COLUMNS), initial=0))
CELLS = tuple(starmap(slice, pairwise(EDGES)))
JOB, STATE, STATUS, RESTARTS, START, END, HOST, REASON, NAME = CELLS
FIELDS = "JobID,State,ExitCode,Start,End,NodeList,TotalCPU,MaxRSS,JobName"
ID = re.compile(r"(\d+)(?:_(?:(\d+)|\[([\d,:-]+(?:\.\.\.)?)(?:%\d+)?\])|\+\d+)?")
TIME = re.compile(r"(\d{4})-(\d\d)-(\d\d)T(\d\d):(\d\d):(\d\d)")
SPAN = re.compile(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+(?:\.\d+)?)")
SIZE = re.compile(r"(\d+(?:\.\d+)?)([KMGTP]?)")


def read_squeue(answer: Answer, table: Mapping[str, Kind], options: Options) -> Listing:
    """The jobs of the listing, one line per job or element."""
    lines, result, detail = _body(answer, "JOBID ")
    seen: list[Seen] = []
    foreign = False  # the line before has the name of a job that is not ours, which may go on in this one
    for line in lines:
        found = _row(line, table, options)
        if found:
            seen.extend(found)
            foreign = found[0].tag is None
        elif not (foreign and not line[:1].isdigit()):
            result, detail = "partial", detail or f"a line that is none: {line[:80]!r}"
    return Listing(tuple(seen), result, detail)


def read_sacct(answer: Answer, table: Mapping[str, Kind]) -> Listing:
    """The jobs of the accounting, with the memory of their steps."""
    lines, result, detail = _body(answer, "JobID|")
    columns = _columns(answer.stdout)
    jobs: dict[str, dict[str, str]] = {}
    peaks: dict[str, int] = {}
    for line in lines:
        row = dict(zip(columns, line.split("|", len(columns) - 1), strict=False))
        job, step = _split(row.get("JobID", ""))
        if len(row) < len(columns) or not ID.fullmatch(job):
            result, detail = "partial", detail or f"a line that is none: {line[:80]!r}"
        elif step:
            peaks[job] = max(peaks.get(job, 0), _size(row.get("MaxRSS", "")))
        else:
            jobs[job] = row
    seen = [one for job, row in jobs.items() for one in _record(job, row, peaks.get(job), table)]
    return Listing(tuple(seen), result, detail)


def find_tag(tag: str, answer: Answer) -> Submitted:
    """The oldest job with a tag, in an answer of squeue or sacct."""
    past = answer.stdout.startswith("JobID|") or "sacct" in answer.stderr or "ccounting" in answer.stderr
    lines, result, detail = _body(answer, "JobID|" if past else "JOBID ")
    columns = _columns(answer.stdout)
    found = set()
    for line in lines:
        row = dict(zip(columns, line.split("|", len(columns) - 1), strict=False))
        name = row.get("JobName", "") if past else line[24:104]
        refused = line[104:].rstrip() == "BadConstraints"
        if past:
            refused = row.get("State") == "FAILED" and row.get("NodeList") == "None assigned"
        if tag_of(name.rstrip()) == tag and not refused and (match := ID.match(line)):
            found.add(int(match[1]))
    if found:
        first, *others = map(str, sorted(found))
        return Submitted(first, "ok", "", tuple(others))
    if result == "ok" or past:
        return Submitted(None, "not-found", f"no job of that name ends in {tag}")
    return Submitted(None, "transient" if result in ("partial", "not-found") else result, detail)


def _body(answer: Answer, heading: str) -> tuple[list[str], Class, str]:
    """The lines below the heading, and what they are worth: nothing, if there is no heading."""
    lines = answer.stdout.split("\n")
    cut = lines.pop()
    top = next((number for number, line in enumerate(lines[:50]) if line.startswith(heading)), None)
    if top is None:
        failed = (worth(answer.stderr, LOOK) or "transient") if answer.code is not None else "transient"
        return [], failed, words(answer)
    if answer.code != 0 or worth(answer.stderr, LOOK):
        return lines[top + 1 :], "partial", words(answer)
    if cut:
        return lines[top + 1 :], "partial", f"the answer breaks off in the middle of a line: {cut[:80]!r}"
    return lines[top + 1 :], "ok", ""


def _row(line: str, table: Mapping[str, Kind], options: Options) -> list[Seen]:
    """The jobs in one line of the listing; empty if the line is of none."""
    native_id = line[JOB].rstrip()
    state = line[STATE].rstrip()
    if not EDGES[-2] < len(line) <= EDGES[-1] or not state:
        return []
    reason: str | None = line[REASON].rstrip()
    kind = table.get(state) or table.get(_long(state), "unsure")
    if kind == "pending" and reason and any(phrase in reason for phrase in REQUEUE_HELD):
        kind = table["REQUEUE_HOLD"]
    elif kind == "pending" and reason in HELD:
        kind = "held"
    elif options.requeue and state in REQUEUABLE:
        kind = "unsure"
    outcome = None
    if kind in ENDS:
        outcome = _outcome(state, line[STATUS].strip(), line[START].strip(), line[END].strip(), line[HOST])
    elif kind == "running":
        outcome = _started(line[START], line[HOST])
    if reason == "None":
        reason = None
    restarts = line[RESTARTS].strip()
    again = int(restarts) if restarts.isascii() and restarts.isdigit() else 0
    tag, held = tag_of(line[NAME].rstrip()), state in ("SPECIAL_EXIT", "SE")
    plain = native_id.isascii() and native_id.replace("_", "", 1).isdigit()
    ids = [native_id] if plain else _elements(native_id, SPAN_MOST if tag is not None else OTHERS_MOST)
    if not ids and tag is None and ID.fullmatch(native_id) is not None:
        ids = [native_id]
    return [Seen(one, state, kind, tag, reason, outcome, again, held) for one in ids]


def _record(job: str, row: Mapping[str, str], peak: int | None, table: Mapping[str, Kind]) -> list[Seen]:
    """The jobs in one record of the accounting: elements that were cancelled together have one."""
    state = row.get("State", "")
    base = _long(state)
    kind = table.get(base, "unsure")
    outcome = None
    if kind in ENDS:
        host = re.sub(r"\[(\d+).*", r"\1", row.get("NodeList", "").partition(",")[0])
        outcome = _outcome(base, row.get("ExitCode", ""), row.get("Start", ""), row.get("End", ""), host)
        outcome = replace(outcome, cpu_s=seconds(row.get("TotalCPU", "")), peak_memory=peak or None)
    elif kind in ("pending", "running", "suspended"):
        kind = "unsure"
    tag, reason, held = tag_of(row.get("JobName", "")), f"sacct says {state}", base == "SPECIAL_EXIT"
    return [Seen(one, state, kind, tag, reason, outcome, held=held) for one in _elements(job)]


@lru_cache(maxsize=16384)
def _outcome(state: str, status: str, started: str, ended: str, host: str) -> Outcome:
    """How a job ended. An exit code of 0 is believed of none but COMPLETED."""
    code, number = _status(status)
    base = _long(state)
    node = _host(host)
    why = WHY.get(base) or ("launch" if number == LAUNCH else None)
    return Outcome(
        exit_code=code if not number and (code or base == "COMPLETED") else None,
        signal=number if number and number <= 64 and number != LAUNCH else None,
        why=why,
        host=node,
        started=_when(started) if node else None,
        ended=_when(ended),
    )


LAUNCH = 53
"""Not a signal: what Slurm puts there if it could not open the output file or enter the directory (125: memory)."""


@lru_cache(maxsize=4096)
def _started(started: str, host: str) -> Outcome:
    return Outcome(host=_host(host), started=_when(started.strip()))


def _host(text: str) -> str | None:
    """A host, unless it is none yet or its name was cut."""
    host = text.strip()
    return None if not host or len(host) >= 32 or host in ("n/a", "None assigned", "(null)") else host


def _status(text: str) -> tuple[int | None, int]:
    """Exit code and signal, from `code:signal` (sacct) or from the number that wait() gave (squeue).

    sacct takes 128 off codes above that: its 9:0 may have been 9 or 137.
    """
    first, colon, second = text.partition(":")
    if not first.isascii() or not first.isdigit() or len(first) > 9:
        return None, 0
    if not colon:
        return int(first) >> 8 & 255, int(first) & 127
    return int(first), int(second) if second.isascii() and second.isdigit() and len(second) < 9 else 0


@lru_cache(maxsize=1024)
def _long(state: str) -> str:
    """The long form of `CA`, `CANCELLED by 1000`, `CANCELLED+` and `CANCELLE+`."""
    word = (state.split() or [""])[0]
    if word.endswith("+"):
        whole = [row[0] for row in TABLE if row[0].startswith(word[:-1])]
        return whole[0] if len(whole) == 1 and len(word) > 3 else word[:-1]
    return LONG.get(word, word)


def _split(job: str) -> tuple[str, str]:
    """The job and the step of `7_3.batch`; elements that wait have no steps."""
    if job.endswith("]"):
        return job, ""
    job, _, step = job.partition(".")
    return job, step


def _elements(job: str, most: int = SPAN_MOST) -> list[str]:
    """`7`, `7_3`, and `7_[3-4,6%2]` as one id for each; none for what is no id.

    Parts of a heterogeneous job are `7+0` and `7+1`. Long lists end in `...`: what is behind it is known to nobody.
    """
    found = ID.fullmatch(job)
    if found is None:
        return []
    if found[3] is None:
        return [job]
    numbers = found[3]
    if numbers.endswith("..."):
        numbers = numbers[:-3].rpartition(",")[0]
    return [f"{found[1]}_{number}" for number in ranges(numbers, most) or ()]


@lru_cache(maxsize=4096)
def _when(text: str) -> float | None:
    found = TIME.fullmatch(text)
    if found is None:
        return None
    year, month, day, hour, minute, second = map(int, found.groups())
    if not (year >= 1970 and 1 <= month <= 12 and 1 <= day <= 31 and hour < 24 and minute < 60 and second < 62):
        return None
    return float(calendar.timegm((year, month, day, hour, minute, second)))


def seconds(text: str) -> float | None:
    """Seconds of `1-02:03:04`, `10:00` or `00:00.133`; None for `infinite`."""
    found = SPAN.fullmatch(text)
    if found is None or len(text) > 32:
        return None
    days, hours, minutes, rest = (float(part or 0) for part in found.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + rest


def _size(text: str) -> int:
    """Bytes of `4924K`; 0 if there is nothing."""
    found = SIZE.fullmatch(text)
    return int(float(found[1][:15]) * 1024.0 ** " KMGTP".index(found[2] or " ")) if found else 0


def _columns(stdout: str) -> list[str]:
    """The names of the columns of sacct's answer."""
    return next((line.split("|") for line in stdout.split("\n")[:50] if line.startswith("JobID|")), ["JobID"])
