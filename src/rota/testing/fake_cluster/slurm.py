"""Slurm's words: sbatch, squeue, sacct, scontrol, scancel, sinfo, as version 22.05 says them."""

import time
from collections.abc import Callable, Mapping
from typing import Any

from rota.testing.fake_cluster.model import Caller, Executor, Job, Reply, Submission, World
from rota.testing.fake_cluster.personality import BadOptionError, options

STATES = {
    "BF": "BOOT_FAIL", "CA": "CANCELLED", "CD": "COMPLETED", "CF": "CONFIGURING", "CG": "COMPLETING", "DL": "DEADLINE",
    "F": "FAILED", "NF": "NODE_FAIL", "OOM": "OUT_OF_MEMORY", "PD": "PENDING", "PR": "PREEMPTED", "R": "RUNNING",
    "RD": "RESV_DEL_HOLD", "RF": "REQUEUE_FED", "RH": "REQUEUE_HOLD", "RQ": "REQUEUED", "RS": "RESIZING",
    "RV": "REVOKED", "SI": "SIGNALING", "SE": "SPECIAL_EXIT", "SO": "STAGE_OUT", "ST": "STOPPED", "S": "SUSPENDED",
    "TO": "TIMEOUT",
}  # fmt: skip
CODES = {long: short for short, long in STATES.items()}
OVER = ("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED",
        "REVOKED", "TIMEOUT")  # fmt: skip
ENDS = {
    "cancelled": "CANCELLED", "time": "TIMEOUT", "memory": "OUT_OF_MEMORY", "node": "NODE_FAIL",
    "preempt": "PREEMPTED", "launch": "FAILED",
}  # fmt: skip
WAITS = {"resources": "Resources", "throttle": "JobArrayTaskLimit", "queue": "PartitionDown", "requeued": "BeginTime"}
FAILED = "sbatch: error: Batch job submission failed: "


def down(command: str, how: str) -> Reply:
    """A controller that is not there, or does not answer."""
    text = {"refused": "Unable to contact slurm controller (connect failure)"}.get(
        how, "Socket timed out on send/recv operation"
    )
    before = {
        "sbatch": FAILED,
        "squeue": "slurm_load_jobs error: ",
        "scancel": "scancel: error: Kill job error on job id 0: ",
        "sinfo": "slurm_load_partitions: ",
    }.get(command, "slurm_load_jobs error: ")
    if command == "sacct":
        return Reply("", "sacct: error: Problem talking to the database: Connection refused\n", 1)
    return Reply("", f"{before}{text}\n", 8 if command == "scancel" else 1, 0.0 if how == "refused" else 10.0)


def state(job: Job) -> str:
    """The word that squeue has for it."""
    if job.forced:
        return STATES.get(job.forced, job.forced)
    if job.state == "over":
        return ENDS.get(job.why or "", "COMPLETED" if job.code == 0 else "FAILED")
    return {"pending": "PENDING", "running": "RUNNING", "suspended": "SUSPENDED", "ending": "COMPLETING"}[job.state]


def reason(world: World, job: Job) -> str:
    if job.state == "pending":
        if job.hold:
            return "JobHeldUser" if job.hold == "user" else "JobHeldAdmin"
        if job.mark == "requeued" and job.eligible <= world.now:
            return "None"
        return WAITS.get(job.mark or "", "None")
    if job.state == "over":
        known = {"time": "TimeLimit", "memory": "OutOfMemory", "node": "NodeDown", "launch": "JobLaunchFailure"}
        if job.why != "exit":
            return known.get(job.why or "", "None")
        return "JobLaunchFailure" if job.signal else "NonZeroExitCode" if job.code else "None"
    return "None"


def exit_code(job: Job, accounting: bool = False) -> str:
    """`code:signal`, where the controller and the accounting do not quite agree."""
    if job.state != "over" or job.why in ("node", None):
        return "0:0"
    if job.why == "memory":
        return "0:125"
    if job.why == "launch":
        return "0:53"
    if job.why in ("time", "cancelled", "preempt"):
        return "0:0" if accounting or job.started is None else "0:15"
    if job.signal:
        return f"0:{job.signal}"
    code = job.code or 0
    return f"{code - 128 if accounting and code > 128 else code}:0"


def task_text(submission: Submission, indices: list[int]) -> str:
    """`3-4,6,9%2`."""
    parts, run = [], [indices[0], indices[0]]
    for index in [*indices[1:], None]:
        if index is not None and index == run[1] + 1:
            run[1] = index
            continue
        parts.append(str(run[0]) if run[0] == run[1] else f"{run[0]}-{run[1]}")
        if index is not None:
            run = [index, index]
    return ",".join(parts) + (f"%{submission.throttle}" if submission.throttle else "")


def shown_id(world: World, job: Job) -> str:
    submission = world.of(job)
    return f"{submission.number}_{job.index}" if submission.array else str(submission.number)


def stamp(at: float | None, absent: str = "Unknown") -> str:
    return absent if at is None else time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(at))


def span(seconds: float, padded: bool = False) -> str:
    """`1:00:00`, `0:03`, `1-02:03:04`; padded: `01:00:00`."""
    whole = int(seconds)
    days, rest = divmod(whole, 86400)
    hours, minutes, left = rest // 3600, rest // 60 % 60, rest % 60
    if padded:
        text = f"{hours:02}:{minutes:02}:{left:02}"
    elif days or hours:
        text = f"{hours:02}:{minutes:02}:{left:02}" if days else f"{hours}:{minutes:02}:{left:02}"
    else:
        text = f"{minutes}:{left:02}"
    return f"{days}-{text}" if days else text


def run_time(world: World, job: Job) -> float:
    if job.started is None:
        return 0.0
    return (job.ended or job.suspended or world.now) - job.started


def limit_s(world: World, submission: Submission) -> int | None:
    """Its limit in seconds, in Slurm's whole minutes."""
    if submission.time_s is not None:
        return -(-submission.time_s // 60) * 60
    queue = world.queue(submission.queue)
    return queue["time_s"] if queue else None


# ---- sbatch ----------------------------------------------------------------------------------------------------------

SBATCH_LONG = (
    "parsable", "job-name=", "chdir=", "output=", "error=", "open-mode=", "array=", "time=", "mem=", "mem-per-cpu=",
    "cpus-per-task=", "ntasks=", "ntasks-per-node=", "nodes=", "partition=", "account=", "qos=", "reservation=",
    "constraint=", "exclusive", "no-requeue", "requeue", "comment=", "signal=", "export=", "gres=", "gpus=",
    "gpus-per-node=", "wrap=", "hold", "begin=", "nodelist=", "exclude=", "tmp=", "licenses=", "clusters=", "version",
    "dependency=", "test-only", "mail-type=", "mail-user=", "nice=", "wckey=", "kill-on-invalid-dep=", "get-user-env",
    "input=", "propagate=", "spread-job", "oversubscribe", "threads-per-core=", "hint=", "switches=", "deadline=",
    "quiet", "priority=", "mincpus=", "export-file=", "container=", "ntasks-per-core=", "ntasks-per-socket=",
)  # fmt: skip
SBATCH_SHORT = "J:D:o:e:a:t:c:n:N:p:A:q:C:HM:w:x:d:Vb:L:i:Qm:"
ALIAS = {
    "J": "job-name", "D": "chdir", "o": "output", "e": "error", "a": "array", "t": "time", "c": "cpus-per-task",
    "n": "ntasks", "N": "nodes", "p": "partition", "A": "account", "q": "qos", "C": "constraint", "H": "hold",
    "M": "clusters", "w": "nodelist", "x": "exclude", "d": "dependency", "V": "version", "b": "begin",
    "L": "licenses", "i": "input", "Q": "quiet",
}  # fmt: skip


def seconds_of(text: str) -> int | None:
    """Slurm's time: minutes, minutes:seconds, hours:minutes:seconds, days-hours[:minutes[:seconds]]."""
    days, dash, rest = text.rpartition("-")
    try:
        parts = [int(part) for part in rest.split(":")]
        if dash:
            parts += [0] * (3 - len(parts))
            return int(days) * 86400 + parts[0] * 3600 + parts[1] * 60 + parts[2]
    except ValueError:
        return None
    if len(parts) == 1:
        return parts[0] * 60
    if len(parts) == 2:
        return parts[0] * 60 + parts[1]
    return parts[0] * 3600 + parts[1] * 60 + parts[2] if len(parts) == 3 else None


def megabytes(text: str) -> int:
    """Slurm's memory: megabytes unless it says otherwise."""
    units = {"K": 1 / 1024, "M": 1, "G": 1024, "T": 1024 * 1024}
    letter = text[-1:].upper()
    number = text[:-1] if letter in units else text
    return max(int(float(number) * units.get(letter, 1)), 0)


def indices_of(text: str) -> tuple[list[int], int | None] | None:
    spec, _, throttle = text.partition("%")
    out: list[int] = []
    try:
        for part in spec.split(","):
            low, dash, high = part.partition("-")
            high, _, step = high.partition(":")
            out += range(int(low), int(high) + 1, int(step or 1)) if dash else [int(low)]
        return (sorted(set(out)), int(throttle) if throttle else None) if out else None
    except ValueError:
        return None


def sbatch(world: World, executor: Executor, words: list[str], caller: Caller) -> Reply:
    try:
        raw, rest = options(words, SBATCH_SHORT, SBATCH_LONG)
    except BadOptionError as error:
        text = (
            f"sbatch: unrecognized option '{error}'\n"
            if str(error).startswith("--")
            else f"sbatch: invalid option -- '{str(error)[1:]}'\n"
        )
        return Reply("", text + 'Try "sbatch --help" for more information\n', 255)
    given = {ALIAS.get(name, name): values[-1] for name, values in raw.items()}
    if "version" in given:
        return Reply("slurm-wlm 22.05.8\n")
    script = _script(given, rest, caller)
    if isinstance(script, Reply):
        return script
    submission = Submission()
    refusal = _fill(world, submission, given, caller) or _check(world, submission, given)
    if refusal is not None:
        return refusal
    submission.script = script
    submission.words = rest or ["(null)"]
    if "job-name" not in given:
        submission.name = "wrap" if "wrap" in given else (rest[0].rpartition("/")[2] if rest else "sbatch")
    world.submit(submission, world.now)
    cluster = given.get("clusters") or world.settings["cluster"]
    if "parsable" in given:
        return Reply(f"{submission.number};{cluster}\n" if cluster else f"{submission.number}\n")
    return Reply(f"Submitted batch job {submission.number}" + (f" on cluster {cluster}\n" if cluster else "\n"))


def _script(given: dict[str, str], rest: list[str], caller: Caller) -> "str | Reply":
    if "wrap" in given:
        return f"#!/bin/sh\n{given['wrap']}\n"
    if rest:
        try:
            with open(rest[0] if rest[0].startswith("/") else f"{caller.cwd}/{rest[0]}") as file:
                script = file.read()
        except OSError:
            return Reply("", f"sbatch: error: Unable to open file {rest[0]}\n", 1)
    else:
        script = caller.stdin or ""
    if not script:
        return Reply("", "sbatch: error: Batch script is empty!\n", 1)
    if not script.startswith("#!"):
        lines = (
            "This does not look like a batch script.  The first",
            "line must start with #! followed by the path to an interpreter.",
            "For instance: #!/bin/sh",
        )
        return Reply("", "".join(f"sbatch: error: {line}\n" for line in lines), 1)
    return script


def _fill(world: World, submission: Submission, given: dict[str, str], caller: Caller) -> Reply | None:
    queue = world.queue(given.get("partition"))
    submission.queue = queue["name"] if queue else given["partition"]
    submission.name = given.get("job-name", "")
    submission.user, submission.uid = caller.user, caller.uid
    submission.cwd = given.get("chdir", caller.cwd)
    submission.output, submission.error = given.get("output"), given.get("error")
    submission.account, submission.comment = given.get("account"), given.get("comment")
    submission.requeue = "no-requeue" not in given
    submission.environ = {} if given.get("export") == "NONE" else dict(caller.environ)
    submission.options = given
    submission.wanted_nodes = [name for name in given.get("nodelist", "").split(",") if name]
    if "time" in given:
        submission.time_s = seconds_of(given["time"])
        if submission.time_s is None:
            return Reply("", "sbatch: error: Invalid --time specification\n", 255)
    tasks, per_task = int(given.get("ntasks", 1)), int(given.get("cpus-per-task", 1))
    submission.nodes = int(given.get("nodes", "1").partition("-")[0])
    per_node = int(given.get("ntasks-per-node", 0)) or -(-tasks // submission.nodes)
    submission.cores = per_node * per_task
    if "exclusive" in given:
        submission.cores = max(submission.cores, int(world.settings["cores"]))
    if "mem" in given:
        submission.memory_mb = megabytes(given["mem"]) or int(world.settings["memory_mb"])
    elif "mem-per-cpu" in given:
        submission.memory_mb = megabytes(given["mem-per-cpu"]) * submission.cores
    if "array" in given:
        found = indices_of(given["array"])
        if found is None or found[0][-1] >= int(world.settings["max_array"]):
            return Reply("", FAILED + "Invalid job array specification\n", 1)
        submission.array = True
        submission.indices, submission.throttle = found
    return None


def _check(world: World, submission: Submission, given: dict[str, str]) -> Reply | None:
    settings = world.settings
    if "dependency" in given and not given["dependency"].startswith(("after", "singleton", "expand")):
        return Reply("", FAILED + "Job dependency problem\n", 1)
    if "gres" in given or "gpus" in given or "gpus-per-node" in given:
        return Reply("", "sbatch: error: Invalid generic resource (gres) specification\n", 1)
    queue = world.queue(submission.queue)
    text = None
    if queue is None:
        name = submission.queue
        return Reply(
            "",
            f"sbatch: error: invalid partition specified: {name}\n{FAILED}Invalid partition name specified\n",
            1,
        )
    if settings["accounts"] is not None and (submission.account or settings["accounts"][0]) not in settings["accounts"]:
        text = "Invalid account or account/partition combination specified"
    elif any(name not in world.nodes for name in submission.wanted_nodes):
        text = "Invalid node name specified"
    elif "constraint" in given and given["constraint"] not in queue.get("features", ()):
        text = "Invalid feature specification"
    elif "reservation" in given:
        text = "Requested reservation is invalid"
    elif submission.memory_mb > int(settings["memory_mb"]):
        return Reply(
            "",
            "sbatch: error: Memory specification can not be satisfied\n"
            + FAILED
            + "Requested node configuration is not available\n",
            1,
        )
    elif settings["enforce_limits"] and (
        submission.cores > int(settings["cores"]) or submission.nodes > len(world.nodes)
    ):
        text = "More processors requested than permitted"
    elif settings["enforce_limits"] and submission.time_s and queue["time_s"] and submission.time_s > queue["time_s"]:
        text = "Requested time limit is invalid (missing or exceeds some limit)"
    elif sum(job.state != "over" for job in world.jobs) + max(1, len(submission.indices)) > int(settings["max_jobs"]):
        text = "Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)"
    return None if text is None else Reply("", f"{FAILED}{text}\n", 1)


# ---- what a job sees -------------------------------------------------------------------------------------------------


def job_environment(world: World, submission: Submission, job: Job) -> dict[str, str]:
    out = {
        "SLURM_JOB_ID": str(job.number),
        "SLURM_JOBID": str(job.number),
        "SLURM_JOB_NAME": submission.name,
        "SLURM_JOB_PARTITION": submission.queue,
        "SLURM_JOB_NODELIST": ",".join(job.nodes),
        "SLURM_NODELIST": ",".join(job.nodes),
        "SLURM_JOB_NUM_NODES": str(submission.nodes),
        "SLURMD_NODENAME": job.nodes[0],
        "SLURM_CPUS_ON_NODE": str(submission.cores),
        "SLURM_RESTART_COUNT": str(job.restarts),
        "SLURM_SUBMIT_DIR": submission.cwd,
        "SLURM_CLUSTER_NAME": world.settings["cluster"] or "fake",
    }
    if submission.array and job.index is not None:
        out["SLURM_ARRAY_JOB_ID"], out["SLURM_ARRAY_TASK_ID"] = str(submission.number), str(job.index)
        out["SLURM_ARRAY_TASK_COUNT"] = str(len(submission.indices))
    out.setdefault("PATH", submission.environ.get("PATH", "/usr/bin:/bin"))
    return out


def _path(pattern: str, submission: Submission, job: Job) -> str:
    marks = {"%j": job.number, "%A": submission.number, "%a": job.index if job.index is not None else 4294967294,
             "%x": submission.name, "%u": submission.user, "%N": (job.nodes or [""])[0], "%%": "%"}  # fmt: skip
    for mark, value in marks.items():
        pattern = pattern.replace(mark, str(value))
    return pattern if pattern.startswith("/") else f"{submission.cwd}/{pattern}"


def output_path(world: World, submission: Submission, job: Job) -> str:
    return _path(submission.output or ("slurm-%A_%a.out" if submission.array else "slurm-%j.out"), submission, job)


def error_path(world: World, submission: Submission, job: Job) -> str | None:
    return None if submission.error is None else _path(submission.error, submission, job)


# ---- squeue ----------------------------------------------------------------------------------------------------------

Row = tuple[str, Job, str]
"""The id as shown, a job that stands for it, and its part of the array."""


def rows(world: World, jobs: list[Job], expanded: bool) -> list[Row]:
    """Lines of a listing: elements of an array that wait are one line, unless expanded."""
    out: list[Row] = []
    waiting: dict[tuple[int, str], list[Job]] = {}
    for job in jobs:
        submission = world.of(job)
        never_ran = job.started is None and not job.restarts
        if submission.array and never_ran and not expanded:
            waiting.setdefault((job.serial, state(job)), []).append(job)
        else:
            index = str(job.index) if submission.array else "N/A"
            out.append((shown_id(world, job), job, index))
    merged: list[Row] = []
    for members in waiting.values():
        submission = world.of(members[0])
        text = task_text(submission, [job.index or 0 for job in members])
        merged.append((f"{submission.number}_[{text}]", members[0], text))
    pending = [row for row in out if row[1].state == "pending"]
    return [*merged, *pending, *(row for row in out if row[1].state != "pending")]


def fields(world: World, row: Row) -> dict[str, Callable[[], str]]:
    shown, job, index = row
    submission = world.of(job)
    nodes = ",".join(job.nodes)
    word = state(job)
    waits = word == "PENDING"
    limit = limit_s(world, submission)
    end = job.ended if job.ended is not None else (job.started + limit if job.started is not None and limit else None)
    return {
        "i": lambda: shown,
        "F": lambda: str(submission.number),
        "K": lambda: index,
        "A": lambda: str(job.number),
        "T": lambda: word,
        "t": lambda: CODES.get(word, word),
        "r": lambda: reason(world, job),
        "R": lambda: f"({reason(world, job)})" if waits else nodes,
        "M": lambda: span(run_time(world, job)),
        "l": lambda: "UNLIMITED" if limit is None else span(limit),
        "L": lambda: "UNLIMITED" if limit is None else span(max(0, limit - run_time(world, job))),
        "N": lambda: nodes,
        "B": lambda: job.nodes[0] if job.nodes else "n/a",
        "j": lambda: submission.name,
        "u": lambda: submission.user,
        "U": lambda: str(submission.uid),
        "P": lambda: submission.queue,
        "a": lambda: submission.account or "default",
        "q": lambda: submission.options.get("qos", "normal"),
        "k": lambda: submission.comment or "(null)",
        "S": lambda: stamp(job.started, "N/A"),
        "e": lambda: stamp(end, "N/A"),
        "V": lambda: stamp(submission.at),
        "D": lambda: str(submission.nodes),
        "C": lambda: str(submission.cores * submission.nodes),
        "m": lambda: f"{submission.memory_mb}M",
        "Z": lambda: submission.cwd,
        "o": lambda: submission.words[0],
        "Q": lambda: "4294901759",
        "f": lambda: "(null)",
        "v": lambda: "(null)",
        "E": lambda: "(null)",
    }


LONG_FIELDS = {
    "jobarrayid": "i", "arrayjobid": "F", "arraytaskid": "K", "jobid": "A", "state": "T", "statecompact": "t",
    "reason": "r", "reasonlist": "R", "name": "j", "nodelist": "N", "timeused": "M", "timelimit": "l",
    "username": "u", "partition": "P", "starttime": "S", "endtime": "e", "submittime": "V", "comment": "k",
    "account": "a", "qos": "q", "numnodes": "D", "numcpus": "C",
}  # fmt: skip


def _format(text: str, known: Mapping[str, Callable[[], str]]) -> str:
    out, place = [], 0
    while place < len(text):
        letter = text[place]
        place += 1
        if letter != "%":
            out.append(letter)
            continue
        right = text[place : place + 1] == "."
        place += right
        digits = ""
        while text[place : place + 1].isdigit():
            digits += text[place]
            place += 1
        value = known.get(text[place : place + 1], lambda: "")()
        place += 1
        width = int(digits or 0)
        out.append(value if not width else (value[:width].rjust(width) if right else value[:width].ljust(width)))
    return "".join(out)


def squeue(world: World, executor: Executor, words: list[str], caller: Caller) -> Reply:
    try:
        raw, _ = options(
            words,
            "hrt:j:u:n:o:O:M:p:A:aw:S:lV",
            ("noheader", "array", "states=", "jobs=", "user=", "me", "name=", "format=", "Format=", "clusters=",
             "partition=", "account=", "all", "nodelist=", "sort=", "long", "version", "only-job-state", "local"),
        )  # fmt: skip
    except BadOptionError as error:
        return Reply("", f"squeue: unrecognized option '{error}'\nTry \"squeue --help\" for more information\n", 1)
    alias = {"h": "noheader", "r": "array", "t": "states", "j": "jobs", "u": "user", "n": "name", "o": "format",
             "O": "Format", "M": "clusters", "p": "partition", "V": "version"}  # fmt: skip
    given = {alias.get(name, name): ",".join(values) for name, values in raw.items()}
    if "version" in given:
        return Reply("slurm-wlm 22.05.8\n")
    if "only-job-state" in given:
        return Reply(
            "", "squeue: unrecognized option '--only-job-state'\nTry \"squeue --help\" for more information\n", 1
        )
    jobs = list(world.listed())
    if "jobs" in given:
        chosen = _by_ids(world, given["jobs"].split(","))
        if isinstance(chosen, str):
            return Reply("", f"squeue: error: Invalid job id: {chosen}\n", 1)
        jobs = [job for job in jobs if job in chosen]
        if not jobs and len(given["jobs"].split(",")) == 1:
            return Reply("", "slurm_load_jobs error: Invalid job id specified\n", 1)
    if "me" in given or "user" in given:
        users = [caller.user] if "me" in given else given["user"].split(",")
        jobs = [job for job in jobs if world.of(job).user in users or str(world.of(job).uid) in users]
    if "name" in given:
        jobs = [job for job in jobs if world.of(job).name in given["name"].split(",")]
    wanted = {STATES.get(word.upper(), word.upper()) for word in given.get("states", "").split(",") if word}
    if "ALL" not in wanted:
        if wanted:
            jobs = [job for job in jobs if state(job) in wanted]
        else:
            jobs = [job for job in jobs if state(job) not in OVER]
    lines = []
    if "Format" in given:
        for row in rows(world, jobs, "array" in given):
            known = fields(world, row)
            parts = [part.partition(":") for part in given["Format"].split(",")]
            line = ""
            for name, _, width in parts:
                size = int(width or 20)
                line += known.get(LONG_FIELDS.get(name.lower(), ""), lambda: "")()[:size].ljust(size)
            lines.append(line)
    else:
        pattern = given.get("format", "%.18i %.9P %.8j %.8u %.2t %.10M %.6D %R")
        if "noheader" not in given:
            lines.append(_format(pattern, {letter: name.__str__ for letter, name in HEADS.items()}))
        lines += [_format(pattern, fields(world, row)) for row in rows(world, jobs, "array" in given)]
    return Reply("".join(line + "\n" for line in lines))


HEADS = {
    "i": "JOBID", "P": "PARTITION", "j": "NAME", "u": "USER", "t": "ST", "T": "STATE", "M": "TIME", "D": "NODES",
    "R": "NODELIST(REASON)", "r": "REASON", "N": "NODELIST", "l": "TIME_LIMIT", "F": "ARRAY_JOB_ID",
    "K": "ARRAY_TASK_ID", "A": "JOBID", "S": "START_TIME", "e": "END_TIME", "k": "COMMENT", "V": "SUBMIT_TIME",
}  # fmt: skip


def _by_ids(world: World, texts: list[str]) -> "list[Job] | str":
    """The jobs with these ids; or the first text that is none."""
    out: list[Job] = []
    for text in texts:
        number, under, index = text.partition("_")
        if not number.isdigit():
            return text
        if not under:
            out += world.find(int(number))
            continue
        found = indices_of(index.strip("[]"))
        if found is None:
            return text
        for each in found[0]:
            out += world.find(int(number), each)
    return out


# ---- sacct -----------------------------------------------------------------------------------------------------------

SACCT_FIELDS = (
    "jobid", "jobidraw", "jobname", "partition", "account", "alloccpus", "state", "exitcode", "derivedexitcode",
    "submit", "eligible", "start", "end", "elapsed", "elapsedraw", "reqmem", "maxrss", "nodelist", "reason", "user",
    "comment", "cputimeraw", "totalcpu", "ncpus", "nnodes", "timelimit", "timelimitraw", "cluster", "qos", "workdir",
    "uid", "reqcpus", "priority", "submitline", "avecpu", "systemcpu", "usercpu", "flags",
)  # fmt: skip


def sacct(world: World, executor: Executor, words: list[str], caller: Caller) -> Reply:
    try:
        raw, _ = options(
            words,
            "nPpXj:o:DS:E:u:aM:s:bV",
            ("noheader", "parsable2", "parsable", "allocations", "jobs=", "format=", "duplicates", "starttime=",
             "endtime=", "user=", "allusers", "clusters=", "state=", "name=", "delimiter=", "version", "units=",
             "noconvert", "truncate"),
        )  # fmt: skip
    except BadOptionError as error:
        return Reply("", f"sacct: unrecognized option '{error}'\n", 1)
    alias = {"n": "noheader", "P": "parsable2", "X": "allocations", "j": "jobs", "o": "format", "D": "duplicates",
             "u": "user", "S": "starttime", "E": "endtime", "V": "version"}  # fmt: skip
    given = {alias.get(name, name): ",".join(values) for name, values in raw.items()}
    if "version" in given:
        return Reply("slurm-wlm 22.05.8\n")
    if not world.settings["accounting"]:
        return Reply("", "Slurm accounting storage is disabled\n", 1)
    names = given.get("format", "JobID,JobName,Partition,Account,AllocCPUS,State,ExitCode").split(",")
    names = [name.partition("%")[0] for name in names]
    for name in names:
        if name.lower() not in SACCT_FIELDS:
            return Reply("", f'sacct: error: Invalid field requested: "{name}"\n', 1)
    jobs = [job for job in world.jobs if world.accounted(job) or job.past]
    if "jobs" in given:
        chosen = _by_ids(world, [text.partition(".")[0] for text in given["jobs"].split(",")])
        if isinstance(chosen, str):
            return Reply("", f"sacct: fatal: Bad job/step specified: {chosen}\n", 1)
        jobs = [job for job in jobs if job in chosen]
    if "user" in given:
        jobs = [job for job in jobs if world.of(job).user in given["user"].split(",")]
    if "name" in given:
        jobs = [job for job in jobs if world.of(job).name in given["name"].split(",")]
    lines = [] if "noheader" in given else ["|".join(names)]
    lines += _account_lines(world, jobs, names, "duplicates" in given, "allocations" in given)
    return Reply("".join(line + "\n" for line in lines))


def _account_lines(world: World, jobs: list[Job], names: list[str], all_tries: bool, only_jobs: bool) -> list[str]:
    lines = []
    shown = rows(world, jobs, False)
    shown.sort(key=lambda row: (world.of(row[1]).number, row[1].started is None, row[1].index or 0))
    for row in shown:
        job = row[1]
        if all_tries:
            for why, started, ended, nodes in job.past:
                word = {"node": "NODE_FAIL", "preempt": "PREEMPTED"}.get(why, "REQUEUED")
                known = {**_account(world, row), "state": word, "start": stamp(started), "end": stamp(ended),
                         "nodelist": ",".join(nodes), "exitcode": "0:0"}  # fmt: skip
                lines.append("|".join(known.get(name.lower(), "") for name in names))
        if world.accounted(job):
            known = _account(world, row)
            lines.append("|".join(known.get(name.lower(), "") for name in names))
            if not only_jobs and job.started is not None:
                step = {**known, "jobid": known["jobid"] + ".batch", "jobidraw": known["jobidraw"] + ".batch",
                        "jobname": "batch", "partition": "", "derivedexitcode": "", "reqmem": "", "reason": "",
                        "maxrss": f"{job.rss_kb}K", "state": known["state"].partition(" ")[0]}  # fmt: skip
                if job.why in ("time", "cancelled", "preempt"):
                    step["state"], step["exitcode"] = "CANCELLED", "0:15"
                lines.append("|".join(step.get(name.lower(), "") for name in names))
    return lines


def _account(world: World, row: Row) -> dict[str, str]:
    shown, job, _ = row
    submission = world.of(job)
    word = state(job)
    if word == "COMPLETING":
        word = "RUNNING"
    if word == "CANCELLED" and job.by is not None:
        word = f"CANCELLED by {0 if job.by == 'admin' else job.by}"
    limit = limit_s(world, submission)
    started = job.started if job.started is not None or not submission.array else None
    if job.state == "over" and job.started is None and not submission.array:
        started = job.ended
    wall = int(run_time(world, job))
    cpu = f"{int(job.cpu_s) // 60:02}:{job.cpu_s % 60:06.3f}"
    return {
        "jobid": shown,
        "jobidraw": str(job.number),
        "jobname": submission.name,
        "partition": submission.queue,
        "account": submission.account or "default",
        "alloccpus": str(submission.cores * submission.nodes if job.nodes else 0),
        "ncpus": str(submission.cores * submission.nodes),
        "reqcpus": str(submission.cores * submission.nodes),
        "nnodes": str(submission.nodes),
        "state": word,
        "exitcode": exit_code(job, accounting=True),
        "derivedexitcode": "0:0",
        "submit": stamp(submission.at),
        "eligible": stamp(submission.at),
        "start": stamp(started, "None" if job.state == "over" else "Unknown"),
        "end": stamp(job.ended),
        "elapsed": span(wall, padded=True),
        "elapsedraw": str(wall),
        "cputimeraw": str(wall * submission.cores),
        "totalcpu": cpu,
        "usercpu": cpu,
        "reqmem": f"{submission.memory_mb}M",
        "maxrss": "",
        "nodelist": ",".join(job.nodes) or "None assigned",
        "reason": reason(world, job) if job.state == "pending" else "None",
        "user": submission.user,
        "uid": str(submission.uid),
        "comment": submission.comment or "",
        "timelimit": "UNLIMITED" if limit is None else span(limit, padded=True),
        "timelimitraw": "UNLIMITED" if limit is None else str(limit // 60),
        "cluster": world.settings["cluster"] or "testcluster",
        "qos": "normal",
        "workdir": submission.cwd,
    }


# ---- scontrol --------------------------------------------------------------------------------------------------------


def scontrol(world: World, executor: Executor, words: list[str], caller: Caller) -> Reply:
    one_line = "-o" in words or "--oneliner" in words
    rest = [word for word in words if word not in ("-o", "--oneliner", "-d", "-Q")]
    if rest[:1] in (["--version"], ["-V"], ["version"]):
        return Reply("slurm-wlm 22.05.8\n")
    if rest[:1] == ["ping"]:
        return Reply("Slurmctld(primary) at ctl1 is UP\n")
    if rest[:2] == ["show", "job"] or rest[:2] == ["show", "jobs"]:
        jobs = list(world.listed())
        if len(rest) > 2:
            chosen = _by_ids(world, rest[2].split(","))
            jobs = [job for job in jobs if job in chosen] if not isinstance(chosen, str) else []
            if not jobs:
                return Reply("", "slurm_load_jobs error: Invalid job id specified\n", 1)
        if not jobs:
            return Reply("No jobs in the system\n")
        return Reply("".join(_show(world, row, one_line) for row in rows(world, jobs, False)))
    if rest[:2] in (["show", "partition"], ["show", "partitions"]):
        return Reply("".join(_show_partition(world, queue) for queue in world.queues()))
    if rest[:2] == ["show", "config"]:
        age = int(world.settings["purge_s"])
        return Reply(f"MaxArraySize            = {world.settings['max_array']}\nMinJobAge               = {age} sec\n")
    if len(rest) >= 2 and rest[0] in ("hold", "release", "suspend", "resume", "requeue", "requeuehold"):
        return _control(world, executor, rest[0], rest[1])
    return Reply("", f"invalid keyword: {rest[0] if rest else ''}\n", 1)


def _control(world: World, executor: Executor, verb: str, text: str) -> Reply:
    jobs = _by_ids(world, text.split(","))
    if isinstance(jobs, str) or not jobs:
        more = "slurm_suspend error: Invalid job id specified\n" if verb in ("hold", "release") else ""
        return Reply("", f"Invalid job id specified for job {text}\n{more}", 1)
    for job in jobs:
        if verb in ("hold", "requeuehold"):
            job.hold = "user"
        if verb == "release":
            job.hold = None
        elif verb == "suspend":
            world.suspend(executor, job)
        elif verb == "resume":
            world.resume(executor, job)
        elif verb in ("requeue", "requeuehold"):
            world.requeue(executor, job)
    return Reply()


def _show(world: World, row: Row, one_line: bool) -> str:
    _, job, index = row
    submission = world.of(job)
    limit = limit_s(world, submission)
    waits = job.state == "pending"
    started = job.started if job.started is not None else job.ended
    end = job.ended if job.ended is not None else (job.started + limit if job.started is not None and limit else None)
    array = f"ArrayJobId={submission.number} ArrayTaskId={index} " if submission.array else ""
    cores = submission.cores * submission.nodes
    memory = submission.memory_mb
    why = reason(world, job).replace(" ", "_")
    priority = 0 if job.hold or job.suspended else 4294901759
    lines = [
        f"JobId={job.number} {array}JobName={submission.name}",
        f"UserId={submission.user}({submission.uid}) GroupId={submission.user}({submission.gid}) MCS_label=N/A",
        f"Priority={priority} Nice=0 Account={submission.account or 'default'} QOS=normal",
        f"JobState={state(job)} Reason={why} Dependency=(null)",
        f"Requeue={int(submission.requeue)} Restarts={job.restarts} BatchFlag=1 Reboot=0 ExitCode={exit_code(job)}",
        f"RunTime={span(run_time(world, job), True)} TimeLimit={'UNLIMITED' if limit is None else span(limit, True)}"
        " TimeMin=N/A",
        f"SubmitTime={stamp(submission.at)} EligibleTime={stamp(None if job.hold else submission.at)}",
        f"AccrueTime={stamp(submission.at)}",
        f"StartTime={stamp(started)} EndTime={stamp(end)} Deadline=N/A",
        *([] if waits else [f"PreemptEligibleTime={stamp(started)} PreemptTime=None"]),
        f"SuspendTime={stamp(job.suspended, 'None')} SecsPreSuspend=0 LastSchedEval={stamp(job.touched)}"
        " Scheduler=Main",
        f"Partition={submission.queue} AllocNode:Sid=localhost:11229",
        f"ReqNodeList={','.join(submission.wanted_nodes) or '(null)'} ExcNodeList=(null)",
        f"NodeList={','.join(job.nodes)}",
        *([f"BatchHost={job.nodes[0]}"] if job.nodes else []),
        f"NumNodes={submission.nodes} NumCPUs={cores} NumTasks=1 CPUs/Task={submission.cores} ReqB:S:C:T=0:0:*:*",
        f"TRES=cpu={cores},mem={memory}M,node={submission.nodes},billing={cores}",
        "Socks/Node=* NtasksPerN:B:S:C=0:0:*:* CoreSpec=*",
        f"MinCPUsNode={submission.cores} MinMemoryNode={memory}M MinTmpDiskNode=0",
        "Features=(null) DelayBoot=00:00:00",
        "OverSubscribe=OK Contiguous=0 Licenses=(null) Network=(null)",
        f"Command={submission.words[0]}",
        f"WorkDir={submission.cwd}",
        *([f"Comment={submission.comment} "] if submission.comment else []),
        f"StdErr={error_path(world, submission, job) or output_path(world, submission, job)}",
        "StdIn=/dev/null",
        f"StdOut={output_path(world, submission, job)}",
        "Power=",
    ]
    return " ".join(lines) + " \n" if one_line else "\n   ".join(lines) + "\n   \n\n"


def _show_partition(world: World, queue: dict[str, Any]) -> str:
    cores, count = int(world.settings["cores"]) * len(world.nodes), len(world.nodes)
    memory = int(world.settings["memory_mb"]) * count
    longest = "UNLIMITED" if queue["time_s"] is None else span(queue["time_s"], padded=True)
    return (
        f"PartitionName={queue['name']}\n"
        "   AllowGroups=ALL AllowAccounts=ALL AllowQos=ALL\n"
        f"   AllocNodes=ALL Default={'YES' if queue.get('default') else 'NO'} QoS=N/A\n"
        f"   DefaultTime=NONE DisableRootJobs=NO ExclusiveUser=NO GraceTime=0 Hidden=NO\n"
        f"   MaxNodes=UNLIMITED MaxTime={longest} MinNodes=0 LLN=NO MaxCPUsPerNode=UNLIMITED\n"
        f"   Nodes={_node_names(world)}\n"
        "   PriorityJobFactor=1 PriorityTier=1 RootOnly=NO ReqResv=NO OverSubscribe=NO\n"
        "   OverTimeLimit=NONE PreemptMode=REQUEUE\n"
        f"   State={'UP' if queue.get('up', True) else 'DOWN'} TotalCPUs={cores} TotalNodes={count}"
        " SelectTypeParameters=NONE\n"
        "   JobDefaults=(null)\n"
        "   DefMemPerNode=UNLIMITED MaxMemPerNode=UNLIMITED\n"
        f"   TRES=cpu={cores},mem={memory}M,node={count},billing={cores}\n\n"
    )


def _node_names(world: World) -> str:
    return f"n[1-{len(world.nodes)}]" if len(world.nodes) > 1 else "n1"


# ---- scancel, sinfo --------------------------------------------------------------------------------------------------


def scancel(world: World, executor: Executor, words: list[str], caller: Caller) -> Reply:
    try:
        raw, rest = options(
            words,
            "Qvfbs:u:n:t:M:p:iHwA:V",
            ("quiet", "verbose", "full", "batch", "signal=", "user=", "name=", "jobname=", "state=", "clusters=", "me",
             "partition=", "hurry", "account=", "version"),
        )  # fmt: skip
    except BadOptionError as error:
        return Reply("", f"scancel: unrecognized option '{error}'\nTry \"scancel --help\" for more information\n", 1)
    alias = {"s": "signal", "u": "user", "n": "name", "jobname": "name", "t": "state", "v": "verbose", "Q": "quiet"}
    given = {alias.get(name, name): values[-1] for name, values in raw.items()}
    jobs: list[Job] = []
    errors = ""
    texts = [part for word in rest for part in word.split(",")] if "[" not in "".join(rest) else rest
    for text in texts:
        found = _by_ids(world, [text])
        if isinstance(found, str):
            return Reply("", f"scancel: error: Invalid job id {text}\n", 1)
        live = [job for job in found if job.state != "over"]
        if "verbose" in given:
            errors += f"scancel: Terminating job {text}\n"
            if not live:
                known = [job for job in found if not world.purged(job)]
                why = "Job/step already completing or completed" if known else "Invalid job id specified"
                errors += f"scancel: error: Kill job error on job id {text}: {why}\n"
        jobs += live
    if not texts:
        if not given.keys() & {"user", "name", "me", "state", "partition"}:
            return Reply("", "scancel: error: No job identification provided\n", 1)
        jobs = [job for job in world.jobs if job.state != "over"]
    if "user" in given or "me" in given:
        user = given.get("user", caller.user)
        jobs = [job for job in jobs if world.of(job).user == user]
    if "name" in given:
        jobs = [job for job in jobs if world.of(job).name == given["name"]]
    if "state" in given:
        wanted = STATES.get(given["state"].upper(), given["state"].upper())
        jobs = [job for job in jobs if state(job) == wanted]
    for job in jobs:
        signal = given.get("signal", "").removeprefix("SIG")
        if signal and signal not in ("KILL", "9"):
            executor.signal(world, job, {"15": "TERM"}.get(signal, signal), world.now)
        else:
            world.cancel(executor, job, str(caller.uid))
    return Reply("", errors)


def sinfo(world: World, executor: Executor, words: list[str], caller: Caller) -> Reply:
    try:
        raw, _ = options(
            words,
            "hNo:p:t:n:saRO:M:V",
            ("noheader", "Node", "format=", "partition=", "states=", "nodes=", "version", "exact", "all"),
        )
    except BadOptionError as error:
        return Reply("", f"sinfo: unrecognized option '{error}'\nTry \"sinfo --help\" for more information\n", 1)
    if "V" in raw or "version" in raw:
        return Reply("slurm-wlm 22.05.8\n")
    pattern = (raw.get("o") or raw.get("format") or ["%9P %.5a %.10l %.6D %.6t %N"])[-1]
    chosen = (raw.get("p") or raw.get("partition") or [""])[-1]
    queues = [queue for queue in world.queues() if not chosen or queue["name"] in chosen.split(",")]
    lines = []
    if "h" not in raw and "noheader" not in raw:
        heads = {"P": "PARTITION", "a": "AVAIL", "l": "TIMELIMIT", "D": "NODES", "t": "STATE", "T": "STATE",
                 "N": "NODELIST", "c": "CPUS", "m": "MEMORY", "G": "GRES", "C": "CPUS(A/I/O/T)"}  # fmt: skip
        lines.append(_format(pattern, {letter: name.__str__ for letter, name in heads.items()}))
    for queue in queues:
        groups: dict[str, list[str]] = {}
        for name in world.nodes:
            key = name if "N" in raw or "Node" in raw else _node_state(world, name)
            groups.setdefault(key, []).append(name)
        for names in groups.values():
            lines.append(_format(pattern, _node_fields(world, queue, names)))
    return Reply("".join(line + "\n" for line in lines))


def _node_state(world: World, name: str) -> str:
    if not world.nodes[name][0]:
        return "down"
    used = int(world.settings["cores"]) - world.free()[name][0]
    return "idle" if not used else "alloc" if used >= int(world.settings["cores"]) else "mix"


def _node_fields(world: World, queue: dict[str, Any], names: list[str]) -> dict[str, Callable[[], str]]:
    cores = int(world.settings["cores"])
    word = _node_state(world, names[0])
    free = world.free()
    used = sum(cores - free[name][0] for name in names if name in free)
    total = cores * len(names)
    idle = sum(free[name][0] for name in names if name in free)
    return {
        "P": lambda: queue["name"] + ("*" if queue.get("default") else ""),
        "R": lambda: queue["name"],
        "a": lambda: "up" if queue.get("up", True) else "down",
        "l": lambda: "infinite" if queue["time_s"] is None else span(queue["time_s"]),
        "D": lambda: str(len(names)),
        "t": lambda: word,
        "T": lambda: {"mix": "mixed", "alloc": "allocated"}.get(word, word),
        "N": lambda: ",".join(names),
        "c": lambda: str(cores),
        "m": lambda: str(world.settings["memory_mb"]),
        "e": lambda: str(world.settings["memory_mb"]),
        "C": lambda: f"{used}/{idle}/{total - used - idle}/{total}",
        "G": lambda: "(null)",
        "f": lambda: "(null)",
        "E": lambda: world.nodes[names[0]][1] or "none",
        "L": lambda: "n/a",
        "s": lambda: "1-infinite",
    }


COMMANDS = {
    "sbatch": sbatch,
    "squeue": squeue,
    "sacct": sacct,
    "scontrol": scontrol,
    "scancel": scancel,
    "sinfo": sinfo,
}
