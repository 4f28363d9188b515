"""The manager's Unix socket: bound where nobody else can reach it, and whose uid is at the other end."""

import errno
import os
import socket
import stat
import struct

from rota.model.errors import DeniedError, RefusedError, RotaError
from rota.wire.home import SOCKET, SocketPath, private_directory

__all__ = ["bind", "peer_uid", "unbind"]

_LOCAL_PEERCRED = 1


def bind(home: str) -> socket.socket:
    """A bound socket in `home`, mode 0600. Call it only while holding the manager's lock.

    A socket file that nobody listens on is what a killed manager left, and is replaced.
    """
    if not os.path.isdir(home):
        raise RefusedError(f"{home} does not exist or is not a directory")
    private_directory(home)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    mask = os.umask(0o077)
    try:
        with SocketPath(home) as path:
            _remove_stale(home, path)
            sock.bind(path)
            os.chmod(path, 0o600)
        sock.setblocking(False)
    except OSError as error:
        sock.close()
        raise RotaError(f"cannot make the socket {os.path.join(home, SOCKET)}: {error.strerror or error}") from error
    except BaseException:
        sock.close()
        raise
    finally:
        os.umask(mask)
    return sock


def _remove_stale(home: str, path: str) -> None:
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    shown = os.path.join(home, SOCKET)
    if not stat.S_ISSOCK(mode):
        raise RefusedError(f"{shown} is in the way and is not a socket; move it away")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        if probe.connect_ex(path) != errno.ECONNREFUSED:
            raise RefusedError(f"another process listens on {shown}")
    os.unlink(path)


def unbind(home: str) -> None:
    """Remove the socket file."""
    try:
        os.unlink(os.path.join(home, SOCKET))
    except OSError:
        pass


def peer_uid(sock: socket.socket) -> int:
    """The uid of the process at the other end, as the kernel saw it when it connected."""
    if hasattr(socket, "SO_PEERCRED"):
        _, uid, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        return int(uid) & 0xFFFFFFFF
    version, uid = struct.unpack("II", sock.getsockopt(0, _LOCAL_PEERCRED, 76)[:8])
    if version != 0:
        raise DeniedError("the system does not say who connects")
    return int(uid)
