"""Reads `bhist -l`: the events of LSF jobs, one after the other, in lines that are broken anywhere."""

import calendar
import re
from collections.abc import Mapping
from functools import lru_cache

from msgspec.structs import replace

from rota.drivers.api import Outcome
from rota.drivers.dialect import Kind, Seen
from rota.drivers.native import tag_of

__all__ = ["CANCELLED", "ENDS", "TERM", "WHY", "events", "outcome_of", "when"]

CANCELLED = ("OWNER", "ADMIN", "USER", "FORCE_OWNER", "FORCE_ADMIN", "BUCKET_KILL", "ORPHAN_SYSTEM")
WHY = {
    **dict.fromkeys(CANCELLED, "cancelled"),
    **dict.fromkeys(("RUNLIMIT", "CPULIMIT"), "time"),
    **dict.fromkeys(("MEMLIMIT", "SWAP", "SWAPLIMIT"), "oom"),
    **dict.fromkeys(("DEADLINE", "WINDOW"), "deadline"),
    **dict.fromkeys(("CWD_NOTEXIST", "PRE_EXEC_FAIL", "DATA", "CSM_ALLOC", "KUBE"), "launch"),
    **dict.fromkeys(("ZOMBIE", "REMOVE_HUNG_JOB", "RC", "RC_RECLAIM", "SLURM"), "node-fail"),
    "PREEMPT": "preempt",
}
ENDS = ("completed", "failed", "aborted", "exited")
WHEN = re.compile(r"(?:[A-Z][a-z]{2} )?([A-Z][a-z]{2}) +(\d{1,2}) (\d\d):(\d\d)(?::(\d\d))?(?: (\d{4}))?")
MONTHS = {
    name: number + 1
    for number, name in enumerate(["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"])
}
TERM = re.compile(r"TERM_([A-Z_]+)")
JOB = re.compile(r"Job(?: Id)? <(\d+(?:\[\d+\])?)>")
EVENT = re.compile(r"([A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d(?: \d{4})?): ?(.*)", re.DOTALL)
INDEX = re.compile(r"^\[\d+\]")
"""As in `[3] dispatched to <n1>`."""
STARTS = ("Dispatched", "Startedon", "Thebatchjobcommandisstarted")
LIMIT = re.compile(r"(?:Terminated:)?(RUNLIMIT|CPULIMIT|MEMLIMIT|DEADLINE)(?:terminationaction|wasreached)")
OUT_OF_TIME = 140
"""By USR2, which is how a run limit is enforced; that of a queue is in no history of a job."""
INDENT = " " * 21
"""bhist breaks lines at column 80, anywhere, and goes on at column 21."""


def events(stdout: str, table: Mapping[str, Kind]) -> tuple[list[Seen], bool]:
    """Every job in it, and whether none was cut short: each ends with a summary, and the last event counts most.

    What has not ended by its events is unsure: the listing knows better. If a line is where it cannot be, none of them
    is believed.
    """
    records = _records(stdout)
    if not all(_in_order(text) for text in records):
        return [], False
    whole = [text for text in records if "\nSummary of time" in text]
    return [one for text in whole if (one := _history(text, table))], len(whole) == len(records)


def outcome_of(used: Outcome, code: int | None, term: str | None, signal: int | None = None) -> Outcome:
    """How a job ended, added to where it ran and what it used. `term` is LSF's word for why it ended the job.

    Codes above 128 are taken for signals only if there is such a word: a script may exit so by itself.
    """
    if term and code is not None and 128 < code <= 192:
        signal, code = code - 128, None
    return replace(used, exit_code=code, signal=signal, why=WHY.get(term) if term else None)


def _records(stdout: str) -> list[str]:
    """The jobs in a long history, each with its broken lines made whole."""
    out: list[list[str]] = []
    for line in stdout.split("\n"):
        if JOB.match(line):
            out.append([line])
        elif out and line.startswith(INDENT):
            out[-1][-1] += line[21:]
        elif out:
            out[-1].append(line)
    return ["\n".join(lines) for lines in out]


def _in_order(text: str) -> bool:
    """Whether a job's events begin with its submission, and its summary, if it is there, comes once and last."""
    body, *summaries = text.split("\nSummary of time")
    found = [event[2] for line in body.split("\n")[1:] if (event := EVENT.fullmatch(line))]
    late = any(EVENT.fullmatch(line) for summary in summaries for line in summary.split("\n"))
    begun = all(said.startswith("Submitted") == (number == 0) for number, said in enumerate(found))
    return begun and len(summaries) < 2 and not late


def _history(text: str, table: Mapping[str, Kind]) -> Seen | None:
    """How a job stands by its events; None if the text is of no job."""
    lines = text.split("\n")
    job = JOB.match(lines[0])
    if job is None:
        return None
    story = _Story()
    for line in lines[1:]:
        if event := EVENT.fullmatch(line):
            story.add(event[1], event[2])
    limit = re.search(r"RUNLIMIT\s*\n\s*(\d{1,9}(?:\.\d{1,3})?) min", text)
    if limit and story.state == "EXIT" and not story.term and story.ran_s() >= float(limit[1]) * 60:
        story.term, story.reason = "RUNLIMIT", f"run limit of {limit[1]} min"
    elif story.ended_by_itself() and story.code == OUT_OF_TIME:
        story.term, story.reason = "RUNLIMIT", "ended as by the signal for a run limit"
    name = re.search(r"JobName<(.*?)>,User<", re.sub(r"\s", "", lines[0]))
    return story.seen(job[1], tag_of(name[1]) if name else None, table)


class _Story:
    """The state of a job, event by event. Blanks count for nothing: a line may have been broken at one."""

    def __init__(self) -> None:
        self.state = "PEND"
        self.code: int | None = None
        self.signal: int | None = None
        self.term: str | None = None
        self.reason: str | None = None
        self.host: str | None = None
        self.started = self.ended = ""
        self.cpu_s: float | None = None
        self.requeued = 0
        self._requeue = False
        """It is being taken back: its next end is not the end."""

    def add(self, when: str, text: str) -> None:
        """Take in the next event."""
        said = INDEX.sub("", re.sub(r"\s", "", text))
        said = said[:1].upper() + said[1:]
        limit = LIMIT.match(said)
        end = re.match(r"Donesuccessfully|Exited(?:withexitcode(\d{1,5})|bysignal(\d{1,3}))?[.;]", said)
        term = TERM.search(said)
        if term:
            self.term, self.reason = term[1], term[0]
        elif limit:
            self.term, self.reason = limit[1], text.strip(" ;")
        if said.startswith(STARTS):
            hosts = re.search(r"<([^>]*)>", said)
            self.state, self.started, self.host = "RUN", when, hosts[1].rpartition("*")[2] if hosts else None
            self.code = self.signal = self.term = self.reason = None  # of an earlier run
            self._requeue = False  # not every requeue says that the job ended before
        elif said.startswith("Exited;jobwillberequeued"):
            self.state, self.requeued, self.term = "PEND", self.requeued + 1, None
        elif said.startswith("Sbatchdstartup;killZOMBIE"):
            self.state, self.ended, self.term, self.reason = "EXIT", when, "ZOMBIE", text.strip(" ;")
        elif said.startswith("Completed<") and self.state not in ("DONE", "EXIT", "PEND"):
            self.state, self.ended = "DONE" if said.startswith("Completed<done>") else "EXIT", when
        elif end:
            used = re.search(r"CPUtimeusedis(\d{1,12}(?:\.\d{1,6})?)", said)
            self.cpu_s, self.ended = float(used[1]) if used else None, when
            self.code, self.signal = (int(part) if part else None for part in end.groups())
            self.state = "PEND" if self._requeue else "DONE" if said.startswith("Done") else "EXIT"
            self._requeue = False
        elif said.startswith(("Signal<KILL>", "Deleterequested")):
            self.term, self.reason = "OWNER", text.strip(" ;")
        elif said.startswith("Signal<REQUEUE") or (term and term[1].startswith("REQUEUE")):
            self._requeue, self.state = self.state != "EXIT", "PEND"
            self.requeued, self.term = self.requeued + 1, None
        elif said.startswith("Pending:") and self.state == "EXIT":
            self.requeued, self.state = self.requeued + 1, "PEND"
        elif said.startswith(("Running", "Starting")):
            self.state = "RUN"
        elif said.startswith("Unknown;"):
            self.state = "UNKWN"

    def ended_by_itself(self) -> bool:
        """Whether the job ended as by a signal, with no word of who sent it."""
        return self.state == "EXIT" and not self.term and (bool(self.signal) or (self.code or 0) > 128)

    def ran_s(self) -> float:
        """From dispatch to end; the year, which bhist leaves out, does not matter for that."""
        started, ended = when(self.started, 2000), when(self.ended, 2000)
        if started is None or ended is None:
            return 0
        return ended - started if ended >= started else ended - started + 366 * 86400

    def seen(self, job: str, tag: str | None, table: Mapping[str, Kind]) -> Seen:
        """How the job stands after all events. If it has not ended, that is unsure."""
        kind = table.get(self.state, "unsure")
        if kind not in ENDS:
            return Seen(job, self.state, "unsure", tag, self.reason, None, self.requeued)
        if self.state == "DONE":
            self.code, self.signal, self.term, self.reason = 0, None, None, None
        elif kind == "failed" and self.term:
            kind = table.get(f"TERM_{self.term}", kind)
        used = Outcome(host=self.host, started=when(self.started), ended=when(self.ended), cpu_s=self.cpu_s)
        outcome = outcome_of(used, self.code, self.term, self.signal)
        return Seen(job, self.state, kind, tag, self.reason, outcome, self.requeued)


@lru_cache(maxsize=4096)
def when(text: str, year: int | None = None) -> float | None:
    """A time; None if it has no year (sites show that if they set LSB_DISPLAY_YEAR) and none is given."""
    found = WHEN.fullmatch(text.rstrip(" LEX"))
    if found is None or found[1] not in MONTHS or not (found[6] or year):
        return None
    day, hour, minute, second = int(found[2]), int(found[3]), int(found[4]), int(found[5] or 0)
    which = int(found[6]) if found[6] else year or 0
    if not (which >= 1970 and 1 <= day <= 31 and hour < 24 and minute < 60 and second < 62):
        return None
    return float(calendar.timegm((which, MONTHS[found[1]], day, hour, minute, second)))
