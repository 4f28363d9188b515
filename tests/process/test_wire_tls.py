"""The TLS door: only who trusts the right CA and proves the right token gets in, and guessing is slow."""

import asyncio
import json
import os
import re
import socket
import ssl
import stat
import time
from datetime import UTC, datetime, timedelta
from unittest.mock import ANY

import pytest

from process.wire_support import CLIENT, HELLO, Raw, client_proof_for, greet, proof_for, raw_tls, serving
from rota.model.errors import DeniedError, NotFoundError
from rota.wire import auth
from rota.wire.aclient import AsyncConnection
from rota.wire.certificates import server_identity
from rota.wire.client import Connection, NoManagerError
from rota.wire.home import private_directory, write_private
from rota.wire.server import Limits


@pytest.fixture
def home(tmp_path):
    path = tmp_path / "h"
    path.mkdir(mode=0o700)
    return str(path)


@pytest.fixture
def tls(home):
    """A running server with the tokens of two allocations and of the clients."""
    identity = server_identity(os.path.join(home, "tls"))
    with serving(identity=identity, limits=Limits(greeting_s=2.0)) as running:
        running.ca = os.path.join(home, "tls", "ca.pem")
        running.handler.tokens = {name: auth.write_token(home, name) for name in ("a1", "a2")}
        running.handler.tokens[CLIENT] = auth.new_token()
        private_directory(os.path.join(home, "private"))
        write_private(os.path.join(home, "private", CLIENT), f"client.{running.handler.tokens[CLIENT]}\n".encode())
        with open(os.path.join(home, "manager.json"), "w") as file:
            json.dump({"host": "elsewhere", "pid": 1, "address": "127.0.0.1", "port": running.port}, file)
        yield running


def attempt(tls, message, token=None):
    """Connect, answer the challenge with this greeting, and return the first message back."""
    with raw_tls(tls.port, tls.ca) as raw:
        challenge = raw.read()
        assert challenge["t"] == "challenge"
        if token is not None:
            prove = client_proof_for if message["t"] == "hello" else proof_for
            message = {**message, "proof": prove(raw, challenge, token)}
        raw.send(message)
        return raw.read()


def test_a_runner_proves_its_token(tls):
    tokens = tls.handler.tokens
    assert attempt(tls, greet(allocation="a1"), tokens["a1"])["t"] == "welcome"
    peer = tls.handler.peers[0]
    assert (peer.role, peer.allocation, peer.principal) == ("runner", "a1", "allocation a1 via 127.0.0.1")
    assert tls.handler.said[0].proof is None


def test_clients_of_another_host(tls, home):
    with Connection.connect(home) as connection:
        assert connection.ask("ping") == {"op": "ping"}
        assert connection.manager["host"] == "here"
    assert tls.handler.peers[0].principal == "token client via 127.0.0.1"

    async def talk():
        async with await AsyncConnection.connect(home) as connection:
            return await connection.ask("ping")

    assert asyncio.run(talk()) == {"op": "ping"}


def test_a_token_opens_only_its_own_door(tls):
    tokens = tls.handler.tokens
    for message, token in (
        (greet(allocation="a1"), tokens["a2"]),
        (greet(allocation="a1"), auth.new_token()),
        (greet(allocation="a1"), tokens[CLIENT]),
        (greet(allocation="unknown"), tokens["a1"]),
        (greet(allocation=CLIENT), tokens[CLIENT]),
        ({**HELLO, "allocation": "a1"}, tokens["a1"]),
        (greet(), tokens["a1"]),
    ):
        assert attempt(tls, message, token)["code"] == "denied"
    assert not tls.handler.peers


def test_no_proof_and_empty_proofs(tls):
    for message in (HELLO, greet(allocation="a1"), {**HELLO, "proof": None}):
        assert attempt(tls, message)["code"] == "denied"
    tls.handler.tokens["a1"] = ""
    assert attempt(tls, greet(allocation="a1"), "")["code"] == "denied"
    assert not tls.handler.peers


def test_a_replayed_proof_is_worthless(tls):
    token = tls.handler.tokens["a1"]
    with raw_tls(tls.port, tls.ca) as raw:
        good = greet(allocation="a1", proof=proof_for(raw, raw.read(), token))
        raw.send(good)
        assert raw.read()["t"] == "welcome"
    assert attempt(tls, good)["code"] == "denied"


def test_a_proof_for_another_certificate_is_worthless(tls):
    token = tls.handler.tokens["a1"]
    with raw_tls(tls.port, tls.ca) as raw:
        nonce = raw.read()["nonce"]
        raw.send(greet(allocation="a1", proof=auth.proof(token, nonce, "00" * 32)))
        assert raw.read()["code"] == "denied"


def test_an_expired_token(tls):
    token = tls.handler.tokens.pop("a1")
    assert attempt(tls, greet(allocation="a1"), token)["code"] == "denied"


def test_another_ca_is_not_trusted_by_the_peer(tls, tmp_path, home):
    other = tmp_path / "other"
    server_identity(str(other))
    with pytest.raises(ssl.SSLCertVerificationError):
        raw_tls(tls.port, str(other / "ca.pem"))
    os.replace(tls.ca, other / "right.pem")
    with pytest.raises(NoManagerError, match=r"elsewhere.*No such file"):
        Connection.connect(home)
    os.replace(other / "ca.pem", tls.ca)
    with pytest.raises(NoManagerError, match=r"elsewhere.*verify failed"):
        Connection.connect(home)


def test_nothing_older_than_tls_13(tls):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(tls.ca)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises((ssl.SSLError, ConnectionError)):
        raw_tls(tls.port, tls.ca, context)


def plain(port, source="127.0.0.1"):
    return Raw(socket.create_connection(("127.0.0.1", port), timeout=60, source_address=(source, 0)))


def test_plain_text_gets_nowhere(tls):
    with plain(tls.port) as raw:
        raw.send(HELLO)
        raw.sock.settimeout(60)
        try:
            while raw.sock.recv(1000):
                pass
        except ConnectionError:
            pass
    assert not tls.handler.peers


@pytest.mark.parametrize("handshake", [False, True])
def test_slow_loris(home, handshake):
    identity = server_identity(os.path.join(home, "tls"))
    with serving(identity=identity, limits=Limits(greeting_s=2.0)) as running:
        ca = os.path.join(home, "tls", "ca.pem")
        with raw_tls(running.port, ca) if handshake else plain(running.port) as raw:
            messages = raw.all()
            assert [message["t"] for message in messages] == (["challenge", "error"] if handshake else [])
        deadline = time.monotonic() + 30
        while running.server.peers and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not running.server.peers


def test_guessing_is_slow(tls):
    for _ in range(10):
        assert attempt(tls, greet(allocation="a1"), auth.new_token())["code"] == "denied"
    assert tls.handler.locked == [("127.0.0.1", "a1")]
    assert attempt(tls, greet(allocation="a1"), auth.new_token()) is None, "closed without a word"
    assert attempt(tls, greet(allocation="a1"), tls.handler.tokens["a1"])["t"] == "welcome", "a right proof is taken"
    assert attempt(tls, greet(allocation="a2"), auth.new_token())["code"] == "denied"


def test_too_many_that_do_not_greet(home):
    identity = server_identity(os.path.join(home, "tls"))
    with serving(identity=identity, limits=Limits(ungreeted=3)) as running:
        waiting = [raw_tls(running.port, os.path.join(home, "tls", "ca.pem")) for _ in range(4)]
        assert waiting[0].all() in ([], [{"t": "challenge", "nonce": ANY}]), "the oldest made room"
        assert all(raw.read()["t"] == "challenge" for raw in waiting[1:])
        for raw in waiting:
            raw.close()


def test_a_flood_from_many_addresses_takes_the_places_of_who_has_most(home):
    identity = server_identity(os.path.join(home, "tls"))
    ca = os.path.join(home, "tls", "ca.pem")
    with serving(identity=identity, limits=Limits(ungreeted_all=8)) as running:
        with raw_tls(running.port, ca) as patient:
            assert patient.read()["t"] == "challenge"
            junk = [plain(running.port, f"127.0.0.{2 + number % 4}") for number in range(40)]
            deadline = time.monotonic() + 30
            while len(running.server.peers) > 8 and time.monotonic() < deadline:
                time.sleep(0.01)
            assert len(running.server.peers) <= 8
            running.handler.tokens["a1"] = auth.new_token()
            for raw in junk:
                raw.close()
        assert not running.handler.gone


def test_a_long_greeting_follows_its_proof(tls):
    token = tls.handler.tokens["a1"]
    held = [[1, number, 1] for number in range(20_000)]
    with raw_tls(tls.port, tls.ca) as raw:
        proof = proof_for(raw, raw.read(), token)
        try:
            raw.send(greet(allocation="a1", held=held, proof=proof))
            refused = raw.read()
        except OSError:
            refused = None  # the connection was ended before all of it was sent
        assert refused is None or refused["code"] == "protocol", "nobody unknown is read so much of"
    with raw_tls(tls.port, tls.ca) as raw:
        proof = proof_for(raw, raw.read(), token)
        raw.send({"t": "prove", "version": 1, "allocation": "a1", "proof": proof})
        raw.send(greet(allocation="a1", held=held))
        assert raw.read()["t"] == "welcome"
    with raw_tls(tls.port, tls.ca) as raw:
        proof = proof_for(raw, raw.read(), token)
        raw.send({"t": "prove", "version": 1, "allocation": "a1", "proof": proof})
        raw.send(greet(allocation="a2"))
        assert raw.read()["code"] == "denied", "the proof is for its own allocation"


@pytest.mark.parametrize("bad", [b"\xff\xff\xff\xff", b"\0\0\x27\x10" + b"[" * 10_000, b"\0\0\0\0"])
def test_breaches_over_tls(tls, bad):
    with raw_tls(tls.port, tls.ca) as raw:
        raw.read()
        raw.sock.sendall(bad)
        assert raw.read()["code"] == "protocol"
        assert raw.read() is None


def test_a_renewed_certificate_serves_new_connections(tls, home):
    old = tls.server.identity
    with raw_tls(tls.port, tls.ca) as raw:
        challenge = raw.read()
        tls.server.identity = new = server_identity(os.path.join(home, "tls"), names=["new.example"])
        assert new.renewed
        assert new.fingerprint != old.fingerprint
        # Who was shown the old certificate is judged by the old one.
        raw.send(greet(allocation="a1", proof=proof_for(raw, challenge, tls.handler.tokens["a1"])))
        assert raw.read()["t"] == "welcome"
    with raw_tls(tls.port, tls.ca) as raw:
        assert auth.fingerprint(raw.sock.getpeercert(True)) == new.fingerprint
    assert attempt(tls, greet(allocation="a2"), tls.handler.tokens["a2"])["t"] == "welcome"


# Certificates, tokens and the limiter, without sockets


def test_the_ca_is_kept_and_the_certificate_renewed(tmp_path):
    directory = str(tmp_path / "tls")
    first = server_identity(directory)
    ca = (tmp_path / "tls" / "ca.pem").read_bytes()
    assert first.renewed
    assert not server_identity(directory).renewed
    later = server_identity(directory, now=datetime.now(UTC) + timedelta(days=340))
    assert later.renewed
    assert later.fingerprint != first.fingerprint
    assert (tmp_path / "tls" / "ca.pem").read_bytes() == ca
    assert server_identity(directory, names=["new.example"], now=datetime.now(UTC) + timedelta(days=340)).renewed
    (tmp_path / "tls" / "server.key").write_text("broken")
    assert server_identity(directory).renewed
    assert (tmp_path / "tls" / "ca.pem").read_bytes() == ca


def test_files_are_private(tmp_path):
    server_identity(str(tmp_path / "tls"))
    auth.write_token(str(tmp_path), "a1")
    for directory in ("tls", "tokens"):
        assert stat.S_IMODE((tmp_path / directory).stat().st_mode) == 0o700
        files = list((tmp_path / directory).iterdir())
        assert files
        assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}


def test_tokens(tmp_path):
    home = str(tmp_path)
    token = auth.write_token(home, "a1")
    assert re.fullmatch("[0-9a-f]{64}", token)
    assert auth.read_token(home, "a1") == token
    os.chmod(tmp_path / "tokens" / "a1", 0o640)
    with pytest.raises(DeniedError, match="0600"):
        auth.read_token(home, "a1")
    auth.remove_token(home, "a1")
    auth.remove_token(home, "a1")
    with pytest.raises(NotFoundError):
        auth.read_token(home, "a1")
    for name in ("", ".", "..", "../x", "a/b", "a\n", "é", "x" * 65):
        with pytest.raises(DeniedError):
            auth.write_token(home, name)
    (tmp_path / "tokens" / "link").symlink_to("/etc/passwd")
    with pytest.raises(OSError):
        auth.read_token(home, "link")


def test_the_limiter_forgets_after_a_minute_and_stays_small():
    limiter = auth.RateLimiter(most=100)
    for second in range(10):
        assert not limiter.blocked("x", second)
        limiter.failed("x", second)
    assert limiter.blocked("x", 10)
    assert limiter.blocked("x", 59.9)
    assert not limiter.blocked("x", 60.0)
    assert not limiter.blocked("y", 10)
    for number in range(1000):
        limiter.failed(str(number), 100)
    assert len(limiter._failures) == 100
