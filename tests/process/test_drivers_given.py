"""When an allocation that was given to an earlier pilot is over: only on somebody's word."""

import asyncio
import os

import msgspec
import pytest

from rota.drivers.allocation import HERE, Given, Node
from rota.drivers.api import Known
from rota.drivers.given import RECORD, GivenDriver, Launched
from rota.drivers.slurm_answers import COLUMNS
from rota.model.needs import Amounts
from rota.model.site import SiteFacts

TAG = "00112233aabb"
NODES = (Node("a", 1), Node("b", 1))
HEADS = ("JOBID", "STATE", "EXIT_CODE", "RESTARTS", "START_TIME", "END_TIME", "EXEC_HOST", "REASON", "NAME")


def listing(*rows):
    """What squeue prints of jobs that are not rota's: (number, state)."""
    cells = [HEADS, *((job, state, "0", "0", "N/A", "N/A", "a", "None", "script.sh") for job, state in rows)]
    return "".join(
        "".join(text.ljust(size) for text, (_, size) in zip(row, COLUMNS, strict=True)) + "\n" for row in cells
    )


def seen(tmp_path, monkeypatch, before, now=("slurm", "8"), says=None, sweep=None):
    """What a driver in another allocation says of one that was started before."""
    (tmp_path / "bin").mkdir()
    if says is not None:
        (tmp_path / "said").write_text(says)
        (tmp_path / "bin" / "squeue").write_text(f"#!/bin/sh\ncat {tmp_path}/said\n")
        (tmp_path / "bin" / "squeue").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}" if says is not None else f"{tmp_path}/bin:/bin")
    (tmp_path / TAG).mkdir()
    (tmp_path / TAG / RECORD).write_bytes(msgspec.json.encode(before))
    if sweep is not None:
        (tmp_path / TAG / "sweep.sh").write_text(sweep)
    system, job = now
    driver = GivenDriver(SiteFacts(Amounts()), Given(system, NODES, job, None, "srun"), str(tmp_path), "boot")

    async def poll():
        (observation,) = await driver.poll([Known("a1", TAG, None)])
        return observation

    return asyncio.run(poll())


def launched(job="7", host="elsewhere", **more):
    return Launched(
        host, "boot", Given(more.pop("system", "slurm"), NODES, job, None, more.pop("spread", "srun")), **more
    )


@pytest.mark.parametrize(
    ("rows", "verb"),
    [
        ([("7", "RUNNING"), ("8", "RUNNING")], "run"),
        ([("7", "COMPLETING"), ("8", "RUNNING")], "run"),
        ([("7", "CANCELLED"), ("8", "RUNNING")], "complete"),
        ([("8", "RUNNING")], "complete"),
        ([("8", "CANCELLED")], "unsure"),
        ([], "unsure"),
    ],
)
def test_of_another_job_its_batch_system_says_so_in_a_list_that_has_our_own(tmp_path, monkeypatch, rows, verb):
    assert seen(tmp_path, monkeypatch, launched(), says=listing(*rows)).verb == verb


@pytest.mark.parametrize("says", ["", "slurm_load_jobs error: Unable to contact slurm controller\n"])
def test_no_answer_is_none(tmp_path, monkeypatch, says):
    found = seen(tmp_path, monkeypatch, launched(), says=says)
    assert found.verb == "unsure" and "whether job 7 is over" in found.reason


def test_in_the_same_job_its_nodes_are_looked_at(tmp_path, monkeypatch):
    assert seen(tmp_path, monkeypatch, launched("8"), sweep="exit 0\n").verb == "complete"


def test_a_node_that_cannot_be_looked_at_leaves_it_open(tmp_path, monkeypatch):
    found = seen(tmp_path, monkeypatch, launched("8"), sweep="echo node b is down; exit 1\n")
    assert (found.verb, found.reason) == ("unsure", "its nodes cannot be looked at: node b is down")


def test_what_ran_on_another_machine_alone_nobody_can_see(tmp_path, monkeypatch):
    before = launched(None, system="hosts", spread=HERE)
    found = seen(tmp_path, monkeypatch, before, ("hosts", None))
    assert found.verb == "unsure" and "elsewhere" in found.reason


def test_what_ran_here_before_a_restart_is_gone(tmp_path, monkeypatch):
    before = launched(None, os.uname().nodename, system="hosts", spread=HERE, pid=os.getpid(), ticks=1)
    assert seen(tmp_path, monkeypatch, before, ("hosts", None)).verb == "complete"
