"""The output of jobs: a few append-only segment files, in which a job's output is a range.

While it runs, a job writes to the two scratch files of its *lane* (one lane per concurrently running job; opened
once, not per job). When it has ended, what it wrote is copied to the runner's current segment and the scratch
files are emptied. Jobs never have a segment itself open, because a job can truncate whatever it has open: `echo
oops > /dev/stderr` is in many a script, and would wipe out the output of thousands of other jobs. For a job
without output all this costs two lseeks.

Large output is not copied: the scratch file itself becomes a segment. Of a stream beyond its cap, head and tail are
copied (see spill.py). If anything of a job survives it, its
scratch files are given up (unlinked), so that what the survivor writes later cannot appear in another job's
output.
"""

from __future__ import annotations

import os
from typing import Any, Iterable, List, Optional

from rota.runner.spill import SPILL, Piece, Spill

__all__ = ["Lane", "Segments"]

ROTATE = 64 << 20
ADOPT = 1 << 20  # from this size on the scratch file becomes a segment
APPEND = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC


class Lane:
    """The scratch files of one running job."""

    __slots__ = ("base", "err", "name", "out", "spill_err", "spill_out")

    def __init__(self, base: str) -> None:
        self.base = base
        self.name = os.path.basename(base)
        self.out = os.open(base + ".out", APPEND | os.O_TRUNC, 0o600)
        try:
            self.err = os.open(base + ".err", APPEND | os.O_TRUNC, 0o600)
        except OSError:
            os.close(self.out)
            raise
        self.spill_out: Optional[Spill] = None  # if it had to be trimmed while it ran
        self.spill_err: Optional[Spill] = None

    def is_empty(self) -> bool:
        """Whether nothing was written to it."""
        end = os.SEEK_END
        return not (os.lseek(self.out, 0, end) or os.lseek(self.err, 0, end) or self.spill_out or self.spill_err)


class Segments:
    """The output directory of a runner."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        os.makedirs(directory, mode=0o700, exist_ok=True)
        self._free: List[Lane] = []
        self._lanes = 0
        self._number = -1
        self._fd = -1
        self._name = ""
        self._size = 0
        self.problem: Optional[str] = None  # why output could not be kept, for the note of the job

    def lane(self) -> Lane:
        """A lane that no job uses, made if there is none."""
        if self._free:
            return self._free.pop()
        if self._fd < 0:
            self._rotate()
        self._lanes += 1
        return Lane(os.path.join(self.directory, "lane-%d-%d" % (os.getpid(), self._lanes)))

    def release(self, lane: Lane, survivors: bool) -> None:
        """Give a lane back; one that somebody may still write to is given up."""
        if not survivors:
            self._free.append(lane)
            return
        for fd, suffix in ((lane.out, ".out"), (lane.err, ".err")):
            os.close(fd)
            try:
                os.unlink(lane.base + suffix)
            except OSError:
                pass

    def close(self) -> None:
        """Remove the scratch files that are not in use."""
        while self._free:
            self.release(self._free.pop(), True)

    def nothing(self, out: bool, err: bool) -> Optional[List[Any]]:
        """The `output` of a job that wrote nothing."""
        if not (out or err):
            return None
        name, size = self._name, self._size
        return [name if out else "", size if out else 0, 0, 0, name if err else "", size if err else 0, 0, 0]

    # -- collecting ----------------------------------------------------------------------------------------------

    def collect(self, lane: Lane, cap: int, out: bool, err: bool) -> Optional[List[Any]]:
        """Keep what an ended job wrote and empty its lane; returns the `output` of its report.

        `out` and `err` say which streams went to the lane; the others went to paths of the user's.
        """
        if lane.is_empty():
            return self.nothing(out, err)
        size_out, size_err = os.lseek(lane.out, 0, os.SEEK_END), os.lseek(lane.err, 0, os.SEEK_END)
        elsewhere = ["", 0, 0, 0]
        first = self._stream(lane, True, size_out, cap) if out else elsewhere
        second = self._stream(lane, False, size_err, cap) if err else elsewhere
        return first + second

    def _stream(self, lane: Lane, out: bool, size: int, cap: int) -> List[Any]:
        fd, spill = (lane.out, lane.spill_out) if out else (lane.err, lane.spill_err)
        spill = spill or Spill()
        total = spill.total(size)
        if total <= cap:
            if size >= ADOPT and self._adopt(lane, out, size):
                return [self._last_adopted, 0, size, 0]
            kept = self._copy([(fd, 0, size)])
        else:
            kept = self._copy(spill.pieces(fd, size, cap))
        spill.close()
        if size:
            os.ftruncate(fd, 0)
        if out:
            lane.spill_out = None
        else:
            lane.spill_err = None
        return [*kept[:3], total - kept[3]]

    def _copy(self, pieces: Iterable[Piece]) -> List[Any]:
        """Append these to the segment; returns name, start, length, and how much of that the job wrote."""
        if self._size >= ROTATE:
            self._rotate()
        start, written = self._size, 0
        try:
            for piece in pieces:
                if isinstance(piece, bytes):
                    self._size += os.write(self._fd, piece)
                    continue
                fd, at, length = piece
                while length > 0:
                    data = os.pread(fd, min(length, 1 << 20), at)
                    if not data:
                        break  # truncated by the job's own leftovers
                    done = os.write(self._fd, data)
                    self._size, written = self._size + done, written + done
                    at, length = at + done, length - done
        except OSError as error:
            self.problem = "output could not be kept: %s" % error.strerror
        return [self._name, start, self._size - start, written]

    def _adopt(self, lane: Lane, out: bool, length: int) -> bool:
        """Turn a scratch file into a segment of its own and open another in its place."""
        suffix = ".out" if out else ".err"
        self._number += 1
        name = "%d.seg" % self._number
        try:
            os.link(lane.base + suffix, os.path.join(self.directory, name))
            os.unlink(lane.base + suffix)
            fresh = os.open(lane.base + suffix, APPEND | os.O_EXCL, 0o600)
        except OSError:
            return False
        old = lane.out if out else lane.err
        os.ftruncate(old, length)
        os.close(old)
        if out:
            lane.out, lane.spill_out = fresh, None
        else:
            lane.err, lane.spill_err = fresh, None
        self._last_adopted = name
        return True

    def _rotate(self) -> None:
        """Open the next segment. Names are never used twice, also not by the next runner in this directory."""
        while True:
            self._number += 1
            name = "%d.seg" % self._number
            try:
                fd = os.open(os.path.join(self.directory, name), APPEND | os.O_EXCL, 0o600)
            except FileExistsError:
                continue
            if self._fd >= 0:
                os.close(self._fd)
            self._fd, self._name, self._size = fd, name, 0
            return

    # -- while it runs -------------------------------------------------------------------------------------------

    def trim(self, lane: Lane, cap: int) -> None:
        """Keep a running job from filling the disk."""
        if os.lseek(lane.out, 0, os.SEEK_END) > cap + SPILL:
            lane.spill_out = lane.spill_out or Spill()
            lane.spill_out.trim(lane.out, cap, lane.base + ".out")
        if os.lseek(lane.err, 0, os.SEEK_END) > cap + SPILL:
            lane.spill_err = lane.spill_err or Spill()
            lane.spill_err.trim(lane.err, cap, lane.base + ".err")
