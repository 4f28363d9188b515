"""An allocation that somebody lends us (`rota pilot --join`): its launcher is started there, by who lends it.

We are not inside it. So what is to be done is said by files beside its script, and so is what became of it.
"""

import os
from collections.abc import Sequence

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from rota.drivers.allocation import Given
from rota.drivers.api import Ask, Known, Observation
from rota.drivers.given import GivenDriver, Launched, StillRunsError
from rota.model.site import SiteFacts

__all__ = ["BEGUN", "END", "ENDED", "Ended", "LentDriver"]

BEGUN, END, ENDED = "begun", "end", "ended.json"
"""That its launcher was started; that it is to be ended; how it ended."""


class Ended(Struct):
    """How a launcher ended."""

    code: int
    swept: bool = False
    """Whether every node was looked at since, and what was left there ended."""


class LentDriver(GivenDriver):
    """The runners of an allocation that we are not in."""

    def __init__(self, facts: SiteFacts, given: Given, directory: str, boot: str) -> None:
        super().__init__(facts, replace(given, system="hosts", job=None), directory, boot)
        self._lent = given

    async def submit(self, ask: Ask) -> list[str]:
        """Say that the scripts are there: who lends the allocation starts them."""
        launched = Launched("", "", self._lent)
        self._keep(ask.tag, launched)
        return [self._name(launched)]

    async def terminate(self, known: Known) -> bool:
        """Say that it is to end."""
        self._mark(known.tag)
        return True

    def _mark(self, tag: str) -> None:
        with open(os.path.join(self._directory, tag, END), "w"):
            pass

    async def poll(self, known: Sequence[Known]) -> list[Observation]:
        """What was left beside the scripts; of one that ended badly, or whose lender is gone, what its system says."""
        out = []
        for allocation in known:
            launched, ended = self._kept(allocation.tag), self._ended(allocation.tag)
            verb, words = "run", None
            if launched is None:
                verb, words = "complete", "it was never started"
            elif ended is not None and (ended.code == 0 or ended.swept):
                verb, words = "complete", f"its launcher ended with exit code {ended.code}"
            elif (job := self._lent.job) is not None:
                try:
                    doubt = await self._job_doubt(self._lent.system, job)
                    verb, words = ("complete", f"job {job} is over") if doubt is None else ("unsure", doubt)
                except StillRunsError:
                    pass
            elif ended is not None:
                verb, words = "unsure", f"its launcher ended with exit code {ended.code}, and its nodes said no more"
            out.append(Observation(allocation.id, verb, None if launched is None else self._name(launched), words))
        return out

    def _ended(self, tag: str) -> Ended | None:
        try:
            with open(os.path.join(self._directory, tag, ENDED), "rb") as file:
                return msgspec.json.decode(file.read(), type=Ended)
        except (FileNotFoundError, msgspec.MsgspecError):
            return None
