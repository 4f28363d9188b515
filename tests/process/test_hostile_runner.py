"""A hostile runner with the token of one allocation, speaking the protocol to a real manager."""

import os
import subprocess
from pathlib import Path

import pytest

from process.support_home import Home, cmdline, home
from process.wire_support import Raw, greet, proof_for, raw_tls

__all__ = ["home"]

CONFIG = 'listen = "127.0.0.1:0"\n[site.local]\ncores = 2\n[site.local.options]\nconnect = "tls"\n'


class Attack:
    """A manager with one runner that holds a job, and what its token lets others say."""

    def __init__(self, home: Home) -> None:
        self.home = home
        home.config(CONFIG)
        home.rota("up")
        self.gate = home.gate()
        home.add("--", f"{self.gate.wait}; exit 3")
        home.until(lambda: home.counts("1").get("RUNNING") == 1)
        ((self.pid, self.runner),) = home.runners().items()
        words = cmdline(self.pid).split("\0")
        self.allocation = words[words.index("--allocation") + 1]
        self.port = int(words[words.index("--connect") + 1].rpartition(":")[2])
        self.ca = words[words.index("--ca") + 1]
        self.output = words[words.index("--output") + 1]
        self.token = Path(words[words.index("--token-file") + 1]).read_text().strip()

    def connect(self, **more: object) -> tuple[Raw, dict[str, object] | None]:
        """A connection with a right proof, and the answer to its greeting."""
        raw = raw_tls(self.port, self.ca)
        message = greet(**{"allocation": self.allocation, "runner": self.runner, "cores": 64_000, **more})
        raw.send({**message, "proof": proof_for(raw, raw.read(), self.token)})
        return raw, raw.read()

    def ends_well(self) -> None:
        """The job of the true runner ends as it did, after a restart too."""
        self.home.kill_manager()
        self.home.rota("up")
        self.gate.open()
        self.home.settled()
        (row,) = self.home.rows("jobs", "1")
        assert (row["state"], row["exit_code"], row["attempt"]) == ("FAILED", 3, 1)


@pytest.fixture
def attack(home: Home) -> Attack:
    return Attack(home)


@pytest.mark.parametrize(
    "runner",
    [
        "ffffffffffff.0.0.abcd",
        "{tag}.1.0.abcd",
        "{tag}.0.1.abcd",
        "{tag}.0.-1.abcd",
        "{tag}.0.0.",
        "{tag}x.0.0.a",
        "r1",
    ],
)
def test_an_allocation_has_only_its_own_runners(attack: Attack, runner: str) -> None:
    tag = attack.runner.partition(".")[0]
    raw, answer = attack.connect(runner=runner.format(tag=tag))
    with raw:
        assert answer is not None and answer["t"] == "error" and answer["code"] == "denied", answer
    assert attack.home.runners() == {attack.pid: attack.runner}
    attack.ends_well()


@pytest.mark.parametrize("more", [{"host": "elsewhere"}, {"output": "/tmp"}])
def test_host_and_output_belong_to_the_process(attack: Attack, more: dict[str, object]) -> None:
    """The manager once died at every start after that."""
    true = {"host": os.uname().nodename, "output": attack.output}
    raw, answer = attack.connect(connect=1_000_000, **{**true, **more})
    with raw:
        assert answer is not None and answer["t"] == "expired", answer
    attack.ends_well()


def test_what_it_never_had_is_neither_shown_nor_written(attack: Attack) -> None:
    """As its own runner, whose session it takes over: it may speak of its own attempts, and of nothing else."""
    home = attack.home
    home.rota("add", "--array", "1-2000", "--cores", "2", "--", "true")
    size = _size(home)
    host = subprocess.run(["hostname"], capture_output=True, text=True, check=True).stdout.strip()
    raw, answer = attack.connect(connect=1_000_000, host=host, output=attack.output, held=[[1, 1, 1]])
    with raw:
        assert answer is not None and answer["t"] == "welcome", answer
        head = {"session": answer["session"], "got": 0, "clock": 1.0}
        rows = [[2, n, 1, 0, None, None, 1.0, 2.0, 0.1, 1, None, "forged"] for n in range(1, 2001)]
        starts = [[2, n, 1, 1.0, 1, "lane-forged"] for n in range(1, 2001)]
        raw.send({"t": "report", "seq": 1, "started": starts, "ended": rows, "disclaimed": [], **head})
        live = [[2, n, 1, 0.5, 1, 1, "lane-forged", None, 1.0] for n in range(1, 2001)]
        raw.send({"t": "touch", "held": [[1, 1, 1]], "live": live, **head})
        assert raw.read()["t"] in ("ack", "lease", "kill", "close"), "it is acknowledged, and of no effect"
        raw.send({"t": "touch", "held": [], "live": live * 6, **head})
        assert any(message.get("code") == "protocol" for message in raw.all()), "more rows than any runner has"
    assert home.counts("2") == {"PENDING": 2000}
    assert not home.rows("history", "2")
    assert "late result" not in home.tail() and _size(home) - size < 200_000


def _size(home: Home) -> int:
    return sum(os.path.getsize(os.path.join(home.path, name)) for name in os.listdir(home.path) if "rota.db" in name)
