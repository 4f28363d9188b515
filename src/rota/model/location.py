"""Locations: one tree of places, `site → queue → allocation → node → container`."""

from enum import StrEnum

from msgspec import Struct

from rota.model.needs import Amounts

__all__ = ["Kind", "Location"]


class Kind(StrEnum):
    """The sort of a location."""

    SITE = "site"
    QUEUE = "queue"
    ALLOCATION = "allocation"
    NODE = "node"
    CONTAINER = "container"


class Location(Struct, frozen=True):
    """A place with a capacity. While `stacked`, what is used here is used up in its parent too."""

    id: str
    kind: Kind
    parent: str | None = None
    capacity: Amounts | None = None
    """None: not counted at this level."""
    stacked: bool = True
    tags: tuple[str, ...] = ()
    until: float | None = None
    """Monotonic time at which the place goes away (the end of an allocation)."""
    site: str = ""
    options: tuple[tuple[str, str], ...] | None = None
    """Options that the provider was asked for: only jobs that ask for the same run there. None: any job does."""
    queue: str = ""
    """The queue of its site that it belongs to; "": the site's own."""
    shared: tuple[str, ...] = ()
    """Named resources that are counted here, once for all that is below, and not there."""
    shared_only: bool = False
    """Whether nothing else is counted here."""
    host: str = ""
    """The host of a node."""
