"""A real server in a thread of its own, for tests that connect to it with real sockets."""

import asyncio
import socket
import struct
import threading
from contextlib import contextmanager

import msgspec

from rota.wire import messages
from rota.wire.auth import Access, client_context, client_proof, fingerprint, proof, verifier
from rota.wire.home import CLIENT
from rota.wire.server import Limits, Server


class Recorder:
    """A handler that answers at once, unless told to hold its answers back, and remembers everything."""

    def __init__(self):
        self.asked, self.said, self.gone, self.peers, self.held = [], [], [], [], []
        self.hold = False
        self.tokens, self.refused, self.locked = {}, [], []

    def on_client(self, peer, message):
        self.peers.append(peer)
        peer.send({"t": "welcome", "version": 1, "manager": {"host": "here", "pid": 1}})

    def on_ask(self, peer, ask_id, op, body):
        arguments = messages.decode_ask(op, body)
        self.asked.append((op, arguments))
        if op == "follow":
            for number in range(3):
                peer.note(ask_id, {"ended": [number]})
        if op == "drain":
            raise RuntimeError("a bug")
        if op == "history":
            peer.answer(ask_id, {"attempts": ["x" * 1000] * 5000})
        elif self.hold:
            self.held.append((peer, ask_id))
        else:
            peer.answer(ask_id, {"op": op})

    def on_runner(self, peer, message):
        self.said.append(message)
        if isinstance(message, messages.Greet):
            self.peers.append(peer)
            peer.send(b'{"t":"welcome","version":1,"connect":1,"session":1}')
        elif isinstance(message, messages.Report) and not self.hold:
            peer.ack(message.seq)

    def on_gone(self, peer):
        self.gone.append(peer)

    def token_for(self, allocation):
        return self.tokens.get(allocation)

    def access_for(self, name):
        token = self.tokens.get(name)
        return token and Access("admin", verifier(token))

    def on_locked(self, address, allocation):
        self.locked.append((address, allocation))

    def on_refused(self, peer, action, target, error):
        self.refused.append((peer.address, action, target))


class Running:
    """A server that runs: `call` does something in its loop."""

    def __init__(self, loop, server, handler):
        self.loop, self.server, self.handler, self.port = loop, server, handler, 0

    def call(self, function, *arguments):
        async def inside():
            return function(*arguments)

        return asyncio.run_coroutine_threadsafe(inside(), self.loop).result(60)

    def wait(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(60)


@contextmanager
def serving(home=None, identity=None, limits=None, uid_of=None):
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    handler = Recorder()

    async def begin():
        server = Server(handler, limits or Limits())
        if home is not None:
            await server.listen_unix(home, **({"uid_of": uid_of} if uid_of else {}))
        return server, await server.listen_tls(identity, "127.0.0.1") if identity else 0

    try:
        server, port = asyncio.run_coroutine_threadsafe(begin(), loop).result(60)
        running = Running(loop, server, handler)
        running.port = port
        yield running
        running.wait(server.close())
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


class Raw:
    """A socket that speaks frames, and anything else."""

    def __init__(self, sock):
        self.sock = sock
        sock.settimeout(60)

    def send(self, message):
        payload = message if isinstance(message, bytes) else msgspec.json.encode(message)
        self.sock.sendall(struct.pack(">I", len(payload)) + payload)

    def read(self):
        """The next message; None at the end."""
        try:
            header = self._exactly(4)
            return msgspec.json.decode(self._exactly(struct.unpack(">I", header)[0]))
        except (EOFError, ConnectionError, OSError) as error:
            if isinstance(error, TimeoutError):
                raise
            return None

    def all(self):
        messages = []
        while (message := self.read()) is not None:
            messages.append(message)
        return messages

    def _exactly(self, size):
        data = b""
        while len(data) < size:
            more = self.sock.recv(size - len(data))
            if not more:
                raise EOFError
            data += more
        return data

    def close(self):
        self.sock.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def raw_unix(path):
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(str(path))
    return Raw(sock)


def raw_tls(port, ca, context=None):
    sock = socket.create_connection(("127.0.0.1", port), timeout=60)
    try:
        return Raw((context or client_context(ca)).wrap_socket(sock))
    except BaseException:
        sock.close()
        raise


def proof_for(raw, challenge, token):
    return proof(token, challenge["nonce"], fingerprint(raw.sock.getpeercert(True)))


def client_proof_for(raw, challenge, token):
    return client_proof(token, challenge["nonce"], fingerprint(raw.sock.getpeercert(True)))


def greet(**more):
    return {
        "t": "greet", "version": 1, "runner": "r1", "connect": 1, "clock": 1.0, "host": "n1", "pid": 9, "cores": 1000,
        "memory": 1 << 30, "output": "/o", "held": [], **more,
    }  # fmt: skip


HELLO = {"t": "hello", "version": 1}
__all__ = [
    "CLIENT",
    "HELLO",
    "Raw",
    "Recorder",
    "client_proof_for",
    "greet",
    "proof_for",
    "raw_tls",
    "raw_unix",
    "serving",
]
