"""What operators see, on real clusters: detect, doctor, the manager as a cluster job."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import tomllib
from contextlib import contextmanager
from pathlib import Path

from cluster.guard import ticks
from cluster.private import wait_for
from rota.wire.client import Connection, LostError, NoManagerError, read_notice


class Site:
    """The command line in a home of its own, with a cluster's commands on PATH."""

    def __init__(self, cluster):
        self.base = Path(tempfile.mkdtemp(prefix="rs-"))
        self.home = self.base / "h"
        self.environment = {**cluster.environment, "ROTA_HOME": str(self.home), "NO_COLOR": "1"}

    def __call__(self, *words, code=0, timeout=200):
        command = [sys.executable, "-m", "rota", *map(str, words)]
        done = subprocess.run(
            command, env=self.environment, capture_output=True, text=True, timeout=timeout, cwd=self.base,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert code is None or done.returncode == code, (words, done.returncode, done.stdout, done.stderr, self.log())
        return done.stdout

    def json(self, *words, **more):
        return json.loads(self(*words, "--json", **more))

    def config(self, text):
        self.home.mkdir(mode=0o700, exist_ok=True)
        (self.home / "config.toml").write_text(text)

    def log(self):
        path = self.home / "manager.log"
        return path.read_text(errors="replace")[-4000:] if path.exists() else ""

    def managers(self):
        found = []
        for name in os.listdir("/proc"):
            if name.isdigit():
                try:
                    words = Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0")
                except OSError:
                    continue
                if b"rota.manager" in words and bytes(self.home) in words and ticks(name):
                    found.append(int(name))
        return found


@contextmanager
def site_of(cluster):
    site = Site(cluster)
    try:
        yield site
    finally:
        site("down", "--kill", code=None)
        left = site.managers()
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        shutil.rmtree(site.base, ignore_errors=True)
        assert not left


def names(answer, status="ok"):
    return [row["name"] for row in answer["checks"] if row["status"] == status]


def test_detect_and_doctor_on_slurm(slurm):
    with site_of(slurm) as site:
        text = site("sites", "detect", "--write")
        written = (site.home / "config.toml").read_text()
        assert text == written and set(tomllib.loads(written)["site"]) == {"local", "slurm"}
        assert "# partition main (default), 4 nodes, 4 cores" in text and "# partition short, 4 nodes" in text
        assert "at most 10m" in text and "slurm-wlm" in text
        answer = site.json("doctor", "slurm", "--timeout", "60s")
        assert answer["ok"] and answer["mode"] == "runners" and answer["call_back"]
        assert names(answer) == [
            "programs", "queues", "submit", "wait", "directory", "python", "clock", "call-back", "mode",
        ]  # fmt: skip
        assert slurm.wait_over(answer["native_id"]) == {"COMPLETED"}
        assert os.listdir(site.home / "sites" / "slurm") == []

        site.config('[site.slurm]\ndriver = "slurm"\npartition = "nowhere"\n')
        answer = site.json("doctor", "slurm", code=5)
        assert names(answer, "fail") == ["queues"] and "main (default), short" in answer["checks"][-1]["text"]
        site.config('[site.slurm]\ndriver = "slurm"\naccount = "nobody-pays"\n')
        answer = site.json("doctor", "slurm", code=5)
        assert names(answer, "fail") == ["submit"] and "Invalid account" in answer["checks"][-1]["text"]


def test_doctor_gives_up_a_job_that_does_not_start(slurm):
    with site_of(slurm) as site:
        site.config('[site.slurm]\ndriver = "slurm"\nmode = "direct"\nnative = {"--begin" = "now+1hour"}\n')
        answer = site.json("doctor", "slurm", "--timeout", "15s", code=5)
        assert names(answer, "fail") == ["wait"] and "BeginTime" in answer["checks"][-1]["text"]
        assert slurm.wait_over(answer["native_id"]) == {"CANCELLED"}


def test_detect_and_doctor_on_grid_engine(gridengine):
    with site_of(gridengine) as site:
        text = site("sites", "detect", "--write")
        assert set(tomllib.loads(text)["site"]) == {"local", "sge"} and "# partition all.q (default), 1 nodes" in text
        assert tomllib.loads(text)["site"]["sge"]["parallel_environment"] == "smp"
        # Where its host cannot look up the name of this one, the address is found, and said to be needed.
        answer = site.json("doctor", "sge", "--timeout", "60s", code=None)
        if not answer["ok"]:
            assert names(answer, "fail") == ["call-back"] and "set listen" in answer["checks"][-2]["advice"]
            site.config('listen = "127.0.0.1:0"\n' + text)
            answer = site.json("doctor", "sge", "--timeout", "60s")
        assert answer["mode"] == "runners" and answer["host"] == "ge1"
        assert gridengine.state(answer["native_id"]) is None


def test_doctor_finds_a_directory_that_nodes_do_not_share(gridengine):
    """Its host has mounts of its own, and does not see what is mounted here later."""
    with site_of(gridengine) as site:
        apart = site.base / "apart"
        apart.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "none", apart], check=True)
        try:
            site.config(f'[site.sge]\ndriver = "sge"\nmode = "direct"\ndirectory = "{apart}/rota"\n')
            answer = site.json("doctor", "sge", "--timeout", "60s", code=5)
            assert names(answer, "fail") == ["directory"] and answer["mode"] is None
            assert "shared with the nodes" in answer["checks"][-1]["advice"]
            assert gridengine.state(answer["native_id"]) is None and os.listdir(apart / "rota") == []
        finally:
            subprocess.run(["umount", apart], check=True)


def test_the_manager_as_a_job_hands_over_and_ends(slurm):
    """It serves over TLS, its successor goes on with the job that runs, and `rota down` leaves nothing."""
    with site_of(slurm) as site:
        site.config('[site.slurm]\ndriver = "slurm"\nmode = "direct"\npoll_least = "1s"\n')
        row = site.json("up", "--on", "slurm", "--time", "2m", "--hand-over", "100s")
        assert row["started"] and row["serving"] and slurm.state(row["native_id"]) == "RUNNING"
        work = f"until [ -e {site.base}/go ]; do sleep 0.2; done; echo done > {site.base}/out"
        batch = site("add", "--on", "slurm", "--mem", "50M", "-t", "5m", "--", work)
        with Connection._connect_tls(str(site.home), read_notice(str(site.home)), 10.0) as connection:
            assert connection.ask("ping")["pid"] == row["pid"]

        def handed_over():
            try:
                return site_pid(site) != row["pid"]
            except (NoManagerError, LostError):
                return False

        wait_for("the successor to serve", handed_over, 150, 0.2)
        second = json.loads((site.home / "relay.json").read_text())["current"]
        assert slurm.wait_state(row["native_id"], "COMPLETED", seconds=150)
        lives = re.findall(r" INFO (serving|handing over|ended with)", site.log())
        assert lives == ["serving", "handing over", "ended with", "serving"], "one at a time"
        (site.base / "go").touch()
        site("wait", batch.strip(), "--timeout", "150s")
        assert (site.base / "out").read_text() == "done\n"
        (job,) = [json.loads(line) for line in site("jobs", "--json").splitlines()]
        assert (job["state"], job["attempt"]) == ("COMPLETED", 1)
        site("down")
        assert not (site.home / "relay.json").exists()
        ours = slurm.run("squeue", "-h", "-o", "%i %j").stdout
        assert "rota-manager" not in ours or slurm.wait_over(second["native_id"])
        wait_for("the managers to end", lambda: not site.managers())


def site_pid(site):
    with Connection.connect(str(site.home), 5.0) as connection:
        return connection.ask("ping")["pid"]


def test_a_queued_manager_is_called_back(slurm):
    with site_of(slurm) as site:
        site.config('[site.slurm]\ndriver = "slurm"\nnative = {"--begin" = "now+1hour"}\n')
        row = site.json("up", "--on", "slurm", "--wait", "1s")
        assert not row["serving"] and slurm.state(row["native_id"]) == "PENDING"
        assert (
            "is job"
            in subprocess.run(
                [sys.executable, "-m", "rota", "up"], env=site.environment, capture_output=True, text=True, timeout=60
            ).stderr
        )
        assert site.json("up", "--on", "slurm", "--wait", "1s")["native_id"] == row["native_id"]
        assert "no longer queued" in site("down")
        assert slurm.wait_over(row["native_id"]) == {"CANCELLED"}
        assert not (site.home / "relay.json").exists()
