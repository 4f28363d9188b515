"""What jobs get to reach their manager with: its address, and a token in a file of their own.

The token is good for the length of the attempt, and for adding jobs; the manager works it out in the same way. Files
are kept and written again: a job costs one small write.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Dict, List

if TYPE_CHECKING:
    from rota.runner.connection import Target
    from rota.runner.lease import Key
    from rota.runner.protocol import Runner

__all__ = ["Credentials"]

SIZE = 160  # of a token file: tokens are shorter, and what is left of it is blank


class Credentials:
    """The token files of a runner's jobs, in its output directory."""

    def __init__(self, runner: Runner, target: Target, directory: str) -> None:
        self._runner = runner
        self._target = target
        self._directory = os.path.join(directory, "jobs-%d" % os.getpid())
        self._files: List[int] = []
        self._free: List[int] = []
        self._used: Dict[Key, int] = {}
        self._problem = False

    def variables(self, key: Key) -> Dict[bytes, bytes]:
        """What a job is told; nothing if the manager is of a version that has no such tokens."""
        secret = self._runner.job_secret
        if secret is None or self._problem:
            return {}
        number = self._used.get(key)
        if number is None:
            try:
                number = self._number()
                os.pwrite(self._files[number], _token(secret, key), 0)
            except OSError:  # the job can do without
                self._problem = True
                return {}
            self._used[key] = number
        target = self._target
        address = "unix:" + target.path if target.path else "tls:%s:%d" % (target.host, target.port)
        return {
            b"ROTA_ADDRESS": os.fsencode(address),
            b"ROTA_TOKEN_FILE": os.fsencode(self._path(number)),
        }

    def _number(self) -> int:
        """The number of a file that no job uses."""
        if not self._free:
            over = [key for key in self._used if not self._runner.has(key)]
            self._free = [self._used.pop(key) for key in over]
        if self._free:
            return self._free.pop()
        if not self._files:
            self._prepare()
        number = len(self._files)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        self._files.append(os.open(self._path(number), flags, 0o600))
        return number

    def _prepare(self) -> None:
        """Make the directory, with what a job needs to trust the manager's certificate."""
        os.makedirs(self._directory, 0o700)
        if self._target.ca is not None:
            with open(self._target.ca, "rb") as file:
                ca = file.read()
            fd = os.open(os.path.join(self._directory, "ca.pem"), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            os.write(fd, ca)
            os.close(fd)

    def _path(self, number: int) -> str:
        return os.path.join(self._directory, "token-%d" % number)

    def close(self) -> None:
        """Remove the files: no job runs any more."""
        if not self._files:
            return
        for fd in self._files:
            os.close(fd)
        import shutil

        shutil.rmtree(self._directory, ignore_errors=True)
        self._files, self._free, self._used = [], [], {}


def _token(secret: bytes, key: Key) -> bytes:
    """The content of a token file."""
    try:
        from _blake2 import blake2b  # a tenth of the time that hashlib takes to load
    except ImportError:
        from hashlib import blake2b
    name = b"%d.%d.%d" % key
    text: bytes = b"job-%b.%b" % (name, blake2b(name, digest_size=32, key=secret).hexdigest().encode())
    return text.ljust(SIZE, b"\n")
