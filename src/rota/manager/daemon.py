"""Starting the manager in the background, and stopping it.

The manager is started through a small process that forks once more, so that it belongs to no terminal, survives
logout, and leaves no zombie in a program that lives long. It says on a pipe that it serves, or why it does not.
"""

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

from rota.manager.paths import Paths, prepare
from rota.model.errors import BY_CODE, DeniedError, RefusedError, RotaError

__all__ = ["runs", "say_failed", "say_ready", "start", "stop"]

START_S = 60.0
STOP_S = 60.0

_MODULE = "rota.manager"
_DETACH = """
import os, sys
os.setsid()
if os.fork():
    os._exit(0)
os.write(int(sys.argv[1]), b'{"pid": %d}\\n' % os.getpid())
os.execv(sys.argv[2], sys.argv[2:])
"""


def start(home: str | None = None, argv_extra: Sequence[str] = (), *, timeout_s: float = START_S) -> int:
    """Start a manager for this home and return its pid once it serves.

    If another call won the race to start one, the pid is the other's; if the one that has the home turns out to be
    ending, another is started. Any other failure is raised with the manager's own words.
    """
    paths = prepare(home)
    deadline = time.monotonic() + timeout_s
    while True:
        said, begin = _launch(paths, argv_extra, timeout_s)
        holder = said.get("holder")
        if isinstance(holder, int):
            if _wait_for(paths.home, holder, deadline):
                return holder
            if time.monotonic() < deadline:
                continue
        return _outcome(paths, said, begin, timeout_s)


def _launch(paths: Paths, argv_extra: Sequence[str], timeout_s: float) -> tuple[dict[str, Any], int]:
    """Start a process; what it says, and where its part of the log begins."""
    command = [sys.executable, "-m", _MODULE, "--home", paths.home]
    reader = writer = log = -1
    try:
        log = os.open(paths.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        reader, writer = os.pipe()
        begin = os.fstat(log).st_size
        argv = [*command, "--ready-fd", str(writer), *argv_extra]
        subprocess.run(
            [sys.executable, "-I", "-S", "-c", _DETACH, str(writer), *argv],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=(writer,),
            cwd="/",
            env=_environment(),
            umask=0o077,
            check=True,
        )
        os.close(writer)
        writer = -1
        return _listen(reader, timeout_s), begin
    except (OSError, subprocess.SubprocessError) as error:
        raise RotaError(f"cannot start {sys.executable}: {error}") from error
    finally:
        for fd in (reader, writer, log):
            if fd >= 0:
                os.close(fd)


def _environment() -> dict[str, str]:
    """The manager's environment: ours, with a PYTHONPATH that means the same in `/`, where the manager starts."""
    environment = dict(os.environ)
    if path := environment.get("PYTHONPATH"):
        environment["PYTHONPATH"] = os.pathsep.join(map(os.path.abspath, path.split(os.pathsep)))
    return environment


def _listen(fd: int, timeout_s: float) -> dict[str, Any]:
    """All that comes through the pipe until it is closed or says ready: lines of JSON, merged."""
    deadline = time.monotonic() + timeout_s
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    text = b""
    while (left := deadline - time.monotonic()) > 0:
        if not poll.poll(left * 1000):
            return _merge(text) | {"late": True}
        data = os.read(fd, 65_536)
        text += data
        if not data or b'"ready"' in text or (b'"error"' in text and text.endswith(b"\n")):
            break
    return _merge(text)


def _merge(text: bytes) -> dict[str, Any]:
    said: dict[str, Any] = {}
    for line in text.splitlines():
        try:
            said |= json.loads(line)
        except (ValueError, TypeError):
            continue
    return said


def _outcome(paths: Paths, said: dict[str, Any], begin: int, timeout_s: float) -> int:
    pid = said.get("pid")
    if said.get("ready") and isinstance(pid, int):
        return pid
    if "error" in said:
        raise BY_CODE.get(str(said.get("code")), RefusedError)(str(said["error"]))
    if said.get("late"):
        raise RotaError(f"the manager (pid {pid}) does not serve after {timeout_s:g} s; look at {paths.log}")
    raise RotaError(
        f"the manager ended while starting: {_tail(paths.log, begin) or 'it said nothing'} (see {paths.log})"
    )


def _wait_for(home: str, holder: int, deadline: float) -> bool:
    """Wait until the manager that has this home answers here; False if it has ended, or does not in time."""
    from rota.manager.lock import start_ticks
    from rota.wire.client import Connection, NoManagerError

    while time.monotonic() < deadline:
        try:
            with Connection.connect(home) as connection:
                return bool(connection.manager)
        except NoManagerError:
            if start_ticks(holder) is None:
                return False
            time.sleep(0.05)
    return False


def _tail(path: str, begin: int) -> str:
    with open(path, "rb") as file:
        file.seek(max(begin, os.fstat(file.fileno()).st_size - 4000))
        lines = file.read().decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else ""


# For the manager itself


def say_ready(fd: int) -> None:
    """Tell whoever started the manager that it serves, and close the pipe."""
    _say(fd, {"ready": True, "pid": os.getpid()})


def say_failed(fd: int, error: BaseException) -> None:
    """Tell whoever started the manager why it cannot serve, and who does (AlreadyRunningError of this host)."""
    said: dict[str, Any] = {"error": str(error) or type(error).__name__, "code": getattr(error, "code", "internal")}
    if getattr(error, "pid", None) and getattr(error, "host", None) == os.uname().nodename:
        said["holder"] = vars(error)["pid"]
    _say(fd, said)


def _say(fd: int, said: dict[str, Any]) -> None:
    try:
        os.write(fd, json.dumps(said).encode() + b"\n")
        os.close(fd)
    except OSError:
        pass  # nobody listens any more


def runs(pid: int) -> bool:
    """Whether a process runs; one that has ended does not, even if nobody has taken note of that yet."""
    from rota.manager.lock import start_ticks

    return start_ticks(pid) is not None


def stop(pid: int, *, start: int | None = None, timeout_s: float = STOP_S) -> bool:
    """Ask the manager with this pid to end (TERM) and wait for it; False if it is still there when the time is up.

    `start` (as in the lock's words) guards against another process that has got the pid since.
    """
    from rota.manager.lock import start_ticks

    if pid <= 1:
        raise RefusedError(f"{pid} is not the pid of a manager")
    now = start_ticks(pid)
    if now is None or (start is not None and now != start):
        return True
    try:
        if os.stat(f"/proc/{pid}").st_uid != os.getuid():
            raise DeniedError(f"process {pid} belongs to another user")
        os.kill(pid, signal.SIGTERM)
    except (ProcessLookupError, FileNotFoundError):
        return True
    deadline = time.monotonic() + timeout_s
    while start_ticks(pid) == now:
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.01)
    return True
