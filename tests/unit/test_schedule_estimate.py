"""Learning: the vectors of the reference, and what must not be copied from it."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rota.model.needs import Amounts, Needs
from rota.schedule.estimate import (
    MIB,
    SIZE_UNIT,
    TIME_UNIT,
    Samples,
    asked_for,
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
    found = recommend(mib(*values), SIZE_UNIT)
    assert (None if found is None else found // MIB) == expected


def test_time_is_recommended_by_the_second() -> None:
    assert recommend([7], TIME_UNIT) == 7
    assert recommend([*range(1, 101)], TIME_UNIT) == 95


def test_equal_values_weigh_as_often_as_they_were_seen() -> None:
    """A set of distinct values would recommend the outlier."""
    assert recommend(mib(*[100] * 50, 9000), SIZE_UNIT) == SIZE_UNIT


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
    assert escalate_disk(10 * MIB, 0) == SIZE_UNIT, "in steps of 100 MiB, not of 100 GiB"


def test_nothing_learned_asks_for_more_than_the_largest_node_has() -> None:
    node = Amounts(memory=8 << 30, disk=0)
    assert asked_for(Needs(), (1 << 60, 1 << 60, 7), "never", 0, node) == Needs(memory=8 << 30, time_s=7)


LEARNED = (100 * MIB, 1024 * MIB, None)


@pytest.mark.parametrize(
    ("given", "override", "level", "memory", "disk"),
    [
        ((None, None), "never", 0, 100, 1024),
        ((500, 2048), "never", 0, 100, 1024),
        ((500, None), "always", 0, 500, 1024),
        ((500, 0), "always", 0, 500, 0),
        ((50, 2048), "higher", 0, 100, 2048),
        ((500, 0), "higher", 0, 500, 1024),
        ((500, 2048), "never", 1, 500, 2048),
        ((50, None), "never", 2, 100, 1024),
        ((50, 10), "always", 1, 50, 10),
    ],
)
def test_whose_figure_is_used(
    given: tuple[int | None, int | None], override: str, level: int, memory: int, disk: int
) -> None:
    """Also: an explicit 0 is a figure, and not the same as none."""
    needs = Needs(
        memory=None if given[0] is None else given[0] * MIB, disk=None if given[1] is None else given[1] * MIB
    )
    asked = asked_for(needs, LEARNED, override, level, None)
    assert (asked.memory, asked.disk, asked.time_s) == (memory * MIB, disk * MIB, None)


@given(st.lists(st.integers(0, 1 << 40), min_size=1, max_size=300))
def test_a_recommendation_is_a_step_and_covers_most(values: list[int]) -> None:
    values.sort()
    found = recommend(values, SIZE_UNIT)
    if found is None:
        assert values[-1] == 0 or max(values) == 0
        return
    assert found % SIZE_UNIT == 0
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
