"""A private real Slurm on this machine: controller, accounting, four nodes; and what a test does to it."""

import contextlib
import os
import signal
import socket
import subprocess
import time

from cluster.guard import send, ticks
from cluster.hosts import Hosts
from cluster.private import PrivateCluster, free_ports, wait_for

PROGRAMS = ("slurmctld", "slurmd", "slurmdbd", "munged", "mariadbd", "mariadb-install-db", "sbatch", "sacct")
LIVE = ("PENDING", "RUNNING", "SUSPENDED", "COMPLETING", "CONFIGURING", "STOPPED", "REQUEUED")

SLURM_CONF = """\
ClusterName=testcluster
SlurmctldHost={host}({address})
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
# A requeued job waits until its credential has expired, and a second: by default two minutes; 5 s is the least.
AuthInfo=socket={dir}/munge/socket,cred_expire=5
{binding}
StateSaveLocation={dir}/state
SlurmdSpoolDir={dir}/spool/%n
SlurmctldPidFile={dir}/run/slurmctld.pid
SlurmdPidFile={dir}/run/slurmd-%n.pid
SlurmctldLogFile={dir}/log/slurmctld.log
SlurmdLogFile={dir}/log/slurmd-%n.log
PlugStackConfig=/dev/null
MpiDefault=none
MailProg=/bin/true
ReturnToService=2
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
DefMemPerCPU=100
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,bf_interval=1,sched_min_interval=0,batch_sched_delay=0,defer_batch
PriorityType=priority/basic
{tracking}
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=task=1
SlurmctldTimeout=10
SlurmdTimeout={slurmd_timeout}
InactiveLimit=0
KillWait=2
OverTimeLimit=0
MinJobAge={min_job_age}
MessageTimeout=10
TCPTimeout=2
UnkillableStepTimeout=30
CompleteWait=0
JobRequeue=1
MaxArraySize=1001
MaxJobCount=20000
SlurmctldDebug=info
SlurmdDebug=info
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort={dbd_port}
# The socket a second time: without it sacctmgr tries the system's own munge for minutes.
AccountingStoragePass={dir}/munge/socket
AccountingStorageEnforce=associations
AccountingStoreFlags=job_comment
JobCompType=jobcomp/none
EnforcePartLimits=ALL
NodeName={prefix}[1-{count}] {addresses} {size} State=UNKNOWN
{large}
{partitions}
"""
PARTITIONS = """\
PartitionName=main Nodes={prefix}[1-{count}] Default=YES MaxTime=INFINITE DefaultTime=60 State=UP
PartitionName=short Nodes={prefix}[1-{count}] MaxTime=10 DefaultTime=5 State=UP
"""
SHORT_AND_LONG = """\
PartitionName=short Nodes={prefix}[1-{count}] Default=YES MaxTime=60 DefaultTime=5 State=UP
PartitionName=main Nodes={prefix}[1-{count}] MaxTime=10-0 DefaultTime=5 State=UP
"""
"""The default is the shorter one."""
CGROUP_CONF = """\
CgroupMountpoint=/sys/fs/cgroup
CgroupAutomount=no
ConstrainRAMSpace=yes
ConstrainSwapSpace=no
ConstrainCores=no
ConstrainDevices=no
AllowedRAMSpace=100
MinRAMSpace=8
"""
SLURMDBD_CONF = """\
AuthType=auth/munge
AuthInfo=socket={dir}/munge/socket
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
DbdHost={host}
DbdAddr=127.0.0.1
DbdPort={dbd_port}
SlurmUser=root
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={sql_port}
StorageUser=slurm
StoragePass=slurm
StorageLoc=slurm_acct_db
LogFile={dir}/log/slurmdbd.log
PidFile={dir}/run/slurmdbd.pid
CommitDelay=1
"""


def _large(prefix, host, port, cpus, memory_mb):
    size = f"CPUs={2 * cpus} Sockets=1 CoresPerSocket={2 * cpus} ThreadsPerCore=1 RealMemory={3 * memory_mb}"
    return (
        "# In no partition, and not started, unless a test wants a larger one.\n"
        f"NodeName={prefix}large NodeHostname={host} NodeAddr=127.0.0.1 Port={port} {size} State=UNKNOWN"
    )


class RealSlurm(PrivateCluster):
    """Slurm with `count` nodes of `cpus` pretend cores each. `environment` is what its commands need (SLURM_CONF).

    `partitions` are lines of slurm.conf. With `hosts` each node is a host of its own name and network; else all are
    this machine.
    """

    def __init__(
        self, count=4, cpus=4, memory_mb=2000, min_job_age=300, slurmd_timeout=10, hosts=False, partitions=PARTITIONS
    ):
        super().__init__("slurm")
        # Control groups are named after the nodes: two clusters on one machine must not share them.
        self.prefix = f"n{os.getpid()}{'h' if hosts else 'x'}"  # names of cgroups: two clusters must not share them
        self.nodes = [f"{self.prefix}{number}" for number in range(1, count + 1)]
        self._dead = set()
        self.has_oom = os.access("/sys/fs/cgroup/memory", os.W_OK) and os.access("/sys/fs/cgroup/freezer", os.W_OK)
        """Whether a job over its memory is killed by the kernel (OUT_OF_MEMORY); needs control groups v1 here."""
        self.environment["SLURM_CONF"] = self.path("slurm.conf")
        port = free_ports(11 + count)
        self.hosts = Hosts(self.directory, self.prefix, count) if hosts else None
        binding = "# Bind to 127.0.0.1 only.\nCommunicationParameters=NoInAddrAny,NoCtldInAddrAny"
        addresses = f"NodeHostname={{host}} NodeAddr=127.0.0.1 Port=[{port + 10}-{port + 9 + count}]"
        if self.hosts is not None:
            binding = ""
            net = self.hosts.own_address.rpartition(".")[0]
            addresses = f"NodeAddr={net}.[1-{count}] Port={port + 10}"
        host = socket.gethostname().partition(".")[0]
        self._facts = {
            "binding": binding,
            "partitions": partitions.format(prefix=self.prefix, count=count),
            "address": "127.0.0.1" if self.hosts is None else self.hosts.own_address,
            "addresses": addresses.format(host=host),
            "dir": self.directory,
            "host": host,
            "port": port,
            "dbd_port": port + 1,
            "sql_port": port + 2,
            "large": "" if self.hosts is not None else _large(self.prefix, host, port + 10 + count, cpus, memory_mb),
            "count": count,
            "prefix": self.prefix,
            "size": f"CPUs={cpus} Sockets=1 CoresPerSocket={cpus} ThreadsPerCore=1 RealMemory={memory_mb}",
            "min_job_age": min_job_age,
            "slurmd_timeout": slurmd_timeout,
            "tracking": "ProctrackType=proctrack/cgroup\nTaskPlugin=task/cgroup"
            if self.has_oom
            else "ProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\nJobAcctGatherParams=OverMemoryKill",
        }

    def start(self):
        """Bring it up: about five seconds."""
        for name in ("munge", "state", "run", "spool", "mysql"):
            os.mkdir(self.path(name))
        if self.hosts is not None:
            self.hosts.start(self._facts["host"])
        self._start_munge()
        database = subprocess.Popen(
            self._mariadb_install(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=self.environment
        )
        self.write("cgroups", f"/sys/fs/cgroup/*/slurm_{self.prefix}[0-9]*\n")
        self.write("slurm.conf", SLURM_CONF.format(**self._facts))
        if self.has_oom:
            self.write("cgroup.conf", CGROUP_CONF)
        self.write("slurmdbd.conf", SLURMDBD_CONF.format(**self._facts), 0o600)
        database.wait(280)
        self._start_accounting()
        self.start_controller()
        for node in self.nodes:
            os.mkdir(self.path(f"spool/{node}"))
            self._start_daemon(node)
        self.wait_nodes("idle", len(self.nodes))
        return self

    def _start_daemon(self, node):
        where = () if self.hosts is None else self.hosts.on(node)
        self.spawn(f"slurmd-{node}", *where, "slurmd", "-D", "-N", node)

    def _start_munge(self):
        with open(self.path("munge/key"), "wb") as file:
            file.write(os.urandom(128))
        os.chmod(self.path("munge/key"), 0o600)
        place = self.path("munge")
        self.spawn(
            *("munged", "munged", "--foreground", "--force", f"--key-file={place}/key", f"--socket={place}/socket"),
            *(f"--pid-file={place}/pid", f"--log-file={self.path('log/munged.log')}", f"--seed-file={place}/seed"),
            "--num-threads=2",
        )
        wait_for("munged", lambda: self.answers("munge", "-n", "-S", f"{place}/socket"))

    def _mariadb_install(self):
        subprocess.run(["chown", "mysql:", self.path("mysql")], check=True)
        return [
            *("mariadb-install-db", "--no-defaults", "--user=mysql", f"--datadir={self.path('mysql')}"),
            *("--auth-root-authentication-method=socket", "--auth-root-socket-user=root", "--skip-test-db"),
            *("--skip-name-resolve", "--innodb-log-file-size=16M"),
        ]

    def _start_accounting(self):
        place, sock = self.path("mysql"), self.path("mysql/sock")
        self.spawn(
            *("mariadbd", "mariadbd", "--no-defaults", "--user=mysql", f"--datadir={place}", f"--socket={sock}"),
            *("--bind-address=127.0.0.1", f"--port={self._facts['sql_port']}", f"--pid-file={place}/pid"),
            *("--skip-log-bin", "--skip-name-resolve", "--innodb-buffer-pool-size=64M", "--innodb-log-file-size=16M"),
            *("--innodb-flush-log-at-trx-commit=0", "--innodb-lock-wait-timeout=900", "--performance-schema=OFF"),
        )
        wait_for("mariadbd", lambda: self.answers("mariadb-admin", "--no-defaults", "-S", sock, "ping"))
        self.run(
            *("mariadb", "--no-defaults", "-S", sock, "-e"),
            "create database slurm_acct_db; create user slurm@'127.0.0.1' identified by 'slurm';"
            "grant all on slurm_acct_db.* to slurm@'127.0.0.1';",
        )
        self.spawn("slurmdbd", "slurmdbd", "-D")
        wait_for("slurmdbd", lambda: self.answers("sacctmgr", "-n", "-i", "list", "cluster"))
        self.run("sacctmgr", "-i", "add", "cluster", "testcluster")
        self.run("sacctmgr", "-i", "add", "account", "default", "Cluster=testcluster")
        self.run("sacctmgr", "-i", "add", "user", "root,nobody", "Account=default")

    # ---- what a test does ------------------------------------------------------------------------------------------

    def sbatch(self, script, *options, check=True, **more):
        """Submit a script (its body; a shell line is put before it); returns the job id."""
        words = ("sbatch", "--parsable", "--output=/dev/null", "--chdir=/", "--mem=50", *options)
        return self.run(*words, stdin=f"#!/bin/sh\n{script}\n", check=check, **more).stdout.strip()

    def state(self, job):
        """The state in words, as the controller has it; None once it is purged."""
        done = self.run("scontrol", "-o", "show", "job", job, check=False)
        lines = done.stdout.splitlines()
        return lines[0].partition(" JobState=")[2].split()[0] if done.returncode == 0 and lines else None

    def show(self, job):
        """What the controller tells about a job, as a dict."""
        words = self.run("scontrol", "-o", "show", "job", job).stdout.splitlines()[0].split()
        return dict(word.partition("=")[::2] for word in words if "=" in word)

    def wait_state(self, job, *states, seconds=120.0):
        """Until it is in one of these states; returns which."""
        return wait_for(
            f"job {job} to be {' or '.join(states)} (it is {self.state(job)})",
            lambda: (now := self.state(job)) in states and now,
            seconds,
            0.1,
        )

    def wait_purged(self, job, seconds=120.0):
        """Until the controller has forgotten it."""
        wait_for(f"job {job} to be purged", lambda: self.state(job) is None, seconds, 0.2)

    def wait_over(self, job, seconds=120.0):
        """Until no element of it is live; returns the set of their last states."""

        def over():
            done = self.run("squeue", "-h", "-r", "-t", "all", "-j", job, "-o", "%T", check=False)
            states = set(done.stdout.split())
            return not states & set(LIVE) and (states or {"purged"})

        return wait_for(f"job {job} to be over", over, seconds, 0.1)

    def sacct(self, job, fields="JobID,State,ExitCode", until=lambda rows: rows, seconds=120.0):
        """Rows of the accounting, asked again until they please: it lags."""

        def ask():
            done = self.run("sacct", "-n", "-P", "-X", "-j", job, "-o", fields)
            rows = [line.split("|") for line in done.stdout.splitlines()]
            return until(rows) and rows

        return wait_for(f"sacct of {job}", ask, seconds, 0.2)

    def wait_nodes(self, state, count=1, node=None, seconds=120.0):
        """Until so many nodes (or that node) are in a state as sinfo names it."""
        which = ("-n", node) if node else ()

        def many():
            words = self.run("sinfo", "-h", "-N", "-p", "main", *which, "-o", "%t", check=False, timeout=20).stdout
            return words.split().count(state) >= count

        wait_for(f"{count} nodes {state}", many, seconds, 0.1)

    def kill_node(self, node):
        """As if its power failed: the daemon and every process of its jobs, at once."""
        child = self.kill(f"slurmd-{node}", signal.SIGKILL)
        child.wait()
        self._dead.add(node)
        while pids := self.processes(node):
            for pid in pids:
                send(pid, signal.SIGKILL)
            time.sleep(0.01)

    def start_node(self, node):
        """Bring it back."""
        self._dead.discard(node)
        self._start_daemon(node)

    @contextlib.contextmanager
    def long_partition(self, name="days"):
        """A second kind of partition for a while: ten days, two usual nodes and one of twice the cores."""
        large = f"{self.prefix}large"
        os.makedirs(self.path(f"spool/{large}"), exist_ok=True)
        self.spawn(f"slurmd-{large}", "slurmd", "-D", "-N", large)
        nodes = ",".join([*self.nodes[:2], large])
        self.run("scontrol", "create", f"PartitionName={name}", f"Nodes={nodes}", "MaxTime=10-00:00:00", "State=UP")
        try:
            wait_for(
                f"{large} to be idle",
                lambda: self.run("sinfo", "-h", "-N", "-n", large, "-p", name, "-o", "%t").stdout.split() == ["idle"],
            )
            yield large
        finally:
            self.cancel_all()
            self.run("scontrol", "delete", f"PartitionName={name}")
            self.kill(f"slurmd-{large}", signal.SIGTERM).wait(20)

    def declare_node_down(self, node, reason="test"):
        """What an administrator does: its jobs are NODE_FAIL at once; the node, alive, serves again."""
        self.run("scontrol", "update", f"nodename={node}", "state=down", f"reason={reason}")

    def processes(self, node):
        """Job processes of a node: its steps carry its name, the rest is in their control groups or environment."""
        found = []
        for name in os.listdir("/proc"):
            if not name.isdigit():
                continue
            try:
                with open(f"/proc/{name}/environ", "rb") as file:
                    words = file.read().split(b"\0")
                with open(f"/proc/{name}/cgroup") as file:
                    grouped = f"/slurm_{node}/" in file.read()
            except OSError:
                continue
            conf = f"SLURM_CONF={self.path('slurm.conf')}".encode()
            if ticks(name) and (grouped or (conf in words and f"SLURMD_NODENAME={node}".encode() in words)):
                found.append(int(name))
        return found

    def start_controller(self):
        self.spawn("slurmctld", "slurmctld", "-D")
        wait_for("slurmctld", lambda: self.answers("scontrol", "ping") and self._is_up(), 30)

    def _is_up(self):
        return " is UP" in self.run("scontrol", "ping", check=False).stdout

    def stop_controller(self, number=signal.SIGTERM):
        """End it (SIGKILL: as if it crashed).

        It saves its state every few seconds only: a job that was submitted right before a crash is lost, and its id is
        given again. So a crash waits for that.
        """
        if number == signal.SIGKILL:
            began = time.time()
            while time.time() < began + 6 and os.stat(self.path("state/job_state")).st_mtime < began:
                time.sleep(0.05)
        self.kill("slurmctld", number).wait(20)

    def restart_controller(self, number=signal.SIGTERM):
        self.stop_controller(number)
        self.start_controller()

    def hang_controller(self):
        """It holds connections and answers nothing."""
        self.kill("slurmctld", signal.SIGSTOP)

    def unhang_controller(self):
        self.kill("slurmctld", signal.SIGCONT)

    def set_min_job_age(self, seconds):
        """How long finished jobs stay in squeue and scontrol."""
        self._facts["min_job_age"] = seconds
        self.write("slurm.conf", SLURM_CONF.format(**self._facts))
        self.run("scontrol", "reconfigure")

    def end_time(self, job, seconds):
        """Let its time limit be over so soon; the controller looks at limits every 30 s."""
        self.run("scontrol", "update", f"jobid={job}", f"EndTime=now+{seconds}")

    def suspend(self, job):
        self.run("scontrol", "suspend", job)

    def resume(self, job):
        self.run("scontrol", "resume", job)

    def requeue(self, job):
        self.run("scontrol", "requeue", job)

    def hold(self, job):
        self.run("scontrol", "hold", job)

    def release(self, job):
        self.run("scontrol", "release", job)

    def cancel(self, *jobs):
        """As a third party would: the administrator's scancel."""
        self.run("scancel", *jobs)

    def cancel_all(self):
        """Between tests: nothing of the last one goes on."""
        for node in list(self._dead):
            self.start_node(node)
        self.run("scancel", "--user=root", check=False)
        self.run("scancel", "--user=nobody", check=False)
        deadline = time.monotonic() + 60
        while self.run("squeue", "-h", "-o", "%i", check=False).stdout.split() and time.monotonic() < deadline:
            time.sleep(0.1)
