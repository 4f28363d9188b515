"""One end of a connection by which ranks of a gang are started, without its socket.

Both ends know the attempt's secret, prove it to each other by answering the other's random number, and never send it.
Every later frame carries a code made from the secret, both random numbers, its direction and its place in the order:
nothing can be put in, left out, repeated or turned around. What is said is not hidden.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import socket
import struct
from typing import TYPE_CHECKING, Callable, List, Optional, Tuple

if TYPE_CHECKING:
    from rota.runner.lease import Key

__all__ = [
    "DATA", "ERR", "ERROR", "EXIT", "IN", "LIMIT", "OUT", "START", "USAGE", "CallingChannel", "Channel", "ChannelError",
    "DoorChannel", "keep_alive",
]  # fmt: skip

START, USAGE, LIMIT, IN, OUT, ERR, EXIT, ERROR = b"S", b"U", b"L", b"0", b"1", b"2", b"X", b"E"
DATA = 1 << 15  # bytes of a stream in one frame
FIRST_MOST = 1024  # bytes of a frame before the other end has proved itself
MOST = 8 << 20  # and after: an environment, a command
CODE = 32
NONCE = 16
_size = struct.Struct(">I")
_place = struct.Struct(">Q")


class ChannelError(Exception):
    """The other end does not know the secret, or does not speak as it should."""


class Channel:
    """What both ends have in common: frames, and their codes."""

    def __init__(self) -> None:
        self.out = bytearray()  # to be sent
        self.proved = False  # the other end knows the secret
        self._in = bytearray()
        self._sent = self._received = 0
        self._ours = self._theirs = b""

    def feed(self, data: bytes) -> List[Tuple[bytes, bytes]]:
        """Take what was received; returns (kind, content) of whole frames."""
        self._in += data
        found: List[Tuple[bytes, bytes]] = []
        while len(self._in) >= 4:
            (size,) = _size.unpack_from(self._in)
            if not 1 <= size <= (MOST if self.proved else FIRST_MOST):
                raise ChannelError("a frame of %d bytes" % size)
            if len(self._in) < 4 + size:
                break
            body = bytes(self._in[4 : 4 + size])
            del self._in[: 4 + size]
            if self.proved:
                found.append(self._open(body))
            else:
                self._shake(body)
        return found

    def send(self, kind: bytes, content: bytes = b"") -> None:
        """Put a frame into `out`."""
        body = kind + content
        code = _code(self._ours, _place.pack(self._sent), body)
        self._sent += 1
        self._frame(code + body)

    def _open(self, body: bytes) -> Tuple[bytes, bytes]:
        code, rest = body[:CODE], body[CODE:]
        if not rest or not hmac.compare_digest(code, _code(self._theirs, _place.pack(self._received), rest)):
            raise ChannelError("a frame with a wrong code")
        self._received += 1
        return rest[:1], rest[1:]

    def _frame(self, body: bytes) -> None:
        self.out += _size.pack(len(body))
        self.out += body

    def _say(self, **words: object) -> None:
        self._frame(json.dumps(words).encode("ascii"))

    def _shake(self, body: bytes) -> None:
        try:
            self._greeted(json.loads(body.decode("ascii")))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as problem:
            raise ChannelError("not a greeting: %r" % problem) from None

    def _greeted(self, words: dict) -> None:  # type: ignore[type-arg]
        raise NotImplementedError


def keep_alive(sock: socket.socket) -> None:
    """Send at once, and notice within two minutes that the other host is gone."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in ((socket.TCP_KEEPIDLE, 30), (socket.TCP_KEEPINTVL, 15), (socket.TCP_KEEPCNT, 6)):
        sock.setsockopt(socket.IPPROTO_TCP, option, value)


def _code(secret: bytes, *parts: bytes) -> bytes:
    return hmac.new(secret, b"\0".join(parts), hashlib.sha256).digest()


def _context(key: Key, door: str, caller: str) -> bytes:
    return ("%d.%d.%d %s %s" % (*key, door, caller)).encode("ascii")


class DoorChannel(Channel):
    """The end of the runner whose node is to start something."""

    def __init__(self, secret_of: Callable[[Key], Optional[str]]) -> None:
        super().__init__()
        self.key: Key = (0, 0, 0)
        self._secret_of = secret_of
        self._nonce = os.urandom(NONCE).hex()
        self._say(rota=1, nonce=self._nonce)

    def _greeted(self, words: dict) -> None:  # type: ignore[type-arg]
        batch, index, attempt = map(int, words["job"])
        key = (batch, index, attempt)
        secret = (self._secret_of(key) or "").encode("ascii")
        context = _context(key, self._nonce, words["nonce"])
        proof = _code(secret, b"caller", context).hex()
        if not secret or not hmac.compare_digest(proof, words["proof"]):
            raise ChannelError("no proof of a secret that is known here")
        self.key = key
        self._say(proof=_code(secret, b"door", context).hex())
        self._ours, self._theirs = _code(secret, b"to caller", context), _code(secret, b"to door", context)
        self.proved = True


class CallingChannel(Channel):
    """The end of who wants something started."""

    def __init__(self, key: Key, secret: str) -> None:
        super().__init__()
        self._key = key
        self._secret = secret.encode("ascii")
        self._nonce = os.urandom(NONCE).hex()
        self._context = b""

    def _greeted(self, words: dict) -> None:  # type: ignore[type-arg]
        if not self._context:
            self._context = _context(self._key, words["nonce"], self._nonce)
            proof = _code(self._secret, b"caller", self._context).hex()
            self._say(job=list(self._key), nonce=self._nonce, proof=proof)
            return
        if not hmac.compare_digest(_code(self._secret, b"door", self._context).hex(), words["proof"]):
            raise ChannelError("the other end does not know the secret")
        self._ours = _code(self._secret, b"to door", self._context)
        self._theirs = _code(self._secret, b"to caller", self._context)
        self.proved = True
