"""A job's environment: computed once per spec, completed per job.

Every job gets a new dict made from constants: nothing that one job was given can reach another, and
values are never split, so that they may hold "=", ":" and newlines. Bytes, because posix_spawn then has
nothing to encode.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, ClassVar, Dict, List, Mapping, Optional, Sequence, Tuple

from rota.runner.lease import Lease

if TYPE_CHECKING:
    from rota.runner.credentials import Credentials
    from rota.runner.devices import Gpus

__all__ = ["Environment", "gang_variables", "inherited", "of_allocation", "style_variables", "without_allocation"]

DEFAULT_PATH = b"/usr/local/bin:/usr/bin:/bin"
BATCH_SYSTEMS = (b"SLURM", b"PBS_", b"LSB_", b"LS_JOB", b"LS_SUB", b"LS_EXEC", b"SGE_")
GRID_ENGINE = frozenset(b"ARC JOB_ID JOB_NAME NHOSTS NQUEUES NSLOTS PE PE_HOSTFILE QUEUE REQUEST RESTARTED".split())
ELEMENT = (b"SLURM_ARRAY_", b"PBS_ARRAY", b"LSB_JOBINDEX", b"SGE_TASK_")
"""Which element of an array the runner is: of no meaning for a job, and easily taken for its own."""
SUBMIT_DIR = (b"SLURM_SUBMIT_DIR", b"PBS_O_WORKDIR", b"LS_SUBCWD", b"SGE_O_WORKDIR")
"""Scripts go there first. Where the runner was submitted from is no place of theirs."""
OWN = b"ROTA_JOB=%d.%d\0ROTA_BATCH=%d\0ROTA_INDEX=%d\0ROTA_ATTEMPT=%d"
OF_ARRAY = b"\0SLURM_ARRAY_JOB_ID=%d\0SLURM_ARRAY_TASK_ID=%d\0PBS_ARRAY_INDEX=%d\0LSB_JOBINDEX=%d\0SGE_TASK_ID=%d"
"""The variables that only one job has, as words for the launcher."""


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
        b"ROTA_MACHINEFILE",
        b"ROTA_RANKFILE",
        b"ROTA_VARIANT",
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
        b"ROTA_CORES_PER_NODE": b",".join(b"%d" % cores_of(node) for node in nodes),
        b"ROTA_HOSTFILE": path + b"/hosts",
        b"ROTA_MACHINEFILE": path + b"/machines",
        b"ROTA_RANKFILE": path + b"/ranks.openmpi",
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


SLURM_STYLE = {
    "nodes": b"SLURM_NNODES SLURM_JOB_NUM_NODES SLURM_STEP_NUM_NODES",
    "list": b"SLURM_NODELIST SLURM_JOB_NODELIST SLURM_STEP_NODELIST",
    "cores": b"SLURM_NPROCS SLURM_NTASKS SLURM_STEP_NUM_TASKS",
    "each": b"SLURM_NTASKS_PER_NODE SLURM_STEP_TASKS_PER_NODE SLURM_TASKS_PER_NODE",
}
QCG_STYLE = {
    "nodes": b"QCG_PM_NNODES",
    "list": b"QCG_PM_NODELIST",
    "cores": b"QCG_PM_NPROCS QCG_PM_NTASKS",
    "each": b"QCG_PM_TASKS_PER_NODE",
}
STYLES = {"slurm": SLURM_STYLE, "qcg": QCG_STYLE}


def cores_of(node: Mapping[str, Any]) -> int:
    """The whole cores that a job has on a node, one at least."""
    return max(1, int(node.get("cores") or 1000) // 1000)


def style_variables(styles: Sequence[str], nodes: Sequence[Mapping[str, Any]]) -> Dict[bytes, bytes]:
    """What a job is told of its nodes and cores, in the words of these systems."""
    counts = [cores_of(node) for node in nodes]
    told = {
        "nodes": b"%d" % len(counts),
        "list": b",".join(os.fsencode(str(node["host"])) for node in nodes),
        "cores": b"%d" % sum(counts),
        "each": b",".join(b"%d" % count for count in counts),
    }
    out: Dict[bytes, bytes] = {}
    for style in styles:
        for what, names in STYLES.get(style, {}).items():
            out.update((name, told[what]) for name in names.split())
    if "slurm" in styles:
        out[b"OMPI_MCA_plm"] = b"rsh"  # Open MPI would take the launcher of Slurm, which knows nothing of this job
    return out


class Environment:
    """What all jobs of one spec have in common, and how one job's environment is made from it."""

    __slots__ = ("_array", "_base", "_gpus", "_step", "_told", "absolute", "credentials", "path")
    _last: ClassVar[Tuple[Mapping[str, str], Dict[bytes, bytes]]] = ({}, {})  # encoded last

    def __init__(
        self,
        spec: Dict[str, Any],
        env: Optional[Dict[str, str]],
        own: Dict[bytes, bytes],
        runner_id: str,
        gpus: Optional[Gpus] = None,
    ) -> None:
        style = spec.get("style")
        if style:
            own = without_allocation(own)
        base = {} if style else of_allocation(own)
        cwd = os.fsencode(spec.get("cwd") or "/")
        base.update((key, cwd) for key in SUBMIT_DIR if key in base)
        if env is None:
            base = {**{key: value for key, value in own.items() if not key.startswith(ELEMENT)}, **base}
        else:
            base.update(self._encoded(env))
        if style:
            base.update(style_variables(style, [{"host": spec.get("host") or "", "cores": spec.get("cores")}]))
        self._step = "qcg" in (style or ())
        layers = [spec.get("told"), spec.get("set")]
        if isinstance(spec.get("env"), dict):  # a job's own values (`extra`), not the name of an environment
            layers.append(spec["env"])
        for layer in layers:
            for key, value in (layer or {}).items():
                base[os.fsencode(key)] = os.fsencode(value)
        base[b"ROTA_RUNNER"] = os.fsencode(runner_id)
        base[b"ROTA_CORES"] = b"%d" % max(1, int(spec.get("cores") or 1000) // 1000)
        base[b"ROTA_SUBMIT_DIR"] = base[b"ROTA_WORKDIR"] = cwd
        if spec.get("model") == "threads":
            base.setdefault(b"OMP_NUM_THREADS", base[b"ROTA_CORES"])
        if "variant" in spec:
            base[b"ROTA_VARIANT"] = b"%d" % spec["variant"]
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

    @classmethod
    def _encoded(cls, env: Mapping[str, str]) -> Dict[bytes, bytes]:
        """The variables that were sent with jobs, as bytes. Many specs come with the same ones, never changed."""
        if env is not cls._last[0]:
            cls._last = (env, {os.fsencode(key): os.fsencode(value) for key, value in env.items()})
        return cls._last[1]

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
        if self._step:
            env[b"QCG_PM_STEP_ID"] = b"%08x%08x%04x" % lease.key
        if self._gpus is not None:
            env.update(self._gpus.variables(lease.slot))
        if self.credentials is not None:
            env.update(self.credentials.variables(lease.key))
        env.update(self._told)
        return env

    def words(self, lease: Lease) -> Tuple[bytes, int]:
        """The same as words NAME=value with a NUL between them, and how many: what a launcher is told of each job."""
        if self._gpus is not None or self._told:
            own = self.own(lease)
            return b"\0".join([b"%b=%b" % item for item in own.items()]), len(own)
        batch, index, attempt = lease.key
        words, count = OWN % (batch, index, batch, index, attempt), 4
        if self._array:
            words, count = words + OF_ARRAY % (batch, index, index, index, index), count + 5
        more = b"" if self.credentials is None else self.credentials.words(lease.key)
        return words + more, count + 2 if more else count

    def of(self, lease: Lease) -> Dict[bytes, bytes]:
        """The whole environment of one job."""
        env = self._base.copy()
        env.update(self.own(lease))
        return env
