"""Jobs of a fake cluster as real processes: a keeper each, in a session of its own."""

import json
import os
import re
import signal
import subprocess
import sys
import time

from rota.testing.fake_cluster.world import End, Job, Submission, World

__all__ = ["Processes", "end_all"]

KEEPER = os.path.join(os.path.dirname(__file__), "keeper.py")
MARK = "ROTA_FAKE_CLUSTER"


class Processes:
    """Starts keepers below a directory; a handle is `PID:TICKS:KEY`."""

    def __init__(self, directory: str) -> None:
        self._directory = directory

    def _end_file(self, handle: str) -> str:
        return os.path.join(self._directory, "jobs", handle.split(":")[2] + ".end")

    def start(self, world: World, job: Job, now: float) -> str | None:
        from rota.testing.fake_cluster.personality import native

        submission = world.of(job)
        key = f"{job.serial}-{job.index if job.index is not None else ''}-{job.restarts}"
        stem = os.path.join(self._directory, "jobs", key)
        with open(stem + ".sh", "w") as file:
            file.write(submission.script)
        os.chmod(stem + ".sh", 0o755)
        first = submission.script.split("\n", 1)[0]
        argv = [*first[2:].split(), stem + ".sh"] if first.startswith("#!") else ["/bin/sh", stem + ".sh"]
        names, lsf = native(world), world.settings["personality"] == "lsf"
        if world.settings["personality"] in ("pbs", "torque"):  # the node's daemon starts a shell, and that the script
            argv = ["/bin/sh", "-c", '"$@"; exit $?', "-sh", *argv]
        spec = {
            "argv": argv,
            "environ": {**submission.environ, **names.job_environment(world, submission, job), MARK: self._directory},
            "cwd": submission.cwd,
            "output": names.output_path(world, submission, job),
            "error": names.error_path(world, submission, job),
            "time_s": submission.time_s,
            "warn_s": _warning(submission),
            "memory_kb": submission.memory_mb * 1024 if world.settings["enforce_memory"] else 0,
            "kill_wait_s": world.settings["kill_wait_s"],
            "signals": ("INT", "TERM") if lsf else ("TERM",),
            "everywhere": lsf,
            "end": stem + ".end",
        }
        with open(stem + ".json", "w") as file:
            json.dump(spec, file)
        with open(stem + ".log", "ab") as log:
            keeper = subprocess.Popen(
                [sys.executable, "-I", "-S", KEEPER, stem + ".json"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                cwd="/",
                env={MARK: self._directory, "PATH": os.environ.get("PATH", "/usr/bin:/bin")},
            )
        keeper.returncode = 0  # not ours to wait for: it outlives this command
        return f"{keeper.pid}:{_ticks(keeper.pid)}:{key}"

    def look(self, world: World, job: Job, now: float) -> End | None:
        if job.handle is None:
            return None
        try:
            with open(self._end_file(job.handle)) as file:
                facts = json.load(file)
        except OSError:
            if job.state == "ending" and not self._alive(job.handle):
                return End(now, None, signal.SIGKILL, job.why or "exit")
            return None
        return End(facts["ended"], facts["code"], facts["signal"], facts["why"], facts["cpu_s"], int(facts["rss_kb"]))

    def due(self, world: World, job: Job) -> float | None:
        return None

    def _alive(self, handle: str) -> bool:
        pid, ticks, _ = handle.split(":")
        return _ticks(int(pid)) == int(ticks) != 0

    def signal(self, world: World, job: Job, name: str, now: float) -> None:
        if job.handle is None or not self._alive(job.handle):
            return
        keeper = int(job.handle.split(":")[0])
        if name == "TERM":
            _kill(keeper, signal.SIGTERM)
            return
        sessions = _children(keeper)
        if name == "KILL":
            _kill(keeper, signal.SIGKILL)
        number = getattr(signal, f"SIG{name}")
        for pid in _pids():
            try:
                if os.getsid(pid) in sessions:
                    _kill(pid, number)
            except OSError:
                continue


def _warning(submission: Submission) -> float | None:
    """When Slurm sends the signal that was asked for: up to a minute earlier than that, at once if it must."""
    asked = re.search(r"@(\d+)\Z", submission.options.get("signal", ""))
    return None if asked is None or submission.time_s is None else max(0.0, submission.time_s - int(asked[1]) - 60)


def end_all(directory: str, wait_s: float = 10.0) -> list[int]:
    """Kill every process that jobs of this cluster are, or left behind; returns those that are still there."""
    mark = f"{MARK}={directory}".encode()
    deadline = time.monotonic() + wait_s
    while True:
        left = []
        for pid in _pids():
            try:
                with open(f"/proc/{pid}/environ", "rb") as file:
                    if mark in file.read().split(b"\0") and _ticks(pid):
                        left.append(pid)
            except OSError:
                continue
        for pid in left:
            _kill(pid, signal.SIGKILL)
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.01)


def _kill(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


def _pids() -> list[int]:
    own = os.getpid()
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) != own]


def _children(parent: int) -> set[int]:
    out = set()
    for pid in _pids():
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:
                if int(file.read().rpartition(b")")[2].split()[1]) == parent:
                    out.add(pid)
        except OSError:
            continue
    return out


def _ticks(pid: int) -> int:
    """When a process began; 0 if it does not run."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return 0
    return 0 if fields[0] in (b"Z", b"X") else int(fields[19])
