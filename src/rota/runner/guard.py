"""A process beside the runner that ends its jobs when the runner is killed.

A batch system that has no control groups kills the process group it started, and jobs have sessions of their own: they
would go on, unseen, while another copy of them is started elsewhere. So beside the runner stands a small process that
does nothing until the runner is gone without a farewell.
"""

from __future__ import annotations

import os
import signal
import time

from rota.runner.kill import send
from rota.runner.measure import start_of

__all__ = ["Guard"]

TRY_S = 30.0
LOOK_S = 0.05


class Guard:
    """The runner's hold on its guard process."""

    def __init__(self, runner_id: str) -> None:
        """Start the guard, before the runner adopts orphans or has threads: it is forked, and given to init."""
        read, self._farewell = os.pipe2(os.O_CLOEXEC)
        child = os.fork()
        if child:
            os.close(read)
            os.waitpid(child, 0)
            return
        try:
            os.setsid()
            if not os.fork():
                _watch(read, b"ROTA_RUNNER=" + os.fsencode(runner_id))
        finally:
            os._exit(0)

    def dismiss(self) -> None:
        """Let the guard go: nothing of the runner is left."""
        try:
            os.write(self._farewell, b".")
        except OSError:
            pass  # it has been killed
        os.close(self._farewell)


def _watch(read: int, mark: bytes) -> None:
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU):
        signal.signal(number, signal.SIG_IGN)
    null = os.open("/dev/null", os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    os.closerange(3, read)
    os.closerange(read + 1, 1024)
    os.chdir("/")
    if os.read(read, 1):
        return
    until = time.monotonic() + TRY_S
    while time.monotonic() < until:
        found = marked(mark)
        if not found:
            return
        for pid in found:
            start = start_of(pid)
            if start is not None:
                send(pid, start, signal.SIGKILL)
        time.sleep(LOOK_S)


def marked(mark: bytes) -> "list[int]":
    """The pids of processes that have this variable in their environment."""
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open("/proc/%s/environ" % name, "rb") as file:
                if mark in file.read().split(b"\0"):
                    found.append(int(name))
        except OSError:
            continue
    return found
