"""The claim of a runner to its node: who comes after it on the same host ends it, and all that it had started.

A batch system that starts an element again may have left the process before running, or what that had started. The
successor sees to their end before it greets: then nothing of them runs beside what the manager starts elsewhere.
"""

from __future__ import annotations

import json
import os
import signal
import time

from rota.runner.spool import log, write_json

TYPE_CHECKING = False  # as in `typing`, which is not worth its load time before the greeting is out
if TYPE_CHECKING:
    from typing import Any, Dict

__all__ = ["claim"]

CLAIM = "claim.json"
COMPLAIN_S = 30.0
LOOK_S = 0.05


def claim(directory: str, runner: str) -> None:
    """End the runner that had claimed this directory on this host, if it is still there; then claim it."""
    os.makedirs(directory, 0o700, exist_ok=True)
    try:
        with open(os.path.join(directory, CLAIM), encoding="ascii") as file:
            before = json.loads(file.read(65536))
    except (OSError, ValueError):
        before = None
    if isinstance(before, dict) and before.get("boot") == _boot() and before.get("host") == os.uname().nodename:
        _end(before)
    try:
        write_json(directory, CLAIM, _own(runner))
    except OSError as error:
        log("cannot lay a claim to %s: %s" % (directory, error))


def _boot() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


def _own(runner: str) -> Dict[str, Any]:
    from rota.runner.measure import start_of

    pid = os.getpid()
    return {"runner": runner, "host": os.uname().nodename, "boot": _boot(), "pid": pid, "start": start_of(pid)}


def _end(before: Dict[str, Any]) -> None:
    """End a process, if it is the one that laid the claim, and everything that carries its mark."""
    from rota.runner.guard import marked
    from rota.runner.kill import send
    from rota.runner.measure import read_process, start_of

    runner, pid, start = before.get("runner"), before.get("pid"), before.get("start")
    if not isinstance(runner, str) or not isinstance(pid, int) or not isinstance(start, int) or pid == os.getpid():
        return
    mark = b"ROTA_RUNNER=" + os.fsencode(runner)
    began, complained = time.monotonic(), False
    while True:
        found = {each: start_of(each) for each in marked(mark) if each != os.getpid()}
        process = read_process(pid)
        if process is not None and process.start == start and not process.zombie and _is_runner(pid):
            found[pid] = start
        if not found:
            return
        for each, since in found.items():
            if since is not None:
                send(each, since, signal.SIGKILL)
        if not complained and time.monotonic() - began > COMPLAIN_S:
            complained = True
            log("cannot end what the runner %s left here: processes %s" % (runner, " ".join(map(str, found))))
        time.sleep(LOOK_S)


def _is_runner(pid: int) -> bool:
    try:
        with open("/proc/%d/cmdline" % pid, "rb") as file:
            return b"/runner/__main__.py\0" in file.read()
    except OSError:
        return False
