"""The rules of a pilot, against an independent model of them, for random mixes of requests."""

import random
from collections.abc import Iterable

import pytest
from msgspec.structs import replace

from core_world import FakeRunner
from rota.core.stimuli import Ended, SiteSeen
from rota.model.batch import Template
from rota.model.errors import UsageError
from rota.model.needs import Amounts, Needs
from rota.model.site import SiteFacts
from rota.schedule.policy import POLICIES
from unit.test_core_gangs import Gangs

CORES = 4
NODE = Amounts(CORES * 1000, 8 << 30)
Parts = list[tuple[int, int]]


class Rules:
    """The rules as the seed has them: first come, first served, as far as there is room; nothing is kept."""

    def __init__(self, nodes: int) -> None:
        self.free = [CORES] * nodes
        self.queue: list[int] = []
        self.asked: dict[int, tuple[Needs, list[int]]] = {}
        self.state: dict[int, str] = {}
        self.running: dict[int, Parts] = {}

    def submit(self, job: int, needs: Needs, after: list[int]) -> None:
        self.asked[job] = (needs, after)
        self.state[job] = "QUEUED"
        self.queue.append(job)

    def feasible(self, needs: Needs) -> bool:
        return self.fit(needs, [CORES] * len(self.free)) is not None

    def fit(self, needs: Needs, free: list[int]) -> Parts | None:
        least, most = needs.cores // 1000, max(needs.cores, needs.cores_most) // 1000
        parts: Parts = []
        if needs.span:  # cores anywhere: as many as possible of each node in turn
            for number, room in enumerate(free):
                take = min(room, most - sum(cores for _, cores in parts))
                parts += [(number, take)] if take else []
            return parts if sum(cores for _, cores in parts) >= least else None
        for number, room in enumerate(free):  # so many on each of some nodes, or nodes that are idle
            if len(parts) < max(needs.nodes, needs.nodes_most):
                if needs.whole:
                    parts += [(number, CORES)] if room == CORES else []
                elif room >= least:
                    parts.append((number, min(room, most)))
        return parts if len(parts) >= needs.nodes else None

    def schedule(self) -> None:
        for job in list(self.queue):
            needs, after = self.asked[job]
            if any(self.state[other] in ("FAILED", "OMITTED") for other in after):
                self.state[job] = "OMITTED"
                self.queue.remove(job)
            elif all(self.state[other] == "SUCCEED" for other in after):
                parts = self.fit(needs, self.free)
                if parts is not None:
                    self.queue.remove(job)
                    self.running[job], self.state[job] = parts, "EXECUTING"
                    self.take(parts, -1)

    def take(self, parts: Parts, sign: int) -> None:
        for number, cores in parts:
            self.free[number] += sign * cores
            assert 0 <= self.free[number] <= CORES

    def end(self, job: int, well: bool) -> None:
        self.take(self.running.pop(job), 1)
        self.state[job] = "SUCCEED" if well else "FAILED"


class Pilot(Gangs):
    """The core, with an allocation that is given."""

    def __init__(self, nodes: int) -> None:
        super().__init__(nodes)
        self.core.state.settings.policies.update(POLICIES)

    def site(self, *given: object, **more: object):
        facts = SiteFacts(NODE, most=1, linger_s=1e9, nodes_most=self.nodes_most, given=(NODE,) * self.nodes_most)
        return self.step(SiteSeen(at=self.at, site="s", facts=facts))

    def laid_out(self, batches: Iterable[int]) -> dict[int, Parts]:
        """Batch → where its one job is."""
        out = {}
        for number in batches:
            for live in self.state.batches[number].live.values():
                parts = [(live.runner, live.slot), *live.parts]
                out[number] = [(int(name.split(".")[2][1:]) - 1, slot.amounts.cores // 1000) for name, slot in parts]
        return out

    def settle(self, runners: list[FakeRunner], parts: Parts, batch: int, well: bool) -> None:
        """A job ends, on its root and then on its other nodes."""
        for number, _ in parts[1:]:
            self.confirm(runners[number])
        root = runners[parts[0][0]]
        (job,) = [job for job in root.held if job[0] == batch]
        self.report(root, started=[job])
        row = Ended(*job, 0 if well else 1, None, None, self.wall - 100, self.wall, 0.5, 1000, None, None)
        self.report(root, ended=[row])
        for number, _ in parts[1:]:
            self.release(runners[number], job)


def a_request(chance: random.Random) -> Needs:
    least = chance.randint(1, CORES + 1)
    most = chance.choice((0, 0, least + chance.randint(1, 4)))
    kind = chance.choice(("one", "one", "span", "nodes", "whole"))
    if kind == "span":
        least = chance.randint(2, 3 * CORES)
        return Needs(least * 1000, chance.choice((0, (least + 3) * 1000)), span="pack")
    nodes = chance.randint(1, 4) if kind != "one" else 1
    nodes_most = nodes + chance.choice((0, 1, 2)) if kind != "one" else 0
    nodes_most = 0 if nodes_most == nodes else nodes_most
    if kind == "whole":
        return Needs(nodes=nodes, nodes_most=nodes_most, whole=True)
    return Needs(least * 1000, most * 1000, nodes=nodes, nodes_most=nodes_most)


@pytest.mark.parametrize("seed", range(12))
def test_jobs_get_what_the_seeds_rules_say(seed: int) -> None:
    chance = random.Random(seed)
    nodes = chance.randint(1, 4)
    rules, pilot = Rules(nodes), Pilot(nodes)
    first = pilot.submit(1, Template(argv=("true",), policy="qcg-greedy"))
    runners = pilot.start()
    rules.submit(first, Needs(), [])
    known = [first]
    for _ in range(40):
        if chance.random() < 0.5:
            needs = a_request(chance)
            after = [chance.choice(known)] if chance.random() < 0.3 else []
            template = Template(argv=("true",), needs=needs, policy="qcg-greedy")
            try:
                batch = pilot.submit(1, template, after=tuple(map(str, after)))
            except UsageError:
                assert not rules.feasible(needs)
            else:
                assert rules.feasible(needs)
                rules.submit(batch, needs, after)
                known.append(batch)
        elif rules.running:
            batch, well = chance.choice(sorted(rules.running)), chance.random() < 0.8
            pilot.settle(runners, rules.running[batch], batch, well)
            rules.end(batch, well)
        pilot.schedule()
        rules.schedule()
        assert pilot.laid_out(known) == rules.running, f"{rules.free} free"
    while rules.running:  # everything feasible ends
        batch = min(rules.running)
        pilot.settle(runners, rules.running[batch], batch, True)
        rules.end(batch, True)
        pilot.schedule()
        rules.schedule()
        assert pilot.laid_out(known) == rules.running
    names = {"SUCCEED": "COMPLETED", "FAILED": "FAILED", "OMITTED": "OMITTED"}
    assert {batch: pilot.states(batch) for batch in known} == {batch: [names[rules.state[batch]]] for batch in known}


def fill(pilot: Pilot, count: int, policy: str, **needs: object) -> list[int]:
    return [pilot.submit(1, Template(argv=("true",), needs=Needs(**needs), policy=policy)) for _ in range(count)]


@pytest.mark.parametrize("policy", ["qcg-reserve", "qcg-priority"])
def test_nodes_are_kept_for_a_gang_at_the_head_and_short_jobs_use_them_meanwhile(policy: str) -> None:
    pilot = Pilot(2)
    long = fill(pilot, 2, policy, cores=3000, time_s=1000)
    runners = pilot.start()
    pilot.schedule()
    (gang,) = fill(pilot, 1, policy, cores=3000, nodes=2, time_s=100)
    later = fill(pilot, 4, policy, cores=1000, time_s=5000)
    (short,) = fill(pilot, 1, policy, cores=1000, time_s=100)
    pilot.schedule()
    running = pilot.laid_out([*long, gang, *later, short])
    assert len([batch for batch in later if batch in running]) == 2, "one core of each node is spare beside the gang"
    assert gang not in running
    pilot.settle(runners, running[long[0]], long[0], True)
    pilot.schedule()
    now = pilot.laid_out([gang, *later, short])
    assert short in now, "it ends before the other node is free"
    assert gang not in now and len(now) == 3, "what takes longer does not use what is kept"
    pilot.settle(runners, now[short], short, True)
    pilot.settle(runners, running[long[1]], long[1], True)
    pilot.schedule()
    assert gang in pilot.laid_out([gang])


def test_without_a_reservation_a_gang_waits_as_long_as_others_come() -> None:
    pilot = Pilot(2)
    fill(pilot, 2, "qcg-greedy", cores=4000)
    runners = pilot.start()
    pilot.schedule()
    (gang,) = fill(pilot, 1, "qcg-greedy", cores=4000, nodes=2)
    later = fill(pilot, 6, "qcg-greedy", cores=4000)
    running = pilot.laid_out([1, 2, *later])
    while later[-1] not in running:
        batch = min(running)
        pilot.settle(runners, running[batch], batch, True)
        pilot.schedule()
        running = pilot.laid_out([1, 2, gang, *later])
        assert gang not in running
    assert gang not in running


def test_a_gang_that_has_waited_gets_nodes_kept_by_default() -> None:
    pilot = Pilot(2)
    pilot.state.settings = replace(pilot.state.settings, backfill_after_s=30.0)
    fill(pilot, 2, "default", cores=4000)
    runners = pilot.start()
    pilot.schedule()
    (gang,) = fill(pilot, 1, "default", cores=4000, nodes=2)
    pilot.tick(31)
    later = fill(pilot, 6, "default", cores=4000)
    pilot.settle(runners, pilot.laid_out([1])[1], 1, True)
    pilot.schedule()
    assert not pilot.laid_out(later), "the node that became free is kept"
    assert "kept for batch 3 (4 cores, 2 nodes" in pilot.why(later[0])
    pilot.settle(runners, pilot.laid_out([2])[2], 2, True)
    pilot.schedule()
    assert gang in pilot.laid_out([gang])
