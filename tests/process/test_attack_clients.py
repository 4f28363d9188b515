"""Attacks by a client whose token may submit, and no more: the manager lives, answers, and runs what others add."""

import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from process.support_home import Home, home
from process.wire_support import HELLO, Raw, raw_unix

__all__ = ["home"]

ROWS = {"count": 2, "templates": [{"argv": ["echo", "{}"]}], "columns": [""]}
LINES = {"count": 1, "templates": [{}]}


def spec(**more: Any) -> dict[str, Any]:
    return {"count": 1, "templates": [{"argv": ["true"]}], **more}


class Client:
    """Somebody with a token, who says what he likes."""

    def __init__(self, raw: Raw) -> None:
        self.raw = raw
        self._asked = 0

    def send(self, op: str, **arguments: Any) -> None:
        self._asked += 1
        self.raw.send({"t": "ask", "id": self._asked, "op": op, **arguments})

    def ask(self, op: str, **arguments: Any) -> Any:
        self.send(op, **arguments)
        return self.raw.read()


@pytest.fixture
def client(home: Home) -> Iterator[Client]:
    home.config("[site.local]\ncores = 2\n")
    home.rota("up")
    home.rota("token", "new", "sub", "--scope", "submit")
    with raw_unix(Path(home.path, "manager.sock")) as raw:
        raw.send({**HELLO, "name": "sub"})
        assert raw.read()["t"] == "welcome"
        manager = home.manager()
        yield Client(raw)
        assert home.manager() == manager, "the same manager all the time"
        home.rota("status")
        number = home.add("--", "true")
        assert home.settled(number) == {"COMPLETED": 1}, "others' jobs run"


def test_a_key_that_looks_like_that_of_an_end(client: Client) -> None:
    """The manager once died of the second."""
    assert client.ask("submit", key="ab-end", batch=spec())["batch"] == 1
    answer = client.ask("submit", key="ab", batch=spec(), end=spec())
    assert "another batch's" in answer["message"]


def test_what_is_staged_belongs_to_one_submission(client: Client, home: Home) -> None:
    """The manager once died of the second; changed under the first, its jobs once kept every other from running."""
    client.ask("stage", stage="a1", first=0, values=["a", "b"])
    for key in ("k1", "k2", "k1"):
        client.send("submit", key=key, batch=ROWS, stage="a1")
    client.send("stage", stage="a1", first=0, values=[{"command": "x"}, {"command": "y"}])
    answers = {answer["id"]: answer for answer in (client.raw.read() for _ in range(4))}
    assert answers[2]["batch"] == answers[4]["batch"] == 1, "the same key has the same answer"
    assert answers[3]["code"] == "usage" and answers[5]["code"] == "refused"
    assert home.settled("1") == {"COMPLETED": 2}


OWN = ({"env": [1]}, {"env": {"A": 1}}, {"env": {"A=": "b"}}, {"cwd": 5}, {"stdout": {"a": 1}}, {"stdin": "/\0"})
VALUES = ({"a": 1}, "x", [1], 7, *([{"command": "true", **own}] for own in OWN))


def test_values_that_no_job_can_have(client: Client) -> None:
    """Such a job was once leased, could not be put into words, and kept every other from running."""
    for values in VALUES:
        assert client.ask("submit", key="a", batch=LINES, values=values)["code"] == "usage", values
        assert client.ask("stage", stage="a", first=0, values=values)["code"] == "usage", values
    mixed = {"count": 1, "templates": [{"argv": ["{}"]}, {}], "columns": [""]}
    answer = client.ask("submit", key="a", batch=mixed, values=[{"command": "x"}], templates=[0])
    assert answer["code"] == "usage"


FIGURES = ({"umask": -5}, {"umask": 1 << 40}, {"grace_s": 1 << 62}, {"cap": 1 << 62}, {"behaviour_s": 1 << 62},
           {"no_retry_after_s": 1 << 62}, {"warn": ["USR1", 1 << 62]}, {"level": 1 << 62}, {"level": -1},
           {"limits": ["x"] * 100_000})  # fmt: skip
WHOLE = ({"not_before": 1e300}, {"not_before": -1e300}, {"at_once": 1 << 62}, {"max_failures": 1 << 62})


def test_figures_that_cannot_be_meant(client: Client, home: Home) -> None:
    """To say in words how long it is until 1e300 once took for ever, and nobody else was answered."""
    for more in (*WHOLE, *({"templates": [{"argv": ["true"], **figure}]} for figure in FIGURES)):
        assert client.ask("submit", key="a", batch=spec(**more))["code"] == "usage", str(more)[:100]
    assert client.ask("submit", key="a", batch=spec(not_before=1e11))["batch"] == 1
    for words in (("status",), ("explain", "1.1"), ("show", "1.1"), ("jobs", "1")):
        home.rota(*words)


def test_who_waits_costs_a_bounded_amount(client: Client, home: Home) -> None:
    """A byte for each job and each who follows: a few messages once cost gigabytes."""
    home.rota("pause")
    batch = spec(count=5_000_000, ranges=[[1, 5_000_000, 1]])
    assert client.ask("submit", key="a", batch=batch)["batch"] == 1
    pages = Path(f"/proc/{home.manager()}/statm")
    before = int(pages.read_text().split()[1])
    for _ in range(100):
        client.send("follow", sel=["1"] * 1000)
    client.send("ping")
    codes = []
    while (answer := client.raw.read())["t"] != "answer":
        codes.append(answer["code"])
    assert "busy" in codes
    grown = (int(pages.read_text().split()[1]) - before) * os.sysconf("SC_PAGE_SIZE")
    assert grown < 400 << 20
    home.rota("remove", "1")
    home.rota("resume")


def test_what_is_staged_and_never_submitted_is_forgotten(client: Client, home: Home) -> None:
    for number in range(1_200):
        client.send("stage", stage=f"a{number}", first=0, values=["x"])
    assert {client.raw.read()["t"] for _ in range(1_200)} == {"answer"}
    with sqlite3.connect(Path(home.path, "rota.db")) as store:
        ((left,),) = store.execute("SELECT count(*) FROM sources")
    assert left <= 1_000
    one = {"count": 1, "templates": [{"argv": ["echo", "{}"]}], "columns": [""]}
    assert client.ask("submit", key="a", batch=one, stage="a0")["code"] == "usage"
    assert client.ask("submit", key="a", batch=one, stage="a1199")["batch"] == 1


def test_a_job_that_is_named_often_is_looked_at_once(client: Client, home: Home) -> None:
    """Ten thousand words for one batch once cost as many looks at its failures, and counted each of them."""
    home.rota("run", "--array", "1-3", "--", "exit 1", code=None)
    words = ["1"] * 9_000 + ["1.1-2", "1.2-3", "1.3"] * 300
    assert client.ask("count", sel=words)["jobs"] == 3
    assert client.ask("failures", sel=words)["failed"] == 3
