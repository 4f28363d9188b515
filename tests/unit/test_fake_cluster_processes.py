"""The installed fake cluster: commands are programs, jobs are processes, and both end."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from rota.testing.fake_cluster import FakeCluster
from rota.testing.fake_cluster.processes import end_all


@pytest.fixture
def make(tmp_path):
    made = []

    def install(personality="slurm", **settings):
        cluster = FakeCluster(tmp_path / personality, personality=personality, **{"kill_wait_s": 1.0, **settings})
        made.append(cluster)
        return cluster

    yield install
    for cluster in made:
        cluster.close()
        assert not end_all(cluster.directory, 0)


def run(cluster, *argv, stdin=None, check=True, timeout=60):
    done = subprocess.run(
        [f"{cluster.bin}/{argv[0]}", *argv[1:]],
        input=(stdin or "").encode(),
        capture_output=True,
        timeout=timeout,
        cwd=cluster.directory,
    )
    done.stdout, done.stderr = (text.decode("utf-8", "replace") for text in (done.stdout, done.stderr))
    assert not check or done.returncode == 0, done
    return done


def sbatch(cluster, script, *options):
    words = ("sbatch", "--parsable", "--output=/dev/null", *options)
    return run(cluster, *words, stdin=f"#!/bin/sh\n{script}\n").stdout.strip()


def state(cluster, job):
    return run(cluster, "squeue", "-h", "-r", "-t", "all", "-j", job, "-o", "%T", check=False).stdout.strip()


def until(probe, seconds=60.0):
    deadline = time.monotonic() + seconds
    while not (answer := probe()):
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.03)
    return answer


def status(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0]
    except OSError:
        return "X"


def alive(pid):
    return status(pid) not in ("Z", "X")


def pids_in(path, count):
    def ready():
        words = path.read_text().split() if path.exists() else []
        return words if len(words) == count else None

    return [int(word) for word in until(ready)]


def test_an_array_runs_in_slots_and_every_element_knows_itself(make, tmp_path):
    cluster = make(nodes=2, cores=1)
    job = sbatch(
        cluster,
        f"echo $SLURM_ARRAY_TASK_ID $SLURMD_NODENAME > {tmp_path}/o.$SLURM_ARRAY_TASK_ID; "
        f"until [ -e {tmp_path}/go ]; do sleep 0.05; done",
        "--array=0-3",
    )
    assert sorted(state(cluster, job).split()) == ["PENDING", "PENDING", "RUNNING", "RUNNING"]
    (tmp_path / "go").touch()
    until(lambda: state(cluster, job).split() == ["COMPLETED"] * 4)
    assert [(tmp_path / f"o.{number}").read_text().split()[0] for number in range(4)] == list("0123")


@pytest.mark.parametrize(
    ("script", "options", "ending"),
    [
        ("exit 3", [], ("FAILED", "3:0")),
        ("kill -9 $$", [], ("FAILED", "0:9")),
        ("sleep 60", ["--time=0:01"], ("TIMEOUT", "0:0")),
        ("sleep 60", ["--time=1", "--signal=B:USR1@30"], ("FAILED", "0:10")),  # a minute early: before any trap is set
        (
            "exec python3 -c 'import time; x = bytearray(90 << 20); time.sleep(60)'",
            ["--mem=60"],
            ("OUT_OF_MEMORY", "0:125"),
        ),
    ],
)
def test_processes_end_as_the_accounting_says(make, script, options, ending):
    cluster = make(enforce_memory=True)
    job = sbatch(cluster, script, *options)
    words = ("sacct", "-n", "-P", "-X", "-j", job, "-o", "State,ExitCode")
    until(lambda: run(cluster, *words).stdout.strip() == "|".join(ending))


TOLD = """\
import os, signal, subprocess, sys, time
who = sys.argv[1]
def say(word):
    os.write(1, f"{who} {word}\\n".encode())  # whole: both write to one file
for name in ("INT", "TERM"):
    signal.signal(getattr(signal, "SIG" + name), lambda *_, name=name: say(name))
if who == "itself":
    subprocess.Popen([sys.executable, __file__, "apart"], start_new_session=True)
say("is up")
while True:
    time.sleep(1)
"""


def test_lsf_sends_int_then_term_then_kill_to_every_process_of_a_job(make, tmp_path):
    cluster, log, program = make("lsf", kill_wait_s=3), tmp_path / "log", tmp_path / "told.py"
    program.write_text(TOLD)
    run(cluster, "bsub", "-o", str(log), stdin=f"#!/bin/sh\nexec {sys.executable} {program} itself\n")
    until(lambda: log.exists() and log.read_text().count("up") == 2)
    run(cluster, "bkill", "1")
    until(lambda: cluster.jobs()[0]["state"] == "over")
    lines = log.read_text().splitlines()[2:]
    assert sorted(lines[:2]) == ["apart INT", "itself INT"] and sorted(lines[2:]) == ["apart TERM", "itself TERM"]


def test_cancel_ends_the_whole_tree_even_if_it_will_not(make, tmp_path):
    cluster = make(kill_wait_s=6)
    path = tmp_path / "pids"
    job = sbatch(
        cluster,
        f"trap '' TERM; echo $$ >> {path}; (sh -c 'echo $$ >> {path}; sleep 60; sleep 60') & wait; sleep 60",
    )
    pids = pids_in(path, 2)
    assert all(alive(pid) for pid in pids)
    run(cluster, "scancel", job)
    assert state(cluster, job) == "COMPLETING"
    until(lambda: state(cluster, job) == "CANCELLED")
    until(lambda: not any(alive(pid) for pid in pids))


def test_suspend_resume_requeue_and_a_lost_node(make, tmp_path):
    cluster = make(nodes=2, requeue_delay_s=0.1)
    path = tmp_path / "pids"
    job = sbatch(cluster, f"echo $$ >> {path}; exec sleep 60", "--requeue")
    first = pids_in(path, 1)[0]
    cluster.suspend(job)
    assert state(cluster, job) == "SUSPENDED"
    until(lambda: status(first) == "T")
    cluster.resume(job)
    assert state(cluster, job) == "RUNNING"
    cluster.requeue(job)
    until(lambda: not alive(first))
    second = until(lambda: state(cluster, job) == "RUNNING" and pids_in(path, 2)[1])
    node = run(cluster, "squeue", "-h", "-o", "%N").stdout.strip()
    cluster.fail_node(node)
    until(lambda: not alive(second))
    until(
        lambda: (
            run(cluster, "squeue", "-h", "-o", "%T %N").stdout.split() == ["RUNNING", "n2" if node == "n1" else "n1"]
        )
    )
    shown = run(cluster, "scontrol", "show", "job", job).stdout
    assert "Restarts=2" in shown
    rows = run(cluster, "sacct", "-n", "-P", "-X", "-D", "-j", job, "-o", "State").stdout.split()
    assert rows == ["REQUEUED", "NODE_FAIL", "RUNNING"]


def test_purge_accounting_lag_and_no_accounting(make):
    cluster = make(purge_s=0.0, accounting_lag_s=1.0)
    job = sbatch(cluster, "true")
    until(lambda: run(cluster, "squeue", "-h", "-t", "all", "-j", job, check=False).returncode == 1)
    words = ("sacct", "-n", "-P", "-X", "-j", job, "-o", "State")
    assert run(cluster, *words).stdout == ""
    until(lambda: run(cluster, *words).stdout == "COMPLETED\n")
    cluster.set(accounting=False)
    done = run(cluster, *words, check=False)
    assert (done.returncode, done.stderr) == (1, "Slurm accounting storage is disabled\n")


def test_an_id_can_be_given_twice(make):
    cluster = make()
    first = sbatch(cluster, "true", "-J", "one")
    until(lambda: state(cluster, first) == "COMPLETED")
    cluster.next_id(first)
    assert sbatch(cluster, "sleep 60", "-J", "two") == first
    names = run(cluster, "squeue", "-h", "-t", "all", "-j", first, "-o", "%j %T").stdout
    assert names == "two RUNNING\n"


FAULTS = [
    ({"do": "exit", "code": 1, "stderr": "sbatch: error: no"}, (1, "", "sbatch: error: no\n"), 0),
    ({"do": "fail-after", "code": 1, "stderr": "Socket timed out"}, (1, "1\n", "Socket timed out\n"), 1),
    ({"do": "drop-reply", "code": 1, "stderr": "Socket timed out"}, (1, "", "Socket timed out\n"), 1),
    ({"do": "empty"}, (0, "", ""), 1),
]


@pytest.mark.parametrize(("rule", "answer", "created"), FAULTS)
def test_a_faulty_submit_did_or_did_not_create_a_job(make, rule, answer, created):
    cluster = make()
    cluster.faults([{"command": "sbatch", "nth": 1, **rule}])
    done = run(cluster, "sbatch", "--parsable", "-o", "/dev/null", stdin="#!/bin/sh\ntrue\n", check=False)
    assert (done.returncode, done.stdout, done.stderr) == answer
    assert len(cluster.jobs()) == created
    assert sbatch(cluster, "true") == str(created + 1)


@pytest.mark.parametrize(("kind", "created"), [("hang", 0), ("hang-after", 1)])
def test_a_submit_that_hangs_and_is_killed(make, kind, created):
    cluster = make()
    cluster.faults([{"command": "sbatch", "nth": 1, "do": kind, "seconds": 30}])
    with pytest.raises(subprocess.TimeoutExpired):
        run(cluster, "sbatch", "--parsable", "-o", "/dev/null", stdin="#!/bin/sh\ntrue\n", timeout=6)
    assert len(cluster.jobs()) == created
    assert sbatch(cluster, "true") == str(created + 1)  # nothing is locked


def test_faulty_listings(make):
    cluster = make(cores=8)
    for _ in range(4):
        sbatch(cluster, "sleep 60")
    words = ("squeue", "-h", "-o", "%i|%T")
    whole = run(cluster, *words).stdout
    cluster.faults(
        [
            {"command": "squeue", "nth": 2, "do": "truncate", "at": 0.5},
            {"command": "squeue", "nth": 3, "do": "garbage"},
            {"command": "squeue", "nth": 4, "do": "foreign"},
            {"command": "squeue", "nth": 5, "do": "shuffle", "seed": 3},
            {"command": "squeue", "nth": 6, "do": "slow", "seconds": 0.5},
        ]
    )
    half = run(cluster, *words).stdout
    assert whole.startswith(half) and len(half) == len(whole) // 2
    assert "RUNNING" not in run(cluster, *words).stdout
    assert len(run(cluster, *words).stdout.splitlines()) == 5
    shuffled = run(cluster, *words).stdout
    assert shuffled != whole and sorted(shuffled) == sorted(whole)
    began = time.monotonic()
    assert run(cluster, *words).stdout == whole
    assert time.monotonic() - began >= 0.5


def test_chance_is_repeatable(make):
    from rota.testing.fake_cluster.faults import choose

    rules = [{"command": "*", "p": 0.3, "seed": 7, "do": "empty"}]
    struck = [call for call in range(1, 200) if choose(rules, "squeue", call)]
    assert struck == [call for call in range(1, 200) if choose(rules, "squeue", call)]
    assert 30 < len(struck) < 90


@pytest.mark.parametrize(
    ("personality", "submit", "kill", "ended"),
    [
        ("pbs", ["qsub", "-N", "x", "-o", "/dev/null", "-j", "oe"], ["qdel", "1"], ["qstat", "-x", "-f", "1"]),
        ("torque", ["qsub", "-N", "x", "-o", "/dev/null", "-j", "oe"], ["qdel", "1"], ["qstat", "-f", "-1", "1"]),
        ("lsf", ["bsub", "-J", "x"], ["bkill", "1"], ["bjobs", "-noheader", "-o", "stat exit_code delimiter=' '", "1"]),
        ("sge", ["qsub", "-N", "x", "-o", "/dev/null", "-j", "y"], ["qdel", "1"], ["qacct", "-j", "1"]),
    ],
)
def test_every_personality_runs_and_kills_processes(make, tmp_path, personality, submit, kill, ended):
    cluster = make(personality)
    path = tmp_path / "pids"
    run(cluster, *submit, stdin=f"#!/bin/sh\necho $$ > {path}\nexec sleep 60\n")
    pid = pids_in(path, 1)[0]
    assert alive(pid)
    run(cluster, *kill)
    until(lambda: not alive(pid))
    words = {"pbs": "Exit_status = 271", "torque": "exit_status = 271", "lsf": "EXIT 130", "sge": "exit_status  137"}
    until(lambda: words[personality] in run(cluster, *ended, check=False).stdout)


def test_torque_refuses_root_when_asked(make):
    cluster = make("torque", refuse_root=True)
    done = run(cluster, "qsub", "-N", "x", stdin="true\n", check=False)
    if os.getuid() == 0:
        assert (done.returncode, done.stderr) == (1, "qsub can not be run as root\n")
    else:
        assert done.returncode == 0


def test_the_command_line_installs_does_and_closes(tmp_path):
    def cli(*words, check=True):
        argv = [sys.executable, "-m", "rota.testing.fake_cluster", *words]
        return subprocess.run(argv, capture_output=True, text=True, check=check)

    place = str(tmp_path / "c")
    assert (
        cli("install", place, "--personality", "slurm", "--slots", "1", "--set", "purge_s=5").stdout.strip()
        == f"{place}/bin"
    )
    cluster = FakeCluster.at(place)
    try:
        job = sbatch(cluster, "exec sleep 60")
        cli("do", place, "force-state", job, "ST")
        assert state(cluster, job) == "STOPPED"
        cli("do", place, "force-state", job, "-")
        cli("do", place, "set", "purge_s=300")
        cli("do", place, "cancel", job)
        until(lambda: state(cluster, job) == "CANCELLED")
        assert json.loads(cli("do", place, "jobs").stdout)["by"] == "admin"
        wrong = cli("do", place, "cancel", "77", check=False)
        assert wrong.returncode == 2 and "no job '77'" in wrong.stderr
        wrong = cli("install", place + "2", "--set", "nosuch=1", check=False)
        assert wrong.returncode == 2 and "nosuch" in wrong.stderr
    finally:
        cli("close", place)
    assert not end_all(place, 0)


def test_serve_lets_time_pass_and_ends_with_its_parent(make):
    cluster = make(cores=1)
    sbatch(cluster, "sleep 0.2")
    sbatch(cluster, "true")
    argv = [sys.executable, "-m", "rota.testing.fake_cluster", "serve", cluster.directory, "--every", "0.05"]
    server = subprocess.Popen(argv)
    try:
        world = os.path.join(cluster.directory, "world.json")

        def both_over():
            with open(world) as file:
                return '"over"' in (text := file.read()) and '"pending"' not in text and '"running"' not in text

        until(both_over)
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(60)


def test_a_command_loads_little(make):
    """It is started thousands of times: what takes long to load, and is of no use to it, is not."""
    cluster = make()
    sbatch(cluster, "true")
    argv = [sys.executable, "-IS", "-X", "importtime", f"{cluster.bin}/squeue"]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}
    assert "rota.testing.fake_cluster" in loaded, sorted(loaded)
    assert not loaded & {
        "argparse",
        "asyncio",
        "hypothesis",
        "importlib.metadata",
        "logging",
        "msgspec",
        "ssl",
        "socket",
    }
