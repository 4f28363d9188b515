"""What goes wrong in other pilots, and not in this one; all in one pilot of this machine."""

import os
import time

import pytest

import rota
from process.support_home import a_home


def gone(pid):
    """Whether a process has ended."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b") ")[2][:1] == b"Z"
    except OSError:
        return True


def until(check, seconds=100.0):
    """What a check gives once it is true."""
    deadline = time.monotonic() + seconds
    while not (found := check()):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return found


def text(path):
    return path.read_text() if path.exists() else ""


def states(batch):
    return [job.state for job in batch.jobs()]


@pytest.mark.timeout(900)
def test_what_other_pilots_get_wrong():
    offers = {"node_resources": {"licence": 1}, "resources": {"link": 1}}
    with a_home() as home, rota.Pilot(str(home.path), nodes="localhost:2", **offers) as pilot:
        work = home.work
        half = pilot.submit("test {} != b", values=["a", "b", "c"], name="half")
        omitted = pilot.submit("true", array=range(3), after=[half.id])
        assert not half.wait() and sorted(states(half)) == ["COMPLETED", "COMPLETED", "FAILED"], "one failed, so it did"
        until(lambda: states(omitted) == ["OMITTED"] * 3)  # all of an array, and not only the array

        one = pilot.submit(f"test {{}} = x || until test -e {work}/go; do sleep 0.2; done", values=["x", "y"])
        after_one = pilot.submit("true", after=[f"{one.id}.1"])
        assert after_one.wait(), "it waits for one job of the array, of which another runs"
        (work / "go").touch()
        chain = pilot.submit(f"echo {{}} >>{work}/chain", values=["x", "y"], after=[one.id], each=True)
        assert chain.wait() and one.wait()

        long = pilot.submit("sleep 1000", time=1)
        assert not long.wait()
        (job,) = long.jobs()
        assert (job.state, job.reason) == ("FAILED", "time"), "wall time is enforced without a batch system too"

        parent = pilot.submit(f"sleep 1000 & echo $! >{work}/pid; (sleep 1000; true) & wait")
        pid = int(until(lambda: text(work / "pid").strip()))
        pilot.kill([str(parent.id)])
        until(lambda: gone(pid))  # grandchildren too
        assert not parent.wait()

        elastic = pilot.submit(f"echo $ROTA_CORES >{work}/cores", cores="1..", env={"A": "1"})
        assert elastic.wait() and text(work / "cores") == "2\n", "only a minimum: all that is free"
        most = pilot.submit(f"echo $ROTA_CORES >{work}/cores", cores="..9", span="pack")
        assert most.wait() and text(work / "cores") == "2\n", "only a maximum"
        whole = pilot.submit(f"env >{work}/env", cores="all", variants="cores=1", env_style=["none"])
        assert whole.wait()
        env = dict(line.split("=", 1) for line in text(work / "env").splitlines() if "=" in line)
        assert (env["ROTA_CORES"], env["ROTA_VARIANT"], env["ROTA_NODES"]) == ("2", "0", "1")
        assert not [name for name in env if name.startswith(("SLURM_", "QCG_"))]
        one = "set -C; : >{0} && sleep 0.3 && rm {0}".format(work / "one")  # fails if another is there
        for name in ("licence", "link"):
            assert pilot.submit(one, array=range(3), resources={name: 1}).wait(), f"one {name}, so one at a time"
        with pytest.raises(rota.RotaError, match="2 licence are asked for"):
            pilot.submit("true", resources={"licence": 2})
        told = pilot.submit(f"env >{work}/env", cores=2)
        assert told.wait()
        env = dict(line.split("=", 1) for line in text(work / "env").splitlines() if "=" in line)
        assert env["SLURM_NTASKS"] == env["QCG_PM_TASKS_PER_NODE"] == "2"
        assert env["SLURM_NODELIST"] == env["QCG_PM_NODELIST"] == os.uname().nodename
        with pytest.raises(rota.RotaError, match="never run: pilot has 2 cores, 3 cores are asked for"):
            pilot.submit("true", cores=3, span="pack")
        with pytest.raises(rota.RotaError, match="gives 1 node, 2 are asked for"):
            pilot.submit("true", nodes="2..4")
