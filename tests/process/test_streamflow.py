"""StreamFlow runs a CWL workflow by rota's scheduler and policies, and its commands are rota jobs.

It is in an environment of its own (`make streamflow`).
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
BIN = Path(os.environ.get("STREAMFLOW_BIN", ROOT / ".venv-streamflow" / "bin"))
WORKFLOW = ROOT / "tests" / "streamflow" / "workflow"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
if not (BIN / "streamflow").exists() and "CI" not in os.environ:
    pytestmark.append(pytest.mark.skip(reason="StreamFlow is not there: make streamflow"))

CONFIG = """
version: v1.0
workflows:
  main:
    type: cwl
    config: {{file: {workflow}, settings: inputs.json}}
    bindings:
      - {{step: /, target: [{{deployment: one}}]}}
      - {{step: /sum, target: {{deployment: two, service: small}}}}
deployments:
  one: {{type: rota, workdir: {at}/one, scheduling_policy: near, config: {{home: home}}}}
  two: {{type: rota, lazy: false, workdir: {at}/two, config: {{home: home, services: {{small: {{priority: 7}}}}}}}}
scheduling:
  scheduler: {{type: rota, config: {{retry_delay: 5}}}}
  policies: {{near: {{type: rota.data_locality, config: {{seed: 1}}}}}}
database: {{type: default, config: {{connection: ":memory:"}}}}
"""


class Engine:
    """A directory in which StreamFlow runs a workflow, with a manager of rota."""

    def __init__(self, at: Path) -> None:
        self.at = at

    def start(self, workflow: str, inputs: dict[str, Any]) -> "subprocess.Popen[str]":
        shutil.copytree(WORKFLOW, self.at, dirs_exist_ok=True)
        for name in ("one", "two", "elsewhere"):
            (self.at / name).mkdir()
        (self.at / "inputs.json").write_text(json.dumps(inputs))
        (self.at / "streamflow.yml").write_text(CONFIG.format(at=self.at, workflow=workflow))
        return subprocess.Popen(
            [str(BIN / "streamflow"), "run", "--outdir", str(self.at / "out"), str(self.at / "streamflow.yml")],
            cwd=self.at / "elsewhere",
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def rota(self, *words: str) -> str:
        environment = {**os.environ, "ROTA_HOME": str(self.at / "home")}
        command = [sys.executable, "-m", "rota", *words]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120).stdout

    def jobs(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.rota("jobs", "--json").splitlines()]


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    made = Engine(tmp_path)
    try:
        yield made
    finally:
        made.rota("kill", "--all")
        made.rota("down")


CONNECTORS = """
import asyncio, sys
from rota.placement.streamflow import RotaPlugin
from rota.placement.streamflow_connector import RotaConnector

class Inner:
    deployment_name = "here"

async def main(at):
    RotaPlugin().register()
    for config_dir in (at, at + "/streamflow.yml"):
        print(RotaConnector("one", config_dir, Inner(), None, home="home").home)
    print(RotaConnector("one", at, Inner(), None, home="/h").home, RotaConnector("one", at, Inner(), None).home)
    ended = []

    class Slow:
        async def kill(self):
            await asyncio.sleep(0)
            ended.append("job")

        async def close(self):
            await asyncio.sleep(0)
            ended.append("client")

    connector = RotaConnector("one", at, Inner(), None)
    await connector.undeploy(False)
    connector._client, connector._batches = Slow(), {1: Slow(), 2: Slow()}
    await asyncio.gather(connector.undeploy(False), connector.undeploy(True), connector.undeploy(False))
    print(*ended)

asyncio.run(main(sys.argv[1]))
"""


def test_16_and_19_a_home_beside_the_file_and_connectors_that_are_taken_away_at_the_same_time(tmp_path: Path) -> None:
    (tmp_path / "streamflow.yml").touch()
    command = [BIN / "python", "-c", CONNECTORS, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, cwd="/")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [f"{tmp_path}/home"] * 2 + ["/h None", "job job client"]


def test_a_workflow_with_files_between_two_locations(engine: Engine) -> None:
    texts = []
    for number in (1, 2, 3):
        (engine.at / f"text {number}.txt").write_text("a word\n" * number)
        texts.append({"class": "File", "path": f"text {number}.txt"})
    run = engine.start("main.cwl", {"texts": texts, "least": 1})
    said, _ = run.communicate(timeout=500)
    assert run.returncode == 0, said
    jobs = engine.jobs()
    assert [job["state"] for job in jobs] == ["COMPLETED"] * 4
    assert (engine.at / "out" / "total.txt").read_text().split()[:2] == ["6", jobs[3]["id"]]
    counted = [path.read_text().split() for path in (engine.at / "one").rglob("counted.txt") if not path.is_symlink()]
    assert sorted(int(count) for count, _ in counted) == [1, 2, 3]
    assert {job for _, job in counted} == {job["id"] for job in jobs[:3]}, "each was a job of rota"
    assert all(str(engine.at / "one") in job["cwd"] for job in jobs[:3]) and str(engine.at / "two") in jobs[3]["cwd"]
    assert [job["name"] for job in jobs] == ["count/0.0", "count/0.1", "count/0.2", "sum/0"]
    assert (jobs[3]["priority"], jobs[0]["priority"]) == (7, 0), "what its service says"
    asked = {(job["asked_cores"], job["asked_memory_bytes"]) for job in jobs[:3]}
    assert asked == {(1, 300 << 20)}, "what the step asks for is asked of rota; nothing learned lowers it"


def test_a_command_that_fails_fails_its_step_with_its_own_status(engine: Engine) -> None:
    run = engine.start("exit.cwl", {"command": "echo sorry >&2; exit 7"})
    said, _ = run.communicate(timeout=500)
    assert run.returncode != 0 and "7" in said
    assert [(job["state"], job["exit_code"]) for job in engine.jobs()] == [("FAILED", 7)]


def test_what_runs_ends_with_the_workflow(engine: Engine) -> None:
    gate = engine.at / "started"
    run = engine.start("exit.cwl", {"command": f"touch {gate}; exec sleep 3000"})
    deadline = time.monotonic() + 300
    while not gate.exists():
        assert run.poll() is None and time.monotonic() < deadline, "the job did not start"
        time.sleep(0.05)
    run.send_signal(signal.SIGINT)
    run.communicate(timeout=200)
    engine.rota("wait", ":running", "--timeout", "100")
    assert [job["state"] for job in engine.jobs()] == ["ABORTED"]


def test_what_the_plugin_brings() -> None:
    shown = subprocess.run([BIN / "streamflow", "plugin", "show", "rota"], capture_output=True, text=True, timeout=200)
    assert shown.returncode == 0, shown.stderr
    names = set(re.findall(r"rota[.\w]*", shown.stdout))
    policies = {"data_locality", "most_bytes", "cheapest_transfer", "least_loaded", "pack", "spread", "round_robin"}
    assert {"rota", *(f"rota.{name}" for name in (*policies, "shuffle", "matching"))} <= names
    for kind in ("connector", "scheduler"):
        one = subprocess.run(
            [BIN / "streamflow", "ext", "show", kind, "rota"], capture_output=True, text=True, timeout=200
        )
        assert one.returncode == 0 and ("home" if kind == "connector" else "retry_delay") in one.stdout, one.stderr
