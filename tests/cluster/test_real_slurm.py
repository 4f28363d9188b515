"""The private Slurm does what drivers are tested on: every kind of end, and every blow to the cluster."""

import signal
import subprocess

import pytest

from rota.drivers.dialect import Answer, Options
from rota.drivers.slurm import Slurm

HOG = "exec /usr/bin/python3 -c 'import time; x = bytearray(300 << 20); time.sleep(30)'"


def states(rows):
    return sorted({row[1].split()[0] for row in rows})


def test_array_and_exit_codes(slurm, tmp_path):
    tmp_path.chmod(0o777)
    job = slurm.sbatch(f'touch {tmp_path}/$SLURM_ARRAY_TASK_ID; [ "$SLURM_ARRAY_TASK_ID" != 3 ]', "--array=0-9")
    assert slurm.wait_over(job) == {"COMPLETED", "FAILED"}
    rows = slurm.sacct(job, until=lambda rows: len(rows) == 10 and states(rows) == ["COMPLETED", "FAILED"])
    assert {row[0]: row[2] for row in rows if row[1] == "FAILED"} == {f"{job}_3": "1:0"}
    assert {path.name for path in tmp_path.iterdir()} == {str(number) for number in range(10)}

    seven, killed = slurm.sbatch("exit 7"), slurm.sbatch("kill -9 $$")
    assert (slurm.wait_over(seven), slurm.wait_over(killed)) == ({"FAILED"}, {"FAILED"})
    assert (slurm.show(seven)["ExitCode"], slurm.show(killed)["ExitCode"]) == ("7:0", "0:9")


def test_memory_limit(slurm):
    if not slurm.has_oom:
        pytest.skip("no control groups v1 to limit memory with")
    hog = slurm.sbatch(HOG, "--mem=60")
    assert slurm.wait_over(hog) == {"OUT_OF_MEMORY"}
    assert slurm.show(hog)["ExitCode"] == "0:125"


def test_cancelled_by_a_third_party(slurm):
    running, pending = slurm.sbatch("sleep 300"), slurm.sbatch("true", "--hold")
    slurm.wait_state(running, "RUNNING")
    assert slurm.state(pending) == "PENDING"
    slurm.cancel(running, pending)
    assert (slurm.wait_over(running), slurm.wait_over(pending)) == ({"CANCELLED"}, {"CANCELLED"})
    told = slurm.sacct(running, until=lambda rows: rows and rows[0][1] not in ("PENDING", "RUNNING"))
    assert told[0][1] == "CANCELLED by 0"


def test_suspended_and_resumed(slurm):
    job = slurm.sbatch("sleep 8")
    slurm.wait_state(job, "RUNNING")
    slurm.suspend(job)
    assert slurm.state(job) == "SUSPENDED"
    slurm.resume(job)
    assert slurm.wait_over(job) == {"COMPLETED"}


def test_time_limit_and_node_that_dies_and_comes_back(slurm):
    """In one test, since each takes the controller half a minute to see."""
    node = slurm.nodes[1]
    slow = slurm.sbatch("sleep 300", "--time=0:30", f"--nodelist={slurm.nodes[0]}")
    stays = slurm.sbatch("sleep 300", "--no-requeue", f"--nodelist={node}")
    again = slurm.sbatch("sleep 300", "--requeue", f"--nodelist={node}")
    for job in (slow, stays, again):
        slurm.wait_state(job, "RUNNING")
    assert slurm.show(slow)["TimeLimit"] == "00:01:00"  # Slurm counts in minutes
    slurm.end_time(slow, 1)
    slurm.kill_node(node)
    assert not slurm.processes(node)
    assert slurm.wait_state(stays, "NODE_FAIL", seconds=150) == "NODE_FAIL"
    slurm.wait_state(again, "PENDING")
    assert slurm.show(again)["Restarts"] == "1"
    slurm.start_node(node)
    slurm.wait_state(again, "RUNNING", seconds=150)
    assert slurm.wait_over(slow, 150) == {"TIMEOUT"}
    assert slurm.show(slow)["ExitCode"] == "0:15"


def test_node_declared_down(slurm):
    node = slurm.nodes[2]
    job = slurm.sbatch("sleep 300", "--no-requeue", f"--nodelist={node}")
    slurm.wait_state(job, "RUNNING")
    slurm.declare_node_down(node)
    assert slurm.wait_state(job, "NODE_FAIL") == "NODE_FAIL"
    slurm.wait_nodes("idle", node=node)


def test_requeued(slurm):
    job = slurm.sbatch("sleep 300", "--requeue")
    slurm.wait_state(job, "RUNNING")
    slurm.requeue(job)
    slurm.wait_state(job, "PENDING")
    slurm.wait_state(job, "RUNNING")
    assert slurm.show(job)["Restarts"] == "1"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_controller_restarts_under_a_running_job(slurm, number):
    job = slurm.sbatch("sleep 8")
    slurm.wait_state(job, "RUNNING")
    slurm.stop_controller(number)
    if number == signal.SIGTERM:  # it takes nine seconds to say so
        assert slurm.run("squeue", check=False, timeout=30).returncode == 1
    slurm.start_controller()
    assert slurm.wait_over(job) == {"COMPLETED"}


def test_hung_controller_answers_nothing(slurm):
    slurm.hang_controller()
    try:
        with pytest.raises(subprocess.TimeoutExpired):
            slurm.run("squeue", timeout=2)
    finally:
        slurm.unhang_controller()
    assert slurm.run("squeue").returncode == 0


def test_finished_jobs_are_purged(slurm):
    job = slurm.sbatch("true")
    slurm.wait_over(job)
    slurm.set_min_job_age(2)
    try:
        slurm.wait_purged(job)
    finally:
        slurm.set_min_job_age(300)
    assert slurm.sacct(job, until=lambda rows: states(rows) == ["COMPLETED"]), "the accounting still knows it"


def test_rejections_and_another_user(slurm):
    done = slurm.run("sbatch", "-p", "nosuch", "--wrap", "true", check=False)
    assert (done.returncode, done.stderr.splitlines()[-1]) == (
        1,
        "sbatch: error: Batch job submission failed: Invalid partition name specified",
    )
    done = slurm.run("sbatch", "-A", "nosuch", "--wrap", "true", check=False)
    assert "Invalid account or account/partition combination" in done.stderr
    words = ("setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups", "sbatch", "--parsable", "-D/")
    job = slurm.run(*words, "-o/dev/null", "--mem=50", "--wrap", "id -un | grep -qx nobody").stdout.strip()
    assert slurm.wait_over(job) == {"COMPLETED"}


def test_jobs_beside_ours_do_not_spoil_what_is_read(slurm):
    """Parts of a heterogeneous job, a name of two lines, one cut in a letter, a list of elements that is cut."""

    def asked(command):
        done = slurm.run(*command.argv, check=False, errors="replace")
        return Answer(done.returncode, done.stdout, done.stderr)

    plain = ("--parsable", "--hold", "-D", "/tmp", "-n1", "--mem=10")
    wrap = ("--wrap", "true")
    parts = slurm.run("sbatch", *plain, ":", "-n1", "--mem=10", *wrap).stdout.strip()
    others = [slurm.run("sbatch", *plain, "-J", name, *wrap).stdout.strip() for name in ("two\nlines", "x" + 60 * "é")]
    places = [number * number for number in range(25)]
    numbers = ",".join(map(str, places))
    ours = slurm.run("sbatch", *plain, f"--array={numbers}", "-J", "x-0123456789ab", *wrap).stdout.strip()
    user = slurm.run("id", "-un").stdout.strip()
    dialect = Slurm()
    listing = dialect.read_listing(asked(dialect.listing(user)), Options())
    wanted = {f"{parts}+0", f"{parts}+1", *others, *(f"{ours}_{place}" for place in places)}
    assert (listing.result, wanted - {seen.native_id for seen in listing.seen}) == ("ok", set())
    slurm.sacct(ours, until=lambda rows: rows and "[" in rows[0][0])  # at first it is no array there
    slurm.cancel(parts, *others, ours)
    slurm.sacct(ours, until=lambda rows: rows and all(row[1].startswith("CANCELLED") for row in rows))
    history = dialect.read_history(asked(dialect.history([f"{ours}_0"])[0]), Options())
    assert (history.result, {seen.kind for seen in history.seen}) == ("ok", {"aborted"})
    assert f"{ours}_{places[15]}" in {seen.native_id for seen in history.seen}
