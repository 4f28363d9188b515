"""The connection over TLS 1.3: only the given CA is trusted, and the token is proven, never sent."""

from __future__ import annotations

import hashlib
import hmac
import select
import socket
import ssl
from typing import TYPE_CHECKING, Any, Dict, List, Optional

from rota.runner.connection import ClosedError, Connection

if TYPE_CHECKING:
    from rota.runner.connection import Target

__all__ = ["TlsConnection"]

FIRST_FRAME = 65536  # what the manager reads of somebody unknown


class TlsConnection(Connection):
    """Connects, shakes hands and takes the challenge step by step, as the socket allows."""

    def __init__(self, target: Target) -> None:
        assert target.token is not None
        self._token = target.token
        address = socket.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)[0]
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False  # the CA is the manager's own and signs nobody else
        context.load_verify_locations(cafile=target.ca)
        plain = socket.socket(address[0], address[1], address[2])
        plain.setblocking(False)
        problem = plain.connect_ex(address[4])
        self._connecting = problem != 0
        self._plain = plain
        self._context = context
        self._wants = select.EPOLLOUT
        super().__init__(plain)
        self.ready = False
        self._shaken = False
        self._nonce: Optional[str] = None

    @property
    def events(self) -> int:
        """What epoll should wait for."""
        return super().events if self._shaken else self._wants

    def greet(self, message: Dict[str, Any]) -> None:
        """Send the greeting with its proof; one that is too long for somebody unknown goes behind that."""
        proof = {"proof": self._proof()}
        if 100 * (len(message["held"]) + len(message.get("holds", ()))) > FIRST_FRAME - 16384:
            self.send({"t": "prove", "version": message["version"], "allocation": message["allocation"], **proof})
            self.send(message)
        else:
            self.send({**message, **proof})

    def _proof(self) -> str:
        """The HMAC over the manager's nonce and the fingerprint of its certificate."""
        certificate = self.sock.getpeercert(binary_form=True)
        text = "%s:%s" % (self._nonce, hashlib.sha256(certificate).hexdigest())
        return hmac.new(self._token, text.encode("ascii"), hashlib.sha256).hexdigest()

    def receive(self) -> List[Dict[str, Any]]:
        """Go on with the handshake; then take the challenge; then as any connection."""
        if not self._shaken:
            self._handshake()
            if not self._shaken:
                return []
        messages = super().receive()
        if self._nonce is None and messages:
            first = messages.pop(0)
            if first.get("t") == "challenge" and isinstance(first.get("nonce"), str):
                self._nonce = first["nonce"]
                self.ready = True
            elif first.get("t") == "error":
                messages.insert(0, first)
            else:
                raise ClosedError("the manager did not begin with a challenge")
        return messages

    def flush(self) -> None:
        """Write what waits, once there is somebody to write to."""
        if self._shaken:
            super().flush()

    def _handshake(self) -> None:
        try:
            if self._connecting:
                problem = self._plain.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                if problem:
                    raise ClosedError("cannot connect: error %d" % problem)
                self._connecting = False
            if self.sock is self._plain:
                self.sock = self._context.wrap_socket(self._plain, do_handshake_on_connect=False)
            self.sock.do_handshake()
            self._shaken = True
        except ssl.SSLWantReadError:
            self._wants = select.EPOLLIN
        except ssl.SSLWantWriteError:
            self._wants = select.EPOLLOUT
        except OSError as error:
            raise ClosedError("no TLS connection: %s" % error) from None

    def _read(self, size: int) -> Optional[bytes]:
        try:
            data: bytes = self.sock.recv(size)
            return data
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return None

    def _decrypted(self) -> bool:
        return bool(self.sock.pending())

    def _write(self, data: bytearray) -> int:
        try:
            sent: int = self.sock.send(data)
            return sent
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return 0
