"""rota on the real OpenStack: servers come with the demand, go bad, and go; none is orphaned, none is made twice."""

import signal
import time

import pytest

from cluster.private import wait_for
from cluster.rota_home import verdict, witnessed
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

    def shown_server(self, id):
        """A server, as `rota sites` shows it; all is None if it does not."""
        rows = self.home.json("sites", "os")["sites"][0]["servers"]
        return next((row for row in rows if row["id"] == id), dict.fromkeys(("suspected_since", "suspected_why")))

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
    assert home.settled(batch, seconds=600) == {"COMPLETED": 300}
    assert verdict(home, batch).jobs == 300
    assert len({row["host"] for row in home.rows("jobs", batch)}) == 6
    site.over()
    assert site.most_seen == 6


def test_the_cheapest_flavor_that_fits_and_what_never_will(site):
    site.configure(
        flavors="[cm].*", more='prices = {"c1.small" = 1, "c2.medium" = 2, "c4.large" = 4, "m4.fat" = 9, "c8.huge" = 8}'
    )
    home = site.home
    small = home.add("--", "true")
    fat = home.add("--memory", "20G", "--", "true")
    assert home.settled(small, fat, seconds=600) == {"COMPLETED": 2}
    flavors = {row["flavor"]["original_name"] for row in site.cloud.servers()}
    rows = site.home.ask("allocations")["allocations"]
    assert {row["queue"] for row in rows} <= {"c1.small", "m4.fat"}, (rows, flavors)
    refused = home.rota("add", "--memory", "512G", "--", "true", code=None)
    assert "no flavor has 512G memory; the largest has 32G memory" in refused.stdout + refused.stderr
    site.over()


def test_a_full_quota_is_told_and_respected(site):
    site.cloud.set_quota(instances=20, cores=4, ram=200 << 10)
    site.configure(most=6)
    wait, go = site.gate()
    batch = site.home.add("--array", "1-8", "--", wait)
    site.running(batch, 4)
    assert len(site.servers()) == 2
    waiting = next(row["id"] for row in site.home.rows("jobs", batch) if row["state"] == "PENDING")
    words = "quota: 0 of 4 cores left, 2 asked"
    site.home.until(lambda: words in site.home.rota("explain", waiting).stdout, 300, words)
    go()
    assert site.home.settled(batch, seconds=600) == {"COMPLETED": 8}
    site.over()
    assert site.most_seen == 2


def test_servers_that_fail_to_build_are_destroyed_and_others_asked_for(site):
    home = site.home
    with site.cloud.only_aborting():
        batch = home.add("--array", "1-2", "--", "true")
        home.until(lambda: len(site.tags()) >= 1, 300, "a server is asked for")
        home.until(lambda: any(row["status"] == "ERROR" for row in site.cloud.servers()) or len(site.tags()) > 1, 300)
    assert home.settled(batch, seconds=600) == {"COMPLETED": 2}
    site.over()


def test_a_slow_spawn_is_waited_for_and_not_asked_for_twice(site):
    home = site.home
    with site.cloud.knob("slow-spawn"):
        batch = home.add("--", "hostname")
        home.until(lambda: len(site.servers()) == 1, 300, "a server is asked for")
        first = wait_for("its record", site.tags, 300, 0.3)  # nova has it once it is scheduled
        time.sleep(15)
        assert site.tags() == first
    assert home.settled(batch, seconds=600) == {"COMPLETED": 1}
    site.over()


def test_a_delete_that_fails_is_repeated_until_it_is_done(site):
    home = site.home
    with site.cloud.knob("fail-destroy"):
        batch = home.add("--", "true")
        home.settled(batch, seconds=600)
        home.until(lambda: any(row["status"] == "ERROR" for row in site.cloud.servers()), 300, "a delete fails")
    site.over()


@pytest.mark.parametrize("how", ["down", "hanging"])
def test_while_the_api_is_down_jobs_go_on_and_afterwards_everything_does(site, how):
    home = site.home
    wait, go = site.gate()
    batch = home.add("--array", "1-4", "--", witnessed(home, wait))
    site.running(batch, 4)
    with getattr(site.cloud, how)("nova-api", "keystone"):
        began = time.monotonic()
        more = home.add("--array", "1-2", "--cores", "2", "--", "true")
        while time.monotonic() < began + 60:
            assert set(home.counts(batch)) <= {"RUNNING", "MISSING"}
            time.sleep(2)
    go()
    assert home.settled(batch, more, seconds=600) == {"COMPLETED": 6}
    verdict(home, batch)
    site.over()


def test_tokens_expire_all_the_time(site):
    home = site.home
    with site.cloud.short_tokens(20):
        batch = home.add("--array", "1-60", "--", "sleep 1")
        assert home.settled(batch, seconds=600) == {"COMPLETED": 60}
        site.over()


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
    assert home.settled(batch, seconds=600) == {"COMPLETED": 8}
    found = verdict(home, batch)
    assert found.jobs == 8
    assert found.executions == 12  # the two times two that were lost, once more
    site.over()


def executions(home):
    """How often witnessed jobs have been started in all."""
    place = home.work / "witness"
    return sum(path.read_text().count("start") for path in place.glob("*[0-9]"))


def begun_again(home, batch):
    """How many jobs have been started more than once."""
    place = home.work / "witness"
    return sum(path.read_text().count("start") > 1 for path in place.glob("*[0-9]"))


def waiting_script(home, name):
    """A script for servers that says it has begun, and waits: (its path, whether it has begun, what lets it pass)."""
    begun, go = home.work / f"{name}.begun", home.work / f"{name}.go"
    path = home.work / f"{name}.sh"
    path.write_text(f"touch {begun}\nuntil [ -e {go} ]; do sleep 0.3; done\n")
    return path, begun.exists, go.touch


@pytest.mark.parametrize("step", ["asking", "asked", "building", "active", "starting", "running"])
def test_the_manager_is_killed_at_a_step_of_create(site, step):
    """Killed with SIGKILL and started again: the server is found again, the jobs run once."""
    home, cloud = site.home, site.cloud
    wait, go = site.gate()
    script, script_begun, script_go = waiting_script(home, "start")
    site.configure(more=f'start_script = "{script}"' if step == "starting" else "")
    held = {"asking": "hold-create", "asked": "hold-created"}.get(step, "slow-spawn")
    with cloud.knob(held):
        batch = home.add("--array", "1-4", "--", witnessed(home, wait))
        if held != "slow-spawn":
            wait_for("a request to be held", lambda: cloud.holds(held), 300, 0.1)
            home.kill_manager(signal.SIGKILL)
        else:
            wait_for("two servers", lambda: len(site.servers()) == 2, 300, 0.1)
        if step == "building":
            home.kill_manager(signal.SIGKILL)
    if step == "active":
        wait_for("a server to be there", lambda: any(row["status"] == "ACTIVE" for row in site.servers()), 300, 0.05)
        home.kill_manager(signal.SIGKILL)
    if step == "starting":
        wait_for("the script", script_begun, 300, 0.1)
        home.kill_manager(signal.SIGKILL)
        script_go()
    if step == "running":
        site.running(batch, 4)
        home.kill_manager(signal.SIGKILL)
    home.rota("up")
    site.running(batch, 4)
    go()
    assert home.settled(batch, seconds=600) == {"COMPLETED": 4}
    verdict(home, batch)
    assert executions(home) == 4
    site.over()
    if step != "asking":  # what was only asked for may come too late, and is then destroyed
        assert len(site.tags()) == 2


@pytest.mark.parametrize("step", ["leaving", "deleting", "deleted", "ending"])
def test_the_manager_is_killed_at_a_step_of_destroy(site, step):
    """Killed with SIGKILL and started again: no server stays, what it wrote was brought home."""
    home, cloud = site.home, site.cloud
    script, script_begun, script_go = waiting_script(home, "end")
    site.configure(more=f'end_script = "{script}"' if step == "leaving" else "")
    batch = home.add("--array", "1-4", "--", witnessed(home, "echo here"))
    held = {"deleting": "hold-delete", "deleted": "hold-deleted"}.get(step, "slow-destroy")
    with cloud.knob(held):
        assert home.settled(batch, seconds=600) == {"COMPLETED": 4}
        if step == "leaving":
            wait_for("the script", script_begun, 300, 0.1)
        elif step == "ending":
            deleting = "OS-EXT-STS:task_state"
            wait_for("a delete", lambda: any(row[deleting] == "deleting" for row in cloud.servers()), 300, 0.1)
        else:
            wait_for("a request to be held", lambda: cloud.holds(held), 300, 0.1)
        home.kill_manager(signal.SIGKILL)
    script_go()
    home.rota("up")
    site.over()
    verdict(home, batch)
    assert executions(home) == 4
    assert home.rota("log", f"{batch}.3").stdout == "here\n"
    home.until(
        lambda: {row["state"] for row in home.ask("allocations")["allocations"]} == {"COMPLETED"}, 300, "the end"
    )


def test_each_way_to_go_bad_has_its_own_reason(site):
    site.configure(most=4, keep_alive="15s")
    home, cloud = site.home, site.cloud
    wait, go = site.gate()
    batch = home.add("--array", "1-8", "--", witnessed(home, wait))
    site.running(batch, 8)
    rows = [row["native_id"] for row in home.ask("allocations")["allocations"] if row["state"] == "RUNNING"]
    stopped, failed, rebuilt, deleted = rows

    def act(by, id, what, more=None):
        by("POST", "compute", f"/servers/{id}/action", {what: more})

    act(cloud.user, stopped, "os-stop")
    act(cloud.admin, failed, "os-resetState", {"state": "error"})
    act(cloud.user, rebuilt, "rebuild", {"imageRef": cloud.images["no-python"]})
    site.bodies.destroy(site.bodies.of(deleted))
    home.until(lambda: "SHUTOFF" in str(site.shown_server(stopped)["suspected_why"]), 600, "it is seen to be off")
    wait_for("its body to be off", lambda: not site.bodies.processes(site.bodies.of(stopped)), 300)  # that lags
    act(cloud.user, stopped, "os-start")

    def reasons():
        rows = home.ask("allocations")["allocations"]
        return {row["native_id"]: row["reason"] or "" for row in rows if not row["state"].endswith("ING")}

    home.until(lambda: set(rows) <= set(reasons()), 600, "all four are over")
    said = reasons()
    assert "stopped and started again" in said[stopped], said
    assert "ERROR" in said[failed], said
    assert "rebuilt" in said[rebuilt], said
    assert "deleted" in said[deleted], said
    site.running(batch, 8)
    go()
    assert home.settled(batch, seconds=600) == {"COMPLETED": 8}
    assert verdict(home, batch).executions == 16  # each was lost, and was run once more
    site.over()


@pytest.mark.parametrize("who", ["somebody", "itself"])
def test_one_that_is_dead_is_destroyed_and_its_jobs_run_elsewhere(site, who):
    site.configure(most=2, more='dead_after = "1m"' if who == "itself" else "")
    home = site.home
    wait, go = site.gate()
    batch = home.add("--array", "1-4", "--", witnessed(home, wait))
    site.running(batch, 4)
    host, *_ = site.where(batch)
    body = site.body_of(host)
    site.bodies.crash(body)
    if who == "somebody":
        home.until(lambda: site.shown_server(body.server)["suspected_since"], 600, "it is suspected")
        home.rota("allocations", "--end", site.shown_server(body.server)["allocation"])
    home.until(lambda: body.server not in {row["id"] for row in site.cloud.servers()}, 600, "it is destroyed")
    site.running(batch, 4)
    go()
    assert home.settled(batch, seconds=600) == {"COMPLETED": 4}
    assert verdict(home, batch).executions >= 6
    site.over()


def test_a_flavor_with_gpus_is_for_jobs_that_want_them(site):
    site.configure(
        flavors="[cg].*", more='prices = {"c1.small" = 1, "c2.medium" = 2, "c4.large" = 4, "c8.huge" = 8, "g4.gpu" = 9}'
    )
    home = site.home
    plain, gpus = home.add("--cores", "4", "--", "true"), home.add("--gpus", "2", "--", "true")
    assert home.settled(plain, gpus, seconds=600) == {"COMPLETED": 2}
    flavors = {row["native_id"]: row["queue"] for row in home.ask("allocations")["allocations"]}
    assert set(flavors.values()) <= {"c4.large", "g4.gpu"}
    assert flavors[home.job(f"{gpus}.1")["native_id"]] == "g4.gpu"
    site.over()


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
    site.configure(cloud="mars")
    assert "clouds.yaml has test" in home.rota("up", code=None).stderr
    assert site.tags() == []


def test_of_an_image_without_python_one_server_is_made(site):
    home = site.home
    site.configure(image="no-python")
    batch = home.add("--", "true")
    words = "no more servers are made of it"
    home.until(lambda: words in home.rota("sites").stdout, 300, words)
    home.until(lambda: "the image has no Python" in home.rota("explain", batch).stdout, 300, "it is explained")
    site.over()
    assert len(site.tags()) == 1
    home.rota("remove", batch)
