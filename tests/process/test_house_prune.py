"""`rota prune` with real managers: what goes, what stays, and a manager that is killed in the middle of it."""

import os
import signal
import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest

from process.support_filled import fill
from process.support_home import Home, alive, home
from rota.wire.client import Connection

__all__ = ["home"]


def ask(home: Home, sql: str) -> list[tuple[Any, ...]]:
    """What the database says."""
    con = sqlite3.connect(f"file:{home.path}/rota.db?mode=ro", uri=True)
    try:
        return con.execute(sql).fetchall()
    finally:
        con.close()


def segments(home: Home) -> list[str]:
    return sorted(str(path) for path in Path(home.path, "output").glob("*/*.seg"))


def test_what_goes_and_what_stays(home: Home) -> None:
    home.add("--name", "x", "--values", "a,b", "--", "echo {}")
    failed = home.add("--", "false")
    home.settled()
    hold = home.add("--after", "1", "--not-before", "+1h", "--", "true")
    done = home.json("prune", "--all", "--dry-run")
    assert (done["batches"], done["jobs"], done["sample"]) == (1, 1, [failed])
    reasons = {row["reason"]: row["batches"] for row in done["skipped"]}
    assert reasons == {"is not settled": 1, "is needed by a batch that depends on it and stays": 1}
    assert home.rota("prune", code=2).stderr.startswith("rota: prune which batches?")
    assert "0 batches" in home.rota("prune", "--all", "--older-than", "1d").stdout
    assert "0 batches" in home.rota("prune", "--all", "--keep", "5").stdout
    assert "whole batches" in home.rota("prune", "1.2", code=2).stderr
    home.rota("prune", "--older-than", "7", code=2)
    home.rota("kill", hold)
    assert "2 batches with 3 jobs pruned" in home.rota("prune", "1", hold).stdout
    for words in (
        ("status", "1"),
        ("jobs", "1.1"),
        ("history", "1"),
        ("explain", "1.1"),
        ("log", "1.2"),
        ("wait", "1"),
    ):
        assert "batch 1 was pruned on 20" in home.rota(*words, code=2).stderr
    assert "nothing is named 'x'" in home.rota("status", "@x", code=2).stderr
    assert "batch 1 was pruned" in home.rota("add", "--after", "1", "--", "true", code=2).stderr
    assert home.rows("history")[0]["id"] == f"{failed}.1"
    home.rota("down")
    home.rota("up")
    assert "batch 1 was pruned on 20" in home.rota("status", "1", code=2).stderr
    assert home.add("--", "true") == "4"
    home.settled("4")
    home.until(lambda: not ask(home, "SELECT 1 FROM pruned WHERE swept = 0"))
    assert ask(home, "SELECT DISTINCT batch FROM results ORDER BY 1") == [(2,), (4,)]
    assert ask(home, "SELECT count(*) FROM chunks") == [(0,)]


def test_output_that_nothing_refers_to(home: Home) -> None:
    """Segments hold the output of several batches: a file stays while any of these is kept."""
    home.config('[site.local]\nlinger = "1s"\n')
    home.rota("up")
    home.rota("pause")
    first = home.add("--", "echo one")
    second = home.add("--", "echo two")
    home.rota("resume")  # both at once: one runner
    home.settled()
    (segment,) = segments(home)
    home.until(lambda: not home.runners())
    home.until(lambda: [row["state"] for row in home.ask("runners")["runners"]] == ["CLOSED"])
    home.rota("prune", first)
    home.until(lambda: not ask(home, "SELECT 1 FROM results WHERE batch = 1"))
    time.sleep(0.5)
    assert segments(home) == [segment], "the second one's output is in it"
    assert home.rota("log", f"{second}.1").stdout == "two\n"
    third = home.add("--", "echo three")
    home.settled(third)
    assert len(segments(home)) == 2
    home.rota("prune", second)
    home.until(lambda: not os.path.exists(os.path.dirname(segment)), what="the directory of a runner that is over")
    assert home.rota("log", f"{third}.1").stdout == "three\n"
    own = home.work / "own.out"
    fourth = home.add("-o", str(own), "--", "echo four")
    home.settled(fourth)
    home.rota("prune", third, fourth)
    home.until(lambda: not ask(home, "SELECT 1 FROM results"))
    assert own.read_text() == "four\n", "a file of the user's is the user's"


@pytest.mark.parametrize("round_", range(2))
def test_killed_while_pruning(home: Home, round_: int) -> None:
    """SIGKILL at several moments: after each restart all is consistent, and in the end everything is gone."""
    fill(home.path, 6, 20_000, lines=round_ % 2 == 0)
    home.rota("up")
    assert home.counts() == {"ABORTED": 120_000}
    assert home.json("prune", "1", "2", "3", "4")["jobs"] == 80_000
    for at in range(4):
        pid = home.manager()
        time.sleep(0.05 + 0.07 * ((at + round_) % 4))
        os.kill(pid, signal.SIGKILL)
        home.until(lambda pid=pid: not alive(pid))
        home.rota("up")
        assert home.counts() == {"ABORTED": 40_000}
        assert "batch 3 was pruned" in home.rota("status", "3", code=2).stderr
        assert home.rows("history", "5", "-n", "1")[0]["id"].startswith("5.")
    home.until(lambda: not ask(home, "SELECT 1 FROM results WHERE batch < 5"), 60, "all is swept")
    assert ask(home, "SELECT count(*) FROM results") == [(40_000,)]
    home.rota("down")  # makes a checkpoint, so that the columns can go as well
    home.rota("up")
    home.until(lambda: not ask(home, "SELECT 1 FROM pruned"), 60, "nothing is left to do")
    assert ask(home, "SELECT DISTINCT batch FROM columns ORDER BY 1") == [(5,), (6,)]
    assert ask(home, "SELECT count(*) FROM sources") == [(2 if round_ % 2 == 0 else 0,)]
    assert ask(home, "PRAGMA integrity_check") == [("ok",)]
    free, pages = ask(home, "PRAGMA freelist_count")[0][0], ask(home, "PRAGMA page_count")[0][0]
    home.until(lambda: ask(home, "PRAGMA freelist_count")[0][0] <= 1024, 60, f"space comes back ({free} of {pages})")


def test_others_are_served_while_much_is_deleted(home: Home) -> None:
    fill(home.path, 2, 100_000)
    home.rota("up")
    changes = 0
    with Connection.connect(home.path) as connection:
        connection.ask("prune", sel=["1"])
        while ask(home, "SELECT 1 FROM results WHERE batch = 1 LIMIT 1"):
            connection.ask("limit", set={"db": changes + 1})
            changes += 1
    assert changes >= 2, "each waits for one short transaction, not for all of them"


def test_retention(home: Home) -> None:
    fill(home.path, 3, 10, ended=time.time() - 90 * 86_400)
    home.config('keep_settled = "30d"\n')
    fresh = home.add("--", "true")
    home.until(lambda: {row["id"] for row in home.ask("status")["batches"]} == {int(fresh)}, 60, "old ones go")
    assert home.settled() == {"COMPLETED": 1}
    assert "was pruned" in home.rota("status", "2", code=2).stderr


def test_a_watcher_of_what_is_pruned(home: Home) -> None:
    """Somebody waits for two batches, and one of them is pruned meanwhile."""
    first = home.add("--", "true")
    home.settled(first)
    gate = home.gate()
    second = home.add("--", gate.wait)
    with Connection.connect(home.path) as connection:
        waiting = connection.post("wait", sel=[first, second])
        connection.ask("count", sel=[])  # asked after it, and answered
        home.rota("prune", first)
        gate.open()
        answer = connection.collect(waiting)
        assert (answer["settled"], answer["counts"]) == (True, {"COMPLETED": 1})
