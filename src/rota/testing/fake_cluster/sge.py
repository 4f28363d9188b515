"""Grid Engine's words: qsub, qstat, qdel, qacct, qhost, qconf, qmod, qhold, qrls, as version 8.1.9 says them."""

from rota.testing.fake_cluster.sge_jobs import STATES, error_path, job_environment, output_path, qsub
from rota.testing.fake_cluster.sge_lists import qacct, qconf, qhost, qstat
from rota.testing.fake_cluster.world import Caller, Command, Executor, Job, Reply, World

__all__ = ["COMMANDS", "STATES", "down", "error_path", "job_environment", "output_path"]

MASTER = "n1"


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


def _hold(hold: str | None) -> Command:
    def command(world: World, executor: Executor, words: list[str], caller: Caller) -> Reply:
        jobs = _chosen(world, words)
        for job in jobs:
            job.hold = hold
        return Reply(
            "".join(f"modified hold of job {world.of(job).number}\n" for job in jobs[:1]), "", 0 if jobs else 1
        )

    return command


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


COMMANDS = {
    "qsub": qsub,
    "qstat": qstat,
    "qdel": qdel,
    "qacct": qacct,
    "qhost": qhost,
    "qconf": qconf,
    "qmod": qmod,
    "qhold": _hold("user"),
    "qrls": _hold(None),
}
