"""The yardstick: a C loop of posix_spawn and wait, built and run beside everything else."""

import os
import shutil
import subprocess
import tempfile

SOURCE = os.path.join(os.path.dirname(__file__), "spawn_loop.c")


def build() -> str:
    """Compile the loop; returns its path."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise SystemExit("a C compiler is needed for the yardstick: apt-get install gcc")
    path = os.path.join(tempfile.mkdtemp(prefix="rota-bench-"), "spawn_loop")
    subprocess.run([compiler, "-O2", "-o", path, SOURCE], check=True)
    return path


def loop_rate(loop: str, count: int, width: int, program: str = "/bin/true") -> tuple[float, float]:
    """(jobs per second, CPU seconds of the loop itself per job)."""
    done = subprocess.run([loop, str(count), str(width), program], capture_output=True, text=True, check=True)
    rate, own = (float(word) for word in done.stdout.split())
    return rate, own / count
