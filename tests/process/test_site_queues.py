"""What is learned of queues from the commands of every fake cluster, and a job of several nodes on the fake Slurm."""

import asyncio
import json
import os

import pytest

from process.cli_support import until
from rota.manager.config import SiteConfig
from rota.manager.paths import Paths
from rota.manager.sites.batch import BatchSite
from rota.model.allocation import Allocation
from rota.model.needs import Amounts
from rota.testing.fake_cluster import FakeCluster

MIB = 1 << 20
QUEUES = [
    {"name": "short", "default": True, "time_s": 600, "up": True},
    {"name": "days", "time_s": 864_000, "up": True},
    {"name": "ever", "time_s": None, "up": True},
    {"name": "shut", "time_s": 60, "up": False},
]
STAND_IN = """\
import json, os, pathlib, sys, time
place = pathlib.Path(sys.argv[sys.argv.index("--output") + 1])
place.mkdir(parents=True)
(place / "new").write_text(json.dumps(sys.argv[1:]))
(place / "new").rename(place / "said")
while True:
    time.sleep(1)
"""


class NoDoor:
    def open(self, allocation):
        return ["--connect", "unix:/nowhere"]


@pytest.fixture
def make_site(tmp_path, monkeypatch):
    made = []

    def make(personality, **config):
        cluster = FakeCluster(tmp_path / personality, personality=personality, nodes=3, cores=4, queues=QUEUES)
        made.append(cluster)
        monkeypatch.setenv("PATH", f"{cluster.bin}:/usr/bin:/bin")
        config = SiteConfig(driver=personality, directory=str(tmp_path / "shared"), **config)
        return BatchSite("hpc", config, Paths(str(tmp_path)), NoDoor(), user="root", install=False), cluster

    yield make
    for cluster in made:
        cluster.close()


@pytest.mark.parametrize("personality", ["slurm", "lsf", "pbs", "torque", "sge"])
def test_queues_of_every_batch_system(personality, make_site):
    site, cluster = make_site(personality)
    facts = asyncio.run(site.learn())
    found = {queue.name: queue for queue in facts.queues}
    assert {name: queue.time_most_s for name, queue in found.items()} == {
        "short": 600, "days": 864_000, "ever": None, "shut": 60,
    }  # fmt: skip
    assert {name for name, queue in found.items() if queue.up} == {"short", "days", "ever"}
    assert all(queue.auto == queue.up and queue.nodes == 3 for queue in found.values())
    assert {(queue.node.cores, round(queue.node.memory / MIB, -2)) for queue in found.values()} == {(4000, 8000)}
    default = [name for name, queue in found.items() if queue.default]
    assert default == ([] if personality == "sge" else ["short"]), "Grid Engine has none"
    assert facts.time_most_s == (None if personality == "sge" else 600)

    cluster.set(queues=[{**queue, "up": queue["name"] == "days"} for queue in QUEUES])
    again = asyncio.run(site.learn())
    assert {queue.name for queue in again.queues if queue.up} == {"days"} and again != facts
    assert asyncio.run(site.learn()) == again
    cluster.stop_daemon()
    with pytest.raises(Exception, match="hpc"):
        asyncio.run(site.learn())
    assert site.facts() == again, "what is not said this time stays as it was"


def test_three_nodes_on_the_fake_slurm(make_site, tmp_path):
    site, cluster = make_site("slurm")
    (tmp_path / "runner.py").write_text(STAND_IN)
    site._program, site._digest = str(tmp_path / "runner.py"), None
    tag = "5e7e00000001"
    allocation = Allocation("a1", "hpc", tag, capacity=Amounts(2000), nodes=3, time_s=600, queue="days")
    (native,) = asyncio.run(site.submit(tag, [allocation], {}))
    place = tmp_path / "shared" / tag / "0"
    until(lambda: [name for name in ("n1", "n2", "n3") if (place / name / "said").exists()] == ["n1", "n2", "n3"])
    for name in os.listdir(place):
        words = json.loads((place / name / "said").read_text())
        assert words[:3] == ["--supervise", "--id", f"{tag}.0.{name}"]
    cluster.cancel(native)
    until(lambda: [job["state"] for job in cluster.jobs()] == ["over"])
