"""The supervisor of a node: what happens when its runner dies, and when it does not."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

sys.path.insert(0, os.path.dirname(__file__))

from fake_manager import SPEC, FakeManager, children
from test_runner_gangs import until
from test_runner_jobs import alive, gone

from rota.runner import REFUSED, UNREACHED
from rota.runner.supervise import is_last


class Supervised(FakeManager):
    """A manager whose runner has a supervisor."""

    def spawn(self):
        self.command.insert(4, "--supervise")
        return super().spawn()


@pytest.fixture
def manager(tmp_path):
    found = Supervised(tmp_path, arguments=("--id", "t.0.n1", "--until-s", "3600"))
    found.settings["linger_s"] = 0.2
    try:
        found.accept()
        yield found
    finally:
        found.close()


def run_until_started(manager: Supervised, command: str, mark: Path) -> list[int]:
    manager.lease([["s", "7.0", 7, 1, 1, command, None]], {"7.0": SPEC}, [["s", 1]])
    until(lambda: mark.exists() and mark.read_text().count("\n") == 2, "the job did not start")
    return [int(word) for word in mark.read_text().split()]


def test_a_runner_that_was_killed_is_replaced_once_all_it_started_has_ended(manager, tmp_path):
    first = manager.greets[0]
    assert first["runner"].startswith("t.0.n1.") and "replaces" not in first and 3500 < first["until_s"] <= 3600
    mark = tmp_path / "pids"
    pids = run_until_started(
        manager,
        f"trap '' TERM; env -i setsid sleep 1000 & echo $! > {mark}; echo $$ >> {mark}; wait",  # not even marked
        mark,
    )
    os.kill(first["pid"], signal.SIGKILL)
    second = manager.accept()
    assert not any(map(alive, pids)), "a new runner was there before the old one's jobs were gone"
    assert second["replaces"] == first["runner"] != second["runner"] and second["runner"].startswith("t.0.n1.")
    assert second["output"] != first["output"] and second["held"] == [] and second["connect"] == 1
    assert second["until_s"] < first["until_s"]
    assert manager.run("echo again")[0][3] == 0


def test_a_regular_exit_is_passed_on(manager):
    manager.send({"t": "drain"})
    manager.pump(lambda: manager.said_bye)
    assert manager.process.wait(60) == 0 and len(manager.greets) == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda n: n.name)
def test_a_stop_is_passed_on_and_its_echo_is_no_second_one(manager, tmp_path, number):
    mark = tmp_path / "pids"
    command = (
        f"trap 'sleep 0.3; echo late; exit 5' TERM; echo $$ > {mark}; echo $$ >> {mark}; while :; do sleep 0.05; done"
    )
    (pid, _) = run_until_started(manager, command, mark)
    (runner,) = children(manager.process.pid)
    os.kill(runner, number)
    manager.process.send_signal(number)
    manager.pump(lambda: manager.said_bye)
    row = manager.ended[7, 1, 1]
    assert row[3:6] == [5, None, "runner-stopped"], "it was not left its grace"
    assert gone(pid) and manager.process.wait(60) == 0


def test_a_runner_that_dies_while_it_is_told_to_stop_is_not_replaced(manager):
    (runner,) = children(manager.process.pid)
    os.kill(runner, signal.SIGSTOP)
    manager.process.send_signal(signal.SIGTERM)
    os.kill(runner, signal.SIGKILL)
    assert manager.process.wait(60) == 128 + signal.SIGKILL


def test_a_runner_that_left_since_it_did_not_reach_the_manager_is_replaced(manager, tmp_path):
    mark = tmp_path / "pids"
    stays = f"setsid sleep 1000 < /dev/null > /dev/null 2>&1 & echo $! > {mark}; echo $$ >> {mark}"
    (left, _) = run_until_started(manager, stays, mark)  # a job that succeeds may leave something running
    manager.pump(lambda: manager.ended)
    (runner,) = children(manager.process.pid)
    manager.hang_up(stop_listening=True)
    until(lambda: runner not in children(manager.process.pid), "the runner stayed")
    manager.listen()
    second = manager.accept()
    assert second["replaces"] == manager.greets[0]["runner"] != second["runner"] and second["held"] == []
    assert not alive(left), "a successor was there before all of its predecessor was gone"
    assert manager.run("echo again")[0][3] == 0


def _answer(manager: Supervised, words: dict) -> None:
    manager.hang_up()
    greeting = manager.accept(welcome=False)
    manager.send({**words, "connect": greeting["connect"]})


@pytest.mark.parametrize(
    ("words", "status"),
    [
        ({"t": "error", "code": "denied", "message": "no"}, REFUSED),
        ({"t": "expired", "reason": "given up"}, 0),
    ],
)
def test_one_that_the_manager_turned_away_is_not_replaced(manager, words, status):
    _answer(manager, words)
    assert manager.process.wait(60) == status


@pytest.mark.parametrize(
    ("status", "first", "last"),
    [(0, True, True), (REFUSED, False, True), (1, True, True), (1, False, False), (UNREACHED, True, False)],
)
def test_only_the_first_may_give_up_before_it_had_an_answer(status, first, last):
    """Nothing can be leased to a node that has never been heard of, and its end tells people what is wrong."""
    assert is_last(status << 8, first) is last
