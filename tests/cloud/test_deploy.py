"""`rota cloud deploy` and `teardown`: the queue is in one place at every moment, whatever breaks in between."""

import contextlib
import os
import subprocess

import pytest

from cluster.private import wait_for
from process.support_home import ROTA, a_home, alive

HEAD = ("--cloud", "test", "--image", "debian-12", "--flavor", "c2.medium", "--network", "inside", "--user", "root")
DEPLOY_STEPS = ("asking for a server", "waiting for", "sending rota", "sending the configuration")
TEARDOWN_STEPS = ("stopping the manager", "bringing the queue home", "destroying the server")


@pytest.fixture
def home(cloud, bodies):
    with a_home() as made:
        made.env |= cloud.client
        try:
            yield made
        finally:
            with contextlib.suppress(AssertionError):
                made.rota("cloud", "teardown", "--abandon", code=None, timeout=300)


def deploy(home, *words, **more):
    return home.json("cloud", "deploy", *words, timeout=400, **more)


def teardown(home, *words):
    return home.json("cloud", "teardown", *words, timeout=400)


def killed_at(home, step, *words):
    """Run a command and kill it as soon as it says that it has come to a step; whether it came there."""
    child = subprocess.Popen([ROTA, *words], env=home.env, cwd=home.work, stderr=subprocess.PIPE, text=True)
    with child:
        for line in child.stderr:
            if step in line:
                child.kill()
                return True
    return False


def heads(cloud):
    return [row for row in cloud.servers() if row["name"].startswith("rota-head")]


def test_a_queue_goes_to_the_cloud_is_used_from_here_and_comes_home(cloud, bodies, home):
    before = home.add("--", "echo", "at", "home")
    home.settled(before)
    home.rota("down")
    said = deploy(home, *HEAD)
    assert (said["phase"], said["connected"]) == ("away", True)
    (row,) = heads(cloud)
    body = bodies.of(row["id"])
    assert said["address"] == body.address
    # commands here speak to the manager there, which has what was queued here
    assert home.ask("ping")["host"] == body.host
    assert home.rota("log", before).stdout == "at home\n"
    there = home.add("--cwd", "/tmp", "--", "hostname")
    assert home.settled(there) == {"COMPLETED": 1}
    assert home.rota("log", there).stdout.strip() == body.host
    # once more: nothing happens, but that the connection is made anew
    assert deploy(home)["server"] == row["id"]
    assert len(heads(cloud)) == 1
    # no manager starts here meanwhile, connected or not
    bodies.cut(body)
    pid = int(_forwarder(home))
    os.kill(pid, 9)
    wait_for("its end", lambda: not alive(pid))
    with contextlib.suppress(FileNotFoundError):
        os.unlink(f"{home.path}/manager.sock")
    assert "on a server in the cloud" in home.rota("up", code=5).stderr
    assert "cannot be reached" in home.rota("cloud", "teardown", code=None, timeout=200).stderr
    bodies.heal(body)
    assert deploy(home)["connected"]
    assert home.rota("log", there).stdout.strip() == body.host
    gate = home.add("--cwd", "/tmp", "--", "sleep", "1000")
    home.until(lambda: home.job(f"{gate}.1")["state"] == "RUNNING", 60, "it runs")
    assert "jobs run" in home.rota("cloud", "teardown", code=None, timeout=200).stderr
    teardown(home, "--kill")
    assert heads(cloud) == []
    assert cloud.user("GET", "compute", "/os-keypairs")["keypairs"] == []
    # everything is here again
    home.rota("up")
    assert home.rota("log", before).stdout == "at home\n"
    assert home.rota("log", there).stdout.strip() == body.host
    assert home.job(f"{gate}.1")["state"] not in ("COMPLETED", "FAILED")
    home.rota("kill", gate)
    assert int(home.add("--", "true")) > int(there)
    assert home.json("cloud", "status") == {"deployed": False}


def _forwarder(home):
    import json

    with open(f"{home.path}/head/forward.json") as file:
        return json.load(file)["pid"]


def test_killed_at_each_step_nothing_is_lost_or_made_twice(cloud, bodies, home):
    first = home.add("--", "echo", "one")
    home.settled(first)
    home.rota("down")
    for step in DEPLOY_STEPS:
        assert killed_at(home, step, "cloud", "deploy", *HEAD), step
        # until it is away, the queue is here
        assert home.json("cloud", "status")["phase"] in ("planned", "sent")
    deploy(home)
    wait_for("one head server", lambda: len(heads(cloud)) == 1, 120, 0.5)  # what came too late is destroyed
    second = home.add("--cwd", "/tmp", "--", "echo", "two")
    home.settled(second)
    for step in TEARDOWN_STEPS:
        assert killed_at(home, step, "cloud", "teardown"), step
        if step != TEARDOWN_STEPS[-1]:
            home.rota("up", code=None)
            assert not home.manager()  # whatever that found, it started none here
    teardown(home)
    assert heads(cloud) == []
    home.rota("up")
    assert home.counts() == {"COMPLETED": 2}
    assert home.rota("log", second).stdout == "two\n"


def test_what_is_not_there_is_said_before_anything_is_made(cloud, home):
    def refused(*words, **more):
        done = home.rota("cloud", "deploy", *words, code=None, **more)
        assert done.returncode != 0
        return done.stderr

    assert "debian-12" in refused(*HEAD[:2], "--image", "windows", *HEAD[4:])
    assert "c1.small" in refused(*HEAD[:4], "--flavor", "enormous", *HEAD[6:])
    assert "inside" in refused(*HEAD[:6], "--network", "outside")
    assert "clouds.yaml has test" in refused("--cloud", "mars", *HEAD[2:])
    assert not os.path.exists(f"{home.path}/deployment.json")
    assert heads(cloud) == []
