"""Parallel models: how the command of a job becomes ranks, one for each core that the job got, each on its node.

The files that launchers of ranks read are written beside the gang's own (part.py). Ranks elsewhere are started by the
runners there, through `rsh`; those of `srunmpi` by Slurm, as a step of the allocation that the runner is in.
"""

from __future__ import annotations

import os
from typing import Any, Dict, List, Mapping, Optional, Tuple, Union

from rota.runner.environment import cores_of
from rota.runner.plan import StartError

__all__ = ["RANKED", "ranks", "written"]

RANKED = {
    "openmpi": ("mpirun.openmpi", "mpirun"),
    "mpich": ("mpiexec.hydra", "mpirun.mpich", "mpirun"),
    "hydra": ("mpiexec.hydra", "mpirun"),
    "intelmpi": ("mpirun",),
    "srunmpi": ("srun",),
}
"""Model → the programs that start its ranks, the first that there is."""


def written(nodes: List[Dict[str, Any]]) -> Dict[str, str]:
    """Name → text of the files with hosts: one line per node, per core, and per rank."""
    pairs = [(str(node["host"]), cores_of(node)) for node in nodes]
    machines = [name for name, count in pairs for _ in range(count)]
    slots = [slot for _, count in pairs for slot in range(count)]
    return {
        "hosts": "".join("%s\n" % name for name, _ in pairs),
        "hosts.openmpi": "".join("%s slots=%d\n" % pair for pair in pairs),
        "hosts.hydra": "".join("%s:%d\n" % pair for pair in pairs),
        "machines": "".join("%s\n" % name for name in machines),
        "ranks.openmpi": "".join(
            "rank %d=%s slot=%d\n" % (rank, name, slot) for rank, (name, slot) in enumerate(zip(machines, slots))
        ),
    }


def ranks(
    spec: Mapping[str, Any],
    command: Union[str, List[str]],
    shell: List[str],
    nodes: List[Dict[str, Any]],
    directory: str,
    env: Mapping[bytes, bytes],
) -> Tuple[List[str], Dict[bytes, Optional[bytes]]]:
    """(the words that start a command as ranks, variables to set for them, or with None to take away)."""
    model = spec["model"]
    words = [*shell, command] if isinstance(command, str) else list(command)
    program = spec.get("mpirun") or _found(RANKED[model], env, bool(spec.get("modules") or spec.get("setup")))
    more = [str(word) for word in spec.get("mpirun_args") or ()]
    pairs = [(str(node["host"]), cores_of(node)) for node in nodes]
    total = sum(count for _, count in pairs)
    bound = bool(spec.get("bind"))
    if model == "openmpi":
        free = [] if bound else ["--bind-to", "none"]  # else each job's ranks would be bound to the same first cores
        hosts = ["--hostfile", os.path.join(directory, "hosts.openmpi")]
        return [program, "-n", str(total), *hosts, "--map-by", "slot", *free, *more, *words], {}
    if model in ("mpich", "hydra"):
        return [program, "-f", os.path.join(directory, "hosts.hydra"), "-n", str(total), *more, *words], {}
    if model == "intelmpi":
        out = [program, *more]
        for number, (name, count) in enumerate(pairs):
            out += [*([":"] if number else []), "-host", name, "-n", str(count), *words]
        return out, {b"I_MPI_PIN": b"1" if bound else b"0"}
    return _srun(program, more, words, total, os.path.join(directory, "machines"), env)


def _srun(
    program: str, more: List[str], words: List[str], total: int, machines: str, env: Mapping[bytes, bytes]
) -> Tuple[List[str], Dict[bytes, Optional[bytes]]]:
    job = os.environ.get("SLURM_JOB_ID")
    if not job:
        raise StartError("start", "model srunmpi: this node is in no allocation of Slurm; use openmpi or mpich")
    # What tells the job of its cores, srun would take for options.
    changed: Dict[bytes, Optional[bytes]] = {name: None for name in env if name.startswith(b"SLURM_")}
    changed[b"SLURM_HOSTFILE"] = os.fsencode(machines)
    if b"SLURM_CONF" in os.environb:
        changed[b"SLURM_CONF"] = os.environb[b"SLURM_CONF"]
    told = [
        "--jobid=%s" % job,
        "--overlap",
        "--overcommit",
        "--mem=0",
        "--ntasks=%d" % total,
        "--distribution=arbitrary",
    ]
    return [program, *told, *more, *words], changed


def _found(names: Tuple[str, ...], env: Mapping[bytes, bytes], later: bool) -> str:
    """The first of these programs in the PATH of a job; what modules bring is not there yet."""
    for name in names if not later else ():
        for part in os.fsdecode(env.get(b"PATH", b"")).split(":"):
            if os.access(os.path.join(part or ".", name), os.X_OK):
                return name
    return names[-1]
