"""Runs one job of a fake cluster and writes down how it ended: the part of a node's daemon, one process per job.

`keeper.py SPEC`: SPEC is a JSON file. Standard library only, and started without site-packages: it must be quick.
TERM makes it end the job: the `signals` of its batch system to all of the job's processes, `kill_wait_s` apart, then
KILL. Where it is `everywhere`, these go to processes that have left the job's session too.
"""

import json
import os
import signal
import subprocess
import sys
import time
from typing import Any

STEP_S = 0.1


class Keeper:
    """One job's processes: a session of their own below this one."""

    def __init__(self, spec: "dict[str, Any]") -> None:
        self.spec = spec
        self.why = "exit"
        self.asked: float | None = None
        self.sent = 0
        """How many of the signals were sent."""
        self.warned = False
        self.peak_kb = 0
        self.child: subprocess.Popen[bytes] | None = None

    def run(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._asked)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        started = time.time()
        try:
            self.child = self._start()
        except OSError as error:
            self._write({"why": "launch", "code": None, "signal": None, "text": str(error), "cpu_s": 0.0, "rss_kb": 0})
            return
        status = self._wait(started)
        self._signal(signal.SIGKILL)  # what the job left behind
        code = None if os.WIFSIGNALED(status[1]) else os.waitstatus_to_exitcode(status[1])
        killer = os.WTERMSIG(status[1]) if os.WIFSIGNALED(status[1]) else None
        usage = status[2]
        facts = {"why": self.why, "code": code, "signal": killer, "cpu_s": usage.ru_utime + usage.ru_stime}
        self._write({**facts, "rss_kb": max(usage.ru_maxrss, self.peak_kb)})

    def _start(self) -> "subprocess.Popen[bytes]":
        spec = self.spec
        os.chdir(spec["cwd"])
        with open(spec["output"], "ab") as out:
            error = out if spec["error"] is None else open(spec["error"], "ab")  # noqa: SIM115 it is closed below
            try:
                return subprocess.Popen(
                    spec["argv"],
                    env=spec["environ"],
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=error,
                    start_new_session=True,
                )
            finally:
                if error is not out:
                    error.close()

    def _asked(self, number: int, frame: object) -> None:
        if self.asked is None:
            self.asked = time.time()
            self._signal(signal.SIGCONT)
            self._next_signal()

    def _next_signal(self) -> None:
        names = self.spec["signals"]
        self._signal(getattr(signal, f"SIG{names[self.sent]}") if self.sent < len(names) else signal.SIGKILL)
        self.sent += 1

    def _wait(self, started: float) -> "tuple[int, int, Any]":
        assert self.child is not None
        while True:
            found = os.wait4(self.child.pid, os.WNOHANG)
            if found[0]:
                self.child.returncode = found[1]
                return found
            now = time.time()
            warn_s, limit = self.spec.get("warn_s"), self.spec["time_s"]
            if warn_s is not None and not self.warned and now - started >= warn_s:
                self.warned = True
                os.kill(self.child.pid, signal.SIGUSR1)
            if limit is not None and self.asked is None and now - started >= limit:
                self.why = "time"
                self._asked(signal.SIGTERM, None)
            if self.spec["memory_kb"] and self._resident_kb() > self.spec["memory_kb"]:
                self.why = "memory"
                self._signal(signal.SIGKILL)
            if self.asked is not None and now - self.asked >= self.sent * self.spec["kill_wait_s"]:
                self._next_signal()
            wait = STEP_S if self.asked is not None or self.spec["memory_kb"] else 0.5
            if limit is not None and self.asked is None:
                wait = max(0.0, min(wait, started + limit - now))
            if warn_s is not None and not self.warned:
                wait = max(0.0, min(wait, started + warn_s - now))
            signal.sigtimedwait([signal.SIGCHLD], wait) if wait else None

    def _processes(self) -> "list[int]":
        """The pids of all processes in the job's session, or below it."""
        assert self.child is not None
        out, parents = [], {}
        for name in filter(str.isdigit, os.listdir("/proc")):
            try:
                if os.getsid(int(name)) == self.child.pid:
                    out.append(int(name))
                with open(f"/proc/{name}/stat", "rb") as file:
                    parents[int(name)] = int(file.read().rpartition(b")")[2].split()[1])
            except OSError:
                continue
        return [pid for pid in parents if self._is_below(pid, parents)] if self.spec["everywhere"] else out

    def _is_below(self, pid: int, parents: "dict[int, int]") -> bool:
        assert self.child is not None
        while pid > 1 and pid != self.child.pid:
            pid = parents.get(pid, 0)
        return pid == self.child.pid

    def _resident_kb(self) -> int:
        pages = 0
        for pid in self._processes():
            try:
                with open(f"/proc/{pid}/statm", "rb") as file:
                    pages += int(file.read().split()[1])
            except OSError:
                continue
        self.peak_kb = max(self.peak_kb, pages * 4)
        return pages * 4

    def _signal(self, number: int) -> None:
        for pid in self._processes():
            try:
                os.kill(pid, number)
            except OSError:
                continue

    def _write(self, facts: "dict[str, Any]") -> None:
        path = self.spec["end"]
        with open(path + ".new", "w") as file:
            json.dump({**facts, "ended": time.time()}, file)
        os.rename(path + ".new", path)


if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
    with open(sys.argv[1]) as opened:
        Keeper(json.load(opened)).run()
