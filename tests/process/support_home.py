"""A ROTA_HOME of a test's own, with real managers and runners in it, none of which survives the test."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from rota.wire.client import Connection, LostError, NoManagerError

ROTA = str(Path(sys.executable).with_name("rota"))


class Gate:
    """What jobs wait at, however long, without using the CPU: a named pipe that nobody has open for writing."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self.path = path
        self._fd = -1
        self.wait = f": <{path}"
        """The shell command that passes when the gate is open."""

    def open(self) -> None:
        """Let everybody pass who waits or will come."""
        self._fd = os.open(self.path, os.O_RDWR)

    def close(self) -> None:
        """Let nobody pass any more."""
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1


class Home:
    """One home: its manager, its runners, and `rota` commands in it."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.work = Path(tempfile.mkdtemp(prefix="rw-"))
        """For the jobs' own files."""
        self.env = {name: value for name, value in os.environ.items() if not name.startswith("ROTA_")}
        self.env |= {"ROTA_HOME": path, "ROTA_DEBUG": "", "PYTHONFAULTHANDLER": "1"}
        self._gates: list[Gate] = []
        self.may_fail = False
        """Whether this test makes the manager's core fail."""

    def gate(self) -> Gate:
        """A gate for jobs; it is shut."""
        gate = Gate(self.work / f"gate{len(self._gates)}")
        self._gates.append(gate)
        return gate

    def config(self, text: str) -> None:
        """Write config.toml."""
        os.makedirs(self.path, 0o700, exist_ok=True)
        Path(self.path, "config.toml").write_text(text)

    def rota(
        self, *words: str | bytes, code: int | None = 0, stdin: bytes = b"", wrapper: Sequence[str] = (), **more: Any
    ) -> subprocess.CompletedProcess[str]:
        """Run a command (by a wrapper); `code` is the exit status that it must have (None: any)."""
        done = subprocess.run(
            [*wrapper, ROTA, *words], input=stdin, capture_output=True, timeout=more.pop("timeout", 120),
            cwd=more.pop("cwd", self.work), env=self.env | more.pop("env", {}), **more,
        )  # fmt: skip
        out, err = done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
        if code is not None and done.returncode != code:
            raise AssertionError(f"rota {words!r:.200}: {done.returncode}, not {code}\n{out}\n{err}\n{self.tail()}")
        assert "internal error" not in err, err
        assert "Traceback" not in err, err
        return subprocess.CompletedProcess(done.args, done.returncode, out, err)

    def json(self, *words: str, **more: Any) -> Any:
        """The JSON that a command prints."""
        return json.loads(self.rota(*words, "--json", **more).stdout)

    def rows(self, *words: str) -> list[dict[str, Any]]:
        """The JSON lines that a command prints."""
        return [json.loads(line) for line in self.rota(*words, "--json").stdout.splitlines()]

    def job(self, name: str) -> dict[str, Any]:
        """One job."""
        (row,) = self.rows("jobs", name)
        return row

    def add(self, *words: str, **more: Any) -> str:
        """Add a batch; its number."""
        return self.rota("add", *words, **more).stdout.strip()

    def counts(self, *words: str) -> dict[str, int]:
        """How many jobs are in which state."""
        with Connection.connect(self.path) as connection:
            counts: dict[str, int] = connection.ask("count", sel=list(words))["counts"]
            return counts

    def ask(self, op: str, **arguments: Any) -> dict[str, Any]:
        """Ask the manager directly."""
        with Connection.connect(self.path) as connection:
            answer: dict[str, Any] = connection.ask(op, **arguments)
            return answer

    def until(self, condition: Callable[[], Any], seconds: float = 120, what: str = "") -> Any:
        """Wait for something; the manager may be away meanwhile."""
        end = time.monotonic() + seconds
        while True:
            try:
                if found := condition():
                    return found
            except (NoManagerError, LostError):
                pass
            assert time.monotonic() < end, f"not within {seconds} s: {what or condition}\n{self.tail()}"
            time.sleep(0.02)

    def settled(self, *words: str, seconds: float = 180) -> dict[str, int]:
        """Wait until nothing is open; the counts."""
        live = ("WAITING", "PENDING", "STARTING", "RUNNING", "MISSING", "KILLING", "HOLDING")
        self.until(lambda: not any(name in live for name in self.counts(*words)), seconds, "all settled")
        return self.counts(*words)

    # ---- processes --------------------------------------------------------------------------------------------------

    def manager(self) -> int:
        """The manager's pid, 0 if none is up."""
        try:
            pid = int(Path(self.path, "manager.pid").read_text())
        except (OSError, ValueError):
            return 0
        return pid if f"--home\0{self.path}\0" in cmdline(pid) else 0

    def kill_manager(self, number: int = signal.SIGKILL) -> int:
        """Kill it, and see it gone."""
        pid = self.manager()
        assert pid
        os.kill(pid, number)
        self.until(lambda: not alive(pid), what="the manager is gone")
        return pid

    def runners(self) -> dict[int, str]:
        """pid → id of the runners that live."""
        found = {}
        for pid in pids():
            words = cmdline(pid).split("\0")
            if any(word.endswith("runner/__main__.py") for word in words) and any(self.path in word for word in words):
                try:
                    leader = os.getsid(pid) == pid
                except ProcessLookupError:
                    continue
                if leader:  # and not a child of it that is just about to become a job
                    found[pid] = words[words.index("--id") + 1]
        return found

    def of_runner(self, runner: str) -> list[int]:
        """Processes of a runner's jobs, left by it or not."""
        found = [pid for pid in pids() if f"ROTA_RUNNER={runner}" in environ(pid).split("\0")]
        return [pid for pid in found if cmdline(pid) != "rota-launcher\0"]

    def processes(self) -> list[int]:
        """Every process that has to do with this home."""
        output = Path(self.path, "output")
        runners = os.listdir(output) if output.is_dir() else []
        marks = {f"ROTA_RUNNER={name}" for name in runners} | {f"ROTA_HOME={self.path}"}
        found = [pid for pid in pids() if not marks.isdisjoint(environ(pid).split("\0")) or self.path in cmdline(pid)]
        given = Path(self.path, "sites", "pilot")
        tags = tuple(f"ROTA_RUNNER={tag}." for tag in os.listdir(given)) if given.is_dir() else ()
        rest = [pid for pid in pids() if pid not in found] if tags else []
        return found + [pid for pid in rest if any(word.startswith(tags) for word in environ(pid).split("\0"))]

    def tail(self) -> str:
        """The end of the manager's log."""
        try:
            return "---- manager.log\n" + Path(self.path, "manager.log").read_text(errors="replace")[-3000:]
        except OSError:
            return "(no manager.log)"

    def quarantined(self) -> list[str]:
        """What made the manager's core fail."""
        place = Path(self.path, "quarantine")
        return sorted(os.listdir(place)) if place.is_dir() else []

    def end(self) -> list[int]:
        """Kill everything; returns what would not die."""
        for _ in range(100):
            left = self.processes()
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if not left:
                break
            time.sleep(0.02)
        left = self.processes()
        for gate in self._gates:
            gate.close()
        shutil.rmtree(self.work, ignore_errors=True)
        return left


def pids() -> list[int]:
    """All processes but this one."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) != os.getpid()]


def _read(pid: int, name: str) -> str:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes().decode(errors="replace")
    except OSError:
        return ""


def cmdline(pid: int) -> str:
    """A process's words, each with a NUL after it; '' if it is gone."""
    return _read(pid, "cmdline")


def environ(pid: int) -> str:
    """A process's environment; '' if it is gone (or a zombie)."""
    return _read(pid, "environ")


def alive(pid: int) -> bool:
    """Whether it runs (a zombie does not)."""
    return _read(pid, "stat").rpartition(")")[2].split()[:1] not in ([], ["Z"], ["X"])


def parent(pid: int) -> int:
    """Its parent's pid, 0 if it is gone."""
    fields = _read(pid, "stat").rpartition(")")[2].split()
    return int(fields[1]) if fields else 0


@contextlib.contextmanager
def a_home(path: str | None = None) -> Iterator[Home]:
    """A home that leaves no process behind, whatever happens inside."""
    own = path is None
    home = Home(path or tempfile.mkdtemp(prefix="rh-", dir="/tmp"))
    os.chmod(home.path, 0o700)
    try:
        yield home
    finally:
        left, failures = home.end(), [] if home.may_fail else home.quarantined()
        words = [Path(home.path, "quarantine", name).read_text() for name in failures]
        if own:
            shutil.rmtree(home.path, ignore_errors=True)
    assert not words, words
    assert not left, f"processes that would not die: {[(pid, cmdline(pid)) for pid in left]}"


@pytest.fixture
def home() -> Iterator[Home]:
    """A fresh home."""
    with a_home() as made:
        yield made
