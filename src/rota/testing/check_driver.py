"""The exams for drivers and dialects.

    from rota.testing.check_driver import check_dialect, check_driver

    def test_my_dialect():
        check_dialect(MyDialect())

    def test_my_site(tmp_path):
        check_driver(lambda: CommandDriver("here", MyDialect(), LocalTransport(), FACTS), str(tmp_path))

The first needs nothing but the dialect, the second a cluster (real or fake) and a directory that its nodes share. They
say in words what is wrong.
"""

import asyncio
import random
import secrets
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, get_args

from rota.drivers.api import Ask, Driver, Known, Observation
from rota.drivers.dialect import Answer, Class, Command, Dialect, Kind, Options, Queue
from rota.drivers.script import SPREADS
from rota.model.errors import RotaError, UsageError
from rota.model.needs import Amounts
from rota.model.tables import ALLOCATION, move

__all__ = ["check_dialect", "check_driver"]

AMOUNTS = Amounts(cores=1000, memory=64 << 20)
QUEUES = tuple(Queue(name, False, None, None, None, None, None, True) for name in "ab")
SCRIPT = """#!/bin/sh
echo "rota exam element $ROTA_ELEMENT"
case $ROTA_ELEMENT in
0) exit 0;;
1) exit 3;;
esac
sleep 3600
"""
OVER = ("complete", "fail", "abort")


# ---- a dialect ------------------------------------------------------------------------------------------------------


def check_dialect(dialect: Dialect, options: Options | None = None, array_id: str = "4711") -> None:
    """Raise AssertionError, with the reason, if the dialect does not do what `rota.drivers.dialect.Dialect` says.

    `array_id` is a native id of an array as this system writes it; it has the number 4711 in it.
    """
    options = options or Options()
    for part in (_facts_of, _submissions, _commands, _readers):
        try:
            part(dialect, options, array_id)
        except (RotaError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise AssertionError(f"{dialect.name}: {part.__name__.strip('_')}: {error!r}") from error


def _facts_of(dialect: Dialect, options: Options, array_id: str) -> None:
    _want(bool(dialect.name) and bool(dialect.programs), "name and programs must not be empty")
    _want(dialect.array_most >= 1 and dialect.chunk >= 1, "array_most and chunk must be at least 1")
    _want(dialect.history_lag_s >= 0, "history_lag_s must not be negative")
    for name, table in (("states", dialect.states), ("strict", dialect.strict)):
        for state, kind in table.items():
            _want(kind in get_args(Kind), f"{name}[{state!r}] is {kind!r}, which is none of {get_args(Kind)}")
    kinds = set(dialect.states.values())
    _want("pending" in kinds and "running" in kinds, "no native state means pending, or none means running")


def _submissions(dialect: Dialect, options: Options, array_id: str) -> None:
    for count in {1, min(3, dialect.array_most)}:
        ask = _ask(count, "/tmp")
        command = dialect.submit(ask, options)
        _sound(dialect, command)
        _want(any(ask.tag in word for word in command.argv), f"the tag is nowhere in {command.argv}")
        sent = "\n".join((*command.argv, command.stdin or ""))
        _want("rota exam element" in sent, "the script is neither in the arguments nor on stdin")
        _want("ROTA_ELEMENT" in sent.replace(SCRIPT, ""), "nothing sets ROTA_ELEMENT for the script")
    for key in ("--no-such-option-of-rota", "--wrap", "-x; rm"):
        if key not in dialect.allowed:
            _refuses(dialect, _ask(1, "/tmp"), Options(raw=((key, "1"),)), key)
    ask = _ask(1, "/tmp")
    for answer in (Answer(None, "", ""), Answer(0, "", ""), Answer(0, "\ufffd?\n", "")):
        done = dialect.read_submit(ask, answer)
        _want(done.native_id is None, f"read_submit takes {done.native_id!r} for a native id in {answer}")
        _want(done.result == "ambiguous", f"read_submit calls {answer} {done.result}, and it may have been taken")


def _refuses(dialect: Dialect, ask: Ask, options: Options, key: str) -> None:
    try:
        command = dialect.submit(ask, options)
    except UsageError as error:
        _want(key[:2] in str(error), f"the error for the raw option {key!r} does not name it: {error}")
        return
    raise AssertionError(f"the raw option {key!r} is not among `allowed`, and is taken: {command.argv}")


def _commands(dialect: Dialect, options: Options, array_id: str) -> None:
    ids = [dialect.element_id(array_id, element, 3) for element in range(3)]
    _want(len(set(ids)) == 3, f"three elements do not have three native ids: {ids}")
    _want(dialect.element_id("4711", 0, 1) == "4711", "the native id of a single job is not what it is")
    finds: Any = dialect.find("0123456789ab", "ann")
    _want(bool(finds), "there is no way to look a tag up")
    commands = [dialect.version(), dialect.listing("ann"), *dialect.history(ids)]
    commands += [finds] if isinstance(finds, Command) else finds
    commands += [dialect.kill(ids, force) for force in range(3)]
    for command in commands:
        _sound(dialect, command)
    _want(not dialect.history([]), "history of no ids is a command: it would ask for everything")
    for force in range(3):
        words = " ".join(dialect.kill(ids, force).argv)
        _want("4711" in words, f"kill with force {force} does not name the jobs: {words}")
    queues = dialect.queues()
    if queues is not None:
        _sound(dialect, queues)
    capable: Any = dialect
    for command in capable.queue_details(QUEUES) if hasattr(dialect, "queue_details") else ():
        _sound(dialect, command, optional=True)
    spread = getattr(dialect, "spread", None)
    _want(spread is None or spread in SPREADS, f"spread {spread!r} is none of {', '.join(SPREADS)}")


def _details(dialect: Any, options: Options, answer: Answer) -> None:
    if hasattr(dialect, "queue_details"):
        answers = [answer] * len(dialect.queue_details(QUEUES))
        found = dialect.read_queue_details(QUEUES, answers, options)
        _want([q.name for q in found] == ["a", "b"], f"of the queues a and b {found} is left by {answer!r}")


def _readers(dialect: Dialect, options: Options, array_id: str) -> None:
    """Whatever comes back, a reader answers; and nothing, or rubbish, is never taken for a fact."""
    ask, tag = _ask(1, "/tmp"), "0123456789ab"
    for answer in _rubbish():
        listing, history = dialect.read_listing(answer, options), dialect.read_history(answer, options)
        submitted, found = dialect.read_submit(ask, answer), dialect.read_find(tag, answer)
        killed, _ = dialect.read_kill(answer)
        dialect.is_mine(answer)
        dialect.read_queues(answer)
        _details(dialect, options, answer)
        results = (listing.result, history.result, submitted.result, found.result, killed)
        for result in results:
            _want(result in get_args(Class), f"{result!r} is none of {get_args(Class)}")
        _want(submitted.result != "ok" or bool(submitted.native_id), "a submission is ok and has no native id")
        _want(found.result != "ok" or bool(found.native_id), f"find is ok and has no native id for {answer!r}")
        for seen in (*listing.seen, *history.seen):
            _want(seen.kind in get_args(Kind), f"{seen.kind!r} is none of {get_args(Kind)}")
        if answer.code is None:
            _want(not {"ok", "not-found"} & set(results), f"a command that was cut off is believed: {results}")
    known = Options(state_map=tuple((state, "unsure") for state in dialect.states))
    dialect.read_listing(Answer(0, "", ""), known)


def _rubbish() -> list[Answer]:
    rng = random.Random(1)
    letters = "0123456789abcRQPDE:|^,.;[]{}<>\"'\\ \t\n\0\ufffd☃"
    out = [Answer(code, "", error) for code in (0, 1, 2, 255, None) for error in ("", "error", "Connection refused")]
    for _ in range(200):
        text = "".join(rng.choice(letters) for _ in range(rng.randrange(200)))
        out.append(Answer(rng.choice((0, 0, 1, 153, 255, None)), text, rng.choice(("", text))))
    for text in ("<?xml", "{", '{"Jobs":', "[]", "null", '{"Jobs": {"1": null}}', "<job_info/>", "1", "Job Id: 1"):
        out += [Answer(0, text, ""), Answer(1, text, text)]
    return out


def _sound(dialect: Dialect, command: Command, optional: bool = False) -> None:
    _want(bool(command.argv), "an empty command")
    for word in command.argv:
        _want("\0" not in word, f"not a word of a command: {word!r}")
    known = optional or command.argv[0] in dialect.programs
    _want(known, f"{command.argv[0]} is not among programs, so it is never looked for")


# ---- a driver -------------------------------------------------------------------------------------------------------


def check_driver(
    make_driver: Callable[[], Driver],
    directory: str,
    *,
    amounts: Amounts = AMOUNTS,
    options: Sequence[tuple[str, str]] = (),
    wait_s: float = 600.0,
    run: Callable[[Coroutine[Any, Any, None]], None] = asyncio.run,
) -> None:
    """Raise AssertionError, with the reason, if a driver does not do what `rota.drivers.api.Driver` says.

    `make_driver` makes a new driver for the same site at each call, as a manager that starts does. Five small jobs are
    submitted; they run `sleep`, and are ended at the end even if the exam is not passed.
    """
    run(_Exam(make_driver, directory, amounts, tuple(options), wait_s).sit())


class _Exam:
    def __init__(
        self,
        make_driver: Callable[[], Driver],
        directory: str,
        amounts: Amounts,
        options: tuple[tuple[str, str], ...],
        wait_s: float,
    ) -> None:
        self.make = make_driver
        self.directory = directory
        self.amounts = amounts
        self.options = options
        self.wait_s = wait_s
        self.state: dict[str, str] = {}
        self.last: dict[str, Observation] = {}

    async def sit(self) -> None:
        driver = self.make()
        nothing = await driver.find(secrets.token_hex(6), 1)
        _want(nothing is None, f"find of a tag that never was gives {nothing}")
        ask = _ask(3, self.directory, self.amounts, self.options)
        natives = await driver.submit(ask)
        now, pairs = time.time(), zip(ask.ids, natives, strict=False)
        known = [Known(id, ask.tag, native, element, now, 3) for element, (id, native) in enumerate(pairs)]
        try:
            _want(len(set(natives)) == 3 and all(natives), f"three elements do not have three native ids: {natives}")
            await self._watch(driver, ask, known)
        finally:
            for item in known:
                if self.state.get(item.id) not in ("COMPLETED", "FAILED", "ABORTED"):
                    await driver.terminate(item)
        await self._one(self.make())

    async def _watch(self, driver: Driver, ask: Ask, known: list[Known]) -> None:
        first, second, third = known
        self.state = {item.id: "SUBMITTING" for item in known}
        await self._until(driver, known, lambda: self._is_over(first) and self._is_over(second))
        _want(self.last[first.id].verb == "complete", f"a job that ended with 0 is told as {self.last[first.id]}")
        _want(self.last[second.id].verb == "fail", f"a job that ended with 3 is told as {self.last[second.id]}")
        outcome = self.last[second.id].outcome
        _want(outcome is not None, "a job that failed has no outcome")
        if outcome is not None and outcome.exit_code is not None:
            _want(outcome.exit_code == 3, f"a job that ended with 3 has exit code {outcome.exit_code}")
        await self._until(driver, [third], lambda: self.state[third.id] == "RUNNING")
        found = await driver.find(ask.tag, 3)
        _want(found is not None and found[2] == third.native_id, f"find gives {found}, submit gave {third.native_id}")
        successor = self.make()  # what a restarted manager has: it knows native ids, and nothing else
        self.state[third.id], self.last = "PENDING", {}
        await self._until(successor, [third], lambda: self.state[third.id] == "RUNNING")
        await self._end(successor, third)

    async def _end(self, driver: Driver, known: Known) -> None:
        deadline = time.monotonic() + self.wait_s
        while not await driver.terminate(known):
            _want(time.monotonic() < deadline, "terminate never gets through")
            await asyncio.sleep(0.5)
        self.state[known.id] = "KILLING"
        await self._until(driver, [known], lambda: self._is_over(known))
        _want(self.last[known.id].verb != "complete", "a job that was killed is told as complete")
        _want(await driver.terminate(known), "terminate of one that is over is not taken")

    async def _one(self, driver: Driver) -> None:
        """A single job, killed at once: perhaps before it starts."""
        ask = _ask(1, self.directory, self.amounts, self.options, "sleep 3600\n")
        natives = await driver.submit(ask)
        _want(len(natives) == 1 and bool(natives[0]), f"a single job has the native ids {natives}")
        known = Known(ask.ids[0], ask.tag, natives[0], 0, time.time(), 1)
        self.state[known.id] = "SUBMITTING"
        await self._end(driver, known)

    def _is_over(self, known: Known) -> bool:
        return self.state[known.id].endswith("ED")

    async def _until(self, driver: Driver, known: list[Known], done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + self.wait_s
        while not done():
            _want(time.monotonic() < deadline, f"after {self.wait_s:.0f} s: {self.state}, last told {self.last}")
            for seen in await driver.poll([item for item in known if not self._is_over(item)]):
                if seen.id in self.state:
                    self._see(seen)
            await asyncio.sleep(0.2)

    def _see(self, seen: Observation) -> None:
        state = self.state[seen.id]
        if seen.verb == "unsure" or (state == "KILLING" and seen.verb in ("run", "pend")):
            return
        new = move(ALLOCATION, state, seen.verb)
        if new is None:
            _want(state == {"run": "RUNNING", "pend": "PENDING"}.get(seen.verb), f"{seen.verb} after {state}: {seen}")
            return
        _want(seen.verb not in OVER or seen.native_id is not None, f"an end without a native id: {seen}")
        self.state[seen.id], self.last[seen.id] = new, seen


def _ask(
    count: int,
    directory: str,
    amounts: Amounts = AMOUNTS,
    options: tuple[tuple[str, str], ...] = (),
    script: str = SCRIPT,
) -> Ask:
    tag = secrets.token_hex(6)
    ids = tuple(f"{tag}-{element}" for element in range(count))
    return Ask(tag, "rota-exam", ids, amounts, script, directory, time_s=600, options=options)


def _want(truth: bool, words: str) -> None:
    if not truth:
        raise AssertionError(words)
