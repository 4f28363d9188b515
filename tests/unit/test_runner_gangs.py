"""Parts of gangs in the runner's protocol: held, listed, released once nothing is left, and never taken again."""

from __future__ import annotations

import copy
import json
import os
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rota.runner.protocol import ProtocolError, Runner
from rota.wire.messages import Held, Released, decode_greeting, decode_runner

sys.path.insert(0, os.path.dirname(__file__))
from test_runner_protocol import FACTS, end, kinds, lease, welcome, welcomed

SECRET = "ab" * 16


def hold(*indices: int, session: int = 5) -> dict:
    jobs = [{"job": [7, index, 1], "slot": "3:1000", "secret": SECRET, "spec": {"cores": 1000}} for index in indices]
    return {"t": "hold", "session": session, "jobs": jobs}


def release(*indices: int, session: int = 5) -> dict:
    return {"t": "release", "session": session, "jobs": [[7, index, 1] for index in indices], "grace_s": 2}


def said(messages: list[dict], kind: str) -> list:
    return [message["jobs" if kind == "released" else "holds"] for message in messages if message["t"] == kind]


def test_a_hold_is_taken_once_and_listed_whenever_it_is_said():
    runner = welcomed()
    runner.address = "n1:4000"
    (order,) = runner.receive(hold(1), 100.0)
    assert order[0] == "hold" and order[1].key == (7, 1, 1) and order[1].secret == SECRET
    assert said(runner.outgoing(100.0), "held") == [[[7, 1, 1, "n1:4000"]]]
    assert runner.receive(hold(1), 100.0) == []
    answer = runner.outgoing(100.0)
    assert said(answer, "held") == [[[7, 1, 1, "n1:4000"]]]
    assert isinstance(decode_runner(json.dumps(answer[0]).encode()), Held)
    assert runner.outgoing(101.0) == []
    (touch,) = runner.outgoing(200.0)
    assert touch["t"] == "touch" and touch["holds"] == [[7, 1, 1, "n1:4000"]]
    greet = runner.greet(201.0)
    assert greet["holds"] == [[7, 1, 1, "n1:4000"]]
    assert decode_greeting(json.dumps(greet).encode()).holds == [(7, 1, 1, "n1:4000")]


def test_a_hold_of_another_session_or_with_a_bad_row_is_not_taken():
    runner = welcomed()
    assert runner.receive(hold(1, session=4), 100.0) == [] and not runner.holds()
    for row in ({"job": [7, 1]}, {"job": [7, 1, 1], "slot": "s", "secret": ""}, None, {"job": "x"}):
        with pytest.raises(ProtocolError):
            runner.receive({"t": "hold", "session": 5, "jobs": [row]}, 100.0)
    assert not runner.holds()


def test_released_is_said_only_when_all_has_ended_and_the_attempt_is_fenced():
    runner = welcomed()
    runner.receive(hold(1), 100.0)
    runner.outgoing(100.0)
    assert runner.receive(release(1), 101.0) == [("release", (7, 1, 1), 2)]
    assert runner.receive(release(1), 102.0) == [("release", (7, 1, 1), 2)]
    assert runner.outgoing(102.0) == []
    runner.released((7, 1, 1))
    assert not runner.holds()
    answer = runner.outgoing(103.0)
    assert said(answer, "released") == [[[7, 1, 1]]]
    assert isinstance(decode_runner(json.dumps(answer[0]).encode()), Released)
    assert runner.receive(hold(1), 104.0) == [] and not runner.holds()
    runner.receive(lease(1, 1), 104.0)
    assert not runner.held() and not runner.startable(104.0)
    assert runner.receive(release(1), 105.0) == []
    assert said(runner.outgoing(105.0), "released") == [[[7, 1, 1]]]


def test_a_hold_that_could_not_be_kept_is_told_and_not_taken_again():
    runner = welcomed()
    runner.receive(hold(1), 100.0)
    runner.released((7, 1, 1))
    assert said(runner.outgoing(100.0), "released") == [[[7, 1, 1]]]
    assert runner.receive(hold(1), 101.0) == [] and not runner.holds()


def test_the_release_of_an_attempt_that_was_never_heard_of_is_answered_at_once():
    runner = welcomed()
    assert runner.receive(release(9), 100.0) == []
    assert said(runner.outgoing(100.0), "released") == [[[7, 9, 1]]]
    assert runner.receive(hold(9), 100.0) == [] and not runner.holds()


def test_the_release_of_a_running_root_ends_it_and_follows_its_acknowledged_end():
    runner = welcomed()
    runner.receive(lease(1, 1), 100.0)
    (running,) = runner.startable(100.0)
    orders = runner.receive(release(1), 101.0)
    assert ("kill", running, 2) in orders and ("release", (7, 1, 1), 2) in orders
    runner.released((7, 1, 1))
    assert "released" not in kinds(runner.outgoing(101.0, flush=True))
    end(runner, running, 1)
    (report,) = runner.outgoing(102.0, flush=True)
    assert report["t"] == "report" and report["ended"][0][:3] == [7, 1, 1]
    runner.receive({"t": "ack", "seq": report["seq"]}, 102.0)
    assert said(runner.outgoing(102.0), "released") == [[[7, 1, 1]]]


def test_the_release_of_a_root_that_waits_gives_it_back():
    runner = welcomed()
    runner.receive(lease(1, 1, slots=0), 100.0)
    assert ("release", (7, 1, 1), 2) in runner.receive(release(1), 101.0)
    (report,) = runner.outgoing(101.0, flush=True)
    assert report["disclaimed"] == [[7, 1, 1, "released"]]


def test_a_gang_comes_with_its_lease_and_a_bad_one_is_refused_whole():
    runner = welcomed()
    gang = {"secret": SECRET, "nodes": [{"host": "n1", "address": ""}, {"host": "n2", "address": "n2:4000"}]}
    with pytest.raises(ProtocolError):
        runner.receive({**lease(1, 1), "gangs": {"7.1.1": {"secret": SECRET}}}, 100.0)
    assert runner.got == 0 and not runner.held()
    runner.receive({**lease(1, 1, 2), "gangs": {"7.1.1": gang}}, 100.0)
    first, second = runner.startable(100.0)
    assert first.gang == gang and second.gang is None


def test_holds_outlive_a_connection_and_keep_a_draining_runner():
    runner = welcomed()
    runner.receive(hold(1), 100.0)
    runner.lost_connection()
    runner.receive(welcome(runner.greet(101.0)["connect"], 6), 101.0)
    runner.receive({"t": "drain"}, 101.0)
    assert "bye" not in kinds(runner.outgoing(101.0)) and not runner.finished
    assert len(runner.receive(hold(2, session=6), 102.0)) == 1, "what was decided before is finished"
    runner.receive(release(1, 2, session=6), 103.0)
    runner.released((7, 1, 1))
    assert "bye" not in kinds(runner.outgoing(103.0))
    runner.released((7, 2, 1))
    assert kinds(runner.outgoing(104.0)) == ["released", "bye"] and runner.finished


def test_a_stopping_runner_holds_nothing_more_and_says_so():
    runner = welcomed()
    runner.receive(hold(1), 100.0)
    runner.stop("runner-stopped")
    assert runner.receive(hold(2), 101.0) == []
    assert said(runner.outgoing(101.0), "released") == [[[7, 2, 1]]] and [row[1] for row in runner.holds()] == [1]
    runner.released((7, 1, 1))
    assert kinds(runner.outgoing(102.0)) == ["released", "bye"]


def test_an_expired_runner_ends_its_holds():
    runner = welcomed()
    runner.receive(hold(1), 100.0)
    orders = runner.receive({"t": "expired", "connect": runner.connect, "reason": "gone"}, 101.0)
    assert ("release", (7, 1, 1), 10) in orders and not runner.finished
    runner.released((7, 1, 1))
    assert said(runner.outgoing(102.0), "released") == [[[7, 1, 1]]] and runner.finished


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(["hold", "release", "over", "lost", "touch"]), st.integers(1, 3)), max_size=40)
)
def test_whatever_comes_nothing_released_is_held_and_copies_are_apart(steps):
    """The manager repeats and reorders; the agent ends what it is told to end, once or never."""
    runner = welcomed()
    ending: set = set()
    told: set = set()
    session, clock = 5, 100.0
    for what, index in steps:
        clock += 1.0
        key = (7, index, 1)
        twin = copy.deepcopy(runner)
        before = (runner.holds(), dict(runner._releasing), dict(runner._released))
        if what == "lost":
            session += 1
            twin = welcomed(session, runner, clock)
        elif what == "over":
            if key in ending:
                ending.discard(key)
                runner.released(key)
        elif what == "touch":
            clock += 20.0
        else:
            message = (hold if what == "hold" else release)(index, session=session)
            ending |= {order[1] for order in runner.receive(message, clock) if order[0] == "release"}
        if what != "lost":
            assert (twin.holds(), twin._releasing, twin._released) == before
        for message in runner.outgoing(clock):
            assert message["t"] in ("held", "touch", "released")
            rows = {tuple(row[:3]) for row in message.get("holds", ())}
            assert not rows & told
            for row in said([message], "released"):
                told |= {tuple(item) for item in row}
                assert not told & ending
    assert not {tuple(row[:3]) for row in runner.holds()} & told


def test_who_holds_nothing_says_what_it_always_said():
    greet = Runner("r1", dict(FACTS)).greet(1.0)
    assert "holds" not in greet
    runner = welcomed()
    assert "holds" not in runner.outgoing(200.0)[0]
