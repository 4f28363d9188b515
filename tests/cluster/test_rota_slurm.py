"""rota on a real Slurm, in both modes: nothing is lost, nothing runs twice, and every end has its reason."""

import time

import pytest

from cluster.private import wait_for
from cluster.rota_home import (
    a_rota,
    all_submitted,
    allocations,
    attempts,
    becomes,
    begun,
    gated,
    native,
    open_gate,
    verdict,
    witnessed,
)

NODES = 4
SLOTS = 16


@pytest.fixture
def home(slurm):
    """A rota of the test's own."""
    with a_rota(slurm, "slurm", SLOTS) as made:
        made.began = time.time()
        yield made


def submitted(slurm, home):
    """Tag → native jobs that carry it, of all that this home has ever submitted."""
    tags = {row["tag"] for row in home.ask("allocations")["allocations"]}
    since = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(home.began - 2))
    words = ("sacct", "-n", "-P", "-X", "-D", "-S", since, "-o", "JobID,JobName")

    def ask():
        found = {tag: set() for tag in tags}
        for line in slurm.run(*words).stdout.splitlines():
            job, _, name = line.partition("|")
            if (tag := name.rpartition("-")[2]) in found:
                found[tag].add(job.partition("_")[0])
        return all(found.values()) and found

    return wait_for("the accounting", ask, step=0.5)


def listed(slurm):
    """What is in the queue."""
    return slurm.run("squeue", "-h", "-r", "-o", "%i %T %r", check=False).stdout.splitlines()


def empty(slurm, seconds=150.0):
    """Wait until nothing is in the queue."""
    wait_for(f"an empty queue ({listed(slurm)})", lambda: not listed(slurm), seconds, 0.2)


def test_500_jobs_through_runners(slurm, home):
    batch = home.add("--on", "hpc", "--array", "1-500", "--", witnessed(home, "echo $SLURMD_NODENAME $SLURM_JOB_ID"))
    odd = home.add("--on", "hpc", "--array", "1-6", "--", "echo $ROTA_INDEX; echo err >&2; exit $ROTA_INDEX")
    assert home.settled(batch, seconds=400) == {"COMPLETED": 500}
    assert home.settled(odd) == {"FAILED": 6}
    found = verdict(home, batch)
    assert (found.executions, found.attempts) == (500, 500)
    rows = home.rows("jobs", odd)
    assert [(row["exit_code"], row["reason"]) for row in rows] == [(code, "exit") for code in range(1, 7)]
    log = home.rota("log", "--both", f"{odd}.4")
    assert (log.stdout, log.stderr) == ("4\n", "err\n")
    assert {row["host"] for row in home.rows("jobs", batch)} == set(slurm.nodes)
    node, job = home.rota("log", f"{batch}.250").stdout.split()
    assert node == home.job(f"{batch}.250")["host"] and job.isdigit()
    assert len(submitted(slurm, home)) <= 12, "runners come as arrays"
    empty(slurm)
    home.until(lambda: not allocations(home, "hpc"), what="all runners have left")


def test_200_direct_jobs(slurm, home):
    batch = home.add("--on", "one", "--name", "big", "--array", "1-200", "--", witnessed(home, "echo $SLURMD_NODENAME"))
    odd = home.add("--on", "one", "--array", "1-4", "--", "echo $ROTA_INDEX; echo err >&2; exit $ROTA_INDEX")
    assert home.settled(batch, seconds=400) == {"COMPLETED": 200}
    assert home.settled(odd) == {"FAILED": 4}
    found = verdict(home, batch)
    assert (found.executions, found.attempts) == (200, 200)
    assert [(row["exit_code"], row["reason"]) for row in home.rows("jobs", odd)] == [(n, "exit") for n in range(1, 5)]
    log = home.rota("log", "--both", f"{odd}.3")
    assert (log.stdout, log.stderr) == ("3\n", "err\n")
    assert {row["host"] for row in home.rows("jobs", batch)} <= set(slurm.nodes)
    assert home.rota("log", f"{batch}.77").stdout.split() == [home.job(f"{batch}.77")["host"]]
    assert len(submitted(slurm, home)) == 2, "one array for each batch"
    (site,) = [row for row in home.json("sites")["sites"] if row["name"] == "one"]
    assert (site["state"], site["why"]) == ("ok", None)


def test_manager_killed_in_the_middle(slurm, home):
    """In both modes: jobs go on, are found again, and none is submitted or run a second time."""
    work = witnessed(home, "sleep 0.5")
    batches = [home.add("--on", "hpc", "--array", "1-60", "--", work),
               home.add("--on", "one", "--array", "101-130", "--", work)]  # fmt: skip
    for part in (1, 30, 60):
        # One that the cluster never got is looked for a minute: that is tried in virtual time, tests/sim.
        home.until(lambda part=part: begun(home) >= part and (part > 1 or all_submitted(home)), 150, f"{part} began")
        home.kill_manager()
        time.sleep(1)
        home.rota("up")
    assert home.settled(seconds=400) == {"COMPLETED": 90}
    found = verdict(home, *batches)
    assert found.executions == 90
    assert {len(jobs) for jobs in submitted(slurm, home).values()} == {1}, "a tag was submitted twice"
    empty(slurm)


def test_ends_of_direct_jobs(slurm, home):
    """Each with its own reason, all at once."""
    one = ("--on", "one")
    names = {
        "time": home.add(*one, "--time", "2s", "--enforce", "time", "--grace", "1s", "--", "sleep 300"),
        "cancelled": home.add(*one, "--", "sleep 300"),
        "suspended": home.add(*one, "--", witnessed(home, gated(home))),
        "killed": home.add(*one, "--", "sleep 300"),
    }
    if slurm.has_oom:
        hog = "exec python3 -c 'import time; x = bytearray(300 << 20); time.sleep(30)'"
        names["oom"] = home.add(*one, "--memory", "50M", "--enforce", "time", "--", hog)
    names = {key: f"{batch}.1" for key, batch in names.items()}
    slurm.suspend(native(home, names["suspended"]))
    slurm.cancel(native(home, names["cancelled"]))
    native(home, names["killed"])
    home.rota("kill", names["killed"])
    assert becomes(home, names["killed"], "ABORTED")["reason"] == "killed"
    row = becomes(home, names["cancelled"], "FAILED")
    assert (row["reason"], row["attempt"]) == ("cancelled", 1)
    assert becomes(home, names["time"], "FAILED")["reason"] == "time"
    if slurm.has_oom:
        assert becomes(home, names["oom"], "FAILED")["reason"] == "oom"
    assert home.job(names["suspended"])["state"] == "RUNNING"
    open_gate(home)
    slurm.resume(home.job(names["suspended"])["native_id"])
    becomes(home, names["suspended"], "COMPLETED")
    assert verdict(home, names["suspended"]).executions == 1
    empty(slurm)


def test_direct_jobs_that_never_start(slurm, home):
    """Deleted by a third party while pending; killed and held while pending."""
    blocker = slurm.sbatch("sleep 300", "--exclusive", f"--nodes={NODES}")
    slurm.wait_state(blocker, "RUNNING")
    deleted, killed, held = (f"{home.add('--on', 'one', '--', 'true')}.1" for _ in range(3))
    for name in (deleted, killed, held):
        home.until(lambda name=name: home.job(name)["native_id"], 150, "submitted")
    slurm.cancel(home.job(deleted)["native_id"])
    home.rota("kill", killed)
    home.rota("hold", held)
    assert becomes(home, deleted, "FAILED")["reason"] == "cancelled"
    assert becomes(home, killed, "ABORTED")["reason"] == "killed"
    becomes(home, held, "HOLDING")
    assert [line.split()[0] for line in listed(slurm)] == [blocker]
    slurm.cancel(blocker)
    home.rota("release", held)
    becomes(home, held, "COMPLETED")


def test_demand_shrinks(slurm, home):
    """Waiting runners are taken back when their jobs are killed; running ones too, when theirs are."""
    blocker = slurm.sbatch("sleep 300", f"--nodes={NODES}", "--ntasks-per-node=3", "--cpus-per-task=1")
    slurm.wait_state(blocker, "RUNNING")
    batch = home.add("--on", "hpc", "--array", "1-10", "--", "sleep 300")
    home.until(lambda: home.counts(batch).get("RUNNING") == 4, 150, "four run")
    home.rota("kill", batch, ":pending")
    home.until(lambda: len(allocations(home, "hpc")) == 4, 150, "six allocations are taken back")
    wait_for("six fewer", lambda: len(listed(slurm)) == 5)
    home.rota("kill", batch)
    assert home.settled(batch) == {"ABORTED": 10}
    wait_for("runners to leave", lambda: [line.split()[0] for line in listed(slurm)] == [blocker], step=0.2)


def test_runners_that_are_taken_away(slurm):
    """Cancelled or requeued by a third party, or with their node: their jobs are lost, and run again."""
    with a_rota(slurm, "slurm", SLOTS, "requeue = true") as home:
        home.began = time.time()
        take_runners_away(slurm, home)


def take_runners_away(slurm, home):
    batch = home.add("--on", "hpc", "--array", "1-6", "--", witnessed(home, "sleep $(( ROTA_ATTEMPT > 1 ? 1 : 300 ))"))
    home.until(lambda: begun(home) == 6, 150, "all began")
    natives = {index: native(home, f"{batch}.{index}") for index in range(1, 7)}
    hosts = {index: home.job(f"{batch}.{index}")["host"] for index in natives}
    gone = {index for index in natives if hosts[index] == hosts[3]} | {1, 2}
    slurm.cancel(natives[1])
    slurm.requeue(natives[2])
    home.until(lambda: home.job(f"{batch}.1")["attempt"] > 1 and home.job(f"{batch}.2")["attempt"] > 1, 150, "seen")
    slurm.declare_node_down(hosts[3])
    for index in gone:
        becomes(home, f"{batch}.{index}", "COMPLETED", seconds=150)
    for index in set(natives) - gone:
        assert home.job(f"{batch}.{index}")["state"] == "RUNNING"
        slurm.cancel(natives[index])
    assert home.settled(seconds=150) == {"COMPLETED": 6}
    for index in natives:
        *lost, last = (state for state, _ in attempts(home, f"{batch}.{index}"))
        # What a runner says of an attempt after it was given up is shown, and changes nothing.
        assert lost and set(lost) <= {"LOST", "RETRIED", "SUPERSEDED"} and last == "COMPLETED"
    verdict(home, batch)
    assert {len(jobs) for jobs in submitted(slurm, home).values()} == {1}
    empty(slurm)


def test_node_dies(slurm, home):
    """slurmd and all that ran there: lost with that reason, and run elsewhere, in both modes."""
    work = witnessed(home, f"[ $ROTA_ATTEMPT -gt 1 ] || {gated(home)}")
    batches = [home.add("--on", "hpc", "--array", "1-8", "--", work),
               home.add("--on", "one", "--array", "101-108", "--", work)]  # fmt: skip
    home.until(lambda: begun(home) == 16, 150, "all began")
    node = slurm.nodes[1]
    home.until(lambda: all(row["host"] for row in home.rows("jobs")), 150, "hosts are known")
    victims = [row["id"] for row in home.rows("jobs") if row["host"] == node]
    slurm.kill_node(node)
    open_gate(home)
    assert home.settled(seconds=400) == {"COMPLETED": 16}
    slurm.start_node(node)
    found = verdict(home, *batches)
    assert found.executions == 16 + len(victims)
    assert {name: attempts(home, name)[0] for name in victims} == dict.fromkeys(victims, ("LOST", "node-fail"))
    empty(slurm)


def test_controller_restarts(slurm, home):
    """While it is away commands fail, and nothing follows from that."""
    work = witnessed(home, "sleep 3")
    batches = [home.add("--on", "hpc", "--array", "1-30", "--", work),
               home.add("--on", "one", "--array", "101-112", "--", work)]  # fmt: skip
    home.until(lambda: begun(home) >= 8, 150, "some began")
    slurm.stop_controller(9)
    time.sleep(4)
    more = home.add("--on", "one", "--array", "201-204", "--", work)
    time.sleep(1)
    slurm.start_controller()
    assert home.settled(seconds=400) == {"COMPLETED": 46}
    found = verdict(home, *batches, more)
    assert (found.executions, found.lost_attempts) == (46, 0)
    assert {len(jobs) for jobs in submitted(slurm, home).values()} == {1}
