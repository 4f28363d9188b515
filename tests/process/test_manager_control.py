"""up, --once, down, drain, pause, resume, signals, and what an idle manager costs."""

import os
import signal
import time

import pytest

from process.support_home import Home, alive, cpu_seconds, home
from process.support_witness import check, command

__all__ = ["home"]


def witness(home: Home) -> str:
    """A directory for the jobs' witnesses."""
    place = home.work / "witness"
    place.mkdir(exist_ok=True)
    return str(place)


def gone(home: Home, pid: int, seconds: float = 60) -> None:
    """Wait for a process to end."""
    home.until(lambda: not alive(pid), seconds, f"process {pid} is gone")


@pytest.mark.slow
def test_idle_manager_costs_nothing(home: Home) -> None:
    """At most 0.1 % of a core over ten seconds, with a runner and without. It is CPU time: others may be busy."""
    home.config('[site.local]\nlinger = "1m"\n')
    home.add("--array", "1-50", "--", "true")
    home.settled()
    pid = home.manager()
    time.sleep(1)
    (runner,) = home.runners()
    for kind in ("with a runner", "without"):
        before, of_runner, began = (
            cpu_seconds(pid),
            cpu_seconds(runner) if kind == "with a runner" else 0,
            time.monotonic(),
        )
        time.sleep(10)
        spent = cpu_seconds(pid) - before
        share = spent / (time.monotonic() - began)
        print(f"{kind}: {share:.4%} of a core")
        assert share <= 0.001, f"{kind}: {share:.3%} of a core"
        if kind == "with a runner":
            assert cpu_seconds(runner) - of_runner <= 0.01
            os.kill(runner, signal.SIGTERM)
            gone(home, runner)
            time.sleep(1.5)


@pytest.mark.parametrize("adopted", [False, True])
def test_a_runner_that_has_left_is_replaced_at_once(home: Home, adopted: bool) -> None:
    """The manager hears of its end from the kernel, whether it started it or found it; it does not only look around."""
    home.rota("up")
    took = []
    for _ in range(4):
        began = time.monotonic()
        home.rota("run", "--", "true")
        took.append(time.monotonic() - began)
        if adopted:
            home.kill_manager()
            home.rota("up")
        (runner,) = home.runners()
        os.kill(runner, signal.SIGKILL)
        gone(home, runner)
    # A resting manager looks around every 5 s. The first run had a runner to start, too, and nobody to miss.
    assert sorted(took[1:])[1] < took[0] + 1.5, took


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
        done = home.rota("up", "--once", "--foreground", timeout=60)
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
    home.until(lambda: not home.processes(), 30, "idle runners leave with the manager")


def test_down_kill(home: Home) -> None:
    """Running jobs are ended, without counting as failures, and run again after the next `up`."""
    place = witness(home)
    home.config("[site.local]\ncores = 2\n")
    home.add("--array", "1-3", "--", command(place, "test $ROTA_ATTEMPT -gt 1 || sleep 600"))
    home.until(lambda: home.counts().get("RUNNING") == 2)
    assert home.json("down", "--kill")["stopped"]
    home.until(lambda: not home.processes(), 20, "all are gone")
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
    home.until(lambda: not home.processes(), 20, "all are gone")


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
