"""Outputs of real batch systems, recorded: one JSON object per line, with what truly had happened."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from rota.drivers.dialect import Answer


class Case(NamedTuple):
    """One command that was run."""

    argv: list[str]
    answer: Answer
    truth: str


def recorded(system: str) -> Mapping[str, Case]:
    """All of a system, by name. `documented` ones are after the manual: no such system was at hand."""
    out = {}
    for line in (Path(__file__).parent / "fixtures" / system / "recorded.jsonl").read_text().splitlines():
        row: dict[str, Any] = json.loads(line)
        answer = Answer(row["exit"], row["stdout"], row["stderr"])
        out[row["case"]] = Case(row["argv"], answer, row["truth"] or "")
    return out
