"""A private real Grid Engine on this machine: qmaster and one host with four slots; and what a test does to it.

Grid Engine knows hosts by name, and does not work where a machine's own name leads to 127.0.0.1 in odd ways. So its
daemons and commands see a host name and an /etc/hosts of their own (namespaces for names and mounts; the network is the
machine's, so that jobs can call back).
"""

import os
import re
import shutil
import signal
import subprocess
import time

from cluster.guard import send, ticks
from cluster.private import PrivateCluster, free_ports, wait_for

LIBRARY = "/usr/lib/gridengine"
SHARE = "/usr/share/gridengine"
PROGRAMS = ("sge_qmaster", "sge_execd", "qsub", "qstat", "qacct", "qdel", "qconf", "nsenter", "unshare")
COMMANDS = ("qsub", "qstat", "qdel", "qhold", "qrls", "qacct", "qconf", "qhost", "qmod", "qalter", "qselect")
HOST = "ge1"
QUEUE = {
    "qname": "all.q", "hostlist": "@allhosts", "slots": "4", "pe_list": "smp", "load_thresholds": "NONE",
    "shell": "/bin/sh", "rerun": "FALSE",
}  # fmt: skip
ENVIRONMENT = """\
pe_name            smp
slots              999
user_lists         NONE
xuser_lists        NONE
start_proc_args    NONE
stop_proc_args     NONE
allocation_rule    $pe_slots
control_slaves     TRUE
job_is_first_task  FALSE
urgency_slots      min
accounting_summary TRUE
qsort_args         NONE
"""


def edited(text, changes):
    """A configuration with other values for some of its lines."""
    for name, value in changes.items():
        text = re.sub(rf"(?m)^{name}\s.*(?:\\\n.*)*$", f"{name} {value}", text)
    return text


class RealGridEngine(PrivateCluster):
    """Its commands are in `bin`; `environment` has them first in PATH."""

    def __init__(self):
        super().__init__("sge")
        port = free_ports(2)
        self.environment |= {
            "SGE_ROOT": self.directory,
            "SGE_CELL": "default",
            "SGE_QMASTER_PORT": str(port),
            "SGE_EXECD_PORT": str(port + 1),
            "SGE_ARCH": "lx-amd64",
        }
        self.bin = self.path("cmd")
        self.client_path = f"{self.bin}:{os.environ.get('PATH', '')}"

    def start(self):
        """Bring it up: about five seconds."""
        self._lay_out()
        self._namespaces()
        self._spool()
        self.start_master()
        self._configure()
        self.start_host()
        return self

    def _lay_out(self):
        for name in ("default/common", "lib", "utilbin", "spool/qmaster", "spool/execd", "spool/db", "cmd", "bin"):
            os.makedirs(self.path(name))
        os.symlink(LIBRARY, self.path("bin/lx-amd64"))
        os.symlink(f"{SHARE}/util", self.path("util"))
        for name in ("lib", "utilbin"):
            for each in os.listdir(f"/var/lib/gridengine/{name}"):
                os.symlink(os.path.realpath(f"/var/lib/gridengine/{name}/{each}"), self.path(f"{name}/{each}"))
        self.write("default/common/act_qmaster", f"{HOST}\n")
        self.write("default/common/cluster_name", "rota\n")
        self.write("default/common/host_aliases", "")
        with open(f"{SHARE}/default-bootstrap") as file:
            text = file.read()
        text = text.replace("/var/spool/gridengine/spooldb", self.path("spool/db"))
        text = text.replace("/var/spool/gridengine/qmaster", self.path("spool/qmaster"))
        self.write("default/common/bootstrap", text)
        self.write("hosts", f"127.0.0.1 {HOST} localhost\n")
        subprocess.run(["chown", "-R", "sgeadmin:", self.path("spool"), self.path("default")], check=True)

    def _namespaces(self):
        """A process that holds them; everything else enters them by its pid."""
        setup = f"hostname {HOST}; mount --bind {self.path('hosts')} /etc/hosts; echo ready; exec sleep 1000000"
        self._holder = self.spawn("names", "unshare", "--uts", "--mount", "sh", "-c", setup)
        wait_for("namespaces", lambda: os.path.getsize(self.path("log/names.out")))
        names = ("SGE_ROOT", "SGE_CELL", "SGE_QMASTER_PORT", "SGE_EXECD_PORT", "SGE_ARCH")
        exports = " ".join(f"{name}={self.environment[name]}" for name in names)
        for name in COMMANDS:
            inside = f'nsenter --target {self._holder} --uts --mount --wd="$PWD"'
            self.write(f"cmd/{name}", f'#!/bin/sh\nexport {exports}\nexec {inside} {LIBRARY}/{name} "$@"\n', 0o755)
        self.environment["PATH"] = self.client_path

    def inside(self, *argv, **more):
        return self.run("nsenter", "--target", str(self._holder), "--uts", "--mount", "--wd=/", *argv, **more)

    def _spool(self):
        with open(f"{SHARE}/default-configuration") as file:
            text = file.read().replace("/var/spool/gridengine/execd", self.path("spool/execd"))
        text = edited(
            text,
            {
                "min_uid": "0", "min_gid": "0", "load_report_time": "00:00:02", "max_unheard": "00:00:08",
                "reschedule_unknown": "00:00:05", "mailer": "/bin/true",
            },
        )  # fmt: skip
        text = text.replace("flush_time=00:00:15", "flush_time=00:00:01 accounting_flush_time=00:00:00")
        conf = self.write("conf", text)
        resources = f"{SHARE}/util/resources"
        steps = [
            f"{LIBRARY}/spoolinit berkeleydb libspoolb {self.path('spool/db')} init",
            f"{LIBRARY}/spooldefaults configuration {conf}",
            f"{LIBRARY}/spooldefaults complexes {resources}/centry",
            f"{LIBRARY}/spooldefaults usersets {resources}/usersets",
            f"{LIBRARY}/spooldefaults managers root sgeadmin",
        ]
        self.inside("setpriv", "--reuid=sgeadmin", "--regid=sgeadmin", "--clear-groups", "sh", "-c", " && ".join(steps))

    def _daemon(self, name):
        """Start one that goes into the background by itself, and find its pid."""
        self.inside(f"{LIBRARY}/{name}")
        places = {"sge_qmaster": "spool/qmaster/qmaster.pid", "sge_execd": f"spool/execd/{HOST}/execd.pid"}

        def pid():
            try:
                with open(self.path(places[name])) as file:
                    found = int(file.read())
            except (OSError, ValueError):
                return None
            return found if ticks(found) else None

        found = wait_for(f"the pid of {name}", pid)
        self.remember(name, found)
        return found

    def start_master(self):
        self._master = self._daemon("sge_qmaster")
        wait_for("qmaster", lambda: self.answers("qconf", "-sh"))

    def _configure(self):
        conf = self.run
        conf("qconf", "-ah", HOST, check=False)
        conf("qconf", "-as", HOST)
        conf("qconf", "-Ahgrp", self.write("hostgroup", f"group_name @allhosts\nhostlist {HOST}\n"))
        conf("qconf", "-Ap", self.write("environment", ENVIRONMENT))
        conf("qconf", "-Aq", self.write("queue", edited(conf("qconf", "-sq").stdout, QUEUE)))
        quick = {
            "schedule_interval": "0:0:1", "flush_submit_sec": "1", "flush_finish_sec": "1",
            "job_load_adjustments": "NONE",
        }  # fmt: skip
        conf("qconf", "-Msconf", self.write("scheduler", edited(conf("qconf", "-ssconf").stdout, quick)))

    def start_host(self):
        self._execd = self._daemon("sge_execd")
        wait_for("the execution host", lambda: re.search(r"lx-amd64 *$", self.run("qstat", "-f").stdout, re.M), 40)

    # ---- what a test does ------------------------------------------------------------------------------------------

    def qsub(self, script, *options):
        """Submit a script; returns the job number (without the tasks of an array)."""
        words = ("qsub", "-terse", "-o", "/dev/null", "-e", "/dev/null", *options)
        return self.run(*words, stdin=f"#!/bin/sh\n{script}\n").stdout.strip().partition(".")[0]

    def state(self, job):
        """The letters of its state; None if it is not listed (any more)."""
        text = self.run("qstat", "-xml", "-u", "*").stdout
        found = re.search(rf"<JB_job_number>{job}</JB_job_number>.*?<state>(\w+)</state>", text, re.S)
        return found and found[1]

    def wait_state(self, job, *states, seconds=120.0):
        return wait_for(f"job {job} to be {states}", lambda: (now := self.state(job)) in states and now, seconds, 0.1)

    def wait_over(self, job, seconds=120.0):
        wait_for(f"job {job} to be over", lambda: self.state(job) is None, seconds, 0.1)

    def qacct(self, job, count=1, seconds=120.0):
        """Its records, each a dict; asked again until there are so many."""

        def ask():
            done = self.run("qacct", "-j", job, check=False)
            records = [
                dict(line.split(None, 1) for line in part.strip().splitlines() if " " in line)
                for part in done.stdout.split("=" * 62)[1:]
            ]
            return len(records) >= count and records

        return wait_for(f"the accounting of {job}", ask, seconds, 0.2)

    def cancel(self, *jobs):
        self.run("qdel", *jobs)

    def suspend(self, job):
        self.run("qmod", "-sj", job)

    def resume(self, job):
        self.run("qmod", "-usj", job)

    def requeue(self, job):
        self.run("qmod", "-rj", job)

    def kill_host(self):
        """As if its power failed: the daemon, its shepherds and their jobs."""
        children = [self._execd, *self._below(self._execd)]
        for pid in children:
            send(pid, signal.SIGKILL)
        wait_for("its processes to end", lambda: not any(ticks(pid) for pid in children))

    def _below(self, parent):
        parents = {}
        for name in os.listdir("/proc"):
            if name.isdigit():
                try:
                    with open(f"/proc/{name}/stat", "rb") as file:
                        parents[int(name)] = int(file.read().rpartition(b")")[2].split()[1])
                except OSError:
                    continue
        found, edge = [], [parent]
        while edge:
            edge = [pid for pid, above in parents.items() if above in edge]
            found += edge
        return found

    def stop_master(self, number=signal.SIGTERM):
        send(self._master, number)
        wait_for("qmaster to end", lambda: not ticks(self._master), 30)

    def restart_master(self, number=signal.SIGTERM):
        self.stop_master(number)
        lock = self.path("spool/qmaster/lock")
        if os.path.exists(lock):
            os.remove(lock)
        self.start_master()

    def cancel_all(self):
        """Between tests: nothing of the last one goes on."""
        self.run("qdel", "-u", "*", check=False)
        deadline = time.monotonic() + 60
        while self.run("qstat", "-u", "*", check=False).stdout and time.monotonic() < deadline:
            time.sleep(0.1)

    def logs(self, lines=15):
        more = self.path("spool/qmaster/messages")
        if os.path.exists(more):
            shutil.copy(more, self.path("log/qmaster-messages.log"))
        return super().logs(lines)
