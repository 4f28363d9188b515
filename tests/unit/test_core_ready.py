"""The queue of ready positions, and the core's own chance."""

from rota.core.ready import ReadyQueue
from rota.core.soft import Soft, chance_after, chance_at
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


def draw(seed: int, count: int) -> list[float]:
    chance = Soft(seed).chance
    return [chance_at(chance, number) for number in range(1, count + 1)]


def test_chance_is_the_same_every_time() -> None:
    drawn = draw(7, 1000)
    assert drawn == draw(7, 1000)
    assert drawn != draw(8, 1000)
    assert drawn[400:] == [chance_at(chance_after(7, 400), number) for number in range(1, 601)]
    assert all(0 <= value < 1 for value in drawn)
    assert len(set(drawn)) == 1000
    assert 0.45 < sum(drawn) / 1000 < 0.55
    assert draw(0, 1) == draw(2**64, 1)
    # splitmix64, seed 1: the first outputs are known
    assert [int(value * 2**53) for value in draw(1, 2)] == [0x910A2DEC89025CC1 >> 11, 0xBEEB8DA1658EEC67 >> 11]
