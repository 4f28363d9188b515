"""docs/reference holds every command, option, field and exit status."""

import importlib
import re
from pathlib import Path

import pytest

from rota.cli import main
from rota.cli.jobs import ATTEMPT_FIELDS, JOB_FIELDS
from rota.cli.parser import Parser
from rota.submission import environment
from rota.submission.jsonline import JsonLine

DOCS = Path(__file__).resolve().parents[2] / "docs" / "reference"
CLI = (DOCS / "cli.md").read_text()
JSON = (DOCS / "json.md").read_text()


@pytest.mark.parametrize("command", main.COMMANDS)
def test_every_command_and_option_is_in_the_reference(command):
    assert f"rota {command}" in CLI or f", {command}" in CLI
    parser = Parser(command, "x")
    importlib.import_module(main.COMMANDS[command][0]).configure(parser, command)
    missing = [name for name in parser.options() if name not in ("-h", "--help") and not re.search(rf"`{name}\b", CLI)]
    assert missing == []


def test_aliases_fields_and_names_are_in_the_reference():
    assert all(f"rota {alias}" in CLI for alias in main.ALIASES)
    assert all(re.search(rf"\b{field}\b", CLI) for field in JsonLine.__struct_fields__)
    assert all(f"`{field}`" in JSON for field in JOB_FIELDS)
    assert " ".join(ATTEMPT_FIELDS) in JSON
    assert all(f"`{word}`" in CLI for word in (*environment.SECRET_WORDS, *environment.SECRET_ENDS))
    for code in (0, 1, 2, 3, 4, 5, 130, 141):
        assert re.search(rf"^\| [0-9, ]*\b{code}\b", CLI, re.MULTILINE)
