"""A manager of its own for a measurement: a temporary home, real processes, and their CPU time."""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager

TICK = os.sysconf("SC_CLK_TCK")
ROTA = [sys.executable, "-m", "rota"]
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
"""What is measured has been started before: its bytecode is cached, as on any machine where rota is installed."""


def rota(home: str, *words: str, text: str | None = None) -> str:
    """Run a rota command and return what it printed."""
    done = subprocess.run(
        [*ROTA, *words], env={**os.environ, "ROTA_HOME": home}, input=text, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"rota {' '.join(words)}: exit {done.returncode}\n{done.stderr}")
    return done.stdout


@contextmanager
def manager(config: str = "") -> Iterator[str]:
    """A running manager in a temporary home; everything is ended afterwards."""
    home = tempfile.mkdtemp(prefix="rota-bench-")
    try:
        if config:
            with open(os.path.join(home, "config.toml"), "w") as file:
                file.write(config)
        rota(home, "up")
        yield home
    finally:
        subprocess.run(
            [*ROTA, "down", "--kill"], env={**os.environ, "ROTA_HOME": home}, capture_output=True, check=False
        )
        shutil.rmtree(home, ignore_errors=True)


def manager_pid(home: str) -> int:
    """Pid of the manager of a home."""
    with open(os.path.join(home, "manager.pid")) as file:
        return int(file.read())


def runner_pids(home: str) -> list[int]:
    """Pids of the runners of a home, their launchers included."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/cmdline", "rb") as file:
                    line = file.read()
            except OSError:
                continue
            if home.encode() in line and b"runner/__main__.py" in line:
                found.append(int(name))
                found.extend(_children(int(name)))
    return found


def _children(pid: int) -> list[int]:
    try:
        with open(f"/proc/{pid}/task/{pid}/children") as file:
            return [int(word) for word in file.read().split()]
    except OSError:
        return []


def cpu_s(pid: int) -> float:
    """CPU seconds of a process itself, without its children: of the threads that it has, and to the nanosecond."""
    used = 0
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/schedstat", "rb") as file:
                used += int(file.read().split()[0])
    except OSError:
        pass
    return used / 1e9


def children_s(pid: int) -> float:
    """User and system time of the children of a process that have ended."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[13]) + int(fields[14])) / TICK


def rss(pid: int) -> int:
    """Resident bytes."""
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def best(times: int, call: "object") -> float:
    """The shortest of several runs, in seconds."""
    shortest = float("inf")
    for _ in range(times):
        begin = time.perf_counter()
        call()  # type: ignore[operator]
        shortest = min(shortest, time.perf_counter() - begin)
    return shortest
