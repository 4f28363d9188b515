"""From arguments to requests: what is read, what is refused and with which words, what is sent."""

import io
import json
import os
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rota.model.batch import MAX_COMMAND, count_of
from rota.model.errors import UsageError
from rota.submission import JobOptions as Options
from rota.submission import LineFile, build, submit_environment
from rota.submission.options import array_numbers, moment
from rota.submission.patching import make_patch
from rota.wire.client import frame
from rota.wire.frames import MAX_FRAME


def lines_of(tmp_path, data, **options):
    path = tmp_path / "lines"
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return build(None, Options(**options), lines=LineFile(str(path), None))


def sent(submission):
    """(values, templates, the submit request): what arrives at the manager. Every request must fit into a frame."""
    values, templates, submit = [], [], None
    for request in submission.requests():
        request = json.loads(frame({"t": "ask", "id": 1, **request})[4:])
        if request["op"] == "stage":
            assert request["first"] == len(values)
            assert len(request["values"]) <= 20_000
            values += request["values"]
            templates += request["templates"] or [0] * len(request["values"])
        else:
            submit = request
    if submit.get("values") is not None:
        values = submit["values"]
    return values, templates, submit


# What a command is


def test_one_word_is_a_command_line_and_several_are_executed_as_they_are():
    assert build("echo a | wc", Options()).spec.templates[0].shell == "echo a | wc"
    assert build(["echo", "a | wc"], Options()).spec.templates[0].argv == ("echo", "a | wc")
    assert build(["echo", "a | wc"], Options()).preview(5) == [(1, "echo 'a | wc'")]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"command": None}, "nothing to run"),
        ({"command": "x", "lines": ["y"]}, "not both"),
        ({"command": "{}", "values": ["a"], "array": "1-2"}, "cannot be given together"),
        ({"command": ""}, "empty"),
        ({"command": "  "}, "empty"),
        ({"command": []}, "empty"),
        ({"command": ["", "x"]}, "empty"),
        ({"command": "echo \0"}, "NUL"),
        ({"command": "x" * (MAX_COMMAND + 1)}, "131,072 bytes long"),
        ({"command": "echo \udcff"}, "not valid UTF-8"),
        ({"command": "echo", "values": ["a"]}, "nothing uses the values"),
        ({"command": "echo {k}", "params": {"k": ["1"], "j": ["2"]}}, "nothing uses parameter 'j'"),
        ({"command": "echo {}", "values": []}, "no values"),
        ({"command": "echo {k}", "params": {"k": []}}, "parameter 'k' has no values"),
        ({"command": "echo {k}{j}", "params": {"k": ["1"], "j": ["2", "3"]}, "zipped": True}, "k has 1, j has 2"),
        ({"command": "echo {index}", "params": {"index": ["1"]}}, "rota's own"),
        ({"command": None, "lines": []}, "nothing to run"),
        ({"command": None, "lines": ["ok", " "]}, "line 2: the command is empty"),
        ({"command": None, "lines": [{"command": "x\udcff"}]}, "line 1: field 'command' is not valid UTF-8"),
        ({"command": None, "lines": [{"command": "x", "core": 1}]}, "line 1: unknown field 'core'"),
    ],
)
def test_what_cannot_be_run_is_refused(arguments, words):
    with pytest.raises(UsageError) as caught:
        build(arguments.pop("command"), Options(), **arguments)
    assert words in str(caught.value)


def test_a_value_that_makes_the_command_too_long_is_named():
    with pytest.raises(UsageError, match="value 2 makes a command of"):
        build("echo {} {} {} | wc", Options(), values=["a", "b" * 60_000])


def test_params_are_combined_or_paired():
    combined = build("x {a} {b}", Options(), params={"a": ["1", "2"], "b": ["u", "v"]})
    assert [command for _, command in combined.preview(9)] == ["x 1 u", "x 1 v", "x 2 u", "x 2 v"]
    assert combined.spec.count == 4
    paired = build("x {a} {b}", Options(), params={"a": ["1", "2"], "b": ["u", "v"]}, zipped=True)
    assert [command for _, command in paired.preview(9)] == ["x 1 u", "x 2 v"]


# Arrays


@pytest.mark.parametrize(
    ("text", "ranges", "most"),
    [
        ("1-1000:2%50", ((1, 1000, 2),), 50),
        ("1-5,9,20-30:5", ((1, 5, 1), (9, 9, 1), (20, 30, 5)), None),
        ("7", ((7, 7, 1),), None),
        ("9,1-5", ((1, 5, 1), (9, 9, 1)), None),
        (range(0, 10, 3), ((0, 9, 3),), None),
        ([3, 1, 2, 9], ((1, 3, 1), (9, 9, 1)), None),
    ],
)
def test_array_numbers(text, ranges, most):
    assert array_numbers(text) == (ranges, most)


@pytest.mark.parametrize("text", ["", "a", "1-", "-3", "5-1", "1-5:0", "1-5%", "1-5%0", "1-5%x", "1-3,2", "1--3", "１"])
def test_bad_arrays_are_refused(text):
    with pytest.raises(UsageError):
        build("true", Options(), array=text)


def test_a_million_numbers_are_three():
    values, _, submit = sent(build("echo {index}", Options(), array="1-1000000"))
    assert values == [] and submit["batch"]["ranges"] == [[1, 1_000_000, 1]] and submit["batch"]["count"] == 1_000_000


# Files of lines


def test_comments_and_blank_lines_are_skipped_and_the_rest_is_numbered_by_position(tmp_path):
    submission = lines_of(tmp_path, '# one\n\necho a\n   \n\t# two\n  echo b\r\n{"command": "echo c"}\necho d')
    assert sent(submission)[0] == ["echo a", "  echo b", "echo c", "echo d"]
    assert submission.preview(9)[3] == (4, "echo d")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"ok\nbad \0 one\n", "line 2: contains a NUL byte"),
        (b"ok\n\xff\xfe\n", "line 2: is not valid UTF-8"),
        (b"ok\n" * 3 + b"x" * 131_072 + b"\n", "line 4: the command is 131,072 bytes long"),
        (b"ok\n" + b"x" * 10_000_000 + b"\nok\n", "line 2: is more than"),
        (b"# nothing\n\n", "there are no commands in it"),
        (b"", "there are no commands in it"),
        (
            b'ok\n{"command": "x", "corse": 1}\n',
            "line 2: unknown field 'corse': did you mean 'cores'? (the fields are",
        ),
        (b'{"command": "x", "name": "@n"}\n', "line 1: field 'name': '@n' cannot be one"),
        (b'{"cwd": "/"}\n', "line 1: field 'command' is missing"),
        (b'{"command": 3}\n', "line 1: field 'command': expected str | array, got int"),
        (b'{"command": "x", "env": {"A": 1}}\n', "line 1: field 'env[...]': expected str, got int"),
        (b'{"command": "x", "memory": 4}\n', "field 'memory': '4' has no unit"),
        (b'{"command": "x", "time": "1:30"}\n', "field 'time': '1:30' can be read two ways"),
        (b'{"command": "x", "priority": 300}\n', "line 1: priority 300"),
        (b'{"command": []}\n', "field 'command'"),
        (b'{"command": " "}\n', "field 'command'"),
        (b'{"command": "x", "cwd": "a\\u0000"}\n', "a path contains a NUL byte"),
        (b'{"command": "a"\n', "line 1: begins with '{' but is not JSON"),
        (b'{"command": "a\\u0000"}\n', "NUL"),
        (b"{ echo a; }\n", "begins with '{' but is not JSON"),
    ],
)
def test_a_bad_line_is_named_and_nothing_is_sent(tmp_path, data, words):
    with pytest.raises(UsageError) as caught:
        lines_of(tmp_path, data)
    assert words in str(caught.value)


def test_one_bad_line_among_a_hundred_thousand(tmp_path):
    data = b"".join(b"echo %d\n" % number for number in range(100_000)) + b'{"comand": "x"}\n'
    with pytest.raises(UsageError, match="line 100001: unknown field 'comand'"):
        lines_of(tmp_path, data)


def test_json_lines_carry_what_differs(tmp_path):
    (tmp_path / "sub").mkdir()
    text = "\n".join(
        json.dumps(line)
        for line in [
            {"command": "a"},
            {"command": ["a", "x y"]},
            {"command": "a c", "cwd": "sub", "env": {"K": "V"}, "stdout": "out", "stdin": "/in"},
            {"command": "a d", "cores": 2, "memory": "1G", "time": "1h"},
            {"command": "a e", "memory": "1G", "time": "1h", "cores": 2},
            {"command": "a f", "retries": 3, "tags": ["big"], "limits": ["irods"], "priority": 9, "gpus": 1},
            {"command": "a g", "cores": 1},
        ]
    )
    values, templates, submit = sent(lines_of(tmp_path, text, cwd=str(tmp_path)))
    assert values[:2] == ["a", {"command": ["a", "x y"]}]
    assert values[2] == {
        "command": "a c", "cwd": f"{tmp_path}/sub", "env": {"K": "V"}, "stdout": f"{tmp_path}/sub/out", "stdin": "/in",
    }  # fmt: skip
    assert templates == [0, 0, 0, 1, 1, 2, 0]
    made = submit["batch"]["templates"]
    assert len(made) == 3
    assert made[1]["needs"] == {"cores": 2000, "memory": 1 << 30, "time_s": 3600}
    assert made[2]["retries"] == 3 and made[2]["limits"] == ["irods"]
    assert made[2]["needs"]["gpus"] == 1 and made[2]["needs"]["tags"] == ["big"]


def test_short_lines_that_grow_by_absolute_paths_still_fit(tmp_path):
    deep = tmp_path / ("d" * 200) / ("e" * 200)
    deep.mkdir(parents=True)
    text = '{"command": "x", "cwd": "a", "stdout": "o", "stderr": "e", "stdin": "i"}\n' * 20_000
    values = sent(lines_of(tmp_path, text, cwd=str(deep)))[0]
    assert len(values) == 20_000 and values[-1]["stdout"] == f"{deep}/a/o"


def test_a_byte_order_mark_is_no_part_of_the_first_command(tmp_path):
    assert sent(lines_of(tmp_path, b"\xef\xbb\xbfecho a\n"))[0] == ["echo a"]


LINE = st.text(st.characters(exclude_characters="\n\r\0", exclude_categories=["Cs"]), max_size=30)


@given(st.lists(LINE, max_size=60), st.integers(1, 40), st.booleans())
def test_lines_come_out_as_they_went_in(lines, block, ending):
    """Whatever the size of the blocks that the file is read in."""
    import tempfile

    from rota.submission import sources

    wanted = [line for line in lines if line.strip(" \t\v\f") and line.strip(" \t\v\f")[0] not in "#{"]
    lines = [line for line in lines if not line.strip(" \t\v\f").startswith("{")]
    wanted = [line for line in wanted if line in lines]
    with tempfile.NamedTemporaryFile() as file, pytest.MonkeyPatch.context() as patch:
        file.write("\n".join(lines).encode() + (b"\n" if ending else b""))
        file.flush()
        patch.setattr(sources, "BLOCK", block)
        try:
            values = sent(build(None, Options(), lines=LineFile(file.name, None)))[0]
        except UsageError as error:
            assert not wanted and "no commands" in str(error)
        else:
            assert [value.lstrip("\ufeff") for value in values] == [line.lstrip("\ufeff") for line in wanted]


@pytest.mark.parametrize("letter", ["\x01", '"', "\\", "é", "\U0001f600", "a"])
def test_every_request_fits_into_a_frame_whatever_the_characters(letter):
    size = 120_000 // len(letter.encode())
    values = [letter * size] * 100
    assert sent(build(["echo", "{}"], Options(), values=values))[0] == values
    assert MAX_FRAME == 4_194_304


def test_a_file_that_changes_between_the_passes_adds_nothing(tmp_path):
    submission = lines_of(tmp_path, "echo a\n" * 5000)
    (tmp_path / "lines").write_text("echo b\n" * 5000)
    with pytest.raises(UsageError, match="changed while it was read"):
        sent(submission)


def test_standard_input_is_read_once_and_kept(tmp_path):
    reader, writer = os.pipe()
    with os.fdopen(writer, "wb") as file:
        file.write(b"echo a\necho b\n")
    pipe = os.fdopen(reader, "rb")
    submission = build(None, Options(), lines=LineFile("-", lambda: pipe))
    assert sent(submission)[0] == sent(submission)[0] == ["echo a", "echo b"]


def test_a_missing_file_and_a_directory_are_refused(tmp_path):
    with pytest.raises(UsageError, match="cannot read '/nowhere': No such file"):
        LineFile("/nowhere", io.BytesIO)
    with pytest.raises(UsageError, match="Is a directory"):
        LineFile(str(tmp_path), io.BytesIO)


def test_values_from_a_file_keep_hashes_and_braces(tmp_path):
    path = tmp_path / "values"
    path.write_text("a b\n\n#c\n{d}\n")
    submission = build("echo {}", Options(), values=LineFile(str(path), None))
    assert sent(submission)[0] == ["a b", "#c", "{d}"]
    assert submission.preview(3)[0] == (1, "echo 'a b'")


# What is said of jobs


def test_options_become_a_template(tmp_path):
    (tmp_path / "setup.sh").touch()
    spec = build(
        "x",
        Options(
            cores="2..8",
            memory="4G",
            time="1h30m",
            disk="10G",
            gpus=1,
            resources={"lic": 2, "none": 0},
            on="here",
            tags=["b", "a"],
            retries=3,
            priority=7,
            limits=["irods:10", "db"],
            cwd=str(tmp_path),
            env={"A": "1"},
            stdout="out.{index}",
            stdin="/in",
            modules=["gcc"],
            setup=f"{tmp_path}/setup.sh",
            enforce="both",
            grace="5s",
            output_cap="1M",
            rerunnable=True,
            after=[7, "@x"],
            after_any=["8.1-9"],
            name="n",
        ),
    ).spec
    template, needs = spec.templates[0], spec.templates[0].needs
    assert (needs.cores, needs.cores_most, needs.memory, needs.disk, needs.time_s) == (
        2000,
        8000,
        4 << 30,
        10 << 30,
        5400,
    )
    assert (needs.gpus, needs.named, needs.tags, needs.site) == (1, (("lic", 2),), ("a", "b"), "here")
    assert (template.retries, template.priority, template.limits) == (3, 7, ("db", "irods"))
    assert template.stdout == f"{tmp_path}/out.{{index}}" and template.stdin == "/in" and template.cwd == str(tmp_path)
    assert (template.enforce, template.grace_s, template.cap) == (("time", "memory"), 5, 1 << 20)
    assert [(d.target, d.condition) for d in spec.after] == [("7", "success"), ("@x", "success"), ("8.1-9", "any")]


def test_a_limit_with_a_number_is_set_by_the_submission():
    _, _, submit = sent(build("x", Options(limits=["irods:10", "db"])))
    assert submit["limits"] == {"irods": 10}
    assert submit["batch"]["templates"][0]["limits"] == ["db", "irods"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"cores": "x"}, "not a number of cores"),
        ({"memory": "4"}, "has no unit"),
        ({"time": "90"}, "has no unit"),
        ({"time": "0s"}, "lets nothing run"),
        ({"cwd": "/nowhere/at/all"}, "'/nowhere/at/all' does not exist"),
        ({"cwd": "/etc/passwd"}, "is not a directory"),
        ({"setup": "/nowhere"}, "'/nowhere' does not exist"),
        ({"limits": ["a:b"]}, "limit 'a:b'"),
        ({"after": [":failed"]}, "not for a state"),
        ({"after": ["7-9"]}, "selects nothing"),
        ({"not_before": "soon"}, "'soon' is not a time"),
        ({"priority": 256}, "0 (lowest, the default) to 255"),
        ({"name": ":x"}, "name"),
        ({"resources": {"a b": 1}}, "resource"),
        ({"env": {"A=B": "x"}}, "environment variable"),
    ],
)
def test_bad_options_are_refused_with_the_choices(options, words):
    with pytest.raises(UsageError) as caught:
        build("x", Options(**options))
    assert words in str(caught.value)


def test_moments():
    now = time.time()
    assert abs(moment("+2h") - now - 7200) < 5
    assert moment("2030-01-31T22:30") == time.mktime((2030, 1, 31, 22, 30, 0, 0, 0, -1))
    assert 0 < moment(time.strftime("%H:%M", time.localtime(now + 3600))) - now <= 3600
    assert 0 < moment(time.strftime("%H:%M", time.localtime(now - 3600))) - now <= 86_400


def test_the_environment_goes_without_secrets_and_without_what_belongs_to_here():
    given_ = {
        "PATH": "/bin",
        "HOME": "/h",
        "LANG": "C",
        "SGE_ROOT": "/sge",
        "SLURM_CONF": "/c",
        "QUEUE": "mine",
        "PWD": "/x",
        "GITHUB_TOKEN": "t",
        "MY_PASSWORD": "p",
        "aws_secret_x": "s",
        "OPENAI_API_KEY": "k",
        "DB_PASS": "p",
        "SSHPASS": "p",
        "SLURM_JOB_ID": "1",
        "PBS_JOBID": "1",
        "LSB_JOBID": "1",
        "SGE_TASK": "1",
        "JOB_ID": "1",
        "SSH_AUTH_SOCK": "s",
        "TMPDIR": "/t",
        "ROTA_HOME": "/r",
        "BAD": "\udcff",
    }
    sent_, left_out = submit_environment(given_)
    assert set(sent_) == {"PATH", "HOME", "LANG", "SGE_ROOT", "SLURM_CONF", "QUEUE"}
    assert left_out == sorted(set(given_) - set(sent_) - {"PWD"})
    assert "QUEUE" in submit_environment({**given_, "SGE_TASK_ID": "undefined"})[1]


def test_the_environment_is_sent_only_where_it_is_wanted():
    assert sent(build("x", Options()))[2]["env"]["PATH"] == os.environ["PATH"]
    assert sent(build("x", Options(env_from="none")))[2]["env"] is None


def test_an_environment_too_large_for_a_request_is_refused(monkeypatch):
    for number in range(40):
        monkeypatch.setenv(f"BIG{number}", "x" * 120_000)
    with pytest.raises(UsageError, match="more than one request carries"):
        sent(build("x", Options()))


@given(st.lists(st.integers(0, 300), min_size=1, unique=True))
def test_numbers_become_ranges_that_hold_them(numbers):
    ranges, _ = array_numbers(numbers)
    held = [number for first, last, step in ranges for number in range(first, last + 1, step)]
    assert held == sorted(numbers) and count_of(ranges) == len(numbers)


def test_one_word_may_stand_where_several_can():
    """A string is one limit, tag or code, not its letters."""
    options = Options(limits="irods", tags="fast", retry_on=75, never_retry_on="time", modules="gcc", after="@align")
    spec = build("true", options).spec
    (template,) = spec.templates
    assert template.limits == ("irods",) and template.needs.tags == ("fast",) and template.modules == ("gcc",)
    assert template.retry_on == ("75",) and template.never_retry_on == ("time",)
    assert [dependency.target for dependency in spec.after] == ["@align"]
    assert [dependency.target for dependency in build("true", Options(after=7)).spec.after] == ["7"]
    sent = make_patch({"limits": "irods", "tags": "fast", "retry_on": 75})
    assert sent == {"limits_add": ("irods",), "tags": ("fast",), "retry_on": ("75",)}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"enforce": "all"}, "enforce 'all': give time, memory, both or none"),
        ({"after": "@x", "live": "again"}, "live 'again': give True, False or 'rerun'"),
        ({"no_retry_after": -3}, "no retry after -3 s: give 0 or more"),
    ],
)
def test_words_that_nobody_knows(options, words):
    with pytest.raises(UsageError, match=words):
        build("true", Options(**options))
    if "enforce" in options:
        with pytest.raises(UsageError, match=words):
            make_patch(options)


def test_json_lines_say_what_is_tried_again_and_what_is_learned(tmp_path):
    more = {"retry_on": [75, "time"], "never_retry_on": [2], "no_retry_after": "2h", "rerunnable": True,
            "enforce": "both", "group": "mine", "override": "always"}  # fmt: skip
    data = "\n".join(json.dumps({"command": "true"} | extra) for extra in ({}, more, {"group": ""}))
    templates = lines_of(tmp_path, data, retries=1).spec.templates
    assert [template.group for template in templates] == ["true", "mine", ""]
    given = templates[1]
    assert (given.retry_on, given.never_retry_on, given.no_retry_after_s) == (("75", "time"), ("2",), 7200)
    assert (given.rerunnable, given.enforce, given.override) == (True, ("time", "memory"), "always")
    same = lines_of(tmp_path, data, group="all").spec.templates
    assert [template.group for template in same] == ["all", "mine", ""]


@pytest.mark.parametrize(
    ("field", "words"),
    [
        ('"limits": ["x:abc"]', "line 1: field 'limits': limit 'x:abc'"),
        ('"limits": ["time<00:00:00"]', "line 1: field 'limits': .*can never open"),
        ('"group": "a\\nb"', "line 1: group 'a"),
        ('"no_retry_after": "soon"', "line 1: field 'no_retry_after': 'soon'"),
        ('"retry_on": ["zz"]', "line 1: 'zz' is neither an exit code"),
    ],
)
def test_the_field_that_is_wrong_is_named(tmp_path, field, words):
    with pytest.raises(UsageError, match=words):
        lines_of(tmp_path, '{"command": "true", ' + field + "}")


def test_a_template_is_made_anew_when_where_we_are_or_how_files_are_made_has_changed(monkeypatch, tmp_path):
    before = os.umask(0o022)
    try:
        monkeypatch.chdir(tmp_path)
        one = build(["true"], {"cores": 2}).spec.templates[0]
        assert build(["true"], {"cores": 2}).spec.templates[0] == one and one.needs.cores == 2000
        os.umask(0o077)
        two = build(["true"], {"cores": 2}).spec.templates[0]
        assert (one.umask, two.umask) == (0o022, 0o077)
        (tmp_path / "below").mkdir()
        monkeypatch.chdir(tmp_path / "below")
        assert build(["true"], {"cores": 2}).spec.templates[0].cwd == f"{tmp_path}/below"
        tags = ["gpu"]
        assert build(["true"], {"tags": tags}).spec.templates[0].needs.tags == ("gpu",)
        tags.append("big")
        assert build(["true"], {"tags": tags}).spec.templates[0].needs.tags == ("big", "gpu")
        monkeypatch.chdir("/")
        (tmp_path / "below").rmdir()
        with pytest.raises(UsageError, match="does not exist"):
            build(["true"], {"cwd": f"{tmp_path}/below"})
    finally:
        os.umask(before)
