"""Habits from other tools: each works, or is refused with our way to say it."""

import json
from pathlib import Path
from typing import Any

import pytest

from rota.api import Found
from rota.cli.main import dispatch, home_last, unknown
from rota.model.errors import UsageError
from rota.model.selector import parse_selector
from rota.submission import build
from rota.submission.graph import Graph


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROTA_HOME", str(tmp_path / "home"))


def dry(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    """What `rota add --dry-run --json` says."""
    assert dispatch(["add", "--dry-run", "--json", *words]) == 0
    out: dict[str, Any] = json.loads(capsys.readouterr().out)
    return out


def commands(capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    return [row["command"] for row in dry(capsys, *words)["first"]]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--array", "1-3", "--", "echo", "{}"), ["echo 1", "echo 2", "echo 3"]),
        (("--array", "1-2", "--", "find . -name {}.txt -exec cat {{}} +"),
         ["find . -name 1.txt -exec cat {} +", "find . -name 2.txt -exec cat {} +"]),
        (("gzip", "-k", ":::", "a", "b c"), ["gzip -k a", "gzip -k 'b c'"]),
        (("--", "cp {} {}.bak", ":::", "x"), ["cp x x.bak"]),
        (("gzip", ":::", "a"), ["gzip a"]),
        (("--values", "a", "b", "c", "--", "echo", "{}"), ["echo a", "echo b", "echo c"]),
        (("--wrap=echo hello | cat",), ["echo hello | cat"]),
        (("--param", "k=1..3", "--", "echo", "{k}"), ["echo 1", "echo 2", "echo 3"]),
        (("--param", "k=1..9:4,x", "--", "echo", "{k}"), ["echo 1", "echo 5", "echo 9", "echo x"]),
    ],
)  # fmt: skip
def test_what_makes_the_jobs(capsys: pytest.CaptureFixture[str], words: tuple[str, ...], expected: list[str]) -> None:
    assert commands(capsys, *words) == expected


def test_a_file_of_values(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "names").write_text("a\nb\n")
    assert commands(capsys, "cat", "::::", str(tmp_path / "names")) == ["cat a", "cat b"]


def test_needs_in_the_words_of_others(capsys: pytest.CaptureFixture[str]) -> None:
    row = dry(capsys, "-J", "align", "--cpus-per-task", "4", "--mem-per-cpu", "2G", "--", "true")
    assert row["name"] == "align" and row["needs"] == ["4 cores, 8G memory"]
    assert dry(capsys, "--cpus", "2", "--", "true")["needs"] == ["2 cores"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("-n", "4", "--", "x"), "--array 1-4"),
        (("--mem-per-cpu", "1G", "-c", "2..4", "--", "x"), "give --memory"),
        (("--mem-per-cpu", "1G", "--mem", "2G", "--", "x"), "give one of them"),
        (("a", ":::", "1", ":::", "2"), "--param"),
        (("--array", "1-3", "--", "a", ":::", "1"), "give one of them"),
        (("--wrap=x", "--", "y"), "once"),
        (("--param", "k=3..1", "--", "echo {k}"), "ends below"),
        (("-N", "2", "--", "x"), "write --nodes 2"),
        (("-N", "align", "--", "x"), "write --name align"),
        (("--gres=gpu:2", "--", "x"), "write --gpus 2"),
        (("--gres", "fpga:1", "--", "x"), "write --native --gres=fpga:1"),
        (("--dependency=afterok:7:8", "--", "x"), "write --after 7,8"),
        (("-d", "afternotok:7", "--", "x"), "write --after-failure 7"),
    ],
)
def test_what_is_refused_says_our_form(words: tuple[str, ...], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        dispatch(["add", "--dry-run", *words])


def test_patterns_in_the_names_of_output_files() -> None:
    from rota.cli.main import COMMANDS
    from rota.cli.parser import Parser
    from rota.cli.submitting import configure_submission, submission_of

    parser = Parser("add", COMMANDS["add"][1])
    configure_submission(parser)
    args = parser.parse(["--array", "1-2", "-o", "/x/%A_%a.out", "-e", "/x/%j-100%%.err", "--", "true"])
    (template,) = submission_of(args).spec.templates
    assert (template.stdout, template.stderr) == ("/x/{batch}_{index}.out", "/x/{job}-100%.err")


def test_several_names_in_one_after() -> None:
    from rota.cli.submitting import targets_of

    assert targets_of("@x,@y") == ["@x", "@y"]
    assert targets_of("7,8.1,@z") == ["7", "8.1", "@z"]
    assert targets_of("@a,b") == ["@a,b"], "a name may have a comma"


@pytest.mark.parametrize(
    ("word", "ours"),
    [
        ("list", "status"), ("describe", "show"), ("delete", "kill"), ("rerun", "retry"), ("queue", "status"),
        ("conf", "config"), ("jbos", "jobs"),
    ],
)  # fmt: skip
def test_commands_of_other_tools(word: str, ours: str) -> None:
    assert f"did you mean {ours}" in unknown(word)


def test_home_before_the_command() -> None:
    assert home_last(["--home", "X", "status", "7"]) == ["status", "--home", "X", "7"]
    assert home_last(["--home=X", "jobs"]) == ["jobs", "--home=X"]
    assert home_last(["status", "--home", "X"]) == ["status", "--home", "X"]


def test_a_name_without_its_sign() -> None:
    assert parse_selector(["align"]) == parse_selector(["@align"])
    with pytest.raises(UsageError, match=":failed"):
        parse_selector(["failed"])
    for word in ("7,8", "7..9", "-x", "7-9"):
        with pytest.raises(UsageError, match="selects nothing"):
            parse_selector([word])


def test_files_for_wr_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "wr.txt"
    file.write_text('echo 1\necho 2\t{"memory": "1G", "cpus": 2}\n')
    with pytest.raises(UsageError, match=r'line 2: .*"command": "echo 2"'):
        dispatch(["add", "--dry-run", "-f", str(file)])
    file.write_text("awk '\t{print}' x\n")
    assert commands(capsys, "-f", str(file)) == ["awk '\t{print}' x"]


def test_what_looks_like_a_placeholder_is_warned_of() -> None:
    from rota.cli.foreign import unlikely_placeholders

    assert list(unlikely_placeholders("echo {index} {job}", replaced=False))
    assert not list(unlikely_placeholders("echo {index}", replaced=True))
    assert not list(unlikely_placeholders("awk '{print $1}' | xargs -I{} cat {} ${1}", replaced=True))
    assert list(unlikely_placeholders("convert {} {.}.png", replaced=True))


def test_what_is_almost_a_placeholder_is_warned_of(capsys: pytest.CaptureFixture[str]) -> None:
    dispatch(["add", "--dry-run", "--param", "sample=a,b", "-o", "{indx}.txt", "--", "echo {sample} {smple} ${smple}"])
    said = capsys.readouterr().err
    assert said.splitlines() == [
        "rota: warning: {smple} stays as it is: did you mean {sample}?",
        "rota: warning: {indx} stays as it is: did you mean {index}?",
    ]
    dispatch(["add", "--dry-run", "--array", "1-2", "--", "awk '{print}' {index} {{indx}} {a,b}"])
    assert capsys.readouterr().err == ""


def test_values_that_are_numbers() -> None:
    assert build("echo {}", {}, values=[1, 2.5, "x", Path("/y")]).preview(9) == [  # type: ignore[list-item]
        (1, "echo 1"), (2, "echo 2.5"), (3, "echo x"), (4, "echo /y"),
    ]  # fmt: skip
    with pytest.raises(UsageError, match=r"values='abc' is one text: give a list of values"):
        build("echo {}", {}, values="abc")
    with pytest.raises(UsageError, match="neither text nor a number"):
        build("echo {}", {}, values=[None])  # type: ignore[list-item]


def test_a_function_is_no_command() -> None:
    graph = Graph()
    graph.add("true")
    with pytest.raises(UsageError, match=r"a Graph is no command: .* submit\(lines=…\)"):
        build(graph, {})  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="a int is no command"):
        build(7, {})  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="print is a function: rota runs commands"):
        build(print, {})  # type: ignore[arg-type]


def test_what_is_found_can_be_indexed() -> None:
    found: Found[int] = Found(lambda: iter(range(5)))
    assert (found[0], found[3], found[-1], found[1:3]) == (0, 3, 4, [1, 2])
    with pytest.raises(IndexError):
        found[7]
    assert list(found) == [0, 1, 2, 3, 4]


def test_config_says_every_setting_and_its_source(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "config.toml").write_text('losses = 7\n[site.local]\ncores = 3\n[policy.default]\npick = "random"\n')
    assert dispatch(["config", "--json"]) == 0
    rows = {row["key"]: (row["value"], row["source"]) for row in json.loads(capsys.readouterr().out)}
    file = str(home / "config.toml")
    assert rows["losses"] == (7, file) and rows["touch"] == ("15s", "default")
    assert rows["site.local.cores"] == (3, file) and rows["site.local.poll"] == ("30s", "default")
    assert rows["policy.default.pick"] == ("random", file) and rows["policy.default.order"] == ("priority", "default")
    assert rows["home"] == (str(home), "$ROTA_HOME") and rows["secrets.keep"] == ([], "default")
    assert dispatch(["config", "site.local.cores"]) == 0
    assert capsys.readouterr().out.split() == ["site.local.cores", "3", file]
