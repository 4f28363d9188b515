"""What of the batch system's variables a job sees."""

import pytest

from rota.runner.environment import Environment, inherited, of_allocation
from rota.runner.lease import Lease

SLURM = {
    b"SLURM_JOB_ID": b"17", b"SLURMD_NODENAME": b"n4", b"SLURM_CPUS_ON_NODE": b"2", b"SLURM_ARRAY_TASK_ID": b"3",
    b"SLURM_ARRAY_JOB_ID": b"14", b"SLURM_SUBMIT_DIR": b"/home/ann/.rota", b"PATH": b"/node/bin", b"TMPDIR": b"/tmp/m",
    b"LS_COLORS": b"di=34",
}  # fmt: skip
SGE = {
    b"SGE_TASK_ID": b"undefined", b"JOB_ID": b"6", b"NSLOTS": b"4", b"PE_HOSTFILE": b"/spool/pe", b"QUEUE": b"all.q",
    b"TMPDIR": b"/tmp/6.1.all.q", b"SGE_O_WORKDIR": b"/x", b"JOB_SCRIPT": b"/spool/6",
}  # fmt: skip


def env_of(spec, env, own):
    return Environment({"cwd": "/home/ann/work", **spec}, env, inherited(own), "r1").base


def test_variables_of_the_allocation_come_through_below_the_submitter_s_own():
    found = env_of({"set": {"SLURM_JOB_ID": "set"}}, {"PATH": "/mine", "SLURM_CPUS_ON_NODE": "9"}, SLURM)
    assert found[b"SLURMD_NODENAME"] == b"n4"
    assert (found[b"PATH"], found[b"SLURM_CPUS_ON_NODE"], found[b"SLURM_JOB_ID"]) == (b"/mine", b"9", b"set")
    assert found[b"SLURM_SUBMIT_DIR"] == b"/home/ann/work"
    assert not {b"LS_COLORS", b"TMPDIR", b"SLURM_ARRAY_TASK_ID", b"SLURM_ARRAY_JOB_ID"} & set(found)


def test_environment_of_the_site():
    found = env_of({}, None, SLURM)
    assert (found[b"PATH"], found[b"LS_COLORS"], found[b"SLURM_JOB_ID"]) == (b"/node/bin", b"di=34", b"17")
    assert found[b"SLURM_SUBMIT_DIR"] == b"/home/ann/work"
    assert b"SLURM_ARRAY_TASK_ID" not in found


def test_an_array_of_rota_is_the_job_s_own():
    array = {"first": 1, "last": 9, "step": 1, "count": 9}
    assert env_of({"array": array}, {}, SLURM)[b"SLURM_ARRAY_TASK_COUNT"] == b"9"


def test_grid_engine():
    found = of_allocation(SGE)
    assert found == {key: value for key, value in SGE.items() if key not in (b"SGE_TASK_ID", b"JOB_SCRIPT")}


@pytest.mark.parametrize("own", [{b"JOB_ID": b"7", b"TMPDIR": b"/t", b"QUEUE": b"q"}, {}])
def test_outside_of_a_batch_system_nothing_is_added(own):
    assert of_allocation(own) == {}


class Tokens:
    """What credentials tell of a job."""

    def variables(self, key):
        return {b"ROTA_ADDRESS": b"unix:/m", b"ROTA_TOKEN_FILE": b"/t%d" % key[2]}

    def words(self, key):
        return b"\0ROTA_ADDRESS=unix:/m\0ROTA_TOKEN_FILE=/t%d" % key[2]


@pytest.mark.parametrize("tokens", [None, Tokens()])
@pytest.mark.parametrize("told", [None, {"ROTA_JOB": "end", "MORE": "1"}])
@pytest.mark.parametrize("array", [None, {"first": 1, "last": 9, "step": 1, "count": 9}])
def test_words_for_the_launcher_are_the_variables_of_the_job(array, told, tokens):
    found = Environment({"cwd": "/", "array": array, "own": told}, {}, {}, "r1")
    found.credentials = tokens
    lease = Lease("s", {}, (7, 12, 3), ["true"], None, 0.0)
    words, count = found.words(lease)
    assert dict(word.split(b"=", 1) for word in words.split(b"\0")) == found.own(lease)
    assert count == len(found.own(lease))
