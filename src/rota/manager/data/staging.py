"""Staging: what a job reads is brought to where it runs, before it starts; what it wrote is known afterwards.

A lease of such a job is sent at once, and the runner holds it until it is told that all is there. So its place is kept,
and a kill, a recall and a lost connection mean what they always mean.
"""

import asyncio
import logging
import os
import random
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from rota.core.state import BatchState, RunnerState, State
from rota.core.stimuli import FactSeen, Stimulus, Unstaged
from rota.manager.data.places import S3, HostPlace, Place, places_of
from rota.manager.data.registry import Registry
from rota.manager.data.transfers import Journal, TransferError, Transfers
from rota.manager.inbound import now
from rota.manager.jobbook import JobBook
from rota.manager.sites.api import Site
from rota.manager.sites.farm import FarmSite
from rota.manager.writer import Writer
from rota.model.amounts import format_size, parse_size, show_size
from rota.model.batch import Template
from rota.model.data import URL, Replica
from rota.model.errors import RotaError, UsageError
from rota.model.job import Result
from rota.model.site import HostOffer
from rota.store.api import Store
from rota.wire.peer import Peer

__all__ = ["Staging"]

log = logging.getLogger("rota")
Key = tuple[int, int, int]
Bring = Callable[[], Coroutine[Any, Any, dict[str, Any]]]
FRESH_S = 10.0
"""How long what was seen of a file is taken to be so."""
AWAY_S = 300.0
AWAY_STEP_S = 5.0
"""How long, and how often, a source that is not there is waited for."""
FEW = 4
"""Templates that are all looked at, before jobs are one by one."""
CHOICES_MOST = 10_000
OURS = ("gone", "changed", "bad")
"""Failures that another place for the job would not help."""


class Phase(Struct):
    """What is done for one attempt before it starts."""

    key: Key
    runner: str
    place: str
    inputs: tuple[str, ...]
    began: float
    """Wall-clock time."""
    missing: int = 0
    """How many inputs are being brought."""
    why: str = ""
    """What it waits for, in words."""
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
    """Brings inputs, registers outputs, and keeps caches within their sizes."""

    def __init__(
        self,
        store: Store,
        writer: Writer,
        book: JobBook,
        sites: Mapping[str, Site],
        peers: Mapping[str, Peer],
        tell: Callable[[Stimulus], None],
        home: str,
    ) -> None:
        self._book = book
        self._sites = sites
        self._peers = peers
        self._home = home
        self._tell_core = tell
        self.registry = Registry(store, writer, self._tell)
        journal = Journal(os.path.join(home, "transfers.json"))
        self.transfers = Transfers(self._measured, journal)
        self._journal = journal
        self._inherited: dict[str, list[tuple[str, str]]] | None = {}
        """What lies at places of transfers of the last manager, as in `Transfers.leftovers`."""
        self._kept_until = time.monotonic() + AWAY_S
        self._tidying: asyncio.Task[None] | None = None
        self._earlier: dict[Key, tuple[str, tuple[str, ...]]] = {}
        """Attempts that another manager has leased, and that may have been told to start: where, and what they read."""
        self.phases: dict[Key, Phase] = {}
        self.choices: dict[Key, Choice] = {}
        """Attempt → why it was given its place; the last ones."""
        self._tasks: dict[Key, asyncio.Task[None]] = {}
        self._work: set[asyncio.Task[None]] = set()
        self._using: dict[tuple[str, str], set[Key]] = {}
        """(place, path) → attempts that use it, or will."""
        self._coming: dict[str, int] = {}
        """Place → bytes that room was made for, and that are not registered there yet."""
        self._removing: dict[str, asyncio.Lock] = {}
        self._removals: dict[str, int] = {}
        """Place → how often removing has begun or ended there."""
        self._bringing: dict[tuple[str, str], asyncio.Future[None]] = {}
        self._seen: dict[tuple[str, str], tuple[float, Any]] = {}
        """(place, path) → when it was looked at, and what was there."""
        self._bad: dict[tuple[str, str], str] = {}
        """(path, place) → why what is there cannot be read."""
        self._offers: dict[str, HostOffer] = {}
        """Hosts of which policies know that they only have to be started."""

    def start(self, state: State) -> None:
        """Take up what the last manager left."""
        self.registry.load()
        self._inherited = self._journal.load()
        for runner in state.runners.values():
            place = self.place_of(state, runner)
            for number, pos in runner.jobs:
                batch = state.batches[number]
                template, live = batch.template(pos), batch.live.get(pos)
                if live is not None and (template.inputs or template.outputs):
                    key = (number, batch.index(pos), live.attempt)
                    self._earlier[key] = (place.name if place is not None else "", template.inputs)
                    self._use(key, *self._earlier[key])

    def _use(self, key: Key, place: str, paths: Sequence[str]) -> None:
        """Let nothing that an attempt reads be removed."""
        for path in paths:
            self._using.setdefault((place, path), set()).add(key)

    def tidy(self) -> None:
        """Remove what transfers have left at places that can be reached again."""
        if self._inherited is not None and time.monotonic() > self._kept_until:  # nobody has gone on with it
            self.transfers.inherit(self._inherited)
            self._inherited = None
        if self.transfers.leftovers and (self._tidying is None or self._tidying.done()):
            self._tidying = asyncio.get_running_loop().create_task(self._tidy())

    async def _tidy(self) -> None:
        places = self.places()
        for name in list(self.transfers.leftovers):
            if name in places:
                await self.transfers.clean(places[name])

    def _tell(self, name: str, key: object, value: object) -> None:
        self._tell_core(FactSeen(at=now(), by="data", name=name, key=key, value=value))

    def _measured(self, source: str, target: str, speed: float) -> None:
        self._tell("bandwidth", (source, target), float(f"{speed:.2g}"))

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
                self._tell("starting", key, offers.get(key))
        self._offers = offers

    # ---- which jobs -------------------------------------------------------------------------------------------------

    def awaited(self, state: State, jobs: Sequence[tuple[int, int, int, Any]], runner: RunnerState) -> list[Key]:
        """Those of the jobs of a lease that are not to be started before this says so; the work for them begins."""
        batches = [state.batches[number] for number in {job[0] for job in jobs}]
        if not any(map(_moves_files, batches)):
            return []
        out = []
        for number, pos, attempt, _ in jobs:
            batch = state.batches[number]
            template = batch.template(pos)
            if template.inputs or (template.outputs and self.place_of(state, runner) is not None):
                key = (number, batch.index(pos), attempt)
                out.append(key)
                self._begin(state, key, batch, pos, template, runner)
        return out

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
        phase = Phase(key, runner.id, name, template.inputs, time.time(), own=own)
        self.phases[key] = phase
        self._note_choice(phase, template.policy)
        self._use(key, phase.place, phase.inputs)
        cwd = self._book.path(batch, pos, key[2], "cwd") or "/"
        task = asyncio.get_running_loop().create_task(self._stage(state, phase, place, cwd))
        self._tasks[key] = task
        task.add_done_callback(lambda _: self._tasks.pop(key, None))

    def _note_choice(self, phase: Phase, policy: str) -> None:
        """Remember how much of what an attempt reads was where when its place was chosen."""
        if phase.inputs and phase.place:
            self.choices[phase.key] = Choice(phase.place, policy, *self.bytes_at(phase.inputs))
            if len(self.choices) > CHOICES_MOST:
                del self.choices[next(iter(self.choices))]

    def bytes_at(self, paths: Sequence[str]) -> tuple[dict[str, int], int]:
        """(place → bytes of these paths that are there, bytes of all as far as they are known)."""
        at, total = {name: 0 for name in self.places() if name != S3}, 0
        for path in paths:
            rows = [row for row in self.registry.of(path) if row.valid]
            total += max((row.size for row in rows), default=0)
            for row in rows:
                if row.location in at:
                    at[row.location] += row.size
        return at, total

    def place_of(self, state: State, runner: RunnerState) -> Place | None:
        """Where the files of a runner are; None: at a site whose nodes share ours, where nothing can be brought."""
        site, places = self._sites.get(runner.site), self.places()
        if isinstance(site, FarmSite):
            allocation = state.allocations.get(runner.allocation or "")
            return places.get(f"{runner.site}/{allocation.queue}") if allocation is not None else None
        return places.get(runner.site)

    def places(self) -> dict[str, Place]:
        """All places by name."""
        return places_of(self._sites, self._home)

    @property
    def here(self) -> Place:
        """This machine."""
        return next(iter(self.places().values()))

    # ---- before a job -----------------------------------------------------------------------------------------------

    async def _stage(self, state: State, phase: Phase, place: Place | None, cwd: str) -> None:
        try:
            await self._prepare(phase, place or self.here, cwd, there=place is not None)
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
            self._tell_core(Unstaged(at=now(), by="data", runner=phase.runner, jobs=[phase.key], why=phase.outcome[1]))
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
        place = self.places().get(phase.place)
        return peer is None or (place is not None and place.why_not is not None)

    async def _prepare(self, phase: Phase, place: Place, cwd: str, there: bool) -> None:
        """Have all inputs at a place; what is not there is brought, several at a time."""
        files = [path for path in phase.inputs if not path.startswith(URL)]
        links = [(path, self._object_path(place, path)) for path in phase.inputs if path.startswith(URL)]
        far = isinstance(place, HostPlace)
        missing = await self._missing(place, files, cwd if far else None)
        if missing and not there:
            raise TransferError("gone", f"{missing[0]} is not on this machine, whose files its nodes see", place.name)
        wanted = [*missing, *(url for url, _ in links)]
        phase.missing = len(wanted)
        await self._bring_all(phase, place, wanted)
        if phase.own:
            at = {path: self._path_at(place, path) for path in phase.inputs}
            phase.links = tuple((path.rpartition("/")[2], at[path]) for path in phase.inputs if path != "/")
        if (far and not files) or (links and not phase.own):
            named = [(os.path.join(cwd, url.rpartition("/")[2]), path) for url, path in links if not phase.own]
            found = await place.ask("arrange", cwd=cwd, links=named)
            if "error" in found:
                raise TransferError(found["error"], f"{place.name}: {found['words']}", place.name)
        for path in phase.inputs:
            self.registry.use(path, place.name)

    async def _bring_all(self, phase: Phase, place: Place, paths: Sequence[str]) -> None:
        """Bring several, and none any more if one of them cannot be brought."""
        work = {asyncio.get_running_loop().create_task(self._bring(phase, place, path)) for path in paths}
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

    async def _missing(self, place: Place, paths: Sequence[str], cwd: str | None) -> list[str]:
        """Which of these are not at a place, or not as they should be; what is there is registered.

        `cwd` is a directory that is made there, so that a host has to be asked once only.
        """
        if not paths:
            return []
        found = await self._look_at_peace(place, paths, cwd)
        missing = []
        for path in paths:
            info, row = found.get(path), self.registry.at(path, place.name)
            if info is None:
                if row is not None and row.cached:
                    self.registry.drop([row.key])
                else:
                    self.registry.spoil(path, place.name, "it is not there any more")
                missing.append(path)
            elif row is None or not row.cached:
                self._register(path, place.name, info)
            elif not await self._is_as_its_origin(row, info):
                self.registry.spoil(path, place.name, "it is not what it was copied from")
                missing.append(path)
        return missing

    async def _is_as_its_origin(self, row: Replica, info: dict[str, Any]) -> bool:
        """Whether a copy is unchanged, and what it was copied from too, as far as that can be seen now."""
        if (info["size"], info["mtime"]) != (row.size, row.mtime):
            return False
        places = self.places()
        for own in [each for each in self.registry.of(row.path) if not each.cached]:
            place = places.get(own.location)
            if place is None or place.why_not is not None:
                continue
            try:
                found = (await self._look(place, [row.path], fresh=True)).get(row.path)
            except RotaError:
                continue
            if found is not None:
                self._register(row.path, own.location, found)
                return (found["size"], found["mtime"]) == (row.size, row.mtime)
            self.registry.spoil(row.path, own.location, "it is not there any more")
        return row.valid

    async def _look(
        self, place: Place, paths: Sequence[str], fresh: bool = False, cwd: str | None = None
    ) -> dict[str, Any]:
        """What is at these paths of a place, as seen in the last seconds, or now."""
        since = time.monotonic() - FRESH_S
        known = {path: self._seen.get((place.name, path)) for path in paths}
        ask = [path for path, seen in known.items() if fresh or seen is None or seen[0] < since]
        if ask:
            answer = await place.ask("files", paths=ask, **({} if cwd is None else {"cwd": cwd}))
            if "error" in answer:
                raise TransferError(answer["error"], f"{place.name}: {answer['words']}", place.name)
            found, bad = answer.get("files", {}), answer.get("bad", {})
            for path in ask:
                self._bad.pop((path, place.name), None)
                if path in bad:
                    self._bad[path, place.name] = bad[path]
                known[path] = self._seen[place.name, path] = (time.monotonic(), found.get(path))
        return {path: seen[1] for path, seen in known.items() if seen is not None and seen[1] is not None}

    def _register(self, path: str, location: str, info: dict[str, Any]) -> None:
        """Take what was seen of somebody's own file."""
        row = self.registry.at(path, location) or Replica(path, location, 0)
        same = (row.size, row.mtime) == (info["size"], info["mtime"])
        checksum = row.checksum if same else None
        new = replace(row, size=info["size"], mtime=info["mtime"], valid=True, why="", checksum=checksum)
        self.registry.keep(new)

    # ---- bringing ---------------------------------------------------------------------------------------------------

    async def _bring(self, phase: Phase, place: Place, path: str) -> None:
        """Have a path at a place: brought once, however many jobs wait for it."""
        key = (place.name, path)
        while (under_way := self._bringing.get(key)) is not None:
            try:
                await asyncio.shield(under_way)
                return
            except asyncio.CancelledError:
                if not under_way.cancelled():
                    raise
        row = self.registry.at(path, place.name)
        if row is not None and row.valid and row.cached and row.used >= phase.began:
            return  # somebody else has brought it since this was looked at
        mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._bringing[key] = mine
        try:
            await self._bring_now(phase, place, path)
            mine.set_result(None)
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError):
                mine.cancel()
            else:
                mine.set_exception(error)
                mine.exception()
            raise
        finally:
            del self._bringing[key]

    async def _bring_now(self, phase: Phase, place: Place, path: str) -> None:
        if path.startswith(URL):
            await self._bring_object(phase, place, path)
            return
        until = time.monotonic() + AWAY_S
        while True:
            refused: list[str] = []
            away: list[str] = []
            if not any(row.valid for row in self.registry.of(path)):
                away += await self.discover([path])
            tried: set[str] = set()
            while row := next((each for each in self._sources(path, place.name) if each.location not in tried), None):
                tried.add(row.location)  # one that was not valid may be, once it was looked at
                source = self.places().get(row.location)
                if source is None or source.why_not is not None:
                    away.append(f"{row.location}: {source.why_not if source is not None else 'there is no such place'}")
                elif await self._bring_from(row, source, place, refused, away):
                    return
            bad = [f"{where}: {why}" for (what, where), why in self._bad.items() if what == path]
            words = "; ".join([*refused, *away, *bad]) or "nobody has it"
            if not away or time.monotonic() > until:
                kind = "away" if away else "gone"
                raise TransferError(kind, f"no replica of {path} can be had: {words}", place.name)
            phase.why = f"{path}: {words}"
            await asyncio.sleep(AWAY_STEP_S)

    def _sources(self, path: str, target: str) -> list[Replica]:
        """Where a path can be brought from: those first that have the least to send now; of equal ones any."""
        busy: dict[str, int] = {}
        for transfer in self.transfers.live:
            busy[transfer.source] = busy.get(transfer.source, 0) + 1
        rows = [row for row in self.registry.of(path) if row.valid and row.location != target]
        return sorted(rows, key=lambda row: (busy.get(row.location, 0), random.random()))

    async def _bring_from(self, row: Replica, source: Place, place: Place, refused: list[str], away: list[str]) -> bool:
        """Try one source; False: another has to be tried, for good or for now, and why."""
        path = row.path
        try:
            info = (await self._look(source, [path], fresh=True)).get(path)
            if info is None:
                self.registry.spoil(path, source.name, "it is not there any more")
                refused.append(f"{source.name}: it is not there any more")
                return False
            if row.cached and not await self._is_as_its_origin(row, info):
                self.registry.spoil(path, source.name, "it is not what it was copied from")
                refused.append(f"{source.name}: its copy is not up to date")
                return False
            if not row.cached:
                self._register(path, source.name, info)
            what = (path, info["size"], info["mtime"])
            found = await self._with_room(
                place, info["size"], lambda: self.transfers.bring(what, source, path, place, path)
            )
        except TransferError as error:
            if error.place == place.name:
                raise
            if error.kind == "cut":
                away.append(f"{source.name}: {error}")
                return False
            self.registry.spoil(path, source.name, str(error))
            refused.append(f"{source.name}: {error}")
            return False
        except RotaError as error:
            away.append(f"{source.name}: {error}")
            return False
        self._seen.pop((place.name, path), None)
        new = Replica(path, place.name, found["size"], found["mtime"], found["sha256"], cached=True, used=time.time())
        self.registry.keep(new)
        return True

    async def _with_room(self, place: Place, size: int, bring: Bring) -> dict[str, Any]:
        """Bring something; where the disk is full, all that can be removed there is, and it is tried once more."""
        self._coming[place.name] = self._coming.get(place.name, 0) + size
        try:
            await self._make_room(place, size)
            try:
                return await bring()
            except TransferError as error:
                if error.kind != "full" or not await self._make_room(place, 0, everything=True):
                    raise
                return await bring()
        finally:
            self._coming[place.name] -= size

    def _object_path(self, place: Place, url: str) -> str:
        """Where an object lies at a place."""
        return os.path.normpath(os.path.join(place.cache, S3, url[len(URL) :].lstrip("/")))

    async def _bring_object(self, phase: Phase, place: Place, url: str) -> None:
        """Have an object at a place, as it is now. A store of objects that does not answer is waited for."""
        until = time.monotonic() + AWAY_S
        while True:
            try:
                await self._bring_object_now(place, url)
                return
            except TransferError as error:
                if error.kind != "cut" or error.place != S3 or time.monotonic() > until:
                    raise
                phase.why = str(error)
            await asyncio.sleep(AWAY_STEP_S)

    async def _bring_object_now(self, place: Place, url: str) -> None:
        source = self.places()[S3]
        target = self._object_path(place, url)
        if not target.startswith(os.path.join(place.cache, S3) + "/"):
            raise TransferError("bad", f"{url} leads out of the directory for objects", S3)
        info = (await self._files_at(source, url)).get(url)
        have = (await self._files_at(place, target)).get(target)
        if info is None:
            self.registry.spoil(url, S3, "it is not there")
            raise TransferError("gone", f"{url} is not there", S3)
        self.registry.keep(Replica(url, S3, info["size"], info["mtime"]))
        row = self.registry.at(url, place.name)
        same = have is not None and (have["size"], have["mtime"]) == (info["size"], info["mtime"])
        if same and row is not None and row.valid:
            return
        what = (url, info["size"], info["mtime"])
        found = await self._with_room(
            place, info["size"], lambda: self.transfers.bring(what, source, url, place, target)
        )
        new = Replica(url, place.name, found["size"], found["mtime"], found["sha256"], cached=True, used=time.time())
        self.registry.keep(new)

    async def _files_at(self, place: Place, path: str) -> dict[str, Any]:
        """What is at a path of a place now; that this cannot be said is told of the place."""
        try:
            answer = await place.ask("files", paths=[path])
        except RotaError as error:
            raise TransferError("cut", str(error), place.name) from None
        if "error" in answer:
            raise TransferError(answer["error"], answer["words"], place.name)
        found: dict[str, Any] = answer.get("files", {})
        return found

    # ---- caches -----------------------------------------------------------------------------------------------------

    def cache_most(self, place: str) -> int | None:
        """How many bytes rota may keep at a place of what it brought there; None: as many as fit."""
        site = self._sites.get(place.partition("/")[0])
        text = site.config.cache if site is not None else None
        return None if text is None else parse_size(text)

    async def _make_room(self, place: Place, size: int, everything: bool = False) -> bool:
        """Remove what was used longest ago, and is not in use, until all that comes is within the cache's size."""
        most = self.cache_most(place.name)
        if size and most is not None and size > most:
            words = f"{place.name}: {format_size(size)} are more than its cache may have, {format_size(most)}"
            raise TransferError("full", words, place.name)
        async with self._removing.setdefault(place.name, asyncio.Lock()):
            rows = self.registry.cached(place.name)
            coming = self._coming.get(place.name, 0)
            over = sum(row.size for row in rows) + coming - most if most is not None else 0
            going = []
            for row in rows:
                if over <= 0 and not everything:
                    break
                if not self.is_used(row):
                    going.append(row)
                    over -= row.size
            if over > 0 and not everything:
                words = f"{place.name}: all that its cache has ({format_size(most or 0)} at the most) is in use"
                raise TransferError("full", words, place.name)
            await self._remove(place, going)
            return bool(going)

    def is_used(self, row: Replica) -> bool:
        """Whether an attempt uses a replica, or will."""
        return bool(self._using.get((row.location, row.path)))

    async def remove(self, place: Place, rows: Sequence[Replica]) -> None:
        """Remove files that were brought to a place. Raises UsageError if one is in use."""
        async with self._removing.setdefault(place.name, asyncio.Lock()):
            for row in rows:
                if self.is_used(row):
                    raise UsageError(f"{row.path} at {row.location} is used by a job that runs")
            await self._remove(place, rows)

    async def _remove(self, place: Place, rows: Sequence[Replica]) -> None:
        """What begins to use one of these meanwhile looks again when it is over."""
        if not rows:
            return
        asked = [(self._path_at(place, row.path), row.size, row.mtime) for row in rows]
        self._removals[place.name] = self._removals.get(place.name, 0) + 1
        try:
            await place.ask("remove", rows=asked)
        finally:
            self._removals[place.name] += 1
        self.registry.drop([row.key for row in rows])
        for row in rows:
            self._seen.pop((place.name, row.path), None)

    async def _look_at_peace(self, place: Place, paths: Sequence[str], cwd: str | None) -> dict[str, Any]:
        """What is at these paths, seen while nothing was being removed there."""
        while True:
            before = self._removals.get(place.name, 0)
            found = await self._look(place, paths, fresh=True, cwd=cwd)
            if before % 2 == 0 and before == self._removals.get(place.name, 0):
                return found
            async with self._removing.setdefault(place.name, asyncio.Lock()):
                continue

    def _path_at(self, place: Place, path: str) -> str:
        return self._object_path(place, path) if path.startswith(URL) else path

    # ---- finding ----------------------------------------------------------------------------------------------------

    async def discover(self, paths: Sequence[str]) -> list[str]:
        """Look for files at every place, and register what is found; the places that cannot be asked now, and why."""
        away: list[str] = []

        async def at(place: Place) -> None:
            if place.why_not is not None:
                away.append(f"{place.name}: {place.why_not}")
                return
            try:
                found = await self._look(place, paths)
            except RotaError as error:
                away.append(f"{place.name}: {error}")
                return
            for path, info in found.items():
                self._register(path, place.name, info)

        await asyncio.gather(*(at(place) for place in self.places().values() if place.name != S3))
        return sorted(away)

    async def submitted(self, state: State, templates: Sequence[Template]) -> None:
        """Look for the inputs of new jobs of which nothing is known yet, before they get their places."""
        paths = {path for template in templates for path in template.inputs if not path.startswith(URL)}
        unknown = [path for path in paths if not any(row.valid for row in self.registry.of(path))]
        if unknown:
            await asyncio.gather(*(site.known() for site in self._sites.values() if isinstance(site, FarmSite)))
            await self.discover(sorted(unknown))
        self.tell_hosts(state)

    # ---- after a job ------------------------------------------------------------------------------------------------

    @property
    def is_busy(self) -> bool:
        """Whether there are attempts of which it has to know that they end."""
        return bool(self.phases or self._earlier)

    def ended(self, state: State, results: Sequence[Result]) -> None:
        """Let go of what attempts used; register what those have written that succeeded."""
        for result in results:
            batch = state.batches.get(result.batch)
            if batch is None:
                continue
            key = (result.batch, batch.index(result.pos), result.attempt)
            phase, earlier = self.phases.pop(key, None), self._earlier.pop(key, None)
            if phase is not None:
                place, inputs = phase.place, phase.inputs
            elif earlier is not None:
                place, inputs = earlier
            else:
                continue
            for path in inputs:
                self._using.get((place, path), set()).discard(key)
            if (task := self._tasks.pop(key, None)) is not None:
                task.cancel()
            outputs = batch.template(result.pos).outputs
            if result.state == "COMPLETED" and outputs:
                cwd = self._book.path(batch, result.pos, result.attempt, "cwd") or "/"
                self._start(self._collect(place, cwd, outputs, key))

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._work.add(task)
        task.add_done_callback(self._work.discard)

    async def _collect(self, name: str, cwd: str, outputs: tuple[str, ...], key: Key) -> None:
        """Register what a job has written; bring objects to where they belong."""
        place = self.places().get(name)
        if place is None:
            return
        job = f"{key[0]}.{key[1]}"
        try:
            files = [path for path in outputs if not path.startswith(URL)]
            patterns = (await place.ask("files", patterns=files)).get("matches", {})
            paths = sorted({path for found in patterns.values() for path in found})
            for path, info in (await self._look(place, paths, fresh=True)).items() if paths else ():
                row = self.registry.at(path, name)
                if row is not None and row.cached:
                    self.registry.drop([row.key])  # it is the job's own now
                self._register(path, name, info)
                for other in self.registry.of(path):
                    if other.location != name and other.valid:
                        self.registry.spoil(path, other.location, f"job {job} has written another at {name}")
            for path in files:
                if not patterns.get(path):
                    log.warning("job %s has not written its output %s at %s", job, path, name)
            for url in [path for path in outputs if path.startswith(URL)]:
                await self._upload(place, os.path.join(cwd, url.rpartition("/")[2]), url)
        except (RotaError, OSError) as error:
            log.warning("what job %s has written at %s is not known: %s", job, name, error)

    async def _upload(self, place: Place, path: str, url: str) -> None:
        info = (await self._look(place, [path], fresh=True)).get(path)
        if info is None:
            raise TransferError("gone", f"{path} is not there, so it cannot become {url}", place.name)
        what = (url, info["size"], info["mtime"])
        found = await self.transfers.bring(what, place, path, self.places()[S3], url)
        self.registry.keep(Replica(url, S3, found["size"], found["mtime"], found["sha256"]))

    # ---- people -----------------------------------------------------------------------------------------------------

    def told(self, key: Key) -> str | None:
        """What a job waits for before it starts, in words; None: for no file."""
        phase = self.phases.get(key)
        if phase is None or phase.outcome is not None:
            return None
        moving = [each for each in self.transfers.live if each.target == phase.place and each.path in phase.inputs]
        if not moving:
            count = len(phase.inputs)
            inputs = "its input is" if count == 1 else f"its {count:,} inputs are"
            return phase.why or f"{inputs} looked at on {phase.place}"
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
        self.transfers.closing = True
        tasks = [*self._tasks.values(), *self._work, *([self._tidying] if self._tidying is not None else [])]
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
