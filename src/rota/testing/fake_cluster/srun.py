"""Slurm's srun, within a job of a fake cluster: a process for each node of the job, all on this machine."""

import os
import signal
import subprocess
import sys

__all__ = ["main"]

FORWARDED = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP)


def main(argv: list[str]) -> int:
    """Run the command once for each node, and wait for all; returns the highest exit status."""
    if "--help" in argv:
        print("Usage: srun [OPTIONS(0)...] executable [args...]\n      --overlap   share all resources of the job")
        return 0
    command = list(argv)
    while command and command[0].startswith("-"):
        command.pop(0)
    options = dict(word.lstrip("-").partition("=")[::2] for word in argv[: len(argv) - len(command)])
    nodes = [name for name in os.environ.get("SLURM_JOB_NODELIST", "").split(",") if name]
    count = int(options.get("nodes") or len(nodes))
    if not command or not 1 <= count <= len(nodes):
        print(f"srun: error: {count} of {len(nodes)} nodes: {' '.join(argv)}", file=sys.stderr)
        return 1
    tasks: list[subprocess.Popen[bytes]] = []

    def forward(number: int, frame: object) -> None:
        for task in tasks:
            if task.poll() is None:
                task.send_signal(number)

    for number in FORWARDED:
        signal.signal(number, forward)
    for rank, node in enumerate(nodes[:count]):
        environment = {**os.environ, "SLURMD_NODENAME": node, "SLURM_PROCID": str(rank), "SLURM_STEP_ID": "0"}
        tasks.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, env=environment))
    codes = [task.wait() for task in tasks]
    return max(code if code >= 0 else 128 - code for code in codes)
