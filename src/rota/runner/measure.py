"""What jobs use: memory, CPU and processes, from /proc.

`ru_maxrss` of a child has the runner's own size as its floor, because posix_spawn's child borrows the runner's
memory until exec. It is therefore only an upper bound, used for jobs too short to be sampled, and where it tells of a
process that was larger than any that was seen; else the sampled sum of PSS counts.
"""

from __future__ import annotations

import os
from typing import Dict, Iterable, List, Optional, Set, Tuple

__all__ = [
    "Children",
    "Process",
    "ProcessTable",
    "attempt_of",
    "become_subreaper",
    "memory_of",
    "name_of",
    "own_peak",
    "scan",
    "size_words",
    "start_of",
]

TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")
PR_SET_CHILD_SUBREAPER = 36
GANG = b"gang"
SMALL = 1000  # bytes of a list of children


class Process:
    """One line of /proc/*/stat."""

    __slots__ = ("cpu_s", "group", "parent", "pid", "rss", "session", "start", "zombie")

    def __init__(self, pid: int, data: bytes) -> None:
        fields = data[data.rindex(b")") + 2 :].split(b" ", 22)  # the name before it may hold spaces and brackets
        self.pid = pid
        self.zombie = fields[0] in (b"Z", b"X")
        self.parent = int(fields[1])
        self.group = int(fields[2])
        self.session = int(fields[3])
        self.cpu_s = (int(fields[11]) + int(fields[12]) + int(fields[13]) + int(fields[14])) / TICKS
        self.start = int(fields[19])
        self.rss = int(fields[21]) * PAGE


def size_words(count: int) -> str:
    """A size for people: `1.95G`, `50M`."""
    for unit, scale in (("G", 1 << 30), ("M", 1 << 20), ("K", 1 << 10)):
        if count >= scale:
            return "%.3g%s" % (count / scale, unit) if count < 1000 * scale else "%d%s" % (count // scale, unit)
    return "%dB" % count


def own_peak() -> int:
    """The most memory that this process ever had: the floor of `ru_maxrss` of its children.

    Not its own `ru_maxrss`, whose floor in turn is the size of whoever started it.
    """
    for line in (_read("/proc/self/status") or b"").splitlines():
        if line.startswith(b"VmHWM:"):
            return int(line.split()[1]) * 1024
    return 1 << 62  # not known: what the children say is not either


def _read(path: str) -> Optional[bytes]:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        parts: List[bytes] = []
        while True:
            part = os.read(fd, 1 << 16)
            if not part:
                return b"".join(parts)
            parts.append(part)
    except OSError:
        return None
    finally:
        os.close(fd)


def read_process(pid: int) -> Optional[Process]:
    """The facts of one process; None if there is none with this pid."""
    data = _read("/proc/%d/stat" % pid)
    try:
        return Process(pid, data) if data else None
    except (ValueError, IndexError):
        return None


def start_of(pid: int) -> Optional[int]:
    """The start time of a process: with the pid, its name for ever."""
    process = read_process(pid)
    return None if process is None else process.start


def name_of(pid: int) -> str:
    """The name of a process, as its kernel has it."""
    return os.fsdecode(_read("/proc/%d/comm" % pid) or b"").rstrip("\n")


def scan() -> Dict[int, Process]:
    """All processes of the machine that we may see."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            process = read_process(int(name))
            if process is not None:
                found[process.pid] = process
    return found


def memory_of(process: Process) -> int:
    """Bytes of memory: PSS, so that what processes share is counted once; RSS where that cannot be read."""
    data = _read("/proc/%d/smaps_rollup" % process.pid)
    if data:
        start = data.find(b"\nPss:")
        if start >= 0:
            return int(data[start + 5 : data.index(b"kB", start)]) * 1024
    return process.rss


class ProcessTable:
    """Which processes belong to which job: by descent, by session or group, and by the marks in their environment.

    A process that changed its session and lost its parent is still found by ROTA_RUNNER, ROTA_JOB and ROTA_ATTEMPT.
    Ranks of a gang may have the environment of another node (hydra gives them that): of those that have become our
    children ROTA_GANG_ID tells whose they are.
    """

    def __init__(self, runner_id: str) -> None:
        self._runner = b"ROTA_RUNNER=" + os.fsencode(runner_id)
        self.gangs: Dict[bytes, Tuple[bytes, bytes]] = {}  # id of a gang that is here -> job and attempt
        self._marks: Dict[Tuple[int, int], Optional[Tuple[bytes, bytes]]] = {}  # (pid, start) -> job and attempt

    def mark(self, pid: int, start: int) -> Optional[Tuple[bytes, bytes]]:
        """The (job, attempt) that a process' environment names, if it is of this runner."""
        key = (pid, start)
        if key not in self._marks:
            data = _read("/proc/%d/environ" % pid)
            if not data:  # it has none, or is just becoming another program: ask again next time
                return None
            self._marks[key] = self._read_mark(data)
        return self._marks[key]

    def _read_mark(self, data: bytes) -> Optional[Tuple[bytes, bytes]]:
        words = data.split(b"\0")
        job = attempt = b""
        if self._runner not in words:
            gang = next((word[13:] for word in words if word.startswith(b"ROTA_GANG_ID=")), b"")
            return (GANG, gang) if gang else None
        for word in words:
            if word.startswith(b"ROTA_JOB="):
                job = word[9:]
            elif word.startswith(b"ROTA_ATTEMPT="):
                attempt = word[13:]
        return (job, attempt)

    def members(self, leaders: Dict[int, Tuple[bytes, bytes]]) -> Dict[int, List[Process]]:
        """For each job (its first pid, and the mark of its attempt): its processes that are alive."""
        processes = scan()
        by_mark = {mark: pid for pid, mark in leaders.items()}
        owners: Dict[int, int] = {os.getpid(): 0}
        found: Dict[int, List[Process]] = {pid: [] for pid in leaders}
        for process in processes.values():
            owner = self._owner(process, processes, leaders, by_mark, owners)
            if owner and not process.zombie:
                found[owner].append(process)
        self._marks = {key: mark for key, mark in self._marks.items() if key[0] in processes}
        return found

    def _owner(
        self,
        process: Process,
        processes: Dict[int, Process],
        leaders: Dict[int, Tuple[bytes, bytes]],
        by_mark: Dict[Tuple[bytes, bytes], int],
        owners: Dict[int, int],
    ) -> int:
        path = []
        owner = 0
        here: Optional[Process] = process
        while here is not None:
            if here.pid in owners:
                owner = owners[here.pid]
                break
            path.append(here.pid)
            if here.pid in leaders:
                owner = here.pid
            elif here.session in leaders or here.group in leaders:
                owner = here.session if here.session in leaders else here.group
            elif here.parent in processes and here.parent > 1 and here.parent not in owners:
                here = processes[here.parent]
                continue
            elif owners.get(here.parent):
                owner = owners[here.parent]
            else:  # its parent is init, the runner or somebody who has nothing to do with us: an orphan, perhaps ours
                mark = self.mark(here.pid, here.start)
                if mark is not None and mark[0] == GANG:
                    mark = self.gangs.get(mark[1]) if here.parent == os.getpid() else None
                owner = by_mark.get(mark, 0) if mark else 0
            break
        for pid in path:
            owners[pid] = owner
        return owner


def attempt_of(mark: Tuple[bytes, bytes]) -> Optional[Tuple[int, int, int]]:
    """The attempt that a mark names; None if it is that of a gang."""
    try:
        batch, index = mark[0].split(b".")
        return int(batch), int(index), int(mark[1])
    except ValueError:
        return None


def become_subreaper() -> bool:
    """Make orphans of our jobs our children, so that they are seen. ctypes is slow to load: call it when idle."""
    try:
        import ctypes

        return bool(ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)
    except (ImportError, OSError, AttributeError):
        return False


class Children:
    """A cheap look at our own children: one read for any number of jobs that just ended."""

    def __init__(self) -> None:
        self.complete = False  # orphans come to us, so that nothing that survives a job can be elsewhere
        try:
            self._fd = os.open("/proc/self/task/%d/children" % os.getpid(), os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._fd = -1
        self._known: Set[int] = set()  # strays that need no further look
        self._judged: Optional[bytes] = None  # the list of children, if there is none in it that may be new

    def adopt_orphans(self) -> None:
        """Have the orphans of our jobs become our children."""
        self.complete = become_subreaper() and self._fd >= 0

    def reaped(self, pid: int) -> None:
        """Note that a child was reaped: its pid may soon be another's."""
        self._known.discard(pid)
        self._judged = None

    def know(self, pid: int) -> None:
        """Note that a stray needs no further look: its job is over and was told of it, or it is of no job."""
        self._known.add(pid)

    def unchanged(self) -> bool:
        """Whether nothing has come since strangers() last found nothing new. Threads may ask that."""
        return os.pread(self._fd, SMALL, 0) == self._judged

    def strangers(self, expected: Iterable[int], count: int) -> List[int]:
        """Children that are none of the `count` expected ones and not known."""
        if self._fd < 0:
            return []
        data = os.pread(self._fd, SMALL, 0)
        if len(data) > SMALL - 100:  # many children: what fits into a small buffer is not all of them
            data = os.pread(self._fd, 1 << 20, 0)
        if data.count(b" ") == count + len(self._known):
            self._judged = data
            return []
        strays = set(map(int, data.split())) - set(expected)
        self._known &= strays
        new = strays - self._known
        self._judged = None if new else data
        return sorted(new)
