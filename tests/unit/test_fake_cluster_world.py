"""The world of the fake cluster on a simulated clock: time, room, and what befalls jobs."""

import pytest

from fake_recordings import START, cluster, ends
from rota.testing.fake_cluster.world import World


def submit(fake, *options, now=START):
    return fake.run(["sbatch", "--parsable", *options, "--wrap", "true"], None, now)[1].strip()


def states(fake, now):
    out = fake.run(["squeue", "-h", "-r", "-t", "all", "-o", "%i %T %r"], None, now)[1]
    return dict(line.split(" ", 1) for line in out.splitlines())


def test_jobs_start_when_there_is_room_and_in_the_order_of_time():
    fake = cluster("slurm", ends(10.0), cores=2)
    for _ in range(3):
        submit(fake)
    assert states(fake, START + 1)["3"] == "PENDING Resources"
    assert states(fake, START + 11) == {"1": "COMPLETED None", "2": "COMPLETED None", "3": "RUNNING None"}
    third = fake.world.jobs[2]
    assert (third.started, fake.world.jobs[0].ended) == (START + 10, START + 10)
    fake.advance(START + 500)  # nobody looked for a long time: it ended when it ended
    assert third.ended == START + 20


def test_memory_and_wanted_nodes_are_room_too():
    fake = cluster("slurm", nodes=2, memory_mb=1000)
    submit(fake, "--mem=700")
    submit(fake, "--mem=700")
    submit(fake, "--mem=400")
    submit(fake, "--mem=200", "-w", "n2")
    assert [job.nodes for job in fake.world.jobs] == [["n1"], ["n2"], [], ["n2"]]


def test_latency_hold_and_throttle():
    fake = cluster("slurm", ends(10.0), latency_s=5.0)
    submit(fake)
    submit(fake, "-H")
    submit(fake, "-a", "1-4%1")
    assert set(states(fake, START + 4).values()) == {"PENDING None", "PENDING JobHeldUser"}
    shown = states(fake, START + 6)
    assert [shown["1"], shown["2"]] == ["RUNNING None", "PENDING JobHeldUser"]
    assert [shown[f"3_{index}"] for index in range(1, 5)] == ["RUNNING None"] + ["PENDING JobArrayTaskLimit"] * 3
    fake.run(["scontrol", "release", "2"], None, START + 7)
    assert states(fake, START + 7)["2"] == "RUNNING None"


def test_the_time_limit_counts_on_the_simulated_clock():
    fake = cluster("slurm", ends(1e6))
    submit(fake, "-t", "2")
    assert states(fake, START + 119) == {"1": "RUNNING None"}
    assert states(fake, START + 121) == {"1": "TIMEOUT TimeLimit"}


@pytest.mark.parametrize(("option", "shown"), [("--requeue", "PENDING BeginTime"), ("--no-requeue", "PREEMPTED None")])
def test_preempted(option, shown):
    fake = cluster("slurm", requeue_delay_s=5.0)
    submit(fake, option)
    fake.world.preempt(fake, fake.world.jobs[0])
    assert states(fake, START + 1) == {"1": shown}


def test_a_lost_node_takes_its_jobs_and_takes_none_until_it_is_mended():
    fake = cluster("slurm", nodes=1)
    submit(fake, "--no-requeue")
    fake.world.fail_node(fake, "n1")
    submit(fake, now=START + 1)
    assert states(fake, START + 1) == {"1": "NODE_FAIL NodeDown", "2": "PENDING Resources"}
    assert fake.run(["sinfo", "-h", "-o", "%t|%D|%E"], None, START + 1)[1] == "down|1|Not responding\n"
    fake.world.mend_node("n1")
    assert states(fake, START + 2)["2"] == "RUNNING None"


def test_too_many_jobs_and_a_closed_queue():
    queues = [{"name": "main", "default": True, "time_s": None}, {"name": "shut", "time_s": None, "up": False}]
    fake = cluster("slurm", max_jobs=2, queues=queues)
    submit(fake, "-p", "shut")
    assert states(fake, START + 1) == {"1": "PENDING PartitionDown"}
    code, _, err = fake.run(["sbatch", "-a", "0-1", "--wrap", "true"], None, START + 1)
    assert code == 1 and "Job violates accounting/QOS policy" in err


def test_a_hung_daemon_is_not_waited_for():
    fake = cluster("pbs")
    fake.world.down = "hung"
    assert fake.run(["qstat"], None, START, timeout=30.0) == (None, "", "")
    fake.world.down = None
    fake.faults.append({"command": "qsub", "nth": 1, "do": "hang-after", "seconds": 60})
    assert fake.run(["qsub"], "true\n", START, timeout=30.0)[0] is None
    assert fake.run(["qselect", "-N", "STDIN"], None, START + 60)[1] == "1.pbs1\n"


def test_the_world_survives_its_file():
    fake = cluster("slurm", nodes=2)
    submit(fake, "-a", "0-3")
    fake.world.suspend(fake, fake.world.jobs[0])
    data = fake.world.data()
    assert World.from_data(data).data() == data


def test_unknown_settings_are_refused():
    with pytest.raises(ValueError, match="no settings \\['core'\\]"):
        World({"core": 3})
