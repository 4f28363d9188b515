"""Cores and gpus by their numbers."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rota.model.fields import FIELDS
from rota.model.needs import BINDS
from rota.runner.devices import Bindings, Cores, Gpus, text_of
from rota.runner.grouping import best, core_groups, numbers_of, part

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


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("compact", [0, 1, 2, 4, 5, 6]),
        ("tight", [0, 1, 2, 3, 4, 5]),
        ("scatter", [0, 1, 4, 5, 8, 9]),
        ("cores", [0, 1, 2, 3, 4, 5]),
    ],
)
def test_six_cores_of_three_memory_nodes_of_four(how, expected):
    assert Cores(frozenset(range(12)), [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]).take(6000, how) == expected


def test_strict_forms_wait_for_what_an_idle_node_gives():
    it = Bindings(cores())
    assert it.take((1, 1, 1), 1000) and it.take((1, 2, 1), 4000)
    assert it.take((1, 3, 1), 1000)
    it.give_back((1, 2, 1))
    assert it.take((1, 4, 1), 1000, "scatter"), "one core is in one group, however it is asked for"
    wide = (2, 1, 1)
    assert not it.take(wide, 4000, "compact!"), "four are free, and in no one group"
    assert it.take((1, 5, 1), 1000)
    assert not it.take(wide, 4000, "compact!")
    it.give_back((1, 4, 1))
    it.give_back((1, 5, 1))
    assert it.take(wide, 4000, "compact!")
    assert len({number // 4 for number in numbers_of(it.variables(wide)[b"ROTA_CORE_IDS"].decode())}) == 1
    assert it.take((2, 2, 1), 9000, "tight!") and (2, 2, 1) not in it, "which can never be is not waited for"


def test_what_comes_later_stays_out_of_the_group_that_is_waited_for():
    it = Bindings(cores())
    for index in range(8):
        assert it.take((1, index, 1), 1000)
    wide = (2, 0, 1)
    assert not it.take(wide, 4000, "tight!")
    held = [(1, index, 1) for index in range(8)]
    for number in range(40):  # one goes, one comes: without the wish of the first all would mix for ever
        it.give_back(held.pop(0))
        if it.take(wide, 4000, "tight!"):
            break
        if len(held) < 4:
            new = (3, number, 1)
            assert it.take(new, 1000)
            held.append(new)
    assert wide in it
    it.give_back(wide)
    it.take((4, 0, 1), 8000, "tight!")
    it.forget_all_but(lambda key: False)
    assert it.take((4, 1, 1), 4000), "who is gone does not wait"


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(["cores", "compact", "tight", "scatter"]),
    st.lists(st.integers(0, 9), min_size=1, max_size=6),
    st.integers(1, 30),
)
def test_parts_are_whole_and_within_what_is_free(how, free, count):
    if count > sum(free):
        return
    found = part(how, free, count)
    assert sum(found) == count
    assert all(0 <= mine <= room for mine, room in zip(found, free, strict=True))
    used = sum(map(bool, found))
    if how == "scatter":
        assert used == min(count, sum(map(bool, free)))
    else:
        assert sum(sorted(free, reverse=True)[: used - 1]) < count, "in as few groups as can be"
    assert used == best(how, free, count)


def test_every_way_to_bind_can_be_asked_for():
    assert FIELDS["bind"].choices == (*BINDS, "none")


def test_groups_are_memory_nodes_or_else_sockets(tmp_path):
    nodes, packages = tmp_path / "node", tmp_path / "cpu"
    for number, cpus in enumerate(("0-1,4-5\n", "2-3,6-7\n", "\n")):
        (nodes / f"node{number}").mkdir(parents=True)
        (nodes / f"node{number}" / "cpulist").write_text(cpus)
    assert core_groups(str(nodes), str(packages)) == [[0, 1, 4, 5], [2, 3, 6, 7]]
    for number, socket in ((0, "0"), (1, "1"), (2, "0"), (10, "1")):
        (packages / f"cpu{number}" / "topology").mkdir(parents=True)
        (packages / f"cpu{number}" / "topology" / "physical_package_id").write_text(f"{socket}\n")
    assert core_groups(str(nodes), str(packages))[0] == [0, 1, 4, 5]
    assert core_groups(str(tmp_path / "none"), str(packages)) == [[0, 2], [1, 10]]


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
