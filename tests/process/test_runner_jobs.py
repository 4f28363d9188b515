"""A real runner with real processes: how jobs start, what they see, what they leave, how they end."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, os.path.dirname(__file__))

from fake_manager import PATH, PROGRAM, SHORT_JOBS, SPEC, FakeManager

from rota.runner.devices import text_of

WAYS = ["none", "starters", "auto"] if shutil.which("cc") else ["none", "starters"]


@pytest.fixture(scope="module")
def launcher(tmp_path_factory):
    """A place for the compiled launcher that all tests share."""
    return tmp_path_factory.mktemp("launcher")


@pytest.fixture(params=WAYS)
def manager(request, tmp_path, launcher):
    way = str(launcher / "launcher") if request.param == "auto" else "none"
    program = SHORT_JOBS if request.param == "starters" else PROGRAM
    found = FakeManager(tmp_path, arguments=("--launcher", way), program=program)
    try:
        found.accept()
        if way != "none":
            found.launcher()
        yield found
    finally:
        found.close()


def outcome(row):
    return row[3], row[4], row[5]


def alive(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def gone(*pids: int, timeout_s: float = 30) -> bool:
    deadline = time.monotonic() + timeout_s
    while any(alive(pid) for pid in pids):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def wait_for(path: Path, timeout_s: float = 60) -> str:
    deadline = time.monotonic() + timeout_s
    while not path.exists() or not path.read_text().strip():
        assert time.monotonic() < deadline, f"{path} did not appear"
        time.sleep(0.02)
    return path.read_text()


def test_exit_codes_and_signals(manager):
    rows = manager.run(["true"], ["false"], "exit 42", "kill -TERM $$", "kill -9 $$")
    assert [outcome(row) for row in rows] == [
        (0, None, None),
        (1, None, "exit"),
        (42, None, "exit"),
        (None, 15, "signal"),
        (None, 9, "signal"),
    ]
    for row in rows:
        assert row[6] <= row[7] and row[8] >= 0 and row[9] > 0


def test_what_cannot_be_executed_says_why(manager, tmp_path):
    plain = tmp_path / "plain"
    plain.write_text("#!/bin/sh\n")
    orphan = tmp_path / "orphan"
    orphan.write_text("#!/no/such/interpreter\n")
    orphan.chmod(0o755)
    rows = manager.run(["no-such-command"], ["/no/such/path"], [str(plain)], [str(orphan)], [str(tmp_path)], [""], [])
    assert [outcome(row) for row in rows] == [
        (127, None, "not-found"),
        (127, None, "not-found"),
        (126, None, "not-executable"),
        (126, None, "not-executable"),
        (126, None, "not-executable"),
        (127, None, "not-found"),
        (None, None, "start"),
    ]
    assert rows[0][11] == f"no such command: no-such-command (looked in {PATH})"
    assert "interpreter" in rows[3][11] and "directory" in rows[4][11]


def test_a_script_without_shebang_is_run_by_sh(manager, tmp_path):
    script = tmp_path / "script"
    script.write_text("echo $1; exit 3\n")
    script.chmod(0o755)
    (row,) = manager.run([str(script), "a b"])
    assert outcome(row) == (3, None, "exit") and manager.stream(row) == b"a b\n"


def test_the_command_is_looked_up_in_the_jobs_own_path_each_time(manager, tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        tool = tmp_path / name / "mytool"
        tool.write_text(f"#!/bin/sh\necho {name}\n")
        tool.chmod(0o755)
    (first,) = manager.run(["mytool"], set={"PATH": f"{tmp_path}/one:{PATH}"})
    (second,) = manager.run(["mytool"], set={"PATH": f"{tmp_path}/two:{PATH}"})
    (third,) = manager.run(["mytool"])
    assert manager.stream(first) == b"one\n" and manager.stream(second) == b"two\n"
    assert outcome(third)[2] == "not-found"
    (tmp_path / "one" / "mytool").unlink()
    (fourth,) = manager.run(["mytool"], set={"PATH": f"{tmp_path}/one:{tmp_path}/two:{PATH}"})
    (fifth,) = manager.run(["mytool"], set={"PATH": f"{tmp_path}/one:{PATH}"})
    assert manager.stream(fourth) == b"two\n" and outcome(fifth)[2] == "not-found"


def test_directories(manager, tmp_path):
    (row,) = manager.run(["pwd"], cwd=str(tmp_path))
    assert manager.stream(row) == f"{tmp_path}\n".encode()
    (row,) = manager.run(["true"], cwd=str(tmp_path / "missing"))
    assert outcome(row) == (None, None, "cwd") and "missing" in row[11]
    again = tmp_path / "again"
    again.mkdir()
    manager.run(["true"], cwd=str(again))
    again.rmdir()
    again.mkdir()
    (row,) = manager.run("touch here", cwd=str(again))
    assert (again / "here").exists(), "it ran in the directory that was deleted"


def test_output_paths(manager, tmp_path):
    (row,) = manager.run("echo out; echo err >&2", cwd=str(tmp_path), stdout="o.txt", stderr="e.txt")
    assert row[10] is None
    assert (tmp_path / "o.txt").read_text() == "out\n" and (tmp_path / "e.txt").read_text() == "err\n"
    (row,) = manager.run("echo out; echo err >&2", cwd=str(tmp_path), stdout="both.txt", stderr="both.txt")
    assert (tmp_path / "both.txt").read_text() == "out\nerr\n"
    (row,) = manager.run("echo out; echo err >&2", stdout="/dev/null")
    assert row[10][:4] == ["", 0, 0, 0] and manager.stream(row, error=True) == b"err\n"
    (row,) = manager.run(["true"], stdout=str(tmp_path / "no" / "such" / "file"))
    assert outcome(row) == (None, None, "output") and "no/such/file" in row[11]
    (row,) = manager.run("echo x", stdout="/dev/full")
    assert outcome(row)[2] == "exit"


def test_input(manager, tmp_path):
    (tmp_path / "in").write_text("hello")
    one, two = manager.run(["cat"], "readlink /proc/self/fd/0")
    assert manager.stream(one) == b"" and manager.stream(two) == b"/dev/null\n"
    (row,) = manager.run(["cat"], cwd=str(tmp_path), stdin="in")
    assert manager.stream(row) == b"hello"
    (row,) = manager.run(["cat"], stdin=str(tmp_path / "missing"))
    assert outcome(row) == (None, None, "start") and "missing" in row[11]


def test_shell_commands_have_pipefail_and_setup(manager, tmp_path):
    (tmp_path / "setup.sh").write_text("export FROM_SETUP='a b'\n")
    one, two = manager.run("false | true", 'true | true; echo "$0 $#"')
    assert outcome(one) == (1, None, "exit") and outcome(two) == (0, None, None)
    (row,) = manager.run('echo "$FROM_SETUP"', setup=str(tmp_path / "setup.sh"))
    assert manager.stream(row) == b"a b\n"
    (row,) = manager.run(["printenv", "FROM_SETUP"], setup=str(tmp_path / "setup.sh"))
    assert manager.stream(row) == b"a b\n"
    (row,) = manager.run("echo never", setup=str(tmp_path / "none.sh"))
    assert outcome(row) == (1, None, "exit") and manager.stream(row) == b""
    (row,) = manager.run("false | true", shell="/bin/sh")
    assert outcome(row) == (0, None, None)


def environment(data: bytes) -> dict[bytes, bytes]:
    return dict(entry.split(b"=", 1) for entry in data.split(b"\0") if entry)


def test_the_environment_is_exactly_what_the_spec_says(manager):
    odd = "a=b:c\nd = \x01é"
    (row,) = manager.run(["env", "-0"], set={"ODD": odd, "EMPTY": ""}, cores=2500)
    found = environment(manager.stream(row))
    runner = manager.greets[0]["runner"].encode()
    index = str(row[1]).encode()
    assert found == {
        b"PATH": PATH.encode(),
        b"ODD": odd.encode(),
        b"EMPTY": b"",
        b"ROTA_JOB": b"7." + index,
        b"ROTA_BATCH": b"7",
        b"ROTA_INDEX": index,
        b"ROTA_ATTEMPT": b"1",
        b"ROTA_RUNNER": runner,
        b"ROTA_CORES": b"2",
        b"ROTA_WORKDIR": b"/tmp",
        b"ROTA_SUBMIT_DIR": b"/tmp",
    }
    (row,) = manager.run(["env", "-0"])
    assert b"ODD" not in environment(manager.stream(row)), "one job's variables reached another"
    (row,) = manager.run(["env", "-0"], env=None)
    assert environment(manager.stream(row))[b"PYTHONPATH"] == os.fsencode(manager.environ["PYTHONPATH"])


def test_what_a_job_has_of_its_own_is_there_once(manager):
    (row,) = manager.run(["env", "-0"], set={"ROTA_JOB": "9.9", "ROTA_ATTEMPT": "8"})
    words = [word for word in manager.stream(row).split(b"\0") if word.startswith((b"ROTA_JOB=", b"ROTA_ATTEMPT="))]
    assert sorted(words) == [b"ROTA_ATTEMPT=1", b"ROTA_JOB=7.%d" % row[1]]


def test_among_many_short_jobs_each_ends_as_it_does(manager, tmp_path):
    (tmp_path / "script").write_text("exit 5\n")  # without "#!": a shell runs it
    (tmp_path / "script").chmod(0o755)
    (tmp_path / "plain").write_text("")
    kinds = [
        (["true"], (0, None, None)),
        (["./nowhere"], (127, None, "not-found")),
        (["./script"], (5, None, "exit")),
        (["./plain"], (126, None, "not-executable")),
        ("kill -9 $$", (None, 9, "signal")),
        (["echo", "a"], (0, None, None)),
    ]
    rows = manager.run(*[command for command, _ in kinds] * 15, cwd=str(tmp_path))
    assert [outcome(row) for row in rows] == [expected for _, expected in kinds] * 15
    assert all(manager.stream(row) == b"a\n" for row in rows[5::6])


def test_array_variables(manager):
    (row,) = manager.run(["env", "-0"], array={"first": 1, "last": 99, "step": 2, "count": 50})
    found = environment(manager.stream(row))
    index = str(row[1]).encode()
    for name in (b"SLURM_ARRAY_TASK_ID", b"PBS_ARRAY_INDEX", b"LSB_JOBINDEX", b"SGE_TASK_ID"):
        assert found[name] == index
    assert found[b"SLURM_ARRAY_JOB_ID"] == b"7"
    limits = [found[b"SLURM_ARRAY_TASK_" + name] for name in (b"MIN", b"MAX", b"STEP", b"COUNT")]
    assert limits == [b"1", b"99", b"2", b"50"]


def test_extra_overrides_the_spec_for_one_job(manager, tmp_path):
    jobs = [
        ["s", "x", 8, 1, 1, "pwd; echo $A", {"cwd": str(tmp_path), "set": {"A": "1"}}],
        ["s", "x", 8, 2, 1, "pwd; echo $A", None],
        ["s", "x", 8, 3, 1, "pwd; echo $A", {"env": {"A": "3"}}],
    ]
    manager.lease(jobs, {"x": SPEC}, [["s", 2]])
    manager.pump(lambda: (8, 3, 1) in manager.ended and (8, 2, 1) in manager.ended and (8, 1, 1) in manager.ended)
    assert manager.stream(manager.ended[(8, 1, 1)]) == f"{tmp_path}\n1\n".encode()
    assert manager.stream(manager.ended[(8, 2, 1)]) == b"/tmp\n\n"
    assert manager.stream(manager.ended[(8, 3, 1)]) == b"/tmp\n3\n"


def test_a_job_inherits_three_descriptors_its_own_session_and_default_signals(manager):
    check = (
        "import os, signal\n"
        "print(sorted(int(n) for n in os.listdir('/proc/self/fd'))[:-1])\n"
        "print(os.getsid(0) == os.getpid(), os.getpgrp() == os.getpid())\n"
        "text = open('/proc/self/status').read()\n"
        "print([l.split()[1] for l in text.splitlines() if l.startswith(('SigBlk', 'SigIgn'))])\n"
    )
    # Python itself ignores SIGPIPE and SIGXFSZ, so ask a shell-free program for the signals.
    first, second = manager.run([sys.executable, "-c", check], ["grep", "-E", "^Sig(Blk|Ign)", "/proc/self/status"])
    lines = manager.stream(first).decode().splitlines()
    assert lines[:2] == ["[0, 1, 2]", "True True"]
    blocked, ignored = (int(line.split()[1], 16) for line in manager.stream(second).decode().splitlines())
    assert blocked == 0 and ignored & ~0x180000000 == 0  # 32 and 33 are glibc's own, set by its posix_spawn


def test_output_ranges_are_right_when_many_jobs_run_at_once(manager):
    commands = [f"for i in 1 2 3; do echo out-{n}-$i; echo err-{n}-$i >&2; sleep 0.01; done" for n in range(24)]
    commands += ["true"] * 6
    rows = manager.run(*commands, slots=6)
    for n, row in enumerate(rows[:24]):
        assert manager.stream(row) == b"".join(b"out-%d-%d\n" % (n, i) for i in (1, 2, 3))
        assert manager.stream(row, error=True) == b"".join(b"err-%d-%d\n" % (n, i) for i in (1, 2, 3))
    assert all(manager.stream(row) == b"" for row in rows[24:])
    assert len(list(manager.output.glob("*.seg"))) <= 2, "a file was made per job"


def test_a_job_that_truncates_its_output_harms_nobody_else(manager):
    first = manager.run("echo precious; echo too >&2", slots=1)[0]
    second = manager.run("echo a; echo b > /dev/stdout; echo c > /dev/stderr", slots=1)[0]
    third = manager.run("echo later", slots=1)[0]
    assert manager.stream(first) == b"precious\n" and manager.stream(first, error=True) == b"too\n"
    assert manager.stream(second, error=True) == b"c\n"
    assert manager.stream(third) == b"later\n"


def test_output_is_exact_for_any_bytes(manager):
    (row,) = manager.run([sys.executable, "-c", r"import os; os.write(1, b'a\r\nb\rc\x00\xff\r\n')"])
    assert manager.stream(row) == b"a\r\nb\rc\x00\xff\r\n"


def test_of_a_stream_beyond_its_cap_head_and_tail_are_kept_and_the_rest_is_counted(manager):
    (row,) = manager.run("printf 0123456789; printf abc >&2", cap=4)
    assert manager.stream(row) == b"01\n[rota: 6 bytes left out]\n89" and row[10][3] == 6
    assert manager.stream(row, error=True) == b"abc" and row[10][7] == 0
    (row,) = manager.run("echo first; head -c 3000000 /dev/zero; echo error; echo end >&2", cap=2_000_000)
    head, tail = manager.stream(row).split(b"\n[rota: 1000012 bytes left out]\n")
    assert len(head) == len(tail) == 1_000_000 and row[10][3] == 1_000_012
    assert head[:6] == b"first\n" and tail[-6:] == b"error\n"
    assert manager.stream(row, error=True) == b"end\n"
    (row,) = manager.run("head -c 3000000 /dev/zero | tr '\\0' x")
    assert manager.stream(row) == b"x" * 3_000_000
    (row,) = manager.run("echo next")
    assert manager.stream(row) == b"next\n"


def test_endless_output_does_not_fill_the_disk(manager, tmp_path):
    gate = tmp_path / "gate"
    command = f"echo first; head -c 100000000 /dev/zero; while [ ! -e {gate} ]; do sleep 0.05; done; echo last"
    key = (5, 1, 1)
    manager.lease([["s", "k", *key, command, None]], {"k": {**SPEC, "cap": 1000}}, [["s", 1]])
    manager.pump(lambda: 100_000_006 in sizes(manager) and taken(manager) < 40_000_000)
    gate.touch()
    manager.pump(lambda: key in manager.ended)
    row = manager.ended[key]
    head, tail = manager.stream(row).split(b"\n[rota: 99999011 bytes left out]\n")
    assert row[10][3] == 100_000_011 - 1000 and len(head) == len(tail) == 500
    assert head[:6] == b"first\n" and tail[-5:] == b"last\n"


def sizes(manager):
    return [path.stat().st_size for path in manager.output.glob("lane-*.out")]


def taken(manager):
    return sum(path.stat().st_blocks * 512 for path in manager.output.glob("lane-*.out"))


def test_what_survives_a_job_cannot_write_into_anothers_output(manager, tmp_path):
    survivor = f"(sleep 0.4; echo stray; echo stray >&2; echo $BASHPID > {tmp_path}/pid; sleep 30) & echo first"
    detached = f"setsid bash -c 'sleep 0.4; echo stray; echo $$ > {tmp_path}/pid2; sleep 30' & sleep 0.1; echo second"
    rows = manager.run(survivor, detached, slots=1, leftovers="keep")
    later = manager.run("sleep 0.8; echo third", "sleep 0.8; echo fourth", slots=1)
    assert [manager.stream(row) for row in rows + later] == [b"first\n", b"second\n", b"third\n", b"fourth\n"]
    assert all(manager.stream(row, error=True) == b"" for row in later)
    for name in ("pid", "pid2"):
        pid = int(wait_for(tmp_path / name))
        assert alive(pid), "a survivor is left alone if that was asked for"
        os.kill(pid, signal.SIGKILL)


STUBBORN = """
trap '' TERM
(trap '' TERM; while :; do sleep 0.2; done) & echo $! > {0}/child
setsid bash -c 'trap "" TERM; echo $$ > {0}/detached; while :; do sleep 0.2; done' &
(setsid bash -c 'trap "" TERM; echo $$ > {0}/orphan; while :; do sleep 0.2; done' &)
while :; do sleep 0.2; done
"""


def test_kill_ends_the_whole_tree_also_what_ignores_term_and_left_the_session(manager, tmp_path):
    key = (9, 1, 1)
    manager.lease([["s", "k", *key, STUBBORN.format(tmp_path), None]], {"k": SPEC}, [["s", 1]])
    pids = [int(wait_for(tmp_path / name)) for name in ("child", "detached", "orphan")]
    manager.pump(lambda: key in manager.started)
    begin = time.monotonic()
    order = {"t": "kill", "session": manager.session, "jobs": [list(key)], "grace_s": 0.7}
    manager.send(order)
    manager.send(order)
    manager.pump(lambda: key in manager.ended)
    assert time.monotonic() - begin > 0.6
    assert outcome(manager.ended[key]) == (None, 9, "killed")
    assert gone(*pids, timeout_s=0), "reported before everything was dead"


def test_kill_gives_a_job_time_to_end_well_and_tells_the_truth(manager, tmp_path):
    key = (9, 2, 1)
    script = f"trap 'echo bye; exit 0' TERM; echo up > {tmp_path}/up; while :; do sleep 0.05; done"
    manager.lease([["s", "k", *key, script, None]], {"k": SPEC}, [["s", 1]])
    wait_for(tmp_path / "up")
    manager.send({"t": "kill", "session": manager.session, "jobs": [list(key)], "grace_s": 60})
    manager.pump(lambda: key in manager.ended)
    assert outcome(manager.ended[key]) == (0, None, None)
    assert manager.stream(manager.ended[key]) == b"bye\n"


def test_the_time_limit(manager):
    one, two = manager.run("trap '' TERM; while :; do sleep 0.1; done", ["true"], time_s=3.5, grace_s=0.3)
    assert outcome(one) == (None, 9, "time") and "3.5" in one[11]
    assert outcome(two) == (0, None, None)


@pytest.fixture
def large():
    """Who starts the runner has been larger than its jobs."""
    assert len(b"x" * (300 << 20)) == 300 << 20


@pytest.mark.usefixtures("large")
def test_what_a_job_takes_after_we_last_looked_counts(manager):
    """A late spike is in the peak; and a small job that was sampled does not get the runner's own size."""
    spike = "import time; time.sleep(1.5); bytearray(200 << 20)"
    late, small = manager.run([sys.executable, "-c", spike], ["sleep", "1.5"])
    assert late[9] > 200 << 20 and small[9] < 8 << 20


def test_the_memory_limit_and_the_measured_peak(manager):
    eat = "x = bytearray({}); import time; time.sleep({})"
    hungry, modest = manager.run(
        [sys.executable, "-c", eat.format(200_000_000, 600)],
        [sys.executable, "-c", eat.format(50_000_000, 1.2)],
        memory=150_000_000,
    )
    assert outcome(hungry)[2] == "memory" and hungry[11].endswith("over its limit of 143M")
    assert outcome(modest) == (0, None, None)
    assert 150_000_000 < hungry[9] < 260_000_000 and 50_000_000 < modest[9] < 90_000_000


def test_a_job_killed_from_outside_is_not_called_out_of_memory(manager, tmp_path):
    key = (9, 3, 1)
    manager.lease([["s", "k", *key, f"echo $$ > {tmp_path}/pid; exec sleep 30", None]], {"k": SPEC}, [["s", 1]])
    os.kill(int(wait_for(tmp_path / "pid")), signal.SIGKILL)
    manager.pump(lambda: key in manager.ended)
    assert outcome(manager.ended[key]) == (None, 9, "signal")


def test_cpu_and_times_of_a_busy_job(manager):
    (row,) = manager.run(
        [sys.executable, "-c", "import time\nend = time.process_time() + 0.4\nwhile time.process_time() < end: pass"]
    )
    assert 0.35 < row[8] < 1.5 and 0.3 < row[7] - row[6] < 30


def test_an_orphan_of_a_job_that_still_runs_is_not_forgotten(manager, tmp_path):
    orphan, go = tmp_path / "orphan", tmp_path / "go"
    command = f"(setsid sleep 1000 & echo $! > {orphan}); until [ -e {go} ]; do sleep 0.01; done"
    manager.lease([["s", "n", 9, 1, 1, command, None]], {"n": SPEC}, [["s", 2]])
    pid = int(wait_for(orphan))
    manager.run(*[["true"]] * 6)  # whose ends make the runner look at what has come to it
    go.touch()
    manager.pump(lambda: (9, 1, 1) in manager.ended)
    assert manager.ended[9, 1, 1][11] == "ended 1 process that it left running"
    assert gone(pid)


def test_what_a_failed_job_left_running_is_ended_before_it_is_reported(manager, tmp_path):
    """It may be tried again at once: two copies of one job must not overlap."""
    key = (9, 4, 1)
    command = f"setsid sleep 60 & echo $! > {tmp_path}/child; echo $$ > {tmp_path}/pid; wait"
    manager.lease([["s", "k", *key, command, None]], {"k": {**SPEC, "grace_s": 5}}, [["s", 1]])
    child = int(wait_for(tmp_path / "child"))
    os.kill(int(wait_for(tmp_path / "pid")), signal.SIGKILL)
    manager.pump(lambda: key in manager.ended)
    assert outcome(manager.ended[key]) == (None, 9, "signal")
    assert not alive(child)


def test_files_are_made_with_the_submitters_umask(manager, tmp_path):
    (row,) = manager.run(f"umask; touch {tmp_path}/made", umask=0o027)
    assert manager.stream(row) == b"0027\n"
    assert (tmp_path / "made").stat().st_mode & 0o777 == 0o640


def test_a_job_that_asks_for_it_is_bound_to_cores_of_its_own(manager):
    own = sorted(os.sched_getaffinity(0))
    show = f"{sys.executable} -c 'import os; print(os.environ[\"ROTA_CORE_IDS\"], sorted(os.sched_getaffinity(0)))'"
    for _ in range(2):  # what the first had is free again
        (row,) = manager.run(show, bind="cores", cores=1000)
        assert manager.stream(row).decode() == f"{own[0]} [{own[0]}]\n"
    (row,) = manager.run(f"{sys.executable} -c 'import os; print(sorted(os.sched_getaffinity(0)))'")
    assert manager.stream(row).decode() == f"{own}\n", "others are not"
    (row,) = manager.run("echo ${ROTA_CORE_IDS-none}", bind="cores", cores=1000 * (len(own) + 1))
    assert manager.stream(row) == b"none\n" and "not bound" in row[11] and row[3] == 0


def test_a_strictly_bound_job_waits_on_its_node_and_a_killed_one_waits_no_longer(manager, tmp_path):
    own = sorted(os.sched_getaffinity(0))
    all_cores = {**SPEC, "bind": "compact!", "cores": 1000 * len(own)}
    first, wide, other = (9, 1, 1), (9, 2, 1), (9, 3, 1)
    hold = f"echo 1 >{tmp_path}/began; until [ -e {tmp_path}/go ]; do sleep 0.1; done"
    slots = [["s", 1], ["w", 1], ["v", 1]]
    manager.lease([["s", "k", *first, hold, None]], {"k": {**SPEC, "bind": "cores", "cores": 1000}}, slots)
    wait_for(tmp_path / "began")
    rows = [["w", "w", *wide, "echo $ROTA_CORE_IDS", None], ["v", "w", *other, "true", None]]
    manager.lease(rows, {"w": all_cores}, [])
    manager.send({"t": "kill", "session": manager.session, "jobs": [list(other)], "grace_s": 1})
    manager.pump(lambda: other in manager.disclaimed or other in manager.ended)
    assert wide not in manager.ended, "the cores that it asks for are not all free"
    (tmp_path / "go").touch()
    manager.pump(lambda: wide in manager.ended)
    assert manager.stream(manager.ended[wide]).decode() == text_of(own) + "\n"


def test_gpus_of_a_slot_are_told_by_their_device(tmp_path, launcher):
    show = "echo $ROTA_GPUS $CUDA_VISIBLE_DEVICES $ROCR_VISIBLE_DEVICES"
    for way in WAYS:
        directory = tmp_path / way
        directory.mkdir()
        manager = FakeManager(
            directory, arguments=("--gpus", "2", "--launcher", "none" if way == "none" else str(launcher / "launcher"))
        )
        try:
            assert manager.accept()["gpus"] == 2
            if way != "none":
                manager.launcher()
            slots = [["1:1000:0:0:1", 1], ["1:1000:0:0:0,1", 1], ["1:1000:0:0", 1]]
            jobs = [[slot, "9.0", 9, i, 1, show, None] for i, (slot, _) in enumerate(slots)]
            manager.lease(jobs, {"9.0": SPEC}, slots)
            manager.pump(lambda it=manager: all((9, i, 1) in it.ended for i in range(3)))
            said = [manager.stream(manager.ended[9, i, 1]) for i in range(3)]
            assert said == [b"1 1 1\n", b"0,1 0,1 0,1\n", b"\n"]
        finally:
            manager.close()
