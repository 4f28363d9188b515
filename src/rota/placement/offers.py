"""Offers: the locations that connectors say they have, kept for a moment."""

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any

from rota.placement.errors import PlacementError
from rota.placement.levels import identity
from rota.placement.locations import stack

__all__ = ["Key", "Offer", "Offers"]

Key = tuple[str, str | None]
"""(deployment, service)."""


class Offer:
    """The locations of a deployment, or of a service of it."""

    __slots__ = ("asked", "chains", "locations")

    def __init__(self, locations: Mapping[str, Any]) -> None:
        self.locations = dict(locations)
        self.chains = {
            name: tuple([identity(each) for each in stack(location)]) for name, location in self.locations.items()
        }
        """Name → ids of the location and of all that its use is charged to."""
        self.asked = time.monotonic()


NOTHING = Offer({})


class Offers:
    """What was offered last, by deployment and service."""

    def __init__(self, context: Any, refresh_after: float) -> None:
        self._context = context
        self._refresh_after = refresh_after
        self._known: dict[Key, Offer] = {}
        self._asking: dict[Key, asyncio.Future[Offer]] = {}
        self.on_news: Callable[[Key, Offer, Offer], None] = lambda key, old, new: None
        """Called when a connector has answered."""

    def known(self, key: Key) -> Offer:
        """What was offered last; nothing, if nobody has asked."""
        return self._known.get(key, NOTHING)

    def stale(self) -> list[Key]:
        """Those of which it is not known any more whether they are so."""
        before = time.monotonic() - self._refresh_after
        return [key for key, offer in self._known.items() if offer.asked <= before]

    def is_old(self, key: Key) -> bool:
        """Whether it is not known any more whether what was offered is so."""
        return time.monotonic() - self.known(key).asked >= self._refresh_after

    def drop(self, key: Key) -> None:
        """Take it that nothing is offered: the connector does not answer."""
        old = self._known.get(key)
        if old is not None:
            self._known[key] = Offer({})
            self.on_news(key, old, self._known[key])

    def forget(self) -> None:
        """Take nothing for granted any more."""
        for offer in self._known.values():
            offer.asked = -1.0

    async def ask(self, key: Key) -> Offer:
        """What is offered: as it was a moment ago, or as the connector says now. Who asks at the same time shares the
        answer, and one that gives up does not take it from the others."""
        known = self._known.get(key)
        if known is not None and time.monotonic() - known.asked < self._refresh_after:
            return known
        asking = self._asking.get(key)
        if asking is None:
            asking = self._asking[key] = asyncio.ensure_future(self._ask(key))
            asking.add_done_callback(lambda done: self._answered(key, done))
        return await asyncio.shield(asking)

    def _answered(self, key: Key, done: "asyncio.Future[Offer]") -> None:
        del self._asking[key]
        if not done.cancelled():
            done.exception()  # it is told to whoever waits; if nobody does, that is no matter

    async def _ask(self, key: Key) -> Offer:
        deployment, service = key
        connector = self._context.deployment_manager.get_connector(deployment)
        if connector is None:
            raise PlacementError(f"deployment {deployment} is not there: it has no connector")
        offer = Offer(await connector.get_available_locations(service=service))
        old, self._known[key] = self.known(key), offer
        self.on_news(key, old, offer)
        return offer
