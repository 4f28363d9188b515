"""OpenPBS's qstat: tables, full records, JSON, queues."""

import json
import time
from collections.abc import Callable
from typing import Any

from rota.testing.fake_cluster.arguments import BadOptionError, options
from rota.testing.fake_cluster.pbs_jobs import (
    SERVER,
    VERSION,
    clock,
    date,
    exit_status,
    shown,
    state,
)
from rota.testing.fake_cluster.world import Caller, Executor, Job, Reply, Submission, World

Row = tuple[Submission, Job | None, list[Job]]
"""A submission's parent (no job) or one of its jobs; and all of them."""


def rows_of(world: World, elements: bool) -> list[Row]:
    out: list[Row] = []
    by_serial: dict[int, list[Job]] = {}
    for job in world.jobs:
        by_serial.setdefault(job.serial, []).append(job)
    for serial, jobs in by_serial.items():
        submission = world.submissions[serial]
        if not submission.array:
            out.append((submission, jobs[0], jobs))
            continue
        out.append((submission, None, jobs))
        if elements:
            out += [(submission, job, jobs) for job in jobs]
    return out


def row_state(row: Row) -> str:
    _, job, jobs = row
    whole_over = all(each.state == "over" for each in jobs)
    if job is not None:
        return state(job, whole_over)
    if whole_over:
        return "F"
    if all(each.state == "pending" and each.hold for each in jobs):
        return "H"
    return "B" if any(each.started is not None or each.state == "over" for each in jobs) else "Q"


def is_over(row: Row) -> bool:
    return all(each.state == "over" and not each.forced for each in row[2])


def forgotten(world: World, row: Row) -> bool:
    if not is_over(row):
        return False
    return not world.settings["history"] or all(world.purged(each) for each in row[2])


def parse_id(text: str) -> tuple[int, str | None] | None:
    """`6`, `6.pbs1`, `6[].pbs1`, `6[2].pbs1`, `6[2-5,7].pbs1` → number, and None, ``, or the indices."""
    head = text.partition(".")[0]
    number, bracket, rest = head.partition("[")
    if not number.isdigit():
        return None
    return int(number), (rest.rstrip("]") if bracket else None)


def find(world: World, text: str) -> list[Row] | None:
    parsed = parse_id(text)
    if parsed is None:
        return None
    number, index = parsed
    rows = [row for row in rows_of(world, True) if row[0].number == number]
    rows = [row for row in rows if row[0].serial == rows[-1][0].serial]
    if index is None or index == "":
        return [row for row in rows if row[1] is None or not row[0].array]
    bounds = [(first, last or first) for first, _, last in (part.partition("-") for part in index.split(","))]
    if not all(first.isdigit() and last.isdigit() for first, last in bounds):
        return []
    chosen = {number for first, last in bounds for number in range(int(first), int(last) + 1)}
    return [row for row in rows if row[1] is not None and row[1].index in chosen]


def full_id(text: str) -> str:
    return text if "." in text else f"{text}.{SERVER}"


def select(rows: list[Row], given: dict[str, list[str]], row_state: Callable[[Row], str]) -> list[Row]:
    """The rows that qselect's options -N, -u and -s leave."""
    if "N" in given:
        rows = [row for row in rows if row[0].name == given["N"][-1]]
    if "u" in given:
        rows = [row for row in rows if row[0].user in given["u"][-1].split(",")]
    if "s" in given:
        rows = [row for row in rows if row_state(row) in given["s"][-1]]
    return rows


def qstat(world: World, executor: Executor, words: list[str], caller: Caller) -> Reply:
    if words[:1] == ["--version"]:
        return Reply(f"pbs_version = {VERSION}\n")
    try:
        given, ids = options(words, "xftF:EwQBau:Hns1TiJprGM")
    except BadOptionError as error:
        return Reply("", f"qstat: invalid option -- '{str(error)[1:]}'\n", 2)
    if "Q" in given:
        return _queues(world, "f" in given)
    if "B" in given and "f" in given:
        usual = "".join(f"    default_queue = {queue['name']}\n" for queue in world.queues() if queue.get("default"))
        usual += f"    max_array_size = {world.settings['max_array']}\n" if world.settings["tells_limits"] else ""
        return Reply(f"Server: {SERVER}\n    server_state = Active\n{usual}    pbs_version = {VERSION}\n\n")
    as_json = "f" in given and given.get("F") == ["json"]
    history = "x" in given or "H" in given
    rows: list[Row] = []
    errors, code = "", 0
    if history and not world.settings["history"] and not ids:
        # What is alive is not shown either: the server refuses the whole question.
        return Reply(_json(world, []) if as_json else "", "qstat: PBS is not configured to maintain job history \n", 0)
    for text in ids:
        found = find(world, text)
        if found is None:
            return Reply("", f"qstat: Unknown queue destination {text}\n", 170)
        if history and not world.settings["history"]:
            errors += f"qstat: PBS is not configured to maintain job history {full_id(text)}\n"
        elif not found or all(forgotten(world, row) for row in found):
            errors, code = errors + f"qstat: Unknown Job Id {full_id(text)}\n", 153
        elif not history and all(is_over(row) for row in found):
            errors += f"qstat: {full_id(text)} Job has finished, use -x or -H to obtain historical job information\n"
            code = 35
        else:
            rows += found
            if "t" in given:
                serials = {row[0].serial for row in found if row[1] is None}
                rows += [row for row in rows_of(world, True) if row[0].serial in serials and row[1] is not None]
    if "E" in given and rows:
        errors, code = "", 0  # One question: if it has any answer, what is not in it is passed over.
    if not ids:
        rows = [row for row in rows_of(world, "t" in given) if not forgotten(world, row)]
        rows = [row for row in rows if history or not is_over(row)]
    if "u" in given:
        rows = [row for row in rows if row[0].user in given["u"][-1].split(",")]
    if as_json:
        return Reply(_json(world, rows), errors, code)
    if "f" in given:
        return Reply("".join(_full(world, row, "w" in given) for row in rows), errors, code)
    if not rows:
        return Reply("", errors, code)
    if "a" in given or "u" in given or "n" in given or "s" in given:
        return Reply(_alternative(world, rows, "s" in given), errors, code)
    return Reply(_table(world, rows, "w" in given), errors, code)


def _table(world: World, rows: list[Row], wide: bool) -> str:
    if wide:
        out = "Job id                         Name            User             Time Use S Queue\n"
        out += "-----------------------------  --------------- ---------------  -------- - -----\n"
    else:
        out = "Job id            Name             User              Time Use S Queue\n"
        out += "----------------  ---------------- ----------------  -------- - -----\n"
    for row in rows:
        submission, job, _ = row
        used = "0" if job is None or job.started is None else clock(job.cpu_s)
        name = shown(submission, job)
        if wide:
            out += f"{name:<30} {submission.name[:15]:<15} {submission.user[:15]:<15}  {used:>8} "
            out += f"{row_state(row)} {submission.queue[:15]:<15}\n"
        else:
            out += f"{name[:17]:<17} {submission.name[:16]:<16} {submission.user[:16]:<16}  {used:>8} "
            out += f"{row_state(row)} {submission.queue[:16]:<16}\n"
    return out


def _alternative(world: World, rows: list[Row], comments: bool) -> str:
    out = f"\n{SERVER}: \n"
    out += "                                                            Req'd  Req'd   Elap\n"
    out += "Job ID          Username Queue    Jobname    SessID NDS TSK Memory Time  S Time\n"
    out += "--------------- -------- -------- ---------- ------ --- --- ------ ----- - -----\n"

    def cut(text: str, width: int) -> str:
        return f"{text:<{width}}" if len(text) <= width else text[: width - 1] + "*"

    for row in rows:
        submission, job, _ = row
        memory = f"{submission.memory_mb}mb" if submission.memory_mb else "--"
        limit = "--" if submission.time_s is None else clock(submission.time_s)[:5]
        began = None if job is None else job.started
        used = "--" if began is None or job is None else clock((job.ended or world.now) - began)[:5]
        out += f"{cut(shown(submission, job), 15)} {cut(submission.user, 8)} {cut(submission.queue, 8)} "
        out += f"{cut(submission.name, 10)} {'--':>6} {submission.nodes:>3} {submission.cores:>3} {memory:>6} "
        out += f"{limit:>5} {row_state(row)} {used:>5}\n"
        comment = _attributes(world, row).get("comment") if comments else None
        if comment is not None:
            out += f"   {comment if len(comment) <= 74 else comment[:71] + '...'}\n"
    return out


def _substate(row: Row) -> int:
    _, job, jobs = row
    if job is None:
        over = all(each.state == "over" for each in jobs)
        failed = any(exit_status(each) != 0 for each in jobs)
        return (93 if failed else 92) if over else 70 if row_state(row) == "B" else 10
    if job.state == "over":
        return 91 if job.why == "cancelled" else 92 if exit_status(job) == 0 else 93
    return {"running": 42, "suspended": 43, "ending": 41}.get(job.state, 20 if job.hold else 10)


def _attributes(world: World, row: Row) -> dict[str, Any]:
    """The full record, in the order that the server has.

    An element that was never started has none: the server shows that of the array, with the element's state.
    """
    submission, job, jobs = row
    if submission.array and job is not None and job.started is None and not job.restarts:
        whole = _attributes(world, (submission, None, jobs))
        names = list(whole)[: list(whole).index("array")]
        return {**{name: whole[name] for name in names}, "job_state": row_state(row)}
    started = job.started if job is not None else min((each.started for each in jobs if each.started), default=None)
    over = row_state(row) in ("F", "X")
    index = "^array_index^" if job is None else job.index
    end = f".{index}" if submission.array else ""
    where = submission.options["workdir"]
    out: dict[str, Any] = {"Job_Name": submission.name, "Job_Owner": f"{submission.user}@{SERVER}"}
    if job is not None and started is not None:
        out["resources_used"] = _used(world, job, started)
    out |= {"job_state": row_state(row), "queue": submission.queue, "server": SERVER}
    out |= {"Checkpoint": "u", "ctime": date(submission.at)}
    out["Error_Path"] = f"{SERVER}:{submission.error or f'{where}/{submission.name}.e{submission.number}{end}'}"
    if job is not None and job.nodes:
        per = "" if submission.cores == 1 else f"*{submission.cores}"
        memory = f":mem={submission.memory_mb * 1024}kb" if submission.memory_mb else ""
        out["exec_host"] = "+".join(f"{name}/0{per}" for name in job.nodes)
        out["exec_vnode"] = "+".join(f"({name}:ncpus={submission.cores}{memory})" for name in job.nodes)
    hold = job.hold if job is not None else jobs[0].hold
    out["Hold_Types"] = {"user": "u", "admin": "s"}.get(hold or "", "n")
    out |= {"Join_Path": submission.options.get("join", "n"), "Keep_Files": "n", "Mail_Points": "a"}
    out["mtime"] = date(max(each.touched for each in (jobs if job is None else [job])))
    out["Output_Path"] = f"{SERVER}:{submission.output or f'{where}/{submission.name}.o{submission.number}{end}'}"
    out |= {"Priority": 0, "qtime": date(submission.at), "Rerunable": str(submission.requeue)}
    out["Resource_List"] = _requested(submission)
    if started is not None:
        out["stime"] = date(started)
    if job is not None and job.state == "over" and job.started is not None:
        out["obittime"] = date(job.ended or world.now)
    out["substate"] = _substate(row)
    out["Variable_List"] = _variables(submission)
    if (comment := _comment(world, row, started)) is not None:
        out["comment"] = comment
    out["etime"] = date(submission.at)
    if job is not None and started is not None:
        out["run_count"] = job.restarts + 1
    if (status := _status(row)) is not None:
        out |= {"Stageout_status": 1, "Exit_status": status}
    if not submission.array or job is None:
        out["Submit_arguments"] = " ".join(submission.words)
    if submission.array:
        out |= _array(row) if job is None else {"array_id": shown(submission, None), "array_index": job.index}
    if over:
        out["history_timestamp"] = int(max(each.ended or world.now for each in (jobs if job is None else [job])))
    return out | {"project": "_pbs_project_default", "Submit_Host": SERVER}


def _used(world: World, job: Job, started: float) -> dict[str, Any]:
    return {
        "cpupercent": 0,
        "cput": clock(job.cpu_s),
        "mem": f"{job.rss_kb}kb",
        "ncpus": world.of(job).cores,
        "vmem": f"{job.rss_kb}kb",
        "walltime": clock((job.ended or job.suspended or world.now) - started),
    }


def _requested(submission: Submission) -> dict[str, Any]:
    out: dict[str, Any] = {"mem": f"{submission.memory_mb}mb"} if submission.memory_mb else {}
    out |= {"ncpus": submission.cores * submission.nodes, "nodect": submission.nodes}
    out["place"] = submission.options.get("place", "pack" if submission.nodes == 1 else "free")
    out["select"] = submission.options.get("select", f"{submission.nodes}:ncpus={submission.cores}")
    if submission.time_s is not None:
        out["walltime"] = clock(submission.time_s)
    return out


def _status(row: Row) -> int | None:
    _, job, jobs = row
    if job is not None:
        return exit_status(job)
    ended = [exit_status(each) for each in jobs if each.state == "over"]
    return int(any(each != 0 for each in ended)) if ended else None


def _array(row: Row) -> dict[str, Any]:
    submission, _, jobs = row
    queued = [job for job in jobs if job.state == "pending"]
    running = sum(job.live for job in jobs)
    expired = 0 if row_state(row) == "F" else len(jobs) - len(queued) - running
    return {
        "array": "True",
        "array_state_count": f"Queued:{len(queued)} Running:{running} Exiting:0 Expired:{expired}",
        "array_indices_submitted": submission.shown_array,
        "array_indices_remaining": ",".join(str(job.index) for job in queued) or "-",
    }


def _variables(submission: Submission) -> dict[str, str]:
    own = {name: value for name, value in submission.environ.items() if name.startswith("ROTA")}
    return {
        "PBS_O_HOME": submission.environ.get("HOME", "/"),
        "PBS_O_LANG": "C.UTF-8",
        "PBS_O_LOGNAME": submission.user,
        "PBS_O_PATH": "/usr/local/bin:/usr/bin:/bin",
        "PBS_O_SHELL": "/bin/bash",
        "PBS_O_WORKDIR": submission.options["workdir"],
        "PBS_O_SYSTEM": "Linux",
        "PBS_O_QUEUE": submission.queue,
        "PBS_O_HOST": SERVER,
        **own,
    }


def _comment(world: World, row: Row, started: float | None) -> str | None:
    submission, job, jobs = row
    if any(each.hold for each in ([job] if job is not None else jobs) if each.state == "pending"):
        return f"Job held by {submission.user} on {date(world.now)}"
    if started is None:
        if not any(each.mark == "resources" for each in ([job] if job is not None else jobs)):
            return None
        cores = int(world.settings["cores"])
        if submission.cores <= cores:
            return "Not Running: Not enough free nodes available"
        asked = f"ncpus (R: {submission.cores} A: {cores} T: {cores})"
        return f"Can Never Run: Insufficient amount of resource: {asked}"
    when = time.strftime("%a %b %d at %H:%M", time.localtime(started))
    if job is None:
        return f"Job Array Began at {when}" + (" and failed" if row_state(row) == "F" and _substate(row) == 93 else "")
    where = "+".join(f"({name}:ncpus={submission.cores})" for name in job.nodes)
    text = f"Job run at {when} on {where}"
    if job.state != "over" or job.why == "node":
        return text
    by = f"{submission.user}@{SERVER}" if job.by != "admin" else f"root@{SERVER}"
    ends = {
        "time": "exceeded resource walltime",
        "memory": "exceeded resource mem",
        "cancelled": f"terminated by {by}",
    }
    return f"{text} and {ends.get(job.why or '') or ('finished' if exit_status(job) == 0 else 'failed')}"


def _json(world: World, rows: list[Row]) -> str:
    """As the server prints it: tabs, and a tab after every colon."""
    out: dict[str, Any] = {"timestamp": int(world.now), "pbs_version": VERSION, "pbs_server": SERVER}
    if rows:
        out["Jobs"] = {shown(row[0], row[1]): _attributes(world, row) for row in rows}
    return json.dumps(out, indent="\t", separators=(",", ":\t"), ensure_ascii=False) + "\n"


def _full(world: World, row: Row, wide: bool) -> str:
    lines = [f"Job Id: {shown(row[0], row[1])}"]
    for name, value in _attributes(world, row).items():
        if name == "Variable_List":
            lines.append(f"    {name} = " + _folded([f"{key}={text}" for key, text in value.items()], wide))
        elif isinstance(value, dict):
            lines += [f"    {name}.{key} = {text}" for key, text in value.items()]
        else:
            lines.append(f"    {name} = {value}")
    return "\n".join(lines) + "\n\n"


def _folded(parts: list[str], wide: bool) -> str:
    out, width = "", 20
    for place, part in enumerate(parts):
        comma = "," if place + 1 < len(parts) else ""
        if not wide and out and width + len(part) > 76:
            out, width = out + "\n\t", 8
        out, width = out + part + comma, width + len(part) + 1
    return out


def _queues(world: World, full: bool) -> Reply:
    counts: dict[str, list[Job]] = {queue["name"]: [] for queue in world.queues()}
    for job in world.jobs:
        if job.state != "over":
            counts.setdefault(world.of(job).queue, []).append(job)
    if full:
        table: dict[str, Any] = {}
        for queue in world.queues():
            jobs = counts[queue["name"]]
            table[queue["name"]] = {
                "queue_type": "Execution",
                "total_jobs": len(jobs),
                "state_count": f"Transit:0 Queued:{sum(j.state == 'pending' for j in jobs)} Held:0 Waiting:0 "
                f"Running:{sum(j.live for j in jobs)} Exiting:0 Begun:0 ",
                **({"resources_max": {"walltime": clock(queue["time_s"])}} if queue["time_s"] else {}),
                "enabled": str(queue.get("enabled", True)),
                "started": str(queue.get("up", True)),
            }
        out = {"timestamp": int(world.now), "pbs_version": VERSION, "pbs_server": SERVER, "Queue": table}
        return Reply(json.dumps(out, indent="\t", separators=(",", ":\t")) + "\n")
    text = "Queue              Max   Tot Ena Str   Que   Run   Hld   Wat   Trn   Ext Type\n"
    text += "---------------- ----- ----- --- --- ----- ----- ----- ----- ----- ----- ----\n"
    for queue in world.queues():
        jobs = counts[queue["name"]]
        waiting, running = sum(job.state == "pending" for job in jobs), sum(job.live for job in jobs)
        words = ("yes" if queue.get("enabled", True) else "no", "yes" if queue.get("up", True) else "no")
        text += f"{queue['name']:<16} {0:>5} {len(jobs):>5} {words[0]:>3} {words[1]:>3} {waiting:>5} {running:>5} "
        text += f"{0:>5} {0:>5} {0:>5} {0:>5} Exe*\n"
    return Reply(text)
