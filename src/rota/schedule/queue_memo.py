"""What the queue level remembers: who counts on which allocations, who waits for which site, and what was answered."""

import math
from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from rota.model.shape import Shape
from rota.schedule.demand import jobs_in
from rota.schedule.facts import Key
from rota.schedule.queues import Claim, Sites
from rota.schedule.view import Place, Want

__all__ = ["Looked", "Plan", "QueueMemo"]


class Plan(Struct):
    """What is left to ask about queues of a class, after their static filters."""

    ask: tuple[str, ...] = ()
    refused: bool = False
    """Whether it matters that the provider has refused the shape."""
    no: bool = False


class Looked(Struct):
    """A shape with jobs left over, as it was last looked at."""

    want: Want
    key: tuple[Any, ...]
    claims: dict[Claim, int] = field(default_factory=dict)
    """How many allocations on their way it counts on."""
    jobs: int = 0
    """How many jobs these will take."""
    sites: dict[str, None] = field(default_factory=dict)
    """The sites that would take it, and have no room."""
    relaxed: int = 0
    """How many filters are dropped, since no place was left with them."""
    could: bool = True
    """Whether any queue would take it if there was room."""


class QueueMemo:
    """What the queue level remembers from pass to pass."""

    __slots__ = (
        "claimed",
        "index",
        "names",
        "plans",
        "ranked",
        "readers",
        "shapes",
        "sites",
        "spare",
        "steps",
        "times",
        "waiting",
        "wall",
    )

    def __init__(self) -> None:
        self.shapes: dict[int, Looked] = {}
        self.claimed: dict[Claim, dict[int, int]] = {}
        """Claim → shape → how many it counts on; the first come first."""
        self.spare: dict[int, dict[Claim, int]] = {}
        """Shape or ANY → allocations on their way that nobody counts on."""
        self.waiting: dict[str, list[tuple[tuple[Any, ...], int]]] = {}
        """Site → (key, shape) of what waits for room there, in order."""
        self.readers: dict[Key, tuple[set[int], set[str]]] = {}
        """A fact's key → shapes and places about which a filter has looked it up."""
        self.times: list[tuple[float, int]] = []
        """A heap of (wall-clock time up to which a no stands, shape)."""
        self.plans: dict[tuple[Shape, tuple[str, ...]], dict[int, Plan]] = {}
        """(shape, filters) → class of queues → what is left to ask of these."""
        self.index: dict[tuple[str, str], Place] = {}
        """(site, queue; "": its own) → the place."""
        self.names: dict[str, tuple[str, ...]] = {}
        """Policy → its filters that are asked about queues."""
        self.steps: dict[tuple[str, ...], tuple[tuple[str, ...], Plan]] = {}
        """Filters → those that are asked once for a class of queues, and what is left to ask if none says no."""
        self.ranked: dict[str, tuple[float, list[Place]]] = {}
        """Policy → places, best first, and the wall-clock time as of which they were ranked."""
        self.sites: dict[str, Sequence[Place]] = {}
        """The sites as they were last looked at."""
        self.wall = -math.inf

    def copy(self) -> "QueueMemo":
        """One that can go another way."""
        new = QueueMemo()
        for number, looked in self.shapes.items():
            new.shapes[number] = replace(looked, claims=looked.claims.copy(), sites=looked.sites.copy())
        new.claimed = {claim: shapes.copy() for claim, shapes in self.claimed.items()}
        new.sites, new.index, new.ranked, new.wall = self.sites, self.index, self.ranked.copy(), self.wall
        new.spare = {key: claims.copy() for key, claims in self.spare.items()}
        new.waiting = {site: rows.copy() for site, rows in self.waiting.items()}
        new.readers = {key: (shapes.copy(), places.copy()) for key, (shapes, places) in self.readers.items()}
        new.times, new.plans, new.names, new.steps = self.times.copy(), self.plans, self.names, self.steps
        return new

    def stands(self, wall: float, sites: Sites, rooms: Mapping[str, int]) -> bool:
        """Whether a pass would find all as it is, if nothing is left over but what was, and no fact has changed."""
        if wall < self.wall or self.wall == -math.inf or (self.times and self.times[0][0] <= wall):
            return False
        if any(rows and rooms.get(site, 0) > 0 for site, rows in self.waiting.items()):
            return False
        if len(sites) != len(self.sites) or any(self.sites.get(site) is not places for site, places in sites.items()):
            return False
        self.wall = wall
        return True

    def takes(self, shape_id: int) -> bool:
        """Whether a queue would take a shape with all filters, or was not asked yet: nodes are not relaxed before."""
        looked = self.shapes.get(shape_id)
        return looked is None or (looked.could and not looked.relaxed)

    def set_spare(self, claim: Claim, count: int) -> None:
        """So many are on their way that nobody counts on."""
        claims = self.spare.setdefault(claim[2], {})
        if count:
            claims[claim] = count
            return
        claims.pop(claim, None)
        if not claims:
            del self.spare[claim[2]]

    def give_up(self, number: int, claim: Claim, count: int) -> None:
        """A shape counts on so many allocations less."""
        shapes, looked = self.claimed[claim], self.shapes[number]
        shapes[number] -= count
        looked.claims[claim] -= count
        if not shapes[number]:
            del shapes[number], looked.claims[claim]
            if not shapes:
                del self.claimed[claim]
        looked.jobs = sum(count * self.jobs_in(looked.want, claim) for claim, count in looked.claims.items())

    def unwait(self, number: int, looked: Looked, sites: Iterable[str] | None = None) -> None:
        """A shape does not wait for these sites (None: any) any more."""
        for site in list(looked.sites) if sites is None else [site for site in sites if site in looked.sites]:
            del looked.sites[site]
            rows = self.waiting[site]
            at = bisect_left(rows, (looked.key, number))
            assert rows[at][1] == number, f"shape {number} waits for {site} in another order than it is kept in"
            del rows[at]

    def wait(self, number: int, looked: Looked, site: str) -> None:
        """A shape waits for room at a site."""
        if site not in looked.sites:
            looked.sites[site] = None
            insort(self.waiting.setdefault(site, []), (looked.key, number))

    def count_on_spare(self, number: int, looked: Looked, claim: Claim, spare: int) -> None:
        """Count on as much as is needed of what nobody counts on."""
        count = min(spare, -(-(looked.want.ready - looked.jobs) // self.jobs_in(looked.want, claim)))
        self.count_on(number, looked, claim, count)
        self.set_spare(claim, spare - count)

    def count_on(self, number: int, looked: Looked, claim: Claim, count: int) -> None:
        """A shape counts on so many allocations more."""
        looked.claims[claim] = looked.claims.get(claim, 0) + count
        looked.jobs += count * self.jobs_in(looked.want, claim)
        shapes = self.claimed.setdefault(claim, {})
        shapes[number] = shapes.get(number, 0) + count

    def at(self, claim: Claim) -> Place | None:
        """The place of a claim: the site itself, if the queue is one that only jobs know of."""
        return self.index.get(claim[:2]) or self.index.get((claim[0], ""))

    def jobs_in(self, want: Want, claim: Claim) -> int:
        """How many jobs of a shape each allocation of a claim takes."""
        place = self.at(claim)
        return 1 if place is None else jobs_in(want.shape.needs, place)
