"""A job that the kernel itself ends for want of memory, in a real memory cgroup."""

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from process.support_home import Home, home

__all__ = ["home"]

LIMIT = 256 << 20
V1, V2 = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")


@pytest.fixture
def group() -> Iterator[Path]:
    """A memory cgroup of our own, with a limit."""
    one = (V1 / "memory.limit_in_bytes").exists()
    path = (V1 if one else V2) / f"rota-test-{os.getpid()}"
    try:
        path.mkdir()
        (path / ("memory.limit_in_bytes" if one else "memory.max")).write_text(str(LIMIT))
    except OSError as error:
        if path.exists():
            path.rmdir()
        pytest.skip(f"no memory cgroup can be made here: {error}")
    yield path
    for _ in range(100):
        for pid in (path / "cgroup.procs").read_text().split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        with contextlib.suppress(OSError):
            path.rmdir()
            return
        time.sleep(0.05)
    raise AssertionError(f"{path} cannot be removed")


def test_the_kernels_kill_is_told_from_others(home: Home, group: Path) -> None:
    """Everything of this home runs in the group: its memory is what the site offers, and beyond it the kernel kills."""
    home.rota("up", wrapper=["sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh"])
    assert home.json("sites")["sites"][0]["memory"] == LIMIT
    assert "asked for" in home.rota("add", "--memory", "1G", "--", "true", code=2).stderr
    home.add("--", "python3 -c 'x = bytearray(600 << 20)'")
    home.add("--array", "1-20", "--", "kill -9 $$")  # at about the same time
    home.settled()
    assert home.job("1.1")["reason"] == "oom", home.tail()
    assert {row["reason"] for row in home.rows("jobs", "2")} == {"signal"}
    home.rota("down", "--kill")
    home.until(lambda: not (group / "cgroup.procs").read_text().strip())
