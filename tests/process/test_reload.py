"""The configuration is read again while the manager runs: `rota reload`, with the commands of the fake cluster."""

import json

import pytest

from process.cli_support import until
from process.test_sites import json_of, site

HPC = """\
[site.hpc]
driver = "{driver}"
mode = "{mode}"
poll_least = "1s"
poll = "1s"
report_within = "5s"
linger = "1s"
"""
LOCAL = "[site.local]\ncores = 1\n"


def write(rota, text):
    (rota.home / "config.toml").write_text(text)


def names(rota):
    return sorted(row["name"] for row in json_of(rota, "sites")["sites"])


def counts(rota, batch):
    return json_of(rota, "status", batch)["counts"]


@pytest.mark.parametrize("mode", ["direct", "runners"])
def test_sites_are_added_changed_and_removed_while_jobs_run(tmp_path, mode):
    gate = tmp_path / "go"
    waits = f"until [ -e {gate} ]; do sleep 0.1; done"
    hpc = HPC.format(driver="slurm", mode=mode)
    with site("slurm", tmp_path, LOCAL, nodes=2, cores=2) as rota:
        here = rota.out("add", "--", waits).strip()
        until(lambda: counts(rota, here) == {"RUNNING": 1})
        write(rota, LOCAL + hpc)
        refused = rota("add", "--on", "hpc", "--", "true", code=None)
        assert refused.returncode and "no site 'hpc'" in refused.stderr and "rota reload" in refused.stderr
        assert "rota reload" in rota("sites").stderr and "rota reload" in rota("ping").stderr
        assert rota.out("reload").strip() == "sites: added hpc"
        assert "rota reload" not in rota("sites").stderr and names(rota) == ["hpc", "local"]
        there = rota.out("add", "--on", "hpc", "--array", "1-3", "--", waits).strip()
        until(lambda: counts(rota, there).get("RUNNING", 0) >= 1, 60)

        write(rota, LOCAL.replace("1", "2") + hpc + "most = 2\n")
        assert json_of(rota, "reload")["changed"] == ["local", "hpc"]
        write(rota, hpc)
        assert json_of(rota, "reload")["removed"] == ["local"]
        assert names(rota) == ["hpc", "local"], "it stays until its job is over"
        gate.touch()
        until(lambda: counts(rota, there) == {"COMPLETED": 3} and counts(rota, here) == {"COMPLETED": 1}, 60)
        until(lambda: names(rota) == ["hpc"], 30)
        attempts = [json.loads(line) for line in rota.out("history", there, here, "--json").splitlines()]
        assert [row["state"] for row in attempts] == ["COMPLETED"] * 4, "a reload disturbs nothing that runs"
        assert "no site 'local'" in rota("add", "--on", "local", "--", "true", code=None).stderr
        write(rota, hpc + LOCAL)
        assert json_of(rota, "reload")["added"] == ["local"]
        second = rota.out("add", "--on", "local", "--", "true").strip()
        until(lambda: counts(rota, second) == {"COMPLETED": 1})


def test_a_change_that_is_wrong_changes_nothing_and_names_the_line(tmp_path):
    with site("slurm", tmp_path, LOCAL) as rota:
        rota("up")
        for text, words in (
            (LOCAL + "[site.hpc]\ndriver = 'nonsense'\n", "nonsense"),
            (LOCAL + "coers = 2\n", "coers"),
            ("[site.local\n", "line 1"),
        ):
            write(rota, text)
            refused = rota("reload", code=None)
            assert refused.returncode and words in refused.stderr and "config.toml" in refused.stderr
            assert names(rota) == ["local"]
        write(rota, "losses = 3\n" + LOCAL)
        done = rota("reload")
        assert done.stdout == "sites: nothing is different\n" and "after a restart only" in done.stderr
        assert "losses" in done.stderr


def test_how_allocations_are_asked_about_cannot_change_under_them(tmp_path):
    hpc = HPC.format(driver="slurm", mode="direct")
    with site("slurm", tmp_path, hpc, nodes=1, cores=1) as rota:
        batch = rota.out("add", "--on", "hpc", "--array", "1-2", "--", "sleep 300").strip()
        until(lambda: counts(rota, batch).get("RUNNING") == 1, 60)
        write(rota, HPC.format(driver="slurm", mode="runners"))
        refused = rota("reload", code=5)
        assert "[site.hpc] mode cannot change while 2 of its allocations are not over" in refused.stderr
        rota("kill", batch)
        until(lambda: not json_of(rota, "allocations", "--live")["allocations"], 60)
        assert json_of(rota, "reload")["changed"] == ["hpc"]
        batch = rota.out("add", "--on", "hpc", "--", "true").strip()
        until(lambda: counts(rota, batch) == {"COMPLETED": 1}, 60)


def test_kills_that_an_earlier_site_had_begun_go_on(tmp_path):
    hpc = HPC.format(driver="slurm", mode="direct")
    with site("slurm", tmp_path, hpc, nodes=1, cores=1) as rota:
        batch = rota.out("add", "--on", "hpc", "--array", "1-2", "--", "sleep 300").strip()
        until(lambda: counts(rota, batch).get("RUNNING") == 1, 60)
        rota.cluster.faults([{"command": "scancel", "every": 1, "do": "exit", "code": 1, "stderr": "busy"}])
        rota("kill", batch)
        write(rota, hpc + "most = 7\n")
        assert json_of(rota, "reload")["changed"] == ["hpc"]
        rota.cluster.faults([])
        until(lambda: counts(rota, batch) == {"ABORTED": 2}, 90)
