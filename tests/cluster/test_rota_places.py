"""Which queue and which site work goes to, on real clusters: where it fits, where it is expected to start soonest."""

import signal

import pytest

from cluster.rota_home import a_rota, witness
from process.support_home import a_home
from process.support_witness import check, command

TWO_SITES = """\
listen = "{listen}:0"
"""
SITE = """
[site.{name}]
driver = "slurm"
via = ["env", "SLURM_CONF={conf}"]
poll = "1s"
poll_least = "1s"
linger = "3s"
most = 8
"""


@pytest.fixture
def home(hosts_slurm):
    """A rota beside a Slurm with a short default partition and a long one."""
    with a_rota(hosts_slurm, "slurm", 16, listen=f"{hosts_slurm.hosts.own_address}:0") as made:
        yield made


@pytest.mark.parametrize("site", ["hpc", "one"])
def test_jobs_go_to_the_partition_where_they_fit(hosts_slurm, home, site):
    # One after the other: a runner that came for the long ones takes short ones too.
    queues = {}
    for time in ("5m", "2h"):
        batch = home.add("--on", site, "--array", "1-3", "--time", time, "--", "echo $SLURM_JOB_PARTITION")
        assert home.settled(batch) == {"COMPLETED": 3}
        queues[time] = {home.rota("log", f"{batch}.{n}").stdout.strip() for n in (1, 2, 3)}
    assert queues == {"5m": {"short"}, "2h": {"main"}}
    refused = home.rota("add", "--on", site, "--time", "20d", "--", "true", code=None)
    assert refused.returncode == 2
    assert f"the queue main of {site} gives 10d at most, 20d are asked for" in refused.stderr


@pytest.fixture
def two_sites(slurm, hosts_slurm):
    """A rota with two sites: the first cluster is `a`, the other `b`."""
    with a_home() as made:
        made.env |= {"PATH": slurm.environment["PATH"]}
        sites = [("a", slurm), ("b", hosts_slurm)]
        text = TWO_SITES.format(listen=hosts_slurm.hosts.own_address)
        made.config(text + "".join(SITE.format(name=name, conf=c.path("slurm.conf")) for name, c in sites))
        try:
            yield made
        finally:
            made.rota("down", code=None)


def used(home, batch):
    """How many jobs of a batch ran at which site."""
    rows = [row["site"] for row in home.rows("jobs", batch)]
    return {name: rows.count(name) for name in set(rows)}


def test_two_sites_share_work_and_one_takes_all_when_the_other_is_down(slurm, hosts_slurm, two_sites):
    home = two_sites
    batch = home.add("--memory", "200M", "--array", "1-200", "--", command(witness(home), "sleep 0.5"))
    assert home.settled(batch, seconds=400) == {"COMPLETED": 200}
    shared = used(home, batch)
    assert set(shared) == {"a", "b"}, shared
    hosts_slurm.stop_controller(signal.SIGKILL)
    try:
        more = home.add("--memory", "200M", "--array", "201-400", "--", command(witness(home), "sleep 0.5"))
        assert home.settled(more, seconds=400) == {"COMPLETED": 200}
    finally:
        hosts_slurm.start_controller()
    found = check(witness(home), home.rows("jobs", batch, more), home.rows("history", batch, more))
    assert not found.wrong and found.executions == 400, found
