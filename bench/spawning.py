"""The yardsticks: C loops of posix_spawn and wait, built and run beside everything else."""

import atexit
import os
import shutil
import subprocess
import sys
import tempfile
from typing import NamedTuple

LOOPS = ("bare_loop", "spawn_loop")


class Loops(NamedTuple):
    """The compiled loops; they are there until this process ends."""

    bare: str
    """As many processes as cores, each of which starts and waits and does nothing else: what is judged by."""
    single: str
    """One process that keeps all cores busy, each child in a session of its own: what a launcher does at least."""


class Spawned(NamedTuple):
    """What a loop did."""

    rate: float
    """Jobs per second."""
    own_s: float
    """CPU seconds of the loop itself per job."""
    children_s: float = 0.0
    """… of what it started."""


def build() -> Loops:
    """Compile the loops."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise SystemExit("a C compiler is needed for the yardstick: apt-get install gcc")
    directory = tempfile.mkdtemp(prefix="rota-bench-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    for name in LOOPS:
        source = os.path.join(os.path.dirname(__file__), f"{name}.c")
        subprocess.run([compiler, "-O2", "-o", os.path.join(directory, name), source], check=True)
    return Loops(*[os.path.join(directory, name) for name in LOOPS])


def run_loop(loop: str, count: int, width: int, program: str = "/bin/true", *words: str) -> Spawned:
    """Run one of the loops."""
    done = subprocess.run([loop, str(count), str(width), program, *words], capture_output=True, text=True, check=True)
    rate, *used = (float(word) for word in done.stdout.split())
    return Spawned(rate, *[seconds / count for seconds in used])


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
