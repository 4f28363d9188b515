"""Directories of jobs' own, and behaviours: a real runner, real processes, and jobs that mean no good."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, os.path.dirname(__file__))

from fake_manager import SPEC, FakeManager
from support_home import Gate
from test_runner_jobs import alive, gone, outcome, wait_for

from rota.runner.signalled_ends import WAIT_S

WAYS = ["none", "auto"] if shutil.which("cc") else ["none"]


@pytest.fixture(scope="module")
def launcher(tmp_path_factory):
    return tmp_path_factory.mktemp("launcher")


@pytest.fixture(params=WAYS)
def manager(request, tmp_path, launcher):
    way = "none" if request.param == "none" else str(launcher / "launcher")
    found = FakeManager(tmp_path, arguments=("--launcher", way))
    try:
        found.accept()
        if way != "none":
            found.launcher()
        yield found
    finally:
        found.close()


@pytest.fixture
def cwd(tmp_path):
    path = tmp_path / "cwd"
    path.mkdir()
    return path


# ---- directories ----------------------------------------------------------------------------------------------------


def test_a_unique_directory_has_a_marker_a_tmpdir_and_is_removed_on_success(manager, cwd):
    text = 'pwd; echo "$ROTA_WORKDIR $ROTA_SUBMIT_DIR $TMPDIR $HOME"; ls -A; echo x > file; echo y > "$TMPDIR/z"'
    (row,) = manager.run(text, cwd=str(cwd), workdir="unique", set={"HOME": "/home/me"})
    assert outcome(row) == (0, None, None) and row[11] is None
    lines = manager.stream(row).decode().splitlines()
    name = f"7.{row[1]}.1"
    assert lines[0] == f"{cwd}/rota_work/7/0/{name}"
    assert lines[1] == f"{lines[0]} {cwd} {lines[0]}/.rota-tmp /home/me"
    assert sorted(lines[2:]) == [".rota-tmp", ".rota-workdir"]
    assert row[12] >= 16384, "two files and what rota made"
    assert list(cwd.iterdir()) == [], "empty parents are pruned up to the cwd"


def test_home_can_be_the_directory(manager, cwd):
    (row,) = manager.run(
        '[ "$HOME" = "$PWD" ] && [ "$HOME" = "$ROTA_WORKDIR" ]', cwd=str(cwd), workdir="unique", home="workdir"
    )
    assert outcome(row) == (0, None, None)


@pytest.mark.parametrize(
    ("when", "kept"), [("success", [3]), ("failure", [0]), ("always", []), ("never", [0, 3]), (None, [3])]
)
def test_when_it_is_cleaned_up(tmp_path, when, kept):
    found = FakeManager(tmp_path)
    cwd = tmp_path / "cwd"
    cwd.mkdir()
    try:
        found.accept()
        rows = found.run("echo x > f", "echo x > f; exit 3", cwd=str(cwd), workdir="unique", cleanup=when)
    finally:
        found.close()
    there = [row[3] for row in rows if (cwd / f"rota_work/7/0/7.{row[1]}.1/f").exists()]
    assert there == kept
    assert not list(cwd.glob("rota_work/*/*/*/.rota-tmp")), "the temporary part is always removed"
    noted = [row[3] for row in rows if row[11] and "its directory is kept: " in row[11]]
    assert noted == [code for code in kept if code], "and a failed one says where it is"


def test_a_directory_replaced_by_a_link_is_not_followed(manager, cwd, tmp_path):
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "data").write_text("x")
    (tmp_path / "precious" / ".rota-workdir").write_text("Made by rota")
    text = f'mv "$ROTA_WORKDIR" {tmp_path}/moved && ln -s {tmp_path}/precious "$ROTA_WORKDIR"'
    (row,) = manager.run(text, cwd=str(cwd), workdir="unique", cleanup="always")
    assert outcome(row) == (0, None, None)
    assert "was not removed: something else is in its place" in row[11]
    assert (tmp_path / "precious" / "data").read_text() == "x"


def test_links_inside_are_removed_not_followed(manager, cwd, tmp_path):
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "data").write_text("x")
    text = f"ln -s {tmp_path}/precious link; rm -r .rota-tmp; ln -s {tmp_path}/precious .rota-tmp"
    (row,) = manager.run(text, cwd=str(cwd), workdir="unique")
    assert outcome(row) == (0, None, None) and row[11] is None
    assert (tmp_path / "precious" / "data").exists() and list(cwd.iterdir()) == []
    (row,) = manager.run(text + "; exit 1", cwd=str(cwd), workdir="unique")
    assert (tmp_path / "precious" / "data").exists(), "the temporary directory was a link"


def test_a_parent_replaced_by_a_link_is_not_followed(manager, cwd, tmp_path):
    (tmp_path / "other" / "0").mkdir(parents=True)
    text = f"mv {cwd}/rota_work/7 {tmp_path}/moved && ln -s {tmp_path}/other {cwd}/rota_work/7"
    (row,) = manager.run(text, cwd=str(cwd), workdir="unique")
    assert "was not removed: it is not where it was made" in row[11]
    assert (tmp_path / "other" / "0").is_dir()


@pytest.mark.parametrize("how", ["rm .rota-workdir", "echo mine > x; mv -f x .rota-workdir"])
def test_without_its_marker_it_stays(manager, cwd, how):
    (row,) = manager.run(how, cwd=str(cwd), workdir="unique", cleanup="always")
    assert outcome(row) == (0, None, None) and "its marker .rota-workdir is " in row[11]
    assert (cwd / f"rota_work/7/0/7.{row[1]}.1").is_dir()


def test_unreadable_and_deep_trees_are_removed(manager, cwd):
    text = f"""
    mkdir -p a/b/c; echo x > a/b/c/f; chmod 0 a/b/c a/b; chmod 500 a; chmod 0 .
    exec {sys.executable} -c '
import os
for n in range(1500):
    os.mkdir("d" * 20, 0o700); os.chdir("d" * 20)
open("end", "w").close()'
    """
    (row,) = manager.run(f"mkdir deep; (cd deep; {text.strip()})", cwd=str(cwd), workdir="unique", timeout_s=30)
    assert outcome(row) == (0, None, None), manager.stream(row, error=True)
    assert row[11] is None and list(cwd.iterdir()) == []


def test_unreadable_trees_are_removed_without_roots_powers_too(tmp_path, cwd):
    python = tmp_path / "python"
    take = "setpriv --bounding-set=-all " if os.geteuid() == 0 else ""
    python.write_text(f'#!/bin/sh\nexec {take}{sys.executable} "$@"\n')
    python.chmod(0o755)
    found = FakeManager(tmp_path, python=str(python))
    try:
        found.accept()
        text = "mkdir -p a/b/c; echo x > a/b/c/f; chmod 0 a/b/c a/b; chmod 500 a; chmod 0 . .rota-tmp"
        rows = found.run(text + "; [ ! -r a ]", text + "; exit 1", cwd=str(cwd), workdir="unique")
    finally:
        found.close()
    assert outcome(rows[0]) == (0, None, None) and rows[0][11] is None
    assert [path.name for path in cwd.glob("rota_work/7/0/*")] == [f"7.{rows[1][1]}.1"]


def test_what_survives_in_a_directory_is_ended_before_it_is_removed(manager, cwd, tmp_path):
    pidfile = tmp_path / "pid"
    (row,) = manager.run(f"setsid sleep 100 & echo $! > {pidfile}; exit 0", cwd=str(cwd), workdir="unique")
    assert outcome(row) == (0, None, None) and gone(int(pidfile.read_text())) and list(cwd.iterdir()) == []


def test_a_directory_of_that_name_that_is_there_already_is_left_alone(manager, cwd):
    taken = cwd / "rota_work" / "7" / "0" / f"7.{1 + len(manager.ended)}.1"
    taken.mkdir(parents=True)
    (taken / "mine").write_text("x")
    (row,) = manager.run("pwd", cwd=str(cwd), workdir="unique")
    assert manager.stream(row).decode().startswith(f"{taken}-")
    assert (taken / "mine").exists() and list(taken.parent.iterdir()) == [taken]


def test_what_cannot_be_started_leaves_nothing(manager, cwd):
    (row,) = manager.run(["no-such-program"], cwd=str(cwd), workdir="unique")
    assert outcome(row) == (127, None, "not-found") and list(cwd.iterdir()) == []
    (row,) = manager.run(["true"], cwd=str(cwd / "missing"), workdir="unique")
    assert outcome(row) == (None, None, "cwd")
    (cwd / "rota_work").write_text("a file")
    (row,) = manager.run(["true"], cwd=str(cwd), workdir="unique")
    assert outcome(row) == (None, None, "cwd") and str(cwd) in row[11]


def test_many_at_once_make_and_prune_the_same_parents(manager, cwd):
    rows = manager.run(
        *["[ -e .rota-workdir ] && echo x > f"] * 150, cwd=str(cwd), workdir="unique", slots=8, timeout_s=60
    )
    assert {outcome(row) for row in rows} == {(0, None, None)} and {row[11] for row in rows} == {None}
    assert list(cwd.iterdir()) == []


def test_disk_is_measured_while_it_runs(manager, cwd):
    gate = Gate(cwd / "gate")
    manager.settings["touch_s"] = 0.3
    manager.hang_up()
    manager.accept()
    spec = {**SPEC, "cwd": str(cwd), "workdir": "unique"}
    key = (8, 1, 1)
    text = f"head -c 3000000 /dev/zero > f; sync f; {gate.wait}; rm f; exit 0"
    manager.lease([["s", "d", *key, text, None]], {"d": spec}, [["s", 1]])
    manager.pump(lambda: any((row[7] or 0) >= 3000000 for touch in manager.touches for row in touch.get("live", ())))
    gate.open()
    manager.pump(lambda: key in manager.ended)
    gate.close()
    assert manager.ended[key][12] >= 3000000


def test_jobs_with_and_without_share_a_slot(manager, cwd):
    """However many leases a launcher is given ahead, no more run at once than the slot allows."""
    log = cwd / "log"
    text = f"echo + >> {log}; sleep 0.02; echo - >> {log}"
    specs = {"plain": {**SPEC, "cwd": str(cwd)}, "own": {**SPEC, "cwd": str(cwd), "workdir": "unique"}}
    jobs = [["s", "own" if i % 3 == 0 else "plain", 9, i, 1, text, None] for i in range(60)]
    manager.lease(jobs, specs, [["s", 2]])
    manager.pump(lambda: sum(key[0] == 9 for key in manager.ended) == 60, 60)
    level = most = 0
    for line in log.read_text().split():
        level += 1 if line == "+" else -1
        most = max(most, level)
    assert most == 2


# ---- behaviours -----------------------------------------------------------------------------------------------------

SAY = 'echo "%s $ROTA_EXIT_CODE/$ROTA_SIGNAL/$ROTA_REASON $ROTA_JOB $PWD $MINE"'


def behaviours(cwd):
    return {
        "cwd": str(cwd), "set": {"MINE": "a=b"}, "on_success": [SAY % "good"], "on_failure": [SAY % "bad"],
        "on_exit": [SAY % "one", SAY % "two"],
    }  # fmt: skip


def test_behaviours_run_in_order_with_what_they_should_know(manager, cwd):
    rows = manager.run("echo out; echo err >&2", "exit 3", "kill -9 $$", **behaviours(cwd))
    for row, first, how in zip(rows, ("good", "bad", "bad"), ("0//", "3//exit", "/9/signal"), strict=True):
        err = [line for line in manager.stream(row, error=True).decode().splitlines() if line.startswith(first[:1])]
        assert err == [f"{first} {how} 7.{row[1]} {cwd} a=b"]
        told = manager.stream(row, error=True).decode().splitlines()
        assert [line.split(" ")[1] for line in told if line.startswith("rota: ")] == [
            f"on-{'success' if first == 'good' else 'failure'}:", "on-exit:", "on-exit:",
        ]  # fmt: skip
        assert [line.split(" ")[0] for line in told if f" {how} " in line and "rota:" not in line] == [
            first, "one", "two",
        ]  # fmt: skip
        assert row[11] is None
    assert manager.stream(rows[0]) == b"out\n" and manager.stream(rows[0], error=True).startswith(b"err\n")
    assert [outcome(row) for row in rows] == [(0, None, None), (3, None, "exit"), (None, 9, "signal")]


def test_behaviours_run_in_the_jobs_own_directory_before_it_is_removed(manager, cwd, tmp_path):
    (row,) = manager.run(
        "echo result > r; cd /; exit 0",
        cwd=str(cwd),
        workdir="unique",
        on_success=[f"cp r {tmp_path}/saved; cp $TMPDIR/../r {tmp_path}/again"],
    )
    assert row[11] is None and (tmp_path / "saved").read_text() == "result\n" and (tmp_path / "again").exists()
    assert list(cwd.iterdir()) == []


def test_a_failing_behaviour_is_told_and_changes_nothing(manager, cwd):
    (row,) = manager.run(["true"], cwd=str(cwd), on_success=["echo no; exit 3", "kill -TERM $$"], on_exit=["true"])
    assert outcome(row) == (0, None, None)
    assert row[11] == "on-success exited 3; on-success was ended by signal 15"
    assert b"\nno\n" in b"\n" + manager.stream(row, error=True)
    (row,) = manager.run("exit 9", cwd=str(cwd), on_failure=["no-such-command-xyz"])
    assert outcome(row) == (9, None, "exit") and row[11] == "on-failure exited 127"


def test_their_output_follows_the_jobs_stderr_file(manager, cwd):
    (row,) = manager.run("echo mine >&2", cwd=str(cwd), stderr=str(cwd / "e"), on_exit=["echo after"])
    assert (cwd / "e").read_text() == "mine\nrota: on-exit: echo after\nafter\n"
    (row,) = manager.run("true", cwd=str(cwd), stderr="/dev/null", on_exit=["echo after"])
    assert row[11] is None


def test_a_behaviour_has_a_time_limit_and_ends_with_its_tree(manager, cwd, tmp_path):
    pidfile = tmp_path / "pid"
    (row,) = manager.run(
        "true",
        cwd=str(cwd),
        behaviour_s=4,
        grace_s=0.2,
        on_exit=[f"setsid sleep 100 & echo $! > {pidfile}; trap '' TERM; sleep 100", "echo next"],
    )
    assert outcome(row) == (0, None, None)
    assert row[11] == "on-exit was ended: over its time limit" and gone(int(pidfile.read_text()))
    assert b"\nnext\n" in manager.stream(row, error=True)


def test_while_a_behaviour_runs_the_job_is_held_and_a_kill_ends_it(manager, cwd):
    manager.settings["touch_s"] = 0.2
    manager.hang_up()
    manager.accept()
    pidfile, key = cwd / "pid", (8, 1, 1)
    spec = {**SPEC, "cwd": str(cwd), "on_exit": [f"echo $$ > {pidfile}; sleep 100", "echo never > never"]}
    manager.lease([["s", "d", *key, ["true"], None]], {"d": spec}, [["s", 1]])
    while not pidfile.exists() or not pidfile.read_text().strip():
        for message in manager.read(0.05):
            manager.take(message)
    manager.touches.clear()
    manager.pump(lambda: len(manager.touches) >= 2)
    assert [8, 1, 1] in manager.touches[-1]["held"] and key not in manager.ended
    manager.send({"t": "kill", "session": manager.session, "jobs": [list(key)], "grace_s": 1})
    manager.pump(lambda: key in manager.ended)
    row = manager.ended[key]
    assert outcome(row) == (0, None, None)
    assert row[11] == "on-exit was ended: killed; on-exit was not run: killed"
    assert gone(int(pidfile.read_text())) and not (cwd / "never").exists()


def test_a_killed_job_has_its_behaviours_within_the_grace(manager, cwd):
    key = (8, 1, 1)
    spec = {**SPEC, "cwd": str(cwd), "grace_s": 5, "on_failure": ["echo $ROTA_REASON > why", "sleep 100"]}
    manager.lease([["s", "d", *key, "echo > up; sleep 100", None]], {"d": spec}, [["s", 1]])
    manager.pump((cwd / "up").exists)
    manager.send({"t": "kill", "session": manager.session, "jobs": [list(key)], "grace_s": 5})
    manager.pump(lambda: key in manager.ended)
    row = manager.ended[key]
    assert outcome(row) == (None, 15, "killed") and (cwd / "why").read_text() == "killed\n"
    assert row[11] == "on-failure was ended: over its time limit"


def test_a_stopped_runner_ends_behaviours_and_says_so(manager, cwd):
    pidfile = cwd / "pid"
    spec = {**SPEC, "cwd": str(cwd), "on_exit": [f"echo $$ > {pidfile}; sleep 100"], "workdir": "unique"}
    manager.lease([["s", "d", 8, 1, 1, ["true"], None]], {"d": spec}, [["s", 1]])
    wait_for(pidfile)
    manager.process.send_signal(signal.SIGTERM)
    manager.pump(lambda: manager.said_bye)
    assert outcome(manager.ended[8, 1, 1]) == (0, None, None)
    assert manager.ended[8, 1, 1][11] == "on-exit was ended: its allocation is being ended (SIGTERM)"
    assert not alive(int(pidfile.read_text())) and not (cwd / "rota_work").exists()


def test_the_runner_started_for_a_dead_one_runs_no_behaviours(tmp_path, cwd):
    """What a runner that was killed left behind is ended by the driver; nobody runs its behaviours elsewhere."""
    found = FakeManager(tmp_path)
    try:
        found.accept()
        spec = {**SPEC, "cwd": str(cwd), "on_exit": ["echo > ran"], "on_failure": ["echo > ran"]}
        found.lease([["s", "d", 8, 1, 1, "echo $$ > up; exec sleep 100", None]], {"d": spec}, [["s", 1]])
        pid = int(wait_for(cwd / "up"))
        found.process.kill()
        found.process.wait()
        os.kill(pid, signal.SIGKILL)
        found.spawn()
        found.connection.close()
        greeting = found.accept()
        assert greeting["held"] == []
        time.sleep(0.3)
        assert not (cwd / "ran").exists()
    finally:
        found.close()


# ---- warnings -------------------------------------------------------------------------------------------------------

WARNED = "trap 'echo warned; exit 5' USR1; echo up > up; while :; do sleep 0.05; done"


def test_a_signal_before_the_time_limit(manager, cwd):
    (row,) = manager.run(WARNED, cwd=str(cwd), time_s=60, warn=[10, 56], grace_s=0.2)
    assert outcome(row) == (5, None, "exit") and manager.stream(row) == b"warned\n"
    assert row[7] - row[6] > 0.5
    (row,) = manager.run(WARNED.replace("exit 5", ":"), cwd=str(cwd), time_s=8, warn=[10, 4], grace_s=0.2)
    assert outcome(row)[2] == "time" and manager.stream(row) == b"warned\n", "once, and the limit stands"


@pytest.mark.parametrize("option", ["--until-s", "--until"])
def test_a_signal_before_the_end_of_the_allocation(tmp_path, cwd, option):
    end = 20 if option == "--until-s" else int(time.time()) + 21
    found = FakeManager(tmp_path, arguments=(option, str(end)))
    begin = time.monotonic()
    try:
        assert 0 < found.accept()["until_s"] <= 21
        (row,) = found.run(WARNED, cwd=str(cwd), time_s=100, warn=[10, 14])
    finally:
        found.close()
    assert outcome(row) == (5, None, "exit") and time.monotonic() - begin > 0.5


@pytest.mark.parametrize(("name", "until_s"), [("SIGUSR1", 170), ("SIGTERM", 14)])
def test_only_a_job_that_had_all_of_its_allocation_ends_for_its_time(tmp_path, cwd, name, until_s):
    found = FakeManager(tmp_path, arguments=("--until-s", str(until_s)))
    try:
        found.accept()
        plain = {**SPEC, "cwd": str(cwd), "grace_s": 1}
        specs = {"none": plain, "short": {**plain, "time_s": until_s / 2}, "long": {**plain, "time_s": 1000}}
        jobs = [
            ["s", spec, 8, number, 1, f"echo > up{number}; sleep 100", None] for number, spec in enumerate(specs, 1)
        ]
        begin = time.monotonic()
        found.lease(jobs, specs, [["s", 3]])
        found.pump(lambda: all((cwd / f"up{number}").exists() for number in (1, 2, 3)))
        had_all = time.monotonic() - begin < until_s / 20
        found.process.send_signal(getattr(signal, name))
        found.pump(lambda: len(found.ended) == 3)
    finally:
        found.close()
    reasons = [found.ended[8, number, 1][5] for number in (1, 2, 3)]
    assert reasons[1] == "runner-stopped", "its own time was not over"
    assert reasons == ["time", "runner-stopped", "time"] or not had_all, "no other allocation would have given more"


@pytest.mark.parametrize("name", ["SIGUSR1", "SIGUSR2", "SIGXCPU"])
def test_a_batch_systems_warning_ends_what_does_not_want_to_be_warned_itself(tmp_path, cwd, name):
    found = FakeManager(tmp_path)
    try:
        found.accept()
        specs = {"plain": {**SPEC, "cwd": str(cwd), "grace_s": 1}, "own": {**SPEC, "cwd": str(cwd), "warn": [10, 9]}}
        jobs = [
            ["s", "plain", 8, 1, 1, ["sleep", "100"], None],
            ["s", "own", 8, 2, 1, WARNED, None],
            ["s", "plain", 8, 3, 1, ["true"], None],
        ]
        found.lease(jobs, specs, [["s", 2]])
        wait_for(cwd / "up")
        found.process.send_signal(getattr(signal, name))
        found.pump(lambda: found.said_bye)
        assert outcome(found.ended[8, 1, 1]) == (None, 15, "runner-stopped")
        assert found.ended[8, 1, 1][11] == f"its allocation ends ({name})"
        assert outcome(found.ended[8, 2, 1]) == (5, None, "exit")
        assert found.disclaimed[8, 3, 1] == "runner-stopped"
        assert found.process.wait(60) == 0
    finally:
        found.close()


def test_a_job_that_the_batch_system_killed_a_moment_before_the_runner_did_not_fail(manager, cwd):
    jobs = [["s", "d", 8, 1, 1, "echo $$ > pid; exec sleep 100", None]]
    manager.lease(jobs, {"d": {**SPEC, "cwd": str(cwd)}}, [["s", 2]])
    pid = int(wait_for(cwd / "pid"))
    begin = time.monotonic()
    os.kill(pid, signal.SIGTERM)
    while os.path.exists(f"/proc/{pid}"):
        time.sleep(0.002)
    manager.process.send_signal(signal.SIGTERM)
    a_moment = time.monotonic() - begin < WAIT_S / 2
    manager.pump(lambda: manager.said_bye)
    assert outcome(manager.ended[8, 1, 1])[:2] == (None, 15)
    told = (manager.ended[8, 1, 1][5], manager.ended[8, 1, 1][11])
    assert told == ("runner-stopped", "its allocation is being ended (SIGTERM)") or not a_moment


def test_a_python_as_old_as_3_8_can_do_all_this(tmp_path, cwd):
    old = shutil.which("python3.8")
    versions = sorted(Path(os.path.expanduser("~/.pyenv/versions")).glob("3.8*/bin/python3.8"))
    python = str(versions[0]) if versions else old
    if python is None or subprocess.run([python, "-c", ""], capture_output=True, check=False).returncode:
        pytest.skip("there is no Python 3.8 here")
    found = FakeManager(tmp_path, python=python)
    try:
        found.accept()
        (row,) = found.run("mkdir -p a/b; echo x > a/b/c", cwd=str(cwd), workdir="unique", on_exit=["exit 4"])
    finally:
        found.close()
    assert outcome(row) == (0, None, None) and row[11] == "on-exit exited 4" and list(cwd.iterdir()) == []
