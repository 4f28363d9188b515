"""A site as the manager sees it: whatever gives allocations. Each kind of site is a module beside this one."""

import logging
import os
from collections.abc import Callable, Container, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Protocol

from rota.drivers.api import Driver, Known, Observation
from rota.drivers.gate import Health
from rota.drivers.local import Door
from rota.manager.config import SiteConfig
from rota.model.allocation import Allocation, Waiting
from rota.model.site import SiteFacts
from rota.wire.files import BadFileError, Left, decode_left, read_bounded, set_aside

__all__ = ["UNSENT", "Site"]

log = logging.getLogger("rota")
UNSENT = "unsent.json"


class Site(Protocol):
    """Asks its driver for allocations, and knows what they leave behind.

    A kind of site inherits this: a method with a body here need not be written where there is nothing to say.
    """

    name: str
    config: SiteConfig
    driver: Driver
    door: Door
    answers_at_once: bool
    """Whether the loop waits for its poll; a site that may take its time is polled beside the loop."""
    verb_of_submitted: str
    """The move of an allocation once it is submitted: `run` if there is no queue, else `pend`."""
    learn_again_s: float | None = None
    """How long after it has said what it offers the site is asked again; None: as long as usual."""
    env_style: tuple[str, ...] = ()
    """How its jobs are told what they got, unless they say so themselves (`Template.env_style`)."""
    env: Mapping[str, str] = {}
    """Variables that all its jobs have."""

    def facts(self) -> SiteFacts:
        """What the site offers, as far as that is known."""
        ...

    def first_facts(self) -> SiteFacts:
        """What the site offers until `learn` has answered."""
        return self.facts()

    async def learn(self) -> SiteFacts | None:
        """Ask the site what it offers; None: no more than is known. Raises RotaError: not now."""
        return None

    def is_other(self, config: SiteConfig) -> bool:
        """Whether files that the configuration names say something else than when this was made."""
        return False

    def take_over(self, earlier: "Site") -> None:
        """Keep what an earlier site of this name has that cannot be found again."""
        return

    def watch(self, wake: Callable[[], None]) -> None:
        """Call `wake` when something has ended that a poll should see at once."""
        return

    # ---- allocations ------------------------------------------------------------------------------------------------

    async def submit(
        self, tag: str, allocations: Sequence[Allocation], leases: Mapping[int, dict[str, Any]]
    ) -> list[str]:
        """Start allocations that were planned together, direct jobs with their leases by element; the native ids."""
        ...

    async def find(self, tag: str, count: int) -> list[str] | None:
        """The native ids of what was submitted with this tag; None: certainly nothing was."""
        return await self.driver.find(tag, count)

    async def terminate(self, known: Known) -> bool:
        """Ask an allocation to end. True: the message got through; False: try again later."""
        return await self.driver.terminate(known)

    async def poll(self, known: Sequence[Known]) -> list[Observation]:
        """Look at allocations, all at once. One that is not mentioned has not changed."""
        return await self.driver.poll(known)

    def doubt(self, known: Known) -> None:
        """Somebody has a reason to think that an allocation is not well: the next poll is to look at it."""
        return

    def know(self, tags: Callable[[], set[str]]) -> None:
        """Take what says which tags are of allocations there that are not over."""
        return

    def cleaned(self, tags: set[str]) -> Coroutine[Any, Any, dict[str, list[dict[str, str]]]] | None:
        """Destroy what is ours there and of none of the allocations with these tags; None: there cannot be any."""
        return None

    def costs(self) -> list[dict[str, Any]]:
        """What each server there has cost, by tag."""
        return []

    def shut(self, allocation: str) -> None:
        """Let nobody call back in the name of an allocation that is over."""
        self.door.shut(allocation)

    def waits(self, allocation: Allocation) -> Waiting | None:
        """Why an allocation that was submitted does not run yet, in the provider's words."""
        return None

    # ---- what allocations leave -------------------------------------------------------------------------------------

    async def host_of(self, known: Known) -> str | None:
        """The host where a direct job says that it has started."""
        return None

    async def report_of(self, known: Known) -> tuple[str, Left] | None:
        """(directory, the report that a direct job has left), if it has."""
        return None

    async def spoilt(self, known: Known) -> str | None:
        """What to say of a report of a direct job that was none."""
        return None

    async def was_restarted(self, known: Known) -> bool:
        """Whether the provider started a direct job a second time, which then did nothing."""
        return False

    def unsent(self, output: str) -> Left | None:
        """The reports that a runner with this output directory could not send before it exited."""
        path = os.path.join(output, UNSENT)
        try:
            data = read_bounded(path)
            return None if data is None else decode_left(data)
        except BadFileError as error:
            log.warning("%s is not what a runner leaves, and is moved aside: %s", path, error)
            set_aside(path)
            return None

    def output_of(self, tag: str, runner: str) -> str:
        """The directory that a runner of the allocation with this tag has its output in, or below."""
        ...

    async def read_output(self, host: str, path: str, offset: int, limit: int) -> bytes | None:
        """A stretch of a file on a host of the site that shares no files with us; None: it has no such host."""
        return None

    def over(self, live: Container[str]) -> list[str]:
        """The tags of allocations that may have left something on hosts that share no files with us: none of these."""
        return []

    async def clear(self, tags: Sequence[str], named: Iterable[str]) -> int:
        """Remove what allocations with these tags have left there, unless a directory of output that is named is in it.

        Returns of how many."""
        return 0

    async def last_output(self, known: Known) -> str | None:
        """The last line of the provider's own output file: why a runner did not come up."""
        return None

    # ---- what people see --------------------------------------------------------------------------------------------

    def health(self) -> Health:
        """How the site is doing."""
        return Health("ok")

    def trouble(self, wall: float) -> str | None:
        """That the site does not answer, and since when; None: it does."""
        return None

    def shown(self, wall: float) -> dict[str, Any]:
        """What `rota sites` shows of this kind of site beyond what every kind has."""
        return {}

    def note(self, words: str) -> None:
        """Show some words with the site, where its kind has a place for them."""
        return
