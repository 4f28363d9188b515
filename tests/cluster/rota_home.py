"""A rota of a test's own beside a real batch system: one site of runners (`hpc`) and one of direct jobs (`one`)."""

import contextlib
from pathlib import Path

from process.support_home import a_home
from process.support_witness import check, command

SITES = """\
listen = "{listen}"

[site.hpc]
driver = "{driver}"
poll = "1s"
poll_least = "1s"
linger = "3s"
most = {most}
{more}

[site.one]
driver = "{driver}"
mode = "direct"
report_within = "3s"
poll = "1s"
poll_least = "1s"
most = 300
{more}
"""


@contextlib.contextmanager
def a_rota(cluster, driver, most, more="", listen="127.0.0.1:0"):
    """A home whose commands, manager and jobs find the cluster."""
    with a_home() as home:
        home.env |= cluster.environment | {"ROTA_HOME": home.path}
        home.config(SITES.format(driver=driver, most=most, more=more, listen=listen))
        try:
            yield home
        finally:
            home.rota("down", code=None)
            cluster.cancel_all()  # first, since what is suspended cannot be killed


def witness(home):
    """A directory for the jobs' witnesses."""
    place = home.work / "witness"
    place.mkdir(exist_ok=True)
    place.chmod(0o777)
    return str(place)


def gated(home):
    """A command that waits until `open_gate` is called; nodes see the same files."""
    return f"until [ -e {home.work}/go ]; do sleep 0.3; done"


def open_gate(home):
    (home.work / "go").touch()


def all_submitted(home):
    """Whether the batch system has taken all that was asked of it so far."""
    rows = [*allocations(home, "hpc").values(), *allocations(home, "one").values()]
    return len({row["site"] for row in rows}) == 2 and all(row["native_id"] for row in rows)


def witnessed(home, work):
    """A command that witnesses `work`; for one batch of a home."""
    return command(witness(home), work)


def verdict(home, *batches):
    """What the independent checker says of these batches."""
    found = check(witness(home), home.rows("jobs", *batches), home.rows("history", *batches))
    assert not found.wrong, (found, home.tail())
    return found


def ended(home):
    """How many witnessed jobs have come to their end, by their own word."""
    return sum("end" in path.read_text() for path in Path(witness(home)).glob("*[0-9]"))


def begun(home):
    """How many witnessed jobs have started."""
    return sum(1 for _ in Path(witness(home)).glob("*[0-9]"))


def allocations(home, site):
    """Live allocations of a site, as the manager has them: id → row."""
    rows = home.ask("allocations")["allocations"]
    return {row["id"]: row for row in rows if row["site"] == site and row["state"].endswith("ING")}


def native(home, name):
    """The native id of the allocation that a job runs in, once it does."""
    home.until(lambda: home.job(name)["state"] == "RUNNING" and home.job(name)["native_id"], 150, f"{name} runs")
    return home.job(name)["native_id"]


def becomes(home, name, *states, seconds=150):
    """Wait for a job to be in one of these states; the job."""
    home.until(lambda: home.job(name)["state"] in states, seconds, f"{name} to be {states}")
    return home.job(name)


def attempts(home, name):
    """(state, reason) of every attempt of a job, the first first."""
    rows = sorted(home.rows("history", name), key=lambda row: row["attempt"])
    return [(row["state"], row["reason"]) for row in rows]
