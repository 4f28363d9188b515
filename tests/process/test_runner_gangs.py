"""Jobs on several nodes: two real runners, what one starts on the other, and how all of it is ended."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import socket
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

sys.path.insert(0, os.path.dirname(__file__))

from fake_manager import SPEC, FakeManager
from test_runner_jobs import alive, gone

SECRET = "0123456789abcdef" * 4
KEY = [7, 1, 1]


class Nodes:
    """Two runners that pretend to be two nodes, and a gang of one attempt over both."""

    def __init__(self, directory: Path) -> None:
        (directory / "a").mkdir()
        (directory / "b").mkdir()
        os.environ["SLURM_JOB_ID"] = "4711"
        os.environ["PMI_RANK"] = "0"
        self.scratch = [tempfile.mkdtemp(prefix="rt-") for _ in "ab"]  # one each: Open MPI takes one for one node
        nodes = []
        try:
            for name, os.environ["TMPDIR"] in zip("ab", self.scratch, strict=True):
                nodes.append(FakeManager(directory / name, arguments=("--id", name)))
        finally:
            del os.environ["SLURM_JOB_ID"], os.environ["PMI_RANK"], os.environ["TMPDIR"]
        self.root, self.part = nodes
        self.root.accept()
        self.part.accept()

    def hold(self, **spec: object) -> str:
        """Have the part held; where it listens."""
        row = {"job": KEY, "slot": "1:1000", "secret": SECRET, "spec": {"cores": 1000, **spec}}
        self.part.send({"t": "hold", "session": self.part.session, "jobs": [row]})
        self.part.pump(lambda: self.part.holds)
        assert self.part.holds[0][:3] == KEY
        return "127.0.0.1:" + self.part.holds[0][3].rpartition(":")[2]

    def lease(self, command: str, address: str | None = None) -> None:
        """Lease the root."""
        nodes = [{"host": "n1", "address": ""}, {"host": "n2", "address": address or self.hold(), "cores": 3000}]
        root = self.root
        root.n += 1
        root.send(
            {
                "t": "lease",
                "session": root.session,
                "n": root.n,
                "clock": root.clock,
                "slots": [["1:1000", 1]],
                "envs": {"e": {"PATH": os.environ["PATH"]}},
                "specs": {"7.0": SPEC},
                "jobs": [["1:1000", "7.0", *KEY, command, None]],
                "gangs": {"7.1.1": {"secret": SECRET, "nodes": nodes}},
            }
        )

    def end(self) -> list:
        """The root's end."""
        self.root.pump(lambda: tuple(KEY) in self.root.ended)
        return self.root.ended[tuple(KEY)]

    def run(self, command: str) -> tuple[list, str, str]:
        """Run a command as the root; its end and what it wrote."""
        self.lease(command)
        row = self.end()
        return row, self.root.stream(row).decode(), self.root.stream(row, True).decode()

    def release(self) -> None:
        self.part.send({"t": "release", "session": self.part.session, "jobs": [KEY], "grace_s": 0.5})
        self.part.pump(lambda: tuple(KEY) in self.part.released)


@contextmanager
def _nodes(directory: Path):
    found = Nodes(directory)
    try:
        yield found
    finally:
        found.root.close()
        found.part.close()
        for path in found.scratch:
            shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def nodes(tmp_path):
    with _nodes(tmp_path) as found:
        yield found


def until(condition, what: str) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def test_a_rank_has_the_streams_status_directory_and_environment_of_who_started_it(nodes):
    row, out, err = nodes.run(
        "cd /usr; export MINE='a b'; echo given | $ROTA_RSH -x -q -o A=b -l me user@n2 "
        """'cat; pwd; echo "$MINE"; echo $ROTA_RUNNER $ROTA_JOB $ROTA_ATTEMPT; echo wrong >&2; exit 7';"""
        """ echo "status $?"; $ROTA_RSH -n n2 'kill -TERM $$'; echo "status $?"; $ROTA_RSH n1 echo '$ROTA_RUNNER'; """
        "echo $ROTA_NODES $ROTA_NODE_LIST; cat $ROTA_HOSTFILE $HYDRA_HOST_FILE $OMPI_MCA_orte_default_hostfile;"
        "env | grep -c '^SLURM_\\|^PMI_'"
    )
    assert row[3] == 1, err  # grep found nothing
    assert err == "wrong\n"
    assert out.split("\n") == [
        "given", "/usr", "a b", "b 7.1 1", "status 7", "status 143", "a",
        "2 n1,n2", "n1", "n2", "n1:1", "n2:3", "n1 slots=1", "n2 slots=3", "0", "",
    ]  # fmt: skip


def test_ranks_are_bound_to_the_cores_of_their_part(nodes):
    show = f"{sys.executable} -c 'import os; print(os.environ[\"ROTA_CORE_IDS\"], sorted(os.sched_getaffinity(0)))'"
    nodes.lease(f"$ROTA_RSH n2 {shlex.quote(show)}", nodes.hold(bind="cores"))
    first = min(os.sched_getaffinity(0))
    assert nodes.root.stream(nodes.end()) == f"{first} [{first}]\n".encode()


def test_much_flows_both_ways_at_once(nodes, tmp_path):
    x = tmp_path / "x"  # the jobs of all these tests are in one directory
    row, out, err = nodes.run(f"head -c 20000000 /dev/urandom > {x}; $ROTA_RSH n2 cat < {x} | cmp - {x} && echo same")
    assert (row[3], out) == (0, "same\n"), err


def test_a_host_that_is_not_of_the_gang_is_refused_with_those_that_are(nodes):
    row, _, err = nodes.run("$ROTA_RSH n3 true")
    assert row[3] == 255 and "n3 is no node of this job; these are: n1 n2" in err


def test_what_is_left_on_a_node_is_ended_by_its_release_and_nothing_starts_there_again(nodes, tmp_path):
    row, out, err = nodes.run(
        "$ROTA_RSH n2 'setsid sleep 1000 < /dev/null > /dev/null 2>&1 & echo $!';"
        "$ROTA_RSH n2 'ROTA_RUNNER=c setsid sleep 1000 < /dev/null > /dev/null 2>&1 & echo $!'"  # as hydra gives it
    )
    assert row[3] == 0, err
    pids = [int(word) for word in out.split()]
    assert all(map(alive, pids)), "a daemon outlives the command that started it"
    files = nodes.part.output / "gang-7.1.1"
    assert files.stat().st_mode & 0o777 == 0o700
    nodes.release()
    assert gone(*pids) and not files.exists()
    nodes.part.holds = []
    nodes.part.send({"t": "hold", "session": 1, "jobs": [{"job": KEY, "slot": "1:1000", "secret": SECRET, "spec": {}}]})
    nodes.part.send({"t": "drain"})
    nodes.part.pump(lambda: nodes.part.said_bye)
    assert not nodes.part.holds


def test_a_rank_whose_caller_goes_away_is_ended(nodes, tmp_path):
    nodes.lease(f"$ROTA_RSH n2 'echo $$ > {tmp_path}/pid; exec sleep 1000' & sleep 1000")
    until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text().endswith("\n"), "no rank")
    pid = int((tmp_path / "pid").read_text())
    nodes.root.send({"t": "kill", "session": 1, "jobs": [KEY], "grace_s": 0.5})
    assert nodes.end()[5] == "killed"
    assert gone(pid)


def test_what_ranks_used_elsewhere_is_told_with_the_end(nodes):
    burn = "python3 -c 'import time; x = bytearray(200 << 20)\nwhile time.process_time() < 1.5: pass'"
    row, _, err = nodes.run(f'$ROTA_RSH n2 "{burn}"')
    assert row[3] == 0, err
    assert row[8] >= 1.4 and row[9] >= 200 << 20


def test_a_rank_over_the_memory_of_its_node_ends_the_job(nodes, tmp_path):
    most = 100 << 20
    told = f"open('{tmp_path}/pid', 'w').write(str(os.getpid()))"
    burn = f"import os, time; {told}; x = bytearray(300 << 20); time.sleep(1000)"
    command = f"trap 'exit 3' TERM; $ROTA_RSH n2 {shlex.quote(shlex.join([sys.executable, '-c', burn]))}; sleep 1000"
    nodes.lease(command, nodes.hold(memory=most))
    row = nodes.end()
    assert row[5] == "memory" and row[9] > most
    assert row[11].startswith("used ") and ", over its limit of 100M" in row[11], "it is not said how much"
    assert gone(int((tmp_path / "pid").read_text()))
    assert not nodes.part.released, "a part stays held until it is released"
    nodes.release()


def test_the_end_is_told_without_a_node_that_does_not_answer(nodes):
    silent = socket.socket()
    silent.bind(("127.0.0.1", 0))
    silent.listen()
    nodes.lease("true", f"127.0.0.1:{silent.getsockname()[1]}")
    assert nodes.end()[3] == 0
    silent.close()


def test_strangers_get_nothing_and_harm_nothing(nodes):
    address = nodes.hold()
    host, _, port = address.rpartition(":")
    deep = b"[" * 1000
    for words in (b"\xff" * 100, len(deep).to_bytes(4, "big") + deep, b"\0\0\0\x02{}", b"\0\0\x20\0" + b"x" * 100):
        with socket.create_connection((host, int(port))) as peer:
            peer.sendall(words)
            peer.settimeout(30)
            heard = b""
            while data := peer.recv(4096):
                heard += data
        assert SECRET.encode() not in heard
    with socket.create_connection((host, int(port))) as peer:
        size = int.from_bytes(peer.recv(4), "big")
        nonce = json.loads(peer.recv(size))["nonce"]
        words = json.dumps({"job": KEY, "nonce": nonce, "proof": "00" * 32}).encode()
        peer.sendall(len(words).to_bytes(4, "big") + words)
        assert peer.recv(4096) == b"", "a wrong proof is not answered"
    nodes.lease("$ROTA_RSH n2 echo well", address)
    row = nodes.end()
    assert nodes.root.stream(row) == b"well\n"


def test_a_runner_told_to_stop_ends_its_part_and_says_so(nodes, tmp_path):
    nodes.lease(f"$ROTA_RSH n2 'echo $$ > {tmp_path}/pid; exec sleep 1000'")
    until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text().endswith("\n"), "no rank")
    pid = int((tmp_path / "pid").read_text())
    nodes.part.process.terminate()
    nodes.part.pump(lambda: nodes.part.said_bye)
    assert nodes.part.released == [tuple(KEY)] and gone(pid)
    assert nodes.end()[3] in (143, 255), "the rank was ended, or the connection to it"


@pytest.mark.parametrize(
    "mpirun", ["mpirun.openmpi -np 2 --map-by node --allow-run-as-root", "mpiexec.hydra -n 2 -ppn 1"]
)
def test_mpi_launchers_start_ranks_on_both_nodes(nodes, mpirun):
    if shutil.which(mpirun.split()[0]) is None:
        pytest.skip(f"{mpirun.split()[0]} is not installed")
    row, out, err = nodes.run(mpirun + ' sh -c \'tr "\\0" "\\n" < /proc/$PPID/environ | grep ^ROTA_RUNNER=\'')
    assert row[3] == 0, err
    assert sorted(out.split()) == ["ROTA_RUNNER=a", "ROTA_RUNNER=b"], "who started each rank"
