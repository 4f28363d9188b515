"""All kinds of jobs in one pilot, inside a real allocation of Slurm over hosts of their own; and nodes that die."""

import json
import sys
from collections import Counter
from pathlib import Path

import pytest

from cluster.private import HERE
from cluster.test_rota_pilot import code_of, lines, submit
from process.support_home import a_home

SHORT, GANGS, ELASTIC = 2000, 20, 12
GANG = "for host in $(cat $ROTA_HOSTFILE); do $ROTA_RSH $host hostname; done | sort -u | wc -l >>gangs"
LIBRARIES = {"openmpi": "libmpi.so.40", "mpich": "libmpich.so.12"}
ARGS = {"openmpi": ["--allow-run-as-root", "--oversubscribe"], "mpich": []}


def all_kinds(work):
    """Lines of 2,000 short jobs with gangs, elastic jobs, ranks and one that looks at its environment among them."""
    jobs = [{"command": ["true"]} for _ in range(SHORT)]
    jobs[100:100] = [{"command": GANG, "nodes": 2} for _ in range(GANGS)]
    jobs[500:500] = [{"command": "echo $ROTA_CORES >>elastic", "cores": "1..2"} for _ in range(ELASTIC)]
    for model, library in LIBRARIES.items():
        program = f"{sys.executable} {HERE}/mpi_hosts.py {library} >>{model}"
        jobs.append({"command": program, "cores": 5, "span": "pack", "model": model, "mpirun_args": ARGS[model]})
    jobs.append({"command": "hostname >>steps", "cores": 5, "span": "pack", "model": "srunmpi"})
    jobs.append({"command": f"env >{work}/env", "nodes": 2, "cores": "1..", "env_style": ["slurm", "qcg"]})
    jobs.append({"command": "echo $ROTA_VARIANT $ROTA_CORES >>variant", "gpus": 1, "variants": ["gpus=0,cores=2"]})
    return "".join(f"{json.dumps(job)}\n" for job in jobs), len(jobs)


def test_short_jobs_gangs_elastic_jobs_and_ranks_in_one_allocation(hosts_slurm):
    nodes = hosts_slurm.nodes[:3]
    with a_home() as home:
        text, count = all_kinds(home.work)
        (home.work / "jobs").write_text(text)
        job = submit(hosts_slurm, home, "--policy", "qcg", "-f", "jobs")
        code = home.until(lambda: code_of(home, job), 400, "the pilot has ended")
        said = (home.work / f"{job}.out").read_text()
        assert code == "0", said + home.tail()
        assert f"{count:,} COMPLETED" in said
        assert lines(home.work / "gangs") == Counter({"2": GANGS})
        assert set(lines(home.work / "elastic")) <= {"1", "2"} and lines(home.work / "elastic").total() == ELASTIC
        for model in LIBRARIES:
            (row,) = [line.split() for line in (home.work / model).read_text().splitlines() if line]
            size, total, hosts = row
            assert (size, total) == ("5", "10"), "ranks 0 to 4"
            assert sorted(Counter(hosts.split(",")).values()) == [1, 2, 2] and set(hosts.split(",")) <= set(nodes)
        steps = lines(home.work / "steps")
        assert sorted(steps.values()) == [1, 2, 2] and set(steps) <= set(nodes), "ranks that are a step of Slurm"
        assert (home.work / "variant").read_text() == "1 2\n", "there is no gpu"
        env = dict(line.split("=", 1) for line in (home.work / "env").read_text().splitlines() if "=" in line)
        assert env["SLURM_NNODES"] == env["QCG_PM_NNODES"] == "2"
        assert env["SLURM_NODELIST"] == env["QCG_PM_NODELIST"] == env["ROTA_NODE_LIST"]
        assert env["SLURM_TASKS_PER_NODE"] == env["QCG_PM_TASKS_PER_NODE"] == env["ROTA_CORES_PER_NODE"]
        assert "SLURM_JOB_ID" not in env and "SLURM_SUBMIT_DIR" not in env
        names = hosts_slurm.run("scontrol", "show", "hostnames", env["SLURM_JOB_NODELIST"]).stdout.split()
        assert names == env["ROTA_NODE_LIST"].split(",")


@pytest.mark.slow
def test_a_node_that_dies_does_not_end_the_pilot(hosts_slurm):
    dead = hosts_slurm.nodes[2]
    with a_home() as home:
        (Path(home.path) / "config.toml").write_text('missing_after = "10s"\nstart_by = "5s"\ntouch = "2s"\n')
        wait = f"hostname >>began; until [ -e {home.work}/go ]; do sleep 0.3; done; hostname >>done"
        (home.work / "jobs").write_text("".join(f"{wait} # {n}\n" for n in range(9)))
        first = submit(hosts_slurm, home, "-f", "jobs", options=["--no-kill"])  # or Slurm ends all of the job
        home.until(lambda: lines(home.work / "began").total() == 6, 120, "two run on each node")
        hosts_slurm.kill_node(dead)
        said = home.work / f"{first}.out"
        home.until(lambda: f"{dead} has not been heard of" in said.read_text(), 90, "the pilot says so")
        (home.work / "go").touch()
        home.until(lambda: lines(home.work / "done").total() == 7, 90, "the others have done all but what ran there")
        assert dead not in lines(home.work / "done")
        assert home.until(lambda: code_of(home, first), 240, "it ends, since nobody can say more") == "75"
        assert f"2 jobs ran on {dead}" in said.read_text() and "2 jobs left" in said.read_text()
        hosts_slurm.start_node(dead)
        hosts_slurm.wait_over(first)
        hosts_slurm.wait_nodes("idle", node=dead, seconds=120)
        second = submit(hosts_slurm, home, "--resume")
        assert home.until(lambda: code_of(home, second), 180, "the rest is done") == "0", home.tail()
        assert lines(home.work / "done").total() == 9
