"""Requests to sites: what is on its way is not asked for a second time, whatever happens to the state meanwhile."""

import asyncio
from typing import Any

import pytest

from rota.core.effects import Allocate
from rota.core.state import Settings, State
from rota.manager.jobbook import JobBook
from rota.manager.observing import Observer
from rota.model.allocation import Allocation
from rota.model.errors import BusyError
from rota.store.memory import MemoryStore

TAG = "0123456789ab"


class Site:
    """A site that takes its time to submit, and finds only what was submitted."""

    name = "hpc"
    verb_of_submitted = "pend"

    def __init__(self, fails: bool) -> None:
        self.fails = fails
        self.may_go_on = asyncio.Event()
        self.submitted = 0

    async def find(self, tag: str, count: int) -> list[str] | None:
        return ["7"] if self.submitted else None

    async def submit(self, tag: str, allocations: Any, leases: Any) -> list[str]:
        await self.may_go_on.wait()
        if self.fails:
            raise BusyError("later")
        self.submitted += 1
        return ["7"]

    def shut(self, allocation: str) -> None:
        pass


@pytest.mark.parametrize("fails", [False, True])
def test_what_is_on_its_way_is_looked_for_when_it_has_arrived(fails: bool) -> None:
    """The state is folded anew, twice, while a submission is on its way: it is looked for, as after a restart."""
    state = State(Settings())
    state.allocations["a1"] = Allocation("a1", "hpc", TAG, "SUBMITTING")
    told: list[Any] = []

    async def scenario() -> Site:
        site = Site(fails)
        observer = Observer({"hpc": site}, JobBook(MemoryStore(), {}), (), told.append)  # type: ignore[dict-item]
        for what in ("submit", "find", "find"):
            observer.allocate(state, Allocate(what, "a1", "hpc", TAG, ("a1",)))
            await asyncio.sleep(0)
        site.may_go_on.set()
        await observer.close()
        assert not observer._submitting
        return site

    site = asyncio.run(scenario())
    assert site.submitted == (0 if fails else 1)
    assert [(seen.id, seen.verb) for seen in told] == ([("a1", "fail")] if fails else [("a1", "pend")] * 3)


def test_a_site_that_is_slow_is_not_asked_again_meanwhile() -> None:
    """Of a runner that is missing its site is asked at every turn."""
    state = State(Settings())
    state.allocations["a1"] = Allocation("a1", "hpc", TAG, "RUNNING")
    polled: list[list[str]] = []

    class Slow(Site):
        async def poll(self, known: Any) -> list[Any]:
            polled.append([each.id for each in known])
            await self.may_go_on.wait()
            return []

        def doubt(self, known: Any) -> None:
            pass

    async def scenario() -> None:
        site = Slow(False)
        observer = Observer({"hpc": site}, JobBook(MemoryStore(), {}), (), print)  # type: ignore[dict-item]
        for _ in range(3):
            observer.allocate(state, Allocate("check", "a1", "hpc", TAG))
            await asyncio.sleep(0)
        site.may_go_on.set()
        await observer.close()

    asyncio.run(scenario())
    assert polled == [["a1"]]
