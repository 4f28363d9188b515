"""Real managers on databases that older versions made: they show what is there, and go on with it."""

from collections import Counter
from pathlib import Path

import pytest

from old_databases import OLD, unpack
from process.support_home import Home, home
from rota.testing.fake_cluster import FakeCluster

__all__ = ["home"]

ELSEWHERE = """\
backoff_first = "20000d"
backoff_most = "20000d"

[site.elsewhere]
driver = "local"
"""
"""None of the sites that the database knows: nobody speaks for what ran there. Back-offs as they were."""

HERE = """\
backoff_first = "1s"
backoff_jitter = "0s"

[site.local]
cores = 8
memory = "4G"

[site.lost]
driver = "local"
cores = 8
memory = "4G"

[site.stuck]
driver = "local"
cores = 8
memory = "4G"
"""
CLUSTER = """\
[site.one]
driver = "slurm"
mode = "direct"
poll = "1s"
poll_least = "1s"
vanished_after = "1s"
"""

STAY = {
    "early-held": 3, "breaker": 7, "held": 4, "missing": 1, "stuck": 1, "starting": 1,  # held
    "direct-running": 3, "direct-queued": 3, "direct-submitting": 1,  # nobody speaks for their cluster
    "not-before": 2, "shut": 2, "unknown-name": 1,  # not yet
}  # fmt: skip
FAIL = {"not-found": 1, "breaker": 2, "removed-on": 1, "direct-failed": 2, "lines": 1, "modified": 4}
SETTLED = ("COMPLETED", "FAILED", "ABORTED", "OMITTED")


def open_jobs(home: Home) -> dict[str, int]:
    """How many jobs of each batch are not settled. (Whether a limit of some a day is used up is for the day to say.)"""
    left: Counter[str] = Counter()
    for batch in home.json("status")["batches"]:
        left[batch["name"]] += sum(count for state, count in batch["counts"].items() if state not in SETTLED)
    return {name: count for name, count in left.items() if count and name != "often"}


@pytest.mark.parametrize("old", OLD)
def test_an_old_queue_is_shown_and_runs_to_the_end(home: Home, tmp_path: Path, old: str) -> None:
    expected = unpack(old, Path(home.path))
    home.config(ELSEWHERE)
    home.rota("up", env={"ROTA_DEBUG": "1"})  # it looks at its invariants
    status = home.json("status")
    assert status["counts"] == expected["status"]["counts"]
    same = ("id", "name", "jobs", "counts", "submitted", "after", "not_before", "at_once", "max_failures")
    assert [[row[name] for name in same] for row in status["batches"]] == [
        [row[name] for name in same] for row in expected["status"]["batches"]
    ]
    numbers = {str(row["batch"]): None for row in expected["jobs"] if row["name"] != "large"}
    rows = {row["id"]: row for row in home.rows("jobs", *numbers)}
    for before in expected["jobs"]:
        assert before["name"] == "large" or {name: rows[before["id"]][name] for name in before} == before
    home.rota("down")

    home.config(HERE)
    home.rota("up", env={"ROTA_DEBUG": "1"})
    (large,) = [row["id"] for row in status["batches"] if row["name"] == "large"]
    home.rota("kill", f"{large}.101-70000")
    home.rota("resume", "--all")
    home.until(lambda: open_jobs(home) == STAY, 100, "all has run that can")
    rows = home.json("status")["batches"]
    assert {row["name"]: row["counts"]["FAILED"] for row in rows if "FAILED" in row["counts"]} == FAIL
    assert home.counts(str(large)) == {"COMPLETED": 100, "ABORTED": 70_000 - 100}
    home.rota("down")


@pytest.mark.slow
def test_direct_jobs_of_an_old_queue_are_looked_for_and_started_again(home: Home, tmp_path: Path) -> None:
    unpack("0.1.0/killed", Path(home.path))
    home.config(CLUSTER)
    with FakeCluster(tmp_path / "cluster", personality="slurm", nodes=1, cores=8, memory_mb=8000) as fake:
        home.env["PATH"] = fake.path
        home.rota("up", env={"ROTA_DEBUG": "1"})
        home.rota("hold", ":queued")
        home.rota("release", "@direct-running", "@direct-queued")
        home.rota("resume", "--all")
        # It was told to end the third, and looks for that one longer.
        home.until(lambda: home.counts("@direct-running").get("COMPLETED") == 2, what="what ran has run again")
        home.until(lambda: home.counts("@direct-queued") == {"COMPLETED": 3}, what="what was queued has run")
        home.rota("down")
