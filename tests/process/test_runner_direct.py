"""One job without a manager: `--direct DIR`, as a cluster job runs it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, os.path.dirname(__file__))

from fake_manager import PATH, SOURCE, SPEC
from test_runner_jobs import alive, gone, wait_for

from rota.runner.signalled_ends import WAIT_S

RUNNER = [sys.executable, "-I", "-S", str(SOURCE / "rota" / "runner" / "__main__.py"), "--direct"]


class Node:
    """A directory for one job, and the processes that were started for it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.processes: list[subprocess.Popen[bytes]] = []

    def lease(self, command: object, attempt: int = 1, **spec: object) -> None:
        job = ["s", "d", 7, 12, attempt, command, None]
        specs = {"d": {**SPEC, "cwd": str(self.path), "grace_s": 10, **spec}}
        message = {"t": "lease", "envs": {"e": {"PATH": PATH}}, "specs": specs, "jobs": [job]}
        (self.path / "lease.json").write_text(json.dumps(message))

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen([*RUNNER, str(self.path), *words], stderr=subprocess.PIPE, cwd="/")
        self.processes.append(process)
        return process

    def run(self, *words: str) -> tuple[int, str]:
        process = self.start(*words)
        _, err = process.communicate(timeout=60)
        return process.returncode, err.decode()

    def json(self, name: str) -> dict:
        return json.loads((self.path / name).read_text())

    def row(self) -> list:
        (row,) = self.json("report.json")["ended"]
        return row

    def close(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()
            if process.stderr:
                process.stderr.close()


@pytest.fixture
def node(tmp_path):
    found = Node(tmp_path / "job")
    found.path.mkdir()
    try:
        yield found
    finally:
        found.close()


def test_it_runs_the_job_and_reports(node):
    node.lease("echo out; echo err >&2; echo $ROTA_JOB $ROTA_ATTEMPT $ROTA_RUNNER", on_success=["echo after"])
    before = time.time()
    assert node.run("--id", "r9") == (0, "")
    started, report, row = node.json("started.json"), node.json("report.json"), node.row()
    assert started["job"] == [7, 12, 1] and started["host"] == os.uname().nodename == report["host"]
    assert started["pid"] > 1 and started["ticks"] > 0 and before <= started["started"] <= time.time()
    assert started["boot"] == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert row[:6] == [7, 12, 1, 0, None, None] and report["disclaimed"] == [] and report["version"] == 1
    assert row[6] <= row[7] and row[9] > 0 and row[11] is None
    name, offset, length, _ = row[10][:4]
    assert (node.path / name).read_bytes()[offset : offset + length] == b"out\n7.12 1 r9\n"
    name, offset, length, _ = row[10][4:]
    text = (node.path / name).read_bytes()[offset : offset + length]
    assert text == b"err\nrota: on-success: echo after\nafter\n"
    assert not [path for path in node.path.iterdir() if path.name.startswith("lane-") or path.suffix.isdigit()]


@pytest.mark.parametrize(
    ("command", "status", "told"),
    [
        ("exit 3", 3, (3, None, "exit")),
        ("exit 99", 1, (99, None, "exit")),
        ("exit 100", 1, (100, None, "exit")),
        ("kill -9 $$", 137, (None, 9, "signal")),
        (["no-such-thing"], 127, (127, None, "not-found")),
    ],
)
def test_the_exit_status_is_the_jobs(node, command, status, told):
    node.lease(command)
    assert node.run()[0] == status
    assert tuple(node.row()[3:6]) == told


def test_a_job_that_cannot_start_is_reported(node):
    node.lease(["true"], cwd="/no/such/directory")
    assert node.run()[0] == 1
    assert node.row()[5] == "cwd" and not (node.path / "started.json").exists()


def test_the_same_attempt_is_never_run_twice(node):
    node.lease("echo x >> ran")
    assert node.run()[0] == 0
    before = node.json("report.json")
    code, err = node.run()
    assert code == 0 and "was started before: not run again" in err
    assert node.json("restarted.json")["job"] == [7, 12, 1] and node.json("report.json") == before
    assert (node.path / "ran").read_text() == "x\n"
    node.lease("echo y >> ran", attempt=2)
    assert node.run() == (0, "") and node.json("started.json")["job"] == [7, 12, 2]
    assert (node.path / "ran").read_text() == "x\ny\n" and node.row()[2] == 2
    node.lease("echo z >> ran", attempt=1)
    assert node.run()[0] == 0 and (node.path / "ran").read_text() == "x\ny\n", "an older one is not run either"


@pytest.mark.parametrize("left", ["started.json", "report.json"])
def test_what_an_earlier_start_left_is_enough(node, left):
    content = {"job": [7, 12, 1]} if left == "started.json" else {"ended": [[7, 12, 1, 0]], "disclaimed": []}
    node.lease("echo > ran")
    (node.path / left).write_text(json.dumps(content))
    assert node.run()[0] == 0 and not (node.path / "ran").exists() and (node.path / "restarted.json").exists()


def test_of_many_started_at_once_one_runs(node):
    node.lease("echo x >> ran; sleep 0.3")
    for process in [node.start() for _ in range(6)]:
        assert process.wait(60) == 0
    assert (node.path / "ran").read_text() == "x\n" and node.row()[3] == 0


def test_killed_outright_it_leaves_no_report_and_no_process(node):
    """Also none that has left its session: nobody else would end it where there are no control groups."""
    node.lease("setsid sleep 300 & echo $! > inner; echo $$ > pid; exec sleep 300")
    process = node.start()
    pid, inner = int(wait_for(node.path / "pid")), int(wait_for(node.path / "inner"))
    wait_for(node.path / "started.json")
    process.kill()
    process.wait()
    assert gone(pid, inner)
    assert not (node.path / "report.json").exists() and node.json("started.json")["pid"] == pid
    assert node.run()[0] == 0 and (node.path / "restarted.json").exists()
    assert not (node.path / "report.json").exists()


def test_a_batch_systems_kill_ends_the_tree_and_is_reported(node):
    node.lease("setsid sleep 100 & echo $! > other; echo $$ > pid; wait", workdir="unique", on_failure=["echo > told"])
    process = node.start()
    work = lambda: next(node.path.glob("rota_work/7/0/*/pid"), None)  # noqa: E731
    deadline = time.monotonic() + 60
    while (work() is None or not work().read_text()) and time.monotonic() < deadline:
        time.sleep(0.02)
    pids = [int(path.read_text()) for path in node.path.glob("rota_work/7/0/*/[po]*")]
    assert len(pids) == 2
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 143
    row = node.row()
    assert row[3:6] == [None, 15, "runner-stopped"] and row[11].startswith("killed by the batch system (SIGTERM)")
    assert gone(*pids) and next(node.path.glob("rota_work/7/0/*/told"))


def test_a_kill_that_hits_the_job_first_is_the_batch_systems_too(node):
    node.lease("echo $$ > pid; exec sleep 100")
    process = node.start()
    pid, begin = int(wait_for(node.path / "pid")), time.monotonic()
    os.kill(pid, signal.SIGTERM)
    time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    a_moment = time.monotonic() - begin < WAIT_S / 2
    assert process.wait(60) == 143
    told = (node.row()[5], node.row()[11])
    assert told == ("runner-stopped", "killed by the batch system (SIGTERM)") or not a_moment
    node.lease("kill -TERM $$", attempt=2)
    assert node.run()[0] == 143 and node.row()[5] == "signal", "one that does it to itself has failed"


def test_a_second_kill_is_without_grace(node):
    node.lease("trap '' TERM; echo $$ > pid; while :; do sleep 0.1; done", grace_s=60)
    process = node.start()
    pid = int(wait_for(node.path / "pid"))
    process.send_signal(signal.SIGTERM)
    time.sleep(0.3)
    assert alive(pid)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 137 and node.row()[4] == 9


@pytest.mark.parametrize("name", ["SIGUSR1", "SIGUSR2", "SIGXCPU"])
@pytest.mark.parametrize("wants", [True, False])
def test_a_batch_systems_warning_is_passed_on_or_ends_the_job(node, name, wants):
    node.lease("trap 'exit 5' USR2; echo > up; while :; do sleep 0.05; done", warn=[12, 60] if wants else None)
    process = node.start()
    deadline = time.monotonic() + 60
    while not (node.path / "up").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(getattr(signal, name))
    assert process.wait(60) == (5 if wants else 143)
    assert node.row()[5] == ("exit" if wants else "runner-stopped")
    assert wants or node.row()[11] == f"warned by the batch system ({name})"


def test_limits_and_the_end_of_the_allocation(node):
    node.lease("sleep 100", time_s=0.3)
    assert node.run()[0] == 143 and node.row()[5] == "time"
    node.lease("trap 'exit 5' USR1; while :; do sleep 0.05; done", attempt=2, warn=[10, 3])
    assert node.run("--until-s", "8")[0] == 5


def test_without_a_lease_or_with_a_bad_one_it_says_so(node):
    code, err = node.run()
    assert code == 70 and f"no job to run in {node.path}" in err and "No such file" in err
    for text in ("", "[]", "{}", '{"jobs": [["s", "d", 7, 12, 1, "true", null]]}', '{"jobs": [1]}', "\xff"):
        (node.path / "lease.json").write_text(text)
        code, err = node.run()
        assert code == 70 and "no job to run" in err and "Traceback" not in err, (text, err)
    assert sorted(path.name for path in node.path.iterdir()) == ["lease.json"]


def test_a_directory_that_cannot_be_written(node):
    node.lease("echo > ran")
    node.path.chmod(0o500)
    words = [*RUNNER, str(node.path)]
    if os.geteuid() == 0:  # may write anywhere, unless that is taken away
        words = ["setpriv", "--bounding-set=-all", *words]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    node.path.chmod(0o700)
    assert done.returncode == 73 and f"cannot work in {node.path}" in done.stderr and "denied" in done.stderr
    assert sorted(path.name for path in node.path.iterdir()) == ["lease.json"]
