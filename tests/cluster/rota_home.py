"""A rota of a test's own beside a real batch system: one site of runners (`hpc`) and one of direct jobs (`one`)."""

import contextlib
from pathlib import Path

from cluster.private import wait_for
from process.support_home import a_home
from process.support_witness import check, command

SITES = """\
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
poll = "1s"
poll_least = "1s"
most = 300
{more}
"""


@contextlib.contextmanager
def a_rota(cluster, driver, most, more=""):
    """A home whose commands, manager and jobs find the cluster."""
    with a_home() as home:
        home.env |= cluster.environment | {"ROTA_HOME": home.path}
        home.config(SITES.format(driver=driver, most=most, more=more))
        try:
            yield home
        finally:
            home.rota("down", code=None)


def witness(home):
    """A directory for the jobs' witnesses."""
    place = home.work / "witness"
    place.mkdir(exist_ok=True)
    place.chmod(0o777)
    return str(place)


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


def allocations(home, **wanted):
    """Live allocations, as the manager has them."""
    rows = home.ask("allocations")["allocations"]
    return [row for row in rows if row["state"].endswith("ING") and all(row[key] == wanted[key] for key in wanted)]


def running(home, *names):
    """Wait until these jobs run; their native ids follow from `native_of`."""
    for name in names:
        home.until(lambda name=name: home.job(name)["state"] == "RUNNING", 60, f"{name} runs")


def quiet(cluster, listed, seconds=60.0):
    """Wait until nothing of us is in the queue."""
    wait_for(f"an empty queue (there is: {listed()})", lambda: not listed(), seconds, 0.2)
