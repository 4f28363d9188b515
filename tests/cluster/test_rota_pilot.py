"""A pilot inside a real allocation of Slurm, over nodes that are hosts of their own."""

import os
import signal
from collections import Counter

from process.support_home import ROTA, a_home, cmdline, pids

GANG = """\
#!/bin/sh
[ $(for host in $(cat $ROTA_HOSTFILE); do $ROTA_RSH $host hostname; done | sort -u | wc -l) = 2 ] && echo $1 >>gangs
"""


def submit(slurm, home, *words, options=()):
    """The number of a job on three nodes whose script is a pilot with these words."""
    script = home.work / "script.sh"
    command = f"{ROTA} pilot {' '.join(words)}"
    script.write_text(f"#!/bin/sh\ncd {home.work}\nexport ROTA_HOME={home.path}\n{command}\necho code $?\n")
    nodes = ",".join(slurm.nodes[:3])
    words = ("sbatch", "--parsable", "-w", nodes, "-N3", "--ntasks-per-node=1", "-c2", f"--output={home.work}/%j.out")
    return slurm.run(*words, *options, str(script)).stdout.strip()


def lines(path):
    """The lines of a file, each with how often it is there."""
    return Counter(path.read_text().split()) if path.exists() else Counter()


def code_of(home, job):
    """What the script of a job said at last of its pilot, if it has ended."""
    said = home.work / f"{job}.out"
    return said.read_text().rpartition("code ")[2].strip() if said.exists() and "code " in said.read_text() else None


def test_a_pilot_uses_all_nodes_and_the_next_jobs_do_exactly_what_is_left(hosts_slurm):
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
        (pilot,) = (pid for pid in pids() if f"{ROTA}\0pilot\0-f\0jobs\0" in cmdline(pid))
        os.kill(pilot, signal.SIGUSR1)
        assert home.until(lambda: code_of(home, first), 60, "the first pilot has ended") == "75"
        ends = {row["reason"] for row in home.rows("history") if row["state"] != "COMPLETED"}
        assert ends == {"runner-stopped"}, "each had its grace, and none was lost"

        second = submit(hosts_slurm, home, "--resume")
        home.until(lambda: lines(hosts) == Counter(hosts_slurm.nodes[:3] * 4), 90, "they run again")
        hosts_slurm.cancel(second)
        hosts_slurm.wait_over(second)

        (home.work / "go").touch()
        third = submit(hosts_slurm, home, "--resume")
        assert home.until(lambda: code_of(home, third), 90, "the third pilot has ended") == "0", home.tail()
        assert "39 COMPLETED" in (home.work / f"{third}.out").read_text()
        for path, count in ((done, 30), (gangs, 2), (long, 8)):
            assert lines(path) == Counter(map(str, range(count)))
