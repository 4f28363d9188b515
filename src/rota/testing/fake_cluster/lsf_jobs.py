"""LSF's jobs: bsub, what a job sees, its state and its end."""

import shlex

from rota.testing.fake_cluster.arguments import BadOptionError, indices_of, options
from rota.testing.fake_cluster.world import Caller, Executor, Job, Reply, Submission, World

STATES = ("PEND", "PROV", "PSUSP", "RUN", "USUSP", "SSUSP", "DONE", "EXIT", "UNKWN", "WAIT", "ZOMBI", "PDONE", "PERR")
REASONS = {
    "time": "TERM_RUNLIMIT: job killed after reaching LSF run time limit",
    "memory": "TERM_MEMLIMIT: job killed after reaching LSF memory usage limit",
    "preempt": "TERM_PREEMPT: job killed after preemption",
    "node": "TERM_ZOMBIE: job exited while LSF is not available",
    "launch": "TERM_CWD_NOTEXIST: current working directory is not accessible or does not exist on the execution host",
}
HOST = "login1"


def is_openlava(world: World) -> bool:
    return bool(world.settings["cluster"] == "openlava")


def state(job: Job) -> str:
    if job.forced:
        return job.forced
    if job.state == "over":
        return "DONE" if job.why == "exit" and job.code == 0 else "EXIT"
    if job.state == "pending":
        return "PSUSP" if job.hold else "PEND"
    return "USUSP" if job.state == "suspended" else "RUN"


def exit_code(job: Job) -> int | None:
    if state(job) != "EXIT" or job.started is None:
        return None
    known = {"time": 140, "memory": 137, "preempt": 143, "cancelled": 130, "node": None, "launch": 127}
    if job.why in known:
        return known[job.why]
    return 128 + job.signal if job.signal else job.code


def exit_reason(job: Job) -> str | None:
    if state(job) != "EXIT":
        return None
    if job.why == "cancelled":
        admin = "TERM_ADMIN: job killed by root or LSF administrator"
        return admin if job.by == "admin" else "TERM_OWNER: job killed by owner"
    return REASONS.get(job.why or "")


def shown_name(submission: Submission, job: Job) -> str:
    return f"{submission.name}[{job.index}]" if submission.array else submission.name


def version(world: World) -> str:
    if is_openlava(world):
        return "OpenLava 4.0dev4, Nov 15 2026\n"
    return (
        "IBM Spectrum LSF Standard 10.1.0.13, Apr 15 2022\n"
        "Copyright International Business Machines Corp. 1992, 2016.\n"
        "US Government Users Restricted Rights - Use, duplication or disclosure restricted by GSA ADP Schedule "
        "Contract with IBM Corp.\n"
    )


def find(world: World, text: str) -> "list[Job] | None":
    """Jobs of `12`, `12[3]`, `12[1-4]`; None: no id."""
    number, bracket, rest = text.partition("[")
    if not number.isdigit():
        return None
    jobs = world.find(int(number))
    if bracket:
        wanted = _indices(rest)
        jobs = [job for job in jobs if wanted is not None and job.index in wanted[0]]
    return jobs


# ---- bsub ------------------------------------------------------------------------------------------------------------

VALUED = ("J", "Jd", "q", "P", "G", "o", "e", "oo", "eo", "n", "R", "W", "M", "cwd", "env", "m", "U", "app", "w", "b",
          "gpu", "g", "sla", "u", "wa", "wt", "We", "i", "sp", "c", "v", "D", "E", "Ep", "ti", "outdir", "data",
          "nnodes", "hl", "C", "F", "S", "T", "t")  # fmt: skip
PLAIN = ("r", "rn", "x", "H", "K", "I", "B", "N", "V", "L", "ptl", "hl")
LAVA_VALUED = (*"EaTwfkRmJLuioenqbtscvpWFDSCMOGPXg", "is", "sp", "Jd")
LAVA_PLAIN = (*"IrHxNBhVK", "Ip", "Is", "Zs")


def _refused(text: str) -> Reply:
    return Reply("", f"{text}. Job not submitted.\n", 255)


def bsub(world: World, executor: Executor, words: list[str], caller: Caller) -> Reply:
    if words == ["-V"]:
        return Reply("", version(world))
    words = _as_openlava_reads(words) if is_openlava(world) else words
    valued, plain = (LAVA_VALUED, LAVA_PLAIN) if is_openlava(world) else (VALUED, PLAIN)
    command: list[str] = []
    place = 0
    while place < len(words):  # the command is what follows the last option
        if not words[place].startswith("-"):
            command = words[place:]
            break
        place += 2 if words[place][1:] in valued else 1
    known = [f"{name}=" for name in valued] + list(plain)
    try:
        given, _ = options(words[: len(words) - len(command)], "", (), known)
        if not command:  # options on the command line are stronger
            given = {**options(_embedded(caller.stdin or ""), "", (), known)[0], **given}
    except BadOptionError as error:
        return _refused(f"/opt/lsf/bin/bsub: illegal option -- {str(error)[1:]}\n")
    submission = Submission()
    if command:
        submission.script = "#!/bin/sh\n" + " ".join(command) + "\n"
    elif caller.stdin:
        submission.script = caller.stdin
    else:
        return _refused("No command is specified")
    submission.words = [" ".join(command) or submission.script.strip()]
    refusal = _fill(world, submission, {name: values[-1] for name, values in given.items()}, caller)
    if refusal is not None:
        return refusal
    queue = world.queue(submission.queue)
    world.submit(submission, world.now)
    kind = "queue" if "q" in given or queue is None else "default queue"
    return Reply(f"Job <{submission.number}> is submitted to {kind} <{submission.queue}>.\n")


def _as_openlava_reads(words: list[str]) -> list[str]:
    """`-app X` is `-a pp` and a command X: what is longer than the option that it begins with is its value."""
    out: list[str] = []
    for place, word in enumerate(words):
        if not word.startswith("-") and (not out or out[-1][1:] not in LAVA_VALUED):
            return out + words[place:]
        known = word[1:] in (*LAVA_VALUED, *LAVA_PLAIN)
        split = word.startswith("-") and not known and word[1:2] in LAVA_VALUED
        out += [word[:2], word[2:]] if split else [word]
    return out


def _embedded(script: str) -> list[str]:
    """The options in a script: bsub skips blanks before and behind the `#`."""
    out = []
    for line in script.split("\n"):
        text = line.strip().removeprefix("#").strip() if line.lstrip().startswith("#") else ""
        if text.startswith("BSUB") and text[4:].strip().startswith("-"):
            out += shlex.split(text[4:], comments=True)
    return out


def _fill(world: World, submission: Submission, given: dict[str, str], caller: Caller) -> Reply | None:
    submission.user, submission.uid = caller.user, caller.uid
    submission.name = given.get("J", submission.words[0])
    spec, bracket, rest = submission.name.partition("[")
    if "J" in given and bracket:
        found = _indices(rest)
        if found is None:
            return _refused("Bad job name")
        submission.name, submission.array = spec, True
        submission.indices, submission.throttle = found
        if len(submission.indices) > int(world.settings["max_array"]):
            return _refused("Job array index too large")
    submission.cwd = given.get("cwd", caller.cwd)
    submission.output = given.get("o", given.get("oo", "/dev/null"))
    submission.error = given.get("e", given.get("eo"))
    submission.requeue = "r" in given
    submission.account, submission.comment = given.get("P"), given.get("Jd")
    submission.environ = dict(caller.environ)
    if "H" in given:
        submission.options["hold"] = "user"
    count = given.get("n", "1").partition(",")[0]
    submission.cores = int(count) if count.isdigit() else 1
    queue = world.queue(given.get("q"))
    if queue is None:
        return _refused(f"{given['q']}: No such queue")
    submission.queue = queue["name"]
    if "m" in given and any(name not in world.nodes for name in given["m"].split()):
        return _refused(f"{given['m']}: Bad host name, host group name or cluster name")
    submission.wanted_nodes = given.get("m", "").split()
    if "W" in given:
        minutes = _minutes(given["W"])
        if minutes is None:
            return _refused(f"{given['W']}: Bad RUNLIMIT specification")
        submission.time_s = minutes * 60
        if queue["time_s"] and submission.time_s > queue["time_s"]:
            return _refused("RUNLIMIT: Cannot exceed queue's hard limit(s)")
    if "M" in given:
        submission.memory_mb = _megabytes(given["M"])
    resources = given.get("R", "")
    if resources.count("[") != resources.count("]") or "nosuch" in resources:
        return _refused("Bad resource requirement syntax")
    if "span[ptile=" in resources:
        per = int(resources.partition("span[ptile=")[2].partition("]")[0])
        submission.nodes, submission.cores = -(-submission.cores // per), per
    if submission.cores > int(world.settings["cores"]) or submission.nodes > len(world.nodes):
        return _refused("Too many processors requested")
    accounts = world.settings["accounts"]
    if accounts is not None and submission.account not in accounts:
        return _refused(f"Project {submission.account} does not exist")
    live = sum(job.state != "over" for job in world.jobs)
    if live + max(1, len(submission.indices)) > int(world.settings["max_jobs"]):
        return _refused("User's pending job threshold reached. Please wait")
    return None


def _indices(rest: str) -> tuple[list[int], int | None] | None:
    """The indices and the throttle of `1-4]%2`, what follows the bracket of a job's name."""
    spec, _, tail = rest.partition("]")
    found = indices_of(spec + (tail if tail.startswith("%") else ""))
    return found if found is not None and found[0][0] > 0 else None


def _minutes(text: str) -> int | None:
    hours, colon, minutes = text.partition("/")[0].rpartition(":")
    try:
        return int(hours) * 60 + int(minutes) if colon else int(minutes)
    except ValueError:
        return None


def _megabytes(text: str) -> int:
    """Megabytes of an amount that is in kilobytes unless it has a unit."""
    units = {"KB": 2**-10, "MB": 1, "GB": 1024, "TB": 2**20, "K": 2**-10, "M": 1, "G": 1024}
    digits = text.rstrip("KMGTBkmgtb")
    return int(float(digits) * units.get(text[len(digits) :].upper(), 2**-10))


def job_environment(world: World, submission: Submission, job: Job) -> dict[str, str]:
    return {
        "LSB_JOBID": str(submission.number),
        "LSB_JOBINDEX": str(job.index or 0),
        "LSB_JOBNAME": shown_name(submission, job),
        "LSB_QUEUE": submission.queue,
        "LSB_HOSTS": " ".join(name for name in job.nodes for _ in range(submission.cores)),
        "LSB_DJOB_NUMPROC": str(submission.cores * submission.nodes),
        "LSB_SUB_HOST": HOST,
        "LS_SUBCWD": submission.cwd,
    }


def _path(path: str, submission: Submission, job: Job) -> str:
    path = path.replace("%J", str(submission.number)).replace("%I", str(job.index or 0))
    return path if path.startswith("/") else f"{submission.cwd}/{path}"


def output_path(world: World, submission: Submission, job: Job) -> str:
    return _path(submission.output or "/dev/null", submission, job)


def error_path(world: World, submission: Submission, job: Job) -> str | None:
    return None if submission.error is None else _path(submission.error, submission, job)
