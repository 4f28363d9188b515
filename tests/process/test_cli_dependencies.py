"""Dependencies through the real command line: job by job, live names, the end of a batch, and what is refused."""

import json
import os
import signal
import sys
from pathlib import Path

import pytest

import rota as package
from rota.model.batch import Dependency
from rota.model.errors import UsageError

sys.path.insert(0, str(Path(__file__).parent))
from cli_support import add, states, until, up

__all__ = ["up"]


def explain(rota, job) -> str:
    return json.loads(rota.out("explain", job, "--json"))["reason"]


def test_each(rota):
    gate = rota.cwd / "gate"
    wait = f"while [ {{index}} = 3 -a ! -e {gate} ]; do sleep 0.05; done"
    first = add(rota, "--array", "1-3", "--", f"[ {{index}} = 2 ] && exit 3; {wait}")
    second = add(rota, "--array", "1-3", "--after", first, "--each", "--", "echo", "{index}")
    failed = add(rota, "--array", "1-3", "--after-failure", first, "--each", "--", "true")
    rota("wait", f"{second}.1", f"{second}.2", "--timeout", "90s", code=1)
    assert states(rota, second) == ["COMPLETED", "OMITTED", "WAITING"]
    says = f"omitted because {first}.2 failed: exit 3 (depends on {first}.2, which is FAILED)"
    assert explain(rota, f"{second}.2") == says
    assert explain(rota, f"{second}.3").startswith(f"waits for {first}.3, which ")
    rows = [json.loads(line) for line in rota.out("jobs", f"{second}.2", "--json").splitlines()]
    assert rows[0]["reason"] == f"depends on {first}.2, which is FAILED"
    gate.touch()
    rota("wait", second, failed, "--timeout", "90s", code=1)
    assert states(rota, second) == ["COMPLETED", "OMITTED", "COMPLETED"]
    assert states(rota, failed) == ["OMITTED", "COMPLETED", "OMITTED"]


def test_live_and_rerun_survive_a_restart(rota):
    log = rota.cwd / "log"
    add(rota, "--name", "align", "--", "true")
    merge = add(rota, "--name", "merge", "--after", "@align", "--live=rerun", "--", f"echo merged >> {log}")
    rota("wait", merge, "--timeout", "90s")
    gate = rota.cwd / "gate"
    add(rota, "--name", "align", "--", f"while [ ! -e {gate} ]; do sleep 0.05; done; echo aligned >> {log}")
    assert states(rota, merge) == ["WAITING"]
    says = "waits for @align (1 of 2 jobs not settled, and any other that is given this name counts) → "
    assert explain(rota, f"{merge}.1").startswith(says)
    for pid, line in rota.processes().items():
        if "rota.manager" in line:
            os.kill(pid, signal.SIGKILL)
            until(lambda pid=pid: pid not in rota.processes())
    rota("up")
    gate.touch()
    rota("wait", merge, "--timeout", "90s")
    assert log.read_text().split() == ["merged", "aligned", "merged"]


@pytest.mark.parametrize("how", ["add", "run"])
def test_on_batch_end(rota, how):
    log = rota.cwd / "log"
    end = f"echo $ROTA_BATCH $ROTA_BATCH_NAME $ROTA_JOBS $ROTA_COMPLETED $ROTA_FAILED $PWD >> {log}"
    words = ["--name", "align", "--values", "0,1,0", "--on-batch-end", end, "--", "sh", "-c", "exit {}"]
    rota(how, *words, code=0 if how == "add" else 1)
    rota("wait", "2", "--timeout", "90s")
    assert log.read_text().split() == ["1", "align", "3", "2", "1", str(rota.cwd)]
    rows = json.loads(rota.out("status", "--json"))["batches"]
    assert [(row["id"], row["name"], row["ends"]) for row in rows] == [(1, "align", None), (2, "align-end", 1)]
    rota("retry", "1")
    rota("wait", "--timeout", "90s", code=1)
    assert log.read_text().count("align") == 1, "once"


def test_run_of_its_own_waits_for_the_end(rota):
    rota("down")
    done = rota("run", "--on-batch-end", "sleep 0.5; touch over", "--", "true")
    assert (rota.cwd / "over").exists(), done.stderr
    assert rota.nothing_runs()
    done = rota("run", "--on-batch-end", "exit 1", "--", "true", code=1)
    assert "the command for the end of the batch did not succeed" in done.stderr


def test_refusals(rota):
    add(rota, "--array", "1-3", "--name", "three", "--", "true")
    add(rota, "--name", "x", "--after", "@y", "--", "true")
    before = rota.out("status", "--json")
    assert "warning: nothing is named 'nobody' yet" in rota("add", "--after", "@nobody", "--", "true").stderr
    rota("remove", "3")
    for words, said in (
        (["--after", "1", "--each", "--array", "5"], "both must have the same job numbers, but there is no new job 1"),
        (["--after", "1", "--each", "--array", "1-4"], "--after 1 --each: both must have the same job numbers, but"),
        (["--after", "1", "--each", "--array", "1-4"], "there is no 1.4 for the new job 4"),
        (["--after", "1", "--each", "--array", "0-2"], "there is no 1.0 for the new job 0"),
        (["--each"], "--each says more about the --after before it"),
        (["--after", "1", "--live"], "--after 1 --live: only a name"),
        (["--after", "@three", "--each", "--live", "--array", "1-3"], "--each and --live"),
        (["--after", "@nobody", "--require-known"], "--after @nobody: nothing is named 'nobody'"),
        (["--name", "y", "--after", "@x"], "never run: y → x → y"),
        (["--name", "own", "--after", "@own"], "would wait for itself (own → own)"),
        (["--name", "three", "--after", "@three", "--live"], "would wait for itself (three → three)"),
        (["--after", "4"], "there is no batch 4: that will be this one"),
        (["--after", "1"] * 30_000, "30,000 dependencies: a batch takes at most 10,000"),
        (["--on-batch-end", " "], "--on-batch-end: the command is empty"),
    ):
        done = rota("add", *words, "--", "true", code=2)
        assert said in done.stderr, (words[:4], done.stderr)
        assert len(done.stderr) < 600
    rows = json.loads(rota.out("status", "--json"))["batches"]
    assert len(rows) == len(json.loads(before)["batches"]), "nothing was added"


def test_from_python(rota):
    with package.Client(str(rota.home)) as client:
        first = client.submit("exit {}", values=["0", "1"])
        second = client.submit("echo {}", values=["a", "b"], after=[first.id], each=True, on_batch_end="echo over")
        mixed = client.submit("true", array=range(1, 3), after=[Dependency(str(second.id), "any", each=True), first.id])
        assert client.wait([first.id, second.id, mixed.id], 60) is False
        assert [job.state for job in second.jobs()] == ["COMPLETED", "OMITTED"]
        assert mixed.counts() == {"OMITTED": 2}
        assert client.wait([second.id + 1], 60) and next(client.jobs(str(second.id + 1))).log() == "over\n"
        with pytest.raises(UsageError, match="1,000,000 dependencies: a batch takes at most 10,000"):
            client.submit("true", after=[first.id] * 1_000_000)
        with pytest.raises(UsageError, match="live: only a name"):
            client.submit("true", after=[first.id], live=True)
        client.submit("true", name="g")
        last = client.submit("true", after=["@g", first.id], live="rerun")
        assert last.warnings == []
