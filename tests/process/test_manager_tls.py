"""Runners that come by TLS with a token of their own, as runners on other hosts do; here on the loopback."""

import os
import sys

from process.support_home import Home, cmdline, environ, home, pids
from process.support_witness import check, command

__all__ = ["home"]

CONFIG = 'listen = "127.0.0.1:0"\n[site.local]\ncores = 4\n[site.local.options]\nconnect = "tls"\n'


def test_jobs_run_through_tls_and_the_token_stays_secret(home: Home) -> None:
    place = home.work / "witness"
    place.mkdir()
    home.config(CONFIG)
    home.rota("up")
    home.add("--array", "1-40", "--", command(str(place), "sleep 0.05; env"))
    gate = home.gate()
    home.add("--", gate.wait)
    home.until(lambda: home.counts("1").get("COMPLETED") == 40)
    (allocation,) = home.json("allocations")["allocations"]
    path = os.path.join(home.path, "tokens", allocation["id"])
    with open(path) as file:
        token = file.read().strip()
    assert os.stat(path).st_mode & 0o777 == 0o600
    with open(os.path.join(home.path, "private", "client")) as file:
        tokens = [token, file.read().strip()]
    for pid in pids():
        assert not any(secret in cmdline(pid) + environ(pid) for secret in tokens)
    for directory, _, names in os.walk(home.path):
        for name in names:
            if os.path.basename(directory) not in ("tokens", "private") and name != "manager.sock":
                with open(os.path.join(directory, name), "rb") as log:
                    text = log.read()
                assert not any(secret.encode() in text for secret in tokens), name
    gate.open()
    home.settled()
    assert not check(str(place), home.rows("jobs", "1"), home.rows("history", "1")).wrong
    home.rota("down", "--kill")
    assert not os.path.exists(path), "the token ends with its allocation"


def test_a_job_elsewhere_adds_jobs_to_its_own_manager(home: Home) -> None:
    """It has neither the home nor its client's token, and needs neither."""
    home.config(CONFIG)
    home.rota("up")
    inner = f"{sys.executable} -m rota add --name child -- echo from the child"
    home.add("--", f"case $ROTA_ADDRESS in tls:*) env -u HOME {inner};; *) exit 9;; esac")
    assert home.settled("1") == {"COMPLETED": 1}, home.rota("log", "1.1", "--stderr").stdout
    assert home.settled("@child") == {"COMPLETED": 1}
    assert home.rota("log", "2.1").stdout == "from the child\n"


def test_a_runner_finds_the_manager_again_after_a_restart(home: Home) -> None:
    place = home.work / "witness"
    place.mkdir()
    home.config(CONFIG)
    home.rota("up")
    gate = home.gate()
    home.add("--array", "1-8", "--", command(str(place), gate.wait))
    home.until(lambda: home.counts("1").get("RUNNING", 0) == 4)
    home.kill_manager()
    home.rota("up")
    gate.open()
    home.settled()
    assert not check(str(place), home.rows("jobs", "1"), home.rows("history", "1")).wrong
    assert {row["attempt"] for row in home.rows("jobs", "1")} == {1}
