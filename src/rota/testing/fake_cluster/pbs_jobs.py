"""PBS jobs: what qsub takes in (TORQUE's reads the same words), what a job sees, its state and its exit status."""

import time
from collections.abc import Callable, Mapping

from rota.testing.fake_cluster.arguments import BadOptionError, indices_of, options, variables_of
from rota.testing.fake_cluster.world import Caller, Command, Executor, Job, Reply, Submission, World

SERVER = "pbs1"
STATES = ("B", "E", "F", "H", "M", "Q", "R", "S", "T", "U", "W", "X")
USAGE = """\
usage: qsub [-a date_time] [-A account_string] [-c interval]
	[-C directive_prefix] [-e path] [-f ] [-h ] [-I [-X]] [-j oe|eo] [-J X-Y[:Z]]
	[-k keep] [-l resource_list] [-m mail_options] [-M user_list]
	[-N jobname] [-o path] [-p priority] [-P project] [-q queue] [-r y|n]
	[-R o|e|oe] [-S path] [-u user_list] [-W otherattributes=value...]
	[-v variable_list] [-V ] [-z] [script | -- command [arg1 ...]]
       qsub --version
"""
RESOURCES = ("select", "place", "ncpus", "nodes", "mem", "vmem", "pmem", "walltime", "ngpus", "mpiprocs", "ompthreads",
             "host", "nodect", "scratch", "file", "arch", "cput", "pcput", "procs", "ppn", "naccesspolicy")  # fmt: skip


def state(job: Job, whole_over: bool = True) -> str:
    if job.forced:
        return job.forced
    if job.state == "over":
        return "F" if whole_over else "X"
    if job.state == "pending":
        return "H" if job.hold and job.index is None else "Q"  # of elements only a comment says that they are held
    return "S" if job.state == "suspended" else "R"


def exit_status(job: Job, time_limit: int = -29, memory: int = -27, lost: int = -20) -> int | None:
    """The exit status that the server shows; None: the job never ran."""
    if job.state != "over" or job.started is None:
        return None
    known = {"time": time_limit, "memory": memory, "node": lost, "cancelled": 271, "preempt": 271, "launch": -1}
    if job.why in known:
        return known[job.why]
    return 128 + job.signal if job.signal else job.code


def date(at: float) -> str:
    """`Sun Nov 15 20:56:09 2026`."""
    return time.strftime("%a %b %e %H:%M:%S %Y", time.localtime(at))


def clock(seconds: float) -> str:
    whole = int(seconds)
    return f"{whole // 3600:02}:{whole // 60 % 60:02}:{whole % 60:02}"


def seconds_of(text: str) -> int | None:
    try:
        total = 0
        for part in text.split(":"):
            total = total * 60 + int(part)
        return total
    except ValueError:
        return None


def megabytes(text: str) -> int | None:
    units = {"b": 2**-20, "kb": 2**-10, "mb": 1, "gb": 1024, "tb": 2**20, "k": 2**-10, "m": 1, "g": 1024}
    digits = text.rstrip("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
    unit = text[len(digits) :].lower() or "b"
    if not digits.isdigit() or unit not in units:
        return None
    return int(int(digits) * units[unit])


# ---- qsub ------------------------------------------------------------------------------------------------------------


class RefusedError(Exception):
    """What is wrong with a resource: a kind, and the name."""


def read_resources(world: World, submission: Submission, texts: list[str]) -> None:
    """`-l` of both systems. Raises RefusedError(kind, name)."""
    for text in texts:
        for part in text.split(","):
            name, _, value = part.partition("=")
            if name not in RESOURCES:
                raise RefusedError("resource", name)
            submission.options[name] = value
            if name == "walltime":
                submission.time_s = seconds_of(value)
                if submission.time_s is None:
                    raise RefusedError("value", name)
            elif name in ("select", "nodes"):
                _read_chunks(submission, value)
            elif name == "ncpus":
                submission.cores = int(value)
            elif name == "mem":
                memory = megabytes(value)
                if memory is None:
                    raise RefusedError("value", name)
                submission.memory_mb = memory


def _read_chunks(submission: Submission, value: str) -> None:
    first = value.split("+", maxsplit=1)[0].split(":")
    if first[0].isdigit():
        submission.nodes = int(first[0])
    else:
        submission.wanted_nodes = [first[0]]
    for part in first[1:]:
        name, equals, amount = part.partition("=")
        if equals and name not in RESOURCES:
            raise RefusedError("chunk", name)
        if name in ("ncpus", "ppn"):
            submission.cores = int(amount)
        elif name == "mem":
            submission.memory_mb = megabytes(amount) or 0
        elif name == "host":
            submission.wanted_nodes = [amount]


def read_script(rest: list[str], caller: Caller, missing: str) -> "str | Reply":
    """The script: from a file, or from stdin."""
    if not rest:
        return caller.stdin or ""
    try:
        with open(rest[0] if rest[0].startswith("/") else f"{caller.cwd}/{rest[0]}") as file:
            return file.read()
    except OSError:
        return Reply("", missing.format(rest[0]), 1)


def fill(world: World, submission: Submission, given: dict[str, list[str]], caller: Caller, words: list[str]) -> None:
    """Fill a submission with what the qsub of OpenPBS and that of TORQUE read alike."""
    submission.user, submission.uid = caller.user, caller.uid
    home = caller.environ.get("HOME", "/")
    submission.cwd = given.get("d", given.get("w", [home]))[-1]
    submission.options = {"workdir": caller.cwd}
    submission.output, submission.error = (given.get(letter, [None])[-1] for letter in "oe")
    if given.get("j", ["n"])[-1] in ("oe", "eo"):
        submission.options["join"] = "oe"
    submission.account = given.get("A", given.get("P", [None]))[-1]
    submission.requeue = given.get("r", ["y"])[-1].startswith("y")
    submission.words = words
    if "h" in given:
        submission.options["hold"] = "u"
    path = {"PATH": caller.environ.get("PATH", "/usr/bin:/bin"), "HOME": home, "USER": caller.user}
    submission.environ = dict(caller.environ) if "V" in given else path
    submission.environ |= variables_of(given.get("v", []), caller.environ)


def qsub(world: World, executor: Executor, words: list[str], caller: Caller) -> Reply:
    if words[:1] == ["--version"]:
        return Reply(f"pbs_version = {VERSION}\n")
    try:
        given, rest = options(words, "a:A:c:C:e:fhIXj:J:k:l:m:M:N:o:p:P:q:r:R:S:u:W:v:Vz")
    except BadOptionError as error:
        return Reply("", f"/opt/pbs/bin/qsub: invalid option -- '{str(error)[1:]}'\n{USAGE}", 2)
    name = given.get("N", [None])[-1]
    if name is not None and (not name or name[0].isdigit() or " " in name or len(name) > 230):
        return Reply("", f"qsub: illegal -N value\n{USAGE}", 2)
    submission = Submission()
    fill(world, submission, given, caller, words)
    if "J" in given:
        found = indices_of(given["J"][-1])
        if found is None or len(found[0]) < 2:
            return Reply("", f"qsub: illegal -J value\n{USAGE}", 2)
        if len(found[0]) > int(world.settings["max_array"]):
            return Reply("", "qsub: Array job exceeds server or queue size limit\n", 3)
        submission.array, (submission.indices, submission.throttle) = True, found
        submission.shown_array = given["J"][-1].partition("%")[0]
    if "--" in words:
        script: str | Reply = "#!/bin/sh\nexec " + " ".join(rest) + "\n"
        rest = []
    else:
        script = read_script(rest, caller, "qsub: script file:: No such file or directory\n")
    if isinstance(script, Reply):
        return script
    submission.script = script
    submission.name = name or (rest[0].rpartition("/")[2] if rest else "STDIN")
    try:
        read_resources(world, submission, given.get("l", []))
    except RefusedError as error:
        kind, resource = error.args
        if kind == "value":
            return Reply("", f"qsub: Illegal attribute or resource value Resource_List.{resource}\n", 166)
        text = f"Unknown resource: {resource}" if kind == "chunk" else f"Unknown resource Resource_List.{resource}"
        return Reply("", f"qsub: {text}\n", 187)
    queue = world.queue(given.get("q", [None])[-1])
    if queue is None:
        return Reply("", "qsub: Unknown queue\n", 170)
    submission.queue = queue["name"]
    if not queue.get("enabled", True):
        return Reply("", "qsub: Queue is not enabled\n", 173)
    accounts = world.settings["accounts"]
    if accounts is not None and submission.account not in accounts:
        return Reply("", "qsub: Invalid account\n", 201)
    if submission.time_s and queue["time_s"] and submission.time_s > queue["time_s"]:
        return Reply("", "qsub: Job violates queue and/or server resource limits\n", 188)
    if sum(job.state != "over" for job in world.jobs) + max(1, len(submission.indices)) > int(
        world.settings["max_jobs"]
    ):
        return Reply("", "qsub: would exceed complex's per-user limit of jobs in 'Q' state\n", 38)
    world.submit(submission, world.now)
    return Reply(f"{shown(submission, None)}\n")


VERSION = "23.06.06"


# ---- what a job sees -------------------------------------------------------------------------------------------------


def shown(submission: Submission, job: Job | None, server: str = SERVER) -> str:
    """`6.pbs1`, `6[].pbs1`, `6[2].pbs1`."""
    element = "" if not submission.array else f"[{'' if job is None else job.index}]"
    return f"{submission.number}{element}.{server}"


def job_environment(world: World, submission: Submission, job: Job) -> dict[str, str]:
    out = {
        "PBS_JOBID": shown(submission, job),
        "PBS_JOBNAME": submission.name,
        "PBS_QUEUE": submission.queue,
        "PBS_O_WORKDIR": submission.options["workdir"],
        "PBS_O_HOST": submission.host,
        "PBS_ENVIRONMENT": "PBS_BATCH",
        "NCPUS": str(submission.cores),
    }
    if submission.array:
        out["PBS_ARRAY_INDEX"], out["PBS_ARRAY_ID"] = str(job.index), shown(submission, None)
    return out


def _stem(submission: Submission, job: Job, letter: str) -> str:
    end = f".{job.index}" if submission.array else ""
    return f"{submission.options['workdir']}/{submission.name}.{letter}{submission.number}{end}"


def _place(path: str | None, submission: Submission, job: Job, letter: str) -> str:
    if path is None:
        return _stem(submission, job, letter)
    path = path.rpartition(":")[2].replace("^array_index^", str(job.index))
    path = path.replace("$PBS_JOBID", shown(submission, job)).replace("$PBS_ARRAYID", str(job.index))
    path = path if path.startswith("/") else f"{submission.options['workdir']}/{path}"
    return path + _stem(submission, job, letter).rpartition("/")[2] if path.endswith("/") else path


def output_path(world: World, submission: Submission, job: Job) -> str:
    return _place(submission.output, submission, job, "o")


def error_path(world: World, submission: Submission, job: Job) -> str | None:
    return None if "join" in submission.options else _place(submission.error, submission, job, "e")


Chosen = Callable[[World, str, list[str]], tuple[list[Job], str, int]]
"""Of a command's name and its ids: the jobs, the complaints, and the exit status."""


def on_each(chosen: Chosen, letters: Mapping[str, str]) -> dict[str, Command]:
    """The commands qhold, qrls and qrerun: name → the letters of its options."""

    def made(name: str) -> Command:
        def command(world: World, executor: Executor, words: list[str], caller: Caller) -> Reply:
            jobs, errors, code = chosen(world, name, options(words, letters[name])[1])
            for job in jobs:
                if name == "qrerun":
                    world.requeue(executor, job)
                else:
                    job.hold = "user" if name == "qhold" else None
            return Reply("", errors, code)

        return command

    return {name: made(name) for name in letters}
