"""Bad input to `rota add`: each with a clear error, and nothing half-done."""

import json
import os
from pathlib import Path

import pytest

from process.support_home import Home, cmdline, home

__all__ = ["home"]


def refused(home: Home, *words: str | bytes, said: tuple[str, ...] | str, stdin: bytes = b"", code: int = 2) -> None:
    """The command fails with all of these words, in a few lines."""
    done = home.rota("add", *words, stdin=stdin, code=code)
    for word in (said,) if isinstance(said, str) else said:
        assert word in done.stderr, done.stderr
    assert done.stderr.startswith("rota")
    assert len(done.stderr) < 2000, "an error is a few lines, not the input again"
    assert done.stdout == ""


def nothing(home: Home) -> None:
    """No batch was made."""
    if home.manager():
        assert home.json("status")["batches"] == []


def test_malformed_lines(home: Home) -> None:
    """The line and the field are named."""
    home.rota("up")
    good = b'{"command": "true"}\n'
    for line, said in (
        (b'{"command": "true"\n', "line 2"),
        (b'{"command": 7}\n', ("line 2", "command")),
        (b'{"command": "true", "colour": "red"}\n', ("line 2", "colour")),
        (b'{"command": "true", "cores": "lots"}\n', ("line 2", "lots")),
        (b'{"command": "true", "env": ["A"]}\n', ("line 2", "env")),
        (b'{"command": "true", "time": "90"}\n', ("line 2", "90")),
        (b"{}\n", ("line 2", "command")),
        (b'{"command": "a\\u0000b"}\n', "line 2"),
        (b'{"command": "\xff\xfe"}\n', "line 2"),
    ):
        refused(home, "-f", "-", stdin=good + line + good, said=said)
    nothing(home)


def test_wrong_options(home: Home) -> None:
    """The option and what it can be."""
    home.rota("up")
    for words, said in (
        (["--cores", "many"], "many"),
        (["--cores", "0"], "cores"),
        (["--cores", "-1"], "-1"),
        (["--memory", "4X"], "4X"),
        (["--time", "90"], "90"),
        (["--time", "1:30"], "1:30"),
        (["--array", "1-"], "1-"),
        (["--array", "5-1"], "5-1"),
        (["--array", "1-10%0"], "%0"),
        (["--retries", "x"], "x"),
        (["--priority", "999"], "255"),
        (["--env", "=x"], "NAME=VALUE"),
        (["--env-from", "moon"], "moon"),
        (["--after", ":seven"], "seven"),
        (["--after", "99"], "99"),
        (["--not-before", "yesterday-ish"], "yesterday-ish"),
        (["--enforce", "gravity"], "gravity"),
        (["--colour"], "--colour"),
        (["--limit", "a b:3"], "a b"),
        (["--name", "no\nname"], "name"),
    ):
        done = home.rota("add", *words, "--", "true", code=None)
        assert done.returncode == 2, (words, done)
        assert said in done.stderr, (words, done.stderr)
        assert done.stdout == ""
    nothing(home)


def test_impossible_needs(home: Home) -> None:
    """Refused at once, with what there is."""
    home.config("[site.local]\ncores = 3\nmemory = '2G'\n")
    refused(home, "--cores", "9999", "--", "true", said=("9999", "3"))
    refused(home, "--memory", "900G", "--", "true", said=("900", "2"))
    refused(home, "--gpus", "4", "--", "true", said="gpu")
    refused(home, "--tag", "moon", "--", "true", said="moon")
    refused(home, "--on", "elsewhere", "--", "true", said=("elsewhere", "local"))
    nothing(home)


def test_long_and_odd_commands(home: Home) -> None:
    """10 MB, NUL, not UTF-8, empty."""
    home.rota("up")
    refused(home, "-f", "-", stdin=b"echo " + b"x" * 10_000_000 + b"\n", said=("line 1", "131,071"))
    refused(home, "-f", "-", stdin=b"true\necho a\0b\n", said=("line 2", "NUL"))
    refused(home, "-f", "-", stdin=b"true\necho \xff\xfe\n", said=("line 2", "UTF-8"))
    refused(home, "--values-from", "-", "--", "echo {}", stdin=b"ok\n\xff\n", said=("line 2", "UTF-8"))
    refused(home, "-f", "-", stdin=b"\n# only a comment\n", said="")
    refused(home, "-f", "/nonexistent/file", said="/nonexistent/file")
    refused(home, "--", b"echo \xff\xfe", said="UTF-8")
    nothing(home)


def test_one_bad_line_in_100_000(home: Home) -> None:
    """Nothing is added."""
    home.rota("up")
    lines = b"".join(b"true %d\n" % number for number in range(99_999))
    refused(home, "-f", "-", stdin=lines + b"echo a\0b\n", said="line 100000")
    objects = b"".join(b'{"command": "true %d"}\n' % number for number in range(99_999))
    refused(home, "-f", "-", stdin=objects + b'{"command": ["true", 7]}\n', said="line 100000")
    nothing(home)


def test_bad_batches_that_reach_the_manager(home: Home) -> None:
    """What a careless client lets through, the manager refuses: the staged values are gone too."""
    home.rota("up")
    from rota.model.errors import RotaError
    from rota.wire.client import Connection

    spec = {"name": "x", "templates": [{"shell": "echo {}"}], "columns": [""], "count": 3}
    submit = {"key": "1" * 32, "values": None, "stage": None, "env": None}
    for change in (
        {"batch": spec, "values": ["a", "b"]},
        {"batch": spec, "values": ["a", "b", 3]},
        {"batch": spec, "values": ["a", "b", "c\0"]},
        {"batch": spec, "values": ["a", "b", "c" * 200_000]},
        {"batch": spec, "stage": "never-sent"},
        {"batch": spec | {"count": 10**12}, "values": ["a"]},
        {"batch": spec | {"after": [{"target": "77", "condition": "success"}]}, "values": ["a", "b", "c"]},
        {"batch": spec | {"templates": [{"shell": "echo {}", "needs": {"cores": -5}}]}, "values": ["a", "b", "c"]},
        {"batch": spec | {"templates": [{"shell": "echo {}", "retries": 10**9}]}, "values": ["a", "b", "c"]},
        {"batch": spec, "values": ["a", "b", "c"], "env": {"A=B": "c"}},
        {"batch": spec, "values": ["a", "b", "c"], "env": {"A": "c" * 2_000_000}},
    ):
        with Connection.connect(home.path) as connection, pytest.raises(RotaError) as caught:
            connection.ask("submit", **(submit | change))
        assert caught.value.code in ("usage", "not-found", "refused"), (change, caught.value)
        assert home.json("ping")["pid"]
    nothing(home)
    assert "Traceback" not in home.tail()


def test_unknown_selectors(home: Home) -> None:
    """Exit status 2 and the word; nothing is changed."""
    home.add("--", "sleep 60")
    for words in (
        ["jobs", "99"],
        ["jobs", "1.99"],
        ["kill", "@nobody"],
        ["wait", ":sleeping"],
        ["log", "1.7"],
        ["explain", "x"],
        ["hold", "1.x"],
    ):
        done = home.rota(*words, code=2)
        assert words[1].lstrip("@:") in done.stderr
    assert "--all" in home.rota("kill", code=2).stderr
    assert home.counts()
    home.rota("kill", "1")
    assert home.settled() == {"ABORTED": 1}


def test_dry_run_changes_nothing(home: Home) -> None:
    """It says what it would do."""
    home.add("--array", "1-5", "--", "sleep 60")
    home.until(lambda: home.counts().get("RUNNING"))
    assert home.json("kill", "1", "--dry-run")["jobs"] == 5
    assert set(home.counts()) <= {"PENDING", "STARTING", "RUNNING"}
    home.rota("kill", "1")
    home.settled()


# ---- what only running it shows ------------------------------------------------------------------------------------


def test_bad_surroundings(home: Home) -> None:
    """cwd, output, executable: the job fails at once, without a second try, with the reason and a note."""
    plain = home.work / "plain"
    plain.write_text("not a program")
    assert "/nonexistent/place" in home.rota("add", "--cwd", "/nonexistent/place", "--", "true", code=2).stderr
    place = home.work / "place"
    place.mkdir()
    home.rota("up")
    home.rota("pause")
    cases = {
        "cwd": ["--cwd", str(place), "--", "true"],
        "output": ["--stdout", "/nonexistent/place/out", "--", "true"],
        "not-executable": ["--", str(plain), "x"],
        "not-found": ["--", "no-such-program-anywhere", "x"],
    }
    batches = {reason: home.add("--retries", "3", *words) for reason, words in cases.items()}
    shell126 = home.add("--retries", "3", "--", f"true; {plain}")
    shell127 = home.add("--retries", "3", "--", "true; no-such-program-anywhere")
    place.rmdir()
    home.rota("resume")
    home.settled()
    for reason, batch in batches.items():
        row = home.job(f"{batch}.1")
        assert (row["state"], row["reason"], row["attempt"]) == ("FAILED", reason, 1), row
        (attempt,) = home.rows("history", batch)
        assert attempt["note"], reason
        assert home.json("explain", f"{batch}.1")["reason"]
    assert home.job(f"{batches['not-executable']}.1")["exit_code"] == 126
    assert home.job(f"{batches['not-found']}.1")["exit_code"] == 127
    for batch, code in ((shell126, 126), (shell127, 127)):
        row = home.job(f"{batch}.1")
        assert (row["state"], row["exit_code"], row["attempt"]) == ("FAILED", code, 1), row


def test_directory_for_output_is_made_or_refused_by_name(home: Home) -> None:
    """A path that cannot be opened is named."""
    if os.getuid() == 0:
        target = "/proc/nowhere/out"
    else:
        locked = home.work / "locked"
        locked.mkdir(0o500)
        target = str(locked / "out")
    batch = home.add("--stdout", target, "--", "true")
    assert home.settled() == {"FAILED": 1}
    (attempt,) = home.rows("history", batch)
    assert attempt["reason"] == "output"
    assert target in attempt["note"]


def test_a_job_that_ignores_term(home: Home) -> None:
    """Killed after its grace, with grandchildren that changed session."""
    script = home.work / "stubborn.sh"
    script.write_text(
        "trap '' TERM\nsetsid bash -c \"trap '' TERM; sleep 611\" &\n"
        "(trap '' TERM; sleep 612) &\nwhile :; do sleep 0.1; done\n"
    )
    batch = home.add("--grace", "1s", "--", f"bash {script}")
    home.until(lambda: home.counts(batch).get("RUNNING"))
    (runner,) = home.runners().values()
    words = lambda: {cmdline(pid) for pid in home.of_runner(runner)}  # noqa: E731
    home.until(lambda: {"sleep\x00611\x00", "sleep\x00612\x00"} <= words(), what="all its processes run")
    home.rota("kill", batch)
    assert home.settled() == {"ABORTED": 1}
    home.until(lambda: not home.of_runner(runner), what="all are gone")
    row = home.job(f"{batch}.1")
    assert (row["reason"], row["signal"]) == ("killed", 9)


def test_hundreds_at_once(home: Home) -> None:
    """Jobs that need next to nothing all start at once; a start that is told twice in one report harms nobody."""
    home.config("[site.local]\ncores = 2\n")
    batch = home.add("--cores", "0.01", "--array", "1-200", "--", "sleep 1")
    assert home.settled() == {"COMPLETED": 200}
    assert {row["attempt"] for row in home.rows("jobs", batch)} == {1}


def test_time_limit(home: Home) -> None:
    """Enforced by default; a sub-process in another session goes too."""
    batch = home.add("--time", "1s", "--grace", "1s", "--", "setsid sleep 621 & sleep 60")
    assert home.settled() == {"FAILED": 1}
    row = home.job(f"{batch}.1")
    assert row["reason"] == "time"
    assert row["wall_s"] > 0.9
    runner = home.rows("history", batch)[0]["runner"]
    home.until(lambda: not home.of_runner(runner), what="all are gone")
    free = home.add("--time", "1s", "--enforce", "none", "--", "sleep 1.5")
    assert home.settled(free) == {"COMPLETED": 1}


def test_memory_limit(home: Home) -> None:
    """Enforced when asked for."""
    eat = "import time; x = bytearray(300_000_000); time.sleep(600)"
    asked = home.add("--memory", "60M", "--enforce", "memory", "--grace", "1s", "--", "python3", "-c", eat)
    free = home.add("--memory", "60M", "--", "python3", "-c", "x = bytearray(100_000_000)")
    home.settled()
    row = home.job(f"{asked}.1")
    assert (row["state"], row["reason"]) == ("FAILED", "memory")
    assert "over its limit" in home.rows("history", asked)[0]["note"]
    assert home.job(f"{free}.1")["state"] == "COMPLETED"


def test_output_is_kept_to_its_cap(home: Home) -> None:
    """A job that prints without end neither fills the disk nor is cut silently."""
    batch = home.add("--output-cap", "100K", "--", "head -c 3000000 /dev/zero | tr '\\0' x")
    assert home.settled() == {"COMPLETED": 1}
    answer = home.ask("log", job=f"{batch}.1", attempt=None, stream="stdout", offset=0, limit=1 << 20)
    assert answer["truncated"] > 2_000_000
    assert Path(home.job(f"{batch}.1")["stdout"]).stat().st_size < 1_000_000
    assert json.dumps(answer)
