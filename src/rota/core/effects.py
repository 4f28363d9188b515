"""Effects: what is to be done once the facts are durable. Each is idempotent: doing it twice does no harm."""

from msgspec import Struct

from rota.core.soft import LeasedJob, Member
from rota.model.slot import Slot

__all__ = ["Ack", "Allocate", "Effect", "Hold", "Lease", "Order", "Welcome"]


class Welcome(Struct):
    """Open a runner's session."""

    runner: str
    connect: int
    session: int


class Lease(Struct):
    """Send jobs that are durably STARTING: (batch, position, attempt, slot)."""

    runner: str
    session: int
    n: int
    clock: float
    jobs: list[LeasedJob]
    slots: dict[Slot, int]
    gangs: dict[tuple[int, int], tuple[Member, ...]] = {}
    """(batch, position) → the nodes of each gang among the jobs, its root first."""


class Hold(Struct):
    """Have a runner hold parts of gangs whose roots are elsewhere: (batch, position, attempt, slot)."""

    runner: str
    session: int
    jobs: list[LeasedJob]


class Order(Struct):
    """Tell a runner `kill`, `recall`, `release`, `drain`, `close`, `expired`, or (who greets too early) `again`.

    Jobs are (batch, index, attempt), as runners name them, for some are not known here at all.
    """

    runner: str
    session: int
    what: str
    jobs: list[tuple[int, int, int]]
    reason: str | None = None


class Ack(Struct):
    """Tell a runner that its report is durable."""

    runner: str
    seq: int


class Allocate(Struct):
    """Ask a site to `submit`, `find`, `terminate` or `check` an allocation.

    `collect`: it is over, tell what it left behind (LastWords). `shut`: nobody may call in its name any more.
    """

    what: str
    id: str
    site: str
    tag: str
    ids: tuple[str, ...] = ()
    """For `submit` and `find`: all allocations of the tag, by element."""


Effect = Welcome | Lease | Hold | Order | Ack | Allocate
