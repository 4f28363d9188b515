"""What a private cluster is: a directory, daemons that are remembered by pid, and a guard that ends them."""

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time

from cluster.guard import send, ticks

HERE = os.path.dirname(__file__)


class ClusterError(Exception):
    """A cluster did not come up, or did not do what was asked; says where its logs are."""


def wait_for(what, probe, seconds=90.0, step=0.05):
    """Ask again until it says yes; returns that answer."""
    deadline = time.monotonic() + seconds
    while True:
        answer = probe()
        if answer:
            return answer
        if time.monotonic() > deadline:
            raise ClusterError(f"after {seconds:g} s still waiting for {what}")
        time.sleep(step)


def free_ports(count):
    """The first of `count` adjacent free ports."""
    for base in range(20000 + os.getpid() % 97 * 100, 60000, count):
        sockets = []
        try:
            for port in range(base, base + count):
                sockets.append(socket.socket())
                sockets[-1].bind(("127.0.0.1", port))
            return base
        except OSError:
            continue
        finally:
            for each in sockets:
                each.close()
    raise ClusterError(f"no {count} adjacent free ports")


class PrivateCluster:
    """Daemons below a directory of their own."""

    def __init__(self, kind):
        self.directory = tempfile.mkdtemp(prefix=f"rota-{kind}-")
        os.chmod(self.directory, 0o755)
        os.mkdir(f"{self.directory}/log")
        self.environment = {**os.environ, "LC_ALL": "C"}
        self._children = {}
        self._guard = subprocess.Popen(
            [sys.executable, "-S", f"{HERE}/guard.py", self.directory], stdin=subprocess.PIPE, start_new_session=True
        )

    def path(self, name):
        return f"{self.directory}/{name}"

    def write(self, name, text, mode=0o644):
        with open(self.path(name), "w") as file:
            file.write(text)
        os.chmod(self.path(name), mode)
        return self.path(name)

    def spawn(self, name, *argv):
        """Start a daemon that stays in the foreground."""
        with open(self.path(f"log/{name}.out"), "ab") as log:
            child = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self.environment,
                start_new_session=True,
                cwd=self.directory,
            )
        self._children[name] = child
        self.remember(name, child.pid)
        return child.pid

    def remember(self, name, pid):
        with open(self.path("pids"), "a") as file:
            file.write(f"{name} {pid} {ticks(pid) or 0}\n")

    def kill(self, name, number):
        """Signal one daemon; wait for its end if that signal ends it."""
        child = self._children[name]
        send(child.pid, number)
        return child

    def run(self, *argv, check=True, stdin=None, timeout=60, **more):
        """Run a client command."""
        done = subprocess.run(
            argv, input=stdin, capture_output=True, text=True, timeout=timeout, env=self.environment, **more
        )
        if check and done.returncode != 0:
            raise ClusterError(f"{' '.join(argv)}: exit {done.returncode}: {done.stderr or done.stdout}")
        return done

    def answers(self, *argv):
        """Whether a command ends well within a moment."""
        try:
            return self.run(*argv, check=False, timeout=3).returncode == 0
        except subprocess.TimeoutExpired:
            return False

    def logs(self, lines=15):
        """The ends of all logs, for the message of a failed start."""
        out = []
        for name in sorted(os.listdir(self.path("log"))):
            with open(self.path(f"log/{name}"), errors="replace") as file:
                tail = file.readlines()[-lines:]
            out.append(f"== {name}\n{''.join(tail)}")
        return "\n".join(out)

    def close(self):
        """End all of it. The guard does it, so that there is one way only."""
        self._guard.stdin.close()
        try:
            self._guard.wait(60)
        except subprocess.TimeoutExpired:
            self._guard.kill()
            self._guard.wait()
            raise ClusterError(f"the cluster in {self.directory} could not be ended") from None
        finally:
            for child in self._children.values():
                if child.poll() is None:
                    child.wait(10)
        shutil.rmtree(self.directory, ignore_errors=True)
