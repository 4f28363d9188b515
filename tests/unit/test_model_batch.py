"""What a submission may hold: every bad field is refused, in words; numbers and positions of jobs."""

import math

import msgspec
import pytest

from rota.model.batch import (
    MAX_COMMAND,
    MAX_INDEX,
    MAX_JOBS,
    MAX_TEMPLATES,
    BatchSpec,
    Template,
    Value,
    check_environment,
    check_text,
    check_value,
    count_of,
    index_at,
    position_of,
)
from rota.model.errors import BY_CODE, RotaError, StoreError, UsageError
from rota.model.job import format_job, parse_job
from rota.model.needs import Amounts, Needs, named_resources

TRUE = Template(argv=("true",))


def refused(call: object, *arguments: object) -> str:
    with pytest.raises(UsageError) as caught:
        call(*arguments)  # type: ignore[operator]
    return str(caught.value)


@pytest.mark.parametrize(
    ("needs", "says"),
    [
        (Needs(cores=-1), "cores is negative (-1)"),
        (Needs(cores=0), "cores is 0: give at least 0.001"),
        (Needs(memory=-5), "memory is negative (-5)"),
        (Needs(disk=-5), "disk is negative"),
        (Needs(time_s=-5), "time is negative"),
        (Needs(gpus=-5), "gpus is negative"),
        (Needs(cores=2**40), "cores is more than anything has"),
        (Needs(cores_most=2**40), "cores is more than anything has"),
        (Needs(memory=2**62), "memory is more than anything has"),
        (Needs(disk=2**62), "disk is more than anything has"),
        (Needs(time_s=2**40), "time is more than anything has"),
        (Needs(gpus=2**40), "gpus is more than anything has"),
        (Needs(nodes=0), "nodes must be at least 1"),
        (Needs(nodes=2**40), "nodes must be at least 1 and at most"),
        (Needs(cores=4000, cores_most=2000), "the range of cores ends below where it begins"),
        (Needs(time_s=0), "a time of 0 lets nothing run"),
        (Needs(named=(("", 1),)), "resource '=1': write name=count"),
        (Needs(named=(("a b", 1),)), "resource 'a b=1'"),
        (Needs(named=(("a", -1),)), "resource 'a=-1'"),
        (Needs(named=(("a", 2**40),)), "resource 'a="),
        (Needs(named=(("a", 1), ("a", 1))), "a resource is named twice: a, a"),
        (Needs(tags=("a b",)), "tag 'a b': letters, digits"),
        (Needs(tags=("",)), "tag ''"),
    ],
)
def test_needs_refused(needs: Needs, says: str) -> None:
    assert says in refused(needs.check)
    assert says in refused(BatchSpec(1, (Template(argv=("true",), needs=needs),)).check)


def test_good_needs() -> None:
    Needs().check()
    Needs(1, 0, 3, 0, 0, 1, 0, (("lic", 0), ("x.y-z_1", 3)), ("a.b",), "here").check()
    Needs(cores=2000, cores_most=8000).check()


def test_needs_in_words() -> None:
    full = Needs(2000, 8000, 2, 4 << 30, 1 << 30, 5400, 1, (("lic", 3),), ("ssd",), "slurm")
    assert full.words() == "2..8 cores, 2 nodes, 4G memory, 1G disk, 1 gpu, 3 lic, 1h30m, tag ssd, on slurm"
    assert Needs().words() == "1 core"
    assert full.amounts() == Amounts(2000, 4 << 30, 1 << 30, 1, (("lic", 3),))
    assert full.amounts(5000).cores == 5000
    assert named_resources({"b": 1, "a": 2, "c": 0}) == (("a", 2), ("b", 1))


@pytest.mark.parametrize(
    ("template", "says"),
    [
        (Template(argv=("true",), priority=-1), "priority -1: give 0 (lowest, the default) to 255 (first)"),
        (Template(argv=("true",), priority=256), "priority 256"),
        (Template(argv=("true",), retries=-1), "retries -1: give 0 to 10000"),
        (Template(argv=("true",), retries=10_001), "retries 10001"),
        (Template(argv=()), "the command is empty"),
        (Template(argv=("", "x")), "the command is empty"),
        (Template(shell=" \n"), "the command is empty"),
        (Template(shell="a\0b"), "the command contains a NUL byte"),
        (Template(argv=("a", "\0")), "the command contains a NUL byte"),
        (Template(argv=("a", "\ud800")), "the command is not valid UTF-8"),
        (
            Template(shell="x" * (MAX_COMMAND + 1)),
            "the command is 131,072 bytes long; the system takes at most 131,071",
        ),
        (Template(argv=("é" * 70_000,)), "the command is 140,000 bytes long"),
        (Template(argv=("true",), limits=("a b",)), "limit 'a b': write a name"),
        (Template(argv=("true",), limits=("#7",)), "limit '#7'"),
        (Template(argv=("true",), limits=("",)), "limit ''"),
        (Template(argv=("true",), cwd="here"), "the working directory 'here' must be an absolute path"),
        (Template(argv=("true",), cwd=""), "must be an absolute path"),
        (Template(argv=("true",), cwd="/\0"), "cwd contains a NUL byte"),
        (Template(argv=("true",), stdin="\0"), "stdin contains a NUL byte"),
        (Template(argv=("true",), stdout="\ud800"), "stdout is not valid UTF-8"),
        (Template(argv=("true",), stderr="\0"), "stderr contains a NUL byte"),
        (Template(argv=("true",), setup="\0"), "setup contains a NUL byte"),
        (Template(argv=("true",), modules=("a", "\0")), "a module's name contains a NUL byte"),
        (Template(argv=("true",), group="\ud800"), "the learning group is not valid UTF-8"),
        (Template(argv=("true",), needs=Needs(site="\0")), "the site contains a NUL byte"),
        (Template(argv=("true",), set={"": "x"}), "environment variable ''"),
        (Template(argv=("true",), set={"a=b": "x"}), "environment variable 'a=b'"),
        (Template(argv=("true",), set={"a\0": "x"}), "environment variable"),
        (Template(argv=("true",), set={"a": "\0"}), "environment variable a contains a NUL byte"),
        (Template(argv=("true",), set={"\ud800": "x"}), "is not valid UTF-8"),
        (Template(argv=("true",), set={"a": "x" * MAX_COMMAND}), "environment variable a is 131,073 bytes long"),
        (Template(argv=("true",), enforce=("cores",)), "enforce 'cores': give time, memory, both or none"),
        (Template(argv=("true",), grace_s=-1), "must not be negative"),
        (Template(argv=("true",), cap=-1), "must not be negative"),
    ],
)
def test_template_refused(template: Template, says: str) -> None:
    assert says in refused(template.check)
    assert says in refused(BatchSpec(2, (TRUE, template)).check)


def test_the_longest_command_is_taken() -> None:
    Template(shell="x" * MAX_COMMAND).check()
    Template(argv=("é" * (MAX_COMMAND // 2),)).check()


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        (BatchSpec(0, (TRUE,)), "there is nothing to run"),
        (BatchSpec(-1, (TRUE,)), "there is nothing to run"),
        (BatchSpec(MAX_JOBS + 1, (TRUE,)), f"the most is {MAX_JOBS}"),
        (BatchSpec(1, ()), "a batch has 1 to 65535 different sets of options"),
        (BatchSpec(1, (TRUE,) * (MAX_TEMPLATES + 1)), "different sets of options"),
        (BatchSpec(1, (TRUE,), name="x" * 129), "at most 128 characters"),
        (BatchSpec(1, (TRUE,), name="a\nb"), "control characters"),
        (BatchSpec(1, (TRUE,), name="@a"), "not beginning with '@'"),
        (BatchSpec(1, (TRUE,), name=":a"), "not beginning with"),
        (BatchSpec(1, (TRUE,), name="-a"), "not beginning with"),
        (BatchSpec(1, (TRUE,), name="\udcff"), "the name is not valid UTF-8"),
        (BatchSpec(1, (TRUE,), columns=("a b",)), "parameter 'a b'"),
        (BatchSpec(1, (TRUE,), columns=("index",)), "parameter 'index': that name is rota's own"),
        (BatchSpec(1, (TRUE,), columns=("batch",)), "rota's own"),
        (BatchSpec(1, (TRUE,), columns=("job",)), "rota's own"),
        (BatchSpec(1, (TRUE,), columns=("attempt",)), "rota's own"),
        (BatchSpec(1, (TRUE,), columns=("a", "a")), "two parameters have the same name"),
        (BatchSpec(1, (TRUE,), columns=("", "")), "two parameters have the same name"),
        (BatchSpec(1, (TRUE,), ranges=((-1, -1, 1),)), "array -1--1:1: give FIRST-LAST"),
        (BatchSpec(1, (TRUE,), ranges=((5, 4, 1),)), "ascending"),
        (BatchSpec(1, (TRUE,), ranges=((5, 5, 0),)), "ascending"),
        (
            BatchSpec(4, (TRUE,), ranges=((1, 2, 1), (2, 3, 1))),
            "array numbers must ascend without overlap (2 comes after 2)",
        ),
        (BatchSpec(3, (TRUE,), ranges=((1, 2, 1),)), "the array has 2 numbers but 3 jobs"),
        (BatchSpec(1, (TRUE,), ranges=()), "the array has 0 numbers but 1 jobs"),
        (BatchSpec(1, (TRUE,), ranges=((MAX_INDEX + 1, MAX_INDEX + 1, 1),)), "array numbers go up to"),
        (BatchSpec(1, (TRUE,), at_once=0), "%0: at least 1 job must be allowed at a time"),
        (BatchSpec(1, (TRUE,), not_before=math.nan), "not before nan"),
        (BatchSpec(1, (TRUE,), not_before=math.inf), "not before inf"),
    ],
)
def test_batch_refused(spec: BatchSpec, says: str) -> None:
    assert says in refused(spec.check)


def test_good_batches() -> None:
    BatchSpec(1, (TRUE,)).check()
    BatchSpec(5, (TRUE,), "align 1", ("", "x.y"), ((0, 4, 2), (5, 6, 1)), 2, (), 0.0).check()
    BatchSpec(1, (Template(),)).check()  # each value is a line of its own
    BatchSpec(1, (TRUE,), ranges=((MAX_INDEX, MAX_INDEX, 1),)).check()


def test_an_unknown_field_is_refused_and_not_ignored() -> None:
    for kind, text in (
        (Needs, '{"core": 3}'),
        (Template, '{"retry": 3}'),
        (BatchSpec, '{"count": 1, "templates": [], "nam": 1}'),
    ):
        with pytest.raises(msgspec.ValidationError, match="unknown field"):
            msgspec.json.decode(text, type=kind)


def test_numbers_and_positions() -> None:
    ranges = ((0, 4, 2), (10, 10, 1), (20, 29, 4))
    assert [index_at(ranges, pos) for pos in range(count_of(ranges))] == [0, 2, 4, 10, 20, 24, 28]
    assert index_at(None, 0) == 1
    assert position_of(None, 3, 3) == 2
    assert [position_of(None, 3, index) for index in (-1, 0, 4)] == [None, None, None]
    assert [position_of(ranges, 7, index) for index in (1, 3, 5, 11, 29, 30, -2)] == [None] * 7
    with pytest.raises(IndexError):
        index_at(ranges, 7)


def test_job_ids() -> None:
    assert parse_job("7.12") == (7, 12)
    assert format_job(7, 12) == "7.12"
    for bad in ("7", "7.", ".7", "7.1-2", "a.b", "7.1.2", "-7.1", "٧.1", "7.1\n", "7." + "1" * 19, ""):
        assert "is not a job: write BATCH.INDEX, as in 7.12" in refused(parse_job, bad)


@pytest.mark.parametrize(
    ("value", "columns", "lines"),
    [
        ("true", (), True),
        ({"command": "true"}, (), True),
        ({"command": ["echo", ""], "memory": "4G"}, (), True),
        (None, (), False),
        ("x", ("",), False),
        ("", ("",), False),
        (["a", "b"], ("a", "b"), False),
    ],
)
def test_values(value: Value, columns: tuple[str, ...], lines: bool) -> None:
    check_value(value, columns, lines)


@pytest.mark.parametrize(
    ("value", "columns", "lines", "says"),
    [
        ("", (), True, "the command is empty"),
        ("  ", (), True, "the command is empty"),
        (None, (), True, "the command is empty"),
        (["true"], (), True, "the command is empty"),
        ("a\0", (), True, "the command contains a NUL"),
        ({}, (), True, "field 'command': give a non-empty string, or a list of strings"),
        ({"command": ""}, (), True, "field 'command'"),
        ({"command": []}, (), True, "field 'command'"),
        ({"command": [1]}, (), True, "field 'command'"),
        ({"command": ["", "x"]}, (), True, "field 'command'"),
        ({"command": ["x", "\0"]}, (), True, "field 'command' contains a NUL"),
        ("x", (), False, "the jobs of an array have no values"),
        (None, ("",), False, "each value must be a string"),
        (["x"], ("",), False, "each value must be a string"),
        ("\0", ("",), False, "the value contains a NUL"),
        ("x" * (MAX_COMMAND + 1), ("",), False, "the value is 131,072 bytes long"),
        (["a"], ("a", "b"), False, "each row must be a list of 2 strings (a, b)"),
        (["a", 1], ("a", "b"), False, "each row must be a list of 2 strings"),
        ("ab", ("a", "b"), False, "each row must be a list of 2 strings"),
        (["a", "\ud800"], ("a", "b"), False, "the value is not valid UTF-8"),
    ],
)
def test_values_refused(value: Value, columns: tuple[str, ...], lines: bool, says: str) -> None:
    assert says in refused(check_value, value, columns, lines)


def test_text_and_environment() -> None:
    check_text("it", "ok é")
    check_environment({"A": "", "b.c": "x=y"})
    assert "environment variable A" in refused(check_environment, {"A": "\0"})


def test_every_error_has_its_code() -> None:
    assert BY_CODE["usage"] is UsageError
    assert BY_CODE["internal"] is RotaError
    for cls in RotaError.__subclasses__():
        if cls.__module__ == "rota.model.errors":
            assert cls is StoreError or BY_CODE[cls.code] is cls
