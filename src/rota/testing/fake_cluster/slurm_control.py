"""Slurm's scontrol, scancel and sinfo."""

from collections.abc import Callable
from typing import Any

from rota.testing.fake_cluster.arguments import BadOptionError, options
from rota.testing.fake_cluster.slurm_jobs import (
    STATES,
    error_path,
    exit_code,
    limit_s,
    output_path,
    reason,
    run_time,
    span,
    stamp,
    state,
)
from rota.testing.fake_cluster.slurm_lists import (
    Row,
    _by_ids,
    _format,
    rows,
)
from rota.testing.fake_cluster.world import Caller, Executor, Job, Reply, World

# ---- scontrol --------------------------------------------------------------------------------------------------------


def scontrol(world: World, executor: Executor, words: list[str], caller: Caller) -> Reply:
    one_line = "-o" in words or "--oneliner" in words
    rest = [word for word in words if word not in ("-o", "--oneliner", "-d", "-Q")]
    if rest[:1] in (["--version"], ["-V"], ["version"]):
        return Reply("slurm-wlm 22.05.8\n")
    if rest[:1] == ["ping"]:
        return Reply("Slurmctld(primary) at ctl1 is UP\n")
    if rest[:2] == ["show", "job"] or rest[:2] == ["show", "jobs"]:
        jobs = list(world.listed())
        if len(rest) > 2:
            chosen = _by_ids(world, rest[2].split(","))
            jobs = [job for job in jobs if job in chosen] if not isinstance(chosen, str) else []
            if not jobs:
                return Reply("", "slurm_load_jobs error: Invalid job id specified\n", 1)
        if not jobs:
            return Reply("No jobs in the system\n")
        return Reply("".join(_show(world, row, one_line) for row in rows(world, jobs, False)))
    if rest[:2] in (["show", "partition"], ["show", "partitions"]):
        return Reply("".join(_show_partition(world, queue) for queue in world.queues()))
    if rest[:2] == ["show", "config"]:
        age = int(world.settings["purge_s"])
        return Reply(f"MaxArraySize            = {world.settings['max_array']}\nMinJobAge               = {age} sec\n")
    if len(rest) >= 2 and rest[0] in ("hold", "release", "suspend", "resume", "requeue", "requeuehold"):
        return _control(world, executor, rest[0], rest[1])
    return Reply("", f"invalid keyword: {rest[0] if rest else ''}\n", 1)


def _control(world: World, executor: Executor, verb: str, text: str) -> Reply:
    jobs = _by_ids(world, text.split(","))
    if isinstance(jobs, str) or not jobs:
        more = "slurm_suspend error: Invalid job id specified\n" if verb in ("hold", "release") else ""
        return Reply("", f"Invalid job id specified for job {text}\n{more}", 1)
    for job in jobs:
        if verb in ("hold", "requeuehold"):
            job.hold = "user"
        if verb == "release":
            job.hold = None
        elif verb == "suspend":
            world.suspend(executor, job)
        elif verb == "resume":
            world.resume(executor, job)
        elif verb in ("requeue", "requeuehold"):
            world.requeue(executor, job)
    return Reply()


def _show(world: World, row: Row, one_line: bool) -> str:
    _, job, index = row
    submission = world.of(job)
    limit = limit_s(world, submission)
    waits = job.state == "pending"
    started = job.started if job.started is not None else job.ended
    end = job.ended if job.ended is not None else (job.started + limit if job.started is not None and limit else None)
    array = f"ArrayJobId={submission.number} ArrayTaskId={index} " if submission.array else ""
    cores = submission.cores * submission.nodes
    memory = submission.memory_mb
    why = reason(world, job).replace(" ", "_")
    priority = 0 if job.hold or job.suspended else 4294901759
    lines = [
        f"JobId={job.number} {array}JobName={submission.name}",
        f"UserId={submission.user}({submission.uid}) GroupId={submission.user}({submission.gid}) MCS_label=N/A",
        f"Priority={priority} Nice=0 Account={submission.account or 'default'} QOS=normal",
        f"JobState={state(job)} Reason={why} Dependency=(null)",
        f"Requeue={int(submission.requeue)} Restarts={job.restarts} BatchFlag=1 Reboot=0 ExitCode={exit_code(job)}",
        f"RunTime={span(run_time(world, job), True)} TimeLimit={'UNLIMITED' if limit is None else span(limit, True)}"
        " TimeMin=N/A",
        f"SubmitTime={stamp(submission.at)} EligibleTime={stamp(None if job.hold else submission.at)}",
        f"AccrueTime={stamp(submission.at)}",
        f"StartTime={stamp(started)} EndTime={stamp(end)} Deadline=N/A",
        *([] if waits else [f"PreemptEligibleTime={stamp(started)} PreemptTime=None"]),
        f"SuspendTime={stamp(job.suspended, 'None')} SecsPreSuspend=0 LastSchedEval={stamp(job.touched)}"
        " Scheduler=Main",
        f"Partition={submission.queue} AllocNode:Sid=localhost:11229",
        f"ReqNodeList={','.join(submission.wanted_nodes) or '(null)'} ExcNodeList=(null)",
        f"NodeList={','.join(job.nodes)}",
        *([f"BatchHost={job.nodes[0]}"] if job.nodes else []),
        f"NumNodes={submission.nodes} NumCPUs={cores} NumTasks=1 CPUs/Task={submission.cores} ReqB:S:C:T=0:0:*:*",
        f"TRES=cpu={cores},mem={memory}M,node={submission.nodes},billing={cores}",
        "Socks/Node=* NtasksPerN:B:S:C=0:0:*:* CoreSpec=*",
        f"MinCPUsNode={submission.cores} MinMemoryNode={memory}M MinTmpDiskNode=0",
        "Features=(null) DelayBoot=00:00:00",
        "OverSubscribe=OK Contiguous=0 Licenses=(null) Network=(null)",
        f"Command={submission.words[0]}",
        f"WorkDir={submission.cwd}",
        *([f"Comment={submission.comment} "] if submission.comment else []),
        f"StdErr={error_path(world, submission, job) or output_path(world, submission, job)}",
        "StdIn=/dev/null",
        f"StdOut={output_path(world, submission, job)}",
        "Power=",
    ]
    return " ".join(lines) + " \n" if one_line else "\n   ".join(lines) + "\n   \n\n"


def _show_partition(world: World, queue: dict[str, Any]) -> str:
    cores, count = int(world.settings["cores"]) * len(world.nodes), len(world.nodes)
    memory = int(world.settings["memory_mb"]) * count
    longest = "UNLIMITED" if queue["time_s"] is None else span(queue["time_s"], padded=True)
    usual = span(queue["usual_s"], padded=True) if queue.get("usual_s") else "NONE"
    return (
        f"PartitionName={queue['name']}\n"
        "   AllowGroups=ALL AllowAccounts=ALL AllowQos=ALL\n"
        f"   AllocNodes=ALL Default={'YES' if queue.get('default') else 'NO'} QoS=N/A\n"
        f"   DefaultTime={usual} DisableRootJobs=NO ExclusiveUser=NO GraceTime=0 Hidden=NO\n"
        f"   MaxNodes=UNLIMITED MaxTime={longest} MinNodes=0 LLN=NO MaxCPUsPerNode=UNLIMITED\n"
        f"   Nodes={_node_names(world)}\n"
        "   PriorityJobFactor=1 PriorityTier=1 RootOnly=NO ReqResv=NO OverSubscribe=NO\n"
        "   OverTimeLimit=NONE PreemptMode=REQUEUE\n"
        f"   State={'UP' if queue.get('up', True) else 'DOWN'} TotalCPUs={cores} TotalNodes={count}"
        " SelectTypeParameters=NONE\n"
        "   JobDefaults=(null)\n"
        "   DefMemPerNode=UNLIMITED MaxMemPerNode=UNLIMITED\n"
        f"   TRES=cpu={cores},mem={memory}M,node={count},billing={cores}\n\n"
    )


def _node_names(world: World) -> str:
    return f"n[1-{len(world.nodes)}]" if len(world.nodes) > 1 else "n1"


# ---- scancel, sinfo --------------------------------------------------------------------------------------------------


def scancel(world: World, executor: Executor, words: list[str], caller: Caller) -> Reply:
    try:
        raw, rest = options(
            words,
            "Qvfbs:u:n:t:M:p:iHwA:V",
            ("quiet", "verbose", "full", "batch", "signal=", "user=", "name=", "jobname=", "state=", "clusters=", "me",
             "partition=", "hurry", "account=", "version"),
        )  # fmt: skip
    except BadOptionError as error:
        return Reply("", f"scancel: unrecognized option '{error}'\nTry \"scancel --help\" for more information\n", 1)
    alias = {"s": "signal", "u": "user", "n": "name", "jobname": "name", "t": "state", "v": "verbose", "Q": "quiet"}
    given = {alias.get(name, name): values[-1] for name, values in raw.items()}
    jobs: list[Job] = []
    errors, code = "", 0
    texts = [part for word in rest for part in word.split(",")] if "[" not in "".join(rest) else rest
    for text in texts:
        found = _by_ids(world, [text])
        if isinstance(found, str):
            return Reply("", f"scancel: error: Invalid job id {text}\n", 1)
        live = [job for job in found if job.state != "over"]
        known = [job for job in found if not world.purged(job)]
        why = (
            "Job/step already completing or completed"
            if known and "signal" not in given
            else "Invalid job id specified"
        )
        if "verbose" in given:
            errors += f"scancel: Terminating job {text}\n"
        if not live and ("verbose" in given or "signal" in given):
            errors += f"scancel: error: Kill job error on job id {text}: {why}\n"
            code = int("signal" in given)
        jobs += live
    if not texts:
        if not given.keys() & {"user", "name", "me", "state", "partition"}:
            return Reply("", "scancel: error: No job identification provided\n", 1)
        jobs = [job for job in world.jobs if job.state != "over"]
    if "user" in given or "me" in given:
        user = given.get("user", caller.user)
        jobs = [job for job in jobs if world.of(job).user == user]
    if "name" in given:
        jobs = [job for job in jobs if world.of(job).name == given["name"]]
    if "state" in given:
        wanted = STATES.get(given["state"].upper(), given["state"].upper())
        jobs = [job for job in jobs if state(job) == wanted]
    for job in jobs:
        signal = given.get("signal", "").removeprefix("SIG")
        if signal and signal not in ("KILL", "9"):
            executor.signal(world, job, {"15": "TERM"}.get(signal, signal), world.now)
        else:
            world.cancel(executor, job, str(caller.uid))
    return Reply("", errors, code)


def sinfo(world: World, executor: Executor, words: list[str], caller: Caller) -> Reply:
    try:
        raw, _ = options(
            words,
            "hNeo:p:t:n:saRO:M:V",
            ("noheader", "Node", "format=", "partition=", "states=", "nodes=", "version", "exact", "all"),
        )
    except BadOptionError as error:
        return Reply("", f"sinfo: unrecognized option '{error}'\nTry \"sinfo --help\" for more information\n", 1)
    if "V" in raw or "version" in raw:
        return Reply("slurm-wlm 22.05.8\n")
    pattern = (raw.get("o") or raw.get("format") or ["%9P %.5a %.10l %.6D %.6t %N"])[-1]
    chosen = (raw.get("p") or raw.get("partition") or [""])[-1]
    queues = [queue for queue in world.queues() if not chosen or queue["name"] in chosen.split(",")]
    lines = []
    if "h" not in raw and "noheader" not in raw:
        heads = {"P": "PARTITION", "a": "AVAIL", "l": "TIMELIMIT", "D": "NODES", "t": "STATE", "T": "STATE",
                 "N": "NODELIST", "c": "CPUS", "m": "MEMORY", "G": "GRES", "C": "CPUS(A/I/O/T)"}  # fmt: skip
        lines.append(_format(pattern, {letter: name.__str__ for letter, name in heads.items()}))
    for queue in queues:
        groups: dict[str, list[str]] = {}
        for name in world.nodes:
            key = name if "N" in raw or "Node" in raw else _node_state(world, name)
            groups.setdefault(key, []).append(name)
        for names in groups.values():
            lines.append(_format(pattern, _node_fields(world, queue, names)))
    return Reply("".join(line + "\n" for line in lines))


def _node_state(world: World, name: str) -> str:
    if not world.nodes[name][0]:
        return "down"
    used = int(world.settings["cores"]) - world.free()[name][0]
    return "idle" if not used else "alloc" if used >= int(world.settings["cores"]) else "mix"


def _node_fields(world: World, queue: dict[str, Any], names: list[str]) -> dict[str, Callable[[], str]]:
    cores = int(world.settings["cores"])
    word = _node_state(world, names[0])
    free = world.free()
    used = sum(cores - free[name][0] for name in names if name in free)
    total = cores * len(names)
    idle = sum(free[name][0] for name in names if name in free)
    return {
        "P": lambda: queue["name"] + ("*" if queue.get("default") else ""),
        "R": lambda: queue["name"],
        "a": lambda: "up" if queue.get("up", True) else "down",
        "l": lambda: "infinite" if queue["time_s"] is None else span(queue["time_s"]),
        "D": lambda: str(len(names)),
        "t": lambda: word,
        "T": lambda: {"mix": "mixed", "alloc": "allocated"}.get(word, word),
        "N": lambda: ",".join(names),
        "c": lambda: str(cores),
        "m": lambda: str(world.settings["memory_mb"]),
        "e": lambda: str(world.settings["memory_mb"]),
        "C": lambda: f"{used}/{idle}/{total - used - idle}/{total}",
        "G": lambda: "(null)",
        "f": lambda: "(null)",
        "E": lambda: world.nodes[names[0]][1] or "none",
        "L": lambda: span(queue["usual_s"]) if queue.get("usual_s") else "n/a",
        "s": lambda: "1-infinite",
        "g": lambda: "all",
    }
