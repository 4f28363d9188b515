"""A connection as the manager sees it: bytes in, messages to the handler, answers out."""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol, cast

import msgspec

from rota.model.errors import DeniedError, ProtocolError, RefusedError, RotaError, VersionError
from rota.wire import messages
from rota.wire.auth import Access
from rota.wire.frames import MAX_FRAME, Decoder, check_depth
from rota.wire.messages import Greet, Hello, Prove, Report, RunnerMessage
from rota.wire.tokens import allows

__all__ = ["Gate", "Handler", "Limits", "Peer"]


class Limits(msgspec.Struct, frozen=True):
    """What one connection may cost."""

    first_frame: int = 65_536
    """Of what somebody unknown sends (TLS, before the proof)."""
    frame: int = MAX_FRAME
    """Of what the peer sends; also of what is sent to clients."""
    runner_frame: int = 128 << 20
    """Of what is sent to runners: a lease carries hundreds of jobs, each with a command of up to 128 KiB."""
    unanswered: int = 1_000
    write_buffer: int = 64 << 20
    """Bytes waiting for a client that does not read, before it is dropped; for a runner twice its frame."""
    greeting_s: float = 10.0
    """From connecting to a complete greeting, TLS handshake included."""
    closing_s: float = 5.0
    """How long a closing connection may take to read its last words."""
    ungreeted: int = 64
    """Connections per address that have not greeted yet (TLS); beyond that the oldest of them is dropped."""
    ungreeted_all: int = 128
    """The same over all addresses; then the oldest is dropped of the address that has most."""
    peers: int = 4096
    """Connections of all kinds (TLS). The server lowers it to what the descriptors allow."""


class Handler(Protocol):
    """What the manager does with what peers say. Called in the loop; must not block."""

    def on_client(self, peer: "Peer", message: Hello) -> None:
        """A client has been let in: send it a `welcome`."""

    def on_ask(self, peer: "Peer", ask_id: int, op: str, body: bytes) -> None:
        """A request: `messages.decode_ask(op, body)` gives its arguments. Every one must be answered or refused."""

    def on_runner(self, peer: "Peer", message: Greet | RunnerMessage) -> None:
        """A runner's message; the first is its `greet`, and the runner has been let in."""

    def on_gone(self, peer: "Peer") -> None:
        """A peer that was let in has gone, for whatever reason."""

    def token_for(self, allocation: str) -> str | None:
        """The token of an allocation; None: unknown or expired."""

    def access_for(self, name: str) -> Access | None:
        """What the client's token of this name opens; None: unknown or expired."""

    def on_locked(self, address: str, allocation: str | None) -> None:
        """An address has failed to greet so often, in the name of an allocation or of none, that it is told no more."""

    def on_refused(self, peer: "Peer", action: str, target: str, error: RotaError) -> None:
        """A peer was turned away, or a client wanted more than its token allows."""


class Gate(Protocol):
    """Decides for one kind of socket whom to let in."""

    def arrive(self, peer: "Peer", transport: asyncio.Transport) -> None:
        """The connection stands; DeniedError closes it before anything is read."""

    def admit(self, peer: "Peer", greeting: Hello | Greet) -> str:
        """The name of the peer that greeted, for the log; DeniedError if it is not let in."""

    def prove(self, peer: "Peer", message: Prove) -> None:
        """Check a proof that comes before its greeting; DeniedError if it is wrong."""

    def failed(self, peer: "Peer") -> bool:
        """Count a greeting that failed; whether it may be told why."""

    def closed(self, peer: "Peer") -> None:
        """The connection is over."""


class Peer(asyncio.Protocol):
    """One connection. Messages sent within one turn of the loop leave in one write."""

    __slots__ = (
        "_asked",
        "_clogged",
        "_closing",
        "_deadline",
        "_decoder",
        "_drained",
        "_frames",
        "_gate",
        "_handler",
        "_limits",
        "_loop",
        "_out",
        "_out_size",
        "_paused",
        "_pumping",
        "_reports",
        "_scheduled",
        "_timer",
        "_transport",
        "access",
        "address",
        "allocation",
        "challenged",
        "fingerprint",
        "nonce",
        "principal",
        "proven",
        "role",
        "runner_id",
        "token",
    )

    def __init__(
        self,
        handler: Handler,
        gate: Gate,
        limits: Limits,
        address: str,
        nonce: str | None = None,
        fingerprint: str = "",
    ) -> None:
        self.role: str | None = None
        """`client` or `runner` once let in."""
        self.principal = f"nobody via {address}"
        """Who this is, for the record: `ann via unix`, `token ci via 10.0.0.5`, `allocation a3 via 10.0.0.5`."""
        self.token: str | None = None
        """The name of a client's token."""
        self.access = Access("admin", "")
        self.proven: str | None = None
        """The allocation whose token it has proven before its greeting."""
        self.runner_id: str | None = None
        self.allocation: str | None = None
        self.address = address
        self.challenged = 0.0
        """When the connection stood, and its challenge (if any) was sent: monotonic time."""
        self.nonce = nonce
        """The challenge, on TLS. Good for one greeting."""
        self.fingerprint = fingerprint
        """Of the certificate that this peer was shown."""
        self._handler = handler
        self._gate = gate
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._decoder = Decoder(limits.frame if nonce is None else limits.first_frame)
        self._decoder.one_by_one = nonce is not None
        self._frames: deque[bytes] = deque()
        self._asked = 0
        self._reports: deque[int] = deque()
        self._out: list[bytes] = []
        self._out_size = 0
        self._scheduled = self._pumping = self._paused = self._closing = self._clogged = False
        self._drained: list[Callable[[], object]] = []
        self._transport: asyncio.Transport | None = None
        self._deadline = self._loop.time() + limits.greeting_s
        self._timer: asyncio.TimerHandle | None = None

    # For the handler

    def send(self, message: dict[str, Any] | bytes, flushed: bool = False) -> None:
        """Send a message: a dict, or its JSON as bytes with "t" first. To a peer that has gone: nothing happens.

        `flushed`: the caller will `flush`.
        """
        transport = self._transport
        if transport is None or self._closing:
            return
        payload = message if isinstance(message, bytes) else messages.encode(message)
        size = len(payload)
        limit = self._limits.runner_frame if self.role == "runner" else MAX_FRAME
        if not 0 < size <= limit:
            raise ProtocolError(f"a message of {size} bytes does not fit into a frame; the limit is {limit}")
        self._out += (size.to_bytes(4, "big"), payload)
        self._out_size += size + 4
        if self._out_size > 1 << 20:
            self.flush()
        elif not flushed and not self._scheduled and not self._pumping:  # what is sent while reading leaves after that
            self._scheduled = True
            self._loop.call_soon(self._flush)
        if self._asked or self._reports:
            self._settle(message)

    def answer(self, ask_id: int, result: dict[str, Any], flushed: bool = False) -> None:
        """Send the answer to a request. One that does not fit into a frame becomes an error."""
        try:
            self.send({"t": "answer", "id": ask_id, **result}, flushed)
        except ProtocolError as error:
            self.refuse(ask_id, RefusedError(f"the answer is too large ({error}); ask for less at a time"))

    def note(self, ask_id: int, body: dict[str, Any]) -> None:
        """Send news for a request that goes on (`follow`)."""
        self.send({"t": "note", "id": ask_id, **body})

    def refuse(self, ask_id: int | None, error: RotaError, **more: Any) -> None:
        """Send the error that answers a request, or (None) the peer as such."""
        head: dict[str, Any] = {"t": "error", "code": error.code, "message": str(error), **more}
        if ask_id is not None:
            head["id"] = ask_id
        self.send(head)

    def ack(self, seq: int, flushed: bool = False) -> None:
        """Tell the runner that all its reports up to `seq` are durable."""
        self.send({"t": "ack", "seq": seq}, flushed)

    def flush(self) -> None:
        """Write what was sent, now and not at the end of this turn of the loop: saves one turn where latency counts."""
        if self._transport is None or self._closing or not self._out:
            return
        self._transport.write(b"".join(self._out))
        self._out.clear()
        self._out_size = 0
        limits = self._limits
        most = max(limits.write_buffer, 2 * limits.runner_frame) if self.role == "runner" else limits.write_buffer
        if self._transport.get_write_buffer_size() > most:
            self._closing = True
            self._transport.abort()

    def close(self) -> None:
        """Send what is waiting, then close; a peer that does not read it is cut off soon."""
        transport = self._transport
        if transport is None or self._closing:
            return
        self.flush()
        self._closing = True
        self._frames.clear()
        if not transport.is_closing():
            transport.close()
        self._cancel_timer()
        self._timer = self._loop.call_later(self._limits.closing_s, transport.abort)

    def when_drained(self, call: Callable[[], object]) -> bool:
        """True: the peer reads too slowly for more to be sent, and this is called when it has read; else never."""
        if self._clogged and not self.gone:
            self._drained.append(call)
            return True
        return False

    @property
    def gone(self) -> bool:
        """Whether nothing can be sent any more."""
        return self._transport is None or self._closing

    @property
    def unanswered(self) -> int:
        """Requests and reports that wait for their answer."""
        return self._asked + len(self._reports)

    @property
    def buffered(self) -> int:
        """Bytes that wait to be sent."""
        return self._out_size + (self._transport.get_write_buffer_size() if self._transport else 0)

    # For asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection stands (and is encrypted, if it is to be)."""
        transport = self._transport = cast(asyncio.Transport, transport)
        self._timer = self._loop.call_at(self._deadline, self._too_slow)
        try:
            self._gate.arrive(self, transport)
        except DeniedError as error:
            self._fail(error)
            return
        self.challenged = self._loop.time()
        if self.nonce is not None:
            self.send({"t": "challenge", "nonce": self.nonce})

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is over."""
        self._cancel_timer()
        self._transport = None
        self._closing = True
        self._frames.clear()
        self._out.clear()
        self._drained.clear()
        self._gate.closed(self)
        if self.role is not None:
            self._handler.on_gone(self)

    def pause_writing(self) -> None:
        """More waits to be sent than asyncio likes."""
        self._clogged = True

    def resume_writing(self) -> None:
        """Most of it has left."""
        self._clogged = False
        drained, self._drained = self._drained, []
        for call in drained:
            self._loop.call_soon(call)

    def data_received(self, data: bytes) -> None:
        """Take in bytes that came."""
        if self._closing:
            return
        if self._transport is None:  # nothing may be said before the challenge
            self._closing = True
            return
        try:
            frames = self._decoder.feed(data)
        except ProtocolError as error:
            self._fail(error)
            return
        if frames:
            self._frames += frames
            if not self._pumping:
                self._pump()

    @property
    def lost(self) -> bool:
        """Whether the connection is over, or (TLS) broke the rules, before it was made."""
        return self._transport is None and self._closing

    # Inside

    def _pump(self) -> None:
        """Hand on what has come, until too much of it waits for an answer."""
        self._pumping = True
        frames, most = self._frames, self._limits.unanswered
        try:
            while frames and not self._closing and self._transport is not None:
                if self._asked + len(self._reports) >= most:
                    self._pause()
                    return
                self._take(frames.popleft())
            if self._closing or self._transport is None:
                return
            if self._decoder.broken:
                self._decoder.feed(b"")
            self._resume()
        except RotaError as error:
            self._fail(error)
        except Exception as error:  # ours, not the peer's: it may come back
            self._bug(error)
            self.close()
        finally:
            self._pumping = False
            if self._out:
                self.flush()

    def _take(self, payload: bytes) -> None:
        check_depth(payload)
        if self.role == "client":
            ask = messages.decode_client(payload)
            self._asked += 1
            self._ask(ask.id, ask.op, payload)
        elif self.role == "runner":
            message = messages.decode_runner(payload)
            if isinstance(message, Report):
                self._reports.append(message.seq)
            self._handler.on_runner(self, message)
        else:
            greeting = messages.decode_greeting(payload)
            self.allocation = None if isinstance(greeting, Hello) else greeting.allocation
            if isinstance(greeting, Prove):
                self._gate.prove(self, greeting)
            else:
                self._greeted(greeting)
                self._decoder.one_by_one = False
            self.nonce = None
            self._decoder.limit = self._limits.frame
            self._frames += self._decoder.feed(b"")

    def _ask(self, ask_id: int, op: str, payload: bytes) -> None:
        """Whatever the handler raises answers the request; only a breach of the protocol ends the connection."""
        try:
            if self.access.scope != "admin" and not allows(self.access.scope, op):
                raise DeniedError(f"{op} needs more than the scope {self.access.scope}, which this token has")
            if self.access.expires is not None and time.time() >= self.access.expires:
                raise ProtocolError(self._over())
            self._handler.on_ask(self, ask_id, op, payload)
        except DeniedError as error:
            self._handler.on_refused(self, op, "", error)
            self.refuse(ask_id, error)
        except ProtocolError as error:
            self.refuse(ask_id, error)
            self.close()
        except RotaError as error:
            self.refuse(ask_id, error)
        except Exception as error:
            self._bug(error)
            self.refuse(ask_id, RotaError(f"the manager failed at {op!r}: {type(error).__name__}; see its log"))

    def _bug(self, error: Exception) -> None:
        self._loop.call_exception_handler(
            {"message": f"a message of {self.principal} broke the manager", "exception": error}
        )

    def _greeted(self, greeting: Hello | Greet) -> None:
        try:
            self.principal = self._gate.admit(self, greeting)
        except DeniedError as error:
            self._handler.on_refused(self, "greet", _named(greeting), error)
            raise
        greeting.proof = None
        if greeting.version != messages.VERSION:
            raise VersionError(
                f"you speak version {greeting.version} of the protocol, this manager version {messages.VERSION}; "
                "use the same release of rota on both sides"
            )
        self._cancel_timer()
        if self.access.expires is not None:
            self._timer = self._loop.call_later(max(0.0, self.access.expires - time.time()), self._expired)
        if isinstance(greeting, Hello):
            self.role = "client"
            self._handler.on_client(self, greeting)
        else:
            self.role = "runner"
            self.runner_id = greeting.runner
            self._handler.on_runner(self, greeting)

    def _fail(self, error: RotaError) -> None:
        """Say what is wrong and close."""
        if self.role is not None or isinstance(error, VersionError) or self._gate.failed(self):
            self.refuse(None, error)
        self.close()

    def drop(self) -> None:
        """Cut the connection of somebody who has not greeted, to make room."""
        self._closing = True
        if self._transport is not None:
            self._transport.abort()

    def _too_slow(self) -> None:
        self._timer = None
        self._fail(ProtocolError(f"no greeting within {self._limits.greeting_s:g} s"))

    def _expired(self) -> None:
        """The time of its token is up: it is told nothing more, whatever it waits for."""
        self._timer = None
        assert self.access.expires is not None
        if (left := self.access.expires - time.time()) > 0:  # the wall clock was set
            self._timer = self._loop.call_later(left, self._expired)
        else:
            self._fail(ProtocolError(self._over()))

    def _over(self) -> str:
        return f"the token '{self.token}' has expired; rota token rotate makes it anew"

    def _settle(self, message: dict[str, Any] | bytes) -> None:
        """Count what a message answers, and go on reading if that makes room."""
        if isinstance(message, bytes):
            if message.startswith(b'{"t":"answer"'):
                message = {"t": "answer"}
            elif message.startswith((b'{"t":"error"', b'{"t":"ack"')):
                message = cast(dict[str, Any], msgspec.json.decode(message))
            else:
                return
        kind = message.get("t")
        if kind == "answer" or (kind == "error" and message.get("id") is not None):
            if self._asked:
                self._asked -= 1
        elif kind == "ack":
            reports, seq = self._reports, message["seq"]
            while reports and reports[0] <= seq:
                reports.popleft()
        if self._paused and not self._pumping and self.unanswered < self._limits.unanswered:
            self._pumping = True
            self._loop.call_soon(self._pump)

    def _pause(self) -> None:
        if not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()

    def _resume(self) -> None:
        if self._paused and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()

    def _flush(self) -> None:
        self._scheduled = False
        self.flush()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _named(greeting: Hello | Greet) -> str:
    """Whose token a greeting is about."""
    if isinstance(greeting, Hello):
        return f"token {greeting.name or 'client'}"
    return f"allocation {greeting.allocation}"
