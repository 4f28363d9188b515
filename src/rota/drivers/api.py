"""What a driver is: it speaks to one kind of provider about allocations, and never sees a job."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from msgspec import Struct

from rota.model.allocation import Outcome
from rota.model.needs import Amounts
from rota.model.site import SiteFacts

__all__ = ["Ask", "Driver", "Known", "Observation", "Outcome", "SiteFacts"]


class Ask(Struct, frozen=True):
    """One submission: an array of equal allocations (of one: a plain job)."""

    tag: str
    """Twelve hex digits, in the native job's name: looked up before anything is submitted twice."""
    name: str
    """For people: what the native job is called, without the tag; the native name is `NAME-TAG`."""
    ids: tuple[str, ...]
    """The allocations: element 0, 1, …"""
    amounts: Amounts
    """What each node of one element is to have."""
    script: str
    """A POSIX shell script, run once per element, with the element's number in ROTA_ELEMENT."""
    directory: str
    """Absolute, on a file system that the nodes share: where it runs, and where the native output files go."""
    nodes: int = 1
    tasks_per_node: int = 1
    time_s: int | None = None
    exclusive: bool = False
    options: tuple[tuple[str, str], ...] = ()
    """What the user asked for beyond this: account, partition, qos, reservation, constraint, and raw `--key`s."""

    @property
    def count(self) -> int:
        """How many elements."""
        return len(self.ids)


class Observation(NamedTuple):
    """What was seen of one allocation: a verb of the allocation table, or one that moves nothing.

    Those are `unsure`, `held` (it will not start until somebody releases it) and `suspended` (it ran, and is stopped).
    """

    id: str
    verb: str
    native_id: str | None = None
    reason: str | None = None
    """In words, with the provider's own."""
    outcome: Outcome | None = None
    """With complete, fail and abort."""


class Known(NamedTuple):
    """An allocation that the driver is asked about."""

    id: str
    tag: str
    native_id: str | None
    element: int = 0
    """Its number in the array that was submitted with the tag."""
    submitted: float = 0.0
    """Wall-clock time."""
    elements: int = 0
    """How many that array has; 0: not known."""
    believed: str | None = None
    """What the manager takes it to be, as a verb (pend, run, held, suspended); None: it does not say."""


class Driver(Protocol):
    """Submit, find, terminate and poll allocations. Any call may be repeated."""

    def facts(self) -> SiteFacts:
        """What the site offers."""
        ...

    async def submit(self, ask: Ask) -> list[str]:
        """Submit the allocations; returns the native ids, one per element.

        Raises RefusedError if the provider does not accept it, another RotaError if it may at another time. After a
        doubtful answer it has looked the tag up, and waited long enough for that to be certain, before it raises: an
        error means that nothing was submitted.
        """
        ...

    async def find(self, tag: str, count: int) -> list[str] | None:
        """The native ids of what was submitted with this tag; None: certainly nothing was.

        Takes as long as that needs: it does not raise because the provider cannot be reached.
        """
        ...

    async def terminate(self, known: Known) -> bool:
        """Ask an allocation to end. True: the message got through; False: try again later."""
        ...

    async def poll(self, known: Sequence[Known]) -> list[Observation]:
        """Look at all allocations at once; all that is told was asked for in this call.

        One that is not mentioned is as it was said to be, and as the manager believes, or could not be looked at: what
        the manager did not accept (its answer had become too old) is told again as long as it is so. An end is looked
        for again before it is told again.
        """
        ...
