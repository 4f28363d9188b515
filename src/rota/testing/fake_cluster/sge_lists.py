"""Grid Engine's listings: qstat, qacct, qhost, qconf."""

import time
from fnmatch import fnmatchcase
from itertools import pairwise
from typing import Any
from xml.sax.saxutils import escape

from rota.testing.fake_cluster.arguments import BadOptionError, options
from rota.testing.fake_cluster.sge_jobs import state
from rota.testing.fake_cluster.world import Caller, Executor, Job, Reply, Submission, World

SCHEMA = "http://arc.liv.ac.uk/repos/darcs/sge/source/dist/util/resources/schemas/qstat/qstat.xsd"

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
    numbers = words[words.index("-j") + 1].split(",") if len(words) > words.index("-j") + 1 else [""]
    out, absent = "", []
    for number in numbers:
        jobs = [job for job in world.find(int(number)) if job.state != "over"] if number.isdigit() else []
        if not jobs:
            absent.append(number)
            continue
        submission = world.of(jobs[0])
        out += "=" * 62 + "\n"
        out += f"job_number:                 {submission.number}\nowner:                      {submission.user}\n"
        out += f"job_name:                   {submission.name}\ncwd:                        {submission.cwd}\n"
        waits = next((job for job in jobs if job.state == "pending"), None)
        if waits is not None:
            out += f"scheduling info:            {_scheduling(world, waits)}\n"
    if absent:
        return Reply(out, "Following jobs do not exist: \n" + "".join(f"{number}\n" for number in absent), 1)
    return Reply(out)


def _scheduling(world: World, job: Job) -> str:
    """What the scheduler says of a job that waits."""
    if job.hold:
        return "Job is in error state" if job.hold == "error" else "Job is in hold state"
    queue = world.of(job).queue
    full = [f'queue instance "{queue}@{name}" dropped because it is full' for name in world.nodes]
    return ("\n" + " " * 28).join(full)


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
                out += _record(submission, job, nodes[0], started, ended, ("25  : rescheduling", status))
        if job.state == "over" and job.started is not None and job.ended is not None and world.accounted(job):
            out += _record(submission, job, job.nodes[0], job.started, job.ended, ending(job))
    if not out:
        kind = "id" if wanted.isdigit() else "name"
        return Reply("", f"error: job {kind} {wanted} not found\n", 1)
    return Reply(out)


def _record(submission: Submission, job: Job, host: str, started: float, ended: float, how: tuple[str, str]) -> str:
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
        "failed": how[0],
        "exit_status": how[1],
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


# ---- hosts and settings ----------------------------------------------------------------------------------------------


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
    if words[:1] == ["-sconf"]:
        return Reply(
            f"#global:\nmax_u_jobs                   0\nmax_aj_tasks                 {world.settings['max_array']}\n"
        )
    if words[:1] == ["-spl"]:
        return Reply("make\nmp\nsmp\n")
    if words[:1] == ["-sq"] and len(words) > 1:
        out = []
        for name in words[1].split(","):
            queue = world.queue(name)
            if queue is None:
                return Reply("", f'No cluster queue or queue instance matches the phrase "{name}"\n', 1)
            out.append(_queue_settings(world, queue))
        return Reply("\n".join(out))
    if words[:1] == ["-sh"]:
        return Reply("".join(f"{name}\n" for name in world.nodes))
    return Reply("", f'error: invalid option argument "{words[0] if words else ""}"\n', 1)


def _queue_settings(world: World, queue: dict[str, Any]) -> str:
    minutes, second = divmod(queue["time_s"] or 0, 60)
    longest = "INFINITY" if queue["time_s"] is None else f"{minutes // 60:02}:{minutes % 60:02}:{second:02}"
    return (
        f"qname                 {queue['name']}\nhostlist              {' '.join(world.nodes)}\n"
        f"slots                 {world.settings['cores']}\npe_list               make mp smp\n"
        f"h_rt                  {longest}\n"
        f"h_vmem                INFINITY\n"
    )
