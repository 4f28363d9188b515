"""Every file name under `$ROTA_HOME`, and making that directory safe to use.

The command line imports this on its way to the client: keep it light.
"""

import errno
import os

from rota.model.errors import DeniedError, NoSpaceError, NotFoundError, RotaError
from rota.wire import home as wire
from rota.wire.home import default_home, private_directory, write_private

__all__ = ["Paths", "default_home", "prepare"]


class Paths:
    """The files of one home, by name."""

    def __init__(self, home: "str | None" = None) -> None:
        self.home = wire.absolute(home)
        self.config = os.path.join(self.home, "config.toml")
        """Settings, written by the user."""
        self.pid = os.path.join(self.home, "manager.pid")
        """The manager's process id, for scripts. The truth is in the lock."""
        self.log = os.path.join(self.home, "manager.log")
        """The manager's log."""
        self.socket = os.path.join(self.home, wire.SOCKET)
        """Where the manager listens for clients on its host."""
        self.notice = os.path.join(self.home, wire.NOTICE)
        """Where the manager runs and listens (`manager.json`), for our other hosts that share this home."""
        self.database = os.path.join(self.home, "rota.db")
        """The store."""
        self.output = os.path.join(self.home, "output")
        """What jobs print, in a directory per runner."""
        self.backups = os.path.join(self.home, "backups")
        """Copies of the store."""
        self.tls = os.path.join(self.home, wire.TLS)
        """The manager's CA file, for runners and remote clients."""
        self.ca = os.path.join(self.tls, wire.CA)
        """The CA file that runners and remote clients are given."""
        self.tokens = os.path.join(self.home, wire.TOKENS)
        """One file per allocation."""
        self.private = wire.private_place(self.home)
        """Keys, and the tokens of clients: what no node needs to see (`$ROTA_PRIVATE`)."""
        self.audit = os.path.join(self.home, "audit.jsonl")
        """Who did what, and what was refused."""
        self.quarantine = os.path.join(self.home, "quarantine")
        """What made the core fail, and was refused for it."""
        self.relay = os.path.join(self.home, "relay.json")
        """Which cluster job may be the manager (`rota up --on`), and which comes next."""
        self.relay_arrived = os.path.join(self.home, "relay.arrived")
        """The tag of a successor that waits for the lock."""
        self.lock = os.path.join(self.home, "lock")
        """Held by the one manager of this home."""

    def __repr__(self) -> str:
        return f"Paths({self.home!r})"


def prepare(home: "str | None" = None) -> Paths:
    """Make the home and its directories, all 0700, and see that they are ours and can be written.

    What exists with a wrong owner or mode is refused, not repaired: somebody may have read or planted something there.
    """
    paths = Paths(home)
    try:
        _make_parents(paths.home)
        for directory in (paths.home, paths.output, paths.tls, paths.tokens, paths.private):
            private_directory(directory)
        _try_writing(paths)
    except OSError as error:
        raise _explain(paths.home, error) from error
    return paths


def _make_parents(path: str) -> None:
    """Make the directories above `path` that are missing, for us alone, whatever the umask is."""
    parent = os.path.dirname(path)
    if parent != path and not os.path.isdir(parent):
        _make_parents(parent)
        os.mkdir(parent, 0o700)


def _try_writing(paths: Paths) -> None:
    """A page, synced: the first sign of a full disk or quota shall come here."""
    probe = os.path.join(paths.home, f"probe-{os.getpid()}")
    try:
        write_private(probe, b"\0" * 4096)
    finally:
        if os.path.lexists(probe):
            os.unlink(probe)


def _explain(home: str, error: OSError) -> RotaError:
    where = error.filename or home
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return NoSpaceError(
            f"no space left for {home} ({error.strerror}); free some, or set ROTA_HOME to another place"
        )
    if error.errno == errno.EROFS:
        return DeniedError(f"{where} is on a read-only file system; set ROTA_HOME to a place that can be written")
    if error.errno in (errno.EACCES, errno.EPERM):
        return DeniedError(f"{where} cannot be written by you; set ROTA_HOME to a place of yours")
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return NotFoundError(f"{where}: {error.strerror}; set ROTA_HOME to a place that exists")
    return RotaError(f"cannot use {where} as ROTA_HOME: {error.strerror or error}")
