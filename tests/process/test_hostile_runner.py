"""A hostile runner with the token of one allocation, speaking the protocol to a real manager."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from process.support_home import Home, a_home, cmdline, home, pids
from process.wire_support import Raw, greet, proof_for, raw_tls
from rota.testing.fake_cluster import FakeCluster

__all__ = ["home"]

CONFIG = 'listen = "127.0.0.1:0"\n[site.local]\ncores = 2\n[site.local.options]\nconnect = "tls"\n'


class Told:
    """What a runner was started with."""

    def __init__(self, pid: int, runner: str) -> None:
        words = cmdline(pid).split("\0")
        self.runner = runner
        self.allocation = words[words.index("--allocation") + 1]
        self.output = words[words.index("--output") + 1]
        self.ca = words[words.index("--ca") + 1]
        self.token = Path(words[words.index("--token-file") + 1]).read_text().strip()


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
        told = Told(self.pid, self.runner)
        self.allocation, self.output, self.ca, self.token = told.allocation, told.output, told.ca, told.token

    def connect(self, **more: object) -> tuple[Raw, dict[str, object] | None]:
        """A connection with a right proof, and the answer to its greeting."""
        raw = raw_tls(json.loads(Path(self.home.path, "manager.json").read_text())["port"], self.ca)
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


def test_a_new_process_names_no_directory_but_its_own_and_replaces_nobody_elses(attack: Attack) -> None:
    """Output in a directory of its choice was once shown as a log: the admin's token to who has a token to read."""
    fresh = f"{attack.runner.rpartition('.')[0]}.abcd"
    output = Path(attack.home.path, "output")
    lies: list[dict[str, object]] = [
        {"output": place}
        for place in (f"{attack.home.path}/private", f"{output}", attack.output, f"{output}/{fresh}/../../private",
                      f"{output}/{fresh}x", f"{output}/{fresh}/.", "", "/")
    ]  # fmt: skip
    lies += [{"output": f"{output}/{fresh}", "replaces": name} for name in ("zzzz.0.0.a", "ffffffffffff.0")]
    for lie in lies:
        raw, answer = attack.connect(runner=fresh, host=os.uname().nodename, **lie)
        with raw:
            assert answer is not None and answer["t"] == "error" and answer["code"] == "denied", (lie, answer)
    assert [row["id"] for row in attack.home.ask("runners")["runners"]] == [attack.runner]
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


def _memory(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_six_hundred_thousand_live_rows_and_forty_thousand_unknown_jobs_leave_nothing(attack: Attack) -> None:
    """In as many messages as it takes: each is acknowledged or dropped, nothing of them stays."""
    home, host = attack.home, os.uname().nodename
    home.rota("ping")
    size, memory = _size(home), _memory(home.manager())
    raw, answer = attack.connect(connect=1_000_000, host=host, output=attack.output, held=[[1, 1, 1]])
    with raw:
        assert answer is not None and answer["t"] == "welcome", answer
        head = {"session": answer["session"], "got": 0, "clock": 1.0}
        for block in range(60):
            live = [[9, block * 10_000 + n, 1, 0.5, 1, 1, "x" * 20, None, 1.0] for n in range(1, 10_001)]
            raw.send({"t": "touch", "held": [[1, 1, 1]], "live": live, **head})
        for block in range(4):
            rows = [[9, block * 10_000 + n, 1, 0, None, None, 1.0, 2.0, 0.1, 1, None, "x"] for n in range(1, 10_001)]
            raw.send({"t": "report", "seq": block + 1, "started": [], "ended": rows, "disclaimed": [], **head})
        while (message := raw.read()) is not None and message != {"t": "ack", "seq": 4}:
            assert message["t"] in ("ack", "lease", "kill"), message
        assert message is not None, home.tail()
        assert _memory(home.manager()) - memory < 60 << 20
        assert _size(home) - size < 200_000, "nothing of it is durable"
        rows = [[9, n, 1, 0, None, None, 1.0, 2.0, 0.1, 1, None, None] for n in range(1, 40_001)]
        raw.send({"t": "report", "seq": 5, "started": [], "ended": rows, "disclaimed": [], **head})
        assert any(message.get("code") == "protocol" for message in raw.all()), "more rows than any runner has"
    assert _size(home) - size < 200_000 and not home.rows("history", "1")


def test_no_runner_has_more_than_its_allocation_was_granted(attack: Attack) -> None:
    """Cores, memory, devices, tags and time; so that it is given no job that is not for it."""
    home, host = attack.home, os.uname().nodename
    (before,) = home.json("runners")["runners"]
    more = {"cores": 10_000_000, "memory": 1 << 50, "disk": 1 << 50, "gpus": 64, "tags": ["gold"], "until_s": 1e9}
    raw, answer = attack.connect(connect=1_000_000, host=host, output=attack.output, held=[[1, 1, 1]], **more)
    with raw:
        assert answer is not None and answer["t"] == "welcome", answer
        (after,) = home.json("runners")["runners"]
        for name in ("cores", "memory", "disk", "gpus", "tags"):
            assert after.get(name) == before.get(name), (name, before, after)
        home.add("--array", "1-500", "--", "true")
        home.until(lambda: home.counts("2").get("STARTING"))
        assert sum(count for state, count in home.counts("2").items() if state != "PENDING") < 50, home.counts("2")


def _size(home: Home) -> int:
    return sum(os.path.getsize(os.path.join(home.path, name)) for name in os.listdir(home.path) if "rota.db" in name)


TWO = """\
listen = "127.0.0.1:0"
[site.one]
driver = "slurm"
poll = "1s"
poll_least = "1s"
allocation_time = "10m"
"""


def test_the_token_of_another_allocation_opens_nothing(tmp_path: Path) -> None:
    """Not the other's runner by its name, nor its jobs under the own name: before and after a restart."""
    with FakeCluster(tmp_path / "cluster", personality="slurm", nodes=2, cores=1) as fake, a_home() as home:
        home.env["PATH"] = fake.path
        home.config(TWO)
        home.rota("up")
        try:
            gate = home.gate()
            home.add("--array", "1-2", "--on", "one", "--", f"{gate.wait}; exit 3")
            home.until(lambda: home.counts("1").get("RUNNING") == 2)
            home.until(lambda: len(home.runners()) == 2)
            thief, other = (Told(*pair) for pair in home.runners().items())
            assert thief.allocation != other.allocation and thief.token != other.token
            for _ in range(2):
                _steal(home, thief, other)
                home.kill_manager()
                home.rota("up")
                _steal(home, thief, other)
            gate.open()
            home.settled("1")
            for row in home.rows("jobs", "1"):
                assert (row["state"], row["exit_code"], row["attempt"]) == ("FAILED", 3, 1)
            assert len(home.rows("history", "1")) == 2
            assert "a greeting from 127.0.0.1 was refused" in home.rota("sites", "one").stdout
        finally:
            home.rota("down", "--kill", code=None)


def _steal(home: Home, thief: Told, other: Told) -> None:
    """Say everything that one allocation's token lets one say about the other's runner."""
    port = json.loads(Path(home.path, "manager.json").read_text())["port"]
    mine = {"output": other.output, "host": os.uname().nodename, "connect": 1_000_000}
    lies = [
        {"allocation": other.allocation, "runner": other.runner, **mine},
        {"allocation": thief.allocation, "runner": other.runner, **mine},
        {"allocation": thief.allocation, "runner": f"{other.runner}0", "replaces": other.runner, **mine},
    ]
    for lie in lies:
        with raw_tls(port, thief.ca) as raw:
            raw.send({**greet(**lie), "proof": proof_for(raw, raw.read(), thief.token)})
            answer = raw.read()
            assert answer is not None and answer["t"] == "error" and answer["code"] == "denied", (lie, answer)
    ended = [[1, n, 1, 0, None, None, 1.0, 2.0, 0.1, 1, None, None] for n in (1, 2)]
    with raw_tls(port, thief.ca) as raw:  # as a new process of its own node, which says that the other's is over
        lie = {"allocation": thief.allocation, "runner": f"{thief.runner}0", "replaces": other.runner, **mine}
        raw.send({**greet(**lie), "proof": proof_for(raw, raw.read(), thief.token)})
        answer = raw.read()
        assert answer is not None and answer["t"] != "welcome", answer
        report = {"t": "report", "seq": 1, "session": 1, "got": 0, "clock": 1.0, "started": [], "disclaimed": []}
        raw.send({**report, "ended": ended})
    home.until(lambda: home.counts("1") == {"RUNNING": 2})


def test_nodes_of_a_site_with_a_directory_of_its_own_need_not_see_the_home(tmp_path: Path) -> None:
    """Its runners are told of nothing in the home, and find the manager again by what is in that directory."""
    place = tmp_path / "shared"
    with FakeCluster(tmp_path / "cluster", personality="slurm", nodes=1, cores=1) as fake, a_home() as home:
        home.env["PATH"] = fake.path
        home.config(TWO + f'directory = "{place}"\n')
        home.rota("up")
        try:
            gate = home.gate()
            home.add("--on", "one", "--", f"{gate.wait}; exit 3")
            home.until(lambda: home.counts("1").get("RUNNING") == 1)
            started = [cmdline(pid).split("\0") for pid in pids()]
            ours = [words for words in started if "--token-file" in words and f"{place}" in "".join(words)]
            assert ours and not [word for words in ours for word in words if home.path in word]
            words = ours[0]
            (script,) = place.glob("*/script.sh")
            assert home.path not in script.read_text()
            files = [words[words.index(name) + 1] for name in ("--token-file", "--ca", "--notice")]
            assert {os.stat(path).st_mode & 0o777 for path in files} == {0o600}
            home.kill_manager()
            home.rota("up")
            gate.open()
            home.settled("1")
            (row,) = home.rows("jobs", "1")
            assert (row["state"], row["exit_code"], row["attempt"]) == ("FAILED", 3, 1)
            home.rota("down", "--kill")
            assert not os.path.exists(files[0]), "the token ends with its allocation"
        finally:
            home.rota("down", "--kill", code=None)
