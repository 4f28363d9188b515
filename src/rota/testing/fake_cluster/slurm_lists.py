"""Slurm's squeue and sacct."""

from collections.abc import Callable, Mapping

from rota.testing.fake_cluster.arguments import BadOptionError, indices_of, options
from rota.testing.fake_cluster.slurm_jobs import (
    CODES,
    OVER,
    STATES,
    exit_code,
    limit_s,
    raw_status,
    reason,
    run_time,
    shown_id,
    span,
    stamp,
    state,
    task_text,
)
from rota.testing.fake_cluster.world import Caller, Executor, Job, Reply, World

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
        "x": lambda: str(raw_status(job)),
        "y": lambda: str(job.restarts),
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
    "exit_code": "x", "restartcnt": "y", "batchhost": "B", "usercommand": "o",
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
    users = [caller.user] if "me" in given else given["user"].split(",") if "user" in given else []
    errors = "".join(f"squeue: error: Invalid user: {user}\n\n" for user in users if not _is_user(user, caller, world))
    if users:
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
        cells = [
            (LONG_FIELDS.get(name.lower(), ""), int(width or 20))
            for name, _, width in (part.partition(":") for part in given["Format"].split(","))
        ]
        if "noheader" not in given:
            lines.append("".join(HEADS.get(letter, "")[:size].ljust(size) for letter, size in cells))
        for row in rows(world, jobs, "array" in given):
            known = fields(world, row)
            lines.append("".join(known.get(letter, "".__str__)()[:size].ljust(size) for letter, size in cells))
    else:
        pattern = given.get("format", "%.18i %.9P %.8j %.8u %.2t %.10M %.6D %R")
        if "noheader" not in given:
            lines.append(_format(pattern, {letter: name.__str__ for letter, name in HEADS.items()}))
        lines += [_format(pattern, fields(world, row)) for row in rows(world, jobs, "array" in given)]
    return Reply("".join(line + "\n" for line in lines), errors)


def _is_user(name: str, caller: Caller, world: World) -> bool:
    """Whether the controller's host knows the user."""
    known = {caller.user, "root", *(each.user for each in world.submissions.values())}
    return name in known or name.isdigit()


HEADS = {
    "x": "EXIT_CODE", "y": "RESTART_COUNT", "B": "EXEC_HOST",
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
