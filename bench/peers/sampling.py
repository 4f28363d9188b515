"""One sample of one peer: a process in its environment and an empty directory; what it leaves is ended."""

import ctypes
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from typing import Any

from bench.peers.environments import HERE, ROOT, debian, python_of
from bench.peers.programs.drive import descendants
from bench.peers.roster import Entry

PROGRAMS = os.path.join(HERE, "programs")
_PR_SET_CHILD_SUBREAPER = 36


def ready(entry: Entry) -> str:
    """The Python that a peer runs in; MissingError if it cannot be had."""
    if entry.command:
        debian(entry.command)
    return python_of(entry.environment) if entry.environment else sys.executable


def sample(python: str, entry: Entry, job: dict[str, Any], most_s: float) -> dict[str, Any]:
    """What was found; or why not, as `failed`."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # what outlives the sample is ours to end
    environment = {
        **os.environ,
        "PYTHONPATH": PROGRAMS,
        "PEER_BIN": os.path.dirname(python),
        "PYTHONWARNINGS": "ignore",
    }
    environment["PATH"] = os.pathsep.join([environment["PEER_BIN"], os.environ.get("PATH", os.defpath)])
    with tempfile.TemporaryDirectory(prefix="rota-bench-", ignore_cleanup_errors=True) as directory:
        words = [python, os.path.join(PROGRAMS, "drive.py"), entry.program, json.dumps(job)]
        child = subprocess.Popen(
            words, cwd=directory, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            start_new_session=True,
        )  # fmt: skip
        threading.Thread(target=_reap, args=(child.pid,), daemon=True).start()
        try:
            out, err = child.communicate(timeout=most_s)
        except subprocess.TimeoutExpired:
            return {"failed": f"over {most_s:.0f} s"}
        finally:
            _end_all()
    try:
        found: dict[str, Any] = json.loads(out.strip().rpartition("\n")[2])
    except ValueError:
        said = (err or out).strip()[-600:].replace(ROOT + os.sep, "")  # what is kept names no directory of this machine
        return {"failed": said or f"exit {child.returncode}"}
    expected = job["layers"] * job["across"] if job["kind"] == "D" else job.get("count")
    if found.get("good", expected) != expected:
        return {"failed": f"{found['good']} of {expected} succeeded"}
    return found


def _reap(child: int) -> None:
    """Take in orphans that have ended, as init does, until the sample has: who waits for them would wait for long."""
    while True:
        try:
            found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if found is None:
                time.sleep(0.1)
            elif found.si_pid == child:
                return
            else:
                os.waitpid(found.si_pid, os.WNOHANG)
        except ChildProcessError:
            return


def _end_all() -> None:
    """End what is still below this process, which is what a sample left behind."""
    for _ in range(20):
        left = descendants(os.getpid())
        if not left:
            return
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
