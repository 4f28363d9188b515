"""Slurm: sbatch, squeue, sacct, scancel, sinfo.

`squeue -t all` shows all that the controller still knows, exit status and restarts included, so one command serves both
live and finished jobs; sacct is for those that the controller has forgotten. Both are asked *with* their heading: an
answer without it is no answer, while a heading alone truly means that there is nothing.
"""

import re
from collections.abc import Mapping, Sequence

from rota.drivers.api import Ask
from rota.drivers.dialect import Answer, Class, Command, Kind, Listing, Options, Queue, Submitted
from rota.drivers.native import WARNED, element, enter, kinds, native_name, script, share, words, worth
from rota.drivers.options import NAMED, Rules, Wants, check_directory, merge
from rota.drivers.slurm_answers import (
    COLUMNS,
    FIELDS,
    GONE,
    HOPELESS,
    OTHER,
    SUBMIT,
    TABLE,
    find_tag,
    read_sacct,
    read_squeue,
    seconds,
)

__all__ = ["Slurm"]

MIB = 1 << 20
NAME_MOST = 73
"""Less than the listing's column: a name that is cut there has no tag."""
GPUS = re.compile(r"(?:^|,)gpu(?::[A-Za-z][^,:()]*)?:(\d+)")
JOB_SIZE = re.compile(r"(?:\d+-)?(\d{1,9})")
"""Of `1-4` and `4` the most; `1-infinite` says nothing."""
GROUPS = ("(some groups)",)
"""Stands for the users of groups: sinfo itself knows who is in them."""
SUBMITTED = re.compile(r"(?:Submitted batch job )?([1-9]\d{0,18})(?:;\S*)?(?: on cluster \S+)?")
ALLOWED = """
    acctg-freq batch bb bbf begin cluster-constraint comment container contiguous core-spec cores-per-socket cpu-freq
    cpus-per-gpu deadline delay-boot distribution exclude extra extra-node-info gpu-bind gpu-freq gpus gpus-per-node
    gpus-per-socket gpus-per-task gres gres-flags hint licenses mail-type mail-user mcs-label mem-bind mem-per-gpu
    mincpus network nice nodelist ntasks-per-core ntasks-per-gpu ntasks-per-socket overcommit oversubscribe power prefer
    priority profile propagate reboot sockets-per-node spread-job switches thread-spec threads-per-core time-min
    tres-bind tres-per-task use-min-nodes wait-all-nodes wckey
"""


class Slurm:
    """The dialect of Slurm."""

    name = "slurm"
    programs: tuple[str, ...] = ("sbatch", "squeue", "scancel", "sacct", "sinfo")
    history_lag_s = 30.0
    array_most = 1000
    chunk = 200
    states: Mapping[str, Kind] = {form: row[2] for row in TABLE for form in row[:2] if form}
    strict: Mapping[str, Kind] = {form: row[3] for row in TABLE for form in row[:2] if form and row[3]}
    allowed = frozenset(f"--{word}" for word in ALLOWED.split())
    spread = "srun"
    hopeless = HOPELESS

    def version(self) -> Command:
        """`slurm-wlm 22.05.8`."""
        return Command(("sbatch", "--version"))

    def is_mine(self, answer: Answer) -> bool:
        """Only Slurm has an sbatch that says so, perhaps below a notice."""
        return answer.code == 0 and any(line.startswith("slurm") for line in answer.stdout.splitlines())

    def submit(self, ask: Ask, options: Options) -> Command:
        """All on the command line, which is stronger than SBATCH_* variables and lines in the script.

        The environment goes along whole (`ALL`): NIL, NONE and lists make the node run a login shell for the job, and
        hold the job if that fails or is slow. What goes along is what the submit command was given, which is little.
        """
        wants = merge(Rules("Slurm", self.allowed), ask, options)
        files = check_directory("Slurm", ask.directory).replace("\\", "\\\\").replace("%", "%%")
        argv = [
            "sbatch",
            "--parsable",
            f"--job-name={native_name(ask, NAME_MOST)}",
            f"--chdir={ask.directory}",
            f"--output={files}/{ask.tag}.{'%a' if ask.count > 1 else 0}.out",  # the element's number
            "--open-mode=append",
            "--export=ALL",
            "--requeue" if options.requeue else "--no-requeue",
            *([f"--array=0-{ask.count - 1}"] if ask.count > 1 else []),
            *_sizes(ask, options, wants),
        ]
        argv += [f"--{name}={value}" for name in NAMED if (value := getattr(wants, name))]
        lines = [*WARNED, *element("${SLURM_ARRAY_TASK_ID:-0}"), *enter(ask.directory)]
        return Command((*argv, *wants.argv(but="--gres")), script(ask.script, lines))

    def read_submit(self, ask: Ask, answer: Answer) -> Submitted:
        """The id alone on a line, with `;cluster` behind it at some sites."""
        if answer.code == 0:
            found = [SUBMITTED.fullmatch(line.strip()) for line in answer.stdout.splitlines()]
            ids = {match[1] for match in found if match}
            if len(ids) == 1:  # of two nobody knows which is ours
                return Submitted(ids.pop(), "ok", "")
            return Submitted(None, "ambiguous", words(answer))
        if answer.code is None:
            return Submitted(None, "ambiguous", words(answer))
        return Submitted(None, worth(answer.stderr, SUBMIT) or "ambiguous", words(answer))

    def element_id(self, native_id: str, element: int, count: int) -> str:
        """`123_4`; of one, `123`."""
        return f"{native_id}_{element}" if count > 1 else native_id

    def listing(self, user: str) -> Command:
        """Columns of fixed width: the only form that shows the exit status, and one that no text can break."""
        wanted = ",".join(f"{name}:{width}" for name, width in COLUMNS)
        return Command(("squeue", "-a", "-r", "-t", "all", "-u", user, "-O", wanted))

    def read_listing(self, answer: Answer, options: Options) -> Listing:
        """One line per job or element."""
        return read_squeue(answer, kinds(self.states, self.strict, options, OTHER), options)

    def history(self, native_ids: Sequence[str]) -> Sequence[Command]:
        """sacct, by whole array: elements that were cancelled while they waited have one record for all of them.

        scontrol knows no more than `squeue -t all`, so it is not asked.
        """
        wanted = dict.fromkeys(native_id.partition("_")[0] for native_id in native_ids)
        return [Command(("sacct", "-P", "-j", ",".join(wanted), "-o", FIELDS))] if wanted else []

    def read_history(self, answer: Answer, options: Options) -> Listing:
        """The end of jobs. Of others sacct is seconds late (PENDING while they run), so those are unsure."""
        return read_sacct(answer, kinds(self.states, self.strict, options, OTHER))

    def find(self, tag: str, user: str) -> Sequence[Command]:
        """All jobs of the user with their names; then the accounting, for what the controller has forgotten."""
        live = Command(("squeue", "-a", "-t", "all", "-u", user, "-O", "JobArrayID:24,Name:80,Reason:64"))
        past = ("sacct", "-X", "-P", "-u", user, "-S", "now-2days", "-o", "JobID,State,NodeList,JobName")
        return [live, Command(past)]

    def read_find(self, tag: str, answer: Answer) -> Submitted:
        """The oldest job with the tag, should there be several; by the controller alone, if there is no accounting.

        Of what no node can satisfy sbatch says that it is refused, and the controller keeps it as a job that failed.
        """
        return find_tag(tag, answer)

    def kill(self, native_ids: Sequence[str], force: int) -> Command:
        """scancel is gentle by itself: TERM, then KILL after the site's KillWait.

        -s TERM would be refused by waiting jobs, and for one element of an array can reach others. -Q would leave
        failures without words.
        """
        return Command(("scancel", *(("-f", "-s", "KILL") if force >= 2 else ()), *native_ids))

    def read_kill(self, answer: Answer) -> tuple[Class, str]:
        """One line on stderr per job that was not killed."""
        if answer.code == 0:
            return "ok", ""
        lines = [line for line in answer.stderr.lower().splitlines() if line.strip()]
        left = [line for line in lines if not any(phrase in line for phrase in GONE)]
        if answer.code is None or not lines:
            return "transient", words(answer)
        if not left:
            return "ok", ""
        hopeless = all("access/permission denied" in line or "invalid job id " in line for line in left)
        return ("fatal" if hopeless else "transient"), words(answer)

    def array_limit(self) -> Command:
        """The configuration: sites have other sizes than the usual."""
        return Command(("scontrol", "show", "config"))

    def read_array_limit(self, answer: Answer) -> int | None:
        """Indices are smaller than this, and begin with 0; where it is 0 there are no arrays."""
        found = re.search(r"^MaxArraySize\s*=\s*(\d{1,9})\s*$", answer.stdout, re.MULTILINE)
        return max(1, int(found[1])) if found else None

    def queues(self) -> Command | None:
        """One line per partition and kind of node."""
        return Command(("sinfo", "-a", "-e", "-h", "-o", "%P|%a|%l|%D|%c|%m|%G|%s|%g|%L"))

    def read_queues(self, answer: Answer) -> tuple[Queue, ...]:
        """Nodes added up, sizes of the largest."""
        out: dict[str, Queue] = {}
        for line in answer.stdout.splitlines() if answer.code == 0 else ():
            cells = line.split("|")
            sizes = [cell.rstrip("+") for cell in cells[3:6]]
            if len(cells) < 7 or not all(cell.isascii() and cell.isdigit() and len(cell) < 16 for cell in sizes):
                continue
            nodes, cores, memory = int(sizes[0]), int(sizes[1]) * 1000, int(sizes[2]) * MIB
            gpus = sum(int(count[:9]) for count in GPUS.findall(cells[6]))
            name = cells[0].rstrip("*")
            was = out.get(name)
            if was is not None:
                nodes, cores = nodes + (was.nodes or 0), max(cores, was.cores or 0)
                memory, gpus = max(memory, was.memory or 0), max(gpus, was.gpus or 0)
            limit, most = seconds(cells[2]), JOB_SIZE.fullmatch(cells[7]) if len(cells) > 7 else None
            usual = seconds(cells[9]) if len(cells) > 9 else None
            queue = Queue(name, cells[0].endswith("*"), nodes, cores, memory, gpus, None, cells[1] == "up")
            out[name] = queue._replace(
                time_s=None if limit is None else int(limit),
                usual_s=None if usual is None else int(usual),
                nodes_most=int(most[1]) if most else None,
                users=GROUPS if len(cells) > 8 and cells[8].lower() not in ("all", "") else None,
            )
        return tuple(out.values())

    def queue_details(self, queues: Sequence[Queue]) -> Sequence[Command]:
        """What is left if partitions are not shown that are hidden, or not for the groups of this user."""
        return [Command(("sinfo", "-h", "-o", "%R"))]

    def read_queue_details(
        self, queues: tuple[Queue, ...], answers: Sequence[Answer], options: Options
    ) -> tuple[Queue, ...]:
        """Which partitions are hidden, and which are for groups that the user is not in."""
        shown = {line.strip() for line in answers[0].stdout.splitlines()} if answers[0].code == 0 else set()
        out = []
        for queue in queues:
            if shown and queue.name not in shown:
                queue = queue._replace(up=queue.up and queue.users is None, hidden=queue.users is None)
            out.append(queue._replace(users=None))
        return tuple(out)


EARLY_S = 60
"""So much earlier than asked for Slurm may send a signal …"""
START_S = 60
"""… and so long it has to take at least: it would end the shell that has only begun, or a job that has time."""


def _sizes(ask: Ask, options: Options, wants: Wants) -> list[str]:
    """What each node is to have; `--gres` of the raw options is added to it."""
    amounts = ask.amounts
    cores = share(amounts.cores, 1000)
    out = [f"--nodes={ask.nodes}", f"--ntasks-per-node={ask.tasks_per_node}"]
    out.append(f"--cpus-per-task={share(cores, ask.tasks_per_node)}")
    if amounts.memory and options.memory_as == "node":
        out.append(f"--mem={share(amounts.memory, MIB)}M")
    elif amounts.memory and options.memory_as == "per-cpu":
        cpus = share(cores, ask.tasks_per_node) * ask.tasks_per_node
        out.append(f"--mem-per-cpu={share(amounts.memory, MIB * cpus)}M")
    if amounts.disk:
        out.append(f"--tmp={share(amounts.disk, MIB)}M")
    own = ",".join(wants.values("--gres"))
    gres = [f"{name}:{count}" for name, count in amounts.named if count]
    if amounts.gpus and "gpu" not in own and not any(key.startswith("--gpus") for key, _ in wants.raw):
        gres.append(f"gpu:{amounts.gpus}")
    if gres or own:
        out.append(f"--gres={','.join([*gres, *([own] if own else [])])}")
    if ask.exclusive:
        out.append("--exclusive")
    warning = options.signal_s
    if ask.time_s is not None:
        out.append(f"--time={_clock(ask.time_s)}")
        warning = min(warning, ask.time_s // 2)
        warning = warning if ask.time_s - warning >= EARLY_S + START_S else 0
    if warning:
        out.append(f"--signal=B:USR1@{min(warning, 65535)}")
    return out


def _clock(seconds: int) -> str:
    minutes, second = divmod(seconds, 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    return f"{days}-{hour:02}:{minute:02}:{second:02}"
