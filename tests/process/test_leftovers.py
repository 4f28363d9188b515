"""Background processes that a job leaves behind: ended with it and said, waited for, or kept."""

import json
import os
import signal
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from cli_support import until, up

__all__ = ["up"]


LEAVES = "setsid sleep 1000 & echo $! > pid"
BECOMES = (
    """setsid python3 -c 'import os, time; time.sleep(3); os.execvp("sleep", ["sleep", "1000"])' & echo $! > pid"""
)
"""The same process is another program a while after its job has ended."""


def is_alive(rota) -> bool:
    try:
        os.kill(int((rota.cwd / "pid").read_text()), 0)
    except ProcessLookupError:
        return False
    return True


def note_of(rota, job: str) -> str:
    (row,) = rows(rota, job)
    return row["note"] or ""


def rows(rota, job: str) -> list:
    out = rota.out("history", job, "--json")
    return [json.loads(line) for line in out.splitlines()]


@pytest.mark.parametrize("launcher", ["auto", "none"])
def test_they_are_ended_and_that_is_said(rota, launcher):
    (rota.home / "config.toml").write_text(f'[site.local]\nlauncher = "{launcher}"\n')
    rota("down")
    rota("up")
    rota("run", "--", LEAVES)
    until(lambda: not is_alive(rota))
    assert note_of(rota, "1.1") == "ended 1 process that it left running"
    assert "left running" in rota.out("explain", "1.1")


def test_they_are_kept(rota):
    rota("run", "--leftovers", "keep", "--", LEAVES)
    try:
        assert is_alive(rota) and note_of(rota, "1.1") == ""
    finally:
        os.kill(int((rota.cwd / "pid").read_text()), signal.SIGKILL)


def test_they_are_waited_for_with_what_they_print(rota):
    late = "(until test -e gate; do sleep 0.05; done; echo late) & echo early; touch begun"
    rota("add", "--leftovers", "wait", "--", late)
    until((rota.cwd / "begun").exists)
    until(lambda: "RUNNING" in rota.out("jobs", "1"))
    (rota.cwd / "gate").touch()
    rota("wait", "1")
    assert rota.out("log", "1.1") == "early\nlate\n" and note_of(rota, "1.1") == ""


@pytest.mark.parametrize("how", ["kill", "time"])
def test_what_is_waited_for_can_be_ended(rota, how):
    more = ("-t", "6s") if how == "time" else ()
    rota("add", "--leftovers", "wait", *more, "--", LEAVES if how == "time" else BECOMES)
    until(lambda: (rota.cwd / "pid").exists() and (rota.cwd / "pid").read_text())
    if how == "kill":
        waits = f"with exit 0; waits for a process that it left: sleep (pid {(rota.cwd / 'pid').read_text().strip()})"
        until(lambda: waits in rota.out("explain", "1.1"))
        rota("kill", "1")
    rota("wait", "1", code=1)
    until(lambda: not is_alive(rota))
    assert rows(rota, "1.1")[0]["reason"] == ("killed" if how == "kill" else "time")
