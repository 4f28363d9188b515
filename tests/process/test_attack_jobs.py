"""Attacks by jobs: files that they, or whoever can write their directory, leave for the manager and for runners."""

import contextlib
import json
import os
import signal
import socket
from pathlib import Path

import pytest

from process.support_home import Home, a_home, alive, home
from rota.testing.fake_cluster import FakeCluster

__all__ = ["home"]

ROW = [1, 1, 1, 0, None, None, 10.0, 11.0, 0.1, 4096, None, None]
BAD_REPORTS = {
    "a string for a number": json.dumps({"ended": [[*ROW[:6], "now", *ROW[7:]]], "disclaimed": []}),
    "no object": "[]",
    "a figure out of bounds": json.dumps({"ended": [[*ROW[:9], 1 << 70, *ROW[10:]]], "disclaimed": []}),
    "an exit code that is none": json.dumps({"ended": [[*ROW[:3], -5, *ROW[4:]]], "disclaimed": []}),
    "deep": "[" * 100_000,
    "nothing in it": json.dumps({"ended": [], "disclaimed": []}),
    "not text": "\\377\\376",
}
DIRECT = """\
[site.one]
driver = "lsf"
mode = "direct"
poll = "1s"
poll_least = "1s"
vanished_after = "2s"
report_within = "1s"
"""


def restarts(home: Home) -> None:
    """See that a manager begins with this queue."""
    home.kill_manager()
    home.rota("up")
    home.rota("ping")


def test_a_report_that_is_none_is_moved_aside_and_the_batch_system_decides(tmp_path: Path) -> None:
    with FakeCluster(tmp_path / "cluster", personality="lsf", nodes=1, cores=16) as fake, a_home() as home:
        home.env["PATH"] = fake.path
        home.config(DIRECT)
        home.rota("up")
        try:
            for number, text in enumerate(BAD_REPORTS.values()):
                file = home.work / f"{number}"
                file.write_bytes(text.encode().decode("unicode_escape").encode("latin-1"))
                home.add("--retries", "0", "--", f"cp {file} $(dirname $(ls -t {home.path}/sites/one/*/0/lease.json | "
                         f"head -n 1))/report.json; kill -9 $PPID; sleep 30")  # fmt: skip
                home.until(lambda name=f"{number + 1}": home.job(f"{name}.1")["state"] in ("FAILED", "COMPLETED"))
            for number, what in enumerate(BAD_REPORTS, 1):
                job = home.job(f"{number}.1")
                assert job["state"] == "FAILED", what
                assert "report.json was not one" in home.rota("explain", f"{number}.1").stdout, what
            assert home.tail().count("is not a report, and is moved aside")
            restarts(home)
            home.add("--", "true")
            home.until(lambda: home.job(f"{len(BAD_REPORTS) + 1}.1")["state"] == "COMPLETED")
        finally:
            home.rota("down", "--kill", code=None)


@pytest.mark.parametrize(
    "text", ["[]", "{", '{"ended":[["x"]],"disclaimed":[]}', '{"ended":7,"disclaimed":null}', "fifo", "link", "socket"]
)
def test_what_a_runner_left_unsent_cannot_stop_a_site(home: Home, text: str) -> None:
    home.config("[site.local]\ncores = 2\n")
    home.rota("up")
    gate = home.gate()
    home.add("--retries", "0", "--", gate.wait)
    home.until(lambda: home.job("1.1")["state"] == "RUNNING")
    ((pid, name),) = home.runners().items()
    path = Path(home.path, "output", name, "unsent.json")
    if text == "fifo":
        os.mkfifo(path)
    elif text == "socket":
        with socket.socket(socket.AF_UNIX) as made, contextlib.chdir(path.parent):
            made.bind(path.name)
    elif text == "link":
        path.symlink_to("/etc/hostname")
    else:
        path.write_text(text)
    os.kill(pid, signal.SIGKILL)
    home.until(lambda: not alive(pid))
    home.until(lambda: home.job("1.1")["state"] in ("FAILED", "LOST", "KILLED", "PENDING", "RUNNING", "WAITING"))
    gate.open()
    home.add("--", "true")
    home.until(lambda: home.job("2.1")["state"] == "COMPLETED", what="the site goes on")
    assert "unsent.json is not what a runner leaves" in Path(home.path, "manager.log").read_text()
    assert Path(f"{path}.bad").exists() or Path(f"{path}.bad").is_symlink()
    restarts(home)
    manager = home.manager()
    home.rota("down", "--kill")
    home.until(lambda: not alive(manager))
