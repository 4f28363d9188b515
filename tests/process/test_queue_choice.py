"""Jobs find the queue that can take them, in a real manager beside a fake LSF; what none can take is refused."""

import pytest

from process.support_home import a_home
from rota.testing.fake_cluster import FakeCluster

QUEUES = [
    {"name": "short", "default": True, "time_s": 600, "up": True},
    {"name": "days", "time_s": 864_000, "up": True},
]
CONFIG = """\
[site.hpc]
driver = "lsf"
mode = "{mode}"
poll = "1s"
poll_least = "1s"
linger = "2s"
most = 6
"""


@pytest.mark.parametrize("mode", ["runners", "direct"])
def test_a_long_job_goes_to_the_long_queue(mode, tmp_path):
    with (
        FakeCluster(tmp_path / "cluster", personality="lsf", nodes=2, cores=16, memory_mb=64000, queues=QUEUES) as fake,
        a_home() as home,
    ):
        home.env["PATH"] = fake.path
        home.config(CONFIG.format(mode=mode))
        try:
            home.rota("add", "--on", "hpc", "-t", "5m", "--name", "quick", "--", "true")
            home.rota("add", "--on", "hpc", "-t", "2d", "--name", "slow", "--", "true")
            home.settled("@quick", "@slow")
            assert [home.job(name)["state"] for name in ("@quick", "@slow")] == ["COMPLETED", "COMPLETED"]
            asked = {(row["queue"], row["time_s"]) for row in home.json("allocations")["allocations"]}
            assert {queue for queue, _ in asked} == {None, "days"}
            assert all((time_s > 600) == (queue == "days") for queue, time_s in asked)
            refused = home.rota("add", "--on", "hpc", "-t", "20d", "--", "true", code=None)
            assert "the queue days of hpc gives 10d at most, 20d are asked for" in refused.stderr
        finally:
            home.rota("down", "--kill", code=None)
