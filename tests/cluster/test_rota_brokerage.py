"""Two real clusters: a batch is split by weight, one is stopped in the middle, what had not started moves."""

import pytest

from cluster.private import wait_for
from cluster.rota_home import allocations, gated, open_gate, witness
from process.support_home import a_home
from process.support_witness import check, command

TOP = """\
listen = "{listen}:0"
rebroker_after = "40s"
"""
SITE = """
[site.{name}]
driver = "slurm"
via = ["env", "SLURM_CONF={conf}"]
mode = "direct"
poll = "1s"
poll_least = "1s"
report_within = "3s"
most = 60
cost = {cost}
"""


@pytest.fixture
def two_sites(slurm, hosts_slurm):
    """A rota with two sites: at `b` a core costs nothing, at `a` so much that it is half as good."""
    with a_home() as made:
        made.env |= {"PATH": slurm.environment["PATH"]}
        made.config(
            TOP.format(listen=hosts_slurm.hosts.own_address)
            + SITE.format(name="a", conf=slurm.path("slurm.conf"), cost=1.0)
            + SITE.format(name="b", conf=hosts_slurm.path("slurm.conf"), cost=0.0)
        )
        try:
            yield made
        finally:
            made.rota("down", "--kill", code=None)
            slurm.cancel_all()
            hosts_slurm.cancel_all()


def at(home, site):
    """What was asked of a site and is not over."""
    return list(allocations(home, site).values())


def partitions(cluster, state):
    for name in {line.strip() for line in cluster.run("sinfo", "-h", "-o", "%R").stdout.splitlines()}:
        cluster.run("scontrol", "update", f"PartitionName={name}", f"State={state}")


def test_a_batch_is_split_and_what_a_stopped_site_does_not_start_moves(slurm, hosts_slurm, two_sites):
    home = two_sites
    for name in ("a", "b"):  # both have said by then what they offer
        assert home.settled(home.add("--on", name, "--", "true"), seconds=200) == {"COMPLETED": 1}
    work = command(witness(home), gated(home))
    batch = home.add("--memory", "300M", "--array", "1-30", "--", work)

    def parts():
        rows = at(home, "a"), at(home, "b")
        return rows if sum(map(len, rows)) == 30 and all(row["native_id"] for row in (*rows[0], *rows[1])) else None

    of_a, of_b = map(len, wait_for("both sites to have their part", parts, 200, 0.5))
    assert 5 <= of_a < of_b, "b is twice as good, unless it has just kept one waiting"

    def stuck():
        """What waits at b, once nothing more starts there."""
        waits = len(hosts_slurm.run("squeue", "-h", "-r", "-t", "PD", "-o", "%i").stdout.split())
        states = [row["state"] for row in at(home, "b")]
        return (waits, states.count("RUNNING")) if waits and waits == states.count("PENDING") else None

    partitions(hosts_slurm, "DOWN")
    try:
        waits, run = wait_for("it to be known what had not started", stuck, 200, 0.5)
        open_gate(home)
        ended = home.settled(batch, seconds=400)
        assert ended == {"COMPLETED": 30}, [row for row in home.rows("history", batch) if "COMPLETED" not in str(row)]
    finally:
        partitions(hosts_slurm, "UP")
    rows = home.rows("jobs", batch)
    sites = [row["site"] for row in rows]
    assert (sites.count("a"), sites.count("b")) == (30 - run, run), (of_a, of_b, waits, run, sites)
    found = check(witness(home), rows, home.rows("history", batch))
    assert not found.wrong and found.executions == 30, found
    moved = [row["id"] for row in home.rows("history", batch) if "brokered again: waited" in str(row)]
    assert len(set(moved)) >= waits, "why it moved is told"
    assert max(map(moved.count, moved)) == 1, "where it was not started it is not sent again"
