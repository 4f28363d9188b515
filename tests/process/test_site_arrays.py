"""Sites that take smaller arrays than are asked for: learned beforehand, or from the refusal itself."""

import asyncio

import pytest

from process.support_home import a_home
from rota.drivers.api import Ask
from rota.drivers.submitting import ArrayError
from rota.manager.config import SiteConfig
from rota.manager.paths import Paths
from rota.manager.sites.batch import BatchSite
from rota.model.allocation import Allocation
from rota.model.errors import RotaError
from rota.model.needs import Amounts
from rota.testing.fake_cluster import FakeCluster

TAG = "5e7e00000001"
CONFIG = """\
backoff_first = "1s"
backoff_jitter = "0s"

[site.hpc]
driver = "{driver}"
mode = "{mode}"
poll = "1s"
poll_least = "1s"
report_within = "1s"
most = 40
"""


@pytest.mark.parametrize(("tells", "mode"), [(True, "runners"), (False, "direct")], ids=["said", "refused"])
@pytest.mark.parametrize("driver", ["pbs", "torque"])
def test_no_larger_array_is_asked_for_than_is_taken(driver, tells, mode, tmp_path):
    settings = {"nodes": 1, "cores": 8, "max_array": 7, "tells_limits": tells}
    with FakeCluster(tmp_path / "cluster", personality=driver, **settings) as fake, a_home() as home:
        home.env["PATH"] = fake.path
        home.config(CONFIG.format(driver=driver, mode=mode))
        try:
            batch = home.add("--on", "hpc", "--array", "1-20", "--", "true")
            assert home.settled(batch) == {"COMPLETED": 20}, home.tail()
            shown = [(row["id"], row["state"]) for row in home.rows("history", batch)]
            assert sorted(shown) == sorted((f"{batch}.{number}", "COMPLETED") for number in range(1, 21)), (
                "what was never submitted is no attempt"
            )
            (site,) = home.json("sites")["sites"]
            assert site["array_most"] == (7 if tells or driver == "torque" else 5)
            assert fake.calls("qsub") <= (8 if tells else 11)
            assert fake.calls("qstat") <= 240
        finally:
            home.rota("down", "--kill", code=None)


class NoDoor:
    def open(self, allocation):
        return ["--connect", "unix:/nowhere"]


def a_site(driver, tmp_path):
    config = SiteConfig(driver=driver, directory=str(tmp_path / "shared"))
    return BatchSite("hpc", config, Paths(str(tmp_path)), NoDoor(), user="root", install=False)


def commands(fake):
    with fake.world() as world:
        return sum(world.calls.values())


@pytest.mark.parametrize("driver", ["pbs", "torque", "lsf"])
def test_how_large_arrays_may_be_is_seen_again_without_another_command(driver, tmp_path, monkeypatch):
    with FakeCluster(tmp_path / "cluster", personality=driver, nodes=1, cores=8, max_array=40) as fake:
        monkeypatch.setenv("PATH", fake.path)
        site = a_site(driver, tmp_path)

        def learned():
            before = commands(fake)
            return asyncio.run(site.learn()).array_most, commands(fake) - before

        assert learned()[0] == 40
        _, usual = learned()
        for most in (25, 10, 30):
            fake.set(max_array=most)
            assert learned() == (most, usual)
        with pytest.raises(ArrayError):
            asyncio.run(site.driver.submit(Ask(TAG, "rota", ("a",) * 31, Amounts(1000), "true", "/tmp")))
        fake.stop_daemon()
        with pytest.raises(RotaError):
            asyncio.run(site.learn())
        assert site.facts().array_most == 30, "what is not said stays as it was"


@pytest.mark.parametrize("driver", ["pbs", "torque", "lsf", "slurm", "sge"])
def test_after_a_refusal_the_limit_is_asked_for_and_not_guessed(driver, tmp_path, monkeypatch):
    with FakeCluster(tmp_path / "cluster", personality=driver, nodes=1, cores=8, max_array=100) as fake:
        monkeypatch.setenv("PATH", fake.path)
        site = a_site(driver, tmp_path)
        most = asyncio.run(site.learn()).array_most
        fake.set(max_array=60)
        many = [Allocation(f"a{n}", "hpc", TAG, capacity=Amounts(1000), element=n) for n in range(most)]
        with pytest.raises(ArrayError):
            asyncio.run(site.submit(TAG, many, {}))
        assert site.facts().array_most == 60
        assert len(asyncio.run(site.submit(TAG, many[:59], {}))) == 59
