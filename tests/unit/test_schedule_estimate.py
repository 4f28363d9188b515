"""Learning: the vectors of the reference, and what must not be copied from it."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rota.schedule.estimate import (
    MEMORY_UNIT,
    MIB,
    TIME_UNIT,
    Samples,
    escalate_disk,
    escalate_memory,
    escalate_time,
    recommend,
)


def mib(*values: int) -> list[int]:
    return sorted(value * MIB for value in values)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([150], 200),
        ([150, 5000], 5000),
        ([2, 3, 4, *range(1100, 4000, 100)], 3400),
        ([6, 7, 8, *range(8000, 14000, 200)], 12800),
        ([100] * 1000, 100),
        ([], None),
        ([0], None),
        ([0] * 10 + [1], 100),
    ],
)
def test_recommendation_vectors(values: list[int], expected: int | None) -> None:
    found = recommend(mib(*values), MEMORY_UNIT)
    assert (None if found is None else found // MIB) == expected


def test_time_is_recommended_by_the_second() -> None:
    assert recommend([7], TIME_UNIT) == 7
    assert recommend([*range(1, 101)], TIME_UNIT) == 95


def test_equal_values_weigh_as_often_as_they_were_seen() -> None:
    """A set of distinct values would recommend the outlier."""
    assert recommend(mib(*[100] * 50, 9000), MEMORY_UNIT) == MEMORY_UNIT


@pytest.mark.parametrize(
    ("peak", "current", "expected"),
    [(500, 0, 1500), (3000, 0, 6000), (8192, 0, 16400), (9000, 0, 11700), (2000, 10000, 10000)],
)
def test_memory_escalation_vectors(peak: int, current: int, expected: int) -> None:
    assert escalate_memory(peak * MIB, current * MIB) == expected * MIB


def test_time_and_disk_escalation() -> None:
    assert escalate_time(100, 60) == 3700
    assert escalate_time(100, 9000) == 9000
    assert escalate_disk(1000 * MIB, 0) == 1300 * MIB
    assert escalate_disk(10 * MIB, 0) == MEMORY_UNIT, "in steps of 100 MiB, not of 100 GiB"


def test_an_absurd_sample_counts_as_the_whole_node_at_most() -> None:
    samples = Samples()
    samples.add(1 << 60, most=8 << 30)
    assert samples.values == [8 << 30]


@given(st.lists(st.integers(0, 1 << 40), min_size=1, max_size=300))
def test_a_recommendation_is_a_step_and_covers_most(values: list[int]) -> None:
    values.sort()
    found = recommend(values, MEMORY_UNIT)
    if found is None:
        assert values[-1] == 0 or max(values) == 0
        return
    assert found % MEMORY_UNIT == 0
    left_out = 5 if len(values) <= 100 else len(values) // 20
    assert sum(value > found for value in values) <= left_out


@given(st.integers(1, 3000), st.randoms())
def test_samples_stay_sorted_and_bounded(count: int, chance: random.Random) -> None:
    values = [chance.randrange(1 << 40) for _ in range(count)]
    samples = Samples()
    for value in values:
        samples.add(value)
    assert samples.seen == len(values)
    assert len(samples.values) <= 1000
    assert samples.values == sorted(samples.values)
    assert samples.values[-1] == max(values)
