"""Full and broken disks under a real manager: refused, recorded, or stopped; never lost, never twice (D3, D4, D7)."""

import ctypes
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from process.support_home import Home, a_home
from process.support_witness import check, command
from rota.model.errors import RotaError
from rota.wire.client import Connection

libc = ctypes.CDLL(None, use_errno=True)
FAULTY = str(Path(__file__).with_name("support_faulty_manager.py"))
FAILS = {"write": (1, 14, 27, 28, 29, 31, 35, 41, 50, 65), "sync": (1, 2, 3, 5, 7, 9, 12, 16)}
"""Which operation of a life fails: in opening the store, in submitting, in leasing, in reporting."""
MS_RDONLY, MS_REMOUNT, MNT_DETACH = 1, 32, 2


def witness(home: Home) -> str:
    """A directory for the jobs' witnesses."""
    place = home.work / "witness"
    place.mkdir(exist_ok=True)
    return str(place)


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Home]:
    """A home on a file system of 160 MB of its own."""
    target = tmp_path / "small"
    target.mkdir()
    if libc.mount(b"tmpfs", os.fsencode(target), b"tmpfs", 0, b"size=160m,mode=700") != 0:
        pytest.skip(f"no small file system can be mounted here: {os.strerror(ctypes.get_errno())}")
    try:
        with a_home(str(target)) as home:
            yield home
    finally:
        assert libc.umount2(os.fsencode(target), MNT_DETACH) == 0


def fill(path: Path, leave: int = 0) -> None:
    """Leave (nearly) nothing."""
    with open(path, "ab", buffering=0) as file:
        for size in (1 << 20, 1 << 12):
            while True:
                room = os.statvfs(path.parent)
                if room.f_bavail * room.f_frsize - leave < size:
                    break
                file.write(bytes(size))


def test_full_disk(small: Home) -> None:
    """New work is refused with the reason, accepted work ends and is recorded, and adding works again by itself."""
    place = witness(small)
    small.config("[site.local]\ncores = 4\n")
    small.add("--array", "1-40", "--stdout", "/dev/null", "--stderr", "/dev/null", "--", command(place, "sleep 0.2"))
    small.until(lambda: "RUNNING" in small.counts())
    pid = small.manager()
    filler = Path(small.path, "filler")
    fill(filler)
    for words in (["--", "true"], ["--values", ",".join(map(str, range(5000))), "--", "echo {}"]):
        refused = small.rota("add", *words, code=5)
        assert "no new work is taken" in refused.stderr
        assert "what was accepted goes on" in refused.stderr
    assert "left" in small.json("ping")["store"]
    assert small.settled() == {"COMPLETED": 40}
    assert small.manager() == pid
    found = check(place, small.rows("jobs"), small.rows("history"))
    assert not found.wrong, found
    assert found.executions == 40
    filler.unlink()
    batch = small.until(lambda: small.rota("add", "--", "true", code=None).stdout[:-1], what="space is seen")
    assert batch == "2", "what was refused left nothing behind"
    assert small.settled() == {"COMPLETED": 41}
    assert small.manager() == pid, "no restart was needed"
    small.kill_manager()
    small.rota("up")
    assert small.counts() == {"COMPLETED": 41}


def test_started_on_a_full_disk(small: Home) -> None:
    """No half-made home: the reason, and exit status 5; with a queue in it, the manager serves what was accepted."""
    filler = Path(small.path, "filler")
    fill(filler)
    refused = small.rota("add", "--", "true", code=5)
    assert "no space left" in refused.stderr
    filler.unlink()
    small.add("--", "true")
    small.settled()
    small.rota("down")
    fill(filler, leave=2 << 20)
    small.rota("up")
    assert small.counts() == {"COMPLETED": 1}
    assert "MiB are left" in small.rota("add", "--", "true", code=5).stderr


def test_read_only_home(small: Home) -> None:
    """Refused with the reason, whether it was so at the start or not."""
    target = os.fsencode(small.path)
    assert libc.mount(b"tmpfs", target, b"tmpfs", MS_REMOUNT | MS_RDONLY, b"") == 0
    refused = small.rota("add", "--", "true", code=5)
    assert "read-only" in refused.stderr
    assert libc.mount(b"tmpfs", target, b"tmpfs", MS_REMOUNT, b"") == 0
    assert small.add("--", "true") == "1"


def faulty(home: Home, kind: str, counted: str, first: int, count: int) -> "subprocess.Popen[bytes]":
    """Start a manager on a bad disk; it may be dead at once."""
    os.makedirs(home.path, 0o700, exist_ok=True)
    with open(os.path.join(home.path, "manager.log"), "ab") as log:
        child = subprocess.Popen(
            [sys.executable, FAULTY, home.path, kind, counted, str(first), str(count)],
            env=home.env,
            stdout=log,
            stderr=log,
            cwd="/",
        )
    end = time.monotonic() + 60
    while child.poll() is None and time.monotonic() < end:
        try:
            Connection.connect(home.path).close()
            break
        except RotaError:
            time.sleep(0.02)
    return child


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("counted", ["write", "sync"])
def test_io_error_stops_the_manager(counted: str) -> None:
    """At the n-th operation: exit status 1, file and advice in the log; nothing is lost or run twice."""
    stopped = 0
    for n in FAILS[counted]:
        with a_home() as home:
            place = witness(home)
            home.config("[site.local]\ncores = 4\n")
            child = faulty(home, "broken", counted, n, 1 << 60)
            try:
                acknowledged = []
                if child.poll() is None:
                    acknowledged = _submit_to(home, child, place)
                    _idle_or_dead(home, child)
                hit = child.poll() is not None
                if hit:
                    stopped += 1
                    assert child.returncode == 1, home.tail()
                    assert "rota.db" in home.tail()
                    assert "then start rota again" in home.tail()
                else:
                    child.terminate()
                    child.wait(60)
            finally:
                child.kill()
                child.wait()
            home.rota("up")
            home.settled()
            batches = {row["id"] for row in home.json("status")["batches"]}
            assert batches >= set(acknowledged), f"n = {n}: acknowledged and lost"
            found = check(place, home.rows("jobs"), home.rows("history"))
            assert not found.wrong, f"n = {n}: {found}"
            assert found.executions == found.jobs == len(batches) * 10, f"n = {n}: {found}"
    assert stopped >= len(FAILS[counted]) / 2, "a life has fewer operations where more is committed at once"


def _submit_to(home: Home, child: "subprocess.Popen[bytes]", place: str) -> list[int]:
    """Two batches of ten to this manager and no other; those that were acknowledged."""
    from rota.submission import JobOptions as Options
    from rota.submission import build, send

    got = []
    for number in range(2):
        try:
            with Connection.connect(home.path) as connection:
                options = Options(name=f"b{number}", cwd=str(home.work))
                made = build(
                    command(place, "sleep 0.0$(( ROTA_INDEX % 4 ))"),
                    options,
                    array=f"{number * 10 + 1}-{number * 10 + 10}",
                )
                got.append(send(connection, made)["batch"])
        except RotaError:
            child.wait(60)
            break
    return got


def _idle_or_dead(home: Home, child: "subprocess.Popen[bytes]") -> None:
    end = time.monotonic() + 60
    while child.poll() is None:
        try:
            if not set(home.counts()) - {"COMPLETED"}:
                return
        except RotaError:
            pass
        assert time.monotonic() < end, home.tail()
        time.sleep(0.02)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_no_space_at_the_nth_write() -> None:
    """Three writes in a row: the manager lives, refuses what it cannot write, and everything accepted ends, once."""
    survived = 0
    for n in (44, 46, 50, 56):
        with a_home() as home:
            place = witness(home)
            home.config("[site.local]\ncores = 4\n")
            child = faulty(home, "full", "write", n, 3)
            try:
                assert child.poll() is None, home.tail()
                acknowledged, refusals = _submit_patiently(home, place)
                assert home.settled() == {"COMPLETED": len(acknowledged) * 10}
                assert child.poll() is None
                found = check(place, home.rows("jobs"), home.rows("history"))
                assert not found.wrong, f"n = {n}: {found}"
                assert found.executions == len(acknowledged) * 10, f"n = {n}: {found}"
                survived += refusals > 0 or "no space left" in home.tail()
            finally:
                child.kill()
                child.wait()
    assert survived >= 2, "the faults did not meet the manager"


def _submit_patiently(home: Home, place: str) -> tuple[list[int], int]:
    """Two batches of ten, asked for until they are taken; their numbers, and how often they were refused."""
    from rota.model.errors import NoSpaceError
    from rota.submission import JobOptions as Options
    from rota.submission import build, send

    got, refusals = [], 0
    for number in range(2):
        options = Options(name=f"b{number}", cwd=str(home.work))
        made = build(
            command(place, "sleep 0.0$(( ROTA_INDEX % 4 ))"), options, array=f"{number * 10 + 1}-{number * 10 + 10}"
        )
        for _ in range(200):
            try:
                with Connection.connect(home.path) as connection:
                    got.append(send(connection, made)["batch"])
                break
            except NoSpaceError:
                refusals += 1
                time.sleep(0.1)
    return got, refusals
