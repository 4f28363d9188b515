"""The documents are true: their commands run and print what they say, their Python runs, their links lead somewhere.

A block marked `console` is run: lines after `$ ` are typed (continued by `> `), the lines below are what comes out,
standard error included. `…` stands for anything (alone on a line: for any number of lines), and blanks count once. The
exit status is 0, or what a comment says: `# exit status 1`.
"""

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest

from process.support_home import ROTA, Home, home
from rota.cli.main import ALIASES, COMMANDS
from rota.manager.config import Config, PolicyConfig, SiteConfig

__all__ = ["home"]

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])
STATUS = re.compile(r"\s+# exit status (\d+)$")
MARK = "--- status "


class Typed(NamedTuple):
    """One command of a document, and what it is to print."""

    line: int
    command: str
    status: int
    expected: list[str]


def blocks(path: Path, language: str) -> Iterator[tuple[int, str]]:
    """(line number, text) of every block with this mark."""
    text = path.read_text(encoding="utf-8")
    for match in re.finditer(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        yield text.count("\n", 0, match.start(1)) + 1, match[1]


def typed(path: Path) -> list[Typed]:
    """Every command of a document, in order."""
    out: list[Typed] = []
    for first, text in blocks(path, "console"):
        for number, line in enumerate(text.splitlines(), first):
            if line.startswith("$ "):
                status = STATUS.search(line)
                command = STATUS.sub("", line)[2:]
                out.append(Typed(number, command, int(status[1]) if status else 0, []))
            elif line.startswith(">") and out and not out[-1].expected:
                out[-1] = out[-1]._replace(command=f"{out[-1].command}\n{line[2:]}")
            else:
                assert out, f"{path.name}:{number}: output before any command"
                out[-1].expected.append(line)
    return out


def environment(home: Home) -> dict[str, str]:
    """As a new user has it, with `rota` in the PATH."""
    return {**home.env, "PATH": f"{Path(ROTA).parent}:{home.env['PATH']}", "HOME": str(home.work), "NO_COLOR": "1"}


def squeeze(text: str) -> str:
    return " ".join(text.split())


def matches(expected: list[str], got: list[str]) -> bool:
    """True if the lines are those expected."""
    pattern = ""
    for line in expected:
        if line.strip() == "…":
            pattern += r"(?:.*\n)*?"
        else:
            pattern += r" ?.*".join(re.escape(squeeze(part)) for part in line.split("…")) + r"\n"
    text = "".join(f"{squeeze(line)}\n" for line in got if line.strip())
    return re.fullmatch(pattern, text) is not None


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", ["README.md", "docs/tutorial.md"])
def test_console_blocks(page: str, home: Home) -> None:
    commands = typed(ROOT / page)
    assert len(commands) > 10
    script = "".join(f"{command.command}\nstatus=$?; echo; echo '{MARK}'$status\n" for command in commands)
    done = subprocess.run(
        ["bash"], input=script, cwd=home.work, env=environment(home), text=True, timeout=500,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    pieces = re.split(rf"^{MARK}(\d+)\n", done.stdout, flags=re.MULTILINE)
    problems = []
    for at, command in enumerate(commands):
        where = f"{page}:{command.line}: $ {command.command.splitlines()[0]}"
        if 2 * at + 1 >= len(pieces):
            problems.append(f"{where}\n    never finished")
            break
        output, status = pieces[2 * at].splitlines(), int(pieces[2 * at + 1])
        if status != command.status:
            problems.append(f"{where}\n    exit status {status}, not {command.status}")
        if not matches([line for line in command.expected if line.strip()], output):
            problems.append(f"{where}\n    printed: {output}\n    not:     {command.expected}")
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize("page", ["README.md", "docs/python.md"])
def test_python_blocks(page: str, home: Home) -> None:
    script = "\n".join(text for _, text in blocks(ROOT / page, "python"))
    assert script
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, cwd=home.work, env=environment(home), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


def anchors(file: Path) -> set[str]:
    """The anchors of a document's headings."""
    titles = re.findall(r"^#+ (.*)$", file.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.strip().lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links(page: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        if not file.exists() or (anchor and anchor not in anchors(file)):
            broken.append(target)
    assert not broken


def keys_in_tables(title: str) -> set[str]:
    """First cells of the table in one section of config.md."""
    text = (DOCS / "config.md").read_text(encoding="utf-8")
    section = text.split(f"\n## {title}\n", 1)[1].split("\n## ", 1)[0]
    return set(re.findall(r"^\| `([^`]+)` \|", section, re.MULTILINE))


def test_config_keys() -> None:
    assert keys_in_tables("The manager") == set(Config.__struct_encode_fields__)
    assert keys_in_tables("`[site.NAME]`") == set(SiteConfig.__struct_encode_fields__)
    policy = {*keys_in_tables("`[policy.NAME]`"), "filters_add", "filters_drop"} - {"filters_add`, `filters_drop"}
    assert policy == set(PolicyConfig.__struct_encode_fields__)


def test_the_policies_of_the_documents() -> None:
    """The filter in the how-to passes the exam beside it, and its configuration can be read."""
    page = DOCS / "howto" / "policies.md"
    exec("\n".join(text for _, text in blocks(page, "python")), {})
    (config, _) = (text for _, text in blocks(page, "toml"))
    policies = msgspec.convert(tomllib.loads(config.replace('filters_add = ["near"]', "")), Config).policies()
    assert policies["fair"].half_life_s == 3 * 86_400 and policies["fair"].scorers == {"spread": 1.0}


def test_config_defaults() -> None:
    """Every default that is plain text or a number stands in its row."""
    text = (DOCS / "config.md").read_text(encoding="utf-8")
    for section in (Config(), SiteConfig()):
        for field, key in zip(section.__struct_fields__, section.__struct_encode_fields__, strict=True):
            value = getattr(section, field)
            if isinstance(value, str | int):
                shown = f'"{value}"' if isinstance(value, str) else str(value)
                assert re.search(rf"^\| `{key}` \| `{re.escape(shown)}` \|", text, re.MULTILINE), f"{key} = {shown}"


def test_promises_name_tests_that_exist() -> None:
    named = set(re.findall(r"`(tests/[\w/.]+)`", (DOCS / "promises.md").read_text(encoding="utf-8")))
    assert len(named) > 8
    missing = [name for name in named if not (ROOT / name).is_file() and not list((ROOT / name).glob("test_*.py"))]
    assert not missing


def test_architecture_names_rooms_that_exist() -> None:
    text = (DOCS / "architecture.md").read_text(encoding="utf-8")
    rooms = {path.name for path in (ROOT / "src" / "rota").iterdir() if (path / "__init__.py").exists()}
    shown = set(re.findall(r"^  (\w+)/ ", text, re.MULTILINE))
    assert shown == rooms
    for name in re.findall(
        r"`((?:model|core|cli|manager|schedule|drivers|wire|runner|submission|store)/[\w/]+\.py)`", text
    ):
        assert (ROOT / "src" / "rota" / name).exists(), name


def test_the_diagrams_are_current() -> None:
    command = [sys.executable, str(ROOT / "tools" / "make_docs.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


def test_every_command_is_in_the_reference() -> None:
    path = DOCS / "reference" / "cli.md"
    text = path.read_text(encoding="utf-8")
    assert not [name for name in [*COMMANDS, *ALIASES] if not re.search(rf"\brota {name}\b|`{name}`", text)]


def test_the_readme_says_how_to_test() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "make test" in text
    assert "make run" in text
    assert (ROOT / "docs" / "images" / "first-run.svg").read_text(encoding="utf-8").startswith("<svg")
