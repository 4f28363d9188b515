"""Defects that the reference has with batch systems (placement.md §11), each as what rota does instead.

Those of its scheduler are in `tests/unit/test_placement_scheduler.py`.
"""

import json
import os
import signal

import pytest

from process.cli_support import until
from process.test_sites import json_of, site

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]
PLAIN = '[site.pbs]\ndriver = "pbs"\nmode = "{mode}"\npoll_least = "1s"\npoll = "1s"\n'
"""No queue, no options, no limits: only how often it is asked, for a test has no time."""


def counts(rota, batch):
    return json_of(rota, "status", batch)["counts"]


SLURM = PLAIN.replace("pbs", "slurm")


@pytest.mark.parametrize(("mode", "what"), [("direct", "exit"), ("direct", "empty"), ("runners", "exit")])
def test_12_a_status_command_that_fails_is_no_end_of_a_job(tmp_path, mode, what):
    gate = tmp_path / "go"
    with site("slurm", tmp_path, SLURM.format(mode=mode)) as rota:
        waits = f"echo begun; until [ -e {gate} ]; do sleep 0.1; done; echo ended"
        batch = rota.out("add", "--on", "slurm", "--", waits).strip()
        until(lambda: counts(rota, batch) == {"RUNNING": 1}, 60)
        names = ("squeue", "scontrol", "sacct")
        fault = {
            "do": what,
            "every": 1,
            "code": 1,
            "stderr": "slurm_load_jobs error: Unable to contact slurm controller",
        }
        rota.cluster.faults([{"command": name, **fault} for name in names])
        before = rota.cluster.calls("squeue")
        until(lambda: rota.cluster.calls("squeue") >= before + 3, 60)
        assert counts(rota, batch) == {"RUNNING": 1}
        rota.cluster.faults([])
        gate.touch()
        until(lambda: counts(rota, batch) == {"COMPLETED": 1}, 60)
        assert rota.out("log", f"{batch}.1") == "begun\nended\n"
        assert json.loads(rota.out("jobs", f"{batch}.1", "--json"))["attempt"] == 1


def test_13_who_is_killed_is_cancelled_and_a_manager_that_is_told_to_end_loses_none(tmp_path):
    gate = tmp_path / "go"
    with site("slurm", tmp_path, SLURM.format(mode="direct"), nodes=2) as rota:
        waits = f"until [ -e {gate} ]; do sleep 0.1; done"
        first, second = (rota.out("add", "--on", "slurm", "--", waits).strip() for _ in range(2))
        until(lambda: counts(rota, first) == counts(rota, second) == {"RUNNING": 1}, 60)
        rota("kill", first)
        until(lambda: counts(rota, first) == {"ABORTED": 1}, 60)
        assert rota.cluster.calls("scancel") >= 1
        (manager,) = [pid for pid, line in rota.processes().items() if "rota.manager" in line]
        os.kill(manager, signal.SIGTERM)
        until(lambda: manager not in rota.processes(), 60)
        gate.touch()
        rota("up")
        until(lambda: counts(rota, second) == {"COMPLETED": 1}, 60)
        assert json.loads(rota.out("jobs", f"{second}.1", "--json"))["attempt"] == 1


def test_14_what_was_accepted_is_on_disk_before_that_is_said(tmp_path):
    with site("slurm", tmp_path, "[site.local]\n") as rota:
        rota("up")
        rota("pause")
        batch = rota.out("add", "--array", "1-3", "--", "true").strip()
        (manager,) = [pid for pid, line in rota.processes().items() if "rota.manager" in line]
        os.kill(manager, signal.SIGKILL)
        until(lambda: manager not in rota.processes(), 60)
        rota("up")
        assert sum(counts(rota, batch).values()) == 3
        rota("resume")
        until(lambda: counts(rota, batch) == {"COMPLETED": 3}, 60)


def test_18_what_a_job_asks_for_is_asked_of_the_batch_system_and_many_are_queued_at_once(tmp_path):
    with site("slurm", tmp_path, SLURM.format(mode="direct"), nodes=2, cores=4) as rota:
        asked = ("--cores", "2", "--memory", "300M", "--time", "20m")
        batch = rota.out("add", "--on", "slurm", "--array", "1-5", *asked, "--", "sleep 600").strip()
        until(lambda: counts(rota, batch).get("RUNNING") == 4, 60)  # so many have room
        with rota.cluster.world() as world:
            asked_for = {
                (row.cores, 300 <= row.memory_mb < 600, row.time_s >= 1200) for row in map(world.of, world.jobs)
            }
            assert asked_for == {(2, True, True)} and len(world.jobs) == 5, "the last one waits there, not here"
        rota("kill", batch)


@pytest.mark.parametrize("mode", ["direct", "runners"])
def test_17_a_site_of_which_nothing_is_said_runs_jobs_and_their_output_is_what_they_wrote(tmp_path, mode):
    with site("pbs", tmp_path, PLAIN.format(mode=mode)) as rota:
        text = "/etc/hostname with 'quotes'\n$HOME"  # neither a path to read nor a line to expand
        batch = rota.out("add", "--on", "pbs", "--", "printf", "%s\n", text).strip()
        until(lambda: counts(rota, batch) == {"COMPLETED": 1}, 60)
        assert rota.out("log", f"{batch}.1") == f"{text}\n"
        failed = rota.out("add", "--on", "pbs", "--", "sh", "-c", "echo sorry >&2; exit 7").strip()
        until(lambda: counts(rota, failed) == {"FAILED": 1}, 60)
        (row,) = [json.loads(line) for line in rota.out("jobs", failed, "--json").splitlines()]
        assert row["exit_code"] == 7 and rota.out("log", f"{failed}.1", "--stderr") == "sorry\n"
