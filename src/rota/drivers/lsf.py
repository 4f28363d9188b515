"""IBM Spectrum LSF, and OpenLava, its older relative: bsub, bjobs, bhist, bkill, bqueues.

LSF lists jobs in columns that we choose (`bjobs -o`); OpenLava has only its wide table, and the exit code of an ended
job only in bhist. Listings are asked *with* their heading: an answer with neither it nor the words `No job found` is no
answer. Indices of arrays begin at 1: element 0 is `123[1]`.
"""

import re
from collections.abc import Mapping, Sequence

from rota.drivers.api import Ask
from rota.drivers.bhist import CANCELLED, events
from rota.drivers.bjobs import JOB, LOOK, NOTHING, read_row, read_table, read_wide, whole_rows
from rota.drivers.dialect import Answer, Class, Command, Kind, Listing, Options, Queue, Seen, Submitted
from rota.drivers.lsf_queues import read_bqueues, with_hosts
from rota.drivers.native import WARNED, element, enter, kinds, native_name, script, share, words, worth
from rota.drivers.options import Rules, check_directory, merge
from rota.model.errors import UsageError

__all__ = ["Lsf", "OpenLava"]

MIB = 1 << 20
NAME_MOST = 73
"""It takes thousands; longer ones are of no use to people."""
STATES: Mapping[str, Kind] = {
    "PEND": "pending",
    "PROV": "pending",
    "PSUSP": "held",  # it was stopped while it waited
    "RUN": "running",
    "USUSP": "suspended",
    "SSUSP": "suspended",
    "DONE": "completed",
    "PDONE": "completed",
    "POST_DONE": "completed",
    "EXIT": "failed",
    "PERR": "exited",
    "POST_ERR": "exited",
    "ERROR": "exited",  # what OpenLava calls a failed job whose post-execution command has run
    "UNKWN": "unsure",
    "WAIT": "unsure",
    "ZOMBI": "unsure",
    "NULL": "unsure",
}
STRICT: Mapping[str, Kind] = {
    "WAIT": "pending",
    "PERR": "failed",
    "POST_ERR": "failed",
    **{f"TERM_{word}": "aborted" for word in (*CANCELLED, "PREEMPT", "RUNLIMIT", "MEMLIMIT")},
}
UNREACHABLE = (
    "lim is down",
    "lsf is down",
    "cannot connect to lsf",
    "not responding",
    "non-lsf host",
    "command not found",
    "unable to resolve",
    "connection refused",
    "timeout on connect call",
    "batch service not registered",
    "batch daemon cannot fork",
    "fail to bind to an appropriate port",
    "server is not connected",
)
LOST = (
    "connection reset",
    "communication time",  # `Communication time out`, and `Communication timeout`
    "broken pipe",
    "timed out",
    "failed in an lsf library call",
    "system call failed",
    "internal error",
    "protocol error",
    "xdr encode/decode error",
    "child process died",
)
LATER = (
    "pending job threshold",
    "job limit",
    "number of pending",
    "maximum number of",
    "queue has been closed",
    "queue is closed",
    "closed by",
    "resource temporarily unavailable",
    "no job id can be used now",
    "currently eligible",
    "cannot allocate memory",
)
FATAL = (
    "error in rusage section",
    "expected number, string",
    "no such queue",
    "too many processors requested",
    "cannot be used in the resource requirement section",
    "duplicate section",
    "unable to open file lsf.conf",
    "user permission denied",
    "illegal option",
    "invalid option",
)
SUBMIT: tuple[tuple[Class, tuple[str, ...]], ...] = (
    ("fatal", FATAL),
    ("ambiguous", LOST),  # before those that bsub also says while it tries again by itself
    ("transient", (*LATER, *UNREACHABLE)),
    ("fatal", ("job not submitted",)),  # at the end of all of these, whatever was the matter
)
DELIVERED = (
    *("being terminated", "being signaled", "already finished", "no matching job", "operation is in progress"),
    "job array does not exist",
)

FIELDS = (
    "jobid jobindex stat exit_code exit_reason start_time finish_time first_host cpu_used max_mem pend_reason job_name"
    " delimiter='^'"
)
SUBMITTED = re.compile(r"Job <([1-9]\d{0,18})> is submitted to .*queue")
DIRECTIVE = re.compile(r"^\s*#.*BSUB.*$", re.MULTILINE)
RELEASE = re.compile(r"\bLSF\b\D*(\d+)\.")
SECTION = re.compile(r"([a-z]+)\[([^\]\[]*)\]")
ALLOWED = """
    a app b B C c clusters csm D data eptl F G g hl Jd jsm L Lp m N network nnodes notify ptl p R S sla sp T u ul v We
"""


OLD_ALLOWED = "a b B C c D F G g Jd L m N p R S sp T u v"
"""Of OpenLava's own list. What it does not know it takes for something else: `-app X` for `-a pp` and the command X."""


class Lsf:
    """The dialect of LSF 10.1."""

    name = "lsf"
    title = "LSF"
    reserves = True
    """Whether there are advance reservations."""
    programs: tuple[str, ...] = ("bsub", "bjobs", "bhist", "bkill", "bqueues")
    history_lag_s = 10.0
    array_most = 1000
    chunk = 200
    states: Mapping[str, Kind] = STATES
    strict: Mapping[str, Kind] = STRICT
    spread = "blaunch"
    allowed = frozenset(f"-{word}" for word in ALLOWED.split())

    def version(self) -> Command:
        """`IBM Spectrum LSF Standard 10.1.0.0, …`, on stderr."""
        return Command(("bsub", "-V"))

    def is_mine(self, answer: Answer) -> bool:
        """Whether the program calls itself LSF, under any of its owners, and knows `bjobs -o`."""
        return answer.code is not None and _release(answer.stdout + answer.stderr) >= 9

    def submit(self, ask: Ask, options: Options) -> Command:
        """All on the command line; the script on stdin, where a `#BSUB` would be read as an option, so none is left."""
        rules = Rules(self.title, self.allowed, frozenset({"-R"}), phrases=frozenset({"constraint"}))
        wants = merge(rules, ask, options)
        check_directory(self.title, ask.directory)
        if wants.reservation and not self.reserves:
            kept = "use a queue that is kept for you"
            raise UsageError(f"{self.title} has no reservations ('{wants.reservation}'): {kept}")
        if wants.qos:
            instead = "a service class as option -sla, or " if "-sla" in self.allowed else ""
            raise UsageError(f"{self.title} has no qos ('{wants.qos}'): give {instead}a queue")
        name = native_name(ask, NAME_MOST)
        argv = ["bsub", "-J", f"{name}[1-{ask.count}]" if ask.count > 1 else name]
        argv += ["-o", f"{ask.directory}/{ask.tag}.{'%I' if ask.count > 1 else 0}.out"]  # the element's number + 1
        argv += self._own(ask, options)
        sections = self._sizes(ask, options)
        for given in reversed(wants.values("-R")):  # of most sections the first counts, and the user is stronger
            sections += _sections(given)
        slots = max(share(ask.amounts.cores, 1000), ask.tasks_per_node)
        argv += ["-n", str(slots * ask.nodes)]
        if ask.nodes > 1:
            sections.append(("span", f"ptile={slots}"))
        elif slots > 1:
            sections.append(("span", "hosts=1"))
        if wants.constraint:
            sections.append(("select", wants.constraint))
        if sections:
            argv += ["-R", _resources(sections, self.between)]
        if ask.time_s is not None:
            argv += ["-W", str(share(ask.time_s, 60))]
        for option, value in (("-q", wants.partition), ("-P", wants.account), ("-U", wants.reservation)):
            argv += [option, value] if value else []
        argv += ["-x"] if ask.exclusive else []
        number = "${LSB_JOBINDEX:-0} > 0 ? ${LSB_JOBINDEX:-0} - 1 : 0"
        text = script(ask.script, [*WARNED, *element(number), *enter(ask.directory)])
        # Blanks around the `#` change nothing for bsub, and a `\\` at the end of such a line eats the next one.
        text = DIRECTIVE.sub(lambda line: line[0].replace("BSUB", "B.SUB"), text)
        return Command((*argv, *wants.argv(but="-R")), text)

    def _own(self, ask: Ask, options: Options) -> list[str]:
        """Arguments that OpenLava does not have: the directory, the warning before the end, gpus, no second run."""
        out = ["-cwd", ask.directory, "-r" if options.requeue else "-rn"]
        warning = share(options.signal_s, 60)
        if options.signal_s and ask.time_s is not None and share(ask.time_s, 60) >= 2 * warning:
            out += ["-wa", "USR1", "-wt", str(warning)]
        if ask.amounts.gpus:
            out += ["-gpu", f"num={ask.amounts.gpus}"]
        if ask.amounts.memory and options.memory_as != "none":
            out += ["-M", f"{share(ask.amounts.memory, MIB)}MB"]
        return out

    unit = "MB"
    """Behind sizes in resource requirements: a bare number means what the site's configuration says."""
    between = ","
    """Between two resources that are to be reserved."""

    def _sizes(self, ask: Ask, options: Options) -> list[tuple[str, str]]:
        """What each host is to reserve."""
        out = []
        slots = max(share(ask.amounts.cores, 1000), ask.tasks_per_node)
        if ask.amounts.memory and options.memory_as != "none":
            parts = slots if options.memory_as == "per-cpu" else 1
            out.append(("rusage", f"mem={share(ask.amounts.memory, MIB * parts)}{self.unit}"))
        if ask.amounts.disk:
            out.append(("rusage", f"tmp={share(ask.amounts.disk, MIB)}{self.unit}"))
        return out + [("rusage", f"{name}={count}") for name, count in ask.amounts.named if count]

    def read_submit(self, ask: Ask, answer: Answer) -> Submitted:
        """`Job <123> is submitted to default queue <normal>.`, perhaps below a notice."""
        if answer.code is None:
            return Submitted(None, "ambiguous", words(answer))
        if answer.code == 0:
            ids = set(SUBMITTED.findall(answer.stdout))  # of two nobody knows which is ours
            return Submitted(ids.pop(), "ok", "") if len(ids) == 1 else Submitted(None, "ambiguous", words(answer))
        return Submitted(None, worth(answer.stdout + answer.stderr, SUBMIT) or "ambiguous", words(answer))

    def element_id(self, native_id: str, element: int, count: int) -> str:
        """`123[5]`; of one, `123`."""
        return f"{native_id}[{element + 1}]" if count > 1 else native_id

    def listing(self, user: str) -> Command:
        """Ended jobs included, as long as the site keeps them (CLEAN_PERIOD)."""
        return Command(("bjobs", "-a", "-u", user, "-o", FIELDS))

    def read_listing(self, answer: Answer, options: Options) -> Listing:
        """Columns of either form, by their heading."""
        heading, lines, result, detail = read_table(answer)
        mark = heading[5:6].strip()
        columns = heading.split(mark) if mark else []
        table = kinds(self.states, self.strict, options)
        seen: list[Seen] = []
        foreign = False  # the line before has the name of a job that is not ours, which may go on in this one
        for line in whole_rows(lines, mark, len(columns)) if mark else lines:
            cells = line.split(mark, len(columns) - 1) if mark else []
            row = dict(zip(columns, cells, strict=False)) if len(cells) == len(columns) else {}
            one = read_row(row if mark else read_wide(line), table)
            if one is not None:
                seen.append(one)
                foreign = one.tag is None
            elif not (foreign and not JOB.match(line)):
                result, detail = "partial", detail or f"a line that is none: {line[:80]!r}"
        return Listing(tuple(seen), result, detail)

    def history(self, native_ids: Sequence[str]) -> Sequence[Command]:
        """bhist, through all event files: a busy site begins a new one many times a day."""
        return [Command(("bhist", "-l", "-n", "0", *native_ids))] if native_ids else []

    def read_history(self, answer: Answer, options: Options) -> Listing:
        """The events of each job. What has not ended by them is unsure: the listing knows better."""
        table = kinds(self.states, self.strict, options)
        seen, whole = events(answer.stdout, table)
        if not seen:
            nothing = answer.code is not None and worth(answer.stdout + answer.stderr, (("not-found", NOTHING),))
            return Listing((), nothing or worth(answer.stderr, LOOK) or "transient", words(answer))
        well = answer.code == 0 and whole
        return Listing(tuple(seen), "ok" if well else "partial", "" if well else words(answer))

    def find(self, tag: str, user: str) -> Sequence[Command]:
        """All jobs of the user: by name bjobs would say `not found` both of none and of too early."""
        return [self.listing(user)]

    def read_find(self, tag: str, answer: Answer) -> Submitted:
        """The oldest job with the tag, should there be several."""
        seen, result, detail = self.read_listing(answer, Options())
        found = {int(one.native_id.partition("[")[0]) for one in seen if one.tag == tag}
        if found:
            first, *others = sorted(found)
            return Submitted(str(first), "ok", "", tuple(map(str, others)))
        if result == "ok":
            return Submitted(None, "not-found", f"no job of that name ends in {tag}")
        return Submitted(None, "transient" if result in ("partial", "not-found") else result, detail)

    def kill(self, native_ids: Sequence[str], force: int) -> Command:
        """bkill is gentle by itself: INT, TERM, then KILL, ten seconds apart. -s TERM would miss waiting jobs.

        -r takes a job off the books whose host does not answer.
        """
        return Command(("bkill", *(("-r",) if force >= 2 else ()), *native_ids))

    def read_kill(self, answer: Answer) -> tuple[Class, str]:
        """One line per job, on stdout or stderr. `Operation is in progress` is said of jobs that do get killed."""
        if answer.code is None:
            return "transient", words(answer)
        lines = [line for line in (answer.stdout + "\n" + answer.stderr).lower().splitlines() if line.strip()]
        left = [line for line in lines if not any(phrase in line for phrase in DELIVERED)]
        if not left and (lines or answer.code == 0):
            return "ok", ""
        hopeless = bool(left) and all("permission denied" in line or "illegal job id" in line for line in left)
        return ("fatal" if hopeless else "transient"), words(answer)

    def array_limit(self) -> Command:
        """The parameters in full."""
        return Command(("bparams", "-l"))

    def read_array_limit(self, answer: Answer) -> int | None:
        """The largest index, and indices begin with 1."""
        found = re.search(r"\bMAX_JOB_ARRAY_SIZE\s*=\s*(\d{1,9})", answer.stdout)
        return max(1, int(found[1])) if found else None

    def queues(self) -> Command | None:
        """All queues with their limits; the sizes of hosts are not in it."""
        return Command(("bqueues", "-l"))

    def read_queues(self, answer: Answer) -> tuple[Queue, ...]:
        """One block per queue, which begins with `QUEUE: name`."""
        return read_bqueues(answer.stdout) if answer.code == 0 else ()

    def queue_details(self, queues: Sequence[Queue]) -> Sequence[Command]:
        """The usual queue, the slots of hosts, their memory."""
        return [self.array_limit(), Command(("bhosts", "-w")), Command(("lshosts", "-w"))]

    def read_queue_details(
        self, queues: tuple[Queue, ...], answers: Sequence[Answer], options: Options
    ) -> tuple[Queue, ...]:
        """Queues with their hosts. Of gpus none of these programs says anything."""
        params, slots, sizes = (answer.stdout if answer.code == 0 else "" for answer in answers)
        return with_hosts(queues, params, slots, sizes)


class OpenLava(Lsf):
    """The dialect of OpenLava, and of LSF before 9: no `bjobs -o`, no units, no warnings, no gpus."""

    name = "openlava"
    title = "OpenLava"
    reserves = False
    allowed = frozenset(f"-{word}" for word in OLD_ALLOWED.split())
    spread = "ssh"
    unit = ""
    between = ":"

    def is_mine(self, answer: Answer) -> bool:
        """It has the programs of LSF, and calls itself `OpenLava 4.0`, `openlava project 2.2` or `Platform Lava`."""
        said = answer.stdout + answer.stderr
        return answer.code is not None and ("lava" in said.lower() or 0 < _release(said) < 9)

    def listing(self, user: str) -> Command:
        """The wide table, where names are whole."""
        return Command(("bjobs", "-a", "-w", "-u", user))

    def why_waiting(self, user: str, native_ids: Sequence[str]) -> Command:
        """The table of what waits, with a line of reasons below each; those of one user are few enough."""
        return Command(("bjobs", "-p", "-w", "-u", user))

    def read_why_waiting(self, answer: Answer) -> Mapping[str, str]:
        """` Job slot limit reached: 1 host;`, below its job; some say nothing before the colon."""
        out: dict[str, str] = {}
        job = None
        for line in answer.stdout.splitlines():
            if not line.startswith(" "):
                found = read_row(read_wide(line), self.states)
                job = None if found is None else found.native_id
            elif job is not None and re.match(r"\s*\w", line):
                out[job] = f"{out[job]}; {line.strip(' ;')}" if job in out else line.strip(" ;")
        return out

    def _own(self, ask: Ask, options: Options) -> list[str]:
        if ask.amounts.gpus:
            raise UsageError(f"OpenLava cannot be asked for gpus ({ask.amounts.gpus}): use a queue that has them")
        out = ["-r"] if options.requeue else []
        if ask.amounts.memory and options.memory_as != "none":
            out += ["-M", str(share(ask.amounts.memory, 1024))]
        return out


def _release(said: str) -> int:
    """The 10 of `IBM Spectrum LSF Standard 10.1.0.0, Jul 08 2016`; 0: it is not LSF."""
    found = RELEASE.search(said)
    return int(found[1][:4]) if found and "lava" not in said.lower() else 0


def _sections(text: str) -> list[tuple[str, str]]:
    """The sections of a resource requirement; one without any is a selection."""
    if not text.strip():
        return []
    if "{" in text or ("[" in text and SECTION.sub("", text).strip()):
        raise UsageError(f"LSF: option -R '{text}': give plain sections like select[…] rusage[…], or only a selection")
    return SECTION.findall(text) or [("select", text.strip())]


def _resources(sections: Sequence[tuple[str, str]], between: str) -> str:
    """One string with each section once: LSF refuses a second one of a kind."""
    merged: dict[str, str] = {}
    for name, inside in sections:
        if name not in merged:
            merged[name] = inside
        elif name == "rusage":
            merged[name] += between + inside
        elif name == "select":
            merged[name] = f"({merged[name]}) && ({inside})"
    return " ".join(f"{name}[{inside}]" for name, inside in merged.items())
