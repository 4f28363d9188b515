"""The command line without a manager: options, help, errors, completion, what is imported."""

import importlib
import os
import subprocess
import sys

import pytest

from rota.cli import completion, live, main, parser, show, submitting, wait, watch
from rota.cli.following import _Order
from rota.cli.jobs import JOB_FIELDS, ending, field_text
from rota.cli.run import most_at_once
from rota.model.errors import UsageError
from rota.model.selector import _GROUPS, STATES
from rota.submission import JobOptions as Options
from rota.submission import build

HEAVY = {"rich", "msgspec", "asyncio", "dataclasses", "inspect", "typing", "subprocess", "tempfile", "shutil", "socket",
         "selectors", "logging", "random", "locale", "datetime", "rota.model.batch", "rota.submission"}  # fmt: skip


def parse(command, *words):
    it = parser.Parser(command, "x")
    importlib.import_module(main.COMMANDS[command][0]).configure(it, command)
    return it.parse(words)


# The table of commands


def test_every_command_is_in_one_group_and_its_module_has_it():
    assert sorted(name for _, names in main.GROUPS for name in names) == sorted(main.COMMANDS)
    for name, (module, summary) in main.COMMANDS.items():
        face = importlib.import_module(module)
        assert callable(face.configure) and callable(face.execute) and summary
        assert f"  {name:<12} {summary}" in main.overview()


@pytest.mark.parametrize("command", [*main.COMMANDS, *main.ALIASES])
def test_every_command_has_help_with_examples(command, capsys):
    assert main.main([command, "--help"]) == 0
    text = capsys.readouterr().out
    assert "examples:\n  " in text and "usage: rota" in text
    if command not in ("completion", "rsh"):
        assert "--json" in text
    assert main.main(["help", command]) == 0


def test_help_version_and_nothing(capsys):
    assert main.main([]) == 2
    assert main.main(["--help"]) == main.main(["help"]) == 0
    assert main.main(["--version"]) == 0
    assert "rota 0." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["statsu"], "there is no command 'statsu': did you mean status?"),
        (["xyzzy"], "see rota --help"),
        (["status", "--jsn"], "unknown: --jsn (did you mean --json?)"),
        (["add", "--enforce", "all", "--", "x"], "invalid choice: 'all' (choose from"),
        (["add", "--priority", "high", "--", "x"], "invalid int value: 'high'"),
        (["ping", "7"], "unknown: 7"),
        (["completion", "tcsh"], "invalid choice: 'tcsh'"),
        (["log"], "log of what? Name a job, as in rota log 7.12"),
        (["jobs", "-n", "0"], "--limit 0"),
        (["run", "-j", "0", "--", "x"], "-j 0"),
        (["run", "--resume", "7", "--", "x"], "takes no command"),
        (["run", "--resume", "x"], "give the number of a batch"),
        (["add", "-f", "x", "--", "y"], "not both"),
        (["add", "--zip", "--", "y"], "--zip pairs"),
        (["add", "--param", "x", "--", "y"], "write NAME=A,B,C or NAME@FILE"),
        (["add", "--param", "x=1", "--param", "x=2", "--", "{x}"], "given twice"),
        (["add", "--env", "NOT_SET_ANYWHERE", "--", "y"], "is not set here"),
        (["add", "--resource", "x", "--", "y"], "write NAME=VALUE"),
        (["add", "--resource", "x=y", "--", "y"], "is not a count"),
        (["add", "-f", "-", "--values-from", "-"], "standard input can be read only once"),
        (["kill"], "--all"),
        (["log", "1.1", "--both", "--stderr"], "give one of them"),
    ],
)
def test_wrong_usage_is_exit_2_in_a_line_or_two(words, text, capsys):
    assert main.main(words) == 2
    out, err = capsys.readouterr()
    assert text in err and out == "" and 1 <= err.count("\n") <= 2 and err.startswith("rota"), err


# Commands after options


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (["--", "echo", "-n", "a"], ["echo", "-n", "a"]),
        (["echo", "-n", "a"], ["echo", "-n", "a"]),
        (["-c", "2", "echo", "--cores"], ["echo", "--cores"]),
        (["-c", "2", "--", "--odd"], ["--odd"]),
        (["git", "log", "--", "file"], ["git", "log", "--", "file"]),
        (["--", "git", "--", "x"], ["git", "--", "x"]),
        (["--name", "x"], []),
    ],
)
@pytest.mark.parametrize("face", ["add", "run"])
def test_where_the_command_begins(words, command, face):
    assert parse(face, *words).words == command


def test_run_show_takes_no_word_of_the_command():
    assert parse("run", "--show", "echo", "a").words == ["echo", "a"]
    args = parse("run", "--show=ordered", "echo", "a")
    assert args.show == "ordered" and args.words == ["echo", "a"]


def test_selectors_may_stand_on_both_sides_of_options():
    args = parse("jobs", "7", "--json", ":failed", "-n", "3", "8")
    assert args.selector == ["7", ":failed", "8"] and args.json and args.limit == 3


def test_cores_at_once_become_jobs_at_once():
    assert most_at_once(parse("run", "-j", "8", "x")) == 8
    assert most_at_once(parse("run", "-j", "8", "-c", "3", "x")) == 2
    assert most_at_once(parse("run", "-j", "1", "-c", "0.25", "x")) == 4
    assert most_at_once(parse("run", "-j", "1", "-c", "4", "x")) == 1
    assert most_at_once(parse("run", "x")) is None


def test_all_options_reach_the_submission(tmp_path):
    args = parse(
        "add",
        "--name",
        "n",
        "-c",
        "2",
        "--mem",
        "1G",
        "-t",
        "1h",
        "--disk",
        "1G",
        "--gpus",
        "1",
        "--resource",
        "lic=2",
        "--cwd",
        str(tmp_path),
        "--env",
        "A=b=c",
        "--env-from",
        "none",
        "--module",
        "gcc",
        "--stdin",
        "in",
        "-o",
        "out",
        "-e",
        "err",
        "--retries",
        "2",
        "-p",
        "9",
        "--after",
        "7",
        "--after-any",
        "8",
        "--after-failure",
        "@x",
        "--limit",
        "irods:3",
        "--tag",
        "t",
        "--on",
        "here",
        "--enforce",
        "both",
        "--grace",
        "1s",
        "--output-cap",
        "1M",
        "--rerunnable",
        "--array",
        "1-9%3",
        "--not-before",
        "+1h",
        "--",
        "x",
        "{index}",
    )
    submission = submitting.submission_of(args)
    spec, template = submission.spec, submission.spec.templates[0]
    assert spec.at_once == 3 and spec.name == "n" and len(spec.after) == 3 and spec.not_before
    assert template.argv == ("x", "{index}") and template.set == {"A": "b=c"} and template.env_from == "none"
    assert (
        template.stdout == f"{tmp_path}/out" and template.needs.named == (("lic", 2),) and template.modules == ("gcc",)
    )
    assert submission.limits == {"irods": 3} and template.rerunnable and template.needs.gpus == 1
    assert submission.env is None


# What is printed


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.004, "0.00s"),
        (9.99, "9.99s"),
        (12.34, "12.3s"),
        (245, "4m05s"),
        (11_220, "3h07m"),
        (190_000, "2d04h"),
        (None, ""),
    ],
)
def test_seconds(value, text):
    assert show.seconds(value) == text


def test_tables_line_up_and_cannot_hurt_a_terminal(capsys):
    table = show.Table("A", "B", "C", right=("B",))
    table.print([["x", 1, "\x1b[31mred\n"], ["longer", 100, None]])
    table.print([["y", 2, "z"]])
    assert capsys.readouterr().out.splitlines() == [
        "A         B  C", "x         1  \\x1b[31mred\\n", "longer  100", "y         2  z",
    ]  # fmt: skip


def test_a_narrow_terminal_cuts_the_longest_column_not_the_numbers():
    from rich.console import Console

    class Manager:
        def ask(self, op, **_):
            row = {"id": "7.12", "state": "RUNNING", "host": "n1", "elapsed_s": 9, "command": "x" * 99}
            return {"jobs": [row | {"last_line": "y" * 99}], "more": 0}

    status = {
        "batches": [{"id": 7, "name": "align", "jobs": 600, "counts": {"PENDING": 590, "RUNNING": 10}}],
        "why": [{"batch": 7, "reason": "z" * 99}],
        "total": {"batches": 1},
    }
    now = live.picture(Manager(), [], 9)
    for picture, words in ((now, ["7.12", "RUNNING", "9.00s"]), (watch.picture(status), ["align", "590", "0%"])):
        console = Console(width=50)
        with console.capture() as got:
            console.print(picture)
        assert all(word in got.get() for word in words), got.get()


def test_counts_in_words():
    assert show.count_words({"FAILED": 1, "COMPLETED": 2000, "RUNNING": 0}) == "2,000 COMPLETED, 1 FAILED"
    assert show.count_words({}) == "no jobs"
    assert show.STATES == STATES


def test_how_a_job_ended_in_one_word():
    assert ending({"state": "COMPLETED", "exit_code": 0, "reason": "exit"}) == "0"
    assert ending({"state": "FAILED", "exit_code": 3, "reason": "exit"}) == "3"
    assert ending({"state": "FAILED", "signal": 9, "reason": "signal"}) == "SIGKILL"
    assert ending({"state": "FAILED", "signal": 9, "reason": "memory"}) == "memory"
    assert ending({"state": "PENDING"}) == ending({"state": "OMITTED", "reason": "depends on 1.2, which …"}) == ""
    assert field_text("a\tb\nc\\") == "a\\tb\\nc\\\\" and field_text(["a"]) == '["a"]' and field_text(None) == ""
    assert JOB_FIELDS[:2] == ("id", "state")


def test_timeouts():
    assert wait.timeout_of(None) is None and wait.timeout_of("1.5") == 1.5 and wait.timeout_of("10m") == 600
    for bad in ("-1", "x", "nan", "inf"):
        with pytest.raises(UsageError):
            wait.timeout_of(bad)


def test_output_in_order():
    order = _Order(build("x", Options(), array="2-8:2").spec)
    assert order.put("1.4") == [] and order.put("1.2") == ["1.2", "1.4"] and order.put("1.8") == []
    assert order.rest() == ["1.8"]


def test_colours_only_on_a_terminal_and_if_wanted(monkeypatch):
    class Screen:
        def isatty(self):
            return True

    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    with open(os.devnull) as null:
        assert show.colours(Screen()) and not show.colours(null)
    monkeypatch.setenv("NO_COLOR", "1")
    assert not show.colours(Screen())


# Completion


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("rota sta", ["status"]),
        ("rota kill --d", ["--dry-run"]),
        ("rota add --env-from s", ["submit", "site"]),
        ("rota status :fai", ["failed"]),
        ("rota jobs -s fai", ["failed"]),
        ("rota completion ", ["bash", "zsh", "fish"]),
        ("rota add -- ls --d", []),
        ("rota nonsense --x", []),
        ("rota add --name 'a b", []),
    ],
)
def test_completion_for_bash(line, found, capsys):
    assert main.main(["__complete", "bash", line]) == 0
    assert capsys.readouterr().out.split() == found


def test_completion_for_other_shells_is_by_word(capsys):
    main.main(["__complete", "zsh", "status", ":fai"])
    assert capsys.readouterr().out.split() == [":failed"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(shell, capsys):
    assert main.main(["completion", shell]) == 0
    assert "rota __complete" in capsys.readouterr().out
    assert set(completion.GROUPS) == set(_GROUPS)


def test_the_bash_script_is_bash():
    subprocess.run(["bash", "-n"], input=completion.SCRIPTS["bash"], text=True, check=True)


# What is loaded


@pytest.mark.parametrize(
    "words",
    [["status"], ["ping"], ["jobs", "7", ":failed"], ["wait", "7"], ["kill", "7"], ["log", "7.1"], ["explain", "7.1"]],
)
def test_quick_commands_load_little(words, tmp_path):
    """Each of these costs milliseconds at every start; the budget for all is 40."""
    code = f"import sys; from rota.cli.main import main; main({words!r}); print(*sys.modules)"
    environ = {**os.environ, "ROTA_HOME": str(tmp_path / "none")}
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, timeout=30)
    loaded = set(done.stdout.split())
    assert "no rota manager" in done.stderr and loaded
    assert not loaded & HEAVY, loaded & HEAVY
    ours = {name for name in loaded if name.startswith("rota")}
    assert len(ours) <= 16, ours
