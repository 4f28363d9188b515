"""Leases whose inputs are on their way: held, and not started before the manager says so."""

import copy

import pytest

from rota.runner.protocol import ProtocolError, Runner

FACTS = {
    "allocation": None, "host": "n1", "pid": 1, "cores": 2000, "memory": 1, "disk": 0, "gpus": 0, "tags": [],
    "output": "/o",
}  # fmt: skip
START_BY_S = 120


def holding(*indices, stage=(1,)):
    """A runner that was leased these jobs, of which some are not to be started yet."""
    runner = Runner("r1", dict(FACTS))
    connect = runner.greet(100.0)["connect"]
    times = {"touch_s": 15, "start_by_s": START_BY_S, "grace_s": 10, "linger_s": 60}
    runner.receive({"t": "welcome", "version": 1, "connect": connect, "session": 5, **times}, 100.0)
    jobs = [["s", "7.0", 7, index, 1, ["true"], None] for index in indices]
    specs = {"7.0": {"cwd": "/", "env": None}}
    message = {"t": "lease", "session": 5, "n": 1, "clock": 100.0, "slots": [["s", 9]], "specs": specs, "jobs": jobs}
    runner.receive({**message, "stage": [[7, index, 1] for index in stage]}, 100.0)
    return runner


def say(runner, clock=200.0, session=5, **more):
    return runner.receive({"t": "staged", "session": session, **more}, clock)


def started(runner, clock):
    return [lease.index for lease in runner.startable(clock)]


def reported(runner, clock=300.0):
    """(ended, disclaimed) rows of what the runner says."""
    reports = [message for message in runner.outgoing(clock, flush=True) if message["t"] == "report"]
    return [row for each in reports for row in each["ended"]], [row for each in reports for row in each["disclaimed"]]


def test_only_what_awaits_nothing_is_started_and_all_is_held():
    runner = holding(1, 2)
    assert started(runner, 101.0) == [2]
    assert runner.held() == [[7, 1, 1], [7, 2, 1]]


def test_it_starts_when_all_is_there_however_long_that_took():
    runner = holding(1)
    late = 100.0 + 10 * START_BY_S
    assert started(runner, late) == []
    say(runner, late, jobs=[[7, 1, 1]])
    say(runner, late, jobs=[[7, 1, 1]])
    assert started(runner, late) == [1]
    say(runner, late, jobs=[[7, 1, 1]])
    assert started(runner, late) == []


def test_what_cannot_be_brought_has_ended_with_the_reason():
    runner = holding(1)
    say(runner, failed=[[7, 1, 1, "staging", "no space"]], at=12.5)
    ended, disclaimed = reported(runner)
    assert disclaimed == [] and ended == [[7, 1, 1, None, None, "staging", 12.5, 12.5, 0.0, 0, None, "no space"]]
    assert started(runner, 300.0) == []


@pytest.mark.parametrize("order", ["kill", "recall"])
def test_an_order_withdraws_it_as_any_lease_that_was_not_started(order):
    runner = holding(1)
    assert runner.receive({"t": order, "session": 5, "jobs": [[7, 1, 1]]}, 150.0) == []
    say(runner, jobs=[[7, 1, 1]])
    assert started(runner, 200.0) == []
    assert reported(runner)[1] == [[7, 1, 1, "killed" if order == "kill" else "recalled"]]


def test_who_leaves_gives_it_back():
    runner = holding(1)
    runner.stop("drained")
    assert reported(runner)[1] == [[7, 1, 1, "drained"]]


def test_words_of_another_session_and_nonsense_change_nothing():
    runner = holding(1)
    say(runner, session=4, jobs=[[7, 1, 1]])
    say(runner, jobs=[[7, 9, 1]])
    assert started(runner, 200.0) == []
    for wrong in ({"jobs": 3}, {"failed": [[1]], "at": 1.0}, {"failed": [[7, 1, 1, "x", "y"]]}):
        with pytest.raises(ProtocolError):
            say(runner, **wrong)


def test_a_copy_goes_its_own_way():
    runner = holding(1)
    other = copy.deepcopy(runner)
    say(other, jobs=[[7, 1, 1]])
    assert started(other, 200.0) == [1] and started(runner, 200.0) == []


def test_a_word_that_was_on_its_way_for_too_long_starts_nothing():
    runner = holding(1, 2, stage=(1, 2))
    late = 100.0 + 10 * START_BY_S
    say(runner, late, jobs=[[7, 1, 1]])
    runner.receive({"t": "staged", "session": 5, "jobs": [[7, 2, 1]], "clock": late - START_BY_S - 1}, late)
    assert started(runner, late) == [1]
    assert [row[:3] for row in reported(runner, late)[1]] == [[7, 2, 1]]


def test_links_for_a_directory_of_its_own_are_names_only():
    runner = holding(1)
    with pytest.raises(ProtocolError, match="not the name of a file"):
        say(runner, jobs=[[7, 1, 1]], links=[[[7, 1, 1], [["../x", "/data/x"]]]])
    say(runner, jobs=[[7, 1, 1]], links=[[[7, 1, 1], [["x", "/data/x"]]]])
    (lease,) = runner.startable(200.0)
    assert lease.links == (("x", "/data/x"),)
