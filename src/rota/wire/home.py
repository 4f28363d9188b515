"""The names under `$ROTA_HOME` that both ends of the wire know, and how a long path to the socket is shortened.

Imported by every start of the command line: keep it light.
"""

import os

from rota.model.errors import DeniedError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType

__all__ = [
    "CLIENT", "SocketPath", "check_private", "client_token_path", "default_home", "job_address", "private_directory",
    "private_place", "read_own", "read_private", "token_file", "write_private",
]  # fmt: skip

SOCKET = "manager.sock"
NOTICE = "manager.json"
TLS = "tls"
CA = "ca.pem"
TOKENS = "tokens"
PRIVATE = "private"
"""What no node needs: keys, and the tokens of clients."""
CLIENT = "client"
"""The name of the token by which a user's own clients come over TLS. No allocation may be called so."""

MAX_SOCKET_PATH = 100
"""Bytes. The kernel takes 107 on Linux and 103 elsewhere."""


def default_home() -> str:
    """`$ROTA_HOME`, or `~/.rota`: always absolute."""
    return os.path.abspath(os.environ.get("ROTA_HOME") or os.path.expanduser("~/.rota"))


def absolute(home: "str | None") -> str:
    """The absolute path of a home; of the default home if none is given."""
    return os.path.abspath(home) if home else default_home()


def private_place(home: str) -> str:
    """The directory of keys and clients' tokens: in the home, or (`$ROTA_PRIVATE`) where no node can see it."""
    return os.path.abspath(os.environ.get("ROTA_PRIVATE") or os.path.join(home, PRIVATE))


def job_address() -> "str | None":
    """`$ROTA_ADDRESS`: where the manager of the job is that this runs in; not if a home is named (`$ROTA_HOME`)."""
    return None if os.environ.get("ROTA_HOME") else os.environ.get("ROTA_ADDRESS") or None


def token_file(home: str) -> "str | None":
    """`$ROTA_TOKEN_FILE`; None: there is none, or it is for the manager of the job that this runs in, not this one."""
    address = os.environ.get("ROTA_ADDRESS") or f"unix:{home}/{SOCKET}"
    path = address.partition(":")[2] if address.startswith("unix:") else ""
    return os.environ.get("ROTA_TOKEN_FILE") or None if os.path.dirname(path) == home else None


def client_token_path(home: str) -> str:
    """The file with the token that clients prove: `$ROTA_TOKEN_FILE`, or that of the user's own clients."""
    return token_file(home) or os.path.join(private_place(home), CLIENT)


class SocketPath:
    """A name for a socket in a directory that is short enough to bind or connect to, valid inside the `with`.

    Where the real path is too long, the name goes through a descriptor of the directory, which Linux shows under /proc.
    """

    __slots__ = ("_fd", "_home")

    def __init__(self, home: str) -> None:
        self._home = home
        self._fd = -1

    def __enter__(self) -> str:
        path = os.path.join(self._home, SOCKET)
        if len(os.fsencode(path)) <= MAX_SOCKET_PATH:
            return path
        if not os.path.isdir("/proc/self/fd"):
            raise OSError(36, f"path is longer than {MAX_SOCKET_PATH} bytes; set ROTA_HOME to a shorter one", path)
        self._fd = os.open(self._home, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        return f"/proc/self/fd/{self._fd}/{SOCKET}"

    def __exit__(
        self, kind: "type[BaseException] | None", error: "BaseException | None", trace: "TracebackType | None"
    ) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def write_private(path: str, data: bytes) -> None:
    """Put a file with mode 0600 in place, whole or not at all, following no link."""
    new = f"{path}.new-{os.getpid()}-{os.urandom(4).hex()}"
    fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(fd)
        os.rename(new, path)
    except BaseException:
        os.unlink(new)
        raise


def read_private(path: str, most: int = 65_536) -> bytes:
    """Read a secret, unless somebody else could have read or written it."""
    return _read(path, 0o077, "with mode 0600; remove it and start the manager again", most)


def read_own(path: str, most: int = 65_536) -> bytes:
    """Read what is believed, unless somebody else could have written it."""
    return _read(path, 0o022, "that nobody else can write", most)


def _read(path: str, denied: int, wanted: str, most: int) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status = os.fstat(fd)
        if status.st_uid != os.getuid() or status.st_mode & (0o170000 | denied) != 0o100000:
            raise DeniedError(f"{path} must be a file of yours {wanted}")
        return os.read(fd, most)
    finally:
        os.close(fd)


def private_directory(path: str) -> None:
    """Make sure that a directory exists, is ours, is not a link, and that nobody else can enter it."""
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        pass
    check_private(path)


def check_private(path: str) -> None:
    """See that a directory is ours, is not a link, and that nobody else can enter it."""
    status = os.lstat(path)
    if status.st_mode & 0o170000 == 0o120000:
        raise DeniedError(f"{path} is a symbolic link; use the directory itself")
    if status.st_mode & 0o170000 != 0o040000:
        raise DeniedError(f"{path} is not a directory")
    if status.st_uid != os.getuid():
        raise DeniedError(
            f"{path} belongs to uid {status.st_uid}, not to you (uid {os.getuid()}); choose another ROTA_HOME"
        )
    if status.st_mode & 0o077:
        raise DeniedError(
            f"{path} can be entered by others (mode {status.st_mode & 0o7777:04o}); run: chmod 700 {path}"
        )
