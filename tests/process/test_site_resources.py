"""Named resources at a batch system, and the token files of allocations that are over."""

import os
from pathlib import Path

import pytest

from process.support_home import a_home
from rota.testing.fake_cluster import FakeCluster

CONFIG = """\
[site.hpc]
driver = "{driver}"
mode = "runners"
poll = "1s"
poll_least = "1s"
report_within = "1s"
linger = "1s"
resources = {{licence = 1}}
node_resources = {{slots = 2}}
native_resources = {{fpga = 2, ompthreads = 2}}
"""


COUNTED = ("licence", "slots")


@pytest.mark.parametrize(
    ("driver", "names"), [("slurm", COUNTED), ("pbs", (*COUNTED, "ompthreads"))], ids=["slurm", "pbs"]
)
def test_named_resources_are_counted_or_asked_for_and_no_token_outlives_its_allocation(driver, names, tmp_path):
    with FakeCluster(tmp_path / "cluster", personality=driver, nodes=1, cores=4) as fake, a_home() as home:
        home.env["PATH"] = fake.path
        home.config(CONFIG.format(driver=driver))
        tokens = Path(home.path, "tokens")
        tokens.mkdir(mode=0o700)
        for name in ("a900001", "ours"):  # of an allocation that was over before; of nobody that we know
            (tokens / name).write_text("x\n")
            (tokens / name).chmod(0o600)
        try:
            shown = home.rota("add", "--dry-run", "--on", "hpc", "--resource", "fpga=1", "--", "true").stdout
            assert ("fpga:1" if driver == "slurm" else "fpga=1") in shown
            for name in names:  # the fake clusters know no resource but the usual
                home.add("--on", "hpc", "--resource", f"{name}=1", "--array", "1-2", "--", "true")
            assert home.settled(seconds=90) == {"COMPLETED": 2 * len(names)}, home.tail()
            refused = home.rota("add", "--resource", "fpgas=1", "--", "true", code=2).stderr
            assert "fpga at hpc" in refused and "native_resources" in refused
            home.until(lambda: os.listdir(tokens) == ["ours"], 60, "only live allocations have a token")
        finally:
            home.rota("down", "--kill", code=None)
