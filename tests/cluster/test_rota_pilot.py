"""A pilot inside a real allocation of Slurm, over nodes that are hosts of their own."""

from collections import Counter

from process.support_home import ROTA, a_home

GANG = """\
#!/bin/sh
[ $(for host in $(cat $ROTA_HOSTFILE); do $ROTA_RSH $host hostname; done | sort -u | wc -l) = 2 ] && echo $1 >>gangs
"""


def submit(slurm, home, *words):
    """The number of a job on three nodes whose script is a pilot with these words."""
    script = home.work / "script.sh"
    command = f"{ROTA} pilot {' '.join(words)}"
    script.write_text(f"#!/bin/sh\ncd {home.work}\nexport ROTA_HOME={home.path}\n{command}\necho code $?\n")
    nodes = ",".join(slurm.nodes[:3])
    words = ("sbatch", "--parsable", "-w", nodes, "-N3", "--ntasks-per-node=1", "-c2", f"--output={home.work}/%j.out")
    return slurm.run(*words, str(script)).stdout.strip()


def lines(path):
    """The lines of a file, each with how often it is there."""
    return Counter(path.read_text().split()) if path.exists() else Counter()


def test_a_pilot_uses_all_nodes_and_the_next_job_does_exactly_what_a_killed_one_left(hosts_slurm):
    with a_home() as home:
        done, gangs, hosts, long = (home.work / name for name in ("done", "gangs", "hosts", "long"))
        wait = f"hostname >>{hosts}; until [ -e {home.work}/go ]; do sleep 0.3; done; echo {{n}} >>{long}"
        jobs = [f"echo {n} >>{done}" for n in range(30)]
        jobs += [f"{ROTA} add --nodes 2 --array 0-1 -- sh gang {{}} >added"]  # jobs add jobs
        jobs += [wait.format(n=n) for n in range(8)]
        (home.work / "jobs").write_text("\n".join(jobs) + "\n")
        (home.work / "gang").write_text(GANG)

        first = submit(hosts_slurm, home, "-f", "jobs")
        home.until(lambda: len(lines(done)) == 30 and lines(home.work / "added"), 90, "all that can end has")
        home.until(lambda: lines(hosts) == Counter(hosts_slurm.nodes[:3] * 2), 30, "two run on each node")
        hosts_slurm.cancel(first)
        hosts_slurm.wait_over(first)

        (home.work / "go").touch()
        second = submit(hosts_slurm, home, "--resume")
        said = home.work / f"{second}.out"
        home.until(lambda: said.exists() and "code" in said.read_text(), 90, "the second pilot has ended")
        assert "39 COMPLETED" in said.read_text(), said.read_text() + home.tail()
        assert "code 0" in said.read_text()
        for path, count in ((done, 30), (gangs, 2), (long, 8)):
            assert lines(path) == Counter(map(str, range(count)))
