"""What queues offer by the batch system and the configuration; what an allocation asks for; what is learned."""

import asyncio

import pytest

from core_world import World
from rota.cli.places import queue_words
from rota.drivers.dialect import Queue
from rota.manager import observing
from rota.manager.config import SiteConfig, load_config
from rota.manager.observing import Observer
from rota.manager.paths import Paths
from rota.manager.sites.api import Site
from rota.manager.sites.batch import BatchSite
from rota.manager.sites.local import LocalSite
from rota.manager.sites.queues import UNKNOWN, queue_facts, queue_row
from rota.model.allocation import Allocation
from rota.model.errors import BusyError, UsageError
from rota.model.needs import Amounts
from rota.model.site import QueueFacts, SiteFacts

GIB = 1 << 30
SHORT = Queue("short", True, 8, 4000, 16 * GIB, 0, 600, True)
LONG = Queue("long", False, None, None, None, None, None, True, nodes_most=2)
CLOSED = Queue("closed", False, 8, 4000, 16 * GIB, 0, 600, False)
HIDDEN = Queue("hidden", False, 8, 4000, 16 * GIB, 0, 600, True, hidden=True)
THEIRS = Queue("theirs", False, 8, 4000, 16 * GIB, 0, 600, True, users=("ann",))
ALL = (SHORT, LONG, CLOSED, HIDDEN, THEIRS)


@pytest.mark.parametrize(
    ("config", "auto"),
    [
        ({}, {"short", "long"}),
        ({"partition": "long"}, {"long"}),
        ({"partition": "hidden"}, {"hidden"}),
        ({"queues": ["short", "hidden", "closed", "theirs"]}, {"short", "hidden"}),
        ({"queues": ["short"], "partition": "long"}, {"short"}),
        ({"queues": []}, set()),
    ],
)
def test_which_queues_are_for_jobs_that_name_none(config, auto):
    facts = [queue_facts(SiteConfig(driver="slurm", **config), queue, "me") for queue in ALL]
    assert {queue.name for queue in facts if queue.auto} == auto
    assert {queue.name for queue in facts if queue.up} == {"short", "long", "hidden"}
    mine = queue_facts(SiteConfig(driver="slurm", **config), THEIRS, "ann")
    assert mine.up and mine.auto == ("theirs" in config.get("queues", ["theirs"]) and "partition" not in config)


def test_what_nobody_says_is_not_known_and_what_is_configured_is_stronger():
    config = SiteConfig(driver="slurm", tags=["ib"], node_resources={"scratch_slots": 2, "none": 0})
    long = queue_facts(config, LONG, "")
    named = (("scratch_slots", 2),)
    assert long == QueueFacts(
        "long", Amounts(UNKNOWN.cores, UNKNOWN.memory, UNKNOWN.disk, UNKNOWN.gpus, named), tags=("ib",), nodes_most=2
    )
    row = queue_row(long)
    assert [row[key] for key in ("nodes", "cores", "memory", "gpus", "time_s", "nodes_most")] == [None] * 5 + [2]
    short = queue_facts(config, SHORT, "")
    assert short.node == Amounts(4000, 16 * GIB, UNKNOWN.disk, 0, named) and (short.nodes, short.time_most_s) == (
        8,
        600,
    )
    config = SiteConfig(driver="slurm", cores_text=2, memory_text="1G", longest="5m")
    found = [queue_facts(config, queue, "") for queue in (SHORT, LONG)]
    assert [(q.node.cores, q.node.memory, q.time_most_s) for q in found] == [(2000, GIB, 300)] * 2
    longer = queue_facts(SiteConfig(driver="slurm", longest="1d"), SHORT, "")
    assert longer.time_most_s == 600, "the site may not promise what a queue does not give"


def test_queues_for_people():
    config = SiteConfig(driver="slurm", queues=["long"])
    shown = [queue_words(queue_row(queue_facts(config, queue, "me"))) for queue in ALL]
    assert shown[:3] == [
        "short (default) (if named): 8 nodes, up to 4 cores, 16G memory, at most 10m00s",
        "long: no time limit known",
        "closed (closed): 8 nodes, up to 4 cores, 16G memory, at most 10m00s",
    ]
    few = queue_facts(config, SHORT._replace(nodes_most=2, gpus=4), "me")
    assert "8 nodes, at most 2 for a job, up to 4 cores, 16G memory, 4 gpus" in queue_words(queue_row(few))


class NoDoor:
    def open(self, allocation):
        return ["--connect", "tls:here"]


def batch_site(tmp_path, driver="slurm", **config):
    config = SiteConfig(driver=driver, directory=str(tmp_path), parallel_environment="mp", **config)
    return BatchSite("hpc", config, Paths(str(tmp_path)), NoDoor(), user="me", install=False)


@pytest.mark.parametrize("driver", ["slurm", "pbs", "torque", "lsf", "openlava", "sge"])
def test_an_allocation_of_several_nodes_in_a_queue(driver, tmp_path):
    site = batch_site(
        tmp_path,
        driver,
        partition="usual",
        resources={"lic": 4},
        node_resources={"slots": 2},
        native_resources={"fpga": 2},
    )
    assert dict(site.facts().node.named) == {"fpga": 2, "slots": 2}, "jobs can ask for both"
    needs = Amounts(2000, GIB, 0, 0, (("fpga", 1), ("lic", 1), ("slots", 1)))
    first = Allocation("a1", "hpc", "0" * 12, capacity=needs, queue="days", nodes=3, time_s=600)
    ask = site.ask(first.tag, [first])
    assert (ask.nodes, ask.tasks_per_node, ask.options) == (3, 1, (("partition", "days"),))
    assert ask.amounts.named == (("fpga", 1),), "what only we count is not asked for"
    line = " ".join(site.driver.dialect.submit(ask, site.driver.options).argv)
    assert "days" in line and "usual" not in line and "fpga" in line
    assert f'{first.tag}."$ROTA_ELEMENT"."$rota_node"' in ask.script and "--supervise" in ask.script
    own = Allocation("a1", "hpc", "0" * 12, capacity=needs, queue="days", options=(("partition", "mine"),))
    alone = site.ask(own.tag, [own])
    assert alone.options == (("partition", "mine"),) and "--supervise" not in alone.script and alone.nodes == 1
    direct = Allocation("a1", "hpc", "0" * 12, direct=True, options=(("nodes", "2"), ("tasks-per-node", "4")))
    assert (site.ask("0" * 12, [direct]).nodes, site.ask("0" * 12, [direct]).tasks_per_node) == (2, 4)


def test_facts_of_a_site(tmp_path):
    site = batch_site(tmp_path, resources={"lic": 4, "b": 1}, node_resources={"slots": 2})
    facts = site.facts()
    assert facts.shared == (("b", 1), ("lic", 4)) and facts.node.named == (("slots", 2),) and facts.nodes_most > 10_000
    site._spread = None
    assert site.facts().nodes_most == 1, "a dialect of others may have no way"
    with pytest.raises(UsageError, match="starts runners on 2 nodes"):
        site.ask("0" * 12, [Allocation("a1", "hpc", "0" * 12, nodes=2)])
    site.queues = ALL
    assert [queue.name for queue in site.facts().queues] == [queue.name for queue in ALL]
    times = {queue.name: queue.time_most_s for queue in site.facts().queues}
    assert times == {"short": 600, "long": None, "closed": 600, "hidden": 600, "theirs": 600}
    config = SiteConfig(resources={"lic": 4}, node_resources={"slots": 2})
    here = LocalSite("local", config, Paths(str(tmp_path)), NoDoor()).facts()
    assert (here.shared, here.node.named, here.nodes_most, here.queues) == ((("lic", 4),), (("slots", 2),), 1, ())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("resources = {'a b' = 1}", r"\[site\.x\] resources: resource 'a b=1': write name=count"),
        ("node_resources = {a = -1}", r"\[site\.x\] node_resources: resource 'a=-1'"),
        ("resources = {a = 'x'}", r"\[site\.x\] resources\[\.\.\.\]: expected `int`"),
        (
            "resources = {a = 1}\nnode_resources = {a = 1}",
            r"\[site\.x\] a: give it in resources .* in node_resources .* or in native_res",
        ),
        ("node_resources = {a = 1}\nnative_resources = {a = 1}", r"\[site\.x\] a: give it in resources"),
        ("native_resources = {a = 1}", r"\[site\.x\] native_resources: this machine has no batch system"),
    ],
)
def test_resources_are_checked(text, said, tmp_path):
    (tmp_path / "config.toml").write_text(f"[site.x]\n{text}\n")
    with pytest.raises(UsageError, match=said):
        load_config(str(tmp_path))


def test_a_node_has_the_named_resources_of_its_site_or_of_its_allocation():
    node = Amounts(8000, 8 * GIB, 0, 0, (("slots", 2),))
    world = World(site=False)
    world.site("local", node)
    world.submit(1)
    world.schedule()
    runner = world.start_runner(capacity=Amounts(8000, 8 * GIB))
    assert world.state.runners[runner.name].capacity.named == (("slots", 2),)


class Told(Site):
    """A site that says one thing after another."""

    name = "hpc"

    def __init__(self, *says):
        self.says, self.silent = list(says), asyncio.Event()

    def facts(self):
        return SiteFacts(Amounts(1))

    async def learn(self):
        if not self.says:
            self.silent.set()
            await asyncio.Event().wait()
        said = self.says.pop(0)
        if isinstance(said, Exception):
            raise said
        return said


def test_facts_are_learned_again_and_told_when_they_differ(monkeypatch):
    for name in ("LEARN_S", "LEARN_AGAIN_S"):
        monkeypatch.setattr(observing, name, 0.0)
    one, two = SiteFacts(Amounts(1000)), SiteFacts(Amounts(2000))
    site, told = Told(BusyError("not now"), one, one, BusyError("again"), two, two, one), []
    observer = Observer({"hpc": site}, None, (), lambda stimulus: told.append(stimulus.facts))

    async def learn():
        observer.start()
        await site.silent.wait()

    asyncio.run(learn())
    assert told == [SiteFacts(Amounts(1)), one, two, one]
