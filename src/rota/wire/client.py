"""The client: asks the manager and waits for the answer.

Every `rota` command imports this, so it stays with `json` and the bare socket: no asyncio, msgspec, typing or
dataclasses, and ssl only where TLS is used.
"""

import json
import os
import sys

from rota.model.errors import BY_CODE, BusyError, DeniedError, NotFoundError, ProtocolError, RotaError, UsageError
from rota.wire.frames import MAX_FRAME, Decoder
from rota.wire.home import (
    CA,
    NOTICE,
    TLS,
    SocketPath,
    absolute,
    check_private,
    client_token_path,
    default_home,
    job_address,
    read_own,
    token_file,
)

try:  # the module below `socket`: the same functions, without 4 ms of selectors and enums
    import _socket as bare
except ImportError:
    import socket as bare  # type: ignore[no-redef]

TYPE_CHECKING = False
if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterator
    from typing import Any, NoReturn

__all__ = ["Connection", "LostError", "NoManagerError", "job_address"]

VERSION = 1
CONNECT_S = 10.0
PATIENCE_S = 120.0
"""How long an ordinary request may take. `wait` and `follow` may take for ever."""
_PATIENT = ("wait", "follow")
RECEIVED = 65_536
"""Bytes at a time: for larger pieces the C library maps memory, and gives it back, each time."""
UNKNOWN = "whether it was done is not known"


class NoManagerError(RotaError):
    """No manager can be reached."""

    code = "no-manager"


class LostError(RotaError):
    """The connection broke, or time ran out, before the answer: whether it was done is not known."""

    code = "lost"


# Shared with the asynchronous client


def hello(proof: "str | None" = None, name: "str | None" = None) -> bytes:
    """The frame that greets: by TLS with the proof of the token of that name."""
    message: dict[str, Any] = {"t": "hello", "version": VERSION}
    if proof is not None:
        message["proof"] = proof
    if name is not None:
        message["name"] = name
    return frame(message)


def hello_here(home: str) -> bytes:
    """The frame that greets on the Unix socket. Who was given a token of its own may no more than that allows."""
    path = token_file(home)
    if not path:
        return hello()
    from rota.wire.auth import read_client_token

    return hello(name=read_client_token(path)[0])


def frame(message: "dict[str, Any]", encoded: "dict[str, bytes] | None" = None) -> bytes:
    """A message as a frame; UsageError if it cannot be said in JSON, in UTF-8, or at that size.

    `encoded`: further fields, whose values are JSON already.
    """
    try:
        payload = _dumps(message).encode()
        if encoded:
            more = [b'"%b":%b' % (name.encode(), value) for name, value in encoded.items()]
            payload = b",".join((payload[:-1], *more)) + b"}"
    except UnicodeEncodeError as error:
        what = error.object[max(0, error.start - 20) : error.end + 20]
        raise UsageError(f"not valid UTF-8, which names and commands must be: {what!a}") from None
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"cannot be sent: {error}") from None
    size = len(payload)
    if size > MAX_FRAME:
        raise UsageError(f"a request of {size} bytes; at most {MAX_FRAME} can be sent at once")
    return size.to_bytes(4, "big") + payload


_dumps = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


def parse(payload: bytes) -> "dict[str, Any]":
    """A message from the manager."""
    try:
        message = json.loads(payload)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"the manager sent what is not JSON: {error}") from None
    if not isinstance(message, dict):
        raise ProtocolError("the manager sent what is not an object")
    return message


def sort(message: "dict[str, Any]") -> "tuple[Any, Any, Any]":
    """A message's kind, the number of what was asked, and its content: of an "answer", an error if it is one."""
    kind, number = message.pop("t", None), message.pop("id", None)
    if kind == "error":
        if not isinstance(number, int):
            raise error_from(message)
        return "answer", number, error_from(message)
    return kind, number, (message.get("manager") or {}) if kind == "welcome" else message


def error_from(message: "dict[str, Any]") -> RotaError:
    """The error that an `error` message stands for."""
    code = message.get("code")
    text = str(message.get("message", "no reason given"))
    known = BY_CODE.get(code) if isinstance(code, str) else None
    error = known(text) if known else RotaError(f"{text} ({code})")
    if "retry_s" in message:
        vars(error)["retry_s"] = message["retry_s"]
    return error


def patience_for(op: str, patience_s: "float | None") -> "float | None":
    """How long to wait for the answer to this op."""
    return None if op in _PATIENT else patience_s


def read_notice(home: str) -> "dict[str, Any]":
    """What the manager wrote about itself (`manager.json`), or {}. Refuses one that another user could have written."""
    try:
        notice = json.loads(read_own(os.path.join(home, NOTICE)))
    except (OSError, ValueError):
        return {}
    return notice if isinstance(notice, dict) else {}


def not_here(home: str, error: OSError) -> "dict[str, Any]":
    """Nobody answers on the Unix socket: the notice of a manager that listens for TLS on another host, or an error."""
    if isinstance(error, PermissionError):
        raise DeniedError(f"{home}: not allowed; it belongs to another user, or its mode is wrong") from None
    if isinstance(error, (BlockingIOError, TimeoutError)):
        raise BusyError(f"the manager of {home} does not answer; try again, or look at {home}/manager.log") from None
    if not isinstance(error, (FileNotFoundError, ConnectionError, NotADirectoryError)):
        raise NoManagerError(f"cannot reach the manager of {home}: {error.strerror or error}") from None
    notice = read_notice(home)
    host = notice.get("host")
    if not host or host == bare.gethostname():
        where = "" if home == default_home() and not os.environ.get("ROTA_HOME") else f"ROTA_HOME={home} "
        raise NoManagerError(f"no rota manager runs for {home}; start one with: {where}rota up")
    if not notice.get("port"):
        raise NoManagerError(
            f"the rota manager of {home} runs on host {host} (pid {notice.get('pid')}) "
            f"and does not listen for other hosts; run this on {host}"
        )
    return notice


def found_at(home: "str | None") -> "tuple[str, dict[str, Any] | None]":
    """The home whose manager is meant, or in a job whose manager is elsewhere none, and how that is reached by TLS."""
    address = None if home else job_address()
    if address is None:
        return absolute(home), None
    if address.startswith("unix:"):
        return os.path.dirname(address[5:]), None
    host, _, port = address.partition(":")[2].rpartition(":")
    return "", {"host": host.strip("[]"), "port": port}


def tls_setup(home: str, notice: "dict[str, Any]") -> "tuple[ssl.SSLContext, tuple[str, str]]":
    """What TLS needs: the context that trusts the manager's CA, and the name and secret of our token.

    All of it is ours, or else whoever it belongs to would be told what is submitted.
    """
    from rota.wire.auth import client_context, read_client_token

    try:
        if not home:  # in a job, which has no home but all it needs in one directory
            path = os.environ["ROTA_TOKEN_FILE"]
            return client_context(os.path.join(os.path.dirname(path), CA)), read_client_token(path)
        check_private(home)
        check_private(os.path.join(home, TLS))
        return client_context(os.path.join(home, TLS, CA)), read_client_token(client_token_path(home))
    except (OSError, NotFoundError) as error:
        raise unreachable(notice, error) from error


def prove(message: "dict[str, Any]", certificate: "bytes | None", token: "tuple[str, str]") -> bytes:
    """The greeting that answers a challenge."""
    from rota.wire.auth import client_proof, fingerprint

    if message.get("t") == "error":
        raise error_from(message)
    if message.get("t") != "challenge" or not certificate:
        raise ProtocolError("the manager did not send a challenge")
    name, secret = token
    return hello(client_proof(secret, str(message.get("nonce")), fingerprint(certificate)), name)


def unreachable(notice: "dict[str, Any]", error: Exception) -> NoManagerError:
    """The error for a manager on another host that does not answer."""
    return NoManagerError(
        f"the rota manager runs on host {notice.get('host')} (pid {notice.get('pid')}), "
        f"port {notice.get('port')}, and cannot be reached from here: {error}"
    )


def gone(home: str, why: str) -> NoManagerError:
    """The error for a manager that was still there to be called, and no longer to answer. It was asked nothing."""
    return NoManagerError(f"the rota manager of {home} is just going away ({why}); start one with: rota up")


def check_server(sock: "Any", home: str) -> None:
    """Never tell anything to a socket that somebody else listens on."""
    if hasattr(bare, "SO_PEERCRED"):
        credentials = sock.getsockopt(bare.SOL_SOCKET, bare.SO_PEERCRED, 12)
        uid = int.from_bytes(credentials[4:8], sys.byteorder)
        if uid != os.getuid():
            raise DeniedError(f"the manager of {home} belongs to uid {uid}, you are uid {os.getuid()}")


def limit_silence(sock: "Any", seconds: "float | None") -> None:
    """How long one call on a socket may block; None: for ever."""
    if sock.family == bare.AF_UNIX and sys.maxsize > 1 << 32:
        micros = int((seconds or 0) * 1e6)
        timeval = (micros // 1_000_000).to_bytes(8, sys.byteorder) + (micros % 1_000_000).to_bytes(8, sys.byteorder)
        sock.setsockopt(bare.SOL_SOCKET, bare.SO_RCVTIMEO, timeval)
        sock.setsockopt(bare.SOL_SOCKET, bare.SO_SNDTIMEO, timeval)
    else:
        sock.settimeout(seconds)


class Connection:
    """One connection to the manager. Not for use by several threads at once."""

    down = False
    """That no manager is up; see `rota.manager.offline.looking`."""

    __slots__ = (
        "_allowed_s",
        "_arrived",
        "_decoder",
        "_frames",
        "_last",
        "_notes",
        "_out",
        "_sock",
        "_welcome",
        "home",
        "patience_s",
    )

    def __init__(self, sock: "Any", home: str, greeting: bytes, patience_s: "float | None" = PATIENCE_S) -> None:
        self.home = home
        self.patience_s = patience_s
        """Seconds that an ordinary request may take; None: for ever."""
        self._sock = sock
        self._out = greeting
        self._decoder = Decoder()
        self._frames: list[bytes] = []
        """Complete, not yet looked at; the next one last."""
        self._last = 0
        self._allowed_s: float | None = -1.0
        self._arrived: dict[int, dict[str, Any] | RotaError] = {}
        self._notes: dict[int, list[dict[str, Any]]] = {}
        self._welcome: dict[str, Any] | None = None

    @classmethod
    def connect(cls, home: "str | None" = None, patience_s: "float | None" = PATIENCE_S) -> "Connection":
        """Find the manager of this home (default: `$ROTA_HOME` or `~/.rota`): on this host, or by TLS on another."""
        home, notice = found_at(home)
        if notice is not None:
            return cls._connect_tls(home, notice, patience_s)
        sock = bare.socket(bare.AF_UNIX, bare.SOCK_STREAM)
        try:
            limit_silence(sock, CONNECT_S)
            with SocketPath(home) as path:
                sock.connect(path)
            check_server(sock, home)
        except OSError as error:
            sock.close()
            return cls._connect_tls(home, not_here(home, error), patience_s)
        except BaseException:
            sock.close()
            raise
        return cls(sock, home, hello_here(home), patience_s)

    @classmethod
    def _connect_tls(cls, home: str, notice: "dict[str, Any]", patience_s: "float | None") -> "Connection":
        import socket

        context, token = tls_setup(home, notice)
        raw = None
        try:
            address = str(notice.get("address") or notice.get("host"))
            raw = socket.create_connection((address, int(notice["port"])), timeout=CONNECT_S)
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock = context.wrap_socket(raw)
        except (OSError, ValueError) as error:
            if raw is not None:
                raw.close()
            raise unreachable(notice, error) from error
        self = cls(sock, home, b"", patience_s)
        try:
            self._out = prove(self._receive(CONNECT_S), sock.getpeercert(binary_form=True), token)
        except BaseException:
            self.close()
            raise
        return self

    @property
    def manager(self) -> "dict[str, Any]":
        """What the manager said of itself: host, pid, version, home, started. NoManagerError if it has gone."""
        if self._welcome is None:
            self._send(b"")
            while self._welcome is None:
                self._sort(self._receive(CONNECT_S))
        return self._welcome

    def ask(self, op: str, **arguments: "Any") -> "dict[str, Any]":
        """Ask one thing; the result, or the error that the manager answered with."""
        return self.collect(self._post(op, arguments), patience_for(op, self.patience_s))

    def post(self, op: str, **arguments: "Any") -> int:
        """Ask without waiting; the number to `collect` by."""
        return self._post(op, arguments)

    def submit(self, key: str, encoded: "dict[str, bytes]") -> "dict[str, Any]":
        """Ask for a submission under its key, the rest of which is JSON already."""
        return self.collect(self._post("submit", {"key": key}, encoded), self.patience_s)

    def collect(self, number: int, patience_s: "float | None" = PATIENCE_S) -> "dict[str, Any]":
        """Wait for the answer to what was posted."""
        while number not in self._arrived:
            self._sort(self._receive(patience_s))
        return self._result(number)

    def notes(self, op: str, **arguments: "Any") -> "Iterator[dict[str, Any]]":
        """Ask what is answered in parts (`follow`): yields each note, and last the answer, with "t" as "answer"."""
        number = self.post(op, **arguments)
        waiting = self._notes.setdefault(number, [])
        try:
            while True:
                yield from waiting
                waiting.clear()
                if number in self._arrived:
                    yield {"t": "answer", **self._result(number)}
                    return
                self._sort(self._receive(None))
        finally:
            self._notes.pop(number, None)

    def close(self) -> None:
        """Close the connection."""
        self._sock.close()

    def __enter__(self) -> "Connection":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Inside

    def _post(self, op: str, arguments: "dict[str, Any]", encoded: "dict[str, bytes] | None" = None) -> int:
        self._last += 1
        self._send(frame({"t": "ask", "id": self._last, "op": op, **arguments}, encoded))
        return self._last

    def _send(self, data: bytes) -> None:
        data, self._out = self._out + data, b""
        if not data:
            return
        try:
            self._allow(self.patience_s)
            self._sock.sendall(data)
        except (TimeoutError, BlockingIOError):
            raise LostError(f"the manager of {self.home} does not read; whether it was asked is not known") from None
        except OSError as error:
            self._last_words(error)

    def _last_words(self, error: OSError) -> "NoReturn":
        """The manager closed: it has said why, unless it died."""
        while True:
            self._sort(self._receive(1.0, str(error)))

    def _allow(self, silence_s: "float | None") -> None:
        """How long the next call may block. The kernel's own timer, where it serves, saves a system call each time."""
        if silence_s != self._allowed_s:
            limit_silence(self._sock, silence_s)
            self._allowed_s = silence_s

    def _receive(self, silence_s: "float | None", why: str = "closed") -> "dict[str, Any]":
        """The next message."""
        while True:
            if self._frames:
                return parse(self._frames.pop())
            try:
                self._allow(silence_s)
                data = self._sock.recv(RECEIVED)
            except (TimeoutError, BlockingIOError):
                raise LostError(f"no answer from the manager of {self.home} in time; {UNKNOWN}") from None
            except OSError as error:
                data, why = b"", str(error)
            if not data and self._welcome is None and not self._last:
                raise gone(self.home, why)
            if not data:
                raise LostError(f"the connection to the manager of {self.home} was lost ({why}); {UNKNOWN}")
            self._frames = self._decoder.feed(data)
            self._frames.reverse()

    def _sort(self, message: "dict[str, Any]") -> None:
        """Put a message where whoever waits for it looks."""
        kind, number, content = sort(message)
        if kind == "answer" and isinstance(number, int):
            self._arrived[number] = content
        elif kind == "note" and number in self._notes:
            self._notes[number].append(content)
        elif kind == "welcome":
            self._welcome = content

    def _result(self, number: int) -> "dict[str, Any]":
        result = self._arrived.pop(number)
        if isinstance(result, RotaError):
            raise result
        return result
