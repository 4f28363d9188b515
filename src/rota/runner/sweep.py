"""Ending what runners have left on a node, for whoever must be sure that nothing of them runs any more."""

from __future__ import annotations

import os
import signal
import time

from rota.runner.kill import send
from rota.runner.measure import read_process, start_of
from rota.runner.spool import log

TYPE_CHECKING = False  # as in `typing`, which is not worth its load time
if TYPE_CHECKING:
    from typing import Dict, Set

__all__ = ["find", "sweep"]

GRACE_S = 15.0  # for runners to end their jobs and to report that
KILL_S = 15.0
LOOK_S = 0.05


def sweep(tag: str) -> int:
    """End the runners whose ids begin with a tag, and all that they started here; returns 0 once nothing is left."""
    told: Set[int] = set()
    began = time.monotonic()
    while True:
        runners, jobs = find(os.fsencode(tag))
        if not runners and not jobs:
            return 0
        now = time.monotonic()
        if now > began + GRACE_S + KILL_S:
            log("cannot end what runners %s* left here: processes %s" % (tag, " ".join(map(str, {**runners, **jobs}))))
            return 1
        if now > began + GRACE_S or not runners:
            for pid, start in {**runners, **jobs}.items():
                send(pid, start, signal.SIGKILL)
        else:
            for pid, start in runners.items():
                process = read_process(pid)
                if pid not in told and process is not None and process.parent not in runners:  # else it is passed on
                    told.add(pid)
                    send(pid, start, signal.SIGTERM)
        time.sleep(LOOK_S)


def find(tag: bytes) -> "tuple[Dict[int, int], Dict[int, int]]":
    """Pid and start time of the runners and supervisors of a tag, and of what carries the mark of such a runner."""
    runners: Dict[int, int] = {}
    jobs: Dict[int, int] = {}
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        words, variables = _read(name, "cmdline"), _read(name, "environ")
        own = any(a == b"--id" and b.startswith(tag + b".") for a, b in zip(words, words[1:]))
        if own and any(word.endswith(b"/runner/__main__.py") for word in words):
            found = runners
        elif any(word.startswith(b"ROTA_RUNNER=" + tag + b".") for word in variables):
            found = jobs
        else:
            continue
        start = start_of(int(name))
        if start is not None:
            found[int(name)] = start
    return runners, jobs


def _read(pid: str, name: str) -> "list[bytes]":
    try:
        with open("/proc/%s/%s" % (pid, name), "rb") as file:
            return file.read().split(b"\0")
    except OSError:
        return []
