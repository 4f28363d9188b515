"""The kind of file system that a path is on: network ones lose locks, and hold no sockets for other hosts."""

import os

__all__ = ["NETWORK", "kind_of", "warning_for"]

NETWORK = frozenset((
    "nfs", "nfs4", "lustre", "gpfs", "beegfs", "fhgfs", "cifs", "smb3", "smbfs", "ceph", "glusterfs", "afs", "pvfs2",
    "orangefs", "wekafs", "panfs", "9p", "fuse.sshfs", "fuse.glusterfs", "fuse.ceph", "fuse.gpfs", "fuse.lustre",
    "fuse.juicefs", "dvs", "cvmfs",
))  # fmt: skip


def kind_of(path: str, mounts: str = "/proc/self/mountinfo") -> "str | None":
    """The type of the file system that holds `path` (which may not exist yet), or None where nobody says."""
    path = os.path.realpath(path)
    best, kind = -1, None
    try:
        with open(mounts, "rb") as file:
            lines = file.read().splitlines()
    except OSError:
        return None
    for line in lines:
        before, dash, after = line.partition(b" - ")
        fields = before.split()
        if not dash or len(fields) < 5:
            continue
        point = os.fsdecode(_unescape(fields[4]))
        # Later lines are mounted over earlier ones, so on equal length the last wins.
        if (path == point or path.startswith(point.rstrip("/") + "/")) and len(point) >= best:
            best, kind = len(point), os.fsdecode(after.split()[0])
    return kind


def _unescape(field: bytes) -> bytes:
    for code, char in ((b"\\040", b" "), (b"\\011", b"\t"), (b"\\012", b"\n"), (b"\\134", b"\\")):
        field = field.replace(code, char)
    return field


def warning_for(path: str) -> "str | None":
    """What to tell a user whose home is on a network file system, or None."""
    kind = kind_of(path)
    if kind not in NETWORK:
        return None
    return (
        f"{path} is on a network file system ({kind}): slower, and as safe as its locks are; "
        "set ROTA_HOME to a local disk if the manager always runs on one host"
    )
