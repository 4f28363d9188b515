"""Recorded output of real batch systems: `tests/fixtures/SYSTEM/CASE.txt`, a head of `# key: value`, stdout, stderr."""

import re
from pathlib import Path

from rota.drivers.dialect import Answer

FIXTURES = Path(__file__).parent / "fixtures"


def recorded(system: str, case: str) -> Answer:
    """What the command answered; one that had not ended after a while has no exit status."""
    text = (FIXTURES / system / f"{case}.txt").read_text()
    head, rest = text.split("--- stdout", 1)
    first, rest = rest.split("\n", 1)
    at = 0 if rest.startswith("--- stderr") else rest.index("\n--- stderr") + 1
    second, stderr = rest[at:].split("\n", 1)
    code = re.search(r"^# exit: (-?\d+)$", head, re.MULTILINE)
    return Answer(int(code[1]) if code else None, _cut(rest[:at], first), _cut(stderr, second))


def _cut(text: str, head: str) -> str:
    return text[:-1] if "no newline" in head else text
