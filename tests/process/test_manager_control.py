"""up, --once, down, drain, pause, resume, signals, and that an idle manager rests."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from process.support_home import Home, alive, home
from process.support_witness import check, command

__all__ = ["home"]

UNWATCHFUL = str(Path(__file__).with_name("support_unwatchful_manager.py"))


def witness(home: Home) -> str:
    """A directory for the jobs' witnesses."""
    place = home.work / "witness"
    place.mkdir(exist_ok=True)
    return str(place)


def gone(home: Home, pid: int, seconds: float = 120) -> None:
    """Wait for a process to end."""
    home.until(lambda: not alive(pid), seconds, f"process {pid} is gone")


def wakes(pid: int) -> int:
    """How often its threads were woken so far."""
    found = (Path(f"/proc/{pid}/task/{thread}/status").read_text() for thread in os.listdir(f"/proc/{pid}/task"))
    return sum(int(text.split("\nvoluntary_ctxt_switches:")[1].split()[0]) for text in found)


def runs(pid: int) -> bool:
    """Whether it has something to do just now."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "R"


def at_rest(pid: int) -> bool:
    """Whether it sleeps nearly all the time that we look, and is woken less often than we look."""
    looks, before = 40, wakes(pid)
    busy = 0
    for _ in range(looks):
        time.sleep(0.1)
        busy += runs(pid)
    return busy < looks / 4 and wakes(pid) - before < looks / 2


def test_an_idle_manager_is_at_rest(home: Home) -> None:
    """With a runner, which is too, and without. What it costs is measured in `bench/`."""
    home.config('[site.local]\nlinger = "10m"\n')
    home.add("--array", "1-50", "--", "true")
    home.settled()
    pid = home.manager()
    (runner,) = home.runners()
    home.until(lambda: at_rest(pid) and at_rest(runner), what="manager and runner are at rest")
    os.kill(runner, signal.SIGTERM)
    gone(home, runner)
    home.until(lambda: at_rest(pid), what="the manager is at rest")


def unwatchful(home: Home) -> "subprocess.Popen[bytes]":
    """Start a manager that never looks around by itself."""
    with open(Path(home.path, "manager.log"), "ab") as log:
        child = subprocess.Popen(
            [sys.executable, UNWATCHFUL, "--home", home.path], env=home.env, stdout=log, stderr=log
        )
    home.until(lambda: home.rota("ping", code=None).returncode == 0)
    return child


@pytest.mark.parametrize("adopted", [False, True])
def test_a_runner_that_has_left_is_replaced_at_once(home: Home, adopted: bool) -> None:
    """The manager hears of its end from the kernel, whether it started it or found it."""
    home.config('[site.local]\nlinger = "10m"\n')
    manager = unwatchful(home)
    try:
        for _ in range(2):
            home.rota("run", "--", "true")
            if adopted:
                manager.kill()
                manager.wait()
                manager = unwatchful(home)
            (runner,) = home.runners()
            os.kill(runner, signal.SIGKILL)
            gone(home, runner)
        home.rota("run", "--", "true")
    finally:
        manager.kill()
        manager.wait()


def test_once(home: Home) -> None:
    """Does what is due and ends; what it started goes on; the next one hears of it."""
    place = witness(home)
    home.config("[site.local]\ncores = 4\n")
    home.rota("up")
    home.rota("pause")
    gate = home.gate()
    home.add("--array", "1-4", "--", command(place, gate.wait))
    home.rota("resume")
    home.rota("down")
    home.rota("up", "--once")
    pid = home.manager()
    gone(home, pid)
    assert "ended with 0" in home.tail()
    gate.open()
    for _ in range(4):
        done = home.rota("up", "--once", "--foreground")
        assert done.returncode == 0
        home.rota("up")
        counts = home.counts()
        home.rota("down")
        if counts == {"COMPLETED": 4}:
            break
    assert counts == {"COMPLETED": 4}
    home.rota("up")
    found = check(place, home.rows("jobs"), home.rows("history"))
    assert not found.wrong, found
    assert found.executions == 4


def test_pause_and_resume(home: Home) -> None:
    """Nothing starts while paused, also after a crash; what runs goes on."""
    home.config("[site.local]\ncores = 1\n")
    gate = home.gate()
    batch = home.add("--array", "1-3", "--", gate.wait)
    home.until(lambda: home.counts(batch).get("RUNNING"))
    assert home.json("pause")["state"] == "paused"
    gate.open()
    home.until(lambda: home.counts(batch) == {"COMPLETED": 1, "PENDING": 2})
    home.kill_manager()
    home.rota("up")
    assert home.json("ping")["state"] == "paused"
    time.sleep(0.7)
    assert home.counts(batch) == {"COMPLETED": 1, "PENDING": 2}
    assert "paused" in home.json("explain", f"{batch}.2")["reason"]
    home.rota("resume")
    assert home.settled() == {"COMPLETED": 3}


def test_drain(home: Home) -> None:
    """What runs ends, nothing more starts or is taken, then the manager is gone; the next one serves the rest."""
    home.config("[site.local]\ncores = 1\n")
    gate = home.gate()
    batch = home.add("--array", "1-3", "--", gate.wait)
    home.until(lambda: home.counts(batch).get("RUNNING"))
    pid = home.manager()
    assert home.json("drain")["state"] == "draining"
    assert "draining" in home.rota("add", "--", "true", code=5).stderr
    gate.open()
    gone(home, pid)
    gate.close()
    home.rota("up")
    assert home.json("ping")["state"] == "serving"
    assert home.counts(batch)["COMPLETED"] == 1
    gate.open()
    assert home.settled() == {"COMPLETED": 3}


def test_down_leaves_jobs_alone(home: Home) -> None:
    """`down` and SIGTERM end the manager at once; its runners finish what they have and are heard of later."""
    place = witness(home)
    home.config("[site.local]\ncores = 2\n")
    gate = home.gate()
    home.add("--array", "1-4", "--", command(place, gate.wait))
    home.until(lambda: home.counts().get("RUNNING") == 2)
    said = home.json("down")
    assert said["stopped"]
    assert said["running"] == 2
    assert not home.manager()
    assert len(home.runners()) == 1
    home.rota("up")
    gate.open()
    home.until(lambda: home.counts().get("COMPLETED", 0) >= 2)
    pid = home.kill_manager(signal.SIGTERM)
    assert not alive(pid)
    assert not os.path.exists(os.path.join(home.path, "manager.sock"))
    home.rota("up")
    assert home.settled() == {"COMPLETED": 4}
    found = check(place, home.rows("jobs"), home.rows("history"))
    assert not found.wrong, found
    assert (found.executions, found.attempts) == (4, 4)
    home.rota("down")
    home.until(lambda: not home.processes(), what="idle runners leave with the manager")


def test_down_kill(home: Home) -> None:
    """Running jobs are ended, without counting as failures, and run again after the next `up`."""
    place = witness(home)
    home.config("[site.local]\ncores = 2\n")
    home.add("--array", "1-3", "--", command(place, "test $ROTA_ATTEMPT -gt 1 || sleep 600"))
    home.until(lambda: home.counts().get("RUNNING") == 2)
    assert home.json("down", "--kill")["stopped"]
    home.until(lambda: not home.processes(), what="all are gone")
    home.config("[site.local]\ncores = 1\n")
    home.rota("up")
    home.until(lambda: home.counts().get("COMPLETED") == 2)
    assert home.job("1.1")["attempt"] == 2
    first = [row for row in home.rows("history", "1.1") if row["attempt"] == 1]
    assert [row["state"] for row in first] == ["RETRIED"]
    assert first[0]["reason"] == "runner-stopped"
    home.rota("kill", "--all")
    home.settled()


def test_down_kill_when_jobs_ignore_term(home: Home) -> None:
    """They are killed after their grace, with everything that they started."""
    home.config("[site.local]\ncores = 2\n")
    home.add(
        "--grace", "1s", "--", "trap '' TERM; setsid sh -c \"trap '' TERM; sleep 600\" & while :; do sleep 0.1; done"
    )
    home.until(lambda: home.counts().get("RUNNING") == 1)
    (runner,) = home.runners().values()
    home.until(lambda: len(home.of_runner(runner)) >= 3)
    home.rota("down", "--kill")
    home.until(lambda: not home.processes(), what="all are gone")


def test_the_manager_survives_its_terminal(home: Home) -> None:
    """It has a session of its own, no terminal, and ignores SIGHUP."""
    home.rota("up")
    pid = home.manager()
    assert os.getsid(pid) != os.getsid(0)
    os.kill(pid, signal.SIGHUP)
    time.sleep(0.2)
    assert home.json("ping")["pid"] == pid
    assert os.readlink(f"/proc/{pid}/cwd") == "/"


def test_large_leases(home: Home) -> None:
    """Hundreds of commands of 100 kB each at once: no message is too long for a runner, and no answer for a client."""
    home.config("[site.local]\ncores = 200\n")
    lines = b"".join(b"test %d = %d # %s\n" % (number, number, b"x" * 100_000) for number in range(120))
    batch = home.add("-f", "-", stdin=lines)
    assert home.settled(batch) == {"COMPLETED": 120}
    assert len(home.rows("jobs", batch)) == 120
    assert home.ask("wait", sel=[batch], timeout_s=1)["settled"]
    assert {row["attempt"] for row in home.rows("jobs", batch)} == {1}
    home.rota("wait", batch)
