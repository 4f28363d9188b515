"""Layouts: which nodes a job is on, and with how many cores on each, for every way to ask."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rota.model.amounts import MAX_MILLICORES
from rota.model.errors import UsageError
from rota.model.fields import FIELDS
from rota.model.iterations import maximum_iters, split_into
from rota.model.needs import Needs
from rota.schedule.layouts import Room, lay_out
from rota.submission import build
from rota.submission.kinds import kept


def asked(**words):
    """The needs that options in a user's words make."""
    (template,) = build(["x"], {"cwd": "/", "group": "", **words}).spec.templates
    return template.needs


def laid(needs, *free, sizes=None):
    """(node, cores) of a job on nodes with so many cores free."""
    sizes = sizes or [4] * len(free)
    found = lay_out(needs, [Room(room * 1000, size * 1000) for room, size in zip(free, sizes, strict=True)])
    return None if found is None else [(number, cores // 1000) for number, cores in found]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ({"cores": 3}, [(1, 3)]),  # exact
        ({"cores": "2..8"}, [(0, 2)]),  # a range, on the first that has its minimum
        ({"cores": "3.."}, [(1, 4)]),  # only a minimum: all that is free
        ({"cores": "..3"}, [(0, 2)]),  # only a maximum: from 1 on
        ({"cores": 5}, None),
        ({"cores": 2, "nodes": 2}, [(0, 2), (1, 2)]),
        ({"cores": 2, "nodes": "2..3"}, [(0, 2), (1, 2), (2, 2)]),
        ({"cores": 3, "nodes": "2..3"}, None),
        ({"cores": "1..3", "nodes": "2.."}, [(0, 2), (1, 3), (2, 2)]),
        ({"cores": "3..", "nodes": "..2"}, [(1, 4)]),
        ({"cores": "all"}, [(1, 4)]),
        ({"cores": "all", "nodes": 2}, None),
        ({"cores": "all", "nodes": "1..2"}, [(1, 4)]),
        ({"cores": 6, "span": "pack"}, [(0, 2), (1, 4)]),
        ({"cores": "3..7", "span": "pack"}, [(0, 2), (1, 4), (2, 1)]),
        ({"cores": "3..", "span": "pack"}, [(0, 2), (1, 4), (2, 2)]),
        ({"cores": "..9", "span": "pack"}, [(0, 2), (1, 4), (2, 2)]),
        ({"cores": 9, "span": "pack"}, None),
        ({"cores": "9..12", "span": "pack"}, None),
    ],
)
def test_every_combination_of_exact_least_and_most(words, expected):
    assert laid(asked(**words), 2, 4, 2) == expected


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("compact", [(0, 3), (1, 3)]),
        ("tight", [(0, 4), (1, 2)]),
        ("scatter", [(0, 2), (1, 2), (2, 2)]),
        ("pack", [(0, 4), (1, 2)]),
    ],
)
def test_six_cores_on_three_idle_nodes_of_four(how, expected):
    assert laid(asked(cores=6, span=how), 4, 4, 4) == expected


def test_strict_forms_wait_for_what_idle_nodes_would_give():
    assert laid(asked(cores=4, span="compact"), 2, 2, 0) == [(0, 2), (1, 2)]
    assert laid(asked(cores=4, span="compact!"), 2, 2, 0) is None
    assert laid(asked(cores=4, span="tight!"), 2, 2, 4) == [(2, 4)]
    assert laid(asked(cores=3, span="scatter"), 0, 4, 4) == [(1, 1), (2, 2)]
    assert laid(asked(cores=3, span="scatter!"), 0, 4, 4) is None


@given(
    st.sampled_from(["pack", "compact", "tight", "scatter", "compact!", "tight!", "scatter!"]),
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=6),
    st.integers(1, 30),
    st.integers(0, 30),
)
def test_nothing_is_given_twice_and_the_most_that_is_free_is_given(how, rooms, least, more):
    needs = Needs(least * 1000, (least + more) * 1000 if more else 0, span=how)
    needs.check()
    found = lay_out(needs, [Room(free * 1000, (free + used) * 1000) for free, used in rooms])
    free = sum(room for room, _ in rooms)
    if found is None:
        assert free < least or how.endswith("!")
        return
    assert sum(cores for _, cores in found) == min(free, least + more) * 1000 >= least * 1000
    assert len({number for number, _ in found}) == len(found)
    assert all(0 < cores <= rooms[number][0] * 1000 for number, cores in found)


def test_alternatives_are_needs_of_their_own():
    needs = asked(cores=8, memory="4G", variants=["cores=2,gpus=1", {"cores": "1..2", "resource.fpga": 1}])
    first, second, third = needs.alternatives()
    assert first == Needs(8000, memory=4 << 30)
    assert second == Needs(2000, memory=4 << 30, gpus=1)
    assert third == Needs(1000, 2000, memory=4 << 30, named=(("fpga", 1),))
    assert needs.words() == "8 cores, 4G memory or 2 cores, 4G memory, 1 gpu or 1..2 cores, 4G memory, 1 fpga"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ({"cores": ".."}, "not a number of cores"),
        ({"nodes": "4..2"}, "ends below where it begins"),
        ({"nodes": "x"}, "'x' is not a number of nodes: write 4, or a range"),
        ({"nodes": 0}, "nodes must be at least 1"),
        ({"nodes": 2, "span": "pack"}, "give it, or a number of nodes"),
        ({"span": "loose"}, "span 'loose': give pack, compact"),
        ({"cores": 0.5, "span": "pack"}, "give whole cores"),
        ({"cores": "all", "span": "pack"}, "all cores of whole nodes"),
        ({"variants": ["cores"]}, "write NAME=VALUE"),
        ({"variants": ["colour=2"]}, "give cores, nodes, memory"),
        ({"variants": ["cores=0"]}, "variant 1: cores is 0"),
        ({"variants": ["cores=2"] * 9}, "the most is 8"),
        ({"mpirun": "/x"}, "model default starts no ranks"),
        ({"container": "debian", "nodes": "1..2"}, "a job on several nodes cannot be in one"),
        ({"container": "debian", "cores": 2, "span": "pack"}, "a job on several nodes cannot be in one"),
        ({"container": "debian", "model": "openmpi"}, "what runs in a container is started once"),
        ({"env_style": ["pbs"]}, "give slurm, qcg, both, or none"),
        ({"env_style": ["none", "qcg"]}, "give slurm, qcg, both, or none"),
    ],
)
def test_what_cannot_be_meant_is_refused(words, says):
    with pytest.raises(UsageError, match=says):
        asked(**words)


def test_an_open_end_is_kept_as_one():
    assert kept(FIELDS["cores"], "2..")["cores_most"] == MAX_MILLICORES
    assert asked(cores="2..", nodes="2..").words() == "2.. cores, 2.. nodes"


def test_iterations_share_all_that_there_is():
    assert maximum_iters(3, 10) == [3, 3, 4]
    assert maximum_iters(5, 4, 2) == [2, 2, 2, 2, 4]  # three rounds, of two, two and one
    assert maximum_iters(1, 7, 7) == [7]
    assert split_into(4, 10) == [2, 2, 2, 2]
    assert split_into(6, 10, 2) == [5] * 6
    for wrong in (lambda: maximum_iters(3, 4, 5), lambda: split_into(3, 2), lambda: split_into(3, 2, 0)):
        with pytest.raises(UsageError):
            wrong()


@given(st.integers(1, 200), st.integers(1, 64), st.integers(1, 8))
def test_no_round_has_more_than_there_is(jobs, total, least):
    if least > total:
        return
    shares, at_once = maximum_iters(jobs, total, least), min(jobs, total // least)
    assert len(shares) == jobs and min(shares) >= least
    rounds = -(-jobs // at_once)
    taken = 0
    for number in range(rounds):
        count = -(-(jobs - taken) // (rounds - number))
        assert sum(shares[taken : taken + count]) == total
        taken += count
    assert taken == jobs
