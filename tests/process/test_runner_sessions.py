"""A real runner whose manager goes away, comes back, misbehaves or sends it home."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import shutil
import signal
import socket
import ssl
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, os.path.dirname(__file__))

from fake_manager import SPEC, FakeManager, children
from support_home import Gate

from rota.runner import REFUSED, launcher


@pytest.fixture
def manager(tmp_path):
    found = FakeManager(tmp_path)
    try:
        found.accept()
        yield found
    finally:
        found.close()


def lease(manager, key, command, slots=2, **spec):
    manager.lease([["s", f"l{manager.n}", *key, command, None]], {f"l{manager.n}": {**SPEC, **spec}}, [["s", slots]])


def wait_for(path: Path, timeout_s: float = 60) -> str:
    deadline = time.monotonic() + timeout_s
    while not path.exists() or not path.read_text().strip():
        assert time.monotonic() < deadline, f"{path} did not appear"
        time.sleep(0.02)
    return path.read_text()


def test_starts_are_told_for_jobs_that_last_and_not_for_short_ones(manager):
    short = 20
    manager.run(*[["true"]] * short)
    assert len(manager.started) < short, "only of those that lasted, for whatever reason"
    manager.started.clear()
    before = time.time()
    manager.run(["sleep", "0.3"])
    ((_, row),) = manager.started.items()
    assert row[4] > 1 and before <= row[3] <= time.time()


def test_the_manager_goes_away_and_comes_back_and_nothing_is_run_again(manager, tmp_path):
    script = f"echo ran >> {tmp_path}/runs; sleep 0.3; echo done"
    for index in (1, 2, 3, 4):
        lease(manager, (7, index, 1), script, slots=1)
    wait_for(tmp_path / "runs")
    manager.hang_up(stop_listening=True)
    time.sleep(1.5)
    manager.listen()
    greet = manager.accept()
    assert greet["connect"] > 1 and sorted(greet["held"]) == [[7, index, 1] for index in (1, 2, 3, 4)]
    manager.pump(lambda: len(manager.ended) == 4)
    assert (tmp_path / "runs").read_text() == "ran\n" * 4
    assert all(row[3] == 0 and manager.stream(row) == b"done\n" for row in manager.ended.values())


def test_reports_that_were_not_acknowledged_are_repeated_in_the_next_session(manager):
    manager.acking = False
    manager.run(["true"])
    manager.hang_up()
    manager.acking = True
    assert manager.accept()["held"] == [[7, 1, 1]]
    manager.pump(lambda: manager.repeats == 1)
    manager.hang_up()
    assert manager.accept()["held"] == []


def test_reports_are_repeated_after_5_s(manager):
    manager.acking = False
    manager.run(["true"])
    begin = time.monotonic()
    manager.acking = True
    manager.pump(lambda: manager.repeats == 1)
    assert time.monotonic() - begin > 4


@pytest.mark.parametrize(
    "garbage",
    [
        struct.pack(">I", 0),
        struct.pack(">I", (128 << 20) + 1),
        struct.pack(">I", 4) + b"nope",
        struct.pack(">I", 2) + b"[]",
        struct.pack(">I", 4) + b"\xff\xfe\xfd\xfc",
        struct.pack(">I", 200_000) + b"[" * 200_000,
        struct.pack(">I", 13) + b'{"t":"lease"}',
        struct.pack(">I", 27) + b'{"t":"kill","jobs":[["a"]]}',
        struct.pack(">I", 27) + b'{"t":"tail","session":1   }',
    ],
    ids=["empty", "too long", "no JSON", "no object", "no UTF-8", "deep", "bad lease", "bad kill", "bad tail"],
)
def test_garbage_ends_the_connection_and_nothing_else(manager, garbage):
    lease(manager, (7, 1, 1), ["sleep", "0.2"])
    if garbage.endswith(b'{"t":"lease"}'):
        garbage = json.dumps({"t": "lease", "session": manager.session, "n": 2}).encode()
        garbage = struct.pack(">I", len(garbage)) + garbage
    manager.connection.sendall(garbage)
    with pytest.raises(ConnectionError):
        while True:
            manager.read(5)
    manager.connection.close()
    assert manager.accept()["held"] == [[7, 1, 1]]
    manager.pump(lambda: manager.ended)
    assert manager.ended[(7, 1, 1)][3] == 0


@pytest.mark.parametrize("arguments", [("--launcher", "none"), ()], ids=["plain", "launcher"])
def test_what_a_running_job_has_written_is_told_when_asked(tmp_path, arguments):
    manager = FakeManager(tmp_path, arguments=arguments)
    try:
        manager.accept()
        if not arguments:  # the launcher is there only after a moment
            manager.run(["true"], batch=6)
        gate = Gate(tmp_path / "gate")
        script = f"echo first; echo second; echo bad >&2; touch {tmp_path}/up; {gate.wait}"
        lease(manager, (7, 1, 1), ["sh", "-c", script])
        lease(manager, (7, 2, 1), ["sh", "-c", f"echo other; {gate.wait}"])
        manager.pump(lambda: (tmp_path / "up").exists() and len(manager.started) == 2)

        def tail(*job, stream="stdout", offset=0, limit=1000):
            what = {"job": job, "stream": stream, "offset": offset, "limit": limit}
            manager.send({"t": "tail", "session": manager.session, "ask": 5, **what})
            told = []
            deadline = time.monotonic() + 20
            while not told:
                assert time.monotonic() < deadline
                for message in manager.read(1):
                    told.append(message) if message["t"] == "tail" else manager.take(message)
            assert (told[0]["session"], told[0]["ask"]) == (manager.session, 5)
            return None if told[0]["data"] is None else base64.b64decode(told[0]["data"])

        assert tail(7, 1, 1) == b"first\nsecond\n"
        assert tail(7, 1, 1, offset=6) == b"second\n"
        assert tail(7, 1, 1, offset=-7) == b"second\n" and tail(7, 1, 1, offset=-99, limit=3) == b"fir"
        assert tail(7, 1, 1, stream="stderr") == b"bad\n"
        assert tail(7, 1, 1, offset=500) == b""
        assert tail(7, 2, 1) == b"other\n"
        assert tail(7, 1, 2) is None and tail(7, 3, 1) is None, "it does not run here"
        manager.send({"t": "tail", "session": manager.session - 1, "ask": 6, "job": [7, 1, 1]})
        gate.open()
        manager.pump(lambda: len(manager.ended) >= 2 and (7, 1, 1) in manager.ended)
        assert tail(7, 1, 1) is None, "over: its files may be another's"
        gate.close()
    finally:
        manager.close()


def test_drain_and_bye(manager):
    lease(manager, (7, 1, 1), ["sleep", "0.3"])
    manager.send({"t": "drain"})
    manager.pump(lambda: manager.said_bye)
    assert manager.ended[(7, 1, 1)][3] == 0
    assert manager.process.wait(60) == 0
    assert not list(manager.output.glob("lane-*")), "scratch files were left behind"


def test_expired_ends_what_runs_and_exits(manager, tmp_path):
    lease(manager, (7, 1, 1), f"echo $$ > {tmp_path}/pid; sleep 60")
    pid = int(wait_for(tmp_path / "pid"))
    manager.hang_up()
    greet = manager.accept(welcome=False)
    manager.send({"t": "expired", "connect": greet["connect"], "reason": "given up"})
    manager.pump(lambda: manager.ended)
    assert manager.ended[(7, 1, 1)][5] == "killed"
    assert manager.process.wait(60) == 0
    assert not os.path.exists(f"/proc/{pid}")


def test_a_refused_runner_lets_its_jobs_end_and_spools_their_results(manager):
    lease(manager, (7, 1, 1), "sleep 0.5; echo x")
    manager.hang_up()
    manager.accept(welcome=False)
    manager.send({"t": "error", "code": "version", "message": "too old"})
    assert manager.process.wait(60) == REFUSED
    spooled = json.loads((manager.output / "unsent.json").read_text())
    assert [row[:6] for row in spooled["ended"]] == [[7, 1, 1, 0, None, None]]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT], ids=lambda n: n.name)
def test_a_signal_that_begins_to_end_the_allocation_ends_jobs_and_takes_no_more(manager, tmp_path, number):
    lease(manager, (7, 1, 1), f"echo $$ > {tmp_path}/pid; sleep 60", slots=1)
    lease(manager, (7, 2, 1), ["true"], slots=1)
    pid = int(wait_for(tmp_path / "pid"))
    manager.process.send_signal(number)
    manager.pump(lambda: manager.said_bye)
    assert manager.ended[(7, 1, 1)][4:6] == [15, "runner-stopped"]
    assert manager.ended[(7, 1, 1)][11] == f"its allocation is being ended ({number.name})"
    assert manager.disclaimed == {(7, 2, 1): "runner-stopped"}
    assert manager.process.wait(60) == 0 and not os.path.exists(f"/proc/{pid}")
    assert not (manager.output / "unsent.json").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGUSR2, signal.SIGXCPU], ids=lambda n: n.name)
def test_a_signal_to_all_processes_of_the_allocation_is_no_failure_of_its_jobs(manager, tmp_path, number):
    """LSF sends INT to every process of a job, jobs of ours first or last, and only then TERM and KILL."""
    lease(manager, (7, 1, 1), f"echo $$ > {tmp_path}/pid; exec sleep 60", slots=2)
    pid = int(wait_for(tmp_path / "pid"))
    os.kill(pid, number)
    manager.process.send_signal(number)
    manager.pump(lambda: manager.said_bye)
    assert manager.ended[(7, 1, 1)][5] == "runner-stopped" and number.name in manager.ended[(7, 1, 1)][11]


def test_another_signal_at_once_leaves_the_grace_and_a_later_one_does_not(manager, tmp_path):
    patient = f"trap 'echo yes > {tmp_path}/told' TERM; echo $$ > {tmp_path}/pid; while :; do sleep 0.05; done"
    lease(manager, (7, 1, 1), patient, slots=1, grace_s=600)
    pid = int(wait_for(tmp_path / "pid"))
    manager.process.send_signal(signal.SIGINT)
    manager.process.send_signal(signal.SIGTERM)
    wait_for(tmp_path / "told")
    time.sleep(1.2)  # an echo is one within a second
    assert os.path.exists(f"/proc/{pid}")
    manager.process.send_signal(signal.SIGTERM)
    manager.pump(lambda: manager.said_bye)
    assert manager.ended[(7, 1, 1)][4:6] == [9, "runner-stopped"]


def test_sigterm_without_a_manager_spools_and_the_next_runner_delivers(manager, tmp_path):
    lease(manager, (7, 1, 1), f"echo $$ > {tmp_path}/pid; sleep 60")
    wait_for(tmp_path / "pid")
    manager.hang_up(stop_listening=True)
    manager.process.send_signal(signal.SIGTERM)
    assert manager.process.wait(60) == 0
    spooled = json.loads((manager.output / "unsent.json").read_text())
    assert spooled["ended"][0][5] == "runner-stopped"
    manager.listen()
    manager.spawn()
    assert manager.accept()["held"] == [[7, 1, 1]]
    manager.pump(lambda: manager.ended)
    deadline = time.monotonic() + 60
    while (manager.output / "unsent.json").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_sigterm_with_a_silent_manager_spools_after_some_seconds(manager):
    manager.acking = False
    manager.run(["true"])
    manager.process.send_signal(signal.SIGTERM)
    assert manager.process.wait(60) == 0
    assert (manager.output / "unsent.json").stat().st_mode & 0o077 == 0


def test_a_runner_without_manager_and_work_leaves_after_its_linger(tmp_path):
    manager = FakeManager(tmp_path)
    try:
        manager.settings["linger_s"] = 1
        manager.accept()
        manager.hang_up(stop_listening=True)
        assert manager.process.wait(60) == 0
    finally:
        manager.close()


def test_touches_carry_what_is_held_and_measured(tmp_path):
    manager = FakeManager(tmp_path)
    try:
        manager.settings["touch_s"] = 0.3
        manager.accept()
        lease(manager, (7, 1, 1), ["sleep", "30"])
        manager.pump(lambda: any(touch.get("live") for touch in manager.touches))
        touch = next(touch for touch in manager.touches if touch.get("live"))
        assert touch["held"] == [[7, 1, 1]] and touch["got"] == 1 and touch["live"][0][:3] == [7, 1, 1]
        assert touch["live"][0][4] > 10_000
    finally:
        manager.close()


def test_a_slow_manager_does_not_keep_jobs_from_being_reaped(manager, tmp_path):
    """It stops reading while far more is reported than the socket can hold."""
    jobs = [["s", "q", 7, index, 1, ["no-such-command-" + "x" * 800], None] for index in range(1500)]
    jobs.append(["s", "q", 8, 1, 1, f"echo $$ > {tmp_path}/pid", None])
    manager.acking = False
    manager.lease(jobs, {"q": SPEC}, [["s", 2]])
    pid = int(wait_for(tmp_path / "pid"))
    deadline = time.monotonic() + 60
    while os.path.exists(f"/proc/{pid}"):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    manager.acking = True
    manager.pump(lambda: len(manager.ended) == 1501)


@pytest.mark.parametrize("version", ["3.8.18", "3.13.0"])
def test_other_pythons(tmp_path, version):
    python = Path.home() / ".pyenv" / "versions" / version / "bin" / "python3"
    if not python.exists():
        pytest.skip("no such Python here")
    manager = FakeManager(tmp_path, python=str(python))
    try:
        manager.accept()
        one, two = manager.run("echo $ROTA_JOB", "sleep 0.7")
        assert manager.stream(one) == b"7.1\n" and two[3] == 0
        lease(manager, (9, 1, 1), "sleep 30")
        manager.pump(lambda: (9, 1, 1) in manager.started)
        manager.send({"t": "kill", "session": manager.session, "jobs": [[9, 1, 1]], "grace_s": 1})
        manager.pump(lambda: (9, 1, 1) in manager.ended)
        assert manager.ended[(9, 1, 1)][5] == "killed"
    finally:
        manager.close()


def test_usage_errors(tmp_path):
    def run(*words):
        return subprocess.run([sys.executable, "-m", "rota.runner", *words], capture_output=True, text=True, timeout=60)

    assert run("--help").returncode == 0
    loose = tmp_path / "token"
    loose.write_text("secret")
    loose.chmod(0o644)
    for words in (
        [],
        ["--nonsense", "1"],
        ["--connect"],
        ["--connect", "ftp:x", "--output", "/tmp/x"],
        ["--connect", "tls:h:1", "--output", "x"],
        ["--connect", "unix:x", "--output", "x", "--cores", "two"],
        ["--connect", "tls:h:1", "--output", "x", "--ca", "x", "--token-file", str(loose)],
    ):
        done = run(*words)
        assert done.returncode == 2 and "usage" in done.stderr and "secret" not in done.stderr


def certificate(directory: Path) -> None:
    words = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=rota"
    words += " -keyout key.pem -out cert.pem"
    subprocess.run(["openssl", *words.split()], cwd=directory, check=True, capture_output=True)


@pytest.mark.skipif(
    not any((Path(d) / "openssl").exists() for d in os.get_exec_path()),
    reason="openssl is needed to make a certificate",
)
def test_tls_proves_the_token_and_no_job_can_see_it(tmp_path):
    import hashlib
    import hmac

    certificate(tmp_path)
    token = b"canary-5f2d"
    (tmp_path / "token").write_bytes(token + b"\n")
    (tmp_path / "token").chmod(0o600)
    listener = socket.create_server(("127.0.0.1", 0))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
    target = f"tls:127.0.0.1:{listener.getsockname()[1]}"
    arguments = (
        "--connect",
        target,
        "--ca",
        str(tmp_path / "cert.pem"),
        "--token-file",
        str(tmp_path / "token"),
        "--allocation",
        "a1",
    )
    manager = FakeManager(tmp_path, arguments=arguments)
    try:
        listener.settimeout(60)
        plain, _ = listener.accept()
        manager.connection = context.wrap_socket(plain, server_side=True)
        manager.send({"t": "challenge", "nonce": "abc123"})
        (greet,) = manager.read(60)
        fingerprint = hashlib.sha256(ssl.PEM_cert_to_DER_cert((tmp_path / "cert.pem").read_text())).hexdigest()
        assert greet["proof"] == hmac.new(token, f"abc123:{fingerprint}".encode(), hashlib.sha256).hexdigest()
        assert greet["allocation"] == "a1"
        manager.session, manager.clock = 1, greet["clock"]
        manager.send({"t": "welcome", "version": 1, "connect": 1, "session": 1, **manager.settings})
        (row,) = manager.run(
            "cat /proc/$PPID/cmdline /proc/$PPID/environ /proc/self/environ; ls -l /proc/self/fd", env=None
        )
        assert row[3] == 0 and token not in manager.stream(row) and b"socket:" not in manager.stream(row)
        big = "x" * 100_000
        (row,) = manager.run(f"echo {big} | wc -c")
        assert manager.stream(row) == b"100001\n"
        for path in tmp_path.rglob("*.log"):
            assert token not in path.read_bytes()
    finally:
        manager.close()
        listener.close()


@pytest.fixture
def with_launcher(tmp_path):
    if not any((Path(d) / "cc").exists() for d in os.get_exec_path()):
        pytest.skip("no compiler")
    found = FakeManager(tmp_path, arguments=("--launcher", str(tmp_path / "launcher")))
    try:
        found.accept()
        found.launcher()
        yield found
    finally:
        found.close()


def test_the_launcher_runs_the_jobs(with_launcher, tmp_path):
    manager = with_launcher
    launcher, gate = manager.launcher(), Gate(tmp_path / "gate")
    lease(manager, (9, 1, 1), f"echo $$ > {tmp_path}/pid; {gate.wait}")
    pid = int(wait_for(tmp_path / "pid"))
    assert pid in children(launcher)
    gate.open()
    manager.pump(lambda: (9, 1, 1) in manager.ended)
    rows = manager.run(*[["true"]] * 300)
    assert {tuple(row[3:6]) for row in rows} == {(0, None, None)}
    gate.close()
    assert max(row[9] for row in rows) < 8_000_000, "the runner's own size is the floor of its children's"


def test_the_slot_count_holds_with_a_launcher_that_has_jobs_ahead(with_launcher, tmp_path):
    manager = with_launcher
    script = f"echo + >> {tmp_path}/log; sleep 0.03; echo - >> {tmp_path}/log"
    manager.run(*[["true"]] * 50, slots=3)
    manager.run(*[script] * 60, slots=3)
    now = peak = 0
    for line in (tmp_path / "log").read_text().split():
        now += 1 if line == "+" else -1
        peak = max(peak, now)
    assert peak <= 3 and now == 0


def test_a_lease_stuck_in_the_launcher_can_be_recalled_and_killed(with_launcher, tmp_path):
    manager = with_launcher
    gate = Gate(tmp_path / "gate")
    manager.run(*[["true"]] * 50, slots=1)  # jobs are short: it is given some ahead
    jobs = [
        ["s", "z", 9, 1, 1, gate.wait, None],
        *[["s", "z", 9, index, 1, ["true"], None] for index in range(2, 8)],
    ]
    manager.lease(jobs, {"z": SPEC}, [["s", 1]])
    manager.send({"t": "kill", "session": manager.session, "jobs": [[9, 2, 1]], "grace_s": 1})
    time.sleep(0.4)
    manager.send({"t": "recall", "session": manager.session, "jobs": [[9, 3, 1], [9, 4, 1]]})
    manager.pump(lambda: len(manager.disclaimed) == 3)
    assert manager.disclaimed == {(9, 2, 1): "killed", (9, 3, 1): "recalled", (9, 4, 1): "recalled"}
    gate.open()
    manager.pump(lambda: all((9, index, 1) in manager.ended for index in (1, 5, 6, 7)))
    gate.close()


def test_the_launcher_dies_and_its_jobs_are_looked_after(with_launcher, tmp_path):
    manager = with_launcher
    launcher, gate = manager.launcher(), Gate(tmp_path / "gate")
    lease(manager, (9, 1, 1), f"echo $$ > {tmp_path}/pid; {gate.wait}; echo fine; exit 3")
    wait_for(tmp_path / "pid")
    manager.pump(lambda: (9, 1, 1) in manager.started)
    os.kill(launcher, signal.SIGKILL)
    gate.open()
    manager.pump(lambda: (9, 1, 1) in manager.ended)
    row = manager.ended[(9, 1, 1)]
    assert row[3:6] == [3, None, "exit"] and manager.stream(row) == b"fine\n"
    gate.close()
    (row,) = manager.run("echo more")
    assert manager.stream(row) == b"more\n"


def test_a_job_alone_among_short_ones_has_the_place_whoever_started_it(with_launcher, tmp_path):
    manager = with_launcher
    pid = manager.launcher()
    manager.run(*[["true"]] * 60, slots=1)  # on a machine that is not busy they are short: the next is the runner's own
    gate = tmp_path / "gate"
    waits = f"echo $PPID; while ! test -e {gate}; do sleep 0.05; done; date +%s.%N"
    for index in (1, 2, 3):  # one place: the others wait, in the runner or the launcher
        manager.lease([["s", "g", 9, index, 1, waits if index == 1 else "date +%s.%N", None]], {"g": SPEC}, [["s", 1]])
    manager.pump(lambda: (9, 1, 1) in manager.started)
    time.sleep(0.3)
    assert not any((9, index, 1) in {**manager.started, **manager.ended} for index in (2, 3))
    gate.touch()
    manager.pump(lambda: all((9, index, 1) in manager.ended for index in (1, 2, 3)))
    parent, end = manager.stream(manager.ended[9, 1, 1]).split()
    assert int(parent) in (manager.process.pid, pid)
    assert all(float(manager.stream(manager.ended[9, index, 1])) > float(end) for index in (2, 3))


def test_a_program_that_takes_long_to_load_holds_up_nobody_and_can_be_killed(with_launcher, tmp_path):
    manager = with_launcher
    manager.launcher()
    program = tmp_path / "slow"
    shutil.copy("/bin/true", program)
    before = signal.signal(signal.SIGIO, signal.SIG_IGN)  # what the kernel says to whom a lease is asked back from
    fd = os.open(program, os.O_RDONLY)
    try:
        try:
            fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)  # who opens it now has to wait
        except OSError as error:
            pytest.skip(f"no leases on files here: {error}")
        manager.lease([["s", "p", 9, 1, 1, [str(program)], None]], {"p": SPEC}, [["s", 2]])
        rows = manager.run(*[["true"]] * 20)
        assert all(row[3] == 0 for row in rows)
        manager.pump(lambda: (9, 1, 1) in manager.started)
        assert (9, 1, 1) not in manager.ended
        manager.send({"t": "kill", "session": manager.session, "jobs": [[9, 1, 1]], "grace_s": 0})
        manager.pump(lambda: (9, 1, 1) in manager.ended)
        assert manager.ended[9, 1, 1][5] == "killed"
    finally:
        os.close(fd)
        signal.signal(signal.SIGIO, before)


def test_the_launcher_dies_in_the_middle_of_many_short_jobs(with_launcher, tmp_path):
    manager = with_launcher
    pid = manager.launcher()
    manager.run(*[["true"]] * 50)
    jobs = [["s", "m", 9, index, 1, f"echo {index} >> {tmp_path}/runs", None] for index in range(400)]
    manager.lease(jobs, {"m": SPEC}, [["s", 2]])
    manager.pump(lambda: len(manager.ended) > 120)
    os.kill(pid, signal.SIGKILL)
    manager.pump(lambda: all((9, index, 1) in manager.ended for index in range(400)))
    runs = (tmp_path / "runs").read_text().split()
    assert len(runs) == len(set(runs)), "an attempt was started twice"
    unknown = [row for row in manager.ended.values() if row[5] == "start"]
    assert len(unknown) <= 2 and all("not known" in row[11] for row in unknown)  # as many as can run at one time
    assert all(row[3] == 0 for row in manager.ended.values() if row not in unknown)
    assert len(runs) >= 400 - len(unknown)


def test_starters_do_not_meet_in_their_directories_and_umasks(with_launcher, tmp_path):
    manager = with_launcher
    manager.run(*[["true"]] * 50)
    specs = {}
    for name, umask in (("one", 0o022), ("two", 0o077)):
        (tmp_path / name).mkdir()
        specs[name] = {**SPEC, "cwd": str(tmp_path / name), "umask": umask}
    names = ["one", "two"] * 150
    jobs = [["s", name, 9, index, 1, ["touch", str(index)], None] for index, name in enumerate(names)]
    manager.lease(jobs, specs, [["s", 2]])
    manager.pump(lambda: all((9, index, 1) in manager.ended for index in range(300)))
    assert all(manager.ended[9, index, 1][3] == 0 for index in range(300))
    for index, name in enumerate(names):
        mode = (tmp_path / name / str(index)).stat().st_mode & 0o777
        assert mode == (0o644 if name == "one" else 0o600)


def test_orphans_that_end_while_their_job_goes_on_do_not_count_as_left_by_it(with_launcher):
    manager = with_launcher
    launched = manager.launcher()
    manager.run(*[["true"]] * 50)
    command = "(true & true &); (sleep 0.2 &) ; sleep 0.6; exit 0"
    rows = manager.run(*[command] * 4)
    assert [(row[3], row[11]) for row in rows] == [(0, None)] * 4
    time.sleep(0.3)
    manager.run(["true"], ["true"])
    assert all(_state(pid) != "Z" for pid in children(launched)), "a zombie is kept"


def _state(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return ""


@pytest.mark.parametrize("in_memory", [True, False])
def test_what_a_launcher_wrote_down_is_believed_and_what_it_did_not_finish_is_not(monkeypatch, in_memory):
    if not in_memory:  # an old libc
        monkeypatch.delattr(os, "memfd_create")
    book = launcher.Book()
    try:
        memory = book._memory
        struct.pack_into("=I", memory, 0, 3)
        struct.pack_into("=I", memory, 4 * (2 + 7), 7)
        struct.pack_into("=I", memory, 4 * (2 + 9), 9 + launcher.MOST_STARTED)
        record = struct.Struct("=IIiiiIIIQQQQQdd")
        for at, (kind, number) in enumerate(((launcher.ENDED, 7), (0, 8), (launcher.STARTED, 9), (launcher.ENDED, 10))):
            record.pack_into(
                memory, 4 * (2 + launcher.MOST_STARTED) + at * record.size, kind, number, *[0] * 11, 0.0, 0.0
            )
        assert [row[1] for row in book.ended()] == [7]  # the fourth is beyond what it has to say
        assert book.has_started(7) and not book.has_started(8)
        assert book.has_started(9), "its place has a later one's id: it may have been"
    finally:
        book.close()


def test_a_launcher_that_cannot_be_compiled_or_run_is_done_without(tmp_path):
    bad = tmp_path / "launcher"
    bad.write_text("#!/bin/false\n")
    bad.chmod(0o755)
    manager = FakeManager(tmp_path, arguments=("--launcher", str(bad)))
    try:
        manager.accept()
        (row,) = manager.run("echo x")
        assert manager.stream(row) == b"x\n"
        time.sleep(0.3)
        (row,) = manager.run("echo y")
        assert manager.stream(row) == b"y\n"
    finally:
        manager.close()
