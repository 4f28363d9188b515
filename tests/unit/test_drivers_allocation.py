"""What a batch system says of the allocation that we are in."""

import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rota.drivers.allocation import (
    HERE,
    Given,
    Node,
    asks_for_end,
    choose,
    expand_hosts,
    parse_nodes,
    read_allocation,
    read_end,
    read_granted,
    reserve_core,
    seen_from,
)
from rota.drivers.given import is_listed
from rota.model.errors import UsageError

MB = 1 << 20
SLURM = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-3]", "SLURM_JOB_CPUS_PER_NODE": "2(x2),4"}


def cores(found):
    return {node.name: node.cores for node in found.nodes}


def test_slurm():
    found = read_allocation(SLURM | {"SLURM_MEM_PER_CPU": "100", "SLURM_JOB_END_TIME": "1800000000"}, {}, "n1")
    assert found.nodes == (Node("n1", 2, 0, 200 * MB), Node("n2", 2, 0, 200 * MB), Node("n3", 4, 0, 400 * MB))
    assert (found.system, found.job, found.until, found.spread) == ("slurm", "7", 1.8e9, "srun")
    more = {"SLURM_MEM_PER_NODE": "0", "SLURM_GPUS_PER_NODE": "a100:2,v100:1", "SLURM_ARRAY_JOB_ID": "6"}
    found = read_allocation(SLURM | more | {"SLURM_ARRAY_TASK_ID": "4"}, {}, "n1")
    assert {(node.memory, node.gpus) for node in found.nodes} == {(None, 3)}
    assert found.job == "6_4"
    tasks = {"SLURM_JOB_ID": "7", "SLURM_NODELIST": "a,b", "SLURM_TASKS_PER_NODE": "3(x2)", "SLURM_GPUS_ON_NODE": "2"}
    assert read_allocation(tasks, {}, "a").nodes == (Node("a", 3, 2), Node("b", 3, 2))


def test_pbs_and_torque():
    torque = {"PBS_JOBID": "9.s", "PBS_NODEFILE": "/f", "PBS_NP": "3", "PBS_WALLTIME": "60"}
    found = read_allocation(torque, {"PBS_NODEFILE": "a.x\na.x\nb.x\n"}, "a", 1000.0)
    assert (found.system, cores(found), found.until, found.spread) == ("torque", {"a.x": 2, "b.x": 1}, 1060, "pbsdsh-u")
    found = read_allocation(
        {"PBS_JOBID": "9.s", "PBS_NODEFILE": "/f", "NCPUS": "8"}, {"PBS_NODEFILE": "a\nb\nb\n"}, "a"
    )
    assert (found.system, cores(found), found.until, found.spread) == ("pbs", {"a": 8, "b": 8}, None, "pbsdsh")


@pytest.mark.parametrize(
    ("hosts", "vnodes", "nodes"),
    [
        ("a/0*2+a/1*2", "(a:ncpus=2:mem=51200kb)+(a:ncpus=2:mem=51200kb)", [Node("a.x", 4, 0, 100 << 20)]),
        ("a/0+a/1*2+b/0*2", "(a:ncpus=1)+(a:ncpus=2:mem=1kb)+(b:ncpus=2:mem=1kb)",
         [Node("a.x", 3), Node("b.x", 2, 0, 1024)]),
        ("a/0*4", "(a[0]:ncpus=2:ngpus=1:mem=1kb+a[1]:ncpus=2:mem=1kb:ngpus=2)", [Node("a.x", 4, 3, 2048)]),
        ("a/3*3", "", [Node("a.x", 3)]),
        # what cannot be of these hosts is not believed
        ("c/0*9", "(c:ncpus=9)", [Node("a.x", 8)]),
        ("a/0*0", "(a:ncpus=0)", [Node("a.x", 8)]),
        ("a/0*9+nonsense", "(a:ncpus=9)", [Node("a.x", 8)]),
        ("", "", [Node("a.x", 8)]),
    ],
)  # fmt: skip
@pytest.mark.parametrize("wrapped", [False, True])
def test_pbs_tells_of_chunks_that_share_a_host(hosts, vnodes, nodes, wrapped):
    """Lines as OpenPBS 23.06 wrote them: the environment had NCPUS of the first chunk, and each host once a chunk."""
    there = "".join(f"{node.name}\n" for node in nodes)
    given_ = read_allocation({"PBS_JOBID": "9.s", "PBS_NODEFILE": "/f", "NCPUS": "8"}, {"PBS_NODEFILE": there}, "a")
    pairs = (("exec_host", hosts), ("exec_vnode", vnodes), ("Resource_List.walltime", "00:01:00"))
    lines = [f"    {name} = {value}" for name, value in pairs if value]
    if wrapped:
        lines = [re.sub(r"(?<=.{24})(?=.)", "\n\t", line, count=1) for line in lines]
    answer = "Job Id: 9.s\n" + "\n".join(lines) + "\n"
    assert list(read_granted(given_, answer).nodes) == nodes
    torque = read_allocation({"PBS_JOBID": "9.s", "PBS_NODEFILE": "/f", "PBS_NP": "1"}, {"PBS_NODEFILE": "a\n"}, "a")
    assert read_granted(torque, answer) == torque


def test_lsf():
    lsf = {"LSB_JOBID": "5", "LSB_JOBINDEX": "3", "LSB_DJOB_HOSTFILE": "/f"}
    found = read_allocation(lsf | {"LSB_MCPU_HOSTS": "a 4 b 2 a 1 "}, {}, "a")
    assert (found.system, found.job, cores(found), found.spread) == ("lsf", "5[3]", {"a": 5, "b": 2}, "blaunch")
    assert cores(read_allocation(lsf, {"LSB_DJOB_HOSTFILE": "a\nb\na\n"}, "a")) == {"a": 2, "b": 1}
    openlava = {"LSB_JOBID": "735", "LSB_JOBINDEX": "0", "LSB_MCPU_HOSTS": "node2 2 clhost 2 ", "LSB_DJOB_NUMPROC": "4"}
    found = read_allocation(openlava, {}, "node2")
    assert (found.system, found.job, found.spread) == ("openlava", "735", "ssh")
    assert cores(found) == {"node2": 2, "clhost": 2}
    assert asks_for_end(found)[:3] == ("bjobs", "-noheader", "-WL")


def test_grid_engine():
    files = {"PE_HOSTFILE": "a.x 2 all.q@a UNDEFINED\nb.x 3 all.q@b <NULL>\na.x 1 long.q@a UNDEFINED\n"}
    sge = {"JOB_ID": "4", "SGE_TASK_ID": "undefined"}
    found = read_allocation(sge | {"PE_HOSTFILE": "/f"}, files, "a")
    assert (found.job, cores(found), found.spread) == ("4", {"a.x": 3, "b.x": 3}, "qrsh")
    found = read_allocation(sge | {"SGE_TASK_ID": "2", "NSLOTS": "1"}, {}, "a")
    assert (found.job, cores(found)) == ("4.2", {"a": 1})


def test_no_allocation():
    assert read_allocation({"SLURM_JOB_ID": "1", "PBS_JOBID": "2", "JOB_ID": "3", "LSB_JOBID": "4"}, {}, "a") is None


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("n1", "n1"),
        ("n[1-3,07],m7", "n1 n2 n3 n07 m7"),
        ("n[08-11]", "n08 n09 n10 n11"),
        ("r[1-2]n[3,5]-ib,x.y_z", "r1n3-ib r1n5-ib r2n3-ib r2n5-ib x.y_z"),
    ],
)
def test_hosts_of_a_list(text, names):
    assert expand_hosts("V", text) == names.split()


@given(
    st.lists(
        st.tuples(
            st.from_regex(r"[a-z]{1,5}-", fullmatch=True), st.integers(0, 3), st.integers(0, 50), st.integers(0, 20)
        ),
        min_size=1,
        max_size=4,
        unique_by=lambda row: row[0],
    )
)
def test_every_range_is_expanded_in_order(rows):
    text = ",".join(f"{name}[{low:0{pad}d}-{low + more:0{pad}d}]" for name, pad, low, more in rows)
    names = [f"{name}{number:0{pad}d}" for name, pad, low, more in rows for number in range(low, low + more + 1)]
    assert expand_hosts("V", text) == names


@given(st.lists(st.tuples(st.integers(1, 99), st.integers(1, 9)), min_size=1, max_size=9), st.booleans())
def test_every_count_is_read(rows, plain):
    total = sum(times for _, times in rows)
    words = [str(count) if plain and times == 1 else f"{count}(x{times})" for count, times in rows]
    environ = SLURM | {"SLURM_JOB_NODELIST": f"n[1-{total}]", "SLURM_JOB_CPUS_PER_NODE": ",".join(words)}
    found = read_allocation(environ, {}, "n1")
    assert [node.cores for node in found.nodes] == [count for count, times in rows for _ in range(times)]


WRONG = [
    ({"SLURM_JOB_NODELIST": "n[1-"}, "SLURM_JOB_NODELIST 'n[1-'"),
    ({"SLURM_JOB_NODELIST": "n[3-1]"}, "ends before it begins"),
    ({"SLURM_JOB_NODELIST": "n[1-999999999]"}, "more than"),
    ({"SLURM_JOB_NODELIST": "n[0-999]m[0-999]"}, "more than"),
    ({"SLURM_JOB_NODELIST": "n[[1]]"}, "brackets"),
    ({"SLURM_JOB_NODELIST": "n1,n1"}, "named twice"),
    ({"SLURM_JOB_NODELIST": "n1,,n2"}, "not the name of a host"),
    ({"SLURM_JOB_NODELIST": "-oProxyCommand=x,$(reboot),b c"}, "not the name of a host"),
    ({"SLURM_JOB_CPUS_PER_NODE": "2(x2)"}, "SLURM_JOB_CPUS_PER_NODE '2(x2)': it counts 2 of 3 nodes"),
    ({"SLURM_JOB_CPUS_PER_NODE": "2(x9)"}, "more than the 3 nodes"),
    ({"SLURM_JOB_CPUS_PER_NODE": "0(x3)"}, "from 1"),
    ({"SLURM_JOB_CPUS_PER_NODE": "two"}, "no count such as"),
    ({"SLURM_JOB_CPUS_PER_NODE": ""}, "SLURM_TASKS_PER_NODE ''"),
    ({"SLURM_MEM_PER_NODE": "4G"}, "SLURM_MEM_PER_NODE '4G'"),
    ({"SLURM_JOB_END_TIME": "soon\x1b[2J"}, "SLURM_JOB_END_TIME 'soon?[2J'"),
    ({"SLURM_GPUS_PER_NODE": "a100"}, "SLURM_GPUS_PER_NODE 'a100'"),
]


@pytest.mark.parametrize(("change", "words"), WRONG)
def test_what_cannot_be_read_is_named(change, words):
    with pytest.raises(UsageError) as told:
        read_allocation(SLURM | change, {}, "n1")
    assert words in str(told.value)


@pytest.mark.parametrize(
    ("environ", "files", "words"),
    [
        ({"LSB_JOBID": "1", "LSB_MCPU_HOSTS": "a 1 b"}, {}, "LSB_MCPU_HOSTS 'a 1 b'"),
        ({"PBS_JOBID": "1", "PBS_NODEFILE": "/f"}, {"PBS_NODEFILE": "\n"}, "PBS_NODEFILE /f"),
        ({"PBS_JOBID": "1", "PBS_NODEFILE": "/f", "NCPUS": "x"}, {"PBS_NODEFILE": "a\n"}, "NCPUS 'x'"),
        ({"JOB_ID": "1", "PE_HOSTFILE": "/f"}, {"PE_HOSTFILE": "a\n"}, "PE_HOSTFILE /f 'a'"),
        ({"JOB_ID": "1", "SGE_TASK_ID": "1", "NSLOTS": "-1"}, {}, "NSLOTS '-1'"),
    ],
)
def test_what_cannot_be_read_of_other_systems(environ, files, words):
    with pytest.raises(UsageError) as told:
        read_allocation(environ, files, "a")
    assert words in str(told.value)


@settings(max_examples=300)
@given(st.text(st.sampled_from("n019[](x),-: \n\0é"), max_size=20), st.text(st.sampled_from("019(x),- "), max_size=12))
@example("n[1-2]", "²(x2)")
@example("n[٣]", "1")
def test_whatever_is_said_is_read_or_refused_by_name(hosts, counts):
    environ = SLURM | {"SLURM_JOB_NODELIST": hosts or "n", "SLURM_JOB_CPUS_PER_NODE": counts}
    try:
        found = read_allocation(environ, {}, "n1")
    except UsageError as error:
        assert str(error).startswith("SLURM_")
        assert str(error).isprintable()
    else:
        assert all(node.cores >= 1 for node in found.nodes)
    for read in (
        lambda: parse_nodes(hosts),
        lambda: read_allocation({"LSB_JOBID": "1", "LSB_MCPU_HOSTS": hosts + "a"}, {}, "a"),
    ):
        try:
            read()
        except UsageError as error:
            assert str(error).isprintable()


# ---- what was given by hand ------------------------------------------------------------------------------------------


def test_nodes_by_hand():
    assert parse_nodes("a:8, b.x:1") == (Node("a", 8), Node("b.x", 1))
    for wrong in ("", "a", "a:", ":8", "a:0", "a:-1", "a:1.5", "a:1,", "a:1,a.x:2", "-o:1", "a b:1", "a:9999999"):
        with pytest.raises(UsageError, match="--nodes"):
            parse_nodes(wrong)


def test_a_part_of_an_allocation():
    three = read_allocation(SLURM, {}, "n1")
    chosen = choose(three, parse_nodes("n3:3,n1:2"))
    assert [node.cores for node in chosen.nodes] == [2, 0, 3]
    assert [node.name for node in chosen.used] == ["n1", "n3"]
    with pytest.raises(UsageError, match="no such node, only n1 n2 n3"):
        choose(three, parse_nodes("n4:1"))
    with pytest.raises(UsageError, match="n2:3: 2 cores of it were granted"):
        choose(three, parse_nodes("n2:3"))


def test_a_core_is_reserved_where_the_pilot_runs_and_the_total_is_less():
    three = read_allocation(SLURM, {}, "n1")
    assert [node.cores for node in reserve_core(three, "n3.x").nodes] == [2, 2, 3]
    assert [node.cores for node in reserve_core(three, "login").nodes] == [1, 2, 4]
    assert [node.name for node in reserve_core(Given("hosts", parse_nodes("a:1,b:1")), "a").used] == ["b"]
    with pytest.raises(UsageError, match="no job could run"):
        reserve_core(Given("hosts", parse_nodes("a:1")), "a")


def test_a_single_host_that_we_are_on_needs_no_launcher():
    assert seen_from(Given("hosts", parse_nodes("a.x:2")), "a").spread == HERE
    assert seen_from(Given("slurm", parse_nodes("a:2"), "1", None, "srun"), "login").spread == "srun"
    assert seen_from(Given("slurm", parse_nodes("a:2,b:2"), "1", None, "srun"), "a").spread == "srun"


OPENLAVA = """\
735     rotause RUN   normal     clhost      node2       bash e.sh  Nov 17 17:56  0:4 L
                                             node2
                                             clhost
"""


# ---- its end ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("system", "answer", "end"),
    [
        ("slurm", "1-00:00:10\n", 500 + 86410),
        ("slurm", "UNLIMITED\n", None),
        ("slurm", "", None),
        ("lsf", "1:30 L\n", 500 + 5400),
        ("lsf", "-\n", None),
        ("openlava", OPENLAVA, 500 + 240),
        ("openlava", OPENLAVA.replace("0:4 L", "-"), None),
        ("sge", "job_number: 4\nhard resource_list:         mem=1G,h_rt=3600\n", 100 + 3600),
        ("sge", "job_number: 4\n", None),
        ("pbs", "Job Id: 1.s\n    Resource_List.walltime = 01:00:00\n", 100 + 3600),
        ("torque", "Job Id: 1.s\n", None),
    ],
)
def test_when_it_ends(system, answer, end):
    given_ = Given(system, (Node("a", 1),), "1")
    assert asks_for_end(given_) is not None
    assert read_end(given_, answer, 500.0, 100.0) == end


def test_nobody_is_asked_for_what_is_known():
    assert asks_for_end(Given("hosts", (Node("a", 1),))) is None
    assert asks_for_end(Given("slurm", (Node("a", 1),), "1", 5.0)) is None


@pytest.mark.parametrize(
    ("job", "live", "listed"),
    [
        ("12", ["11", "123"], False),
        ("12", ["12"], True),
        ("12_3", ["12_4"], False),
        ("12_3", ["12_3"], True),
        ("12_3", ["12"], True),
        ("12[3].server", ["12[3]"], True),
        ("12[3].server", ["12[4].server"], False),
        ("12.server", ["12.server"], True),
        ("12.server", ["12"], True),
        ("12.3", ["12.3"], True),
        ("12", [], False),
    ],
)
def test_whether_a_job_is_among_those_that_live(job, live, listed):
    assert is_listed(job, live) is listed
