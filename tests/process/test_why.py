"""What people see who ask why, on real homes: failures, specifications, logs of many; and all without a manager."""

import json
import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from process.support_home import Home, alive, home
from rota.manager.offline.looking import Reader
from rota.model.errors import UsageError
from rota.runner import spawn
from rota.wire.server import own_name

__all__ = ["home"]


def failed(home: Home) -> str:
    """A batch of four: three fail alike, one succeeds; its number."""
    script = "echo out {index}; test {index} = 4 || { echo no file s{index}.bam >&2; exit 2; }"
    batch = home.rota("add", "--array", "1-4", "--name", "align", "--", script).stdout.strip()
    home.rota("wait", batch, code=1)
    return batch


def test_failures_are_grouped_with_what_helps(home: Home) -> None:
    batch = failed(home)
    answer = home.json("failures")
    (group,) = answer["groups"]
    assert list(group) == [
        "reason", "exit_code", "signal", "host", "last_line", "count", "examples", "commands",
    ]  # fmt: skip
    assert (group["reason"], group["exit_code"], group["count"]) == ("exit", 2, 3)
    assert group["last_line"] == "no file s1.bam" and group["examples"] == [f"{batch}.{n}" for n in (1, 2, 3)]
    assert group["commands"][-1] == f"rota retry {batch} :failed"
    shown = home.rota("failures", "@align").stdout
    assert shown.startswith("3 jobs: exit 2 on ") and "  | no file s1.bam\n" in shown
    assert "rota retry @align :failed" in shown
    assert home.rota("failures", f"{batch}.4").stdout == "nothing failed\n"
    (row,) = home.json("report", "totals", "@align")["names"]
    assert (row["jobs"], row["measured"]) == (4, 1) and row["wall_sd_s"] == 0 and row["memory_mean_bytes"] > 0


def test_a_log_of_many(home: Home) -> None:
    batch = failed(home)
    shown = home.rota("log", batch, ":failed", "--stderr", "--tail", "1").stdout
    assert shown == "".join(f"==> {batch}.{n} stderr <==\nno file s{n}.bam\n" for n in (1, 2, 3))
    assert home.rota("log", "@align", "--grep", "out [34]").stdout.count("==> ") == 2
    assert home.rota("log", f"{batch}.2").stdout == "out 2\n", "of one job, byte for byte"
    rows = [json.loads(line) for line in home.rota("log", batch, "--tail", "1", "--json").stdout.splitlines()]
    assert [row["stdout"]["text"] for row in rows] == [f"out {n}\n" for n in (1, 2, 3, 4)]
    assert "not a regular expression" in home.rota("log", batch, "--grep", "(", code=2).stderr


def test_everything_of_a_job_is_shown(home: Home) -> None:
    home.rota("up")
    home.rota("limit", "db:3")
    words = (
        "--memory",
        "1G",
        "--time",
        "1h",
        "--limit",
        "db",
        "--retries",
        "2",
        "--env",
        "A=b",
        "--on-exit",
        "echo {}",
    )
    batch = home.rota("add", *words, "--not-before", "+1h", "--values", "x", "--", "echo", "{}").stdout.strip()
    row = home.json("show", f"{batch}.1")
    assert row["command"] == "echo x" and row["needs_words"] == "1 core, 1G memory, 1h"
    assert (row["limits"], row["retries"], row["set"]["A"]) == (["db"], 2, "b")
    assert row["behaviours"]["on_exit"] == ["echo x"] and row["changes"] == {}
    home.rota("modify", batch, "--memory", "2G")
    assert "needs" in home.json("show", f"{batch}.1")["changes"]
    shown = home.rota("show", f"{batch}.1").stdout
    assert "command        echo x\n" in shown and "changed        needs: " in shown
    assert home.rota("show", batch).stdout == shown, "it has but one job"
    two = home.add("--array", "1-2", "--", "true")
    assert f"{two} has several: name one, as in {two}.1" in home.rota("show", two, code=2).stderr


def test_jobs_show_where_and_what_was_asked_for(home: Home) -> None:
    batch = home.rota("add", "--memory", "1G", "--time", "1h", "--", "true").stdout.strip()
    home.rota("wait", batch)
    head, line = home.rota("jobs", batch).stdout.splitlines()
    assert head.split() == ["JOB", "STATE", "TRY", "EXIT", "HOST", "WALL/TIME", "MEMORY/ASKED", "COMMAND"]
    assert line.split()[5].endswith("/1h") and line.split()[6].endswith("/1G")
    assert "asked_memory_bytes\n" in home.rota("jobs", "--fields").stdout
    assert home.rota("jobs", batch, "--fields", "id,asked_time_s").stdout == f"{batch}.1\t3600\n"


def test_explain_takes_any_selector(home: Home) -> None:
    batch = failed(home)
    shown = home.rota("explain", "@align").stdout
    assert f"3 jobs ({batch}.1, {batch}.2, {batch}.3) are FAILED: ended with exit code 2; " in shown
    assert f"rota retry {batch} :failed" in shown and f"{batch}.4 is COMPLETED: " in shown
    rows = [json.loads(line) for line in home.rota("explain", batch, "--json").stdout.splitlines()]
    assert [row["job"] for row in rows] == [f"{batch}.{n}" for n in (1, 2, 3, 4)]
    assert {"blockers", "chain", "ahead", "holders"} <= rows[0].keys()
    one = home.rota("explain", f"{batch}.1").stdout
    assert one.endswith(
        f"the end of its output:\n  | no file s1.bam\n\nwhat may help:\n  rota log {batch}.1 --stderr\n"
        f"  rota retry {batch}.1\n"
    )


def test_explain_puts_together_only_what_is_alike(home: Home) -> None:
    batch = home.add("--array", "1-3", "--", "test {index} = 3 || exit 2; exit 7")
    waiting = home.add("--array", "1-3", "--after", batch, "--each", "--", "true")
    home.rota("wait", batch, waiting, code=1)
    shown = home.rota("explain", batch).stdout
    assert f"2 jobs ({batch}.1, {batch}.2) are FAILED: ended with exit code 2\n" in shown
    assert f"{batch}.3 is FAILED: ended with exit code 7\n" in shown
    shown = home.rota("explain", waiting).stdout
    assert all(f"{waiting}.{n} is OMITTED: omitted because {batch}.{n} failed: exit " in shown for n in (1, 2, 3))
    done = home.add("--array", "1-2", "--", "true")
    home.rota("wait", done)
    assert (
        f"2 jobs ({done}.1, {done}.2) are COMPLETED: the first of them succeeded in attempt 1 on "
        in home.rota("explain", done).stdout
    )


@pytest.mark.parametrize("how", ["down", "killed"])
def test_looking_needs_no_manager(home: Home, how: str) -> None:
    batch = failed(home)
    asked: list[tuple[str, dict[str, Any]]] = [
        ("jobs", {"sel": [batch]}), ("jobs", {"exit_code": 2}), ("history", {}), ("history", {"sel": [batch]}),
        ("failures", {}), ("explain", {"sel": [batch]}), ("explain", {"job": f"{batch}.1"}), ("show", {"job": "1.1"}),
        ("log", {"job": f"{batch}.1", "stream": "stderr"}), ("count", {"sel": [":failed"]}), ("totals", {}),
    ]  # fmt: skip
    before = [home.ask(op, **arguments) for op, arguments in asked]
    if how == "down":
        home.rota("down")
    else:
        home.kill_manager()
    held = Path(home.path, "rota.db").read_bytes()
    with Reader(home.path) as reader:
        for (op, arguments), old in zip(asked, before, strict=True):
            now = reader.ask(op, **arguments)
            assert now.pop("manager") == "down"
            rows = [row for field in ("attempts", "jobs") if isinstance(now.get(field), list) for row in now[field]]
            for row in rows:
                assert row.pop("manager", "down") == "down"
            assert now == old, op
        with pytest.raises(UsageError, match="wait needs a manager: start one with rota up"):
            reader.ask("wait", sel=[batch])
    done = home.rota("status", batch, "--json")
    assert "no manager is up" in done.stderr and json.loads(done.stdout)["manager"] == "down"
    (line, *_) = home.rota("jobs", batch, "--json").stdout.splitlines()
    assert json.loads(line)["manager"] == "down"
    assert Path(home.path, "rota.db").read_bytes() == held, "nothing is written"
    home.rota("up")
    assert "manager" not in home.ask("show", job=f"{batch}.1")


def test_without_a_queue_there_is_nothing_to_look_at(home: Home) -> None:
    assert "no rota manager runs" in home.rota("status", code=3).stderr


def test_down_kill_ends_what_ignores_term(home: Home) -> None:
    pid = home.work / "pid"
    home.rota("add", "--grace", "1h", "--", f"trap '' TERM; echo $$ > {pid}; while :; do sleep 1; done")
    home.until(lambda: pid.exists() and pid.read_text().strip(), what="the job")
    home.until(lambda: home.counts() == {"RUNNING": 1})
    said = home.rota("down", "--kill").stdout
    assert said == "the manager has stopped (1 job was running, and was ended: the next manager runs it again)\n"
    home.until(lambda: not alive(int(pid.read_text())) and not home.runners())


def test_what_is_gone_from_the_configuration_is_named(home: Home) -> None:
    home.config('[site.local]\ntags = ["big"]\n')
    home.rota("up")
    home.rota("pause")
    batch = home.rota("add", "--tag", "big", "--", "true").stdout.strip()
    home.rota("down")
    home.config("[site.local]\n")
    home.rota("up")
    home.rota("resume")
    wanted = "no site has what it asks for, as they are configured now: local has no tag big; waiting does not help"
    home.until(lambda: home.json("explain", f"{batch}.1")["reason"] == wanted, what="the truth")
    assert "local has no tag big; waiting does not help" in home.rota("status").stdout


def test_a_full_disk_is_named_by_the_runner(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"/full": (0, 1000), "/work": (500, 1000)}

    def statvfs(path: str) -> SimpleNamespace:
        free, blocks = sizes[path]
        return SimpleNamespace(f_bavail=free, f_blocks=blocks, f_frsize=4096)

    monkeypatch.setattr(os, "statvfs", statvfs)
    plan = SimpleNamespace(stdout="/full/out", stderr=None, cwd="/work")
    assert spawn.full_disk(plan) == "the disk of /full is full: 0 of 3.91M are free"  # type: ignore[arg-type]
    plan.stdout = "/work/out"
    assert spawn.full_disk(plan) is None  # type: ignore[arg-type]
    plan.cwd = "/full"
    assert "the disk of /full" in str(spawn.full_disk(plan))  # type: ignore[arg-type]


def test_who_killed_it_and_when_it_must_end_is_told(home: Home) -> None:
    ready = home.work / "ready"
    words = f"trap '' TERM; touch {ready}; while :; do sleep 0.1; done"
    batch = home.rota("add", "--grace", "2s", "--", words).stdout.strip()
    home.until(ready.exists, what="the job")
    home.rota("kill", batch)
    home.until(lambda: home.json("explain", f"{batch}.1")["state"] == "ABORTED", what="its end")
    assert home.json("explain", f"{batch}.1")["reason"].startswith(f"was killed by {own_name()}")
    assert home.json("jobs", batch)["signal"] == signal.SIGKILL
