"""The tables of bjobs: of LSF in columns that we choose, of OpenLava its wide one."""

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache

from rota.drivers.api import Outcome
from rota.drivers.bhist import ENDS, TERM, outcome_of, when
from rota.drivers.dialect import Answer, Class, Kind, Seen
from rota.drivers.native import tag_of, words, worth

__all__ = ["JOB", "LOOK", "NOTHING", "read_row", "read_table", "read_wide", "whole_rows"]

NOTHING = ("no job found", "no unfinished job found", "no matching job found")
LOOK: tuple[tuple[Class, tuple[str, ...]], ...] = (
    ("not-found", ("is not found",)),
    ("fatal", ("unable to open file lsf.conf", "illegal option", "invalid option", "illegal job id", "unknown user")),
    ("fatal", ("lsb.events: no such file", "lsb.events: permission denied")),  # no history for this host or user
)
JOB = re.compile(r"(\d{1,18})(?:\[(\d{1,9})\])?", re.ASCII)
INDEX = re.compile(r"\[(\d+)\]\Z")
SINCE = re.compile(r"\s+[A-Z][a-z]{2}\s+\d{1,2} \d\d:\d\d(?::\d\d)?(?: \d{4})?\s*\Z")
NUMBER = re.compile(r"(\d{1,12}(?:\.\d{1,6})?)\s*(\w*)")
CLOCK = re.compile(r"(\d{1,9}):(\d\d):(\d\d)")
UNITS = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40, "p": 1 << 50}


def read_table(answer: Answer) -> tuple[str, list[str], Class, str]:
    """The heading, the lines below it, and what they are worth."""
    lines = answer.stdout.split("\n")
    cut = lines.pop()
    top = next((number for number, line in enumerate(lines[:50]) if line.startswith("JOBID")), None)
    if top is None:
        if answer.code is not None and worth(answer.stderr + answer.stdout, (("ok", NOTHING),)):
            return "", [], "ok", ""
        return "", [], worth(answer.stderr, LOOK) or "transient", words(answer)
    body = [line for line in lines[top + 1 :] if line.strip()]
    if answer.code != 0:
        return lines[top], body, "partial", words(answer)
    if cut:
        return lines[top], body, "partial", f"the answer breaks off in the middle of a line: {cut[:80]!r}"
    return lines[top], body, "ok", ""


def whole_rows(lines: Sequence[str], mark: str, cells: int) -> list[str]:
    """Rows again of the lines that they were broken into: reasons for waiting can be several lines long."""
    out: list[str] = []
    for line in lines:
        begins = JOB.match(line)
        if out and not (begins and line.startswith(mark, begins.end())) and out[-1].count(mark) < cells - 1:
            out[-1] += f" {line.strip()}"
        else:
            out.append(line)
    return out


def read_wide(line: str) -> dict[str, str]:
    """A line of the wide table. Only the name can have blanks in it, and the time of submission ends it."""
    cells = line.split(None, 6)
    if len(cells) < 7 or not SINCE.search(" " + cells[6]):
        return {}
    name = SINCE.sub("", " " + cells[6]).strip()
    if not name:  # a job that waits has no host, and some show that by nothing at all
        return {"JOBID": cells[0], "STAT": cells[2], "JOB_NAME": cells[5]}
    return {"JOBID": cells[0], "STAT": cells[2], "EXEC_HOST": cells[5], "JOB_NAME": name}


def read_row(row: Mapping[str, str], table: Mapping[str, Kind]) -> Seen | None:
    """The job in one line of the listing; None if the line is of none."""
    state, name = row.get("STAT", "").strip(), row.get("JOB_NAME", "").rstrip()
    number = JOB.fullmatch(row.get("JOBID", "").strip())
    if number is None or not state:
        return None
    job, index = number[1], number[2] or row.get("JOBINDEX", "").strip()  # `7[2]` with LSB_BJOBS_DISPLAY_ENH
    if not index and (found := INDEX.search(name)):
        index = found[1]
    if index not in ("", "0", "-"):
        job = f"{job}[{index}]"
    kind = table.get(state, "unsure")
    reason = None if kind == "running" else _said(row.get("EXIT_REASON")) or _said(row.get("PEND_REASON"))
    term = TERM.search(reason) if reason else None
    if kind == "failed" and term:
        kind = table.get(term[0], kind)
    outcome = None
    hosts = row.get("FIRST_HOST") or row.get("EXEC_HOST", "")
    if kind == "running":
        outcome = _running(hosts, row.get("START_TIME", ""))
    elif kind in ENDS:
        code = row.get("EXIT_CODE", "").strip()
        status = int(code) if code.isascii() and code.isdigit() and len(code) < 6 else 0
        peak = _number(row.get("MAX_MEM", ""), in_bytes=True)
        used = Outcome(
            host=_host(hosts),
            started=when(row.get("START_TIME", "")),
            ended=when(row.get("FINISH_TIME", "")),
            cpu_s=_number(row.get("CPU_USED", "")),
            peak_memory=None if peak is None else int(peak),
        )
        exited = None if state in ("EXIT", "ERROR") and not status else status
        outcome = outcome_of(used, exited, term[1] if term else None)
    return Seen(job, state, kind, tag_of(name), reason, outcome)


def _said(cell: str | None) -> str | None:
    """The text of a cell; an empty cell has a dash."""
    text = (cell or "").strip()
    return None if text in ("", "-") else text


@lru_cache(maxsize=4096)
def _running(hosts: str, started: str) -> Outcome:
    return Outcome(host=_host(hosts), started=when(started))


def _host(hosts: str) -> str | None:
    """The first of `4*n1:2*n2`."""
    return _said(hosts.strip().partition(":")[0].rpartition("*")[2])


@lru_cache(maxsize=4096)
def _number(text: str, in_bytes: bool = False) -> float | None:
    """The number in `0.1 second(s)` or `00:02:03` or, with its unit, in `5 Mbytes`."""
    clock = CLOCK.match(text)
    if clock and not in_bytes:
        return float((int(clock[1]) * 60 + int(clock[2])) * 60 + int(clock[3]))
    found = NUMBER.match(text)
    return float(found[1]) * (UNITS.get(found[2][:1].lower(), 1) if in_bytes else 1) if found else None
