"""A broker that remembers: the decision about a task stands until what is known, or a threshold, changes."""

from rota.schedule.broker.config import Thresholds
from rota.schedule.broker.decision import Decision
from rota.schedule.broker.flows import broker, flow_of
from rota.schedule.broker.task import Task
from rota.schedule.broker.world import World

__all__ = ["Broker"]

MOST = 2048
"""Decisions that are kept; of more, those that nobody asked for longest go."""


class Broker:
    """Decides about tasks in one world."""

    def __init__(self, world: World, thresholds: Thresholds) -> None:
        self.world, self.thresholds = world, thresholds
        self._known: dict[tuple[str, Task], Decision] = {}

    def decide(self, task: Task, flow: str | None = None) -> Decision:
        """The decision about a task."""
        key = (flow or flow_of(task), task)
        found = self._known.pop(key, None)
        if found is None:
            found = broker(task, self.world, self.thresholds, key[0])
            if len(self._known) >= MOST:
                del self._known[next(iter(self._known))]
        self._known[key] = found
        return found
