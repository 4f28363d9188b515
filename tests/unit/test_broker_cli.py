"""`rota broker` as a user calls it."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rota.cli import main

FILE = Path(__file__).parents[1] / "data" / "brokerage-vectors.json"
VECTORS = json.loads(FILE.read_text())
BASE = VECTORS["inputs"]["production/base"]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ROTA_HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    (tmp_path / "task.json").write_text(json.dumps({key: BASE[key] for key in ("task", "files")}))
    (tmp_path / "queues.json").write_text(json.dumps({key: BASE[key] for key in ("queues", "job_stats", "extra")}))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main.main(["broker", *words])
    out = capsys.readouterr()
    return code, out.out, out.err


FILES = ("--task", "task.json", "--queues", "queues.json")


def test_explain_prints_funnel_skips_and_weights(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "explain", *FILES)
    assert code == 0
    assert "32 candidates\n  32 → 29 candidates, 10 % cut: status\n" in out
    assert "a job needs 14400 MB, its maxrss is 14399" in out
    assert "running/queued 2.88571 × data 2 × network 2.5" in out
    code, out, _ = run(capsys, "explain", *FILES, "--json", "--profile", "code")
    found = json.loads(out)
    assert code == 0 and found["candidates"][0]["queue"] == "NUC_Q" and found["profile"] == "code"
    assert found["skipped"]["Q_LOWMEM"]["numbers"] == {"need_MB": 14400, "maxrss": 14399}
    assert {step["filter"] for step in found["steps"]} >= {"status", "memory", "caps"}


def test_explain_says_why_nothing_is_left(capsys: pytest.CaptureFixture[str], home: Path) -> None:
    (home / "queues.json").write_text(json.dumps({"Q": {"status": "offline"}}))  # queues alone
    (home / "task.json").write_text(json.dumps(BASE["task"]))  # a task alone
    code, out, _ = run(capsys, "explain", *FILES)
    assert code == 1 and "FAILED: no queue is left" in out and "tried again after 60 min" in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["explain"], "--task FILE and --queues FILE"),
        (["explain", "--task", "none.json", "--queues", "queues.json"], "none.json: No such file"),
        (["explain", *FILES, "--set", "NQUEUED_SAT_CUP=1"], "did you mean NQUEUED_SAT_CAP"),
        (["explain", *FILES, "--set", "NQUEUED_SAT_CAP"], "NAME=VALUE"),
        (["explain", *FILES, "--set", "NW_ACTIVE=perhaps"], "a number, true, false or none"),
        (["explain", *FILES, "--flow", "other"], "there is no flow 'other'"),
        (["try"], "one saved state"),
        (["try", "task.json"], "what is to be tried?"),
        (["verify"], "files of vectors"),
        (["verify", "task.json"], "task.json: not a file of vectors of format 2"),
    ],
)
def test_what_is_wrong_is_named(capsys: pytest.CaptureFixture[str], words: list[str], said: str) -> None:
    code, _, err = run(capsys, *words)
    assert code == 2 and said in err


def test_broken_json_is_named_with_its_line(capsys: pytest.CaptureFixture[str], home: Path) -> None:
    (home / "task.json").write_text('{"task":\n {,}}')
    code, _, err = run(capsys, "explain", *FILES)
    assert code == 2 and "task.json" in err and "line 2" in err


def test_try_tells_what_would_be_different(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "explain", *FILES, "--save", "state.json")[0] == 0
    code, out, _ = run(capsys, "try", "state.json", "--set", "NQUEUED_SAT_CAP=20")
    assert code == 0 and "SUCCEEDED, 10 queues → SUCCEEDED" in out
    assert "30 files are queued on the link from SITE_Q_GOOD to NUC, the limit is 20" in out
    code, out, _ = run(capsys, "try", "state.json", "--set", "NQUEUED_SAT_CAP=20", "--json")
    assert json.loads(out)[0]["differs"]["Q_GOOD"]["before"].startswith("used")
    code, out, _ = run(capsys, "try", "state.json", "--set", "NQUEUED_NUC_CAP_FOR_JOBS=9999")
    assert "nothing changes" in out


def test_try_takes_several_tasks(capsys: pytest.CaptureFixture[str], home: Path) -> None:
    state: dict[str, Any] = {key: BASE[key] for key in ("queues", "job_stats", "extra")}
    state["tasks"] = [{**BASE["task"], "jediTaskID": 7}, {"task": BASE["task"], "files": BASE["files"]}]
    (home / "state.json").write_text(json.dumps(state))
    code, out, _ = run(capsys, "try", "state.json", "--profile", "modern")
    assert code == 0 and "task 7:" in out and "task 1:" in out


def test_verify_names_what_differs_and_counts(capsys: pytest.CaptureFixture[str], home: Path) -> None:
    cases = [case for case in VECTORS["cases"] if case["kind"] in ("memory", "production")]
    (home / "v.json").write_text(json.dumps({**VECTORS, "cases": cases}))
    code, out, _ = run(capsys, "verify", "v.json")
    assert (code, out) == (0, f"{sum(len(case['expect']) for case in cases)} passed, 0 failed\n")
    odd = {"id": "odd", "kind": "memory", "values": {"ram": 1000}, "expect": {"doc": {"need_MB": 1}}}
    unknown = {"id": "new", "kind": "weather", "expect": {"code": {}}}
    (home / "v.json").write_text(json.dumps({"format": 2, "cases": [odd, unknown, cases[-1]]}))
    code, out, _ = run(capsys, "verify", "v.json")
    assert code == 1 and "odd (doc) differs:\n  need_MB: 900, not 1\n" in out
    assert "new (code) differs:\n  there is no kind 'weather'" in out and out.endswith("3 passed, 2 failed\n")
    code, out, _ = run(capsys, "verify", "v.json", "--json", "--profile", "doc")
    assert json.loads(out.splitlines()[-1]) == {"passed": 1, "failed": 1}


def test_config_shows_values_units_and_sources(capsys: pytest.CaptureFixture[str], home: Path) -> None:
    code, out, _ = run(capsys, "config", "NQUEUED_SAT_CAP")
    assert code == 0 and "150" in out and "files" in out and "jobbroker" in out
    (home / "home" / "config.toml").write_text(
        '[broker]\nprofile = "code"\n[broker.thresholds]\nNQUEUED_SAT_CAP = 300\nNQUEUELIMITSITE_MC = 7\n'
    )
    found = {row["name"]: row for row in json.loads(run(capsys, "config", "--json")[1])["thresholds"]}
    assert found["NQUEUED_SAT_CAP"]["value"] == 300 and found["NQUEUED_SAT_CAP"]["set"] == "changed"
    assert found["NQUEUELIMITSITE_MC"]["value"] == 7 and found["NW_ACTIVE"]["value"] is False
    assert json.loads(run(capsys, "explain", *FILES, "--json")[1])["profile"] == "code"
    (home / "home" / "config.toml").write_text("[broker.thresholds]\nNQUEUED_SAT_CAP = -1\n")
    code, _, err = run(capsys, "config")
    assert code == 2 and "NQUEUED_SAT_CAP is -1" in err
    (home / "home" / "config.toml").write_text("[broker]\nprofiles = 'doc'\n")
    code, _, err = run(capsys, "config")
    assert code == 2 and "did you mean 'profile'" in err


def test_a_flow_of_a_plugin_is_used_and_listed(home: Path) -> None:
    queues = {key: BASE[key] for key in ("queues", "job_stats", "extra")}
    queues["queues"] = {**queues["queues"], "Q_GOOD": {**BASE["queues"]["Q_GOOD"], "catchall": "small"}}
    (home / "queues.json").write_text(json.dumps(queues))
    env = {**os.environ, "PYTHONPATH": str(FILE.parent / "plugins")}

    def rota(*words: str) -> Any:
        done = subprocess.run(
            [sys.executable, "-m", "rota", *words], env=env, capture_output=True, text=True, check=False
        )
        return json.loads(done.stdout)

    found = rota("broker", "explain", *FILES, "--flow", "strict", "--json")
    assert found["flow"] == "strict" and found["skipped"]["Q_GOOD"]["tag"] == "-small"
    listed = {(row["kind"], row["name"], row["source"]) for row in rota("plugins", "--json")["plugins"]}
    assert {("flow", "strict", "rota-plugins-for-tests"), ("flow", "production", "rota")} <= listed


def test_a_threshold_for_one_share_is_shown_before_it_is_set(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "config", "NQUEUELIMITSITE_MC", "--json")
    (row,) = json.loads(out)["thresholds"]
    assert code == 0 and (row["name"], row["value"], row["set"]) == ("NQUEUELIMITSITE_MC", 0, "profile doc")
    assert run(capsys, "config", "CANDIDATES_MOST_MC")[0] != 0, "there is one number for all shares"
