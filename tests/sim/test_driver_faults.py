"""Command drivers under thousands of seeded schedules of faults: nothing twice, nothing left, no false success."""

import asyncio
import random

import pytest

from driver_world import ModelCluster, make_ask, run_virtual
from rota.drivers.api import Known
from rota.drivers.settings import Settings
from rota.model.errors import RotaError

SCHEDULES = 1200  # and 2,100 with the real dialects, in test_driver_personalities.py
PARTS = 4
FAULTS_UNTIL = 900.0
OVER = ("complete", "fail", "abort")


class Manager:
    """What a manager does with a driver, as far as that matters: submit, poll, kill, and die."""

    def __init__(self, rng, cluster, seed, settings):
        self.rng = rng
        self.cluster = cluster
        self.seed = seed
        self.settings = settings
        self.driver = cluster.make_driver(settings, seed)
        self.state = {}
        self.native = {}
        self.tag = {}
        self.verdict = {}
        self.wanted = {}
        self.tasks = {}
        self.problems = []
        self.killing = set()

    @property
    def now(self):
        return asyncio.get_running_loop().time()

    def submit(self, ask, find=False):
        for element, id in enumerate(ask.ids):
            self.state.setdefault(id, "SUBMITTING")
            self.tag[id] = (ask.tag, element)
        self.wanted[ask.tag] = ask
        self.tasks[ask.tag] = asyncio.get_running_loop().create_task(self._submit(self.driver, ask, find))

    async def _submit(self, driver, ask, find):
        natives = await driver.find(ask.tag, ask.count) if find else None
        try:
            natives = natives or await driver.submit(ask)
        except RotaError as error:
            for id in ask.ids:
                self.verdict[id], self.state[id] = ("fail", str(error)), "OVER"
            return
        for id, native in zip(ask.ids, natives, strict=True):
            self.native[id] = native
            if self.state[id] == "SUBMITTING":
                self.state[id] = "LIVE"

    def _as_known(self, id):
        tag, element = self.tag[id]
        elements = self.wanted[tag].count if self.seed % 2 else 0  # some managers know it, some do not
        return Known(id, tag, self.native.get(id), element, elements=elements)

    def known(self):
        return [self._as_known(id) for id, state in self.state.items() if state in ("LIVE", "KILLING")]

    async def poll(self):
        for seen in await self.driver.poll(self.known()):
            if seen.native_id and seen.id not in self.native:
                self.native[seen.id] = seen.native_id
            if seen.verb in OVER and self.state[seen.id] != "OVER":
                self.state[seen.id] = "OVER"
                self.verdict[seen.id] = (seen.verb, seen.reason or "")
                self._check(seen)

    def _check(self, seen):
        tag, element = self.tag[seen.id]
        mine = self.cluster.elements(tag, element)
        if seen.verb == "complete" and not any(well for _, _, well in mine):
            self.problems.append(f"{seen.id} {element}: false success")
        if any(alive for _, alive, _ in mine) and "never confirmed" not in (seen.reason or ""):
            self.problems.append(f"{seen.id}: called over ({seen.verb}: {seen.reason}) while it lives")

    def kill(self, id):
        if self.state[id] in ("SUBMITTING", "LIVE"):
            self.state[id] = "KILLING"
            task = asyncio.get_running_loop().create_task(self.driver.terminate(self._as_known(id)))
            self.killing.add(task)
            task.add_done_callback(self.killing.discard)

    async def restart(self):
        """A new manager: it knows what the old one wrote down, and nothing of what it was doing."""
        for task in (*self.tasks.values(), *self.killing):
            task.cancel()
        await asyncio.gather(*self.tasks.values(), *self.killing, return_exceptions=True)
        self.tasks.clear()
        self.driver = self.cluster.make_driver(self.settings, self.seed + 1)
        for ask in list(self.wanted.values()):
            if any(id not in self.native and self.state[id] in ("SUBMITTING", "LIVE") for id in ask.ids):
                self.submit(ask, find=True)
        for id, state in list(self.state.items()):
            if state == "KILLING":
                self.state[id] = "LIVE"
                self.kill(id)


def model(rng):
    """A toy cluster that forgets more or less."""
    history, own_words = rng.random() < 0.7, rng.random() < 0.5
    return ModelCluster(
        rng,
        rate=rng.choice((0.05, 0.2, 0.5)),
        # Of a job that a cluster forgets at once, and that leaves no words, nobody could know that it was submitted.
        purge_s=rng.choice((60.0, 300.0)) if history or own_words else 3600.0,
        history=history,
        own_words=own_words,
        reuse=rng.random() < 0.5,
        calm=FAULTS_UNTIL,
    )


async def schedule(seed, settings=None, make_cluster=model):
    """One schedule; returns what is wrong, how many commands were sent, and how allocations ended."""
    rng = random.Random(seed)
    cluster = make_cluster(rng)
    manager = Manager(rng, cluster, seed, settings)
    restart_at = rng.random() * 1500
    for number in range(rng.randint(1, 4)):
        manager.submit(make_ask(number + 1, rng.choice((1, 1, 3, 8))))
    while any(state != "OVER" for state in manager.state.values()) and manager.now < 8000:
        await asyncio.sleep(rng.choice((1.0, 5.0, 20.0)))
        if rng.random() < 0.05 and manager.now < FAULTS_UNTIL:
            manager.kill(rng.choice(list(manager.state)))
        if restart_at is not None and manager.now > restart_at:
            restart_at = None
            await manager.restart()
        await manager.poll()
    problems = manager.problems
    problems += [f"{id} is {state} for ever" for id, state in manager.state.items() if state != "OVER"]
    problems += [
        f"tag {tag} was submitted {cluster.submissions(tag)} times"
        for tag in manager.wanted
        if cluster.submissions(tag) > 1
    ]
    confirmed = [id for id, (_, reason) in manager.verdict.items() if "never confirmed" not in reason]
    for id in confirmed:
        tag, element = manager.tag[id]
        left = [native for native, alive, _ in cluster.elements(tag, element) if alive]
        problems += [f"{id}: {native} is left running" for native in left]
    return problems, cluster.commands, manager.verdict


@pytest.mark.parametrize("part", range(PARTS))
def test_no_schedule_makes_a_duplicate_an_orphan_or_a_false_success(part):
    verdicts = {}
    for seed in range(part, SCHEDULES, PARTS):
        problems, _, verdict = run_virtual(schedule(seed))
        assert not problems, f"seed {seed}: {problems}"
        for verb, _ in verdict.values():
            verdicts[verb] = verdicts.get(verb, 0) + 1
    assert all(verdicts.get(verb, 0) > 50 for verb in OVER), verdicts


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        (Settings(settle_s=0, settle_looks=1, restart_settle_s=0), "was submitted"),
        (Settings(vanish_polls=1, vanish_s=0), "while it lives"),
        (Settings(gone_polls=1, gone_s=0), "while it lives"),
    ],
)
def test_the_same_schedules_find_a_driver_without_patience(settings, problem):
    """So that the schedules above mean something: what the patience is for does happen in them."""
    found = (run_virtual(schedule(seed, settings))[0] for seed in range(400))
    assert any(problem in line for problems in found for line in problems)
