"""Commands on another host, through the system's own ssh."""

import contextlib
import os
import shlex
import shutil
import stat
import tempfile
from collections.abc import Sequence

from rota.drivers.dialect import Answer
from rota.drivers.transport import LocalTransport, PrefixTransport, Transport, UnreachableError

__all__ = ["SshTransport"]

PATH_MOST = 60
"""Of the directory of a master's socket: ssh adds a hash of 40 characters, and the path of a socket is short."""
CONNECT_S = 15
PERSIST_S = 600
NOT_LET_IN = ("Permission denied", "Host key verification failed", "Too many authentication failures")
NOT_THERE = (
    "Connection refused",
    "Connection timed out",
    "Could not resolve hostname",
    "No route to host",
    "Network is unreachable",
    "kex_exchange_identification",
    "Bad configuration option",
    "Operation timed out",
)


class SshTransport(PrefixTransport):
    """Commands on another host, over one connection that they share and that outlives them for a while.

    It never asks for a password: where one is needed, somebody opens the connection by hand and it is used from then
    on. `over` is where ssh itself runs: another SshTransport makes a chain.
    """

    def __init__(
        self,
        host: str,
        *,
        over: Transport | None = None,
        options: Sequence[str] = (),
        directory: str | None = None,
        control_path: str | None = None,
    ) -> None:
        if host.startswith("-") or not host:
            raise ValueError(f"not the name of a host: {host!r}")
        self._own_directory: str | None = None
        if control_path is None and over is None:
            directory = directory or shared_directory()
            if directory is None:
                directory = self._own_directory = tempfile.mkdtemp(prefix="rota-ssh-", dir="/tmp")
            control_path = f"{_private(directory)}/%C"
        control_path = control_path or "~/.ssh/rota-%C"
        self.host = host
        self._connect = ("ssh", "-o", "BatchMode=yes", "-o", f"ControlPath={control_path}", *options)
        outer = over or LocalTransport()
        self._over = outer
        prefix = (
            *self._connect,
            *("-o", "ControlMaster=auto", "-o", f"ControlPersist={PERSIST_S}", "-o", f"ConnectTimeout={CONNECT_S}"),
            *("-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=4", "-o", "LogLevel=ERROR", "-T", host, "--"),
        )
        name = host if over is None else f"{host} (over {outer.name})"
        super().__init__(outer, prefix, joined=True, name=name)

    def unreachable(self, answer: Answer, argv: Sequence[str]) -> UnreachableError:
        """The error for what ssh said: not let in, not there, or lost on the way (then the command may have run)."""
        words = answer.stderr.strip()[-500:] or f"ssh ended with code {answer.code}"
        if any(text in words for text in NOT_LET_IN):
            stay = ("-o", "ControlMaster=yes", "-o", "ControlPersist=yes", "-fN")
            by_hand = shlex.join(("ssh", *self._connect[3:], *stay, self.host))
            what = f"{self.name} needs a login ({words}); open it by hand: {by_hand}"
            return UnreachableError(what, ran=False, login=True)
        if any(text in words for text in NOT_THERE) or answer.code == 127:
            return UnreachableError(f"{self.name} cannot be reached: {words}", ran=False)
        return UnreachableError(f"the connection to {self.name} was lost: {words}", ran=True)

    def argv(self, words: Sequence[str]) -> tuple[str, ...]:
        """The command on this host that runs another there, with its input and output."""
        return (*self._prefix, shlex.join(words))

    async def close(self) -> None:
        """End the shared connection, if there is one."""
        await self._over.run((*self._connect, "-O", "exit", self.host), timeout_s=10)
        if self._own_directory is not None:
            shutil.rmtree(self._own_directory, ignore_errors=True)


def shared_directory() -> str | None:
    """A directory for the sockets of all managers of a user: a connection opened by hand serves the next one too.

    None: it is not safe.
    """
    directory = f"/tmp/rota-ssh-{os.getuid()}"
    with contextlib.suppress(FileExistsError):
        os.mkdir(directory, 0o700)
    found = os.lstat(directory)
    mine = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
    return directory if mine and not found.st_mode & 0o077 else None


def _private(directory: str) -> str:
    os.makedirs(directory, 0o700, exist_ok=True)
    if os.stat(directory).st_mode & 0o077:
        raise ValueError(f"{directory} is open to others; it holds the sockets of ssh connections: chmod 700 it")
    if len(directory) > PATH_MOST:
        raise ValueError(f"{directory} is too long a path for the sockets of ssh connections")
    return directory
