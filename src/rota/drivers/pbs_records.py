"""What PBS and TORQUE print alike: job ids, tables, full records in text, sizes, times."""

import calendar
import re
from collections.abc import Mapping
from typing import NamedTuple

from rota.drivers.api import Outcome

__all__ = [
    "NOT_THE_JOBS", "Record", "Row", "Status", "clock", "combine", "date", "is_cut", "job_id", "megabytes",
    "past_limit", "read_status", "read_table", "read_text", "seconds", "size", "usage",
]  # fmt: skip

ID = re.compile(r"(\d{1,20}(?:\[\d{0,10}\])?)(?:[.@*]\S*)?")
"""The number, and the element's in brackets. The server's name behind it is cut in tables, so it is left off: the
clients take a bare number for one of their own server."""
STATE = re.compile(r"[A-Z0-9?]")
TEXT_ID = re.compile(r"^\s*Job Id:\s*(\S+?)(\||$)", re.MULTILINE)
UNITS = {"b": 1, "w": 8, "kb": 1 << 10, "kw": 8 << 10, "mb": 1 << 20, "mw": 8 << 20, "gb": 1 << 30, "gw": 8 << 30}
UNITS |= {"tb": 1 << 40, "tw": 8 << 40, "pb": 1 << 50, "pw": 8 << 50}
MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
DATE = re.compile(r"\w{3} (\w{3}) +(\d{1,2}) (\d{1,2}):(\d\d):(\d\d)(?:\.\d+)? (\d{4})")

NOT_THE_JOBS: Mapping[int, tuple[str | None, str]] = {
    -1: ("launch", "could not be started, before its files were there"),
    -2: ("launch", "could not be started, after its files were there"),
    -3: ("launch", "could not be started, to be tried again"),
    -4: ("node-fail", "the node's daemon was restarted"),
    -6: ("node-fail", "the node's daemon was restarted, the job can be run again"),
    -7: ("launch", "could not be restarted from its checkpoint"),
}
"""Exit statuses below 0, which the batch system gives and not the job, with their meaning: those that both have."""

Record = Mapping[str, str]
"""A job's attributes; those inside a list as `resources_used.mem`. Its id is `Job_Id`."""


class Row(NamedTuple):
    """A line of a table."""

    id: str
    name: str
    state: str
    comment: str | None = None
    """What the scheduler says of it."""


class Status(NamedTuple):
    """What an exit status of the batch system means."""

    outcome: Outcome
    words: str


def job_id(text: str) -> str | None:
    """The short form of a job id: `17`, `6[]`, `6[2]`."""
    found = ID.fullmatch(text.strip())
    return found[1] if found else None


def is_cut(text: str) -> bool:
    """Whether the last line was not written to its end."""
    return bool(text) and not text.endswith("\n")


def read_table(text: str) -> tuple[list[Row], list[str]]:
    """The rows of a qstat table, in either form (default, or -a -u), and the lines that are none.

    In both forms the state is the last word but one. A line that begins with a blank is the comment on the row above.
    """
    rows: list[Row] = []
    odd: list[str] = []
    lines = text.splitlines()
    if is_cut(text):
        odd.append(lines.pop())
    for line in lines:
        words = line.split()
        if words and rows and line[0] == " ":
            rows[-1] = rows[-1]._replace(comment=" ".join(words))
        if not words or line[0] in " \t-" or words[0] == "Job" or (len(words) == 1 and line.rstrip().endswith(":")):
            continue
        short = job_id(words[0])
        if short is None or len(words) < 6 or not STATE.fullmatch(words[-2]):
            odd.append(line)
            continue
        rows.append(Row(short, words[3] if len(words) >= 11 else words[1], words[-2]))
    return rows, odd


def read_text(text: str) -> tuple[list[dict[str, str]], bool]:
    """The records of `qstat -f`, with or without broken lines, or with `|` between (-F dsv), and whether all are whole.

    An empty line ends each; a last one without it was cut off, and is left out.
    """
    records: list[dict[str, str]] = []
    heads = list(TEXT_ID.finditer(text))
    for number, head in enumerate(heads):
        end = heads[number + 1].start() if number + 1 < len(heads) else len(text)
        body = text[head.end() : end]
        record = {"Job_Id": head[1]}
        if head[2] == "|":
            pairs = re.split(r"(?<!\\)\|", body.strip("\n"))
        else:
            pairs = re.sub(r"\n\t", "", body).split("\n")
        for pair in pairs:
            key, equals, value = pair.strip().partition("=")
            if equals and key.strip():
                record.setdefault(key.strip(), value.strip())
        records.append(record)
    whole = text.endswith("\n") if heads and heads[-1][2] == "|" else text.endswith("\n\n")
    return (records if whole else records[:-1]), whole


def size(text: str | None) -> int | None:
    """Bytes of `5604kb`."""
    found = re.fullmatch(r"(\d{1,18})([kmgtp]?[bw])?", (text or "").strip().lower())
    return int(found[1]) * UNITS[found[2] or "b"] if found else None


def seconds(text: str | None) -> int | None:
    """Seconds of `01:02:03`, or of a number."""
    found = re.fullmatch(r"(?:(?:(\d{1,9}):)?(\d{1,9}):)?(\d{1,12})(?:\.\d*)?", (text or "").strip())
    return int(found[1] or 0) * 3600 + int(found[2] or 0) * 60 + int(found[3]) if found else None


def date(text: str | None) -> float | None:
    """The time that `Sun Nov 15 20:56:11 2026` is, in UTC; fractions are left off."""
    found = DATE.fullmatch((text or "").strip())
    if found is None or found[1] not in MONTHS or found[6] <= "1970":
        return None
    fields = (int(found[6]), MONTHS.index(found[1]) + 1, int(found[2]), int(found[3]), int(found[4]), int(found[5]))
    try:
        return float(calendar.timegm(fields))
    except (ValueError, OverflowError):
        return None


def hosts(record: Record) -> str | None:
    """The hosts of `pbs1/0*4+pbs2/1`, each once."""
    names = dict.fromkeys(re.split(r"[/:]", part, maxsplit=1)[0] for part in record.get("exec_host", "").split("+"))
    return ",".join(name for name in names if name) or None


def usage(record: Record, started: float | None, ended: float | None) -> Outcome:
    """Host, times, CPU seconds and memory of a record."""
    cpu = seconds(record.get("resources_used.cput"))
    return Outcome(
        host=hosts(record),
        started=started,
        ended=ended,
        cpu_s=float(cpu) if cpu is not None else None,
        peak_memory=size(record.get("resources_used.mem")),
    )


def read_status(text: str | None, negative: Mapping[int, tuple[str | None, str]]) -> Status | None:
    """An exit status: below 0 the system's own, from 256 on a signal, else the script's. None: there is none."""
    found = re.fullmatch(r"-?\d{1,9}", (text or "").strip())
    if found is None:
        return None
    value = int(found[0])
    if value < 0:
        why, words = negative.get(value, (None, "an error of the batch system that has no name"))
        return Status(Outcome(why=why), f"{words} (exit status {value})")
    if value >= 256:
        number = value - 256
        return Status(Outcome(signal=number or None, exit_code=None if number else value), f"killed by signal {number}")
    perhaps = f" (perhaps signal {value - 128})" if 128 < value <= 192 else ""
    return Status(Outcome(exit_code=value), f"exit status {value}{perhaps}")


def past_limit(record: Record) -> bool:
    """Whether a job used all the time that it had: old servers show a kill at the limit only as a signal."""
    used, limit = seconds(record.get("resources_used.walltime")), seconds(record.get("Resource_List.walltime"))
    return used is not None and limit is not None and 0 < limit <= used


def combine(status: Outcome, used: Outcome, why: str | None) -> Outcome:
    """How it ended, and what it used."""
    return Outcome(
        status.exit_code,
        status.signal,
        why,
        used.host,
        used.started,
        used.ended,
        used.cpu_s,
        used.peak_memory,
    )


def clock(time_s: int) -> str:
    """A time as PBS writes it."""
    return f"{time_s // 3600:02}:{time_s // 60 % 60:02}:{time_s % 60:02}"


def megabytes(size: int) -> int:
    """Whole megabytes, rounded up."""
    return max(1, -(-size // (1 << 20)))
