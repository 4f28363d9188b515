"""The node that we are on: its name, cores and memory, and the cgroups that bound them."""

from __future__ import annotations

import os

TYPE_CHECKING = False  # as in `typing`, which is not worth its load time before the greeting is out
if TYPE_CHECKING:
    from typing import Iterator, List, Mapping, Optional, Tuple

__all__ = ["OomCounter", "cores", "granted", "memory", "name", "read_text"]

CGROUPS = "/sys/fs/cgroup"
GRANTED_CORES = (
    "SLURM_CPUS_ON_NODE",
    "NSLOTS",
    "LSB_DJOB_NUMPROC",
    "LSB_MAX_NUM_PROCESSORS",
    "PBS_NP",
    "NCPUS",
)
NO_LIMIT = 1 << 60  # cgroup v1 writes "no limit" as a number near 2**63


def read_text(path: str) -> str:
    """Read a small file of /proc or /sys; empty if it cannot be read."""
    try:
        with open(path, "rb") as file:
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""


def name() -> str:
    """What people call this node: as the batch system names it, if it says so, else its own name."""
    return os.environ.get("SLURMD_NODENAME") or os.uname().nodename


def _groups() -> List[Tuple[int, str, str]]:
    """(version, controllers, path) of the cgroups this process is in."""
    found = []
    for line in read_text("/proc/self/cgroup").splitlines():
        parts = line.split(":", 2)
        if len(parts) == 3:
            found.append((2 if parts[0] == "0" else 1, parts[1], parts[2]))
    return found


def _directories(controller: str) -> Iterator[Tuple[int, str]]:
    """Directories of our cgroup and of all above it, innermost first: every one of them can bound us."""
    for version, controllers, path in _groups():
        if version == 1 and controller not in controllers.split(","):
            continue
        mounts = (
            [CGROUPS, CGROUPS + "/unified"]
            if version == 2
            else [CGROUPS + "/" + controllers, CGROUPS + "/" + controller]
        )
        for mount in mounts:
            if not os.path.isdir(mount):
                continue
            inner = path
            while True:
                directory = mount + inner.rstrip("/")
                if os.path.isdir(directory):
                    yield version, directory
                if inner in ("", "/"):
                    break
                inner = os.path.dirname(inner)
            break


def _integer(text: str) -> Optional[int]:
    text = text.strip()
    return int(text) if text.lstrip("-").isdigit() else None


def cores() -> int:
    """Millicores that this process may use: its affinity, bounded by the CPU quota of its cgroups."""
    try:
        best = len(os.sched_getaffinity(0)) * 1000
    except (AttributeError, OSError):
        best = (os.cpu_count() or 1) * 1000
    for version, directory in _directories("cpu"):
        if version == 2:
            words = read_text(directory + "/cpu.max").split()
            quota, period = (_integer(words[0]), _integer(words[1])) if len(words) == 2 else (None, None)
        else:
            quota = _integer(read_text(directory + "/cpu.cfs_quota_us"))
            period = _integer(read_text(directory + "/cpu.cfs_period_us"))
        if quota and period and quota > 0:
            best = min(best, max(1, quota * 1000 // period))
    return best


def memory() -> int:
    """Bytes of memory that this process may use: the node's, bounded by its cgroups."""
    best = 0
    for line in read_text("/proc/meminfo").splitlines():
        if line.startswith("MemTotal:"):
            best = int(line.split()[1]) * 1024
    for version, directory in _directories("memory"):
        limit = _integer(read_text(directory + ("/memory.max" if version == 2 else "/memory.limit_in_bytes")))
        if limit is not None and 0 < limit < NO_LIMIT:
            best = min(best, limit) if best else limit
    return best


def granted(environ: Mapping[str, str]) -> Tuple[int, int]:
    """Millicores and bytes that a batch system says it gave: upper bounds, where its cgroups do not enforce them."""
    counts = [_integer(environ.get(name, "")) or 0 for name in GRANTED_CORES]
    cores = min((count for count in counts if count > 0), default=NO_LIMIT)
    megabytes = _integer(environ.get("SLURM_MEM_PER_NODE", "")) or 0
    if not megabytes:
        on_node = _integer(environ.get("SLURM_CPUS_ON_NODE", "")) or 0
        megabytes = (_integer(environ.get("SLURM_MEM_PER_CPU", "")) or 0) * on_node
    return cores * 1000, megabytes << 20 if megabytes > 0 else NO_LIMIT


class OomCounter:
    """Tells whether the kernel killed something of our cgroup for want of memory since it was last asked."""

    def __init__(self) -> None:
        self._files = []
        for version, directory in _directories("memory"):
            name = directory + ("/memory.events" if version == 2 else "/memory.oom_control")
            if os.path.exists(name):
                self._files.append(name)
                break  # the innermost: kills in a sibling's cgroup are not ours
        self._last = self._read()

    def _read(self) -> int:
        total = 0
        for name in self._files:
            for line in read_text(name).splitlines():
                words = line.split()
                if len(words) == 2 and words[0] == "oom_kill":
                    total += _integer(words[1]) or 0
        return total

    def rose(self) -> bool:
        """True if the counter is higher than at the last call."""
        before, self._last = self._last, self._read()
        return self._last > before
