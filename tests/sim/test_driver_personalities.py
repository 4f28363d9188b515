"""The fault schedules again, with the real dialects, on simulated clusters that speak their words.

`python tests/sim/test_driver_personalities.py COUNT [FIRST [lsf …]]` runs more of them than the tests do.
"""

import asyncio
import collections
import importlib
import os
import random
import sys
import time

import pytest

if __name__ == "__main__":
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from driver_world import FACTS, make_ask, run_virtual, virtual_times
from rota.drivers.api import Known, Outcome
from rota.drivers.command import CommandDriver
from rota.drivers.dialect import Answer, Options
from rota.drivers.dialects import BUILT_IN, load_dialect
from rota.drivers.settings import Settings
from sim.test_driver_faults import FAULTS_UNTIL, OVER, schedule

PERSONALITIES = ("lsf", "openlava", "pbs", "sge", "slurm", "torque")
SCHEDULES = 420
PARTS = 2
FAULTS = (
    {"do": "hang", "seconds": 900},
    {"do": "hang-after", "seconds": 900},
    {"do": "slow", "seconds": 45},
    {"do": "exit", "code": 1, "stderr": "Connection reset by peer"},
    {"do": "fail-after", "code": 1, "stderr": "Connection reset by peer"},
    {"do": "drop-reply", "code": 1, "stderr": "Connection reset by peer"},
    {"do": "drop-reply", "code": 255, "stderr": ""},
    {"do": "empty"},
    {"do": "truncate"},
    {"do": "truncate", "at": 0.9},
    {"do": "garbage"},
    {"do": "foreign"},
    {"do": "shuffle"},
)


class Fake:
    """A simulated cluster as a transport, and the truth about it."""

    name = "a simulated cluster"

    def __init__(self, personality, rng):
        simulated = importlib.import_module("rota.testing.fake_cluster.simulated")
        self.rng = rng
        self.personality = personality
        self.commands = 0
        self.calm = False
        self.down_until = 0.0
        self.writes = rng.random() < 0.4
        """Whether jobs leave last words of their own."""
        self.strict = rng.random() < 0.3
        self.events = rng.choice((0.0, 0.05, 0.2))
        """How often something happens on the cluster itself."""
        self.span = rng.choice((20.0, 300.0, 1200.0))
        kind = {"personality": personality}
        if personality == "openlava":
            kind = {"personality": "lsf", "cluster": "openlava"}
        settings = {**kind, "nodes": 4, "cores": 16, "accounting_lag_s": rng.choice((0.0, 20.0))}
        # Of a job that a cluster forgot while it could not be asked, and that left no words, nobody knows that it was.
        remembers = self.writes or personality in ("sge", "slurm")
        settings |= {"purge_s": rng.choice((300.0, 3600.0)) if remembers else 3600.0}
        settings |= {"latency_s": rng.choice((0.0, 5.0, 60.0)), "held_at_first_s": rng.choice((0.0, 4.0))}
        rate = rng.choice((0.05, 0.2, 0.4))
        rules = [{**fault, "p": rate / len(FAULTS), "seed": rng.random()} for fault in FAULTS]
        self.cluster = simulated.SimulatedCluster(settings, self._lasts, rules, user="tester")

    def _lasts(self, submission, job):
        chance = random.Random(f"{submission.name} {job.index}")
        return chance.choice((0.02, 0.5, 1.0)) * chance.random() * self.span, chance.choice((0, 0, 1, 137)), None

    @property
    def now(self):
        return asyncio.get_running_loop().time()

    async def which(self, programs):
        return {program: f"/fake/{program}" for program in programs}

    async def run(self, argv, stdin=None, timeout_s=60.0):
        self.commands += 1
        if argv[0] == "id":
            return Answer(0, "tester\n", "")
        self._happen()
        await asyncio.sleep(self.rng.choice((0.05, 0.5, 3.0)))
        words = (argv[0].rpartition("/")[2], *argv[1:])
        code, out, err = self.cluster.run(words, stdin, 1.0e9 + self.now, timeout_s)
        if code is None:
            await asyncio.sleep(timeout_s)
        return Answer(code, out, err)

    # ---- what happens on the cluster ---------------------------------------------------------------------------------

    def _happen(self):
        world = self.cluster.world
        self.cluster.advance(1.0e9 + self.now)
        if self.now >= FAULTS_UNTIL and not self.calm:
            self.calm, self.down_until = True, 0.0
            self.cluster.faults.clear()
            for job in world.jobs:
                world.resume(self.cluster, job)
            for node in world.nodes:
                world.mend_node(node)
        if world.down is not None and self.now >= self.down_until:
            world.down = None
        if not self.calm and self.rng.random() < self.events:
            self._strike(world, self.rng.choice([job for job in world.jobs if job.live] or [None]))

    def _strike(self, world, job):
        what = self.rng.choice(("cancel", "requeue", "suspend", "memory", "time", "preempt", "node", "down", "again"))
        node = self.rng.choice(list(world.nodes))
        if what == "node":
            world.mend_node(node) if not world.nodes[node][0] else world.fail_node(self.cluster, node)
        elif what == "down":
            world.down, self.down_until = self.rng.choice(("refused", "hung")), self.now + self.rng.choice((5, 90, 400))
        elif what == "again":
            self._use_numbers_again(world)
        elif job is not None:
            {
                "cancel": lambda: world.cancel(self.cluster, job, "admin"),
                "requeue": lambda: world.requeue(self.cluster, job),
                "suspend": lambda: world.suspend(self.cluster, job) or world.resume(self.cluster, job),
                "memory": lambda: world.run_out_of_memory(self.cluster, job),
                "time": lambda: world.run_out_of_time(self.cluster, job),
                "preempt": lambda: world.preempt(self.cluster, job),
            }[what]()

    def _use_numbers_again(self, world):
        """The cluster's numbers begin anew; what it has forgotten may have had the same ones."""
        if world.jobs and all(world.purged(job) for job in world.jobs):
            world.next_number = 1

    # ---- for the driver ----------------------------------------------------------------------------------------------

    def make_driver(self, settings, seed):
        options = Options(parallel_environment="smp", strict=self.strict)
        dialect = load_dialect(self.personality)
        words = self.last_words if self.writes else None
        return CommandDriver(
            "fake", dialect, self, FACTS, options, settings, last_words=words, times=virtual_times(seed)
        )

    async def last_words(self, known):
        """What jobs wrote when they ended by themselves, visible a little later."""
        if not self.calm and self.rng.random() < 0.1:
            raise OSError("stale file handle")
        self.cluster.advance(1.0e9 + self.now)
        out = {}
        for item in known:
            for job in self._jobs(item.tag, item.element):
                if job.state == "over" and job.why == "exit" and 1.0e9 + self.now > job.ended + 5:
                    out[item.id] = Outcome(exit_code=job.code, ended=job.ended)
        return out

    # ---- the truth, for checks ---------------------------------------------------------------------------------------

    def _of(self, tag):
        self.cluster.advance(1.0e9 + self.now)
        return [each for each in self.cluster.world.submissions.values() if tag in each.name]

    def _jobs(self, tag, element):
        out = []
        for submission in self._of(tag):
            jobs = [job for job in self.cluster.world.jobs if job.serial == submission.serial]
            out.append(sorted(jobs, key=lambda job: job.index or 0)[element])
        return out

    def submissions(self, tag):
        return len(self._of(tag))

    def elements(self, tag, element):
        return [
            (
                f"{job.number}/{job.index}",
                job.state != "over",
                job.state == "over" and job.why in (None, "exit") and job.code == 0 and not job.signal,
            )
            for job in self._jobs(tag, element)
        ]


def one(personality, seed):
    """What is wrong, commands sent, verdicts."""
    return run_virtual(schedule(seed, Settings(), lambda rng: Fake(personality, rng)))


def test_there_are_schedules_for_all():
    assert set(PERSONALITIES) == set(BUILT_IN)


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("personality", PERSONALITIES)
def test_no_schedule_makes_a_duplicate_an_orphan_or_a_false_success(personality, part):
    verbs = collections.Counter()
    for seed in range(part, SCHEDULES, PARTS):
        problems, _, verdict = one(personality, seed)
        assert not problems, f"seed {seed}: {problems}"
        verbs.update(verb for verb, _ in verdict.values())
    assert all(verbs[verb] > 5 for verb in OVER), verbs


class Calm(Fake):
    """Nothing fails, and nothing ever starts."""

    def __init__(self, personality):
        super().__init__(personality, random.Random(1))
        self.cluster.faults.clear()
        self.cluster.world.settings["latency_s"] = 9e9
        self.calm, self.writes = True, False


async def end_some(personality, gone):
    """Two arrays of nine and a job, all waiting, of which some are ended at once: which are over, as said and truly."""
    cluster = Calm(personality)
    driver = cluster.make_driver(Settings(), 1)
    known = []
    for number, count in ((1, 9), (2, 9), (3, 1)):
        ask = make_ask(number, count)
        natives = await driver.submit(ask)
        known += [Known(id, ask.tag, native, at) for at, (id, native) in enumerate(zip(ask.ids, natives, strict=True))]
    assert all(await asyncio.gather(*(driver.terminate(item) for item in known if item.id in gone)))
    over = set()
    for _ in range(3):
        await asyncio.sleep(10)
        over |= {seen.id for seen in await driver.poll(known) if seen.verb in OVER}
    assert cluster.cluster.world.down is None, "its server is dead"
    truth = {item.id for item in known if not any(live for _, live, _ in cluster.elements(item.tag, item.element))}
    return over, truth


@pytest.mark.parametrize("personality", PERSONALITIES)
@pytest.mark.parametrize(
    "gone",
    [
        {"a1.0", "a1.2", "a1.4", "a1.6", "a1.7", "a1.8"},
        {"a1.3", "a2.3", "a3.0"},
        {f"a{number}.{element}" for number in (1, 2) for element in range(9)} | {"a3.0"},
    ],
)
def test_what_is_ended_at_once_is_all_ended_and_nothing_else(personality, gone):
    """A live OpenPBS left most elements of such a list, or died of it."""
    over, truth = run_virtual(end_some(personality, gone))
    assert truth == gone and over <= gone


def main(count, first, names):
    """Many by hand: what is wrong, and what was done."""
    bad = 0
    for name in names:
        begun, verbs, commands = time.process_time(), collections.Counter(), 0
        for seed in range(first, first + count):
            problems, sent, verdict = one(name, seed)
            if problems:
                bad += 1
                print(f"{name} seed {seed}: {problems}")
            commands += sent
            verbs.update(verb for verb, _ in verdict.values())
        spent = time.process_time() - begun
        print(f"{name}: {count} schedules, {commands} commands, {dict(verbs)}, {spent:.1f} s")
    return bad


if __name__ == "__main__":
    import logging

    logging.disable(logging.CRITICAL)
    numbers = [*map(int, sys.argv[1:3]), 0]
    sys.exit(1 if main(numbers[0], numbers[1], sys.argv[3:] or PERSONALITIES) else 0)
