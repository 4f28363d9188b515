"""Jobs on several nodes of a real Slurm whose nodes are hosts of their own."""

import os
import signal
import sys

import pytest

from cluster.private import HERE
from cluster.rota_home import a_rota, allocations, attempts, becomes, gated, open_gate, verdict, witnessed

GANG = """\
all=$(for host in $(cat $ROTA_HOSTFILE); do $ROTA_RSH $host 'hostname; sleep 0.3'; done | sort -u | wc -l)
[ $all = $ROTA_NODES ] || { sleep 2; exit 9; }"""
MPI = {
    "openmpi": ("mpirun.openmpi --allow-run-as-root --oversubscribe -np {}", "libmpi.so.40"),
    "mpich": ("mpiexec.hydra -np {}", "libmpich.so.12"),
}


@pytest.fixture
def home(hosts_slurm):
    """A rota of the test's own, that the hosts can reach."""
    listen = f"{hosts_slurm.hosts.own_address}:0"
    with a_rota(hosts_slurm, "slurm", 16, listen=listen) as made:
        yield made


def hosts(row):
    """The hosts of a job, that where its command runs first."""
    return (row["host"] or "").split(",")


def of(home, state):
    """Jobs in a state."""
    return [row for row in home.rows("jobs") if row["state"] == state]


def test_20_gangs_beside_500_single_jobs_while_a_node_and_the_manager_are_killed(hosts_slurm, home):
    single = home.add("--on", "hpc", "--array", "1-500", "--", witnessed(home, "sleep 0.2"))
    gangs = []
    for nodes, first, last in ((2, 1001, 1008), (3, 1011, 1017), (4, 1021, 1025)):
        words = ("--on", "hpc", "--nodes", str(nodes), "--time", "10m", "--array", f"{first}-{last}")
        gangs.append(home.add(*words, "--", witnessed(home, GANG)))
    home.until(lambda: home.counts(*gangs).get("COMPLETED", 0) >= 2, 120, "two gangs have completed")
    home.kill_manager()
    home.rota("up")
    running = home.until(
        lambda: [row for row in of(home, "RUNNING") if int(row["batch"]) >= int(gangs[0]) and len(hosts(row)) > 1],
        120,
        "a gang runs",
    )
    dead = hosts(running[0])[-1]
    hosts_slurm.kill_node(dead)
    hosts_slurm.wait_nodes("down*", node=dead, seconds=150)
    hosts_slurm.start_node(dead)
    settled = home.settled(single, *gangs, seconds=600)
    assert settled == {"COMPLETED": 520}, [row for row in home.rows("history") if row["state"] != "COMPLETED"]
    found = verdict(home, single, *gangs)
    assert found.executions >= 520
    assert {len(hosts(row)) for row in home.rows("jobs", gangs[2])} == {4}


@pytest.mark.parametrize("kind", MPI)
def test_both_mpis_start_on_all_nodes_of_a_gang_without_ssh(hosts_slurm, home, kind):
    start, library = MPI[kind]
    program = f"{sys.executable} {HERE}/mpi_hosts.py {library}"
    batch = home.add("--on", "hpc", "--nodes", "3", "--time", "10m", "--", f"{start.format(3)} {program}")
    assert home.settled(batch, seconds=400) == {"COMPLETED": 1}, home.rota("log", "--both", f"{batch}.1").stderr
    said = home.rota("log", f"{batch}.1").stdout.split()
    assert said[:2] == ["3", "3"]
    assert sorted(said[2].split(",")) == sorted(hosts(home.job(f"{batch}.1")))
    assert len(set(said[2].split(","))) == 3


def test_a_rank_elsewhere_ends_with_its_job(hosts_slurm, home):
    work = home.work / "rank"
    command = f"$ROTA_RSH $(tail -1 $ROTA_HOSTFILE) 'echo $$ >{work}; exec sleep 1000'"
    batch = home.add("--on", "hpc", "--nodes", "2", "--time", "10m", "--", command)
    pid = int(home.until(lambda: work.exists() and work.read_text().strip(), 150, "the rank runs"))
    home.rota("kill", batch)
    assert becomes(home, f"{batch}.1", "ABORTED")
    home.until(lambda: not os.path.exists(f"/proc/{pid}"), 150, "the rank is gone")


def test_a_runner_killed_under_a_gang_is_one_loss_and_all_run_again(hosts_slurm, home):
    command = f"{gated(home)}; {GANG}"
    batch = home.add("--on", "hpc", "--nodes", "3", "--time", "10m", "--", witnessed(home, command))
    job = becomes(home, f"{batch}.1", "RUNNING", seconds=150)
    part = next(row for row in home.ask("runners")["runners"] if row["host"] == hosts(job)[-1])
    os.kill(part["pid"], signal.SIGKILL)
    home.until(lambda: home.job(f"{batch}.1")["attempt"] == 2, 90, "a second attempt")
    open_gate(home)
    assert home.settled(batch, seconds=400) == {"COMPLETED": 1}
    assert [state for state, _ in attempts(home, f"{batch}.1")] == ["LOST", "COMPLETED"]
    verdict(home, batch)


def test_more_nodes_than_any_queue_gives_are_refused(hosts_slurm, home):
    home.add("--on", "hpc", "--", "true")
    home.until(lambda: allocations(home, "hpc"), 150, "the site has said what it has")
    refused = home.rota("add", "--on", "hpc", "--nodes", "40", "--", "true", code=None)
    assert refused.returncode != 0
    assert "the queue main of hpc gives 4 nodes at most, 40 are asked for" in refused.stderr
