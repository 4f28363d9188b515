"""A manager that is being killed still has its socket and its lock: whoever needs a manager then gets another one."""

import asyncio
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import rota as package
from process.support_home import ROTA, Home, home
from rota.aio import Client as AsyncClient
from rota.wire.home import SOCKET

__all__ = ["home"]

HOLDER = """
import sys, time
from rota.manager.lock import Lock
from rota.manager.paths import prepare
with Lock(prepare(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


@contextmanager
def dying(home: Home) -> Iterator[None]:
    """A socket that takes one call, reads nothing, and is closed: what the kernel makes of one whose process dies."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.path.join(home.path, SOCKET))
        listener.listen()

        def die() -> None:
            called, _ = listener.accept()
            called.recv(1)  # so that the rest of the greeting lies there, and closing resets the connection
            listener.close()
            called.close()

        thread = threading.Thread(target=die, daemon=True)
        thread.start()
        yield
        thread.join()


def test_up_starts_another(home: Home) -> None:
    with dying(home):
        assert "started a manager" in home.rota("up").stdout
    assert home.json("ping")["pid"] == home.manager()


def test_add_starts_another(home: Home) -> None:
    with dying(home):
        home.add("--", "true")
    assert home.settled() == {"COMPLETED": 1}


def test_run_starts_another(home: Home) -> None:
    with dying(home):
        home.rota("run", "--home", home.path, "--", "true")


def test_down_finds_none(home: Home) -> None:
    with dying(home):
        assert "going away" in home.rota("down", code=3).stderr


def test_python_starts_another(home: Home) -> None:
    with dying(home), package.Client(home.path) as client:
        assert client.submit("true").wait(60)


def test_a_manager_of_its_own_is_started(home: Home) -> None:
    with dying(home), package.local(home.path) as client:
        assert client.submit("true").wait(60)


def test_asyncio_starts_another(home: Home) -> None:
    async def submit() -> bool:
        async with AsyncClient(home.path) as client:
            return await (await client.submit("true")).wait(60)

    with dying(home):
        assert asyncio.run(submit())


@pytest.mark.parametrize("end", ["killed", "stopped"])
def test_the_lock_of_one_that_ends_meanwhile(home: Home, end: str) -> None:
    """`rota up` finds the home taken, waits for its holder to answer, and starts a manager when that is gone."""
    words = [sys.executable, "-c", HOLDER, home.path]
    holder = subprocess.Popen(words, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True, env=home.env)
    assert holder.stdout is not None and holder.stdout.readline() == "held\n"
    up = subprocess.Popen([ROTA, "up"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=home.env)
    try:
        refused = f"already runs on {socket.gethostname()} as pid {holder.pid}"
        log = Path(home.path, "manager.log")
        home.until(lambda: log.exists() and refused in log.read_text())
        holder.kill() if end == "killed" else holder.terminate()
        holder.wait()
        out, err = up.communicate()
        assert "started a manager" in out, err
    finally:
        for process in (holder, up):
            process.kill()
            process.communicate()
