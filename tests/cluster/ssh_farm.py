"""Pretend hosts with a real sshd and a disk of their own each: what a farm is made of."""

import os
import signal
import subprocess
import time

from cluster.guard import ticks
from cluster.hosts import Hosts
from cluster.private import PrivateCluster, wait_for

PROGRAMS = ("ip", "ssh", "sshd", "ssh-keygen", "unshare", "nsenter")
SSHD = "/usr/sbin/sshd"


class SshFarm(PrivateCluster):
    """Hosts `PREFIX1` …, reached by ssh with the words `ssh_options`; `disk` is each host's own (a tmpfs)."""

    def __init__(self, count=5, prefix="rf", disk="64m"):
        super().__init__("farm")
        self.hosts = Hosts(self.directory, f"{prefix}{os.getpid() % 1000}n", count)
        self.names = self.hosts.names
        self.disk = self.path("disk")
        self._size = disk
        self.config = self.path("ssh_config")
        self.ssh_options = ["-F", self.config]

    def start(self):
        os.mkdir(self.disk)
        os.makedirs("/run/sshd", exist_ok=True)
        self.hosts.start(os.uname().nodename)
        for name in ("id", "hostkey"):
            self.run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self.path(name))
        with open(self.path("id.pub")) as file:
            self.write("authorized_keys", file.read(), 0o600)
        lines = [f"Host {name}\n  HostName {address}\n" for name, address in self.hosts.addresses.items()]
        self.write(
            "ssh_config",
            "".join(lines)
            + f"Host *\n  IdentityFile {self.path('id')}\n  IdentitiesOnly yes\n  StrictHostKeyChecking no\n"
            f"  UserKnownHostsFile /dev/null\n  User root\n  GlobalKnownHostsFile /dev/null\n",
        )
        for name in self.names:
            self.boot(name)
        for name in self.names:
            self.wait(name)

    def wait(self, name):
        """Wait until a host answers."""

        def answers():
            return self.on(name, "true", check=False, timeout=60).returncode == 0

        wait_for(f"sshd on {name}", answers)

    def command(self, pid):
        """The command line of a process, in one text."""
        try:
            with open(f"/proc/{pid}/cmdline") as file:
                return file.read().replace("\0", " ")
        except OSError:
            return ""

    def clear(self):
        """Make all hosts as they were: nothing runs there, and their disks are empty."""
        for name in self.names:
            self.heal(name)
            self.on(name, f"find {self.disk} -mindepth 1 -delete")

    def boot(self, name):
        """Start a host: its disk is empty, its sshd runs."""
        rc = os.path.expanduser("~/.bashrc")  # what somebody has there is slow, or waits for a lock
        mount = f"mount -t tmpfs -o size={self._size} rota-test {self.disk}; "
        mount += f'[ ! -e {rc} ] || mount --bind /dev/null {rc}; exec "$@"'
        self.spawn(
            f"sshd-{name}",
            *self.hosts.on(name),
            *("sh", "-c", mount, "sh"),
            *(SSHD, "-D", "-e", "-f", "/dev/null", "-o", f"HostKey={self.path('hostkey')}"),
            *("-o", f"AuthorizedKeysFile={self.path('authorized_keys')}", "-o", "PermitRootLogin=yes"),
            *("-o", "StrictModes=no", "-o", "UsePAM=no", "-o", f"PidFile={self.path(f'sshd-{name}.pid')}"),
            *("-o", "Subsystem=sftp internal-sftp", "-o", "MaxStartups=100", "-o", "MaxSessions=100"),
        )

    def processes(self, name):
        """The processes on a host."""
        out = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True).stdout
        return [int(word) for word in out.split()]

    def crash(self, name):
        """Kill all that runs on a host; its disk is gone with it."""
        deadline = time.monotonic() + 30
        while (found := [pid for pid in self.processes(name) if ticks(pid)]) and time.monotonic() < deadline:
            for pid in found:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            time.sleep(0.02)

    def on(self, name, *argv, check=True, **more):
        """Run a command on a host, by ssh, as a user would."""
        return self.run("ssh", *self.ssh_options, name, *argv, check=check, **more)

    def cut(self, name):
        self.hosts.cut(name)

    def heal(self, name):
        self.hosts.heal(name)

    def close(self):
        for name in self.names:
            control = f"/tmp/rota-ssh-{os.getuid()}/%C"
            subprocess.run(
                ["ssh", *self.ssh_options, "-o", f"ControlPath={control}", "-O", "exit", name], capture_output=True
            )
            self.crash(name)
        super().close()
