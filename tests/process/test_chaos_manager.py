"""The manager is killed at any instant, many times: no job is lost, none runs twice (K1)."""

import os
import random
import time

import pytest

from process.support_home import Home, alive, home
from process.support_witness import Supply, check, command

__all__ = ["home"]

KILLS = int(os.environ.get("TEST_KILLS", "25"))


def witness(home: Home) -> str:
    """A directory for the jobs' witnesses."""
    place = home.work / "witness"
    place.mkdir(exist_ok=True)
    return str(place)


def verdict(home: Home):
    """What the independent checker says."""
    return check(witness(home), home.rows("jobs"), home.rows("history"))


@pytest.mark.slow
def test_manager_killed_during_work(home: Home) -> None:
    """25 SIGKILLs at random instants: every job runs exactly once, since no runner died."""
    rng = random.Random(20260)
    place = witness(home)
    work = "sleep $(( ROTA_INDEX % 10 == 0 ? 3 : ROTA_INDEX % 3 )).$(( ROTA_INDEX % 7 ))e-1"
    home.config("[site.local]\ncores = 6\n")
    supply = Supply(home.add, place, work)
    met = 0
    for _ in range(KILLS):
        supply.ensure(40)
        time.sleep(rng.choice((0.0, 0.002, 0.01, 0.05, 0.1, 0.2, 0.4)) * rng.random())
        home.kill_manager()
        met += supply.done() < supply.jobs
        if rng.random() < 0.3:
            time.sleep(rng.random() * 0.3)
        home.rota("up")
    assert met >= KILLS - 2, f"only {met} kills met work"
    counts = home.settled()
    found = verdict(home)
    assert not found.wrong, found
    assert counts == {"COMPLETED": supply.jobs}
    assert found.executions == supply.jobs
    # A lease that was durable and not yet sent when the manager died has used up an attempt number, and nothing else.
    assert found.attempts <= supply.jobs + 6 * KILLS, found


def test_jobs_go_on_while_the_manager_is_dead(home: Home) -> None:
    """50 run at once; the manager is killed; they finish without it and are COMPLETED once it is back."""
    place = witness(home)
    home.config("[site.local]\ncores = 50\n")
    ended = Supply(home.add, place, "").done
    gate = home.gate()
    batch = home.add("--array", "1-50", "--", command(place, gate.wait))
    home.until(lambda: home.counts(batch).get("RUNNING") == 50, what="50 run")
    home.kill_manager()
    gate.open()
    home.until(lambda: ended() == 50, what="all ended without a manager")
    assert not home.manager()
    home.rota("up")
    assert home.settled() == {"COMPLETED": 50}
    found = verdict(home)
    assert not found.wrong, found
    assert (found.executions, found.attempts) == (50, 50)


def test_manager_killed_while_submitting(home: Home) -> None:
    """What was acknowledged is there; what was not is there once or not at all, and never in part."""
    rng = random.Random(7)
    home.config("[site.local]\ncores = 4\n")
    home.rota("up")
    acknowledged, doubtful = {}, 0
    for number in range(6):
        from rota.manager.daemon import start

        pid = home.manager() or start(home.path)
        child = os.fork()
        if not child:
            time.sleep(0.1 + rng.random() * 0.0 + number * 0.02)
            os.kill(pid, 9)
            os._exit(0)
        for part in range(200):
            done = home.rota("add", "--name", f"n{number}-{part}", "--array", "1-3", "--", "true", code=None)
            if done.returncode == 0:
                acknowledged[f"n{number}-{part}"] = done.stdout.strip()
            else:
                doubtful += 1
            if not alive(pid):
                break
        os.waitpid(child, 0)
    home.rota("up")
    home.settled()
    batches = {row["name"]: row for row in home.json("status")["batches"]}
    for name, batch in acknowledged.items():
        assert str(batches[name]["id"]) == batch
        assert batches[name]["counts"] == {"COMPLETED": 3}
    assert len(batches) <= len(acknowledged) + doubtful
    assert all(row["jobs"] == 3 for row in batches.values())
