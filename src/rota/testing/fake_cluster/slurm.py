"""Slurm's words: sbatch, squeue, sacct, scontrol, scancel, sinfo, as version 22.05 says them."""

from rota.testing.fake_cluster.slurm_control import scancel, scontrol, sinfo
from rota.testing.fake_cluster.slurm_jobs import FAILED, STATES, error_path, job_environment, output_path, sbatch
from rota.testing.fake_cluster.slurm_lists import sacct, squeue
from rota.testing.fake_cluster.world import Reply

__all__ = ["COMMANDS", "STATES", "down", "error_path", "job_environment", "output_path"]


def down(command: str, how: str) -> Reply:
    """A controller that is not there, or does not answer."""
    text = {"refused": "Unable to contact slurm controller (connect failure)"}.get(
        how, "Socket timed out on send/recv operation"
    )
    before = {
        "sbatch": FAILED,
        "squeue": "slurm_load_jobs error: ",
        "scancel": "scancel: error: Kill job error on job id 0: ",
        "sinfo": "slurm_load_partitions: ",
    }.get(command, "slurm_load_jobs error: ")
    if command == "sacct":
        return Reply("", "sacct: error: Problem talking to the database: Connection refused\n", 1)
    return Reply("", f"{before}{text}\n", 8 if command == "scancel" else 1, 0.0 if how == "refused" else 10.0)


COMMANDS = {
    "sbatch": sbatch,
    "squeue": squeue,
    "sacct": sacct,
    "scontrol": scontrol,
    "scancel": scancel,
    "sinfo": sinfo,
}
