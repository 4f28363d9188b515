"""One job without a manager: what a cluster job runs when its node cannot call back.

`DIR/lease.json` is a lease message of docs/protocol.md with one job. `DIR/started.json` appears when it starts and
`DIR/report.json` when it is over; both are written whole or not at all. An attempt is run at most once, however often
the cluster starts us for it: a claim is laid first, and who finds it leaves `DIR/restarted.json` and runs nothing.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
from typing import Any, Dict, Optional

from rota.runner import host, measure
from rota.runner.agent import STOPS, WARNINGS
from rota.runner.environment import inherited
from rota.runner.guard import Guard
from rota.runner.jobs import Jobs
from rota.runner.lease import Lease, ProtocolError, read_leases
from rota.runner.plan import Plans
from rota.runner.protocol import Runner
from rota.runner.segments import Segments
from rota.runner.spool import log, sync_directory, write_json

__all__ = ["run"]

BAD_LEASE = 70
BAD_DIRECTORY = 73
MEANT_OTHERWISE = (99, 100)  # Grid Engine would run the job again, or hold it
WRITE_FOR_S = 60.0
NEVER = float("inf")
clock = time.monotonic


def run(directory: str, runner_id: Optional[str], until_s: Optional[float]) -> int:
    """Run the job of this directory; returns the exit status: the job's own."""
    try:
        lease = _read_lease(os.path.join(directory, "lease.json"))
    except (OSError, ValueError, RecursionError) as error:
        log("no job to run in %s: %s" % (directory, error))
        return BAD_LEASE
    try:
        claim = _claim(directory, lease)
        if claim is None:
            write_json(directory, "restarted.json", {**_about(lease), "at": time.time()})
            log("attempt %d of job %d.%d was started before: not run again" % (lease.attempt, lease.batch, lease.index))
            return 0
        try:
            direct = Direct(directory, lease, runner_id or os.urandom(8).hex(), until_s)
        except OSError:
            os.unlink(claim)  # nothing was run
            raise
    except OSError as error:
        log("cannot work in %s: %s" % (directory, error))
        return BAD_DIRECTORY
    return direct.run()


def _read_lease(path: str) -> Lease:
    with open(path, encoding="utf-8") as file:
        found = os.fstat(file.fileno())
        if found.st_uid != os.getuid() or found.st_mode & 0o022:
            raise ProtocolError("lease.json is not ours, or can be written by others: its job is not run")
        message = json.load(file)
    if not isinstance(message, dict) or len(message.get("jobs") or ()) != 1:
        raise ProtocolError("lease.json must hold a lease of one job")
    return read_leases(message["jobs"], message.get("specs") or {}, message.get("envs") or {}, NEVER)[0]


def _claim(directory: str, lease: Lease) -> Optional[str]:
    """The file that makes this attempt ours; None if it, or a later one, was started or is over."""
    for name in ("started.json", "report.json"):
        try:
            with open(os.path.join(directory, name), encoding="utf-8") as file:
                told = json.load(file)
            rows = told["ended"] + told["disclaimed"] if name == "report.json" else [told["job"]]
            started = any(row[:2] == [lease.batch, lease.index] and row[2] >= lease.attempt for row in rows)
        except (FileNotFoundError, ValueError, KeyError, IndexError, TypeError, RecursionError):
            continue
        if started:
            return None
    path = os.path.join(directory, "claim-%d.%d.%d" % lease.key)
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        return None
    sync_directory(directory)
    return path


def _about(lease: Lease) -> Dict[str, Any]:
    return {"job": list(lease.key), "host": host.name(), "runner_pid": os.getpid()}


class Direct:
    """A runner of one job, from its start to its report."""

    def __init__(self, directory: str, lease: Lease, runner_id: str, until_s: Optional[float]) -> None:
        self.directory = directory
        self.lease = lease
        self.runner = Runner(runner_id, {})
        self.runner.slots = {lease.slot: 1}
        self._guard = Guard(runner_id)
        self._wake, write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, *STOPS, *WARNINGS):
            signal.signal(number, lambda *_: None)
        self.jobs = Jobs(self.runner, Segments(directory), Plans(inherited(os.environb), runner_id))
        self.jobs.began = clock()
        self.jobs.until = NEVER if until_s is None else self.jobs.began + until_s
        self.jobs.children.adopt_orphans()
        self._stopping = False

    def run(self) -> int:
        """Start the job, see it through, report; returns the exit status."""
        self.runner.hold(self.lease)
        self.jobs.start(self.runner.startable(clock()), clock())
        self.jobs.leave_directory()
        if self.jobs.busy:
            self._tell_started()
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        while self.jobs.busy:
            pause = max(0.0, min(60.0, self.jobs.next_tick - clock()))
            if poll.poll(pause * 1000):
                self._signalled(os.read(self._wake, 4096))
            self.jobs.reap(clock())
            self.jobs.tick(clock())
        self.jobs.segments.close()
        report = self.runner.unsent()
        self._report(report)
        self._guard.dismiss()
        return _status(report["ended"][0])

    def _signalled(self, numbers: bytes) -> None:
        now = clock()
        for number in STOPS:
            if number in numbers:
                by = "its site's driver" if number == signal.SIGURG else "the batch system"
                note = "killed by %s (%s)" % (by, signal.Signals(number).name)
                log(note)
                self.jobs.kill_all(0.0 if self._stopping else None, "runner-stopped", now, note)
                self._stopping = True
                return
        for number in WARNINGS:
            if number in numbers:
                note = "warned by the batch system (%s)" % signal.Signals(number).name
                log(note)
                self.jobs.warn_all(note, now)

    def _tell_started(self) -> None:
        lease = self.lease
        told = _about(lease)
        told.update(
            runner=self.runner.runner_id,
            pid=lease.pid,
            ticks=measure.start_of(lease.pid),
            started=lease.wall,
            boot=host.read_text("/proc/sys/kernel/random/boot_id").strip(),
            scratch=lease.scratch,
        )
        try:
            write_json(self.directory, "started.json", told)
        except OSError as error:  # the job runs; the report will say it all
            log("cannot write started.json: %s" % error)

    def _report(self, report: Dict[str, Any]) -> None:
        report["host"] = host.name()
        until = clock() + WRITE_FOR_S
        while True:
            try:
                write_json(self.directory, "report.json", report)
                return
            except OSError as error:
                if clock() >= until:
                    log("cannot write report.json: %s; it would have said:" % error)
                    sys.stderr.write(json.dumps(report) + "\n")
                    return
            time.sleep(1.0)


def _status(row: Any) -> int:
    code, number = row[3], row[4]
    if number is not None:
        return 128 + int(number)
    if code is None or code in MEANT_OTHERWISE:
        return 1
    return int(code)
