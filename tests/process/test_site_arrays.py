"""Sites that take smaller arrays than are asked for: learned beforehand, or from the refusal itself."""

import pytest

from process.support_home import a_home
from rota.testing.fake_cluster import FakeCluster

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
