"""Every file name under `$ROTA_HOME`, and making that directory safe to use.

The command line imports this on its way to the client: keep it light.
"""

import errno
import os

from rota.model.errors import DeniedError, NoSpaceError, NotFoundError, RotaError
from rota.wire import home as wire
from rota.wire.home import default_home, private_directory, write_private

__all__ = ["CONFIG", "PILOT_HOME", "Paths", "default_home", "own_directory", "prepare"]


CONFIG = "config.toml"
PILOT_HOME = ".rota-pilot"
"""The home of a pilot that is given none, in the working directory."""


class Paths:
    """The files of one home, by name."""

    def __init__(self, home: "str | None" = None) -> None:
        self.home = wire.absolute(home)
        self.config = os.path.join(self.home, CONFIG)
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
        self.pilot = os.path.join(self.home, "pilot.json")
        """The allocation that the manager runs in and its jobs are for (`rota pilot`)."""
        self.deployment = os.path.join(self.home, "deployment.json")
        """The server in a cloud that has the queue of this home, or had it, or will (`rota cloud deploy`)."""
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


def own_directory(path: str) -> None:
    """Make a directory, unless it is there, and see that nobody else can put anything in it, or another in its place.

    So it is ours, no link, and not open for writing; and each one above it belongs to us or to root, and others cannot
    write there, or (a sticky one, such as /tmp) cannot take away what is ours.
    """
    path = os.path.abspath(path)
    _make_parents(path)
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        pass
    found = os.lstat(path)
    why = None
    if found.st_mode & 0o170000 != 0o040000:
        why = "is not a directory" if found.st_mode & 0o170000 != 0o120000 else "is a symbolic link: name its target"
    elif found.st_uid != os.getuid():
        why = f"belongs to uid {found.st_uid}, not to you: make one of your own below it, and name that"
    elif found.st_mode & 0o022 and not _is_private_group(found):
        why = f"can be written by others (mode {found.st_mode & 0o7777:04o}): chmod go-w it, and see who wrote to it"
    if why is not None:
        raise DeniedError(f"{path} {why}. What nodes run as you is kept there")
    for above in {*_above(path), *_above(os.path.realpath(path))}:
        found = os.lstat(above)
        if found.st_uid not in (0, os.getuid()) or (
            found.st_mode & 0o170000 == 0o040000
            and found.st_mode & 0o022
            and not found.st_mode & 0o1000
            and not _is_private_group(found)
        ):
            raise DeniedError(
                f"{path} is below {above}, where others could put something else in its place (uid {found.st_uid}, "
                f"mode {found.st_mode & 0o7777:04o}): choose a place that only you can write"
            )


def _above(path: str) -> "list[str]":
    above = []
    while path != os.path.dirname(path):
        path = os.path.dirname(path)
        above.append(path)
    return above


def _is_private_group(found: os.stat_result) -> bool:
    """Whether only the group may write, and that is the user's own, as many systems make one for each user."""
    if found.st_mode & 0o002 or found.st_gid != os.getgid():
        return False
    import grp
    import pwd

    try:
        group, user = grp.getgrgid(found.st_gid), pwd.getpwuid(os.getuid())
    except KeyError:
        return False
    return group.gr_name == user.pw_name and set(group.gr_mem) <= {user.pw_name}
