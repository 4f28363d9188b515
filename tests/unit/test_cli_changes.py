"""`rota modify` and `rota retry`: all that can be said of a job when it is added can be changed afterwards."""

import importlib

import pytest
from msgspec.structs import replace

from rota.cli import main, parser
from rota.cli.change import changes_of
from rota.model.batch import Template
from rota.model.command import CommandMaker
from rota.model.errors import UsageError
from rota.model.needs import Needs
from rota.model.patch import Patch, decode_patch, patched
from rota.submission import Changes, make_patch
from rota.wire.client import frame

OF_THE_SUBMISSION = {
    "--file", "--array", "--values", "--values-from", "--param", "--zip", "--name", "--after", "--after-any",
    "--after-failure", "--each", "--each=value", "--live", "--live=rerun", "--require-known", "--not-before",
    "--max-failures", "--scouts", "--on-batch-end", "--once", "--once=command", "--once=cwd", "--rerun", "--verbose",
    "--quiet",
}  # fmt: skip
"""What makes the batch, or is said of it as a whole."""


def parser_of(command: str) -> parser.Parser:
    made = parser.Parser(command, "x")
    importlib.import_module(main.COMMANDS[command][0]).configure(made, command)
    return made


def patch_of(*words: str) -> Patch:
    sent = make_patch(changes_of(parser_of("modify").parse(["7", *words])))
    return decode_patch(frame(sent)[4:])


def changed(template: Template, *words: str) -> Template:
    """The template as it is afterwards, but for the list of what was said."""
    return replace(patched(template, patch_of(*words), template.needs), over=())


@pytest.mark.parametrize("command", ["modify", "retry"])
def test_every_option_of_a_job_can_be_changed(command: str) -> None:
    added = {name for name in parser_of("add").options() if name.startswith("--")}
    missing = added - set(parser_of(command).options()) - OF_THE_SUBMISSION
    assert not missing


def test_every_change_has_a_word_on_the_command_line() -> None:
    spelled = {"resources": "--resource", "tags": "--tag", "modules": "--module", "limits": "--limit",
               "drop_limits": "--drop-limit", "mounts": "--mount", "variants": "--variant",
               "mpirun_args": "--mpirun-arg", "inputs": "--input", "outputs": "--output"}  # fmt: skip
    options = parser_of("modify").options()
    for name in Changes.__annotations__:
        assert spelled.get(name, f"--{name.replace('_', '-')}") in options, name


def test_surroundings_are_changed_and_the_rest_stays() -> None:
    before = Template(shell="x", cwd="/", workdir="unique", cleanup="never", on_exit=("a", "b"), remove_on="exit")
    after = changed(before, "--on-success", "one", "--on-success", "two", "--signal", "USR1@60", "--env-from", "none")
    assert after.on_success == ("one", "two") and after.on_exit == ("a", "b")
    assert after.warn == ("USR1", 60) and after.env_from == "none"
    assert (after.workdir, after.cleanup, after.remove_on) == ("unique", "never", "exit")
    assert changed(after, "--change-home", "yes", "--behaviour-time", "5s").behaviour_s == 5


def test_what_was_said_is_taken_away() -> None:
    before = Template(
        shell="x", cwd="/", workdir="unique", cleanup="never", change_home=True, on_exit=("a",), remove_on="exit",
        warn=("USR1", 9), stdout="/tmp/o", stdin="/tmp/i", setup="/tmp/s", modules=("m",), no_retry_after_s=5,
        needs=Needs(site="here", tags=("t",), named=(("licence", 1),), options=(("--x", "1"), ("qos", "high"))),
    )  # fmt: skip
    words = ["--on-exit", "--remove-on", "--signal", "--stdout", "--stdin", "--setup", "--module", "--no-retry-after"]
    words += ["--on", "--tag", "--resource", "--qos"]
    after = changed(before, *(part for word in words for part in (word, "")), "--drop-native=--x")
    assert after == Template(shell="x", cwd="/", workdir="unique", cleanup="never", change_home=True)
    assert changed(after, "--workdir", "shared") == Template(shell="x", cwd="/")


def test_options_of_a_batch_system_are_merged() -> None:
    before = Template(shell="x", needs=Needs(options=(("account", "a"), ("partition", "p"))))
    after = changed(before, "--partition", "long", "--native=--licenses=m", "--exclusive", "yes", "--nodes", "2")
    wanted = {"account": "a", "partition": "long", "--licenses": "m", "exclusive": "yes"}
    assert dict(after.needs.options) == wanted and after.needs.nodes == 2
    again = changed(after, "--exclusive", "no", "--drop-native=--licenses", "--tasks-per-node", "4")
    assert dict(again.needs.options) == {"account": "a", "partition": "long", "tasks-per-node": "4"}
    with pytest.raises(UsageError, match="tasks per node 0"):
        changed(before, "--tasks-per-node", "0")
    with pytest.raises(UsageError, match="write it as the batch system does"):
        changed(before, "--native", "licenses=m")


def test_less_of_an_amount() -> None:
    """A minus and a digit is a value, not an option: with `=` or without."""
    before = Template(shell="x", needs=Needs(memory=1 << 30, time_s=3600))
    for words in (["--memory", "-512M", "--time", "-10m"], ["--memory=-512M", "-t-10m"]):
        after = changed(before, *words)
        assert (after.needs.memory, after.needs.time_s) == (512 << 20, 3000)
    with pytest.raises(UsageError, match="memory: -1073741824 is not possible"):
        changed(before, "--memory", "-2G")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--memory", "-5G"], "'-5G' is not a size"),
        (["--time", "-1h"], "'-1h' is not a duration"),
        (["--grace", "-1s"], "'-1s' is not a duration"),
        (["--no-retry-after", "-2h"], "'-2h' is not a duration"),
        (["--max-failures", "101%"], "max failures '101%': give a number of jobs from 1, a share from 1% to 100%"),
        (["--group", "a\nb"], "none of them control characters"),
        (["--group", "x" * 256], "at most 255 characters"),
    ],
)
def test_amounts_that_cannot_be_meant(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["add", "--dry-run", *words, "--", "true"]) == 2
    assert said in capsys.readouterr().err


def test_a_change_holds_against_what_a_job_s_own_line_says() -> None:
    lines = Template(cwd="/home", set={"A": "0", "B": "0"}, stdout="/home/out")
    own = {"command": "x", "cwd": "/usr", "env": {"A": "1", "C": "1"}, "stderr": "err"}
    before = CommandMaker(lines, (), 7)
    assert (before.path("cwd", own, 1, 1), before.path("stderr", own, 1, 1)) == ("/usr", "err")
    assert before.variables(own) == {"A": "1", "B": "0", "C": "1"}
    once = patched(lines, patch_of("--env", "A=9", "--cwd", "/var"), lines.needs)
    after = CommandMaker(patched(once, patch_of("--unset-env", "C"), once.needs), (), 7)
    assert after.path("cwd", own, 1, 1) == "/var" and after.path("stderr", own, 1, 1) == "err"
    assert after.variables(own) == {"A": "9", "B": "0"}


@pytest.mark.parametrize("words", [["--as", ""], ["--as", "x\ny"], ["--as", "x" * 65], ["--reason", "\x1b[2J"]])
def test_a_pause_has_a_name_in_one_line(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["pause", *words]) == 2
    said = capsys.readouterr().err
    assert f"{words[0]} '" in said and said.count("\n") == 1 and "\x1b" not in said


@pytest.mark.parametrize("option", ["--name", "--limit", "--group", "--array", "--after", "--not-before"])
def test_an_error_is_one_line_that_cannot_hurt_a_terminal(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["add", "--dry-run", option, "a\nb\x1b[2J", "--", "true"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "\x1b" not in said and "a\\nb" in said
