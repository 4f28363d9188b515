"""Files as they are brought from one place to another: sent as a list of what there is, the bytes, and their digest.

What is received lies under another name until it is whole, verified and on disk; only then does it get its own. Room is
taken before the first byte. A file whose transfer was cut goes on where it was; one that changes while it is read is
given up, and so is a link that leads out of the directory that is sent. Only the standard library, and Python ≥ 3.8.
"""

from __future__ import annotations

import errno
import fcntl
import fnmatch
import glob
import hashlib
import json
import os
import shutil
import stat
import sys
import time
from typing import Any, BinaryIO, Dict, Iterator, List, Optional, Tuple

__all__ = [
    "BLOCK", "StagingError", "checksum", "discard", "link", "look", "match", "read_line", "receive", "received",
    "remove", "send", "sizes_of", "take", "write_line",
]  # fmt: skip

BLOCK = 1 << 20
LINE = 64 << 20
PART = ".rota-part-"
COUNT, LOCK = ".count", ".lock"
TELL_S = 0.5
KEEP_FREE = 4 << 20
"""Bytes that are left free on a disk beside what is received."""


class StagingError(Exception):
    """Something cannot be brought; `code` says of what kind that is.

    `gone`, `changed` and `bad` are of the source, `full` and `denied` of the place where it goes, `cut` of the way.
    """

    def __init__(self, code: str, words: str) -> None:
        super().__init__(words)
        self.code = code


# ---- what is there ---------------------------------------------------------------------------------------------------


def look(paths: List[str], bad: Optional[Dict[str, str]] = None) -> Dict[str, Any]:
    """Path → size, time of change and kind of what is there; nothing of what is not, or (in `bad`) cannot be read."""
    found: Dict[str, Any] = {}
    for path in paths:
        try:
            rows = list(_walk(path, strict=False))
        except (FileNotFoundError, NotADirectoryError):
            continue
        except (OSError, StagingError) as error:
            if bad is not None:
                bad[path] = str(error)
            continue
        newest = max([row["mtime"] for row in rows if row["kind"] != "link"])  # of a link it cannot be set alike
        is_tree = rows[0]["kind"] == "dir"
        found[path] = {"size": sizes_of(rows), "mtime": newest, "kind": "tree" if is_tree else "file"}
    return found


def sizes_of(rows: List[Dict[str, Any]]) -> int:
    """The bytes of the files of a list."""
    return sum([row["size"] for row in rows])


def match(patterns: List[str]) -> Dict[str, List[str]]:
    """Pattern → the paths that it matches."""
    out = {}
    for pattern in patterns:
        found = sorted(glob.glob(pattern, recursive=True)) if glob.has_magic(pattern) else [pattern]
        out[pattern] = [path for path in found if os.path.lexists(path) and not _is_part(path)]
    return out


def _is_part(path: str) -> bool:
    return fnmatch.fnmatch(os.path.basename(path), PART + "*")


def _walk(path: str, strict: bool = True) -> Iterator[Dict[str, Any]]:
    """What is at a path: the file, or the directory and all that is in it, in order.

    A link that leads out of the directory cannot be brought elsewhere, and is used where it is.
    """
    top = os.stat(path)
    if stat.S_ISREG(top.st_mode):
        yield _row("", "file", top)
        return
    if not stat.S_ISDIR(top.st_mode):
        raise StagingError("bad", "%s is neither a file nor a directory" % path)
    yield _row("", "dir", top)
    real = os.path.realpath(path)
    for at, names, files in os.walk(path, onerror=_raise):
        names.sort()
        for name in sorted([*names, *files]):
            if name.startswith(PART):
                continue
            whole = os.path.join(at, name)
            inner = os.path.relpath(whole, path)
            found = os.lstat(whole)
            if stat.S_ISLNK(found.st_mode):
                target = os.path.realpath(whole)
                if strict and target != real and not target.startswith(real + os.sep):
                    words = "%s is a link out of the directory, to %s" % (whole, os.readlink(whole))
                    raise StagingError("bad", words)
                link = os.path.relpath(target, os.path.realpath(at))
                yield {"path": inner, "kind": "link", "size": 0, "mode": 0, "mtime": found.st_mtime_ns, "link": link}
            elif stat.S_ISDIR(found.st_mode):
                yield _row(inner, "dir", found)
            elif stat.S_ISREG(found.st_mode):
                yield _row(inner, "file", found)
            else:
                raise StagingError("bad", "%s is neither a file nor a directory" % whole)


def _raise(error: OSError) -> None:
    raise error


def _row(path: str, kind: str, found: os.stat_result) -> Dict[str, Any]:
    size = found.st_size if kind == "file" else 0
    return {"path": path, "kind": kind, "size": size, "mode": found.st_mode & 0o777, "mtime": found.st_mtime_ns}


def checksum(path: str) -> str:
    """The digest of what is at a path: the same wherever it is, whatever its times and modes are.

    Of a file it is that of its bytes, as everybody's SHA-256; and it is what a transfer compares.
    """
    digest = hashlib.sha256()
    for row in _walk(path):
        digest.update(_mark(row))
        if row["kind"] == "file":
            with open(os.path.join(path, row["path"]) if row["path"] else path, "rb") as file:
                for block in iter(lambda: file.read(BLOCK), b""):
                    digest.update(block)
    return digest.hexdigest()


def _mark(row: Dict[str, Any]) -> bytes:
    """What goes into a digest before the bytes of a file in a directory: a name that changes is another directory."""
    if not row["path"]:
        return b""
    words = "%s\0%s\0%d\0%s\0" % (row["path"], row["kind"], row["size"], row.get("link", ""))
    return words.encode("utf-8", "surrogateescape")


# ---- the sending side ------------------------------------------------------------------------------------------------


def send(path: str, offset: int, out: BinaryIO) -> None:
    """Write the list, the bytes from an offset on, and the digest of all. What goes wrong is said in the stream."""
    try:
        rows = list(_walk(path))
    except FileNotFoundError:
        write_line(out, {"error": "gone", "words": "%s is not there any more" % path})
        return
    except (OSError, StagingError) as error:
        write_line(out, {"error": getattr(error, "code", "bad"), "words": str(error)})
        return
    total = sizes_of(rows)
    write_line(out, {"rows": rows, "size": total})
    digest, sent = hashlib.sha256(), 0
    problem = None
    for row in rows:
        digest.update(_mark(row))
        if row["kind"] == "file":
            whole = os.path.join(path, row["path"]) if row["path"] else path
            sent, problem = _send_file(whole, row, digest, sent, offset, out)
            if problem is not None:
                break
    write_line(out, {"sha256": digest.hexdigest()} if problem is None else {"error": "changed", "words": problem})
    out.flush()


def _send_file(
    path: str, row: Dict[str, Any], digest: Any, sent: int, offset: int, out: BinaryIO
) -> Tuple[int, Optional[str]]:
    """Send the bytes of one file; what changed of it meanwhile is filled up, and told."""
    left, problem = row["size"], None
    try:
        with open(path, "rb") as file:
            while left:
                block = file.read(min(BLOCK, left))
                if not block:
                    break
                digest.update(block)
                fresh = block[max(0, offset - sent) :]
                out.write(fresh)
                sent += len(block)
                left -= len(block)
            after = os.fstat(file.fileno())
        if left or after.st_size != row["size"] or after.st_mtime_ns != row["mtime"]:
            problem = "%s changed while it was copied" % path
    except OSError as error:
        problem = "%s cannot be read: %s" % (path, error)
    while left:  # the other side counts on as many bytes as were announced
        block = b"\0" * min(BLOCK, left)
        out.write(block[max(0, offset - sent) :])
        sent += len(block)
        left -= len(block)
    return sent, problem


def write_line(out: BinaryIO, content: Dict[str, Any]) -> None:
    """Write the list at the head of a stream, or the digest at its end."""
    out.write(json.dumps(content).encode("ascii") + b"\n")
    out.flush()


# ---- the receiving side ----------------------------------------------------------------------------------------------


def part_of(path: str, ident: str) -> str:
    """Where something lies until it is whole: beside its own name."""
    return os.path.join(os.path.dirname(path), PART + ident)


def received(path: str, ident: str) -> int:
    """How many bytes of a file lie here from a transfer that was cut."""
    try:
        found = os.lstat(part_of(path, ident))
        with open(part_of(path, ident) + COUNT) as file:
            count = int(file.read())
    except (OSError, ValueError):
        return 0
    return min(count, found.st_size) if stat.S_ISREG(found.st_mode) else 0


def receive(path: str, ident: str, offset: int, source: BinaryIO, most: Optional[int] = None) -> Dict[str, Any]:
    """Take what `send` sends to a path: whole, or not at all. Says how far it is on standard error."""
    head = read_line(source)
    if "error" in head:
        raise StagingError(head["error"], head["words"])
    rows, total = head["rows"], head["size"]
    is_tree = rows[0]["kind"] == "dir"
    part = part_of(path, ident)
    alone = -1
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        alone = _lock(part)
        if offset > total:
            raise StagingError("changed", "%s became shorter meanwhile" % path)
        if is_tree:
            offset = 0
            shutil.rmtree(part, ignore_errors=True)
        _see_room(os.path.dirname(path), total - offset, most)
        digest = hashlib.sha256()
        count = _Count(total)
        if is_tree:
            _receive_tree(part, rows, source, digest, count)
        else:
            _receive_file(part, rows[0], offset, source, digest, count)
        tail = read_line(source)
        if "error" in tail:
            raise StagingError(tail["error"], tail["words"])
        if tail.get("sha256") != digest.hexdigest():
            raise StagingError("changed", "%s arrived with another digest than it was sent with" % path)
        _put(part, path, is_tree)
        _unlink(part + LOCK)
    except StagingError as error:
        if error.code != "cut":
            _discard(part)
        raise
    except OSError as error:
        if alone >= 0:
            _discard(part)
        code = "full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "denied"
        raise StagingError(code, "%s: %s" % (error.filename or path, error.strerror)) from None
    finally:
        if alone >= 0:
            os.close(alone)
    return {"size": total, "sha256": digest.hexdigest(), **look([path]).get(path, {})}


def _lock(part: str) -> int:
    """Be the only one who writes there: a process that nobody waits for any more may still be at it."""
    while True:
        fd = os.open(part + LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(fd).st_nlink:  # else it was removed by who had it, and means nothing
                return fd
        except BlockingIOError:
            os.close(fd)
            raise StagingError("cut", "what was sent before it is still being written") from None
        os.close(fd)


class _Count:
    """Says now and then how many bytes are here."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.have = 0
        self._next = 0.0

    def add(self, size: int) -> None:
        self.have += size
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + TELL_S
            sys.stderr.write("rota-bytes %d\n" % self.have)
            sys.stderr.flush()


def _see_room(directory: str, size: int, most: Optional[int]) -> None:
    found = os.statvfs(directory)
    free = found.f_bavail * found.f_frsize
    if size + KEEP_FREE > free and size:
        words = "%s has %d bytes free, %d are needed" % (directory, free, size)
        raise StagingError("full", words)
    if most is not None and size > most:
        raise StagingError("full", "%d bytes are needed, %d are left for it" % (size, most))


def _receive_file(part: str, row: Dict[str, Any], offset: int, source: BinaryIO, digest: Any, count: _Count) -> None:
    """Receive one file, going on at an offset; how far it is known to be whole is written beside it."""
    fd = os.open(part, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(fd, "r+b") as file:
        if row["size"]:
            os.posix_fallocate(fd, 0, row["size"])
        left = offset
        while left:
            block = file.read(min(BLOCK, left))
            if not block:
                raise StagingError("changed", "what lay in %s is shorter than it was" % part)
            digest.update(block)
            left -= len(block)
            count.add(len(block))
        have = offset
        try:
            for block in take(source, row["size"] - offset):
                file.write(block)
                digest.update(block)
                have += len(block)
                count.add(len(block))
        finally:
            file.flush()
            with open(part + COUNT, "w") as known:
                known.write("%d" % have)
        os.ftruncate(fd, row["size"])
        os.fchmod(fd, row["mode"])
        os.utime(fd, ns=(row["mtime"], row["mtime"]))
        os.fsync(fd)


def _receive_tree(part: str, rows: List[Dict[str, Any]], source: BinaryIO, digest: Any, count: _Count) -> None:
    """Receive a directory below a name that nobody uses."""
    for row in rows:
        inner = row["path"]
        if inner.startswith("/") or ".." in inner.split("/"):
            raise StagingError("bad", "%r leads out of the directory" % inner)
        whole = os.path.join(part, inner) if inner else part
        digest.update(_mark(row))
        if row["kind"] == "dir":
            os.mkdir(whole, 0o700)
        elif row["kind"] == "link":
            if os.path.isabs(row["link"]) or _leads_out(os.path.join(os.path.dirname(inner), row["link"])):
                raise StagingError("bad", "%r leads out of the directory" % inner)
            os.symlink(row["link"], whole)
        else:
            fd = os.open(whole, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
            with os.fdopen(fd, "wb") as file:
                if row["size"]:
                    os.posix_fallocate(fd, 0, row["size"])
                for block in take(source, row["size"]):
                    file.write(block)
                    digest.update(block)
                    count.add(len(block))
                file.flush()
                os.fchmod(fd, row["mode"])
                os.utime(fd, ns=(row["mtime"], row["mtime"]))
                os.fsync(fd)
    for row in reversed(rows):
        if row["kind"] == "dir":
            whole = os.path.join(part, row["path"]) if row["path"] else part
            os.chmod(whole, row["mode"] | 0o700)
            os.utime(whole, ns=(row["mtime"], row["mtime"]))


def _leads_out(inner: str) -> bool:
    return os.path.normpath(inner).split(os.sep)[0] == ".."


def take(source: BinaryIO, size: int) -> Iterator[bytes]:
    """So many bytes of a stream, a block at a time."""
    while size:
        block = source.read(min(BLOCK, size))
        if not block:
            raise StagingError("cut", "the connection was cut, %d bytes before the end" % size)
        size -= len(block)
        yield block


def read_line(source: BinaryIO) -> Dict[str, Any]:
    """The next line of a stream: the list at its head, or the digest at its end."""
    line = source.readline(LINE)
    if not line.endswith(b"\n"):
        raise StagingError("cut", "the connection was cut")
    try:
        found: Dict[str, Any] = json.loads(line)
        return found
    except ValueError:
        raise StagingError("bad", "the other side does not send files: %.200r" % line) from None


def _put(part: str, path: str, is_tree: bool) -> None:
    """Give what is whole its own name. A directory that is there already is replaced as a whole."""
    if is_tree and os.path.isdir(path):
        old = part + ".old"
        os.rename(path, old)
        os.rename(part, path)
        shutil.rmtree(old, ignore_errors=True)
    else:
        os.rename(part, path)
    _unlink(part + COUNT)
    fd = os.open(os.path.dirname(path), os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def discard(path: str, ident: str) -> None:
    """Remove what lies here of a transfer that will not go on. Raises StagingError if somebody still writes there."""
    part = part_of(path, ident)
    if not os.path.isdir(os.path.dirname(path)):
        return
    fd = _lock(part)
    try:
        _discard(part)
    finally:
        os.close(fd)


def _discard(part: str) -> None:
    for name in (part, part + ".old"):
        if os.path.isdir(name) and not os.path.islink(name):
            shutil.rmtree(name, ignore_errors=True)
        else:
            _unlink(name)
    _unlink(part + COUNT)
    _unlink(part + LOCK)


def _unlink(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        return


def link(path: str, target: str) -> None:
    """Make a link to what is here already, under the name by which a job reads it."""
    if os.path.islink(path) and os.readlink(path) == target:
        return
    if os.path.lexists(path) and not os.path.islink(path):
        raise StagingError("denied", "%s is there already, and is another file" % path)
    new = part_of(path, "%d-%s" % (os.getpid(), os.urandom(4).hex()))
    os.symlink(target, new)
    os.rename(new, path)


def remove(path: str, size: int, mtime: int) -> bool:
    """Remove what was brought here, if it is still what was brought; whether it is gone."""
    found = look([path]).get(path)
    if found is None:
        return True
    if (found["size"], found["mtime"]) != (size, mtime):
        return False
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    else:
        os.unlink(path)
    return True
