"""rota on a real Grid Engine, in both modes."""

import signal
import time

import pytest

from cluster.private import wait_for
from cluster.rota_home import (
    a_rota,
    all_submitted,
    allocations,
    attempts,
    becomes,
    begun,
    gated,
    native,
    open_gate,
    verdict,
    witnessed,
)


@pytest.fixture
def home(gridengine):
    with a_rota(gridengine, "sge", 4, 'parallel_environment = "smp"\nvanished_after = "5s"') as made:
        yield made


def listed(gridengine):
    return gridengine.run("qstat", "-u", "*", check=False).stdout.splitlines()[2:]


def empty(gridengine):
    wait_for("an empty queue", lambda: not listed(gridengine), step=0.2)


def submitted(gridengine, home):
    """Tag → native jobs with it, of all that this home has submitted and that have ended."""
    tags = {row["tag"]: set() for row in home.ask("allocations")["allocations"]}
    with open(gridengine.path("default/common/accounting")) as file:
        for line in file:
            words = line.split(":")
            if len(words) > 5 and (tag := words[4].rpartition("-")[2]) in tags:
                tags[tag].add(words[5])
    return tags


def test_100_jobs_through_runners_and_50_direct(gridengine, home):
    work = witnessed(home, "echo $JOB_ID $NSLOTS")
    batch = home.add("--on", "hpc", "--array", "1-100", "--", work)
    assert home.settled(batch, seconds=400) == {"COMPLETED": 100}
    direct = home.add("--on", "one", "--array", "201-250", "--", work)
    odd = home.add("--on", "one", "--array", "1-3", "--", "echo $ROTA_INDEX; echo err >&2; exit $((98 + ROTA_INDEX))")
    assert home.settled(direct, seconds=400) == {"COMPLETED": 50}
    assert home.settled(odd) == {"FAILED": 3}
    found = verdict(home, batch, direct)
    assert (found.executions, found.attempts) == (150, 150)
    assert [row["exit_code"] for row in home.rows("jobs", odd)] == [99, 100, 101], "it means two otherwise"
    log = home.rota("log", "--both", f"{odd}.2")
    assert (log.stdout, log.stderr) == ("2\n", "err\n")
    job, slots = home.rota("log", f"{direct}.222").stdout.split()
    assert (job, slots) == (home.job(f"{direct}.222")["native_id"].partition(".")[0], "1")
    assert {row["host"] for row in home.rows("jobs", batch, direct)} == {"ge1"}
    empty(gridengine)
    home.until(lambda: not allocations(home, "hpc"), what="all runners have left")
    made = submitted(gridengine, home)
    assert len(made) <= 5 and {len(jobs) for jobs in made.values()} == {1}, made


def test_manager_killed_in_the_middle(gridengine, home):
    work = witnessed(home, "sleep 0.5")
    batches = [home.add("--on", "hpc", "--array", "1-12", "--", work),
               home.add("--on", "one", "--array", "101-108", "--", work)]  # fmt: skip
    for part in (1, 10):
        # One that the cluster never got is looked for a minute: that is tried in virtual time, tests/sim.
        home.until(lambda part=part: begun(home) >= part and (part > 1 or all_submitted(home)), 150, f"{part} began")
        home.kill_manager()
        time.sleep(1)
        home.rota("up")
    assert home.settled(seconds=400) == {"COMPLETED": 20}
    assert verdict(home, *batches).executions == 20
    empty(gridengine)
    home.until(lambda: not allocations(home, "hpc"))
    assert {len(jobs) for jobs in submitted(gridengine, home).values()} == {1}


def test_ends_of_direct_jobs(gridengine, home):
    one = ("--on", "one")
    limited = f"{home.add(*one, '--time', '2s', '--enforce', 'time', '--grace', '1s', '--', 'sleep 300')}.1"
    deleted, killed = (f"{home.add(*one, '--', 'sleep 300')}.1" for _ in range(2))
    suspended = f"{home.add(*one, '--', witnessed(home, gated(home)))}.1"
    gridengine.suspend(native(home, suspended))
    gridengine.cancel(native(home, deleted))
    native(home, killed)
    home.rota("kill", killed)
    assert becomes(home, limited, "FAILED")["reason"] == "time"
    assert becomes(home, killed, "ABORTED")["reason"] == "killed"
    row = becomes(home, deleted, "FAILED")
    assert row["attempt"] == 1 and row["reason"] in ("cancelled", "signal"), row
    assert home.job(suspended)["state"] == "RUNNING"
    open_gate(home)
    gridengine.resume(home.job(suspended)["native_id"])
    becomes(home, suspended, "COMPLETED")
    assert verdict(home, suspended).executions == 1
    empty(gridengine)


def polled(home):
    """When the site of direct jobs was last asked."""
    return next(row["last_poll"] or 0.0 for row in home.json("sites")["sites"] if row["name"] == "one")


def test_jobs_that_never_start(gridengine, home):
    """Killed, held, and deleted by somebody else while pending: of that the accounting says nothing."""
    blockers = [gridengine.qsub("sleep 300") for _ in range(4)]
    for job in blockers:
        gridengine.wait_state(job, "r")
    killed, held, deleted = (f"{home.add('--on', 'one', '--', 'true')}.1" for _ in range(3))
    for name in (killed, held, deleted):
        home.until(lambda name=name: home.job(name)["native_id"], 150, "submitted")
    for _ in range(2):  # and seen to wait, by a poll that began after that: those never seen are waited for much longer
        last = polled(home)
        home.until(lambda last=last: polled(home) > last, what="another poll")
    home.rota("kill", killed)
    home.rota("hold", held)
    gridengine.cancel(home.job(deleted)["native_id"])
    assert becomes(home, killed, "ABORTED")["reason"] == "killed"
    row = becomes(home, deleted, "FAILED")
    assert (row["attempt"], row["reason"]) == (1, "cancelled"), row
    becomes(home, held, "HOLDING")
    assert len(listed(gridengine)) == 4
    gridengine.cancel(*blockers)
    home.rota("release", held)
    becomes(home, held, "COMPLETED")


def test_master_restarts_runner_is_deleted_and_host_dies(gridengine, home):
    work = witnessed(home, "sleep $(( ROTA_ATTEMPT > 1 ? 1 : 300 ))")
    batches = [home.add("--on", "hpc", "--array", "1-2", "--", work),
               home.add("--on", "one", "--array", "101-102", "--", work)]  # fmt: skip
    home.until(lambda: begun(home) == 4 and home.counts() == {"RUNNING": 4}, 150, "all run")
    gridengine.restart_master(signal.SIGKILL)
    assert home.counts() == {"RUNNING": 4}
    gridengine.cancel(native(home, f"{batches[0]}.1"))
    becomes(home, f"{batches[0]}.1", "COMPLETED", seconds=150)
    assert len(attempts(home, f"{batches[0]}.1")) == 2
    gridengine.kill_host()
    gridengine.start_host()
    assert home.settled(seconds=400) == {"COMPLETED": 4}
    found = verdict(home, *batches)
    assert found.executions >= 5
    empty(gridengine)
