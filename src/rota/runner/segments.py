"""The output of jobs: a few append-only segment files, in which a job's output is a range.

While it runs, a job writes to the two scratch files of its *lane* (one lane per concurrently running job; opened
once, not per job). When it has ended, what it wrote is copied to the runner's current segment and the scratch
files are emptied. Jobs never have a segment itself open, because a job can truncate whatever it has open: `echo
oops > /dev/stderr` is in many a script, and would wipe out the output of thousands of other jobs. For a job
without output all this costs two lseeks.

Large output is not copied: the scratch file itself becomes a segment. If anything of a job survives it, its
scratch files are given up (unlinked), so that what the survivor writes later cannot appear in another job's
output.
"""

from __future__ import annotations

import os
from typing import Any, List, Optional, Tuple

__all__ = ["Lane", "Segments"]

ROTATE = 64 << 20
ADOPT = 1 << 20  # from this size on the scratch file becomes a segment
SPILL = 16 << 20  # a running job's output beyond its cap may take this much disk before it is thrown away
APPEND = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC


class Lane:
    """The scratch files of one running job."""

    __slots__ = ("base", "dropped_err", "dropped_out", "err", "out", "saved_err", "saved_out")

    def __init__(self, base: str) -> None:
        self.base = base
        self.out = os.open(base + ".out", APPEND | os.O_TRUNC, 0o600)
        try:
            self.err = os.open(base + ".err", APPEND | os.O_TRUNC, 0o600)
        except OSError:
            os.close(self.out)
            raise
        self.dropped_out = 0
        self.dropped_err = 0
        self.saved_out: Optional[Tuple[str, int, int]] = None  # the kept part, if it had to be saved while running
        self.saved_err: Optional[Tuple[str, int, int]] = None


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
        end = os.SEEK_END
        size_out, size_err = os.lseek(lane.out, 0, end), os.lseek(lane.err, 0, end)
        if not (size_out or size_err or lane.saved_out or lane.saved_err):
            return self.nothing(out, err)
        elsewhere = ["", 0, 0, 0]
        first = self._stream(lane, True, size_out, cap) if out else elsewhere
        second = self._stream(lane, False, size_err, cap) if err else elsewhere
        return first + second

    def _stream(self, lane: Lane, out: bool, size: int, cap: int) -> List[Any]:
        fd = lane.out if out else lane.err
        saved, dropped = (lane.saved_out, lane.dropped_out) if out else (lane.saved_err, lane.dropped_err)
        if saved is not None:
            dropped += size
            kept: Tuple[str, int, int] = saved
        else:
            length = min(size, cap)
            dropped += size - length
            if length >= ADOPT and self._adopt(lane, out, length):
                return [self._last_adopted, 0, length, dropped]
            kept = self._copy(fd, length)
            dropped += length - kept[2]
        if size:
            os.ftruncate(fd, 0)
        if out:
            lane.saved_out, lane.dropped_out = None, 0
        else:
            lane.saved_err, lane.dropped_err = None, 0
        return [*kept, dropped]

    def _copy(self, fd: int, length: int) -> Tuple[str, int, int]:
        """Append the first bytes of a scratch file to the segment; returns what of it could be kept."""
        if self._size >= ROTATE:
            self._rotate()
        start, done = self._size, 0
        try:
            while done < length:
                data = os.pread(fd, min(length - done, 1 << 20), done)
                if not data:
                    break  # truncated by the job's own leftovers
                done += os.write(self._fd, data)
        except OSError as error:
            self.problem = "output could not be kept: %s" % error.strerror
        self._size = start + done
        return (self._name, start, done)

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
            lane.out, lane.dropped_out = fresh, 0
        else:
            lane.err, lane.dropped_err = fresh, 0
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
        """Keep a running job from filling the disk: far beyond its cap, save the kept part and throw away the rest.

        Its descriptors are in append mode, so after the truncation it simply goes on at the start of the file.
        """
        for out, fd in ((True, lane.out), (False, lane.err)):
            size = os.lseek(fd, 0, os.SEEK_END)
            if size <= cap + SPILL:
                continue
            saved = lane.saved_out if out else lane.saved_err
            if saved is None:
                saved = self._copy(fd, cap)
                size -= saved[2]
            os.ftruncate(fd, 1)  # not 0: a launcher would take an empty file for that of a job without output
            if out:
                lane.saved_out = saved
                lane.dropped_out += size - 1
            else:
                lane.saved_err = saved
                lane.dropped_err += size - 1
