"""`python -m bench.timeline [--apart] [--jobs 150]`: where the time of one job alone goes, as the kernel sees it.

Client, manager and runner are traced from outside (`perf record`: root, Debian's linux-perf), so that nothing in them
is changed; messages, syncs and the life of the job's process are the stamps. Tracing makes all of it about a fifth
slower: the shares mean something, the sum does not.
"""

import argparse
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

import rota
from bench import home as at

EVENTS = (
    "syscalls:sys_enter_fdatasync",
    "syscalls:sys_exit_fdatasync",
    "syscalls:sys_enter_sendto",
    "syscalls:sys_exit_recvfrom",
    "sched:sched_process_fork",
    "sched:sched_process_exec",
    "sched:sched_process_exit",
)
APART_S = 0.05
REQUEST = 256
"""Bytes: of what a client sends, only a submission is longer."""
STEPS = (
    ("M read", "the manager wakes and reads the submission"),
    ("M sync", "it decides, schedules and writes"),
    ("M synced", "the disk"),
    ("M send", "the lease is made and sent"),
    ("R read", "the runner wakes and reads it"),
    ("R fork", "it makes ready, and forks"),
    ("J exec", "the process becomes its program"),
    ("J exit", "the program"),
    ("R send", "reaped and reported"),
    ("M read", "the manager wakes and reads the report"),
    ("M sync", "it decides and writes"),
    ("M synced", "the disk"),
    ("M send", "the answer is made and sent"),
    ("C read", "the client wakes and reads it"),
)
"""Who does what, one after the other, and what the time before it was for."""
NAMES = {
    "sys_enter_fdatasync": "sync",
    "sys_exit_fdatasync": "synced",
    "sys_enter_sendto": "send",
    "sys_exit_recvfrom": "read",
    "sched_process_fork": "fork",
    "sched_process_exec": "exec",
    "sched_process_exit": "exit",
}
Stamp = tuple[float, str]


def traced(home: str, jobs: int, apart: bool) -> list[list[Stamp]]:
    """The stamps of each of so many jobs, in microseconds from its submission on."""
    with tempfile.TemporaryDirectory(prefix="rota-bench-") as place, rota.Client(home=home) as client:
        for _ in range(50):
            client.submit(["/bin/true"]).wait()
        who = {os.getpid(): "C", at.manager_pid(home): "M", at.runner_pids(home)[0]: "R"}
        record = ["perf", "record", "-q", "-a", "-o", os.path.join(place, "data"), "-e", ",".join(EVENTS)]
        tracer = subprocess.Popen(record, stderr=subprocess.PIPE, text=True)
        try:
            time.sleep(0.5)
            for _ in range(jobs):
                if apart:
                    time.sleep(APART_S)
                client.submit(["/bin/true"]).wait()
        finally:
            tracer.terminate()
            words = tracer.communicate()[1]
        found = subprocess.run(
            ["perf", "script", "-i", os.path.join(place, "data"), "-F", "comm,tid,time,event,trace"],
            capture_output=True,
            text=True,
        )
    if found.returncode:
        raise SystemExit(f"nothing was traced (are you root?): {(words or found.stderr).strip()}")
    return _split(found.stdout, who)


def _split(text: str, who: dict[int, str]) -> list[list[Stamp]]:
    jobs: list[list[Stamp]] = []
    begin = 0.0
    for line in text.splitlines():
        row = re.match(r"\s*(.+?)\s+(\d+)\s+([\d.]+):\s+\w+:(\w+):\s*(.*)", line)
        if row is None:
            continue
        comm, thread, seconds, event, rest = row.groups()
        name = who.get(int(thread)) or ("J" if comm == "true" else None)
        if name is None:
            continue
        moment, size = float(seconds) * 1e6, re.search(r"len: 0x([0-9a-f]+)", rest)
        if name == "C" and event == "sys_enter_sendto" and size and int(size[1], 16) > REQUEST:
            jobs.append([])
            begin = moment
        if jobs:
            jobs[-1].append((moment - begin, f"{name} {NAMES[event]}"))
    return jobs


def _steps(stamps: list[Stamp]) -> list[float] | None:
    """What each step of a job took; None: something came in another order, or was not seen.

    The lease and the answer are the first that the manager sends after its syncs, the request to wait is read between.
    """
    moments, after = [], 0.0
    for name, _ in STEPS:
        found = next((moment for moment, what in stamps if moment > after and what == name), None)
        if found is None:
            return None
        moments.append(found)
        after = found
    return [moment - before for before, moment in zip([0.0, *moments], moments, strict=False)]


def main() -> int:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--apart", action="store_true", help="50 ms after the one before, and not at once")
    parser.add_argument("--jobs", type=int, default=150)
    args = parser.parse_args()
    if shutil.which("perf") is None:
        raise SystemExit("there is no perf here (Debian: linux-perf)")
    with at.manager('[site.local]\nlinger = "1m"\n') as home:
        jobs = traced(home, args.jobs, args.apart)
    rows = [steps for job in jobs if (steps := _steps(job)) is not None]
    if not rows:
        raise SystemExit(f"of {len(jobs)} jobs none was seen whole")
    for (_, words), took in zip(STEPS, zip(*rows, strict=True), strict=True):
        print(f"{statistics.median(took):7.0f} µs  {words}")
    print(f"{statistics.median([sum(row) for row in rows]):7.0f} µs  in all, median of {len(rows)} of {len(jobs)} jobs")
    return 0


if __name__ == "__main__":
    sys.exit(main())
