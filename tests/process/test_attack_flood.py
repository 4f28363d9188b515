"""Attacks by nobody: connections without a token, beside real work."""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from process.support_home import Home, home
from process.wire_support import greet, proof_for, raw_tls

__all__ = ["home"]

FLOOD = str(Path(__file__).with_name("support_flood.py"))
CONFIG = 'listen = "127.0.0.1:0"\n[site.local]\ncores = 4\n[site.local.options]\nconnect = "tls"\n'


def memory(pid: int) -> int:
    """Bytes that a process has in memory."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_thousand_junk_connections_beside_five_hundred_jobs(home: Home) -> None:
    home.config(CONFIG)
    home.rota("up")
    home.rota("wait", home.add("--array", "1-20", "--", "true"))
    pid = home.manager()
    before, log = memory(pid), os.path.getsize(f"{home.path}/manager.log")
    port = json.loads(Path(home.path, "manager.json").read_text())["port"]
    with subprocess.Popen(
        [sys.executable, FLOOD, str(port), "2000", "200", "200"], stdout=subprocess.PIPE, text=True
    ) as flood:
        home.add("--array", "1-500", "--", "sleep 0.1")
        assert flood.stdout is not None
        most = 0
        while not (select.select([flood.stdout], [], [], 0.1)[0] and home.counts("2") == {"COMPLETED": 500}):
            most = max(most, memory(pid))
            home.ask("ping")
        assert flood.poll() is None, "all of this was beside it"
        flood.terminate()
        first, count = map(int, flood.stdout.read().split())
    assert count >= first == 2000
    assert {row["attempt"] for row in home.rows("jobs", "2")} == {1}
    states = {row["state"] for row in home.rows("history", "2")}
    grown = os.path.getsize(f"{home.path}/manager.log") - log
    figures = f"{count} connections, {(most - before) >> 20} MB and {grown} bytes of log more"
    assert states == {"COMPLETED"}, figures
    assert most - before < 50 << 20, figures
    assert grown < 1 << 20, figures
    assert len(home.rows("audit", "--refused")) < 200


def test_nobody_can_keep_a_runner_out_of_its_own_address(home: Home) -> None:
    """Junk from the runner's own address, and wrong proofs in the name of its allocation, while the manager comes back.

    The runner greets again while its address is locked out: it is let in, and nothing it runs is given up.
    """
    home.config(CONFIG)
    home.rota("up")
    gate = home.gate()
    home.add("--array", "1-2", "--", gate.wait)
    home.until(lambda: home.counts("1").get("RUNNING") == 2)
    (allocation,) = home.json("allocations")["allocations"]
    ca = f"{home.path}/tls/ca.pem"
    home.kill_manager()
    ((runner, _),) = home.runners().items()
    os.kill(runner, signal.SIGSTOP)  # it comes when the address has a bad name already
    home.rota("up")
    port = json.loads(Path(home.path, "manager.json").read_text())["port"]
    with subprocess.Popen([sys.executable, FLOOD, str(port), "40", "1", "60", "0"], stdout=subprocess.DEVNULL) as flood:
        try:
            home.until(lambda: _wrong_proof(port, ca, allocation["id"]) and _locked_out(home, allocation["id"]))
            os.kill(runner, signal.SIGCONT)
            home.until(lambda: _connected(home))
            assert flood.poll() is None, "it is let in while the junk comes"
            gate.open()
            assert home.settled("1") == {"COMPLETED": 2}
        finally:
            os.kill(runner, signal.SIGCONT)
            flood.kill()
    assert {row["attempt"] for row in home.rows("jobs", "1")} == {1}
    (told,) = [row for row in home.json("doctor", "--no-job")["checks"] if row["name"] == "greetings"]
    assert told["status"] == "warn" and "127.0.0.1" in told["text"]
    assert int(told["text"].split()[0]) >= 10 and " lock-outs" in told["text"], told
    assert "rota audit --refused" in told["advice"]


def _wrong_proof(port: int, ca: str, allocation: str) -> bool:
    """Greet for an allocation without its token, from the address that its runner has."""
    with contextlib.suppress(OSError), raw_tls(port, ca) as raw:
        assert raw.sock.getsockname()[0] == "127.0.0.1"
        if (challenge := raw.read()) is not None:
            raw.send({**greet(allocation=allocation), "proof": proof_for(raw, challenge, "x" * 43)})
            raw.all()
    return True


def _locked_out(home: Home, allocation: str) -> bool:
    rows = [row for row in home.rows("audit", "--refused") if row["action"] == "lock-out"]
    return {"no allocation", f"allocation {allocation}"} <= {row["target"] for row in rows}


def _connected(home: Home) -> bool:
    (row,) = home.json("runners")["runners"]
    return bool(row["connected"])
