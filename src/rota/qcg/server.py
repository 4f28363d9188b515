"""QCG's protocol over ZeroMQ: requests and responses on one socket, events on another.

The client knows no token. So the sockets are files in a directory of the user's own, and whoever can open them is the
user; over TCP (`--qcg-tcp`) whoever can reach the port is.
"""

import hashlib
import json
import os
import stat
import time
from collections.abc import Callable
from typing import Any

import msgspec

from rota.model.errors import RotaError, UsageError
from rota.qcg.desk import Desk
from rota.qcg.feed import Feed

try:
    import zmq
except ImportError:  # an extra
    raise UsageError("QCG's protocol needs pyzmq: pip install 'rota[qcg]'") from None

__all__ = ["Server", "private_directory"]

PORT = 5555
"""QCG's client adds it to an address without one."""
MOST = 32 << 20
"""Bytes of a request that is looked at."""
MOST_AT_ALL = 256 << 20
"""Bytes of a message; who sends more is cut off."""
HOLD_S = 0.5
"""How long events are held back for a client that has just connected, and is about to subscribe."""
PATH_MOST = 100
"""Bytes in the path of a socket; the system takes 107."""
TOPICS = 3
"""What a client subscribes to, one after the other."""
TICK_S = 1.0
REMEMBERED = 10_000
"""Clients that are known to have connected before."""


def private_directory(home: str) -> str:
    """A directory for sockets that nobody else can enter; the same for each pilot in a home."""
    path = os.path.join(home, "qcg")
    if len(os.fsencode(path)) + 12 > PATH_MOST or ":" in path:
        runtime = os.environ.get("XDG_RUNTIME_DIR") or "/tmp"
        if len(os.fsencode(runtime)) > 60 or ":" in runtime:
            runtime = "/tmp"
        path = os.path.join(runtime, f"rota-qcg-{os.getuid()}-{hashlib.sha256(os.fsencode(home)).hexdigest()[:12]}")
    os.makedirs(path, 0o700, exist_ok=True)
    found = os.lstat(path)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise UsageError(f"{path} is not a directory of yours (uid {found.st_uid}): who put it there? move it away")
    os.chmod(path, 0o700)
    return path


class Server:
    """Serves QCG's clients until one of them says that it is enough."""

    def __init__(self, home: str, tcp: str | None = None) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._paths: list[str] = []
        self._held: list[bytes] = []
        """Events that wait for a subscriber."""
        self._hold_until = 0.0
        self._expected = 0
        """Subscriptions that are about to come."""
        self._seen: set[bytes] = set()
        """Clients that have asked something."""
        try:
            self._requests = self._context.socket(zmq.ROUTER)
            self._events = self._context.socket(zmq.XPUB)
            for each in (self._requests, self._events):
                each.setsockopt(zmq.LINGER, 500)
                each.setsockopt(zmq.MAXMSGSIZE, MOST_AT_ALL if tcp is None else MOST)
            self._events.setsockopt(zmq.XPUB_VERBOSE, 1)
            self._events.setsockopt(zmq.SNDHWM, 0)
            self.address, self.publisher = self._bind_files(home) if tcp is None else self._bind_tcp(tcp)
        except BaseException:
            self._context.destroy(0)
            raise

    def _bind_files(self, home: str) -> tuple[str, str]:
        directory = private_directory(home)
        for name, each in (("s", self._requests), ("e", self._events)):
            path = os.path.join(directory, f"{name}:{PORT}")
            if os.path.lexists(path):
                os.unlink(path)  # of a pilot that was killed
            each.setsockopt(zmq.IPC_FILTER_UID, os.getuid())
            before = os.umask(0o177)
            try:
                each.bind(f"ipc://{path}")
            finally:
                os.umask(before)
            self._paths.append(path)
        return f"ipc://{self._paths[0]}", f"ipc://{self._paths[1]}"

    def _bind_tcp(self, where: str) -> tuple[str, str]:
        host, _, port = where.rpartition(":")
        if not port.isascii() or not port.isdigit() or not host:
            raise UsageError(f"--qcg-tcp {where}: write HOST:PORT, as in 127.0.0.1:5555; port 0 means any")
        out = []
        for each, number in ((self._requests, port), (self._events, "0")):
            try:
                each.bind(f"tcp://{host}:{'*' if number == '0' else number}")
            except zmq.ZMQError as error:
                raise UsageError(f"--qcg-tcp {where}: {error}") from None
            out.append(each.getsockopt_string(zmq.LAST_ENDPOINT))
        return out[0], out[1]

    def serve(self, desk: Desk, feed: Feed, tick: Callable[[], None] = lambda: None) -> None:
        """Answer until a client says `finish`, or all is done after it said so. `tick` is called now and then."""
        desk.addresses = (self.address, self.publisher)
        poller = zmq.Poller()
        for each in (self._requests, self._events, feed.wake):
            poller.register(each, zmq.POLLIN)
        while not desk.done:
            wait_s = TICK_S if not self._held else max(0.0, min(TICK_S, self._hold_until - time.monotonic()))
            poller.poll(int(wait_s * 1000) + 1)
            self._hear_subscribers()
            while not desk.finishing and self._answer_one(desk):
                pass
            desk.take(feed.rows(), self._publish)
            self._release()
            tick()
        self._release(now=True)

    def close(self) -> None:
        """Say what is still to be said, and leave no file behind."""
        self._requests.close()
        self._events.close()
        self._context.term()
        for path in self._paths:
            if os.path.lexists(path):
                os.unlink(path)

    # ---- requests ----------------------------------------------------------------------------------------------------

    def _answer_one(self, desk: Desk) -> bool:
        """Answer the next request; False: there is none."""
        try:
            frames = self._requests.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return False
        client, *rest = frames
        if len(rest) != 2 or rest[0]:
            return True  # not from a REQ socket: there is no way to answer that it would understand
        response = _response(desk, rest[1])
        if response["code"] == 0 and client not in self._seen:
            if len(self._seen) > REMEMBERED:
                self._seen.clear()
            self._seen.add(client)
            self._hold_until = time.monotonic() + HOLD_S
            self._expected += TOPICS
        self._requests.send_multipart([client, b"", json.dumps(response).encode()])
        return True

    # ---- events ------------------------------------------------------------------------------------------------------

    def _hear_subscribers(self) -> None:
        while True:
            try:
                message = self._events.recv(zmq.NOBLOCK)
            except zmq.Again:
                return
            if message[:1] == b"\1":
                self._expected = max(0, self._expected - 1)

    def _publish(self, topic: str, what: dict[str, Any]) -> None:
        self._held.append(f"{topic} {json.dumps(what)}".encode())

    def _release(self, now: bool = False) -> None:
        """Publish what is held back, once nobody is expected any more."""
        if time.monotonic() >= self._hold_until:
            self._expected = 0
        if self._expected and not now:
            return
        held, self._held = self._held, []
        for event in held:
            self._events.send(event)


def _response(desk: Desk, message: bytes) -> dict[str, Any]:
    if len(message) > MOST:
        why = f"it has {len(message):,} bytes, and the most is {MOST:,}: submit in several requests"
        return {"code": 1, "message": f"Invalid request: {why}"}
    try:
        data = msgspec.json.decode(message)
    except RecursionError:
        return {"code": 1, "message": "Invalid request: it is nested too deeply"}
    except (msgspec.DecodeError, UnicodeDecodeError, ValueError) as error:
        return {"code": 1, "message": f"Invalid request: it is not JSON: {error}"}
    try:
        return desk.answer(data)
    except RecursionError:
        return {"code": 1, "message": "Invalid request: it is nested too deeply"}
    except RotaError as error:
        return {"code": 1, "message": str(error)}
