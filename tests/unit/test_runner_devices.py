"""Cores and gpus by their numbers."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from rota.runner.devices import Cores, Gpus, numbers_of, text_of

TWO = [[0, 1, 2, 3], [4, 5, 6, 7]]


def cores(*numbers: int) -> Cores:
    return Cores(frozenset(numbers or range(8)), TWO)


@given(st.sets(st.integers(0, 300)))
def test_numbers_and_their_text(numbers):
    text = text_of(sorted(numbers))
    assert numbers_of(text) == sorted(numbers) and len(text) <= 4 * len(numbers)


def test_texts():
    assert text_of([0, 1, 4, 5, 6, 9]) == "0-1,4-6,9" and numbers_of("0,1,4-6\n") == [0, 1, 4, 5, 6]
    assert numbers_of("") == [] and text_of([]) == ""


def test_cores_are_given_lowest_first_and_within_one_group():
    it = cores()
    assert it.take(1000) == [0]
    assert it.take(4000) == [4, 5, 6, 7]
    assert it.take(2000) == [1, 2]
    assert it.take(2000) is None
    it.give_back([4, 5, 6, 7], 4000)
    assert it.take(1000) == [3], "the fuller group first, so that the other stays whole"


def test_more_than_a_group_has_spans_groups():
    assert cores().take(6000) == [0, 1, 2, 3, 4, 5]
    assert cores(2, 3, 6).take(3000) == [2, 3, 6]


def test_fractions_share_a_core_and_give_it_back_when_the_last_ends():
    it = cores(0, 1)
    assert it.take(400) == [0] == it.take(600)
    assert it.take(500) == [1]
    assert it.take(1000) is None
    it.give_back([0], 400)
    assert it.take(1000) is None
    it.give_back([0], 600)
    assert it.take(1000) == [0]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.sampled_from([200, 500, 999, 1000, 1500, 2000, 5000, 8000])), max_size=60))
def test_no_core_is_given_twice_and_none_is_lost(steps):
    it = cores()
    held: list[tuple[list[int], int]] = []
    for take, millicores in steps:
        if take:
            taken = it.take(millicores)
            if taken is not None:
                assert len(taken) == max(1, millicores // 1000)
                held.append((taken, millicores))
        elif held:
            it.give_back(*held.pop(0))
        whole = [number for numbers, size in held if size >= 1000 for number in numbers]
        shared = {number: 0 for numbers, size in held if size < 1000 for number in numbers}
        for numbers, size in held:
            if size < 1000:
                shared[numbers[0]] += size
        assert len(whole) == len(set(whole)) and not set(whole) & set(shared)
        assert all(used <= 1000 for used in shared.values())
    for item in held:
        it.give_back(*item)
    assert it.take(8000) == list(range(8))


def test_gpus_are_named_as_they_were_told():
    assert Gpus({"CUDA_VISIBLE_DEVICES": "2,3"}).ids == ["2", "3"]
    assert Gpus({"CUDA_VISIBLE_DEVICES": "GPU-8932f937-d72c,MIG-1/2/3"}).ids == ["GPU-8932f937-d72c", "MIG-1/2/3"]
    assert Gpus({"ROCR_VISIBLE_DEVICES": "1"}).ids == ["1"]
    assert Gpus({"SLURM_JOB_GPUS": "0-2"}).ids == ["0", "1", "2"]
    assert Gpus({"CUDA_VISIBLE_DEVICES": "NoDevFiles"}).ids == [] == Gpus({"CUDA_VISIBLE_DEVICES": ""}).ids
    assert Gpus({"CUDA_VISIBLE_DEVICES": "0,-1,2"}).ids == ["0"]
    assert Gpus({}, 2).ids == ["0", "1"] and Gpus({"CUDA_VISIBLE_DEVICES": "4,5,6"}, 2).ids == ["4", "5"]


def test_a_slot_names_gpus_by_their_place_in_the_list():
    it = Gpus({"CUDA_VISIBLE_DEVICES": "4,GPU-ab,6"})
    two = it.variables("3:1000:500:0:0,1")
    assert set(two.values()) == {b"4,GPU-ab"}
    assert set(two) == {b"ROTA_GPUS", b"CUDA_VISIBLE_DEVICES", b"ROCR_VISIBLE_DEVICES"}
    assert set(it.variables("3:1000:500:0:2").values()) == {b"6"}
    assert set(it.variables("3:1000:500:0").values()) == {b""}, "who asked for none sees none"
    assert it.variables("3:1000") == {}, "a manager that counts only"
