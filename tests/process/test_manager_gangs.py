"""Jobs on several nodes from end to end: a real manager, a fake Slurm, supervised runners, ranks by `rota rsh`."""

import os
import signal

from process.support_home import a_home
from rota.testing.fake_cluster import FakeCluster

CONFIG = """\
[site.hpc]
driver = "slurm"
mode = "runners"
poll = "1s"
poll_least = "1s"
linger = "2s"
most = 2
"""


def test_a_job_runs_on_two_nodes_and_all_of_it_is_given_back(tmp_path):
    with (
        FakeCluster(tmp_path / "cluster", personality="slurm", nodes=3, cores=4, memory_mb=4000) as fake,
        a_home() as home,
    ):
        home.env["PATH"] = fake.path
        home.config(CONFIG)
        try:
            script = 'echo root; for host in $(tail -n +2 "$ROTA_HOSTFILE"); do "$ROTA_RSH" $host echo rank; done'
            home.rota("add", "--on", "hpc", "--nodes", "2", "-t", "5m", "--name", "pair", "--", "sh", "-c", script)
            home.settled("@pair")
            job = home.job("@pair")
            assert job["state"] == "COMPLETED", home.rota("explain", job["id"], code=None).stdout
            assert home.rota("log", job["id"]).stdout.split() == ["root", "rank"]
            home.rota("add", "--on", "hpc", "--nodes", "2", "-t", "5m", "--name", "next", "--", "true")
            home.settled("@next")
            assert home.job("@next")["state"] == "COMPLETED"
        finally:
            home.rota("down", "--kill", code=None)


def test_a_killed_runner_is_replaced_and_its_gang_runs_again(tmp_path):
    with (
        FakeCluster(tmp_path / "cluster", personality="slurm", nodes=2, cores=4, memory_mb=4000) as fake,
        a_home() as home,
    ):
        home.env["PATH"] = fake.path
        home.config(CONFIG)
        try:
            wait = 'if [ "$ROTA_ATTEMPT" = 1 ]; then sleep 1000; fi; '
            script = wait + 'for host in $(cat "$ROTA_HOSTFILE"); do echo node; done'
            home.rota("add", "--on", "hpc", "--nodes", "2", "-t", "5m", "--name", "pair", "--", "sh", "-c", script)
            home.until(lambda: home.job("@pair")["state"] == "RUNNING")
            hosts = home.job("@pair")["host"].split(",")
            assert len(hosts) == 2
            runners = {row["host"]: row for row in home.json("runners")["runners"] if row["state"] == "SERVING"}
            os.kill(runners[hosts[1]]["pid"], signal.SIGKILL)
            home.settled("@pair")
            job = home.job("@pair")
            assert (job["state"], job["attempt"]) == ("COMPLETED", 2)
            assert home.rota("log", job["id"]).stdout.split() == ["node", "node"]
            first = home.rota("history", job["id"]).stdout
            assert "LOST" in first
            explained = home.rota("explain", job["id"]).stdout
            assert f"it lost its part on {hosts[1]}" in explained, explained
        finally:
            home.rota("down", "--kill", code=None)


def test_a_gang_outlives_its_manager_and_runs_once(tmp_path):
    with (
        FakeCluster(tmp_path / "cluster", personality="slurm", nodes=2, cores=4, memory_mb=4000) as fake,
        a_home() as home,
    ):
        home.env["PATH"] = fake.path
        home.config(CONFIG)
        gate = home.gate()
        try:
            rank = f'"$ROTA_RSH" $(tail -n 1 "$ROTA_HOSTFILE") "{gate.wait}; echo rank"'
            home.rota("add", "--on", "hpc", "--nodes", "2", "-t", "5m", "--name", "pair", "--", "sh", "-c", rank)
            home.until(lambda: home.job("@pair")["state"] == "RUNNING")
            home.kill_manager()
            home.rota("up")
            gate.open()
            home.settled("@pair")
            job = home.job("@pair")
            assert (job["state"], job["attempt"]) == ("COMPLETED", 1)
            assert home.rota("log", job["id"]).stdout.split() == ["rank"]
            home.until(lambda: not any(row["jobs"] for row in home.json("runners")["runners"]), what="parts given back")
        finally:
            home.rota("down", "--kill", code=None)
