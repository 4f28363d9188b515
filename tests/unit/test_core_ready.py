"""The queue of ready positions, and the core's own chance."""

from rota.core.ready import ReadyQueue
from rota.core.state import Settings, State
from rota.model.tables import PENDING, WAITING


def test_least_first_and_merged() -> None:
    queue, states = ReadyQueue(), bytearray([PENDING] * 10)
    queue.push(5, 10)
    queue.push(0, 5)
    assert queue.take(3, states) == [0, 3]
    assert queue.take(100, bytearray([WAITING] * 3 + [PENDING] * 7)) == [3, 10]
    assert queue.take(1, states) == []


def test_stale_entries_are_skipped() -> None:
    queue, states = ReadyQueue(), bytearray([PENDING] * 6)
    queue.push(0, 6)
    states[1] = states[2] = WAITING
    assert queue.take(3, states) == [0, 1, 3, 5]


def test_nothing_wanted_nothing_taken() -> None:
    queue = ReadyQueue()
    queue.push(0, 3)
    assert queue.take(0, bytearray([PENDING] * 3)) == []
    assert queue.take(3, bytearray([PENDING] * 3)) == [0, 3]


def test_chance_is_the_same_every_time() -> None:
    one, other, third = State(Settings(), 7), State(Settings(), 7), State(Settings(), 8)
    drawn = [one.random() for _ in range(1000)]
    assert drawn == [other.random() for _ in range(1000)]
    assert drawn != [third.random() for _ in range(1000)]
    assert all(0 <= value < 1 for value in drawn)
    assert len(set(drawn)) == 1000
    assert 0.45 < sum(drawn) / 1000 < 0.55
    assert State(Settings(), 0).random() == State(Settings(), 2**64).random()
    # splitmix64, seed 1: the first outputs are known
    fresh = State(Settings(), 1)
    assert [int(fresh.random() * 2**53) for _ in range(2)] == [0x910A2DEC89025CC1 >> 11, 0xBEEB8DA1658EEC67 >> 11]
