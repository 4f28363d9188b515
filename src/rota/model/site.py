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
    queue_times: tuple[tuple[str, int], ...] = ()
    """The longest time of an allocation in each queue that jobs may name."""

    def longest_s(self, needs: Needs) -> int | None:
        """The longest time that a job with these needs can have; None: there is no known end."""
        queue = needs.queue
        return self.time_most_s if queue is None else dict(self.queue_times).get(queue)
