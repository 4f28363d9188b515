"""Grid Engine and its descendants: qsub, qstat -xml, qacct, qdel.

Its state is a set of letters. What ended is only in the accounting, some seconds later: for a moment a job is in
neither.
"""

import html
import re
from collections.abc import Mapping, Sequence

from rota.drivers.api import Ask, Outcome
from rota.drivers.dialect import Answer, Class, Command, Kind, Listing, Options, Queue, Seen, Submitted
from rota.drivers.native import element, keep_output, kinds, native_name, ranges, script, share, tag_of
from rota.drivers.options import Rules, Wants, check_directory, merge
from rota.drivers.pbs_records import date
from rota.drivers.sge_queues import read_qhost, size_of, with_limits
from rota.model.errors import UsageError

__all__ = ["Sge"]

NAME_MOST = 64
REMAPPED = 98
"""What a script's own 99 (Grid Engine: run it again) and 100 (put it into the error state) become."""
REPEAT = frozenset({"-l", "-ac", "-dc", "-hard", "-soft"})
"""What adds up; `-soft` and `-hard` are about the `-l` behind them, so each stays where it is."""
OWNED = {"-l": frozenset({"h_rt", "s_rt", "h_vmem", "gpu", "exclusive"})}
FIELD = re.compile(r"<(JB_job_number|JB_name|state|tasks)>([^<]*)</")
ELEMENT = "${SGE_TASK_ID:-0} > 0 ? ${SGE_TASK_ID:-0} - 1 : 0"
"""It is `undefined` without an array, which as the name of a variable that is not set counts as 0."""
LAUNCH = frozenset({1, 3, 4, 5, 6, 7, 8, 9, 10, 11, 26, 27, 28, 29, 31, 32, 33, 34, 35, 36, 38})
NODE_FAIL = frozenset({18, 19, 20, 21})
AGAIN = frozenset({24, 25})
"""Records of runs that were not the last."""
FAILED: Mapping[int, str] = {
    0: "no failure",
    1: "assumedly before job",
    3: "before writing config",
    4: "before writing PID",
    5: "on reading config file",
    6: "setting processor set",
    7: "before prolog",
    8: "in prolog",
    9: "before pestart",
    10: "in pestart",
    11: "before job",
    12: "before pestop",
    13: "in pestop",
    14: "before epilog",
    15: "in epilog",
    16: "releasing processor set",
    17: "through signal",
    18: "shepherd returned error",
    19: "before writing exit_status",
    20: "found unexpected error file",
    21: "in recognizing job",
    24: "migrating",
    25: "rescheduling",
    26: "opening output file",
    27: "searching requested shell",
    28: "changing into working directory",
    29: "AFS setup",
    30: "application error returned",
    31: "accessing sgepasswd file",
    32: "entry is missing in password file",
    33: "wrong password",
    34: "communicating with Grid Engine Helper Service",
    35: "before job in Grid Engine Helper Service",
    36: "checking configured daemons",
    37: "qmaster enforced h_rt, h_cpu, or h_vmem limit",
    38: "adding supplementary group",
    100: "assumedly after job",
}
TRANSIENT = (
    "commlib",
    "unable to send message",
    "unable to contact qmaster",
    "can't unpack",
    "got send error",
    "timeout",
    "timed out",
    "connection refused",
    "connection reset",
    "broken pipe",
    "sge_root",
    "try again",
)
WHY_MOST = 20
"""Jobs in one question why they wait."""
LATER = ("jobs are allowed",)
"""Words of a refusal because there are too many jobs now."""


def _table() -> dict[str, Kind]:
    pending, held = "qw Rq", "hqw hRwq hRqw"
    running, suspended = "r t hr Rr Rt", "s ts S tS T tT Rs Rts RS RtS RT RtT"
    failed, deleted = "Eqw Ehqw EhRqw", "dr dt dRr dRt ds dS dT dRs dRS dRT"
    table: dict[str, Kind] = dict.fromkeys(pending.split(), "pending")
    table |= dict.fromkeys(held.split(), "held")
    table |= dict.fromkeys(running.split(), "running")
    table |= dict.fromkeys(suspended.split(), "suspended")
    table |= dict.fromkeys(failed.split(), "failed")
    return table | dict.fromkeys(deleted.split(), "unsure") | {"z": "exited"}


class Sge:
    """Sun, Son of, Open, Univa and Altair Grid Engine."""

    name = "sge"
    programs: tuple[str, ...] = ("qsub", "qstat", "qdel", "qacct", "qhost")
    history_lag_s = 120.0
    array_most = 75_000
    chunk = 50
    """The history may be a command for each of them."""
    kill_chunk = 300
    forgets_waiting = True
    """What is deleted before it starts is not accounted for."""
    states: Mapping[str, Kind] = _table()
    strict: Mapping[str, Kind] = {state: "running" for state in _table() if state.startswith("d")}
    spread = "qrsh"
    deletes_by_kill = True
    allowed = frozenset(
        {"-A", "-a", "-ac", "-binding", "-ckpt", "-dc", "-dl", "-h", "-hard", "-js", "-l", "-m", "-M", "-now"}
        | {"-p", "-R", "-soft", "-tc", "-w"}
    )

    def version(self) -> Command:
        """Asks for the help, which begins with the version."""
        return Command(("qstat", "-help"))

    def is_mine(self, answer: Answer) -> bool:
        """`SGE 8.1.9`, `GE 6.2u5`, `UGE 8.5`, `OGS/GE 2011.11`, and the options that only it has."""
        text = answer.stdout + answer.stderr
        return "usage: qstat" in text and "pe_list" in text and "-urg" in text

    def submit(self, ask: Ask, options: Options) -> Command:
        """Everything is counted per slot; slots beyond one need a parallel environment.

        With several nodes it is the environment's allocation rule that spreads the slots. A soft time limit makes the
        warning: USR1 to all processes of the job.
        """
        wants = merge(Rules("Grid Engine", self.allowed, REPEAT, OWNED), ask, options)
        if wants.qos:
            raise UsageError(f"qos '{wants.qos}': Grid Engine has none; a queue (partition) stands for it")
        path = check_directory("Grid Engine", ask.directory, ":,$")
        argv = ["qsub", "-terse", "-N", native_name(ask, NAME_MOST, letter_first=True)]
        argv += ["-C", "", "-S", "/bin/sh", "-b", "n", "-j", "n"]
        argv += ["-wd", path, "-o", path, "-e", path, "-r", "y" if options.requeue else "n"]
        if ask.count > 1:
            argv += ["-t", f"1-{ask.count}"]
        slots = share(ask.amounts.cores, 1000) * ask.nodes
        if slots > 1:
            if options.parallel_environment is None:
                raise UsageError(
                    f"{slots} slots: Grid Engine wants a parallel environment for more than one; "
                    "set `parallel_environment` of the site (`qconf -spl` lists them)"
                )
            argv += ["-pe", options.parallel_environment, str(slots)]
        resources = self._resources(ask, options, wants)
        if resources:
            argv += ["-l", ",".join(resources)]
        if wants.partition:
            argv += ["-q", wants.partition]
        # `-A` is only a word in the accounting: what a user calls an account is a project here.
        if wants.account:
            argv += ["-P", wants.account]
        if wants.reservation:
            argv += ["-ar", wants.reservation]
        if not wants.values("-m"):
            argv += ["-m", "n"]
        return Command((*argv, *wants.argv()), _wrap(ask))

    def _resources(self, ask: Ask, options: Options, wants: Wants) -> list[str]:
        found = []
        if ask.time_s is not None:
            found.append(f"h_rt={ask.time_s}")
            if options.signal_s and ask.time_s >= 2 * options.signal_s:
                found.append(f"s_rt={ask.time_s - options.signal_s}")
        if ask.amounts.memory and options.memory_as != "none":
            found.append(f"h_vmem={share(ask.amounts.memory, share(ask.amounts.cores, 1000) << 20)}M")
        if ask.amounts.gpus:
            found.append(f"gpu={ask.amounts.gpus}")
        found += [f"{name}={count}" for name, count in ask.amounts.named]
        if ask.exclusive:
            found.append("exclusive=true")
        if wants.constraint:
            found.append(wants.constraint)
        return found

    def read_submit(self, ask: Ask, answer: Answer) -> Submitted:
        """`-terse` prints `123`, or `123.1-10:1`; some sites' wrappers print the long form after all."""
        found = set(re.findall(r"^(\d+)(?:\.\d+-\d+:\d+)?\s*$", answer.stdout, re.MULTILINE))
        found |= set(re.findall(r"Your job(?:-array)? (\d+)(?:\.\d+-\d+:\d+)? \(", answer.stdout))
        words = answer.words
        if len(found) == 1:
            return Submitted(found.pop(), "ok" if answer.code == 0 else "ambiguous", "" if answer.code == 0 else words)
        if found or answer.code is None or answer.code < 0 or answer.code == 255:
            return Submitted(None, "ambiguous", words)
        if answer.code == 0:
            return Submitted(None, "ambiguous", f"qsub succeeded and printed no job id: {words}")
        if answer.code in (126, 127) or _has(words, LATER):
            return Submitted(None, "transient", words)
        if _has(words, TRANSIENT):
            # Not even connected: it was never sent. Anything later may have arrived.
            never = _has(words, ("connection refused", "sge_root", "unable to contact qmaster"))
            return Submitted(None, "transient" if never else "ambiguous", words)
        return Submitted(None, "fatal", words)

    def element_id(self, native_id: str, element: int, count: int) -> str:
        """Tasks begin with 1: `6.1`, `6.2`, …"""
        return f"{native_id}.{element + 1}" if count > 1 else native_id

    def listing(self, user: str) -> Command:
        """Everything live, with the tasks of arrays one by one."""
        return Command(("qstat", "-xml", "-g", "d", "-u", user))

    def read_listing(self, answer: Answer, options: Options) -> Listing:
        """Jobs and tasks; waiting tasks may also come as ranges."""
        jobs, whole = _jobs(answer.stdout)
        table = kinds(self.states, self.strict, options)
        seen = tuple(
            self._live(native, job, table)
            for job in jobs
            for native in _task_ids(job["JB_job_number"], job.get("tasks", ""))
        )
        if answer.code == 0 and whole:
            return Listing(seen, "ok")
        return Listing(seen, "partial" if seen else "transient", answer.words)

    def _live(self, native: str, job: Mapping[str, str], table: Mapping[str, Kind]) -> Seen:
        state = job.get("state", "")
        kind = table.get(state) or _kind(state)
        outcome, reason = None, None
        if kind == "failed":
            outcome = Outcome(why="launch")
            reason = f"in the error state, where it stays until it is deleted (`qstat -j {native}` tells why)"
        elif "d" in state:
            reason = "is being deleted"
        elif set(state) & set("sST") or "h" in state:
            reason = f"state {state}"
        again = 1 if "R" in state else 0
        return Seen(native, state, kind, tag_of(job.get("JB_name", "")), reason, outcome, again, kind == "failed")

    def why_waiting(self, user: str, native_ids: Sequence[str]) -> Command:
        """What the scheduler said of some jobs; of each it may be many lines."""
        jobs = list(dict.fromkeys(native.partition(".")[0] for native in native_ids))
        return Command(("qstat", "-j", ",".join(jobs[:WHY_MOST])))

    def read_why_waiting(self, answer: Answer) -> Mapping[str, str]:
        """`scheduling info:`, which a site may have turned off; of several words of one job the first few."""
        out: dict[str, str] = {}
        for block in re.split(r"^=+[ \t]*$", answer.stdout, flags=re.MULTILINE)[1:]:
            number = re.search(r"^job_number:\s*(\d+)", block, re.MULTILINE)
            said = re.search(r"^scheduling info:[ \t]*(\S.*(?:\n[ \t]+\S.*)*)", block, re.MULTILINE)
            if number and said and "turned off" not in said[1]:
                words = list(dict.fromkeys(line.strip() for line in said[1].splitlines()))
                more = f"; and {len(words) - 3} more" if len(words) > 3 else ""
                out[number[1]] = "; ".join(words[:3]) + more
        return out

    def history(self, native_ids: Sequence[str]) -> Sequence[Command]:
        """The accounting of each job, with all its tasks; it takes one job at a time."""
        jobs = dict.fromkeys(native.partition(".")[0] for native in native_ids)
        return [Command(("qacct", "-j", job)) for job in jobs]

    def read_history(self, answer: Answer, options: Options) -> Listing:
        """The last run of each task; runs that were started again before count as requeued."""
        records, whole = _records(answer.stdout)
        runs: dict[str, list[dict[str, str]]] = {}
        for record in records:
            if record.get("pe_taskid", "NONE") not in ("NONE", "undefined", "-"):
                continue  # One process of a parallel job, on another host.
            task = record.get("taskid", "undefined")
            native = record["jobnumber"] + (f".{task}" if task.isdigit() else "")
            runs.setdefault(native, []).append(record)
        seen = []
        for native, several in runs.items():
            last = [record for record in several if _number(record.get("failed")) not in AGAIN]
            if last:
                seen.append(self._ended(native, last[-1], len(several) - len(last), options))
        if answer.code == 0 and whole:
            return Listing(tuple(seen), "ok" if seen else "not-found", "" if seen else "no run of it has ended")
        words = answer.words
        if answer.code == 1 and re.search(r"job (id|name) \S+ not found", answer.stderr):
            return Listing((), "not-found", words)
        if answer.code == 1 and "no jobs running since startup" in answer.stdout:
            return Listing((), "not-found", words)  # the accounting begins with the first job that ends
        return Listing(tuple(seen), "partial" if seen else "transient", words)

    def _ended(self, native: str, record: Mapping[str, str], again: int, options: Options) -> Seen:
        failed, status = _number(record.get("failed")), _number(record.get("exit_status"))
        words = f"failed {failed}: {FAILED.get(failed or 0, 'unknown')}" if failed else f"exit status {status}"
        started, ended = date(record.get("start_time")), date(record.get("end_time"))
        kind: Kind = "failed"
        why = signal = code = None
        if (by := record.get("deleted_by", "NONE")) not in ("NONE", "undefined", "-", ""):
            kind, why, words = "aborted", "cancelled", f"deleted by {by}; {words}"
        if failed is None or status is None:
            kind = "unsure" if kind == "failed" else kind
            words = "its accounting record cannot be read"
        elif failed == 0 and status == 0 and _used_nothing(record):
            # What a forced deletion leaves of a job on a lost host: nobody saw how it ended.
            kind, words = ("exited" if kind == "failed" else kind), "accounted without any use of its host"
        elif failed in LAUNCH:
            why = why or "launch"
        elif failed in NODE_FAIL:
            why = why or "node-fail"
            kind = "aborted" if options.strict else kind
        elif failed == 37:
            signal, why = (status - 128 if status > 128 else None), why or _limit(record)
        elif failed in (17, 100) and status > 128:
            signal = status - 128
        else:
            code = status
            if failed == 0 and status == 0 and kind == "failed":
                kind = "completed"
        cpu, memory = _amount(record.get("cpu")), _peak(record)
        outcome = Outcome(code, signal, why, record.get("hostname") or None, started, ended, cpu, memory)
        if kind in ("exited", "unsure"):
            outcome = Outcome(host=outcome.host, started=started, ended=ended)
        state = f"failed={record.get('failed', '?').split()[0] if record.get('failed') else '?'}"
        return Seen(native, state, kind, tag_of(record.get("jobname", "")), words, outcome, again)

    def find(self, tag: str, user: str) -> Sequence[Command]:
        """By name: the live ones of the user, then the accounting."""
        return [Command(("qstat", "-xml", "-u", user)), Command(("qacct", "-j", f"*-{tag}"))]

    def read_find(self, tag: str, answer: Answer) -> Submitted:
        """The job with the tag in its name; the oldest, if there are several."""
        jobs, whole = _jobs(answer.stdout)
        records, complete = _records(answer.stdout)
        ids = {int(job["JB_job_number"]) for job in jobs if tag_of(job.get("JB_name", "")) == tag}
        ids |= {int(record["jobnumber"]) for record in records if tag_of(record.get("jobname", "")) == tag}
        if ids:
            first, *others = map(str, sorted(ids))
            return Submitted(first, "ok", "", tuple(others))
        words = answer.words
        if answer.code == 0 and (whole or complete):
            return Submitted(None, "not-found", "")
        if answer.code == 1 and re.search(r"job (id|name) \S+ not found", answer.stderr):
            return Submitted(None, "not-found", words)
        if answer.code == 1 and "accounting" in words.lower():
            # This host cannot see the accounting at all: then the live jobs are all that can be looked at.
            return Submitted(None, "not-found", words)
        return Submitted(None, "transient", words)

    def kill(self, native_ids: Sequence[str], force: int) -> Command:
        """qdel sends KILL at once: there is nothing gentler. By force it forgets a job whose host is lost."""
        return Command(("qdel", *(("-f",) if force >= 2 else ()), *native_ids))

    def read_kill(self, answer: Answer) -> tuple[Class, str]:
        """A line for each job, and complaints are on stdout too; the exit status is that of the worst."""
        lines = [line.strip() for line in (answer.stdout + "\n" + answer.stderr).splitlines() if line.strip(" .\n")]
        words = "; ".join(lines)[:300]
        if answer.code is None:
            return "transient", words or "it took too long"
        done = ("has registered", "has deleted", "already in deletion", "forced the deletion", "does not exist")
        rest = [line for line in lines if not any(text in line for text in done)]
        if lines and not rest:
            return "ok", words
        if any("privileges" in line or "denied:" in line for line in rest):
            return "fatal", words
        return "transient", words or "an empty answer"

    def array_limit(self) -> Command:
        """The global configuration."""
        return Command(("qconf", "-sconf"))

    def read_array_limit(self, answer: Answer) -> int | None:
        """The most tasks of an array; 0: as many as you like."""
        found = re.search(r"^max_aj_tasks\s+(\d{1,9})\s*$", answer.stdout, re.MULTILINE)
        return int(found[1]) or None if found else None

    def queues(self) -> Command | None:
        """All hosts with their queue instances."""
        return Command(("qhost", "-q", "-xml"))

    def read_queues(self, answer: Answer) -> tuple[Queue, ...]:
        """Queues, with the largest of their hosts."""
        return read_qhost(answer.stdout) if answer.code == 0 else ()

    def queue_details(self, queues: Sequence[Queue]) -> Sequence[Command]:
        """The configuration of the queues."""
        return [Command(("qconf", "-sq", ",".join(queue.name for queue in queues)))] if queues else []

    def read_queue_details(
        self, queues: tuple[Queue, ...], answers: Sequence[Answer], options: Options
    ) -> tuple[Queue, ...]:
        """Queues with their longest times; one without the site's parallel environment has one slot for a job."""
        answer = answers[0]
        return with_limits(queues, answer.stdout, options.parallel_environment) if answer.code == 0 else queues


def _kind(state: str) -> Kind:
    """The kind of a state by its letters, for a combination that the table does not have."""
    letters = set(state)
    if not letters or letters - set("EdrtsSTNPqwhRz"):
        return "unsure"
    groups = (("E", "failed"), ("d", "unsure"), ("sSTNP", "suspended"), ("rt", "running"), ("h", "held"))
    for group, meaning in (*groups, ("qw", "pending")):
        if letters & set(group):
            return meaning  # type: ignore[return-value]
    return "exited" if "z" in letters else "unsure"


def _wrap(ask: Ask) -> str:
    """The script in a subshell, so that it cannot make Grid Engine run it again, nor be ended by the warning."""
    inner = script(ask.script, ["trap : USR1 USR2", *element(ELEMENT), *keep_output(ask.tag), "("])
    tail = f"rota_code=$?\ncase $rota_code in 99|100) rota_code={REMAPPED};; esac\nexit $rota_code\n"
    return f"{inner}\n)\n{tail}"


def _has(words: str, texts: Sequence[str]) -> bool:
    low = words.lower()
    return any(text in low for text in texts)


def _jobs(text: str) -> tuple[list[dict[str, str]], bool]:
    """The jobs of a listing, each read by itself, and whether it is a whole one."""
    jobs = []
    for part in text.split("</job_list>")[:-1]:
        job = dict(FIELD.findall(part, part.find("<job_list")))
        number = job.get("JB_job_number", "")
        if number.isascii() and number.isdigit():
            if "&" in job.get("JB_name", ""):
                job["JB_name"] = html.unescape(job["JB_name"])
            jobs.append(job)
    closed = text.rstrip().endswith("</job_info>") and text.count("<job_info") == text.count("</job_info>")
    return jobs, closed and text.count("<job_list") == len(jobs)


def _task_ids(job: str, tasks: str) -> list[str]:
    """Native ids: of `5-9:2,12` the tasks; of nothing the job."""
    return [f"{job}.{task}" for task in ranges(tasks) or ()] or [job]


def _records(text: str) -> tuple[list[dict[str, str]], bool]:
    """The records of the accounting, and whether all are whole; one that was cut off is left out.

    If a line is where it cannot be, none of them is believed.
    """
    records = []
    parts = re.split(r"^=+[ \t]*$", text[: text.rfind("\n") + 1], flags=re.MULTILINE)[1:]
    for part in parts:
        pairs = [pair for line in part.split("\n") if len(pair := line.split(None, 1)) == 2]
        record = {pair[0]: pair[1].strip() for pair in pairs}
        if pairs and (len(record) != len(pairs) or pairs[0][0] != "qname"):
            return [], False
        number = record.get("jobnumber", "")
        if number.isascii() and number.isdigit() and {"failed", "exit_status", "maxvmem"} <= record.keys():
            records.append(record)
    return records, bool(parts) and len(records) == len(parts) and text.endswith("\n")


def _number(text: str | None) -> int | None:
    found = re.match(r"\s*(\d{1,9})(?!\S)", text or "")
    return int(found[1]) if found else None


def _amount(text: str | None) -> float | None:
    found = re.match(r"\s*(\d{1,15}(?:\.\d{1,9})?)s?\s*$", text or "")
    return float(found[1]) if found else None


def _peak(record: Mapping[str, str]) -> int | None:
    """Resident memory. ru_maxrss is in kilobytes, whatever unit newer versions print behind it."""
    if (modern := size_of(record.get("maxrss"), 1024)) is not None:
        return modern
    old = size_of(record.get("ru_maxrss"), 1000)
    return old * 1024 if old else None


def _used_nothing(record: Mapping[str, str]) -> bool:
    spent = (_amount(record.get("cpu")), size_of(record.get("ru_maxrss"), 1000), _number(record.get("ru_minflt")))
    return "ru_minflt" in record and not any(spent)


def _limit(record: Mapping[str, str]) -> str:
    """Which limit ended a job: time, unless only memory was limited or the time had not passed."""
    asked = dict(re.findall(r"\b(h_rt|h_cpu|h_vmem)=([^\s,]+)", record.get("category", "")))
    wall = _amount(record.get("ru_wallclock"))
    limit = _amount(asked.get("h_rt"))
    if "h_vmem" in asked and not (wall is not None and limit is not None and wall >= limit):
        return "oom" if "h_cpu" not in asked else "time"
    return "time"
