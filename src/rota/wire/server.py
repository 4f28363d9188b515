"""The manager's two doors: a Unix socket for the same user on this host, TLS for everybody who can prove a token."""

import asyncio
import os
import pwd
import socket
import ssl
from asyncio.sslproto import SSLProtocol
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, cast

from rota.model.errors import DeniedError, RefusedError
from rota.wire import unix
from rota.wire.auth import CLIENT, RateLimiter, client_proof_fits, new_nonce, proof_fits
from rota.wire.messages import Greet, Hello, Prove
from rota.wire.peer import Gate, Handler, Limits, Peer

if TYPE_CHECKING:
    from rota.wire.certificates import Identity

__all__ = ["Handler", "Limits", "Peer", "Server"]

SSLProtocol.max_size = 16_384  # it has a buffer of this size for each connection, greeted or not
_BACKLOG = 512
_AT_ONCE = 32
"""Connections by TLS that are taken in one turn of the loop, so that a flood of them leaves time for others."""
SUSPECTS = 16
"""Places of an address that has failed often."""
WRONG = "the proof is wrong, or its token unknown or no longer valid"


@cache
def own_name() -> str:
    """Who we are, for people; looked up once, as a directory service may be slow."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return f"uid {os.getuid()}"


class UnixGate:
    """Lets in our own uid, and nobody else."""

    def __init__(self, server: "Server", uid_of: Callable[[socket.socket], int] = unix.peer_uid) -> None:
        self._server = server
        self._uid_of = uid_of

    def arrive(self, peer: Peer, transport: asyncio.Transport) -> None:
        """Ask the kernel whose process the peer is."""
        self._server.peers.add(peer)
        uid = self._uid_of(transport.get_extra_info("socket"))
        if uid != os.getuid():
            raise DeniedError(f"this manager belongs to uid {os.getuid()}, you are uid {uid}")

    def admit(self, peer: Peer, greeting: Hello | Greet) -> str:
        """Name the peer: it was let in when it arrived."""
        if isinstance(greeting, Greet):
            return f"runner {greeting.runner} of {own_name()} via unix"
        if greeting.name is None:
            return f"{own_name()} via unix"
        access = self._server.handler.access_for(greeting.name)
        if access is None:
            raise DeniedError(f"the token '{greeting.name}' is unknown or no longer valid")
        peer.token, peer.access = greeting.name, access
        return f"token {greeting.name} of {own_name()} via unix"

    def prove(self, peer: Peer, message: Prove) -> None:
        """Nothing: the kernel has said who it is."""

    def failed(self, peer: Peer) -> bool:
        """Our own mistakes are not counted, and always explained."""
        return True

    def closed(self, peer: Peer) -> None:
        """Forget the peer."""
        self._server.forget(peer)


class TlsGate:
    """Lets in who proves the token of its allocation, or one of the clients'.

    Whoever has the right proof gets in, whatever others do at the same address. Who has not costs little: there are few
    of them at a time, and an address that has failed often is told nothing more, and has the fewest places.
    """

    def __init__(self, server: "Server") -> None:
        self._server = server
        self.limiter = RateLimiter()
        self._ungreeted: dict[str, dict[Peer, asyncio.Transport]] = {}
        """Address → its connections that have not greeted yet, oldest first."""
        self._waiting = 0

    def expect(self, peer: Peer, raw: asyncio.Transport) -> None:
        """Count a connection that has not greeted yet, and drop others if there are too many."""
        server, limits = self._server, self._server.limits
        own = self._ungreeted.setdefault(peer.address, {})
        most = SUSPECTS if self.limiter.blocked(peer.address, server.loop.time()) else limits.ungreeted
        while len(own) >= most:
            self._drop(peer.address)
        self._ungreeted.setdefault(peer.address, own)[peer] = raw
        server.peers.add(peer)
        self._waiting += 1
        if self._waiting > limits.ungreeted_all or len(server.peers) > limits.peers:
            self._drop(max(self._ungreeted, key=lambda address: len(self._ungreeted[address])))

    def _drop(self, address: str) -> None:
        peer, raw = next(iter(self._ungreeted[address].items()))
        peer.drop()
        raw.abort()
        self.closed(peer)

    def arrive(self, peer: Peer, transport: asyncio.Transport) -> None:
        """Let the connection stand: nothing is known of the peer before its greeting."""

    def admit(self, peer: Peer, greeting: Hello | Greet) -> str:
        """Check the proof. A client's token is never good for a runner, nor the other way round."""
        handler, nonce = self._server.handler, peer.nonce or new_nonce()
        if isinstance(greeting, Greet) and peer.proven is not None and greeting.allocation == peer.proven:
            return f"allocation {peer.proven} via {peer.address}"
        if isinstance(greeting, Hello):
            name = greeting.name or CLIENT
            access = handler.access_for(name)
            if not client_proof_fits(greeting.proof, access and access.verifier, nonce, peer.fingerprint):
                raise DeniedError(WRONG)
            assert access is not None
            peer.token, peer.access = name, access
            self._greeted(peer)
            return f"token {name} via {peer.address}"
        self._check(peer, greeting.allocation, greeting.proof, nonce)
        return f"allocation {greeting.allocation} via {peer.address}"

    def prove(self, peer: Peer, message: Prove) -> None:
        """Check a proof whose greeting follows."""
        self._check(peer, message.allocation, message.proof, peer.nonce or new_nonce())
        peer.proven = message.allocation

    def _check(self, peer: Peer, allocation: str | None, proof: str | None, nonce: str) -> None:
        token = None if allocation is None or allocation == CLIENT else self._server.handler.token_for(allocation)
        if not proof_fits(proof, token, nonce, peer.fingerprint):
            raise DeniedError(WRONG)
        self._greeted(peer)

    def failed(self, peer: Peer) -> bool:
        """Count the failure against the peer's address and the allocation that it named."""
        now = self._server.loop.time()
        name = f"{peer.address} {peer.allocation or ''}"
        locked = self.limiter.blocked(name, now)
        self.limiter.failed(name, now)
        self.limiter.failed(peer.address, now)
        if not locked and self.limiter.blocked(name, now):
            self._server.handler.on_locked(peer.address, peer.allocation)
        return not locked

    def closed(self, peer: Peer) -> None:
        """Forget the peer."""
        self._greeted(peer)
        self._server.forget(peer)

    def _greeted(self, peer: Peer) -> None:
        waiting = self._ungreeted.get(peer.address)
        if waiting is not None and waiting.pop(peer, None) is not None:
            self._waiting -= 1
            if not waiting:
                del self._ungreeted[peer.address]


class _Door(asyncio.Protocol):
    """A TCP connection before it is encrypted: turned away here, if at all, before that costs anything."""

    def __init__(self, server: "Server", gate: TlsGate) -> None:
        self._server = server
        self._gate = gate

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, transport)
        address = str((transport.get_extra_info("peername") or ("unknown",))[0]).removeprefix("::ffff:")
        identity = self._server.identity
        if identity is None:
            transport.abort()
            return
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        peer = Peer(self._server.handler, self._gate, self._server.limits, address, new_nonce(), identity.fingerprint)
        self._gate.expect(peer, transport)
        task = self._server.loop.create_task(self._secure(transport, peer, identity.context))
        self._server.handshakes.add(task)
        task.add_done_callback(self._server.handshakes.discard)

    async def _secure(self, raw: asyncio.Transport, peer: Peer, context: ssl.SSLContext) -> None:
        limits = self._server.limits
        secured: asyncio.Transport | None = None
        if raw.is_closing():  # dropped before it began; its handshake would wait for its time to be up
            self._gate.closed(peer)
            return
        try:
            secured = await self._server.loop.start_tls(
                raw,
                peer,
                context,
                server_side=True,
                ssl_handshake_timeout=limits.greeting_s,
                ssl_shutdown_timeout=limits.closing_s,
            )
        except OSError as error:
            if isinstance(error, ssl.SSLError | ConnectionAbortedError) and not peer.lost:  # not our TLS, or too slow
                self._gate.failed(peer)
            cause: BaseException | None = error
            while cause is not None:  # its frames hold all of the connection, in a circle that is not found for long
                cause.__traceback__, cause = None, cause.__context__
        except asyncio.CancelledError:  # the server closes
            raw.abort()
            self._gate.closed(peer)
            raise
        if secured is None or peer.lost:
            raw.abort()
            self._gate.closed(peer)
            if peer.lost and secured is not None:
                self._gate.failed(peer)
            return
        peer.connection_made(secured)


class Server:
    """Listens, checks who comes, and hands what they say to the handler."""

    def __init__(self, handler: Handler, limits: Limits | None = None) -> None:
        self.handler = handler
        self.limits = limits or Limits()
        self.loop = asyncio.get_running_loop()
        self.peers: set[Peer] = set()
        """Every open connection, greeted or not."""
        self.handshakes: set[asyncio.Task[None]] = set()
        self.identity: Identity | None = None
        """Assign a renewed one at any time: new connections see it."""
        self._home: str | None = None
        self._listeners: list[asyncio.Server] = []
        self._empty: asyncio.Event | None = None

    async def listen_unix(self, home: str, uid_of: Callable[[socket.socket], int] = unix.peer_uid) -> None:
        """Open the Unix socket in `home`. The caller holds the lock of that home."""
        sock = unix.bind(home)
        gate: Gate = UnixGate(self, uid_of)
        make = lambda: Peer(self.handler, gate, self.limits, "unix")  # noqa: E731
        self._listeners.append(await self.loop.create_unix_server(make, sock=sock, backlog=_BACKLOG))
        self._home = home

    async def listen_tls(self, identity: "Identity", host: str | None = None, port: int = 0) -> int:
        """Open a TLS port (0: any that is free) on all addresses, or on one; returns the port."""
        self.identity = identity
        gate = TlsGate(self)
        sock = _bind_tcp(host, port)
        self._listeners.append(await self.loop.create_server(lambda: _Door(self, gate), sock=sock, backlog=_AT_ONCE))
        sock.listen(_BACKLOG)
        return int(sock.getsockname()[1])

    async def close(self) -> None:
        """Stop listening, send what is waiting, close every connection."""
        for listener in self._listeners:
            listener.close()
        if self._home is not None:
            unix.unbind(self._home)
            self._home = None
        for task in self.handshakes:
            task.cancel()
        for peer in list(self.peers):
            peer.close()
        if self.peers:
            self._empty = asyncio.Event()
            try:
                await asyncio.wait_for(self._empty.wait(), self.limits.closing_s + 1)
            except TimeoutError:
                pass

    def forget(self, peer: Peer) -> None:
        """Forget a peer whose connection is over."""
        self.peers.discard(peer)
        if self._empty is not None and not self.peers:
            self._empty.set()


def _bind_tcp(host: str | None, port: int) -> socket.socket:
    """One socket for IPv4 and IPv6 where the system can, so that one free port serves both."""
    try:
        if host is None and socket.has_dualstack_ipv6():
            return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
        family = socket.AF_INET6 if host and ":" in host else socket.AF_INET
        return socket.create_server((host or "", port), family=family)
    except OSError as error:
        raise RefusedError(
            f"cannot listen on {host or 'any address'}, port {port}: {error.strerror or error}"
        ) from error
