"""The record of who did what: one line of JSON each, in the file that its path leads to, which never grows for ever."""

import json
import os
from pathlib import Path

import pytest

from rota.manager import audit
from rota.manager.audit import Audit


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def note(record: Audit, target: str) -> None:
    record.note("uid 1 via unix", "unix", "submit", target, "ok")


def test_a_line_holds_whatever_was_said(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    Audit(str(path), lambda: 12.3456).note('a "b"', "::1", "kill", "é\n\x1b[0m" + "x" * 300, "refused: " + "y" * 400)
    (row,) = lines(path)
    assert row == {
        "at": 12.346, "by": 'a "b"', "address": "::1", "action": "kill", "target": ("é\n\x1b[0m" + "x" * 300)[:200],
        "outcome": ("refused: " + "y" * 400)[:300],
    }  # fmt: skip
    assert path.read_bytes().isascii() and path.stat().st_mode & 0o777 == 0o600


def test_a_file_that_was_moved_or_removed_is_made_anew(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    record = Audit(str(path))
    note(record, "first")
    path.rename(tmp_path / "kept")
    note(record, "second")
    path.unlink()
    note(record, "third")
    record.close()
    note(record, "fourth")
    assert [row["target"] for row in lines(tmp_path / "kept")] == ["first"]
    assert [row["target"] for row in lines(path)] == ["third", "fourth"]


def test_the_file_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "audit.jsonl"
    monkeypatch.setattr(audit, "MOST_BYTES", 300)
    record = Audit(str(path))
    for number in range(9):
        note(record, f"{number}")
    assert [row["target"] for row in lines(path)][-1] == "8"
    assert all(found.stat().st_size <= 300 for found in (path, tmp_path / "audit.jsonl.1"))


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    other = tmp_path / "other"
    other.touch()
    record = Audit(str(path))
    note(record, "first")
    path.unlink()
    os.symlink(other, path)
    note(record, "second")
    assert not other.read_bytes()
