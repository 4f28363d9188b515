"""Staging: what a job reads is brought to where it runs, before it starts; what it wrote is known afterwards.

A lease of such a job is sent at once, and the runner holds it until it is told that all is there. So its place is kept,
and a kill, a recall and a lost connection mean what they always mean.
"""

import asyncio
import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from rota.core.state import BatchState, RunnerState, State
from rota.core.stimuli import Stimulus, Unstaged
from rota.manager.data.files import Files, Key, Wish
from rota.manager.data.outputs import Outputs, Owed
from rota.manager.data.places import HostPlace, Place
from rota.manager.data.transfers import TransferError
from rota.manager.inbound import now
from rota.manager.jobbook import JobBook
from rota.manager.sites.api import Site
from rota.manager.sites.farm import FarmSite
from rota.model.amounts import format_size, show_size
from rota.model.batch import Template
from rota.model.data import URL
from rota.model.errors import RotaError
from rota.model.job import Result
from rota.model.site import HostOffer
from rota.model.tables import COMPLETED
from rota.wire.peer import Peer

__all__ = ["Staging"]

log = logging.getLogger("rota")
FEW = 4
"""Templates that are all looked at, before jobs are one by one."""
CHOICES_MOST = 10_000
FAR = (
    "a server of a cloud sees no files of this machine, and rota brings none there and none home: let the command "
    "itself fetch what it reads and send what it writes, or run it elsewhere (--on SITE)"
)
OURS = ("gone", "changed", "bad")
"""Failures that another place for the job would not help."""


class Phase(Struct):
    """What is done for one attempt before it starts."""

    key: Key
    runner: str
    place: str
    inputs: tuple[str, ...]
    wish: Wish
    missing: int = 0
    """How many inputs are being brought."""
    told: bool = False
    """Whether its runner was told that it may start."""
    begun: bool = False
    """Whether its runner says that it has started."""
    own: bool = False
    """Whether it runs in a directory of its own: there are links to what it reads."""
    links: tuple[tuple[str, str], ...] = ()
    """(name, path) of these links."""
    outcome: tuple[str, str] | None = None
    """(reason, words) of a failure; ("", ""): all is there; None: not yet."""


class Choice(Struct, frozen=True):
    """Where an attempt was sent, and how much of what it reads was at each place then."""

    place: str
    policy: str
    at: dict[str, int]
    total: int

    def words(self) -> str:
        """As people read it."""
        if not self.total:
            return f"the policy {self.policy} chose it: no bytes of what it reads were known"
        here, most = self.at.get(self.place, 0), max(self.at.values(), default=0)
        words = f"the policy {self.policy} chose it: {show_size(here)} of {show_size(self.total)} were there"
        return words if here >= most else f"{words}, {show_size(most)} at the place that had most"


class Staging:
    """Has inputs brought before jobs start, and outputs registered when they have ended."""

    def __init__(
        self,
        files: Files,
        outputs: Outputs,
        book: JobBook,
        sites: Mapping[str, Site],
        peers: Mapping[str, Peer],
        tell: Callable[[Stimulus], None],
    ) -> None:
        self.files = files
        self.outputs = outputs
        self._book = book
        self._sites = sites
        self._peers = peers
        self._tell = tell
        self._earlier: dict[Key, tuple[str, tuple[str, ...]]] = {}
        """Attempts that another manager has leased, and that may have been told to start: where, and what they read."""
        self.phases: dict[Key, Phase] = {}
        self.choices: dict[Key, Choice] = {}
        """Attempt → why it was given its place; the last ones."""
        self._tasks: dict[Key, asyncio.Task[None]] = {}
        self._offers: dict[str, HostOffer] = {}
        """Hosts of which policies know that they only have to be started."""

    def start(self, state: State) -> None:
        """Take up what the last manager left."""
        self.files.load()
        for runner in state.runners.values():
            place = self.place_of(state, runner)
            for number, pos in runner.jobs:
                batch = state.batches[number]
                template, live = batch.template(pos), batch.live.get(pos)
                if live is not None and (template.inputs or template.outputs):
                    key = (number, batch.index(pos), live.attempt)
                    self._earlier[key] = (place.name if place is not None else "", template.inputs)
                    self.files.use(key, *self._earlier[key])

        def job(key: Key) -> tuple[BatchState | None, int | None]:
            batch = state.batches.get(key[0])
            return batch, None if batch is None else batch.position(key[1])

        def is_live(key: Key) -> bool:
            batch, pos = job(key)
            live = None if batch is None or pos is None else batch.live.get(pos)
            return live is not None and live.attempt == key[2]

        def has_completed(key: Key) -> bool:
            batch, pos = job(key)
            if batch is None or pos is None or batch.attempts[pos] != key[2]:
                return False
            return bool(batch.states[pos] == COMPLETED and batch.template(pos).outputs)

        self.outputs.start(is_live, has_completed)
        for runner in state.runners.values():  # the last one may have died before it had written that down
            place = self.place_of(state, runner)
            jobs = [(*job, live.attempt) for job in runner.jobs if (live := state.batches[job[0]].live.get(job[1]))]
            self.promise(state, jobs, place.name if place is not None else None)

    def tell_hosts(self, state: State) -> None:
        """Tell policies which hosts are there and have no runner yet: one is started where a job wants to go."""
        if not self._offers and not any(isinstance(site, FarmSite) for site in self._sites.values()):
            return
        busy = set()
        for name in state.census.runners["SERVING"]:
            runner = state.runners[name]
            allocation = state.allocations.get(runner.allocation or "")
            busy.add((runner.site, allocation.queue if allocation is not None else None))
        offers: dict[str, HostOffer] = {}
        for site in self._sites.values():
            for queue in site.facts().queues if isinstance(site, FarmSite) else ():
                if queue.up and (site.name, queue.name) not in busy:
                    offers[f"{site.name}/{queue.name}"] = HostOffer(site.name, queue.name, queue.node, queue.tags)
        for key in [*self._offers, *offers]:
            if self._offers.get(key) != offers.get(key):
                self.files.tell("starting", key, offers.get(key))
        self._offers = offers

    # ---- which jobs -------------------------------------------------------------------------------------------------

    def awaited(self, state: State, jobs: Sequence[tuple[int, int, int, Any]], runner: RunnerState) -> list[Key]:
        """Those of the jobs of a lease that are not to be started before this says so; the work for them begins."""
        if len(jobs) == 1:
            alone = state.batches[jobs[0][0]].template(jobs[0][1])
            if not (alone.inputs or alone.outputs):
                return []
        batches = [state.batches[number] for number in {job[0] for job in jobs}]
        if not any(map(_moves_files, batches)):
            return []
        out = []
        for number, pos, attempt, _ in jobs:
            batch = state.batches[number]
            template = batch.template(pos)
            if template.inputs or template.outputs:
                key = (number, batch.index(pos), attempt)
                out.append(key)
                self._begin(state, key, batch, pos, template, runner)
        place = self.place_of(state, runner) or self.files.here
        self.promise(state, [job[:3] for job in jobs], place.name)
        return out

    def promise(self, state: State, jobs: Sequence[tuple[int, int, int]], place: str | None = None) -> None:
        """Write down what attempts (batch, position, number) will have written; by default here, which nodes share."""
        rows = []
        for number, pos, attempt in jobs:
            batch = state.batches[number]
            if outputs := batch.template(pos).outputs:
                cwd = self._book.path(batch, pos, attempt, "cwd") or "/"
                rows.append(Owed((number, batch.index(pos), attempt), place or self.files.here.name, cwd, outputs))
        self.outputs.promise(rows)

    def resume(self, state: State, runner: RunnerState) -> None:
        """Go on for what a runner that is back holds and has not started."""
        for number, pos in runner.jobs:
            batch = state.batches[number]
            template, live = batch.template(pos), batch.live.get(pos)
            if (template.inputs or template.outputs) and live is not None:
                self._begin(state, (number, batch.index(pos), live.attempt), batch, pos, template, runner)

    def begun(self, rows: Iterable[tuple[Any, ...]]) -> None:
        """Take note that attempts (batch, index, attempt, …) have started: their runner has heard what it was told."""
        for batch, index, attempt, *_ in rows if self.phases else ():
            phase = self.phases.get((batch, index, attempt))
            if phase is not None:
                phase.begun = True

    def touched(self, state: State, runner: RunnerState) -> None:
        """Say once more what a runner was told and has not acted upon: it may not have heard it."""
        for number, pos in runner.jobs if self.phases else ():
            batch = state.batches[number]
            live = batch.live.get(pos)
            phase = self.phases.get((number, batch.index(pos), live.attempt)) if live is not None else None
            if phase is not None and phase.outcome is not None and not phase.begun:
                self._say(state, phase)

    def _begin(
        self, state: State, key: Key, batch: BatchState, pos: int, template: Template, runner: RunnerState
    ) -> None:
        phase = self.phases.get(key)
        if phase is not None:
            phase.runner = runner.id
            if phase.outcome is not None:  # after the lease itself, which is about to be sent
                asyncio.get_running_loop().call_soon(self._say, state, phase)
            return
        place = self.place_of(state, runner)
        name, own = place.name if place is not None else "", template.workdir == "unique"
        phase = Phase(key, runner.id, name, template.inputs, Wish(time.time()), own=own)
        self.phases[key] = phase
        self._note_choice(phase, template.policy)
        self.files.use(key, phase.place, phase.inputs)
        cwd = self._book.path(batch, pos, key[2], "cwd") or "/"
        site = self._sites.get(runner.site)
        far = place is None and site is not None and site.facts().cloud
        task = asyncio.get_running_loop().create_task(self._stage(state, phase, place, cwd, far))
        self._tasks[key] = task
        task.add_done_callback(lambda _: self._tasks.pop(key, None))

    def _note_choice(self, phase: Phase, policy: str) -> None:
        """Remember how much of what an attempt reads was where when its place was chosen."""
        if phase.inputs and phase.place:
            self.choices[phase.key] = Choice(phase.place, policy, *self.files.bytes_at(phase.inputs))
            if len(self.choices) > CHOICES_MOST:
                del self.choices[next(iter(self.choices))]

    def place_of(self, state: State, runner: RunnerState) -> Place | None:
        """Where the files of a runner are; None: at a site whose nodes share ours, where nothing can be brought."""
        site, places = self._sites.get(runner.site), self.files.places()
        if isinstance(site, FarmSite):
            allocation = state.allocations.get(runner.allocation or "")
            return places.get(f"{runner.site}/{allocation.queue}") if allocation is not None else None
        return places.get(runner.site)

    # ---- before a job -----------------------------------------------------------------------------------------------

    async def _stage(self, state: State, phase: Phase, place: Place | None, cwd: str, far: bool) -> None:
        try:
            if far:
                raise TransferError("bad", FAR, phase.place)
            await self._prepare(phase, place or self.files.here, cwd, there=place is not None)
            phase.outcome = ("", "")
        except TransferError as error:
            phase.outcome = ("input" if error.kind in OURS else "staging", str(error))
        except RotaError as error:
            phase.outcome = ("staging", str(error))
        except asyncio.CancelledError:
            raise
        except Exception as error:
            log.exception("staging failed")
            phase.outcome = ("staging", f"rota failed at it: {type(error).__name__}")
        self._say(state, phase)

    def _say(self, state: State, phase: Phase) -> None:
        """Tell the runner that a job may start, or why not."""
        peer, runner = self._peers.get(phase.runner), state.runners.get(phase.runner)
        if phase.outcome is None:
            return
        if phase.outcome[0] and self._is_away(phase, peer) and not phase.told and phase.key not in self._earlier:
            self._tell(Unstaged(at=now(), by="data", runner=phase.runner, jobs=[phase.key], why=phase.outcome[1]))
            return
        if peer is None or runner is None:
            return
        message: dict[str, Any] = {"t": "staged", "session": runner.session}
        if phase.outcome[0]:
            peer.send({**message, "at": time.time(), "failed": [[*phase.key, *phase.outcome]]})
        else:
            phase.told = True
            links = {"links": [[phase.key, phase.links]]} if phase.links else {}
            clock = state.soft.contacts[phase.runner].clock  # as with a lease: what comes too late is not started
            peer.send({**message, "jobs": [phase.key], "clock": clock, **links})

    def _is_away(self, phase: Phase, peer: Peer | None) -> bool:
        """Whether a runner cannot be told that its job is not to start."""
        place = self.files.places().get(phase.place)
        return peer is None or (place is not None and place.why_not is not None)

    async def _prepare(self, phase: Phase, place: Place, cwd: str, there: bool) -> None:
        """Have all inputs at a place; what is not there is brought, several at a time."""
        files = [path for path in phase.inputs if not path.startswith(URL)]
        links = [(path, self.files.object_path(place, path)) for path in phase.inputs if path.startswith(URL)]
        far = isinstance(place, HostPlace)
        missing = await self.files.missing(place, files, cwd if far else None)
        if missing and not there:
            raise TransferError("gone", f"{missing[0]} is not on this machine, whose files its nodes see", place.name)
        wanted = [*missing, *(url for url, _ in links)]
        phase.missing = len(wanted)
        await self._bring_all(phase, place, wanted)
        if phase.own:
            at = {path: self.files.path_at(place, path) for path in phase.inputs}
            phase.links = tuple((path.rpartition("/")[2], at[path]) for path in phase.inputs if path != "/")
        if (far and not files) or (links and not phase.own):
            named = [(os.path.join(cwd, url.rpartition("/")[2]), path) for url, path in links if not phase.own]
            found = await place.ask("arrange", cwd=cwd, links=named)
            if "error" in found:
                raise TransferError(found["error"], f"{place.name}: {found['words']}", place.name)
        for path in phase.inputs:
            self.files.registry.use(path, place.name)

    async def _bring_all(self, phase: Phase, place: Place, paths: Sequence[str]) -> None:
        """Bring several, and none any more if one of them cannot be brought."""
        work = {asyncio.get_running_loop().create_task(self.files.bring(phase.wish, place, path)) for path in paths}
        try:
            while work:
                done, work = await asyncio.wait(work, return_when=asyncio.FIRST_COMPLETED)
                phase.missing -= len(done)
                failed = [task.exception() for task in done if task.exception() is not None]
                for error in failed[:1]:
                    assert error is not None
                    raise error
        finally:
            for task in work:
                task.add_done_callback(_let_go)
                task.cancel()

    async def submitted(self, state: State, templates: Sequence[Template]) -> None:
        """Look for the inputs of new jobs of which nothing is known yet, before they get their places."""
        paths = {path for template in templates for path in template.inputs if not path.startswith(URL)}
        unknown = [path for path in paths if not any(row.valid for row in self.files.registry.of(path))]
        if unknown:
            await asyncio.gather(*(site.known() for site in self._sites.values() if isinstance(site, FarmSite)))
            await self.files.discover(sorted(unknown))
        self.tell_hosts(state)

    # ---- after a job ------------------------------------------------------------------------------------------------

    @property
    def is_busy(self) -> bool:
        """Whether there are attempts of which it has to know that they end."""
        return bool(self.phases or self._earlier or self.outputs.is_busy)

    def ended(self, state: State, results: Sequence[Result]) -> None:
        """Let go of what attempts used, and see to what they have written."""
        for result in results:
            batch = state.batches.get(result.batch)
            if batch is None:
                continue
            key = (result.batch, batch.index(result.pos), result.attempt)
            self.outputs.ended(key, result.state == "COMPLETED")
            phase, earlier = self.phases.pop(key, None), self._earlier.pop(key, None)
            if phase is not None:
                self.files.let_go(key, phase.place, phase.inputs)
            elif earlier is not None:
                self.files.let_go(key, *earlier)
            if (task := self._tasks.pop(key, None)) is not None:
                task.cancel()

    # ---- people -----------------------------------------------------------------------------------------------------

    def told(self, key: Key) -> str | None:
        """What a job waits for before it starts, in words; None: for no file."""
        phase = self.phases.get(key)
        if phase is None or phase.outcome is not None:
            return None
        moving = [
            each for each in self.files.transfers.live if each.target == phase.place and each.path in phase.inputs
        ]
        if not moving:
            count = len(phase.inputs)
            inputs = "its input is" if count == 1 else f"its {count:,} inputs are"
            return phase.wish.why or f"{inputs} looked at on {phase.place}"
        parts = [
            f"{each.path} from {each.source}: {format_size(each.done)} of {format_size(each.size)}"
            + (f", try {each.tries} ({each.why})" if each.tries > 1 else "")
            for each in moving[:3]
        ]
        count = len(phase.inputs)
        inputs = "its input is" if count == 1 else f"{phase.missing:,} of its {count:,} inputs are"
        return f"{inputs} brought to {phase.place}: {'; '.join(parts)}"

    async def close(self) -> None:
        """Give up what is under way: it goes on with the next manager."""
        await self.outputs.close()
        await self.files.close()
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=5)


def _moves_files(batch: BatchState) -> bool:
    """Whether some of a batch's jobs read or write files that are known; of one with many templates: perhaps."""
    return len(batch.templates) > FEW or any(template.inputs or template.outputs for template in batch.templates)


def _let_go(task: asyncio.Task[None]) -> None:
    """Nobody wants to know any more how a task ended."""
    if not task.cancelled():
        task.exception()
