"""LSF's words: bsub, bjobs, bhist, bkill, bqueues, bhosts, lsid, badmin, bstop, bresume, brequeue, as 10.1 has them.

With the setting `cluster` = "openlava" it has what OpenLava has: no `-o`, no `-json`, fewer options of bsub, its own
version line.
"""

import json
import shlex
import time
from collections.abc import Callable

from rota.testing.fake_cluster.model import Caller, Executor, Job, Reply, Submission, World
from rota.testing.fake_cluster.personality import BadOptionError, options

STATES = ("PEND", "PROV", "PSUSP", "RUN", "USUSP", "SSUSP", "DONE", "EXIT", "UNKWN", "WAIT", "ZOMBI", "PDONE", "PERR")
REASONS = {
    "time": "TERM_RUNLIMIT: job killed after reaching LSF run time limit",
    "memory": "TERM_MEMLIMIT: job killed after reaching LSF memory usage limit",
    "preempt": "TERM_PREEMPT: job killed after preemption",
    "node": "TERM_ZOMBIE: job exited while LSF is not available",
    "launch": "TERM_CWD_NOTEXIST: current working directory is not accessible or does not exist on the execution host",
}
HOST = "login1"


def down(command: str, how: str) -> Reply:
    """Daemons that are not there: the commands wait, and say so."""
    if how == "hung":
        return Reply(code=255, wait_s=3600)
    return Reply("", "LSF is down. Please wait ...\n", 255)


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


# ---- bsub ------------------------------------------------------------------------------------------------------------

VALUED = ("J", "Jd", "q", "P", "G", "o", "e", "oo", "eo", "n", "R", "W", "M", "cwd", "env", "m", "U", "app", "w", "b",
          "gpu", "g", "sla", "u", "wa", "wt", "We", "i", "sp", "c", "v", "D", "E", "Ep", "ti", "outdir", "data",
          "nnodes", "hl", "C", "F", "S", "T", "t")  # fmt: skip
PLAIN = ("r", "rn", "x", "H", "K", "I", "B", "N", "V", "L", "ptl", "hl")
LAVA_VALUED = (*"EaTwfkRmJLuioenqbtscvpWFDSCMOGPX", "is", "sp")
LAVA_PLAIN = (*"IrHxNBhVK", "Ip", "Is", "Zs")


def _refused(text: str) -> Reply:
    return Reply("", f"{text}. Job not submitted.\n", 255)


def bsub(world: World, executor: Executor, words: list[str], caller: Caller) -> Reply:
    if words == ["-V"]:
        return Reply("", _version(world))
    command: list[str] = []
    place = 0
    while place < len(words):  # the command is what follows the last option
        if not words[place].startswith("-"):
            command = words[place:]
            break
        place += 2 if words[place][1:] in VALUED else 1
    valued, plain = (LAVA_VALUED, LAVA_PLAIN) if is_openlava(world) else (VALUED, PLAIN)
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
            return _refused("Job array index list is too large" if is_openlava(world) else "Array index too large")
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
    spec, _, tail = rest.partition("]")
    out: list[int] = []
    try:
        for part in spec.split(","):
            low, dash, high = part.partition("-")
            high, _, step = high.partition(":")
            out += range(int(low), int(high) + 1, int(step or 1)) if dash else [int(low)]
        throttle = int(tail.lstrip("%")) if tail.startswith("%") else None
    except ValueError:
        return None
    return (sorted(set(out)), throttle) if out and out[0] > 0 else None


def _minutes(text: str) -> int | None:
    hours, colon, minutes = text.partition("/")[0].rpartition(":")
    try:
        return int(hours) * 60 + int(minutes) if colon else int(minutes)
    except ValueError:
        return None


def _megabytes(text: str) -> int:
    """Kilobytes unless it says otherwise."""
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


# ---- bjobs -----------------------------------------------------------------------------------------------------------


def _find(world: World, text: str) -> "list[Job] | None":
    """Jobs of `12`, `12[3]`, `12[1-4]`; None: no id."""
    number, bracket, rest = text.partition("[")
    if not number.isdigit():
        return None
    jobs = world.find(int(number))
    if bracket:
        wanted = _indices(rest)
        jobs = [job for job in jobs if wanted is not None and job.index in wanted[0]]
    return jobs


def bjobs(world: World, executor: Executor, words: list[str], caller: Caller) -> Reply:
    try:
        given, ids = options(words, "", (), ("a", "w", "l", "p", "s", "r", "d", "A", "noheader", "json", "V", "X", "UF",
                                            "o=", "u=", "q=", "J=", "m=", "P=", "G=", "g=", "hms"))  # fmt: skip
    except BadOptionError as error:
        return Reply("", f"bjobs: illegal option -- {str(error)[1:]}\nUsage: bjobs [-h] [-a] [-w]\n", 255)
    if "V" in given:
        return Reply("", _version(world))
    if is_openlava(world) and ("o" in given or "json" in given):
        return Reply("", "bjobs: illegal option -- o\n", 255)
    jobs = list(world.listed())
    errors: list[str] = []
    if ids:
        chosen: list[Job] = []
        for text in ids:
            found = _find(world, text)
            if found is None:
                return Reply("", f"{text}: Illegal job ID.\n", 255)
            found = [job for job in found if not world.purged(job)]
            if not found:
                errors.append(text)
            chosen += found
        jobs = chosen
    users = given.get("u", [caller.user])[-1]
    if users != "all" and not (ids and "u" not in given):
        jobs = [job for job in jobs if world.of(job).user in users.split()]
    if "J" in given:
        wanted = given["J"][-1].partition("[")[0]
        jobs = [
            job
            for job in jobs
            if world.of(job).name == wanted or (wanted.endswith("*") and world.of(job).name.startswith(wanted[:-1]))
        ]
    if "q" in given:
        jobs = [job for job in jobs if world.of(job).queue == given["q"][-1]]
    if "a" not in given and "d" not in given and not ids:
        jobs = [job for job in jobs if state(job) not in ("DONE", "EXIT")]
    if not ids:
        jobs.sort(key=lambda job: {"over": 2, "pending": 1}.get(job.state, 0))
    text = "".join(f"Job <{number}> is not found\n" for number in errors)
    if "json" in given:
        return _as_json(world, jobs, errors, given.get("o", ["jobid stat"])[-1])
    if not jobs and not errors:
        what = "No job found" if "a" in given or "J" in given else "No unfinished job found"
        where = f" in queue <{given['q'][-1]}>" if "q" in given else ""
        return Reply("", f"{what}{where}\n", 255 if is_openlava(world) or "q" in given or "J" in given else 0)
    if not jobs:
        return Reply("", text, 255)
    if "o" in given:
        out = _custom(world, jobs, given["o"][-1], "noheader" in given)
    else:
        out = _wide(world, jobs, "noheader" in given)
    return Reply(out, text, 255 if errors else 0)


def _stamp(at: float | None) -> str:
    return "-" if at is None else time.strftime("%b %e %H:%M", time.localtime(at))


def fields(world: World, job: Job) -> dict[str, Callable[[], str]]:
    submission = world.of(job)
    code = exit_code(job)
    per = submission.cores
    hosts = [f"{per}*{name}" if per > 1 else name for name in job.nodes]
    end = None if job.started is None or submission.time_s is None else job.started + submission.time_s
    pend = ("Job is held;" if job.hold else "New job is waiting for scheduling;") if job.state == "pending" else ""
    return {
        "jobid": lambda: str(submission.number),
        "jobindex": lambda: str(job.index or 0),
        "stat": lambda: state(job),
        "user": lambda: submission.user,
        "queue": lambda: submission.queue,
        "job_name": lambda: shown_name(submission, job),
        "name": lambda: shown_name(submission, job),
        "job_description": lambda: submission.comment or "",
        "exit_code": lambda: "" if code is None else str(code),
        "exit_reason": lambda: exit_reason(job) or "",
        "kill_reason": lambda: "",
        "pend_reason": lambda: pend,
        "suspend_reason": lambda: "",
        "from_host": lambda: HOST,
        "first_host": lambda: job.nodes[0] if job.nodes else "",
        "exec_host": lambda: ":".join(hosts),
        "nexec_host": lambda: str(len(job.nodes)),
        "slots": lambda: str(submission.cores * submission.nodes),
        "submit_time": lambda: _stamp(submission.at),
        "start_time": lambda: "" if job.started is None else _stamp(job.started),
        "finish_time": lambda: (
            f"{_stamp(job.ended)} L" if job.ended is not None else "" if end is None else _stamp(end)
        ),
        "run_time": lambda: (
            f"{int((job.ended or world.now) - job.started) if job.started is not None else 0} second(s)"
        ),
        "cpu_used": lambda: f"{job.cpu_s:.1f} second(s)",
        "max_mem": lambda: f"{job.rss_kb / 1024:.1f} Mbytes" if job.rss_kb else "",
        "mem": lambda: f"{job.rss_kb / 1024:.1f} Mbytes" if job.rss_kb else "",
        "runtimelimit": lambda: "" if submission.time_s is None else f"{submission.time_s / 60:.1f}",
        "command": lambda: submission.words[0],
        "project": lambda: submission.account or "default",
        "nreq_slot": lambda: str(submission.cores),
    }


HEADS = {"name": "JOB_NAME"}


def _columns(text: str) -> tuple[list[tuple[str, int]], str | None]:
    names, _, delimiter = text.partition("delimiter=")
    columns = []
    for word in names.split():
        name, _, width = word.partition(":")
        columns.append((name.lower(), int(width.lstrip("-") or 0)))
    return columns, delimiter.strip().strip("'\"") or None


def _custom(world: World, jobs: list[Job], text: str, bare: bool) -> str:
    columns, delimiter = _columns(text)
    table = [] if bare else [[HEADS.get(name, name.upper()) for name, _ in columns]]
    for job in jobs:
        known = fields(world, job)
        table.append([known.get(name, lambda: "-")() or "-" for name, _ in columns])
    if delimiter is not None:
        return "".join(delimiter.join(row) + "\n" for row in table)
    widths = [width or 10 for _, width in columns]
    lines = [" ".join(value[:width].ljust(width) for value, width in zip(row, widths, strict=True)) for row in table]
    return "".join(line.rstrip() + "\n" for line in lines)


def _as_json(world: World, jobs: list[Job], errors: list[str], text: str) -> Reply:
    columns, _ = _columns(text)
    records: list[dict[str, str]] = []
    for job in jobs:
        known = fields(world, job)
        records.append({HEADS.get(name, name.upper()): known.get(name, lambda: "")() for name, _ in columns})
    records += [{"JOBID": number, "ERROR": f"Job <{number}> is not found"} for number in errors]
    lines = ["{", '  "COMMAND":"bjobs",', f'  "JOBS":{len(records)},']
    if not records:
        lines.append('  "RECORDS":[]')
    else:
        lines.append('  "RECORDS":[')
        for place, record in enumerate(records):
            body = [f"      {json.dumps(key)}:{json.dumps(value)}" for key, value in record.items()]
            lines += ["    {", ",\n".join(body), "    }" + ("," if place + 1 < len(records) else "")]
        lines.append("  ]")
    lines.append("}")
    return Reply("\n".join(lines) + "\n", "", 255 if errors else 0)


def _wide(world: World, jobs: list[Job], bare: bool) -> str:
    out = "" if bare else "JOBID   USER    STAT  QUEUE      FROM_HOST   EXEC_HOST   JOB_NAME   SUBMIT_TIME\n"
    for job in jobs:
        submission = world.of(job)
        host = ":".join(name for name in job.nodes for _ in range(submission.cores)) or "   -"
        out += f"{submission.number:<7} {submission.user:<7} {state(job):<5} {submission.queue:<10} {HOST:<11} "
        out += f"{host:<11} {shown_name(submission, job):<10} {_stamp(submission.at)}\n"
    return out


# ---- bhist -----------------------------------------------------------------------------------------------------------


def bhist(world: World, executor: Executor, words: list[str], caller: Caller) -> Reply:
    try:
        given, ids = options(words, "", (), ("l", "a", "w", "b", "V", "n=", "u=", "J=", "q="))
    except BadOptionError as error:
        return Reply("", f"bhist: illegal option -- {str(error)[1:]}\n", 255)
    if not world.settings["history"]:
        return Reply("No matching job found\n", "", 255)
    jobs: list[Job] = []
    missing = False
    for text in ids:
        found = _find(world, text)
        missing = missing or not found
        jobs += found or []
    if not ids:
        jobs = [job for job in world.jobs if world.of(job).user == caller.user]
        if "J" in given:
            jobs = [job for job in jobs if world.of(job).name == given["J"][-1].partition("[")[0]]
    jobs = [job for job in jobs if world.accounted(job)]
    if not jobs:
        return Reply("No matching job found\n", "", 255)
    return Reply(
        "".join(_history(world, job) for job in jobs),
        "No matching job found\n" if missing else "",
        255 if missing else 0,
    )


def _fold(text: str) -> str:
    """Lines of 79, the rest indented under the text."""
    lines = [text[:79]]
    rest = text[79:]
    while rest:
        lines.append(" " * 21 + rest[:58])
        rest = rest[58:]
    return "\n".join(lines) + "\n"


def _history(world: World, job: Job) -> str:
    submission = world.of(job)
    lava = is_openlava(world)
    number = f"{submission.number}[{job.index}]" if submission.array else str(submission.number)
    out = "\n" + _fold(
        f"Job{' Id' if lava else ''} <{number}>, Job Name <{shown_name(submission, job)}>, User <{submission.user}>, "
        f"Project <{submission.account or 'default'}>, Command <{submission.words[0].partition(chr(10))[0]}>"
    )

    def line(at: float, text: str) -> str:
        return _fold(time.strftime("%a %b %e %H:%M:%S", time.localtime(at)) + f": {text};")

    out += line(
        submission.at,
        f"Submitted from host <{HOST}>{'' if lava else ','} to Queue <{submission.queue}>, CWD <{submission.cwd}>",
    )
    for why, started, ended, nodes in job.past:
        out += line(started or ended, _dispatched(submission, nodes, lava))
        out += line(ended, "Signal <REQUEUE_PEND> requested by user or administrator <root>")
        out += line(ended, "Pending: Requeued job is waiting for rescheduling" if why else "Pending")
    if job.started is not None:
        out += line(job.started, _dispatched(submission, job.nodes, lava))
        out += line(job.started, "Starting (Pid 12002)")
        out += line(
            job.started, f"Running with execution home </root>, Execution CWD <{submission.cwd}>, Execution Pid <12002>"
        )
    if job.state == "suspended" and job.suspended is not None:
        out += line(job.suspended, "Suspended by the user or administrator")
    if job.forced == "UNKWN":
        out += line(job.touched, "Unknown; unable to reach the execution host")
    if job.state == "over" and job.ended is not None:
        if job.why == "cancelled":
            out += line(job.ended, f"Signal <KILL> requested by user or administrator <{submission.user}>")
        out += line(job.ended, _ending(job))
        if not lava and job.started is not None:
            out += line(
                job.ended,
                "Completed <done>"
                if state(job) == "DONE"
                else "Completed <exit>" + (f"; {exit_reason(job)}" if exit_reason(job) else ""),
            )
    began, ended = job.started, job.ended if job.ended is not None else world.now
    pend = int((began if began is not None else ended) - submission.at)
    run = int(ended - began) if began is not None else 0
    out += time.strftime(
        "\nSummary of time in seconds spent in various states by  %a %b %e %H:%M:%S\n", time.localtime(ended)
    )
    out += "  PEND     PSUSP    RUN      USUSP    SSUSP    UNKWN    TOTAL\n"
    out += "  " + "".join(f"{value:<9}" for value in (pend, 0, run, 0, 0, 0)) + f"{pend + run:<12}\n\n"
    return out


def _dispatched(submission: Submission, nodes: list[str], lava: bool) -> str:
    hosts = " ".join(f"<{name}>" for name in nodes)
    if lava:
        return f"Dispatched to {hosts}"
    slots = submission.cores * submission.nodes
    return f"Dispatched {slots} Task(s) on Host(s) {hosts}, Allocated {slots} Slot(s) on Host(s) {hosts}"


def _ending(job: Job) -> str:
    used = f"The CPU time used is {job.cpu_s:.1f} seconds"
    if state(job) == "DONE":
        return f"Done successfully. {used}"
    code = exit_code(job)
    if code is None:
        return f"Exited. {used}" if job.started is not None else "Exited"
    return f"Exited with exit code {code}. {used}"


# ---- bkill and others ------------------------------------------------------------------------------------------------


def bkill(world: World, executor: Executor, words: list[str], caller: Caller) -> Reply:
    try:
        given, ids = options(words, "", (), ("r", "l", "b", "V", "s=", "u=", "J=", "q=", "m=", "g="))
    except BadOptionError as error:
        return Reply("", f"bkill: illegal option -- {str(error)[1:]}\n", 255)
    out, errors, code = "", "", 0
    signal = given.get("s", ["KILL"])[-1].removeprefix("SIG")
    texts: list[tuple[str, list[Job] | None]] = [(text, _find(world, text)) for text in ids if text != "0"]
    if "J" in given:
        name = given["J"][-1].partition("[")[0]
        serials = [each for each in world.submissions.values() if each.name == name and each.user == caller.user]
        texts += [(str(each.number), world.find(each.number)) for each in serials]
        if not serials:
            return Reply("", f"Job <{name}> is not found\n", 255)
    for text, jobs in texts:
        if jobs is None:
            return Reply("", f"{text}: Illegal job ID.\n", 255)
        known = [job for job in jobs if not world.purged(job)]
        live = [job for job in known if job.state != "over"]
        if not known:
            errors, code = errors + f"Job <{text}>: No matching job found\n", 255
        elif not live:
            errors, code = errors + f"Job <{text}>: Job has already finished\n", 255
        elif signal in ("KILL", "9") or "r" in given:
            for job in live:
                job.forced = None if "r" in given else job.forced
                world.cancel(executor, job, str(caller.uid))
            out += f"Job <{text}> is being terminated\n"
        else:
            for job in live:
                executor.signal(world, job, {"15": "TERM", "2": "INT"}.get(signal, signal), world.now)
            out += f"Job <{text}> is being signaled\n"
    return Reply(out, errors, code)


def _simple(verb: str, done: str) -> Callable[[World, Executor, list[str], Caller], Reply]:
    def command(world: World, executor: Executor, words: list[str], caller: Caller) -> Reply:
        out, errors = "", ""
        for text in [word for word in words if not word.startswith("-")]:
            jobs = [job for job in _find(world, text) or [] if job.state != "over"]
            if not jobs:
                errors += f"Job <{text}>: No matching job found\n"
            for job in jobs:
                if verb == "bstop":
                    if not world.suspend(executor, job):
                        job.hold = "user"
                elif verb == "bresume":
                    job.hold = None
                    world.resume(executor, job)
                else:
                    world.requeue(executor, job)
            if jobs:
                out += f"Job <{text}> {done}\n"
        return Reply(out, errors, 255 if errors else 0)

    return command


def bqueues(world: World, executor: Executor, words: list[str], caller: Caller) -> Reply:
    names = [word for word in words if not word.startswith("-")]
    for name in names:
        if world.queue(name) is None:
            return Reply("", f"{name}: No such queue\n", 255)
    queues = [queue for queue in world.queues() if not names or queue["name"] in names]
    if "-l" in words:
        out = ""
        for queue in queues:
            limit = f" RUNLIMIT\n {queue['time_s'] / 60:.1f} min\n\n" if queue["time_s"] else ""
            word = "Open:Active" if queue.get("up", True) else "Open:Inact"
            status = "PRIO NICE     STATUS       MAX JL/U JL/P JL/H NJOBS  PEND  RUN  SSUSP USUSP  RSV\n"
            status += f"  30   0    {word}     -    -    -    -     0     0     0     0     0    0\n\n"
            default = "  -- This is the default queue.\n" if queue.get("default") else ""
            out += f"\nQUEUE: {queue['name']}\n{default}\nPARAMETERS/STATISTICS\n{status}{limit}"
            out += "USERS: all\nHOSTS:  all\n\n"
        return Reply(out)
    out = "QUEUE_NAME     PRIO      STATUS      MAX  JL/U JL/P JL/H NJOBS  PEND  RUN  SUSP\n"
    for queue in queues:
        jobs = [job for job in world.jobs if world.of(job).queue == queue["name"] and job.state != "over"]
        waits, stopped = sum(job.state == "pending" for job in jobs), sum(job.state == "suspended" for job in jobs)
        word = "Open:Active" if queue.get("up", True) else "Open:Inact"
        out += f"{queue['name']:<14} {30:>3} {word:^15} {'-':>5} {'-':>4} {'-':>4} {'-':>4} {len(jobs):>5} {waits:>5} "
        out += f"{len(jobs) - waits - stopped:>5} {stopped:>5} \n"
    return Reply(out)


def bhosts(world: World, executor: Executor, words: list[str], caller: Caller) -> Reply:
    cores, free = int(world.settings["cores"]), world.free()
    out = "HOST_NAME          STATUS       JL/U    MAX  NJOBS    RUN  SSUSP  USUSP    RSV\n"
    for name, (up, _) in world.nodes.items():
        used = cores - free[name][0] if up else 0
        word = "unreach" if not up else "closed" if used >= cores else "ok"
        out += f"{name:<18} {word:<14} - {cores:>6} {used:>6} {used:>6} {0:>6} {0:>6} {0:>6}\n"
    return Reply(out)


def _version(world: World) -> str:
    if is_openlava(world):
        return "OpenLava 4.0dev4, Nov 15 2026\n"
    return (
        "IBM Spectrum LSF Standard 10.1.0.13, Apr 15 2022\n"
        "Copyright International Business Machines Corp. 1992, 2016.\n"
        "US Government Users Restricted Rights - Use, duplication or disclosure restricted by GSA ADP Schedule "
        "Contract with IBM Corp.\n"
    )


def lsid(world: World, executor: Executor, words: list[str], caller: Caller) -> Reply:
    if words == ["-V"]:
        return Reply("", _version(world))
    return Reply(
        f"{_version(world)}\nMy cluster name is {world.settings['cluster'] or 'fake'}\nMy master name is {HOST}\n"
    )


def badmin(world: World, executor: Executor, words: list[str], caller: Caller) -> Reply:
    if words[:1] == ["showconf"]:
        return Reply("MBD configuration at Mon Nov 16 00:00:00 2026\n    LSF_UNIT_FOR_LIMITS = MB\n")
    return Reply("", "Usage: badmin showconf mbd\n", 255)


COMMANDS = {
    "bsub": bsub,
    "bjobs": bjobs,
    "bhist": bhist,
    "bkill": bkill,
    "bqueues": bqueues,
    "bhosts": bhosts,
    "lsid": lsid,
    "badmin": badmin,
    "bstop": _simple("bstop", "is being stopped"),
    "bresume": _simple("bresume", "is being resumed"),
    "brequeue": _simple("brequeue", "is being requeued "),
}
