"""Command templates: placeholders, and when a shell is needed."""

import subprocess

import pytest

from rota.model.batch import Template, Value
from rota.model.command import CommandMaker, group_of, needs_shell, show_command, split_line


def make(
    text: str, value: Value = "v", columns: tuple[str, ...] = ("",), index: int = 12, attempt: int = 2
) -> list[str] | str:
    return CommandMaker(Template(shell=text), columns, 7).command(value, index, attempt)


def argv(words: tuple[str, ...], value: Value = "v", columns: tuple[str, ...] = ("",)) -> list[str] | str:
    return CommandMaker(Template(argv=words), columns, 7).command(value, 12, 2)


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("echo {}", ["echo", "v"]),
        ("echo a{}b {}{}", ["echo", "avb", "vv"]),
        ("echo {index} {batch} {job} {attempt}", ["echo", "12", "7", "7.12", "2"]),
        ("{} x", ["v", "x"]),
        ("echo\t{}  y ", ["echo", "v", "y"]),
        ("echo ${} $x", "echo ${} $x"),
        ("echo ${index} {}", "echo ${index} v"),
        ("echo {{}", "echo {}"),
        ("echo {{}} {}", "echo {} v"),
        ("echo {{index}}", "echo {index}"),
        ("echo {{ {}; }", "echo { v; }"),
        ("echo {unknown} {}", "echo {unknown} v"),
        ("awk '{print}' {}", "awk '{print}' v"),
        ("awk '{print $1}' {}", "awk '{print $1}' v"),
        ("find . -exec ls {index} \\;", "find . -exec ls 12 \\;"),
        ("echo { } {", "echo { } {"),
        ("echo {1}", "echo {1}"),
    ],
)
def test_placeholders(text: str, made: list[str] | str) -> None:
    assert make(text) == made


def test_named_columns() -> None:
    both = ("sample", "r.1-x")
    assert make("echo {sample} {r.1-x} {}", ["a", "b"], both) == ["echo", "a", "b", "a"]
    assert make("echo {other}", ["a", "b"], both) == "echo {other}"
    assert make("echo {sample};", ["a b", "c"], both) == "echo 'a b';"


def test_without_columns_empty_braces_are_left_alone() -> None:
    assert make("find . -exec ls {} +", None, ()) == "find . -exec ls {} +"
    assert make("echo {index}", None, ()) == ["echo", "12"]
    assert argv(("find", "{}"), None, ()) == ["find", "{}"]


def test_an_argv_is_never_split_or_quoted() -> None:
    assert argv(("echo", "{} {}", "a b", "{{}", ""), "x y'$(id)") == ["echo", "x y'$(id) x y'$(id)", "a b", "{}", ""]
    assert argv(("sh", "-c", "x {index}; $y ${index}")) == ["sh", "-c", "x 12; $y ${index}"]


def test_what_is_the_same_for_all_jobs_is_made_once() -> None:
    maker = CommandMaker(Template(argv=("echo", "", "{{x")), ("",), 7)
    assert maker.fixed == ["echo", "", "{x"]
    assert maker.command("a", 1, 1) is maker.fixed
    assert CommandMaker(Template(argv=("echo", "{attempt}")), (), 7).fixed is None
    assert CommandMaker(Template(shell="sleep 1"), (), 7).fixed == ["sleep", "1"]
    assert CommandMaker(Template(shell="sleep 1; x"), (), 7).fixed is None


def test_lines() -> None:
    maker = CommandMaker(Template(), (), 7)
    assert maker.lines
    assert maker.command("echo {} {index}", 1, 1) == "echo {} {index}"
    assert maker.command("echo a  b", 1, 1) == ["echo", "a", "b"]
    assert maker.command({"command": "echo a|cat"}, 1, 1) == "echo a|cat"
    assert maker.command({"command": ["echo", "a|cat"]}, 1, 1) == ["echo", "a|cat"]


def test_paths() -> None:
    maker = CommandMaker(
        Template(argv=("true",), cwd="/d/{}", stdin="/in", stdout="/out/{job}.{{}", stderr=None), ("",), 7
    )
    assert maker.path("cwd", "a b", 12, 1) == "/d/a b"
    assert maker.path("stdin", "a", 12, 1) == "/in"
    assert maker.path("stdout", "a", 12, 1) == "/out/7.12.{}"
    assert maker.path("stderr", "a", 12, 1) is None
    assert sorted(maker.paths) == ["cwd", "stdout"]
    lines = CommandMaker(Template(stdout="/x"), (), 7)
    assert lines.path("stdout", {"command": "true", "stdout": "/y"}, 1, 1) == "/y"
    assert lines.path("stdout", {"command": "true", "stdout": None}, 1, 1) is None
    assert lines.path("stdout", {"command": "true"}, 1, 1) == "/x"


@pytest.mark.parametrize(
    "line",
    [
        "", "   ", "cd /tmp", "exit 3", ". x", ": x", "source x", "export A=1", "time ls", "if true", "coproc cat",
        "pwd", "then x", "ulimit -n 5", "A=1 ls", "a+=b", "_x=", "ls *", "ls ?", "ls [ab]", "ls ~", "ls ~/x",
        "ls > x", "ls < x", "ls 2>&1", "a | b", "a; b", "a && b", "a & b", "(a)", "{ a; }", "echo $x", "echo `x`",
        "echo 'a b'", 'echo "x"', "echo a\\ b", "a\nb", "a\n", "echo #x", "echo !x", "echo a{1,2}", "echo é",
        "a\x0bb", "echo --help", "true --version", "test --help x", "let x=1", "wait", "[ a = b ]",
    ],
)  # fmt: skip
def test_a_shell_is_needed(line: str) -> None:
    assert needs_shell(line)
    assert split_line(line) == line


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("true", ["true"]),
        ("  sleep  0.5\t", ["sleep", "0.5"]),
        (
            "cmd --opt=a,b -x +y @f %d a:b/c.d_e-f X=1",
            ["cmd", "--opt=a,b", "-x", "+y", "@f", "%d", "a:b/c.d_e-f", "X=1"],
        ),
        ("a.b=c", ["a.b=c"]),
        ("grep --help", ["grep", "--help"]),
        ("cdo x", ["cdo", "x"]),
    ],
)
def test_no_shell_is_needed(line: str, words: list[str]) -> None:
    assert not needs_shell(line)
    assert split_line(line) == words


@pytest.mark.parametrize(
    "line",
    [
        "echo a  b\tc",
        "printf %s,%d a 3",
        "test a = b",
        "true",
        "false",
        "echo -n x",
        "expr 3 + 4",
        "no-such-command-here x",
    ],
)
def test_plain_lines_do_the_same_without_a_shell(line: str) -> None:
    words = split_line(line)
    assert isinstance(words, list)
    shell = subprocess.run(["bash", "-c", line], capture_output=True)
    try:
        direct = subprocess.run(words, capture_output=True)
        assert (direct.returncode, direct.stdout) == (shell.returncode, shell.stdout)
    except FileNotFoundError:
        assert shell.returncode == 127


def test_a_placeholder_that_begins_the_line_is_not_taken_for_a_builtin() -> None:
    assert make("{} x", "/bin/echo") == ["/bin/echo", "x"]
    assert make("{}=1 ls", "A") == "A=1 ls"


@pytest.mark.parametrize(
    ("text", "value", "made"),
    [
        ("echo {};", "a b", "echo 'a b';"),
        ('echo "{}"', "a b", 'echo "a b"'),
        ('echo "{}"', '$x`y`"\\', 'echo "\\$x\\`y\\`\\"\\\\"'),
        ("sh -c 'echo {}'", "a'b", "sh -c 'echo a'\\''b'"),
        ('echo "$(cat {})"', "a b", "echo \"$(cat 'a b')\""),
        ('echo "$(cat "{}")"', "a b", 'echo "$(cat "a b")"'),
        ('echo \\" {}', "a b", "echo \\\" 'a b'"),
        ('echo "(" {}', "a b", "echo \"(\" 'a b'"),
        ("echo it # isn't {}", "a b", "echo it # isn't 'a b'"),
        ("cat <<E\n'\nE\necho {}", "a b", "cat <<E\n'\nE\necho 'a b'"),
        ("echo `x` {}", "a b", "echo `x` 'a b'"),
        ("echo '{}", "a b", "echo ''a b'"),
    ],
)
def test_quoting_follows_the_place(text: str, value: str, made: str) -> None:
    assert make(text, value) == made


def test_commands_as_people_could_type_them() -> None:
    assert show_command(["echo", "a b", ""]) == "echo 'a b' ''"
    assert show_command("echo $x") == "echo $x"


@pytest.mark.parametrize(
    ("command", "group"),
    [
        ("align x", "align"),
        ("python3 heavy.py 3", "heavy.py"),
        ("/usr/bin/python3.11 -u -W ignore dir/heavy.py", "heavy.py"),
        ("python3 -m tool.main x", "tool.main"),
        ("python3 -c 'print(1)'", ""),
        ("bash run.sh", "run.sh"),
        ("bash -c 'a | b'", ""),
        ("mpirun -n 4 ./model a", "model"),
        ("mpirun --oversubscribe -np 4 python3 x.py", "x.py"),
        ("env A=1 B=2 nice -n 10 time -v srun -n 4 ./model", "model"),
        ("timeout -k 5 10 python3 a.py", "a.py"),
        ("java -Xmx4g -jar tool.jar", "tool.jar"),
        (["taskset", "0x3", "/opt/bin/model"], "model"),
        ("bash {}", ""),
        ("python3", "python3"),
        ("nice", "nice"),
    ],
)
def test_jobs_learn_with_those_of_the_same_script(command: str | list[str], group: str) -> None:
    assert group_of(command) == group
