"""The qsub family from end to end in virtual time: what people at the cluster do to jobs, and what is told of it."""

import asyncio

import pytest

from driver_world import FACTS, run_virtual, virtual_times
from rota.drivers.api import Ask, Known, Outcome
from rota.drivers.command import CommandDriver
from rota.drivers.dialect import Answer
from rota.drivers.dialects import load_dialect
from rota.drivers.settings import Settings
from rota.model.needs import Amounts
from rota.testing.fake_cluster.simulated import SimulatedCluster
from rota.testing.fake_cluster.torque import IDLE_SLOTS

TAG = "0123456789ab"
START = 1.0e9


class Site:
    """A cluster, a driver of it, and everything that the driver told."""

    def __init__(self, personality, seconds=1e6, settings=None, last_words=None, **cluster):
        facts = {"personality": personality, "nodes": 1, "cores": 2, "memory_mb": 8000, **cluster}
        self.cluster = SimulatedCluster(facts, lambda submission, job: (seconds, 0, None))
        self.ran = []
        self.driver = CommandDriver(
            "far", load_dialect(personality), self, FACTS, settings=settings or Settings(), times=virtual_times(),
            last_words=last_words,
        )  # fmt: skip
        self.known = []
        self.told = {}

    name = "a simulated cluster"

    async def which(self, programs):
        return {program: f"/bin/{program}" for program in programs}

    async def run(self, argv, stdin=None, timeout_s=60.0):
        if argv[0] == "id":
            return Answer(0, "tester\n", "")
        words = (argv[0].rpartition("/")[2], *argv[1:])
        self.ran.append(words)
        return Answer(*self.cluster.run(words, stdin, START + asyncio.get_running_loop().time(), timeout_s))

    async def submit(self, count=1, cores=1):
        ids = tuple(f"a{number}" for number in range(count))
        natives = await self.driver.submit(Ask(TAG, "x", ids, Amounts(1000 * cores), "#!/bin/sh\n", "/shared"))
        self.known = [
            Known(id, TAG, native, number) for number, (id, native) in enumerate(zip(ids, natives, strict=True))
        ]
        return natives

    async def wait(self, seconds):
        """As a manager does: poll every second."""
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        while loop.time() < until:
            for seen in await self.driver.poll([known for known in self.known if known.id not in self.over]):
                self.told.setdefault(seen.id, []).append(seen)
            await asyncio.sleep(1)

    @property
    def over(self):
        return {id for id, seen in self.told.items() if seen[-1].verb in ("complete", "fail", "abort")}

    def end(self, id):
        """The last verb, the reason's class, the exit code."""
        last = self.told[id][-1]
        return last.verb, last.outcome.why, last.outcome.exit_code

    def by_hand(self, *argv):
        return self.cluster.run(argv, None, START + asyncio.get_running_loop().time())


@pytest.mark.parametrize("personality", ["pbs", "torque", "sge"])
def test_a_held_job_can_be_killed(personality):
    """It takes no signal: the signal is refused, and what is next ends it."""

    async def scenario():
        site = Site(personality)
        await site.submit(3)  # two run, one waits
        await site.wait(60)
        waiting = [job for job in site.cluster.world.jobs if job.state == "pending"]
        for job in waiting:
            job.hold = "user"
        await site.wait(60)
        held = site.known[2]
        assert await site.driver.terminate(held)
        await site.wait(240)
        assert "a2" in site.over and site.end("a2")[0] == "abort", (site.told, site.ran[-5:])
        assert not site.over & {"a0", "a1"}

    run_virtual(scenario())


@pytest.mark.parametrize("personality", ["pbs", "torque", "sge"])
def test_somebody_deletes_an_element_that_waits(personality):
    """Others of its array end well; it does not, though OpenPBS shows it with the exit status of the whole."""

    async def scenario():
        site = Site(personality, seconds=100)
        natives = await site.submit(5)  # two at once
        await site.wait(60)
        assert site.by_hand("qdel", natives[4])[0] == 0
        await site.wait(600)
        assert len(site.over) == 5
        assert {site.end(id) for id in ("a0", "a1", "a2", "a3")} == {("complete", None, 0)}, site.told
        assert site.end("a4") == ("abort", "cancelled", None)

    run_virtual(scenario())


@pytest.mark.parametrize("personality", ["pbs", "torque", "sge"])
def test_somebody_deletes_a_job_that_runs(personality):
    async def scenario():
        site = Site(personality)
        (native,) = await site.submit()
        await site.wait(60)
        site.by_hand("qdel", native)
        await site.wait(400)
        assert site.end("a0")[0] in ("abort", "fail") and site.end("a0")[2] != 0, site.told
        if personality != "sge":
            assert site.end("a0")[1] == "cancelled"

    run_virtual(scenario())


@pytest.mark.parametrize("personality", ["pbs", "torque"])
def test_what_waits_long_is_left_alone(personality):
    """Elements that wait, held or not, and are of no use to any limit of patience."""

    async def scenario():
        site = Site(personality)
        await site.submit(6)
        await site.wait(4 * 3600)
        assert not site.over and len(site.told) == 6
        assert not [words for words in site.ran if words[0] in ("qdel", "qsig")]
        last = {id: seen[-1].verb for id, seen in site.told.items()}
        assert sorted(last.values()) == ["pend"] * 4 + ["run"] * 2

    run_virtual(scenario())


def test_elements_of_torque_begin_held_and_were_not_put_back():
    async def scenario():
        site = Site("torque", seconds=100, held_at_first_s=5.0, latency_s=8.0)
        await site.submit(6)
        await site.wait(1200)
        for id in site.over:
            verbs = [seen.verb for seen in site.told[id]]
            assert verbs[0] == "held" and "pend" not in verbs[verbs.index("run") :], site.told[id]
        assert len(site.over) == 6

    run_virtual(scenario())


@pytest.mark.parametrize("personality", ["pbs", "torque"])
def test_held_and_suspended_are_said(personality):
    async def scenario():
        site = Site(personality)
        natives = await site.submit(3)  # two run, one waits
        await site.wait(60)
        site.by_hand("qhold", natives[2])
        site.by_hand("qsig", "-s", "suspend", natives[0])
        await site.wait(60)
        assert [site.told[id][-1].verb for id in ("a0", "a1", "a2")] == ["suspended", "run", "held"]
        site.by_hand("qrls", natives[2])
        site.by_hand("qsig", "-s", "resume", natives[0])
        await site.wait(60)
        assert [site.told[id][-1].verb for id in ("a0", "a1", "a2")] == ["run", "run", "pend"]

    run_virtual(scenario())


def test_an_exit_status_that_was_told_once_stays_told():
    """The job's words come late, and when they are there nobody asks the history, or it has forgotten."""

    async def scenario():
        words = {}

        async def last_words(known):
            return {each.id: words[each.id] for each in known if each.id in words}

        settings = Settings(own_words_s=60, poll_s=30, poll_min_s=2)
        site = Site("torque", settings=settings, last_words=last_words, purge_s=20)
        (native,) = await site.submit()
        await site.wait(60)
        site.by_hand("qdel", native)
        await site.wait(50)
        assert not site.over
        words["a0"] = Outcome(signal=15)
        await site.wait(120)
        assert site.end("a0")[1] == "cancelled", (site.told, site.ran)

    run_virtual(scenario())


@pytest.mark.parametrize("personality", ["pbs", "torque"])
def test_why_it_waits_is_said_in_the_clusters_words(personality):
    async def scenario():
        site = Site(personality)
        site.by_hand("qsub", "-l", "nodes=1:ppn=2")
        natives = await site.submit(1)
        await site.wait(120)
        assert site.driver.waits(natives[0]).words.startswith("Not Running: Not enough"), site.driver.waits(natives[0])
        site.by_hand("qdel", "1")
        await site.wait(120)
        assert site.driver.waits(natives[0]) is None

    run_virtual(scenario())


@pytest.mark.parametrize("count", [1, 3])
def test_what_openpbs_can_never_run_is_said_so(count):
    async def scenario():
        site = Site("pbs")
        natives = await site.submit(count, cores=8)
        await site.wait(60)
        for native in natives:
            words = "Can Never Run: Insufficient amount of resource: ncpus (R: 8 A: 2 T: 2)"
            assert site.driver.waits(native)[:2] == (words, True)

    run_virtual(scenario())


@pytest.mark.parametrize("settings", [{"history": False}, {"history": True}])
def test_openpbs_without_history(settings):
    """Then only the job's own words say how it ended, and these have none: it is not called a success."""

    async def scenario():
        site = Site("pbs", seconds=50, **settings)
        await site.submit(2)
        await site.wait(1200)
        ends = {site.end(id)[0] for id in ("a0", "a1")}
        assert ends == ({"complete"} if settings["history"] else {"abort"}), site.told

    run_virtual(scenario())


def test_no_array_is_so_large_that_torque_makes_a_part_of_it_later():
    """What does not exist yet is in no listing and in no history: it would be taken for lost, and run twice."""

    async def scenario():
        site = Site("torque", idle_slots=20)
        dialect = site.driver.dialect
        assert dialect.array_most == IDLE_SLOTS, "of servers that say nothing of it"
        site.driver.arrays.tell(dialect.read_array_limit(Answer(*site.by_hand("qstat", "-B", "-f"))))
        most = min(40, site.driver.arrays.most)
        await site.submit(most)
        await site.wait(900)
        assert not site.over, f"{len(site.over)} of {most}: {site.told[min(site.over)][-1]}"
        assert most == 20

    run_virtual(scenario())
