"""Jobs that use rota: `rota add` in a job reaches the manager of that job, with a token that lasts as long as it."""

import json
import shlex
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from cli_support import states, until, up
from wire_support import HELLO, raw_unix

__all__ = ["up"]

ROTA = shlex.join([sys.executable, "-m", "rota"])


def test_a_job_adds_jobs_to_its_own_manager(rota):
    rota("run", "--", f"test -z $ROTA_HOME && {ROTA} add --name child -- echo from the child")
    rota("wait", "@child")
    assert rota.out("log", "2.1") == "from the child\n"


def test_a_run_in_a_job(rota):
    rota("run", "-c", "0.5", "--", f"{ROTA} run -c 0.5 -- true")
    assert [row["counts"] for row in json.loads(rota.out("status", "--json"))["batches"]] == [{"COMPLETED": 1}] * 2


def test_a_home_of_its_own_in_a_job(rota, tmp_path):
    done = rota("run", "--show", "--", f"ROTA_HOME={tmp_path}/own {ROTA} run -- true")
    assert "batch 1: 1 COMPLETED" in done.stdout
    assert len(json.loads(rota.out("status", "--json"))["batches"]) == 1


def test_it_may_not_do_more_than_add_and_look(rota):
    done = rota("run", "--show", "--", f"{ROTA} kill --all; {ROTA} status >/dev/null && echo seen")
    assert "needs more than the scope submit" in done.stderr and "seen" in done.stdout


def test_the_token_is_void_when_the_attempt_ends(rota):
    rota("run", "--", "cp $ROTA_TOKEN_FILE token; echo $ROTA_ADDRESS > address")
    address = (rota.cwd / "address").read_text().strip()
    env = {**rota.environ, "ROTA_TOKEN_FILE": str(rota.cwd / "token"), "ROTA_ADDRESS": address, "ROTA_HOME": ""}
    assert "no longer valid" in rota("add", "--", "true", env=env, code=5).stderr
    assert len(json.loads(rota.out("status", "--json"))["batches"]) == 1


def test_who_waits_with_the_token_is_shown_out_when_the_attempt_ends(rota):
    """Of what comes after it nothing is told, though it was asked before."""
    rota("add", "--", "while ! test -e go; do sleep 0.1; done")
    rota("add", "--after", "1", "--", "true")
    until(lambda: states(rota, "1") == ["RUNNING"])
    with raw_unix(rota.home / "manager.sock") as raw:
        raw.send({**HELLO, "name": "job-1.1.1"})
        assert raw.read()["t"] == "welcome"
        raw.send({"t": "ask", "id": 1, "op": "follow", "sel": []})
        (rota.cwd / "go").touch()
        said = raw.all()
    assert [message["code"] for message in said if message["t"] == "error"] == ["denied"]
    assert not [row for message in said for row in message.get("ended", ()) if row["id"] == "2.1"]


def test_no_second_manager_is_started_in_a_job(rota, tmp_path):
    env = {**rota.environ, "ROTA_ADDRESS": f"unix:{tmp_path}/manager.sock", "ROTA_HOME": ""}
    assert "no rota manager runs" in rota("add", "--", "true", env=env, code=3).stderr
    assert list(tmp_path.iterdir()) == []


def test_token_files_are_used_again(rota):
    rota("run", "--array", "1-300", "--", "test -s $ROTA_TOKEN_FILE && ls $(dirname $ROTA_TOKEN_FILE) | wc -l")
    counts = [int(rota.out("log", f"1.{number}")) for number in (1, 150, 300)]
    assert max(counts) < 200, "far fewer than jobs"
