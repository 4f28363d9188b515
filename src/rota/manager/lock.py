"""One manager per home: a lock that the kernel drops when its holder dies, and words that say who the holder is.

Where homes are shared between hosts and the file system's locks do not reach the other host, the words and a heartbeat
(the file's time, renewed by `refresh`) stand in for the lock.
"""

import errno
import fcntl
import json
import os
import socket
import time
from typing import Any

from rota.drivers.local import start_ticks
from rota.manager.paths import Paths
from rota.model.errors import RefusedError, RotaError
from rota.wire.home import write_private

__all__ = ["FRESH_S", "REFRESH_S", "AlreadyRunningError", "Lock", "announce", "boot_id", "start_ticks"]

REFRESH_S = 60.0
"""How often the holder calls `refresh`."""
FRESH_S = 300.0
"""A holder on another host that has not refreshed for so long is gone."""
_NO_LOCKS = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK, errno.EINVAL)
_SETTLE_S = 0.5
_WORDS_S = 10.0
"""How long a holder may take to say who it is."""


class AlreadyRunningError(RefusedError):
    """Another manager has this home."""

    def __init__(self, home: str, holder: dict[str, Any]) -> None:
        self.host: str | None = holder.get("host")
        self.pid: int | None = holder.get("pid")
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(holder.get("started", 0)))
        if self.host is None:
            text = f"a rota manager for {home} is just being started by another process"
        else:
            text = f"rota manager already runs on {self.host} as pid {self.pid} since {since} for {home}"
        super().__init__(text)


class Lock:
    """The right to be the manager of one home. Held from `Lock(paths)` until `release` or the end of the process."""

    def __init__(self, paths: Paths, host: str | None = None) -> None:
        self.paths = paths
        self.words: dict[str, Any] = {
            "host": host or socket.gethostname(),
            "pid": os.getpid(),
            "start": start_ticks(os.getpid()),
            "boot": boot_id(),
            "started": time.time(),
            "key": os.urandom(8).hex(),
        }
        self.weak = False
        """Whether the file system has no locks, so that only the words protect the home."""
        self._fd = os.open(paths.lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            self._take()
        except BaseException:
            os.close(self._fd)
            self._fd = -1
            raise

    def refresh(self) -> bool:
        """Say that we still live. False: another has taken the home over (we were asleep), and we must stop at once."""
        if self._fd < 0 or self._read() != self.words or not self._same_file():
            return False
        os.utime(self._fd)
        return True

    def release(self) -> None:
        """Let go. The words are removed, so that another host need not wait for the heartbeat to grow old."""
        if self._fd < 0:
            return
        if self._same_file() and self._read() == self.words:
            os.ftruncate(self._fd, 0)
        os.close(self._fd)
        self._fd = -1

    def __enter__(self) -> "Lock":
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    # Inside

    def _take(self) -> None:
        deadline = time.monotonic() + _WORDS_S
        while not self._locked():
            # Without words its holder is about to write them, or to let go.
            if (holder := self._read()) or time.monotonic() > deadline:
                raise AlreadyRunningError(self.paths.home, holder)
            time.sleep(0.01)
        if not self._same_file():
            raise RotaError(f"{self.paths.lock} was replaced while it was being locked; try again")
        holder = self._read()
        if holder and self._lives(holder):
            raise AlreadyRunningError(self.paths.home, holder)
        self._write()
        if self.weak:  # two that write at the same time both read again: the last one has it
            time.sleep(_SETTLE_S)
            if (now := self._read()) != self.words:
                raise AlreadyRunningError(self.paths.home, now)

    def _locked(self) -> bool:
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                return False
            if error.errno not in _NO_LOCKS:
                raise RotaError(f"cannot lock {self.paths.lock}: {error.strerror}") from error
            self.weak = True
        return True

    def _lives(self, holder: dict[str, Any]) -> bool:
        """Whether the holder that the words name may still run, although its lock (if there is any) is free."""
        if holder.get("host") != self.words["host"]:
            return self._age() < FRESH_S
        if not self.weak:
            return False
        pid = holder.get("pid")
        return (
            holder.get("boot") == self.words["boot"]
            and isinstance(pid, int)
            and start_ticks(pid) == holder.get("start")
        )

    def _age(self) -> float:
        """Seconds since the holder's last refresh, by the file server's clock and not by ours."""
        probe = f"{self.paths.lock}.now-{os.getpid()}"
        fd = os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            os.utime(fd)
            now = os.fstat(fd).st_mtime
        finally:
            os.close(fd)
            os.unlink(probe)
        return now - os.fstat(self._fd).st_mtime

    def _same_file(self) -> bool:
        try:
            return os.path.samestat(os.fstat(self._fd), os.lstat(self.paths.lock))
        except OSError:
            return False

    def _read(self) -> dict[str, Any]:
        try:
            words = json.loads(os.pread(self._fd, 4096, 0))
        except ValueError:
            return {}
        return words if isinstance(words, dict) else {}

    def _write(self) -> None:
        data = json.dumps(self.words).encode() + b"\n"
        os.pwrite(self._fd, data, 0)
        os.ftruncate(self._fd, len(data))
        os.fsync(self._fd)


def announce(lock: Lock, *, address: str | None = None, port: int | None = None) -> None:
    """Write `manager.json` and `manager.pid`: where the manager runs and, if it does, listens for TLS."""
    words = lock.words
    notice = {key: words[key] for key in ("host", "pid", "started")} | {"address": address, "port": port}
    write_private(lock.paths.notice, json.dumps(notice).encode() + b"\n")
    write_private(lock.paths.pid, f"{words['pid']}\n".encode())


def boot_id() -> str:
    """The kernel's name for the present boot of this host, or ''."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return ""
