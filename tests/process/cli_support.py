"""A home of its own for a test, the command line in it, and nothing left running. Not a test itself."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

import pytest


class Rota:
    """The command line in one home."""

    def __init__(self, home: Path, cwd: Path) -> None:
        self.home = home
        self.cwd = cwd
        self.environ = {**os.environ, "ROTA_HOME": str(home), "NO_COLOR": "1"}
        self.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        self.environ["PYTHONPYCACHEPREFIX"] = str(Path(tempfile.gettempdir()) / f"rota-test-pyc-{os.getuid()}")

    def argv(self, *words: object) -> list[str]:
        return [sys.executable, "-m", "rota", *map(str, words)]

    def __call__(
        self, *words: object, code: int | None = 0, timeout: float = 120, **options
    ) -> subprocess.CompletedProcess:
        """Run a command to its end; the exit status must be `code`."""
        options = {"cwd": self.cwd, "env": self.environ, "capture_output": True, "text": True, **options}
        if "input" not in options:
            options.setdefault("stdin", subprocess.DEVNULL)
        done = subprocess.run(self.argv(*words), timeout=timeout, **options)
        assert code is None or done.returncode == code, (words, done.returncode, done.stdout, done.stderr)
        return done

    def out(self, *words: object, **options) -> str:
        """What a command prints."""
        return str(self(*words, **options).stdout)

    def start(self, *words: object, **options) -> subprocess.Popen:
        """Start a command, with signals as a terminal would have them."""
        options = {"cwd": self.cwd, "env": self.environ, "text": True, "stdin": subprocess.DEVNULL, **options}
        return subprocess.Popen(
            self.argv(*words),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # noqa: PLW1509
            **options,
        )

    def processes(self) -> dict[int, str]:
        """Managers and runners of this home."""
        found = {}
        for entry in os.listdir("/proc"):
            if entry.isdigit() and int(entry) != os.getpid():
                try:
                    line = Path(f"/proc/{entry}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                except OSError:
                    continue
                if f"{self.home}" in line and ("rota.manager" in line or "runner/__main__.py" in line):
                    found[int(entry)] = line
        return found

    def nothing_runs(self, within_s: float = 60) -> bool:
        """Whether all managers and runners of this home are gone, now or soon."""
        deadline = time.monotonic() + within_s
        while self.processes():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)
        return True


@contextmanager
def rota_home():
    """A Rota; at the end its manager is taken down, and what is left is killed by its pid."""
    base = Path(tempfile.mkdtemp(prefix="rc-"))
    (base / "work").mkdir()
    rota = Rota(base / "h", base / "work")
    try:
        yield rota
    finally:
        if rota.processes():
            rota("down", "--kill", code=None)
        clean = rota.nothing_runs()
        left = rota.processes()
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        log = rota.home / "manager.log"
        text = log.read_text(errors="replace")[-3000:] if log.exists() else ""
        shutil.rmtree(base, ignore_errors=True)
        assert clean, f"left running: {left}\n{text}"
        assert "Traceback" not in text, text


@pytest.fixture(name="rota")
def down():
    """A home where no manager is up."""
    with rota_home() as rota:
        yield rota


@pytest.fixture(name="rota")
def up():
    """A home with a manager."""
    with rota_home() as rota:
        rota("up")
        yield rota


def until(condition, within_s: float = 120):
    """Wait for something to become true; what it was."""
    deadline = time.monotonic() + within_s
    while not (value := condition()):
        assert time.monotonic() < deadline, "it did not become true in time"
        time.sleep(0.02)
    return value


def add(rota: Rota, *words: object) -> str:
    """Add a batch; its number."""
    return rota.out("add", *words).strip()


def states(rota: Rota, batch: str) -> list[str]:
    """The states of its jobs."""
    return [json.loads(line)["state"] for line in rota.out("jobs", batch, "--json").splitlines()]
