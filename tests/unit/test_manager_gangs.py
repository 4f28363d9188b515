"""What the manager tells runners of gangs: taken by a real runner's protocol, with secrets that outlive a restart."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from rota.core.effects import Hold, Lease, Order, Welcome
from rota.core.soft import Member
from rota.core.state import Settings
from rota.core.step import Core
from rota.core.stimuli import At, Greet, SiteSeen, Submit
from rota.manager.jobbook import JobBook
from rota.manager.observing import Observer
from rota.manager.outbound import Outbound
from rota.model.batch import BatchSpec, Template
from rota.model.needs import Amounts, Needs
from rota.model.site import SiteFacts
from rota.model.slot import Slot
from rota.runner.protocol import Runner
from rota.store.memory import MemoryStore
from rota.wire.files import Left
from rota.wire.messages import decode_greeting, decode_runner, encode

NOW = At(1000.0, 0.0)
SLOT = Slot(0, Amounts(2000, 1 << 30), (1,))


class Peer:
    """A connection to a runner: what it is sent."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []

    def send(self, message: dict[str, Any], flushed: bool = False) -> None:
        self.sent.append(message)


@pytest.fixture
def core() -> Core:
    core = Core(Settings())
    core.step(SiteSeen(at=NOW, site="s", facts=SiteFacts(Amounts(4000, 8 << 30), most=2, nodes_most=2)))
    template = Template(argv=("true",), needs=Needs(2000, nodes=2, memory=1 << 30), grace_s=7)
    core.step(Submit(at=NOW, spec=BatchSpec(1, (template,)), key="k"))
    return core


def greeted(core: Core, home: Path) -> tuple[Outbound, Peer, Runner]:
    """A runner in session."""
    outbound = Outbound(
        JobBook(MemoryStore(), {}, str(home)), core.state.settings, {}, lambda state, effect: None, "5e" * 16
    )
    facts = {"host": "n1", "pid": 1, "cores": 4000, "memory": 8 << 30, "disk": 0, "gpus": 2, "tags": [], "output": "/o"}
    runner, peer = Runner("r1", facts), Peer()
    greeting = decode_greeting(encode(runner.greet(0.0)))
    core.step(
        Greet(
            at=NOW,
            runner="r1",
            allocation=None,
            connect=1,
            clock=0.0,
            host="n1",
            pid=1,
            capacity=Amounts(4000, 8 << 30, 0, 2),
            held=[],
            gangs=greeting.gangs,
        )
    )
    assert core.state.runners["r1"].gangs
    outbound.greeting["r1"] = (peer, 1)  # type: ignore[assignment]
    outbound.perform(core.state, Welcome("r1", 1, 1))
    runner.receive(peer.sent.pop(), 0.0)
    return outbound, peer, runner


def test_a_runner_takes_what_it_is_told_of_gangs(core: Core, tmp_path: Path) -> None:
    outbound, peer, runner = greeted(core, tmp_path)
    outbound.perform(core.state, Hold("r1", 1, [(1, 0, 3, SLOT)]))
    ((what, hold),) = runner.receive(peer.sent.pop(), 0.0)
    assert what == "hold" and hold.key == (1, 1, 3) and hold.slot == SLOT.text
    assert hold.spec["cores"] == 2000 and hold.spec["gpus"] == [1]
    held = decode_runner(encode(runner.outgoing(0.0)[-1]))
    assert held.holds == [(1, 1, 3, "n1:0")]
    outbound.perform(core.state, Order("r1", 1, "release", [(1, 1, 3)]))
    assert peer.sent[-1]["grace_s"] == 7
    assert runner.receive(peer.sent.pop(), 0.0) == [("release", (1, 1, 3), 7)]
    runner.released((1, 1, 3))
    assert decode_runner(encode(runner.outgoing(0.0)[-1])).jobs == [(1, 1, 3)]


def test_the_root_is_told_its_nodes_and_the_secret_that_they_have(core: Core, tmp_path: Path) -> None:
    outbound, peer, runner = greeted(core, tmp_path)
    members = (Member("r1", "n1", "", SLOT), Member("r2", "n2", "n2:99", SLOT))
    outbound.perform(core.state, Lease("r1", 1, 1, 0.0, [(1, 0, 4, SLOT)], {SLOT: 1}, {(1, 0): members}))
    runner.receive(peer.sent.pop(), 0.0)
    (lease,) = runner.leases()
    assert lease.gang is not None
    assert [(node["host"], node["address"], node["cores"]) for node in lease.gang["nodes"]] == [
        ("n1", "", 2000), ("n2", "n2:99", 2000)
    ]  # fmt: skip
    again = JobBook(MemoryStore(), {}, str(tmp_path))
    assert again.gang_secret(1, 1, 4) == lease.gang["secret"] != again.gang_secret(1, 1, 5)


def test_a_runner_that_replaces_another_waits_until_that_ones_reports_are_read(core: Core, tmp_path: Path) -> None:
    told: list[Any] = []
    tries: list[str] = []

    class Site:
        name = "local"

        def unsent(self, output: str) -> Left | None:
            tries.append(output)
            if len(tries) == 1:
                raise OSError("stale file handle")
            return Left([], [(1, 1, 1, "alone")])

    greeted(core, tmp_path)
    greeting = Greet(
        at=NOW, runner="r2", allocation=None, connect=1, clock=0.0, host="n1", pid=2, capacity=Amounts(), held=[],
        replaces="r1",
    )  # fmt: skip

    async def collect() -> None:
        observer = Observer({"local": Site()}, JobBook(MemoryStore(), {}), (), told.append)  # type: ignore[dict-item]
        await observer._collect_replaced(core.state, greeting)
        assert not told
        await observer._collect_replaced(core.state, greeting)

    asyncio.run(collect())
    (with_words,) = told
    assert [(words.runner, words.disclaimed) for words in with_words.written] == [("r1", [(1, 1, 1, "alone")])]
