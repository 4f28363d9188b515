"""Duplicates, search, nested pauses and the live view, through the command line."""

import json
import os
import pty
import select
import signal
import subprocess
import time
from pathlib import Path

import pytest

import rota
from process.support_filled import fill
from process.support_home import ROTA, Home, home
from rota.api import Client
from rota.wire.client import Connection

__all__ = ["home"]


# ---- duplicates -----------------------------------------------------------------------------------------------------


def once(home: Home, *words: str, **more) -> dict:
    return json.loads(home.rota("add", "--once", "--json", *words, **more).stdout)


def test_what_is_queued_or_done_is_not_added_again(home: Home) -> None:
    file = home.work / "list.txt"
    file.write_text("echo a\necho b\n# no\nfalse\necho 'c  d' | cat\n")
    first = home.add("-f", str(file))
    home.settled()
    file.write_text(file.read_text() + "echo e\necho   a\necho e\n")
    done = home.rota("add", "--once", "-f", str(file))
    assert done.stdout == "2\n"
    known = "4 of 7 are there already, e.g. 1.1 (COMPLETED), and 1 of 7 are there twice in this submission: not added"
    assert known in done.stderr
    commands = [row["command"] for row in home.rows("jobs", "2")]
    assert commands == ["false", "echo e"], "what failed is not done; numbered from 1"
    assert [row["id"] for row in home.rows("jobs", "2")] == ["2.1", "2.2"]
    home.settled()
    home.rota("remove", f"{first}.1")
    assert once(home, "-f", str(file)) == {"batch": 3, "jobs": 2, "duplicates": 5}
    assert sorted(row["command"] for row in home.rows("jobs", "3")) == ["echo a", "false"]
    home.settled()
    file.write_text("echo a\necho b\n")
    done = home.rota("add", "--once", "-f", str(file))
    assert (done.stdout, done.returncode) == ("", 0)
    assert "2 of 2 are there already" in done.stderr
    assert once(home, "-f", str(file)) == {"batch": None, "jobs": 0, "duplicates": 2}
    again = home.rota("add", "--once", "--rerun", "-f", str(file))
    assert again.stdout == "4\n"
    assert "added again" in again.stderr
    assert home.settled("4") == {"COMPLETED": 2}
    home.rota("add", "--rerun", "--", "true", code=2)


FLOW = """\
{"id": "a", "command": "echo a", "name": "begin"}
{"id": "b", "command": "test -e there", "after": "a", "retries": 0}
{"id": "c", "command": "echo c", "after": ["b", "@begin"]}
{"id": "d", "command": "echo d", "after": "a"}
"""


def test_the_rest_of_a_workflow(home: Home) -> None:
    """What failed, and what waited for it, is added again, and waits for what is there."""
    file = home.work / "flow.json"
    file.write_text(FLOW)
    home.add("-f", str(file))
    assert home.settled("1") == {"COMPLETED": 2, "FAILED": 1, "OMITTED": 1}
    (home.work / "there").touch()
    assert once(home, "-f", str(file)) == {"batch": 2, "jobs": 2, "duplicates": 2}
    assert home.settled("2") == {"COMPLETED": 2}
    assert [row["command"] for row in home.rows("jobs", "2")] == ["test -e there", "echo c"]
    assert once(home, "-f", str(file)) == {"batch": None, "jobs": 0, "duplicates": 4}
    home.rota("pause")
    file.write_text(FLOW.replace("echo a", "echo A").replace("echo d", "echo D"))
    assert once(home, "-f", str(file)) == {"batch": 3, "jobs": 2, "duplicates": 2}
    assert "3.1" in home.rota("explain", "3.2").stdout, "it waits for what is new"
    file.write_text(FLOW + '{"command": "echo e"}\n{"command": "echo e", "after": "c"}\n')
    assert "are the same as others of it" in home.rota("add", "--once", "-f", str(file), code=2).stderr


def test_every_way_to_say_a_command(home: Home) -> None:
    home.rota("up")
    home.rota("pause")
    home.add("--", "echo", "a", "b")
    assert once(home, "--", "echo a b")["duplicates"] == 1, "the same words, queued"
    assert once(home, "--values", "a,b", "--", "echo {} b")["batch"] == 2
    assert [row["command"] for row in home.rows("jobs", "2")] == ["echo b b"]
    assert once(home, "--param", "x=a,b", "--param", "y=b,c", "--", "echo {x} {y}") == {
        "batch": 3, "jobs": 2, "duplicates": 2,
    }  # fmt: skip
    lines = b'{"command": ["echo", "b", "c"]}\n{"command": "echo b c", "cwd": "/"}\n{"command": "echo z", "cores": 2}\n'
    assert once(home, "-f", "-", stdin=lines) == {"batch": 4, "jobs": 2, "duplicates": 1}
    (other, cores) = home.rows("jobs", "4")
    assert (other["cwd"], cores["command"]) == ("/", "echo z")
    assert "2 cores" in home.json("explain", "4.2")["needs"], "a job keeps its own needs"
    assert once(home, "--cwd", "/usr", "--", "echo", "a", "b")["batch"] == 5, "elsewhere it is another job"
    assert (
        json.loads(home.rota("add", "--once=command", "--json", "--cwd", "/", "--", "echo a b").stdout)["batch"] is None
    )
    assert once(home, "--stdin", "/dev/zero", "--", "echo a b")["batch"] == 6, "with other input"
    assert once(home, "--name", "n", "-p", "9", "-c", "2", "--env", "A=B", "--", "echo a b")["batch"] is None
    assert once(home, "--", "echo {job}")["batch"] == 7
    assert once(home, "--", "echo {job}")["batch"] == 8, "a number of its own makes it another command"
    home.rota("kill", "--all")
    assert once(home, "--", "echo", "a", "b")["batch"] == 9, "what was killed is not done"


def test_arrays_keep_their_numbers(home: Home) -> None:
    home.rota("up")
    home.rota("pause")
    home.add("--array", "1-10", "--", "./simulate")
    assert once(home, "--array", "5-20", "--", "./simulate") == {"batch": 2, "jobs": 10, "duplicates": 6}
    assert [row["id"] for row in home.rows("jobs", "2")] == [f"2.{number}" for number in range(11, 21)]
    home.rota("kill", "1.2", "1.4", "1.7")
    assert once(home, "--array", "1-10", "--", "./simulate")["jobs"] == 3
    assert [row["id"] for row in home.rows("jobs", "3")] == ["3.2", "3.4", "3.7"]
    home.add("--values", "a,b,c", "--", "echo {index} {}")
    assert once(home, "--values", "a,x,c,y", "--", "echo {index} {}")["duplicates"] == 2
    rows = home.rows("jobs", "5")
    assert [(row["id"], row["command"]) for row in rows] == [("5.2", "echo 2 x"), ("5.4", "echo 4 y")]


def test_the_same_submission_sent_again_is_not_its_own_duplicate(home: Home) -> None:
    home.rota("up")
    home.rota("pause")
    batch = {"count": 2, "templates": [{"cwd": "/"}]}
    asked = {"key": "abc123", "batch": batch, "values": ["echo 1", "echo 2"], "once": "cwd"}
    first = home.ask("submit", **asked)
    assert (first["batch"], first["duplicates"]) == (1, 0)
    assert home.ask("submit", **asked)["batch"] == 1
    other = home.ask("submit", **{**asked, "key": "def456"})
    assert (other["batch"], other["jobs"], other["duplicates"]) == (None, 0, 2)
    assert other["example"] == {"id": "1.1", "state": "PENDING"}
    assert home.counts() == {"PENDING": 2}


def test_from_python_and_at_the_same_time(home: Home) -> None:
    """Ten clients add the same list at once: each command is there once."""
    home.rota("up")
    home.rota("pause")
    words = [ROTA, "add", "--once", "-q", "-f", "list.txt"]
    (home.work / "list.txt").write_text("".join(f"echo {at}\n" for at in range(3000)))
    clients = [subprocess.Popen(words, env=home.env, cwd=home.work, stderr=subprocess.DEVNULL) for _ in range(6)]
    assert [client.wait(120) for client in clients] == [0] * 6
    assert home.counts() == {"PENDING": 3000}
    with Client(home.path) as client:
        batch = client.submit(lines=["echo 1", "echo new"], cwd=str(home.work), once=True)
        assert (batch.size, batch.duplicates) == (1, 1)
        batch = client.submit(lines=["echo 1"], cwd="/", once="command")
        assert (batch.id, batch.size, batch.duplicates) == (0, 0, 1)
        assert client.submit(lines=["echo 1"], cwd="/", once="command", rerun=True).duplicates == 1
    assert rota.Client is Client


def test_duplicates_among_many(home: Home) -> None:
    fill(home.path, 2, 100_000, lines=True)  # all of them killed, so none counts
    home.rota("up")
    home.rota("pause")
    text = "".join(f"work --batch 2 --item {at}\n" for at in range(99_000, 101_000))
    assert once(home, "--cwd", "/tmp", "-f", "-", stdin=text.encode())["jobs"] == 2000
    assert once(home, "--cwd", "/tmp", "-f", "-", stdin=text.encode())["duplicates"] == 2000


# ---- search ---------------------------------------------------------------------------------------------------------


def test_search(home: Home) -> None:
    home.add("--name", "align", "--values", "q,y", "--", "echo {}; exit 3")
    home.settled()
    home.add("--name", "sort", "--values", "q,z", "--", "echo sort  {}")
    home.add("-t", "1s", "--", "sleep 60")
    home.settled()
    host = os.uname().nodename

    def ids(*words: str) -> list[str]:
        return [row["id"] for row in home.rows(*words)]

    assert ids("jobs", "--command", "q") == ["1.1", "2.1"]
    assert ids("jobs", "--command", "q", "--newest") == ["2.1", "1.1"]
    assert ids("jobs", "--command", "q", "-n", "1") == ["1.1"]
    assert ids("jobs", "--command", "sort z") == ["2.2"], "as it is shown"
    assert ids("jobs", "--command", "q", "--exit-code", "3") == ["1.1"]
    assert ids("jobs", "--exit-code", "3", "--newest") == ["1.2", "1.1"]
    assert ids("jobs", "--name", "sort", "--host", host) == ["2.1", "2.2"]
    assert ids("jobs", "--host", "elsewhere") == []
    assert ids("jobs", "--reason", "time") == ["3.1"]
    assert ids("jobs", "--since", "1h", "--state", "completed") == ["2.1", "2.2"]
    assert ids("jobs", "--until", "1h") == []
    assert sorted(ids("history", "--command", "exit 3")) == ["1.1", "1.2"]
    assert sorted(ids("history", "--state", "completed")) == ["2.1", "2.2"]
    assert ids("history", "--name", "sort", "--command", "z") == ["2.2"]
    assert ids("history", ":failed", "--reason", "time") == ["3.1"]
    assert ids("history", "--since", "2020-01-31T22:30", "--until", "2020-02-01") == []
    home.rota("retry", "1.1")
    home.settled()
    assert ids("history", "1.1", "--exit-code", "3") == ["1.1", "1.1"]
    assert ids("jobs", "--exit-code", "3", "--command", "echo q") == ["1.1"]
    assert "no jobs" in home.rota("jobs", "--command", "nowhere").stdout
    for words in (("--since", "yesterday"), ("--exit-code", "256"), ("--until", "5")):
        home.rota("history", *words, code=2)
    assert "no state of an attempt" in home.rota("history", "--state", "pending", code=2).stderr


@pytest.mark.slow
def test_search_among_many_keeps_nobody_waiting(home: Home) -> None:
    fill(home.path, 3, 50_000, lines=True)
    home.rota("up")
    rare = ("--exit-code", "77", "--host", "node0")
    found = home.rows("history", *rare)
    assert len(found) == 150
    assert [row["id"] for row in home.rows("jobs", "--command", "--batch 2 --item 49999")] == ["2.50000"]
    assert len(home.rows("jobs", "--command", "--item 37777")) == 3
    with Connection.connect(home.path) as searching, Connection.connect(home.path) as other:
        assert searching.ask("ping") and other.ask("ping")
        search, answered = searching.post("history", command="no such thing anywhere"), 0
        while not select.select([searching._sock], [], [], 0)[0]:
            other.ask("ping")
            answered += 1
        assert searching.collect(search)["attempts"] == []
    assert answered >= 2, "while it looks"


# ---- pauses ---------------------------------------------------------------------------------------------------------


def test_a_tool_does_not_end_a_persons_pause(home: Home) -> None:
    home.rota("up")
    home.rota("pause", "--reason", "the disks are being moved")
    home.rota("pause", "--as", "copier", "--reason", "nightly")
    batch = home.add("--", "true")
    assert "still paused" in home.rota("resume", "--as", "copier").stdout
    home.kill_manager()
    home.rota("up")
    (row,) = home.ask("ping")["pauses"]
    assert (row["as"], row["reason"]) == ("user", "the disks are being moved")
    assert "paused by user since 20" in home.rota("status").stdout
    assert "the disks are being moved" in home.rota("ping").stdout
    assert "the disks are being moved" in home.rota("explain", f"{batch}.1").stdout
    assert home.counts() == {"PENDING": 1}
    home.rota("pause", "--as", "b")
    answer = home.json("resume", "--all")
    assert answer == {"state": "serving", "pauses": []}
    assert home.settled() == {"COMPLETED": 1}
    home.rota("pause", "--as", "", code=2)
    home.rota("pause", "--as", "tool")
    home.rota("drain")
    home.until(lambda: not home.manager(), what="drained")
    home.rota("up")
    assert home.ask("ping")["state"] == "paused", "a pause outlives a drain"


# ---- live -----------------------------------------------------------------------------------------------------------


def test_live(home: Home) -> None:
    script = "echo first; echo second; while :; do :; done"
    batch = home.add("--", "bash", "-c", script)
    home.until(lambda: home.counts(batch).get("RUNNING") == 1)
    rows = home.until(
        lambda: [row for row in home.rows("jobs", "--live") if (row["cpu_percent"] or 0) > 5], what="it is busy"
    )
    (row,) = rows
    assert (row["id"], row["state"], row["last_line"]) == (f"{batch}.1", "RUNNING", "second")
    assert row["memory_bytes"] > 100_000
    assert row["elapsed_s"] > 0
    table = home.rota("jobs", "--live", batch).stdout
    assert "LAST LINE" in table
    assert "second" in table
    out = home.work / "out.txt"
    other = home.add("-o", str(out), "--", "echo to a file; sleep 600")
    home.until(lambda: home.counts(other).get("RUNNING") == 1 and out.exists() and out.read_text())
    home.until(lambda: [row["last_line"] for row in home.rows("jobs", "--live", other)] == ["to a file"])
    home.rota("kill", "--all")
    home.settled()
    assert home.rota("jobs", "--live").stdout == "nothing runs\n"
    assert home.rows("jobs", "--live") == []


def test_live_on_a_terminal_ends_with_ctrl_c(home: Home) -> None:
    home.add("--", "echo hello there; sleep 600")
    home.until(lambda: home.counts().get("RUNNING") == 1)
    parent, child = pty.openpty()
    process = subprocess.Popen(
        [ROTA, "jobs", "--live", "--interval", "0.2"], env={**home.env, "TERM": "xterm", "COLUMNS": "160"},
        stdin=child, stdout=child, stderr=child, start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # noqa: PLW1509
    )  # fmt: skip
    os.close(child)
    text = b""
    try:
        end = time.monotonic() + 120
        while text.count(b"hello there") < 3 and time.monotonic() < end:
            if select.select([parent], [], [], 0.2)[0]:
                text += os.read(parent, 65536)
        assert text.count(b"hello there") >= 3, text
        process.send_signal(signal.SIGINT)
        end = time.monotonic() + 60
        while time.monotonic() < end and select.select([parent], [], [], 5)[0]:
            try:
                text += os.read(parent, 65536)
            except OSError:
                break
        assert process.wait(60) == 130
    finally:
        process.kill()
        process.wait()
        os.close(parent)
    assert b"Traceback" not in text
    assert text.rfind(b"\x1b[?25h") > text.rfind(b"\x1b[?25l"), "the cursor is shown again"
    assert home.counts() == {"RUNNING": 1}, "looking ends nothing"
    assert Path(home.path).exists()


def test_what_a_change_says_is_what_runs(home: Home) -> None:
    """Also of jobs from a file whose lines say something themselves; and of a command that needs nothing of them."""
    home.rota("up")
    home.rota("pause")
    own = home.work / "own"
    own.mkdir()
    lines = [{"command": "printenv A; pwd", "env": {"A": "line"}, "cwd": str(own)}, {"command": "printenv A; pwd"}]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    batch = home.add("-f", "-", stdin=text.encode())
    home.rota("modify", f"{batch}.1", "--command", "printenv A")
    home.rota("modify", f"{batch}.2", "--env", "A=changed", "--cwd", "/", "--on-exit", "echo over")
    assert home.ask("ping")["state"] == "paused", "a change does not let jobs start"
    home.rota("resume")
    home.rota("wait", batch)
    assert home.rota("log", f"{batch}.1").stdout == "line\n", "its own variables stay"
    assert [row["cwd"] for row in home.rows("jobs", batch)] == [str(own), "/"]
    assert home.rota("log", f"{batch}.2").stdout == "changed\n/\n"
    home.rota("retry", batch, ":completed", "--env", "A=again", "--cwd", str(home.work))
    home.rota("wait", batch)
    assert home.rota("log", f"{batch}.1").stdout == "again\n"
    assert home.rota("log", f"{batch}.2").stdout == f"again\n{home.work}\n"
