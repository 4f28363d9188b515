"""What OpenPBS and TORQUE do and say alike, and what their answers are worth."""

import re
from collections.abc import Callable, Mapping, Sequence

from rota.drivers.api import Ask
from rota.drivers.dialect import Answer, Class, Command, Kind, Listing, Seen, Submitted
from rota.drivers.options import Wants
from rota.drivers.pbs_errors import Error, read_error
from rota.drivers.pbs_records import Row, job_id
from rota.model.errors import UsageError

__all__ = [
    "GENTLY",
    "PbsFamily",
    "check_server",
    "complaints",
    "judge_records",
    "judge_table",
    "rows_seen",
    "submitted",
]

GENTLY = ("qsig", "-s", "URG")
"""Tells a runner to end. Every process of a job gets it, and most ignore it.

TERM would end the shell above the script, and with that everything at once.
"""
WAITS = ("pending", "held", "suspended", "unsure")
NO_NODE = ("could not connect to mom", "cannot contact mom")
NO_SIGNAL = re.compile(r"qsig: .*(request invalid for|invalid state for)")
COMPLAINT = re.compile(
    r"\s*(q(stat|del|sig)|pbs_\w+|trqauthd|munge)\b|error|connect|credential|unauthori[sz]ed|denied|time[d ]? ?out"
)
"""What a line of stderr has that is worth a thought; profiles and loaders write others, with every command."""


class PbsFamily:
    """What OpenPBS and TORQUE have in common."""

    programs: tuple[str, ...] = ("qsub", "qstat", "qdel", "qsig")
    history_lag_s = 30.0
    array_most = 10_000
    chunk = 200
    strict: Mapping[str, Kind] = {"H": "pending", "T": "unsure"}
    errors: Mapping[int, Error]
    gone: tuple[str, ...]
    """In complaints about a job that is no more."""

    def version(self) -> Command:
        """Asks qstat, which says `pbs_version` or, of TORQUE, `Version:`."""
        return Command(("qstat", "--version"))

    def read_submit(self, ask: Ask, answer: Answer) -> Submitted:
        """The id is all that qsub prints."""
        return read_qsub(answer, *read_error(answer, self.errors, "submit"))

    def array_limit(self) -> Command:
        """What the server says of itself."""
        return Command(("qstat", "-B", "-f"))

    def read_array_limit(self, answer: Answer) -> int | None:
        """The largest array. TORQUE holds what is over its limit of slots, as if somebody had done that."""
        names = "max_(?:job_)?array_size|max_slot_limit|idle_slot_limit"
        found = re.findall(rf"^\s*(?:{names})\s*=\s*(\d{{1,9}})\s*$", answer.stdout, re.M)
        return min((max(1, int(number)) for number in found), default=None)

    def element_id(self, native_id: str, element: int, count: int) -> str:
        """`6[]` has `6[0]`, `6[1]`, …"""
        return native_id.replace("[]", f"[{element}]") if count > 1 else native_id

    def listing(self, user: str) -> Command:
        """A light table of the user's jobs, with the elements of arrays and what the scheduler says of each.

        Other forms know no users.
        """
        return Command(("qstat", "-t", "-s", "-u", user))

    def read_kill(self, answer: Answer) -> tuple[Class, str]:
        """Each complaint has its own line; the exit status is only that of the last."""
        return read_complaints(answer, self.gone, *read_error(answer, self.errors))


def check_server(wants: Wants, system: str) -> None:
    """Refuse a queue of another server: what is sent there would not be found again at our own."""
    if queue := next((name for name in (wants.partition, wants.reservation) if name and "@" in name), None):
        raise UsageError(
            f"queue '{queue}': a site asks one {system} server only; leave off '@…' and start rota with PBS_DEFAULT "
            "(or PBS_SERVER) set to that server"
        )


def read_qsub(answer: Answer, result: Class, words: str) -> Submitted:
    """The id from what qsub printed, else what its error means. Of two ids nobody knows which is ours.

    A server may be told to leave its name off its ids: then the number is all that qsub prints, and a whole line.
    """
    lines = [line for line in answer.stdout.splitlines() if line.strip()]
    bare = len(lines) == 1 and answer.stdout.endswith("\n")
    ids = {job_id(line) for line in lines if "." in line or bare} - {None}
    if len(ids) == 1:
        native = ids.pop()
        return Submitted(native, "ok" if answer.code == 0 else "ambiguous", words if answer.code else "")
    if answer.code == 0 or ids:
        return Submitted(None, "ambiguous", f"qsub succeeded and printed not one job id: {answer.words}")
    return Submitted(None, result, words)


def rows_seen(rows: Sequence[Row], table: Mapping[str, Kind], tag: Callable[[Row], str | None]) -> tuple[Seen, ...]:
    """The rows of a table. Why one waits is the scheduler's comment, its own or that of its array.

    Elements of an array that is held are shown as Q: there only the comment says so.
    """
    said = {row.id: row.comment for row in rows}
    out = []
    for row in rows:
        kind = table.get(row.state, "unsure")
        reason = row.comment or said.get(re.sub(r"\[\d+\]", "[]", row.id))
        if kind == "pending" and (reason or "").startswith("Job held by"):
            kind = "held"
        out.append(Seen(row.id, row.state, kind, tag(row), reason if kind in WAITS and _is_reason(reason) else None))
    return tuple(out)


def _is_reason(comment: str | None) -> bool:
    """Whether a comment is about what is: what once ran, or an array of which something runs, keeps that comment."""
    return comment is not None and not comment.startswith(("Job run at", "Job Array Began", "Job started on"))


def complaints(answer: Answer) -> list[str]:
    """The lines of stderr that are about something, in small letters."""
    return [line for line in answer.stderr.lower().splitlines() if COMPLAINT.search(line)]


def judge_table(answer: Answer, seen: tuple[Seen, ...], odd: Sequence[str], result: Class, words: str) -> Listing:
    """What a table is worth. Nothing at all, and no complaint, is what qstat prints when there are no jobs."""
    if answer.code != 0:
        return Listing(seen, "partial" if seen else "transient" if result in ("not-found", "fatal") else result, words)
    if odd:
        return Listing(
            seen, "partial" if seen else "transient", f"qstat printed a line that is none of its table: {odd[0][:200]}"
        )
    if complaints(answer):
        return Listing(seen, "partial" if seen else "transient", answer.words)
    return Listing(seen, "ok")


def read_complaints(answer: Answer, gone: Sequence[str], result: Class, words: str) -> tuple[Class, str]:
    """The class of a kill: ok if every complaint is about a job that is no more, or that needs a stronger one.

    A job that does not run (held, waiting) takes no signal, and a node that is lost none of the server's messages: it
    is only what comes next (qdel, then deleting without the node) that can end these.
    """
    if answer.code == 0:
        return "ok", answer.words
    lines = complaints(answer)
    done = (*gone, *NO_NODE)
    rest = [line for line in lines if not any(text in line for text in done) and not NO_SIGNAL.match(line)]
    if answer.code is not None and lines and not rest:
        return "ok", words
    if any("unauthorized" in line or "no permission" in line for line in rest):
        return "fatal", words
    if result == "not-found":
        return ("transient" if rest else "ok"), words
    return result, words


def submitted(tag: str, found: Sequence[tuple[str, str | None]]) -> Submitted | None:
    """Of jobs and their tags the first with this one, the whole array if it is one; and others, which must not be."""
    ids = [job_id(native) for native, its in found if its == tag]
    whole = {re.sub(r"\[\d*\]", "[]", native) for native in ids if native}
    if not whole:
        return None
    first, *others = sorted(whole, key=lambda native: int(native.rstrip("[]")))
    return Submitted(first, "ok", "", tuple(others))


def judge_records(answer: Answer, seen: tuple[Seen, ...], whole: bool, result: Class, words: str) -> Listing:
    """What full records are worth, asked for by id. Unknown ids among known ones are an answer too."""
    if answer.code == 0 and whole:
        return Listing(seen, "ok")
    if answer.code == 0:
        words = f"qstat printed what is no whole answer: {Answer(0, answer.stdout, '').words}"
    if result == "not-found" and (whole or not seen):
        return Listing(seen, "ok" if seen else "not-found", words)
    return Listing(seen, "partial" if seen else result, words)
