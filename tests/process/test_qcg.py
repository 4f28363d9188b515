"""QCG-PilotJob's own client, as it is on PyPI, against a pilot of rota; and what else comes over its socket."""

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest
import zmq
from qcg.pilotjob.api.errors import ConnectionError as RequestError
from qcg.pilotjob.api.job import Jobs
from qcg.pilotjob.api.manager import Manager

from process.support_home import ROTA, alive, home
from process.support_users import by_thief, shared
from rota.qcg import Jobs as OurJobs
from rota.qcg import LocalManager

__all__ = ["home", "shared"]


class Served:
    """A pilot that serves QCG's clients."""

    def __init__(self, home, *words):
        self.home = home
        self.address_file = Path(home.path, "qcg.address")
        self.process = subprocess.Popen(
            [ROTA, "pilot", "--nodes", "localhost:2", *(words or ("--qcg",))],
            cwd=home.work, env={**home.env, "HOME": str(home.work)}, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True,
        )  # fmt: skip
        home.until(lambda: self.address_file.exists() or self.process.poll() is not None, what="it serves")
        assert self.process.poll() is None, self.process.communicate()[1]
        self.address = self.address_file.read_text().strip()

    def client(self):
        return Manager(self.address, {"log_file": str(self.home.work / "api.log"), "pub_timeout": 60})

    def ended(self):
        out, err = self.process.communicate()
        return self.process.returncode, out, err


@pytest.fixture
def served(home):
    served = Served(home)
    yield served
    if served.process.poll() is None:
        served.process.terminate()
        served.process.communicate()


def raw(served, message, wait_s=60.0):
    """What is answered to bytes on the socket; None: nothing."""
    context = zmq.Context()
    socket = context.socket(zmq.REQ)
    try:
        socket.setsockopt(zmq.LINGER, 0)
        socket.connect(served.address)
        socket.send(message)
        return json.loads(socket.recv()) if socket.poll(wait_s * 1000) else None
    finally:
        socket.close()
        context.term()


def test_the_unmodified_client_does_all_that_it_can(served):
    client = served.client()
    assert client.resources() == {"total_nodes": 1, "total_cores": 2, "used_cores": 0, "free_cores": 2}
    gate = served.home.gate()
    jobs = Jobs()
    jobs.add(name="one", exec="/bin/sh", args=["-c", "echo $QCG_PM_ZMQ_ADDRESS"], stdout="one.out", wd="deep/er")
    jobs.add(name="array", exec="/bin/sh", args=["-c", "test $0 != 1", "${it}"], iteration=4)
    jobs.add(name="held", script=f"{gate.wait}; touch survived")
    jobs.add(name="chain", exec="true", iteration={"start": 0, "stop": 4}, after=["array:${it}"])
    jobs.add(name="single", exec="true", after=["array:3"])
    jobs.add(name="waits", exec="true", iteration=3, after=["held"])
    jobs.add(name="orphan", exec="true", after=["nobody"])
    names = client.submit(jobs)
    assert names == ["one", "array", "held", "chain", "single", "waits", "orphan"]

    assert client.wait4(["one", "array", "chain", "single", "orphan"], timeout=120) == {
        "one": "SUCCEED",
        "array": "FAILED",  # though its last iteration succeeded
        "chain": "FAILED",
        "single": "SUCCEED",  # it waits for one iteration, and not for the array
        "orphan": "OMITTED",
    }
    assert (served.home.work / "deep/er/one.out").read_text().strip() == served.address
    assert client.status("chain:1")["jobs"]["chain:1"]["data"] == {"jobName": "chain:1", "status": "OMITTED"}
    assert client.status(["held", "waits"])["jobs"]["waits"]["data"]["status"] == "QUEUED"

    info = client.info_parsed(["one", "array"], withChilds=True)
    assert info["one"].total_cores == 1
    assert info["one"].wdir == str(served.home.work / "deep/er")
    assert info["one"].time is not None
    assert [child.status for child in info["array"].childs] == ["SUCCEED", "FAILED", "SUCCEED", "SUCCEED"]
    assert info["array"].iterations == {"start": 0, "stop": 4, "total": 4, "finished": 4, "failed": 1}
    listed = client.list()
    assert listed["orphan"] == {
        "status": "OMITTED",
        "messages": "it waits for 'nobody', and no such job was submitted",
    }
    assert listed["waits"]["inQueue"] == 0

    with pytest.raises(RequestError, match="Job one already exist"):
        client.submit(Jobs().add(name="new", exec="true").add(name="one", exec="true"))
    with pytest.raises(RequestError, match="Job 'new' doesn't exist"):
        client.status("new")
    with pytest.raises(RequestError, match="Not enough resources for job big: 3 cores are asked for"):
        client.submit(Jobs().add(name="big", exec="true", numCores=3))

    client.cancel("held")
    assert client.wait4(["held", "waits"], timeout=120) == {"held": "CANCELED", "waits": "OMITTED"}
    assert [client.status(f"waits:{at}")["jobs"][f"waits:{at}"]["data"]["status"] for at in range(3)] == ["OMITTED"] * 3
    response = client.send_request({"request": "cancelJob", "jobNames": ["held"]})
    assert response["data"] == {"canceled": 0, "errors": {"held": "held is already finished"}}
    client.wait4all(timeout_secs=60)

    client.remove("one")
    assert client.submit(Jobs().add(name="one", exec="false")) == ["one"]
    assert client.wait4("one", timeout=120) == {"one": "FAILED"}
    status = client.system_status()
    assert status["System"]["StatusPublisher"].startswith("ipc://")
    assert status["JobStats"]["TotalJobs"] == 7
    assert status["IterationStats"]["TotalIterations"] == 15
    client.finish()
    code, _, err = served.ended()
    assert code == 1, err
    assert not served.address_file.exists()
    assert not (served.home.work / "survived").exists()


def test_any_job_that_finishes_is_told_and_grandchildren_end_with_a_cancelled_one(served):
    client = served.client()
    pids = served.home.work / "pids"
    script = f"(sleep 600 & echo $! >>{pids}; wait) & echo $! >>{pids}; wait"
    client.submit(Jobs().add(name="tree", script=script).add(name="quick", exec="true"))
    assert client.wait4_any_job_finish(timeout_secs=120) == ("quick", "SUCCEED")
    served.home.until(lambda: pids.exists() and len(pids.read_text().split()) == 2, what="the tree has grown")
    client.cancel("tree")
    assert client.wait4_any_job_finish(timeout_secs=120) == ("tree", "CANCELED")
    served.home.until(lambda: not any(alive(int(pid)) for pid in pids.read_text().split()), what="all have ended")
    client.finish()
    assert served.ended()[0] == 1


def test_hostile_messages_are_answered_and_hurt_nobody(served):
    for message, said in (
        (b"this is not json", "it is not JSON"),
        (b"\xff\xfe\x00", "it is not JSON"),
        (b"[]", "a request must be an object, not a list"),
        (b'{"request": "dance"}', "'dance' is unknown"),
        (b"[" * 10_000 + b"]" * 10_000, "nested too deeply"),
        (b'{"request":"submit","jobs":' + b"[" * 10_000 + b"]" * 10_000 + b"}", "nested too deeply"),
        (b'{"request": "submit", "jobs": [{"name": "a"}]}', "jobs[0].execution: is missing"),
        (b" " * (100 << 20), "104,857,600 bytes, and the most is"),
    ):
        response = raw(served, message)
        assert response["code"] == 1
        assert said in response["message"]
    context = zmq.Context()
    odd = context.socket(zmq.DEALER)
    odd.setsockopt(zmq.LINGER, 0)
    odd.connect(served.address)
    odd.send_multipart([b"a", b"b", b"c"])
    client = served.client()
    client.submit(Jobs().add(name="after", exec="true"))
    assert client.wait4("after", timeout=120) == {"after": "SUCCEED"}
    odd.close()
    context.term()
    client.finish()
    assert served.ended()[0] == 0


def test_another_user_cannot_speak_to_it(served, shared):
    path = Path(served.address.removeprefix("ipc://"))
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert not by_thief(lambda: os.listdir(path.parent))
    for each in (Path(served.home.path), path.parent):  # even if the directory stood open
        os.chmod(each, 0o777)
    os.chmod(path, 0o777)

    def speak():
        if raw(served, b'{"request": "status"}', wait_s=2.0) is None:
            raise PermissionError

    assert not by_thief(speak)
    os.chmod(path.parent, 0o700)
    os.chmod(served.home.path, 0o700)
    assert raw(served, b'{"request": "finish"}')["code"] == 0
    assert served.ended()[0] == 0


def test_after_a_kill_another_pilot_knows_the_jobs_by_their_names(home):
    gate = home.gate()
    served = Served(home)
    client = served.client()
    values = ["a", "b", "c", "d"]
    args = ["-c", f"if [ $0 = a ]; then {gate.wait}; fi; echo $0 >>out", "${itval}"]
    client.submit(Jobs().add(name="values", exec="/bin/sh", args=args, iteration=values))
    assert client.wait4([f"values:{at}" for at in (1, 2, 3)], timeout=120) == {
        f"values:{at}": "SUCCEED" for at in (1, 2, 3)
    }
    served.process.send_signal(signal.SIGKILL)
    served.process.communicate()
    gate.open()
    again = Served(home, "--qcg", "--resume")
    client = again.client()
    assert client.wait4("values", timeout=180) == {"values": "SUCCEED"}
    assert sorted((home.work / "out").read_text().split()) == values, "each once, whatever subset had finished"
    response = client.send_request({"request": "control", "command": "finishAfterAllTasksDone"})
    assert response["code"] == 0
    assert again.ended()[0] == 0


def test_one_that_asks_for_more_than_there_is_can_be_let_fail_alone(home):
    served = Served(home, "--qcg", "--too-large", "fail")
    client = served.client()
    jobs = Jobs().add(name="big", exec="true", numCores=3, iteration=2).add(name="after", exec="true", after=["big"])
    jobs.add(name="wide", exec="true", numNodes={"min": 2, "max": 4}).add(name="small", exec="true")
    assert client.submit(jobs) == ["big", "after", "wide", "small"]
    ended = {"big": "FAILED", "after": "OMITTED", "wide": "FAILED", "small": "SUCCEED"}
    assert client.wait4(list(ended), timeout=120) == ended
    info = client.info_parsed(["big", "wide"], withChilds=True)
    assert [child.status for child in info["big"].childs] == ["FAILED", "FAILED"]
    assert "2 nodes are asked for, and the allocation has 1 node" in info["wide"].messages
    served.process.send_signal(signal.SIGKILL)
    served.process.communicate()
    again = Served(home, "--qcg", "--resume")
    client = again.client()
    assert {name: row["data"]["status"] for name, row in client.status(list(ended))["jobs"].items()} == ended
    client.finish()
    assert again.ended()[0] == 1


def test_over_tcp_it_warns(home):
    served = Served(home, "--qcg-tcp", "127.0.0.1:0")
    assert served.address.startswith("tcp://127.0.0.1:")
    served.client().finish()
    code, _, err = served.ended()
    assert code == 0
    assert "warning: --qcg-tcp is neither encrypted nor asks who it is" in err


SIZES = {
    "whole": {"numNodes": 1},
    "range": {"numCores": {"min": 1, "max": 9}},
    "least": {"numCores": {"min": 2}},
    "most": {"numNodes": {"max": 3}, "numCores": {"max": 1}},
}


def sizes(name):
    return {"exec": "/bin/sh", "args": ["-c", f"echo {name} $QCG_PM_NPROCS ${{ncores}} >>sizes"]}


def test_a_file_of_requests_is_run_to_the_end(home):
    resources = {"numCores": {"min": 1, "scheduler": {"name": "split-into", "params": {"parts": 2}}}, "wt": "10m"}
    execution = {"exec": "/bin/sh", "args": ["-c", "echo ${it} ${ncores} >>out"]}
    requests = [
        {"request": "submit", "jobs": [{"name": "it", "execution": execution, "resources": resources,
                                        "iteration": {"start": 5, "stop": 8}}]},
        {"request": "submit", "jobs": [{"name": "b${rcnt}", "execution": {"script": "echo ${jname} >>out"},
                                        "dependencies": {"after": ["it"]}}]},
        {"request": "submit", "jobs": [{"name": name, "execution": sizes(name), "resources": needs}
                                       for name, needs in SIZES.items()]},
        {"request": "control", "command": "finishAfterAllTasksDone"},
    ]  # fmt: skip
    path = home.work / "f.json"
    path.write_text(json.dumps(requests))
    home.env["HOME"] = str(home.work)  # a login shell may do a lot in that of the user
    done = home.rota("pilot", "--nodes", "localhost:2", "--format", "qcg", str(path))
    assert "batch 1 (qcg-" in done.stdout
    lines = (home.work / "out").read_text().splitlines()
    assert sorted(lines[:3]) == ["5 1", "6 1", "7 1"]
    assert lines[3:] == ["b2"]
    told = dict(line.split(" ", 1) for line in (home.work / "sizes").read_text().splitlines())
    assert told.pop("range") in ("1 1", "2 2")
    assert told == {"whole": "2 2", "least": "2 2", "most": "1 1"}


def test_a_wrong_file_is_refused_by_path_and_rule_and_nothing_starts(home):
    path = home.work / "f.json"
    good = {"name": "a", "execution": {"exec": "true"}}
    path.write_text(json.dumps([{"request": "submit", "jobs": [good, {**good, "name": "b", "resources": {"wt": 3}}]}]))
    done = home.rota("pilot", "--format", "qcg", str(path), code=2)
    assert f"{path}: [0].jobs[1].resources" in done.stderr
    assert not os.path.exists(f"{home.path}/rota.db")


def test_the_local_manager_has_the_same_methods(home, monkeypatch):
    monkeypatch.chdir(home.work)
    with LocalManager(["--nodes", "2", "--log", "debug"], home=str(home.work / "p")) as manager:
        assert manager.resources()["total_cores"] == 2
        jobs = OurJobs().add(name="ok", exec="true").add(name="bad", exec="/bin/sh", args=["-c", "exit 3"], iteration=2)
        assert manager.submit(jobs) == ["ok", "bad"]
        assert manager.wait4(["ok", "bad"], timeout=120) == {"ok": "SUCCEED", "bad": "FAILED"}
        seen = {manager.wait4_any_job_finish(10) for _ in range(4)}
        assert seen == {("ok", "SUCCEED"), ("bad:0", "FAILED"), ("bad:1", "FAILED"), ("bad", "FAILED")}
        assert manager.info("bad:1")["jobs"]["bad:1"]["data"]["runtime"]["exit_code"] == 3
        manager.wait4all(10)
        manager.submit(OurJobs().add(name="late", exec="sleep", args=["600"], numCores=1, wt="1s"))
        assert manager.wait4("late", timeout=120) == {"late": "FAILED"}
        assert manager.info("late")["jobs"]["late"]["data"]["messages"] == "time"
        manager.remove("ok")
        assert list(manager.list()) == ["bad", "late"]
