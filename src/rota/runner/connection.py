"""The connection to the manager: frames over a Unix socket or TLS, never blocking.

What cannot be written at once waits in a buffer: a slow manager must not keep the runner from reaping and starting
jobs.
"""

from __future__ import annotations

import _socket
import errno
import json
import os
import select
import struct

TYPE_CHECKING = False  # as in `typing`, which is not worth its load time before the greeting is out
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional

__all__ = ["ClosedError", "Connection", "Target"]

FRAME_LIMIT = 4 << 20  # of what we send
FRAME_LIMIT_IN = 128 << 20  # of what the manager sends: a lease of hundreds of long commands
SOCKET_PATH = 100  # bytes; the kernel takes 107
AT_ONCE = 1 << 16  # bytes: for a larger buffer memory would be asked of the system, and given back, each time
_decode = json.JSONDecoder().decode
_encode = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode
_size = struct.Struct(">I")
WAITING = (errno.EAGAIN, errno.EWOULDBLOCK, errno.EINPROGRESS, errno.EALREADY)


class ClosedError(Exception):
    """The connection is of no more use; says why."""


class Target:
    """Where the manager is and how to prove who we are."""

    def __init__(
        self, text: str, ca: Optional[str] = None, token: Optional[bytes] = None, notice: Optional[str] = None
    ) -> None:
        kind, _, rest = text.partition(":")
        self.ca = ca
        self.token = token
        self.notice = notice  # where a manager says at which address it is: the next may run on another host
        self.path = self.host = ""
        self.port = 0
        if kind == "unix" and rest:
            self.path = rest
        elif kind == "tls" and rest:
            name, _, port = rest.rpartition(":")
            self.host, self.port = name.strip("[]"), int(port)
            if ca is None or token is None:
                raise ValueError("tls: needs --ca and --token-file")
        else:
            raise ValueError("--connect takes unix:PATH or tls:HOST:PORT")

    def shown(self) -> str:
        """The address of the manager, for people."""
        return self.path or "%s:%d" % (self.host, self.port)

    def open(self) -> Connection:
        """Begin to connect; raises OSError if that fails at once."""
        if self.path:
            raw = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
            try:
                raw.setblocking(False)
                _connect(raw, self.path)
            except BaseException:
                raw.close()
                raise
            return Connection(raw)
        from rota.runner.tls import TlsConnection  # loads ssl, which few runners need

        self._look()
        return TlsConnection(self)

    def _look(self) -> None:
        """Take the newest address, if the notice has one."""
        try:
            with open(self.notice or "", "rb") as file:
                said = json.loads(file.read(65_536))
            host, port = said["address"] or said["host"], int(said["port"])
        except (OSError, ValueError, TypeError, KeyError):
            return
        self.host, self.port = str(host), port


def _connect(raw: Any, path: str) -> None:
    """Connect to a socket; a path that is too long goes through a descriptor of its directory."""
    if len(os.fsencode(path)) <= SOCKET_PATH:
        raw.connect(path)
        return
    directory, name = os.path.split(path)
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        raw.connect("/proc/self/fd/%d/%s" % (fd, name))
    finally:
        os.close(fd)


class Connection:
    """A connection that speaks frames. `events` says what epoll should wait for."""

    def __init__(self, sock: Any) -> None:
        self.sock = sock
        self.fd: int = sock.fileno()
        self.ready = True  # the greeting may be sent
        self.broken: Optional[str] = None  # why nothing after the last message returned can be understood
        self._in = bytearray()
        self._out = bytearray()

    @property
    def events(self) -> int:
        """What epoll should wait for."""
        return select.EPOLLIN | select.EPOLLOUT if self._out else select.EPOLLIN

    def greet(self, message: Dict[str, Any]) -> None:
        """Send the greeting; on a Unix socket without a proof."""
        self.send(message)

    def send(self, message: Dict[str, Any]) -> None:
        """Send a message, or as much of it as goes without waiting."""
        body = _encode(message).encode("ascii")
        if len(body) > FRAME_LIMIT:
            raise ClosedError("a message of %d bytes is too long to send" % len(body))
        self._out += _size.pack(len(body))
        self._out += body
        self.flush()

    def flush(self) -> None:
        """Write what waits."""
        while self._out:
            try:
                sent = self._write(self._out)
            except OSError as error:
                if error.errno in WAITING:
                    return
                raise ClosedError("cannot send: %s" % error) from None
            if not sent:
                return
            del self._out[:sent]

    def receive(self) -> List[Dict[str, Any]]:
        """Read what is there; raises ClosedError at the end. See also `broken`."""
        messages: List[Dict[str, Any]] = []
        while True:
            try:
                data = self._read(AT_ONCE)
            except OSError as error:
                if error.errno in WAITING:
                    break
                raise ClosedError("cannot receive: %s" % error) from None
            if data is None:
                break
            if not data:
                if messages:
                    break  # what was said before the end counts; the end is seen again by the next read
                raise ClosedError("closed by the manager")
            self._in += data
            self._split(messages)
            if self.broken or (len(data) < AT_ONCE and not self._decrypted()):
                break
        return messages

    def _decrypted(self) -> bool:
        """Whether there is more in a buffer that epoll knows nothing of."""
        return False

    def _split(self, messages: List[Dict[str, Any]]) -> None:
        buffer = self._in
        start, end = 0, len(buffer)
        while end - start >= 4:
            (size,) = _size.unpack_from(buffer, start)
            if not 1 <= size <= FRAME_LIMIT_IN:
                self.broken = "a frame of %d bytes is not allowed" % size
                return
            if end - start - 4 < size:
                break
            try:
                message = _decode(str(buffer[start + 4 : start + 4 + size], "utf-8"))
            except (ValueError, RecursionError) as error:
                self.broken = "a frame that is not JSON: %s" % error
                return
            if not isinstance(message, dict):
                self.broken = "a frame that is not an object"
                return
            messages.append(message)
            start += 4 + size
        if start:
            del buffer[:start]

    def _read(self, size: int) -> Optional[bytes]:
        data: bytes = self.sock.recv(size)
        return data

    def _write(self, data: bytearray) -> int:
        sent: int = self.sock.send(data)
        return sent

    def close(self) -> None:
        """Close the socket."""
        self.sock.close()
