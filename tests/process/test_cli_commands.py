"""Every command against a real manager."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from cli_support import rota_home, until


@pytest.fixture(scope="module")
def rota():
    """One manager for all tests of this file: each test looks only at its own batches."""
    with rota_home() as rota:
        rota("up")
        yield rota


def add(rota, *words, **options):
    return rota.out("add", *words, **options).strip()


def batches(rota) -> list[int]:
    return [row["id"] for row in json.loads(rota.out("status", "--json"))["batches"]]


def test_add_prints_the_batch_id_alone(rota):
    done = rota("add", "--", "true")
    assert re.fullmatch(r"[0-9]+\n", done.stdout) and done.stderr == ""


def test_add_json(rota):
    answer = json.loads(rota.out("add", "--json", "--array", "1-600", "--", "true"))
    assert set(answer) == {"batch", "jobs", "duplicates"} and answer["jobs"] == 600 and answer["duplicates"] == 0
    rota("wait", answer["batch"])


def test_a_job_from_add_to_log(rota):
    batch = add(rota, "--name", "hello", "--", "echo", "$HOME", "{index}")
    assert rota.out("wait", batch) == "1 COMPLETED\n"
    assert rota.out("log", f"{batch}.1") == "$HOME 1\n"
    row = json.loads(rota.out("jobs", batch, "--json"))
    fixed = ["id", "state", "attempt", "exit_code", "signal", "reason", "site", "host", "native_id", "command"]
    fixed += ["values", "cwd", "stdout", "stderr", "wall_s", "cpu_s", "peak_memory_bytes", "started", "ended"]
    assert list(row)[: len(fixed)] == fixed
    assert row["id"] == f"{batch}.1" and row["state"] == "COMPLETED" and row["exit_code"] == 0
    assert row["cwd"] == str(rota.cwd) and row["name"] == "hello" and row["attempt"] == 1


def test_one_word_may_need_a_shell_and_several_never_do(rota):
    one = add(rota, "--", "echo a | tr a b")
    several = add(rota, "--", "echo", "a | tr a b")
    rota("wait", one, several)
    assert rota.out("log", f"{one}.1") == "b\n"
    assert rota.out("log", f"{several}.1") == "a | tr a b\n"


def test_lines_values_params_and_arrays(rota):
    (rota.cwd / "commands").write_text('# first\necho one\n\n{"command": ["echo", "t w o"], "env": {"X": "1"}}\n')
    (rota.cwd / "names").write_text("u\nv\n")
    file = add(rota, "-f", "commands")
    pipe = add(rota, "-f", "-", input="echo piped\n")
    values = add(rota, "--values", "a b,c", "--", "echo {}")
    params = add(rota, "--param", "x=1,2", "--param", "y@names", "--", "echo {x}{y}")
    paired = add(rota, "--zip", "--param", "x=1,2", "--param", "y@names", "--", "echo {x}{y}")
    array = add(rota, "--array", "3-9:3%2", "--", "echo {index}")
    rota("wait", file, pipe, values, params, paired, array)

    def printed(batch):
        ids = rota.out("jobs", batch, "--fields", "id").split()
        return {job.partition(".")[2]: rota.out("log", job).strip() for job in ids}

    assert printed(file) == {"1": "one", "2": "t w o"}
    assert printed(pipe) == {"1": "piped"}
    assert printed(values) == {"1": "a b", "2": "c"}
    assert printed(params) == {"1": "1u", "2": "1v", "3": "2u", "4": "2v"}
    assert printed(paired) == {"1": "1u", "2": "2v"}
    assert printed(array) == {"3": "3", "6": "6", "9": "9"}


def test_many_distinct_lines_are_staged(rota):
    text = "".join(f"echo {number}\n" for number in range(30_000))
    answer = json.loads(rota.out("add", "--json", "--not-before", "+1h", "-f", "-", input=text))
    assert answer["jobs"] == 30_000
    last = json.loads(rota.out("jobs", f"{answer['batch']}.30000", "--json"))
    assert last["command"] == "echo 29999" and last["state"] == "WAITING"
    assert len(rota.out("jobs", answer["batch"], "--fields", "id").split()) == 30_000
    assert (
        rota.out("jobs", answer["batch"], "--newest", "-n", "1", "--fields", "id").strip() == f"{answer['batch']}.30000"
    )
    rota("kill", answer["batch"])


def test_a_bad_line_adds_nothing(rota):
    before = batches(rota)
    done = rota("add", "-f", "-", input='echo a\n{"command": "x", "oops": 1}\n', code=2)
    assert done.stdout == "" and "line 2: unknown field 'oops'" in done.stderr and done.stderr.count("\n") == 1
    assert batches(rota) == before


def test_dry_run_shows_and_adds_nothing(rota):
    before = batches(rota)
    text = rota.out("add", "--dry-run", "--array", "1-100", "-c", "2", "--mem", "4G", "--", "./x", "{index}")
    assert (
        "100 jobs would be added" in text
        and "2 cores, 4G memory" in text
        and "  10: ./x 10\n" in text
        and "90 more" in text
    )
    shown = json.loads(rota.out("add", "--dry-run", "--json", "--values", "a", "--", "echo {}"))
    assert shown["jobs"] == 1 and shown["first"] == [{"index": 1, "command": "echo a"}]
    assert batches(rota) == before


def test_status_counts(rota):
    batch = add(rota, "--name", "counted", "--values", "0,1,2", "--", "exit {}")
    assert rota("wait", batch, code=1).stdout == "1 COMPLETED, 2 FAILED\n"
    answer = json.loads(rota.out("status", batch, "--json"))
    assert answer["counts"] == {"COMPLETED": 1, "FAILED": 2}
    (row,) = answer["batches"]
    assert (row["id"], row["name"], row["jobs"], row["counts"]) == (
        int(batch),
        "counted",
        3,
        {"COMPLETED": 1, "FAILED": 2},
    )
    head, line = rota.out("status", batch).splitlines()
    assert head.split() == ["BATCH", "NAME", "JOBS", "COMPLETED", "FAILED", "WHY"] and line.split()[:5] == [
        batch,
        "counted",
        "3",
        "1",
        "2",
    ]
    assert json.loads(rota.out("status", "@counted", ":failed", "--json"))["counts"] == {"FAILED": 2}
    assert json.loads(rota.out("status", "--json", ":failed", batch))["counts"] == {"FAILED": 2}


def test_wait_says_when_the_time_is_up(rota):
    batch = add(rota, "--", "sleep", "60")
    assert rota("wait", batch, "--timeout", "0.2", code=4).stdout == ""
    assert json.loads(rota("wait", batch, "--timeout", "1s", "--json", code=4).stdout)["settled"] is False
    rota("kill", batch)
    assert rota("wait", batch, code=1).stdout == "1 ABORTED\n"


def test_log_streams_attempts_and_bytes(rota):
    batch = add(rota, "--", "printf '\\377\\000x'; echo err >&2")
    rota("wait", batch)
    assert rota("log", f"{batch}.1", text=False).stdout == b"\xff\x00x"
    assert rota.out("log", f"{batch}.1", "--stderr") == "err\n"
    both = rota("log", f"{batch}.1", "--both", text=False)
    assert (both.stdout, both.stderr) == (b"\xff\x00x", b"err\n")
    shown = json.loads(rota.out("log", f"{batch}.1", "--both", "--json"))
    assert shown["stderr"]["text"] == "err\n" and shown["stdout"]["text"] == "\ufffd\0x"
    assert "no attempt 7" in rota("log", f"{batch}.1", "--attempt", "7", code=2).stderr
    assert "no job" in rota("log", f"{batch}.2", code=2).stderr


def test_log_follow_ends_with_the_job(rota):
    batch = add(rota, "--", "echo a; sleep 0.5; echo b")
    assert rota.out("log", "-f", f"{batch}.1") == "a\nb\n"


def test_log_follow_waits_for_a_job_that_has_yet_to_start(rota):
    rota("pause")
    batch = add(rota, "--", "echo a")
    assert rota.out("log", f"{batch}.1") == ""
    words = [sys.executable, "-m", "rota", "log", "-f", f"{batch}.1"]
    with subprocess.Popen(words, env=rota.environ, stdout=subprocess.PIPE, text=True) as follower:
        with pytest.raises(subprocess.TimeoutExpired):
            follower.wait(2)
        rota("resume")
        assert follower.communicate(timeout=60)[0] == "a\n"


def test_log_of_a_stream_beyond_its_cap_has_its_end(rota):
    batch = add(rota, "--output-cap", "4B", "--", "printf 0123456789; until [ -e gate ]; do sleep 0.05; done; echo end")
    following = rota.start("log", "-f", f"{batch}.1")
    assert following.stdout.read(10) == "0123456789"
    (rota.cwd / "gate").touch()
    out, err = following.communicate(timeout=60)
    assert out == "\n[rota: 10 bytes left out]\nd\n"
    assert err == "rota: 10 bytes in the middle of stdout were not kept (--output-cap)\n"
    assert rota.out("log", f"{batch}.1") == "01\n[rota: 10 bytes left out]\nd\n"


def test_output_to_files(rota):
    batch = add(rota, "--array", "1-2", "-o", "out.{index}", "-e", "/dev/null", "--", "echo {index}; echo x >&2")
    rota("wait", batch)
    assert (rota.cwd / "out.2").read_text() == "2\n"
    assert rota.out("log", f"{batch}.2") == "2\n"


def test_explain_says_why(rota):
    batch = add(rota, "--after", add(rota, "--", "sleep", "600"), "--", "true")
    answer = json.loads(rota.out("explain", f"{batch}.1", "--json"))
    assert answer["job"] == f"{batch}.1" and answer["state"] == "WAITING" and answer["reason"]
    assert answer["verdicts"] == []
    assert rota.out("explain", f"{batch}.1").startswith(f"{batch}.1 is WAITING: ")
    rota("kill", batch, int(batch) - 1)


def test_retry_history_and_changes(rota):
    flag = rota.cwd / "flag"
    batch = add(rota, "--", f"test -e {flag}")
    rota("wait", batch, code=1)
    flag.touch()
    assert "1 job would be concerned" in rota.out("retry", batch, "--dry-run")
    assert rota.out("retry", batch) == "1 job will run again\n"
    rota("wait", batch)
    rows = [json.loads(line) for line in rota.out("history", batch, "--json").splitlines()]
    assert [(row["attempt"], row["state"], row["exit_code"]) for row in rows] == [(2, "COMPLETED", 0), (1, "FAILED", 1)]
    assert len(rota.out("history", f"{batch}.1").splitlines()) == 3
    assert json.loads(rota.out("remove", batch, "--json"))["jobs"] == 1
    assert rota("jobs", batch, code=None).stdout in ("", "no jobs\n")


def test_hold_and_release(rota):
    batch = add(rota, "--not-before", "+1h", "--", "true")
    assert rota.out("hold", batch) == "1 job held\n"
    assert json.loads(rota.out("status", batch, "--json"))["counts"] == {"HOLDING": 1}
    assert rota.out("release", batch) == "1 job released\n"
    rota("kill", batch)


@pytest.mark.parametrize("command", ["retry", "kill", "hold", "release", "remove"])
def test_changes_refuse_an_empty_selector(rota, command):
    done = rota(command, code=2)
    assert "--all" in done.stderr and done.stdout == ""
    assert "would be concerned" in rota.out(command, "--all", "--dry-run")


def test_environment_reaches_the_job(rota):
    environ = {**rota.environ, "WORTH": "1", "MY_TOKEN": "secret", "SLURM_JOB_ID": "9"}
    batch = add(rota, "--env", "GIVEN=a b", "--env", "MY_TOKEN", "--", "env", env=environ)
    rota("wait", batch)
    seen = dict(line.partition("=")[::2] for line in rota.out("log", f"{batch}.1").splitlines())
    assert seen["WORTH"] == "1" and seen["GIVEN"] == "a b" and seen["MY_TOKEN"] == "secret"
    assert "SLURM_JOB_ID" not in seen and "ROTA_HOME" not in seen
    left_out = rota("add", "-v", "--", "true", env=environ).stderr
    assert "MY_TOKEN" in left_out and "SLURM_JOB_ID" in left_out and "WORTH" not in left_out


def test_pause_resume_and_ping(rota):
    assert "paused" in rota.out("pause")
    assert json.loads(rota.out("ping", "--json"))["state"] == "paused"
    assert "serving" in rota.out("resume")
    assert "serving" in rota.out("ping")


@pytest.mark.parametrize("command", ["sites", "runners", "allocations"])
def test_places(rota, command):
    rota("wait", add(rota, "--", "true"))
    rows = lambda: json.loads(rota.out(command, "--json"))[command]  # noqa: E731
    assert isinstance(rows()[0], dict)
    until(lambda: len(rota.out(command).splitlines()) == len(rows()) + 1)


def test_up_twice_is_no_error(rota):
    assert "already up" in rota.out("up")
    assert json.loads(rota.out("up", "--json"))["started"] is False


def test_doctor_is_content(rota):
    answer = json.loads(rota.out("doctor", "--json"))
    assert answer["ok"] is True
    assert [row["name"] for row in answer["checks"] if row["status"] == "ok"].count("job") == 1
    assert "@rota-doctor" not in rota.out("status")


def test_watch_without_a_terminal_prints_changes(rota):
    batch = add(rota, "--", "sleep", "0.3")
    assert rota.out("watch", batch).splitlines()[-1].endswith("1 COMPLETED")
    assert json.loads(rota.out("watch", batch, "--json").splitlines()[-1])["counts"] == {"COMPLETED": 1}


def test_a_closed_pipe_is_quiet(rota):
    add(rota, "--not-before", "+1h", "--name", "piped", "--array", "1-20000", "--", "echo", "x" * 100)
    line = f"{sys.executable} -m rota jobs @piped | head -1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", line], env=rota.environ, capture_output=True, text=True, timeout=60)
    assert done.stderr == "" and done.stdout.splitlines()[1] == "141"
    rota("kill", "@piped")


def test_completion_asks_the_manager(rota):
    add(rota, "--name", "finished", "--", "true")
    assert "finished" in rota.out("__complete", "bash", "rota status @fin").split()
    assert "@finished" in rota.out("__complete", "zsh", "status", "@fin").split()


def test_errors_are_short_and_have_their_codes(rota):
    for words, text in [
        (("jobs", ":nonsense"), "':nonsense' is not a state"),
        (("status", "999999"), "there is no batch 999999"),
        (("add", "--cwd", "/nowhere", "--", "true"), "does not exist"),
        (("add", "-t", "90", "--", "true"), "has no unit"),
        (("add",), "nothing to run"),
        (("explain", "1.x"), "'1.x' selects nothing"),
        (("jobs", "--fields", "nonsense"), "the fields are id, state"),
    ]:
        done = rota(*words, code=2)
        assert text in done.stderr and "Traceback" not in done.stderr and done.stderr.startswith("rota: "), (
            words,
            done.stderr,
        )
        assert done.stderr.count("\n") <= 2 and done.stdout == ""


def test_debug_shows_where(rota):
    done = rota("jobs", ":nonsense", code=None, env={**rota.environ, "ROTA_DEBUG": "1"})
    assert "Traceback" in done.stderr and done.returncode != 0


def test_interrupted_wait_ends_with_130(rota):
    import signal

    batch = add(rota, "--", "sleep", "60")
    waiting = rota.start("wait", batch)
    entries = lambda: os.scandir(f"/proc/{waiting.pid}/fd")  # noqa: E731
    until(lambda: any("socket:" in os.readlink(entry) for entry in entries() if entry.is_symlink()))
    until(lambda: json.loads(rota.out("status", batch, "--json"))["counts"].get("RUNNING"))
    os.kill(waiting.pid, signal.SIGINT)
    out, err = waiting.communicate(timeout=60)
    assert waiting.returncode == 130 and out == "" and "Traceback" not in err
    rota("kill", batch)
