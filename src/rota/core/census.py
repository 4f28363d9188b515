"""The census: runners and allocations by what they do. An index of the state, written by evolve."""

from rota.model.allocation import Allocation
from rota.model.needs import Amounts
from rota.schedule.demand import ANY
from rota.schedule.queues import Claim

__all__ = ["Census"]


class Census:
    """Runners by state and by allocation; how many allocations there are, by site."""

    __slots__ = ("asked", "changed", "changing", "coming", "in_queue", "live", "of", "runners")

    def __init__(self) -> None:
        self.runners: dict[str, dict[str, None]] = {"SERVING": {}, "DRAINING": {}, "MISSING": {}}
        """State → the runners in it."""
        self.of: dict[str, dict[str, None]] = {}
        """Allocation → its runners, also those that are over."""
        self.live: dict[str, int] = {}
        """Site → how many of its allocations are not over."""
        self.in_queue: dict[tuple[str, str], int] = {}
        """(site, queue) → how many allocations that named the queue are not over."""
        self.asked: dict[str, dict[tuple[str, Amounts, int], int]] = {}
        """Site → (queue, node, seconds) → how many allocations of that kind are not over."""
        self.changing = 0
        """How many allocations neither run nor are over."""
        self.coming: dict[str, dict[tuple[str, int], int]] = {}
        """Site → (queue; "": its own, shape or ANY) → how many allocations lack runners, and are not to end."""
        self.changed: dict[Claim, None] = {}
        """Those that came or went since the scheduler last looked, which empties this."""

    def copy(self) -> "Census":
        """One that can go another way."""
        new = Census()
        new.runners = {state: names.copy() for state, names in self.runners.items()}
        new.of = {name: runners.copy() for name, runners in self.of.items()}
        new.live, new.in_queue, new.changing = self.live.copy(), self.in_queue.copy(), self.changing
        new.asked = {site: kinds.copy() for site, kinds in self.asked.items()}
        new.coming, new.changed = {site: shapes.copy() for site, shapes in self.coming.items()}, self.changed.copy()
        return new

    def runner(self, name: str, before: str, after: str) -> None:
        """A runner goes from one state to another; "" if there was none, or will be none."""
        if before != after:
            self.runners.get(before, {}).pop(name, None)
            if after in self.runners:
                self.runners[after][name] = None

    def join(self, runner: str, allocation: Allocation | None, name: str) -> None:
        """A runner belongs to the allocation of this name, which may be unknown."""
        self.count(allocation, -1)
        self.of.setdefault(name, {})[runner] = None
        self.count(allocation, 1)

    def leave(self, runner: str, allocation: Allocation | None, name: str) -> None:
        """A runner belongs to that allocation no more."""
        self.count(allocation, -1)
        runners = self.of.get(name, {})
        runners.pop(runner, None)
        if not runners:
            self.of.pop(name, None)
        self.count(allocation, 1)

    def count(self, allocation: Allocation | None, by: int) -> None:
        """Count an allocation: out (-1) before it changes, and in (1) afterwards."""
        if allocation is None or not allocation.state.endswith("ING"):
            return
        site, state = allocation.site, allocation.state
        self.live[site] = self.live.get(site, 0) + by
        if allocation.queue is not None:
            self.in_queue[site, allocation.queue] = self.in_queue.get((site, allocation.queue), 0) + by
            kinds, kind = (
                self.asked.setdefault(site, {}),
                (allocation.queue, allocation.capacity, allocation.time_s or 0),
            )
            kinds[kind] = kinds.get(kind, 0) + by
            if not kinds[kind]:
                del kinds[kind]
            if not kinds:
                del self.asked[site]
        if state != "RUNNING":
            self.changing += by
        if state != "KILLING" and len(self.of.get(allocation.id, ())) < allocation.nodes:
            shapes = self.coming.setdefault(site, {})
            key = (allocation.queue or "", ANY if allocation.shape is None else allocation.shape)
            self.changed[site, *key] = None
            shapes[key] = shapes.get(key, 0) + by
            if not shapes[key]:
                del shapes[key]
