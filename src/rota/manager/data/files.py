"""What files are where: looked for at every place, brought once however many jobs wait, kept within caches."""

import asyncio
import os
import random
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from rota.core.stimuli import FactSeen, Stimulus
from rota.manager.data.places import S3, Place, check_answer, places_of
from rota.manager.data.registry import Registry
from rota.manager.data.transfers import Journal, TransferError, Transfers
from rota.manager.inbound import now
from rota.manager.sites.api import Site
from rota.manager.writer import Writer
from rota.model.amounts import format_size, parse_size
from rota.model.data import URL, Replica
from rota.model.errors import RotaError, UsageError
from rota.store.api import Store

__all__ = ["Files", "Key", "Wish"]

Key = tuple[int, int, int]
"""An attempt: batch, index, number."""
Bring = Callable[[], Coroutine[Any, Any, dict[str, Any]]]
FRESH_S = 10.0
"""How long what was seen of a file is taken to be so."""
AWAY_S = 300.0
AWAY_STEP_S = 5.0
"""How long, and how often, a source that is not there is waited for."""


class Wish(Struct):
    """That files be at a place."""

    began: float
    """Wall-clock time."""
    why: str = ""
    """What it waits for, in words."""


class Files:
    """Knows what is where, brings it, and keeps caches within their sizes."""

    def __init__(
        self,
        store: Store,
        writer: Writer,
        sites: Mapping[str, Site],
        tell: Callable[[Stimulus], None],
        home: str,
    ) -> None:
        self._sites = sites
        self._home = home
        self._tell = tell
        self.registry = Registry(store, writer, self.tell)
        journal = Journal(os.path.join(home, "transfers.json"))
        self.transfers = Transfers(self._measured, journal)
        self._journal = journal
        self._inherited: dict[str, list[tuple[str, str]]] | None = {}
        """What lies at places of transfers of the last manager, as in `Transfers.leftovers`."""
        self._kept_until = time.monotonic() + AWAY_S
        self._tidying: asyncio.Task[None] | None = None
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
        self.coming: Callable[[str], str | None] = lambda url: None
        """Who is sending an object, in words; None: nobody."""

    def load(self) -> None:
        """Take up what the last manager knew."""
        self.registry.load()
        self._inherited = self._journal.load()

    def use(self, key: Key, place: str, paths: Sequence[str]) -> None:
        """Let nothing that an attempt reads be removed."""
        for path in paths:
            self._using.setdefault((place, path), set()).add(key)

    def let_go(self, key: Key, place: str, paths: Sequence[str]) -> None:
        """An attempt uses them no more."""
        for path in paths:
            self._using.get((place, path), set()).discard(key)

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

    def tell(self, name: str, key: object, value: object) -> None:
        """Tell policies a fact."""
        self._tell(FactSeen(at=now(), by="data", name=name, key=key, value=value))

    def _measured(self, source: str, target: str, speed: float) -> None:
        self.tell("bandwidth", (source, target), float(f"{speed:.2g}"))

    # ---- places -----------------------------------------------------------------------------------------------------

    def places(self) -> dict[str, Place]:
        """All places by name."""
        return places_of(self._sites, self._home)

    @property
    def here(self) -> Place:
        """This machine."""
        return next(iter(self.places().values()))

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

    # ---- what is there ----------------------------------------------------------------------------------------------

    async def missing(self, place: Place, paths: Sequence[str], cwd: str | None) -> list[str]:
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

    async def bring(self, wish: Wish, place: Place, path: str) -> None:
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
        if row is not None and row.valid and row.cached and row.used >= wish.began:
            return  # somebody else has brought it since this was looked at
        mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._bringing[key] = mine
        try:
            await self._bring_now(wish, place, path)
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

    async def _bring_now(self, wish: Wish, place: Place, path: str) -> None:
        if path.startswith(URL):
            await self._bring_object(wish, place, path)
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
            wish.why = f"{path}: {words}"
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

    def object_path(self, place: Place, url: str) -> str:
        """Where an object lies at a place."""
        return os.path.normpath(os.path.join(place.cache, S3, url[len(URL) :].lstrip("/")))

    async def _bring_object(self, wish: Wish, place: Place, url: str) -> None:
        """Have an object at a place, as it is now. A store of objects that does not answer is waited for."""
        until = time.monotonic() + AWAY_S
        while True:
            try:
                await self._bring_object_now(place, url)
                return
            except TransferError as error:
                if error.kind != "cut" or error.place != S3 or time.monotonic() > until:
                    raise
                wish.why = str(error)
            await asyncio.sleep(AWAY_STEP_S)

    async def _bring_object_now(self, place: Place, url: str) -> None:
        if (words := self.coming(url)) is not None:  # what is there now is not what was written
            raise TransferError("cut", words, S3)
        source = self.places()[S3]
        target = self.object_path(place, url)
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
        asked = [(self.path_at(place, row.path), row.size, row.mtime) for row in rows]
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

    def path_at(self, place: Place, path: str) -> str:
        return self.object_path(place, path) if path.startswith(URL) else path

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

    # ---- what jobs wrote --------------------------------------------------------------------------------------------

    async def seen(self, place: Place, path: str) -> dict[str, Any] | None:
        """What is at a path of a place now; None: nothing."""
        return (await self._look(place, [path], fresh=True)).get(path)

    async def register(self, files: Sequence[str], place: Place, job: str) -> list[str]:
        """Register what a job has written at a place, by paths and patterns; those of them that match nothing there."""
        if not files:
            return []
        patterns = check_answer(await place.ask("files", patterns=list(files))).get("matches", {})
        paths = sorted({path for found in patterns.values() for path in found})
        for path, info in (await self._look(place, paths, fresh=True)).items() if paths else ():
            row = self.registry.at(path, place.name)
            if row is not None and row.cached:
                self.registry.drop([row.key])  # it is the job's own now
            self._register(path, place.name, info)
            for other in self.registry.of(path):
                if other.location != place.name and other.valid:
                    self.registry.spoil(path, other.location, f"job {job} has written another at {place.name}")
        return [path for path in files if not patterns.get(path)]

    async def close(self) -> None:
        """Give up what is under way: it goes on with the next manager."""
        self.transfers.closing = True
        if self._tidying is not None:
            self._tidying.cancel()
            await asyncio.wait([self._tidying], timeout=5)
