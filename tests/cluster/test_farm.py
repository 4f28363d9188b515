"""A farm of hosts by ssh: real sshd on pretend hosts, each with a network and a disk of its own."""

import os
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


def linger(home, seconds, names, farm, more=""):
    hosts = ", ".join(f'"{name} cores=2"' for name in names)
    text = FARM.format(hosts=hosts, config=farm.config, disk=farm.disk, more=more)
    home.config(text.replace('linger = "120s"', f'linger = "{seconds}s"'))


def live(home):
    return [row for row in home.json("allocations", "--live")["allocations"] if row["site"] == "farm"]


def test_19_a_host_that_is_taken_out_while_a_job_runs_there(farm, home):
    *others, taken = farm.names
    linger(home, 1, farm.names, farm)
    batch = home.add("--on", "farm", "--partition", taken, "--", f"hostname; {waits_at(farm, 'out')}")
    home.until(lambda: home.counts(batch).get("RUNNING") == 1)
    linger(home, 1, others, farm)
    assert home.json("reload")["changed"] == ["farm"]
    assert {row["name"] for row in home.json("sites", "farm")["sites"][0]["queues"]} == set(others)
    home.kill_manager(signal.SIGKILL)  # the next one has never heard of the host
    home.rota("up")
    farm.on(taken, f"touch {farm.disk}/out")
    assert home.settled(batch) == {"COMPLETED": 1} and home.job(f"{batch}.1")["attempt"] == 1
    home.until(lambda: not live(home), what="its runner has left, and is known to be over")
    assert home.rota("log", f"{batch}.1").stdout == f"{taken}\n"
    assert not farm.on(taken, f"find {farm.disk}/rota -name token").stdout, "nobody can speak in its name any more"
    refused = home.rota("add", "--on", "farm", "--partition", taken, "--", "true", code=None)
    assert refused.returncode and taken in refused.stderr
    again = home.add("--array", "1-4", "--", "hostname")
    assert home.settled(again) == {"COMPLETED": 4} and set(hosts_of(home, again).values()) <= set(others)
    home.config("[site.local]\n")
    home.rota("reload")
    home.until(lambda: [row["name"] for row in home.json("sites")["sites"]] == ["local"], what="the site is gone")
    said = home.rota("log", f"{batch}.1", code=None).stderr
    assert f"its output cannot be read: it is on {taken}" in said and "on no host of a site" in said


def test_19_a_runner_on_a_host_that_was_taken_out_can_be_ended(farm, home):
    *others, taken = farm.names
    batch = home.add("--on", "farm", "--partition", taken, "--", "sleep 4712")
    home.until(lambda: home.counts(batch).get("RUNNING") == 1)
    configure(home, farm, others)
    home.rota("reload")
    home.rota("down", "--kill")

    def left():
        lines = [farm.command(pid) for pid in farm.processes(taken)]
        return [line for line in lines if "runner/__main__.py" in line or line.startswith("sleep 4712")]

    home.until(lambda: not left(), what="nothing of it runs there")


def test_19_what_runners_left_on_hosts_goes_with_the_last_of_their_jobs(farm, home):
    linger(home, 1, farm.names, farm)
    words = ("--on", "farm", "--cwd", farm.disk, "--workdir", "unique")
    batches = {name: home.add(*words, "--partition", name, "--", "echo of $(hostname); touch x") for name in farm.names}
    for batch in batches.values():
        assert home.settled(batch) == {"COMPLETED": 1}
    home.until(lambda: not live(home), what="all runners have left")

    def lies(name):
        return sorted(farm.on(name, f"ls {farm.disk} {farm.disk}/rota").stdout.split())

    assert all("rota_work" not in lies(name) and len(lies(name)) == 5 for name in farm.names), "output is kept"
    first, *rest = farm.names
    home.rota("prune", batches[first])
    home.until(lambda: len(lies(first)) == 4, what="what its runner left is removed")
    assert home.rota("log", f"{batches[rest[0]]}.1").stdout == f"of {rest[0]}\n", "the others are kept"
    farm.cut(rest[0])
    try:
        home.until(lambda: not queue(home, rest[0])["up"], what="it is seen to be away")
        for name in rest:
            home.rota("prune", batches[name])
        home.until(lambda: len(lies(rest[1])) == 4)
    finally:
        farm.heal(rest[0])
    home.until(lambda: queue(home, rest[0])["up"], what="it is back")
    last = home.add("--", "true")
    assert home.settled(last) == {"COMPLETED": 1}
    home.until(lambda: not live(home))
    home.rota("prune", last)
    home.until(lambda: all(len(lies(name)) == 4 for name in farm.names), what="also where nobody was there")
    home.until(lambda: not os.listdir(os.path.join(home.path, "sites", "farm")))
