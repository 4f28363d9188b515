"""Sites: what a provider of allocations offers, written down once for drivers, the core and the scheduler."""

from msgspec import Struct

from rota.model.needs import Amounts, Needs

__all__ = ["SiteFacts"]


class SiteFacts(Struct, frozen=True):
    """What a site offers, as far as configuration and driver know it."""

    node: Amounts
    """The largest node that it can give."""
    tags: tuple[str, ...] = ()
    most: int = 1
    """Allocations at once."""
    linger_s: float = 60
    """How long a runner with nothing to do stays."""
    mode: str = "runners"
    """`runners`: an allocation starts a runner, which takes jobs; `direct`: an allocation is one job."""
    whole: bool = True
    """Every allocation is a whole node, for whatever jobs there are; else as large as one job of its shape."""
    array_most: int = 1
    """Allocations in one submission."""
    allocation_s: int | None = None
    """How long an allocation for runners is asked for, if its jobs need no longer; None: it does not end."""
    job_s: int | None = None
    """How long a job is taken to need of which nothing is known."""
    time_most_s: int | None = None
    """The longest that can be asked for."""
    directory: str = ""
    """Shared with its nodes: where direct jobs leave their reports."""
    spare_s: int = 0
    """What an allocation must have beyond the time of its job: it starts late, and its end is announced early."""
    queue_times: tuple[tuple[str, int], ...] = ()
    """The longest that can be asked for in queues that jobs may name."""

    def longest_s(self, needs: Needs) -> int | None:
        """The longest time that such a job can have; None: nobody knows of an end."""
        queue = needs.queue
        return self.time_most_s if queue is None else dict(self.queue_times).get(queue)
