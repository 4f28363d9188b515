"""Grid Engine's words: qsub, qstat, qdel, qacct, qhost, qconf, qmod, qhold, qrls, as version 8.1.9 says them."""

import os
import time
from fnmatch import fnmatchcase
from itertools import pairwise
from xml.sax.saxutils import escape

from rota.testing.fake_cluster.model import Caller, Executor, Job, Reply, Submission, World
from rota.testing.fake_cluster.personality import BadOptionError, options

STATES = ("qw", "hqw", "Rq", "hRwq", "hRqw", "r", "t", "hr", "Rr", "Rt", "s", "ts", "S", "tS", "T", "tT", "Rs", "Rts",
          "RS", "RtS", "RT", "RtT", "Eqw", "Ehqw", "EhRqw", "dr", "dt", "dRr", "dRt", "ds", "dS", "dT", "dRs", "dRS",
          "dRT")  # fmt: skip
MASTER = "n1"
SCHEMA = "http://arc.liv.ac.uk/repos/darcs/sge/source/dist/util/resources/schemas/qstat/qstat.xsd"
COMPLEXES = ("h_rt", "s_rt", "h_vmem", "s_vmem", "mem_free", "virtual_free", "hostname", "h", "qname", "q", "slots",
             "num_proc", "arch", "h_cpu", "tmpfree", "gpu", "exclusive", "m_mem_free")  # fmt: skip


def down(command: str, how: str) -> Reply:
    """A qmaster that is not there, or does not answer."""
    if how == "hung":
        return Reply(code=1, wait_s=3600)
    first = "error: commlib error: got select error (Connection refused)\n"
    last = f'unable to send message to qmaster using port 6444 on host "{MASTER}": got send error\n'
    if command == "qdel":
        return Reply(last, first, 1)
    if command == "qsub":
        return Reply("", f"{first}Unable to run job: {last}Exiting.\n", 1)
    return Reply("", f"{first}error: {last}", 1)


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
    for text in raw.get("v", []):
        for part in text.split(","):
            name, equals, value = part.partition("=")
            submission.environ[name] = value if equals else caller.environ.get(name, "")
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


# ---- qstat -----------------------------------------------------------------------------------------------------------


def qstat(world: World, executor: Executor, words: list[str], caller: Caller) -> Reply:
    if words[:1] == ["-help"]:
        return Reply(
            "SGE 8.1.9\nusage: qstat [options]\n"
            "        [-ext]                            view additional attributes\n"
            "        [-pe pe_list]                     select only queues with one of these parallel environments\n"
            "        [-urg]                            display job urgency information\n"
            "        [-xml]                            display the information in XML format\n\n"
            "pe_list                  pe[,pe,...]\n"
        )
    if "-j" in words:
        return _detail(world, words)
    if "-g" in words and words[words.index("-g") + 1] == "c":
        return _summary(world)
    try:
        given, _ = options(words, "", (), ("xml", "u=", "s=", "g=", "f", "ext", "r", "t", "ne", "q=", "pri"))
    except BadOptionError as error:
        return Reply("", f'qstat: invalid option argument "{error}"\n', 1)
    users = given.get("u", [caller.user])[-1]
    jobs = [job for job in world.jobs if job.state != "over" or job.forced]
    jobs = [job for job in jobs if users in ("*", "") or world.of(job).user in users.split(",")]
    wanted = given.get("s", ["prs"])[-1]
    running = [job for job in jobs if job.live and ("r" in wanted or "s" in wanted or "a" in wanted)]
    waiting = [job for job in jobs if not job.live and ("p" in wanted or "a" in wanted)]
    expanded = "d" in "".join(given.get("g", []))
    if "xml" in given:
        return Reply(_xml(world, running, _merged(world, waiting, expanded)))
    if not running and not waiting:
        return Reply()
    return Reply(_table(world, running, _merged(world, waiting, expanded)))


def _merged(world: World, jobs: list[Job], expanded: bool) -> list[tuple[Job, str | None]]:
    """Elements of an array that wait in the same state are one line."""
    out: list[tuple[Job, str | None]] = []
    groups: dict[tuple[int, str], list[int]] = {}
    for job in jobs:
        if not world.of(job).array:
            out.append((job, None))
        elif expanded:
            out.append((job, str(job.index)))
        else:
            key = (job.serial, state(job))
            if key not in groups:
                groups[key] = []
                out.append((job, ""))
            groups[key].append(job.index or 0)
    return [(job, _tasks(world, groups[job.serial, state(job)]) if text == "" else text) for job, text in out]


def _tasks(world: World, indices: list[int]) -> str:
    """`4-6:1`, or a list where there are holes."""
    if len(indices) == 1:
        return str(indices[0])
    step = indices[1] - indices[0]
    if all(after - before == step for before, after in pairwise(indices)):
        return f"{indices[0]}-{indices[-1]}:{step}"
    return ",".join(map(str, indices))


def _xml(world: World, running: list[Job], waiting: list[tuple[Job, str | None]]) -> str:
    out = f"<?xml version='1.0'?>\n<job_info  xmlns:xsd=\"{SCHEMA}\">\n  <queue_info>\n"
    for job in running:
        out += _entry(world, job, "running", str(job.index) if world.of(job).array else None)
    out += "  </queue_info>\n  <job_info>\n"
    for job, tasks in waiting:
        out += _entry(world, job, "pending", tasks)
    return out + "  </job_info>\n</job_info>\n"


def _entry(world: World, job: Job, kind: str, tasks: str | None) -> str:
    submission = world.of(job)
    at = job.started if kind == "running" else submission.at
    when = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(at))
    name = "JAT_start_time" if kind == "running" else "JB_submission_time"
    queue = f"{submission.queue}@{job.nodes[0]}" if job.nodes else ""
    lines = [
        f"<JB_job_number>{submission.number}</JB_job_number>",
        f"<JAT_prio>{0.5 if kind == 'running' else 0.0:.5f}</JAT_prio>",
        f"<JB_name>{escape(submission.name)}</JB_name>",
        f"<JB_owner>{submission.user}</JB_owner>",
        f"<state>{state(job)}</state>",
        f"<{name}>{when}</{name}>",
        f"<queue_name>{queue}</queue_name>",
        f"<slots>{submission.cores}</slots>",
        *([f"<tasks>{tasks}</tasks>"] if tasks is not None else []),
    ]
    return f'    <job_list state="{kind}">\n' + "".join(f"      {line}\n" for line in lines) + "    </job_list>\n"


def _table(world: World, running: list[Job], waiting: list[tuple[Job, str | None]]) -> str:
    out = "job-ID  prior   name       user         state submit/start at     queue                          slots"
    out += " ja-task-ID \n"
    out += "-" * 113 + "\n"
    shown = [(job, str(job.index) if world.of(job).array else None) for job in running] + waiting
    for job, tasks in shown:
        submission = world.of(job)
        at = job.started if job.started is not None and job.live else submission.at
        when = time.strftime("%m/%d/%Y %H:%M:%S", time.localtime(at))
        queue = f"{submission.queue}@{job.nodes[0]}" if job.nodes else ""
        out += f"{submission.number:>7} {0.5 if job.live else 0:.5f} {submission.name[:10]:<10} "
        out += f"{submission.user[:12]:<12} "
        out += f"{state(job):<5} {when} {queue:<30} {submission.cores:>5} {tasks if tasks is not None else '       '}\n"
    return out


def _detail(world: World, words: list[str]) -> Reply:
    number = words[words.index("-j") + 1].split(",")[0] if len(words) > words.index("-j") + 1 else ""
    jobs = [job for job in world.find(int(number)) if job.state != "over"] if number.isdigit() else []
    if not jobs:
        return Reply("", f"Following jobs do not exist: \n{number}\n", 1)
    submission = world.of(jobs[0])
    out = "=" * 62 + "\n"
    out += f"job_number:                 {submission.number}\nowner:                      {submission.user}\n"
    out += f"job_name:                   {submission.name}\ncwd:                        {submission.cwd}\n"
    return Reply(out)


def _summary(world: World) -> Reply:
    cores, free = int(world.settings["cores"]), world.free()
    out = "CLUSTER QUEUE                   CQLOAD   USED    RES  AVAIL  TOTAL aoACDS  cdsuE  \n" + "-" * 80 + "\n"
    for queue in world.queues():
        total = cores * len(world.nodes)
        left = sum(each[0] for each in free.values())
        lost = cores * sum(not up for up, _ in world.nodes.values())
        out += f"{queue['name']:<30}    0.00 {total - left - lost:>6} {0:>6} {left:>6} {total:>6} {0:>6} {lost:>6} \n"
    return Reply(out)


# ---- qacct -----------------------------------------------------------------------------------------------------------


def ending(job: Job) -> tuple[str, str]:
    """`failed` and `exit_status`, as the accounting has them."""
    if job.why in ("time", "memory"):
        return "37  : qmaster enforced h_rt, h_cpu, or h_vmem limit", "137                  (Killed)"
    if job.why in ("cancelled", "preempt"):
        return "100 : assumedly after job", "137                  (Killed)"
    if job.why == "node":
        return "0    ", f"{0:<20}"
    if job.why == "launch":
        return "28  : changing into working directory", f"{0:<20}"
    if job.signal:
        words = {9: "Killed", 11: "Segmentation fault", 15: "Terminated", 6: "Aborted"}
        return "100 : assumedly after job", f"{128 + job.signal:<20} ({words.get(job.signal, 'unknown signal')})"
    return "0    ", f"{job.code:<20}"


def qacct(world: World, executor: Executor, words: list[str], caller: Caller) -> Reply:
    if "-j" not in words or len(words) < 2:
        return Reply("", "Total System Usage\n", 0)
    wanted = words[words.index("-j") + 1]
    task = int(words[words.index("-t") + 1]) if "-t" in words else None
    if not world.settings["accounting"]:
        return Reply("", "error: no accounting file\n", 1)
    out = ""
    for job in world.jobs:
        submission = world.of(job)
        if not (wanted == str(submission.number) or fnmatchcase(submission.name, wanted)) or (
            task is not None and job.index != task
        ):
            continue
        for why, started, ended, nodes in job.past:
            if nodes:
                status = f"{99 if why == 'exit99' else 0:<20}"
                out += _record(submission, job, nodes[0], started, ended, "25  : rescheduling", status)
        if job.state == "over" and job.started is not None and job.ended is not None and world.accounted(job):
            out += _record(submission, job, job.nodes[0], job.started, job.ended, *ending(job))
    if not out:
        kind = "id" if wanted.isdigit() else "name"
        return Reply("", f"error: job {kind} {wanted} not found\n", 1)
    return Reply(out)


def _record(submission: Submission, job: Job, host: str, started: float, ended: float, failed: str, status: str) -> str:
    def date(at: float) -> str:
        return time.strftime("%a %b %e %H:%M:%S %Y", time.localtime(at))

    limits = ",".join(f"{name[2:]}={value}" for name, value in submission.options.items() if name.startswith("l_"))
    task = f"{job.index:<20}" if submission.array else "undefined"
    rows = {
        "qname": f"{submission.queue:<20}",
        "hostname": f"{host:<20}",
        "group": f"{submission.user:<20}",
        "owner": f"{submission.user:<20}",
        "project": f"{submission.account or 'NONE':<20}",
        "department": f"{'defaultdepartment':<20}",
        "jobname": f"{submission.name:<20}",
        "jobnumber": f"{submission.number:<20}",
        "taskid": task,
        "account": f"{'sge':<20}",
        "priority": f"{0:<20}",
        "qsub_time": date(submission.at),
        "start_time": date(started),
        "end_time": date(ended),
        "granted_pe": f"{submission.options['pe'] or 'NONE':<20}",
        "slots": f"{submission.cores:<20}",
        "failed": failed,
        "exit_status": status,
        "ru_wallclock": f"{int(ended - started)}s",
        "ru_utime": f"{job.cpu_s:.3f}s",
        "ru_stime": "0.000s",
        "ru_maxrss": f"{job.rss_kb / 1000:.3f}KB",
        "ru_minflt": f"{0:<20}",
        "ru_majflt": f"{0:<20}",
        "ru_nswap": f"{0:<20}",
        "cpu": f"{job.cpu_s:.3f}s",
        "mem": "0.000Bs",
        "io": "0.000B",
        "iow": "0.000s",
        "maxvmem": f"{job.rss_kb / 1000:.3f}MB",
        "arid": "undefined",
        "ar_sub_time": "undefined",
        "category": f"-l {limits}" if limits else "NONE",
    }
    return "=" * 62 + "\n" + "".join(f"{name:<12} {value}\n" for name, value in rows.items())


# ---- qdel and others -------------------------------------------------------------------------------------------------


def qdel(world: World, executor: Executor, words: list[str], caller: Caller) -> Reply:
    force = "-f" in words
    task = words[words.index("-t") + 1] if "-t" in words else None
    ids = [word for place, word in enumerate(words) if not word.startswith("-") and words[place - 1 : place] != ["-t"]]
    out, code = "", 0
    for text in [part for word in ids for part in word.split(",")]:
        number, _, dot = text.partition(".")
        first, _, last = (task or dot).partition("-")
        wanted = set(range(int(first), int(last.partition(":")[0] or first) + 1)) if first else None
        jobs = [job for job in world.find(int(number)) if job.state != "over"] if number.isdigit() else []
        jobs = [job for job in jobs if wanted is None or job.index in wanted]
        if not jobs:
            out, code = f'{out}denied: job "{text}" does not exist\n', 1
            continue
        out += _delete(world, executor, jobs, number, force, caller)
    return Reply(out, "", code)


def _delete(world: World, executor: Executor, jobs: list[Job], number: str, force: bool, caller: Caller) -> str:
    array, out = world.of(jobs[0]).array, ""
    if all(job.state == "ending" for job in jobs) and not force:
        return f"job {number} is already in deletion\n"
    pending = [job for job in jobs if job.state == "pending"]
    whole = array and len(pending) == len(jobs) == len(world.of(jobs[0]).indices)
    for job in jobs:
        name = f"job-array task {number}.{job.index}" if array else f"job {number}"
        if job.state == "pending":
            out += "" if whole else f"{caller.user} has deleted {name}\n"
        elif force:
            executor.signal(world, job, "KILL", world.now)
            out += f"{caller.user} forced the deletion of {name}\n"
        else:
            out += f"{caller.user} has registered the {name} for deletion\n"
        world.cancel(executor, job, str(caller.uid))
    return f"{caller.user} has deleted job {number}\n" if whole else out


def _chosen(world: World, words: list[str]) -> list[Job]:
    numbers = [word.partition(".")[0] for word in words if not word.startswith("-")]
    return [job for number in numbers if number.isdigit() for job in world.find(int(number)) if job.state != "over"]


def qhold(world: World, executor: Executor, words: list[str], caller: Caller) -> Reply:
    jobs = _chosen(world, words)
    for job in jobs:
        job.hold = "user"
    return Reply("".join(f"modified hold of job {world.of(job).number}\n" for job in jobs[:1]), "", 0 if jobs else 1)


def qrls(world: World, executor: Executor, words: list[str], caller: Caller) -> Reply:
    jobs = _chosen(world, words)
    for job in jobs:
        job.hold = None
    return Reply("".join(f"modified hold of job {world.of(job).number}\n" for job in jobs[:1]), "", 0 if jobs else 1)


def qmod(world: World, executor: Executor, words: list[str], caller: Caller) -> Reply:
    jobs = _chosen(world, words[1:])
    for job in jobs:
        if words[0] == "-sj":
            world.suspend(executor, job)
        elif words[0] == "-usj":
            world.resume(executor, job)
        elif words[0] == "-rj":
            world.requeue(executor, job)
        elif words[0] == "-cj":
            job.forced = job.mark = job.hold = None
    return Reply(
        "".join(f"{caller.user} - modified job {world.of(job).number}\n" for job in jobs[:1]), "", 0 if jobs else 1
    )


def qhost(world: World, executor: Executor, words: list[str], caller: Caller) -> Reply:
    cores, memory = int(world.settings["cores"]), int(world.settings["memory_mb"]) / 1024
    if "-xml" in words:
        return Reply(_hosts_xml(world, "-q" in words))
    out = "HOSTNAME                ARCH         NCPU NSOC NCOR NTHR  LOAD  MEMTOT  MEMUSE  SWAPTO  SWAPUS\n"
    out += "-" * 95 + "\n"
    out += f"{'global':<23} -               -    -    -    -     -       -       -       -       -\n"
    for name, (up, _) in world.nodes.items():
        load = "0.10" if up else "   -"
        out += f"{name:<23} lx-amd64 {cores:>8} {1:>4} {cores:>4} {cores:>4}  {load} {memory:>6.1f}G"
        out += "  512.0M     0.0     0.0\n"
    return Reply(out)


def _hosts_xml(world: World, with_queues: bool) -> str:
    cores, memory = int(world.settings["cores"]), int(world.settings["memory_mb"]) / 1024
    names = ("arch_string", "num_proc", "m_socket", "m_core", "m_thread", "load_avg", "mem_total", "mem_used",
             "swap_total", "swap_used")  # fmt: skip
    free = world.free()
    out = f"<?xml version='1.0'?>\n<qhost xmlns:xsd=\"{SCHEMA.replace('qstat', 'qhost')}\">\n"
    for host in ("global", *world.nodes):
        up = host != "global" and world.nodes[host][0]
        values = ("lx-amd64", cores, 1, cores, cores, "0.10" if up else "-", f"{memory:.1f}G", "512.0M", "0.0", "0.0")
        out += f" <host name='{host}'>\n"
        for name, value in zip(names, values if host != "global" else ("-",) * 10, strict=True):
            out += f"   <hostvalue name='{name}'>{value}</hostvalue>\n"
        for queue in world.queues() if with_queues and host != "global" else ():
            title = queue["name"]
            facts = {"qtype_string": "BIP", "slots_used": cores - free[host][0] if up else 0, "slots": cores,
                     "slots_resv": 0,
                     "state_string": "au" if not up else "" if queue.get("up", True) else "d"}  # fmt: skip
            out += f" <queue name='{title}'>\n"
            out += "".join(
                f"   <queuevalue qname='{title}' name='{key}'>{value}</queuevalue>\n" for key, value in facts.items()
            )
            out += " </queue>\n"
        out += " </host>\n"
    return out + "</qhost>\n"


def qconf(world: World, executor: Executor, words: list[str], caller: Caller) -> Reply:
    if words[:1] == ["-sql"]:
        return Reply("".join(f"{queue['name']}\n" for queue in world.queues()))
    if words[:1] == ["-spl"]:
        return Reply("make\nmp\nsmp\n")
    if words[:1] == ["-sq"] and len(words) > 1:
        queue = world.queue(words[1])
        if queue is None:
            return Reply("", f'No cluster queue or queue instance matches the phrase "{words[1]}"\n', 1)
        longest = "INFINITY" if queue["time_s"] is None else time.strftime("%H:%M:%S", time.gmtime(queue["time_s"]))
        return Reply(
            f"qname                 {queue['name']}\nhostlist              {' '.join(world.nodes)}\n"
            f"slots                 {world.settings['cores']}\npe_list               make mp smp\n"
            f"h_rt                  {longest}\n"
            f"h_vmem                INFINITY\n"
        )
    if words[:1] == ["-sh"]:
        return Reply("".join(f"{name}\n" for name in world.nodes))
    return Reply("", f'error: invalid option argument "{words[0] if words else ""}"\n', 1)


COMMANDS = {
    "qsub": qsub,
    "qstat": qstat,
    "qdel": qdel,
    "qacct": qacct,
    "qhost": qhost,
    "qconf": qconf,
    "qmod": qmod,
    "qhold": qhold,
    "qrls": qrls,
}
