"""One home, one manager, nobody else's: the lock, the directory, the database, the socket, the secrets."""

import json
import os
import shutil
import socket
import sqlite3
import struct
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from process.support_home import Home, a_home, cmdline, environ, home, pids
from rota.wire.client import Connection
from rota.wire.home import client_token_path

__all__ = ["home"]

NOBODY = 65534
as_root = pytest.mark.skipif(os.getuid() != 0, reason="needs root to become another user")


def second(home: Home) -> subprocess.CompletedProcess[str]:
    """A second manager, started by hand."""
    words = [sys.executable, "-m", "rota.manager", "--home", home.path]
    return subprocess.run(words, capture_output=True, text=True, env=home.env, timeout=30)


def test_two_managers(home: Home) -> None:
    """The second refuses, naming the first; the first does not notice."""
    home.rota("up")
    pid = home.manager()
    done = second(home)
    assert done.returncode == 1
    assert f"already runs on {socket.gethostname()} as pid {pid}" in done.stderr
    assert home.path in done.stderr
    assert "already up" in home.rota("up").stdout
    assert home.manager() == pid
    assert home.json("ping")["pid"] == pid


def test_many_start_at_once(home: Home) -> None:
    """Twenty times `rota add` on an empty home: one manager, and all twenty batches."""
    with ThreadPoolExecutor(10) as pool:
        batches = list(pool.map(lambda number: home.add("--name", f"n{number}", "--", "true"), range(20)))
    assert sorted(map(int, batches)) == list(range(1, 21))
    assert home.settled() == {"COMPLETED": 20}
    assert len([pid for pid in home.processes() if "\0rota.manager\0" in cmdline(pid)]) == 1


def test_a_stale_pid_file_means_nothing(home: Home) -> None:
    """A pid file and a socket of a manager that was killed do not keep the next from starting."""
    home.rota("up")
    home.kill_manager()
    Path(home.path, "manager.pid").write_text(f"{os.getpid()}\n")
    assert home.rota("ping", code=3).stderr
    home.rota("up")
    assert home.json("ping")["pid"] == int(Path(home.path, "manager.pid").read_text())


def test_home_that_others_can_enter(home: Home) -> None:
    """Refused with what to do; nothing is repaired silently, and no manager starts."""
    os.chmod(home.path, 0o755)
    refused = home.rota("add", "--", "true", code=5)
    assert f"chmod 700 {home.path}" in refused.stderr
    assert os.listdir(home.path) == []


def test_home_that_is_a_link(home: Home) -> None:
    """Not followed."""
    link = f"{home.work}/link"
    os.symlink(home.path, link)
    refused = home.rota("add", "--", "true", code=5, env={"ROTA_HOME": link})
    assert "symbolic link" in refused.stderr
    assert os.listdir(home.path) == []


def test_home_that_is_a_file(home: Home) -> None:
    """Said so."""
    path = home.work / "file"
    path.write_text("")
    assert "not a directory" in home.rota("add", "--", "true", code=5, env={"ROTA_HOME": str(path)}).stderr


@as_root
def test_home_of_another_user(home: Home) -> None:
    """Neither we in theirs, nor they in ours."""
    theirs = tempfile.mkdtemp(prefix="rh-", dir="/tmp")
    try:
        os.chown(theirs, NOBODY, NOBODY)
        refused = home.rota("add", "--", "true", code=5, env={"ROTA_HOME": theirs})
        assert f"belongs to uid {NOBODY}" in refused.stderr
        assert os.listdir(theirs) == []
    finally:
        shutil.rmtree(theirs)


@as_root
def test_newer_database(home: Home) -> None:
    """Refused, naming both versions; not a byte is changed."""
    home.add("--", "true")
    home.settled()
    home.rota("down")
    path = os.path.join(home.path, "rota.db")
    con = sqlite3.connect(path)
    (version,) = con.execute("PRAGMA user_version").fetchone()
    con.execute(f"PRAGMA user_version = {version + 7}")
    con.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    con.close()
    before = Path(path).read_bytes()
    refused = home.rota("add", "--", "true", code=5)
    assert str(version + 7) in refused.stderr
    assert str(version) in refused.stderr.replace(str(version + 7), "")
    assert Path(path).read_bytes() == before
    assert not home.manager()


def test_damaged_database(home: Home) -> None:
    """Not a database: refused, kept, and said what to do."""
    Path(home.path, "rota.db").write_bytes(b"this is no database, but somebody's thesis" * 200)
    refused = home.rota("up", code=5)
    assert "rota.db" in refused.stderr
    assert "backup" in refused.stderr
    assert Path(home.path, "rota.db").read_bytes().startswith(b"this is no database")


def test_wrong_configuration(home: Home) -> None:
    """Names the file and the key."""
    for text, said in (
        ("touchh = '1s'\n", "touchh"),
        ("touch = 'soon'\n", "soon"),
        ("[site.x]\ndriver = 'abacus'\n", "abacus"),
        ("[site.local]\ncores = 'many'\n", "many"),
        ("touch = ", "Invalid value"),
        ("listen = 'nonsense'\n", "nonsense"),
    ):
        home.config(text)
        refused = home.rota("up", code=None)
        assert refused.returncode in (2, 5), refused
        assert "config.toml" in refused.stderr
        assert said in refused.stderr


def test_long_home() -> None:
    """A path that no socket address can hold works all the same, for clients and for runners."""
    base = tempfile.mkdtemp(prefix="rh-", dir="/tmp")
    path = os.path.join(base, *["d" * 60] * 4)
    os.makedirs(path, 0o700)
    try:
        with a_home(path) as home:
            home.add("--array", "1-5", "--", "true")
            assert home.settled() == {"COMPLETED": 5}
            home.kill_manager()
            home.rota("up")
            home.add("--", "true")
            assert home.settled() == {"COMPLETED": 6}
    finally:
        shutil.rmtree(base)


# ---- the socket -----------------------------------------------------------------------------------------------------


def talk(home: Home, data: bytes) -> bytes:
    """Send raw bytes, and read until the manager closes or is silent."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(3)
        sock.connect(os.path.join(home.path, "manager.sock"))
        said = b""
        try:
            sock.sendall(data)
            while b'"error"' not in said and (part := sock.recv(65536)):
                said += part
        except (TimeoutError, ConnectionError):
            pass
        return said


def frame(message: object) -> bytes:
    """One frame."""
    body = message if isinstance(message, bytes) else json.dumps(message).encode()
    return struct.pack(">I", len(body)) + body


HELLO = frame({"t": "hello", "version": 1})


def test_garbage_on_the_socket(home: Home) -> None:
    """Each of these is answered by an error and a closed connection, and costs nobody else anything."""
    home.add("--array", "1-20", "--", "sleep 0.2")
    pid = home.manager()
    deep = b'{"t":"ask","id":1,"op":"ping","x":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    with Connection.connect(home.path) as other:
        for data in (
            b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
            b"\xff" * 1000,
            struct.pack(">I", 0),
            struct.pack(">I", 0xFFFFFFFF) + b"x" * 1000,
            struct.pack(">I", 4_194_305) + b"x" * 100_000,
            frame(b"not json"),
            frame([1, 2, 3]),
            frame({"t": "nonsense"}),
            HELLO + frame(deep),
            HELLO + frame(b'{"t":"ask","id":1,"op":"ping"'),
            HELLO + frame({"t": "ask", "id": "one", "op": "ping"}),
            HELLO + frame({"t": "ask", "id": 1, "op": "jobs", "sel": 7}),
            HELLO + frame(b'{"t":"ask","id":1,"op":"status","sel":["\xff\xfe"]}'),
            frame({"t": "hello", "version": 99}),
        ):
            assert b'"error"' in talk(home, data), data[:60]
            assert other.ask("ping")["pid"] == pid
    assert home.settled() == {"COMPLETED": 20}
    assert home.manager() == pid
    assert "Traceback" not in home.tail()


def test_hostile_arguments(home: Home) -> None:
    """Well-formed requests with impossible arguments are refused one by one; the connection goes on."""
    home.add("--", "true")
    asks = [
        ("nonsense", {}),
        ("explain", {"job": "1.99999999999999999999"}),
        ("explain", {"job": "x"}),
        ("log", {"job": "1.1", "attempt": 70000, "stream": "stdout", "offset": 0, "limit": 10}),
        ("jobs", {"sel": ["1"], "after": "../../etc/passwd", "limit": 10, "newest": False}),
        ("history", {"sel": [], "after": "{}", "limit": 10}),
        ("history", {"sel": [], "after": "[1]", "limit": 10}),
        ("summary", {"batch": 10**30, "failures": 1, "slowest": 1}),
        ("kill", {"sel": [], "all": False, "dry_run": False, "confirm_dead": False}),
        (
            "submit",
            {"key": "a" * 32, "batch": {"templates": [], "count": 1}, "values": None, "stage": None, "env": None},
        ),
        ("submit", {"key": "b" * 32, "batch": {"count": -1}, "values": None, "stage": None, "env": None}),
        ("stage", {"stage": "x", "first": -5, "values": ["a"], "templates": None}),
    ]
    for op, arguments in asks:
        body = frame({"t": "ask", "id": 1, "op": op, **arguments})
        said = talk(home, HELLO + body)
        assert b'"error"' in said, (op, arguments, said)
        assert b"internal" not in said, (op, arguments, said)
    assert home.settled() == {"COMPLETED": 1}
    assert "Traceback" not in home.tail()


OTHER_UID = f"""
import os, socket, sys
os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})
sock = socket.socket(socket.AF_UNIX)
try:
    sock.connect(sys.argv[1])
    sock.sendall({HELLO!r})
    print(sock.recv(1000))
except OSError as error:
    print(error.strerror)
"""


@as_root
def test_another_user_on_the_socket(home: Home) -> None:
    """Kept out by the directory; and even with the directory open, by the peer's uid."""
    home.rota("up")
    path = os.path.join(home.path, "manager.sock")
    words = [sys.executable, "-c", OTHER_UID, path]
    assert "Permission denied" in subprocess.run(words, capture_output=True, text=True).stdout
    os.chmod(home.path, 0o755)
    os.chmod(path, 0o777)
    try:
        said = subprocess.run(words, capture_output=True, text=True).stdout
        assert "denied" in said or said in ("", "b''\n", "Broken pipe\n", "Connection reset by peer\n")
        assert "welcome" not in said
    finally:
        os.chmod(home.path, 0o700)
    assert home.json("ping")["pid"] == home.manager()


# ---- secrets --------------------------------------------------------------------------------------------------------


def test_secrets_are_nowhere(home: Home) -> None:
    """The client's token is in its file and nowhere else; a job inherits three descriptors and no secret."""
    home.config('listen = "127.0.0.1:0"\n')
    secret = "hunter2-" + os.urandom(8).hex()
    batch = home.add(
        "--array",
        "1-3",
        "--",
        "ls",
        "/proc/self/fd",
        "/proc/self/environ",
        env={"MY_API_TOKEN": secret, "SSH_AUTH_SOCK": "/tmp/agent", "DB_PASSWORD": secret},
    )
    sleeper = home.add(
        "--", "cat /proc/self/environ; sleep 300", env={"MY_API_TOKEN": secret, "SSH_AUTH_SOCK": "/tmp/agent"}
    )
    assert home.settled(batch) == {"COMPLETED": 3}
    home.until(lambda: home.counts(sleeper).get("RUNNING"))
    token_file = Path(client_token_path(home.path))
    assert token_file.stat().st_mode & 0o777 == 0o600
    token = token_file.read_text().strip()
    assert len(token) >= 32
    for pid in pids():
        assert token not in cmdline(pid)
        assert token not in environ(pid)
    for root, _, names in os.walk(home.path):
        for name in names:
            path = os.path.join(root, name)
            if path == str(token_file) or not os.path.isfile(path):
                continue
            data = Path(path).read_bytes()
            assert token.encode() not in data, path
            assert secret.encode() not in data, path
            assert name == "config.toml" or os.stat(path).st_mode & 0o077 == 0, path
    for number in (1, 2, 3):
        descriptors = set(home.rota("log", f"{batch}.{number}").stdout.split()) - {
            "/proc/self/environ",
            "/proc/self/fd:",
        }
        assert descriptors == {"0", "1", "2", "3"}, "the job has inherited more than its streams (3 is ls's own)"
    (job,) = [pid for pid in home.of_runner(*home.runners().values()) if cmdline(pid).startswith("sleep\0")]
    for word in (token, secret, "SSH_AUTH_SOCK"):
        assert word not in environ(job)
    home.rota("kill", "--all")


def test_files_are_private_whatever_the_umask(home: Home) -> None:
    home.rota("up", preexec_fn=lambda: os.umask(0))
    home.rota("add", "--", "echo secret", preexec_fn=lambda: os.umask(0))
    home.settled()
    path = home.rota("backup").stdout.strip()
    found = [Path(home.path), Path(path), *Path(home.path).rglob("*")]
    assert [each for each in found if each.lstat().st_mode & 0o077 and not each.is_symlink()] == []
