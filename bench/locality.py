"""Jobs that go to their files, against jobs that go anywhere: bytes that are moved, and how long all takes.

    python -m bench.locality [--quick]

Five hosts with a real sshd and a disk of their own each (network namespaces: needs root), 100 files of mixed size, each
on one of them, 300 jobs that read one of these each. Once with the policy `random`, once with `data_locality`: the same
files, the same jobs in the same order, a manager of its own for each.
"""

import argparse
import json
import os
import random
import sys
import time
from typing import NamedTuple

from bench import Row
from bench import home as at

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "tests"))

SHARE = 0.10
"""Of the bytes that chance moves, as many at the most."""
SLOWER = 1.05
"""What is taken to be as long: the clock of a busy machine is not better than that."""
LEAST, MOST = 14, 22
"""Binary logarithms of the smallest and the largest file."""
CONFIG = """\
[site.farm]
driver = "ssh"
hosts = [{hosts}]
ssh_options = ["-F", "{config}"]
directory = "{disk}/rota"
poll = "5s"
linger = "10m"
"""


class World(NamedTuple):
    """What is asked: files with size and host, and which of them each job reads."""

    files: list[tuple[str, int, str]]
    reads: list[int]

    @property
    def bytes(self) -> int:
        """The size of all files."""
        return sum(size for _, size, _ in self.files)


class Figures(NamedTuple):
    """What came of it."""

    moved: int
    seconds: float
    """From the submission to the end of the last job."""
    settled: dict[str, int]


def a_world(names: list[str], files: int, jobs: int, seed: int = 1) -> World:
    """Files of mixed size, each on some host; as many jobs for each, in any order."""
    chance = random.Random(seed)
    made = [(f"f{number}", int(2 ** chance.uniform(LEAST, MOST)), chance.choice(names)) for number in range(files)]
    reads = [number % files for number in range(jobs)]
    chance.shuffle(reads)
    return World(made, reads)


def run(farm, world: World, policy: str, job_s: float) -> Figures:
    """All jobs under one policy."""
    top = f"{farm.disk}/data"
    for host in farm.names:
        lines = [f"head -c {size} /dev/urandom > {top}/{name}" for name, size, where in world.files if where == host]
        farm.on(host, "\n".join([f"mkdir -p {top}", *lines]))
    hosts = ", ".join(f'"{name} cores=2"' for name in farm.names)
    with at.manager(CONFIG.format(hosts=hosts, config=farm.config, disk=farm.disk)) as home:
        for name in farm.names:  # their runners are there before anything is measured
            at.rota(home, "run", "--on", "farm", "--cwd", "/tmp", "--partition", name, "--", "true")
        paths = "".join(f"{top}/{world.files[number][0]}\n" for number in world.reads)
        words = ["--values-from", "-", "--input", "{}", "--on", "farm", "--cwd", "/tmp", "--policy", policy]
        begin = time.monotonic()
        batch = at.rota(home, "add", *words, "--", f"sleep {job_s}; cksum {{}}", text=paths).split()[-1]
        at.rota(home, "wait", batch)
        took = time.monotonic() - begin
        rows = [json.loads(line) for line in at.rota(home, "jobs", batch, "--json").splitlines()]
        settled: dict[str, int] = {}
        for row in rows:
            settled[row["state"]] = settled.get(row["state"], 0) + 1
        moved = sum(row["bytes"] for row in json.loads(at.rota(home, "data", "--json"))["moved"])
    farm.clear()
    return Figures(moved, took, settled)


def locality(quick: bool = False) -> list[Row]:
    """The rows of the table."""
    from cluster.ssh_farm import SshFarm

    files, jobs, hosts = (20, 60, 3) if quick else (100, 300, 5)
    farm = SshFarm(hosts, "rl", "512m")
    try:
        farm.start()
        world = a_world(farm.names, files, jobs)
        by_chance, near = (run(farm, world, policy, 0.2 if quick else 0.5) for policy in ("random", "data_locality"))
    finally:
        farm.close()
    for found in (by_chance, near):
        assert found.settled == {"COMPLETED": jobs}, found.settled
    share, times = near.moved / max(1, by_chance.moved), near.seconds / by_chance.seconds
    what = f"{jobs} jobs, {files} files ({world.bytes / 1e6:.0f} MB), {hosts} hosts"
    moved = f"{near.moved / 1e6:.1f} MB = {share:.3f} of the {by_chance.moved / 1e6:.1f} MB of `random`"
    took = f"{near.seconds:.1f} s = {times:.2f} of the {by_chance.seconds:.1f} s of `random`"
    return [
        Row(f"bytes moved with `data_locality`, {what}", moved, f"≤ {SHARE:g}", share <= SHARE),
        Row("… until all have ended", took, f"≤ {SLOWER:g}", times <= SLOWER),
    ]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    rows = locality(parser.parse_args().quick)
    for row in rows:
        print(row)
    sys.exit(not all(row.met for row in rows))
