"""OpenPBS and PBS Professional: qsub, qstat, qdel.

Polling has two steps, because full records of all jobs are too much for a busy server: a light table of the user's live
jobs, and full records of those that ended. The table is asked for without finished jobs: on a server that keeps no
history `qstat -x` prints nothing at all, not even what runs.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from rota.drivers.api import Ask, Outcome
from rota.drivers.dialect import Answer, Command, Kind, Listing, Options, Queue, Seen, Submitted
from rota.drivers.native import element, enter, keep_output, kinds, native_name, script, share, tag_of
from rota.drivers.options import Rules, Wants, check_directory, merge
from rota.drivers.pbs_answers import (
    GENTLY,
    PbsFamily,
    check_server,
    judge_records,
    judge_table,
    rows_seen,
    submitted,
)
from rota.drivers.pbs_errors import OPENPBS, read_error
from rota.drivers.pbs_queues import hosts_of, queues_of, read_default, with_hosts
from rota.drivers.pbs_records import (
    NOT_THE_JOBS,
    Record,
    clock,
    combine,
    date,
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

__all__ = ["Pbs"]

NAME_MOST = 64
"""The server takes 230; longer ones are of no use to people."""
NEGATIVE: Mapping[int, tuple[str | None, str]] = {
    **NOT_THE_JOBS,
    -5: ("node-fail", "the node's daemon was restarted, the job can be restarted"),
    -10: ("launch", "its user is not known on the node"),
    -11: ("preempt", "was put back into the queue"),
    -12: ("preempt", "was checkpointed and ended"),
    -13: ("launch", "its password was refused"),
    -14: ("node-fail", "its nodes failed while it started"),
    -15: ("node-fail", "was put back into the queue because its node was restarted"),
    -16: ("launch", "a hook on the node failed, to be run again"),
    -17: ("launch", "a hook on the node failed and had it deleted"),
    -18: ("preempt", "a hook had it put back into the queue"),
    -19: ("cancelled", "a hook had it deleted"),
    -20: ("node-fail", "its node was lost"),
    -21: ("launch", "a security failure on the node"),
    -22: ("launch", "a hook refused it"),
    -23: ("launch", "its credentials could not be renewed"),
    -24: (None, "used more processors at once than it asked for"),
    -25: (None, "used more processors than it asked for"),
    -26: ("oom", "used more virtual memory than it asked for"),
    -27: ("oom", "used more memory than it asked for"),
    -28: ("time", "used more processor time than it asked for"),
    -29: ("time", "reached its time limit"),
    -30: ("launch", "its nodes could not join"),
}
ENDED: Mapping[str, tuple[Kind, str | None]] = {
    "91": ("aborted", "cancelled"),
    "92": ("exited", None),
    "93": ("failed", None),
    "94": ("unsure", None),
}
"""By substate: how a job ended that has no exit status. 91 deleted, 92 finished, 93 failed, 94 moved."""
REPEAT = frozenset({"-l", "-W"})
OWNED = {
    "-l": frozenset({"select", "place", "walltime", "ncpus", "nodes", "mem", "ngpus", "mpiprocs", "nodect"}),
    "-W": frozenset({"block", "interactive", "run_count", "stagein", "stageout", "depend", "sandbox"}),
}
NO_HISTORY = "not configured to maintain job history"
JSON_JOB = re.compile(r'^([ \t]*)"(\d+(?:\[\d*\])?\.[^"\s]+)":\s*\{', re.MULTILINE)
JSON_FIELD = re.compile(r'^([ \t]*)"([\w.]+)":\s*("(?:[^"\\\n]|\\.)*"|-?\d+)', re.MULTILINE)
GONE = (
    *("unknown job id", "job has finished", "has already finished", "already exiting", "history job id"),
    "finished array subjob",
)
FORGETFUL = re.compile(r"\D*1\d\.")


class Pbs(PbsFamily):
    """OpenPBS and PBS Professional."""

    name = "pbs"
    hopeless = ("Can Never Run",)
    errors = OPENPBS
    gone = GONE
    states: Mapping[str, Kind] = {
        "Q": "pending",
        "H": "held",
        "W": "pending",
        "T": "pending",
        "S": "suspended",
        "U": "suspended",
        "R": "running",
        "B": "running",
        "E": "running",
        "F": "exited",
        "X": "exited",
        "M": "unsure",
    }
    """W waits for its time, T is on its way into a queue, U waits for the owner of its node.

    E is over only once there is an exit status.
    """
    allowed = frozenset({"-a", "-c", "-h", "-j", "-k", "-l", "-m", "-M", "-p", "-P", "-u", "-W"})
    spread = "pbsdsh"

    def is_mine(self, answer: Answer) -> bool:
        """Only OpenPBS calls it pbs_version."""
        return "pbs_version" in answer.stdout + answer.stderr

    def submit(self, ask: Ask, options: Options) -> Command:
        """One chunk per node. An array of one element is refused, so that is a plain job.

        An array must be rerunnable here, so only a plain job can be kept from being started again by the cluster.
        """
        wants = merge(Rules("OpenPBS", self.allowed, REPEAT, OWNED), ask, options)
        if wants.qos:
            raise UsageError(f"qos '{wants.qos}': OpenPBS has none; a queue (partition) stands for it")
        check_server(wants, "OpenPBS")
        path = check_directory("OpenPBS", ask.directory, ":,^").rstrip("/") + "/"
        # No `-C ""` against directives: they end with the first line that is a command, and the empty word gets lost in
        # filters and wrappers of sites.
        argv = ["qsub", "-N", native_name(ask, NAME_MOST, letter_first=True), "-S", "/bin/sh", "-o", path, "-e", path]
        if ask.count > 1:
            argv += ["-J", f"0-{ask.count - 1}"]
        else:
            argv += ["-r", "y" if options.requeue else "n"]
        argv += ["-l", self._select(ask, options, wants)]
        if ask.nodes > 1 or ask.exclusive:
            argv += ["-l", "place=scatter" + (":exclhost" if ask.exclusive else "")]
        if ask.amounts.memory and options.memory_as == "per-cpu":
            argv += ["-l", f"pmem={megabytes(share(ask.amounts.memory, share(ask.amounts.cores, 1000)))}mb"]
        if ask.time_s is not None:
            argv += ["-l", f"walltime={clock(ask.time_s)}"]
        # A reservation is a queue here.
        if queue := wants.reservation or wants.partition:
            argv += ["-q", queue]
        if wants.account:
            argv += ["-A", wants.account]
        if not wants.values("-m"):
            argv += ["-m", "n"]
        lines = [*element("${PBS_ARRAY_INDEX:-0}"), *enter(ask.directory), *keep_output(ask.tag)]
        return Command((*argv, *wants.argv()), script(ask.script, lines))

    def _select(self, ask: Ask, options: Options, wants: Wants) -> str:
        cores = share(ask.amounts.cores, 1000)
        chunk = [str(ask.nodes), f"ncpus={cores}"]
        if ask.nodes > 1 or ask.tasks_per_node > 1:
            chunk.append(f"mpiprocs={ask.tasks_per_node}")
        if ask.amounts.memory and options.memory_as == "node":
            chunk.append(f"mem={megabytes(ask.amounts.memory)}mb")
        if ask.amounts.gpus:
            chunk.append(f"ngpus={ask.amounts.gpus}")
        chunk += [f"{name}={count}" for name, count in ask.amounts.named]
        if wants.constraint:
            if not re.fullmatch(r"\w+=[^:+,=]+(:\w+=[^:+,=]+)*", wants.constraint):
                raise UsageError(f"constraint '{wants.constraint}': OpenPBS wants resource=value[:resource=value…]")
            chunk.append(wants.constraint)
        return "select=" + ":".join(chunk)

    def read_listing(self, answer: Answer, options: Options) -> Listing:
        """The table. It has no exit status: what is over there is `exited` without an outcome."""
        rows, odd = read_table(answer.stdout)
        table = kinds(self.states, self.strict, options)
        seen = rows_seen(rows, table, lambda row: tag_of(row.name))
        return judge_table(answer, seen, odd, *read_error(answer, self.errors))

    def history(self, native_ids: Sequence[str]) -> Sequence[Command]:
        """Full records, of live jobs too.

        `-E` asks for all of them at once. Without it each is a question of its own, and as JSON some releases print
        only the first answer, others each as a whole document.
        """
        ids = tuple(native_ids)
        return [Command(("qstat", "-E", "-x", "-f", "-F", "json", *ids))] if ids else []

    def read_history(self, answer: Answer, options: Options) -> Listing:
        """Full records, as JSON, or as whatever else of qstat's forms came instead."""
        records, whole = read_records(answer.stdout)
        table = kinds(self.states, self.strict, options)
        seen = tuple(self._seen(record, table, options) for record in records)
        if NO_HISTORY in answer.stderr and not seen:
            return Listing((), "not-found", answer.words)
        return judge_records(answer, seen, whole, *read_error(answer, self.errors))

    def _seen(self, record: Record, table: Mapping[str, Kind], options: Options) -> Seen:
        state = record.get("job_state", "?")
        kind = table.get(state, "unsure")
        native = job_id(record["Job_Id"]) or record["Job_Id"]
        if native.endswith("]") and "[]" not in native and "array_index" not in record:
            return self._never_ran(record, native, kind)
        status = read_status(record.get("Exit_status"), NEGATIVE)
        runs = seconds(record.get("run_count")) or 0
        reason = record.get("comment")
        outcome: Outcome | None = None
        if "[]" in native:
            status = None  # That of an array says only whether any element failed.
        if kind == "exited" or (state == "E" and status is not None):
            ended = date(record.get("obittime")) or seconds(record.get("history_timestamp"))
            used = usage(record, date(record.get("stime")), None if ended is None else float(ended))
            if status is None:
                substate = record.get("substate", "")
                kind, why = ENDED.get(substate, ("exited", None))
                if substate == "92" and "stime" not in record:
                    kind, why = "aborted", "cancelled"  # It never ran: what it depended on failed.
                outcome = combine(Outcome(), used, why)
            else:
                kind, outcome = self._ended(record, status.outcome, used, options)
                reason = "; ".join(part for part in (status.words, reason) if part)
        return Seen(native, state, kind, tag_of(record.get("Job_Name", "")), reason, outcome, max(0, runs - 1))

    def _never_ran(self, record: Record, native: str, kind: Kind) -> Seen:
        """An element that has no record of its own: what is shown is the array's, with the element's state.

        So it was not started. Only releases before 20 also forget those that ended.
        """
        state, comment, tag = (
            record.get("job_state", "?"),
            record.get("comment", ""),
            tag_of(record.get("Job_Name", "")),
        )
        if kind != "exited":
            return Seen(native, state, kind, tag)
        if FORGETFUL.match(record.get("pbs_version", "")) and comment != "Subjob terminated":
            return Seen(native, state, kind, tag, comment if comment.startswith("Subjob") else None, Outcome())
        return Seen(native, state, "aborted", tag, "deleted before it ran", Outcome(why="cancelled"))

    def _ended(self, record: Record, status: Outcome, used: Outcome, options: Options) -> tuple[Kind, Outcome]:
        deleted = record.get("substate") == "91" or " terminated by " in record.get("comment", "")
        why = status.why
        if why is None and status.signal is not None and past_limit(record):
            why = "time"
        elif why is None and deleted:
            why = "cancelled"
        outcome = combine(status, used, why)
        if deleted or (options.strict and why in ("cancelled", "preempt", "node-fail")):
            return "aborted", outcome
        good = status.exit_code == 0 and status.why is None
        return "completed" if good else "failed", outcome

    def find(self, tag: str, user: str) -> Sequence[Command]:
        """Full records, because tables cut names and qselect wants a whole one. An empty answer would show."""
        return [Command(("qstat", "-f", "-F", "json")), Command(("qstat", "-x", "-f", "-F", "json"))]

    def read_find(self, tag: str, answer: Answer) -> Submitted:
        """The job, or the array, that has the tag in its name; the oldest, if there are several."""
        records, whole = read_records(answer.stdout)
        tags = [(record["Job_Id"], tag_of(record.get("Job_Name", ""))) for record in records]
        if (found := submitted(tag, tags)) is not None:
            return found
        if answer.code == 0 and NO_HISTORY in answer.stderr:
            return Submitted(None, "not-found", answer.words)
        if answer.code == 0 and whole:
            return Submitted(None, "not-found", "")
        result, words = read_error(answer, self.errors)
        return Submitted(None, "transient" if result in ("not-found", "ok") else result, words)

    def kill(self, native_ids: Sequence[str], force: int) -> Command:
        """URG; then qdel, which sends TERM and KILL; then without waiting for the node."""
        how = (GENTLY, ("qdel",), ("qdel", "-W", "force"))[min(max(force, 0), 2)]
        elements = [_element(native_id) for native_id in native_ids]
        first, last = elements[0], elements[-1]
        if force > 0 and len(elements) > 1 and first is not None and last is not None:
            return Command((*how, f"{first[0]}[{first[1]}-{last[1]}]{first[2]}"))
        return Command((*how, *native_ids))

    def kill_apart(self, native_ids: Sequence[str], force: int) -> list[list[str]]:
        """For qdel: jobs one by one, elements of an array as far as they follow each other, which makes a range.

        Version 23.06 joins elements of an array to ranges by itself, and asks for the first two of these only. If it
        asks for several things, the server dies of one that has ended, or of an element that waits, behind the last
        that can be deleted at once.
        """
        if force < 1:
            return [list(native_ids)]
        out: list[list[str]] = []
        before: tuple[str, int, str] | None = None
        for native_id in sorted(native_ids, key=lambda native_id: _element(native_id) or ("", 0, "")):
            element = _element(native_id)
            if element is None or before is None or element != (before[0], before[1] + 1, before[2]):
                out.append([])
            out[-1].append(native_id)
            before = element
        return out

    def queues(self) -> Command | None:
        """All queues with their attributes."""
        return Command(("qstat", "-Q", "-f", "-F", "json"))

    def read_queues(self, answer: Answer) -> tuple[Queue, ...]:
        """Execution queues."""
        try:
            document = json.loads(answer.stdout, strict=False)
        except (ValueError, RecursionError):
            return ()
        found = document.get("Queue") if isinstance(document, dict) else None
        if answer.code != 0 or not isinstance(found, dict):
            return ()
        return queues_of({name: _flat(value) for name, value in found.items() if isinstance(value, dict)})

    def queue_details(self, queues: Sequence[Queue]) -> Sequence[Command]:
        """The usual queue, and the nodes."""
        return [Command(("qstat", "-B", "-f")), Command(("pbsnodes", "-av", "-F", "json"))]

    def read_queue_details(
        self, queues: tuple[Queue, ...], answers: Sequence[Answer], options: Options
    ) -> tuple[Queue, ...]:
        """Queues with their nodes."""
        server, nodes = answers
        try:
            found = json.loads(nodes.stdout, strict=False)["nodes"] if nodes.code == 0 else {}
            records = [{**_flat(node), "name": str(name)} for name, node in found.items()]
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            records = []
        return with_hosts(queues, hosts_of(records), read_default(server.stdout) if server.code == 0 else None)


def read_records(text: str) -> tuple[list[dict[str, str]], bool]:
    """Full records in any of qstat's forms, and whether nothing of them was lost.

    Servers print JSON that is none (values with backslashes, quotes, leading zeros; the list of jobs begun anew for
    each): then each job is tried by itself, and of one that does not parse the plain fields are taken, if they are as a
    server writes them.
    """
    if text.lstrip().startswith("Job Id:"):
        return read_text(text)
    try:
        document = json.loads(text, strict=False) if text.count('"Jobs":') < 2 else None
    except (ValueError, RecursionError):
        document = None
    if document is None:
        records, whole = _salvage(text)
        return records, whole and _is_closed(text)
    if not isinstance(document, dict) or "pbs_version" not in document:
        return [], False
    jobs = document.get("Jobs", {})
    if not isinstance(jobs, dict):
        return [], False
    said = {"pbs_version": str(document["pbs_version"])}
    records = [{**_flat(job), **said, "Job_Id": native} for native, job in jobs.items() if isinstance(job, dict)]
    return records, len(records) == len(jobs)


def _salvage(text: str) -> tuple[list[dict[str, str]], bool]:
    """The jobs in a text that is no JSON, and whether that is all of them.

    If any but the last is in disorder, so may be the others: then it is none.
    """
    decoder = json.JSONDecoder(strict=False, object_pairs_hook=_once)
    records = []
    heads = list(JSON_JOB.finditer(text))
    for number, head in enumerate(heads):
        end = heads[number + 1].start() if number + 1 < len(heads) else len(text)
        body = text[head.end() : end]
        try:
            record = _flat(decoder.raw_decode("{" + body)[0])
        except (ValueError, RecursionError):
            record = _plain_fields(body, head[1])
        if next(iter(record), "") == "Job_Name" and "job_state" in record:
            records.append({**record, "Job_Id": head[2]})
        elif number + 1 < len(heads):
            return [], False
    return records, len(records) == len(heads)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(found := dict(pairs)) != len(pairs):
        raise ValueError("a key comes twice")
    return found


def _plain_fields(body: str, indent: str) -> dict[str, str]:
    """The fields of one job by its lines; none if they cannot be those of one job alone.

    It ends with a bracket that stands as far in as its id, or was cut off (and 271 may have become 2); and none of its
    own fields comes twice.
    """
    ends = [found.start() for found in re.finditer(rf"^{indent}\}},?[ \t]*$", body, re.MULTILINE)]
    fields = JSON_FIELD.findall(body[: ends[0]]) if len(ends) == 1 else []
    own = [(key, value.strip('"')) for space, key, value in fields if space == fields[0][0]]
    return dict(own) if len({key for key, _ in own}) == len(own) else {}


def _is_closed(text: str) -> bool:
    """Whether a text that is no JSON at least ends as one, with every job to its end."""
    return "pbs_version" in text and bool(re.search(r"\}\s*\}\s*\}\s*$", text))


def _element(native_id: str) -> tuple[str, int, str] | None:
    """(number, index, what follows) of an element of an array."""
    found = re.fullmatch(r"([0-9]+)\[([0-9]+)\](.*)", native_id, re.ASCII)
    return None if found is None else (found[1], int(found[2]), found[3])


def _flat(value: Mapping[str, Any]) -> dict[str, str]:
    flat: dict[str, str] = {}
    for key, part in value.items():
        if isinstance(part, dict):
            flat |= {f"{key}.{inner}": str(what) for inner, what in part.items()}
        else:
            flat[key] = str(part)
    return flat
