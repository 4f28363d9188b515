"""Grid Engine's jobs: qsub, what a job sees, and its state."""

import os

from rota.testing.fake_cluster.arguments import BadOptionError, options, variables_of
from rota.testing.fake_cluster.world import Caller, Executor, Job, Reply, Submission, World

STATES = ("qw", "hqw", "Rq", "hRwq", "hRqw", "r", "t", "hr", "Rr", "Rt", "s", "ts", "S", "tS", "T", "tT", "Rs", "Rts",
          "RS", "RtS", "RT", "RtT", "Eqw", "Ehqw", "EhRqw", "dr", "dt", "dRr", "dRt", "ds", "dS", "dT", "dRs", "dRS",
          "dRT")  # fmt: skip
COMPLEXES = ("h_rt", "s_rt", "h_vmem", "s_vmem", "mem_free", "virtual_free", "hostname", "h", "qname", "q", "slots",
             "num_proc", "arch", "h_cpu", "tmpfree", "gpu", "exclusive", "m_mem_free")  # fmt: skip


def state(job: Job) -> str:
    if job.forced:
        return job.forced
    again = "R" if job.restarts else ""
    if job.state == "pending":
        if job.mark == "error":
            return "Eqw"
        held = "h" if job.hold else ""
        return f"{held}{again}{'q' if again else 'qw'}" if not (held and again) else "hRwq"
    return {"running": f"{again}r", "suspended": f"{again}s", "ending": f"d{again}r"}[job.state]


# ---- qsub ------------------------------------------------------------------------------------------------------------

VALUED = ("N", "o", "e", "j", "wd", "q", "P", "A", "l", "r", "R", "b", "t", "tc", "S", "p", "v", "m", "M", "a", "ar",
          "hold_jid", "w", "ac", "sync", "js", "soft", "masterq", "ckpt", "C", "dl", "sc", "shell", "now")  # fmt: skip
PLAIN = ("terse", "cwd", "V", "h", "notify", "clear", "hard", "verify", "help")


def _refused(text: str) -> Reply:
    return Reply("", f"Unable to run job: {text}\nExiting.\n", 1)


def qsub(world: World, executor: Executor, words: list[str], caller: Caller) -> Reply:
    if words[:1] == ["-help"]:
        return Reply("SGE 8.1.9\nusage: qsub [options]\n")
    slots, environment, words = _parallel(words)
    single = [f"{name}=" for name in VALUED] + list(PLAIN)
    try:
        raw, rest = _leading(words, single)
    except BadOptionError as error:
        return Reply("", f'qsub: invalid option argument "{error}"\n', 2)
    given = {name: values[-1] for name, values in raw.items()}
    submission = Submission()
    submission.cores = slots
    submission.options = {"pe": environment or ""}
    if given.get("b") == "y" and rest:
        submission.script = "#!/bin/sh\nexec " + " ".join(rest) + "\n"
    elif rest:
        try:
            with open(rest[0] if rest[0].startswith("/") else f"{caller.cwd}/{rest[0]}") as file:
                submission.script = file.read()
        except OSError:
            text = f"error opening {rest[0]}: No such file or directory"
            return Reply("", f"Unable to read script file because of error: {text}\n", 14)
    else:
        submission.script = caller.stdin or ""
    submission.name = given.get("N", rest[0].rpartition("/")[2] if rest else "STDIN")
    refusal = _fill(world, submission, given, raw, caller) or _check(world, submission, given)
    if refusal is not None:
        return refusal
    world.submit(submission, world.now)
    number = f"{submission.number}.{submission.shown_array}" if submission.array else str(submission.number)
    if "terse" in given:
        return Reply(f"{number}\n")
    kind = "job-array" if submission.array else "job"
    return Reply(f'Your {kind} {number} ("{submission.name}") has been submitted\n')


def _leading(words: list[str], single: list[str]) -> tuple[dict[str, list[str]], list[str]]:
    """Options stop at the script: what follows is its own."""
    place = 0
    while place < len(words) and words[place].startswith("-"):
        place += 2 if words[place][1:] + "=" in single else 1
    found, _ = options(words[:place], "", (), single)
    return found, words[place:]


def _parallel(words: list[str]) -> tuple[int, str | None, list[str]]:
    """`-pe NAME SLOTS` has two values."""
    if "-pe" not in words:
        return 1, None, words
    place = words.index("-pe")
    slots = words[place + 2].partition("-")[0]
    return int(slots or 1), words[place + 1], words[:place] + words[place + 3 :]


def _fill(
    world: World, submission: Submission, given: dict[str, str], raw: dict[str, list[str]], caller: Caller
) -> Reply | None:
    submission.user, submission.uid = caller.user, caller.uid
    home = caller.environ.get("HOME", "/")
    submission.cwd = given.get("wd", caller.cwd if "cwd" in given else home)
    submission.output, submission.error = given.get("o"), given.get("e")
    submission.options["join"] = given.get("j", "n")
    submission.account = given.get("P")
    submission.requeue = given.get("r", "n") == "y"
    path = {"PATH": caller.environ.get("PATH", "/usr/bin:/bin"), "HOME": home, "USER": caller.user}
    submission.environ = dict(caller.environ) if "V" in given else path
    submission.environ |= variables_of(raw.get("v", []), caller.environ)
    if "h" in given:
        submission.options["hold"] = "u"
    submission.words = [f"{key}={value}" for key, value in given.items()]
    if "t" in given:
        low, dash, high = given["t"].partition("-")
        high, _, step = high.partition(":")
        if low == "0":
            return _refused("job rejected: 0 is an invalid task id")
        last = int(high) if dash else int(low)
        submission.array = True
        submission.indices = list(range(int(low), last + 1, int(step or 1)))
        submission.shown_array = f"{low}-{last}:{step or 1}"
        submission.throttle = int(given["tc"]) if int(given.get("tc", 0)) else None
    for text in raw.get("l", []):
        for part in text.split(","):
            name, _, value = part.partition("=")
            if name not in COMPLEXES:
                return _refused(f'unknown resource "{name}"')
            if name == "h_rt":
                submission.time_s = _seconds(value)
                if submission.time_s is None:
                    return _refused('attribute "h_rt" is not a time value')
            elif name in ("h_vmem", "m_mem_free", "mem_free"):
                submission.memory_mb = _megabytes(value) * submission.cores
            submission.options[f"l_{name}"] = value
    return None


def _check(world: World, submission: Submission, given: dict[str, str]) -> Reply | None:
    name = submission.name
    if name[:1].isdigit():
        return _refused(f'denied: "{name}" is not a valid object name (cannot start with a digit)')
    environment = submission.options["pe"]
    if environment and environment not in ("mp", "smp", "make"):
        return _refused(f'job rejected: the requested parallel environment "{environment}" does not exist')
    accounts = world.settings["accounts"]
    if submission.account is not None and (accounts is None or submission.account not in accounts):
        return _refused(f'job rejected: the requested project "{submission.account}" does not exist')
    wanted = given.get("q", "").partition("@")[0] or None
    queue = world.queue(wanted)
    if queue is None:
        return _refused(f'Job was rejected because job requests unknown queue "{given["q"]}"')
    submission.queue = queue["name"]
    if given.get("w") == "e" and submission.cores > int(world.settings["cores"]):
        return _refused("error: no suitable queues")
    if len(submission.indices) > int(world.settings["max_array"]):
        limit = world.settings["max_array"]
        return _refused(f"job rejected: you tried to submit a job with more than {limit} tasks")
    live = sum(job.state != "over" for job in world.jobs)
    if live + max(1, len(submission.indices)) > int(world.settings["max_jobs"]):
        limit = world.settings["max_jobs"]
        return _refused(f"job rejected: Only {limit} jobs are allowed per user (current job count: {live})")
    return None


def _seconds(text: str) -> int | None:
    try:
        total = 0
        for part in text.split(":"):
            total = total * 60 + int(part or 0)
        return total
    except ValueError:
        return None


def _megabytes(text: str) -> int:
    units = {"K": 2**-10, "M": 1, "G": 1024, "T": 2**20, "k": 1000 / 2**20, "m": 1e6 / 2**20, "g": 1e9 / 2**20}
    unit = units.get(text[-1:])
    return int(float(text[:-1]) * unit) if unit else int(float(text) / 2**20)


def job_environment(world: World, submission: Submission, job: Job) -> dict[str, str]:
    return {
        "JOB_ID": str(submission.number),
        "JOB_NAME": submission.name,
        "SGE_TASK_ID": str(job.index) if submission.array else "undefined",
        "QUEUE": submission.queue,
        "NSLOTS": str(submission.cores),
        "HOSTNAME": job.nodes[0],
        "RESTARTED": str(int(job.restarts > 0)),
        "SGE_O_WORKDIR": submission.cwd,
    }


def _path(path: str | None, submission: Submission, job: Job, letter: str) -> str:
    end = f".{job.index}" if submission.array else ""
    stem = f"{submission.name}.{letter}{submission.number}{end}"
    if path is None:
        return f"{submission.cwd}/{stem}"
    path = path.rpartition(":")[2].replace("$JOB_ID", str(submission.number)).replace("$TASK_ID", str(job.index))
    path = path.replace("$JOB_NAME", submission.name)
    path = path if path.startswith("/") else f"{submission.cwd}/{path}"
    return f"{path.rstrip('/')}/{stem}" if os.path.isdir(path) else path


def output_path(world: World, submission: Submission, job: Job) -> str:
    return _path(submission.output, submission, job, "o")


def error_path(world: World, submission: Submission, job: Job) -> str | None:
    return None if submission.options["join"] == "y" else _path(submission.error, submission, job, "e")
