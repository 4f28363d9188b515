"""The yardstick: a C loop of posix_spawn and wait, built and run beside everything else."""

import atexit
import os
import shutil
import subprocess
import sys
import tempfile

SOURCE = os.path.join(os.path.dirname(__file__), "spawn_loop.c")


def build() -> str:
    """Compile the loop; returns its path, which is good until this process ends."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise SystemExit("a C compiler is needed for the yardstick: apt-get install gcc")
    directory = tempfile.mkdtemp(prefix="rota-bench-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    path = os.path.join(directory, "spawn_loop")
    subprocess.run([compiler, "-O2", "-o", path, SOURCE], check=True)
    return path


def loop_rate(loop: str, count: int, width: int, program: str = "/bin/true") -> tuple[float, float]:
    """(jobs per second, CPU seconds of the loop itself per job)."""
    done = subprocess.run([loop, str(count), str(width), program], capture_output=True, text=True, check=True)
    rate, own = (float(word) for word in done.stdout.split())
    return rate, own / count


PYTHON_LOOP = """
import os, resource, sys
count, width, program = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
environment = dict(os.environb)
null = os.open("/dev/null", os.O_RDWR)
actions = [(os.POSIX_SPAWN_DUP2, null, number) for number in range(3)]
started = ended = 0
begin = resource.getrusage(resource.RUSAGE_SELF)
while ended < count:
    while started < count and started - ended < width:
        os.posix_spawn(program, [program], environment, file_actions=actions, setsid=True, setsigmask=())
        started += 1
    os.wait4(-1, 0)
    ended += 1
end = resource.getrusage(resource.RUSAGE_SELF)
print(end.ru_utime + end.ru_stime - begin.ru_utime - begin.ru_stime)
"""


def python_loop_cpu(count: int, width: int, program: str = "/bin/true") -> float:
    """CPU seconds per job of the barest Python that spawns and waits: the part of a runner that no design can save."""
    words = [sys.executable, "-I", "-S", "-c", PYTHON_LOOP, str(count), str(width), program]
    return float(subprocess.run(words, capture_output=True, text=True, check=True).stdout) / count
