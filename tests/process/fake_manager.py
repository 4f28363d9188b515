"""The manager's side of the runner protocol, as small as tests and the bench need it. Not a test itself."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).resolve().parents[2] / "src"
PROGRAM = SOURCE / "rota" / "runner" / "__main__.py"
SHORT_JOBS = Path(__file__).with_name("support_short_jobs.py")
"""The same for which all jobs are short, so that they are left to the starters."""
PATH = "/usr/local/bin:/usr/bin:/bin"
SPEC: dict[str, Any] = {"cwd": "/tmp", "env": "e", "set": {}, "cores": 1000}


def children(pid: int) -> list[int]:
    """A process's children, of all its threads."""
    return [int(word) for path in Path(f"/proc/{pid}/task").glob("*/children") for word in path.read_text().split()]


class FakeManager:
    """Listens on a Unix socket, starts one runner and talks to it."""

    def __init__(
        self,
        directory: Path,
        python: str = sys.executable,
        arguments: tuple[str, ...] = (),
        cores: int = 2,
        program: Path = PROGRAM,
    ) -> None:
        self.directory = directory
        self.output = directory / "output"
        self.path = directory / "m.sock"
        self.ended: dict[tuple[int, int, int], list[Any]] = {}
        self.started: dict[tuple[int, int, int], list[Any]] = {}
        self.disclaimed: dict[tuple[int, int, int], str] = {}
        self.repeats = 0
        self.greets: list[dict[str, Any]] = []
        self.touches: list[dict[str, Any]] = []
        self.holds: list[list[Any]] = []
        self.released: list[tuple[int, ...]] = []
        self.said_bye = False
        self.acking = True
        self.got = 0
        self.clock = 0.0
        self.session = 0
        self.n = 0
        self.settings: dict[str, Any] = {"touch_s": 15, "start_by_s": 120, "grace_s": 1, "linger_s": 60}
        self._sent_specs: set[str] = set()
        self._buffer = b""
        self.connection: socket.socket | None = None
        self.listener: socket.socket | None = None
        self.listen()
        environ = {**os.environ, "PYTHONPATH": str(SOURCE)}
        environ.pop("PYTHONDONTWRITEBYTECODE", None)
        self.log = (directory / "runner.log").open("ab")
        words = [
            "--connect",
            f"unix:{self.path}",
            "--output",
            str(self.output),
            "--cores",
            str(cores * 1000),
            *arguments,
        ]
        self.command = [python, "-I", "-S", str(program), *words]
        self.environ = environ
        self.process = self.spawn()

    def spawn(self) -> subprocess.Popen[bytes]:
        self.process = subprocess.Popen(
            self.command, env=self.environ, stderr=self.log, stdin=subprocess.DEVNULL, cwd="/"
        )
        return self.process

    def listen(self) -> None:
        if self.path.exists():
            self.path.unlink()
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(self.path))
        self.listener.listen()

    # -- frames --------------------------------------------------------------------------------------------------

    def send(self, message: dict[str, Any]) -> None:
        body = json.dumps(message).encode()
        assert self.connection is not None
        self.connection.sendall(struct.pack(">I", len(body)) + body)

    def read(self, timeout_s: float) -> list[dict[str, Any]]:
        assert self.connection is not None
        if not select.select([self.connection], [], [], timeout_s)[0]:
            return []
        data = self.connection.recv(1 << 18)
        if not data:
            raise ConnectionError("the runner closed the connection")
        self._buffer += data
        messages = []
        while len(self._buffer) >= 4:
            (size,) = struct.unpack(">I", self._buffer[:4])
            if len(self._buffer) < 4 + size:
                break
            messages.append(json.loads(self._buffer[4 : 4 + size]))
            self._buffer = self._buffer[4 + size :]
        return messages

    # -- sessions ------------------------------------------------------------------------------------------------

    def accept(self, timeout_s: float = 60, welcome: bool = True) -> dict[str, Any]:
        assert self.listener is not None
        self.listener.settimeout(timeout_s)
        self.connection, _ = self.listener.accept()
        self._buffer = b""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            for message in self.read(1):
                assert message["t"] == "greet", message
                self.greets.append(message)
                self.clock = message["clock"]
                if welcome:
                    self.session += 1
                    self.n = 0
                    self._sent_specs = set()
                    self.send(
                        {
                            "t": "welcome",
                            "version": 1,
                            "connect": message["connect"],
                            "session": self.session,
                            **self.settings,
                        }
                    )
                return message
        raise TimeoutError("no greeting")

    def hang_up(self, stop_listening: bool = False) -> None:
        assert self.connection is not None
        self.connection.close()
        self.connection = None
        if stop_listening:
            assert self.listener is not None
            self.listener.close()
            self.path.unlink()

    def lease(
        self, jobs: list[list[Any]], specs: dict[str, Any], slots: list[list[Any]], envs: dict[str, Any] | None = None
    ) -> None:
        self.n += 1
        self.send(
            {
                "t": "lease",
                "session": self.session,
                "n": self.n,
                "clock": self.clock,
                "slots": slots,
                "envs": {"e": {"PATH": PATH}} if envs is None else envs,
                "specs": specs,
                "jobs": jobs,
            }
        )

    def take(self, message: dict[str, Any]) -> None:
        self.clock = max(self.clock, message.get("clock", 0.0))
        self.got = max(self.got, message.get("got", 0))
        if message["t"] == "bye":
            self.said_bye = True
        elif message["t"] == "touch":
            self.touches.append(message)
        elif message["t"] == "held":
            self.holds = message["holds"]
        elif message["t"] == "released":
            self.released += [tuple(job) for job in message["jobs"]]
        elif message["t"] == "report":
            for row in message["started"]:
                self.started[tuple(row[:3])] = row
            for row in message["ended"]:
                self.repeats += tuple(row[:3]) in self.ended
                self.ended[tuple(row[:3])] = row
            for row in message["disclaimed"]:
                self.disclaimed[tuple(row[:3])] = row[3]
            if self.acking or not (message["ended"] or message["disclaimed"]):  # a slow start is told before its end
                self.send({"t": "ack", "seq": message["seq"]})

    def pump(self, until: Any, timeout_s: float = 60) -> None:
        deadline = time.monotonic() + timeout_s
        while not until():
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"ended {self.ended} started {self.started} disclaimed {self.disclaimed}")
            for message in self.read(min(left, 0.5)):
                self.take(message)

    # -- for tests -----------------------------------------------------------------------------------------------

    def run(
        self, *commands: Any, slots: int = 2, timeout_s: float = 60, batch: int = 7, **spec: Any
    ) -> list[list[Any]]:
        """Lease these commands, wait for all of them and return their `ended` rows."""
        name = f"{batch}.{self.n}"
        first = 1 + len(self.ended)
        keys = [(batch, first + i, 1) for i in range(len(commands))]
        jobs = [["s", name, *key, command, None] for key, command in zip(keys, commands, strict=True)]
        self.lease(jobs, {name: {**SPEC, **spec}}, [["s", slots]])
        self.pump(lambda: all(key in self.ended for key in keys), timeout_s)
        return [self.ended[key] for key in keys]

    def launcher(self) -> int:
        """The launcher's pid, once it can be given jobs; the runner is asked for it by a first job."""
        self.run(["true"])
        deadline = time.monotonic() + 60
        while True:
            for pid in children(self.process.pid):
                try:
                    stat = Path(f"/proc/{pid}/stat").read_text()
                except (FileNotFoundError, ProcessLookupError):  # the compiler, which is done
                    continue
                if "(launcher) S" in stat:  # it has said that it is there, and waits
                    time.sleep(0.05)
                    return pid
            assert time.monotonic() < deadline, "there is no launcher"
            time.sleep(0.01)

    def stream(self, row: list[Any], error: bool = False) -> bytes:
        """What a job wrote, read from its range of the segment."""
        name, offset, length, _ = row[10][4:] if error else row[10][:4]
        if not length:
            return b""
        with (self.output / name).open("rb") as file:
            file.seek(offset)
            return file.read(length)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        if self.connection is not None:
            self.connection.close()
        if self.listener is not None:
            self.listener.close()
        self.log.close()
