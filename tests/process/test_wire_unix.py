"""The server and both clients over a real Unix socket, with everything that can go wrong."""

import asyncio
import os
import socket
import stat
import subprocess
import sys
import threading
import time

import pytest

from process.wire_support import HELLO, greet, raw_unix, serving
from rota.model.errors import DeniedError, ProtocolError, RefusedError, RotaError, UsageError, VersionError
from rota.wire.aclient import AsyncConnection
from rota.wire.client import Connection, LostError, NoManagerError
from rota.wire.server import Limits, own_name


@pytest.fixture
def home(tmp_path):
    path = tmp_path / "h"
    path.mkdir(mode=0o700)
    return str(path)


def eventually(condition, timeout_s=30.0):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.005)


def sock(home):
    return os.path.join(home, "manager.sock")


def test_ask_and_answer(home):
    with serving(home) as running, Connection.connect(home) as connection:
        assert connection.ask("status", sel=["7"]) == {"op": "status"}
        assert connection.manager["host"] == "here"
        assert running.handler.asked[0][1].sel == ["7"]
        assert running.handler.peers[0].principal == f"{own_name()} via unix"
        first, second = connection.post("ping"), connection.post("count")
        assert connection.collect(second) == {"op": "count"}
        assert connection.collect(first) == {"op": "ping"}
        mode = os.stat(sock(home)).st_mode
        assert stat.S_ISSOCK(mode)
        assert stat.S_IMODE(mode) == 0o600
    assert not os.path.exists(sock(home))
    assert len(running.handler.gone) == 1


def test_notes_come_before_the_answer(home):
    with serving(home), Connection.connect(home) as connection:
        got = list(connection.notes("follow", sel=[]))
        assert got == [{"ended": [0]}, {"ended": [1]}, {"ended": [2]}, {"t": "answer", "op": "follow"}]


def test_errors_keep_their_class_and_the_connection_survives_all_but_breaches(home):
    with serving(home), Connection.connect(home) as connection:
        with pytest.raises(RotaError, match="failed at 'drain'"):
            connection.ask("drain")
        with pytest.raises(RefusedError, match="too large"):
            connection.ask("history")
        with pytest.raises(UsageError, match="UTF-8"):
            connection.ask("explain", job="\udcff")
        with pytest.raises(UsageError, match="at once"):
            connection.ask("explain", job="x" * 5_000_000)
        assert connection.ask("ping") == {"op": "ping"}
        with pytest.raises(ProtocolError, match=r"\$\.sel"):
            connection.ask("status", sel=7)
        with pytest.raises(LostError):
            connection.ask("ping")


def test_unknown_op_is_a_breach(home):
    with serving(home), Connection.connect(home) as connection, pytest.raises(ProtocolError, match="unknown op"):
        connection.ask("reboot")


def test_no_manager(home, tmp_path):
    for place in (home, str(tmp_path / "nowhere")):
        with pytest.raises(NoManagerError, match="rota up"):
            Connection.connect(place)
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(sock(home))
    with pytest.raises(NoManagerError, match="rota up"):
        Connection.connect(home)
    with pytest.raises(NoManagerError, match="rota up"):
        asyncio.run(AsyncConnection.connect(home))
    with serving(home), Connection.connect(home) as connection:  # the stale file is replaced
        connection.ask("ping")


def test_a_manager_on_another_host_is_named(home):
    with open(os.path.join(home, "manager.json"), "w") as file:
        file.write('{"host": "login7.example", "pid": 42, "port": null}')
    with pytest.raises(NoManagerError, match=r"login7\.example.*42"):
        Connection.connect(home)


def test_a_manager_that_dies_or_is_silent_leaves_it_unknown(home):
    with serving(home) as running:
        running.handler.hold = True
        connection = Connection.connect(home, patience_s=0.2)
        with pytest.raises(LostError, match="not known"):
            connection.ask("ping")
        number = connection.post("ping")
    with pytest.raises(LostError, match="lost"):
        connection.collect(number)


def test_long_home_path(tmp_path):
    home = str(tmp_path)
    while len(home) < 300:
        home = os.path.join(home, "d" * 40)
    os.makedirs(home, mode=0o700)
    with serving(home), Connection.connect(home) as connection:
        assert connection.ask("ping") == {"op": "ping"}
        assert asyncio.run(ask_async(home)) == {"op": "ping"}
        with pytest.raises(RefusedError, match="another process listens"), serving(home):
            pass
    assert not os.path.exists(sock(home))


async def ask_async(home):
    async with await AsyncConnection.connect(home) as connection:
        return await connection.ask("ping")


def test_async_client(home):
    async def talk():
        async with await AsyncConnection.connect(home) as connection:
            assert (await connection.manager())["host"] == "here"
            answers = await asyncio.gather(*(connection.ask("count", sel=[str(n)]) for n in range(50)))
            assert answers == [{"op": "count"}] * 50
            notes = [note async for note in connection.notes("follow", sel=[])]
            assert len(notes) == 4
            with pytest.raises(ProtocolError):
                await connection.ask("status", sel=7)
            with pytest.raises(LostError):
                await connection.ask("ping")

    with serving(home):
        asyncio.run(talk())


@pytest.mark.parametrize(
    "bad",
    [
        b"\0\0\0\0",
        b"\xff\xff\xff\xff",
        b"GET / HTTP/1.1\r\n\r\n",
        b"\0\0\0\x02{}",
        b"\0\0\0\x02\xff\xff",
        b"\0\0\x27\x10" + b"[" * 10_000,
        b"\0\0\0\x1c" + b'{"t":"ask","id":1,"op":"no"}',
    ],
)
@pytest.mark.parametrize("greeted", [False, True])
def test_breaches_are_answered_and_end_the_connection(home, bad, greeted):
    with serving(home) as running, raw_unix(sock(home)) as raw:
        if greeted:
            raw.send(HELLO)
        raw.sock.sendall(bad)
        messages = raw.all()
        assert messages[-1]["t"] == "error"
        assert messages[-1]["code"] == "protocol"
        assert len(messages) == 1 + greeted
        eventually(lambda: not running.server.peers)
        assert len(running.handler.gone) == greeted


def test_deep_nesting_in_an_unknown_field(home):
    with serving(home) as running, raw_unix(sock(home)) as raw:
        raw.send(HELLO)
        raw.send(b'{"t":"ask","id":1,"op":"ping","x":' + b"[" * 10_000 + b"]" * 10_000 + b"}")
        assert [message["t"] for message in raw.all()] == ["welcome", "error"]
        assert not running.handler.asked


def test_other_version_is_named(home):
    with serving(home), raw_unix(sock(home)) as raw:
        raw.send({"t": "hello", "version": 99})
        (message,) = raw.all()
        assert message["code"] == "version"
        assert "99" in message["message"]
        assert "version 1" in message["message"]


def test_a_client_cannot_speak_as_a_runner_nor_the_other_way_round(home):
    with serving(home) as running:
        for first, then in ((HELLO, {"t": "bye", "session": 1}), (greet(), {"t": "ask", "id": 1, "op": "ping"})):
            with raw_unix(sock(home)) as raw:
                raw.send(first)
                raw.send(then)
                assert raw.all()[-1]["code"] == "protocol"
        assert not running.handler.asked


def test_slow_greeter_is_closed(home):
    with serving(home, limits=Limits(greeting_s=0.2)) as running, raw_unix(sock(home)) as raw:
        began = time.monotonic()
        for byte in b"\0\0\0\x40{":
            raw.sock.sendall(bytes([byte]))
            time.sleep(0.02)
        assert raw.all()[-1]["code"] == "protocol"
        assert time.monotonic() - began > 0.1
        eventually(lambda: not running.server.peers)
        assert not running.handler.gone


def test_a_greeted_peer_may_be_silent(home):
    with serving(home, limits=Limits(greeting_s=1.0)), Connection.connect(home) as connection:
        connection.ask("ping")
        time.sleep(1.5)
        connection.ask("ping")


def test_reading_stops_at_1000_unanswered_and_goes_on(home):
    with serving(home) as running, Connection.connect(home) as connection:
        handler = running.handler
        handler.hold = True
        numbers = []  # the sender blocks once the socket is full, so it has a thread of its own
        sender = threading.Thread(target=lambda: numbers.extend(connection.post("ping") for _ in range(3_000)))
        sender.start()
        eventually(lambda: len(handler.asked) == 1_000)
        time.sleep(0.05)
        assert len(handler.asked) == 1_000
        assert handler.peers[0].unanswered == 1_000

        def answer_all():
            held, handler.held = handler.held, []
            for peer, ask_id in held:
                peer.answer(ask_id, {})

        for expected in (2_000, 3_000):
            running.call(answer_all)
            eventually(lambda: len(handler.asked) == expected)  # noqa: B023
        running.call(answer_all)
        sender.join(60)
        assert len(numbers) == 3_000
        assert all(connection.collect(number) == {} for number in numbers)
        assert handler.peers[0].unanswered == 0


def test_reports_of_a_runner_are_held_back_until_acknowledged(home):
    with serving(home, limits=Limits(unanswered=5)) as running, raw_unix(sock(home)) as raw:
        handler = running.handler
        handler.hold = True
        raw.send(greet())
        for seq in range(1, 13):
            raw.send({"t": "report", "session": 1, "seq": seq, "got": 0, "clock": 1.0})
        eventually(lambda: len(handler.said) == 6)
        time.sleep(0.05)
        assert len(handler.said) == 6
        running.call(handler.peers[0].ack, 4)
        eventually(lambda: len(handler.said) == 10)
        running.call(handler.peers[0].send, b'{"t":"ack","seq":9}')
        eventually(lambda: len(handler.said) == 13)
        assert handler.peers[0].runner_id == "r1"
        assert handler.peers[0].role == "runner"
    assert len(handler.gone) == 1


def test_a_client_that_does_not_read_is_dropped(home):
    with serving(home, limits=Limits(write_buffer=1 << 20)) as running, raw_unix(sock(home)) as raw:
        raw.send(HELLO)
        eventually(lambda: running.handler.peers)
        peer = running.handler.peers[0]
        big = b'{"t":"note","id":1,"x":"' + b"x" * 500_000 + b'"}'
        for _ in range(40):
            running.call(peer.send, big)
        eventually(lambda: running.handler.gone == [peer])
        assert peer.gone


def test_sends_of_one_turn_leave_together(home):
    with serving(home) as running, raw_unix(sock(home)) as raw:
        raw.send(HELLO)
        raw.read()
        eventually(lambda: running.handler.peers)
        peer = running.handler.peers[0]
        writes = []

        def many():
            transport = peer._transport
            original = transport.write
            transport.write = lambda data: (writes.append(len(data)), original(data))
            for number in range(100):
                peer.note(1, {"n": number})

        running.call(many)
        assert [raw.read()["n"] for _ in range(100)] == list(range(100))
        assert len(writes) == 1


def test_another_uid_by_credentials_is_denied(home):
    with serving(home, uid_of=lambda _: 12345) as running, Connection.connect(home) as connection:
        with pytest.raises(DeniedError, match="12345"):
            connection.ask("ping")
        assert not running.handler.peers


OTHER = """
import os, socket, struct, sys
os.setgroups([]); os.setgid(65534); os.setuid(65534)
s = socket.socket(socket.AF_UNIX)
try:
    s.connect(sys.argv[1])
except OSError as error:
    print(type(error).__name__); raise SystemExit
p = b'{"t":"hello","version":1}'
try:
    s.sendall(struct.pack(">I", len(p)) + p)
except OSError: pass
print(s.recv(65536)[4:].decode())
"""


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to become somebody else")
def test_another_uid_for_real(home, tmp_path):
    with serving(home) as running:

        def attempt():
            return subprocess.run([sys.executable, "-c", OTHER, sock(home)], capture_output=True, text=True).stdout

        assert attempt().strip() == "PermissionError"
        opened = [tmp_path, *tmp_path.parents]
        before = {path: path.stat().st_mode & 0o7777 for path in opened}
        try:
            for path in (home, sock(home), *opened):
                os.chmod(path, 0o777 if str(path).startswith(str(tmp_path)) else before[path] | 0o055)
            for _ in range(5):
                assert '"code":"denied"' in attempt()
        finally:
            for path, mode in before.items():
                os.chmod(path, mode)
        assert not running.handler.peers
        eventually(lambda: not running.server.peers)


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to make somebody else's directory")
def test_a_socket_of_another_user_is_not_trusted(tmp_path):
    home = tmp_path / "h"
    home.mkdir()
    os.chown(home, 65534, 65534)
    listener = subprocess.Popen(
        [
            sys.executable, "-c",
            "import os,socket,sys\nos.chdir(sys.argv[1])\nos.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
            "s=socket.socket(socket.AF_UNIX); s.bind('manager.sock'); s.listen(); print('up', flush=True)\n"
            "print(s.accept()[0].recv(100))",
            str(home),
        ],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        listener.stdout.readline()
        with pytest.raises(DeniedError, match="65534"):
            Connection.connect(str(home))
        assert listener.communicate(timeout=60)[0].strip() == "b''"
    finally:
        listener.kill()
        listener.wait()


@pytest.mark.parametrize("mode", [0o755, 0o770, 0o701])
def test_an_open_directory_is_refused(home, mode):
    os.chmod(home, mode)
    with pytest.raises(DeniedError, match="chmod 700"), serving(home):
        pass


def test_a_linked_directory_or_a_file_in_the_way_is_refused(home, tmp_path):
    link = tmp_path / "link"
    link.symlink_to(home)
    with pytest.raises(DeniedError, match="symbolic link"), serving(str(link)):
        pass
    with open(sock(home), "w") as file:
        file.write("mine")
    with pytest.raises(RefusedError, match="not a socket"), serving(home):
        pass
    with open(sock(home)) as file:
        assert file.read() == "mine"


def test_the_client_imports_little():
    code = "import sys, rota.wire.client, rota.manager.paths; print(*sys.modules)"
    loaded = set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.split())
    assert "rota.wire.client" in loaded
    assert not loaded & {"asyncio", "msgspec", "ssl", "typing", "dataclasses", "pathlib", "socket", "hmac", "selectors"}


def test_version_error_reaches_the_client(home, monkeypatch):
    monkeypatch.setattr("rota.wire.client.VERSION", 2)
    with serving(home), Connection.connect(home) as connection, pytest.raises(VersionError, match="version 2"):
        connection.ask("ping")
