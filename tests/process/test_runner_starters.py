"""A real runner without the launcher whose jobs are short: starters start them, and nothing else is different."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, os.path.dirname(__file__))

from fake_manager import PROGRAM, SHORT_JOBS, SPEC, FakeManager

CORES = len(os.sched_getaffinity(0))
needs_cores = pytest.mark.skipif(CORES < 2, reason="there is one core")


@pytest.fixture
def manager(tmp_path):
    found = FakeManager(tmp_path, program=SHORT_JOBS)
    try:
        found.accept()
        yield found
    finally:
        found.close()


def threads(manager: FakeManager) -> int:
    return len(os.listdir(f"/proc/{manager.process.pid}/task"))


def wait_for(path: Path, timeout_s: float = 60) -> str:
    deadline = time.monotonic() + timeout_s
    while not path.exists() or not path.read_text().strip():
        assert time.monotonic() < deadline, f"{path} did not appear"
        time.sleep(0.02)
    return path.read_text()


def is_gone(pid: int, timeout_s: float = 30) -> bool:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state in "ZX":
            return True
        time.sleep(0.02)
    return False


def most_at_once(log: Path) -> int:
    now = most = 0
    for line in log.read_text().split():
        now += 1 if line == "+" else -1
        most = max(most, now)
    return most


def lease(manager: FakeManager, commands: dict[int, object], slots: int = 2, **spec: object) -> None:
    rows = [["s", "n", 9, index, 1, command, None] for index, command in commands.items()]
    manager.lease(rows, {"n": {**SPEC, **spec}}, [["s", slots]])


def over(manager: FakeManager, *indexes: int) -> bool:
    return all((9, index, 1) in manager.ended or (9, index, 1) in manager.disclaimed for index in indexes)


@needs_cores
def test_there_is_a_starter_for_each_core(manager):
    assert threads(manager) == 1, "nothing was to start yet"
    assert all(row[3] == 0 for row in manager.run(*[["true"]] * 50))
    assert threads(manager) == 1 + min(16, CORES)


@needs_cores
def test_jobs_that_take_long_have_no_starters(tmp_path):
    manager = FakeManager(tmp_path)
    try:
        manager.accept()
        manager.run(*[["sleep", "0.1"]] * 6)
        assert threads(manager) == 1
    finally:
        manager.close()


@needs_cores
def test_where_there_is_no_compiler_there_are_starters(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path))
    manager = FakeManager(tmp_path, arguments=("--launcher", "auto"), program=SHORT_JOBS)
    try:
        manager.accept()
        assert all(row[3] == 0 for row in manager.run(*[["true"]] * 50))
        assert threads(manager) == 1 + min(16, CORES)
    finally:
        manager.close()


def test_on_one_core_there_are_no_starters(tmp_path):
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        manager = FakeManager(tmp_path, program=SHORT_JOBS)
    finally:
        os.sched_setaffinity(0, cores)
    try:
        manager.accept()
        assert all(row[3] == 0 for row in manager.run(*[["true"]] * 30))
        assert threads(manager) == 1
    finally:
        manager.close()


def test_no_more_run_than_the_slot_has_places(manager, tmp_path):
    log = tmp_path / "log"
    command = f"echo + >> {log}; sleep 0.01; echo - >> {log}"
    for slots in (2, 1, 5, 1, 5, 4, 3):
        log.write_text("")
        rows = manager.run(*[command] * 60, slots=slots)
        assert all(row[3] == 0 for row in rows)
        assert most_at_once(log) <= slots


def test_a_limit_that_is_lowered_counts_at_once(manager, tmp_path):
    first, log = tmp_path / "first", tmp_path / "log"
    lease(manager, dict.fromkeys(range(1, 10), f"echo began >> {first}; sleep 0.01"), slots=2)
    wait_for(first)
    log.write_text("")
    lease(manager, dict.fromkeys(range(10, 60), f"echo + >> {log}; sleep 0.005; echo - >> {log}"), slots=1)
    manager.pump(lambda: over(manager, *range(1, 60)))
    assert most_at_once(log) == 1


def test_more_jobs_than_starters_run_at_once_if_they_may(manager, tmp_path):
    width = min(16, CORES) + 3
    all_here = (
        f"touch {tmp_path}/here-$ROTA_INDEX; until [ $(ls {tmp_path} | grep -c here-) = {width} ]; do sleep 0.01; done"
    )
    rows = manager.run(*[all_here] * width, slots=width)
    assert all(row[3] == 0 for row in rows)


def test_what_waits_can_be_recalled_and_killed(manager, tmp_path):
    ran, go = tmp_path / "ran", tmp_path / "go"
    commands: dict[int, object] = {1: f"echo > {tmp_path}/began; until [ -e {go} ]; do sleep 0.01; done"}
    commands.update((index, f"echo $ROTA_INDEX >> {ran}") for index in range(2, 20))
    lease(manager, commands, slots=1)
    while not (tmp_path / "began").exists():
        time.sleep(0.001)
    manager.send({"t": "recall", "session": manager.session, "jobs": [[9, 5, 1]]})
    manager.send({"t": "kill", "session": manager.session, "jobs": [[9, 6, 1], [9, 7, 1]]})
    manager.pump(lambda: over(manager, 5, 6, 7))
    assert [manager.disclaimed[9, index, 1] for index in (5, 6, 7)] == ["recalled", "killed", "killed"]
    go.touch()
    manager.pump(lambda: over(manager, *range(1, 20)))
    assert ran.read_text().split() == [str(index) for index in range(2, 20) if index not in (5, 6, 7)]


def test_a_long_job_among_short_ones_is_told_and_can_be_killed(manager):
    commands: dict[int, object] = {index: ["true"] for index in range(1, 40)}
    commands[7] = ["sleep", "1000"]
    lease(manager, commands)
    manager.pump(lambda: (9, 7, 1) in manager.started and len(manager.ended) == 38)
    assert manager.started[9, 7, 1][4] > 0
    lease(manager, {index: ["true"] for index in range(50, 70)})
    manager.pump(lambda: over(manager, *range(50, 70)))
    manager.send({"t": "kill", "session": manager.session, "jobs": [[9, 7, 1]]})
    manager.pump(lambda: over(manager, 7))
    assert manager.ended[9, 7, 1][4:6] == [signal.SIGTERM, "killed"]


def test_all_starters_may_wait_for_long_jobs(manager):
    width = min(16, CORES)
    lease(manager, {index: ["sleep", "1000"] for index in range(1, width + 1)}, slots=width)
    manager.pump(lambda: len(manager.started) == width)
    rows = [["t", "n", 9, index, 1, ["true"], None] for index in range(100, 140)]
    manager.lease(rows, {"n": SPEC}, [["t", 1]])
    manager.pump(lambda: over(manager, *range(100, 140)))
    assert all(manager.ended[9, index, 1][3] == 0 for index in range(100, 140))


def test_a_long_job_among_short_ones_has_its_time_limit(manager):
    commands: dict[int, object] = {index: ["true"] for index in range(1, 20)}
    commands[4] = ["sleep", "1000"]
    lease(manager, commands, time_s=1.0)
    manager.pump(lambda: over(manager, *range(1, 20)))
    assert manager.ended[9, 4, 1][5] == "time"
    assert all(manager.ended[9, index, 1][3] == 0 for index in range(1, 20) if index != 4)


def test_what_jobs_write_is_not_mixed(manager):
    commands = [["true"] if number % 3 == 0 else f"echo o{number}; echo e{number} >&2" for number in range(120)]
    for number, row in enumerate(manager.run(*commands)):
        written = (manager.stream(row), manager.stream(row, error=True))
        assert written == ((b"", b"") if number % 3 == 0 else (b"o%d\n" % number, b"e%d\n" % number))


def test_what_short_jobs_leave_running_is_ended(manager, tmp_path):
    commands: list[object] = [["true"] for _ in range(40)]
    commands[11] = f"sleep 1000 & echo $! > {tmp_path}/one"
    commands[12] = f"setsid sleep 1000 & echo $! > {tmp_path}/two"
    rows = manager.run(*commands)
    assert all(row[3] == 0 for row in rows)
    assert [row[11] for row in rows if row[11]] == ["ended 1 process that it left running"] * 2
    assert rows[11][11] and rows[12][11]
    assert all(is_gone(int((tmp_path / name).read_text())) for name in ("one", "two"))


def test_a_place_is_not_free_while_what_its_job_left_is_being_ended(manager, tmp_path):
    log = tmp_path / "log"
    log.write_text("")
    ready = f"{tmp_path}/ready-$ROTA_INDEX"  # a TERM before the trap would end it before it says so
    rest = f"(trap '' TERM; echo > {ready}; sleep 0.3; echo - >> {log})"
    stubborn = f"echo + >> {log}; {rest} & until [ -e {ready} ]; do sleep 0.005; done"
    rows = manager.run(*[stubborn] * 6, slots=1, grace_s=60.0)
    assert all(row[3] == 0 for row in rows) and most_at_once(log) == 1


def test_each_job_has_its_own_directory_and_umask(manager, tmp_path):
    specs = {}
    for number in range(4):
        (tmp_path / f"d{number}").mkdir()
        specs[f"n{number}"] = {
            **SPEC,
            "cwd": str(tmp_path / f"d{number}"),
            "umask": (0o022, 0o077, 0o002, 0o027)[number],
        }
    rows = [["s", f"n{index % 4}", 9, index, 1, "pwd; umask", None] for index in range(80)]
    manager.lease(rows, specs, [["s", 2]])
    manager.pump(lambda: over(manager, *range(80)))
    for index in range(80):
        spec = specs[f"n{index % 4}"]
        assert manager.stream(manager.ended[9, index, 1]).split() == [spec["cwd"].encode(), b"%04o" % spec["umask"]]


def bad_jobs(directory: Path, place: Path, program: Path) -> list[list[object]]:
    """How jobs end of which some cannot be started: exit code, signal, reason, note."""
    place.mkdir()
    script, plain = directory / "script", directory / "plain"
    script.write_text("exit 3\n")
    script.chmod(0o755)
    plain.write_text("#!/bin/sh\n")
    commands: list[object] = [["true"] for _ in range(20)]
    commands[3:9] = [["no-such-command"], ["a\0b"], ["true", "a\0b"], [str(script)], [str(plain)], []]
    manager = FakeManager(place, program=program)
    try:
        manager.accept()
        rows = manager.run(*commands)
        rows += manager.run(["true"], ["true"], cwd=str(directory / "missing"))
        rows += manager.run(["true"], ["true"], set={"A=B": "x"})
        rows += manager.run(["true"], ["true"], set={"A": "x\0y"})
        rows += manager.run(["true"], ["true"], stdout=str(directory / "missing" / "out"))
        rows += manager.run(["true"], ["true"], stdin=str(directory / "missing"))
    finally:
        manager.close()
    return [[*row[3:6], row[11]] for row in rows]


def test_a_bad_job_is_told_why_as_ever(tmp_path):
    before = bad_jobs(tmp_path, tmp_path / "before", PROGRAM)
    assert [row[2] for row in before[3:9]] == ["not-found", "not-found", "start", "exit", "not-executable", "start"]
    assert [row[2] for row in before[20:]] == ["cwd"] * 2 + ["start"] * 4 + ["output"] * 2 + ["start"] * 2
    assert bad_jobs(tmp_path, tmp_path / "after", SHORT_JOBS) == before


@pytest.mark.parametrize("more", [0, 3])  # than there are starters
def test_nobody_stays_in_the_directories_of_jobs(manager, tmp_path, more):
    place = tmp_path / "place"
    place.mkdir()
    manager.run(*[["sleep", "0.01"]] * 20, cwd=str(place), slots=min(16, CORES) + more)
    deadline = time.monotonic() + 30
    while True:
        tasks = os.listdir(f"/proc/{manager.process.pid}/task")
        at = {os.readlink(f"/proc/{manager.process.pid}/task/{task}/cwd") for task in tasks}
        if at == {"/"}:
            return
        assert time.monotonic() < deadline, at
        time.sleep(0.01)


def test_a_runner_that_is_stopped_loses_nothing_and_runs_nothing_twice(manager, tmp_path):
    ran = tmp_path / "ran"
    everything = range(1, 400)
    lease(manager, dict.fromkeys(everything, f"echo $ROTA_INDEX >> {ran}; sleep 0.002"))
    manager.pump(lambda: len(manager.ended) > 20)
    manager.process.send_signal(signal.SIGTERM)
    manager.pump(lambda: manager.said_bye)
    assert manager.process.wait(60) == 0
    told = [index for index in everything if over(manager, index)]
    assert told == list(everything)
    assert not {*manager.ended} & {*manager.disclaimed}
    lines = ran.read_text().split()
    assert len(lines) == len(set(lines))
    assert {int(line) for line in lines} <= {index for _, index, _ in manager.ended}
    assert all(why == "runner-stopped" for why in manager.disclaimed.values())


def test_a_lost_connection_changes_nothing_for_jobs_that_wait(manager, tmp_path):
    ran = tmp_path / "ran"
    everything = range(1, 200)
    lease(manager, dict.fromkeys(everything, f"echo $ROTA_INDEX >> {ran}"))
    manager.pump(lambda: len(manager.ended) > 5)
    manager.hang_up()
    manager.accept()
    manager.pump(lambda: over(manager, *everything))
    assert sorted(map(int, ran.read_text().split())) == list(everything)
    assert manager.disclaimed == {}
