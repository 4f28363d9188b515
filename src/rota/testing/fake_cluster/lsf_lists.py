"""LSF's listings: bjobs, bhist, bqueues, bhosts."""

import json
import time
from collections.abc import Callable

from rota.testing.fake_cluster.arguments import BadOptionError, options
from rota.testing.fake_cluster.lsf_jobs import (
    HOST,
    exit_code,
    exit_reason,
    find,
    is_openlava,
    shown_name,
    state,
    version,
)
from rota.testing.fake_cluster.world import Caller, Executor, Job, Reply, Submission, World


def bjobs(world: World, executor: Executor, words: list[str], caller: Caller) -> Reply:
    try:
        given, ids = options(words, "", (), ("a", "w", "l", "p", "s", "r", "d", "A", "noheader", "json", "V", "X", "UF",
                                            "o=", "u=", "q=", "J=", "m=", "P=", "G=", "g=", "hms"))  # fmt: skip
    except BadOptionError as error:
        return Reply("", f"bjobs: illegal option -- {str(error)[1:]}\nUsage: bjobs [-h] [-a] [-w]\n", 255)
    if "V" in given:
        return Reply("", version(world))
    if is_openlava(world) and ("o" in given or "json" in given):
        return Reply("", "bjobs: illegal option -- o\n", 255)
    jobs = list(world.listed())
    errors: list[str] = []
    if ids:
        chosen: list[Job] = []
        for text in ids:
            found = find(world, text)
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
    if "p" in given:
        jobs = [job for job in jobs if job.state == "pending"]
        out = _wide(world, jobs, "noheader" in given, why=True)
    elif "o" in given:
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
    pend = f"{pending_reason(world, job)};" if job.state == "pending" else ""
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


def pending_reason(world: World, job: Job) -> str:
    """Why a job waits."""
    if job.hold:
        return "The job was suspended by the user while pending" if is_openlava(world) else "Job is held"
    if job.mark == "resources":
        return "Job slot limit reached"
    return "New job is waiting for scheduling"


def _wide(world: World, jobs: list[Job], bare: bool, why: bool = False) -> str:
    out = "" if bare else "JOBID   USER    STAT  QUEUE      FROM_HOST   EXEC_HOST   JOB_NAME   SUBMIT_TIME\n"
    for job in jobs:
        submission = world.of(job)
        host = ":".join(name for name in job.nodes for _ in range(submission.cores)) or "   -"
        out += f"{submission.number:<7} {submission.user:<7} {state(job):<5} {submission.queue:<10} {HOST:<11} "
        out += f"{host:<11} {shown_name(submission, job):<10} {_stamp(submission.at)}\n"
        out += f" {pending_reason(world, job)}: {len(world.nodes)} hosts;\n" if why else ""
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
        found = find(world, text)
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


# ---- queues and hosts ------------------------------------------------------------------------------------------------


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


def bparams(world: World, executor: Executor, words: list[str], caller: Caller) -> Reply:
    usual = " ".join(queue["name"] for queue in world.queues() if queue.get("default"))
    if "-l" in words:
        out = f"System default queues for automatic queue selection:\n    DEFAULT_QUEUE = {usual}\n\n"
        out += "The interval for dispatching jobs by master batch daemon:\n    MBD_SLEEP_TIME = 2 (seconds)\n\n"
        size = world.settings["max_array"]
        return Reply(f"{out}The maximum number of jobs in a job array:\n    MAX_JOB_ARRAY_SIZE = {size}\n\n")
    return Reply(f"Default Queues:  {usual}\nJob Dispatch Interval:  2 seconds\nJob Checking Interval:  2 seconds\n")


def lshosts(world: World, executor: Executor, words: list[str], caller: Caller) -> Reply:
    cores, memory = world.settings["cores"], f"{world.settings['memory_mb']}M"
    out = "HOST_NAME                       type       model  cpuf ncpus maxmem maxswp server RESOURCES\n"
    for name in world.nodes:
        out += f"{name:<25} {'linux':>10} {'IntelI5':>11} 100.0 {cores:>5} {memory:>6} {'-':>6}    Yes (cs)\n"
    return Reply(out)


def bhosts(world: World, executor: Executor, words: list[str], caller: Caller) -> Reply:
    cores, free = int(world.settings["cores"]), world.free()
    out = "HOST_NAME          STATUS       JL/U    MAX  NJOBS    RUN  SSUSP  USUSP    RSV\n"
    for name, (up, _) in world.nodes.items():
        used = cores - free[name][0] if up else 0
        word = "unreach" if not up else "closed" if used >= cores else "ok"
        out += f"{name:<18} {word:<14} - {cores:>6} {used:>6} {used:>6} {0:>6} {0:>6} {0:>6}\n"
    return Reply(out)
