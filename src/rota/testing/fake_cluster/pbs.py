"""OpenPBS's words: qsub, qstat, qdel, qselect, qsig, qhold, qrls, qrerun, pbsnodes, as version 23.06 says them."""

import json
import re

from rota.testing.fake_cluster.arguments import BadOptionError, options
from rota.testing.fake_cluster.pbs_jobs import (
    SERVER,
    STATES,
    VERSION,
    error_path,
    job_environment,
    on_each,
    output_path,
    qsub,
    shown,
)
from rota.testing.fake_cluster.pbs_qstat import find, forgotten, full_id, is_over, qstat, row_state, rows_of, select
from rota.testing.fake_cluster.world import Caller, Executor, Job, Reply, World

__all__ = ["COMMANDS", "STATES", "down", "error_path", "job_environment", "output_path"]


def down(command: str, how: str) -> Reply:
    """A server that is not there, or does not answer."""
    if how == "hung":
        return Reply(code=1, wait_s=3600)
    if command == "qdel":
        return Reply("", f"Connection refused\nCouldn't connect to cluster: {SERVER}\n", 162)
    text = f"Connection refused\n{command}: cannot connect to server {SERVER} (errno=15010)\n"
    return Reply("", text, 255 if command == "qstat" else 162)


# ---- qdel, qsig and others -------------------------------------------------------------------------------------------


def qdel(world: World, executor: Executor, words: list[str], caller: Caller) -> Reply:
    try:
        given, ids = options(words, "W:x")
    except BadOptionError:
        return Reply("", "usage:\n\tqdel [-W force|suppress_email=X] [-x] job_identifier...\n\tqdel --version\n", 2)
    errors, code = "", 0
    requests = _joined(ids)
    left = {text for text in requests if _is_noted(world, text)}
    for at, text in enumerate(requests):
        found = find(world, text)
        waits = bool(found) and all(each.state == "pending" for row in found or [] for each in row[2])
        if not found or all(forgotten(world, row) for row in found):
            errors, code = errors + f"qdel: Unknown Job Id {full_id(text)}\n", 153
        elif all(is_over(row) for row in found):
            errors, code = errors + f"qdel: Job has finished {full_id(text)}\n", 35
        else:
            for submission, job, jobs in found:
                chosen = jobs if job is None else [job]
                if all(each.state in ("ending", "over") for each in chosen) and "W" not in given:
                    errors += f"qdel: Request invalid for state of job {shown(submission, job)}\n"
                    code = 168
                for each in chosen:
                    world.cancel(executor, each, str(caller.uid))
        if waits:
            left.discard(text)
            if not left and at + 1 < len(requests):  # the server answers, forgets the request, and goes on with it
                world.down = "refused"
                return Reply("", "", 0)
    return Reply("", errors, code)


def _joined(ids: list[str]) -> list[str]:
    """What qdel asks for: elements of one array together, of which its way to join ranges leaves the first two."""
    plain, arrays = [], dict[str, tuple[set[int], str]]()
    for text in dict.fromkeys(ids):
        found = re.fullmatch(r"(\d+)\[(\d+)(?:-(\d+))?\](.*)", text)
        if found is None:
            plain.append(text)
        else:
            wanted, _ = arrays.setdefault(found[1], (set(), found[4]))
            wanted.update(range(int(found[2]), int(found[3] or found[2]) + 1))
    out = []
    for number, (indices, host) in arrays.items():
        ranges = []
        for first in [index for index in sorted(indices) if index - 1 not in indices][:2]:
            last = first
            while last + 1 in indices:
                last += 1
            ranges.append(str(first) if first == last else f"{first}-{last}")
        out.append(f"{number}[{','.join(ranges)}]{host}")
    return [*plain, *out]


def _is_noted(world: World, text: str) -> bool:
    """Whether the server notes that a request is about this: jobs, ranges, and elements that have begun."""
    found = find(world, text) or []
    single = re.match(r"\d+\[\d+\]", text) is not None
    return any(not single or each.started is not None for row in found for each in row[2])


def qselect(world: World, executor: Executor, words: list[str], caller: Caller) -> Reply:
    given, _ = options(words, "xN:u:s:q:Hta:A:l:p:r:T")
    found = [row for row in rows_of(world, "T" in given) if not forgotten(world, row)]
    found = [row for row in found if "x" in given or "H" in given or not is_over(row)]
    return Reply("".join(shown(row[0], row[1]) + "\n" for row in select(found, given, row_state)))


def _each(world: World, name: str, ids: list[str]) -> tuple[list[Job], str, int]:
    jobs: list[Job] = []
    errors, code = "", 0
    for text in ids:
        found = find(world, text)
        if not found or all(forgotten(world, row) for row in found):
            errors, code = errors + f"{name}: Unknown Job Id {full_id(text)}\n", 153
        for row in found or []:
            jobs += row[2] if row[1] is None else [row[1]]
    return jobs, errors, code


def qsig(world: World, executor: Executor, words: list[str], caller: Caller) -> Reply:
    given, ids = options(words, "s:")
    jobs, errors, code = _each(world, "qsig", ids)
    signal = given.get("s", ["TERM"])[-1].removeprefix("SIG")
    for job in jobs:
        if job.state in ("pending", "over"):
            errors, code = f"qsig: Request invalid for state of job {shown(world.of(job), job)}\n", 168
        elif signal == "suspend":
            world.suspend(executor, job)
        elif signal == "resume":
            world.resume(executor, job)
        else:
            executor.signal(world, job, {"9": "KILL", "15": "TERM", "10": "USR1"}.get(signal, signal), world.now)
    return Reply("", errors, code)


def pbsnodes(world: World, executor: Executor, words: list[str], caller: Caller) -> Reply:
    cores, memory = int(world.settings["cores"]), int(world.settings["memory_mb"]) * 1024
    free = world.free()
    if "json" in words:
        nodes = {
            name: {
                "Mom": name,
                "ntype": "PBS",
                "state": "free" if up else "down",
                "pcpus": cores,
                "resources_available": {
                    "arch": "linux",
                    "host": name,
                    "mem": f"{memory}kb",
                    "ncpus": cores,
                    "vnode": name,
                },
                "resources_assigned": {"mem": "0kb", "ncpus": cores - free[name][0] if up else 0},
                "resv_enable": "True",
                "sharing": "default_shared",
            }
            for name, (up, _) in world.nodes.items()
        }
        out = {"timestamp": int(world.now), "pbs_version": VERSION, "pbs_server": SERVER, "nodes": nodes}
        return Reply(json.dumps(out, indent="\t", separators=(",", ":\t")) + "\n")
    text = ""
    for name, (up, _) in world.nodes.items():
        used = cores - free[name][0] if up else 0
        word = "down" if not up else "job-busy" if used >= cores else "free"
        text += f"{name}\n     Mom = {name}\n     ntype = PBS\n     state = {word}\n     pcpus = {cores}\n"
        text += f"     resources_available.arch = linux\n     resources_available.host = {name}\n"
        text += f"     resources_available.mem = {memory}kb\n     resources_available.ncpus = {cores}\n"
        text += f"     resources_available.vnode = {name}\n     resources_assigned.mem = 0kb\n"
        text += f"     resources_assigned.ncpus = {used}\n     resv_enable = True\n     sharing = default_shared\n\n"
    return Reply(text)


COMMANDS = {
    "qsub": qsub,
    "qstat": qstat,
    "qdel": qdel,
    "qselect": qselect,
    "qsig": qsig,
    **on_each(_each, {"qhold": "h:", "qrls": "h:", "qrerun": "W:"}),
    "pbsnodes": pbsnodes,
}
