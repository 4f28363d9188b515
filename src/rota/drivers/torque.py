"""TORQUE: a relative of OpenPBS with other options, other forms, and other error numbers.

Polling has two steps as with OpenPBS: a light table of the user's jobs, then full records of those that ended, which
the server keeps only for `keep_completed` seconds.
"""

import html
import re
from collections.abc import Mapping, Sequence

from rota.drivers.api import Ask, Outcome
from rota.drivers.dialect import Answer, Command, Kind, Listing, Options, Queue, Seen, Submitted
from rota.drivers.native import element, enter, keep_output, kinds, native_name, script, share, tag_of
from rota.drivers.options import Rules, check_directory, merge
from rota.drivers.pbs_answers import (
    GENTLY,
    PbsFamily,
    check_server,
    complaints,
    judge_records,
    judge_table,
    rows_seen,
    submitted,
)
from rota.drivers.pbs_errors import TORQUE, read_error
from rota.drivers.pbs_queues import hosts_of, queues_of, read_default, read_lines, with_hosts
from rota.drivers.pbs_records import (
    NOT_THE_JOBS,
    Record,
    clock,
    combine,
    job_id,
    megabytes,
    past_limit,
    read_status,
    read_table,
    read_text,
    seconds,
    usage,
)
from rota.model.errors import UsageError

__all__ = ["Torque"]

NAME_MOST = 15
"""What every release takes, and what its tables show whole."""
NEGATIVE: Mapping[int, tuple[str | None, str]] = {
    **NOT_THE_JOBS,
    -5: ("node-fail", "the node's daemon was restarted, the job was migrated"),
    -8: ("launch", "its command could not be executed"),
    -9: ("launch", "its output files could not be made"),
    -10: ("oom", "used more memory than it asked for"),
    -11: ("time", "reached its time limit"),
    -12: ("time", "used more processor time than it asked for"),
    -13: ("launch", "its cgroup could not be made"),
}
REPEAT = frozenset({"-l", "-W"})
OWNED = {
    "-l": frozenset({"nodes", "walltime", "mem", "pmem", "vmem", "procs", "ncpus", "gpus", "file", "nodect"}),
    "-W": frozenset({"block", "interactive", "stagein", "stageout", "depend"}),
}
GONE = ("unknown job id", "nonexistent job id", "already exiting", "invalid state for job - complete")
JOB = re.compile(r"<Job>(.*?)</Job>", re.DOTALL)
FIELD = re.compile(r"<(\w+)>([^<]*)</\1>")
LISTS = re.compile(r"<(resources_used|Resource_List|Walltime)>(.*?)</\1>", re.DOTALL)


class Torque(PbsFamily):
    """TORQUE, by itself or with Maui or Moab."""

    name = "torque"
    errors = TORQUE
    gone = GONE
    states: Mapping[str, Kind] = {
        "Q": "pending",
        "H": "held",
        "R": "running",
        "T": "pending",
        "W": "pending",
        "S": "suspended",
        "E": "running",
        "C": "exited",
    }
    """Elements of an array begin as H, for a moment. E is over only once there is an exit status."""
    array_most = 300
    """So many elements are made before they can start, unless the server says otherwise (`idle_slot_limit`). Others are
    in no listing until then: they would be taken for lost, and run twice."""
    allowed = frozenset({"-a", "-b", "-c", "-h", "-j", "-k", "-l", "-m", "-M", "-p", "-u", "-W"})
    spread = "pbsdsh-u"

    def is_mine(self, answer: Answer) -> bool:
        """TORQUE calls it Version; the others call it pbs_version, or do not know the option."""
        text = answer.stdout + answer.stderr
        return bool(re.search(r"^version:\s", text, re.IGNORECASE | re.MULTILINE)) and "pbs_version" not in text

    def submit(self, ask: Ask, options: Options) -> Command:
        """Nodes and processors per node; memory is that of all nodes together."""
        wants = merge(Rules("TORQUE", self.allowed, REPEAT, OWNED), ask, options)
        check_server(wants, "TORQUE")
        path = check_directory("TORQUE", ask.directory, ":, ").rstrip("/") + "/"
        # No `-C ""` against directives: they end with the first line that is a command, and the empty word gets lost in
        # filters and wrappers of sites.
        argv = ["qsub", "-N", native_name(ask, NAME_MOST, letter_first=True), "-S", "/bin/sh", "-o", path, "-e", path]
        argv += ["-r", "y" if options.requeue else "n"]
        if ask.count > 1:
            argv += ["-t", f"0-{ask.count - 1}"]
        for resource in self._resources(ask, options, wants.constraint):
            argv += ["-l", resource]
        if ask.exclusive:
            argv.append("-n")
        if wants.partition:
            argv += ["-q", wants.partition]
        if wants.account:
            argv += ["-A", wants.account]
        if wants.qos:
            argv += ["-l", f"qos={wants.qos}"]
        if wants.reservation:
            argv += ["-W", f"x=FLAGS:ADVRES:{wants.reservation}"]
        if not wants.values("-m"):
            argv += ["-m", "n"]
        lines = [*element("${PBS_ARRAYID:-0}"), *enter(ask.directory), *keep_output(ask.tag)]
        return Command((*argv, *wants.argv()), script(ask.script, lines))

    def _resources(self, ask: Ask, options: Options, constraint: str | None) -> list[str]:
        cores = share(ask.amounts.cores, 1000)
        nodes = [f"nodes={ask.nodes}", f"ppn={cores}"]
        if ask.amounts.gpus:
            nodes.append(f"gpus={ask.amounts.gpus}")
        if constraint:
            if not re.fullmatch(r"[A-Za-z][\w.-]*(:[A-Za-z][\w.-]*)*", constraint):
                raise UsageError(f"constraint '{constraint}': TORQUE wants a property of nodes, or several with ':'")
            nodes.append(constraint)
        found = [":".join(nodes)]
        if ask.amounts.memory and options.memory_as == "node":
            found.append(f"mem={megabytes(ask.amounts.memory * ask.nodes)}mb")
        if ask.amounts.memory and options.memory_as == "per-cpu":
            found.append(f"pmem={megabytes(share(ask.amounts.memory, cores))}mb")
        if ask.amounts.disk:
            found.append(f"file={megabytes(ask.amounts.disk)}mb")
        found += [f"{name}={count}" for name, count in ask.amounts.named]
        if ask.time_s is not None:
            found.append(f"walltime={clock(ask.time_s)}")
        return found

    def read_listing(self, answer: Answer, options: Options) -> Listing:
        """The table. It has no exit status: what is over there is `exited` without an outcome."""
        rows, odd = read_table(answer.stdout)
        table = kinds(self.states, self.strict, options)
        seen = rows_seen(rows, table, lambda row: _tag(row.id, row.name))
        return judge_table(answer, seen, odd, *read_error(answer, self.errors))

    def history(self, native_ids: Sequence[str]) -> Sequence[Command]:
        """Full records. (`-x` is XML here. Without an id it would show all jobs of all users.)"""
        ids = tuple(native_ids)
        return [Command(("qstat", "-x", *ids))] if ids else []

    def read_history(self, answer: Answer, options: Options) -> Listing:
        """Full records, as XML or as text."""
        records, whole = read_records(answer.stdout)
        table = kinds(self.states, self.strict, options)
        seen = tuple(self._seen(record, table, options) for record in records)
        return judge_records(answer, seen, whole, *read_error(answer, self.errors))

    def _seen(self, record: Record, table: Mapping[str, Kind], options: Options) -> Seen:
        state = record.get("job_state", "?")
        kind = table.get(state, "unsure")
        native = job_id(record["Job_Id"]) or record["Job_Id"]
        status = read_status(record.get("exit_status"), NEGATIVE)
        starts = seconds(record.get("start_count")) or 0
        reason = record.get("comment")
        outcome: Outcome | None = None
        if kind == "exited" or (state == "E" and status is not None):
            start, end = seconds(record.get("start_time")), seconds(record.get("comp_time"))
            used = usage(record, None if start is None else float(start), None if end is None else float(end))
            if status is None:
                ran = "start_time" in record or "exec_host" in record
                kind = "exited" if ran else "aborted"
                outcome = combine(Outcome(), used, None if ran else "cancelled")
                reason = reason or (None if ran else "deleted before it ran")
            else:
                kind, outcome = self._ended(record, status.outcome, used, options)
                reason = "; ".join(part for part in (status.words, reason) if part)
        return Seen(native, state, kind, _tag(native, record.get("Job_Name", "")), reason, outcome, max(0, starts - 1))

    def _ended(self, record: Record, status: Outcome, used: Outcome, options: Options) -> tuple[Kind, Outcome]:
        """By its exit status alone; that somebody deleted it shows only as the signal that qdel sends."""
        why = status.why
        if why is None and status.signal is not None and past_limit(record):
            why = "time"
        elif why is None and status.signal == 15:
            why = "cancelled"
        outcome = combine(status, used, why)
        if options.strict and why in ("cancelled", "preempt", "node-fail"):
            return "aborted", outcome
        return "completed" if status.exit_code == 0 and status.why is None else "failed", outcome

    def find(self, tag: str, user: str) -> Sequence[Command]:
        """All jobs with their whole names, then the user's table.

        A server without jobs prints nothing at all for either, so both have to say so.
        """
        return [Command(("qstat", "-x")), Command(("qstat", "-u", user))]

    def read_find(self, tag: str, answer: Answer) -> Submitted:
        """The job, or the array, that has the tag in its name; the oldest, if there are several."""
        records, whole = read_records(answer.stdout)
        rows, odd = read_table(answer.stdout)
        if not records and rows:
            records, whole = [{"Job_Id": row.id, "Job_Name": row.name} for row in rows], not odd
        tags = [(record["Job_Id"], _tag(record["Job_Id"], record.get("Job_Name", ""))) for record in records]
        if (found := submitted(tag, tags)) is not None:
            return found
        if answer.code == 0 and (whole or not (answer.stdout.strip() or complaints(answer))):
            return Submitted(None, "not-found", "")
        result, words = read_error(answer, self.errors)
        return Submitted(None, "transient" if result == "not-found" else result, words)

    def kill(self, native_ids: Sequence[str], force: int) -> Command:
        """URG; then qdel, which sends TERM and KILL; then without the node (which a site may keep to itself)."""
        how = (GENTLY, ("qdel",), ("qdel", "-p"))[min(max(force, 0), 2)]
        return Command((*how, *native_ids))

    def queues(self) -> Command | None:
        """All queues with their attributes."""
        return Command(("qstat", "-Q", "-f"))

    def read_queues(self, answer: Answer) -> tuple[Queue, ...]:
        """Execution queues."""
        if answer.code != 0:
            return ()
        records, _ = read_text(re.sub(r"^Queue:", "Job Id:", answer.stdout, flags=re.MULTILINE))
        return queues_of({record["Job_Id"]: record for record in records})

    def queue_details(self, queues: Sequence[Queue]) -> Sequence[Command]:
        """The usual queue, and the nodes."""
        return [Command(("qstat", "-B", "-f")), Command(("pbsnodes", "-a"))]

    def read_queue_details(
        self, queues: tuple[Queue, ...], answers: Sequence[Answer], options: Options
    ) -> tuple[Queue, ...]:
        """Queues with their nodes: `np` is what may be asked for; the memory is in what the node last said."""
        server, nodes = answers
        records = []
        for record in read_lines(nodes.stdout) if nodes.code == 0 else ():
            said = dict(part.partition("=")[::2] for part in record.get("status", "").split(","))
            gpus = {"ngpus": record["gpus"]} if "gpus" in record else {}
            records.append(
                {**gpus, "name": record["name"], "ncpus": record.get("np", ""), "mem": said.get("physmem", "")}
            )
        return with_hosts(queues, hosts_of(records), read_default(server.stdout) if server.code == 0 else None)


def _tag(native: str, name: str) -> str | None:
    """The tag in a job's name; elements have their number behind it, which a table may cut off after the dash."""
    return tag_of(name) or (tag_of(re.sub(r"-\d*\Z", "", name)) if "[" in native else None)


def read_records(text: str) -> tuple[list[dict[str, str]], bool]:
    """Full records from XML or text, and whether nothing was lost. Each job is read by itself.

    XML is one line; some releases break it anywhere, inside of names too.
    """
    if text.lstrip().startswith("Job Id:"):
        return read_text(text)
    text = text.replace("\n", "")
    records = []
    for found in JOB.finditer(text):
        body = found[1]
        record: dict[str, str] = {}
        for name, inner in LISTS.findall(body):
            record |= {f"{name}.{key}": html.unescape(value) for key, value in FIELD.findall(inner)}
        for key, value in FIELD.findall(LISTS.sub("", body)):
            record.setdefault(key, html.unescape(value))
        if "Job_Id" in record and "job_state" in record:
            records.append(record)
    whole = text.rstrip().endswith(("</Data>", "<Data/>", "<Data />")) and len(records) == text.count("<Job>")
    return records, whole
