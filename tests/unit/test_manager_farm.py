"""What is said of the hosts of a farm, and how a farm looks to the scheduler."""

import asyncio

import pytest

from rota.drivers.farm import Hardware, Host, Runner
from rota.drivers.transport import UnreachableError
from rota.manager.config import Config, SiteConfig, load_config
from rota.manager.paths import Paths
from rota.manager.sites.doors import TlsDoor
from rota.manager.sites.farm import FarmSite, check_hosts, read_hosts
from rota.model.errors import UsageError
from rota.model.needs import Amounts, Needs
from rota.schedule.queues import impossible, queue_places

GIB = 1 << 30


def hosts(*lines, file=None):
    return read_hosts(SiteConfig(driver="ssh", hosts=list(lines), hosts_file=file))


def test_hosts_are_read_from_the_list_and_from_a_file(tmp_path):
    file = tmp_path / "hosts"
    file.write_text("# ours\n\nann@b.example.org  cores=8 memory=16G gpus=2 tags=big,ssd # the large one\n")
    found = hosts("a", "c directory=/scratch/r python=/opt/python3", file=str(file))
    assert list(found) == ["a", "c", "b.example.org"]
    large = found["b.example.org"]
    assert (large.target, large.cores, large.memory, large.gpus, large.tags) == (
        "ann@b.example.org", 8000, 16 * GIB, 2, ("big", "ssd"),
    )  # fmt: skip
    assert (found["c"].directory, found["c"].python) == ("/scratch/r", "/opt/python3")


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ((), "no hosts: give hosts"),
        (("a", "ann@a"), "'ann@a': a is there twice"),
        (("-oProxyCommand=x",), "is no host"),
        (("a;b",), "'a;b' is no host"),
        (("a cores=x",), "'a cores=x': cores: "),
        (("a memory=lots",), "memory: "),
        (("a colour=red",), "'colour=red': after the host stand cores=…, memory=…"),
        (("a directory=scratch",), "directory: 'scratch': give an absolute path"),
    ],
)
def test_a_line_that_is_wrong_is_named(lines, words):
    with pytest.raises(UsageError) as error:
        hosts(*lines)
    assert words in str(error.value)


def test_a_file_that_is_wrong_is_named_with_the_line(tmp_path):
    file = tmp_path / "hosts"
    file.write_text("a\nb\na\n")
    with pytest.raises(UsageError, match="hosts, line 3: a is there twice"):
        hosts(file=str(file))
    with pytest.raises(UsageError, match=r"hosts_file .*missing.*No such file"):
        hosts(file=str(tmp_path / "missing"))


def test_16_a_file_that_the_configuration_names_is_beside_it_wherever_the_manager_is_started(tmp_path, monkeypatch):
    home, elsewhere = tmp_path / "home", tmp_path / "elsewhere"
    home.mkdir()
    elsewhere.mkdir()
    (home / "config.toml").write_text('[site.farm]\ndriver = "ssh"\nhosts_file = "hosts"\n')
    (home / "hosts").write_text("a\n")
    (elsewhere / "hosts").write_text("wrong\n")
    monkeypatch.chdir(elsewhere)
    config = load_config(str(home)).site["farm"]
    assert list(read_hosts(config)) == ["a"]
    paths = Paths(str(home))
    site = FarmSite("farm", config, paths, TlsDoor(paths))
    assert not site.is_other(load_config(str(home)).site["farm"])
    (home / "hosts").write_text("a\nb\n")
    assert site.is_other(load_config(str(home)).site["farm"]), "a reload takes the file over"


def test_a_host_in_two_sites_is_refused():
    config = Config(site={name: SiteConfig(driver="ssh", hosts=["x", name]) for name in ("one", "two")})
    with pytest.raises(UsageError, match=r"config.toml: \[site.two\] x is a host of \[site.one\] too"):
        check_hosts(config, "config.toml")


def test_a_farm_has_no_direct_mode(tmp_path):
    (tmp_path / "config.toml").write_text('[site.f]\ndriver = "ssh"\nmode = "direct"\nhosts = ["a"]\n')
    with pytest.raises(UsageError, match="the driver ssh has runners"):
        load_config(str(tmp_path))


@pytest.fixture
def site(tmp_path):
    paths = Paths(str(tmp_path))
    return FarmSite("farm", SiteConfig(driver="ssh", hosts=["a cores=4", "b tags=big"]), paths, TlsDoor(paths))


def up(site, name, cores=2000, memory=4 * GIB):
    host = site.driver.hosts[name]
    host.hardware = Hardware(cores, memory, 10 * GIB, 0, name, "boot")
    host.sees(None)


def test_each_host_is_a_place_with_what_it_has_or_what_is_left_of_it(site):
    assert [(queue.name, queue.up) for queue in site.facts().queues] == [("a", False), ("b", False)]
    up(site, "a")
    up(site, "b")
    a, b = site.facts().queues
    assert a.node == Amounts(4000, 4 * GIB, 10 * GIB) and b.node == Amounts(2000, 4 * GIB, 10 * GIB)
    assert (a.up, a.most, a.nodes, b.tags) == (True, 1, 1, ("big",))
    assert site.facts().most == 2


def test_hosts_are_asked_again_and_what_they_have_is_what_they_said_last(site, monkeypatch):
    says = {"a": 4, "b": 8}

    async def ask(host, package, what, timeout_s, **more):
        if host.name not in says:
            raise UnreachableError(f"{host.name} cannot be reached: No route to host", ran=False)
        return {"cores": 2000, "memory": says[host.name] * GIB, "disk": GIB, "gpus": 0, "host": host.name, "boot": "x"}

    async def prepare(host, package):
        host.directory = "/x"

    monkeypatch.setattr(Host, "ask", ask)
    monkeypatch.setattr(Host, "prepare", prepare)

    def learned():
        return {queue.name: (queue.node.memory // GIB, queue.up) for queue in asyncio.run(site.learn()).queues}

    assert learned() == {"a": (4, True), "b": (8, True)}
    calm = site.learn_again_s
    says["b"] = 16  # somebody has put more into it
    del says["a"]
    assert learned() == {"a": (4, False), "b": (16, True)} and site.learn_again_s < calm
    assert "No route to host" in site.shown(0)["notes"][0]
    says["a"] = 4
    assert learned() == {"a": (4, True), "b": (16, True)} and site.learn_again_s == calm


def test_17_what_a_host_says_in_bytes_is_what_its_jobs_may_have(site):
    up(site, "b", memory=3 * GIB)
    place = next(queue for queue in site.facts().queues if queue.name == "b")
    assert place.node.memory == 3 * GIB
    up(site, "a", memory=3 * GIB)
    asked = {"farm": queue_places("farm", site.facts(), {})}
    assert impossible(Needs(site="farm", memory=3 * GIB), asked) is None
    words = str(impossible(Needs(site="farm", memory=4 * GIB), asked))
    assert "the host b of farm has 3G memory, 4G memory is asked for" in words


def test_19_a_host_that_is_taken_out_stays_known_as_long_as_it_has_something_of_ours(site, tmp_path):
    site.driver._keep("0" * 12, Runner("c", "/x/rota/000000000000", 7, 8, "boot", "ann@c"))
    site.driver._keep("1" * 12, Runner("a", "/x/rota/111111111111"))
    paths = Paths(str(tmp_path))
    later = FarmSite("farm", site.config, paths, TlsDoor(paths))
    assert list(later.driver.former) == ["c"] and later.driver.former["c"].transport.host == "ann@c"
    assert {queue.name for queue in later.facts().queues} == {"a", "b"}
    assert later.over({"1" * 12}) == ["0" * 12] and later.output_of("0" * 12, "r") == "/x/rota/000000000000/0"


def test_what_no_host_can_ever_run_is_refused_with_the_numbers_of_each(site):
    def never(**needs):
        return impossible(Needs(site="farm", **needs), {"farm": queue_places("farm", site.facts(), {})})

    assert never(cores=64_000) is None  # nobody has said what they have
    up(site, "a")
    up(site, "b")
    words = never(cores=8000)
    assert "the host a of farm has 4 cores, 8 cores are asked for" in words and "the host b of farm has 2" in words
    assert never(cores=4000) is None
    site.driver.hosts["a"].sees("a cannot be reached")
    assert never(cores=4000) is None  # it may come back
