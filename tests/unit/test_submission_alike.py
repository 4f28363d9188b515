"""One job that is submitted again and again is built and encoded once; whatever decides what it is, is looked at."""

import importlib
import json
import os
from pathlib import Path
from typing import Any

import pytest

from rota.model.errors import UsageError
from rota.submission.build import Submission, build
from rota.wire.client import frame

building = importlib.import_module("rota.submission.build")  # its package has a function of that name


@pytest.fixture(autouse=True)
def _forget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(building, "_ALONE", {})


def said(submission: Submission) -> dict[str, Any]:
    """What the manager is told, whichever way it is sent; without the key."""
    encoded = submission.encoded()
    if encoded is not None:
        told: dict[str, Any] = json.loads(frame({"op": "submit"}, encoded)[4:])
        return told
    (request,) = submission.requests()
    del request["key"]
    return json.loads(json.dumps(request))  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("command", "options"),
    [
        (["true"], {}),
        ("sort x | uniq > y", {"memory": "2G", "time": "1h", "cores": 2}),
        (["a", "ü\n{}"], {"name": "n", "priority": 3, "env_from": "none", "rerunnable": True}),
    ],
)
def test_it_is_the_same_as_when_it_was_built(command: Any, options: Any) -> None:
    first = build(command, options)
    again = build(command, options)
    assert first.encoded() is None and again.encoded() is not None
    assert said(again) == said(first)
    assert again.key != first.key and again.spec == first.spec
    (request,), (other,) = again.requests(), first.requests()
    assert request["batch"] == other["batch"]


def test_what_decides_it_is_looked_at_each_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    build(["true"], {})
    assert build(["true"], {"name": "x"}).spec.name == "x"
    assert build(["true"], {"cores": 2}).spec.templates[0].needs.cores == 2000
    assert build(["true"], {"cores": 2.5}).spec.templates[0].needs.cores == 2500
    monkeypatch.chdir(tmp_path)
    assert build(["true"], {}).spec.templates[0].cwd == str(tmp_path)
    before = os.umask(0o027)
    try:
        assert build(["true"], {}).spec.templates[0].umask == 0o027
    finally:
        os.umask(before)
    monkeypatch.setenv("SAMPLE", "s1")
    assert said(build(["true"], {}))["env"]["SAMPLE"] == "s1"
    monkeypatch.setenv("SAMPLE", "s2")
    assert said(build(["true"], {}))["env"]["SAMPLE"] == "s2"


def test_what_changes_with_time_or_files_is_built_anew(tmp_path: Path) -> None:
    file = tmp_path / "setup.sh"
    file.touch()
    for options in ({"not_before": "+5m"}, {"after": ["7"]}, {"setup": str(file)}, {"cwd": str(tmp_path)}):
        given: Any = options
        for _ in range(2):
            assert build(["true"], given).encoded() is None
    file.unlink()
    with pytest.raises(UsageError, match="does not exist"):
        build(["true"], {"setup": str(file)})
    for _ in range(2):
        once = build(["true"], {})
        once.once = "cwd"
        assert once.encoded() is None and said(once)["once"] == "cwd"
        assert build(["echo", "{}"], {}, values=["1"]).encoded() is None


def test_what_is_wrong_is_wrong_each_time() -> None:
    wrong: Any = ["true", 1]
    for _ in range(2):
        with pytest.raises((UsageError, TypeError)):
            build(wrong, {})
        with pytest.raises(UsageError, match="priority"):
            build(["true"], {"priority": 999})
        with pytest.raises(UsageError, match="empty"):
            build("", {})


def test_few_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(building, "MOST_ALONE", 4)
    for number in range(20):
        build(["echo", str(number)], {})
        assert len(building._ALONE) <= 4
