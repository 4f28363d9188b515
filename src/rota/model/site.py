"""Sites: what a provider of allocations offers, written down once for drivers, the core and the scheduler."""

from msgspec import Struct

from rota.model.needs import Amounts

__all__ = ["Bound", "HostOffer", "QueueFacts", "SiteFacts"]

MICRO = 1_000_000
"""Parts of a unit of money in which it is counted."""


class QueueFacts(Struct, frozen=True):
    """What a queue or partition of a site offers. What nobody knows of its nodes is larger than anything real."""

    name: str
    node: Amounts
    """Its largest node."""
    nodes: int | None = None
    """How many nodes it has; None: not known."""
    time_most_s: int | None = None
    """The longest time of an allocation, in seconds; None: no end is known."""
    default: bool = False
    """Whether an allocation that names no queue goes there."""
    up: bool = True
    """Whether it takes allocations, and ours."""
    tags: tuple[str, ...] = ()
    auto: bool = True
    """Whether it is up, and may be used by jobs that do not name it."""
    nodes_most: int | None = None
    """The most nodes of one allocation there; None: not known."""
    denied: bool = False
    """Whether it is for users among whom we are not."""
    time_usual_s: int | None = None
    """The time of an allocation that asks for none, in seconds; None: no end is known."""
    most: int | None = None
    """The most allocations there at once; None: as many as the site has."""
    why: str = ""
    """Why it is not up, in words."""
    price: float = 0.0
    """What a node costs for an hour, where allocations are servers."""


class Bound(Struct, frozen=True):
    """What all allocations of a site together may have: a quota that is shared with others, or a limit of ours."""

    name: str
    """In words: `quota`, or the setting."""
    what: str
    """`servers`, `cores` (millicores), `memory` (bytes) or `money` (millionths)."""
    most: int
    others: int = 0
    """How much of it others have; of money, what was spent on allocations that are over."""

    def use(self, node: Amounts, price: float, seconds: float) -> int:
        """How much of it an allocation takes that is to last so long."""
        if self.what == "money":
            return -int(-price * MICRO * seconds // 3600)
        return 1 if self.what == "servers" else node.cores if self.what == "cores" else node.memory


class SiteFacts(Struct, frozen=True):
    """What a site offers, as far as configuration and driver know it."""

    node: Amounts
    """The largest node that it can give."""
    tags: tuple[str, ...] = ()
    most: int = 1
    """The most allocations at once."""
    linger_s: float = 60
    """Seconds that a runner with nothing to do stays."""
    mode: str = "runners"
    """`runners`: an allocation starts a runner, which takes jobs; `direct`: an allocation is one job."""
    whole: bool = True
    """Whether every allocation is a whole node, for whatever jobs there are; else as large as one job of its shape."""
    array_most: int = 1
    """The most allocations in one submission."""
    allocation_s: int | None = None
    """Seconds that an allocation for runners is asked for, if its jobs need no longer; None: it does not end."""
    job_s: int | None = None
    """Seconds that a job is taken to need if nothing is known of it."""
    time_most_s: int | None = None
    """The longest time of an allocation, in seconds."""
    directory: str = ""
    """The directory, shared with the nodes, where direct jobs leave their reports."""
    spare_s: int = 0
    """Seconds that an allocation must have beyond the time of its job: it starts late, and its end is told early."""
    queues: tuple[QueueFacts, ...] = ()
    """Its queues; without any the site is one place itself."""
    shared: tuple[tuple[str, int], ...] = ()
    """Named resources that are counted once for the whole site."""
    nodes_most: int = 1
    """The most nodes of one allocation in `runners` mode."""
    given: tuple[Amounts, ...] = ()
    """The nodes that an allocation has, one by one, where it is given and not asked for: always all of them."""
    cost: float = 0.0
    """What a core costs there for an hour, in any money."""
    paused: bool = False
    """Whether nothing is asked of it, and what waits there is let be."""
    reassign: bool = True
    """Whether what waits there for long may go to another site."""
    hosts: bool = False
    """Whether its queues are hosts, each of them a place of its own: there is no other way into the site."""
    cloud: bool = False
    """Whether its queues are sizes of servers, which are created on demand: there is no other way into the site."""
    bounds: tuple[Bound, ...] = ()
    """What its allocations together may have, where they are servers."""
    paid_s: int = 0
    """Seconds beyond its time that a server is paid for: until it is there, and until it is gone."""
    dead_after_s: float | None = None
    """Silence after which a server is taken for dead, and destroyed; None: never by itself."""


class HostOffer(Struct, frozen=True):
    """A host that is there and has no runner yet: the fact `starting`, by `SITE/HOST`."""

    site: str
    host: str
    node: Amounts
    tags: tuple[str, ...] = ()
