"""The process of the optional C launcher, which starts and reaps jobs quicker than we do: its messages, its making.

Everything works without it. It is compiled when a compiler is there, in the background, and used from then on; if
it ever dies, the runner goes on by itself. The messages are described in launcher.c.
"""

from __future__ import annotations

import _socket
import mmap
import os
import struct
import sys
from typing import Any, Dict, List, Optional, Tuple

from rota.runner.connection import AT_ONCE
from rota.runner.lease import Lease
from rota.runner.plan import Plan
from rota.runner.segments import Lane

__all__ = [
    "ENDED", "FAILED", "HELLO", "LATE", "RETURNED", "STAGE_CWD", "STAGE_ERR", "STAGE_EXEC", "STAGE_IN", "STAGE_OUT",
    "STARTED", "SURVIVORS", "VERSION", "WROTE", "Book", "Builder", "Launcher", "Record",
]  # fmt: skip

HELLO, STARTED, ENDED, FAILED, RETURNED = 1, 2, 3, 4, 5
STAGE_CWD, STAGE_IN, STAGE_OUT, STAGE_ERR, STAGE_EXEC = 1, 2, 3, 4, 5
VERSION, SURVIVORS, LATE, WROTE = 1, 1, 2, 4
NO_ENV = 0xFFFFFFFF
MOST_ENVS = 1000
MOST_RECORDS, MOST_STARTED = 1024, 4096
_record = struct.Struct("=IIiiiIIIQQQQQdd")
_head = struct.Struct("=Ic")
_start = struct.Struct("=IcIIIdIII")
_two = struct.Struct("=II")
_one = struct.Struct("=I")
# kind, id, pid, status, problem, stage, lane, flags, utime, stime, maxrss, out size, err size, began, wall
Record = Tuple[int, int, int, int, int, int, int, int, int, int, int, int, int, float, float]


def _message(kind: bytes, body: bytes) -> bytes:
    return _head.pack(len(body) + 1, kind) + body


def _command(plan: Plan, path: str, argv: List[str]) -> bytes:
    """Where a job runs, what it reads and writes, and its words."""
    texts = (plan.cwd, path, plan.stdin or "", plan.stdout or "", plan.stderr or "", *argv)
    joined = os.fsencode("\0".join(texts))
    if joined.count(b"\0") != len(texts) - 1:
        raise ValueError("embedded null byte")
    return joined


def _shared_memory() -> int:
    """A file in memory; where there are none (an old libc), one that has no name any more."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("rota-launcher", os.MFD_CLOEXEC)
    import tempfile

    fd, path = tempfile.mkstemp(prefix="rota-launcher-")
    os.unlink(path)
    return fd


class Book:
    """What a launcher has started, and has yet to tell, in memory that outlives it: `struct book` of launcher.c."""

    def __init__(self) -> None:
        self.fd = _shared_memory()
        try:
            os.ftruncate(self.fd, _one.size * (2 + MOST_STARTED) + _record.size * MOST_RECORDS)
            self._memory = mmap.mmap(self.fd, 0)
        except (OSError, ValueError) as error:
            os.close(self.fd)
            raise OSError("no memory to share: %s" % error) from None

    def has_started(self, number: int) -> bool:
        """Whether a job was started, or may have been: its place may have been given to a later one."""
        (last,) = _one.unpack_from(self._memory, _one.size * (2 + number % MOST_STARTED))
        return bool(last >= number)

    def ended(self) -> List[Record]:
        """What has ended and was not sent, or not wholly."""
        (count,) = _one.unpack_from(self._memory, 0)
        at, most = _one.size * (2 + MOST_STARTED), min(count, MOST_RECORDS)
        found = [_record.unpack_from(self._memory, at + number * _record.size) for number in range(most)]
        return [record for record in found if record[0] == ENDED]

    def close(self) -> None:
        """Give the memory back."""
        self._memory.close()
        os.close(self.fd)


class Launcher:
    """A running launcher."""

    def __init__(self, path: str, runner_id: str) -> None:
        self.book = Book()
        ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_STREAM)
        try:
            actions = [(os.POSIX_SPAWN_DUP2, theirs.fileno(), 0), (os.POSIX_SPAWN_DUP2, 2, 1)]
            actions.append((os.POSIX_SPAWN_DUP2, self.book.fd, 3))
            # Marked as ours: who clears up after a dead runner must end it too, before it can start what it still has.
            mark = {"ROTA_RUNNER": runner_id}
            self.pid = os.posix_spawn(path, ["rota-launcher"], mark, file_actions=actions, setsid=True)
        except BaseException:
            ours.close()
            self.book.close()
            raise
        finally:
            theirs.close()
        ours.setblocking(False)
        self._sock = ours
        self.fd: int = ours.fileno()
        self.ready = False
        self.lanes: Dict[int, Lane] = {}
        self._lane_numbers: Dict[int, int] = {}  # id(lane) -> number
        self._free_numbers: List[int] = []
        self._slots: Dict[str, int] = {}
        self._limits: Dict[str, int] = {}
        self._envs: Dict[int, Tuple[int, Plan]] = {}
        self._last: Tuple[Optional[Plan], List[str], str, bytes] = (None, [], "", b"")  # many jobs are alike
        self._in = b""
        self._out = bytearray()

    # -- to the launcher -----------------------------------------------------------------------------------------

    def open_lane(self, lane: Lane) -> None:
        """Let the launcher use a lane, or open it again after a scratch file was replaced."""
        number = self._lane_numbers.get(id(lane))
        if number is None:
            number = self._free_numbers.pop() if self._free_numbers else len(self._lane_numbers)
            self._lane_numbers[id(lane)] = number
            self.lanes[number] = lane
        base = os.fsencode(lane.base)
        self._out += _message(b"L", _one.pack(number) + base + b".out\0" + base + b".err\0")

    def clean_lane(self, number: int) -> None:
        """Say that the scratch files of a lane are empty again."""
        self._out += _message(b"C", _one.pack(number))

    def close_lane(self, number: int) -> None:
        """Say that a lane is not to be used again."""
        lane = self.lanes.pop(number)
        del self._lane_numbers[id(lane)]
        self._free_numbers.append(number)
        self._out += _message(b"X", _one.pack(number))

    def limit(self, slot: str, count: int) -> None:
        """Say how many jobs of a slot may run at once."""
        if self._limits.get(slot) != count:
            self._limits[slot] = count
            self._out += _message(b"N", _two.pack(self._slot(slot), max(0, count)))

    def _slot(self, slot: str) -> int:
        return self._slots.setdefault(slot, len(self._slots))

    def start(self, number: int, lease: Lease, plan: Plan, path: str, argv: List[str]) -> None:
        """Start a job when its slot has a place."""
        env = self._env(plan, lease) if plan.shared else NO_ENV
        if env == NO_ENV:
            all_of_it = {**plan.env.base, **plan.env.own(lease)}
            words, count = b"\0".join([b"%b=%b" % item for item in all_of_it.items()]), len(all_of_it)
        else:
            words, count = plan.env.words(lease)
        if words.count(b"\0") != count - 1:
            raise ValueError("embedded null byte")
        if plan is not self._last[0] or argv != self._last[1] or path != self._last[2]:
            self._last = (plan, argv, path, _command(plan, path, argv))
        command = self._last[3]
        slot = self._slots.get(lease.slot)
        if slot is None:
            slot = self._slot(lease.slot)
        size = len(command) + len(words) + 35
        self._out += _start.pack(size, b"S", number, slot, env, lease.start_by, len(argv), count, plan.umask)
        self._out += b"%b\0%b\0" % (command, words)

    def _env(self, plan: Plan, lease: Lease) -> int:
        """The number of the environment that all jobs of this plan share; what each has itself is left out."""
        known = self._envs.get(id(plan))
        if known is not None and known[1] is plan:
            return known[0]
        number = len(self._envs)
        own = plan.env.own(lease)
        words = [key + b"=" + value for key, value in plan.env.base.items() if key not in own]
        if number >= MOST_ENVS or any(b"\0" in word for word in words):
            return NO_ENV
        self._envs[id(plan)] = (number, plan)
        self._out += _message(b"E", _two.pack(number, len(words)) + b"".join(word + b"\0" for word in words))
        return number

    def forget_envs(self) -> None:
        """Make room for other environments; allowed when nothing that was handed over waits."""
        if len(self._envs) >= MOST_ENVS:
            self._envs.clear()

    def give_back(self) -> None:
        """Ask for every job that has not started."""
        self._out += _message(b"R", b"")

    def flush(self) -> bool:
        """Write what waits; False if the launcher is gone."""
        while self._out:
            try:
                sent = self._sock.send(self._out)
            except BlockingIOError:
                return True
            except OSError:
                return False
            del self._out[:sent]
        return True

    @property
    def waiting(self) -> bool:
        """Whether messages wait to be sent."""
        return bool(self._out)

    # -- from the launcher ---------------------------------------------------------------------------------------

    def receive(self) -> Optional[List[Record]]:
        """What the launcher tells of its jobs; None if it is gone."""
        try:
            data = self._sock.recv(AT_ONCE)
        except BlockingIOError:
            return []
        except OSError:
            return None
        if not data:
            return None
        data = self._in + data
        whole = len(data) - len(data) % _record.size
        self._in = data[whole:]
        return list(_record.iter_unpack(data[:whole]))

    def close(self) -> None:
        """Close the socket: then the launcher exits."""
        self._sock.close()
        self.book.close()


class Builder:
    """Finds the compiled launcher, or compiles it in the background."""

    def __init__(self, choice: str, output: str) -> None:
        self.path: Optional[str] = None
        self._source = os.path.join(os.path.dirname(os.path.abspath(__file__)), "launcher.c")
        self._temporary = ""
        self.pid = 0
        if choice == "auto":
            self.path = self._cached()
        elif choice != "none":
            self.path = os.path.abspath(choice)

    def _cached(self) -> Optional[str]:
        """A name that changes with the source, in a directory that only we can write."""
        import binascii

        try:
            with open(self._source, "rb") as file:
                check = binascii.crc32(file.read())
        except OSError:
            return None
        home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
        return os.path.join(home, "rota", "launcher-%08x-%s" % (check, os.uname().machine))

    def begin(self) -> bool:
        """True if the launcher can be used now; else it may be after compiled()."""
        if self.path is None:
            return False
        if os.access(self.path, os.X_OK):
            return self._trusted(self.path)
        compiler = next((found for found in map(self._which, ("cc", "gcc", "clang")) if found), None)
        if compiler is None or not os.path.exists(self._source):
            self.path = None
            return False
        try:
            os.makedirs(os.path.dirname(self.path), mode=0o700, exist_ok=True)
            self._temporary = "%s.%s.%d" % (self.path, os.uname().nodename, os.getpid())  # nodes may share it
            null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
            actions: List[Any] = [(os.POSIX_SPAWN_DUP2, null, number) for number in (0, 1, 2)]
            words = [compiler, "-O2", "-pthread", "-o", self._temporary, self._source]
            self.pid = os.posix_spawn(compiler, words, os.environ, file_actions=actions, setsid=True)
            os.close(null)
        except OSError:
            self.path = None
        return False

    def _trusted(self, path: str) -> bool:
        """Not a program that somebody else could have put there."""
        status = os.stat(path)
        return status.st_uid in (os.geteuid(), 0) and not status.st_mode & 0o022

    def _which(self, name: str) -> Optional[str]:
        for part in os.environ.get("PATH", os.defpath).split(":"):
            candidate = os.path.join(part, name)
            if part and os.access(candidate, os.X_OK) and os.path.isfile(candidate):
                return candidate
        return None

    def compiled(self, status: int) -> bool:
        """The compiler has ended: True if there is a launcher now."""
        self.pid = 0
        assert self.path is not None
        try:
            if status == 0:
                os.chmod(self._temporary, 0o700)
                os.rename(self._temporary, self.path)
                return True
            os.unlink(self._temporary)
        except OSError as error:
            sys.stderr.write("rota-runner: no launcher: %s\n" % error)
        return False
