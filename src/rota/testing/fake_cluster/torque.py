"""TORQUE's words: its own qsub, qstat, qdel, qselect, qsig, pbsnodes; its numbers differ from OpenPBS's."""

import time

from rota.testing.fake_cluster import pbs_jobs
from rota.testing.fake_cluster.arguments import BadOptionError, indices_of, options
from rota.testing.fake_cluster.pbs_jobs import clock, date, on_each
from rota.testing.fake_cluster.pbs_qstat import Row, parse_id, select
from rota.testing.fake_cluster.world import Caller, Executor, Job, Reply, Submission, World

SERVER = "trq1"
IDLE_SLOTS = 300
"""What a server that was told nothing else does."""
STATES = ("C", "E", "H", "Q", "R", "S", "T", "W")
USAGE = """\
[exiting]

usage: qsub [-a date_time] [-A account_string] [-b secs]
    [-c [ none | { enabled | periodic | shutdown |
    depth=<int> | dir=<path> | interval=<minutes>}... ]
    [-C directive_prefix] [-d path] [-D path]
    [-e path] [-h] [-I] [-j oe|eo|n] [-k {oe}] [-K <kill delay seconds>]\x20
    [-l resource_list] [-m n|{abe}] [-M user_list] [-N jobname] [-o path]\x20
    [-p priority] [-P proxy_user [-J <jobid]] [-q queue] [-r y|n]\x20
    [-S path] [-t number_to_submit] [-T type]  [-u user_list] [-w] path
    [-W additional_attributes] [-v variable_list] [-V ] [-x] [-X] [-z] [script]

"""


def down(command: str, how: str) -> Reply:
    """A server that is not there, or does not answer."""
    if how == "hung":
        return Reply(code=1, wait_s=3600)
    text = f"\nUnable to communicate with {SERVER}(10.0.0.1)\nCannot connect to specified server host '{SERVER}'.\n"
    last = f"{command}: cannot connect to server {SERVER} (errno=111) Connection refused\n"
    if command == "qstat":
        return Reply("", text * 3 + last + "qstat: Error (111 - Connection refused) \n", 111)
    return Reply("", text + last, 111)


def state(job: Job) -> str:
    if job.forced:
        return job.forced
    if job.state == "pending":
        return "H" if job.hold or job.mark in ("throttle", "fresh") else "Q"
    return {"over": "C", "suspended": "S", "ending": "E"}.get(job.state, "R")


def exit_status(job: Job) -> int | None:
    return pbs_jobs.exit_status(job, time_limit=-11, memory=-10, lost=271)


def shown(submission: Submission, job: Job | None) -> str:
    return pbs_jobs.shown(submission, job, SERVER)


def _refused(text: str, code: int) -> Reply:
    return Reply("", f"qsub: submit error ({text})\n", code)


def qsub(world: World, executor: Executor, words: list[str], caller: Caller) -> Reply:
    if words[:1] == ["--version"]:
        return Reply("", "Version: master\nCommit: unknown\n")
    if world.settings["refuse_root"] and caller.uid == 0:
        return Reply("", "qsub can not be run as root\n", 1)
    try:
        given, rest = options(words, "a:A:b:c:C:d:D:e:fF:hIj:k:K:l:m:M:nN:o:p:P:q:r:S:t:T:u:w:W:v:VxXz")
    except BadOptionError as error:
        return Reply("", f"/opt/torque/bin/qsub: invalid option -- '{str(error)[1:]}'\n{USAGE}", 2)
    submission = Submission()
    pbs_jobs.fill(world, submission, given, caller, words)
    script = pbs_jobs.read_script(rest, caller, "qsub: script file '{}' cannot be loaded - No such file or directory\n")
    if isinstance(script, Reply):
        return script
    submission.script = script
    submission.name = given.get("N", [rest[0].rpartition("/")[2] if rest else "STDIN"])[-1]
    if "t" in given:
        found = indices_of(given["t"][-1])
        most = int(world.settings["max_array"])
        if found is None:
            return _refused("Bad Job Array Request", 235)
        if len(found[0]) > most:
            return _refused(f"Bad Job Array Request MSG=Requested array size too large, limit is {most}", 235)
        submission.array, (submission.indices, submission.throttle) = True, found
        submission.shown_array = given["t"][-1].partition("%")[0]
    try:
        pbs_jobs.read_resources(world, submission, given.get("l", []))
    except pbs_jobs.RefusedError as error:
        kind, name = error.args
        if kind == "value":
            return _refused(f"Illegal attribute or resource value for Resource_List.{name}", 168)
        return _refused(f"Unknown resource type  Resource_List.{name}", 189)
    return _check(world, submission, given.get("q", [None])[-1])


def _check(world: World, submission: Submission, name: str | None) -> Reply:
    queue = world.queue(name)
    if queue is None:
        return _refused("Unknown queue MSG=requested queue not found", 172)
    submission.queue = queue["name"]
    accounts = world.settings["accounts"]
    if accounts is not None and submission.account not in accounts:
        return _refused("Invalid Account MSG=invalid account", 203)
    if submission.cores > int(world.settings["cores"]) or submission.nodes > len(world.nodes):
        why = "nodes file is empty, all systems are busy, or no nodes have the requested feature"
        return _refused(f"Job exceeds queue resource limits MSG=cannot locate feasible nodes ({why})", 190)
    if submission.time_s and queue["time_s"] and submission.time_s > queue["time_s"]:
        return _refused("Job exceeds queue resource limits MSG=cannot satisfy queue max walltime requirement", 190)
    live = sum(job.state != "over" for job in world.jobs)
    if live + max(1, len(submission.indices)) > int(world.settings["max_jobs"]):
        text = "Maximum number of jobs already in queue MSG=total number of current user's jobs exceeds the queue limit"
        return _refused(f"{text}: user {submission.user}@{SERVER}, queue {submission.queue}", 200)
    world.submit(submission, world.now)
    return Reply(f"{shown(submission, None)}\n")


def job_environment(world: World, submission: Submission, job: Job) -> dict[str, str]:
    out = pbs_jobs.job_environment(world, submission, job)
    out["PBS_JOBID"] = shown(submission, job)
    out["PBS_NUM_PPN"], out["PBS_NUM_NODES"] = str(submission.cores), str(submission.nodes)
    for name in ("PBS_ARRAY_INDEX", "PBS_ARRAY_ID", "NCPUS"):
        out.pop(name, None)
    if submission.array:
        out["PBS_ARRAYID"] = str(job.index)
    return out


def _place(path: str | None, submission: Submission, job: Job, letter: str) -> str:
    end = f"-{job.index}" if submission.array else ""
    stem = f"{submission.name}.{letter}{submission.number}{end}"
    if path is None:
        return f"{submission.options['workdir']}/{stem}"
    path = path.rpartition(":")[2].replace("$PBS_JOBID", shown(submission, job)).replace("$PBS_ARRAYID", str(job.index))
    path = path if path.startswith("/") else f"{submission.options['workdir']}/{path}"
    return f"{path}{stem}" if path.endswith("/") else path if path == "/dev/null" else path + end


def output_path(world: World, submission: Submission, job: Job) -> str:
    return _place(submission.output, submission, job, "o")


def error_path(world: World, submission: Submission, job: Job) -> str | None:
    return None if "join" in submission.options else _place(submission.error, submission, job, "e")


# ---- qstat -----------------------------------------------------------------------------------------------------------


def _rows(world: World, elements: bool) -> list[Row]:
    """Parents of arrays, or with `-t` their elements instead."""
    out: list[Row] = []
    by_serial: dict[int, list[Job]] = {}
    for job in world.jobs:
        if not world.purged(job):
            by_serial.setdefault(job.serial, []).append(job)
    for serial, jobs in by_serial.items():
        submission = world.submissions[serial]
        if submission.array and not elements:
            out.append((submission, None, jobs))
        else:
            out += [(submission, job, jobs) for job in _made(world, jobs)]
    return out


def _made(world: World, jobs: list[Job]) -> list[Job]:
    """The elements of an array that there are: only so many are made before they can start."""
    waiting = [job for job in jobs if job.state == "pending"]
    if len(waiting) <= (most := int(world.settings["idle_slots"])):
        return jobs
    later = {job.index for job in waiting[most:]}
    return [job for job in jobs if job.index not in later]


def _row_state(row: Row) -> str:
    if row[1] is not None:
        return state(row[1])
    states = {state(job) for job in row[2]}
    return next((letter for letter in "REHQC" if letter in states), "Q")


def _find(world: World, text: str, elements: bool) -> list[Row] | None:
    parsed = parse_id(text)
    if parsed is None:
        return None
    number, index = parsed
    rows = [row for row in _rows(world, elements or bool(index)) if row[0].number == number]
    if index:
        return [row for row in rows if row[1] is not None and str(row[1].index) == index]
    return rows


def qstat(world: World, executor: Executor, words: list[str], caller: Caller) -> Reply:
    if words[:1] == ["--version"]:
        return Reply("", "Version: master\nCommit: unknown\n")
    try:
        given, ids = options(words, "fxtu:Q1aniBrse")
    except BadOptionError as error:
        return Reply(
            "", f"/opt/torque/bin/qstat: invalid option -- '{str(error)[1:]}'\nusage: \nqstat [-f] [-x] [-t]\n", 2
        )
    if "Q" in given:
        return _full_queues(world) if "f" in given else _queues(world)
    if "B" in given and "f" in given:
        usual = "".join(f"    default_queue = {queue['name']}\n" for queue in world.queues() if queue.get("default"))
        usual += f"    max_job_array_size = {world.settings['max_array']}\n" if world.settings["tells_limits"] else ""
        usual += f"    idle_slot_limit = {most}\n" if (most := int(world.settings["idle_slots"])) != IDLE_SLOTS else ""
        return Reply(f"Server: {SERVER}\n    server_state = Active\n{usual}\n")
    rows: list[Row] = []
    errors, code = "", 0
    for text in ids:
        found = _find(world, text, "t" in given)
        if found is None:
            return Reply("", f"qstat: Unknown queue destination {text}\n", 172)
        if not found:
            full = text if "." in text else f"{text}.{SERVER}"
            errors, code = errors + f"qstat: Unknown Job Id Error {full}\n", 153
        rows += found
    if not ids:
        rows = _rows(world, "t" in given)
    if "u" in given:
        rows = [row for row in rows if row[0].user in given["u"][-1].split(",")]
    if not rows:
        return Reply("", errors, code)
    if "x" in given:
        body = "".join(f"<Job>{_xml(world, row)}</Job>" for row in rows)
        return Reply(f'<?xml version="1.0"?>\n<Data>{body}</Data>\n', errors, code)
    if "f" in given:
        return Reply("".join(_full(world, row) for row in rows), errors, code)
    if "u" in given or "a" in given or "n" in given:
        return Reply(_alternative(world, rows, "s" in given), errors, code)
    out = "Job ID                    Name             User            Time Use S Queue\n"
    out += "------------------------- ---------------- --------------- -------- - -----\n"
    for row in rows:
        submission, job, _ = row
        name = f"{submission.name}-{job.index}" if submission.array and job is not None else submission.name
        used = "0" if job is None or job.state != "over" or job.started is None else clock(job.cpu_s)
        out += f"{shown(submission, job)[:25]:<26} {name[:16]:<16} {submission.user[:15]:<15} {used:>8} "
        out += f"{_row_state(row)} {submission.queue:<15}\n"
    return Reply(out, errors, code)


def _alternative(world: World, rows: list[Row], comments: bool) -> str:
    """The table of `-a` and `-u`."""
    out = f"\n{SERVER}: \n" + " " * 82 + "Req'd       Req'd       Elap\n"
    out += "Job ID                  Username    Queue    Jobname          SessID  NDS   TSK   Memory      Time    S"
    out += "   Time\n"
    out += " ".join("-" * width for width in (23, 11, 8, 16, 6, 5, 6, 9, 9, 1, 9)) + "\n"
    for row in rows:
        submission, job, _ = row
        name = f"{submission.name}-{job.index}" if submission.array and job is not None else submission.name
        session = "  -- " if job is None or job.started is None else "20148"
        memory = f"{submission.memory_mb}mb" if submission.memory_mb else "-- "
        limit = clock(submission.time_s if submission.time_s is not None else 3600)
        began = None if job is None or not job.live else job.started
        used = "      -- " if began is None else f" {clock(world.now - began)}"
        out += f"{shown(submission, job):<23} {submission.user:<11} {submission.queue:<8} {name[:16]:<16} {session:>6} "
        out += f"{submission.nodes:>5} {submission.cores:>6} {memory:>9}  {limit:>8} {_row_state(row)} {used}\n"
        if comments and job is not None and (comment := _comment(job)):
            out += f"   {comment}\n"
    return out


def _comment(job: Job) -> str | None:
    if job.started is not None:
        return time.strftime("Job started on %a %b %d at %H:%M", time.localtime(job.started))
    return "Not Running: Not enough of the right type of nodes available" if job.mark == "resources" else None


Attributes = list[tuple[str, str | float]]


def _attributes(world: World, row: Row) -> Attributes:
    """The full record in the server's order; times as numbers, as XML has them."""
    submission, job, jobs = row
    where = submission.options["workdir"]
    end = f"-{job.index}" if submission.array and job is not None else ""
    out: Attributes = [("Job_Name", submission.name + end), ("Job_Owner", f"{submission.user}@{SERVER}")]
    over = job is not None and job.state == "over"
    if job is not None and over and job.started is not None:
        out += _used(world, job, job.started)
    out += [("job_state", _row_state(row)), ("queue", submission.queue), ("server", SERVER), ("Checkpoint", "u")]
    out.append(("ctime", submission.at))
    out.append(("Error_Path", f"{SERVER}:{submission.error or f'{where}/{submission.name}.e{submission.number}{end}'}"))
    if job is not None and job.nodes:
        out.append(("exec_host", "+".join(f"{node}/{core}" for node in job.nodes for core in range(submission.cores))))
    hold = (job or jobs[0]).hold
    out.append(("Hold_Types", {"user": "u", "admin": "s"}.get(hold or "", "n")))
    out += [("Join_Path", submission.options.get("join", "n")), ("Keep_Files", "n"), ("Mail_Points", "a")]
    out.append(("mtime", max(each.touched for each in ([job] if job is not None else jobs))))
    path = submission.output or f"{where}/{submission.name}.o{submission.number}{end}"
    out += [("Output_Path", f"{SERVER}:{path}"), ("Priority", "0")]
    if job is not None:
        out.append(("qtime", submission.at))
    out.append(("Rerunable", str(submission.requeue)))
    out += _requested(submission)
    if job is not None and job.started is not None:
        out.append(("session_id", "20148" if job.handle is None else job.handle.partition(":")[0]))
    out.append(("Variable_List", ",".join(f"{key}={value}" for key, value in _variables(submission, job).items())))
    out += [("euser", submission.user), ("egroup", submission.user), ("queue_type", "E")]
    if job is not None and (comment := _comment(job)):
        out.append(("comment", comment))
    if hold is None:
        out.append(("etime", submission.at))
    status = exit_status(job) if job is not None else None
    if status is not None:
        out.append(("exit_status", str(status)))
    out.append(("submit_args", " ".join(submission.words)))
    if end and job is not None:
        out.append(("job_array_id", str(job.index)))
    elif submission.array:
        out.append(("job_array_request", submission.shown_array or ""))
    if job is not None and job.started is not None:
        out.append(("start_time", job.started))
        if not over:
            limit = submission.time_s if submission.time_s is not None else 3600
            out.append(("Walltime.Remaining", str(int(limit - (world.now - job.started)))))
        out.append(("start_count", str(job.restarts + 1)))
    out.append(("fault_tolerant", "False"))
    if job is not None and over and job.started is not None:
        out.append(("comp_time", job.ended or world.now))
    out.append(("job_radix", "0"))
    if job is not None and over and job.started is not None:
        out.append(("total_runtime", f"{(job.ended or world.now) - job.started:.6f}"))
    return [*out, ("submit_host", SERVER), ("init_work_dir", submission.cwd), ("request_version", "1")]


def _used(world: World, job: Job, started: float) -> Attributes:
    used = {"cput": clock(job.cpu_s), "vmem": f"{job.rss_kb}kb", "walltime": clock((job.ended or world.now) - started),
            "mem": f"{job.rss_kb}kb", "energy_used": "0"}  # fmt: skip
    return [(f"resources_used.{key}", value) for key, value in used.items()]


def _requested(submission: Submission) -> Attributes:
    default = str(submission.nodes) + (f":ppn={submission.cores}" if submission.cores > 1 else "")
    wanted = {"nodes": submission.options.get("nodes", default), "nodect": str(submission.nodes)}
    if submission.memory_mb:
        wanted["mem"] = f"{submission.memory_mb}mb"
    wanted["walltime"] = clock(submission.time_s if submission.time_s is not None else 3600)
    return [(f"Resource_List.{key}", value) for key, value in wanted.items()]


def _variables(submission: Submission, job: Job | None) -> dict[str, str]:
    return {
        **({"PBS_ARRAYID": str(job.index)} if submission.array and job is not None else {}),
        "PBS_O_QUEUE": submission.queue,
        "PBS_O_HOME": submission.environ.get("HOME", "/"),
        "PBS_O_LOGNAME": submission.user,
        "PBS_O_PATH": "/usr/local/bin:/usr/bin:/bin",
        "PBS_O_SHELL": "/bin/bash",
        "PBS_O_LANG": "C.UTF-8",
        "PBS_O_WORKDIR": submission.options["workdir"],
        "PBS_O_HOST": SERVER,
        "PBS_O_SERVER": SERVER,
    }


def _full(world: World, row: Row) -> str:
    lines = [f"Job Id: {shown(row[0], row[1])}"]
    for name, value in _attributes(world, row):
        lines.append(f"    {name} = {date(value) if isinstance(value, float) else value}")
    return "\n".join(lines) + "\n\n"


def _xml(world: World, row: Row) -> str:
    out, group = f"<Job_Id>{shown(row[0], row[1])}</Job_Id>", ""
    for name, value in _attributes(world, row):
        head, dot, tail = name.partition(".")
        if group and head != group:
            out, group = f"{out}</{group}>", ""
        if dot and not group:
            out, group = f"{out}<{head}>", head
        text = str(int(value)) if isinstance(value, float) else value
        text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
        out += f"<{tail or head}>{text}</{tail or head}>"
    return f"{out}</{group}>" if group else out


def _full_queues(world: World) -> Reply:
    text = ""
    for queue in world.queues():
        jobs = [job for job in world.listed() if world.of(job).queue == queue["name"]]
        waiting, running = sum(job.state == "pending" for job in jobs), sum(job.live for job in jobs)
        text += f"Queue: {queue['name']}\n    queue_type = Execution\n    total_jobs = {len(jobs)}\n"
        text += f"    state_count = Transit:0 Queued:{waiting} Held:0 Waiting:0 Running:{running} Exiting:0 Comp\n"
        text += f"\tlete:{len(jobs) - waiting - running} \n"
        if queue["time_s"]:
            text += f"    resources_max.walltime = {clock(queue['time_s'])}\n"
        text += f"    resources_default.walltime = 01:00:00\n    mtime = {int(world.now)}\n"
        text += f"    enabled = {queue.get('enabled', True)}\n    started = {queue.get('up', True)}\n\n"
    return Reply(text)


def _queues(world: World) -> Reply:
    text = "Queue              Max    Tot   Ena   Str   Que   Run   Hld   Wat   Trn   Ext T   Cpt\n"
    text += "----------------   ---   ----    --    --   ---   ---   ---   ---   ---   --- -   ---\n"
    for queue in world.queues():
        jobs = [job for job in world.listed() if world.of(job).queue == queue["name"]]
        waiting, running = sum(job.state == "pending" for job in jobs), sum(job.live for job in jobs)
        up = "yes" if queue.get("up", True) else "no"
        text += f"{queue['name']:<16} {0:>5} {len(jobs):>6}   yes {up:>5} {waiting:>5} {running:>5} "
        text += f"{0:>5} {0:>5} {0:>5} {0:>5} E {len(jobs) - waiting - running:>5}\n"
    return Reply(text)


def qdel(world: World, executor: Executor, words: list[str], caller: Caller) -> Reply:
    try:
        given, ids = options(words, "W:m:pt:a")
    except BadOptionError:
        return Reply(
            "", "usage: qdel [{ -a | -c | -p | -t | -W delay | -m message}] [<JOBID>[<JOBID>]|'all'|'ALL']...\n", 2
        )
    errors, code = "", 0
    for text in ids:
        found = _find(world, text, True)
        if not found:
            errors, code = errors + f"qdel: nonexistent job id: {text}\n", 153
            continue
        jobs = [row[1] for row in found if row[1] is not None]
        if "t" in given:
            wanted = indices_of(given["t"][-1])
            jobs = [job for job in jobs if wanted is not None and job.index in wanted[0]]
        if all(job.state == "over" for job in jobs):
            why = "Request invalid for state of job MSG=invalid state for job - COMPLETE"
            errors, code = errors + f"qdel: {why} {text}\n", 170
        for job in jobs:
            world.cancel(executor, job, str(caller.uid))
    return Reply("", errors, code)


def qselect(world: World, executor: Executor, words: list[str], caller: Caller) -> Reply:
    given, _ = options(words, "N:u:s:q:a:A:l:p:r:h:")
    rows = select(_rows(world, False), given, _row_state)
    return Reply("".join(shown(row[0], row[1]) + "\n" for row in rows))


def _each(world: World, name: str, ids: list[str]) -> tuple[list[Job], str, int]:
    jobs: list[Job] = []
    errors, code = "", 0
    for text in ids:
        found = _find(world, text, True)
        if not found:
            errors, code = errors + f"{name}: Unknown Job Id {text}\n", 153
        jobs += [row[1] for row in found or [] if row[1] is not None]
    return jobs, errors, code


def qsig(world: World, executor: Executor, words: list[str], caller: Caller) -> Reply:
    given, ids = options(words, "s:a")
    jobs, errors, code = _each(world, "qsig", ids)
    signal = given.get("s", ["TERM"])[-1].removeprefix("SIG")
    for job in jobs:
        if signal == "suspend":
            world.suspend(executor, job)
        elif signal == "resume":
            world.resume(executor, job)
        elif job.live:
            executor.signal(world, job, {"9": "KILL", "15": "TERM", "10": "USR1"}.get(signal, signal), world.now)
        else:
            errors, code = errors + f"qsig: Request invalid for state of job {shown(world.of(job), job)}\n", 170
    return Reply("", errors, code)


def pbsnodes(world: World, executor: Executor, words: list[str], caller: Caller) -> Reply:
    cores, memory = int(world.settings["cores"]), int(world.settings["memory_mb"]) * 1024
    text = ""
    for name, (up, _) in world.nodes.items():
        text += f"{name}\n     state = {'free' if up else 'down'}\n     power_state = Running\n     np = {cores}\n"
        text += f"     ntype = cluster\n     status = opsys=linux,physmem={memory}kb,ncpus={cores},state=free\n"
        text += "     mom_service_port = 15002\n     mom_manager_port = 15003\n\n"
    return Reply(text)


COMMANDS = {
    "qsub": qsub,
    "qstat": qstat,
    "qdel": qdel,
    "qselect": qselect,
    "qsig": qsig,
    **on_each(_each, {"qhold": "h:t:", "qrls": "h:t:", "qrerun": "f"}),
    "pbsnodes": pbsnodes,
}
