"""A farm of hosts by ssh: real sshd on pretend hosts, each with a network and a disk of its own."""

import signal

import pytest

from process.support_home import a_home

FARM = """\
[site.farm]
driver = "ssh"
hosts = [{hosts}]
ssh_options = ["-F", "{config}"]
directory = "{disk}/rota"
poll = "1s"
linger = "120s"
{more}
"""


def configure(home, farm, names=None, more="", first=""):
    hosts = ", ".join(f'"{name} cores=2"' for name in names or farm.names)
    home.config(first + FARM.format(hosts=hosts, config=farm.config, disk=farm.disk, more=more))


@pytest.fixture
def home(farm):
    with a_home() as made:
        configure(made, farm)
        try:
            yield made
        finally:
            made.rota("down", "--kill", code=None)


def hosts_of(home, batch):
    return {row["id"]: row["host"] for row in home.rows("jobs", batch)}


def waits_at(farm, name):
    """A command that waits until a file is on its host's own disk."""
    return f"until [ -e {farm.disk}/{name} ]; do sleep 0.1; done"


def queue(home, name):
    return next(row for row in home.json("sites", "farm")["sites"][0]["queues"] if row["name"] == name)


def test_jobs_run_on_hosts_that_share_nothing_and_their_output_is_read(farm, home):
    for name in farm.names:
        farm.on(name, f"echo disk-of-{name} > {farm.disk}/mark")
    batch = home.add("--array", "1-6", "--", f"cat {farm.disk}/mark; {waits_at(farm, 'go')}")
    home.until(lambda: home.counts(batch).get("RUNNING") == 6, what="all hosts are in use, with two jobs each")
    found = hosts_of(home, batch)
    assert sorted(found.values()) == sorted(farm.names * 2)
    for name in farm.names:
        farm.on(name, f"touch {farm.disk}/go")
    assert home.settled(batch) == {"COMPLETED": 6}
    for job, host in found.items():
        assert home.rota("log", job).stdout == f"disk-of-{host}\n"
    assert {row["up"] for row in home.json("sites", "farm")["sites"][0]["queues"]} == {True}
    assert len(home.json("runners")["runners"]) == 3  # one for each host, for all its jobs


def test_a_host_that_is_not_there_is_named_and_used_once_it_is_back(farm, home):
    lost, *others = farm.names
    farm.cut(lost)
    try:
        batch = home.add("--array", "1-4", "--", waits_at(farm, "there"))
        home.until(lambda: home.counts(batch).get("RUNNING") == 4, what="the others are used")
        assert set(hosts_of(home, batch).values()) == set(others)
        wanted = home.add("--partition", lost, "--on", "farm", "--", "hostname")
        row = home.until(lambda: not queue(home, lost)["up"] and queue(home, lost))
        assert row["nodes"] == 1
        (said,) = [v for v in home.json("explain", f"{wanted}.1")["verdicts"] if v["location"] == f"farm:{lost}"]
        # It was not there, or a connection that it had was lost: both name it.
        assert said["code"] == "down" and lost in said["detail"]
        assert any(lost in note for note in home.json("sites", "farm")["sites"][0]["notes"])
    finally:
        farm.heal(lost)
    assert home.settled(wanted) == {"COMPLETED": 1}
    assert home.rota("log", f"{wanted}.1").stdout.strip() == lost
    for name in others:
        farm.on(name, f"touch {farm.disk}/there")
    assert home.settled(batch) == {"COMPLETED": 4}


def test_what_ran_on_a_host_that_crashed_runs_elsewhere_and_the_host_is_used_again(farm, home):
    batch = home.add("--array", "1-6", "--", waits_at(farm, "after"))
    home.until(lambda: home.counts(batch).get("RUNNING") == 6)
    crashed = farm.names[1]
    farm.crash(crashed)
    farm.boot(crashed)
    for name in farm.names:
        farm.wait(name)
        farm.on(name, f"touch {farm.disk}/after")
    assert home.settled(batch) == {"COMPLETED": 6}
    rows = home.rows("history", batch)
    lost = [row for row in rows if row["state"] == "LOST"]
    assert len(lost) == 2 and {row["host"] for row in lost} == {crashed}
    assert all(crashed in row["note"] for row in lost), lost
    again = home.add("--on", "farm", "--partition", crashed, "--", "hostname")
    assert home.settled(again) == {"COMPLETED": 1}


def test_runners_go_on_while_the_manager_is_away_and_are_found_again(farm, home):
    batch = home.add("--array", "1-3", "--", f"echo ran >> {farm.disk}/runs; {waits_at(farm, 'back')}")
    home.until(lambda: home.counts(batch).get("RUNNING") == 3)
    home.kill_manager(signal.SIGKILL)
    home.rota("up")
    for name in farm.names:
        farm.on(name, f"touch {farm.disk}/back")
    assert home.settled(batch) == {"COMPLETED": 3}
    runs = "".join(farm.on(name, f"cat {farm.disk}/runs", check=False).stdout for name in farm.names)
    assert runs == "ran\n" * 3
    assert {row["attempt"] for row in home.rows("jobs", batch)} == {1}


def test_a_runner_that_is_killed_is_seen_and_leaves_nothing_running(farm, home):
    batch = home.add("--", f"sleep 4711 & {waits_at(farm, 'never')}")
    home.until(lambda: home.counts(batch).get("RUNNING") == 1)
    (host,) = hosts_of(home, batch).values()
    (runner,) = home.json("runners")["runners"]
    farm.on(host, f"kill -9 {runner['pid']}")
    home.until(lambda: home.job(f"{batch}.1")["attempt"] == 2, what="it is started again")
    home.rota("kill", batch)
    home.settled(batch)
    left = [pid for name in farm.names for pid in farm.processes(name) if farm.command(pid).startswith("sleep 4711")]
    assert not left
