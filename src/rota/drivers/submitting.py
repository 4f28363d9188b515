"""Submitting once: doubtful answers are looked into before anything is sent again."""

import asyncio
import re
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from rota.drivers.api import Ask
from rota.drivers.dialect import Answer, Command, Submitted
from rota.drivers.gate import Times, shown, tail
from rota.drivers.settings import Settings
from rota.drivers.tracking import LOST
from rota.drivers.transport import NO_SUCH_PROGRAM, UnreachableError
from rota.model.errors import BusyError, RefusedError, RotaError

if TYPE_CHECKING:
    from rota.drivers.command import CommandDriver

__all__ = ["ArrayError", "FullError", "Submitter"]

LOOK_AFTER_S = 10.0
"""A submission that takes so long is looked for, and again after twice as long, and so on."""
FULL = re.compile(
    r"SubmitJob|maximum number of jobs already in queue|would exceed .*limit|jobs are allowed|pending job threshold",
    re.IGNORECASE,
)
"""In the words of a site that takes only so many jobs of one user."""
TOO_LARGE = re.compile(
    r"array\b.{0,80}\b(size|limit|too large|too many|exceed)|\b(limit|too large|too many|exceed).{0,80}\barray\b"
    r"|(bad|invalid) job array|with more than \d+ tasks|max_slot_limit",
    re.IGNORECASE | re.DOTALL,
)
"""In the words of a site that takes smaller arrays only; some tell how large they may be."""
NAMED = re.compile(r"(?:limit is|limit of|more than|at most|max\w*)\D{0,20}(\d{1,9})", re.IGNORECASE)
"""How it may say what size it takes."""
UNREACHED = re.compile(r"connect|contact|is down|not responding|communication", re.IGNORECASE)
"""In the words of a command that did not reach the batch system."""


class FullError(BusyError):
    """The site has as many jobs of this user as it takes, or would have with these."""


class ArrayError(BusyError):
    """The site takes no arrays of that size: `most` is what it says that it takes, or half of what it was asked for."""

    def __init__(self, words: str, most: int) -> None:
        super().__init__(words)
        self.most = most


class Submitter:
    """Submits the allocations of one site."""

    def __init__(self, driver: "CommandDriver", settings: Settings, times: Times) -> None:
        self._driver = driver
        self._settings = settings
        self._times = times
        self.tags: set[str] = set()
        """Tags that are being submitted or looked for right now."""

    async def submit(self, ask: Ask, command: Command) -> list[str]:
        """Try until it is accepted, refused, or has failed too often. At most one native job ever has the tag."""
        self.tags.add(ask.tag)
        try:
            base = await self._place(ask, command)
        finally:
            self.tags.discard(ask.tag)
        return self._driver.elements(base, ask.count)

    async def _place(self, ask: Ask, command: Command) -> str:
        done, tries = Submitted(None, "transient", ""), 0
        for attempt in range(self._settings.submit_tries):
            if attempt:
                await self._times.sleep(self.pause(attempt - 1))
            if self._driver.is_unwanted(ask.ids):
                raise RefusedError(f"site {self._driver.site}: {ask.name}-{ask.tag} was killed before it was submitted")
            done, answer = await self._try(ask, command)
            if done.result == "ok" and done.native_id is not None:
                self._driver.gate.good()
                return done.native_id
            if done.result == "fatal":
                self._driver.gate.good()
                found = await self.look_up(ask.tag)  # one look: some commands fail after they have done their work
                if found is not None and found.native_id is not None:
                    self._driver.gate.note(f"{ask.tag} was accepted, though the command said: {tail(done.detail)}")
                    return found.native_id
                refused = self._refused(command, done, answer, "")
                words = answer.words if answer is not None else done.detail
                if ask.count > 1 and TOO_LARGE.search(words):
                    raise ArrayError(str(refused), _array_most(words, ask.count))
                raise refused
            if done.result != "transient":
                base = await self.settle(ask.tag, ask.ids, self._settings.settle_s)
                if base is not None:
                    return base
            elif FULL.search(done.detail):  # nothing but the end of others helps, or a smaller array
                raise FullError(str(self._refused(command, done, answer, "")))
            tries = attempt + 1
            if self._driver.gate.is_shut:
                break
        raise self._refused(command, done, None, f", tried {tries} times")

    def pause(self, failures: int) -> float:
        """How long to wait after so many failures."""
        settings = self._settings
        return self._times.jittered(min(settings.retry_most_s, settings.retry_first_s * 2.0 ** min(failures, 20)))

    async def _try(self, ask: Ask, command: Command) -> tuple[Submitted, Answer | None]:
        driver = self._driver
        try:
            answer = await self._run(ask, command)
            if isinstance(answer, Submitted):
                return answer, None
        except UnreachableError as error:
            driver.gate.bad(command, str(error), error)
            return Submitted(None, "ambiguous" if error.ran else "transient", str(error)), None
        if answer.code is None:
            words = f"no answer within {self._settings.submit_timeout_s:.0f} s; {answer.stderr}".rstrip("; ")
            driver.gate.bad(command, words)
            return Submitted(None, "ambiguous", words), answer
        if answer.code == NO_SUCH_PROGRAM and not answer.stdout:
            driver.gate.bad(command, answer.stderr)
            return Submitted(None, "transient", answer.stderr), answer
        unread = Submitted(None, "ambiguous", "its answer cannot be read")
        done, _ = await driver.read(lambda: driver.dialect.read_submit(ask, answer), unread, answer)
        if done.result == "transient" and not UNREACHED.search(done.detail):  # it works, and says that it has no time
            driver.gate.doubt(command, done.detail or answer.stderr)
        elif done.result not in ("ok", "fatal"):
            driver.gate.bad(command, done.detail or answer.stderr or answer.stdout)
        return done, answer

    async def _run(self, ask: Ask, command: Command) -> Answer | Submitted:
        """Run the submit command; if it takes long, look now and then whether the job has long been accepted.

        Not for speed: a short job may be over and forgotten by the time that a command which hangs is given up.
        """
        await self._driver.gate.turn()
        running = asyncio.ensure_future(self._driver.gate.send(command, self._settings.submit_timeout_s))
        wait_s = LOOK_AFTER_S
        try:
            while True:
                await asyncio.wait({running}, timeout=wait_s)
                wait_s *= 2
                if running.done():
                    return running.result()
                found = await self.look_up(ask.tag)
                if found is not None and found.native_id is not None:
                    return found
        finally:
            if not running.done():
                running.cancel()
                await asyncio.wait({running})

    def _refused(self, command: Command, done: Submitted, answer: Answer | None, tries: str) -> RotaError:
        """The error to raise: refused if the cluster does not accept it, busy if another time may be better."""
        words = answer.stderr or answer.stdout if answer is not None else ""
        said = _line(words) or _line(done.detail) or "nothing"
        repeats = " ".join(words.split())[:100] in " ".join(done.detail.split())  # as most dialects do
        detail = f" ({_line(done.detail)})" if words and done.detail and not repeats else ""
        if answer is not None and answer.code and not detail:
            detail = f" (exit {answer.code})"
        hint = (
            "the cluster does not accept it as it is: change what is asked for, or the site's account, partition and "
            "options"
            if done.result == "fatal"
            else "see whether the cluster answers: run the command by hand"
        )
        kind = RefusedError if done.result == "fatal" else BusyError
        return kind(
            f"site {self._driver.site}: nothing was submitted{tries}. The command was: {shown(command)}. "
            f"It said: {said}{detail}. What to do: {hint}"
        )

    async def settle(self, tag: str, ids: Sequence[str], settle_s: float) -> str | None:
        """Look a tag up until it is found, or until it has not been for long enough to be sure.

        However long that takes: only who is certain may submit again. One that came, ran and was forgotten before it
        could be found is known by its own words.
        """
        looking = tag not in self.tags
        self.tags.add(tag)
        try:
            return await self._settle(tag, ids, settle_s)
        finally:
            if looking:
                self.tags.discard(tag)

    async def _settle(self, tag: str, ids: Sequence[str], settle_s: float) -> str | None:
        times, settings = self._times, self._settings
        begun, looks, failures = times.mono(), 0, 0
        while True:
            found = await self.look_up(tag)
            if found is not None and found.native_id is not None:
                return found.native_id
            settled = times.mono() - begun >= settle_s
            if found is not None:
                looks, failures = looks + settled, 0  # before, it may just not have arrived
            else:
                failures += 1
            if looks >= settings.settle_looks:
                ran = await self._driver.left_words(ids, tag)
                if ran is not None:
                    return LOST + tag if ran else None
            await times.sleep(self.pause(failures) if failures else max(settings.settle_every_s, settings.poll_min_s))

    async def look_up(self, tag: str) -> Submitted | None:
        """Look a tag up once. None: that said nothing. Of several jobs with the tag, all but the first are ended."""
        driver = self._driver
        commands = driver.dialect.find(tag, driver.user)
        certain = bool(commands)
        for command in commands:
            answer = await driver.ask(command)
            if answer.code is None or answer.cut:
                certain = False
                continue
            unread = Submitted(None, "transient", "its answer cannot be read")
            found, _ = await driver.read(partial(driver.dialect.read_find, tag, answer), unread, answer)
            if found.result == "ok" and found.native_id is not None:
                driver.gate.good()
                if found.others:
                    driver.gate.note(f"tag {tag} was submitted more than once: {', '.join(found.others)} are ended")
                    await driver.end(list(found.others))
                return found
            if found.result != "not-found":
                certain = False
                driver.gate.bad(command, found.detail or answer.words)
        if not certain:
            return None
        driver.gate.good()
        return Submitted(None, "not-found", "")


def _array_most(words: str, count: int) -> int:
    """The size of arrays that a refusal names; half of what was asked for if it names none that is smaller."""
    named = [int(found) for found in NAMED.findall(words) if 0 < int(found) < count]
    return max(named, default=count // 2)


def _line(words: str) -> str:
    """What a program said, in one line."""
    return tail("; ".join(line.strip() for line in words.splitlines() if line.strip()))
