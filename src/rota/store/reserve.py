"""The file beside the database: space for bad times, a mark of how far the log went, and a lock.

One file, `rota.reserve`, does three things. It is 16 MiB long and really allocated, so that when the disk is full it
can be cut short and accepted work still be recorded. Its first block holds the number of the last entry that was
acknowledged: written after each commit without waiting for the disk, hence never ahead of the database, and it shows
when the end of the log was lost (SQLite drops what follows a damaged place in its write-ahead log, and says nothing).
And it is locked while the store is open, against a second manager.
"""

import errno
import fcntl
import os
import struct
from zlib import crc32

from rota.model.errors import StoreError

__all__ = ["Reserve"]

BLOCK = 4096
_MARK = struct.Struct("<8sQI")
_MAGIC = b"rotamark"
_NO_LOCKS = (errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL, errno.ENOLCK)


class Reserve:
    """The open side file."""

    def __init__(self, path: str, size: int) -> None:
        self.path = path
        self.size = size
        self.fresh = not os.path.exists(path)
        """True if there was none: the store is new, or was copied here."""
        self.held = size == 0
        """True while the space is there to be given up."""
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StoreError(
                f"{path}: cannot be opened for writing ({error.strerror}); rota must be able to write all "
                "files of its store: look at the permissions, and whether the file system is read-only"
            ) from None
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                os.close(self._fd)
                raise StoreError(
                    f"{path}: another process has this store open; only one manager can use it at a time"
                ) from None

    def marked(self) -> int:
        """Number of the last acknowledged entry, as far as the mark knows (0: it knows nothing)."""
        block = os.pread(self._fd, _MARK.size, 0)
        if len(block) < _MARK.size:
            return 0
        magic, seq, crc = _MARK.unpack(block)
        return int(seq) if magic == _MAGIC and crc == crc32(block[:16]) else 0

    def mark(self, seq: int) -> None:
        """Note that this entry is on disk. A hint: failing to note it does no harm."""
        head = struct.pack("<8sQ", _MAGIC, seq)
        try:
            os.pwrite(self._fd, head + struct.pack("<I", crc32(head)), 0)
        except OSError:
            pass

    def allocate(self) -> bool:
        """Take the space, unless it is held or that would leave less than as much again."""
        if self.held:
            return True
        room = os.fstatvfs(self._fd)
        have = os.fstat(self._fd).st_blocks * 512
        if room.f_bavail * room.f_frsize + have < 2 * self.size:
            return False
        try:
            try:
                os.posix_fallocate(self._fd, 0, BLOCK + self.size)
            except OSError as error:
                if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
                    raise
                self._fill()
            os.fsync(self._fd)
        except OSError:
            self.release()
            return False
        self.held = True
        return True

    def _fill(self) -> None:
        at, end = os.fstat(self._fd).st_size, BLOCK + self.size
        while at < end:
            at += os.pwrite(self._fd, bytes(min(1 << 20, end - at)), at)

    def release(self) -> None:
        """Give the space up; the mark stays."""
        if self.size:
            self.held = False
            os.ftruncate(self._fd, BLOCK)

    def free_bytes(self) -> int:
        """Space left where the file lives, for this user."""
        room = os.fstatvfs(self._fd)
        return room.f_bavail * room.f_frsize

    def close(self) -> None:
        """Close, and let go of the lock."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
