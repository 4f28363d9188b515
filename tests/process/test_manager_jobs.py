"""What a user asks of jobs, end to end: arrays, values, dependencies, retries, hold, kill, limits."""

import os
import signal
import time
from pathlib import Path

from process.support_home import Home, home
from process.support_witness import command

__all__ = ["home"]


def stamps(directory: Path) -> list[tuple[float, float]]:
    """(start, end) of every execution that a witness saw end."""
    out = []
    for path in directory.glob("*[0-9]"):
        times = {line.split()[0]: float(line.split()[4]) for line in path.read_text().splitlines()}
        if "end" in times:
            out.append((times["start"], times["end"]))
    return out


def most_at_once(spans: list[tuple[float, float]]) -> int:
    """The largest number of executions that overlap."""
    moments = sorted([(start, 1) for start, _ in spans] + [(end, -1) for _, end in spans])
    most = now = 0
    for _, step in moments:
        now += step
        most = max(most, now)
    return most


def test_array(home: Home) -> None:
    """The index is the number given; the variables of other systems are there; %N at most N at once."""
    home.config("[site.local]\ncores = 8\n")
    place = home.work / "w"
    place.mkdir()
    show = "echo $ROTA_INDEX $SLURM_ARRAY_TASK_ID $PBS_ARRAY_INDEX $LSB_JOBINDEX $SGE_TASK_ID $SLURM_ARRAY_TASK_MIN " \
        "$SLURM_ARRAY_TASK_MAX $SLURM_ARRAY_TASK_STEP $SLURM_ARRAY_TASK_COUNT $SLURM_ARRAY_JOB_ID {index}"  # fmt: skip
    batch = home.add("--array", "3-21:3%2", "--", command(str(place), f"sleep 0.15; {show}"))
    home.rota("wait", batch)
    rows = home.rows("jobs", batch)
    assert [row["id"] for row in rows] == [f"{batch}.{index}" for index in range(3, 22, 3)]
    assert home.rota("log", f"{batch}.9").stdout.split() == ["9"] * 5 + ["3", "21", "3", "7", batch, "9"]
    spans = stamps(place)
    assert len(spans) == 7
    assert most_at_once(spans) <= 2


def test_values_and_parameters(home: Home) -> None:
    """One job per value or combination; quoted where a shell reads them, untouched where none does."""
    nasty = "a b;$(touch pwned)'\"*"
    values = home.work / "values"
    values.write_text(f"{nasty}\nplain\n")
    shell = home.add("--values-from", str(values), "--", "printf '%s\\n' {} | cat")
    direct = home.add("--values-from", str(values), "--", "printf", "%s\n", "{}")
    grid = home.add("--param", "k=3,5", "--param", "s=x,y,z", "--", "echo", "{k}-{s}", "${s}")
    zipped = home.add("--param", "k=3,5", "--param", "s=x,y", "--zip", "--", "echo", "{k}-{s}")
    assert home.settled() == {"COMPLETED": 2 + 2 + 6 + 2}
    for batch in (shell, direct):
        assert home.rota("log", f"{batch}.1").stdout == f"{nasty}\n"
        assert home.job(f"{batch}.2")["values"] == ["plain"]
    assert {home.rota("log", f"{grid}.{n}").stdout for n in range(1, 7)} == {
        f"{k}-{s} ${{s}}\n" for k in (3, 5) for s in "xyz"
    }
    assert [home.rota("log", f"{zipped}.{n}").stdout for n in (1, 2)] == ["3-x\n", "5-y\n"]
    assert not (home.work / "pwned").exists()


def test_dependencies(home: Home) -> None:
    """success, any, failure; what can never run is OMITTED with the reason; a retry opens it again."""
    flag = home.work / "flag"
    bad = home.add("--name", "bad", "--", f"test -e {flag}")
    good = home.add("--", "sleep 0.3")
    after_good = home.add("--after", good, "--", "true")
    after_bad = home.add("--after", "@bad", "--", "true")
    chain = home.add("--after", after_bad, "--", "true")
    anyway = home.add("--after-any", bad, "--", "true")
    cleanup = home.add("--after-failure", bad, "--", "true")
    never = home.add("--after-failure", good, "--", "true")
    home.settled()
    states = {row["id"].split(".")[0]: row["state"] for row in home.rows("jobs")}
    assert states == {
        bad: "FAILED", good: "COMPLETED", after_good: "COMPLETED", after_bad: "OMITTED", chain: "OMITTED",
        anyway: "COMPLETED", cleanup: "COMPLETED", never: "OMITTED",
    }  # fmt: skip
    assert "bad" in home.json("explain", f"{after_bad}.1")["reason"]
    assert after_bad in home.json("explain", f"{chain}.1")["reason"]
    assert home.job(f"{after_good}.1")["started"] >= home.job(f"{good}.1")["ended"]
    flag.write_text("")
    assert home.json("retry", "@bad")["jobs"] == 1
    home.settled()
    states = {row["id"].split(".")[0]: row["state"] for row in home.rows("jobs")}
    assert (states[bad], states[after_bad], states[chain]) == ("COMPLETED", "COMPLETED", "COMPLETED")
    assert home.job(f"{bad}.1")["attempt"] == 2
    assert [row["state"] for row in home.rows("history", bad)] == ["COMPLETED", "FAILED"]


def test_retries(home: Home) -> None:
    """Tried again after a back-off, as often as asked; every attempt and its output is kept."""
    home.config("backoff_first = '5s'\nbackoff_jitter = '0s'\n")
    batch = home.add("--retries", "2", "--", "echo attempt $ROTA_ATTEMPT; test $ROTA_ATTEMPT = 2")
    hopeless = home.add("--retries", "1", "--", "exit 7")
    home.until(lambda: "tried again in" in home.ask("explain", job=f"{batch}.1")["reason"])
    assert home.rota("wait", batch).returncode == 0
    home.rota("wait", hopeless, code=1)
    assert (home.job(f"{batch}.1")["attempt"], home.job(f"{hopeless}.1")["attempt"]) == (2, 2)
    assert home.job(f"{hopeless}.1")["exit_code"] == 7
    assert "no retries are left" in home.json("explain", f"{hopeless}.1")["reason"]
    assert home.rota("log", f"{batch}.1", "--attempt", "1").stdout == "attempt 1\n"
    assert home.rota("log", f"{batch}.1").stdout == "attempt 2\n"


def test_hold_release_kill(home: Home) -> None:
    """Held jobs do not start; --stop ends what runs without counting it; kill ends, truth wins."""
    home.config("[site.local]\ncores = 2\n")
    batch = home.add("--array", "1-4", "--", "test $ROTA_ATTEMPT -gt 1 || sleep 60")
    home.until(lambda: home.counts(batch).get("RUNNING") == 2)
    said = home.json("hold", batch)
    assert said["jobs"] == 2
    assert "--stop" in said["skipped"][0]["reason"]
    assert home.json("hold", batch, "--stop")["jobs"] == 2
    home.until(lambda: home.counts(batch) == {"HOLDING": 4})
    assert "release" in home.json("explain", f"{batch}.1")["reason"]
    home.kill_manager()
    home.rota("up")
    assert home.counts(batch) == {"HOLDING": 4}
    assert home.json("release", f"{batch}.1-2")["jobs"] == 2
    home.until(lambda: home.counts(batch) == {"HOLDING": 2, "COMPLETED": 2})
    assert {row["state"] for row in home.rows("history", batch) if row["attempt"] == 1} == {"RETRIED"}
    answer = home.json("kill", batch)
    assert (answer["jobs"], answer["ending"]) == (2, 0)
    assert home.settled() == {"COMPLETED": 2, "ABORTED": 2}
    assert "before it ran" in home.json("explain", f"{batch}.3")["reason"]
    truth = home.add("--grace", "60s", "--", "trap 'exit 0' TERM; touch up; while :; do sleep 0.1; done")
    home.until((home.work / "up").exists)
    home.until(lambda: home.counts(truth).get("RUNNING"))
    waiting = home.add("--after", truth, "--", "true")
    assert home.rota("kill", truth, waiting).stdout == "1 job killed, 1 job is being ended\n"
    assert home.settled(truth) == {"COMPLETED": 1}, "a killed attempt that ended with 0 has ended with 0"


def test_named_limit_and_priority(home: Home) -> None:
    """A limit is shared by batches; the higher priority goes first."""
    home.config("[site.local]\ncores = 8\n")
    place = home.work / "w"
    place.mkdir()
    home.rota("up")
    home.rota("pause")
    home.add("--limit", "db:2", "--array", "1-4", "--", command(str(place), "sleep 0.2"))
    home.add("--limit", "db", "--array", "11-14", "-p", "9", "--", command(str(place), "sleep 0.2"))
    home.rota("resume")
    assert home.settled() == {"COMPLETED": 8}
    assert most_at_once(stamps(place)) <= 2
    started = sorted(home.rows("jobs"), key=lambda row: row["started"])
    assert {row["batch"] for row in started[:4]} == {2}


def test_cores_are_never_overcommitted(home: Home) -> None:
    """Jobs of different sizes on four cores: the sum of what runs is never above four."""
    home.config("[site.local]\ncores = 4\n")
    place = home.work / "w"
    place.mkdir()
    sizes = {}
    home.rota("up")
    home.rota("pause")
    for number, cores in enumerate((1, 2, 3, 4)):
        first = number * 10 + 1
        home.add("--cores", str(cores), "--array", f"{first}-{first + 4}", "--", command(str(place), "sleep 0.1"))
        sizes |= dict.fromkeys(range(first, first + 5), cores)
    home.rota("resume")
    assert home.settled() == {"COMPLETED": 20}
    moments = []
    for path in place.glob("*[0-9]"):
        times = {line.split()[0]: float(line.split()[4]) for line in path.read_text().splitlines()}
        moments += [(times["start"], sizes[int(path.name)]), (times["end"], -sizes[int(path.name)])]
    used = most = 0
    for _, change in sorted(moments):
        used += change
        most = max(most, used)
    assert most == 4


def test_remove_and_wait(home: Home) -> None:
    """Removed jobs are gone; `wait` tells by its exit status what happened."""
    batch = home.add("--", "false")
    home.rota("wait", batch, code=1)
    sleeper = home.add("--", "sleep 60")
    home.rota("wait", sleeper, "--timeout", "1", code=4)
    assert home.json("remove", batch)["jobs"] == 1
    assert home.rota("jobs", batch, code=None).returncode in (0, 2)
    assert "kill it first" in home.json("remove", sleeper)["skipped"][0]["reason"]
    home.rota("kill", sleeper)
    home.settled()
    home.kill_manager()
    home.rota("up")
    assert home.counts() == {"ABORTED": 1}


def test_what_runs_can_be_watched(home: Home) -> None:
    """The output so far, and after a touch the memory and CPU time, of a job that still runs; the rest follows."""
    home.config("touch = '1s'\nmissing_after = '10s'\n")
    gate = home.gate()
    script = f"echo one; python3 -c 'x = bytearray(60 << 20); open(\"{gate.path}\")'; echo two"
    home.add("--", script)
    home.until(lambda: home.rota("log", "1.1").stdout == "one\n")
    row = home.until(lambda: ((row := home.job("1.1"))["peak_memory_bytes"] or 0) > 60 << 20 and row)
    assert row["state"] == "RUNNING"
    assert row["wall_s"] > 0
    gate.open()
    assert home.rota("log", "--follow", "1.1").stdout == "one\ntwo\n"
    assert home.counts() == {"COMPLETED": 1}


def test_when_a_job_started_is_known_after_a_restart_and_when_it_is_lost(home: Home) -> None:
    home.config("touch = '10m'\nmissing_after = '40m'\n")
    home.add("--retries", "1", "--", "sleep 300")
    before = home.until(lambda: (row := home.job("1.1"))["started"] and row)
    (pid,) = home.runners()
    time.sleep(4)  # so that it was measured, of which nobody hears
    home.kill_manager()
    home.rota("up")
    after = home.until(lambda: (row := home.job("1.1"))["started"] and row, what="told without waiting for a touch")
    assert after["started"] == before["started"] and after["wall_s"] > 1 and after["peak_memory_bytes"]
    os.kill(pid, signal.SIGKILL)
    (attempt,) = home.until(lambda: home.rows("history", "1"))
    assert (attempt["state"], attempt["started"]) == ("LOST", before["started"])
    assert attempt["wall_s"] > 1 and attempt["peak_memory_bytes"] == after["peak_memory_bytes"]
    home.rota("kill", "1")


def test_a_neighbours_output_is_never_shown(home: Home) -> None:
    """Scratch files are used again at once: while a job ends, nobody reads the next one's output in its place."""
    home.config("[site.local]\ncores = 1\n")
    home.add("--array", "1-6", "--", "for i in 1 2 3 4; do echo mine {index}; sleep 0.05; done")
    while home.counts().get("COMPLETED") != 6:
        for index in range(1, 7):
            text = home.rota("log", f"1.{index}").stdout
            assert set(text.split("\n")) <= {f"mine {index}", ""}, text


def test_limits_are_listed_set_and_removed_at_once(home: Home) -> None:
    home.add("--limit", "db:1", "--array", "1-2000", "--cores", "0.1", "--", "sleep 0.2")
    home.until(lambda: home.counts().get("COMPLETED", 0) >= 1)
    (row,) = home.json("limit")["limits"]
    assert {name: value for name, value in row.items() if value is not None} == {"name": "db", "count": 1, "used": 1}
    assert home.json("limit", "db:3")["limits"][0]["count"] == 3
    home.until(lambda: home.json("limit")["limits"][0]["used"] == 3)
    home.kill_manager()
    home.rota("up")
    assert home.json("limit")["limits"][0]["count"] == 3, "limits outlive the manager"
    assert home.json("limit", "--remove", "db")["limits"][0]["count"] is None
    home.until(lambda: sum(home.counts().get(state, 0) for state in ("STARTING", "RUNNING")) > 3)
    for bad in (["db:-1"], ["db"], ["db:x"], ["9:3"], ["--remove", "nosuch"]):
        assert home.rota("limit", *bad, code=2).stderr.startswith("rota: ")
    home.rota("kill", "--all")
    home.settled()


def test_status_says_what_a_batch_in_back_off_waits_for(home: Home) -> None:
    home.add("--retries", "1", "--values", "a,b", "--", "test {} = a")
    home.until(lambda: home.counts() == {"COMPLETED": 1, "WAITING": 1})
    (why,) = home.json("status")["why"]
    assert "tried again in" in why["reason"]
    assert "tried again in" in home.json("explain", "1.2")["reason"]
    home.rota("kill", "1")


def test_a_run_that_keeps_failing_is_held_and_can_be_resumed(home: Home) -> None:
    done = home.rota("run", "--max-failures", "5%", "--array", "1-100", "--", "test -e fixed", code=1)
    assert "HOLDING" in done.stdout
    assert "rota run --resume 1 goes on" in done.stderr
    home.rota("up")
    assert "of its jobs failed and none succeeded" in home.json("explain", "1.100")["reason"]
    (home.work / "fixed").touch()
    failed = home.counts("1")["FAILED"]
    home.rota("run", "--resume", "1", code=1)
    assert home.counts("1") == {"COMPLETED": 100 - failed, "FAILED": failed}


def test_rules_on_what_is_tried_again(home: Home) -> None:
    home.config("backoff_first = '1s'\nbackoff_jitter = '0s'\n")
    home.add("--retries", "1", "--retry-on", "75,time", "--values", "75,3", "--", "exit {}")
    home.settled()
    assert [row["attempt"] for row in home.rows("jobs", "1")] == [2, 1]
    assert "neither an exit code" in home.rota("add", "--retry-on", "never", "--", "true", code=2).stderr
    assert "max failures" in home.rota("add", "--max-failures", "-3", "--", "true", code=2).stderr
