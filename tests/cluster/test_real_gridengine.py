"""The private Grid Engine does what drivers are tested on."""

import signal


def test_array_and_exit_codes(gridengine):
    job = gridengine.qsub('[ "$SGE_TASK_ID" != 2 ]', "-t", "1-3")
    gridengine.wait_over(job)
    records = gridengine.qacct(job, 3)
    codes = {record["taskid"].strip(): record["exit_status"].strip() for record in records}
    assert codes == {"1": "0", "2": "1", "3": "0"}
    killed = gridengine.qsub("kill -9 $$")
    gridengine.wait_over(killed)
    assert gridengine.qacct(killed)[0]["failed"].startswith("100 ")


def test_time_limit_and_deletion(gridengine):
    slow = gridengine.qsub("sleep 300", "-l", "h_rt=2")
    deleted = gridengine.qsub("sleep 300")
    waiting = gridengine.qsub("true", "-h")
    gridengine.wait_state(deleted, "r")
    assert gridengine.wait_state(waiting, "hqw") == "hqw"
    gridengine.cancel(deleted, waiting)
    for job in (slow, deleted, waiting):
        gridengine.wait_over(job, 150)
    assert gridengine.qacct(slow)[0]["failed"].startswith("37 ")
    assert gridengine.qacct(deleted)[0]["failed"].startswith("100 ")
    assert gridengine.run("qacct", "-j", waiting, check=False).returncode == 1


def test_error_state_suspension_and_requeue(gridengine):
    bad = gridengine.qsub("exit 100")
    job = gridengine.qsub("sleep 300", "-r", "y")
    gridengine.wait_state(bad, "Eqw")
    gridengine.wait_state(job, "r")
    gridengine.suspend(job)
    gridengine.wait_state(job, "s")
    gridengine.resume(job)
    gridengine.wait_state(job, "r")
    gridengine.requeue(job)
    gridengine.wait_state(job, "Rr", "Rq")


def test_master_restarts_and_host_dies_under_a_job(gridengine):
    job = gridengine.qsub("sleep 300", "-r", "y")
    gridengine.wait_state(job, "r")
    gridengine.restart_master(signal.SIGKILL)
    assert gridengine.state(job) == "r"
    gridengine.kill_host()
    gridengine.wait_state(job, "Rq", "Rqw", seconds=150)
    gridengine.start_host()
    gridengine.wait_state(job, "Rr", seconds=150)
