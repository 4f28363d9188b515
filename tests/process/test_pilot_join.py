"""`rota pilot --join`: an allocation is lent to a manager that is up."""

import os
import signal
import subprocess

from process.support_home import ROTA, home

__all__ = ["home"]


def sites(home):
    return {row["name"]: row for row in home.json("sites")["sites"]}


def test_what_is_lent_is_used_and_what_runs_there_is_queued_again_when_it_ends(home):
    home.rota("up")
    lender = subprocess.Popen(
        [ROTA, "pilot", "--join", "--hosts", "localhost:1"],
        cwd=home.work, env=home.env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    try:
        name = f"lent-{os.uname().nodename.replace('.', '-')}-{lender.pid}"
        home.until(lambda: name in sites(home), 100, "the manager has it as a site")
        done = home.add("--on", name, "--array", "1-3", "--", "echo {} $SLURM_NTASKS >>done")
        home.until(lambda: home.counts(done) == {"COMPLETED": 3}, 100, "they ran there")
        assert sorted((home.work / "done").read_text().splitlines()) == ["1 1", "2 1", "3 1"]
        waits = home.add("--on", name, "--", "touch began; sleep 1000")
        home.until((home.work / "began").exists, 100, "one runs there")
        lender.send_signal(signal.SIGTERM)
        _, said = lender.communicate(timeout=100)
        assert lender.returncode == 0 and f"as site {name}" in said and "stays queued" in said
        home.until(lambda: home.counts(waits) in ({"PENDING": 1}, {"WAITING": 1}), 100, "it is queued again")
        home.until(lambda: name not in sites(home), 100, "the site is gone")
    finally:
        lender.kill()
        lender.wait()


def test_what_cannot_be_joined_is_refused(home):
    assert "takes no command" in home.rota("pilot", "--join", "--", "true", code=2).stderr
    home.rota("pilot", "--join", "--hosts", "localhost:1", code=3)
    assert not os.path.exists(f"{home.path}/lent")
