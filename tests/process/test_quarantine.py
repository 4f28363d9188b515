"""What makes the core fail is refused and kept, and the manager goes on; a log that cannot be folded is repaired."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from process.support_home import Home, home
from rota.core.state import Settings
from rota.manager.checkpoints import state_of
from rota.model.events import Entry, Started
from rota.store.sqlite import SqliteStore

__all__ = ["home"]

FAILING = str(Path(__file__).with_name("support_failing_core.py"))


@contextmanager
def failing(home: Home) -> Iterator[None]:
    """A manager whose core has bugs."""
    home.may_fail = True
    with open(Path(home.path, "manager.log"), "ab") as log:
        child = subprocess.Popen([sys.executable, FAILING, home.path], env=home.env, stdout=log, stderr=log)
    try:
        home.until(lambda: home.rota("ping", code=None).returncode == 0)
        yield
        assert child.poll() is None, "it has died"
    finally:
        child.terminate()
        child.wait(60)


@pytest.mark.parametrize("where", ["decide", "evolve"])
def test_what_makes_the_core_fail_is_refused_and_the_manager_goes_on(home: Home, where: str) -> None:
    home.config("[site.local]\ncores = 2\n")
    with failing(home):
        gate = home.gate()
        home.add("--", gate.wait)
        home.until(lambda: home.job("1.1")["state"] == "RUNNING")
        home.rota("limit", "before:3")
        for _ in range(3):
            assert "the manager failed at this and has not done it" in home.rota("limit", f"{where}:1", code=5).stderr
        assert [row["name"] for row in home.json("limit")["limits"]] == ["before"], "folded anew: nothing of it is left"
        gate.open()
        home.add("--array", "1-20", "--", "true")
        assert home.settled() == {"COMPLETED": 21}
        assert {row["attempt"] for row in home.rows("jobs")} == {1}, "nothing was run twice"
        kept = [json.loads(Path(home.path, "quarantine", name).read_text()) for name in home.quarantined()]
        assert len(kept) == 3
        assert all(row["kind"] == "SetLimits" and f"a bug in {where}" in row["trace"] for row in kept)
        doctor = {row["name"]: row for row in home.json("doctor", "--no-job", code=None)["checks"]}
        assert doctor["quarantine"]["status"] == "warn"
    home.rota("up")
    assert home.counts() == {"COMPLETED": 21}


def test_a_pass_that_fails_is_left_alone_for_a_while(home: Home) -> None:
    home.config("[site.local]\ncores = 2\n")
    with failing(home):
        mark = Path(home.path, "no-pass")
        mark.touch()
        home.add("--array", "1-5", "--", "true")
        home.until(home.quarantined)
        home.rota("ping")
        mark.unlink()
        assert home.settled() == {"COMPLETED": 5}
        assert len(home.quarantined()) < 10


def test_a_log_that_cannot_be_folded_is_named_and_repaired(home: Home) -> None:
    home.config("[site.local]\ncores = 2\n")
    home.rota("up")
    home.add("--array", "1-5", "--", "true")
    home.settled()
    home.rota("down")
    store = SqliteStore(Path(home.path, "rota.db"))
    state = state_of(store.load(), Settings(), 1)
    bad = state.seq + 1
    store.commit([Entry(bad, 1.0, "a bug", Started("nobody", [(99, 0)]))], [])
    store.close()
    for _ in range(2):
        words = home.rota("up", code=5).stderr
        assert f"entry {bad} of the log cannot be understood" in words
        assert "rota doctor --repair" in words
    told = home.json("doctor", "--repair")
    assert (told["from"], told["dropped"]) == (bad, 1)
    assert "nobody" in Path(told["kept"]).read_text()
    home.may_fail = True  # what is kept
    home.rota("up")
    assert home.counts() == {"COMPLETED": 5}
    home.rota("resume", "--as", "restore")
    home.rota("wait", home.add("--", "true"))
    home.rota("down")
    assert "nothing to repair" in home.rota("doctor", "--repair").stdout
