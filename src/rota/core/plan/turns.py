"""The turns of a pass: which shapes get one, in order, and what each is given.

Only shapes that may find a place now get a turn. What they are given, and in which order, is the same as if every shape
that waits got one.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from heapq import heapify, heappop, heapreplace
from operator import le
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from rota.core.plan.alone import refused
from rota.core.plan.backfill import Reservation, Soonest, ahead_of, free_from, reserve
from rota.core.plan.limits import few_parts
from rota.core.plan.watching import News
from rota.core.state import State
from rota.core.stimuli import At
from rota.model.needs import Amounts
from rota.schedule import limits
from rota.schedule.gangs import Laid, gang_verdicts, place_gang
from rota.schedule.pipeline import Placement, room_for, width
from rota.schedule.places import Places, Spot, asked_bound, free_bound
from rota.schedule.policy import DEFAULT
from rota.schedule.tree import NONE, Key, Vector
from rota.schedule.view import Limit, Place, View, Want
from rota.schedule.waiting import Entry, Forest, Source, in_order

__all__ = ["Gang", "Turns"]


class Gang(Struct):
    """The nodes for one job of several."""

    want: Want
    laid: Laid
    count: int = 1


Given = Placement | Gang


class _Had(NamedTuple):
    """A turn that a shape had."""

    number: int
    was_open: bool
    """Whether its limits were open when it began."""
    used: set[str]
    """Runners that did not refuse it."""


class Turns:
    """The turns of one pass, and what is known of it when they are over."""

    def __init__(self, state: State, view: View, news: News, at: At) -> None:
        planning = state.soft.planning
        assert planning.places is not None
        self.state = state
        self.view = view
        self.at = at
        self.places: Places = planning.places
        self.waiting = planning.waiting
        self._news = news
        self._most: dict[int, int | None] = {}
        self._over: set[int] = set()
        self._few: dict[str, dict[int, int | None] | None] = {}
        """Limit that lets few of its shapes start → those with their parts, as in `_most`; None: any other."""
        self._few_keys: dict[str, list[Key]] = {}
        """The same → the keys of these shapes, in order."""
        self._few_over: dict[str, list[int]] = {}
        """The same → the shapes that hold more than their part."""
        self._given: dict[int, int] = {}
        """Shape → slots that it was given."""
        self._only_few = False
        """Whether only these get turns."""
        self._keys: list[Key] = []
        """Of the shapes that had the first turns, in order."""
        self._had: dict[int, _Had] = {}
        """Shapes that had a turn → the last of them."""
        self._number = 0
        """Of the present turn."""
        self._before: dict[str, list[tuple[int, Amounts]]] = {}
        """Runner → (number of a turn that took something there, what was free before it did)."""
        self._later: dict[int, int] = {}
        """Shapes that had a turn before those behind the reservation → how many of their jobs are behind it."""
        self._gave_rest = False
        """Whether what was left of limits has been given out too."""
        self._closed_by: dict[str, Key] = {}
        """Limit that became full in this pass → in whose turn."""

    # ---- who gets a turn, and in which order ----

    def placements(self) -> Iterator[Given]:
        """Place shapes in order; after one that has waited too long for room, only what does not delay it.

        Then another round gives out what is left of a limit because a shape could not use its part.
        """
        planning = self.state.soft.planning
        last, planning.reserved = planning.reserved, None
        waits: Key | None = None
        self._only_few = last is None
        for key in in_order([*self._sources(), *self._old()]):
            entry = self.waiting.entries[key[-1]]
            if last is not None and (-entry.want.priority, entry.want.first) > last.key:
                break
            first, later = self._parts(entry, last)
            if not first:
                continue
            self._later[key[-1]] = later
            self._keys.append(key)
            yield from self._turn(entry, first)
            if self.state.shapes[key[-1]].ready > later and self._is_old(entry):
                planning.reserved = self._reserve(entry)
                if planning.reserved is not None:
                    waits = key
                    break
        self._only_few = False
        if planning.reserved is not None and waits is not None:
            yield from self._fill(planning.reserved, waits, last)
            return
        if last is not None:
            for key in in_order(self._sources()):
                entry = self.waiting.entries[key[-1]]
                later = self._later[key[-1]] if key[-1] in self._later else self._parts(entry, last)[1]
                if later:
                    yield from self._turn(entry, later)
        yield from self._again()

    def _again(self) -> Iterator[Given]:
        """Give out what is left of limits because a shape could not use its part."""
        self._gave_rest = True
        if not self._most and not self._few:
            return
        cut = [self.waiting.entries[number].want.shape for number, most in self._most.items() if most is not None]
        names = {name for shape in cut for name in shape.limits}
        names.update([name for name, parts in self._few.items() if parts is not None])
        full = {name for name in names if limits.fits_names((name,), self.view.limits, 1) == 0}
        if names == full:
            return
        for key in in_order(self._sources()):
            entry, ready = self.waiting.entries[key[-1]], self.state.shapes[key[-1]].ready
            if self._is_cut(entry) and ready and full.isdisjoint(entry.want.shape.limits):
                yield from self._turn(entry, ready, share=False)

    def _parts(self, entry: Entry, last: Reservation | None) -> tuple[int, int]:
        """How many ready jobs of a shape come before, and after, the one that a place was kept for."""
        shape = self.state.shapes[entry.want.shape_id]
        if last is None:
            return shape.ready, 0
        first = min(shape.ready, ahead_of(self.state, shape, last.key))
        return first, shape.ready - first

    def _sources(self, avoid: Spot | None = None) -> list[Source]:
        """Who says which shapes may find a place: those that were woken, places that changed, limits that opened."""
        news = self._news
        sources: list[Source] = [partial(_woken, news.woken)] if news.woken else []
        spots = [spot for spot in news.spots if spot is not avoid]
        if spots:
            sources.append(self._at_places(spots))
        sources += [partial(self._opened, forest) for forest in news.forests]
        return sources

    def _at_places(self, spots: list[Spot]) -> Source:
        """Says the first shape that has room at one of some places."""
        if len(spots) == 1:
            return partial(self._at_place, spots[0])
        groups = tuple({spot.group for spot in spots})
        forests = list({id(forest): forest for group in groups for forest in self.waiting.at(group)}.values())
        heap = [(key, number) for number, spot in enumerate(spots) if (key := self._at_place(spot, None)) is not None]
        heapify(heap)

        def first(after: Key | None) -> Key | None:
            """The least key of the heap that is still true; where many have been used up, none is less than `least`."""
            least: Key | None = None
            while heap:
                key, number = heap[0]
                if after is not None and key <= after:
                    if least is None:
                        keys = [found for forest in forests if (found := self._opened(forest, after)) is not None]
                        if not keys:
                            heap.clear()
                            return None
                        least = min(keys)
                    heapreplace(heap, (least, number))
                    continue
                now = self._at_place(spots[number], after)
                if now == key:
                    return key
                if now is None:
                    heappop(heap)
                else:
                    heapreplace(heap, (now, number))
            return None

        return first

    def _at_place(self, spot: Spot, after: Key | None) -> Key | None:
        """The first shape that has room at a place."""
        best: Key | None = None
        for forest in self.waiting.at(spot.group):
            if forest.tree.count and (not forest.limits or forest.open(self.view.limits)):
                key = self._first(forest, spot.bound(self.view.wall, forest.names), after)
                if key is not None and (best is None or key < best):
                    best = key
        return best

    def _opened(self, forest: Forest, after: Key | None) -> Key | None:
        """The first shape of a forest that may have room somewhere."""
        if not forest.open(self.view.limits):
            return None
        bound = self.places.most_free(forest.groups, self.view.wall, forest.names)
        return None if bound is None else self._first(forest, bound, after)

    def _first(self, forest: Forest, bound: Vector, after: Key | None) -> Key | None:
        """The first shape of a forest that a bound has room for; where a limit lets few start, of those."""
        if len(forest.limits) != 1 or not self._only_few or self._few_of(forest.limits[0]) is None:
            return forest.tree.first(bound, after)
        keys = self._few_keys[forest.limits[0]]
        for at in range(0 if after is None else bisect_right(keys, after), len(keys)):
            entry = self.waiting.entries[keys[at][-1]]
            if entry.forest is forest and all(map(le, entry.vector, bound)):
                return keys[at]
        return None

    def _old(self) -> Iterator[Source]:
        """Those that say which shapes have waited so long that a place may be kept for them."""
        after_s = self.state.settings.backfill_after_s
        if after_s is None:
            return
        since = self.view.wall - after_s
        for forest in self.waiting.forests.values():
            if forest.oldest > since:
                continue
            bound = self.places.largest(forest.groups, self.view.wall, forest.names, since)
            if bound is not None and forest.tree.first(bound) is not None:
                yield partial(_old_in, forest, bound, self.view)

    # ---- one turn ----

    def _turn(self, entry: Entry, ready: int, avoid: Spot | None = None, share: bool = True) -> Iterator[Given]:
        """Place up to `ready` jobs of a shape, the best place first."""
        want = entry.want
        most = self._part(entry) if share else None
        left = ready if most is None else min(ready, most)
        names = want.shape.limits
        is_open = not names or limits.fits(want.shape, self.view.limits, 1) > 0
        used: set[str] = set()
        ranked: list[str] = []
        self._number += 1
        self._had[want.shape_id] = _Had(self._number, is_open, used)
        if left <= 0 or not is_open:
            return
        if want.shape.needs.nodes > 1:
            yield from self._gangs(want, left)
            self._still_open(entry)
            return
        bound = asked_bound(want.shape.needs.amounts(), entry.vector[5], self.view.wall)
        if names and self.places.nested:  # where places share what is above them, one that is filled fills others
            ranked = [spot.place.runner for spot in self.places.with_room(entry.forest.groups, bound)]
            used.update(ranked)
        for spot in self.places.with_room(entry.forest.groups, bound):
            if spot is avoid or self._refused(want, spot.place):
                continue
            for item in self._give(want, spot, left):
                left -= item.count
                yield item
            if (names and not self._still_open(entry)) or left <= 0:
                if spot.place.runner in used:  # those before it have been filled, or were with others
                    used.difference_update(ranked[: ranked.index(spot.place.runner)])
                used.add(spot.place.runner)
                return
            used.discard(spot.place.runner)
        used.clear()

    def _give(self, want: Want, spot: Spot, left: int) -> Iterator[Placement]:
        """Fill one place."""
        place, view = spot.place, self.view
        while left > 0:
            cores = width(want.shape, place, view)
            count = room_for(want.shape, place, view, left, cores)
            if count <= 0:
                return
            self._take(want, spot, count)
            yield Placement(want, place, count, cores)
            left -= count
            self.places.refresh(self.state.ledger.changed, view)

    def _gangs(self, want: Want, left: int) -> Iterator[Given]:
        """Place jobs of several nodes, each on all its nodes at once."""
        while left > 0 and (laid := place_gang(want, self.view, DEFAULT)) is not None:
            for number, (place, _) in enumerate(laid.parts):  # limits count the root only
                self._take(want, self.places.spots[place.runner], int(number == 0))
            yield Gang(want, laid)
            left -= 1
            self.places.refresh(self.state.ledger.changed, self.view)

    def _take(self, want: Want, spot: Spot, count: int) -> None:
        """Remember how much a shape is given, and what is free at a place before this turn takes some of it."""
        if want.shape.limits:
            self._given[want.shape_id] = self._given.get(want.shape_id, 0) + count
        self._before.setdefault(spot.place.runner, []).append((self._number, spot.free))

    def _refused(self, want: Want, place: Place) -> bool:
        return refused(want.shape, place, self.view)

    def _still_open(self, entry: Entry) -> bool:
        """Whether the limits of a shape, which has had something, let more start."""
        is_open = True
        for name in entry.want.shape.limits:
            if limits.fits_names((name,), self.view.limits, 1) == 0:
                is_open = False
                self._closed_by.setdefault(name, entry.key)
        return is_open

    # ---- limits that shapes share ----

    def _part(self, entry: Entry) -> int | None:
        """How many jobs of a shape may start by its part of the limits that it shares; None: none restricts it."""
        shape_id = entry.want.shape_id
        names = entry.want.shape.limits
        if not names:
            return None
        if len(names) == 1 and (few := self._few_of(names[0])) is not None:
            return few.get(shape_id, 0)
        if shape_id not in self._most:
            self._share(shape_id)
        return self._most[shape_id]

    def _few_of(self, name: str) -> dict[int, int | None] | None:
        """The parts of the shapes that a limit lets start, if these are few; as at the beginning of the pass."""
        if name not in self._few:
            parts = few_parts(self.state, self.view.limits, name)
            shapes = self.state.shapes
            self._few[name] = None
            if parts is not None:
                self._few[name] = {
                    number: count if count < shapes[number].ready else None for number, count in parts.items()
                }
                self._few_keys[name] = sorted([self.waiting.entries[number].key for number in parts])
        return self._few[name]

    def _is_cut(self, entry: Entry) -> bool:
        """Whether a shape may start fewer jobs than are ready, as far as its part has been worked out."""
        names = entry.want.shape.limits
        few = self._few.get(names[0]) if len(names) == 1 else None
        most = self._most.get(entry.want.shape_id) if few is None else few.get(entry.want.shape_id, 0)
        return most is not None

    def holds_too_much(self, entry: Entry) -> bool:
        """Whether a shape holds more than its part of the limits that it shares."""
        names, shape_id = entry.want.shape.limits, entry.want.shape_id
        few = self._few_of(names[0]) if len(names) == 1 else None
        if few is None:
            self._part(entry)
            return shape_id in self._over
        limit = self.view.limits[names[0]]
        assert limit.count is not None
        if self.waiting.equals[names[0], entry.want.priority] > limit.count:  # a slot for each would be too many
            return self.state.shapes[shape_id].slots - self._given.get(shape_id, 0) > 1
        if names[0] not in self._few_over:
            self._few_over[names[0]] = self._over_at(names[0], limit)
        return shape_id in self._few_over[names[0]]

    def _over_at(self, name: str, limit: Limit) -> list[int]:
        """The shapes that held more than their part of a limit at the beginning of the pass."""
        wants, total = [], 0
        for entry in sorted([self.waiting.entries[number] for number in self.waiting.members[name]], key=_key):
            shape, given = self.state.shapes[entry.want.shape_id], self._given.get(entry.want.shape_id, 0)
            wants.append(replace(entry.want, ready=shape.ready + given, slots=shape.slots - given))
            total += given
        return limits.over_at(range(len(wants)), wants, replace(limit, used=limit.used - total))

    def _share(self, shape_id: int) -> None:
        """Work out the parts of all shapes that this one shares limits with, directly or through others.

        None of them has had a turn yet, so the parts are those at the beginning of the pass.
        """
        entries = self.waiting.entries
        together = sorted([entries[number] for number in self.waiting.sharing({shape_id})], key=lambda entry: entry.key)
        wants = []
        for entry in together:
            shape = self.state.shapes[entry.want.shape_id]
            wants.append(replace(entry.want, ready=shape.ready, slots=shape.slots))
        most, over = limits.share(wants, self.view.limits, self.state.starts)
        for want, count in zip(wants, most, strict=True):
            self._most[want.shape_id] = count if count < want.ready else None
        self._over |= over

    # ---- a place that is kept for a large job ----

    def _is_old(self, entry: Entry) -> bool:
        """Whether the first job of a shape has waited so long that a place may be kept for it."""
        after_s = self.state.settings.backfill_after_s
        if entry.want.shape.needs.nodes > 1:
            return False
        return after_s is not None and self.at.wall - entry.want.since >= after_s

    def _reserve(self, entry: Entry) -> Reservation | None:
        """Keep a place for a shape, if it waits for room at one."""
        starts = self._starts(entry)
        mono, spots = self.at.mono, self.places.spots
        heap = [(max(mono, start), spots[name].rank, name) for name, start in starts.items() if name in spots]
        heapify(heap)
        while heap:
            spot = spots[heappop(heap)[2]]
            if self._is_busy(entry, spot):
                return reserve(self.state, entry.want, [spot.place], self.at)
        return None

    def _starts(self, entry: Entry) -> dict[str, float]:
        """When a shape could start on each runner that is large enough."""
        state, planning, want = self.state, self.state.soft.planning, entry.want
        amounts, known = want.shape.needs.amounts(), planning.soonest
        if known is None or (known.shape_id, known.asked) != (want.shape_id, want.shape):
            bound = asked_bound(amounts, entry.vector[5], self.view.wall)
            known = planning.soonest = Soonest(want.shape_id, want.shape, {})
            stale = {spot.place.runner for spot in self.places.large_enough(entry.forest.groups, bound)}
        else:
            stale = planning.stale.union(*planning.changed.slots.values())
        for name in stale:
            spot = self.places.spots.get(name)
            if spot is None or spot.key is None or spot.group not in entry.forest.groups:
                known.starts.pop(name, None)
            else:
                known.starts[name] = free_from(state, state.runners[name], amounts)
        planning.stale.clear()
        return known.starts

    def _fill(self, kept: Reservation, waits: Key, last: Reservation | None) -> Iterator[Given]:
        """Place jobs after the one that waits: elsewhere, or there if they end in time or fit beside it."""
        there = self.places.spots[kept.runner]
        left: dict[int, int] = {}
        for key in in_order(self._sources(there)):
            entry = self.waiting.entries[key[-1]]
            ready = left[key[-1]] = self._behind(entry, waits, last)
            if ready:
                for item in self._turn(entry, ready, avoid=there):
                    left[key[-1]] -= item.count
                    yield item
        spare, in_time_s = kept.spare, kept.at - self.at.mono
        until = there.place.location.until
        wall = self.view.wall

        def beside(after: Key | None) -> Key | None:
            keys = []
            for forest in self.waiting.at(there.group):
                if forest.tree.count and forest.open(self.view.limits):
                    for bound in (
                        there.bound(wall, forest.names, in_time_s),
                        free_bound(spare, until, wall, forest.names),
                    ):
                        keys.append(forest.tree.first(bound, after))
            return min([key for key in keys if key is not None], default=None)

        for key in in_order([beside]):
            entry = self.waiting.entries[key[-1]]
            want, needs = entry.want, entry.want.shape.needs
            ready = left[key[-1]] if key[-1] in left else self._behind(entry, waits, last)
            time_s = needs.time_s or self.view.job_times.get(there.place.location.site)
            in_time = time_s is not None and self.at.mono + time_s <= kept.at
            room = ready if in_time else min(ready, needs.amounts().times_in(spare))
            most = self._part(entry)
            if room <= 0 or needs.nodes > 1 or self._refused(want, there.place):
                continue
            self._number += 1
            self._had.setdefault(key[-1], _Had(self._number, True, set()))
            for item in self._give(want, there, room if most is None else min(room, most)):
                if not in_time:
                    spare = spare.plus(needs.amounts(item.cores), -item.count)
                yield item
            self._still_open(entry)

    def _behind(self, entry: Entry, waits: Key, last: Reservation | None) -> int:
        """How many ready jobs of a shape come after the one that a place is kept for."""
        number = entry.want.shape_id
        if number in self._later:
            return self._later[number]
        if last is None or entry.key > waits:
            return self.state.shapes[number].ready if entry.key > waits else 0
        return self._parts(entry, last)[1]

    # ---- what is known when the turns are over ----

    def first_waiting(self, after: Key | None = None) -> Key | None:
        """The first shape, above `after`, that waits for room: those behind it get no leases ahead of its slots."""
        kept = self.state.soft.planning.reserved
        best: Key | None = None
        for forest in self.waiting.forests.values():
            bound = self.places.largest(forest.groups, self.view.wall, forest.names, NONE)
            for key in () if bound is None else forest.tree.fitting(bound, after):
                if best is not None and key >= best:
                    break
                if self._is_waiting(self.waiting.entries[key[-1]], kept):
                    best = key
                    break
        return best

    def _is_waiting(self, entry: Entry, kept: Reservation | None) -> bool:
        if not self.state.shapes[entry.want.shape_id].ready:
            return False
        if entry.want.shape.needs.nodes > 1:
            return any(no.code == "busy" for no in gang_verdicts(entry.want, self.view, DEFAULT))
        behind = kept is not None and entry.key > (*kept.key, kept.shape_id)
        return self._waits_for_room(entry, self.places.spots[kept.runner] if behind and kept is not None else None)

    def _waits_for_room(self, entry: Entry, avoid: Spot | None) -> bool:
        return next(self._busy(entry, avoid), None) is not None

    def _busy(self, entry: Entry, avoid: Spot | None) -> Iterator[Spot]:
        """The places that refused a shape at its turn only because too little is free there."""
        bound = asked_bound(entry.want.shape.needs.amounts(), entry.vector[5], self.view.wall)
        refused = self._refusing(entry)
        if refused is None:
            return
        for spot in self.places.large_enough(entry.forest.groups, bound):
            if spot is not avoid and refused(spot):
                yield spot

    def _is_busy(self, entry: Entry, spot: Spot) -> bool:
        refused = self._refusing(entry)
        return refused is not None and refused(spot)

    def _refusing(self, entry: Entry) -> Callable[[Spot], bool] | None:
        """Says whether a place refused a shape at its turn only because too little is free there; None: none did."""
        want = entry.want
        had = self._had.get(want.shape_id)
        was_open = all(
            (had is not None and had.was_open) or (name in self._closed_by and self._closed_by[name] > entry.key)
            for name in want.shape.limits
            if limits.fits_names((name,), self.view.limits, 1) == 0
        )
        if not was_open:
            return None
        again = self._gave_rest and self._is_cut(entry)
        if again and limits.fits(want.shape, self.view.limits, 1) > 0:
            had = None  # it was refused everywhere in the round after
        amounts, ledger = want.shape.needs.amounts(), self.view.ledger
        turn = had.number if had is not None else None
        if had is None and not again and self._is_cut(entry):
            turn = bisect_left(self._keys, entry.key)  # it had none because its part is nothing

        def refused(spot: Spot) -> bool:
            runner = spot.place.runner
            if had is not None and runner in had.used:
                return False
            if turn is not None:
                later = [free for number, free in self._before.get(runner, ()) if number > turn]
                if later and amounts.fits(later[0]):
                    return False  # others have used it up since
            short = ledger.shortage(spot.place.location.id, amounts) is not None
            return short and not self._refused(want, spot.place)

        return refused

    def settle(self) -> None:
        """Remember for the next pass what was not given out, and which limits are full."""
        planning, now = self.state.soft.planning, self.view.limits
        touched = {*planning.touched, *planning.changed.limits, *self.state.timed}
        for number in self._had:
            touched.update(self.waiting.entries[number].want.shape.limits)
        for forest in self.waiting.naming(touched):
            forest.closed = not forest.open(now)
        for number in self._had:
            self.waiting.shut(self.waiting.entries[number], now)
        for number in planning.changed.shapes:
            if not self.state.shapes[number].ready:
                self.waiting.drop(number)  # should it have ready jobs again, it is a new one
        if planning.reserved is not None:
            planning.again.update(number for number, most in self._most.items() if most is not None)
            for name, parts in self._few.items():
                planning.again.update(self.waiting.members.get(name, ()) if parts is not None else ())


def _key(entry: Entry) -> Key:
    return entry.key


def _woken(keys: Sequence[Key], after: Key | None) -> Key | None:
    at = 0 if after is None else bisect_right(keys, after)
    return keys[at] if at < len(keys) else None


def _old_in(forest: Forest, bound: tuple[float, ...], view: View, after: Key | None) -> Key | None:
    return forest.tree.first(bound, after) if forest.open(view.limits) else None
