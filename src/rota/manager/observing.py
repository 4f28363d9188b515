"""Asking sites: to submit, find, end and look at allocations. What is seen becomes stimuli."""

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Callable, Container, Coroutine, Mapping
from functools import partial
from typing import Any

from rota.core import effects as ef
from rota.core.decide.deadlines import is_busy
from rota.core.decide.greeting import replaced_runners, rivals
from rota.core.state import RunnerState, State
from rota.core.stimuli import AllocationSeen, Greet, LastWords, SiteFull, SiteSeen, Stimulus, TakeDown, Written
from rota.drivers.api import Known, Observation
from rota.drivers.farm import HostError
from rota.drivers.submitting import ArrayError, FullError
from rota.manager.inbound import now, report_rows
from rota.manager.jobbook import JobBook
from rota.manager.outbound import Sent, lease_message
from rota.manager.sites.api import UNSENT, Site
from rota.model.allocation import Allocation, Outcome
from rota.model.errors import BusyError, RefusedError, RotaError, UsageError
from rota.model.site import SiteFacts
from rota.wire.files import Left, bad_words

__all__ = ["Observer", "site_seen"]

log = logging.getLogger("rota")
POLL_S = 1.0
RESTING_POLL_S = 5.0
LAST_WORDS_S = 1.0
READ_MOST = 5
"""How often the reports of a runner that was replaced are looked for if they cannot be read."""
LEARN_S = 5.0
LEARN_MOST_S = 300.0
LEARN_AGAIN_S = 300.0
BELIEVED = {"PENDING": "pend", "RUNNING": "run"}
"""State of an allocation → the verb by which its driver would say so."""


class Observer:
    """Carries out effects that are requests to sites, and tells what sites say."""

    def __init__(
        self, sites: Mapping[str, Site], book: JobBook, peers: Container[str], tell: Callable[[Stimulus], None]
    ) -> None:
        self._sites = sites
        self._book = book
        self._peers = peers
        """The runners in session."""
        self._tell = tell
        self._requests: set[asyncio.Task[None]] = set()
        self._learning: dict[str, asyncio.Task[None]] = {}
        """Site → the task that asks it what it offers."""
        self._submitting: dict[str, asyncio.Future[bool]] = {}
        """Tag → whether the newest request to submit or find it has gone well, once it is over."""
        self.promise: Callable[[State, list[tuple[int, int, int]]], None] = lambda state, jobs: None
        """Told which attempts (batch, position, number) are about to be handed to a batch system."""
        self._closed = False
        self._unread: dict[str, int] = {}
        """Runner that was replaced → how often what it left could not be read."""
        self._checking: set[str] = set()
        self._polling: set[str] = set()
        self.woken = asyncio.Event()
        """Set when something was submitted or a runner here has ended: there is something to look at."""

    def start(self) -> list[SiteSeen]:
        """Watch every site, and ask it what it offers; what each offers until it has answered."""
        return [self.enter(site) for site in self._sites.values()]

    def enter(self, site: Site) -> SiteSeen:
        """Watch a site, and ask it what it offers; what it offers until it has answered."""
        self.drop(site.name)
        site.watch(self.woken.set)
        self._learning[site.name] = asyncio.get_running_loop().create_task(self._learn(site))
        return site_seen(site.name, site.first_facts())

    def drop(self, name: str) -> None:
        """Ask a site no more what it offers."""
        if (learning := self._learning.pop(name, None)) is not None:
            learning.cancel()

    async def _learn(self, site: Site) -> None:
        """Ask a site what it offers, until it says so; then now and then, since that changes."""
        wait, told = LEARN_S, None
        while not self._closed:
            try:
                facts = await site.learn()
                if facts is None:
                    return
                if facts != told:
                    self._tell(site_seen(site.name, facts))
                wait, told = LEARN_S, facts
                await asyncio.sleep(site.learn_again_s or LEARN_AGAIN_S)
            except RotaError as error:
                log.warning("%s", error)
                if told is None and wait == LEARN_S:  # it will say the same of submissions, and that is shown
                    self._tell(site_seen(site.name, site.facts()))
                await asyncio.sleep(wait)
                wait = min(wait * 2, LEARN_MOST_S)

    async def rest(self, state: State, pressing: bool) -> None:
        """Wait until it is time for the next poll."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.woken.wait(), POLL_S if pressing or is_busy(state) else RESTING_POLL_S)
        self.woken.clear()

    def terminate_all(self, state: State) -> None:
        """Ask for the end of every allocation that is not over; of direct ones the core does, which has them again."""
        self._tell(TakeDown(at=now()))
        for allocation in state.allocations.values():
            if allocation.state.endswith("ING") and not allocation.direct:
                self.allocate(state, ef.Allocate("terminate", allocation.id, allocation.site, allocation.tag))

    def allocate(self, state: State, effect: ef.Allocate) -> None:
        """Carry out one request to a site, in the background."""
        self._start(self._allocate(state, effect))

    def _start(self, request: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(request)
        self._requests.add(task)
        task.add_done_callback(self._requests.discard)

    async def close(self) -> None:
        """Let running requests finish, and make no new ones."""
        self._closed = True
        if self._requests:
            await asyncio.wait(self._requests, timeout=5)

    async def _allocate(self, state: State, effect: ef.Allocate) -> None:
        site = self._sites.get(effect.site)
        if site is not None and effect.what == "shut":  # also if it is forgotten already
            site.shut(effect.id)
            return
        if site is None or effect.id not in state.allocations:
            return
        try:
            if effect.what in ("submit", "find"):
                await self._after_others(effect.tag, lambda: self._submit(state, site, effect))
            elif effect.what == "terminate":
                await site.terminate(_known(state.allocations[effect.id]))
            elif effect.what == "collect":
                await self._collect(state, site, state.allocations[effect.id])
            else:
                known = _known(state.allocations[effect.id], state)
                site.doubt(known)
                await self._check(state, site, [known])
        except RotaError as error:
            log.warning("%s %s: %s", effect.what, effect.id, error)
            if isinstance(error, FullError):
                self._tell(SiteFull(at=now(), by="driver", site=site.name, count=len(effect.ids)))
            if isinstance(error, ArrayError | HostError):
                self._tell(site_seen(site.name, site.facts()))
            if effect.what in ("submit", "find"):
                refused = Outcome(why="refused") if isinstance(error, RefusedError | UsageError) else None
                refused = Outcome(why="array") if isinstance(error, ArrayError) else refused
                refused = Outcome(why="host") if isinstance(error, HostError) else refused
                for name in effect.ids:
                    self._see(Observation(name, "fail", None, str(error), refused))

    async def _after_others(self, tag: str, request: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Make a request for a tag once an earlier one is over, and not if that has failed, which was told.

        When the state was folded anew, an array is looked for that may be on its way: it would not be found yet.
        """
        earlier = self._submitting.get(tag)
        mine = self._submitting[tag] = asyncio.get_running_loop().create_future()
        well = False
        try:
            if earlier is None or await asyncio.shield(earlier):
                await request()
                well = True
        finally:
            mine.set_result(well)
            if self._submitting.get(tag) is mine:
                del self._submitting[tag]

    async def _submit(self, state: State, site: Site, effect: ef.Allocate) -> None:
        """Submit an array. After a restart look for it first: it may have been submitted."""
        allocations = [state.allocations[name] for name in effect.ids]
        count = allocations[0].elements or len(allocations)
        found = await site.find(effect.tag, count) if effect.what == "find" else None
        if found is None and effect.what == "find" and count != len(allocations):
            raise BusyError(f"{effect.tag} was never submitted, and a part of it is over: the rest is asked for anew")
        if found is None:
            try:
                found = await site.submit(effect.tag, allocations, self._direct_leases(state, allocations))
            finally:
                for allocation in allocations:
                    if not allocation.state.endswith("ING"):  # over before its token was made
                        site.shut(allocation.id)
        self.woken.set()
        for allocation in allocations:
            if allocation.state == "SUBMITTING" or allocation.native_id is None:
                self._see(Observation(allocation.id, site.verb_of_submitted, found[allocation.element]), identity=True)

    def _direct_leases(self, state: State, allocations: list[Allocation]) -> dict[int, dict[str, Any]]:
        """Element → lease message, for direct jobs that are still wanted."""
        out = {}
        for allocation in allocations:
            for runner in state.direct_runners(allocation):
                for number, pos in runner.jobs:
                    live = state.batches[number].live[pos]
                    lease = ef.Lease(runner.id, 1, 1, 0.0, [(number, pos, live.attempt, live.slot)], {live.slot: 1})
                    out[allocation.element] = lease_message(self._book, state, lease, runner.site, Sent())
                    self.promise(state, [(number, pos, live.attempt)])
        return out

    # ---- looking ----------------------------------------------------------------------------------------------------

    async def poll(self, state: State) -> None:
        """Look at every live allocation, one call per site; sites do not wait for each other."""
        live: dict[str, list[Known]] = {}
        for allocation in state.allocations.values():
            if allocation.state in ("PENDING", "RUNNING", "KILLING") and allocation.id not in state.soft.ending:
                live.setdefault(allocation.site, []).append(_known(allocation, state))
        for name, site in self._sites.items():
            site.know(partial(_tags, state, name))
        asked = [(self._sites[name], known) for name, known in live.items() if name in self._sites]
        for site, known in asked:
            if not site.answers_at_once and site.name not in self._polling:
                self._polling.add(site.name)
                self._start(self._poll_site(state, site, known))
        for site, known in asked:
            if site.answers_at_once:
                await self._check(state, site, known)

    async def _poll_site(self, state: State, site: Site, known: list[Known]) -> None:
        """Look at the allocations of a site that may take its time; nobody waits for that."""
        try:
            await self._check(state, site, known)
        except RotaError as error:
            log.warning("site %s: %s", site.name, error)
        except Exception:
            log.exception("polling the site %s failed", site.name)
        finally:
            self._polling.discard(site.name)

    async def _check(self, state: State, site: Site, known: list[Known]) -> None:
        """Ask a site about allocations, and tell what it says."""
        known = [item for item in known if item.id not in self._checking]
        if not known:
            return  # all of them are being looked at: a site that is slow is not asked again meanwhile
        ids = {item.id for item in known}
        self._checking.update(ids)
        try:
            asked = now().mono
            for seen in await site.poll(known):
                allocation, host = state.allocations.get(seen.id), None
                if allocation is not None and seen.verb in ("run", "pend"):
                    told = allocation.id in state.soft.conditions or allocation.unsure
                    if seen.verb == "run" and allocation.state == "RUNNING" and not told:
                        continue
                    if allocation.direct and (seen.verb == "run" or allocation.state == "RUNNING"):
                        host = await site.host_of(_known(allocation))
                if allocation is not None or seen.verb != "run":
                    self._see(seen, host=host, asked=asked)
        finally:
            self._checking.difference_update(ids)

    def _see(
        self, seen: Observation, host: str | None = None, asked: float | None = None, identity: bool = False
    ) -> None:
        stimulus = AllocationSeen(
            at=now(),
            by="driver",
            id=seen.id,
            verb=seen.verb,
            native_id=seen.native_id,
            reason=seen.reason,
            outcome=seen.outcome,
            host=host,
            asked=asked,
            identity=identity,
        )
        self._tell(stimulus)

    # ---- last words -------------------------------------------------------------------------------------------------

    async def _collect(self, state: State, site: Site, allocation: Allocation) -> None:
        """Tell what an allocation that is over has left behind."""
        words = LastWords(at=now(), by=f"allocation {allocation.id} by file", id=allocation.id)
        known = _known(allocation)
        try:
            if allocation.direct:
                words.written = await self._read_report(site, known)
                stopped = any(row.reason == "runner-stopped" for left in words.written for row in left.ended)
                words.restarted = (stopped or not words.written) and await site.was_restarted(known)
                words.spoilt = None if words.written else await site.spoilt(known)
                if not words.written and allocation.host is None:
                    words.host = await site.host_of(known)
            else:
                runners = state.runners_of(allocation.id)
                await self._wait_for_peers(runners)
                words.written = [found for runner in runners if (found := _read_unsent(site, runner)) is not None]
                said = [bad_words(os.path.join(runner.output, UNSENT)) for runner in runners]
                words.spoilt = next((each for each in said if each is not None), None)
                words.output = None if runners else await site.last_output(known)
        except Exception as error:  # whatever it is: the end waits for an answer
            known_kind = isinstance(error, RotaError | OSError)
            log.warning("what allocation %s left cannot be read: %s", allocation.id, error, exc_info=not known_kind)
            words.unread = str(error) or type(error).__name__
        words.at = now()
        self._tell(words)

    def collect_replaced(self, state: State, greeting: Greet) -> None:
        """Tell a greeting of a runner that replaces others, or will, with what those could not send."""
        self._start(self._collect_replaced(state, greeting))

    async def _collect_replaced(self, state: State, greeting: Greet) -> None:
        await self._wait_for_peers(rivals(state, greeting))
        replaced = [runner for runner in replaced_runners(state, greeting) if runner.site in self._sites]
        for old in replaced:
            try:
                words = _read_unsent(self._sites[old.site], old)
            except (RotaError, OSError) as error:  # it greets again; to wait for ever would keep its node idle
                tries = self._unread[old.id] = self._unread.get(old.id, 0) + 1
                log.warning("what runner %s left cannot be read (%d times): %s", old.id, tries, error)
                if tries < READ_MOST:
                    return
            else:
                greeting.written += [words] if words is not None else []
        greeting.at = now()
        self._tell(greeting)

    async def _read_report(self, site: Site, known: Known) -> list[Written]:
        """The report that a direct job has left, if there is one that can be read."""
        found = await site.report_of(known)
        if found is None:
            return []
        directory, report = found
        return [_written(f"{known.tag}.{known.element}", report, directory, await site.host_of(known))]

    async def _wait_for_peers(self, runners: list[RunnerState]) -> None:
        """Wait a moment for the connections of runners to be read to the end: what was sent before a death counts."""
        deadline = time.monotonic() + LAST_WORDS_S
        while any(runner.id in self._peers for runner in runners) and time.monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(0.005)


def site_seen(name: str, facts: SiteFacts | None) -> SiteSeen:
    """The stimulus that says what a site offers; None: it is gone."""
    return SiteSeen(at=now(), site=name, facts=facts)


def _tags(state: State, site: str) -> set[str]:
    """The tags of a site's allocations that are not over."""
    return {row.tag for row in state.allocations.values() if row.site == site and row.state.endswith("ING")}


def _read_unsent(site: Site, runner: RunnerState) -> Written | None:
    """The reports that a runner wrote down, since it had to exit before it could send them."""
    unsent = site.unsent(runner.output)
    return None if unsent is None else _written(runner.id, unsent, runner.output)


def _written(runner: str, left: Left, directory: str, host: str | None = None) -> Written:
    return Written(runner, report_rows(left.ended, directory), left.disclaimed, host)


def _known(allocation: Allocation, state: State | None = None) -> Known:
    """An allocation as its driver is asked about it, with what it is taken to be if that is to be told."""
    submitted, elements = allocation.submitted or 0.0, allocation.elements
    believed = None
    if state is not None:
        condition = state.soft.conditions.get(allocation.id)
        believed = BELIEVED.get(allocation.state) if condition is None else condition.kind
    return Known(allocation.id, allocation.tag, allocation.native_id, allocation.element, submitted, elements, believed)
