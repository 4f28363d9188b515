"""What jobs get to reach their manager with: its address, and a token in a file of their own.

The token is good for the length of the attempt, and for adding jobs; the manager works it out in the same way. Files
are kept and written again: a job costs one small write.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Callable, Dict, List, Optional

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
        address = "unix:" + target.path if target.path else "tls:%s:%d" % (target.host, target.port)
        self._address = os.fsencode(address)
        self._ca = target.ca
        self._directory = os.path.join(directory, "jobs-%d" % os.getpid())
        self._files: List[int] = []
        self._told: List[Dict[bytes, bytes]] = []
        self._words: List[bytes] = []
        self._free: List[int] = []
        self._used: Dict[Key, int] = {}
        self._secret: Optional[bytes] = None
        self._sign: Callable[[bytes], bytes] = _nothing
        self._problem = False

    def variables(self, key: Key) -> Dict[bytes, bytes]:
        """What a job is told, not to be changed; nothing if the manager is of a version that has no such tokens."""
        number = self._file(key)
        return {} if number is None else self._told[number]

    def words(self, key: Key) -> bytes:
        """The same as two words NAME=value, each behind a NUL."""
        number = self._file(key)
        return b"" if number is None else self._words[number]

    def _file(self, key: Key) -> Optional[int]:
        """The number of the file that has the token of an attempt."""
        secret = self._runner.job_secret
        if secret is None or self._problem:
            return None
        if secret is not self._secret:
            self._secret, self._sign = secret, _signer(secret)
        number = self._used.get(key)
        if number is None:
            try:
                number = self._number()
                os.pwrite(self._files[number], self._sign(b"%d.%d.%d" % key), 0)
            except OSError:  # the job can do without
                self._problem = True
                return None
            self._used[key] = number
        return number

    def _number(self) -> int:
        """The number of a file that no job uses."""
        if not self._free:
            # Few files: a job that we start gets a copy of every descriptor, for the kernel to close again.
            over = [key for key in self._used if not self._runner.runs(key)]
            self._free = [self._used.pop(key) for key in over]
        if self._free:
            return self._free.pop()
        if not self._files:
            self._prepare()
        number = len(self._files)
        path = os.path.join(self._directory, "token-%d" % number)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        self._files.append(os.open(path, flags, 0o600))
        self._told.append({b"ROTA_ADDRESS": self._address, b"ROTA_TOKEN_FILE": os.fsencode(path)})
        self._words.append(b"\0ROTA_ADDRESS=%b\0ROTA_TOKEN_FILE=%b" % (self._address, os.fsencode(path)))
        return number

    def _prepare(self) -> None:
        """Make the directory, with what a job needs to trust the manager's certificate."""
        os.makedirs(self._directory, 0o700)
        if self._ca is not None:
            with open(self._ca, "rb") as file:
                ca = file.read()
            fd = os.open(os.path.join(self._directory, "ca.pem"), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            os.write(fd, ca)
            os.close(fd)

    def close(self) -> None:
        """Remove the files: no job runs any more."""
        if not self._files:
            return
        for fd in self._files:
            os.close(fd)
        import shutil

        shutil.rmtree(self._directory, ignore_errors=True)
        self._files, self._told, self._words, self._free, self._used = [], [], [], [], {}


def _signer(secret: bytes) -> Callable[[bytes], bytes]:
    """What makes the content of a token file from the name of an attempt."""
    try:
        from _blake2 import blake2b  # a tenth of the time that hashlib takes to load
    except ImportError:
        from hashlib import blake2b
    begun = blake2b(digest_size=32, key=secret)

    def sign(name: bytes) -> bytes:
        made = begun.copy()
        made.update(name)
        return (b"job-%b.%b" % (name, made.hexdigest().encode())).ljust(SIZE, b"\n")

    return sign


def _nothing(name: bytes) -> bytes:
    """Before there is a secret: no token."""
    return b""
