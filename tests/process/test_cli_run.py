"""`rota run`, and managers that come and go."""

import json
import os
import pty
import re
import select
import signal
import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from cli_support import down, until

__all__ = ["down"]


def counted(rota, *words) -> dict[str, int]:
    return json.loads(rota.out("status", "--json", *words))["counts"]


def test_run_with_a_manager_of_its_own_leaves_nothing_behind(rota):
    done = rota("run", "--array", "1-20", "--", "echo {index}")
    assert re.match(r"batch 1: 20 COMPLETED in [0-9.]+s, ", done.stdout) and done.stderr == ""
    assert rota.nothing_runs() and not (rota.home / "last-run").exists()


def test_run_uses_the_manager_that_is_up(rota):
    rota("up")
    rota("run", "--", "true")
    assert "serving" in rota.out("ping")


def test_run_sums_up_failures_and_exits_with_1(rota):
    done = rota(
        "run", "--name", "three", "--values", "0,1,2", "--", "echo out {}; echo problem {} >&2; exit {}", code=1
    )
    lines = done.stdout.splitlines()
    assert lines[0].startswith("batch 1 (three): 1 COMPLETED, 2 FAILED in ")
    assert "  1.2 FAILED (exit 1): echo out 1; echo problem 1 >&2; exit 1" in lines
    assert "      | problem 2" in lines
    assert any("rota retry 1 :unsuccessful" in line for line in lines)
    answer = json.loads(rota("run", "--json", "--", "exit 3", code=1).stdout)
    assert answer["counts"] == {"FAILED": 1} and answer["failures"][0]["exit_code"] == 3 and answer["elapsed_s"] > 0
    quiet = rota("run", "-q", "--", "true")
    assert quiet.stdout == quiet.stderr == ""


def test_show_prints_what_the_jobs_print(rota):
    done = rota(
        "run", "--show=ordered", "--array", "1-6", "--", "sleep 0.$((6 - {index})); echo out {index}; echo err >&2"
    )
    assert done.stdout == "".join(f"out {number}\n" for number in range(1, 7))
    assert done.stderr.count("err\n") == 6 and "6 COMPLETED" in done.stderr
    done = rota("run", "--show", "--values", "0.3,0", "--", "sleep {}; echo {}")
    assert sorted(done.stdout.split()) == ["0", "0.3"]


def test_at_most_n_cores_at_once(rota):
    command = 'test -z "$(ls on.* 2>/dev/null)" || exit 9; touch on.$$; sleep 0.05; rm on.$$; echo >> now'
    rota("run", "-j", "1", "--array", "1-8", "--", command)
    assert (rota.cwd / "now").read_text().count("\n") == 8


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_can_be_resumed(rota, number):
    waits = "[ {index} -le 2 ] || until [ -e quick ]; do sleep 0.1; done; echo {index} >> done"
    running = rota.start("run", "--array", "1-60", "--", waits)
    until(lambda: (rota.cwd / "done").exists() and counted(rota).get("COMPLETED") == 2 and counted(rota).get("RUNNING"))
    os.kill(running.pid, number)
    out, err = running.communicate(timeout=60)
    assert running.returncode == 128 + number and out == "" and "Traceback" not in err
    held = int(re.search(r"interrupted; ([0-9]+) jobs? of batch 1 held", err)[1])
    assert "rota run --resume 1" in err and held == 58
    assert rota.nothing_runs()
    ended = (rota.cwd / "done").read_text().split()
    assert sorted(ended) == ["1", "2"]
    (rota.cwd / "quick").touch()
    done = rota("run", "--resume")
    assert "60 COMPLETED" in done.stdout
    after = (rota.cwd / "done").read_text().split()
    assert sorted(map(int, after)) == list(range(1, 61)), "every job ran to its end once"
    assert "no interrupted run" in rota("run", "--resume", code=2).stderr


def test_interrupting_a_run_of_a_manager_that_is_up_holds_only_that_batch(rota):
    rota("up")
    other = rota.out("add", "--", "sleep", "600").strip()
    running = rota.start("run", "--array", "1-4", "--", "sleep", "600")
    until(lambda: counted(rota, other) == {"RUNNING": 1} and counted(rota).get("RUNNING", 0) >= 2)
    os.kill(running.pid, signal.SIGINT)
    running.communicate(timeout=60)
    counts = {row["id"]: row["counts"] for row in json.loads(rota.out("status", "--json"))["batches"]}
    assert counts[int(other)] == {"RUNNING": 1}
    mine = counts[int(other) + 1]
    until(lambda: json.loads(rota.out("status", int(other) + 1, "--json"))["counts"] == {"HOLDING": 4})
    assert sum(mine.values()) == 4


def test_a_run_that_cannot_go_on_says_why(rota):
    rota("up")
    rota("pause")
    running = rota.start("run", "--", "true")
    try:
        until(lambda: select.select([running.stderr], [], [], 0)[0])
        assert "the manager is paused" in running.stderr.readline()
        rota("resume")
        out, _ = running.communicate(timeout=60)
        assert "1 COMPLETED" in out and running.returncode == 0
    finally:
        running.kill()


def test_a_run_survives_a_manager_that_is_restarted(rota):
    rota("up")
    running = rota.start("run", "--array", "1-10", "--", "sleep", "0.3")
    until(lambda: json.loads(rota.out("status", "--json"))["counts"].get("RUNNING"))
    rota("down")
    rota("up")
    out, err = running.communicate(timeout=60)
    assert running.returncode == 0 and "10 COMPLETED" in out, err


def on_terminal(rota, *words, keys=b"", after=0.0):
    """Run a command on a terminal; its exit status and what it wrote there."""
    pid, fd = pty.fork()
    if pid == 0:
        os.chdir(rota.cwd)
        environ = {**rota.environ, "TERM": "xterm"}
        environ.pop("NO_COLOR")
        os.execve(sys.executable, rota.argv(*words), environ)
    out, begin = b"", time.monotonic()
    while time.monotonic() - begin < 120:
        if keys and time.monotonic() - begin > after:
            os.write(fd, keys)
            keys = b""
        if select.select([fd], [], [], 0.05)[0]:
            try:
                data = os.read(fd, 65_536)
            except OSError:
                break
            if not data:
                break
            out += data
    os.close(fd)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), out.decode(errors="replace")


def test_progress_on_a_terminal(rota):
    code, text = on_terminal(rota, "run", "--array", "1-6", "--", "sleep 0.3; test {index} != 3")
    assert code == 1 and "running" in text and "1 failed" in text and "\x1b[" in text
    assert "5 COMPLETED, 1 FAILED" in text


def test_watch_on_a_terminal(rota):
    rota("up")
    rota("add", "--name", "seen", "--array", "1-4", "--", "sleep", "0.3")
    code, text = on_terminal(rota, "watch")
    assert code == 0 and "seen" in text and "100%" in text


def test_no_manager_is_exit_3(rota):
    for command in (["status"], ["jobs"], ["wait"], ["ping"], ["kill", "1"], ["log", "1.1"], ["down"], ["sites"]):
        done = rota(*command, code=3)
        assert "no rota manager runs" in done.stderr and "rota up" in done.stderr and done.stdout == ""


def test_add_starts_a_manager_and_says_so(rota):
    done = rota("add", "--", "true")
    assert done.stdout == "1\n"
    assert re.fullmatch(rf"rota: started a manager on \S+ \(pid [0-9]+\), home {rota.home}\n", done.stderr)
    rota("wait")
    assert rota.out("down") == "the manager has stopped\n"
    assert rota("ping", code=3)


def test_a_dry_run_or_a_bad_line_starts_no_manager(rota):
    rota("add", "--dry-run", "--", "true")
    rota("add", "-f", "-", input="{bad\n", code=2)
    rota("run", "--dry-run", "--", "true")
    assert not rota.home.exists()


def test_drain_lets_running_jobs_end_and_stops(rota):
    rota("add", "--array", "1-3", "-c", "2", "--", "until [ -e go ]; do sleep 0.05; done; echo {index} >> done")
    until(lambda: json.loads(rota.out("status", "--json"))["counts"].get("RUNNING"))
    assert json.loads(rota.out("drain", "--json"))["state"] == "draining"
    assert rota("add", "--", "true", code=5).stderr.startswith("rota: the manager is draining")
    (rota.cwd / "go").touch()
    assert rota.nothing_runs()
    assert len((rota.cwd / "done").read_text().split()) == 1
    rota("up")
    assert rota.out("wait") == "3 COMPLETED\n"


def test_up_in_the_foreground(rota):
    manager = rota.start("up", "--foreground")
    try:
        until(lambda: rota("ping", code=None).returncode == 0)
        rota("down")
        assert manager.wait(60) == 0
    finally:
        manager.kill()
        manager.communicate()


def test_down_kill_ends_running_jobs(rota):
    rota("add", "--", f"sleep 61 & echo $! > {rota.cwd}/pid; wait")
    until(lambda: (rota.cwd / "pid").exists() and (rota.cwd / "pid").read_text().strip())
    until(lambda: counted(rota) == {"RUNNING": 1})
    assert (
        rota.out("down", "--kill")
        == "the manager has stopped (1 job was running, and was ended: the next manager runs it again)\n"
    )
    pid = int((rota.cwd / "pid").read_text())
    until(lambda: not Path(f"/proc/{pid}").exists())


def test_doctor_without_a_manager_leaves_the_home_alone(rota):
    answer = json.loads(rota.out("doctor", "--json"))
    assert answer["ok"] is True and any("temporary home" in row["text"] for row in answer["checks"])
    assert not rota.home.exists()


def test_doctor_finds_a_home_that_others_can_enter(rota):
    rota.home.mkdir(mode=0o755)
    os.chmod(rota.home, 0o755)
    answer = json.loads(rota("doctor", "--json", "--no-job", code=1).stdout)
    assert any(row["status"] == "fail" and "chmod 700" in row["text"] for row in answer["checks"])
