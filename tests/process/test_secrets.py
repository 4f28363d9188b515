"""Secrets in the queue: what is pruned is gone from the file, and a redacted backup has none."""

from pathlib import Path

import pytest

from process.support_home import Home, home
from rota.core.state import Settings
from rota.manager.checkpoints import state_of
from rota.model.batch import BatchSpec, Template
from rota.model.events import Entry, Pruned, Submitted
from rota.store import sqlite
from rota.store.api import Loaded
from rota.store.sqlite import SqliteStore

__all__ = ["home"]

CANARIES = ("cAnArY1", "cAnArY2", "cAnArY3", "cAnArY4")


def test_a_redacted_backup_has_no_secrets_and_can_be_restored(home: Home) -> None:
    home.rota("up")
    env = {"PLAIN": CANARIES[0], "PGURL": f"postgres://me:{CANARIES[3]}@db/x"}
    home.add("--env", f"API_TOKEN={CANARIES[1]}", "--", f"curl -s https://me:{CANARIES[2]}@127.0.0.1/ || true", env=env)
    home.add("--values", f"token={CANARIES[1]},b", "--", "echo {}")
    home.settled()
    home.rota("backup", str(home.work / "whole.db"))
    path = Path(home.rota("backup", "--redact", str(home.work / "clean.db")).stdout.strip())
    assert all(canary.encode() in (home.work / "whole.db").read_bytes() for canary in CANARIES[:3])
    assert CANARIES[3].encode() not in (home.work / "whole.db").read_bytes(), "an address with a password is not sent"
    assert not any(canary.encode() in path.read_bytes() for canary in CANARIES)
    assert not list(home.work.glob("*.whole*"))
    store = SqliteStore(path, reserve_bytes=0)
    store.load()
    assert store.check() == []
    store.close()
    before = home.counts()
    home.rota("down")
    home.rota("restore", str(path))
    home.rota("up")
    assert home.counts() == before


def test_secrets_in_words_of_their_own_in_headers_and_in_names_are_masked_too(home: Home) -> None:
    home.rota("up")
    home.rota("pause", "--reason", f"token={CANARIES[0]}")
    home.add("--name", f"token={CANARIES[0]}", "--", "echo", "--password", CANARIES[1], "-u", f"me:{CANARIES[2]}")
    home.add("--", f"curl -u me:{CANARIES[0]} -H 'Authorization: Basic {CANARIES[1]}' --user=me:{CANARIES[2]} h | cat")
    for words in ((), ("down",), ("up",)):  # and from the checkpoint
        home.rota(*words) if words else None
    path = home.work / "masked.db"
    home.rota("backup", "--redact", str(path))
    assert [canary for canary in CANARIES if canary.encode() in path.read_bytes()] == []
    home.rota("down")
    home.rota("restore", str(path))
    home.rota("up")
    assert home.counts() == {"PENDING": 2}


def test_what_was_pruned_cannot_be_read_in_the_files_while_the_manager_goes_on(home: Home) -> None:
    """Commands, variables, values and environments: not in tables, nor the log, nor free pages, nor the WAL."""
    home.rota("up")
    env = {"PLAIN": CANARIES[0]}
    home.add("--env", f"SEED={CANARIES[1]}", "--values", f"a{CANARIES[2]},b", "--", f": {CANARIES[3]} {{}}", env=env)
    home.add("--", "true")
    home.settled()
    assert all(canary.encode() in _raw(home) for canary in CANARIES)
    home.rota("prune", "1")
    left = CANARIES[1:]  # an environment that was wanted of late is kept for submissions under way
    home.until(lambda: not any(canary.encode() in _raw(home) for canary in left), what="it is gone from the files")
    home.kill_manager()
    home.rota("up")
    home.until(lambda: CANARIES[0].encode() not in _raw(home), what="the environment is gone too")
    assert home.counts("2") == {"COMPLETED": 1}
    home.rota("down")
    assert not any(canary.encode() in _raw(home) for canary in CANARIES)
    store = SqliteStore(Path(home.path, "rota.db"), reserve_bytes=0)
    store.load()
    entries = store.entries(0, 1000)
    assert store.check() == []
    store.close()
    assert entries[0].seq == 1
    state = state_of(Loaded(None, 0, [], iter(entries)), Settings(), 1)
    assert list(state.batches) == [2], "the whole log can be folded still"


def _raw(home: Home) -> bytes:
    return b"".join(path.read_bytes() for path in Path(home.path).glob("rota.db*"))


def test_what_is_said_of_secrets_is_said_once(home: Home) -> None:
    home.rota("up")
    env = {"MY_TOKEN": "x"}
    assert "MY_TOKEN" in home.rota("add", "--", "true", env=env).stderr
    assert "MY_TOKEN" not in home.rota("add", "--", "true", env=env).stderr
    assert "MY_TOKEN" in home.rota("add", "-v", "--", "true", env=env).stderr


def test_an_environment_goes_with_its_last_batch_and_leaves_no_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "KEPT_S", 0.0)
    store = SqliteStore(tmp_path / "rota.db", reserve_bytes=0)
    store.load()
    for number, name in enumerate(("e1", "e2"), 1):
        store.keep_environment(name, {"A": CANARIES[number]})
        spec = BatchSpec(1, (Template(shell="true"),))
        store.commit([Entry(number, 1.0, "me", Submitted(number, spec, f"k{number}", 1.0, env=name))], [])
    store.commit([Entry(3, 1.0, "me", Pruned([2], 1.0))], [])
    while store.sweep(1000):
        pass
    store.close()
    whole = (tmp_path / "rota.db").read_bytes()
    assert CANARIES[1].encode() in whole
    assert CANARIES[2].encode() not in whole, "nor in a free page"
