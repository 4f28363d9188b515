"""A small world for command drivers: virtual time, a toy batch system, its dialect, and faults.

The dialect is a toy on purpose: what is tested with it is the driver, whatever the batch system. A real dialect takes
its place with a cluster that prints the real format.
"""

import asyncio
import random
import selectors
from collections.abc import Sequence

from rota.drivers.api import Ask, Known, Outcome
from rota.drivers.command import CommandDriver
from rota.drivers.dialect import Answer, Command, Listing, Options, Seen, Submitted
from rota.drivers.gate import Times
from rota.drivers.transport import UnreachableError
from rota.model.errors import UsageError
from rota.model.needs import Amounts
from rota.model.site import SiteFacts

FACTS = SiteFacts(Amounts(cores=64000, memory=1 << 38), (), 1000, 60.0)


class _Jump(selectors.DefaultSelector):
    """Does not wait: time jumps to when something is due."""

    now = 0.0

    def select(self, timeout=None):
        if timeout is not None and timeout > 0:
            self.now += timeout
        elif timeout is None:
            raise RuntimeError("everything waits for something that will never happen")
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose time is virtual: an hour of sleep takes no time."""

    def __init__(self):
        self.jump = _Jump()
        super().__init__(self.jump)

    def time(self):
        return self.jump.now


def run_virtual(coroutine):
    """Run to the end in virtual time."""
    loop = VirtualLoop()
    try:
        return loop.run_until_complete(asyncio.wait_for(coroutine, 10 * 86400))
    finally:
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


def virtual_times(seed=0):
    """Clocks of the running virtual loop."""
    loop = asyncio.get_running_loop()
    return Times(loop.time, lambda: 1.0e9 + loop.time(), asyncio.sleep, random.Random(seed).random, at_once)


async def at_once(work):
    """What a thread would do: virtual time does not wait for one."""
    return work()


class ToyDialect:
    """Commands tsub, tstat, thist, tdel; a row is `ID STATE TAG REQUEUES EXIT`."""

    name = "toy"
    programs = ("tsub", "tstat", "thist", "tdel")
    history_lag_s = 30.0
    array_most = 50
    chunk = 20
    states = {"Q": "pending", "R": "running", "E": "exited", "D": "completed", "K": "aborted", "?": "unsure"}
    states["H"] = "failed"
    """Over, and kept in the queue."""
    strict = {}
    allowed = frozenset({"--color"})

    def version(self):
        return Command(("tstat", "--version"))

    def is_mine(self, answer):
        return answer.stdout.startswith("toy")

    def submit(self, ask, options):
        for key, _ in (*options.raw, *ask.options):
            if key not in self.allowed:
                raise UsageError(f"the option {key} is not allowed")
        return Command(("tsub", f"{ask.name}-{ask.tag}", str(ask.count)), ask.script)

    def read_submit(self, ask, answer):
        if answer.code is None:
            return Submitted(None, "ambiguous", "no answer")
        if answer.code == 0 and answer.stdout.strip().isdigit():
            return Submitted(answer.stdout.strip(), "ok", "")
        if "busy" in answer.stderr:
            return Submitted(None, "transient", answer.stderr)
        if "invalid" in answer.stderr:
            return Submitted(None, "fatal", answer.stderr)
        return Submitted(None, "ambiguous", answer.stderr)

    def element_id(self, native_id, element, count):
        return native_id if count == 1 else f"{native_id}.{element}"

    def listing(self, user):
        return Command(("tstat", "-u", user))

    def read_listing(self, answer, options):
        rows, bad = [], False
        for line in answer.stdout.splitlines():
            words = line.split()
            if len(words) != 5 or not words[3].isdigit() or not (words[4] == "-" or words[4].lstrip("-").isdigit()):
                bad = True
                continue
            native, state, tag, requeues, code = words
            outcome = None if code == "-" else Outcome(exit_code=int(code))
            kind = dict(options.state_map).get(state) or self.states.get(state, "unsure")
            tag = None if tag == "-" else tag
            rows.append(Seen(native, state, kind, tag, None, outcome, int(requeues), state == "H"))
        if answer.code is None:
            return Listing((), "transient", "no answer")
        if answer.code != 0 or bad:
            result = "partial" if rows else "transient"
            return Listing(tuple(rows), result, answer.stderr or "not understood")
        return Listing(tuple(rows), "ok")

    def history(self, native_ids):
        return [Command(("thist", *native_ids))] if native_ids else []

    read_history = read_listing

    def find(self, tag, user):
        return [Command(("tstat", "-t", tag))]

    def read_find(self, tag, answer):
        listing = self.read_listing(answer, Options())
        if listing.result not in ("ok", "partial"):
            return Submitted(None, listing.result, listing.detail)
        bases = sorted({int(seen.native_id.partition(".")[0]) for seen in listing.seen if seen.tag == tag})
        if bases:
            return Submitted(str(bases[0]), "ok", "", tuple(map(str, bases[1:])))
        return Submitted(None, "not-found" if listing.result == "ok" else "partial", "")

    def kill(self, native_ids, force):
        return Command(("tdel", f"-{force}", *native_ids))

    def read_kill(self, answer):
        if answer.code is None:
            return "transient", "no answer"
        return ("ok", "") if answer.code == 0 else ("transient", answer.stderr)

    def queues(self):
        return None

    def read_queues(self, answer):
        return ()


class ScriptedTransport:
    """Answers that a test gave it beforehand, by program; says so when there are none left."""

    name = "a script"

    def __init__(self, **answers):
        self.answers = {program: list(given) for program, given in answers.items()}
        self.ran = []
        self.absent = ()

    async def run(self, argv, stdin=None, timeout_s=60.0):
        program = argv[0].rpartition("/")[2]
        if program == "id":
            return Answer(0, "me\n", "")
        if argv[1:] == ("--version",):
            return Answer(0, "toy 1\n", "")
        self.ran.append((asyncio.get_running_loop().time(), (program, *argv[1:])))
        given = self.answers.get(program)
        if given is None:
            raise AssertionError(f"the script has no answers for {argv}")
        answer = given[0] if len(given) == 1 else given.pop(0)
        if callable(answer):
            answer = answer(argv)
        if isinstance(answer, Exception):
            raise answer
        if answer.code is None:
            await asyncio.sleep(timeout_s)
        return answer

    async def which(self, programs):
        return {program: None if program in self.absent else f"/toy/{program}" for program in programs}

    def count(self, program):
        return sum(1 for _, argv in self.ran if argv[0] == program)


class Job:
    """One element on the model cluster."""

    def __init__(self, native, tag, start, end, code, stubborn):
        self.native = native
        self.tag = tag
        self.start = start
        self.end = end
        self.code = code
        self.stubborn = stubborn
        self.cancelled = None
        self.requeues = 0
        self.odd = ()

    def state(self, now):
        if self.cancelled is not None and now >= self.cancelled:
            return "K"
        if now < self.start:
            return "Q"
        if now < self.end:
            return "?" if any(a <= now < b for a, b in self.odd) else "R"
        return "D" if self.code == 0 else "E"

    def over_at(self):
        return self.end if self.cancelled is None else min(self.cancelled, self.end)

    def alive(self, now):
        return now < self.over_at()

    def ended_well(self, now):
        return self.state(now) == "D"


FAULTS = ("hang", "hang-after", "nonzero-after", "busy", "empty", "garbage", "partial", "short", "twice", "lost")
FAULTS += ("late",)


class ModelCluster:
    """A batch system and the way to it, in virtual time; some answers go wrong until `calm`."""

    name = "the model cluster"

    def __init__(self, rng, *, rate=0.0, purge_s=300.0, history=True, own_words=False, reuse=False, calm=float("inf")):
        self.rng = rng
        self.rate = rate
        self.purge_s = purge_s
        self.history = history
        self.own_words = own_words
        self.calm = calm
        self.reuse = reuse
        self.jobs = {}
        self.past = []
        self.by_tag = {}
        self.bad_words = 0.0
        self.next = 100
        self.commands = 0
        self.tasks = set()

    @property
    def now(self):
        return asyncio.get_running_loop().time()

    async def which(self, programs):
        return {program: f"/toy/{program}" for program in programs}

    async def run(self, argv, stdin=None, timeout_s=60.0):
        self.commands += 1
        program = argv[0].rpartition("/")[2]
        if program == "id":
            return Answer(0, "me\n", "")
        if argv[1] == "--version":
            return Answer(0, "toy 1\n", "")
        await asyncio.sleep(self.rng.choice((0.05, 0.5, 3.0)))
        fault = self.rng.choice(FAULTS) if self.now < self.calm and self.rng.random() < self.rate else None
        return await self._answer(program, argv, fault, timeout_s)

    async def _answer(self, program, argv, fault, timeout_s):
        if fault == "busy":
            return Answer(1, "", "busy")
        if fault == "hang":
            await asyncio.sleep(timeout_s)
            return Answer(None, "", "")
        if fault == "lost" and self.rng.random() < 0.5:
            raise UnreachableError("refused", ran=False)
        if fault == "late":  # the server works it off after its client has given up
            task = asyncio.get_running_loop().create_task(self._late(program, argv))
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)
            return Answer(1, "", "timed out")
        text = getattr(self, program)(argv[1:])
        if fault == "lost":
            raise UnreachableError("cut off", ran=True)
        if fault == "hang-after":
            await asyncio.sleep(timeout_s)
            return Answer(None, "", "")
        if fault == "nonzero-after":
            return Answer(1, "", "something strange")
        if fault == "empty":
            return Answer(0, "", "")
        if fault == "garbage":
            return Answer(0, "\x00\ufffd#!garbage 17 R\n99999999999 R x", "")
        lines = text.splitlines(keepends=True)
        if fault in ("partial", "short"):
            some = "".join(line for line in lines if self.rng.random() < 0.5)
            return Answer(1 if fault == "partial" else 0, some, "partial" if fault == "partial" else "")
        if fault == "twice":
            return Answer(0, text + "".join(lines) if program != "tsub" else text, "")
        return Answer(0, text, "")

    async def _late(self, program, argv):
        await asyncio.sleep(self.rng.random() * 15)
        getattr(self, program)(argv[1:])

    def tsub(self, words):
        rng, now = self.rng, self.now
        tag, count = words[0].rpartition("-")[2], int(words[1])
        base = self.next
        self.next += 1
        self.by_tag.setdefault(tag, []).append(base)
        for element in range(count):
            native = str(base) if count == 1 else f"{base}.{element}"
            start = now + rng.choice((0, 1, 20, 200)) * rng.random()
            end = start + rng.choice((0.1, 10, 300)) * rng.random()
            job = Job(native, tag, start, end, rng.choice((0, 0, 1, 137)), rng.choice((0, 0, 1, 2)))
            if rng.random() < 0.2:
                first = start + rng.random() * (end - start)
                job.odd = ((first, first + 30 * rng.random()),)
            if self.reuse and rng.random() < 0.3:
                self._reuse()
            self.jobs[native] = job
        return f"{base}\n"

    def _reuse(self):
        """Somebody's job gets the number of one that the cluster has forgotten."""
        old = [job for job in self.jobs.values() if self.now > job.over_at() + self.purge_s and job.tag != "f" * 12]
        if old:
            job = self.rng.choice(old)
            self.past.append(job)
            self.jobs[job.native] = Job(job.native, "f" * 12, self.now, self.now + 500, 0, 0)

    def _row(self, job, now):
        state = job.state(now)
        code = str(job.code) if state in "DE" else "-"
        return f"{job.native} {state} {job.tag} {job.requeues} {code}\n"

    def tstat(self, words):
        now = self.now
        jobs = [job for job in self.jobs.values() if now < job.over_at() + self.purge_s]
        if words[0] == "-t":  # looks into the history too, if there is one
            jobs = [*self.jobs.values(), *self.past] if self.history else jobs
            jobs = [job for job in jobs if job.tag == words[1]]
        return "".join(self._row(job, now) for job in jobs)

    def thist(self, words):
        now = self.now
        found = [self.jobs[native] for native in words if native in self.jobs] if self.history else []
        return "".join(self._row(job, now) for job in found if job.over_at() + 20 <= now)

    def tdel(self, words):
        force, now = int(words[0][1:]), self.now
        for native in words[1:]:
            hit = [job for job in self.jobs.values() if job.native == native or job.native.startswith(native + ".")]
            for job in hit:
                if job.alive(now) and force >= job.stubborn and job.cancelled is None:
                    job.cancelled = now + self.rng.random() * 5
        return ""

    async def last_words(self, known: Sequence[Known]):
        """What jobs that were not killed wrote when they ended, visible a little later."""
        if self.now < self.calm and self.rng.random() < self.rate / 2:
            raise OSError("stale file handle")
        out = {}
        for item in known:
            for job in (*self.jobs.values(), *self.past):
                mine = job.tag == item.tag and job.native.partition(".")[2] in ("", str(item.element))
                if mine and job.state(self.now) in "DE" and self.now > job.over_at() + 5:
                    out[item.id] = Outcome(exit_code=job.code, ended=1.0e9 + job.end)
        return out

    # ---- the truth, for checks ---------------------------------------------------------------------------------------

    def submissions(self, tag):
        return len(self.by_tag.get(tag, ()))

    def elements(self, tag, element):
        """Everything that ever ran as this element: whether it is alive, and whether it ended well."""
        mine = [job for job in (*self.jobs.values(), *self.past) if job.tag == tag]
        mine = [job for job in mine if job.native.partition(".")[2] in ("", str(element))]
        return [(job.native, job.alive(self.now), job.ended_well(self.now)) for job in mine]

    def make_driver(self, settings, seed):
        return make_driver(self, settings, seed)


def make_driver(cluster, settings=None, seed=0, **more):
    """A command driver for the toy."""
    words = cluster.last_words if getattr(cluster, "own_words", False) else None
    return CommandDriver(
        "toy", ToyDialect(), cluster, FACTS, None, settings, last_words=words, times=virtual_times(seed), **more
    )


def make_ask(number=0, count=1):
    """A submission."""
    ids = tuple(f"a{number}.{element}" for element in range(count))
    return Ask(f"{number:012x}", "rota", ids, Amounts(cores=1000), "exit 0\n", "/tmp")
