"""A cloud as a site of a real manager: servers come with the demand and go without it. Its servers are this machine."""

import json
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from process.support_home import Home, home

__all__ = ["home"]

CLOUDS = str(Path(__file__).resolve().parents[1] / "data" / "clouds")
sys.path.append(CLOUDS)
SSH = """#!/bin/sh
# Goes nowhere: the command is run here. What is before -- is options and the host.
for word in "$@"; do [ "$word" = -O ] && exit 0; done
while [ $# -gt 0 ] && [ "$1" != -- ]; do shift; done
shift
SSH_CONNECTION="127.0.0.1 1 127.0.0.1 22" exec sh -c "$*"
"""
SITE = """
[site.cloud]
driver = "pretend"
image = "{image}"
network = "{network}"
flavors = ["{flavors}"]
key = "mine"
keep_alive = "{keep_alive}"
directory = "{directory}"
poll = "1s"
poll_least = "1s"
max_servers = {most}
options = {{file = "{file}"}}
{more}
"""


class Cloud:
    """A home whose only site is a pretended cloud."""

    def __init__(self, home: Home) -> None:
        from pretend_cloud import PretendCloud

        self.home = home
        self.file = str(home.work / "cloud.json")
        self.provider = PretendCloud(None, {"file": self.file})
        programs = home.work / "bin"
        programs.mkdir()
        (programs / "ssh").write_text(SSH)
        (programs / "ssh").chmod(0o755)
        home.env["PYTHONPATH"] = CLOUDS
        home.env["PATH"] = f"{programs}:{os.environ['PATH']}"

    def configure(self, **said: object) -> None:
        """Write the configuration."""
        usual = {"image": "debian-12", "network": "inside", "flavors": "small", "keep_alive": "2s", "most": 2}
        usual |= {"more": "", "file": self.file, "directory": str(self.home.work / "servers")}
        self.home.config(SITE.format(**usual | said))

    def there(self) -> list[str]:
        """The servers that are not gone."""
        with self.provider.kept() as cloud:
            return [server.id for server in cloud.there()]

    def created(self) -> dict[str, int]:
        """Tag → how many servers were made with it."""
        with self.provider.kept() as cloud:
            return dict(cloud.created)

    def over(self) -> None:
        """Wait until no server is left; none was made twice."""
        self.home.until(lambda: not self.there(), 120, "all servers are gone")
        assert set(self.created().values()) <= {1}


@pytest.fixture
def cloud(home: Home) -> Iterator[Cloud]:
    yield Cloud(home)
    home.rota("down", "--kill", code=None)
    servers = str(home.work / "servers").encode()
    for path in Path("/proc").glob("[0-9]*/cmdline"):  # what a real server takes with it stays on this machine
        try:
            if servers in path.read_bytes():
                os.kill(int(path.parent.name), signal.SIGKILL)
        except OSError:
            pass  # it has just ended


def test_servers_come_with_the_demand_and_go_without_it(cloud: Cloud) -> None:
    home = cloud.home
    cloud.configure(more="prices = {small = 0.5}\nmax_cost_per_day = 20")
    gate = home.gate()
    batch = home.add("--array", "1-4", "--", f"echo here; {gate.wait}")
    home.until(lambda: home.counts(batch).get("RUNNING") == 4, what="two servers, with two jobs each")
    assert len(cloud.there()) == 2
    (site,) = home.json("sites", "cloud")["sites"]
    assert site["state"] == "ok", site
    shown = home.rota("sites", "cloud").stdout
    assert shown.count(": runs") == 2 and "0.5 an hour" in shown
    assert "0.5 an hour" in home.rota("doctor", "cloud").stdout
    assert [row["flavor"] for row in site["servers"]] == ["small", "small"]
    assert any("of 20 are spent" in note for note in site["notes"]), site["notes"]
    gate.open()
    assert home.settled(batch) == {"COMPLETED": 4}
    cloud.over()
    costs = home.json("report", "costs")
    (row,) = costs["batches"]
    assert row["batch"] == int(batch) and row["cost"] == pytest.approx(costs["total"]) and row["cost"] > 0
    assert {each["flavor"] for each in costs["servers"]} == {"small"}
    assert "all servers" in home.rota("report", "costs", batch).stdout
    shutil.rmtree(home.work / "servers")
    assert home.rota("log", f"{batch}.3").stdout == "here\n"  # brought home before its server was destroyed
    home.until(lambda: {row["state"] for row in home.json("allocations")["allocations"]} == {"COMPLETED"})


@pytest.mark.parametrize("option", ["--input", "--output"])
def test_that_no_files_are_brought_to_servers_is_said(cloud: Cloud, option: str) -> None:
    home = cloud.home
    cloud.configure()
    batch = home.add(option, "x", "--", "true")
    assert home.settled(batch) == {"FAILED": 1}
    assert "a server of a cloud sees no files of this machine" in home.json("explain", f"{batch}.1")["reason"]
    cloud.over()


def test_a_manager_that_dies_finds_its_servers_again(cloud: Cloud) -> None:
    home = cloud.home
    cloud.configure()
    gate = home.gate()
    batch = home.add("--array", "1-4", "--", gate.wait)
    home.until(cloud.there, what="a server is asked for")
    home.kill_manager(signal.SIGKILL)
    home.rota("up")
    home.until(lambda: home.counts(batch).get("RUNNING") == 4)
    home.kill_manager(signal.SIGKILL)
    home.rota("up")
    gate.open()
    assert home.settled(batch) == {"COMPLETED": 4}
    cloud.over()
    assert len(cloud.created()) == 2


def test_what_is_of_no_allocation_is_destroyed(cloud: Cloud) -> None:
    home = cloud.home
    cloud.configure(keep_alive="10m")
    gate = home.gate()
    batch = home.add("--", gate.wait)
    home.until(lambda: home.counts(batch).get("RUNNING") == 1)
    owner = (Path(home.path) / "sites" / "cloud" / "owner").read_text().strip()
    from rota.drivers.provider import Order

    left = cloud.provider.create(Order(owner, "0" * 12, "rota-left", "2", "i1"))
    others = cloud.provider.create(Order("rota-another", "1" * 12, "rota-other", "2", "i1"))
    answer = home.json("sites", "clean")
    assert {row["id"] for row in answer["deleted"]} <= {left.id}
    assert [row["site"] for row in answer["kept"]] == ["cloud"]
    home.until(lambda: left.id not in cloud.there())
    assert others.id in cloud.there()
    assert home.json("sites", "clean")["deleted"] == []
    assert home.rota("sites", "clean", "nowhere", code=2).stderr.startswith("rota: there is no site 'nowhere'")
    (live,) = home.json("allocations", "--live")["allocations"]
    home.rota("allocations", "--end", live["id"])  # as if it were dead
    home.until(lambda: home.json("allocations")["allocations"][-1]["state"].endswith("ED"))
    gate.open()
    assert home.settled(batch) == {"COMPLETED": 1}


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"image": "windows"}, "image 'windows': the cloud has no such thing; it has debian-12, ubuntu-24.04"),
        ({"network": "outer"}, "network 'outer': the cloud has no such thing; it has inside, world"),
        ({"flavors": "huge.*"}, "no flavor matches huge.*: the cloud has large, small, tiny"),
        ({"more": 'security_groups = ["open"]'}, "security_groups 'open': the cloud has no such thing; it has default"),
    ],
)
def test_what_is_wrong_is_said_with_what_there_is(cloud: Cloud, said: dict[str, str], words: str) -> None:
    home = cloud.home
    cloud.configure(**said)
    home.add("--", "true")

    def shown() -> bool:
        (site,) = home.json("sites", "cloud")["sites"]
        return words in json.dumps(site, ensure_ascii=False) or words in json.dumps(home.json("allocations"))

    home.until(shown, what=words)
    assert not cloud.created()  # before anything was created
    home.rota("down", "--kill")


def test_explained(cloud: Cloud) -> None:
    home = cloud.home
    cloud.configure(flavors="(small|large)", most=1)
    home.rota("up")
    home.until(lambda: home.json("sites", "cloud")["sites"][0]["queues"])
    refused = home.rota("add", "--memory", "512G", "--", "true", code=None)
    said = refused.stdout + refused.stderr
    assert "no flavor has 512G memory; the largest has 16G memory" in said, said
    gate = home.gate()
    first = home.add("--", gate.wait)
    home.until(lambda: home.counts(first).get("RUNNING") == 1)
    second = home.add("--cores", "8", "--", "true")
    words = "max_servers: 0 of 1 servers left, 1 asked"
    home.until(lambda: words in json.dumps(home.json("explain", f"{second}.1")), what=words)
    gate.open()
    assert home.settled() == {"COMPLETED": 2}


def test_credentials_and_names_of_clouds(home: Home) -> None:
    for words, more in (("there are no credentials for a cloud", ""), ("there is no cloud 'lab'", 'cloud = "lab"')):
        home.config(f'[site.os]\ndriver = "openstack"\nimage = "x"\n{more}\n')
        env = {name: "" for name in os.environ if name.startswith("OS_")}
        done = home.rota("up", code=None, env=env | {"HOME": str(home.work), "XDG_CONFIG_HOME": str(home.work)})
        assert done.returncode != 0
        assert words in done.stderr, done.stderr
    home.config('[site.os]\ndriver = "openstak"\nimage = "x"\n')
    assert "openstak" in home.rota("up", code=None).stderr
    home.config('[site.hpc]\ndriver = "slurm"\nmax_servers = 3\n')
    assert "max_servers: this is for clouds" in home.rota("up", code=None).stderr
