"""Runner or manager are stopped for seconds, as in a laptop that sleeps: jobs go missing, come back, run once (K4)."""

import os
import signal
import time

import pytest

from process.support_home import Home, home
from process.support_witness import check, command

__all__ = ["home"]

CONFIG = "touch = '1s'\nmissing_after = '2s'\nstart_by = '3s'\nrerun_after = '1h'\n[site.local]\ncores = 4\n"


def witness(home: Home) -> str:
    """A directory for the jobs' witnesses."""
    place = home.work / "witness"
    place.mkdir(exist_ok=True)
    return str(place)


def stopped(pid: int, seconds: float) -> None:
    """SIGSTOP, a pause, SIGCONT."""
    os.kill(pid, signal.SIGSTOP)
    try:
        time.sleep(seconds)
    finally:
        os.kill(pid, signal.SIGCONT)


@pytest.mark.slow
def test_runner_stopped(home: Home) -> None:
    """Its jobs are MISSING while it is silent and come back with it; those that end meanwhile are COMPLETED."""
    place = witness(home)
    home.config(CONFIG)
    gate = home.gate()
    long = home.add("--array", "1-2", "--", command(place, gate.wait))
    short = home.add("--array", "11-60", "--", command(place, "sleep 0.1"))
    (pid,) = home.until(home.runners)
    home.until(lambda: home.counts(long).get("RUNNING") == 2)
    seen: set[str] = set()
    for _ in range(2):
        os.kill(pid, signal.SIGSTOP)
        try:
            home.until(lambda: home.counts(long).get("MISSING") == 2, what="missing")
            seen |= set(home.counts())
            assert "missing" in home.json("explain", f"{long}.1")["reason"]
            assert home.ask("runners")["runners"][0]["state"] == "MISSING"
        finally:
            os.kill(pid, signal.SIGCONT)
        home.until(lambda: home.counts(long).get("MISSING") is None, what="back")
    gate.open()
    assert home.settled() == {"COMPLETED": 52}
    found = check(place, home.rows("jobs"), home.rows("history"))
    assert not found.wrong, found
    assert (found.executions, found.lost_attempts) == (52, 0)
    assert len({row["runner"] for row in home.rows("history")}) == 1, "the same runner did it all"
    del short


@pytest.mark.slow
def test_manager_stopped(home: Home) -> None:
    """While it sleeps, runners go on; when it wakes, its own sleep counts as nobody's silence."""
    place = witness(home)
    home.config(CONFIG.replace("missing_after = '2s'", "missing_after = '6s'"))  # shorter than it sleeps
    home.add("--array", "1-80", "--", command(place, "sleep 0.$(( ROTA_INDEX % 5 ))"))
    home.until(lambda: home.counts().get("COMPLETED", 0) > 2)
    for seconds in (0.3, 8.0, 1.0):
        stopped(home.manager(), seconds)
        time.sleep(0.3)
        assert "MISSING" not in home.counts(), "the manager slept, not the runner"
    assert home.settled() == {"COMPLETED": 80}
    found = check(place, home.rows("jobs"), home.rows("history"))
    assert not found.wrong, found
    assert (found.executions, found.lost_attempts) == (80, 0)


def test_a_stopped_runner_that_dies(home: Home) -> None:
    """Missing first, then the driver sees the death: a second attempt, and only then."""
    place = witness(home)
    home.config(CONFIG)
    home.add("--array", "1-2", "--", command(place, "test $ROTA_ATTEMPT -gt 1 || sleep 600"))
    (pid,) = home.until(home.runners)
    home.until(lambda: home.counts().get("RUNNING") == 2)
    os.kill(pid, signal.SIGSTOP)
    home.until(lambda: home.counts().get("MISSING") == 2)
    os.kill(pid, signal.SIGKILL)
    assert home.settled() == {"COMPLETED": 2}
    found = check(place, home.rows("jobs"), home.rows("history"))
    assert not found.wrong, found
    assert (found.executions, found.lost_attempts) == (4, 2)


def test_confirmed_dead(home: Home) -> None:
    """The user is the second witness: the job runs again elsewhere, and the old copy is told to end when it is back."""
    place = witness(home)
    home.config(CONFIG)
    home.add("--array", "1-1", "--", command(place, "sleep 300"))
    (pid,) = home.until(home.runners)
    home.until(lambda: home.counts().get("RUNNING") == 1)
    refused = home.json("kill", "1", "--confirm-dead")
    assert refused["jobs"] == 0
    assert "not MISSING" in refused["skipped"][0]["reason"]
    os.kill(pid, signal.SIGSTOP)
    try:
        home.until(lambda: home.counts().get("MISSING") == 1)
        assert home.json("kill", "1", "--confirm-dead")["jobs"] == 1
        assert [row["state"] for row in home.rows("history", "1")] == ["LOST"]
    finally:
        os.kill(pid, signal.SIGCONT)
    home.until(lambda: "1" not in {row["attempt"] for row in home.rows("jobs")} and home.job("1.1")["attempt"] == 2)
    home.rota("kill", "1")
    home.settled()
