"""Runners are killed at any instant, alone or with their children: reruns are new attempts, orphans are ended (K2)."""

import contextlib
import os
import random
import signal
import time
from pathlib import Path

import pytest

from process.support_home import Home, alive, cmdline, home, parent, pids
from process.support_witness import Supply, check, command

__all__ = ["home"]

KILLS = int(os.environ.get("TEST_KILLS", "25"))
CONFIG = "losses = 1000\nbackoff_first = '0s'\nbackoff_jitter = '0s'\n[site.local]\ncores = 6\n"


def witness(home: Home) -> str:
    """A directory for the jobs' witnesses."""
    place = home.work / "witness"
    place.mkdir(exist_ok=True)
    return str(place)


def kill(pid: int, group: bool = False) -> None:
    """SIGKILL, if it is still there."""
    with contextlib.suppress(ProcessLookupError):
        (os.killpg if group else os.kill)(pid, signal.SIGKILL)


def leads(pid: int) -> bool:
    """Whether it is a job's first process."""
    with contextlib.suppress(ProcessLookupError):
        return os.getsid(pid) == pid
    return False


def started(place: str) -> list[Path]:
    """What the jobs have written that have begun."""
    return [path for path in Path(place).glob("*[0-9]") if "start" in path.read_text()]


def serving(home: Home) -> tuple[int, str]:
    """(pid, id) of a runner that is connected and has jobs."""

    def look() -> tuple[int, str] | None:
        for row in home.ask("runners")["runners"]:
            if row["connected"] and row["jobs"] and alive(row["pid"]):
                return row["pid"], row["id"]
        return None

    found: tuple[int, str] = home.until(look, what="a runner with jobs")
    return found


@pytest.mark.slow
def test_runner_killed_during_work(home: Home) -> None:
    """25 SIGKILLs: the runner, the runner and its jobs, its group, the runner and the manager."""
    rng = random.Random(20261)
    place = witness(home)
    home.config(CONFIG)
    work = "(sleep 0.$(( ROTA_INDEX % 4 ))1; true) & wait; setsid sleep 0.$(( ROTA_INDEX % 3 ))2"
    supply = Supply(home.add, place, work, "--retries", "50")
    for number in range(KILLS):
        supply.ensure(30)
        pid, runner = serving(home)
        time.sleep(rng.choice((0.0, 0.01, 0.05, 0.2)) * rng.random())
        kind = number % 4
        if kind == 1:  # children first, then the runner, as a machine that goes down does
            for child in home.of_runner(runner):
                kill(child)
            kill(pid)
        elif kind == 2:
            kill(pid, group=True)
        elif kind == 3:
            manager = home.manager()
            kill(pid)
            kill(manager)
            home.until(lambda dead=manager: not alive(dead))
            home.rota("up")
        else:
            kill(pid)
        home.until(lambda gone=runner: not home.of_runner(gone), what="orphans are gone")
        home.until(lambda gone=runner: gone not in home.runners().values(), what="the runner itself is gone")
    counts = home.settled()
    found = check(place, home.rows("jobs"), home.rows("history"))
    assert not found.wrong, found
    assert counts == {"COMPLETED": supply.jobs}
    assert found.executions <= found.attempts
    retried = sum(row["state"] == "RETRIED" for row in home.rows("history"))
    assert found.attempts >= supply.jobs + found.lost_attempts + retried
    assert found.lost_attempts >= KILLS / 2, f"the kills met no work: {found}"


def test_children_killed_are_failures_of_the_job(home: Home) -> None:
    """SIGKILL of a job's process is that job's end: reported as a signal, tried again if it has retries."""
    place = witness(home)
    home.config(CONFIG)
    gate = home.gate()
    work = f"[ $ROTA_ATTEMPT != 1 ] || {gate.wait}"
    batch = home.add("--array", "1-12", "--retries", "1", "--", command(place, work))
    (pid, runner) = serving(home)
    home.until(lambda: home.counts(batch).get("RUNNING") == 6)
    shells = lambda: [child for child in home.of_runner(runner) if leads(child)]  # noqa: E731
    home.until(lambda: len(started(place)) == len(shells()) == 6, what="six wait at the gate")
    for child in shells():
        kill(child)
    gate.open()
    assert home.settled() == {"COMPLETED": 12}
    assert alive(pid), "the runner itself must not mind"
    first = [row for row in home.rows("history", batch) if row["attempt"] == 1 and row["state"] == "RETRIED"]
    assert len(first) == 6
    assert {(row["signal"], row["reason"]) for row in first} == {(9, "signal")}
    assert not check(place, home.rows("jobs"), home.rows("history")).wrong


def test_orphans_of_a_dead_runner_are_ended_before_a_second_try(home: Home) -> None:
    """The runner dies alone; its job (and a grandchild in another session) must be gone before attempt 2 starts."""
    place = witness(home)
    home.config("losses = 1\n[site.local]\ncores = 1\n")
    home.add("--array", "1-1", "--", command(place, "setsid sleep 3000 & sleep 3000"))
    for lost in (1, 2):
        pid, runner = serving(home)
        home.until(lambda gone=runner: len(home.of_runner(gone)) >= 3, what="the job and its children run")
        kill(pid)
        home.until(lambda gone=runner: not home.of_runner(gone), what="orphans are gone")
        del lost
    assert home.settled() == {"FAILED": 1}
    row = home.job("1.1")
    assert (row["attempt"], row["reason"]) == (2, "lost-too-often")
    assert [(a["attempt"], a["state"]) for a in home.rows("history", "1")] == [(2, "FAILED"), (1, "LOST")]
    text = (home.work / "witness" / "1").read_text()
    assert text.count("start") == 2
    assert "overlap" not in text
    assert "lost" in home.json("explain", "1.1")["reason"]


def test_a_launcher_never_outlives_its_runner(home: Home) -> None:
    """Even one that is stopped just then: it holds jobs that it would start when it goes on."""
    place = witness(home)
    home.config("[site.local]\ncores = 2\n")
    home.add("--array", "1-200", "--", command(place, "sleep 0.05"))
    pid, runner = serving(home)
    look = lambda: [child for child in pids() if cmdline(child) == "rota-launcher\0" and parent(child) == pid]  # noqa: E731
    try:
        (launcher,) = home.until(look, 20)
    except AssertionError:
        pytest.skip("there is no launcher here (no compiler)")
    home.until(lambda: home.counts().get("COMPLETED", 0) >= 20)
    os.kill(launcher, signal.SIGSTOP)
    time.sleep(0.2)
    kill(pid)
    home.until(lambda: not alive(launcher), what="the launcher is gone")
    assert home.settled() == {"COMPLETED": 200}
    found = check(place, home.rows("jobs"), home.rows("history"))
    assert not found.wrong, found
    assert not home.of_runner(runner)


def test_pid_of_another_is_never_touched(home: Home) -> None:
    """A process that has nothing to do with the runner survives its clean-up."""
    home.config("[site.local]\ncores = 2\n")
    mark = {"ROTA_RUNNER": "another", "ROTA_HOME": home.path}
    bystander = os.posix_spawn("/bin/sleep", ["sleep", "600"], mark, setsid=True)
    try:
        home.add("--array", "1-2", "--", "test $ROTA_ATTEMPT -gt 1 || sleep 600")
        pid, _ = serving(home)
        kill(pid)
        home.settled()
        assert bystander in pids()
        assert os.waitpid(bystander, os.WNOHANG) == (0, 0)
    finally:
        os.kill(bystander, signal.SIGKILL)
        os.waitpid(bystander, 0)


@pytest.mark.parametrize("left", ["[]", "{", '{"ended": 7}', '{"ended": [[1]]}', "null"])
def test_what_a_dead_runner_left_is_believed_only_if_it_is_a_report(home: Home, left: str) -> None:
    """Whatever lies there, the attempt is lost and the job runs again."""
    gate = home.gate()
    home.add("--", f"test $ROTA_ATTEMPT -gt 1 || cat {gate.path}")
    pid, runner = serving(home)
    home.until(lambda: home.job("1.1")["state"] == "RUNNING")
    (Path(home.path) / "output" / runner / "unsent.json").write_text(left)
    kill(pid)
    assert home.settled() == {"COMPLETED": 1}
    assert [(row["attempt"], row["state"]) for row in home.rows("history", "1")] == [(2, "COMPLETED"), (1, "LOST")]
    gate.open()
