"""The View: what policy code may see. Read-only, and only facts, so that a policy can be replayed."""

from collections.abc import Mapping, Sequence

from msgspec import Struct

from rota.model.limits import Window
from rota.model.location import Location
from rota.model.shape import Shape
from rota.schedule.ledger import Ledger

__all__ = ["Limit", "Place", "View", "Want"]


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


class Place(Struct):
    """A candidate: a node with the runner that serves it."""

    location: Location
    runner: str
    status: str
    """The runner's state."""
    class_number: int
    """Number of its class. Places of a class differ only in what is in use: static filters say the same of all."""


class View(Struct):
    """A snapshot of places, limits and time."""

    wall: float
    mono: float
    mode: str
    """The manager's mode: serving, paused or draining."""
    places: Sequence[Place]
    ledger: Ledger
    limits: Mapping[str, Limit]
    job_times: Mapping[str, int] = {}
    """Site → seconds that a job is taken to need if nothing is known of it."""
    longest: Mapping[tuple[str, str | None], int] = {}
    """(site, queue; None: the site's own) → the longest time that a job there can count on."""


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
