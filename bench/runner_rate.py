"""How fast a runner executes `true`, as a share of a C loop of posix_spawn and wait, and the CPU it needs per job.

Run it on a quiet machine: `python bench/runner_rate.py [JOBS] [ROUNDS]`. The manager is the tests' fake one, which
keeps 40 leases ahead per slot and acknowledges at once, so this is the runner's own limit, not the system's.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "process"))

from fake_manager import SPEC, FakeManager  # noqa: E402

WIDTH = len(os.sched_getaffinity(0))
AHEAD = 40


def cpu_s(pid: int) -> float:
    """CPU seconds of a process itself, children not counted."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


def c_rate(program: Path, jobs: int) -> float:
    output = subprocess.run(
        [program, str(jobs), str(WIDTH), "/usr/bin/true"], check=True, capture_output=True, text=True
    )
    return float(output.stdout.split()[0])


def runner_rate(jobs: int, *arguments: str) -> tuple[float, float]:
    """Jobs per second, and the runner's own CPU per job in microseconds."""
    with tempfile.TemporaryDirectory() as directory:
        manager = FakeManager(Path(directory), arguments=arguments, cores=WIDTH)
        try:
            manager.accept()
            manager.run(["true"])
            time.sleep(1.0 if "none" not in arguments else 0.0)  # a launcher may be compiled first
            begin, before, leased, done = time.monotonic(), cpu_s(manager.process.pid), 0, len(manager.ended)
            while len(manager.ended) - done < jobs:
                room = min(WIDTH * AHEAD - (leased + done - len(manager.ended)), jobs - leased)
                if room >= AHEAD // 2 or (room and leased + room == jobs):
                    rows = [["s", "b", 8, leased + i, 1, ["true"], None] for i in range(room)]
                    manager.lease(rows, {} if leased else {"b": SPEC}, [["s", WIDTH]], {})
                    leased += room
                for message in manager.read(1):
                    manager.take(message)
            took, after = time.monotonic() - begin, cpu_s(manager.process.pid)
        finally:
            manager.close()
    return jobs / took, (after - before) / jobs * 1e6


def main() -> None:
    jobs = int(sys.argv[1]) if len(sys.argv) > 1 else 3000
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 3
    with tempfile.TemporaryDirectory() as directory:
        program = Path(directory) / "spawn_loop"
        subprocess.run(["cc", "-O2", "-o", program, ROOT / "bench" / "spawn_loop.c"], check=True)
        ratios: dict[str, list[float]] = {"none": [], "auto": []}
        for _ in range(rounds):
            c = c_rate(program, jobs)
            for launcher, values in ratios.items():
                rate, cpu = runner_rate(jobs, "--launcher", launcher)
                values.append(rate / c)
                print(
                    f"launcher {launcher}: {rate:6.0f}/s, C loop {c:6.0f}/s, ratio {rate / c:.2f}; "
                    f"runner CPU per job {cpu:.0f} µs",
                    flush=True,
                )
        for launcher, values in ratios.items():
            print(f"median ratio, launcher {launcher}: {statistics.median(values):.2f}")


if __name__ == "__main__":
    main()
