"""Changing whole batches through the real command line, the Python client and a restart."""

import json
import os
import signal
import sqlite3
import sys
import time
from pathlib import Path

import pytest

import rota as package
from rota.model.batch import Dependency
from rota.model.errors import UsageError

sys.path.insert(0, str(Path(__file__).parent))
from cli_support import add, states, until, up

__all__ = ["up"]


def row(rota, batch) -> dict:
    (found,) = json.loads(rota.out("status", batch, "--json"))["batches"]
    return found


def test_change_a_batch_that_waits(rota):
    first = add(rota, "--name", "prepare", "--", "true")
    batch = add(rota, "--name", "old", "--array", "1-4", "--after", "@nothing", "--", "true")
    waiter = add(rota, "--after", "@new", "--", "true")
    last = add(rota, "--after", "@old", "--", "true")
    words = ("--name", "new", "--after-any", "@prepare", "--not-before", "+2h", "--at-once", "2")
    done = rota("modify", batch, *words, "--max-failures", "50%")
    assert done.stdout == "4 jobs changed in 1 batch\n"
    assert done.stderr == f"rota: warning: nothing is named 'old' any more: batch {last} waits until something is\n"
    found = row(rota, batch)
    assert (found["name"], found["at_once"], found["max_failures"]) == ("new", 2, 2)
    assert found["after"] == [{"target": "@nothing"}, {"target": "@prepare", "condition": "any"}]
    assert 7000 < found["not_before"] - time.time() < 7300
    rota("modify", batch, "--drop-after", "@nothing")
    rota("wait", first, "--timeout", "90s")
    assert states(rota, batch) == ["WAITING"] * 4
    assert "waits for its time" in rota.out("explain", f"{batch}.1")
    os.kill(json.loads(rota.out("ping", "--json"))["pid"], signal.SIGKILL)
    rota("up")
    assert row(rota, batch) == found | {"after": [{"target": "@prepare", "condition": "any"}]}
    rota("modify", batch, "--not-before", "now", "--max-failures", "default", "--at-once", "off", "--after", "none")
    rota("wait", waiter, "--timeout", "90s")
    assert states(rota, batch) == ["COMPLETED"] * 4
    found = row(rota, batch)
    assert (found["after"], found["not_before"], found["at_once"], found["max_failures"]) == ([], None, None, None)
    assert states(rota, last) == ["WAITING"]
    done = rota("modify", batch, "--name", "old")
    assert done.stdout == "4 jobs changed in 1 batch\n"
    rota("wait", last, "--timeout", "90s")
    with sqlite3.connect(rota.home / "rota.db") as db:
        name, spec = db.execute("SELECT name, spec FROM batches WHERE id = ?", (int(batch),)).fetchone()
        kinds = [kind for (kind,) in db.execute("SELECT kind FROM entries ORDER BY seq")]
    db.close()
    assert (name, json.loads(spec)["name"]) == ("old", "old")
    assert kinds.count("Respecified") == 4


def test_what_runs_is_left_alone_and_an_end_is_added(rota):
    gate, log = rota.cwd / "gate", rota.cwd / "log"
    batch = add(rota, "--array", "1-2%1", "--", f"while [ ! -e {gate} ]; do sleep 0.05; done")
    later = add(rota, "--not-before", "+1h", "--", "true")
    until(lambda: "RUNNING" in states(rota, batch))
    done = rota("modify", batch, "--after", later)
    assert done.stdout == "1 job changed in 1 batch\n"
    assert done.stderr == "rota: 1 job left alone: runs already, or was given to a runner: it goes on as it is\n"
    rota("modify", batch, "--on-batch-end", f"echo wrong >> {log}")
    rota("modify", batch, "--name", "both", "--on-batch-end", f'echo "$ROTA_BATCH_NAME $ROTA_COMPLETED" >> {log}')
    gate.touch()
    rota("wait", f"{batch}.1", "--timeout", "90s")
    assert states(rota, batch) == ["COMPLETED", "WAITING"]
    rota("modify", later, "--not-before", "now")
    rota("wait", batch, f"@{batch}-end", "--timeout", "90s")
    until(lambda: log.exists() and log.read_text())  # its end may have another name by now
    assert log.read_text() == "both 2\n"


def test_refusals_change_nothing(rota):
    rota("pause")
    one = add(rota, "--name", "one", "--array", "1-3", "--", "true")
    two = add(rota, "--after", one, "--", "true")
    before = row(rota, one)
    for words, says in (
        (("99", "--name", "x"), "there is no batch 99"),
        ((f"{one}.1", "--name", "x"), f"only a part of batch {one} is selected"),
        ((one, ":pending", "--name", "x"), f"only a part of batch {one} is selected"),
        ((one, "--name", "x", "--after", two), f"never run: batch {one} (x) → batch {two} → batch {one} (x)"),
        ((one, "--name", "x", "--after", one), f"batch {one} (x) would wait for itself"),
        ((one, "--name", "x", "--after", ":failed"), "not for a state"),
        ((one, "--name", "x", "--after", "none", "--after", "none"), "--after none: give it once"),
        ((one, "--name", "x", "--after-any", "none"), "--after none: give it once"),
        ((one, "--name", "x", "--after", "@y", "--require-known"), "nothing is named 'y'"),
        ((one, "--name", "x", "--each"), "write it behind one"),
        ((one, "--name", "x", "--drop-after", "9"), "does not wait for that"),
        ((one, "--name", "x", "--not-before", "25:99"), "'25:99' is not a time"),
        ((one, "--name", "x", "--not-before", "-5"), "'-5' is not a time"),
        ((one, "--name", "x", "--at-once", "0"), "at least 1 job"),
        ((one, "--name", "x", "--at-once", "-1"), "--at-once: '-1' is not a count"),
        ((one, "--name", "x", "--max-failures", "-1"), "max failures '-1'"),
        ((one, "--name", "@x"), "name '@x'"),
        ((one, "--name", "x", "--memory", "900000G"), "could then never run"),
        ((one, "--name", "x", "--limit", "datetime<2001-01-01 00:00:00"), "can never open"),
    ):
        done = rota("modify", *[f"{word}" for word in words], code=None)
        assert done.returncode != 0, words
        assert says in done.stderr, done.stderr
        assert row(rota, one) == before, words
    done = rota("retry", one, "--name", "x", code=2)
    assert "--name" in done.stderr


def test_from_python(rota, monkeypatch):
    rota("pause")
    monkeypatch.setenv("ROTA_HOME", str(rota.home))
    with package.Client() as client:
        first = client.submit("true", name="first")
        batch = client.submit("true", name="a", array="1-3")
        assert batch.modify(name="b", after=[first.id], not_before="+1h", at_once=2, max_failures="off", retries=2) == 3
        found = row(rota, str(batch.id))
        assert batch.name == found["name"] == "b"
        assert (found["after"], found["at_once"], found["max_failures"]) == ([{"target": str(first.id)}], 2, 0)
        batch.modify(after=["none", Dependency("@first", "any", live=True)], not_before=None, at_once=None)
        found = row(rota, str(batch.id))
        assert found["after"] == [{"target": "@first", "condition": "any", "live": True}]
        assert (found["not_before"], found["at_once"], found["name"]) == (None, None, "b")
        client.modify("@b", after_failure=["@first"], live=True)
        assert row(rota, str(batch.id))["after"] == [{"target": "@first", "condition": "failure", "live": True}]
        assert batch.modify(after=None, name=None, max_failures=None) == 3
        found = row(rota, str(batch.id))
        assert (found["after"], found["name"], found["max_failures"]) == ([], "", None)
        with pytest.raises(UsageError, match="only a part"):
            client.modify(f"{batch.id}.1", name="x")
        with pytest.raises(UsageError, match="'nome' cannot be changed; what can is: account, after, after_any"):
            client.modify(batch.id, nome="x")
