"""Nodes of a pilot that are away, die, lose their runner, or are lent: in real allocations of Slurm, and by ssh."""

import json
import os
import signal
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from cluster.rota_home import attempts
from cluster.test_rota_pilot import code_of, lines, submit
from process.support_home import ROTA, a_home

QUICK = 'missing_after = "10s"\nstart_by = "5s"\ntouch = "2s"\n'


def gated(work, name, file="done"):
    """Says where it began, waits, and says where it ended."""
    return f"hostname >>{name}; until [ -e {work}/go ]; do sleep 0.3; done; hostname >>{file}"


def runner_on(home, host):
    (row,) = (row for row in home.ask("runners")["runners"] if row["host"] == host and row["state"] == "SERVING")
    return row


def test_a_killed_runner_is_one_loss_of_each_of_its_jobs_and_of_a_gang_as_a_whole(hosts_slurm):
    nodes = hosts_slurm.nodes[:3]
    with a_home() as home:
        (Path(home.path) / "config.toml").write_text(QUICK)
        gang = {"command": gated(home.work, "gangs", "gang-done"), "nodes": 3, "cores": 1}
        (home.work / "jobs").write_text(f"{json.dumps(gang)}\n")
        job = submit(hosts_slurm, home, "-f", "jobs")
        home.until(lambda: lines(home.work / "gangs").total() == 1, 120, "the gang runs")
        home.add("--array", "1-3", "--", gated(home.work, "singles"))
        home.until(lambda: lines(home.work / "singles") == Counter(nodes), 120, "one beside the gang on each node")
        (root,) = lines(home.work / "gangs")
        dead = next(node for node in nodes if node != root)
        before = runner_on(home, dead)
        os.kill(before["pid"], signal.SIGKILL)
        home.until(lambda: lines(home.work / "singles").total() == 4, 120, "what ran there runs again")
        home.until(lambda: lines(home.work / "gangs").total() == 2, 120, "and so does the gang, as a whole")
        assert runner_on(home, dead)["pid"] != before["pid"]
        (home.work / "go").touch()
        assert home.until(lambda: code_of(home, job), 120, "the pilot has ended") == "0", home.tail()
        assert lines(home.work / "gang-done").total() == 1 and lines(home.work / "done").total() == 3
        states = sorted([state for state, _ in attempts(home, f"2.{index}")] for index in (1, 2, 3))
        assert states == [["COMPLETED"], ["COMPLETED"], ["LOST", "COMPLETED"]], "the others went on undisturbed"
        assert [state for state, _ in attempts(home, "1.1")] == ["LOST", "COMPLETED"]


def test_an_allocation_of_several_nodes_is_lent_and_taken_back(hosts_slurm):
    nodes = hosts_slurm.nodes[:3]
    with a_home() as home:
        home.env |= hosts_slurm.environment | {"ROTA_HOME": home.path}
        home.config(f'listen = "{hosts_slurm.hosts.own_address}:0"\n[site.local]\ncores = 1\n')
        home.rota("up")
        job = submit(hosts_slurm, home, "--join")
        name = f"lent-{job}"
        home.until(lambda: name in {row["name"] for row in home.json("sites")["sites"]}, 120, "the manager has it")
        spread = home.add("--on", name, "--array", "1-6", "--", gated(home.work, "began"))
        home.until(lambda: lines(home.work / "began") == Counter(nodes * 2), 120, "all cores of all nodes are used")
        (home.work / "go").touch()
        home.until(lambda: home.counts(spread) == {"COMPLETED": 6}, 120, "they are done")
        ask = "for host in $(cat $ROTA_HOSTFILE); do $ROTA_RSH $host hostname; done >gang"
        gang = home.add("--on", name, "--nodes", "3", "--", ask)
        home.until(lambda: home.counts(gang) == {"COMPLETED": 1}, 120, "a gang too")
        assert lines(home.work / "gang") == Counter(nodes)
        (home.work / "go").unlink()
        rest = home.add("--on", name, "--array", "1-2", "--", gated(home.work, "rest"))
        home.until(lambda: lines(home.work / "rest").total() == 2, 120, "two run there")
        hosts_slurm.cancel(job)  # all of it is killed at once, and nobody can say so but Slurm
        hosts_slurm.wait_over(job)
        again = submit(hosts_slurm, home, "--join")
        home.until(lambda: f"lent-{again}" in {row["name"] for row in home.json("sites")["sites"]}, 120, "another")
        home.rota("modify", rest, "--on", f"lent-{again}")
        (home.work / "go").touch()
        home.until(lambda: home.counts(rest) == {"COMPLETED": 2}, 180, "what had not ended runs in the next one")
        home.rota("down", "--kill")


@pytest.fixture
def by_ssh(farm):
    """A home whose `ssh` reaches the hosts of the farm, and who they are."""
    with a_home() as home:
        directory = home.work / "bin"
        directory.mkdir()
        (directory / "ssh").write_text(f'#!/bin/sh\nexec /usr/bin/ssh -F {farm.config} "$@"\n')
        (directory / "ssh").chmod(0o755)
        home.env["PATH"] = f"{directory}:{home.env['PATH']}"
        yield home


def test_hosts_that_refuse_and_hosts_that_die_do_not_stop_the_others(farm, by_ssh):
    home, (away, dies, stays) = by_ssh, farm.names
    (Path(home.path) / "config.toml").write_text(f'listen = "{farm.hosts.own_address}:0"\n{QUICK}')
    farm.crash(away)
    (home.work / "jobs").write_text("".join(f"{gated(home.work, 'began')} # {n}\n" for n in range(6)))
    hosts = ",".join(f"{name}:1" for name in farm.names)
    with open(home.work / "said", "w") as said:
        pilot = subprocess.Popen(
            [ROTA, "pilot", "--hosts", hosts, "-f", "jobs"], cwd=home.work, env=home.env, stdin=subprocess.DEVNULL,
            stdout=said, stderr=said,
        )  # fmt: skip
    try:
        told = (home.work / "said").read_text
        home.until(lambda: lines(home.work / "began") == Counter([dies, stays]), 120, "the two that answer are used")
        assert f"{away}: cannot be reached by ssh" in told() and "the others go on" in told()
        assert "2 nodes, 2 cores" in told()
        farm.crash(dies)
        home.until(lambda: f"{dies} has not been heard of" in told(), 120, "the pilot says so")
        (home.work / "go").touch()
        home.until(lambda: lines(home.work / "done") == Counter({stays: 5}), 120, "the other does the rest")
        pilot.send_signal(signal.SIGTERM)
        assert pilot.wait(150) == 75
        assert "1 job left" in told()
    finally:
        pilot.kill()
        pilot.wait()
        for name in (away, dies):
            farm.boot(name)
            farm.wait(name)
    done = home.rota("pilot", "--resume", "--hosts", hosts)
    assert "6 COMPLETED" in done.stdout
    assert lines(home.work / "done").total() == 6
    refused = home.rota(
        "pilot", "--home", f"{home.path}/other", "--hosts", "no-such-host.invalid:1", "--", "true", code=2
    )
    assert "Could not resolve" in refused.stderr
