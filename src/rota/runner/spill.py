"""A stream beyond its cap: its head and its tail are kept, and what lies between takes no disk.

While the job runs, the file system is told to forget the middle of the scratch file (a hole): the file's size goes on
growing, so it says at the end exactly how much was written, and the tail is where it was. Where a file system knows
no holes the file is cut instead; what is written in the moment of the cut is then lost uncounted, so the count is a
lower bound, and says so.
"""

from __future__ import annotations

import errno
import os
from typing import Iterator, Tuple, Union

__all__ = ["SPILL", "Piece", "Spill", "halves", "left_out", "stretch"]

SPILL = 16 << 20  # a running job's output beyond its cap may take this much disk
WHOLE = 1 << 16  # holes are of whole blocks, whatever their size: a part of one would be zeros that somebody reads
KEEP_SIZE, PUNCH_HOLE = 1, 2
NO_HOLES = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.EPERM)
Piece = Union[bytes, Tuple[int, int, int]]  # a descriptor, where, how much


def halves(cap: int) -> Tuple[int, int]:
    """How much of a stream is kept from its beginning and from its end."""
    return cap // 2, cap - cap // 2


def left_out(count: int, exact: bool, begun: bool) -> bytes:
    """The line that joins head and tail; `begun`: the head ends within a line."""
    return b"%s[rota: %s%d bytes left out]\n" % (b"\n" if begun else b"", b"" if exact else b"at least ", count)


def stretch(fd: int, offset: int, limit: int) -> Tuple[bytes, int]:
    """Bytes of a scratch file, and where they end; a negative offset counts from the end, a hole is stepped over."""
    size = os.fstat(fd).st_size
    start = max(0, size + offset) if offset < 0 else offset
    if start >= size or limit <= 0:
        return b"", start
    try:
        found = os.lseek(fd, start, os.SEEK_DATA)
        until = os.lseek(fd, found, os.SEEK_HOLE)
    except OSError as error:
        found, until = (size if error.errno == errno.ENXIO else start), size
    line = left_out(found - start, True, start > 0) if found > start else b""
    data = os.pread(fd, max(0, min(limit - len(line), until - found)), found)
    return line + data, found + len(data)


class Spill:
    """What was done to one stream while it ran, to keep it from filling the disk."""

    __slots__ = ("_aside", "_aside_tail", "_cut", "_hole")

    def __init__(self) -> None:
        self._hole = 0  # where it ends
        self._cut = 0  # bytes that were in the file when it was cut, all in all
        self._aside = -1  # head and tail of what was cut
        self._aside_tail = 0

    def trim(self, fd: int, cap: int, path: str) -> None:
        """Make room: throw away what belongs neither to the head nor to the tail."""
        size = os.fstat(fd).st_size
        if size < self._hole:
            self._hole = 0  # the job itself has emptied it
        if size - self._hole <= cap + SPILL:
            return
        head, tail = halves(cap)
        start, end = -(-head // WHOLE) * WHOLE, (size - tail) // WHOLE * WHOLE
        if self._aside < 0 and _punch(fd, start, end - start):
            self._hole = end
        else:
            self._cut_off(fd, size, cap, path + ".aside")

    def _cut_off(self, fd: int, size: int, cap: int, path: str) -> None:
        head, tail = halves(cap)
        if self._aside < 0:
            self._aside = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            os.unlink(path)
            _copy(fd, 0, self._aside, 0, head)
        _copy(fd, size - tail, self._aside, head, tail)
        self._aside_tail = tail
        os.ftruncate(fd, 1)  # not 0: a launcher would take an empty file for that of a job without output
        self._cut += size - (1 if self._cut else 0)

    def total(self, size: int) -> int:
        """How much was written, going by the size of the file now."""
        return self._cut + max(0, size - 1) if self._cut else size

    def pieces(self, fd: int, size: int, cap: int) -> Iterator[Piece]:
        """Head, the line between, and tail of a stream of which more than the cap was written."""
        head, tail = halves(cap)
        first = fd if self._aside < 0 else self._aside
        yield (first, 0, head)
        count = self.total(size) - cap
        yield left_out(count, self._aside < 0, head > 0 and os.pread(first, 1, head - 1) != b"\n")
        fresh = min(tail, max(0, size - 1) if self._cut else size)
        if self._aside >= 0:
            rest = min(tail - fresh, self._aside_tail)
            yield (self._aside, head + self._aside_tail - rest, rest)
        yield (fd, size - fresh, fresh)

    def close(self) -> None:
        """Give back what was put aside."""
        if self._aside >= 0:
            os.close(self._aside)
            self._aside = -1


def _copy(source: int, start: int, target: int, at: int, length: int) -> None:
    end = start + length
    while start < end:
        data = os.pread(source, min(end - start, 1 << 20), start)
        if not data:
            return
        os.pwrite(target, data, at)
        start, at = start + len(data), at + len(data)


def _punch(fd: int, start: int, length: int) -> bool:
    """Make a hole in a file; False if that cannot be done here."""
    try:
        import ctypes  # only jobs that write a lot need it

        libc = ctypes.CDLL(None, use_errno=True)
        fallocate = getattr(libc, "fallocate64", None) or libc.fallocate
    except (ImportError, OSError, AttributeError):
        return False
    fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    while length > 0 and fallocate(fd, PUNCH_HOLE | KEEP_SIZE, start, length):
        problem = ctypes.get_errno()
        if problem in NO_HOLES:
            return False
        if problem != errno.EINTR:
            raise OSError(problem, os.strerror(problem))
    return True
