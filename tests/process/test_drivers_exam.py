"""The exams, taken by a toy batch system that runs real processes, and failed by broken ones."""

import os
import signal
import subprocess
import sys

import pytest

from driver_world import FACTS, ToyDialect
from rota.drivers import dialects
from rota.drivers.command import CommandDriver
from rota.drivers.dialect import Answer, Command, Options
from rota.drivers.settings import Settings
from rota.drivers.transport import LocalTransport
from rota.model.errors import UsageError
from rota.testing.check_driver import check_dialect, check_driver
from rota.testing.fake_cluster import FakeCluster

QUICK = Settings(
    poll_s=0.2, poll_min_s=0.1, settle_s=0.2, settle_every_s=0.1, restart_settle_s=0.2, kill_grace_s=1.0, gone_s=1.0
)

FAKES = {"slurm": "4711", "lsf": "4711", "openlava": "4711", "pbs": "4711[]", "torque": "4711[]", "sge": "4711"}
"""Batch system → how it writes the id of an array."""


class ExamToy(ToyDialect):
    """With a script that says which element it is."""

    def submit(self, ask, options):
        command = super().submit(ask, options)
        return Command(command.argv, f"ROTA_ELEMENT=$TOY_ELEMENT; export ROTA_ELEMENT\n{ask.script}")


class Processes:
    """A batch system of processes of this host; what it runs outlives a driver, not the test."""

    name = "processes"

    def __init__(self, directory):
        self.directory = directory
        self.jobs = {}
        self.next = 1
        self.killed = set()

    async def which(self, programs):
        return {program: f"/toy/{program}" for program in programs}

    async def run(self, argv, stdin=None, timeout_s=60.0):
        program = argv[0].rpartition("/")[2]
        if program == "id":
            return Answer(0, "me\n", "")
        return getattr(self, program)(argv[1:], stdin)

    def tsub(self, words, script):
        base, count = self.next, int(words[1])
        self.next += 1
        for element in range(count):
            native = str(base) if count == 1 else f"{base}.{element}"
            environ = {**os.environ, "TOY_ELEMENT": str(element)}
            child = subprocess.Popen(
                ["sh"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, env=environ, start_new_session=True
            )
            child.stdin.write(script.encode())
            child.stdin.close()
            self.jobs[native] = (child, words[0].rpartition("-")[2])
        return Answer(0, f"{base}\n", "")

    def tstat(self, words, _):
        if words == ("--version",):
            return Answer(0, "toy 1\n", "")
        rows = []
        for native, (child, tag) in self.jobs.items():
            code = child.poll()
            state = "R" if code is None else "K" if native in self.killed else "D" if code == 0 else "E"
            rows.append(f"{native} {state} {tag} 0 {'-' if state in 'RK' else code}\n")
        return Answer(0, "".join(rows), "")

    def thist(self, words, _):
        return self.tstat((), None)

    def tdel(self, words, _):
        for native in words[1:]:
            child = self.jobs[native][0]
            if child.poll() is None:
                self.killed.add(native)
                os.killpg(child.pid, signal.SIGTERM)
        return Answer(0, "", "")

    def close(self):
        for child, _ in self.jobs.values():
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()


@pytest.fixture
def cluster(tmp_path):
    cluster = Processes(tmp_path)
    yield cluster
    assert [native for native, (child, _) in cluster.jobs.items() if child.poll() is None] == []
    cluster.close()


def driver(cluster, dialect=None):
    return lambda: CommandDriver("toy", dialect or ExamToy(), cluster, FACTS, settings=QUICK)


def test_the_toy_passes_both_exams(cluster, tmp_path):
    check_dialect(ExamToy())
    check_driver(driver(cluster), str(tmp_path), wait_s=60)
    assert len(cluster.jobs) == 4


@pytest.mark.parametrize(("personality", "array_id"), FAKES.items())
def test_every_dialect_passes_both_exams_on_a_fake_cluster(personality, array_id, tmp_path):
    """Real commands and real processes; only the batch system between them is not."""
    options = Options(parallel_environment="smp")
    check_dialect(dialects.load_dialect(personality), options, array_id)
    kind = {"personality": personality}
    if personality == "openlava":
        kind = {"personality": "lsf", "cluster": "openlava"}
    with FakeCluster(tmp_path / "cluster", **kind, nodes=2, cores=4, kill_wait_s=0.5) as fake:

        def make_driver():
            transport = LocalTransport({**os.environ, "PATH": fake.path})
            dialect = dialects.load_dialect(personality)
            return CommandDriver("fake", dialect, transport, FACTS, options, QUICK)

        check_driver(make_driver, str(tmp_path), wait_s=60)
        fake.tick()
        assert {job["state"] for job in fake.jobs()} == {"over"} and len(fake.jobs()) == 4


def _good(seen):
    return seen._replace(kind="completed", outcome=None)


class SaysDone(ExamToy):
    """Takes every end for a success."""

    def read_listing(self, answer, options):
        listing = super().read_listing(answer, options)
        good = [_good(seen) if seen.kind == "exited" else seen for seen in listing.seen]
        return listing._replace(seen=tuple(good))

    read_history = read_listing


def test_a_driver_that_takes_failures_for_successes_fails(cluster, tmp_path):
    with pytest.raises(AssertionError, match="ended with 3 is told as"):
        check_driver(driver(cluster, SaysDone()), str(tmp_path), wait_s=60)
    cluster.close()


def test_a_driver_that_finds_anything_fails(cluster, tmp_path):
    class Finds(ExamToy):
        def read_find(self, tag, answer):
            return super().read_find(tag, answer)._replace(native_id="1", result="ok")

    with pytest.raises(AssertionError, match="a tag that never was"):
        check_driver(driver(cluster, Finds()), str(tmp_path), wait_s=60)


def broken(**changes):
    return type("Broken", (ExamToy,), changes)()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"states": {"Q": "waiting"}}, "'waiting'"),
        ({"strict": {"Z": "lost"}}, "strict"),
        ({"submit": lambda self, ask, options: Command(("tsub", "x"), ask.script)}, "tag"),
        ({"read_listing": lambda self, answer, options: 1 / 0}, "readers: ZeroDivisionError"),
        ({"element_id": lambda self, native, element, count: native}, "three native ids"),
        ({"history": lambda self, natives: [Command(("thist", *natives))]}, "history of no ids"),
        ({"kill": lambda self, natives, force: Command(("tdel",))}, "does not name the jobs"),
        ({"find": lambda self, tag, user: [Command(("grep", tag))]}, "grep is not among programs"),
        ({"read_kill": lambda self, answer: ("ok", "")}, "cut off is believed"),
        ({"allowed": frozenset(), "submit": ExamToy.submit, "programs": ()}, "programs"),
    ],
)
def test_a_broken_dialect_is_told_what_is_wrong(changes, words):
    with pytest.raises(AssertionError, match=words):
        check_dialect(broken(**changes))


def test_a_dialect_of_another_package_is_found_by_its_entry_point(tmp_path, monkeypatch):
    module = "from driver_world import ToyDialect\nclass Theirs(ToyDialect):\n    pass\n"
    (tmp_path / "their_dialect.py").write_text(module)
    info = tmp_path / "theirs-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[rota.dialects]\ntheirs = their_dialect:Theirs\nbad = no_such:X\nslurm = their_dialect:Theirs\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    assert {"theirs", "slurm", "lsf", "pbs", "torque", "sge"} <= set(dialects.dialect_names())
    try:
        assert type(dialects.load_dialect("theirs")).__name__ == "Theirs"
        monkeypatch.setitem(dialects.BUILT_IN, "slurm", "driver_world:ToyDialect")  # a name of rota's own wins
        assert type(dialects.load_dialect("slurm")).__name__ == "ToyDialect"
        with pytest.raises(UsageError, match=r"'bad' \(no_such:X\) cannot be loaded"):
            dialects.load_dialect("bad")
        with pytest.raises(UsageError, match=r"no batch system 'slrum'; there are .*slurm"):
            dialects.load_dialect("slrum")
    finally:
        sys.modules.pop("their_dialect", None)
