"""The runner's side of the protocol: every rule, and what loss, repetition, delay and reordering may not do."""

from __future__ import annotations

import copy
import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rota.runner.protocol import BATCH_ROWS, BATCHING_S, Lease, ProtocolError, Runner

FACTS = {
    "allocation": None,
    "host": "n1",
    "pid": 1,
    "cores": 2000,
    "memory": 1,
    "disk": 0,
    "gpus": 0,
    "tags": [],
    "output": "/o",
}


def welcomed(session: int = 5, runner: Runner | None = None, clock: float = 100.0) -> Runner:
    runner = runner or Runner("r1", dict(FACTS))
    greet = runner.greet(clock)
    runner.receive(welcome(greet["connect"], session), clock)
    return runner


def welcome(connect: int, session: int) -> dict:
    return {
        "t": "welcome",
        "version": 1,
        "connect": connect,
        "session": session,
        "touch_s": 15,
        "start_by_s": 120,
        "grace_s": 10,
        "linger_s": 60,
    }


def lease(n: int, *indices: int, session: int = 5, clock: float = 100.0, slots: int = 2, attempt: int = 1) -> dict:
    jobs = [["s", "7.0", 7, index, attempt, ["true"], None] for index in indices]
    return {
        "t": "lease",
        "session": session,
        "n": n,
        "clock": clock,
        "slots": [["s", slots]],
        "envs": {},
        "specs": {"7.0": {"cwd": "/", "env": None}},
        "jobs": jobs,
    }


def end(runner: Runner, lease: Lease, code: int = 0) -> None:
    runner.started(lease, 1.0, 4711)
    runner.ended(lease, (code, None, None if code == 0 else "exit", None), 1.0, 2.0, (0.1, 1000, None))


def kinds(messages: list[dict]) -> list[str]:
    return [message["t"] for message in messages]


def test_the_greeting_has_all_fields_and_counts_connections():
    runner = Runner("r1", dict(FACTS))
    first = runner.greet(1.0, until_s=60.0)
    assert first["connect"] == 1 and first["held"] == [] and first["until_s"] == 60.0 and first["clock"] == 1.0
    assert set(first) == {"t", "version", "runner", "connect", "clock", "until_s", "held", "gangs", *FACTS}
    assert runner.greet(2.0)["connect"] == 2
    json.dumps(first)


def test_nothing_is_sent_before_the_welcome():
    runner = Runner("r1", dict(FACTS))
    runner.greet(0.0)
    assert runner.outgoing(100.0, flush=True) == []


def test_a_welcome_of_an_older_connection_is_ignored():
    runner = Runner("r1", dict(FACTS))
    runner.greet(0.0)
    runner.greet(1.0)
    runner.receive(welcome(1, 5), 1.0)
    assert runner.session is None
    runner.receive(welcome(2, 6), 1.0)
    assert runner.session == 6


def test_a_repeated_welcome_does_not_begin_the_session_again():
    runner = welcomed()
    runner.receive(lease(1, 1), 100.0)
    runner.receive(welcome(1, 5), 101.0)
    assert runner.got == 1
    runner.receive(lease(1, 1), 101.0)
    assert len(runner.startable(101.0)) == 1


def test_leases_before_the_welcome_or_of_another_session_are_ignored():
    runner = Runner("r1", dict(FACTS))
    runner.greet(0.0)
    runner.receive(lease(1, 1), 0.0)
    assert runner.held() == []
    runner.receive(welcome(1, 5), 0.0)
    runner.receive(lease(1, 1, session=4), 0.0)
    assert runner.held() == [] and runner.got == 0


def test_leases_are_taken_in_order_and_once():
    runner = welcomed()
    runner.receive(lease(2, 2), 100.0)
    assert runner.held() == []
    runner.receive(lease(1, 1), 100.0)
    runner.receive(lease(1, 1), 100.0)
    assert runner.got == 1
    runner.receive(lease(2, 2), 100.0)
    assert runner.held() == [[7, 1, 1], [7, 2, 1]]


def test_slots_bound_what_runs_and_the_rest_waits_first_come_first_served():
    runner = welcomed()
    runner.receive(lease(1, 1, 2, 3, 4), 100.0)
    first = runner.startable(100.0)
    assert [item.index for item in first] == [1, 2]
    assert runner.startable(100.0) == []
    end(runner, first[1])
    assert [item.index for item in runner.startable(100.0)] == [3]
    runner.receive(lease(2, slots=3), 100.0)
    assert [item.index for item in runner.startable(100.0)] == [4]


def test_fewer_slots_stop_new_starts_and_nothing_else():
    runner = welcomed()
    runner.receive(lease(1, 1, 2, 3), 100.0)
    first = runner.startable(100.0)
    runner.receive(lease(2, slots=1), 100.0)
    end(runner, first[0])
    assert runner.startable(100.0) == []
    end(runner, first[1])
    assert len(runner.startable(100.0)) == 1


def test_a_lease_past_its_start_by_is_disclaimed_even_when_the_slot_is_busy():
    runner = welcomed()
    runner.receive(lease(1, 1, 2, slots=1), 150.0)
    assert [item.index for item in runner.startable(220.0)] == [1]
    assert runner.deadline(219.0) <= 220.0
    assert runner.startable(220.5) == []
    report = runner.outgoing(220.5, flush=True)[0]
    assert report["disclaimed"] == [[7, 2, 1, "start-by passed"]]
    assert [7, 2, 1] in runner.held()
    runner.receive({"t": "ack", "seq": report["seq"]}, 221.0)
    assert runner.held() == [[7, 1, 1]]


def test_an_end_is_sent_at_once_when_running_dry_and_batched_otherwise():
    runner = welcomed()
    runner.receive(lease(1, *range(1, 20)), 100.0)
    first = runner.startable(100.0)
    for item in first:
        end(runner, item)
    assert runner.outgoing(100.0) == []
    assert runner.deadline(100.0) == pytest.approx(100.0 + BATCHING_S)
    assert len(runner.outgoing(100.001 + BATCHING_S)[0]["ended"]) == len(first)

    dry = welcomed()
    dry.receive(lease(1, 1), 100.0)
    end(dry, dry.startable(100.0)[0])
    assert kinds(dry.outgoing(100.0)) == ["report"]


def test_many_ends_do_not_wait():
    runner = welcomed()
    runner.receive(lease(1, *range(3 * BATCH_ROWS), slots=BATCH_ROWS), 100.0)
    for item in runner.startable(100.0):
        end(runner, item)
    assert len(runner.outgoing(100.0)[0]["ended"]) == BATCH_ROWS


def test_short_jobs_travel_as_ended_only_and_longer_ones_tell_their_start():
    runner = welcomed()
    runner.receive(lease(1, 1, 2), 100.0)
    one, two = runner.startable(100.0)
    runner.started(one, 1.0, 11)
    runner.started(two, 1.0, 12)
    end(runner, one)
    report = runner.outgoing(100.01)[0]
    assert report["started"] == [] and len(report["ended"]) == 1
    runner.receive({"t": "ack", "seq": report["seq"]}, 100.02)
    assert runner.outgoing(100.04) == []
    assert runner.outgoing(100.05)[0]["started"] == [[7, 2, 1, 1.0, 12, None]]
    assert runner.outgoing(100.2) == []


def test_one_report_at_a_time_because_an_ack_covers_all_before_it():
    runner = welcomed()
    runner.receive(lease(1, 1, 2), 100.0)
    one, two = runner.startable(100.0)
    end(runner, one)
    first = runner.outgoing(100.0)[0]
    end(runner, two)
    assert runner.outgoing(100.1, flush=True) == []
    runner.receive({"t": "ack", "seq": first["seq"]}, 100.2)
    second = runner.outgoing(100.2, flush=True)[0]
    assert second["seq"] == first["seq"] + 1 and [row[1] for row in second["ended"]] == [2]


def test_what_is_not_acknowledged_is_sent_again_after_5_s_unchanged():
    runner = welcomed()
    runner.receive(lease(1, 1), 100.0)
    end(runner, runner.startable(100.0)[0])
    first = runner.outgoing(100.0)[0]
    assert runner.outgoing(104.9, flush=True) == []
    assert runner.deadline(104.0) == pytest.approx(105.0)
    again = runner.outgoing(105.0)[0]
    assert {**again, "clock": 0} == {**first, "clock": 0}


def test_what_is_not_acknowledged_is_held_and_sent_again_in_the_next_session():
    runner = welcomed()
    runner.receive(lease(1, 1), 100.0)
    end(runner, runner.startable(100.0)[0])
    runner.outgoing(100.0)
    runner.lost_connection()
    assert runner.outgoing(200.0, flush=True) == []
    assert runner.greet(101.0)["held"] == [[7, 1, 1]]
    runner.receive(welcome(2, 6), 101.0)
    report = runner.outgoing(101.0)[0]
    assert report["session"] == 6 and report["got"] == 0 and len(report["ended"]) == 1
    runner.receive({"t": "ack", "seq": report["seq"]}, 102.0)
    assert runner.held() == []


def test_acks_of_the_past_and_of_the_future_change_nothing():
    runner = welcomed()
    runner.receive(lease(1, 1), 100.0)
    end(runner, runner.startable(100.0)[0])
    seq = runner.outgoing(100.0)[0]["seq"]
    runner.receive({"t": "ack", "seq": seq - 1}, 100.0)
    runner.receive({"t": "ack", "seq": seq + 1}, 100.0)
    assert runner.held() == [[7, 1, 1]]


def test_an_attempt_is_never_started_twice_whoever_asks():
    runner = welcomed()
    runner.receive(lease(1, 1, 1), 100.0)
    (one,) = runner.startable(100.0)
    runner.receive(lease(2, 1), 100.0)
    assert runner.startable(100.0) == []
    end(runner, one)
    runner.receive(lease(3, 1), 100.0)
    seq = runner.outgoing(100.0)[0]["seq"]
    runner.receive({"t": "ack", "seq": seq}, 100.0)
    runner.receive(lease(4, 1), 100.0)
    assert runner.startable(100.0) == [] and runner.held() == []
    runner.receive(lease(5, 1, attempt=2), 100.0)
    assert len(runner.startable(100.0)) == 1


def test_a_touch_goes_out_after_touch_s_of_silence_with_what_is_held_and_measured():
    runner = welcomed()
    runner.receive(lease(1, 1), 100.0)
    (one,) = runner.startable(100.0)
    runner.started(one, 1.0, 11)
    seq = runner.outgoing(100.05)[0]["seq"]
    runner.receive({"t": "ack", "seq": seq}, 100.1)
    one.live = (0.5, 1900)
    assert runner.outgoing(115.0) == []
    assert runner.deadline(114.0) == pytest.approx(115.05)
    touch = runner.outgoing(115.06)[0]
    assert touch == {
        "t": "touch",
        "session": 5,
        "got": 1,
        "clock": 115.06,
        "held": [[7, 1, 1]],
        "live": [[7, 1, 1, 0.5, 1900, 11, None, None, 1.0]],
    }


def test_a_manager_that_is_back_is_told_within_a_second_what_runs_and_since_when():
    runner = welcomed()
    runner.receive(lease(1, 1), 100.0)
    (one,) = runner.startable(100.0)
    runner.started(one, 1.0, 11)
    seq = runner.outgoing(100.05)[0]["seq"]
    runner.receive({"t": "ack", "seq": seq}, 100.1)
    one.live = (0.5, 1900)
    runner.lost_connection()
    greeting = runner.greet(200.0)
    runner.receive(welcome(greeting["connect"], 6), 200.0)
    assert runner.outgoing(200.5) == []
    assert runner.outgoing(201.0)[0]["live"] == [[7, 1, 1, 0.5, 1900, 11, None, None, 1.0]]
    assert runner.outgoing(203.0) == []


def test_got_is_told_within_a_second_so_that_the_manager_need_not_repeat():
    runner = welcomed()
    runner.receive(lease(1, 1, slots=0), 100.0)
    assert runner.outgoing(100.5) == []
    assert runner.outgoing(101.0)[0]["got"] == 1


def test_kill_of_a_running_lease_is_an_order_once_and_a_shorter_grace_again():
    runner = welcomed()
    runner.receive(lease(1, 1), 100.0)
    (one,) = runner.startable(100.0)
    order = {"t": "kill", "session": 5, "jobs": [[7, 1, 1]], "grace_s": 3}
    assert runner.receive(order, 100.0) == [("kill", one, 3)]
    assert one.kill_asked
    assert runner.receive(order, 100.0) == []
    assert runner.receive({**order, "grace_s": 1}, 100.0) == [("kill", one, 1)]
    assert runner.receive({**order, "session": 4, "grace_s": 0}, 100.0) == []


def test_kill_of_a_lease_not_started_drops_and_reports_it():
    runner = welcomed()
    runner.receive(lease(1, 1, 2, slots=1), 100.0)
    runner.startable(100.0)
    assert runner.receive({"t": "kill", "session": 5, "jobs": [[7, 2, 1]], "grace_s": 3}, 100.0) == []
    assert runner.outgoing(100.0, flush=True)[0]["disclaimed"] == [[7, 2, 1, "killed"]]


def test_recall_disclaims_what_has_not_started_and_leaves_the_rest():
    runner = welcomed()
    runner.receive(lease(1, 1, 2, slots=1), 100.0)
    runner.startable(100.0)
    assert runner.receive({"t": "recall", "session": 5, "jobs": [[7, 1, 1], [7, 2, 1]]}, 100.0) == []
    assert runner.outgoing(100.0, flush=True)[0]["disclaimed"] == [[7, 2, 1, "recalled"]]
    assert runner.startable(100.0) == []


def test_an_order_that_overtakes_its_lease_is_not_lost():
    runner = welcomed()
    runner.receive({"t": "kill", "session": 5, "jobs": [[7, 1, 1]], "grace_s": 3}, 100.0)
    runner.receive({"t": "recall", "session": 5, "jobs": [[7, 1, 1], [7, 2, 1]]}, 100.0)
    runner.receive(lease(1, 1, 2), 100.0)
    assert runner.startable(100.0) == []
    assert runner.outgoing(100.0, flush=True)[0]["disclaimed"] == [[7, 1, 1, "killed"], [7, 2, 1, "recalled"]]


def test_drain_finishes_what_is_held_takes_nothing_new_and_says_bye():
    runner = welcomed()
    runner.receive(lease(1, 1, 2, slots=1), 100.0)
    (one,) = runner.startable(100.0)
    runner.receive({"t": "drain"}, 100.0)
    runner.receive(lease(2, 3), 100.0)
    end(runner, one)
    (two,) = runner.startable(100.0)
    assert two.index == 2
    report = runner.outgoing(100.0, flush=True)[0]
    assert report["disclaimed"] == [[7, 3, 1, "drained"]]
    runner.receive({"t": "ack", "seq": report["seq"]}, 100.0)
    end(runner, two)
    report = runner.outgoing(100.0, flush=True)[0]
    assert not runner.finished
    runner.receive({"t": "ack", "seq": report["seq"]}, 100.0)
    assert runner.outgoing(100.0) == [{"t": "bye", "session": 5, "reason": "drained"}]
    assert runner.finished
    runner.receive(lease(3, 4), 100.0)
    assert runner.startable(100.0) == []


def test_close_with_nothing_held_leaves_at_once():
    runner = welcomed()
    runner.receive({"t": "close"}, 100.0)
    assert kinds(runner.outgoing(100.0)) == ["bye"] and runner.finished


def test_expired_ends_all_reports_and_leaves():
    runner = welcomed()
    runner.receive(lease(1, 1, 2, slots=1), 100.0)
    (one,) = runner.startable(100.0)
    runner.greet(110.0)
    assert runner.receive({"t": "expired", "connect": 1, "reason": "old"}, 110.0) == []
    orders = runner.receive({"t": "expired", "connect": 2, "reason": "gone"}, 110.0)
    assert orders == [("kill", one, 10), ("exit", "expired: gone")]
    runner.ended(one, (None, 15, "killed", None), 1.0, 2.0)
    report = runner.outgoing(110.0, flush=True)[0]
    assert report["session"] == 5
    assert len(report["ended"]) == 1 and report["disclaimed"] == [[7, 2, 1, "expired"]]
    runner.receive({"t": "ack", "seq": report["seq"]}, 110.0)
    runner.outgoing(110.0)
    assert runner.finished


def test_an_error_is_final_in_answer_to_a_greeting_only():
    runner = welcomed()
    assert runner.receive({"t": "error", "code": "protocol", "message": "x"}, 100.0) == []
    runner.greet(101.0)
    assert runner.receive({"t": "error", "code": "busy", "message": "x"}, 101.0) == []
    assert runner.receive({"t": "error", "code": "denied", "message": "no"}, 101.0) == [("exit", "denied: no")]
    assert runner.finished


def test_stop_gives_back_what_has_not_started():
    runner = welcomed()
    runner.receive(lease(1, 1, 2, 3, slots=1), 100.0)
    runner.startable(100.0)
    runner.stop("runner-stopped")
    assert [row[1:] for row in runner.outgoing(100.0, flush=True)[0]["disclaimed"]] == [
        [2, 1, "runner-stopped"],
        [3, 1, "runner-stopped"],
    ]


def test_unsent_and_restore():
    runner = welcomed()
    runner.receive(lease(1, 1, 2, 3, slots=2), 100.0)
    one, two = runner.startable(100.0)
    end(runner, one)
    runner.outgoing(100.0, flush=True)
    end(runner, two)
    runner.stop("runner-stopped")
    spooled = json.loads(json.dumps(runner.unsent()))
    fresh = Runner("r1", dict(FACTS))
    fresh.restore(spooled)
    greet = fresh.greet(5.0)
    assert greet["connect"] == 2 and sorted(greet["held"]) == [[7, 1, 1], [7, 2, 1], [7, 3, 1]]
    fresh.receive(welcome(2, 6), 5.0)
    report = fresh.outgoing(5.0, flush=True)[0]
    assert report["seq"] > 1 and [row[1] for row in report["ended"]] == [1, 2] and len(report["disclaimed"]) == 1
    fresh.receive({"t": "ack", "seq": report["seq"]}, 5.0)
    assert fresh.held() == []
    with pytest.raises(ProtocolError):
        fresh.restore({"version": 99, "ended": [], "disclaimed": []})


@pytest.mark.parametrize(
    "bad",
    [
        [],
        {},
        {"t": 5},
        {"t": "ack"},
        {"t": "ack", "seq": "9"},
        {**lease(1, 1), "clock": None},
        {**lease(1, 1), "n": "1"},
        {**lease(1, 1), "jobs": 5},
        {**lease(1, 1), "jobs": [["s", "7.0", 7, "1", 1, ["true"], None]]},
        {**lease(1, 1), "jobs": [["s", "7.0", 7, 1, 1, ["true"], None], ["s", "other", 7, 2, 1, [], None]]},
        {**lease(1, 1), "jobs": [["s", "7.0", 7, 1, 1, None, None]]},
        {**lease(1, 1), "specs": {"7.0": {"env": "unknown"}}},
        {**lease(1, 1), "slots": [["s"]]},
        {"t": "kill", "session": 5, "jobs": [[7]]},
        {"t": "recall", "session": 5},
    ],
)
def test_nonsense_is_refused_whole(bad):
    runner = welcomed()
    with pytest.raises(ProtocolError):
        runner.receive(bad, 100.0)
    assert runner.held() == [] and runner.got == 0


def test_a_message_of_an_unknown_kind_is_ignored():
    assert welcomed().receive({"t": "news"}, 100.0) == []


def test_deepcopy_is_independent_and_keeps_the_leases_of_its_owner():
    runner = welcomed()
    runner.receive(lease(1, 1, 2, 3, slots=1), 100.0)
    (one,) = runner.startable(100.0)
    other, mine = copy.deepcopy((runner, one))
    assert mine is other.leases()[0] and mine is not one
    end(other, mine)
    other.outgoing(100.0, flush=True)
    assert one.state == "running" and runner.running["s"] == 1
    assert [item.index for item in other.startable(100.0)] == [2]
    assert runner.startable(100.0) == []


def test_a_long_note_is_cut():
    runner = welcomed()
    runner.receive(lease(1, 1), 100.0)
    (one,) = runner.startable(100.0)
    runner.ended(one, (1, None, "exit", "x" * 5000), 1.0, 2.0)
    assert len(runner.outgoing(100.0)[0]["ended"][0][11]) == 1000


class Manager:
    """A model of the manager: it acknowledges what it has, and repeats what `got` does not cover."""

    def __init__(self) -> None:
        self.session = 0
        self.connect = 0
        self.log: list[dict] = []
        self.held: set[tuple] = set()
        self.ended: dict[tuple, list] = {}
        self.returned: set[tuple] = set()

    def receive(self, message: dict) -> list[dict]:
        if message["t"] == "greet":
            if message["connect"] <= self.connect:
                return []
            self.connect = message["connect"]
            self.session += 1
            self.log = []
            lost = self.held - {tuple(key) for key in message["held"]}
            self.returned |= lost
            self.held -= lost
            return [welcome(self.connect, self.session)]
        if message.get("session") != self.session:
            return []
        answer: list[dict] = []
        if message["t"] == "report":
            for row in message["ended"]:
                key = tuple(row[:3])
                assert key not in self.returned, "an attempt that was given back had run"
                self.ended.setdefault(key, row)
                self.held.discard(key)
            for row in message["disclaimed"]:
                key = tuple(row[:3])
                assert key not in self.ended
                self.returned.add(key)
                self.held.discard(key)
            answer.append({"t": "ack", "seq": message["seq"]})
        return answer + self.log[message["got"] :]

    def lease(self, *indices: int) -> dict:
        self.held |= {(7, index, 1) for index in indices}
        self.log.append(lease(len(self.log) + 1, *indices, session=self.session, clock=0.0, slots=2))
        return self.log[-1]


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 1 << 32), loss=st.floats(0, 0.4), jumps=st.floats(0, 0.05))
def test_whatever_the_network_does_each_attempt_runs_once_and_is_told(seed, loss, jumps):
    """Lose, repeat, delay and reorder single messages in both directions, and break connections."""
    chance = random.Random(seed)
    runner, manager = Runner("r1", dict(FACTS)), Manager()
    clock, next_index, runs = 0.0, 1, {}
    up: list[tuple[float, dict]] = []
    down: list[tuple[float, dict]] = []
    live: list[tuple[float, Lease]] = []

    def post(box: list, message: dict, calm: bool) -> None:
        for _ in range(1 if calm else chance.choice((1, 1, 1, 2))):
            if calm or chance.random() >= loss:
                box.append((clock + (0.0 if calm else chance.random() * 0.5), json.loads(json.dumps(message))))

    post(up, runner.greet(clock), True)
    for turn in range(400):
        calm = turn > 250
        clock += 0.05 if not calm else 1.0
        if (not calm and chance.random() < jumps) or (runner.session is None and chance.random() < 0.2):
            post(up, runner.greet(clock), calm)
        if manager.session and next_index <= 12 and chance.random() < 0.3:
            post(down, manager.lease(next_index, next_index + 1), calm)
            next_index += 2
        for box, taker in ((up, "manager"), (down, "runner")):
            due = [item for item in box if item[0] <= clock]
            chance.shuffle(due)
            for item in due:
                box.remove(item)
                if taker == "manager":
                    for answer in manager.receive(item[1]):
                        post(down, answer, calm)
                else:
                    runner.receive(item[1], clock)
        for item in runner.startable(clock):
            runs[item.key] = runs.get(item.key, 0) + 1
            runner.started(item, clock, 1)
            live.append((clock + chance.random() * 0.3, item))
        assert len(live) <= 2
        for when, item in [pair for pair in live if pair[0] <= clock]:
            live.remove((when, item))
            end(runner, item)
        for message in runner.outgoing(clock):
            post(up, message, calm)
    assert all(count == 1 for count in runs.values())
    assert set(runs) == set(manager.ended)
    assert not manager.held and runner.held() == []
