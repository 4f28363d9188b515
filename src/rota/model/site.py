"""Sites: what a provider of allocations offers, written down once for drivers, the core and the scheduler."""

from msgspec import Struct

from rota.model.needs import Amounts

__all__ = ["QueueFacts", "SiteFacts"]


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
