"""LSF's words, as 10.1 has them: bsub, bjobs, bhist, bkill, bqueues, bparams, bhosts, lshosts, lsid, badmin and others.

With the setting `cluster` = "openlava" it has what OpenLava has: no `-o`, no `-json`, fewer options of bsub, its own
version line.
"""

from rota.testing.fake_cluster.arguments import BadOptionError, options
from rota.testing.fake_cluster.lsf_jobs import (
    HOST,
    STATES,
    bsub,
    error_path,
    find,
    job_environment,
    output_path,
    version,
)
from rota.testing.fake_cluster.lsf_lists import bhist, bhosts, bjobs, bparams, bqueues, lshosts
from rota.testing.fake_cluster.world import Caller, Command, Executor, Job, Reply, World

__all__ = ["COMMANDS", "STATES", "down", "error_path", "job_environment", "output_path"]


def down(command: str, how: str) -> Reply:
    """Daemons that are not there: the commands wait, and say so."""
    if how == "hung":
        return Reply(code=255, wait_s=3600)
    return Reply("", "LSF is down. Please wait ...\n", 255)


def bkill(world: World, executor: Executor, words: list[str], caller: Caller) -> Reply:
    try:
        given, ids = options(words, "", (), ("r", "l", "b", "V", "s=", "u=", "J=", "q=", "m=", "g="))
    except BadOptionError as error:
        return Reply("", f"bkill: illegal option -- {str(error)[1:]}\n", 255)
    out, errors, code = "", "", 0
    signal = given.get("s", ["KILL"])[-1].removeprefix("SIG")
    texts: list[tuple[str, list[Job] | None]] = [(text, find(world, text)) for text in ids if text != "0"]
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


def _simple(verb: str, done: str) -> Command:
    def command(world: World, executor: Executor, words: list[str], caller: Caller) -> Reply:
        out, errors = "", ""
        for text in [word for word in words if not word.startswith("-")]:
            jobs = [job for job in find(world, text) or [] if job.state != "over"]
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


def lsid(world: World, executor: Executor, words: list[str], caller: Caller) -> Reply:
    if words == ["-V"]:
        return Reply("", version(world))
    return Reply(
        f"{version(world)}\nMy cluster name is {world.settings['cluster'] or 'fake'}\nMy master name is {HOST}\n"
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
    "bparams": bparams,
    "lshosts": lshosts,
    "lsid": lsid,
    "badmin": badmin,
    "bstop": _simple("bstop", "is being stopped"),
    "bresume": _simple("bresume", "is being resumed"),
    "brequeue": _simple("brequeue", "is being requeued "),
}
