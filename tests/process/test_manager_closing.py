"""Directories of their own, behaviours and what follows, from the command line to what is shown."""

import json
from pathlib import Path

import pytest

from process.support_home import Home, home

__all__ = ["home"]


def test_a_directory_of_its_own(home: Home) -> None:
    """Kept on failure and named; its disk use is shown; a retry has another one, and each failure its behaviour."""
    home.config("backoff_first = '1s'\nbackoff_jitter = '0s'\n")
    home.add(
        "--workdir", "unique", "--change-home", "--retries", "1", "--array", "3-4", "--on-failure",
        "echo {index} $ROTA_ATTEMPT $ROTA_EXIT_CODE $(basename $PWD) >> $ROTA_SUBMIT_DIR/told",
        "--", 'head -c 100000 /dev/zero > "$HOME/data"; [ {index} = 3 ]',
    )  # fmt: skip
    assert home.settled() == {"COMPLETED": 1, "FAILED": 1}
    good, bad = home.job("1.3"), home.job("1.4")
    assert good["peak_disk_bytes"] >= 100_000 and bad["peak_disk_bytes"] >= 100_000
    assert Path(home.work, "told").read_text() == "4 1 1 1.4.1\n4 2 1 1.4.2\n"
    kept = sorted(path.name for path in home.work.glob("rota_work/1/0/*"))
    assert kept == ["1.4.1", "1.4.2"]
    rows = home.rows("history", "1.4")
    assert [row["note"] for row in rows] == [
        f"its directory is kept: {home.work}/rota_work/1/0/1.4.{attempt}" for attempt in (2, 1)
    ]
    assert rows[0]["peak_disk_bytes"] >= 100_000
    assert "1.4.2" in home.rota("explain", "1.4").stdout


def test_behaviours_in_json_lines_and_with_values(home: Home) -> None:
    lines = [
        {"command": "true", "on_success": "echo one >> out", "on_exit": ["echo two >> out", "exit 3"]},
        {"command": "true", "workdir": "unique", "cleanup": "never", "change_home": True, "remove_on": "failure"},
    ]
    text = "\n".join(map(json.dumps, lines))
    home.add("-f", "-", "--on-exit", "echo common >> $ROTA_SUBMIT_DIR/out", stdin=text.encode())
    assert home.settled() == {"COMPLETED": 2}
    assert sorted(Path(home.work, "out").read_text().split()) == ["common", "one", "two"]
    assert home.rows("history", "1.1")[0]["note"] == "on-exit exited 3"
    assert home.rota("log", "1.1", "--stderr").stdout.startswith("rota: on-success: echo one >> out\nrota: on-exit")
    assert [path.name for path in home.work.glob("rota_work/*/*/*")] == ["1.2.1"]
    home.add(
        "--values",
        "a b,c'd",
        "--on-success",
        "echo {} >> values; echo '{{index}}' '{print}' >> values",
        "--",
        "test -n {}",
    )
    home.settled()
    said = Path(home.work, "values").read_text().splitlines()
    assert sorted(said) == ["a b", "c'd", "{index} {print}", "{index} {print}"]


def test_jobs_that_are_removed_by_themselves(home: Home) -> None:
    home.add("--remove-on", "success", "--array", "1-5", "--", "[ {index} != 2 ]")
    assert home.settled() == {"FAILED": 1}
    assert [row["id"] for row in home.rows("jobs", "1")] == ["1.2"]
    assert home.rota("wait", "1", code=1).returncode == 1
    home.add("--remove-on", "exit", "--", "false")
    home.until(lambda: not home.rows("jobs", "2"))
    home.kill_manager()
    home.rota("up")
    assert home.counts() == {"FAILED": 1}
    refused = home.rota("run", "--remove-on", "exit", "--", "true", code=2)
    assert "use rota add" in refused.stderr


def test_a_warning_before_the_limit(home: Home) -> None:
    script = "trap 'echo saved; exit 4' USR1; while :; do sleep 0.05; done"
    home.add("--time", "9s", "--signal", "usr1@4", "--", script)
    assert home.settled() == {"FAILED": 1}
    assert home.job("1.1")["exit_code"] == 4 and home.rota("log", "1.1").stdout == "saved\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--cleanup", "always"], "only for jobs with a directory of their own (--workdir unique)"),
        (["--change-home"], "only for jobs with a directory of their own"),
        (["--workdir", "own"], "--workdir"),
        (["--cleanup", "sometimes", "--workdir", "unique"], "--cleanup"),
        (["--on-exit", " "], "a behaviour (on success, failure or exit) is empty"),
        (["--signal", "USR1"], "write NAME@TIME, as in USR1@120"),
        (["--signal", "NOPE@1m"], "write NAME@TIME"),
        (["--signal", "KILL@1m"], "write NAME@TIME"),
        (["--signal", "USR1@0"], "give 1 second or more"),
        (["--signal", "USR1@soon"], "soon"),
        (["--time", "1m", "--signal", "USR1@2m"], "less than its --time"),
        (["--behaviour-time", "0s"], "at least 1 second"),
        (["--remove-on", "never"], "--remove-on"),
    ],
)
def test_what_cannot_be_meant_is_refused(home: Home, words: list[str], said: str) -> None:
    refused = home.rota("add", *words, "--", "true", code=2)
    assert said in refused.stderr, refused.stderr
    assert not home.manager()


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ({"workdir": "own"}, "'workdir'"), ({"cleanup": "always"}, "--workdir unique"), ({"on_exit": 3}, "'on_exit'"),
        ({"signal": "USR1"}, "field 'signal'"), ({"on_exit": [""]}, "is empty"), ({"remove_on": "x"}, "'remove_on'"),
    ],
)  # fmt: skip
def test_bad_lines_are_named(home: Home, line: dict[str, object], said: str) -> None:
    text = "true\n" + json.dumps({"command": "true", **line})
    refused = home.rota("add", "-f", "-", code=2, stdin=text.encode())
    assert "line 2" in refused.stderr and said in refused.stderr, refused.stderr
