"""Queues, and allocations of several nodes, on real clusters: what is learned, where it goes, what is started there."""

import asyncio
import json
import os
import stat

import pytest

from cluster.private import wait_for
from rota.drivers.local import Door
from rota.manager.config import SiteConfig
from rota.manager.paths import Paths
from rota.manager.sites.batch import BatchSite
from rota.model.allocation import Allocation
from rota.model.needs import Amounts

MIB = 1 << 20
TAG = "5e7e000000{:02x}"
STAND_IN = """\
import json, os, pathlib, signal, sys, time

signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
place = pathlib.Path(sys.argv[sys.argv.index("--output") + 1])
place.mkdir(parents=True, exist_ok=True)
said = {"argv": sys.argv[1:], "pid": os.getpid(), "cores": len(os.sched_getaffinity(0)), "host": os.uname().nodename}
said["node"], said["cpus"] = os.environ.get("SLURMD_NODENAME"), os.environ.get("SLURM_CPUS_ON_NODE")
(place / "new").write_text(json.dumps(said))
(place / "new").rename(place / "said")
while not (place / "end").exists():
    time.sleep(0.05)
(place / "ended").touch()
sys.exit(3)
"""


class NoDoor(Door):
    """A way to the manager that leads nowhere."""

    def open(self, allocation):
        return ["--connect", "unix:/nowhere"]

    def shut(self, allocation):
        pass


@pytest.fixture
def make_site(tmp_path_factory, monkeypatch):
    """Makes a site whose runners are a stand-in that says how it was started, and waits for its end."""
    base = tmp_path_factory.mktemp("nodes")
    for path in (base, *base.parents):
        if path.stat().st_uid == os.getuid() and path != path.parent and str(path) not in ("/", "/tmp"):
            path.chmod(path.stat().st_mode | stat.S_IXOTH | stat.S_IROTH)
    program = base / "runner.py"
    program.write_text(STAND_IN)

    def make(cluster, driver, **config):
        for name in ("PATH", "SLURM_CONF", "SGE_ROOT", "SGE_CELL", "SGE_QMASTER_PORT", "SGE_EXECD_PORT"):
            if name in cluster.environment:
                monkeypatch.setenv(name, cluster.environment[name])
        config = SiteConfig(driver=driver, directory=str(base / "shared"), warn="0s", **config)
        site = BatchSite("hpc", config, Paths(str(base / "home")), NoDoor(), user="root", install=False)
        site._program, site._digest = str(program), None
        return site

    return make


def allocation(nodes, **more):
    more = {"capacity": Amounts(2000, 100 * MIB), "time_s": 300, **more}
    return Allocation("a1", "hpc", more.pop("tag"), nodes=nodes, name="rota", **more)


def submit(site, *allocations):
    return asyncio.run(site.submit(allocations[0].tag, allocations, {}))[0]


def runners(site, tag, count, element="0"):
    """What the runners say that were started, by node."""
    place = os.path.join(site.directory, tag, element)

    def found():
        names = os.listdir(place) if os.path.isdir(place) else []
        said = [name for name in names if os.path.exists(os.path.join(place, name, "said"))]
        return len(said) >= count and said

    names = wait_for(f"{count} runners of {place}", found, 60)
    return {name: json.loads(open(os.path.join(place, name, "said")).read()) for name in names}


def end(site, tag, node, element="0"):
    place = os.path.join(site.directory, tag, element, node)
    open(os.path.join(place, "end"), "w").close()
    wait_for(f"the end of {node}", lambda: os.path.exists(os.path.join(place, "ended")))


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_each_partition_is_learned_as_it_is(slurm, make_site):
    with slurm.long_partition():
        site = make_site(slurm, "slurm")
        facts = asyncio.run(site.learn())
        found = {queue.name: queue for queue in facts.queues}
        assert {name: (q.node.cores, q.node.memory, q.nodes, q.time_most_s) for name, q in found.items()} == {
            "main": (4000, 2000 * MIB, 4, None),
            "short": (4000, 2000 * MIB, 4, 600),
            "days": (8000, 6000 * MIB, 3, 864_000),
        }
        assert all(q.up and q.auto and q.nodes_most is None for q in found.values())
        assert [name for name, q in found.items() if q.default] == ["main"]
        assert (
            facts.node.cores,
            facts.time_most_s,
            {queue.name: queue.time_most_s for queue in facts.queues}["days"],
        ) == (4000, None, 864_000)

        slurm.run("scontrol", "update", "PartitionName=days", "State=DOWN", "MaxNodes=2")
        again = {queue.name: queue for queue in asyncio.run(site.learn()).queues}
        assert (again["days"].up, again["days"].auto, again["days"].nodes_most) == (False, False, 2)
        assert again["main"] == found["main"] and site.facts() != facts


def test_an_allocation_goes_to_its_queue(slurm, make_site):
    with slurm.long_partition() as large:
        site = make_site(slurm, "slurm", partition="main")
        wide = Amounts(8000, 3000 * MIB)
        there = submit(site, allocation(1, tag=TAG.format(1), queue="days", capacity=wide))
        named = submit(site, allocation(1, tag=TAG.format(2), queue="days", options=(("partition", "short"),)))
        own = submit(site, allocation(1, tag=TAG.format(3)))
        assert [slurm.show(job)["Partition"] for job in (there, named, own)] == ["days", "short", "main"]
        slurm.wait_state(there, "RUNNING")
        assert slurm.show(there)["NodeList"] == large


@pytest.mark.parametrize("whole", [False, True])
def test_a_runner_on_each_of_three_nodes(slurm, make_site, whole):
    site, tag = make_site(slurm, "slurm", whole_nodes=whole), TAG.format(4 + whole)
    job = submit(site, allocation(3, tag=tag))
    found = runners(site, tag, 3)
    assert (
        len(found) == 3 and set(found) <= set(slurm.nodes) and {each["node"] for each in found.values()} == set(found)
    )
    for name, said in found.items():
        words = said["argv"]
        assert words[0] == "--supervise" and words[words.index("--id") + 1] == f"{tag}.0.{name}"
        assert words[words.index("--allocation") + 1] == "a1"
        assert said["cpus"] == ("4" if whole else "2") and said["cores"] == len(os.sched_getaffinity(0))
    step = slurm.run("scontrol", "-o", "show", "step", f"{job}.0").stdout
    assert " Nodes=3 " in step and f" CPUs={12 if whole else 6} " in step, "all that the job has"
    first, second, third = found
    end(site, tag, first)
    wait_for("its process to be gone", lambda: not alive(found[first]["pid"]))
    assert all(alive(found[name]["pid"]) for name in (second, third)) and slurm.state(job) == "RUNNING"
    end(site, tag, second)
    end(site, tag, third)
    assert slurm.wait_over(job) == {"FAILED"} and slurm.show(job)["ExitCode"] == "3:0"


def test_all_runners_are_told_of_the_end(slurm, make_site):
    """By a signal to the script alone, and by scancel; an array has its own runners for each element."""
    site, tag = make_site(slurm, "slurm"), TAG.format(6)
    both = [allocation(2, tag=tag), allocation(2, tag=tag)]
    both[1].id, both[1].element = "a2", 1
    native = submit(site, *both)
    job = native.partition("_")[0]
    pids = {e: [said["pid"] for said in runners(site, tag, 2, e).values()] for e in ("0", "1")}
    slurm.run("scancel", "--batch", "--signal=TERM", f"{job}_0")
    wait_for("the runners of element 0 to end", lambda: not any(map(alive, pids["0"])))
    assert all(map(alive, pids["1"]))
    slurm.cancel(f"{job}_1")
    wait_for("the runners of element 1 to end", lambda: not any(map(alive, pids["1"])))
    slurm.wait_over(job)


def test_a_queue_of_grid_engine_is_learned_as_it_is(gridengine, make_site):
    site = make_site(gridengine, "sge", parallel_environment="smp")
    (queue,) = asyncio.run(site.learn()).queues
    assert (queue.name, queue.nodes, queue.node.cores, queue.time_most_s) == ("all.q", 1, 4000, None)
    assert queue.up and queue.auto and queue.default and queue.node.memory < 1 << 50
    gridengine.run("qconf", "-mattr", "queue", "h_rt", "240:00:00", "all.q")
    try:
        other = make_site(gridengine, "sge", parallel_environment="nosuch")
        (queue,), (narrow,) = asyncio.run(site.learn()).queues, asyncio.run(other.learn()).queues
        assert (queue.time_most_s, queue.node.cores) == (864_000, 4000)
        assert (narrow.node.cores, narrow.nodes_most) == (1000, 1), "more slots need an environment that it has"
    finally:
        gridengine.run("qconf", "-mattr", "queue", "h_rt", "INFINITY", "all.q")
