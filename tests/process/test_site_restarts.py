"""Nodes whose daemon dies and is back at once: their jobs begin anew under the same ids, and no listing shows it."""

import pytest

from process.support_home import a_home
from process.support_witness import check, command
from rota.testing.fake_cluster import FakeCluster

CONFIG = """\
backoff_first = "1s"
backoff_jitter = "0s"
missing_after = "5s"

[site.hpc]
driver = "{driver}"
mode = "{mode}"
poll = "1s"
poll_least = "1s"
report_within = "1s"
linger = "2s"
most = 8
"""


@pytest.mark.parametrize("mode", ["runners", "direct"])
@pytest.mark.parametrize("driver", ["slurm", "pbs"])
def test_what_a_node_begins_anew_runs_once_more_and_its_first_attempt_is_told(driver, mode, tmp_path):
    with FakeCluster(tmp_path / "cluster", personality=driver, nodes=1, cores=4) as fake, a_home() as home:
        home.env["PATH"] = fake.path
        home.config(CONFIG.format(driver=driver, mode=mode))
        place = home.work / "witness"
        place.mkdir()
        gate = home.gate()
        try:
            batch = home.add("--on", "hpc", "--array", "1-4", "--", command(str(place), gate.wait))
            home.until(lambda: home.counts(batch).get("RUNNING") == 4, what="all run")
            home.until(lambda: all((place / str(number)).exists() for number in range(1, 5)), what="all have begun")
            fake.restart_node("n1")
            gate.open()
            assert home.settled(batch, seconds=100) == {"COMPLETED": 4}, home.tail()
            history = home.rows("history", batch)
            found = check(str(place), home.rows("jobs", batch), history)
            assert not found.wrong, (found, home.tail())
            for number in range(1, 5):
                states = [row["state"] for row in history if row["id"] == f"{batch}.{number}"]
                assert sorted(states) == ["COMPLETED", "LOST"], history
                assert min(row["attempt"] for row in history if row["id"] == f"{batch}.{number}") == 1
        finally:
            home.rota("down", "--kill", code=None)
