"""What a person is told of clusters of the qsub family, with real commands and processes on fake ones."""

import shutil

import pytest

from process.support_home import a_home
from rota.testing.fake_cluster import FakeCluster

CONFIG = """\
[site.hpc]
driver = "{driver}"
poll = "1s"
poll_least = "1s"

[site.one]
driver = "{driver}"
mode = "direct"
poll = "1s"
poll_least = "1s"
report_within = "1s"
"""


@pytest.fixture(params=["pbs", "torque", "sge"])
def beside(request, tmp_path):
    """(a home with one site of runners and one of direct jobs, their cluster)."""
    with (
        FakeCluster(tmp_path / "cluster", personality=request.param, nodes=2, cores=4, kill_wait_s=1.0) as fake,
        a_home() as home,
    ):
        home.env["PATH"] = fake.path
        home.config(CONFIG.format(driver=request.param))
        try:
            yield home, fake
        finally:
            home.rota("down", "--kill", code=None)


def test_both_modes_and_what_is_told_of_them(beside):
    home, _ = beside
    for site in ("hpc", "one"):
        assert "the node reaches " in home.rota("doctor", site).stdout
    batches = [home.add("--on", site, "--array", "1-3", "--", "exit $(( ROTA_INDEX == 2 ))") for site in ("hpc", "one")]
    assert home.settled(*batches) == {"COMPLETED": 4, "FAILED": 2}, home.tail()
    for batch in batches:
        assert "exit code 1" in home.rota("explain", f"{batch}.2").stdout
    assert {row["site"] for row in home.json("allocations")["allocations"]} == {"hpc", "one"}


def test_a_node_without_python_says_so(beside, tmp_path):
    home, fake = beside
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("sh", "bash", "uname", "sleep", "cat", "env", "id", "true"):
        if (path := shutil.which(name)) is not None:
            (tools / name).symlink_to(path)
    home.env["PATH"] = f"{fake.bin}:{tools}"
    home.add("--on", "hpc", "--", "true")

    def told():
        return [
            row["reason"]
            for row in home.json("allocations")["allocations"]
            if "set `python` of this site" in (row.get("reason") or "")
        ]

    home.until(told, what="the allocation says that there is no Python")


@pytest.mark.parametrize("beside", ["pbs", "torque"], indirect=True)
def test_a_direct_job_that_is_killed_may_clean_up(beside, tmp_path):
    """On PBS there is a shell above the script that dies of TERM, and with it everything at once."""
    home, _ = beside
    here, cleaned = tmp_path / "here", tmp_path / "cleaned"
    work = f"trap 'sleep 1; touch {cleaned}; exit 3' TERM; touch {here}; while :; do sleep 0.1; done"
    batch = home.add("--on", "one", "--", work)
    home.until(here.exists, 60, "the job runs")
    home.rota("kill", batch)
    home.until(lambda: home.counts(batch) == {"ABORTED": 1}, 60, "the job is killed")
    assert cleaned.exists()
