"""What a job is told of its nodes and cores, and how its command becomes ranks."""

import pytest

from rota.runner.environment import Environment, style_variables
from rota.runner.lease import Lease
from rota.runner.parallel import ranks, written
from rota.runner.plan import StartError

NODES = [{"host": "n1", "cores": 3000}, {"host": "n2", "cores": 2000}]
OUTER = {
    b"SLURM_JOB_ID": b"77",
    b"SLURM_NTASKS": b"64",
    b"SLURMD_NODENAME": b"n1",
    b"PMI_RANK": b"3",
    b"PBS_JOBID": b"8",
    b"HOME": b"/h",
}


def test_every_variable_of_slurm_has_its_name_count_and_separator():
    told = style_variables(["slurm"], NODES)
    assert told.pop(b"OMPI_MCA_plm") == b"rsh"
    assert told == {
        b"SLURM_NNODES": b"2",
        b"SLURM_NODELIST": b"n1,n2",
        b"SLURM_NPROCS": b"5",
        b"SLURM_NTASKS": b"5",
        b"SLURM_JOB_NODELIST": b"n1,n2",
        b"SLURM_JOB_NUM_NODES": b"2",
        b"SLURM_STEP_NODELIST": b"n1,n2",
        b"SLURM_STEP_NUM_NODES": b"2",
        b"SLURM_STEP_NUM_TASKS": b"5",
        b"SLURM_NTASKS_PER_NODE": b"3,2",
        b"SLURM_STEP_TASKS_PER_NODE": b"3,2",
        b"SLURM_TASKS_PER_NODE": b"3,2",
    }


def test_every_variable_of_qcg_has_its_name_count_and_separator():
    assert style_variables(["qcg"], NODES) == {
        b"QCG_PM_NNODES": b"2",
        b"QCG_PM_NODELIST": b"n1,n2",
        b"QCG_PM_NPROCS": b"5",
        b"QCG_PM_NTASKS": b"5",
        b"QCG_PM_TASKS_PER_NODE": b"3,2",
    }


def environment(**spec):
    """The environment of one job."""
    return Environment({"cores": 2000, "host": "n1", **spec}, {"PATH": "/bin"}, OUTER, "r").of(
        Lease("1:2000:0:0", spec, (7, 12, 3), "x", None, 0.0)
    )


def test_nothing_of_the_enclosing_allocation_is_seen():
    env = environment(style=["slurm", "qcg"])
    assert {name for name in env if name.startswith((b"SLURM", b"PBS", b"PMI"))} == set(
        style_variables(["slurm"], NODES)
    ) - {b"OMPI_MCA_plm"}
    assert env[b"SLURM_NTASKS"] == env[b"QCG_PM_NPROCS"] == b"2" and env[b"SLURM_NODELIST"] == b"n1"
    assert env[b"QCG_PM_STEP_ID"] != environment(style=["qcg"], index=1) and env[b"ROTA_JOB"] == b"7.12"
    none = environment(style=["none"])
    assert not [name for name in none if name.startswith((b"SLURM", b"PBS", b"PMI", b"QCG"))]
    assert environment()[b"SLURM_JOB_ID"] == b"77", "where no style is said all is as the batch system said"


def test_what_all_jobs_of_a_site_are_told_gives_way_to_what_a_job_sets():
    env = environment(told={"QCG_PM_ZMQ_ADDRESS": "ipc:///x", "A": "1"}, set={"A": "2"})
    assert env[b"QCG_PM_ZMQ_ADDRESS"] == b"ipc:///x" and env[b"A"] == b"2"
    assert environment(model="threads")[b"OMP_NUM_THREADS"] == b"2"
    assert environment(model="threads", set={"OMP_NUM_THREADS": "1"})[b"OMP_NUM_THREADS"] == b"1"
    assert environment(variant=1)[b"ROTA_VARIANT"] == b"1"


def test_files_have_a_line_per_node_per_core_and_per_rank():
    assert written(NODES) == {
        "hosts": "n1\nn2\n",
        "hosts.openmpi": "n1 slots=3\nn2 slots=2\n",
        "hosts.hydra": "n1:3\nn2:2\n",
        "machines": "n1\nn1\nn1\nn2\nn2\n",
        "ranks.openmpi": "rank 0=n1 slot=0\nrank 1=n1 slot=1\nrank 2=n1 slot=2\nrank 3=n2 slot=0\nrank 4=n2 slot=1\n",
    }


def started(model, **spec):
    return ranks({"model": model, **spec}, ["./x", "1"], [], NODES, "/d", {b"PATH": b"/nowhere"})[0]


def test_each_model_starts_one_rank_per_core():
    assert started("openmpi") == [
        *("mpirun", "-n", "5", "--hostfile", "/d/hosts.openmpi", "--map-by", "slot", "--bind-to", "none", "./x", "1")
    ]
    assert "--bind-to" not in started("openmpi", bind="cores")
    assert started("mpich", mpirun_args=["-v"]) == ["mpirun", "-f", "/d/hosts.hydra", "-n", "5", "-v", "./x", "1"]
    assert started("hydra", mpirun="/opt/hydra")[0] == "/opt/hydra"
    assert started("intelmpi") == [
        *("mpirun", "-host", "n1", "-n", "3", "./x", "1", ":", "-host", "n2", "-n", "2", "./x", "1")
    ]
    words, _ = ranks({"model": "mpich"}, "./x | tee y", ["bash", "-c"], NODES, "/d", {})
    assert words[-3:] == ["bash", "-c", "./x | tee y"]


def test_srun_is_told_of_the_allocation_and_not_by_what_the_job_sees(monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "77")
    monkeypatch.setenv("SLURM_CONF", "/c")
    env = {b"SLURM_NTASKS_PER_NODE": b"3,2", b"PATH": b""}
    words, told = ranks({"model": "srunmpi"}, ["./x"], [], NODES, "/d", env)
    assert words[:2] == ["srun", "--jobid=77"] and words[-2:] == ["--distribution=arbitrary", "./x"]
    assert told == {b"SLURM_NTASKS_PER_NODE": None, b"SLURM_HOSTFILE": b"/d/machines", b"SLURM_CONF": b"/c"}
    monkeypatch.delenv("SLURM_JOB_ID")
    with pytest.raises(StartError, match="in no allocation of Slurm"):
        ranks({"model": "srunmpi"}, ["./x"], [], NODES, "/d", env)
