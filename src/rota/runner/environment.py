"""A job's environment: computed once per spec, completed per job.

Every job gets a new dict made from constants: nothing that one job was given can reach another, and
values are never split, so that they may hold "=", ":" and newlines. Bytes, because posix_spawn then has
nothing to encode.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Optional

from rota.runner.lease import Lease

if TYPE_CHECKING:
    from rota.runner.credentials import Credentials
    from rota.runner.devices import Gpus

__all__ = ["Environment", "gang_variables", "inherited", "of_allocation", "without_allocation"]

DEFAULT_PATH = b"/usr/local/bin:/usr/bin:/bin"
BATCH_SYSTEMS = (b"SLURM", b"PBS_", b"LSB_", b"LS_JOB", b"LS_SUB", b"LS_EXEC", b"SGE_")
GRID_ENGINE = frozenset(b"ARC JOB_ID JOB_NAME NHOSTS NQUEUES NSLOTS PE PE_HOSTFILE QUEUE REQUEST RESTARTED".split())
ELEMENT = (b"SLURM_ARRAY_", b"PBS_ARRAY", b"LSB_JOBINDEX", b"SGE_TASK_")
"""Which element of an array the runner is: of no meaning for a job, and easily taken for its own."""
SUBMIT_DIR = (b"SLURM_SUBMIT_DIR", b"PBS_O_WORKDIR", b"LS_SUBCWD", b"SGE_O_WORKDIR")
"""Scripts go there first. Where the runner was submitted from is no place of theirs."""


def inherited(environ: Mapping[bytes, bytes]) -> Dict[bytes, bytes]:
    """The runner's own environment, as jobs see it: without the variables of an outer job or anything like a token."""
    outer = (
        b"ROTA_JOB",
        b"ROTA_BATCH",
        b"ROTA_INDEX",
        b"ROTA_ATTEMPT",
        b"ROTA_RUNNER",
        b"ROTA_CORES",
        b"ROTA_TOKEN",
        b"ROTA_ADDRESS",
        b"ROTA_WORKDIR",
        b"ROTA_SUBMIT_DIR",
        b"ROTA_EXIT_CODE",
        b"ROTA_SIGNAL",
        b"ROTA_REASON",
        b"ROTA_GANG",
        b"ROTA_RSH",
        b"ROTA_NODE",
        b"ROTA_HOSTFILE",
        b"ROTA_GPUS",
    )
    return {key: value for key, value in environ.items() if not key.startswith(outer)}


def of_allocation(environ: Mapping[bytes, bytes]) -> Dict[bytes, bytes]:
    """What the batch system told the runner about its allocation: jobs there may need it (srun, mpirun, NSLOTS)."""
    found = {key: value for key, value in environ.items() if key.startswith(BATCH_SYSTEMS)}
    if b"SGE_TASK_ID" in found:
        found.update((key, environ[key]) for key in GRID_ENGINE & set(environ))
    if b"TMPDIR" in environ and not found.keys().isdisjoint((b"SGE_TASK_ID", b"PBS_JOBID", b"LSB_JOBID")):
        found[b"TMPDIR"] = environ[b"TMPDIR"]  # made for this allocation, and removed with it
    return {key: value for key, value in found.items() if not key.startswith(ELEMENT)}


def without_allocation(environ: Mapping[bytes, bytes], keep_element: bool = False) -> Dict[bytes, bytes]:
    """An environment without what the batch system told: mpirun would go by that, past the runners."""
    ours = any(key.startswith(b"SGE_") for key in environ)
    kept = ELEMENT if keep_element else ()
    return {
        key: value
        for key, value in environ.items()
        if key.startswith(kept)
        or not (key.startswith((*BATCH_SYSTEMS, b"PMI_", b"PMIX_")) or (ours and key in GRID_ENGINE))
    }


def gang_variables(directory: str, nodes: List[Dict[str, Any]], gang_id: bytes) -> Dict[bytes, bytes]:
    """What a job on several nodes is told: its nodes, and how programs that start ranks can do so."""
    path = os.fsencode(directory)
    agent, names = path + b"/rsh", [os.fsencode(str(node["host"])) for node in nodes]
    return {
        b"ROTA_GANG": path + b"/gang.json",
        b"ROTA_GANG_ID": gang_id,
        b"ROTA_RSH": agent,
        b"ROTA_NODES": b"%d" % len(names),
        b"ROTA_NODE_LIST": b",".join(names),
        b"ROTA_HOSTFILE": path + b"/hosts",
        b"OMPI_MCA_plm": b"rsh",
        b"OMPI_MCA_plm_rsh_agent": agent,
        b"OMPI_MCA_plm_rsh_no_tree_spawn": b"1",  # the agent is at another path on each node
        b"OMPI_MCA_orte_default_hostfile": path + b"/hosts.openmpi",
        b"PRTE_MCA_plm": b"ssh",
        b"PRTE_MCA_plm_ssh_agent": agent,
        b"PRTE_MCA_plm_ssh_no_tree_spawn": b"1",
        b"PRTE_MCA_prte_default_hostfile": path + b"/hosts.openmpi",
        b"HYDRA_LAUNCHER": b"ssh",
        b"HYDRA_LAUNCHER_EXEC": agent,
        b"HYDRA_HOST_FILE": path + b"/hosts.hydra",
        b"I_MPI_HYDRA_BOOTSTRAP": b"ssh",
        b"I_MPI_HYDRA_BOOTSTRAP_EXEC": agent,
        b"I_MPI_HYDRA_HOST_FILE": path + b"/hosts.hydra",
    }


class Environment:
    """What all jobs of one spec have in common, and how one job's environment is made from it."""

    __slots__ = ("_array", "_base", "_gpus", "_told", "absolute", "credentials", "path")

    def __init__(
        self,
        spec: Dict[str, Any],
        env: Optional[Dict[str, str]],
        own: Dict[bytes, bytes],
        runner_id: str,
        gpus: Optional[Gpus] = None,
    ) -> None:
        base = of_allocation(own)
        cwd = os.fsencode(spec.get("cwd") or "/")
        base.update((key, cwd) for key in SUBMIT_DIR if key in base)
        if env is None:
            base = {**{key: value for key, value in own.items() if not key.startswith(ELEMENT)}, **base}
        else:
            base.update((os.fsencode(key), os.fsencode(value)) for key, value in env.items())
        layers = [spec.get("set")]
        if isinstance(spec.get("env"), dict):  # a job's own values (`extra`), not the name of an environment
            layers.append(spec["env"])
        for layer in layers:
            for key, value in (layer or {}).items():
                base[os.fsencode(key)] = os.fsencode(value)
        base[b"ROTA_RUNNER"] = os.fsencode(runner_id)
        base[b"ROTA_CORES"] = b"%d" % max(1, int(spec.get("cores") or 1000) // 1000)
        base[b"ROTA_SUBMIT_DIR"] = base[b"ROTA_WORKDIR"] = cwd
        array = spec.get("array")
        if array:
            base[b"SLURM_ARRAY_TASK_MIN"] = b"%d" % array["first"]
            base[b"SLURM_ARRAY_TASK_MAX"] = b"%d" % array["last"]
            base[b"SLURM_ARRAY_TASK_STEP"] = b"%d" % array["step"]
            base[b"SLURM_ARRAY_TASK_COUNT"] = b"%d" % array["count"]
        self._array = bool(array)
        # A job that runs at the end of a batch is told of that one, not of its own.
        self._told = {os.fsencode(key): os.fsencode(value) for key, value in (spec.get("own") or {}).items()}
        self._base = base
        self._gpus = gpus
        self.credentials: Optional[Credentials] = None
        self.path = base.get(b"PATH", DEFAULT_PATH)
        self.absolute = all(part.startswith(b"/") for part in self.path.split(b":"))  # PATH means the same everywhere

    @property
    def base(self) -> Dict[bytes, bytes]:
        """The variables that all jobs of the spec have; not to be changed."""
        return self._base

    def own(self, lease: Lease) -> Dict[bytes, bytes]:
        """The variables that only this job has."""
        batch, index = b"%d" % lease.batch, b"%d" % lease.index
        env = {
            b"ROTA_JOB": b"%b.%b" % (batch, index),
            b"ROTA_BATCH": batch,
            b"ROTA_INDEX": index,
            b"ROTA_ATTEMPT": b"%d" % lease.attempt,
        }
        if self._array:
            env[b"SLURM_ARRAY_JOB_ID"] = batch
            env[b"SLURM_ARRAY_TASK_ID"] = env[b"PBS_ARRAY_INDEX"] = env[b"LSB_JOBINDEX"] = env[b"SGE_TASK_ID"] = index
        if self._gpus is not None:
            env.update(self._gpus.variables(lease.slot))
        if self.credentials is not None:
            env.update(self.credentials.variables(lease.key))
        env.update(self._told)
        return env

    def of(self, lease: Lease) -> Dict[bytes, bytes]:
        """The whole environment of one job."""
        env = self._base.copy()
        env.update(self.own(lease))
        return env
