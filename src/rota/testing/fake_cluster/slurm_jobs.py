"""Slurm's jobs: what sbatch takes in, what a job sees, and the words for its state, reason and end."""

import time

from rota.testing.fake_cluster.arguments import BadOptionError, indices_of, options
from rota.testing.fake_cluster.world import Caller, Executor, Job, Reply, Submission, World

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


def state(job: Job) -> str:
    """The word that squeue has for the state of a job."""
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


def raw_status(job: Job) -> int:
    """What squeue's exit_code shows: the status as wait(2) has it; a launch that failed is Slurm's own number."""
    if job.why == "launch":
        return 4021
    code, _, number = exit_code(job).partition(":")
    return 253 if job.why == "memory" and job.state == "over" else int(code) * 256 + int(number)


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
    """The time limit of a submission in seconds, in Slurm's whole minutes."""
    if submission.time_s is not None:
        return -(-submission.time_s // 60) * 60
    queue = world.queue(submission.queue)
    return queue.get("usual_s") or queue["time_s"] if queue else None


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
        return Reply("", f"sbatch: error: AssocMaxSubmitJobLimit\n{FAILED}{text}\n", 1)
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
