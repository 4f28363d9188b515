"""The fault schedules again, with the real dialects, on simulated clusters that speak their words."""

import asyncio
import importlib
import random

import pytest

from driver_world import FACTS, run_virtual, virtual_times
from rota.drivers.command import CommandDriver
from rota.drivers.dialect import Answer, Options
from rota.drivers.dialects import BUILT_IN, load_dialect
from rota.drivers.settings import Settings
from sim.test_driver_faults import FAULTS_UNTIL, OVER, schedule

SCHEDULES = 60
FAULTS = (
    {"do": "hang", "seconds": 900},
    {"do": "hang-after", "seconds": 900},
    {"do": "fail-after", "code": 1, "stderr": "Connection reset by peer"},
    {"do": "drop-reply", "code": 1, "stderr": "Connection reset by peer"},
    {"do": "empty"},
    {"do": "truncate"},
    {"do": "garbage"},
)


class Fake:
    """A simulated cluster as a transport, and the truth about it."""

    name = "a simulated cluster"

    def __init__(self, personality, rng):
        simulated = importlib.import_module("rota.testing.fake_cluster.simulated")
        self.rng = rng
        self.personality = personality
        self.commands = 0
        settings = {"personality": personality, "nodes": 4, "cores": 16, "accounting_lag_s": rng.choice((0.0, 20.0))}
        settings |= {"purge_s": rng.choice((600.0, 3600.0)), "latency_s": rng.choice((0.0, 5.0, 60.0))}
        rate = rng.choice((0.05, 0.2))
        rules = [{**fault, "p": rate / len(FAULTS), "seed": rng.random()} for fault in FAULTS]
        self.cluster = simulated.SimulatedCluster(settings, self._lasts, rules, user="tester")

    def _lasts(self, submission, job):
        chance = random.Random(f"{submission.name} {job.index}")
        return chance.choice((0.5, 20.0, 400.0)) * chance.random(), chance.choice((0, 0, 1, 137)), None

    @property
    def now(self):
        return asyncio.get_running_loop().time()

    async def which(self, programs):
        return {program: f"/fake/{program}" for program in programs}

    async def run(self, argv, stdin=None, timeout_s=60.0):
        self.commands += 1
        if argv[0] == "id":
            return Answer(0, "tester\n", "")
        if self.now >= FAULTS_UNTIL:
            self.cluster.faults.clear()
        await asyncio.sleep(self.rng.choice((0.05, 0.5, 3.0)))
        words = (argv[0].rpartition("/")[2], *argv[1:])
        code, out, err = self.cluster.run(words, stdin, 1.0e9 + self.now, timeout_s)
        if code is None:
            await asyncio.sleep(timeout_s)
        return Answer(code, out, err)

    def make_driver(self, settings, seed):
        options = Options(parallel_environment="smp")
        dialect = load_dialect(self.personality)
        return CommandDriver("fake", dialect, self, FACTS, options, settings, times=virtual_times(seed))

    def _of(self, tag):
        self.cluster.advance(1.0e9 + self.now)
        world = self.cluster.world
        return [submission for submission in world.submissions.values() if tag in submission.name]

    def submissions(self, tag):
        return len(self._of(tag))

    def elements(self, tag, element):
        out = []
        for submission in self._of(tag):
            jobs = [job for job in self.cluster.world.jobs if job.serial == submission.serial]
            job = sorted(jobs, key=lambda job: job.index or 0)[element]
            well = job.state == "over" and job.why in (None, "exit") and job.code == 0 and not job.signal
            out.append((f"{job.number}/{job.index}", job.state != "over", well))
        return out


@pytest.mark.parametrize("personality", sorted(BUILT_IN))
def test_no_schedule_makes_a_duplicate_an_orphan_or_a_false_success(personality):
    pytest.importorskip("rota.testing.fake_cluster", reason="the fake cluster is not in this version")
    pytest.importorskip(BUILT_IN[personality].partition(":")[0], reason="this dialect is not in this version")
    verbs = set()
    for seed in range(SCHEDULES):
        problems, _, verdict = run_virtual(schedule(seed, Settings(), lambda rng: Fake(personality, rng)))
        assert not problems, f"seed {seed}: {problems}"
        verbs.update(verb for verb, _ in verdict.values())
    assert verbs == set(OVER)
