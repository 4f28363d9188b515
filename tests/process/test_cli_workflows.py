"""Workflows through the real command line and from Python: one batch whose jobs wait for each other."""

import json
import sys
from pathlib import Path

import pytest

import rota as package
from rota.model.errors import UsageError

sys.path.insert(0, str(Path(__file__).parent))
from cli_support import add, states, until, up

__all__ = ["up"]


def write(rota, *lines: dict) -> str:
    path = rota.cwd / "flow.json"
    path.write_text("".join(json.dumps({"command": "true", **line}) + "\n" for line in lines))
    return str(path)


def test_a_workflow_runs_in_its_order_over_a_restart(rota):
    log, gate = rota.cwd / "log", rota.cwd / "gate"
    wait = f"while [ ! -e {gate} ]; do sleep 0.05; done"
    path = write(
        rota,
        {"command": f"echo merge >> {log}", "after": ["s1", 2]},
        {"id": "s1", "command": f"{wait}; echo align >> {log}", "name": ["align", "first"]},
        {"id": 2, "command": f"echo align >> {log}", "after_any": "bad"},
        {"id": "bad", "command": "false", "limits": ["few:3"]},
        {"command": f"echo alarm >> {log}", "after_failure": "bad"},
        {"command": "true", "after": "bad"},
    )
    batch = add(rota, "-f", path)
    after = add(rota, "--after", "@first", "--", f"echo after >> {log}")
    rota("wait", f"{batch}.3", f"{batch}.5", f"{batch}.6", "--timeout", "90s", code=1)
    until(lambda: states(rota, batch)[1] == "RUNNING")
    rota("down")
    rota("up")
    assert states(rota, batch) == ["WAITING", "RUNNING", "COMPLETED", "FAILED", "COMPLETED", "OMITTED"]
    reason = json.loads(rota.out("explain", f"{batch}.1", "--json"))["reason"]
    assert reason.startswith(f"waits for {batch}.2, which ")
    gate.touch()
    rota("wait", batch, after, "--timeout", "90s", code=1)
    assert states(rota, batch)[0] == states(rota, after)[0] == "COMPLETED"
    assert sorted(log.read_text().split()) == ["after", "alarm", "align", "align", "merge"]
    assert log.read_text().split().index("merge") > 2
    ids = [json.loads(line)["id"] for line in rota.out("jobs", "@align", "--json").splitlines()]
    assert ids == [f"{batch}.2"]
    limits = {row["name"]: row["count"] for row in json.loads(rota.out("limit", "--json"))["limits"]}
    assert limits == {"few": 3}


def test_mistakes_name_their_lines_and_add_nothing(rota):
    for lines, words in (
        ([{"id": "a", "after": "b"}, {"id": "b", "after": "a"}], "lines 1 → 2 → 1 wait for each other"),
        ([{"id": "a", "after": "a"}], "line 1 waits for itself"),
        ([{"id": "a"}, {"id": "a"}], "line 2: field 'id': line 1 has the id 'a' already"),
        ([{"id": "abc"}, {"after": ["abd"]}], "line 2: field 'after': no line has the id 'abd' (did you mean 'abc'"),
        ([{"name": "x", "after": "@x"}], "would wait for itself"),
        ([{}, {"after": "99"}], "job 2: --after 99: there is no batch 99"),
        ([{"limits": ["a:1"]}, {"limits": ["a:2"]}], "line 2: field 'limits': limit 'a' is 1 in a line before"),
        ([{"live": True}], "there is nothing to wait for"),
    ):
        refused = rota("add", "-f", write(rota, *lines), code=2)
        assert words in refused.stderr, refused.stderr
    assert json.loads(rota.out("status", "--json"))["batches"] == []


def test_from_python(rota):
    graph = package.Graph()
    first = graph.add("echo one", partition=None)
    graph.add(["echo", "two"], after=first, memory="10M")
    graph.add("echo three", after=[first, "mine"])
    graph.add("false", id="mine")
    with package.Client(rota.home) as client:
        batch = client.submit(lines=graph)
        batch.wait()
        assert [job.state for job in batch.jobs()] == ["COMPLETED", "COMPLETED", "OMITTED", "FAILED"]
        with pytest.raises(UsageError, match="line 1: field 'after': no line has the id 'nobody'"):
            client.submit(lines=[{"command": "true", "after": "nobody"}])


def test_each_by_value(rota):
    first = add(rota, "--values", "s1,s2,s3", "--name", "align", "--", "test", "{}", "!=", "s2")
    by_number = rota("add", "--values", "s3,s1,s2", "--after", first, "--each", "--", "echo", "{}")
    assert "job 1 (s3) waits for 1.1 (s1); --each=value pairs by value" in by_number.stderr
    by_value = add(rota, "--values", "s3,s1,s2", "--after", first, "--each=value", "--", "echo", "{}")
    rota("wait", by_value, "--timeout", "90s", code=1)
    assert states(rota, by_value) == ["COMPLETED", "COMPLETED", "OMITTED"]
    named = add(rota, "--values", "s2,s3", "--after", "align", "--each=value", "--", "echo", "{}")
    rota("wait", named, "--timeout", "90s", code=1)
    assert states(rota, named) == ["OMITTED", "COMPLETED"], "a name, with its @ or without"
    for values, words in (("s9", "no job of it has the value 's9' of the new job 1"),):
        assert (
            words in rota("add", "--values", values, "--after", first, "--each=value", "--", "echo {}", code=2).stderr
        )
    alike = add(rota, "--values", "a,a", "--", "echo {}")
    twice = rota("add", "--values", "a", "--after", alike, "--each=value", "--", "echo {}", code=2)
    assert f"both {alike}.1 and {alike}.2 have the value 'a'" in twice.stderr
    none = rota("add", "--array", "1-3", "--after", first, "--each=value", "--", "echo", code=2)
    assert "the new jobs have no values" in none.stderr
