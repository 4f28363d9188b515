"""What a driver is: it speaks to one kind of provider about allocations, and never sees a job."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from rota.model.needs import Amounts

__all__ = ["Driver", "Observation", "SiteFacts"]


class SiteFacts(NamedTuple):
    """What a site offers."""

    node: Amounts
    """The largest node that it can give."""
    tags: tuple[str, ...]
    most: int
    """Allocations at once."""
    linger_s: float


class Observation(NamedTuple):
    """What was seen of one allocation: a verb of the allocation table, or `unsure`."""

    id: str
    verb: str
    native_id: str | None = None
    reason: str | None = None


class Known(NamedTuple):
    """An allocation that the driver is asked about."""

    id: str
    tag: str
    native_id: str | None


class Driver(Protocol):
    """Submit, find, terminate and poll allocations. Any call may be repeated."""

    def facts(self) -> SiteFacts:
        """What the site has."""
        ...

    async def submit(self, allocation: str, tag: str) -> str:
        """Start it; returns the native id. Raises RotaError if the provider refuses."""
        ...

    async def find(self, tag: str) -> str | None:
        """The native id of what was submitted with this tag, if anything was."""
        ...

    async def terminate(self, known: Known) -> bool:
        """Ask it to end; True if the message got through."""
        ...

    async def poll(self, known: Sequence[Known]) -> list[Observation]:
        """Look at all of them at once. What is not mentioned has not changed."""
        ...
