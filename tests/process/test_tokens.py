"""Tokens of clients through a real manager: scopes, lifetimes, revoking, and the record of it all."""

import json
import os
import time
from pathlib import Path

import pytest

from process.support_home import Home, home
from process.wire_support import HELLO, raw_unix
from rota.model.errors import DeniedError, ProtocolError, RotaError
from rota.wire.client import Connection, LostError
from rota.wire.server import own_name

__all__ = ["home"]

CONFIG = 'listen = "127.0.0.1:0"\n[site.local]\ncores = 2\n'


def elsewhere(home: Home, tmp_path: Path, token: str) -> str:
    """A home as another host sees it: no socket, the manager's address, its CA, and one token."""
    place = tmp_path / f"far-{time.monotonic_ns()}"
    (place / "tls").mkdir(parents=True, mode=0o700)
    (place / "private").mkdir(mode=0o700)
    place.chmod(0o700)
    notice = json.loads(Path(home.path, "manager.json").read_text()) | {"host": "elsewhere"}
    for name, text in (
        ("manager.json", json.dumps(notice)),
        ("tls/ca.pem", Path(home.path, "tls", "ca.pem").read_text()),
        ("private/client", token),
    ):
        (place / name).write_text(text)
        (place / name).chmod(0o600)
    return str(place)


def new(home: Home, name: str, *words: str) -> str:
    return str(home.json("token", "new", name, *words)["token"])


def test_a_scope_bounds_what_a_token_may_do_by_tls_and_by_the_socket(home: Home, tmp_path: Path) -> None:
    home.config(CONFIG)
    home.rota("up")
    for scope, may, may_not in (("read", ("ping", "status"), ("submit", "down", "token", "kill")),
                                ("submit", ("ping",), ("down", "token", "kill", "limit", "prune")),
                                ("admin", ("ping", "limit"), ())):  # fmt: skip
        token = new(home, scope, "--scope", scope)
        with Connection.connect(elsewhere(home, tmp_path, token)) as connection:
            for op in may:
                connection.ask(op)
            for op in may_not:
                with pytest.raises(DeniedError, match=f"{op} needs more than the scope {scope}"):
                    connection.ask(op, **({"key": "ab", "batch": {}} if op == "submit" else {}))
        file = tmp_path / f"{scope}.token"
        file.write_text(token + "\n")
        file.chmod(0o600)
        env = {"ROTA_TOKEN_FILE": str(file)}
        home.rota("status", env=env)
        home.rota("add", "--", "true", env=env, code=5 if scope == "read" else 0)
        home.rota("limit", "x:1", env=env, code=0 if scope == "admin" else 5)
    rows = home.rows("audit")
    assert any(row["by"] == "token read via 127.0.0.1" and "refused" in row["outcome"] for row in rows)
    assert any(row["by"].startswith(f"token submit of {own_name()}") and row["action"] == "submit" for row in rows)
    assert all(set(row) == {"at", "by", "address", "action", "target", "outcome"} for row in rows)


def test_every_submission_is_in_the_record(home: Home) -> None:
    home.rota("up")
    home.rota("add", "--", "true")
    home.rota("add", "--", "true")  # from the same environment: nothing of it has to be kept first
    home.rota("add", "--array", "1-3", "--", "true")
    home.rota("add", "--cores", "100000", "--", "true", code=2)
    rows = [(row["target"], row["outcome"]) for row in home.rows("audit") if row["action"] == "submit"]
    assert [target for target, outcome in rows if outcome == "ok"] == ["batch 1", "batch 2", "batch 3"]
    assert [outcome for _, outcome in rows if outcome.startswith("refused: this can never run")], rows


def test_revoking_and_rotating_close_sessions(home: Home, tmp_path: Path) -> None:
    home.config(CONFIG)
    home.rota("up")
    one = elsewhere(home, tmp_path, new(home, "ci", "--scope", "admin"))
    own = elsewhere(home, tmp_path, Path(home.path, "private", "client").read_text())
    for place, words in ((one, ("revoke", "ci")), (own, ("rotate", "client"))):
        with Connection.connect(place) as connection:
            connection.ask("ping")
            home.rota("token", *words)
            with pytest.raises((LostError, DeniedError)):
                connection.ask("ping")
        with pytest.raises(RotaError), Connection.connect(place) as connection:
            connection.ask("ping")
    fresh = elsewhere(home, tmp_path, Path(home.path, "private", "client").read_text())
    with Connection.connect(fresh) as connection:
        connection.ask("ping")
    (row,) = home.json("token", "list")["tokens"]
    assert row["name"] == "client"
    assert row["last_used"] is not None


def test_a_token_ends_with_its_lifetime_and_survives_a_restart(home: Home, tmp_path: Path) -> None:
    home.config(CONFIG)
    home.rota("up")
    short = elsewhere(home, tmp_path, new(home, "short", "--lifetime", "2s"))
    kept = new(home, "kept")
    with Connection.connect(short) as connection:
        connection.ask("ping")
        home.until(lambda: home.json("token", "list")["tokens"][2]["expires"] < time.time())
        with pytest.raises(ProtocolError, match="expired"):
            connection.ask("ping")
    with pytest.raises(DeniedError), Connection.connect(short) as connection:
        connection.ask("ping")
    home.rota("down")
    home.rota("up")
    with Connection.connect(elsewhere(home, tmp_path, kept)) as connection:
        connection.ask("ping")
    secret = kept.rpartition(".")[2]
    for directory, _, names in os.walk(home.path):
        for name in names:
            if name != "manager.sock":
                assert secret.encode() not in Path(directory, name).read_bytes(), "kept as a verifier only"
    refused = [row for row in home.rows("audit", "--refused") if row["action"] == "greet"]
    assert refused, "a refused greeting is in the record"
    assert refused[0]["target"] == "token short"


def test_who_follows_is_told_nothing_after_the_end_of_his_token(home: Home) -> None:
    """A question that was open outlived its token, and went on being answered."""
    home.config(CONFIG)
    home.rota("up")
    gate = home.gate()
    home.add("--", gate.wait)
    new(home, "short", "--scope", "read", "--lifetime", "3s")
    with raw_unix(Path(home.path, "manager.sock")) as raw:
        raw.send({**HELLO, "name": "short"})
        assert raw.read()["t"] == "welcome"
        raw.send({"t": "ask", "id": 1, "op": "follow", "sel": []})
        assert raw.read()["code"] == "protocol"
        assert raw.read() is None, "closed"
    gate.open()


def test_who_is_refused_often_cannot_push_out_the_record(home: Home) -> None:
    home.rota("up")
    new(home, "look", "--scope", "read")
    asks = [*(("down", {}) for _ in range(300)), *((op, {"sel": []}) for op in ("failures", "totals") * 50)]
    for _ in range(3):
        with raw_unix(Path(home.path, "manager.sock")) as raw:
            raw.send({**HELLO, "name": "look"})
            for number, (op, more) in enumerate(asks):
                raw.send({"t": "ask", "id": number, "op": op, **more})
            for _ in range(len(asks) + 1):
                raw.read()
    rows = home.rows("audit")
    assert any(row["action"] == "token" and "look" in row["target"] for row in rows), "what was before it is there"
    minutes = len({int(row["at"] // 60) for row in rows})
    assert len(rows) < 30 * minutes, "and what it did is counted, not written one by one"


def test_a_submission_changes_no_limit_that_is_there(home: Home) -> None:
    home.rota("up")
    home.rota("limit", "irods:3", "api:10/min")
    new(home, "sub", "--scope", "submit")
    batch = {"count": 1, "templates": [{"argv": ["true"], "limits": ["irods"]}]}
    with raw_unix(Path(home.path, "manager.sock")) as raw:
        raw.send({**HELLO, "name": "sub"})
        raw.read()
        for limits in ({"irods": 1000}, {"irods": "0"}, {"own": 2, "api": 5}, {"api": "1000/min"}):
            raw.send({"t": "ask", "id": 1, "op": "submit", "key": "a", "batch": batch, "limits": limits})
            assert raw.read()["code"] == "denied", limits
        same = {"irods": 3, "api": "10/min", "own": 2}
        raw.send({"t": "ask", "id": 1, "op": "submit", "key": "a", "batch": batch, "limits": same})
        assert raw.read()["batch"] == 1
    rows = {row["name"]: row["count"] for row in home.json("limit")["limits"]}
    assert rows == {"irods": 3, "api": None, "own": 2}


def test_a_home_of_somebody_else_is_not_believed(home: Home, tmp_path: Path) -> None:
    home.config(CONFIG)
    home.rota("up")
    place = elsewhere(home, tmp_path, new(home, "mine"))
    if os.getuid() != 0:
        pytest.skip("only root can give a directory to another user")
    for name in ("", "manager.json", "tls/ca.pem"):
        path = os.path.join(place, name)
        os.chown(path, 12345, 12345)
        with pytest.raises(DeniedError, match=r"yours|belongs"):
            Connection.connect(place)
        os.chown(path, 0, 0)
    os.chmod(place, 0o755)
    with pytest.raises(DeniedError, match="can be entered by others"):
        Connection.connect(place)


def test_keys_leave_the_directory_that_nodes_see(home: Home) -> None:
    home.config(CONFIG)
    home.rota("up")
    assert os.listdir(os.path.join(home.path, "tls")) == ["ca.pem"]
    home.rota("down")
    ca = Path(home.path, "tls", "ca.pem").read_text()
    for name in ("ca.key", "server.key", "server.pem"):  # as an earlier release left it
        os.rename(os.path.join(home.path, "private", name), os.path.join(home.path, "tls", name))
    os.unlink(os.path.join(home.path, "private", "ca.pem"))
    home.rota("up")
    assert os.listdir(os.path.join(home.path, "tls")) == ["ca.pem"]
    assert Path(home.path, "tls", "ca.pem").read_text() == ca, "runners go on trusting us"
