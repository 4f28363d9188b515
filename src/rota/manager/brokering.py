"""What the configuration says of the brokerage, as facts for the flows."""

import json
import os
from typing import TYPE_CHECKING, Any

from rota.model.errors import UsageError
from rota.schedule.broker.config import Thresholds
from rota.schedule.broker.reading import read_task, read_world

if TYPE_CHECKING:
    from rota.manager.config import BrokerConfig

__all__ = ["broker_facts"]

Fact = tuple[str, str]


def broker_facts(config: "BrokerConfig", home: str) -> dict[Fact, Any]:
    """(fact, key) → value. UsageError: it cannot be read."""
    found: dict[Fact, Any] = {("broker", "thresholds"): Thresholds(config.profile, config.thresholds)}
    if config.queues is not None:
        path = os.path.join(home, os.path.expanduser(config.queues))
        try:
            with open(path, encoding="utf-8") as file:
                read = json.load(file)
            if not isinstance(read, dict):
                raise UsageError("an object is expected")
            found["broker", "world"] = read_world(read if "queues" in read else {"queues": read})
        except (OSError, ValueError, UsageError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            raise UsageError(f"[broker] queues = '{config.queues}': {why}") from None
    for name, said in config.task.items():
        try:
            task = said if isinstance(said.get("task"), dict) else {"task": said}
            found["tasks", name] = read_task(task)
        except UsageError as error:
            raise UsageError(f"[broker.task.{name}] {error}") from None
    return found
