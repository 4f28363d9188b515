"""The queue of requests: who may have room now, in the order in which they came.

As rota's own loop does, it keeps those that wait in trees. When something is given back at a location, the first in
order that may fit there is found without looking at all; a request that cannot fit costs nothing.
"""

import asyncio
import time
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Any

from rota.model.verdict import Verdict, Wake
from rota.placement.errors import PlacementError
from rota.placement.levels import DISK, SLOT, capacity_of, shortage_words
from rota.placement.offers import Key, Offer, Offers
from rota.placement.usage import Usage, Way
from rota.schedule.ledger import Row
from rota.schedule.tree import ANY, NONE, Tree, Vector
from rota.schedule.waiting import Source, in_order

__all__ = ["Queue", "Request"]

MIB = 1 << 20


class Request:
    """A job that waits for its place."""

    __slots__ = ("allocated", "job", "number", "placed", "since", "ways")

    def __init__(self, job: Any, ways: Sequence[Way], since: float) -> None:
        self.job = job
        self.ways = ways
        """Its targets, in the order in which they are tried."""
        self.since = since
        self.number = 0
        self.placed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.allocated = False


class Queue:
    """Requests in the order in which they came."""

    def __init__(self, offers: Offers, usage: Usage, reserve_after: float) -> None:
        self.requests: dict[int, Request] = {}
        self._offers = offers
        self._usage = usage
        self._reserve_after = reserve_after
        self._numbers = 0
        self._trees: dict[Key, Tree] = {}
        self._woken: set[int] = set()
        """Requests to be tried whatever has changed."""
        self._stirred: set[str] = set()
        """Locations where something was given back, or that are new."""
        self._members: dict[str, dict[tuple[Key, str], None]] = {}
        """Id → (deployment and service, name) of the locations whose use is charged there."""
        offers.on_news = self._news

    # ---- coming and going ----

    def put(self, request: Request) -> None:
        """Add a request at the end."""
        self._numbers += 1
        request.number = self._numbers
        self.requests[request.number] = request
        for key, vector in _vectors(request).items():
            self._trees.setdefault(key, Tree()).put((request.number,), vector)
        self._woken.add(request.number)

    def drop(self, request: Request) -> None:
        """Take a request out, if it is there."""
        if self.requests.pop(request.number, None) is not None:
            for key in _vectors(request):
                self._trees[key].drop((request.number,))
            self._woken.discard(request.number)

    def again(self, request: Request) -> None:
        """Try a request once more: what it was offered is gone."""
        self._woken.add(request.number)

    def _news(self, key: Key, old: Offer, new: Offer) -> None:
        """A connector has answered."""
        self._usage.know(new)
        for name, chain in old.chains.items():
            if new.chains.get(name) != chain:
                for each in chain:
                    self._members.get(each, {}).pop((key, name), None)
        for name, chain in new.chains.items():
            if old.chains.get(name) != chain:
                for each in chain:
                    self._members.setdefault(each, {})[key, name] = None
                self._stirred.add(chain[0])

    def stir_all(self) -> None:
        """Try whatever may have room anywhere."""
        self._stirred.update(self._members)

    # ---- who is next ----

    def stirred(self) -> bool:
        """Whether somebody may have room who had none."""
        self._stirred |= self._usage.freed
        self._usage.freed.clear()
        return bool(self.requests) and bool(self._woken or self._stirred)

    def turn(self) -> Iterator[Request]:
        """The requests that may have room now, in order; each is to be tried before the next is asked for."""
        woken, stirred = sorted(self._woken), self._stirred
        self._woken, self._stirred = set(), set()
        spots = dict.fromkeys([spot for name in stirred for spot in self._members.get(name, ())])
        sources: list[Source] = [self._source(key, name) for key, name in spots if key in self._trees]
        if woken:
            sources.append(lambda after: _after(woken, after))
        for (number,) in in_order(sources):
            request = self.requests.get(number)
            if request is not None:
                yield request

    def _source(self, key: Key, name: str) -> Source:
        tree = self._trees[key]

        def first(after: Any) -> Any:
            bound = self._bound(key, name)
            return tree.first(bound, after) if bound is not None and tree.count else None

        return first

    def _bound(self, key: Key, name: str) -> Vector | None:
        """What no request exceeds that has room at a location now; None: there is none for anybody."""
        cores = memory = disk = gpus = NONE
        ledger = self._usage.ledger
        for number, each in enumerate(self._offers.known(key).chains.get(name, ())):
            free = ledger.free(each)
            if self._usage.known[each].hardware is None:
                if free.cores < SLOT.cores:
                    return None
                continue
            named = dict(free.named)
            cores, memory = min(cores, free.cores), min(memory, free.memory)
            gpus = min(gpus, named.get("gpus", 0))
            if not number:
                disk = max([count for what, count in free.named if what.startswith(DISK)], default=0)
        return (cores, memory, disk, gpus)

    # ---- where there is room ----

    def with_room(self, request: Request, way: Way) -> dict[str, Any]:
        """The locations of a target that have room for a request, through their whole stacks."""
        offer, kept, out = self._offers.known(way.key), self._kept(request), {}
        ledger, rows_of = self._usage.ledger, self._usage.rows
        cores = int(1000 * way.hardware.cores)
        for name, location in offer.locations.items():
            chain = offer.chains[name]
            if ledger.free(chain[0]).cores < (SLOT.cores if location.hardware is None else cores):
                continue
            rows = rows_of(way, location, chain)
            if isinstance(rows, PlacementError) or ledger.lacks(rows) is not None:
                continue
            if not kept or kept.isdisjoint(chain):
                out[name] = location
        return out

    def _kept(self, request: Request) -> set[str]:
        """Locations that are kept free for a request that came before this one and has waited for long."""
        if not self._reserve_after:
            return set()
        first = next((each for each in self.requests.values() if not each.placed.done()), None)
        if first is None or first is request or first.number > request.number:
            return set()
        if time.monotonic() - first.since < self._reserve_after:
            return set()
        ledger = self._usage.ledger
        for way in first.ways:
            offer = self._offers.known(way.key)
            large = [name for name in offer.locations if self._is_large_enough(way, offer, name)]
            if len(large) >= way.target.locations:
                large.sort(key=lambda name: -ledger.free(offer.chains[name][0]).cores)
                return {each for name in large[: way.target.locations] for each in offer.chains[name]}
        return set()

    def _is_large_enough(self, way: Way, offer: Offer, name: str) -> bool:
        rows = self._usage.rows(way, offer.locations[name], offer.chains[name])
        return not isinstance(rows, PlacementError) and not _too_small(self._usage, rows)

    # ---- why not ----

    def never(self, request: Request) -> str | None:
        """Why a request can never have a place, whatever ends; None: it can, or that is not known."""
        for way in request.ways:
            offer, found = self._offers.known(way.key), 0
            if way.error is not None or not offer.locations:
                return None
            for name in offer.locations:
                found += self._is_large_enough(way, offer, name)
                if found >= way.target.locations:
                    return None
        asks = "; ".join(dict.fromkeys(f"{no.location}: {no.detail}" for no in self.verdicts(request)))
        return f"job {request.job.name} can never be placed: {asks[:2000]}"

    def verdicts(self, request: Request) -> list[Verdict]:
        """What is against a request at every location of its targets."""
        out, kept = [], self._kept(request)
        for way in request.ways:
            offer, where = self._offers.known(way.key), "/".join(part for part in way.key if part)
            count = len(offer.locations)
            if way.error is not None:
                out.append(Verdict(where, "status", "error", f"{way.error}", False, (Wake.STATUS,)))
            elif count < way.target.locations:
                words = f"asks for {way.target.locations} locations, {count} are offered"
                out.append(Verdict(where, "fits", "too-few", words, False, (Wake.STATUS,)))
            for name, location in offer.locations.items():
                no = self._verdict(way, location, offer.chains[name], kept)
                out += [] if no is None else [no]
        return out

    def _verdict(self, way: Way, location: Any, chain: Sequence[str], kept: set[str]) -> Verdict | None:
        rows, where = self._usage.rows(way, location, chain), str(location)
        if isinstance(rows, PlacementError):
            return Verdict(where, "fits", "no-mount", str(rows), True, (Wake.STATUS,))
        small = _too_small(self._usage, rows)
        lacking = self._usage.ledger.lacks(rows)
        if small is not None or lacking is not None:
            name, asked, free = small or lacking or ("", SLOT, SLOT)
            level = self._usage.known[name]
            on = "" if level is location else f" (at {level}, which it is stacked on)"
            words = shortage_words(level, asked, free, "" if small is not None else " free") + on
            code = ("fits", "too-small") if small is not None else ("room", "busy")
            return Verdict(where, *code, words, small is not None, (Wake.CAPACITY,))
        if not kept.isdisjoint(chain):
            return Verdict(where, "room", "kept", "is kept free for a job that came before", False, (Wake.CAPACITY,))
        return None


def _too_small(usage: Usage, rows: list[Row]) -> tuple[str, Any, Any] | None:
    """The first level that would not do even if it were empty."""
    for name, amounts in rows:
        capacity = capacity_of(usage.known[name])
        if not amounts.fits(capacity):
            return name, amounts, capacity
    return None


def _vectors(request: Request) -> dict[Key, Vector]:
    """What a request asks for at the least, by deployment and service, as trees compare it."""
    out: dict[Key, Vector] = {}
    for way in request.ways:
        asked = way.hardware
        disk = max([each.size for each in asked.storage.values()], default=0.0) * MIB
        gpus = (getattr(asked, "resources", None) or {}).get("gpus", 0.0) * 1000
        figures = (1000 * asked.cores, asked.memory * MIB, disk, gpus)
        vector = tuple([int(figure) if figure else ANY for figure in figures])
        known = out.get(way.key)
        out[way.key] = vector if known is None else tuple(map(min, known, vector))
    return out


def _after(numbers: list[int], after: Any) -> Any:
    at = 0 if after is None else bisect_right(numbers, after[0])
    return (numbers[at],) if at < len(numbers) else None
