"""Replicas: which files are at which places."""

from msgspec import Struct

__all__ = ["URL", "Replica"]

URL = "s3://"
"""How the address of an object begins."""


class Replica(Struct, frozen=True):
    """A file or directory at a place."""

    path: str
    location: str
    """A site, if all its nodes see the file, or `SITE/HOST`; `s3` for an object."""
    size: int
    mtime: int = 0
    """When it was last changed, in nanoseconds: copies have that of what they were copied from."""
    checksum: str | None = None
    valid: bool = True
    """Whether it can be used: it was there, and as it should be, when it was last looked at."""
    cached: bool = False
    """Whether rota brought it there, and may remove it; else it is somebody's own."""
    used: float = 0.0
    """Wall-clock time at which a job last began to use it."""
    why: str = ""
    """Why it is not valid."""

    @property
    def key(self) -> tuple[str, str]:
        """(path, location)."""
        return self.path, self.location
