"""The driver of clouds over a fake one in virtual time, the fake one itself, and what it says of OpenStack."""

import asyncio

import pytest
from msgspec.structs import replace

from driver_world import run_virtual, virtual_times
from rota.drivers.api import Ask, Known
from rota.drivers.cloud import CloudDriver
from rota.drivers.cloud_records import CloudSettings, Kept, MemoryRecords, Records
from rota.drivers.farm import Hardware, HostError, NoPythonError, Package
from rota.drivers.provider import FAILED, GONE, RESTARTING, RUNNING, STOPPED, CloudError, Order, load_provider
from rota.drivers.transport import UnreachableError
from rota.model.errors import RefusedError, UsageError
from rota.model.needs import Amounts
from rota.model.site import SiteFacts
from rota.testing.check_cloud import check_cloud
from rota.testing.fake_cloud import SIZES, FakeCloud


class Host:
    """A server as a host; what its runner is, a test says."""

    def __init__(self, hosts, kept):
        self.hosts, self.kept = hosts, kept
        self.directory, self.hardware = "/rota", None

    async def prepare(self, package):
        if self.kept.server in self.hosts.cut:
            raise UnreachableError("No route to host", ran=False)

    async def ask(self, package, what, timeout_s, **more):
        await self.prepare(package)
        self.hosts.asked.append(what)
        if what == "look" and self.kept.server in self.hosts.silent:
            await asyncio.sleep(timeout_s)
            raise UnreachableError("Connection timed out", ran=False)
        if what == "probe":
            if self.hosts.without_python > 0:
                self.hosts.without_python -= 1
                raise NoPythonError("has no Python", self.kept.server)
            return {"cores": 1, "memory": 1, "disk": 1, "gpus": 0, "host": "h", "boot": "1"}
        if what == "start":
            self.hosts.state.setdefault(self.kept.server, "run")
            return {"pid": 7, "start": 1, "boot": "1"}
        if what == "end":
            self.hosts.state[self.kept.server] = "over"
            return {}
        (tag,) = more["tags"]
        found = self.hosts.state.get(self.kept.server, "over")
        return {tag: {"state": found.partition(" ")[0], "there": not found.endswith("empty")}}

    async def put(self, path, data, mode):
        self.hosts.asked.append(f"put {path}")

    async def run(self, script, timeout_s):
        self.hosts.asked.append("run")
        return self.hosts.code, "words"


class Hosts:
    package = Package("runner", "0", "")

    def __init__(self):
        self.state, self.cut, self.asked, self.code = {}, set(), [], 0
        self.silent = set()
        """Servers that take a question and answer nothing."""
        self.without_python = 0
        """How often they say that they have none."""

    def reach(self, kept):
        return Host(self, kept)

    def command(self, kept, host, until_s):
        assert isinstance(host.hardware, Hardware)
        return "script", {}

    async def bring_home(self, kept, host):
        self.asked.append("home")

    def left(self, kept):
        self.asked.append("left")


class World:
    """A driver, a cloud, and a little of a manager."""

    def __init__(self, disk=None, cloud=None, **settings):
        self.times = virtual_times()
        self.cloud = cloud or FakeCloud(self.times.wall, build_s=2.0, destroy_s=2.0)
        self.hosts = Hosts()
        self.disk = {} if disk is None else disk
        usual = {"poll_s": 5.0, "poll_busy_s": 1.0, "boot_s": 60.0, "settle_s": 10.0, "paid_s": 600}
        self.settings = CloudSettings("me", "rota", "i1", **usual | settings)
        self.driver = self.make()

    def make(self):
        facts = lambda: SiteFacts(Amounts())  # noqa: E731
        driver = CloudDriver(self.cloud, self.hosts, MemoryRecords(self.disk), self.settings, facts, self.times)
        driver.offer.sizes = {size.name: size for size in SIZES}
        driver.wanted = set
        driver.offer.prices = {"tiny": 1.0, "small": 2.0, "large": 8.0}
        return driver

    def ask(self, tag="a" * 12, size="small", time_s=None):
        node = next(each.node for each in SIZES if each.name == size)
        return Ask(tag, "rota", (f"a{tag[0]}",), node, "", "/", time_s=time_s, options=(("partition", size),))

    async def poll(self, tag="a" * 12, native=None, seconds=1.0):
        await asyncio.sleep(seconds)
        seen = await self.driver.poll([Known(f"a{tag[0]}", tag, native)])
        return seen[0] if seen else None

    async def until(self, verbs, tag="a" * 12, native=None, seconds=2.0, most=400):
        for _ in range(most):
            seen = await self.poll(tag, native, seconds)
            if seen is not None and seen.verb in verbs:
                return seen
        raise AssertionError(f"never {verbs}: {self.disk}, {self.driver.suspects}")

    async def up(self, tag="a" * 12, **more):
        (native,) = await self.driver.submit(self.ask(tag, **more))
        assert (await self.until(("run",), tag, native)).native_id == native
        return native


def test_the_fake_cloud_passes_the_exam():
    now = [1.0e9]

    def sleep(seconds):
        now[0] += seconds

    check_cloud(FakeCloud(lambda: now[0], build_s=3.0, destroy_s=3.0), size="small", network="inside", sleep=sleep)


@pytest.mark.parametrize("what", ["untagged", "left", "uncounted", "unlisted", "invented"])
def test_the_exam_finds_what_is_wrong(what):
    class Wrong(FakeCloud):
        def create(self, order):
            if what == "untagged":
                order = Order(order.owner, "", order.name, order.size, order.image)
            if what == "invented" and order.size.startswith("no-"):
                order = Order(order.owner, order.tag, order.name, "1", order.image)
            return super().create(order)

        def servers(self, owner):
            return [] if what == "unlisted" else super().servers(owner)

        def quota(self):
            found = super().quota()
            return type(found)(type(found.servers)(0, 9), found.cores, found.memory) if what == "uncounted" else found

        def destroy(self, id):
            if what != "left":
                super().destroy(id)

    now = [1.0e9]

    def sleep(seconds):
        now[0] += seconds

    with pytest.raises(AssertionError):
        check_cloud(Wrong(lambda: now[0]), within_s=0.05, sleep=sleep)


def test_a_server_comes_up_serves_and_goes():
    async def scenario():
        world = World()
        native = await world.up()
        assert world.cloud.all[native].tag == "a" * 12
        world.hosts.state[native] = "over"
        seen = await world.until(("complete",), native=native)
        assert "is done" in seen.reason
        assert world.hosts.asked[-2:] == ["home", "left"]
        assert not world.cloud.there() and world.cloud.created == {"a" * 12: 1}
        again = await world.poll(native=native, seconds=6)
        assert again.verb == "complete"  # as long as the manager asks

    run_virtual(scenario())


def test_a_cloud_that_is_destroying_a_server_is_not_asked_again():
    """Nova ignores the second request, and may keep the server for ever if the first fails meanwhile."""

    async def scenario():
        world = World()
        world.cloud.destroy_s = 120.0
        native = await world.up()
        world.hosts.state[native] = "over"
        await world.until(("complete",), native=native)
        assert world.cloud.calls.count("destroy") == 1

    run_virtual(scenario())


def test_a_delete_that_failed_or_lasts_too_long_is_repeated():
    async def scenario():
        world = World()
        world.cloud.destroy_s = 1e6
        native = await world.up()
        world.hosts.state[native] = "over"
        while not world.cloud.calls.count("destroy"):
            await world.poll(native=native)
        world.cloud.become(native, FAILED, "ERROR")
        await world.poll(native=native, seconds=10)
        await world.poll(native=native, seconds=10)
        assert world.cloud.calls.count("destroy") == 2
        world.cloud.destroy_s = 0.0
        await world.until(("complete",), native=native)
        assert world.cloud.calls.count("destroy") == 3

    run_virtual(scenario())


@pytest.mark.parametrize("fault", ["lost", "undone", "late"])
def test_a_lost_answer_makes_no_second_server(fault):
    async def scenario():
        world = World()
        faults = [fault]
        world.cloud.fault = lambda call: faults.pop() if call == "create" and faults else None
        if fault == "undone":
            with pytest.raises(CloudError, match="no server with the tag"):
                await world.driver.submit(world.ask())
            assert not world.driver.records.live()
        else:
            (native,) = await world.driver.submit(world.ask())
            assert world.cloud.all[native].tag == "a" * 12
        assert sum(world.cloud.created.values()) == (fault != "undone")

    run_virtual(scenario())


def test_a_server_that_comes_too_late_is_destroyed():
    async def scenario():
        world = World()
        world.cloud.late_s = 60.0
        faults = ["late"]
        world.cloud.fault = lambda call: faults.pop() if call == "create" and faults else None
        with pytest.raises(CloudError):
            await world.driver.submit(world.ask())
        world.driver = world.make()  # by a manager that died before it had written that down: that tag is used up
        with pytest.raises(CloudError, match="came to be"):
            await world.driver.find("a" * 12, 1)
        native = await world.up("b" * 12)
        for _ in range(60):
            await world.poll("b" * 12, native, 2.0)
        assert [server.id for server in world.cloud.there()] == [native]
        assert any("is not of any allocation" in note for note in world.driver.notes)

    run_virtual(scenario())


def test_nothing_is_destroyed_before_the_manager_has_said_what_it_has():
    async def scenario():
        world = World()
        native = await world.up()
        world.disk.clear()  # as after a backup was put back
        world.driver = world.make()
        world.driver.wanted = None
        await world.driver.learn_quota()
        await asyncio.sleep(30)
        assert [server.id for server in world.cloud.there()] == [native]
        world.driver.wanted = lambda: {"a" * 12}
        await world.driver.learn_quota()
        await world.until(("run",), native=native)  # found again, by its tag
        assert world.hosts.asked.count("start") == 2  # which starts nothing where a runner is

    run_virtual(scenario())


def test_a_manager_that_dies_in_between_finds_it_again():
    async def scenario():
        world = World()
        asked = asyncio.get_running_loop().create_task(world.driver.submit(world.ask()))
        for _ in range(20):
            await asyncio.sleep(0)
        assert world.cloud.all
        asked.cancel()
        world.disk["a" * 12] = Kept("a" * 12, "aa", "small", Amounts(2000), 2.0, 0, world.times.wall())
        world.driver = world.make()
        (native,) = await world.driver.find("a" * 12, 1)
        assert native in world.cloud.all
        await world.until(("run",), native=native)
        world.driver = world.make()
        await world.until(("run",), native=native)
        assert world.hosts.asked.count("start") == 1 and len(world.cloud.all) == 1

    run_virtual(scenario())


@pytest.mark.parametrize(
    ("what", "words", "why"),
    [
        ("error", "is in ERROR: it broke", "node-fail"),
        ("deleted", "somebody deleted it", "node-fail"),
        ("rebooted", "somebody rebooted", "node-fail"),
        ("rebuilt", "somebody rebuilt", "node-fail"),
        ("restarted", "somebody stopped and started again", "node-fail"),
    ],
)
def test_each_way_to_go_bad_has_its_own_reason(what, words, why):
    async def scenario():
        world = World()
        native = await world.up()
        if what == "error":
            world.cloud.become(native, FAILED, "ERROR", "it broke")
        elif what == "deleted":
            world.cloud.become(native, GONE, "DELETED")
        elif what in ("rebooted", "rebuilt"):
            world.hosts.state[native] = "rebooted" + " empty" * (what == "rebuilt")
        else:
            world.cloud.become(native, STOPPED, "SHUTOFF")
            for _ in range(5):
                assert await world.poll(native=native, seconds=2) is None
            assert "SHUTOFF" in world.driver.suspects["a" * 12].why
            world.cloud.become(native, STOPPED, "SHUTOFF (powering-on)")
            assert await world.poll(native=native, seconds=2) is None
            world.hosts.state[native] = "rebooted"
            world.cloud.become(native, RUNNING, "ACTIVE")
        seen = await world.until(("fail",), native=native)
        assert words in seen.reason and seen.outcome.why == why
        assert not world.cloud.there()

    run_virtual(scenario())


def test_what_does_not_answer_is_suspected_and_goes_on_when_it_is_back():
    async def scenario():
        world = World()
        native = await world.up()
        world.hosts.cut.add(native)
        for _ in range(20):
            assert await world.poll(native=native, seconds=2) is None
        suspect = world.driver.suspects["a" * 12]
        assert "No route to host" in suspect.why and world.times.wall() - suspect.since > 30
        world.hosts.cut.clear()
        await world.until(("run",), native=native)
        assert not world.driver.suspects
        world.cloud.become(native, RESTARTING, "REBOOT")
        await world.poll(native=native, seconds=6)
        assert world.driver.suspects
        assert await world.driver.terminate(Known("aa", "a" * 12, native))  # the manager takes it for dead
        assert (await world.until(("complete",), native=native)).reason == "it was told to end"
        assert not world.cloud.there()

    run_virtual(scenario())


@pytest.mark.parametrize("fails", [False, True])
def test_a_missing_server_is_no_reason_to_ask_the_cloud_all_the_time(fails):
    async def scenario():
        world = World(poll_busy_s=10.0, poll_s=30.0)
        native = await world.up()
        world.hosts.cut.add(native)
        calls = []
        world.cloud.fault = lambda call: calls.append(call) or ("away" if fails else None)
        known = Known("aa", "a" * 12, native)
        for _ in range(120):  # so does a manager that misses a runner
            world.driver.doubt(known)
            await asyncio.gather(*(world.driver.poll([known]) for _ in range(3)))
            await asyncio.sleep(1.0)
        assert bool(world.driver.suspects) != fails
        assert 11 <= calls.count("servers") <= 13, calls

    run_virtual(scenario())


def test_one_that_answers_nothing_does_not_hold_up_what_is_said_of_others():
    async def scenario():
        world = World()
        native = {tag: await world.up(tag) for tag in ("a" * 12, "b" * 12)}
        known = [Known(f"a{tag[0]}", tag, native[tag]) for tag in native]
        world.hosts.silent.add(native["a" * 12])
        began, looks, seen = world.times.mono(), world.hosts.asked.count("look"), []
        while not any(each.verb == "complete" for each in seen):
            seen = await world.driver.poll(known)
            await asyncio.sleep(1.0)
            if world.times.mono() - began > 30:
                world.hosts.state[native["b" * 12]] = "over"
        assert world.times.mono() - began < 60
        assert not world.driver.suspects and world.hosts.asked.count("look") - looks < 20, "it is asked once at a time"
        while not world.driver.suspects:
            await world.driver.poll(known)
            await asyncio.sleep(1.0)
        assert "timed out" in world.driver.suspects["a" * 12].why
        world.hosts.silent.clear()
        assert (await world.until(("run",), native=native["a" * 12])).verb == "run"
        assert not world.driver.suspects

    run_virtual(scenario())


def test_no_server_is_brought_up_before_it_is_known_how():
    async def scenario():
        world = World(public="net1")
        world.driver.learned = False
        world.driver.offer.settings = replace(world.settings, public=None)
        (native,) = await world.driver.submit(world.ask())
        for _ in range(10):
            assert await world.poll(native=native) is None
        assert not world.hosts.asked
        world.driver.offer.settings, world.driver.learned = world.settings, True
        await world.until(("run",), native=native)
        assert world.driver.records.all["a" * 12].address == world.cloud.publish(native, "net1")

    run_virtual(scenario())


def test_one_that_cannot_be_used_is_destroyed_and_its_size_left_alone():
    async def scenario():
        world = World()
        faults = ["error"]
        world.cloud.fault = lambda call: faults.pop() if call == "create" and faults else None
        (native,) = await world.driver.submit(world.ask())
        seen = await world.until(("fail",), native=native)
        assert "No valid host" in seen.reason and seen.outcome.why == "host"
        assert "no hardware" in world.driver.offer.why_closed("small") and not world.driver.offer.why_closed("tiny")
        (second,) = await world.driver.submit(world.ask("b" * 12, "tiny"))
        world.hosts.cut.add(second)
        seen = await world.until(("fail",), "b" * 12, second)
        assert "was not of use 1m after it was asked for" in seen.reason
        assert not world.cloud.there()

    run_virtual(scenario())


def test_of_an_image_without_python_no_second_server_is_made():
    async def scenario():
        world = World()
        world.hosts.without_python = 99
        (native,) = await world.driver.submit(world.ask())
        seen = await world.until(("fail",), native=native)
        assert "its runner cannot be started: has no Python" in seen.reason
        assert all(
            "the image has no Python" in world.driver.offer.why_closed(size) for size in world.driver.offer.sizes
        )
        with pytest.raises(CloudError, match="no more servers are made of it"):
            await world.driver.submit(world.ask("b" * 12, "tiny"))
        assert list(world.cloud.created) == ["a" * 12]
        assert not world.cloud.there()
        world.driver.offer.settings = replace(world.settings, image="i2")
        assert not any(map(world.driver.offer.why_closed, world.driver.offer.sizes))

    run_virtual(scenario())


@pytest.mark.parametrize("how", ["user_data", "start_script"])
def test_a_python_may_be_installed_there(how):
    async def scenario():
        world = World(**{how: "apt-get install python3"})
        world.hosts.without_python = 1
        if how == "start_script":  # it has run: the next server may do better
            (native,) = await world.driver.submit(world.ask("b" * 12))
            await world.until(("fail",), "b" * 12, native)
        await world.up()

    run_virtual(scenario())


def test_a_size_without_a_disk_that_is_refused_is_left_alone_and_says_what_helps():
    async def scenario():
        world = World()
        refused = RefusedError("Only volume-backed servers are allowed for flavors with zero disk.")
        world.cloud.create = lambda order: (_ for _ in ()).throw(refused)
        small = world.driver.offer.sizes["small"]
        with pytest.raises(RefusedError):
            await world.driver.submit(world.ask())
        world.driver.offer.sizes["small"] = replace(small, node=replace(small.node, disk=0))
        with pytest.raises(HostError, match=r"zero disk.*the flavor small has no disk; give `volume"):
            await world.driver.submit(world.ask())
        assert "no disk" in world.driver.offer.why_closed("small") and not world.driver.offer.why_closed("tiny")
        assert not world.disk

    run_virtual(scenario())


def test_sets_of_sizes_are_left_alone_together():
    async def scenario():
        world = World()
        world.driver.offer.sets = {"tiny": 0, "small": 0, "large": 1}
        world.driver.offer.close("tiny", 60, "no hardware")
        assert [name for name in world.driver.offer.sizes if not world.driver.offer.why_closed(name)] == ["large"]

    run_virtual(scenario())


def test_quota_and_limits_are_respected_before_the_cloud_is_asked():
    async def scenario():
        world = World(servers_most=3, cores_most=11_000, money_most=6.0)
        world.cloud._most = (10, 11_000, None)
        await world.up("a" * 12, size="large", time_s=600)  # 8 × 20 minutes: 2.67
        with pytest.raises(HostError, match=r"max_cores: 3 of 11 cores left, 8 asked"):
            await world.driver.submit(world.ask("b" * 12, "large"))
        with pytest.raises(HostError, match=r"max_cost_per_day: 3.333 of 6 left, 4.333 asked"):
            await world.driver.submit(world.ask("c" * 12, "small", 7200))
        world.cloud._most = (10, 9000, None)
        with pytest.raises(HostError, match=r"quota: 1 of 9 cores left, 2 asked"):
            await world.driver.submit(world.ask("d" * 12, "small", 600))
        assert list(world.cloud.created) == ["a" * 12]
        await world.driver.learn_quota()
        bounds = {(bound.name, bound.what): bound for bound in world.driver.offer.bounds()}
        assert (bounds["quota", "cores"].most, bounds["quota", "cores"].others) == (9000, 0)
        assert bounds["max_cost_per_day", "money"].others == 0

    run_virtual(scenario())


def test_files_are_copied_and_the_start_script_runs_before_the_runner():
    async def scenario():
        world = World(files=(("/etc/x", b"x", 0o600),), start_script="true", end_script="true")
        native = await world.up()
        assert world.hosts.asked[:4] == ["put /etc/x", "run", "probe", "start"]
        await world.driver.terminate(Known("aa", "a" * 12, native))
        await world.until(("complete",), native=native)
        assert world.hosts.asked[-3:] == ["home", "run", "left"]
        world = World(start_script="false")
        world.hosts.code = 1
        (native,) = await world.driver.submit(world.ask("b" * 12))
        seen = await world.until(("fail",), "b" * 12, native)
        assert "start_script ended with 1: words" in seen.reason and "console" in seen.reason
        assert not world.cloud.there()

    run_virtual(scenario())


def test_at_most_so_many_are_in_the_making():
    async def scenario():
        world = World(spawns_most=1)
        loop = asyncio.get_running_loop()
        tasks = [loop.create_task(world.driver.submit(world.ask(letter * 12, "tiny"))) for letter in "ab"]
        await asyncio.sleep(1.0)
        assert len(world.cloud.all) == 1
        first = next(iter(world.cloud.all.values()))
        await world.until(("run",), first.tag, first.id)
        await asyncio.gather(*tasks)
        assert len(world.cloud.all) == 2

    run_virtual(scenario())


def test_records_are_read_again(tmp_path):
    records = Records(str(tmp_path))
    kept = records.keep(Kept("a" * 12, "a1", "small", Amounts(2000, 4), 2.0, 600, 5.0, server="s"))
    assert Records(str(tmp_path)).all == {"a" * 12: kept}
    records.forget("a" * 12)
    assert Records(str(tmp_path)).all == {}


def test_what_a_server_costs():
    kept = Kept("a" * 12, "a1", "small", Amounts(), 3.6, 100, asked=1000.0)
    assert kept.cost(0.0, 1050.0, 50.0) == pytest.approx(0.15)  # put aside for 150 s
    assert kept.cost(0.0, 1400.0, 50.0) == pytest.approx(0.4)  # longer than that
    gone = Kept("a" * 12, "a1", "small", Amounts(), 3.6, 100, asked=1000.0, gone=1020.0)
    assert gone.cost(0.0, 2000.0, 50.0) == pytest.approx(0.02)
    assert gone.cost(1010.0, 2000.0, 50.0) == pytest.approx(0.01)


def test_clouds_by_name():
    with pytest.raises(UsageError, match="there is no cloud 'nowhere'; there are openstack"):
        load_provider("nowhere", None)


def test_what_openstack_says(monkeypatch, tmp_path):
    openstack = pytest.importorskip("openstack")
    from rota.drivers.openstack import OpenStack

    for name in ("OS_CLOUD", "OS_AUTH_URL", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    path = tmp_path / "clouds.yaml"
    path.write_text(
        "clouds:\n  lab:\n    auth: {auth_url: 'http://127.0.0.1:1/v3', username: a, password: b, project_name: p, "
        "user_domain_id: default, project_domain_id: default}\n"
    )
    monkeypatch.setenv("OS_CLIENT_CONFIG_FILE", str(path))
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(UsageError, match=r"there is no cloud 'lap': clouds\.yaml has lab"):
        OpenStack("lap")
    cloud = OpenStack("lab")
    with pytest.raises(CloudError, match="Connection refused") as error:
        cloud.sizes()
    assert not error.value.ran

    class Answer:
        status_code, headers, request = 403, {}, None

    quota = openstack.exceptions.HttpException("Quota exceeded for cores", response=Answer())
    assert type(cloud._error("create", quota, True)).__name__ == "QuotaError"
    Answer.status_code = 400
    assert (
        type(cloud._error("create", openstack.exceptions.HttpException("x", Answer()), True)).__name__ == "RefusedError"
    )
    Answer.status_code = 503
    lost = cloud._error("create", openstack.exceptions.HttpException("x", Answer()), True)
    assert isinstance(lost, CloudError) and lost.ran
