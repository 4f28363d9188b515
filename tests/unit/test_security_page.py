"""The security page is true: each threat names tests that exist, and what it says is not there is not there."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "security.md").read_text()
NAMED = re.compile(r"`((?:unit|process|property|sim|cluster)/test_\w+\.py)`")
DANGEROUS = {"pickle", "marshal", "shelve", "dill", "yaml", "http.server", "aiohttp", "flask"}
"""What makes code of bytes that somebody else may have written, or a page of them."""


def rows(heading: str) -> list[str]:
    """The rows of the table below a heading."""
    section = PAGE.partition(f"## {heading}")[2].partition("\n## ")[0]
    return [line for line in section.splitlines() if line.startswith("| ")][1:]


def test_every_threat_names_a_test_that_exists() -> None:
    threats, model = rows("Threats, defences, tests"), rows("The twenty rows of the threat model")
    assert len(threats) >= 11 and len(model) == 20
    for row in threats + model:
        names = NAMED.findall(row)
        assert names, f"no test is named: {row}"
        for name in names:
            assert "def test_" in (ROOT / "tests" / name).read_text(), name


def test_nothing_is_unpickled_and_no_page_is_served() -> None:
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not DANGEROUS.intersection(names), f"{path}: {names}"
