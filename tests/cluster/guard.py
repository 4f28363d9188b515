"""Ends a private cluster once its stdin closes: also when the tests that started it were killed.

`guard.py DIR`: DIR/pids has a line `NAME PID TICKS` for every daemon, in the order of their start. They are ended in
the reverse order, then what the cluster left running (job processes carry DIR in their environment, or stand in a
control group that DIR/cgroups names), its pretend hosts (DIR/hosts) and file systems (DIR/mounts), and DIR is removed.
Nothing else is touched.
"""

import glob
import os
import shutil
import signal
import subprocess
import sys
import time

WAIT_S = 5.0


def ticks(pid):
    """When a process began, as the kernel counts; None if it does not run (a zombie does not)."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


def send(pid, number):
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


def daemons(directory):
    """(name, pid) of those that still run, the last started first."""
    try:
        with open(f"{directory}/pids") as file:
            lines = [line.split() for line in file]
    except OSError:
        return []
    return [(name, int(pid)) for name, pid, began in reversed(lines) if ticks(pid) == int(began)]


def end(pids):
    """KILL: nothing of it is needed any more, and a polite end takes each daemon some seconds."""
    for pid in pids:
        send(pid, signal.SIGKILL)
    deadline = time.monotonic() + WAIT_S
    while any(ticks(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.01)


def leftovers(directory):
    """Processes with the directory in their environment, and those in its control groups."""
    found = set()
    mark = directory.encode()
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            try:
                with open(f"/proc/{name}/environ", "rb") as file:
                    words = file.read().split(b"\0")
            except OSError:
                continue
            marks = (b"SLURM_CONF=" + mark + b"/slurm.conf", b"SGE_ROOT=" + mark, b"PRIVATE_CLUSTER=" + mark)
            if any(word in words for word in marks):
                found.add(int(name))
    for group in groups(directory):
        for path in glob.glob(f"{group}/**/cgroup.procs", recursive=True):
            try:
                with open(path) as file:
                    found.update(map(int, file.read().split()))
            except OSError:
                continue
    return {pid for pid in found if ticks(pid)}


def sessions(leaders):
    """The processes of the sessions that daemons lead: what they started, under whatever name."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                if os.getsid(int(name)) in leaders:
                    found.append(int(name))
            except OSError:
                continue
    return found


def groups(directory):
    try:
        with open(f"{directory}/cgroups") as file:
            patterns = file.read().split()
    except OSError:
        return []
    return [path for pattern in patterns for path in glob.glob(pattern)]


def remove_hosts(directory):
    """Take away the pretend hosts of a cluster, if it has any."""
    try:
        with open(f"{directory}/hosts/list") as file:
            bridge, *names = file.read().split()
    except (OSError, ValueError):
        return
    for name in names:
        subprocess.run(["ip", "netns", "del", name], capture_output=True)
        subprocess.run(["umount", f"{directory}/hosts/uts-{name}"], capture_output=True)
    subprocess.run(["ip", "link", "del", bridge], capture_output=True)


def unmount(directory):
    """Take away the file systems that were mounted below the directory."""
    try:
        with open(f"{directory}/mounts") as file:
            places = file.read().split()
    except OSError:
        return
    for place in reversed(places):
        if place.startswith(f"{directory}/"):
            subprocess.run(["umount", "--lazy", place], capture_output=True)


def down(directory):
    """End everything of it, and remove it."""
    order = daemons(directory)
    private = sessions({pid for _, pid in order})
    first = [pid for name, pid in order if name.startswith(("slurmd-", "sge_execd"))]
    end(first)
    for _ in range(100):
        left = leftovers(directory) - {pid for _, pid in order} - set(private)
        for pid in left:
            send(pid, signal.SIGKILL)
        if not left:
            break
        time.sleep(0.05)
    end([*(pid for _, pid in order if pid not in first), *private])
    for group in groups(directory):
        for path, _, _ in os.walk(group, topdown=False):
            try:
                os.rmdir(path)
            except OSError:
                continue
    remove_hosts(directory)
    unmount(directory)
    shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.stdin.buffer.read()
    down(sys.argv[1])
