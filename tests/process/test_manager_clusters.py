"""rota beside LSF, OpenLava, OpenPBS and TORQUE, in both modes: real commands and processes on fake clusters."""

import collections
import time

import pytest

from process.support_home import a_home
from process.support_witness import check, command
from rota.testing.fake_cluster import FakeCluster

CONFIG = """\
backoff_first = "1s"
backoff_jitter = "0s"

[site.hpc]
driver = "{driver}"
poll = "1s"
poll_least = "1s"
linger = "2s"
most = 6
vanished_after = "2s"

[site.one]
driver = "{driver}"
mode = "direct"
poll = "1s"
poll_least = "1s"
most = 40
vanished_after = "2s"
"""


@pytest.fixture(params=["lsf", "openlava", "pbs", "torque"])
def beside(request, tmp_path):
    """(a home with one site of runners and one of direct jobs, their cluster)."""
    kind = {"personality": request.param}
    if request.param == "openlava":
        kind = {"personality": "lsf", "cluster": "openlava"}
    with (
        FakeCluster(tmp_path / "cluster", **kind, nodes=2, cores=16, memory_mb=64000, kill_wait_s=1.0) as fake,
        a_home() as home,
    ):
        home.env["PATH"] = fake.path
        home.config(CONFIG.format(driver=request.param))
        (home.work / "witness").mkdir()
        try:
            yield home, fake
        finally:
            home.rota("down", "--kill", code=None)


def witnessed(home, work):
    return command(str(home.work / "witness"), work)


def verdict(home, *batches):
    found = check(str(home.work / "witness"), home.rows("jobs", *batches), home.rows("history", *batches))
    assert not found.wrong, (found, home.tail())
    return found


def native(home, name):
    """The native id of the allocation that a job runs in, once it does."""
    home.until(lambda: home.job(name)["state"] == "RUNNING" and home.job(name)["native_id"], what=f"{name} runs")
    return home.job(name)["native_id"]


def becomes(home, name, state):
    """Wait until a job is settled: in that state."""
    home.settled(name)
    assert home.job(name)["state"] == state, (home.job(name), attempts(home, name), home.tail())
    return home.job(name)


def vanish(fake, text):
    """As if it had never been: its processes end, and the cluster remembers nothing."""
    for world, job in fake._each(text):
        fake._processes.signal(world, job, "KILL", time.time())
        world.jobs.remove(job)


def is_mute(fake):
    """OpenLava has no word for a job that needed too much memory: it was killed, by whomever."""
    with fake.world() as world:
        return world.settings["cluster"] == "openlava"


def attempts(home, name):
    return [(row["state"], row["reason"]) for row in sorted(home.rows("history", name), key=lambda row: row["attempt"])]


def test_nothing_is_lost_or_doubled_and_every_end_has_its_reason(beside):
    home, fake = beside
    runners = home.add("--on", "hpc", "--array", "1-20", "--", witnessed(home, "true"))
    direct = home.add("--on", "one", "--array", "101-110", "--", witnessed(home, "echo $ROTA_INDEX"))
    odd = home.add("--on", "one", "--array", "1-3", "--", "exit $ROTA_INDEX")
    first = "sleep $(( ROTA_ATTEMPT > 1 ? 0 : 300 ))"
    ends = {key: f"{home.add('--on', 'one', '--', first)}.1" for key in ("kill", "time", "vanish")}
    lost = [f"{home.add('--on', 'hpc', '--name', name, '--', first)}.1" for name in ("memory", "vanish")]
    natives = {key: native(home, name) for key, name in ends.items()}
    home.rota("kill", ends["kill"])
    fake.out_of_time(natives["time"])
    vanish(fake, natives["vanish"])
    fake.out_of_memory(native(home, lost[0]))
    vanish(fake, native(home, lost[1]))
    assert home.settled(runners, direct, odd) == {"COMPLETED": 30, "FAILED": 3}, home.tail()
    assert [(row["exit_code"], row["reason"]) for row in home.rows("jobs", odd)] == [(n, "exit") for n in (1, 2, 3)]
    assert home.rota("log", f"{direct}.105").stdout == "105\n"
    becomes(home, ends["kill"], "ABORTED")
    assert becomes(home, ends["time"], "FAILED")["reason"] == "time"
    becomes(home, ends["vanish"], "COMPLETED")
    assert attempts(home, ends["vanish"])[0] == ("LOST", "vanished")
    if is_mute(fake):
        becomes(home, lost[0], "COMPLETED")
        assert attempts(home, lost[0])[0][0] == "LOST"
    else:
        assert becomes(home, lost[0], "FAILED")["reason"] == "oom"
    becomes(home, lost[1], "COMPLETED")
    assert attempts(home, lost[1])[0][0] == "LOST"
    found = verdict(home, runners, direct)
    assert (found.executions, found.attempts) == (30, 30)
    tags = collections.Counter(
        row["name"].rpartition("-")[2] for row in {row["id"]: row for row in fake.jobs()}.values()
    )
    assert set(tags.values()) == {1}, "a tag was submitted twice"
    home.until(lambda: all(job["state"] == "over" for job in fake.jobs()), 60, "all runners have left")


def test_what_jobs_on_nodes_write_is_known_here(beside):
    home, _ = beside
    batches = [home.add("--on", site, "--output", f"{site}.out", "--", f"echo > {site}.out") for site in ("hpc", "one")]
    assert home.settled(*batches) == {"COMPLETED": 2}, home.tail()
    expected = {str(home.work / f"{site}.out") for site in ("hpc", "one")}
    home.until(lambda: {row["path"] for row in home.json("data", "list")["replicas"]} == expected, 60, "both are known")


def test_a_manager_that_dies_finds_everything_again(beside):
    home, fake = beside
    work = witnessed(home, "sleep 1")
    batches = [home.add("--on", "hpc", "--array", "1-12", "--", work),
               home.add("--on", "one", "--array", "101-108", "--", work)]  # fmt: skip
    fake.faults([{"command": "*", "p": 0.15, "seed": 1, "do": "drop-reply", "code": 255, "stderr": "Connection reset"}])
    for _ in range(2):
        # The cluster has the submissions of both sites; the manager may not know it. (For one that never got there the
        # next manager looks for a minute: that is tried in virtual time, tests/sim.)
        home.until(lambda: len({job["name"] for job in fake.jobs()}) >= 2, what="both are submitted")
        home.kill_manager()
        home.rota("up")
        time.sleep(1)
    fake.faults([])
    assert home.settled() == {"COMPLETED": 20}, home.tail()
    assert verdict(home, *batches).executions == 20
    serials = {(job["id"], job["name"]) for job in fake.jobs()}
    assert len({name for _, name in serials}) == len(serials), "a tag was submitted twice"
