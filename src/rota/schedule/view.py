"""The View: what policy code may see. Read-only, and only facts, so that a policy can be replayed."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from rota.model.limits import Window
from rota.model.location import Location
from rota.model.shape import Shape
from rota.model.site import QueueFacts, SiteFacts
from rota.schedule.ledger import Free

__all__ = ["NODE", "QUEUE", "Limit", "Place", "View", "Want"]

NODE = "node"
"""The level of places that are there: what is placed is leased."""
QUEUE = "queue"
"""The level of places that can be asked for: for what is placed there, allocations are asked."""


class _NoFacts(Mapping[str, Mapping[Any, Any]]):
    """Facts of which none is told: each is there, and empty."""

    def __getitem__(self, name: str) -> Mapping[Any, Any]:
        return {}

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


NO_FACTS = _NoFacts()


class Limit(Struct, frozen=True):
    """A named limit: how many may run at once (None: no limit is set), and how many do."""

    count: int | None
    used: int
    rate: int | None = None
    """How many jobs may start in any `per_s` seconds."""
    per_s: int = 0
    window: Window | None = None
    """When jobs may start."""
    left: int | None = None
    """How many starts the rate leaves, as of this pass."""
    closed: str | None = None
    """Until when the window is closed, in words, as of this pass; None: it is open."""


class Place(Struct, frozen=True):
    """A candidate: a node with the runner that serves it, or a queue of a site (or a site that has none)."""

    location: Location
    runner: str
    """The runner of a node; "" at a queue."""
    status: str
    """The runner's state; at a queue "UP" or why it takes nothing."""
    class_number: int
    """Number of its class. Places of a class differ only in what is in use: static filters say the same of all."""
    site: SiteFacts | None = None
    """What the site of a queue offers."""
    queue: QueueFacts | None = None
    """What the queue offers; None: a node, or a site that has no queues."""
    gangs: bool = True
    """Whether the runner of a node can hold a part of a job of several nodes."""

    @property
    def level(self) -> str:
        """NODE or QUEUE."""
        return NODE if self.site is None else QUEUE


class View(Struct):
    """A snapshot of places, limits and time."""

    wall: float
    mono: float
    mode: str
    """The manager's mode: serving, paused or draining."""
    places: Sequence[Place]
    ledger: Free
    """What is free, to be read only."""
    limits: Mapping[str, Limit]
    job_times: Mapping[str, int] = {}
    """Site → seconds that a job is taken to need if nothing is known of it."""
    longest: Mapping[tuple[str, str], tuple[int, int]] = {}
    """(site, queue; "": the site's own) → seconds: the longest allocation, and what a job there can count on."""
    own_queues: Mapping[str, str] = {}
    """Site → the queue that its allocations go to if they name none, where that is known."""
    facts: Mapping[str, Mapping[Any, Any]] = NO_FACTS
    """Fact → key → value, never changed in place. A fact that nobody tells is empty."""
    rooms: Mapping[str, int] = {}
    """Site → how many more allocations it may have now."""
    budgets: Mapping[str, Sequence[int]] = {}
    """Site whose allocations are servers → how much is left of each of its bounds."""
    number: int = -1
    """Number of the shape that is asked about at a queue."""
    batch: int = -1
    """The batch whose jobs come next of it."""
    elsewhere: Callable[[int], bool] | None = None
    """Whether some queue would take a shape of this number: then no filter is relaxed for nodes."""


class Want(Struct):
    """A shape with its ready jobs."""

    shape_id: int
    shape: Shape
    ready: int
    priority: int
    first: int
    """The batch whose jobs come next: what came first goes first."""
    slots: int = 0
    """How many slots the shape holds already."""
    most: int | None = None
    """How many jobs may start now by its part of the limits that it shares; None: no limit restricts it."""
    by: str = ""
    """Who submitted the batch whose jobs come next."""
    name: str = ""
    """The name of that batch."""
    since: float = 0.0
    """Wall-clock time at which it was submitted."""
