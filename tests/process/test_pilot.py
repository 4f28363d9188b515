"""`rota pilot` on this machine: to the end, to the end of its allocation, and on from there."""

import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import rota
from process.support_home import ROTA, alive, home
from rota.runner import __main__ as runner_program

__all__ = ["home"]

OUT_OF_TIME = 75


def begin(home, *words):
    """A pilot that is not waited for."""
    return subprocess.Popen(
        [ROTA, "pilot", *words],
        cwd=home.work, env=home.env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip


def lines(path):
    """The lines of a file, each with how often it is there."""
    return Counter(path.read_text().split()) if path.exists() else Counter()


def counts(home):
    """How many jobs are in which state, when no manager is up."""
    return home.json("status")["counts"]


def test_everything_is_run_to_the_end_with_what_jobs_add_and_summed_up(home):
    done = home.rota(
        "pilot", "--reserve-core", "--array", "1-3", "--", f"test {{}} != 2 || {ROTA} add -- false", code=1
    )
    assert "batch 1: 3 COMPLETED" in done.stdout
    assert "batch 2: 1 FAILED" in done.stdout
    assert not home.manager()
    assert counts(home) == {"COMPLETED": 3, "FAILED": 1}
    assert f"rota --home {home.path} log" in done.stdout
    assert "rota pilot --resume" in home.rota("up", code=5).stderr, "its jobs are for an allocation"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--nodes", "no-such-host.invalid:1"), "no-such-host.invalid: cannot be reached by ssh"),
        (("--nodes", "localhost:9999"), "it has"),
        (("--nodes", "localhost"), "is not HOST:CORES"),
        (("--ends-in", "30s", "--margin", "1m"), "nothing could run"),
        (("--resume",), "takes no command"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_anything_starts(home, words, said):
    assert said in home.rota("pilot", *words, "--", "true", code=2).stderr
    assert not os.path.exists(f"{home.path}/rota.db")


def test_what_can_never_run_there_is_refused_and_no_manager_stays(home):
    assert "can never run: pilot gives 1 node, 2" in home.rota("pilot", "--nodes", "2", "--", "true", code=2).stderr
    assert not home.manager()
    assert "nothing was ever added" in home.rota("pilot", "--resume", code=2).stderr


def test_the_home_of_another_manager_is_left_alone(home):
    Path(home.path, "rota.db").touch()
    assert "the home of an ordinary manager" in home.rota("pilot", "--", "true", code=5).stderr


@pytest.mark.parametrize("killed", [("pilot",), ("pilot", "manager"), ("node",)])
def test_after_a_kill_exactly_the_rest_is_run(home, killed):
    gate, out, begun = home.gate(), home.work / "out", home.work / "begun"
    command = f"echo {{}} >>{begun}; if [ {{}} -gt 3 ]; then {gate.wait}; fi; echo {{}} >>{out}"
    pilot = begin(home, "--nodes", "localhost:2", "--array", "1-8", "--", command)
    home.until(lambda: len(lines(out)) == 3 and len(lines(begun)) == 5, what="three are done, two run")
    home.until(lambda: home.counts().get("COMPLETED") == 3, what="and that is known")
    victims = [pilot.pid, *([home.manager()] if "manager" in killed else [])]
    if "node" in killed:
        victims = home.processes()
    for pid in victims:
        os.kill(pid, signal.SIGKILL)
    pilot.communicate()
    home.until(lambda: not any(map(alive, victims)), what="all that were killed are gone")
    gate.open()
    assert "8 COMPLETED" in home.rota("pilot", "--resume").stdout
    assert lines(out) == Counter(map(str, range(1, 9)))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR2, signal.SIGXCPU])
def test_a_signal_ends_what_runs_and_leaves_it_queued(home, number):
    gate, begun = home.gate(), home.work / "begun"
    pilot = begin(home, "--array", "1-2", "--cores", "2", "--", f"echo {{}} >>{begun}; {gate.wait}")
    home.until(lambda: len(lines(begun)) == 1, what="one runs")
    pilot.send_signal(number)
    _, said = pilot.communicate(timeout=60)
    assert pilot.returncode == (130 if number == signal.SIGINT else OUT_OF_TIME), said
    assert "2 jobs left; in the next allocation: rota pilot" in said
    assert set(counts(home)) <= {"WAITING", "PENDING"}, "they did not fail, and are not held"
    assert "go on with them with" in home.rota("pilot", "--", "true", code=2).stderr


def test_the_end_of_the_allocation_comes_with_a_margin_and_what_does_not_fit_is_not_begun(home):
    gate, begun, out = home.gate(), home.work / "begun", home.work / "out"
    jobs = [f'{{"command": "echo long >>{begun}", "time": "2h"}}']
    jobs += [f'{{"command": "echo short >>{begun}; {gate.wait}; echo short >>{out}"}}']
    (home.work / "jobs").write_text("\n".join(jobs) + "\n")
    for seconds in (12, 40, 110):  # on a busy machine it is over before anything was added
        done = home.rota("pilot", "--ends-in", f"{seconds}s", "--margin", "2s", "-f", "jobs", code=None, timeout=300)
        if "nothing was added: begin again" not in done.stderr:
            break
    assert done.returncode == OUT_OF_TIME, done.stderr
    assert "the allocation ends: what runs is ended" in done.stderr
    assert "2 jobs left" in done.stderr
    assert "long" not in lines(begun)
    gate.open()
    done = home.rota("pilot", "--resume", "--ends-in", "1h", code=OUT_OF_TIME)
    assert "what is left asks for more time than this allocation has" in done.stderr
    assert lines(out) == Counter(["short"])
    assert "long" not in lines(begun)


def test_a_sweep_ends_what_runners_of_a_tag_left_and_nothing_else(home):
    def left(runner):
        return subprocess.Popen(["sleep", "1000"], env={"ROTA_RUNNER": runner, "PATH": os.environ["PATH"]})

    mine, others = left("00112233aabb.0.n1.ff"), left("00112233aabc.0.n1.ff")
    try:
        program = Path(runner_program.__file__)
        subprocess.run([sys.executable, "-I", "-S", program, "--sweep", "00112233aabb"], check=True, timeout=60)
        assert mine.wait(10) == -signal.SIGKILL
        assert others.poll() is None
    finally:
        for process in (mine, others):
            process.kill()
            process.wait()


def test_a_pilot_in_python(home, monkeypatch):
    monkeypatch.chdir(home.work)
    with rota.Pilot(home.path, nodes="localhost:1", reserve_core=False) as pilot:
        batch = pilot.submit("echo {}", values=["a", "b"])
        assert {job.state for job in batch.as_completed()} == {"COMPLETED"}
        assert [site["name"] for site in pilot.ask("sites")["sites"]] == ["pilot"]
    assert not home.manager()
    with pytest.raises(rota.UsageError, match="HOST:CORES"):
        rota.Pilot(home.path, nodes="nowhere")
