"""rota on the real OpenStack: servers come with the demand, go bad, and go; none is orphaned, none is made twice."""

import signal
import time

import pytest

from cluster.private import wait_for
from cluster.rota_home import begun, verdict, witnessed
from process.support_home import a_home

SITE = """\
listen = "{listen}:0"

[site.os]
driver = "openstack"
cloud = "{cloud}"
image = "{image}"
network = "{network}"
flavors = "{flavors}"
user = "root"
max_servers = {most}
keep_alive = "{keep_alive}"
spawns = 6
poll = "2s"
poll_least = "1s"
{more}
"""


class Site:
    """A rota of a test's own, whose jobs run on servers of the cloud."""

    def __init__(self, home, cloud, bodies):
        self.home, self.cloud, self.bodies = home, cloud, bodies
        self.most_seen = 0

    def configure(self, **said):
        usual = {"most": 3, "flavors": "c2.medium", "keep_alive": "5s", "more": ""}
        usual |= {"cloud": "test", "image": "debian-12", "network": "inside", "listen": self.bodies.own_address}
        self.home.config(SITE.format(**usual | said))

    def servers(self):
        """Servers of the project that are not being deleted."""
        rows = self.cloud.servers()
        self.most_seen = max(self.most_seen, len(rows))
        return [row for row in rows if row["OS-EXT-STS:task_state"] != "deleting"]

    def tags(self):
        """The tag of every server that there ever was in this test, as nova has it."""
        text = "".join(
            f"select value from {name}.instance_metadata m join {name}.instances i on m.instance_uuid = i.uuid "
            f"where m.`key` = 'rota-tag' and i.id > {first};"
            for name, first in self.before.items()
        )
        return self.cloud.sql(text).split()

    def begin(self):
        """Count servers from here on."""
        self.before = {
            name: int(self.cloud.sql(f"select coalesce(max(id), 0) from {name}.instances;"))
            for name in ("nova", "nova_cell0")
        }

    def over(self):
        """Nothing is wanted any more: all servers go, and no tag was ever used twice."""
        wait_for("no server to be left", lambda: not self.cloud.servers(), 240, 1)
        tags = self.tags()
        assert tags
        assert len(tags) == len(set(tags))

    def running(self, batch, count):
        """Wait until so many jobs run."""
        self.home.until(lambda: self.home.counts(batch).get("RUNNING", 0) >= count, 600, f"{count} jobs run")

    def gate(self):
        """A command that waits, on whatever server; and what lets it pass."""
        path = self.home.work / "go"
        return f"until [ -e {path} ]; do sleep 0.3; done", path.touch

    def where(self, batch):
        """Host → jobs that run there."""
        found = {}
        for row in self.home.rows("jobs", batch):
            if row["state"] == "RUNNING":
                found.setdefault(row["host"], []).append(row["id"])
        return found

    def body_of(self, host):
        """The body that calls itself so."""
        return next(body for body in self.bodies.by_id.values() if body.host == host)


@pytest.fixture
def site(cloud, bodies):
    with a_home() as home:
        home.env |= cloud.client
        bodies.shared.append(str(home.work))
        made = Site(home, cloud, bodies)
        made.begin()
        made.configure()
        try:
            yield made
        finally:
            home.rota("down", "--kill", code=None)


def test_three_hundred_jobs_run_over_six_servers_and_it_scales_to_zero(site):
    site.configure(most=6)
    home = site.home
    wait, go = site.gate()
    batch = home.add("--array", "1-300", "--cores", "1", "--", witnessed(home, wait))
    site.running(batch, 12)
    assert len(site.servers()) == 6
    go()
    assert home.settled(batch, seconds=500) == {"COMPLETED": 300}
    assert verdict(home, batch).jobs == 300
    assert len({row["host"] for row in home.rows("jobs", batch)}) == 6
    site.over()
    assert site.most_seen == 6


@pytest.mark.unproven
def test_the_cheapest_flavor_that_fits_and_what_never_will(site):
    site.configure(
        flavors="[cm].*", more='prices = {"c1.small" = 1, "c2.medium" = 2, "c4.large" = 4, "m4.fat" = 9, "c8.huge" = 8}'
    )
    home = site.home
    small = home.add("--", "true")
    fat = home.add("--memory", "20G", "--", "true")
    never = home.add("--memory", "512G", "--", "true")
    home.settled(small, fat, seconds=300)
    flavors = {row["flavor"]["original_name"] for row in site.cloud.servers()}
    rows = site.home.ask("allocations")["allocations"]
    assert {row["queue"] for row in rows} <= {"c1.small", "m4.fat"}, (rows, flavors)
    said = home.rota("explain", never).stdout
    assert "512" in said
    assert "32" in said
    home.rota("remove", never)
    site.over()


@pytest.mark.unproven
def test_a_full_quota_is_told_and_respected(site):
    site.cloud.set_quota(instances=20, cores=4, ram=200 << 10)
    site.configure(most=6)
    wait, go = site.gate()
    batch = site.home.add("--array", "1-8", "--", wait)
    site.running(batch, 4)
    assert len(site.servers()) == 2
    said = site.home.rota("explain", batch).stdout
    assert "quota" in said, said
    go()
    assert site.home.settled(batch, seconds=300) == {"COMPLETED": 8}
    site.over()
    assert site.most_seen == 2


@pytest.mark.unproven
def test_servers_that_fail_to_build_are_destroyed_and_others_asked_for(site):
    home = site.home
    with site.cloud.only_aborting():
        batch = home.add("--array", "1-2", "--", "true")
        home.until(lambda: len(site.tags()) >= 1, 200, "a server is asked for")
        home.until(lambda: any(row["status"] == "ERROR" for row in site.cloud.servers()) or len(site.tags()) > 1, 200)
    assert home.settled(batch, seconds=400) == {"COMPLETED": 2}
    site.over()


@pytest.mark.unproven
def test_a_slow_spawn_is_waited_for_and_not_asked_for_twice(site):
    home = site.home
    with site.cloud.knob("slow-spawn"):
        batch = home.add("--", "hostname")
        home.until(lambda: len(site.servers()) == 1, 200, "a server is asked for")
        first = site.tags()
        time.sleep(15)
        assert site.tags() == first
    assert home.settled(batch, seconds=300) == {"COMPLETED": 1}
    site.over()


@pytest.mark.unproven
def test_a_delete_that_fails_is_repeated_until_it_is_done(site):
    home = site.home
    batch = home.add("--", "true")
    home.settled(batch, seconds=300)
    with site.cloud.knob("fail-destroy"):
        home.until(lambda: any(row["status"] == "ERROR" for row in site.cloud.servers()), 200, "a delete fails")
    site.over()


@pytest.mark.unproven
def test_while_the_api_is_down_jobs_go_on_and_afterwards_everything_does(site):
    home = site.home
    wait, go = site.gate()
    batch = home.add("--array", "1-4", "--", witnessed(home, wait))
    site.running(batch, 4)
    with site.cloud.down("nova-api", "keystone"):
        began = time.monotonic()
        more = home.add("--array", "1-2", "--cores", "2", "--", "true")
        while time.monotonic() < began + 60:
            assert home.counts(batch) == {"RUNNING": 4}
            time.sleep(2)
    go()
    assert home.settled(batch, more, seconds=400) == {"COMPLETED": 6}
    verdict(home, batch)
    site.over()


@pytest.mark.unproven
def test_tokens_expire_all_the_time(site):
    home = site.home
    with site.cloud.short_tokens(20):
        batch = home.add("--array", "1-60", "--", "sleep 1")
        assert home.settled(batch, seconds=400) == {"COMPLETED": 60}
        site.over()


@pytest.mark.unproven
def test_one_is_cut_off_one_rebooted_one_destroyed_under_its_jobs(site):
    site.configure(most=4, keep_alive="15s")
    home = site.home
    wait, go = site.gate()
    batch = home.add("--array", "1-8", "--", witnessed(home, wait))
    site.running(batch, 8)
    cut, rebooted, destroyed, _ = (site.body_of(host) for host in site.where(batch))
    site.bodies.cut(cut)
    site.bodies.reboot(rebooted)
    site.bodies.destroy(destroyed)

    def suspected():
        rows = home.json("sites", "os")["sites"][0]["servers"]
        return any(row["address"] == cut.address and row["suspected_since"] for row in rows)

    home.until(suspected, 600, "the one that was cut off is suspected")
    home.until(lambda: begun_again(home, batch) >= 4, 600, "what ran on the other two runs again")
    site.bodies.heal(cut)
    home.until(lambda: not suspected(), 600, "it is back")
    go()
    assert home.settled(batch, seconds=400) == {"COMPLETED": 8}
    found = verdict(home, batch)
    assert found.jobs == 8
    assert found.executions == 12  # the two times two that were lost, once more
    site.over()


def begun_again(home, batch):
    """How many jobs have been started more than once."""
    place = home.work / "witness"
    return sum(path.read_text().count("start") > 1 for path in place.glob("*[0-9]"))


@pytest.mark.unproven
@pytest.mark.parametrize("step", ["asked", "building", "active", "running", "ending"])
def test_the_manager_is_killed_at_a_step_of_a_server(site, step):
    """Killed with SIGKILL and started again: the server is found again, the jobs run once."""
    home, cloud = site.home, site.cloud
    wait, go = site.gate()

    def kill():
        home.kill_manager(signal.SIGKILL)
        home.rota("up")

    with cloud.knob("slow-spawn"):
        batch = home.add("--array", "1-4", "--", witnessed(home, wait))
        if step == "asked":
            wait_for("the first record", site.tags, 200, 0.02)
            kill()
        wait_for("two servers", lambda: len(site.servers()) == 2, 200, 0.1)
        if step == "building":
            kill()
    if step == "active":
        wait_for("a server to be there", lambda: any(row["status"] == "ACTIVE" for row in site.servers()), 200, 0.05)
        kill()
    site.running(batch, 4)
    if step == "running":
        kill()
        site.running(batch, 4)
    assert len(site.servers()) == 2
    go()
    assert home.settled(batch, seconds=400) == {"COMPLETED": 4}
    if step == "ending":
        deleting = "OS-EXT-STS:task_state"
        with cloud.knob("slow-destroy"):
            wait_for("a delete", lambda: any(row[deleting] == "deleting" for row in cloud.servers()), 200, 0.05)
            kill()
    verdict(home, batch)
    assert begun(home) == 4
    site.over()
    assert len(site.tags()) == 2


@pytest.mark.unproven
def test_bad_settings_are_said_before_anything_is_created(site):
    home = site.home

    def trouble(what, **change):
        site.configure(**change)
        batch = home.add("--", "true")
        home.until(lambda: what in home.rota("sites").stdout + home.rota("sites").stderr, 120, f"{what} is told")
        home.rota("remove", batch)
        home.rota("down")

    trouble("debian-12", image="windows")
    trouble("c1.small", flavors="enormous.*")
    trouble("inside", network="outside")
    trouble("clouds.yaml has test", cloud="mars")
    assert site.tags() == []


@pytest.mark.unproven
def test_an_image_without_python_is_said(site):
    home = site.home
    site.configure(image="no-python")
    batch = home.add("--", "true")
    home.until(lambda: "ython" in home.rota("sites").stdout + home.rota("explain", batch).stdout, 300, "no Python")
    home.rota("remove", batch)
    site.over()
