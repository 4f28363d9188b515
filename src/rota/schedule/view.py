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
    """How many may start in any `per_s` seconds."""
    per_s: int = 0
    window: Window | None = None
    """When jobs may start."""
    left: int | None = None
    """Of the rate, as of this pass."""
    closed: str | None = None
    """As of this pass the window is closed: until when, in words."""


class Place(Struct):
    """A candidate: a node with the runner that serves it."""

    location: Location
    runner: str
    status: str
    """The runner's state."""
    class_number: int
    """Number of its class. The places of a class differ in what is in use only: static filters say the same of all."""


class View(Struct):
    """A snapshot of places, limits and time."""

    wall: float
    mono: float
    mode: str
    """The manager's: serving, paused or draining."""
    places: Sequence[Place]
    ledger: Ledger
    limits: Mapping[str, Limit]
    job_times: Mapping[str, int] = {}
    """By site, the seconds that a job is taken to need of which nothing is known."""
    longest: Mapping[tuple[str, str | None], int] = {}
    """By site and queue (None: the site's own), the longest time that a job there can count on."""


class Want(Struct):
    """So many jobs of a shape are ready."""

    shape_id: int
    shape: Shape
    ready: int
    priority: int
    first: int
    """The batch at its head: what came first goes first."""
    slots: int = 0
    """How many it holds already."""
    most: int | None = None
    """No more than this may start now: its part of the limits that it shares."""
