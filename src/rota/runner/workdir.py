"""The directory of one attempt alone: made fresh, measured, emptied and removed again.

What is removed is only the very directory that was made here (the same inode, with our marker in it). Everything goes
by descriptors, so that no symbolic link leads out of it, and nothing on another mount is touched. Long work is cut
into small steps (generators), because a runner has one thread and other jobs to look after.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from typing import TYPE_CHECKING, Dict, Iterator, List, Optional, Sequence, Tuple

if TYPE_CHECKING:
    from rota.runner.lease import Key

__all__ = ["MARKER", "Workdir", "bytes_below", "empty", "slice_of"]

BASE = "rota_work"
MARKER = ".rota-workdir"
TMP = ".rota-tmp"
GROUP = 1000  # so many jobs' directories are in one
TRIES = 200  # others may remove an empty parent between our making it and our using it
DEPTH = 40  # of descriptors held at once; what is deeper is moved up first
PROBLEMS = 3  # told at most
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
PROBE = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def slice_of(work: Iterator[None], seconds: float) -> bool:
    """Go on with a piece of work for a while; True when it is done."""
    until = time.monotonic() + seconds
    return all(time.monotonic() < until for _ in work)


class Workdir:
    """The directory `CWD/rota_work/BATCH/GROUP/BATCH.INDEX.ATTEMPT` of one attempt."""

    __slots__ = ("_cwd", "_id", "_mark", "_names", "disk", "fd", "path", "peak", "walk")

    def __init__(self, cwd: str, key: Key, runner_id: str, links: Sequence[Tuple[str, str]] = ()) -> None:
        self._cwd = cwd
        batch, index, attempt = key
        self._names = [BASE, "%d" % batch, "%d" % (index // GROUP), "%d.%d.%d" % key]
        text = "Made by rota for job %d.%d, attempt %d, and removed by it. %s %s\n"
        self._mark = (text % (batch, index, attempt, runner_id, os.urandom(8).hex())).encode()
        self.fd = -1
        self.disk: Optional[int] = None  # bytes at the last measurement
        self.peak = 0
        self.walk: Optional[Iterator[None]] = None  # a measurement under way
        for attempt_left in range(TRIES, 0, -1):
            try:
                self._make()
                break
            except FileNotFoundError:  # somebody has just removed an empty parent
                if attempt_left == 1 or not os.path.isdir(cwd):
                    raise
        self.path = os.path.join(cwd, *self._names)
        try:
            status = os.fstat(self.fd)
            self._id = (status.st_dev, status.st_ino)
            os.mkdir(TMP, 0o700, dir_fd=self.fd)
            fd = os.open(MARKER, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o444, dir_fd=self.fd)
            try:
                os.write(fd, self._mark)
            finally:
                os.close(fd)
            for name, target in links:
                os.symlink(target, name, dir_fd=self.fd)
        except OSError:
            for step in empty(self.fd, [], ""):
                del step
            self._remove_itself([])
            os.close(self.fd)
            raise

    def _make(self) -> None:
        parents = self._open_parents(make=True)
        try:
            while True:
                try:
                    os.mkdir(self._names[-1], 0o777, dir_fd=parents[-1])
                    break
                except FileExistsError:  # of another rota, or of an attempt that nobody could clear away
                    self._names[-1] = self._names[-1].partition("-")[0] + "-" + os.urandom(3).hex()
            self.fd = os.open(self._names[-1], FOLDER | os.O_NOFOLLOW, dir_fd=parents[-1])
        finally:
            for fd in parents:
                os.close(fd)

    def _open_parents(self, make: bool) -> List[int]:
        """Descriptors of the cwd and all below it but ours. Only the first (rota_work) may be a symbolic link."""
        fds = [os.open(self._cwd, FOLDER)]
        try:
            for name in self._names[:-1]:
                if make:
                    try:
                        os.mkdir(name, 0o777, dir_fd=fds[-1])
                    except FileExistsError:
                        pass
                fds.append(os.open(name, FOLDER if name == BASE else FOLDER | os.O_NOFOLLOW, dir_fd=fds[-1]))
        except BaseException:
            for fd in fds:
                os.close(fd)
            raise
        return fds

    def environment(self, home: bool) -> Dict[bytes, bytes]:
        """The variables that tell a job about its directory."""
        path = os.fsencode(self.path)
        env = {b"TMPDIR": path + b"/" + TMP.encode(), b"ROTA_WORKDIR": path}
        if home:
            env[b"HOME"] = path
        return env

    # -- measuring -----------------------------------------------------------------------------------------------

    def measure(self, seconds: float) -> bool:
        """Go on measuring for so long; True if the measurement is complete."""
        if self.walk is None:
            self.walk = self._measure()
        if not slice_of(self.walk, seconds):
            return False
        self.walk = None
        return True

    def _measure(self) -> Iterator[None]:
        total = 0
        for found in bytes_below("/proc/self/fd/%d" % self.fd, self._id[0]):
            total += found
            self.peak = max(self.peak, total)
            yield
        self.disk = total

    # -- removing ------------------------------------------------------------------------------------------------

    def clear(self, whole: bool, problems: List[str]) -> Iterator[None]:
        """Remove the temporary directory, or everything; what could not be removed is told in `problems`."""
        try:
            _open_up(self.fd)
            if not whole:
                for step in self._clear_tmp(problems):
                    yield step
                return
            why = self._not_ours()
            if why is not None:
                problems.append("%s was not removed: %s" % (self.path, why))
                return
            for step in empty(self.fd, problems, self.path, keep=MARKER):
                yield step
            if not problems:
                self._remove_itself(problems)
        except OSError as error:
            problems.append("%s was not removed: %s" % (self.path, error.strerror))

    def _clear_tmp(self, problems: List[str]) -> Iterator[None]:
        try:
            fd = _open_folder(TMP, self.fd, mount_of(self.fd))
        except OSError:
            return  # removed by the job, or replaced by something that is the job's
        if fd is None:
            return
        try:
            for step in empty(fd, problems, os.path.join(self.path, TMP)):
                yield step
        finally:
            os.close(fd)
        try:
            os.rmdir(TMP, dir_fd=self.fd)
        except OSError as error:
            if not problems:
                problems.append("%s was not removed: %s" % (os.path.join(self.path, TMP), error.strerror))

    def _not_ours(self) -> Optional[str]:
        """Why the directory with our name may not be removed."""
        try:
            parents = self._open_parents(make=False)
        except OSError as error:
            return "it is not where it was made (%s)" % error.strerror
        try:
            status = os.stat(self._names[-1], dir_fd=parents[-1], follow_symlinks=False)
        except FileNotFoundError:
            return "it is not where it was made"
        finally:
            for fd in parents:
                os.close(fd)
        if (status.st_dev, status.st_ino) != self._id:
            return "something else is in its place"
        try:
            fd = os.open(MARKER, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=self.fd)
        except OSError:
            return "its marker %s is gone" % MARKER
        try:
            same = os.read(fd, 1000) == self._mark
        except OSError:
            same = False
        finally:
            os.close(fd)
        return None if same else "its marker %s is not ours" % MARKER

    def _remove_itself(self, problems: List[str]) -> None:
        parents = self._open_parents(make=False)
        try:
            os.unlink(MARKER, dir_fd=self.fd)
            status = os.stat(self._names[-1], dir_fd=parents[-1], follow_symlinks=False)
            if (status.st_dev, status.st_ino) == self._id:
                os.rmdir(self._names[-1], dir_fd=parents[-1])
            for name, fd in reversed(list(zip(self._names[:-1], parents))):
                os.rmdir(name, dir_fd=fd)  # fails as soon as one is not empty
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR, errno.ENOENT, errno.EBUSY):
                problems.append("%s was not removed: %s" % (self.path, error.strerror))
        finally:
            for fd in parents:
                os.close(fd)

    def close(self) -> None:
        """Close the descriptor of the directory."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def mount_of(fd: int) -> str:
    """Which mount a descriptor is on. The device number would not tell a bind mount of the same file system."""
    with open("/proc/self/fdinfo/%d" % fd, encoding="ascii") as file:
        for line in file:
            if line.startswith("mnt_id:"):
                return line
    return "device %d" % os.fstat(fd).st_dev


def bytes_below(path: str, device: int) -> Iterator[int]:
    """Bytes on disk of every entry below a directory; what vanishes meanwhile or cannot be read counts nothing."""
    linked: Dict[int, None] = {}
    todo = [path]
    while todo:
        here = todo.pop()
        try:
            entries = os.scandir(here)
        except OSError:
            continue
        with entries:
            while True:
                try:
                    entry = next(entries, None)
                    if entry is None:
                        break
                    status = entry.stat(follow_symlinks=False)
                except OSError:
                    continue
                if status.st_dev != device or status.st_ino in linked:
                    continue
                if stat.S_ISDIR(status.st_mode):
                    todo.append(here + "/" + entry.name)
                elif status.st_nlink > 1:
                    linked[status.st_ino] = None
                yield status.st_blocks * 512


def empty(top: int, problems: List[str], shown: str, keep: Optional[str] = None) -> Iterator[None]:
    """Remove everything below a directory, step by step."""
    mount = mount_of(top)
    _open_up(top)
    stack: List[Tuple[int, List[str], str]] = [(top, [name for name in os.listdir(top) if name != keep], "")]

    def failed(what: str, why: Optional[str]) -> None:
        if len(problems) < PROBLEMS:
            path = "/".join([shown] + [part[2] for part in stack[1:]] + [what])
            problems.append("%s was not removed: %s" % (path, why))

    try:
        while stack:
            yield
            fd, names, own = stack[-1]
            if not names:
                stack.pop()
                if stack:
                    os.close(fd)
                    try:
                        os.rmdir(own, dir_fd=stack[-1][0])
                    except OSError as error:
                        if not (error.errno == errno.ENOTEMPTY and problems):
                            failed(own, error.strerror)
                continue
            name = names.pop()
            try:
                try:
                    os.unlink(name, dir_fd=fd)
                    continue
                except FileNotFoundError:
                    continue
                except (IsADirectoryError, PermissionError):
                    if not stat.S_ISDIR(os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode):
                        raise
                child = _open_folder(name, fd, mount)
                if child is None:
                    failed(name, "it is a mount of its own")
                elif len(stack) > DEPTH:
                    os.close(child)
                    higher = ".rota-deep-" + os.urandom(8).hex()
                    os.rename(name, higher, src_dir_fd=fd, dst_dir_fd=top)
                    stack[0][1].append(higher)
                else:
                    try:
                        stack.append((child, os.listdir(child), name))
                    except OSError:
                        os.close(child)
                        raise
            except OSError as error:
                failed(name, error.strerror)
    finally:
        for fd, _, _ in stack[1:]:
            os.close(fd)


def _open_up(fd: int) -> None:
    """Let us use a directory whose permissions its job has taken away."""
    mode = os.fstat(fd).st_mode & 0o7777
    if mode & 0o700 != 0o700:
        os.fchmod(fd, mode | 0o700)


def _open_folder(name: str, fd: int, mount: str) -> Optional[int]:
    """Open a directory for emptying, making it accessible; None if it is on another mount."""
    probe = os.open(name, PROBE, dir_fd=fd)
    try:
        if mount_of(probe) != mount:
            return None
        mode = os.fstat(probe).st_mode
        if mode & 0o700 != 0o700:
            os.chmod("/proc/self/fd/%d" % probe, 0o700)
        return os.open(".", FOLDER, dir_fd=probe)
    finally:
        os.close(probe)
